"""The rules alone: what a report comes to, whose fault a failure is, how long a node rests."""

from datetime import timedelta

import pytest

from apps.inventory import health
from apps.inventory.health import Blamed, Said
from apps.teams.tests.builders import NOON


def said(*steps: tuple[str, int]) -> list[Said]:
    """Reports from the newest to the oldest: what they object to, and how often."""
    return [Said(tuple(names.split()), n_reports) for names, n_reports in steps]


@pytest.mark.parametrize(
    ("status", "failing", "verdict"),
    [
        ("ok", [], "healthy"),
        ("degraded", [], "suspect"),
        ("failed", [], "failed"),
        ("ok", ["ecc_uncorrected_3"], "suspect"),
        ("degraded", ["xid_79"], "failed"),
        ("ok", ["xid_13"], "suspect"),
        ("ok", ["something_new"], "suspect"),
        ("ok", ["temperature", "xid_79"], "failed"),
    ],
)
def test_a_report_comes_to_its_worst(status, failing, verdict):
    assert health.verdict_of(health.objections(status, failing)) == verdict


@pytest.mark.parametrize(
    ("reports", "verdict", "is_content"),
    [
        (said(), "healthy", True),
        (said(("temperature", 2)), "healthy", True),  # not yet often enough
        (said(("temperature", 3)), "suspect", False),
        (
            said(("temperature", 2), ("temperature load", 1)),
            "suspect",
            False,
        ),  # what else failed does not matter
        (said(("temperature", 2), ("", 1), ("temperature", 2)), "healthy", True),  # not in a row
        (said(("", 2), ("temperature", 3)), "healthy", False),  # well, but not for long enough
        (said(("", 3), ("temperature", 3)), "healthy", True),
        (said(("", 3), ("ecc_uncorrected", 1)), "healthy", False),
        (said(("", 5), ("ecc_uncorrected", 1)), "healthy", True),
        (said(("", 2), ("temperature", 1), ("", 2), ("temperature", 3)), "healthy", False),  # it flaps
    ],
)
def test_what_a_source_says_counts_in_a_row(reports, verdict, is_content):
    found = health.opinion_of(reports)

    assert (found.verdict, found.is_content) == (verdict, is_content)


def test_every_check_has_a_rule():
    assert health.rule_of("whatever").verdict == "suspect"
    assert health.RULES[-1].check == "*"


@pytest.mark.parametrize(
    ("attempts", "suspects"),
    [
        ({}, set()),
        ({1: {5}}, {5}),
        ({1: {5}, 2: {5}}, {5}),
        ({1: {5}, 2: {6}}, set()),  # it fails everywhere
        ({1: {5, 6}, 2: {6, 7}}, {6}),
        ({1: {5, 6}, 2: {6, 7}, 3: {8}}, set()),
    ],
)
def test_who_took_part_in_every_failure_is_suspect(attempts, suspects):
    assert health.suspects({id_: frozenset(of) for id_, of in attempts.items()}) == suspects


def blamed(after_s: float, kind: str = "start_failed", origin: str = "job:1", blame: float = 1.0) -> Blamed:
    return Blamed(at=NOON + timedelta(seconds=after_s), origin=origin, kind=kind, blame=blame)


@pytest.mark.parametrize(
    ("failures", "score"),
    [
        ([], 0),
        ([blamed(0), blamed(60), blamed(120)], 3),
        ([blamed(0, "node_lost"), blamed(1, "node_lost"), blamed(5, "node_lost", "job:2")], 1),  # one crash
        ([blamed(0, blame=0.25), blamed(60, blame=0.25)], 0.5),
        ([blamed(60 * n, "early_end", "user:1") for n in range(9)], 1),  # one person's mistakes
        ([blamed(60 * n, "early_end", f"user:{n}") for n in range(3)], 3),
        ([blamed(0), blamed(1, "early_end", "user:1")], 2),
    ],
)
def test_failures_add_up_by_incident_and_person(failures, score):
    assert health.score(failures) == pytest.approx(score)
    assert health.score(reversed(failures)) == pytest.approx(score)


def test_a_cool_down_doubles_up_to_a_maximum():
    rests = [health.cooldown(n) for n in (1, 2, 3, 7, 8, 1000)]

    assert [rest / health.FIRST_COOLDOWN for rest in rests] == [1, 2, 4, 64, 72, 72]
    assert rests[-1] == health.LONGEST_COOLDOWN


@pytest.mark.parametrize(
    ("speeds", "estimate"), [([0.8], 0.8), ([0.5, 0.9], 0.7), ([0.9, 0.2, 0.8], 0.8), ([0.001], 0.1)]
)
def test_a_speed_is_what_the_middle_job_saw(speeds, estimate):
    assert health.estimate(speeds) == pytest.approx(estimate)


def test_a_speed_comes_back_to_one_in_a_few_steps():
    speed, n_steps = 0.1, 0
    while speed < 1:
        speed, n_steps = health.recovered(speed), n_steps + 1

    assert n_steps == 5

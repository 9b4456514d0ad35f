"""Failures counted against nodes, and quarantine, on a real PostgreSQL."""

import threading
from datetime import datetime, timedelta
from itertools import count

import pytest
from django.db import connection

from apps.events.models import Event
from apps.inventory import failures, health, reports, services
from apps.inventory.failures import Failure
from apps.inventory.models import Node, NodeFailure
from apps.inventory.reports import Check, Report
from apps.inventory.tests.builders import node
from apps.teams.tests.builders import NOON

pytestmark = pytest.mark.django_db
_numbers = count(1)


def after(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def fail(
    *of: Node, minutes: float, job: int | None = None, kind: str = "start_failed", origin: str = "", **more
) -> list[Node]:
    """One attempt fails on these nodes; each is another job's unless one is named."""
    number = next(_numbers)
    job_id = job or 1000 + number
    made = Failure(
        allocation_id=more.pop("allocation_id", number),
        job_id=job_id,
        origin=origin or f"job:{job_id}",
        kind=kind,
        at=after(minutes),
        node_ids=frozenset(one.pk for one in of),
        **more,
    )
    return failures.note_failure(failure=made, at=after(minutes))


def state(of: Node) -> tuple[str, str]:
    of.refresh_from_db()
    return of.health, of.health_by


def test_a_node_that_fails_rests_a_moment_and_stays_healthy():
    made = node()
    fail(made, minutes=0)

    assert state(made) == ("healthy", "")
    assert made.cooldown_until_at == after(0) + health.SHORT_COOLDOWN
    assert Event.objects.filter(kind="node.failure_noted").count() == 1


def test_an_early_end_alone_gives_no_rest():
    made = node()
    fail(made, minutes=0, kind="early_end", origin="user:1")

    assert state(made) == ("healthy", "")
    assert made.cooldown_until_at is None


def test_repeated_failures_put_a_node_into_quarantine_and_say_which():
    made = node()
    fail(made, minutes=0, job=7)
    fail(made, minutes=2, job=8, kind="node_lost")
    assert state(made)[0] == "healthy"
    fail(made, minutes=4, job=9)

    assert state(made) == ("suspect", "failures")
    assert made.cooldown_until_at == after(4) + health.FIRST_COOLDOWN
    assert made.health_reason == "3 failures: job 9 did not start, job 8 was lost, job 7 did not start."
    event = Event.objects.get(kind="node.quarantined")
    assert (event.is_audit, event.actor_id, event.data["job_ids"]) == (True, None, [7, 8, 9])


def test_one_attempt_noted_twice_counts_once():
    made = node()
    for minutes in (0, 1, 2, 3):
        fail(made, minutes=minutes, job=7, allocation_id=5)

    assert state(made)[0] == "healthy"
    assert NodeFailure.objects.count() == 1


def test_failures_of_long_ago_do_not_count():
    made = node()
    for minutes in (0, 2, 63):
        fail(made, minutes=minutes)

    assert state(made)[0] == "healthy"


def test_what_fails_together_on_a_node_failed_once():
    made = node()
    for second in range(5):
        fail(made, minutes=second / 60, kind="node_lost")

    assert state(made)[0] == "healthy"


def test_a_job_that_fails_on_several_nodes_is_to_blame_itself():
    made = [node(f"n{n}") for n in range(4)]
    for minutes, one in enumerate(made):
        fail(one, minutes=minutes, job=7)
        fail(one, minutes=minutes + 10, job=7)

    assert {state(one)[0] for one in made} == {"healthy"}
    assert set(NodeFailure.objects.values_list("blame", flat=True)) == {0.0}


def test_a_node_put_away_for_what_turns_out_to_be_a_jobs_own_fault_comes_back():
    bad, other = node("n1"), node("n2")
    for minutes in (0, 2, 4):
        fail(bad, minutes=minutes, job=7)
    assert state(bad) == ("suspect", "failures")
    fail(other, minutes=5, job=7)

    assert state(bad) == ("healthy", "")
    assert (bad.cooldown_until_at, bad.n_quarantines) == (None, 0)
    assert state(other)[0] == "healthy"


def test_failures_growing_old_do_not_acquit():
    made, other = node("n1"), node("n2")
    for minutes in (0, 2, 4):
        fail(made, minutes=minutes)
    fail(made, other, minutes=70)

    assert state(made) == ("suspect", "failures")


def test_the_nodes_of_a_gang_share_the_blame_until_one_is_found_in_every_failure():
    bad, others = node("bad"), [node(f"n{n}") for n in range(3)]
    for minutes, one in enumerate(others):
        fail(bad, one, minutes=minutes, job=7)

    blame = dict(NodeFailure.objects.filter(node=bad).values_list("at", "blame"))
    assert set(blame.values()) == {1.0}
    assert set(NodeFailure.objects.exclude(node=bad).values_list("blame", flat=True)) == {0.0}
    assert state(bad) == ("suspect", "failures")


def test_a_gang_that_fails_once_takes_nobody_away():
    made = [node(f"n{n}") for n in range(4)]
    for minutes in (0, 2, 4):
        fail(*made, minutes=minutes)

    assert {state(one) for one in made} == {("healthy", "")}
    assert {one.cooldown_until_at for one in made} == {None}


def test_a_very_large_gang_says_nothing_of_its_nodes():
    ids = frozenset(range(1, health.MOST_SUSPECTS + 2))
    made = Failure(allocation_id=1, job_id=1, origin="job:1", kind="node_lost", at=NOON, node_ids=ids)

    assert failures.note_failure(failure=made, at=NOON) == []
    assert not NodeFailure.objects.exists()


def test_one_persons_broken_jobs_take_no_node_from_the_others():
    made = node()
    for minutes in range(20):
        fail(made, minutes=minutes, kind="early_end", origin="user:1")
    assert state(made)[0] == "healthy"
    for minutes, user in ((21, 2), (22, 3)):
        fail(made, minutes=minutes, kind="early_end", origin=f"user:{user}")

    assert state(made) == ("suspect", "failures")


def test_what_the_backend_names_counts_whatever_else_the_job_does():
    bad, other = node("bad"), node("other")
    fail(other, minutes=0, job=7, kind="node_lost")
    for minutes in (2, 4, 6):
        fail(bad, minutes=minutes, job=7, kind="node_lost", is_certain=True)

    assert state(bad) == ("suspect", "failures")


def test_each_quarantine_lasts_twice_as_long_and_takes_fewer_failures():
    made = node()
    for minutes in (0, 2, 4):
        fail(made, minutes=minutes)
    services.settle_health(at=after(9))
    assert state(made) == ("healthy", "")
    fail(made, minutes=20)
    assert state(made)[0] == "healthy"
    fail(made, minutes=22)

    assert state(made) == ("suspect", "failures")
    assert made.cooldown_until_at == after(22) + 2 * health.FIRST_COOLDOWN
    assert made.health_reason.startswith("2 failures")  # those before it came back are spent


def test_a_long_time_without_trouble_is_forgiven():
    made = node()
    for minutes in (0, 2, 4):
        fail(made, minutes=minutes)
    services.settle_health(at=after(9))
    day = health.FORGIVEN_AFTER / timedelta(minutes=1) + 10
    for minutes in (day, day + 2):
        fail(made, minutes=minutes)
    assert state(made)[0] == "healthy"
    fail(made, minutes=day + 4)
    made.refresh_from_db()

    assert made.cooldown_until_at == after(day + 4) + health.FIRST_COOLDOWN


def test_more_failures_in_quarantine_lengthen_it_without_doubling():
    made = node()
    for minutes in (0, 2, 4, 6):
        fail(made, minutes=minutes)
    made.refresh_from_db()

    assert made.n_quarantines == 1
    assert made.cooldown_until_at == after(6) + health.FIRST_COOLDOWN


def test_resuming_ends_a_quarantine_and_forgives():
    made = node()
    for minutes in (0, 2, 4):
        fail(made, minutes=minutes)
    services.resume_node(node_id=made.pk, actor=None, at=after(5))
    assert state(made) == ("healthy", "")
    fail(made, minutes=6)

    assert state(made)[0] == "healthy"


def test_a_drained_or_failed_node_keeps_its_health():
    made, down = node("n1"), node("n2")
    services.drain_node(node_id=made.pk, actor=None, at=after(0))
    services.report_health(node_id=down.pk, health="failed", reason="", actor=None, at=after(0))
    for minutes in (1, 3, 5):
        fail(made, minutes=minutes)
        fail(down, minutes=minutes)
    services.settle_health(at=after(600))

    assert (state(made)[0], state(down)[0]) == ("drained", "failed")


def test_a_bad_report_in_quarantine_asks_for_good_ones():
    made = node()
    for minutes in (0, 2, 4):
        fail(made, minutes=minutes)
    bad = Report(node_id=made.pk, at=after(5), checks=(Check("fabric", False),))
    reports.take_report(report=bad, source="agent", actor=None, at=after(5))
    services.settle_health(at=after(600))

    assert state(made) == ("suspect", "reports")


@pytest.mark.django_db(transaction=True)
def test_failures_noted_at_once_make_one_quarantine():
    made = node()

    def note(minutes: float) -> None:
        try:
            fail(made, minutes=minutes)
        finally:
            connection.close()

    threads = [threading.Thread(target=note, args=(minutes,)) for minutes in (0, 2, 4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert state(made) == ("suspect", "failures")
    assert (made.n_quarantines, NodeFailure.objects.count()) == (1, 4)


@pytest.mark.django_db(transaction=True)
def test_one_origin_that_fails_here_and_there_at_once_is_found_out():
    made = [node(f"n{n}") for n in range(4)]

    def note(of: Node) -> None:
        try:
            fail(of, minutes=0, origin="array:1")
        finally:
            connection.close()

    threads = [threading.Thread(target=note, args=(one,)) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(NodeFailure.objects.values_list("blame", flat=True)) == {0.0}

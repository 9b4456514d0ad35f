"""Device-seconds that an event cost, without a database."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.power.settlement.losses import Held, JobFacts, lost_device_s, lost_share, merged

START = datetime(2026, 3, 2, 14, tzinfo=UTC)
CURVE = ((0.5, 0.63), (0.75, 0.86), (1.0, 1.0))


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def job(**more):
    return JobFacts(**{"name": "train", "n_devices": 8, "tdp_w": 700.0, "curve": CURVE, **more})


def held(lever="cap", begin=0.0, end=1.0, before=None, after=None):
    return Held(lever, before or {}, after or {}, at(begin), at(end))


@pytest.mark.parametrize(
    ("lever", "before", "after", "wanted"),
    [
        ("cap", {}, {"cap": 0.75}, 0.14),
        ("cap", {"cap_w": 700}, {"cap_w": 525}, 0.14),
        ("cap", {"cap": 0.75}, {"cap": 0.5}, 1 - 0.63 / 0.86),
        ("cap", {}, {"cap": 0.625}, 1 - 0.745),  # half way between two points
        ("cap", {}, {"cap": 0.1}, 0.37),  # below the curve: as at its end
        ("cap", {"cap": 0.5}, {"cap": 1.0}, 0.0),  # it gains
        ("cap", {}, {}, None),
        ("pause", {}, {}, 1.0),
        ("stop", {}, {}, 1.0),
        ("shrink", {"n_replicas": 4}, {"n_replicas": 3}, 0.25),
        ("shrink", {}, {"n_replicas": 3}, None),
    ],
)
def test_what_a_lever_takes(lever, before, after, wanted):
    found = lost_share(held(lever, before=before, after=after), job())

    assert found == (None if wanted is None else pytest.approx(wanted))


def test_without_a_curve_a_cap_tells_nothing():
    assert lost_share(held(after={"cap": 0.5}), job(curve=())) is None
    assert lost_device_s([held(after={"cap": 0.5})], job(curve=())) is None


def test_of_two_levers_at_a_time_the_heavier_counts_and_nothing_after_its_end():
    capped, paused = held(after={"cap": 0.75}, end=2), held("pause", begin=1, end=3)

    assert lost_device_s([capped, paused], job()) == pytest.approx(8 * 3600 * (0.14 + 2))
    assert lost_device_s([capped, paused], job(ended_at=at(1.5))) == pytest.approx(8 * 3600 * (0.14 + 0.5))
    assert lost_device_s([], job()) == 0


_spans = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda one: (one[0], one[0] + one[1])), max_size=8
)


@given(_spans)
def test_pauses_add_up_to_the_time_they_cover(spans):
    covered = {hour for begin, end in spans for hour in range(begin, end)}
    levers = [held("pause", begin=begin, end=end) for begin, end in spans]

    assert lost_device_s(levers, job()) == 8 * 3600 * len(covered)


@given(_spans)
def test_merged_spans_cover_the_same_and_do_not_touch(spans):
    found = merged((at(begin), at(end)) for begin, end in spans)

    assert all(before[1] < after[0] for before, after in pairwise(found))
    hours = {hour for begin, end in spans for hour in range(begin, end)}
    assert sum((end - begin for begin, end in found), timedelta()) == timedelta(hours=len(hours))

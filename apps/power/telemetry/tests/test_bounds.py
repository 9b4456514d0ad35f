"""Bounds when meters are silent: the figures of P09, and random trees against their true load."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.power.curtailment.solve import solve
from apps.power.curtailment.tests.hall import CURVE, load, problem
from apps.power.response import Meter
from apps.power.telemetry.bounds import bound_loads, held_paths
from apps.power.telemetry.facts import NONE, Domain, How, Node, Part, Picture, Quality, Reading
from apps.power.telemetry.tests.hall import (
    HALL,
    IDLE,
    TOTAL_W,
    A,
    B,
    C,
    D,
    E,
    domains,
    draw_w,
    nodes,
    reading,
)


def test_the_hall_draws_what_p09_says():
    assert pytest.approx(113_200.0) == TOTAL_W
    assert draw_w(D) == pytest.approx(20_800.0)


def test_with_every_meter_fresh_each_says_its_own_and_nothing_is_held():
    picture = bound_loads(domains(), nodes())

    assert [round(bound.load_w) for bound in picture.bounds] == [
        113_200,
        17_600,
        30_400,
        30_400,
        20_800,
        5_600,
        8_400,
    ]
    assert {bound.quality for bound in picture.bounds} == {Quality.OK}
    assert not any(bound.is_held or bound.is_alarm or bound.over_w for bound in picture.bounds)
    assert picture.unseen_jobs == frozenset()


def test_p09a_a_silent_rack_is_the_hall_less_the_others():
    silent = domains(D)
    picture = bound_loads(silent, nodes(ack_age_s=inf))
    rack = picture.bounds[D]

    assert (rack.load_w, rack.quality, rack.how) == (pytest.approx(20_800.0), Quality.ESTIMATED, How.SIBLINGS)
    assert (picture.bounds[HALL].quality, picture.bounds[HALL].over_w) == (Quality.OK, 0.0)
    # No start in that rack, and everywhere else as ever.
    assert held_paths(silent, picture) == tuple(d == D for d in range(7))
    assert not any(bound.is_alarm for bound in picture.bounds)


def test_p09b_with_the_hall_silent_too_acknowledged_caps_bound_the_rack():
    silent = domains(HALL, D)
    picture = bound_loads(silent, nodes())
    hall, rack = picture.bounds[HALL], picture.bounds[D]

    assert (rack.load_w, rack.quality, rack.how) == (pytest.approx(20_800.0), Quality.ESTIMATED, How.CAPS)
    assert (hall.load_w, hall.quality, hall.over_w) == (pytest.approx(113_200.0), Quality.ESTIMATED, 0.0)
    assert all(held_paths(silent, picture))
    assert picture.unseen_jobs == {D}


def test_p09c_what_says_nothing_at_all_is_taken_for_uncapped_and_others_shed_for_it():
    silent = domains(HALL, D)
    picture = bound_loads(silent, nodes(ack_age_s=600.0))
    hall, rack = picture.bounds[HALL], picture.bounds[D]

    assert (rack.load_w, rack.quality, rack.how) == (pytest.approx(30_400.0), Quality.MISSING, How.UNCAPPED)
    assert (hall.load_w, hall.quality) == (pytest.approx(122_800.0), Quality.MISSING)
    assert hall.over_w == pytest.approx(8_400.0)
    assert hall.is_alarm
    assert all(held_paths(silent, picture))

    # From jobs that can be seen: D may not be counted on, E is paused, A is firm.
    assert picture.unseen_jobs == {D}
    asked = problem([load(A, 0, 4, draw_w=300.0), load(B, 1, 4), load(C, 2, 4)], hall.over_w / 1000)
    decided = solve(asked)
    caps = {job: round(option.cap * CURVE.tdp_w) for job, option in decided.chosen(asked).items()}
    shed_w = sum(option.total_uw for option in decided.chosen(asked).values()) / 1e6
    assert caps == {C: 500, B: 600}
    assert hall.load_w - shed_w == pytest.approx(113_200.0)


def test_with_more_than_a_fifth_of_its_meters_silent_a_domain_is_held_and_somebody_called():
    # The hall's own meter is fresh; one silent rack of seven meters is 14 %, two are 29 %.
    one, two = bound_loads(domains(D), nodes()), bound_loads(domains(D, IDLE), nodes())

    assert (one.bounds[HALL].is_alarm, one.bounds[HALL].is_held) == (False, False)
    assert (two.bounds[HALL].is_alarm, two.bounds[HALL].is_held) == (True, True)
    assert (two.bounds[HALL].n_silent, two.bounds[HALL].n_meters) == (2, 7)
    assert two.bounds[HALL].load_w == pytest.approx(113_200.0)


def test_of_two_silent_racks_each_may_have_all_that_is_left():
    picture = bound_loads(domains(D, E), nodes(ack_age_s=inf))
    # The hall less the other four is 26.4 kW. E cannot draw more than its devices do at rest.
    assert picture.bounds[D].load_w == pytest.approx(26_400.0)
    assert picture.bounds[E].load_w == pytest.approx(5_600.0)


@pytest.mark.parametrize(
    "word",
    [
        reading(20_800.0, age_s=60.1),
        reading(20_800.0, age_s=-61.0),
        reading(20_800.0, quality="estimated"),
        reading(20_800.0, quality="bad"),
        reading(nan),
        reading(inf),
        reading(-1.0),
    ],
    ids=["old", "ahead", "estimated", "bad", "nan", "infinite", "negative"],
)
def test_a_reading_that_cannot_be_relied_on_counts_as_none(word: Reading):
    found = list(domains())
    found[D] = replace(found[D], reading=word)

    assert bound_loads(found, nodes()).bounds[D].quality is Quality.ESTIMATED


def test_a_facility_is_read_at_its_meter():
    # 10 kW fixed and 1.2 for each watt: 145.84 kW at the meter are 113.2 kW of IT load.
    top = Domain("F", reading=reading(145_840.0), meter=Meter(10_000.0, 1.2))
    below = [replace(one, parent=one.parent + 1) for one in domains(D)]
    moved = [replace(node, domain=node.domain + 1) for node in nodes()]
    hall = replace(below[0], parent=0, reading=reading(1.0, age_s=999.0))
    picture = bound_loads([top, hall, *below[1:]], moved)

    assert picture.bounds[0].load_w == pytest.approx(113_200.0)
    # The hall is all there is below it, and the rack is what the hall leaves: both follow from one meter.
    assert picture.bounds[1].how is How.SIBLINGS
    assert picture.bounds[1 + D].load_w == pytest.approx(20_800.0)


def test_meters_that_cannot_both_be_right_tell_nothing_of_a_third():
    found = list(domains(D))
    found[HALL] = replace(found[HALL], reading=reading(80_000.0))
    picture = bound_loads(found, nodes(ack_age_s=inf))

    # The racks add up to 92.4 kW: that counts, somebody is called, and D is taken for the worst.
    assert picture.bounds[HALL].load_w == pytest.approx(92_400.0)
    assert picture.bounds[HALL].disagree_w == pytest.approx(12_400.0)
    assert picture.bounds[HALL].is_alarm
    assert picture.bounds[D].how is How.UNCAPPED


def test_where_no_meter_was_ever_read_what_was_admitted_counts_and_nothing_is_held():
    found = [replace(one, reading=None) for one in domains()]
    picture = bound_loads(found, nodes())

    assert picture.bounds[HALL].load_w == pytest.approx(113_200.0)
    assert {bound.how for bound in picture.bounds} == {How.RESERVED}
    assert not any(held_paths(found, picture))


# Against the truth -------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Domain], list[Node], list[float]]:
    """A tree with meters that tell the truth or say nothing, nodes within what they can draw, and the true loads."""
    n = draw(st.integers(1, 9))
    parents = [NONE, *(draw(st.integers(0, d - 1)) for d in range(1, n))]
    meters = [draw(st.sampled_from(["none", "fresh", "old", "bad"])) for _ in range(n)]
    lowest = list(meters)
    for d in range(1, n):
        if meters[d] == "none":
            lowest[d] = lowest[parents[d]]
    own_w, found = [0.0] * n, []
    for _ in range(draw(st.integers(0, 8))):
        d = draw(st.integers(0, n - 1))
        rest_w = float(draw(st.integers(0, 3_000)))
        peak_w, most_w, cap_w = (float(draw(st.integers(0, 5_000))) for _ in range(3))
        has_ack, is_fresh = draw(st.booleans()), draw(st.booleans())
        age_s = 10.0 if is_fresh else 1e4
        part = Part(7, peak_w, most_w, cap_w if has_ack else None, age_s)
        # A cap that was acknowledged lately holds; what was admitted holds where nobody is blind.
        can_w = min(most_w, cap_w) if has_ack and is_fresh else most_w
        allowed_w = can_w if lowest[d] in ("old", "bad") else min(can_w, peak_w)
        own_w[d] += draw(st.floats(0.0, 1.0)) * rest_w + draw(st.floats(0.0, 1.0)) * allowed_w
        found.append(Node(d, rest_w, (part,)))
    true_w = list(own_w)
    for d in range(n - 1, 0, -1):
        true_w[parents[d]] += true_w[d]
    made = []
    for d in range(n):
        meter = Meter(500.0, 1.25) if d == 0 and draw(st.booleans()) else Meter()
        at_meter_w = meter.fixed_w + meter.k * true_w[d]
        word = {
            "none": None,
            "fresh": Reading(at_meter_w, 5.0, 60.0),
            "old": Reading(draw(st.floats(0.0, 1e5)), 90.0, 60.0),
            "bad": Reading(draw(st.floats(0.0, 1e5)), 5.0, 60.0, "bad"),
        }[meters[d]]
        limit_w = float(draw(st.integers(0, 20_000))) if draw(st.booleans()) else inf
        made.append(Domain(f"d{d}", parents[d], limit_w, word, meter))
    return made, found, true_w


@given(trees())
def test_no_bound_is_below_the_true_load_while_readings_that_are_ok_are_true(
    tree: tuple[list[Domain], list[Node], list[float]],
):
    made, found, true_w = tree
    picture = bound_loads(made, found)

    for bound, truth in zip(picture.bounds, true_w, strict=True):
        slack = 1e-6 * max(1.0, sum(true_w))
        assert bound.load_w >= truth - slack
        assert bound.least_w <= truth + slack
    _require_sense(made, picture)


def _require_sense(made: list[Domain], picture: Picture) -> None:
    held = held_paths(made, picture)
    for d, (domain, bound) in enumerate(zip(made, picture.bounds, strict=True)):
        # What would have to be shed brings the bound within the limit, and where something must be, nothing starts.
        assert bound.load_w - bound.over_w <= domain.limit_w + 1e-6
        assert not bound.over_w or (held[d] and bound.is_alarm)
        if domain.parent != NONE and held[domain.parent]:
            assert held[d]
        if domain.reading is not None and domain.reading.is_good:
            assert bound.how is How.METER


@given(trees(), st.data())
def test_one_more_silent_meter_makes_no_bound_tighter(
    tree: tuple[list[Domain], list[Node], list[float]], data: st.DataObject
):
    made, found, _ = tree
    good = [d for d, domain in enumerate(made) if domain.reading is not None and domain.reading.is_good]
    if not good:
        return
    gone = data.draw(st.sampled_from(good))
    old = Reading(0.0, 1e6, 60.0)
    fewer = [replace(domain, reading=old) if d == gone else domain for d, domain in enumerate(made)]
    before, after = bound_loads(made, found), bound_loads(fewer, found)

    for had, has in zip(before.bounds, after.bounds, strict=True):
        assert has.load_w >= had.load_w - 1e-6 * max(1.0, had.load_w)
        assert has.n_silent >= had.n_silent


def test_a_cap_that_is_acknowledged_bounds_what_was_reserved_whether_the_meter_above_speaks_or_not():
    part = Part(7, peak_w=700.0, most_w=700.0, capped_w=300.0, ack_age_s=10.0)
    nodes = [Node(1, 0.0, (part,))]
    loads = []
    for age_s in (5.0, 1e6):
        domains = [Domain("hall", reading=Reading(5000.0, age_s, 60.0)), Domain("rack", parent=0)]
        loads.append(bound_loads(domains, nodes).bounds[1].load_w)
    assert loads == [300.0, 300.0]

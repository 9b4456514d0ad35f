"""Where an event stands and what it leaves to draw, without a database."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.power.response import (
    OVER,
    Acts,
    Load,
    Meter,
    Phase,
    Response,
    TargetKind,
    Times,
    effective_limit_w,
    limit_it_w,
    needed_shed_w,
    phase_of,
)

DAY = datetime(2026, 3, 2, tzinfo=UTC)
ORDER = [Phase.SCHEDULED, Phase.NOTIFIED, Phase.RAMPING, Phase.ACTIVE, Phase.RECOVERING]
BUSY = Load(draw_w=140e3, allowed_w=130e3)
CALM = Load(draw_w=100e3, allowed_w=130e3)


def clock(hour: int, minute: int = 0) -> datetime:
    return DAY + timedelta(hours=hour, minutes=minute)


def times(notified=(13, 45), ramp=(13, 45), start=(14, 0), end=(17, 0)):
    told, ramps, starts, ends = (clock(*one) for one in (notified, ramp, start, end))
    return Times(notified_at=told, ramp_start_at=ramps, start_at=starts, end_at=ends)


def p01(**more):
    shed = {"target_kind": TargetKind.SHED_BY, "value": 18e3, "reference_w": 132.4e3, "recovery_s": 3600.0}
    return Response(times=times(), **{**shed, **more})


def p03(**more):
    told = times(notified=(15, 0), ramp=(15, 0), start=(15, 30), end=(16, 30))
    limit = {"target_kind": TargetKind.LIMIT_TO, "value": 108.4e3, "reference_w": 113.2e3}
    return Response(times=told, priority=0, **{**limit, **more})


def phase(at, acts=None, *, plan=True, reverted=False, load=BUSY, of=None):
    return phase_of(
        of or times(),
        acts or Acts(),
        has_committed_plan=plan,
        is_all_reverted=reverted,
        load=load,
        at=at,
    )


def test_an_event_goes_through_its_phases():
    told = times(notified=(12, 0))
    seen = [phase(clock(*at), of=told) for at in ((11, 59), (12, 0), (13, 45), (14, 0), (17, 0))]

    assert seen == ORDER
    assert phase(clock(17), reverted=True, load=CALM) is Phase.COMPLETED


def test_without_a_committed_plan_nothing_is_touched_and_nothing_to_undo():
    assert phase(clock(15), plan=False) is Phase.NOTIFIED
    assert phase(clock(17), plan=False) is Phase.COMPLETED


def test_cancelled_midway_it_is_released_first():
    acts = Acts(cancelled_at=clock(15))

    assert phase(clock(14, 59), acts) is Phase.ACTIVE
    assert phase(clock(15), acts) is Phase.RECOVERING
    assert phase(clock(15, 6), acts, reverted=True, load=CALM) is Phase.CANCELLED


def test_a_load_that_nobody_knows_is_not_within_what_is_allowed():
    assert phase(clock(18), reverted=True, load=Load(allowed_w=1e5)) is Phase.RECOVERING
    assert phase(clock(18), reverted=True, load=Load(draw_w=101e3, allowed_w=1e5)) is Phase.COMPLETED
    assert phase(clock(18), reverted=True, load=Load(draw_w=103e3, allowed_w=1e5)) is Phase.RECOVERING


def test_what_was_released_stays_so_though_the_load_grows():
    assert phase(clock(18), Acts(released_at=clock(17, 6))) is Phase.COMPLETED


# Properties over any times and acts, in minutes of a day.
minutes = st.integers(0, 24 * 60).map(lambda n: DAY + timedelta(minutes=n))
maybe = st.none() | minutes
all_times = (
    st.lists(minutes, min_size=4, max_size=4)
    .map(sorted)
    .filter(lambda found: found[2] < found[3])
    .map(
        lambda found: Times(notified_at=found[0], ramp_start_at=found[1], start_at=found[2], end_at=found[3])
    )
)
all_acts = st.builds(Acts, cancelled_at=maybe, opted_out_at=maybe, released_at=maybe)
scenes = st.fixed_dictionaries(
    {
        "has_committed_plan": st.booleans(),
        "is_all_reverted": st.booleans(),
        "load": st.sampled_from([BUSY, CALM, Load(), Load(allowed_w=1.0)]),
    }
)


def rank(found):
    return len(ORDER) if found in OVER else ORDER.index(found)


@given(all_times, all_acts, scenes, minutes, minutes)
def test_a_phase_never_goes_back_as_time_goes_on(of, acts, scene, one_at, other_at):
    first, second = (phase_of(of, acts, **scene, at=at) for at in sorted((one_at, other_at)))

    assert rank(first) <= rank(second)
    if first in OVER:
        assert second is first


@given(all_times, all_acts, scenes, minutes)
def test_an_act_yet_to_come_changes_nothing_now(of, acts, scene, at):
    done = {
        name: value
        for name in ("cancelled_at", "opted_out_at", "released_at")
        if (value := getattr(acts, name)) is not None and value <= at
    }

    assert phase_of(of, acts, **scene, at=at) is phase_of(of, Acts(**done), **scene, at=at)


@given(all_times, scenes, st.data())
def test_what_is_cancelled_before_the_ramp_has_nothing_to_undo(of, scene, data):
    gone_at = data.draw(minutes.filter(lambda at: at < of.ramp_start_at) | st.just(DAY - timedelta(1)))
    at = data.draw(minutes.filter(lambda at: at >= gone_at))

    assert phase_of(of, Acts(cancelled_at=gone_at), **scene, at=at) is Phase.CANCELLED


@given(all_times, all_acts, scenes, minutes)
def test_only_a_committed_plan_ramps(of, acts, scene, at):
    found = phase_of(of, acts, **{**scene, "has_committed_plan": False}, at=at)

    assert found not in (Phase.RAMPING, Phase.ACTIVE, Phase.RECOVERING)


def test_a_shed_leaves_the_reference_less_it():
    assert limit_it_w(p01(), Meter()) == pytest.approx(114.4e3)


def test_a_shed_at_the_meter_converts_by_k_and_not_by_pue():
    # 20.7 kW at the meter of a hall with k = 1.15 are 18 kW of IT load, whatever the fixed part is.
    meter = Meter(fixed_w=1e5, k=1.15)
    event = p01(value=20.7e3, reference_w=1e5 + 1.15 * 132.4e3)

    assert limit_it_w(event, meter) == pytest.approx(114.4e3)
    # F = 100 kW, k = 1.15, 1 MW of IT load: 115 kW at the meter need 100 kW, not 92.
    assert limit_it_w(p01(value=115e3, reference_w=1.25e6), meter) == pytest.approx(900e3)


def test_a_limit_at_the_meter_converts_by_the_fixed_part_and_k():
    assert limit_it_w(p03(value=1.25e6), Meter(fixed_w=1e5, k=1.15)) == pytest.approx(1e6)
    assert limit_it_w(p03(value=5e4), Meter(fixed_w=1e5, k=1.15)) == 0.0


@pytest.mark.parametrize(("level", "share"), [(0, 1.0), (1, 0.9), (2, 0.75), (3, 0.6)])
def test_a_level_is_a_share_of_the_reference(level, share):
    event = p01(target_kind=TargetKind.LEVEL, value=level, reference_w=1e5)

    assert limit_it_w(event, Meter()) == pytest.approx(share * 1e5)


def test_a_shed_without_a_reference_says_nothing_yet():
    assert limit_it_w(p01(reference_w=None), Meter()) is None


@pytest.mark.parametrize(
    ("at", "limit_w", "shed_w"),
    [
        ((13, 59), None, 0.0),
        ((14, 0), 114.4e3, 18e3),
        ((15, 29), 114.4e3, 18e3),
        ((15, 30), 108.4e3, 24e3),  # not 18 + 24
        ((16, 29), 108.4e3, 24e3),
        ((16, 30), 114.4e3, 18e3),  # back to the first, not to normal
        ((17, 0), 1.05 * 132.4e3, 0.0),
        ((18, 0), None, 0.0),
    ],
)
def test_of_two_events_the_strictest_counts(at, limit_w, shed_w):
    told = [p01(), p03(recovery_s=3600.0)]
    found = effective_limit_w(told, meter=Meter(), at=clock(*at))

    assert found == (None if limit_w is None else pytest.approx(limit_w))
    assert needed_shed_w(told, meter=Meter(), draw_w=132.4e3, at=clock(*at)) == pytest.approx(shed_w)


def test_a_cancelled_event_binds_no_longer_but_for_its_rebound():
    event = p01(acts=Acts(cancelled_at=clock(15)))

    assert effective_limit_w([event], meter=Meter(), at=clock(15)) == pytest.approx(1.05 * 132.4e3)
    assert effective_limit_w([event], meter=Meter(), at=clock(16)) is None


def test_what_was_cancelled_before_its_ramp_holds_nothing_back():
    event = p01(acts=Acts(cancelled_at=clock(13)))

    assert effective_limit_w([event], meter=Meter(), at=clock(13, 30)) is None


def test_a_test_event_binds_nothing():
    assert effective_limit_w([p01(is_test=True)], meter=Meter(), at=clock(15)) is None


@given(st.permutations([p01(), p03(), p01(value=5e3)]), minutes)
def test_the_order_of_events_does_not_matter(told, at):
    found = effective_limit_w(told, meter=Meter(), at=at)

    assert found == effective_limit_w([p01(), p03(), p01(value=5e3)], meter=Meter(), at=at)
    assert found is None or all(found <= limit_it_w(one, Meter()) for one in told if one.binds(at))

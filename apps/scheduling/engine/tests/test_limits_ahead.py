"""Limits that are known to change, and work that is known to draw less: numbers of the design notes on power."""

from dataclasses import replace
from math import inf

import pytest

from apps.scheduling.engine.checker import check
from apps.scheduling.engine.facts import (
    CapChange,
    Kind,
    LimitChange,
    Plan,
    Policy,
    Saving,
    Shape,
    Share,
    Snapshot,
)
from apps.scheduling.engine.planner import Pass, plan
from apps.scheduling.engine.state import charge_of
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot

# TDP 700 W, idle 100 W; hosts at rest draw 2,000 W: a node draws 2.8 kW at rest and 7.6 kW under load.
CAPS = ((600 / 700, 0.93), (500 / 700, 0.84), (400 / 700, 0.70), (300 / 700, 0.50))
KINDS = (Kind(1, "H", 80.0, 700.0, 100.0, 1.0, CAPS),)
HALL = 1  # its position among the domains
ALL = tuple(range(8))


def hall(n_nodes: int, limit_w: float):
    where = facility(leaves=[[0] * n_nodes], kinds=KINDS, limits_w={"hall": limit_w})
    return replace(where, idle_w=where.idle_w + 2000.0)


def decide(scene: Snapshot, policy: Policy | None = None) -> Plan:
    policy = policy or Policy()
    decided = plan(scene, policy)
    assert check(scene, decided, policy) == ()
    return decided


def test_a_job_that_would_run_into_a_lower_limit_waits_and_a_shorter_one_starts():
    # At rest 5.6 kW; from 100 s on 1.2 kW are left above that.
    where = hall(2, 20_000.0)
    long, short = gang(1, 1, 8, limit_s=101.0), gang(2, 1, 8, limit_s=100.0)
    scene = snapshot(where, long, short, limit_changes=(LimitChange(100.0, HALL, 6_800.0),))

    decided = decide(scene)

    assert [start.job_id for start in decided.starts] == [2]
    (wait,) = decided.waits
    assert wait.code == "power"
    assert wait.facts["falls_s"] == 100.0
    assert wait.sentence == (
        "The limit of hall falls to 6.8 kW in 1 min 40 s, which leaves 1.2 kW; it needs 4.8 kW, and it may run"
        " 1 min 41 s."
    )


def test_the_waiting_job_is_promised_the_instant_at_which_the_limit_rises():
    where = hall(2, 6_800.0)
    scene = snapshot(where, gang(1, 1, 8), limit_changes=(LimitChange(3_600.0, HALL, 20_000.0),))

    decided = decide(scene)

    assert [(reserve.job_id, reserve.start_s) for reserve in decided.reserves] == [(1, 3_600.0)]
    (wait,) = decided.waits
    assert wait.expected_start_s == 3_600.0
    assert wait.sentence == "hall has 1.2 kW left; it needs 4.8 kW. Its limit rises to 20.0 kW in 1 h."
    assert decided.next_boundary_s == 3_600.0


def test_it_waits_for_the_rise_that_lasts_long_enough():
    where = hall(2, 6_800.0)
    steps = ((1_000.0, 20_000.0), (1_050.0, 6_800.0), (2_000.0, 20_000.0))
    changes = tuple(LimitChange(at_s, HALL, limit_w) for at_s, limit_w in steps)

    decided = decide(
        snapshot(where, gang(1, 1, 8, limit_s=51.0), gang(2, 1, 8, limit_s=50.0), limit_changes=changes)
    )

    assert {reserve.job_id: reserve.start_s for reserve in decided.reserves} == {1: 2_000.0, 2: 1_000.0}


@pytest.mark.parametrize(("tier", "cap_w"), [(0, None), (1, None), (2, 500), (3, 500)])
def test_a_job_whose_tier_bears_it_starts_under_the_cap_that_fits_through_its_run(tier, cap_w):
    where = hall(1, 20_000.0)
    scene = snapshot(where, gang(1, 1, 8, tier=tier), limit_changes=(LimitChange(50.0, HALL, 6_000.0),))

    starts = decide(scene).starts

    assert [round(700 * start.cap) for start in starts] == ([] if cap_w is None else [cap_w])


def test_a_domain_without_a_limit_now_may_have_one_later():
    where = hall(2, inf)
    scene = snapshot(where, gang(1, 1, 8, limit_s=101.0), limit_changes=(LimitChange(100.0, HALL, 6_800.0),))
    assert decide(scene).starts == ()
    freed = replace(scene, limit_changes=(*scene.limit_changes, LimitChange(200.0, HALL, inf)))
    assert [reserve.start_s for reserve in decide(freed).reserves] == [200.0]


def test_a_job_that_never_ends_starts_only_where_it_fits_for_good():
    where = hall(2, 20_000.0)
    fall, rise = LimitChange(1e5, HALL, 6_800.0), LimitChange(2e5, HALL, 20_000.0)
    scene = snapshot(where, gang(1, 1, 8, limit_s=inf), limit_changes=(fall, rise))
    assert [reserve.start_s for reserve in decide(scene).reserves] == [2e5]
    assert len(decide(replace(scene, limit_changes=(replace(fall, limit_w=12_000.0),))).starts) == 1


def running_two(limit_w: float, *turns: CapChange, changes: tuple[LimitChange, ...] = ()) -> Snapshot:
    """Two nodes at 7.6 kW, one idle: 18.0 kW."""
    busy = tuple(holds(gang(90 + i, 1, 8), (i, ALL), ends_s=1e6) for i in range(2))
    return snapshot(hall(3, limit_w), gang(1, 1, 8), running=busy, limit_changes=changes, cap_changes=turns)


def test_what_running_work_will_be_capped_to_is_counted_on():
    # At 50 s 15.6 kW: one of the running jobs is at 300 W then (4.4 kW), and 0.8 kW are left for who is at rest.
    fall = LimitChange(50.0, HALL, 20_400.0)
    assert decide(running_two(30e3, changes=(fall,))).starts == ()
    assert len(decide(running_two(30e3, CapChange(50.0, 90, 300 / 700), changes=(fall,))).starts) == 1
    # One that comes back to full power meanwhile is no help.
    both = (CapChange(50.0, 90, 300 / 700), CapChange(80.0, 90, 1.0))
    assert decide(running_two(30e3, *both, changes=(fall,))).starts == ()


def test_power_that_comes_back_to_who_was_slowed_is_nobody_elses():
    # 14.8 kW now under a limit of 18; at 100 s the limit is 20 again, and the slowed one draws 3.2 kW more.
    scene = running_two(18e3, CapChange(100.0, 90, 1.0), changes=(LimitChange(100.0, HALL, 20e3),))
    slowed = replace(scene.running[0], cap=300 / 700)
    scene = replace(scene, running=(slowed, *scene.running[1:]))
    decided = decide(scene)
    assert (decided.starts, decided.reserves) == ((), (decided.reserves[0],))
    assert decided.reserves[0].start_s == 1e6  # when one of the two is over
    assert [r.start_s for r in decide(replace(scene, cap_changes=())).reserves] == [100.0]


def test_nobody_is_evicted_for_power_that_is_there_only_now():
    # Only a victim frees what the job needs once the limit has fallen; it is evicted, and the checker agrees.
    low = replace(holds(gang(90, 1, 8, priority=0), (0, ALL), ends_s=1e6), started_s=-1e6)
    fall = LimitChange(50.0, HALL, 11_000.0)
    job = gang(1, 1, 8, priority=9)
    decided = decide(snapshot(hall(2, 20e3), job, running=(low,), limit_changes=(fall,)))
    assert [evict.job_id for evict in decided.evictions] == [90]
    decided = decide(
        snapshot(hall(2, 20e3), replace(job, limit_s=50.0), running=(low,), limit_changes=(fall,))
    )
    assert decided.evictions == ()
    assert len(decided.starts) == 1


def test_the_checker_finds_a_start_that_runs_into_a_lower_limit():
    where = hall(2, 20_000.0)
    scene = snapshot(where, gang(1, 1, 8))
    decided = plan(scene, Policy())
    ahead = replace(scene, limit_changes=(LimitChange(99.0, HALL, 6_800.0),))

    (fault,) = check(ahead, decided, Policy())
    assert fault.rule == "power"
    assert "hall would draw 10400.0 W of 6800.0 W in 99 s" in fault.message
    assert check(replace(scene, limit_changes=(LimitChange(100.0, HALL, 6_800.0),)), decided, Policy()) == ()


@pytest.mark.parametrize(
    ("tier", "saving", "gives_way", "starts"),
    [
        (4, Saving(600.0), True, True),
        (4, Saving(600.0), False, False),  # of an event: its plan says who is paused
        (4, None, True, False),  # nothing of it would be kept
        (0, Saving(600.0), True, False),
    ],
)
def test_what_may_be_paused_starts_before_a_step_at_which_it_will_be(tier, saving, gives_way, starts):
    where = hall(1, 20_000.0)
    job = gang(1, 1, 8, tier=tier, saving=saving, limit_s=500.0)
    low, high = LimitChange(50.0, HALL, 3_000.0, gives_way), LimitChange(90.0, HALL, 20_000.0)
    decided = decide(snapshot(where, job, limit_changes=(low, high)))
    assert [start.cap for start in decided.starts] == ([1.0] if starts else [])


def test_others_count_on_it_that_interruptible_work_is_paused_while_an_envelope_is_lower():
    # 14.8 kW would be drawn with both; from 50 s to 90 s there are 10.4, enough for one of them.
    batch = holds(gang(90, 1, 8, tier=4, saving=Saving(600.0)), (0, ALL), ends_s=1e6)
    low, high = LimitChange(50.0, HALL, 10_400.0, True), LimitChange(90.0, HALL, 20e3)
    scene = snapshot(hall(2, 20e3), gang(1, 1, 8), running=(batch,), limit_changes=(low, high))
    assert [start.job_id for start in decide(scene).starts] == [1]
    firm = replace(scene.running[0], gang=replace(batch.gang, tier=3))
    assert decide(replace(scene, running=(firm,))).starts == ()


def test_a_job_that_shrinks_for_another_is_slowed_later_as_was_known():
    # 1 needs the node of 91 and is promised it at 50 s, when the limit falls: with 90 paused then there are 10.4 kW.
    shrinks = gang(90, 8, 1, n_evictions=5)
    shrinks = replace(shrinks, shape=Shape((replace(shrinks.shape.asks[0], n_min=4, n_max=8),)))
    stays = gang(91, 1, 8, preemptible=False)
    running = (holds(shrinks, (0, ALL), ends_s=1e6), holds(stays, (1, ALL), ends_s=50.0))
    first, second = gang(1, 1, 8, priority=9), gang(2, 1, 4, priority=5, limit_s=40.0)
    scene = snapshot(
        hall(2, 20e3), first, second, running=running,
        limit_changes=(LimitChange(50.0, HALL, 10_600.0),), cap_changes=(CapChange(50.0, 90, 0.0),),
    )  # fmt: skip
    decided = decide(scene)
    assert [start.job_id for start in decided.starts] == [2]
    assert [(resize.job_id, resize.for_job_id) for resize in decided.resizes] == [(90, 2)]
    assert [(reserve.job_id, reserve.start_s) for reserve in decided.reserves] == [(1, 50.0)]


def test_what_may_be_paused_evicts_before_a_step_at_which_it_will_be_and_its_firm_twin_does_not():
    batch = gang(1, 1, 8, tier=4, saving=Saving(600.0), limit_s=500.0, priority=9)
    firm = replace(batch, id=2, name="job2", sequence=0, tier=0)  # the same shape, and asked first
    low, high = LimitChange(50.0, HALL, 3_000.0, True), LimitChange(90.0, HALL, 20e3)
    victim = holds(gang(90, 1, 8), (0, ALL), ends_s=1e6)
    scene = snapshot(hall(1, 20e3), firm, batch, running=(victim,), limit_changes=(low, high))
    decided = decide(scene)
    assert [(evict.job_id, evict.for_job_id) for evict in decided.evictions] == [(90, 1)]


def test_a_victim_gives_back_what_it_would_draw_later():
    # 90 is at 4.4 kW now and at 7.6 from 20 s on, as 1 would be from now on.
    victim = replace(holds(gang(90, 1, 8), (0, ALL), ends_s=1e6), cap=300 / 700)
    turns = (CapChange(20.0, 90, 1.0),)
    scene = snapshot(hall(1, 8e3), gang(1, 1, 8, priority=9), running=(victim,), cap_changes=turns)
    assert [evict.job_id for evict in decide(scene).evictions] == [90]


def test_an_excess_that_was_there_before_keeps_nobody_out_who_makes_it_no_worse():
    busy = holds(gang(90, 1, 8), (0, ALL), ends_s=1e6)
    walk = Pass(snapshot(hall(2, 6e3), running=(busy,)), Policy())
    calendar, held = walk.calendar, walk.calendar.held[90]
    calendar.drop(90)
    assert calendar.take_back(busy.gang, held)  # as it was, with 4.4 kW too much
    nothing = gang(1, 1, 0, cpus=1.0)
    place = (Share(0, 1, 1, ()),)
    made = calendar.promise_if_free(nothing, charge_of(walk.frame, walk.tree, nothing, place), 10.0, 20.0)
    assert made is not None
    draws = gang(2, 1, 8)
    place = (Share(0, 1, 1, ALL),)
    assert calendar.promise_if_free(draws, charge_of(walk.frame, walk.tree, draws, place), 10.0, 20.0) is None


def test_who_is_put_back_does_not_take_the_watts_that_this_pass_counts_on():
    busy = holds(gang(90, 1, 8), (0, ALL), ends_s=1e6)
    walk = Pass(snapshot(hall(2, 12e3), running=(busy,)), Policy())
    calendar, held = walk.calendar, walk.calendar.held[90]
    calendar.drop(90)
    job = gang(1, 1, 8)
    calendar.start(job, charge_of(walk.frame, walk.tree, job, (Share(0, 1, 1, ALL),)), 100.0)
    assert not calendar.take_back(busy.gang, held)


def test_the_reason_of_what_will_be_paused_tells_of_no_limit_that_it_gives_way_to():
    # The hall falls to 3 kW, for which 1 would be paused; the rack falls for good, and that is why it waits.
    where = facility(leaves=[[0]], kinds=KINDS, limits_w={"hall": 20e3})
    where = replace(where, idle_w=where.idle_w + 2000.0)
    rack = next(i for i, domain in enumerate(where.domains) if domain.kind == "rack")
    job = gang(1, 1, 8, tier=4, saving=Saving(600.0), limit_s=500.0)
    steps = (
        LimitChange(50.0, HALL, 3_000.0, True),
        LimitChange(60.0, HALL, 20e3),
        LimitChange(70.0, rack, 3_000.0),
    )
    (wait,) = decide(snapshot(where, job, limit_changes=steps)).waits
    assert (wait.code, wait.facts["domain"], wait.facts["falls_s"]) == ("power", "rack0", 70.0)

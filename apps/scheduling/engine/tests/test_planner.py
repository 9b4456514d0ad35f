"""Whole passes, one narrative each: a scene, and what is decided."""

from dataclasses import replace
from math import inf

import numpy as np

from apps.scheduling.engine.facts import (
    Ask,
    Booking,
    Gang,
    Kind,
    Plan,
    Policy,
    Reserve,
    Running,
    Shape,
    Share,
    Snapshot,
    Team,
)
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot
from apps.scheduling.engine.units import FULL

EASY = Policy(backfill_depth=1)


def decide(scene: Snapshot, policy: Policy = EASY) -> Plan:
    return plan(scene, policy)


def started(decided: Plan) -> list[int]:
    return [s.job_id for s in decided.starts]


def nodes_of(decided: Plan, job_id: int) -> list[int]:
    return sorted({s.node for start in decided.starts if start.job_id == job_id for s in start.placing})


def test_a_gang_that_would_overdraw_a_rack_waits_whole() -> None:
    # 2 idle nodes take 1.6 kW of rack 0; each busy node adds 4.8 kW: one would fit, so none starts.
    scene = snapshot(facility(leaves=[[0, 0]], limits_w={"rack0": 7_000.0}), gang(1, 2, 8))

    decided = decide(scene)

    assert started(decided) == []
    assert decided.waits[0].blocked_by == ("power",)
    assert decided.waits[0].sentence == "rack0 has 5.4 kW left; it needs 9.6 kW."


def test_a_gang_is_spread_over_racks_when_one_has_too_little_power() -> None:
    scene = snapshot(facility(leaves=[[0, 0, 0, 1]], limits_w={"rack0": 12_000.0}), gang(1, 3, 8))

    assert nodes_of(decide(scene), 1)[-1] == 3


def test_a_required_leaf_is_never_left() -> None:
    scene = snapshot(facility(), gang(1, 3, 8, required="leaf"))

    decided = decide(scene)

    assert started(decided) == []
    assert decided.waits[0].code == "topology"
    assert (
        decided.waits[0].sentence == "No leaf has room for 3 replicas of 8 devices; the best has room for 2."
    )


def test_small_jobs_fill_the_node_that_is_used_already() -> None:
    running = (holds(gang(9, 1, 5), (2, (0, 1, 2, 3, 4)), ends_s=inf),)

    assert nodes_of(decide(snapshot(facility(), gang(1, 1, 2), running=running)), 1) == [2]


def test_a_gang_takes_the_leaf_it_fits_best() -> None:
    scene = snapshot(facility(leaves=[[0, 0, 0], [1, 1]]), gang(1, 2, 8))

    assert nodes_of(decide(scene), 1) == [3, 4]


def test_fractions_share_a_device_before_they_open_another() -> None:
    scene = snapshot(facility(), *(gang(i, 1, 0, share_steps=250_000) for i in range(1, 6)))

    devices = [s.placing[0].devices for s in decide(scene).starts]

    assert devices == [(0,)] * 4 + [(1,)]


def test_a_device_that_empties_is_not_counted_on_beside_the_fresh_one_that_a_promise_leaves() -> None:
    # At 30 two of the devices 1 to 3 are the head's. Three halves need more than the third of them.

    def half(id: int, device: int, ends_s: float) -> Running:
        one = holds(gang(id, 1, 0, share_steps=FULL // 2), (0, (device,)), ends_s=ends_s)
        return replace(one, placing=(Share(0, 0, 1, (device,), FULL // 2),))

    running = (
        holds(gang(9, 1, 1), (0, (0,)), ends_s=200.0),
        half(6, 2, 20.0),
        half(7, 2, 30.0),
        half(8, 3, 30.0),
    )
    head, long = gang(1, 1, 2), gang(2, 3, 0, share_steps=FULL // 2)

    decided = decide(snapshot(facility(leaves=[[0]], devices=4), head, long, running=running))

    assert started(decided) == []
    assert decided.reserves[0].start_s == 30.0


def test_a_short_job_passes_a_blocked_head_and_a_long_one_does_not() -> None:
    # The head needs all four nodes at 50, when node 0 is given back.
    running = (holds(gang(9, 1, 8), (0, tuple(range(8))), ends_s=50.0),)
    head, long, short = gang(1, 4, 8), gang(2, 1, 8, limit_s=60.0), gang(3, 1, 8, limit_s=50.0)

    decided = decide(snapshot(facility(), head, long, short, running=running))

    assert started(decided) == [3]
    assert [(r.job_id, r.start_s) for r in decided.reserves] == [(1, 50.0)]
    assert {w.job_id: w.code for w in decided.waits} == {1: "resources", 2: "priority"}


def test_strict_order_lets_nobody_pass() -> None:
    running = (holds(gang(9, 1, 8), (0, tuple(range(8))), ends_s=50.0),)
    scene = snapshot(facility(), gang(1, 4, 8), gang(2, 1, 1, limit_s=1.0), running=running)

    assert started(decide(scene, Policy(backfill_depth=0))) == []


def test_a_job_at_its_quota_holds_nobody_back_even_in_strict_order() -> None:
    teams = (Team(1, "root"), Team(2, "a", 0, 1.0, {0: 1}, {0: 0}), Team(3, "b", 0, 1.0, {0: 8}))
    scene = snapshot(facility(), gang(1, 2, 1, team=1), gang(2, 1, 1, team=2), teams=teams)

    decided = decide(scene, Policy(backfill_depth=0))

    assert started(decided) == [2]
    assert decided.waits[0].code == "quota"


def test_a_team_borrows_what_its_sibling_leaves_up_to_both_limits() -> None:
    teams = (Team(1, "root"), Team(2, "a", 0, 1.0, {0: 2}, {0: 4}), Team(3, "b", 0, 1.0, {0: 8}, {}, {0: 3}))
    jobs = [gang(i, 1, 1, team=1) for i in range(1, 8)]

    # Own 2, and 3 of b's 8: b lends no more.
    assert len(started(decide(snapshot(facility(), *jobs, teams=teams)))) == 5


def test_higher_priority_goes_first_and_then_the_team_further_below_its_share() -> None:
    teams = (Team(1, "a", decayed_use_s={0: 900.0}), Team(2, "b", decayed_use_s={0: 100.0}))
    jobs = (gang(1, 4, 8, team=0), gang(2, 4, 8, team=1), gang(3, 4, 8, team=0, priority=1))

    decided = decide(snapshot(facility(), *jobs, teams=teams))

    assert started(decided) == [3]
    assert [w.job_id for w in decided.waits] == [2, 1]


def test_a_stranger_may_use_a_booked_node_only_for_what_ends_before() -> None:
    booking = Booking(1, "exam", 60.0, 90.0, nodes=(0, 1, 2, 3), teams=frozenset({0}))
    teams = (Team(1, "class"), Team(2, "other"))
    jobs = (gang(1, limit_s=60.0, team=1), gang(2, limit_s=61.0, team=1), gang(3, limit_s=inf, team=0))

    decided = decide(snapshot(facility(), *jobs, bookings=(booking,), teams=teams))

    assert started(decided) == [1, 3]
    assert decided.waits[0].blocked_by == ("reservation",)


def test_a_booked_amount_is_kept_free_somewhere() -> None:
    booking = Booking(1, "launch", 60.0, 90.0, kind=0, n_devices=24, teams=frozenset({0}))
    jobs = tuple(gang(i, 1, 8, limit_s=100.0, team=1) for i in range(1, 4))
    teams = (Team(1, "launch"), Team(2, "other"))

    assert len(started(decide(snapshot(facility(), *jobs, bookings=(booking,), teams=teams)))) == 1


def test_what_a_team_leaves_of_a_booked_device_stays_with_the_booking() -> None:
    booking = Booking(1, "launch", -5.0, 90.0, kind=0, n_devices=2, teams=frozenset({0}), is_flexible=False)
    teams = (Team(1, "launch"), Team(2, "other"))
    where = facility(leaves=[[0]], devices=2)
    mine, other = (gang(i, 1, 0, share_steps=FULL // 4, team=team) for i, team in ((1, 0), (2, 1)))

    decided = decide(snapshot(where, mine, other, bookings=(booking,), teams=teams))
    running = (Running(mine, decided.starts[0].placing, 0.0, 60.0),)
    again = decide(snapshot(where, other, bookings=(booking,), teams=teams, running=running))

    assert started(decided) == [1]
    assert again.starts == ()
    assert "reservation" in again.waits[0].blocked_by


def test_two_booked_amounts_leave_what_the_first_has_in_use_out_of_the_second() -> None:
    first = Booking(1, "first", -5.0, 90.0, kind=0, n_devices=1, teams=frozenset({0}), is_flexible=False)
    second = Booking(2, "second", -5.0, 90.0, kind=0, n_devices=3, is_flexible=False)
    teams = (Team(1, "first"), Team(2, "other"))
    running = (holds(gang(9, 1, 1, team=0), (0, (0,)), ends_s=60.0),)
    where = facility(leaves=[[0]], devices=4)

    for job in (gang(1, 1, 1, team=0), gang(2, 1, 1, team=1)):
        assert (
            decide(snapshot(where, job, bookings=(first, second), teams=teams, running=running)).starts == ()
        )


def test_a_job_takes_its_preferred_type_unless_another_ends_it_earlier() -> None:
    kinds = (Kind(1, "slow", speed=1.0), Kind(2, "fast", speed=2.0), Kind(3, "slow too", speed=1.0))
    where = facility(leaves=[[0, 0, 0]], kinds=kinds, node_kinds=[0, 1, 2])

    decided = decide(snapshot(where, gang(1, kinds=(0, 1)), gang(2, kinds=(2, 0))))

    assert [s.kind for s in decided.starts] == [1, 2]


def test_it_waits_for_a_faster_type_when_that_ends_it_earlier() -> None:
    kinds = (Kind(1, "slow", speed=1.0), Kind(2, "fast", speed=4.0))
    where = facility(leaves=[[0, 0]], kinds=kinds, node_kinds=[0, 1])
    running = (holds(gang(9, 1, 8, kinds=(1,)), (1, tuple(range(8))), ends_s=10.0),)
    job = gang(1, limit_s=inf, work_s=100.0, kinds=(0, 1))  # 100 s on slow, 10 + 25 s on fast

    decided = decide(snapshot(where, job, running=running))

    assert started(decided) == []
    assert decided.reserves[0].start_s == 10.0


def test_the_slowest_member_sets_the_pace_so_fast_nodes_stay_together() -> None:
    where = facility(leaves=[[0, 0], [1, 1]], speeds=[0.5, 1.0, 1.0, 1.0])

    assert nodes_of(decide(snapshot(where, gang(1, 2, 8))), 1) == [2, 3]


def test_groups_of_one_job_start_together_or_not_at_all() -> None:
    trainer = Ask(n_replicas=3, devices=8, kinds=(0,))
    server = Ask(n_replicas=2, devices=4, kinds=(0,))
    fits = Gang(1, "fits", Shape((trainer, server)), sequence=1, limit_s=10.0)
    not_both = Gang(2, "not both", Shape((trainer, Ask(n_replicas=3, devices=4, kinds=(0,)))), sequence=2)

    assert started(decide(snapshot(facility(), fits))) == [1]
    assert started(decide(snapshot(facility(), not_both))) == []


def test_a_node_out_of_service_is_the_reason_when_it_is_one() -> None:
    scene = snapshot(facility(), gang(1, 4, 8), is_usable=np.array([True, True, True, False]))

    assert decide(scene).waits[0].blocked_by == ("unhealthy",)


def test_two_rules_that_bind_together_are_both_named() -> None:
    teams = (Team(1, "a", -1, 1.0, {0: 16}),)
    running = tuple(holds(gang(10 + n, 1, 8), (n, tuple(range(8))), ends_s=inf) for n in range(4))
    scene = snapshot(facility(), gang(1, 3, 8, team=0), running=running, teams=teams)

    wait = decide(scene).waits[0]
    assert wait.blocked_by == ("quota", "resources")
    assert wait.facts["together"] is True


def test_a_whole_queue_drains_in_one_pass() -> None:
    scene = snapshot(facility(), *(gang(i, 1, 1) for i in range(1, 33)))

    assert len(started(decide(scene))) == 32


def test_the_shortest_are_backfilled_first_when_the_policy_says_so() -> None:
    running = (holds(gang(9, 1, 8), (0, tuple(range(8))), ends_s=50.0),)
    head = gang(1, 4, 8)
    jobs = (head, *(gang(i, 1, 8, limit_s=50.0 - i) for i in range(2, 7)))

    decided = decide(
        snapshot(facility(), *jobs, running=running), Policy(backfill_depth=1, backfill_order="shortest")
    )

    assert started(decided) == [6, 5, 4]


def test_what_is_expected_to_be_short_is_backfilled_before_what_only_declares_to_be() -> None:
    running = (holds(gang(9, 1, 8), (0, tuple(range(8))), ends_s=50.0),)
    jobs = (gang(1, 4, 8), *(replace(gang(i, 1, 8, limit_s=50.0 - i), history=i % 2) for i in range(2, 7)))

    decided = decide(
        replace(snapshot(facility(), *jobs, running=running), history_s=(5.0, inf)),
        Policy(backfill_depth=1, backfill_order="shortest"),
    )

    assert started(decided) == [2, 4, 6]


def test_a_gang_lies_within_one_cluster() -> None:
    where = replace(facility(), cluster=np.array([1, 1, 1, 2]))

    decided = decide(snapshot(where, gang(1, 4, 8), gang(2, 3, 8)))

    assert started(decided) == [2]
    assert nodes_of(decided, 2) == [0, 1, 2]


def test_a_tiny_ask_is_an_ask_and_not_impossible() -> None:
    scene = snapshot(
        facility(cpus=4.0), gang(1, 1, 0, cpus=1e-7), gang(2, 1, 0, share_steps=500_000, memory_gib=1e-9)
    )

    assert started(decide(scene)) == [1, 2]


def test_a_promise_that_falls_due_now_is_not_taken_by_who_is_looked_at_first() -> None:
    # All 4 devices are free now, half of them earlier than expected. The first asks for all and is promised them at
    # 90; the second was promised two for now, and what gave back early lets the first start only when it has ended.
    four = facility(leaves=[[0]], devices=4)
    first, second = gang(1, 1, 4, limit_s=50.0), gang(2, 1, 2, limit_s=50.0)
    place = (Share(0, 0, 1, (0, 1)),)
    promises = (Reserve(1, 90.0, (Share(0, 0, 1, (0, 1, 2, 3)),)), Reserve(2, 0.0, place))
    kept = Policy(backfill_depth=None, order="submit", keeps_promises=True)

    for ended_early in (True, False):
        decided = decide(snapshot(four, first, second, promises=promises, ended_early=ended_early), kept)
        assert started(decided) == [2]
        assert [(one.job_id, one.start_s) for one in decided.reserves] == [(1, 50.0 if ended_early else 90.0)]


def test_of_nodes_of_one_type_it_is_promised_the_one_where_it_ends_earliest() -> None:
    # The slow node is free at 5, where 200 s of work take 400; the fast one at 10.
    where = facility(leaves=[[0, 0]], speeds=[1.0, 0.5])
    eight = tuple(range(8))
    running = (holds(gang(8, 1, 8), (0, eight), ends_s=10.0), holds(gang(9, 1, 8), (1, eight), ends_s=5.0))
    scene = snapshot(where, gang(1, 1, 8, limit_s=200.0), running=running)

    (promise,) = decide(scene, Policy(preemption=False)).reserves

    assert promise.start_s == 10.0
    assert [share.node for share in promise.placing] == [0]

"""Places that others give up: those who were asked leave within their grace, and nobody else counts on the place."""

from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.engine.checker import check
from apps.scheduling.engine.facts import (
    Booking,
    Gang,
    Placing,
    Plan,
    Policy,
    Reserve,
    Running,
    Share,
    Snapshot,
)
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, scenes, snapshot
from apps.scheduling.engine.tests.test_invariants import DEPTHS, SCENES

EIGHT = tuple(range(8))
ALWAYS = Policy(preemption=False)


def leaving(job: Gang, *shares: tuple[int, tuple[int, ...]], ends_s: float) -> Running:
    return replace(holds(job, *shares, ends_s=ends_s), is_leaving=True)


def place(job: Gang, *shares: tuple[int, tuple[int, ...]], at_s: float = 0.0) -> Reserve:
    return Reserve(job.id, at_s, holds(job, *shares).placing)


def nodes_of(placing: Placing) -> set[int]:
    return {share.node for share in placing}


def planned(scene: Snapshot, policy: Policy = ALWAYS) -> Plan:
    decided = plan(scene, policy)
    assert check(scene, decided, policy) == ()
    return decided


def test_two_jobs_are_not_promised_one_place():
    first, second = gang(1, 1, 8, limit_s=100.0), gang(2, 1, 8, limit_s=100.0)
    scene = snapshot(
        facility(leaves=[[0]]),
        first,
        second,
        running=(leaving(gang(9, 1, 8), (0, EIGHT), ends_s=10.0),),
        earmarks=(place(first, (0, EIGHT)), place(second, (0, EIGHT))),
    )

    at_s = {reserve.job_id: reserve.start_s for reserve in planned(scene).reserves}

    assert at_s == {1: 10.0, 2: 110.0}


def test_a_place_is_not_kept_for_a_job_that_would_stay_into_somebody_elses_promise():
    waits, next_one = gang(1, 1, 8, limit_s=100.0), gang(2, 1, 8, limit_s=100.0, priority=5)
    scene = snapshot(
        facility(leaves=[[0]]),
        waits,
        next_one,
        running=(leaving(gang(9, 1, 8), (0, EIGHT), ends_s=10.0),),
        promises=(place(next_one, (0, EIGHT), at_s=50.0),),
        earmarks=(place(waits, (0, EIGHT)),),
        ended_early=False,
    )

    decided = planned(scene, replace(ALWAYS, keeps_promises=True))

    assert {r.job_id: r.start_s for r in decided.reserves} == {2: 50.0, 1: 150.0}


def test_a_place_that_is_free_now_is_not_taken_into_somebody_elses_booking():
    waits = gang(1, 1, 8, limit_s=100.0)
    scene = snapshot(
        facility(leaves=[[0]]),
        waits,
        bookings=(Booking(1, "exam", 50.0, 80.0, nodes=(0,)),),
        earmarks=(place(waits, (0, EIGHT)),),
    )

    decided = planned(scene)

    assert not decided.starts
    assert [r.start_s for r in decided.reserves] == [80.0]


def test_a_victim_found_by_two_of_its_shares_leaves_once():
    running = Running(
        gang(9, 4, 0, share_steps=333_333),
        (Share(0, 1, 3, (0,), 999_999), Share(0, 1, 1, (1,), 333_333)),
        0.0,
        50.0,
    )
    scene = snapshot(
        facility(leaves=[[0, 0]], devices=4),
        gang(1, 2, 2, priority=5),
        running=(running,),
        bookings=(Booking(1, "kept", -5.0, 90.0, kind=0, n_devices=3, is_flexible=False),),
    )

    assert [evict.job_id for evict in planned(scene, Policy()).evictions] == [9]


@SCENES
@given(scenes(), DEPTHS, st.integers(1, 60), st.booleans())
def test_who_is_asked_to_leave_leaves_a_place_that_is_used_once(
    scene: Snapshot, depth: int | None, grace_s: int, keeps: bool
) -> None:
    policy = Policy(backfill_depth=depth, explain=False, keeps_promises=keeps)
    scene = replace(
        scene, queue=tuple(replace(g, priority=g.priority + 50 * (g.id % 2)) for g in scene.queue)
    )
    earmarks: dict[int, Reserve] = {}
    new_ids = count(1000)
    for _ in range(4):
        decided = planned(scene, policy)
        gangs = {g.id: g for g in scene.queue}
        asked = {evict.job_id for evict in decided.evictions}
        resized = {resize.job_id: resize for resize in decided.resizes}
        waits_for_others = {evict.for_job_id for evict in decided.evictions} | {
            resize.for_job_id for resize in decided.resizes
        }
        # Devices, cpus and memory that somebody still holds: whoever was given them waits for them too.
        given_up = {at for one in scene.running if one.gang.id in asked for at in nodes_of(one.placing)}
        started = {
            s.job_id: s
            for s in decided.starts
            if s.job_id not in waits_for_others and given_up.isdisjoint(nodes_of(s.placing))
        }
        for start in decided.starts:
            if start.job_id in started:
                earmarks.pop(start.job_id, None)
            else:
                earmarks[start.job_id] = Reserve(start.job_id, scene.now_s, start.placing)
        running = [
            Running(gangs[i], s.placing, scene.now_s, s.expected_end_s, s.cap) for i, s in started.items()
        ]
        for one in scene.running:
            if one.gang.id in asked:
                one = replace(one, is_leaving=True, ends_s=min(one.ends_s, scene.now_s + grace_s))
            elif (resize := resized.get(one.gang.id)) is not None:
                one = replace(one, placing=resize.placing, ends_s=resize.expected_end_s)
            running.append(one)
        next_s = scene.now_s + grace_s / 2
        more = [replace(g, id=next(new_ids), submitted_s=next_s) for g in scene.queue[:1]]
        scene = replace(
            scene,
            now_s=next_s,
            running=tuple(one for one in running if one.ends_s > next_s),
            queue=(*(g for g in scene.queue if g.id not in started), *more),
            earmarks=tuple(earmarks.values()),
            promises=decided.reserves,
            ended_early=False,
        )

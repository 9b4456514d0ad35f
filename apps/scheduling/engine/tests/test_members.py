"""What one member of a team may hold at once: no plan takes anybody over it, and others go on."""

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.checker import check
from apps.scheduling.engine.facts import (
    Ask,
    Gang,
    Kind,
    Member,
    Plan,
    Policy,
    Reserve,
    Running,
    Shape,
    Snapshot,
    Start,
    Team,
)
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, scenes, snapshot
from apps.scheduling.engine.tests.test_invariants import DEPTHS, SCENES

VISION = Team(1, "vision", entitlement={0: 32})
ANN, BOB = 1, 2
EIGHT = tuple(range(8))


def ann(devices: int | None = None, running_jobs: int | None = None, **more: bool) -> Member:
    return Member(0, ANN, "ann", {} if devices is None else {0: devices}, running_jobs, **more)


def job(id: int, devices: int = 1, *, user: int = ANN, **more: object) -> Gang:
    return gang(id, 1, devices, team=0, user=user, **more)


def hall(
    *queue: Gang, members: tuple[Member, ...], running: tuple[Running, ...] = (), **more: object
) -> Snapshot:
    more.setdefault("teams", (VISION,))
    return snapshot(facility(), *queue, running=running, members=members, **more)


def planned(scene: Snapshot, **policy: object) -> Plan:
    rules = Policy(**policy)  # type: ignore[arg-type]
    decided = plan(scene, rules)
    assert check(scene, decided, rules) == ()
    return decided


def started(decided: Plan) -> set[int]:
    return {start.job_id for start in decided.starts}


def test_a_member_at_its_limit_waits_with_numbers_while_others_go_on():
    runs = (holds(job(91, 8), (0, EIGHT)), holds(job(92, 8), (1, EIGHT)))
    decided = planned(hall(job(1, 8), job(2, 8, user=BOB), members=(ann(16),), running=runs))

    assert started(decided) == {2}
    (wait,) = decided.waits
    assert wait.code == "member_limit"
    assert wait.blocked_by == ("member_limit",)
    assert wait.sentence == "ann runs 16 of the 16 H100 that one member of vision may hold; it asks 8."
    assert wait.facts == {
        "member": "ann", "team": "vision", "accelerator": "H100", "asked": 8, "used": 16, "most": 16,
    }  # fmt: skip


def test_limits_of_ones_own_are_told_from_those_of_every_member():
    decided = planned(hall(job(1, 8), members=(ann(4, is_named=True),)))

    assert decided.waits[0].sentence == "ann runs 0 of the 4 H100 that they may hold in vision; it asks 8."


def test_running_jobs_are_counted_with_or_without_devices():
    runs = (holds(job(91, 0), (0, ())),)
    decided = planned(
        hall(job(1), job(2), job(3, 0), job(4, 0, user=BOB), members=(ann(None, 2),), running=runs)
    )

    assert started(decided) == {1, 4}
    assert {wait.code for wait in decided.waits} == {"member_limit"}
    assert decided.waits[0].sentence == "ann runs 2 of the 2 jobs that one member of vision may run at once."


def test_of_several_types_one_is_taken_of_which_something_is_left():
    where = facility(kinds=(Kind(1, "A", 80.0), Kind(2, "B", 80.0)), node_kinds=[0, 0, 1, 1])
    team = replace(VISION, entitlement={0: 16, 1: 16})
    scene = snapshot(where, job(1, 8, kinds=(0, 1)), teams=(team,), members=(ann(4),))

    assert planned(scene).starts[0].kind == 1


def test_a_type_that_no_team_owns_is_limited_for_the_member_alone():
    team = Team(1, "vision", borrow_limit={0: 0})
    decided = planned(hall(job(1, 8), job(2, 8), job(3, 8, user=BOB), members=(ann(8),), teams=(team,)))

    assert started(decided) == {1, 3}


def test_the_same_person_in_another_team_is_another_member():
    teams = (Team(1, "all", entitlement={0: 32}), Team(2, "vision", 0), Team(3, "speech", 0))
    limit = Member(1, ANN, "ann", {0: 8})
    jobs = [gang(i, 1, 8, team=team, user=ANN) for i, team in ((1, 1), (2, 1), (3, 2))]

    assert started(planned(snapshot(facility(), *jobs, teams=teams, members=(limit,)))) == {1, 3}


def test_a_job_at_its_members_limit_is_promised_what_its_member_gives_back_beside_the_others_promises():
    runs = (
        holds(job(91, 8), (0, EIGHT), ends_s=30.0),
        *(holds(job(92 + n, 8, user=BOB), (1 + n, EIGHT), ends_s=50.0) for n in range(3)),
    )
    team = replace(VISION, entitlement={0: 64})
    scene = hall(
        job(1, 8, limit_s=1000.0), job(2, 8, user=BOB), members=(ann(8),), running=runs, teams=(team,)
    )

    # With one promise to give, the limit of another member takes it from nobody.
    promised = {reserve.job_id: reserve.start_s for reserve in planned(scene, backfill_depth=1).reserves}
    assert promised == {1: 30.0, 2: 50.0}


def test_what_a_member_backfills_does_not_move_what_they_were_promised():
    # Job 1 finds its two nodes at 50. Job 2 fits now, and on a third then, but would hold what job 1 may hold then.
    runs = tuple(holds(job(91 + n, 8, user=BOB), (n, EIGHT), ends_s=50.0) for n in range(3))
    big = gang(1, 2, 8, team=0, user=ANN, limit_s=100.0)
    team = replace(VISION, entitlement={0: 64})
    scene = hall(big, job(2, 8, limit_s=200.0), members=(ann(16),), running=runs, teams=(team,))
    decided = planned(scene)

    assert started(decided) == set()
    assert started(planned(replace(scene, members=(ann(24),)))) == {2}
    assert [r.start_s for r in decided.reserves if r.job_id == 1] == [50.0]
    (said,) = (wait for wait in decided.waits if wait.job_id == 2)
    assert said.blocked_by == ("member_limit",)
    assert said.sentence == (
        "The rest of the 16 H100 that one member of vision may hold is promised to earlier jobs of ann; it asks 8."
    )


def test_an_elastic_job_starts_and_grows_as_far_as_its_member_may():
    ask = Ask(4, 1, kinds=(0,), n_min=1, n_max=8)
    flexible = Gang(1, "flexible", Shape((ask,)), team=0, user=ANN, sequence=1, limit_s=1000.0)
    decided = planned(hall(flexible, members=(ann(3, 1),)))
    assert sum(share.n_replicas for share in decided.starts[0].placing) == 3

    runs = replace(holds(flexible, (0, (0, 1, 2)), ends_s=990.0), started_s=-1000.0)
    grown = planned(hall(members=(ann(6, 1),), running=(runs,))).resizes[0].placing
    assert sum(len(share.devices) for share in grown) == 6
    assert not planned(hall(members=(ann(3, 1),), running=(runs,))).resizes


def test_a_higher_job_takes_the_place_of_a_lower_one_of_the_same_member_and_of_nobody_else():
    runs = (holds(job(91, 8), (0, EIGHT)), holds(job(92, 8, user=BOB), (1, EIGHT)))
    decided = planned(hall(job(1, 8, priority=5), members=(ann(8),), running=runs))

    assert started(decided) == {1}
    assert [evict.job_id for evict in decided.evictions] == [91]


def test_an_earmarked_place_waits_for_the_limit_too():
    place = holds(job(0, 8), (1, EIGHT)).placing
    scene = hall(
        job(1, 8),
        members=(ann(8),),
        running=(holds(job(91, 8), (0, EIGHT)),),
        earmarks=(Reserve(1, 0.0, place),),
    )

    assert not planned(scene).starts


def test_a_limit_that_was_lowered_takes_nothing_away_and_starts_nothing():
    runs = (holds(job(91, 8), (0, EIGHT)), holds(job(92, 8), (1, EIGHT)))
    decided = planned(hall(job(1, 0), job(2, 1), members=(ann(4, 1),), running=runs))

    assert not decided.starts
    assert not decided.evictions


def test_many_jobs_that_a_limit_holds_for_ever_are_told_so():
    decided = planned(hall(*(job(n, 8) for n in range(1, 40)), members=(ann(4),)))

    assert not decided.starts
    assert not decided.reserves
    assert {wait.code for wait in decided.waits} == {"member_limit"}
    assert all(wait.expected_start_s is None for wait in decided.waits)


@pytest.mark.parametrize(
    ("member", "says"),
    [(ann(8), "would hold more than 8 H100"), (ann(None, 1), "would run more than 1 jobs")],
)
def test_the_checker_refuses_a_plan_that_takes_a_member_over_a_limit(member: Member, says: str):
    scene = hall(job(1, 8), members=(member,), running=(holds(job(91, 8), (0, EIGHT)),))
    start = Start(1, holds(job(1, 8), (1, EIGHT)).placing, 0, 100.0)
    faults = check(scene, Plan((start,), ()), Policy())

    assert [(fault.rule, fault.job_id) for fault in faults] == [("member_limit", 1)]
    assert says in faults[0].message


def over(scene: Snapshot) -> set[tuple[object, ...]]:
    """Who holds more than they may: (team, user, kind or "jobs")."""
    held: Counter[tuple[object, ...]] = Counter()
    for running in scene.running:
        who = running.gang.team, running.gang.user
        held[*who, "jobs"] += 1
        for share in running.placing:
            held[*who, int(scene.facility.kind[share.node])] += share.share_steps * len(share.devices)
    return {
        (member.team, member.user, what)
        for member in scene.members
        for what, most in (
            *((kind, devices * SHARE_STEPS) for kind, devices in member.devices.items()),
            ("jobs", inf if member.running_jobs is None else member.running_jobs),
        )
        if held[member.team, member.user, what] > most
    }


@SCENES
@given(scenes(), DEPTHS, st.booleans())
def test_no_member_is_over_a_limit_at_any_instant(scene: Snapshot, depth: int | None, keeps: bool) -> None:
    policy = Policy(backfill_depth=depth, explain=False, keeps_promises=keeps)
    assert not over(scene)
    for _ in range(12):
        decided = plan(scene, policy)
        gangs = {waiting.id: waiting for waiting in scene.queue}
        gone = {evict.job_id for evict in decided.evictions}
        back = tuple(running.gang for running in scene.running if running.gang.id in gone)
        begun = tuple(
            Running(gangs[start.job_id], start.placing, scene.now_s, start.expected_end_s)
            for start in decided.starts
        )
        ids = {running.gang.id for running in begun}
        scene = replace(
            scene,
            running=(*(one for one in scene.running if one.gang.id not in gone), *begun),
            queue=(*(waiting for waiting in scene.queue if waiting.id not in ids), *back),
            promises=decided.reserves,
        )
        assert not over(scene)
        next_s = min((one.ends_s for one in scene.running), default=inf)
        if next_s == inf:
            break
        running = tuple(one for one in scene.running if one.ends_s > next_s)
        scene = replace(scene, now_s=next_s, running=running)

"""A reason is true: without the rules that it names, the job starts."""

from dataclasses import replace
from math import inf

import numpy as np
from hypothesis import given

from apps.scheduling.engine.facts import NONE, Gang, Plan, Policy, Running, Snapshot, Wait
from apps.scheduling.engine.feasibility import prove_impossible
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import scenes
from apps.scheduling.engine.tests.test_invariants import DEPTHS, SCENES


def after(scene: Snapshot, decided: Plan) -> Snapshot:
    """The scene as the pass leaves it: what started runs, what was promised stays promised."""
    gangs = {gang.id: gang for gang in scene.queue}
    begun = tuple(
        Running(gangs[s.job_id], s.placing, scene.now_s, s.expected_end_s, s.cap) for s in decided.starts
    )
    started = {start.job_id for start in decided.starts}
    return replace(
        scene,
        running=scene.running + begun,
        queue=tuple(gang for gang in scene.queue if gang.id not in started),
        promises=decided.reserves,
        ended_early=False,
    )


def without(scene: Snapshot, gang: Gang, rules: tuple[str, ...]) -> tuple[Snapshot, Gang]:
    """The scene and the job, as if these rules were not there."""
    if "quota" in rules:
        plenty = dict.fromkeys(range(len(scene.facility.kinds)), 10**6)
        teams = tuple(
            replace(team, entitlement=plenty, borrow_limit={}, lend_limit={}) for team in scene.teams
        )
        scene = replace(scene, teams=teams)
    if "member_limit" in rules:
        scene = replace(scene, members=())
    if "power" in rules:
        domains = tuple(replace(domain, limit_w=inf) for domain in scene.facility.domains)
        # What limits come to is the same rule.
        facility = replace(scene.facility, domains=domains)
        scene = replace(scene, facility=facility, limit_changes=(), cap_changes=())
    if "unhealthy" in rules:
        scene = replace(scene, is_usable=np.ones_like(scene.is_usable))
    if "unhealthy" in rules or "resources" in rules:
        # An amount that is booked would be looked for elsewhere then: its own story.
        scene = replace(scene, bookings=tuple(booking for booking in scene.bookings if booking.nodes))
    if "reservation" in rules:
        scene = replace(scene, bookings=())
        gang = replace(gang, shape=replace(gang.shape, reservation=NONE))
    if "topology" in rules:
        asks = tuple(replace(ask, required=None) for ask in gang.shape.asks)
        gang = replace(gang, shape=replace(gang.shape, asks=asks))
    if "priority" in rules:
        scene = replace(scene, promises=(), queue=())
    if "resources" in rules:
        scene = replace(scene, running=(), promises=(), queue=())
    if "held" in rules:
        gang = replace(gang, is_held=False)
    if "not_before" in rules:
        gang = replace(gang, not_before_s=-inf, retry_s=-inf)
    return scene, gang


def starts_alone(scene: Snapshot, gang: Gang) -> bool:
    """Whether the job starts if nobody else in the queue starts before it, and no promise is moved."""
    promised = {reserve.job_id for reserve in scene.promises} - {gang.id}
    scene = replace(
        scene,
        queue=(gang, *(other for other in scene.queue if other.id in promised)),
        promises=tuple(reserve for reserve in scene.promises if reserve.job_id in promised),
        bookings=scene.bookings,
    )
    # In strict order nobody waits by choice, for a type that ends it earlier.
    policy = Policy(backfill_depth=0, explain=False, preemption=False, keeps_promises=True)
    return any(start.job_id == gang.id for start in plan(scene, policy).starts)


def waits_for_a_better_kind(wait: Wait) -> bool:
    return not wait.blocked_by and "accelerator" in wait.facts and wait.sentence.endswith("ends earlier.")


@SCENES
@given(scenes(), DEPTHS)
def test_without_the_rules_that_it_names_a_waiting_job_starts(scene: Snapshot, depth: int | None) -> None:
    decided = plan(scene, Policy(backfill_depth=depth, preemption=False))
    left = after(scene, decided)
    gangs = {gang.id: gang for gang in scene.queue}
    for wait in decided.waits:
        gang = gangs[wait.job_id]
        if waits_for_a_better_kind(wait):
            # By choice: something free now would do, of another type or slower nodes of the same.
            assert starts_alone(left, gang)
        elif gang.shape.reservation == NONE and prove_impossible(scene.facility, scene.teams, gang) is None:
            assert wait.blocked_by
            freed, gang = without(left, gang, wait.blocked_by)
            assert starts_alone(freed, gang), wait

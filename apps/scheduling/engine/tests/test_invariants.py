"""The invariants that hold for any plan, over random scenes."""

import os
from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.scheduling.engine import planner
from apps.scheduling.engine.calendar import Calendar
from apps.scheduling.engine.checker import check
from apps.scheduling.engine.explain import Explainer
from apps.scheduling.engine.facts import NONE, Gang, Policy, Running, Shape, Snapshot
from apps.scheduling.engine.feasibility import prove_impossible
from apps.scheduling.engine.forecast import _Profile
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.placement import Found, Terms, place
from apps.scheduling.engine.planner import Pass, plan
from apps.scheduling.engine.state import Floor
from apps.scheduling.engine.sums import Sums
from apps.scheduling.engine.tests.scenes import elastic_scenes, scenes

SCENES = settings(
    max_examples=int(os.environ.get("SWITCHYARD_SCENES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
DEPTHS = st.sampled_from([0, 1, 2, 64, None])


@SCENES
@given(scenes(), DEPTHS)
def test_the_checker_finds_nothing_in_any_plan(scene: Snapshot, depth: int | None) -> None:
    policy = Policy(backfill_depth=depth, explain=False, preemption=False)

    assert check(scene, plan(scene, policy), policy) == ()


@SCENES
@given(elastic_scenes(), DEPTHS)
def test_the_checker_finds_nothing_where_jobs_give_way_shrink_and_grow(
    scene: Snapshot, depth: int | None
) -> None:
    policy = Policy(backfill_depth=depth, explain=False, resize_dwell_s=0.0)

    assert check(scene, plan(scene, policy), policy) == ()


@SCENES
@given(scenes(), DEPTHS, st.randoms())
def test_the_order_of_rows_and_the_names_change_nothing(
    scene: Snapshot, depth: int | None, random: object
) -> None:
    queue, running = list(scene.queue), list(scene.running)
    random.shuffle(queue)  # type: ignore[attr-defined]
    random.shuffle(running)  # type: ignore[attr-defined]
    renamed = tuple(replace(g, name=f"x{hash(g.name) % 97}") for g in queue)
    other = replace(scene, queue=renamed, running=tuple(running))
    policy = Policy(backfill_depth=depth, explain=False, preemption=False)

    assert plan(other, policy) == plan(scene, policy)


@SCENES
@given(
    scenes(), DEPTHS, st.lists(st.sampled_from([1.0, 30.0, 1e6, inf]), min_size=1, max_size=4), st.booleans()
)
def test_what_is_expected_of_run_times_decides_nothing_but_the_order_of_the_shortest(
    scene: Snapshot, depth: int | None, history_s: list[float], preemption: bool
) -> None:
    told = replace(
        scene,
        history_s=tuple(history_s),
        queue=tuple(replace(g, history=g.id % len(history_s), done_s=g.id % 3 * 10.0) for g in scene.queue),
        running=tuple(
            replace(run, gang=replace(run.gang, history=run.gang.id % len(history_s)))
            for run in scene.running
        ),
    )
    policy = Policy(backfill_depth=depth, preemption=preemption)
    one, other = plan(scene, policy), plan(told, policy)

    for name in ("starts", "reserves", "evictions", "resizes", "stages"):
        assert getattr(one, name) == getattr(other, name), name
    assert [(w.job_id, w.code, w.sentence) for w in one.waits] == [
        (w.job_id, w.code, w.sentence) for w in other.waits
    ]
    shortest = replace(policy, order="shortest", explain=False, preemption=False)
    assert check(told, plan(told, shortest), shortest) == ()


@SCENES
@given(scenes(), DEPTHS, st.booleans())
def test_what_sums_show_is_what_a_search_on_every_node_finds(
    scene: Snapshot, depth: int | None, preemption: bool
) -> None:
    policy = Policy(backfill_depth=depth, preemption=preemption)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sums, "lacks_power", lambda self, needs, kind: False)
        patch.setattr(Sums, "lacks_devices", lambda self, needs, kind: False)
        patch.setattr(planner, "place", _place_in_full)
        searched = plan(scene, policy)

    assert plan(scene, policy) == searched


def _place_in_full(frame: Frame, shape: Shape, kind: int, floor: Floor, terms: Terms) -> Found | None:
    return place(frame, shape, kind, floor, replace(terms, whether=False))


@SCENES
@given(
    scenes(), DEPTHS, st.booleans(), st.lists(st.sampled_from([0.5, 1.0, 3.0, 40.0]), min_size=1, max_size=5)
)
def test_what_jobs_share_is_what_each_is_told_alone(
    scene: Snapshot, depth: int | None, preemption: bool, longer: list[float]
) -> None:
    policy = Policy(backfill_depth=depth, preemption=preemption)
    twins = [
        replace(g, id=g.id + 1000, sequence=g.sequence + 1000, limit_s=g.limit_s * longer[i % len(longer)])
        for i, g in enumerate(scene.queue)
    ]
    queue = [*scene.queue, *twins]
    one_of: dict[Shape, Shape] = {}
    shared = tuple(replace(g, shape=one_of.setdefault(g.shape, g.shape)) for g in queue)
    apart = tuple(replace(g, shape=replace(g.shape)) for g in queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pass, "needs_of", lambda self, shape: id(shape))
        patch.setattr(Pass, "failure_key", _failure_of_each_shape)
        patch.setattr(Explainer, "_blocked_in", lambda self, gang, alike, window: self._blocked_by(gang))
        patch.setattr(Calendar, "_exceeds", lambda self, charge, n, draws_evenly=True: False)
        patch.setattr(_Profile, "take_all", _take_one_by_one)
        told_alone = plan(replace(scene, queue=apart), policy)

    assert plan(replace(scene, queue=shared), policy) == told_alone


def _failure_of_each_shape(self: Pass, gang: Gang, kind: int) -> tuple[tuple[object, ...], int]:
    account = self.tree.account(gang) if self.tree.teams else NONE
    return (id(gang.shape), kind, account, self.calendar.allowed(gang), gang.datasets), 1


def _take_one_by_one(self: _Profile, held: list[tuple[float, float, int]]) -> None:
    for start_s, end_s, steps in held:
        self.take(start_s, end_s, steps)


@SCENES
@given(scenes())
def test_every_waiting_job_has_a_reason_and_every_job_is_answered_once(scene: Snapshot) -> None:
    decided = plan(scene, Policy())

    answered = [s.job_id for s in decided.starts] + [w.job_id for w in decided.waits]
    assert sorted(answered) == sorted(g.id for g in scene.queue)
    assert all(w.code and w.sentence for w in decided.waits)


@SCENES
@given(scenes(with_running=False))
def test_what_the_empty_facility_holds_starts_there(scene: Snapshot) -> None:
    usable = scene.is_usable | True
    for gang in scene.queue:
        alone = replace(gang, team=NONE, is_held=False, shape=replace(gang.shape, reservation=NONE))
        empty = replace(scene, queue=(alone,), is_usable=usable, is_failed=~usable, bookings=())
        empty = replace(
            empty, limit_changes=()
        )  # what comes makes nothing impossible, but it may wait for ever
        impossible = prove_impossible(scene.facility, (), alone)
        started = plan(empty, Policy(explain=False)).starts

        assert (impossible is None) == (len(started) == 1)


@SCENES
@given(scenes(), st.sampled_from([1, 2, 64, None]))
def test_what_is_started_behind_a_promise_does_not_move_it(scene: Snapshot, depth: int | None) -> None:
    policy = Policy(backfill_depth=depth, explain=False, preemption=False)
    # An amount is laid on nodes anew in every pass: where it moves, a place behind it may open.
    bookings = (b if b.nodes else replace(b, n_devices=0) for b in scene.bookings)
    scene = replace(scene, bookings=tuple(bookings))
    decided = plan(scene, policy)
    gangs = {g.id: g for g in scene.queue}
    started = {s.job_id for s in decided.starts}
    now = tuple(
        Running(gangs[s.job_id], s.placing, scene.now_s, s.expected_end_s, s.cap) for s in decided.starts
    )
    again = plan(
        replace(
            scene, running=scene.running + now, queue=tuple(g for g in scene.queue if g.id not in started)
        ),
        policy,
    )

    promised = {r.job_id: r.start_s for r in again.reserves}
    for reserve in decided.reserves[:1]:  # the head; those behind it may take its place's place
        assert promised.get(reserve.job_id, inf) <= reserve.start_s
    assert again.starts == ()


@SCENES
@given(scenes())
def test_a_second_pass_over_the_same_state_is_the_same(scene: Snapshot) -> None:
    assert plan(scene, Policy()) == plan(scene, Policy())


@SCENES
@given(scenes(), DEPTHS)
def test_a_queue_drains_and_use_returns_to_nothing(scene: Snapshot, depth: int | None) -> None:
    policy = Policy(backfill_depth=depth, explain=False, preemption=False)
    usable = scene.is_usable | True
    possible = [
        g
        for g in scene.queue
        if not g.is_held
        and g.shape.reservation == NONE
        and g.limit_s != inf
        and prove_impossible(scene.facility, (), g) is None
    ]
    limited = tuple(replace(r, ends_s=min(r.ends_s, scene.now_s + 300)) for r in scene.running)
    scene = replace(scene, is_usable=usable, is_failed=~usable, queue=tuple(possible), running=limited)
    scene = replace(scene, bookings=(), teams=(), quota_is_checked=False, limit_changes=(), cap_changes=())
    scene = replace(
        scene,
        queue=tuple(replace(g, team=NONE) for g in scene.queue),
        running=tuple(replace(r, gang=replace(r.gang, team=NONE)) for r in scene.running),
    )
    for _ in range(200):
        decided = plan(scene, policy)
        gangs = {g.id: g for g in scene.queue}
        now = tuple(
            Running(gangs[s.job_id], s.placing, scene.now_s, s.expected_end_s, s.cap) for s in decided.starts
        )
        running = (*scene.running, *now)
        queue = tuple(g for g in scene.queue if g.id not in {r.gang.id for r in now})
        if not running:
            break
        next_s = min(r.ends_s for r in running)
        scene = replace(
            scene, now_s=next_s, running=tuple(r for r in running if r.ends_s > next_s), queue=queue
        )
    else:
        pytest.fail("the queue does not drain")
    assert scene.queue == ()
    assert scene.running == ()

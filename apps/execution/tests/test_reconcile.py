"""Wanted against seen: what each pair of them asks for, and what holds whatever happens in between."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.execution.backends.base import EndReason, Order, RunState, Seen, StopOrder
from apps.execution.backends.fake import FakeBackend
from apps.execution.reconcile import (
    Cause,
    Forget,
    Launch,
    ReportEnded,
    ReportStarted,
    SetLimit,
    Stop,
    Wanted,
    reconcile,
)

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def wanted(allocation_id: int = 1, **more: Any) -> Wanted:
    return Wanted(**{"allocation_id": allocation_id, "job_id": 1, "fence": allocation_id, **more})


def seen(state: RunState, allocation_id: int = 1, **more: Any) -> Seen:
    if state in (RunState.RUNNING, RunState.ENDED):
        more = {"started_at": NOON, **more}
    return Seen(
        **{"allocation_id": allocation_id, "job_id": 1, "fence": allocation_id, "state": state, **more}
    )


def stop(allocation_id: int = 1, grace_s: float = 10.0) -> Stop:
    return Stop(allocation_id=allocation_id, job_id=1, fence=allocation_id, grace_s=grace_s)


STARTED = ReportStarted(allocation_id=1, fence=1, started_at=NOON)


def ended(outcome: Any, **more: Any) -> ReportEnded:
    return ReportEnded(**{"allocation_id": 1, "fence": 1, "ended_at": None, "outcome": outcome, **more})


EXITED = {"reason": EndReason.EXITED, "exit_code": 0}
SCENES: list[tuple[str, list[Wanted], list[Seen], list[Any]]] = [
    ("nothing is wanted and nothing runs", [], [], []),
    ("a fresh allocation is launched", [wanted()], [], [Launch(1)]),
    ("a claim that went no further is launched again", [wanted()], [seen(RunState.CLAIMED)], [Launch(1)]),
    ("a run that is coming up is left alone", [wanted()], [seen(RunState.STARTING)], []),
    ("a run is reported once it runs", [wanted()], [seen(RunState.RUNNING)], [STARTED]),
    ("a run that is known to run is left alone", [wanted(is_known_running=True)], [seen(RunState.RUNNING)], []),
    ("a stop is passed on", [wanted(stop_cause=Cause.USER, is_known_running=True)], [seen(RunState.RUNNING)], [stop()]),
    ("a stop before the launch leaves a mark", [wanted(stop_cause=Cause.USER)], [], [stop()]),
    ("a run that vanished is marked before it is given up", [wanted(is_known_running=True)], [], [stop()]),
    (
        "a mark where something ran is a loss",
        [wanted(is_known_running=True)],
        [seen(RunState.ENDED, started_at=None, reason=EndReason.NEVER_STARTED)],
        [ended("node_lost", message="It ran, and its cluster has lost all trace of it."), Forget(1)],
    ),
    (
        "a short run is reported from start to end",
        [wanted()],
        [seen(RunState.ENDED, **EXITED)],
        [STARTED, ended("succeeded", exit_code=0), Forget(1)],
    ),
    ("a run that nobody wants is ended at once", [], [seen(RunState.RUNNING)], [stop(grace_s=0.0)]),
    ("an end that the ledger knows is forgotten", [], [seen(RunState.ENDED, **EXITED)], [Forget(1)]),
    (
        "a new attempt waits until the old one is gone",
        [wanted(2)],
        [seen(RunState.RUNNING)],
        [stop(grace_s=0.0)],
    ),
    (
        "a new attempt begins when the old one is gone",
        [wanted(2)],
        [seen(RunState.ENDED, **EXITED)],
        [Forget(1), Launch(2)],
    ),
    (
        "a changed time limit is passed on",
        [wanted(is_known_running=True, time_limit_s=60.0)],
        [seen(RunState.RUNNING, time_limit_s=30.0)],
        [SetLimit(1, 60.0)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("want", "see", "do"), [scene[1:] for scene in SCENES], ids=[scene[0] for scene in SCENES]
)
def test_what_is_to_be_done(want: list[Wanted], see: list[Seen], do: list[Any]) -> None:
    assert reconcile(want, see) == do


@pytest.mark.parametrize(
    ("cause", "reason", "exit_code", "outcome"),
    [
        (Cause.NONE, EndReason.EXITED, 0, "succeeded"),
        (Cause.NONE, EndReason.EXITED, 1, "failed"),
        (Cause.PREEMPTION, EndReason.EXITED, 0, "succeeded"),  # it ended by itself meanwhile
        (Cause.PREEMPTION, EndReason.STOPPED, 0, "vacated"),  # it saved its work and left
        (Cause.PAUSE, EndReason.STOPPED, 143, "vacated"),
        (Cause.USER, EndReason.STOPPED, 143, "cancelled"),
        (Cause.TIME_LIMIT, EndReason.STOPPED, 143, "timed_out"),
        (Cause.NODE_LOST, EndReason.STOPPED, 137, "node_lost"),
        (Cause.NONE, EndReason.TIME_LIMIT, 143, "timed_out"),
        (Cause.USER, EndReason.NEVER_STARTED, None, "cancelled"),
        (Cause.PREEMPTION, EndReason.NEVER_STARTED, None, "vacated"),
        (Cause.NONE, EndReason.NEVER_STARTED, None, "start_failed"),
        (Cause.NONE, EndReason.START_FAILED, None, "start_failed"),
        (Cause.NONE, EndReason.BAD_COMMAND, 127, "failed"),
        (Cause.NONE, EndReason.LOST, None, "node_lost"),
        (Cause.USER, EndReason.LOST, None, "cancelled"),
    ],
)
def test_how_an_end_is_told(cause: Cause, reason: EndReason, exit_code: int | None, outcome: str) -> None:
    found = seen(RunState.ENDED, started_at=None, reason=reason, exit_code=exit_code)

    told = reconcile([wanted(stop_cause=cause)], [found])[0]

    assert isinstance(told, ReportEnded)
    assert (told.outcome, told.exit_code) == (outcome, exit_code)


class World:
    """A ledger in memory and a fake cluster, moved by steps in any order, with the worker killed anywhere."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.ledger: dict[int, Wanted] = {}
        self.closed: dict[int, str] = {}
        self.ran: list[int] = []

    def open(self, job_id: int) -> None:
        if any(one.job_id == job_id for one in self.ledger.values()):
            return
        allocation_id = len(self.ledger) + len(self.closed) + 1
        fence = allocation_id  # grows with every attempt, which is all that is asked of it
        self.ledger[allocation_id] = Wanted(allocation_id=allocation_id, job_id=job_id, fence=fence)

    def ask_to_stop(self, job_id: int, cause: Cause) -> None:
        for id_, one in self.ledger.items():
            if one.job_id == job_id:
                self.ledger[id_] = _with(one, stop_cause=cause)

    def work(self, *, n_steps: int) -> None:
        """Reconcile, and be killed after so many steps of it."""
        actions = reconcile(self.ledger.values(), self.backend.list_seen(at=NOON))
        for action in actions[:n_steps]:
            self.do(action)

    def do(self, action: Any) -> None:
        match action:
            case Launch(allocation_id):
                one = self.ledger[allocation_id]
                order = Order(allocation_id=allocation_id, job_id=one.job_id, fence=one.fence, replicas=())
                refused = self.backend.launch([order], at=NOON)
                if refused:
                    # The cluster has lost a run, but knows that it had it: as good as gone, and marked as such.
                    self.backend.stop([_stop_order(one)], at=NOON)
            case Stop():
                self.backend.stop([_stop_order(action)], at=NOON)
            case ReportStarted():
                one = self.ledger[action.allocation_id]
                self.ledger[one.allocation_id] = _with(one, is_known_running=True)
            case ReportEnded():
                del self.ledger[action.allocation_id]
                self.closed[action.allocation_id] = action.outcome
            case Forget(allocation_id):
                self.backend.forget([allocation_id])

    def live(self) -> list[Seen]:
        return [run for run in self.backend.runs.values() if run.state != RunState.ENDED]


def _with(one: Wanted, **changes: Any) -> Wanted:
    return replace(one, **changes)


def _stop_order(of: Wanted | Stop) -> StopOrder:
    return StopOrder(allocation_id=of.allocation_id, job_id=of.job_id, fence=of.fence, grace_s=0.0)


JOBS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), JOBS),
        st.tuples(st.just("stop"), JOBS, st.sampled_from([Cause.USER, Cause.PREEMPTION, Cause.NODE_LOST])),
        st.tuples(st.just("work"), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("lose"), st.integers(0, 5)),
        st.tuples(st.just("deaf"), st.booleans()),
    ),
    max_size=40,
)


def play(world: World, steps: list[Any]) -> None:
    for kind, *rest in steps:
        live = world.live()
        if kind == "open":
            world.open(rest[0])
        elif kind == "stop":
            world.ask_to_stop(*rest)
        elif kind == "work":
            world.work(n_steps=rest[0])
        elif kind == "end" and live:
            world.backend.end(live[rest[0] % len(live)].allocation_id, at=NOON)
        elif kind == "lose" and live:
            world.backend.lose(live[rest[0] % len(live)].allocation_id)
        elif kind == "deaf":
            world.backend.is_deaf = rest[0]
        assert_never_two_of_one_job(world)


def assert_never_two_of_one_job(world: World) -> None:
    live = [run.job_id for run in world.live()]
    assert len(live) == len(set(live))
    assert len(world.backend.launches) == len(set(world.backend.launches))


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_allocation_is_launched_twice_and_no_job_runs_beside_itself(steps: list[Any]) -> None:
    play(World(), steps)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_in_the_end_what_runs_is_what_is_wanted_and_there_is_nothing_left_to_do(steps: list[Any]) -> None:
    world = World()
    play(world, steps)
    world.backend.is_deaf = False
    for _ in range(6):
        world.work(n_steps=1_000)

    assert {run.allocation_id for run in world.live()} == set(world.ledger)
    assert all(one.is_known_running and not one.stop_cause for one in world.ledger.values())
    assert reconcile(world.ledger.values(), world.backend.list_seen(at=NOON)) == []


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_the_order_of_rows_does_not_matter(steps: list[Any]) -> None:
    world = World()
    play(world, steps)
    want, see = list(world.ledger.values()), world.backend.list_seen(at=NOON)

    assert reconcile(want, see) == reconcile(want[::-1], see[::-1])


def test_an_answer_done_twice_is_as_good_as_once() -> None:
    world = World()
    world.open(1)
    for action in reconcile(world.ledger.values(), []) * 2:
        world.do(action)

    assert world.backend.launches == [1]

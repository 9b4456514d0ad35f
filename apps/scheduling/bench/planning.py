"""The cases that run passes: from the database to the committed plan."""

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Final

from tqdm import tqdm

from apps.core import clock
from apps.events.services import record
from apps.jobs.spec import JobRequest
from apps.scheduling import admission, apply, line, services, snapshot
from apps.scheduling.bench import hall, work
from apps.scheduling.bench.figures import Board, Figure
from apps.scheduling.bench.server import Server, in_a_process_of_its_own
from apps.scheduling.engine import checker, planner
from apps.scheduling.models import Pass

PHASES: Final = ("load", "plan", "check", "commit", "losses")
BACKLOG: Final = 8_859
_STEADY_PASSES: Final = 12
_STEP_S: Final = 10.0
_CHURN: Final = 10  # jobs that end, and as many that are submitted, from one steady pass to the next
_MIB: Final = 1024.0**2


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    queue: int


@dataclass(frozen=True, eq=False)
class Bench:
    """What every case is given."""

    server: Server
    board: Board
    shows_progress: bool
    quick: bool = False

    def bar(self, total: int, words: str, unit: str) -> "tqdm[Any]":
        return tqdm(
            total=total,
            desc=words,
            unit=f" {unit}",
            leave=False,
            disable=None if self.shows_progress else True,
        )

    def build(self, size: Size, build: Callable[..., None], *arguments: Any) -> str:
        """A fresh database, filled by `build` in a process of its own; its URL."""
        url = self.server.fresh_database()
        for forget in (snapshot.forget, apply.forget, admission.forget, line.forget):
            forget()
        in_a_process_of_its_own(build, self, size, *arguments)
        return url

    def add_refused(self, case: str, size: Size, runs: "Sequence[Ran]") -> None:
        """Plans that were refused; such a pass committed nothing, and its time says little."""
        n = sum(one.is_refused for ran in runs for one in ran.passes)
        self.add(case, size, "plans refused by the checker", n, "plans", at_most=0)
        for fault in [fault for ran in runs for fault in ran.faults][:3]:
            self.board.tell(f"          {fault}")

    def add(
        self,
        case: str,
        size: Size,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        self.board.add(Figure(case, size.nodes, size.queue, name, round(value, 3), unit, at_most, at_least))


@dataclass(frozen=True, slots=True)
class Ran:
    """Passes that were run, and the seconds they took from outside."""

    passes: tuple[Pass, ...]
    wall_s: float

    @property
    def n_started(self) -> int:
        return sum(one.n_started for one in self.passes)

    @property
    def faults(self) -> list[str]:
        """What the checker found in plans that it refused."""
        return [fault["message"] for one in self.passes if one.is_refused for fault in one.faults]

    def phase_s(self, phase: str) -> float:
        return sum(float(one.phase_ms.get(phase, 0.0)) for one in self.passes) / 1000


def run_passes(at: datetime) -> Ran:
    """What the planner does when it is woken: as many passes as there is news for."""
    before = Pass.objects.order_by("-id").values_list("id", flat=True).first() or 0
    began_s = clock.monotonic_s()
    services.run_pass(at=at)
    wall_s = clock.monotonic_s() - began_s
    passes = tuple(Pass.objects.filter(pk__gt=before).order_by("id"))
    return Ran(passes, wall_s)


def peak_memory_mib() -> float:
    """The most this process held so far."""
    per_unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * per_unit / _MIB


# Scenes ------------------------------------------------------------------------------------------------------------


def build_queue(bench: Bench, size: Size, at: datetime) -> None:
    """The hall with all rules, and work in the queue."""
    hall.build(size.nodes, at)
    with bench.bar(size.queue, f"submitting for {size.nodes} nodes", "jobs") as bar:
        work.submit(range(size.queue), at, bar.update)


def build_free_hall(bench: Bench, size: Size, at: datetime) -> None:
    """A free hall, and one-node jobs."""
    del bench
    hall.build(size.nodes, at, is_bounded=False)
    request = work.request_of(0, replicas=1, devices=8.0, topology=None, accelerators=None)
    work.submit_requests([request.model_copy(update={"name": f"one-{n}"}) for n in range(size.queue)], at)


def build_evictable(bench: Bench, size: Size, at: datetime) -> None:
    """A hall without a free node: victims of two nodes each, and beside them what may not be touched."""
    del bench
    hall.build(size.nodes, at, is_bounded=False)
    common = {"topology": None, "accelerators": None, "devices": 8.0, "cpus": 8.0, "memory_gib": 64.0}
    team = {"team": hall.LEAF_TEAMS[0]}
    victim = work.request_of(1, replicas=2, priority=0, **common, **team)
    guarded = work.request_of(2, replicas=1, priority=50, preemptible=False, **common, **team)
    n_guarded = size.nodes - 2 * size.queue
    work.submit_requests([victim.model_copy(update={"name": f"victim-{n}"}) for n in range(size.queue)], at)
    work.submit_requests([guarded.model_copy(update={"name": f"guarded-{n}"}) for n in range(n_guarded)], at)


# Cases -------------------------------------------------------------------------------------------------------------


def cold(bench: Bench, size: Size, at: datetime) -> str:
    """An empty hall and a queue, all rules on; leaves a full hall behind. The URL of its database."""
    _warm_up(bench, at)
    url = bench.build(size, build_queue, at)
    ran = run_passes(at)
    bench.add_refused("cold", size, [ran])
    for phase in PHASES:
        bench.add("cold", size, phase, ran.phase_s(phase), "s")
    if ran.n_started:
        wanted = 5000.0 if size.nodes <= 1024 else 2000.0
        bench.add("cold", size, f"started, {len(ran.passes)} passes", ran.n_started, "jobs")
        # What follows the starts, for the news of them, starts nothing and is no part of the rate.
        starting = Ran(tuple(one for one in ran.passes if one.n_started), ran.wall_s)
        per_s = ran.n_started / max(starting.phase_s("plan"), 1e-9)
        bench.add("cold", size, "decided, reasons and forecasts with them", per_s, "jobs/s", at_least=wanted)
        per_s = ran.n_started / max(starting.phase_s("commit"), 1e-9)
        bench.add("cold", size, "committed, reasons with them", per_s, "jobs/s", at_least=2000.0)
    return url


_is_warm = False


def _warm_up(bench: Bench, at: datetime) -> None:
    """Compiled loops are loaded once in the life of a process; no case is charged for it."""
    global _is_warm
    if not _is_warm:
        bench.build(Size(128, 600), build_queue, at)
        run_passes(at)
        _churn(at, range(600, 600 + _CHURN))
        run_passes(at + timedelta(seconds=1))
        _is_warm = True


def steady(bench: Bench, size: Size, at: datetime) -> str:
    """A full hall and a long queue: a few jobs end, a few are submitted, and a pass is run."""
    url = cold(bench, size, at)
    at, passes, calm = _settle(bench, at), [], []
    with bench.bar(2 * _STEADY_PASSES, "steady passes", "passes") as bar:
        for turn in range(_STEADY_PASSES):
            at += timedelta(seconds=_STEP_S)
            first = size.queue + turn * _CHURN
            _churn(at, range(first, first + _CHURN))
            passes.append(run_passes(at))
            bar.update()
        for _ in range(_STEADY_PASSES // 4):
            at += timedelta(seconds=_STEP_S)
            record("node.changed", subject_kind="node", at=at)
            calm.append(run_passes(at))
            bar.update()
    waiting = Size(size.nodes, passes[-1].passes[-1].n_waiting)
    bench.add_refused("steady", waiting, [*passes, *calm])
    for phase in PHASES:
        at_most = 0.1 if phase == "plan" else None
        seconds = median(ran.phase_s(phase) / len(ran.passes) for ran in passes)
        bench.add("steady", waiting, f"{phase}, median", seconds, "s", at_most=at_most)
    walls = [ran.wall_s / len(ran.passes) for ran in passes]
    bench.add("steady", waiting, "pass, database to database, median", median(walls), "s", at_most=1.0)
    bench.add("steady", waiting, "pass, longest", max(walls), "s")
    wall_s = median(ran.wall_s / len(ran.passes) for ran in calm)
    plan_s = median(ran.phase_s("plan") / len(ran.passes) for ran in calm)
    bench.add("steady", waiting, "pass when nothing moved, median", wall_s, "s")
    bench.add("steady", waiting, "plan when nothing moved, median", plan_s, "s")
    bench.add("steady", waiting, "memory, most so far", peak_memory_mib(), "MiB", at_most=1024.0)
    return url


def _settle(bench: Bench, at: datetime) -> datetime:
    """Report what was started as running, and pass until every waiting job has its reason."""
    in_a_process_of_its_own(_start_all, bench, at)
    for _ in range(12):
        at += timedelta(seconds=2)
        work.leave(work.leaving(), at)
        record("node.changed", subject_kind="node", at=at)
        ran = run_passes(at)
        if not ran.n_started and len(ran.passes) == 1:
            break
    return at


def _start_all(bench: Bench, at: datetime) -> None:
    attempts = work.some_open(10**6, state="pending")
    with bench.bar(len(attempts), "starting", "jobs") as bar:
        for first in range(0, len(attempts), 200):
            work.start(attempts[first : first + 200], at)
            bar.update(200)


def _churn(at: datetime, numbers: Sequence[int]) -> None:
    work.leave(work.leaving(), at)  # nothing is carried out here: who was asked to go has gone by now
    work.end(work.some_open(len(numbers)), at)
    work.submit(numbers, at)


def backlog(bench: Bench, size: Size, at: datetime) -> str:
    """A full hall, and so many jobs waiting: one pass by a process that remembers nothing."""
    n_fill = 2 * size.nodes  # more than the hall holds
    filled = Size(size.nodes, n_fill + BACKLOG)
    _warm_up(bench, at)
    url = bench.build(filled, build_backlog, at)
    ran = run_passes(at + timedelta(seconds=1))
    waiting = Size(size.nodes, ran.passes[-1].n_queued)
    bench.add_refused("backlog", waiting, [ran])
    for phase in PHASES:
        bench.add("backlog", waiting, phase, ran.phase_s(phase) / len(ran.passes), "s")
    bench.add("backlog", waiting, "gone through", ran.wall_s / len(ran.passes), "s", at_most=1.0)
    return url


def build_backlog(bench: Bench, size: Size, at: datetime) -> None:
    """A hall that is full, and behind it exactly the backlog."""
    hall.build(size.nodes, at)
    number = size.queue - BACKLOG
    with bench.bar(size.queue, f"filling {size.nodes} nodes", "jobs") as bar:
        work.submit(range(number), at, bar.update)
        run_passes(at)
        work.fit_queue(BACKLOG, number, at)
        bar.update(BACKLOG)


def drain(bench: Bench, size: Size, at: datetime) -> str:
    """A free hall takes a whole queue of one-node jobs in one pass."""
    del size
    size = Size(1300, 536)
    _warm_up(bench, at)
    url = bench.build(size, build_free_hall, at)
    ran = run_passes(at)
    bench.add(
        "drain", size, "started by the first pass", ran.passes[0].n_started, "jobs", at_least=size.queue
    )
    bench.add("drain", size, "pass", ran.wall_s, "s")
    return url


def preempt(bench: Bench, size: Size, at: datetime) -> str:
    """A full hall, 700 jobs that may be evicted, and a gang of high priority."""
    del size
    size = Size(2000, 700)
    _warm_up(bench, at)
    url = bench.build(size, build_evictable, at)
    run_passes(at)
    in_a_process_of_its_own(_start_all, bench, at)
    gang = JobRequest.model_validate(
        {
            "name": "gang", "team": hall.LEAF_TEAMS[0], "priority": 90, "replicas": 32, "devices": 8, "cpus": 8.0,
            "accelerators": ["H100"], "topology": {"preferred": "spine"}, "time_limit": 3600.0,
        }
    )  # fmt: skip
    work.submit_requests([gang], at)
    taken = snapshot.take_snapshot(at + timedelta(seconds=60))
    began_s = clock.monotonic_s()
    plan = planner.plan(taken.snapshot, taken.policy)
    plan_s = clock.monotonic_s() - began_s
    faults = checker.check(taken.snapshot, plan, taken.policy)
    bench.add("preempt", size, "decided", plan_s, "s", at_most=1.0)
    bench.add("preempt", size, "evictions decided", len(plan.evictions), "jobs", at_least=1)
    bench.add("preempt", size, "faults found by the checker", len(faults), "faults", at_most=0)
    return url

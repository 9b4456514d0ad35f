"""Batch logs in the Standard Workload Format: reading one, and playing it through the real engine.

The machine is one pool: a node with as many devices as the log has processors. A job is a gang of one-device replicas
on it. The planner knows the declared limits alone; a job ends after its true running time. In one second all ends
come first, then all submissions, then one pass; where promises are kept, a pass between two ends as well.

Source of the format: Chapin et al., "Benchmarks and standards for the evaluation of parallel job schedulers", 1999.
"""

import csv
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from statistics import median
from typing import Final

import numpy as np

from apps.scheduling.engine import checker, planner
from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    Facility,
    Fault,
    Gang,
    Kind,
    Plan,
    Policy,
    Reserve,
    Running,
    Shape,
    Snapshot,
    Start,
)
from apps.scheduling.engine.forecast import forecast
from apps.scheduling.engine.frame import frame_of
from apps.scheduling.engine.named import NAMED
from apps.scheduling.engine.order import order_queue
from apps.scheduling.engine.predict import History
from apps.scheduling.engine.quota import QuotaTree
from apps.simulation.replay.metrics import Served, bounded_slowdown, element_at, mean

N_COLUMNS: Final = 18
_HALF, _P95, _P99 = Fraction(1, 2), Fraction(95, 100), Fraction(99, 100)

# Policies of a queue that is served by submit time alone, as in the published comparisons. Only what starts is of
# interest, so no reasons are looked for.
POLICIES: Final = {
    "strict": Policy(backfill_depth=0, order="submit", explain=False),
    "easy": Policy(backfill_depth=1, order="submit", explain=False),
    "easy-sjbf": Policy(backfill_depth=1, order="submit", backfill_order="shortest", explain=False),
    "conservative": Policy(backfill_depth=None, order="submit", keeps_promises=True, explain=False),
    "conservative-replan": Policy(backfill_depth=None, order="submit", explain=False),
    "shortest": Policy(**NAMED["shortest"], explain=False),
    "turnaround": Policy(**NAMED["turnaround"], explain=False),
    "default": Policy(explain=False),
}


class BadLog(ValueError):
    """A log that cannot be read; the message says where."""


@dataclass(frozen=True, slots=True)
class LogJob:
    """One row that can be played."""

    job_id: int
    submit_s: float
    run_s: float
    n_procs: int
    limit_s: float  # inf: none declared
    user: int = NONE


@dataclass(frozen=True, slots=True)
class Log:
    """Jobs in order of submission, rows of one second in file order."""

    jobs: tuple[LogJob, ...]
    n_procs: int | None  # as the header tells
    n_dropped: int


def read_log(lines: Iterable[str]) -> Log:
    """Read a log; rows that no machine of that size could have run are dropped and counted.

    Dropped: no positive running time, no positive number of processors, more processors than the machine has, a
    negative submit time, and, in a log in which limits are declared at all, no limit. A running time over the limit
    is cut to it: the machine would have killed the job.
    """
    rows: list[LogJob] = []
    header: dict[str, str] = {}
    n_rows = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(";"):
            key, _, value = text.lstrip("; ").partition(":")
            header.setdefault(key.strip(), value.strip())
        elif text:
            n_rows += 1
            row = _row(text.split(), number)
            if row is not None:
                rows.append(row)
    n_procs = _machine(header)
    if n_procs is not None:
        rows = [row for row in rows if row.n_procs <= n_procs]
    if any(row.limit_s != inf for row in rows):
        rows = [row for row in rows if row.limit_s != inf]
    rows.sort(key=lambda row: row.submit_s)
    return Log(tuple(rows), n_procs, n_rows - len(rows))


def _row(columns: Sequence[str], number: int) -> LogJob | None:
    if len(columns) < N_COLUMNS:
        raise BadLog(f"line {number}: has {len(columns)} of {N_COLUMNS} columns")
    try:
        job_id, allocated, requested = int(columns[0]), int(columns[4]), int(columns[7])
        submit_s, run_s, limit_s = float(columns[1]), float(columns[3]), float(columns[8])
        user = int(columns[11])
    except ValueError as error:
        raise BadLog(f"line {number}: {error}") from None
    if not all(map(np.isfinite, (submit_s, run_s, limit_s))):
        raise BadLog(f"line {number}: a number is not finite")
    n_procs = requested if requested > 0 else allocated
    if run_s <= 0 or n_procs <= 0 or submit_s < 0:
        return None
    limit_s = limit_s if limit_s > 0 else inf
    return LogJob(job_id, submit_s, min(run_s, limit_s), n_procs, limit_s, user)


def _machine(header: dict[str, str]) -> int | None:
    for key in ("MaxProcs", "MaxNodes"):
        text = header.get(key, "").split(" ")[0]
        if text.isdigit() and int(text) > 0:
            return int(text)
    return None


def pool(n_procs: int) -> Facility:
    """One node with so many devices, and nothing else that could bind."""
    none = np.array([NONE], dtype=np.int64)
    return Facility(
        kinds=(Kind(0, "processor"),),
        domains=(),
        node_id=np.array([0], dtype=np.int64),
        node_name=("pool",),
        kind=np.array([0], dtype=np.int64),
        n_devices=np.array([n_procs], dtype=np.int64),
        cpus=np.array([inf]),
        memory_gib=np.array([inf]),
        scale_up=none,
        leaf=none,
        power=none,
        cooling=none,
        storage=none,
        idle_w=np.array([0.0]),
        speed=np.array([1.0]),
        cluster=np.array([0], dtype=np.int64),
    )


@dataclass(frozen=True)
class Engine:
    """The engine's two answers, as functions, so that a test can put another in their place."""

    plan: Callable[[Snapshot, Policy], Plan] = planner.plan
    check: Callable[[Snapshot, Plan, Policy], Iterable[Fault]] = checker.check


class Replay:
    """One log on one pool under one policy; `starts` fills while `run` goes on."""

    def __init__(
        self,
        log: Log,
        n_procs: int,
        policy: Policy,
        engine: Engine | None = None,
        *,
        makes_forecasts: bool = False,
    ) -> None:
        self.log, self.n_procs, self.policy = log, n_procs, policy
        self.engine = engine or Engine()
        self.starts: dict[int, float] = {}  # place in the log -> start
        self.ends: dict[int, float] = {}
        self.n_passes = 0
        self.makes_forecasts = makes_forecasts
        # What was foretold of each job that had to wait, in the pass that saw it first: by predictions, and by limits.
        self.forecasts: dict[int, tuple[float, float]] = {}
        self._predicted_s: dict[int, float] = {}  # of running jobs, as it was when they came
        self._tree = QuotaTree((), 1)
        self._facility = pool(n_procs)
        self._shapes: dict[int, Shape] = {}
        self._running: dict[int, Running] = {}
        self._queue: dict[int, Gang] = {}
        self._promises: tuple[Reserve, ...] = ()
        self._history = History()
        self._usable = np.array([True])
        self._failed = np.array([False])

    def run(self) -> Iterator[int]:
        """Play the log to its end; tells after each instant how many jobs ended."""
        ends: list[tuple[float, int]] = []
        jobs = self.log.jobs
        coming = 0
        while coming < len(jobs) or ends:
            next_submit_s = jobs[coming].submit_s if coming < len(jobs) else inf
            now_s = min(next_submit_s, ends[0][0] if ends else inf)
            ended = []
            while ends and ends[0][0] <= now_s:
                ended.append(heapq.heappop(ends)[1])
            if self.policy.keeps_promises:
                # Who used their whole limit first: that was foreseen, and promises rest on it.
                ended.sort(key=lambda place: self._running[place].ends_s > now_s)
            ended_early = False
            for place in ended:
                if ended_early and self.policy.keeps_promises and self._queue:
                    # Of several ends in one second each moves the promises by itself, as in the published
                    # comparison: what the first leaves free goes to who fits there, and not to who fits in both.
                    self._go(now_s, ends, ended_early=True)
                    ended_early = False
                ended_early |= self._running.pop(place).ends_s > now_s
                self._history.learn(jobs[place].user, jobs[place].run_s)
                self.ends[place] = now_s
            while coming < len(jobs) and jobs[coming].submit_s <= now_s:
                self._queue[coming] = self._gang(coming)
                coming += 1
            if self._queue:
                self._go(now_s, ends, ended_early=ended_early)
            yield len(ended)

    def _go(self, now_s: float, ends: list[tuple[float, int]], *, ended_early: bool) -> None:
        """One pass, and when what it starts will end."""
        for start in self._pass(now_s, ended_early):
            end_s = now_s + self.log.jobs[start.job_id].run_s
            heapq.heappush(ends, (end_s, start.job_id))

    def _gang(self, place: int) -> Gang:
        job = self.log.jobs[place]
        if job.n_procs not in self._shapes:
            ask = Ask(n_replicas=job.n_procs, devices=1, kinds=(0,))
            self._shapes[job.n_procs] = Shape((ask,))
        return Gang(
            id=place,
            name=str(job.job_id),
            shape=self._shapes[job.n_procs],
            submitted_s=job.submit_s,
            sequence=place,
            limit_s=job.limit_s,
            work_s=job.run_s if job.limit_s == inf else inf,
        )

    def _in_queue(self) -> tuple[Gang, ...]:
        if self.policy.order != "shortest":
            return tuple(self._queue.values())
        jobs = self.log.jobs
        return tuple(
            replace(gang, predicted_s=self._history.predict_s(jobs[place].user, gang.limit_s))
            for place, gang in self._queue.items()
        )

    def _pass(self, now_s: float, ended_early: bool) -> tuple[Start, ...]:
        snapshot = Snapshot(
            now_s=now_s,
            facility=self._facility,
            is_usable=self._usable,
            is_failed=self._failed,
            running=tuple(self._running.values()),
            queue=self._in_queue(),
            promises=self._promises,
            ended_early=ended_early,
            quota_is_checked=False,
        )
        plan = self.engine.plan(snapshot, self.policy)
        self.n_passes += 1
        faults = tuple(self.engine.check(snapshot, plan, self.policy))
        if faults:
            raise AssertionError(
                f"The plan at {now_s} s breaks a rule: {faults[0].rule}: {faults[0].message}"
            )
        if self.makes_forecasts:
            self._foretell(snapshot, plan)
        self._promises = plan.reserves
        for start in plan.starts:
            place = start.job_id
            gang = self._queue.pop(place)
            held_s = min(gang.limit_s, gang.work_s)
            self._running[place] = Running(gang, start.placing, now_s, now_s + held_s, start.cap)
            self.starts[place] = now_s
        return plan.starts

    def _foretell(self, snapshot: Snapshot, plan: Plan) -> None:
        """Say of each job that has to wait, once, when it will start."""
        begun = {start.job_id for start in plan.starts}
        new = [place for place in self._queue if place not in self._predicted_s]
        jobs = self.log.jobs
        for place in new:
            gang = self._queue[place]
            self._predicted_s[place] = self._history.predict_s(jobs[place].user, gang.limit_s)
        new = [place for place in new if place not in begun]
        if not new:
            return
        by_limit = self._forecast(replace(snapshot, queue=tuple(self._queue.values())), plan, begun)
        predicted = replace(
            snapshot,
            queue=tuple(replace(gang, predicted_s=self._predicted_s[gang.id]) for gang in snapshot.queue),
            running=tuple(
                replace(one, gang=replace(one.gang, predicted_s=self._predicted_s[one.gang.id]))
                for one in snapshot.running
            ),
        )
        by_prediction = self._forecast(predicted, replace(plan, reserves=()), begun)
        for place in new:
            self.forecasts[place] = (by_prediction.get(place, inf), by_limit.get(place, inf))

    def _forecast(self, snapshot: Snapshot, plan: Plan, begun: set[int]) -> dict[int, float]:
        waiting = [gang for gang in order_queue(snapshot, self.policy) if gang.id not in begun]
        frame = frame_of(snapshot.facility)
        return forecast(snapshot, frame, self._tree, plan.starts, plan.reserves, waiting, {})


def start_rows(replay: Replay) -> Iterator[tuple[int, float]]:
    """(job_id, start_s) of every job that started, in the order of the log."""
    for place, job in enumerate(replay.log.jobs):
        if place in replay.starts:
            yield job.job_id, replay.starts[place]


def summary(replay: Replay) -> dict[str, float | int | None]:
    """Means over the jobs that ended, exactly as the published comparisons define them."""
    ended = sorted(replay.ends)
    jobs = replay.log.jobs
    served = [Served(int(replay.starts[i] - jobs[i].submit_s), int(jobs[i].run_s)) for i in ended]
    makespan_s = None
    utilization = None
    if ended:
        makespan_s = max(replay.ends.values()) - min(jobs[i].submit_s for i in ended)
        area = sum(int(jobs[i].run_s) * jobs[i].n_procs for i in ended)
        utilization = area / (replay.n_procs * makespan_s) if makespan_s else 0.0
    waits = [one.wait_s for one in served]
    return {
        "jobs": len(ended),
        "processors": replay.n_procs,
        "mean_wait": mean(waits),
        "mean_bounded_slowdown": mean([bounded_slowdown(one) for one in served]),
        "utilization": utilization,
        "makespan": makespan_s,
        "passes": replay.n_passes,
        "jobs_that_waited": sum(1 for wait in waits if wait > 0),
        "median_wait": element_at(waits, _HALF),
        "p95_wait": element_at(waits, _P95),
        **_errors(replay),
    }


def _errors(replay: Replay) -> dict[str, float | int | None]:
    """How far the forecasts were off, over the jobs that had to wait."""
    if not replay.makes_forecasts:
        return {}
    errors: dict[str, float | int | None] = {"forecasts": len(replay.forecasts)}
    for column, by in enumerate(("prediction", "limit")):
        off = [
            abs(foretold[column] - replay.starts[place])
            for place, foretold in replay.forecasts.items()
            if place in replay.starts and foretold[column] != inf
        ]
        errors[f"forecast_error_mean_by_{by}"] = mean(off) if off else None
        errors[f"forecast_error_median_by_{by}"] = median(off) if off else None
    return errors


def read_starts(lines: Iterable[str], column: str) -> dict[int, float]:
    """Starts of another run by job_id: of `start_rows`, or of a published comparison; KeyError without the column."""
    starts = {}
    for line, row in enumerate(csv.DictReader(lines), 2):
        try:
            starts[int(row["job_id"])] = float(row[column])
        except (TypeError, ValueError) as error:
            raise BadLog(f"line {line}: {error}") from None
    return starts


def beside(replay: Replay, others: Mapping[int, float]) -> dict[str, float | int | None]:
    """What differs from another run, job by job; over the jobs that started in both.

    Extra wait is this run's start minus the other's, in seconds; below 0 for a job that started earlier.
    """
    rows = [(job_id, start_s) for job_id, start_s in start_rows(replay) if job_id in others]
    extra_s = [start_s - others[job_id] for job_id, start_s in rows]
    return {
        "jobs_in_both": len(rows),
        "starts_that_differ": sum(1 for one in extra_s if one),
        "mean_extra_wait": mean(extra_s),
        "p99_extra_wait": element_at(extra_s, _P99),
        "longest_extra_wait": max(extra_s, default=None),
        "jobs_that_waited_longer": sum(1 for one in extra_s if one > 0),
    }

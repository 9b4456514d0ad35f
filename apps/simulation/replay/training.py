"""What the replays of deep-learning traces share: jobs and a cluster become a scenario, which the simulator plays.

A trace is read into `Run`s, each one scenario of its own. The scenario is the same that `manage.py simulate` takes,
and its checks are the same. The planner is told no limit, for the traces declare none; so it counts on the true
running time, which the published policies mostly do not know. Every replay says so in its `protocol`.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from statistics import fmean, median
from typing import Any, Final

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import Policy
from apps.scheduling.engine.named import NAMED
from apps.simulation.loop import Engine, Life, Simulation
from apps.simulation.replay.metrics import FLOOR_S
from apps.simulation.scenario import check_scenario
from apps.simulation.world import build_world

UNFAIR: Final = (
    1.05  # a job whose finish-time fairness is above this was treated unfairly (Shockwave, NSDI 2023)
)
KEPT_S: Final = 60.0  # an elastic job's work is safe this often; the published simulators lose none
DRAW_W: Final = 300.0  # draw of a device where the trace says nothing; no limit makes it matter

# What `--policy` changes about the default. Only what starts is of interest, so no reasons are looked for.
POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {},
    "shortest": {"order": "shortest"},
    "turnaround": NAMED["turnaround"],
    "easy": {"backfill_depth": 1},
    "strict": {"backfill_depth": 0},
}
KNOWS: Final = "The planner counts on the true running time, for the trace declares no limit."
EXACT: Final = "Planned at every change, not in rounds."


class BadTrace(ValueError):
    """A trace that cannot be read; the message says where."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """Between which numbers of devices a job may run, and how fast at each."""

    least: int
    most: int
    scaling: tuple[
        tuple[int, float], ...
    ]  # (devices, rate of progress relative to that on the devices asked for)


@dataclass(frozen=True, slots=True)
class Sizing:
    """How the sizes of elastic jobs are chosen."""

    preferred: int | None = None  # devices; None: as many as the user asked for
    least_efficiency: float = 0.0  # of a device against a single one, below which no more are used

    @property
    def told(self) -> str:
        preferred = "the user's number" if self.preferred is None else str(self.preferred)
        most = (
            f"while each works at least {self.least_efficiency:g} times as fast as a single one"
            if self.least_efficiency
            else "while they make it faster"
        )
        return f"Elastic: from 1 device up, {preferred} preferred, {most}"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One job of a trace."""

    name: str
    submit_s: float
    n_gpus: int  # asked for
    alone_s: float  # running time on them, on a device of speed 1
    team: str | None = None
    accelerators: tuple[str, ...] = ()  # accepted, best first; empty: any
    restart_s: float = 0.0  # spent whenever its placement changes
    elastic: Elastic | None = None


@dataclass(frozen=True, slots=True)
class NodeKind:
    """So many equal servers."""

    name: str
    n_nodes: int
    n_gpus: int  # of each
    accelerator: str = "GPU"


@dataclass(frozen=True)
class Cluster:
    """The machine of a trace."""

    nodes: tuple[NodeKind, ...]
    speed: Mapping[str, float]  # by accelerator type; the reference type is 1

    @property
    def n_gpus(self) -> int:
        return sum(kind.n_nodes * kind.n_gpus for kind in self.nodes)


@dataclass(frozen=True)
class Run:
    """One workload on one cluster."""

    name: str
    cluster: Cluster
    jobs: tuple[TrainingJob, ...]


@dataclass(frozen=True)
class Replay:
    """A trace that is ready to be played."""

    told: Mapping[str, Any]  # what was asked for: stands first in the summary
    runs: tuple[Run, ...]
    reference: Any  # as read from the trace's own files; None: there is none
    protocol: tuple[str, ...]  # how it differs from the published one
    static_contention: bool = False  # finish-time fairness by the jobs of the whole trace


def first(jobs: Iterable[TrainingJob], limit: int | None) -> tuple[TrainingJob, ...]:
    """The first so many jobs by time of submission; the first of them is submitted at 0."""
    ordered = sorted(jobs, key=lambda job: job.submit_s)[:limit]
    if not ordered:
        raise BadTrace("there is no job")
    start_s = ordered[0].submit_s
    return tuple(replace(job, submit_s=job.submit_s - start_s) for job in ordered)


# -- the scenario -------------------------------------------------------------------------------------------------


def scenario_of(run: Run) -> dict[str, Any]:
    """The run as a scenario file would say it."""
    teams = sorted({job.team for job in run.jobs if job.team is not None})
    return {
        "facility": {
            "accelerator_types": [
                {"name": name, "tdp_w": DRAW_W, "speed": speed} for name, speed in run.cluster.speed.items()
            ],
            "nodes": [
                {
                    "name": kind.name,
                    "count": kind.n_nodes,
                    "accelerator": kind.accelerator,
                    "devices": kind.n_gpus,
                }
                for kind in run.cluster.nodes
                if kind.n_nodes
            ],
        },
        "teams": [{"name": name} for name in teams],
        "jobs": [_row(job) for job in run.jobs],
    }


def _row(job: TrainingJob) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": job.name,
        "submit": job.submit_s,
        "replicas": job.n_gpus,
        "runtime": job.alone_s,
    }
    if job.team is not None:
        row["team"] = job.team
    if job.accelerators:
        row["accelerators"] = list(job.accelerators)
    if job.restart_s:
        row["checkpoint"] = {"interval": KEPT_S, "restart": job.restart_s}
    if job.elastic is not None:
        row["replicas"] = {"min": job.elastic.least, "max": job.elastic.most, "preferred": job.n_gpus}
        row["scaling"] = [list(point) for point in job.elastic.scaling]
    return row


# -- one run ------------------------------------------------------------------------------------------------------


class Player:
    """Plays one run; `lives` can be looked at while and after it goes on, also when it was interrupted."""

    def __init__(self, run: Run, policy: str, on_end: Callable[[], object] = lambda: None) -> None:
        world = build_world(check_scenario(scenario_of(run)))
        changed: Policy = replace(world.policy, explain=False, **POLICIES[policy])
        self.run = run
        self._simulation = Simulation(replace(world, policy=changed), Engine(on_end=on_end))

    def play(self) -> None:
        """Go on until every job has ended."""
        self._simulation.run()

    @property
    def lives(self) -> dict[str, Life]:
        """What has become of each job, by name."""
        return {life.job.name: life for life in self._simulation.lives}

    @property
    def n_passes(self) -> int:
        return len(self._simulation.plan_seconds)

    @property
    def n_resizes(self) -> Counter[str]:
        """How often each job was given another size, by name."""
        return Counter(line["job"] for line in self._simulation.lines if line["event"] == "resize")


# -- measures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that came to its end."""

    job: TrainingJob
    start_s: float
    end_s: float
    held_s: float  # device-seconds
    n_starts: int
    n_resizes: int

    @property
    def jct_s(self) -> float:
        """Completion time: end minus submission."""
        return self.end_s - self.job.submit_s


def ended_of(player: Player) -> list[Ended]:
    """The jobs of a run that ended well, in order of submission."""
    lives, resizes = player.lives, player.n_resizes
    rows = []
    for job in player.run.jobs:
        life = lives[job.name]
        if life.state == "succeeded" and life.first_start is not None and life.end is not None:
            held_s = float(life.held_step_s) / SHARE_STEPS
            start_s, end_s = float(life.first_start), float(life.end)
            rows.append(Ended(job, start_s, end_s, held_s, life.n_attempts, resizes[job.name]))
    return rows


def measures(player: Player, *, static_contention: bool) -> dict[str, float | int | None]:
    """Measures over the jobs of a run that ended.

    Bounded slowdown is the completion time over the running time alone (at least 10 s), not below 1. Finish-time
    fairness is the completion time over the time alone in a fair share of the cluster: alone x the jobs in the system
    for each device, at least 1; the jobs are averaged over the job's life, or (`static_contention`) all of the trace.
    The simulator gives a job another size at no cost; `mean_jct_resize_cost_added` charges each job its restart for
    each, and leaves out that others would wait longer too.

    Source: Mahajan et al., "Themis", NSDI 2020; Zheng et al., "Shockwave", NSDI 2023.
    """
    ended = ended_of(player)
    n_gpus = player.run.cluster.n_gpus
    told: dict[str, float | int | None] = {"jobs": len(ended), "gpus": n_gpus, "passes": player.n_passes}
    if not ended:
        return told
    jcts = sorted(one.jct_s for one in ended)
    makespan_s = max(one.end_s for one in ended) - min(one.job.submit_s for one in ended)
    contention = [len(player.run.jobs)] * len(ended) if static_contention else _in_system(ended)
    rhos = [
        one.jct_s / (one.job.alone_s * max(1.0, n / n_gpus)) for one, n in zip(ended, contention, strict=True)
    ]
    return told | {
        "mean_jct": fmean(jcts),
        "median_jct": median(jcts),
        "p99_jct": p99(jcts),
        "mean_wait": fmean(one.start_s - one.job.submit_s for one in ended),
        "makespan": makespan_s,
        "mean_bounded_slowdown": fmean(
            max(1.0, one.jct_s / max(one.job.alone_s, float(FLOOR_S))) for one in ended
        ),
        "utilization": sum(one.held_s for one in ended) / (n_gpus * makespan_s) if makespan_s else None,
        "worst_finish_time_fairness": max(rhos),
        "unfair_pct": 100 * sum(rho > UNFAIR for rho in rhos) / len(rhos),
        "restarts": sum(one.n_starts - 1 for one in ended),
        "resizes": sum(one.n_resizes for one in ended),
        "mean_jct_resize_cost_added": fmean(one.jct_s + one.n_resizes * one.job.restart_s for one in ended),
    }


def p99(values: Sequence[float]) -> float:
    """The value that 99 % of them do not exceed."""
    return sorted(values)[ceil(0.99 * len(values)) - 1]


def _in_system(ended: Sequence[Ended]) -> list[float]:
    """How many jobs were in the system on average during each job's life."""
    changes: dict[float, int] = {}
    for one in ended:
        changes[one.job.submit_s] = changes.get(one.job.submit_s, 0) + 1
        changes[one.end_s] = changes.get(one.end_s, 0) - 1
    times = sorted(changes)
    area, level, areas = 0.0, 0, [0.0]
    for now_s, next_s in pairwise(times):
        level += changes[now_s]
        area += level * (next_s - now_s)
        areas.append(area)

    def area_at(at_s: float) -> float:
        return areas[bisect_right(times, at_s) - 1]

    return [
        (area_at(one.end_s) - area_at(one.job.submit_s)) / one.jct_s if one.jct_s else 1.0 for one in ended
    ]


def together(parts: Sequence[Mapping[str, float | int | None]]) -> dict[str, float | int | None]:
    """Several runs as one: jobs, passes and restarts added up, the worst of what is a worst, the mean of the rest."""
    told: dict[str, float | int | None] = {}
    for key in parts[0]:
        values = [value for part in parts if (value := part.get(key)) is not None]
        if not values:
            told[key] = None
        elif key in ("jobs", "passes", "restarts", "resizes"):
            told[key] = sum(values)
        elif key == "gpus" or key.startswith("worst"):
            told[key] = max(values)
        else:
            told[key] = fmean(values)
    return told

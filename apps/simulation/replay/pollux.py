"""Pollux's workloads: 160 jobs in 8 hours on 16 nodes of 4 T4, with measured profiles, and the authors' results.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from apps.simulation.replay.goodput import Application, read_steps, read_trainings
from apps.simulation.replay.training import (
    EXACT,
    KNOWS,
    BadTrace,
    Cluster,
    NodeKind,
    Replay,
    Run,
    Sizing,
    TrainingJob,
    first,
    p99,
)

LOADS: Final = ("0.5", "1.0", "1.5", "2.0", "realistic")
PLACEMENTS, SCALABILITY = "profile-placements.csv.gz", "profile-scalability.csv.gz"
VALIDATION, REFERENCE = "profile-validation.csv.gz", "reference-jct-summary.csv"
REFERENCE_JOBS: Final = "reference-jct-per-job.csv.gz"
N_NODES, PER_NODE = 16, 4
RESTART_S: Final = 30.0  # whenever a job's placement changes, its first included
MOST_LOCAL: Final = {"yolov3": 8}  # images that fit a T4, where the profile goes further


def file_of(load: str) -> str:
    """Name of a load's file."""
    return f"load-{load}.csv.gz"


@dataclass(frozen=True, slots=True)
class Request:
    """A job as the workload file tells it."""

    workload: str
    name: str
    submit_s: float
    application: str
    n_gpus: int
    batch: int


def read_requests(lines: Iterable[str]) -> dict[str, list[Request]]:
    """Jobs by workload, in the order of the file."""
    workloads: dict[str, list[Request]] = defaultdict(list)
    for line, row in enumerate(csv.DictReader(lines), 2):
        try:
            request = Request(
                row["workload"],
                row["name"],
                float(row["time"]),
                row["application"],
                int(row["num_replicas"]),
                int(row["batch_size"]),
            )
        except (TypeError, ValueError) as error:
            raise BadTrace(f"line {line}: {error}") from None
        workloads[request.workload].append(request)
    return dict(workloads)


def chosen(workloads: Mapping[str, list[Request]], wanted: int | None) -> Mapping[str, list[Request]]:
    """All workloads, or the one with that number."""
    if wanted is None:
        return workloads
    name = f"workload-{wanted}"
    if name not in workloads:
        raise BadTrace(f"there is no {name}")
    return {name: workloads[name]}


def applications(
    validation: Iterable[str], placements: Iterable[str], scalability: Iterable[str]
) -> dict[str, Application]:
    """Every profiled application."""
    steps = read_steps(placements, scalability)
    return {
        name: Application(training, steps.get((name, ""), {}), PER_NODE, MOST_LOCAL.get(name))
        for name, training in read_trainings(validation).items()
    }


def job_of(
    request: Request, applications: Mapping[str, Application], sizing: Sizing | None, *, most: int
) -> TrainingJob:
    """Rigid: as many devices and as large a batch as asked for. Elastic: as many as are of use, up to `most`."""
    application = applications.get(request.application)
    if application is None:
        raise BadTrace(f"{request.name}: there is no profile of {request.application}")
    n_gpus, elastic = request.n_gpus, None
    if sizing is None:
        work_s = application.time_s(n_gpus, request.batch)
    else:
        n_gpus = sizing.preferred or n_gpus
        elastic = application.elastic(n_gpus, most, sizing.least_efficiency)
        work_s = application.reach_s(n_gpus)
    if work_s is None:
        raise BadTrace(f"{request.name}: has no profile on {n_gpus} devices, batch {request.batch}")
    return TrainingJob(
        request.name,
        request.submit_s,
        n_gpus,
        round(work_s + RESTART_S, 3),
        restart_s=RESTART_S,
        elastic=elastic,
    )


def read_reference(lines: Iterable[str], load: str, workloads: Iterable[str]) -> dict[str, dict[str, float]]:
    """The authors' mean completion times in s: by policy, then by workload, with their mean."""
    wanted = set(workloads) | {"mean-of-8"}
    told: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines):
        if row["load"] == load and row["workload"] in wanted:
            told.setdefault(row["policy"], {})[row["workload"]] = float(row["avg_jct_s"])
    return told


def add_reference_p99(
    reference: dict[str, dict[str, float]], lines: Iterable[str], load: str, workloads: Iterable[str]
) -> None:
    """Add to each policy the 99th percentile of its completion times in s: the mean over these workloads."""
    wanted = set(workloads)
    jcts: dict[tuple[str, str], list[float]] = {}
    for row in csv.DictReader(lines):
        if row["load"] == load and row["workload"] in wanted:
            jcts.setdefault((row["policy"], row["workload"]), []).append(float(row["jct_s"]))
    p99s: dict[str, list[float]] = {}
    for (policy, _), values in jcts.items():
        p99s.setdefault(policy, []).append(p99(values))
    for policy, values in p99s.items():
        if policy in reference:
            reference[policy]["p99"] = fmean(values)


def replay_of(
    requests: Mapping[str, list[Request]],
    applications: Mapping[str, Application],
    *,
    load: str,
    sizing: Sizing | None = None,
    limit: int | None,
    reference: dict[str, Any] | None = None,
) -> Replay:
    """Each workload by itself on the published cluster."""
    cluster = Cluster((NodeKind("t4", N_NODES, PER_NODE, "T4"),), speed={"T4": 1.0})
    runs = tuple(
        Run(
            name,
            cluster,
            first((job_of(row, applications, sizing, most=cluster.n_gpus) for row in rows), limit),
        )
        for name, rows in requests.items()
    )
    how = (
        (
            f"Rigid: the number of GPUs and the batch size that the user asked for, as Tiresias runs them; the first "
            f"start costs {RESTART_S:g} s, as published, and a job keeps its placement to the end.",
        )
        if sizing is None
        else (
            f"{sizing.told}; the best batch size for each number and epoch is known beforehand (Pollux learns it as "
            "the job runs).",
            "Between measured numbers of devices the rate is in proportion; devices that add nothing count as idle.",
            f"The first start costs {RESTART_S:g} s of work at the preferred size. Another size costs nothing here, "
            f"{RESTART_S:g} s in the published simulator: mean_jct_resize_cost_added charges it.",
        )
    )
    return Replay(
        told={"trace": "pollux", "load": load, "elastic": sizing is not None},
        runs=runs,
        reference=reference if limit is None else None,
        protocol=(
            f"{cluster.n_gpus} GPUs in nodes of {PER_NODE}, as published. {EXACT} Published: once every 60 s.",
            *how,
            "Times of a step are those measured with the devices packed on as few nodes as possible, wherever the job "
            "lies; the published simulator slows a job that is spread out.",
            KNOWS + " Tiresias knows none, Pollux and Optimus estimate it.",
            *(() if limit is None else ("No reference: not all jobs were played.",)),
        ),
    )

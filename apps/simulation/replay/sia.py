"""Sia's workloads: the jobs and models of Pollux on three types of GPU.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Final

from apps.simulation.replay.goodput import Application, read_steps, read_trainings
from apps.simulation.replay.pollux import Request
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
)

WORKLOADS: Final = ("philly", "saturn", "newtrace")
PLACEMENTS, SCALABILITY = "profile-placements.csv.gz", "profile-scalability.csv.gz"
# The published mixed cluster: 24 T4, 24 RTX 2080 Ti and 16 A100. The first type is the reference: its speed is 1.
NODES: Final = (
    NodeKind("aws", 6, 4, "aws"),
    NodeKind("rtx", 3, 8, "rtx"),
    NodeKind("dgx-ext", 2, 8, "dgx-ext"),
)
# Checkpoint and restore in s, by application, as the published simulator has them.
RESTART_S: Final = {
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "bert": 120.0,
    "yolov3": 80.0,
    "imagenet": 250.0,
    "ncf": 15.0,
}

ByType = Mapping[str, Application]  # one application on each type of GPU


def file_of(workloads: str) -> str:
    """Name of a workload family's file."""
    return f"workloads-{workloads}.csv.gz"


def applications(
    validation: Iterable[str], placements: Iterable[str], scalability: Iterable[str]
) -> dict[str, ByType]:
    """Every application on every type of the cluster that it was profiled on."""
    steps = read_steps(placements, scalability)
    trainings = read_trainings(validation)
    return {
        name: {
            kind.accelerator: Application(training, steps[name, kind.accelerator], kind.n_gpus)
            for kind in NODES
            if (name, kind.accelerator) in steps
        }
        for name, training in trainings.items()
    }


def _time_s(application: Application, request: Request, sizing: Sizing | None) -> float | None:
    if sizing is None:
        return application.time_s(request.n_gpus, request.batch)
    return application.reach_s(sizing.preferred or request.n_gpus)


def speeds(
    requests: Iterable[Request], applications: Mapping[str, ByType], sizing: Sizing | None
) -> Mapping[str, float]:
    """Speed of each type against the reference: geometric mean over the jobs, each at the size it is to have."""
    reference = NODES[0].accelerator
    logs: dict[str, list[float]] = {kind.accelerator: [] for kind in NODES}
    for request in requests:
        by_type = applications.get(request.application, {})
        base_s = _time_s(by_type[reference], request, sizing) if reference in by_type else None
        for kind, application in by_type.items():
            time_s = _time_s(application, request, sizing)
            if time_s is not None and base_s is not None:
                logs[kind].append(log(base_s / time_s))
    return {kind: round(exp(fmean(values)), 4) if values else 1.0 for kind, values in logs.items()}


def job_of(request: Request, applications: Mapping[str, ByType], sizing: Sizing | None) -> TrainingJob:
    """Its time is that on the reference type; it accepts every type on which it was profiled at its size."""
    by_type = applications.get(request.application, {})
    times = {
        kind: time_s
        for kind, application in by_type.items()
        if (time_s := _time_s(application, request, sizing)) is not None
    }
    reference = NODES[0].accelerator
    if reference not in times:
        raise BadTrace(
            f"{request.name}: has no profile of {request.application} on {request.n_gpus} {reference}, "
            f"batch {request.batch}"
        )
    restart_s = RESTART_S.get(request.application, 0.0)
    n_gpus, elastic = request.n_gpus, None
    if sizing is not None:
        n_gpus = sizing.preferred or n_gpus
        most = max(kind.n_nodes * kind.n_gpus for kind in NODES)
        elastic = by_type[reference].elastic(n_gpus, most, sizing.least_efficiency)
    return TrainingJob(
        request.name,
        request.submit_s,
        n_gpus,
        round(times[reference] + restart_s, 3),
        accelerators=tuple(sorted(times, key=times.__getitem__)),
        restart_s=restart_s,
        elastic=elastic,
    )


def replay_of(
    requests: Mapping[str, list[Request]],
    applications: Mapping[str, ByType],
    *,
    workloads: str,
    sizing: Sizing | None = None,
    limit: int | None,
) -> Replay:
    """Each workload by itself on the published mixed cluster."""
    # No job mixes types, so none is larger than the smallest type: so the published rigid runs cut them.
    largest = min(kind.n_nodes * kind.n_gpus for kind in NODES)
    runs = []
    cut = 0
    told_speeds = ""
    for name, rows in requests.items():
        fitting = [replace(row, n_gpus=min(row.n_gpus, largest)) for row in rows]
        cut += sum(row.n_gpus > largest for row in rows)
        speed = speeds(fitting, applications, sizing)
        told_speeds = told_speeds or ", ".join(f"{kind} {factor:g}" for kind, factor in speed.items())
        jobs = first((job_of(row, applications, sizing) for row in fitting), limit)
        runs.append(Run(name, Cluster(NODES, speed), jobs))
    told_nodes = ", ".join(f"{kind.n_nodes} x {kind.n_gpus} {kind.accelerator}" for kind in NODES)
    return Replay(
        told={"trace": "sia", "workloads": workloads, "elastic": sizing is not None},
        runs=tuple(runs),
        reference=None,
        protocol=(
            f"Assumed: {told_nodes}, the published mixed cluster; the trace does not name it. {EXACT}",
            "One speed for each type, the geometric mean over the jobs of a workload (in the first: "
            f"{told_speeds}); published: a profile for each job and type.",
            f"{cut} jobs that ask for more than {largest} GPUs ask for {largest}.",
            "Rigid: the number of GPUs and the batch size that the user asked for; no job is moved."
            if sizing is None
            else f"{sizing.told}, by the table of the reference type on every type. Another size costs nothing here, a "
            "restart in the published simulator: mean_jct_resize_cost_added charges it.",
            "Efficiency by batch size is that of Pollux's validation profiles: the folder has none of its own.",
            "The published simulator slows every application by a factor fitted to its real cluster; not done here.",
            KNOWS,
            "No reference: the folder has no published results.",
        ),
    )

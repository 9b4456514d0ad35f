"""Gavel's traces: jobs of known models on V100, P100 and K80, with the measured throughput of each on each.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
"""

from collections.abc import Iterable, Mapping
from math import exp, log
from statistics import fmean
from typing import Final

from apps.simulation.replay.gpu_tables import Row, Throughputs, read_rows
from apps.simulation.replay.training import (
    EXACT,
    KNOWS,
    BadTrace,
    Cluster,
    NodeKind,
    Replay,
    Run,
    TrainingJob,
    first,
)

FILE: Final = "msr-seed0-per-vc.tsv.gz"
THROUGHPUTS: Final = "simulation_throughputs.json.gz"
TYPES: Final = ("v100", "p100", "k80")  # the first is the reference: its speed is 1
PER_NODE: Final = 8
N_GPUS: Final = (512, 512, 512)


def job_of(row: Row, name: str, table: Throughputs) -> TrainingJob:
    """Alone on the reference type: steps over throughput. It accepts the types it runs on, the fastest first."""
    rates = {kind: rate for kind in TYPES if (rate := table.rate(kind, row.kind, row.n_gpus)) is not None}
    if TYPES[0] not in rates:
        raise BadTrace(f"{name}: {row.kind} has no throughput on {TYPES[0]}")
    return TrainingJob(
        name,
        row.submit_s,
        row.n_gpus,
        round(row.n_steps / rates[TYPES[0]], 3),
        team=row.team,
        accelerators=tuple(sorted(rates, key=lambda kind: -rates[kind])),
    )


def speeds(rows: Iterable[Row], table: Throughputs) -> Mapping[str, float]:
    """Speed of each type against the reference: geometric mean over the jobs that run on both."""
    logs: dict[str, list[float]] = {kind: [0.0] if kind == TYPES[0] else [] for kind in TYPES}
    for row in rows:
        base = table.rate(TYPES[0], row.kind, row.n_gpus)
        for kind in TYPES[1:]:
            rate = table.rate(kind, row.kind, row.n_gpus)
            if rate is not None and base is not None:
                logs[kind].append(log(rate / base))
    return {kind: round(exp(fmean(values)), 4) for kind, values in logs.items() if values}


def replay_of(
    lines: Iterable[str], throughputs: str, *, n_gpus: tuple[int, ...], vc: str | None, limit: int | None
) -> Replay:
    """The trace on so many GPUs of each type."""
    table = Throughputs.read(throughputs)
    rows = [row for row in read_rows(lines) if vc is None or row.team == vc]
    if not rows:
        raise BadTrace("there is no job" if vc is None else f"there is no job of the virtual cluster {vc}")
    speed = speeds(rows, table)
    cluster = Cluster(
        tuple(
            NodeKind(kind, -(-n // PER_NODE), min(n, PER_NODE), kind)
            for kind, n in zip(TYPES, n_gpus, strict=True)
            if n and kind in speed
        ),
        speed={kind: speed[kind] for kind, n in zip(TYPES, n_gpus, strict=True) if n and kind in speed},
    )
    usable = set(cluster.speed)
    jobs = []
    for number, row in enumerate(rows, 1):
        job = job_of(row, f"job-{number:05d}", table)
        kept = tuple(kind for kind in job.accelerators if kind in usable)
        jobs.append(TrainingJob(job.name, job.submit_s, job.n_gpus, job.alone_s, job.team, kept))
    held = ", ".join(f"{kind.n_nodes * kind.n_gpus} {kind.accelerator}" for kind in cluster.nodes)
    told_speeds = ", ".join(f"{kind} {factor:g}" for kind, factor in cluster.speed.items())
    return Replay(
        told={"trace": "gavel", "virtual_cluster": vc or "all"},
        runs=(Run("gavel", cluster, first(jobs, limit)),),
        reference=None,
        protocol=(
            f"Assumed: {held} in servers of {PER_NODE}; the trace does not name the cluster.",
            f"One speed for each type, the geometric mean over the jobs ({told_speeds}); published: one for each job.",
            "A job alone takes steps / throughput on V100; of a number of GPUs that was not measured, that of the next "
            "smaller one counts.",
            "No round-based sharing and no migration: a job runs to its end where it started.",
            "Virtual clusters are teams with equal weight and no quota; all begin at once.",
            KNOWS,
            EXACT,
            "No reference: the folder has no published results for this trace.",
        ),
    )

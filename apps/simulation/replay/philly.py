"""Microsoft's Philly: 74,167 deep-learning jobs of fifteen virtual clusters, September to November 2017.

Source: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019.
"""

import csv
from collections.abc import Iterable
from datetime import datetime
from math import inf
from typing import Final

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

FILE: Final = "philly_jobs_until_2017-11-30.csv.gz"
N_GPUS: Final = 2490
LARGE, SMALL = 8, 2
N_LARGE: Final = 231  # of 552 servers with 2,490 GPUs; the other 321 are small


def cluster_of(n_gpus: int) -> Cluster:
    """Servers of 8 and of 2 in the proportion of the published cluster, so many GPUs together."""
    n_large = n_gpus * N_LARGE // N_GPUS
    n_small = -(-(n_gpus - n_large * LARGE) // SMALL)
    return Cluster((NodeKind("large", n_large, LARGE), NodeKind("small", n_small, SMALL)), speed={"GPU": 1.0})


def read_jobs(lines: Iterable[str]) -> list[TrainingJob]:
    """Jobs in the order of the file; times are seconds since the earliest submission."""
    jobs = []
    for line, row in enumerate(csv.DictReader(lines), 2):
        try:
            # Local time of the cluster: one hour of November is told twice, and nothing tells the two apart.
            submit_s = (datetime.fromisoformat(row["timestamp"]) - datetime(2017, 1, 1)).total_seconds()  # noqa: DTZ001
            alone_s, n_gpus = float(row["duration"]), int(row["num_gpus"])
        except (TypeError, ValueError) as error:
            raise BadTrace(f"line {line}: {error}") from None
        if not 0 < alone_s < inf or n_gpus < 1:
            raise BadTrace(f"line {line}: duration and num_gpus must be above 0")
        jobs.append(TrainingJob(f"job-{line - 1:05d}", submit_s, n_gpus, alone_s, team=row["cluster"]))
    return jobs


def replay_of(lines: Iterable[str], *, n_gpus: int, limit: int | None) -> Replay:
    """The trace on a cluster of so many GPUs."""
    cluster = cluster_of(n_gpus)
    jobs = first(read_jobs(lines), limit)
    return Replay(
        told={"trace": "philly"},
        runs=(Run("philly", cluster, jobs),),
        reference=None,
        protocol=(
            f"Assumed: {cluster.n_gpus} GPUs of one kind in "
            + " and ".join(
                f"{kind.n_nodes} servers of {kind.n_gpus}" for kind in cluster.nodes if kind.n_nodes
            )
            + "; the trace does not name the cluster.",
            "Virtual clusters are teams with equal weight and no quota: the trace does not tell their shares.",
            "A job that failed and was tried again has one duration in the trace; attempts are not replayed.",
            "A job may lie on any servers, as few as there is room for; its duration stays what it was in 2017.",
            KNOWS,
            EXACT,
            "No reference: the trace has no times of start.",
        ),
    )

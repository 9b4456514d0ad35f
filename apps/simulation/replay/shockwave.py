"""Shockwave's traces: jobs that change their batch size as they go, on 32 to 256 GPUs of one kind.

Source: Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning",
NSDI 2023; how the batch size changes is told by the authors' artifact (uw-mad-dash/shockwave, MIT licence).
"""

import csv
import re
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, Final

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

GPUS_OF: Final = {120: 32, 220: 64, 460: 128, 900: 256}  # by the number of jobs
PER_NODE: Final = 4
WORKER: Final = "v100"
THROUGHPUTS: Final = "tacc_throughputs.json.gz"
REFERENCE: Final = "reference-32gpus.csv"
REFERENCE_GPUS: Final = 32
_NUMBERS: Final = ("makespan_s", "avg_jct_s", "utilization", "worst_finish_time_fairness", "unfair_pct")
_KIND: Final = re.compile(r"(.+) \(batch size (\d+)\)")

# Examples in an epoch, and the largest batch size, by model.
EXAMPLES: Final = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
}
LARGEST: Final = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
# Mode `gns`: epochs from which on the batch size is doubled, by model, then first batch size and GPUs.
DOUBLINGS: Final[dict[str, dict[tuple[int, int], tuple[int, ...]]]] = {
    "ResNet-18": {
        (16, 1): (31, 41, 51, 71),
        (32, 1): (21, 31, 51),
        (64, 1): (11, 31),
        (128, 1): (11,),
        (16, 2): (21, 31, 91, 111),
        (32, 2): (11, 21, 41),
        (64, 2): (21, 41),
        (128, 2): (41,),
        (16, 4): (11, 21, 81, 91),
        (32, 4): (21, 31, 61),
        (64, 4): (11, 61),
        (128, 4): (11,),
    },
    "ResNet-50": {
        (64, 1): (101,),
        (32, 2): (101, 111),
        (64, 2): (81,),
        (32, 4): (131, 221),
        (64, 4): (191,),
    },
    "LM": {
        (5, 1): (31, 41, 61, 71),
        (10, 1): (11, 21, 41),
        (20, 1): (11, 41),
        (40, 1): (11,),
        (5, 2): (31, 51, 61, 71),
        (10, 2): (11, 31, 41),
        (20, 2): (31, 41),
        (40, 2): (11,),
        (5, 4): (11, 31, 71, 91),
        (10, 4): (11, 31, 61),
        (20, 4): (11, 61),
        (40, 4): (61,),
    },
    "Recommendation": {
        (512, 1): (21, 41, 71, 91),
        (1024, 1): (21, 51, 91),
        (2048, 1): (21, 41),
        (4096, 1): (41,),
    },
}
# Mode `accordion`: epochs [from, to) in which the batch size must stay small; in all others, the first 30 % of the job
# aside, it is the largest. A model that is not here keeps its batch size.
CRITICAL: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "ResNet-18": ((0, 10), (150, 160), (250, 260)),
    "ResNet-50": tuple((start, start + 10) for start in range(0, 600, 30)),
    "LM": ((0, 10),),
    "Recommendation": ((0, 10), (60, 70), (80, 90)),
}
# Where the first of them is longer, by model and first batch size.
FIRST_CRITICAL: Final = {
    ("ResNet-18", 256): 20,
    ("Recommendation", 512): 30,
    ("Recommendation", 1024): 30,
    ("Recommendation", 2048): 40,
}
ALWAYS_SMALL: Final = 0.3


def batch_in(row: Row, model: str, batch: int, epoch: int, n_epochs: int) -> int:
    """Batch size in an epoch, counted from 0."""
    if row.mode == "gns":
        n_doublings = sum(epoch >= at for at in DOUBLINGS.get(model, {}).get((batch, row.n_gpus), ()))
        return min(batch << n_doublings, max(batch, LARGEST[model]))
    if row.mode != "accordion" or model not in CRITICAL or epoch <= ALWAYS_SMALL * n_epochs:
        return batch
    is_critical = epoch < FIRST_CRITICAL.get((model, batch), 0) or any(
        start <= epoch < end for start, end in CRITICAL[model]
    )
    return batch if is_critical else LARGEST[model]


def adaptive_s(row: Row, table: Throughputs) -> float:
    """Running time alone with the batch size that changes as published.

    Raises:
        BadTrace: The model, or its throughput at some batch size, is not known.
    """
    match = _KIND.fullmatch(row.kind)
    if match is None or match[1] not in EXAMPLES:
        raise BadTrace(f"{row.kind}: there is no schedule of batch sizes for it")
    model, batch = match[1], int(match[2])
    n_epochs = ceil(row.n_steps / ceil(EXAMPLES[model] / batch))
    total_s = 0.0
    for epoch in range(n_epochs):
        size = batch_in(row, model, batch, epoch, n_epochs)
        rate = table.rate(WORKER, f"{model} (batch size {size})", row.n_gpus)
        if rate is None:
            raise BadTrace(f"{model} (batch size {size}): has no throughput on {WORKER}")
        total_s += EXAMPLES[model] / size / rate
    return total_s


def read_reference(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The authors' results, row by row."""
    return [
        {"setting": row["setting"], "policy": row["policy"]} | {key: float(row[key]) for key in _NUMBERS}
        for row in csv.DictReader(lines)
    ]


def replay_of(
    lines: Iterable[str],
    throughputs: str | None,
    *,
    n_gpus: int | None,
    limit: int | None,
    reference: Sequence[dict[str, Any]] = (),
) -> Replay:
    """The trace on so many GPUs; by default as many as were published for its number of jobs.

    Without `throughputs` no job changes its batch size, and each takes the duration that the trace tells.
    """
    rows = read_rows(lines)
    table = None if throughputs is None else Throughputs.read(throughputs)
    jobs = []
    for number, row in enumerate(rows, 1):
        alone_s = row.duration_s if table is None else adaptive_s(row, table)
        if alone_s is None or alone_s <= 0:
            raise BadTrace(f"line {number}: has no duration")
        jobs.append(TrainingJob(f"job-{number:03d}", row.submit_s, row.n_gpus, round(alone_s, 3)))
    n_gpus = n_gpus or GPUS_OF.get(len(rows))
    if n_gpus is None:
        raise BadTrace(f"there is no published cluster for {len(rows)} jobs: give --gpus")
    cluster = Cluster((NodeKind("node", -(-n_gpus // PER_NODE), PER_NODE),), speed={"GPU": 1.0})
    n_dynamic = sum(row.mode != "static" for row in rows)
    is_published = len(rows) == 120 and n_gpus == REFERENCE_GPUS and (limit is None or limit >= len(rows))
    return Replay(
        told={"trace": "shockwave", "fixed_batch": table is None},
        runs=(Run("shockwave", cluster, first(jobs, limit)),),
        reference=list(reference) if is_published and reference else None,
        static_contention=True,
        protocol=(
            f"{cluster.n_gpus} GPUs in servers of {PER_NODE}; published: 120 s rounds in which jobs share the GPUs in "
            "turns. Here a job runs to its end once it has started, and pays no overhead for being moved.",
            f"{n_dynamic} of {len(rows)} jobs change their batch size as they go"
            + (
                ", as published; the change itself costs nothing."
                if table is not None
                else "; here each takes the duration that the trace tells for its first batch size."
            ),
            "Finish-time fairness: completion time over duration alone x jobs of the trace / GPUs, as published.",
            KNOWS + " Of the published policies Shockwave predicts it, the others count on the present rate.",
            EXACT,
            *(() if is_published else ("No reference for this number of jobs and GPUs.",)),
        ),
    )

"""Work to fill the hall with: jobs of up to 2,000 shapes. The same number is always the same job."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

from apps.jobs import intake
from apps.jobs import services as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Desired, Job
from apps.jobs.spec import JobRequest
from apps.scheduling.bench import hall

N_SHAPES: Final = 2000
_AT_ONCE: Final = 1000
# (replicas, devices of each), and how often of a hundred.
_SIZES: Final = (
    ((1, 0.25), 4), ((1, 0.5), 6), ((1, 1), 36), ((1, 2), 15), ((1, 4), 12), ((1, 8), 13),
    ((2, 8), 6), ((4, 8), 5), ((8, 8), 3),
)  # fmt: skip
_KINDS: Final = (["H200", "H100"], ["H100", "A100"], ["H200"], ["H100"], ["A100"])


@cache
def shapes() -> tuple[JobRequest, ...]:
    """One job of each shape."""
    found: dict[str, JobRequest] = {}
    number = 0
    while len(found) < N_SHAPES:
        request = _example(number)
        found.setdefault(intake.shape_of(request), request)
        number += 1
    return tuple(found.values())


def _example(number: int) -> JobRequest:
    chance = random.Random(number)  # noqa: S311 - makes up work, guards nothing
    replicas, devices = chance.choices([s for s, _ in _SIZES], [n for _, n in _SIZES])[0]
    fields: dict[str, Any] = {
        "name": f"shape-{number}",
        "team": chance.choice(hall.LEAF_TEAMS),
        "replicas": replicas,
        "devices": devices,
        "cpus": float(chance.choice((4, 8, 12)) * max(1, devices)),
        "memory_gib": float(chance.choice((64, 96, 128, 192)) * max(1, devices)),
        "accelerators": chance.choice(_KINDS),
    }
    if replicas > 1:
        fields["topology"] = {chance.choice(("required", "preferred")): "leaf"}
    return JobRequest.model_validate(fields)


def request_of(number: int, **fields: Any) -> JobRequest:
    """The number-th job."""
    chance = random.Random(1_000_003 * number)  # noqa: S311 - makes up work, guards nothing
    limit_s = 60.0 * chance.randint(30, 24 * 60)
    return chance.choice(shapes()).model_copy(
        update={
            "name": f"job-{number}",
            "priority": chance.choice((0, 0, 0, 10, 20)),
            "time_limit": limit_s,
            "runtime": 0.7 * limit_s,
            **fields,
        }
    )


def submit(numbers: Sequence[int], at: datetime, tell: Any = None) -> None:
    """Put these jobs in the queue, the way the API does."""
    for batch in _batched(numbers):
        submit_requests([request_of(number) for number in batch], at)
        if tell is not None:
            tell(len(batch))


def submit_requests(requests: Sequence[JobRequest], at: datetime) -> None:
    """Put these in the queue."""
    for some in _batched(requests):
        jobs.submit_jobs(requests=some, actor=hall.submitter(), at=at)


T = TypeVar("T")


def _batched(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


@dataclass(frozen=True, slots=True)
class Open:
    """An attempt that is under way."""

    allocation_id: int
    fence: int


def some_open(n: int, *, state: str = "") -> list[Open]:
    """The n oldest attempts that have not ended."""
    rows = Allocation.objects.filter(ended_at=None)
    if state:
        rows = rows.filter(observed_state=state)
    return [Open(*row) for row in rows.order_by("id").values_list("id", "fence")[:n]]


def leaving() -> list[Open]:
    """The attempts that were asked to stop and have not ended."""
    rows = Allocation.objects.filter(ended_at=None, desired_state=Desired.STOP)
    return [Open(*row) for row in rows.order_by("id").values_list("id", "fence")]


def leave(attempts: Sequence[Open], at: datetime) -> None:
    """Report that they ended because they were asked to."""
    for one in attempts:
        jobs.allocation_ended(allocation_id=one.allocation_id, fence=one.fence, at=at, outcome="vacated")


def start(attempts: Sequence[Open], at: datetime) -> None:
    """Report that they run."""
    for one in attempts:
        jobs.allocation_started(allocation_id=one.allocation_id, fence=one.fence, at=at)


def end(attempts: Sequence[Open], at: datetime) -> None:
    """Report that they ended well."""
    for one in attempts:
        jobs.allocation_ended(allocation_id=one.allocation_id, fence=one.fence, at=at, outcome="succeeded")


def fit_queue(n: int, first_number: int, at: datetime) -> None:
    """Make exactly n jobs wait, of a mixture like the whole: cancel what is too much, submit what is missing."""
    waiting = list(Job.objects.filter(state=State.QUEUED).order_by("id").values_list("id", flat=True))
    actor = hall.submitter()
    for job_id in waiting[n:]:
        jobs.stop_job(job_id=job_id, actor=actor, at=at)
    submit(range(first_number, first_number + n - len(waiting)), at)

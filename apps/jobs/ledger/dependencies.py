"""Jobs that wait for others: what becomes of them when those end without success."""

import heapq
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.db import transaction

from apps.events.services import EventRow, record_many
from apps.jobs.ledger.moves import end_job, job_event, locked_job
from apps.jobs.lifecycle import ENDED, State, Trigger
from apps.jobs.models import (
    Dependency,
    Job,
)


@transaction.atomic
def cancel_unsatisfiable(*, job_id: int, at: datetime) -> Job:
    """End a waiting job whose dependency can no longer succeed, and those that wait for it."""
    job = locked_job(job_id)
    if job.state != State.QUEUED:
        return job
    failed = (
        Job.objects.filter(dependants__job=job, state__in=ENDED - {State.SUCCEEDED}).order_by("id").first()
    )
    if failed is not None:
        cancel_never_satisfied([failed], at=at)
        job.refresh_from_db()
    return job


def cancel_never_satisfied(ended: Sequence[Job], *, at: datetime) -> None:
    """Cancel everything that waits, near or far, for jobs that ended without success.

    A job has a higher id than what it waits for, so going through them by id takes the locks in order.
    """
    frontier = {job.pk: job.state for job in ended if job.state != State.SUCCEEDED}
    heap: list[tuple[int, int]] = []

    def push(after_id: int) -> None:
        for job_id in Dependency.objects.filter(after=after_id, job__state=State.QUEUED).values_list(
            "job_id", flat=True
        ):
            heapq.heappush(heap, (job_id, after_id))

    for after_id in frontier:
        push(after_id)
    events: list[EventRow] = []
    while heap:
        job_id, after_id = heapq.heappop(heap)
        job = locked_job(job_id)
        if job.state != State.QUEUED:
            continue
        message = f"It was to run after job {after_id}, which {_SAID[State(frontier[after_id])]}."
        end_job(job, Trigger.CANCELLED, at=at, code="dependency_never_satisfied", message=message)
        events.append(job_event("job.cancelled", job, at=at, reason=message))
        frontier[job_id] = job.state
        push(job_id)
    if events:
        record_many(events)


_SAID: Final = {State.FAILED: "failed", State.CANCELLED: "was cancelled", State.TIMED_OUT: "timed out"}

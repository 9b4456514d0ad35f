"""What every change of a job is made of: the locks it takes, how it ends, the events that tell."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from apps.events.services import EventRow
from apps.jobs.errors import NoSuchJob, Stale
from apps.jobs.lifecycle import State, Trigger, follow
from apps.jobs.models import (
    Allocation,
    Job,
)

ATTEMPT_FIELDS: Final = (
    "state", "state_at", "queued_at", "retry_at", "ended_at", "exit_code", "end_code", "end_message",
    "ran_s", "lost_s", "worked_s", "n_preemptions", "n_moves", "n_resizes", "n_start_failures", "n_node_losses",
)  # fmt: skip


SAVING_MARGIN_S: Final = 10.0  # beyond what a checkpoint is declared to take


def time_to_save_s(job: Job, allocation: Allocation) -> float:
    """Seconds that an attempt is given to write its checkpoint before it is killed."""
    checkpoint = job.spec.get("checkpoint")
    cost_s = float(checkpoint.get("cost", 0.0)) if checkpoint else 0.0
    return max(allocation.grace_s, cost_s + SAVING_MARGIN_S if checkpoint else 0.0)


def locked_job(job_id: int) -> Job:
    try:
        return (
            Job.objects.select_for_update(of=("self",), no_key=True)
            .select_related("team", "held_by", "user")
            .get(pk=job_id)
        )
    except Job.DoesNotExist:
        raise NoSuchJob(job_id=job_id) from None


def locked_allocation(allocation_id: int, fence: int | None) -> tuple[Job, Allocation]:
    job_id = Allocation.objects.filter(pk=allocation_id).values_list("job_id", flat=True).first()
    if job_id is None:
        raise Stale("There is no such allocation.", job_id=0)
    # Without the people around it and what it runs: execution reports thousands of these.
    job = Job.objects.select_for_update(no_key=True).defer("private").get(pk=job_id)
    allocation = Allocation.objects.select_for_update(no_key=True).get(pk=allocation_id)
    if fence is not None and allocation.fence != fence:
        raise Stale(f"The allocation's fence is {allocation.fence}, not {fence}.", job_id=job_id)
    return job, allocation


def save_job(job: Job, *fields: str) -> None:
    job.version += 1
    job.save(update_fields=[*fields, "version"])


def end_job(job: Job, trigger: Trigger, *, at: datetime, code: str, message: str) -> None:
    job.state = follow(State(job.state), trigger)
    job.state_at = job.ended_at = at
    job.end_code, job.end_message = code, one_line(message)
    job.retry_at = None
    save_job(job, *ATTEMPT_FIELDS, "desired_stop_at", "stop_reason")


def one_line(text: str) -> str:
    return text.replace("\x00", "")[:1000]


def job_event(kind: str, job: Job, **more: Any) -> EventRow:
    return EventRow(
        kind=kind, subject_kind="job", subject_id=job.pk, subject_name=job.name, team_id=job.team_id, **more
    )


def allocation_event(
    kind: str, allocation: Allocation, job: Job, *, data: Mapping[str, Any] | None = None, **more: Any
) -> EventRow:
    return EventRow(
        kind=kind,
        subject_kind="allocation",
        subject_id=allocation.pk,
        subject_name=job.name,
        team_id=job.team_id,
        data={"job_id": job.pk, "cluster_id": allocation.cluster_id, **(data or {})},
        **more,
    )

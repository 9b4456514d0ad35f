"""What people ask of a job that is there: stop, hold, release, change."""

from datetime import datetime
from typing import Any

from django.db import transaction

from apps.events.services import record_many
from apps.jobs import intake, policies
from apps.jobs.errors import Fault, NotNow, Refused
from apps.jobs.ledger.dependencies import cancel_never_satisfied
from apps.jobs.ledger.moves import allocation_event, end_job, job_event, locked_job, save_job
from apps.jobs.ledger.requests import require_possible
from apps.jobs.ledger.stopping import ask_to_stop
from apps.jobs.lifecycle import ENDED, HOLDING, State, Trigger
from apps.jobs.models import (
    Allocation,
    Job,
    StopCause,
)
from apps.jobs.spec import ReplicaRange
from apps.teams.models import User


@transaction.atomic
def stop_job(*, job_id: int, actor: User, at: datetime, reason: str = "") -> Job:
    """Ask a job to end. One that waits is cancelled at once; asking twice changes nothing the second time."""
    job = locked_job(job_id)
    policies.require_may_change(actor, job)
    if job.state in ENDED or job.desired_stop_at is not None:
        return job
    job.desired_stop_at, job.stop_reason = at, reason[:500]
    if State(job.state) in HOLDING:
        allocation = Allocation.objects.select_for_update(no_key=True).get(job=job, ended_at=None)
        ask_to_stop(allocation, StopCause.USER, at)
        save_job(job, "desired_stop_at", "stop_reason")
        record_many(
            [
                job_event("job.stop_requested", job, at=at, actor=actor, is_audit=True, reason=reason),
                allocation_event("allocation.stop_requested", allocation, job, at=at, actor=actor),
            ]
        )
        return job
    end_job(
        job, Trigger.CANCELLED, at=at, code="stopped", message=reason or f"Stopped by {actor.get_username()}."
    )
    record_many([job_event("job.cancelled", job, at=at, actor=actor, is_audit=True, reason=reason)])
    cancel_never_satisfied([job], at=at)
    return job


@transaction.atomic
def hold_job(*, job_id: int, actor: User, at: datetime, reason: str = "") -> Job:
    """Keep a job that waits from starting until it is released."""
    job = locked_job(job_id)
    policies.require_may_change(actor, job)
    if job.is_held:
        return job
    if job.state != State.QUEUED:
        raise NotNow("Only a job that waits can be held.", job_id=job.pk, state=job.state)
    job.is_held, job.held_by, job.held_reason = True, actor, reason[:500]
    save_job(job, "is_held", "held_by", "held_reason")
    record_many([job_event("job.held", job, at=at, actor=actor, is_audit=True, reason=reason)])
    return job


@transaction.atomic
def release_job(*, job_id: int, actor: User, at: datetime) -> Job:
    """Let a held job go on waiting for its turn."""
    job = locked_job(job_id)
    policies.require_may_release(actor, job)
    if not job.is_held:
        return job
    if job.state != State.QUEUED:
        raise NotNow("Only a job that waits can be released.", job_id=job.pk, state=job.state)
    job.is_held, job.held_by, job.held_reason = False, None, ""
    save_job(job, "is_held", "held_by", "held_reason")
    record_many([job_event("job.released", job, at=at, actor=actor, is_audit=True)])
    return job


@transaction.atomic
def update_job(
    *,
    job_id: int,
    actor: User,
    at: datetime,
    priority: int | None = None,
    time_limit_s: float | None = None,
    replicas: int | ReplicaRange | None = None,
) -> Job:
    """Change what may still be changed: the priority, the limit, and while it waits the size of a flat job."""
    job = locked_job(job_id)
    policies.require_may_change(actor, job)
    if job.state in ENDED:
        raise NotNow("The job has ended.", job_id=job.pk, state=job.state)
    before, after = _Change(), _Change()
    if priority is not None and priority != job.priority:
        policies.require_within_ceiling(actor, job.team, priority)
        before["priority"], after["priority"] = job.priority, priority
        job.priority = job.spec["priority"] = priority
    if time_limit_s is not None and time_limit_s != job.time_limit_s:
        is_longer = job.time_limit_s is not None and time_limit_s > job.time_limit_s
        if is_longer and job.state != State.QUEUED:
            policies.require_may_extend(actor, job)
        before["time_limit"], after["time_limit"] = job.time_limit_s, time_limit_s
        job.time_limit_s = job.spec["time_limit"] = time_limit_s
    if replicas is not None:
        _resize(job, replicas, before, after)
    if not after:
        return job
    save_job(job, "priority", "time_limit_s", "spec", "shape", "n_devices")
    record_many(
        [
            job_event(
                "job.updated", job, at=at, actor=actor, is_audit=True, before=dict(before), after=dict(after)
            )
        ]
    )
    return job


class _Change(dict[str, Any]):
    pass


def _resize(job: Job, replicas: int | ReplicaRange, before: _Change, after: _Change) -> None:
    old = job.spec.get("replicas", 1)
    new = replicas if isinstance(replicas, int) else replicas.model_dump(mode="json", exclude_unset=True)
    if new == old:
        return
    if job.state != State.QUEUED:
        raise NotNow("Only a job that waits can be given another size.", job_id=job.pk, state=job.state)
    if "groups" in job.spec:
        raise Refused([Fault("replicas", "invalid", "groups already say how many replicas there are")])
    before["replicas"], after["replicas"] = old, new
    job.spec["replicas"] = new
    request = intake.request_of(job.spec)
    require_possible([request], [intake.shape_of(request)])
    job.n_devices = intake.n_devices_of(request)
    job.shape = intake.shape_of(
        request, is_runnable=bool(job.private.keys() & {"command", "script", "group_commands"})
    )

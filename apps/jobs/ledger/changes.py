"""What people ask of a job that is there: stop, hold, release, change."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from pydantic import ValidationError

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
from apps.jobs.spec import ReplicaRange, faults_of
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
    asks: Mapping[str, Any] | None = None,
) -> Job:
    """Change what may still be changed: the priority, the limit, and while it waits what a flat job asks for.

    Args:
        asks: New values of fields of `CHANGEABLE`, as a request says them; None takes a field back.
    """
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
        new = replicas if isinstance(replicas, int) else replicas.model_dump(mode="json", exclude_unset=True)
        _ask(job, "replicas", new, before, after)
    for name, value in (asks or {}).items():
        assert name in CHANGEABLE, name
        _ask(job, name, value, before, after)
    if asks or replicas is not None:
        _fit(job, after)
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


# What a job that waits may be given anew, beside its size.
CHANGEABLE: Final = frozenset({"accelerators", "topology", "flexibility"})
_OF_ALL_GROUPS: Final = frozenset({"flexibility"})


def _ask(job: Job, name: str, value: Any, before: _Change, after: _Change) -> None:
    """Write one field of what the job asks for into its specification."""
    old = job.spec.get(name)
    if value == old or (name == "replicas" and value == 1 and old is None):
        return
    if job.state != State.QUEUED and not (name == "replicas" and _may_resize(job, value)):
        raise NotNow(
            "Only a job that waits can be given another size or place; one that runs, other bounds of its size, if it"
            " is elastic, writes checkpoints and may be preempted.",
            job_id=job.pk,
            state=job.state,
        )
    if "groups" in job.spec and name not in _OF_ALL_GROUPS:
        raise Refused([Fault(name, "invalid", f"groups already say their own {name}")])
    before[name], after[name] = old, value
    if value is None:
        job.spec.pop(name, None)
    else:
        job.spec[name] = value


def _may_resize(job: Job, value: Any) -> bool:
    """Whether the planner can bring a job that runs between new bounds: by a checkpoint and a restart."""
    was_elastic = isinstance(job.spec.get("replicas"), dict)
    is_elastic = was_elastic and isinstance(value, dict) and value["min"] != value["max"]
    is_saved = bool(job.spec.get("checkpoint")) and job.spec.get("preemptible") is not False
    return is_elastic and is_saved and job.state in (State.STARTING, State.RUNNING)


def _fit(job: Job, after: _Change) -> None:
    """Refuse what no longer makes a job, or one that could never run; count anew what it asks for."""
    if not after.keys() & (CHANGEABLE | {"replicas"}):
        return
    try:
        request = intake.request_of(job.spec)
    except ValidationError as error:
        raise Refused([Fault(one["path"], one["code"], one["message"]) for one in faults_of(error)]) from None
    require_possible([request], [intake.shape_of(request)])
    job.n_devices = intake.n_devices_of(request)
    job.shape = intake.shape_of(
        request, is_runnable=bool(job.private.keys() & {"command", "script", "group_commands"})
    )

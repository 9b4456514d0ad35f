"""Asking attempts to end: to give way, to go on elsewhere, at their time limit, or because their data is late."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from django.db import transaction

from apps.events.services import record_many
from apps.jobs.ledger.moves import allocation_event, job_event, locked_allocation, save_job, time_to_save_s
from apps.jobs.lifecycle import State, Trigger, follow
from apps.jobs.models import (
    Allocation,
    Desired,
    Job,
    StopCause,
)
from apps.teams.models import User


class Eviction(NamedTuple):
    """A running job is to give way to a waiting one.

    Attributes:
        for_job_id: That one; of a job that is only to change its size, the job itself.
        rule: "priority" or "reclaim"; "move" of one that goes on elsewhere, "shrink" or "grow" of another size.
    """

    job_id: int
    for_job_id: int
    rule: str
    lost_device_s: float


@transaction.atomic
def preempt_many(
    *, evictions: Sequence[Eviction], pass_id: int | None, at: datetime, resizes: Sequence[Eviction] = ()
) -> str:
    """Ask running jobs to give way, all of them or none: signal, time to write a checkpoint, kill.

    Args:
        resizes: Jobs that give way with a part of what they hold, as in `resize_many`.

    Returns:
        Why not, if one of them is not there to give way any more; empty when all were asked. Asking to leave twice
        is once.
    """
    causes = dict.fromkeys(evictions, StopCause.PREEMPTION) | dict.fromkeys(resizes, StopCause.RESIZE)
    return _ask_all(causes, at=at, pass_id=pass_id)


@transaction.atomic
def resize_many(
    *, resizes: Sequence[Eviction], at: datetime, pass_id: int | None = None, reason: str = ""
) -> str:
    """Ask running jobs to write a checkpoint and go on with more or fewer replicas, as `preempt_many` does.

    They go back to the queue with their place in line, and are counted as resized: that is no preemption. One that is
    on its way to another size already is asked for no third: whoever asked first knows what is kept for it.
    """
    return _ask_all(dict.fromkeys(resizes, StopCause.RESIZE), at=at, pass_id=pass_id, reason=reason)


@transaction.atomic
def move_many(*, evictions: Sequence[Eviction], actor: User, reason: str, at: datetime) -> str:
    """Ask running jobs to stop and go on elsewhere, all of them or none, as `preempt_many` does.

    They go back to the queue with their place in line, and are counted as moved.

    Args:
        actor: Whose word it is.
        reason: Goes into the log of each.
    """
    return _ask_all(dict.fromkeys(evictions, StopCause.MOVE), at=at, actor=actor, reason=reason)


_WORDS: Final = {
    StopCause.PREEMPTION: ("job.preempting", "pre-empted"),
    StopCause.MOVE: ("job.moving", "moved"),
    StopCause.RESIZE: ("job.resizing", "resized by a restart"),
}


def _ask_all(
    causes: Mapping[Eviction, StopCause],
    *,
    at: datetime,
    pass_id: int | None = None,
    actor: User | None = None,
    reason: str = "",
) -> str:
    wanted = {eviction.job_id: (eviction, cause) for eviction, cause in causes.items()}
    jobs = list(Job.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk"))
    allocations = {
        allocation.job_id: allocation
        for allocation in Allocation.objects.select_for_update(no_key=True)
        .filter(job_id__in=wanted, ended_at=None)
        .order_by("pk")
    }
    asked = []
    for job in jobs:
        allocation, (_, cause) = allocations.get(job.pk), wanted[job.pk]
        if allocation is None or job.state not in (State.STARTING, State.RUNNING, State.PREEMPTING):
            return f"job {job.pk} no longer runs"
        if allocation.desired_state == Desired.STOP:
            if allocation.stop_cause != cause or cause == StopCause.RESIZE:
                return f"job {job.pk} ends already"
            continue
        if job.spec.get("preemptible") is False:
            return f"job {job.pk} is not to be {_WORDS[cause][1]}"
        asked.append((job, allocation))
    if len(jobs) < len(wanted):
        return "a job is gone"
    events = []
    for job, allocation in asked:
        eviction, cause = wanted[job.pk]
        job.state, job.state_at = follow(State(job.state), Trigger.PREEMPT), at
        save_job(job, "state", "state_at")
        if cause == StopCause.RESIZE:
            allocation.grace_s = time_to_save_s(job, allocation)
            allocation.save(update_fields=["grace_s"])
        ask_to_stop(allocation, cause, at)
        data = {
            "for_job_id": eviction.for_job_id,
            "rule": eviction.rule,
            "lost_device_s": round(eviction.lost_device_s, 3),
            "pass_id": pass_id,
        }
        told = {"actor": actor, "reason": reason}
        events.append(job_event(_WORDS[cause][0], job, at=at, data=data, **told))
        asked_for = {"cause": cause.value, **data}
        events.append(
            allocation_event("allocation.stop_requested", allocation, job, at=at, data=asked_for, **told)
        )
    record_many(events)
    return ""


@transaction.atomic
def request_time_limit_stop(*, allocation_id: int, at: datetime) -> Allocation:
    """Ask an attempt to end because its job has used up its running time."""
    return _request_stop(allocation_id, StopCause.TIME_LIMIT, at)


@transaction.atomic
def request_data_late_stop(*, allocation_id: int, at: datetime) -> Allocation:
    """Have an attempt give its devices back because its data did not come in time; its job goes back to the queue."""
    return _request_stop(allocation_id, StopCause.DATA_LATE, at)


@transaction.atomic
def request_displaced_stop(*, allocation_id: int, at: datetime) -> Allocation:
    """Have an attempt that has not begun give its devices back, for somebody outside the ledger holds them.

    Its job goes back to the queue as one that is moved, and counts as that.
    """
    return _request_stop(allocation_id, StopCause.MOVE, at)


def _request_stop(allocation_id: int, cause: StopCause, at: datetime) -> Allocation:
    job, allocation = locked_allocation(allocation_id, None)
    if allocation.ended_at is not None or allocation.desired_state == Desired.STOP:
        return allocation
    ask_to_stop(allocation, cause, at)
    data = {"cause": cause.value}
    record_many([allocation_event("allocation.stop_requested", allocation, job, at=at, data=data)])
    return allocation


def ask_to_stop(allocation: Allocation, cause: StopCause, at: datetime) -> None:
    """Ask an attempt to end; whoever asks again gives no more time than the first did."""
    allocation.desired_state, allocation.stop_cause = Desired.STOP, cause
    allocation.stop_at = allocation.stop_at or at
    allocation.save(update_fields=["desired_state", "stop_cause", "stop_at"])

"""Asking attempts to end: to give way, at their time limit, or because their data is late."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import transaction

from apps.events.services import record_many
from apps.jobs.ledger.moves import allocation_event, job_event, locked_allocation, save_job
from apps.jobs.lifecycle import State, Trigger, follow
from apps.jobs.models import (
    Allocation,
    Desired,
    Job,
    StopCause,
)


class Eviction(NamedTuple):
    """A running job is to give way to a waiting one."""

    job_id: int
    for_job_id: int
    rule: str  # "priority" or "reclaim"
    lost_device_s: float


@transaction.atomic
def preempt_many(*, evictions: Sequence[Eviction], pass_id: int | None, at: datetime) -> str:
    """Ask running jobs to give way, all of them or none: signal, time to write a checkpoint, kill.

    Returns:
        Why not, if one of them is not there to give way any more; empty when all were asked. Asking twice is once.
    """
    wanted = {eviction.job_id: eviction for eviction in evictions}
    jobs = list(Job.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk"))
    allocations = {
        allocation.job_id: allocation
        for allocation in Allocation.objects.select_for_update(no_key=True)
        .filter(job_id__in=wanted, ended_at=None)
        .order_by("pk")
    }
    asked = []
    for job in jobs:
        allocation = allocations.get(job.pk)
        if allocation is None or job.state not in (State.STARTING, State.RUNNING, State.PREEMPTING):
            return f"job {job.pk} no longer runs"
        if allocation.desired_state == Desired.STOP:
            if allocation.stop_cause != StopCause.PREEMPTION:
                return f"job {job.pk} ends already"
            continue
        if job.spec.get("preemptible") is False:
            return f"job {job.pk} is not to be pre-empted"
        asked.append((job, allocation))
    if len(jobs) < len(wanted):
        return "a job is gone"
    events = []
    for job, allocation in asked:
        eviction = wanted[job.pk]
        job.state, job.state_at = follow(State(job.state), Trigger.PREEMPT), at
        save_job(job, "state", "state_at")
        ask_to_stop(allocation, StopCause.PREEMPTION, at)
        data = {
            "for_job_id": eviction.for_job_id,
            "rule": eviction.rule,
            "lost_device_s": round(eviction.lost_device_s, 3),
            "pass_id": pass_id,
        }
        events.append(job_event("job.preempting", job, at=at, data=data))
        events.append(
            allocation_event(
                "allocation.stop_requested", allocation, job, at=at, data={"cause": "preemption", **data}
            )
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

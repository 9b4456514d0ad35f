"""What execution reports of an attempt, and where its job goes from there."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from django.db import connection, transaction

from apps.events.services import record_many
from apps.jobs import selectors
from apps.jobs.ledger.dependencies import cancel_never_satisfied
from apps.jobs.ledger.moves import (
    ATTEMPT_FIELDS,
    allocation_event,
    end_job,
    job_event,
    locked_allocation,
    one_line,
    save_job,
)
from apps.jobs.lifecycle import ENDED, State, Trigger, follow
from apps.jobs.models import (
    Allocation,
    Job,
    Observed,
    StopCause,
)

MAX_START_FAILURES: Final = 5
MAX_NODE_LOSSES: Final = 10
BACKOFF_S: Final = 10.0
MAX_BACKOFF_S: Final = 600.0
Outcome = Literal[
    "succeeded", "failed", "cancelled", "timed_out", "vacated", "start_failed", "node_lost", "data_late"
]


@transaction.atomic
def allocation_started(*, allocation_id: int, fence: int, at: datetime) -> Job:
    """Note that an attempt runs. Raises Stale if the fence is not this allocation's."""
    job, allocation = locked_allocation(allocation_id, fence)
    if allocation.ended_at is not None or allocation.observed_state == Observed.RUNNING:
        return job
    allocation.observed_state, allocation.observed_at = Observed.RUNNING, at
    allocation.observed_started_at = allocation.observed_started_at or at
    allocation.save(update_fields=["observed_state", "observed_at", "observed_started_at"])
    if job.state == State.STARTING:
        job.state, job.state_at = follow(State(job.state), Trigger.STARTED), at
    job.started_at = at
    job.first_started_at = job.first_started_at or at
    save_job(job, "state", "state_at", "started_at", "first_started_at")
    record_many([job_event("job.started", job, at=at, data={"allocation_id": allocation.pk})])
    return job


@transaction.atomic
def data_arrived(*, allocation_id: int, at: datetime) -> Allocation:
    """Note that all data an attempt waited for is there. Twice changes nothing."""
    job, allocation = locked_allocation(allocation_id, None)
    is_waiting = allocation.data_due_at is not None and allocation.observed_data_at is None
    if not is_waiting or allocation.ended_at is not None:
        return allocation
    allocation.observed_data_at = allocation.observed_at = max(at, allocation.bound_at)
    allocation.save(update_fields=["observed_data_at", "observed_at"])
    record_many([allocation_event("allocation.data_arrived", allocation, job, at=at)])
    return allocation


@transaction.atomic
def allocation_ended(
    *,
    allocation_id: int,
    fence: int,
    at: datetime,
    outcome: Outcome,
    exit_code: int | None = None,
    message: str = "",
) -> Job:
    """Close an attempt: the job moves on by the table, and its claims go in the same transaction.

    Raises Stale if the fence is not this allocation's. The second report of one end changes nothing.
    """
    job, allocation = locked_allocation(allocation_id, fence)
    if allocation.ended_at is not None:
        return job
    ran_s = 0.0
    if allocation.observed_started_at is not None:
        ran_s = max(0.0, (at - allocation.observed_started_at).total_seconds())
    job.ran_s += ran_s
    job.exit_code = exit_code
    allocation.ended_at = allocation.observed_at = at
    allocation.observed_state = Observed.LOST if outcome == "node_lost" else Observed.ENDED
    allocation.observed_exit_code = exit_code
    allocation.observed_message = one_line(message)
    kind = _move_on(job, allocation, outcome, ran_s=ran_s, at=at, message=message)
    if job.state in ENDED:
        # Before the devices: jobs are locked first.
        cancel_never_satisfied([job], at=at)
    allocation.save(
        update_fields=[
            "ended_at",
            "lost_s",
            "observed_at",
            "observed_state",
            "observed_exit_code",
            "observed_message",
        ]
    )
    _release_claims(allocation, at)
    record_many(
        [
            allocation_event("allocation.ended", allocation, job, at=at, data={"outcome": outcome}),
            job_event(
                kind,
                job,
                at=at,
                reason=message,
                data={"allocation_id": allocation.pk, "exit_code": exit_code},
            ),
        ]
    )
    return job


def _move_on(
    job: Job, allocation: Allocation, outcome: Outcome, *, ran_s: float, at: datetime, message: str
) -> str:
    """Move the job by what became of its attempt; return the kind of event that tells it."""
    is_stopping = job.desired_stop_at is not None
    is_spent = job.time_limit_s is not None and job.ran_s >= job.time_limit_s
    if outcome in _FINAL:
        trigger, code = _FINAL[outcome], _code_of(job, allocation, outcome)
        end_job(job, trigger, at=at, code=code, message=message or job.stop_reason)
        return f"job.{job.state}"
    if is_stopping:
        end_job(job, Trigger.CANCELLED, at=at, code="stopped", message=job.stop_reason or message)
        return "job.cancelled"
    if is_spent:
        end_job(job, Trigger.TIMED_OUT, at=at, code="time_limit", message=message)
        return "job.timed_out"
    if outcome == "data_late" and job.state == State.STARTING:
        # Nobody's failure: the planner knows by now when the data will be there.
        _requeue(job, [Trigger.START_FAILED], at=at, retry_s=0.0)
        return "job.data_late"
    if outcome == "start_failed" and _was_told_to_go(job, allocation):
        outcome = "vacated"  # it crossed with what told it to go: it leaves as it was asked to
    if outcome == "start_failed":
        job.n_start_failures += 1
        if job.n_start_failures >= MAX_START_FAILURES or job.state != State.STARTING:
            end_job(job, Trigger.FAILED, at=at, code="start_failed", message=message)
            return "job.failed"
        _requeue(job, [Trigger.START_FAILED], at=at, retry_s=_backoff_s(job.n_start_failures))
        return "job.start_failed"
    if not _has_saved(job, allocation, outcome, at):
        checkpoint = job.spec.get("checkpoint")
        allocation.lost_s = selectors.unsaved_s(checkpoint, ran_s, _since_checkpoint_s(allocation, at))
    job.lost_s += allocation.lost_s
    job.worked_s += max(0.0, ran_s - allocation.lost_s) * _rate_of(job, allocation)
    if outcome == "node_lost":
        job.n_node_losses += 1
        if job.n_node_losses >= MAX_NODE_LOSSES:
            end_job(job, Trigger.FAILED, at=at, code="node_lost", message=message)
            return "job.failed"
        # The first loss is bad luck; from the second on the job may be the cause.
        retry_s = _backoff_s(job.n_node_losses - 1) if job.n_node_losses > 1 else 0.0
        _requeue(job, [Trigger.LOSE_NODE, Trigger.REQUEUE], at=at, retry_s=retry_s)
        return "job.node_lost"
    if job.state == State.PAUSING:
        job.state, job.state_at = follow(State(job.state), Trigger.PAUSED), at
        save_job(job, *ATTEMPT_FIELDS)
        return "job.paused"
    if job.state in (State.STARTING, State.RUNNING):
        # It left unasked by the table: what told it to go was lost. The same road, one step longer.
        job.state = follow(State(job.state), Trigger.PREEMPT)
    kind = "job.preempted"
    if allocation.stop_cause == StopCause.MOVE:
        job.n_moves, kind = job.n_moves + 1, "job.moved"
    elif allocation.stop_cause == StopCause.RESIZE:
        job.n_resizes, kind = job.n_resizes + 1, "job.resized"
    else:
        job.n_preemptions += 1
    _requeue(job, [Trigger.VACATED], at=at, retry_s=0.0)
    return kind


def _was_told_to_go(job: Job, allocation: Allocation) -> bool:
    """Whether an attempt that never ran was asked to make place, and not to end."""
    return allocation.observed_started_at is None and job.state in (State.PREEMPTING, State.PAUSING)


_SAVES: Final = (StopCause.PAUSE, StopCause.RESIZE)  # these give a job the time that its checkpoint takes
_FINAL: Final = {
    "succeeded": Trigger.SUCCEEDED,
    "failed": Trigger.FAILED,
    "cancelled": Trigger.CANCELLED,
    "timed_out": Trigger.TIMED_OUT,
}


def _code_of(job: Job, allocation: Allocation, outcome: Outcome) -> str:
    if outcome == "cancelled":
        return "stopped" if job.desired_stop_at is not None else "cancelled"
    if outcome == "timed_out":
        return "time_limit"
    if outcome == "failed":
        return "exit_code" if job.exit_code else "failed"
    return ""


def _requeue(job: Job, triggers: Sequence[Trigger], *, at: datetime, retry_s: float) -> None:
    for trigger in triggers:
        job.state = follow(State(job.state), trigger)
    job.state_at = job.queued_at = at
    job.retry_at = at + timedelta(seconds=retry_s) if retry_s else None
    save_job(job, *ATTEMPT_FIELDS)


def _backoff_s(n_failures: int) -> float:
    return min(BACKOFF_S * 2.0 ** (n_failures - 1), MAX_BACKOFF_S)


def _has_saved(job: Job, allocation: Allocation, outcome: Outcome, at: datetime) -> bool:
    """Whether it was asked to write a checkpoint and took the time that this is declared to cost."""
    checkpoint = job.spec.get("checkpoint")
    if outcome != "vacated" or allocation.stop_cause not in _SAVES or not checkpoint:
        return False
    took_s = (at - (allocation.stop_at or at)).total_seconds()
    return bool(checkpoint.get("cost", 0.0) <= took_s <= allocation.grace_s)


def _rate_of(job: Job, allocation: Allocation) -> float:
    """Throughput of an attempt, relative to that of the preferred size."""
    if not selectors.is_elastic(job.spec):
        return 1.0
    sizes: dict[int, int] = {}
    for group, n_replicas in allocation.placements.values_list("group_index", "n_replicas"):
        sizes[group] = sizes.get(group, 0) + n_replicas
    return selectors.relative_rate(job.spec, sizes)


def _since_checkpoint_s(allocation: Allocation, at: datetime) -> float | None:
    written_at = selectors.last_checkpoint_at([allocation.pk]).get(allocation.pk)
    return None if written_at is None else max(0.0, (at - written_at).total_seconds())


def _release_claims(allocation: Allocation, at: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT claim.id, device.id, claim.share, device.claimed_share FROM jobs_deviceclaim claim"
            " JOIN jobs_placement placement ON placement.id = claim.placement_id"
            " JOIN inventory_device device ON device.id = claim.device_id"
            " WHERE placement.allocation_id = %s AND claim.released_at IS NULL"
            " ORDER BY device.id FOR NO KEY UPDATE OF device",
            [allocation.pk],
        )
        claims = cursor.fetchall()
        if not claims:
            return
        left: dict[int, Decimal] = {}
        for _, device_id, share, claimed in claims:
            left[device_id] = left.get(device_id, claimed) - share
        cursor.execute(
            "UPDATE jobs_deviceclaim SET released_at = %s WHERE id = ANY(%s)",
            [at, [row[0] for row in claims]],
        )
        cursor.execute(
            "UPDATE inventory_device device SET claimed_share = new.share"
            " FROM unnest(%s::bigint[], %s::numeric[]) AS new(id, share) WHERE device.id = new.id",
            [list(left), list(left.values())],
        )

"""Power caps and pauses: what whoever controls power asks of an attempt, and what became of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction

from apps.events.services import record_many
from apps.jobs.ledger.moves import allocation_event, job_event, locked_allocation, locked_job, save_job
from apps.jobs.ledger.stopping import ask_to_stop
from apps.jobs.lifecycle import State, Trigger, follow
from apps.jobs.models import Allocation, Desired, Job, PowerCap, StopCause

PAUSE_MARGIN_S: Final = 10.0  # beyond what a checkpoint is declared to take
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAsk:
    """Shares are of TDP; whoever sets the cap goes back to `back_share` by itself when the lease is over."""

    allocation_id: int
    share: float
    back_share: float = 1.0
    lease_until_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapSeen:
    """A cap as whoever sets it says that it is."""

    allocation_id: int
    share: float
    fence: int
    lease_until_at: datetime | None = None
    is_recorded: bool = False
    message: str = ""


@transaction.atomic
def ask_cap(*, ask: CapAsk, fence: int, at: datetime, reason: str = "") -> PowerCap | None:
    """Ask that the devices of an attempt draw no more than this share of their TDP.

    A higher share counts against the limits from here on, a lower one when it is said to be in force.

    Args:
        fence: Of who asks. Who comes with an older one than the last is not heard.

    Returns:
        The cap; None where the attempt is over or leaving, or where somebody with a newer fence has asked.
    """
    job, allocation = locked_allocation(ask.allocation_id, None)
    # While one that is paused writes its checkpoint, it can be held to less.
    is_leaving = allocation.desired_state == Desired.STOP and allocation.stop_cause != StopCause.PAUSE
    if allocation.ended_at is not None or is_leaving:
        return None
    cap = PowerCap.objects.select_for_update().filter(allocation=allocation).first()
    if cap is not None and cap.fence > fence:
        return None
    is_news = cap is None or abs(cap.desired_share - ask.share) > _SAME
    if cap is None:
        cap = PowerCap(allocation=allocation, desired_at=at)
    was = cap.desired_share if cap.desired_share is not None else allocation.desired_power_cap_share
    cap.desired_share, cap.back_share = ask.share, max(ask.share, ask.back_share)
    cap.lease_until_at, cap.fence = ask.lease_until_at, fence
    if is_news:
        cap.desired_at = at
    cap.save()
    _count(allocation, cap)
    if is_news:
        data = {"share": ask.share, "was": was, "fence": fence}
        # More may be drawn from here on: a plan that was made before rests on less.
        kind = "allocation.cap_raised" if ask.share > was else "allocation.cap_asked"
        record_many([allocation_event(kind, allocation, job, at=at, data=data, reason=reason)])
    return cap


@transaction.atomic
def report_cap(*, seen: CapSeen, at: datetime) -> PowerCap | None:
    """Note what is set. A report of an older order than the last one reported changes nothing."""
    job, allocation = locked_allocation(seen.allocation_id, None)
    cap = PowerCap.objects.select_for_update().filter(allocation=allocation).first()
    if cap is None or seen.fence < cap.observed_fence:
        return cap
    was_in_force, was_share = cap.is_in_force, cap.observed_share
    cap.observed_share, cap.observed_fence = seen.share, seen.fence
    cap.observed_lease_until_at, cap.observed_at = seen.lease_until_at, at
    cap.is_recorded, cap.message = seen.is_recorded, seen.message[:500]
    if abs(cap.observed_share - cap.desired_share) <= _SAME:
        cap.observed_share = cap.desired_share
    cap.save()
    if allocation.ended_at is None:
        _count(allocation, cap)
    if (was_in_force, was_share) != (cap.is_in_force, cap.observed_share):
        kind = "allocation.cap_in_force" if cap.is_in_force else "allocation.cap_changed"
        data = {"share": cap.observed_share, "was": was_share, "is_recorded": cap.is_recorded}
        record_many([allocation_event(kind, allocation, job, at=at, data=data)])
    return cap


def _count(allocation: Allocation, cap: PowerCap) -> None:
    """What it counts with: the highest that may be drawn while an order is under way."""
    there = allocation.desired_power_cap_share
    if cap.is_in_force:
        counted = cap.desired_share
    elif cap.observed_share is not None and cap.observed_fence >= cap.fence:
        counted = max(
            cap.desired_share, cap.observed_share
        )  # its lease ran out, or it was set to something else
    else:
        counted = max(there, cap.desired_share)
    if counted != there:
        allocation.desired_power_cap_share = counted
        allocation.save(update_fields=["desired_power_cap_share"])


@transaction.atomic
def pause_job(*, job_id: int, allocation_id: int, is_hard: bool, at: datetime, reason: str) -> bool:
    """Have a running job write its checkpoint and give its devices back until `resume_job`. Twice is once.

    Args:
        allocation_id: The attempt it is about: a later one is left alone.
        is_hard: It gets no time to write anything.

    Returns:
        Whether it is on its way out, or out already, for that.
    """
    job, allocation = locked_allocation(allocation_id, None)
    if job.pk != job_id:
        return False
    if allocation.stop_cause == StopCause.PAUSE:
        return True
    if (
        allocation.ended_at is not None
        or allocation.desired_state == Desired.STOP
        or job.state != State.RUNNING
    ):
        return False
    job.state, job.state_at = follow(State(job.state), Trigger.PAUSE), at
    save_job(job, "state", "state_at")
    allocation.grace_s = 0.0 if is_hard else _time_to_save_s(job, allocation)
    allocation.save(update_fields=["grace_s"])
    ask_to_stop(allocation, StopCause.PAUSE, at)
    data = {"cause": StopCause.PAUSE.value, "grace_s": allocation.grace_s}
    record_many(
        [
            job_event("job.pausing", job, at=at, reason=reason, data=data),
            allocation_event("allocation.stop_requested", allocation, job, at=at, data=data, reason=reason),
        ]
    )
    return True


def _time_to_save_s(job: Job, allocation: Allocation) -> float:
    checkpoint = job.spec.get("checkpoint")
    cost_s = float(checkpoint.get("cost", 0.0)) if checkpoint else 0.0
    return max(allocation.grace_s, cost_s + PAUSE_MARGIN_S if checkpoint else 0.0)


@transaction.atomic
def resume_job(*, job_id: int, at: datetime, reason: str) -> bool:
    """Put a paused job back in line, where it stood by its submission. False if it is not paused any more."""
    job = locked_job(job_id)
    if job.state != State.PAUSED:
        return False
    job.state, job.state_at, job.queued_at = follow(State(job.state), Trigger.REQUEUE), at, at
    save_job(job, "state", "state_at", "queued_at")
    record_many([job_event("job.resumed", job, at=at, reason=reason)])
    return True

"""Power caps and pauses: what whoever controls power asks of attempts, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction

from apps.events.services import EventRow, record_many
from apps.jobs.ledger.moves import allocation_event, job_event, locked_job, save_job, time_to_save_s
from apps.jobs.lifecycle import State, Trigger, follow
from apps.jobs.models import Allocation, Desired, Job, PowerCap, StopCause
from apps.power.models import PowerController

_SAME: Final = 1e-9
_ASKED: Final = ("desired_share", "desired_at", "back_share", "lease_until_at", "fence")
_SEEN: Final = (
    "observed_share",
    "observed_fence",
    "observed_lease_until_at",
    "observed_at",
    "is_recorded",
    "message",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAsk:
    """Shares are of TDP; whoever sets the cap goes back to `back_share` by itself when the lease is over."""

    allocation_id: int
    share: float
    back_share: float = 1.0
    lease_until_at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapSeen:
    """A cap as whoever sets it says that it is."""

    allocation_id: int
    share: float
    fence: int
    lease_until_at: datetime | None = None
    is_recorded: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsk:
    """One attempt that is to write its checkpoint and leave; a hard one gets no time to write anything."""

    job_id: int
    allocation_id: int
    is_hard: bool = False
    reason: str = ""


@transaction.atomic
def ask_caps(*, asks: Sequence[CapAsk], fence: int, at: datetime) -> tuple[int, ...]:
    """Ask that the devices of attempts draw no more than these shares of their TDP.

    A higher share counts against the limits from here on, a lower one when it is said to be in force.

    Args:
        fence: Of who asks. Where somebody with a newer one has taken over, nothing is asked.

    Returns:
        The allocations that it was asked of: not of one that is over or leaving. One that writes its last checkpoint,
        to be paused, can still be held to less.
    """
    if PowerController.objects.filter(fence__gt=fence).exists():
        return ()
    wanted = {ask.allocation_id: ask for ask in asks}
    allocations = _locked(wanted)
    known = {cap.allocation_id: cap for cap in _locked_caps(wanted)}
    caps: list[PowerCap] = []
    counted: dict[int, float] = {}
    events: list[EventRow] = []
    for allocation in allocations:
        ask, cap = wanted[allocation.pk], known.get(allocation.pk)
        is_leaving = allocation.desired_state == Desired.STOP and allocation.stop_cause != StopCause.PAUSE
        if allocation.ended_at is not None or is_leaving or (cap is not None and cap.fence > fence):
            continue
        was = allocation.desired_power_cap_share if cap is None else cap.desired_share
        is_news = cap is None or abs(was - ask.share) > _SAME
        if cap is None:
            cap = PowerCap(allocation=allocation)
        if is_news:
            cap.desired_at = at
        cap.desired_share, cap.back_share = ask.share, max(ask.share, ask.back_share)
        cap.lease_until_at, cap.fence = ask.lease_until_at, fence
        caps.append(cap)
        _count(allocation, cap, counted)
        if is_news:
            data = {"share": ask.share, "was": was, "fence": fence}
            # More may be drawn from here on: a plan that was made before rests on less.
            kind = "allocation.cap_raised" if ask.share > was else "allocation.cap_asked"
            events.append(
                allocation_event(kind, allocation, allocation.job, at=at, data=data, reason=ask.reason)
            )
    PowerCap.objects.bulk_create(
        caps, update_conflicts=True, unique_fields=["allocation"], update_fields=list(_ASKED)
    )
    _write_counted(counted)
    record_many(events)
    return tuple(cap.allocation_id for cap in caps)


@transaction.atomic
def report_caps(*, seen: Sequence[CapSeen], at: datetime) -> None:
    """Note what is set. A report of an older order than the last one reported changes nothing."""
    told = {one.allocation_id: one for one in seen}
    allocations = {allocation.pk: allocation for allocation in _locked(told)}
    changed: list[PowerCap] = []
    counted: dict[int, float] = {}
    events: list[EventRow] = []
    for cap in _locked_caps(told):
        one, allocation = told[cap.allocation_id], allocations[cap.allocation_id]
        if one.fence < cap.observed_fence:
            continue
        was = cap.observed_share
        # A rounded share that is the one asked for is in force.
        is_asked = abs(one.share - cap.desired_share) <= _SAME
        cap.observed_share = cap.desired_share if is_asked else one.share
        cap.observed_fence, cap.observed_lease_until_at, cap.observed_at = one.fence, one.lease_until_at, at
        cap.is_recorded, cap.message = one.is_recorded, one.message[:500]
        changed.append(cap)
        if allocation.ended_at is None:
            _count(allocation, cap, counted)
        # The same cap under the fence of another controller is no news.
        if was != cap.observed_share:
            kind = "allocation.cap_in_force" if cap.is_in_force else "allocation.cap_changed"
            data = {"share": cap.observed_share, "was": was, "is_recorded": cap.is_recorded}
            events.append(allocation_event(kind, allocation, allocation.job, at=at, data=data))
    PowerCap.objects.bulk_update(changed, list(_SEEN), batch_size=1000)
    _write_counted(counted)
    record_many(events)


def _locked(wanted: "dict[int, Any]") -> list[Allocation]:
    return list(
        Allocation.objects.select_for_update(no_key=True, of=("self",))
        .filter(pk__in=wanted)
        .select_related("job")
        .only(
            "id", "cluster_id", "ended_at", "desired_state", "stop_cause", "desired_power_cap_share",
            "job__id", "job__name", "job__team_id",
        )
        .order_by("pk")
    )  # fmt: skip


def _locked_caps(wanted: "dict[int, Any]") -> list[PowerCap]:
    return list(
        PowerCap.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("allocation_id")
    )


def _count(allocation: Allocation, cap: PowerCap, counted: dict[int, float]) -> None:
    """What it counts with: the highest that may be drawn while an order is under way."""
    there = allocation.desired_power_cap_share
    if cap.is_in_force:
        share = cap.desired_share
    elif cap.observed_share is not None and cap.observed_fence >= cap.fence:
        # Its lease ran out, it is still being set, or it was set to something else.
        share = max(cap.desired_share, cap.observed_share)
    else:
        share = max(there, cap.desired_share)
    if share != there:
        counted[allocation.pk] = share


def _write_counted(counted: dict[int, float]) -> None:
    if not counted:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_allocation allocation SET desired_power_cap_share = new.share"
            " FROM unnest(%s::bigint[], %s::float8[]) AS new(id, share) WHERE allocation.id = new.id",
            [list(counted), list(counted.values())],
        )


@transaction.atomic
def pause_jobs(*, asks: Sequence[PauseAsk], at: datetime) -> tuple[int, ...]:
    """Have running jobs write their checkpoints and give their devices back until `resume_job`. Twice is once.

    Returns:
        The allocations that are on their way out, or out already, for that. A later attempt is left alone.
    """
    wanted = {ask.allocation_id: ask for ask in asks}
    job_ids = [ask.job_id for ask in asks]
    jobs = {
        job.pk: job
        for job in Job.objects.select_for_update(no_key=True)
        .defer("private")
        .filter(pk__in=job_ids)
        .order_by("pk")
    }
    allocations = Allocation.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    on_their_way, events = [], []
    for allocation in allocations:
        ask, job = wanted[allocation.pk], jobs.get(allocation.job_id)
        if job is None or job.pk != ask.job_id:
            continue
        if allocation.stop_cause == StopCause.PAUSE:
            on_their_way.append(allocation.pk)
            continue
        is_leaving = allocation.ended_at is not None or allocation.desired_state == Desired.STOP
        if is_leaving or job.state != State.RUNNING:
            continue
        job.state, job.state_at = follow(State(job.state), Trigger.PAUSE), at
        save_job(job, "state", "state_at")
        allocation.grace_s = 0.0 if ask.is_hard else time_to_save_s(job, allocation)
        allocation.desired_state, allocation.stop_cause = Desired.STOP, StopCause.PAUSE
        allocation.stop_at = allocation.stop_at or at
        allocation.save(update_fields=["grace_s", "desired_state", "stop_cause", "stop_at"])
        on_their_way.append(allocation.pk)
        data = {"cause": StopCause.PAUSE.value, "grace_s": allocation.grace_s}
        told: dict[str, Any] = {"at": at, "reason": ask.reason, "data": data}
        events.append(job_event("job.pausing", job, **told))
        events.append(allocation_event("allocation.stop_requested", allocation, job, **told))
    record_many(events)
    return tuple(on_their_way)


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

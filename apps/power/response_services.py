"""Announcing demand-response events and giving them up. An actor of None is the site, or an outside source.

Nothing here acts on a job: what is done for an event is a plan, which somebody commits.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db import connection, transaction

from apps.core.errors import InvalidInput, VersionConflict
from apps.events.services import record
from apps.inventory.models import POWER_KINDS, Domain
from apps.power.errors import (
    EventClosed,
    NoReference,
    NotToBeOptedOut,
    TargetBelowFloor,
    TooManyEvents,
    VersionReplayed,
)
from apps.power.models import (
    LONGEST_RECOVERY_S,
    DemandResponseEvent,
    EventSource,
    Outcome,
    PlanState,
    Programme,
)
from apps.power.response import OVER, Load, Phase, TargetKind, target_it_w
from apps.power.response_selectors import (
    Reference,
    idle_floor_w,
    locked_event,
    meter_of,
    phase_of_event,
    reference_before,
)
from apps.teams import policies
from apps.teams.models import User

_BACKDATED: Final = timedelta(minutes=5)  # clocks differ
_AHEAD: Final = timedelta(days=400)
_LONGEST: Final = timedelta(days=31)
_DEFAULT_TOLERANCE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event as asked for, by names. What is None follows from the programme, or from the other times.

    Attributes:
        value: Watts at the meter for a facility, of IT load below it; or a level, 0 to 3.
        notified_at: None: now.
        ramp_start_at: None: as long before the start as the programme ramps; without one, and in an emergency, from
            the notice on.
    """

    domain: str
    target_kind: str
    value: float
    start_at: datetime
    end_at: datetime
    programme: str | None = None
    source: str = EventSource.OPERATOR
    external_id: str = ""
    external_version: int = 0
    priority: int = 1
    notified_at: datetime | None = None
    ramp_start_at: datetime | None = None
    recovery_s: int = 3600
    rebound_limit_share: float = 1.05
    tolerance: float | None = None
    is_test: bool = False
    is_emergency: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Resolved:
    """Rows and times for a draft."""

    domain: Domain
    programme: Programme | None
    notified_at: datetime
    ramp_start_at: datetime


@transaction.atomic
def announce_event(
    *,
    draft: EventDraft,
    actor: User | None,
    at: datetime,
    floor_w: float | None = None,
    is_below_floor_confirmed: bool = False,
) -> DemandResponseEvent:
    """Take in that somebody asks for less. The same version of the same external event changes nothing.

    A later version changes the event in place: what is in force for it stays until another plan is committed.

    Args:
        floor_w: IT load of the domain at the least; a target below it needs `is_below_floor_confirmed`.
            None: with all its nodes on and at rest.

    Raises:
        InvalidInput: a draft that makes no sense, or breaks the rules of its programme.
        TargetBelowFloor, NoReference, TooManyEvents, VersionReplayed, EventClosed
    """
    if actor is not None:
        policies.require_may_operate(actor)
    if draft.source == EventSource.EMERGENCY:
        draft = replace(draft, is_emergency=True)
    with connection.cursor() as cursor:
        # One after the other: of two at once, each would be the first of its name, or the last allowed.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('demand response'))")
    known = _known(draft)
    if known is not None and draft.external_version == known.external_version:
        return known
    if known is not None and draft.external_version < known.external_version:
        raise VersionReplayed(
            external_id=draft.external_id, known=known.external_version, told=draft.external_version
        )
    resolved = _resolved(draft, known, at)
    reference = _reference(draft, resolved, known, at)
    if not is_below_floor_confirmed:
        least_w = idle_floor_w(resolved.domain) if floor_w is None else floor_w
        _require_above_floor(draft, resolved.domain, reference, least_w)
    if known is not None:
        return _revise(known, draft, resolved, reference, actor=actor, at=at)
    if resolved.programme is not None and draft.source != EventSource.OPENADR:
        _require_count(resolved.programme, draft)
    event = DemandResponseEvent(
        domain=resolved.domain,
        programme=resolved.programme,
        source=draft.source,
        external_id=draft.external_id,
        created_by=actor,
        created_at=at,
    )
    _take(event, draft, resolved)
    if reference is not None and resolved.notified_at <= at:
        _freeze(event, reference)
    event.save()
    _record(
        "demand_response.announced", event, actor=actor, at=at, reason=draft.reason, after=facts_of(event)
    )
    return event


def drafted_event(
    *,
    draft: EventDraft,
    actor: User | None,
    at: datetime,
    is_below_floor_confirmed: bool = False,
) -> DemandResponseEvent:
    """The event that announce_event() would make of a new draft, as an object that is in no table: for a dry run.

    Raises:
        as announce_event().
    """
    if actor is not None:
        policies.require_may_operate(actor)
    resolved = _resolved(draft, None, at)
    reference = _reference(draft, resolved, None, at)
    if not is_below_floor_confirmed:
        _require_above_floor(draft, resolved.domain, reference, idle_floor_w(resolved.domain))
    event = DemandResponseEvent(
        domain=resolved.domain, programme=resolved.programme, source=draft.source, created_at=at
    )
    _take(event, draft, resolved)
    if reference is not None and resolved.notified_at <= at:
        _freeze(event, reference)
    return event


@transaction.atomic
def cancel_event(
    *,
    event_id: int,
    actor: User | None,
    at: datetime,
    version: int | None = None,
    reason: str = "",
) -> DemandResponseEvent:
    """Call an event off. Twice changes nothing the second time.

    Before the ramp there is nothing to undo. Later it recovers first, by whoever carries out the plan.

    Args:
        version: Of the event that this is based on; None: whatever it is.
    """
    return _give_up(event_id, "cancelled_at", Outcome.CANCELLED, actor, at, version, reason)


@transaction.atomic
def opt_out(
    *,
    event_id: int,
    actor: User | None,
    at: datetime,
    version: int | None = None,
    reason: str = "",
) -> DemandResponseEvent:
    """Take no part in an event, or no longer. For its phases the same as a cancel; settled as opted out.

    Raises:
        NotToBeOptedOut: it is an emergency.
    """
    return _give_up(event_id, "opted_out_at", Outcome.OPTED_OUT, actor, at, version, reason)


@transaction.atomic
def freeze_reference(*, event_id: int, at: datetime) -> DemandResponseEvent:
    """Once its notice has come, keep what an event's domain drew before it. What is kept stays as it is."""
    event = locked_event(event_id)
    if event.reference_w is None and event.notified_at <= at:
        reference = reference_before(event.domain, event.notified_at)
        if reference is not None:
            _freeze(event, reference)
            event.save(update_fields=["reference_w", "reference_quality"])
            facts = {"reference_w": reference.draw_w, "reference_quality": str(reference.quality)}
            _record("demand_response.reference_frozen", event, actor=None, at=at, is_audit=False, data=facts)
    return event


@transaction.atomic
def settle_release(*, event_id: int, load: Load, at: datetime) -> DemandResponseEvent:
    """Note that an event is over: every action reverted, the load back within what is allowed. Once only."""
    event = locked_event(event_id)
    if event.released_at is None and phase_of_event(event, load=load, at=at) in OVER:
        event.released_at = at
        event.save(update_fields=["released_at"])
        _record("demand_response.released", event, actor=None, at=at, is_audit=False)
    return event


def facts_of(event: DemandResponseEvent) -> dict[str, Any]:
    """What is kept of an event, as the log has it."""
    times = ("notified_at", "ramp_start_at", "start_at", "end_at")
    plain = (
        "source",
        "external_id",
        "external_version",
        "priority",
        "target_kind",
        "value",
        "recovery_s",
        "rebound_limit_share",
        "tolerance",
        "is_test",
        "is_emergency",
        "reference_w",
        "reference_quality",
        "version",
    )
    return {
        "domain": event.domain.name,
        "programme": None if event.programme is None else event.programme.name,
        **{name: getattr(event, name).isoformat() for name in times},
        **{name: getattr(event, name) for name in plain},
    }


def _known(draft: EventDraft) -> DemandResponseEvent | None:
    """The event of this external id, locked."""
    if not draft.external_id:
        return None
    of = {"programme": None} if draft.programme is None else {"programme__name": draft.programme}
    rows = DemandResponseEvent.objects.filter(external_id=draft.external_id, **of)
    event_id = rows.values_list("pk", flat=True).first()
    return None if event_id is None else locked_event(event_id)


def _resolved(draft: EventDraft, known: DemandResponseEvent | None, at: datetime) -> _Resolved:
    """Rows and times for a draft; raises InvalidInput with every fault found."""
    faults: list[dict[str, str]] = []

    def fault(path: str, message: str, code: str = "out_of_range") -> None:
        faults.append({"path": path, "code": code, "message": message})

    domain = Domain.objects.select_related("power_limit").filter(name=draft.domain).first()
    if domain is None:
        fault("domain", "names nothing that is here", "unknown")
    elif domain.kind not in POWER_KINDS:
        fault("domain", f"is a {domain.kind}; events belong to power domains", "invalid")
    elif known is not None and known.domain_id != domain.pk:
        fault("domain", f"was {known.domain} in the version before", "invalid")
    programme = None
    if draft.programme is not None:
        programme = Programme.objects.filter(name=draft.programme).first()
        if programme is None:
            fault("programme", "names nothing that is here", "unknown")
    notified_at = _notified_at(draft, known, at)
    ramp_start_at = draft.ramp_start_at
    if ramp_start_at is None:
        # In an emergency nobody waits: every second from the notice on counts.
        is_slow = programme is not None and not draft.is_emergency
        ramp = timedelta(seconds=programme.ramp_s) if programme and is_slow else draft.start_at - notified_at
        ramp_start_at = max(notified_at, draft.start_at - ramp)
    _check_times(draft, notified_at, ramp_start_at, fault, at, is_new=known is None)
    _check_target(draft, fault)
    if programme is not None and not draft.is_emergency:
        _check_programme(draft, programme, fault)
    if faults or domain is None:
        raise InvalidInput(faults)
    return _Resolved(domain, programme, notified_at, ramp_start_at)


def _notified_at(draft: EventDraft, known: DemandResponseEvent | None, at: datetime) -> datetime:
    """When it is told. What was told already was told then: its reference is of that time."""
    if known is not None and known.notified_at <= at:
        return known.notified_at
    if draft.notified_at is not None:
        return draft.notified_at
    # A source whose clock is ahead of ours, or an order for this very moment.
    return min(at, draft.start_at)


def _check_times(
    draft: EventDraft,
    notified_at: datetime,
    ramp_start_at: datetime,
    fault: Any,
    at: datetime,
    *,
    is_new: bool,
) -> None:
    if draft.end_at <= draft.start_at:
        fault("end_at", "must lie after start_at")
    elif draft.end_at <= at:
        fault("end_at", "must lie in the future")
    elif draft.end_at - draft.start_at > _LONGEST:
        fault("end_at", f"must lie at most {_LONGEST.days} days after start_at")
    if is_new and draft.start_at < at - _BACKDATED:
        fault("start_at", "must not lie in the past")
    elif draft.start_at > at + _AHEAD:
        fault("start_at", f"must lie in the next {_AHEAD.days} days")
    if notified_at > draft.start_at:
        fault("notified_at", "must not lie after start_at")
    elif is_new and draft.notified_at is not None and notified_at < at - _BACKDATED:
        fault("notified_at", "must not lie in the past")
    if not notified_at <= ramp_start_at <= draft.start_at:
        fault("ramp_start_at", "must lie between the notice and start_at")


def _check_target(draft: EventDraft, fault: Any) -> None:
    if draft.target_kind == TargetKind.LEVEL:
        if draft.value not in (0, 1, 2, 3):
            fault("value", "must be a level: 0, 1, 2 or 3")
    elif draft.target_kind == TargetKind.SHED_BY and draft.value <= 0:
        fault("value", "must be more than 0")
    if not 0 <= draft.recovery_s <= LONGEST_RECOVERY_S:
        fault("recovery_s", f"must be at most {LONGEST_RECOVERY_S}")


def _check_programme(draft: EventDraft, programme: Programme, fault: Any) -> None:
    if draft.target_kind != programme.target_kind:
        fault("target_kind", f"must be {programme.target_kind}, as {programme} has it", "invalid")
    lasts_s = (draft.end_at - draft.start_at).total_seconds()
    if lasts_s > 0 and not programme.min_duration_s <= lasts_s <= programme.max_duration_s:
        fault(
            "end_at",
            f"must lie {programme.min_duration_s} to {programme.max_duration_s} s after start_at,"
            f" as {programme} has it",
        )


def _reference(
    draft: EventDraft, resolved: _Resolved, known: DemandResponseEvent | None, at: datetime
) -> Reference | None:
    """What the target counts from: what was frozen, or the load before the notice, or before now."""
    if known is not None and known.reference_w is not None:
        return Reference(known.reference_w, known.reference_quality)
    found = reference_before(resolved.domain, min(at, resolved.notified_at))
    is_needed = draft.target_kind != TargetKind.LIMIT_TO and resolved.notified_at <= at
    if found is None and is_needed:
        raise NoReference(domain=resolved.domain.name)
    return found


def _require_above_floor(
    draft: EventDraft, domain: Domain, reference: Reference | None, floor_w: float
) -> None:
    limit_w = target_it_w(
        TargetKind(draft.target_kind),
        draft.value,
        reference_w=None if reference is None else reference.draw_w,
        meter=meter_of(domain),
    )
    if limit_w is not None and limit_w < floor_w:
        raise TargetBelowFloor(limit_w=limit_w, floor_w=floor_w)


def _require_count(programme: Programme, draft: EventDraft) -> None:
    """Hold an event against how many its programme allows; tests, emergencies, cancelled ones count not."""
    if draft.is_test or draft.is_emergency:
        return
    starts = programme.events.filter(is_test=False, is_emergency=False, cancelled_at=None).values_list(
        "start_at", flat=True
    )
    zone = ZoneInfo(programme.time_zone)
    day = draft.start_at.astimezone(zone).date()
    days = [start_at.astimezone(zone).date() for start_at in starts]
    most_a_day, most_a_season = programme.max_events_per_day, programme.max_events_per_season
    if most_a_day is not None and days.count(day) >= most_a_day:
        raise TooManyEvents(programme=programme.name, allowed=most_a_day, span="day")
    if most_a_season is not None and sum(one.year == day.year for one in days) >= most_a_season:
        raise TooManyEvents(programme=programme.name, allowed=most_a_season, span="season")


def _take(event: DemandResponseEvent, draft: EventDraft, resolved: _Resolved) -> None:
    programme = resolved.programme
    default = _DEFAULT_TOLERANCE if programme is None else programme.tolerance
    for field in _SAID:
        setattr(event, field, getattr(draft, field))
    event.notified_at = resolved.notified_at
    event.ramp_start_at = resolved.ramp_start_at
    event.tolerance = default if draft.tolerance is None else draft.tolerance


_SAID: Final = (
    "external_version",
    "priority",
    "target_kind",
    "value",
    "start_at",
    "end_at",
    "recovery_s",
    "rebound_limit_share",
    "is_test",
    "is_emergency",
    "reason",
)


def _freeze(event: DemandResponseEvent, reference: Reference) -> None:
    event.reference_w, event.reference_quality = reference.draw_w, reference.quality


def _revise(
    event: DemandResponseEvent,
    draft: EventDraft,
    resolved: _Resolved,
    reference: Reference | None,
    *,
    actor: User | None,
    at: datetime,
) -> DemandResponseEvent:
    _require_open(event, at)
    before, ramp_start_at = facts_of(event), event.ramp_start_at
    _take(event, draft, resolved)
    if ramp_start_at <= at:
        # What has begun stays begun: jobs may be held down already, and a cancel has to release them.
        event.ramp_start_at = min(ramp_start_at, event.ramp_start_at)
    if event.reference_w is None and reference is not None and event.notified_at <= at:
        _freeze(event, reference)
    event.version += 1
    event.save()
    _drop_previews(event)
    after = facts_of(event)
    _record("demand_response.revised", event, actor=actor, at=at, before=before, after=after)
    return event


def _give_up(
    event_id: int,
    field: str,
    outcome: Outcome,
    actor: User | None,
    at: datetime,
    version: int | None,
    reason: str,
) -> DemandResponseEvent:
    if actor is not None:
        policies.require_may_operate(actor)
    event = locked_event(event_id)
    if getattr(event, field) is not None:
        return event
    if version is not None and version != event.version:
        raise VersionConflict(
            f"Event {event_id}",
            read=version,
            version=event.version,
            yours={field: True},
            stored=facts_of(event),
        )
    _require_open(event, at)
    if field == "opted_out_at" and event.is_emergency:
        raise NotToBeOptedOut(event_id=event_id)
    setattr(event, field, at)
    event.outcome = outcome
    event.version += 1
    event.save(update_fields=[field, "outcome", "version"])
    _drop_previews(event)
    _record(f"demand_response.{outcome}", event, actor=actor, at=at, reason=reason)
    return event


def _require_open(event: DemandResponseEvent, at: datetime) -> None:
    phase = phase_of_event(event, load=Load(), at=at)
    is_given_up = event.cancelled_at is not None or event.opted_out_at is not None
    if is_given_up or at >= event.end_at or phase in OVER:
        said = phase if phase in OVER else Phase.RECOVERING
        raise EventClosed(event_id=event.pk, phase=said)


def _drop_previews(event: DemandResponseEvent) -> None:
    event.plans.filter(state__in=[PlanState.DRAFT, PlanState.PREVIEWED]).update(state=PlanState.SUPERSEDED)


def _record(
    kind: str,
    event: DemandResponseEvent,
    *,
    actor: User | None,
    at: datetime,
    is_audit: bool = True,
    **more: Any,
) -> None:
    record(
        kind,
        subject_kind="demand_response",
        subject_id=event.pk,
        subject_name=event.domain.name,
        actor=actor,
        at=at,
        is_audit=is_audit,
        **more,
    )

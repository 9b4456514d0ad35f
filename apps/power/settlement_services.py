"""Settling events once they are over, and what else falls due with time. An actor of None is the site itself.

A settlement is made from what is stored alone, so the same facts give the same document, and a second one is not
kept. Readings that come late give a new version; the one before stays.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction

from apps.core.errors import DomainError
from apps.core.locks import session_lock
from apps.events.services import record
from apps.power.errors import EventNotOver, NoReference
from apps.power.models import (
    BaselineMethod,
    CurtailmentPlan,
    DemandResponseEvent,
    LossSource,
    Outcome,
    SettlementReport,
)
from apps.power.response import LEVEL_SHARES, OVER
from apps.power.response_selectors import acts_of, events, loads_of, locked_event, phase_of_event, response_of
from apps.power.response_services import freeze_reference, settle_release
from apps.power.settlement.baseline import (
    METER_S,
    Baseline,
    Calendar,
    Method,
    NoBaseline,
    adjusted,
    meter_before,
    ten_of_ten,
    three_plus_two,
)
from apps.power.settlement.facts import Event, TargetKind, Terms, Window
from apps.power.settlement.report import Settlement, as_dict
from apps.power.settlement.settle import settle
from apps.power.settlement_selectors import (
    Cost,
    Metered,
    Span,
    committed_plans,
    cost_of,
    count_readings,
    latest_settlement,
    latest_settlements,
    metered_within,
    others_on_line,
    padded,
    policies_behind,
)
from apps.teams import policies
from apps.teams.models import User

READINGS_LATE: Final = timedelta(
    minutes=15
)  # before that the last readings of an event are still on their way
RELEASE_LATE: Final = timedelta(hours=24)  # then it is settled though something is still held down
AGAIN_AFTER: Final = timedelta(hours=1)  # late readings come in a trickle: one version for many of them
TAKEN_IN_FOR: Final = timedelta(days=31)  # older readings are not taken in any more
ADJUSTED_OVER: Final = timedelta(hours=3)
ADJUSTED_BEFORE: Final = timedelta(hours=1)  # ends so long before the start
_DEFAULT_INTERVAL_S: Final = 900
_LONGEST_INTERVAL_S: Final = 86_400
_LOCK: Final = 0x5E77_1E
_log = logging.getLogger(__name__)


def settle_due(*, at: datetime) -> None:
    """Whatever falls due with time: references at the notice, releases, settlements. Trouble with one stops no other.

    One holder at a time; twice, late or after a crash it changes nothing more.
    """
    with session_lock(_LOCK) as is_ours:
        if not is_ours:
            return
        for event in events().filter(reference_w=None, notified_at__lte=at, end_at__gt=at):
            _try(event, "freeze the reference", lambda event: freeze_reference(event_id=event.pk, at=at))
        open_ones = list(events().filter(released_at=None, notified_at__lte=at, end_at__gt=at - TAKEN_IN_FOR))
        loads = loads_of(open_ones, at=at)
        for event in open_ones:
            if phase_of_event(event, load=loads[event.pk], at=at) in OVER:
                load = loads[event.pk]
                _try(
                    event,
                    "note the release",
                    lambda event, load=load: settle_release(event_id=event.pk, load=load, at=at),
                )
        told = list(events().filter(notified_at__lte=at, end_at__gt=at - TAKEN_IN_FOR))
        settled = latest_settlements([event.pk for event in told])
        for event in told:
            if _is_due(event, settled.get(event.pk), at=at):
                _try(event, "settle", lambda event: settle_event(event_id=event.pk, actor=None, at=at))


def _try(event: DemandResponseEvent, what: str, act: Any) -> None:
    try:
        act(event)
    except DomainError as refusal:
        _log.info("Event %s: could not %s: %s", event.pk, what, refusal.message)
    except Exception:
        _log.exception("Event %s: could not %s", event.pk, what)


def _is_due(event: DemandResponseEvent, latest: SettlementReport | None, *, at: datetime) -> bool:
    """Whether the beat settles it now: over and its readings in, or settled and readings have come since."""
    over_at = over_from(event)
    if at < over_at + READINGS_LATE:
        return False
    if latest is None:
        return event.released_at is not None or at >= over_at + RELEASE_LATE
    if at < latest.settled_at + AGAIN_AFTER:
        return False
    if event.released_at is not None and event.released_at > latest.settled_at:
        return True
    return count_readings(event.domain_id, _Facts.of(event).spans) > latest.n_readings


def over_from(event: DemandResponseEvent) -> datetime:
    """From when on an event can be settled: its end, or when it was given up; later where its baseline needs more."""
    until_at = max(response_of(event).binds_until_at, event.notified_at)
    is_later = (
        event.programme is not None and event.programme.baseline_method == BaselineMethod.THREE_PLUS_TWO
    )
    return until_at + timedelta(hours=3) if is_later and until_at > event.start_at else until_at


@transaction.atomic
def settle_event(*, event_id: int, actor: User | None, at: datetime, reason: str = "") -> SettlementReport:
    """Settle an event that is over. Where nothing it is made from has changed, the latest version is returned.

    Raises:
        EventNotOver
        NoBaseline: too few good readings for the baseline that was agreed.
        NoReference: a target of a level counts from a reference, and there is none.
    """
    if actor is not None:
        policies.require_may_operate(actor)
    event = locked_event(event_id)
    if at < over_from(event):
        raise EventNotOver(event_id=event.pk, over_at=over_from(event))
    latest = latest_settlement(event)
    document, figures = _settled(event, at)
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    if latest is not None and latest.digest == digest:
        return latest
    report = SettlementReport.objects.create(
        event=event,
        number=1 if latest is None else latest.number + 1,
        event_version=event.version,
        settled_at=at,
        settled_by=actor,
        digest=digest,
        document=document,
        **figures,
    )
    if event.outcome not in (Outcome.CANCELLED, Outcome.OPTED_OUT) and event.outcome != report.outcome:
        event.outcome = report.outcome
        event.save(update_fields=["outcome"])
    record(
        "demand_response.settled",
        subject_kind="demand_response",
        subject_id=event.pk,
        subject_name=event.domain.name,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        before=None if latest is None else _told(latest),
        after=_told(report),
        data={"settlement": report.number, "digest": digest},
    )
    return report


def _told(report: SettlementReport) -> dict[str, Any]:
    money = {name: str(getattr(report, name)) for name in ("payment", "penalty", "net", "currency")}
    return {
        "number": report.number,
        "outcome": report.outcome,
        "credited_wh": str(report.credited_wh),
        "n_readings": report.n_readings,
        **money,
    }


# What it is made from -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Facts:
    """An event as it is settled, by which method, and which readings that takes."""

    asked: Event
    terms: Terms
    method: Method
    calendar: Calendar
    adjustment: Window | None
    others: tuple[DemandResponseEvent, ...]
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, event: DemandResponseEvent) -> "_Facts":
        asked, programme = asked_of(event), event.programme
        method = Method.METER_BEFORE if programme is None else Method(programme.baseline_method)
        lookback = timedelta(days=Calendar().lookback_days + 2)
        others = tuple(
            others_on_line(event, since=event.notified_at - lookback, until=event.end_at + timedelta(hours=3))
        )
        zone = ZoneInfo("UTC" if programme is None else programme.time_zone)
        calendar = Calendar(zone=zone, event_days=frozenset(_days_of(others, zone)))
        adjustment = _adjustment(event, others) if method is Method.TEN_OF_TEN else None
        windows = _windows_needed(asked, method, calendar, adjustment)
        spans = padded([(window.start_at, window.end_at) for window in windows])
        return cls(asked, _terms(event), method, calendar, adjustment, others, tuple(spans))


def asked_of(event: DemandResponseEvent) -> Event:
    """The event as it is settled; a level becomes the watts that it meant."""
    kind, value = event.target_kind, event.value
    if kind == "level":
        if event.reference_w is None:
            raise NoReference(domain=event.domain.name)
        kind, value = "shed_by", LEVEL_SHARES[int(value)] * event.reference_w
    given_up_at = acts_of(event).given_up_at
    return Event(
        event_id=str(event.pk),
        version=event.version,
        priority=event.priority,
        notified_at=event.notified_at,
        start_at=event.start_at,
        end_at=event.end_at,
        target_kind=TargetKind(kind),
        value_w=value,
        # What was called off before it was told binds nobody either.
        cancelled_at=None if given_up_at is None else max(given_up_at, event.notified_at),
    )


def _terms(event: DemandResponseEvent) -> Terms:
    """What was agreed. A drill is measured like an event, and nobody pays for it."""
    programme = event.programme
    is_paid = programme is not None and not event.is_test
    interval_s = _DEFAULT_INTERVAL_S if programme is None else min(programme.interval_s, _LONGEST_INTERVAL_S)
    return Terms(
        price_per_kwh=programme.price_per_kwh if is_paid and programme is not None else Decimal(0),
        penalty_per_kwh=programme.penalty_per_kwh if is_paid and programme is not None else Decimal(0),
        tolerance_share=event.tolerance,
        interval_s=interval_s,
        currency=settings.SWITCHYARD_CURRENCY,
    )


def _days_of(others: Sequence[DemandResponseEvent], zone: ZoneInfo) -> set[Any]:
    """Days on which the load was held down, or came back."""
    days = set()
    for other in others:
        at = other.ramp_start_at
        until_at = response_of(other).binds_until_at + timedelta(seconds=other.recovery_s)
        while at <= until_at:
            days.add(at.astimezone(zone).date())
            at += timedelta(days=1)
        days.add(until_at.astimezone(zone).date())
    return days


def _adjustment(event: DemandResponseEvent, others: Sequence[DemandResponseEvent]) -> Window | None:
    """Where the day of the event is compared with earlier ones: three hours, up to one hour before its start.

    Never after the notice, and before that of any other event that held the load down or let it rise meanwhile.
    None: no such hours within a day before the start.
    """
    until_at = min(event.start_at - ADJUSTED_BEFORE, event.notified_at)
    for other in sorted(others, key=lambda one: one.notified_at, reverse=True):
        back_at = response_of(other).binds_until_at + timedelta(seconds=other.recovery_s)
        if other.notified_at < until_at and back_at > until_at - ADJUSTED_OVER:
            until_at = other.notified_at
    if until_at < event.start_at - timedelta(days=1):
        return None
    return Window.of(until_at - ADJUSTED_OVER, until_at)


def _windows_needed(
    asked: Event, method: Method, calendar: Calendar, adjustment: Window | None
) -> list[Window]:
    bound = asked.bound
    if bound is None:
        return []
    needed = [bound]
    if method is Method.METER_BEFORE:
        needed.append(Window.of(asked.notified_at - timedelta(seconds=METER_S), asked.notified_at))
    elif method is Method.SAME_DAY:
        hour = timedelta(hours=1)
        until_at = min(asked.start_at - hour, asked.notified_at)
        needed.append(Window.of(until_at - 3 * hour, until_at))
        needed.append(Window.of(bound.end_at + hour, bound.end_at + 3 * hour))
    else:
        like = [bound] if adjustment is None else [bound, adjustment]
        needed += [
            calendar.earlier(window, back) for back in range(1, calendar.lookback_days + 1) for window in like
        ]
        needed += [] if adjustment is None else [adjustment]
    return needed


# The settlement -----------------------------------------------------------------------------------------------------


def _settled(event: DemandResponseEvent, at: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document of a settlement, and the figures that are columns as well."""
    facts = _Facts.of(event)
    metered = metered_within(event.domain_id, facts.spans)
    notes: list[str] = []
    baseline = _baseline(facts, metered, notes)
    overlapping = [one for one in facts.others if _overlaps(one, facts.asked)]
    same_meter = [] if event.is_test else [asked_of(o) for o in overlapping if o.domain_id == event.domain_id]
    statement = settle(facts.asked, facts.terms, baseline, metered.readings, others=same_meter)
    plans = committed_plans(event)
    cost = cost_of(event, plans, at=at)
    notes += _notes(event, facts, metered, overlapping, cost)
    by_policy = policies_behind(event)
    last = plans[-1] if plans else None
    settlement = Settlement(
        event=facts.asked,
        terms=facts.terms,
        baseline=baseline,
        statement=statement,
        committed_by="nobody" if last is None else _committer(last, by_policy),
        plan_hash="" if last is None else last.inputs_hash,
        jobs=cost.jobs,
        versions={
            "event": event.version,
            **({} if event.programme is None else {"programme": event.programme.version}),
            **({} if last is None else {"plan": last.number}),
        },
    )
    told = as_dict(settlement)
    lost_device_h = (cost.lost_device_s / 3600).quantize(Decimal("0.000001"))
    for job in told["jobs"]:
        if job["id"] in cost.unknown:
            job["lost_device_h"] = None
    given_up = event.outcome if event.outcome in (Outcome.CANCELLED, Outcome.OPTED_OUT) else ""
    outcome = str(given_up or statement.outcome)
    document = told | {
        "domain": event.domain.name,
        "programme": None if event.programme is None else event.programme.name,
        "is_test": event.is_test,
        "asked": {"target_kind": event.target_kind, "value": event.value},
        "reference_w": event.reference_w,
        "event_outcome": outcome,
        "lost_device_h": str(lost_device_h),
        "lost_source": cost.source.value,
        "readings": {
            "n": metered.n_readings,
            "n_modelled": metered.n_modelled,
            "max_age_s": metered.max_age_s,
        },
        "plans": [
            {
                "number": plan.number,
                "inputs_hash": plan.inputs_hash,
                "committed_at": None if plan.committed_at is None else plan.committed_at.isoformat(),
                "committed_by": _committer(plan, by_policy),
                "approved_by": None if plan.approved_by is None else plan.approved_by.get_username(),
            }
            for plan in plans
        ],
        "notes": notes,
    }
    names = (
        "target_wh",
        "delivered_wh",
        "credited_wh",
        "shortfall_wh",
        "payment",
        "penalty",
        "net",
        "currency",
    )
    figures = {
        **{name: getattr(statement, name) for name in names},
        "outcome": outcome,
        "performance": statement.performance,
        "lost_device_h": lost_device_h,
        "lost_source": cost.source,
        "n_jobs": len(cost.jobs),
        "n_readings": metered.n_readings,
    }
    return document, figures


def _overlaps(other: DemandResponseEvent, asked: Event) -> bool:
    bound = asked.bound
    begin_at, until_at = other.start_at, response_of(other).binds_until_at
    if bound is None or until_at <= begin_at or (other.target_kind == "level" and other.reference_w is None):
        return False
    return begin_at < bound.end_at and until_at > bound.start_at


def _baseline(facts: _Facts, metered: Metered, notes: list[str]) -> Baseline:
    asked, readings = facts.asked, metered.readings
    windows = asked.windows(facts.terms.interval_s)
    if not windows:
        return Baseline(facts.method, (), (), (), calendar=facts.calendar)
    if facts.method is Method.METER_BEFORE:
        return meter_before(readings, windows, notified_at=asked.notified_at)
    if facts.method is Method.SAME_DAY:
        return three_plus_two(readings, windows, notified_at=asked.notified_at)
    raw = ten_of_ten(readings, windows, facts.calendar)
    if facts.adjustment is None:
        notes.append("The baseline is not adjusted: other events held the load down all the day before.")
        return raw
    try:
        return adjusted(raw, readings, window=facts.adjustment, notified_at=asked.notified_at)
    except NoBaseline as refusal:
        notes.append(f"The baseline is not adjusted: {refusal.message}")
        return raw


def _notes(
    event: DemandResponseEvent,
    facts: _Facts,
    metered: Metered,
    overlapping: Sequence[DemandResponseEvent],
    cost: Cost,
) -> list[str]:
    """What a reader should know, as sentences."""
    notes = []
    if event.is_test:
        notes.append("A drill: nothing was done to any job, and nobody pays.")
    if event.opted_out_at is not None:
        notes.append("Opted out: settled up to then.")
    elif event.cancelled_at is not None:
        notes.append("Cancelled: settled up to then.")
    if metered.n_modelled:
        notes.append(
            f"{metered.n_modelled} readings are modelled, where no meter said anything: they count as estimates,"
            " and earn nothing."
        )
    if facts.method is Method.METER_BEFORE:
        notes += [
            f"Event {one.pk} held the load down at the notice: the baseline is lower for it."
            for one in facts.others
            if one.domain_id == event.domain_id
            and one.ramp_start_at <= event.notified_at < response_of(one).binds_until_at
        ]
    notes += [
        f"Event {one.pk} on {one.domain.name} bound meanwhile: the same watts may be counted there too."
        for one in overlapping
        if one.domain_id != event.domain_id
    ]
    if cost.source is LossSource.PLAN:
        notes.append("Lost device-hours are those that the plan predicted.")
    return notes


def _committer(plan: CurtailmentPlan, by_policy: Mapping[int, Mapping[str, Any]]) -> str:
    if plan.committed_by is not None:
        return plan.committed_by.get_username()
    policy = by_policy.get(plan.number)
    if policy is None:
        return "Switchyard"
    approver = policy.get("approved_by")
    said = f"policy {policy['name']} of {policy['programme']}, version {policy['programme_version']}"
    return f"{said}, approved by {approver}" if approver else said

"""Demand response as it stands: programmes, events with their phases, what they leave each domain to draw."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from apps.core.errors import NotFound
from apps.inventory.models import Domain, DomainKind
from apps.power.models import (
    LONGEST_RECOVERY_S,
    ActionState,
    CurtailmentAction,
    CurtailmentPlan,
    DemandResponseEvent,
    PowerReading,
    Programme,
    ReadingQuality,
)
from apps.power.response import (
    Acts,
    Load,
    Meter,
    Phase,
    Response,
    TargetKind,
    Times,
    effective_limit_w,
    phase_of,
)
from apps.power.selectors import FRESH, latest_readings

REFERENCE: Final = timedelta(minutes=15)
# An event may count for the rebound of one that was announced while it bound: twice the longest recovery.
_LOOKED_BACK: Final = timedelta(seconds=2 * LONGEST_RECOVERY_S)
_MOST_MISSING: Final = 0.2  # of the readings; with more of them bad the mean is an estimate


def programmes() -> QuerySet[Programme]:
    return Programme.objects.select_related("emergency_policy_by", "asked_emergency_policy_by")


_COMMITTED: Final = CurtailmentPlan.objects.filter(event=OuterRef("pk"), committed_at__isnull=False)


def events() -> QuerySet[DemandResponseEvent]:
    """All events, with what their phase follows from at hand. Everybody signed in may see them."""
    plans = _COMMITTED
    actions = CurtailmentAction.objects.filter(plan__event=OuterRef("pk")).exclude(state=ActionState.REVERTED)
    return DemandResponseEvent.objects.select_related(
        "domain__power_limit", "programme", "created_by"
    ).annotate(has_committed_plan=Exists(plans), has_open_actions=Exists(actions))


def answered() -> QuerySet[DemandResponseEvent]:
    """Those of events() that somebody has committed a plan for."""
    return events().filter(Exists(_COMMITTED))


def unanswered() -> QuerySet[DemandResponseEvent]:
    """Those of events() that nobody has committed a plan for."""
    return events().filter(~Exists(_COMMITTED))


def event_by_id(event_id: int) -> DemandResponseEvent:
    """One of events(); raises NotFound."""
    # A number that no column can hold names nothing.
    found = events().filter(pk=event_id).first() if event_id < 2**63 else None
    if found is None:
        raise NotFound(f"There is no event {event_id}.")
    return found


def recent_events(at: datetime) -> QuerySet[DemandResponseEvent]:
    """Events that have not ended, or whose recovery may still count; the earliest first."""
    return events().filter(end_at__gt=at - _LOOKED_BACK).order_by("start_at", "id")


def locked_event(event_id: int) -> DemandResponseEvent:
    """An event of events(), locked until the transaction ends; raises NotFound."""
    # First the lock, then the facts: one statement would tell of plans as they were before it had to wait.
    locked = DemandResponseEvent.objects.select_for_update(no_key=True).filter(pk=event_id).first()
    if locked is None:
        raise NotFound("There is no such event.")
    return events().get(pk=event_id)


def plans_of(event: DemandResponseEvent) -> QuerySet[CurtailmentPlan]:
    """Plans of one event with their actions, any order."""
    return event.plans.select_related("created_by", "approved_by", "committed_by").prefetch_related("actions")


def meter_of(domain: Domain) -> Meter:
    """How readings of this domain follow from its IT load: facilities are read at their meter."""
    limit = getattr(domain, "power_limit", None)
    if limit is None or domain.kind != DomainKind.FACILITY:
        return Meter()
    return Meter(limit.overhead_fixed_w, limit.overhead_k)


def times_of(event: DemandResponseEvent) -> Times:
    return Times(
        notified_at=event.notified_at,
        ramp_start_at=event.ramp_start_at,
        start_at=event.start_at,
        end_at=event.end_at,
    )


def acts_of(event: DemandResponseEvent) -> Acts:
    return Acts(
        cancelled_at=event.cancelled_at, opted_out_at=event.opted_out_at, released_at=event.released_at
    )


def response_of(event: DemandResponseEvent) -> Response:
    """The event as the pure functions know it."""
    return Response(
        times=times_of(event),
        acts=acts_of(event),
        target_kind=TargetKind(event.target_kind),
        value=event.value,
        reference_w=event.reference_w,
        recovery_s=event.recovery_s,
        rebound_limit_share=event.rebound_limit_share,
        priority=event.priority,
        is_test=event.is_test,
    )


def phase_of_event(event: DemandResponseEvent, *, load: Load, at: datetime) -> Phase:
    """Where an event of events() stands."""
    facts: Any = event  # annotated
    return phase_of(
        times_of(event),
        acts_of(event),
        has_committed_plan=facts.has_committed_plan,
        is_all_reverted=not facts.has_open_actions,
        load=load,
        at=at,
    )


def loads_of(events: Sequence[DemandResponseEvent], *, at: datetime) -> Mapping[int, Load]:
    """By event id, what its domain draws and may come back to while it recovers; one query for all."""
    latest = latest_readings(sorted({event.domain_id for event in events}))
    loads = {}
    for event in events:
        reading = latest.get(event.domain_id)
        is_usable = reading is not None and reading.at >= at - FRESH and reading.quality in _USABLE
        loads[event.pk] = Load(
            draw_w=reading.draw_w if is_usable and reading is not None else None,
            allowed_w=rebound_limit_w(event, at),
        )
    return loads


def rebound_limit_w(event: DemandResponseEvent, at: datetime) -> float | None:
    """What an event's domain may come back to while it recovers, on its own side of the meter; None: anything."""
    if event.reference_w is None or not response_of(event).rebounds(at):
        return None
    return event.reference_w * event.rebound_limit_share


def event_limits_w(at: datetime) -> Mapping[int, float]:
    """By domain id, the IT load that its events leave it at this instant; absent: they leave it alone.

    A domain is also bound by the limits of all above it; that is for whoever knows the tree.
    """
    rows = DemandResponseEvent.objects.filter(
        start_at__lte=at, end_at__gt=at - _LOOKED_BACK, is_test=False
    ).select_related("domain__power_limit")
    return limits_of(rows, at=at)


def limits_of(rows: Iterable[DemandResponseEvent], *, at: datetime) -> Mapping[int, float]:
    """The same of these events alone: what a calendar asks at each instant, of rows that were read once."""
    told: dict[int, list[Response]] = defaultdict(list)
    meters: dict[int, Meter] = {}
    for event in rows:
        told[event.domain_id].append(response_of(event))
        meters[event.domain_id] = meter_of(event.domain)
    found = {
        domain_id: effective_limit_w(responses, meter=meters[domain_id], at=at)
        for domain_id, responses in told.items()
    }
    return {domain_id: limit_w for domain_id, limit_w in found.items() if limit_w is not None}


@dataclass(frozen=True, slots=True)
class Reference:
    """What a domain drew before a notice, on its own side of the meter."""

    draw_w: float
    quality: str


_USABLE: Final = (ReadingQuality.OK, ReadingQuality.ESTIMATED)


def reference_before(domain: Domain, at: datetime) -> Reference | None:
    """Mean of the readings of the 15 minutes before; None: none of them says anything.

    What a meter said counts before what was estimated or modelled.
    """
    rows = list(
        PowerReading.objects.filter(domain=domain, at__gte=at - REFERENCE, at__lt=at).order_by("at", "id")
    )
    metered = [row for row in rows if row.source != "modelled"]
    good = [row.draw_w for row in metered if row.quality == ReadingQuality.OK]
    if good:
        is_whole = len(good) >= (1 - _MOST_MISSING) * len(metered)
        quality = ReadingQuality.OK if is_whole else ReadingQuality.ESTIMATED
        return Reference(sum(good) / len(good), quality)
    usable = [row.draw_w for row in rows if row.quality in _USABLE]
    return Reference(sum(usable) / len(usable), ReadingQuality.ESTIMATED) if usable else None


_IDLE: Final = """
WITH RECURSIVE below(id) AS (
    SELECT %s::bigint
    UNION
    SELECT domain.id FROM inventory_domain domain JOIN below ON domain.parent_id = below.id
)
SELECT sum(node.idle_w + node.n_devices * kind.idle_w)
FROM inventory_node node
JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
WHERE node.power_id IN (SELECT id FROM below)
"""


def idle_floor_w(domain: Domain) -> float:
    """IT load of a domain whose nodes are all on and at rest: pausing work gets it no lower."""
    with connection.cursor() as cursor:
        cursor.execute(_IDLE, [domain.pk])
        return float(cursor.fetchone()[0] or 0.0)

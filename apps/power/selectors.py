"""How many watts each domain may draw, and what it was seen to draw."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from django.db.models import Case, IntegerField, QuerySet, Value, When

from apps.inventory.models import POWER_KINDS, Domain, DomainKind
from apps.power.budget import Budget, Step
from apps.power.models import MODELLED, EnvelopeStep, PowerAlarm, PowerLimit, PowerReading


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the whole facility may draw, and the domain that says so."""

    domain_id: int
    domain: str
    limit_w: float  # of IT load
    meter_limit_w: float  # the same at the meter, cooling and losses included
    is_sum_of_halls: bool = False


def budget_of(limit: PowerLimit) -> Budget:
    """What is set for a domain, its envelope too, as the pure functions know it."""
    return _budget(limit, () if limit.pk is None else [step_of(row) for row in limit.envelope.all()])


def _budget(limit: PowerLimit, steps: Iterable[Step]) -> Budget:
    return Budget(
        rated_w=limit.rated_w,
        derate=limit.derate,
        hard_limit_w=limit.hard_limit_w,
        reserve_w=limit.reserve_w,
        limit_w=limit.limit_w,
        steps=tuple(steps),
        zone=zone_named(limit.time_zone),
    )


def step_of(row: EnvelopeStep) -> Step:
    return Step(row.limit_w, row.weekdays, row.from_minute, row.until_minute, row.start_at, row.end_at)


@cache
def zone_named(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def budgets() -> dict[int, tuple[PowerLimit, Budget]]:
    """By domain id, the limits of those domains that have an envelope; nothing is read where there is none."""
    steps: dict[int, list[Step]] = defaultdict(list)
    limits: dict[int, PowerLimit] = {}
    for row in EnvelopeStep.objects.select_related("limit__domain").order_by("id"):
        steps[row.limit_id].append(step_of(row))
        limits[row.limit_id] = row.limit
    return {limit.domain_id: (limit, _budget(limit, steps[key])) for key, limit in limits.items()}


def steady_limit_w(limit: PowerLimit) -> float | None:
    """What holds whatever the hour, as it is set."""
    binding = budget_of(limit).steady()
    return None if binding is None else binding.limit_w


def tightest_w(limit: PowerLimit, at: datetime) -> float | None:
    """What holds then, as it is set, events aside."""
    binding = budget_of(limit).at(at)
    return None if binding is None else binding.limit_w


def it_w_of(limit: PowerLimit, watts: float) -> float:
    """A limit of a domain as IT load: limits of a facility are at its meter."""
    if limit.domain.kind != DomainKind.FACILITY:
        return watts
    return max(0.0, (watts - limit.overhead_fixed_w) / limit.overhead_k)


def it_limit_w(limit: PowerLimit, at: datetime) -> float | None:
    """What holds then, as IT load."""
    watts = tightest_w(limit, at)
    return None if watts is None else it_w_of(limit, watts)


def limits() -> QuerySet[PowerLimit]:
    """All limits, with their domains and envelopes."""
    return PowerLimit.objects.select_related("domain").prefetch_related("envelope").order_by("domain__name")


def envelope(rows: Sequence[PowerLimit], at: datetime) -> Envelope | None:
    """The limit of the facility; where none is set, the sum over the halls if each has one."""
    for limit in rows:
        if limit.domain.kind == DomainKind.FACILITY and (watts := it_limit_w(limit, at)) is not None:
            return Envelope(limit.domain_id, limit.domain.name, watts, tightest_w(limit, at) or 0.0)
    halls = [it_limit_w(limit, at) for limit in rows if limit.domain.kind == DomainKind.HALL]
    known = [watts for watts in halls if watts is not None]
    if not known or len(known) < len(halls):
        return None
    return Envelope(0, "halls", sum(known), sum(known), is_sum_of_halls=True)


def readings_since(since: datetime, kinds: Sequence[str]) -> QuerySet[PowerReading]:
    """Readings of domains of these kinds from then on, the oldest first."""
    return (
        PowerReading.objects.filter(at__gte=since, domain__kind__in=kinds)
        .select_related("domain")
        .order_by("at", "id")
    )


FRESH = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Draw:
    """What the facility draws now, in watts of IT load."""

    draw_w: float
    at: datetime
    is_modelled: bool


def it_draw(readings: Iterable[PowerReading], at: datetime) -> Draw | None:
    """The latest readings of the halls added up, or else of the facility; None when none is fresh.

    Args:
        readings: Of halls and facilities, the oldest first.
    """
    fresh = [reading for reading in readings if reading.at >= at - FRESH]
    # What a meter says goes before what the model says beside it.
    latest = {reading.domain_id: reading for reading in sorted(fresh, key=lambda one: one.source != MODELLED)}
    halls = [reading for reading in latest.values() if reading.domain.kind == DomainKind.HALL]
    facilities = [reading for reading in latest.values() if reading.domain.kind == DomainKind.FACILITY]
    chosen = halls or facilities
    if not chosen:
        return None
    draw_w = (
        sum(reading.draw_w for reading in halls) if halls else sum(_it_w(reading) for reading in facilities)
    )
    is_modelled = any(reading.source == "modelled" for reading in chosen)
    return Draw(draw_w, max(reading.at for reading in chosen), is_modelled)


def _it_w(reading: PowerReading) -> float:
    """A reading of a facility is at its meter, cooling and losses included."""
    limit = PowerLimit.objects.filter(domain_id=reading.domain_id).first()
    if limit is None:
        return reading.draw_w
    return max(0.0, (reading.draw_w - limit.overhead_fixed_w) / limit.overhead_k)


def power_domains() -> QuerySet[Domain]:
    """Domains that may have a limit, with it and with what they hang below at hand."""
    kinds = (*POWER_KINDS, DomainKind.COOLING)
    rows = Domain.objects.filter(kind__in=kinds).select_related("parent", "power_limit")
    return rows.prefetch_related("power_limit__envelope")


def latest_readings(domain_ids: Sequence[int]) -> dict[int, PowerReading]:
    """The last reading of each domain, by its id; two look-ups by index for each, in one query.

    While a meter speaks, what the model said a moment later does not count.
    """
    rows = PowerReading.objects.raw(
        "SELECT reading.* FROM unnest(%s::bigint[]) AS wanted(id), LATERAL ("
        "  (SELECT * FROM power_powerreading WHERE domain_id = wanted.id ORDER BY at DESC, id DESC LIMIT 1)"
        "  UNION ALL (SELECT * FROM power_powerreading WHERE domain_id = wanted.id AND NOT (source = 'modelled')"
        "   ORDER BY at DESC, id DESC LIMIT 1)"
        ") reading",
        [list(domain_ids)],
    )
    newest: dict[int, PowerReading] = {}
    metered: dict[int, PowerReading] = {}
    for row in rows:
        if row.domain_id not in newest or row.at > newest[row.domain_id].at:
            newest[row.domain_id] = row
        if row.source != MODELLED:
            metered[row.domain_id] = row
    spoken = {key: row for key, row in metered.items() if row.at >= newest[key].at - FRESH}
    return newest | spoken


def readings_of(domain: Domain, *, begin_at: datetime, end_at: datetime) -> QuerySet[PowerReading]:
    """Readings of one domain in [begin_at, end_at)."""
    return PowerReading.objects.filter(domain=domain, at__gte=begin_at, at__lt=end_at)


def alarms() -> QuerySet[PowerAlarm]:
    """What the watchdog found wrong, with `is_over`: 0 for those that are open, 1 for the others."""
    is_over = Case(When(cleared_at=None, then=Value(0)), default=Value(1), output_field=IntegerField())
    return PowerAlarm.objects.select_related("domain").annotate(is_over=is_over)

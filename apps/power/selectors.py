"""How many watts each domain may draw, and what it was seen to draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from apps.inventory.models import DomainKind
from apps.power.models import PowerLimit, PowerReading


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the whole facility may draw, and the domain that says so."""

    domain_id: int
    domain: str
    limit_w: float  # of IT load
    meter_limit_w: float  # the same at the meter, cooling and losses included
    is_sum_of_halls: bool = False


def tightest_w(limit: PowerLimit) -> float | None:
    """The tighter of the two limits, as it is set."""
    known = [value for value in (limit.limit_w, limit.hard_limit_w) if value is not None]
    return min(known) if known else None


def it_limit_w(limit: PowerLimit) -> float | None:
    """The tighter of the two limits, as IT load: limits of a facility are at its meter."""
    watts = tightest_w(limit)
    if watts is None or limit.domain.kind != DomainKind.FACILITY:
        return watts
    return max(0.0, (watts - limit.overhead_fixed_w) / limit.overhead_k)


def limits() -> QuerySet[PowerLimit]:
    """All limits, with their domains."""
    return PowerLimit.objects.select_related("domain").order_by("domain__name")


def envelope(rows: Sequence[PowerLimit]) -> Envelope | None:
    """The limit of the facility; where none is set, the sum over the halls if each has one."""
    for limit in rows:
        if limit.domain.kind == DomainKind.FACILITY and (watts := it_limit_w(limit)) is not None:
            return Envelope(limit.domain_id, limit.domain.name, watts, tightest_w(limit) or 0.0)
    halls = [it_limit_w(limit) for limit in rows if limit.domain.kind == DomainKind.HALL]
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

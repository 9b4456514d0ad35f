"""What meters last said of each domain, and what they said over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection

from apps.inventory.models import POWER_KINDS, DomainKind
from apps.power.models import MODELLED, USUAL_MAX_AGE_S, MeterSource, PowerReading
from apps.power.response import Meter

# A meter that was silent for longer is taken to be gone: nobody waits for it any more.
EXPECTED_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class DomainRow:
    """A domain of the power tree with its limits, as they are set: a facility's are at its meter."""

    id: int
    name: str
    kind: str
    parent_id: int | None
    limit_w: float | None  # what holds whatever the hour
    meter: Meter
    max_age_s: float
    has_envelope: bool = False

    @property
    def it_limit_w(self) -> float | None:
        return None if self.limit_w is None else self.meter.it_w(self.limit_w)


def domain_rows() -> list[DomainRow]:
    """All domains that power flows through, by name; one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT domain.id, domain.name, domain.kind, domain.parent_id, power.steady_w,"
            " coalesce(power.overhead_fixed_w, 0), coalesce(power.overhead_k, 1), coalesce(power.max_age_s, %s),"
            " EXISTS (SELECT 1 FROM power_envelopestep step WHERE step.limit_id = power.id)"
            " FROM inventory_domain domain LEFT JOIN power_powerlimit power ON power.domain_id = domain.id"
            " WHERE domain.kind = ANY(%s) ORDER BY domain.name",
            [USUAL_MAX_AGE_S, [kind.value for kind in POWER_KINDS]],
        )
        rows = cursor.fetchall()
    known = {row[0] for row in rows}
    return [
        DomainRow(
            id=domain_id,
            name=name,
            kind=kind,
            parent_id=parent_id if parent_id in known else None,
            limit_w=limit_w,
            meter=Meter(fixed_w, k) if kind == DomainKind.FACILITY else Meter(),
            max_age_s=max_age_s,
            has_envelope=has_envelope,
        )
        for domain_id, name, kind, parent_id, limit_w, fixed_w, k, max_age_s, has_envelope in rows
    ]


@dataclass(frozen=True, slots=True)
class Word:
    """One reading, on the domain's own side of the meter."""

    draw_w: float
    at: datetime
    quality: str
    source: str


@dataclass(frozen=True, slots=True)
class LastWords:
    """The last that was said of one domain; None: nothing."""

    metered: Word | None
    modelled: Word | None


_LAST_WORDS: Final = """
SELECT wanted.id, metered.draw_w, metered.at, metered.quality, metered.source,
    modelled.draw_w, modelled.at, modelled.quality, modelled.source
FROM unnest(%s::bigint[]) AS wanted(id)
LEFT JOIN LATERAL (
    SELECT draw_w, at, quality, source FROM power_powerreading
    WHERE domain_id = wanted.id AND NOT (source = 'modelled') AND at > %s ORDER BY at DESC, id DESC LIMIT 1
) metered ON true
LEFT JOIN LATERAL (
    SELECT draw_w, at, quality, source FROM power_powerreading
    WHERE domain_id = wanted.id AND source = 'modelled' AND at > %s ORDER BY at DESC LIMIT 1
) modelled ON true
"""


def last_words(domain_ids: Sequence[int], *, at: datetime) -> Mapping[int, LastWords]:
    """By domain id, what its meter and the model said last; two looks by index a domain, in one query."""
    with connection.cursor() as cursor:
        cursor.execute(_LAST_WORDS, [list(domain_ids), at - EXPECTED_FOR, at - timedelta(hours=1)])
        return {row[0]: LastWords(_word(row[1:5]), _word(row[5:9])) for row in cursor.fetchall()}


def _word(row: Sequence[Any]) -> Word | None:
    return None if row[1] is None else Word(*row)


def latest_reading_id() -> int:
    """Grows with every reading that is taken in; 0: there is none."""
    return PowerReading.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def meters() -> list[MeterSource]:
    """Where readings are fetched from, by name."""
    return list(MeterSource.objects.order_by("name"))


def load_history(
    domain_ids: Sequence[int], *, since: datetime, until: datetime, step_s: float
) -> Mapping[int, list[tuple[datetime, float, bool]]]:
    """By domain id, the mean of each step: (begin, W on its own side of the meter, whether a meter said it).

    Where a meter spoke, what the model said beside it does not count. One query.
    """
    found: dict[int, list[tuple[datetime, float, bool]]] = {domain_id: [] for domain_id in domain_ids}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT domain_id, date_bin(make_interval(secs => %s), at, 'epoch'::timestamptz) AS step,"
            " avg(draw_w) FILTER (WHERE source <> %s AND quality = ANY('{ok,estimated}')), avg(draw_w) FILTER"
            " (WHERE source = %s) FROM power_powerreading WHERE domain_id = ANY(%s) AND at >= %s AND at <= %s"
            " GROUP BY 1, 2 ORDER BY 1, 2",
            [step_s, MODELLED, MODELLED, list(domain_ids), since, until],
        )
        for domain_id, step, metered_w, modelled_w in cursor.fetchall():
            draw_w = modelled_w if metered_w is None else metered_w
            if draw_w is not None:
                found[domain_id].append((step, draw_w, metered_w is not None))
    return found

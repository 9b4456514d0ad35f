"""Setting limits, and taking in what domains were seen to draw. An actor of None is the site itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db import connection, transaction

from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.events.services import record
from apps.inventory.models import POWER_KINDS, Domain, DomainKind
from apps.power.budget import Step, clock_of, days_of
from apps.power.models import METERED, MODELLED, EnvelopeStep, PowerLimit, PowerReading, ReadingQuality
from apps.power.selectors import step_of
from apps.teams import policies
from apps.teams.models import User

FIELDS: Final = (
    "rated_w",
    "derate",
    "reserve_w",
    "hard_limit_w",
    "limit_w",
    "ramp_up_w_per_s",
    "overhead_fixed_w",
    "overhead_k",
    "max_age_s",
)
OLDEST: Final = timedelta(days=30)
AHEAD: Final = timedelta(minutes=5)  # clocks differ
_MOST_FAULTS: Final = 100
_KINDS: Final = (*POWER_KINDS, DomainKind.COOLING)


@transaction.atomic
def set_limit(
    *,
    domain_id: int,
    changes: Mapping[str, float | None],
    actor: User | None,
    at: datetime,
    version: int | None = None,
    reason: str = "",
) -> PowerLimit:
    """Change what a domain may draw: any of FIELDS; those absent stay, a limit of None is no limit.

    In force at once; what draws more is throttled or waits, it is not this function's to stop.

    Args:
        version: Of the limit that the change is based on (1 where there is none yet); None: whatever it is.

    Raises:
        VersionConflict: somebody changed it meanwhile.
        InvalidInput: an operating limit over the hard limit, or a field that its kind of domain does not have.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    domain = Domain.objects.select_for_update(no_key=True).filter(pk=domain_id).first()
    if domain is None:
        raise NotFound("There is no such domain.")
    limit = PowerLimit.objects.filter(domain=domain).first() or PowerLimit(domain=domain)
    before = facts_of(limit)
    if version is not None and version != limit.version:
        raise VersionConflict(
            f"The limit of {domain}",
            read=version,
            version=limit.version,
            yours=before | dict(changes),
            stored=before,
        )
    for field, value in changes.items():
        assert field in FIELDS, field
        setattr(limit, field, value)
    _require_sense(limit, changes)
    after = facts_of(limit)
    if after == before and limit.pk is not None:
        return limit
    if limit.pk is not None:
        limit.version += 1
    limit.save()
    record(
        "power.limit_changed",
        subject_kind="domain",
        subject_id=domain.pk,
        subject_name=domain.name,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        before=before,
        after=after,
    )
    return limit


MOST_STEPS: Final = 100


@transaction.atomic
def set_envelope(
    *,
    domain_id: int,
    steps: Sequence[Step],
    time_zone: str,
    actor: User | None,
    at: datetime,
    version: int | None = None,
    reason: str = "",
) -> PowerLimit:
    """Say anew what a domain may draw at which hours; no step at all is no envelope.

    The planner knows of coming steps: what would run into a lower one waits, or starts under a cap that its tier bears.

    Args:
        time_zone: Whose hours and days are meant.
        version: As for set_limit().

    Raises:
        VersionConflict, NotFound
        InvalidInput: an unknown time zone, a step without length, or too many of them.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    domain = Domain.objects.select_for_update(no_key=True).filter(pk=domain_id).first()
    if domain is None:
        raise NotFound("There is no such domain.")
    limit = PowerLimit.objects.filter(domain=domain).first() or PowerLimit(domain=domain)
    before = envelope_facts(limit)
    after = {"time_zone": time_zone, "steps": [facts_of_step(step) for step in steps]}
    if version is not None and version != limit.version:
        raise VersionConflict(
            f"The limit of {domain}", read=version, version=limit.version, yours=after, stored=before
        )
    _require_envelope(domain.kind, steps, time_zone)
    if after == before:
        return limit
    limit.time_zone = time_zone
    if limit.pk is not None:
        limit.version += 1
    limit.save()
    limit.envelope.all().delete()
    EnvelopeStep.objects.bulk_create([EnvelopeStep(limit=limit, **asdict(step)) for step in steps])
    record(
        "power.envelope_changed",
        subject_kind="domain",
        subject_id=domain.pk,
        subject_name=domain.name,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        before=before,
        after=after,
    )
    return limit


def envelope_facts(limit: PowerLimit) -> dict[str, Any]:
    rows = [] if limit.pk is None else limit.envelope.order_by("id")
    return {"time_zone": limit.time_zone, "steps": [facts_of_step(step_of(row)) for row in rows]}


def facts_of_step(step: Step) -> dict[str, Any]:
    """A step as it goes over the wire and into the audit trail."""
    if step.start_at is not None and step.end_at is not None:
        begins_at, ends_at = (at.astimezone(UTC).isoformat() for at in (step.start_at, step.end_at))
        return {"start_at": begins_at, "end_at": ends_at, "limit_w": step.limit_w}
    return {
        "days": list(days_of(step.weekdays)),
        "from_time": clock_of(step.from_minute),
        "until_time": clock_of(step.until_minute),
        "limit_w": step.limit_w,
    }


def _require_envelope(kind: str, steps: Sequence[Step], time_zone: str) -> None:
    if kind not in _KINDS:
        raise InvalidInput.of("domain", f"is a {kind}; limits belong to power domains and cooling")
    if len(steps) > MOST_STEPS:
        raise InvalidInput.of("steps", f"are at most {MOST_STEPS}", "out_of_range")
    try:
        ZoneInfo(time_zone)
    except (KeyError, ValueError, OSError):  # the latter for a name that is a folder of the zones
        said = "must be a time zone such as America/Chicago"
        raise InvalidInput.of("time_zone", said, "unknown") from None
    # The watchdog asks the database for the hour: a zone that it does not know would blind it for every domain.
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_timezone_names WHERE name = %s)", [time_zone])
        if cursor.fetchone() != (True,):
            raise InvalidInput.of("time_zone", "is not known to the database", "unknown")
    for index, step in enumerate(steps):
        if step.start_at is not None and step.end_at is not None:
            if step.end_at <= step.start_at:
                raise InvalidInput.of(f"steps[{index}].end_at", "must be after its beginning", "out_of_range")
        elif not step.weekdays:
            raise InvalidInput.of(f"steps[{index}].days", "must name a day", "missing")
        elif step.from_minute == step.until_minute:
            raise InvalidInput.of(f"steps[{index}].until_time", "must not be its beginning", "out_of_range")


def facts_of(limit: PowerLimit) -> dict[str, float | None]:
    return {field: getattr(limit, field) for field in FIELDS}


def _require_sense(limit: PowerLimit, changes: Mapping[str, Any]) -> None:
    kind = limit.domain.kind
    if kind not in _KINDS:
        raise InvalidInput.of("domain", f"is a {kind}; limits belong to power domains and cooling")
    has_overhead = limit.overhead_fixed_w != 0 or limit.overhead_k != 1
    if kind != DomainKind.FACILITY and has_overhead:
        field = "overhead_k" if "overhead_k" in changes else "overhead_fixed_w"
        raise InvalidInput.of(field, f"belongs to the facility, at the meter; this is a {kind}")
    for name, most_w in (
        ("hard_limit_w", limit.hard_limit_w),
        ("rated_w", None if limit.rated_w is None else limit.rated_w * limit.derate),
    ):
        if most_w is not None and limit.reserve_w > most_w:
            field = name if name in changes else "reserve_w"
            said = "leave more than the reserve" if field == name else f"not be over what {name} leaves"
            raise InvalidInput.of(field, f"must {said}", "out_of_range")
    if limit.hard_limit_w is not None and limit.limit_w is not None and limit.limit_w > limit.hard_limit_w:
        field = "limit_w" if "limit_w" in changes else "hard_limit_w"
        said = "over the hard limit" if field == "limit_w" else "under the operating limit"
        raise InvalidInput.of(field, f"must not be {said}", "out_of_range")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter said."""

    domain: str
    at: datetime
    draw_w: float
    quality: str = ReadingQuality.OK


@transaction.atomic
def record_readings(
    *, readings: Sequence[Reading], actor: User | None, at: datetime, source: str = METERED
) -> int:
    """Take in readings of one source, all or none. One that is there already stays; returns how many are new.

    No event: readings come by the thousand, and nobody decides anything by sending one.

    Raises:
        InvalidInput: a domain that is none of power, a time out of range, or two values for one instant.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    if source == MODELLED:
        raise InvalidInput.of("source", "must not be modelled: that is what the model says itself")
    found = Domain.objects.filter(name__in={one.domain for one in readings}).values_list("name", "pk", "kind")
    domains = {name: pk for name, pk, kind in found if kind in _KINDS}
    others = {name for name, _, kind in found if kind not in _KINDS}
    faults: list[dict[str, str]] = []
    said: dict[tuple[str, datetime], Reading] = {}
    for index, reading in enumerate(readings):
        if reading.domain in others:
            faults.append(_fault(index, "domain", "invalid", "is no power domain"))
        elif reading.domain not in domains:
            faults.append(_fault(index, "domain", "unknown", "names nothing that is here"))
        if not at - OLDEST <= reading.at <= at + AHEAD:
            faults.append(_fault(index, "at", "out_of_range", "must lie in the last 30 days"))
        if said.setdefault((reading.domain, reading.at), reading) != reading:
            faults.append(_fault(index, "at", "duplicate", "stands twice, with different values"))
        if len(faults) >= _MOST_FAULTS:
            break
    if faults:
        raise InvalidInput(faults)
    rows = [(domains[one.domain], one.at, float(one.draw_w), str(one.quality)) for one in said.values()]
    return insert_readings(rows, source=source)


def insert_readings(rows: Iterable[tuple[int, datetime, float, str]], *, source: str) -> int:
    """Write (domain id, instant, W, quality) down; those that are there already stay. Returns how many are new."""
    # In one order, so that two who send the same do not wait for each other in a circle.
    columns = list(zip(*sorted(rows), strict=True)) or [(), (), (), ()]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO power_powerreading (domain_id, at, draw_w, quality, source)"
            " SELECT row.domain_id, row.at, row.draw_w, row.quality, %s"
            " FROM unnest(%s::bigint[], %s::timestamptz[], %s::float8[], %s::text[])"
            "  AS row(domain_id, at, draw_w, quality)"
            " ON CONFLICT (domain_id, source, at) DO NOTHING",
            [source, *map(list, columns)],
        )
        return int(cursor.rowcount)


def _fault(index: int, field: str, code: str, message: str) -> dict[str, str]:
    return {"path": f"readings[{index}].{field}", "code": code, "message": message}


def record_modelled(*, draws_w: Mapping[int, float], at: datetime) -> None:
    """Keep what the model says each domain draws, by domain id: what pages show where there is no meter."""
    PowerReading.objects.bulk_create(
        [
            PowerReading(
                domain_id=domain_id,
                at=at,
                draw_w=max(0.0, draw_w),
                quality=ReadingQuality.ESTIMATED,
                source=MODELLED,
            )
            for domain_id, draw_w in draws_w.items()
        ],
        ignore_conflicts=True,
    )

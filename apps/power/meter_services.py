"""Sources of readings: setting them up, and fetching what they say. An actor of None is the site itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F

from apps.core.errors import InvalidInput, NameTaken, NotFound, VersionConflict
from apps.core.locks import session_lock
from apps.core.strict import MAX_W
from apps.events.services import record
from apps.inventory.models import POWER_KINDS, Domain, Node
from apps.power.models import METERED, MODELLED, MeterSource
from apps.power.prometheus import MeterError, Series, ask, require_address
from apps.power.services import AHEAD, OLDEST, insert_readings
from apps.teams import policies
from apps.teams.models import User

ANSWER_S: Final = 4.0  # for each source; the loop that tells devices their caps waits no longer for this one
_AT_ONCE: Final = 8  # the rest has its turn at the next beat
_EARLY: Final = timedelta(seconds=1)  # a beat may come a little before its time
_LONGEST_GAP: Final = timedelta(minutes=10)  # what a device did in a longer silence is not known
# A device that draws less than this share of the way from rest to its TDP does nothing.
QUIET_SHARE: Final = 0.05
_LOCK: Final = 0x706F776D  # "powm"
_LONGEST_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class MeterDraft:
    """A source as asked for, all of it; see MeterSource."""

    name: str
    url: str
    query: str
    domain_label: str = ""
    node_label: str = ""
    device_label: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    every_s: int = 30
    max_age_s: float = 120.0
    is_enabled: bool = True


FIELDS: Final = tuple(name for name in MeterDraft.__slots__ if name != "name")


@transaction.atomic
def create_meter(*, draft: MeterDraft, actor: User | None, at: datetime, reason: str = "") -> MeterSource:
    """Have readings fetched from there, from the next turn on.

    Raises:
        NameTaken: there is one of this name.
        InvalidInput: an address with a password, or labels that do not say what is read.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    if draft.name in (MODELLED, METERED):
        raise InvalidInput.of("name", f"must not be {draft.name}: readings of that name come from elsewhere")
    if MeterSource.objects.filter(name=draft.name).exists():
        raise NameTaken("meter", draft.name)
    row = MeterSource(name=draft.name)
    _take(row, {name: getattr(draft, name) for name in FIELDS})
    row.save()
    _record("meter.created", row, actor=actor, at=at, reason=reason, after=facts_of(row))
    return row


@transaction.atomic
def update_meter(
    *,
    meter_id: int,
    changes: Mapping[str, Any],
    version: int,
    actor: User | None,
    at: datetime,
    reason: str = "",
) -> MeterSource:
    """Change any of FIELDS. It is asked anew at once, whatever it said before.

    Raises:
        VersionConflict: somebody changed it meanwhile.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    row = _locked(meter_id)
    before = facts_of(row)
    if version != row.version:
        raise VersionConflict(
            f"The meter {row}",
            read=version,
            version=row.version,
            yours=before | dict(changes),
            stored=before,
        )
    _take(row, changes)
    after = facts_of(row)
    if after == before:
        return row
    row.version += 1
    row.last_tried_at = None
    row.save()
    _record("meter.changed", row, actor=actor, at=at, reason=reason, before=before, after=after)
    return row


@transaction.atomic
def delete_meter(*, meter_id: int, actor: User | None, at: datetime, reason: str = "") -> None:
    """Fetch nothing from there any more. What was read stays."""
    if actor is not None:
        policies.require_may_set_power(actor)
    row = _locked(meter_id)
    _record("meter.deleted", row, actor=actor, at=at, reason=reason, before=facts_of(row))
    row.delete()


def facts_of(row: MeterSource) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}


def _locked(meter_id: int) -> MeterSource:
    row = MeterSource.objects.select_for_update(no_key=True).filter(pk=meter_id).first()
    if row is None:
        raise NotFound("There is no such meter.")
    return row


def _take(row: MeterSource, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        assert name in FIELDS, name
        setattr(row, name, value)
    require_address(row.url)
    if bool(row.domain_label) == bool(row.node_label):
        raise InvalidInput.of("labels", "must name the label of a domain or that of a node, and not both")
    if row.device_label and not row.node_label:
        raise InvalidInput.of("labels.device", "goes with the label of a node")
    if row.max_age_s < row.every_s:
        raise InvalidInput.of("max_age_s", "must not be under every_s", "out_of_range")


def _record(kind: str, row: MeterSource, *, actor: User | None, at: datetime, **more: Any) -> None:
    # Its facts hold an address inside the building.
    record(
        kind,
        subject_kind="meter",
        subject_id=row.pk,
        subject_name=row.name,
        actor=actor,
        at=at,
        is_audit=True,
        is_private=True,
        **more,
    )


# Fetching -----------------------------------------------------------------------------------------------------------


def read_meters(*, at: datetime, answer_s: float = ANSWER_S) -> int:
    """Ask every source whose time has come, and keep what it says; returns how many were asked.

    Twice is once: a source is asked by one worker at a time, and a reading that is there stays. One that does not
    answer is told so and asked again when its time comes; nobody waits for it longer than `answer_s`.
    """
    with session_lock(_LOCK) as is_ours:
        if not is_ours:
            return 0
        due = _due(at)
        if not due:
            return 0
        MeterSource.objects.filter(pk__in=[one.pk for one in due]).update(last_tried_at=at)
        for source, answer in _answers(due, at, answer_s):
            _keep(source, answer, at)
        return len(due)


def _due(at: datetime) -> list[MeterSource]:
    """Those whose time has come, who waited longest first."""
    rows = MeterSource.objects.filter(is_enabled=True).order_by(
        F("last_tried_at").asc(nulls_first=True), "pk"
    )
    return [
        row
        for row in rows
        if row.last_tried_at is None or at - row.last_tried_at >= timedelta(seconds=row.every_s) - _EARLY
    ][:_AT_ONCE]


Answer = tuple[Series, ...] | str  # or what went wrong


def _answers(due: Sequence[MeterSource], at: datetime, answer_s: float) -> list[tuple[MeterSource, Answer]]:
    """Each source asked by a thread of its own; threads know nothing of the database."""
    pool = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="meter")
    try:
        asked: dict[Future[tuple[Series, ...]], MeterSource] = {
            pool.submit(ask, row.url, row.query, at=at, timeout_s=answer_s): row for row in due
        }
        done, _ = wait(asked, timeout=answer_s + 0.5)
        found: list[tuple[MeterSource, Answer]] = []
        for future, row in asked.items():
            if future not in done:
                found.append((row, "It did not answer in time."))
                continue
            try:
                found.append((row, future.result()))
            except MeterError as error:
                found.append((row, error.message))
        return found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@transaction.atomic
def _keep(asked: MeterSource, answer: Answer, at: datetime) -> None:
    """Store what one source said. A source that was changed or deleted meanwhile is left alone."""
    row = (
        MeterSource.objects.select_for_update(no_key=True).filter(pk=asked.pk, version=asked.version).first()
    )
    if row is None:
        return
    error = answer if isinstance(answer, str) else _store(row, answer, at)
    was_failing = bool(row.last_error)
    row.last_error = error[:_LONGEST_ERROR]
    if not error:
        row.last_ok_at = at
    row.save(update_fields=["last_error", "last_ok_at", "n_taken", "n_left"])
    if bool(error) != was_failing:
        kind = "meter.failing" if error else "meter.recovered"
        record(
            kind,
            subject_kind="meter",
            subject_id=row.pk,
            subject_name=row.name,
            at=at,
            reason=row.last_error,
        )


def _store(row: MeterSource, series: Sequence[Series], at: datetime) -> str:
    """Keep the values of series that name something here; says what is wrong where none does."""
    label = row.domain_label or row.node_label
    good = [one for one in series if _is_power(one, row.scale, at)]
    names = {one.labels.get(label, "") for one in good}
    wanted = {row.names.get(name, name) for name in names if name}
    n_taken = (_store_domains if row.domain_label else _store_nodes)(row, good, wanted)
    row.n_taken, row.n_left = n_taken, len(series) - n_taken
    if not series:
        return "The query answers no series."
    if n_taken:
        return ""
    if not good:
        return f"None of {len(series)} series has a value that can be power now."
    what = "power domain" if row.domain_label else "node or device"
    example = next((one.labels.get(label) for one in good if one.labels.get(label)), None)
    seen = f"the first says {example!r}" if example else f"none has the label {label!r}"
    return f"None of {len(series)} series names a {what} here that no other one names; {seen}."


def _is_power(one: Series, scale: float, at: datetime) -> bool:
    watts = one.value * scale
    return isfinite(watts) and 0 <= watts <= MAX_W and at - OLDEST <= one.at <= at + AHEAD


def _store_domains(row: MeterSource, series: Sequence[Series], wanted: set[str]) -> int:
    known = dict(Domain.objects.filter(name__in=wanted, kind__in=POWER_KINDS).values_list("name", "pk"))
    found = [
        (known[name], one.at, one.value * row.scale, "ok")
        for one in series
        if (name := _name(row, one, row.domain_label)) in known
    ]
    # Two series of one domain are two parts of it or two views of it; which, only the query can say.
    times = Counter(domain_id for domain_id, *_ in found)
    once = [reading for reading in found if times[reading[0]] == 1]
    insert_readings(once, source=row.name)
    return len(once)


def _store_nodes(row: MeterSource, series: Sequence[Series], wanted: set[str]) -> int:
    known = {
        name: (pk, n_devices)
        for name, pk, n_devices in Node.objects.filter(name__in=wanted).values_list("name", "pk", "n_devices")
    }
    found: dict[tuple[int, int | None], tuple[datetime, float]] = {}
    twice: set[tuple[int, int | None]] = set()
    for one in series:
        node_id, n_devices = known.get(_name(row, one, row.node_label), (0, 0))
        index = None if not row.device_label else _index(one.labels.get(row.device_label, ""), n_devices)
        if not node_id or index == -1:
            continue
        key = (node_id, index)
        if key in found:
            twice.add(key)
        found[key] = (one.at, one.value * row.scale)
    rows = sorted(
        ((key, said) for key, said in found.items() if key not in twice),
        key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1]),
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO power_nodereading AS kept (node_id, index, at, draw_w, source, is_learned, quiet_since_at)"
            " SELECT row.node_id, row.index, row.at, row.draw_w, %s, false,"
            "  CASE WHEN row.index IS NOT NULL"
            "   AND row.draw_w <= kind.idle_w + %s * (kind.tdp_w - kind.idle_w) THEN row.at END"
            " FROM unnest(%s::bigint[], %s::int[], %s::timestamptz[], %s::float8[])"
            "  AS row(node_id, index, at, draw_w)"
            " JOIN inventory_node node ON node.id = row.node_id"
            " JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id"
            " ON CONFLICT (node_id, source, index) DO UPDATE SET at = excluded.at, draw_w = excluded.draw_w,"
            "  is_learned = false, quiet_since_at = CASE WHEN excluded.quiet_since_at IS NOT NULL"
            "   THEN CASE WHEN excluded.at <= kept.at + make_interval(secs => %s)"
            "    THEN coalesce(kept.quiet_since_at, excluded.quiet_since_at) ELSE excluded.quiet_since_at END END"
            " WHERE excluded.at > kept.at",
            [
                row.name,
                QUIET_SHARE,
                [key[0] for key, _ in rows],
                [key[1] for key, _ in rows],
                [said[0] for _, said in rows],
                [said[1] for _, said in rows],
                _LONGEST_GAP.total_seconds(),
            ],
        )
    return len(rows)


def _name(row: MeterSource, one: Series, label: str) -> str:
    said = one.labels.get(label, "")
    return str(row.names.get(said, said))


def _index(text: str, n_devices: int) -> int:
    """The device that a label names; -1: none of the node's."""
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        return -1
    return int(text) if int(text) < n_devices else -1

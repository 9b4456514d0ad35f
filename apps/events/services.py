"""Writing the log: in the transaction of what happened, or not at all."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final, Protocol

from django.db import connection, transaction

from apps.core.requests import current_source
from apps.events.models import Event

CHANNEL: Final = "switchyard"
_FEW: Final = 4  # of so many rows one statement is quicker than the three steps of COPY


class Actor(Protocol):
    """Who did it, as far as the log cares."""

    @property
    def pk(self) -> Any: ...

    def get_username(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event that is about to be written. `source` is by default where the request under way came from."""

    kind: str
    subject_kind: str
    at: datetime
    subject_id: int | None = None
    subject_name: str = ""
    actor: Actor | None = None
    team_id: int | None = None
    is_audit: bool = False
    is_private: bool = False
    reason: str = ""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    source: str = ""


def record(
    kind: str,
    *,
    subject_kind: str,
    at: datetime,
    subject_id: int | None = None,
    subject_name: str = "",
    actor: Actor | None = None,
    team_id: int | None = None,
    is_audit: bool = False,
    is_private: bool = False,
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    source: str = "",
) -> Event:
    """Log one event in the caller's transaction, and wake whoever listens when that commits."""
    row = EventRow(
        kind=kind,
        subject_kind=subject_kind,
        subject_id=subject_id,
        subject_name=subject_name,
        at=at,
        actor=actor,
        team_id=team_id,
        is_audit=is_audit,
        is_private=is_private,
        reason=reason,
        before=before,
        after=after,
        data=data,
        source=source,
    )
    with transaction.atomic(savepoint=False):
        event = _event(row, current_source())
        event.save(force_insert=True)
        _wake([kind])
    return event


def record_many(rows: Sequence[EventRow]) -> None:
    """Log many events in one statement; each distinct kind wakes once."""
    if not rows:
        return
    source, kinds = current_source(), sorted({row.kind for row in rows})
    values = [[column(row, source) for column in _COLUMNS.values()] for row in rows]
    names = ", ".join(_COLUMNS)
    with transaction.atomic(savepoint=False), connection.cursor() as cursor:
        if len(rows) <= _FEW:
            one = f"({', '.join(['%s'] * len(_COLUMNS))})"
            cursor.execute(
                f"WITH written AS (INSERT INTO events_event ({names}) VALUES {', '.join([one] * len(rows))})"  # noqa: S608
                " SELECT pg_notify(%s, kind) FROM unnest(%s::text[]) AS kind",
                [*chain.from_iterable(values), CHANNEL, kinds],
            )
            return
        # A thousand submissions log a thousand events: COPY is several times as fast as a parameter a value.
        with cursor.copy(f"COPY events_event ({names}) FROM STDIN") as copy:
            for row_values in values:
                copy.write_row(row_values)
        _wake(kinds)


def _wake(kinds: Sequence[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, kind) FROM unnest(%s::text[]) AS kind", [CHANNEL, list(kinds)])


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


_COLUMNS: Final[dict[str, Callable[[EventRow, str], Any]]] = {
    "at": lambda row, _: row.at,
    "kind": lambda row, _: row.kind,
    "subject_kind": lambda row, _: row.subject_kind,
    "subject_id": lambda row, _: row.subject_id,
    "subject_name": lambda row, _: row.subject_name,
    "team_id": lambda row, _: row.team_id,
    "actor_id": lambda row, _: None if row.actor is None else row.actor.pk,
    "actor_name": lambda row, _: "" if row.actor is None else row.actor.get_username(),
    "source": lambda row, source: row.source or source,
    "is_audit": lambda row, _: row.is_audit,
    "is_private": lambda row, _: row.is_private,
    "reason": lambda row, _: row.reason,
    "before": lambda row, _: _json(row.before),
    "after": lambda row, _: _json(row.after),
    "data": lambda row, _: _json(row.data or {}),
}


def _event(row: EventRow, source: str) -> Event:
    return Event(
        at=row.at,
        kind=row.kind,
        subject_kind=row.subject_kind,
        subject_id=row.subject_id,
        subject_name=row.subject_name,
        team_id=row.team_id,
        actor_id=None if row.actor is None else row.actor.pk,
        actor_name="" if row.actor is None else row.actor.get_username(),
        source=row.source or source,
        is_audit=row.is_audit,
        is_private=row.is_private,
        reason=row.reason,
        before=None if row.before is None else dict(row.before),
        after=None if row.after is None else dict(row.after),
        data=dict(row.data or {}),
    )

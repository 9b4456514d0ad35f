"""Following the log without missing a row, and reading back what people did."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from django.db import connection
from django.db.models import Max, Q, QuerySet

from apps.core.errors import InvalidInput
from apps.events.models import Event

_CURSOR: Final = re.compile(r"(\d{1,19})-(\d{1,19})", re.ASCII)
_LAST_ID: Final = 2**63 - 1


class Cursor(NamedTuple):
    """A place in the log: everything up to and with it was read."""

    transaction_id: int
    event_id: int

    def __str__(self) -> str:
        return f"{self.transaction_id}-{self.event_id}"


START: Final = Cursor(0, 0)


class Viewer(Protocol):
    """A person as the log knows them; the model of people answers this."""

    @property
    def pk(self) -> int: ...

    def sees_events_of(self) -> Collection[int] | None:
        """Ids of the teams whose business they may read; None: everybody's."""

    def sees_private_events(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in the order of the log, and the cursor to go on from."""

    events: tuple[Event, ...]
    cursor: str


def cursor_of(text: str) -> Cursor:
    """Read a cursor as it was handed out; raises InvalidInput."""
    match = _CURSOR.fullmatch(text)
    if match is None or int(match[1]) > _LAST_ID or int(match[2]) > _LAST_ID:
        raise InvalidInput.of("after", "is not a cursor of the event log", "bad_cursor")
    return Cursor(int(match[1]), int(match[2]))


def latest_cursor() -> str:
    """The end of what can be read now; following from here misses nothing that commits later."""
    return str(Cursor(_horizon() - 1, _LAST_ID))


def visible_to(viewer: Viewer) -> QuerySet[Event]:
    """Events this person may read; every list starts here."""
    return _narrowed(
        Event.objects.all(),
        viewer_team_ids=viewer.sees_events_of(),
        viewer_id=viewer.pk,
        sees_private=viewer.sees_private_events(),
    )


def events_after(
    cursor: str,
    *,
    viewer_team_ids: Collection[int] | None,
    limit: int,
    viewer_id: int | None = None,
    sees_private: bool = False,
) -> Batch:
    """The next events behind `cursor` (empty: from the beginning), for members of these teams (None: all)."""
    events = _narrowed(
        Event.objects.all(), viewer_team_ids=viewer_team_ids, viewer_id=viewer_id, sees_private=sees_private
    )
    return follow(events, cursor, limit=limit)


def follow(events: QuerySet[Event], cursor: str, *, limit: int) -> Batch:
    """The next of `events` behind `cursor`.

    Only rows below the oldest transaction still open are read: ids are handed out before commits, so a row that
    commits later could otherwise stand behind a cursor already handed out.
    """
    after = cursor_of(cursor) if cursor else START
    horizon = _horizon()
    found = tuple(
        events.filter(transaction_id__gte=after.transaction_id, transaction_id__lt=horizon)
        .exclude(transaction_id=after.transaction_id, id__lte=after.event_id)
        .order_by("transaction_id", "id")[:limit]
    )
    if len(found) == limit:
        end = Cursor(found[-1].transaction_id, found[-1].id)
    else:
        # Everything below the horizon was seen: what was filtered out need not be looked at again.
        end = max(after, Cursor(horizon - 1, _LAST_ID))
    return Batch(found, str(end))


def latest_event_id() -> int:
    """Grows with every event: cheap to ask, for telling whether a page has anything new to show."""
    return int(Event.objects.aggregate(latest=Max("id"))["latest"] or 0)


def events_of(subject_kind: str, subject_id: int) -> QuerySet[Event]:
    """What happened to one thing, the newest first. The caller has seen to it that the viewer may know."""
    return Event.objects.filter(subject_kind=subject_kind, subject_id=subject_id).order_by("-id")


def audit_trail() -> QuerySet[Event]:
    """What people changed, the newest first: for those who may read all of it."""
    return Event.objects.filter(is_audit=True).order_by("-id")


def audit_visible_to(viewer: Viewer) -> QuerySet[Event]:
    """What people changed, as far as this person may know, the newest first."""
    return visible_to(viewer).filter(is_audit=True).order_by("-id")


def _narrowed(
    events: QuerySet[Event],
    *,
    viewer_team_ids: Collection[int] | None,
    viewer_id: int | None,
    sees_private: bool,
) -> QuerySet[Event]:
    if viewer_team_ids is not None:
        events = events.filter(Q(team_id=None) | Q(team_id__in=sorted(viewer_team_ids)))
    if not sees_private:
        events = events.filter(Q(is_private=False) | Q(actor_id=viewer_id, actor_id__isnull=False))
    return events


def _horizon() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])

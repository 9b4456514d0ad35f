"""The windows of all reservations in a span of time, recurrences unfolded."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr
from django.db.models import Q

from apps.reservations.models import Reservation

_MOST = 10_000  # windows of one reservation; a rule that repeats by the second is a slip


@dataclass(frozen=True, slots=True)
class Window:
    """One occurrence of a reservation, [starts_at, ends_at)."""

    reservation_id: int
    name: str
    starts_at: datetime
    ends_at: datetime
    node_ids: tuple[int, ...]
    accelerator_type_id: int | None
    n_devices: int | None
    within: str
    team_ids: tuple[int, ...]
    is_flexible: bool


def windows(from_at: datetime, until_at: datetime) -> list[Window]:
    """Every window that touches [from_at, until_at)."""
    rows = (
        Reservation.objects.filter(cancelled_at=None, starts_at__lt=until_at)
        .filter(Q(ends_at__gt=from_at) | ~Q(rrule=""))
        .prefetch_related("nodes", "teams")
        .order_by("id")
    )
    found = []
    for row in rows:
        nodes = tuple(sorted(node.pk for node in row.nodes.all()))
        teams = tuple(sorted(team.pk for team in row.teams.all()))
        for starts_at, ends_at in occurrences(row, from_at, until_at):
            found.append(
                Window(
                    row.pk, row.name, starts_at, ends_at, nodes, row.accelerator_type_id, row.n_devices, row.within,
                    teams, row.is_flexible,
                )
            )  # fmt: skip
    return found


def occurrences(
    row: Reservation, from_at: datetime, until_at: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """When it recurs: counted on the calendar of its zone (09:00 stays 09:00), compared as instants."""
    if not row.rrule:
        if row.starts_at < until_at and row.ends_at > from_at:
            yield row.starts_at, row.ends_at
        return
    zone = ZoneInfo(row.time_zone)
    first = row.starts_at.astimezone(zone).replace(tzinfo=None)
    length = row.ends_at.astimezone(zone).replace(tzinfo=None) - first
    rule = rrulestr(row.rrule, dtstart=first, ignoretz=True)
    begin = from_at.astimezone(zone).replace(tzinfo=None) - length
    for number, local in enumerate(rule.xafter(begin, inc=True)):
        starts_at = local.replace(tzinfo=zone).astimezone(UTC)
        if starts_at >= until_at or number >= _MOST:
            return
        ends_at = (local + length).replace(tzinfo=zone).astimezone(UTC)
        if starts_at < ends_at and ends_at > from_at:
            yield starts_at, ends_at

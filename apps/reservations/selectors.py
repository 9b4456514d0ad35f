"""What is promised to whom, and when."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from apps.reservations import recurrence
from apps.reservations.models import Reservation
from apps.reservations.recurrence import Window
from apps.teams.models import User


def reservations_visible_to(viewer: User) -> QuerySet[Reservation]:
    """Everyone signed in sees what is promised."""
    return Reservation.objects.all() if viewer.is_authenticated else Reservation.objects.none()


def reservation_rows(viewer: User, *, ends_after: datetime, starts_before: datetime) -> QuerySet[Reservation]:
    """Reservations that touch the window, and those that repeat; the earliest first."""
    return (
        reservations_visible_to(viewer)
        .filter(Q(ends_at__gt=ends_after, starts_at__lt=starts_before) | ~Q(rrule=""))
        .select_related("accelerator_type", "created_by")
        .prefetch_related("teams", "nodes")
        .order_by("starts_at", "id")
    )


def standing() -> QuerySet[Reservation]:
    """Reservations that were not cancelled, with what they reserve and for whom."""
    return (
        Reservation.objects.filter(cancelled_at=None)
        .select_related("accelerator_type")
        .prefetch_related("nodes", "teams")
        .order_by("id")
    )


def windows_between(reservation: Reservation, begin_at: datetime, end_at: datetime) -> list[Window]:
    """Windows [start, end) of a reservation that touch [begin_at, end_at), as instants, the earliest first.

    A cancelled reservation has none. Recurrences are those of the calendar of its zone.
    """
    if reservation.cancelled_at is not None:
        return []
    return list(
        recurrence.windows(
            Window(reservation.starts_at, reservation.ends_at),
            rule=reservation.rrule,
            zone=recurrence.zone_named(reservation.time_zone),
            begin_at=begin_at,
            end_at=end_at,
        )
    )


@dataclass(frozen=True, slots=True)
class Booked:
    """One window of a reservation: either named nodes, or an amount of one accelerator type."""

    reservation_id: int
    name: str
    starts_at: datetime
    ends_at: datetime
    node_ids: frozenset[int]
    accelerator_type_id: int | None
    n_devices: int | None
    within: str
    team_ids: frozenset[int]  # empty: maintenance, for nobody
    is_flexible: bool


def windows(begin_at: datetime, end_at: datetime) -> list[Booked]:
    """Every window that touches [begin_at, end_at), by start and then by reservation. Three queries."""
    # Which of those that repeat touch it, only the calendar can tell.
    rows = standing().filter(Q(ends_at__gt=begin_at) | ~Q(rrule=""), starts_at__lt=end_at)
    found = []
    for row in rows:
        node_ids = frozenset(node.pk for node in row.nodes.all())
        team_ids = frozenset(team.pk for team in row.teams.all())
        for window in windows_between(row, begin_at, end_at):
            found.append(
                Booked(
                    reservation_id=row.pk,
                    name=row.name,
                    starts_at=window.starts_at,
                    ends_at=window.ends_at,
                    node_ids=node_ids,
                    accelerator_type_id=row.accelerator_type_id,
                    n_devices=row.n_devices,
                    within=row.within,
                    team_ids=team_ids,
                    is_flexible=row.is_flexible,
                )
            )
    return sorted(found, key=lambda booked: (booked.starts_at, booked.reservation_id))

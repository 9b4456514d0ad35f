"""What is promised to whom, and when."""

from datetime import datetime

from django.db.models import Q, QuerySet

from apps.reservations.models import Reservation
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

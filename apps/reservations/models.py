"""Who may use which nodes when: bookings, and maintenance, which is a booking for nobody."""

from django.db import models
from django.db.models import F, Q

from apps.inventory.models import AcceleratorType, DomainKind, Node
from apps.teams.models import Team, User


class Reservation(models.Model):
    """A half-open window [starts_at, ends_at) in which some capacity belongs to some teams.

    Either named nodes, or an amount of one accelerator type (within one domain of a kind). With `rrule` the window
    repeats; recurrences are computed on the calendar of `time_zone`, compared as instants.
    """

    name = models.CharField(max_length=120, unique=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    time_zone = models.CharField(max_length=64, default="UTC")
    rrule = models.CharField(max_length=500, blank=True)
    nodes = models.ManyToManyField(Node, blank=True, related_name="reservations")
    accelerator_type = models.ForeignKey(AcceleratorType, models.PROTECT, null=True, blank=True)
    n_devices = models.PositiveIntegerField(null=True, blank=True)
    within = models.CharField(max_length=20, choices=DomainKind.choices, blank=True)
    teams = models.ManyToManyField(
        Team, blank=True, related_name="reservations", help_text="None: maintenance."
    )
    is_flexible = models.BooleanField(
        default=True, help_text="Others may use it for work that ends before the start."
    )
    reason = models.CharField(max_length=500, blank=True)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField()
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(starts_at__lt=F("ends_at")), name="reservation_starts_before_it_ends"
            ),
            models.CheckConstraint(
                condition=Q(accelerator_type=None, n_devices=None)
                | Q(accelerator_type__isnull=False, n_devices__gte=1),
                name="reservation_amount_is_whole",
            ),
        ]

    def __str__(self) -> str:
        return self.name

"""What people were told, how they want to be told, and what is still on its way to them."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.jobs.models import Job
from apps.notices.kinds import PACES, Kind, Way
from apps.teams.models import User


class Collector(models.Model):
    """How far the log was read for notices. One row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    cursor = models.CharField(max_length=40)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_collector")]


class Notice(models.Model):
    """One thing that one person was told. What happens again soon after, unread, is counted on the same notice."""

    user = models.ForeignKey(User, models.CASCADE, related_name="notices", db_index=False)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    key = models.CharField(max_length=200, help_text="The same thing is told once.")
    alike = models.CharField(
        max_length=200, blank=True, help_text="Of these, what comes again is counted up."
    )
    n = models.PositiveIntegerField(default=1, help_text="How often it happened.")
    title = models.CharField(max_length=200)
    body = models.CharField(max_length=2000, blank=True)
    path = models.CharField(max_length=300, help_text="Of the page that tells more.")
    job = models.ForeignKey(Job, models.CASCADE, null=True, blank=True, related_name="+")
    event_id = models.BigIntegerField(null=True, blank=True, help_text="Of demand response.")
    is_shown = models.BooleanField(
        default=True, help_text="On the pages; others only leave by their channel."
    )
    first_at = models.DateTimeField()
    at = models.DateTimeField(help_text="It happened last.")
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="one_notice_a_person_and_key"),
            models.CheckConstraint(condition=Q(n__gte=1), name="notice_happened"),
            models.CheckConstraint(condition=Q(kind__in=Kind.values), name="notice_kind_is_known"),
            models.CheckConstraint(condition=Q(path__startswith="/"), name="notice_leads_to_a_page"),
        ]
        indexes = [
            models.Index(fields=["user", "-at", "-id"], name="notice_by_person", condition=Q(is_shown=True)),
            models.Index(
                fields=["user", "kind", "alike"],
                name="notice_unread",
                condition=Q(read_at=None),
            ),
            models.Index(fields=["event_id"], name="notice_by_event", condition=Q(event_id__isnull=False)),
            models.Index(fields=["at"], name="notice_by_age"),
        ]

    def __str__(self) -> str:
        return self.title


class Preference(models.Model):
    """What a person wants to see on the pages. No row: what is usual for their role."""

    user = models.OneToOneField(User, models.CASCADE, primary_key=True, related_name="notice_preference")
    kinds = ArrayField(models.CharField(max_length=20), default=list)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kinds__contained_by=Kind.values), name="preferred_kinds_are_known"
            )
        ]


class Channel(models.Model):
    """A way on which a person is told things outside of the pages, and how it goes with it."""

    user = models.ForeignKey(User, models.CASCADE, related_name="notice_channels", db_index=False)
    way = models.CharField(max_length=10, choices=Way.choices)
    kinds = ArrayField(models.CharField(max_length=20), default=list)
    pace_s = models.PositiveIntegerField(default=PACES[0].seconds)
    sealed_url = models.TextField(blank=True, help_text="Whoever knows a webhook can write to it.")
    host = models.CharField(max_length=255, blank=True, help_text="Of the webhook; all that is shown of it.")
    is_on = models.BooleanField(default=True)
    off_reason = models.CharField(max_length=300, blank=True)
    n_failures = models.PositiveIntegerField(default=0, help_text="Since it last worked.")
    retry_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    last_sent_at = models.DateTimeField(null=True, blank=True)
    busy_until_at = models.DateTimeField(
        null=True, blank=True, help_text="Somebody sends; whoever is killed at it is not waited for longer."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "way"], name="one_channel_a_person_and_way"),
            models.CheckConstraint(condition=Q(way__in=Way.values), name="channel_way_is_known"),
            models.CheckConstraint(
                condition=Q(kinds__contained_by=Kind.values), name="channel_kinds_are_known"
            ),
            models.CheckConstraint(
                condition=Q(pace_s__in=[pace.seconds for pace in PACES]), name="channel_pace_is_known"
            ),
            models.CheckConstraint(
                condition=~Q(way=Way.WEBHOOK) | ~Q(sealed_url=""), name="webhook_has_an_address"
            ),
        ]


class DeliveryState(models.TextChoices):
    WAITING = "waiting"
    SENT = "sent"
    GIVEN_UP = "given_up"


class Delivery(models.Model):
    """A notice on its way over a channel; several leave in one message."""

    notice = models.ForeignKey(Notice, models.CASCADE, related_name="deliveries", db_index=False)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries", db_index=False)
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    made_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["notice", "channel"],
                condition=Q(state=DeliveryState.WAITING),
                name="one_waiting_delivery_a_notice_and_channel",
            ),
            models.CheckConstraint(
                condition=Q(state=DeliveryState.WAITING) ^ Q(settled_at__isnull=False),
                name="delivery_is_settled_once",
            ),
        ]
        indexes = [
            models.Index(
                fields=["channel", "id"], name="delivery_waiting", condition=Q(state=DeliveryState.WAITING)
            ),
            models.Index(fields=["notice"], name="delivery_by_notice"),
        ]


class ToldStart(models.Model):
    """The expected start of a waiting job that its owner knows of."""

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="+")
    expected_start_at = models.DateTimeField()

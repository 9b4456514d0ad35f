"""What is kept of OpenADR servers: how each is reached, what it said last, and what became of it here."""

from typing import Final

from django.db import models
from django.db.models import F, Q

LEAST_POLL_S: Final = 10
LONGEST_POLL_S: Final = 3600
MOST_SILENT_S: Final = 86_400
_OBJECT_ID: Final = r"^[a-zA-Z0-9_-]{1,128}$"


class VtnVersion(models.TextChoices):
    V3_0_1 = "3.0.1"
    V3_1_0 = "3.1.0"


class VtnConnection(models.Model):
    """One VTN, the VEN that we are to it, and how far listening to it has come.

    The fence goes up with each poll; what an older poll found is not written any more.
    """

    name = models.CharField(max_length=120, unique=True)
    base_url = models.CharField(max_length=500)
    token_url = models.CharField(max_length=500, blank=True, help_text="Empty: asked of the VTN.")
    protocol = models.CharField(max_length=10, choices=VtnVersion.choices, default=VtnVersion.V3_1_0)
    client_id = models.CharField(max_length=200)
    sealed_secret = models.TextField(help_text="The client secret, encrypted; never shown.")
    scope = models.CharField(max_length=200, blank=True)
    ven_name = models.CharField(max_length=128)
    domain = models.ForeignKey(
        "inventory.Domain", models.PROTECT, related_name="+", help_text="What it speaks for."
    )
    poll_s = models.PositiveIntegerField(default=60)
    silent_after_s = models.PositiveIntegerField(
        default=300, help_text="Without a complete listing for so long, the VTN counts as silent."
    )
    is_enabled = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)

    # Where it stands; written by polls alone.
    fence = models.PositiveBigIntegerField(default=0)
    next_poll_at = models.DateTimeField(null=True, blank=True, help_text="Empty: at once.")
    polled_at = models.DateTimeField(null=True, blank=True)
    listed_at = models.DateTimeField(null=True, blank=True, help_text="Of the last complete listing.")
    last_error = models.CharField(max_length=500, blank=True)
    n_failures = models.PositiveIntegerField(default=0, help_text="One after the other.")
    silent_since_at = models.DateTimeField(null=True, blank=True)
    notes = models.JSONField(default=list, blank=True, help_text="What was passed over in the last listing.")
    ven_id = models.CharField(max_length=128, blank=True, help_text="Ours, at the VTN.")
    registered_version = models.PositiveIntegerField(
        default=0, help_text="Of the connection, when we last registered by it."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(protocol__in=VtnVersion.values), name="vtn_connection_protocol_is_known"
            ),
            models.CheckConstraint(
                condition=~Q(name="")
                & ~Q(base_url="")
                & ~Q(client_id="")
                & ~Q(sealed_secret="")
                & ~Q(ven_name=""),
                name="vtn_connection_is_whole",
            ),
            models.CheckConstraint(
                condition=Q(poll_s__gte=LEAST_POLL_S, poll_s__lte=LONGEST_POLL_S)
                & Q(silent_after_s__gte=F("poll_s"), silent_after_s__lte=MOST_SILENT_S),
                name="vtn_connection_times_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(n_failures=0) | ~Q(last_error=""), name="vtn_connection_failure_has_a_reason"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class VtnResource(models.Model):
    """A part of the site that the VTN knows by name: events may be meant for it, reports tell of it."""

    connection = models.ForeignKey(VtnConnection, models.CASCADE, related_name="resources")
    name = models.CharField(max_length=128)
    domain = models.ForeignKey("inventory.Domain", models.PROTECT, related_name="+")

    class Meta:
        ordering = ["connection_id", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["connection", "name"], name="one_vtn_resource_a_connection_and_name"
            ),
            # Two names for one domain would count it twice where the VTN wants a sum.
            models.UniqueConstraint(
                fields=["connection", "domain"], name="one_vtn_resource_a_connection_and_domain"
            ),
            models.CheckConstraint(condition=~Q(name=""), name="vtn_resource_has_a_name"),
        ]

    def __str__(self) -> str:
        return self.name


class VtnProgramme(models.Model):
    """A programme of the VTN, which of ours it is, and how its events are to be read."""

    connection = models.ForeignKey(VtnConnection, models.CASCADE, related_name="programmes")
    external_id = models.CharField(max_length=128)
    programme = models.ForeignKey("power.Programme", models.PROTECT, related_name="+")
    default_units = models.CharField(
        max_length=2, default="KW", blank=True, help_text="Of power without units; empty: refused."
    )
    is_shed_negative = models.BooleanField(
        default=False, help_text="A reduction by DISPATCH_SETPOINT_RELATIVE is a negative number."
    )
    is_test = models.BooleanField(default=False, help_text="All its events are drills.")
    test_marker = models.CharField(
        max_length=50, blank=True, help_text="An event whose name holds this is a drill."
    )
    has_fallback = models.BooleanField(
        default=False, help_text="The subscribed import capacity binds while the VTN is silent."
    )

    class Meta:
        ordering = ["connection_id", "external_id"]
        constraints = [
            models.UniqueConstraint(
                fields=["connection", "external_id"], name="one_vtn_programme_a_connection_and_id"
            ),
            models.CheckConstraint(
                condition=Q(external_id__regex=_OBJECT_ID) & Q(default_units__in=["", "W", "KW", "MW"]),
                name="vtn_programme_words_are_known",
            ),
        ]

    def __str__(self) -> str:
        return self.external_id


class Trouble(models.TextChoices):
    """Why an event of a VTN, or its latest version, is not acted on."""

    NONE = "", "none"
    REFUSED = "refused", "cannot be what is meant"
    NEEDS_PERSON = "needs_person", "needs a person"


class VtnEvent(models.Model):
    """One event as the last good listing had it. Kept when it is gone: an older version of it is a replay."""

    connection = models.ForeignKey(VtnConnection, models.CASCADE, related_name="vtn_events")
    external_id = models.CharField(max_length=128)
    programme_external_id = models.CharField(max_length=128, blank=True)
    name = models.CharField(max_length=500, blank=True)
    modified_at = models.DateTimeField(null=True, blank=True, help_text="The newest version ever seen.")
    signal = models.JSONField(
        null=True, blank=True, help_text="The last good version, in our words; empty: none."
    )
    revision = models.PositiveIntegerField(default=0, help_text="Counts the versions taken in.")
    first_listed_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, blank=True, help_text="Since when it is not listed.")
    trouble = models.CharField(max_length=20, choices=Trouble.choices, default=Trouble.NONE, blank=True)
    trouble_text = models.CharField(max_length=500, blank=True)
    trouble_fingerprint = models.CharField(max_length=64, blank=True, help_text="Of what was in trouble.")
    is_acceptable = models.BooleanField(
        default=False, help_text="It is acted on once a person says that it is meant."
    )
    accepted_fingerprint = models.CharField(
        max_length=64, blank=True, help_text="Of the version that a person said is meant."
    )

    class Meta:
        ordering = ["connection_id", "-first_listed_at", "external_id"]
        constraints = [
            models.UniqueConstraint(
                fields=["connection", "external_id"], name="one_vtn_event_a_connection_and_id"
            ),
            models.CheckConstraint(
                condition=Q(external_id__regex=_OBJECT_ID),
                name="vtn_event_id_is_one",
            ),
            models.CheckConstraint(
                condition=Q(trouble__in=Trouble.values)
                & (Q(is_acceptable=False) | Q(trouble=Trouble.NEEDS_PERSON))
                & (Q(trouble="", trouble_text="") | (~Q(trouble="") & ~Q(trouble_text=""))),
                name="vtn_event_trouble_has_a_reason",
            ),
            models.CheckConstraint(
                condition=Q(signal=None, revision=0)
                | Q(signal__isnull=False, revision__gte=1, modified_at__isnull=False),
                name="vtn_event_signal_has_a_version",
            ),
        ]
        indexes = [
            models.Index(fields=["connection", "gone_at"], name="vtn_event_by_gone"),
        ]

    def __str__(self) -> str:
        return self.external_id


class VtnAnnouncement(models.Model):
    """A stretch of a VTN's event (or a fallback limit, without one) and the event of ours that it became."""

    connection = models.ForeignKey(VtnConnection, models.CASCADE, related_name="announcements")
    vtn_event = models.ForeignKey(
        VtnEvent, models.CASCADE, null=True, blank=True, related_name="announcements"
    )
    key = models.CharField(max_length=200, help_text="External id of our event.")
    event = models.OneToOneField("power.DemandResponseEvent", models.PROTECT, related_name="vtn_announcement")
    asked = models.CharField(
        max_length=64, help_text="Digest of what it asks; the same again is not told again."
    )
    heard_at = models.DateTimeField(help_text="It binds from here at the earliest.")
    told_at = models.DateTimeField(help_text="When it was last announced or changed.")
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["connection", "key"], name="one_vtn_announcement_a_connection_and_key"
            ),
            models.CheckConstraint(
                condition=Q(asked__regex=r"^[0-9a-f]{64}$"), name="vtn_announcement_digest"
            ),
        ]

    def __str__(self) -> str:
        return self.key


class VtnReport(models.Model):
    """How far the reports that an event asks for have been sent, one row a request of it."""

    vtn_event = models.ForeignKey(VtnEvent, models.CASCADE, related_name="reports")
    position = models.PositiveIntegerField(help_text="Of the request among the event's.")
    payload_type = models.CharField(max_length=128)
    sequence = models.IntegerField(default=-1, help_text="Of the last one that is done with; -1: none.")
    sent_at = models.DateTimeField(null=True, blank=True)
    next_try_at = models.DateTimeField(null=True, blank=True)
    n_failures = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["vtn_event_id", "position"]
        constraints = [
            models.UniqueConstraint(fields=["vtn_event", "position"], name="one_vtn_report_a_request"),
            models.CheckConstraint(condition=Q(sequence__gte=-1), name="vtn_report_numbers_are_sane"),
        ]

    def __str__(self) -> str:
        return f"{self.payload_type} of {self.vtn_event}"

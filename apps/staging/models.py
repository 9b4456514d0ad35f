"""Data sets, the stores where their copies lie, and the transfers under way."""

import uuid

from django.db import models
from django.db.models import F, Q

from apps.inventory.models import MAX_NUMBER, Domain

MAX_BYTES = 2**62


def _new_key() -> str:
    return uuid.uuid4().hex


class Dataset(models.Model):
    name = models.CharField(max_length=120, unique=True)
    size_gib = models.FloatField()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(size_gib__gte=0, size_gib__lt=MAX_NUMBER), name="dataset_size_is_not_negative"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Store(models.Model):
    """What stands behind a storage domain: where copies lie, and how fast they come and go."""

    domain = models.OneToOneField(Domain, models.PROTECT, related_name="store")
    base_uri = models.CharField(
        max_length=1000, blank=True, help_text="Copies lie right below. Empty: simulated."
    )
    profile = models.CharField(
        max_length=120,
        blank=True,
        help_text="Name of the keys for an object store, as the environment has it.",
    )
    rate_gib_per_s = models.FloatField(help_text="Of one transfer, as far as is known.")
    most_gib_per_s = models.FloatField(
        null=True, blank=True, help_text="No transfer goes faster. Empty: no limit."
    )
    is_simulated = models.BooleanField(default=False, help_text="Nothing is carried; transfers are played.")

    class Meta:
        ordering = ["domain__name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(rate_gib_per_s__gt=0, rate_gib_per_s__lt=MAX_NUMBER)
                & (Q(most_gib_per_s=None) | Q(most_gib_per_s__gt=0, most_gib_per_s__lt=MAX_NUMBER)),
                name="store_rates_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(is_simulated=True, base_uri="", profile="")
                | (Q(is_simulated=False) & ~Q(base_uri="")),
                name="store_is_somewhere_or_simulated",
            ),
            models.CheckConstraint(
                # The same forms as movers.places takes; no name or key before the host of an object store.
                condition=Q(base_uri="")
                | Q(
                    base_uri__regex=r"^(/|file:///|s3://[a-z0-9][^/@:]*(/|$)|([a-z_][a-z0-9_-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:/[^/])"
                ),
                name="store_address_has_a_known_form",
            ),
            models.CheckConstraint(
                condition=~Q(base_uri__regex=r"(^|/)\.\.?(/|$)"), name="store_address_leads_nowhere_else"
            ),
            models.CheckConstraint(
                condition=Q(profile="") | Q(base_uri__startswith="s3://"), name="store_keys_are_for_objects"
            ),
        ]

    def __str__(self) -> str:
        return f"the store of {self.domain}"


class Copy(models.Model):
    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="copies")
    domain = models.ForeignKey(Domain, models.PROTECT, related_name="copies")
    uri = models.CharField(
        max_length=1000, blank=True, help_text="Empty: right below the store's base, by the data set's name."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dataset", "domain"], name="one_copy_a_dataset_and_domain")
        ]


class Transfer(models.Model):
    """One copy on its way: noted, begun by a mover (`attempts` 1), tried again, and ended, arrived or with an error."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="transfers")
    to_domain = models.ForeignKey(Domain, models.PROTECT, related_name="+")
    # By number: jobs stand above data sets, and a transfer outlives the job it was meant for.
    for_job_id = models.BigIntegerField(null=True, blank=True, db_index=True)
    started_at = models.DateTimeField()
    expected_end_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True, help_text="Why it did not arrive.")

    key = models.CharField(max_length=32, unique=True, default=_new_key, editable=False)
    from_domain = models.ForeignKey(Domain, models.PROTECT, null=True, blank=True, related_name="+")
    source_uri = models.CharField(max_length=1000, blank=True)
    target_uri = models.CharField(max_length=1000, blank=True)
    mover = models.CharField(max_length=20, blank=True, help_text="Empty: not begun.")
    handle = models.CharField(max_length=100, blank=True, help_text="By which its mover finds it again.")
    is_simulated = models.BooleanField(default=False)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(
        null=True, blank=True, help_text="It failed, and is tried again then."
    )
    last_error = models.TextField(blank=True, help_text="Of the last attempt.")
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(
        null=True, blank=True, help_text="What the source was found to hold."
    )
    bytes_per_s = models.FloatField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When its mover last told how far it is.")
    cancel_asked_at = models.DateTimeField(null=True, blank=True)
    cancel_asked_by = models.CharField(max_length=150, blank=True)

    class Meta:
        indexes = [models.Index(fields=["dataset", "to_domain", "-ended_at"], name="transfers_by_place")]
        constraints = [
            models.UniqueConstraint(
                fields=["dataset", "to_domain"], condition=Q(ended_at=None), name="one_open_transfer_a_copy"
            ),
            models.CheckConstraint(
                condition=Q(started_at__lte=F("expected_end_at")), name="transfer_runs_forward"
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None) | Q(ended_at__gte=F("started_at")),
                name="transfer_ends_after_start",
            ),
            models.CheckConstraint(
                condition=Q(bytes_done__gte=0, bytes_done__lt=MAX_BYTES)
                & (Q(bytes_total=None) | Q(bytes_total__gte=F("bytes_done"), bytes_total__lt=MAX_BYTES)),
                name="transfer_does_not_carry_more_than_all",
            ),
            models.CheckConstraint(
                condition=Q(bytes_per_s=None) | Q(bytes_per_s__gte=0, bytes_per_s__lt=MAX_BYTES),
                name="transfer_rate_is_sane",
            ),
            models.CheckConstraint(
                condition=Q(mover="", attempts=0, handle="") | (~Q(mover="") & Q(attempts__gte=1)),
                name="transfer_is_begun_by_a_mover",
            ),
            models.CheckConstraint(
                condition=Q(next_attempt_at=None) | Q(attempts__gte=1, ended_at=None),
                name="transfer_is_tried_again_while_open",
            ),
            models.CheckConstraint(
                condition=~Q(error="") & Q(ended_at__isnull=False) | Q(error=""),
                name="transfer_fails_at_its_end",
            ),
            models.CheckConstraint(
                condition=Q(for_job_id=None) | Q(for_job_id__gt=0), name="transfer_job_has_a_number"
            ),
        ]


class SimulatedMove(models.Model):
    """What the simulated mover knows of a move."""

    key = models.CharField(max_length=32, unique=True)
    begun_at = models.DateTimeField()
    arrives_at = models.DateTimeField(db_index=True)
    n_bytes = models.BigIntegerField()
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(begun_at__lte=F("arrives_at"), n_bytes__gte=0, n_bytes__lt=MAX_BYTES),
                name="simulated_move_is_sane",
            )
        ]

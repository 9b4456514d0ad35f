"""Data sets, where their copies lie, and the transfers under way."""

from django.db import models
from django.db.models import F, Q

from apps.inventory.models import MAX_NUMBER, Domain


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


class Copy(models.Model):
    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="copies")
    domain = models.ForeignKey(Domain, models.PROTECT, related_name="copies")
    uri = models.CharField(max_length=1000, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dataset", "domain"], name="one_copy_a_dataset_and_domain")
        ]


class Transfer(models.Model):
    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="transfers")
    to_domain = models.ForeignKey(Domain, models.PROTECT, related_name="+")
    started_at = models.DateTimeField()
    expected_end_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["dataset", "to_domain"], condition=Q(ended_at=None), name="one_open_transfer_a_copy"
            ),
            models.CheckConstraint(
                condition=Q(started_at__lte=F("expected_end_at")), name="transfer_runs_forward"
            ),
        ]

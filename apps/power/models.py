"""How many watts a domain may draw, and what it was seen to draw."""

from django.db import models
from django.db.models import Q

from apps.inventory.models import MAX_NUMBER, Domain


class PowerLimit(models.Model):
    """The limits of one domain. Limits of kind `facility` are at the meter, all others are IT load."""

    domain = models.OneToOneField(Domain, models.CASCADE, related_name="power_limit")
    hard_limit_w = models.FloatField(null=True, blank=True, help_text="Never exceeded by anybody.")
    limit_w = models.FloatField(
        null=True, blank=True, help_text="The operating limit; empty: the hard limit."
    )
    ramp_up_w_per_s = models.FloatField(null=True, blank=True)
    overhead_fixed_w = models.FloatField(default=0, help_text="meter = fixed + k x IT load (kind facility).")
    overhead_k = models.FloatField(default=1)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=(Q(hard_limit_w=None) | Q(hard_limit_w__gte=0, hard_limit_w__lt=MAX_NUMBER))
                & (Q(limit_w=None) | Q(limit_w__gte=0, limit_w__lt=MAX_NUMBER))
                & (Q(ramp_up_w_per_s=None) | Q(ramp_up_w_per_s__gt=0, ramp_up_w_per_s__lt=MAX_NUMBER))
                & Q(overhead_fixed_w__gte=0, overhead_fixed_w__lt=MAX_NUMBER)
                & Q(overhead_k__gt=0, overhead_k__lt=MAX_NUMBER),
                name="power_limit_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(hard_limit_w=None) | Q(limit_w=None) | Q(limit_w__lte=models.F("hard_limit_w")),
                name="operating_limit_within_hard_limit",
            ),
        ]


class ReadingQuality(models.TextChoices):
    OK = "ok"
    ESTIMATED = "estimated"
    MISSING = "missing"
    BAD = "bad"


class PowerReading(models.Model):
    """What a domain drew at one instant: metered, or modelled from placements where there is no meter."""

    domain = models.ForeignKey(Domain, models.CASCADE, related_name="readings")
    at = models.DateTimeField()
    draw_w = models.FloatField()
    quality = models.CharField(max_length=10, choices=ReadingQuality.choices, default=ReadingQuality.OK)
    source = models.CharField(max_length=40, default="modelled")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["domain", "source", "at"], name="one_reading_a_domain_source_instant"
            ),
            models.CheckConstraint(
                condition=Q(draw_w__gte=0, draw_w__lt=MAX_NUMBER), name="reading_is_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(quality__in=ReadingQuality.values), name="reading_quality_is_known"
            ),
        ]
        indexes = [models.Index(fields=["domain", "-at"], name="reading_by_domain")]

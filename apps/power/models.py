"""How many watts a domain may draw, what it was seen to draw, and who asks that it draws less for a while."""

from enum import StrEnum
from typing import Final

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Least

from apps.inventory.models import MAX_NUMBER, AcceleratorType, Domain, Node
from apps.power import openadr_models  # noqa: F401  # Django looks for models here
from apps.power.budget import DAY_MIN, EVERY_DAY
from apps.power.curtailment.facts import Lever
from apps.power.response import TargetKind
from apps.teams.models import User

MAX_PRICE: Final = 1_000_000
LEVERS: Final = tuple(lever.value for lever in Lever if lever is not Lever.NONE)
LONGEST_RECOVERY_S: Final = 7 * 86_400
_LONGEST_S: Final = 366 * 86_400
MODELLED: Final = "modelled"  # source of what the model says itself, where no meter is read
METERED: Final = "metered"  # of what was sent in without a name
USUAL_MAX_AGE_S: Final = 300
USUAL_DERATE: Final = 0.8  # the rule for loads of three hours and more in the United States
LONGEST_AGE_S: Final = 86_400


class PowerLimit(models.Model):
    """The limits of one domain. Limits of kind `facility` are at the meter, all others are IT load."""

    domain = models.OneToOneField(Domain, models.CASCADE, related_name="power_limit")
    rated_w = models.FloatField(null=True, blank=True, help_text="Of the breaker or the busway.")
    derate = models.FloatField(
        default=USUAL_DERATE, help_text="Share of the rating that a load may draw without pause."
    )
    reserve_w = models.FloatField(
        default=0, help_text="Kept free under the rating and the hard limit; nobody is given it."
    )
    time_zone = models.CharField(max_length=64, default="UTC", help_text="Whose hours its envelope counts.")
    hard_limit_w = models.FloatField(null=True, blank=True, help_text="Never exceeded by anybody.")
    limit_w = models.FloatField(
        null=True, blank=True, help_text="The operating limit; empty: the hard limit."
    )
    ramp_up_w_per_s = models.FloatField(null=True, blank=True)
    overhead_fixed_w = models.FloatField(default=0, help_text="meter = fixed + k x IT load (kind facility).")
    overhead_k = models.FloatField(default=1)
    max_age_s = models.FloatField(
        default=USUAL_MAX_AGE_S, help_text="A reading older than that says nothing of the present."
    )
    version = models.PositiveIntegerField(default=1)
    # What holds whatever the hour: one place for it, which plain SQL reads too. least() leaves out what is not set.
    steady_w = models.GeneratedField(
        expression=Least(
            F("limit_w"), F("hard_limit_w") - F("reserve_w"), F("rated_w") * F("derate") - F("reserve_w")
        ),
        output_field=models.FloatField(null=True),
        db_persist=True,
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=(Q(rated_w=None) | Q(rated_w__gt=0, rated_w__lt=MAX_NUMBER))
                & Q(derate__gt=0, derate__lte=1)
                & Q(reserve_w__gte=0, reserve_w__lt=MAX_NUMBER),
                name="power_rating_is_sane",
            ),
            models.CheckConstraint(
                condition=(Q(hard_limit_w=None) | Q(reserve_w__lte=F("hard_limit_w")))
                & (Q(rated_w=None) | Q(reserve_w__lte=F("rated_w") * F("derate"))),
                name="power_reserve_within_the_limits",
            ),
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
            models.CheckConstraint(
                condition=Q(max_age_s__gt=0, max_age_s__lte=LONGEST_AGE_S),
                name="power_limit_max_age_is_sane",
            ),
        ]


class EnvelopeStep(models.Model):
    """A part of a domain's envelope: so many watts at certain hours of the week, or between two dates.

    Where several hold at once the lowest does.
    """

    limit = models.ForeignKey(PowerLimit, models.CASCADE, related_name="envelope")
    limit_w = models.FloatField()
    weekdays = models.PositiveSmallIntegerField(
        default=0, help_text="Bits from Monday (1) to Sunday (64) on which it begins; 0: it has dates."
    )
    from_minute = models.PositiveSmallIntegerField(default=0, help_text="Of the local day.")
    until_minute = models.PositiveSmallIntegerField(
        default=DAY_MIN, help_text="Of the local day; not after its beginning: of the next day."
    )
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(limit_w__gte=0, limit_w__lt=MAX_NUMBER), name="envelope_watts_are_sane"
            ),
            models.CheckConstraint(
                condition=Q(weekdays__gte=1, weekdays__lte=EVERY_DAY, start_at=None, end_at=None)
                | Q(weekdays=0, start_at__isnull=False, end_at__isnull=False, start_at__lt=F("end_at")),
                name="envelope_step_is_weekly_or_dated",
            ),
            models.CheckConstraint(
                condition=Q(from_minute__lt=DAY_MIN, until_minute__gte=1, until_minute__lte=DAY_MIN)
                & ~Q(from_minute=F("until_minute")),
                name="envelope_hours_are_sane",
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
    source = models.CharField(max_length=40, default=MODELLED)

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
        indexes = [
            models.Index(fields=["domain", "-at"], name="reading_by_domain"),
            # The last word of a meter lies behind a day of modelled readings where it is silent.
            models.Index(
                fields=["domain", "-at"], condition=~Q(source=MODELLED), name="metered_reading_by_domain"
            ),
        ]


def _choices(values: type[StrEnum]) -> list[tuple[str, str]]:
    return [(value.value, value.value) for value in values]


class BaselineMethod(models.TextChoices):
    METER_BEFORE = "meter_before", "mean of the 15 minutes before the notice"
    TEN_OF_TEN = "10_of_10", "same hour of the last ten days like it"
    THREE_PLUS_TWO = "3_plus_2", "same day: three hours before the event and two after"


class EmergencyPolicy(models.TextChoices):
    """What may be done in an emergency without asking anybody; jobs of the firm tier never."""

    NONE = "none", "nothing"
    CAPS = "caps", "caps down to the lowest"
    CAPS_AND_STOPS = "caps_and_stops", "caps, and stops of what is interruptible"


class Programme(models.Model):
    """Rules under which somebody outside asks for demand response, and what they pay for it."""

    name = models.CharField(max_length=120, unique=True)
    time_zone = models.CharField(max_length=64, default="UTC", help_text="Whose days are counted.")
    notice_s = models.PositiveIntegerField(help_text="From the notice to the start, as promised.")
    ramp_s = models.PositiveIntegerField(help_text="From the beginning of the ramp to the start.")
    min_duration_s = models.PositiveIntegerField()
    max_duration_s = models.PositiveIntegerField()
    target_kind = models.CharField(max_length=10, choices=_choices(TargetKind))
    tolerance = models.FloatField(default=0.05, help_text="Share of the target that may be missing.")
    baseline_method = models.CharField(max_length=20, choices=BaselineMethod.choices)
    interval_s = models.PositiveIntegerField(help_text="What is settled at once.")
    price_per_kwh = models.DecimalField(max_digits=12, decimal_places=6, default=0)
    penalty_per_kwh = models.DecimalField(max_digits=12, decimal_places=6, default=0)
    max_events_per_day = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: no limit.")
    max_events_per_season = models.PositiveIntegerField(
        null=True, blank=True, help_text="In a calendar year; empty: no limit."
    )
    is_auto_commit = models.BooleanField(
        default=False, help_text="A plan that breaches no tier is committed without a person."
    )
    two_person_above_w = models.FloatField(
        null=True, blank=True, help_text="A plan that sheds more needs two people; empty: never."
    )
    emergency_policy = models.CharField(
        max_length=20, choices=EmergencyPolicy.choices, default=EmergencyPolicy.NONE
    )
    emergency_policy_by = models.ForeignKey(
        User, models.PROTECT, null=True, blank=True, related_name="+", help_text="Who approved it."
    )
    # A wider policy is asked for by one person and approved by another, who asks for the same.
    asked_emergency_policy = models.CharField(max_length=20, choices=EmergencyPolicy.choices, blank=True)
    asked_emergency_policy_by = models.ForeignKey(
        User, models.PROTECT, null=True, blank=True, related_name="+"
    )
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(notice_s__lte=_LONGEST_S, ramp_s__lte=_LONGEST_S, max_duration_s__lte=_LONGEST_S)
                & Q(min_duration_s__gte=1, interval_s__gte=1, interval_s__lte=_LONGEST_S)
                & Q(tolerance__gte=0, tolerance__lt=1)
                & (
                    Q(two_person_above_w=None)
                    | Q(two_person_above_w__gte=0, two_person_above_w__lt=MAX_NUMBER)
                ),
                name="programme_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(min_duration_s__lte=F("max_duration_s")), name="programme_durations_in_order"
            ),
            models.CheckConstraint(
                condition=Q(price_per_kwh__gte=0, price_per_kwh__lt=MAX_PRICE)
                & Q(penalty_per_kwh__gte=0, penalty_per_kwh__lt=MAX_PRICE),
                name="programme_prices_are_sane",
            ),
            models.CheckConstraint(
                condition=(Q(max_events_per_day=None) | Q(max_events_per_day__gte=1))
                & (Q(max_events_per_season=None) | Q(max_events_per_season__gte=1)),
                name="programme_counts_are_positive",
            ),
            models.CheckConstraint(
                condition=Q(
                    target_kind__in=[kind.value for kind in TargetKind],
                    baseline_method__in=BaselineMethod.values,
                    emergency_policy__in=EmergencyPolicy.values,
                    asked_emergency_policy__in=["", *EmergencyPolicy.values],
                ),
                name="programme_words_are_known",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class EventSource(models.TextChoices):
    OPERATOR = "operator"
    OPENADR = "openadr"
    SCHEDULE = "schedule"
    EMERGENCY = "emergency"


class Outcome(models.TextChoices):
    OPEN = "", "not known yet"
    MET = "met"
    PARTIAL = "partial"
    MISSED = "missed"
    CANCELLED = "cancelled"
    OPTED_OUT = "opted_out"


class DemandResponseEvent(models.Model):
    """Somebody asks that a domain draws less for a while. Where it stands follows from its times and acts.

    Values are on the domain's own side of the meter: at the meter for a facility, IT load below it.
    """

    programme = models.ForeignKey(Programme, models.PROTECT, null=True, blank=True, related_name="events")
    domain = models.ForeignKey(Domain, models.PROTECT, related_name="demand_response_events")
    source = models.CharField(max_length=10, choices=EventSource.choices)
    external_id = models.CharField(
        max_length=200,
        blank=True,
        help_text="What the source calls it; a later version replaces the one here.",
    )
    external_version = models.PositiveIntegerField(default=0)
    priority = models.PositiveSmallIntegerField(default=1, help_text="0 goes first.")
    target_kind = models.CharField(max_length=10, choices=_choices(TargetKind))
    value = models.FloatField(help_text="Watts; or a level, 0 to 3.")
    notified_at = models.DateTimeField()
    ramp_start_at = models.DateTimeField()
    start_at = models.DateTimeField(help_text="The target binds from here.")
    end_at = models.DateTimeField()
    recovery_s = models.PositiveIntegerField(default=3600)
    rebound_limit_share = models.FloatField(
        default=1.05, help_text="Of the reference: what the load may come back to during the recovery."
    )
    tolerance = models.FloatField(default=0.05, help_text="Share of the target that may be missing.")
    is_test = models.BooleanField(default=False, help_text="Everything but acting on jobs.")
    is_emergency = models.BooleanField(default=False)
    reference_w = models.FloatField(
        null=True, blank=True, help_text="Mean of the 15 minutes before the notice; frozen then."
    )
    reference_quality = models.CharField(
        max_length=10, choices=ReadingQuality.choices, default=ReadingQuality.MISSING
    )
    cancelled_at = models.DateTimeField(null=True, blank=True)
    opted_out_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(
        null=True, blank=True, help_text="Every action reverted, and the load within what is allowed."
    )
    # While the load comes back: the last full minute since the release, and what the domain may draw from then on (IT
    # load): at the release what it drew, then what it drew at each minute and a step of its ramp.
    ramped_at = models.DateTimeField(null=True, blank=True)
    ramped_w = models.FloatField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default=Outcome.OPEN, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    created_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["start_at", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["programme", "external_id"],
                condition=~Q(external_id=""),
                nulls_distinct=False,
                name="one_dr_event_a_programme_and_external_id",
            ),
            models.CheckConstraint(
                condition=Q(notified_at__lte=F("ramp_start_at"))
                & Q(ramp_start_at__lte=F("start_at"))
                & Q(start_at__lt=F("end_at")),
                name="dr_event_times_are_in_order",
            ),
            models.CheckConstraint(
                condition=Q(value__gte=0, value__lt=MAX_NUMBER)
                & (~Q(target_kind=TargetKind.LEVEL.value) | Q(value__in=[0, 1, 2, 3])),
                name="dr_event_target_is_sane",
            ),
            models.CheckConstraint(
                condition=Q(priority__lte=1000, recovery_s__lte=LONGEST_RECOVERY_S)
                & Q(rebound_limit_share__gt=0, rebound_limit_share__lte=10)
                & Q(tolerance__gte=0, tolerance__lt=1)
                & (Q(reference_w=None) | Q(reference_w__gte=0, reference_w__lt=MAX_NUMBER)),
                name="dr_event_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(
                    source__in=EventSource.values,
                    target_kind__in=[kind.value for kind in TargetKind],
                    outcome__in=Outcome.values,
                    reference_quality__in=ReadingQuality.values,
                ),
                name="dr_event_words_are_known",
            ),
            models.CheckConstraint(
                condition=Q(cancelled_at=None) | Q(opted_out_at=None), name="dr_event_is_given_up_one_way"
            ),
            models.CheckConstraint(
                condition=Q(cancelled_at__isnull=False, outcome=Outcome.CANCELLED)
                | Q(opted_out_at__isnull=False, outcome=Outcome.OPTED_OUT)
                | (
                    Q(cancelled_at=None, opted_out_at=None)
                    & ~Q(outcome__in=[Outcome.CANCELLED, Outcome.OPTED_OUT])
                ),
                name="dr_event_given_up_has_that_outcome",
            ),
        ]
        indexes = [
            models.Index(fields=["domain", "start_at"], name="dr_event_by_domain"),
            models.Index(fields=["-start_at", "-id"], name="dr_event_by_start"),
        ]

    def __str__(self) -> str:
        return f"event {self.pk} of {self.domain}"


class PlanState(models.TextChoices):
    DRAFT = "draft"
    PREVIEWED = "previewed"
    COMMITTED = "committed"
    SUPERSEDED = "superseded"


class CurtailmentPlan(models.Model):
    """What would be, or is, done for an event. Once it is committed a trigger holds it as it is."""

    event = models.ForeignKey(DemandResponseEvent, models.PROTECT, related_name="plans")
    number = models.PositiveIntegerField(help_text="Version of the plan, from 1 on for each event.")
    event_version = models.PositiveIntegerField(help_text="Of the event, as it was when this was made.")
    state = models.CharField(max_length=10, choices=PlanState.choices, default=PlanState.DRAFT)
    inputs_hash = models.CharField(max_length=64, help_text="SHA-256, hex, of all it was decided from.")
    plan = models.JSONField(help_text="{actions: [...], tier_breaches: [...], ...}")
    predicted_shed_w = models.FloatField()
    shortfall_w = models.FloatField(default=0)
    lost_device_s = models.FloatField(default=0)
    bound_device_s = models.FloatField(default=0, help_text="No plan with as little missing loses less.")
    draw_w = models.FloatField(null=True, blank=True, help_text="Of the domain, when it was made.")
    n_breaches = models.PositiveIntegerField(
        default=0, help_text="Jobs that would lose more than they allow."
    )
    created_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="+")
    previewed_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    approved_at = models.DateTimeField(null=True, blank=True, help_text="By the first of two people.")
    approved_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="+")
    committed_at = models.DateTimeField(null=True, blank=True)
    committed_by = models.ForeignKey(
        User, models.PROTECT, null=True, blank=True, related_name="+", help_text="Empty: by policy."
    )

    class Meta:
        ordering = ["event_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["event", "number"], name="one_plan_an_event_and_number"),
            models.UniqueConstraint(
                fields=["event"], condition=Q(state=PlanState.COMMITTED), name="one_committed_plan_an_event"
            ),
            models.CheckConstraint(
                condition=Q(state__in=PlanState.values), name="curtailment_plan_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(predicted_shed_w__gte=0, predicted_shed_w__lt=MAX_NUMBER)
                & Q(shortfall_w__gte=0, shortfall_w__lt=MAX_NUMBER)
                & Q(lost_device_s__gte=0, lost_device_s__lt=MAX_NUMBER)
                & Q(bound_device_s__gte=0, bound_device_s__lt=MAX_NUMBER)
                & (Q(draw_w=None) | Q(draw_w__gte=0, draw_w__lt=MAX_NUMBER))
                & Q(number__gte=1, event_version__gte=1, inputs_hash__regex=r"^[0-9a-f]{64}$"),
                name="curtailment_plan_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=(
                    Q(state=PlanState.DRAFT, previewed_at=None, expires_at=None, committed_at=None)
                    | Q(state=PlanState.PREVIEWED, previewed_at__isnull=False, committed_at=None)
                    | Q(
                        state=PlanState.COMMITTED,
                        previewed_at__isnull=False,
                        committed_at__isnull=False,  # a check that comes to NULL would let it in
                        committed_at__gte=F("previewed_at"),
                    )
                    | Q(state=PlanState.SUPERSEDED)
                )
                & (
                    Q(previewed_at=None, expires_at=None)
                    | Q(
                        previewed_at__isnull=False,
                        expires_at__isnull=False,
                        expires_at__gt=F("previewed_at"),
                    )
                ),
                name="curtailment_plan_times_fit_its_state",
            ),
            models.CheckConstraint(
                condition=Q(approved_by=None) | Q(committed_by=None) | ~Q(approved_by=F("committed_by")),
                name="curtailment_plan_is_approved_by_somebody_else",
            ),
        ]

    def __str__(self) -> str:
        return f"plan {self.number} of event {self.event_id}"


class ActionState(models.TextChoices):
    REQUESTED = "requested"
    ACKED = "acked"
    VERIFIED = "verified"
    FAILED = "failed"
    REVERTED = "reverted"


class CurtailmentAction(models.Model):
    """One thing that a committed plan does to one job, and how far it has come."""

    plan = models.ForeignKey(CurtailmentPlan, models.PROTECT, related_name="actions")
    # A plain number: the ledger stands above.
    job_id = models.BigIntegerField()
    lever = models.CharField(max_length=10)
    before = models.JSONField(help_text="What the job has now, and gets back.")
    after = models.JSONField(help_text="What it gets.")
    expected_w = models.FloatField(help_text="How much less it then draws, in watts of IT load.")
    issue_at = models.DateTimeField(help_text="When it is asked for.")
    effective_by_at = models.DateTimeField(help_text="When the draw is down at the latest.")
    state = models.CharField(max_length=10, choices=ActionState.choices, default=ActionState.REQUESTED)
    state_since_at = models.DateTimeField()
    idempotency_key = models.CharField(max_length=120, unique=True)
    lease_until_at = models.DateTimeField(
        null=True, blank=True, help_text="Whoever carries it out goes back by itself after this."
    )
    fence = models.PositiveBigIntegerField(default=0, help_text="A report with an older one is ignored.")
    note = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["plan_id", "issue_at", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=ActionState.values, lever__in=LEVERS),
                name="curtailment_action_words_are_known",
            ),
            models.CheckConstraint(
                condition=Q(expected_w__gte=0, expected_w__lt=MAX_NUMBER) & ~Q(idempotency_key=""),
                name="curtailment_action_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(issue_at__lte=F("effective_by_at")), name="curtailment_action_times_are_in_order"
            ),
        ]
        indexes = [
            models.Index(fields=["job_id"], name="curtailment_action_by_job"),
            models.Index(fields=["plan", "state"], name="curtailment_action_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.lever} job {self.job_id}"


class PowerController(models.Model):
    """Who controls power, one row: the holder of the newest fence. Agents and reports of an older one are ignored."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    holder = models.CharField(max_length=64, blank=True, help_text="The process that holds the fence.")
    fence = models.PositiveBigIntegerField(default=0)
    since_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True, help_text="It last looked at everything then.")
    last_error = models.CharField(max_length=500, blank=True)
    # An operator may have it keep everything as it is: no cap is changed, nobody is paused or resumed.
    stopped_at = models.DateTimeField(null=True, blank=True)
    stopped_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="+")
    stop_reason = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="there_is_one_power_controller"),
            models.CheckConstraint(
                condition=Q(stopped_at=None) | ~Q(stop_reason=""), name="automation_is_stopped_for_a_reason"
            ),
        ]


class AlarmKind(models.TextChoices):
    CONTROLLER_SILENT = "controller_silent", "power control is not heard of"
    OVER_LIMIT = "over_limit", "a domain draws more than it may"
    STALE_READINGS = "stale_readings", "a meter is not heard of"
    WATCHDOG_BLIND = "watchdog_blind", "a check could not be made"


class PowerAlarm(models.Model):
    """Something that the watchdog found wrong. It stays open until it is found right again."""

    kind = models.CharField(max_length=20, choices=AlarmKind.choices)
    domain = models.ForeignKey(Domain, models.CASCADE, null=True, blank=True, related_name="power_alarms")
    raised_at = models.DateTimeField()
    cleared_at = models.DateTimeField(null=True, blank=True)
    message = models.CharField(max_length=500)

    class Meta:
        ordering = ["-raised_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "domain"],
                condition=Q(cleared_at=None),
                nulls_distinct=False,
                name="one_open_alarm_a_kind_and_domain",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=AlarmKind.values)
                & (Q(cleared_at=None) | Q(cleared_at__gte=F("raised_at"))),
                name="power_alarm_is_sane",
            ),
        ]


class OverrideKind(models.TextChoices):
    EXEMPT = "exempt", "no new plan touches it"
    HOLD = "hold", "it stays as it is"
    RELEASE = "release", "it gets its power back now, as far as the limits allow"


class PowerOverride(models.Model):
    """An operator's word on one job, or on everything in a domain, above every plan; until it expires.

    What is kept out of plans makes less achievable, and previews say so. Limits are above it.
    """

    kind = models.CharField(max_length=10, choices=OverrideKind.choices)
    job_id = models.BigIntegerField(null=True, blank=True)  # a plain number: the ledger stands above
    domain = models.ForeignKey(Domain, models.CASCADE, null=True, blank=True, related_name="power_overrides")
    reason = models.CharField(max_length=500)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(User, models.PROTECT, related_name="+")
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Taken back before it expired.")
    ended_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="+")

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(job_id=None, domain__isnull=False) | Q(job_id__isnull=False, domain=None),
                name="override_is_of_a_job_or_a_domain",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=OverrideKind.values, expires_at__gt=F("created_at")) & ~Q(reason=""),
                name="override_is_sane",
            ),
        ]
        indexes = [models.Index(fields=["expires_at"], name="override_by_expiry")]


class MeterKind(models.TextChoices):
    PROMETHEUS = "prometheus"


class MeterSource(models.Model):
    """Where readings are fetched from, and what became of the last try. Its name is the source of its readings."""

    name = models.CharField(max_length=40, unique=True)
    kind = models.CharField(max_length=12, choices=MeterKind.choices, default=MeterKind.PROMETHEUS)
    url = models.CharField(max_length=500, help_text="Base address of its HTTP API, without /api/v1.")
    query = models.CharField(max_length=2000, help_text="An instant query that answers a vector.")
    # Which label of a series names what it belongs to: a power domain, or a node and perhaps a device of it.
    domain_label = models.CharField(max_length=100, blank=True)
    node_label = models.CharField(max_length=100, blank=True)
    device_label = models.CharField(max_length=100, blank=True, help_text="Index of the device, from 0.")
    names = models.JSONField(default=dict, blank=True, help_text="{value of the label: name here}")
    scale = models.FloatField(default=1.0, help_text="Watts for each unit of the value.")
    every_s = models.PositiveIntegerField(default=30)
    max_age_s = models.FloatField(default=120, help_text="Its readings say nothing when they are older.")
    is_enabled = models.BooleanField(default=True)
    last_tried_at = models.DateTimeField(null=True, blank=True)
    last_ok_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(
        max_length=500, blank=True, help_text="Of the last try; empty: it went well."
    )
    n_taken = models.PositiveIntegerField(
        default=0, help_text="Series of the last good answer that were taken."
    )
    n_left = models.PositiveIntegerField(default=0, help_text="Of the same answer, those that were not.")
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=MeterKind.values) & ~Q(name__in=["", MODELLED, METERED]),
                name="meter_words_are_known",
            ),
            models.CheckConstraint(
                condition=(~Q(domain_label="") & Q(node_label="", device_label=""))
                | (Q(domain_label="") & ~Q(node_label="")),
                name="meter_reads_domains_or_nodes",
            ),
            models.CheckConstraint(
                condition=Q(every_s__gte=5, every_s__lte=LONGEST_AGE_S)
                & Q(max_age_s__gte=F("every_s"), max_age_s__lte=LONGEST_AGE_S)
                & Q(scale__gt=0, scale__lt=MAX_NUMBER),
                name="meter_numbers_are_sane",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class NodeReading(models.Model):
    """The last word of one meter on a node, or on one device of it. What it said before is kept nowhere."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="power_readings", db_index=False)
    index = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of the device; empty: the whole node."
    )
    at = models.DateTimeField()
    draw_w = models.FloatField()
    source = models.CharField(max_length=40)
    quiet_since_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Of a device: since then every word was of next to nothing above rest.",
    )
    is_learned = models.BooleanField(default=False, help_text="The model of the job that ran there has it.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node", "source", "index"],
                nulls_distinct=False,
                name="one_reading_a_node_source_and_device",
            ),
            models.CheckConstraint(
                condition=Q(draw_w__gte=0, draw_w__lt=MAX_NUMBER), name="node_reading_is_not_negative"
            ),
        ]
        indexes = [
            models.Index(fields=["id"], condition=Q(is_learned=False), name="node_reading_to_learn"),
        ]


class JobPowerModel(models.Model):
    """What devices of one type were seen to draw under a job, or under all jobs of a name and a person."""

    # A plain number: the ledger stands above. Empty: of the class, which is the person and the name.
    job_id = models.BigIntegerField(null=True, blank=True)
    user = models.ForeignKey(User, models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=120)
    accelerator_type = models.ForeignKey(AcceleratorType, models.CASCADE, related_name="+", db_index=False)
    counts = models.JSONField(default=dict, help_text="{bin: samples}, see telemetry.draws")
    n_samples = models.PositiveBigIntegerField(default=0)
    n_looks = models.PositiveIntegerField(default=0, help_text="Times at which samples were taken.")
    mean_w = models.FloatField(null=True, blank=True, help_text="Of one device, the median; empty: too few.")
    peak_w = models.FloatField(null=True, blank=True, help_text="Of one device, the 99th percentile.")
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "name", "accelerator_type"],
                condition=Q(job_id=None),
                name="one_power_model_a_class",
            ),
            models.UniqueConstraint(
                fields=["job_id", "accelerator_type"],
                condition=Q(job_id__isnull=False),
                name="one_power_model_a_job_and_type",
            ),
            models.CheckConstraint(
                condition=Q(mean_w=None, peak_w=None)
                | Q(
                    mean_w__isnull=False,
                    peak_w__isnull=False,
                    mean_w__gte=0,
                    peak_w__gte=F("mean_w"),
                    peak_w__lt=MAX_NUMBER,
                ),
                name="power_model_numbers_are_sane",
            ),
        ]
        indexes = [models.Index(fields=["updated_at"], name="power_model_by_age")]


class PowerHold(models.Model):
    """A domain in which nothing starts for now, because too little is known of what it draws."""

    domain = models.OneToOneField(Domain, models.CASCADE, primary_key=True, related_name="power_hold")
    since_at = models.DateTimeField()
    why = models.CharField(max_length=300)


class LossSource(models.TextChoices):
    """Where the device-hours that an event cost are known from."""

    ACTIONS = "actions", "counted from what was done to each job"
    PLAN = "plan", "as the plan predicted"
    NONE = "none", "nothing was done to any job"


class SettlementReport(models.Model):
    """What one event came to, as it was known then. Never changed, by a trigger: readings that come late give
    another version beside it.

    Columns repeat what lists search, sort and add up by; `document` is all of it.
    """

    event = models.ForeignKey(DemandResponseEvent, models.PROTECT, related_name="settlements")
    number = models.PositiveIntegerField(help_text="Version of the report, from 1 on for each event.")
    event_version = models.PositiveIntegerField(help_text="Of the event, as it was when this was made.")
    settled_at = models.DateTimeField()
    settled_by = models.ForeignKey(
        User, models.PROTECT, null=True, blank=True, related_name="+", help_text="Empty: by itself."
    )
    outcome = models.CharField(max_length=10, choices=Outcome.choices)
    performance = models.DecimalField(
        max_digits=7, decimal_places=6, null=True, blank=True, help_text="Empty: it never bound."
    )
    target_wh = models.DecimalField(max_digits=20, decimal_places=6)
    delivered_wh = models.DecimalField(max_digits=20, decimal_places=6, help_text="Negative: more was drawn.")
    credited_wh = models.DecimalField(max_digits=20, decimal_places=6)
    shortfall_wh = models.DecimalField(max_digits=20, decimal_places=6)
    payment = models.DecimalField(max_digits=20, decimal_places=2)
    penalty = models.DecimalField(max_digits=20, decimal_places=2)
    net = models.DecimalField(max_digits=20, decimal_places=2)
    currency = models.CharField(max_length=3)
    lost_device_h = models.DecimalField(max_digits=20, decimal_places=6)
    lost_source = models.CharField(max_length=10, choices=LossSource.choices)
    n_jobs = models.PositiveIntegerField(help_text="That were curtailed.")
    n_readings = models.PositiveIntegerField(help_text="That it was made from.")
    digest = models.CharField(max_length=64, help_text="SHA-256, hex, of the document.")
    document = models.JSONField(help_text="settlement.report.as_dict(), and what else is told of it.")

    class Meta:
        ordering = ["event_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["event", "number"], name="one_settlement_an_event_and_number"),
            models.CheckConstraint(
                condition=Q(
                    outcome__in=[one for one in Outcome.values if one], lost_source__in=LossSource.values
                ),
                name="settlement_words_are_known",
            ),
            models.CheckConstraint(
                condition=Q(number__gte=1, event_version__gte=1, digest__regex=r"^[0-9a-f]{64}$")
                & Q(target_wh__gte=0, credited_wh__gte=0, shortfall_wh__gte=0, lost_device_h__gte=0)
                & Q(payment__gte=0, penalty__gte=0, credited_wh__lte=F("target_wh"))
                & (Q(performance=None) | Q(performance__gte=0, performance__lte=1)),
                name="settlement_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(net=F("payment") - F("penalty")), name="settlement_net_is_payment_less_penalty"
            ),
        ]

    def __str__(self) -> str:
        return f"settlement {self.number} of event {self.event_id}"

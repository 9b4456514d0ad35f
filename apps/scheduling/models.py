"""What the planner decided, pass by pass, and why the rest waits."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from apps.inventory.models import AcceleratorType
from apps.jobs.models import Allocation, Job
from apps.scheduling.idle import BUCKETS
from apps.teams.models import Team, User


class PolicySetting(models.Model):
    """The policy in force, as fields of engine.policy.Policy; one row."""

    singleton = models.BooleanField(default=True, unique=True)
    values = models.JSONField(default=dict)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(singleton=True), name="one_policy")]


class Pass(models.Model):
    """One run of the planner."""

    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    cursor_transaction_id = models.BigIntegerField(default=0, help_text="Events up to here were seen.")
    cursor_event_id = models.BigIntegerField(default=0)
    n_queued = models.PositiveIntegerField(default=0)
    n_started = models.PositiveIntegerField(default=0)
    n_waiting = models.PositiveIntegerField(default=0)
    n_dropped = models.PositiveIntegerField(
        default=0, help_text="Decisions gone stale before they were written."
    )
    is_refused = models.BooleanField(
        default=False, help_text="The checker found a broken rule; nothing was written."
    )
    faults = models.JSONField(default=list)
    phase_ms = models.JSONField(default=dict, help_text="Milliseconds by phase: load, plan, check, commit.")
    next_boundary_at = models.DateTimeField(
        null=True, blank=True, help_text="Plan again then, even if nothing happens."
    )
    summary = models.JSONField(default=dict, help_text="Waiting jobs and devices by reason, and the like.")
    fragmentation = models.JSONField(
        default=list,
        help_text="[accelerator type, devices it left free, of these of no use to a typical replica, to a gang].",
    )

    class Meta:
        ordering = ["-id"]


class Earmark(models.Model):
    """Devices that others give up for a job, or to which it moves: it starts there as soon as all of them are free, and
    nobody else does."""

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="earmark")
    made_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    shares = models.JSONField(
        help_text="[group, node id, replicas, device indices, millionths of each device]."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(made_at__lt=F("expires_at")), name="earmark_runs_forward")
        ]


class Defragmentation(models.Model):
    """Moves that an operator asked for, so that a waiting job can start."""

    fingerprint = models.CharField(max_length=60, unique=True, help_text="Of the proposal; see advice.py.")
    job = models.ForeignKey(Job, models.CASCADE, related_name="+", help_text="Who starts.")
    at = models.DateTimeField()
    actor = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    cost_device_s = models.FloatField(help_text="As was expected.")
    gain_device_s = models.FloatField(null=True, help_text="As was expected; null: nobody could tell.")
    moves = models.JSONField(help_text="By job that moves: {job_id, allocation_id, devices, cost_device_s}.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(cost_device_s__gte=0)
                & (Q(gain_device_s=None) | Q(gain_device_s__gt=F("cost_device_s"))),
                name="moves_win_more_than_they_cost",
            )
        ]
        indexes = [models.Index(fields=["-at", "-id"], name="defragmentation_by_time")]


class PassDump(models.Model):
    """A pass as a file (scheduling.dump), kept for replay; bounded by scheduling.dump_store."""

    planner_pass = models.OneToOneField(Pass, models.CASCADE, primary_key=True, related_name="dump")
    kept_at = models.DateTimeField()
    is_refused = models.BooleanField(help_text="Kept because the pass was refused; the others by a setting.")
    content = models.BinaryField(help_text="Compressed JSON, with the names of jobs.")

    class Meta:
        indexes = [models.Index(fields=["is_refused", "-planner_pass"], name="pass_dump_by_cause")]


class Reason(models.Model):
    """Why a job waits, as of the last pass that looked at it."""

    job = models.OneToOneField(Job, models.CASCADE, related_name="reason")
    pass_id = models.BigIntegerField()
    at = models.DateTimeField()
    code = models.CharField(max_length=30)
    sentence = models.CharField(max_length=1000)
    binding = models.JSONField(default=list, help_text="Every rule without which it would start.")
    facts = models.JSONField(default=dict)
    rank = models.PositiveIntegerField(default=0)
    expected_start_at = models.DateTimeField(null=True, blank=True)
    foretold_at = models.DateTimeField(null=True, blank=True, help_text="It was first told a start then.")
    foretold_start_at = models.DateTimeField(
        null=True, blank=True, help_text="The start that it was told first."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(foretold_at=None) ^ Q(foretold_start_at__isnull=False), name="foretold_is_whole"
            )
        ]
        indexes = [models.Index(fields=["code"], name="reason_by_code")]


class Forecast(models.Model):
    """When a job was expected to start, and where; later compared with what happened."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="forecasts")
    made_at = models.DateTimeField()
    expected_start_at = models.DateTimeField()
    placement = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(expected_start_at__gte=F("made_at")), name="forecast_is_ahead")
        ]
        indexes = [models.Index(fields=["job", "-made_at"], name="forecast_by_job")]


class ForecastOutcome(models.Model):
    """What a job that waited was first told of its start, and when it started."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="+", db_index=False)
    foretold_at = models.DateTimeField()
    foretold_start_at = models.DateTimeField()
    started_at = models.DateTimeField(help_text="It was granted its devices.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(started_at__gte=F("foretold_at")), name="foretold_before_it_started"
            )
        ]
        indexes = [models.Index(fields=["-started_at"], name="forecast_outcome_by_start")]


class TeamUse(models.Model):
    """Decayed use of one accelerator type by one team: what fair share weighs."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="use")
    accelerator_type = models.ForeignKey(AcceleratorType, models.CASCADE)
    decayed_device_s = models.FloatField(default=0)
    as_of_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "accelerator_type"], name="one_use_a_team_and_type"),
            models.CheckConstraint(condition=Q(decayed_device_s__gte=0), name="use_is_not_negative"),
        ]


class LineBasis(models.Model):
    """By what the last pass put the queue in order; one row."""

    pass_id = models.BigIntegerField()
    at = models.DateTimeField(help_text="Who could start then, and how long each had waited.")
    order = models.CharField(max_length=20, help_text="As the policy's.")
    ageing_s = models.FloatField(null=True, blank=True, help_text="Empty: nobody ages.")
    starving_s = models.FloatField(null=True, blank=True, help_text="Empty: nobody waits too long.")
    starving_by_width = models.FloatField(
        default=0.0, help_text="Share of that time that a job is spared which asks for all there is."
    )
    team_places = models.JSONField(
        default=dict, help_text="By id of the team its place among all by fair share; lower goes first."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="one_line_basis"),
            models.CheckConstraint(
                condition=(Q(ageing_s=None) | Q(ageing_s__gt=0))
                & (Q(starving_s=None) | Q(starving_s__gte=0))
                & Q(starving_by_width__gte=0)
                & Q(starving_by_width__lte=1),
                name="line_basis_is_sane",
            ),
        ]


class UtilizationSample(models.Model):
    """Devices of one type by what they did, at one instant."""

    at = models.DateTimeField()
    accelerator_type = models.ForeignKey(AcceleratorType, models.CASCADE)
    is_simulated = models.BooleanField(default=False)
    n_capacity = models.PositiveIntegerField()
    n_unhealthy = models.PositiveIntegerField()
    claimed = models.FloatField(help_text="Devices held, fractions added up.")
    n_waiting_jobs = models.PositiveIntegerField(default=0)
    waiting_devices = models.FloatField(default=0)
    # Of the type as a whole, as the last pass left it. Empty: nobody asked for it.
    left_free = models.FloatField(null=True, blank=True, help_text="Devices that the last pass left free.")
    of_no_use = models.FloatField(
        null=True, blank=True, help_text="Of these, to a typical replica; expected."
    )
    of_no_use_to_gangs = models.FloatField(null=True, blank=True, help_text="Of these, to a typical gang.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["at", "accelerator_type", "is_simulated"], name="one_sample_an_instant_and_type"
            ),
            models.CheckConstraint(
                condition=Q(left_free=None) | Q(left_free__gte=0), name="sample_of_free_is_sane"
            ),
        ]


class FacilityChange(models.Model):
    """Something was changed of the facility as built, of what its feeds may draw, or of the tree of teams.

    Triggers write a row for each statement, so whoever remembers the facility knows by these rows whether it is still
    so, in whatever process. Rows instead of one counter: nobody waits for whoever changes something else.
    """

    at = models.DateTimeField(db_default=Now())


class LossClock(models.Model):
    """How far the losses ledger has counted, and what devices do since then. One row."""

    counted_to = models.DateTimeField()
    rates = models.JSONField(
        default=list,
        help_text="[accelerator type, team or null, bucket, millionths of devices], of all capacity.",
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_loss_clock")]


class LossSpan(models.Model):
    """A quarter of an hour of one accelerator type's capacity; a trigger keeps the sum of its parts equal to it."""

    from_at = models.DateTimeField()
    accelerator_type = models.ForeignKey(AcceleratorType, models.PROTECT, db_index=False)
    capacity = models.DecimalField(
        max_digits=30, decimal_places=0, help_text="Millionths of devices times milliseconds."
    )
    guessed_ms = models.BigIntegerField(default=0, help_text="Of these, while no pass looked.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["from_at", "accelerator_type"], name="one_span_a_quarter_and_type"
            ),
            models.CheckConstraint(
                condition=Q(capacity__gte=0, guessed_ms__gte=0), name="span_is_not_negative"
            ),
        ]


class LossPart(models.Model):
    """What became of part of a span: one bucket, of one team where somebody held the devices."""

    span = models.ForeignKey(LossSpan, models.CASCADE, related_name="parts", db_index=False)
    team = models.ForeignKey(Team, models.PROTECT, null=True, blank=True)
    bucket = models.CharField(max_length=20, choices=[(name, name) for name in BUCKETS])
    amount = models.DecimalField(max_digits=30, decimal_places=0, help_text="As the span's capacity.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["span", "team", "bucket"], nulls_distinct=False, name="one_part_a_span_team_bucket"
            ),
            models.CheckConstraint(condition=Q(amount__gte=0), name="part_is_not_negative"),
            models.CheckConstraint(condition=Q(bucket__in=BUCKETS), name="part_has_a_bucket"),
        ]


class CountedLoss(models.Model):
    """An attempt whose lost work is in the ledger: it is moved there once."""

    allocation = models.OneToOneField(
        Allocation, models.CASCADE, primary_key=True, related_name="counted_loss"
    )

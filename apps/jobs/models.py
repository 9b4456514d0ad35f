"""The ledger: jobs, the attempts to run them, and who holds which device. Only `jobs.services` writes here."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from apps.inventory.models import Cluster, Device, Node
from apps.jobs.lifecycle import ENDED, State
from apps.teams.models import Team, User

STATES = [(state.value, state.value) for state in State]
_RAN_TO_AN_END = Q(
    state__in=[state.value for state in (State.FAILED, State.SUCCEEDED, State.TIMED_OUT)], ran_s__gt=0
)


class JobArray(models.Model):
    """Copies of one specification, submitted together and told apart by their index."""

    size = models.PositiveIntegerField()
    max_running = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(size__gte=1) & (Q(max_running=None) | Q(max_running__gte=1)),
                name="array_counts_are_positive",
            )
        ]


class Job(models.Model):
    """What a team asks for, and where it stands. `spec` is the whole request; columns repeat what is searched by."""

    team = models.ForeignKey(Team, models.PROTECT, related_name="jobs")
    user = models.ForeignKey(User, models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=120)
    spec = models.JSONField(help_text="A jobs.spec.JobRequest, without command, script, env and workdir.")
    private = models.JSONField(
        default=dict, help_text="command, script, env, workdir: for the team's eyes only."
    )
    shape = models.CharField(max_length=24, help_text="Jobs of one shape fit or fail together.")
    n_devices = models.DecimalField(max_digits=16, decimal_places=6, help_text="At the preferred size.")
    priority = models.IntegerField(default=0)
    cluster = models.ForeignKey(
        Cluster, models.PROTECT, null=True, blank=True, related_name="jobs", help_text="Only there."
    )
    array = models.ForeignKey(JobArray, models.PROTECT, null=True, blank=True, related_name="jobs")
    array_index = models.PositiveIntegerField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)

    submitted_at = models.DateTimeField()
    not_before_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    time_limit_s = models.FloatField(
        null=True, blank=True, help_text="Counts running time only, over all attempts."
    )
    runtime_s = models.FloatField(
        null=True, blank=True, help_text="Declared run time; simulated clusters play it."
    )

    is_held = models.BooleanField(default=False)
    held_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    held_reason = models.CharField(max_length=500, blank=True)
    desired_stop_at = models.DateTimeField(null=True, blank=True, help_text="Somebody asked it to end.")
    stop_reason = models.CharField(max_length=500, blank=True)

    state = models.CharField(max_length=12, choices=STATES, default=State.QUEUED)
    state_at = models.DateTimeField(help_text="In this state since.")
    queued_at = models.DateTimeField(help_text="In the queue since (last time).")
    first_started_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(
        null=True, blank=True, help_text="Start of the current or last attempt."
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    end_code = models.CharField(max_length=60, blank=True, help_text="Stable code of why it ended.")
    end_message = models.CharField(max_length=1000, blank=True)
    ran_s = models.FloatField(default=0, help_text="Running time of ended attempts.")
    lost_s = models.FloatField(default=0, help_text="Running time thrown away by losses.")
    worked_s = models.FloatField(
        default=0, help_text="What ended attempts did and kept, as running time at the preferred size."
    )
    n_preemptions = models.PositiveIntegerField(default=0)
    n_moves = models.PositiveIntegerField(
        default=0, help_text="Attempts that were stopped to go on elsewhere, so that another job can start."
    )
    n_resizes = models.PositiveIntegerField(
        default=0, help_text="Attempts that were stopped to go on with more or fewer replicas."
    )
    n_start_failures = models.PositiveIntegerField(default=0)
    n_node_losses = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True, blank=True, help_text="Not tried again before.")
    version = models.PositiveIntegerField(default=1)
    # By a trigger, whoever writes the row: a reader that remembers the queue asks for what changed since it looked.
    transaction_id = models.BigIntegerField(
        default=0, editable=False, help_text="The transaction that changed it last; a trigger writes it."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "idempotency_key"], name="one_job_an_idempotency_key_and_team"
            ),
            models.UniqueConstraint(fields=["array", "array_index"], name="one_job_an_array_index"),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in State]), name="job_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(n_devices__gte=0)
                & (Q(time_limit_s=None) | Q(time_limit_s__gt=0))
                & (Q(runtime_s=None) | Q(runtime_s__gt=0))
                & Q(ran_s__gte=0, lost_s__gte=0, worked_s__gte=0),
                name="job_numbers_are_sane",
            ),
            models.CheckConstraint(
                condition=Q(state__in=sorted(s.value for s in ENDED)) ^ Q(ended_at=None),
                name="job_ended_has_an_end",
            ),
        ]
        indexes = [
            models.Index(fields=["state", "-priority", "submitted_at", "id"], name="job_queue"),
            models.Index(fields=["state", "-submitted_at", "-id"], name="job_by_state"),
            models.Index(fields=["team", "state", "-id"], name="job_by_team"),
            models.Index(fields=["user", "-id"], name="job_by_user"),
            models.Index(
                fields=["team", "user"], condition=Q(state=State.QUEUED.value), name="job_waiting_by_member"
            ),
            models.Index(
                fields=["name", "id"], name="job_by_name", opclasses=["varchar_pattern_ops", "int8_ops"]
            ),
            models.Index(fields=["transaction_id"], name="job_by_transaction"),
            models.Index(
                fields=["first_started_at"],
                condition=Q(first_started_at__isnull=False),
                name="job_by_first_start",
            ),
            # What `past_runs` counts; in its very words.
            models.Index(
                fields=["user", "team", "name", "-ended_at", "-id"],
                condition=_RAN_TO_AN_END,
                name="job_runs_by_name",
            ),
            models.Index(
                fields=["user", "-ended_at", "-id"],
                condition=_RAN_TO_AN_END,
                name="job_runs_by_user",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.name}"


class Dependency(models.Model):
    """`job` waits until `after` has succeeded."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="dependencies", db_index=False)
    after = models.ForeignKey(Job, models.PROTECT, related_name="dependants")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "after"], name="one_dependency_a_pair"),
            models.CheckConstraint(condition=~Q(job=F("after")), name="job_does_not_wait_for_itself"),
        ]


class Desired(models.TextChoices):
    RUN = "run"
    STOP = "stop"


class StopCause(models.TextChoices):
    NONE = "", "none"
    USER = "user"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    PAUSE = "pause"
    NODE_LOST = "node_lost"
    DATA_LATE = "data_late"
    MOVE = "move"
    RESIZE = "resize"


class Observed(models.TextChoices):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class Allocation(models.Model):
    """One attempt to run a job: what it was granted, and what became of it.

    People and the scheduler write `desired_*`, execution alone writes `observed_*`. `fence` grows with every
    attempt at a job: a backend refuses a launch with an older one.
    """

    job = models.ForeignKey(Job, models.PROTECT, related_name="allocations", db_index=False)
    cluster = models.ForeignKey(Cluster, models.PROTECT, related_name="allocations")
    fence = models.PositiveIntegerField()
    pass_id = models.BigIntegerField(null=True, blank=True, help_text="The pass that decided it.")
    why = models.JSONField(default=dict, help_text="Why it went there.")
    bound_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)

    desired_state = models.CharField(max_length=10, choices=Desired.choices, default=Desired.RUN)
    desired_power_cap_share = models.FloatField(
        default=1.0,
        help_text="Share of TDP that it counts with. A cap that is lifted counts at once, a lower one in force.",
    )
    stop_cause = models.CharField(
        max_length=12, choices=StopCause.choices, default=StopCause.NONE, blank=True
    )
    stop_at = models.DateTimeField(null=True, blank=True)
    grace_s = models.FloatField(default=10.0)
    data_due_at = models.DateTimeField(
        null=True, blank=True, help_text="Its data is on the way; its devices wait for it until then."
    )

    observed_state = models.CharField(max_length=10, choices=Observed.choices, default=Observed.PENDING)
    observed_started_at = models.DateTimeField(null=True, blank=True)
    observed_at = models.DateTimeField(null=True, blank=True)
    observed_exit_code = models.IntegerField(null=True, blank=True)
    observed_message = models.CharField(max_length=1000, blank=True)
    observed_data_at = models.DateTimeField(null=True, blank=True, help_text="All its data was there.")
    lost_s = models.FloatField(default=0, help_text="Running time that it lost when it ended.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(ended_at=None), name="one_open_allocation_per_job"
            ),
            models.UniqueConstraint(fields=["job", "fence"], name="one_allocation_a_job_and_fence"),
            models.CheckConstraint(
                condition=Q(desired_power_cap_share__gt=0, desired_power_cap_share__lte=1),
                name="cap_is_a_share",
            ),
            models.CheckConstraint(condition=Q(lost_s__gte=0), name="attempt_loses_no_less_than_nothing"),
            models.CheckConstraint(
                condition=Q(observed_data_at=None) | Q(data_due_at__isnull=False),
                name="data_arrives_where_it_is_waited_for",
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "id"], name="allocation_open", condition=Q(ended_at=None)),
            models.Index(fields=["ended_at"], name="allocation_by_end", condition=Q(ended_at__isnull=False)),
        ]


class Placement(models.Model):
    """An allocation's share on one node, for one replica group."""

    allocation = models.ForeignKey(Allocation, models.CASCADE, related_name="placements", db_index=False)
    node = models.ForeignKey(Node, models.PROTECT, related_name="placements", db_index=False)
    group_index = models.PositiveSmallIntegerField(default=0)
    n_replicas = models.PositiveIntegerField()
    first_rank = models.PositiveIntegerField(default=0)
    cpus = models.FloatField(default=0, help_text="Of all its replicas here.")
    memory_gib = models.FloatField(default=0, help_text="Of all its replicas here.")
    peak_w = models.FloatField(default=0, help_text="Reserved above idle, by all its replicas here.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["allocation", "node", "group_index"], name="one_placement_an_allocation_node_group"
            ),
            models.CheckConstraint(condition=Q(n_replicas__gte=1), name="placement_has_replicas"),
        ]
        indexes = [models.Index(fields=["node", "allocation"], name="placement_by_node")]


class PowerCap(models.Model):
    """A cap on what the devices of one attempt may draw: what is asked, and what whoever sets it says is in force.

    Whoever controls power writes `desired_*`, execution alone writes `observed_*`. Shares are of TDP. An agent that
    hears nothing until the lease is over goes back to `back_share` by itself: never above what was before.
    """

    allocation = models.OneToOneField(Allocation, models.CASCADE, primary_key=True, related_name="power_cap")
    desired_share = models.FloatField()
    desired_at = models.DateTimeField(help_text="Asked for then.")
    back_share = models.FloatField(default=1.0)
    lease_until_at = models.DateTimeField(null=True, blank=True, help_text="Empty: until it is changed.")
    fence = models.PositiveBigIntegerField(help_text="Of who asked; orders with an older one are refused.")
    observed_share = models.FloatField(null=True, blank=True, help_text="Empty: nobody has answered yet.")
    observed_fence = models.PositiveBigIntegerField(default=0)
    observed_lease_until_at = models.DateTimeField(null=True, blank=True)
    observed_at = models.DateTimeField(null=True, blank=True, help_text="Last heard from whoever sets it.")
    is_recorded = models.BooleanField(
        default=False, help_text="There is no device that it could be set on: it is only written down."
    )
    message = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(desired_share__gt=0, desired_share__lte=1, back_share__gt=0, back_share__lte=1)
                & Q(desired_share__lte=F("back_share"))
                & (Q(observed_share=None) | Q(observed_share__gt=0, observed_share__lte=1)),
                name="power_caps_are_shares",
            ),
        ]

    @property
    def is_in_force(self) -> bool:
        """Whether what is asked for is what is set."""
        return self.observed_share == self.desired_share and self.observed_fence >= self.fence


class DeviceClaim(models.Model):
    """A placement's share of one device, for as long as the allocation is open."""

    # No index for the keys alone: those below begin with them, and each costs every start.
    placement = models.ForeignKey(Placement, models.CASCADE, related_name="claims", db_index=False)
    device = models.ForeignKey(Device, models.PROTECT, related_name="claims", db_index=False)
    share = models.DecimalField(max_digits=7, decimal_places=6)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["placement", "device"], name="one_claim_a_placement_and_device"),
            models.CheckConstraint(condition=Q(share__gt=0, share__lte=1), name="claim_is_a_share"),
            models.UniqueConstraint(
                fields=["device"], condition=Q(released_at=None, share=1), name="one_whole_owner_a_device"
            ),
        ]
        indexes = [models.Index(fields=["device"], name="claim_open", condition=Q(released_at=None))]


class Progress(models.Model):
    """What an attempt itself says of how far it is, and how long its steps take, added up by rank.

    A place in each list is a rank; a rank that never said anything has a count of 0.
    """

    allocation = models.OneToOneField(Allocation, models.CASCADE, primary_key=True, related_name="progress")
    n_posts = models.PositiveIntegerField(default=0)
    step = models.BigIntegerField(null=True, blank=True, help_text="The furthest that was posted.")
    fraction_done = models.FloatField(null=True, blank=True)
    checkpoint_at = models.DateTimeField(null=True, blank=True, help_text="It wrote its last checkpoint.")
    first_at = models.DateTimeField()
    at = models.DateTimeField(help_text="Last posted.")
    judged_at = models.DateTimeField(null=True, blank=True, help_text="Its ranks were last held together.")
    last_steps = ArrayField(models.BigIntegerField(), default=list)
    counts = ArrayField(models.IntegerField(), default=list, help_text="Step times taken.")
    means_s = ArrayField(models.FloatField(), default=list)
    ewmas_s = ArrayField(models.FloatField(), default=list, help_text="Of late: each new one weighs a tenth.")
    lasts_s = ArrayField(models.FloatField(), default=list)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=(Q(fraction_done=None) | Q(fraction_done__gte=0, fraction_done__lte=1))
                & (Q(step=None) | Q(step__gte=0)),
                name="progress_numbers_are_sane",
            ),
        ]


class AllocationToken(models.Model):
    """What an attempt posts its progress with: good for that alone, and for as long as the attempt is open."""

    allocation = models.OneToOneField(Allocation, models.CASCADE, primary_key=True, related_name="token")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the secret, hex.")
    created_at = models.DateTimeField()

    scopes = ("progress",)

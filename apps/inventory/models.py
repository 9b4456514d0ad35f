"""The facility as built: accelerator types, domains, clusters, nodes, devices, and the nodes' health."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

# PostgreSQL holds NaN to be above every number, so a check without an upper bound would let it in.
MAX_NUMBER = 1e12


class AcceleratorType(models.Model):
    name = models.CharField(max_length=120, unique=True)
    memory_gib = models.FloatField(default=0)
    tdp_w = models.FloatField()
    idle_w = models.FloatField()
    speed = models.FloatField(default=1.0, help_text="Relative throughput.")
    power_curve = models.JSONField(
        default=list, help_text="[[cap as a share of TDP, share of throughput], ...]"
    )
    cap_step_w = models.FloatField(default=1.0)
    cap_settle_s = models.FloatField(default=10.0)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    tdp_w__gt=0, idle_w__gte=0, speed__gt=0, memory_gib__gte=0, idle_w__lte=F("tdp_w")
                )
                & Q(tdp_w__lt=MAX_NUMBER, speed__lt=MAX_NUMBER, memory_gib__lt=MAX_NUMBER)
                & Q(
                    cap_step_w__gt=0,
                    cap_step_w__lt=MAX_NUMBER,
                    cap_settle_s__gte=0,
                    cap_settle_s__lt=MAX_NUMBER,
                ),
                name="accelerator_numbers_are_sane",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class DomainKind(models.TextChoices):
    SPINE = "spine"
    LEAF = "leaf"
    SCALE_UP = "scale_up"
    FACILITY = "facility"
    HALL = "hall"
    ROW = "row"
    RACK = "rack"
    COOLING = "cooling"
    STORAGE = "storage"


# Each tree's kinds, from the top down; a domain hangs below one of an earlier kind of its own tree.
TREES = {
    "network": (DomainKind.SPINE, DomainKind.LEAF, DomainKind.SCALE_UP),
    "power": (DomainKind.FACILITY, DomainKind.HALL, DomainKind.ROW, DomainKind.RACK),
    "cooling": (DomainKind.COOLING,),
    "storage": (DomainKind.STORAGE,),
}
POWER_KINDS = TREES["power"]


class Domain(models.Model):
    """A subtree of the network, power, cooling or storage tree. A trigger refuses a domain above itself."""

    name = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=20, choices=DomainKind.choices)
    parent = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="children")

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=~Q(parent=F("id")), name="domain_is_not_its_own_parent"),
            models.CheckConstraint(condition=Q(kind__in=DomainKind.values), name="domain_kind_is_known"),
        ]

    def __str__(self) -> str:
        return self.name


class Backend(models.TextChoices):
    LOCAL = "local"
    SIMULATED = "simulated"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class Cluster(models.Model):
    """A set of nodes behind one backend."""

    name = models.CharField(max_length=120, unique=True)
    backend = models.CharField(max_length=20, choices=Backend.choices)
    config = models.JSONField(default=dict, blank=True)
    is_enabled = models.BooleanField(default=True)
    last_contact_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    engine_version = models.CharField(max_length=120, blank=True, help_text="Of what runs there, as it says.")

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(backend__in=Backend.values), name="cluster_backend_is_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_simulated(self) -> bool:
        return self.backend == Backend.SIMULATED


class Health(models.TextChoices):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"


class HealthBy(models.TextChoices):
    """Whose word a node's health is: what a person said, no report takes back."""

    NONE = "", "none"
    PERSON = "person"
    REPORTS = "reports"
    FAILURES = "failures"


class Node(models.Model):
    cluster = models.ForeignKey(Cluster, models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=120, unique=True)
    accelerator_type = models.ForeignKey(AcceleratorType, models.PROTECT, related_name="nodes")
    n_devices = models.PositiveIntegerField()
    cpus = models.FloatField(null=True, blank=True, help_text="Empty: no limit.")
    memory_gib = models.FloatField(null=True, blank=True, help_text="Empty: no limit.")
    # The lowest domain of each tree the node hangs in. A node without scale-up domain is its own.
    scale_up = models.ForeignKey(Domain, models.PROTECT, null=True, blank=True, related_name="scale_up_nodes")
    leaf = models.ForeignKey(Domain, models.PROTECT, null=True, blank=True, related_name="leaf_nodes")
    power = models.ForeignKey(Domain, models.PROTECT, null=True, blank=True, related_name="power_nodes")
    cooling = models.ForeignKey(Domain, models.PROTECT, null=True, blank=True, related_name="cooling_nodes")
    storage = models.ForeignKey(Domain, models.PROTECT, null=True, blank=True, related_name="storage_nodes")
    idle_w = models.FloatField(default=0, help_text="The host at rest, without its devices.")
    speed = models.FloatField(default=1.0, help_text="Below 1: a straggler.")
    health = models.CharField(max_length=20, choices=Health.choices, default=Health.HEALTHY)
    health_reason = models.CharField(max_length=500, blank=True)
    health_since_at = models.DateTimeField(null=True, blank=True)
    cooldown_until_at = models.DateTimeField(null=True, blank=True, help_text="Takes no work before.")
    drain_asked_at = models.DateTimeField(
        null=True, blank=True, help_text="An operator wants it empty; outlives failures."
    )
    health_by = models.CharField(max_length=10, choices=HealthBy.choices, default=HealthBy.NONE, blank=True)
    judged_from_at = models.DateTimeField(
        null=True, blank=True, help_text="Reports, failures and paces up to then are forgiven."
    )
    n_quarantines = models.PositiveSmallIntegerField(
        default=0, help_text="In a row; each doubles the cool-down."
    )
    quarantined_at = models.DateTimeField(null=True, blank=True, help_text="Begin of the last quarantine.")
    measured_speed = models.FloatField(
        default=1.0, help_text="What jobs saw of it, as a share of its declared speed; below 1: a straggler."
    )
    measured_at = models.DateTimeField(null=True, blank=True, help_text="Last change of the measured speed.")

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(n_devices__gte=1), name="node_has_devices"),
            models.CheckConstraint(
                condition=Q(idle_w__gte=0, idle_w__lt=MAX_NUMBER, speed__gt=0, speed__lt=MAX_NUMBER)
                & (Q(cpus=None) | Q(cpus__gte=0, cpus__lt=MAX_NUMBER))
                & (Q(memory_gib=None) | Q(memory_gib__gte=0, memory_gib__lt=MAX_NUMBER)),
                name="node_numbers_are_sane",
            ),
            models.CheckConstraint(condition=Q(health__in=Health.values), name="node_health_is_known"),
            models.CheckConstraint(
                condition=Q(health_by__in=HealthBy.values), name="node_health_by_is_known"
            ),
            models.CheckConstraint(
                condition=Q(measured_speed__gt=0, measured_speed__lte=1), name="measured_speed_is_a_share"
            ),
        ]
        indexes = [
            models.Index(fields=["health", "name"], name="node_by_health"),
            models.Index(fields=["cluster", "name"], name="node_by_cluster"),
            models.Index(fields=["measured_at"], name="node_straggling", condition=Q(measured_speed__lt=1)),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One accelerator. `claimed_share` moves in the same transaction as the allocation that claims it."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="devices")
    index = models.PositiveIntegerField()
    claimed_share = models.DecimalField(max_digits=7, decimal_places=6, default=0)

    class Meta:
        ordering = ["node_id", "index"]
        constraints = [
            models.UniqueConstraint(fields=["node", "index"], name="one_device_a_node_and_index"),
            models.CheckConstraint(
                condition=Q(claimed_share__gte=0, claimed_share__lte=1), name="device_claim_within_0_and_1"
            ),
        ]


# What was seen of nodes. Numbers of jobs and allocations are plain: the facility stands below the ledger.


class HealthReport(models.Model):
    """What a probe or an agent said of a node. The same said again is counted, not kept again."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="health_reports", db_index=False)
    source = models.CharField(max_length=60)
    status = models.CharField(max_length=10, help_text="What the source itself concludes.")
    verdict = models.CharField(max_length=10, help_text="What it comes to by the rules: a health.")
    failing = models.JSONField(default=list, help_text="Names of the checks that failed, sorted.")
    checks = models.JSONField(default=list, help_text="[{name, ok, value, message}] as last reported.")
    first_at = models.DateTimeField()
    at = models.DateTimeField(help_text="Last reported.")
    n_reports = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(verdict__in=(Health.HEALTHY, Health.SUSPECT, Health.FAILED)),
                name="report_verdict_is_known",
            ),
            models.CheckConstraint(
                condition=Q(first_at__lte=F("at"), n_reports__gte=1), name="report_counts_are_sane"
            ),
        ]
        indexes = [
            models.Index(fields=["node", "source", "-at"], name="report_by_source"),
            models.Index(fields=["at"], name="report_by_age"),
        ]


class FailureKind(models.TextChoices):
    START_FAILED = "start_failed"
    EARLY_END = "early_end"
    NODE_LOST = "node_lost"


class NodeFailure(models.Model):
    """An attempt that went wrong on a node, and how far the node is to blame for it."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="failures", db_index=False)
    allocation_id = models.BigIntegerField()
    job_id = models.BigIntegerField()
    origin = models.CharField(max_length=40, help_text="What would be to blame if it is not the node.")
    kind = models.CharField(max_length=12, choices=FailureKind.choices)
    at = models.DateTimeField()
    blame = models.FloatField(help_text="0: it is not the node's; 1: nothing else comes into question.")
    is_certain = models.BooleanField(default=False, help_text="The backend, or its health, names the node.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node", "allocation_id"], name="one_failure_a_node_and_allocation"
            ),
            models.CheckConstraint(condition=Q(blame__gte=0, blame__lte=1), name="blame_is_a_share"),
            models.CheckConstraint(condition=Q(kind__in=FailureKind.values), name="failure_kind_is_known"),
        ]
        indexes = [
            models.Index(fields=["node", "-at"], name="failure_by_node"),
            models.Index(fields=["origin", "-at"], name="failure_by_origin"),
            models.Index(fields=["at"], name="failure_by_age"),
        ]


class PaceReading(models.Model):
    """How slow a node was beside the others of one allocation, when last looked at."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="paces", db_index=False)
    allocation_id = models.BigIntegerField()
    job_id = models.BigIntegerField()
    relative_speed = models.FloatField(help_text="Median step time of its group by its own.")
    slow_since_at = models.DateTimeField(null=True, blank=True, help_text="Empty: it keeps pace.")
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "allocation_id"], name="one_pace_a_node_and_allocation"),
            models.CheckConstraint(
                condition=Q(relative_speed__gt=0, relative_speed__lte=1), name="pace_is_a_share"
            ),
        ]
        indexes = [
            models.Index(fields=["node", "-at"], name="pace_by_node"),
            models.Index(fields=["at"], name="pace_by_age"),
        ]


class OutsideUse(models.Model):
    """Devices that work holds which the ledger does not know: somebody gave it to the node's cluster directly."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="outside_uses", db_index=False)
    key = models.CharField(max_length=120, help_text="Number of that work in its cluster.")
    label = models.CharField(max_length=200, blank=True)
    device_indices = ArrayField(models.PositiveIntegerField())
    since_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True, help_text="By its own limit; empty: nobody knows.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "key"], name="one_outside_use_a_node_and_key"),
            models.CheckConstraint(
                condition=Q(device_indices__len__gte=1) & ~Q(key=""), name="outside_use_holds_something"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.label or self.key} on node {self.node_id}"

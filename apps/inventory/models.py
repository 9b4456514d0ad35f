"""The facility as built: accelerator types, domains, clusters, nodes, devices, and the nodes' health."""

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
        ]
        indexes = [
            models.Index(fields=["health", "name"], name="node_by_health"),
            models.Index(fields=["cluster", "name"], name="node_by_cluster"),
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

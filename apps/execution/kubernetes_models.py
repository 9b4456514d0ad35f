"""What is kept of clusters behind Kubernetes: how each is reached, and what its runs have come to.

A Job and its pods are gone once they are deleted; what the contract promises to remember is kept here.
"""

from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.core.sealing import Seal
from apps.execution.slurm_models import new_mark
from apps.inventory.models import Cluster

_SEAL: Final = Seal(b"switchyard kubernetes")

DEFAULT_LABELS: Final[dict[str, list[str]]] = {
    "accelerator": ["nvidia.com/gpu.product"],
    # From near to far; a clique is nearer than a leaf, and on most machines there is none.
    "leaf": ["fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf", "nvidia.com/gpu.clique"],
    "spine": [
        "fabric.topograph.run/tier-1", "network.topology.nvidia.com/spine", "topology.kubernetes.io/zone",
    ],
}  # fmt: skip


def default_labels() -> dict[str, list[str]]:
    return {kind: list(keys) for kind, keys in DEFAULT_LABELS.items()}


class KubernetesConnection(models.Model):
    """Where a Kubernetes is, and as whom we speak to it. The token is sealed, and never shown."""

    cluster = models.OneToOneField(Cluster, models.CASCADE, related_name="kubernetes")
    api_url = models.CharField(max_length=500)
    sealed_token = models.TextField(help_text="Of a ServiceAccount; encrypted.")
    ca_pem = models.TextField(blank=True, help_text="Whom to believe; empty: whom this machine believes.")
    namespace = models.CharField(max_length=63)
    image = models.CharField(max_length=500, help_text="What jobs run in; it has /bin/sh.")
    resource = models.CharField(max_length=120, default="nvidia.com/gpu", help_text="Name of the devices.")
    labels = models.JSONField(default=default_labels, help_text="Keys of node labels, by what they tell.")
    mark = models.CharField(
        max_length=16, default=new_mark, unique=True, help_text="Tells our Jobs from all others there."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(api_url__startswith="http")
                & ~Q(sealed_token="")
                & ~Q(namespace="")
                & ~Q(image=""),
                name="kubernetes_connection_is_whole",
            ),
            models.CheckConstraint(
                condition=Q(mark__regex=r"^[0-9a-f]{8,16}$"), name="kubernetes_mark_is_hex"
            ),
        ]

    def __str__(self) -> str:
        return self.api_url

    @property
    def token(self) -> str:
        """Raises sealing.Unreadable."""
        return _SEAL.unseal(self.sealed_token)


def seal_token(token: str) -> str:
    """A token as `KubernetesConnection.sealed_token` keeps it."""
    return _SEAL.seal(token)


class KubernetesRun(models.Model):
    """One run of a cluster behind Kubernetes, from its claim until it is forgotten."""

    cluster = models.ForeignKey(Cluster, models.CASCADE, related_name="kubernetes_runs")
    allocation_id = models.BigIntegerField()
    job_id = models.BigIntegerField()
    fence = models.PositiveIntegerField()
    claimed_at = models.DateTimeField(help_text="Or marked as stopped before it was launched.")
    created_at = models.DateTimeField(null=True, blank=True, help_text="When its Job was there, suspended.")
    aimed_at = models.DateTimeField(
        null=True, blank=True, help_text="When all its ranks were let go; one that comes later runs nowhere."
    )
    started_at = models.DateTimeField(null=True, blank=True)
    time_limit_s = models.FloatField(null=True, blank=True)
    grace_s = models.FloatField(default=10.0, help_text="When its time is up.")

    stop_asked_at = models.DateTimeField(null=True, blank=True)
    force_at = models.DateTimeField(null=True, blank=True)
    is_overtime = models.BooleanField(default=False, help_text="It was told to end because its time was up.")
    lost_because = models.CharField(max_length=500, blank=True, help_text="Why it is ended as lost.")

    # Only written down: no agent of ours sits beside the devices of a Kubernetes.
    cap_share = models.FloatField(null=True, blank=True, help_text="Empty: it was never sent a cap.")
    cap_fence = models.PositiveBigIntegerField(default=0)
    cap_until_at = models.DateTimeField(null=True, blank=True)
    cap_back_share = models.FloatField(default=1.0)

    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=20, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    message = models.CharField(max_length=1000, blank=True)
    nodes_at_fault = ArrayField(models.CharField(max_length=120), default=list, blank=True)
    is_forgotten = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "allocation_id"], name="one_kubernetes_run_an_allocation"
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None, reason="") | Q(ended_at__isnull=False) & ~Q(reason=""),
                name="kubernetes_run_ends_for_a_reason",
            ),
            models.CheckConstraint(
                condition=Q(is_forgotten=False) | Q(ended_at__isnull=False),
                name="kubernetes_run_ends_before_forgotten",
            ),
            models.CheckConstraint(
                condition=(Q(cap_share=None) | Q(cap_share__gt=0, cap_share__lte=1))
                & Q(cap_back_share__gt=0, cap_back_share__lte=1),
                name="kubernetes_cap_is_a_share",
            ),
            models.CheckConstraint(
                condition=Q(stop_asked_at=None, force_at=None)
                | Q(stop_asked_at__isnull=False, force_at__isnull=False),
                name="kubernetes_stop_has_a_grace",
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "job_id", "-fence"], name="kubernetes_run_fence"),
            models.Index(fields=["cluster"], name="kubernetes_run_open", condition=Q(is_forgotten=False)),
        ]

    def __str__(self) -> str:
        return f"{self.allocation_id} in Kubernetes"


class KubernetesLog(models.Model):
    """What one rank wrote, kept when its pod went."""

    run = models.ForeignKey(KubernetesRun, models.CASCADE, related_name="logs")
    rank = models.PositiveIntegerField()
    data = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "rank"], name="one_kubernetes_log_a_rank")]

    def __str__(self) -> str:
        return f"{self.run_id}, rank {self.rank}"

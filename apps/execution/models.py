"""What execution itself has to remember: what a simulated cluster plays, and what runs behind Slurm and
Kubernetes."""

from django.db import models
from django.db.models import Q

from apps.execution.kubernetes_models import KubernetesConnection, KubernetesLog, KubernetesRun
from apps.execution.slurm_models import SlurmConnection, SlurmCredential, SlurmRun
from apps.inventory.models import Cluster

__all__ = [
    "KubernetesConnection",
    "KubernetesLog",
    "KubernetesRun",
    "SimulatedRun",
    "SlurmConnection",
    "SlurmCredential",
    "SlurmRun",
]


class SimulatedRun(models.Model):
    """One run that a simulated cluster plays. What it looks like at a given time follows from these facts alone.

    Numbers of allocations and jobs are plain: a backend stands outside the ledger and may know runs that it does not.
    """

    cluster = models.ForeignKey(Cluster, models.CASCADE, related_name="simulated_runs")
    allocation_id = models.BigIntegerField()
    job_id = models.BigIntegerField()
    fence = models.PositiveIntegerField()
    n_replicas = models.PositiveIntegerField(default=1)
    launched_at = models.DateTimeField(null=True, help_text="Empty: it was stopped before it was launched.")
    play_s = models.FloatField(default=0.0)
    time_limit_s = models.FloatField(null=True)
    stop_at = models.DateTimeField(null=True)
    is_forgotten = models.BooleanField(default=False)
    save_s = models.FloatField(default=0.0, help_text="It takes so long to leave when it is asked to.")
    # Under a cap it does less: so much was done before `paced_at`, and from there on it goes at `pace`.
    done_s = models.FloatField(default=0.0)
    pace = models.FloatField(default=1.0)
    paced_at = models.DateTimeField(null=True)
    cap_share = models.FloatField(null=True, help_text="Empty: it was never sent a cap.")
    cap_fence = models.PositiveBigIntegerField(default=0)
    cap_until_at = models.DateTimeField(null=True, help_text="Then it goes back by itself.")
    cap_back_share = models.FloatField(default=1.0)
    back_pace = models.FloatField(default=1.0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "allocation_id"], name="one_simulated_run_an_allocation"
            ),
            models.CheckConstraint(condition=Q(play_s__gte=0), name="simulated_run_takes_time"),
            models.CheckConstraint(
                condition=Q(save_s__gte=0, done_s__gte=0, pace__gt=0, back_pace__gt=0)
                & (Q(cap_share=None) | Q(cap_share__gt=0, cap_share__lte=1))
                & Q(cap_back_share__gt=0, cap_back_share__lte=1),
                name="simulated_cap_is_sane",
            ),
            models.CheckConstraint(
                condition=Q(launched_at__isnull=False) | Q(stop_at__isnull=False),
                name="simulated_run_was_launched_or_stopped",
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "job_id", "-fence"], name="simulated_run_fence"),
            models.Index(fields=["cluster"], name="simulated_run_open", condition=Q(is_forgotten=False)),
        ]

"""What execution itself has to remember: only what a simulated cluster plays."""

from django.db import models
from django.db.models import Q

from apps.inventory.models import Cluster


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

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "allocation_id"], name="one_simulated_run_an_allocation"
            ),
            models.CheckConstraint(condition=Q(play_s__gte=0), name="simulated_run_takes_time"),
            models.CheckConstraint(
                condition=Q(launched_at__isnull=False) | Q(stop_at__isnull=False),
                name="simulated_run_was_launched_or_stopped",
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "job_id", "-fence"], name="simulated_run_fence"),
            models.Index(fields=["cluster"], name="simulated_run_open", condition=Q(is_forgotten=False)),
        ]

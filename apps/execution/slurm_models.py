"""What is kept of clusters behind Slurm: how each is reached, and what its runs have come to.

Slurm forgets a job minutes after its end, and counts its jobs from 1 again when its state is lost; what the contract
promises to remember is kept here.
"""

import secrets
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.core.sealing import Seal
from apps.inventory.models import Cluster

_SEAL: Final = Seal(b"switchyard slurm")


def new_mark() -> str:
    return secrets.token_hex(4)


class SlurmCredential(models.TextChoices):
    KEY = "key", "the key that tokens are signed with"
    TOKEN = "token", "a token"


class SlurmConnection(models.Model):
    """Where a Slurm is, and as whom we speak to it. The credential is sealed, and never shown."""

    cluster = models.OneToOneField(Cluster, models.CASCADE, related_name="slurm")
    rest_url = models.CharField(max_length=500, help_text="Of slurmrestd.")
    user_name = models.CharField(
        max_length=64, help_text="Whose jobs they are in Slurm; an operator of it, to pin and to drain."
    )
    credential = models.CharField(max_length=10, choices=SlurmCredential.choices, default=SlurmCredential.KEY)
    sealed_secret = models.TextField(help_text="The key in base64, or the token; encrypted.")
    partition = models.CharField(max_length=120, blank=True, help_text="Empty: Slurm's default.")
    shared_dir = models.CharField(
        max_length=500, help_text="Seen by the site and by every node: what runs, and what it wrote."
    )
    slurm_conf = models.CharField(
        max_length=500, blank=True, help_text="Of the commands (squeue, scancel, ...); empty: /etc/slurm."
    )
    mark = models.CharField(
        max_length=16, default=new_mark, unique=True, help_text="Tells our jobs from all others in Slurm."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(rest_url="")
                & ~Q(user_name="")
                & ~Q(sealed_secret="")
                & Q(shared_dir__startswith="/"),
                name="slurm_connection_is_whole",
            ),
            models.CheckConstraint(
                condition=Q(credential__in=SlurmCredential.values), name="slurm_credential_is_known"
            ),
            models.CheckConstraint(condition=Q(mark__regex=r"^[0-9a-f]{8,16}$"), name="slurm_mark_is_hex"),
        ]

    def __str__(self) -> str:
        return self.rest_url

    @property
    def secret(self) -> str:
        """The key or the token; raises sealing.Unreadable."""
        return _SEAL.unseal(self.sealed_secret)


def seal(secret: str) -> str:
    """A credential as `SlurmConnection.sealed_secret` keeps it."""
    return _SEAL.seal(secret)


class SlurmRun(models.Model):
    """One run of a cluster behind Slurm, from its claim until it is forgotten and pruned.

    A claim without numbers of Slurm was submitted by nobody, or by somebody whose answer got lost: jobs are submitted
    held and let go by number alone, so that what is not written here never runs.
    """

    cluster = models.ForeignKey(Cluster, models.CASCADE, related_name="slurm_runs")
    allocation_id = models.BigIntegerField()
    job_id = models.BigIntegerField()
    fence = models.PositiveIntegerField()
    slurm_ids = ArrayField(
        models.BigIntegerField(),
        default=list,
        blank=True,
        help_text="More than one where nodes give different devices.",
    )
    claimed_at = models.DateTimeField(help_text="Or marked as stopped before it was launched.")
    n_replicas = models.PositiveIntegerField(default=0)
    nodes = ArrayField(models.CharField(max_length=120), default=list, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    time_limit_s = models.FloatField(null=True, blank=True)
    grace_s = models.FloatField(default=10.0, help_text="When its time is up.")

    stop_asked_at = models.DateTimeField(null=True, blank=True)
    force_at = models.DateTimeField(null=True, blank=True, help_text="Then it is cancelled.")
    is_overtime = models.BooleanField(default=False, help_text="It was told to end because its time was up.")
    told_at = models.DateTimeField(null=True, blank=True, help_text="When its processes got the signal.")
    forced_at = models.DateTimeField(null=True, blank=True, help_text="When it was cancelled.")

    # Only written down: no agent of ours sits beside the devices of a Slurm.
    cap_share = models.FloatField(null=True, blank=True, help_text="Empty: it was never sent a cap.")
    cap_fence = models.PositiveBigIntegerField(default=0)
    cap_until_at = models.DateTimeField(null=True, blank=True)
    cap_back_share = models.FloatField(default=1.0)
    missed_at = models.DateTimeField(null=True, blank=True, help_text="When Slurm first did not know it.")

    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=20, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    message = models.CharField(max_length=1000, blank=True)
    nodes_at_fault = ArrayField(models.CharField(max_length=120), default=list, blank=True)
    is_forgotten = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "allocation_id"], name="one_slurm_run_an_allocation"),
            models.CheckConstraint(
                condition=Q(ended_at=None, reason="") | Q(ended_at__isnull=False) & ~Q(reason=""),
                name="slurm_run_ends_for_a_reason",
            ),
            models.CheckConstraint(
                condition=Q(is_forgotten=False) | Q(ended_at__isnull=False),
                name="slurm_run_ends_before_it_is_forgotten",
            ),
            models.CheckConstraint(
                condition=(Q(cap_share=None) | Q(cap_share__gt=0, cap_share__lte=1))
                & Q(cap_back_share__gt=0, cap_back_share__lte=1),
                name="slurm_cap_is_a_share",
            ),
            models.CheckConstraint(
                condition=Q(stop_asked_at=None, force_at=None)
                | Q(stop_asked_at__isnull=False, force_at__isnull=False),
                name="slurm_stop_has_a_grace",
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "job_id", "-fence"], name="slurm_run_fence"),
            models.Index(fields=["cluster"], name="slurm_run_open", condition=Q(is_forgotten=False)),
        ]

    def __str__(self) -> str:
        return f"{self.allocation_id} in Slurm {self.slurm_ids}"

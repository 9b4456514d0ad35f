"""The append-only log: what happened, who did it, and what changed."""

from django.db import models
from django.db.models import Func


class CurrentTransaction(Func):
    """The id of the running transaction, as PostgreSQL counts them (64 bits, never reused)."""

    template = "(pg_current_xact_id()::text::bigint)"
    output_field = models.BigIntegerField()


class Event(models.Model):
    """One thing that happened. Rows are never changed or deleted; a trigger holds that.

    Readers follow the log by (transaction_id, id), and only below the oldest transaction still open:
    ids are handed out before commits, so by id alone a late commit would be skipped for good.
    """

    transaction_id = models.BigIntegerField(db_default=CurrentTransaction(), editable=False)
    at = models.DateTimeField()
    kind = models.CharField(max_length=60, help_text="subject.past_tense")
    subject_kind = models.CharField(max_length=30)
    subject_id = models.BigIntegerField(null=True, blank=True)
    subject_name = models.CharField(max_length=200, blank=True)
    team_id = models.BigIntegerField(
        null=True, blank=True, help_text="Whose business it is; empty: everybody's."
    )
    actor_id = models.BigIntegerField(null=True, blank=True, help_text="Empty: the scheduler itself.")
    actor_name = models.CharField(max_length=150, blank=True)
    source = models.CharField(max_length=64, blank=True, help_text="Address the request came from.")
    is_audit = models.BooleanField(default=False, help_text="A person changed something.")
    is_private = models.BooleanField(
        default=False, help_text="For the actor, auditors and administrators alone."
    )
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    data = models.JSONField(default=dict, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["transaction_id", "id"], name="event_cursor"),
            models.Index(fields=["subject_kind", "subject_id", "id"], name="event_subject"),
            models.Index(fields=["id"], name="event_audit", condition=models.Q(is_audit=True)),
            models.Index(fields=["kind", "id"], name="event_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject_name or self.subject_id}"

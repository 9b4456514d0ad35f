"""Overrides: an operator's word above every plan, for a while, with a reason."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from apps.core.errors import InvalidInput, NotFound
from apps.events.services import record
from apps.inventory.models import POWER_KINDS, Domain
from apps.power.models import PowerOverride
from apps.teams import policies
from apps.teams.models import User

LONGEST: Final = timedelta(days=31)


def overrides() -> QuerySet[PowerOverride]:
    """All of them, the latest first."""
    return PowerOverride.objects.select_related("domain", "created_by", "ended_by")


def active_overrides(at: datetime) -> QuerySet[PowerOverride]:
    """Those that count at an instant."""
    return overrides().filter(created_at__lte=at, expires_at__gt=at, ended_at=None)


@transaction.atomic
def add_override(
    *,
    kind: str,
    job_id: int | None,
    domain: str | None,
    reason: str,
    expires_at: datetime,
    actor: User,
    at: datetime,
) -> PowerOverride:
    """Have one job, or all in a domain, left alone, held, or released, until it expires.

    Raises:
        InvalidInput: neither or both are named, no reason, or an expiry that is past or over a month ahead.
    """
    policies.require_may_operate(actor)
    faults = []
    if (job_id is None) == (domain is None):
        faults.append({"path": "job_id", "code": "invalid", "message": "name either a job or a domain"})
    found = None
    if domain is not None:
        found = Domain.objects.filter(name=domain, kind__in=POWER_KINDS).first()
        if found is None:
            faults.append({"path": "domain", "code": "unknown", "message": "names no power domain"})
    if not reason.strip():
        faults.append({"path": "reason", "code": "required", "message": "must not be empty"})
    if not at < expires_at <= at + LONGEST:
        message = f"must lie in the next {LONGEST.days} days"
        faults.append({"path": "expires_at", "code": "out_of_range", "message": message})
    if faults:
        raise InvalidInput(faults)
    row = PowerOverride.objects.create(
        kind=kind,
        job_id=job_id,
        domain=found,
        reason=reason[:500],
        created_at=at,
        created_by=actor,
        expires_at=expires_at,
    )
    _record("power.override_added", row, actor, at, reason)
    return row


@transaction.atomic
def end_override(*, override_id: int, actor: User, at: datetime, reason: str = "") -> PowerOverride:
    """Take an override back before it expires. Twice changes nothing."""
    policies.require_may_operate(actor)
    row = PowerOverride.objects.select_for_update(no_key=True).filter(pk=override_id).first()
    if row is None:
        raise NotFound("There is no such override.")
    if row.ended_at is None and row.expires_at > at:
        row.ended_at, row.ended_by = at, actor
        row.save(update_fields=["ended_at", "ended_by"])
        _record("power.override_ended", row, actor, at, reason)
    return row


def facts_of(row: PowerOverride) -> Mapping[str, Any]:
    """What is kept of an override, as the log has it."""
    return {
        "kind": row.kind,
        "job_id": row.job_id,
        "domain": None if row.domain is None else row.domain.name,
        "expires_at": row.expires_at.isoformat(),
    }


def _record(kind: str, row: PowerOverride, actor: User, at: datetime, reason: str) -> None:
    record(
        kind,
        subject_kind="power_override",
        subject_id=row.pk,
        subject_name=f"job {row.job_id}" if row.domain is None else row.domain.name,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        after=facts_of(row),
    )

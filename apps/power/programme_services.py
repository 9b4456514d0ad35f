"""Programmes: made and changed by power administrators. An actor of None is the site itself."""

from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db import transaction

from apps.core.errors import InvalidInput, NameTaken, NotFound, VersionConflict
from apps.events.services import record
from apps.power.models import EmergencyPolicy, Programme
from apps.teams import policies
from apps.teams.models import User


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgrammeDraft:
    """A programme as asked for, all of it."""

    name: str
    notice_s: int
    ramp_s: int
    min_duration_s: int
    max_duration_s: int
    target_kind: str
    baseline_method: str
    interval_s: int
    time_zone: str = "UTC"
    tolerance: float = 0.05
    price_per_kwh: Decimal = Decimal(0)
    penalty_per_kwh: Decimal = Decimal(0)
    max_events_per_day: int | None = None
    max_events_per_season: int | None = None
    is_auto_commit: bool = False
    two_person_above_w: float | None = None
    emergency_policy: str = EmergencyPolicy.NONE


# The emergency policy goes its own way: it needs two people.
PLAIN: Final = tuple(name for name in ProgrammeDraft.__slots__ if name != "emergency_policy")
_KEPT: Final = (*PLAIN, "emergency_policy", "asked_emergency_policy")


@transaction.atomic
def create_programme(
    *, draft: ProgrammeDraft, actor: User | None, at: datetime, reason: str = ""
) -> Programme:
    """Write down a programme. An emergency policy is in force when a second person has asked for the same.

    Raises:
        NameTaken: there is one of this name.
        InvalidInput: numbers that contradict each other.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    _require_sense(draft)
    if Programme.objects.filter(name=draft.name).exists():
        raise NameTaken("programme", draft.name)
    made = Programme()
    _take(made, draft, actor)
    made.save()
    _record("programme.created", made, actor=actor, at=at, reason=reason, after=facts_of(made))
    return made


@transaction.atomic
def update_programme(
    *,
    programme_id: int,
    draft: ProgrammeDraft,
    version: int,
    actor: User | None,
    at: datetime,
    reason: str = "",
) -> Programme:
    """Replace a programme as a whole. Events that were announced keep what they took from it.

    Raises:
        VersionConflict: somebody changed it meanwhile.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    row = Programme.objects.select_for_update(no_key=True).filter(pk=programme_id).first()
    if row is None:
        raise NotFound("There is no such programme.")
    before = facts_of(row)
    if version != row.version:
        raise VersionConflict(
            f"Programme {row}", read=version, version=row.version, yours=_draft_facts(draft), stored=before
        )
    _require_sense(draft)
    if Programme.objects.filter(name=draft.name).exclude(pk=row.pk).exists():
        raise NameTaken("programme", draft.name)
    _take(row, draft, actor)
    after = facts_of(row)
    if after == before:
        return row
    row.version += 1
    row.save()
    _record("programme.changed", row, actor=actor, at=at, reason=reason, before=before, after=after)
    return row


def _take(row: Programme, draft: ProgrammeDraft, actor: User | None) -> None:
    for field in PLAIN:
        setattr(row, field, getattr(draft, field))
    wanted = draft.emergency_policy
    if wanted == row.emergency_policy:
        row.asked_emergency_policy, row.asked_emergency_policy_by = "", None
        return
    # Taking it away is safe, and waits for nobody.
    is_second = row.asked_emergency_policy == wanted and row.asked_emergency_policy_by != actor
    if wanted == EmergencyPolicy.NONE or actor is None or is_second:
        row.emergency_policy, row.emergency_policy_by = wanted, actor
        row.asked_emergency_policy, row.asked_emergency_policy_by = "", None
    else:
        row.asked_emergency_policy, row.asked_emergency_policy_by = wanted, actor


def _require_sense(draft: ProgrammeDraft) -> None:
    faults = []
    if draft.min_duration_s > draft.max_duration_s:
        faults.append(("max_duration_s", "out_of_range", "must not be under min_duration_s"))
    if draft.ramp_s > draft.notice_s:
        faults.append(("ramp_s", "out_of_range", "must not be over notice_s"))
    try:
        ZoneInfo(draft.time_zone)
    except (KeyError, ValueError, OSError):
        faults.append(("time_zone", "unknown", "must be a time zone such as America/Chicago"))
    if faults:
        raise InvalidInput(
            [{"path": path, "code": code, "message": message} for path, code, message in faults]
        )


def facts_of(row: Programme) -> dict[str, Any]:
    """What is kept of a programme, as JSON has it; money as text."""
    return {
        name: format(value.normalize(), "f") if isinstance(value, Decimal) else value
        for name, value in ((name, getattr(row, name)) for name in _KEPT)
    }


def _draft_facts(draft: ProgrammeDraft) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Decimal) else value for name, value in asdict(draft).items()
    }


def _record(kind: str, row: Programme, *, actor: User | None, at: datetime, **more: Any) -> None:
    record(
        kind,
        subject_kind="programme",
        subject_id=row.pk,
        subject_name=row.name,
        actor=actor,
        at=at,
        is_audit=True,
        **more,
    )

"""Drafts of curtailments: what an operator filled in and does not want to announce yet. Each person's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.errors import DomainError, NotFound
from apps.events.services import record
from apps.teams import policies
from apps.teams.models import User

_KEY: Final = "curtailment_drafts"  # of a person's preferences
MOST: Final = 20


class TooManyDrafts(DomainError):
    code, http_status = "too_many_drafts", 409

    def __init__(self) -> None:
        super().__init__(f"You keep {MOST} drafts already; delete one first.")


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft. `fields` are as the form gave them; they were not looked at."""

    number: int
    name: str
    at: datetime
    fields: Mapping[str, Any]


def drafts_of(person: User) -> list[Draft]:
    """The newest first."""
    rows = person.preferences.get(_KEY, [])
    return [
        Draft(row["number"], row["name"], datetime.fromisoformat(row["at"]), row["fields"])
        for row in reversed(rows)
    ]


def draft_of(person: User, number: int) -> Draft:
    """Raises NotFound; another person's draft is not found either."""
    for draft in drafts_of(person):
        if draft.number == number:
            return draft
    raise NotFound("There is no such draft.")


@transaction.atomic
def save_draft(
    *, actor: User, name: str, fields: Mapping[str, Any], at: datetime, number: int | None = None
) -> Draft:
    """Keep what was filled in, in place of draft `number` if that is still there. Nothing is announced.

    Raises:
        TooManyDrafts
    """
    policies.require_may_operate(actor)
    person = _locked(actor)
    rows = person.preferences.get(_KEY, [])
    kept = [row for row in rows if row["number"] != number]
    if len(kept) >= MOST:
        raise TooManyDrafts
    is_new = len(kept) == len(rows)
    given = (
        number if number is not None and not is_new else 1 + max((row["number"] for row in rows), default=0)
    )
    row = {"number": given, "name": name[:200], "at": at.isoformat(), "fields": dict(fields)}
    _write(actor, person, [*kept, row])
    _record("curtailment.draft_saved", actor, at, row)
    return draft_of(actor, given)


@transaction.atomic
def delete_draft(*, actor: User, number: int, at: datetime) -> None:
    """Forget a draft. Twice changes nothing the second time."""
    policies.require_may_operate(actor)
    person = _locked(actor)
    rows = person.preferences.get(_KEY, [])
    gone = [row for row in rows if row["number"] == number]
    if gone:
        _write(actor, person, [row for row in rows if row["number"] != number])
        _record("curtailment.draft_deleted", actor, at, gone[0])


def _locked(actor: User) -> User:
    return User.objects.select_for_update(no_key=True).get(pk=actor.pk)


def _write(actor: User, person: User, rows: list[dict[str, Any]]) -> None:
    person.preferences = {**person.preferences, _KEY: rows}
    person.save(update_fields=["preferences"])
    actor.preferences = person.preferences


def _record(kind: str, actor: User, at: datetime, row: Mapping[str, Any]) -> None:
    record(
        kind,
        subject_kind="user",
        subject_id=actor.pk,
        subject_name=actor.username,
        actor=actor,
        at=at,
        is_audit=True,
        reason=row["fields"].get("reason", ""),
        data={"draft": row["number"], "name": row["name"]},
    )

"""Saved views of the queue: whose they are, who sees them, and the filters that they hold."""

from collections.abc import Collection
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl, urlencode

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.core.errors import DomainError, InvalidInput, NotFound
from apps.dashboard.models import LONGEST_QUERY, SavedView
from apps.events.services import record
from apps.teams.models import Team, User

MOST: Final = 50  # of one person
# What a view may hold, in the order of the address; where somebody is in the list is not part of it.
FILTERS: Final = ("state", "q", "team", "kind", "size", "priority", "reason", "mine")


class TooManyViews(DomainError):
    code = "too_many_views"


def visible_to(viewer: User, team_ids: Collection[int]) -> QuerySet[SavedView]:
    """A person's own, and those that are shared with a team which they act for: `team_ids`."""
    mine = Q(owner=viewer) | Q(team_id__in=team_ids)
    return SavedView.objects.filter(mine).select_related("owner", "team")


def normal(query: str) -> str:
    """The filters of an address, each once and in one order, so that the same filters are the same text."""
    said = dict(parse_qsl(query[: 4 * LONGEST_QUERY], max_num_fields=100))
    return urlencode([(name, said[name]) for name in FILTERS if said.get(name)])


@transaction.atomic
def save(*, name: str, query: str, team: Team | None, actor: User, at: datetime) -> SavedView:
    """Keep filters under a name; what the person kept under it before is replaced.

    Args:
        query: As normal() gives it.
        team: Whose members see it too; one that the person acts for.
    """
    faults = []
    if not name or len(name) > 60 or not name.isprintable() or name != name.strip():
        faults.append(("name", "must be 1 to 60 visible characters"))
    if not query or len(query) > LONGEST_QUERY:
        faults.append(("query", "must hold a filter" if not query else "is too long"))
    if team is not None and team.pk not in actor.team_ids():
        faults.append(("team", "must be one of yours"))
    if faults:
        raise InvalidInput([{"path": path, "code": "invalid", "message": said} for path, said in faults])
    # One save of a person after the other: the bound is counted under a lock.
    User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    row = SavedView.objects.filter(owner=actor, name=name).first()
    if row is None and SavedView.objects.filter(owner=actor).count() >= MOST:
        raise TooManyViews(f"Nobody keeps more than {MOST} views: delete one first.")
    before = None if row is None else _facts(row)
    if row is None:
        row = SavedView(owner=actor, name=name)
    row.query, row.team = query, team
    if _facts(row) == before:
        return row
    row.save()
    _tell("saved_view.saved", row, actor, at)
    return row


@transaction.atomic
def delete(*, view_id: int, actor: User, at: datetime) -> None:
    """Forget a view of one's own; those of others are as good as not there."""
    row = SavedView.objects.select_for_update().filter(pk=view_id, owner=actor).first()
    if row is None:
        raise NotFound("There is no such view of yours.")
    _tell("saved_view.deleted", row, actor, at)
    row.delete()


def shown(views: Collection[SavedView], query: str) -> SavedView | None:
    """The view whose filters these are."""
    return next((view for view in views if view.query == query), None)


def _facts(row: SavedView) -> dict[str, str]:
    return {"query": row.query, "team": "" if row.team is None else row.team.name}


def _tell(kind: str, row: SavedView, actor: User, at: datetime) -> None:
    record(
        kind,
        subject_kind="saved_view",
        subject_id=row.pk,
        subject_name=row.name,
        actor=actor,
        at=at,
        team_id=row.team_id,
        is_private=row.team_id is None,
        after=_facts(row),
    )

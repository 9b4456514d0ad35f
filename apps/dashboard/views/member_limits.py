"""The part of a team's page that says how much one member may have at once, beside what each has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound, VersionConflict
from apps.dashboard.cells import Cell
from apps.scheduling import board
from apps.teams import policies, selectors, services
from apps.teams.models import LimitedUse, Team, User
from apps.teams.services import EVERY_MEMBER, MemberLimitEntry

NO_LIMIT: Final = "no limit"
PART: Final = "members"  # names this form among those of the page
_USES: Final = (LimitedUse.DEVICES, LimitedUse.RUNNING_JOBS, LimitedUse.WAITING_JOBS)


@dataclass
class Field:
    """What one member has of one thing, and how much they may."""

    cell: Cell
    used: float
    most: int | None  # what holds, by whomever it is said; None: no limit
    of_all: str  # what holds where nothing is said of the person

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.used >= self.most

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        over = 0.0 if self.most is None else max(0.0, self.used - self.most)
        return (("blue", self.used - over), ("orange", over))

    @property
    def scale(self) -> float:
        return max(self.used, self.most or 0) * 1.2 or 1.0

    @property
    def marks(self) -> tuple[float, ...]:
        return () if self.most is None else (float(self.most),)


@dataclass
class LimitRow:
    """One member's line, or (no person) that of every member who is not named."""

    person: User | None
    is_member: bool
    fields: tuple[Field, ...]


@dataclass
class Section:
    """What the form shows."""

    team: Team
    kind: str
    may_edit: bool
    rows: list[LimitRow] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    conflict: dict[str, Any] | None = None

    @property
    def cells(self) -> Iterator[Cell]:
        return (one.cell for row in self.rows for one in row.fields)

    @property
    def n_changed(self) -> int:
        return sum(cell.is_changed for cell in self.cells)


def section(viewer: User, team: Team, kind: str) -> Section:
    """Limits and use of every member, and of others who have jobs of the team; a fixed number of queries."""
    stored = [services.entry_of(limit) for limit in selectors.limits_of(team)]
    said = {
        (entry.member, entry.what): entry.most for entry in stored if entry.accelerator_type in (None, kind)
    }
    uses = {use.user.pk: use for use in board.use_by_member(team)}
    people = {membership.user_id: membership.user for membership in selectors.members_of(team)}
    members = set(people)
    people.update((use.user.pk, use.user) for use in uses.values())
    found = Section(team, kind, policies.may_lead(viewer, team))
    found.rows.append(_row(None, True, said, kind, {}))
    for person in sorted(people.values(), key=lambda one: one.get_username()):
        use = uses.get(person.pk)
        has: Mapping[str, float] = {}
        if use is not None:
            has = {
                LimitedUse.DEVICES: float(use.devices.get(kind, 0)),
                LimitedUse.RUNNING_JOBS: use.n_running,
                LimitedUse.WAITING_JOBS: use.n_waiting,
            }
        found.rows.append(_row(person, person.pk in members, said, kind, has))
    return found


def _row(
    person: User | None,
    is_member: bool,
    said: Mapping[tuple[str | None, str], int | None],
    kind: str,
    has: Mapping[str, float],
) -> LimitRow:
    name = None if person is None else person.get_username()
    fields = []
    words = (f"{kind} at most", "Jobs running at most", "Jobs waiting at most")
    for what, word in zip(_USES, words, strict=True):
        of_all = said.get((None, what))
        stored = ""
        if (name, what) in said:
            own = said[name, what]
            stored = NO_LIMIT if own is None else str(own)
        cell = Cell(
            f"{what}-{'all' if person is None else person.pk}",
            stored,
            stored,
            f"{word}, {name or EVERY_MEMBER}",
        )
        fields.append(
            Field(
                cell,
                has.get(what, 0),
                said.get((name, what), of_all),
                NO_LIMIT if person is None or of_all is None else str(of_all),
            )
        )
    return LimitRow(person, is_member, tuple(fields))


def save(request: HttpRequest, viewer: User, found: Section) -> int:
    """Save what was typed. The HTTP status: 302 when all is well (or nothing was changed), else that of the refusal,
    which stands in the section."""
    team = found.team
    if not found.may_edit:
        raise PermissionDenied(f"Only leads of {team}, or of a team above it, may change this.")
    entries = [
        entry
        for entry in map(services.entry_of, selectors.limits_of(team))
        if entry.accelerator_type not in (None, found.kind)
    ]
    for row in found.rows:
        entries += _typed(request, row, found.kind)
    if any(cell.error for cell in found.cells):
        found.errors.append("Nothing was saved: some limits are not right.")
        return 400
    version = request.POST.get("version", "")
    is_version = version.isascii() and version.isdigit() and len(version) < 10
    try:
        services.set_member_limits(
            team=team,
            entries=entries,
            actor=viewer,
            at=clock.now(),
            version=int(version) if is_version else 0,
            reason=request.POST.get("reason", "").strip()[:500],
        )
    except (NotFound, Forbidden):
        raise
    except VersionConflict as conflict:
        found.errors.append(conflict.message)
        found.conflict = conflict.facts
        return conflict.http_status
    except DomainError as refusal:
        found.errors.append(refusal.message)
        return refusal.http_status
    return 302


def _typed(request: HttpRequest, row: LimitRow, kind: str) -> Iterator[MemberLimitEntry]:
    """What the line says now. A cell that was not in the form keeps what is stored."""
    for what, one in zip(_USES, row.fields, strict=True):
        cell = one.cell
        cell.typed = request.POST.get(cell.name, cell.stored).strip()[:20]
        member = None if row.person is None else row.person.get_username()
        most: int | None = None
        if cell.typed.casefold() == NO_LIMIT:
            cell.typed = NO_LIMIT if member is not None else ""
        elif cell.typed and (most := cell.number()) is None:
            cell.error += f', or "{NO_LIMIT}"'
        if cell.typed and not cell.error:
            yield MemberLimitEntry(what, most, member, kind if what == LimitedUse.DEVICES else None)


def difference(before: Any, after: Any) -> list[str]:
    """What a change of limits changed, as short sentences."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    words = {LimitedUse.RUNNING_JOBS.value: "jobs running", LimitedUse.WAITING_JOBS.value: "jobs waiting"}
    told = []
    for who in sorted(before.keys() | after.keys(), key=lambda who: (who != EVERY_MEMBER, who)):
        old, new = before.get(who) or {}, after.get(who) or {}
        for thing in sorted(old.keys() | new.keys()):
            was, now = (_said(who, facts, thing) for facts in (old, new))
            if was != now:
                told.append(f"{who}, {words.get(thing, thing)} at most {was} → {now}")
    return told


def _said(who: str, facts: Mapping[str, int | None], thing: str) -> str:
    if thing in facts:
        return NO_LIMIT if facts[thing] is None else str(facts[thing])
    return NO_LIMIT if who == EVERY_MEMBER else "as every member"

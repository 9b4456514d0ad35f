"""Quotas: what each team is entitled to, and how a lead divides it among its sub-teams."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound, VersionConflict
from apps.dashboard.cells import Cell
from apps.dashboard.views import member_limits
from apps.dashboard.views.common import page, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.scheduling import board
from apps.scheduling import selectors as scheduling
from apps.teams import policies, selectors, services
from apps.teams.models import Quota, Team

_N_CHANGES: Final = 10


@dataclass
class QuotaRow:
    """One team's line of the table for one accelerator type."""

    team: Team
    entitlement: Cell
    borrow: Cell
    lend: Cell
    weight: float
    held: float
    waiting: float
    may_divide: bool
    may_lead: bool
    is_whole_team: bool

    @property
    def cells(self) -> tuple[Cell, Cell, Cell]:
        return (self.entitlement, self.borrow, self.lend)

    @property
    def is_changed(self) -> bool:
        return any(cell.is_changed for cell in self.cells)

    @property
    def entitled(self) -> float:
        return float(self.entitlement.stored or 0)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        borrowed = max(0.0, self.held - self.entitled)
        return (("blue", self.held - borrowed), ("orange", borrowed))

    @property
    def scale(self) -> float:
        return max(self.held, self.entitled) * 1.2 or 1.0

    @property
    def marks(self) -> tuple[float, ...]:
        return (self.entitled,) if self.entitled else ()


@dataclass
class Table:
    """What the form of one team and one type shows."""

    kind: str
    rows: list[QuotaRow] = field(default_factory=list)
    owned: int = 0
    errors: list[str] = field(default_factory=list)
    conflict: dict[str, Any] | None = None
    has_sub_teams: bool = False

    @property
    def given(self) -> int:
        return sum(int(row.entitlement.stored or 0) for row in self.rows if not row.is_whole_team)

    @property
    def kept_back(self) -> int:
        return self.owned - self.given

    @property
    def may_edit(self) -> bool:
        return any(row.may_divide or row.may_lead for row in self.rows)

    @property
    def n_changed(self) -> int:
        return sum(cell.is_changed for row in self.rows for cell in row.cells)


@dataclass(frozen=True)
class Line:
    """One team in the list of all."""

    depth: int
    team: Team
    quota: Quota | None
    held: float


class Scene:
    """All teams with what they are entitled to and hold; read once for a page."""

    def __init__(self, request: HttpRequest) -> None:
        self.viewer = viewer_of(request)
        self.teams = list(selectors.teams_with_quotas(self.viewer))
        ids = inventory.accelerator_type_ids()
        self.kinds = sorted(ids)
        asked = request.POST.get("kind") or request.GET.get("kind", "")
        self.kind = asked if asked in ids else next(iter(self.kinds), "")
        self._name_of = {pk: name for name, pk in ids.items()}
        self._children: dict[int | None, list[Team]] = defaultdict(list)
        for team in self.teams:
            self._children[team.parent_id].append(team)

    def team_named(self, name: str) -> Team:
        found = next((team for team in self.teams if team.name == name), None)
        if found is None:
            raise Http404("no such team")
        return found

    def sub_teams(self, team: Team) -> list[Team]:
        return self._children[team.pk]

    @cached_property
    def _held_alone(self) -> dict[tuple[int, str], float]:
        return {
            (row.team_id, self._name_of[row.accelerator_type_id]): float(row.devices)
            for row in board.held_by_team_and_type()
        }

    def held(self, team: Team, kind: str) -> float:
        """What the team and all teams below it hold."""
        inside = [one for _, one in self.in_tree_order(team)]
        return sum(self._held_alone.get((one.pk, kind), 0.0) for one in inside)

    @cached_property
    def _waiting_alone(self) -> dict[int, float]:
        return {load.team_id: float(load.waiting) for load in board.load_by_team()}

    def waiting(self, team: Team) -> float:
        return sum(self._waiting_alone.get(one.pk, 0.0) for _, one in self.in_tree_order(team))

    def in_tree_order(self, top: Team | None = None) -> list[tuple[int, Team]]:
        """Each team behind its parent, with its depth; only from `top` down, where it is given."""
        ordered: list[tuple[int, Team]] = []
        todo = [(0, team) for team in ([top] if top else reversed(self._children[None]))]
        while todo:
            depth, team = todo.pop()
            ordered.append((depth, team))
            todo += [(depth + 1, child) for child in reversed(self._children[team.pk])]
        return ordered


@page
@require_GET
def quotas(request: HttpRequest) -> HttpResponse:
    """All teams: entitled and held by type, and the sum against what there is."""
    scene = Scene(request)
    rows = [
        Line(depth, team, _quota_of(team, scene.kind), scene.held(team, scene.kind))
        for depth, team in scene.in_tree_order()
    ]
    context = {
        "kinds": scene.kinds,
        "kind": scene.kind,
        "rows": rows,
        "capacity": sum(one.n_capacity for one in scheduling.use_now() if one.name == scene.kind),
        "promised": sum(row.quota.entitlement for row in rows if row.quota and row.team.parent_id is None),
        "my_team_ids": policies.team_ids_of(scene.viewer),
    }
    return render(request, "dashboard/pages/quotas.html", context)


@page
def team_quota(request: HttpRequest, name: str) -> HttpResponse:
    scene = Scene(request)
    team = scene.team_named(name)
    if not scene.kinds:
        raise Http404("the facility has no accelerator types yet")
    if request.method == "POST":
        if request.POST.get("part") == member_limits.PART:
            return _save_members(request, scene, team)
        return _save(request, scene, team)
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "POST"])
    return _show(request, scene, team, _table(scene, team))


def _show(
    request: HttpRequest,
    scene: Scene,
    team: Team,
    table: Table,
    status: int = 200,
    members: member_limits.Section | None = None,
) -> HttpResponse:
    ids = [row.team.pk for row in table.rows] + [team.pk]
    changes = (
        events.visible_to(scene.viewer)
        .filter(subject_kind="team", subject_id__in=ids, kind__in=_DIFFERENCES)
        .order_by("-id")[:_N_CHANGES]
    )
    subs = scene.sub_teams(team)
    figures = [
        Figure(
            quota=quota,
            held=scene.held(team, quota.accelerator_type.name),
            given=sum(q.entitlement for sub in subs if (q := _quota_of(sub, quota.accelerator_type.name))),
        )
        for quota in team.quotas.all()
    ]
    if members is None and not subs:  # the jobs of a team with sub-teams are theirs
        members = member_limits.section(scene.viewer, team, scene.kind)
    context = {
        "team": team,
        "table": table,
        "members": members,
        "kinds": scene.kinds,
        "kind": scene.kind,
        "figures": figures,
        "changes": [(event, _DIFFERENCES[event.kind](event.before, event.after)) for event in changes],
    }
    return render(request, "dashboard/pages/quota.html", context, status=status)


@dataclass(frozen=True)
class Figure:
    """What the whole team has of one type."""

    quota: Quota
    held: float
    given: int


def _quota_of(team: Team, kind: str) -> Quota | None:
    return next((quota for quota in team.quotas.all() if quota.accelerator_type.name == kind), None)


def _table(scene: Scene, team: Team) -> Table:
    """The sub-teams of a team; one without any is a single line, itself."""
    subs, kind = scene.sub_teams(team), scene.kind
    owned = _quota_of(team, kind)
    table = Table(kind=kind, owned=owned.entitlement if owned else 0, has_sub_teams=bool(subs))
    may_divide, may_lead = policies.may_divide(scene.viewer, team), policies.may_lead(scene.viewer, team)
    for one in subs or [team]:
        quota = _quota_of(one, kind)
        stored = (quota.entitlement, quota.borrow_limit, quota.lend_limit) if quota else (0, None, None)
        names = ("Entitled devices", "Borrows up to", "Lends up to")
        cells = [
            Cell(
                f"{part}-{one.pk}",
                "" if value is None else str(value),
                "" if value is None else str(value),
                f"{label}, {one.name}",
            )
            for part, value, label in zip(("entitlement", "borrow", "lend"), stored, names, strict=True)
        ]
        table.rows.append(
            QuotaRow(
                team=one,
                entitlement=cells[0],
                borrow=cells[1],
                lend=cells[2],
                weight=one.weight,
                held=scene.held(one, kind),
                waiting=scene.waiting(one),
                # Who leads a team divides it among the teams below; what it owns itself is set from above.
                may_divide=may_lead if subs else may_divide,
                may_lead=may_lead,
                is_whole_team=not subs,
            )
        )
    return table


def _save(request: HttpRequest, scene: Scene, team: Team) -> HttpResponse:
    table, kind = _table(scene, team), scene.kind
    if not table.may_edit:
        raise PermissionDenied(f"Only leads of {team}, or of a team above it, may change this.")
    numbers = {cell.name: _read(cell, request) for row in table.rows for cell in row.cells}
    changes = []
    for row in table.rows:
        if not row.is_changed:
            continue
        version = request.POST.get(f"version-{row.team.pk}", "")
        entries = [
            services.QuotaEntry(q.accelerator_type.name, q.entitlement, q.borrow_limit, q.lend_limit)
            for q in row.team.quotas.all()
            if q.accelerator_type.name != kind
        ]
        entries.append(
            services.QuotaEntry(
                kind,
                numbers[row.entitlement.name] or 0,
                numbers[row.borrow.name],
                numbers[row.lend.name],
            )
        )
        is_version = version.isascii() and version.isdigit() and len(version) < 10
        changes.append(services.QuotaChange(row.team.pk, entries, int(version) if is_version else 0))
    if any(cell.error for row in table.rows for cell in row.cells):
        table.errors.append("Nothing was saved: some numbers are not right.")
        return _show(request, scene, team, table, status=400)
    if not changes:
        messages.info(request, "Nothing was changed.")
        return HttpResponseRedirect(_address(team, kind))
    reason = request.POST.get("reason", "").strip()[:500]
    try:
        services.set_quotas(changes=changes, actor=scene.viewer, at=clock.now(), reason=reason)
    except (NotFound, Forbidden):
        raise
    except VersionConflict as conflict:
        table.errors.append(conflict.message)
        table.conflict = conflict.facts
        return _show(request, scene, team, table, status=409)
    except DomainError as refusal:
        table.errors.append(refusal.message)
        return _show(request, scene, team, table, status=refusal.http_status)
    messages.success(
        request, f"The quota of {len(changes)} {'team' if len(changes) == 1 else 'teams'} was saved."
    )
    return HttpResponseRedirect(_address(team, kind))


def _save_members(request: HttpRequest, scene: Scene, team: Team) -> HttpResponse:
    if scene.sub_teams(team):
        raise Http404("the jobs of a team with sub-teams are theirs")
    members = member_limits.section(scene.viewer, team, scene.kind)
    status = member_limits.save(request, scene.viewer, members)
    if status != 302:
        return _show(request, scene, team, _table(scene, team), status, members)
    if members.n_changed:
        messages.success(request, "The limits of members were saved.")
    else:
        messages.info(request, "Nothing was changed.")
    return HttpResponseRedirect(_address(team, scene.kind))


def _address(team: Team, kind: str) -> str:
    return f"{reverse('dashboard:team-quota', args=[team.name])}?{urlencode({'kind': kind})}"


def _read(cell: Cell, request: HttpRequest) -> int | None:
    """The number typed; an empty limit is no limit. A cell that was not in the form keeps what is stored."""
    text = request.POST.get(cell.name)
    if text is None:
        return int(cell.stored) if cell.stored else None
    cell.typed = text.strip()[:20]
    if not cell.typed:
        if cell.name.startswith("entitlement"):
            cell.error = "is missing"
        return None
    return cell.number()


def _difference(before: Any, after: Any) -> list[str]:
    """What a change changed, as short sentences."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    words = {"entitlement": "entitled", "borrow_limit": "borrows up to", "lend_limit": "lends up to"}
    said = []
    for kind in sorted(before.keys() | after.keys()):
        old, new = before.get(kind), after.get(kind)
        if not isinstance(old, dict | None) or not isinstance(new, dict | None):
            if old != new:
                said.append(f"{kind} {old} → {new}")
            continue
        for key, word in words.items():
            was, now = (old or {}).get(key), (new or {}).get(key)
            if was != now:
                said.append(f"{kind} {word} {_limit(key, was)} → {_limit(key, now)}")
    return said


def _limit(key: str, value: Any) -> str:
    if value is None:
        return "0" if key == "entitlement" else "no limit"
    return str(value)


_DIFFERENCES: Final = {"quota.changed": _difference, "quota.member_limits_changed": member_limits.difference}

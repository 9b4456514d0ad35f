"""Quotas: what each team is entitled to, and how a lead divides it among its sub-teams."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound, VersionConflict
from apps.dashboard import words
from apps.dashboard.cells import Cell
from apps.dashboard.templatetags import formats
from apps.dashboard.views import member_limits, quota_requests
from apps.dashboard.views.common import act, page, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.scheduling import board, quota_effects
from apps.scheduling import selectors as scheduling
from apps.teams import loans, policies, selectors, services, throttles
from apps.teams.models import LoanState, Quota, QuotaLoan, Team

_N_CHANGES: Final = 10
_N_LOANS_OVER: Final = 20


@dataclass
class QuotaRow:
    """One team's line of the table for one accelerator type."""

    team: Team
    entitlement: Cell
    borrow: Cell
    lend: Cell
    weight: Cell
    held: float
    waiting: float
    may_divide: bool
    may_lead: bool
    is_whole_team: bool

    @property
    def cells(self) -> tuple[Cell, Cell, Cell]:
        return (self.entitlement, self.borrow, self.lend)

    @property
    def faulty(self) -> list[Cell]:
        return [cell for cell in (*self.cells, self.weight) if cell.error]

    @property
    def is_changed(self) -> bool:
        return any(cell.is_changed for cell in (*self.cells, self.weight))

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
        return sum(cell.is_changed for row in self.rows for cell in (*row.cells, row.weight))


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
        self.type_ids = ids
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
    effects: dict[str, Any] | None = None,
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
        **(effects or {}),
        **_loans(scene, team),
        **quota_requests.section(scene.viewer, team),
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
                weight=Cell(f"weight-{one.pk}", f"{one.weight:g}", f"{one.weight:g}", f"Weight, {one.name}"),
                held=scene.held(one, kind),
                waiting=scene.waiting(one),
                # Who leads a team divides it among the teams below; what it owns itself is set from above.
                may_divide=may_lead if subs else may_divide,
                may_lead=may_lead,
                is_whole_team=not subs,
            )
        )
    return table


@dataclass(frozen=True)
class Effect:
    """What a change does, as one line."""

    text: str
    tone: str  # of a badge
    jobs: tuple[quota_effects.Affected, ...] = ()


@page
@require_POST
def effects_part(request: HttpRequest, name: str) -> HttpResponse:
    """What the numbers in the form would do, worked out again while they are typed; nothing is written."""
    scene = Scene(request)
    team = scene.team_named(name)
    table, numbers, _ = _typed(request, scene, team)
    return render(request, "dashboard/parts/quota_effects.html", _effects(scene, table, numbers))


def _effects(scene: Scene, table: Table, numbers: dict[str, int | None]) -> dict[str, Any]:
    """The lines under the table: faults first, else the sum, and who is affected."""
    faults = [f"{cell.label} {cell.error}" for row in table.rows for cell in row.faulty]
    given = sum(numbers.get(row.entitlement.name) or 0 for row in table.rows if not row.is_whole_team)
    if table.has_sub_teams and given > table.owned and any(row.may_divide for row in table.rows):
        faults.append(f"Sub-teams would be entitled to {given}; the team owns {table.owned}.")
    if faults or not table.n_changed:
        return {"effect_faults": faults, "n_changed": table.n_changed}
    wanted = {
        row.team.pk: (
            numbers[row.entitlement.name] or 0,
            numbers[row.borrow.name],
            numbers[row.lend.name],
        )
        for row in table.rows
        if row.is_changed
    }
    if wait_s := throttles.take_preview(scene.viewer.pk, clock.now()):
        said = f"Too many looks ahead; the next one in {throttles.in_words(wait_s)}. Saving works as ever."
        return {"effect_faults": [said], "n_changed": table.n_changed}
    weights = {row.team.pk: float(row.weight.typed) for row in table.rows if row.weight.is_changed}
    found = quota_effects.effects_of(
        wanted, type_id=scene.type_ids[table.kind], at=clock.now(), weights=weights
    )
    return {
        "n_changed": table.n_changed,
        "effects": _as_lines(found, {row.team.pk: row.team.name for row in table.rows}),
        "sum": (given, table.owned - given, table.owned) if table.has_sub_teams else None,
    }


def _as_lines(found: quota_effects.Effects, names: dict[int, str]) -> list[Effect]:
    lines = []
    for jobs, one, many, tone in (
        (found.starts, "waiting job starts now", "waiting jobs start now", "ok"),
        (
            found.stays,
            "job that would start now has to wait",
            "jobs that would start now have to wait",
            "warn",
        ),
        (found.ends, "running job is asked to leave", "running jobs are asked to leave", "bad"),
    ):
        if jobs:
            lines.append(Effect(f"{formats.count(len(jobs))} {one if len(jobs) == 1 else many}", tone, jobs))
    for team_id, n in found.borrowed.items():
        if team_id not in names:
            continue
        size = formats.devices(abs(n))
        if n > 0:
            text = f"{size} devices of {names[team_id]} become borrowed, and may be taken back"
            lines.append(Effect(text, "warn"))
        else:
            lines.append(Effect(f"{size} borrowed devices of {names[team_id]} are covered again", "ok"))
    return lines or [Effect("Nothing that waits or runs is affected now", "")]


Changes = list[services.QuotaChange]


def _typed(request: HttpRequest, scene: Scene, team: Team) -> tuple[Table, dict[str, int | None], Changes]:
    """The table as it was typed, its numbers by field, and the changes that they mean."""
    table, kind = _table(scene, team), scene.kind
    if not table.may_edit:
        raise PermissionDenied(f"Only leads of {team}, or of a team above it, may change this.")
    numbers = {cell.name: _read(cell, request) for row in table.rows for cell in row.cells}
    weights = {row.team.pk: _read_weight(row.weight, request) for row in table.rows}
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
        if any(cell.is_changed for cell in row.cells) or _quota_of(row.team, kind) is not None:
            entries.append(
                services.QuotaEntry(
                    kind,
                    numbers[row.entitlement.name] or 0,
                    numbers[row.borrow.name],
                    numbers[row.lend.name],
                )
            )
        is_version = version.isascii() and version.isdigit() and len(version) < 10
        changes.append(
            services.QuotaChange(
                row.team.pk, entries, int(version) if is_version else 0, weights[row.team.pk]
            )
        )
    return table, numbers, changes


def _save(request: HttpRequest, scene: Scene, team: Team) -> HttpResponse:
    table, numbers, changes = _typed(request, scene, team)
    kind = scene.kind
    if request.POST.get("action") == "preview":
        return _show(request, scene, team, table, effects=_effects(scene, table, numbers))
    if any(row.faulty for row in table.rows):
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


@dataclass(frozen=True)
class LoanRow:
    """A loan as the team of the page sees it."""

    loan: QuotaLoan
    is_out: bool
    word: words.Word
    may_answer: bool
    may_withdraw: bool
    may_end: bool


def _loans(scene: Scene, team: Team) -> dict[str, Any]:
    """What it lends and borrows, and what waits for an answer; what is long over is in the audit trail."""
    at = clock.now()
    leads = policies.may_lead(scene.viewer, team)
    shown = loans.open_and_latest(team, at=at, most_over=_N_LOANS_OVER)
    sides = {one.pk: one for loan in shown for one in (loan.lender, loan.borrower)}
    led = policies.led_of(scene.viewer, sides.values()) if leads else frozenset()
    rows = []
    for loan in shown:
        is_open = loan.state == LoanState.PROPOSED and loan.end_at > at
        answers, proposes = (
            (loan.lender_id, loan.borrower_id) if loan.is_asked else (loan.borrower_id, loan.lender_id)
        )
        may_answer = is_open and answers in led
        rows.append(
            LoanRow(
                loan,
                loan.lender_id == team.pk,
                _loan_word(loan, at),
                may_answer,
                is_open and not may_answer and proposes in led,
                loan.state == LoanState.AGREED and loan.end_at > at and leads,
            )
        )
    return {
        "loans": rows,
        "may_propose": leads,
        "others": [one.name for one in scene.teams if one.pk != team.pk],
    }


def _loan_word(loan: QuotaLoan, at: datetime) -> words.Word:
    if loan.state == LoanState.PROPOSED:
        return (
            words.Word("Not answered in time", "clock")
            if loan.end_at <= at
            else words.Word("Waits for an answer", "clock", "info")
        )
    if loan.state != LoanState.AGREED:
        return words.Word(str(loan.get_state_display()).capitalize(), "ban")
    if loan.end_at <= at:
        return words.Word("Over", "check")
    if loan.start_at > at:
        return words.Word("Agreed", "calendar-event", "info")
    return words.Word("In force", "circle-check", "ok")


class LoanForm(forms.Form):
    """What is asked or offered."""

    direction = forms.ChoiceField(choices=[("lend", "Lend"), ("ask", "Ask for")])
    other = forms.CharField(max_length=120)
    kind = forms.CharField(max_length=120)
    n_devices = forms.IntegerField(min_value=1, max_value=1_000_000)
    start = forms.DateTimeField(required=False)
    end = forms.DateTimeField()
    notice_h = forms.FloatField(min_value=0, max_value=8784, required=False)
    reason = forms.CharField(max_length=500, required=False)


@page
@require_POST
def propose_loan(request: HttpRequest, name: str) -> HttpResponse:
    scene = Scene(request)
    team = scene.team_named(name)
    form = LoanForm(request.POST)
    back = _address(team, scene.kind) + "#loans"
    if not form.is_valid():
        for field_name, faults in form.errors.items():
            messages.error(
                request,
                f"{_LOAN_LABELS[field_name]}: {' '.join(str(fault) for fault in faults)} Nothing was proposed.",
            )
        return HttpResponseRedirect(back)
    said = form.cleaned_data
    other = next((one for one in scene.teams if one.name == said["other"]), None)
    if other is None:
        messages.error(request, "The other team: there is no team of that name. Nothing was proposed.")
        return HttpResponseRedirect(back)
    lender, borrower = (team, other) if said["direction"] == "lend" else (other, team)
    policies.require_lead(scene.viewer, team)
    at = clock.now()
    return act(
        request,
        back,
        f"{lender} and {borrower}: it is agreed."
        if policies.may_lead(scene.viewer, other)
        else f"{other} has to agree; its leads see it on their page.",
        lambda: loans.propose_loan(
            lender=lender,
            borrower=borrower,
            accelerator_type=said["kind"],
            n_devices=said["n_devices"],
            start_at=said["start"] or at,
            end_at=said["end"],
            notice_s=(said["notice_h"] or 0.0) * 3600,
            actor=scene.viewer,
            at=at,
            reason=said["reason"],
        ),
    )


_LOAN_LABELS: Final = {
    "direction": "Lend or ask",
    "other": "The other team",
    "kind": "Device type",
    "n_devices": "Devices",
    "start": "From",
    "end": "Until",
    "notice_h": "Notice",
    "reason": "Reason",
}


@page
@require_POST
def answer_loan(request: HttpRequest, loan_id: int) -> HttpResponse:
    """Agree, decline, take back, or end early: what the button said."""
    viewer, wish = viewer_of(request), request.POST.get("wish", "")
    loan = loans.loan_named(loan_id)
    back = request.POST.get("team", "")
    team = loan.borrower if back == loan.borrower.name else loan.lender
    at = clock.now()
    done = {
        "accept": "The loan is agreed.",
        "decline": "It was declined.",
    }
    address = _address(team, loan.accelerator_type.name) + "#loans"
    if wish == "end":
        # The button stands on the page of one of the two teams: it is ended for that one.
        gives_back = team.pk == loan.borrower_id
        said = "It ends: what is held is borrowed from then on."
        if not gives_back and loan.notice_s and loan.start_at <= at:
            said = f"It is recalled: it ends once the notice of {formats.duration(loan.notice_s)} is over."
        return act(
            request,
            address,
            said,
            lambda: loans.end_loan(loan_id=loan_id, actor=viewer, at=at, gives_back=gives_back),
        )
    if wish not in done:
        raise Http404("no such answer")
    return act(
        request,
        address,
        done[wish],
        lambda: loans.answer_loan(loan_id=loan_id, accept=wish == "accept", actor=viewer, at=at),
    )


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


def _read_weight(cell: Cell, request: HttpRequest) -> float | None:
    """The weight typed; None where it stays as it is."""
    text = request.POST.get(cell.name)
    if text is None:
        return None
    cell.typed = text.strip()[:20]
    try:
        weight = float(cell.typed)
    except ValueError:
        weight = 0.0
    if not 0 < weight < services.MOST_WEIGHT:
        cell.error = "must be a number above 0"
        return None
    cell.typed = f"{weight:g}"
    return weight if cell.is_changed else None


def _loan_difference(_: Any, after: Any) -> list[str]:
    if not isinstance(after, dict):
        return []
    return [
        f"{after.get('lender')} lends {after.get('borrower')} {after.get('n_devices')} {after.get('accelerator_type')}"
    ]


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


_DIFFERENCES: Final = {
    "quota.changed": _difference,
    "quota.member_limits_changed": member_limits.difference,
    **{
        f"quota.loan_{what}": _loan_difference
        for what in ("proposed", "agreed", "declined", "withdrawn", "recalled", "given_back")
    },
}

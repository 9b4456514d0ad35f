"""The policy in force: what the planner goes by, and a form to change it for administrators."""

from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from pydantic import ValidationError

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, VersionConflict
from apps.core.strict import faults_of
from apps.dashboard.views.common import page, viewer_of
from apps.events import selectors as events
from apps.scheduling import policy_setting
from apps.scheduling.engine.named import NAMED
from apps.scheduling.policy_setting import ALL, InForce, PolicyValues
from apps.teams import policies
from apps.teams.models import User

_CHANGES_SHOWN: Final = 20
# What each named policy is for.
_NAMED: Final = {
    "default": "Priority, then fair share, then who came first; 64 jobs are promised a start.",
    "strict": "Nobody passes the first that does not fit.",
    "easy": "One job is promised a start; all others may pass it that do not delay it.",
    "conservative": "Every job is promised a start that never moves later.",
    "shortest": "As easy, the probably shortest first: short mean waits, and long jobs pay.",
    "turnaround": "As shortest, and wide jobs are passed for a shorter time: the longest waits are shorter.",
}
_ORDERS: Final = {
    "priority": "priority, fair share, then who came first",
    "shortest": "priority, fair share, then the probably shortest",
    "submit": "who came first, whatever else",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """One line of the form."""

    name: str
    label: str
    hint: str
    kind: str  # "number", "whole", "flag", "choice"


_FIELDS: Final = (
    _Field("order", "What goes first", "", "choice"),
    _Field(
        "backfill_depth", "Jobs promised a start", 'A number; 0: strict, 1: EASY, "all": every one.', "depth"
    ),
    _Field(
        "starving_s",
        "Passed for at most, s",
        "With the shortest first: after that a job goes first.",
        "number",
    ),
    _Field(
        "starving_by_width",
        "Spared of it by width",
        "0 to 1: the share that a job is spared which asks for all devices of its type.",
        "number",
    ),
    _Field("ageing_s", "Step of priority each, s", "Of waiting. Empty: waiting gives no priority.", "number"),
    _Field("half_life_s", "Half-life of use, s", "In which past use counts half in fair share.", "number"),
    _Field("shield_s", "Shield, s", "A job younger than this does not give way.", "number"),
    _Field("most_evictions", "Gives way at most, times", "Empty: no bound.", "whole"),
    _Field("staging_hold_s", "Devices wait for data, s", "At most.", "number"),
    _Field("preemption", "Running jobs may be made to give way", "", "flag"),
    _Field("packing", "Fill nodes up, so that whole ones stay free", "", "flag"),
    _Field("keeps_promises", "A promised start never moves later", "", "flag"),
)


@dataclass
class Line:
    """A field with what the form shows."""

    field: _Field
    value: str
    error: str = ""

    @property
    def errors(self) -> list[str]:
        return [self.error] if self.error else []


@page
def policy(request: HttpRequest) -> HttpResponse:
    viewer, stored = viewer_of(request), policy_setting.in_force()
    if request.method in ("GET", "HEAD"):
        begin = request.GET.get("from", "")
        values = policy_setting.named(begin) if begin in NAMED else stored.values
        lines = [Line(field, _shown(values[field.name])) for field in _FIELDS]
        return _page(request, viewer, stored, lines, begin=begin if begin in NAMED else "")
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    if not policies.is_admin(viewer):
        raise PermissionDenied("Only administrators set the policy.")
    lines, given = _typed(request)
    faults: list[dict[str, str]] = []
    try:
        values_typed = PolicyValues(**given)
    except ValidationError as error:
        faults = faults_of(error)
    said = {fault["path"]: fault for fault in reversed(faults)}
    for line in lines:
        fault = said.get(line.field.name)
        if fault is not None and not line.error:
            line.error = "must not be empty" if fault["code"] == "null" else fault["message"]
    if faults or any(line.error for line in lines):
        refused = ["Nothing was saved: some fields are not right."]
        return _page(request, viewer, stored, lines, errors=refused, status=400)
    version = request.POST.get("version", "")
    is_version = version.isascii() and version.isdigit() and len(version) < 10
    try:
        policy_setting.set_policy(
            values=values_typed,
            actor=viewer,
            at=clock.now(),
            version=int(version) if is_version else 0,
            reason=request.POST.get("reason", "").strip()[:500],
        )
    except Forbidden:
        raise
    except VersionConflict as conflict:
        refused = [f"{conflict.message} Below is what is stored now."]
        fresh = policy_setting.in_force()
        lines = [Line(field, _shown(fresh.values[field.name])) for field in _FIELDS]
        return _page(request, viewer, fresh, lines, errors=refused, status=conflict.http_status)
    except DomainError as refusal:
        return _page(request, viewer, stored, lines, errors=[refusal.message], status=refusal.http_status)
    messages.success(request, "The policy holds from the next pass on.")
    return HttpResponseRedirect(reverse("dashboard:policy"))


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "on" if value else ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _typed(request: HttpRequest) -> tuple[list[Line], dict[str, Any]]:
    """The form as it was sent, and the values that it means; what is no number is said in its line."""
    lines: list[Line] = []
    given: dict[str, Any] = {}
    for field in _FIELDS:
        line = Line(field, request.POST.get(field.name, "").strip()[:30])
        lines.append(line)
        if field.kind == "flag":
            line.value = "on" if line.value else ""
            given[field.name] = bool(line.value)
        elif field.kind == "choice":
            given[field.name] = line.value
        elif not line.value:
            given[field.name] = None
        elif field.kind == "depth" and line.value.casefold() == ALL:
            given[field.name] = ALL
        else:
            try:
                given[field.name] = float(line.value) if field.kind == "number" else int(line.value)
            except ValueError:
                line.error = "must be a number" if field.kind == "number" else "must be a whole number"
                given.pop(field.name, None)
    return lines, given


def _page(
    request: HttpRequest,
    viewer: User,
    stored: InForce,
    lines: list[Line],
    *,
    begin: str = "",
    errors: list[str] | None = None,
    status: int = 200,
) -> HttpResponse:
    latest = events.visible_to(viewer).filter(subject_kind="policy").order_by("-id")[:_CHANGES_SHOWN]
    context = {
        "stored": stored,
        "lines": lines,
        "begin": begin,
        "errors": errors or [],
        "may_edit": policies.is_admin(viewer),
        "named": list(_NAMED.items()),
        "orders": list(_ORDERS.items()),
        "changes": [(event, difference(event.before, event.after)) for event in latest],
    }
    return render(request, "dashboard/pages/policy.html", context, status=status)


def difference(before: Any, after: Any) -> list[str]:
    """What a change changed, as short sentences."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    label = {field.name: field.label for field in _FIELDS}
    return [f"{label.get(key, key)} {_said(before.get(key))} → {_said(after[key])}" for key in sorted(after)]


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else _shown(value)

"""What one domain may draw, why, and what comes; with a form for power administrators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound, VersionConflict
from apps.dashboard.envelope_lines import Line, line_of, when_words
from apps.dashboard.views.common import page, viewer_of
from apps.events import selectors as events
from apps.inventory.models import Domain
from apps.power import services
from apps.power.budget import By
from apps.power.budget_selectors import LOOK_AHEAD, DomainBinding, bindings, coming_steps, oversubscription
from apps.power.models import LONGEST_AGE_S, PowerLimit
from apps.power.selectors import budget_of, power_domains
from apps.teams import policies
from apps.teams.models import User

_MOST_W: Final = 1e9
_MOST_COMING: Final = 20
_CHANGES_SHOWN: Final = 20
_EMPTY_LINES: Final = 3
_LINE_FIELDS: Final = ("days", "begins", "ends", "watts")
WORDS: Final = {
    By.RATING: "the rating of its breaker, derated",
    By.HARD: "its hard limit",
    By.OPERATING: "its operating limit",
    By.ENVELOPE: "its envelope at this hour",
    By.EVENT: "a demand-response event",
    By.HOLD: "too little is known of what it draws: nothing is to start",
}


class LimitForm(forms.Form):
    """The numbers of one domain, in watts; empty is not set."""

    rated_w = forms.FloatField(min_value=1e-3, max_value=_MOST_W, required=False, label="Rated power, W")
    derate = forms.FloatField(min_value=1e-3, max_value=1, label="Derating factor, 0 to 1")
    hard_limit_w = forms.FloatField(min_value=0, max_value=_MOST_W, required=False, label="Hard limit, W")
    reserve_w = forms.FloatField(min_value=0, max_value=_MOST_W, label="Reserve, W")
    limit_w = forms.FloatField(min_value=0, max_value=_MOST_W, required=False, label="Operating limit, W")
    ramp_up_w_per_s = forms.FloatField(
        min_value=1e-9, max_value=_MOST_W, required=False, label="Ramp up, W/s"
    )
    max_age_s = forms.FloatField(min_value=1e-3, max_value=LONGEST_AGE_S, label="Readings count for, s")
    reason = forms.CharField(max_length=500, required=False)
    version = forms.IntegerField(min_value=1, max_value=2**31 - 1)


_FIELDS: Final = (
    "rated_w",
    "derate",
    "hard_limit_w",
    "reserve_w",
    "limit_w",
    "ramp_up_w_per_s",
    "max_age_s",
)
_HINTS: Final = {
    "rated_w": "Of the breaker or the busway. Empty: not set.",
    "derate": "Of the rating, what a load may draw without pause.",
    "hard_limit_w": "Never exceeded by anybody. Empty: none.",
    "reserve_w": "Kept free under the rating and the hard limit.",
    "limit_w": "Lower, for all hours. Empty: none.",
    "ramp_up_w_per_s": "By how much the load may rise after an event. Empty: at once.",
}


@dataclass
class _Shown:
    """What the forms show: what is stored, or what was sent in."""

    form: LimitForm
    lines: Sequence[Line]
    time_zone: str
    envelope_reason: str = ""
    zone_fault: str = ""


@page
def limit(request: HttpRequest, domain_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    domain = _domain(domain_id)
    if request.method in ("GET", "HEAD"):
        return _page(request, viewer, domain, _stored(domain))
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    if not policies.may_set_power(viewer):
        raise PermissionDenied("Only power administrators set limits.")
    if request.POST.get("part") == "envelope":
        return _save_envelope(request, viewer, domain)
    return _save_limit(request, viewer, domain)


def _domain(domain_id: int) -> Domain:
    found = power_domains().filter(pk=domain_id).first() if domain_id < 2**63 else None
    if found is None:
        raise NotFound("There is no such power domain.")
    return found


def _limit_of(domain: Domain) -> PowerLimit:
    return getattr(domain, "power_limit", None) or PowerLimit(domain=domain)


def _stored(domain: Domain) -> _Shown:
    row = _limit_of(domain)
    told = {name: plain(getattr(row, name)) for name in _FIELDS}
    zone = ZoneInfo(row.time_zone)
    lines = [line_of(step, zone) for step in budget_of(row).steps]
    return _Shown(LimitForm(initial=told), lines, row.time_zone)


def plain(value: float | None) -> str:
    """A number as people type it."""
    return "" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")


def _save_limit(request: HttpRequest, viewer: User, domain: Domain) -> HttpResponse:
    form = LimitForm(request.POST)
    shown = _stored(domain)
    shown.form = form
    if not form.is_valid():
        return _refused(request, viewer, domain, shown, "Nothing was saved: some fields are not right.")
    try:
        services.set_limit(
            domain_id=domain.pk,
            changes={name: form.cleaned_data[name] for name in _FIELDS},
            actor=viewer,
            at=clock.now(),
            version=form.cleaned_data["version"],
            reason=form.cleaned_data["reason"],
        )
    except (NotFound, Forbidden):
        raise
    except VersionConflict as conflict:
        return _conflict(request, viewer, domain, conflict)
    except DomainError as refusal:
        for fault in refusal.errors:
            if fault["path"] in form.fields:
                form.add_error(fault["path"], fault["message"])
        return _refused(request, viewer, domain, shown, refusal.message, refusal.http_status)
    return _saved(request, domain, f"The limits of {domain.name} are saved. They hold at once.")


def _save_envelope(request: HttpRequest, viewer: User, domain: Domain) -> HttpResponse:
    shown = _stored(domain)
    shown.lines = _sent_lines(request)
    shown.time_zone = request.POST.get("time_zone", "")[:64]
    shown.envelope_reason = request.POST.get("reason", "")[:500]
    version = request.POST.get("version", "")
    try:
        zone = ZoneInfo(shown.time_zone)
    except (KeyError, ValueError, OSError):
        shown.zone_fault = "must be a time zone such as America/Chicago"
        zone = ZoneInfo("UTC")
    steps = [step for line in shown.lines if (step := line.step(zone)) is not None]
    is_faulty = shown.zone_fault or len(steps) < len(shown.lines)
    if is_faulty or not (version.isascii() and version.isdigit() and len(version) < 10):
        return _refused(request, viewer, domain, shown, "Nothing was saved: some fields are not right.")
    try:
        services.set_envelope(
            domain_id=domain.pk,
            steps=steps,
            time_zone=shown.time_zone,
            actor=viewer,
            at=clock.now(),
            version=int(version),
            reason=shown.envelope_reason,
        )
    except (NotFound, Forbidden):
        raise
    except VersionConflict as conflict:
        return _conflict(request, viewer, domain, conflict)
    except DomainError as refusal:
        return _refused(request, viewer, domain, shown, refusal.message, refusal.http_status)
    return _saved(request, domain, f"The envelope of {domain.name} is saved. The planner counts on it.")


def _sent_lines(request: HttpRequest) -> list[Line]:
    columns = [request.POST.getlist(name)[: services.MOST_STEPS + 1] for name in _LINE_FIELDS]
    lines = [Line(*(text.strip()[:60] for text in row)) for row in zip(*columns, strict=False)]
    return [line for line in lines if not line.is_empty]


def _saved(request: HttpRequest, domain: Domain, words: str) -> HttpResponse:
    messages.success(request, words)
    return HttpResponseRedirect(reverse("dashboard:power-limit", args=[domain.pk]))


def _conflict(request: HttpRequest, viewer: User, domain: Domain, conflict: VersionConflict) -> HttpResponse:
    fresh = _domain(domain.pk)
    said = f"{conflict.message} Below is what is stored now."
    return _refused(request, viewer, fresh, _stored(fresh), said, conflict.http_status)


def _refused(
    request: HttpRequest, viewer: User, domain: Domain, shown: _Shown, error: str, status: int = 400
) -> HttpResponse:
    return _page(request, viewer, domain, shown, errors=[error], status=status)


def _page(
    request: HttpRequest,
    viewer: User,
    domain: Domain,
    shown: _Shown,
    *,
    errors: Sequence[str] = (),
    status: int = 200,
) -> HttpResponse:
    at, row = clock.now(), _limit_of(domain)
    may_edit = policies.may_set_power(viewer)
    zone = ZoneInfo(row.time_zone)
    budget = budget_of(row)
    bound: Mapping[str, Any] = {name: shown.form[name] for name in _FIELDS}
    binding = bindings([domain], at).get(domain.pk)
    context = {
        "at": at,
        "domain": domain,
        "row": row,
        "binding": binding,
        "binding_words": "" if binding is None else WORDS[binding.by],
        "bounds": _bounds(row, binding, at),
        "oversubscription": oversubscription([domain], at).get(domain.pk),
        "coming": coming_steps(row, at, until=at + LOOK_AHEAD)[:_MOST_COMING],
        "steps": [(when_words(step, zone), step.limit_w, step.holds_at(zone, at)) for step in budget.steps],
        "lines": [(bound[name], _HINTS.get(name, "")) for name in _FIELDS],
        "reason": shown.form["reason"].value() or "",
        "envelope": [*shown.lines, *(Line() for _ in range(_EMPTY_LINES if may_edit else 0))],
        "time_zone": shown.time_zone,
        "zone_fault": shown.zone_fault,
        "envelope_reason": shown.envelope_reason,
        "errors": errors,
        "may_edit": may_edit,
        "changes": events.events_of("domain", domain.pk)[:_CHANGES_SHOWN],
    }
    return render(request, "dashboard/pages/power_limit.html", context, status=status)


@dataclass(frozen=True)
class _Bound:
    """One of the things that bound a domain, for the list of why."""

    label: str
    limit_w: float
    is_binding: bool


def _bounds(row: PowerLimit, binding: DomainBinding | None, at: datetime) -> list[_Bound]:
    budget = budget_of(row)
    by = None if binding is None else binding.by
    told: list[tuple[str, float | None, By]] = []
    less = " less the reserve" if budget.reserve_w else ""
    rating_w, hard_w = budget.continuous_w, budget.hard_limit_w
    told.append(
        (f"Rating, derated{less}", None if rating_w is None else rating_w - budget.reserve_w, By.RATING)
    )
    told.append((f"Hard limit{less}", None if hard_w is None else hard_w - budget.reserve_w, By.HARD))
    told.append(("Operating limit", budget.limit_w, By.OPERATING))
    told.append(("Envelope at this hour", budget.envelope_w(at), By.ENVELOPE))
    if binding is not None and binding.by in (By.EVENT, By.HOLD):
        told.append(("Event" if binding.by is By.EVENT else "Hold", binding.limit_w, binding.by))
    return [_Bound(label, watts, sort is by) for label, watts, sort in told if watts is not None]

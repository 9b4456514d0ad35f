"""Demand-response programmes: their rules, and a form for power administrators."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound, VersionConflict
from apps.dashboard import words
from apps.dashboard.paging import slice_of
from apps.dashboard.views.common import PAGE_SIZE, page, viewer_of
from apps.dashboard.views.power_events import plain, quarter_of
from apps.events import selectors as events
from apps.power import programme_services, response_selectors
from apps.power.models import MAX_PRICE, EmergencyPolicy, Programme
from apps.power.programme_services import ProgrammeDraft
from apps.power.response import TargetKind
from apps.teams import policies
from apps.teams.models import User

_LONGEST_S: Final = 366 * 86_400
_MOST_COUNT: Final = 1_000_000
_CHANGES_SHOWN: Final = 20
TARGETS: Final = {
    TargetKind.SHED_BY.value: "shed so many watts",
    TargetKind.LIMIT_TO.value: "stay within so many watts",
    TargetKind.LEVEL.value: "a level, 0 to 3",
}


class ProgrammeForm(forms.Form):
    """A programme, all of it; durations in seconds, powers in watts."""

    name = forms.CharField(max_length=120)
    time_zone = forms.CharField(max_length=64, initial="UTC", label="Time zone")
    target_kind = forms.ChoiceField(choices=list(TARGETS.items()), label="What is asked")
    baseline_method = forms.ChoiceField(choices=list(words.METHODS.items()), label="Baseline")
    notice_s = forms.IntegerField(min_value=0, max_value=_LONGEST_S, label="Notice, s")
    ramp_s = forms.IntegerField(min_value=0, max_value=_LONGEST_S, label="Ramp, s")
    min_duration_s = forms.IntegerField(min_value=1, max_value=_LONGEST_S, label="Lasts at least, s")
    max_duration_s = forms.IntegerField(min_value=1, max_value=_LONGEST_S, label="Lasts at most, s")
    interval_s = forms.IntegerField(min_value=1, max_value=_LONGEST_S, label="Settlement interval, s")
    tolerance = forms.FloatField(min_value=0, max_value=0.999999, initial=0.05, label="Tolerance, 0 to 1")
    price_per_kwh = forms.DecimalField(
        min_value=0, max_value=MAX_PRICE - 1, decimal_places=6, initial=0, label="Price a kWh"
    )
    penalty_per_kwh = forms.DecimalField(
        min_value=0, max_value=MAX_PRICE - 1, decimal_places=6, initial=0, label="Penalty a kWh"
    )
    max_events_per_day = forms.IntegerField(
        min_value=1, max_value=_MOST_COUNT, required=False, label="Events a day"
    )
    max_events_per_season = forms.IntegerField(
        min_value=1, max_value=_MOST_COUNT, required=False, label="Events a year"
    )
    two_person_above_w = forms.FloatField(
        min_value=0, max_value=1e9, required=False, label="Two people above, W"
    )
    is_auto_commit = forms.BooleanField(required=False)
    emergency_policy = forms.ChoiceField(choices=EmergencyPolicy.choices, initial=EmergencyPolicy.NONE)
    reason = forms.CharField(max_length=500, required=False)
    version = forms.IntegerField(min_value=1, max_value=2**31 - 1, required=False)

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if not name.isprintable() or "/" in name:
            raise forms.ValidationError("must not contain / or control characters")
        return name

    def clean_time_zone(self) -> str:
        zone = str(self.cleaned_data["time_zone"])
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise forms.ValidationError("must be a time zone such as America/Chicago") from None
        return zone

    def draft(self) -> ProgrammeDraft:
        said = {name: value for name, value in self.cleaned_data.items() if name not in ("reason", "version")}
        return ProgrammeDraft(**said)


_HINTS: Final = {
    "time_zone": "Whose days and working days are counted.",
    "notice_s": "From the notice to the start, as promised.",
    "ramp_s": "From the beginning of the ramp to the start.",
    "tolerance": "Share of the target that may be missing.",
    "max_events_per_day": "Empty: no limit.",
    "max_events_per_season": "Empty: no limit.",
    "two_person_above_w": "A plan that sheds more needs two people. Empty: never.",
}
_PLAIN: Final = (
    "notice_s",
    "ramp_s",
    "min_duration_s",
    "max_duration_s",
    "interval_s",
    "tolerance",
    "price_per_kwh",
    "penalty_per_kwh",
    "max_events_per_day",
    "max_events_per_season",
    "two_person_above_w",
)


@page
@require_GET
def programmes(request: HttpRequest) -> HttpResponse:
    found = slice_of(
        response_selectors.programmes(),
        order=("name", "id"),
        after=request.GET.get("after", ""),
        size=PAGE_SIZE,
    )
    context = {
        "found": found,
        "rows": [(one, plain(one.price_per_kwh), plain(one.penalty_per_kwh)) for one in found.rows],
        "targets": TARGETS,
        "methods": words.METHODS,
        "may_edit": policies.may_set_power(viewer_of(request)),
        "quarter": _quarter(),
    }
    return render(request, "dashboard/pages/programmes.html", context)


@page
def new_programme(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if not policies.may_set_power(viewer):
        raise PermissionDenied("Only power administrators write programmes.")
    if request.method in ("GET", "HEAD"):
        return _page(request, viewer, ProgrammeForm(), None)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    return _save(request, viewer, None)


@page
def programme(request: HttpRequest, programme_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    row = response_selectors.programmes().filter(pk=programme_id).first() if programme_id < 2**63 else None
    if row is None:
        raise Http404("no such programme")
    if request.method in ("GET", "HEAD"):
        return _page(request, viewer, _form_of(row), row)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    if not policies.may_set_power(viewer):
        raise PermissionDenied("Only power administrators change programmes.")
    return _save(request, viewer, row)


def _form_of(row: Programme) -> ProgrammeForm:
    kept = {name: getattr(row, name) for name in ProgrammeForm.base_fields if hasattr(row, name)}
    for name in ("price_per_kwh", "penalty_per_kwh"):
        kept[name] = plain(kept[name])
    if row.asked_emergency_policy:
        kept["emergency_policy"] = row.emergency_policy
    return ProgrammeForm(initial=kept)


def _save(request: HttpRequest, viewer: User, row: Programme | None) -> HttpResponse:
    form = ProgrammeForm(request.POST)
    if not form.is_valid():
        return _page(request, viewer, form, row, errors=["Nothing was saved: some fields are not right."])
    at, reason = clock.now(), form.cleaned_data["reason"]
    try:
        if row is None:
            saved = programme_services.create_programme(
                draft=form.draft(), actor=viewer, at=at, reason=reason
            )
        else:
            saved = programme_services.update_programme(
                programme_id=row.pk,
                draft=form.draft(),
                version=form.cleaned_data["version"] or 0,
                actor=viewer,
                at=at,
                reason=reason,
            )
    except (NotFound, Forbidden):
        raise
    except VersionConflict as conflict:
        fresh = response_selectors.programmes().get(pk=row.pk) if row is not None else None
        shown = form if fresh is None else _form_of(fresh)
        refused = [f"{conflict.message} Below is what is stored now."]
        return _page(request, viewer, shown, fresh, errors=refused, status=conflict.http_status)
    except DomainError as refusal:
        for fault in refusal.errors:
            if fault["path"] in form.fields:
                form.add_error(fault["path"], fault["message"])
        return _page(request, viewer, form, row, errors=[refusal.message], status=refusal.http_status)
    messages.success(request, _saved(saved))
    return HttpResponseRedirect(reverse("dashboard:programme", args=[saved.pk]))


def _saved(row: Programme) -> str:
    if row.asked_emergency_policy:
        return f"{row.name} is saved. The emergency policy waits for a second power administrator."
    return f"{row.name} is saved. Events that were announced keep what they took from it."


def _page(
    request: HttpRequest,
    viewer: User,
    form: ProgrammeForm,
    row: Programme | None,
    *,
    errors: list[str] | None = None,
    status: int | None = None,
) -> HttpResponse:
    bound: Mapping[str, Any] = {name: form[name] for name in _PLAIN}
    context = {
        "this": row,
        "form": form,
        "lines": [(bound[name], _HINTS.get(name, "")) for name in _PLAIN],
        "errors": errors or [],
        "targets": list(TARGETS.items()),
        "methods": list(words.METHODS.items()),
        "emergency_policies": EmergencyPolicy.choices,
        "may_edit": policies.may_set_power(viewer),
        "waits_for_other": row is not None
        and bool(row.asked_emergency_policy)
        and row.asked_emergency_policy_by_id != viewer.pk,
        "quarter": _quarter(),
        "changes": [] if row is None else events.events_of("programme", row.pk)[:_CHANGES_SHOWN],
    }
    status = status or (400 if errors else 200)
    return render(request, "dashboard/pages/programme.html", context, status=status)


def _quarter() -> str:
    now: datetime = timezone.localtime(clock.now())
    return quarter_of(now)

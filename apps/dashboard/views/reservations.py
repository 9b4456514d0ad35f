"""Reservations: what is promised to whom and when; operators make and cancel them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound
from apps.dashboard import charts
from apps.dashboard.views.common import act, page, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.reservations import selectors, services
from apps.reservations.models import Reservation
from apps.reservations.slots import LONGEST, Ask
from apps.scheduling import slots
from apps.teams import policies, throttles
from apps.teams import selectors as teams

_SPANS: Final = {"3": timedelta(days=3), "14": timedelta(days=14), "30": timedelta(days=30)}
_MOST: Final = 100
_LAST_YEAR: Final = 2200


@dataclass(frozen=True)
class Row:
    """A reservation and where it stands."""

    reservation: Reservation
    state: str
    tone: str
    icon: str
    capacity: str
    place: str
    teams: str


def _row(one: Reservation, at: datetime) -> Row:
    nodes = [node.name for node in one.nodes.all()]
    names = [team.name for team in one.teams.all()]
    if nodes:
        capacity = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
        place = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    else:
        capacity = f"{one.n_devices} {one.accelerator_type}"
        place = f"within one {one.get_within_display()}" if one.within else "anywhere"
    state, tone, icon = _state(one, at, is_maintenance=not names)
    return Row(one, state, tone, icon, capacity, place, ", ".join(names) or "Nobody: maintenance")


def _state(one: Reservation, at: datetime, *, is_maintenance: bool) -> tuple[str, str, str]:
    if one.cancelled_at is not None:
        return "Cancelled", "", "ban"
    if one.rrule:
        return "Repeats", "info", "refresh"
    if one.ends_at <= at:
        return "Ended", "", "check"
    if is_maintenance:
        return ("Maintenance", "warn", "tool") if one.starts_at <= at else ("Maintenance planned", "", "tool")
    return ("In use", "ok", "player-play") if one.starts_at <= at else ("Confirmed", "ok", "circle-check")


@page
@require_GET
def reservations(request: HttpRequest) -> HttpResponse:
    viewer, at = viewer_of(request), clock.now()
    span = request.GET.get("days", "14")
    span = span if span in _SPANS else "14"
    found = selectors.reservation_rows(viewer, ends_after=at, starts_before=at + _SPANS[span])
    rows = [_row(one, at) for one in found.filter(cancelled_at=None)[:_MOST]]
    context = {
        "rows": rows,
        "span": span,
        "spans": list(_SPANS),
        "may_operate": policies.may_operate(viewer),
        "gantt": _gantt(at, at + _SPANS[span]) if rows else None,
    }
    return render(request, "dashboard/pages/reservations.html", context)


def _gantt(begin_at: datetime, end_at: datetime) -> dict[str, Any]:
    """C6: a lane for each accelerator type; a bar is as high as its share of the type's devices."""
    names, types, sizes = inventory.kinds_of_nodes()
    capacity: dict[int, int] = {}
    for node, kind in types.items():
        capacity[kind] = capacity.get(kind, 0) + sizes[node]
    bars = []
    for one in selectors.windows(begin_at, end_at):
        shares: dict[int, int] = {}
        for node in one.node_ids:
            shares[types[node]] = shares.get(types[node], 0) + sizes[node]
        if one.accelerator_type_id is not None:
            shares[one.accelerator_type_id] = one.n_devices or 0
        for kind, n_devices in shares.items():
            bars.append(
                charts.Promise(
                    lane=names[kind],
                    label=one.name,
                    start_at=max(one.starts_at, begin_at),
                    end_at=min(one.ends_at, end_at),
                    share=min(1.0, n_devices / capacity[kind]) if capacity.get(kind) else 0.0,
                    is_maintenance=not one.team_ids,
                )
            )
    # A type that has no node any more, or none yet, may be reserved all the same.
    lanes = sorted({names[kind] for kind in capacity} | {bar.lane for bar in bars})
    return charts.promises_chart(bars, lanes, since=begin_at, until=end_at, now=begin_at)


class SlotForm(forms.Form):
    """What is looked for; times are in the site's zone."""

    accelerator_type = forms.CharField(max_length=120, label="Device type")
    n_devices = forms.IntegerField(min_value=1, max_value=1_000_000, label="Devices")
    hours = forms.FloatField(min_value=0.25, max_value=2200, label="For how many hours")
    within = forms.ChoiceField(
        choices=[("", "anywhere"), ("leaf", "one leaf"), ("spine", "one spine group")], required=False
    )
    earliest = forms.DateTimeField(required=False, label="Not before")
    latest = forms.DateTimeField(required=False, label="Over by")

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        for name in ("earliest", "latest"):
            if said.get(name) and said[name].year > _LAST_YEAR:
                self.add_error(name, f"must be before {_LAST_YEAR + 1}")
        return said


@page
@require_GET
def find(request: HttpRequest) -> HttpResponse:
    """The slot finder: a question in the address, three offers below it."""
    viewer, at = viewer_of(request), clock.now()
    kinds = inventory.accelerator_type_names()
    form = SlotForm(request.GET if request.GET else None)
    context: dict[str, Any] = {
        "form": form,
        "kinds": kinds,
        "may_operate": policies.may_operate(viewer),
    }
    status = 200
    if request.GET:
        if form.is_valid():
            said = form.cleaned_data
            earliest = said["earliest"] or at
            try:
                if wait_s := throttles.take_preview(viewer.pk, at):
                    context["errors"] = [f"Too many looks ahead; try again in {throttles.in_words(wait_s)}."]
                else:
                    ask = Ask(
                        said["accelerator_type"],
                        said["n_devices"],
                        timedelta(hours=said["hours"]),
                        earliest,
                        said["latest"]
                        or max(earliest, at) + min(timedelta(days=14, hours=said["hours"]), LONGEST),
                        said["within"],
                    )
                    context |= {"found": slots.offers(ask, at=at), "ask": ask}
            except DomainError as refusal:
                context["errors"] = [refusal.message, *(_fault(one) for one in refusal.errors)]
                status = 400
        else:
            status = 400
    return render(request, "dashboard/pages/slots.html", context, status=status)


def _fault(one: Mapping[str, Any]) -> str:
    label = {"lasts": "For how many hours", "latest_end_at": "Over by", "n_devices": "Devices"}
    return f"{label.get(str(one['path']), one['path'])}: {one['message']}"


@page
@require_GET
def reservation(request: HttpRequest, reservation_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    rows = selectors.reservations_visible_to(viewer).select_related("accelerator_type", "created_by")
    found = rows.prefetch_related("teams", "nodes").filter(pk=reservation_id).first()
    if found is None:
        raise Http404("no such reservation")
    latest = events.visible_to(viewer).filter(subject_kind="reservation", subject_id=found.pk)
    context = {
        "row": _row(found, clock.now()),
        "nodes": [node.name for node in found.nodes.all()[:_MOST]],
        "events": list(latest.order_by("-id")[:20]),
        "may_cancel": policies.may_operate(viewer)
        and found.cancelled_at is None
        and found.ends_at > clock.now(),
    }
    return render(request, "dashboard/pages/reservation.html", context)


class ReservationForm(forms.Form):
    """What a new reservation needs; times are in the site's zone."""

    name = forms.CharField(max_length=120)
    starts_at = forms.DateTimeField(label="Starts")
    ends_at = forms.DateTimeField(label="Ends")
    accelerator_type = forms.CharField(max_length=120, required=False, label="Device type")
    n_devices = forms.IntegerField(min_value=1, max_value=1_000_000, required=False, label="Devices")
    within = forms.ChoiceField(
        choices=[("", "anywhere"), ("leaf", "one leaf"), ("spine", "one spine group")], required=False
    )
    nodes = forms.CharField(required=False, max_length=20_000)
    teams = forms.MultipleChoiceField(required=False)
    is_strict = forms.BooleanField(required=False)
    reason = forms.CharField(required=False, max_length=500)

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        team_names: list[str],
        initial: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            data, initial={key: value for key, value in (initial or {}).items() if key != "teams"}
        )
        self.fields["teams"].choices = [(name, name) for name in team_names]  # type: ignore[attr-defined]


@page
def new_reservation(request: HttpRequest) -> HttpResponse:
    viewer, at = viewer_of(request), clock.now()
    if not policies.may_operate(viewer):
        raise PermissionDenied("Only operators make reservations.")
    names = [team.name for team in teams.teams_visible_to(viewer).order_by("name")]
    errors: list[str] = []
    # What the slot finder found stands in the address.
    form = ReservationForm(
        request.POST if request.method == "POST" else None, team_names=names, initial=request.GET.dict()
    )
    if request.method == "POST" and form.is_valid():
        chosen = form.cleaned_data
        try:
            draft = services.Draft(
                name=chosen["name"],
                starts_at=chosen["starts_at"],
                ends_at=chosen["ends_at"],
                time_zone=settings.TIME_ZONE,
                nodes=tuple(chosen["nodes"].replace(",", " ").split()),
                accelerator_type=chosen["accelerator_type"] or None,
                n_devices=chosen["n_devices"],
                within=chosen["within"],
                teams=tuple(chosen["teams"]),
                is_flexible=not chosen["is_strict"],
                reason=chosen["reason"],
            )
            made = services.create_reservation(draft=draft, actor=viewer, at=at)
        except (NotFound, Forbidden):
            raise
        except DomainError as refusal:
            errors.append(refusal.message)
        else:
            messages.success(request, f"{made.name} is reserved.")
            return HttpResponseRedirect(reverse("dashboard:reservation", args=[made.pk]))
    elif request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "POST"])
    context = {
        "form": form,
        "errors": errors,
        "team_names": names,
        "kinds": inventory.accelerator_type_names(),
    }
    status = 400 if request.method == "POST" else 200
    return render(request, "dashboard/pages/reservation_new.html", context, status=status)


@page
@require_POST
def cancel(request: HttpRequest, reservation_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    found = selectors.reservations_visible_to(viewer).filter(pk=reservation_id).first()
    if found is None:
        raise Http404("no such reservation")
    reason = request.POST.get("reason", "").strip()[:500]
    return act(
        request,
        reverse("dashboard:reservation", args=[reservation_id]),
        f"{found.name} was cancelled.",
        lambda: services.cancel_reservation(
            reservation_id=found.pk, actor=viewer, at=clock.now(), reason=reason
        ),
    )

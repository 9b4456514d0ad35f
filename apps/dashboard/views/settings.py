"""Settings: what is set where, and the people."""

from dataclasses import dataclass
from typing import Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.core.errors import DomainError, Forbidden
from apps.dashboard.paging import slice_of
from apps.dashboard.views.common import PAGE_SIZE, act, page, viewer_of
from apps.teams import policies, services
from apps.teams import selectors as teams
from apps.teams.models import FacilityRole, User


@dataclass(frozen=True, slots=True)
class Entry:
    """A page that sets something."""

    title: str
    detail: str
    icon: str
    url: str


@page
@require_GET
def settings(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if not policies.may_see_vtns(viewer):
        raise PermissionDenied("Only those who look after the facility see its settings.")
    context = {"entries": _entries(viewer)}
    return render(request, "dashboard/pages/settings.html", context)


def _entries(viewer: User) -> list[Entry]:
    """Those alone that the viewer may open."""
    entries = []
    if policies.may_operate(viewer):
        entries.append(
            Entry(
                "Facility model",
                "Types of devices, clusters, domains and nodes: import a file, with a check before it goes live.",
                "building-factory-2",
                reverse("dashboard:facility"),
            )
        )
    if policies.is_admin(viewer) or policies.is_auditor(viewer):
        detail = "Who may sign in, their roles, and teams."
        entries.append(Entry("People", detail, "users-group", reverse("dashboard:people")))
    return [
        *entries,
        Entry(
            "Clusters",
            "What the work runs on: versions, contact, others' work; connect a Slurm or a Kubernetes.",
            "plug",
            reverse("dashboard:clusters"),
        ),
        Entry("Limits", "What each power domain may draw.", "bolt", reverse("dashboard:power")),
        Entry(
            "Programmes",
            "What was agreed with the grid, and what may be done for it.",
            "plug",
            reverse("dashboard:programmes"),
        ),
        Entry("Servers of the grid", "OpenADR connections.", "route", reverse("dashboard:openadr")),
        Entry("Policy", "By what the planner decides.", "adjustments", reverse("dashboard:policy")),
    ]


_FIELDS: Final = ("username", "full_name", "email", "facility_role")


@page
def people(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    policies.require_may_see_people(viewer)
    if request.method in ("GET", "HEAD"):
        return _show_people(request, viewer, {})
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    policies.require_admin(viewer)
    here = reverse("dashboard:people")
    person = request.POST.get("person", "")
    if request.POST.get("action") == "role":
        role = request.POST.get("facility_role", "")
        return act(request, here, "The role was changed.", lambda: _set_role(viewer, person, role))
    if request.POST.get("action") in ("let-in", "shut-out"):
        lets_in = request.POST["action"] == "let-in"
        done = f"{person} may sign in." if lets_in else f"{person} may sign in no more."
        return act(request, here, done, lambda: _set_active(viewer, person, lets_in))
    values = {name: request.POST.get(name, "").strip()[:200] for name in _FIELDS}
    try:
        made = services.create_user(
            **values, password=request.POST.get("password", "")[:200], actor=viewer, at=clock.now()
        )
    except Forbidden:
        raise
    except DomainError as refusal:
        errors = {error["path"]: error["message"] for error in refusal.errors}
        if "name" in errors:  # a name that is taken
            errors["username"] = errors.pop("name")
        return _show_people(request, viewer, values, errors, status=refusal.http_status)
    messages.success(request, f"{made.username} may sign in.")
    return HttpResponseRedirect(here)


def _set_role(viewer: User, person: str, role: str) -> None:
    row = teams.person_named(person)
    services.set_facility_role(user_id=row.pk, facility_role=role, actor=viewer, at=clock.now())


def _set_active(viewer: User, person: str, is_active: bool) -> None:
    row = teams.person_named(person)
    services.set_active(user_id=row.pk, is_active=is_active, actor=viewer, at=clock.now())


def _show_people(
    request: HttpRequest,
    viewer: User,
    values: dict[str, str],
    errors: dict[str, str] | None = None,
    status: int = 200,
) -> HttpResponse:
    found = slice_of(
        teams.people(), order=["username", "pk"], after=request.GET.get("after", ""), size=PAGE_SIZE
    )
    context = {
        "found": found,
        "values": values,
        "errors": {name: [said] for name, said in (errors or {}).items()},
        "roles": FacilityRole.choices,
        "may_edit": policies.is_admin(viewer),
    }
    return render(request, "dashboard/pages/people.html", context, status=status)

"""The first visit: from an empty installation to the first job, in three steps that do what they say."""

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, InvalidInput
from apps.dashboard.views.common import act, page, viewer_of
from apps.dashboard.views.facility import sample_of
from apps.inventory import selectors as inventory
from apps.inventory.models import Backend
from apps.jobs import selectors as jobs
from apps.jobs import services as jobs_services
from apps.jobs.spec import JobRequest
from apps.teams import policies
from apps.teams import selectors as teams
from apps.teams import services as teams_services
from apps.teams.models import User

_FIRST_RUN_S: Final = 120.0
_FIRST_LIMIT_S: Final = 600.0


@page
def welcome(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if request.method in ("GET", "HEAD"):
        return _show(request, viewer)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    if request.POST.get("action") == "job":
        return _first_job(request, viewer)
    return _first_team(request, viewer)


def _first_team(request: HttpRequest, viewer: User) -> HttpResponse:
    name = request.POST.get("name", "").strip()[:120]
    owned = [teams_services.QuotaEntry(one.name, one.n_devices) for one in inventory.devices_by_type()]
    try:
        if not name:
            raise InvalidInput.of("name", "must not be empty", "too_short")
        teams_services.found_team(
            name=name,
            owned=owned if request.POST.get("owns_all") else [],
            actor=viewer,
            at=clock.now(),
            reason="first visit",
        )
    except Forbidden:
        raise
    except DomainError as refusal:
        said = [error["message"] for error in refusal.errors] or [refusal.message]
        return _show(request, viewer, name=name, errors=said, status=refusal.http_status)
    messages.success(request, f"The team {name} is there, and you lead it.")
    return HttpResponseRedirect(reverse("dashboard:welcome"))


def _first_job(request: HttpRequest, viewer: User) -> HttpResponse:
    made: list[int] = []

    def submit() -> None:
        wanted = sample_job(viewer)
        if wanted is None:
            raise InvalidInput.of("", "There is no team of yours yet, or no cluster: take the steps above.")
        asked = JobRequest.model_validate(wanted)
        # The same key for the same team: a second click finds the job of the first.
        key = f"first-job:{wanted['team']}"
        made.append(
            jobs_services.submit_job(request=asked, actor=viewer, at=clock.now(), idempotency_key=key).pk
        )

    answer = act(request, reverse("dashboard:welcome"), "The first job was submitted.", submit)
    return HttpResponseRedirect(reverse("dashboard:job", args=made)) if made else answer


def sample_job(viewer: User) -> dict[str, Any] | None:
    """What the first job asks for: one device for two minutes, of the viewer's first team; None if it cannot be."""
    mine = teams.teams_to_submit_for(viewer)
    clusters = [one for one in inventory.cluster_rows() if one.is_enabled]
    if not mine or not clusters:
        return None
    # One that plays jobs first: it needs nothing installed.
    cluster = min(clusters, key=lambda one: not one.is_simulated)
    wanted: dict[str, Any] = {
        "name": "first-job",
        "team": mine[0].name,
        "cluster": cluster.name,
        "devices": 1,
        "time_limit": _FIRST_LIMIT_S,
        "runtime": _FIRST_RUN_S,
    }
    if cluster.backend != Backend.SIMULATED:
        wanted["command"] = ["sleep", f"{_FIRST_RUN_S:.0f}"]
    return wanted


def _show(
    request: HttpRequest, viewer: User, *, name: str = "", errors: list[str] | None = None, status: int = 200
) -> HttpResponse:
    there = inventory.n_of_each()
    mine = teams.teams_to_submit_for(viewer)
    has_jobs = jobs.jobs_visible_to(viewer).exists()
    context = {
        "there": there,
        "mine": mine,
        "is_admin": policies.is_admin(viewer),
        "types": inventory.devices_by_type(),
        "sample": sample_of("yaml"),
        "job": sample_job(viewer) if there.nodes and mine else None,
        "has_jobs": has_jobs,
        "first_job": jobs.jobs_visible_to(viewer).order_by("pk").first() if has_jobs else None,
        "name": name,
        "errors": errors or [],
        # The first step that is not taken yet: that is the one to take now.
        "now": 1 if not there.nodes else 2 if not mine else 3 if not has_jobs else 0,
    }
    return render(request, "dashboard/pages/welcome.html", context, status=status)

"""Clusters: what runs there, how they do, and a form that tries a connection before it is saved."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, InvalidInput, NotFound, OutsideError
from apps.dashboard.views.common import page, viewer_of
from apps.execution import engines
from apps.execution.backends.base import Survey
from apps.execution.cluster_board import ClusterRow, cluster_named, cluster_rows, foreign_work
from apps.execution.engines import Engine, Field
from apps.inventory.models import Backend
from apps.teams import policies
from apps.teams.models import User

SILENT_AFTER: Final = timedelta(seconds=60)
_WORDS: Final = {
    Backend.LOCAL.value: "This machine",
    Backend.SIMULATED.value: "Simulated",
    Backend.SLURM.value: "Slurm",
    Backend.KUBERNETES.value: "Kubernetes",
}
_FOREIGN_SHOWN: Final = 100
_STORED: Final = "Empty: the one that is stored. It is never shown."


@dataclass(frozen=True)
class Shown:
    """A cluster and how it does, for a page."""

    row: ClusterRow
    engine: str
    state: str
    icon: str
    tone: str
    is_connected: bool  # to something outside, which can be looked at


@dataclass
class Line:
    """One field of the form: what was typed, never a secret."""

    field: Field
    value: str
    hint: str
    errors: list[str]


@dataclass
class _Form:
    name: str = ""
    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def take(self, refusal: InvalidInput) -> None:
        for fault in refusal.errors:
            self.errors.setdefault(fault["path"], []).append(fault["message"])


def _shown(row: ClusterRow) -> Shown:
    cluster, at = row.cluster, clock.now()
    word = _WORDS.get(cluster.backend, cluster.backend)
    is_connected = cluster.backend in engines.ENGINES
    if not cluster.is_enabled:
        state = ("Off", "player-pause", "")
    elif cluster.last_error:
        state = ("Failing", "alert-triangle", "bad")
    elif cluster.last_contact_at is None:
        state = ("Not heard of yet", "hourglass", "")
    elif at - cluster.last_contact_at > SILENT_AFTER:
        state = ("Silent", "alert-triangle", "bad")
    else:
        state = ("Answers", "circle-check", "ok")
    return Shown(row, word, *state, is_connected)


@page
@require_GET
def clusters(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    context = {
        "rows": [_shown(row) for row in cluster_rows()],
        "engines": list(engines.ENGINES.values()),
        "may_edit": policies.is_admin(viewer),
    }
    return render(request, "dashboard/pages/clusters.html", context)


@page
@require_GET
def cluster(request: HttpRequest, cluster_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    row = cluster_named(cluster_id)
    shown = _shown(row)
    told = None
    if shown.is_connected and policies.is_admin(viewer):
        engine = engines.engine_of(row.cluster)
        values = engine.told(row.cluster) or {}
        told = [(one.label, values.get(one.name, "")) for one in engine.fields if not one.is_secret]
    foreign = foreign_work(row.cluster, most=_FOREIGN_SHOWN + 1)
    context = {
        "shown": shown,
        "row": row,
        "told": told,
        "foreign": foreign[:_FOREIGN_SHOWN],
        "has_more_foreign": len(foreign) > _FOREIGN_SHOWN,
        "may_edit": policies.is_admin(viewer),
        "may_operate": policies.may_operate(viewer),
    }
    return render(request, "dashboard/pages/cluster.html", context)


@page
@require_POST
def sync(request: HttpRequest, cluster_id: int) -> HttpResponse:
    viewer, row = viewer_of(request), cluster_named(cluster_id)
    try:
        done = engines.sync(row.cluster, actor=viewer, at=clock.now())
    except (Forbidden, NotFound):
        raise
    except (DomainError, OutsideError) as error:
        messages.error(request, error.message)
    else:
        taken = f", {done.n_nodes} new nodes taken in" if done.n_nodes else ""
        messages.success(request, f"{row.cluster.name} was looked at: {done.version}{taken}.")
        for note in done.notes[:5]:
            messages.warning(request, note)
    return HttpResponseRedirect(reverse("dashboard:cluster", args=[cluster_id]))


# The form ------------------------------------------------------------------------------------------------------------


@page
def new_cluster(request: HttpRequest, engine_key: str) -> HttpResponse:
    viewer = viewer_of(request)
    policies.require_admin(viewer)
    if engine_key not in engines.ENGINES:
        raise NotFound("There is no such engine.")
    return _form(request, viewer, engines.ENGINES[engine_key], None)


@page
def change_cluster(request: HttpRequest, cluster_id: int) -> HttpResponse:
    viewer, row = viewer_of(request), cluster_named(cluster_id)
    policies.require_admin(viewer)
    return _form(request, viewer, engines.engine_of(row.cluster), row)


def _form(request: HttpRequest, viewer: User, engine: Engine, row: ClusterRow | None) -> HttpResponse:
    stored = None if row is None else row.cluster
    if request.method in ("GET", "HEAD"):
        values = {one.name: one.default for one in engine.fields}
        if stored is not None:
            values |= dict(engine.told(stored) or {})
        return _page(request, engine, row, _Form(values=values))
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    values = {
        one.name: request.POST.get(one.name, "").strip()[: engines.LONGEST + 1] for one in engine.fields
    }
    form = _Form(request.POST.get("name", "").strip()[:200], values)
    is_try = request.POST.get("act") == "try"
    refused, status = "", 400
    try:
        if is_try:
            survey = engines.try_connection(engine.key, values, cluster=stored, actor=viewer)
            return _answer(request, engine, row, form, survey=survey)
        if stored is None:
            done = engines.connect(form.name, engine.key, values, actor=viewer, at=clock.now())
        else:
            done = engines.change(stored, values, actor=viewer, at=clock.now())
    except InvalidInput as refusal:
        form.take(refusal)
        refused = "Some fields are not right."
    except (Forbidden, NotFound):
        raise
    except OutsideError as error:
        refused, status = error.message, 502
    except DomainError as refusal:
        refused, status = refusal.message, refusal.http_status
    else:
        messages.success(request, f"{done.cluster.name} is connected: {done.n_nodes} nodes taken in.")
        for note in done.notes[:5]:
            messages.warning(request, note)
        return HttpResponseRedirect(reverse("dashboard:cluster", args=[done.cluster.pk]))
    what = "Nothing was changed anywhere." if is_try else "Nothing was saved."
    return _answer(request, engine, row, form, refused=f"{what} {refused}", status=status)


def _answer(
    request: HttpRequest,
    engine: Engine,
    row: ClusterRow | None,
    form: _Form,
    *,
    survey: Survey | None = None,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    """The form again, or, where a script asked what a test came to, that alone: secrets stay where they were typed."""
    if request.headers.get("HX-Request") == "true":
        labels = {one.name: one.label for one in engine.fields}
        faults = [f"{labels.get(name, name)}: {one}" for name, said in form.errors.items() for one in said]
        context = {"refused": refused, "faults": faults, **_found(survey)}
        return render(request, "dashboard/parts/cluster_tried.html", context)
    return _page(request, engine, row, form, survey=survey, refused=refused, status=status)


def _found(survey: Survey | None) -> dict[str, Any]:
    if survey is None:
        return {"survey": None}
    return {
        "survey": survey,
        "n_devices": sum(node.n_devices for node in survey.nodes),
        "kinds": sorted({node.accelerator for node in survey.nodes if node.accelerator}),
        "n_foreign": len({use.key for use in survey.foreign}),
    }


def _page(
    request: HttpRequest,
    engine: Engine,
    row: ClusterRow | None,
    form: _Form,
    *,
    survey: Survey | None = None,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    lines = [
        Line(
            one,
            "" if one.is_secret else form.values.get(one.name, ""),
            _STORED if one.is_secret and row is not None else one.hint,
            form.errors.get(one.name, []),
        )
        for one in engine.fields
    ]
    context = {
        "engine": engine,
        "row": row,
        "name": form.name,
        "name_errors": form.errors.get("name", []),
        "lines": lines,
        "refused": refused,
        "faults": [],
        **_found(survey),
    }
    return render(request, "dashboard/pages/cluster_form.html", context, status=status)

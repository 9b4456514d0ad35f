"""Nodes: what there is, what is out of service and why, and one node with what it runs."""

from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.dashboard import words
from apps.dashboard.leaves import spines_of
from apps.dashboard.paging import slice_of
from apps.dashboard.views.common import PAGE_SIZE, act, page, part, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.inventory import services
from apps.inventory.models import Domain, DomainKind, Health, Node
from apps.scheduling import board
from apps.scheduling import policies as scheduling_policies
from apps.scheduling import selectors as scheduling
from apps.teams import policies
from apps.teams.models import User

_MOST_MAP_NODES: Final = 1000
_OUT: Final = "out"
# What a page shows node by node: the domains of the power tree that hold rows or racks, or the groups of leaves.
_FLOORS: Final = {
    "hall": (DomainKind.FACILITY, DomainKind.HALL, DomainKind.ROW, DomainKind.RACK),
    "spine": (DomainKind.SPINE, DomainKind.LEAF),
}
_HISTORY: Final = timedelta(hours=24)
_HEALTHS: Final = [
    ("", "Any state"),
    *((key, word.label) for key, word in words.HEALTH.items()),
    (_OUT, "Out of service"),
]


class FilterForm(forms.Form):
    health = forms.ChoiceField(choices=_HEALTHS, required=False)
    kind = forms.CharField(max_length=120, required=False)
    cluster = forms.CharField(max_length=120, required=False)
    domain = forms.CharField(max_length=120, required=False)
    q = forms.CharField(max_length=120, required=False)


@page
@require_GET
def nodes(request: HttpRequest) -> HttpResponse:
    viewer, form = viewer_of(request), FilterForm(request.GET)
    context = {
        **_list(request, viewer, form),
        "form": form,
        "healths": _HEALTHS,
        "kinds": inventory.accelerator_type_names(),
        "clusters": list(inventory.cluster_rows()),
        "counts": _counts(),
        "may_see_moves": scheduling_policies.may_see_advice(viewer),
        **_fragmentation(),
    }
    context |= _map(viewer)
    return render(request, "dashboard/pages/nodes.html", context)


@page
@require_GET
def map_part(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    return part(request, "dashboard/parts/node_map.html", (events.latest_event_id(),), lambda: _map(viewer))


@page
@require_GET
def list_part(request: HttpRequest) -> HttpResponse:
    viewer, form = viewer_of(request), FilterForm(request.GET)
    version = (events.latest_event_id(),)
    return part(request, "dashboard/parts/node_list.html", version, lambda: _list(request, viewer, form))


def _counts() -> list[tuple[words.Word, inventory.HealthCount]]:
    return [(words.HEALTH[row.health], row) for row in inventory.count_by_health()]


def _fragmentation() -> dict[str, Any]:
    """What is free and of no use: as the last pass left it, and by hour."""
    at = clock.now()
    hours = scheduling.fragmentation_by_hour(since=at - _HISTORY, until=at)
    return {"fragmentation": scheduling.fragmentation_now(), "hours": list(hours.items())}


def _map(viewer: User) -> dict[str, Any]:
    found = inventory.leaf_map(viewer, most=_MOST_MAP_NODES)
    return {"spines": spines_of(found) if found else (), "is_map_too_large": found is None}


def _list(request: HttpRequest, viewer: User, form: FilterForm) -> dict[str, Any]:
    if not form.is_valid():
        return {"rows": [], "errors": form.errors, "found": None}
    chosen = form.cleaned_data
    filters = inventory.NodeFilters(
        health="" if chosen["health"] == _OUT else chosen["health"],
        accelerator_type=chosen["kind"],
        cluster=chosen["cluster"],
        domain=chosen["domain"],
        name_prefix=chosen["q"].strip(),
    )
    rows: QuerySet[Node] = inventory.node_rows(viewer, filters)
    if chosen["health"] == _OUT:
        rows = rows.filter(health__in=(Health.FAILED, Health.DRAINED, Health.DRAINING))
    found = slice_of(rows, order=("name",), after=request.GET.get("after", ""), size=PAGE_SIZE)
    return {"rows": found.rows, "found": found, "is_filtered": any(chosen.values())}


@page
@require_GET
def floor(request: HttpRequest, name: str, sort: str) -> HttpResponse:
    """One hall by row and rack, or one spine group by leaf, node by node."""
    found = inventory.domain_named(name, _FLOORS[sort])
    return render(request, "dashboard/pages/floor.html", _floor(viewer_of(request), found, sort))


@page
@require_GET
def floor_part(request: HttpRequest, name: str, sort: str) -> HttpResponse:
    found = inventory.domain_named(name, _FLOORS[sort])
    version = (events.latest_event_id(),)
    return part(
        request, "dashboard/parts/floor.html", version, lambda: _floor(viewer_of(request), found, sort)
    )


def _floor(viewer: User, found: Domain, sort: str) -> dict[str, Any]:
    rows = inventory.floor_map(viewer, found, most=_MOST_MAP_NODES)
    words_of = {"page": "", "nameless": found.name} if sort == "hall" else {"page": ""}
    spines = spines_of(rows, **words_of) if rows else ()
    leaves = [(spine, leaf) for spine in spines for leaf in spine.leaves]
    return {
        "domain": found,
        "sort": sort,
        "spines": spines,
        "leaves": leaves,
        "is_map_too_large": rows is None,
        "n_nodes": len(rows or ()),
        "n_devices": sum(leaf.n_devices for _, leaf in leaves),
        "claimed": sum((leaf.claimed for _, leaf in leaves), Decimal(0)),
        "n_out": sum(leaf.n_out for _, leaf in leaves),
    }


@page
def node(request: HttpRequest, name: str) -> HttpResponse:
    viewer = viewer_of(request)
    found = inventory.node_rows(viewer).filter(name=name).first()
    if found is None:
        raise Http404("no such node")
    if request.method == "POST":
        return _act(request, viewer, found)
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "POST"])
    return render(request, "dashboard/pages/node.html", _facts(viewer, found))


@page
@require_GET
def node_part(request: HttpRequest, name: str) -> HttpResponse:
    viewer = viewer_of(request)
    found = inventory.node_rows(viewer).filter(name=name).first()
    if found is None:
        raise Http404("no such node")
    version = (events.latest_event_id(),)
    return part(request, "dashboard/parts/node.html", version, lambda: _facts(viewer, found))


def _facts(viewer: User, found: Node) -> dict[str, Any]:
    on_it = board.jobs_on_node(viewer, found)
    latest = events.visible_to(viewer).filter(subject_kind="node", subject_id=found.pk).order_by("-id")[:20]
    return {
        "node": found,
        "devices": list(found.devices.all()),
        "on_it": [one for one in on_it if one.ended_at is None],
        "before": [one for one in on_it if one.ended_at is not None],
        "events": list(latest),
        "may_operate": policies.may_operate(viewer),
        "takes_work": found.health in (Health.HEALTHY, Health.SUSPECT),
        "now": clock.now(),
    }


def _act(request: HttpRequest, viewer: User, found: Node) -> HttpResponse:
    if not policies.may_operate(viewer):
        raise PermissionDenied("Only operators drain and resume nodes.")
    reason = request.POST.get("reason", "").strip()[:500]
    at = clock.now()
    match request.POST.get("action"):
        case "drain":
            done = f"{found.name} takes no new work."
            return act(
                request,
                request.path,
                done,
                lambda: services.drain_node(node_id=found.pk, actor=viewer, at=at, reason=reason),
            )
        case "resume":
            return act(
                request,
                request.path,
                f"{found.name} takes work again.",
                lambda: services.resume_node(node_id=found.pk, actor=viewer, at=at, reason=reason),
            )
        case _:
            raise Http404("no such action")

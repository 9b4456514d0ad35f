"""Overview: is the facility doing useful work inside its power limit, and what needs somebody?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.dashboard import charts, words
from apps.dashboard.templatetags import formats
from apps.dashboard.views.common import etag_of, page, part, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.inventory.models import Health
from apps.power import selectors as power
from apps.scheduling import board
from apps.scheduling import selectors as scheduling
from apps.teams import selectors as teams
from apps.teams.models import User

PERIODS: Final = {"6h": timedelta(hours=6), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
_MOST_POINTS: Final = 288
_MOST_TEAMS: Final = 50


@page
@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    viewer, at = viewer_of(request), clock.now()
    period = _period(request)
    context = {
        **_figures(viewer, at),
        **_attention(viewer, at),
        **_teams(viewer),
        "period": period,
        "periods": PERIODS,
        "power_figure": _power_figure(at, PERIODS[period]),
        "use_figure": _use_figure(at, PERIODS[period]),
    }
    return render(request, "dashboard/pages/overview.html", context)


@page
@require_GET
def figures_part(request: HttpRequest) -> HttpResponse:
    viewer, at = viewer_of(request), clock.now()
    return part(request, "dashboard/parts/figures.html", _version(), lambda: _figures(viewer, at))


@page
@require_GET
def attention_part(request: HttpRequest) -> HttpResponse:
    viewer, at = viewer_of(request), clock.now()
    return part(request, "dashboard/parts/attention.html", _version(), lambda: _attention(viewer, at))


@page
@require_GET
def teams_part(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    return part(request, "dashboard/parts/teams.html", _version(), lambda: _teams(viewer))


@page
@require_GET
def chart(request: HttpRequest, name: str) -> HttpResponse:
    at = clock.now()
    etag = etag_of(request, name)
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    figure = _power_figure if name == "power" else _use_figure
    return JsonResponse(figure(at, PERIODS[_period(request)])["figure"], headers={"ETag": etag})


def _period(request: HttpRequest) -> str:
    asked = request.GET.get("p", "24h")
    return asked if asked in PERIODS else "24h"


def _version() -> tuple[object, ...]:
    latest = scheduling.last_pass()
    return (events.latest_event_id(), latest.pk if latest else None)


@dataclass(frozen=True)
class Use:
    """Devices of the whole facility by what they do; the parts add up to all."""

    n_all: int
    held: float
    out: int

    @property
    def free(self) -> float:
        return max(0.0, self.n_all - self.out - self.held)

    @property
    def held_share(self) -> float | None:
        return self.held / self.n_all if self.n_all else None

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        return (("green", self.held), ("slate", self.out))


def _figures(viewer: User, at: datetime) -> dict[str, Any]:
    by_type = scheduling.use_now()
    envelope = power.envelope(list(power.limits()))
    reserved_w = board.reserved_power_w()
    draw = power.it_draw_now(at)
    codes = board.waiting_by_code(viewer)
    by_tile: dict[str, float] = defaultdict(float)
    for code, _, devices in codes:
        by_tile[words.reason(code).tile] += float(devices)
    simulated = [one for one in by_type if one.is_simulated]
    latest = scheduling.last_pass()
    return {
        "last_pass": latest,
        "pass_ms": sum(latest.phase_ms.values()) if latest else None,
        "pass_parts": (("green", latest.n_started),) if latest else (),
        "at": at,
        "use": Use(
            sum(one.n_capacity for one in by_type),
            sum(one.claimed for one in by_type),
            sum(one.n_unhealthy for one in by_type),
        ),
        "by_type": by_type,
        "is_all_simulated": bool(simulated) and len(simulated) == len(by_type),
        "is_partly_simulated": bool(simulated),
        "n_simulated": sum(one.n_capacity for one in simulated),
        "reserved_w": reserved_w,
        "envelope": envelope,
        "draw": draw,
        "power_scale_w": max(reserved_w, draw.draw_w if draw else 0, envelope.limit_w if envelope else 0)
        * 1.05,
        "power_parts": (("blue", draw.draw_w), ("mist", reserved_w - draw.draw_w))
        if draw
        else (("mist", reserved_w),),
        "power_marks": (envelope.limit_w,) if envelope else (),
        "waiting": board.waiting(viewer, at),
        "waiting_parts": tuple((tile.colour, by_tile.get(tile.key, 0.0)) for tile in words.TILES),
    }


@dataclass(frozen=True)
class Attention:
    """One thing that somebody should look at: a sentence, a number, a link."""

    title: str
    detail: str
    url: str
    link: str
    icon: str
    tone: str


def _attention(viewer: User, at: datetime) -> dict[str, Any]:
    return {
        "attention": [*_lost_clusters(at), *_sick_nodes(), *_refused_pass(), *_waiting_at_quota(viewer)][:4]
    }


def _lost_clusters(at: datetime) -> list[Attention]:
    found = []
    for cluster in inventory.cluster_rows():
        is_late = cluster.last_contact_at is not None and at - cluster.last_contact_at > timedelta(minutes=2)
        if cluster.is_enabled and (is_late or cluster.last_error):
            title = f"Cluster {cluster.name} does not answer"
            last = formats.moment_text(cluster.last_contact_at, now=at)
            detail = (
                cluster.last_error[:120] or f"Last contact {last}. Its jobs go on; nothing new starts there."
            )
            url = f"{reverse('dashboard:nodes')}?{urlencode({'cluster': cluster.name})}"
            found.append(Attention(title, detail, url, "Nodes", "plug", "bad"))
    return found


def _sick_nodes() -> list[Attention]:
    counts = {row.health: row for row in inventory.count_by_health()}
    out = [counts[health] for health in (Health.FAILED, Health.DRAINED, Health.DRAINING) if health in counts]
    if not out:
        return []
    n_nodes = sum(row.n_nodes for row in out)
    parts = " · ".join(
        f"{formats.count(row.n_nodes)} {words.HEALTH[row.health].label.lower()}" for row in out
    )
    devices = formats.count(sum(row.n_devices for row in out))
    title = f"{formats.count(n_nodes)} {'node' if n_nodes == 1 else 'nodes'} out of service"
    tone = "bad" if Health.FAILED in counts else "warn"
    url = f"{reverse('dashboard:nodes')}?health=out"
    return [Attention(title, f"{parts} · {devices} devices", url, "Nodes", "heartbeat", tone)]


def _refused_pass() -> list[Attention]:
    latest = scheduling.last_pass()
    if latest is None or not latest.is_refused:
        return []
    url = reverse("dashboard:pass", args=[latest.pk])
    detail = "The checker found a broken rule; nothing was started by it."
    return [Attention("The last plan was refused", detail, url, "Open", "alert-triangle", "bad")]


def _waiting_at_quota(viewer: User) -> list[Attention]:
    found = []
    for code, n_jobs, devices in board.waiting_by_code(viewer):
        if code == "quota" and n_jobs:
            title = f"{formats.count(n_jobs)} {'job waits' if n_jobs == 1 else 'jobs wait'} at a quota"
            detail = f"{formats.devices(devices)} devices are asked beyond what their teams may use"
            url = f"{reverse('dashboard:queue')}?reason=quota"
            found.append(Attention(title, detail, url, "Queue", "users-group", "info"))
    return found


@dataclass(frozen=True)
class TeamRow:
    """A team's devices now against what it is entitled to, over all types."""

    name: str
    parent: str
    held: float
    entitled: int | None
    waiting: float
    n_running: int
    n_waiting: int

    @property
    def borrowed(self) -> float:
        return max(0.0, self.held - self.entitled) if self.entitled is not None else 0.0

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        inside = self.held - self.borrowed
        return (("blue", inside), ("orange", self.borrowed))

    @property
    def scale(self) -> float:
        return max(self.held, float(self.entitled or 0)) * 1.2 or 1.0

    @property
    def marks(self) -> tuple[float, ...]:
        return (float(self.entitled),) if self.entitled else ()


def _teams(viewer: User) -> dict[str, Any]:
    loads = board.load_by_team()
    rows = []
    every = list(teams.teams_with_quotas(viewer))
    # What a parent is entitled to is what its sub-teams have: counted with them it would be counted twice.
    parents = {team.parent_id for team in every}
    for team in every:
        load = loads.get(team.pk)
        quotas = [quota.entitlement for quota in team.quotas.all()]
        if load is None and (not quotas or team.pk in parents):
            continue
        rows.append(
            TeamRow(
                name=team.name,
                parent=team.parent.name if team.parent else "",
                held=float(load.held) if load else 0.0,
                entitled=sum(quotas) if quotas else None,
                waiting=float(load.waiting) if load else 0.0,
                n_running=load.n_running if load else 0,
                n_waiting=load.n_waiting if load else 0,
            )
        )
    rows.sort(key=lambda row: (-row.held, -row.waiting, row.name))
    return {"teams": rows[:_MOST_TEAMS]}


def _power_figure(at: datetime, period: timedelta) -> dict[str, Any]:
    """Draw by hall where halls are read, else of the facility; without any reading, only what is reserved now."""
    since = at - period
    by_kind: dict[str, dict[str, list[tuple[datetime, float]]]] = {"hall": {}, "facility": {}}
    sources = set()
    for reading in power.readings_since(since, tuple(by_kind)):
        by_kind[reading.domain.kind].setdefault(reading.domain.name, []).append((reading.at, reading.draw_w))
        sources.add(reading.source)
    draw = by_kind["hall"] or by_kind["facility"]
    thin = {name: charts.thinned(points, _MOST_POINTS) for name, points in sorted(draw.items())}
    reserved_w = board.reserved_power_w()
    if not thin:
        thin = {"Reserved now": [(at - timedelta(minutes=5), reserved_w), (at, reserved_w)]}
    envelope = power.envelope(list(power.limits()))
    is_at_meter = bool(by_kind["facility"]) and not by_kind["hall"]
    limit_w = (envelope.meter_limit_w if is_at_meter else envelope.limit_w) if envelope else None
    now_w = sum(points[-1][1] for points in thin.values())
    sentence = f"Now {formats.power(now_w)}, " + (
        f"limit {formats.power(limit_w)}" if limit_w else "no limit is set"
    )
    return {
        "figure": charts.power_chart(thin, limit_w, since=since, now=at),
        "sentence": sentence,
        "rows": _table(thin, formats.power),
        "names": list(thin),
        "is_modelled": not draw or sources == {"modelled"},
        "has_readings": bool(draw),
    }


def _use_figure(at: datetime, period: timedelta) -> dict[str, Any]:
    since = at - period
    held: dict[str, list[tuple[datetime, float]]] = {}
    capacity: dict[datetime, float] = defaultdict(float)
    for sample in scheduling.samples(since=since, until=at):
        name = sample.accelerator_type.name + (" (simulated)" if sample.is_simulated else "")
        held.setdefault(name, []).append((sample.at, sample.claimed))
        capacity[sample.at] += sample.n_capacity
    thin = {name: charts.thinned(points, _MOST_POINTS) for name, points in sorted(held.items())}
    total = charts.thinned(sorted(capacity.items()), _MOST_POINTS)
    now_held = sum(points[-1][1] for points in thin.values())
    return {
        "figure": charts.utilization_chart(thin, total, since=since, now=at),
        "sentence": f"Now {formats.devices(now_held)} devices in use" if thin else "No samples yet",
        "rows": _table(thin, formats.devices),
        "names": list(thin),
        "has_samples": bool(thin),
    }


def _table(
    series: Mapping[str, Sequence[tuple[datetime, float]]], write: Any, most: int = 24
) -> list[tuple[datetime, list[str]]]:
    """The same numbers as rows, for who reads no charts: the newest first, thinned to fit."""
    by_time: dict[datetime, dict[str, str]] = defaultdict(dict)
    for name, points in series.items():
        for at, value in points:
            by_time[at][name] = write(value)
    times = sorted(by_time, reverse=True)
    times = times[:: max(1, len(times) // most)][:most]
    return [(at, [by_time[at].get(name, formats.UNKNOWN) for name in series]) for at in times]

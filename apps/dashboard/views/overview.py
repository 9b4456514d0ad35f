"""Overview: is the facility doing useful work inside its power limit, and what needs somebody?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from apps.dashboard import charts, halls, words
from apps.dashboard.frame import frame_of
from apps.dashboard.templatetags import formats
from apps.dashboard.views.common import etag_of, page, part, viewer_of
from apps.dashboard.views.utilization import floor_to, groups_of, known_before
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.inventory.models import DomainKind, Health
from apps.power import readings
from apps.power import selectors as power
from apps.power.models import MODELLED, AlarmKind, PowerAlarm, PowerReading
from apps.scheduling import board, power_board
from apps.scheduling import selectors as scheduling
from apps.scheduling.idle import SPAN
from apps.teams import policies

PERIODS: Final = {"6h": timedelta(hours=6), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
_MOST_POINTS: Final = 288
_MOST_TEAMS: Final = 50
_MOST_ATTENTION: Final = 4
_MOST_ALARMS: Final = 50


@page
@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    period = _period(request)
    known = Known(request, PERIODS[period])
    context = {
        **_figures(known),
        **_attention(known),
        **_teams(),
        "period": period,
        "periods": PERIODS,
        "may_operate": policies.may_operate(viewer_of(request)),
        "power_figure": _power_figure(known),
        **_hours(known),
        "measures": halls.MEASURES,
        "measure": _measure(request),
    }
    known.frame.n_waiting = known.waiting[0].n_jobs
    return render(request, "dashboard/pages/overview.html", context)


@page
@require_GET
def figures_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    return part(request, "dashboard/parts/figures.html", known.version, lambda: _figures(known))


@page
@require_GET
def attention_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    return part(request, "dashboard/parts/attention.html", known.version, lambda: _attention(known))


@page
@require_GET
def teams_part(request: HttpRequest) -> HttpResponse:
    return part(request, "dashboard/parts/teams.html", Known(request).version, _teams)


@page
@require_GET
def hours_part(request: HttpRequest) -> HttpResponse:
    known = Known(request, PERIODS[_period(request)])
    return part(request, "dashboard/parts/hours.html", known.version, lambda: _hours(known))


@page
@require_GET
def halls_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    version = (events.latest_event_id(), readings.latest_reading_id())
    return part(request, "dashboard/parts/hall_map.html", version, lambda: _halls(known, request))


@page
@require_GET
def chart(request: HttpRequest) -> HttpResponse:
    etag = etag_of(request, "power")
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    known = Known(request, PERIODS[_period(request)])
    return JsonResponse(_power_figure(known)["figure"], headers={"ETag": etag})


def _period(request: HttpRequest) -> str:
    asked = request.GET.get("p", "24h")
    return asked if asked in PERIODS else "24h"


class Known:
    """What the page and its parts are made of: each fact is read when it is first wanted, and once."""

    def __init__(self, request: HttpRequest, period: timedelta = PERIODS["6h"]) -> None:
        self.frame = frame_of(request)
        self.at = self.frame.now
        self.since = self.at - period

    @property
    def version(self) -> tuple[object, ...]:
        latest = self.frame.last_pass
        return (events.latest_event_id(), latest.pk if latest else None)

    @cached_property
    def there(self) -> scheduling.UseNow:
        return scheduling.use_and_health()

    @property
    def by_type(self) -> tuple[scheduling.TypeUse, ...]:
        return self.there.by_type

    @cached_property
    def envelope(self) -> power.Envelope | None:
        return power.envelope(list(power.limits()), self.at)

    @cached_property
    def reserved_w(self) -> float:
        return board.reserved_power_w()

    @cached_property
    def readings(self) -> list[PowerReading]:
        return list(power.readings_since(self.since, (DomainKind.HALL, DomainKind.FACILITY)))

    @cached_property
    def waiting(self) -> tuple[board.Waiting, tuple[board.Waiting, ...]]:
        return board.waiting(self.at, self.frame.last_pass)


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


def _figures(known: Known) -> dict[str, Any]:
    draw = power.it_draw(known.readings, known.at)
    limit_w = known.envelope.limit_w if known.envelope else 0.0
    whole, by_code = known.waiting
    by_tile: dict[str, float] = defaultdict(float)
    for one in by_code:
        by_tile[words.reason(one.code).tile] += float(one.devices)
    simulated = [one for one in known.by_type if one.is_simulated]
    latest = known.frame.last_pass
    drawn_w = draw.draw_w if draw else 0.0
    return {
        "at": known.at,
        "use": Use(
            sum(one.n_capacity for one in known.by_type),
            sum(one.claimed for one in known.by_type),
            sum(one.n_unhealthy for one in known.by_type),
        ),
        "by_type": known.by_type,
        "is_all_simulated": bool(simulated) and len(simulated) == len(known.by_type),
        "is_partly_simulated": bool(simulated),
        "n_simulated": sum(one.n_capacity for one in simulated),
        "draw": draw,
        "reserved_w": known.reserved_w,
        "envelope": known.envelope,
        "power_scale_w": max(known.reserved_w, drawn_w, limit_w) * 1.05,
        "power_parts": (("blue", drawn_w), ("mist", max(0.0, known.reserved_w - drawn_w))),
        "power_marks": (limit_w,) if limit_w else (),
        "waiting": whole,
        "waiting_parts": tuple((tile.colour, by_tile.get(tile.key, 0.0)) for tile in words.TILES),
        "last_pass": latest,
        "pass_ms": known.frame.pass_ms,
        "pass_parts": (("green", latest.n_started),) if latest else (),
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


def _attention(known: Known) -> dict[str, Any]:
    found = [
        *_power_alarms(),
        *_lost_clusters(known.at),
        *_sick_nodes(known.there.by_health),
        *_refused_pass(known),
        *_waiting_at_quota(known),
    ]
    return {"attention": found[:_MOST_ATTENTION]}


def _power_alarms() -> list[Attention]:
    """What the watchdog has open; one line a kind, so that a hall of silent meters hides nothing else."""
    by_kind: dict[str, list[PowerAlarm]] = defaultdict(list)
    for alarm in power.alarms().filter(cleared_at=None).order_by("raised_at", "id")[:_MOST_ALARMS]:
        by_kind[alarm.kind].append(alarm)
    found = []
    for kind in sorted(by_kind, key=list(words.ALARMS).index):
        rows = by_kind[kind]
        more = f" And {len(rows) - 1} more." if len(rows) > 1 else ""
        tone, icon = words.ALARMS[kind]
        title = str(AlarmKind(kind).label).capitalize()
        found.append(
            Attention(title, rows[0].message + more, reverse("dashboard:nodes"), "Nodes", icon, tone)
        )
    return found


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


def _sick_nodes(counts: Mapping[str, inventory.HealthCount]) -> list[Attention]:
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


def _refused_pass(known: Known) -> list[Attention]:
    latest = known.frame.last_pass
    if latest is None or not latest.is_refused:
        return []
    url = reverse("dashboard:pass", args=[latest.pk])
    detail = "The checker found a broken rule; nothing was started by it."
    return [Attention("The last plan was refused", detail, url, "Open", "alert-triangle", "bad")]


def _waiting_at_quota(known: Known) -> list[Attention]:
    stuck = next((one for one in known.waiting[1] if one.code == "quota"), None)
    if stuck is None:
        return []
    title = f"{formats.count(stuck.n_jobs)} {'job waits' if stuck.n_jobs == 1 else 'jobs wait'} at a quota"
    detail = f"{formats.devices(stuck.devices)} devices are asked beyond what their teams may use"
    url = f"{reverse('dashboard:queue')}?reason=quota"
    return [Attention(title, detail, url, "Queue", "users-group", "info")]


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


def _teams() -> dict[str, Any]:
    """Teams that hold or wait for something, and those that may.

    What a parent is entitled to is what its sub-teams have: it would be counted twice.
    """
    rows = [
        TeamRow(
            one.name,
            one.parent,
            float(one.held),
            one.entitled,
            float(one.waiting),
            one.n_running,
            one.n_waiting,
        )
        for one in board.load_by_team()
        if one.n_running or one.n_waiting or (one.entitled is not None and not one.is_parent)
    ]
    rows.sort(key=lambda row: (-row.held, -row.waiting, row.name))
    return {"teams": rows[:_MOST_TEAMS]}


def _hours(known: Known) -> dict[str, Any]:
    """C2: what became of the device hours of the period."""
    lasts = known.at - known.since
    since = floor_to(known.since, SPAN)
    # As long before: one reading of the ledger, in two steps.
    rows = scheduling.losses(since=since - lasts, until=known.at, step=lasts)
    whole = scheduling.summed([row for row in rows if row.from_at >= since])
    if whole is None or not whole.capacity_device_s:
        return {"groups": ()}
    before = known_before(scheduling.summed([row for row in rows if row.from_at < since]), whole)
    groups = groups_of(whole, before)
    return {
        "groups": groups,
        "group_parts": tuple((row.word.colour, row.device_s) for row in groups),
        "capacity_device_s": whole.capacity_device_s,
    }


def _halls(known: Known, request: HttpRequest) -> dict[str, Any]:
    tree = power_board.power_tree(known.at)
    return {"hall_map": halls.map_of(tree, inventory.use_by_power_domain(), _measure(request))}


def _measure(request: HttpRequest) -> str:
    asked = request.GET.get("map", "kw")
    return asked if asked in halls.MEASURES else "kw"


def _power_figure(known: Known) -> dict[str, Any]:
    """Draw by hall where halls are read, else of the facility; without a reading, only what is reserved now."""
    by_kind: dict[str, dict[str, list[tuple[datetime, float]]]] = {"hall": {}, "facility": {}}
    sources = set()
    metered = {reading.domain_id for reading in known.readings if reading.source != MODELLED}
    for reading in known.readings:
        if reading.source == MODELLED and reading.domain_id in metered:
            continue  # what a meter says is not mixed with what the model says beside it
        by_kind[reading.domain.kind].setdefault(reading.domain.name, []).append((reading.at, reading.draw_w))
        sources.add(reading.source)
    draw = by_kind["hall"] or by_kind["facility"]
    thin = {name: charts.thinned(points, _MOST_POINTS) for name, points in sorted(draw.items())}
    if not thin:
        five_ago = known.at - timedelta(minutes=5)
        thin = {"Reserved now": [(five_ago, known.reserved_w), (known.at, known.reserved_w)]}
    is_at_meter = bool(by_kind["facility"]) and not by_kind["hall"]
    limit_w = None
    if known.envelope is not None:
        limit_w = known.envelope.meter_limit_w if is_at_meter else known.envelope.limit_w
    now_w = sum(points[-1][1] for points in thin.values())
    sentence = f"Now {formats.power(now_w)}, " + (
        f"limit {formats.power(limit_w)}" if limit_w else "no limit is set"
    )
    return {
        "figure": charts.power_chart(thin, limit_w, since=known.since, now=known.at),
        "sentence": sentence,
        "rows": _table(thin, formats.power),
        "names": list(thin),
        "is_modelled": not draw or sources == {"modelled"},
        "has_readings": bool(draw),
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

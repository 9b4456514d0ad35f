"""Utilization: where the device hours went, who holds devices and lets them lie, how long work waited, what fits."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.dashboard import charts, words
from apps.dashboard.frame import frame_of
from apps.dashboard.templatetags import formats
from apps.dashboard.views.common import etag_of, page, part, viewer_of
from apps.inventory import selectors as inventory
from apps.scheduling import board, utilization
from apps.scheduling import policies as scheduling_policies
from apps.scheduling import selectors as scheduling
from apps.scheduling.idle import BUCKETS, SPAN
from apps.scheduling.selectors import Losses
from apps.teams import selectors as teams
from apps.teams.models import Team

# By name: how long, and in what steps it is drawn.
PERIODS: Final[dict[str, tuple[timedelta, timedelta]]] = {
    "24h": (timedelta(hours=24), SPAN),
    "7d": (timedelta(days=7), timedelta(hours=1)),
    "30d": (timedelta(days=30), timedelta(hours=6)),
}
_MOST_IDLE: Final = 50
_MOST_COUNTED: Final = 10_000  # jobs with idle devices that the sums are made of
_MOST_ROWS: Final = 31  # of a table beside a chart
_MOST_TEAMS: Final = 50
_MOSTLY: Final = 0.9
_EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)
_SIZE_LABELS: Final = ("1 device", "2–8", "9–64", "65–512", "over 512")
_WAIT_LABELS: Final = ("< 1 min", "1–5 min", "5–15 min", "15–60 min", "1–4 h", "4–12 h", "12–24 h", "> 1 d")


class FilterForm(forms.Form):
    """What the page is about; a value that is not offered is an error, and shows nothing instead of everything."""

    p = forms.ChoiceField(choices=[(key, key) for key in PERIODS], required=False)
    month = forms.RegexField(r"^20[2-9]\d-(0[1-9]|1[0-2])$", required=False)
    team = forms.CharField(max_length=120, required=False)
    kind = forms.CharField(max_length=120, required=False)


@dataclass(frozen=True)
class BucketRow:
    """One bucket of the ledger in the period."""

    key: str
    label: str
    device_s: float
    share: float


@dataclass(frozen=True)
class GroupRow:
    """One of the eight groups that sum to the capacity."""

    word: words.LossGroup
    device_s: float
    share: float
    change: float | None  # of the share, against the time before; None: that is not known
    buckets: tuple[BucketRow, ...]
    url: str
    link: str


def groups_of(whole: Losses, before: Losses | None) -> list[GroupRow]:
    """The ledger of a period in groups, beside the period before."""
    rows = []
    for group in words.LOSS_GROUPS:
        amounts = {bucket: whole.device_s.get(bucket, 0.0) for bucket in group.buckets}
        device_s = sum(amounts.values())
        share = device_s / whole.capacity_device_s
        change = None
        if before is not None and before.capacity_device_s:
            was = sum(before.device_s.get(bucket, 0.0) for bucket in group.buckets)
            change = share - was / before.capacity_device_s
        parts = tuple(
            BucketRow(bucket, words.BUCKETS[bucket], amount, amount / whole.capacity_device_s)
            for bucket, amount in amounts.items()
            if amount
        )
        url, link = _LEVERS.get(group.key, ("", ""))
        address = f"{reverse(f'dashboard:{url}')}" if url.isalpha() else url
        rows.append(GroupRow(group, device_s, share, change, parts, address, link))
    return rows


# Where somebody can do something about a group: a page by name or address, and what the link says.
_LEVERS: Final[Mapping[str, tuple[str, str]]] = {
    "overhead": ("/queue/?state=running", "jobs that run"),
    "shape": ("moves", "moves that would help"),
    "plan": ("reservations", "what is reserved"),
    "quota": ("/queue/?reason=quota", "who waits at a quota"),
    "power": ("power", "what limits power"),
    "out": ("/nodes/?health=out", "repair list"),
}


class Known:
    """What the page and its parts are made of: each fact is read when it is first wanted, and once."""

    def __init__(self, request: HttpRequest, *, compares: bool = True) -> None:
        """Read what a request asks for.

        Args:
            compares: The time before is wanted too; it is as long again to read.
        """
        self._compares = compares
        self.frame = frame_of(request)
        self.viewer = viewer_of(request)
        self.at = self.frame.now
        self.form = FilterForm(request.GET)
        self.is_valid = self.form.is_valid()
        chosen = self.form.cleaned_data if self.is_valid else {}
        self.month = chosen.get("month", "")
        self.period = chosen.get("p") or "24h"
        self.kind = chosen.get("kind", "") or None
        self.team: Team | None = None
        if chosen.get("team"):
            self.team = teams.team_named(chosen["team"], viewer=self.viewer)
        if self.month:
            self.since, self.until = month_of(self.month)
            self.until = min(self.until, self.at)
            self.step = timedelta(hours=6)
        else:
            lasts, self.step = PERIODS[self.period]
            self.since = floor_to(self.at - lasts, SPAN)
            self.until = self.at

    @property
    def version(self) -> tuple[object, ...]:
        latest = self.frame.last_pass
        return (latest.pk if latest else None,)

    @cached_property
    def loads(self) -> tuple[board.TeamLoad, ...]:
        return board.load_by_team()

    @cached_property
    def _both(self) -> list[Losses]:
        """The period, and the time before it that is as long where that is wanted: one reading of the ledger."""
        return scheduling.losses(
            since=self.since - self._lasts if self._compares else self.since,
            until=self.until,
            type_name=self.kind,
            team=self.team,
            step=self.step,
        )

    @property
    def _lasts(self) -> timedelta:
        """The length of the period, in whole steps."""
        return -(-(self.until - self.since) // self.step) * self.step

    @property
    def steps(self) -> list[Losses]:
        return [row for row in self._both if row.from_at >= self.since]

    @cached_property
    def whole(self) -> Losses | None:
        return scheduling.summed(self.steps)

    @cached_property
    def before(self) -> Losses | None:
        """The time before that is as long; None where the ledger does not know all of it."""
        found = scheduling.summed([row for row in self._both if row.from_at < self.since])
        return known_before(found, self.whole)


def known_before(before: Losses | None, whole: Losses | None) -> Losses | None:
    """The time before; None where the ledger began in the middle of it, and so says nothing about the whole."""
    if before is None or whole is None or before.capacity_device_s < _MOSTLY * whole.capacity_device_s:
        return None
    return before


def month_of(text: str) -> tuple[datetime, datetime]:
    """Begin and end of a month like 2026-11, by the site's clock."""
    year, month = int(text[:4]), int(text[5:])
    zone = timezone.get_current_timezone()
    begin = datetime(year, month, 1, tzinfo=zone)
    return begin, datetime(year + month // 12, month % 12 + 1, 1, tzinfo=zone)


def floor_to(at: datetime, span: timedelta) -> datetime:
    """The last instant at or before that begins a whole span, so that no row of the ledger is cut."""
    return at - (at - _EPOCH) % span


@page
@require_GET
def page_of_utilization(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    if known.is_valid and request.GET.get("format") == "csv":
        return _file(known)
    context: dict[str, Any] = {
        "form": known.form,
        "periods": PERIODS,
        "period": known.period,
        "month": known.month,
        "months": _months(known.at),
        "kinds": inventory.accelerator_type_names(),
        "team_names": [one.name for one in known.loads],
        "team": known.team,
        "kind": known.kind,
        "since": known.since,
        "until": known.until,
        "may_see_moves": scheduling_policies.may_see_advice(known.viewer),
    }
    if known.is_valid:
        context |= {
            **_hours(known),
            **_idle(known),
            **_waits(known),
            **_teams(known),
            "hours_figure": _hours_figure(known),
            "use_figure": _use_figure(known),
            "fits": utilization.largest_fits(known.at),
        }
        known.frame.n_waiting = context["waiting_now"].n_jobs
    return render(request, "dashboard/pages/utilization.html", context)


@page
@require_GET
def idle_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    return part(request, "dashboard/parts/idle_jobs.html", (known.at.minute,), lambda: _idle(known))


@page
@require_GET
def chart(request: HttpRequest, name: str) -> HttpResponse:
    known = Known(request, compares=False)
    etag = etag_of(request, name, *known.version)
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    figure = _hours_figure if name == "hours" else _use_figure
    return JsonResponse(figure(known)["figure"], headers={"ETag": etag})


def _hours(known: Known) -> dict[str, Any]:
    whole = known.whole
    if whole is None or not whole.capacity_device_s:
        return {"groups": [], "whole": None}
    rows = groups_of(whole, known.before)
    lost = [row for row in rows if row.word.is_lost]
    return {
        "whole": whole,
        "groups": rows,
        "group_parts": tuple((row.word.colour, row.device_s) for row in rows),
        "productive": rows[0],
        "lost_s": sum(row.device_s for row in lost),
        "lost_share": sum(row.share for row in lost),
        "lost_parts": tuple((row.word.colour, row.device_s) for row in lost),
        "worst": max(lost, key=lambda row: row.device_s, default=None),
        "guessed_s": whole.guessed_s,
        "has_before": known.before is not None,
    }


def _hours_figure(known: Known) -> dict[str, Any]:
    """C10: devices by group, over time."""
    series = {
        group: [
            (
                row.from_at,
                sum(row.device_s.get(bucket, 0.0) for bucket in group.buckets)
                / (min(row.until, known.until) - row.from_at).total_seconds(),
            )
            for row in known.steps
        ]
        for group in words.LOSS_GROUPS
    }
    whole = known.whole
    sentence = "Nothing is counted yet"
    if whole is not None and whole.capacity_device_s:
        productive = formats.share(whole.device_s.get("productive", 0.0) / whole.capacity_device_s)
        sentence = f"{productive} of {formats.device_hours(whole.capacity_device_s)} device hours productive"
    drawn = {group: points for group, points in series.items() if any(value for _, value in points)}
    return {
        "figure": charts.hours_chart(
            {group.label: (group.colour, points) for group, points in drawn.items()},
            since=known.since,
            until=known.until,
            step=known.step,
        ),
        "sentence": sentence,
        "names": [group.label for group in drawn],
        "rows": _rows_by_time({group.label: points for group, points in drawn.items()}),
    }


def _use_figure(known: Known) -> dict[str, Any]:
    """Devices in use by type, real and simulated apart."""
    steps = utilization.use_by_step(since=known.since, until=known.until, step=known.step)
    held: dict[str, list[tuple[datetime, float]]] = {}
    capacity: dict[datetime, float] = {}
    for row in steps:
        if known.kind in (None, row.type_name):
            name = row.type_name + (" (simulated)" if row.is_simulated else "")
            held.setdefault(name, []).append((row.from_at, row.claimed))
            capacity[row.from_at] = capacity.get(row.from_at, 0.0) + row.n_capacity
    latest = sum(points[-1][1] for points in held.values())
    return {
        "figure": charts.utilization_chart(
            held, sorted(capacity.items()), since=known.since, now=known.until
        ),
        "sentence": f"Lately {formats.devices(round(latest, 1))} devices in use"
        if held
        else "No samples yet",
        "rows": _rows_by_time(held),
        "names": list(held),
    }


def _rows_by_time(series: Mapping[str, Sequence[tuple[datetime, float]]]) -> list[tuple[datetime, list[str]]]:
    """The same numbers as rows, the newest first, where series need not have the same instants."""
    by_time: dict[datetime, dict[str, str]] = {}
    for name, points in series.items():
        for at, value in points:
            by_time.setdefault(at, {})[name] = formats.devices(round(value, 1))
    times = sorted(by_time, reverse=True)
    times = times[:: max(1, -(-len(times) // _MOST_ROWS))]
    return [(at, [by_time[at].get(name, formats.UNKNOWN) for name in series]) for at in times]


def _idle(known: Known) -> dict[str, Any]:
    rows = utilization.held_idle(known.at, team=known.team, most=_MOST_COUNTED)
    by_team: dict[str, list[utilization.HeldIdle]] = {}
    for row in rows:
        by_team.setdefault(row.team, []).append(row)
    return {
        "idle": rows[:_MOST_IDLE],
        "n_idle_jobs": len(rows),
        "idle_teams": sorted(
            (
                (name, sum(row.n_idle for row in mine), sum(row.idle_device_s for row in mine))
                for name, mine in by_team.items()
            ),
            key=lambda one: (-one[1], one[0]),
        ),
        "n_idle": sum(row.n_idle for row in rows),
        "idle_s": sum(row.idle_device_s for row in rows),
        "n_read": utilization.n_devices_read(known.at),
        "idle_after": utilization.IDLE_AFTER,
    }


def _waits(known: Known) -> dict[str, Any]:
    found = utilization.waits(since=known.since, until=known.until, type_name=known.kind, team=known.team)
    now, by_code = board.waiting(known.at, known.frame.last_pass)
    return {
        "waited": found.whole,
        "waited_teams": found.teams,
        "waits_figure": {
            "figure": charts.waits_chart(_WAIT_LABELS, dict(zip(_SIZE_LABELS, found.by_size, strict=True))),
            "names": _WAIT_LABELS,
            "rows": list(zip(_SIZE_LABELS, found.by_size, strict=True)),
        },
        "waiting_now": now,
        "waiting_by_reason": [(words.reason(one.code).title, one) for one in by_code],
    }


@dataclass(frozen=True)
class TeamRow:
    """One team in the period: what its jobs held against what it is entitled to."""

    name: str
    held_s: float
    entitled_s: float | None
    productive_share: float | None

    @property
    def over_s(self) -> float | None:
        return None if self.entitled_s is None else max(0.0, self.held_s - self.entitled_s)


def _teams(known: Known) -> dict[str, Any]:
    """By team; entitlements are those of now, over the whole period."""
    rows = utilization.hours_by_team(since=known.since, until=known.until, type_name=known.kind)
    entitled = {} if known.kind else {one.name: one.entitled for one in known.loads}
    counted_from = known.steps[0].from_at if known.steps else known.since
    lasts_s = (known.until - max(known.since, counted_from)).total_seconds()
    shown = []
    if known.team is not None:
        rows = [row for row in rows if row.team_id == known.team.pk]
    for row in rows[:_MOST_TEAMS]:
        of_now = entitled.get(row.name)
        shown.append(
            TeamRow(row.name, row.held_s, None if of_now is None else of_now * lasts_s, row.productive_share)
        )
    return {"team_rows": shown}


def _months(at: datetime) -> list[str]:
    """The last twelve, this one first."""
    year, month = timezone.localtime(at).year, timezone.localtime(at).month
    return [f"{year - (back + 12 - month) // 12:04}-{(month - 1 - back) % 12 + 1:02}" for back in range(12)]


def _file(known: Known) -> HttpResponse:
    """The ledger of the period by step, in device-seconds; each row sums to its capacity."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["from", "until", "capacity_device_s", *BUCKETS, "guessed_s"])
    for row in known.steps:
        writer.writerow(
            [
                row.from_at.isoformat(),
                min(row.until, known.until).isoformat(),
                row.capacity_device_s,
                *(row.device_s.get(bucket, 0.0) for bucket in BUCKETS),
                row.guessed_s,
            ]
        )
    answer = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    name = known.month or known.period
    answer.headers["Content-Disposition"] = f'attachment; filename="utilization-{name}.csv"'
    return answer

"""Power: is every domain within its limit, how far is that known, and what comes?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.core.errors import NotFound
from apps.dashboard import charts, words
from apps.dashboard.frame import frame_of
from apps.dashboard.templatetags import formats
from apps.dashboard.views.common import etag_of, page, part, viewer_of
from apps.events import selectors as events
from apps.inventory.models import DomainKind
from apps.power import readings
from apps.power import response_selectors as response
from apps.power.models import DemandResponseEvent
from apps.power.response import OVER, Load, Phase
from apps.power.telemetry.facts import How
from apps.scheduling import power_board as board
from apps.scheduling.power_board import Branch, PowerTree
from apps.teams import policies

PERIODS: Final = {"6h": timedelta(hours=6), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
_STEPS_S: Final = {"6h": 120.0, "24h": 600.0, "7d": 3600.0}
AHEAD: Final = timedelta(hours=6)
_MOST_ROWS: Final = 60
_MOST_SERIES: Final = 5
_MOST_EVENTS: Final = 8
_MOST_ATTENTION: Final = 5
_TIGHT: Final = 0.95


@page
@require_GET
def power(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    context = {
        **_figures(known),
        **_rows(known),
        **_events(known),
        **_meters(known),
        "period": known.period,
        "periods": PERIODS,
        "load_figure": _load_figure(known),
    }
    return render(request, "dashboard/pages/power.html", context)


@page
@require_GET
def figures_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    return part(request, "dashboard/parts/power_figures.html", known.version, lambda: _figures(known))


@page
@require_GET
def tree_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    return part(request, "dashboard/parts/power_tree.html", known.version, lambda: _rows(known))


@page
@require_GET
def events_part(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    return part(request, "dashboard/parts/power_events.html", known.version, lambda: _events(known))


@page
@require_GET
def chart(request: HttpRequest) -> HttpResponse:
    known = Known(request)
    etag = etag_of(request, "load", *known.version)
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    return JsonResponse(_load_figure(known)["figure"], headers={"ETag": etag})


class Known:
    """What the page and its parts are made of: each fact is read when it is first wanted, and once."""

    def __init__(self, request: HttpRequest) -> None:
        self.frame = frame_of(request)
        self.at = self.frame.now
        asked = request.GET.get("p", "24h")
        self.period = asked if asked in PERIODS else "24h"
        self.domain_text = request.GET.get("domain", "")
        self.may_operate = policies.may_operate(viewer_of(request))

    @property
    def version(self) -> tuple[object, ...]:
        return (events.latest_event_id(), readings.latest_reading_id())

    @cached_property
    def told(self) -> list[DemandResponseEvent]:
        """Events that are announced, or whose recovery may still count."""
        return list(response.recent_events(self.at))

    @cached_property
    def tree(self) -> PowerTree:
        return board.power_tree(self.at, event_limits_w=response.limits_of(self.told, at=self.at))

    @cached_property
    def coming(self) -> board.Coming:
        return board.coming(self.tree, until=self.at + AHEAD)

    @cached_property
    def root(self) -> Branch | None:
        """The domain that is looked at; None: all."""
        if not self.domain_text:
            return None
        found = None
        if self.domain_text.isascii() and self.domain_text.isdigit() and len(self.domain_text) <= 18:
            found = self.tree.by_id.get(int(self.domain_text))
        if found is None:
            raise NotFound("There is no such power domain.")
        return found


# Figures ----------------------------------------------------------------------------------------------------------


def _figures(known: Known) -> dict[str, Any]:
    tree, coming = known.tree, known.coming
    limit_w, load_w = tree.limit_w, tree.shown_w
    reserved_w = sum(top.reserved_w for top in tree.tops)
    highest = coming.highest
    off_by = tree.off_by
    return {
        "at": known.at,
        "has_domains": bool(tree.branches),
        "load_w": load_w,
        "limit_w": limit_w,
        "over_w": max(0.0, load_w - limit_w) if limit_w is not None else 0.0,
        "room_w": max(0.0, limit_w - load_w) if limit_w is not None else None,
        "reserved_w": reserved_w,
        "known_by": words.known_by(_worst(tree)),
        "load_parts": (("blue", load_w), ("mist", max(0.0, reserved_w - load_w))),
        "load_scale_w": max(load_w, reserved_w, limit_w or 0.0) * 1.05,
        "limit_marks": () if limit_w is None else (limit_w,),
        "meter_w": tree.meter_w,
        "overhead_w": tree.meter_w - load_w,
        "has_overhead": any(top.row.meter.fixed_w or top.row.meter.k != 1 for top in tree.tops),
        "pue": tree.meter_w / load_w if load_w > 0 else None,
        "meter_parts": (("blue", load_w), ("orange", max(0.0, tree.meter_w - load_w))),
        "highest_at": highest[0] if highest else None,
        "highest_w": highest[1] if highest else None,
        "n_starts": coming.n_starts,
        "n_ends": coming.n_ends,
        "highest_parts": (("slate", highest[1] if highest else 0.0),),
        "highest_scale_w": max(highest[1] if highest else 0.0, limit_w or 0.0) * 1.05,
        "n_meters": tree.n_meters,
        "n_silent": tree.n_silent,
        "meters_parts": (("green", tree.n_meters - tree.n_silent), ("verm", tree.n_silent)),
        "newest_at": tree.newest_at,
        "off_by": off_by,
        "off_words": ""
        if off_by is None
        else _off_words(off_by, "agrees with", "says {} more than", "says {} less than"),
        "attention": _attention(tree),
    }


def _off_words(off_by: float, same: str, above: str, below: str) -> str:
    percent = round(100 * off_by)
    words_of = above if percent > 0 else below
    return same if percent == 0 else words_of.format(f"{abs(percent)}{formats.SPACE}%")


def _worst(tree: PowerTree) -> How:
    order = list(How)
    return max((top.bound.how for top in tree.tops), key=order.index, default=How.RESERVED)


@dataclass(frozen=True)
class Attention:
    """One domain that somebody should look at."""

    domain_id: int
    title: str
    detail: str
    icon: str
    tone: str


def _attention(tree: PowerTree) -> list[Attention]:
    """Domains over their limit, with silent or contradicting meters, or nearly at their limit; the worst first."""
    found: list[tuple[int, float, Attention]] = []
    for one in tree.branches:
        rank, title, detail, tone = _trouble(one)
        if rank:
            icon = "alert-triangle" if tone == "bad" else "bolt"
            found.append((rank, -one.load_w, Attention(one.row.id, title, detail, icon, tone)))
    return [attention for _, _, attention in sorted(found, key=lambda row: row[:2])][:_MOST_ATTENTION]


def _trouble(one: Branch) -> tuple[int, str, str, str]:
    """Rank (0: none), title, sentence and tone."""
    name, bound = one.row.name, one.bound
    is_silent = one.words.metered is not None and bound.how is not How.METER
    silent = f"{name}: the meter is silent" if is_silent else f"{name} is not read"
    how = words.known_by(bound.how).sentence
    if bound.over_w and bound.how is not How.RESERVED:
        detail = (
            f"{formats.power(bound.over_w)} too much by what is known ({how}). Nothing is to start there."
        )
        return 1, f"{name} may draw {formats.power(bound.load_w)}, over its limit", detail, "bad"
    if bound.disagree_w:
        detail = f"The meters below add up to {formats.power(bound.disagree_w)} more than its own says."
        return 2, f"{name}: meters contradict each other", detail, "bad"
    if is_silent and bound.how is not How.BELOW:
        age = formats.duration(one.age_s)
        detail = (
            f"Last word {age} ago; at most {formats.power(bound.load_w)}: {how}. Nothing is to start there."
        )
        return 3, silent, detail, "bad" if bound.how is How.UNCAPPED else "warn"
    if bound.n_meters > 1 and bound.is_held and not bound.over_w:
        detail = f"{bound.n_silent} of {bound.n_meters} meters in it say nothing. Nothing is to start there."
        return 4, f"{name} is mostly in the dark", detail, "bad"
    if one.share is not None and one.share >= _TIGHT:
        detail = f"{formats.power(one.shown_w)} of {formats.power(one.limit_w)}, {formats.share(one.share)}."
        return 5, f"{name} is nearly at its limit", detail, "warn"
    return 0, "", "", ""


# The tree ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A domain as the tree shows it."""

    branch: Branch
    depth: int
    n_hidden: int  # domains below it that have no row
    known_by: words.KnownBy
    is_tight: bool
    may_curtail: bool

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        one = self.branch
        colour = "verm" if one.share is not None and one.share > 1 else "orange" if self.is_tight else "blue"
        return ((colour, one.shown_w), ("mist", max(0.0, self.most_w - one.shown_w)))

    @property
    def most_w(self) -> float:
        """The bound where a meter is silent, and what is reserved where none is expected."""
        return max(self.branch.load_w, self.branch.shown_w)

    @property
    def scale_w(self) -> float:
        return max(self.most_w, self.branch.limit_w or 0.0) * 1.02

    @property
    def marks(self) -> tuple[float, ...]:
        return () if self.branch.limit_w is None else (self.branch.limit_w,)

    @property
    def bar_words(self) -> str:
        one = self.branch
        limit = "no limit" if one.limit_w is None else f"limit {formats.power(one.limit_w)}"
        return f"{one.row.name}: {formats.power(one.shown_w)}, {limit}"

    @property
    def off_words(self) -> str:
        """By how much the model is off what the meter says."""
        off_by = self.branch.off_by
        if off_by is None:
            return ""
        percent = round(100 * off_by)
        return (
            "as measured" if percent == 0 else f"{abs(percent)}\u00a0% too {'high' if percent > 0 else 'low'}"
        )


def _rows(known: Known) -> dict[str, Any]:
    tree, root = known.tree, known.root
    inside = tree.branches if root is None else (root, *tree.below(root))
    shown, n_left = _shown(inside)
    ids = {one.position for one in shown}
    top_depth = root.depth if root is not None else 0
    rows = [
        Row(
            branch=one,
            depth=min(one.depth - top_depth, 4),
            n_hidden=0 if any(below.position in ids for below in tree.below(one)[:1]) else one.n_below,
            known_by=words.known_by(one.bound.how),
            is_tight=one.share is not None and one.share >= _TIGHT,
            may_curtail=known.may_operate,
        )
        for one in shown
    ]
    return {
        "at": known.at,
        "rows": rows,
        "n_left": n_left,
        "root": root,
        "crumbs": _above(tree, root),
        "may_operate": known.may_operate,
    }


def _shown(inside: Sequence[Branch]) -> tuple[list[Branch], int]:
    """As many whole levels as there is room for; of a level that is too wide, the tightest.

    Returns:
        The domains in the order of the tree, and how many of the last level were left out.
    """
    if not inside:
        return [], 0
    top = min(one.depth for one in inside)
    by_depth: dict[int, list[Branch]] = defaultdict(list)
    for one in inside:
        by_depth[one.depth].append(one)
    kept: list[Branch] = []
    for depth in sorted(by_depth):
        level = by_depth[depth]
        if len(kept) + len(level) > _MOST_ROWS:
            # Nothing below the top, or below the domain that was asked for, would be no answer.
            if depth > top + 1:
                break
            room = _MOST_ROWS - len(kept)
            level = sorted(level, key=lambda one: (-(one.share or 0.0), one.row.name))[:room]
            kept += level
            left = len(by_depth[depth]) - len(level)
            wanted = {one.position for one in kept}
            return [one for one in inside if one.position in wanted], left
        kept += level
    wanted = {one.position for one in kept}
    return [one for one in inside if one.position in wanted], 0


def _above(tree: PowerTree, root: Branch | None) -> list[Branch]:
    """The domains above the one that is looked at, from the top."""
    at_position = {one.position: one for one in tree.branches}
    found: list[Branch] = []
    above = at_position.get(root.parent) if root is not None else None
    while above is not None:
        found.append(above)
        above = at_position.get(above.parent)
    return found[::-1]


# Events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventRow:
    """A demand-response event that is announced, binds, or recovers."""

    event: DemandResponseEvent
    phase: Phase
    word: words.Word
    asks: str


def _events(known: Known) -> dict[str, Any]:
    # What was drawn is only asked for where it decides whether an event is over.
    recovering = [one for one in known.told if one.end_at <= known.at or one.cancelled_at or one.opted_out_at]
    loads = response.loads_of(recovering, at=known.at) if recovering else {}
    rows = []
    for event in known.told:
        phase = response.phase_of_event(event, load=loads.get(event.pk, Load()), at=known.at)
        if phase not in OVER:
            rows.append(EventRow(event, phase, words.PHASES[phase], _asks(event)))
    rows.sort(key=lambda row: (row.event.start_at, row.event.pk))
    return {"at": known.at, "told": rows[:_MOST_EVENTS], "n_more_told": len(rows[_MOST_EVENTS:])}


def _asks(event: DemandResponseEvent) -> str:
    if event.target_kind == "level":
        return f"level {event.value:.0f}"
    watts = formats.power(event.value)
    return f"{watts} less" if event.target_kind == "shed_by" else f"at most {watts}"


def _meters(known: Known) -> dict[str, Any]:
    return {"sources": known.tree.meters, "measured": board.measured_jobs(known.at)}


# The chart --------------------------------------------------------------------------------------------------------


def _load_figure(known: Known) -> dict[str, Any]:
    tree, since, until = known.tree, known.at - PERIODS[known.period], known.at + AHEAD
    kinds = [DomainKind.HALL, DomainKind.FACILITY]
    chosen = next((some for kind in kinds if (some := [b for b in tree.branches if b.row.kind == kind])), [])
    step_s = _STEPS_S[known.period]
    history = readings.load_history(
        [one.row.id for one in chosen], since=since, until=known.at, step_s=step_s
    )
    drawn = {
        one.row.name: [(at, one.row.meter.it_w(w)) for at, w, _ in history[one.row.id]] for one in chosen
    }
    drawn = {name: points for name, points in drawn.items() if points}
    is_metered = any(metered for points in history.values() for _, _, metered in points)
    if len(drawn) > _MOST_SERIES:
        drawn = _with_others(drawn)
    first = min((points[0][0] for points in drawn.values()), default=known.at)
    since = max(since, min(first, known.at - timedelta(minutes=30)))
    coming = known.coming.points
    sentence = f"Now {formats.power(tree.shown_w)}, " + (
        f"limit {formats.power(tree.limit_w)}" if tree.limit_w is not None else "no limit is set"
    )
    bands = [
        (one.start_at, one.end_at, str(one.pk))
        for one in known.told
        if not (one.cancelled_at or one.opted_out_at)
    ]
    return {
        "figure": charts.load_chart(
            drawn,
            forecast=coming,
            limit_w=tree.limit_w,
            bands=bands,
            since=since,
            now=known.at,
            until=until,
        ),
        "sentence": sentence,
        "rows": _table(drawn, coming),
        "names": [*drawn, "Expected"],
        "is_modelled": not is_metered,
    }


def _with_others(
    drawn: Mapping[str, Sequence[tuple[datetime, float]]],
) -> dict[str, list[tuple[datetime, float]]]:
    """The largest series, and the rest as one."""
    order = sorted(drawn, key=lambda name: -max(watts for _, watts in drawn[name]))
    rest: dict[datetime, float] = defaultdict(float)
    for name in order[_MOST_SERIES:]:
        for at, watts in drawn[name]:
            rest[at] += watts
    kept = {name: list(points) for name, points in drawn.items() if name in order[:_MOST_SERIES]}
    return {**kept, "Others": sorted(rest.items())}


def _table(
    drawn: Mapping[str, Sequence[tuple[datetime, float]]], coming: Sequence[tuple[datetime, float]]
) -> list[tuple[datetime, list[str]]]:
    """The chart as rows: what is expected on top, then the past, the newest first, thinned to fit."""
    by_time: dict[datetime, dict[str, str]] = defaultdict(dict)
    for name, points in drawn.items():
        for at, watts in points:
            by_time[at][name] = formats.power(watts)
    times = sorted(by_time, reverse=True)
    times = times[:: max(1, len(times) // 24)][:24]
    rows = [
        (at, [by_time[at].get(name, formats.UNKNOWN) for name in drawn] + [formats.UNKNOWN]) for at in times
    ]
    ahead = charts.thinned(coming, 12)
    return [(at, [formats.UNKNOWN] * len(drawn) + [formats.power(w)]) for at, w in reversed(ahead)] + rows

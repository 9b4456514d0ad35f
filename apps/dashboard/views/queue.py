"""Queue: when does mine start, and why not now?"""

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl

from django import forms
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.dashboard import saved_views, words
from apps.dashboard.asks import Asks, asks_of
from apps.dashboard.frame import frame_of
from apps.dashboard.paging import Slice, slice_of
from apps.dashboard.views.common import PAGE_SIZE, act, page, part, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.jobs import selectors as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.scheduling import board
from apps.scheduling import selectors as scheduling
from apps.scheduling.models import Reason
from apps.teams import selectors as teams
from apps.teams.models import Team, User

_MOST_IN_A_FILE: Final = 100_000

TABS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "queued": ("Queued", (State.QUEUED,)),
    "running": ("Running", (State.STARTING, State.RUNNING, State.PREEMPTING, State.NODE_LOST)),
    "paused": ("Paused", (State.PAUSING, State.PAUSED)),
    "held": ("Held", (State.QUEUED,)),
    "finished": ("Finished", (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMED_OUT)),
}
_ORDERS: Final = {
    "queued": ("rank_or_last", "id"),
    "running": ("-state_at", "-id"),
    "paused": ("-state_at", "-id"),
    "held": ("-state_at", "-id"),
    "finished": ("-state_at", "-id"),
}
_SIZES: Final = {
    "1": ("up to 1", None, 1),
    "8": ("2–8", 2, 8),
    "64": ("9–64", 9, 64),
    "512": ("65–512", 65, 512),
    "more": ("over 512", 513, None),
}
_PRIORITIES: Final = ((1, "1 or higher"), (10, "10 or higher"), (50, "50 or higher"), (100, "100 or higher"))


class FilterForm(forms.Form):
    """The filters in the query string; a value that is not offered is an error beside the list."""

    state = forms.ChoiceField(choices=[(key, label) for key, (label, _) in TABS.items()], required=False)
    q = forms.CharField(max_length=120, required=False)
    team = forms.CharField(max_length=120, required=False)
    kind = forms.CharField(max_length=120, required=False)
    size = forms.ChoiceField(
        choices=[("", "Any size"), *((key, word[0]) for key, word in _SIZES.items())], required=False
    )
    priority = forms.IntegerField(required=False)
    reason = forms.ChoiceField(
        choices=[("", ""), *((tile.key, tile.label) for tile in words.TILES)], required=False
    )
    mine = forms.BooleanField(required=False)


@dataclass(frozen=True)
class Row:
    """A job and what its row says about it."""

    job: Job
    asks: Asks
    reason: Reason | None
    expected: object
    shows_private: bool
    ahead: jobs.Ahead | None = None

    @property
    def reason_code(self) -> str:
        return self.reason.code if self.reason else "new"


@page
@require_GET
def queue(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    form = FilterForm(request.GET)
    if form.is_valid() and request.GET.get("format") == "csv":
        return _file(viewer, form)
    context = {**_head(request, viewer, form), "form": form, **_rows(request, viewer, form)}
    frame_of(request).n_waiting = context["waiting"].n_jobs
    known_teams = list(teams.teams_visible_to(viewer).order_by("name")[:500])
    context["team_names"] = [team.name for team in known_teams]
    context["kinds"] = inventory.accelerator_type_names()
    context["sizes"] = [(key, word[0]) for key, word in _SIZES.items()]
    context["priorities"] = _PRIORITIES
    context |= _saved(request, viewer, known_teams)
    return render(request, "dashboard/pages/queue.html", context)


def _saved(request: HttpRequest, viewer: User, known_teams: list[Team]) -> dict[str, Any]:
    """The views that the viewer may choose, and the one that is shown."""
    query = saved_views.normal(request.GET.urlencode())
    mine = viewer.team_ids()
    views = list(saved_views.visible_to(viewer, mine))
    return {
        "views": views,
        "shown_view": saved_views.shown(views, query),
        "view_query": query,
        "my_teams": [team for team in known_teams if team.pk in mine],
    }


@page
@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    """Keep the filters that are shown under a name, and come back to them."""
    viewer = viewer_of(request)
    query = saved_views.normal(request.POST.get("query", ""))
    name, of = request.POST.get("name", "").strip()[:200], request.POST.get("team", "")

    def keep() -> None:
        team = teams.team_named(of, viewer=viewer) if of else None
        saved_views.save(name=name, query=checked_query(query), team=team, actor=viewer, at=clock.now())

    return act(request, f"{reverse('dashboard:queue')}?{query}", f"The view {name} is kept.", keep)


@page
@require_POST
def delete_view(request: HttpRequest, view_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    back = f"{reverse('dashboard:queue')}?{saved_views.normal(request.POST.get('query', ''))}"
    return act(
        request,
        back,
        "The view was deleted.",
        lambda: saved_views.delete(view_id=view_id, actor=viewer, at=clock.now()),
    )


@page
@require_GET
def head_part(request: HttpRequest) -> HttpResponse:
    viewer, form = viewer_of(request), FilterForm(request.GET)
    return part(
        request, "dashboard/parts/queue_head.html", _version(request), lambda: _head(request, viewer, form)
    )


@page
@require_GET
def rows_part(request: HttpRequest) -> HttpResponse:
    viewer, form = viewer_of(request), FilterForm(request.GET)
    return part(
        request, "dashboard/parts/queue_rows.html", _version(request), lambda: _rows(request, viewer, form)
    )


def _version(request: HttpRequest) -> tuple[object, ...]:
    latest = frame_of(request).last_pass
    return (events.latest_event_id(), latest.pk if latest else None)


def _tab(form: FilterForm) -> str:
    return (form.cleaned_data.get("state") if form.is_valid() else "") or "queued"


def _head(request: HttpRequest, viewer: User, form: FilterForm) -> dict[str, Any]:
    at = clock.now()
    counts, (whole, by_code) = board.open_counts(viewer), board.waiting(at, frame_of(request).last_pass)
    tab = _tab(form)
    tiles = []
    if tab == "queued":
        by_tile: dict[str, list[float]] = defaultdict(lambda: [0, 0])
        for one in by_code:
            by_tile[words.reason(one.code).tile][0] += one.n_jobs
            by_tile[words.reason(one.code).tile][1] += float(one.devices)
        tiles = [(tile, *by_tile[tile.key]) for tile in words.TILES]
    return {
        "tab": tab,
        "tabs": [(key, label, getattr(counts, key, None)) for key, (label, _) in TABS.items()],
        "tiles": tiles,
        "chosen_tile": form.cleaned_data.get("reason", "") if form.is_valid() else "",
        "waiting": whole,
        "n_soon": board.n_expected_before(viewer, at + timedelta(hours=1)) if tab == "queued" else 0,
    }


def _filters(viewer: User, form: FilterForm) -> board.QueueFilters:
    chosen = form.cleaned_data
    tab = _tab(form)
    _, low, high = _SIZES.get(chosen["size"], ("", None, None))
    return board.QueueFilters(
        base=jobs.Filters(states=TABS[tab][1], team=chosen["team"]),
        text=chosen["q"].strip(),
        reasons=_codes(chosen["reason"]) if tab == "queued" else (),
        accelerator_type=chosen["kind"],
        min_devices=low,
        max_devices=high,
        min_priority=chosen["priority"],
        is_held={"queued": False, "held": True}.get(tab),
        user_id=viewer.pk if chosen["mine"] else None,
    )


def _codes(tile: str) -> tuple[str, ...]:
    if not tile:
        return ()
    return (*words.codes_of_tile(tile), *(("new",) if tile == words.UNKNOWN_REASON.tile else ()))


def _rows(request: HttpRequest, viewer: User, form: FilterForm) -> dict[str, Any]:
    tab = _tab(form)
    if not form.is_valid():
        return {
            "tab": tab,
            "rows": [],
            "errors": form.errors,
            "is_filtered": True,
            "found": Slice[Job]([], "", True),
        }
    found = slice_of(
        board.queue(viewer, _filters(viewer, form)),
        order=_ORDERS[tab],
        after=request.GET.get("after", ""),
        size=PAGE_SIZE,
        is_wide=True,
    )
    is_seen, ahead = jobs.private_part_seen_by(viewer), jobs.ahead_of(found.rows)
    narrowing = ("q", "team", "kind", "size", "priority", "reason", "mine")
    return {
        "tab": tab,
        "found": found,
        "rows": [_row(job, is_seen(job), ahead.get(job.pk)) for job in found.rows],
        "is_filtered": any(form.cleaned_data.get(name) for name in narrowing),
        "use": scheduling.use_now() if not found.rows else (),
        "now": clock.now(),
    }


def _row(job: Job, shows_private: bool = False, ahead: jobs.Ahead | None = None) -> Row:
    reason: Reason | None = getattr(job, "reason", None)
    return Row(job, asks_of(job), reason, reason.expected_start_at if reason else None, shows_private, ahead)


def _file(viewer: User, form: FilterForm) -> HttpResponse:
    """The filtered list as CSV, sent while it is read."""
    rows = board.queue(viewer, _filters(viewer, form)).order_by(*_ORDERS[_tab(form)])[:_MOST_IN_A_FILE]
    writer = csv.writer(_Echo())
    head = [
        "id",
        "name",
        "team",
        "user",
        "state",
        "devices",
        "priority",
        "submitted_at",
        "reason",
        "expected_start_at",
    ]

    def lines() -> Iterator[str]:
        yield writer.writerow(head)
        for job in rows.iterator(chunk_size=2000):
            row = _row(job)
            yield writer.writerow(
                [
                    job.pk,
                    _harmless(job.name),
                    _harmless(job.team.name),
                    _harmless(job.user.username),
                    job.state,
                    job.n_devices.normalize(),
                    job.priority,
                    job.submitted_at.isoformat(),
                    _harmless(row.reason.sentence if row.reason and job.state == State.QUEUED else ""),
                    row.reason.expected_start_at.isoformat()
                    if row.reason and row.reason.expected_start_at
                    else "",
                ]
            )

    answer = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="queue-{_tab(form)}.csv"'
    return answer  # type: ignore[return-value]  # a streaming answer is an answer; Django's types part them


class _Echo:
    """A file for csv.writer that hands each line straight back."""

    def write(self, line: str) -> str:
        return line


def _harmless(text: str) -> str:
    """Quote what a spreadsheet would take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def checked_query(text: str) -> str:
    """The filters as they are kept; raises InvalidInput for one that the page would refuse."""
    query = saved_views.normal(text)
    form = FilterForm(dict(parse_qsl(query)))
    if not form.is_valid():
        name, faults = next(iter(form.errors.items()))
        raise InvalidInput.of("query", f"{name}: {' '.join(str(one) for one in faults)}")
    return query

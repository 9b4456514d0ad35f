"""What a person was told, and how they want to be told."""

from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.dashboard import words
from apps.dashboard.frame import frame_of
from apps.dashboard.paging import slice_of
from apps.dashboard.views.common import PAGE_SIZE, act, page, part, viewer_of
from apps.notices import mail, selectors, services
from apps.notices.kinds import CHOSEN, PACES, Kind, Way
from apps.notices.models import Notice
from apps.notices.services import Choice, Choices
from apps.teams.models import User

# Of each kind, how it is marked in lists.
_MARKS: Final[dict[str, words.Word]] = {
    Kind.JOB_STARTED: words.Word("Started", "player-play", "ok"),
    Kind.JOB_FAILED: words.Word("Interrupted", "x", "bad"),
    Kind.JOB_CURTAILED: words.Word("Grid event", "trending-down", "warn"),
    Kind.FORECAST_MOVED: words.Word("Expected start", "clock", "info"),
    Kind.TEAM_QUOTA: words.Word("Quota", "users-group", "info"),
    Kind.RESERVATION_AT_RISK: words.Word("Reservation", "calendar-event", "bad"),
    Kind.EVENT_ANNOUNCED: words.Word("Grid event", "bolt", "info"),
    Kind.CHANNEL_OFF: words.Word("Not delivered", "alert-triangle", "bad"),
}


def marked(notices: list[Notice]) -> list[tuple[Notice, words.Word]]:
    """Notices, each with its mark."""
    return [(one, _MARKS[one.kind]) for one in notices]


@page
@require_GET
def notices(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    rows = selectors.notices_of(viewer)
    is_unread = request.GET.get("show") == "unread"
    if is_unread:
        rows = rows.filter(read_at=None)
    found = slice_of(rows, order=("-at", "-id"), after=request.GET.get("after", ""), size=PAGE_SIZE)
    context = {"found": found, "rows": marked(found.rows), "is_unread": is_unread}
    return render(request, "dashboard/pages/notices.html", context)


@page
@require_GET
def bell_part(request: HttpRequest) -> HttpResponse:
    """The bell in the frame, with how many are unread."""
    frame = frame_of(request)
    return part(request, "dashboard/parts/bell.html", (frame.n_unread,), lambda: {"frame": frame})


@page
@require_POST
def read(request: HttpRequest) -> HttpResponse:
    """One notice, or all: seen. A notice that is opened by its button leads on to its page."""
    viewer, asked = viewer_of(request), request.POST.get("id", "")
    back = reverse("dashboard:notices")
    if not asked:
        services.mark_read(actor=viewer, at=clock.now())
        return HttpResponseRedirect(back)
    notice_id = int(asked) if asked.isascii() and asked.isdigit() and len(asked) <= 18 else 0
    services.mark_read(actor=viewer, at=clock.now(), notice_ids=[notice_id])
    notice = selectors.notices_of(viewer).filter(pk=notice_id).first()
    return HttpResponseRedirect(back if notice is None else notice.path)


@page
def settings(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if request.method != "POST":
        return render(request, "dashboard/pages/notice_settings.html", _context(viewer, _stored(viewer)))
    choices = _asked(request)
    try:
        services.choose(actor=viewer, choices=choices, at=clock.now())
    except InvalidInput as refusal:
        faults = {error["path"]: error["message"] for error in refusal.errors}
        context = {**_context(viewer, choices), "faults": faults}
        return render(request, "dashboard/pages/notice_settings.html", context, status=400)
    return act(request, reverse("dashboard:notice-settings"), "Your choices are kept.", lambda: None)


@page
@require_POST
def test(request: HttpRequest) -> HttpResponse:
    viewer, way = viewer_of(request), request.POST.get("way", "")[:20]
    return act(
        request,
        reverse("dashboard:notice-settings"),
        "A test was sent. Look whether it has arrived.",
        lambda: services.send_test(actor=viewer, way=way, at=clock.now()),
    )


def _stored(viewer: User) -> Choices:
    channels = selectors.channels_of(viewer)
    ways = {way: Choice(kinds=frozenset(one.kinds), pace_s=one.pace_s) for way, one in channels.items()}
    return Choices(shown=selectors.shown_kinds(viewer), ways=ways)


def _asked(request: HttpRequest) -> Choices:
    told = request.POST
    return Choices(
        shown=frozenset(told.getlist("shown")),
        ways={
            way.value: Choice(
                kinds=frozenset(told.getlist(way.value)), pace_s=_pace(told.get(f"pace_{way.value}", ""))
            )
            for way in Way
        },
        webhook_url=told.get("webhook_url", "").strip(),
        forgets_webhook="forget" in told,
    )


def _pace(text: str) -> int:
    """Seconds; -1, which is refused, for what is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else -1


def _context(viewer: User, choices: Choices) -> dict[str, Any]:
    kinds_of = {way.value: choices.ways.get(way.value, Choice()).kinds for way in Way}
    return {
        "kinds": [
            (
                kind,
                kind.value in choices.shown,
                [(way, kind.value in kinds_of[way.value]) for way in Way],
            )
            for kind in CHOSEN
        ],
        "paces": PACES,
        "pace_of": {way.value: choices.ways.get(way.value, Choice()).pace_s for way in Way},
        "channels": selectors.channels_of(viewer),
        "can_mail": mail.can_send(),
        "faults": {},
    }

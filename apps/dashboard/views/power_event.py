"""One demand-response event: where it stands, target against load, what is done to which job, and calling it off."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.dashboard import charts, words
from apps.dashboard.frame import frame_of
from apps.dashboard.plans import Shown
from apps.dashboard.templatetags import formats
from apps.dashboard.views.common import act, etag_of, page, part, viewer_of
from apps.events import selectors as log
from apps.power import response_selectors, response_services
from apps.power import selectors as power
from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import HARD
from apps.power.models import (
    ActionState,
    CurtailmentAction,
    CurtailmentPlan,
    DemandResponseEvent,
    PlanState,
    PowerController,
    PowerReading,
)
from apps.power.response import OVER, Phase
from apps.scheduling.response import selectors, services
from apps.teams import policies

_MOST_ACTIONS: Final = 50
_MOST_POINTS: Final = 360
_AROUND: Final = timedelta(minutes=30)
_AVERAGE: Final = timedelta(minutes=5)

PHASES: Final[dict[str, words.Word]] = {
    Phase.SCHEDULED: words.Word("Scheduled", "clock"),
    Phase.NOTIFIED: words.Word("Notified", "bell", "info"),
    Phase.RAMPING: words.Word("Ramping", "trending-down", "warn"),
    Phase.ACTIVE: words.Word("Active", "bolt", "warn"),
    Phase.RECOVERING: words.Word("Recovering", "refresh", "info"),
    Phase.COMPLETED: words.Word("Completed", "circle-check", "ok"),
    Phase.CANCELLED: words.Word("Cancelled", "ban"),
}
_ACTIONS: Final[dict[str, words.Word]] = {
    ActionState.REQUESTED: words.Word("Requested", "clock"),
    ActionState.ACKED: words.Word("Acknowledged", "check", "info"),
    ActionState.VERIFIED: words.Word("Verified", "circle-check", "ok"),
    ActionState.FAILED: words.Word("Failed", "alert-triangle", "bad"),
    ActionState.REVERTED: words.Word("Given back", "arrow-back-up"),
}


@page
@require_GET
def event_page(request: HttpRequest, event_id: int) -> HttpResponse:
    event = response_selectors.event_by_id(event_id)
    viewer, at = viewer_of(request), clock.now()
    context = {
        **_body(event, at),
        **_chart(event, at),
        "may_operate": policies.may_operate(viewer),
        "controller": PowerController.objects.select_related("stopped_by").filter(pk=1).first(),
    }
    return render(request, "dashboard/pages/power_event.html", context)


@page
@require_GET
def body_part(request: HttpRequest, event_id: int) -> HttpResponse:
    """The figures, which change while somebody looks."""
    return _part(request, event_id, "dashboard/parts/power_event.html")


@page
@require_GET
def acts_part(request: HttpRequest, event_id: int) -> HttpResponse:
    """What is done, job by job, and the plans."""
    return _part(request, event_id, "dashboard/parts/power_event_acts.html")


def _part(request: HttpRequest, event_id: int, template: str) -> HttpResponse:
    event = response_selectors.event_by_id(event_id)
    at = clock.now()
    latest = power.latest_readings([event.domain_id]).get(event.domain_id)
    version = (event.version, log.latest_event_id(), None if latest is None else latest.pk)
    return part(request, template, version, lambda: _body(event, at))


@page
@require_GET
def chart(request: HttpRequest, event_id: int) -> HttpResponse:
    event = response_selectors.event_by_id(event_id)
    etag = etag_of(request, event.version)
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    return JsonResponse(_chart(event, clock.now())["figure"], headers={"ETag": etag})


@page
@require_GET
def ribbon_part(request: HttpRequest) -> HttpResponse:
    """The line on top of every page while an event is announced, in force or being released."""
    return part(request, "dashboard/parts/ribbon.html", (), lambda: {"frame": frame_of(request)})


# Acts ------------------------------------------------------------------------------------------------------------


@page
@require_POST
def cancel(request: HttpRequest, event_id: int) -> HttpResponse:
    viewer, reason = viewer_of(request), _reason(request)
    policies.require_may_operate(viewer)
    return act(
        request,
        reverse("dashboard:power-event", args=[event_id]),
        "The event is cancelled. What it held down is given back under the ramp limit.",
        lambda: response_services.cancel_event(
            event_id=event_id, actor=viewer, at=clock.now(), reason=reason
        ),
    )


@page
@require_POST
def opt_out(request: HttpRequest, event_id: int) -> HttpResponse:
    viewer, reason = viewer_of(request), _reason(request)
    policies.require_may_operate(viewer)
    return act(
        request,
        reverse("dashboard:power-event", args=[event_id]),
        "The site takes no part in the event any more.",
        lambda: response_services.opt_out(event_id=event_id, actor=viewer, at=clock.now(), reason=reason),
    )


@page
@require_POST
def automation(request: HttpRequest) -> HttpResponse:
    """The switch of power control: `stop` keeps everything as it is, `start` lets it act again."""
    viewer, reason = viewer_of(request), _reason(request)
    policies.require_may_operate(viewer)
    is_stop = request.POST.get("to") == "stop"
    service = services.stop_automation if is_stop else services.start_automation
    back = request.POST.get("back", "")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts=None) or not back.startswith("/"):
        back = reverse("dashboard:power")
    done = "Power control keeps everything as it is." if is_stop else "Power control acts again."
    return act(request, back, done, lambda: service(actor=viewer, reason=reason, at=clock.now()))


def _reason(request: HttpRequest) -> str:
    return request.POST.get("reason", "").strip()[:500].replace("\x00", "")


# What is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActionRow:
    """One action, its job, and how far it has come."""

    action: CurtailmentAction
    job: Any
    word: words.Word

    @property
    def is_pause(self) -> bool:
        return self.action.lever in HARD

    @property
    def is_shrink(self) -> bool:
        return self.action.lever == Lever.SHRINK.value

    @property
    def what(self) -> str:
        if self.is_pause:
            return "stopped" if self.action.lever == "stop" else "save, then pause"
        if self.is_shrink:
            return words.on_fewer(self.action.after["n_replicas"])
        share = formats.share(self.action.after.get("share"))
        return f"cap {share}" + (" until others are in force" if self.action.after.get("is_bridge") else "")


@dataclass(frozen=True)
class PlanRow:
    plan: CurtailmentPlan
    word: words.Word


_PLANS: Final[dict[str, words.Word]] = {
    PlanState.DRAFT: words.Word("Draft", "copy"),
    PlanState.PREVIEWED: words.Word("Previewed", "search"),
    PlanState.COMMITTED: words.Word("Committed", "shield", "ok"),
    PlanState.SUPERSEDED: words.Word("Superseded", "history"),
}


def _body(event: DemandResponseEvent, at: datetime) -> dict[str, Any]:
    standing = selectors.standing_of(event, at=at)
    plans = list(
        event.plans.select_related("created_by", "approved_by", "committed_by").order_by("-number")[:20]
    )
    actions = selectors.actions_of(event, most=_MOST_ACTIONS)
    counts = selectors.action_counts(event)
    jobs = selectors.names_of({action.job_id for action in actions})
    rows = [ActionRow(action, jobs.get(action.job_id), _ACTIONS[action.state]) for action in actions]
    committed = next((one for one in plans if one.state == PlanState.COMMITTED), None)
    open_states = (ActionState.REQUESTED, ActionState.ACKED, ActionState.VERIFIED)
    is_over = standing.phase in OVER
    return {
        "event": event,
        "standing": standing,
        "at": at,
        "phase": PHASES[standing.phase],
        "is_over": is_over,
        "is_binding": standing.phase is Phase.ACTIVE,
        "is_open": not is_over and standing.phase is not Phase.RECOVERING and at < event.end_at,
        "is_live": not is_over,
        "plans": [PlanRow(one, _PLANS[one.state]) for one in plans],
        "committed": committed,
        "shown": None if committed is None else Shown.of_plan(committed, event),
        "rows": rows,
        "n_actions": sum(counts.values()),
        "n_slowed": sum(n for (lever, state), n in counts.items() if lever == "cap" and state in open_states),
        "n_shrunk": sum(
            n for (lever, state), n in counts.items() if lever == Lever.SHRINK and state in open_states
        ),
        "n_paused": sum(n for (lever, state), n in counts.items() if lever in HARD and state in open_states),
        "n_failed": sum(n for (_, state), n in counts.items() if state == ActionState.FAILED),
        "n_verified": sum(n for (_, state), n in counts.items() if state == ActionState.VERIFIED),
        "lowest_w": _lowest_w(event, at),
    }


def _readings(event: DemandResponseEvent, at: datetime) -> list[PowerReading]:
    begin_at, until_at = _window(event)
    rows = power.readings_of(event.domain, begin_at=begin_at, end_at=min(at, until_at))
    return list(rows.order_by("at", "id"))


def _window(event: DemandResponseEvent) -> tuple[datetime, datetime]:
    begin_at = min(event.ramp_start_at, event.start_at) - _AROUND
    return begin_at, event.end_at + min(timedelta(seconds=event.recovery_s), _AROUND)


def _lowest_w(event: DemandResponseEvent, at: datetime) -> float | None:
    """The lowest mean of what was delivered over five minutes of the event; None: there are none yet."""
    until_at = min(at, event.end_at)
    if event.reference_w is None or until_at <= event.start_at:
        return None
    sums: dict[int, list[float]] = {}
    for row in power.readings_of(event.domain, begin_at=event.start_at, end_at=until_at):
        sums.setdefault(int((row.at - event.start_at) / _AVERAGE), []).append(row.draw_w)
    n_whole = int((until_at - event.start_at) / _AVERAGE)
    means = [sum(told) / len(told) for place, told in sums.items() if place < n_whole]
    return None if not means else max(0.0, event.reference_w - max(means))


def _per_minute(rows: Sequence[PowerReading]) -> list[tuple[datetime, float]]:
    """Means by minute."""
    told: dict[datetime, list[float]] = {}
    for row in rows:
        told.setdefault(row.at.replace(second=0, microsecond=0), []).append(row.draw_w)
    return [(minute, sum(watts) / len(watts)) for minute, watts in sorted(told.items())]


def _chart(event: DemandResponseEvent, at: datetime) -> dict[str, Any]:
    rows = _readings(event, at)
    load = charts.thinned(_per_minute(rows), _MOST_POINTS)
    limit_w = selectors.limit_w_of(event, response_selectors.meter_of(event.domain))
    begin_at, until_at = _window(event)
    figure = charts.event_chart(
        load,
        limit_w=limit_w,
        reference_w=event.reference_w,
        begin_at=begin_at,
        start_at=event.start_at,
        end_at=event.end_at,
        until_at=until_at,
        now=at,
    )
    now_w = f"Last {formats.power(load[-1][1])}" if load else "No reading yet"
    limit = f"limit {formats.power(limit_w)}" if limit_w is not None else "the limit is not known yet"
    return {
        "figure": figure,
        "sentence": f"{now_w}, {limit}",
        "table": list(reversed(load))[:: max(1, len(load) // 30)][:30],
        "limit_w": limit_w,
        "is_modelled": bool(rows) and all(row.source == "modelled" for row in rows),
    }

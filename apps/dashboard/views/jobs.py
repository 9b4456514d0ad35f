"""One job: why it waits or where it runs, what it prints, what happened to it, and what may be done about it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import OutsideError
from apps.dashboard import words
from apps.dashboard.asks import Asks, asks_of
from apps.dashboard.frame import frame_of
from apps.dashboard.leaves import Spine, spines_of
from apps.dashboard.paging import slice_of
from apps.dashboard.views.common import PAGE_SIZE, act, page, part, viewer_of
from apps.events import selectors as events
from apps.events.models import Event
from apps.execution import selectors as execution
from apps.inventory import selectors as inventory
from apps.jobs import past_runs, selectors, services
from apps.jobs.lifecycle import ENDED, HOLDING, State
from apps.jobs.models import Allocation, Job
from apps.jobs.spec import ReplicaRange
from apps.scheduling import selectors as scheduling
from apps.scheduling import sooner
from apps.scheduling.expected_end import expected_end
from apps.scheduling.models import Reason
from apps.scheduling.response import selectors as response
from apps.teams import policies, throttles
from apps.teams.models import User

_N_EVENTS: Final = 7
_MOST_PLACES: Final = 100
_MOST_MAP_NODES: Final = 1024
_LOG_LINES: Final = 500
_LOG_TAIL_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_MOST_CHUNKS: Final = 2000
_FAR: Final = 2**61  # behind the end of every stream
_WAY_HOLDS_S: Final = 900
_STREAMS: Final = ("stdout", "stderr")


@dataclass(frozen=True)
class Seen:
    """A job as its viewer sees it."""

    job: Job
    rights: selectors.Rights
    viewer: User


def _seen(request: HttpRequest, job_id: int) -> Seen:
    viewer = viewer_of(request)
    jobs = selectors.jobs_visible_to(viewer).select_related(
        "team__parent", "user", "cluster", "held_by", "array"
    )
    job = past_runs.with_took(jobs.filter(pk=job_id)).first()
    if job is None:
        raise Http404("no such job")
    return Seen(job, selectors.rights_of(viewer, job), viewer)


def _require(seen: Seen, has_right: bool, sentence: str) -> None:
    """To strangers a job's private pages and its actions do not exist; who sees the job is told what is missing."""
    if has_right:
        return
    if seen.rights.sees_private:
        raise PermissionDenied(sentence)
    raise Http404("not for strangers")


# Pages -----------------------------------------------------------------------------------------------------------


@page
@require_GET
def job(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    body = _body(seen)
    context = {**body, **_log_tail(request, seen, body["latest"]), "tab": "overview"}
    # Only while an event is near, which the frame knows, is anything asked for.
    is_free = body["is_holding"] and body["hold"] is None and frame_of(request).grid_event is not None
    context["coming"] = response.coming_on(seen.job.pk, clock.now()) if is_free else None
    return render(request, "dashboard/pages/job.html", context)


@page
@require_GET
def logs(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    _require(seen, seen.rights.reads_logs, "Logs are for the job's team and administrators.")
    if request.GET.get("download"):
        return _download(request, seen)
    context = {
        **_base(seen),
        **_log_tail(request, seen),
        "tab": "logs",
        "streams": _STREAMS,
        "fences": list(selectors.attempts(seen.job).values_list("fence", flat=True)[:_MOST_PLACES]),
    }
    return render(request, "dashboard/pages/job_logs.html", context)


@page
@require_GET
def specification(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    spec = seen.job.spec | selectors.private_part_for(seen.viewer, seen.job)
    context = {**_base(seen), "tab": "spec", "spec": json.dumps(spec, indent=2, ensure_ascii=False)}
    return render(request, "dashboard/pages/job_spec.html", context)


@page
@require_GET
def attempts(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    rows = list(selectors.attempts(seen.job)[:_MOST_PLACES])
    shares = selectors.node_shares([row.pk for row in rows], selectors.group_names(seen.job))
    context = {**_base(seen), "tab": "attempts", "attempts": [_attempt(row, shares[row.pk]) for row in rows]}
    return render(request, "dashboard/pages/job_attempts.html", context)


@page
@require_GET
def job_events(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    found = slice_of(_events_of(seen), order=("-id",), after=request.GET.get("after", ""), size=PAGE_SIZE)
    return render(
        request, "dashboard/pages/job_events.html", {**_base(seen), "tab": "events", "found": found}
    )


# Live parts ------------------------------------------------------------------------------------------------------


@page
@require_GET
def head_part(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    answer = part(request, "dashboard/parts/job_head.html", _version(seen), lambda: _base(seen))
    if request.GET.get("seen") not in (None, _look(seen.job)):
        # What may be done to the job has changed: the buttons are drawn anew.
        answer.headers["HX-Trigger"] = "sy:job-changed"
    return answer


@page
@require_GET
def actions_part(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    return render(request, "dashboard/parts/job_actions.html", _base(seen))


@page
@require_GET
def body_part(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    return part(request, "dashboard/parts/job_body.html", _version(seen), lambda: _body(seen))


@page
@require_GET
def log_part(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    _require(seen, seen.rights.reads_logs, "Logs are for the job's team and administrators.")
    return render(request, "dashboard/parts/log.html", {**_base(seen), **_log_tail(request, seen)})


def _version(seen: Seen) -> tuple[object, ...]:
    reason = scheduling.reason_of(seen.job)
    job = seen.job
    return (
        job.version,
        job.state,
        job.state_at,
        job.is_held,
        job.desired_stop_at,
        events.latest_event_id(),
        reason and reason.pass_id,
    )


def _look(job: Job) -> str:
    """Changes whenever other buttons are due."""
    return f"{job.state}{'-held' if job.is_held else ''}{'-stopping' if job.desired_stop_at else ''}"


# Actions ---------------------------------------------------------------------------------------------------------


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=500, required=False)


class ChangeForm(forms.Form):
    """What may be changed of a job, as its dialog asks for it."""

    priority = forms.IntegerField(min_value=-1_000_000, max_value=1_000_000, required=False)
    time_limit_min = forms.FloatField(min_value=0.1, max_value=1e8, required=False, label="Time limit")


def _change(
    request: HttpRequest, job_id: int, done: str, service: Callable[[Seen, datetime], object]
) -> HttpResponse:
    seen = _seen(request, job_id)
    _require(seen, seen.rights.may_change, "Only the job's team and operators may do this.")
    return act(request, reverse("dashboard:job", args=[job_id]), done, lambda: service(seen, clock.now()))


@page
@require_POST
def stop(request: HttpRequest, job_id: int) -> HttpResponse:
    reason = _given_reason(request)
    return _change(
        request,
        job_id,
        f"Job {job_id} was asked to stop.",
        lambda seen, at: services.stop_job(job_id=job_id, actor=seen.viewer, at=at, reason=reason),
    )


@page
@require_POST
def hold(request: HttpRequest, job_id: int) -> HttpResponse:
    reason = _given_reason(request)
    return _change(
        request,
        job_id,
        f"Job {job_id} is held until it is released.",
        lambda seen, at: services.hold_job(job_id=job_id, actor=seen.viewer, at=at, reason=reason),
    )


@page
@require_POST
def release(request: HttpRequest, job_id: int) -> HttpResponse:
    return _change(
        request,
        job_id,
        f"Job {job_id} was released.",
        lambda seen, at: services.release_job(job_id=job_id, actor=seen.viewer, at=at),
    )


@page
@require_POST
def change(request: HttpRequest, job_id: int) -> HttpResponse:
    seen = _seen(request, job_id)
    _require(seen, seen.rights.may_change, "Only the job's team and operators may do this.")
    form = ChangeForm(request.POST)
    if not form.is_valid():
        for name, faults in form.errors.items():
            messages.error(request, f"{name}: {' '.join(str(fault) for fault in faults)}")
        return HttpResponseRedirect(reverse("dashboard:job", args=[job_id]))
    minutes = form.cleaned_data["time_limit_min"]
    return _change(
        request,
        job_id,
        f"Job {job_id} was changed.",
        lambda seen, at: services.update_job(
            job_id=job_id,
            actor=seen.viewer,
            at=at,
            priority=form.cleaned_data["priority"],
            time_limit_s=None if minutes is None else round(minutes * 60, 3),
        ),
    )


@page
@require_GET
def what_if(request: HttpRequest, job_id: int) -> HttpResponse:
    """What would start it sooner: the page without scripts, the list alone for the card."""
    seen = _seen(request, job_id)
    _require(seen, seen.rights.may_change, "Only the job's team and operators may do this.")
    if wait_s := throttles.take_preview(seen.viewer.pk, clock.now()):
        context: dict[str, Any] = {"job": seen.job, "wait_s": wait_s}
    else:
        found = sooner.ways_of(seen.job, at=clock.now())
        ways = [(way, signing.dumps(dict(way.changes), salt=_way_salt(seen.job))) for way in found.ways]
        context = {"job": seen.job, "found": found, "ways": ways}
    is_part = bool(request.headers.get("HX-Request"))
    template = "dashboard/parts/sooner.html" if is_part else "dashboard/pages/job_what_if.html"
    return render(request, template, context if is_part else {**_base(seen), **context, "tab": "overview"})


@page
@require_POST
def apply_way(request: HttpRequest, job_id: int) -> HttpResponse:
    """Change the request as a way said that was shown for it as it is."""
    seen = _seen(request, job_id)
    _require(seen, seen.rights.may_change, "Only the job's team and operators may do this.")
    try:
        changes = signing.loads(request.POST.get("way", ""), salt=_way_salt(seen.job), max_age=_WAY_HOLDS_S)
    except signing.BadSignature:
        messages.error(
            request,
            "The job was changed meanwhile, or this was worked out too long ago. Nothing was changed.",
        )
        return HttpResponseRedirect(reverse("dashboard:job", args=[job_id]))
    limit_s, replicas = changes.pop("time_limit", None), changes.pop("replicas", None)
    return _change(
        request,
        job_id,
        f"Job {job_id} was changed; the next pass looks at it anew.",
        lambda seen, at: services.update_job(
            job_id=job_id,
            actor=seen.viewer,
            at=at,
            time_limit_s=limit_s,
            replicas=ReplicaRange.model_validate(replicas) if isinstance(replicas, dict) else replicas,
            asks=changes,
        ),
    )


def _way_salt(job: Job) -> str:
    """A way holds for the request that it was worked out for."""
    return f"way {job.pk} {json.dumps(job.spec, sort_keys=True)}"


def _given_reason(request: HttpRequest) -> str:
    form = ReasonForm(request.POST)
    return str(form.cleaned_data["reason"]) if form.is_valid() else request.POST.get("reason", "")[:500]


# What the templates are given ------------------------------------------------------------------------------------


def _base(seen: Seen) -> dict[str, Any]:
    job, at = seen.job, clock.now()
    latest = selectors.attempts(job).first()
    allocation = latest if latest is not None and latest.ended_at is None else None
    reason = scheduling.reason_of(job)
    return {
        "job": job,
        "rights": seen.rights,
        "look": _look(job),
        "asks": _asks(job, allocation),
        "ceiling": policies.ceiling_of(job.team),
        "reason": reason,
        "allocation": allocation,
        "latest": latest,
        "is_simulated": bool(latest and latest.cluster.is_simulated),
        "wait_s": selectors.wait_s(job, at),
        "run_s": selectors.run_s(job, at),
        "is_waiting": job.state == State.QUEUED,
        "is_holding": job.state in HOLDING,
        "is_ended": job.state in ENDED,
        "tier": words.tier(job.spec.get("flexibility", 0)),
        "ends_at": _ends_at(job, at),
        "n_attempts": latest.fence if latest else 0,
    }


def _asks(job: Job, allocation: Allocation | None) -> Asks:
    """What a job asks for; of an elastic one that runs, what it holds."""
    asks = asks_of(job)
    if allocation is None or not selectors.is_elastic(job.spec):
        return asks
    return replace(asks, n_devices=selectors.n_devices_held(allocation))


def _ends_at(job: Job, at: datetime) -> datetime | None:
    """When its limit is used up, at the latest; limits count running time only."""
    if job.state not in HOLDING or job.time_limit_s is None or job.started_at is None:
        return None
    return job.started_at + timedelta(seconds=max(0.0, job.time_limit_s - job.ran_s))


def _body(seen: Seen) -> dict[str, Any]:
    context = _base(seen)
    latest: Allocation | None = context["latest"]
    context["end"] = expected_end(seen.job, context["reason"], clock.now())
    context["events"] = list(_events_of(seen)[:_N_EVENTS])
    context["checks"] = _checks(context["reason"]) if context["is_waiting"] else []
    is_capped = context["is_holding"] and latest is not None and latest.desired_power_cap_share < 1.0
    is_held_down = is_capped or seen.job.state in (State.PAUSING, State.PAUSED)
    context["hold"] = response.hold_on(seen.job.pk, clock.now()) if is_held_down else None
    context["ahead"] = selectors.ahead_of([seen.job]).get(seen.job.pk)
    if latest is not None and not context["is_waiting"]:
        shares = selectors.node_shares([latest.pk], selectors.group_names(seen.job))[latest.pk]
        context["places"] = shares[:_MOST_PLACES]
        context["n_places"] = len(shares)
        context["peak_w"] = sum(share.peak_w for share in shares)
        context["why"] = _why(latest.why)
        context["spines"] = (
            _map(seen.viewer, {share.node for share in shares}) if context["is_holding"] else None
        )
    return context


def _map(viewer: User, names: set[str]) -> tuple[Spine, ...] | None:
    nodes = inventory.leaf_map(viewer, most=_MOST_MAP_NODES, around=names)
    return spines_of(nodes, names) if nodes else None


@dataclass(frozen=True)
class Check:
    """One rule of the planner, and whether the job would start without it."""

    code: str
    title: str
    icon: str
    binds: bool
    sentence: str
    who: str


_ORDER: Final = (
    "held",
    "not_before",
    "dependency",
    "staging",
    "member_limit",
    "quota",
    "unhealthy",
    "resources",
    "topology",
    "power",
    "reservation",
    "priority",
)
_ALWAYS_SHOWN: Final = ("quota", "unhealthy", "resources", "topology", "power", "reservation", "priority")


def _checks(reason: Reason | None) -> list[Check]:
    if reason is None:
        return []
    binding = {str(code) for code in reason.binding} | {reason.code}
    codes: list[str] = [code for code in _ORDER if code in binding or code in _ALWAYS_SHOWN]
    codes += sorted(binding - set(_ORDER))
    # A rule of the job's own (a hold, a time) ends the search: nothing is known of the others.
    if reason.code not in _ALWAYS_SHOWN:
        codes = [code for code in codes if code in binding]
    return [_check(code, code in binding, reason) for code in codes]


def _check(code: str, binds: bool, reason: Reason) -> Check:
    word = words.reason(code)
    if code == reason.code:
        sentence = reason.sentence
    elif binds:
        sentence = "Without this rule it would start now."
    else:
        sentence = "Does not stand in its way."
    return Check(code, word.title, word.icon, binds, sentence, word.who_can_act if binds else "")


def _why(why: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the planner kept of its choice, as words and values."""
    return [(key.replace("_", " "), _plain(value)) for key, value in why.items()]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value[:20]) + (" …" if len(value) > 20 else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    return str(value)


def _events_of(seen: Seen) -> QuerySet[Event]:
    return events.visible_to(seen.viewer).filter(subject_kind="job", subject_id=seen.job.pk).order_by("-id")


@dataclass(frozen=True)
class Attempt:
    allocation: Allocation
    shares: tuple[selectors.NodeShare, ...]
    why: list[tuple[str, str]]

    @property
    def nodes(self) -> str:
        names = list(dict.fromkeys(share.node for share in self.shares))
        return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _attempt(allocation: Allocation, shares: tuple[selectors.NodeShare, ...]) -> Attempt:
    return Attempt(allocation, shares, _why(allocation.why))


# Logs ------------------------------------------------------------------------------------------------------------


def _log_tail(request: HttpRequest, seen: Seen, latest: Allocation | None = None) -> dict[str, Any]:
    """The last lines of one replica's output, as far as the viewer may read them."""
    if not seen.rights.reads_logs:
        return {"log": None}
    stream, rank, fence = (request.GET.get(name, "") for name in ("stream", "rank", "attempt"))
    stream = stream if stream in _STREAMS else _STREAMS[0]
    rank_number = int(rank) if _is_count(rank) else 0
    tries = selectors.attempts(seen.job)
    chosen = tries.filter(fence=int(fence)).first() if _is_count(fence) else latest or tries.first()
    context: dict[str, Any] = {"stream": stream, "rank": rank_number, "log_attempt": chosen}
    if chosen is None:
        return {**context, "log": None, "log_note": "It has not started yet, so it has printed nothing."}
    try:
        text, is_cut = _tail(chosen, rank_number, stream)
    except OutsideError as failure:
        return {**context, "log": None, "log_note": f"The log can not be read just now: {failure.message}"}
    lines = text.splitlines()
    is_cut = is_cut or len(lines) > _LOG_LINES
    return {**context, "log": "\n".join(lines[-_LOG_LINES:]), "log_is_cut": is_cut, "log_note": ""}


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9


def _tail(allocation: Allocation, rank: int, stream: str) -> tuple[str, bool]:
    """The end of a stream, and whether something comes before it."""
    # Reading behind the end tells where it is; a backend that cannot tell is read from the beginning.
    end = execution.read_log(
        allocation=allocation, rank=rank, stream=stream, offset=_FAR, limit=4
    ).next_offset
    start = max(0, end - _LOG_TAIL_BYTES) if end < _FAR else 0
    chunk = execution.read_log(
        allocation=allocation, rank=rank, stream=stream, offset=start, limit=_LOG_TAIL_BYTES
    )
    text = chunk.text
    if start and "\n" in text:
        text = text.split("\n", 1)[1]  # the first line is cut somewhere
    return text, start > 0


def _download(request: HttpRequest, seen: Seen) -> HttpResponse:
    """One replica's whole stream, sent while it is read."""
    context = _log_tail(request, seen)
    chosen: Allocation | None = context.get("log_attempt")
    rank, stream = context["rank"], context["stream"]

    def pieces(attempt: Allocation) -> Iterator[str]:
        offset = 0
        for _ in range(_MOST_CHUNKS):
            chunk = execution.read_log(
                allocation=attempt, rank=rank, stream=stream, offset=offset, limit=_CHUNK_BYTES
            )
            if not chunk.text:
                return
            yield chunk.text
            offset = chunk.next_offset

    answer = StreamingHttpResponse(pieces(chosen) if chosen else (), content_type="text/plain; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="job-{seen.job.pk}-{stream}-{rank}.txt"'
    return answer  # type: ignore[return-value]  # a streaming answer is an answer; the stubs part them

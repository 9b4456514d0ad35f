"""Requests for more on the quota page of a team: asked by its leads, answered by those who divide what is above it."""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core import clock
from apps.dashboard import words
from apps.dashboard.views.common import act, page, viewer_of
from apps.teams import policies, requests, selectors
from apps.teams.models import QuotaRequest, RequestState, Team, User

_SHOWN: Final = 20
_WORDS: Final = {
    RequestState.OPEN: words.Word("Waits for an answer", "clock", "info"),
    RequestState.GRANTED: words.Word("Granted", "circle-check", "ok"),
    RequestState.REFUSED: words.Word("Refused", "ban"),
    RequestState.WITHDRAWN: words.Word("Taken back", "ban"),
}


@dataclass(frozen=True)
class RequestRow:
    """A request as the viewer sees it."""

    request: QuotaRequest
    word: words.Word
    may_answer: bool
    may_withdraw: bool


def section(viewer: User, team: Team) -> dict[str, Any]:
    """What the part of the page shows."""
    shown = list(requests.requests_of(team)[:_SHOWN])
    sides = {one.pk: one for row in shown for one in (row.team, row.team.parent) if one is not None}
    led, is_admin = policies.led_of(viewer, sides.values()), policies.is_admin(viewer)
    rows = []
    for one in shown:
        is_open = one.state == RequestState.OPEN
        may_answer = is_open and (is_admin or one.team.parent_id in led)
        may_withdraw = is_open and not may_answer and one.team_id in led
        rows.append(RequestRow(one, _WORDS[RequestState(one.state)], may_answer, may_withdraw))
    return {"requests": rows, "may_ask": policies.may_lead(viewer, team)}


class AskForm(forms.Form):
    """What is asked for."""

    kind = forms.CharField(max_length=120)
    n_devices = forms.IntegerField(min_value=1, max_value=1_000_000)
    reason = forms.CharField(max_length=500)


_LABELS: Final = {"kind": "Device type", "n_devices": "Devices", "reason": "Reason"}


@page
@require_POST
def ask(request: HttpRequest, name: str) -> HttpResponse:
    viewer = viewer_of(request)
    team = selectors.team_named(name, viewer=viewer)
    form = AskForm(request.POST)
    back = _address(team, request.POST.get("kind", ""))
    if not form.is_valid():
        for field_name, faults in form.errors.items():
            words_of = " ".join(str(fault) for fault in faults)
            messages.error(request, f"{_LABELS[field_name]}: {words_of} Nothing was asked for.")
        return HttpResponseRedirect(back)
    said = form.cleaned_data
    return act(
        request,
        back,
        "It was asked for; those who decide are told.",
        lambda: requests.ask_for_more(
            team=team,
            accelerator_type=said["kind"],
            n_devices=said["n_devices"],
            reason=said["reason"],
            actor=viewer,
            at=clock.now(),
        ),
    )


@page
@require_POST
def answer(request: HttpRequest, request_id: int) -> HttpResponse:
    """Grant it, refuse it, or take it back: what the button said."""
    viewer, wish = viewer_of(request), request.POST.get("wish", "")
    one = requests.request_named(request_id)
    done = {
        "grant": f"{one.team} is entitled to {one.n_devices} more.",
        "refuse": "It was refused.",
        "withdraw": "It was taken back.",
    }
    if wish not in done:
        raise Http404("no such answer")
    above = one.team.parent
    shown = above if above is not None and request.POST.get("team") == above.name else one.team
    return act(
        request,
        _address(shown, one.accelerator_type.name),
        done[wish],
        lambda: requests.answer_request(
            request_id=request_id,
            grant=wish == "grant",
            actor=viewer,
            at=clock.now(),
            answer=request.POST.get("answer", "")[:500],
        ),
    )


def _address(team: Team, kind: str) -> str:
    return f"{reverse('dashboard:team-quota', args=[team.name])}?{urlencode({'kind': kind})}#requests"

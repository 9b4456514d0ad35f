"""Moves: which running jobs could go on elsewhere so that a waiting job starts, for operators to say yes to."""

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.dashboard.views.common import act, page, viewer_of
from apps.scheduling import advice, policies

_MOST_DONE: Final = 20


@page
@require_GET
def moves(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    found = advice.proposals(viewer=viewer, at=clock.now())
    context: dict[str, Any] = {
        "proposals": found,
        "done": list(advice.carried_out()[:_MOST_DONE]),
        "may_move": policies.may_move(viewer),
    }
    return render(request, "dashboard/pages/moves.html", context)


@page
@require_POST
def move(request: HttpRequest) -> HttpResponse:
    """Carry out one proposal, as it was shown."""
    viewer, fingerprint = viewer_of(request), request.POST.get("fingerprint", "")[:60].replace("\x00", "")
    policies.require_may_move(viewer)
    done = "The jobs were asked to move. The one that waits starts when they have left."
    return act(
        request,
        reverse("dashboard:moves"),
        done,
        lambda: advice.carry_out(fingerprint=fingerprint, actor=viewer, at=clock.now()),
    )

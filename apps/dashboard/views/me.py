"""My page: own jobs, own tokens, and the search for anything by its name."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound
from apps.dashboard.asks import asks_of
from apps.dashboard.views.common import act, page, viewer_of
from apps.dashboard.views.notices import marked
from apps.inventory import selectors as inventory
from apps.jobs import selectors as jobs
from apps.notices import selectors as notices
from apps.reservations import selectors as reservations
from apps.scheduling import board
from apps.teams import selectors as teams
from apps.teams import services
from apps.teams.models import User

_N_JOBS: Final = 20
_N_HITS: Final = 8
_N_NOTICES: Final = 5
_LIFETIMES: Final = (("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "no end"))


class TokenForm(forms.Form):
    """A new token: what it is for, what it may do, and how long it lives."""

    name = forms.CharField(max_length=120)
    scope = forms.ChoiceField(choices=[("read", "read"), ("write", "read and write")])
    days = forms.ChoiceField(choices=_LIFETIMES, required=False)


@page
@require_GET
def me(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/pages/me.html", _context(viewer_of(request), TokenForm()))


def _context(viewer: User, form: TokenForm) -> dict[str, Any]:
    mine = board.queue(viewer, board.QueueFilters(user_id=viewer.pk)).order_by("-id")[:_N_JOBS]
    return {
        "jobs": [(job, asks_of(job)) for job in mine],
        "notices": marked(list(notices.notices_of(viewer).order_by("-at", "-id")[:_N_NOTICES])),
        "tokens": list(teams.tokens_of(viewer)[:100]),
        "memberships": list(teams.memberships_of(viewer)),
        "form": form,
        "lifetimes": _LIFETIMES,
        "now": clock.now(),
    }


@page
@require_POST
def create_token(request: HttpRequest) -> HttpResponse:
    """The one answer that shows the secret; it is not kept anywhere, and no address leads to it again."""
    viewer, form, at = viewer_of(request), TokenForm(request.POST), clock.now()
    if not form.is_valid():
        return render(request, "dashboard/pages/me.html", _context(viewer, form), status=400)
    days = form.cleaned_data["days"]
    try:
        token, secret = services.create_token(
            user=viewer,
            name=form.cleaned_data["name"],
            scopes=("read", "write") if form.cleaned_data["scope"] == "write" else ("read",),
            expires_at=at + timedelta(days=int(days)) if days else None,
            at=at,
        )
    except (NotFound, Forbidden):
        raise
    except DomainError as refusal:
        messages.error(request, refusal.message)
        return HttpResponseRedirect(reverse("dashboard:me"))
    context = {**_context(viewer, TokenForm()), "new_token": token, "secret": secret}
    answer = render(request, "dashboard/pages/me.html", context)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@page
@require_POST
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    viewer = viewer_of(request)
    return act(
        request,
        reverse("dashboard:me"),
        "The token was revoked.",
        lambda: services.revoke_token(token_id=token_id, actor=viewer, at=clock.now()),
    )


@dataclass(frozen=True)
class Hit:
    kind: str
    icon: str
    name: str
    detail: str
    url: str


@page
@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """An exact id or name opens at once; else a few hits of each kind, by the beginning of the name."""
    viewer, text = viewer_of(request), request.GET.get("q", "").strip()[:120]
    is_id = text.isascii() and text.isdigit() and len(text) <= 18
    if is_id and jobs.jobs_visible_to(viewer).filter(pk=int(text)).exists():
        return HttpResponseRedirect(reverse("dashboard:job", args=[int(text)]))
    if text and inventory.nodes_visible_to(viewer).filter(name=text).exists():
        return HttpResponseRedirect(reverse("dashboard:node", args=[text]))
    hits = _hits(viewer, text) if text else []
    return render(request, "dashboard/pages/search.html", {"q": text, "hits": hits})


def _hits(viewer: User, text: str) -> list[Hit]:
    hits = [
        Hit(
            "Job",
            "list-details",
            job.name,
            f"{job.pk} · {job.team.name}",
            reverse("dashboard:job", args=[job.pk]),
        )
        for job in board.queue(viewer, board.QueueFilters(text=text)).order_by("name", "id")[:_N_HITS]
    ]
    hits += [
        Hit(
            "Node",
            "server-2",
            node.name,
            node.accelerator_type.name,
            reverse("dashboard:node", args=[node.name]),
        )
        for node in inventory.node_rows(viewer, inventory.NodeFilters(name_prefix=text)).order_by("name")[
            :_N_HITS
        ]
    ]
    hits += [
        Hit("Team", "users-group", team.name, "", reverse("dashboard:team-quota", args=[team.name]))
        for team in teams.teams_visible_to(viewer).filter(name__istartswith=text)[:_N_HITS]
    ]
    hits += [
        Hit("Reservation", "calendar-event", one.name, "", reverse("dashboard:reservation", args=[one.pk]))
        for one in reservations.reservations_visible_to(viewer).filter(name__istartswith=text)[:_N_HITS]
    ]
    return hits

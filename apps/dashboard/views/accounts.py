"""Signing in and out, and the page that shows every component in every state."""

from django.contrib.auth import views as auth
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.dashboard import words
from apps.dashboard.views.common import page, viewer_of
from apps.teams import policies


class SignIn(auth.LoginView):
    template_name = "dashboard/pages/sign_in.html"
    redirect_authenticated_user = True


class SignOut(auth.LogoutView):
    """By POST only: a link must not sign anybody out."""


@page
@require_GET
def styleguide(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if not (viewer.is_staff or policies.is_admin(viewer)):
        raise Http404("for staff")
    context = {
        "states": words.STATES.values(),
        "healths": words.HEALTH.values(),
        "tiles": words.TILES,
        "colours": ("blue", "orange", "green", "verm", "purple", "gold", "slate", "mist"),
        "now": clock.now(),
        "bar_parts": (("green", 60), ("orange", 12), ("slate", 8)),
        "bar_marks": (90,),
    }
    return render(request, "dashboard/pages/styleguide.html", context)


@page
@require_GET
def pulse(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/parts/pulse.html")

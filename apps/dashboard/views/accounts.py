"""Signing in and out, and the page that shows every component in every state."""

import math
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import views as auth
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.core.requests import current_source
from apps.dashboard import words
from apps.dashboard.views.common import page, viewer_of
from apps.teams import policies, throttles

_DEVICE: Final = "device"
_DEVICE_KEPT_S: Final = 180 * 24 * 3600
_LONGEST_DEVICE: Final = 1000


class SignInForm(AuthenticationForm):
    """A name and a password, looked at no oftener than `teams.throttles` allows."""

    attempt: throttles.SignIn | None = None
    wait_s = 0.0

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not username or not password or self.request is None:
            return super().clean()
        device = self.request.COOKIES.get(_DEVICE, "")[:_LONGEST_DEVICE]
        attempt = throttles.SignIn(username=username, address=current_source(), device=device)
        self.wait_s = attempt.begin(at=clock.now())
        if self.wait_s:
            raise ValidationError(
                f"There were too many attempts. Try again in {throttles.in_words(self.wait_s)}."
            )
        cleaned = super().clean()
        attempt.succeeded()
        self.attempt = attempt
        return cleaned


class SignIn(auth.LoginView):
    template_name = "dashboard/pages/sign_in.html"
    redirect_authenticated_user = True
    form_class = SignInForm

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_valid(form)
        if isinstance(form, SignInForm) and form.attempt is not None:
            answer.set_cookie(
                _DEVICE,
                form.attempt.device_of(),
                max_age=_DEVICE_KEPT_S,
                secure=settings.SESSION_COOKIE_SECURE,
                httponly=True,
                samesite="Lax",
            )
        return answer

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.wait_s:
            answer.status_code = 429
            answer.headers["Retry-After"] = str(math.ceil(form.wait_s))
        return answer


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

"""What every page has in common: who is looking, how a part is answered, how an action ends, how lists are paged."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified, HttpResponseRedirect
from django.shortcuts import render
from django.utils.cache import patch_vary_headers

from apps.core import clock
from apps.core.errors import DomainError, Forbidden, NotFound
from apps.teams.models import User

PAGE_SIZE: Final = 50
# A part whose facts did not change is drawn anew after this long, because it says how long ago things were.
_REDRAWN_AFTER_S: Final = 30

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def viewer_of(request: HttpRequest) -> User:
    """Who is looking; pages are only reached signed in."""
    assert isinstance(request.user, User)
    return request.user


def page(view: View[P]) -> View[P]:
    """A page: only for who is signed in, and what is refused becomes the answer that says so."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            answer = view(request, *args, **kwargs)
        except NotFound as refusal:
            raise Http404(refusal.message) from refusal
        except Forbidden as refusal:
            raise PermissionDenied(refusal.message) from refusal
        answer.headers.setdefault("Cache-Control", "private, no-cache")
        patch_vary_headers(answer, ("Cookie", "HX-Request"))
        return answer

    return login_required(guarded)


def is_dialog(request: HttpRequest) -> bool:
    """Whether a page is asked for what belongs into a dialog over another page, instead of the whole of itself."""
    return request.headers.get("HX-Target") == "dialog"


def part(
    request: HttpRequest, template: str, version: tuple[object, ...], facts: Callable[[], Mapping[str, Any]]
) -> HttpResponse:
    """A live part: nothing is read or drawn when its version is what the browser has already.

    Args:
        version: Everything the part depends on, cheap to get; who is looking and the query are added here.
        facts: Gives the context of the template.
    """
    etag = etag_of(request, *version)
    if request.headers.get("If-None-Match") == etag:
        answer: HttpResponse = HttpResponseNotModified()
    else:
        answer = render(request, template, dict(facts()))
    answer.headers["ETag"] = etag
    return answer


def etag_of(request: HttpRequest, *version: object) -> str:
    age = int(clock.now().timestamp()) // _REDRAWN_AFTER_S
    whole = (request.path, request.GET.urlencode(), request.user.pk, age, *version)
    return f'"{hashlib.blake2b(repr(whole).encode(), digest_size=12).hexdigest()}"'


def act(request: HttpRequest, back: str, done: str, service: Callable[[], object]) -> HttpResponse:
    """Call one service, say what became of it in a message, and go back to the page."""
    try:
        service()
    except (NotFound, Forbidden):
        raise
    except DomainError as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, done)
    return HttpResponseRedirect(back)


def pack_key(*key: object) -> str:
    """A place in a list, for the address of the next page. Signed, so that what comes back needs no checking."""
    return signing.dumps(json.dumps(key, default=str), salt="page", compress=True)


def unpack_key(text: str) -> list[Any] | None:
    """The place in the list, or None (the first page) for what was never given out."""
    try:
        key = json.loads(signing.loads(text, salt="page"))
    except (signing.BadSignature, ValueError):
        return None
    return key if isinstance(key, list) else None

"""Where the request under way came from, for the audit log."""

from collections.abc import Callable
from contextvars import ContextVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse

_source: ContextVar[str] = ContextVar("source", default="")
_LONGEST_ADDRESS = 64


def current_source() -> str:
    """Address the request under way came from; empty outside a request."""
    return _source.get()


class SourceMiddleware:
    """Keeps the caller's address for as long as the request lasts."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        token = _source.set(_address(request))
        try:
            return self._get_response(request)
        finally:
            _source.reset(token)


def _address(request: HttpRequest) -> str:
    address = str(request.META.get("REMOTE_ADDR", ""))
    if settings.TRUST_PROXY and (forwarded := request.META.get("HTTP_X_FORWARDED_FOR")):
        # The last entry is the one our own proxy wrote; those before it are hearsay.
        address = str(forwarded).rsplit(",", 1)[-1].strip()
    return address[:_LONGEST_ADDRESS]

"""Who is calling: a bearer token, or the session of the pages."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string
from rest_framework import authentication, exceptions
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from apps.core import clock
from apps.core.requests import current_source

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it imports us: it reads the settings that name us

_LONGEST_SECRET = 512


_waits_until: dict[str, datetime] = {}
_MOST_REMEMBERED = 10_000


def _note_wrong_token(address: str, at: datetime) -> float:
    """Seconds to wait, by the function that settings.SWITCHYARD_WRONG_TOKEN_COUNTER names."""
    # While it waits, no more than the token is looked up: counting must not cost more than what it keeps away.
    if (until := _waits_until.get(address)) is not None and until > at:
        return (until - at).total_seconds()
    wait_s: float = import_string(settings.SWITCHYARD_WRONG_TOKEN_COUNTER)(address, at)
    if len(_waits_until) >= _MOST_REMEMBERED:
        _waits_until.clear()
    _waits_until.pop(address, None)
    if wait_s:
        _waits_until[address] = at + timedelta(seconds=wait_s)
    return wait_s


class BearerAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer <secret>`, judged by the function that settings.SWITCHYARD_TOKEN_AUTHENTICATOR names.

    That function takes (secret, at) and answers (user, token), or None for a secret nobody has.
    The token's `scopes` say what it is good for. Wrong ones are counted by address: too many are told to wait. A good
    token is let in all the same, so that nobody shuts others out who share the address.
    """

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        header = authentication.get_authorization_header(request)
        scheme, _, secret = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        try:
            text = secret.strip().decode("ascii")
        except UnicodeDecodeError:
            text = ""
        found = None
        if 0 < len(text) <= _LONGEST_SECRET:
            found = import_string(settings.SWITCHYARD_TOKEN_AUTHENTICATOR)(text, clock.now())
        if found is None:
            if wait_s := _note_wrong_token(current_source(), clock.now()):
                raise exceptions.Throttled(wait_s)
            raise exceptions.AuthenticationFailed(
                "This token is unknown, expired or revoked.", code="bad_token"
            )
        user, token = found
        return user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="switchyard"'


class SessionAuthentication(authentication.SessionAuthentication):
    """The session of a person at the pages; what changes something needs the CSRF token too."""


class IsSignedIn(BasePermission):
    """Everybody whom we know; a token only as far as its scopes go.

    What changes something needs the scope `write`, or one of those that the view names as its `token_scopes`.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not (request.user and request.user.is_authenticated):
            return False
        scopes = getattr(request.auth, "scopes", None)
        if scopes is None:
            return True
        is_safe = request.method in SAFE_METHODS
        needed = ("read",) if is_safe else getattr(view, "token_scopes", ("write",))
        if not set(needed) & set(scopes):
            raise exceptions.PermissionDenied(
                f"This token lacks the scope {needed[0]!r}.", code="scope_missing"
            )
        return True

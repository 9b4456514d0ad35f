"""Who is calling: a bearer token, or the session of the pages."""

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string
from rest_framework import authentication, exceptions
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from apps.core import clock

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it imports us: it reads the settings that name us

_LONGEST_SECRET = 512


class BearerAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer <secret>`, judged by the function that settings.SWITCHYARD_TOKEN_AUTHENTICATOR names.

    That function takes (secret, at) and answers (user, token), or None for a secret nobody has.
    The token's `scopes` say what it is good for.
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
    """Everybody whom we know; a token only as far as its scopes go."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not (request.user and request.user.is_authenticated):
            return False
        scopes = getattr(request.auth, "scopes", None)
        if scopes is None:
            return True
        needed = "read" if request.method in SAFE_METHODS else "write"
        if needed not in scopes:
            raise exceptions.PermissionDenied(f"This token lacks the scope {needed!r}.", code="scope_missing")
        return True

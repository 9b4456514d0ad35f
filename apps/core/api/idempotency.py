"""`Idempotency-Key`: the same key gets the same answer, however often the network makes a client ask again."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import clock
from apps.core.errors import DomainError, InvalidInput

HEADER = "Idempotency-Key"
_LONGEST = 255


class KeyReused(DomainError):
    """The key was used before, for another request."""

    code = "idempotency_key_reused"
    http_status = 422


def key_of(request: Request) -> str | None:
    """The request's key, if it brings one."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not (0 < len(key) <= _LONGEST and key.isascii() and key.isprintable()):
        raise InvalidInput.of(HEADER, f"must be 1 to {_LONGEST} printable ASCII characters", "invalid")
    return key


def answer_once(
    request: Request,
    act: Callable[[], Response],
    *,
    again: Callable[[Any], Response] | None = None,
    ref: str = "id",
) -> Response:
    """What `act` answers, or what it answered the first time this person used this key.

    An answer that holds what not everybody may see is not kept: with `again` only its field `ref` is, of which `again`
    makes the answer anew, of the thing as it is now and with the rights of whoever asks now.

    The key is kept in the transaction of what is done: both are there, or neither. A second request with the same key
    waits at the unique index for the first. A refusal keeps nothing, so that it can be tried again.
    """
    key = key_of(request)
    if key is None:
        return act()
    answers: Any = apps.get_model(settings.SWITCHYARD_IDEMPOTENT_ANSWERS)._default_manager
    fingerprint = _fingerprint(request)
    with transaction.atomic():
        kept, is_new = answers.get_or_create(
            user=request.user,
            key=key,
            defaults={"fingerprint": fingerprint, "created_at": clock.now()},
        )
        if not is_new:
            if kept.fingerprint != fingerprint:
                raise KeyReused("This Idempotency-Key was used before, for another request.", key=key)
            response = Response(kept.body) if again is None else again(kept.body[ref])
            response.status_code = kept.status
            response.headers["Idempotency-Replayed"] = "true"
            return response
        response = act()
        kept.status = response.status_code
        kept.body = json.loads(_rendered(response))
        if again is not None:
            kept.body = {ref: kept.body[ref]}
        kept.save(update_fields=["status", "body"])
        return response


def done_once(*, user: Any, key: str, act: Callable[[], int]) -> tuple[int, bool]:
    """What `act` gives, an id, and True; or what it gave the first time this person used this key, and False.

    For forms, which answer with a page and no body. The key is kept in the transaction of what is done.
    """
    answers: Any = apps.get_model(settings.SWITCHYARD_IDEMPOTENT_ANSWERS)._default_manager
    fingerprint = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    with transaction.atomic():
        kept, is_new = answers.get_or_create(
            user=user,
            key=f"form {fingerprint}",
            defaults={"fingerprint": fingerprint, "created_at": clock.now()},
        )
        if not is_new:
            return int(kept.body["id"]), False
        done = act()
        kept.status, kept.body = 200, {"id": done}
        kept.save(update_fields=["status", "body"])
        return done, True


def _fingerprint(request: Request) -> str:
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"), default=str)
    said = "\n".join((str(request.method), request.path, body))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def _rendered(response: Response) -> bytes:
    return JSONRenderer().render(response.data) or b"null"

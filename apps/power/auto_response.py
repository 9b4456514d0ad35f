"""Whoever answers an event without a person registers here; below the stairs nobody knows how to plan.

Called after an announced event is committed, with its id, as often as it takes: it must be fine to be called twice.
"""

from collections.abc import Callable
from datetime import datetime

from apps.core.errors import DomainError

Responder = Callable[[int, datetime], None]

_responders: list[Responder] = []


def register(responder: Responder) -> Responder:
    """Have events that their programme lets be answered unseen handed to this: (event id, at). Usable as decorator."""
    if responder not in _responders:
        _responders.append(responder)
    return responder


def unregister(responder: Responder) -> None:
    if responder in _responders:
        _responders.remove(responder)


def respond(event_id: int, at: datetime) -> bool:
    """Hand an event on. Whether somebody took it; without anybody registered nothing is committed.

    A refusal (DomainError) is an answer too: a person has to decide, and asking again would not help.
    """
    for responder in _responders:
        try:
            responder(event_id, at)
        except DomainError:
            continue
    return bool(_responders)

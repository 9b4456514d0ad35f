"""What the questions of this app have in common."""

from datetime import datetime

from pydantic import TypeAdapter, ValidationError
from rest_framework.request import Request

from apps.core.errors import InvalidInput
from apps.core.strict import Instant

_instant: TypeAdapter[datetime] = TypeAdapter(Instant)


def time_in(request: Request, name: str) -> datetime | None:
    """An instant in the question, if there is one of this name."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return _instant.validate_python(text)
    except ValidationError:
        message = "must be a date and time with its zone, such as 2026-03-01T08:00:00Z"
        raise InvalidInput.of(name, message) from None

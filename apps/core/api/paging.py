"""Lists by keyset: `{"items": [...], "next": cursor or null}`.

A page begins after the last row of the page before, by the value of the ordering and not by a count. So each row comes
once, even while rows come and go.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request

from apps.core.errors import InvalidInput

DEFAULT_LIMIT = 100
MOST = 1000
_LONGEST_CURSOR = 1000


def page(
    queryset: QuerySet[Any],
    request: Request,
    *,
    order: Sequence[str],
    render: Callable[[Any], Any] | None = None,
    render_all: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """The page that `?limit=` and `?cursor=` ask for.

    Args:
        queryset: What the viewer may see, filtered; its ordering is replaced.
        order: Fields as in order_by(), none of them nullable, the last of them unique.
        render: Row to JSON, one by one; or
        render_all: rows to JSON, all at once.
    """
    limit = limit_of(request)
    if cursor := request.query_params.get("cursor"):
        try:
            queryset = queryset.filter(_after(order, _read(cursor, order, queryset.model)))
        except (ValueError, TypeError):  # the value of an annotation, which no column has looked at
            raise _bad_cursor() from None
    rows = list(queryset.order_by(*order)[: limit + 1])
    has_more = len(rows) > limit
    rows = rows[:limit]
    following = _write(order, rows[-1]) if has_more else None
    if render_all is not None:
        items = list(render_all(rows))
    else:
        items = [render(row) for row in rows] if render is not None else rows
    return {"items": items, "next": following}


def limit_of(request: Request) -> int:
    """`?limit=`, from 1 to 1000."""
    text = request.query_params.get("limit")
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MOST):
        raise InvalidInput.of("limit", f"must be a whole number from 1 to {MOST}", "out_of_range")
    return int(text)


def order_of(request: Request, choices: dict[str, Sequence[str]], default: str) -> Sequence[str]:
    """`?order=`: one of the documented words, each of which stands for fields as in page()."""
    word = request.query_params.get("order", default)
    if word not in choices:
        raise InvalidInput.of("order", f"must be one of {', '.join(sorted(choices))}", "unknown")
    return choices[word]


def refuse_unknown_parameters(request: Request, *known: str) -> None:
    """A misspelt filter is an error, never a list of everything."""
    allowed = {"limit", "cursor", "order", "format", *known}
    unknown = sorted(set(request.query_params) - allowed)
    if unknown:
        raise InvalidInput(
            [
                {"path": name[:80], "code": "unknown", "message": "is not a parameter of this list"}
                for name in unknown
            ]
        )


def _after(order: Sequence[str], values: Sequence[Any]) -> Q:
    """Rows behind these values: a > x, or a = x and b > y, and so on."""
    condition, equal = Q(), Q()
    for field, value in zip(order, values, strict=True):
        name = field.lstrip("-")
        comparison = "lt" if field.startswith("-") else "gt"
        condition |= equal & Q(**{f"{name}__{comparison}": value})
        equal &= Q(**{name: value})
    return condition


def _write(order: Sequence[str], row: Model) -> str:
    values = []
    for field in order:
        value: Any = row
        for step in field.lstrip("-").split("__"):
            value = value[step] if isinstance(value, dict) else getattr(value, step)
        if isinstance(value, datetime):
            value = value.isoformat()
        elif isinstance(value, Decimal):
            value = str(value)
        values.append(value)
    text = json.dumps([list(order), values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _bad_cursor() -> InvalidInput:
    return InvalidInput.of("cursor", "is not a cursor of this list in this order", "bad_cursor")


def _read(cursor: str, order: Sequence[str], model: type[Model]) -> list[Any]:
    bad = _bad_cursor()
    if len(cursor) > _LONGEST_CURSOR:
        raise bad
    try:
        fields, values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, TypeError, RecursionError):
        raise bad from None
    if fields != list(order) or not isinstance(values, list) or len(values) != len(order):
        raise bad
    # A cursor comes from outside: each value must be one that its column could hold.
    try:
        return [_cleaned(model, field.lstrip("-"), value) for field, value in zip(order, values, strict=True)]
    except (ValidationError, ValueError, TypeError, OverflowError):
        raise bad from None


def _cleaned(model: type[Model], name: str, value: Any) -> Any:
    if value is None or isinstance(value, dict | list | bool):
        raise ValueError(name)
    if isinstance(value, str) and "\0" in value:
        raise ValueError(name)
    steps = name.split("__")
    for step in steps[:-1]:
        related = model._meta.get_field(step).related_model
        assert isinstance(related, type)
        model = related
    try:
        field = model._meta.get_field("id" if steps[-1] == "pk" else steps[-1])
    except FieldDoesNotExist:  # an annotation
        return value
    cleaned = field.to_python(value)  # type: ignore[union-attr]  # reverse relations order nothing
    if isinstance(cleaned, int) and abs(cleaned) >= 2**63:
        raise ValueError(name)
    if isinstance(cleaned, datetime) and cleaned.tzinfo is None:
        raise ValueError(name)
    return cleaned

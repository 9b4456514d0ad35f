"""Lists by key: a page begins after the last row of the one before, so rows that come and go move nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import Model, Q, QuerySet

from apps.dashboard.views.common import pack_key, unpack_key

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Slice(Generic[M]):
    """One page of a list; `next_key` names where the next begins, and is empty on the last."""

    rows: list[M]
    next_key: str
    is_first: bool


def slice_of(
    rows: QuerySet[M], *, order: Sequence[str], after: str, size: int, is_wide: bool = False
) -> Slice[M]:
    """The `size` rows behind `after`.

    Args:
        order: Fields as in order_by(), never null, the last of them unique.
        after: `next_key` of the page before; anything else gives the first page.
        is_wide: Rows are long and there may be very many: only their ids are sorted, and then a page of them is
            read, in one more query.
    """
    key = unpack_key(after) if after else None
    if key is not None and len(key) != len(order):
        key = None
    source = rows.only("pk").select_related(None) if is_wide else rows
    found = _read(source, order, key, size)
    has_more = len(found) > size
    found = found[:size]
    next_key = pack_key(*(getattr(found[-1], field.lstrip("-")) for field in order)) if has_more else ""
    if is_wide:
        found = list(rows.filter(pk__in=[row.pk for row in found]).order_by(*order))
    return Slice(found, next_key, key is None)


def _read(rows: QuerySet[M], order: Sequence[str], key: Sequence[Any] | None, size: int) -> list[M]:
    ordered = rows.order_by(*order)
    if key is not None:
        try:
            return list(ordered.filter(_behind(order, key))[: size + 1])
        except (ValidationError, DataError, ValueError, TypeError):
            pass  # a key of another list: begin at the beginning
    return list(ordered[: size + 1])


def _behind(order: Sequence[str], key: Sequence[Any]) -> Q:
    condition, equal = Q(), Q()
    for field, value in zip(order, key, strict=True):
        name = field.lstrip("-")
        condition |= equal & Q(**{f"{name}__{'lt' if field.startswith('-') else 'gt'}": value})
        equal &= Q(**{name: value})
    return condition

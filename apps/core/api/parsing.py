"""JSON as it is meant: one value, no name twice, no number that is none."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import IO, Any, Final

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from apps.core.errors import InvalidInput, TooLarge
from apps.core.strict import path_of

_DEEPEST = 64
_LONGEST_NUMBER = 400


class BadJSON(ValueError):
    """The text is not JSON, or JSON that two readers would understand differently.

    Attributes:
        errors: Where it is a number that is wrong, each place: path, code, message.
    """

    def __init__(self, message: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


def loads_strict(text: str | bytes) -> Any:
    """One JSON value. NaN, Infinity, a name given twice in an object, trailing junk and deep nesting are refused."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadJSON(f"not UTF-8 at byte {error.start}") from None
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_no_name_twice, parse_int=_whole)
    except BadJSON:
        raise
    except json.JSONDecodeError as error:
        raise BadJSON(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    if _is_finite(value):
        return value
    # Python reads NaN, Infinity and 1e999; nobody else must, and whoever wrote one wants to know where.
    wrong = [
        {"path": path_of(steps), "code": "not_finite", "message": "must be a finite number"}
        for steps in _not_finite(value, ())
    ]
    if wrong:
        raise BadJSON(f"{wrong[0]['path'] or 'the number'} must be a finite number", wrong)
    return value


def _is_finite(value: Any) -> bool:
    """Whether all numbers in it are; by the encoder, which is compiled: a walk of our own takes four times as long."""
    try:
        json.dumps(value, allow_nan=False, check_circular=False)
    except ValueError:
        return False
    return True


def _not_finite(value: Any, steps: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, float) and not isfinite(value):
        yield steps
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_finite(inner, (*steps, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _not_finite(inner, (*steps, index))


class StrictJSONParser(BaseParser):
    """`application/json` by loads_strict(); the top must be an object.

    A body is read up to settings.SWITCHYARD_LONGEST_BODY, or SWITCHYARD_LONGEST_BULK_BODY where the view says
    `takes_bulk`.
    """

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            value = loads_strict(_read(stream, parser_context or {}))
        except BadJSON as error:
            if error.errors:
                raise InvalidInput(error.errors) from None
            raise ParseError(f"The body is not valid JSON: {error}.", code="bad_json") from None
        if not isinstance(value, dict):
            raise ParseError("The body must be a JSON object.", code="bad_json")
        return value


def _read(stream: IO[bytes], context: Mapping[str, Any]) -> bytes:
    is_bulk = getattr(context.get("view"), "takes_bulk", False)
    most: int = settings.SWITCHYARD_LONGEST_BULK_BODY if is_bulk else settings.SWITCHYARD_LONGEST_BODY
    too_large = TooLarge(f"The body is too large: {most:,} bytes are taken here.", limit_bytes=most)
    if _announced(context) > most:
        raise too_large
    # What is announced may be wrong, or nothing may be.
    body = stream.read(most + 1)
    if len(body) > most:
        raise too_large
    return body


def _announced(context: Mapping[str, Any]) -> int:
    """The length that the client says its body has; 0 where it says nothing that can be read."""
    length = str(getattr(context.get("request"), "META", {}).get("CONTENT_LENGTH") or "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadJSON(f"the name {name[:80]!r} is given twice")
        found[name] = value
    return found


def _whole(text: str) -> int:
    # Python refuses to read some thousand digits, and reads many in quadratic time.
    if len(text) > _LONGEST_NUMBER:
        raise BadJSON("a number has too many digits")
    return int(text)


# A string to its end, or to the end of all: each character is looked at once, whatever somebody sends.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def _check_depth(text: str) -> None:
    """Refuse what would exhaust the reader's stack. Brackets inside strings do not count."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        if bracket in "]}":
            depth -= 1
            continue
        depth += 1
        if depth > _DEEPEST:
            raise BadJSON(f"nested more than {_DEEPEST} deep")

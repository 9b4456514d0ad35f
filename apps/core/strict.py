"""Input that is taken as it is meant, or refused field by field: the ground of every door's models.

Pure: pydantic and the standard library. Every number is finite and bounded here, so nothing behind a model of
these needs to ask again. Durations are seconds, power is watts, memory is GiB.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

MAX_COUNT = 1_000_000
MAX_S = 1e10  # three centuries: longer is a slip of the keyboard
MAX_W = 1e9
MAX_GIB = 1e9


class Misfit(ValueError):
    """A fault with its own code, at `field` below whatever is being validated (empty: at that itself)."""

    def __init__(self, message: str, *field: str | int, code: str = "invalid") -> None:
        super().__init__(message)
        self.field, self.code = field, code


def _readable(text: str) -> str:
    """Refuse text that cannot be stored or that would lie on a screen: control or invisible marks."""
    if not text.isprintable():
        _storable(text)
        for char in text:
            # The two joiners are part of how some scripts, and many emoji, are written.
            if not char.isprintable() and char not in "\u200c\u200d":
                raise ValueError(f"must not contain control or invisible characters (U+{ord(char):04X})")
    if text != text.strip():
        raise ValueError("must not begin or end with a space")
    return text


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _storable(text: str) -> str:
    """Refuse what neither PostgreSQL nor a process environment can hold."""
    if "\x00" in text:
        raise ValueError("must not contain the NUL character")
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError("must be valid Unicode")
    return text


# The form of RFC 3339; a time without a zone is told apart from one that is no time.
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _instant(value: object) -> datetime:
    """Take an ISO 8601 text with its zone (or, from Python, an aware datetime); a number says too little."""
    if not isinstance(value, str | datetime):
        wanted = "must be a date and time as text, such as 2026-03-01T08:00:00Z"
        raise Misfit(f"{wanted}, not {_described(value)}", code="wrong_type")
    if isinstance(value, str):
        if not _INSTANT.fullmatch(value):
            raise Misfit("must be a date and time, such as 2026-03-01T08:00:00Z")
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise Misfit("must be a date and time that exists") from None
    if value.utcoffset() is None:
        raise Misfit("must name its zone, as 2026-03-01T08:00:00Z or 2026-03-01T09:00:00+01:00 do")
    if not 1970 < value.year < 2300:
        raise Misfit("must lie in the years 1971 to 2299", code="out_of_range")
    return value


def _addressable(name: str) -> str:
    if "/" in name or name in (".", ".."):
        raise ValueError("must not contain a slash, nor be . or ..")
    return name


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_readable)]
AddressName = Annotated[Name, AfterValidator(_addressable)]  # of what has an address: /nodes/{name}
Text = Annotated[str, AfterValidator(_storable)]
Reason = Annotated[Text, Field(max_length=500)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[Number, Field(gt=0, le=MAX_S)]
SecondsOrZero = Annotated[Number, Field(ge=0, le=MAX_S)]
Watts = Annotated[Number, Field(gt=0, le=MAX_W)]
WattsOrZero = Annotated[Number, Field(ge=0, le=MAX_W)]
Gib = Annotated[Number, Field(ge=0, le=MAX_GIB)]
Cores = Annotated[Number, Field(ge=0, le=MAX_COUNT)]
Instant = Annotated[datetime, BeforeValidator(_instant)]


class Strict(BaseModel):
    """No unknown field, no coercion (true is not 1, "1" is not 1, 4.0 is not a count), no later change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, data: Any) -> Any:
        # A field that is absent is absent; `null` is a wrong type, except where the contract names it.
        if isinstance(data, Mapping):
            for key, value in data.items():
                if value is None and key not in cls._nullable():
                    raise Misfit("must not be null", str(key), code="null")
        return data

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset()


def _distinct(names: list[str]) -> list[str]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise Misfit("must not be named twice", index)
        seen.add(name)
    return names


Names = Annotated[list[Name], Field(max_length=1000), AfterValidator(_distinct)]


# A tag of a union's branch begins with what no name may hold, so that no user's key is taken for one.
BRANCH: Final = "\x01"
WRONG_TYPE: Final = "wrong_type"  # a union's own error: its message says what would have been right
MAX_FAULTS: Final = 100  # nobody reads more, and a hostile body could make a million


def faults_of(error: ValidationError, *, prefix: Iterable[str | int] = ()) -> list[dict[str, str]]:
    """Each fault as {path, code, message}: the path as a user would write it, `jobs[3].replicas.min`.

    A message goes on where the path ends: "jobs[3].replicas.min" "must be at least 1".
    """
    before = list(prefix)
    return [_fault(fault, before) for fault in error.errors(include_url=False)[:MAX_FAULTS]]


def _fault(fault: ErrorDetails, before: list[str | int]) -> dict[str, str]:
    cause = fault.get("ctx", {}).get("error")
    steps = [*before, *_user_steps(fault["loc"])]
    if isinstance(cause, Misfit):
        return {"path": path_of([*steps, *cause.field]), "code": cause.code, "message": str(cause)}
    if cause is not None:
        return {"path": path_of(steps), "code": "invalid", "message": str(cause)}
    code, message = _said(fault)
    return {"path": path_of(steps), "code": code, "message": message}


def _user_steps(loc: tuple[int | str, ...]) -> list[int | str]:
    # pydantic adds a step that names the branch of a union, and one after a bad key; a user wrote neither.
    return [
        step for step in loc if not (isinstance(step, str) and step.startswith(BRANCH)) and step != "[key]"
    ]


_WANTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def _said(fault: ErrorDetails) -> tuple[str, str]:
    """Code and message of a fault that pydantic found by itself."""
    kind, given, facts = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "float_type" and isinstance(given, int) and not isinstance(given, bool):
        return "out_of_range", "must be a number of usual size"  # whole, and too large for a float
    if kind == WRONG_TYPE:
        return "wrong_type", f"{fault['msg']}, not {_described(given)}"
    if kind in _WANTED:
        return "wrong_type", f"must be {_WANTED[kind]}, not {_described(given)}"
    match kind:
        case "missing":
            return "missing", "is required"
        case "extra_forbidden":
            return "unknown_field", "is not a known field"
        case "finite_number":
            return "not_finite", "must be a finite number"
        case "string_unicode":
            return "invalid", "must be valid Unicode"
        case "string_too_long":
            return "too_long", f"must have at most {facts['max_length']} characters"
        case "too_long":
            return "too_long", f"must have at most {facts['max_length']} entries"
        case "string_too_short" | "too_short":
            return "too_short", "must not be empty"
        case "literal_error":
            return "not_a_choice", f"must be {facts['expected'].replace(chr(39), '')}"
        case "greater_than":
            return "out_of_range", f"must be more than {_plain(facts['gt'])}"
        case "greater_than_equal":
            return "out_of_range", f"must be at least {_plain(facts['ge'])}"
        case "less_than":
            return "out_of_range", f"must be less than {_plain(facts['lt'])}"
        case "less_than_equal":
            return "out_of_range", f"must be at most {_plain(facts['le'])}"
    return "invalid", fault["msg"][:1].lower() + fault["msg"][1:]


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _described(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return "a whole number"
        case float():
            return "a number with a decimal point"
        case str():
            return "text"
        case Mapping():
            return "an object"
        case _:
            return "a list" if isinstance(value, list | tuple) else "that"


def path_of(steps: Iterable[str | int]) -> str:
    """Write steps the way the contract does: `jobs[3].replicas`. Hostile keys are cut and escaped."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        name = step if len(step) <= 80 else f"{step[:80]}..."
        if not name.isprintable():
            name = name.encode("unicode_escape").decode()
        text += f".{name}" if text else name
    return text

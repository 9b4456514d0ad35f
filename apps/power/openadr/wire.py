"""What comes over the wire, as the schemas of OpenADR 3.0.1 and 3.1.0 have it; both versions at once.

Unknown fields are the specification's own way to extend it, and are passed over. Nothing is coerced: true is not 1.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from apps.core.strict import Misfit

MAX_INTERVALS: Final = 3000  # a month of quarter hours
_MAX_PAYLOADS: Final = 100
_MAX_LIST: Final = 1000
_MAX_PRIORITY: Final = 1_000_000
_MAX_TEXT: Final = 500

Value = TypeVar("Value")


class Version(StrEnum):
    """The two versions differ in paths and bodies, and neither server takes the other's."""

    V3_0_1 = "3.0.1"
    V3_1_0 = "3.1.0"


ObjectId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")]
PayloadType = Annotated[str, Field(min_length=1, max_length=128)]


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class Period(Wire):
    start: str | None = Field(None, max_length=64)
    duration: str | None = Field(None, max_length=64)
    randomizeStart: str | None = Field(None, max_length=64)  # noqa: N815  # a name of the wire


class Values(Wire):
    type: PayloadType
    values: list[Any] = Field(max_length=MAX_INTERVALS)


class WireInterval(Wire):
    id: int = Field(ge=-(2**31), lt=2**31)
    intervalPeriod: Period | None = None  # noqa: N815
    payloads: list[Values] = Field(max_length=_MAX_PAYLOADS)


class PayloadDescriptor(Wire):
    payloadType: PayloadType  # noqa: N815
    units: str | None = Field(None, max_length=128)
    currency: str | None = Field(None, max_length=128)


class ReportDescriptor(Wire):
    payloadType: PayloadType  # noqa: N815
    units: str | None = Field(None, max_length=128)
    readingType: str | None = Field(None, max_length=128)  # noqa: N815
    aggregate: bool | None = None
    startInterval: int | None = Field(None, ge=-1, le=1_000_000)  # noqa: N815
    numIntervals: int | None = Field(None, ge=-1, le=MAX_INTERVALS)  # noqa: N815
    historical: bool | None = None
    frequency: int | None = Field(None, ge=-1, le=1_000_000)
    repeat: int | None = Field(None, ge=-1, le=1_000_000)
    reportIntervals: str | None = Field(None, max_length=128)  # noqa: N815


class Event(Wire):
    id: ObjectId
    programID: ObjectId  # noqa: N815
    createdDateTime: str | None = Field(None, max_length=64)  # noqa: N815
    modificationDateTime: str | None = Field(None, max_length=64)  # noqa: N815
    eventName: str | None = Field(None, max_length=10_000)  # noqa: N815
    duration: str | None = Field(None, max_length=64)  # 3.1 only
    priority: int | None = Field(None, ge=0, le=_MAX_PRIORITY)
    targets: list[Any] | None = Field(None, max_length=_MAX_LIST)  # by version of one form or another
    reportDescriptors: list[Any] | None = Field(None, max_length=_MAX_LIST)  # noqa: N815  # each on its own
    payloadDescriptors: list[PayloadDescriptor] | None = Field(None, max_length=_MAX_LIST)  # noqa: N815
    intervalPeriod: Period | None = None  # noqa: N815
    intervals: list[WireInterval] | None = Field(None, max_length=MAX_INTERVALS)


class Program(Wire):
    id: ObjectId
    payloadDescriptors: list[Any] | None = Field(None, max_length=_MAX_LIST)  # noqa: N815


def told(text: str) -> str:
    """Text from outside, fit for a page and a log line."""
    cut = text[: _MAX_TEXT + 1]
    clean = "".join(char if char.isprintable() else " " for char in cut).strip()
    return clean if len(cut) <= _MAX_TEXT else f"{clean[: _MAX_TEXT - 3]}..."


def read_at(read: Callable[[str], Value], text: str, *path: str | int) -> Value:
    """Read a text; what is wrong with it is wrong at `path`."""
    try:
        return read(text)
    except ValueError as error:
        raise Misfit(str(error), *path) from None

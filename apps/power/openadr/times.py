"""Times and durations as OpenADR 3 writes them.

A start in the first year of all means "now", or, after the first interval, "right after the one before". A duration
of 9999 years means "until further notice". Other durations are ISO 8601; years and months follow the calendar.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from dateutil.relativedelta import relativedelta

# 3.0.1 also wrote 0000-00-00, which is no date (issue 339 of the specification); zone and time may be left out.
_BEGINNING: Final = re.compile(
    r"(0000-00-00|0000-01-01|0001-01-01)(T00:00(:00(\.0{1,9})?)?(Z|[+-]00:00)?)?", re.ASCII
)
_INSTANT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE
)
_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?=\d|T\d)(?:(?P<years>\d{1,4})Y)?(?:(?P<months>\d{1,5})M)?(?:(?P<weeks>\d{1,6})W)?"
    r"(?:(?P<days>\d{1,7})D)?(?:T(?=\d)(?:(?P<hours>\d{1,8})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,11}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_ENDLESS_YEARS: Final = 1000
_FIRST_YEAR, _LAST_YEAR = 1971, 2299


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time: whole months by the calendar, and seconds."""

    months: int = 0
    seconds: float = 0.0

    @property
    def is_endless(self) -> bool:
        return self.months >= _ENDLESS_YEARS * 12

    @property
    def is_zero(self) -> bool:
        return not self.months and not self.seconds

    def after(self, start: datetime) -> datetime | None:
        """When it is over, begun at `start`. None: never."""
        if self.is_endless:
            return None
        try:
            end = start + relativedelta(months=self.months) + timedelta(seconds=self.seconds)
        except (OverflowError, ValueError):
            return None
        return end if end.year <= _LAST_YEAR else None


def read_duration(text: str, *, may_be_negative: bool = False) -> Duration:
    """Read an ISO 8601 duration.

    Args:
        may_be_negative: Take the size of a negative one (randomizeStart may be one); otherwise it is refused.

    Raises:
        ValueError: it is none; the message goes on after "duration".
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("must be an ISO 8601 duration, such as PT1H")
    if found["sign"] and not may_be_negative:
        raise ValueError("must not be negative")
    part = {name: float(value or 0) for name, value in found.groupdict().items() if name != "sign"}
    days = part["weeks"] * 7 + part["days"]
    return Duration(
        months=int(part["years"]) * 12 + int(part["months"]),
        seconds=days * 86_400 + part["hours"] * 3600 + part["minutes"] * 60 + part["seconds"],
    )


def read_start(text: str) -> datetime | None:
    """Read when something starts, as an aware time in UTC. None: at the beginning of time, which means now.

    Raises:
        ValueError: it is no time, or one without a zone (hours off would be as bad as none).
    """
    return None if _BEGINNING.fullmatch(text) else read_instant(text)


def read_instant(text: str) -> datetime:
    """Read a time of RFC 3339 as an aware one in UTC; digits below the microsecond are dropped.

    Raises:
        ValueError: it is none.
    """
    if not _INSTANT.fullmatch(text):
        raise ValueError("must be a date and time, such as 2026-03-01T08:00:00Z")
    try:
        instant = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError("must be a date and time that exists") from None
    if instant.utcoffset() is None:
        raise ValueError("must name its zone, as 2026-03-01T08:00:00Z does")
    if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
        raise ValueError(f"must lie in the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return instant.astimezone(UTC)


def write_instant(at: datetime) -> str:
    """A time in UTC, to the millisecond, as the specification's own examples have it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_duration(length: timedelta) -> str:
    """A duration in seconds, which no calendar can bend."""
    seconds = round(length.total_seconds(), 3)
    return f"PT{int(seconds) if seconds == int(seconds) else seconds}S"

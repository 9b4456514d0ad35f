"""Which limit of a domain holds at an instant, and when that changes by the clock alone. Pure.

A domain's limit is the least of what is set for it: the rating of its breaker by the derating factor, the hard limit,
both less the reserve; the operating limit; and the envelope, whose steps hold by hours. Source: design notes on
power, section 2.1. Watts are on the domain's own side of the meter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

DAY_MIN: Final = 24 * 60
EVERY_DAY: Final = 127
_UTC: Final = ZoneInfo("UTC")
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class By(StrEnum):
    """What sets a limit."""

    RATING = "rating"
    HARD = "hard_limit"
    OPERATING = "operating_limit"
    ENVELOPE = "envelope"
    EVENT = "event"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an envelope: by the week, or between two dates.

    Attributes:
        weekdays: Bits from Monday (1) to Sunday (64) on which it begins; 0: it has dates.
        from_minute: Of the local day, 0 to 1439.
        until_minute: 1 to 1440; not after `from_minute`: of the next day.
        start_at, end_at: Of a step with dates, half-open.
    """

    limit_w: float
    weekdays: int = 0
    from_minute: int = 0
    until_minute: int = DAY_MIN
    start_at: datetime | None = None
    end_at: datetime | None = None

    def windows(self, zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        """When it holds, of what meets [begin, end), in order; by the local clock, also on days that are longer."""
        if self.start_at is not None and self.end_at is not None:
            if self.start_at < end and self.end_at > begin:
                yield self.start_at, self.end_at
            return
        day = begin.astimezone(zone).date() - timedelta(days=1)  # it may last over midnight
        last = end.astimezone(zone).date()
        while day <= last:
            if self.weekdays >> day.weekday() & 1:
                over = 1 if self.until_minute <= self.from_minute else 0
                starts = _at(day, self.from_minute, zone)
                ends = _at(day + timedelta(days=over), self.until_minute, zone)
                if starts < ends and starts < end and ends > begin:
                    yield starts, ends
            day += timedelta(days=1)

    def holds_at(self, zone: ZoneInfo, at: datetime) -> bool:
        return any(start <= at < end for start, end in self.windows(zone, at, at + timedelta(microseconds=1)))


def _at(day: date, minute: int, zone: ZoneInfo) -> datetime:
    """An instant of the local clock, as UTC: between instants of one zone Python would leave the clock's turns out."""
    day += timedelta(days=minute // DAY_MIN)
    minute %= DAY_MIN
    return datetime.combine(day, time(minute // 60, minute % 60), tzinfo=zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Budget:
    """What is set for one domain; None: not set."""

    rated_w: float | None = None
    derate: float = 1.0
    hard_limit_w: float | None = None
    reserve_w: float = 0.0
    limit_w: float | None = None
    steps: tuple[Step, ...] = ()
    zone: ZoneInfo = _UTC

    @property
    def continuous_w(self) -> float | None:
        """What the breaker bears without pause."""
        return None if self.rated_w is None else self.rated_w * self.derate

    def steady(self) -> "Binding | None":
        """The limit that holds whatever the hour."""
        told = [
            *(
                []
                if (rating_w := self.continuous_w) is None
                else [Binding(rating_w - self.reserve_w, By.RATING)]
            ),
            *([] if self.hard_limit_w is None else [Binding(self.hard_limit_w - self.reserve_w, By.HARD)]),
            *([] if self.limit_w is None else [Binding(self.limit_w, By.OPERATING)]),
        ]
        return min(told, key=lambda one: one.limit_w, default=None)

    def at(self, at: datetime) -> "Binding | None":
        """The limit that holds then, events aside; of equal ones the one that lasts."""
        told = [] if (steady := self.steady()) is None else [steady]
        told += [
            Binding(step.limit_w, By.ENVELOPE, step) for step in self.steps if step.holds_at(self.zone, at)
        ]
        return min(told, key=lambda one: one.limit_w, default=None)

    def envelope_w(self, at: datetime) -> float | None:
        """What the envelope alone leaves then."""
        found = [step.limit_w for step in self.steps if step.holds_at(self.zone, at)]
        return min(found, default=None)

    def changes_at(self, begin: datetime, end: datetime) -> list[datetime]:
        """Instants in (begin, end) at which a step begins or ends."""
        found = {
            mark
            for step in self.steps
            for window in step.windows(self.zone, begin, end)
            for mark in window
            if begin < mark < end
        }
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Binding:
    """A limit and what sets it."""

    limit_w: float
    by: By
    step: Step | None = None


def days_of(weekdays: int) -> tuple[str, ...]:
    """The names of the days in a mask."""
    return tuple(name for i, name in enumerate(DAYS) if weekdays >> i & 1)


def mask_of(days: Sequence[str]) -> int:
    """The mask of days by their names."""
    return sum(1 << DAYS.index(name) for name in set(days))


def clock_of(minute: int) -> str:
    """A minute of the day as HH:MM; the end of a day is 24:00."""
    return f"{minute // 60:02}:{minute % 60:02}"


def minute_of(clock: str) -> int:
    """The minute of a day that HH:MM means."""
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)

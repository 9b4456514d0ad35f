"""What a settlement is made from: readings, the event, and what was agreed about it.

Inside, power is whole microwatts, time whole microseconds since 1970 and everything between exact fractions, so that
neither the order of readings nor the length of a sum changes a cent. What comes out is Decimal.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple

from apps.core.errors import InvalidInput
from apps.core.strict import MAX_S, MAX_W

Number = int | float | Decimal
Instant = datetime | int | float  # an aware datetime, or seconds since 1970 in UTC

MICRO: Final = 10**6
HOUR_US: Final = 3600 * MICRO
MAX_PRICE: Final = 10**6  # a kilowatt-hour; more is a slip of the keyboard
MOST_INTERVALS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_PLACES: Final = 30  # beyond that a number is an attack on exact arithmetic
_MAX_US: Final = int((datetime(2300, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * MICRO


class Quality(StrEnum):
    """How far a reading can be trusted, from the best to the worst; OpenADR's words."""

    OK = "ok"
    ESTIMATED = "estimated"
    MISSING = "missing"
    BAD = "bad"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS: Final = {quality: rank for rank, quality in enumerate(Quality)}


class TargetKind(StrEnum):
    SHED_BY = "shed_by"  # so many watts below the baseline
    LIMIT_TO = "limit_to"  # so many watts at the meter, the firm service level


# Numbers and instants -----------------------------------------------------------------------------------------------


def exact(value: object, path: str, *, most: Number, least: Number = 0) -> Fraction:
    """A finite number within its bounds, as it is written: 0.1 is a tenth.

    Raises:
        InvalidInput: Anything else; true and false are no numbers. It names `path`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise InvalidInput.of(path, f"must be a number, not {type(value).__name__}", "wrong_type")
    is_finite = value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or isfinite(value)
    if not is_finite:
        raise InvalidInput.of(path, "must be a finite number", "out_of_range")
    # Bounds first: an exponent of a million would fill the memory once it is a fraction.
    if value < least:
        raise InvalidInput.of(path, f"must be at least {least}", "out_of_range")
    if value > most:
        raise InvalidInput.of(path, f"must be at most {most}", "out_of_range")
    if isinstance(value, float):
        return Fraction(repr(float(value)))
    if isinstance(value, Decimal) and int(value.as_tuple().exponent) < -_MOST_PLACES:
        raise InvalidInput.of(path, f"must have at most {_MOST_PLACES} decimal places", "out_of_range")
    return Fraction(value)


def rounded(value: Fraction, places: int = 6) -> Decimal:
    """To so many places, half to even; the same under any decimal context."""
    return Decimal(f"{round(value * 10**places)}E-{places}")


def instant_us(value: object, path: str) -> int:
    """Whole microseconds since 1970.

    Raises:
        InvalidInput: No aware datetime and no number of seconds, or outside the years 1970 to 2299.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidInput.of(path, "must name its zone")
        at_us = (value - _EPOCH) // timedelta(microseconds=1)
        if not 0 <= at_us < _MAX_US:
            raise InvalidInput.of(path, "must lie in the years 1970 to 2299", "out_of_range")
        return at_us
    return round(exact(value, path, most=MAX_S) * MICRO)


def at_of(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """[start, end) in microseconds since 1970."""

    start_us: int
    end_us: int

    @classmethod
    def of(cls, start: Instant, end: Instant, path: str = "window") -> "Window":
        made = cls(instant_us(start, f"{path}.start"), instant_us(end, f"{path}.end"))
        if made.length_us <= 0:
            raise InvalidInput.of(f"{path}.end", "must be after its start")
        return made

    @property
    def length_us(self) -> int:
        return self.end_us - self.start_us

    @property
    def start_at(self) -> datetime:
        return at_of(self.start_us)

    @property
    def end_at(self) -> datetime:
        return at_of(self.end_us)

    def common(self, other: "Window") -> "Window | None":
        """What both cover."""
        start, end = max(self.start_us, other.start_us), min(self.end_us, other.end_us)
        return Window(start, end) if start < end else None


# Readings -----------------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What the meter drew on average from `start` on.

    Attributes:
        mean_w: Watts; None only where the reading is missing or bad.
    """

    start: Instant
    mean_w: Number | None
    quality: Quality | str = Quality.OK


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of one window.

    Attributes:
        ok_w: Mean of its good part, in watts; None where nothing is good.
        known_w: The same with what was estimated.
        ok_share: How much of its time is good.
        quality: Of its worst moment; a moment without a reading is missing.
    """

    ok_w: Fraction | None
    known_w: Fraction | None
    ok_share: Fraction
    quality: Quality


class Readings:
    """The readings of one meter. Each stands until the next one, but no longer than `max_age_s`."""

    def __init__(self, readings: Iterable[Reading], *, max_age_s: Number) -> None:
        """
        Args:
            readings: In any order.
            max_age_s: Of a meter that tells means, the length of one; of one that tells instants, how old a reading
                may become before nothing is known.

        Raises:
            InvalidInput: A number is none, or two readings begin at one instant.
        """
        age_us = round(exact(max_age_s, "max_age_s", most=MAX_S) * MICRO)
        if not age_us:
            raise InvalidInput.of("max_age_s", "must be more than 0", "out_of_range")
        taken = sorted(_taken(reading, f"readings[{index}]") for index, reading in enumerate(readings))
        for before, after in pairwise(taken):
            if before[0] == after[0]:
                raise InvalidInput.of("readings", f"there are two at {at_of(after[0]).isoformat()}")
        self._starts = [start for start, _, _ in taken]
        ends = [start + age_us for start in self._starts]
        ends[:-1] = map(min, ends, self._starts[1:])
        self._spans = [
            (Window(start, end), draw_uw, quality)
            for (start, draw_uw, quality), end in zip(taken, ends, strict=True)
        ]

    def over(self, window: Window) -> Sample:
        """What is known of a window."""
        us = dict.fromkeys(Quality, 0)
        work = dict.fromkeys(Quality, 0)  # microwatts times microseconds
        index = max(0, bisect_right(self._starts, window.start_us) - 1)
        while index < len(self._spans) and self._starts[index] < window.end_us:
            span, draw_uw, quality = self._spans[index]
            index += 1
            if shared := span.common(window):
                us[quality] += shared.length_us
                work[quality] += shared.length_us * draw_uw
        us[Quality.MISSING] += window.length_us - sum(us.values())
        ok_us, known_us = us[Quality.OK], us[Quality.OK] + us[Quality.ESTIMATED]
        return Sample(
            ok_w=Fraction(work[Quality.OK], ok_us * MICRO) if ok_us else None,
            known_w=(
                Fraction(work[Quality.OK] + work[Quality.ESTIMATED], known_us * MICRO) if known_us else None
            ),
            ok_share=Fraction(ok_us, window.length_us),
            quality=max((quality for quality in Quality if us[quality]), key=lambda quality: quality.rank),
        )


def _taken(reading: Reading, path: str) -> tuple[int, int, Quality]:
    start, mean_w, said = reading
    try:
        quality = Quality(said)
    except ValueError:
        raise InvalidInput.of(f"{path}.quality", f"must be one of {', '.join(Quality)}") from None
    start_us = instant_us(start, f"{path}.start")
    if mean_w is None:
        if quality.rank < Quality.MISSING.rank:
            raise InvalidInput.of(f"{path}.mean_w", f"must be given where the quality is {quality}", "null")
        return start_us, 0, quality
    return start_us, round(exact(mean_w, f"{path}.mean_w", most=MAX_W) * MICRO), quality


# The event and what was agreed --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call to draw less.

    Attributes:
        priority: 0 first.
        value_w: Watts of the target: shed, or left at the meter.
        cancelled_at: From here on it binds nobody.
    """

    event_id: str
    version: int
    priority: int
    notified_at: datetime
    start_at: datetime
    end_at: datetime
    target_kind: TargetKind
    value_w: Number
    cancelled_at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("version", "priority"):
            if exact(getattr(self, name), name, most=2**31 - 1).denominator != 1:
                raise InvalidInput.of(name, "must be a whole number")
        exact(self.value_w, "value_w", most=MAX_W)
        for name in ("notified_at", "start_at", "end_at", "cancelled_at"):
            value = getattr(self, name)
            if value is None and name == "cancelled_at":
                continue
            if not isinstance(value, datetime):
                raise InvalidInput.of(name, "must be a date and time", "wrong_type")
            instant_us(value, name)
        if self.notified_at > self.start_at:
            raise InvalidInput.of("notified_at", "must not be after the start")
        if self.end_at <= self.start_at:
            raise InvalidInput.of("end_at", "must be after the start")
        if self.cancelled_at is not None and self.cancelled_at < self.notified_at:
            raise InvalidInput.of("cancelled_at", "must not be before the notice")

    @property
    def bound(self) -> Window | None:
        """When the target bound: up to the end or the cancellation; None: it was cancelled before its start."""
        until = self.end_at if self.cancelled_at is None else min(self.end_at, self.cancelled_at)
        return Window.of(self.start_at, until) if until > self.start_at else None

    def windows(self, interval_s: Number) -> tuple[Window, ...]:
        """The settlement intervals, counted from the start; the last one may be short."""
        length_us = round(exact(interval_s, "interval_s", most=86_400, least=1) * MICRO)
        bound = self.bound
        if bound is None:
            return ()
        if bound.length_us > length_us * MOST_INTERVALS:
            raise InvalidInput.of("interval_s", f"must make at most {MOST_INTERVALS} intervals")
        return tuple(
            Window(start, min(start + length_us, bound.end_us))
            for start in range(bound.start_us, bound.end_us, length_us)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a programme and the facility agreed.

    Attributes:
        tolerance_share: An interval is kept if this share of its target, at most, is missing.
        interval_s: Length of a settlement interval.
        currency: ISO 4217, of a currency with two decimal places.
        is_unproven_short: An interval without good readings counts as if nothing was shed, so it costs a penalty too;
            otherwise it merely earns nothing.
        pays_overlap_once: Where another event with precedence binds the same meter, this one earns nothing.
    """

    price_per_kwh: Number
    penalty_per_kwh: Number = 0
    tolerance_share: Number = Decimal("0.05")
    interval_s: Number = 3600
    currency: str = "USD"
    is_unproven_short: bool = True
    pays_overlap_once: bool = True

    def __post_init__(self) -> None:
        exact(self.price_per_kwh, "price_per_kwh", most=MAX_PRICE)
        exact(self.penalty_per_kwh, "penalty_per_kwh", most=MAX_PRICE)
        exact(self.tolerance_share, "tolerance_share", most=1)
        exact(self.interval_s, "interval_s", most=86_400, least=1)

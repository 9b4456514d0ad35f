"""What the meter would have drawn without the event.

A baseline is an estimate, and the only one that money rests on; so it says which days it is made of, which it passed
over and why, and how it was adjusted. Only good readings count. Nothing after the notice may raise it where that can
be helped: who knows of an event could draw more on purpose.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from apps.core.errors import DomainError, InvalidInput
from apps.power.settlement.facts import (
    HOUR_US,
    MICRO,
    Instant,
    Number,
    Readings,
    Window,
    at_of,
    exact,
    instant_us,
    rounded,
)

METER_S: Final = 900
CAP_SHARE: Final = Decimal("0.20")
_SATURDAY: Final = 5


class Method(StrEnum):
    METER_BEFORE = "meter_before"
    TEN_OF_TEN = "10_of_10"
    HIGH_THREE_OF_FIVE = "high_3_of_5"
    SAME_DAY = "3_plus_2"


class NoBaseline(DomainError):
    """There are not enough good readings to say what would have been drawn; `of` says of what."""

    code = "no_baseline"
    http_status = 409

    def __init__(self, message: str, *, of: str) -> None:
        super().__init__(message, of=of)


class Skip(StrEnum):
    """Why a day is no part of a baseline."""

    EVENT = "event"
    UNLIKE = "unlike"  # a working day for a weekend, or the other way round
    TOO_LITTLE_DATA = "too_little_data"
    LOWER = "lower"  # others of its kind drew more


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Which days are like the day of the event, and when one has data enough.

    Attributes:
        zone: Days and times of day are of this zone.
        event_days: On which the same meter was called before.
        holidays: Count as weekend.
        min_ok_share: Of each interval, how much must have good readings.
        lookback_days: How far back a day may lie.
    """

    zone: tzinfo = UTC
    event_days: Collection[date] = ()
    holidays: Collection[date] = ()
    min_ok_share: Number = Decimal("0.90")
    lookback_days: int = 45

    def __post_init__(self) -> None:
        if not exact(self.min_ok_share, "min_ok_share", most=1):
            raise InvalidInput.of("min_ok_share", "must be more than 0", "out_of_range")
        if exact(self.lookback_days, "lookback_days", most=366, least=1).denominator != 1:
            raise InvalidInput.of("lookback_days", "must be a whole number")

    def day_of(self, at_us: int) -> date:
        return at_of(at_us).astimezone(self.zone).date()

    def is_free(self, day: date) -> bool:
        """A weekend or a holiday."""
        return day.weekday() >= _SATURDAY or day in self.holidays

    def earlier(self, window: Window, n_days: int) -> Window:
        """The same time of day, so many days earlier; as long as it is, whatever the clocks did meanwhile."""
        local = window.start_at.astimezone(self.zone).replace(tzinfo=None) - timedelta(days=n_days)
        start_us = instant_us(local.replace(tzinfo=self.zone), "window.start")
        return Window(start_us, start_us + window.length_us)

    def has_enough(self, readings: Readings, window: Window) -> bool:
        return readings.over(window).ok_share >= exact(self.min_ok_share, "min_ok_share", most=1)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """How the day of the event compared with the days of the baseline, before the notice.

    Attributes:
        window: Where they were compared.
        metered_w: Mean of the day of the event in it.
        baseline_w: Mean of the days of the baseline in it.
        ratio: metered / baseline, as found.
        applied: The same within 1 - cap and 1 + cap.
    """

    window: Window
    metered_w: Decimal
    baseline_w: Decimal
    ratio: Decimal
    applied: Decimal
    cap_share: Decimal

    @property
    def is_clipped(self) -> bool:
        return self.ratio != self.applied


@dataclass(frozen=True, slots=True)
class Baseline:
    """Watts that would have been drawn, by settlement interval.

    Attributes:
        baseline_w: What counts.
        raw_w: Before the adjustment.
        days: Those it is made of, the latest first; empty where it is made of the day of the event.
        n_wanted: How many days the method asks for.
        skipped: Days that were looked at and passed over.
    """

    method: Method
    windows: tuple[Window, ...]
    baseline_w: tuple[Decimal, ...]
    raw_w: tuple[Decimal, ...]
    days: tuple[date, ...] = ()
    n_wanted: int = 0
    skipped: tuple[tuple[date, Skip], ...] = ()
    adjustment: Adjustment | None = None
    calendar: Calendar = field(default_factory=Calendar, compare=False)

    @property
    def n_days(self) -> int:
        return len(self.days)

    @property
    def is_short_of_days(self) -> bool:
        return self.n_days < self.n_wanted


def meter_before(
    readings: Readings,
    windows: Sequence[Window],
    *,
    notified_at: Instant,
    window_s: Number = METER_S,
    min_ok_share: Number = Decimal("0.90"),
) -> Baseline:
    """The mean of the last quarter of an hour before the notice, for every interval.

    It follows no daily shape: good for running a hall, poor for settling an event of hours.

    Raises:
        NoBaseline: Too little of that time has good readings.
    """
    until_us = instant_us(notified_at, "notified_at")
    length_us = round(exact(window_s, "window_s", most=86_400, least=1) * MICRO)
    before = Window(until_us - length_us, until_us)
    calendar = Calendar(min_ok_share=min_ok_share)
    mean_w = rounded(_ok_w(readings, before, calendar, of="meter_before"))
    return _of_this_day(Method.METER_BEFORE, windows, mean_w, calendar)


def ten_of_ten(
    readings: Readings, windows: Sequence[Window], calendar: Calendar, *, n_days: int = 10
) -> Baseline:
    """The mean of the last ten like days without an event, interval by interval.

    Fewer days are used where there are fewer; `Baseline.days` says which.

    Raises:
        NoBaseline: There is no such day at all.

    Source: the 10 of 10 of California ISO (Baseline Accuracy Work Group Proposal, April 2017, section 1), on which
    AEMO's register of baseline methodologies rests too.
    """
    like, skipped = _like_days(readings, windows, calendar, n_days)
    return _of_days(Method.TEN_OF_TEN, readings, windows, calendar, like, n_days, skipped)


def high_three_of_five(readings: Readings, windows: Sequence[Window], calendar: Calendar) -> Baseline:
    """The mean of those three of the last five like days that drew the most over the intervals of the event.

    Of two days that drew the same the later one goes first. Of three days or fewer all are used.

    Raises:
        NoBaseline: There is no such day at all.

    Source: the family of "high X of Y" rules, here with 3 and 5; the ranking is by the mean over the hours of the
    event. No programme's text was read for these two numbers: check them before a contract names this method.
    """
    like, skipped = _like_days(readings, windows, calendar, 5)
    drew = {back: _drawn(readings, windows, calendar, back) for _, back in like}
    ranked = sorted(like, key=lambda one: (-drew[one[1]], one[1]))
    kept = sorted(ranked[:3], key=lambda one: one[1])
    lower = [(day, Skip.LOWER) for day, _ in ranked[3:]]
    skipped = sorted([*skipped, *lower], key=lambda one: one[0], reverse=True)
    return _of_days(Method.HIGH_THREE_OF_FIVE, readings, windows, calendar, kept, 3, skipped)


def three_plus_two(
    readings: Readings,
    windows: Sequence[Window],
    *,
    notified_at: Instant,
    skip_s: Number = 3600,
    min_ok_share: Number = Decimal("0.90"),
) -> Baseline:
    """The mean of three hours before the event and two after it, leaving out the hour next to it on either side.

    Hours are counted from the event's start and end. One thing is stricter here than in the source: the three hours
    also end at or before the notice. The two after it cannot; there the limit on rebound stands guard.

    Raises:
        NoBaseline: One of the five hours has too few good readings.

    Source: PJM Manual 11, Same Day (3+2) customer baseline, as told to its members (RTO Insider 23098, "Improved DR
    Baseline Processes OKd"): for an event in the hours ending 13 to 17 the hours ending 9 to 11, 19 and 20.
    """
    calendar = Calendar(min_ok_share=min_ok_share)
    skip_us = round(exact(skip_s, "skip_s", most=86_400) * MICRO)
    if not windows:
        return _of_this_day(Method.SAME_DAY, windows, Decimal(0), calendar)
    until_us = min(windows[0].start_us - skip_us, instant_us(notified_at, "notified_at"))
    from_us = windows[-1].end_us + skip_us
    starts = [until_us - n * HOUR_US for n in (3, 2, 1)] + [from_us, from_us + HOUR_US]
    hours = [
        _ok_w(readings, Window(start, start + HOUR_US), calendar, of=f"hour at {at_of(start).isoformat()}")
        for start in starts
    ]
    return _of_this_day(Method.SAME_DAY, windows, rounded(sum(hours, Fraction(0)) / 5), calendar)


def adjusted(
    baseline: Baseline,
    readings: Readings,
    *,
    window: Window,
    notified_at: Instant,
    cap_share: Number = CAP_SHARE,
) -> Baseline:
    """Scale a baseline of earlier days by how the day of the event compared with them before the notice.

    Args:
        window: Where to compare, on the day of the event; ends at or before the notice.
        cap_share: The ratio stays within 1 - cap and 1 + cap.

    Raises:
        InvalidInput: The window ends after the notice, or the baseline is of no earlier days or adjusted already.
        NoBaseline: The window has too few good readings, on that day or on all the others.

    Source: same-day adjustment of at most 20 %, California ISO (as `ten_of_ten`).
    """
    if baseline.adjustment is not None:
        raise InvalidInput.of("baseline", "is adjusted already")
    cap = exact(cap_share, "cap_share", most=1)
    if window.length_us <= 0:
        raise InvalidInput.of("adjustment.window", "must end after its start")
    refuse_late(window, instant_us(notified_at, "notified_at"))
    if not baseline.windows:
        return baseline
    if not baseline.days:
        raise InvalidInput.of(
            "baseline", f"{baseline.method} is of the day of the event and cannot be adjusted"
        )
    calendar = baseline.calendar
    metered = _ok_w(readings, window, calendar, of="adjustment window")
    event_day = calendar.day_of(baseline.windows[0].start_us)
    compared = [calendar.earlier(window, (event_day - day).days) for day in baseline.days]
    means = [
        mean
        for one in compared
        if calendar.has_enough(readings, one) and (mean := readings.over(one).ok_w) is not None
    ]
    usual = sum(means, Fraction(0)) / len(means) if means else Fraction(0)
    if not usual:
        raise NoBaseline(
            "No earlier day drew anything in the adjustment window that could be compared.",
            of="adjustment window",
        )
    ratio = metered / usual
    applied = min(max(ratio, 1 - cap), 1 + cap)
    return replace(
        baseline,
        baseline_w=tuple(rounded(Fraction(raw) * applied) for raw in baseline.raw_w),
        adjustment=Adjustment(
            window, rounded(metered), rounded(usual), rounded(ratio), rounded(applied), rounded(cap)
        ),
    )


def refuse_late(window: Window, notified_us: int) -> None:
    """An adjustment window that reaches past the notice could be filled on purpose."""
    if window.end_us > notified_us:
        raise InvalidInput.of("adjustment.window", f"must end at or before the notice, {at_of(notified_us)}")


# Days ---------------------------------------------------------------------------------------------------------------

_Day = tuple[date, int]  # and how many days before the event it lies


def _like_days(
    readings: Readings, windows: Sequence[Window], calendar: Calendar, n_wanted: int
) -> tuple[list[_Day], list[tuple[date, Skip]]]:
    """The last days that can stand for the day of the event, the latest first, and those passed over."""
    like: list[_Day] = []
    skipped: list[tuple[date, Skip]] = []
    if not windows:
        return like, skipped
    event_day = calendar.day_of(windows[0].start_us)
    for back in range(1, calendar.lookback_days + 1):
        if len(like) == n_wanted:
            break
        day = event_day - timedelta(days=back)
        if why := _why_not(day, back, event_day, readings, windows, calendar):
            skipped.append((day, why))
        else:
            like.append((day, back))
    if not like:
        raise NoBaseline(
            f"None of the {calendar.lookback_days} days before {event_day} is like it, without an event and with"
            " good readings.",
            of="days",
        )
    return like, skipped


def _why_not(
    day: date,
    back: int,
    event_day: date,
    readings: Readings,
    windows: Sequence[Window],
    calendar: Calendar,
) -> Skip | None:
    if calendar.is_free(day) != calendar.is_free(event_day):
        return Skip.UNLIKE
    if day in calendar.event_days:
        return Skip.EVENT
    if not all(calendar.has_enough(readings, calendar.earlier(window, back)) for window in windows):
        return Skip.TOO_LITTLE_DATA
    return None


def _drawn(readings: Readings, windows: Sequence[Window], calendar: Calendar, back: int) -> Fraction:
    """Watt-microseconds over the intervals of the event, so many days earlier."""
    return sum(
        (
            (readings.over(calendar.earlier(window, back)).ok_w or Fraction(0)) * window.length_us
            for window in windows
        ),
        Fraction(0),
    )


def _of_days(
    method: Method,
    readings: Readings,
    windows: Sequence[Window],
    calendar: Calendar,
    days: Sequence[_Day],
    n_wanted: int,
    skipped: Sequence[tuple[date, Skip]],
) -> Baseline:
    means = []
    for window in windows:
        of_days = [readings.over(calendar.earlier(window, back)).ok_w for _, back in days]
        means.append(rounded(sum((mean for mean in of_days if mean is not None), Fraction(0)) / len(of_days)))
    return Baseline(
        method,
        tuple(windows),
        tuple(means),
        tuple(means),
        tuple(day for day, _ in days),
        n_wanted,
        tuple(skipped),
        calendar=calendar,
    )


def _of_this_day(method: Method, windows: Sequence[Window], mean_w: Decimal, calendar: Calendar) -> Baseline:
    same = (mean_w,) * len(windows)
    return Baseline(method, tuple(windows), same, same, calendar=calendar)


def _ok_w(readings: Readings, window: Window, calendar: Calendar, *, of: str) -> Fraction:
    sample = readings.over(window)
    if sample.ok_w is None or not calendar.has_enough(readings, window):
        raise NoBaseline(
            f"From {window.start_at.isoformat()} to {window.end_at.isoformat()} only"
            f" {float(sample.ok_share):.0%} of the time has good readings.",
            of=of,
        )
    return sample.ok_w

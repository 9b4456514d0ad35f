"""When the intervals of an event are. Pure.

Sources: User Guide of OpenADR 3, 7.3 (starts, follow-on intervals, event.duration) and 7.9 (emptied times cancel).
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, cast

from apps.core.strict import Misfit
from apps.power.openadr.signals import Rules
from apps.power.openadr.times import Duration, read_duration, read_start
from apps.power.openadr.wire import MAX_INTERVALS, Event, Period, read_at

_MAX_RANDOMIZE_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """When an event's intervals are: (position in the event, start, end) for each, repeats included.

    Attributes:
        n_before: So many intervals of a repeating event are past, and left out in front.
    """

    start: datetime
    end: datetime | None
    starts_now: bool = False
    is_void: bool = False
    period_s: float | None = None
    randomize_s: float = 0.0
    n_before: int = 0
    stretches: tuple[tuple[int, datetime, datetime | None], ...] = ()
    start_path: tuple[str | int, ...] = ("intervalPeriod", "start")


def lay_out(event: Event, now: datetime, now_start: datetime, rule: Rules) -> Timeline:
    """Lay out an event in time.

    Args:
        now_start: What "now" means for it.
    """
    intervals = event.intervals or []
    default = event.intervalPeriod or Period()
    firsts = (
        [(("intervals", 0, "intervalPeriod"), intervals[0].intervalPeriod or Period())] if intervals else []
    )
    places: list[tuple[tuple[str | int, ...], Period]] = [*firsts, (("intervalPeriod",), default)]
    randomize_s = 0.0
    for path, period in places:
        if period.randomizeStart:
            randomize_s = _randomize_s(period.randomizeStart, *path, "randomizeStart")
            break
    # The first interval's own start counts, unless it says "as the event does".
    given = [(path, period.start) for path, period in places if period.start]
    absolute = [
        (path, at) for path, text in given if (at := read_at(read_start, text, *path, "start")) is not None
    ]
    path, start = absolute[0] if absolute else (("intervalPeriod",), now_start)
    starts_now = not absolute
    whole = None if not event.duration else read_at(read_duration, event.duration, "duration")
    lengths = [_length(event, index) for index in range(len(intervals))]
    each = (
        read_at(read_duration, default.duration, "intervalPeriod", "duration")
        if default.duration
        else Duration()
    )
    base = Timeline(
        start=start,
        end=None,
        starts_now=starts_now,
        period_s=each.seconds if each.seconds and not each.months else None,
        randomize_s=randomize_s,
        start_path=(*path, "start"),
    )
    if not intervals:
        # Only reports are asked for; their intervals follow from the period.
        return replace(base, end=whole.after(start) if whole and not whole.is_zero else None)
    if not given and not _is_emptied(event, "start"):
        raise Misfit("is required", "intervalPeriod", "start", code="missing")
    is_zero = all(length is not None and length.is_zero for length in lengths)
    if not given or is_zero or (whole is not None and whole.is_zero):
        return replace(base, start=now, end=now, starts_now=False, is_void=True)
    stretches: list[tuple[int, datetime, datetime | None]] = []
    cursor: datetime | None = start
    for index, (interval, length) in enumerate(zip(intervals, lengths, strict=True)):
        step = ("intervals", index, "intervalPeriod")
        if index and interval.intervalPeriod and interval.intervalPeriod.start:
            cursor = read_at(read_start, interval.intervalPeriod.start, *step, "start") or cursor
        if length is None:
            raise Misfit(
                "is required (P9999Y: until further notice)", "intervalPeriod", "duration", code="missing"
            )
        if cursor is None:
            raise Misfit("follows an interval without an end", "intervals", index)
        end = length.after(cursor)
        if end is None or end > cursor:
            stretches.append((index, cursor, end))
        cursor = end
    ends = [end for _, _, end in stretches]
    end = None if None in ends else max(cast("list[datetime]", ends))
    first, n_before = min(begun for _, begun, _ in stretches), 0
    if whole is not None:
        stretches, end, n_before = _within(stretches, end, whole, now, rule)
    return replace(base, start=first, end=end, n_before=n_before, stretches=tuple(stretches))


def _within(
    stretches: list[tuple[int, datetime, datetime | None]],
    end: datetime | None,
    whole: Duration,
    now: datetime,
    rule: Rules,
) -> tuple[list[tuple[int, datetime, datetime | None]], datetime | None, int]:
    """Cut intervals to the event's own duration, or repeat them until it is over (3.1.0).

    Returns:
        The intervals around now, the end of all, and how many were left out in front.
    """
    first, n_before = min(start for _, start, _ in stretches), 0
    stop = whole.after(first)
    if end is not None and (stop is None or stop > end):
        if len(stretches) == 1:  # the same again without a gap is simply longer
            return [(stretches[0][0], first, stop)], stop, 0
        horizon = now + timedelta(seconds=rule.horizon_s)
        cycle = end - first
        last = max(0, (now - first) // cycle - 1)  # one round that is past stays, for reports
        if stop is not None:
            last = min(last, max(0, math.ceil((stop - first) / cycle) - 1))
        n_before, shift = last * len(stretches), cycle * last
        laid: list[tuple[int, datetime, datetime | None]] = []
        while not laid or (first + shift < horizon and (stop is None or first + shift < stop)):
            if laid and len(laid) + len(stretches) > MAX_INTERVALS:
                break
            laid += [(i, begun + shift, over + shift if over else None) for i, begun, over in stretches]
            shift += cycle
        stretches, end = laid, stop
    if stop is None:
        return stretches, end, n_before
    cut: list[tuple[int, datetime, datetime | None]] = [
        (i, begun, stop if over is None else min(over, stop)) for i, begun, over in stretches if begun < stop
    ]
    return cut, stop if end is None else min(end, stop), n_before


def _is_emptied(event: Event, name: str) -> bool:
    """Whether the event's start or duration was made empty: null or "", not left out."""
    if event.intervalPeriod is None:
        return "intervalPeriod" in event.model_fields_set
    return name in event.intervalPeriod.model_fields_set and not getattr(event.intervalPeriod, name)


def _length(event: Event, index: int) -> Duration | None:
    """How long an interval is. None: nobody says."""
    own = (event.intervals or [])[index].intervalPeriod
    if own is not None and own.duration:
        return read_at(read_duration, own.duration, "intervals", index, "intervalPeriod", "duration")
    if event.intervalPeriod is not None and event.intervalPeriod.duration:
        return read_at(read_duration, event.intervalPeriod.duration, "intervalPeriod", "duration")
    return Duration() if _is_emptied(event, "duration") else None


def _randomize_s(text: str, *path: str | int) -> float:
    try:
        length = read_duration(text, may_be_negative=True)
    except ValueError as error:
        raise Misfit(str(error), *path) from None
    if length.months or length.seconds > _MAX_RANDOMIZE_S:
        raise Misfit("must be at most a day", *path)
    return length.seconds

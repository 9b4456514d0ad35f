"""What an event got: watts below the baseline, interval by interval, and what of it counts.

Only good readings prove anything. An interval with any other is listed with what is known of it, and earns nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from apps.core.errors import InvalidInput
from apps.power.settlement.baseline import Baseline
from apps.power.settlement.facts import (
    HOUR_US,
    Event,
    Quality,
    Readings,
    TargetKind,
    Terms,
    Window,
    exact,
    rounded,
)

_ANY: Final = 10**12  # a bound for numbers that were checked where they came in


@dataclass(frozen=True, slots=True)
class Overlap:
    """Time in which another event binds the same meter.

    Attributes:
        event_id: The other one.
        has_precedence: It is the other one that is paid for what is shed meanwhile.
    """

    event_id: str
    window: Window
    has_precedence: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """One settlement interval. Watts are means over it; energies are whole micro-watt-hours, so that sums agree.

    Attributes:
        metered_w: Of good and estimated readings; None: nothing is known.
        delivered_w: baseline - metered, negative where more was drawn.
        target_w: What was asked, at least 0.
        is_compliant: Good readings show that the target was met within its tolerance.
        performance: min(1, max(0, delivered / target)); 0 where nothing is proved.
        delivered_wh: As proved, negative where more was drawn.
        credited_wh: What is paid: at most the target, and not what another event is paid for.
        shortfall_wh: What is missing from an interval that was not compliant.
        overlaps: Other events that bind meanwhile.
    """

    window: Window
    baseline_w: Decimal
    metered_w: Decimal | None
    delivered_w: Decimal | None
    target_w: Decimal
    is_compliant: bool
    quality: Quality
    performance: Decimal
    target_wh: Decimal
    delivered_wh: Decimal
    credited_wh: Decimal
    shortfall_wh: Decimal
    overlaps: tuple[str, ...] = ()

    @property
    def is_proved(self) -> bool:
        return self.quality is Quality.OK


def overlaps_of(event: Event, others: Iterable[Event]) -> tuple[Overlap, ...]:
    """Where other events on the same meter bind while this one does, in the order of time."""
    bound = event.bound
    if bound is None:
        return ()
    found = []
    for other in others:
        if other.event_id == event.event_id:
            raise InvalidInput.of("others", f"must not name the event itself, {event.event_id!r}")
        if other.bound is not None and (window := bound.common(other.bound)):
            found.append(Overlap(other.event_id, window, has_precedence=_order(other, event)))
    return tuple(sorted(found, key=lambda one: (one.window, one.event_id)))


def _order(one: Event, other: Event) -> bool:
    """Whether one goes before the other: by priority, then the stricter target, the earlier notice, the id.

    OpenADR leaves equal priorities open. How strict a target is can be told among those of one kind alone.
    """
    if one.priority != other.priority:
        return one.priority < other.priority
    if one.target_kind == other.target_kind and one.value_w != other.value_w:
        is_more = exact(one.value_w, "value_w", most=_ANY) > exact(other.value_w, "value_w", most=_ANY)
        return is_more == (one.target_kind is TargetKind.SHED_BY)
    return (one.notified_at, one.event_id) < (other.notified_at, other.event_id)


def measure(
    event: Event, terms: Terms, baseline: Baseline, readings: Readings, overlaps: Sequence[Overlap] = ()
) -> tuple[Interval, ...]:
    """Every settlement interval of an event, up to its end or its cancellation.

    Raises:
        InvalidInput: The baseline is of other intervals.
    """
    windows = event.windows(terms.interval_s)
    if baseline.windows != windows:
        raise InvalidInput.of("baseline", "must be of the settlement intervals of the event")
    return tuple(
        _interval(event, terms, window, Fraction(watts), readings, overlaps)
        for window, watts in zip(windows, baseline.baseline_w, strict=True)
    )


def _interval(
    event: Event,
    terms: Terms,
    window: Window,
    baseline_w: Fraction,
    readings: Readings,
    overlaps: Sequence[Overlap],
) -> Interval:
    sample = readings.over(window)
    value_w = exact(event.value_w, "value_w", most=_ANY)
    asked_w = baseline_w - value_w if event.target_kind is TargetKind.LIMIT_TO else value_w
    target_w = max(Fraction(0), asked_w)
    metered_w = None if sample.known_w is None else Fraction(rounded(sample.known_w))
    delivered_w = None if metered_w is None else baseline_w - metered_w
    # What is not proved counts as if nothing had been shed.
    proved_w = delivered_w if sample.quality is Quality.OK else None
    is_compliant = proved_w is not None and proved_w >= _least_w(asked_w, terms)
    credited_w = Fraction(0) if proved_w is None else min(target_w, max(Fraction(0), proved_w))
    paid_us = window.length_us - (_taken_us(window, overlaps) if terms.pays_overlap_once else 0)
    short_w = Fraction(0) if is_compliant else _short_w(event, terms, target_w, asked_w, proved_w)
    hours = Fraction(window.length_us, HOUR_US)
    return Interval(
        window=window,
        baseline_w=rounded(baseline_w),
        metered_w=None if metered_w is None else rounded(metered_w),
        delivered_w=None if delivered_w is None else rounded(delivered_w),
        target_w=rounded(target_w),
        is_compliant=is_compliant,
        quality=sample.quality,
        performance=rounded(credited_w / target_w if target_w else Fraction(is_compliant)),
        target_wh=rounded(target_w * hours),
        delivered_wh=rounded((proved_w or Fraction(0)) * hours),
        credited_wh=rounded(credited_w * Fraction(paid_us, HOUR_US)),
        shortfall_wh=rounded(short_w * hours),
        overlaps=tuple(sorted({one.event_id for one in overlaps if one.window.common(window)})),
    )


def _least_w(asked_w: Fraction, terms: Terms) -> Fraction:
    """What must be shed for the interval to count as kept.

    A limit above the baseline asks for less than nothing, and is kept while the meter stays below it: a share of
    what is negative would make it stricter.
    """
    tolerance = exact(terms.tolerance_share, "tolerance_share", most=1)
    return asked_w * (1 - tolerance) if asked_w > 0 else asked_w


def _short_w(
    event: Event, terms: Terms, target_w: Fraction, asked_w: Fraction, proved_w: Fraction | None
) -> Fraction:
    if proved_w is None:
        return target_w if terms.is_unproven_short else Fraction(0)
    if event.target_kind is TargetKind.LIMIT_TO:
        return max(Fraction(0), asked_w - proved_w)  # all that went above the limit
    # To shed nothing is the worst that an order to shed knows; what is drawn on top is no part of it.
    return target_w - min(target_w, max(Fraction(0), proved_w))


def _taken_us(window: Window, overlaps: Sequence[Overlap]) -> int:
    """For how long events with precedence bind within a window; where two of them do it counts once."""
    taken_us, reached_us = 0, window.start_us
    for overlap in sorted(overlaps, key=lambda one: one.window):
        if overlap.has_precedence and (shared := overlap.window.common(window)):
            taken_us += max(0, shared.end_us - max(shared.start_us, reached_us))
            reached_us = max(reached_us, shared.end_us)
    return taken_us


def performance_factor(intervals: Sequence[Interval]) -> Decimal | None:
    """The mean of min(1, max(0, delivered / target)), in [0, 1]; None where nothing was measured.

    A last interval that was cut short weighs by its length.
    """
    whole_us = sum(interval.window.length_us for interval in intervals)
    if not whole_us:
        return None
    kept = sum(
        (Fraction(interval.performance) * interval.window.length_us for interval in intervals), Fraction(0)
    )
    return rounded(kept / whole_us)

"""What an event is worth: its intervals, and the money they come to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from apps.power.settlement.baseline import Baseline, refuse_late
from apps.power.settlement.delivered import Interval, Overlap, measure, overlaps_of, performance_factor
from apps.power.settlement.facts import MAX_PRICE, Event, Number, Readings, Terms, exact, instant_us, rounded

_CENTS = 2


class Outcome(StrEnum):
    MET = "met"  # every interval was compliant
    PARTIAL = "partial"
    MISSED = "missed"  # none was
    CANCELLED = "cancelled"  # before it began to bind


@dataclass(frozen=True, slots=True)
class Statement:
    """The result of one event.

    Attributes:
        performance: Performance factor, in [0, 1]; None: it never bound.
        target_wh: What was asked, over all intervals.
        delivered_wh: What good readings show, negative where more was drawn.
        credited_wh: What is paid for.
        shortfall_wh: What a penalty is due on.
        unproven_wh: What was asked in intervals without good readings.
        payment: Money in `currency`, in whole cents as the next two.
        net: payment - penalty, exactly as they are written.
    """

    intervals: tuple[Interval, ...]
    overlaps: tuple[Overlap, ...]
    outcome: Outcome
    performance: Decimal | None
    target_wh: Decimal
    delivered_wh: Decimal
    credited_wh: Decimal
    shortfall_wh: Decimal
    unproven_wh: Decimal
    payment: Decimal
    penalty: Decimal
    net: Decimal
    currency: str


def settle(
    event: Event,
    terms: Terms,
    baseline: Baseline,
    readings: Readings,
    *,
    others: Sequence[Event] = (),
) -> Statement:
    """Measure an event and put a price on it.

    Payment and penalty are each rounded once, from exact sums, half to even. A cancelled event is settled up to its
    cancellation. Every event is judged, and penalised, by its own target; where two bind one meter at a time only
    the pay is not given twice, unless the terms say so.

    Args:
        baseline: Of `event.windows(terms.interval_s)`.
        others: Events on the same meter; those that never overlap do no harm.

    Raises:
        InvalidInput: The baseline is of other intervals, or was adjusted by what came after the notice.
    """
    if baseline.adjustment is not None:
        refuse_late(baseline.adjustment.window, instant_us(event.notified_at, "notified_at"))
    overlaps = overlaps_of(event, others)
    intervals = measure(event, terms, baseline, readings, overlaps)
    credited_wh = _sum(interval.credited_wh for interval in intervals)
    shortfall_wh = _sum(interval.shortfall_wh for interval in intervals)
    payment = _money(terms.price_per_kwh, credited_wh, "price_per_kwh")
    penalty = _money(terms.penalty_per_kwh, shortfall_wh, "penalty_per_kwh")
    return Statement(
        intervals=intervals,
        overlaps=overlaps,
        outcome=_outcome(intervals),
        performance=performance_factor(intervals),
        target_wh=rounded(_sum(interval.target_wh for interval in intervals)),
        delivered_wh=rounded(_sum(interval.delivered_wh for interval in intervals)),
        credited_wh=rounded(credited_wh),
        shortfall_wh=rounded(shortfall_wh),
        unproven_wh=rounded(_sum(interval.target_wh for interval in intervals if not interval.is_proved)),
        payment=payment,
        penalty=penalty,
        net=rounded(Fraction(payment) - Fraction(penalty), _CENTS),
        currency=terms.currency,
    )


def _outcome(intervals: Sequence[Interval]) -> Outcome:
    if not intervals:
        return Outcome.CANCELLED
    n_kept = sum(interval.is_compliant for interval in intervals)
    if n_kept == len(intervals):
        return Outcome.MET
    return Outcome.PARTIAL if n_kept else Outcome.MISSED


def _money(per_kwh: Number, energy_wh: Fraction, path: str) -> Decimal:
    return rounded(exact(per_kwh, path, most=MAX_PRICE) * energy_wh / 1000, _CENTS)


def _sum(values: Iterable[Decimal]) -> Fraction:
    """Exactly; Decimal's own sum rounds to whatever context is set."""
    return sum((Fraction(value) for value in values), Fraction(0))

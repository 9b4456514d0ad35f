"""What a listing changes, and what goes on holding while the VTN is silent. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from apps.power.openadr.signals import Interval, Reading, Signal, TargetKind

_REPORTED_LATE: Final = timedelta(days=1)  # an event that ended while we were away may still be reported on


@dataclass(frozen=True, slots=True)
class Changes:
    """Every known signal and every listed one, each in one place.

    Attributes:
        changed: (as it was, as it is).
        cancelled: As they were: taken off a complete listing before their end, or with their time made empty.
        unchanged: As they are; times that the VTN leaves open are laid out anew.
        finished: No longer listed, and over anyway.
        kept: Of which nothing is known this time (a refused version, another programme); they hold as before.
        passed_over: Listed, not known, and over or asking for nothing.
    """

    new: tuple[Signal, ...] = ()
    changed: tuple[tuple[Signal, Signal], ...] = ()
    cancelled: tuple[Signal, ...] = ()
    unchanged: tuple[Signal, ...] = ()
    finished: tuple[Signal, ...] = ()
    kept: tuple[Signal, ...] = ()
    passed_over: tuple[Signal, ...] = ()

    def known(self) -> dict[str, Signal]:
        """What to compare the next listing with, by external id."""
        after = (*self.new, *(now for _, now in self.changed), *self.unchanged, *self.kept)
        return {signal.external_id: signal for signal in after}


def compare(known: Mapping[str, Signal], reading: Reading) -> Changes:
    """Compare what is known with a complete listing.

    That an event is absent means that it was cancelled, but only where its programme was listed and every listed
    event could be told by its id; a listing that failed must never come here (the client raises instead).
    """
    listed = {signal.external_id: signal for signal in reading.signals}
    new, passed_over = list[Signal](), list[Signal]()
    changed, unchanged = list[tuple[Signal, Signal]](), list[Signal]()
    cancelled, finished, kept = list[Signal](), list[Signal](), list[Signal]()
    for name, signal in listed.items():
        if name not in known or (known[name].is_void and not signal.is_void):
            (passed_over if _is_past(signal, reading.at) else new).append(signal)
    for name, before in known.items():
        after = listed.get(name)
        if after is None:
            is_listed = not reading.program_ids or before.program_id in reading.program_ids
            if name in reading.refused_ids or reading.has_nameless or not is_listed:
                kept.append(before)
            else:
                (finished if before.is_over(reading.at) else cancelled).append(before)
        elif after.is_void:
            (unchanged if before.is_void else cancelled).append(after if before.is_void else before)
        elif before.is_void:
            continue  # counted above, as new
        elif after.fingerprint == before.fingerprint:
            unchanged.append(after)
        else:
            changed.append((before, after))
    return Changes(
        new=tuple(new),
        changed=tuple(changed),
        cancelled=tuple(cancelled),
        unchanged=tuple(unchanged),
        finished=tuple(finished),
        kept=tuple(kept),
        passed_over=tuple(passed_over),
    )


def _is_past(signal: Signal, at: datetime) -> bool:
    """Whether nothing is left to do about a signal that is heard of for the first time."""
    if signal.is_void or not signal.reports:
        return signal.is_over(at)
    return signal.is_over(at - _REPORTED_LATE)


def prevailing(signals: Iterable[Signal], at: datetime) -> tuple[tuple[Signal, Interval], ...]:
    """Of what is asked at one instant, what counts.

    Among signals of one programme with the same kind and targets the highest priority (the lowest number) wins; the
    protocol leaves ties open, here the stricter wins. Programmes know nothing of one another: each counts.
    Drills stand apart and displace nothing.
    """
    best: dict[tuple[object, ...], tuple[Signal, Interval]] = {}
    for signal in signals:
        interval = signal.interval_at(at)
        if signal.is_void or interval is None or interval.value is None:
            continue
        place = (signal.program_id, signal.target_kind, frozenset(signal.targets), signal.is_test)
        if place not in best or _order(signal, interval) < _order(*best[place]):
            best[place] = (signal, interval)
    return tuple(sorted(best.values(), key=lambda pair: (pair[0].rank, pair[0].external_id)))


def _order(signal: Signal, interval: Interval) -> tuple[object, ...]:
    strictness = interval.value or 0.0
    if signal.target_kind is not TargetKind.LIMIT_TO:
        strictness = -strictness
    return (*signal.rank, strictness, signal.external_id)


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds at one instant, by the last complete listing.

    Attributes:
        is_silent: The VTN has not been heard for longer than it may.
        holding: What counts, highest priority first.
        limit_w: The tightest limit at the meter for the whole site, drills left out. None: no limit.
        is_fallback: The limit is the subscribed capacity, for want of a better one.
        is_emergency: Some signal in force says so.
    """

    is_silent: bool
    holding: tuple[tuple[Signal, Interval], ...]
    limit_w: float | None
    is_fallback: bool
    is_emergency: bool


def standing(
    signals: Iterable[Signal], *, listed_at: datetime | None, now: datetime, silent_after_s: float = 300.0
) -> Standing:
    """What holds, be the VTN there or not.

    While it is silent its last word goes on to count: limits until their own end, those without an end until it is
    heard again, and those that were to begin meanwhile begin. Once no limit is left, the subscribed import capacity
    is the limit (the last one known): a silent VTN might have set one.

    Args:
        listed_at: Of the last complete listing. None: there was none, which is silence.
    """
    signals = tuple(signals)
    is_silent = listed_at is None or now - listed_at > timedelta(seconds=silent_after_s)
    holding = prevailing(signals, now)
    limits = [
        interval.value
        for signal, interval in holding
        if signal.target_kind is TargetKind.LIMIT_TO and interval.value is not None and not signal.is_test
    ]
    limit_w = min(limits, default=None)
    is_fallback = False
    if limit_w is None and is_silent:
        limit_w = _subscription_w(signals, now)
        is_fallback = limit_w is not None
    return Standing(
        is_silent=is_silent,
        holding=holding,
        limit_w=limit_w,
        is_fallback=is_fallback,
        is_emergency=any(
            interval.is_emergency and interval.holds_at(now)
            for signal in signals
            if not signal.is_void and not signal.is_test
            for interval in signal.intervals
        ),
    )


def _subscription_w(signals: Iterable[Signal], now: datetime) -> float | None:
    """The subscribed capacity in force, or, where it has run out, the last that was; of several the least."""
    begun = [
        (interval, interval.subscription_w)
        for signal in signals
        if not signal.is_void and not signal.is_test
        for interval in signal.intervals
        if interval.subscription_w is not None and interval.start <= now
    ]
    in_force = [watts for interval, watts in begun if interval.holds_at(now)]
    if in_force:
        return min(in_force)
    last = max((interval.end or now for interval, _ in begun), default=None)
    return min((watts for interval, watts in begun if (interval.end or now) == last), default=None)

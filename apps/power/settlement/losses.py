"""What an event cost in device-seconds: how much of each job stood still, and for how long."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from apps.power.settlement.facts import MICRO, instant_us, rounded

_STANDS_STILL: Final = ("pause", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job as far as its losses depend on it.

    Attributes:
        tdp_w: Of one device; None: not known.
        curve: (cap as a share of TDP, share of throughput), the lowest first; empty: not known.
        ended_at: From then on it loses nothing.
    """

    name: str
    n_devices: float
    tdp_w: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A lever that was in force on one job for a while."""

    lever: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    begin_at: datetime
    end_at: datetime


def lost_share(held: Held, job: JobFacts) -> float | None:
    """Share of the job's throughput that a lever takes, in [0, 1]; None: it does not follow from what is known."""
    if held.lever in _STANDS_STILL:
        return 1.0
    if held.lever == "cap":
        before, after = (_throughput(_cap(side, job), job) for side in (held.before, held.after))
        if after is None:
            return None
        return max(0.0, 1.0 - after / (before or 1.0))
    sizes = [_size(side) for side in (held.before, held.after)]
    if sizes[0] is None or sizes[1] is None or sizes[0] <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - sizes[1] / sizes[0]))


def lost_device_s(levers: Sequence[Held], job: JobFacts) -> Decimal | None:
    """Device-seconds that a job lost; where several levers held it at a time the heaviest counts.

    None: of one of them it does not follow how much it takes.
    """
    spans: list[tuple[int, int, Fraction]] = []
    for held in levers:
        share = lost_share(held, job)
        if share is None:
            return None
        end_at = held.end_at if job.ended_at is None else min(held.end_at, job.ended_at)
        begin_us, end_us = instant_us(held.begin_at, "begin_at"), instant_us(end_at, "end_at")
        if begin_us < end_us:
            spans.append((begin_us, end_us, Fraction(repr(share))))
    edges = sorted({edge for begin, end, _ in spans for edge in (begin, end)})
    lost_us = sum(
        (
            (end - begin)
            * max((share for low, high, share in spans if low <= begin < high), default=Fraction(0))
            for begin, end in pairwise(edges)
        ),
        Fraction(0),
    )
    return rounded(lost_us / MICRO * Fraction(repr(float(job.n_devices))))


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """The same time in spans that do not touch, the earliest first."""
    found: list[tuple[datetime, datetime]] = []
    for begin_at, end_at in sorted(spans):
        if found and begin_at <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_at))
        elif begin_at < end_at:
            found.append((begin_at, end_at))
    return found


def _cap(side: Mapping[str, Any], job: JobFacts) -> float | None:
    """A cap as a share of TDP; it may be told as that, or in watts a device."""
    share, watts = _number(side.get("share", side.get("cap"))), _number(side.get("cap_w"))
    if share is not None:
        return share
    return watts / job.tdp_w if watts is not None and job.tdp_w else None


def _throughput(cap: float | None, job: JobFacts) -> float | None:
    """Between two points of the curve it is a straight line; outside, as at its ends."""
    if cap is None or not job.curve:
        return None
    if cap <= job.curve[0][0]:
        return job.curve[0][1]
    for (low, low_rate), (high, high_rate) in pairwise(job.curve):
        if cap <= high:
            return low_rate + (high_rate - low_rate) * (cap - low) / (high - low)
    return job.curve[-1][1]


def _size(side: Mapping[str, Any]) -> float | None:
    return _number(
        next((side[name] for name in ("n_replicas", "replicas", "n_devices") if name in side), None)
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

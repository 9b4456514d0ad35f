"""Power caps: a job of a tier that bears a loss may start, or run, with its devices drawing less than they could."""

from dataclasses import replace
from typing import Final

from apps.power.curtailment.facts import ALLOWED_LOSS, INTERRUPTIBLE
from apps.scheduling.engine.facts import Ask, Gang, Kind, Shape

_SLACK: Final = 1e-9


def caps_of(gang: Gang, kind: Kind) -> tuple[tuple[float, float], ...]:
    """(cap as a share of TDP, throughput) that this job may run under, the highest first; those that bind only."""
    if not gang.tier or not kind.caps:
        return ()
    peak_w = max(
        (kind.tdp_w if ask.peak_w is None else ask.peak_w for ask in gang.shape.asks if _draws(ask)),
        default=0.0,
    )
    least = 1.0 - ALLOWED_LOSS[gang.tier] - _SLACK
    return tuple((cap, rate) for cap, rate in kind.caps if rate >= least and cap * kind.tdp_w < peak_w)


def may_pause(gang: Gang) -> bool:
    """Whether it can be off its power for a while without losing more than it allows."""
    return gang.tier == INTERRUPTIBLE and gang.saving is not None


def under_cap(gang: Gang, kind: Kind, cap: float) -> Gang:
    """The gang as it counts against the limits with its devices capped."""
    most_w = cap * kind.tdp_w
    asks = tuple(
        replace(
            ask,
            peak_w=min(most_w, kind.tdp_w if ask.peak_w is None else ask.peak_w),
            power_w=min(most_w, kind.tdp_w if ask.power_w is None else ask.power_w),
        )
        if _draws(ask)
        else ask
        for ask in gang.shape.asks
    )
    return replace(gang, shape=Shape(asks, gang.shape.cluster, gang.shape.reservation))


def _draws(ask: Ask) -> bool:
    return bool(ask.devices or ask.share_steps)

"""What may be done with one running job: the levers its tier allows, what each sheds and what each costs."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from apps.power.curtailment.facts import (
    ALLOWED_LOSS,
    FIRM,
    INTERRUPTIBLE,
    WEIGHT,
    Candidate,
    Idle,
    Lever,
    Load,
    Option,
    idle_id,
)

MICRO: Final = 10**6
MILLI: Final = 1000
STOPS_WITHIN_S: Final = 5.0
SHRINKS_FROM: Final = 2  # tiers below bear no change of size
_SLACK: Final = 1e-9  # of a throughput that is exactly at the bound of its tier
_NOISE: Final = 1e-6  # of a share: what sums of many small parts are off by


def candidate_of(
    load: Load,
    window_s: float,
    within_s: float = inf,
    *,
    is_emergency: bool = False,
    weights: Sequence[float] = WEIGHT,
    may_use: Callable[[Option], bool] | None = None,
) -> Candidate:
    """A job with all it may do.

    Args:
        load: The job.
        window_s: How long the target will still bind; what is lost counts over it.
        within_s: Options that take longer are left out.
        is_emergency: Tiers 1 to 3 may be capped as low as their devices go, tier 4 may be stopped without notice.
        weights: What a lost device-second counts, by tier.
        may_use: Which options there are; what is not to be used stands in no other's way.
    """
    options = [Option(Lever.NONE)]
    if load.tier != FIRM:
        options.extend(_caps(load, window_s, weights, is_emergency=is_emergency))
    if load.tier >= SHRINKS_FROM:
        options.extend(_sizes(load, window_s, weights, is_emergency=is_emergency))
    if load.tier == INTERRUPTIBLE:
        options.extend(_pauses(load, window_s, weights, is_emergency=is_emergency))
    timely = [option for option in options if option.takes_s <= within_s]
    if may_use is not None:
        timely = [option for option in timely if option.lever is Lever.NONE or may_use(option)]
    return Candidate(load.job_id, load.tier, load.n_devices, tuple(_worth_while(timely)))


def allowed_loss(tier: int, *, is_emergency: bool = False) -> float:
    """The largest loss of throughput, as a share, that a tier bears."""
    return 1.0 if is_emergency and tier != FIRM else ALLOWED_LOSS[tier]


def idle_candidate(idle: Idle) -> Candidate:
    """A node at rest that may be switched off; it costs whoever needs it next the time that it takes to boot."""
    shed = max(0, round(idle.shed_w * MICRO))
    lost = round(idle.n_devices * idle.boot_s * MILLI)
    off = Option(
        Lever.POWER_OFF,
        cap=0.0,
        shed_uw=tuple((limit, shed) for limit in idle.under),
        cost_ms=round(WEIGHT[INTERRUPTIBLE] * lost),
        lost_ms=lost,
        takes_s=idle.takes_s,
    )
    options = (Option(Lever.NONE), off) if shed and idle.under else (Option(Lever.NONE),)
    return Candidate(idle_id(idle.node), INTERRUPTIBLE, idle.n_devices, options)


def borne(load: Load, *, is_emergency: bool = False) -> float:
    """The largest average loss over the window, as a share, that a job bears."""
    if load.bears is None or (is_emergency and load.tier != FIRM):
        return allowed_loss(load.tier, is_emergency=is_emergency)
    return load.bears


def left_to_bear(
    tier: int, *, span_s: float, spent_s: float, window_s: float, is_rolling: bool = False
) -> float:
    """What a job still bears over what comes, as an average loss of throughput, once something is spent.

    Args:
        span_s: Over how long its tier's loss is an average: the event, or a span that rolls along.
        spent_s: Seconds of work that it lost in that span so far.
        window_s: How long it is to bear it.
        is_rolling: A whole event may take more than the average, if others took less. Otherwise what was not taken at
            first is not made up for later: a job has one cap for an event.
    """
    allowed = allowed_loss(tier)
    if window_s <= 0:
        return allowed
    left = (allowed * span_s - spent_s) / window_s
    most = 1.0 if is_rolling and tier != FIRM else allowed
    return most if left >= most - _NOISE else max(0.0, left)


def _sizes(load: Load, window_s: float, weights: Sequence[float], *, is_emergency: bool) -> list[Option]:
    """Fewer replicas: the devices that are given up draw what they draw at rest, the others go on."""
    bound = borne(load, is_emergency=is_emergency) + _SLACK
    each = max(0, round((load.draw_w - load.curve.idle_w) * MICRO))
    found = []
    for smaller in load.smaller:
        lost_s = (1.0 - smaller.rate) * window_s + smaller.stall_s
        if lost_s > bound * window_s:
            continue
        lost = round(load.n_devices * lost_s * MILLI)
        shed = tuple((limit, int(each * n)) for limit, n in sorted(smaller.gone_under.items()) if n and each)
        if shed:
            cost = round(weights[load.tier] * lost)
            found.append(
                Option(
                    Lever.SHRINK,
                    n_replicas=smaller.n_replicas,
                    shed_uw=shed,
                    cost_ms=cost,
                    lost_ms=lost,
                    takes_s=smaller.takes_s,
                )
            )
    return found


def _caps(load: Load, window_s: float, weights: Sequence[float], *, is_emergency: bool) -> list[Option]:
    curve = load.curve
    bound = 1.0 - borne(load, is_emergency=is_emergency) - _SLACK
    found = []
    for cap in curve.caps():
        rate = curve.rate(cap, load.draw_w)
        if rate < bound:
            break
        shed_w = load.draw_w - cap * curve.tdp_w
        if shed_w <= 0:
            continue  # a cap at or above what it draws anyway sheds nothing
        lost = round(load.n_devices * (1.0 - rate) * window_s * MILLI)
        found.append(
            Option(
                Lever.CAP,
                cap=cap,
                shed_uw=_shed(load, shed_w),
                cost_ms=round(weights[load.tier] * lost),
                lost_ms=lost,
                takes_s=curve.settle_s,
            )
        )
    return found


def _pauses(load: Load, window_s: float, weights: Sequence[float], *, is_emergency: bool) -> list[Option]:
    shed = _shed(
        load, load.draw_w - load.curve.idle_w
    )  # the devices stay powered: what they draw at rest remains
    found = []

    def add(lever: Lever, takes_s: float, lost_s: float) -> None:
        lost = round(load.n_devices * (window_s + lost_s + load.restart_s) * MILLI)
        cost = round(weights[load.tier] * lost)
        found.append(Option(lever, shed_uw=shed, cost_ms=cost, lost_ms=lost, takes_s=takes_s))

    if load.checkpoint_s != inf:
        # The checkpoint stands for the next regular one, which need not be written: its time is not lost twice.
        add(Lever.PAUSE, load.checkpoint_s, 0.0)
    elif not is_emergency:
        add(Lever.PAUSE, 0.0, load.at_risk_s)  # it saves nothing: what it did is done again
    if is_emergency:
        add(Lever.STOP, STOPS_WITHIN_S, load.at_risk_s)
    return found


def _shed(load: Load, watts_each: float) -> tuple[tuple[int, int], ...]:
    each = max(0, round(watts_each * MICRO))
    return tuple((limit, int(each * n)) for limit, n in sorted(load.devices_under.items()) if n and each)


def _worth_while(options: list[Option]) -> list[Option]:
    """Without those that shed no more anywhere than another one that costs no more."""
    if len({limit for option in options for limit, _ in option.shed_uw}) <= 1:
        return _worth_while_of_one(options)
    sheds = [dict(option.shed_uw) for option in options]

    def is_idle(n: int) -> bool:
        option, shed = options[n], sheds[n]
        for m, other in enumerate(options):
            if m == n or other.cost_ms > option.cost_ms or other.takes_s > option.takes_s:
                continue
            if (other.cost_ms, other.shed_uw) == (option.cost_ms, option.shed_uw):
                continue
            if all(sheds[m].get(limit, 0) >= watts for limit, watts in shed.items()):
                return True
        return False

    return [option for n, option in enumerate(options) if option.lever is Lever.NONE or not is_idle(n)]


def _worth_while_of_one(options: list[Option]) -> list[Option]:
    """The same where there is one limit."""
    told = [(option.total_uw, option.cost_ms, option.takes_s) for option in options]
    kept = []
    for option, (shed, cost, takes_s) in zip(options, told, strict=True):
        is_idle = option.lever is not Lever.NONE and any(
            more >= shed and less <= cost and sooner <= takes_s and (more != shed or less != cost)
            for more, less, sooner in told
        )
        if not is_idle:
            kept.append(option)
    return kept

"""What demand-response events leave each domain to draw at an instant: for planner and power control alike.

Only events with a committed plan count: what nobody committed to binds nobody. From the ramp on nobody gets power back
that would stand in the way of the target, and nothing starts that is not over before it binds. Afterwards the load
comes back by the domain's ramp and under the rebound limit; until everybody who was slowed has their power back nothing
else starts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Final

from django.db.models import Exists, OuterRef, Q

from apps.jobs.models import Allocation
from apps.power.budget_selectors import envelope_limits_w
from apps.power.curtailment.facts import Lever
from apps.power.models import (
    LONGEST_RECOVERY_S,
    ActionState,
    CurtailmentAction,
    DemandResponseEvent,
    PowerHold,
)
from apps.power.response import limit_it_w
from apps.power.response_selectors import answered, meter_of, response_of

MINUTE_S: Final = 60.0
LOOKED_BACK: Final = timedelta(seconds=LONGEST_RECOVERY_S)


@dataclass(frozen=True, slots=True)
class Bound:
    """What one event leaves its domain now, in watts of IT load; inf: nothing is said.

    Attributes:
        start_w: New work must fit under it.
        rise_w: What was slowed must fit under it when it gets its power back.
    """

    event: DemandResponseEvent
    start_w: float
    rise_w: float


def in_force(at: datetime) -> list[DemandResponseEvent]:
    """Events with a committed plan whose ramp has begun and whose recovery is not over, the first priority first."""
    done = CurtailmentAction.objects.filter(plan__event=OuterRef("pk"))
    # Caps that are not given back, pauses that nobody has resumed, and who was resumed under a cap.
    held = done.exclude(state=ActionState.REVERTED)
    coming_back = Allocation.objects.filter(
        job__in=done.exclude(lever=Lever.CAP.value).values("job_id"),
        ended_at=None,
        desired_power_cap_share__lt=1.0,
    )
    rows = (
        answered()
        .filter(is_test=False, ramp_start_at__lte=at, end_at__gt=at - LOOKED_BACK)
        .annotate(has_slowed=Exists(held) | Exists(coming_back))
        .order_by("priority", "start_at", "id")
    )
    return [event for event in rows if counts(event, at)]


def counts(event: DemandResponseEvent, at: datetime) -> bool:
    """Whether an event that somebody committed to does, or did, something that still matters."""
    over_at = binds_until(event)
    if over_at < event.ramp_start_at:
        return False  # given up before it did anything
    return event.released_at is None or at < ramps_until(event)


def binds_until(event: DemandResponseEvent) -> datetime:
    """Its end, or when it was given up."""
    return response_of(event).binds_until_at


def recovers_until(event: DemandResponseEvent) -> datetime:
    """When its rebound limit ends."""
    return binds_until(event) + timedelta(seconds=event.recovery_s)


def ramp_step_w(event: DemandResponseEvent) -> float | None:
    """By how much the load of its domain may rise in a minute, in watts of IT load; None: by anything."""
    limit = getattr(event.domain, "power_limit", None)
    ramp: float | None = None if limit is None else limit.ramp_up_w_per_s
    return None if ramp is None else ramp * MINUTE_S


def ramps_until(event: DemandResponseEvent) -> datetime:
    """When its domain may rise at any rate: as long again after the rebound limit, which held back who waits."""
    n_times = 1 if ramp_step_w(event) is None else 2
    return binds_until(event) + timedelta(seconds=n_times * event.recovery_s)


def bounds(rows: Iterable[DemandResponseEvent], at: datetime) -> list[Bound]:
    """What these events, of in_force(), leave their domains."""
    return [_bound(event, at) for event in rows]


def _bound(event: DemandResponseEvent, at: datetime) -> Bound:
    meter = meter_of(event.domain)
    response = response_of(event)
    target_w = limit_it_w(response, meter)
    target_w = inf if target_w is None else target_w
    over_at = response.binds_until_at
    if at < event.start_at:
        # Until the target binds, what is over by then may still start: see `ahead`.
        return Bound(event, inf, target_w)
    if at < over_at:
        return Bound(event, target_w, target_w)
    rise_w = inf
    if at < recovers_until(event) and event.reference_w is not None:
        rise_w = meter.it_w(event.reference_w * event.rebound_limit_share)
    if at < ramps_until(event) and ramp_step_w(event) is not None:
        # Nobody has noted yet from where it comes back: it stays where it is.
        rise_w = min(rise_w, event.ramped_w or 0.0)
    start_w = rise_w
    if event.has_slowed:  # type: ignore[attr-defined]
        # Before those who were slowed nobody takes what comes back: only what others give up since the last minute.
        drawn_w = target_w if event.ramped_w is None else event.ramped_w - (ramp_step_w(event) or 0.0)
        start_w = min(rise_w, drawn_w)
    return Bound(event, start_w, rise_w)


def start_limits_w(at: datetime) -> Mapping[int, float]:
    """By domain id, what new work must fit under beside the limit that always holds; nothing fits where too little is
    known of what is drawn."""
    told = list(envelope_limits_w(at).items())
    told += [(bound.event.domain_id, bound.start_w) for bound in bounds(in_force(at), at)]
    told += [(domain_id, 0.0) for domain_id in PowerHold.objects.values_list("domain_id", flat=True)]
    return _tightest(told)


def rise_limits_w(at: datetime) -> Mapping[int, float]:
    """By domain id, what everything must fit under when somebody gets power back."""
    return _tightest((bound.event.domain_id, bound.rise_w) for bound in bounds(in_force(at), at))


def _tightest(told: Iterable[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for domain_id, watts in told:
        if watts < inf:
            found[domain_id] = min(watts, found.get(domain_id, inf))
    return found


def next_change_at(at: datetime) -> datetime | None:
    """The next instant at which what events leave a domain changes by time alone; None: none does."""
    marks: list[datetime] = []
    ahead = Q(ramp_start_at__gt=at) | Q(end_at__gt=at - LOOKED_BACK)
    for event in answered().filter(ahead, is_test=False):
        over_at = binds_until(event)
        ends_at = ramps_until(event)
        marks += [event.ramp_start_at, event.start_at, over_at, recovers_until(event), ends_at]
        if over_at <= at < ends_at and ramp_step_w(event) is not None and event.ramped_at:
            n = (at - event.ramped_at) // timedelta(seconds=MINUTE_S) + 1
            marks.append(event.ramped_at + n * timedelta(seconds=MINUTE_S))
    return min((mark for mark in marks if mark > at), default=None)

"""What a demand-response event asks for, and where it stands: pure, of its times and of what was done.

Nothing here is remembered between two calls, so after a crash the same facts give the same answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

LEVEL_SHARES: Final = (0.0, 0.10, 0.25, 0.40)  # of the reference, by level 0 to 3
WITHIN_SHARE: Final = 0.02  # a load so little over what is allowed counts as back within it


class TargetKind(StrEnum):
    SHED_BY = "shed_by"  # watts below the reference
    LIMIT_TO = "limit_to"  # watts
    LEVEL = "level"  # 0 to 3, each a share of the reference


class Phase(StrEnum):
    """Where an event stands, in the order in which phases follow."""

    SCHEDULED = "scheduled"
    NOTIFIED = "notified"
    RAMPING = "ramping"
    ACTIVE = "active"
    RECOVERING = "recovering"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


OVER: Final = frozenset({Phase.COMPLETED, Phase.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When an event is told, begins to bite, binds and ends; each no earlier than the one before."""

    notified_at: datetime
    ramp_start_at: datetime
    start_at: datetime
    end_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """What people, and the release of the last action, did to an event; None: not done."""

    cancelled_at: datetime | None = None
    opted_out_at: datetime | None = None
    released_at: datetime | None = None

    @property
    def given_up_at(self) -> datetime | None:
        """When the event was cancelled or opted out of, whichever came first."""
        return min((at for at in (self.cancelled_at, self.opted_out_at) if at is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the domain draws and may draw, on the same side of the meter; a load of None is not known."""

    draw_w: float | None = None
    allowed_w: float | None = None  # None: whatever it likes

    @property
    def is_within(self) -> bool:
        """Whether it is back within what is allowed. What is not known is not within: it may be anything."""
        if self.allowed_w is None:
            return True
        return self.draw_w is not None and self.draw_w <= self.allowed_w * (1 + WITHIN_SHARE)


def phase_of(
    times: Times,
    acts: Acts,
    *,
    has_committed_plan: bool,
    is_all_reverted: bool,
    load: Load,
    at: datetime,
) -> Phase:
    """Where an event stands at an instant.

    An event that nobody committed a plan for touches nothing: it stays notified until it ends. What is given
    up before the ramp has nothing to undo; what is given up later is released first. An act counts from its
    own instant on, and giving up after the end changes nothing.

    Args:
        has_committed_plan: A plan is or was in force for it.
        is_all_reverted: No action of it is left in force.
    """
    given_up_at = acts.given_up_at
    is_given_up = given_up_at is not None and given_up_at <= at and given_up_at < times.end_at
    if is_given_up and given_up_at is not None:
        if given_up_at < times.ramp_start_at or not has_committed_plan:
            return Phase.CANCELLED
        return Phase.CANCELLED if _is_released(acts, is_all_reverted, load, at) else Phase.RECOVERING
    if at < times.notified_at:
        return Phase.SCHEDULED
    if at >= times.end_at:
        is_done = not has_committed_plan or _is_released(acts, is_all_reverted, load, at)
        return Phase.COMPLETED if is_done else Phase.RECOVERING
    if at < times.ramp_start_at or not has_committed_plan:
        return Phase.NOTIFIED
    return Phase.RAMPING if at < times.start_at else Phase.ACTIVE


def _is_released(acts: Acts, is_all_reverted: bool, load: Load, at: datetime) -> bool:
    # Once noted it stays: the load that grows afterwards, of new work, opens no old event again.
    if acts.released_at is not None and acts.released_at <= at:
        return True
    return is_all_reverted and load.is_within


@dataclass(frozen=True, slots=True)
class Meter:
    """How a domain's reading follows from its IT load: fixed + k x IT. Below the facility: the same."""

    fixed_w: float = 0.0
    k: float = 1.0

    def it_w(self, meter_w: float) -> float:
        """IT load behind a level at the meter."""
        return max(0.0, (meter_w - self.fixed_w) / self.k)

    def it_shed_w(self, meter_shed_w: float) -> float:
        """IT load that must go for the meter to fall by so much.

        By k alone: the fixed part stays whatever is shed. The PUE holds a share of it: it asks too little.
        """
        return meter_shed_w / self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An event as far as it bounds what its domain draws; watts on the domain's own side of the meter.

    Attributes:
        reference_w: Mean before the notice; None: not frozen yet.
        rebound_limit_share: Of the reference; what the load may come back to for `recovery_s` after it.
    """

    times: Times
    target_kind: TargetKind
    value: float
    acts: Acts = Acts()
    reference_w: float | None = None
    recovery_s: float = 0.0
    rebound_limit_share: float = 1.05
    priority: int = 1
    is_test: bool = False

    @property
    def binds_until_at(self) -> datetime:
        """Its end, or when it was given up before that."""
        given_up_at = self.acts.given_up_at
        return self.times.end_at if given_up_at is None else min(given_up_at, self.times.end_at)

    def binds(self, at: datetime) -> bool:
        """Whether its target holds at this instant: from the start to the end, the end not included."""
        return not self.is_test and self.times.start_at <= at < self.binds_until_at

    def rebounds(self, at: datetime) -> bool:
        """Whether the load is held back after it. What was given up before its ramp held nothing down."""
        until_at = self.binds_until_at
        if self.is_test or until_at < self.times.ramp_start_at:
            return False
        return until_at <= at < until_at + timedelta(seconds=self.recovery_s)


def target_it_w(
    target_kind: TargetKind, value: float, *, reference_w: float | None, meter: Meter
) -> float | None:
    """The IT load a target leaves; None where it counts from a reference that is not known."""
    if target_kind is TargetKind.LIMIT_TO:
        return meter.it_w(value)
    if reference_w is None:
        return None
    shed_w = value if target_kind is TargetKind.SHED_BY else LEVEL_SHARES[int(value)] * reference_w
    return max(0.0, meter.it_w(reference_w) - meter.it_shed_w(shed_w))


def limit_it_w(response: Response, meter: Meter) -> float | None:
    """The IT load that an event leaves its domain while it binds."""
    return target_it_w(response.target_kind, response.value, reference_w=response.reference_w, meter=meter)


def effective_limit_w(responses: Iterable[Response], *, meter: Meter, at: datetime) -> float | None:
    """What the events of one domain leave it at an instant, in watts of IT load; None: they do not bind.

    The strictest one counts, never the sum: a load that meets it meets the others too. While one recovers,
    its rebound limit counts like a target.
    """
    told = list(responses)
    limits = [limit_it_w(one, meter) for one in told if one.binds(at)]
    limits += [
        meter.it_w(base_w * one.rebound_limit_share)
        for one, base_w in zip(told, _rebound_bases_w(told), strict=True)
        if base_w is not None and one.rebounds(at)
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def needed_shed_w(responses: Iterable[Response], *, meter: Meter, draw_w: float, at: datetime) -> float:
    """IT load that must go from `draw_w`, of IT load, for every event of one domain to be met."""
    limit_w = effective_limit_w(responses, meter=meter, at=at)
    return 0.0 if limit_w is None else max(0.0, draw_w - limit_w)


def _rebound_bases_w(responses: Sequence[Response]) -> list[float | None]:
    """By event, the load that its rebound limit is a share of.

    A reference that was taken while another event held the load down is no normal load: coming back to it
    would keep the domain curtailed after both have ended. The other event's counts then, if it is higher.
    """
    order = sorted(range(len(responses)), key=lambda index: responses[index].times.notified_at)
    bases: list[float | None] = [None] * len(responses)
    for index in order:
        told_at = responses[index].times.notified_at
        known = [
            bases[other]
            for other in order
            if other != index
            and not responses[other].is_test
            and responses[other].times.ramp_start_at <= told_at < responses[other].binds_until_at
        ]
        found = [base for base in (responses[index].reference_w, *known) if base is not None]
        bases[index] = max(found, default=None)
    return bases

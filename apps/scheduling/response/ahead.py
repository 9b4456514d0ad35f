"""What is known to come: limits that change by the clock or with an event, and work that will be slowed or freed.

The planner counts on it, so that nothing starts that would have to be stopped when a limit falls, and what waits is
promised the hour at which it rises. Only events with a committed plan count, as in `limits`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from typing import Final

from django.db.models import Exists, OuterRef

from apps.jobs.models import Allocation, Observed, StopCause
from apps.power.budget import Budget
from apps.power.budget_selectors import LOOK_AHEAD
from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import HARD
from apps.power.models import ActionState, CurtailmentAction, DemandResponseEvent, PlanState, PowerLimit
from apps.power.response import limit_it_w
from apps.power.response_selectors import answered, meter_of, response_of
from apps.power.selectors import budgets, it_w_of
from apps.scheduling.response.limits import (
    LOOKED_BACK,
    MINUTE_S,
    binds_until,
    counts,
    ramp_step_w,
    ramps_until,
    recovers_until,
)

_MINUTE: Final = timedelta(seconds=MINUTE_S)
_MOST_RAMP_STEPS: Final = 240


@dataclass(frozen=True, slots=True)
class LimitAhead:
    """From then on new work in a domain must fit under so much IT load, beside the limit that always holds.

    Attributes:
        limit_w: inf: nothing is said any more.
        is_target: It is the target of an event that has not begun: of what is drawn, not of what is reserved.
    """

    at: datetime
    domain_id: int
    limit_w: float
    is_target: bool = False
    is_envelope: bool = False  # what runs is slowed to it, as far as its tier bears: see `envelopes`


@dataclass(frozen=True, slots=True)
class CapAhead:
    """From then on the devices of a running attempt draw at most this share of their TDP; 0: it is paused."""

    at: datetime
    allocation_id: int
    share: float


@dataclass(frozen=True, slots=True)
class Ahead:
    """Everything that is known to come.

    Attributes:
        resumed: Jobs that an event had paused, and that go before all others now that it is over, until they start.
    """

    limits: tuple[LimitAhead, ...] = ()
    caps: tuple[CapAhead, ...] = ()
    resumed: frozenset[int] = frozenset()


def look_ahead(at: datetime) -> Ahead:
    """Two queries where nothing is announced; a third for what committed plans do to jobs, a fourth where pauses
    of theirs are over.
    """
    envelopes = budgets()
    rows = [
        event
        for event in answered().filter(is_test=False, end_at__gt=at - LOOKED_BACK)
        if counts(event, at) and binds_until(event) >= event.ramp_start_at
    ]
    by_domain: dict[int, list[DemandResponseEvent]] = defaultdict(list)
    for event in rows:
        by_domain[event.domain_id].append(event)
    limits: list[LimitAhead] = []
    for domain_id in sorted(envelopes.keys() | by_domain.keys()):
        limits += _of_domain(domain_id, envelopes.get(domain_id), by_domain.get(domain_id, ()), at)
    caps, resumed = _of_plans(rows, at) if rows else ((), frozenset())
    return Ahead(tuple(limits), caps, resumed)


def _of_domain(
    domain_id: int,
    envelope: tuple[PowerLimit, Budget] | None,
    events: Sequence[DemandResponseEvent],
    at: datetime,
) -> list[LimitAhead]:
    courses = [_Course(event) for event in events]
    marks = {mark for course in courses for mark in course.marks if mark > at}
    if envelope is not None:
        marks.update(envelope[1].changes_at(at, at + LOOK_AHEAD))
    found: list[LimitAhead] = []
    for mark in sorted(marks):
        told = [
            LimitAhead(mark, domain_id, course.limit_w(mark), is_target=course.is_ahead(at, mark))
            for course in courses
        ]
        if envelope is not None and (watts := envelope[1].envelope_w(mark)) is not None:
            told.append(LimitAhead(mark, domain_id, it_w_of(envelope[0], watts), is_envelope=True))
        then = min(told, key=lambda one: one.limit_w, default=LimitAhead(mark, domain_id, inf))
        if not found or replace(then, at=found[-1].at) != found[-1]:
            found.append(then)
    return found


class _Course:
    """What one event leaves its domain, from now until it no longer counts."""

    def __init__(self, event: DemandResponseEvent) -> None:
        meter = meter_of(event.domain)
        self.event = event
        target_w = limit_it_w(response_of(event), meter)
        self.target_w = inf if target_w is None else target_w
        self.over_at = binds_until(event)
        self.begins_at = event.start_at
        self.recovers_until, self.ramps_until = recovers_until(event), ramps_until(event)
        self.rebound_w = inf
        if event.reference_w is not None:
            self.rebound_w = meter.it_w(event.reference_w * event.rebound_limit_share)
        self.step_w = ramp_step_w(event)
        # Of an event that still binds nobody knows from which load it will come back: at the least from its target.
        self.from_at = event.ramped_at or self.over_at
        self.from_w = self.target_w if event.ramped_w is None else event.ramped_w
        self.marks = [self.begins_at, self.over_at, self.recovers_until, self.ramps_until]
        self.full_at = self.over_at  # when all that was slowed may have its power back
        if self.step_w is not None and self.from_w < inf:
            rise_w = self.rebound_w - self.from_w
            n = _MOST_RAMP_STEPS if rise_w == inf else int(max(0.0, rise_w) // self.step_w) + 1
            steps = [self.from_at + i * _MINUTE for i in range(1, min(n, _MOST_RAMP_STEPS) + 1)]
            self.marks += [mark for mark in steps if mark < self.ramps_until]
            self.full_at = min(steps[-1], self.ramps_until)

    def limit_w(self, at: datetime) -> float:
        """Watts of IT load that it leaves then; inf: it says nothing."""
        if at < self.begins_at:
            return inf
        if at < self.over_at:
            return self.target_w
        limit_w = self.rebound_w if at < self.recovers_until else inf
        if self.step_w is not None and self.from_w < inf and at < self.ramps_until:
            n_minutes = max(0, (at - self.from_at) // _MINUTE)
            if n_minutes <= _MOST_RAMP_STEPS:
                limit_w = min(limit_w, self.from_w + self.step_w * n_minutes)
        return limit_w

    def is_ahead(self, now: datetime, at: datetime) -> bool:
        """Whether it is a target then, of an event that has not begun now."""
        return self.begins_at > now and self.begins_at <= at < self.ramps_until


_OPEN: Final = (ActionState.REQUESTED, ActionState.ACKED, ActionState.VERIFIED)


def _of_plans(
    events: Sequence[DemandResponseEvent], at: datetime
) -> tuple[tuple[CapAhead, ...], frozenset[int]]:
    """What committed plans do to running work later than now; and whose pause is over."""
    course_of = {event.pk: _Course(event) for event in events}
    spans: dict[int, list[tuple[datetime, datetime, float]]] = defaultdict(list)
    base: dict[int, float] = {}
    paused: set[int] = set()  # by plan: attempts
    for event_id, lever, state, before, after in CurtailmentAction.objects.filter(
        plan__event__in=course_of, plan__state=PlanState.COMMITTED
    ).values_list("plan__event_id", "lever", "state", "before", "after"):
        course = course_of[event_id]
        if lever in HARD and at >= course.over_at:
            paused.add(before.get("allocation_id", 0))
        if state not in _OPEN or after.get("is_bridge") or lever == Lever.SHRINK:
            continue  # of one that shrinks another attempt goes on
        allocation_id = before.get("allocation_id", 0)
        share = after["share"] if lever == Lever.CAP else 0.0
        base[allocation_id] = before.get("share", 1.0)
        spans[allocation_id].append((course.event.start_at, course.full_at, share))
    found: list[CapAhead] = []
    for allocation_id, asked in spans.items():
        for mark in sorted({mark for start, end, _ in asked for mark in (start, end) if mark > at}):
            shares = [share for start, end, share in asked if start <= mark < end]
            found.append(CapAhead(mark, allocation_id, min([base[allocation_id], *shares])))
    return tuple(found), _still_behind(paused) if paused else frozenset()


def _still_behind(attempts: Iterable[int]) -> frozenset[int]:
    """Jobs whose attempt a pause really ended, and that have not started again since.

    How an action was judged says nothing of it: one that was late, or never carried out, is given back like the others.
    """
    ended = Allocation.objects.filter(
        pk__in=attempts, stop_cause=StopCause.PAUSE, ended_at__isnull=False, observed_state=Observed.ENDED
    )
    newer = Allocation.objects.filter(
        job=OuterRef("job"), fence__gt=OuterRef("fence"), observed_started_at__isnull=False
    )
    return frozenset(ended.exclude(Exists(newer)).values_list("job_id", flat=True))


def first_change_at(ahead: Ahead) -> datetime | None:
    """The next instant at which any of it comes; None: nothing does."""
    marks = [*(one.at for one in ahead.limits), *(one.at for one in ahead.caps)]
    return min(marks, default=None)

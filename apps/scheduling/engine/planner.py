"""One pass: what starts now, what is promised a start, and why the rest waits.

Pure: the same snapshot and policy give the same plan, bit for bit, and nothing is decided by a name or by the order
of rows. The queue is walked once, in order. A gang that fits starts; the first `backfill_depth` that do not fit are
promised the earliest start their declared limits allow, and whatever comes behind starts only if it moves none of
those promises (Lifka 1995, EASY, for depth 1; Mu'alem and Feitelson 2001 for more).
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from operator import attrgetter, itemgetter

import numpy as np

from apps.scheduling.engine import explain
from apps.scheduling.engine.calendar import OVERDUE_S, Calendar, Promise, Window
from apps.scheduling.engine.caps import caps_of, under_cap
from apps.scheduling.engine.data import Data
from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    BoolArray,
    Evict,
    Gang,
    IntArray,
    Placing,
    Plan,
    Policy,
    Reserve,
    Resize,
    Shape,
    Snapshot,
    Stage,
    Start,
    Wait,
)
from apps.scheduling.engine.forecast import forecast
from apps.scheduling.engine.fragments import Fragments, Present, demand_of
from apps.scheduling.engine.frame import Frame, frame_of
from apps.scheduling.engine.order import order_queue
from apps.scheduling.engine.placement import (
    Found,
    Terms,
    holds_devices,
    is_spread,
    kinds_of,
    place,
    total_steps,
)
from apps.scheduling.engine.predict import predicted_s
from apps.scheduling.engine.preempt import Preemptor
from apps.scheduling.engine.quota import QuotaTree
from apps.scheduling.engine.resize import grow
from apps.scheduling.engine.rules import ALL, Rules
from apps.scheduling.engine.sizes import (
    Sizer,
    end_after,
    least_sizes,
    may_resize,
    preferred_sizes,
    relative_rate,
    sizes_of,
)
from apps.scheduling.engine.state import State, charge_of
from apps.scheduling.engine.sums import Needs, Sums
from apps.scheduling.engine.units import FULL

_EMPTY = Rules(
    quota=False, member_limit=False, reservation=False, staging=False, priority=True, resources=False
)
_WISHES = {"n_replicas", "kinds", "any_kind", "preferred", "max_wait_s"}  # or told apart by themselves
_judged = attrgetter(*(field.name for field in fields(Ask) if field.name not in _WISHES))
_UNSUMMED = 2  # questions after a change that are not answered by sums


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide what starts now, what is promised, and say why the rest waits."""
    with without_collection():
        return Pass(snapshot, policy).run()


def plan_and_left(snapshot: Snapshot, policy: Policy) -> tuple[Plan, Present]:
    """As `plan`; and what it leaves free now: (dev, cpu, mem), free millionths of each device, of each node."""
    with without_collection():
        walk = Pass(snapshot, policy)
        decided, now = walk.run(), walk.calendar.now
        return decided, (now.dev, now.cpu, now.mem)


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for garbage in cycles meanwhile: in a heap of a hundred thousand jobs each takes as long as a plan."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


Blocked = tuple[int, Gang, int]  # rank, gang, class of jobs


@dataclass(frozen=True, slots=True)
class Offer:
    """A place a gang could have, from then till then (at the latest)."""

    found: Found
    start_s: float
    end_s: float
    cap: float = 1.0


def class_of(gang: Gang, account: int) -> tuple[object, ...]:
    """What decides where a job may start, and whom it may evict, its limit aside: of two that are equal in it, the
    longer does not start where the shorter cannot."""
    work_s = gang.work_s if gang.limit_s == inf else inf
    return id(gang.shape), account, gang.priority, gang.datasets, work_s, gang.tier, gang.saving is None


def _any_devices(gang: Gang, placing: Placing) -> Placing:
    """The same nodes, with any whole devices there: what a job takes of those is named when it starts."""
    return tuple(
        share if gang.shape.asks[share.group].share_steps else replace(share, devices=()) for share in placing
    )


class Pass:
    """The state of one walk along the queue."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.snapshot, self.policy = snapshot, policy
        later = frozenset(change.domain for change in snapshot.limit_changes if change.limit_w != inf)
        self.frame: Frame = frame_of(snapshot.facility, later)
        rights = (snapshot.teams, snapshot.members) if snapshot.quota_is_checked else ((), ())
        self.tree = QuotaTree(rights[0], len(self.frame.kinds), rights[1])
        self.calendar = Calendar(self.frame, self.tree, snapshot)
        self.now_s = snapshot.now_s
        self.starts: list[Start] = []
        self.waits: list[Wait] = []
        self.reserves: list[Reserve] = []
        self.evictions: list[Evict] = []
        self.resizes: list[Resize] = []
        self.stages: dict[tuple[int, int], Stage] = {}
        self._capped_shapes: dict[tuple[int, int, float], Shape] = {}
        self.promised: dict[int, Promise] = {}  # by waiting job, as it stands in the calendar
        self.data = Data(snapshot)
        self.sizer = Sizer()
        self.preemptor: Preemptor | None = None
        self.boundary_s = inf
        self.n_promises = 0
        self.n_quota_promises = 0
        self.strictly_behind: Gang | None = None
        self.running_of_array: dict[int, int] = {}
        for running in snapshot.running:
            if running.gang.array != NONE:
                self.running_of_array[running.gang.array] = (
                    self.running_of_array.get(running.gang.array, 0) + 1
                )
        self.borrowing: set[int] = set()  # teams that began to borrow in this pass
        self.gone: set[int] = set()  # running jobs that were evicted or resized in this pass
        self._by_choice = False  # the gang looked at last waits for a kind that ends it earlier
        self._failed: dict[tuple[object, ...], list[tuple[int, float]]] = {}
        self._classes: dict[tuple[object, ...], int] = {}
        self._patience_s: dict[int, float] = {}  # by shape: how long it would rather wait for what it prefers
        self._no_place: dict[int, int] = {}  # by shape: on no kind a place now by sums, as of that version
        self._waiting: list[float] = []  # by class of jobs: those of a longer limit cannot start in this pass
        self._sums_version = NONE
        self._sums = Sums(self.frame, self.calendar.now)  # of the state now, as of that version of it
        self._n_asked = 0
        self.needs = Needs(self.frame)
        # Whether quota allows so much of these kinds to an account, as of that version of the calendar.
        self._within: dict[tuple[int, int, tuple[int, ...]], bool] = {}
        self._within_version = NONE
        self._within_of: dict[int, tuple[int, bool]] = {}  # by class: the same, as of then
        self._endless: dict[int, float] = {}  # by class: nor can those be promised a later start
        self._numbers: dict[tuple[object, ...], int] = {}  # see `needs_of`
        self._needs_of: dict[int, int] = {}  # by shape
        self._families: dict[tuple[object, ...], int] = {}  # those that differ in their replicas alone
        self._family: dict[int, int] = {}  # by shape
        self._kinds: dict[int, tuple[int, ...]] = {}
        self._elastic: dict[int, bool] = {}
        self._steps: dict[int, int] = {}
        self._possible: dict[int, bool] = {}
        self._slowest: dict[tuple[int, bool], float] = {}
        self._may_use: dict[tuple[int, bool], BoolArray] = {}

    @cached_property
    def fragments(self) -> Fragments | None:
        """How single replicas are placed where shares of devices are asked for; None elsewhere."""
        if not self.policy.packing:
            return None
        gangs = [*self.snapshot.queue, *(running.gang for running in self.snapshot.running)]
        shapes = {id(gang.shape): gang.shape for gang in gangs}
        if not any(ask.share_steps for shape in shapes.values() for ask in shape.asks):
            return None
        return Fragments(self.frame, demand_of(gangs, len(self.frame.kinds)))

    def run(self) -> Plan:
        depth = self.policy.backfill_depth
        blocked: list[Blocked] = []
        shortest = self.policy.backfill_order == "shortest" and depth is not None
        kept = self._keep_promises() if self.policy.keeps_promises else {}
        promised = {reserve.job_id: reserve for reserve in self.snapshot.promises}
        earmarked = self._take_earmarks()
        pending = self._line(earmarked, kept)
        position = 0
        while position < len(pending):
            rank, gang, alike, is_ready = pending[position]
            position += 1
            if is_ready and gang.limit_s > self._waiting[alike] and self._gets_no_promise(gang, alike):
                blocked.append((rank, gang, alike))
                continue
            if shortest and depth is not None and self.n_promises >= depth > 0:
                # All promises are made: the rest is only backfilled, the shortest first (EASY-SJBF).
                pending[position - 1 :] = sorted(
                    pending[position - 1 :], key=lambda p: self._expected_s(p[1])
                )
                rank, gang, alike, is_ready = pending[position - 1]
                shortest = False
            if gang.id in earmarked:
                if earmarked[gang.id]:
                    blocked.append((rank, gang, alike))
                continue
            own = explain.own_reason(self, gang, rank)
            if own is not None:
                self.waits.append(own)
                continue
            if self.strictly_behind is not None:
                blocked.append((rank, gang, alike))
                continue
            if gang.id in kept and not self.snapshot.ended_early and promised[gang.id].start_s > self.now_s:
                self.reserves.append(promised[gang.id])
                self.promised[gang.id] = kept[gang.id]
                blocked.append((rank, gang, alike))
                continue
            if gang.id in kept:
                # Taken out and put back where it is earliest now, which is never later than it was promised.
                self.calendar.withdraw(kept.pop(gang.id))
                self._forget_failures()
            if gang.limit_s > self._waiting[alike] and self._gets_no_promise(gang, alike):
                blocked.append((rank, gang, alike))
                continue
            wished, gang = gang, self._insisting(gang)
            offer = self._now(gang)
            if offer is None and self.policy.keeps_promises and gang.id in promised:
                offer = self._as_promised(gang, promised[gang.id])
            if offer is not None:
                self._start(gang, offer)
                continue
            if self.policy.preemption and not self._by_choice and self._preempt(gang):
                continue
            if wished is gang and not self._by_choice:
                longer_s = self.shortest_to_fail(gang, gang.limit_s)
                self._waiting[alike] = min(longer_s, self._waiting[alike])
            blocked.append((rank, gang, alike if wished is gang else self._class(gang)))
            at_quota = not self._is_within(gang)
            if depth == 0:
                if gang.datasets and (offer := self.earliest(gang, self.kinds(gang.shape))) is not None:
                    self.send(gang, {share.node for share in offer.found.placing})
                if not at_quota and gang.shape.reservation == NONE:
                    self.strictly_behind = gang
            elif at_quota:
                # Its own quota frees it at a known time: it is promised that, but takes no other job's promise away.
                if depth is None or self.n_quota_promises < depth:
                    self.n_quota_promises += self._promise_within_quota(gang)
            elif depth is None or self.n_promises < depth:
                self.n_promises += self._promise(gang)
        if self.policy.resizing:
            grow(self)
        if self.policy.explain:
            expected_s = self._forecast(blocked)
            explainer = explain.Explainer(self)
            gangs = {gang.id: gang for gang in self.snapshot.queue} if self.waits else {}
            self.waits = [
                explainer.unready(wait, gangs[wait.job_id], expected_s.get(wait.job_id))
                for wait in self.waits
            ]
            self.waits.extend(explainer.why_all(blocked, expected_s))
        self.waits.sort(key=attrgetter("rank"))
        for booking in self.calendar.bookings:
            for at_s in (booking.start_s, booking.end_s):
                if at_s > self.now_s:
                    self.boundary_s = min(self.boundary_s, at_s)
        for reserve in self.reserves:
            self.boundary_s = min(self.boundary_s, reserve.start_s)
        snapshot = self.snapshot
        changes_s = [*(c.at_s for c in snapshot.limit_changes), *(c.at_s for c in snapshot.cap_changes)]
        self.boundary_s = min([self.boundary_s, *(at_s for at_s in changes_s if at_s > self.now_s)])
        return Plan(
            tuple(self.starts),
            tuple(self.waits),
            tuple(self.reserves),
            tuple(self.evictions),
            tuple(self.resizes),
            tuple(self.stages[key] for key in sorted(self.stages)),
            next_boundary_s=self.boundary_s,
        )

    def _line(self, *apart: Mapping[int, object]) -> list[tuple[int, Gang, int, bool]]:
        """The queue in order: rank, gang, its class, and whether it is certain that it is ready.

        Args:
            apart: Jobs that are looked at one by one in any case.
        """
        now_s, special = self.now_s, set().union(*apart)
        queue = order_queue(self.snapshot, self.policy)
        ready = [
            not (
                gang.is_held
                or gang.waits_for
                or gang.not_before_s > now_s
                or gang.retry_s > now_s
                or gang.array != NONE
                or gang.shape.reservation != NONE
            )
            for gang in queue
        ]
        if special:
            ready = [is_ready and gang.id not in special for gang, is_ready in zip(queue, ready, strict=True)]
        return list(zip(range(1, len(queue) + 1), queue, map(self._class, queue), ready, strict=True))

    def _expected_s(self, gang: Gang) -> float:
        """How long it will probably run, never over its limit."""
        return min(predicted_s(gang, self.snapshot.history_s), gang.limit_s)

    def _class(self, gang: Gang) -> int:
        """The number of the gang's class."""
        alike = class_of(gang, self.tree.account(gang))
        number = self._classes.get(alike)
        if number is None:
            number = self._classes[alike] = len(self._classes)
            self._waiting.append(inf)
        return number

    def _forecast(self, blocked: Sequence[Blocked]) -> dict[int, float]:
        """When each waiting job will probably start; nobody can tell of those that are held or wait for others."""
        unready = {wait.job_id: wait for wait in self.waits if wait.code not in ("held", "dependency")}
        waiting = [gang for _, gang, _ in blocked]
        if unready:
            gangs = {gang.id: gang for gang in self.snapshot.queue if gang.id in unready}
            later = [(wait.rank, gangs[wait.job_id]) for wait in unready.values()]
            in_order = sorted([*((rank, gang) for rank, gang, _ in blocked), *later], key=itemgetter(0))
            waiting = [gang for _, gang in in_order]
        at_least_s = {
            w.job_id: w.expected_start_s for w in unready.values() if w.expected_start_s is not None
        }
        return forecast(
            self.snapshot,
            self.frame,
            self.tree,
            self.starts,
            self.reserves,
            waiting,
            at_least_s,
            self.gone,
        )

    def _gets_no_promise(self, gang: Gang, alike: int) -> bool:
        """Whether all promises are made, of the kind that this job (of that class) could have."""
        depth = self.policy.backfill_depth
        if depth is None or not 0 < depth <= self.n_promises:
            return False
        if depth <= self.n_quota_promises:
            return True
        version, is_within = self._within_of.get(alike, (NONE, False))
        if version != self.calendar.version:
            is_within = self._is_within(gang)
            self._within_of[alike] = self.calendar.version, is_within
        return is_within

    def _is_within(self, gang: Gang) -> bool:
        """Whether its quota allows it now, at the smallest size at which it runs."""
        if self._within_version != self.calendar.version:
            self._within_version = self.calendar.version
            self._within.clear()
        least = self.least(gang)
        key = self.tree.account(gang), self.steps(least.shape), self.kinds(gang.shape)
        is_within = self._within.get(key)
        if is_within is None:
            is_within = self._within[key] = self.within_quota(least)
        return is_within

    def _keep_promises(self) -> dict[int, Promise]:
        """Put the last pass's promises into the calendar, as far as they lie ahead."""
        gangs = {gang.id: gang for gang in self.snapshot.queue}
        kept: dict[int, Promise] = {}
        if any(r.start_s < self.now_s and r.job_id in gangs for r in self.snapshot.promises):
            # This pass comes late: what was promised fits together no longer, and is promised anew, in order.
            return kept
        # Promises were made as if whoever was evicted had gone at once, and counted on power as it was known then: some
        # are still there, and an event that has begun, or is called off, leaves more or less than was foreseen.
        is_sure = not self.frame.has_limits and not any(
            running.is_leaving for running in self.snapshot.running
        )
        for reserve in self.snapshot.promises:
            gang = gangs.get(reserve.job_id)
            if gang is None:
                continue
            found = Found(reserve.placing, int(self.frame.kind[reserve.placing[0].node]), "")
            end_s = self._exact_end_s(gang, found, reserve.start_s)
            # What falls due now holds its place from the next instant on, until its turn comes: whoever is looked at
            # before it and starts now would meet it there.
            start_s = max(reserve.start_s, float(np.nextafter(self.now_s, inf)))
            charge = charge_of(self.frame, self.tree, gang, reserve.placing)
            promise = self.calendar.promise if is_sure else self.calendar.promise_if_free
            made = promise(gang, charge, start_s, end_s)
            if made is not None:
                kept[gang.id] = made
        return kept

    def _take_earmarks(self) -> dict[int, bool]:
        """Places that were freed for jobs: a job whose place is free starts there, the others keep theirs promised.

        Returns:
            By job, whether it still waits.
        """
        earmarked: dict[int, bool] = {}
        if not self.snapshot.earmarks:
            return earmarked
        gangs = {gang.id: gang for gang in self.snapshot.queue}
        leaving = [running for running in self.snapshot.running if running.is_leaving]
        moving = {running.gang.id: running.gang for running in leaving}
        leave_s: dict[int, list[float]] = {}  # by node: when those who were asked to leave will be gone
        for running in leaving:
            for node in {share.node for share in running.placing}:
                leave_s.setdefault(node, []).append(self.calendar.held[running.gang.id].end_s)
        for reserve in self.snapshot.earmarks:
            if reserve.job_id in moving:
                there = {share.node for share in reserve.placing}
                free_s = max((end_s for node in there for end_s in leave_s.get(node, ())), default=self.now_s)
                self._keep_for(moving[reserve.job_id], reserve.placing, free_s)
                continue
            gang = gangs.get(reserve.job_id)
            if (
                gang is None
                or explain.own_reason(self, gang, 0) is not None
                or not self.snapshot.is_usable[[s.node for s in reserve.placing]].all()
            ):
                continue
            offer = self._as_promised(gang, replace(reserve, start_s=self.now_s))
            if offer is not None:
                self._start(gang, offer)
                earmarked[gang.id] = False
                continue
            nodes = {share.node for share in reserve.placing}
            if gang.is_elastic and leave_s.keys().isdisjoint(nodes):
                continue  # nobody leaves that it waits for: another size may do at once
            start_s = max(
                reserve.start_s,
                self.now_s + OVERDUE_S,
                *(end_s for node in nodes for end_s in leave_s.get(node, ())),
            )
            placing = _any_devices(gang, reserve.placing)
            found = Found(placing, int(self.frame.kind[placing[0].node]), "")
            promise = None
            if start_s != inf:
                end_s = self._exact_end_s(gang, found, start_s)
                charge = charge_of(self.frame, self.tree, gang, placing)
                if self._is_inside(gang, start_s, end_s):
                    promise = self.calendar.promise_if_free(gang, charge, start_s, end_s)
            if promise is None:
                continue  # somebody else is, or will be, there: it looks for a place as any other job does
            self.promised[gang.id] = promise
            self.reserves.append(Reserve(gang.id, start_s, reserve.placing))
            earmarked[gang.id] = True
        return earmarked

    def _is_inside(self, gang: Gang, start_s: float, end_s: float) -> bool:
        """Whether that time lies in the reservation that the gang asks for, if it asks for one."""
        if gang.shape.reservation == NONE:
            return True
        booking = self.snapshot.bookings[gang.shape.reservation]
        return booking.start_s <= start_s and end_s <= booking.end_s

    def _keep_for(self, gang: Gang, placing: Placing, free_s: float) -> None:
        """Keep the place in which a job goes on while it still leaves another, where its quota and its watts count.

        Args:
            free_s: When all have left it who were asked to; the job itself may be one of them.
        """
        there = charge_of(self.frame, self.tree, gang, _any_devices(gang, placing))
        nothing = np.zeros(0, dtype=np.int64)
        charge = replace(there, draw=np.zeros_like(there.draw), kinds=nothing, steps=nothing)
        start_s = max(self.now_s + OVERDUE_S, free_s)
        self.calendar.promise_if_free(gang, charge, start_s, start_s + gang.limit_s)

    # -- one gang ---------------------------------------------------------------------------------------------------

    def _insisting(self, gang: Gang) -> Gang:
        """The gang, as if what it prefers were required, while it would rather wait for that."""
        patience_s = self._patience_s.get(id(gang.shape))
        if patience_s is None:
            patience_s = max((a.max_wait_s for a in gang.shape.asks if a.preferred), default=0.0)
            self._patience_s[id(gang.shape)] = patience_s
        until_s = gang.submitted_s + patience_s
        if until_s <= self.now_s:
            return gang
        insisting = self.sizer.insisting(gang)
        if not self._could_ever_start(insisting):
            return gang
        self.boundary_s = min(self.boundary_s, until_s)
        return insisting

    def _could_ever_start(self, gang: Gang) -> bool:
        """Whether its nodes, if nothing ran there, could hold the gang at its least."""
        known = self._possible.get(id(gang.shape))
        if known is None:
            least, now = self.least(gang), self.calendar.now
            known = self._possible[id(gang.shape)] = any(
                self.fit(least, kind, now, 0.0, rules=_EMPTY, named=False) is not None
                for kind in self.kinds(gang.shape)
            )
        return known

    def least(self, gang: Gang) -> Gang:
        """The gang at the smallest size at which it runs."""
        is_elastic = self._elastic.get(id(gang.shape))
        if is_elastic is None:
            is_elastic = self._elastic[id(gang.shape)] = gang.is_elastic
        return self.sizer.at(gang, least_sizes(gang)) if is_elastic else gang

    def _preempt(self, gang: Gang) -> bool:
        """Start a gang on what others give up for it; False if nobody must or may."""
        if self.preemptor is None:
            self.preemptor = Preemptor(self)
        room = self.preemptor.make_room(self.least(gang))
        if room is None:
            return False
        self.preemptor.carry_out(room)
        self._forget_failures()
        offer = self._now(gang, room.kind)
        if offer is None:  # cannot be: the trial has shown a place
            raise AssertionError(f"job {gang.id} does not start although its victims are gone")
        for running in room.evicted:
            victim = running.gang
            if victim.array != NONE:
                self.running_of_array[victim.array] -= 1
            rule = "priority" if victim.priority < gang.priority else "reclaim"
            lost = self.preemptor.cost_of(running)
            self.evictions.append(Evict(victim.id, gang.id, rule, lost))
            self.gone.add(victim.id)
        for running, placing in room.shrunk:
            end_s = end_after(running, placing, self.now_s)
            self.resizes.append(Resize(running.gang.id, placing, gang.id, end_s))
            self.gone.add(running.gang.id)
        self._start(gang, offer)
        spared = self.preemptor.spare()
        if spared:
            back = {running.gang.id for running in spared}
            self.evictions = [evict for evict in self.evictions if evict.job_id not in back]
            self.gone -= back
            for running in spared:
                if running.gang.array != NONE:
                    self.running_of_array[running.gang.array] += 1
        return True

    def kinds(self, shape: Shape) -> tuple[int, ...]:
        """Kinds to try, best first; one stand-in for gangs without devices."""
        kinds = self._kinds.get(id(shape))
        if kinds is None:
            found = kinds_of(shape)
            kinds = self._kinds[id(shape)] = (0,) if found is None else found
        return kinds

    def duration_s(self, gang: Gang, kind: int) -> float:
        """How long it holds its place at the most: its declared limit, or its work on the slowest nodes."""
        if gang.limit_s != inf:
            return gang.limit_s
        if gang.work_s == inf:
            return inf
        holds = holds_devices(gang.shape)
        if (kind, holds) not in self._slowest:
            # Without devices it may run on any node, at the node's own speed.
            speeds = self.frame.speeds[kind] if holds else (float(self.frame.speed.min(initial=1.0)),)
            pace = (speeds[-1] if speeds else 1.0) * (self.frame.kinds[kind].speed if holds else 1.0)
            self._slowest[kind, holds] = pace
        return gang.work_s / self._slowest[kind, holds]

    def _exact_end_s(self, gang: Gang, found: Found, start_s: float) -> float:
        ready = self.data.ready_s(gang)
        if ready is not None:
            start_s = max(start_s, *(float(ready[share.node]) for share in found.placing))
        if gang.limit_s != inf:
            return start_s + gang.limit_s
        if gang.work_s == inf:
            return inf
        return start_s + gang.work_s / self._speed_there(gang, found)

    def _pace(self, gang: Gang, found: Found) -> float:
        """Time one unit of work takes there: what kinds are compared by."""
        return 1.0 / self._speed_there(gang, found)

    def _speed_there(self, gang: Gang, found: Found) -> float:
        """Units of work it does there in a second."""
        holds = holds_devices(gang.shape)
        speed = min(float(self.frame.speed[s.node]) for s in found.placing)
        if gang.is_elastic:
            speed *= relative_rate(gang, sizes_of(gang, found.placing))
        return speed * (self.frame.kinds[found.kind].speed if holds else 1.0)

    def within_quota(
        self,
        gang: Gang,
        windows: Sequence[Window] = ((1, ()),),
        *kinds: int,
        is_new: bool = True,
    ) -> bool:
        """Whether its team, and its member, may take the whole gang of one of these kinds, now and through the window.

        Args:
            is_new: False: it is more of a job that runs already.
        """
        steps, account = self.steps(gang.shape), self.tree.account(gang)
        counts = is_new and self.tree.limits_jobs(account)
        if not steps and not counts:
            return True
        left, is_one = self.calendar.quota_left_now, len(windows) == 1
        for i, kind in enumerate(kinds or self.kinds(gang.shape)):
            n = windows[0 if is_one else i][0]
            if (not steps or left(account, kind, n) >= steps) and (
                not counts or left(account, self.tree.jobs, n) >= FULL
            ):
                return True
        return False

    def steps(self, shape: Shape) -> int:
        """Millionths of devices that a gang of this shape holds."""
        steps = self._steps.get(id(shape))
        if steps is None:
            steps = self._steps[id(shape)] = total_steps(shape)
        return steps

    def _best_pace(self, gang: Gang, kind: int) -> float:
        if not holds_devices(gang.shape):
            return 1.0 / float(self.frame.speed.max())
        return (
            1.0 / (self.frame.speeds[kind][0] * self.frame.kinds[kind].speed)
            if self.frame.speeds[kind]
            else inf
        )

    def _quota_allows(
        self,
        gang: Gang,
        kind: int,
        first: State,
        until_s: float,
        states: Sequence[State],
        *,
        is_new: bool,
    ) -> bool:
        """Whether its team, and its member, may take the whole gang of this kind through the window.

        Args:
            states: Where given, these instants alone are looked at.
            is_new: As in `within_quota`.
        """
        if gang.team == NONE or not self.tree.teams:
            return True
        if first is self.calendar.now and not states:
            return self.within_quota(gang, [self.calendar.window_of(gang, until_s)], kind, is_new=is_new)
        account, steps = self.tree.account(gang), self.steps(gang.shape)
        wanted = [(kind, steps)] if steps else []
        if is_new and self.tree.limits_jobs(account):
            wanted.append((self.tree.jobs, FULL))
        if states:
            return all(
                self.tree.available(state.use, account, column) >= amount
                for state in states
                for column, amount in wanted
            )
        return all(
            self.calendar.quota_left_in(first, until_s, account, column) >= amount
            for column, amount in wanted
        )

    def may_use(self, gang: Gang, *, unhealthy: bool = True) -> BoolArray:
        """(n,) nodes that are healthy and of the cluster it names."""
        key = (gang.shape.cluster, unhealthy)
        if key not in self._may_use:
            mask = self.snapshot.is_usable if unhealthy else np.ones(self.frame.n_nodes, dtype=bool)
            self._may_use[key] = (
                mask if gang.shape.cluster == NONE else mask & (self.frame.cluster == gang.shape.cluster)
            )
        return self._may_use[key]

    def replicas(self, placing: Placing, g: int) -> IntArray:
        """(n,) replicas of group g on each node."""
        counts = np.zeros(self.frame.n_nodes, dtype=np.int64)
        for share in placing:
            if share.group == g:
                counts[share.node] += share.n_replicas
        return counts

    def is_spread(self, gang: Gang, placing: Placing) -> bool:
        """Whether a job that goes on with this placing lies as far apart as it asks."""
        for g, ask in enumerate(gang.shape.asks):
            if ask.spread is None:
                continue
            replicas = self.replicas(placing, g)
            nodes = np.flatnonzero(replicas)
            kind = int(self.frame.kind[nodes[0]]) if len(nodes) else NONE
            if not is_spread(self.frame, ask, Terms(self.may_use(gang), kind=kind), replicas):
                return False
        return True

    def fit(
        self,
        gang: Gang,
        kind: int,
        first: State,
        duration_s: float,
        *,
        rules: Rules = ALL,
        named: bool,
        hold_s: float = 0.0,
        within: BoolArray | None = None,
        already: IntArray | None = None,
        whether: bool = False,
    ) -> Found | None:
        """A place for the gang from the instant of `first` on, for that long; None if some rule forbids it.

        Args:
            whether: It is asked only whether there is a place; where it lies is not told if that would take longer.
            hold_s: How long its devices may wait for its data.
            within: (n,) nodes that may be used beside what the rules say.
            already: (n,) replicas that it has there already.
        """
        until_s = first.at_s + duration_s
        calendar = self.calendar
        if rules.quota:
            states: Sequence[State] = ()  # where promises count, the calendar keeps the least at hand
            if not rules.priority:
                states = calendar.without_promises(until_s)
            if not self._quota_allows(gang, kind, first, until_s, states, is_new=already is None):
                return None
        if first is calendar.now and self.cannot_hold(gang.shape, kind, rules):
            return None
        may_use = healthy = self.may_use(gang, unhealthy=rules.unhealthy)
        if within is not None:
            may_use = may_use & within
        ready = self.data.ready_s(gang) if rules.staging else None
        if ready is not None:
            may_use = may_use & (ready <= first.at_s + hold_s)
        only: IntArray | None = None
        view = calendar.view(gang, first, until_s, promises=rules.priority, reservations=rules.reservation)
        floor = view.floor
        if calendar.bookings:
            if view.shut is not None:
                may_use = may_use.copy()
                may_use[view.shut] = False
            if gang.shape.reservation != NONE:
                position = calendar.position.get(gang.shape.reservation)
                if position is None or not self._is_inside(gang, first.at_s, until_s):
                    return None
                booked = calendar.booked_nodes[position]
                only = np.minimum.reduce(
                    [np.maximum(0, booked - state.in_use(self.frame, position)) for state in floor.states]
                )
                may_use = may_use & (booked > 0)
        for mask in self._within_one_cluster(gang, may_use):
            terms = Terms(
                mask,
                only=only,
                power=rules.power,
                topology=rules.topology,
                busy=rules.resources,
                packing=self.policy.packing,
                named=named,
                spread=rules.spread,
                healthy=healthy,
                already=already,
                kind=kind if holds_devices(gang.shape) else NONE,
                fragments=self.fragments if named else None,
                whether=whether,
            )
            found = place(self.frame, gang.shape, kind, floor, terms)
            if found is not None:
                return found
        return None

    def cannot_hold(self, shape: Shape, kind: int, rules: Rules) -> bool:
        """Whether a look at sums alone shows that there is no place for this shape now, whatever else holds."""
        if self._sums_version != self.calendar.version:
            self._sums_version = self.calendar.version
            self._sums = Sums(self.frame, self.calendar.now)
            self._n_asked = 0
        self._n_asked += 1
        if self._n_asked <= _UNSUMMED:
            return False  # what changes with every start is not summed up each time
        needs = self.needs.of(shape, kind)
        return (rules.power and self._sums.lacks_power(needs, kind)) or (
            rules.resources and self._sums.lacks_devices(needs, kind)
        )

    def _within_one_cluster(self, gang: Gang, may_use: BoolArray) -> Iterator[BoolArray]:
        """The nodes it may use, a cluster at a time: one backend carries a gang, no gang lies in two."""
        clusters = self.frame.clusters
        if len(clusters) < 2 or gang.shape.cluster != NONE:
            yield may_use
            return
        for cluster in clusters:
            mask = may_use & (self.frame.cluster == cluster)
            if mask.any():
                yield mask

    def _now(self, gang: Gang, only_kind: int | None = None) -> Offer | None:
        """The best place the gang can have now, or None; None too if waiting a little ends it earlier."""
        kinds = self.kinds(gang.shape)
        if self._no_place.get(id(gang.shape)) == self.calendar.version:
            self._by_choice = False
            return self._capped(gang, kinds, only_kind)
        offers: list[tuple[float, int, int, Offer]] = []
        missing: list[int] = []
        least = self.least(gang)
        n_closed = 0
        for preference, kind in enumerate(kinds):
            if only_kind not in (None, kind):
                continue
            if self.cannot_hold(least.shape, kind, ALL):
                missing.append(kind)
                n_closed += 1
                continue
            duration = self.duration_s(least, kind)
            if self.is_hopeless(least, kind, duration):
                missing.append(kind)
                continue
            found = self._largest(gang, least, kind, duration)
            if found is None:
                self._remember(least, kind, duration)
                missing.append(kind)
                continue
            end_s = self._exact_end_s(gang, found, self.now_s)
            added = (found.score or 0) if all(ask.any_kind for ask in gang.shape.asks) else 0
            offers.append((self._pace(gang, found), added, preference, Offer(found, self.now_s, end_s)))
        self._by_choice = False
        if n_closed == len(kinds):
            self._no_place[id(gang.shape)] = self.calendar.version
        if not offers:
            return self._capped(gang, kinds, only_kind)
        pace, _, preference, best = min(offers, key=lambda offer: offer[:3])
        if missing and only_kind is None and self._waits_for_better(gang, missing, kinds, pace, preference):
            self._by_choice = True
            return None
        return best

    def _capped(self, gang: Gang, kinds: tuple[int, ...], only_kind: int | None) -> Offer | None:
        """A place now under the highest power cap that fits and that the tier bears, where full power does not."""
        if not gang.tier or not self.frame.has_limits:
            return None
        for kind in kinds:
            steps = caps_of(gang, self.frame.kinds[kind]) if only_kind in (None, kind) else ()
            low, high, best = 0, len(steps), None
            while low < high:  # the first is the deepest cap: where that does not fit none does
                middle = high - 1 if best is None else (low + high) // 2
                cap, rate = steps[middle]
                offer = self._under(gang, kind, cap, rate)
                if offer is None:
                    if best is None:
                        break
                    low = middle + 1
                else:
                    high, best = middle, offer
            if best is not None:
                return best
        return None

    def _under(self, gang: Gang, kind: int, cap: float, rate: float) -> Offer | None:
        capped = self._capped_gang(gang, kind, cap)
        least = self.least(capped)
        duration = self.duration_s(least, kind)
        if gang.limit_s == inf:
            duration /= rate
        if self.is_hopeless(least, kind, duration):
            return None
        found = self._largest(capped, least, kind, duration)
        if found is None:
            self._remember(least, kind, duration)
            return None
        end_s = self._exact_end_s(capped, found, self.now_s)
        if gang.limit_s == inf:
            end_s = self.now_s + (end_s - self.now_s) / rate
        return Offer(found, self.now_s, end_s, cap)

    def _capped_gang(self, gang: Gang, kind: int, cap: float) -> Gang:
        """The gang under a cap; gangs of one shape share the shape they have then."""
        key = (id(gang.shape), kind, cap)
        shape = self._capped_shapes.get(key)
        if shape is None:
            shape = self._capped_shapes[key] = under_cap(gang, self.frame.kinds[kind], cap).shape
        return replace(gang, shape=shape)

    def _as_promised(self, gang: Gang, reserve: Reserve) -> Offer | None:
        """The place that the gang was promised, if its time has come: it lasts there no longer than was counted on.

        Elsewhere it may last longer, on slower nodes, and a search for any place counts on the slowest.
        """
        if reserve.start_s > self.now_s:
            return None
        nodes = [share.node for share in reserve.placing]
        sized = self.sizer.at(gang, sizes_of(gang, reserve.placing)) if gang.is_elastic else gang
        kind = int(self.frame.kind[nodes[0]])
        within = np.zeros(self.frame.n_nodes, dtype=bool)
        within[nodes] = True
        end_s = self._exact_end_s(gang, Found(reserve.placing, kind, ""), self.now_s)
        lasts_s, hold_s = end_s - self.now_s, self.policy.staging_hold_s if gang.datasets else 0.0
        now = self.calendar.now
        found = self.fit(sized, kind, now, lasts_s, named=True, hold_s=hold_s, within=within)
        return None if found is None else Offer(found, self.now_s, self._exact_end_s(gang, found, self.now_s))

    def _largest(self, gang: Gang, least: Gang, kind: int, duration_s: float) -> Found | None:
        """A place now for the gang at the largest size up to the preferred one that fits, near its data if it can."""
        holds_s: tuple[float, ...] = (0.0,)
        ready = self.data.ready_s(gang)
        if ready is not None and self.policy.staging_hold_s > 0:
            holds_s = (0.0, self.policy.staging_hold_s)
        for hold_s in holds_s:
            lasts_s = duration_s + hold_s
            found = self.fit(least, kind, self.calendar.now, lasts_s, named=True, hold_s=hold_s)
            if found is None:
                continue
            if not gang.is_elastic:
                return found
            sizes = list(least_sizes(gang))
            for g, most in enumerate(preferred_sizes(gang)):
                low, high = sizes[g], most
                while low < high:
                    middle = (low + high + 1) // 2
                    trial = self.sizer.at(gang, (*sizes[:g], middle, *sizes[g + 1 :]))
                    lasts_s = self.duration_s(trial, kind) + hold_s
                    larger = self.fit(trial, kind, self.calendar.now, lasts_s, named=True, hold_s=hold_s)
                    if larger is None:
                        high = middle - 1
                    else:
                        low, found = middle, larger
                sizes[g] = low
            return found
        return None

    def _waits_for_better(
        self, gang: Gang, missing: list[int], kinds: tuple[int, ...], pace: float, preference: int
    ) -> bool:
        """Whether a kind that is busy now would still finish it earlier than the best that is free."""
        depth = self.policy.backfill_depth
        work_s = min(gang.limit_s, gang.work_s)
        if work_s == inf or depth == 0 or (depth is not None and self.n_promises >= depth):
            return False
        faster = [k for k in missing if 1.0 / self.frame.kinds[k].speed < pace]
        if not faster:
            return False
        later = self.earliest(gang, tuple(faster))
        if later is None:
            return False
        return later.start_s + work_s * self._pace(gang, later.found) < self.now_s + work_s * pace

    def _start(self, gang: Gang, offer: Offer) -> None:
        placing = offer.found.placing
        drawing = gang if offer.cap == 1.0 else self._capped_gang(gang, offer.found.kind, offer.cap)
        charge = charge_of(self.frame, self.tree, drawing, placing)
        self.calendar.start(gang, charge, offer.end_s)
        if gang.array != NONE:
            self.running_of_array[gang.array] = self.running_of_array.get(gang.array, 0) + 1
        kind = offer.found.kind if holds_devices(gang.shape) else NONE
        nodes = {s.node for s in placing}
        why = {
            "level": offer.found.level,
            "n_nodes": len(nodes),
            "backfilled": self.n_promises > 0,
        }
        self.starts.append(Start(gang.id, placing, kind, offer.end_s, offer.cap, why))
        if kind != NONE and self.tree.borrows(self.calendar.now.use, gang.team, kind):
            self.borrowing.add(gang.team)
        if may_resize(gang, self.policy) and self.policy.resize_dwell_s > 0:
            self.boundary_s = min(
                self.boundary_s, self.now_s + self.policy.resize_dwell_s
            )  # it may grow then
        self.send(gang, nodes)

    def send(self, gang: Gang, nodes: set[int]) -> None:
        """Have the data that it needs there sent there."""
        for dataset, domain in self.data.missing(gang, nodes):
            until_s = self.data.sent_now_s(dataset)
            self.stages.setdefault((dataset, domain), Stage(dataset, domain, until_s, gang.id))

    def _promise(self, gang: Gang) -> bool:
        offer = self.earliest(gang, self.kinds(gang.shape))
        if offer is None:
            return False
        charge = charge_of(self.frame, self.tree, gang, offer.found.placing)
        self.promised[gang.id] = self.calendar.promise(gang, charge, offer.start_s, offer.end_s)
        self.reserves.append(Reserve(gang.id, offer.start_s, offer.found.placing))
        self.send(gang, {share.node for share in offer.found.placing})
        return True

    def _promise_within_quota(self, gang: Gang) -> bool:
        """As `_promise`, for one of many whom the same quota may hold for ever: of a class it is asked once."""
        alike = self._class(gang)
        failed_s = self._endless.get(alike)
        if failed_s is not None and gang.limit_s >= failed_s:
            return False
        is_promised = self._promise(gang)
        if not is_promised:
            self._endless[alike] = gang.limit_s
        return is_promised

    def earliest(self, gang: Gang, kinds: tuple[int, ...]) -> Offer | None:
        """The earliest finish that what is declared now allows, later than now; None if nobody can tell."""
        best: tuple[float, Offer] | None = None
        extra = [gang.not_before_s, gang.retry_s]
        if gang.shape.reservation != NONE:
            extra.append(self.snapshot.bookings[gang.shape.reservation].start_s)
        if self.calendar.bookings:
            extra.extend(b.start_s for b in self.calendar.bookings)
        work_s = min(gang.limit_s, gang.work_s)
        work_s = 0.0 if work_s == inf else work_s
        ready = self.data.ready_s(gang)
        if ready is not None:
            extra.extend(np.unique(ready).tolist())
        marks = [t for t in extra if self.now_s < t < inf]
        for kind in kinds:
            # A kind on which it could not end earlier, however good its place, is not looked at.
            fastest_s = work_s * self._best_pace(gang, kind)
            deadline_s = inf if best is None else best[0] - fastest_s
            for found in self._starts_on(gang, kind, marks, deadline_s, work_s):
                finish = found.start_s + work_s * self._pace(gang, found.found)
                if best is None or finish < best[0]:
                    best = (finish, found)
        return None if best is None else best[1]

    def _starts_on(
        self, gang: Gang, kind: int, marks: list[float], deadline_s: float, work_s: float
    ) -> Iterator[Offer]:
        """When it could start on nodes of one kind: the earliest first, then those on faster nodes that end earlier.

        Args:
            work_s: How long it takes at a pace of 1; 0: nobody knows.
        """
        full, gang = gang, self.least(gang)
        duration_s = self.duration_s(gang, kind)
        search = self.calendar.search(gang, kind, self.may_use(gang), duration_s, marks)
        hopeless_until_s = -inf
        while self.calendar.seek(search, deadline_s):
            state = search.state
            if state.at_s < hopeless_until_s:
                continue
            found = self.fit(gang, kind, state, duration_s, named=False)
            if found is not None:
                yield Offer(found, state.at_s, self._exact_end_s(full, found, state.at_s))
                lost_s = work_s * (self._pace(gang, found) - self._best_pace(gang, kind))
                deadline_s = min(deadline_s, state.at_s + lost_s)
                continue
            later = self.calendar.window(state, state.at_s + duration_s)[1:]
            # What is promised later forbids it alone: then nothing that is given back before helps.
            left_s = state.at_s + duration_s - later[0].at_s if later else 0.0
            if later and self.fit(gang, kind, later[0], left_s, named=False) is None:
                hopeless_until_s = later[0].at_s

    # -- what failed once in a pass fails again: nothing is given back within a pass ----------------------------------

    def failure_key(self, gang: Gang, kind: int) -> tuple[tuple[object, ...], int]:
        shape = gang.shape
        family = self._family.get(id(shape))
        if family is None:
            alike = self._judged_by(shape, 1 if len(shape.asks) == 1 else None)
            family = self._family[id(shape)] = self._families.setdefault(alike, len(self._families))
        account = self.tree.account(gang) if self.tree.teams else NONE
        key = (family, kind, account, self.calendar.allowed(gang), gang.datasets, self.calendar.yields(gang))
        return key, shape.asks[0].n_replicas

    @staticmethod
    def _judged_by(shape: Shape, n_replicas: int | None = None) -> tuple[object, ...]:
        """What of a shape decides on which nodes of one kind it has a place.

        Args:
            n_replicas: In place of its own.
        """
        asks = tuple(
            (
                ask.n_replicas if n_replicas is None else n_replicas,
                () if ask.devices or ask.share_steps else ask.kinds,
                *_judged(ask),
            )
            for ask in shape.asks
        )
        return asks, shape.cluster, shape.reservation

    def needs_of(self, shape: Shape) -> int:
        """A number; shapes that have the same one find the same places on nodes of one kind."""
        number = self._needs_of.get(id(shape))
        if number is None:
            number = self._numbers.setdefault(self._judged_by(shape), len(self._numbers))
            self._needs_of[id(shape)] = number
        return number

    def _forget_failures(self) -> None:
        self._failed.clear()
        self._endless.clear()
        self._waiting = [inf] * len(self._waiting)

    def is_hopeless(self, gang: Gang, kind: int, duration_s: float) -> bool:
        key, n = self.failure_key(gang, kind)
        return any(
            n >= failed_n and duration_s > failed_s for failed_n, failed_s in self._failed.get(key, ())
        )

    def shortest_to_fail(self, gang: Gang, duration_s: float) -> float:
        """Whatever of this shape lasts longer than this fails too, if it failed for so long."""
        if gang.shape.reservation != NONE:
            return float(np.nextafter(duration_s, -inf))  # the end of its reservation is no pinch
        return self.calendar.last_pinch_s(self.now_s + duration_s) - self.now_s

    def _remember(self, gang: Gang, kind: int, duration_s: float) -> None:
        key, n = self.failure_key(gang, kind)
        longer_s = self.shortest_to_fail(gang, duration_s)
        kept = [(m, s) for m, s in self._failed.get(key, ()) if m < n or s < longer_s]
        self._failed[key] = [*kept, (n, longer_s)]

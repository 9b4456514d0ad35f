"""A scenario in virtual time: what happens at each instant, and one pass of the real engine after it.

At one instant, in this order: running jobs end, jobs are submitted, the scenario's events take place, and then one
pass plans. So what is released at an instant is free for what starts at it. No plan is carried out before the
independent checker has gone over it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fractions import Fraction
from math import inf
from typing import Any, Final

import numpy as np

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine import checker, feasibility, planner
from apps.scheduling.engine.facts import (
    NONE,
    Facility,
    Fault,
    Gang,
    Impossible,
    Placing,
    Plan,
    Policy,
    Running,
    Snapshot,
    Start,
    Team,
    Wait,
)
from apps.simulation.fair_use import DecayedUse
from apps.simulation.losses import DRAINED, FAILED, RESERVED, USABLE, Ledger
from apps.simulation.meter import PowerMeter
from apps.simulation.replay.heap import Agenda, exact, plain
from apps.simulation.replay.progress import Attempt, declared_work_s
from apps.simulation.scenario import Cancel, NodeEvent, SetPowerLimit, SetQuota
from apps.simulation.world import SimJob, World, entitlement_of

Line = dict[str, Any]
ZERO: Final = Fraction(0)
MAX_IDLE_PASSES: Final = (
    10_000  # passes in a row in which nothing happens; more is an engine that never rests
)


class BrokenPlan(AssertionError):
    """The planner's plan breaks a rule; the simulation stops, because every line after it would be wrong."""

    def __init__(self, now_s: float, faults: Sequence[Fault]) -> None:
        told = "; ".join(f"{fault.rule}: {fault.message}" for fault in faults[:5])
        super().__init__(f"The plan at {now_s} s breaks a rule. {told}")
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Engine:
    """The engine's three answers, as functions, so that a test can put another in their place."""

    plan: Callable[[Snapshot, Policy], Plan] = planner.plan
    check: Callable[[Snapshot, Plan, Policy], Iterable[Fault]] = checker.check
    prove_impossible: Callable[[Facility, Sequence[Team], Gang], Impossible | None] = (
        feasibility.prove_impossible
    )
    stopwatch: Callable[[], float] = lambda: 0.0
    on_end: Callable[[], object] = lambda: None  # a job came to its end: for a progress bar


class Rank(IntEnum):
    """Which of the things of one instant comes first."""

    END, SUBMIT, EVENT, BOUNDARY, PASS = range(5)


@dataclass(frozen=True, slots=True)
class End:
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Submit:
    job: int


@dataclass(frozen=True, slots=True)
class Happening:
    event: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """Something that binds plans changes by itself: a reservation opens, a cool-down ends, a promise falls due."""

    node: int = NONE


@dataclass(frozen=True, slots=True)
class Pass:
    pass


Item = End | Submit | Happening | Boundary | Pass

# Of events at one instant those that take away come before those that give back.
_EVENT_ORDER: Final = {
    name: place
    for place, name in enumerate(
        ("cancel", "set_quota", "set_power_limit", "node_fail", "node_drain", "node_recover")
    )
}


@dataclass(slots=True)
class Life:
    """What has become of one job so far."""

    job: SimJob
    gang: Gang
    state: str = "pending"
    waits_for: set[int] = field(default_factory=set)
    done_s: Fraction = ZERO  # work that is safe
    ran_s: Fraction = ZERO
    lost_s: Fraction = ZERO
    held_step_s: Fraction = ZERO
    n_attempts: int = 0
    attempt: Attempt | None = None
    started: Fraction = ZERO
    placing: Placing = ()
    pace: Fraction = Fraction(1)
    kind: int = NONE
    first_start: Fraction | None = None
    eligible: Fraction | None = None  # when its dependencies had ended well
    end: Fraction | None = None
    code: str | None = None
    reason: str | None = None
    promised: tuple[float, Placing] | None = None
    kept_from: Fraction | None = None  # when the last attempt that it was cancelled in began
    is_doomed: bool = False  # a dependency can no longer succeed


@dataclass(frozen=True)
class Outcome:
    """Everything a report needs."""

    world: World
    lines: list[Line]
    lives: list[Life]
    horizon: Fraction
    ledger: Ledger
    meter: PowerMeter
    plan_seconds: list[float]


class Simulation:
    """One run of one scenario."""

    def __init__(self, world: World, engine: Engine) -> None:
        self.world, self.engine = world, engine
        self.agenda: Agenda[Item] = Agenda()
        self.lines: list[Line] = []
        self.lives = [Life(job, job.gang, waits_for=set(job.after)) for job in world.jobs]
        self.dependents: list[list[int]] = [[] for _ in world.jobs]
        for job in world.jobs:
            for before in job.after:
                self.dependents[before].append(job.index)
        self.facility = world.facility
        n = self.facility.n_nodes
        self.is_failed = np.zeros(n, dtype=bool)
        self.is_drained = np.zeros(n, dtype=bool)
        self.cools_until = np.full(n, -inf)
        self.on_node: list[set[int]] = [set() for _ in range(n)]
        self.teams = list(world.teams)
        self.running: dict[int, Running] = {}
        self.queue: dict[int, Gang] = {}
        self.use = DecayedUse(world.policy.half_life_s)
        self.ledger = Ledger(self.facility, world.bookings, world.jobs)
        self.meter = PowerMeter(self.facility)
        self.policy_row = world.scenario.policy
        self.plan_seconds: list[float] = []
        self.last = ZERO  # when something happened last
        self.is_changed = False
        self._boundaries: set[float] = set()
        self._n_idle_passes = 0
        self._doomed: deque[Life] = deque()
        self._is_dooming = False
        self._waits: tuple[Wait, ...] = ()
        self._booked_nodes = [frozenset(booking.nodes) for booking in world.bookings]
        self._built_limits = [domain.limit_w for domain in self.facility.domains]
        self._roomiest = self.facility
        self._proofs: dict[tuple[int, int], Impossible | None] = {}

    # -- the loop -----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Go on until nothing is left to happen, or until `until`."""
        for life in self.lives:
            self.agenda.put(life.job.submit, (Rank.SUBMIT, life.job.index), Submit(life.job.index))
        for index, event in enumerate(self.world.events):
            rank = (Rank.EVENT, _EVENT_ORDER[event.type], index)
            self.agenda.put(exact(event.t), rank, Happening(index))
        for booking in self.world.bookings:
            for at_s in (booking.start_s, booking.end_s):
                self._look_again(at_s)
            for node in booking.nodes:
                self._restate(node)
        self._judge()
        until = self.world.scenario.until
        while self.agenda and (until is None or self.agenda.next_s < until):
            self._instant()
        if until is not None:
            self._last_instant(exact(until))
        horizon = self.last if until is None else exact(until)
        self._settle_running(horizon)
        return Outcome(
            self.world, self.lines, self.lives, horizon, self.ledger, self.meter, self.plan_seconds
        )

    def _instant(self) -> None:
        items = self.agenda.take_instant()
        self.ledger.pass_time(self.agenda.now)
        self.meter.instant_over()
        for item in items:
            self._happen(item)
        if self.is_changed and self._may_plan_now():
            self.is_changed = False
            self._plan()
        self._judge()

    def _last_instant(self, until: Fraction) -> None:
        """At `until` itself what ends still ends, for it ran to the full; nothing begins."""
        while self.agenda and self.agenda.next_s <= float(until):
            for item in self.agenda.take_instant():
                if isinstance(item, End):
                    self.ledger.pass_time(self.agenda.now)
                    self._happen(item)
        self.ledger.pass_time(until)
        self.meter.instant_over()
        self.ledger.commit()

    def _happen(self, item: Item) -> None:
        match item:
            case End():
                self._end(item)
            case Submit():
                self._submit(self.lives[item.job])
            case Happening():
                self._event(item.event)
            case Boundary():
                self._boundary(item)
            case Pass():
                self.is_changed = True

    def _may_plan_now(self) -> bool:
        """Whether a pass is due; otherwise one is put on the agenda for the next multiple of the interval."""
        interval = exact(self.policy_row.pass_interval)
        if not interval:
            return True
        n_passes = -(-self.agenda.now // interval)
        due = n_passes * interval
        if float(due) == self.agenda.now_s:
            return True
        self.is_changed = False
        if float(due) not in self._boundaries:
            self._boundaries.add(float(due))
            self.agenda.put(due, (Rank.PASS,), Pass())
        return False

    def _touch(self) -> None:
        """Something happens now: time up to now counts, and the next pass has something to look at."""
        self.last = self.agenda.now
        self.ledger.commit()
        self.is_changed = True
        self._n_idle_passes = 0

    def _say(self, event: str, job: SimJob, **what: Any) -> None:
        self.lines.append({"t": plain(self.agenda.now), "event": event, "job": job.name, **what})

    def _look_again(self, at_s: float, node: int = NONE) -> None:
        if at_s == inf or (at_s in self._boundaries and node == NONE) or at_s <= self.agenda.now_s:
            return
        self._boundaries.add(at_s)
        self.agenda.put(exact(at_s), (Rank.BOUNDARY, node), Boundary(node))

    def _boundary(self, item: Boundary) -> None:
        self._boundaries.discard(self.agenda.now_s)
        for booking in self.world.bookings:
            if self.agenda.now_s in (booking.start_s, booking.end_s):
                for node in booking.nodes:
                    self._restate(node)
        if item.node != NONE:
            self._restate(item.node)
        self._n_idle_passes += 1
        if self._n_idle_passes > MAX_IDLE_PASSES:
            now_s = self.agenda.now_s
            raise AssertionError(f"Nothing happens any more, and the planner still looks ahead at {now_s} s.")
        self.is_changed = True

    # -- jobs come and go ---------------------------------------------------------------------------

    def _submit(self, life: Life) -> None:
        if life.state != "pending":
            return  # cancelled before it came
        self._touch()
        self._say("submit", life.job)
        life.state = "queued"
        if life.is_doomed:
            self._never(life)
            return
        impossible = self._prove_impossible(life.gang)
        if impossible is not None:
            life.state, life.code, life.reason = "rejected", impossible.code, impossible.sentence
            self._say("reject", life.job, code=impossible.code, reason=impossible.sentence)
            self._over(life, has_succeeded=False)
            return
        self._enqueue(life)

    def _prove_impossible(self, gang: Gang) -> Impossible | None:
        # Jobs of one shape fit or fail together; the answer changes with the facility alone.
        key = (id(self._roomiest), id(gang.shape))
        if key not in self._proofs:
            self._proofs[key] = self.engine.prove_impossible(self._roomiest, self.teams, gang)
        return self._proofs[key]

    def _enqueue(self, life: Life, *, retry_s: float = -inf) -> None:
        """Tell the engine of a waiting job as it stands now."""
        job = life.job
        limit_s = inf if job.limit is None else float(job.limit - life.ran_s)
        work_s = inf
        if job.limit is None:
            restart_s = ZERO if job.saving is None or not life.n_attempts else job.saving.restart_s
            left_s = job.runtime - life.done_s
            work_s = float(declared_work_s(left_s, restart_s=restart_s, saving=job.saving, paces=job.paces))
        life.gang = replace(
            job.gang,
            limit_s=limit_s,
            work_s=work_s,
            retry_s=max(retry_s, life.gang.retry_s),
            waits_for=tuple(self.world.jobs[i].name for i in job.after if i in life.waits_for),
        )
        self.queue[job.index] = life.gang

    def _start(self, start: Start) -> None:
        life = self.lives[start.job_id]
        job = life.job
        del self.queue[job.index]
        is_first = life.n_attempts == 0
        restart_s = ZERO if is_first or job.saving is None else job.saving.restart_s
        life.pace = self._pace(start)
        life.attempt = Attempt(job.runtime - life.done_s, life.pace, restart_s, job.saving)
        life.n_attempts += 1
        life.state, life.started, life.placing, life.kind = (
            "running",
            self.agenda.now,
            start.placing,
            start.kind,
        )
        life.code = life.reason = life.promised = None
        if is_first:
            life.first_start = self.agenda.now
        length = life.attempt.length_s
        left = length if job.limit is None else min(length, job.limit - life.ran_s)
        ends = self.agenda.now + left
        planned = ends if job.limit is None else self.agenda.now + job.limit - life.ran_s
        self.agenda.put(ends, (Rank.END, job.index), End(job.index, life.n_attempts))
        self.running[job.index] = Running(
            life.gang, start.placing, self.agenda.now_s, float(planned), start.cap
        )
        self._hold(life, 1)
        self._touch()
        self._say("start", job, placement=self.placement(job, start.placing), power_cap=_number(start.cap))

    def _pace(self, start: Start) -> Fraction:
        """Pace of the slowest member."""
        kinds, facility = self.facility.kinds, self.facility
        paces = [Fraction(1)] if not start.placing else []
        for share in start.placing:
            pace = exact(float(facility.speed[share.node]))
            if share.devices:
                pace *= exact(kinds[int(facility.kind[share.node])].speed)
            paces.append(pace)
        return min(paces)

    def _hold(self, life: Life, sign: int) -> None:
        job, now = life.job, self.agenda.now
        self.ledger.hold(life.placing, sign)
        self.meter.job(job, life.placing, now, sign)
        for share in life.placing:
            if sign > 0:
                self.on_node[share.node].add(job.index)
            else:
                self.on_node[share.node].discard(job.index)
        if job.gang.team != NONE and life.kind != NONE and self.world.has_teams:
            self.use.change(job.gang.team, life.kind, sign * job.device_steps, self.agenda.now_s)

    def _release(self, life: Life, *, is_lost: bool) -> Fraction:
        """Take a job off its devices; returns the running time that is lost."""
        assert life.attempt is not None
        elapsed = self.agenda.now - life.started
        self.ledger.attempt(life.job, life.placing, life.pace, life.attempt.split(elapsed, is_lost=is_lost))
        self._hold(life, -1)
        del self.running[life.job.index]
        life.ran_s += elapsed
        life.held_step_s += elapsed * life.job.device_steps
        lost = life.attempt.lost_s(elapsed) if is_lost else ZERO
        if is_lost:
            life.lost_s += lost
            life.done_s += life.attempt.saved_work_s(elapsed)
        life.attempt, life.placing = None, ()
        self._touch()
        return lost

    def _end(self, item: End) -> None:
        life = self.lives[item.job]
        if life.attempt is None or life.n_attempts != item.attempt:
            return  # it left before
        job = life.job
        is_timeout = job.limit is not None and life.attempt.length_s > job.limit - life.ran_s
        self._release(life, is_lost=False)
        life.state = "timed_out" if is_timeout else "succeeded"
        self._say("timeout" if is_timeout else "finish", job)
        self._over(life, has_succeeded=not is_timeout)

    def _cancel(self, life: Life, **why: Any) -> None:
        if life.state not in ("pending", "queued", "running"):
            return
        if life.state == "running":
            life.kept_from = life.started
            self._release(life, is_lost=False)
        self.queue.pop(life.job.index, None)
        self._touch()
        life.state = "cancelled"
        life.code, life.reason = why.get("code"), why.get("reason")
        self._say("cancel", life.job, **why)
        self._over(life, has_succeeded=False)

    def _never(self, life: Life) -> None:
        reason = "A job that it waits for did not finish well and never will."
        self._cancel(life, code="dependency_never_satisfied", reason=reason)

    def _over(self, life: Life, *, has_succeeded: bool) -> None:
        """A job has come to its end: those that wait for it may go on, or never will."""
        life.end = self.agenda.now
        life.promised = None
        self.engine.on_end()
        for index in sorted(self.dependents[life.job.index]):
            other = self.lives[index]
            if has_succeeded:
                other.waits_for.discard(life.job.index)
                if not other.waits_for:
                    other.eligible = self.agenda.now
                if index in self.queue:
                    self._enqueue(other)
            else:
                other.is_doomed = True
                self._doomed.append(other)
        if not self._is_dooming:
            self._is_dooming = True  # one loop, however long the chain of dependencies is
            while self._doomed:
                other = self._doomed.popleft()
                if other.state == "queued":
                    self._never(other)
            self._is_dooming = False

    # -- events -------------------------------------------------------------------------------------

    def _event(self, index: int) -> None:
        event = self.world.events[index]
        self._touch()
        match event:
            case Cancel():
                self._cancel(self.lives[self.world.job_at[event.job]])
            case SetQuota():
                team = self.world.team_at[event.team]
                entitlement = entitlement_of(event.quota, self.world.kind_at)
                self.teams[team] = replace(self.teams[team], entitlement=entitlement)
            case SetPowerLimit():
                self._set_power_limit(self.world.domain_at[event.domain], event.power_limit_w)
            case NodeEvent():
                node = self.world.node_at[event.node]
                if event.type == "node_fail":
                    self._fail(node)
                elif event.type == "node_drain":
                    self.is_drained[node] = True
                else:
                    self._recover(node)
                self._restate(node)
            case _:
                raise AssertionError(f"{event.type} is refused before a simulation begins")

    def _set_power_limit(self, domain: int, limit_w: float | None) -> None:
        limit = inf if limit_w is None else limit_w
        domains = list(self.facility.domains)
        domains[domain] = replace(domains[domain], limit_w=limit)
        self.facility = replace(self.facility, domains=tuple(domains))
        # A limit that is lowered for a while makes nothing impossible: judge by what was built, or by more.
        roomiest = [
            replace(domain, limit_w=max(domain.limit_w, built))
            for domain, built in zip(domains, self._built_limits, strict=True)
        ]
        self._roomiest = replace(self.facility, domains=tuple(roomiest))
        self._proofs.clear()

    def _fail(self, node: int) -> None:
        if self.is_failed[node]:
            return
        retry_s = (
            self.agenda.now_s + self.policy_row.retry_backoff_s if self.policy_row.retry_backoff_s else -inf
        )
        for index in sorted(self.on_node[node]):
            life = self.lives[index]
            lost = self._release(life, is_lost=True)
            life.state = "queued"
            self._say("node_lost", life.job, node=self.facility.node_name[node], lost_s=plain(lost))
            self._enqueue(life, retry_s=retry_s)
        self.is_failed[node] = True
        self.meter.node_down(node, self.agenda.now)
        self._look_again(retry_s)

    def _recover(self, node: int) -> None:
        if self.is_failed[node]:
            self.meter.node_up(node, self.agenda.now)
            if self.policy_row.cooldown_s:
                self.cools_until[node] = float(self.agenda.now + exact(self.policy_row.cooldown_s))
                self._look_again(float(self.cools_until[node]), node)
        self.is_failed[node] = self.is_drained[node] = False

    def _restate(self, node: int) -> None:
        """Tell the ledger what a node's free devices are."""
        now_s = self.agenda.now_s
        state = USABLE
        if self.is_failed[node] or self.cools_until[node] > now_s:
            state = FAILED
        elif self.is_drained[node]:
            state = DRAINED
        elif any(
            booking.start_s <= now_s < booking.end_s and node in nodes
            for booking, nodes in zip(self.world.bookings, self._booked_nodes, strict=True)
        ):
            state = RESERVED
        self.ledger.node_state(node, state)

    # -- planning -----------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        now_s = self.agenda.now_s
        teams = tuple(self.teams)
        if self.world.has_teams and self.queue:
            teams = tuple(
                replace(team, decayed_use_s=self.use.of(position, now_s))
                for position, team in enumerate(self.teams)
            )
        return Snapshot(
            now_s=now_s,
            facility=self.facility,
            is_usable=~(self.is_failed | self.is_drained | (self.cools_until > now_s)),
            is_failed=self.is_failed.copy(),
            running=tuple(self.running.values()),
            queue=tuple(self.queue.values()),
            teams=teams,
            bookings=self.world.bookings,
            quota_is_checked=bool(teams),  # labels own nothing and limit nothing
        )

    def _plan(self) -> None:
        if not self.queue:
            self._waits = ()
            return
        snapshot, policy = self._snapshot(), self.world.policy
        began_s = self.engine.stopwatch()
        plan = self.engine.plan(snapshot, policy)
        self.plan_seconds.append(self.engine.stopwatch() - began_s)
        faults = tuple(self.engine.check(snapshot, plan, policy))
        if faults:
            raise BrokenPlan(self.agenda.now_s, faults)
        for start in plan.starts:
            self._start(start)
        self.is_changed = False
        for wait in plan.waits:
            life = self.lives[wait.job_id]
            life.code, life.reason = wait.code, wait.sentence
        for reserve in plan.reserves:
            life = self.lives[reserve.job_id]
            promised = (reserve.start_s, reserve.placing)
            if life.promised != promised:
                life.promised = promised
                self._say(
                    "reserve",
                    life.job,
                    expected_start=_number(reserve.start_s),
                    placement=self.placement(life.job, reserve.placing),
                )
        self._look_again(plan.next_boundary_s)
        self._waits = plan.waits

    def _judge(self) -> None:
        running = [self.world.jobs[index] for index in self.running] if self.world.bookings else []
        waits = (wait for wait in self._waits if wait.job_id in self.queue)
        self.ledger.judge(self.agenda.now_s, waits, running)

    def placement(self, job: SimJob, placing: Placing) -> list[Line]:
        """A placement as the contract writes it."""
        groups = job.row.groups
        entries = []
        for share in placing:
            entry: Line = {
                "node": self.facility.node_name[share.node],
                "replicas": share.n_replicas,
                "devices": list(share.devices),
                "share": _number(share.share_steps / SHARE_STEPS),
            }
            if groups is not None:
                entry["group"] = groups[share.group].name
            entries.append(entry)
        return entries

    def _settle_running(self, horizon: Fraction) -> None:
        """Count what running jobs did up to the end of the simulation."""
        for index in self.running:
            life = self.lives[index]
            assert life.attempt is not None
            elapsed = horizon - life.started
            split = life.attempt.split(elapsed, is_lost=False)
            self.ledger.attempt(life.job, life.placing, life.pace, split)
            life.ran_s += elapsed
            life.held_step_s += elapsed * life.job.device_steps


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def simulate(world: World, engine: Engine | None = None) -> Outcome:
    """Run a scenario to its end."""
    return Simulation(world, engine or Engine()).run()

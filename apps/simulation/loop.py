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
from math import ceil, inf
from typing import Any, Final

import numpy as np

from apps.jobs.spec import SHARE_STEPS
from apps.power.curtailment.facts import Candidate, Curtailment, Problem
from apps.power.curtailment.options import candidate_of
from apps.power.curtailment.solve import solve
from apps.scheduling.engine import checker, feasibility, planner
from apps.scheduling.engine.facts import (
    NONE,
    BoolArray,
    Dataset,
    Evict,
    Facility,
    Fault,
    Gang,
    Impossible,
    Placing,
    Plan,
    Policy,
    Reserve,
    Resize,
    Running,
    Snapshot,
    Stage,
    Start,
    Team,
    Wait,
)
from apps.scheduling.engine.predict import History
from apps.scheduling.engine.sizes import rate_at, sizes_of
from apps.simulation.fair_use import DecayedUse
from apps.simulation.free import FreeMeter
from apps.simulation.losses import DRAINED, FAILED, RESERVED, USABLE, Ledger
from apps.simulation.meter import PowerMeter
from apps.simulation.replay.heap import Agenda, exact, plain
from apps.simulation.replay.progress import Attempt, Split, declared_work_s
from apps.simulation.response import Response
from apps.simulation.scenario import (
    Cancel,
    CancelDemandResponse,
    DemandResponse,
    NodeEvent,
    SetPowerLimit,
    SetQuota,
)
from apps.simulation.world import Begun, SimJob, World, entitlement_of

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
    candidate: Callable[..., Candidate] = candidate_of
    curtail: Callable[[Problem], Curtailment] = solve
    takes_turns: bool = True  # whether pauses may take turns where that is not enough
    # What goes wrong in answer to a power event: a command is lost; a reading is; checkpoints take so many times as
    # long as was said; jobs draw another multiple of what was said, by name (None: what was said); the controller is
    # dead over these windows: it commands nothing and starts nothing.
    loses_command: Callable[[], bool] = lambda: False
    loses_reading: Callable[[], bool] = lambda: False
    checkpoint_factor: int = 1
    true_draw: Callable[[str], float] | None = None
    dead: tuple[tuple[float, float], ...] = ()

    def is_dead(self, now_s: float) -> bool:
        """Whether the controller is dead then."""
        return any(since_s <= now_s < until_s for since_s, until_s in self.dead)


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
class Arrival:
    """A copy of a data set is there."""

    dataset: int
    domain: int


@dataclass(frozen=True, slots=True)
class Pass:
    pass


@dataclass(frozen=True, slots=True)
class Wake:
    """Something is due in answer to a power event."""


Item = End | Submit | Happening | Boundary | Arrival | Pass | Wake

# Of events at one instant those that take away come before those that give back.
_EVENT_ORDER: Final = {
    name: place
    for place, name in enumerate(
        (
            "cancel",
            "set_quota",
            "set_power_limit",
            "node_fail",
            "node_drain",
            "demand_response",
            "cancel_demand_response",
            "node_recover",
        )
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
    lost_step_s: Fraction = ZERO
    held: list[tuple[Fraction, Fraction | None, int]] = field(
        default_factory=list
    )  # since, until, millionths
    n_attempts: int = 0
    n_turns: int = 0  # starts and changes of size
    n_preemptions: int = 0
    attempt: Attempt | None = None
    started: Fraction = ZERO  # when it got its devices
    since: Fraction = ZERO  # when its work began at the present pace
    sized: Fraction = ZERO  # when it got its present size
    ends: float = inf  # as the planner is told
    placing: Placing = ()
    speed: Fraction = Fraction(1)  # of its slowest member
    cap: float = 1.0  # share of TDP its devices may draw; 0: it is paused
    own_cap: float = 1.0  # the cap it started under, because no more fitted
    capped_rate: Fraction = Fraction(1)  # what the cap leaves of its throughput
    unsaved: list[tuple[Placing, Fraction, Fraction, Split]] = field(
        default_factory=list
    )  # of sizes it had before
    whole: Placing = ()  # what it held before it was made smaller for a power event
    kind: int = NONE
    first_start: Fraction | None = None
    eligible: Fraction | None = None  # when its dependencies had ended well
    end: Fraction | None = None
    code: str | None = None
    reason: str | None = None
    promised: tuple[float, Placing] | None = None
    is_doomed: bool = False  # a dependency can no longer succeed

    @property
    def held_step_s(self) -> Fraction:
        """Device time it held, in millionths of devices; of what it holds still, nothing."""
        return sum((steps * (until - since) for since, until, steps in self.held if until is not None), ZERO)


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
    free: FreeMeter
    dr: dict[str, Any] = field(default_factory=dict)


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
        self.is_off = np.zeros(n, dtype=bool)  # switched off for a power event, or on its way there or back
        self.cools_until = np.full(n, -inf)
        self.on_node: list[set[int]] = [set() for _ in range(n)]
        self.teams = list(world.teams)
        self.running: dict[int, Running] = {}
        self.queue: dict[int, Gang] = {}
        self.use = DecayedUse(world.policy.half_life_s)
        for position, team in enumerate(world.teams):
            for kind, device_s in team.decayed_use_s.items():
                self.use.begin(position, kind, device_s)
        self.ledger = Ledger(self.facility, world.bookings, world.jobs)
        self.meter = PowerMeter(self.facility, engine.true_draw)
        # What the models say that is drawn, where that is something else; readings tell how far they are off.
        self.modelled = self.meter if engine.true_draw is None else PowerMeter(self.facility)
        self.free = FreeMeter(self.facility, [job.gang for job in world.jobs])
        self.policy_row = world.scenario.policy
        self.response = Response(self)
        self.plan_seconds: list[float] = []
        self.last = ZERO  # when something happened last
        self.is_changed = False
        self._boundaries: set[float] = set()
        self._n_idle_passes = 0
        self._doomed: deque[Life] = deque()
        self._is_dooming = False
        self.waits: tuple[Wait, ...] = ()
        self._booked_nodes = [frozenset(booking.nodes) for booking in world.bookings]
        self._built_limits = [domain.limit_w for domain in self.facility.domains]
        self._roomiest = self.facility
        self._proofs: dict[tuple[int, int, int], Impossible | None] = {}
        self.datasets: list[Dataset] = list(world.datasets)
        self._promises: tuple[Reserve, ...] = ()
        self._gave_back = False  # something ended before it was expected to, since the last pass
        self._history = History()  # of run times, by user
        # Whether anybody could ever be evicted: only then is it worth knowing what each would lose.
        self._evicts = world.policy.preemption and (
            world.has_teams or len({job.gang.priority for job in world.jobs}) > 1
        )

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
        for position, dataset in enumerate(self.datasets):
            for domain, arrives_s in dataset.arrives_s.items():
                self.agenda.put(exact(arrives_s), (Rank.BOUNDARY, -2), Arrival(position, domain))
        for _, returns_s in self.engine.dead:
            self.agenda.put(exact(returns_s), (Rank.BOUNDARY, -3), Wake())
        self._judge()
        until = self.world.scenario.until
        while self.agenda and (until is None or self.agenda.next_s < until):
            self._instant()
        if until is not None:
            self._last_instant(exact(until))
        horizon = self.last if until is None else exact(until)
        self._settle_running(horizon)
        return Outcome(
            self.world,
            self.lines,
            self.lives,
            horizon,
            self.ledger,
            self.meter,
            self.plan_seconds,
            self.free,
            self.response.report(),
        )

    def _instant(self) -> None:
        items = self.agenda.take_instant()
        self.ledger.pass_time(self.agenda.now)
        self.response.pass_time()
        self.meter.instant_over()
        for item in items:
            self._happen(item)
        self.response.act()
        if self.is_changed and not self.engine.is_dead(self.agenda.now_s) and self._may_plan_now():
            self.is_changed = False
            self._plan()
            self.response.make_room()
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
            case Arrival():
                self._arrive(item)
            case Pass() | Wake():
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
        if life.job.begun is not None:
            self._carry_on(life, life.job.begun)
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
        key = (id(self._roomiest), id(gang.shape), gang.tier)
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
            n_evictions=life.n_preemptions,
            waits_for=tuple(self.world.jobs[i].name for i in job.after if i in life.waits_for),
        )
        self.queue[job.index] = life.gang

    def _start(self, start: Start) -> None:
        life = self.lives[start.job_id]
        job, now = life.job, self.agenda.now
        del self.queue[job.index]
        is_first = life.n_attempts == 0
        restart_s = ZERO if is_first or job.saving is None else job.saving.restart_s
        life.speed = self._speed(start.placing)
        life.kind, life.cap, life.own_cap = start.kind, start.cap, start.cap
        life.capped_rate = self.rate_under(life, start.cap)
        pace = life.speed * life.capped_rate * self.rate_of(job, start.placing)
        life.attempt = Attempt(job.runtime - life.done_s, pace, restart_s, job.saving)
        life.n_attempts += 1
        life.state, life.started, life.sized = "running", now, now
        life.since = max(now, self._data_arrives(life.gang, start.placing))
        life.code = life.reason = life.promised = None
        if is_first:
            life.first_start = now
        self._hold(life, start.placing)
        self._expect_end(life)
        self._touch()
        self._say("start", job, placement=self.placement(job, start.placing), power_cap=_number(start.cap))

    def _carry_on(self, life: Life, begun: Begun) -> None:
        """It runs when the scenario begins: it holds what it holds, and goes on from where it is."""
        self._enqueue(life)
        self._start(Start(life.job.index, begun.placing, begun.kind, inf))
        attempt = life.attempt
        assert attempt is not None
        life.done_s = attempt.saved_work_s(begun.since)
        life.attempt = attempt.after(begun.since, attempt.pace)
        life.ran_s, life.started = begun.since, self.agenda.now - begun.since
        self._expect_end(life)

    def _expect_end(self, life: Life) -> None:
        """Put the end of the present turn on the agenda, and tell the planner when it is to be expected."""
        job, attempt = life.job, life.attempt
        assert attempt is not None
        left = attempt.length_s
        if job.limit is not None:
            left = min(left, job.limit - life.ran_s)
        ends = life.since + left
        life.n_turns += 1
        self.agenda.put(ends, (Rank.END, job.index), End(job.index, life.n_turns))
        life.ends = float(ends if job.limit is None else life.since + job.limit - life.ran_s)
        self.tell(life)

    def tell(self, life: Life) -> None:
        """Tell the planner what the job holds, until when, and what it may come to draw."""
        cap = self.response.cap_to_count(life)
        self.running[life.job.index] = Running(
            life.gang,
            life.placing,
            float(life.started),
            life.ends,
            cap,
            # Who was made smaller for a power event does not grow back before that is over.
            sized_s=inf if life.whole else float(life.sized),
        )

    def rate_under(self, life: Life, cap: float) -> Fraction:
        """What a cap leaves of a job's throughput."""
        if life.kind == NONE or cap >= 1.0:
            return Fraction(1)
        draw_w = self.response.natural_w(life)
        if self.engine.true_draw is not None:
            draw_w = min(self.facility.kinds[life.kind].tdp_w, draw_w * self.engine.true_draw(life.job.name))
        return exact(self.world.curves[life.kind].rate(cap, draw_w))

    def set_cap(self, life: Life, cap: float) -> None:
        """A running job goes on under another cap, from now on."""
        assert life.attempt is not None
        now = self.agenda.now
        self._settle_turn(life, now, is_lost=False, is_over=False)
        self._draw(life, cap)
        life.capped_rate = self.rate_under(life, cap)
        pace = life.speed * life.capped_rate * self.rate_of(life.job, life.placing)
        life.attempt = life.attempt.after(max(ZERO, now - life.since), pace)
        life.since, life.sized = max(now, life.since), now
        self._expect_end(life)
        self._touch()
        self._say("cap", life.job, power_cap=_number(cap))

    def begin_saving(self, life: Life, cost: Fraction) -> None:
        """A running job writes a checkpoint now, so that it can pause when that is done."""
        assert life.attempt is not None
        now = self.agenda.now
        self._settle_turn(life, now, is_lost=False, is_over=False)
        goes_on = life.attempt.after(max(ZERO, now - life.since), life.attempt.pace)
        life.attempt = replace(goes_on, writing_s=cost, into_s=ZERO, saves_first=True)
        life.since, life.sized = max(now, life.since), now
        self._expect_end(life)
        self._touch()

    def pause(self, life: Life, event: str) -> None:
        """A job stops working and keeps its devices, which then draw what they draw at rest."""
        now = self.agenda.now
        lost = self._settle_turn(life, now, is_lost=True, is_over=True)
        self._draw(life, 0.0)
        life.attempt, life.state, life.since = None, "paused", now
        life.n_turns += 1
        life.ends = inf
        self.tell(life)
        self._touch()
        self._say("pause", life.job, **{"for": {"event": event}}, lost_s=plain(lost))

    def resume(self, life: Life, cap: float) -> None:
        """A paused job goes on where it left off, on the devices that were kept for it."""
        now, job = self.agenda.now, life.job
        self.ledger.paused(life.placing, now - life.since)
        restart_s = ZERO if job.saving is None else job.saving.restart_s
        self._draw(life, cap)
        life.capped_rate = self.rate_under(life, cap)
        pace = life.speed * life.capped_rate * self.rate_of(job, life.placing)
        life.attempt = Attempt(job.runtime - life.done_s, pace, restart_s, job.saving)
        life.state, life.since, life.started, life.sized = "running", now, now, now
        life.n_attempts += 1
        self._expect_end(life)
        self._touch()
        self._say("resume", job, placement=self.placement(job, life.placing), power_cap=_number(cap))

    def _draw(self, life: Life, cap: float) -> None:
        self._meter_job(life, life.placing, -1)
        life.cap = cap
        self._meter_job(life, life.placing, 1)

    def _meter_job(self, life: Life, placing: Placing, sign: int) -> None:
        self.meter.job(life.job, placing, self.agenda.now, sign, life.cap)
        if self.modelled is not self.meter:
            self.modelled.job(life.job, placing, self.agenda.now, sign, life.cap)

    def switch(self, node: int, *, is_on: bool, **why: Any) -> None:
        """A node at rest is switched off, or on again; who may use it when is for others to say."""
        off_w = self.world.node_rows[node].off_w
        for meter in {id(meter): meter for meter in (self.meter, self.modelled)}.values():
            meter.switched(node, off_w, self.agenda.now, is_on=is_on)
        self._touch()
        word = "power_on" if is_on else "power_off"
        name = self.facility.node_name[node]
        self.lines.append({"t": plain(self.agenda.now), "event": word, "node": name, **why})

    def _meter_node(self, node: int, *, is_up: bool) -> None:
        for meter in {id(meter): meter for meter in (self.meter, self.modelled)}.values():
            (meter.node_up if is_up else meter.node_down)(node, self.agenda.now)

    def _speed(self, placing: Placing) -> Fraction:
        """Speed of the slowest member."""
        kinds, facility = self.facility.kinds, self.facility
        speeds = [Fraction(1)] if not placing else []
        for share in placing:
            speed = exact(float(facility.speed[share.node]))
            if share.devices:
                speed *= exact(kinds[int(facility.kind[share.node])].speed)
            speeds.append(speed)
        return min(speeds)

    def rate_of(self, job: SimJob, placing: Placing) -> Fraction:
        """Throughput at this size, relative to the preferred one."""
        if not job.gang.is_elastic:
            return Fraction(1)
        elastic = [
            (n, ask.n_replicas)
            for n, ask in zip(sizes_of(job.gang, placing), job.gang.shape.asks, strict=True)
            if ask.least != ask.most
        ]
        if job.gang.scaling:
            return exact(rate_at(job.gang.scaling, min(n for n, _ in elastic)))
        return min(Fraction(n, preferred) for n, preferred in elastic)

    def _hold(self, life: Life, placing: Placing) -> None:
        """From now on the job holds this placing, and nothing else."""
        job, now = life.job, self.agenda.now
        has_quota = job.gang.team != NONE and life.kind != NONE and self.world.has_teams
        for old, sign in ((life.placing, -1), (placing, 1)):
            if not old:
                continue
            self.ledger.hold(old, sign)
            self.free.hold(job.gang, old, sign)
            self._meter_job(life, old, sign)
            if has_quota:
                self.use.change(job.gang.team, life.kind, sign * _steps(old), self.agenda.now_s)
        for share in life.placing:
            self.on_node[share.node].discard(job.index)
        for share in placing:
            self.on_node[share.node].add(job.index)
        if life.placing:
            since, _, steps = life.held[-1]
            life.held[-1] = (since, now, steps)
        if placing:
            life.held.append((now, None, _steps(placing)))
        life.placing = placing

    def _settle_turn(self, life: Life, now: Fraction, *, is_lost: bool, is_over: bool) -> Fraction:
        """Count what a job did since its work began at the present pace.

        Args:
            is_lost: It was cut: what is not saved is to be done again.
            is_over: It leaves its devices; otherwise it goes on at another size.

        Returns:
            Running time that is lost.
        """
        assert life.attempt is not None
        attempt = life.attempt
        self.ledger.staging(life.placing, min(now, life.since) - max(life.started, life.sized))
        elapsed = max(ZERO, now - life.since)
        saved_at = attempt.saved_at_s(elapsed)
        is_kept = saved_at is not None or (is_over and not is_lost)
        if is_kept or is_over:
            for placing, speed, rate, split in life.unsaved:
                self.ledger.attempt(placing, speed, rate, split if is_kept else _lost(split))
                if not is_kept:
                    life.lost_step_s += split.total_s * _steps(placing)
            life.unsaved.clear()
        if is_over:
            split = attempt.split(elapsed, is_lost=is_lost)
            life.lost_step_s += split.rework_s * _steps(life.placing)
        else:
            split = attempt.split(saved_at or ZERO, is_lost=False)
            rest = attempt.split(elapsed, is_lost=False) - split
            life.unsaved.append((life.placing, life.speed, life.capped_rate, rest))
        self.ledger.attempt(life.placing, life.speed, life.capped_rate, split)
        life.ran_s += elapsed
        life.done_s += attempt.saved_work_s(elapsed)
        if not is_lost:
            return ZERO
        lost = attempt.lost_s(elapsed)
        life.lost_s += lost
        return lost

    def _release(self, life: Life, *, is_lost: bool) -> Fraction:
        """Take a job off its devices; returns the running time that is lost."""
        now = self.agenda.now
        if life.attempt is None:  # it is paused, and all it did is counted
            self.ledger.paused(life.placing, now - life.since)
            lost = ZERO
        else:
            lost = self._settle_turn(life, now, is_lost=is_lost, is_over=True)
        self._hold(life, ())
        life.whole = ()
        self.response.forget(life)
        del self.running[life.job.index]
        self._gave_back |= float(now) < life.ends
        life.attempt = None
        life.n_turns += 1
        self._touch()
        return lost

    def _end(self, item: End) -> None:
        life = self.lives[item.job]
        if life.attempt is None or life.n_turns != item.attempt:
            return  # it left, or was resized, before
        job = life.job
        is_timeout = job.limit is not None and life.attempt.length_s > job.limit - life.ran_s
        self._release(life, is_lost=False)
        if job.gang.user != NONE:
            self._history.learn(job.gang.user, float(life.ran_s))
        life.state = "timed_out" if is_timeout else "succeeded"
        self._say("timeout" if is_timeout else "finish", job)
        self._over(life, has_succeeded=not is_timeout)

    def _evict(self, evict: Evict) -> None:
        """A job gives way: it loses what it has not saved, and queues again."""
        life = self.lives[evict.job_id]
        lost = self._release(life, is_lost=True)
        life.state = "queued"
        life.n_preemptions += 1
        self._say(
            "preempt",
            life.job,
            **{"for": {"job": self.world.jobs[evict.for_job_id].name}},
            lost_s=plain(lost),
        )
        self._enqueue(life)

    def shrink(self, life: Life, placing: Placing, event: str) -> None:
        """A running job gives devices up for a power event; it gets them back afterwards if nobody else took them."""
        whole = life.whole or life.placing
        self._resize(Resize(life.job.index, placing, None, inf), **{"for": {"event": event}})
        life.whole = whole
        self.tell(life)

    def regrow(self, life: Life) -> None:
        """It gets them back."""
        self._resize(Resize(life.job.index, life.whole, None, inf))

    def _resize(self, resize: Resize, **why: Any) -> None:
        """An elastic job goes on with other devices, at once or after a checkpoint and a restart; nothing is lost."""
        life, now = self.lives[resize.job_id], self.agenda.now
        life.whole = ()
        assert life.attempt is not None
        self._settle_turn(life, now, is_lost=False, is_over=False)
        speed = self._speed(resize.placing)
        pace = speed * life.capped_rate * self.rate_of(life.job, resize.placing)
        life.attempt = life.attempt.resized(max(ZERO, now - life.since), pace)
        life.speed, life.sized = speed, now
        self._hold(life, resize.placing)
        life.since = max(now, life.since, self._data_arrives(life.gang, resize.placing))
        self._expect_end(life)
        self._touch()
        self._say(
            "resize",
            life.job,
            placement=self.placement(life.job, resize.placing),
            power_cap=_number(life.cap),
            **why,
        )

    # -- data ---------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> None:
        dataset = self.datasets[stage.dataset]
        size, rate = exact(dataset.size_gib), exact(self.world.scenario.numbers.staging_gib_per_s)
        until = self.agenda.now + size / rate
        arrives_s = {**dataset.arrives_s, stage.to_domain: float(until)}
        self.datasets[stage.dataset] = replace(dataset, arrives_s=arrives_s)
        self.agenda.put(until, (Rank.BOUNDARY, -2), Arrival(stage.dataset, stage.to_domain))
        self._touch()
        self.lines.append(
            {
                "t": plain(self.agenda.now),
                "event": "stage",
                "dataset": dataset.name,
                "to": self.facility.domains[stage.to_domain].name,
                "until": plain(until),
            }
        )

    def _arrive(self, item: Arrival) -> None:
        dataset = self.datasets[item.dataset]
        arrives_s = {domain: at_s for domain, at_s in dataset.arrives_s.items() if domain != item.domain}
        self.datasets[item.dataset] = replace(dataset, at=dataset.at | {item.domain}, arrives_s=arrives_s)
        self._touch()

    def _data_arrives(self, gang: Gang, placing: Placing) -> Fraction:
        """When all data that a job needs is at all of its nodes."""
        arrives = self.agenda.now
        for position in gang.datasets:
            dataset = self.datasets[position]
            for share in placing:
                domain = int(self.facility.storage[share.node])
                # A job that ran when the scenario began has its data, whatever is said of copies.
                if domain != NONE and domain in dataset.arrives_s:
                    arrives = max(arrives, exact(dataset.arrives_s[domain]))
        return arrives

    def _cancel(self, life: Life, **why: Any) -> None:
        if life.state not in ("pending", "queued", "running", "paused"):
            return
        if life.state in ("running", "paused"):
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
        self._promises, self._gave_back = (), True  # the ground on which they were made has moved
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
            case DemandResponse():
                self.response.announce(event)
            case CancelDemandResponse():
                self.response.cancel(event.name)

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
        self._promises = ()
        self.response.lose_node(node)
        self.is_failed[node] = True
        self._meter_node(node, is_up=False)
        self._look_again(retry_s)

    def _recover(self, node: int) -> None:
        if self.is_failed[node]:
            self._meter_node(node, is_up=True)
            if self.policy_row.cooldown_s:
                self.cools_until[node] = float(self.agenda.now + exact(self.policy_row.cooldown_s))
                self._look_again(float(self.cools_until[node]), node)
        self.is_failed[node] = self.is_drained[node] = False

    def _restate(self, node: int) -> None:
        """Tell the ledger what a node's free devices are."""
        self.free.note_change()
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
        limit_changes, cap_changes = self.response.ahead()
        return Snapshot(
            now_s=now_s,
            facility=self.response.limited(self.facility),
            is_usable=self._is_usable(),
            is_failed=self.is_failed.copy(),
            running=tuple(self._at_risk(running) for running in self.running.values()),
            queue=self._in_queue(),
            teams=teams,
            members=self.world.members,
            bookings=self.world.bookings,
            promises=self._promises,
            ended_early=self._gave_back,
            datasets=tuple(self.datasets),
            staging_gib_per_s=self.world.scenario.numbers.staging_gib_per_s,
            quota_is_checked=bool(teams),  # labels own nothing and limit nothing
            limit_changes=limit_changes,
            cap_changes=cap_changes,
        )

    @property
    def usable(self) -> BoolArray:
        """(n,) nodes that take new work."""
        return self._is_usable()

    def _is_usable(self) -> BoolArray:
        """(n,) nodes that take new work."""
        return ~(self.is_failed | self.is_drained | self.is_off | (self.cools_until > self.agenda.now_s))

    def _in_queue(self) -> tuple[Gang, ...]:
        """What waits; where the shortest goes first, with how long a job that declares a limit will probably run."""
        if self.world.policy.order != "shortest":
            return tuple(self.queue.values())
        return tuple(
            gang
            if gang.user == NONE or gang.limit_s == inf
            else replace(gang, predicted_s=self._history.predict_s(gang.user, gang.limit_s))
            for gang in self.queue.values()
        )

    def _at_risk(self, running: Running) -> Running:
        """With what it would lose if it were cut now, where that can matter."""
        gang = running.gang
        if not self._evicts or (gang.saving is None and not gang.datasets):
            return running  # all it ran, as the planner takes it
        life = self.lives[gang.id]
        if life.attempt is None:
            return replace(running, at_risk_s=0.0)
        elapsed = max(ZERO, self.agenda.now - life.since)
        return replace(running, at_risk_s=float(life.attempt.lost_s(elapsed)))

    def _has_elastic(self) -> bool:
        return any(running.gang.is_elastic for running in self.running.values())

    def _plan(self) -> None:
        if not self.queue and not self._has_elastic():
            self.waits = self._promises = ()
            return
        snapshot, policy = self._snapshot(), self.world.policy
        began_s = self.engine.stopwatch()
        plan = self.engine.plan(snapshot, policy)
        self.plan_seconds.append(self.engine.stopwatch() - began_s)
        faults = tuple(self.engine.check(snapshot, plan, policy))
        if faults:
            raise BrokenPlan(self.agenda.now_s, faults)
        for evict in plan.evictions:
            self._evict(evict)
        for resize in plan.resizes:
            if resize.for_job_id is not None:
                self._resize(resize)
        for stage in plan.stages:
            self._stage(stage)
        for start in plan.starts:
            self._start(start)
        for resize in plan.resizes:
            if resize.for_job_id is None:
                self._resize(resize)
        self.is_changed = False
        self._gave_back = False
        self._promises = plan.reserves if policy.keeps_promises else ()
        if plan.evictions or (plan.starts and plan.next_boundary_s <= self.agenda.now_s):
            self._again()  # who gave way may find another place at once, or a loan be called in
        for wait in plan.waits:
            life = self.lives[wait.job_id]
            life.code, life.reason = wait.code, wait.sentence
        for reserve in plan.reserves:
            life = self.lives[reserve.job_id]
            promised = (_rounded_up(reserve.start_s), reserve.placing)
            if life.promised != promised:
                life.promised = promised
                self._say(
                    "reserve",
                    life.job,
                    expected_start=_number(promised[0]),
                    placement=self.placement(life.job, reserve.placing),
                )
        self._look_again(plan.next_boundary_s)
        self.waits = plan.waits

    def _again(self) -> None:
        """One more pass at this instant."""
        self.agenda.put(self.agenda.now, (Rank.PASS,), Pass())

    def _judge(self) -> None:
        running = [self.world.jobs[index] for index in self.running] if self.world.bookings else []
        waits = (wait for wait in self.waits if wait.job_id in self.queue)
        self.ledger.judge(self.agenda.now_s, waits, running)
        self.free.look(self.agenda.now, self._is_usable())

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
            if life.attempt is None:
                self.ledger.paused(life.placing, horizon - life.since)
            else:
                self._settle_turn(life, horizon, is_lost=False, is_over=True)


def _steps(placing: Placing) -> int:
    """Millionths of devices that a placing holds."""
    return sum(share.share_steps * len(share.devices) for share in placing)


def _lost(split: Split) -> Split:
    """The same time, all of it to be done again."""
    return Split(ZERO, ZERO, ZERO, split.total_s)


def _rounded_up(at_s: float) -> float:
    """To a billionth of a second: an end that is no finite number must not make a promise late by its last digit."""
    return float(Fraction(ceil(exact(at_s) * 10**9), 10**9))


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def simulate(world: World, engine: Engine | None = None) -> Outcome:
    """Run a scenario to its end."""
    return Simulation(world, engine or Engine()).run()

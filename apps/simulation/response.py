"""Demand response in virtual time: what is asked, who draws less for it, and how the load comes back.

A target binds from `start` to `end`; of several the strictest holds. What is done is decided by the curtailment
optimiser just in time: each lever as late as it can be used and still be in force when the target binds. What takes
longer than the notice is begun at once, others bridge the time until it is in force. Sheds come before releases.
Afterwards the load rises no faster than the domain's ramp, the firmest tier first, and for a while not above the
rebound limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final

from apps.power.curtailment.facts import (
    FIRM,
    INTERRUPTIBLE,
    Candidate,
    Curtailment,
    Lever,
    Limit,
    Load,
    Option,
    Problem,
    Smaller,
)
from apps.power.curtailment.options import SHRINKS_FROM, allowed_loss
from apps.scheduling.engine.caps import caps_of, under_cap
from apps.scheduling.engine.facts import NONE, CapChange, Facility, LimitChange, Placing, Share
from apps.simulation.idle_nodes import IdleNodes
from apps.simulation.replay.heap import exact, plain
from apps.simulation.scenario import DemandResponse
from apps.simulation.spent import Spent, Window
from apps.simulation.turns import Turns
from apps.simulation.world import power_children

if TYPE_CHECKING:
    from apps.simulation.loop import Life, Simulation

ZERO: Final = Fraction(0)
MEASURED_S: Final = Fraction(900)  # the reference is the mean of so long before notice
MINUTE_S: Final = Fraction(60)
DWELL_S: Final = Fraction(300)  # where models are off, no plan is made anew within so long without a cause
NEAR: Final = 1e-3  # of a target: a reading that passes it by less is not answered
CLOSE_W: Final = 1e-6
MOST_STEPS: Final = 240  # of a ramp that are told ahead
KEPT: Final = 20_000  # candidates that are not worked out again


@dataclass
class Event:
    """One power event and where it stands; loads are IT unless they say meter."""

    row: DemandResponse
    domain: int
    start: Fraction
    end: Fraction
    reference_w: float = 0.0  # at the meter, frozen at notice
    target_w: float = 0.0  # at the meter
    full_w: float = 0.0  # at the meter, as if no other event held the load down when notice was given
    state: str = ""
    is_cancelled: bool = False
    released_at: Fraction | None = None  # when recovery began
    ceiling_w: float = 0.0  # IT load up to which the ramp lets it rise now
    ceiling_at: Fraction = ZERO
    minute: int = 0  # full minutes since
    is_settled: bool = False  # the load rises as it likes again
    minutes: list[float] = field(default_factory=list)  # delivered, at the meter
    measured: Fraction = ZERO  # energy at the last full minute
    share: dict[int, list[float]] = field(
        default_factory=dict
    )  # by tier: device-seconds of work done, and there were
    asked_w: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "cancelled")


@dataclass(frozen=True, slots=True)
class _Pending:
    """Something commanded that is not in force yet."""

    due: Fraction
    cap: float  # a level: 0: a pause; below: so many replicas are left
    event: str
    real: Fraction  # when it will be in force in truth; before that it is looked at again and again


class Response:
    """The controller of one simulation."""

    def __init__(self, simulation: "Simulation") -> None:
        self.sim = simulation
        self.facility = simulation.facility
        self.events: dict[str, Event] = {}
        self.pending: dict[int, _Pending] = {}  # caps, by job
        self.pauses: dict[int, _Pending] = {}  # and changes of size
        self.unseen: dict[int, Fraction] = {}  # done, but no reading says so yet: when to look again, by job
        self._off_w: dict[int, float] = {}  # by domain: how much more it draws than the models say
        self._decided_at = -DWELL_S
        self._decided_for: tuple[Any, ...] = ()
        self._room: tuple[int, Fraction] | None = None  # for whom others draw less, and when they will
        self._gave: dict[int, tuple[float, int]] = {}  # by job: the cap that makes room, and for whom
        self._no_room: dict[int, tuple[Any, ...]] = {}  # who cannot be helped, and how things stood
        self._under: dict[tuple[int, int], tuple[Placing, float]] = {}
        self._candidates: dict[tuple[Any, ...], Candidate] = {}
        self._above = power_children(self.facility)
        self._wakes: set[Fraction] = set()
        self._marks: list[tuple[Fraction, int]] = []
        self._limited: tuple[tuple[tuple[int, float], ...], Facility, Facility] | None = None
        self._judged: tuple[Any, ...] = ()
        self._since = ZERO
        self._energy_at: dict[tuple[int, Fraction], Fraction] = {}
        for row in simulation.world.events:
            if isinstance(row, DemandResponse):
                domain = simulation.world.domain_at[row.domain]
                self._marks.append((max(ZERO, exact(row.t) - MEASURED_S), domain))
        self._has_marked = False
        self._solved: dict[Problem, Curtailment] = {}
        self.nodes = IdleNodes(self)
        self.turns = Turns(self)
        self._ramps = {row.name: row.ramp_up_w_per_s for row in simulation.world.scenario.domains}
        self._taken: dict[
            int, float
        ] = {}  # by job, what is left of its pace since others took what it gave up
        self._next: tuple[Any, set[int]] | None = None
        self._spent = Spent(simulation.policy_row.qos_window_s)

    # -- what the loop asks -------------------------------------------------------------------------

    def natural_w(self, life: "Life") -> float:
        """Draw of one device of a job without a cap, the mean over its devices."""
        tdp_w = self.facility.kinds[life.kind].tdp_w
        total = n = 0.0
        for share in life.placing or ():
            power_w = life.job.gang.shape.asks[share.group].power_w
            held = len(share.devices) * share.share_steps / 1e6
            total += held * (tdp_w if power_w is None else min(power_w, tdp_w))
            n += held
        if n:
            return total / n
        power_w = life.job.gang.shape.asks[0].power_w
        return tdp_w if power_w is None else min(power_w, tdp_w)

    def cap_to_count(self, life: "Life") -> float:
        """The cap a planner is told: what the job draws now, or will once what is under way is in force."""
        if life.kind == NONE:
            return 1.0
        kind = self.facility.kinds[life.kind]
        rest = kind.idle_w / kind.tdp_w
        coming = self.pending.get(life.job.index)
        return max(life.cap, rest, coming.cap if coming is not None else 0.0)

    def limited(self, facility: Facility) -> Facility:
        """The facility with the limits that power events set now."""
        limits = self._event_limits_w()
        if not limits:
            return facility
        for at in limits:  # a planner counts nodes that are off as if they were at rest
            limits[at] += self.facility.domains[at].overhead_k * self.nodes.under_w(at)
        key = tuple(sorted(limits.items()))
        if self._limited is None or self._limited[0] != key or self._limited[1] is not facility:
            domains = list(facility.domains)
            for at, limit_w in limits.items():
                domains[at] = replace(domains[at], limit_w=min(domains[at].limit_w, limit_w))
            self._limited = (key, facility, replace(facility, domains=tuple(domains)))
        return self._limited[2]

    def ahead(self) -> tuple[tuple[LimitChange, ...], tuple[CapChange, ...]]:
        """What is known to come of events of which notice was given: how the limits that they set fall and rise again,
        and what jobs draw then. What holds now is in `limited` already."""
        now = self.sim.agenda.now
        live = [event for event in self.events.values() if self._says_something(event, now)]
        limits: list[LimitChange] = []
        for domain in sorted({event.domain for event in live}):
            some = [event for event in live if event.domain == domain]
            base_w = self.sim.facility.domains[domain].limit_w
            off_w = self.facility.domains[domain].overhead_k * self.nodes.under_w(domain, is_going_too=True)
            last_w = self.limited(self.sim.facility).domains[domain].limit_w
            for mark in sorted({mark for event in some for mark in self._marks_of(event) if mark > now}):
                told_w = min(self._limit_then_w(event, mark) for event in some)
                # Nodes that are off until then draw less than a planner counts; afterwards they come back.
                if any(event in some for event in self._binding(mark)):
                    told_w += off_w
                limit_w = min(base_w, told_w)
                if limit_w != last_w:
                    limits.append(LimitChange(float(mark), domain, limit_w))
                last_w = limit_w
        return tuple(limits), tuple(self._caps_ahead(now))

    def _caps_ahead(self, now: Fraction) -> Iterator[CapChange]:
        """What jobs will draw: as it would be decided now for whatever binds, and as before once nothing does."""
        bind = [e for e in self.events.values() if e.released_at is None and not e.is_over and e.end > now]
        marks = {event.start for event in bind if event.start > now} | {event.end for event in bind}
        told: dict[int, float] = {}
        for mark in sorted(marks):
            shares: dict[int, float] = {}
            at = mark
            if self._binding(mark):
                problem, lives = self.problem(mark)
                chosen = self.solve(problem).chosen(problem)
                for life in lives:
                    option = chosen.get(life.job.index)
                    shares[life.job.index] = life.own_cap if option is None else self._share_of(life, option)
            else:
                at = max(self._full_at(event) for event in bind if event.end <= mark)
            for index in sorted(self.sim.running):
                life = self.sim.lives[index]
                before = told.get(index, life.cap)
                share = shares.get(index, life.own_cap)
                if life.kind != NONE and share != before:
                    told[index] = share
                    yield CapChange(float(at), life.gang.id, share)

    def _says_something(self, event: Event, now: Fraction) -> bool:
        """Whether an event limits its domain now, or will."""
        if event.released_at is None:
            return not event.is_over  # else called off before it did anything
        is_free = self._ramp(event) is None or event.is_settled
        return not is_free or now < event.released_at + exact(self.sim.policy_row.rebound_s)

    def _marks_of(self, event: Event) -> list[Fraction]:
        """When what an event leaves its domain changes."""
        over_at = event.end if event.released_at is None else event.released_at
        marks = [event.start, over_at, over_at + exact(self.sim.policy_row.rebound_s)]
        ramp = self._ramp(event)
        if ramp is not None and not event.is_settled:
            from_at, from_w = self._rises_from(event)
            step_w = self.facility.domains[event.domain].overhead_k * ramp * float(MINUTE_S)
            full_w = min(self.sim.facility.domains[event.domain].limit_w, event.full_w)
            n = ceil(max(0.0, full_w - self._meter_w(event.domain, from_w)) / step_w) if step_w else 0
            marks += [from_at + i * MINUTE_S for i in range(1, min(n, MOST_STEPS) + 1)]
        return marks

    def _rises_from(self, event: Event) -> tuple[Fraction, float]:
        """Since when, and from which IT load on, the ramp counts. Until the event is over: at the least its target."""
        if event.released_at is not None:
            return event.ceiling_at, event.ceiling_w
        return event.end, self._it_w(event.domain, event.target_w)

    def _full_at(self, event: Event) -> Fraction:
        """When all that was slowed for an event can have its power back."""
        rebound_at = event.end + exact(self.sim.policy_row.rebound_s)
        return max((mark for mark in self._marks_of(event) if mark != rebound_at), default=event.end)

    def _limit_then_w(self, event: Event, at: Fraction) -> float:
        """What an event will leave its domain at an instant to come, as `Domain.limit_w`; inf: it says nothing."""
        over_at = event.end if event.released_at is None else event.released_at
        if at < over_at:
            return event.target_w if event.start <= at or event.state == "ramping" else inf
        limit_w = inf
        if at < over_at + exact(self.sim.policy_row.rebound_s):
            limit_w = self.sim.policy_row.rebound_limit * event.full_w
        ramp = self._ramp(event)
        if ramp is not None and not event.is_settled:
            from_at, from_w = self._rises_from(event)
            n_minutes = max(0, (at - from_at) // MINUTE_S)
            limit_w = min(limit_w, self._meter_w(event.domain, from_w + ramp * float(n_minutes * MINUTE_S)))
        return limit_w

    def _event_limits_w(self) -> dict[int, float]:
        """By domain, what events leave it now, as `Domain.limit_w`."""
        limits: dict[int, float] = {}
        for event in self.events.values():
            limit_w = self._limit_now_w(event)
            if limit_w < inf:
                limits[event.domain] = min(limit_w, limits.get(event.domain, inf))
        return limits

    def bounds_w(self, beyond_w: Mapping[int, float] | None = None) -> dict[int, float]:
        """By domain that is limited at all, the IT load that may be drawn there now.

        Args:
            beyond_w: By domain, by how much what events ask for is out of reach: nobody waits for that.
        """
        told = self._event_limits_w()
        beyond = {} if beyond_w is None else beyond_w
        found: dict[int, float] = {}
        for at, domain in enumerate(self.sim.facility.domains):
            asked_w = self._it_w(at, told[at]) + beyond.get(at, 0.0) if at in told else inf
            limit_w = min(domain.it_limit_w, asked_w)
            if limit_w < inf:
                found[at] = limit_w
        return found

    def announce(self, row: DemandResponse) -> None:
        """Notice is given."""
        sim, now = self.sim, self.sim.agenda.now
        event = Event(
            row, sim.world.domain_at[row.domain], exact(row.start), exact(row.start) + exact(row.duration)
        )
        event.reference_w = self._meter_w(event.domain, self._mean_w(event.domain, now))
        event.target_w = event.reference_w - (row.reduce_w or 0.0) if row.target_w is None else row.target_w
        event.asked_w = event.reference_w - event.target_w
        # Notice may come while another event holds the load down; what comes back then is no rebound.
        others = [e.full_w for e in self.events.values() if e.domain == event.domain and not e.is_over]
        event.full_w = max([event.reference_w, *others])
        self.events[row.name] = event
        self._say(event, "notified")
        self.wake(event.start)
        self.wake(event.end)
        self._begin(event.start)

    def cancel(self, name: str) -> None:
        """The event is called off: nothing more is shed for it, and what was comes back."""
        event = self.events.get(name)
        if event is None or event.is_over or event.state == "recovering":
            return
        event.is_cancelled = True
        if event.state == "notified":
            event.state = "cancelled"
            self._say(event, "cancelled")
        else:
            self._release(event)
        self._judged = ()

    def forget(self, life: "Life") -> None:
        """A job left its devices: nothing is under way for it any more."""
        for about in (self.pending, self.pauses, self.unseen, self._gave, self._taken):
            about.pop(life.job.index, None)

    def lose_node(self, node: int) -> None:
        """A node fails."""
        self.nodes.lose(node)

    def pass_time(self) -> None:
        """Count what was delivered, and what jobs of each tier did, up to now."""
        now = self.sim.agenda.now
        span = float(now - self._since)
        if span:
            self._count_lost(now, span)
            for event in self.events.values():
                if event.state == "active":
                    self._count(event, span)
                if event.start < now and event.released_at is None and (now - event.start) % MINUTE_S == 0:
                    self._minute(event, now)
        self._since = now
        if not self._has_marked:
            self._has_marked = True
            for at, _ in self._marks:
                self.wake(at)
        for at, domain in self._marks:
            if at == now:
                self._energy_at[domain, at] = self.sim.meter.energy(domain, now)

    def act(self) -> None:
        """Do what is due at this instant."""
        if not self.events:
            return
        now = self.sim.agenda.now
        if self.sim.engine.is_dead(self.sim.agenda.now_s):
            return  # what is in force stays in force
        self._read(now)
        self._note_taken()
        self._bring_into_force(now)
        self.nodes.bring_into_force(now)
        self._give_way_no_longer(now)
        self._lift_ceilings(now)
        self._tick(now)
        for event in self.events.values():
            if event.state in ("notified", "ramping") and event.start <= now:
                if event.state == "notified":
                    self._say(event, "ramping")
                event.measured = self.sim.meter.energy(event.domain, now)
                self._say(event, "active")
                for n in range(1, int((event.end - event.start) / MINUTE_S) + 1):
                    self.wake(event.start + n * MINUTE_S)
            if event.state == "active" and event.end <= now:
                self._release(event)
        self._shed(now)
        self._correct(now)
        self._restore(now)
        self._complete(now)

    def report(self) -> dict[str, Any]:
        """By event: what was delivered each minute, whether that was enough, and what each tier could do."""
        told = {}
        for name, event in self.events.items():
            enough = [
                delivered >= event.asked_w - CLOSE_W * max(1.0, event.asked_w) for delivered in event.minutes
            ]
            told[name] = {
                "delivered_w": event.minutes,
                "compliant": bool(enough) and all(enough),
                "performance": {
                    str(tier): done / there if there else None
                    for tier, (done, there) in sorted(event.share.items())
                },
            }
        return told

    # -- measuring ----------------------------------------------------------------------------------

    def _meter_w(self, domain: int, it_w: float) -> float:
        of = self.facility.domains[domain]
        return of.overhead_fixed_w + of.overhead_k * it_w

    def _it_w(self, domain: int, meter_w: float) -> float:
        of = self.facility.domains[domain]
        return (meter_w - of.overhead_fixed_w) / of.overhead_k

    def _draw_w(self, domain: int) -> float:
        return self.sim.modelled.draw_w(domain) + self._off_w.get(domain, 0.0)

    @property
    def _is_off(self) -> bool:
        """Whether the models may say something else than the meters."""
        return self.sim.modelled is not self.sim.meter

    def _read(self, now: Fraction) -> None:
        """Read the meters of the domains that power events are about; between readings the models are believed."""
        for index in sorted(i for i, due in self.unseen.items() if due <= now):
            if self.sim.engine.loses_reading():
                self.unseen[index] = self.soon(now)
            else:
                del self.unseen[index]
        if not self._is_off:
            return
        for domain in sorted({e.domain for e in self.events.values() if not e.is_over}):
            if self.sim.engine.loses_reading():
                self.soon(now)
            else:
                self._off_w[domain] = self.sim.meter.draw_w(domain) - self.sim.modelled.draw_w(domain)

    def soon(self, now: Fraction) -> Fraction:
        """When there is something new to be seen."""
        at = now + (exact(self.quickest_s()) or MINUTE_S)
        self.wake(at)
        return at

    def _mean_w(self, domain: int, now: Fraction) -> float:
        since = max(ZERO, now - MEASURED_S)
        if since == now:
            return self._draw_w(domain)
        before = self._energy_at.get((domain, since), ZERO)
        return float((self.sim.meter.energy(domain, now) - before) / (now - since))

    def _minute(self, event: Event, now: Fraction) -> None:
        energy = self.sim.meter.energy(event.domain, now)
        mean_w = self._meter_w(event.domain, float((energy - event.measured) / MINUTE_S))
        event.minutes.append(round(event.reference_w - mean_w, 6))
        event.measured = energy

    def _count(self, event: Event, span: float) -> None:
        for index in self.sim.running:
            life = self.sim.lives[index]
            n = self._whole_under(life, event.domain)
            if not n:
                continue
            share = event.share.setdefault(life.job.row.flexibility, [0.0, 0.0])
            share[0] += n * span * (1.0 - self._lost_share(life))
            share[1] += n * span

    def _count_lost(self, now: Fraction, span: float) -> None:
        """Into the ledger of what events cost each job."""
        if all(event.is_over for event in self.events.values()):
            return
        lost = []
        for index in self.sim.running:
            life = self.sim.lives[index]
            if (life.cap < 1.0 or life.whole or index in self._taken) and (share := self._lost_share(life)):
                lost.append((index, share * span))
        active = [e.row.name for e in self.events.values() if e.state == "active"]
        self._spent.count(now, lost, active)

    def _lost_share(self, life: "Life") -> float:
        """What a running job does not do now, as a share of what it would at full power and its own size."""
        if life.state == "paused":
            return 1.0
        rate = float(life.capped_rate) * self._taken.get(life.job.index, 1.0)
        if life.whole:
            rate *= float(self._rate_at(life, life.placing) / self._rate_at(life, life.whole))
        return 1.0 - rate

    def _rate_at(self, life: "Life", placing: Placing) -> Fraction:
        return self.sim.rate_of(life.job, placing)

    def _whole_under(self, life: "Life", domain: int) -> float:
        """How many devices of a job lie under a domain when it has its own size."""
        if not life.whole:
            return self.devices_under(life, domain)
        return sum(_n_devices(share) for share in life.whole if domain in self.chain(share.node))

    def devices_under(self, life: "Life", domain: int) -> float:
        key = life.job.index, domain
        known = self._under.get(key)
        if known is None or known[0] is not life.placing:
            n = sum(_n_devices(share) for share in life.placing if domain in self.chain(share.node))
            known = self._under[key] = (life.placing, n)
        return known[1]

    def chain(self, node: int) -> tuple[int, ...]:
        power, cooling = int(self.facility.power[node]), int(self.facility.cooling[node])
        return (self._above[power] if power != NONE else ()) + (
            self._above[cooling] if cooling != NONE else ()
        )

    def wake(self, at: Fraction) -> None:
        from apps.simulation.loop import Rank, Wake

        if at > self.sim.agenda.now and at not in self._wakes:
            self._wakes.add(at)
            self.sim.agenda.put(at, (Rank.BOUNDARY, -3), Wake())

    # -- deciding -----------------------------------------------------------------------------------

    def _binding(self, at: Fraction) -> list[Event]:
        """Events whose target binds then, the first priority first."""
        some = [
            e
            for e in self.events.values()
            if e.start <= at < e.end and e.released_at is None and not e.is_over
        ]
        return sorted(some, key=lambda e: (e.row.priority, e.start))

    def targets(self, at: Fraction) -> dict[int, tuple[float, int]]:
        """By domain: the strictest IT load asked for then, and the priority of who asks."""
        targets: dict[int, tuple[float, int]] = {}
        for event in self._binding(at):
            limit_w = self._it_w(event.domain, event.target_w)
            if event.domain not in targets or limit_w < targets[event.domain][0]:
                targets[event.domain] = (limit_w, event.row.priority)
        return targets

    def problem(self, at: Fraction, *, within_s: float = inf) -> tuple[Problem, list["Life"]]:
        """What is to be decided so that the targets of that instant are kept.

        Args:
            within_s: Options that take longer are left out, what is in force or under way already apart.
        """
        targets = self.targets(at)
        domains = sorted(targets)
        binding = self._binding(at)
        is_emergency = any(event.row.emergency for event in binding)
        window_s = self.window_s(at)
        draw_uw = {domain: round(self._draw_w(domain) * 1e6) for domain in domains}
        candidates, lives = [], []
        for index in sorted(self.sim.running):
            life = self.sim.lives[index]
            under = {i: n for i, domain in enumerate(domains) if (n := self._whole_under(life, domain))}
            if not under or life.kind == NONE:
                continue
            load = self._load_under(life, under, at, window_s, domains)
            rest_w = self.facility.kinds[life.kind].idle_w
            for i, n in under.items():  # as if nothing were done with it
                held = self.devices_under(life, domains[i])
                now_w = self._device_w(life) * held + rest_w * (n - held)
                draw_uw[domains[i]] += round((load.draw_w * n - now_w) * 1e6)
            candidate = self._candidate(load, window_s, is_emergency=is_emergency)
            options = self._open_options(life, candidate, at, within_s)
            if options[0].lever is not Lever.NONE:
                # It is on its way already: what it sheds is no choice any more.
                for i, watts in options[0].shed_uw:
                    draw_uw[domains[i]] -= watts
                options = [Option(Lever.NONE)]
            candidates.append(
                Candidate(candidate.job_id, candidate.tier, candidate.n_devices, tuple(options))
            )
            lives.append(life)
        idle, coming_w = self.nodes.candidates(domains, at)
        candidates.extend(idle)  # behind all jobs
        for domain, gone_w in coming_w.items():
            draw_uw[domain] -= round(gone_w * 1e6)
        limits = tuple(
            Limit(domain, draw_uw[domain] - round(targets[domain][0] * 1e6), targets[domain][1])
            for domain in domains
        )
        return Problem(tuple(candidates), limits), lives

    def _candidate(self, load: Load, window_s: float, *, is_emergency: bool) -> Candidate:
        """All that may be done with a job; the same question has the same answer."""
        key = (
            load.job_id,
            load.draw_w,
            tuple(load.devices_under.items()),
            load.at_risk_s,
            load.bears,
            tuple((s.n_replicas, tuple(s.gone_under.items())) for s in load.smaller),
            window_s,
            is_emergency,
        )
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) > KEPT:
                self._candidates.clear()
            found = self.sim.engine.candidate(load, window_s, is_emergency=is_emergency)
            self._candidates[key] = found
        return found

    def _open_options(
        self, life: "Life", candidate: Candidate, at: Fraction, within_s: float
    ) -> list[Option]:
        """What can still be chosen for a job; if something is under way that will be in force by then, that alone."""
        held = self.turns.option_of(life.job.index)
        if held is not None:
            return [held]  # what it does in its turns comes on top
        pause, cap = self.pauses.get(life.job.index), self.pending.get(life.job.index)
        under_way = None
        if pause is not None and pause.due <= at:
            under_way = pause.cap
        elif cap is not None and cap.due <= at:
            under_way = cap.cap
        elif life.job.index in self._gave:
            under_way = self._gave[life.job.index][0]
        options = []
        for option in candidate.options:
            there = self._cap_of(life, option)
            if under_way is not None:
                if there == under_way:
                    return [option]
            elif (
                (pause is None or option.lever in (Lever.NONE, Lever.CAP))
                and self._may_become(life, option)
                and (there == _level(life) or option.lever is Lever.NONE or option.takes_s <= within_s)
            ):
                options.append(option)
        return options or [candidate.options[0]]

    def _may_become(self, life: "Life", option: Option) -> bool:
        """A job is held down in one way at a time: who was capped does not shrink, who shrank is not capped."""
        if life.job.index in self._taken:
            return option.lever not in (Lever.CAP, Lever.SHRINK) or self._cap_of(life, option) == life.cap
        if life.whole:
            n_held = -_level(life)
            return option.lever is not Lever.CAP and (
                option.lever is not Lever.SHRINK or option.n_replicas <= n_held
            )
        return option.lever is not Lever.SHRINK or life.cap == life.own_cap

    def load(self, life: "Life", at: Fraction, window_s: float) -> Load:
        """A job as the decision about what binds then sees it."""
        domains = sorted(self.targets(at))
        under = {i: n for i, domain in enumerate(domains) if (n := self._whole_under(life, domain))}
        return self._load_under(life, under, at, window_s, domains)

    def _load_under(
        self, life: "Life", under: dict[int, float], at: Fraction, window_s: float, domains: Sequence[int]
    ) -> Load:
        load = self._load(life, under)
        tier = life.job.row.flexibility
        if tier == FIRM:
            return load
        binding = [Window(e.row.name, e.start, e.end) for e in self._binding(at) if not e.row.emergency]
        started = ZERO if life.first_start is None else life.first_start
        bears = self._spent.bears(life.job.index, tier, started, window_s, at, binding)
        smaller = self._smaller(life, domains) if tier >= SHRINKS_FROM else ()
        return replace(load, bears=bears, smaller=smaller)

    def _smaller(self, life: "Life", domains: Sequence[int]) -> tuple[Smaller, ...]:
        """The sizes at which an elastic job can go on, the largest first."""
        whole = life.whole or life.placing
        if not life.job.gang.is_elastic or len(life.job.gang.shape.asks) != 1:
            return ()
        kept_rate, saving = self._rate_at(life, whole), life.job.saving
        stall_s = float(saving.cost_s + saving.restart_s) if saving is not None and saving.on_resize else 0.0
        takes_s = self.quickest_s() + (float(saving.cost_s) if stall_s and saving is not None else 0.0)
        found = []
        for n in range(
            sum(share.n_replicas for share in whole) - 1, life.job.gang.shape.asks[0].least - 1, -1
        ):
            placing = self._left_of(whole, n, domains)
            gone = {
                i: sum(_n_devices(s) for s in whole if domain in self.chain(s.node))
                - sum(_n_devices(s) for s in placing if domain in self.chain(s.node))
                for i, domain in enumerate(domains)
            }
            rate = float(self._rate_at(life, placing) / kept_rate)
            found.append(Smaller(n, rate, gone, stall_s, takes_s))
        return tuple(found)

    def _left_of(self, whole: Placing, n: int, domains: Sequence[int]) -> Placing:
        """What stays when n replicas are left: those under the fewest limits stay, of equals the first."""
        order = sorted(
            range(len(whole)),
            key=lambda i: (sum(domain in self.chain(whole[i].node) for domain in domains), i),
        )
        kept: list[tuple[int, Share]] = []
        for i in order:
            share = whole[i]
            n_here = min(n, share.n_replicas)
            n -= n_here
            if n_here:
                n_devices = len(share.devices) * n_here // share.n_replicas
                kept.append((i, replace(share, n_replicas=n_here, devices=share.devices[:n_devices])))
        return tuple(share for _, share in sorted(kept, key=lambda one: one[0]))

    def _load(self, life: "Life", under: dict[int, float]) -> Load:
        curve = self.sim.world.curves[life.kind]
        saving = life.job.saving
        at_risk = ZERO
        if life.attempt is not None and life.job.row.flexibility == INTERRUPTIBLE:  # nobody else is cut
            at_risk = life.attempt.lost_s(max(ZERO, self.sim.agenda.now - life.since))
        n = sum(_n_devices(share) for share in life.whole or life.placing)
        draw_w = min(self.natural_w(life), life.own_cap * curve.tdp_w)
        return Load(
            life.job.index,
            life.job.row.flexibility,
            n,
            under,
            draw_w,
            curve,
            checkpoint_s=inf if saving is None else float(saving.cost_s),
            at_risk_s=float(at_risk),
            restart_s=0.0 if saving is None else float(saving.restart_s),
        )

    def _device_w(self, life: "Life") -> float:
        kind = self.facility.kinds[life.kind]
        return kind.idle_w if not life.cap else min(self.natural_w(life), life.cap * kind.tdp_w)

    def _share_of(self, life: "Life", option: Option) -> float:
        """A cap under which the devices that a job has now would draw what an option leaves of it."""
        if option.lever is not Lever.SHRINK:
            return self._cap_of(life, option)
        kind = self.facility.kinds[life.kind]
        n_now = max(1, sum(share.n_replicas for share in life.placing))
        above_w = max(0.0, self._device_w(life) - kind.idle_w) * min(1.0, option.n_replicas / n_now)
        return min(life.own_cap, (kind.idle_w + above_w) / kind.tdp_w) if kind.tdp_w else life.own_cap

    def _cap_of(self, life: "Life", option: Option) -> float:
        """The level at which an option leaves a job: see _level()."""
        match option.lever:
            case Lever.NONE:
                return life.own_cap
            case Lever.CAP:
                return option.cap
            case Lever.SHRINK:
                return -float(option.n_replicas)
            case _:
                return 0.0

    def solve(self, problem: Problem) -> Curtailment:
        """The answer to a problem; one that was just asked is not worked out again."""
        if problem not in self._solved:
            if len(self._solved) > 64:
                self._solved.clear()
            self._solved[problem] = self.sim.engine.curtail(problem)
        return self._solved[problem]

    # -- shedding -----------------------------------------------------------------------------------

    def _begin(self, start: Fraction) -> None:
        """Wake up whenever a lever has to be used to be in force by then."""
        now = self.sim.agenda.now
        problem, _ = self.problem(start)
        for takes_s in {option.takes_s for candidate in problem.candidates for option in candidate.options}:
            if takes_s and start - exact(takes_s) > now:
                self.wake(start - exact(takes_s))

    def _shed(self, now: Fraction) -> None:
        """Use the levers whose time it is, for what binds now and for what will."""
        coming = self._coming(now)
        for start in coming[:1]:
            self._prepare(now, start)
            if not self._binding(now):
                self.turns.take(now, start)
        if self._binding(now):
            self.turns.take(now, now)
            self._hold_down(now)
        elif not coming:
            self.turns.end()

    def _prepare(self, now: Fraction, start: Fraction) -> None:
        left_s = float(start - now)
        self._begin(start)
        # What takes longer than there is time is begun at once; until it is in force others stand in for it. In an
        # emergency what is too late is no lever.
        is_emergency = self.is_emergency(start)
        for life, option in () if is_emergency else self._decided(start):
            if option.takes_s > left_s and life.job.index not in self.pauses:
                self.command(life, option, now + exact(option.takes_s), start)
        for node, option in self._nodes_decided(start):
            if option.takes_s >= left_s - 1e-9:
                event = self._binding(start)[0]
                self.nodes.switch_off(node, max(start, now + exact(option.takes_s)), event.row.name)
        for life, option in self._decided(start, within_s=left_s):
            if option.takes_s >= left_s - 1e-9:
                self.command(life, option, max(start, now + exact(option.takes_s)), start)

    def _decided(self, at: Fraction, *, within_s: float = inf) -> list[tuple["Life", Option]]:
        """Jobs with what is to be done with them by then that is not in force yet."""
        problem, lives = self.problem(at, within_s=within_s)
        chosen = self.solve(problem).chosen(problem)
        some = [(life, chosen[life.job.index]) for life in lives if life.job.index in chosen]
        return [(life, option) for life, option in some if self._cap_of(life, option) != _level(life)]

    def _nodes_decided(self, at: Fraction) -> list[tuple[int, Option]]:
        """Nodes that are to be switched off by then, and are not on their way there."""
        if not self.nodes.is_allowed:
            return []
        problem, _ = self.problem(at)
        chosen = self.solve(problem).chosen(problem)
        return [(-1 - job, option) for job, option in chosen.items() if option.lever is Lever.POWER_OFF]

    def is_emergency(self, at: Fraction) -> bool:
        """Whether an emergency is among what binds then."""
        return any(event.row.emergency for event in self._binding(at))

    def shortest_s(self, at: Fraction) -> float:
        """How long until the first of what binds then ends."""
        return float(min((event.end for event in self._binding(at)), default=at) - at)

    def window_s(self, at: Fraction) -> float:
        """How long what binds then goes on."""
        return float(max((event.end for event in self._binding(at)), default=at) - at)

    def _hold_down(self, now: Fraction) -> None:
        """While a target binds: the best plan for those who run now, sheds first."""
        if self._standing(now) == self._judged:
            return
        if self._is_off:
            # Each plan moves what the readings say of the models; without this two plans could take turns.
            cause = (tuple(sorted(self.sim.running)), self._standing(now)[1], tuple(sorted(self.pauses)))
            if cause == self._decided_for and now < self._decided_at + DWELL_S:
                return
            self._decided_for, self._decided_at = cause, now
        for node, option in self._nodes_decided(now):
            self.nodes.switch_off(node, now + exact(option.takes_s), self._binding(now)[0].row.name)
        for life, option in self._decided(now):
            if self._cap_of(life, option) <= 0.0 and life.job.index not in self.pauses:
                self.command(life, option, now + exact(option.takes_s), now)
        for life, option in self._decided(now, within_s=self.quickest_s()):
            coming = self.pending.get(life.job.index)
            cap = self._cap_of(life, option)
            if 0.0 < cap < life.cap and not life.whole and (coming is None or coming.cap != cap):
                self.command(life, option, now + exact(option.takes_s), now)
        recovers = any(e.state == "recovering" for e in self.events.values())
        if not (self.pending or self.pauses or self.unseen or recovers or self._room):
            problem, lives = self.problem(now)
            chosen = self.solve(problem).chosen(problem)
            for life in lives:
                lever = chosen.get(life.job.index)
                level = life.own_cap if lever is None else self._cap_of(life, lever)
                if not self._is_kept(life):
                    self._give_back(life, level)
        self._judged = self._standing(now)

    def _is_kept(self, life: "Life") -> bool:
        """Whether something else than the plan says how far it is held down."""
        index = life.job.index
        is_turning = self.turns.option_of(index) is not None
        return index in self._gave or is_turning or index in self._needed_next()

    def _needed_next(self) -> set[int]:
        """Jobs that are held down by slow levers, and that the next event could not have again in time."""
        now = self.sim.agenda.now
        coming = self._coming(now)
        if not coming or not any(_level(self.sim.lives[i]) <= 0.0 for i in self.sim.running):
            return set()
        cause = now, self._standing(now)
        if self._next is None or self._next[0] != cause:
            left_s = float(coming[0] - now)
            problem, lives = self.problem(coming[0], within_s=left_s)
            chosen = self.solve(problem).chosen(problem)
            needed = {
                life.job.index
                for life in lives
                if (option := chosen.get(life.job.index)) is not None
                and self._cap_of(life, option) == _level(life) <= 0.0
                and option.takes_s >= left_s
            }
            self._next = cause, needed
        return self._next[1]

    def _coming(self, now: Fraction) -> list[Fraction]:
        """When events begin whose notice has been given, the next first."""
        some = self.events.values()
        return sorted({e.start for e in some if e.start > now and e.state in ("notified", "ramping")})

    def _give_back(self, life: "Life", level: float) -> None:
        """Let a job have what the plan leaves it, as far as that fits."""
        if life.whole:
            if level > 0.0 and self._fits_whole(life):
                self.sim.regrow(life)
            elif level == _level(life) and life.cap < life.own_cap and self.fits(life, life.own_cap):
                self._raise(life, life.own_cap)  # the cap only stood in for the change of size
        elif level > life.cap and self.fits(life, level):
            self._raise(life, level)

    def _note_taken(self) -> None:
        """Devices that a job gave up and somebody else took since do not come back to it.

        It has its new size then; as long as events last it has lost what it lost, and is held down no further.
        """
        if self._taken and all(event.is_over for event in self.events.values()):
            self._taken.clear()
        for index in self.sim.running:
            life = self.sim.lives[index]
            if life.whole and not self._is_whole_free(life):
                left = self._rate_at(life, life.placing) / self._rate_at(life, life.whole)
                self._taken[index] = self._taken.get(index, 1.0) * float(left)
                life.whole = ()
                self.sim.tell(life)

    def _is_whole_free(self, life: "Life") -> bool:
        gone = {(s.node, d) for s in life.whole for d in s.devices}
        gone -= {(s.node, d) for s in life.placing for d in s.devices}
        others = {
            (s.node, d)
            for node in {node for node, _ in gone}
            for other in self.sim.on_node[node]
            if other != life.job.index
            for s in self.sim.lives[other].placing
            for d in s.devices
        }
        nodes = {node for node, _ in gone}
        return not (gone & others) and bool(self.sim.usable[list(nodes)].all()) if nodes else True

    def _fits_whole(self, life: "Life") -> bool:
        """Whether a job may have the devices back that it gave up, under every limit and every allowance."""
        more_w = min(self.natural_w(life), life.cap * self.facility.kinds[life.kind].tdp_w)
        more_w -= self.facility.kinds[life.kind].idle_w
        bounds = self.bounds_w()
        for domain in {d for share in life.whole for d in self.chain(share.node)}:
            rise = more_w * (self._whole_under(life, domain) - self.devices_under(life, domain))
            limit_w = bounds.get(domain, inf)
            if limit_w < inf and self.reserved_w(domain) + rise > limit_w + CLOSE_W * max(1.0, limit_w):
                return False
        return True

    def _standing(self, now: Fraction) -> tuple[Any, ...]:
        """All that a decision rests on."""
        return (
            tuple((i, _level(self.sim.lives[i]), self.sim.lives[i].cap) for i in sorted(self.sim.running)),
            tuple(sorted(self.targets(now).items())),
            tuple(sorted(self.pending)),
            tuple(sorted(self.pauses)),
            tuple(sorted(self.unseen)),
        )

    def _correct(self, now: Fraction) -> None:
        """Where a reading says that a target is passed all the same: shed more. Nothing is given back for it."""
        if not self._is_off:
            return
        over = any(
            self._draw_w(domain) > limit_w * (1 + NEAR) for domain, (limit_w, _) in self.targets(now).items()
        )
        if not over:
            return
        self.soon(now)
        if self.pending:
            return  # it will draw less when that is in force
        for within_s in (self.quickest_s(), inf):
            problem, lives = self.problem(now, within_s=within_s)
            further, options = deeper(problem, self._present_of(problem, lives))
            decided = self.solve(further)
            for life, choice, some in zip(lives, decided.choices, options, strict=False):
                if choice and life.job.index not in self.pauses:
                    option = some[choice]
                    self.command(life, option, now + exact(option.takes_s), now)
            if decided.is_feasible:
                break

    def _present_of(self, problem: Problem, lives: Sequence["Life"]) -> list[int]:
        """By candidate, the option that is in force; nodes that are off are none any more."""
        jobs = [self._present(c, life) for c, life in zip(problem.candidates, lives, strict=False)]
        return [*jobs, *([0] * (len(problem.candidates) - len(jobs)))]

    def _present(self, candidate: Candidate, life: "Life") -> int:
        """The option that is in force for a job."""
        return next(
            (
                i
                for i, option in enumerate(candidate.options)
                if i and self._cap_of(life, option) == _level(life)
            ),
            0,
        )

    def quickest_s(self) -> float:
        return max((curve.settle_s for curve in self.sim.world.curves), default=0.0)

    def command(self, life: "Life", option: Option, due: Fraction, start: Fraction) -> None:
        now = self.sim.agenda.now
        event = self._who_asks(life, start)
        if event.state == "notified":
            self._say(event, "ramping")
        cap, real = self._cap_of(life, option), due
        if option.lever is Lever.PAUSE and life.job.saving is not None and option.takes_s:
            factor = self.sim.engine.checkpoint_factor
            self.sim.begin_saving(life, life.job.saving.cost_s * factor)
            real = max(due, now + life.job.saving.cost_s * factor)
        under_way = self.pauses if cap <= 0.0 else self.pending
        under_way[life.job.index] = _Pending(due, cap, event.row.name, real)
        self.sim.tell(life)
        self.wake(due)
        if due <= now:
            self._bring_into_force(now)

    def _who_asks(self, life: "Life", at: Fraction) -> Event:
        """Of the events that bind then, the strictest that a job lies under."""
        events = self._binding(at)
        some = [e for e in events if self._whole_under(life, e.domain)] or events
        return min(some, key=lambda event: event.target_w)

    def _bring_into_force(self, now: Fraction) -> None:
        for under_way in (self.pauses, self.pending):
            for index in sorted(i for i, p in under_way.items() if p.due <= now):
                coming = under_way[index]
                if coming.real > now or self.sim.engine.loses_command():
                    # Nothing says that it is done: look again soon, and send it again if it was lost.
                    settle = exact(self.quickest_s()) or MINUTE_S
                    due = now + settle if coming.real <= now else min(coming.real, now + settle)
                    under_way[index] = replace(coming, due=due)
                    self.wake(due)
        for index in sorted(i for i, p in self.pauses.items() if p.due <= now):
            life, coming = self.sim.lives[index], self.pauses.pop(index)
            self.pending.pop(index, None)
            if life.cap == 0.0:
                continue  # it stands still already
            if coming.cap < 0.0:
                self._make_smaller(life, coming)
            else:
                self.sim.pause(life, coming.event)
        for index in sorted(i for i, p in self.pending.items() if p.due <= now):
            life, coming = self.sim.lives[index], self.pending.pop(index)
            if coming.cap != life.cap and life.cap:  # who was paused meanwhile draws less than any cap allows
                self.sim.set_cap(life, coming.cap)
                if self.sim.engine.loses_reading():
                    self.unseen[index] = self.soon(now)

    def _make_smaller(self, life: "Life", coming: _Pending) -> None:
        n_left, whole = int(-coming.cap), life.whole or life.placing
        if n_left >= sum(share.n_replicas for share in life.placing):
            return  # a plan has made it smaller already
        domains = sorted(self.targets(self.sim.agenda.now))
        self.sim.shrink(life, self._left_of(whole, n_left, domains), coming.event)

    # -- displacement -------------------------------------------------------------------------------

    def make_room(self) -> None:
        """After a pass, where the policy allows it: who bears more draws less, so that a firmer job may start.

        The first job that waits for power alone is looked at. Others are capped first, within their tiers; it starts
        by the next pass, once that is in force.
        """
        now = self.sim.agenda.now
        if self._room is not None:
            job, due = self._room
            if job in self.sim.queue and (now < due or self.pending):
                return
            if job in self.sim.queue:
                self._no_room[job] = self._standing(now)
            self._room, self._judged = None, ()
            self.wake(now + (exact(self.quickest_s()) or MINUTE_S))
        if not self.sim.policy_row.displacement or self.pending or self.pauses or not self._binding(now):
            return
        waiting = next(
            (w.job_id for w in self.sim.waits if w.code == "power" and w.job_id in self.sim.queue), None
        )
        if waiting is None or self._no_room.get(waiting) == self._standing(now):
            return
        life = self.sim.lives[waiting]
        rise_w = self._least_rise_w(life)
        problem, lives = self.problem(now, within_s=self.quickest_s())
        further, options = deeper(problem, self._present_of(problem, lives))
        tier = life.job.row.flexibility
        limits = tuple(replace(x, need_uw=x.need_uw + round(rise_w * 1e6)) for x in further.limits)
        moved: list[tuple[Life, Option]] = []
        for least in range(INTERRUPTIBLE, tier, -1):  # as few tiers as will do, those that bear most first
            candidates = tuple(
                c if c.tier >= least else replace(c, options=c.options[:1]) for c in further.candidates
            )
            decided = self.solve(Problem(candidates, limits))
            if decided.is_feasible:
                chosen = zip(lives, decided.choices, options, strict=False)
                moved = [(other, some[choice]) for other, choice, some in chosen if choice]
                break
        if not moved:
            self._no_room[waiting] = self._standing(now)
            return
        self._room = (waiting, now + exact(max(option.takes_s for _, option in moved)))
        for other, option in moved:
            self._gave[other.job.index] = (self._cap_of(other, option), waiting)
            self.command(other, option, now + exact(option.takes_s), now)

    def _give_way_no_longer(self, now: Fraction) -> None:
        """Who made room is judged with all others again once the job is gone, did not start, or nothing binds."""
        waits = None if self._room is None else self._room[0]
        for index, (_, job) in list(self._gave.items()):
            if not self._binding(now) or (job not in self.sim.running and job != waits):
                del self._gave[index]
                self._judged = ()

    def _least_rise_w(self, life: "Life") -> float:
        """What the load rises by at the least when a waiting job starts: at its smallest, under its deepest cap."""
        gang, least = life.gang, inf
        for kind in self.facility.kinds:
            steps = caps_of(gang, kind)
            cap = steps[-1][0] if steps else 1.0
            asks = under_cap(gang, kind, cap).shape.asks
            rise_w = sum(
                a.least
                * (a.devices or a.share_steps / 1e6)
                * max(0.0, (kind.tdp_w if a.peak_w is None else a.peak_w) - kind.idle_w)
                for a in asks
            )
            least = min(least, rise_w)
        return least

    # -- giving back --------------------------------------------------------------------------------

    def _release(self, event: Event) -> None:
        now = self.sim.agenda.now
        event.released_at = now
        event.ceiling_w, event.ceiling_at = self._draw_w(event.domain), now
        self._drop(event, now)
        self.nodes.give_up(event.row.name)
        self._say(event, "recovering")
        self.wake(now + exact(self.sim.policy_row.rebound_s))
        if self._ramp(event) is not None:
            self.wake(now + MINUTE_S)
        self._judged = ()

    def _drop(self, event: Event, now: Fraction) -> None:
        """What is under way for an event is not done any more, unless another event wants the same."""
        kept = [
            (under_way, index, coming)
            for under_way in (self.pending, self.pauses)
            for index, coming in under_way.items()
            if coming.event == event.row.name
        ]
        for under_way, index, _ in kept:
            del under_way[index]
        at = now if self._binding(now) else next(iter(self._coming(now)), None)
        chosen: Mapping[int, Option] = {}
        if kept and at is not None:
            problem, _ = self.problem(at)
            chosen = self.solve(problem).chosen(problem)
        for under_way, index, coming in kept:
            life, option = self.sim.lives[index], chosen.get(index)
            if option is not None and at is not None and self._cap_of(life, option) == coming.cap:
                under_way[index] = replace(coming, event=self._who_asks(life, at).row.name)
            else:
                self.sim.tell(life)

    def _ramp(self, event: Event) -> float | None:
        return self._ramps[event.row.domain]

    def _limit_now_w(self, event: Event) -> float:
        """What a planner may fill the domain of an event up to, as `Domain.limit_w`; inf: the event says nothing."""
        now = self.sim.agenda.now
        if event.state in ("ramping", "active"):
            return event.target_w
        if event.released_at is None:
            return inf
        limit_w = inf
        if now < event.released_at + exact(self.sim.policy_row.rebound_s):
            limit_w = self.sim.policy_row.rebound_limit * event.full_w
        return min(limit_w, self._meter_w(event.domain, self._allowed_w(event)))

    def _allowed_w(self, event: Event) -> float:
        """IT load to which a domain may rise in this minute, by its ramp."""
        ramp = self._ramp(event)
        if ramp is None or event.released_at is None or event.is_settled:
            return inf
        return event.ceiling_w

    def _lift_ceilings(self, now: Fraction) -> None:
        """Over any span a load may rise by ramp x (span + a minute): what falls and rises again counts as well."""
        for event in self.events.values():
            ramp = self._ramp(event)
            if ramp is None or event.released_at is None or event.is_settled:
                continue
            lifted_w = event.ceiling_w + ramp * float(now - event.ceiling_at)
            event.ceiling_w = min(lifted_w, self._draw_w(event.domain) + ramp * float(MINUTE_S))
            event.ceiling_at = now

    def _tick(self, now: Fraction) -> None:
        """A full minute after a release has passed: there is room for one more step."""
        for event in self.events.values():
            if event.released_at is None or event.is_settled or self._ramp(event) is None:
                continue
            minute = int((now - event.released_at) // MINUTE_S)
            if minute == event.minute:
                continue
            event.minute = minute
            rebounds_until = event.released_at + exact(self.sim.policy_row.rebound_s)
            waits = (
                bool(self.nodes.off)
                or any(wait.code == "power" for wait in self.sim.waits)
                or any(self.devices_under(life, event.domain) for life in self._curtailed())
            )
            if now >= rebounds_until and (not waits or now >= 2 * rebounds_until - event.released_at):
                event.is_settled = event.is_over
            if not event.is_settled:
                self.wake(event.released_at + (minute + 1) * MINUTE_S)

    def fits(self, life: "Life", cap: float, limits: Mapping[int, float] | None = None) -> bool:
        """Whether a job may draw so much more, under every limit and every allowance above it.

        Args:
            limits: Of bounds_w(): who asks for many jobs works them out once.
        """
        kind = self.facility.kinds[life.kind]
        more_w = min(self.natural_w(life), cap * kind.tdp_w) - self._device_w(life)
        limits = self.bounds_w() if limits is None else limits
        touched = {d for share in life.placing for d in self.chain(share.node)}
        for domain in touched:
            limit_w = limits.get(domain, inf)
            if limit_w == inf:
                continue
            rise = more_w * self.devices_under(life, domain)
            if self.reserved_w(domain) + rise > limit_w + CLOSE_W * max(1.0, limit_w):
                return False
        return True

    def reserved_w(self, domain: int) -> float:
        """What a domain draws once all that is under way to rise has risen."""
        total = self._draw_w(domain)
        for index, coming in self.pending.items():
            life = self.sim.lives[index]
            kind = self.facility.kinds[life.kind]
            then_w = min(self.natural_w(life), coming.cap * kind.tdp_w)
            total += max(0.0, then_w - self._device_w(life)) * self.devices_under(life, domain)
        return total

    def _curtailed(self) -> list["Life"]:
        """Jobs that draw less than they could, the firmest tier first, then who lost most, then the oldest."""
        some = [self.sim.lives[i] for i in self.sim.running]
        held = [life for life in some if life.kind != NONE and (life.cap < 1.0 or life.whole)]
        return sorted(
            held, key=lambda life: (life.job.row.flexibility, -life.lost_s, life.job.submit, life.job.index)
        )

    def _restore(self, now: Fraction) -> None:
        """Give back what limits and ramps allow."""
        if self._binding(now):
            if not any(e.state == "recovering" for e in self.events.values()):
                return
            problem, lives = self.problem(now)
            chosen = self.solve(problem).chosen(problem)
            goals = {
                life.job.index: life.own_cap
                if (option := chosen.get(life.job.index)) is None
                else self._cap_of(life, option)
                for life in lives
            }
        else:
            goals = {}
        limits = self.bounds_w()
        for life in self._curtailed():
            if life.job.index in self.pending:
                continue
            goal = _level(life) if self._is_kept(life) else goals.get(life.job.index, 1.0)
            if life.whole:
                if goal > 0.0 and self._fits_whole(life):
                    self.sim.regrow(life)
                elif goal > 0.0 and any(e.state == "recovering" for e in self.events.values()):
                    break
                continue
            if goal <= life.cap:
                continue
            steps = [1.0, *(cap for cap, _ in self.facility.kinds[life.kind].caps)]
            best = next(
                (cap for cap in steps if life.cap < cap <= goal and self.fits(life, cap, limits)), None
            )
            if best is None:
                if any(e.state == "recovering" for e in self.events.values()):
                    break  # who comes first waits for the ramp; nobody overtakes
                continue
            self._raise(life, best)
        else:
            if not self._binding(now):
                self.nodes.switch_on(now)

    def go_on(self, life: "Life", cap: float) -> None:
        """A job that stood still goes on."""
        self._raise(life, cap)

    def _raise(self, life: "Life", cap: float) -> None:
        if life.cap == 0.0:
            self.sim.resume(life, cap)
        else:
            self.sim.set_cap(life, cap)
        life.own_cap = max(life.own_cap, cap)

    def _complete(self, now: Fraction) -> None:
        for event in self.events.values():
            if event.state != "recovering":
                continue
            problem_left = [life for life in self._curtailed() if self.devices_under(life, event.domain)]
            if self._binding(now):
                key = self._allowed_w(event)
                problem_left = problem_left if key < inf and not self._is_settled(now) else []
            off = [] if self._binding(now) else [n for n in self.nodes.off if event.domain in self.chain(n)]
            if (problem_left or off) and not self._is_stuck(event, problem_left, off):
                continue
            self._say(event, "cancelled" if event.is_cancelled else "completed")

    def _is_settled(self, now: Fraction) -> bool:
        """Whether everybody draws what the plan for the targets that bind now gives them."""
        problem, lives = self.problem(now)
        chosen = self.solve(problem).chosen(problem)
        return all(self._is_kept(life) or self._has(life, chosen.get(life.job.index)) for life in lives)

    def _has(self, life: "Life", option: Option | None) -> bool:
        """Whether a job has all that a plan leaves it."""
        level = life.own_cap if option is None else self._cap_of(life, option)
        return level <= _level(life) if life.whole else level <= life.cap

    def _is_stuck(self, event: Event, lives: list["Life"], off: Sequence[int] = ()) -> bool:
        """Whether what is still held down is held down by something else than the ramp of this event."""
        if (
            self._ramp(event) is not None
            and self._meter_w(event.domain, self._allowed_w(event)) < event.reference_w
        ):
            return False
        if any(self.nodes.fits(node) for node in off):
            return False
        return not any(
            self._fits_whole(life) if life.whole else self.fits(life, self._next_cap(life)) for life in lives
        )

    def _next_cap(self, life: "Life") -> float:
        steps = [1.0, *(cap for cap, _ in self.facility.kinds[life.kind].caps)]
        return min((cap for cap in steps if cap > life.cap), default=1.0)

    # -- saying -------------------------------------------------------------------------------------

    def _say(self, event: Event, state: str) -> None:
        event.state = state
        line: dict[str, Any] = {
            "t": plain(self.sim.agenda.now),
            "event": "dr",
            "name": event.row.name,
            "state": state,
            "power_w": _watts(self._meter_w(event.domain, self._draw_w(event.domain))),
            "target_w": _watts(event.target_w),
        }
        if state in ("notified", "ramping", "active"):
            line |= self._outlook(event)
        self.sim.lines.append(line)
        self.sim.last = self.sim.agenda.now

    def _outlook(self, event: Event) -> dict[str, Any]:
        """What can be had of what is asked, what stands in the way, and what an operator could allow beside it."""
        at = first = max(event.start, self.sim.agenda.now)
        if coming := [pause.due for pause in self.pauses.values() if pause.due < event.end]:
            at = max(at, *coming)  # what is being saved now will count then
        problem, lives = self.problem(at)
        decided: Curtailment = self.solve(problem)
        within_s = max(0.0, float(event.start - self.sim.agenda.now))
        timely, _ = self.problem(first, within_s=max(within_s, self.quickest_s()))
        position = next(i for i, limit in enumerate(problem.limits) if limit.domain == event.domain)
        k = self.facility.domains[event.domain].overhead_k
        limit = problem.limits[position]
        base_w = self._it_w(event.domain, event.target_w) + limit.need_uw / 1e6
        target_it_w = self._it_w(event.domain, event.target_w)
        least_w = base_w - decided.achievable_uw[position] / 1e6
        # What pauses that take turns shed throughout, beside all that holds for the whole of it.
        turned = self.turns.gives_uw(at).get(position, 0) / 1e6
        least_w -= turned
        achievable_w = event.reference_w - self._meter_w(event.domain, least_w)
        short_w = max(0.0, (least_w - target_it_w) * k)
        told: dict[str, Any] = {
            "shortfall_w": _watts(short_w),
            "achievable_w": _watts(achievable_w),
            "binding": [],
            "relaxations": [],
        }
        # What is slower than the notice comes later: so much is there when the target begins to bind.
        at_start_w = base_w - self.solve(timely).achievable_uw[position] / 1e6
        if turned and self.turns.first_takes_s() <= within_s:
            at_start_w -= turned
        told["achievable_at_start_w"] = _watts(event.reference_w - self._meter_w(event.domain, at_start_w))
        if short_w > CLOSE_W:
            tiers = sorted(
                {life.job.row.flexibility for life in lives if life.job.row.flexibility != INTERRUPTIBLE}
            )
            told["binding"] = [event.row.domain, *(f"tier {tier}" for tier in tiers)]
            told["relaxations"] = [
                {"action": action, "gain_w": _watts(gain_w * k)}
                for action, gain_w in self._relaxations(event, lives)
            ]
        return told

    def _relaxations(self, event: Event, lives: list["Life"]) -> Iterator[tuple[str, float]]:
        """What would give more, the cheapest watt first: each with the IT watts it gives."""
        busy = {share.node for index in self.sim.running for share in self.sim.lives[index].placing}
        idle = [
            node
            for node in range(self.facility.n_nodes)
            if node not in busy and not self.sim.is_failed[node] and event.domain in self.chain(node)
        ]
        rest_w = sum(self.nodes.rest_w(n) for n in idle)
        if rest_w and not self.nodes.is_allowed:
            yield f"power off {len(idle)} idle nodes", rest_w
        found: list[tuple[float, int, str, float]] = []
        for life in lives:
            tier = life.job.row.flexibility
            if tier in (FIRM, INTERRUPTIBLE):
                continue
            load = self._load(life, {0: self.devices_under(life, event.domain)})
            curve, n = load.curve, load.devices_under[0]
            bound = 1.0 - allowed_loss(tier) - 1e-9
            caps = [cap for cap in curve.caps() if cap * curve.tdp_w < load.draw_w]
            kept = [cap for cap in caps if curve.rate(cap, load.draw_w) >= bound]
            beyond = [cap for cap in caps if curve.rate(cap, load.draw_w) < bound]
            now_w = min([load.draw_w, *(cap * curve.tdp_w for cap in kept)])
            now_rate = min([1.0, *(curve.rate(cap, load.draw_w) for cap in kept)])
            if beyond:
                cap = beyond[0]
                gain_w, lost = (now_w - cap * curve.tdp_w) * n, now_rate - curve.rate(cap, load.draw_w)
                action = f"cap {life.job.name} at {cap * curve.tdp_w:.0f} W"
            else:
                gain_w, lost = (now_w - curve.idle_w) * n, now_rate
                action = f"pause {life.job.name}"
            if gain_w > 0:
                weight = (8.0, 4.0, 2.0, 1.0, 0.5)[tier]
                found.append((weight * lost * n / gain_w, life.job.index, action, gain_w))
        for _, _, action, gain_w in sorted(found):
            yield action, gain_w


def _level(life: "Life") -> float:
    """How far a job is held down, in one number: its cap; 0: it is paused; below: minus the replicas that are left."""
    if life.whole and life.cap:
        return -float(sum(share.n_replicas for share in life.placing))
    return life.cap


def _n_devices(share: Share) -> float:
    return len(share.devices) * share.share_steps / 1e6


def deeper(problem: Problem, present: Sequence[int]) -> tuple[Problem, list[tuple[Option, ...]]]:
    """The same decision from what is in force on: what a job may do beside it sheds more everywhere.

    Args:
        present: By candidate, the option that is in force.

    Returns:
        The problem, and by candidate the options as they stood before.
    """
    needs = [limit.need_uw for limit in problem.limits]
    at = dict.fromkeys(range(len(needs)), 0)
    candidates, known = [], []
    for candidate, now in zip(problem.candidates, present, strict=True):
        held = candidate.options[now]
        has = at | dict(held.shed_uw)
        for limit, watts in held.shed_uw:
            needs[limit] -= watts
        options, before = [Option(Lever.NONE)], [held]
        for option in candidate.options:
            gives = at | dict(option.shed_uw)
            more = tuple((limit, gives[limit] - has[limit]) for limit in sorted(gives))
            if option.lever is Lever.NONE or not any(w for _, w in more) or any(w < 0 for _, w in more):
                continue
            cost_ms = max(0, option.cost_ms - held.cost_ms)
            options.append(replace(option, shed_uw=more, cost_ms=cost_ms))
            before.append(option)
        candidates.append(replace(candidate, options=tuple(options)))
        known.append(tuple(before))
    limits = tuple(replace(limit, need_uw=need) for limit, need in zip(problem.limits, needs, strict=True))
    return Problem(tuple(candidates), limits), known


def _watts(value: float) -> int | float:
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded

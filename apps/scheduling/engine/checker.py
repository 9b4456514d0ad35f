"""Goes over a plan before anything is written. Shares no code with the planner, on purpose: a rule misunderstood there
is not misunderstood here in the same way. Plain dictionaries and sums over what the plan touches.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from weakref import WeakKeyDictionary

import numpy as np

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    CapChange,
    Facility,
    Fault,
    Gang,
    LimitChange,
    Placing,
    Plan,
    Policy,
    Resize,
    Running,
    Share,
    Snapshot,
    Start,
)

SLACK = 1e-6  # relative: watts and cpus are sums of floats here
_OVERDUE_S = 1.0
_INTERRUPTIBLE = 4  # the tier
_IDLE_W: WeakKeyDictionary[Facility, dict[int, float]] = WeakKeyDictionary()


def check(snapshot: Snapshot, plan: Plan, policy: Policy) -> tuple[Fault, ...]:
    """Every rule the plan breaks; empty when it may be written."""
    return tuple(_Checker(snapshot, plan, policy).faults())


class _Checker:
    def __init__(self, snapshot: Snapshot, plan: Plan, policy: Policy) -> None:
        self.snapshot, self.plan, self.policy = snapshot, plan, policy
        self.facility: Facility = snapshot.facility
        self.gangs: dict[int, Gang] = {gang.id: gang for gang in snapshot.queue}
        self.running: dict[int, Running] = {r.gang.id: r for r in snapshot.running}
        members = snapshot.members if snapshot.quota_is_checked else ()
        self.limits_of = {(member.team, member.user): member for member in members}
        self._above: dict[int, tuple[int, ...]] = {}
        self.caps = {r.gang.id: r.cap for r in snapshot.running if r.cap < 1.0}
        self.caps |= {start.job_id: start.cap for start in plan.starts if start.cap != 1.0}
        evicted = {evict.job_id for evict in plan.evictions}
        resized = {resize.job_id: resize for resize in plan.resizes}
        # What goes on running once the plan is carried out, what is resized left out.
        self.stays = [r for r in snapshot.running if r.gang.id not in evicted and r.gang.id not in resized]
        self.resized: list[tuple[Running, Resize]] = [
            (self.running[job_id], resize)
            for job_id, resize in resized.items()
            if job_id in self.running and job_id not in evicted
        ]

    def faults(self) -> Iterator[Fault]:
        seen: Counter[int] = Counter(start.job_id for start in self.plan.starts)
        for job_id, n in seen.items():
            if n > 1 or job_id in self.running:
                yield Fault("gang", job_id, "starts although it runs already" if n == 1 else "starts twice")
        known = [s for s in self.plan.starts if s.job_id in self.gangs and self._is_sane(s.job_id, s.placing)]
        for start in self.plan.starts:
            if start.job_id not in self.gangs:
                yield Fault("gang", start.job_id, "is not in the queue")
            elif not self._is_sane(start.job_id, start.placing):
                yield Fault("gang", start.job_id, "names a group or a node that does not exist")
        for start in known:
            gang = self.gangs[start.job_id]
            yield from self._ready(gang)
            yield from self._cap(gang, start)
            yield from self._shape(gang, start.placing)
            yield from self._bookings(gang, start.placing, start.expected_end_s)
            yield from self._data(gang, start.placing)
        starting = [(self.gangs[s.job_id], s.placing) for s in known]
        placed = [*starting, *((running.gang, resize.placing) for running, resize in self.resized)]
        yield from self._evictions(starting, placed)
        yield from self._resizes()
        yield from self._devices(placed)
        yield from self._power(placed)
        yield from self._power_ahead(placed)
        yield from self._quota(placed)
        yield from self._members(placed)
        yield from self._arrays(placed)
        yield from self._promises()

    def _is_sane(self, job_id: int, placing: Placing) -> bool:
        n_groups, n_nodes = len(self.gangs[job_id].shape.asks), len(self.facility.node_id)
        return all(0 <= share.group < n_groups and 0 <= share.node < n_nodes for share in placing)

    # -- the job itself -----------------------------------------------------------------------------------------------

    def _ready(self, gang: Gang) -> Iterator[Fault]:
        now_s = self.snapshot.now_s
        if gang.is_held:
            yield Fault("held", gang.id, "is held")
        if gang.waits_for:
            yield Fault("dependency", gang.id, f"waits for {gang.waits_for[0]}")
        if gang.not_before_s > now_s or gang.retry_s > now_s:
            yield Fault("not_before", gang.id, "starts before its time")

    def _cap(self, gang: Gang, start: Start) -> Iterator[Fault]:
        if start.cap == 1.0:
            return
        rates = dict(self.facility.kinds[start.kind].caps) if start.kind != NONE else {}
        most_lost = (0.0, 0.1, 0.25, 0.5, 1.0)[gang.tier]
        if start.cap not in rates or 1.0 - rates[start.cap] > most_lost + SLACK:
            yield Fault("cap", gang.id, f"is capped at {start.cap:g} of TDP, which its tier does not bear")

    def _shape(self, gang: Gang, placing: Placing, *, is_resize: bool = False) -> Iterator[Fault]:
        counts: Counter[int] = Counter()
        kinds: set[int] = set()
        places: dict[int, set[int]] = defaultdict(set)
        for share in placing:
            ask = gang.shape.asks[share.group]
            node = share.node
            if share.n_replicas < 1:
                yield Fault("gang", gang.id, "has a share without replicas")
            counts[share.group] += share.n_replicas
            places[share.group].add(node)
            if not is_resize:
                yield from self._node(gang, node)
            yield from self._share(gang, ask, share.devices, share.n_replicas, share.share_steps, node)
            kind = int(self.facility.kind[node])
            if ask.devices or ask.share_steps:
                kinds.add(kind)
                if kind not in ask.kinds:
                    yield Fault("kind", gang.id, f"does not accept {self.facility.kinds[kind].name}")
            elif ask.kinds and kind not in ask.kinds:
                yield Fault("kind", gang.id, f"does not accept {self.facility.kinds[kind].name}")
        if len(kinds) > 1:
            yield Fault("kind", gang.id, "mixes accelerator types")
        if len({int(self.facility.cluster[share.node]) for share in placing}) > 1:
            yield Fault("node", gang.id, "lies in more than one cluster")
        for g, ask in enumerate(gang.shape.asks):
            least = ask.n_replicas if ask.n_min is None else ask.n_min
            most = ask.n_replicas if ask.n_max is None else ask.n_max
            if not least <= counts[g] <= most:
                yield Fault("gang", gang.id, f"has {counts[g]} of {ask.n_replicas} replicas")
            if ask.required is not None:
                domains = {self._domain(node, ask.required) for node in places[g]}
                if len(domains) > 1 or None in domains:
                    yield Fault("topology", gang.id, f"is not within one {ask.required}")
            if ask.spread is not None:
                yield from self._spread(gang, g, ask, placing)

    def _spread(self, gang: Gang, g: int, ask: Ask, placing: Placing) -> Iterator[Fault]:
        spread = ask.spread
        assert spread is not None
        inside: Counter[object] = Counter()
        for share in placing:
            if share.group == g:
                inside[self._domain(share.node, spread.over)] += share.n_replicas
        if None in inside:
            yield Fault("spread", gang.id, f"lies on a node without a {spread.over}")
        if spread.max_per_domain is not None and max(inside.values(), default=0) > spread.max_per_domain:
            yield Fault(
                "spread", gang.id, f"has more than {spread.max_per_domain} replicas in one {spread.over}"
            )
        if spread.max_skew is None:
            return
        kinds = {int(self.facility.kind[share.node]) for share in placing if share.group == g}
        for node in range(len(self.facility.node_id)):
            if self._could_hold(gang, ask, node, kinds):
                inside[self._domain(node, spread.over)] += 0
        inside.pop(None, None)
        if inside and max(inside.values()) - min(inside.values()) > spread.max_skew:
            yield Fault("spread", gang.id, f"is skewed by more than {spread.max_skew} over {spread.over}")

    def _could_hold(self, gang: Gang, ask: Ask, node: int, kinds: set[int]) -> bool:
        """Whether the node, healthy and empty, could hold a replica of the type that was chosen."""
        f = self.facility
        return bool(
            self.snapshot.is_usable[node]
            and gang.shape.cluster in (NONE, int(f.cluster[node]))
            and (not (ask.devices or ask.share_steps) or int(f.kind[node]) in kinds)
            and int(f.n_devices[node]) >= max(ask.devices, 1 if ask.share_steps else 0)
            and float(f.cpus[node]) * (1 + SLACK) >= ask.cpus
            and float(f.memory_gib[node]) * (1 + SLACK) >= ask.memory_gib
        )

    # -- data ---------------------------------------------------------------------------------------------------------

    def _data(self, gang: Gang, placing: Placing) -> Iterator[Fault]:
        latest_s = self.snapshot.now_s + self.policy.staging_hold_s
        sent = {(stage.dataset, stage.to_domain): stage.until_s for stage in self.plan.stages}
        for position in gang.datasets:
            dataset = self.snapshot.datasets[position]
            for domain in {int(self.facility.storage[share.node]) for share in placing} - {NONE}:
                arrives_s = dataset.arrives_s.get(domain, sent.get((position, domain), inf))
                if domain not in dataset.at and arrives_s > latest_s:
                    yield Fault("staging", gang.id, f"would wait too long for {dataset.name}")

    # -- who gives way ------------------------------------------------------------------------------------------------

    def _evictions(
        self, starting: list[tuple[Gang, Placing]], placed: list[tuple[Gang, Placing]]
    ) -> Iterator[Fault]:
        starts = {gang.id: (gang, placing) for gang, placing in starting}
        counts = Counter(evict.job_id for evict in self.plan.evictions)
        after = self._use_by_team(self._all(placed))
        # By preemptor: with what others lose only later, which at its turn they still held.
        at_its_turn: dict[int, dict[tuple[int, int], int]] = {}
        for evict in reversed(self.plan.evictions):
            at_its_turn.setdefault(evict.for_job_id, dict(after))
            gone = self.running.get(evict.job_id)
            if gone is not None:
                for key, steps in self._use_by_team([(gone.gang, gone.placing)]).items():
                    after[key] = after.get(key, 0) + steps
        for evict in self.plan.evictions:
            victim, by = self.running.get(evict.job_id), starts.get(evict.for_job_id)
            if victim is None or counts[evict.job_id] > 1 or victim.is_leaving:
                yield Fault("eviction", evict.job_id, "does not run, or leaves already")
                continue
            if by is None:
                yield Fault("eviction", evict.job_id, "gives way to a job that does not start")
                continue
            if not self.policy.preemption or not victim.gang.preemptible:
                yield Fault("eviction", evict.job_id, "is not to be evicted")
            if self.snapshot.now_s - victim.started_s < self.policy.shield_s:
                yield Fault("eviction", evict.job_id, "is too young to be evicted")
            most = self.policy.most_evictions
            if most is not None and victim.gang.n_evictions >= most:
                yield Fault("eviction", evict.job_id, "was evicted often enough")
            yield from self._right_to(by[0], by[1], victim, at_its_turn[evict.for_job_id])
            if not self._is_needed(victim, placed):
                yield Fault("eviction", evict.job_id, "could have been spared")

    def _right_to(
        self, gang: Gang, placing: Placing, victim: Running, after: dict[tuple[int, int], int]
    ) -> Iterator[Fault]:
        """A lower priority; or a loan that the other's team may call in."""
        if victim.gang.priority < gang.priority:
            return
        kinds = {int(self.facility.kind[share.node]) for share in placing if share.devices}
        teams = self.snapshot.teams
        if victim.gang.team == NONE or gang.team == NONE or victim.gang.team == gang.team or not teams:
            yield Fault("eviction", victim.gang.id, "has no lower priority")
            return
        apart = self._teams_above(victim.gang.team) - self._teams_above(gang.team)
        for kind in kinds:
            for team in apart:
                inside = [t for t in range(len(teams)) if team in self._teams_above(t)]
                owned = sum(teams[t].entitlement.get(kind, 0) for t in inside) * SHARE_STEPS
                left = sum(after.get((t, kind), 0) for t in inside)
                if left < owned and not any(teams[t].lend_limit for t in inside):
                    yield Fault("eviction", victim.gang.id, f"takes {teams[team].name} below what it owns")

    def _is_needed(self, victim: Running, placed: list[tuple[Gang, Placing]]) -> bool:
        """Whether something of the plan could not be if this victim had stayed."""
        self.stays.append(victim)
        try:
            return (
                any(self._devices(placed))
                or any(self._power(placed, is_close=True))
                or any(self._power_ahead(placed, is_close=True))
                or any(self._quota(placed))
                or any(self._members(placed))
                or any(self._promises(is_close=True))
            )
        finally:
            self.stays.pop()

    def _resizes(self) -> Iterator[Fault]:
        if len(self.resized) != len(self.plan.resizes):
            yield Fault("resize", None, "a job is resized that does not go on running, or twice")
        starting = {start.job_id for start in self.plan.starts}
        for running, resize in self.resized:
            gang = running.gang
            yield from self._shape(gang, resize.placing, is_resize=True)
            before = {share.node for share in running.placing}
            for share in resize.placing:
                if share.node not in before:
                    yield from self._node(gang, share.node)
            grows = self._n_devices(gang, resize.placing) > self._n_devices(gang, running.placing)
            if resize.for_job_id is None:
                # Added up as the planner does: the same difference may come out a rounding less.
                since_s = max(running.sized_s, running.started_s)
                is_young = self.snapshot.now_s < since_s + self.policy.resize_dwell_s
                if is_young and not self._is_out_of_bounds(gang, running.placing):
                    yield Fault("resize", gang.id, "has its size not long enough")
                yield from self._bookings(gang, resize.placing, resize.expected_end_s)
                yield from self._data(gang, resize.placing)
            elif grows or resize.for_job_id not in starting:
                yield Fault("resize", gang.id, "grows for another, or shrinks for a job that does not start")

    def _is_out_of_bounds(self, gang: Gang, placing: Placing) -> bool:
        """Whether a job has a size that it may not have any more."""
        counts: Counter[int] = Counter()
        for share in placing:
            counts[share.group] += share.n_replicas
        return any(
            (ask.n_min is not None and counts[g] < ask.n_min)
            or (ask.n_max is not None and counts[g] > ask.n_max)
            for g, ask in enumerate(gang.shape.asks)
        )

    def _n_devices(self, gang: Gang, placing: Placing) -> float:
        return sum(
            share.n_replicas
            * (gang.shape.asks[share.group].devices or gang.shape.asks[share.group].share_steps / 1e6)
            for share in placing
        )

    def _node(self, gang: Gang, node: int) -> Iterator[Fault]:
        name = self.facility.node_name[node]
        if not self.snapshot.is_usable[node] or self.snapshot.is_failed[node]:
            yield Fault("node", gang.id, f"{name} takes no new work")
        if gang.shape.cluster not in (NONE, int(self.facility.cluster[node])):
            yield Fault("node", gang.id, f"{name} is not in its cluster")

    def _share(
        self, gang: Gang, ask: Ask, devices: tuple[int, ...], n_replicas: int, share_steps: int, node: int
    ) -> Iterator[Fault]:
        if len(set(devices)) != len(devices) or any(
            not 0 <= d < int(self.facility.n_devices[node]) for d in devices
        ):
            yield Fault("device", gang.id, "names a device twice, or one that does not exist")
        if ask.devices:
            if len(devices) != ask.devices * n_replicas or share_steps != SHARE_STEPS:
                yield Fault(
                    "gang", gang.id, f"has {len(devices)} devices for {n_replicas} replicas of {ask.devices}"
                )
        elif ask.share_steps:
            if len(devices) != 1 or share_steps != ask.share_steps * n_replicas or share_steps > SHARE_STEPS:
                yield Fault("device", gang.id, "has the wrong share of a device")
        elif devices:
            yield Fault("device", gang.id, "holds devices it did not ask for")

    def _domain(self, node: int, kind: str) -> object:
        facility = self.facility
        for lowest in (facility.scale_up, facility.leaf, facility.power, facility.cooling, facility.storage):
            for at in self._ancestors(int(lowest[node])):
                if facility.domains[at].kind == kind:
                    return at
        return ("node", node) if kind == "scale_up" else None

    def _ancestors(self, domain: int) -> tuple[int, ...]:
        if domain == NONE:
            return ()
        if domain not in self._above:
            self._above[domain] = (domain, *self._ancestors(self.facility.domains[domain].parent))
        return self._above[domain]

    # -- bookings -----------------------------------------------------------------------------------------------------

    def _teams_above(self, team: int) -> set[int]:
        above = set()
        while team != NONE and team not in above:
            above.add(team)
            team = self.snapshot.teams[team].parent if team < len(self.snapshot.teams) else NONE
        return above

    def _bookings(self, gang: Gang, placing: Placing, end_s: float) -> Iterator[Fault]:
        now_s = self.snapshot.now_s
        mine = self._teams_above(gang.team)
        nodes = {share.node for share in placing}
        if gang.shape.reservation != NONE:
            booking = self.snapshot.bookings[gang.shape.reservation]
            if not booking.start_s <= now_s or end_s > booking.end_s:
                yield Fault("reservation", gang.id, f"is not inside its reservation {booking.name}")
            if booking.nodes and not nodes <= set(booking.nodes):
                yield Fault("reservation", gang.id, f"leaves the nodes of {booking.name}")
        for booking in self.snapshot.bookings:
            if mine & booking.teams or booking.end_s <= now_s or not booking.nodes:
                continue
            meets = booking.start_s < end_s or not booking.is_flexible
            if meets and nodes & set(booking.nodes):
                yield Fault("reservation", gang.id, f"would be on nodes of {booking.name}")

    # -- sums over everything -----------------------------------------------------------------------------------------

    def _all(self, placed: Iterable[tuple[Gang, Placing]]) -> Iterator[tuple[Gang, Placing]]:
        yield from ((r.gang, r.placing) for r in self.stays)
        yield from placed

    def _devices(self, placed: list[tuple[Gang, Placing]]) -> Iterator[Fault]:
        touched = {share.node for _, placing in placed for share in placing}
        steps: Counter[tuple[int, int]] = Counter()
        cpus: dict[int, float] = defaultdict(float)
        memory: dict[int, float] = defaultdict(float)
        for gang, placing in self._all(placed):
            for share in placing:
                if share.node not in touched:
                    continue
                ask = gang.shape.asks[share.group]
                for device in share.devices:
                    steps[share.node, device] += share.share_steps
                cpus[share.node] += ask.cpus * share.n_replicas
                memory[share.node] += ask.memory_gib * share.n_replicas
        for (node, device), taken in steps.items():
            if taken > SHARE_STEPS:
                yield Fault(
                    "device",
                    None,
                    f"device {device} of {self.facility.node_name[node]} is claimed {taken / SHARE_STEPS:g} times",
                )
        for node in touched:
            for what, used, there in (
                ("cpus", cpus, self.facility.cpus),
                ("GiB", memory, self.facility.memory_gib),
            ):
                if used[node] > float(there[node]) * (1 + SLACK) + SLACK:
                    yield Fault(
                        "resources", None, f"{self.facility.node_name[node]} has fewer {what} than it gives"
                    )

    def _peak_w(self, gang: Gang, share_group: int, node: int) -> float:
        """Watts above idle of one replica."""
        ask = gang.shape.asks[share_group]
        kind = self.facility.kinds[int(self.facility.kind[node])]
        peak = kind.tdp_w if ask.peak_w is None else min(ask.peak_w, kind.tdp_w)
        peak = min(peak, self.caps.get(gang.id, 1.0) * kind.tdp_w)
        return max(0.0, peak - kind.idle_w) * (ask.devices or ask.share_steps / SHARE_STEPS)

    def _load_above_idle(self, placed: Iterable[tuple[Gang, Placing]]) -> dict[int, float]:
        load: dict[int, float] = defaultdict(float)
        for gang, placing in placed:
            for share in placing:
                watts = self._peak_w(gang, share.group, share.node) * share.n_replicas
                for domain in self._domains_of(share.node):
                    load[domain] += watts
        return load

    def _drew(self) -> dict[int, dict[int, float]]:
        """Watts of the jobs whose size changes, as they run now, by job and domain."""
        return {r.gang.id: self._load_above_idle([(r.gang, r.placing)]) for r, _ in self.resized}

    def _draws_more_in(self, placed: list[tuple[Gang, Placing]]) -> set[int]:
        """Domains in which a job draws more by this plan than it does now."""
        drew = self._drew()
        nothing: dict[int, float] = {}
        return {
            domain
            for gang, placing in placed
            for domain, watts in self._load_above_idle([(gang, placing)]).items()
            if watts > drew.get(gang.id, nothing).get(domain, 0.0) + SLACK
        }

    def _domains_of(self, node: int) -> set[int]:
        f = self.facility
        return {
            at
            for low in (f.scale_up, f.leaf, f.power, f.cooling, f.storage)
            for at in self._ancestors(int(low[node]))
        }

    def _idle_load(self) -> dict[int, float]:
        """Watts of everything at rest, by domain; the facility as built does not change from pass to pass."""
        f = self.facility
        if f not in _IDLE_W:
            idle: dict[int, float] = defaultdict(float)
            for node in range(len(f.node_id)):
                watts = float(f.idle_w[node]) + int(f.n_devices[node]) * f.kinds[int(f.kind[node])].idle_w
                for domain in self._domains_of(node):
                    idle[domain] += watts
            _IDLE_W[f] = idle
        return _IDLE_W[f]

    def _limits(self) -> dict[int, float]:
        return {
            i: (d.limit_w - d.overhead_fixed_w) / d.overhead_k
            for i, d in enumerate(self.facility.domains)
            if d.limit_w != inf
        }

    def _power(self, placed: list[tuple[Gang, Placing]], *, is_close: bool = False) -> Iterator[Fault]:
        slack = -SLACK if is_close else SLACK
        limits = self._limits()
        if not limits or not placed:
            return
        ours = self._draws_more_in(placed)
        load, idle = self._load_above_idle(self._all(placed)), self._idle_load()
        for domain, limit_w in limits.items():
            if domain not in ours:
                continue  # nothing of this plan draws there: an old excess is not its fault
            total = idle[domain] + load[domain]
            if total > limit_w + slack * max(1.0, abs(limit_w)):
                name = self.facility.domains[domain].name
                yield Fault("power", None, f"{name} would draw {total:.1f} W of {limit_w:.1f} W")

    def _power_ahead(self, placed: list[tuple[Gang, Placing]], *, is_close: bool = False) -> Iterator[Fault]:
        """Where limits are known to change, or running work to draw less or more: what starts now, and what is
        promised, fits under every limit for as long as it is expected to run."""
        snapshot, now_s = self.snapshot, self.snapshot.now_s
        if not snapshot.limit_changes and not snapshot.cap_changes:
            return
        slack = -SLACK if is_close else SLACK
        limits = self._limits()
        load: dict[int, float] = defaultdict(float, self._idle_load())
        ours: Counter[int] = Counter()  # by domain: how much of this plan draws there
        events: list[tuple[float, int, Callable[[], set[int]]]] = []

        def limit(domain: int, watts: float) -> set[int]:
            of = self.facility.domains[domain]
            limits[domain] = (watts - of.overhead_fixed_w) / of.overhead_k
            return {domain}

        def turn(before: dict[int, float], then: dict[int, float], had: dict[int, float] | None) -> set[int]:
            for domain in before.keys() | then.keys():
                was_w, is_w = before.get(domain, 0.0), then.get(domain, 0.0)
                load[domain] += is_w - was_w
                if had is not None:
                    most_w = had.get(domain, 0.0) + SLACK
                    ours[domain] += (is_w > most_w) - (was_w > most_w)
            return {domain for domain, watts in then.items() if watts > before.get(domain, 0.0)}

        def course(
            at_s: float,
            ends_s: float,
            steps: list[tuple[float, dict[int, float]]],
            had: dict[int, float] | None,
        ) -> None:
            """Work that draws from an instant on, and otherwise from each of these on, until it ends.

            What this plan decides comes with what it drew before; where it draws no more, an excess is not its fault.
            """
            before: dict[int, float] = {}
            for since_s, watts in steps:
                if since_s == at_s or at_s < since_s < ends_s:
                    events.append((since_s, 2, partial(turn, before, watts, had)))
                    before = watts
            events.append((ends_s, 0, partial(turn, before, {}, had)))

        nothing: dict[int, float] = {}
        changes: dict[int, list[CapChange]] = defaultdict(list)
        for change in sorted(snapshot.cap_changes, key=lambda c: c.at_s):
            if change.at_s > now_s:
                changes[change.job_id].append(change)
        for running in self.stays:
            gang, placing = running.gang, running.placing
            ends_s = running.ends_s if running.ends_s > now_s else now_s + _OVERDUE_S
            told = changes[gang.id] or self._slowed(gang, placing, running.cap)
            steps = [(change.at_s, self._load_under_cap(running, change.cap)) for change in told]
            course(now_s, ends_s, [(now_s, self._load_above_idle([(gang, placing)])), *steps], None)
        ends = {s.job_id: s.expected_end_s for s in self.plan.starts}
        ends |= {resize.job_id: resize.expected_end_s for _, resize in self.resized}
        drew = self._drew()
        for gang, placing in placed:
            watts = self._load_above_idle([(gang, placing)])
            # What starts may count on being paused, but on no cap that it does not start under; what only changes its
            # size is slowed as is known of it.
            told = changes[gang.id] if gang.id in self.running else []
            if told:
                with_it = replace(self.running[gang.id], placing=placing)
                steps = [(change.at_s, self._load_under_cap(with_it, change.cap)) for change in told]
            else:
                told = self._slowed(gang, placing, 1.0)
                steps = [(change.at_s, watts if change.cap else nothing) for change in told]
            course(now_s, ends.get(gang.id, inf), [(now_s, watts), *steps], drew.get(gang.id, nothing))
        for reserve in self.plan.reserves:
            if reserve.job_id in self.gangs:
                gang = self.gangs[reserve.job_id]
                watts = self._load_above_idle([(gang, reserve.placing)])
                length_s = gang.limit_s if gang.limit_s != inf else self._work_s(gang, reserve.placing)
                start_s = reserve.start_s
                course(start_s, start_s + length_s, [(start_s, watts)], nothing)
        for step in snapshot.limit_changes:
            if step.at_s > now_s:
                events.append((step.at_s, 1, partial(limit, step.domain, step.limit_w)))
        events.sort(key=lambda event: event[:2])
        touched: set[int] = set()
        for i, (at_s, _, carry_out) in enumerate(events):
            touched |= carry_out()
            if i + 1 < len(events) and events[i + 1][0] == at_s:
                continue
            if at_s == now_s:
                touched = set()  # what holds now is looked at by itself
            for domain in sorted(touched & limits.keys()):
                most_w = limits[domain]
                if ours[domain] > 0 and load[domain] > most_w + slack * max(1.0, abs(most_w)):
                    name = self.facility.domains[domain].name
                    yield Fault(
                        "power",
                        None,
                        f"{name} would draw {load[domain]:.1f} W of {most_w:.1f} W in {at_s - now_s:.0f} s",
                    )
            touched = set()

    def _slowed(self, gang: Gang, placing: Placing, cap: float) -> list[CapChange]:
        """When interruptible work is paused and goes on, where limits above it are lower that it gives way to."""
        if not self._may_pause(gang):
            return []
        of_domain: dict[int, list[LimitChange]] = defaultdict(list)
        for step in sorted(self.snapshot.limit_changes, key=lambda c: c.at_s):
            of_domain[step.domain].append(step)
        above = {domain for share in placing for domain in self._domains_of(share.node)}
        marks: set[float] = set()
        low: list[tuple[float, float]] = []
        for domain in above & of_domain.keys():
            steps = of_domain[domain]
            for step, ends_s in zip(steps, [*(later.at_s for later in steps[1:]), inf], strict=True):
                if step.gives_way and step.at_s < ends_s:
                    low.append((step.at_s, ends_s))
                    marks |= {step.at_s, ends_s}
        return [
            CapChange(at_s, gang.id, 0.0 if any(start <= at_s < end for start, end in low) else cap)
            for at_s in sorted(marks - {inf})
        ]

    def _may_pause(self, gang: Gang) -> bool:
        return gang.tier == _INTERRUPTIBLE and gang.saving is not None

    def _load_under_cap(self, running: Running, cap: float) -> dict[int, float]:
        """Watts above idle of running work, by domain, if its devices are capped so."""
        before = self.caps.get(running.gang.id)
        self.caps[running.gang.id] = cap
        try:
            return self._load_above_idle([(running.gang, running.placing)])
        finally:
            if before is None:
                del self.caps[running.gang.id]
            else:
                self.caps[running.gang.id] = before

    def _quota(self, placed: list[tuple[Gang, Placing]]) -> Iterator[Fault]:
        teams = self.snapshot.teams
        if not self.snapshot.quota_is_checked or not teams:
            return
        limited = {k for team in teams for k in team.entitlement}
        before = self._use_by_team((r.gang, r.placing) for r in self.snapshot.running)
        after = self._use_by_team(self._all(placed))
        for gang, placing in placed:
            kinds = {int(self.facility.kind[s.node]) for s in placing if s.devices} & limited
            was = self._had(gang)
            for kind, steps in self._steps_by_kind(gang, placing).items():
                if kind in kinds and steps > was[kind]:
                    yield from self._quota_of(gang, kind, before, after)

    def _use_by_team(self, placed: Iterable[tuple[Gang, Placing]]) -> dict[tuple[int, int], int]:
        use: dict[tuple[int, int], int] = defaultdict(int)
        for gang, placing in placed:
            for share in placing:
                if gang.team != NONE and share.devices:
                    use[gang.team, int(self.facility.kind[share.node])] += share.share_steps * len(
                        share.devices
                    )
        return use

    def _quota_of(
        self, gang: Gang, kind: int, before: dict[tuple[int, int], int], after: dict[tuple[int, int], int]
    ) -> Iterator[Fault]:
        teams = self.snapshot.teams
        children: dict[int, list[int]] = defaultdict(list)
        for i, team in enumerate(teams):
            children[team.parent].append(i)

        def owned(i: int) -> int:
            own = teams[i].entitlement.get(kind, 0) * SHARE_STEPS
            return own + sum(owned(c) - kept(c) for c in children[i])

        def kept(i: int) -> int:
            lend = teams[i].lend_limit.get(kind)
            return 0 if lend is None else max(0, owned(i) - lend * SHARE_STEPS)

        def used(i: int, by: dict[tuple[int, int], int]) -> int:
            return by.get((i, kind), 0) + sum(spilled(c, by) for c in children[i])

        def spilled(i: int, by: dict[tuple[int, int], int]) -> int:
            return max(0, used(i, by) - kept(i))

        at = gang.team
        while at != NONE:
            name, parent = teams[at].name, teams[at].parent
            if parent == NONE:
                if used(at, after) > owned(at):
                    yield Fault("quota", gang.id, f"{name} would use more than it owns")
                return
            if spilled(at, after) == spilled(at, before):
                return
            borrow = teams[at].borrow_limit.get(kind)
            if borrow is not None and spilled(at, after) - (owned(at) - kept(at)) > borrow * SHARE_STEPS:
                yield Fault("quota", gang.id, f"{name} would borrow more than {borrow}")
            at = parent

    def _members(self, placed: list[tuple[Gang, Placing]]) -> Iterator[Fault]:
        """Nobody holds more than a member may because of this plan; what somebody held before is not its fault."""
        limits = self.limits_of
        touched = {(gang.team, gang.user) for gang, _ in placed} & limits.keys()
        if not touched:
            return
        held: Counter[tuple[tuple[int, int], int]] = Counter()
        n_jobs: Counter[tuple[int, int]] = Counter()
        for gang, placing in self._all(placed):
            who = gang.team, gang.user
            if who in touched:
                n_jobs[who] += 1
                for kind, steps in self._steps_by_kind(gang, placing).items():
                    held[who, kind] += steps
        for gang, placing in placed:
            who = gang.team, gang.user
            if who not in limits:
                continue
            most = limits[who]
            was = self._had(gang)
            for kind, steps in self._steps_by_kind(gang, placing).items():
                name, devices = self.facility.kinds[kind].name, most.devices.get(kind)
                if devices is not None and steps > was[kind] and held[who, kind] > devices * SHARE_STEPS:
                    yield Fault("member_limit", gang.id, f"{most.name} would hold more than {devices} {name}")
            if (
                gang.id not in self.running
                and most.running_jobs is not None
                and n_jobs[who] > most.running_jobs
            ):
                yield Fault(
                    "member_limit", gang.id, f"{most.name} would run more than {most.running_jobs} jobs"
                )

    def _had(self, gang: Gang) -> Counter[int]:
        """Millionths of devices of each kind that a job has before this plan."""
        running = self.running.get(gang.id)
        return Counter() if running is None else self._steps_by_kind(gang, running.placing)

    def _steps_by_kind(self, gang: Gang, placing: Placing) -> Counter[int]:
        """Millionths of devices of each kind; those that have no name yet too."""
        held: Counter[int] = Counter()
        for share in placing:
            ask = gang.shape.asks[share.group]
            if steps := ask.devices * SHARE_STEPS or ask.share_steps:
                held[int(self.facility.kind[share.node])] += steps * share.n_replicas
        return held

    def _arrays(self, placed: list[tuple[Gang, Placing]]) -> Iterator[Fault]:
        counts = Counter(gang.array for gang, _ in self._all(placed) if gang.array != NONE)
        for gang, _ in placed:
            if (
                gang.id not in self.running
                and gang.array != NONE
                and gang.array_max
                and counts[gang.array] > gang.array_max
            ):
                yield Fault("dependency", gang.id, "its array has too many jobs running")

    # -- promises -----------------------------------------------------------------------------------------------------

    def _promises(self, *, is_close: bool = False) -> Iterator[Fault]:
        """Every promised job still fits where and when it was promised, whatever starts now runs to its limit.

        Args:
            is_close: Judge as closely as the planner does: a device of which a part is taken is gone, and what comes to
                just the limit may be over it.
        """
        reserves = [r for r in self.plan.reserves if r.job_id in self.gangs]
        if not reserves:
            return
        now_s = self.snapshot.now_s
        changes: list[tuple[float, int, Gang, Placing]] = []
        active: list[tuple[Gang, Placing]] = []
        goes_on = [(r.gang, r.placing, r.ends_s) for r in self.stays]
        goes_on += [(r.gang, resize.placing, resize.expected_end_s) for r, resize in self.resized]
        for gang, placing, ends_s in goes_on:
            active.append((gang, placing))
            changes.append((ends_s if ends_s > now_s else now_s + _OVERDUE_S, 0, gang, placing))
        for start in self.plan.starts:
            if start.job_id in self.gangs:
                active.append((self.gangs[start.job_id], start.placing))
                changes.append((start.expected_end_s, 0, self.gangs[start.job_id], start.placing))
        for reserve in reserves:
            gang = self.gangs[reserve.job_id]
            length_s = gang.limit_s if gang.limit_s != inf else self._work_s(gang, reserve.placing)
            changes.append((reserve.start_s, 1, gang, reserve.placing))
            changes.append((reserve.start_s + length_s, 0, gang, reserve.placing))
        book = _Book(self, active)
        changes.sort(key=lambda c: (c[0], c[1]))
        last_s = max(r.start_s for r in reserves)
        begun: set[int] = {gang.id for gang, _ in active}
        for at_s, grants, gang, placing in changes:
            if at_s > last_s:
                break
            if grants:
                begun.add(gang.id)
                book.add(gang, placing, 1)
                yield from book.overdrawn(gang, placing, is_close=is_close)
            elif gang.id in begun:
                book.add(gang, placing, -1)

    def _work_s(self, gang: Gang, placing: Placing) -> float:
        f = self.facility
        holding = [s.node for s in placing]
        if gang.work_s == inf or not holding:
            return inf
        slowest = min(float(f.speed[n]) for n in holding)
        has_devices = any(ask.devices or ask.share_steps for ask in gang.shape.asks)
        rate = min((self._rate(gang, g, ask, placing) for g, ask in enumerate(gang.shape.asks)), default=1.0)
        return gang.work_s / (
            rate * slowest * (f.kinds[int(f.kind[holding[0]])].speed if has_devices else 1.0)
        )

    def _rate(self, gang: Gang, g: int, ask: Ask, placing: Placing) -> float:
        """Throughput of an elastic group at this size, relative to its preferred one."""
        if ask.least == ask.most:
            return inf if gang.is_elastic else 1.0  # an elastic group beside it sets the pace
        n = sum(share.n_replicas for share in placing if share.group == g)
        if not gang.scaling:
            return n / ask.n_replicas
        # Through nothing at no replicas, and level beyond the last point.
        points = ((0, 0.0), *gang.scaling)
        return float(np.interp(n, [at for at, _ in points], [rate for _, rate in points]))


class _Book:
    """Devices, cpus, memory and watts in use at a moving instant."""

    def __init__(self, checker: _Checker, active: list[tuple[Gang, Placing]]) -> None:
        self.checker = checker
        self.devices: dict[int, float] = defaultdict(float)
        self.whole: dict[int, int] = defaultdict(int)
        self.holders: dict[tuple[int, int], int] = {}
        self.cpus: dict[int, float] = defaultdict(float)
        self.memory: dict[int, float] = defaultdict(float)
        self.watts: dict[int, float] = defaultdict(float)
        self.held: Counter[tuple[int, int, int]] = Counter()  # by team, user and kind, of limited members
        self.n_jobs: Counter[tuple[int, int]] = Counter()
        self.limits = checker._limits()
        self.idle = checker._idle_load() if self.limits else {}
        for gang, placing in active:
            self.add(gang, placing, 1)

    def add(self, gang: Gang, placing: Placing, sign: int) -> None:
        if (gang.team, gang.user) in self.checker.limits_of:
            self.n_jobs[gang.team, gang.user] += sign
            for kind, steps in self.checker._steps_by_kind(gang, placing).items():
                self.held[gang.team, gang.user, kind] += sign * steps
        for share in placing:
            ask = gang.shape.asks[share.group]
            self.devices[share.node] += (
                sign * share.n_replicas * (ask.devices or ask.share_steps / SHARE_STEPS)
            )
            self._whole(ask, share, sign)
            self.cpus[share.node] += sign * share.n_replicas * ask.cpus
            self.memory[share.node] += sign * share.n_replicas * ask.memory_gib
            if self.limits:
                watts = sign * share.n_replicas * self.checker._peak_w(gang, share.group, share.node)
                for domain in self.checker._domains_of(share.node):
                    self.watts[domain] += watts

    def _whole(self, ask: Ask, share: Share, sign: int) -> None:
        """Count devices that nobody else can have whole; what has no name yet comes to whole ones."""
        if not ask.devices and not ask.share_steps:
            return
        if not share.devices:
            self.whole[share.node] += sign * (
                share.n_replicas * ask.devices or -(-share.n_replicas // (SHARE_STEPS // ask.share_steps))
            )
        for device in share.devices:
            holders = self.holders[share.node, device] = self.holders.get((share.node, device), 0) + sign
            if holders == (1 if sign > 0 else 0):
                self.whole[share.node] += sign

    def overdrawn(self, gang: Gang, placing: Placing, *, is_close: bool = False) -> Iterator[Fault]:
        facility = self.checker.facility
        member = self.checker.limits_of.get((gang.team, gang.user)) if is_close else None
        if member is not None:
            # A limit that was lowered since is no fault of the promise; but it is a reason why a victim stays gone.
            over = any(
                self.held[gang.team, gang.user, kind] > devices * SHARE_STEPS
                for kind, devices in member.devices.items()
            )
            if over or (
                member.running_jobs is not None and self.n_jobs[gang.team, gang.user] > member.running_jobs
            ):
                yield Fault("protection", gang.id, f"{member.name} would be over the limits of a member")
                return
        for share in placing:
            node = share.node
            if (
                self.devices[node] > int(facility.n_devices[node]) + SLACK
                or (is_close and self.whole[node] > int(facility.n_devices[node]))
                or self.cpus[node] > float(facility.cpus[node]) * (1 + SLACK) + SLACK
                or self.memory[node] > float(facility.memory_gib[node]) * (1 + SLACK) + SLACK
            ):
                yield Fault(
                    "protection",
                    gang.id,
                    f"no longer fits on {facility.node_name[node]} when it was promised to start",
                )
                return
        above = {
            domain
            for share in placing
            if self.checker._peak_w(gang, share.group, share.node) > 0  # an old excess is not its fault
            for domain in self.checker._domains_of(share.node)
        }
        for domain, limit_w in self.limits.items():
            slack = -SLACK if is_close else SLACK
            if self.checker.snapshot.limit_changes or self.checker.snapshot.cap_changes:
                continue  # by what holds then: see _power_ahead
            over = self.idle[domain] + self.watts[domain] > limit_w + slack * max(1.0, abs(limit_w))
            if over and domain in above:
                name = facility.domains[domain].name
                yield Fault("protection", gang.id, f"{name} has no power left when it was promised to start")
                return

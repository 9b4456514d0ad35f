"""Which running jobs could move so that a waiting gang starts: free devices enough, but none of them together.

Advice alone: nothing is moved by it. A gang is helped if as many devices are free as it asks for, its quota would let
it start, and what it misses is a node, or a domain, that is free enough. Those that move keep checkpoints, so that what
they lose is bounded; each goes to a place that is free at this very instant, by all of its own rules, and none to where
another leaves from, so that no move waits for another.

Nothing is decided on paper, as in pre-emption: those that move are lifted off the calendar in which the pass has put
what it starts and promises, the gang is placed on what is then left, and the leavers after it. So whatever was promised
to somebody, or is kept for somebody, stays theirs. Sets of leavers are tried in order of their price, domain by domain,
the domains in order of what freeing them costs at the least; the search is exhaustive where few jobs are in question,
and ends after so many trials where many are.

The price of a move is the time it takes to write a checkpoint and to start again, and the running time since the last
checkpoint, times the devices of the job. What is won is the time by which the waiting gang starts earlier, times its
devices. A set of moves that costs as much as it wins is not proposed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice, permutations
from math import inf

import numpy as np

from apps.scheduling.engine import explain
from apps.scheduling.engine.calendar import Held
from apps.scheduling.engine.clearing import MOST_OPTIONS, Curve, curve
from apps.scheduling.engine.facts import (
    NONE,
    BoolArray,
    FloatArray,
    Gang,
    IntArray,
    Placing,
    Policy,
    Running,
    Snapshot,
    Wait,
)
from apps.scheduling.engine.placement import Found
from apps.scheduling.engine.planner import Pass, class_of, without_collection
from apps.scheduling.engine.preempt import Preemptor
from apps.scheduling.engine.sizes import sizes_of
from apps.scheduling.engine.state import Charge, charge_of
from apps.scheduling.engine.units import FULL

_MOST_GANGS = 16  # waiting gangs that are looked at, the first in line first; of equal ones only the first
_MOST_TRIALS = 200  # sets of leavers that are tried in full for one gang
_MOST_SETS = 5000  # sets of leavers that are weighed for one domain
_MOST_LEAVERS = 200  # of one domain: those that cost least
_MOST_IN_ANY_ORDER = 4  # so many leavers are placed in every order, more of them the largest first


@dataclass(frozen=True, slots=True)
class Move:
    """This running job stops, goes back to the queue, and starts again elsewhere."""

    job_id: int
    before: Placing
    after: Placing
    devices: float
    checkpoint_s: float  # to write a checkpoint
    restart_s: float
    lost_s: float  # running time since its last checkpoint

    @property
    def cost_device_s(self) -> float:
        """Device-seconds in which it does no new work."""
        return self.devices * (self.checkpoint_s + self.restart_s + self.lost_s)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Moves that let a waiting gang start, all of them or none."""

    job_id: int  # who waits
    placing: Placing  # where it starts once they are gone
    kind: int
    devices: float
    moves: tuple[Move, ...]  # in order of the queue they go back to: by what was logged first
    starts_s: float  # when it would start, once checkpoints are written
    otherwise_s: float  # when it is expected to start if nobody moves; inf: nobody can tell

    @property
    def cost_device_s(self) -> float:
        return sum(move.cost_device_s for move in self.moves)

    @property
    def gain_device_s(self) -> float:
        """Device-seconds by which the gang starts earlier; inf: nobody can tell when it would start otherwise."""
        return self.devices * (self.otherwise_s - self.starts_s)


def propose(snapshot: Snapshot, policy: Policy, only: Collection[int] | None = None) -> tuple[Proposal, ...]:
    """Moves worth their price, one set a waiting gang, in the order of the queue.

    Each is judged by itself: two of them may want the same place. Pure, as a plan is.

    Args:
        only: Ids of the waiting jobs to be looked at; None: the first in line that could be helped.
    """
    with without_collection():
        return tuple(_Advisor(snapshot, policy).proposals(only))


@dataclass(slots=True, eq=False)
class _Leaver:
    """A running job that may be asked to move."""

    running: Running
    charge: Charge
    move: Move  # `after` is not known yet
    whole: Mapping[int, int]  # devices it could leave free at the most, by node

    @property
    def cost(self) -> float:
        return self.move.cost_device_s

    @property
    def order(self) -> tuple[float, int, float, int]:
        """The cheapest first; among equals the lower priority, then whoever started last."""
        gang = self.running.gang
        return (self.cost, gang.priority, -self.running.started_s, -gang.sequence)


@dataclass(frozen=True, slots=True)
class _Domain:
    """Nodes on which a gang would lie, and what it costs at the least to free a place there."""

    nodes: IntArray
    free: IntArray  # (n,) whole devices of each node through the time it would run; of unusable ones none
    on_node: Mapping[int, Sequence[_Leaver]]
    least: float
    chosen: tuple[_Leaver, ...]  # the cheapest by that count


@dataclass(frozen=True, slots=True)
class _Settled:
    """A set of leavers with which everything finds its place."""

    leavers: tuple[_Leaver, ...]
    found: Found
    after: tuple[Placing, ...]  # of each leaver

    @property
    def cost(self) -> float:
        return _cost(self.leavers)


class _Advisor:
    """Looks at what one pass leaves waiting."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.walk = Pass(snapshot, replace(policy, explain=True))
        self.plan = self.walk.run()
        self._prices = Preemptor(self.walk)
        # By what was logged first: the order of rows decides nothing.
        self._running = sorted(snapshot.running, key=lambda running: running.gang.sequence)
        self._leavers: list[_Leaver] | None = None
        self._moved: dict[int, Gang] = {}
        self._shapes: dict[tuple[int, tuple[bool, ...]], Gang] = {}
        self._close_earmarks()

    def _close_earmarks(self) -> None:
        """What is kept for somebody is nobody's place, however late that one may start: who leaves has all its time."""
        calendar, offset = self.walk.calendar, self.walk.frame.offset
        kept: dict[int, int] = {}
        for reserve in self.walk.snapshot.earmarks:
            for share in reserve.placing:
                for device in share.devices:
                    at = int(offset[share.node]) + device
                    kept[at] = min(int(calendar.now.dev[at]), kept.get(at, 0) + share.share_steps)
        # As of now is enough: whoever is asked about would start now.
        if kept:
            nodes = np.unique(self.walk.frame.node_of_device[list(kept)])
            calendar.lift([Held(_devices(nodes, kept), (), self.walk.now_s, NONE)], 1)

    def proposals(self, only: Collection[int] | None) -> Iterator[Proposal]:
        """See `propose`."""
        gangs = {gang.id: gang for gang in self.walk.snapshot.queue}
        seen: set[object] = set()
        n = 0
        for wait in self.plan.waits:
            gang = gangs[wait.job_id]
            if only is not None and gang.id not in only:
                continue
            alike = class_of(gang, self.walk.tree.account(gang))
            if (only is None and alike in seen) or not self._may_be_helped(gang, wait):
                continue
            seen.add(alike)
            n += 1
            if only is None and n > _MOST_GANGS:
                return
            proposal = self._for(gang, wait.expected_start_s)
            if proposal is not None:
                yield proposal

    def _may_be_helped(self, gang: Gang, wait: Wait) -> bool:
        """Whether it is ready, waits for a place and not by choice, and nobody is held back by its start."""
        walk = self.walk
        if not wait.blocked_by or len(gang.shape.asks) != 1 or not gang.shape.asks[0].devices:
            return False
        if walk.strictly_behind is not None and walk.strictly_behind is not gang:
            return False  # in strict order nobody passes the head
        if any(reserve.job_id == gang.id for reserve in walk.snapshot.earmarks):
            return False  # a place is being freed for it already
        return gang.shape.reservation == NONE and explain.own_reason(walk, gang, wait.rank) is None

    def _for(self, gang: Gang, forecast_s: float | None) -> Proposal | None:
        """The cheapest moves for this gang that are worth it; None if there are none."""
        walk = self.walk
        own = walk.promised.get(gang.id)
        if own is not None:
            otherwise_s = own.start_s
            walk.calendar.withdraw(own)  # what is promised to it is not in its own way
        else:
            # A forecast alone does not know on which nodes devices are free: here that is what matters.
            offer = walk.earliest(gang, walk.kinds(gang.shape))
            otherwise_s = inf if offer is None else offer.start_s
            if forecast_s is not None:
                otherwise_s = max(otherwise_s, forecast_s)
        try:
            best: Proposal | None = None
            wanted = walk.least(walk._insisting(gang))
            for kind in walk.kinds(wanted.shape):
                proposal = self._on_kind(wanted, kind, otherwise_s)
                if proposal is not None and (best is None or proposal.cost_device_s < best.cost_device_s):
                    best = proposal
            return best
        finally:
            if own is not None:
                walk.promised[gang.id] = walk.calendar.promise(gang, own.charge, own.start_s, own.end_s)

    def _on_kind(self, gang: Gang, kind: int, otherwise_s: float) -> Proposal | None:
        walk, ask = self.walk, gang.shape.asks[0]
        until_s = walk.now_s + walk.duration_s(gang, kind)
        if not walk.within_quota(gang, (walk.calendar.window_of(gang, until_s),), kind):
            return None
        devices = float(ask.devices * ask.n_replicas)
        most = devices * (otherwise_s - walk.now_s)  # more cannot be won
        domains = self._domains(gang, kind, until_s, self._leavers_for(gang, kind))
        settled = _Search(self, gang, kind).cheapest(domains, most)
        if settled is None:
            return None
        moves = tuple(
            replace(leaver.move, after=after)
            for leaver, after in sorted(
                zip(settled.leavers, settled.after, strict=True), key=lambda one: one[0].running.gang.sequence
            )
        )
        starts_s = walk.now_s + max(move.checkpoint_s for move in moves)
        proposal = Proposal(gang.id, settled.found.placing, kind, devices, moves, starts_s, otherwise_s)
        return proposal if proposal.gain_device_s > proposal.cost_device_s else None

    # -- who may be asked ---------------------------------------------------------------------------------------------

    def _leavers_for(self, gang: Gang, kind: int) -> list[_Leaver]:
        """Those that could move for this gang, the cheapest first: nobody of a higher priority is disturbed."""
        if self._leavers is None:
            may_move = filter(self._may_move, self._running)
            self._leavers = sorted(map(self._leaver, may_move), key=lambda leaver: leaver.order)
        kinds = self.walk.frame.kind
        return [
            leaver
            for leaver in self._leavers
            if leaver.running.gang.priority <= gang.priority and int(kinds[next(iter(leaver.whole))]) == kind
        ]

    def _may_move(self, running: Running) -> bool:
        """Whether it keeps checkpoints, and is as free to be asked as a victim of pre-emption must be."""
        walk, gang = self.walk, running.gang
        policy = walk.policy
        return (
            gang.preemptible
            and not running.is_leaving
            and gang.id not in walk.gone
            and (gang.saving is not None or running.at_risk_s != inf)
            and walk.now_s - running.started_s >= policy.shield_s
            and (policy.most_evictions is None or gang.n_evictions < policy.most_evictions)
            and gang.shape.reservation == NONE
            and any(share.devices for share in running.placing)
        )

    def _leaver(self, running: Running) -> _Leaver:
        gang, saving = running.gang, running.gang.saving
        charge = self.walk.calendar.held[gang.id].charge
        devices = sum(len(share.devices) * share.share_steps for share in running.placing) / FULL
        restart_s = 0.0 if saving is None else saving.restart_s
        lost_s = max(0.0, self._prices.cost_of(running) / devices - restart_s)
        checkpoint_s = 0.0 if saving is None else saving.cost_s
        move = Move(gang.id, running.placing, (), devices, checkpoint_s, restart_s, lost_s)
        whole: dict[int, int] = {}
        for node, n in zip(charge.nodes.tolist(), charge.whole.tolist(), strict=True):
            if n:
                whole[node] = whole.get(node, 0) + n
        return _Leaver(running, charge, move, whole)

    def moved(self, running: Running) -> Gang:
        """A running job as it asks for a place elsewhere: at its size, for what time it has left, no worse."""
        known = self._moved.get(running.gang.id)
        if known is None:
            walk, gang = self.walk, running.gang
            known = walk.sizer.at(gang, sizes_of(gang, running.placing))
            # A wish that has come true is not given up.
            holds = tuple(self._has_its_wish(running, g) for g in range(len(known.shape.asks)))
            if any(holds):
                key = (id(known.shape), holds)
                if key not in self._shapes:
                    asks = tuple(
                        replace(ask, required=ask.preferred, preferred=None) if is_kept else ask
                        for ask, is_kept in zip(known.shape.asks, holds, strict=True)
                    )
                    self._shapes[key] = walk.sizer.with_shape(known, replace(known.shape, asks=asks))
                known = replace(known, shape=self._shapes[key].shape)
            if gang.limit_s != inf:
                known = replace(known, limit_s=max(running.ends_s - walk.now_s, 1.0))
            self._moved[gang.id] = known
        return known

    def _has_its_wish(self, running: Running, g: int) -> bool:
        frame, preferred = self.walk.frame, running.gang.shape.asks[g].preferred
        if preferred is None:
            return False
        nodes = [share.node for share in running.placing if share.group == g]
        return bool(frame.has_level[preferred][nodes].all()) and len(set(frame.level[preferred][nodes])) == 1

    # -- where it could lie -------------------------------------------------------------------------------------------

    def _domains(self, gang: Gang, kind: int, until_s: float, leavers: Sequence[_Leaver]) -> list[_Domain]:
        """Where the gang could lie if some of these moved, the cheapest by a lower bound first."""
        walk, frame, ask = self.walk, self.walk.frame, gang.shape.asks[0]
        usable = walk.may_use(gang) & frame.kind_mask[kind]
        if ask.required is not None:
            usable = usable & frame.has_level[ask.required]
        free: IntArray = np.where(usable, np.maximum(walk.calendar.floor_now(until_s).whole, 0), 0)
        on_node: dict[int, list[_Leaver]] = {}
        for leaver in leavers:
            for node in leaver.whole:
                if usable[node]:
                    on_node.setdefault(node, []).append(leaver)
        found: list[tuple[float, int, _Domain]] = []
        for cluster in frame.clusters:
            inside: IntArray = np.flatnonzero(usable & (frame.cluster == cluster))
            if int(free[inside].sum()) < ask.devices * ask.n_replicas:
                continue  # it is not the shape of what is free that is in its way
            for nodes in self._apart(ask.n_replicas, ask.required, inside):
                domain = _least(nodes, free, ask.devices, ask.n_replicas, on_node)
                if domain is not None:
                    found.append((domain.least, int(nodes[0]), domain))
        return [domain for *_, domain in sorted(found, key=lambda one: one[:2])]

    def _apart(self, n: int, required: str | None, nodes: IntArray) -> Iterator[IntArray]:
        """The nodes by what must hold the whole gang."""
        if n == 1:
            yield from nodes[:, None]
        elif required is None:
            if len(nodes):
                yield nodes
        else:
            ids = self.walk.frame.level[required][nodes]
            order = np.argsort(ids, kind="stable")
            _, firsts = np.unique(ids[order], return_index=True)
            yield from np.split(nodes[order], firsts[1:]) if len(nodes) else ()


class _Search:
    """The cheapest set of leavers for one gang on one kind."""

    def __init__(self, advisor: _Advisor, gang: Gang, kind: int) -> None:
        self.advisor, self.walk, self.gang, self.kind = advisor, advisor.walk, gang, kind
        self.n_trials = 0
        self._goes: dict[int, bool] = {}  # by leaver: whether it finds a place if it alone moves

    def cheapest(self, domains: Sequence[_Domain], most: float) -> _Settled | None:
        """The cheapest set that costs less than `most`."""
        best: _Settled | None = None
        line = [(domain.least, place, domain) for place, domain in enumerate(domains)]
        while line:
            least, place, domain = heappop(line)
            bound = most if best is None else min(most, best.cost)
            if least >= bound or self.n_trials >= _MOST_TRIALS:
                break
            if not all(map(self.may_go, domain.chosen)):
                self._put_back(line, place, domain)
                continue
            trial = _Trial(self, domain.nodes)
            settled = trial.pruned(domain.chosen) if _cost(domain.chosen) < bound else None
            if settled is not None and settled.cost < bound:
                best, bound = settled, settled.cost
            if settled is None or settled.cost > least:
                best = self._cheaper(trial, domain, bound) or best
        return best

    def _put_back(self, line: list[tuple[float, int, _Domain]], place: int, domain: _Domain) -> None:
        """Some of those that would move cannot: what is it without them?"""
        left = {
            node: [leaver for leaver in leavers if self._goes.get(id(leaver), True)]
            for node, leavers in domain.on_node.items()
        }
        ask = self.gang.shape.asks[0]
        again = _least(domain.nodes, domain.free, ask.devices, ask.n_replicas, left)
        if again is not None:
            heappush(line, (again.least, place, again))

    def _cheaper(self, trial: _Trial, domain: _Domain, bound: float) -> _Settled | None:
        for leavers in self._in_order(domain, bound):
            settled = trial.pruned(leavers)
            if settled is not None:
                return settled
            if self.n_trials >= _MOST_TRIALS:
                break
        return None

    def _in_order(self, domain: _Domain, bound: float) -> Iterator[tuple[_Leaver, ...]]:
        """Sets of leavers that might do by the count of devices, the cheapest first, up to that price."""
        ask, nodes = self.gang.shape.asks[0], domain.nodes.tolist()
        here = {id(leaver): leaver for node in nodes for leaver in domain.on_node.get(node, ())}
        in_order = sorted(here.values(), key=lambda leaver: leaver.order)
        some = list(islice(filter(self.may_go, in_order), _MOST_LEAVERS))
        if not some:
            return
        heap: list[tuple[float, tuple[int, ...]]] = [(some[0].cost, (0,))]
        for _ in range(_MOST_SETS):
            if not heap:
                return
            cost, chosen = heappop(heap)
            if cost >= bound:
                return
            last = chosen[-1] + 1
            if last < len(some):
                # Each set but the first is made once: of the one without its last, or with the last one before.
                heappush(heap, (cost + some[last].cost, (*chosen, last)))
                heappush(heap, (cost - some[last - 1].cost + some[last].cost, (*chosen[:-1], last)))
            freed: dict[int, int] = {}
            for i in chosen:
                for node, n in some[i].whole.items():
                    freed[node] = freed.get(node, 0) + n
            room = sum((int(domain.free[node]) + freed.get(node, 0)) // ask.devices for node in nodes)
            if room >= ask.n_replicas:
                yield tuple(some[i] for i in chosen)

    def may_go(self, leaver: _Leaver) -> bool:
        """Whether it finds a place at all if it alone moves, and nobody takes what it leaves."""
        goes = self._goes.get(id(leaver))
        if goes is None:
            trial = _Trial(self, np.zeros(0, dtype=np.int64))
            goes = self._goes[id(leaver)] = trial.finds_places([leaver], None) is not None
        return goes


class _Trial:
    """Whether a gang starts on certain nodes once certain jobs have moved, and where they go."""

    def __init__(self, search: _Search, nodes: IntArray) -> None:
        self.search, self.advisor, self.walk = search, search.advisor, search.walk
        self.nodes = nodes
        self._known: dict[frozenset[int], _Settled | None] = {}

    def pruned(self, leavers: Sequence[_Leaver]) -> _Settled | None:
        """What is left when every leaver that can be spared stays, the dearest first."""
        settled = self.settled(leavers)
        if settled is None:
            return None
        for leaver in sorted(leavers, key=lambda one: one.order, reverse=True):
            fewer = self.settled([other for other in settled.leavers if other is not leaver])
            if fewer is not None:
                settled = fewer
        return settled

    def settled(self, leavers: Sequence[_Leaver]) -> _Settled | None:
        """All places, if there are any."""
        key = frozenset(leaver.running.gang.id for leaver in leavers)
        if not leavers:
            return None
        if key not in self._known:
            self.search.n_trials += 1
            may_go = all(map(self.search.may_go, leavers))
            self._known[key] = self._settle(leavers) if may_go else None
        return self._known[key]

    def _settle(self, leavers: Sequence[_Leaver]) -> _Settled | None:
        within = np.zeros(self.walk.frame.n_nodes, dtype=bool)
        within[self.nodes] = True
        left = np.zeros_like(within)
        left[[node for leaver in leavers for node in leaver.whole]] = True
        # Where they leave from if it can lie there: so it takes least of where they could go.
        for mask in (within & left, within):
            settled = self.finds_places(leavers, mask)
            if settled is not None or not (within & ~left).any():
                return settled
        return None

    def finds_places(self, leavers: Sequence[_Leaver], mask: BoolArray | None) -> _Settled | None:
        """The gang on the nodes of a mask (None: it goes nowhere), and every leaver elsewhere."""
        walk, gang, kind = self.walk, self.search.gang, self.search.kind
        calendar, now_s = walk.calendar, walk.now_s
        lifted = [calendar.held[leaver.running.gang.id] for leaver in leavers]
        put: list[Held] = []
        calendar.lift(lifted)
        try:
            found, taken = None, None
            if mask is not None:
                found = walk.fit(
                    gang, kind, calendar.now, walk.duration_s(gang, kind), named=True, within=mask
                )
                if found is None:
                    return None
                taken = self._put(gang, found.placing, kind, put)
            # What they leave and it does not take is not free at this instant.
            rest = Held(_rest([held.charge for held in lifted], taken), (), now_s, NONE)
            calendar.lift([rest], 1)
            put.append(rest)
            for order in _orders(leavers):
                after = self._after(order)
                if after is not None:
                    found = found or Found((), kind, "")
                    where = dict(zip(map(id, order), after, strict=True))
                    return _Settled(tuple(leavers), found, tuple(where[id(leaver)] for leaver in leavers))
            return None
        finally:
            calendar.lift(put)
            calendar.lift(lifted, 1)

    def _after(self, leavers: Sequence[_Leaver]) -> list[Placing] | None:
        """Where each of them goes, one after the other; None if one of them finds no place."""
        walk, frame = self.walk, self.walk.frame
        put: list[Held] = []
        after: list[Placing] = []
        try:
            for leaver in leavers:
                running = leaver.running
                node = running.placing[0].node
                gang, kind = self.advisor.moved(running), int(frame.kind[next(iter(leaver.whole))])
                # Its checkpoint lies where it runs, and was written by what it runs on.
                within = frame.cluster == frame.cluster[node]
                lasts_s = walk.duration_s(gang, kind)
                found = walk.fit(gang, kind, walk.calendar.now, lasts_s, named=True, within=within)
                if found is None:
                    return None
                self._put(gang, found.placing, kind, put)
                after.append(found.placing)
            return after
        finally:
            walk.calendar.lift(put)

    def _put(self, gang: Gang, placing: Placing, kind: int, put: list[Held]) -> Charge:
        walk = self.walk
        charge = charge_of(walk.frame, walk.tree, gang, placing)
        end_s = walk.now_s + walk.duration_s(gang, kind)
        held = Held(charge, walk.calendar.allowed(gang), end_s, NONE)
        walk.calendar.lift([held], 1)
        put.append(held)
        return charge


def _cost(leavers: Iterable[_Leaver]) -> float:
    return sum(leaver.cost for leaver in leavers)


def _orders(leavers: Sequence[_Leaver]) -> Iterator[tuple[_Leaver, ...]]:
    """Orders in which they look for their places: those that need most together first."""
    largest = sorted(
        leavers, key=lambda one: (-max(one.whole.values()), -sum(one.whole.values()), *one.order)
    )
    if len(leavers) <= _MOST_IN_ANY_ORDER:
        yield from permutations(largest)
    else:
        yield tuple(largest)


def _rest(left: Sequence[Charge], taken: Charge | None) -> Charge:
    """What these leave that the other does not take: devices, cpus and memory; watts and quota are anybody's."""
    devices: dict[int, int] = {}
    cpu: dict[int, int] = {}
    mem: dict[int, int] = {}
    for sign, charges in ((1, left), (-1, [taken] if taken is not None else [])):
        for charge in charges:
            for device, steps in zip(charge.devices.tolist(), charge.taken.tolist(), strict=True):
                devices[device] = devices.get(device, 0) + sign * steps
            for node, c, m in zip(
                charge.nodes.tolist(), charge.cpu.tolist(), charge.mem.tolist(), strict=True
            ):
                cpu[node] = cpu.get(node, 0) + sign * c
                mem[node] = mem.get(node, 0) + sign * m
    nodes = sorted(cpu)
    return replace(
        _devices(np.array(nodes, dtype=np.int64), devices),
        cpu=np.array([max(0, cpu[node]) for node in nodes], dtype=np.int64),
        mem=np.array([max(0, mem[node]) for node in nodes], dtype=np.int64),
    )


def _devices(nodes: IntArray, steps: Mapping[int, int]) -> Charge:
    """Millionths of devices by flat position, of whomever: they count in no quota and draw nothing."""
    taken = {device: n for device, n in steps.items() if n > 0}
    nothing, none = np.zeros(len(nodes), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Charge(
        nodes,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        np.array([*taken], dtype=np.int64),
        np.array([*taken.values()], dtype=np.int64),
        NONE,
        none,
        none,
    )


def _least(
    nodes: IntArray, free: IntArray, devices: int, n: int, on_node: Mapping[int, Sequence[_Leaver]]
) -> _Domain | None:
    """What it costs at the least to have room for n replicas on these nodes, and who would move; None if there is none.

    A job on several nodes counts on each with its part of the price, so the sum is a lower bound.

    Source: the knapsack problem, by dynamic programming over nodes and replicas.
    """
    best: FloatArray = np.full(n + 1, inf)
    best[0] = 0.0
    steps: list[tuple[Curve[_Leaver], IntArray]] = []
    for node in nodes.tolist():
        there = _room_on(node, int(free[node]), devices, n, on_node.get(node, ()))
        if not there:
            continue
        taken: IntArray = np.zeros(n + 1, dtype=np.int64)
        after = best.copy()
        for r, (cost, _) in enumerate(there, 1):
            offer = best[: n + 1 - r] + cost
            is_better = offer < after[r:]
            after[r:][is_better] = offer[is_better]
            taken[r:][is_better] = r
        best = after
        steps.append((there, taken))
    if best[n] == inf:
        return None
    chosen: dict[int, _Leaver] = {}
    left = n
    for there, taken in reversed(steps):
        r = int(taken[left])
        if r:
            chosen.update((id(leaver), leaver) for leaver in there[r - 1][1])
            left -= r
    cheapest = tuple(sorted(chosen.values(), key=lambda leaver: leaver.order))
    return _Domain(nodes, free, on_node, float(best[n]), cheapest)


def _room_on(node: int, free: int, devices: int, n: int, leavers: Sequence[_Leaver]) -> Curve[_Leaver]:
    """See `clearing.curve`, for up to n replicas."""
    options = [
        (leaver.whole[node], leaver.cost * leaver.whole[node] / sum(leaver.whole.values()), leaver)
        for leaver in leavers[:MOST_OPTIONS]
    ]
    most = min(n, (free + sum(n_there for n_there, _, _ in options)) // devices)
    return curve(free, devices, most, options)

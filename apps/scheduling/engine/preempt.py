"""Who gives way so that a job can start: elastic jobs lose replicas first, then jobs leave whole.

Nothing is decided on paper. A set of victims is lifted off the calendar, the job is placed by all rules on what is
then left, and only a set with which that succeeds is taken; then every victim that can be spared is put back, the
dearest first, until none can. Candidates are looked at domain by domain: for every node, what the next replica there
costs in lost work; for every domain, the cheapest nodes. The victims' price is the device time that is lost: since the
last checkpoint, and for starting again.

A victim has a lower priority, or borrows what the job's team is entitled to (a reclaim, which takes no team below its
own). A job that would have to borrow itself takes nothing from a team that is within its entitlement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import gcd, inf
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.scheduling.engine.calendar import Held
from apps.scheduling.engine.clearing import Curve, curve
from apps.scheduling.engine.facts import NONE, BoolArray, Gang, IntArray, Placing, Running, Share
from apps.scheduling.engine.frame import LEVELS, Frame
from apps.scheduling.engine.kernels import give_back, may_take
from apps.scheduling.engine.placement import Amounts, Found, may_hold
from apps.scheduling.engine.sizes import end_after, may_resize, one_by_one, resize_s, sizes_of, without
from apps.scheduling.engine.state import Charge, Floor, charge_of
from apps.scheduling.engine.units import BIG, FULL

if TYPE_CHECKING:
    from apps.scheduling.engine.planner import Pass

_MOST_DOMAINS = 8  # domains that are tried in full; the cheapest by estimate come first


@dataclass(slots=True, eq=False)
class Item:
    """Something that can be freed: a whole running job, or one replica of an elastic one."""

    running: Running
    replica: Share | None  # None: the whole job
    charge: Charge
    cost: float  # device-seconds lost; of a replica its part of what a change of size takes
    steps: dict[int, int]  # millionths of devices it gives back, by kind
    is_surplus: bool  # a replica beyond the preferred size
    place: int = NONE  # among all items, the cheapest first
    spots: tuple[tuple[int, int], ...] = ()  # nodes on which it holds devices, and how many

    def price_of(self, whole: int) -> float:
        """The part of its cost that so many of its devices are."""
        everywhere = sum(n for _, n in self.spots)
        return self.cost * whole / everywhere if everywhere else self.cost

    @property
    def order(self) -> tuple[object, ...]:
        """Cheapest first; among equals the lower priority, then whoever started last."""
        gang = self.running.gang
        return (self.replica is None, self.cost, gang.priority, -self.running.started_s, -gang.sequence)


@dataclass(frozen=True, slots=True)
class _Columns:
    """All items as arrays, the cheapest first."""

    priority: IntArray  # (i,)
    team: IntArray  # (i,)
    steps: IntArray  # (i, columns of quota) millionths that it gives back
    is_surplus: BoolArray  # (i,)

    @classmethod
    def of(cls, items: Sequence[Item], n_columns: int) -> _Columns:
        steps = np.zeros((len(items), n_columns), dtype=np.int64)
        for i, item in enumerate(items):
            for kind, n in item.steps.items():
                steps[i, kind] = n
        gangs = [item.running.gang for item in items]
        return cls(
            np.array([gang.priority for gang in gangs], dtype=np.int64),
            np.array([gang.team for gang in gangs], dtype=np.int64),
            steps,
            np.array([item.is_surplus for item in items], dtype=bool),
        )


class _Amounts:
    """What all items hold, share by share: to sum up what some of them would give back at the most."""

    def __init__(self, frame: Frame, items: Sequence[Item]) -> None:
        self._frame = frame
        charges = [item.charge for item in items]
        self._bounds = np.cumsum([0, *(len(charge.nodes) for charge in charges)])
        nothing = [np.zeros(0, dtype=np.int64)]
        self._held = tuple(
            np.concatenate([getattr(charge, field) for charge in charges] or nothing)
            for field in ("nodes", "whole", "cpu", "mem", "draw")
        )

        self._power: dict[int, IntArray] = {}

    def power_under(self, limit: int) -> IntArray:
        """(i,) microwatts that each gives back under one limit."""
        known = self._power.get(limit)
        if known is None:
            nodes, draws = self._held[0], np.maximum(self._held[4], 0)
            drawn = np.append(
                0, np.cumsum(np.where((self._frame.paths[nodes] == limit).any(axis=1), draws, 0))
            )
            known = self._power[limit] = drawn[self._bounds[1:]] - drawn[self._bounds[:-1]]
        return known

    def given_back(self, left: Amounts, items: Sequence[Item]) -> Amounts:
        """The most that can be left when these are gone; a replica counts beside its job."""
        most = left[0].copy(), left[1].copy(), left[2].copy(), left[3].copy()
        places = np.array([item.place for item in items], dtype=np.int64)
        move: Any = give_back  # its arguments come in blocks
        move(places, self._bounds, self._held, self._frame.paths, self._frame.n_devices, most)
        return most


@dataclass(slots=True)
class _Asked:
    """Whom one may ask; and by number of states of a window, the most that can be free then."""

    items: list[Item]
    most: dict[tuple[int, bool], Amounts] = field(default_factory=dict)  # for whom yields, and for others
    # By shape, kind and whether it yields: the fewest states of a window in which even without all of them it has no
    # place, by sums.
    closed: dict[tuple[int, int, bool], int] = field(default_factory=dict)


@dataclass(slots=True)
class _Rights:
    """What rules of quota leave of those whom one may ask, whichever of them are taken together."""

    asked: _Asked
    # Of those that count against what a team has over: place, millionths of devices, and the teams it counts against.
    counted: list[tuple[int, int, list[int]]]
    over: dict[int, int]  # by team: millionths that can be taken at the most
    uncounted: IntArray  # places of the others
    most_uw: dict[int, int] = field(default_factory=dict)  # by limit: what is given back under it at the most


@dataclass(frozen=True, slots=True)
class Room:
    """What gives way, and the place that the job then has."""

    kind: int
    evicted: tuple[Running, ...]
    shrunk: tuple[tuple[Running, Placing], ...]  # with what each keeps
    cost: float


class Preemptor:
    """Finds victims for the jobs of one pass."""

    def __init__(self, walk: Pass) -> None:
        self.walk = walk
        tree = walk.tree
        self._is_limited: list[bool] = tree.limited.tolist()  # by kind
        self._owned: list[list[int]] = tree.subtree.tolist()  # by team and kind, millionths
        self._items: list[Item] | None = None
        self._columns = _Columns.of((), 0)
        self._is_there: BoolArray = np.zeros(0, dtype=bool)  # (i,) neither evicted nor resized in this pass
        self._places: dict[int, list[int]] = {}  # by job: of its items
        self._levels: dict[int, IntArray] = {}  # by team that asks
        self._asked_version = NONE
        self._asked: dict[tuple[int, ...], _Asked] = {}  # whom one may ask, as of then
        self._asked_alike: dict[tuple[int, ...], _Asked] = {}  # the same, by places
        # Who finds nobody to ask: priority, team, how much of which kinds.
        self._in_vain: set[tuple[int, int, int, tuple[int, ...]]] = set()
        self._rights: dict[tuple[int, int, int, bool, int], _Rights] = {}  # by who asks
        self._own: dict[tuple[int, int, int], int] = {}  # by team, kind, and whom it asks
        # By number of states of a window, and whether it yields: what is free while everybody is there.
        self._left: dict[tuple[int, bool], Amounts] = {}
        self._amounts: _Amounts | None = None
        self._curves: dict[
            tuple[int, ...], Curve[Item]
        ] = {}  # by node, what is free there, what is asked, and options
        self._dropped: list[tuple[Running, Held]] = []
        self._costs: dict[int, float] = {}  # by job: device-seconds lost
        self._shielded: dict[int, float] = {}  # by priority: when the first of them may be asked
        self._least_priority = min((r.gang.priority for r in walk.snapshot.running), default=0)
        self._failed: dict[tuple[object, ...], list[tuple[int, float]]] = {}

    # -- the question -------------------------------------------------------------------------------------------------

    def make_room(self, gang: Gang) -> Room | None:
        """The victims that cost least, with which this gang starts now; None if there are none.

        The gang is of its least size already. Nothing is changed by asking.
        """
        walk = self.walk
        best: Room | None = None
        self._renew()
        asks = gang.priority, gang.team, walk.steps(gang.shape), walk.kinds(gang.shape)
        if asks in self._in_vain:
            return None
        is_in_vain = True
        for kind in walk.kinds(gang.shape):
            if not self._may_help(gang, kind):
                continue
            duration_s = walk.duration_s(gang, kind)
            key, n = self._key(gang, kind)
            if any(n >= m and duration_s > s for m, s in self._failed.get(key, ())):
                is_in_vain = False  # not looked at now
                continue
            room = self._on_kind(gang, kind, duration_s)
            is_in_vain = is_in_vain and room is None and not self._eligible(gang, kind).items
            if room is None:
                self._failed.setdefault(key, []).append((n, walk.shortest_to_fail(gang, duration_s)))
            elif best is None or room.cost < best.cost:
                best = room
        if is_in_vain:
            self._in_vain.add(asks)
        return best

    def carry_out(self, room: Room) -> None:
        """Lift the victims for good."""
        calendar = self.walk.calendar
        for running in room.evicted:
            self._dropped.append((running, calendar.held[running.gang.id]))
            calendar.drop(running.gang.id)
            self._count(running, is_there=False)
        for running, placing in room.shrunk:
            end_s = end_after(running, placing, self.walk.now_s)
            calendar.hold_instead(running.gang, placing, end_s)
            self._count(running, is_there=False)  # one change a pass
        self._failed.clear()

    def spare(self) -> list[Running]:
        """Victims that need not leave any more, since others made more room than they had to; the dearest first."""
        spared = []
        for running, held in sorted(self._dropped, key=lambda one: self._whole_cost(one[0]), reverse=True):
            if self.walk.calendar.take_back(running.gang, held):
                self._count(running, is_there=True)
                spared.append(running)
        self._dropped = [one for one in self._dropped if one[0] not in spared]
        return spared

    def _count(self, running: Running, *, is_there: bool) -> None:
        self._is_there[self._places.get(running.gang.id, [])] = is_there
        self._forget_asked()

    def _forget_asked(self) -> None:
        self._asked.clear()
        self._asked_alike.clear()
        self._in_vain.clear()
        self._rights.clear()
        self._own.clear()
        self._left.clear()

    def _renew(self) -> None:
        """Forget whom one may ask if something was charged since."""
        version = self.walk.calendar.version
        if self._asked_version != version:
            self._asked_version = version
            self._forget_asked()

    def _whole_cost(self, running: Running) -> tuple[float, float, int]:
        return self.cost_of(running), running.started_s, running.gang.sequence

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _key(self, gang: Gang, kind: int) -> tuple[tuple[object, ...], int]:
        key, n = self.walk.failure_key(gang, kind)
        return (*key, gang.priority), n

    def _may_help(self, gang: Gang, kind: int) -> bool:
        return (
            gang.priority > self._least_priority
            or self._may_reclaim(gang, kind)
            or (gang.priority == self._least_priority and self._has_surplus())
        )

    def _has_surplus(self) -> bool:
        self._all_items()
        return bool((self._columns.is_surplus & self._is_there).any())

    def _may_reclaim(self, gang: Gang, kind: int) -> bool:
        tree = self.walk.tree
        return (
            gang.team != NONE
            and bool(tree.teams)
            and self._is_limited[kind]
            and self._owned[gang.team][kind] >= self.walk.steps(gang.shape)
        )

    def _all_items(self) -> list[Item]:
        if self._items is None:
            walk, policy = self.walk, self.walk.policy
            self._items, self._shielded = [], {}
            for running in walk.snapshot.running:
                gang = running.gang
                if running.is_leaving or not gang.preemptible:
                    continue
                if walk.now_s - running.started_s < policy.shield_s:
                    until_s = running.started_s + policy.shield_s
                    self._shielded[gang.priority] = min(self._shielded.get(gang.priority, inf), until_s)
                    continue
                self._items.extend(self._replicas(running))
                if policy.most_evictions is None or gang.n_evictions < policy.most_evictions:
                    self._items.append(self._whole(running))
            self._items.sort(key=lambda item: item.order)
            for place, item in enumerate(self._items):
                item.place = place
                both = zip(item.charge.nodes.tolist(), item.charge.whole.tolist(), strict=True)
                item.spots = tuple((node, whole) for node, whole in both if whole)
                self._places.setdefault(item.running.gang.id, []).append(place)
            self._is_there = np.ones(len(self._items), dtype=bool)
            self._columns = _Columns.of(self._items, walk.tree.subtree.shape[1])
        return self._items

    def _whole(self, running: Running) -> Item:
        held = self.walk.calendar.held[running.gang.id]
        charge = held.charge
        rises = [turn.charge.draw for turn in held.turns if (turn.charge.draw > 0).any()]
        if rises:
            # What it would draw later on it gives back then; of several instants the most.
            charge = replace(
                charge, draw=charge.draw + np.maximum.reduce([np.zeros_like(charge.draw), *rises])
            )
        steps = dict(zip(charge.kinds.tolist(), charge.steps.tolist(), strict=True))
        return Item(running, None, charge, self.cost_of(running), steps, is_surplus=False)

    def cost_of(self, running: Running) -> float:
        """Device-seconds that are lost when this job leaves now."""
        known = self._costs.get(running.gang.id)
        if known is None:
            known = self._costs[running.gang.id] = self._lost_by(running)
        return known

    def _lost_by(self, running: Running) -> float:
        gang = running.gang
        ran_s = max(0.0, self.walk.now_s - running.started_s)
        lost_s = min(ran_s, running.at_risk_s)
        if gang.saving is not None:
            if running.at_risk_s == inf:  # nobody told: as it was declared
                lost_s = ran_s % (gang.saving.interval_s + gang.saving.cost_s)
            lost_s += gang.saving.restart_s
        return lost_s * _devices_of(running)

    def _replicas(self, running: Running) -> list[Item]:
        """Replicas that an elastic job can lose, those on nodes where it has fewest first."""
        gang = running.gang
        if running.cap < 1.0 or not may_resize(gang, self.walk.policy):
            return []
        items: list[Item] = []
        sizes = sizes_of(gang, running.placing)
        n_spare = sum(max(0, n - ask.least) for n, ask in zip(sizes, gang.shape.asks, strict=True))
        cost = _resize_cost(running) / max(1, n_spare)
        for g, ask in enumerate(gang.shape.asks):
            spare = sizes[g] - ask.least
            if spare <= 0:
                continue
            surplus = sizes[g] - ask.n_replicas
            shares = sorted(
                (s for s in running.placing if s.group == g), key=lambda s: (s.n_replicas, -s.node, s.devices)
            )
            for share in shares:
                for one in one_by_one(share, ask.devices):
                    if not spare:
                        break
                    charge = charge_of(self.walk.frame, self.walk.tree, gang, (one,))
                    steps = dict(zip(charge.kinds.tolist(), charge.steps.tolist(), strict=True))
                    items.append(Item(running, one, charge, cost, steps, is_surplus=surplus > 0))
                    spare, surplus = spare - 1, surplus - 1
        return items

    def _eligible(self, gang: Gang, kind: int) -> _Asked:
        """What this gang may ask for at all; sets of them are judged by `_is_allowed`."""
        reclaims = self._may_reclaim(gang, kind)
        if reclaims and self.walk.borrowing - {gang.team}:
            # What was lent a moment ago costs least to call in; the next pass sees it.
            self.walk.boundary_s = self.walk.now_s
            reclaims = False
        self._all_items()
        columns = self._columns
        self._renew()
        key = (gang.priority, gang.team, kind) if reclaims else (gang.priority,)
        known = self._asked.get(key)
        if known is not None:
            return known
        asked = columns.priority < gang.priority
        asked |= columns.is_surplus & (columns.priority == gang.priority)
        if reclaims:
            steps = columns.steps[:, kind]
            asked |= (steps > 0) & (steps <= self._lent(gang.team, kind)[columns.team])
        asked &= self._is_there
        known = self._asked[key] = self._asked_of(np.flatnonzero(asked).tolist())
        return known

    def _asked_of(self, places: list[int]) -> _Asked:
        """Those at these places; most teams are lent nothing, and may ask the same jobs."""
        alike = tuple(places)
        known = self._asked_alike.get(alike)
        if known is None:
            items = self._all_items()
            known = self._asked_alike[alike] = _Asked([items[place] for place in places])
        return known

    def _leaves_open(self, gang: Gang, kind: int, duration_s: float, asked: _Asked) -> bool:
        """Whether the gang might have a place if everybody it may ask left; False is certain."""
        walk, shape = self.walk, gang.shape
        n, yields = walk.calendar.n_states(walk.now_s + duration_s), walk.calendar.yields(gang)
        if n >= asked.closed.get((id(shape), kind, yields), BIG):
            return False
        if (n, yields) not in asked.most:
            asked.most[n, yields] = self.given_back(self.left_now(gang, duration_s), asked.items)
        is_open = may_hold(walk.frame, shape, kind, asked.most[n, yields], walk.may_use(gang))
        if not is_open:
            asked.closed[id(shape), kind, yields] = n
        return is_open

    def left_now(self, gang: Gang, duration_s: float) -> Amounts:
        """What is free from now on for that long while everybody is there; to be asked before anybody is lifted."""
        calendar, until_s = self.walk.calendar, self.walk.now_s + duration_s
        key = calendar.n_states(until_s), calendar.yields(gang)
        known = self._left.get(key)
        if known is None:
            known = self._left[key] = _amounts(calendar.floor_now(until_s, gang))
        return known

    def given_back(self, left: Amounts, items: Sequence[Item]) -> Amounts:
        """The most that can be left when these are gone."""
        return self._held_by_all().given_back(left, items)

    def _held_by_all(self) -> _Amounts:
        if self._amounts is None:
            self._amounts = _Amounts(self.walk.frame, self._all_items())
        return self._amounts

    # -- what quota leaves of them, by sums -----------------------------------------------------------------------

    def _rights_of(self, gang: Gang, kind: int, asked: _Asked) -> _Rights | None:
        """Bounds to what this gang may take; None where quota forbids no set, or nothing holds for all sets.

        They hold for every set that `_is_allowed` lets it take, and what is forbidden stays so with more victims: a
        gang that borrows even with all of its own team gone borrows with any set, and one that does not borrow now
        does not with any.
        """
        walk, tree = self.walk, self.walk.tree
        team = gang.team
        if team == NONE or not tree.teams or not tree.limited[kind]:
            return None
        use, owned = walk.calendar.now.use[:, kind], self._owned
        short = int(use[team]) + walk.steps(gang.shape) - owned[team][kind]
        if 0 < short <= self._own_steps(team, kind, asked):
            return None  # whether it borrows hangs on who leaves
        key = gang.priority, team, kind, short > 0, id(asked)
        known = self._rights.get(key)
        if known is None:
            look = self._rights_of_borrower if short > 0 else self._rights_of_owner
            known = self._rights[key] = look(gang, kind, asked, use.tolist())
        return known

    def _own_steps(self, team: int, kind: int, asked: _Asked) -> int:
        """Millionths that a team and those below it would give back at the most."""
        key = team, kind, id(asked)
        known = self._own.get(key)
        if known is None:
            path = self.walk.tree.path
            own = (
                i for i in asked.items if i.running.gang.team != NONE and team in path(i.running.gang.team)
            )
            known = self._own[key] = sum(item.steps.get(kind, 0) for item in own)
        return known

    def _rights_of_borrower(self, gang: Gang, kind: int, asked: _Asked, use: list[int]) -> _Rights:
        """It takes from lower jobs alone; of other teams, only while these have more than is theirs."""
        counted: list[tuple[int, int, list[int]]] = []
        over: dict[int, int] = {}
        uncounted: list[int] = []
        for item in asked.items:
            of, n = item.running.gang.team, item.steps.get(kind, 0)
            if item.is_surplus or of in (NONE, gang.team):
                uncounted.append(item.place)
                continue
            spare = use[of] - self._owned[of][kind]
            if spare <= 0 or item.running.gang.priority >= gang.priority:
                continue
            if n:
                # Its last victim may take the team below what is its own.
                over[of] = max(over.get(of, 0), spare + n)
                counted.append((item.place, n, [of]))
            else:
                uncounted.append(item.place)
        places = sorted([*uncounted, *(place for place, _, _ in counted)])
        return _Rights(self._asked_of(places), counted, over, np.array(uncounted, dtype=np.int64))

    def _rights_of_owner(self, gang: Gang, kind: int, asked: _Asked, use: list[int]) -> _Rights:
        """It takes from all lower jobs; and from others what was lent, at every level."""
        apart = self._apart(gang.team)
        counted: list[tuple[int, int, list[int]]] = []
        over: dict[int, int] = {}
        uncounted: list[int] = []
        for item in asked.items:
            of, n = item.running.gang.team, item.steps.get(kind, 0)
            is_free = item.running.gang.priority < gang.priority or (
                item.is_surplus and item.running.gang.priority == gang.priority
            )
            if is_free or of == NONE or not n:
                uncounted.append(item.place)
                continue
            levels = [level for level in apart[of].tolist() if level != NONE]
            counted.append((item.place, n, levels))
            for level in levels:
                over[level] = use[level] - self._owned[level][kind]
        return _Rights(asked, counted, over, np.array(uncounted, dtype=np.int64))

    def _lacks_power(self, gang: Gang, kind: int, duration_s: float, rights: _Rights) -> bool:
        """Whether no set that quota allows frees the watts under a limit above all nodes of this kind."""
        walk = self.walk
        needed_uw = walk.needs.of(gang.shape, kind)[0]
        if not needed_uw or not walk.frame.has_limits:
            return False
        head = self.left_now(gang, duration_s)[3]
        for limit in walk.frame.above_all[kind].tolist():
            most = rights.most_uw.get(limit)
            if most is None:
                most = rights.most_uw[limit] = self._most_uw(limit, rights)
            if int(head[limit]) + most < needed_uw:
                return True
        return False

    def _most_uw(self, limit: int, rights: _Rights) -> int:
        """Microwatts under a limit that any allowed set gives back at the most.

        What counts against nested teams is taken by most power a device first, in parts: no choice gives more
        (Edmonds 1970, greedy on polymatroids).
        """
        power = self._held_by_all().power_under(limit)
        most = int(power[rights.uncounted].sum())
        # Jobs leave whole: of what counts against a team, a multiple of what all such jobs hold a multiple of.
        step: dict[int, int] = {}
        for _, n, levels in rights.counted:
            for level in levels:
                step[level] = gcd(step.get(level, 0), n)
        over = {level: most_of // step[level] * step[level] for level, most_of in rights.over.items()}
        each = [(int(power[place]), n, levels) for place, n, levels in rights.counted]
        for uw, n, levels in sorted(each, key=lambda one: one[0] / one[1], reverse=True):
            taken = max(0, min(n, *(over[level] for level in levels)))
            most -= -uw * taken // n
            for level in levels:
                over[level] -= taken
        return most

    def _lent(self, asks: int, kind: int) -> IntArray:
        """(t + 1,) what each team has borrowed at every level under what it shares with the team that asks, millionths.

        Negative for teams that are not there (the last, too), are the same, or share nothing with it.
        """
        tree = self.walk.tree
        over = self.walk.calendar.now.use[:, kind] - tree.subtree[:, kind]
        levels = self._apart(asks)
        lent = np.where(levels == NONE, BIG, over[levels]).min(axis=1)
        return np.append(np.where(levels[:, 0] == NONE, -1, lent), -1)

    def _apart(self, asks: int) -> IntArray:
        """(t, depth) each team and those above it that are not above the one that asks, padded with NONE.

        None at all where they share nothing, or are one.
        """
        known = self._levels.get(asks)
        if known is None:
            tree = self.walk.tree
            above = tree.path(asks)
            paths = [tree.path(team) for team in range(len(tree.teams))]
            known = self._levels[asks] = np.full((len(paths), max(map(len, paths))), NONE, dtype=np.int64)
            for team, path in enumerate(paths):
                levels = [t for t in path if t not in above]
                if len(levels) < len(path):
                    known[team, : len(levels)] = levels
        return known

    def _may_take(
        self, gang: Gang, kind: int, items: Sequence[Item], use: IntArray | None = None, *, greedily: bool
    ) -> IntArray:
        """Places in `items` of those that the rules of quota let this gang take together.

        Args:
            use: (t, k) what is in use while they are all there; None: now.
            greedily: As many as can be had, the first first; False: all or none.
        """
        tree, columns = self.walk.tree, self._columns
        places = np.array([item.place for item in items], dtype=np.int64)
        if gang.team == NONE or not tree.teams or not tree.limited[kind]:
            return np.arange(len(places))  # nobody borrows: `_eligible` has looked at priorities
        return may_take(
            columns.priority[places], columns.team[places], columns.steps[places, kind],
            columns.is_surplus[places], self.walk.calendar.now.use if use is None else use, gang.team, gang.priority,
            self.walk.steps(gang.shape), kind, self._apart(gang.team), tree.parents, tree.kept, tree.subtree, greedily,
        )  # fmt: skip

    def _is_allowed(self, gang: Gang, kind: int, items: Sequence[Item], use: IntArray | None = None) -> bool:
        """Whether the rules of quota let this gang take just these."""
        return len(self._may_take(gang, kind, items, use, greedily=False)) == len(items)

    # -- trying -------------------------------------------------------------------------------------------------------

    def _on_kind(self, gang: Gang, kind: int, duration_s: float) -> Room | None:
        asked = self._eligible(gang, kind)
        items = asked.items
        for priority, until_s in self._shielded.items():
            if priority < gang.priority:
                self.walk.boundary_s = min(self.walk.boundary_s, until_s)  # it may be asked then
        if not items or not self._leaves_open(gang, kind, duration_s, asked):
            return None
        rights = self._rights_of(gang, kind, asked)
        if rights is not None:
            if self._lacks_power(gang, kind, duration_s, rights):
                return None
            if rights.asked is not asked:
                asked, items = rights.asked, rights.asked.items
                if not items or not self._leaves_open(gang, kind, duration_s, asked):
                    return None
        trial = _Trial(self, gang, kind, duration_s)
        everything = self._as_many_as_allowed(gang, kind, items)
        all_do = trial.succeeds(everything)
        if not all_do and len(everything) == len(items):
            return None
        best: tuple[float, list[Item]] | None = None
        for estimate, _, chosen in self._by_domain(gang, kind, duration_s, items)[:_MOST_DOMAINS]:
            if best is not None and estimate >= best[0] and estimate > 0:
                break
            if rights is not None and not self._is_allowed(gang, kind, chosen):
                continue  # nor with more
            full = chosen if trial.succeeds(chosen) else self._completed(trial, chosen, everything)
            if full is None:
                continue
            pruned = trial.pruned(full)
            if pruned is None:
                continue
            cost = _cost(pruned)
            if best is None or (cost, len(pruned)) < (best[0], len(best[1])):
                best = cost, pruned
        if best is None and all_do:
            full = self._completed(trial, [], everything)
            if full is None:
                return None
            pruned = trial.pruned(full)
            if pruned is None:
                return None
            best = _cost(pruned), pruned
        if best is None:
            return None
        evicted, shrunk = _normal(best[1])
        return Room(
            kind,
            tuple(item.running for item in evicted),
            tuple((running, without(running, replicas)) for running, replicas in shrunk),
            best[0],
        )

    def _as_many_as_allowed(self, gang: Gang, kind: int, items: Sequence[Item]) -> list[Item]:
        """The cheapest items first, as long as the rules of quota allow all of them together."""
        if self._is_allowed(gang, kind, items):
            return list(items)
        return [items[i] for i in self._may_take(gang, kind, items, greedily=True).tolist()]

    def _completed(self, trial: _Trial, chosen: list[Item], everything: list[Item]) -> list[Item] | None:
        """The chosen, and as few of the cheapest others as will do."""
        taken = set(map(id, chosen))
        others = [item for item in everything if id(item) not in taken]
        if not trial.succeeds([*chosen, *others]):
            return None
        low, high = 0, len(others)
        while low < high:
            middle = (low + high) // 2
            if trial.succeeds([*chosen, *others[:middle]]):
                high = middle
            else:
                low = middle + 1
        return [*chosen, *others[:high]]

    def _by_domain(
        self, gang: Gang, kind: int, duration_s: float, items: Sequence[Item]
    ) -> list[tuple[float, int, list[Item]]]:
        """(estimated cost, level, items) for every domain that could be cleared, the cheapest first."""
        if len(gang.shape.asks) != 1 or not gang.shape.asks[0].devices:
            return []
        walk, frame = self.walk, self.walk.frame
        ask = gang.shape.asks[0]
        floor = walk.calendar.floor_now(walk.now_s + duration_s)
        usable = walk.may_use(gang) & frame.kind_mask[kind]
        if ask.required is not None:
            usable = usable & frame.has_level[ask.required]
        on_node: dict[int, list[tuple[int, Item]]] = {}
        for item in items:
            for node, devices in item.spots:
                on_node.setdefault(node, []).append((devices, item))
        curves: dict[int, Curve[Item]] = {}
        free = np.where(usable, np.maximum(floor.whole, 0), 0)
        for node in np.flatnonzero(usable & (free >= ask.devices)).tolist():
            on_node.setdefault(node, [])
        is_usable = usable.tolist()
        for node, options in on_node.items():
            if not is_usable[node]:
                continue
            there = self._curve_of(node, int(free[node]), ask.devices, ask.n_replicas, options)
            if there:
                curves[node] = there
        ranked: list[tuple[float, int, list[Item]]] = []
        required = LEVELS.index(ask.required) if ask.required is not None else len(LEVELS)
        whole = [
            there[ask.n_replicas - 1][1]
            for _, there in sorted(curves.items())
            if len(there) >= ask.n_replicas
        ]
        single = [(_cost(items), 0, list(items)) for items in whole]
        ranked += sorted(single, key=lambda s: s[0])[: _MOST_DOMAINS * 2]
        if ask.n_replicas > 1:
            for depth in range(min(required, len(LEVELS) - 1) + 1):
                ids: IntArray = frame.level[LEVELS[depth]]
                inside: dict[int, list[int]] = {}
                for node in sorted(curves):
                    inside.setdefault(int(ids[node]), []).append(node)
                for nodes in inside.values():
                    self._cheapest(nodes, curves, ask.n_replicas, depth + 1, ranked)
            if required == len(LEVELS):
                self._cheapest(sorted(curves), curves, ask.n_replicas, len(LEVELS) + 1, ranked)
        ranked.sort(key=lambda r: (r[0], r[1]))
        return ranked

    def _curve_of(
        self, node: int, free: int, devices: int, n: int, options: Sequence[tuple[int, Item]]
    ) -> Curve[Item]:
        """See `clearing.curve`; from one job to the next, little changes on most nodes."""
        key = (node, free, devices, n, *[item.place for _, item in options])
        known = self._curves.get(key)
        if known is None:
            most = min(n, int(self.walk.frame.n_devices[node]) // devices)
            priced = [(whole, item.price_of(whole), item) for whole, item in options]
            known = self._curves[key] = curve(free, devices, most, priced)
        return known

    def _cheapest(
        self,
        nodes: Sequence[int],
        curves: dict[int, Curve[Item]],
        n: int,
        level: int,
        ranked: list[tuple[float, int, list[Item]]],
    ) -> None:
        """Put n replicas on the nodes where the next one costs least."""
        if sum(len(curves[node]) for node in nodes) < n:
            return
        heap = [(curves[node][0][0], place, node, 0) for place, node in enumerate(nodes)]
        heapify(heap)
        taken: dict[int, int] = {}
        for _ in range(n):
            _, place, node, r = heappop(heap)
            taken[node] = r + 1
            if r + 1 < len(curves[node]):
                heappush(heap, (curves[node][r + 1][0] - curves[node][r][0], place, node, r + 1))
        chosen: dict[int, Item] = {}
        for node, r in taken.items():
            for item in curves[node][r - 1][1]:
                chosen[id(item)] = item
        ranked.append((_cost(chosen.values()), level, list(chosen.values())))


class _Trial:
    """Whether a gang starts once certain victims are gone."""

    def __init__(self, preemptor: Preemptor, gang: Gang, kind: int, duration_s: float) -> None:
        self.preemptor, self.gang, self.kind, self.duration_s = preemptor, gang, kind, duration_s
        # That it does not start as it is was found before anybody was asked.
        self._known: dict[frozenset[int], bool] = {frozenset(): False}
        self._left: Amounts | None = None  # with everybody there

    def succeeds(self, items: Sequence[Item]) -> bool:
        return self.preemptor._is_allowed(self.gang, self.kind, items) and self.starts(items)

    def starts(self, items: Sequence[Item]) -> bool:
        """Whether there is a place without these, the rules of quota about victims aside."""
        key = frozenset(item.place for item in items)
        if key not in self._known:
            self._known[key] = self._leaves_open(items) and self._starts(items)
        return self._known[key]

    def _leaves_open(self, items: Sequence[Item]) -> bool:
        """Whether sums leave it open that there is a place without these: what shows it otherwise costs more."""
        walk = self.preemptor.walk
        if not any(ask.devices for ask in self.gang.shape.asks):
            return True
        if self._left is None:
            self._left = self.preemptor.left_now(self.gang, self.duration_s)
        most = self.preemptor.given_back(self._left, items)
        return may_hold(walk.frame, self.gang.shape, self.kind, most, walk.may_use(self.gang))

    def _starts(self, items: Sequence[Item]) -> bool:
        walk = self.preemptor.walk
        calendar = walk.calendar
        evicted, shrunk = _normal(items)
        lifted = [calendar.held[item.running.gang.id] for item in evicted]
        put: list[Held] = []
        late: list[tuple[Held, float]] = []
        for running, replicas in shrunk:
            keeps = without(running, replicas)
            if not walk.is_spread(running.gang, keeps):
                return False
            lifted.append(calendar.held[running.gang.id])
            end_s = end_after(running, keeps, walk.now_s)
            rest = calendar.resized(running.gang, keeps, end_s)
            put.append(rest)
            if end_s > running.ends_s:
                late.append((rest, running.ends_s))
        calendar.lift(lifted)
        calendar.lift(put, 1)
        try:
            if any(calendar.overdrawn(rest, since_s, is_longer=True) for rest, since_s in late):
                return False
            # Just as it will be asked for when they are gone.
            found: Found | None = walk.fit(self.gang, self.kind, calendar.now, self.duration_s, named=True)
            return found is not None
        finally:
            calendar.lift(put)
            calendar.lift(lifted, 1)

    def pruned(self, items: Sequence[Item]) -> list[Item] | None:
        """What is left when every victim that can be spared is put back, the dearest first.

        None if one is left that would be there for the rules of quota alone: with fewer gone the job starts, but may
        not ask for those. Nobody leaves for that.
        """
        # A job of fractions has a share for each device: found by two of them it still leaves, and comes back, once.
        kept = sorted({item.place: item for item in items}.values(), key=lambda item: item.order)
        if any(item.replica is not None for item in kept):
            return self._pruned_by_asking(kept)
        # The victims stay lifted meanwhile, and one at a time is put back.
        calendar = self.preemptor.walk.calendar
        self._leaves_open(kept)  # takes down what is left while all are there
        use = calendar.now.use.copy()
        held = {item.place: calendar.held[item.running.gang.id] for item in kept}
        calendar.lift([held[item.place] for item in kept])
        forbidden: list[Item] = []  # what stays on the list because of the rules of quota
        rest, at_once = kept[::-1], 1
        try:
            while rest:
                # As many at once as went well before, and as would each be allowed in its turn.
                back: list[Item] = []
                fewer, n_looked_at = kept, 0
                for item in rest:
                    n_looked_at += 1
                    without = [other for other in fewer if other is not item]
                    if self.preemptor._is_allowed(self.gang, self.kind, without, use):
                        back.append(item)
                        fewer = without
                        if len(back) == at_once:
                            break
                goes_well = not back or self._doeswithout([held[item.place] for item in back], fewer)
                if not goes_well and len(back) > 1:
                    at_once = len(back) // 2
                    continue
                forbidden += [item for item in rest[:n_looked_at] if item not in back]
                rest, at_once = rest[n_looked_at:], 2 * at_once if goes_well else 1
                if goes_well:  # else the one has to leave
                    calendar.lift([held[item.place] for item in back], 1)
                    kept = fewer
            for item in forbidden:
                if self._doeswithout([held[item.place]], [other for other in kept if other is not item]):
                    return None
            return kept
        finally:
            calendar.lift([held[item.place] for item in kept], 1)

    def _doeswithout(self, back: Sequence[Held], fewer: Sequence[Item]) -> bool:
        """Whether it starts even if these of those that are lifted were put back, so that fewer are gone."""
        if not self._leaves_open(fewer):
            return False
        walk = self.preemptor.walk
        walk.calendar.lift(back, 1)
        try:
            return walk.fit(self.gang, self.kind, walk.calendar.now, self.duration_s, named=True) is not None
        finally:
            walk.calendar.lift(back)

    def _pruned_by_asking(self, kept: list[Item]) -> list[Item] | None:
        """The same, where jobs shrink: every set is tried from the start."""
        for item in kept[::-1]:
            fewer = [other for other in kept if other is not item]
            if self.succeeds(fewer):
                kept = fewer
        if any(self.starts([other for other in kept if other is not item]) for item in kept):
            return None
        return kept


def _amounts(floor: Floor) -> Amounts:
    """Taken down: what is lifted later does not show."""
    return floor.whole.copy(), floor.cpu.copy(), floor.mem.copy(), floor.head.copy()


def _cost(items: Iterable[Item]) -> float:
    """Device-seconds that are lost when all of these are freed at once."""
    total, resized = 0.0, set()
    for item in items:
        if item.replica is None:
            total += item.cost
        elif item.cost and item.running.gang.id not in resized:
            resized.add(item.running.gang.id)
            total += _resize_cost(item.running)
    return total


def _resize_cost(running: Running) -> float:
    """Device-seconds that one change of size takes, however many replicas come or go."""
    return resize_s(running.gang) * _devices_of(running)


def _devices_of(running: Running) -> float:
    gang = running.gang
    sizes = sizes_of(gang, running.placing)
    return sum(n * (a.devices or a.share_steps / FULL) for n, a in zip(sizes, gang.shape.asks, strict=True))


def _normal(items: Sequence[Item]) -> tuple[list[Item], list[tuple[Running, list[Share]]]]:
    """Jobs that leave whole; and those that only shrink, with the replicas they lose."""
    whole = {item.running.gang.id: item for item in items if item.replica is None}
    losing: dict[int, tuple[Running, list[Share]]] = {}
    for item in items:
        if item.replica is not None and item.running.gang.id not in whole:
            losing.setdefault(item.running.gang.id, (item.running, []))[1].append(item.replica)
    return list(whole.values()), list(losing.values())

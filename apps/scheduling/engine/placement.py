"""Where a gang goes: its replicas whole or not at all, as close together as it can, leaving whole what is whole.

The room a node offers is a count of replicas. Domains are filled from narrow to wide: one node, one scale-up domain,
one leaf, one spine, then as few of them as possible; among those that would do, the one it fits best, so that emptier
nodes, leaves and spines stay whole for gangs that need them. Power limits form trees over the nodes; under one such
tree every filling that cannot go on is as large as any other, so filling in order of taste never misses a place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from apps.scheduling.engine.facts import NONE, Ask, BoolArray, IntArray, Placing, Shape, Share, Spread
from apps.scheduling.engine.flow import spread_under_limits
from apps.scheduling.engine.fragments import Fragments
from apps.scheduling.engine.frame import LEVELS, Frame
from apps.scheduling.engine.kernels import (
    best_single,
    domain_sums,
    fraction_room,
    most_under_limits,
    one_domain_holds,
    whole_room,
)
from apps.scheduling.engine.state import Floor
from apps.scheduling.engine.units import BIG, FULL, micro_of


@dataclass(frozen=True, slots=True)
class Terms:
    """What one placement is judged by; a rule is left out by taking its term away."""

    may_use: BoolArray  # (n,) nodes that are healthy, of the right cluster, and not booked away
    only: IntArray | None = None  # (n,) devices it may take at most (the booking it names)
    power: bool = True
    topology: bool = True
    busy: bool = True  # False: as if nothing ran
    packing: bool = True
    named: bool = True  # name the devices; a promise of the future does not
    spread: bool = True
    healthy: BoolArray | None = (
        None  # (n,) nodes whose domains count where replicas are spread; None: `may_use`
    )
    already: IntArray | None = None  # (n,) replicas that the job has there already, when it grows
    kind: int = NONE  # the kind looked at
    fragments: Fragments | None = None  # how single replicas are placed; None: by best fit
    whether: bool = False  # is there a place at all: shares are left out where that is quicker


Amounts = tuple[IntArray, IntArray, IntArray, IntArray]  # (n,) whole, cpu and mem; (l + 1,) head: as in State


@dataclass(slots=True)
class Found:
    """A placing, and how it came about."""

    placing: Placing
    kind: int
    level: str
    score: int | None = (
        None  # what it adds to the expected fragmentation, where that was asked; the least is the best
    )
    why: dict[str, object] = field(default_factory=dict)


class _Left:
    """What the groups already placed in this trial leave of a floor."""

    __slots__ = ("_dev", "_floor", "cpu", "head", "is_touched", "mem", "shared", "whole")

    def __init__(self, floor: Floor, terms: Terms) -> None:
        self.whole = floor.whole if terms.only is None else np.minimum(floor.whole, terms.only)
        self.cpu, self.mem, self.head = floor.cpu, floor.mem, floor.head
        self.shared: IntArray | None = None  # worked out for fractions only
        self.is_touched = False
        self._floor = floor
        self._dev: IntArray | None = None

    @property
    def present(self) -> tuple[IntArray, IntArray, IntArray]:
        """(dev, cpu, mem) as they are when the placing begins."""
        if self.is_touched:
            return self.dev, self.cpu, self.mem
        first = self._floor.states[0]
        return first.dev, first.cpu, first.mem

    @property
    def log(self) -> list[IntArray] | None:
        """Where what is present has changed, as far as somebody keeps it."""
        return None if self.is_touched else self._floor.states[0].log

    @property
    def dev(self) -> IntArray:
        return self._floor.dev if self._dev is None else self._dev

    def shared_dev(self, frame: Frame, floor: Floor) -> IntArray:
        if self.shared is None:
            self.shared = floor.shared_dev(frame)
        return self.shared

    def take(self, frame: Frame, ask: Ask, kind_draw: IntArray, shares: Iterable[Share]) -> None:
        """Charge one group's shares, on copies."""
        self.whole, self.cpu, self.mem = self.whole.copy(), self.cpu.copy(), self.mem.copy()
        self.head, self._dev = self.head.copy(), self.dev.copy()
        self.is_touched = True
        for share in shares:
            node = share.node
            self.cpu[node] -= micro_of(ask.cpus) * share.n_replicas
            self.mem[node] -= micro_of(ask.memory_gib) * share.n_replicas
            self.head[frame.paths[node]] -= int(kind_draw[node]) * share.n_replicas
            self.head[-1] = BIG
            if not ask.devices and not ask.share_steps:
                continue
            if share.devices:
                at = int(frame.offset[node]) + np.array(share.devices, dtype=np.int64)
                self.whole[node] -= int((self._dev[at] == FULL).sum())
                self._dev[at] -= share.share_steps
                if self.shared is not None:
                    self.shared = self.shared.copy()
                    self.shared[at] = np.minimum(self.shared[at], self._dev[at])
            else:
                self.whole[node] -= ask.devices * share.n_replicas or -(
                    -share.n_replicas // (FULL // ask.share_steps)
                )


def place(frame: Frame, shape: Shape, kind: int, floor: Floor, terms: Terms) -> Found | None:
    """Place every group of a shape on nodes of one kind (groups without devices: on any), or return None."""
    asks = shape.asks
    if len(asks) == 1:
        left = _Left(floor, terms)
        found = _place_group(frame, 0, asks[0], kind, left, terms, floor)
        if found is None:
            return None
        score = None
        if (
            found[0]
            and terms.fragments is not None
            and terms.packing
            and asks[0].n_replicas == 1
            and asks[0].spread is None
        ):
            score = terms.fragments.last_score(asks[0], found[0][0].node)
        return Found(tuple(found[0]), kind, found[1], score)
    # The hardest groups first; where that fails, the other way round.
    hard = sorted(
        range(len(asks)), key=lambda g: (-asks[g].devices, -asks[g].n_replicas * max(asks[g].devices, 1), g)
    )
    for order in (hard, hard[::-1]):
        left, shares, level = _Left(floor, terms), [], "node"
        for g in order:
            found = _place_group(frame, g, asks[g], kind, left, terms, floor)
            if found is None:
                break
            left.take(frame, asks[g], _draws(frame, asks[g]), found[0])
            shares.extend(found[0])
            level = max(level, found[1], key=_WIDTH.__getitem__)
        else:
            return Found(tuple(sorted(shares, key=lambda s: (s.group, s.node, s.devices))), kind, level)
    return None


_WIDTH = {"node": 0, "scale_up": 1, "leaf": 2, "spine": 3, "anywhere": 4}


def _draws(frame: Frame, ask: Ask) -> IntArray:
    """(n,) microwatts one replica adds on each node."""
    return frame.draws(ask.devices, ask.share_steps, ask.peak_w)


def node_room(frame: Frame, ask: Ask, kind: int, left: "_Left", terms: Terms) -> IntArray:
    """(n,) replicas each node could take, domains above it aside: those without devices, or as if nothing ran."""
    n = ask.n_replicas
    mask = terms.may_use
    if ask.devices or ask.share_steps:
        mask = mask & frame.kind_mask[kind]
        room = frame.n_devices // ask.devices if ask.devices else frame.n_devices * (FULL // ask.share_steps)
    else:
        if ask.kinds and len(ask.kinds) < len(frame.kinds):
            mask = mask & np.isin(frame.kind, ask.kinds)
        room = np.full(frame.n_nodes, n, dtype=np.int64)
    if ask.cpus:
        room = np.minimum(room, (left.cpu if terms.busy else frame.cpu) // micro_of(ask.cpus))
    if ask.memory_gib:
        room = np.minimum(room, (left.mem if terms.busy else frame.mem) // micro_of(ask.memory_gib))
    return np.where(mask, np.clip(room, 0, n), 0)


def may_hold(frame: Frame, shape: Shape, kind: int, most: Amounts, may_use: BoolArray) -> bool:
    """Whether sums alone leave it open that every group of a shape has a place on nodes of this kind.

    False is certain; True is not: groups are looked at one by one, and fractions not at all.

    Args:
        most: No more than this will be free, on any node and under any limit.
    """
    whole, cpu, mem, head = most
    for ask in shape.asks:
        if not ask.devices:
            continue
        n = ask.n_replicas
        draw = frame.draw(ask.devices, ask.share_steps, kind, ask.peak_w) if frame.has_limits else 0
        room, total = whole_room(
            may_use, frame.nodes_of[kind], whole, cpu, mem, head, frame.paths,
            ask.devices, micro_of(ask.cpus), micro_of(ask.memory_gib), draw, n,
        )  # fmt: skip
        if total < n:
            return False
        if ask.required is not None:
            level, n_level = frame.level[ask.required], frame.n_level[ask.required]
            inside = room * frame.has_level[ask.required]
            if int(domain_sums(level, n_level, inside, inside)[0].max(initial=0)) < n:
                return False
        if (
            draw
            and frame.n_limit_trees == 1
            and most_under_limits(frame.nodes_of[kind], room, head, frame.paths, draw, n) < n
        ):
            return False
    return True


def _free_room(
    frame: Frame, ask: Ask, kind: int, may_use: BoolArray, free: "_Left", shared: IntArray, draw: int
) -> tuple[IntArray, int]:
    """(n,) replicas with devices that each node takes beside what runs, its own limits above it included; their sum."""
    cpu_each, mem_each, most = micro_of(ask.cpus), micro_of(ask.memory_gib), ask.n_replicas
    if ask.devices:
        return whole_room(
            may_use, frame.nodes_of[kind], free.whole, free.cpu, free.mem, free.head, frame.paths,
            ask.devices, cpu_each, mem_each, draw, most,
        )  # fmt: skip
    return fraction_room(
        may_use, frame.nodes_of[kind], shared, frame.offset, free.whole, free.cpu, free.mem, free.head, frame.paths,
        ask.share_steps, cpu_each, mem_each, draw, most,
    )  # fmt: skip


def _place_group(
    frame: Frame, group: int, ask: Ask, kind: int, left: "_Left", terms: Terms, floor: Floor
) -> tuple[list[Share], str] | None:
    n = ask.n_replicas
    draws: IntArray | None = None
    limited = terms.power and frame.has_limits and (ask.devices > 0 or ask.share_steps > 0)
    draw = frame.draw(ask.devices, ask.share_steps, kind, ask.peak_w) if limited else 0
    one_tree = frame.n_limit_trees == 1
    if terms.busy and (ask.devices or ask.share_steps):
        shared = left.whole if ask.devices else left.shared_dev(frame, floor)
        room, total = _free_room(frame, ask, kind, terms.may_use, left, shared, draw)
        if total < n:
            return None
    else:
        room = node_room(frame, ask, kind, left, terms)
        if int(room.sum()) < n:
            return None
        if draw:
            by_node = left.head[frame.paths].min(axis=1) if left.is_touched else floor.tightest(frame)
            room = np.minimum(room, np.maximum(by_node // draw, 0))
            if int(room.sum()) < n:
                return None
    if draw:
        if one_tree and most_under_limits(frame.nodes_of[kind], room, left.head, frame.paths, draw, n) < n:
            return None
        draws = _draws(frame, ask)
    if (
        terms.whether
        and ask.devices
        and not terms.named
        and (ask.spread is None or not terms.spread)
        and (not draw or one_tree)
    ):
        return _somewhere(frame, ask, kind, room, left, terms, draw)
    # The slowest member sets the pace: the fastest nodes that hold the gang come first.
    speeds = frame.speeds[kind] if (ask.devices or ask.share_steps) else ()
    thresholds = speeds if len(speeds) > 1 else (0.0,)
    for slowest in thresholds:
        able = room if slowest == 0.0 else np.where(frame.speed >= slowest, room, 0)
        if int(able.sum()) < n:
            continue
        chosen = _choose(frame, ask, kind, able, n, left, terms, draws)
        if chosen is not None:
            counts, level = chosen
            shares = _name(frame, group, ask, counts, left, terms, floor)
            if shares is not None:
                return shares, level
    return None


def _somewhere(
    frame: Frame, ask: Ask, kind: int, room: IntArray, left: "_Left", terms: Terms, draw: int
) -> tuple[list[Share], str] | None:
    """No share, but the level at which whole devices are found, where all nodes together take the gang.

    So many fit, in whatever order nodes are filled: of a required domain it is enough to know that one takes them.
    """
    required = ask.required if terms.topology else None
    if required is None:
        return [], "anywhere"
    inside = np.where(frame.has_level[required], room, 0)
    for level in LEVELS[: LEVELS.index(required) + 1]:
        if one_domain_holds(
            frame.nodes_of[kind], inside, left.head, frame.paths, draw, ask.n_replicas,
            frame.level[level], frame.n_level[level],
        ):  # fmt: skip
            return [], level
    return None


Counts = list[tuple[int, int]]  # (node, replicas)


def _choose(
    frame: Frame,
    ask: Ask,
    kind: int,
    room: IntArray,
    n: int,
    left: "_Left",
    terms: Terms,
    draws: IntArray | None,
) -> tuple[Counts, str] | None:
    required = ask.required if terms.topology else None
    if required is not None:
        room = np.where(frame.has_level[required], room, 0)
    nodes_of = frame.nodes_of[kind] if ask.devices or ask.share_steps else frame.nodes
    if n == 1 and terms.packing and terms.fragments is not None and (ask.spread is None or not terms.spread):
        best = _least_fragmenting(frame, terms.fragments, ask, nodes_of, room, left)
        return None if best < 0 else ([(best, 1)], "node")
    spare = _spare(frame, ask, room, left)
    spread = _Spreading.of(frame, ask, terms)
    if spread is not None:
        room = np.where(spread.ids != NONE, room, 0)
    elif terms.packing:
        # Best fit: the node left with the least, in the leaf and the spine left with the least.
        leaf, spine = frame.level["leaf"], frame.level["spine"]
        best = best_single(
            nodes_of, room, spare, n, leaf, spine, frame.n_level["leaf"], frame.n_level["spine"]
        )
        if best >= 0:
            return [(best, n)], "node"
    else:
        single = np.flatnonzero(room >= n)
        if len(single):
            return [(int(single[0]), n)], "node"
    nodes = nodes_of[room[nodes_of] > 0]
    for level in LEVELS:
        counts = _in_one_domain(frame, level, nodes, room, spare, n, left, draws, spread)
        if counts is not None:
            return counts, level
        if required == level:
            return None
    fill = _Fill(frame, room, spare, left, draws)
    counts = fill.run(nodes, n, len(LEVELS) - 1) if spread is None else spread.run(fill, nodes, n)
    return None if counts is None else (counts, "anywhere")


def _least_fragmenting(
    frame: Frame, fragments: Fragments, ask: Ask, nodes: IntArray, room: IntArray, left: "_Left"
) -> int:
    """The node on which one replica leaves the least that nobody can use; -1 if none takes it."""
    best = fragments.best(ask, room, nodes, left.present, left.log)
    if not len(best):
        return -1
    if len(best) == 1:
        return int(best[0])
    leaf, spine = frame.level["leaf"], frame.level["spine"]
    spare = _spare(frame, ask, room, left)
    return best_single(best, room, spare, 1, leaf, spine, frame.n_level["leaf"], frame.n_level["spine"])


def _spare(frame: Frame, ask: Ask, room: IntArray, left: "_Left") -> IntArray:
    """(n,) what best fit compares: millionths of devices left on each node that has room."""
    free = np.add.reduceat(left.dev, frame.offset[:-1]) if ask.share_steps else left.whole * FULL
    return np.where(room > 0, free, 0)


def _in_one_domain(
    frame: Frame,
    level: str,
    nodes: IntArray,
    room: IntArray,
    spare: IntArray,
    n: int,
    left: "_Left",
    draws: IntArray | None,
    spread: "_Spreading | None",
) -> Counts | None:
    sums, spares = domain_sums(frame.level[level], frame.n_level[level], room, spare)
    able = np.flatnonzero(sums >= n)
    if not len(able):
        return None
    free = spares[able]
    ids = frame.level[level][nodes]
    depth = LEVELS.index(level) - 1
    for domain in able[np.lexsort((able, sums[able], free))]:
        fill, inside = _Fill(frame, room, spare, left, draws), nodes[ids == domain]
        counts = fill.run(inside, n, depth) if spread is None else spread.run(fill, inside, n)
        if counts is not None:
            return counts
    return None


class _Spreading:
    """How many replicas each domain takes, so that no domain holds too many, or all hold about as many.

    The skew is the most replicas in one domain less the fewest, over the domains in which a healthy node of the type
    could hold a replica when empty.
    """

    def __init__(
        self, frame: Frame, spread: Spread, ids: IntArray, able: BoolArray, already: IntArray | None
    ) -> None:
        self.spread, self.ids = spread, ids
        self.counted = np.unique(ids[able & (ids != NONE)])  # domains over which the skew is counted
        self.held: dict[int, int] = {}
        if already is not None:
            for node in np.flatnonzero(already).tolist():
                self.held[int(ids[node])] = self.held.get(int(ids[node]), 0) + int(already[node])

    @classmethod
    def of(cls, frame: Frame, ask: Ask, terms: Terms) -> "_Spreading | None":
        if ask.spread is None or not terms.spread:
            return None
        healthy = terms.may_use if terms.healthy is None else terms.healthy
        able = healthy & (frame.cpu >= micro_of(ask.cpus)) & (frame.mem >= micro_of(ask.memory_gib))
        if ask.devices or ask.share_steps:
            able = (
                able & np.isin(frame.kind, _kinds_in(terms, ask)) & (frame.n_devices >= max(ask.devices, 1))
            )
        return cls(frame, ask.spread, frame.domain_ids(ask.spread.over), able, terms.already)

    def holds(self) -> bool:
        """Whether the replicas that are there already lie as far apart as they must."""
        most = self.spread.max_per_domain
        if most is not None:
            return max(self.held.values(), default=0) <= most
        counts = dict.fromkeys(self.counted.tolist(), 0) | self.held
        return not counts or max(counts.values()) - min(counts.values()) <= (self.spread.max_skew or 0)

    def run(self, fill: "_Fill", nodes: IntArray, n: int) -> Counts | None:
        """Place n replicas on these nodes; None if they cannot be spread so there."""
        ids = self.ids[nodes]
        inside = np.unique(ids)
        room = {int(d): int(fill.room[nodes[ids == d]].sum()) for d in inside}
        for _ in range(len(inside) + 1):
            shares = self._shares(room, n)
            if shares is None:
                return None
            trial = fill.fresh()
            short = False
            for domain, wanted in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
                got = trial.some(nodes[ids == domain], wanted)
                if got < wanted:
                    room[domain], short = got, True
            if not short:
                return sorted(trial.counts.items())
        return None

    def _shares(self, room: Mapping[int, int], n: int) -> dict[int, int] | None:
        """Replicas each domain takes; None if they do not fit so."""
        most = self.spread.max_per_domain
        if most is not None:
            upper = {d: max(0, min(r, most - self.held.get(d, 0))) for d, r in room.items()}
            return _fewest(upper, n) if sum(upper.values()) >= n else None
        skew = self.spread.max_skew or 0
        counted = [int(d) for d in self.counted]
        total = n + sum(self.held.values())
        held_most = max(self.held.values(), default=0)
        for least in range(total // max(len(counted), 1), -1, -1):
            if held_most > least + skew:
                return None
            lower = {d: max(0, least - self.held.get(d, 0)) for d in counted}
            if any(need > room.get(d, 0) for d, need in lower.items()):
                continue
            upper = {d: max(0, min(r, least + skew - self.held.get(d, 0))) for d, r in room.items()}
            if sum(lower.values()) <= n <= sum(upper.values()):
                return _level(lower, upper, n)
        return None


def is_spread(frame: Frame, ask: Ask, terms: Terms, replicas: IntArray) -> bool:
    """Whether (n,) replicas on each node lie as far apart as their group asks."""
    spreading = _Spreading.of(frame, ask, replace(terms, already=replicas))
    return spreading is None or spreading.holds()


def _kinds_in(terms: Terms, ask: Ask) -> list[int]:
    return [terms.kind] if terms.kind != NONE else list(ask.kinds)


def _fewest(upper: Mapping[int, int], n: int) -> dict[int, int]:
    """n replicas over as few domains as will do, the last in the one they fit best."""
    shares: dict[int, int] = {}
    left = dict(upper)
    while n:
        fitting = [d for d, u in left.items() if u >= n]
        domain = (
            min(fitting, key=lambda d: (left[d], d)) if fitting else max(left, key=lambda d: (left[d], -d))
        )
        shares[domain] = min(n, left.pop(domain))
        n -= shares[domain]
    return {d: k for d, k in shares.items() if k}


def _level(lower: Mapping[int, int], upper: Mapping[int, int], n: int) -> dict[int, int]:
    """n replicas as evenly as the bounds allow."""
    shares = {d: lower.get(d, 0) for d in upper}
    rest = n - sum(shares.values())
    while rest:
        domain = min((d for d in upper if shares[d] < upper[d]), key=lambda d: (shares[d], -upper[d], d))
        shares[domain] += 1
        rest -= 1
    return {d: k for d, k in shares.items() if k}


class _Fill:
    """Fill nodes with replicas: whole subdomains first, then the smallest that takes the rest."""

    def __init__(
        self, frame: Frame, room: IntArray, spare: IntArray, left: "_Left", draws: IntArray | None
    ) -> None:
        self.frame, self.room, self.spare, self.draws = frame, room, spare, draws
        self.start = left.head
        self.head = left.head.copy() if draws is not None else None
        self.counts: dict[int, int] = {}
        self._left = left

    def fresh(self) -> "_Fill":
        """The same, with nothing placed."""
        return _Fill(self.frame, self.room, self.spare, self._left, self.draws)

    def some(self, nodes: IntArray, n: int) -> int:
        """Place up to n replicas on these nodes; how many were placed."""
        done = self._fill(nodes, n, len(LEVELS) - 1)
        for node in nodes.tolist():
            if done == n:
                break
            done += self._take(node, n - done)
        return done

    def run(self, nodes: IntArray, n: int, depth: int) -> Counts | None:
        """Place n replicas on these nodes; None when their domains' limits leave too little."""
        rest = n - self._fill(nodes, n, depth)
        if rest and self.head is not None:
            # A limit cut some domain short; whatever else has room under its limits takes the rest.
            for node in nodes.tolist():
                rest -= self._take(node, rest)
                if not rest:
                    break
        if rest and self.head is not None and self.draws is not None and self.frame.n_limit_trees > 1:
            exact = spread_under_limits(self.frame, nodes, self.room, self.draws, self.start, n)
            return None if exact is None else sorted(exact.items())
        return None if rest else sorted(self.counts.items())

    def _fill(self, nodes: IntArray, n: int, depth: int) -> int:
        """Take up to n, closest first; return how many were taken."""
        done = 0
        if depth < 0:
            for node in self._node_order(nodes, n):
                done += self._take(node, n - done)
                if done == n:
                    break
            return done
        ids = self.frame.level[LEVELS[depth]][nodes]
        distinct, inverse = np.unique(ids, return_inverse=True)
        if len(distinct) == 1 or len(distinct) == len(nodes):
            return self._fill(nodes, n, depth - 1 if len(distinct) == 1 else -1)
        sums = np.bincount(inverse, weights=self.room[nodes])
        free = np.bincount(inverse, weights=self.spare[nodes])
        for i in _largest_then_best_fit(sums, free, n):
            done += self._fill(nodes[inverse == i], min(n - done, int(sums[i])), depth - 1)
            if done == n:
                break
        return done

    def _node_order(self, nodes: IntArray, n: int) -> list[int]:
        order = _largest_then_best_fit(self.room[nodes], self.spare[nodes], n)
        return [int(nodes[i]) for i in order]

    def _take(self, node: int, most: int) -> int:
        free = int(self.room[node]) - self.counts.get(node, 0)
        n = min(most, free)
        if self.head is not None and self.draws is not None and n > 0:
            draw = int(self.draws[node])
            if draw:
                path = self.frame.paths[node]
                n = min(n, max(0, int(self.head[path].min()) // draw))
                self.head[path] -= n * draw
                self.head[-1] = BIG
        if n > 0:
            self.counts[node] = self.counts.get(node, 0) + n
            return n
        return 0


def _largest_then_best_fit(room: IntArray, spare: IntArray, n: int) -> list[int]:
    """Order in which containers are filled: the largest while they are filled whole, then the tightest for the rest."""
    order = np.lexsort((np.arange(len(room)), spare, -room))
    ordered = room[order]
    filled = np.cumsum(ordered)
    whole = int(np.searchsorted(filled, n, side="right"))  # this many are filled completely
    rest = n - (int(filled[whole - 1]) if whole else 0)
    if not rest:
        return [int(i) for i in order]
    tail = order[whole:]
    fits = tail[room[tail] >= rest]
    best = fits[np.lexsort((fits, spare[fits], room[fits]))][:1]
    others = tail[~np.isin(tail, best)]
    return [*map(int, order[:whole]), *map(int, best), *map(int, others)]


def _name(
    frame: Frame, group: int, ask: Ask, counts: Counts, left: "_Left", terms: Terms, floor: Floor
) -> list[Share] | None:
    """Turn counts into shares with device indices."""
    if not terms.busy or (not ask.devices and not ask.share_steps):
        return [Share(group, node, n, ()) for node, n in counts]
    if ask.devices:
        if not terms.named:
            return [Share(group, node, n, ()) for node, n in counts]
        shares = []
        for node, n in counts:
            offset, end = int(frame.offset[node]), int(frame.offset[node + 1])
            first = left.dev if left.is_touched else floor.states[0].dev
            free = np.flatnonzero(first[offset:end] == FULL)
            if len(free) < n * ask.devices:
                return None
            shares.append(Share(group, node, n, tuple(free[: n * ask.devices].tolist())))
        return shares
    shares = []
    for node, n in counts:
        parts = _name_fractions(frame, group, ask, node, n, left, terms, floor)
        if parts is None:
            return None
        shares.extend(parts)
    return shares


def _name_fractions(
    frame: Frame, group: int, ask: Ask, node: int, n: int, left: "_Left", terms: Terms, floor: Floor
) -> list[Share] | None:
    """Put n fractional replicas on a node's devices: the fullest that takes one, before a fresh one."""
    steps, each = ask.share_steps, FULL // ask.share_steps
    offset, end = int(frame.offset[node]), int(frame.offset[node + 1])
    dev = left.dev[offset:end]
    shared = left.shared_dev(frame, floor)[offset:end]
    partly = np.flatnonzero(shared >= steps)
    shares: list[Share] = []
    if n == 1 and terms.packing and terms.fragments is not None:
        d = terms.fragments.device_of(ask, node, left.present, left.log)
        if d >= 0 and (shared[d] >= steps or (dev[d] == FULL and left.whole[node] > 0)):
            return [Share(group, node, 1, (d,) if terms.named or dev[d] < FULL else (), steps)]
    for d in partly[np.lexsort((partly, shared[partly]))].tolist():
        if not n:
            break
        k = min(n, int(shared[d]) // steps)
        shares.append(Share(group, node, k, (d,), k * steps))
        n -= k
    fresh = np.flatnonzero(dev == FULL)
    usable = int(left.whole[node])
    if n and -(-n // each) > min(usable, len(fresh)):
        return None
    for d in fresh.tolist():
        if n <= 0:
            break
        k = min(n, each)
        shares.append(Share(group, node, k, (d,) if terms.named else (), k * steps))
        n -= k
    return sorted(shares, key=lambda s: s.devices)


def kinds_of(shape: Shape) -> tuple[int, ...] | None:
    """Kinds all groups with devices accept, best first; None when no group holds devices."""
    with_devices = [ask for ask in shape.asks if ask.devices or ask.share_steps]
    if not with_devices:
        return None
    first, *others = with_devices
    return tuple(k for k in first.kinds if all(k in ask.kinds for ask in others))


def holds_devices(shape: Shape) -> bool:
    """Whether any group holds devices, or shares of them."""
    return any(ask.devices or ask.share_steps for ask in shape.asks)


def total_steps(shape: Shape) -> int:
    """Millionths of devices the whole gang holds."""
    return sum(
        (ask.devices * FULL if ask.devices else ask.share_steps) * ask.n_replicas for ask in shape.asks
    )

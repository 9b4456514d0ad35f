"""How much of what is free the typical job could not use, by accelerator type.

Of single replicas it is the expected fragmentation of Weng et al. ("Beware of Fragmentation", USENIX ATC 2023): for
each kind of replica the free devices of nodes that cannot hold one, and those that are too full for it, weighted by how
often it is asked for, over all that accept the type. Of gangs it is the free devices outside every domain that could
hold one whole: the narrowest sort of domain that the gang wants or, where it does not say, that could hold it if it
were empty (a node, a scale-up domain, a leaf, a spine, else all nodes of the type), weighted likewise. Nothing is
decided by it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from apps.scheduling.engine.facts import Ask, BoolArray, Gang, IntArray, Shape
from apps.scheduling.engine.fragments import Demand, Present, demand_of_shapes
from apps.scheduling.engine.frame import LEVELS, Frame
from apps.scheduling.engine.kernels import fragmentation
from apps.scheduling.engine.units import FULL, micro_of

Mix = Sequence[tuple[Shape, int]]  # how often each shape is asked for

_MOST_REPLICAS = 32  # kinds of replica, and of gang, that are looked at: the most frequent
_MOST_GANGS = 24
_MOST_LOOKED_AT = 10_000  # gangs
_GOLDEN = (5**0.5 - 1) / 2
_WIDTHS = ("node", *LEVELS, "all")


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Of one accelerator type, in devices of the nodes that take work."""

    kind: int  # position
    free: float
    of_replicas: (
        float | None
    )  # expected, of these, to be of no use to one replica; None: nobody asks for the type
    of_gangs: float | None  # where no gang fits; None: no gang of several replicas asks for the type


def mix_of(gangs: Sequence[Gang], more: Mix = ()) -> Mix:
    """How often each shape is asked for; of very many gangs ten thousand, evenly spread, stand for all.

    Args:
        more: Shapes beside those of the gangs.
    """
    n, each = len(gangs), 1
    if n > _MOST_LOOKED_AT:
        # Not every second or third: arrays and people repeat themselves.
        places = (np.arange(_MOST_LOOKED_AT) * _GOLDEN % 1.0 * n).astype(np.int64)
        gangs, each = [gangs[at] for at in places.tolist()], round(n / _MOST_LOOKED_AT)
    asked = list(map(attrgetter("shape"), gangs))
    counts = Counter(map(id, asked))
    mix = [(shape, counts.pop(id(shape)) * each) for shape in asked if id(shape) in counts]
    return [*mix, *more]


class Typical:
    """What is typically asked for."""

    def __init__(self, mix: Mix, n_kinds: int) -> None:
        self.demand = demand_of_shapes(mix, n_kinds, most=_MOST_REPLICAS)
        self.gangs = _gangs_of(mix)

    def fragmentation(
        self, frame: Frame, is_usable: BoolArray, present: Present
    ) -> tuple[Fragmentation, ...]:
        """The fragmentation of what is free, by type; types without a node that takes work are left out.

        Args:
            present: (dev, cpu, mem) as the state keeps them: free millionths of each device, of each node.
        """
        free, whole = (
            np.bincount(frame.node_of_device, weights=amount, minlength=frame.n_nodes).astype(np.int64)
            for amount in (present[0], present[0] == FULL)
        )
        found = []
        for kind, all_nodes in enumerate(frame.nodes_of):
            nodes = all_nodes[is_usable[all_nodes]]
            if len(nodes):
                halls = _Halls(frame, nodes, whole[nodes], present[1][nodes], present[2][nodes])
                found.append(
                    Fragmentation(
                        kind,
                        int(free[nodes].sum()) / FULL,
                        _of_replicas(frame, nodes, present, self.demand, kind),
                        halls.lost([one for one in self.gangs if kind in one[0].kinds], free[nodes]),
                    )
                )
        return tuple(found)


def fragmentation_of(
    frame: Frame, is_usable: BoolArray, present: Present, mix: Mix
) -> tuple[Fragmentation, ...]:
    """`Typical.fragmentation`, once."""
    return Typical(mix, len(frame.kinds)).fragmentation(frame, is_usable, present)


def _of_replicas(frame: Frame, nodes: IntArray, present: Present, demand: Demand, kind: int) -> float | None:
    asks = demand.accepts[:, kind]
    if not asks.any():
        return None
    fragments = np.zeros(frame.n_nodes, dtype=np.int64)
    weight = demand.weight[asks]
    fragmentation(
        nodes, frame.kind, frame.offset, *present,
        demand.devices[asks], demand.need[asks], demand.cpu[asks], demand.mem[asks],
        np.ascontiguousarray(demand.accepts[asks]), weight, fragments,
    )  # fmt: skip
    return int(fragments[nodes].sum()) / int(weight.sum()) / FULL


def _gangs_of(mix: Mix) -> list[tuple[Ask, int]]:
    """The most frequent groups of several replicas with whole devices, and how often each is asked for."""
    counts: dict[tuple[object, ...], int] = {}
    asks: dict[tuple[object, ...], Ask] = {}
    for shape, n in mix:
        for ask in shape.asks:
            if ask.least > 1 and ask.devices:
                wants = ask.required or ask.preferred or ""
                key = (
                    ask.least,
                    ask.devices,
                    micro_of(ask.cpus),
                    micro_of(ask.memory_gib),
                    wants,
                    tuple(sorted(ask.kinds)),
                )
                counts[key] = counts.get(key, 0) + n
                asks[key] = ask
    order = sorted(counts, key=lambda key: (-counts[key], key))
    return [(asks[key], counts[key]) for key in order[:_MOST_GANGS]]


class _Halls:
    """The nodes of one type that take work, and what is free there."""

    def __init__(self, frame: Frame, nodes: IntArray, whole: IntArray, cpu: IntArray, mem: IntArray) -> None:
        self.whole, self.cpu, self.mem = whole, cpu, mem
        self.all = frame.n_devices[nodes], frame.cpu[nodes], frame.mem[nodes]
        everywhere = np.zeros(len(nodes), dtype=np.int64)
        of_level = {name: frame.level[name][nodes] for name in LEVELS}
        self.domains: dict[str, IntArray] = {"node": np.arange(len(nodes)), **of_level, "all": everywhere}

    def lost(self, gangs: Sequence[tuple[Ask, int]], free: IntArray) -> float | None:
        """Devices that are free outside every domain that could hold a gang, weighted by how often it is asked for.

        Args:
            free: (n,) free millionths of each of the nodes.
        """
        lost = weight = 0
        for ask, n in gangs:
            width = self._width(ask)
            if width is not None:
                domain = self.domains[width]
                room = np.bincount(domain, weights=_room(ask, self.whole, self.cpu, self.mem))
                lost += n * int(free[room[domain] < ask.least].sum())
                weight += n
        return lost / weight / FULL if weight else None

    def _width(self, ask: Ask) -> str | None:
        """The sort of domain in which the gang is at home; None: all nodes together cannot hold it."""
        room = _room(ask, *self.all)
        wished = ask.required or ask.preferred
        first = _WIDTHS.index(wished) if wished in _WIDTHS else 0
        for width in _WIDTHS[first:]:
            if np.bincount(self.domains[width], weights=room).max(initial=0) >= ask.least:
                return width
        return None


def _room(ask: Ask, devices: IntArray, cpu: IntArray, mem: IntArray) -> IntArray:
    """(n,) replicas that each node takes."""
    room = devices // ask.devices
    for needed, there in ((micro_of(ask.cpus), cpu), (micro_of(ask.memory_gib), mem)):
        if needed:
            room = np.minimum(room, there // needed)
    return room

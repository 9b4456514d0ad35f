"""Where single replicas go in a facility whose queue asks for shares of devices: by expected fragmentation.

What is free on a node is fragmented, for one who asks, as far as that one cannot use it: all of it where the node
cannot hold a single replica, else the devices that are too full. Weighted by how often each replica is asked for, this
is the expected fragmentation of the node; a replica goes where it makes that grow least (Weng et al., "Beware of
Fragmentation", USENIX ATC 2023). That measure sees no difference between nodes that nobody typical could use anyway,
nor between emptier and fuller ones that all can use; so a small part of the score pulls to those with the least left.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from apps.scheduling.engine.facts import Ask, BoolArray, Gang, IntArray, Shape
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.kernels import fragmentation, fragmentation_after, look_again
from apps.scheduling.engine.units import BIG, FULL, micro_of

_COVERED = 0.99  # rare replicas beyond this share of all do not count as typical
_MOST_KINDS_OF_ASK = 256
_WEIGHTS = 1 << 13  # weights are whole numbers that add up to about this, so that scores are exact
_PULL_STEPS = (
    FULL // 33
)  # a whole node's devices, more or less free, weigh as much as this much fragmentation
_PULL_CPU = 2  # a whole node's cpus weigh so many times more than its devices
_REMEMBERED = 256  # asks whose scores are kept


Present = tuple[IntArray, IntArray, IntArray]  # (dev, cpu, mem): free millionths of each device, of each node
Log = list[IntArray] | None
_Key = tuple[int, int, int, int, tuple[int, ...]]  # devices, need, cpu, mem, kinds


@dataclass(frozen=True, slots=True)
class Demand:
    """What replicas with devices typically ask for. m: kinds of ask."""

    devices: IntArray  # (m,) whole devices; 0: a share
    need: IntArray  # (m,) millionths of each device
    cpu: IntArray  # (m,) millionths
    mem: IntArray  # (m,)
    accepts: BoolArray  # (m, k) accelerator types
    weight: IntArray  # (m,)

    @property
    def has_shares(self) -> bool:
        return bool((self.devices == 0).any())


def demand_of(gangs: Iterable[Gang], n_kinds: int) -> Demand:
    """How often each kind of replica is asked for by these."""
    shapes: dict[int, Shape] = {}
    n_of_shape: dict[int, int] = {}
    for gang in gangs:
        shape = id(gang.shape)
        shapes[shape] = gang.shape
        n_of_shape[shape] = n_of_shape.get(shape, 0) + 1
    return demand_of_shapes([(shapes[at], n) for at, n in n_of_shape.items()], n_kinds)


def demand_of_shapes(
    mix: Iterable[tuple[Shape, int]], n_kinds: int, *, most: int = _MOST_KINDS_OF_ASK
) -> Demand:
    """How often each kind of replica is asked for.

    Args:
        mix: Shapes, and how often each is asked for.
        most: Kinds of replica; the rarer ones are left out.
    """
    counts: dict[_Key, int] = {}
    for shape, n in mix:
        for ask in shape.asks:
            if ask.devices or ask.share_steps:
                key = _key(ask)
                counts[key] = counts.get(key, 0) + n * ask.n_replicas
    return _demand(counts, n_kinds, most)


def _key(ask: Ask) -> _Key:
    need = FULL if ask.devices else ask.share_steps
    return ask.devices, need, micro_of(ask.cpus), micro_of(ask.memory_gib), tuple(sorted(ask.kinds))


def _demand(counts: dict[_Key, int], n_kinds: int, most: int) -> Demand:
    total = sum(counts.values())
    chosen = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    covered, n = 0, 0
    while n < len(chosen) and n < most and covered < _COVERED * total:
        covered += chosen[n][1]
        n += 1
    chosen = chosen[:n]
    accepts = np.zeros((n, n_kinds), dtype=bool)
    for i, (key, _) in enumerate(chosen):
        accepts[i, list(key[4])] = True
    columns = np.array([key[:4] for key, _ in chosen], dtype=np.int64).reshape(n, 4)
    weight = np.array([max(1, round(count * _WEIGHTS / covered)) for _, count in chosen], dtype=np.int64)
    return Demand(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], accepts, weight)


def _ask_key(ask: Ask) -> tuple[int, int, int, int]:
    return ask.devices, ask.share_steps, micro_of(ask.cpus), micro_of(ask.memory_gib)


class _Scores:
    """(n,) scores of one kind of ask, and when each was worked out."""

    __slots__ = ("device", "score", "version")

    def __init__(self, n_nodes: int) -> None:
        self.score = np.zeros(n_nodes, dtype=np.int64)
        self.device = np.zeros(n_nodes, dtype=np.int64)
        self.version = np.full(n_nodes, -1, dtype=np.int64)


class Fragments:
    """Scores nodes for one replica; remembers them until the node changes."""

    def __init__(self, frame: Frame, demand: Demand) -> None:
        self.frame, self.demand = frame, demand
        n = frame.n_nodes
        self._cpu, self._mem = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
        self._dev = np.full(int(frame.offset[-1]), -1, dtype=np.int64)
        self._version = np.zeros(n, dtype=np.int64)  # of each node, as last seen
        self._latest = 0
        self._log: Log = None  # what was read last, and how far
        self._n_read = 0
        self._all: IntArray = np.arange(n)
        self._before = np.zeros(n, dtype=np.int64)
        self._known: OrderedDict[tuple[int, int, int, int], _Scores] = OrderedDict()
        limited = frame.cpu[frame.cpu < BIG]
        self._most_cpu = max(1, int(limited.max(initial=1)))
        self._most_devices = max(1, int(frame.n_devices.max(initial=1)))

    def scores(self, ask: Ask, able: BoolArray, dev: IntArray, cpu: IntArray, mem: IntArray) -> _Scores:
        """What one replica of this group would do to each node that could take it; the least is the best.

        Args:
            able: (n,) nodes that are looked at.
            dev: (d,) free millionths of each device; cpu, mem: (n,) free millionths.

        Returns:
            Scores of the nodes that are looked at, and the device (within its node) a share would go to.
        """
        return self._scores(ask, np.flatnonzero(able), (dev, cpu, mem), None)

    def best(self, ask: Ask, room: IntArray, nodes: IntArray, present: Present, log: Log) -> IntArray:
        """The nodes with the least score of those that have room.

        Args:
            room: (n,) replicas that each node takes.
            nodes: Positions of the nodes that are looked at.
            present: (dev, cpu, mem) as for `scores`.
            log: On which nodes something has changed, in turn, as the state keeps it; None: nobody knows.
        """
        able = nodes[room[nodes] > 0]
        score = self._scores(ask, able, present, log).score[able]
        return able[score == score.min()] if len(able) else able

    def device_of(self, ask: Ask, node: int, present: Present, log: Log) -> int:
        """The device, within its node, to which a share would go; negative: none."""
        return int(self._scores(ask, np.array([node]), present, log).device[node])

    def _scores(self, ask: Ask, nodes: IntArray, present: Present, log: Log) -> _Scores:
        self._look(*present, log)
        key = _ask_key(ask)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Scores(self.frame.n_nodes)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        todo = nodes[known.version[nodes] != self._version[nodes]]
        if len(todo):
            d, frame = self.demand, self.frame
            fragmentation_after(
                todo, frame.kind, frame.offset, *present,
                d.devices, d.need, d.cpu, d.mem, d.accepts, d.weight, self._before,
                ask.devices, ask.share_steps, key[2], key[3],
                _PULL_STEPS, _PULL_CPU, self._most_devices, self._most_cpu, _WEIGHTS,
                known.score, known.device,
            )  # fmt: skip
            known.version[todo] = self._version[todo]
        return known

    def last_score(self, ask: Ask, node: int) -> int:
        """The score with which this node was chosen just now."""
        return int(self._known[_ask_key(ask)].score[node])

    def total(self, dev: IntArray, cpu: IntArray, mem: IntArray) -> tuple[float, float]:
        """Expected devices that are free but of no use, and free devices, over all nodes."""
        self._look(dev, cpu, mem, None)
        weight = max(1, int(self.demand.weight.sum()))
        return int(self._before.sum()) / weight / FULL, int(dev.sum()) / FULL

    def _look(self, dev: IntArray, cpu: IntArray, mem: IntArray, log: Log) -> None:
        """Note which nodes are not what they were when last seen."""
        frame = self.frame
        nodes = self._all
        if log is not None and log is self._log:
            if len(log) == self._n_read:
                return
            nodes = log[-1] if len(log) == self._n_read + 1 else np.concatenate(log[self._n_read :])
            if len(nodes) > frame.n_nodes:
                nodes = self._all
        self._log, self._n_read = log, 0 if log is None else len(log)
        d = self.demand
        self._latest += 1
        changed = look_again(
            nodes, frame.offset, dev, cpu, mem, self._dev, self._cpu, self._mem, self._version, self._latest
        )
        fragmentation(
            changed, frame.kind, frame.offset, dev, cpu, mem,
            d.devices, d.need, d.cpu, d.mem, d.accepts, d.weight, self._before,
        )  # fmt: skip

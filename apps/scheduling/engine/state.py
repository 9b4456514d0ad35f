"""What is left at one instant, and charging work against it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apps.scheduling.engine.facts import NONE, Ask, Gang, IntArray, Placing
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.quota import QuotaTree
from apps.scheduling.engine.units import BIG, FULL, micro_of


@dataclass(frozen=True, slots=True)
class Charge:
    """What one placing takes: per share of it, exact millionths."""

    nodes: IntArray  # (s,)
    whole: IntArray  # (s,) devices of each share, fractions rounded up
    unnamed: IntArray  # (s,) those of them that have no device yet: they are only counted
    cpu: IntArray
    mem: IntArray
    draw: IntArray  # (s,) microwatts above idle
    devices: IntArray  # (d,) flat positions of the named devices, each once
    taken: IntArray  # (d,) millionths of each
    team: int
    quota: tuple[tuple[int, int], ...]  # (kind, millionths of devices)


def charge_of(frame: Frame, gang: Gang, placing: Placing) -> Charge:
    """The charge of a gang's placing on its nodes, devices, domains and quota."""
    n = len(placing)
    nodes = np.fromiter((share.node for share in placing), dtype=np.int64, count=n)
    whole, unnamed = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    cpu, mem, draw = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    taken: dict[int, int] = {}
    quota: dict[int, int] = {}
    for i, share in enumerate(placing):
        ask = gang.shape.asks[share.group]
        kind = int(frame.kind[share.node])
        if ask.cpus:
            cpu[i] = micro_of(ask.cpus) * share.n_replicas
        if ask.memory_gib:
            mem[i] = micro_of(ask.memory_gib) * share.n_replicas
        if not ask.devices and not ask.share_steps:
            continue
        draw[i] = frame.draw(ask.devices, ask.share_steps, kind, ask.peak_w) * share.n_replicas
        quota[kind] = quota.get(kind, 0) + steps_of(ask) * share.n_replicas
        whole[i] = ask.devices * share.n_replicas or -(-share.n_replicas // (FULL // ask.share_steps))
        if not share.devices:
            unnamed[i] = whole[i]
            continue
        offset = int(frame.offset[share.node])
        for device in share.devices:
            taken[offset + device] = taken.get(offset + device, 0) + share.share_steps
    return Charge(
        nodes,
        whole,
        unnamed,
        cpu,
        mem,
        draw,
        np.fromiter(taken.keys(), dtype=np.int64, count=len(taken)),
        np.fromiter(taken.values(), dtype=np.int64, count=len(taken)),
        gang.team,
        tuple(sorted(quota.items())),
    )


def steps_of(ask: Ask) -> int:
    """Millionths of devices one replica holds."""
    return ask.devices * FULL if ask.devices else ask.share_steps


class State:
    """Free devices, cpus, memory, headroom and used quota at one instant.

    Attributes:
        whole: (n,) wholly free devices that nothing is promised to.
        dev: (d,) free millionths of each device, by flat position; promises that name no device are not in it.
        cpu, mem: (n,) free millionths.
        head: (l + 1,) microwatts left under each limited domain; the last entry stands for "no limit".
        use: (t, k) quota in use.
        booked: per booking, (n,) devices that its own teams hold of it.
    """

    __slots__ = ("at_s", "booked", "cpu", "dev", "head", "mem", "use", "whole")

    def __init__(
        self,
        at_s: float,
        whole: IntArray,
        dev: IntArray,
        cpu: IntArray,
        mem: IntArray,
        head: IntArray,
        use: IntArray,
        booked: dict[int, IntArray],
    ) -> None:
        self.at_s, self.whole, self.dev, self.cpu, self.mem = at_s, whole, dev, cpu, mem
        self.head, self.use, self.booked = head, use, booked

    @classmethod
    def empty(cls, frame: Frame, tree: QuotaTree, at_s: float) -> "State":
        """Everything free."""
        return cls(
            at_s,
            frame.n_devices.astype(np.int64),
            np.full(int(frame.offset[-1]), FULL, dtype=np.int64),
            frame.cpu.copy(),
            frame.mem.copy(),
            frame.headroom.copy(),
            np.zeros((len(tree.teams), tree.n_kinds), dtype=np.int64),
            {},
        )

    def copy(self, at_s: float) -> "State":
        return State(
            at_s,
            self.whole.copy(),
            self.dev.copy(),
            self.cpu.copy(),
            self.mem.copy(),
            self.head.copy(),
            self.use.copy(),
            {b: used.copy() for b, used in self.booked.items()},
        )

    def charge(
        self, frame: Frame, tree: QuotaTree, charge: Charge, sign: int, bookings: Sequence[int] = ()
    ) -> None:
        """Take (sign 1) or give back (sign -1) what a placing holds."""
        nodes = charge.nodes
        if len(charge.devices):
            before = self.dev[charge.devices]
            after = before - sign * charge.taken
            self.dev[charge.devices] = after
            freed = (after == FULL).astype(np.int64) - (before == FULL)
            np.add.at(self.whole, frame.node_of_device[charge.devices], freed)
        if charge.unnamed.any():
            np.subtract.at(self.whole, nodes, sign * charge.unnamed)
        if charge.cpu.any():
            np.subtract.at(self.cpu, nodes, sign * charge.cpu)
        if charge.mem.any():
            np.subtract.at(self.mem, nodes, sign * charge.mem)
        if frame.has_limits and charge.draw.any():
            for column in range(frame.paths.shape[1]):
                np.subtract.at(self.head, frame.paths[nodes, column], sign * charge.draw)
            self.head[-1] = BIG
        if charge.team != NONE:
            for kind, steps in charge.quota:
                tree.charge(self.use, charge.team, kind, sign * steps)
        for b in bookings:
            used = self.booked.get(b)
            if used is None:
                used = self.booked[b] = np.zeros(frame.n_nodes, dtype=np.int64)
            np.add.at(used, nodes, sign * charge.whole)


class Floor:
    """The least that is left at any instant of a window: what a placing that lasts through it may take.

    Args:
        states: What is left at the start of the window and at every later instant at which something is promised.
        holds: Per state, (n,) devices that belong to others' bookings then; None where there are none.
    """

    __slots__ = ("cpu", "dev", "head", "mem", "states", "whole", "wholes")

    def __init__(self, states: Sequence[State], holds: Sequence[IntArray | None] | None = None) -> None:
        first = states[0]
        self.states = tuple(states)
        if holds is None or all(hold is None for hold in holds):
            wholes = [s.whole for s in states]
        else:
            wholes = [
                s.whole if hold is None else s.whole - hold for s, hold in zip(states, holds, strict=True)
            ]
        self.wholes = wholes
        if len(states) == 1:
            self.whole, self.dev, self.cpu, self.mem, self.head = (
                wholes[0],
                first.dev,
                first.cpu,
                first.mem,
                first.head,
            )
            return
        self.whole = np.minimum.reduce(wholes)
        self.dev = np.minimum.reduce([s.dev for s in states])
        self.cpu = np.minimum.reduce([s.cpu for s in states])
        self.mem = np.minimum.reduce([s.mem for s in states])
        self.head = np.minimum.reduce([s.head for s in states])

    def shared_dev(self, frame: Frame) -> IntArray:
        """(d,) millionths a fraction may take of each device that is shared already, through the whole window.

        A device that empties within the window may be promised whole by then; sharing it on would break the promise.
        """
        shared = np.where(self.dev < FULL, self.dev, 0)
        for state, whole in zip(self.states[1:], self.wholes[1:], strict=True):
            emptied = (state.dev == FULL) & (shared > 0)
            if emptied.any():
                per_node = np.bincount(frame.node_of_device[emptied], minlength=frame.n_nodes)
                broken = per_node > np.maximum(whole, 0)
                shared = np.where(emptied & broken[frame.node_of_device], 0, shared)
        return shared

"""What is left at one instant, and charging work against it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.scheduling.engine.facts import Ask, Gang, IntArray, Placing
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.kernels import (
    charge_state,
    keep_emptied,
    least_of,
    lower_at,
    quota_left,
    refresh_prefix,
    refresh_prefix_at,
    shareable,
)
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
    team: int  # the account it counts at; see QuotaTree
    kinds: IntArray  # (q,) columns of quota it counts in: kinds it holds devices of, and running jobs
    steps: IntArray  # (q,) millionths of each


def charge_of(frame: Frame, tree: QuotaTree, gang: Gang, placing: Placing) -> Charge:
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
    account = tree.account(gang)
    if tree.limits_jobs(account):
        quota[tree.jobs] = FULL
    return Charge(
        nodes,
        whole,
        unnamed,
        cpu,
        mem,
        draw,
        np.fromiter(taken.keys(), dtype=np.int64, count=len(taken)),
        np.fromiter(taken.values(), dtype=np.int64, count=len(taken)),
        account,
        np.array(sorted(quota), dtype=np.int64),
        np.array([quota[k] for k in sorted(quota)], dtype=np.int64),
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
        use: (t, k) quota in use, by account and column.
        booked: per booking, (n,) whole devices that its own teams hold of it.
        parts: per booking, by flat position, millionths of a device that its own teams hold as fractions.
        log: the nodes on which something was charged, in turn, where somebody keeps it; None elsewhere.
    """

    __slots__ = ("at_s", "booked", "cpu", "dev", "head", "log", "mem", "parts", "use", "whole")

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
        parts: dict[int, dict[int, int]],
    ) -> None:
        self.at_s, self.whole, self.dev, self.cpu, self.mem = at_s, whole, dev, cpu, mem
        self.head, self.use, self.booked, self.parts = head, use, booked, parts
        self.log: list[IntArray] | None = None

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
            np.zeros_like(tree.subtree),
            {},
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
            {b: parts.copy() for b, parts in self.parts.items()},
        )

    def charge(
        self, frame: Frame, tree: QuotaTree, charge: Charge, sign: int, bookings: Sequence[int] = ()
    ) -> None:
        """Take (sign 1) or give back (sign -1) what a placing holds."""
        charge_state(
            self.whole,
            self.dev,
            self.cpu,
            self.mem,
            self.head,
            charge.nodes,
            charge.unnamed,
            charge.cpu,
            charge.mem,
            charge.draw,
            charge.devices,
            charge.taken,
            frame.node_of_device,
            frame.paths,
            self.use,
            charge.team,
            charge.kinds,
            charge.steps,
            tree.parents,
            tree.kept,
            sign,
        )
        self.book(frame, charge, sign, bookings)

    def book(self, frame: Frame, charge: Charge, sign: int, bookings: Sequence[int]) -> None:
        """Count what a placing holds of the bookings its team may use."""
        if not bookings:
            return
        is_whole = charge.taken == FULL
        whole_at = frame.node_of_device[charge.devices[is_whole]]
        fractions = list(
            zip(charge.devices[~is_whole].tolist(), charge.taken[~is_whole].tolist(), strict=True)
        )
        for b in bookings:
            used = self.booked.get(b)
            if used is None:
                used = self.booked[b] = np.zeros(frame.n_nodes, dtype=np.int64)
            np.add.at(used, charge.nodes, sign * charge.unnamed)
            np.add.at(used, whole_at, sign)
            if fractions:
                parts = self.parts.setdefault(b, {})
                for device, steps in fractions:
                    held = parts.pop(device, 0) + sign * steps
                    if held:
                        parts[device] = held

    def own(self, booking: int) -> IntArray:
        """Flat positions of the devices of which only the teams of a booking hold fractions, in order.

        Such a device counts as one the booking has in use, and what is left of it stays with the booking: as a part
        of something else, its next team mate would find it gone.
        """
        parts = self.parts.get(booking)
        if not parts:
            return np.zeros(0, dtype=np.int64)
        return np.array(
            sorted(d for d, steps in parts.items() if int(self.dev[d]) + steps >= FULL), dtype=np.int64
        )

    def in_use(self, frame: Frame, booking: int) -> IntArray:
        """(n,) devices of each node that a booking's own teams have in use of it."""
        used = self.booked.get(booking)
        if used is None:
            return np.zeros(frame.n_nodes, dtype=np.int64)
        own = self.own(booking)
        if len(own):
            used = used + np.bincount(frame.node_of_device[own], minlength=frame.n_nodes)
        return used


# (order, dev, whole, devices that have less free later): dev and whole by row.
Rows = tuple[IntArray, IntArray, IntArray, IntArray]


class Pool:
    """The states of now and of every pinch in one block of arrays, with the least up to each of them kept at hand.

    Args:
        now: The first state; its arrays move into the pool.
    """

    def __init__(self, frame: Frame, tree: QuotaTree, now: State) -> None:
        self._tree = tree
        self._paths = frame.paths
        self._capacity = 0
        self._order: IntArray = np.zeros(0, dtype=np.int64)
        self._states: list[State] = []
        self._n = 0
        self._free: list[int] = []
        self._grow(now, 8)
        self.insert(0, now)
        self._log: list[IntArray] = []
        now.log = self._log

    _FIELDS = ("whole", "cpu", "mem", "head")
    _KEPT = (*_FIELDS, "dev")  # of the latter no least is at hand

    def _grow(self, like: State, capacity: int) -> None:
        old_rows = getattr(self, "_rows", None)
        self._rows = {f: np.zeros((capacity, len(getattr(like, f))), dtype=np.int64) for f in self._KEPT}
        self._least = {f: np.zeros((capacity, len(getattr(like, f))), dtype=np.int64) for f in self._FIELDS}
        self._uses = np.zeros((capacity, *like.use.shape), dtype=np.int64)
        order = np.zeros(capacity, dtype=np.int64)
        order[: self._n] = self._order[: self._n]
        self._order = order
        self._free.extend(range(self._capacity, capacity))
        self._capacity = capacity
        if old_rows is not None:
            for state, row in zip(self._states, self._order[: self._n].tolist(), strict=True):
                self._adopt(state, row)
            self._refresh(0)

    def _adopt(self, state: State, row: int) -> None:
        """Move a state's arrays into the pool; it keeps views of them."""
        for name in self._KEPT:
            self._rows[name][row] = getattr(state, name)
            setattr(state, name, self._rows[name][row])
        self._uses[row] = state.use
        state.use = self._uses[row]

    def insert(self, position: int, state: State) -> None:
        """Take in a state as the position-th in order of time."""
        if self._n == self._capacity:
            self._grow(state, 2 * self._capacity)
        row = self._free.pop(0)
        self._adopt(state, row)
        self._states.insert(position, state)
        self._order[position + 1 : self._n + 1] = self._order[position : self._n].copy()
        self._order[position] = row
        self._n += 1
        self._refresh(position)

    def rows(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """(order, whole, cpu, mem, head), the latter by row."""
        rows = self._rows
        return self._order[: self._n], rows["whole"], rows["cpu"], rows["mem"], rows["head"]

    def rows_to_charge(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
        """(order, whole, cpu, mem, head, dev), all but the first by row."""
        return *self.rows(), self._rows["dev"]

    @property
    def uses(self) -> IntArray:
        """(rows, t, k) quota in use."""
        return self._uses

    def _refresh(self, first: int) -> None:
        for name in self._FIELDS:
            refresh_prefix(self._order, first, self._n, self._rows[name], self._least[name])

    def changed(self) -> None:
        """Something was charged anywhere, in any of the states."""
        self._log.append(np.arange(self._rows["whole"].shape[1]))
        self._refresh(0)

    def touched(self, nodes: IntArray) -> None:
        """Something was charged on these nodes, in any of the states."""
        self._log.append(nodes)
        refresh: Any = refresh_prefix_at  # its arguments come in blocks
        rows = tuple(self._rows[name] for name in self._FIELDS)
        least = tuple(self._least[name] for name in self._FIELDS)
        refresh(self._order, self._n, rows, least, nodes, self._paths)

    def least(self, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """(whole, cpu, mem, head): the least over the first n states."""
        whole, cpu, mem, head = (self._least[name][n - 1] for name in self._FIELDS)
        return whole, cpu, mem, head

    def between(self, low: int, high: int) -> "Rows":
        """Where the devices of the states low..high - 1 lie."""
        nothing = np.zeros(0, dtype=np.int64)
        return self._order[low:high], self._rows["dev"], self._rows["whole"], nothing

    def least_with(self, first: State, low: int, high: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """(whole, cpu, mem, head): the least over a state of its own and the pool's states low..high - 1."""
        order = self._order[low:high]
        whole, cpu, mem, head = (least_of(getattr(first, f), self._rows[f], order) for f in self._FIELDS)
        return whole, cpu, mem, head

    def quota_left_between(self, low: int, high: int, team: int, kind: int) -> int:
        """The least a team may still take of a kind at the pool's instants low..high - 1, millionths."""
        t, order = self._tree, self._order[low:high]
        if not len(order):
            return BIG
        return int(
            quota_left(order, len(order), self._uses, team, kind, t.parents, t.subtree, t.kept, t.borrow)
        )

    def most_used(self, n: int, account: int, column: int) -> int:
        """The most that is in use there at any of the first n instants, millionths."""
        return int(self._uses[self._order[:n], account, column].max())

    def quota_left(self, n: int, team: int, kind: int) -> int:
        """The least a team may still take of a kind at any of the first n instants, millionths."""
        t = self._tree
        return int(quota_left(self._order, n, self._uses, team, kind, t.parents, t.subtree, t.kept, t.borrow))


class Floor:
    """The least that is left at any instant of a window: what a placing that lasts through it may take.

    Args:
        states: What is left at the start of the window and at every later instant at which something is promised.
        holds: Per state, (n,) devices that belong to others' bookings then; None where there are none.
        least: (whole, cpu, mem, head) over all states, where somebody has kept it.
        is_freer_later: No device that is named, but those in `later`, has less free in a later state than in the first.
        later: Where the devices of the later states lie, where somebody has them in a block.
        kept: Flat positions of devices that are shared already, by others' bookings.
    """

    __slots__ = (
        "_dev",
        "_kept",
        "_later",
        "_shared",
        "_tightest",
        "cpu",
        "head",
        "mem",
        "states",
        "whole",
        "wholes",
    )

    def __init__(
        self,
        states: Sequence[State],
        holds: Sequence[IntArray | None] | None = None,
        least: tuple[IntArray, IntArray, IntArray, IntArray] | None = None,
        *,
        is_freer_later: bool = False,
        later: Rows | None = None,
        kept: IntArray | None = None,
    ) -> None:
        first = states[0]
        self._kept = kept
        self._later = later
        self.states = states
        self._dev: IntArray | None = None
        if len(states) == 1 or (is_freer_later and (later is None or not len(later[3]))):
            self._dev = first.dev
        self._tightest: IntArray | None = None
        self._shared: IntArray | None = None
        is_held = holds is not None and any(hold is not None for hold in holds)
        self.wholes: Sequence[IntArray] | None = None
        if holds is not None and is_held:
            self.wholes = [
                s.whole if hold is None else s.whole - hold for s, hold in zip(states, holds, strict=True)
            ]
        if least is None and len(states) == 1:
            least = (first.whole, first.cpu, first.mem, first.head)
        elif least is None:
            least = (
                np.minimum.reduce([s.whole for s in states]),
                np.minimum.reduce([s.cpu for s in states]),
                np.minimum.reduce([s.mem for s in states]),
                np.minimum.reduce([s.head for s in states]),
            )
        self.whole, self.cpu, self.mem, self.head = least
        if self.wholes is not None:
            self.whole = np.minimum.reduce(self.wholes)

    @property
    def dev(self) -> IntArray:
        """(d,) least free millionths of each device; only fractions need it."""
        if self._dev is None:
            if self._later is None:
                self._dev = np.minimum.reduce([s.dev for s in self.states])
            else:
                order, rows, _, devices = self._later
                self._dev = self.states[0].dev.copy()
                lower_at(self._dev, rows, order, devices)
        return self._dev

    def tightest(self, frame: Frame) -> IntArray:
        """(n,) microwatts left under the tightest limit above each node."""
        if self._tightest is None:
            self._tightest = self.head[frame.paths].min(axis=1)
        return self._tightest

    def shared_dev(self, frame: Frame) -> IntArray:
        """(d,) millionths a fraction may take of each device that is shared already, through the whole window.

        A device that empties within the window may be promised whole by then; sharing it on would break the promise.
        """
        if self._shared is None:
            self._shared = self._shareable(frame)
            if self._kept is not None:
                self._shared[self._kept] = 0
        return self._shared

    def _shareable(self, frame: Frame) -> IntArray:
        if self._later is not None and self.wholes is None:
            return shareable(self.dev, self.whole, frame.offset, *self._later[:3])
        shared = np.where(self.dev < FULL, self.dev, 0)
        if not shared.any():
            return shared
        nodes = np.unique(frame.node_of_device[np.flatnonzero(shared)])
        wholes = self.wholes or [state.whole for state in self.states]
        for state, whole in zip(self.states[1:], wholes[1:], strict=True):
            keep_emptied(shared, state.dev, whole, self.whole, frame.offset, nodes)
        return shared

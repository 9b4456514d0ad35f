"""What comes: when running work gives devices back, what is booked, and what has been promised to waiting jobs."""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from apps.scheduling.engine.facts import NONE, Booking, Gang, IntArray, Snapshot
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.quota import QuotaTree
from apps.scheduling.engine.state import Charge, State, charge_of

OVERDUE_S = 1.0  # work past its limit that still holds devices is expected to be gone this much later


@dataclass(frozen=True, slots=True)
class _Coming:
    at_s: float
    order: int  # releases (0) before grants (1)
    sign: int
    charge: Charge
    bookings: tuple[int, ...]


class Calendar:
    """The present state, and how it changes by itself.

    A pinch is the state at an instant at which something new is taken: the start of a promise or of a booking. What
    starts now and lasts beyond a pinch must fit at the pinch too; between pinches things only get freer.
    """

    def __init__(self, frame: Frame, tree: QuotaTree, snapshot: Snapshot) -> None:
        self.frame, self.tree = frame, tree
        self.now_s = snapshot.now_s
        live = [i for i, b in enumerate(snapshot.bookings) if b.end_s > self.now_s]
        self.bookings = [snapshot.bookings[i] for i in live]
        self.position = {i: position for position, i in enumerate(live)}  # of a snapshot's booking, here
        self.now = State.empty(frame, tree, self.now_s)
        self._coming: list[_Coming] = []
        self._allowed: dict[int, tuple[int, ...]] = {}
        self._teams_of_booking = [self._with_descendants(b.teams) for b in self.bookings]
        for running in snapshot.running:
            charge = charge_of(frame, running.gang, running.placing)
            allowed = self.allowed(running.gang)
            self.now.charge(frame, tree, charge, 1, allowed)
            if running.ends_s != inf:
                end = running.ends_s if running.ends_s > self.now_s else self.now_s + OVERDUE_S
                self._coming.append(_Coming(end, 0, -1, charge, allowed))
        self._coming.sort(key=lambda c: (c.at_s, c.order))
        self.pinches: list[State] = []
        self.booked_nodes: list[IntArray] = []
        for b in self.bookings:
            self.booked_nodes.append(np.zeros(frame.n_nodes, dtype=np.int64))
            if b.start_s > self.now_s:
                self._pinch(b.start_s)
        for i, b in enumerate(self.bookings):
            self.booked_nodes[i] = self._resolve(i, b, snapshot)

    # -- bookings ---------------------------------------------------------------------------------------------------

    def _with_descendants(self, teams: frozenset[int]) -> frozenset[int]:
        return frozenset(i for i in range(len(self.tree.teams)) if not teams.isdisjoint(self.tree.path(i)))

    def allowed(self, gang: Gang) -> tuple[int, ...]:
        """Positions of the bookings this gang's team may use."""
        if gang.team not in self._allowed:
            self._allowed[gang.team] = tuple(
                i
                for i, teams in enumerate(self._teams_of_booking)
                if gang.team != NONE and gang.team in teams
            )
        return self._allowed[gang.team]

    def _resolve(self, index: int, booking: Booking, snapshot: Snapshot) -> IntArray:
        """(n,) devices of each node that a booking means."""
        frame = self.frame
        meant = np.zeros(frame.n_nodes, dtype=np.int64)
        if booking.nodes:
            at = np.array(booking.nodes, dtype=np.int64)
            meant[at] = frame.n_devices[at]
            return meant
        # An amount: the nodes on which it can be had when it starts, in as few and as small domains as will do.
        at_start = self.now if booking.start_s <= self.now_s else self._at(booking.start_s)
        free = at_start.whole + at_start.booked.get(index, 0)
        for other in range(index):
            if _overlap(self.bookings[other], booking):
                free = free - self.booked_nodes[other]
        able = snapshot.is_usable & frame.kind_mask[booking.kind]
        free = np.where(able, np.maximum(free, 0), 0)
        nodes = np.flatnonzero(free)
        if booking.within is not None:
            domain = frame.ancestor(booking.within)
            nodes = nodes[domain[nodes] != NONE]
            sums = np.bincount(domain[nodes], weights=free[nodes]) if len(nodes) else np.zeros(1)
            enough = np.flatnonzero(sums >= booking.n_devices)
            chosen = int(enough[np.argmin(sums[enough])]) if len(enough) else int(np.argmax(sums))
            nodes = nodes[domain[nodes] == chosen]
        used = at_start.booked.get(index)
        held = used[nodes] if used is not None else np.zeros(len(nodes), dtype=np.int64)
        # Where its own jobs run already; then what is not free yet, so that others may use what is free until then.
        order = np.lexsort((nodes, -free[nodes], np.minimum(self.now.whole[nodes], free[nodes]), -held))
        rest = booking.n_devices
        for node in nodes[order].tolist():
            meant[node] = min(rest, int(free[node]))
            rest -= int(meant[node])
            if not rest:
                break
        return meant

    def hold(self, state: State, gang: Gang, until_s: float) -> IntArray | None:
        """(n,) devices that at this instant belong to bookings the gang may not use; None where there are none."""
        total: IntArray | None = None
        allowed = self.allowed(gang)
        for i, b in enumerate(self.bookings):
            if i in allowed or (b.start_s >= until_s and b.is_flexible):
                continue
            if b.start_s <= state.at_s < b.end_s or (not b.is_flexible and state.at_s < b.end_s):
                used = state.booked.get(i)
                left = self.booked_nodes[i] if used is None else np.maximum(0, self.booked_nodes[i] - used)
                total = left if total is None else total + left
        return total

    def closed(self, gang: Gang, start_s: float, until_s: float) -> IntArray | None:
        """Positions of nodes that a booking of named nodes closes to this gang in [start_s, until_s)."""
        allowed = self.allowed(gang)
        shut: list[int] = []
        for i, b in enumerate(self.bookings):
            if (
                b.nodes
                and i not in allowed
                and b.end_s > start_s
                and (b.start_s < until_s or not b.is_flexible)
            ):
                shut.extend(b.nodes)
        return np.array(shut, dtype=np.int64) if shut else None

    # -- time -------------------------------------------------------------------------------------------------------

    def _at(self, at_s: float) -> State:
        state = self.now.copy(at_s)
        for coming in self._coming:
            if coming.at_s > at_s:
                break
            state.charge(self.frame, self.tree, coming.charge, coming.sign, coming.bookings)
        return state

    def _pinch(self, at_s: float) -> None:
        position = bisect_right([p.at_s for p in self.pinches], at_s)
        if position and self.pinches[position - 1].at_s == at_s:
            return
        self.pinches.insert(position, self._at(at_s))

    def window(self, first: State, until_s: float) -> list[State]:
        """The first state, and every later pinch before the end."""
        return [first, *(p for p in self.pinches if first.at_s < p.at_s < until_s)]

    def start(self, gang: Gang, charge: Charge, end_s: float) -> None:
        """Something starts now and is expected to give back at end_s."""
        allowed = self.allowed(gang)
        self.now.charge(self.frame, self.tree, charge, 1, allowed)
        for pinch in self.pinches:
            if pinch.at_s < end_s:
                pinch.charge(self.frame, self.tree, charge, 1, allowed)
        if end_s != inf:
            insort(self._coming, _Coming(end_s, 0, -1, charge, allowed), key=lambda c: (c.at_s, c.order))

    def promise(self, gang: Gang, charge: Charge, start_s: float, end_s: float) -> None:
        """Something is promised to start later."""
        allowed = self.allowed(gang)
        self._pinch(start_s)
        for pinch in self.pinches:
            if start_s <= pinch.at_s < end_s:
                pinch.charge(self.frame, self.tree, charge, 1, allowed)
        insort(self._coming, _Coming(start_s, 1, 1, charge, allowed), key=lambda c: (c.at_s, c.order))
        if end_s != inf:
            insort(self._coming, _Coming(end_s, 0, -1, charge, allowed), key=lambda c: (c.at_s, c.order))

    def states(self, extra_times: Sequence[float] = ()) -> Iterator[State]:
        """The state after each coming change, in order of time; one object, changed in place."""
        state = self.now.copy(self.now_s)
        marks = sorted(
            t for t in {*extra_times, *(b.end_s for b in self.bookings)} if t > self.now_s and t != inf
        )
        coming = self._coming
        i = m = 0
        while i < len(coming) or m < len(marks):
            next_s = min(coming[i].at_s if i < len(coming) else inf, marks[m] if m < len(marks) else inf)
            while i < len(coming) and coming[i].at_s == next_s:
                state.charge(self.frame, self.tree, coming[i].charge, coming[i].sign, coming[i].bookings)
                i += 1
            while m < len(marks) and marks[m] == next_s:
                m += 1
            state.at_s = next_s
            yield state

    def next_change_s(self) -> float:
        """When the next running work is expected to end, or a booking to begin or end."""
        times = [c.at_s for c in self._coming[:1]]
        times += [t for b in self.bookings for t in (b.start_s, b.end_s) if t > self.now_s]
        return min(times, default=inf)


def _overlap(a: Booking, b: Booking) -> bool:
    return a.start_s < b.end_s and b.start_s < a.end_s

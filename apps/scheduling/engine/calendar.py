"""What comes: when running work gives devices back, what is booked, and what has been promised to waiting jobs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from apps.scheduling.engine.caps import may_pause, under_cap
from apps.scheduling.engine.facts import (
    NONE,
    Booking,
    BoolArray,
    CapChange,
    FloatArray,
    Gang,
    IntArray,
    LimitChange,
    Placing,
    Running,
    Shape,
    Snapshot,
)
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.kernels import advance, charge_rows, seek
from apps.scheduling.engine.quota import QuotaTree
from apps.scheduling.engine.state import Charge, Floor, Pool, State, charge_of
from apps.scheduling.engine.units import BIG, FULL, micro_of

OVERDUE_S = 1.0  # work past its limit that still holds devices is expected to be gone this much later


class _Coming:
    """What will be given back or taken, in order of time: charges in one block, and a timeline of positions in it."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []
        self.bookings: list[tuple[int, ...]] = []
        self._times: FloatArray = np.zeros(0)
        self._signs: IntArray = np.zeros(0, dtype=np.int64)
        self._which: IntArray = np.zeros(0, dtype=np.int64)
        self._fresh: list[tuple[float, int, int]] = []  # (time, sign, charge) not yet in the timeline
        # Arrays with room to grow, of which so much is in use.
        self._store = [np.zeros(64, dtype=np.int64) for _ in range(_N_ARRAYS)]
        self._lengths = [int(i in _BOUNDS) for i in range(_N_ARRAYS)]
        self._block: tuple[IntArray, ...] = ()
        self._n_in_block = -1

    def add(self, charge: Charge, bookings: tuple[int, ...]) -> int:
        """Take in a charge; its position."""
        self.charges.append(charge)
        self.bookings.append(bookings)
        return len(self.charges) - 1

    def at(self, at_s: float, sign: int, charge: int) -> None:
        """At that instant the charge is taken (1) or given back (-1, which comes first among equals)."""
        self._fresh.append((at_s, sign, charge))

    def remove(self, charge: int) -> None:
        """Forget when this charge was to be taken and given back."""
        times, signs, which = self.timeline()
        stays = which != charge
        self._times, self._signs, self._which = times[stays], signs[stays], which[stays]

    def timeline(self) -> tuple[FloatArray, IntArray, IntArray]:
        """(times, signs, charges) in order of time."""
        if self._fresh:
            times, signs, which = zip(*self._fresh, strict=True)
            self._fresh = []
            all_times = np.concatenate([self._times, times])
            all_signs = np.concatenate([self._signs, signs])
            all_which = np.concatenate([self._which, which])
            order = np.lexsort((all_signs, all_times))
            self._times, self._signs, self._which = all_times[order], all_signs[order], all_which[order]
        return self._times, self._signs, self._which

    def block(self) -> tuple[IntArray, ...]:
        """Charges as flat arrays, in the order in which the kernels want them."""
        if self._n_in_block < len(self.charges):
            first = max(0, self._n_in_block)
            self._n_in_block = len(self.charges)
            if first and len(self.charges) == first + 1:
                self._append(lay_out_one(self.charges[first]))
            else:
                self._append(lay_out(self.charges[first:]))
            self._block = tuple(
                array[:length] for array, length in zip(self._store, self._lengths, strict=True)
            )
        return self._block

    def _append(self, more: tuple[IntArray, ...]) -> None:
        for i, new in enumerate(more):
            array, length = self._store[i], self._lengths[i]
            if i in _BOUNDS:
                new = new[1:] + array[length - 1]
            end = length + len(new)
            if end > len(array):
                array = np.zeros(2 * end, dtype=np.int64)
                array[:length] = self._store[i][:length]
                self._store[i] = array
            array[length:end] = new
            self._lengths[i] = end


_SHARES: Final = ("nodes", "unnamed", "cpu", "mem", "draw")
_DEVICES: Final = ("devices", "taken")
_QUOTA: Final = ("kinds", "steps")
_BOUNDS: Final = (0, 6, 10)  # which of the arrays are bounds
_N_ARRAYS: Final = 13


def lay_out_one(charge: Charge) -> tuple[IntArray, ...]:
    """The same as `lay_out`, of one charge."""
    return (
        np.array((0, len(charge.nodes))),
        charge.nodes, charge.unnamed, charge.cpu, charge.mem, charge.draw,
        np.array((0, len(charge.devices))),
        charge.devices, charge.taken,
        np.array((charge.team,)),
        np.array((0, len(charge.kinds))),
        charge.kinds, charge.steps,
    )  # fmt: skip


def lay_out(charges: Sequence[Charge]) -> tuple[IntArray, ...]:
    """Charges as flat arrays: bounds of their shares and five fields of each share, likewise their devices, their
    teams, and their quota."""

    def first(field: str) -> IntArray:
        lengths = np.cumsum([len(getattr(c, field)) for c in charges], dtype=np.int64)
        return np.concatenate([np.zeros(1, dtype=np.int64), lengths])

    def flat(field: str) -> IntArray:
        return np.concatenate([getattr(c, field) for c in charges] or [np.zeros(0, dtype=np.int64)])

    return (
        first("nodes"),
        *(flat(f) for f in _SHARES),
        first("devices"),
        *(flat(f) for f in _DEVICES),
        np.array([c.team for c in charges], dtype=np.int64),
        first("kinds"),
        *(flat(f) for f in _QUOTA),
    )


Window = tuple[int, tuple[int, ...]]  # pinches before its end, and the bookings it may not use that it meets


@dataclass(frozen=True, slots=True)
class Promise:
    """What is needed to take a promise back."""

    position: int  # of its charge
    charge: Charge
    start_s: float
    end_s: float


@dataclass(slots=True, frozen=True)
class View:
    """What a window that begins at some instant leaves, and the nodes that bookings close to a gang in it."""

    floor: Floor
    shut: IntArray | None


@dataclass(slots=True)
class Held:
    """What running work holds, and until when."""

    charge: Charge
    bookings: tuple[int, ...]
    end_s: float
    position: int  # of its charge in what comes; NONE: it is tried, and not there
    turns: tuple["Turn", ...] = ()  # how far it draws less, or more, later on


@dataclass(frozen=True, slots=True)
class Turn:
    """In [start_s, end_s) running work draws so much more (or less, below 0) than it does now."""

    charge: Charge  # of watts alone
    start_s: float
    end_s: float
    position: int = NONE  # of that charge in what comes; NONE: it is tried, and not there


class LimitSteps:
    """When limits are known to change, and by how much: (s,) in order of time."""

    def __init__(self, frame: Frame, snapshot: Snapshot) -> None:
        position = {d: i for i, d in enumerate(frame.limited.tolist())}
        now_uw = {d: frame.limit_uw(d, frame.domains[d].limit_w) for d in position}
        changes = [c for c in snapshot.limit_changes if c.at_s > snapshot.now_s and c.domain in position]
        rows: list[tuple[float, int, int]] = []
        for change in sorted(changes, key=lambda c: c.at_s):
            then_uw = frame.limit_uw(change.domain, change.limit_w)
            if then_uw != now_uw[change.domain]:
                rows.append((change.at_s, position[change.domain], then_uw - now_uw[change.domain]))
                now_uw[change.domain] = then_uw
        self.low = _low_spans(
            [c for c in snapshot.limit_changes if c.domain in position], snapshot.now_s, position
        )
        times, limits, steps_uw = zip(*rows, strict=True) if rows else ((), (), ())
        self.times: FloatArray = np.array(times, dtype=np.float64)
        self.limits: IntArray = np.array(limits, dtype=np.int64)
        self.steps_uw: IntArray = np.array(steps_uw, dtype=np.int64)

    @property
    def falls_s(self) -> list[float]:
        """Instants at which some limit falls."""
        found: list[float] = np.unique(self.times[self.steps_uw < 0]).tolist()
        return found

    def spans_of(self, limits: IntArray) -> list[tuple[float, float]]:
        """[start, end) in which work under some of these limits is slowed, in order, none meeting another."""
        found: list[tuple[float, float]] = []
        here = set(limits.ravel().tolist())
        for start_s, end_s, limit in self.low:
            if limit not in here:
                continue
            if found and start_s <= found[-1][1]:
                found[-1] = (found[-1][0], max(end_s, found[-1][1]))
            else:
                found.append((start_s, end_s))
        return found

    def apply(self, head: IntArray, until_s: float) -> None:
        """Change what is left under each limit, as it is now, into what it is then."""
        n = int(np.searchsorted(self.times, until_s, side="right"))
        np.add.at(head, self.limits[:n], self.steps_uw[:n])


_Charged = tuple[Placing, Shape, tuple[int, bool, float], Charge]
_CHARGED: WeakKeyDictionary[Frame, dict[int, _Charged]] = WeakKeyDictionary()


def _charges_of(frame: Frame, tree: QuotaTree, running: Sequence[Running]) -> list[Charge]:
    """What each running job holds. Most hold what they held in the last pass, and that is not counted again."""
    before, now = _CHARGED.get(frame, {}), dict[int, _Charged]()
    for one in running:
        gang, placing = one.gang, one.placing
        account = tree.account(gang)
        counts_at: tuple[int, bool, float] = account, tree.limits_jobs(account), one.cap
        known = before.get(gang.id)
        if known is None or known[0] is not placing or known[1] is not gang.shape or known[2] != counts_at:
            drawing = gang
            if one.cap < 1.0 and placing:
                drawing = under_cap(gang, frame.kinds[int(frame.kind[placing[0].node])], one.cap)
            known = (placing, gang.shape, counts_at, charge_of(frame, tree, drawing, placing))
        now[gang.id] = known
    _CHARGED[frame] = now
    return [now[one.gang.id][-1] for one in running]


class Calendar:
    """The present state, and how it changes by itself.

    A pinch is the state at an instant at which something new is taken: the start of a promise or of a booking, the
    fall of a limit, or work that draws more from then on. What starts now and lasts beyond a pinch must fit at the
    pinch too; between pinches things only get freer.
    """

    def __init__(self, frame: Frame, tree: QuotaTree, snapshot: Snapshot) -> None:
        self.frame, self.tree = frame, tree
        self.now_s = snapshot.now_s
        live = [i for i, b in enumerate(snapshot.bookings) if b.end_s > self.now_s]
        self.bookings = [snapshot.bookings[i] for i in live]
        self.position = {i: position for position, i in enumerate(live)}  # of a snapshot's booking, here
        self.now = State.empty(frame, tree, self.now_s)
        self._nothing: BoolArray = np.zeros(frame.n_nodes, dtype=bool)
        self._allowed: dict[int, tuple[int, ...]] = {}
        self._promised: set[int] = set()  # charges that are promises
        self._named: IntArray = np.zeros(0, dtype=np.int64)  # devices that promises name
        self._unpromised: dict[float, State] = {}
        self._teams_of_booking = [self._with_descendants(b.teams) for b in self.bookings]
        self._coming = _Coming()
        self._pool = Pool(frame, tree, self.now)
        self.limit_steps = LimitSteps(frame, snapshot)
        self.held: dict[int, Held] = {}  # by job: what running work holds, and until when
        self._told: dict[
            int, list[CapChange]
        ] = {}  # by job: how running work is known to be slowed, in order
        # (l + 1,) limits under which this pass has begun, or promised, something that draws.
        self._is_counted_on: BoolArray = np.zeros(len(self.now.head), dtype=bool)
        self.pinches: list[State] = []
        self._pinch_at_s: list[float] = []
        self.version = 0  # of all that is charged
        # What was worked out since something was last charged.
        self._views: dict[tuple[object, ...], View] = {}
        self._left: dict[tuple[int, int, int], int] = {}
        self._windows: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        charges = _charges_of(frame, tree, snapshot.running)
        for running, charge in zip(snapshot.running, charges, strict=True):
            allowed = self.allowed(running.gang)
            end_s = running.ends_s if running.ends_s > self.now_s else self.now_s + OVERDUE_S
            position = self._coming.add(charge, allowed)
            if end_s != inf:
                self._coming.at(end_s, -1, position)
            self.held[running.gang.id] = Held(charge, allowed, end_s, position)
        n = len(charges)
        rises_s = self._take_turns(snapshot)
        self._charge(range(n), [0] * n, [1] * n, 1)
        self._pool.changed()
        self.booked_nodes: list[IntArray] = []
        for b in self.bookings:
            self.booked_nodes.append(np.zeros(frame.n_nodes, dtype=np.int64))
            if b.start_s > self.now_s:
                self._pinch(b.start_s)
        ends_s = {
            end_s for _, end_s, _ in self.limit_steps.low if end_s != inf
        }  # what was slowed comes back then
        self._falls_s = sorted({*rises_s, *ends_s, *self.limit_steps.falls_s})
        for at_s in self._falls_s:
            self._pinch(at_s)
        for i, b in enumerate(self.bookings):
            self.booked_nodes[i] = self._resolve(i, b, snapshot)
        if self.bookings:
            for held in self.held.values():
                if held.bookings:
                    held.bookings = self._coming.bookings[held.position] = self._met_by(
                        held.charge, held.bookings
                    )

    def _take_turns(self, snapshot: Snapshot) -> list[float]:
        """Count on what running work will draw less, or more; the instants at which some draws more than before."""
        for change in sorted(snapshot.cap_changes, key=lambda c: c.at_s):
            if change.at_s > self.now_s and change.job_id in self.held:
                self._told.setdefault(change.job_id, []).append(change)
        rises_s: list[float] = []
        for running in snapshot.running if self._told or self.limit_steps.low else ():
            gang, held = running.gang, self.held[running.gang.id]
            changes = self._told.get(gang.id) or self._gives_way(running)
            turns = self._turns(gang, running.placing, held.charge, inf, changes)
            draw = held.charge.draw
            for turn in turns:
                # Made smaller it may go on for longer than it would now.
                if (turn.start_s < held.end_s or gang.is_elastic) and (
                    held.charge.draw + turn.charge.draw > draw
                ).any():
                    rises_s.append(turn.start_s)
                draw = held.charge.draw + turn.charge.draw
            held.turns = self._taken_in(_until(turns, held.end_s))
            self._note_turns(held)
        return rises_s

    def _turns(
        self, gang: Gang, placing: Placing, charge: Charge, end_s: float, changes: Sequence[CapChange]
    ) -> list[Turn]:
        """How far work with this charge will draw less or more than now, by what is known of its caps, in order."""
        turns: list[Turn] = []
        for i, change in enumerate(changes):
            if change.at_s >= end_s or not placing:
                break
            until_s = min(changes[i + 1].at_s, end_s) if i + 1 < len(changes) else end_s
            kind = self.frame.kinds[int(self.frame.kind[placing[0].node])]
            draw = charge_of(self.frame, self.tree, under_cap(gang, kind, change.cap), placing).draw
            turns.append(Turn(_drawing_alone(charge, draw - charge.draw), change.at_s, until_s))
        return turns

    def _pauses(self, gang: Gang, charge: Charge, end_s: float) -> list[Turn]:
        """How what goes on, or begins, now is paused while limits above it are lower that it gives way to."""
        if not self.yields(gang):
            return []
        return [
            Turn(_drawing_alone(charge, -charge.draw), start_s, min(ends_s, end_s))
            for start_s, ends_s in self.limit_steps.spans_of(self.frame.paths[charge.nodes])
            if start_s < end_s
        ]

    def _taken_in(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """The same, with a place of their charges in what comes."""
        return tuple(replace(turn, position=self._coming.add(turn.charge, ())) for turn in turns)

    def resized(self, gang: Gang, placing: Placing, end_s: float) -> Held:
        """What running work would hold, to try it, with another placing: what is known of its caps stays."""
        charge = charge_of(self.frame, self.tree, gang, placing)
        told = self._told.get(gang.id)
        turns = self._turns(gang, placing, charge, end_s, told) if told else self._pauses(gang, charge, end_s)
        return Held(charge, self._met_by(charge, self.allowed(gang)), end_s, NONE, tuple(turns))

    def _gives_way(self, running: Running) -> list[CapChange]:
        """How interruptible work is paused while limits above it are lower, where nobody has said it more exactly."""
        if not self.yields(running.gang) or not running.placing:
            return []
        changes: list[CapChange] = []
        paths = self.frame.paths[[share.node for share in running.placing]]
        for start_s, end_s in self.limit_steps.spans_of(paths):
            changes.append(CapChange(start_s, running.gang.id, 0.0))
            changes.append(CapChange(end_s, running.gang.id, running.cap))
        return [change for change in changes if change.at_s < inf]

    def yields(self, gang: Gang) -> bool:
        """Whether what starts of it is paused while limits are lower that what runs gives way to."""
        return bool(self.limit_steps.low) and may_pause(gang)

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
        own = at_start.in_use(frame, index)
        free = at_start.whole + own
        for other in range(index):
            if _overlap(self.bookings[other], booking):
                # What its teams have in use of it is not free anyway.
                free = free - np.maximum(0, self.booked_nodes[other] - at_start.in_use(frame, other))
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
        held = own[nodes]
        # Where its own jobs run already; then what is not free yet, so that others may use what is free until then.
        order = np.lexsort((nodes, -free[nodes], np.minimum(self.now.whole[nodes], free[nodes]), -held))
        rest = booking.n_devices
        for node in nodes[order].tolist():
            meant[node] = min(rest, int(free[node]))
            rest -= int(meant[node])
            if not rest:
                break
        return meant

    def _binding(self, state: State, gang: Gang, until_s: float) -> Iterator[int]:
        """Positions of the bookings the gang may not use that hold what is theirs at this instant."""
        allowed = self.allowed(gang)
        for i, b in enumerate(self.bookings):
            if i in allowed or (b.start_s >= until_s and b.is_flexible):
                continue
            if b.start_s <= state.at_s < b.end_s or (not b.is_flexible and state.at_s < b.end_s):
                yield i

    def hold(self, state: State, gang: Gang, until_s: float) -> IntArray | None:
        """(n,) devices that at this instant belong to bookings the gang may not use; None where there are none."""
        total: IntArray | None = None
        for i in self._binding(state, gang, until_s):
            left = np.maximum(0, self.booked_nodes[i] - state.in_use(self.frame, i))
            total = left if total is None else total + left
        return total

    def kept(self, states: Sequence[State], gang: Gang, until_s: float) -> IntArray | None:
        """Flat positions of shared devices that bookings the gang may not use keep for themselves; None: none."""
        some: list[IntArray] = []
        for state in states:
            for i in self._binding(state, gang, until_s):
                own = state.own(i)
                if len(own):
                    some.append(own[self.booked_nodes[i][self.frame.node_of_device[own]] > 0])
        return np.unique(np.concatenate(some)) if some else None

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

    def _met_by(self, charge: Charge, allowed: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the bookings on whose nodes a charge lies: of the others nothing is used up."""
        return tuple(b for b in allowed if self.booked_nodes[b][charge.nodes].any())

    # -- time -------------------------------------------------------------------------------------------------------

    def _at(self, at_s: float) -> State:
        state = self.now.copy(at_s)
        self._advance(state, 0, self._nothing, BIG, at_s, 0)
        self.limit_steps.apply(state.head, at_s)
        return state

    def _advance(
        self, state: State, i: int, useful: BoolArray, need: int, until_s: float, free: int
    ) -> tuple[int, int]:
        """Move a state on; see kernels.advance."""
        coming, frame, tree = self._coming, self.frame, self.tree
        times, signs, which = coming.timeline()
        move: Any = advance  # its arguments come in blocks
        after, free = move(
            i, times, signs, which, *coming.block(),
            state.whole, state.dev, state.cpu, state.mem, state.head, state.use,
            frame.node_of_device, frame.paths, tree.parents, tree.kept, useful, need, until_s, free,
        )  # fmt: skip
        if self.bookings:
            for position in range(i, after):
                c = which[position]
                if coming.bookings[c]:
                    state.book(frame, coming.charges[c], int(signs[position]), coming.bookings[c])
        return after, free

    def _pinch(self, at_s: float) -> None:
        position = bisect_right(self._pinch_at_s, at_s)
        if position and self._pinch_at_s[position - 1] == at_s:
            return
        state = self._at(at_s)
        self.pinches.insert(position, state)
        self._pinch_at_s.insert(position, at_s)
        self._windows.clear()
        self._changed()
        self._pool.insert(position + 1, state)

    def _range(self, after_s: float, until_s: float) -> tuple[int, int]:
        """Positions of the pinches after an instant and before another."""
        low = bisect_right(self._pinch_at_s, after_s)
        return low, max(low, bisect_left(self._pinch_at_s, until_s))

    def _changed(self) -> None:
        self.version += 1
        self._views.clear()
        self._left.clear()

    def last_pinch_s(self, until_s: float) -> float:
        """The last instant before `until_s` at which something is taken; minus infinity if there is none.

        Whatever ends between there and `until_s` meets the same as what ends at `until_s`.
        """
        n = bisect_left(self._pinch_at_s, until_s)
        return self._pinch_at_s[n - 1] if n else -inf

    def window(self, first: State, until_s: float) -> list[State]:
        """The first state, and every later pinch before the end."""
        low, high = self._range(first.at_s, until_s)
        return [first, *self.pinches[low:high]]

    def quota_left_in(self, first: State, until_s: float, team: int, kind: int) -> int:
        """Millionths of a device the team may take of this kind through the window that begins with this state."""
        if team == NONE or not self.tree.counted[kind]:
            return BIG
        low, high = self._range(first.at_s, until_s)
        rest = self._pool.quota_left_between(low + 1, high + 1, team, kind)
        return min(rest, self.tree.available(first.use, team, kind))

    def n_states(self, until_s: float) -> int:
        """How many states a window meets that begins now."""
        return 1 + bisect_left(self._pinch_at_s, until_s)

    def floor_now(self, until_s: float, gang: Gang | None = None) -> Floor:
        """The floor of the window from now to until_s, bookings aside.

        Args:
            gang: For whom: of what is paused meanwhile, limits that it gives way to ask nothing then.
        """
        n = 1 + bisect_left(self._pinch_at_s, until_s)
        states = [self.now, *self.pinches[: n - 1]]
        least = self._pool.least(n)
        if gang is not None and self.yields(gang):
            least = (*least[:3], np.minimum.reduce([self.head_for(gang, state) for state in states]))
        return Floor(states, None, least)

    def view(
        self, gang: Gang, first: State, until_s: float, *, promises: bool = True, reservations: bool = True
    ) -> View:
        """What the window from `first` to until_s leaves to this gang.

        Args:
            promises: False: as if nothing had been promised; only from now on.
            reservations: False: as if nothing had been booked.
        """
        if first is not self.now:
            return self._view(gang, first, until_s, promises, reservations)
        n = 1 + bisect_left(self._pinch_at_s, until_s)
        met = self._met(n, until_s, self.allowed(gang)) if self.bookings and reservations else None
        key = (n, met, promises, self.yields(gang))
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = self._view(gang, first, until_s, promises, reservations)
        return known

    def _view(self, gang: Gang, first: State, until_s: float, promises: bool, reservations: bool) -> View:
        states = self.window(first, until_s) if promises else self.without_promises(until_s)
        shut: IntArray | None = None
        holds: list[IntArray | None] | None = None
        kept: IntArray | None = None
        if self.bookings and reservations:
            shut = self.closed(gang, first.at_s, until_s)
            holds = [self.hold(state, gang, until_s) for state in states]
            kept = self.kept(states, gang, until_s)
        least = later = None
        if promises:
            low, high = self._range(first.at_s, until_s)  # the pool's first state is now
            is_now = first is self.now
            least = self._pool.least(1 + high) if is_now else self._pool.least_with(first, low + 1, high + 1)
            later = self._pool.between(low + 1, high + 1)
        is_freer_later = not len(self._named)
        if later is not None and not is_freer_later:
            later, is_freer_later = (*later[:3], self._named), True
        if first is self.now and self.yields(gang):
            whole, cpu, mem, _ = least or (None, None, None, None)
            heads = [self.head_for(gang, state) for state in states]
            least = (
                np.minimum.reduce([s.whole for s in states]) if whole is None else whole,
                np.minimum.reduce([s.cpu for s in states]) if cpu is None else cpu,
                np.minimum.reduce([s.mem for s in states]) if mem is None else mem,
                np.minimum.reduce(heads),
            )
        floor = Floor(states, holds, least, is_freer_later=is_freer_later, later=later, kept=kept)
        return View(floor, shut)

    def head_for(self, gang: Gang, state: State) -> IntArray:
        """What is left then under each limit for a gang that starts now: if it is paused while a limit is lower, that
        one asks nothing."""
        if not self.yields(gang):
            return state.head
        low = [limit for start_s, end_s, limit in self.limit_steps.low if start_s <= state.at_s < end_s]
        if not low:
            return state.head
        head = state.head.copy()
        head[low] = BIG
        return head

    def _met(self, n: int, until_s: float, allowed: tuple[int, ...]) -> tuple[int, ...]:
        """Positions of the bookings that a gang meets until then; those that are still to start start at a pinch."""
        known = self._windows.get((n, allowed))
        if known is None:
            met = (i for i, b in enumerate(self.bookings) if b.start_s < until_s or not b.is_flexible)
            known = self._windows[n, allowed] = tuple(i for i in met if i not in allowed)
        return known

    def n_met(self, limits_s: Sequence[float]) -> list[int]:
        """How many states each gang with such a limit meets that starts now, as `window_of` counts them."""
        ends_s = self.now_s + np.array(limits_s, dtype=np.float64)
        found: list[int] = (1 + np.searchsorted(self._pinch_at_s, ends_s, side="left")).tolist()
        return found

    def window_of(self, gang: Gang, until_s: float) -> Window:
        """What a gang that starts now meets until then; gangs of one shape with equal windows fare alike."""
        n = 1 + bisect_left(self._pinch_at_s, until_s)
        if not self.bookings:
            return n, ()
        met = self._met(n, until_s, self.allowed(gang))
        if gang.shape.reservation == NONE:
            return n, met
        return n, (-1 - sum(until_s <= b.end_s for b in self.bookings), *met)

    def quota_left_now(self, team: int, kind: int, n: int) -> int:
        """Millionths of a device the team may take of this kind, now and at the first n - 1 pinches."""
        if team == NONE or not self.tree.counted[kind]:
            return BIG
        known = self._left.get((team, kind, n))
        if known is None:
            known = self._left[team, kind, n] = self._pool.quota_left(n, team, kind)
        return known

    def member_left_now(self, account: int, column: int, n: int) -> int:
        """Millionths that the limits of a member leave in a column, now and at the first n - 1 pinches; BIG: all."""
        most = int(self.tree.borrow[account, column])
        return BIG if most >= BIG else most - self._pool.most_used(n, account, column)

    def without_promises(self, until_s: float) -> list[State]:
        """Now, and every later instant before until_s at which a booking starts, a limit falls or running work draws
        more: as if nothing had been promised."""
        states = [self.now]
        falls_s = {at_s for at_s in self._falls_s if at_s < until_s}
        for start_s in sorted(
            {b.start_s for b in self.bookings if self.now_s < b.start_s < until_s} | falls_s
        ):
            if start_s not in self._unpromised:
                state = self._unpromised[start_s] = self.now.copy(start_s)
                coming = self._coming
                for at_s, sign, c in zip(*coming.timeline(), strict=True):
                    if at_s > start_s:
                        break
                    if c not in self._promised:
                        state.charge(self.frame, self.tree, coming.charges[c], int(sign), coming.bookings[c])
                self.limit_steps.apply(state.head, start_s)
            states.append(self._unpromised[start_s])
        return states

    def start(self, gang: Gang, charge: Charge, end_s: float) -> None:
        """Something starts now and is expected to give back at end_s."""
        met = self._met_by(charge, self.allowed(gang))
        self._begin(gang, Held(charge, met, end_s, NONE, tuple(self._pauses(gang, charge, end_s))))
        self._count_on(charge)

    def _begin(self, gang: Gang, tried: Held) -> None:
        """What was only tried is there from now on."""
        position = self._coming.add(tried.charge, tried.bookings)
        held = replace(tried, position=position, turns=self._taken_in(tried.turns))
        self.lift([held], 1)
        self._note_turns(held)
        if held.end_s != inf:
            self._coming.at(held.end_s, -1, held.position)
        self.held[gang.id] = held

    def _count_on(self, charge: Charge) -> None:
        """Something of this pass draws there: from now on an excess would be its fault."""
        draws = charge.draw > 0
        if draws.any():
            self._is_counted_on[self.frame.paths[charge.nodes[draws]]] = True
            self._is_counted_on[-1] = False

    def lift(self, some: Sequence[Held], sign: int = -1) -> None:
        """Take work off its devices now and as long as it would have held them (-1), or put it back (1)."""
        if not some:
            return
        charged = [held for held in some if held.position != NONE]
        if charged:
            # The first state is now, and the pinches follow.
            ends = [1 + bisect_left(self._pinch_at_s, held.end_s) for held in charged]
            self._charge([held.position for held in charged], [0] * len(charged), ends, sign)
            turns = [turn for held in charged for turn in held.turns]
            if turns:
                low = [1 + bisect_left(self._pinch_at_s, turn.start_s) for turn in turns]
                high = [1 + bisect_left(self._pinch_at_s, turn.end_s) for turn in turns]
                self._charge([turn.position for turn in turns], low, high, sign)
        for held in some:
            if held.position == NONE:
                for state in [self.now, *self.pinches[: bisect_left(self._pinch_at_s, held.end_s)]]:
                    state.charge(self.frame, self.tree, held.charge, sign, held.bookings)
                for turn in held.turns:
                    first, end = (bisect_left(self._pinch_at_s, at_s) for at_s in (turn.start_s, turn.end_s))
                    for state in self.pinches[first:end]:
                        state.charge(self.frame, self.tree, turn.charge, sign)
        touched = some[0].charge.nodes if len(some) == 1 else np.concatenate([h.charge.nodes for h in some])
        self._pool.touched(np.unique(touched) if len(touched) > 1 else touched)
        self._unpromised.clear()
        self._changed()

    def _charge(self, charges: Sequence[int], firsts: Sequence[int], ends: Sequence[int], sign: int) -> None:
        """Take (1) or give back (-1) charges, each in the states from a first (0: now, then the pinches) to an end."""
        frame, tree, coming = self.frame, self.tree, self._coming
        which, low, high = (np.array(some, dtype=np.int64) for some in (charges, firsts, ends))
        order, whole, cpu, mem, head, dev = self._pool.rows_to_charge()
        move: Any = charge_rows  # its arguments come in blocks
        move(
            order, which, low, high, sign, coming.block(), (whole, dev, cpu, mem, head), self._pool.uses,
            frame.node_of_device, frame.paths, tree.parents, tree.kept,
        )  # fmt: skip
        if not self.bookings:
            return
        for charge, first, end in zip(charges, firsts, ends, strict=True):
            if coming.bookings[charge]:
                for state in [self.now, *self.pinches][first:end]:
                    state.book(frame, coming.charges[charge], sign, coming.bookings[charge])

    def _exceeds(self, charge: Charge, n: int, *, draws_evenly: bool = True) -> bool:
        """Whether some one share of a charge takes more than is left in one of the first n states.

        A few sums, before anything is charged and taken back: most of what is asked for is refused by these.

        Args:
            draws_evenly: False for what draws less later on: where watts are scarce it may need none.
        """
        nodes = charge.nodes
        whole, cpu, mem, head = self._pool.least(n)
        return bool(
            ((charge.taken == FULL).all() and ((whole[nodes] < charge.whole) & (charge.whole > 0)).any())
            or (draws_evenly and self._lacks(head, charge.nodes, charge.draw, charge.draw))
            or ((cpu[nodes] < charge.cpu) & (charge.cpu > 0)).any()
            or ((mem[nodes] < charge.mem) & (charge.mem > 0)).any()
        )

    def _lacks(
        self,
        head: IntArray,
        nodes: IntArray,
        draw: IntArray,
        need: IntArray | int,
        *,
        by_anybody: bool = False,
    ) -> bool:
        """Whether less than that is left under a limit above a share that draws, and on which this pass counts.

        Where nothing of this pass draws, an excess was there before: whoever stays makes it no worse.
        """
        draws = draw > 0
        if not draws.any():
            return False
        above = self.frame.paths[nodes[draws]]
        least = need if isinstance(need, int) else need[draws][:, None]
        return bool(((head[above] < least) & (self._is_counted_on[above] | by_anybody)).any())

    def _fits_now(self, charge: Charge) -> bool:
        """Whether just these devices, and all else it takes but quota, are free now."""
        now = self.now
        if (now.dev[charge.devices] < charge.taken).any():
            return False
        now.charge(self.frame, self.tree, charge, 1)
        fits = not self._is_overdrawn(now, charge, charge.draw)
        now.charge(self.frame, self.tree, charge, -1)  # exact: as it was
        return fits

    def drop(self, job_id: int) -> None:
        """Running work leaves for good: it holds nothing any more, and gives nothing back when it would have ended."""
        held = self.held.pop(job_id)
        self.lift([held])
        if held.end_s != inf:
            self._coming.remove(held.position)
        for turn in held.turns:
            self._coming.remove(turn.position)

    def take_back(self, gang: Gang, held: Held) -> bool:
        """Let dropped work hold again what it held, if nobody has taken it, or counts on it, meanwhile."""
        charge = held.charge
        n = self.n_states(held.end_s)
        if (
            self._exceeds(charge, n, draws_evenly=not held.turns)
            or not self._fits_now(charge)
            or any(self.quota_left_now(charge.team, kind, n) < steps for kind, steps in self._limited(charge))
        ):
            return False
        self.lift([held], 1)
        if self.overdrawn(held, self.now_s):
            self.lift([held])
            return False
        if held.end_s != inf:
            self._coming.at(held.end_s, -1, held.position)
        self._note_turns(held)
        self.held[gang.id] = held
        return True

    def _note_turns(self, held: Held) -> None:
        """Let what is known of how much it draws later on count in what comes."""
        for turn in held.turns:
            self._coming.at(turn.start_s, 1, turn.position)
            if turn.end_s != inf:
                self._coming.at(turn.end_s, -1, turn.position)

    def hold_instead(self, gang: Gang, placing: Placing, end_s: float) -> None:
        """Running work holds something else from now on; what is known of its caps stays."""
        before = self.held[gang.id].charge.draw.sum()
        self.drop(gang.id)
        after = self.resized(gang, placing, end_s)
        self._begin(gang, after)
        if after.charge.draw.sum() > before:
            self._count_on(after.charge)

    def overdrawn(self, held: Held, after_s: float, *, is_longer: bool = False) -> bool:
        """Whether more is taken than there is of what work takes, at a pinch from after_s until it ends.

        What it does not draw on then, or what nothing of this pass draws on, may be overdrawn: it was so before.

        Args:
            is_longer: It would not run then without this pass: then any excess where it draws is one too many.
        """
        low, high = bisect_left(self._pinch_at_s, after_s), bisect_left(self._pinch_at_s, held.end_s)
        for pinch in self.pinches[low:high]:
            draw = held.charge.draw
            for turn in held.turns:
                if turn.start_s <= pinch.at_s < turn.end_s:
                    draw = draw + turn.charge.draw
            if self._is_overdrawn(pinch, held.charge, draw, is_longer=is_longer):
                return True
        return False

    def _is_overdrawn(self, state: State, charge: Charge, draw: IntArray, *, is_longer: bool = False) -> bool:
        """Whether more is taken than there is of what this charge takes, if it draws so much."""
        nodes = charge.nodes
        return bool(
            ((state.whole[nodes] < 0) & (charge.whole > 0)).any()
            or (state.dev[charge.devices] < 0).any()
            or ((state.cpu[nodes] < 0) & (charge.cpu > 0)).any()
            or ((state.mem[nodes] < 0) & (charge.mem > 0)).any()
            or self._lacks(state.head, nodes, draw, 0, by_anybody=is_longer)
        )

    def promise(self, gang: Gang, charge: Charge, start_s: float, end_s: float) -> "Promise":
        """Something is promised to start later."""
        met = self._met_by(charge, self.allowed(gang))
        self._pinch(start_s)
        position = self._coming.add(charge, met)
        self._charge_pinches(position, start_s, end_s, 1)
        if len(charge.devices):
            self._named = np.union1d(self._named, charge.devices)
        self._promised.add(position)
        self._count_on(charge)
        self._coming.at(start_s, 1, position)
        if end_s != inf:
            self._coming.at(end_s, -1, position)
        return Promise(position, charge, start_s, end_s)

    def promise_if_free(self, gang: Gang, charge: Charge, start_s: float, end_s: float) -> "Promise | None":
        """Promise just this place, if nothing else is counted on there from start_s to end_s."""
        self._pinch(start_s)
        low, high = bisect_left(self._pinch_at_s, start_s), bisect_left(self._pinch_at_s, end_s)
        states = self.pinches[low:high]
        if any((state.dev[charge.devices] < charge.taken).any() for state in states) or any(
            self._pool.quota_left_between(1 + low, 1 + high, charge.team, kind) < steps
            for kind, steps in self._limited(charge)
        ):
            return None
        promise = self.promise(gang, charge, start_s, end_s)
        tried = Held(charge, (), end_s, promise.position)
        if self._is_closed(gang, charge, states, end_s) or self.overdrawn(tried, start_s):
            self.withdraw(promise)
            return None
        return promise

    def _limited(self, charge: Charge) -> list[tuple[int, int]]:
        """Columns of quota that a charge takes of, and how much."""
        if charge.team == NONE:
            return []
        both = zip(charge.kinds.tolist(), charge.steps.tolist(), strict=True)
        return [(kind, steps) for kind, steps in both if self.tree.counted[kind]]

    def _is_closed(self, gang: Gang, charge: Charge, states: Sequence[State], end_s: float) -> bool:
        """Whether a booking that the gang may not use needs what the charge has taken in one of these states."""
        if not self.bookings or not states:
            return False
        shut = self.closed(gang, states[0].at_s, end_s)
        if shut is not None and np.isin(charge.nodes, shut).any():
            return True
        kept = self.kept(states, gang, end_s)
        if kept is not None and np.isin(charge.devices, kept).any():
            return True
        holds = ((state, self.hold(state, gang, end_s)) for state in states)
        return any(
            hold is not None and (state.whole[charge.nodes] < hold[charge.nodes]).any()
            for state, hold in holds
        )

    def withdraw(self, promise: "Promise") -> None:
        """Take a promise back, so that another can be made in its place."""
        self._charge_pinches(promise.position, promise.start_s, promise.end_s, -1)
        self._coming.remove(promise.position)

    def _charge_pinches(self, position: int, start_s: float, end_s: float, sign: int) -> None:
        """Take or give back a charge at every pinch in [start_s, end_s)."""
        low, high = bisect_left(self._pinch_at_s, start_s), bisect_left(self._pinch_at_s, end_s)
        self._charge([position], [1 + low], [1 + high], sign)
        self._pool.touched(self._coming.charges[position].nodes)
        self._changed()

    def seek(self, search: "Search", deadline_s: float) -> bool:
        """Move a search on to its next instant before the deadline; False when there is none."""
        coming, frame, tree, state = self._coming, self.frame, self.tree, search.state
        move: Any = seek  # its arguments come in blocks
        search.i, search.m, at_s = move(
            search.i, search.m, coming.timeline(), coming.block(), search.marks, deadline_s,
            (state.whole, state.dev, state.cpu, state.mem, state.head, state.use),
            (frame.node_of_device, frame.paths, frame.nodes_of[search.kind], frame.offset),
            (tree.parents, tree.subtree, tree.kept, tree.borrow),
            search.pinch_times, self._pool.rows(), self._pool.uses, search.may_use, search.level, search.n_level,
            search.ask, search.quota, search.duration_s, frame.n_limit_trees == 1,
            (self.limit_steps.times, self.limit_steps.limits, self.limit_steps.steps_uw, search.n_stepped),
        )  # fmt: skip
        if at_s == inf:
            return False
        if self.bookings:
            self._book_up_to(search)
        state.at_s = at_s
        return True

    def _book_up_to(self, search: "Search") -> None:
        coming = self._coming
        _, signs, which = coming.timeline()
        for position in range(search.booked, search.i):
            c = which[position]
            if coming.bookings[c]:
                search.state.book(self.frame, coming.charges[c], int(signs[position]), coming.bookings[c])
        search.booked = search.i

    def search(
        self, gang: Gang, kind: int, may_use: BoolArray, duration_s: float, marks: Sequence[float]
    ) -> "Search":
        """A search for the instants at which a gang might start on one kind.

        Gangs of several groups, and those without devices, are looked at every instant.
        """
        ends = {b.end_s for b in self.bookings}
        times = sorted(t for t in {*marks, *ends, *self.limit_steps.times.tolist()} if self.now_s < t < inf)
        asks = gang.shape.asks
        ask = asks[0]
        level, n_level = self.frame.level["leaf"], 0
        values = (0, FULL, 0, 0, 0, 0)  # no replica: fits anywhere
        if len(asks) == 1 and (ask.devices or ask.share_steps):
            draw = (
                self.frame.draw(ask.devices, ask.share_steps, kind, ask.peak_w)
                if self.frame.has_limits
                else 0
            )
            cpu, mem = micro_of(ask.cpus), micro_of(ask.memory_gib)
            values = (ask.devices, ask.share_steps or FULL, cpu, mem, draw, ask.n_replicas)
            if ask.required is not None:
                level, n_level = self.frame.level[ask.required], self.frame.n_level[ask.required]
        tree, account = self.tree, self.tree.account(gang)
        limited = account != NONE and bool(tree.counted[kind])
        steps = sum((a.devices * FULL if a.devices else a.share_steps) * a.n_replicas for a in asks)
        quota = (account if limited and steps else -1, kind, steps)
        if tree.limits_jobs(account) and self.quota_left_now(account, tree.jobs, 1) < FULL:
            quota = (account, tree.jobs, FULL)  # it waits for that first; whoever looks closer asks for both
        return Search(
            state=self.now.copy(self.now_s),
            marks=np.array(times, dtype=np.float64),
            pinch_times=np.array([p.at_s for p in self.pinches], dtype=np.float64),
            may_use=may_use,
            level=level,
            n_level=n_level,
            kind=kind,
            ask=values,
            quota=quota,
            duration_s=duration_s,
        )


@dataclass(slots=True, eq=False)
class Search:
    """How far a search for a start has come; see kernels.seek."""

    state: State
    marks: FloatArray
    pinch_times: FloatArray
    may_use: BoolArray
    level: IntArray
    n_level: int
    kind: int
    ask: tuple[int, int, int, int, int, int]
    quota: tuple[int, int, int]
    duration_s: float
    i: int = 0
    m: int = 0
    booked: int = 0
    n_stepped: IntArray = field(
        default_factory=lambda: np.zeros(1, dtype=np.int64)
    )  # limits that have changed


def _low_spans(
    changes: Sequence[LimitChange], now_s: float, position: Mapping[int, int]
) -> list[tuple[float, float, int]]:
    """(start, end, limit) of the times in which running work gives way, by start."""
    of_domain: dict[int, list[LimitChange]] = {}
    for change in sorted(changes, key=lambda c: c.at_s):
        of_domain.setdefault(change.domain, []).append(change)
    found: list[tuple[float, float, int]] = []
    for domain, some in of_domain.items():
        ends_s = [change.at_s for change in some[1:]] + [inf]
        for change, end_s in zip(some, ends_s, strict=True):
            # While a limit is lower already nobody is paused anew: what runs then fits under it.
            if change.gives_way and now_s < change.at_s < end_s:
                found.append((change.at_s, end_s, position[domain]))
    return sorted(found)


def _until(turns: Sequence[Turn], end_s: float) -> list[Turn]:
    """The turns, as far as they lie before an instant."""
    return [replace(turn, end_s=min(turn.end_s, end_s)) for turn in turns if turn.start_s < end_s]


def _drawing_alone(charge: Charge, draw: IntArray) -> Charge:
    """A charge of watts alone, on the same nodes."""
    nothing = np.zeros(0, dtype=np.int64)
    none = np.zeros_like(charge.whole)
    return replace(
        charge,
        whole=none, unnamed=none, cpu=none, mem=none, draw=draw, devices=nothing, taken=nothing, team=NONE,
        kinds=nothing, steps=nothing,
    )  # fmt: skip


def _overlap(a: Booking, b: Booking) -> bool:
    return a.start_s < b.end_s and b.start_s < a.end_s

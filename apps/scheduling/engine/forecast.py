"""When each waiting job will probably start.

The queue is laid out in its order over what each accelerator type will have free, every job at the earliest gap that
holds it for the time it will probably run: what a scheduler with backfilling does, seen from far enough away to leave
out on which nodes (Smith, Taylor and Foster, "Using Run-Time Predictions to Estimate Queue Wait Times", 1999). Behind
the first few hundred jobs the work that stands ahead is spread evenly over the devices instead. A promise is its own
forecast. Nothing is decided by a forecast.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from math import inf
from operator import attrgetter

import numpy as np

from apps.scheduling.engine.facts import (
    NONE,
    FloatArray,
    Gang,
    IntArray,
    Placing,
    Reserve,
    Running,
    Snapshot,
    Start,
)
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.kernels import earliest_gap, spread_work, take_gap
from apps.scheduling.engine.placement import kinds_of
from apps.scheduling.engine.predict import column, predicted_of_many, predicted_s
from apps.scheduling.engine.quota import QuotaTree
from apps.scheduling.engine.units import BIG, FULL

_LAID_OUT = 500  # waiting jobs that are laid out one by one
_UNKNOWN_S = 3600.0  # how long a job runs of which nothing is known


def probable_s(gang: Gang, history_s: Sequence[float]) -> float:
    """How long a job that has not started will probably run.

    Args:
        history_s: As the snapshot's.
    """
    least_s = min(predicted_s(gang, history_s), gang.limit_s, gang.work_s)
    return _UNKNOWN_S if least_s == inf else max(1.0, least_s)


def probable_end_s(running: Running, now_s: float, history_s: Sequence[float]) -> float:
    """When running work will probably end; one that ran longer than it was expected to goes on as long again."""
    ran_s = max(1.0, now_s - running.started_s)
    end_s = running.started_s + predicted_s(running.gang, history_s)
    if end_s <= now_s:
        end_s = now_s + ran_s
    return max(now_s + 1.0, min(end_s, running.ends_s))


class _Profile:
    """Free millionths of devices from each instant on."""

    def __init__(self, now_s: float, free: int) -> None:
        self.times: FloatArray = np.full(64, inf)
        self.free: IntArray = np.zeros(64, dtype=np.int64)
        self.times[0], self.free[0] = now_s, free
        self.n = 1

    def _room(self, n: int) -> None:
        if self.n + n > len(self.times):
            more = max(n, len(self.times))
            self.times = np.concatenate([self.times, np.full(more, inf)])
            self.free = np.concatenate([self.free, np.zeros(more, dtype=np.int64)])

    def take(self, start_s: float, end_s: float, steps: int) -> None:
        """From start_s to end_s so much is not free."""
        self._room(2)
        self.n = take_gap(self.times, self.free, self.n, start_s, end_s, steps)

    def take_all(self, held: Sequence[tuple[float, float, int]]) -> None:
        """The same as `take` for each (start_s, end_s, steps), in one go."""
        start_s, end_s = (np.array([one[i] for one in held], dtype=np.float64) for i in (0, 1))
        steps = np.array([one[2] for one in held], dtype=np.int64)
        before_s = self.times[: self.n]
        times = np.unique(np.concatenate([before_s, start_s, end_s]))
        times = times[times < inf]
        change = np.zeros(len(times) + 1, dtype=np.int64)
        np.subtract.at(change, np.searchsorted(times, start_s), steps)
        np.add.at(change, np.searchsorted(times, end_s), steps)
        since = np.maximum(np.searchsorted(before_s, times, side="right") - 1, 0)
        free = self.free[since] + np.cumsum(change[:-1])
        self._room(len(times) - self.n + 2)
        self.n = len(times)
        self.times[: self.n], self.free[: self.n] = times, free

    def earliest(self, from_s: float, lasts_s: float, steps: int) -> float:
        """The first instant from which so much is free for so long; inf if there is none."""
        return float(earliest_gap(self.times, self.free, self.n, from_s, lasts_s, steps))

    def work_left(self, capacity: int) -> float:
        """Device-seconds, in millionths, that are taken before everything is as free as it gets."""
        spans = np.diff(self.times[: self.n])
        taken = np.maximum(0, capacity - self.free[: self.n - 1])
        return float((spans * taken).sum())


class Forecaster:
    """What one pass leaves, laid out."""

    def __init__(self, snapshot: Snapshot, frame: Frame, tree: QuotaTree) -> None:
        self.snapshot, self.frame, self.tree = snapshot, frame, tree
        self.now_s = snapshot.now_s
        self._shapes: dict[int, tuple[int, tuple[int, ...]]] = {}
        usable = snapshot.is_usable
        n_kinds = len(frame.kinds)
        self.capacity = [
            int(frame.n_devices[frame.kind_mask[kind] & usable].sum()) * FULL for kind in range(n_kinds)
        ]
        self.profiles = [_Profile(self.now_s, capacity) for capacity in self.capacity]
        self.of_team: dict[tuple[int, int], _Profile] = {}
        self._bounds_of: dict[tuple[int, int, int], list[tuple[_Profile, bool]]] = {}
        self._kind_of: list[int] = frame.kind.tolist()  # by node

    def steps(self, gang: Gang) -> tuple[int, tuple[int, ...]]:
        """Millionths of devices it holds at the least, and the types it accepts."""
        known = self._shapes.get(id(gang.shape))
        if known is None:
            steps = sum((ask.devices * FULL or ask.share_steps) * ask.least for ask in gang.shape.asks)
            known = self._shapes[id(gang.shape)] = steps, kinds_of(gang.shape) or ()
        return known

    def probable_s(self, gang: Gang) -> float:
        """How long it will probably run once it has started."""
        return probable_s(gang, self.snapshot.history_s)

    def _team(self, team: int, kind: int) -> _Profile | None:
        """What is left to a team of what it may hold at most; None: it is not limited."""
        tree = self.tree
        if team == NONE or not (tree.limited if tree.member_of(team) is None else tree.counted)[kind]:
            return None
        most = int(tree.subtree[team, kind]) + int(tree.borrow[team, kind])
        if most >= BIG or (kind != tree.jobs and most >= self.capacity[kind]):
            return None
        if (team, kind) not in self.of_team:
            self.of_team[team, kind] = _Profile(self.now_s, most)
        return self.of_team[team, kind]

    def _bounds(self, gang: Gang, kind: int, steps: int) -> list[tuple[_Profile, int]]:
        """What the gang takes from, and how much: devices of the kind, and what bounds its team and its member."""
        account = self.tree.account(gang)
        key = gang.team, account, kind
        bounds = self._bounds_of.get(key)
        if bounds is None:
            asked = [(gang.team, kind)]
            if self.tree.member_of(account) is not None:
                asked += [(account, kind), (account, self.tree.jobs)]
            found = ((self._team(team, column), column) for team, column in asked)
            bounds = [(profile, column != kind) for profile, column in found if profile is not None]
            bounds = self._bounds_of[key] = [(self.profiles[kind], False), *bounds]
        return [(profile, FULL if counts_jobs else steps) for profile, counts_jobs in bounds]

    def hold(self, gang: Gang, kind: int, steps: int, start_s: float, end_s: float) -> None:
        """Somebody holds devices."""
        for profile, amount in self._bounds(gang, kind, steps):
            profile.take(start_s, end_s, amount)

    def hold_all(self, held: Iterable[tuple[Gang, Placing, float, float]]) -> None:
        """These hold their places from then till then."""
        taken: dict[int, tuple[_Profile, list[tuple[float, float, int]]]] = {}
        for gang, placing, start_s, end_s in held:
            steps_of: dict[int, int] = {}
            for share in placing:
                ask = gang.shape.asks[share.group]
                steps = (ask.devices * FULL or ask.share_steps) * share.n_replicas
                if steps:
                    kind = self._kind_of[share.node]
                    steps_of[kind] = steps_of.get(kind, 0) + steps
            for kind, steps in steps_of.items():
                for profile, amount in self._bounds(gang, kind, steps):
                    taken.setdefault(id(profile), (profile, []))[1].append((start_s, end_s, amount))
        for profile, some in taken.values():
            profile.take_all(some)

    def place(self, gang: Gang, at_least_s: float) -> float:
        """Lay out a job; when it starts, inf if it never does."""
        steps, kinds = self.steps(gang)
        lasts_s = self.probable_s(gang)
        best: tuple[float, float, int] | None = None
        for kind in kinds:
            lasts_here_s = lasts_s if gang.limit_s != inf else lasts_s / self.frame.kinds[kind].speed
            start_s = self._earliest(gang, kind, at_least_s, lasts_here_s, steps)
            if start_s != inf and (best is None or start_s + lasts_here_s < best[0]):
                best = start_s + lasts_here_s, start_s, kind
        if best is None:
            return at_least_s if not steps else inf
        end_s, start_s, kind = best
        self.hold(gang, kind, steps, start_s, end_s)
        return start_s

    def _earliest(self, gang: Gang, kind: int, from_s: float, lasts_s: float, steps: int) -> float:
        bounds = self._bounds(gang, kind, steps)
        at_s = from_s
        while True:
            start_s = at_s
            for profile, amount in bounds:
                at_s = profile.earliest(at_s, lasts_s, amount)
                if at_s == inf:
                    return inf
            if at_s == start_s:
                return at_s


def forecast(
    snapshot: Snapshot,
    frame: Frame,
    tree: QuotaTree,
    starts: Iterable[Start],
    reserves: Sequence[Reserve],
    waiting: Sequence[Gang],
    at_least_s: Mapping[int, float],
    gone: Collection[int] = (),
) -> dict[int, float]:
    """When each of the waiting jobs, in their order, will probably start.

    Args:
        at_least_s: By job, an instant before which it will not start, where there is one.
        gone: Running jobs that leave in this pass.

    Returns:
        By job; those of which nobody can tell are left out.
    """
    laid = Forecaster(snapshot, frame, tree)
    now_s = snapshot.now_s
    gangs = {gang.id: gang for gang in snapshot.queue}
    held = [
        (running.gang, running.placing, now_s, probable_end_s(running, now_s, snapshot.history_s))
        for running in snapshot.running
        if running.gang.id not in gone
    ]
    for start in starts:
        gang = gangs[start.job_id]
        held.append((gang, start.placing, now_s, min(start.expected_end_s, now_s + laid.probable_s(gang))))
    for booking in snapshot.bookings:
        if booking.end_s > now_s:
            for kind, n in _booked(frame, booking.nodes, booking.kind, booking.n_devices).items():
                laid.profiles[kind].take(max(now_s, booking.start_s), booking.end_s, n * FULL)
    told: dict[int, float] = {}
    for reserve in reserves:
        gang = gangs[reserve.job_id]
        told[gang.id] = reserve.start_s
        held.append((gang, reserve.placing, reserve.start_s, reserve.start_s + laid.probable_s(gang)))
    laid.hold_all(held)
    # It waits now, so it starts when something changes, whatever the sums say.
    changes = [
        end for profile in laid.profiles for end in profile.times[1 : profile.n].tolist() if end > now_s
    ]
    soonest_s = min(changes, default=now_s + 1.0)
    rest = [gang for gang in waiting if gang.id not in told]
    for gang in rest[:_LAID_OUT]:
        start_s = laid.place(gang, max(soonest_s, at_least_s.get(gang.id, -inf)))
        if start_s != inf:
            told[gang.id] = start_s
    _spread_out(laid, rest[_LAID_OUT:], at_least_s, told)
    return told


def _booked(frame: Frame, nodes: Sequence[int], kind: int, n_devices: int) -> dict[int, int]:
    if not nodes:
        return {kind: n_devices}
    booked: dict[int, int] = {}
    for node in nodes:
        of = int(frame.kind[node])
        booked[of] = booked.get(of, 0) + int(frame.n_devices[node])
    return booked


def _spread_out(
    laid: Forecaster, rest: Sequence[Gang], at_least_s: Mapping[int, float], told: dict[int, float]
) -> None:
    """Behind what is laid out: the work ahead of each, over the devices of the type that it would get first."""
    ahead = [
        profile.work_left(capacity) for profile, capacity in zip(laid.profiles, laid.capacity, strict=True)
    ]
    if not rest:
        return
    shape_of = [id(gang.shape) for gang in rest]
    one_of = dict(zip(shape_of, rest, strict=True))
    rows: list[
        IntArray
    ] = []  # by shape: what it holds of each type that it accepts and that could hold it; else 0
    for gang in one_of.values():
        steps, kinds = laid.steps(gang)
        order = np.full(len(laid.capacity), NONE, dtype=np.int64)
        able = [kind for kind in kinds if laid.capacity[kind] >= steps > 0]
        order[: len(able)] = able
        rows.append(np.array([steps, *order], dtype=np.int64))
    row_of = dict(zip(one_of, range(len(rows)), strict=True))
    of = np.fromiter(map(row_of.__getitem__, shape_of), dtype=np.int64, count=len(rest))
    predicted_s = predicted_of_many(rest, laid.snapshot.history_s)
    limit_s, work_s = column(rest, "limit_s"), column(rest, "work_s")
    least_s = np.minimum(np.minimum(predicted_s, limit_s), work_s)
    lasts_s = np.where(np.isinf(least_s), _UNKNOWN_S, np.maximum(1.0, least_s))
    table = np.array(rows, dtype=np.int64)
    waits_s = spread_work(np.array(ahead), np.array(laid.capacity, dtype=np.float64), table, of, lasts_s)
    at_s = zip(map(attrgetter("id"), rest), (laid.now_s + waits_s).tolist(), strict=True)
    told.update(compress(at_s, (waits_s >= 0).tolist()))
    for job_id in at_least_s.keys() & told.keys():
        told[job_id] = max(told[job_id], at_least_s[job_id])

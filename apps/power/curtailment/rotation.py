"""Pauses that take turns: where all that may be done for the whole of an event is not enough.

Each job bears to stand still for a part of the event only. So the event is cut into turns of equal length, and in each
of them other jobs stand still, as many as are needed. A job has one turn, or several in a row: it is paused once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Final

from apps.power.curtailment.facts import INTERRUPTIBLE, Lever, Load, Option
from apps.power.curtailment.options import MICRO, borne

ROTATES_FROM: Final = 3  # tiers below are never paused
LEAST_TURN_S: Final = 600.0  # shorter ones would be spent on checkpoints and restarts
MOST_TURNS: Final = 24
_HALVINGS: Final = 20


@dataclass(frozen=True, slots=True)
class Turner:
    """A job that can stand still for a part of the time.

    Attributes:
        gives_uw: By limit, what its pause sheds beyond what is done with it anyway.
        bears_s: How long it may stand still at the most; what the change takes is part of it.
        change_s: What one pause loses beside: a checkpoint before it, a restart after it.
    """

    job_id: int
    gives_uw: Mapping[int, int]
    bears_s: float
    change_s: float


@dataclass(frozen=True, slots=True)
class Rota:
    """Who stands still when.

    Attributes:
        turn_s: Length of a turn.
        turns: By turn, the jobs that stand still.
        gives_uw: By limit, what is shed in every turn at the least.
    """

    turn_s: float
    turns: tuple[tuple[int, ...], ...]
    gives_uw: Mapping[int, int]


def rota(
    turners: Sequence[Turner],
    needs_uw: Mapping[int, int],
    window_s: float,
    *,
    first: frozenset[int] = frozenset(),
) -> Rota | None:
    """The rota with the fewest turns that sheds what is needed at every instant; else the one that sheds most.

    Args:
        needs_uw: By limit, what is missing.
        window_s: How long it is needed.
        first: Jobs that stand still already; they have the first turns.

    Returns:
        None where no turns can be made that shed anything throughout.
    """
    needs = {limit: need for limit, need in needs_uw.items() if need > 0}
    if not needs or window_s <= 0:
        return None
    best: Rota | None = None
    best_share = 0.0
    for n_turns in range(1, MOST_TURNS + 1):
        turn_s = window_s / n_turns
        if n_turns > 1 and turn_s < LEAST_TURN_S:
            break
        able = [(t, floor((t.bears_s - t.change_s) / turn_s + 1e-9)) for t in turners]
        able = [(t, min(n, n_turns)) for t, n in able if n > 0]
        share, turns = _fullest(able, needs, n_turns, first)
        if share > best_share + 1e-9:
            gives = {
                limit: min(
                    sum(t.gives_uw.get(limit, 0) for t, _ in able if t.job_id in turn) for turn in turns
                )
                for limit in needs
            }
            best, best_share = Rota(turn_s, turns, gives), share
        if best_share >= 1.0:
            break
    return best


def turner_of(load: Load, option: Option, window_s: float) -> Turner | None:
    """What a job can give by standing still for a part of the window, beside what is done with it for all of it.

    None for one that may not or cannot: of a lower tier, paused or made smaller already, or without a checkpoint.
    """
    if not ROTATES_FROM <= load.tier < INTERRUPTIBLE or load.checkpoint_s == inf:
        return None
    if option.lever not in (Lever.NONE, Lever.CAP):
        return None
    rate = load.curve.rate(option.cap, load.draw_w)
    each_w = min(load.draw_w, option.cap * load.curve.tdp_w) - load.curve.idle_w
    bears_s = (borne(load) - (1.0 - rate)) * window_s / rate
    if each_w <= 0 or bears_s <= 0:
        return None
    gives = {limit: int(each_w * MICRO * n) for limit, n in load.devices_under.items() if n}
    change_s = load.checkpoint_s + load.restart_s + 2 * load.curve.settle_s
    return Turner(load.job_id, gives, bears_s, change_s)


_Able = Sequence[tuple[Turner, int]]
_Turns = tuple[tuple[int, ...], ...]


def _fullest(
    able: _Able, needs: Mapping[int, int], n_turns: int, first: frozenset[int]
) -> tuple[float, _Turns]:
    """The largest share of the needs, at most all, that every turn can shed; and the turns."""
    # What all could give together, spread evenly, is more than any rota gives.
    most = min(
        sum(t.gives_uw.get(limit, 0) * n for t, n in able) / (need * n_turns) for limit, need in needs.items()
    )
    high = min(1.0, most)
    turns = _filled(able, needs, n_turns, high, first) if high > 0 else None
    if turns is not None:
        return high, turns
    low = 0.0
    found: _Turns = ()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        turns = _filled(able, needs, n_turns, middle, first) if middle > 0 else None
        if turns is None:
            high = middle
        else:
            low, found = middle, turns
    return low, found


def _filled(
    able: _Able, needs: Mapping[int, int], n_turns: int, share: float, first: frozenset[int]
) -> _Turns | None:
    """Turns that each shed this share of the needs; None where the jobs do not suffice."""
    wanted = {limit: need * share for limit, need in needs.items()}
    left = {t.job_id: n for t, n in able}
    jobs = {t.job_id: t for t, _ in able}
    fresh = sorted(jobs, key=lambda job: (job not in first, -_size(jobs[job], wanted), job))
    now: list[int] = []
    turns: list[tuple[int, ...]] = []
    for _ in range(n_turns):
        now = [job for job in now if left[job]]  # who can stays: each change costs
        missing = _missing(now, jobs, wanted)
        while missing:
            if not fresh:
                return None
            job = _next(fresh, jobs, missing, first)
            fresh.remove(job)
            now.append(job)
            missing = _missing(now, jobs, wanted)
        for job in now:
            left[job] -= 1
        turns.append(tuple(sorted(now)))
    return tuple(turns)


def _next(
    fresh: Sequence[int], jobs: Mapping[int, Turner], missing: Mapping[int, float], first: frozenset[int]
) -> int:
    """Who stands still already; else the least that is enough; else the most there is."""
    if fresh[0] in first:
        return fresh[0]
    enough = [
        job
        for job in fresh
        if all(jobs[job].gives_uw.get(limit, 0) >= watts for limit, watts in missing.items())
    ]
    if enough:
        return min(enough, key=lambda job: (sum(jobs[job].gives_uw.values()), job))
    return max(fresh, key=lambda job: (_size(jobs[job], missing), -job))


def _size(turner: Turner, wanted: Mapping[int, float]) -> float:
    return sum(
        min(1.0, turner.gives_uw.get(limit, 0) / watts) if watts < inf and watts > 0 else 0.0
        for limit, watts in wanted.items()
    )


def _missing(now: Sequence[int], jobs: Mapping[int, Turner], wanted: Mapping[int, float]) -> dict[int, float]:
    given = {limit: sum(jobs[job].gives_uw.get(limit, 0) for job in now) for limit in wanted}
    return {limit: watts - given[limit] for limit, watts in wanted.items() if given[limit] < watts - 0.5}

"""The exact answer where one limit asks: by every rule in turn, without a solver, in a few milliseconds.

With one limit each job is a class of options of a knapsack that has to be filled. The linear relaxation gives a price
for a watt; an option that is dearer at that price than the best one of its job by more than what a known plan is
dearer than the relaxation is in no best plan. What is left is gone through job by job, and of two partial plans the
one that sheds no more and costs no less is dropped.

Source: the price and the dropped options are those of D. Pisinger, "A minimal algorithm for the multiple-choice
knapsack problem" (1995); the partial plans are the usual dynamic programme by dominance.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Partial plans at a time. As long as they are few the best plan of all costs nothing to find; where they would be many
# one that is near enough is looked for, and where those are many as well other methods are quicker.
FEW_LABELS: Final = 4_000
MOST_LABELS: Final = 60_000
_SLACK: Final = 1e-9
_LARGEST: Final = float(2**62)

IntArray = NDArray[np.int64]


class Found(NamedTuple):
    """By job, the position of its option; and what no plan costs less than."""

    choices: list[int]
    bound: float


def cheapest(
    sheds: Sequence[IntArray], costs: Sequence[IntArray], need: int, *, close: float = 0.0
) -> Found | None:
    """Choose one option a job so that the limit's need is shed: least cost, then fewest jobs, then least shed.

    Args:
        sheds: By job, what each option sheds; the first, to do nothing, sheds nothing and costs nothing.
        costs: By job, what each option costs.
        need: To be shed; no more than the largest sheds together.
        close: Where there is much to go through, a plan that costs so much more than the best, as a share, will do.

    Returns:
        None where too much would have to be gone through.
    """
    n = len(sheds)
    if sum(float(cost.max()) for cost in costs) * (n + 1) > _LARGEST:
        return None
    # Jobs touched are told apart where costs are equal.
    keys = [cost * (n + 1) + (np.arange(len(cost)) > 0) for cost in costs]
    price, rounded = _relaxed(sheds, keys, need)
    first = _put_back(sheds, keys, rounded, need)
    regrets = [key - price * shed for shed, key in zip(sheds, keys, strict=True)]
    least = [float(regret.min()) for regret in regrets]
    bound = sum(least) + price * need
    known = float(sum(int(key[o]) for key, o in zip(keys, first, strict=True)))
    budget = (known - bound) * (1 + _SLACK) + _SLACK * max(1.0, known)
    try:
        best = _walked(sheds, keys, regrets, need, price, budget, FEW_LABELS if close else MOST_LABELS)
        return Found(best or first, _cost(costs, best or first))
    except _TooMany:
        if not close:
            return None
    enough = known * (1.0 - close)
    if bound >= enough:
        return Found(first, bound / (n + 1))
    try:
        best = _walked(sheds, keys, regrets, need, price, budget - known * close, MOST_LABELS)
    except _TooMany:
        return None
    # Nobody is cheaper than what was known by more than what is near enough.
    return Found(first, enough / (n + 1)) if best is None else Found(best, _cost(costs, best))


class _TooMany(Exception):
    """There are too many partial plans."""


def _cost(costs: Sequence[IntArray], choices: Sequence[int]) -> float:
    return float(sum(int(cost[o]) for cost, o in zip(costs, choices, strict=True)))


def _put_back(
    sheds: Sequence[IntArray], keys: Sequence[IntArray], choices: Sequence[int], need: int
) -> list[int]:
    """With every job put back to the cheapest option that the need bears, the dearest jobs first."""
    told = list(choices)
    spare = sum(int(shed[o]) for shed, o in zip(sheds, told, strict=True)) - need
    for job in sorted(range(len(told)), key=lambda job: (-int(keys[job][told[job]]), job)):
        now = int(sheds[job][told[job]])
        able = np.flatnonzero((sheds[job] >= now - spare) & (keys[job] < keys[job][told[job]]))
        if len(able):
            told[job] = int(able[np.argmin(keys[job][able])])
            spare -= now - int(sheds[job][told[job]])
    return told


def _relaxed(sheds: Sequence[IntArray], keys: Sequence[IntArray], need: int) -> tuple[float, list[int]]:
    """(price of a watt in the linear relaxation, a plan): its one split job takes the heavier of its two parts."""
    steps: list[tuple[float, int, int, int]] = []  # price, job, what more is shed, option
    for job, (shed, key) in enumerate(zip(sheds, keys, strict=True)):
        steps.extend(_hull(job, shed, key))
    steps.sort()
    choices, left, price = [0] * len(sheds), need, 0.0
    for price_each, job, more, option in steps:
        if left <= 0:
            break
        price, choices[job] = price_each, option
        left -= more
    return price, choices


def _hull(job: int, shed: IntArray, key: IntArray) -> list[tuple[float, int, int, int]]:
    """The steps along the lower hull of (shed, cost) of one job, the cheapest watt first."""
    corners = [0]
    for option in np.lexsort((key, shed)).tolist():
        s, k = int(shed[option]), int(key[option])
        if s <= int(shed[corners[-1]]):
            continue
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            ahead = (int(key[b]) - int(key[a])) * (s - int(shed[b]))
            if ahead < (k - int(key[b])) * (int(shed[b]) - int(shed[a])):
                break
            corners.pop()
        corners.append(option)
    told = []
    for a, b in pairwise(corners):
        more = int(shed[b]) - int(shed[a])
        told.append(((int(key[b]) - int(key[a])) / more, job, more, b))
    return told


def _walked(
    sheds: Sequence[IntArray],
    keys: Sequence[IntArray],
    regrets: Sequence[NDArray[np.float64]],
    need: int,
    price: float,
    budget: float,
    most_labels: int,
) -> list[int] | None:
    """The best plan whose cost is within the budget above the relaxation; None: there is none."""
    least_of = [float(regret.min()) for regret in regrets]
    kept = [np.flatnonzero(r - low <= budget) for r, low in zip(regrets, least_of, strict=True)]
    if budget < 0 or not all(len(some) for some in kept):
        return None
    # Who has no choice left first, then who has little: as few partial plans as can be for as long as can be.
    order = sorted(range(len(sheds)), key=lambda job: (len(kept[job]), job))
    most = sum(int(sheds[job][kept[job]].max()) for job in order)
    least = sum(int(sheds[job][kept[job]].min()) for job in order)
    shed, key, over = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1)
    trail: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for job in order:
        some = kept[job]
        most -= int(sheds[job][some].max())
        least -= int(sheds[job][some].min())
        if len(shed) * len(some) > most_labels:
            raise _TooMany
        then = (shed[:, None] + sheds[job][some]).ravel()
        paid = (key[:, None] + keys[job][some]).ravel()
        dear = (over[:, None] + (regrets[job][some] - least_of[job])).ravel()
        # What is shed beyond the need is paid for at its price at least.
        excess = np.maximum(0, then + least - need) * price
        alive = np.flatnonzero((then + most >= need) & (dear + excess <= budget))
        alive = alive[np.lexsort((paid[alive], -then[alive]))]
        cheapest_yet = np.minimum.accumulate(paid[alive])
        fresh = np.ones(len(alive), dtype=bool)
        # Dropped: who costs more than somebody that sheds as much; and who is the same as the one before.
        fresh[1:] = (paid[alive][1:] <= cheapest_yet[:-1]) & (
            (paid[alive][1:] != paid[alive][:-1]) | (then[alive][1:] != then[alive][:-1])
        )
        alive = alive[fresh]
        trail.append((alive // len(some), some[alive % len(some)]))
        shed, key, over = then[alive], paid[alive], dear[alive]
    if not len(shed):
        return None
    at = int(np.lexsort((shed, key))[0])
    choices = [0] * len(sheds)
    for job, (before, option) in zip(reversed(order), reversed(trail), strict=True):
        choices[job] = int(option[at])
        at = int(before[at])
    return choices

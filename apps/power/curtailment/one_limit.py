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
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_LABELS: Final = 100_000  # partial plans; with more the general methods are quicker
_SLACK: Final = 1e-9
_LARGEST: Final = float(2**62)

IntArray = NDArray[np.int64]


def cheapest(sheds: Sequence[IntArray], costs: Sequence[IntArray], need: int) -> list[int] | None:
    """Choose one option a job so that the limit's need is shed: least cost, then fewest jobs, then least shed.

    Args:
        sheds: By job, what each option sheds; the first, to do nothing, sheds nothing and costs nothing.
        costs: By job, what each option costs.
        need: To be shed; no more than the largest sheds together.

    Returns:
        By job, the position of its option; None where too much would have to be gone through.
    """
    n = len(sheds)
    if sum(float(cost.max()) for cost in costs) * (n + 1) > _LARGEST:
        return None
    # Jobs touched are told apart where costs are equal.
    keys = [cost * (n + 1) + (np.arange(len(cost)) > 0) for cost in costs]
    price, first = _relaxed(sheds, keys, need)
    regrets = [key - price * shed for shed, key in zip(sheds, keys, strict=True)]
    least = [float(regret.min()) for regret in regrets]
    bound = sum(least) + price * need
    known = float(sum(int(key[o]) for key, o in zip(keys, first, strict=True)))
    budget = (known - bound) * (1 + _SLACK) + _SLACK * max(1.0, known)
    kept = [np.flatnonzero(r - low <= budget) for r, low in zip(regrets, least, strict=True)]
    return _walked(sheds, keys, regrets, kept, need, price, budget)


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
    kept: Sequence[NDArray[np.intp]],
    need: int,
    price: float,
    budget: float,
) -> list[int] | None:
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
        if len(shed) * len(some) > MOST_LABELS:
            return None
        then = (shed[:, None] + sheds[job][some]).ravel()
        paid = (key[:, None] + keys[job][some]).ravel()
        dear = (over[:, None] + (regrets[job][some] - regrets[job].min())).ravel()
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
        return None  # by the last digits of the price nothing was left
    at = int(np.lexsort((shed, key))[0])
    choices = [0] * len(sheds)
    for job, (before, option) in zip(reversed(order), reversed(trail), strict=True):
        choices[job] = int(option[at])
        at = int(before[at])
    return choices

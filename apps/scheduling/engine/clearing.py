"""What it costs at the least to make room on one node: who of those that hold its devices would leave."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
Curve = list[tuple[float, tuple[T, ...]]]  # by number of replicas, from 1 on: the cost, and who leaves

MOST_OPTIONS = 24  # of those that hold devices of one node, so many are weighed against each other


def curve(free: int, devices: int, most: int, options: Sequence[tuple[int, float, T]]) -> Curve[T]:
    """What room for 1, 2, ... replicas costs; it ends where everybody's leaving makes no more.

    Source: the knapsack problem, by dynamic programming over options and devices.

    Args:
        free: Devices of the node that are free.
        devices: Devices of a replica.
        most: Replicas that are looked for.
        options: (devices it holds on this node, its price or its part of it here, who), the cheapest first. Of equal
            prices the fewer leave.
    """
    need = max(0, most * devices - free)
    best: list[tuple[float, int, tuple[T, ...]] | None] = [(0.0, 0, ()), *([None] * need)]
    for n, cost, who in options[:MOST_OPTIONS]:
        for have in range(need - 1, -1, -1):
            at = best[have]
            if at is None:
                continue
            to = min(need, have + n)
            there = best[to]
            total = at[0] + cost
            if there is None or (total, at[1] + 1) < there[:2]:
                best[to] = (total, at[1] + 1, (*at[2], who))
    # What frees more frees as much.
    for have in range(need - 1, -1, -1):
        above, here = best[have + 1], best[have]
        if above is not None and (here is None or above[:2] < here[:2]):
            best[have] = above
    found: Curve[T] = []
    for r in range(1, most + 1):
        at = best[max(0, r * devices - free)]
        if at is None:
            break
        found.append((at[0], at[2]))
    return found

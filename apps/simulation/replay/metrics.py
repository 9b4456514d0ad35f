"""Measures of a schedule, defined once: for scenarios and for replayed logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

FLOOR_S: Final = 10  # of the running time in a bounded slowdown


@dataclass(frozen=True, slots=True)
class Served:
    """One job that came to its end."""

    wait_s: Fraction | int | float
    run_s: Fraction | int | float


def bounded_slowdown(served: Served) -> float:
    """How many times longer a job took than it ran, short jobs counted as ten seconds; at least 1.

    Source: Feitelson, "Metrics for parallel job scheduling and their convergence", JSSPP 2001.
    """
    return float(max(1, (served.wait_s + served.run_s) / max(served.run_s, FLOOR_S)))


def mean(values: Sequence[Fraction | int | float]) -> float | None:
    """Mean, summed exactly; None of nothing."""
    if not values:
        return None
    return float(sum((Fraction(value) for value in values), Fraction(0)) / len(values))


def element_at(values: Sequence[Fraction | int | float], share: Fraction) -> float | None:
    """The element floor(share x n) of the sorted values, counted from 0; None of nothing."""
    if not values:
        return None
    return float(sorted(values)[int(share * len(values))])

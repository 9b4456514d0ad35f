"""How long a job will probably run, from what its owner's last jobs did.

The mean of the last two run times of the same owner, never over the declared limit (Tsafrir, Etsion and Feitelson,
"Backfilling Using System-Generated Predictions Rather than User Runtime Estimates", TPDS 2007). Predictions order the
queue and make forecasts; nothing is stopped by one, and no promise rests on one.
"""

from collections.abc import Sequence
from math import inf
from operator import attrgetter

import numpy as np

from apps.scheduling.engine.facts import NONE, FloatArray, Gang

_KEPT = 2


class History:
    """Run times by owner, the last few of each."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, ...]] = {}

    def learn(self, owner: int, run_s: float) -> None:
        """A job of this owner has ended after so many seconds of running."""
        self._last[owner] = (*self._last.get(owner, ()), run_s)[-_KEPT:]

    def predict_s(self, owner: int, limit_s: float = inf) -> float:
        """Seconds the owner's next job is expected to run; its limit where nothing is known."""
        last = self._last.get(owner)
        return limit_s if not last else max(1.0, min(limit_s, sum(last) / len(last)))


def left_s(took_s: float, done_s: float) -> float:
    """Seconds of running to expect of a job.

    Args:
        took_s: Seconds that its owner's last jobs ran, from beginning to end; inf: nothing is known.
        done_s: Of its own run time, what earlier attempts did and kept. Who outran what was expected goes on as long
            again.
    """
    return took_s - done_s if took_s > done_s else max(1.0, done_s)


def left_of_many(took_s: FloatArray, done_s: FloatArray) -> FloatArray:
    """`left_s` of many."""
    # What is not known is not made smaller by what was done.
    return np.where(
        took_s > done_s, took_s - np.where(np.isinf(took_s), 0.0, done_s), np.maximum(1.0, done_s)
    )


def predicted_s(gang: Gang, history_s: Sequence[float]) -> float:
    """Seconds of running to expect of this gang by its owner's history; inf where there is none.

    Args:
        history_s: As the snapshot's.
    """
    return gang.predicted_s if gang.history == NONE else left_s(history_s[gang.history], gang.done_s)


def predicted_of_many(gangs: Sequence[Gang], history_s: Sequence[float]) -> FloatArray:
    """`predicted_s` of each of these, (g,)."""
    at = np.fromiter(map(attrgetter("history"), gangs), dtype=np.int64, count=len(gangs))
    is_told = at != NONE
    if not is_told.any():
        return column(gangs, "predicted_s")
    predicted = np.zeros(len(gangs)) if is_told.all() else column(gangs, "predicted_s")
    took_s = np.array(history_s, dtype=np.float64)[at[is_told]]
    predicted[is_told] = left_of_many(took_s, column(gangs, "done_s")[is_told])
    return predicted


def column(gangs: Sequence[Gang], name: str) -> FloatArray:
    """(g,) a number of each of these."""
    return np.fromiter(map(attrgetter(name), gangs), dtype=np.float64, count=len(gangs))

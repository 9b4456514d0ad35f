"""How long a job will probably run, from what its owner's last jobs did.

The mean of the last two run times of the same person, never over the declared limit (Tsafrir, Etsion and Feitelson,
"Backfilling Using System-Generated Predictions Rather than User Runtime Estimates", TPDS 2007). Predictions order the
queue and make forecasts; nothing is stopped by one, and no promise rests on one.
"""

from math import inf

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

"""What power events have cost each job so far, and what it still bears."""

from collections import defaultdict, deque
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from apps.power.curtailment.options import allowed_loss, left_to_bear


class Window(NamedTuple):
    """An event over which a job's loss is averaged."""

    name: str
    start: Fraction
    end: Fraction


class Spent:
    """The ledger of losses: seconds of work, by job, that it did not do because it was held down.

    Args:
        window_s: 0: the tolerance of a tier holds over each event by itself. Else over any span of this length: what an
            event took is gone for the next one.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._of_event: dict[str, dict[int, float]] = defaultdict(dict)
        self._rolling: dict[int, deque[tuple[Fraction, float]]] = defaultdict(deque)  # (until when, seconds)

    def count(self, until: Fraction, lost_s: Iterable[tuple[int, float]], events: Iterable[str]) -> None:
        """Add what jobs lost up to now, to all events that are active."""
        names = list(events)
        for job, seconds in lost_s:
            for name in names:
                of = self._of_event[name]
                of[job] = of.get(job, 0.0) + seconds
            if self._window_s:
                self._rolling[job].append((until, seconds))

    def bears(
        self, job: int, tier: int, since: Fraction, window_s: float, at: Fraction, binding: Iterable[Window]
    ) -> float:
        """The largest average loss, as a share, that a job still bears over what comes.

        Args:
            since: When it started: an event counts for it from then on.
            window_s: How long it is to bear it.
            binding: The events that bind, without emergencies.
        """
        if self._window_s:
            spent_s = self.spent_s(job, at)
            return left_to_bear(
                tier, span_s=self._window_s, spent_s=spent_s, window_s=window_s, is_rolling=True
            )
        least = allowed_loss(tier)
        for event in binding:
            begun, left = max(event.start, since), event.end - max(at, event.start, since)
            if left <= 0:
                continue
            spent_s = self._of_event[event.name].get(job, 0.0)
            span_s = float(event.end - begun)
            least = min(least, left_to_bear(tier, span_s=span_s, spent_s=spent_s, window_s=float(left)))
        return least

    def spent_s(self, job: int, at: Fraction) -> float:
        """What a job lost within the rolling window."""
        of = self._rolling[job]
        while of and float(at - of[0][0]) >= self._window_s:
            of.popleft()
        return sum(seconds for _, seconds in of)

"""What happens next: a heap of things to come, and the virtual clock that jumps from one to the next."""

import heapq
from fractions import Fraction
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT")

MAX_DENOMINATOR: Final = 10**18


def exact(value: float) -> Fraction:
    """A number as it was written: 0.1 is a tenth, not the float nearest to it."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def plain(value: Fraction) -> int | float:
    """A number as it is to be written: whole where it is whole."""
    return value.numerator if value.denominator == 1 else float(value)


class Agenda(Generic[ItemT]):
    """Things to come, in order of time, then rank, then the order in which they were put in.

    Times are exact fractions, so that sums do not drift and 0.1 + 0.2 is 0.3; two times that are the same float are
    one instant. At equal times a lower rank comes first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, tuple[int, ...], int, Fraction, ItemT]] = []
        self._n_put = 0
        self.now = Fraction(0)
        self.now_s = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, at: Fraction, rank: tuple[int, ...], item: ItemT) -> None:
        """Let `item` happen at `at`, which is not in the past."""
        if at.denominator > MAX_DENOMINATOR:
            at = at.limit_denominator(
                MAX_DENOMINATOR
            )  # keeps long chains of odd paces from growing without end
        if at < self.now:
            at = self.now
        heapq.heappush(self._heap, (float(at), rank, self._n_put, at, item))
        self._n_put += 1

    @property
    def next_s(self) -> float:
        """When the next thing happens."""
        return self._heap[0][0]

    def take_instant(self) -> list[ItemT]:
        """Move the clock to the next instant and take everything that happens then."""
        self.now_s, _, _, self.now, _ = self._heap[0]
        return self.take_due()

    def take_due(self) -> list[ItemT]:
        """Take what has become due at this very instant."""
        items = []
        while self._heap and self._heap[0][0] <= self.now_s:
            items.append(heapq.heappop(self._heap)[-1])
        return items

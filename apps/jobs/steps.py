"""Step times of a gang: added up by rank, and held together to find who keeps the others waiting. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

LATE_WEIGHT: Final = 0.1  # of each new step time in the moving average
LEAST_STEPS: Final = 20  # step times of a rank before it is judged
LEAST_RANKS: Final = 3  # of fewer, nobody can tell who is slow and who is quick
SLOW_BY: Final = 0.15  # over the median of its group
_SIGMA: Final = 1.4826  # a normal deviation by the median absolute deviation
N_SIGMA: Final = 3.0


@dataclass(slots=True)
class Ranks:
    """Step times by rank; lists of equal length, a place in each is a rank."""

    last_steps: list[int]
    counts: list[int]
    means_s: list[float]
    ewmas_s: list[float]
    lasts_s: list[float]

    def grow(self, n_ranks: int) -> None:
        """Make room for so many ranks."""
        n_new = n_ranks - len(self.counts)
        if n_new > 0:
            self.last_steps += [-1] * n_new
            self.counts += [0] * n_new
            for values in (self.means_s, self.ewmas_s, self.lasts_s):
                values += [0.0] * n_new

    def add(self, rank: int, step: int, time_s: float) -> bool:
        """Take a step time, unless it is of a step that was taken already: a post may come twice."""
        if step <= self.last_steps[rank]:
            return False
        n = self.counts[rank] + 1
        self.last_steps[rank], self.counts[rank], self.lasts_s[rank] = step, n, time_s
        self.means_s[rank] += (time_s - self.means_s[rank]) / n
        # The first ones weigh alike: an average that began with a slow first step would stay slow for long.
        weight = max(LATE_WEIGHT, 1.0 / n)
        self.ewmas_s[rank] += weight * (time_s - self.ewmas_s[rank])
        return True


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one rank does beside the others of its group."""

    rank: int
    step_s: float
    median_s: float
    is_slow: bool

    @property
    def slower_by(self) -> float:
        """Share of the median by which its steps take longer; below 0: it is quicker."""
        return self.step_s / self.median_s - 1.0

    @property
    def relative_speed(self) -> float:
        return min(1.0, self.median_s / self.step_s)


def judge(ranks: Ranks, group: Sequence[int]) -> list[Judgement]:
    """Hold the ranks of one group together; nothing, if too little is known.

    A rank is slow if its steps take 15 % longer than the median, and if that lies beyond the usual spread: three
    deviations, estimated from the median absolute deviation, which no straggler can stretch. Where half of the
    ranks are slow, nobody can tell them from the others.
    """
    times_s: Mapping[int, float] = {
        rank: ranks.ewmas_s[rank]
        for rank in group
        if rank < len(ranks.counts) and ranks.counts[rank] >= LEAST_STEPS
    }
    if len(times_s) < LEAST_RANKS:
        return []
    middle_s = median(times_s.values())
    spread_s = _SIGMA * median(abs(time_s - middle_s) for time_s in times_s.values())
    limit_s = middle_s + max(SLOW_BY * middle_s, N_SIGMA * spread_s)
    return [Judgement(rank, time_s, middle_s, time_s > limit_s) for rank, time_s in times_s.items()]

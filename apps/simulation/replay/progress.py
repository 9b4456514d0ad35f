"""How one attempt of a job gets on: pace, checkpoints, restart, limit, and what is lost when it is cut.

An attempt first spends `restart_s` (if it is not the first), then works in turns of `interval_s`, each followed by a
checkpoint of `cost_s` in which no work is done; none is written at the very end. Everything counts as running time.
Exact: all numbers are fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class Saving:
    """How a job writes checkpoints."""

    interval_s: Fraction
    cost_s: Fraction
    restart_s: Fraction


@dataclass(frozen=True, slots=True)
class Split:
    """Where the running time of an attempt went, in seconds; `rework_s` is in none of the others."""

    work_s: Fraction
    starting_s: Fraction
    checkpoint_s: Fraction
    rework_s: Fraction


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, from the moment it holds its devices."""

    work_s: Fraction  # left to do, in seconds at full pace
    pace: Fraction  # seconds of work done in a second of running
    restart_s: Fraction  # spent before any work
    saving: Saving | None

    @property
    def length_s(self) -> Fraction:
        """Running time until the work is done."""
        turn_s = self.work_s / self.pace
        return self.restart_s + turn_s + self._n_checkpoints(turn_s) * self._cost_s

    @property
    def _cost_s(self) -> Fraction:
        return ZERO if self.saving is None else self.saving.cost_s

    def _n_checkpoints(self, turn_s: Fraction) -> int:
        """Checkpoints written within so much working time, if it goes on to its end."""
        if self.saving is None:
            return 0
        n = turn_s / self.saving.interval_s
        return max(0, -(-n.numerator // n.denominator) - 1)

    def _n_done(self, elapsed_s: Fraction) -> int:
        """Checkpoints that are complete after so much running time."""
        if self.saving is None or elapsed_s <= self.restart_s:
            return 0
        turns = (elapsed_s - self.restart_s) / (self.saving.interval_s + self.saving.cost_s)
        return min(turns.numerator // turns.denominator, self._n_checkpoints(self.work_s / self.pace))

    def saved_work_s(self, elapsed_s: Fraction) -> Fraction:
        """Work that the last complete checkpoint of this attempt keeps."""
        if self.saving is None:
            return ZERO
        return self._n_done(elapsed_s) * self.saving.interval_s * self.pace

    def lost_s(self, elapsed_s: Fraction) -> Fraction:
        """Running time that is lost if the attempt is cut now: all since the last complete checkpoint."""
        n_done = self._n_done(elapsed_s)
        if n_done == 0 or self.saving is None:
            return elapsed_s
        return elapsed_s - self.restart_s - n_done * (self.saving.interval_s + self.saving.cost_s)

    def split(self, elapsed_s: Fraction, *, is_lost: bool) -> Split:
        """Where the running time went; `is_lost` if the attempt was cut and what is not saved is to be done again."""
        rework_s = self.lost_s(elapsed_s) if is_lost else ZERO
        kept_s = elapsed_s - rework_s
        starting_s = min(self.restart_s, kept_s)
        checkpoint_s = ZERO
        if self.saving is not None and kept_s > self.restart_s:
            period_s = self.saving.interval_s + self.saving.cost_s
            n_done = self._n_done(kept_s)
            into_s = kept_s - self.restart_s - n_done * period_s
            last_s = ZERO
            if n_done < self._n_checkpoints(self.work_s / self.pace):
                last_s = max(ZERO, into_s - self.saving.interval_s)  # one was being written
            checkpoint_s = n_done * self.saving.cost_s + last_s
        return Split(kept_s - starting_s - checkpoint_s, starting_s, checkpoint_s, rework_s)


def declared_work_s(
    work_s: Fraction, *, restart_s: Fraction, saving: Saving | None, paces: Sequence[Fraction]
) -> Fraction:
    """Work to tell a planner that divides it by the pace, so that checkpoints and restart are never left out.

    Exact where all paces are equal; with several, the smallest number that is short at none of them.
    """
    if saving is None and not restart_s:
        return work_s
    return max(pace * Attempt(work_s, pace, restart_s, saving).length_s for pace in paces or (Fraction(1),))

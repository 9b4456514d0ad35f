"""How one attempt of a job gets on: pace, checkpoints, restart, limit, and what is lost when it is cut.

An attempt first spends `restart_s` (if it is not the first), then works in turns of `interval_s`, each followed by a
checkpoint of `cost_s` in which no work is done; none is written at the very end. Everything counts as running time.
Exact: all numbers are fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

ZERO = Fraction(0)
_MOST_PACES = 64  # beyond so many, what a planner is told is a bound and not worked out pace by pace


@dataclass(frozen=True, slots=True)
class Saving:
    """How a job writes checkpoints."""

    interval_s: Fraction
    cost_s: Fraction
    restart_s: Fraction
    on_resize: bool = False  # a change of size is a checkpoint and a restart


@dataclass(frozen=True, slots=True)
class Split:
    """Where the running time of an attempt went, in seconds; `rework_s` is in none of the others."""

    work_s: Fraction
    starting_s: Fraction
    checkpoint_s: Fraction
    rework_s: Fraction

    def __sub__(self, other: "Split") -> "Split":
        return Split(
            self.work_s - other.work_s,
            self.starting_s - other.starting_s,
            self.checkpoint_s - other.checkpoint_s,
            self.rework_s - other.rework_s,
        )

    @property
    def total_s(self) -> Fraction:
        """Running time in all."""
        return self.work_s + self.starting_s + self.checkpoint_s + self.rework_s


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one pace, from the moment it holds its devices or was given another size.

    The last five fields are what an attempt that was resized brings along.
    """

    work_s: Fraction  # left to do, in seconds at full pace
    pace: Fraction  # seconds of work done in a second of running
    restart_s: Fraction  # spent before any work
    saving: Saving | None
    writing_s: Fraction = ZERO  # left of the checkpoint that was being written
    into_s: Fraction = ZERO  # working time since the last checkpoint
    unsaved_work_s: Fraction = ZERO  # work done since then
    unsaved_run_s: Fraction = ZERO  # running time since then
    saves_first: bool = (
        False  # its work is safe once restart and checkpoint are over, also if they take no time
    )

    @property
    def length_s(self) -> Fraction:
        """Running time until the work is done."""
        turn_s = self.work_s / self.pace
        return self._head_s + turn_s + self._n_checkpoints(turn_s) * self._cost_s

    @property
    def _cost_s(self) -> Fraction:
        return ZERO if self.saving is None else self.saving.cost_s

    @property
    def _head_s(self) -> Fraction:
        return self.restart_s + self.writing_s

    def _n_checkpoints(self, turn_s: Fraction) -> int:
        """Checkpoints written within so much working time, if it goes on to its end."""
        if self.saving is None:
            return 0
        n = (turn_s + self.into_s) / self.saving.interval_s
        return max(0, -(-n.numerator // n.denominator) - 1)

    def _n_done(self, elapsed_s: Fraction) -> int:
        """Checkpoints begun in this turn that are complete after so much running time."""
        if self.saving is None:
            return 0
        first_s = self._head_s + self.saving.interval_s - self.into_s + self.saving.cost_s
        if elapsed_s < first_s:
            return 0
        turns = (elapsed_s - first_s) / (self.saving.interval_s + self.saving.cost_s)
        return min(turns.numerator // turns.denominator + 1, self._n_checkpoints(self.work_s / self.pace))

    def saved_at_s(self, elapsed_s: Fraction) -> Fraction | None:
        """After which running time the last complete checkpoint was there; None: none since the turn began."""
        n_done = self._n_done(elapsed_s)
        if n_done and self.saving is not None:
            return self._head_s + n_done * (self.saving.interval_s + self.saving.cost_s) - self.into_s
        saves = self.saves_first or self.writing_s > 0
        return self._head_s if saves and elapsed_s >= self._head_s else None

    def saved_work_s(self, elapsed_s: Fraction) -> Fraction:
        """Work that the last complete checkpoint of this turn keeps."""
        n_done = self._n_done(elapsed_s)
        if n_done and self.saving is not None:
            return self.unsaved_work_s + (n_done * self.saving.interval_s - self.into_s) * self.pace
        return self.unsaved_work_s if self.saved_at_s(elapsed_s) is not None else ZERO

    def lost_s(self, elapsed_s: Fraction) -> Fraction:
        """Running time that is lost if the attempt is cut now: all since the last complete checkpoint."""
        saved_at_s = self.saved_at_s(elapsed_s)
        return self.unsaved_run_s + elapsed_s if saved_at_s is None else elapsed_s - saved_at_s

    def split(self, elapsed_s: Fraction, *, is_lost: bool) -> Split:
        """Where the running time went; `is_lost` if the attempt was cut and what is not saved is to be done again."""
        kept_s = elapsed_s
        if is_lost:
            kept_s = self.saved_at_s(elapsed_s) or ZERO
        starting_s = min(self.restart_s, kept_s)
        checkpoint_s = min(self.writing_s, kept_s - starting_s)
        if self.saving is not None and kept_s > self._head_s:
            checkpoint_s += self._n_done(kept_s) * self.saving.cost_s + self._written_s(kept_s)
        return Split(kept_s - starting_s - checkpoint_s, starting_s, checkpoint_s, elapsed_s - kept_s)

    def _since_save_s(self, elapsed_s: Fraction) -> tuple[Fraction, Fraction]:
        """Running time since the last checkpoint or the turn began; working time until the next one begins."""
        assert self.saving is not None
        n_done = self._n_done(elapsed_s)
        if not n_done:
            return max(ZERO, elapsed_s - self._head_s), self.saving.interval_s - self.into_s
        return elapsed_s - (self.saved_at_s(elapsed_s) or ZERO), self.saving.interval_s

    def _is_writing(self, elapsed_s: Fraction) -> bool:
        if self.saving is None or elapsed_s <= self._head_s:
            return False
        since_s, due_s = self._since_save_s(elapsed_s)
        return since_s >= due_s and self._n_done(elapsed_s) < self._n_checkpoints(self.work_s / self.pace)

    def _written_s(self, elapsed_s: Fraction) -> Fraction:
        """Time spent so far on the checkpoint that is being written."""
        if not self._is_writing(elapsed_s):
            return ZERO
        since_s, due_s = self._since_save_s(elapsed_s)
        return since_s - due_s

    def after(self, elapsed_s: Fraction, pace: Fraction) -> "Attempt":
        """The same attempt, going on at another pace."""
        worked_s = self.split(elapsed_s, is_lost=False).work_s
        saved_at_s = self.saved_at_s(elapsed_s)
        if elapsed_s <= self._head_s:
            restart_s = max(ZERO, self.restart_s - elapsed_s)
            writing_s = self.writing_s - max(ZERO, elapsed_s - self.restart_s)
            into_s = self.into_s
        else:
            restart_s = writing_s = ZERO
            into_s = ZERO
            if self.saving is not None:
                since_s, _ = self._since_save_s(elapsed_s)
                into_s = since_s + (self.into_s if not self._n_done(elapsed_s) else ZERO)
                if self._is_writing(elapsed_s):
                    writing_s, into_s = self.saving.cost_s - self._written_s(elapsed_s), ZERO
        work_done_s = worked_s * self.pace
        unsaved_work_s = self.unsaved_work_s + work_done_s - self.saved_work_s(elapsed_s)
        return Attempt(
            self.work_s - work_done_s,
            pace,
            restart_s,
            self.saving,
            writing_s,
            into_s,
            unsaved_work_s,
            self.lost_s(elapsed_s) if saved_at_s is not None else self.unsaved_run_s + elapsed_s,
            self.saves_first and saved_at_s is None,
        )

    def resized(self, elapsed_s: Fraction, pace: Fraction) -> "Attempt":
        """The same attempt, going on at another size; with `on_resize` by a checkpoint and a restart.

        One that was at it already begins anew: what is being written is of no use to another size.
        """
        goes_on = self.after(elapsed_s, pace)
        if self.saving is None or not self.saving.on_resize:
            return goes_on
        return replace(
            goes_on,
            restart_s=self.saving.restart_s,
            writing_s=self.saving.cost_s,
            into_s=ZERO,
            saves_first=True,
        )


def declared_work_s(
    work_s: Fraction, *, restart_s: Fraction, saving: Saving | None, paces: Sequence[Fraction]
) -> Fraction:
    """Work to tell a planner that divides it by the pace, so that checkpoints and restart are never left out.

    Exact where all paces are equal; with several, the smallest number that is short at none of them; with very many,
    one that is short at no pace up to the fastest.
    """
    if saving is None and not restart_s:
        return work_s
    if len(paces) > _MOST_PACES:
        # One checkpoint fewer than there are intervals, begun ones counted, is at most their exact number.
        checkpoint_s = work_s / saving.interval_s * saving.cost_s if saving is not None else ZERO
        return work_s + checkpoint_s + max(paces) * restart_s
    return max(pace * Attempt(work_s, pace, restart_s, saving).length_s for pace in paces or (Fraction(1),))

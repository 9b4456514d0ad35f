"""Pauses that take turns in a simulation: who stands still when, and that the next do before the last go on."""

from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any

from apps.power.curtailment.facts import INTERRUPTIBLE, Curtailment, Lever, Option
from apps.power.curtailment.rotation import Rota, rota, turner_of
from apps.simulation.replay.heap import exact

if TYPE_CHECKING:
    from apps.simulation.response import Response


@dataclass(frozen=True, slots=True)
class _Standing:
    """A rota in force, or to be.

    Attributes:
        cause: What it was made for: the events, their targets, and who runs.
        beyond_w: By domain, what is missing all the same.
        held: By job with turns, what is done with it whenever it does not stand still.
    """

    rota: Rota
    start: Fraction
    cause: tuple[Any, ...]
    beyond_w: dict[int, float]
    held: dict[int, Option]

    def turn_at(self, at: Fraction) -> int:
        turn_s = exact(self.rota.turn_s)
        return min(len(self.rota.turns) - 1, max(0, int((at - self.start) // turn_s)))

    def begins(self, turn: int) -> Fraction:
        return self.start + turn * exact(self.rota.turn_s)


class Turns:
    """The rota of one simulation; none as long as what holds for all of an event is enough."""

    def __init__(self, response: "Response") -> None:
        self._of = response
        self._now: _Standing | None = None
        self._unneeded: tuple[Any, ...] | None = None  # for what no turns were made last

    def option_of(self, job: int) -> Option | None:
        """What is done with a job that has turns whenever it does not stand still; None: it has none."""
        return None if self._now is None else self._now.held.get(job)

    def gives_uw(self, at: Fraction) -> dict[int, int]:
        """By limit, what pauses that take turns shed throughout what binds then, beside a plan that is not enough."""
        cause = self._cause(at)
        if self._now is not None and self._now.cause == cause:
            return dict(self._now.rota.gives_uw)
        kept, self._now = self._now, None
        made = self._made(at, cause)
        self._now = kept
        return {} if made is None else dict(made.rota.gives_uw)

    def first_takes_s(self) -> float:
        """How long the slowest checkpoint of those in the first turn takes."""
        if self._now is None:
            return 0.0
        lives = [self._of.sim.lives[job] for job in self._now.rota.turns[0]]
        return max((float(life.job.saving.cost_s) for life in lives if life.job.saving), default=0.0)

    def take(self, now: Fraction, start: Fraction) -> None:
        """Look whether turns are needed for what binds at `start`, and do what is due of them."""
        cause = self._cause(start)
        if cause == self._unneeded:
            self._let_go(now, start)
            return
        if self._now is None or self._now.cause != cause:
            self._now = None
            self._now = self._made(start, cause)
            self._unneeded = cause if self._now is None else None
        if self._now is not None:
            self._do(self._now, now, start)
        self._let_go(now, start)

    def _let_go(self, now: Fraction, start: Fraction) -> None:
        """Who stands still and has no turn any more goes on: its tier comes before the target."""
        of = self._of
        left = [
            life
            for i in sorted(of.sim.running)
            if (life := of.sim.lives[i]).cap == 0.0
            and life.job.row.flexibility < INTERRUPTIBLE
            and self.option_of(i) is None
        ]
        if not left or start > now:
            return
        problem, _ = of.problem(now)
        chosen = of.solve(problem).chosen(problem)
        hard = of.bounds_w(dict.fromkeys(range(len(of.facility.domains)), inf))
        for life in left:
            option = chosen.get(life.job.index)
            cap = option.cap if option is not None and option.lever is Lever.CAP else life.own_cap
            if of.fits(life, cap, hard):
                of.go_on(life, cap)

    def end(self) -> None:
        """Nothing binds any more."""
        self._now = self._unneeded = None

    def _cause(self, at: Fraction) -> tuple[Any, ...]:
        domains = self._of.targets(at)
        running = tuple(
            i
            for i in sorted(self._of.sim.running)
            if any(self._of.devices_under(self._of.sim.lives[i], domain) for domain in domains)
        )
        return tuple(sorted(domains.items())), running

    def _made(self, start: Fraction, cause: tuple[Any, ...]) -> _Standing | None:
        if self._of.is_emergency(start) or not self._of.sim.engine.takes_turns:
            return None
        problem, lives = self._of.problem(start)
        decided: Curtailment = self._of.solve(problem)
        needs = {i: short for i, short in enumerate(decided.short_uw) if short}
        if not needs:
            return None
        # A turn that is short within one event may be all of another: they are made anew when the first of them ends.
        window_s = self._of.shortest_s(start)
        turners, held = [], {}
        for life, choice, candidate in zip(lives, decided.choices, problem.candidates, strict=False):
            option = candidate.options[choice]
            if life.whole or life.job.index in self._of.pauses:
                continue
            turner = turner_of(self._of.load(life, start, window_s), option, window_s)
            if turner is not None:
                turners.append(turner)
                held[life.job.index] = option
        first = frozenset(job for job in held if self._of.sim.lives[job].cap == 0.0)
        found = rota(turners, needs, window_s, first=first)
        if found is None:
            return None
        members = {job for turn in found.turns for job in turn}
        beyond_w = {
            problem.limits[i].domain: max(0, short - found.gives_uw.get(i, 0)) / 1e6
            for i, short in needs.items()
        }
        return _Standing(found, start, cause, beyond_w, {job: held[job] for job in members})

    def _do(self, standing: _Standing, now: Fraction, start: Fraction) -> None:
        of, turns = self._of, standing.rota.turns
        settle = exact(of.quickest_s())
        for job, option in standing.held.items():
            life = of.sim.lives[job]
            is_lower = option.lever is Lever.CAP and 0.0 < option.cap < life.cap
            if is_lower and job not in of.pending and now >= standing.start - settle:
                of.command(life, option, max(standing.start, now + settle), start)
        for turn in range(standing.turn_at(now), len(turns)):
            begins, is_near = standing.begins(turn), False
            for job in turns[turn]:
                life = of.sim.lives[job]
                saving = life.job.saving
                if saving is None or life.cap == 0.0 or job in of.pauses:
                    continue
                if now < begins - saving.cost_s:
                    of.wake(begins - saving.cost_s)
                    continue
                is_near = True
                if turn and job in turns[turn - 1]:
                    continue
                takes_s = float(saving.cost_s)
                pause = Option(Lever.PAUSE, takes_s=takes_s)
                of.command(life, pause, max(begins, now + saving.cost_s), start)
            of.wake(begins)
            if not is_near and begins > now:
                break
        if now < standing.start:
            return
        present = turns[standing.turn_at(now)]
        if any(of.sim.lives[job].cap > 0.0 for job in present):
            return  # who goes on waits for those who stand still in their place
        for job, option in standing.held.items():
            life = of.sim.lives[job]
            if job not in present and life.cap == 0.0 and job not in of.pauses:
                cap = min(life.own_cap, option.cap) if option.lever is Lever.CAP else life.own_cap
                if of.fits(life, cap, of.bounds_w(standing.beyond_w)):
                    of.go_on(life, cap)

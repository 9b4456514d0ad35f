"""Other ways to answer a power event, to be compared with: nothing, one cap for everybody, the youngest first."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from apps.power.curtailment.facts import INTERRUPTIBLE, Candidate, Curtailment, Lever, Load, Problem
from apps.power.curtailment.options import candidate_of
from apps.power.curtailment.solve import solve


@dataclass(frozen=True, slots=True)
class Way:
    """What may be done with a job, and how it is chosen."""

    candidate: Callable[..., Candidate] = candidate_of
    curtail: Callable[[Problem], Curtailment] = solve
    takes_turns: bool = False


def _anything(load: Load, window_s: float, within_s: float = float("inf"), **_: Any) -> Candidate:
    """All levers, whatever the tier bears."""
    told = candidate_of(replace(load, tier=INTERRUPTIBLE, bears=None), window_s, within_s)
    return replace(told, tier=load.tier)


def _answer(problem: Problem, choices: list[int]) -> Curtailment:
    most = [0] * len(problem.limits)
    got = [0] * len(problem.limits)
    cost = 0
    for candidate, choice in zip(problem.candidates, choices, strict=True):
        for limit in range(len(problem.limits)):
            most[limit] += max(dict(option.shed_uw).get(limit, 0) for option in candidate.options)
        for limit, watts in candidate.options[choice].shed_uw:
            got[limit] += watts
        cost += candidate.options[choice].cost_ms
    short = tuple(max(0, limit.need_uw - have) for limit, have in zip(problem.limits, got, strict=True))
    return Curtailment(tuple(choices), short, tuple(most), cost, 0.0, "rival")


def _nothing(problem: Problem) -> Curtailment:
    return _answer(problem, [0] * len(problem.candidates))


def _one_cap(problem: Problem) -> Curtailment:
    """The highest cap that, set for everybody, is enough."""
    caps = sorted(
        {o.cap for c in problem.candidates for o in c.options if o.lever is Lever.CAP}, reverse=True
    )
    choices = [0] * len(problem.candidates)
    for cap in [1.0, *caps]:
        choices = [
            max(
                (i for i, o in enumerate(c.options) if o.lever in (Lever.NONE, Lever.CAP) and o.cap >= cap),
                default=0,
            )
            for c in problem.candidates
        ]
        if _answer(problem, choices).is_feasible:
            break
    return _answer(problem, choices)


def _youngest(problem: Problem) -> Curtailment:
    """The youngest pause, until it is enough."""
    choices = [0] * len(problem.candidates)
    for at in range(len(choices) - 1, -1, -1):
        if _answer(problem, choices).is_feasible:
            break
        pauses = [
            i for i, o in enumerate(problem.candidates[at].options) if o.lever in (Lever.PAUSE, Lever.STOP)
        ]
        choices[at] = pauses[0] if pauses else 0
    return _answer(problem, choices)


WAYS: Final = {
    "none": Way(curtail=_nothing),
    "one cap": Way(_anything, _one_cap),
    "youngest": Way(_anything, _youngest),
    "switchyard": Way(takes_turns=True),
}

"""When each lever is used, so that a target is kept from its first second on and nobody is held down before.

A lever is used as late as it can be and still count. What takes longer than there is time is begun at once, and
bridged: others stand in until it is in force. It sheds first, they are released after.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from apps.power.curtailment.facts import Candidate, Curtailment, Lever, Option, Problem
from apps.power.curtailment.solve import solve

LEAVE_ALONE: Final = Option(Lever.NONE)
HARD: Final = frozenset({Lever.PAUSE, Lever.STOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One lever on one job; times are seconds from now.

    Attributes:
        issue_s: When it is used.
        effective_s: When the draw is down.
        is_bridge: It only stands in: once every step that takes longer is in force, `then` takes its place.
        then: What stays of a bridge; Lever.NONE: nothing.
    """

    job_id: int
    option: Option
    issue_s: float
    effective_s: float
    is_bridge: bool = False
    then: Option = LEAVE_ALONE


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is done and when.

    Attributes:
        steps: In the order in which they are used.
        lasting: The plan once everything is in force.
        at_start: What holds when the target begins to bind; the same unless something is bridged.
    """

    steps: tuple[Step, ...]
    lasting: Curtailment
    at_start: Curtailment
    problem: Problem


def schedule(
    problem: Problem,
    *,
    start_s: float,
    earliest_s: float = 0.0,
    margin_s: float = 0.0,
    is_emergency: bool = False,
) -> Schedule:
    """Decide what to do, and when.

    Args:
        start_s: When the target begins to bind, in seconds from now; 0: it does already.
        earliest_s: No lever is used before.
        margin_s: So much earlier than need be, for commands take their time.
        is_emergency: A pause that comes after the start is no lever; all that is done is done at once.
    """
    start_s, earliest_s = max(0.0, start_s), max(0.0, min(earliest_s, start_s))
    quickest_s = min((o.takes_s for c in problem.candidates for o in c.options if o.takes_s), default=0.0)
    within_s = max(start_s - earliest_s - margin_s, quickest_s)
    if is_emergency:
        problem = _only(problem, within_s)
    lasting = solve(problem)
    chosen = dict(lasting.chosen(problem))
    if is_emergency:
        # Nobody waits for the last moment, and nothing stands in for what takes its time.
        return Schedule(_in_time(chosen, earliest_s, earliest_s, margin_s), lasting, lasting, problem)
    slow = {job_id for job_id, option in chosen.items() if option.takes_s > within_s}
    if not slow:
        return Schedule(_in_time(chosen, start_s, earliest_s, margin_s), lasting, lasting, problem)
    timely = _bridging(problem, chosen, slow, within_s)
    at_start = solve(timely)
    bridge = _in_full(problem, at_start, timely)
    # Whatever stands in, what lasts and is in time is done.
    bridge = {job_id: option for job_id, option in chosen.items() if job_id not in slow} | bridge
    steps = []
    for job_id, option in bridge.items():
        stays = chosen.get(job_id, LEAVE_ALONE) if job_id not in slow else LEAVE_ALONE
        issue_s = max(earliest_s, start_s - option.takes_s - margin_s)
        is_bridge = option != stays
        steps.append(
            Step(
                job_id=job_id,
                option=option,
                issue_s=issue_s,
                effective_s=issue_s + option.takes_s,
                is_bridge=is_bridge,
                then=stays if is_bridge else LEAVE_ALONE,
            )
        )
    for job_id in slow:
        option = chosen[job_id]
        steps.append(
            Step(
                job_id=job_id,
                option=option,
                issue_s=earliest_s,
                effective_s=earliest_s + option.takes_s,
            )
        )
    return Schedule(_ordered(steps), lasting, at_start, problem)


def _in_time(
    chosen: Mapping[int, Option], start_s: float, earliest_s: float, margin_s: float
) -> tuple[Step, ...]:
    steps = []
    for job_id, option in chosen.items():
        issue_s = max(earliest_s, start_s - option.takes_s - margin_s)
        steps.append(
            Step(job_id=job_id, option=option, issue_s=issue_s, effective_s=issue_s + option.takes_s)
        )
    return _ordered(steps)


def _ordered(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: (step.issue_s, step.effective_s, step.job_id)))


def _only(problem: Problem, within_s: float) -> Problem:
    return replace(
        problem,
        candidates=tuple(
            replace(
                c, options=tuple(o for o in c.options if o.lever is not Lever.PAUSE or o.takes_s <= within_s)
            )
            for c in problem.candidates
        ),
    )


def _bridging(problem: Problem, chosen: Mapping[int, Option], slow: set[int], within_s: float) -> Problem:
    """The same with what is in time alone; who does something in time anyway does at least that, and it costs no more.

    The first option stays to leave a job alone: a solver counts nothing for it.
    """

    def open_to(candidate: Candidate) -> Candidate:
        timely = [option for option in candidate.options[1:] if option.takes_s <= within_s]
        mine = chosen.get(candidate.job_id)
        if mine is not None and candidate.job_id not in slow:
            least = dict(mine.shed_uw)
            timely = [
                replace(o, cost_ms=max(0, o.cost_ms - mine.cost_ms))
                for o in timely
                if all(dict(o.shed_uw).get(i, 0) >= w for i, w in least.items())
            ]
        return replace(candidate, options=(candidate.options[0], *timely))

    return replace(problem, candidates=tuple(open_to(candidate) for candidate in problem.candidates))


def _in_full(problem: Problem, answer: Curtailment, timely: Problem) -> dict[int, Option]:
    """What was chosen of _bridging(), with what it costs in all."""
    whole = {candidate.job_id: candidate.options for candidate in problem.candidates}
    return {
        job_id: next(o for o in whole[job_id] if replace(o, cost_ms=0) == replace(option, cost_ms=0))
        for job_id, option in answer.chosen(timely).items()
    }

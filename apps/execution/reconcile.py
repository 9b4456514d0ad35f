"""Compare what the ledger wants with what a backend sees, and say what is to be done. Pure: no clock, no I/O.

Doing the answer and asking again gives an answer with nothing in it that was not already under way, so it
may be done twice, late, or after a crash anywhere in between.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from apps.execution.backends.base import EndReason, RunState, Seen

Outcome = Literal[
    "succeeded", "failed", "cancelled", "timed_out", "vacated", "start_failed", "node_lost", "data_late"
]


class Cause(StrEnum):
    """Why an allocation is to end; empty when it is not."""

    NONE = ""
    USER = "user"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    PAUSE = "pause"
    NODE_LOST = "node_lost"
    DATA_LATE = "data_late"
    MOVE = "move"
    RESIZE = "resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An open allocation of the ledger, and what the ledger has been told of it."""

    allocation_id: int
    job_id: int
    fence: int
    stop_cause: Cause = Cause.NONE
    grace_s: float = 10.0
    time_limit_s: float | None = None  # of this attempt
    is_known_running: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    allocation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    allocation_id: int
    job_id: int
    fence: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class SetLimit:
    allocation_id: int
    time_limit_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStarted:
    allocation_id: int
    fence: int
    started_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEnded:
    allocation_id: int
    fence: int
    ended_at: datetime | None
    outcome: Outcome
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """The ledger has closed this allocation, or never knew it, and its run is over."""

    allocation_id: int


Action = Launch | Stop | SetLimit | ReportStarted | ReportEnded | Forget


def reconcile(wanted: Iterable[Wanted], seen: Iterable[Seen]) -> list[Action]:
    """What to do so that what runs becomes what is wanted.

    Args:
        wanted: All open allocations of one cluster.
        seen: All runs of its backend, read after `wanted`: of an allocation made in between nothing is
          known here, so a run that nobody wants must be looked up in the ledger again before it is stopped.

    Returns:
        Reports first, then what ends things, then launches, each by allocation id.
    """
    open_ones = {one.allocation_id: one for one in wanted}
    runs = {run.allocation_id: run for run in seen}
    live_of_job = defaultdict(set)
    for run in runs.values():
        if run.state != RunState.ENDED:
            live_of_job[run.job_id].add(run.allocation_id)
    actions: list[Action] = []
    for allocation_id in sorted(open_ones.keys() | runs.keys()):
        one, found = open_ones.get(allocation_id), runs.get(allocation_id)
        if one is None and found is not None:
            actions += _clear_away(found)
        elif one is not None and found is None:
            # Another attempt at the job still runs: it is stopped first, and this one begins when that is
            # gone.
            others = live_of_job[one.job_id] - {allocation_id}
            actions += _begin(one, may_launch=not others)
        elif one is not None and found is not None:
            actions += _follow(one, found)
    return sorted(actions, key=lambda action: (_TURN[type(action)], action.allocation_id))


def _begin(one: Wanted, *, may_launch: bool) -> list[Action]:
    if one.stop_cause or one.is_known_running:
        # A run that ran and is nowhere to be seen is lost. The stop leaves the mark that keeps it from
        # coming back; its end is reported when that mark is seen.
        return [_stop(one)]
    return [Launch(one.allocation_id)] if may_launch else []


def _follow(one: Wanted, found: Seen) -> list[Action]:
    actions: list[Action] = []
    ran = found.state == RunState.RUNNING or (found.state == RunState.ENDED and found.started_at is not None)
    if ran and not one.is_known_running:
        actions.append(
            ReportStarted(allocation_id=one.allocation_id, fence=one.fence, started_at=found.started_at)
        )
    if found.state == RunState.ENDED:
        actions += [ended(one, found), Forget(one.allocation_id)]
    elif one.stop_cause:
        actions.append(_stop(one))
    elif found.state == RunState.CLAIMED:
        actions.append(Launch(one.allocation_id))
    elif one.time_limit_s != found.time_limit_s:
        actions.append(SetLimit(one.allocation_id, one.time_limit_s))
    return actions


def _clear_away(found: Seen) -> list[Action]:
    if found.state == RunState.ENDED:
        return [Forget(found.allocation_id)]
    return [Stop(allocation_id=found.allocation_id, job_id=found.job_id, fence=found.fence, grace_s=0.0)]


def _stop(one: Wanted) -> Stop:
    return Stop(allocation_id=one.allocation_id, job_id=one.job_id, fence=one.fence, grace_s=one.grace_s)


_BY_CAUSE: Final[dict[Cause, Outcome]] = {
    Cause.USER: "cancelled",
    Cause.TIME_LIMIT: "timed_out",
    Cause.PREEMPTION: "vacated",
    Cause.PAUSE: "vacated",
    Cause.MOVE: "vacated",
    Cause.RESIZE: "vacated",
    Cause.NODE_LOST: "node_lost",
    Cause.DATA_LATE: "data_late",
}


def ended(one: Wanted, found: Seen) -> ReportEnded:
    """How the end of a run is told to the ledger.

    A job that ended by itself has ended by itself, also while it was being stopped. One that left after it
    was told to has been stopped, whatever its exit code: to save one's work and exit with 0 is the polite
    answer to a stop.
    """
    outcome: Outcome
    message = found.message
    match found.reason:
        case EndReason.EXITED:
            outcome = "succeeded" if found.exit_code == 0 else "failed"
        case EndReason.BAD_COMMAND:
            outcome = "failed"
        case EndReason.TIME_LIMIT:
            outcome = "timed_out"
        case EndReason.START_FAILED:
            outcome = _BY_CAUSE.get(one.stop_cause, "start_failed")
        case EndReason.NEVER_STARTED if one.is_known_running:
            outcome = _BY_CAUSE.get(one.stop_cause, "node_lost")
            message = "It ran, and its cluster has lost all trace of it."
        case EndReason.NEVER_STARTED:
            outcome = _BY_CAUSE.get(one.stop_cause, "start_failed")
        case EndReason.STOPPED:
            outcome = _BY_CAUSE.get(one.stop_cause, "node_lost")
        case _:
            outcome = _BY_CAUSE.get(one.stop_cause, "node_lost")
    return ReportEnded(
        allocation_id=one.allocation_id,
        fence=one.fence,
        ended_at=found.ended_at,
        outcome=outcome,
        exit_code=found.exit_code,
        message=message,
    )


_TURN: Final = {ReportStarted: 0, ReportEnded: 1, Forget: 2, Stop: 3, SetLimit: 4, Launch: 5}

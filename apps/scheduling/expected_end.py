"""When a job that waits or runs will probably end, and by what that is said. Nothing is stopped by it."""

from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Literal

from apps.jobs import past_runs
from apps.jobs.lifecycle import HOLDING, State
from apps.jobs.models import Job
from apps.scheduling.engine.facts import Gang, Running, Shape
from apps.scheduling.engine.forecast import probable_end_s, probable_s
from apps.scheduling.engine.predict import predicted_s
from apps.scheduling.models import Reason
from apps.scheduling.snapshot import instant, seconds, what_is_left

Source = Literal["own_history", "declared_limit", "declared_run_time"]


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """When, and where that comes from."""

    at: datetime | None  # None: nobody can tell, for one, when it starts
    source: Source
    took_s: float | None  # by own history: seconds that the last two jobs ran, their mean
    of_name: bool = False  # by own history: they had the same name, team and owner; else only the same owner


def expected_end(job: Job, reason: Reason | None, at: datetime) -> ExpectedEnd | None:
    """When this job will probably end; None for one that ended, that is paused, or of which nothing is known.

    Args:
        reason: Why it waits, as of the last pass, if it does.
    """
    if job.state != State.QUEUED and job.state not in HOLDING:
        return None
    took = past_runs.took_by(job)
    gang, history_s = _gang(job), (inf if took.best_s is None else took.best_s,)
    declared_s = min(gang.limit_s, gang.work_s)
    predicted = predicted_s(gang, history_s)
    if predicted == declared_s == inf:
        return None
    end_at = _end_at(job, gang, history_s, reason, at)
    if predicted < declared_s:
        return ExpectedEnd(end_at, "own_history", took.best_s, of_name=took.own_s is not None)
    return ExpectedEnd(end_at, "declared_limit" if gang.limit_s != inf else "declared_run_time", None)


def _gang(job: Job) -> Gang:
    """The job as far as its run time goes."""
    limit_s, work_s, done_s = what_is_left(
        job.time_limit_s, job.runtime_s, job.ran_s, job.lost_s, job.worked_s
    )
    return Gang(job.pk, "", Shape(()), limit_s=limit_s, work_s=work_s, history=0, done_s=done_s)


def _end_at(
    job: Job, gang: Gang, history_s: tuple[float, ...], reason: Reason | None, at: datetime
) -> datetime | None:
    if job.state in HOLDING:
        has_started = job.state != State.STARTING and job.started_at is not None
        started_s = seconds(job.started_at if has_started and job.started_at else job.state_at)
        running = Running(gang, (), started_s, started_s + min(gang.limit_s, gang.work_s))
        return instant(probable_end_s(running, seconds(at), history_s))
    if job.is_held or reason is None or reason.expected_start_at is None:
        return None
    return instant(seconds(max(at, reason.expected_start_at)) + probable_s(gang, history_s))

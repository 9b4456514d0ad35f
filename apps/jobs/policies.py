"""Who may do what to a job. Each rule says no by raising, and yes by returning."""

from apps.jobs.errors import NotYours, OverCeiling
from apps.jobs.models import Job
from apps.teams import policies as teams
from apps.teams.models import Team, User


def may_submit_to(actor: User, team: Team) -> bool:
    """Members submit to their team, and leads to every team below theirs."""
    return teams.is_member(actor, team) or teams.is_lead(actor, team)


def may_change(actor: User, job: Job) -> bool:
    """Its team's members, the leads above, and who operates the facility."""
    return may_submit_to(actor, job.team) or teams.may_operate(actor)


def require_may_change(actor: User, job: Job) -> None:
    if not may_change(actor, job):
        raise NotYours(job_id=job.id)


def require_may_release(actor: User, job: Job) -> None:
    """A hold that an operator put on another team's job is an operator's to lift."""
    require_may_change(actor, job)
    holder = job.held_by
    if holder is None or may_submit_to(holder, job.team) or teams.may_operate(actor):
        return
    raise NotYours(job_id=job.id)


def require_within_ceiling(actor: User, team: Team, priority: int) -> None:
    """A team has no higher priority than any team above it, whatever its own ceiling says."""
    if teams.may_operate(actor):
        return
    ceiling = teams.ceiling_of(team)
    if priority > ceiling:
        raise OverCeiling(team=team.name, asked=priority, ceiling=ceiling)


def require_may_extend(actor: User, job: Job) -> None:
    """A running job's limit is what others were promised by: only operators raise it."""
    if not teams.may_operate(actor):
        raise NotYours(job_id=job.id)

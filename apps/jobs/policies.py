"""Who may do what to a job. Each rule says no by raising, and yes by returning."""

from apps.jobs.errors import NotYours, OverCeiling
from apps.jobs.models import Job
from apps.teams import policies as teams
from apps.teams.models import Team, User


def may_submit_to(actor: User, team: Team) -> bool:
    """Members submit to their team, and leads to every team below theirs."""
    return teams.is_member(actor, team) or teams.is_lead(actor, team)


def may_submit(standing: teams.Standing) -> bool:
    """As may_submit_to(), of somebody whose standing is known."""
    return standing.is_member or standing.is_lead


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
    if over := over_ceiling(actor, team, priority, teams.ceiling_of(team)):
        raise over


def over_ceiling(actor: User, team: Team, priority: int, ceiling: int) -> OverCeiling | None:
    """What a priority over the team's ceiling is refused with."""
    if priority <= ceiling or teams.may_operate(actor):
        return None
    return OverCeiling(team=team.name, asked=priority, ceiling=ceiling)


def require_may_extend(actor: User, job: Job) -> None:
    """A running job's limit is what others were promised by: only operators raise it."""
    if not teams.may_operate(actor):
        raise NotYours(job_id=job.id)

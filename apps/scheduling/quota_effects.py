"""What a change of quotas would do, before it is saved: who starts, who would be held on borrowed devices.

The planner is asked twice about the same picture, once as it is and once with the new quotas; nothing is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from apps.jobs.models import Job
from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Plan, Snapshot, Team
from apps.scheduling.snapshot import Taken, take_snapshot
from apps.teams.models import Quota

# What a team would own of one accelerator type: entitlement, borrow limit, lend limit (None: no limit).
Owns = tuple[int, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Affected:
    """One job that the change touches."""

    job_id: int
    name: str
    team_id: int
    devices: float


@dataclass(frozen=True, slots=True)
class Effects:
    """What differs with the change.

    Attributes:
        starts: Waiting jobs that would start now and do not without it.
        stays: Waiting jobs that start now and would not with it.
        ends: Running jobs that would be asked to leave and are not without it.
        borrowed: By team id, devices of the type that become borrowed (below 0: are covered again).
    """

    starts: tuple[Affected, ...]
    stays: tuple[Affected, ...]
    ends: tuple[Affected, ...]
    borrowed: Mapping[int, float]


def effects_of(
    wanted: Mapping[int, Owns], *, type_id: int, at: datetime, weights: Mapping[int, float] | None = None
) -> Effects:
    """What would be otherwise in the next pass if these teams owned that of one accelerator type.

    Args:
        wanted: By team id; a team that is not named stays as it is.
        type_id: Of the accelerator type.
        weights: By team id, of those that would have another.
    """
    taken = take_snapshot(at)
    changed = with_quotas(taken, wanted, type_id)
    if weights:
        teams = tuple(replace(team, weight=weights.get(team.id, team.weight)) for team in changed.teams)
        changed = replace(changed, teams=teams)
    policy = replace(taken.policy, explain=False)
    before, after = planner.plan(taken.snapshot, policy), planner.plan(changed, policy)
    names = _names(taken, before, after)
    is_starting, will_start = _starts(before), _starts(after)
    leave, will_leave = _leaves(before), _leaves(after)
    return Effects(
        starts=tuple(names[job_id] for job_id in sorted(will_start - is_starting) if job_id in names),
        stays=tuple(names[job_id] for job_id in sorted(is_starting - will_start) if job_id in names),
        ends=tuple(names[job_id] for job_id in sorted(will_leave - leave) if job_id in names),
        borrowed=_borrowed(taken, changed, type_id),
    )


def with_quotas(taken: Taken, wanted: Mapping[int, Owns], type_id: int) -> Snapshot:
    """The picture with other quotas of one type; what a team gives to sub-teams it does not have for itself."""
    snapshot = taken.snapshot
    kind = next((at for at, one in enumerate(snapshot.facility.kinds) if one.id == type_id), None)
    if kind is None:
        return snapshot
    # By what is stored, not by what the picture adds up to: loans in force have moved some of that.
    stored = dict(Quota.objects.filter(accelerator_type_id=type_id).values_list("team_id", "entitlement"))
    changed = {**stored, **{team_id: owns[0] for team_id, owns in wanted.items()}}
    teams: list[Team] = []
    for position, team in enumerate(snapshot.teams):
        subs = [sub.id for sub in snapshot.teams if sub.parent == position]
        before, after = (
            max(0, owns.get(team.id, 0) - sum(owns.get(sub, 0) for sub in subs)) for owns in (stored, changed)
        )
        entitlement = team.entitlement
        if before != after:
            entitlement = {**entitlement, kind: max(0, entitlement.get(kind, 0) + after - before)}
        borrow, lend = dict(team.borrow_limit), dict(team.lend_limit)
        if team.id in wanted:
            for limits, limit in ((borrow, wanted[team.id][1]), (lend, wanted[team.id][2])):
                limits.pop(kind, None)
                if limit is not None:
                    limits[kind] = limit
        teams.append(replace(team, entitlement=entitlement, borrow_limit=borrow, lend_limit=lend))
    return replace(snapshot, teams=tuple(teams))


def _starts(plan: Plan) -> set[int]:
    return {start.job_id for start in plan.starts}


def _leaves(plan: Plan) -> set[int]:
    return {evict.job_id for evict in plan.evictions}


def _names(taken: Taken, *plans: Plan) -> dict[int, Affected]:
    """The jobs that any of these plans starts or ends."""
    ids = {job_id for plan in plans for job_id in (*_starts(plan), *_leaves(plan))}
    rows = Job.objects.filter(pk__in=ids).values_list("pk", "name", "team_id", "n_devices")
    return {pk: Affected(pk, name, team_id, float(n_devices)) for pk, name, team_id, n_devices in rows}


def _borrowed(taken: Taken, changed: Snapshot, type_id: int) -> dict[int, float]:
    """Devices that each team's running jobs hold above what it has for itself, afterwards less before."""
    snapshot = taken.snapshot
    kind = next((at for at, one in enumerate(snapshot.facility.kinds) if one.id == type_id), None)
    if kind is None:
        return {}
    held: dict[int, float] = {}
    for running in snapshot.running:
        for share in running.placing:
            if snapshot.facility.kind[share.node] == kind:
                steps = share.share_steps * len(share.devices)
                held[running.gang.team] = held.get(running.gang.team, 0.0) + steps / SHARE_STEPS
    found = {}
    for position, (old, new) in enumerate(zip(snapshot.teams, changed.teams, strict=True)):
        above = [max(0.0, held.get(position, 0.0) - team.entitlement.get(kind, 0)) for team in (old, new)]
        if above[0] != above[1]:
            found[old.id] = above[1] - above[0]
    return found

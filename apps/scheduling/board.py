"""What pages show of the planner's work: the queue and its reasons, what waits for what, who holds what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from apps.inventory.models import Node
from apps.jobs import selectors as jobs
from apps.jobs.lifecycle import ENDED, HOLDING, State
from apps.jobs.models import Job, Placement
from apps.scheduling.models import Pass
from apps.teams.models import Team, User

_MOST_TO_COUNT: Final = 20_000
_NO_RANK: Final = 2_000_000_000  # behind every job that a pass has ranked


def n_waiting(viewer: User) -> int:
    """Jobs that wait and are not held."""
    return jobs.jobs_visible_to(viewer).filter(state=State.QUEUED, is_held=False).count()


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits, as a whole or for one reason; held jobs are not counted."""

    code: str  # empty: the whole queue; `new`: no pass has looked at it yet
    n_jobs: int
    devices: Decimal
    oldest_at: datetime | None
    median_wait_s: float | None


def waiting(at: datetime, latest: Pass | None = None) -> tuple[Waiting, tuple[Waiting, ...]]:
    """The whole queue, and the same by reason, which adds up to it. Everyone signed in may know.

    Args:
        latest: The last pass. What it counted is taken when there is too much to count on every look; then the
            oldest and the median are not known.
    """
    if latest is not None and latest.n_queued > _MOST_TO_COUNT:
        return _waiting_as_of(latest)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT grouping(code) = 1, code, count(*), coalesce(sum(n_devices), 0), min(queued_at),"
            " percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM %s - queued_at)) FROM ("
            "  SELECT coalesce(reason.code, 'new') AS code, job.n_devices, job.queued_at FROM jobs_job job"
            "  LEFT JOIN scheduling_reason reason ON reason.job_id = job.id"
            "  WHERE job.state = 'queued' AND NOT job.is_held) waiting"
            " GROUP BY GROUPING SETS ((code), ())",
            [at],
        )
        rows = cursor.fetchall()
    whole = next(Waiting("", *rest) for is_whole, _, *rest in rows if is_whole)
    return whole, tuple(Waiting(code, *rest) for is_whole, code, *rest in rows if not is_whole)


def _waiting_as_of(latest: Pass) -> tuple[Waiting, tuple[Waiting, ...]]:
    counted = latest.summary.get("waiting", {})
    by_code = tuple(
        Waiting(code, int(one["jobs"]), Decimal(str(one["devices"])), None, None)
        for code, one in counted.items()
        if code != "held"
    )
    n_jobs, devices = sum(one.n_jobs for one in by_code), sum((one.devices for one in by_code), Decimal(0))
    return Waiting("", n_jobs, devices, None, None), by_code


def reserved_power_w() -> float:
    """IT watts reserved now: all hosts and devices at rest, and above that what runs, at its peak."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT coalesce(sum(node.idle_w + node.n_devices * type.idle_w), 0)"
            " FROM inventory_node node"
            " JOIN inventory_acceleratortype type ON type.id = node.accelerator_type_id)"
            " + (SELECT coalesce(sum(placement.peak_w), 0) FROM jobs_placement placement"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " WHERE allocation.ended_at IS NULL)"
        )
        return float(cursor.fetchone()[0])


@dataclass(frozen=True, slots=True)
class TeamLoad:
    """What one team is entitled to, holds and waits for, over all types; held jobs do not wait."""

    team_id: int
    name: str
    parent: str
    is_parent: bool
    entitled: int | None  # None: it has no quota
    held: Decimal
    waiting: Decimal
    n_running: int
    n_waiting: int


# What a job holds; only elastic ones may hold more or less than they ask for.
_HELD: Final = (
    "CASE WHEN spec @? '$.replicas.max' OR spec @? '$.groups[*].replicas.max' THEN"
    " (SELECT coalesce(sum(claim.share), 0) FROM jobs_deviceclaim claim"
    " JOIN jobs_placement placement ON placement.id = claim.placement_id"
    " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
    " WHERE allocation.job_id = jobs_job.id AND claim.released_at IS NULL) ELSE n_devices END"
)


def load_by_team() -> tuple[TeamLoad, ...]:
    """All teams, by name, from the jobs themselves. Everyone signed in may know."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT team.id, team.name, coalesce(parent.name, ''),"  # noqa: S608 (words of our own)
            " EXISTS (SELECT 1 FROM teams_team child WHERE child.parent_id = team.id),"
            " (SELECT sum(entitlement)::int FROM teams_quota quota WHERE quota.team_id = team.id)"
            "  + coalesce((SELECT sum(loan.n_devices * CASE WHEN loan.borrower_id = team.id THEN 1 ELSE -1 END)"
            "   FROM teams_quotaloan loan WHERE team.id IN (loan.lender_id, loan.borrower_id)"
            "   AND loan.state = 'agreed' AND loan.start_at <= now() AND loan.end_at > now()), 0)::int,"
            " coalesce(load.held, 0), coalesce(load.waiting, 0), coalesce(load.n_running, 0),"
            " coalesce(load.n_waiting, 0) FROM teams_team team"
            " LEFT JOIN teams_team parent ON parent.id = team.parent_id"
            f" LEFT JOIN (SELECT team_id, sum({_HELD}) FILTER (WHERE state <> 'queued') AS held,"
            "  sum(n_devices) FILTER (WHERE state = 'queued') AS waiting,"
            "  count(*) FILTER (WHERE state <> 'queued') AS n_running,"
            "  count(*) FILTER (WHERE state = 'queued') AS n_waiting FROM jobs_job"
            "  WHERE state IN ('starting', 'running', 'pausing', 'preempting') OR (state = 'queued' AND NOT is_held)"
            "  GROUP BY team_id) load ON load.team_id = team.id ORDER BY team.name"
        )
        return tuple(TeamLoad(*row) for row in cursor.fetchall())


@dataclass(frozen=True, slots=True)
class Held:
    """Devices of one type that one team holds now."""

    team_id: int
    accelerator_type_id: int
    devices: Decimal


def held_by_team_and_type(team_ids: Sequence[int] | None = None) -> tuple[Held, ...]:
    """From the open claims, so that it is what is held and not what was asked."""
    wanted = None if team_ids is None else list(team_ids)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job.team_id, node.accelerator_type_id, sum(claim.share) FROM jobs_deviceclaim claim"
            " JOIN jobs_placement placement ON placement.id = claim.placement_id"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " JOIN jobs_job job ON job.id = allocation.job_id"
            " JOIN inventory_node node ON node.id = placement.node_id"
            " WHERE claim.released_at IS NULL AND (%s::bigint[] IS NULL OR job.team_id = ANY(%s::bigint[]))"
            " GROUP BY job.team_id, node.accelerator_type_id",
            [wanted, wanted],
        )
        return tuple(Held(*row) for row in cursor.fetchall())


@dataclass(frozen=True, slots=True)
class MemberUse:
    """What one person has of one team now; jobs that are held wait too."""

    user: User
    n_running: int
    n_waiting: int
    devices: Mapping[str, Decimal]  # by name of the type, from the open claims


def use_by_member(team: Team) -> tuple[MemberUse, ...]:
    """Everyone with jobs of the team that wait or hold something. Everyone signed in may know."""
    queued, holding = State.QUEUED.value, [state.value for state in HOLDING]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job.user_id, count(*) FILTER (WHERE state <> %s), count(*) FILTER (WHERE state = %s)"
            " FROM jobs_job job WHERE team_id = %s AND state = ANY(%s) GROUP BY job.user_id",
            [queued, queued, team.pk, [queued, *holding]],
        )
        counts = {user_id: (n_running, n_waiting) for user_id, n_running, n_waiting in cursor.fetchall()}
        cursor.execute(
            "SELECT job.user_id, type.name, sum(claim.share) FROM jobs_job job"
            " JOIN jobs_allocation allocation ON allocation.job_id = job.id AND allocation.ended_at IS NULL"
            " JOIN jobs_placement placement ON placement.allocation_id = allocation.id"
            " JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id AND claim.released_at IS NULL"
            " JOIN inventory_node node ON node.id = placement.node_id"
            " JOIN inventory_acceleratortype type ON type.id = node.accelerator_type_id"
            " WHERE job.team_id = %s AND job.state = ANY(%s) GROUP BY job.user_id, type.name",
            [team.pk, holding],
        )
        held: dict[int, dict[str, Decimal]] = {}
        for user_id, name, devices in cursor.fetchall():
            held.setdefault(user_id, {})[name] = devices
    users = User.objects.in_bulk(counts)
    return tuple(
        MemberUse(users[user_id], *counts[user_id], held.get(user_id, {})) for user_id in sorted(counts)
    )


@dataclass(frozen=True, slots=True)
class QueueFilters:
    """What the queue page is narrowed down to, beyond what `jobs.selectors.Filters` knows."""

    base: jobs.Filters = field(default_factory=jobs.Filters)
    text: str = ""  # an id, or the beginning of a name or of a user's name
    reasons: tuple[str, ...] = ()
    accelerator_type: str = ""
    min_devices: int | None = None
    max_devices: int | None = None
    min_priority: int | None = None
    is_held: bool | None = None
    user_id: int | None = None


def queue(viewer: User, filters: QueueFilters) -> QuerySet[Job]:
    """Jobs for the queue page, each with its reason at hand and `rank_or_last` to order by."""
    rows = jobs.queue_rows(viewer, filters.base).annotate(rank_or_last=Coalesce("reason__rank", _NO_RANK))
    if filters.text:
        match = Q(name__startswith=filters.text) | Q(user__username__startswith=filters.text)
        if filters.text.isascii() and filters.text.isdigit() and len(filters.text) <= 18:
            match |= Q(pk=int(filters.text))
        rows = rows.filter(match)
    if filters.reasons:
        unseen = Q(reason=None) if "new" in filters.reasons else Q()
        rows = rows.filter(Q(reason__code__in=filters.reasons) | unseen)
    if filters.accelerator_type:
        rows = rows.filter(spec__accelerators__contains=[filters.accelerator_type])
    if filters.min_devices is not None:
        rows = rows.filter(n_devices__gte=filters.min_devices)
    if filters.max_devices is not None:
        rows = rows.filter(n_devices__lte=filters.max_devices)
    if filters.min_priority is not None:
        rows = rows.filter(priority__gte=filters.min_priority)
    if filters.is_held is not None:
        rows = rows.filter(is_held=filters.is_held)
    if filters.user_id is not None:
        rows = rows.filter(user_id=filters.user_id)
    return rows


@dataclass(frozen=True, slots=True)
class OpenCounts:
    """Jobs that have not ended, by what the queue page calls them."""

    queued: int
    held: int
    running: int
    paused: int


def open_counts(viewer: User) -> OpenCounts:
    """One query over the jobs that have not ended; those that have are too many to count on every look."""
    rows = (
        jobs.jobs_visible_to(viewer)
        .filter(state__in=[state for state in State if state not in ENDED])
        .order_by()
        .values_list("state", "is_held")
        .annotate(n=Count("id"))
    )
    counts: dict[str, int] = {"queued": 0, "held": 0, "running": 0, "paused": 0}
    for state, is_held, n in rows:
        if state == State.QUEUED:
            counts["held" if is_held else "queued"] += n
        else:
            counts["paused" if state in (State.PAUSING, State.PAUSED) else "running"] += n
    return OpenCounts(**counts)


def n_expected_before(viewer: User, before: datetime) -> int:
    """Waiting jobs with a planned start before then."""
    return (
        jobs.jobs_visible_to(viewer)
        .filter(state=State.QUEUED, is_held=False, reason__expected_start_at__lt=before)
        .count()
    )


@dataclass(frozen=True, slots=True)
class OnNode:
    """A job's stay on one node."""

    job: Job
    n_replicas: int
    devices: Decimal
    began_at: datetime
    ended_at: datetime | None


def jobs_on_node(viewer: User, node: Node, *, most: int = 20) -> list[OnNode]:
    """What runs on a node and what ran there last, the newest first."""
    placements = (
        Placement.objects.filter(node=node, allocation__job__in=jobs.jobs_visible_to(viewer))
        .select_related("allocation__job__team", "allocation__job__user")
        .annotate(devices=Coalesce(Sum("claims__share"), Decimal(0)))
        .order_by("-allocation_id", "group_index")[:most]
    )
    return [
        OnNode(
            placement.allocation.job,
            placement.n_replicas,
            placement.devices,
            placement.allocation.observed_started_at or placement.allocation.bound_at,
            placement.allocation.ended_at,
        )
        for placement in placements
    ]

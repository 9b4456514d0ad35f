"""What is known about jobs, and who may know it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Protocol

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum
from django.utils.module_loading import import_string

from apps.jobs.lifecycle import ENDED, HOLDING, State
from apps.jobs.models import Allocation, DeviceClaim, Job, Progress
from apps.jobs.spec import JobRequest
from apps.teams import policies as teams
from apps.teams.models import User

MASK: Final = "hidden"  # what stands for a value that is there and not shown

ORDERS: Final[dict[str, tuple[str, ...]]] = {
    # Ids are handed out as jobs come in; their index is there anyway.
    "newest": ("-id",),
    "oldest": ("id",),
    "priority": ("-priority", "submitted_at", "id"),
    "name": ("name", "id"),
}


def jobs_visible_to(viewer: User) -> QuerySet[Job]:
    """Jobs this person may see; every list and every detail starts here.

    Everyone signed in sees the whole queue, without the private part of other teams' jobs.
    """
    return Job.objects.all() if viewer.is_authenticated else Job.objects.none()


def is_of_the_team(viewer: User, job: Job) -> bool:
    """A member of the job's team, or a lead of a team above it."""
    return teams.is_member(viewer, job.team) or teams.is_lead(viewer, job.team)


def may_see_private(viewer: User, job: Job) -> bool:
    """Command, script, environment, working folder, what people and backends said, and what happened to the job."""
    return (
        is_of_the_team(viewer, job)
        or teams.is_admin(viewer)
        or teams.is_auditor(viewer)
        or teams.may_operate(viewer)
    )


def private_part_seen_by(viewer: User) -> Callable[[Job], bool]:
    """may_see_private() for a list: the viewer's teams are asked but once."""
    if teams.is_admin(viewer) or teams.is_auditor(viewer) or teams.may_operate(viewer):
        return lambda job: True
    team_ids = teams.team_ids_of(viewer)
    return lambda job: job.team_id in team_ids


def private_part_for(viewer: User, job: Job) -> dict[str, Any]:
    """The private part as far as this person may see it: values of the environment, which may be secrets, are masked
    for those who see what a job runs only because they look after the facility.
    """
    if not may_see_private(viewer, job):
        return {}
    return dict(job.private) if may_see_values(viewer, job) else _masked(job.private)


def _masked(private: dict[str, Any]) -> dict[str, Any]:
    if "env" not in private:
        return dict(private)
    return private | {"env": dict.fromkeys(private["env"], MASK)}


def may_see_values(viewer: User, job: Job) -> bool:
    """The values of its environment: its team and administrators; operators and auditors see the names."""
    return is_of_the_team(viewer, job) or teams.is_admin(viewer)


def may_read_logs(viewer: User, job: Job) -> bool:
    """What the job printed: its team and administrators; operators and auditors never."""
    return is_of_the_team(viewer, job) or teams.is_admin(viewer)


@dataclass(frozen=True, slots=True)
class Rights:
    """What a person may know of a job and do to it."""

    sees_private: bool
    sees_values: bool
    reads_logs: bool
    may_change: bool
    may_submit_again: bool


def rights_of(viewer: User, job: Job) -> Rights:
    """All answers, for whom the team is asked but once."""
    is_of_the_team_ = is_of_the_team(viewer, job)
    is_admin, may_operate = teams.is_admin(viewer), teams.may_operate(viewer)
    return Rights(
        sees_private=is_of_the_team_ or is_admin or teams.is_auditor(viewer) or may_operate,
        sees_values=is_of_the_team_ or is_admin,
        reads_logs=is_of_the_team_ or is_admin,
        may_change=is_of_the_team_ or may_operate,
        may_submit_again=is_of_the_team_,
    )


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list of jobs is narrowed down to."""

    states: tuple[str, ...] = ()
    team: str = ""
    user: str = ""
    name_prefix: str = ""
    reason: str = ""
    cluster: str = ""
    array_id: int | None = None


def queue_rows(viewer: User, filters: Filters = Filters()) -> QuerySet[Job]:
    """Jobs for a list, with team, user, cluster and reason at hand and the long columns left out."""
    rows = (
        jobs_visible_to(viewer).select_related("team", "user", "cluster", "reason", "array").defer("private")
    )
    if filters.states:
        rows = rows.filter(state__in=filters.states)
    if filters.team:
        rows = rows.filter(team__name=filters.team)
    if filters.user:
        rows = rows.filter(user__username=filters.user)
    if filters.name_prefix:
        rows = rows.filter(name__startswith=filters.name_prefix)
    if filters.cluster:
        there = Allocation.objects.filter(cluster__name=filters.cluster, ended_at=None)
        rows = rows.filter(Q(cluster__name=filters.cluster) | Q(pk__in=there.values("job")))
    if filters.array_id is not None:
        rows = rows.filter(array=filters.array_id)
    if filters.reason == "held":
        rows = rows.filter(state=State.QUEUED).filter(Q(is_held=True) | Q(reason__code="held"))
    elif filters.reason:
        # Reasons stay behind when a job leaves the queue; only those of waiting jobs count.
        rows = rows.filter(state=State.QUEUED, is_held=False, reason__code=filters.reason)
    return rows


class Ahead(Protocol):
    """Jobs that go before one that waits, each counted by the first thing that puts it first."""

    @property
    def n(self) -> int: ...
    @property
    def of_higher_priority(self) -> int: ...
    @property
    def overdue(self) -> int: ...
    @property
    def below_share(self) -> int: ...
    @property
    def shorter(self) -> int: ...
    @property
    def earlier(self) -> int: ...
    @property
    def sentence(self) -> str: ...


def ahead_of(rows: Collection[Job]) -> dict[int, Ahead]:
    """Who goes before each of these jobs, by its id, of those that wait and are ready, as of the last pass.

    The planner's own answer (`settings.SWITCHYARD_LINE`). It is counts alone, so everyone who sees the job may know.
    """
    waiting = [job.pk for job in rows if job.state == State.QUEUED and not job.is_held]
    found: dict[int, Ahead] = import_string(settings.SWITCHYARD_LINE)(waiting) if waiting else {}
    return found


def job_counts(viewer: User) -> dict[str, int]:
    """Jobs by state; states without jobs are there with 0."""
    counts = dict(jobs_visible_to(viewer).order_by().values_list("state").annotate(n=Count("id")))
    return {state.value: counts.get(state.value, 0) for state in State}


@dataclass(frozen=True, slots=True)
class WaitingByReason:
    code: str
    n_jobs: int
    n_devices: Decimal


def waiting_by_reason(viewer: User) -> tuple[WaitingByReason, ...]:
    """How many jobs and devices wait for what; jobs no pass has looked at yet are `new`."""
    rows = (
        jobs_visible_to(viewer)
        .filter(state=State.QUEUED)
        .order_by()
        .values_list("reason__code")
        .annotate(n_jobs=Count("id"), n_devices=Sum("n_devices"))
    )
    return tuple(
        sorted(
            (
                WaitingByReason(code or "new", n_jobs, n_devices or Decimal(0))
                for code, n_jobs, n_devices in rows
            ),
            key=lambda row: (-row.n_jobs, row.code),
        )
    )


@dataclass(frozen=True, slots=True)
class NodeShare:
    """An allocation's share on one node, as people read it."""

    node: str
    group: str
    n_replicas: int
    first_rank: int
    devices: tuple[int, ...]
    share: Decimal  # of each of these devices
    cpus: float
    memory_gib: float
    peak_w: float


def open_allocation(job: Job) -> Allocation | None:
    """The attempt under way."""
    return Allocation.objects.select_related("cluster").filter(job=job, ended_at=None).first()


def attempts(job: Job) -> QuerySet[Allocation]:
    """All attempts, the newest first."""
    return Allocation.objects.filter(job=job).select_related("cluster").order_by("-fence")


def node_shares(
    allocation_ids: Sequence[int], group_names: Sequence[str] = ()
) -> dict[int, tuple[NodeShare, ...]]:
    """Where each of these allocations lies (or lay), by node and group in rank order; one query."""
    found: dict[int, list[NodeShare]] = {allocation_id: [] for allocation_id in allocation_ids}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT placement.allocation_id, node.name, placement.group_index, placement.n_replicas,"
            " placement.first_rank, placement.cpus, placement.memory_gib, placement.peak_w, claim.share,"
            " array_agg(device.index ORDER BY device.index) FILTER (WHERE device.id IS NOT NULL)"
            " FROM jobs_placement placement JOIN inventory_node node ON node.id = placement.node_id"
            " LEFT JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id"
            " LEFT JOIN inventory_device device ON device.id = claim.device_id"
            " WHERE placement.allocation_id = ANY(%s)"
            " GROUP BY placement.id, node.name, claim.share"
            " ORDER BY placement.allocation_id, placement.group_index, placement.first_rank, node.name, claim.share",
            [list(allocation_ids)],
        )
        for (
            allocation_id,
            node,
            group,
            n_replicas,
            rank,
            cpus,
            memory_gib,
            peak_w,
            share,
            devices,
        ) in cursor.fetchall():
            name = group_names[group] if group < len(group_names) else ""
            found[allocation_id].append(
                NodeShare(
                    node,
                    name,
                    n_replicas,
                    rank,
                    tuple(devices or ()),
                    share or Decimal(0),
                    cpus,
                    memory_gib,
                    peak_w,
                )
            )
    return {allocation_id: tuple(shares) for allocation_id, shares in found.items()}


def last_checkpoint_at(allocation_ids: Collection[int]) -> dict[int, datetime]:
    """When each of these attempts wrote its last checkpoint, of those that said so; one query."""
    rows = Progress.objects.filter(allocation__in=allocation_ids, checkpoint_at__isnull=False)
    return {
        allocation_id: at
        for allocation_id, at in rows.values_list("allocation_id", "checkpoint_at")
        if at is not None
    }


def is_elastic(spec: Mapping[str, Any]) -> bool:
    """Whether a job may have more than one size, by its specification as it is kept."""
    return any(_is_range(group) for group in spec.get("groups") or [spec])


def n_devices_held(allocation: Allocation) -> Decimal:
    """Devices that an attempt holds now; of a device that it shares, its share."""
    claims = DeviceClaim.objects.filter(placement__allocation=allocation, released_at=None)
    return claims.aggregate(held=Sum("share"))["held"] or Decimal(0)


def relative_rate(spec: Mapping[str, Any], sizes: Mapping[int, int]) -> float:
    """Throughput of a job relative to that at its preferred size, as the planner counts it.

    In proportion to the replicas of the elastic group that is shortest, or along the points that the job declares.

    Args:
        sizes: Replicas by position of the group.
    """
    elastic = [
        (sizes.get(index, 0), replicas.get("preferred") or replicas["max"])
        for index, group in enumerate(spec.get("groups") or [spec])
        if _is_range(group) and (replicas := group["replicas"])
    ]
    if not elastic:
        return 1.0
    points = spec.get("scaling")
    if not points:
        return float(min(n / preferred for n, preferred in elastic))
    n, (first_n, first_rate) = min(n for n, _ in elastic), points[0]
    if n <= first_n:
        return float(first_rate * n / first_n)
    for (low_n, low), (high_n, high) in pairwise(points):
        if n <= high_n:
            return float(low + (high - low) * (n - low_n) / (high_n - low_n))
    return float(points[-1][1])


def _is_range(group: Mapping[str, Any]) -> bool:
    replicas = group.get("replicas")
    return isinstance(replicas, Mapping) and replicas["min"] != replicas["max"]


def unsaved_s(
    checkpoint: Mapping[str, float] | None, ran_s: float, since_checkpoint_s: float | None = None
) -> float:
    """Running time since the last checkpoint: as the attempt said, or else as it was declared; all where none is.

    Args:
        checkpoint: As the job's specification has it.
        since_checkpoint_s: By what the attempt said of its last one; None: it said nothing.
    """
    if since_checkpoint_s is not None:
        return min(since_checkpoint_s, ran_s)
    if not checkpoint:
        return ran_s
    return float(ran_s % (checkpoint["interval"] + checkpoint.get("cost", 0.0)))


def staging_s(allocation: Allocation, at: datetime) -> float:
    """Seconds that the devices of an attempt were held while its data was on its way."""
    if allocation.data_due_at is None:
        return 0.0
    until = allocation.observed_data_at or allocation.ended_at or at
    return max(0.0, (until - allocation.bound_at).total_seconds())


def progress_of(allocation: Allocation) -> Progress | None:
    """What an attempt said of itself, if it ever did."""
    return Progress.objects.filter(allocation=allocation).first()


def group_names(job: Job) -> tuple[str, ...]:
    """Names of its replica groups, in order; empty for the flat form."""
    return tuple(group["name"] for group in job.spec.get("groups", ()))


def wait_s(job: Job, at: datetime) -> float:
    """Seconds it waited for its first start, or waits already."""
    end = job.first_started_at or job.ended_at or at
    return max(0.0, (end - job.submitted_at).total_seconds())


def run_s(job: Job, at: datetime) -> float:
    """Running time over all attempts."""
    if job.state in HOLDING and job.state != State.STARTING and job.started_at is not None:
        return job.ran_s + max(0.0, (at - job.started_at).total_seconds())
    return job.ran_s


def last_request(job: Job) -> dict[str, Any]:
    """All fields of the request with their defaults, without the private part."""
    request = JobRequest.model_validate(job.spec)
    return request.model_dump(mode="json", exclude={"command", "script", "env", "workdir"})


def is_ended(job: Job) -> bool:
    return job.state in ENDED


def ledger_faults(*, most: int = 100) -> list[str]:
    """Everything about the ledger that must never be true and is; each as a sentence. Empty: all is well."""
    holding = sorted(HOLDING)
    checks: list[tuple[str, str, list[Any]]] = [
        (
            "device {0} says that {1} of it is claimed, its open claims add up to {2}",
            "SELECT device.id, device.claimed_share, coalesce(sum(claim.share), 0) FROM inventory_device device"
            " LEFT JOIN jobs_deviceclaim claim ON claim.device_id = device.id AND claim.released_at IS NULL"
            " GROUP BY device.id HAVING device.claimed_share <> coalesce(sum(claim.share), 0)",
            [],
        ),
        (
            "claim {0} on device {1} is open, but its allocation {2} has ended",
            "SELECT claim.id, claim.device_id, allocation.id FROM jobs_deviceclaim claim"
            " JOIN jobs_placement placement ON placement.id = claim.placement_id"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " WHERE claim.released_at IS NULL AND allocation.ended_at IS NOT NULL",
            [],
        ),
        (
            "claim {0} on device {1} was released, but its allocation {2} is open",
            "SELECT claim.id, claim.device_id, allocation.id FROM jobs_allocation allocation"
            " JOIN jobs_placement placement ON allocation.id = placement.allocation_id"
            " JOIN jobs_deviceclaim claim ON placement.id = claim.placement_id"
            " WHERE claim.released_at IS NOT NULL AND allocation.ended_at IS NULL",
            [],
        ),
        (
            "job {0} has {1} open allocations",
            "SELECT job_id, count(*) FROM jobs_allocation WHERE ended_at IS NULL GROUP BY job_id HAVING count(*) > 1",
            [],
        ),
        (
            "job {0} is {1} without an open allocation",
            "SELECT job.id, job.state FROM jobs_job job WHERE job.state = ANY(%s) AND NOT EXISTS"
            " (SELECT 1 FROM jobs_allocation a WHERE a.job_id = job.id AND a.ended_at IS NULL)",
            [holding],
        ),
        (
            "job {0} is {1} with open allocation {2}",
            "SELECT job.id, job.state, allocation.id FROM jobs_allocation allocation"
            " JOIN jobs_job job ON job.id = allocation.job_id"
            " WHERE allocation.ended_at IS NULL AND NOT job.state = ANY(%s)",
            [holding],
        ),
        (
            "allocation {0} is open and has no placement",
            "SELECT allocation.id FROM jobs_allocation allocation WHERE allocation.ended_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM jobs_placement placement WHERE placement.allocation_id = allocation.id)",
            [],
        ),
        (
            "job {0} waits for job {1}, which has not succeeded, and is {2}",
            "SELECT job.id, dependency.after_id, job.state FROM jobs_dependency dependency"
            " JOIN jobs_job job ON job.id = dependency.job_id JOIN jobs_job after ON after.id = dependency.after_id"
            " WHERE job.state = ANY(%s) AND after.state <> 'succeeded'",
            [holding],
        ),
    ]
    faults: list[str] = []
    with connection.cursor() as cursor:
        for sentence, query, parameters in checks:
            cursor.execute(f"{query} LIMIT {int(most)}", parameters)
            faults += [sentence.format(*row) for row in cursor.fetchall()]
    return faults

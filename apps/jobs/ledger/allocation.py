"""Giving waiting jobs their devices: each decision is checked again under the locks."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.db.models import Max

from apps.events.services import EventRow, record_many
from apps.inventory.models import Health
from apps.inventory.outside import held_outside
from apps.jobs import rows
from apps.jobs.errors import Stale
from apps.jobs.lifecycle import HOLDING, State, Trigger, follow
from apps.jobs.models import (
    Allocation,
    Dependency,
    Job,
    JobArray,
    Placement,
    PowerCap,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """What an allocation gets on one node for one replica group."""

    node_id: int
    group_index: int
    n_replicas: int
    first_rank: int
    device_shares: tuple[tuple[int, Decimal], ...]  # (device index, share of it)
    cpus: float = 0.0
    memory_gib: float = 0.0
    peak_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A start the scheduler decided on."""

    job_id: int
    cluster_id: int
    placements: tuple[Grant, ...]
    why: Mapping[str, Any] = field(default_factory=dict)
    power_cap_share: float = 1.0
    data_due_at: datetime | None = None  # its devices wait for its data until then


@dataclass(frozen=True, slots=True)
class Bound:
    """An allocation that was just made."""

    id: int
    job_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of a batch of decisions."""

    allocations: tuple[Bound, ...]
    stale: tuple[tuple[int, str], ...]  # (job id, what was no longer so)


def allocate(
    *,
    job_id: int,
    cluster_id: int,
    placements: Sequence[Grant],
    pass_id: int | None,
    at: datetime,
    why: Mapping[str, Any] | None = None,
    power_cap_share: float = 1.0,
) -> Allocation:
    """Give a waiting job its devices. Raises Stale, and writes nothing, if it or they are no longer to be had."""
    decision = Decision(job_id, cluster_id, tuple(placements), why or {}, power_cap_share)
    outcomes = allocate_many(decisions=[decision], pass_id=pass_id, at=at)
    if outcomes.stale:
        raise Stale(outcomes.stale[0][1], job_id=job_id)
    return Allocation.objects.get(pk=outcomes.allocations[0].id)


class _Waiting(NamedTuple):
    """What decides whether a job may start, as it stands under the lock."""

    id: int
    team_id: int
    name: str
    state: str
    desired_stop_at: datetime | None
    is_held: bool
    not_before_at: datetime | None
    retry_at: datetime | None
    array_id: int | None
    grace_s: float


def _locked_waiting(job_ids: Collection[int]) -> dict[int, _Waiting]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, team_id, name, state, desired_stop_at, is_held, not_before_at, retry_at, array_id,"
            " coalesce((spec->>'grace_s')::float8, 10.0) FROM jobs_job WHERE id = ANY(%s)"
            " ORDER BY id FOR NO KEY UPDATE",
            [sorted(job_ids)],
        )
        return {row[0]: _Waiting(*row) for row in cursor.fetchall()}


@transaction.atomic
def allocate_many(*, decisions: Sequence[Decision], pass_id: int | None, at: datetime) -> Outcomes:
    """Give many waiting jobs their devices in one transaction.

    Each decision is checked again under the locks, in the order given; what has gone stale is dropped whole, and
    the rest is written.
    """
    jobs = _locked_waiting({decision.job_id for decision in decisions})
    ledger = _Claims(decisions, at)
    waits_for = _unfinished_dependencies(jobs)
    fences = dict(
        Allocation.objects.filter(job__in=jobs).values_list("job").annotate(last=Max("fence")).order_by()
    )
    array_room = _array_room(jobs.values())
    stale: list[tuple[int, str]] = []
    taken: list[tuple[Decision, _Waiting, int]] = []
    for decision in decisions:
        job = jobs.get(decision.job_id)
        why_not = _not_startable(job, at) or ledger.why_not(decision)
        if not why_not and decision.job_id in waits_for:
            why_not = f"waits for job {waits_for[decision.job_id]}"
        if not why_not and job is not None and job.array_id in array_room and array_room[job.array_id] <= 0:
            why_not = "its array runs as many as it may"
        if why_not or job is None:
            stale.append((decision.job_id, why_not or "is gone"))
            continue
        ledger.take(decision)
        if job.array_id in array_room:
            array_room[job.array_id] -= 1
        # A second decision for the same job is stale from here on.
        jobs[job.id] = job._replace(state=follow(State(job.state), Trigger.ALLOCATE))
        taken.append((decision, job, fences.get(job.id, 0) + 1))
    bound = _write_allocations(taken, ledger, pass_id, at) if taken else ()
    return Outcomes(bound, tuple(stale))


def _not_startable(job: _Waiting | None, at: datetime) -> str:
    if job is None:
        return "is gone"
    if job.state != State.QUEUED:
        return f"is {job.state}"
    if job.desired_stop_at is not None:
        return "was asked to stop"
    if job.is_held:
        return "is held"
    if job.not_before_at is not None and job.not_before_at > at:
        return "may not start yet"
    if job.retry_at is not None and job.retry_at > at:
        return "is not to be tried again yet"
    return ""


def _unfinished_dependencies(jobs: Collection[int]) -> dict[int, int]:
    return dict(
        Dependency.objects.filter(job__in=jobs)
        .exclude(after__state=State.SUCCEEDED)
        .values_list("job_id", "after_id")
    )


def _array_room(jobs: Iterable[_Waiting]) -> dict[int | None, int]:
    """How many more jobs of each limited array may run; the arrays are locked, so that none is counted twice."""
    ids = {job.array_id for job in jobs if job.array_id is not None}
    if not ids:
        return {}
    room: dict[int | None, int] = {
        array_id: most or 0
        for array_id, most in JobArray.objects.filter(pk__in=ids)
        .exclude(max_running=None)
        .order_by("id")
        .select_for_update(no_key=True)
        .values_list("id", "max_running")
    }
    for array_id in Job.objects.filter(array__in=room, state__in=HOLDING).values_list("array_id", flat=True):
        room[array_id] -= 1
    return room


class _Claims:
    """The devices and nodes that a batch of decisions wants, the devices locked in id order."""

    def __init__(self, decisions: Sequence[Decision], at: datetime) -> None:
        wanted = sorted(
            {
                (grant.node_id, index)
                for decision in decisions
                for grant in decision.placements
                for index, _ in grant.device_shares
            }
        )
        self.device_id: dict[tuple[int, int], int] = {}
        self.claimed: dict[int, Decimal] = {}
        self.changed: set[int] = set()
        if wanted:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT device.id, device.node_id, device.index, device.claimed_share FROM inventory_device device"
                    " JOIN unnest(string_to_array(%s, ',')::bigint[], string_to_array(%s, ',')::int[])"
                    " AS wanted(node_id, index)"
                    " ON device.node_id = wanted.node_id AND device.index = wanted.index"
                    " ORDER BY device.id FOR NO KEY UPDATE OF device",
                    [",".join(str(part) for part in column) for column in zip(*wanted, strict=True)],
                )
                for device_id, node_id, index, share in cursor.fetchall():
                    self.device_id[node_id, index] = device_id
                    self.claimed[device_id] = share
        node_ids = {grant.node_id for decision in decisions for grant in decision.placements}
        self.nodes = _locked_nodes(node_ids, at)
        limited = [
            node_id
            for node_id, (*_, cpus, memory_gib) in self.nodes.items()
            if cpus is not None or memory_gib is not None
        ]
        self.used = _node_use(limited)
        self.outside = held_outside(self.nodes)

    def why_not(self, decision: Decision) -> str:
        if not decision.placements:
            return "was given no node"
        sums: dict[int, Decimal] = defaultdict(Decimal)
        asked: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for grant in decision.placements:
            node = self.nodes.get(grant.node_id)
            if node is None or node[0] != decision.cluster_id:
                return f"node {grant.node_id} is not in its cluster"
            if node[1] != Health.HEALTHY:
                return f"{node[2]} is {node[1]}"
            if not node[3]:
                return "its cluster is switched off"
            asked[grant.node_id][0] += grant.cpus
            asked[grant.node_id][1] += grant.memory_gib
            for index, share in grant.device_shares:
                device_id = self.device_id.get((grant.node_id, index))
                if device_id is None:
                    return f"{node[2]} has no device {index}"
                if (grant.node_id, index) in self.outside:
                    return f"device {index} of {node[2]} is held outside"
                sums[device_id] += share
        for device_id, share in sums.items():
            if not 0 < share <= 1 - self.claimed[device_id]:
                return f"device {device_id} is taken"
        for node_id, (cpus, memory_gib) in asked.items():
            _, _, name, _, most_cpus, most_gib = self.nodes[node_id]
            used_cpus, used_gib = self.used.get(node_id, (0.0, 0.0))
            # A hair of slack: sums of floats depend on their order.
            if most_cpus is not None and cpus and used_cpus + cpus > most_cpus * (1 + 1e-9):
                return f"{name} has no cpus left"
            if most_gib is not None and memory_gib and used_gib + memory_gib > most_gib * (1 + 1e-9):
                return f"{name} has no memory left"
        return ""

    def take(self, decision: Decision) -> None:
        for grant in decision.placements:
            cpus, memory_gib = self.used.get(grant.node_id, (0.0, 0.0))
            self.used[grant.node_id] = (cpus + grant.cpus, memory_gib + grant.memory_gib)
            for index, share in grant.device_shares:
                device_id = self.device_id[grant.node_id, index]
                self.claimed[device_id] += share
                self.changed.add(device_id)


def _locked_nodes(node_ids: Collection[int], at: datetime) -> dict[int, tuple[Any, ...]]:
    """Cluster, health, name, whether the cluster is on, cpus, GiB. Who drains a node waits until we are done."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node.id, node.cluster_id, CASE WHEN node.health = %s AND node.cooldown_until_at > %s"
            " THEN 'cooling down' ELSE node.health END, node.name, cluster.is_enabled, node.cpus, node.memory_gib"
            " FROM inventory_node node JOIN inventory_cluster cluster ON cluster.id = node.cluster_id"
            " WHERE node.id = ANY(%s) ORDER BY node.id FOR NO KEY UPDATE OF node",
            [Health.HEALTHY, at, list(node_ids)],
        )
        return {row[0]: row[1:] for row in cursor.fetchall()}


def _node_use(node_ids: Sequence[int]) -> dict[int, tuple[float, float]]:
    """cpus and GiB that open allocations hold on these nodes."""
    if not node_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT placement.node_id, sum(placement.cpus), sum(placement.memory_gib) FROM jobs_placement placement"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " WHERE placement.node_id = ANY(%s) AND allocation.ended_at IS NULL GROUP BY placement.node_id",
            [list(node_ids)],
        )
        return {node_id: (cpus, memory_gib) for node_id, cpus, memory_gib in cursor.fetchall()}


def _write_allocations(
    taken: Sequence[tuple[Decision, _Waiting, int]], ledger: _Claims, pass_id: int | None, at: datetime
) -> tuple[Bound, ...]:
    ids = rows.insert_columns(
        Allocation,
        len(taken),
        {
            "job_id": [job.id for _, job, _ in taken],
            "cluster_id": [decision.cluster_id for decision, _, _ in taken],
            "fence": [fence for _, _, fence in taken],
            "why": [decision.why for decision, _, _ in taken],
            "desired_power_cap_share": [decision.power_cap_share for decision, _, _ in taken],
            "grace_s": [job.grace_s for _, job, _ in taken],
            "data_due_at": [decision.data_due_at for decision, _, _ in taken],
        },
        {"pass_id": pass_id, "bound_at": at},
    )
    PowerCap.objects.bulk_create(
        [
            # Nobody but who controls power takes it off again, when there is headroom.
            PowerCap(
                allocation_id=allocation_id,
                desired_share=decision.power_cap_share,
                back_share=decision.power_cap_share,
                desired_at=at,
                fence=0,
            )
            for allocation_id, (decision, _, _) in zip(ids, taken, strict=True)
            if decision.power_cap_share < 1.0
        ]
    )
    grants = [
        (allocation_id, grant)
        for allocation_id, (decision, _, _) in zip(ids, taken, strict=True)
        for grant in decision.placements
    ]
    placement_ids = rows.insert_columns(
        Placement,
        len(grants),
        {
            "allocation_id": [allocation_id for allocation_id, _ in grants],
            **{
                name: [getattr(grant, name) for _, grant in grants]
                for name in (
                    "node_id", "group_index", "n_replicas", "first_rank", "cpus", "memory_gib", "peak_w",
                )
            },
        },
        {},
    )  # fmt: skip
    claim_of: list[int] = []
    claim_on: list[int] = []
    claim_share: list[Decimal] = []
    for placement_id, (_, grant) in zip(placement_ids, grants, strict=True):
        for index, share in grant.device_shares:
            claim_of.append(placement_id)
            claim_on.append(ledger.device_id[grant.node_id, index])
            claim_share.append(share)
    with connection.cursor() as cursor:
        if claim_of:
            names = ("placement_id", "device_id", "share")
            rows.copy_in(cursor, "jobs_deviceclaim", names, (claim_of, claim_on, claim_share))
        changed = sorted(ledger.changed)
        # As one text: the driver goes over each element of an array.
        cursor.execute(
            "UPDATE inventory_device device SET claimed_share = new.share FROM unnest("
            " string_to_array(%s, ',')::bigint[], string_to_array(%s, ',')::numeric[]) AS new(id, share)"
            " WHERE device.id = new.id",
            [",".join(map(str, changed)), ",".join(str(ledger.claimed[device_id]) for device_id in changed)],
        )
        cursor.execute(
            "UPDATE jobs_job SET state = %s, state_at = %s, version = version + 1, retry_at = NULL WHERE id = ANY(%s)",
            [State.STARTING, at, [job.id for _, job, _ in taken]],
        )
    record_many(
        [
            EventRow(
                kind="allocation.bound",
                subject_kind="allocation",
                subject_id=allocation_id,
                subject_name=job.name,
                team_id=job.team_id,
                at=at,
                data={"job_id": job.id, "cluster_id": decision.cluster_id},
            )
            for allocation_id, (decision, job, _) in zip(ids, taken, strict=True)
        ]
    )
    return tuple(
        Bound(allocation_id, job.id, fence) for allocation_id, (_, job, fence) in zip(ids, taken, strict=True)
    )

"""A small facility, its teams and its jobs; each test names only what matters to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from apps.inventory.models import AcceleratorType, Backend, Cluster, Device, Node
from apps.jobs import services
from apps.jobs.models import Allocation, Job
from apps.jobs.spec import JobRequest
from apps.teams.models import MemberRole, Membership, Quota, Team, User

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
_numbers = count(1)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Fleet:
    cluster: Cluster
    kind: AcceleratorType
    nodes: tuple[Node, ...]

    def device(self, node: int, index: int) -> Device:
        return Device.objects.get(node=self.nodes[node], index=index)

    def claimed(self) -> Decimal:
        return sum(
            Device.objects.filter(node__cluster=self.cluster).values_list("claimed_share", flat=True),
            Decimal(0),
        )


def fleet(
    n_nodes: int = 2, n_devices: int = 4, *, kind: str = "", backend: str = Backend.LOCAL, **node: Any
) -> Fleet:
    number = next(_numbers)
    name = kind or f"type-{number}"
    of = AcceleratorType.objects.filter(name=name).first() or AcceleratorType.objects.create(
        name=name, memory_gib=80, tdp_w=700, idle_w=70
    )
    cluster = Cluster.objects.create(name=f"cluster-{number}", backend=backend)
    nodes = Node.objects.bulk_create(
        [
            Node(cluster=cluster, name=f"n{number}-{i}", accelerator_type=of, n_devices=n_devices, **node)
            for i in range(n_nodes)
        ]
    )
    Device.objects.bulk_create([Device(node=node, index=i) for node in nodes for i in range(n_devices)])
    return Fleet(cluster, of, tuple(nodes))


def team(name: str = "", *, quota: Mapping[AcceleratorType, int] | None = None, **fields: Any) -> Team:
    made = Team.objects.create(name=name or f"team-{next(_numbers)}", **fields)
    for kind, entitlement in (quota or {}).items():
        Quota.objects.create(team=made, accelerator_type=kind, entitlement=entitlement)
    return made


def person(*teams: Team, role: str = MemberRole.MEMBER, facility_role: str = "") -> User:
    user = User.objects.create(username=f"user-{next(_numbers)}", facility_role=facility_role)
    for of in teams:
        Membership.objects.create(user=user, team=of, role=role)
    return user


def request(of: Team, **fields: Any) -> JobRequest:
    fields.setdefault("name", "train")
    fields.setdefault("command", ["true"])
    return JobRequest.model_validate({"team": of.name, **fields})


def job(of: Team, actor: User, *, at: datetime = NOON, **fields: Any) -> Job:
    return services.submit_job(request=request(of, **fields), actor=actor, at=at)


def grant(node: Node, devices: Sequence[int] = (0,), *, share: str = "1", **fields: Any) -> services.Grant:
    shares = tuple((index, Decimal(share)) for index in devices)
    return services.Grant(
        **{
            "node_id": node.pk,
            "group_index": 0,
            "n_replicas": 1,
            "first_rank": 0,
            "device_shares": shares,
            **fields,
        }
    )


def allocate(of: Job, fleet_: Fleet, *grants: services.Grant, at: datetime = NOON) -> Allocation:
    return services.allocate(
        job_id=of.pk,
        cluster_id=fleet_.cluster.pk,
        placements=grants or (grant(fleet_.nodes[0]),),
        pass_id=None,
        at=at,
    )


def start(of: Job, fleet_: Fleet, *grants: services.Grant, at: datetime = NOON) -> Allocation:
    allocation = allocate(of, fleet_, *grants, at=at)
    services.allocation_started(allocation_id=allocation.pk, fence=allocation.fence, at=at)
    return allocation


def end(allocation: Allocation, outcome: services.Outcome, *, at: datetime, **more: Any) -> Job:
    return services.allocation_ended(
        allocation_id=allocation.pk, fence=allocation.fence, at=at, outcome=outcome, **more
    )

"""What goes in and comes out: types, domains, clusters, nodes."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import (
    AddressName,
    Cores,
    Gib,
    Name,
    Number,
    Reason,
    SecondsOrZero,
    Strict,
    Watts,
    WattsOrZero,
)
from apps.inventory.models import AcceleratorType, Cluster, Device, Domain, Node

Kind = Literal["spine", "leaf", "scale_up", "facility", "hall", "row", "rack", "cooling", "storage"]
Speed = Annotated[Number, Field(gt=0, le=1e6)]
Share = Annotated[Number, Field(gt=0, le=1)]


class AcceleratorTypeIn(Strict):
    name: AddressName
    tdp_w: Watts
    memory_gib: Gib = 0.0
    idle_w: WattsOrZero | None = None
    speed: Speed = 1.0
    power_curve: (
        Annotated[
            list[Annotated[list[Share], Field(min_length=2, max_length=2)]],
            Field(min_length=1, max_length=100),
        ]
        | None
    ) = None
    cap_step_w: Watts | None = None
    cap_settle_s: SecondsOrZero = 10.0


class AcceleratorTypeOut(Out):
    name: str
    memory_gib: float
    tdp_w: float
    idle_w: float
    speed: float
    power_curve: list[list[float]]
    cap_step_w: float
    cap_settle_s: float

    @classmethod
    def of(cls, row: AcceleratorType) -> "AcceleratorTypeOut":
        return cls(
            name=row.name,
            memory_gib=row.memory_gib,
            tdp_w=row.tdp_w,
            idle_w=row.idle_w,
            speed=row.speed,
            power_curve=row.power_curve,
            cap_step_w=row.cap_step_w,
            cap_settle_s=row.cap_settle_s,
        )


class DomainIn(Strict):
    name: AddressName
    kind: Kind
    parent: Name | None = None


class DomainOut(Out):
    name: str
    kind: str
    parent: str | None

    @classmethod
    def of(cls, row: Domain) -> "DomainOut":
        return cls(name=row.name, kind=row.kind, parent=None if row.parent is None else row.parent.name)


class ClusterIn(Strict):
    name: AddressName
    backend: Literal["local", "simulated", "slurm", "kubernetes"]
    config: dict[str, Any] = Field(default_factory=dict)


class ClusterOut(Out):
    """`config` may hold what opens the backend: administrators alone see it."""

    name: str
    backend: str
    is_enabled: bool
    is_simulated: bool
    last_contact_at: datetime | None
    last_error: str
    config: dict[str, Any] | None

    @classmethod
    def of(cls, row: Cluster, *, shows_config: bool) -> "ClusterOut":
        return cls(
            name=row.name,
            backend=row.backend,
            is_enabled=row.is_enabled,
            is_simulated=row.is_simulated,
            last_contact_at=row.last_contact_at,
            last_error=row.last_error,
            config=row.config if shows_config else None,
        )


class NodeIn(Strict):
    name: AddressName
    cluster: Name
    accelerator_type: Name
    n_devices: Annotated[int, Field(ge=1, le=1024)]
    cpus: Cores | None = None
    memory_gib: Gib | None = None
    scale_up: Name | None = None
    leaf: Name | None = None
    power: Name | None = None
    cooling: Name | None = None
    storage: Name | None = None
    idle_w: WattsOrZero = 0.0
    speed: Speed = 1.0


class NodeOut(Out):
    name: str
    cluster: str
    is_simulated: bool
    accelerator_type: str
    n_devices: int
    claimed: float
    cpus: float | None
    memory_gib: float | None
    scale_up: str | None
    leaf: str | None
    power: str | None
    cooling: str | None
    storage: str | None
    idle_w: float
    speed: float
    health: str
    health_reason: str
    health_since_at: datetime | None
    cooldown_until_at: datetime | None
    is_drain_asked: bool

    @classmethod
    def fields_of(cls, row: Node) -> dict[str, Any]:
        """Of a row from selectors.node_details(), which has the number of devices claimed."""
        claimed: Any = row.claimed  # type: ignore[attr-defined]  # an annotation
        return {
            "name": row.name,
            "cluster": row.cluster.name,
            "is_simulated": row.cluster.is_simulated,
            "accelerator_type": row.accelerator_type.name,
            "n_devices": row.n_devices,
            "claimed": float(claimed),
            "cpus": row.cpus,
            "memory_gib": row.memory_gib,
            "scale_up": None if row.scale_up is None else row.scale_up.name,
            "leaf": None if row.leaf is None else row.leaf.name,
            "power": None if row.power is None else row.power.name,
            "cooling": None if row.cooling is None else row.cooling.name,
            "storage": None if row.storage is None else row.storage.name,
            "idle_w": row.idle_w,
            "speed": row.speed,
            "health": row.health,
            "health_reason": row.health_reason,
            "health_since_at": row.health_since_at,
            "cooldown_until_at": row.cooldown_until_at,
            "is_drain_asked": row.drain_asked_at is not None,
        }

    @classmethod
    def of(cls, row: Node) -> "NodeOut":
        return cls(**cls.fields_of(row))


class DeviceOut(Out):
    index: int
    claimed_share: float


class NodeDetailOut(NodeOut):
    devices: list[DeviceOut]

    @classmethod
    def with_devices(cls, row: Node, devices: list[Device]) -> "NodeDetailOut":
        shares = [DeviceOut(index=one.index, claimed_share=float(one.claimed_share)) for one in devices]
        return cls(**cls.fields_of(row), devices=shares)


class WhyIn(Strict):
    reason: Reason = ""


class HealthIn(Strict):
    health: Literal["healthy", "suspect", "failed"]
    reason: Reason = ""
    cooldown_s: SecondsOrZero = 0.0

"""What goes in and comes out: types, domains, clusters, nodes."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from apps.core.api.body import Out
from apps.core.strict import (
    Instant,
    Misfit,
    Name,
    Number,
    Reason,
    SecondsOrZero,
    Strict,
)
from apps.inventory.health import MOST_CHECKS
from apps.inventory.models import (
    AcceleratorType,
    Cluster,
    Device,
    Domain,
    HealthReport,
    Node,
    NodeFailure,
    PaceReading,
)
from apps.inventory.selectors import Seen

MAX_VALUE = 1e15
CheckName = Annotated[Name, Field(max_length=60)]
SourceName = Annotated[Name, Field(max_length=60)]


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


class DomainOut(Out):
    name: str
    kind: str
    parent: str | None

    @classmethod
    def of(cls, row: Domain) -> "DomainOut":
        return cls(name=row.name, kind=row.kind, parent=None if row.parent is None else row.parent.name)


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
    speed: float = Field(description="As declared.")
    measured_speed: float = Field(
        description="What jobs saw of it, as a share of its speed; below 1: a straggler. Placement counts on both."
    )
    health: str
    health_reason: str
    health_since_at: datetime | None
    health_by: str = Field(description="Whose word it is: of a person, reports, failures, or nobody's.")
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
            "measured_speed": row.measured_speed,
            "health": row.health,
            "health_by": row.health_by,
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


class CheckOut(Out):
    name: str
    ok: bool
    value: float | None
    message: str


class HealthReportOut(Out):
    """What a source said once, or several times in a row."""

    source: str
    status: str
    verdict: str = Field(description="What it comes to by the rules: healthy, suspect or failed.")
    checks: list[CheckOut]
    first_at: datetime
    at: datetime
    n_reports: int

    @classmethod
    def of(cls, row: HealthReport) -> "HealthReportOut":
        return cls(
            source=row.source,
            status=row.status,
            verdict=row.verdict,
            checks=[CheckOut(**check) for check in row.checks],
            first_at=row.first_at,
            at=row.at,
            n_reports=row.n_reports,
        )


class NodeFailureOut(Out):
    """An attempt that went wrong here."""

    job_id: int
    kind: str
    at: datetime
    blame: float = Field(description="How far it is the node's: 0 is not at all, 1 is all of it.")

    @classmethod
    def of(cls, row: NodeFailure) -> "NodeFailureOut":
        return cls(job_id=row.job_id, kind=row.kind, at=row.at, blame=row.blame)


class PaceOut(Out):
    """How it did beside the other nodes of one job."""

    job_id: int
    relative_speed: float
    slow_since_at: datetime | None = Field(description="null: it keeps pace.")
    at: datetime

    @classmethod
    def of(cls, row: PaceReading) -> "PaceOut":
        return cls(
            job_id=row.job_id,
            relative_speed=row.relative_speed,
            slow_since_at=row.slow_since_at,
            at=row.at,
        )


class SeenOut(Out):
    """What was seen of a node, the newest first."""

    reports: list[HealthReportOut]
    failures: list[NodeFailureOut]
    paces: list[PaceOut]
    n_quarantines: int = Field(description="In a row; each doubles the cool-down.")

    @classmethod
    def of(cls, row: Node, seen: Seen) -> "SeenOut":
        return cls(
            reports=[HealthReportOut.of(one) for one in seen.reports],
            failures=[NodeFailureOut.of(one) for one in seen.failures],
            paces=[PaceOut.of(one) for one in seen.paces],
            n_quarantines=row.n_quarantines,
        )


class NodeDetailOut(NodeOut):
    devices: list[DeviceOut]
    seen: SeenOut | None = Field(description="For operators and auditors; null for others.")

    @classmethod
    def with_devices(cls, row: Node, devices: list[Device], seen: Seen | None) -> "NodeDetailOut":
        shares = [DeviceOut(index=one.index, claimed_share=float(one.claimed_share)) for one in devices]
        return cls(**cls.fields_of(row), devices=shares, seen=None if seen is None else SeenOut.of(row, seen))


class WhyIn(Strict):
    reason: Reason = ""


class CheckIn(Strict):
    """One thing that a probe looked at."""

    name: CheckName
    ok: bool
    value: Annotated[Number, Field(ge=-MAX_VALUE, le=MAX_VALUE)] | None = None
    message: Annotated[Reason, Field(max_length=300)] = ""


class HealthIn(Strict):
    """Either a person's word (`health`), which reports do not take back, or the report of a probe or an agent
    (`status`), which is judged by the rules together with those before it.
    """

    health: Literal["healthy", "suspect", "failed"] | None = None
    reason: Reason = ""
    cooldown_s: SecondsOrZero | None = Field(
        None, description="How long it rests after it failed; not said: as the rules have it."
    )
    status: Literal["ok", "degraded", "failed"] | None = None
    source: SourceName | None = Field(None, description="Who reports; each source is judged by itself.")
    checks: Annotated[list[CheckIn], Field(max_length=MOST_CHECKS)] = []
    at: Instant | None = Field(
        None,
        description="When it was looked at; now, if not said. What is not newer than the last is dropped.",
    )

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.health is None and not self.model_fields_set & _OF_A_REPORT:
            raise Misfit("is required, or else status and source", "health", code="missing")
        if self.health is not None:
            for name in ("status", "source", "checks", "at"):
                if name in self.model_fields_set:
                    raise Misfit("does not go with health", name)
            return self
        for name in ("reason", "cooldown_s"):
            if name in self.model_fields_set:
                raise Misfit("goes with health alone", name)
        for name in ("status", "source"):
            if getattr(self, name) is None:
                raise Misfit("is required", name, code="missing")
        return self


_OF_A_REPORT = {"status", "source", "checks", "at"}

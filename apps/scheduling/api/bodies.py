"""What comes out: previews, reasons, passes, utilization."""

from datetime import datetime
from typing import Any

from pydantic import Field

from apps.core.api.body import Out
from apps.scheduling.models import Forecast, Pass, Reason, UtilizationSample
from apps.scheduling.selectors import Losses, TypeUse
from apps.scheduling.services import Preview


class WaitOut(Out):
    code: str
    sentence: str
    blocked_by: list[str] = Field(description="Every rule without which it would start now.")
    facts: dict[str, Any]


class ShareOut(Out):
    node: str
    group: int
    replicas: int
    devices: list[int]
    share: float = Field(description="Of each of these devices.")


class PreviewOut(Out):
    """What would become of a job if it were submitted now; nothing was written."""

    would_start: bool
    expected_start: datetime | None
    placement: list[ShareOut]
    cluster: str | None
    is_simulated: bool
    rank: int | None
    reason: WaitOut | None
    why: dict[str, Any]
    displaces: list[int] = Field(
        description="Jobs that would give way to it, and those that would start now without it and not with it."
    )

    @classmethod
    def of(cls, preview: Preview) -> "PreviewOut":
        return cls(
            would_start=preview.would_start,
            expected_start=preview.expected_start_at,
            placement=[ShareOut(**share) for share in preview.placement],
            cluster=preview.cluster or None,
            is_simulated=preview.is_simulated,
            rank=preview.rank,
            reason=WaitOut(**preview.reason) if preview.reason is not None else None,
            why=dict(preview.why),
            displaces=list(preview.displaces),
        )


class ForecastOut(Out):
    made_at: datetime
    expected_start: datetime
    placement: list[dict[str, Any]]

    @classmethod
    def of(cls, row: Forecast) -> "ForecastOut":
        return cls(made_at=row.made_at, expected_start=row.expected_start_at, placement=row.placement)


class ReasonsOut(Out):
    """Why a job waits, as of the last pass, and what it was promised before."""

    job_id: int
    state: str
    reason: WaitOut | None
    at: datetime | None
    pass_id: int | None
    rank: int | None
    expected_start: datetime | None
    forecasts: list[ForecastOut]

    @classmethod
    def of(cls, job_id: int, state: str, reason: Reason | None, forecasts: list[Forecast]) -> "ReasonsOut":
        wait = None
        if reason is not None:
            wait = WaitOut(
                code=reason.code, sentence=reason.sentence, blocked_by=reason.binding, facts=reason.facts
            )
        return cls(
            job_id=job_id,
            state=state,
            reason=wait,
            at=reason.at if reason is not None else None,
            pass_id=reason.pass_id if reason is not None else None,
            rank=reason.rank if reason is not None else None,
            expected_start=reason.expected_start_at if reason is not None else None,
            forecasts=[ForecastOut.of(row) for row in forecasts],
        )


class WaitingOut(Out):
    jobs: int
    devices: float


class PassOut(Out):
    """One run of the planner."""

    id: int
    started_at: datetime
    finished_at: datetime | None
    n_queued: int
    n_started: int
    n_waiting: int
    n_dropped: int = Field(description="Decisions that had gone stale before they were written.")
    is_refused: bool = Field(description="The checker found a broken rule; nothing was written.")
    phase_ms: dict[str, float]
    next_boundary_at: datetime | None
    waiting: dict[str, WaitingOut] = Field(description="By reason.")

    @classmethod
    def of(cls, row: Pass) -> "PassOut":
        return cls(**cls.fields_of(row))

    @staticmethod
    def fields_of(row: Pass) -> dict[str, Any]:
        waiting = row.summary.get("waiting", {})
        return {
            "id": row.pk,
            "started_at": row.started_at,
            "finished_at": row.finished_at,
            "n_queued": row.n_queued,
            "n_started": row.n_started,
            "n_waiting": row.n_waiting,
            "n_dropped": row.n_dropped,
            "is_refused": row.is_refused,
            "phase_ms": row.phase_ms,
            "next_boundary_at": row.next_boundary_at,
            "waiting": {code: WaitingOut(**counts) for code, counts in waiting.items()},
        }


class PassDetailOut(PassOut):
    faults: list[dict[str, Any]]
    dropped: list[dict[str, Any]]

    @classmethod
    def of(cls, row: Pass) -> "PassDetailOut":
        return cls(**cls.fields_of(row), faults=row.faults, dropped=row.summary.get("dropped", []))


class TypeUseOut(Out):
    """Devices of one accelerator type now."""

    accelerator_type: str
    is_simulated: bool
    capacity: int
    unhealthy: int = Field(description="Not usable and not held.")
    claimed: float
    free: float
    utilization: float

    @classmethod
    def of(cls, use: TypeUse) -> "TypeUseOut":
        return cls(
            accelerator_type=use.name,
            is_simulated=use.is_simulated,
            capacity=use.n_capacity,
            unhealthy=use.n_unhealthy,
            claimed=use.claimed,
            free=use.free,
            utilization=use.utilization,
        )


class SampleOut(Out):
    at: datetime
    accelerator_type: str
    is_simulated: bool
    capacity: int
    unhealthy: int
    claimed: float
    waiting_jobs: int
    waiting_devices: float

    @classmethod
    def of(cls, row: UtilizationSample) -> "SampleOut":
        return cls(
            at=row.at,
            accelerator_type=row.accelerator_type.name,
            is_simulated=row.is_simulated,
            capacity=row.n_capacity,
            unhealthy=row.n_unhealthy,
            claimed=row.claimed,
            waiting_jobs=row.n_waiting_jobs,
            waiting_devices=row.waiting_devices,
        )


class UtilizationOut(Out):
    now: list[TypeUseOut]
    items: list[SampleOut]
    next: str | None


class LossesOut(Out):
    """What became of every device-second; the buckets sum to the capacity exactly."""

    since: datetime
    until: datetime
    capacity_device_s: float
    device_s: dict[str, float] = Field(
        description="By bucket: productive, starting, checkpoint, rework, staging, crossing, straggling, power, paused,"
        " held, fragmentation, quota, reserved, drained, failed, no_demand."
    )
    guessed_s: float = Field(
        description="Of this time nobody looked: the last known state is taken to have lasted."
    )

    @classmethod
    def of(cls, row: Losses) -> "LossesOut":
        return cls(
            since=row.from_at,
            until=row.until,
            capacity_device_s=row.capacity_device_s,
            device_s=dict(row.device_s),
            guessed_s=row.guessed_s,
        )


class LedgerOut(Out):
    total: LossesOut | None
    items: list[LossesOut] = Field(description="By quarters of an hour, oldest first.")

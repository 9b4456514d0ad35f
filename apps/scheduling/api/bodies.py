"""What comes in and out: previews, reasons, advice, passes, utilization."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import Reason, Strict, Text, Version
from apps.jobs.models import Job
from apps.scheduling import models
from apps.scheduling.advice import Advice, Leaver
from apps.scheduling.expected_end import ExpectedEnd
from apps.scheduling.models import Defragmentation, Forecast, Pass, UtilizationSample
from apps.scheduling.policy_setting import InForce, PolicyValues
from apps.scheduling.selectors import ForecastErrors, Losses, TypeFree, TypeUse, fragmentation_of
from apps.scheduling.services import Preview
from apps.scheduling.sooner import Sooner


class PolicyIn(PolicyValues):
    """The policy from now on, based on the version that was read."""

    version: Version
    name: Annotated[
        Literal["default", "strict", "easy", "conservative", "shortest", "turnaround"],
        Field(description="The policy that the other fields change."),
    ] = "default"
    reason: Reason = ""


class PolicyOut(Out):
    """`name` is null where it is none of the named policies; a depth of "all" is every job that waits."""

    name: str | None
    version: int
    order: str
    backfill_depth: int | str
    keeps_promises: bool
    starving_s: float
    starving_by_width: float
    ageing_s: float | None
    half_life_s: float
    preemption: bool
    shield_s: float
    most_evictions: int | None
    packing: bool
    staging_hold_s: float

    @classmethod
    def of(cls, policy: InForce) -> "PolicyOut":
        return cls(name=policy.name, version=policy.version, **policy.values)


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


class ExpectedEndOut(Out):
    """When a job that waits or runs will probably end. Nothing is stopped by it, and no promise rests on it."""

    at: datetime | None = Field(description="null: nobody can tell when it starts.")
    source: Literal["own_history", "declared_limit", "declared_run_time"]
    took_s: float | None = Field(
        description="By own history: the mean run time of the last two jobs that came to an end of their own."
    )
    of_name: bool = Field(
        description="By own history: those of the same name, team and owner; else of the owner."
    )

    @classmethod
    def of(cls, end: ExpectedEnd) -> "ExpectedEndOut":
        return cls(at=end.at, source=end.source, took_s=end.took_s, of_name=end.of_name)


class ReasonsOut(Out):
    """Why a job waits, as of the last pass, what it was promised before, and when it will probably end."""

    job_id: int
    state: str
    reason: WaitOut | None
    at: datetime | None
    pass_id: int | None
    rank: int | None
    expected_start: datetime | None
    expected_end: ExpectedEndOut | None
    forecasts: list[ForecastOut]

    @classmethod
    def of(
        cls,
        job_id: int,
        state: str,
        reason: models.Reason | None,
        forecasts: list[Forecast],
        end: ExpectedEnd | None = None,
    ) -> "ReasonsOut":
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
            expected_end=None if end is None else ExpectedEndOut.of(end),
            forecasts=[ForecastOut.of(row) for row in forecasts],
        )


class MovingJobOut(Out):
    id: int
    name: str
    team: str

    @classmethod
    def of(cls, job: Job) -> "MovingJobOut":
        return cls(id=job.pk, name=job.name, team=job.team.name)


class MoveOut(Out):
    """A running job that would stop, go back to the queue with its place in line, and start again elsewhere."""

    job: MovingJobOut
    devices: float
    before: list[ShareOut] = Field(description="Where it runs.")
    after: list[ShareOut] = Field(description="Where it would go on.")
    checkpoint_s: float = Field(description="To write a checkpoint, as the job declared.")
    restart_s: float = Field(description="To start again, as the job declared.")
    lost_s: float = Field(description="Running time since its last checkpoint.")
    cost_device_s: float = Field(description="The sum of these three, times its devices.")

    @classmethod
    def of(cls, leaver: Leaver) -> "MoveOut":
        move = leaver.move
        return cls(
            job=MovingJobOut.of(leaver.job),
            devices=move.devices,
            before=[ShareOut(**share) for share in leaver.before],
            after=[ShareOut(**share) for share in leaver.after],
            checkpoint_s=move.checkpoint_s,
            restart_s=move.restart_s,
            lost_s=move.lost_s,
            cost_device_s=move.cost_device_s,
        )


class ProposalOut(Out):
    """Moves that let a waiting job start: all of them, or none."""

    fingerprint: str = Field(description="What `POST /defragmentation/apply` wants.")
    job: MovingJobOut = Field(description="The job that waits.")
    devices: float = Field(description="Devices it would start with.")
    placement: list[ShareOut] = Field(description="Where it would start.")
    expected_start: datetime | None = Field(description="If all of them move now.")
    expected_start_otherwise: datetime | None = Field(description="If none moves; null: nobody can tell.")
    cost_device_s: float = Field(description="Device-seconds in which the leavers do no new work.")
    gain_device_s: float | None = Field(
        description="Device-seconds by which the job starts earlier; null: nobody can tell."
    )
    moves: list[MoveOut]

    @classmethod
    def of(cls, advice: Advice) -> "ProposalOut":
        return cls(
            fingerprint=advice.fingerprint,
            job=MovingJobOut.of(advice.job),
            devices=advice.proposal.devices,
            placement=[ShareOut(**share) for share in advice.placement],
            expected_start=advice.starts_at,
            expected_start_otherwise=advice.otherwise_at,
            cost_device_s=advice.proposal.cost_device_s,
            gain_device_s=advice.gain_device_s,
            moves=[MoveOut.of(leaver) for leaver in advice.leavers],
        )


class ApplyIn(Strict):
    """Which proposal is to be carried out."""

    fingerprint: Text = Field(min_length=1, max_length=60)


class AppliedMoveOut(Out):
    job_id: int
    allocation_id: int = Field(description="The attempt that was asked to stop.")
    devices: float
    cost_device_s: float


class AppliedOut(Out):
    """Moves that somebody asked for."""

    fingerprint: str
    job_id: int
    at: datetime
    by: str | None
    cost_device_s: float
    gain_device_s: float | None
    moves: list[AppliedMoveOut]

    @classmethod
    def of(cls, row: Defragmentation) -> "AppliedOut":
        return cls(
            fingerprint=row.fingerprint,
            job_id=row.job_id,
            at=row.at,
            by=row.actor.username if row.actor is not None else None,
            cost_device_s=row.cost_device_s,
            gain_device_s=row.gain_device_s,
            moves=[AppliedMoveOut(**move) for move in row.moves],
        )


class FragmentationOut(Out):
    """What a pass left free of one accelerator type, and how much of that the typical job could not use. Typical is
    what waits, runs, and ran within a day, by how often it is asked for."""

    accelerator_type: str
    free: float = Field(description="Devices, of the nodes that take work.")
    of_no_use: float | None = Field(
        description="Of these, expected to be of no use to one replica. null: nobody asks for the type."
    )
    of_no_use_to_gangs: float | None = Field(
        description="Of these, outside every domain that could hold a gang whole: the narrowest that it wants, or that "
        "could hold it empty. null: no gang asks for the type."
    )

    @classmethod
    def of(cls, row: TypeFree) -> "FragmentationOut":
        return cls(
            accelerator_type=row.name,
            free=row.free,
            of_no_use=row.of_no_use,
            of_no_use_to_gangs=row.of_no_use_to_gangs,
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
    fragmentation: list[FragmentationOut]

    @classmethod
    def of(cls, row: Pass) -> "PassDetailOut":
        return cls(
            **cls.fields_of(row),
            faults=row.faults,
            dropped=row.summary.get("dropped", []),
            fragmentation=[FragmentationOut.of(one) for one in fragmentation_of(row)],
        )


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
    left_free: float | None = Field(
        description="Of the type as a whole, by the last pass; null: not measured."
    )
    of_no_use: float | None = Field(description="As of `fragmentation`.")
    of_no_use_to_gangs: float | None

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
            left_free=row.left_free,
            of_no_use=row.of_no_use,
            of_no_use_to_gangs=row.of_no_use_to_gangs,
        )


class ForecastErrorsOut(Out):
    """How far jobs that waited, and started within a day, did so from the start that they were first told."""

    jobs: int = Field(description="The last 10,000 at most.")
    median_s: float
    p90_s: float
    bias_s: float = Field(description="The mean; above 0: they started later than they were told.")
    mean_wait_s: float = Field(description="From when they were first told to their start.")

    @classmethod
    def of(cls, errors: ForecastErrors) -> "ForecastErrorsOut":
        return cls(
            jobs=errors.n_jobs,
            median_s=errors.median_s,
            p90_s=errors.p90_s,
            bias_s=errors.bias_s,
            mean_wait_s=errors.mean_wait_s,
        )


class UtilizationOut(Out):
    now: list[TypeUseOut]
    fragmentation: list[FragmentationOut] = Field(description="As the last pass left it.")
    forecast_errors: ForecastErrorsOut | None = Field(description="As of now; null: no such job.")
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


# What would start a job sooner --------------------------------------------------------------------------------------


class WayOut(Out):
    key: str
    title: str
    costs: str
    changes: dict[str, Any]
    starts_at: datetime | None
    starts_now: bool


class SoonerOut(Out):
    at: datetime
    starts_at: datetime | None
    starts_now: bool
    ways: list[WayOut]
    n_tried: int

    @classmethod
    def of(cls, found: Sooner) -> "SoonerOut":
        return cls(
            at=found.at,
            starts_at=found.starts_at,
            starts_now=found.starts_now,
            ways=[
                WayOut(
                    key=way.key,
                    title=way.title,
                    costs=way.costs,
                    changes=dict(way.changes),
                    starts_at=way.starts_at,
                    starts_now=way.starts_now,
                )
                for way in found.ways
            ],
            n_tried=found.n_tried,
        )

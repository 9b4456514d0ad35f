"""What goes in and comes out: jobs, their attempts, and where those lie."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from apps.core.api.body import Out
from apps.core.strict import BRANCH, WRONG_TYPE, Count, Instant, Misfit, Names, Number, Strict, Text
from apps.events.models import Event
from apps.jobs import selectors
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, Progress
from apps.jobs.progress import Slowest
from apps.jobs.selectors import NodeShare
from apps.jobs.services import Receipt
from apps.jobs.spec import MAX_PRIORITY, JobRequest, Replicas, Seconds, Topology

Why = Annotated[Text, Field(max_length=500)]

_PRIVATE = ("command", "script", "env", "workdir")
_BY_COLUMN = {"name", "team", "user", "priority", "time_limit", "runtime", "cluster", "array", "after"}
# Everything a request may say, as it is where the request does not say it.
_DEFAULTS: dict[str, Any] = {
    name: field.get_default(call_default_factory=True)
    for name, field in JobRequest.model_fields.items()
    if name not in _BY_COLUMN and name not in _PRIVATE
}
_FLAT = (
    "replicas", "devices", "cpus", "memory_gib", "accelerators", "min_memory_gib", "topology", "spread", "power_w",
    "peak_w",
)  # fmt: skip


class BulkIn(Strict):
    """Up to 1,000 jobs, all or none."""

    jobs: Annotated[list[JobRequest], Field(min_length=1, max_length=1000)]


class JobPatchIn(Strict):
    """What may be changed of a job; at least one of these."""

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    time_limit: Seconds | None = None
    replicas: Replicas | None = None
    accelerators: Annotated[Names, Field(min_length=1, description="null: any type.")] | None = None
    topology: Annotated[Topology | None, Field(description="null: anywhere.")] = None
    flexibility: Annotated[int, Field(ge=0, le=4)] | None = None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"accelerators", "topology"})

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            names = ", ".join(type(self).model_fields)
            raise Misfit(f"must have at least one of {names}")
        return self

    @property
    def asks(self) -> dict[str, Any]:
        """What the job asks for anew, as its specification says it."""
        said = self.model_fields_set & {"accelerators", "topology", "flexibility"}
        return self.model_dump(mode="json", include=said, exclude_unset=True)


class WhyIn(Strict):
    """Why it is asked; kept with the job and in the log."""

    reason: Why = ""


def _rank(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) < 8 and str(int(key)) == key):
        raise ValueError("must be a rank: a whole number, as 0 or 17")
    return key


def _branch_of_times(value: object) -> str | None:
    if isinstance(value, Mapping):
        return _BY_RANK
    return _LISTED if isinstance(value, list) else None


_BY_RANK, _LISTED = BRANCH + "by rank", BRANCH + "list"
MOST_RANKS = 100_000
StepTime = Annotated[Number, Field(gt=0, le=1e6)]
Rank = Annotated[str, AfterValidator(_rank)]
StepTimes = Annotated[
    Annotated[dict[Rank, StepTime], Field(min_length=1, max_length=MOST_RANKS), Tag(_BY_RANK)]
    | Annotated[list[StepTime], Field(min_length=1, max_length=MOST_RANKS), Tag(_LISTED)],
    Discriminator(
        _branch_of_times,
        custom_error_type=WRONG_TYPE,
        custom_error_message="must be an object of seconds by rank, or a list of them in rank order",
    ),
]


class ProgressIn(Strict):
    """What a job says of itself; at least one of `step`, `fraction_done` and `checkpoint_at`."""

    step: Annotated[int, Field(ge=0, le=10**15)] | None = Field(
        None, description="The step that was just done. Step times of one that was told already are dropped."
    )
    step_times_s: StepTimes | None = Field(
        None,
        description=(
            "Seconds that the step took each rank (`SWITCHYARD_RANK`), as an object by rank or a list in rank order: "
            "its own work, without waiting for the others, or else nobody can tell who is slow."
        ),
    )
    fraction_done: Annotated[Number, Field(ge=0, le=1)] | None = None
    checkpoint_at: Instant | None = Field(None, description="When it has just written a checkpoint.")
    attempt: Count | None = Field(
        None, description="`SWITCHYARD_ATTEMPT`: a late word of an earlier attempt is refused."
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.step_times_s is not None and self.step is None:
            raise Misfit("is required with step_times_s", "step", code="missing")
        if self.step is None and self.fraction_done is None and self.checkpoint_at is None:
            raise Misfit("must have at least one of step, fraction_done and checkpoint_at")
        return self

    def by_rank(self) -> dict[int, float]:
        if isinstance(self.step_times_s, list):
            return dict(enumerate(self.step_times_s))
        return {int(rank): time_s for rank, time_s in (self.step_times_s or {}).items()}


class SlowestOut(Out):
    """The rank that is furthest behind the others of its group."""

    rank: int
    node: str
    step_s: float = Field(description="What its steps take of late.")
    median_s: float = Field(description="What they take in the middle of its group.")
    slower_by: float = Field(description="Share of the median by which its steps take longer.")
    is_straggling: bool


class ProgressOut(Out):
    """What an attempt said of itself."""

    job_id: int
    attempt: int
    n_posts: int
    step: int | None
    fraction_done: float | None
    checkpoint_at: datetime | None
    first_at: datetime | None
    at: datetime | None
    n_ranks_told: int = Field(description="Ranks that told their step times.")
    slowest: SlowestOut | None = Field(description="null: too little is known to tell.")


class ReasonOut(Out):
    """Why a job waits, as of the last pass that looked at it."""

    code: str
    sentence: str
    blocked_by: list[str]
    facts: dict[str, Any]


class AheadOut(Out):
    """Who goes before a job that waits and could start: jobs that want the same accelerator types, each counted by the
    first thing that puts it first, as of the last pass."""

    n: int
    of_higher_priority: int
    overdue: int = Field(
        description="Waited too long to be passed, where the policy lets the shortest go first."
    )
    below_share: int = Field(description="Of a team that is further below its fair share.")
    shorter: int = Field(description="Probably shorter, where the policy lets the shortest go first.")
    earlier: int = Field(description="Submitted earlier.")
    sentence: str


class ArrayOut(Out):
    id: int
    index: int
    size: int
    max_running: int | None


class JobOut(Out):
    """A job in a list."""

    id: int
    name: str
    team: str
    user: str
    state: str
    state_at: datetime
    reason: ReasonOut | None
    expected_start: datetime | None
    rank: int | None
    ahead: AheadOut | None = Field(
        description="null: it does not wait, is not ready, or no pass has looked at it yet."
    )
    priority: int
    is_held: bool
    n_devices: float
    cluster: str | None = Field(description="The only cluster it may use.")
    array: ArrayOut | None
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    time_limit: float | None
    exit_code: int | None
    end_code: str = Field(description="Stable code of why it ended.")
    end_message: str = Field(description="Free text; for its team, else empty.")
    preemptions: int
    moves: int = Field(description="Times it was stopped to go on elsewhere, so that another could start.")
    resizes: int = Field(description="Times it was stopped to go on with more or fewer replicas.")
    wait_s: float
    run_s: float


class NodeShareOut(Out):
    node: str
    group: str
    replicas: int
    first_rank: int
    devices: list[int]
    share: float = Field(description="Of each of these devices.")
    cpus: float
    memory_gib: float
    peak_w: float = Field(description="Reserved above idle.")


class AllocationOut(Out):
    """One attempt to run a job."""

    id: int
    fence: int = Field(description="Counts the attempts.")
    cluster: str
    is_simulated: bool
    bound_at: datetime
    data_due_at: datetime | None = Field(
        description="Its data was on the way when it was bound; its devices wait for it until then at the most."
    )
    data_at: datetime | None = Field(description="When all its data was there, if it had to wait for it.")
    started_at: datetime | None
    ended_at: datetime | None
    desired_state: str
    observed_state: str
    stop_cause: str
    exit_code: int | None
    message: str = Field(description="Free text; for its team, else empty.")
    power_cap: float = Field(description="Share of TDP.")
    why: dict[str, Any]
    placement: list[NodeShareOut]


class JobDetailOut(JobOut):
    """A job with everything that was asked for.

    `command`, `script`, `env`, `workdir` and free text (`held_reason`, `stop_reason`, messages) are for its team.
    """

    replicas: int | dict[str, int] | None
    devices: float | None
    cpus: float | None
    memory_gib: float | None
    accelerators: list[str] | None
    min_memory_gib: float | None
    topology: dict[str, Any] | None
    spread: dict[str, Any] | None
    power_w: float | None
    peak_w: float | None
    groups: list[dict[str, Any]] | None
    preemptible: bool
    runtime: float | None
    checkpoint: dict[str, Any] | None
    scaling: list[list[float]] | None
    flexibility: int
    datasets: list[str]
    reservation: str | None
    image: str | None
    after: list[int]
    not_before: datetime | None
    deadline: datetime | None
    held: bool
    held_by: str | None
    held_reason: str
    grace_s: float
    stop_requested_at: datetime | None
    stop_reason: str
    retry_at: datetime | None
    first_started_at: datetime | None
    lost_s: float
    start_failures: int
    node_losses: int
    version: int
    allocation: AllocationOut | None = Field(description="The current or else the last attempt.")
    is_private_shown: bool
    command: list[str] | None = None
    script: str | None = None
    env: dict[str, str] | None = Field(
        default=None,
        description="Its values are for its team and administrators; others who see it read `hidden`.",
    )
    workdir: str | None = None
    group_commands: dict[str, list[str]] | None = None


class JobIdOut(Out):
    id: int
    name: str
    team: str
    state: str
    array_index: int | None


class BulkOut(Out):
    items: list[JobIdOut]


class PlacementOut(Out):
    job_id: int
    allocation: AllocationOut | None
    slowest: SlowestOut | None = Field(
        description="Which rank, and so which node, sets the pace; for its team, operators and auditors, else null."
    )


class AttemptsOut(Out):
    items: list[AllocationOut]


class JobEventOut(Out):
    id: int
    at: datetime
    kind: str
    actor: str | None
    reason: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    data: dict[str, Any]


def job_out(
    job: Job,
    at: datetime,
    *,
    shows_private: bool,
    is_new: bool = False,
    ahead: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A JobOut. Plain dictionaries: a page has a thousand of these. No pass has looked at a new job.

    Free text quotes commands and folders, and people write in it what they like: it is part of what is private.
    """
    found = getattr(job, "reason", None) if job.state == State.QUEUED and not is_new else None
    reason: dict[str, Any] | None = None
    if found is not None:
        reason = {
            "code": found.code,
            "sentence": found.sentence,
            "blocked_by": found.binding,
            "facts": found.facts,
        }
    if job.state == State.QUEUED and job.is_held:
        reason = {"code": "held", "sentence": "It is held.", "blocked_by": ["held"], "facts": {}}
    return {
        "id": job.pk,
        "name": job.name,
        "team": job.team.name,
        "user": job.user.get_username(),
        "state": job.state,
        "state_at": job.state_at,
        "reason": reason,
        "expected_start": found.expected_start_at if found is not None and not job.is_held else None,
        "rank": found.rank if found is not None else None,
        "ahead": ahead,
        "priority": job.priority,
        "is_held": job.is_held,
        "n_devices": float(job.n_devices),
        "cluster": job.cluster.name if job.cluster is not None else None,
        "array": _array(job),
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "time_limit": job.time_limit_s,
        "exit_code": job.exit_code,
        "end_code": job.end_code,
        "end_message": job.end_message if shows_private else "",
        "preemptions": job.n_preemptions,
        "moves": job.n_moves,
        "resizes": job.n_resizes,
        "wait_s": selectors.wait_s(job, at),
        "run_s": selectors.run_s(job, at),
    }


def ahead_out(ahead: selectors.Ahead | None) -> dict[str, Any] | None:
    """An AheadOut."""
    return None if ahead is None else {name: getattr(ahead, name) for name in AheadOut.model_fields}


def _array(job: Job) -> dict[str, Any] | None:
    if job.array is None or job.array_index is None:
        return None
    return {
        "id": job.array.pk,
        "index": job.array_index,
        "size": job.array.size,
        "max_running": job.array.max_running,
    }


def job_detail_out(
    job: Job,
    at: datetime,
    *,
    shows_private: bool,
    private: Mapping[str, Any],
    after: Sequence[int],
    allocation: dict[str, Any] | None,
    is_new: bool = False,
    ahead: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A JobDetailOut.

    Args:
        private: The private part, as far as it is shown.
    """
    asked = {name: job.spec.get(name, default) for name, default in _DEFAULTS.items()}
    if asked["groups"] is not None:
        asked |= dict.fromkeys(_FLAT)
    return {
        **asked,
        **job_out(job, at, shows_private=shows_private, is_new=is_new, ahead=ahead),
        "runtime": job.runtime_s,
        "after": list(after),
        "not_before": job.not_before_at,
        "deadline": job.deadline_at,
        "held": job.is_held,
        "held_by": job.held_by.get_username() if job.held_by is not None else None,
        "held_reason": job.held_reason if shows_private else "",
        "stop_requested_at": job.desired_stop_at,
        "stop_reason": job.stop_reason if shows_private else "",
        "retry_at": job.retry_at,
        "first_started_at": job.first_started_at,
        "lost_s": job.lost_s,
        "start_failures": job.n_start_failures,
        "node_losses": job.n_node_losses,
        "version": job.version,
        "allocation": allocation,
        "is_private_shown": shows_private,
        **{name: private.get(name) for name in (*_PRIVATE, "group_commands")},
    }


def allocation_out(
    allocation: Allocation, shares: Sequence[NodeShare], *, shows_private: bool
) -> dict[str, Any]:
    """An AllocationOut."""
    return {
        "id": allocation.pk,
        "fence": allocation.fence,
        "cluster": allocation.cluster.name,
        "is_simulated": allocation.cluster.is_simulated,
        "bound_at": allocation.bound_at,
        "data_due_at": allocation.data_due_at,
        "data_at": allocation.observed_data_at,
        "started_at": allocation.observed_started_at,
        "ended_at": allocation.ended_at,
        "desired_state": allocation.desired_state,
        "observed_state": allocation.observed_state,
        "stop_cause": allocation.stop_cause,
        "exit_code": allocation.observed_exit_code,
        "message": allocation.observed_message if shows_private else "",
        "power_cap": allocation.desired_power_cap_share,
        "why": allocation.why,
        "placement": [
            {
                "node": share.node,
                "group": share.group,
                "replicas": share.n_replicas,
                "first_rank": share.first_rank,
                "devices": list(share.devices),
                "share": float(share.share),
                "cpus": share.cpus,
                "memory_gib": share.memory_gib,
                "peak_w": share.peak_w,
            }
            for share in shares
        ],
    }


def slowest_out(found: Slowest | None) -> dict[str, Any] | None:
    """A SlowestOut."""
    return None if found is None else asdict(found)


def progress_out(allocation: Allocation, row: Progress | None, found: Slowest | None) -> dict[str, Any]:
    """A ProgressOut."""
    return {
        "job_id": allocation.job_id,
        "attempt": allocation.fence,
        "n_posts": 0 if row is None else row.n_posts,
        "step": None if row is None else row.step,
        "fraction_done": None if row is None else row.fraction_done,
        "checkpoint_at": None if row is None else row.checkpoint_at,
        "first_at": None if row is None else row.first_at,
        "at": None if row is None else row.at,
        "n_ranks_told": 0 if row is None else sum(n > 0 for n in row.counts),
        "slowest": slowest_out(found),
    }


def receipt_out(receipt: Receipt) -> dict[str, Any]:
    """A JobIdOut. By hand: a bulk has a thousand of these."""
    return {
        "id": receipt.id,
        "name": receipt.name,
        "team": receipt.team,
        "state": receipt.state,
        "array_index": receipt.array_index,
    }


def event_out(event: Event) -> dict[str, Any]:
    """A JobEventOut."""
    return {
        "id": event.pk,
        "at": event.at,
        "kind": event.kind,
        "actor": event.actor_name or None,
        "reason": event.reason,
        "before": event.before,
        "after": event.after,
        "data": event.data,
    }

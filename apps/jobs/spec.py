"""What a job may ask for: written once, for REST, forms and scenario files.

Pure: pydantic and the standard library. Every number is finite and bounded here, so nothing behind this
module needs to ask again. Durations are seconds, power is watts, memory is GiB.
"""

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from apps.core.strict import (
    BRANCH,
    MAX_COUNT,
    MAX_GIB,
    MAX_S,
    MAX_W,
    WRONG_TYPE,
    Cores,
    Count,
    CountOrZero,
    Gib,
    Instant,
    Misfit,
    Name,
    Names,
    Number,
    Seconds,
    SecondsOrZero,
    Strict,
    Text,
    Watts,
    faults_of,
    path_of,
)

__all__ = [
    "MAX_COUNT",
    "MAX_GIB",
    "MAX_PRIORITY",
    "MAX_S",
    "MAX_W",
    "SHARE_STEPS",
    "Array",
    "Asks",
    "Checkpoint",
    "Count",
    "CountOrZero",
    "Gib",
    "Group",
    "Instant",
    "JobRequest",
    "JobSpec",
    "Misfit",
    "Name",
    "Names",
    "Number",
    "Placed",
    "ReplicaRange",
    "RunningJob",
    "ScenarioJob",
    "Seconds",
    "SecondsOrZero",
    "Spread",
    "Strict",
    "Text",
    "Topology",
    "Watts",
    "faults_of",
    "path_of",
    "shape_key",
]

MAX_PRIORITY = 1_000_000
SHARE_STEPS = 1_000_000  # shares of a device are kept in millionths, so that sums are exact

NETWORK_KINDS = ("scale_up", "leaf", "spine")
POWER_KINDS = ("rack", "row", "hall", "facility")
DOMAIN_KINDS = (*NETWORK_KINDS, *POWER_KINDS, "cooling", "storage")


def _whole_or_fraction(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError("must be a whole number, or a fraction below 1")
    if 0 < value < 1 and round(value * SHARE_STEPS) == 0:
        raise ValueError("must be at least 0.000001")
    if 0 < value < 1 and round(value * SHARE_STEPS) == SHARE_STEPS:
        raise ValueError("must be 1, or a fraction of at most 0.999999")
    return value


Argument = Annotated[Text, Field(max_length=131_072)]  # as long as Linux lets one argument be
Command = Annotated[list[Argument], Field(min_length=1, max_length=1000)]
NetworkKind = Literal["scale_up", "leaf", "spine"]
Kind = Literal["scale_up", "leaf", "spine", "rack", "row", "hall", "facility", "cooling", "storage"]


class ReplicaRange(Strict):
    """Bounds of an elastic job: never below `min` or above `max`, and started at `preferred` at most."""

    min: Count
    max: Count
    preferred: Count | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise Misfit("must not be under min", "max", code="out_of_range")
        if self.preferred is not None and not self.min <= self.preferred <= self.max:
            raise Misfit("must lie between min and max", "preferred", code="out_of_range")
        return self


class Topology(Strict):
    """How close the replicas must (or should) be: within one domain of this kind."""

    required: NetworkKind | None = None
    preferred: NetworkKind | None = None
    max_wait: SecondsOrZero | None = Field(
        None, description="How long the job rather waits than start in a wider domain than it prefers."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.required is None) == (self.preferred is None):
            raise Misfit("takes exactly one of required and preferred")
        if self.max_wait is not None and self.preferred is None:
            raise Misfit("goes with preferred alone: what is required is waited for anyway", "max_wait")
        return self


class Spread(Strict):
    """How far apart the replicas must be: over domains of this kind."""

    over: Kind
    max_skew: Count | None = None
    max_per_domain: Count | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.max_skew is None) == (self.max_per_domain is None):
            raise Misfit("takes exactly one of max_skew and max_per_domain")
        return self


class Checkpoint(Strict):
    """After every `interval` seconds of running a checkpoint takes `cost`; a new start spends `restart`.

    With `on_resize` an elastic job changes its size by a checkpoint and a restart: each time it spends both, and its
    work is safe after that. Without it it goes on at once.
    """

    interval: Seconds
    cost: SecondsOrZero = 0.0
    restart: SecondsOrZero = 0.0
    on_resize: bool = False


def _branch_of_replicas(value: object) -> str | None:
    # The common case first: to ask what is a Mapping takes ten times as long.
    if isinstance(value, int):
        return None if isinstance(value, bool) else _COUNT
    return _RANGE if isinstance(value, ReplicaRange | Mapping) else None


_COUNT: Final = BRANCH + "count"
_RANGE: Final = BRANCH + "range"
Replicas = Annotated[
    Annotated[Count, Tag(_COUNT)] | Annotated[ReplicaRange, Tag(_RANGE)],
    Discriminator(
        _branch_of_replicas,
        custom_error_type=WRONG_TYPE,
        custom_error_message="must be a whole number, or an object with min and max",
    ),
]
Devices = Annotated[Number, Field(ge=0, le=100_000), AfterValidator(_whole_or_fraction)]


class Asks(Strict):
    """What each replica of one group needs, and where the group may lie."""

    replicas: Replicas = 1
    devices: Devices = 1.0
    cpus: Cores = 0.0
    memory_gib: Gib = 0.0
    accelerators: Annotated[Names, Field(min_length=1)] | None = None
    min_memory_gib: Gib | None = None
    topology: Topology | None = None
    spread: Spread | None = None
    power_w: Watts | None = None
    peak_w: Watts | None = None

    @model_validator(mode="after")
    def _peak_covers_power(self) -> Self:
        if self.power_w is not None and self.peak_w is not None and self.peak_w < self.power_w:
            raise Misfit("must not be under power_w", "peak_w", code="out_of_range")
        return self

    @property
    def min_replicas(self) -> int:
        return self.replicas if isinstance(self.replicas, int) else self.replicas.min

    @property
    def max_replicas(self) -> int:
        return self.replicas if isinstance(self.replicas, int) else self.replicas.max

    @property
    def preferred_replicas(self) -> int:
        if isinstance(self.replicas, int):
            return self.replicas
        return self.replicas.max if self.replicas.preferred is None else self.replicas.preferred

    @property
    def is_elastic(self) -> bool:
        return self.min_replicas != self.max_replicas

    @property
    def whole_devices(self) -> int:
        """Whole devices of one node a replica takes; 0 for a fractional or a CPU-only replica."""
        return int(self.devices) if self.devices >= 1 else 0

    @property
    def share_steps(self) -> int:
        """Millionths of one device a fractional replica takes; 0 for others."""
        return round(self.devices * SHARE_STEPS) if 0 < self.devices < 1 else 0


class Group(Asks):
    """One of several replica groups that start together (a trainer with its parameter servers)."""

    name: Name
    command: Command | None = None


def _rising(points: list[list[float]]) -> list[list[float]]:
    for n, rate in points:
        if n != int(n) or not 1 <= n <= 1_000_000:
            raise ValueError("the first of each pair must be a number of replicas")
        if not 0 < rate <= 1e6:
            raise ValueError("the second of each pair must be a throughput above 0")
    for (n, rate), (next_n, next_rate) in pairwise(points):
        if next_n <= n:
            raise ValueError("replicas must rise from point to point")
        if next_rate < rate:
            raise ValueError("throughput must not fall while replicas are added")
    return points


ScalingPoint = Annotated[list[Number], Field(min_length=2, max_length=2)]
Scaling = Annotated[list[ScalingPoint], Field(min_length=1, max_length=1000), AfterValidator(_rising)]


class JobSpec(Asks):
    """One job: the fields that REST, forms and scenario files share. The flat form is one replica group."""

    name: Name
    team: Name | None = None
    user: Name | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    preemptible: bool = True
    groups: Annotated[list[Group], Field(min_length=1, max_length=16)] | None = None
    runtime: Seconds | None = None
    time_limit: Seconds | None = None
    checkpoint: Checkpoint | None = None
    flexibility: Annotated[int, Field(ge=0, le=4)] = 0
    datasets: Names = Field(default_factory=list)
    reservation: Name | None = None
    scaling: Scaling | None = Field(
        None,
        description="For an elastic job: [replicas, throughput relative to the preferred size], rising. "
        "Without it throughput goes with the number of replicas.",
    )

    @model_validator(mode="after")
    def _flat_or_grouped(self) -> Self:
        if self.groups is not None:
            flat = sorted(set(Asks.model_fields) & self.model_fields_set)
            if flat:
                raise Misfit(f"must not stand beside {flat[0]}, which each group says for itself", "groups")
            names = [group.name for group in self.groups]
            for index, name in enumerate(names):
                if name in names[:index]:
                    raise Misfit("must differ from the names of the other groups", "groups", index, "name")
        return self

    @property
    def all_groups(self) -> tuple[Asks, ...]:
        return tuple(self.groups) if self.groups is not None else (self,)

    @property
    def n_devices(self) -> float:
        """Devices the job holds at its preferred size."""
        return sum(group.devices * group.preferred_replicas for group in self.all_groups)

    @property
    def is_elastic(self) -> bool:
        return any(group.min_replicas != group.max_replicas for group in self.all_groups)


class Placed(Strict):
    """Replicas of one group on one node and the devices they hold, in the words of the events' `placement`."""

    node: Name
    replicas: Count
    devices: Annotated[list[CountOrZero], Field(max_length=100_000)] = Field(
        default_factory=list, description="Indices from 0. A fractional job has an entry for each device."
    )
    share: Annotated[Number, Field(gt=0, le=1)] = 1.0
    group: Name | None = None

    @property
    def share_steps(self) -> int:
        """Millionths of each of its devices."""
        return round(self.share * SHARE_STEPS)


class RunningJob(Strict):
    """Where a job runs when the scenario begins, and since when. `runtime` and `time_limit` count from its start."""

    since: SecondsOrZero = Field(0.0, description="Seconds it has run by then.")
    placement: Annotated[list[Placed], Field(min_length=1, max_length=1_000_000)]


class ScenarioJob(JobSpec):
    """A job of a scenario file: times are seconds from 0, the true run time is for the simulator alone."""

    submit: SecondsOrZero = 0.0
    runtime: Seconds
    after: Names = Field(default_factory=list)
    not_before: SecondsOrZero | None = None
    deadline: SecondsOrZero | None = None
    age: SecondsOrZero = Field(0.0, description="Seconds since its submission when the scenario begins.")
    running: RunningJob | None = None

    @model_validator(mode="after")
    def _from_the_beginning(self) -> Self:
        if self.age and self.submit:
            raise Misfit("goes with submit 0 alone", "age", code="out_of_range")
        if self.running is not None:
            for field in ("submit", "after", "not_before"):
                if getattr(self, field):
                    raise Misfit(
                        f"must not stand beside {field}: the job runs when the scenario begins", "running"
                    )
            if self.time_limit is not None and self.running.since >= self.time_limit:
                raise Misfit("must be below time_limit", "running", "since", code="out_of_range")
            _require_whole(self, self.running)
        return self


def _require_whole(job: JobSpec, running: RunningJob) -> None:
    """What runs is the whole job, at a size it may have, on as many devices as that takes."""
    places = {group.name: index for index, group in enumerate(job.groups)} if job.groups is not None else {}
    n_replicas = [0] * len(job.all_groups)
    for at, placed in enumerate(running.placement):
        where = ("running", "placement", at)
        if job.groups is None and placed.group is not None:
            raise Misfit("is for jobs of several groups", *where, "group")
        if job.groups is not None and placed.group not in places:
            raise Misfit("must name a group of the job", *where, "group")
        index = places[placed.group] if placed.group is not None else 0
        n_replicas[index] += placed.replicas
        asks = job.all_groups[index]
        n_devices = placed.replicas * asks.whole_devices
        steps = SHARE_STEPS
        if asks.share_steps:
            n_devices, steps = 1, placed.replicas * asks.share_steps
        if len(set(placed.devices)) != n_devices or len(placed.devices) != n_devices:
            raise Misfit(f"must be {n_devices} devices", *where, "devices", code="out_of_range")
        if placed.share_steps != steps:
            raise Misfit(f"must be {steps / SHARE_STEPS:g}", *where, "share", code="out_of_range")
    for asks, n in zip(job.all_groups, n_replicas, strict=True):
        if not asks.min_replicas <= n <= asks.max_replicas:
            least, most = asks.min_replicas, asks.max_replicas
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise Misfit(f"must hold {wanted} replicas, not {n}", "running", "placement", code="out_of_range")


def _env_names(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or len(name) > 255 or "=" in name or not name.isprintable():
            raise Misfit("is not the name of an environment variable", name)
    return env


Env = Annotated[dict[Text, Argument], Field(max_length=1000), AfterValidator(_env_names)]


class Array(Strict):
    """`size` copies of the job, told apart by SWITCHYARD_ARRAY_INDEX; at most `max_running` at once."""

    size: Annotated[int, Field(ge=1, le=10_000)]
    max_running: Annotated[int, Field(ge=1, le=10_000)] | None = None


class JobRequest(JobSpec):
    """A job by REST or by form: what a real run needs beside the shared fields."""

    team: Name
    command: Command | None = None
    script: Annotated[Text, Field(min_length=1, max_length=1_000_000)] | None = None
    env: Env = Field(default_factory=dict)
    workdir: Annotated[Text, Field(min_length=1, max_length=4096)] | None = None
    image: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    cluster: Name | None = None
    after: Annotated[list[Annotated[int, Field(ge=1, le=2**62)]], Field(max_length=1000)] = Field(
        default_factory=list, description="Ids of jobs of the same team; all must have finished well."
    )
    not_before: Instant | None = None
    deadline: Instant | None = None
    held: bool = False
    array: Array | None = None
    grace_s: Annotated[Number, Field(ge=0, le=3600)] = 10.0

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.command is not None and self.script is not None:
            raise Misfit("must not stand beside command: a job runs one of the two", "script")
        if self.script is not None and not self.script.startswith("#!"):
            raise Misfit("must begin with a shebang, such as #!/bin/sh", "script")
        return self


def _given(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def shape_key(spec: JobSpec) -> str:
    """Digest of everything that decides where a job fits; jobs of one shape fit or fail together."""
    shape = (
        [
            (
                *(group.min_replicas, group.preferred_replicas, group.max_replicas),
                *(group.devices, group.cpus, group.memory_gib, group.min_memory_gib),
                group.accelerators,
                group.topology
                and (group.topology.required, group.topology.preferred, *_given(group.topology.max_wait)),
                group.spread and (group.spread.over, group.spread.max_skew, group.spread.max_per_domain),
                *(group.power_w, group.peak_w),
            )
            for group in spec.all_groups
        ],
        *(spec.team, spec.reservation, getattr(spec, "cluster", None), sorted(spec.datasets)),
    )
    return hashlib.blake2b(repr(shape).encode(), digest_size=12).hexdigest()

"""What a job may ask for: written once, for REST, forms and scenario files.

Pure: pydantic and the standard library. Every number is finite and bounded here, so nothing behind this
module needs to ask again. Durations are seconds, power is watts, memory is GiB.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

MAX_COUNT = 1_000_000
MAX_PRIORITY = 1_000_000
MAX_S = 1e10  # three centuries: longer is a slip of the keyboard
MAX_W = 1e9
MAX_GIB = 1e9
SHARE_STEPS = 1_000_000  # shares of a device are kept in millionths, so that sums are exact

NETWORK_KINDS = ("scale_up", "leaf", "spine")
POWER_KINDS = ("rack", "row", "hall", "facility")
DOMAIN_KINDS = (*NETWORK_KINDS, *POWER_KINDS, "cooling", "storage")


def _readable(text: str) -> str:
    """Refuse text that cannot be stored or that would lie on a screen (control and invisible direction marks)."""
    for char in text:
        code = ord(char)
        if code < 0x20 or 0x7F <= code < 0xA0:
            raise ValueError("must not contain control characters")
        if 0xD800 <= code <= 0xDFFF:
            raise ValueError("must be valid Unicode")
        if code in (0x200E, 0x200F, 0x061C, 0xFEFF) or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
            raise ValueError("must not contain invisible direction marks")
    if text != text.strip():
        raise ValueError("must not begin or end with a space")
    return text


def _storable(text: str) -> str:
    """Refuse what neither PostgreSQL nor a process environment can hold."""
    if "\x00" in text:
        raise ValueError("must not contain the NUL character")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError("must be valid Unicode")
    return text


def _whole_or_fraction(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError("must be a whole number, or a fraction below 1")
    if 0 < value < 1 and round(value * SHARE_STEPS) == 0:
        raise ValueError("must be at least 0.000001")
    if 0 < value < 1 and round(value * SHARE_STEPS) == SHARE_STEPS:
        raise ValueError("must be 1, or a fraction of at most 0.999999")
    return value


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_readable)]
Text = Annotated[str, AfterValidator(_storable)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[Number, Field(gt=0, le=MAX_S)]
SecondsOrZero = Annotated[Number, Field(ge=0, le=MAX_S)]
Watts = Annotated[Number, Field(gt=0, le=MAX_W)]
Gib = Annotated[Number, Field(ge=0, le=MAX_GIB)]
Cores = Annotated[Number, Field(ge=0, le=MAX_COUNT)]
NetworkKind = Literal["scale_up", "leaf", "spine"]
Kind = Literal["scale_up", "leaf", "spine", "rack", "row", "hall", "facility", "cooling", "storage"]


class Strict(BaseModel):
    """No unknown field, no coercion (`true` is not 1, "1" is not 1, 4.0 is not a count), nothing changed later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, data: Any) -> Any:
        # A field that is absent is absent; `null` is a wrong type, except where the contract names it.
        if isinstance(data, Mapping):
            for key, value in data.items():
                if value is None and key not in cls._nullable():
                    raise NullField(str(key))
        return data

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset()


class NullField(ValueError):
    """A field was given as null; carries the field's name so that the path can be told."""

    def __init__(self, field: str) -> None:
        super().__init__("must not be null")
        self.field = field


class ReplicaRange(Strict):
    """Bounds of an elastic job: it never runs below `min` or above `max`, and starts at most at `preferred`."""

    min: Count
    max: Count
    preferred: Count | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be over max")
        if self.preferred is not None and not self.min <= self.preferred <= self.max:
            raise ValueError("preferred must lie between min and max")
        return self


class Topology(Strict):
    """How close the replicas must (or should) be: within one domain of this kind."""

    required: NetworkKind | None = None
    preferred: NetworkKind | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.required is None) == (self.preferred is None):
            raise ValueError("takes exactly one of required and preferred")
        return self


class Spread(Strict):
    """How far apart the replicas must be: over domains of this kind."""

    over: Kind
    max_skew: Count | None = None
    max_per_domain: Count | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.max_skew is None) == (self.max_per_domain is None):
            raise ValueError("takes exactly one of max_skew and max_per_domain")
        return self


class Checkpoint(Strict):
    """After every `interval` seconds of running a checkpoint takes `cost`; each new start spends `restart`."""

    interval: Seconds
    cost: SecondsOrZero = 0.0
    restart: SecondsOrZero = 0.0


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise ValueError("must not name the same thing twice")
    return names


Names = Annotated[list[Name], Field(max_length=1000), AfterValidator(_distinct)]
Devices = Annotated[Number, Field(ge=0, le=100_000), AfterValidator(_whole_or_fraction)]


class Asks(Strict):
    """What each replica of one group needs, and where the group may lie."""

    replicas: Count | ReplicaRange = 1
    devices: Devices = 1
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
            raise ValueError("peak_w must not be under power_w")
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
    command: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None


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

    @model_validator(mode="after")
    def _flat_or_grouped(self) -> Self:
        if self.groups is not None:
            flat = sorted(set(Asks.model_fields) & self.model_fields_set)
            if flat:
                raise ValueError(f"groups already say what {flat[0]} says")
            _distinct([group.name for group in self.groups])
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
        return any(
            group.min_replicas != group.max_replicas for group in self.all_groups
        )


class ScenarioJob(JobSpec):
    """A job of a scenario file: times are seconds from 0, the true run time is known to the simulator alone."""

    submit: SecondsOrZero = 0.0
    runtime: Seconds
    after: Names = Field(default_factory=list)
    not_before: SecondsOrZero | None = None
    deadline: SecondsOrZero | None = None


def _env_names(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or len(name) > 255 or "=" in name or not name.isprintable():
            raise ValueError(f"is not an environment variable's name: {name[:40]!r}")
    return env


Env = Annotated[
    dict[Text, Annotated[Text, Field(max_length=131_072)]], Field(max_length=1000), AfterValidator(_env_names)
]


class Array(Strict):
    """`size` copies of the job, told apart by SWITCHYARD_ARRAY_INDEX; at most `max_running` at once."""

    size: Annotated[int, Field(ge=1, le=10_000)]
    max_running: Annotated[int, Field(ge=1, le=10_000)] | None = None


class JobRequest(JobSpec):
    """A job by REST or by form: what a real run needs beside the shared fields."""

    team: Name
    command: Annotated[list[Annotated[Text, Field(max_length=131_072)]], Field(min_length=1, max_length=1000)] | None = None
    script: Annotated[Text, Field(min_length=1, max_length=1_000_000)] | None = None
    env: Env = Field(default_factory=dict)
    workdir: Annotated[Text, Field(min_length=1, max_length=4096)] | None = None
    image: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    cluster: Name | None = None
    after: Annotated[list[Annotated[int, Field(ge=1, le=2**62)]], Field(max_length=1000)] = Field(
        default_factory=list, description="Ids of jobs of the same team; all must have finished well."
    )
    not_before: Annotated[datetime, AwareDatetime] | None = Field(default=None, strict=False)
    deadline: Annotated[datetime, AwareDatetime] | None = Field(default=None, strict=False)
    held: bool = False
    array: Array | None = None
    grace_s: Annotated[Number, Field(ge=0, le=3600)] = 10.0

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.command is not None and self.script is not None:
            raise ValueError("takes one of command and script")
        if self.script is not None and not self.script.startswith("#!"):
            raise ValueError("script must begin with a shebang (#!)")
        return self


def shape_key(spec: JobSpec) -> str:
    """Digest of everything that decides where a job fits; jobs of one shape fit or fail together."""
    asks = [
        {key: value for key, value in group.model_dump(mode="json").items() if key not in ("name", "command")}
        for group in (
            Asks.model_validate({k: v for k, v in g.model_dump().items() if k in Asks.model_fields and v is not None})
            for g in spec.all_groups
        )
    ]
    text = json.dumps([asks, spec.team, spec.reservation, sorted(spec.datasets)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def faults_of(error: ValidationError, *, prefix: Iterable[str | int] = ()) -> list[dict[str, str]]:
    """Each fault as {path, code, message}: the path as a user would write it, `jobs[3].replicas.min`."""
    faults = []
    for fault in error.errors(include_url=False, include_input=False):
        cause = (fault.get("ctx") or {}).get("error")
        steps = [*prefix, *_user_steps(fault["loc"])]
        if isinstance(cause, NullField):
            steps.append(cause.field)
        message = str(cause) if cause is not None else fault["msg"]
        faults.append({"path": path_of(steps), "code": _code(fault["type"], cause), "message": message[:1].lower() + message[1:]})
    return faults


def _user_steps(loc: tuple[int | str, ...]) -> list[int | str]:
    # pydantic adds a step that names the branch of a union; a user never wrote it.
    branches = {"ReplicaRange", "constrained-int", "constrained-float", "int", "float", "list", "function-after"}
    return [step for step in loc if isinstance(step, int) or step.split("[")[0] not in branches]


def _code(kind: str, cause: object) -> str:
    if isinstance(cause, NullField):
        return "null"
    known = {
        "missing": "missing",
        "extra_forbidden": "unknown_field",
        "finite_number": "not_finite",
        "value_error": "invalid",
        "string_too_long": "too_long",
        "too_long": "too_long",
        "string_too_short": "too_short",
        "too_short": "too_short",
        "literal_error": "not_a_choice",
    }
    if kind in known:
        return known[kind]
    return "wrong_type" if kind.endswith(("_type", "_parsing")) else "out_of_range"


def path_of(steps: Iterable[str | int]) -> str:
    """Write steps the way the contract does: `jobs[3].replicas`."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text

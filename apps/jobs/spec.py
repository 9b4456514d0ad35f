"""What a job may ask for: written once, for REST, forms and scenario files.

Pure: pydantic and the standard library. Every number is finite and bounded here, so nothing behind this
module needs to ask again. Durations are seconds, power is watts, memory is GiB.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

MAX_COUNT = 1_000_000
MAX_PRIORITY = 1_000_000
MAX_S = 1e10  # three centuries: longer is a slip of the keyboard
MAX_W = 1e9
MAX_GIB = 1e9
SHARE_STEPS = 1_000_000  # shares of a device are kept in millionths, so that sums are exact

NETWORK_KINDS = ("scale_up", "leaf", "spine")
POWER_KINDS = ("rack", "row", "hall", "facility")
DOMAIN_KINDS = (*NETWORK_KINDS, *POWER_KINDS, "cooling", "storage")


class Misfit(ValueError):
    """A fault with its own code, at `field` below whatever is being validated (empty: at that itself)."""

    def __init__(self, message: str, *field: str | int, code: str = "invalid") -> None:
        super().__init__(message)
        self.field, self.code = field, code


def _readable(text: str) -> str:
    """Refuse text that cannot be stored or that would lie on a screen: control or invisible marks."""
    if not text.isprintable():
        _storable(text)
        for char in text:
            # The two joiners are part of how some scripts, and many emoji, are written.
            if not char.isprintable() and char not in "\u200c\u200d":
                raise ValueError(f"must not contain control or invisible characters (U+{ord(char):04X})")
    if text != text.strip():
        raise ValueError("must not begin or end with a space")
    return text


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _storable(text: str) -> str:
    """Refuse what neither PostgreSQL nor a process environment can hold."""
    if "\x00" in text:
        raise ValueError("must not contain the NUL character")
    if not text.isascii() and _SURROGATE.search(text):
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


# The form of RFC 3339; a time without a zone is told apart from one that is no time.
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _instant(value: object) -> datetime:
    """Take an ISO 8601 text with its zone (or, from Python, an aware datetime); a number says too little."""
    if not isinstance(value, str | datetime):
        wanted = "must be a date and time as text, such as 2026-03-01T08:00:00Z"
        raise Misfit(f"{wanted}, not {_described(value)}", code="wrong_type")
    if isinstance(value, str):
        if not _INSTANT.fullmatch(value):
            raise Misfit("must be a date and time, such as 2026-03-01T08:00:00Z")
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise Misfit("must be a date and time that exists") from None
    if value.utcoffset() is None:
        raise Misfit("must name its zone, as 2026-03-01T08:00:00Z or 2026-03-01T09:00:00+01:00 do")
    if not 1970 < value.year < 2300:
        raise Misfit("must lie in the years 1971 to 2299", code="out_of_range")
    return value


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_readable)]
Text = Annotated[str, AfterValidator(_storable)]
Argument = Annotated[Text, Field(max_length=131_072)]  # as long as Linux lets one argument be
Command = Annotated[list[Argument], Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[Number, Field(gt=0, le=MAX_S)]
SecondsOrZero = Annotated[Number, Field(ge=0, le=MAX_S)]
Watts = Annotated[Number, Field(gt=0, le=MAX_W)]
Gib = Annotated[Number, Field(ge=0, le=MAX_GIB)]
Cores = Annotated[Number, Field(ge=0, le=MAX_COUNT)]
Instant = Annotated[datetime, BeforeValidator(_instant)]
NetworkKind = Literal["scale_up", "leaf", "spine"]
Kind = Literal["scale_up", "leaf", "spine", "rack", "row", "hall", "facility", "cooling", "storage"]


class Strict(BaseModel):
    """No unknown field, no coercion (true is not 1, "1" is not 1, 4.0 is not a count), no later change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, data: Any) -> Any:
        # A field that is absent is absent; `null` is a wrong type, except where the contract names it.
        if isinstance(data, Mapping):
            for key, value in data.items():
                if value is None and key not in cls._nullable():
                    raise Misfit("must not be null", str(key), code="null")
        return data

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset()


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

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.required is None) == (self.preferred is None):
            raise Misfit("takes exactly one of required and preferred")
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
    """After every `interval` seconds of running a checkpoint takes `cost`; a new start spends `restart`."""

    interval: Seconds
    cost: SecondsOrZero = 0.0
    restart: SecondsOrZero = 0.0


def _distinct(names: list[str]) -> list[str]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise Misfit("must not be named twice", index)
        seen.add(name)
    return names


def _branch_of_replicas(value: object) -> str | None:
    if isinstance(value, Mapping | ReplicaRange):
        return _RANGE
    return _COUNT if isinstance(value, int) and not isinstance(value, bool) else None


_COUNT: Final = "a count"
_RANGE: Final = "a range"
Replicas = Annotated[
    Annotated[Count, Tag(_COUNT)] | Annotated[ReplicaRange, Tag(_RANGE)],
    Discriminator(
        _branch_of_replicas,
        custom_error_type="replicas_type",
        custom_error_message="must be a whole number, or an object with min and max",
    ),
]
Names = Annotated[list[Name], Field(max_length=1000), AfterValidator(_distinct)]
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


class ScenarioJob(JobSpec):
    """A job of a scenario file: times are seconds from 0, the true run time is for the simulator alone."""

    submit: SecondsOrZero = 0.0
    runtime: Seconds
    after: Names = Field(default_factory=list)
    not_before: SecondsOrZero | None = None
    deadline: SecondsOrZero | None = None


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


def shape_key(spec: JobSpec) -> str:
    """Digest of everything that decides where a job fits; jobs of one shape fit or fail together."""
    shape = (
        [
            (
                *(group.min_replicas, group.preferred_replicas, group.max_replicas),
                *(group.devices, group.cpus, group.memory_gib, group.min_memory_gib),
                group.accelerators,
                group.topology and (group.topology.required, group.topology.preferred),
                group.spread and (group.spread.over, group.spread.max_skew, group.spread.max_per_domain),
                *(group.power_w, group.peak_w),
            )
            for group in spec.all_groups
        ],
        *(spec.team, spec.reservation, getattr(spec, "cluster", None), sorted(spec.datasets)),
    )
    return hashlib.blake2b(repr(shape).encode(), digest_size=12).hexdigest()


MAX_FAULTS: Final = 100  # nobody reads more, and a hostile body could make a million


def faults_of(error: ValidationError, *, prefix: Iterable[str | int] = ()) -> list[dict[str, str]]:
    """Each fault as {path, code, message}: the path as a user would write it, `jobs[3].replicas.min`.

    A message goes on where the path ends: "jobs[3].replicas.min" "must be at least 1".
    """
    before = list(prefix)
    return [_fault(fault, before) for fault in error.errors(include_url=False)[:MAX_FAULTS]]


def _fault(fault: ErrorDetails, before: list[str | int]) -> dict[str, str]:
    cause = fault.get("ctx", {}).get("error")
    steps = [*before, *_user_steps(fault["loc"])]
    if isinstance(cause, Misfit):
        return {"path": path_of([*steps, *cause.field]), "code": cause.code, "message": str(cause)}
    if cause is not None:
        return {"path": path_of(steps), "code": "invalid", "message": str(cause)}
    code, message = _said(fault)
    return {"path": path_of(steps), "code": code, "message": message}


def _user_steps(loc: tuple[int | str, ...]) -> list[int | str]:
    # pydantic adds a step that names the branch of a union, and one after a bad key; a user wrote neither.
    return [
        step
        for last, step in zip(("", *loc), loc, strict=False)
        if not (last == "replicas" and step in (_COUNT, _RANGE)) and step != "[key]"
    ]


_WANTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "replicas_type": "a whole number, or an object with min and max",
}


def _said(fault: ErrorDetails) -> tuple[str, str]:
    """Code and message of a fault that pydantic found by itself."""
    kind, given, facts = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "float_type" and isinstance(given, int) and not isinstance(given, bool):
        return "out_of_range", "must be a number of usual size"  # whole, and too large for a float
    if kind in _WANTED:
        return "wrong_type", f"must be {_WANTED[kind]}, not {_described(given)}"
    match kind:
        case "missing":
            return "missing", "is required"
        case "extra_forbidden":
            return "unknown_field", "is not a known field"
        case "finite_number":
            return "not_finite", "must be a finite number"
        case "string_unicode":
            return "invalid", "must be valid Unicode"
        case "string_too_long":
            return "too_long", f"must have at most {facts['max_length']} characters"
        case "too_long":
            return "too_long", f"must have at most {facts['max_length']} entries"
        case "string_too_short" | "too_short":
            return "too_short", "must not be empty"
        case "literal_error":
            return "not_a_choice", f"must be {facts['expected'].replace(chr(39), '')}"
        case "greater_than":
            return "out_of_range", f"must be more than {_plain(facts['gt'])}"
        case "greater_than_equal":
            return "out_of_range", f"must be at least {_plain(facts['ge'])}"
        case "less_than":
            return "out_of_range", f"must be less than {_plain(facts['lt'])}"
        case "less_than_equal":
            return "out_of_range", f"must be at most {_plain(facts['le'])}"
    return "invalid", fault["msg"][:1].lower() + fault["msg"][1:]


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _described(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return "a whole number"
        case float():
            return "a number with a decimal point"
        case str():
            return "text"
        case Mapping():
            return "an object"
        case _:
            return "a list" if isinstance(value, list | tuple) else "that"


def path_of(steps: Iterable[str | int]) -> str:
    """Write steps the way the contract does: `jobs[3].replicas`. Hostile keys are cut and escaped."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        name = step if len(step) <= 80 else f"{step[:80]}..."
        if not name.isprintable():
            name = name.encode("unicode_escape").decode()
        text += f".{name}" if text else name
    return text

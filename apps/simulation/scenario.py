"""What a scenario file may say, and every fault of one that says it wrong.

Rows are read one by one, so that a fault in one row hides none in another; then the references between rows are
followed. Nothing behind this module needs to doubt a number, a name or a reference again.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from apps.core.strict import Cores
from apps.jobs.spec import (
    MAX_W,
    POWER_KINDS,
    SHARE_STEPS,
    Count,
    CountOrZero,
    Gib,
    Kind,
    Name,
    Names,
    Number,
    ScenarioJob,
    Seconds,
    SecondsOrZero,
    Strict,
    Watts,
    faults_of,
    path_of,
)

MAX_NODES: Final = 200_000  # of the whole file, after `count` is unfolded
MAX_DEVICES: Final = 100_000  # of one node
MAX_TOTAL_DEVICES: Final = 4_000_000

# Which kind may hang below which: a parent must be of an earlier kind of the same tree.
NETWORK_TREE: Final = ("spine", "leaf", "scale_up")
POWER_TREE: Final = ("facility", "hall", "row", "rack")

WattsOrZero = Annotated[Number, Field(ge=0, le=MAX_W)]
Positive = Annotated[Number, Field(gt=0, le=1e6)]
Share = Annotated[Number, Field(ge=0, le=1)]
Quota = dict[Name, CountOrZero]
Arriving = dict[Name, SecondsOrZero]
Used = dict[Name, Annotated[Number, Field(ge=0, le=1e18)]]


class Fault(NamedTuple):
    """What is wrong, and where in the file."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ScenarioError(Exception):
    """The file is refused; carries every fault found."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


# ------------------------------------------------------------------------------------------------------
# Rows


def _rising_curve(points: list[list[float]]) -> list[list[float]]:
    for cap, pace in points:
        if not 0 < cap <= 1:
            raise ValueError("each cap must be a fraction of TDP above 0 and at most 1")
        if not 0 < pace <= 1:
            raise ValueError("each throughput must be a fraction above 0 and at most 1")
    for (cap, pace), (next_cap, next_pace) in pairwise(points):
        if next_cap <= cap:
            raise ValueError("caps must rise from point to point")
        if next_pace < pace:
            raise ValueError("throughput must not fall while the cap rises")
    if points[-1] != [1, 1]:
        raise ValueError("must end at cap 1 with throughput 1")
    return points


CurvePoint = Annotated[list[Number], Field(min_length=2, max_length=2)]
Curve = Annotated[list[CurvePoint], Field(min_length=1, max_length=1000), AfterValidator(_rising_curve)]
A100_TRAINING: Final = ((0.5, 0.63), (0.6, 0.75), (0.7, 0.83), (0.8, 0.89), (0.9, 0.94), (1.0, 1.0))


class AcceleratorType(Strict):
    """One kind of accelerator."""

    name: Name
    memory_gib: Gib = 0.0
    tdp_w: Watts
    idle_w: WattsOrZero | None = None
    speed: Positive = 1.0
    power_curve: Curve = Field(default_factory=lambda: [list(point) for point in A100_TRAINING])
    cap_step_w: Watts | None = None
    cap_settle_s: SecondsOrZero = 10.0

    @model_validator(mode="after")
    def _idle_under_tdp(self) -> Self:
        if self.idle_w is not None and self.idle_w > self.tdp_w:
            raise ValueError("idle_w must not be over tdp_w")
        return self

    @property
    def rest_w(self) -> float:
        """Draw of a free device."""
        return 0.1 * self.tdp_w if self.idle_w is None else self.idle_w


class DomainRow(Strict):
    """A subtree of the network, power, cooling or storage tree."""

    name: Name
    kind: Kind
    parent: Name | None = None
    power_limit_w: WattsOrZero | None = None
    ramp_up_w_per_s: Watts | None = None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"parent", "power_limit_w"})


def node_names(name: str, count: int | None) -> Iterator[str]:
    """Names of the nodes that one row stands for: its own, or numbered from 0001."""
    if count is None:
        yield name
    else:
        yield from (f"{name}-{number:04d}" for number in range(1, count + 1))


class NodeRow(Strict):
    """One node, or `count` nodes that differ in nothing but their number."""

    name: Name
    count: Annotated[Count, Field(le=MAX_NODES)] | None = None
    accelerator: Name
    devices: Annotated[Count, Field(le=MAX_DEVICES)]
    cpus: Cores | None = None
    memory_gib: Gib | None = None
    leaf: Name | None = None
    scale_up: Name | None = None
    power: Name | None = None
    cooling: Name | None = None
    storage: Name | None = None
    idle_w: WattsOrZero = 0.0
    off_w: WattsOrZero = 0.0
    off_s: SecondsOrZero = 30.0
    boot_s: SecondsOrZero = 300.0
    speed: Positive = 1.0

    @property
    def n_nodes(self) -> int:
        return 1 if self.count is None else self.count

    def names(self) -> Iterator[str]:
        """The nodes' names: the row's own, or numbered from 0001."""
        yield from node_names(self.name, self.count)


class TeamRow(Strict):
    """A team, or a cohort of teams."""

    name: Name
    parent: Name | None = None
    quota: Quota = Field(default_factory=dict)
    borrow_limit: Quota = Field(default_factory=dict)
    lend_limit: Quota = Field(default_factory=dict)
    member_limit: Quota = Field(
        default_factory=dict,
        description="Devices that one user may hold at once, by type; absent: any number.",
    )
    member_jobs: CountOrZero | None = Field(None, description="Jobs that one user may run at once.")
    weight: Positive = 1.0
    used: Used = Field(
        default_factory=dict,
        description="Device-seconds by type before the scenario begins, faded: what fair share weighs.",
    )

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"parent"})


class DatasetRow(Strict):
    """A data set and the storage domains that hold a copy of it, or to which one is on its way."""

    name: Name
    size_gib: Gib
    at: Names = Field(default_factory=list)
    arriving: Arriving = Field(default_factory=dict, description="Seconds until it is there, by domain.")


class ReservationRow(Strict):
    """Who may use what in [start, end)."""

    name: Name
    start: SecondsOrZero
    end: SecondsOrZero
    nodes: Annotated[list[Name], Field(min_length=1, max_length=MAX_NODES)] | None = None
    accelerator: Name | None = None
    devices: Count | None = None
    within: Kind | None = None
    teams: Names = Field(default_factory=list)
    flexible: bool = True

    @model_validator(mode="after")
    def _window_and_what(self) -> Self:
        if self.start >= self.end:
            raise ValueError("start must be before end")
        by_amount = self.accelerator is not None or self.devices is not None
        if self.nodes is not None and (by_amount or self.within is not None):
            raise ValueError("takes either nodes, or accelerator and devices")
        if self.nodes is not None and len(set(self.nodes)) != len(self.nodes):
            raise ValueError("nodes must not name the same node twice")
        if self.nodes is None and (self.accelerator is None or self.devices is None):
            raise ValueError("needs nodes, or accelerator and devices")
        return self


class _Event(Strict):
    t: SecondsOrZero


class NodeEvent(_Event):
    type: Literal["node_fail", "node_recover", "node_drain"]
    node: Name


class Cancel(_Event):
    type: Literal["cancel"]
    job: Name


class SetQuota(_Event):
    type: Literal["set_quota"]
    team: Name
    quota: Quota


class SetPowerLimit(_Event):
    type: Literal["set_power_limit"]
    domain: Name
    power_limit_w: WattsOrZero | None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"power_limit_w"})


class DemandResponse(_Event):
    type: Literal["demand_response"]
    name: Name
    domain: Name
    reduce_w: Watts | None = None
    target_w: WattsOrZero | None = None
    start: SecondsOrZero
    duration: Seconds
    priority: CountOrZero = 1
    emergency: bool = False

    @model_validator(mode="after")
    def _one_target_after_notice(self) -> Self:
        if (self.reduce_w is None) == (self.target_w is None):
            raise ValueError("takes exactly one of reduce_w and target_w")
        if self.start < self.t:
            raise ValueError("start must not be before t")
        return self


class CancelDemandResponse(_Event):
    type: Literal["cancel_demand_response"]
    name: Name


EventRow = NodeEvent | Cancel | SetQuota | SetPowerLimit | DemandResponse | CancelDemandResponse
EVENT_ROWS: Final[dict[str, type[EventRow]]] = {
    "node_fail": NodeEvent,
    "node_recover": NodeEvent,
    "node_drain": NodeEvent,
    "cancel": Cancel,
    "set_quota": SetQuota,
    "set_power_limit": SetPowerLimit,
    "demand_response": DemandResponse,
    "cancel_demand_response": CancelDemandResponse,
}


def _depth(value: Any) -> Any:
    if value == "all" and isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise ValueError('must be a whole number from 0, or "all"')
    return value


class PolicyRow(Strict):
    """How to decide."""

    backfill_depth: Annotated[Any, BeforeValidator(_depth)] = 64
    order: Literal["priority", "submit", "shortest"] = "priority"
    starving_s: SecondsOrZero = 86_400.0
    starving_by_width: Share = 0.0
    preemption: bool = True
    packing: bool = True
    rebound_limit: Positive = 1.05
    rebound_s: SecondsOrZero = 3600.0
    staging_hold_s: SecondsOrZero = 60.0
    shield_s: SecondsOrZero = 0.0
    retry_backoff_s: SecondsOrZero = 0.0
    resize_dwell_s: SecondsOrZero = 300.0
    cooldown_s: SecondsOrZero = 0.0
    idle_power_off: bool = False
    qos_window_s: SecondsOrZero = 0.0
    displacement: bool = False
    pass_interval: SecondsOrZero = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0


class FacilityNumbers(Strict):
    """The facility's plain numbers; its lists are read row by row."""

    overhead_fixed_w: WattsOrZero = 0.0
    overhead_k: Annotated[Number, Field(ge=1, le=100)] = 1.0
    staging_gib_per_s: Positive = 1.0


class _Top(Strict):
    until: SecondsOrZero | None = None


@dataclass(frozen=True)
class Scenario:
    """A file without fault, in the order of its rows."""

    types: tuple[AcceleratorType, ...]
    domains: tuple[DomainRow, ...]
    nodes: tuple[NodeRow, ...]
    numbers: FacilityNumbers
    teams: tuple[TeamRow, ...]
    datasets: tuple[DatasetRow, ...]
    reservations: tuple[ReservationRow, ...]
    jobs: tuple[ScenarioJob, ...]
    events: tuple[EventRow, ...]
    policy: PolicyRow
    until: float | None


# ------------------------------------------------------------------------------------------------------
# Reading


class _Pairs(dict[str, Any]):
    """An object of the file that remembers which of its keys stood there twice."""

    twice: tuple[str, ...] = ()


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    row = _Pairs(pairs)
    if len(row) != len(pairs):
        row.twice = tuple(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
    return row


def read_scenario(raw: bytes) -> Scenario:
    """Read a scenario file's bytes; raises ScenarioError with every fault."""
    return check_scenario(_read_json(raw))


def _read_json(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError([Fault("(file)", f"is not UTF-8: byte {error.start}")]) from None
    try:
        return json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ScenarioError([Fault("(file)", f"is not JSON: {error.msg}, {where}")]) from None
    except RecursionError:
        raise ScenarioError([Fault("(file)", "is not JSON that can be read: nested too deeply")]) from None
    except ValueError as error:  # a number of more digits than Python reads
        raise ScenarioError([Fault("(file)", f"is not JSON that can be read: {error}")]) from None


_MAY_BE_NULL: Final = (
    ("facility", "domains", "parent"),
    ("facility", "domains", "power_limit_w"),
    ("teams", "parent"),
    ("events", "power_limit_w"),
)


RowT = TypeVar("RowT", bound=Strict)


class _Reader:
    """Reads the rows of one file and keeps every fault, at most one a path."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}

    def fault(self, steps: Iterable[str | int], message: str) -> None:
        self.faults.setdefault(path_of(steps) or "(file)", message)

    def tidy(self, value: Any, steps: tuple[str | int, ...] = ()) -> Any:
        """Report keys given twice and nulls; leave the nulls out, so that the rest is judged for itself."""
        if isinstance(value, list):
            return [self.tidy(item, (*steps, index)) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        for key in getattr(value, "twice", ()):
            self.fault((*steps, key), "is given twice")
        kept = {}
        for key, item in value.items():
            if item is None and tuple(s for s in (*steps, key) if isinstance(s, str)) not in _MAY_BE_NULL:
                self.fault((*steps, key), "must not be null")
                continue
            kept[key] = self.tidy(item, (*steps, key))
        return kept

    def row(self, model: type[RowT], value: Any, steps: tuple[str | int, ...]) -> RowT | None:
        """One row, or nothing if it has a fault."""
        if not isinstance(value, dict):
            self.fault(steps, "must be an object")
            return None
        try:
            return model.model_validate(value)
        except ValidationError as error:
            for fault in faults_of(error, prefix=steps):
                self.faults.setdefault(fault["path"] or "(file)", fault["message"])
            return None

    def rows(
        self, model: type[RowT], owner: Mapping[str, Any], key: str, steps: tuple[str | int, ...]
    ) -> dict[int, RowT]:
        """The good rows of a list by their place in it; faults of the others are kept."""
        read = {}
        for index, value in enumerate(self.list_of(owner, key, steps)):
            row = self.row(model, value, (*steps, key, index))
            if row is not None:
                read[index] = row
        return read

    def list_of(self, owner: Mapping[str, Any], key: str, steps: tuple[str | int, ...]) -> list[Any]:
        value = owner.get(key, [])
        if not isinstance(value, list):
            self.fault((*steps, key), "must be a list")
            return []
        return value


def check_scenario(data: Any) -> Scenario:
    """Turn what was read into a scenario; raises ScenarioError with every fault."""
    reader = _Reader()
    try:
        data = reader.tidy(data)
    except RecursionError:
        raise ScenarioError([Fault("(file)", "is nested too deeply")]) from None
    if not isinstance(data, dict):
        raise ScenarioError([Fault("(file)", "must be an object")])
    lists = {"teams", "datasets", "reservations", "jobs", "events"}
    top = {key: value for key, value in data.items() if key not in lists | {"facility", "policy"}}
    until = reader.row(_Top, top, ())
    facility = data.get("facility", {})
    if not isinstance(facility, dict):
        reader.fault(("facility",), "must be an object")
        facility = {}
    own_lists = {"accelerator_types", "domains", "nodes"}
    numbers = {key: value for key, value in facility.items() if key not in own_lists}
    at = ("facility",)
    parts = _Parts(
        data=data,
        facility=facility,
        types=reader.rows(AcceleratorType, facility, "accelerator_types", at),
        domains=reader.rows(DomainRow, facility, "domains", at),
        nodes=reader.rows(NodeRow, facility, "nodes", at),
        teams=reader.rows(TeamRow, data, "teams", ()),
        datasets=reader.rows(DatasetRow, data, "datasets", ()),
        reservations=reader.rows(ReservationRow, data, "reservations", ()),
        jobs=reader.rows(ScenarioJob, data, "jobs", ()),
        events=_read_events(reader, data),
    )
    facility_numbers = reader.row(FacilityNumbers, numbers, at)
    policy = reader.row(PolicyRow, data.get("policy", {}), ("policy",))
    _References(reader, parts).check()
    if reader.faults or until is None or facility_numbers is None or policy is None:
        raise ScenarioError([Fault(path, message) for path, message in reader.faults.items()])
    return Scenario(
        types=tuple(parts.types.values()),
        domains=tuple(parts.domains.values()),
        nodes=tuple(parts.nodes.values()),
        numbers=facility_numbers,
        teams=tuple(parts.teams.values()),
        datasets=tuple(parts.datasets.values()),
        reservations=tuple(parts.reservations.values()),
        jobs=tuple(parts.jobs.values()),
        events=tuple(parts.events.values()),
        policy=policy,
        until=until.until,
    )


def _read_events(reader: _Reader, data: Mapping[str, Any]) -> dict[int, EventRow]:
    read: dict[int, EventRow] = {}
    for index, value in enumerate(reader.list_of(data, "events", ())):
        steps = ("events", index)
        if not isinstance(value, dict):
            reader.fault(steps, "must be an object")
            continue
        kind = value.get("type")
        model = EVENT_ROWS.get(kind) if isinstance(kind, str) else None
        if model is None:
            known = ", ".join(EVENT_ROWS)
            reader.fault((*steps, "type"), "is required" if kind is None else f"must be one of {known}")
            continue
        row: EventRow | None = reader.row(model, value, steps)
        if row is not None:
            read[index] = row
    return read


# ------------------------------------------------------------------------------------------------------
# References between rows


@dataclass(frozen=True)
class _Parts:
    """The good rows by their place, beside the lists as written."""

    data: Mapping[str, Any]
    facility: Mapping[str, Any]
    types: dict[int, AcceleratorType]
    domains: dict[int, DomainRow]
    nodes: dict[int, NodeRow]
    teams: dict[int, TeamRow]
    datasets: dict[int, DatasetRow]
    reservations: dict[int, ReservationRow]
    jobs: dict[int, ScenarioJob]
    events: dict[int, EventRow]


def _names_in(owner: Mapping[str, Any], key: str) -> set[str]:
    """Names written in a list, also by rows with a fault: a reference to such a row is no second fault."""
    rows = owner.get(key, [])
    if not isinstance(rows, list):
        return set()
    return {row["name"] for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str)}


class _References:
    """Follows every name from one row to another."""

    def __init__(self, reader: _Reader, parts: _Parts) -> None:
        self.reader = reader
        self.parts = parts
        self.types = _names_in(parts.facility, "accelerator_types")
        self.teams = _names_in(parts.data, "teams")
        self.datasets = _names_in(parts.data, "datasets")
        self.reservations = _names_in(parts.data, "reservations")
        self.jobs = _names_in(parts.data, "jobs")
        self.domains = _names_in(parts.facility, "domains")
        self.domain_of = {row.name: row for row in parts.domains.values()}
        self.nodes = self._node_names()
        self.has_teams = bool(parts.data.get("teams"))

    def check(self) -> None:
        self._names_once()
        self._domains()
        self._nodes()
        self._teams()
        self._datasets()
        self._reservations()
        self._jobs()
        self._events()

    def _known(self, name: str, known: set[str], what: str, *steps: str | int) -> bool:
        if name in known:
            return True
        self.reader.fault(steps, f"no {what} is named {_quoted(name)}")
        return False

    def _node_names(self) -> set[str]:
        names = _names_in(self.parts.facility, "nodes")
        names -= {row.name for row in self.parts.nodes.values()}
        n_nodes = n_devices = 0
        for index, row in self.parts.nodes.items():
            n_nodes += row.n_nodes
            n_devices += row.n_nodes * row.devices
            if n_nodes > MAX_NODES or n_devices > MAX_TOTAL_DEVICES:
                what = f"{MAX_NODES} nodes" if n_nodes > MAX_NODES else f"{MAX_TOTAL_DEVICES} devices"
                self.reader.fault(
                    ("facility", "nodes", index, "count"), f"a scenario may have at most {what}"
                )
                return names
            names.update(row.names())
        return names

    def _names_once(self) -> None:
        lists: list[tuple[tuple[str, ...], Mapping[str, Any], str]] = [
            (("facility", "accelerator_types"), self.parts.facility, "accelerator_types"),
            (("facility", "domains"), self.parts.facility, "domains"),
            (("teams",), self.parts.data, "teams"),
            (("datasets",), self.parts.data, "datasets"),
            (("reservations",), self.parts.data, "reservations"),
            (("jobs",), self.parts.data, "jobs"),
        ]
        seen: set[str]
        for steps, owner, key in lists:
            seen = set()
            rows = owner.get(key, [])
            for index, row in enumerate(rows if isinstance(rows, list) else ()):
                name = row.get("name") if isinstance(row, dict) else None
                if not isinstance(name, str):
                    continue
                if name in seen:
                    self.reader.fault((*steps, index, "name"), f"{_quoted(name)} is used twice")
                seen.add(name)
        seen = set()
        n_nodes = 0
        for index, node in self.parts.nodes.items():
            n_nodes += node.n_nodes
            if n_nodes > MAX_NODES:
                return
            again = next((name for name in node.names() if name in seen), None)
            if again is not None:
                self.reader.fault(("facility", "nodes", index, "name"), f"{_quoted(again)} is used twice")
            seen.update(node.names())
        seen = set()
        for index, event in self.parts.events.items():
            if isinstance(event, DemandResponse):
                if event.name in seen:
                    self.reader.fault(("events", index, "name"), f"{_quoted(event.name)} is used twice")
                seen.add(event.name)

    def _domains(self) -> None:
        for index, row in self.parts.domains.items():
            steps = ("facility", "domains", index, "parent")
            if row.parent is None or not self._known(row.parent, self.domains, "domain", *steps):
                continue
            if row.kind == "cooling":
                self.reader.fault(steps, "a cooling domain stands alone")
                continue
            parent = self.domain_of.get(row.parent)
            if parent is not None and not _may_hang(row.kind, parent.kind):
                self.reader.fault(
                    steps, f"{_quoted(parent.name)} is a {parent.kind}, which no {row.kind} hangs below"
                )
        parents = {i: row.parent for i, row in self.parts.domains.items() if row.parent is not None}
        places = {row.name: index for index, row in self.parts.domains.items()}
        self._no_cycle(
            {i: [places[parent]] for i, parent in parents.items() if parent in places},
            lambda index: ("facility", "domains", index, "parent"),
        )

    def _nodes(self) -> None:
        wanted: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("leaf", ("leaf",)),
            ("scale_up", ("scale_up",)),
            ("power", POWER_KINDS),
            ("cooling", ("cooling",)),
            ("storage", ("storage",)),
        )
        for index, row in self.parts.nodes.items():
            steps = ("facility", "nodes", index)
            self._known(row.accelerator, self.types, "accelerator type", *steps, "accelerator")
            for field, kinds in wanted:
                name = getattr(row, field)
                if name is None or not self._known(name, self.domains, "domain", *steps, field):
                    continue
                domain = self.domain_of.get(name)
                if domain is not None and domain.kind not in kinds:
                    what = " or ".join(kinds)
                    self.reader.fault((*steps, field), f"{_quoted(name)} is a {domain.kind}, not a {what}")
            self._scale_up_in_leaf(row, steps)

    def _scale_up_in_leaf(self, row: NodeRow, steps: tuple[str | int, ...]) -> None:
        scale_up = self.domain_of.get(row.scale_up or "")
        above = self.domain_of.get(scale_up.parent or "") if scale_up is not None else None
        if row.leaf is None or scale_up is None or above is None or above.kind != "leaf":
            return
        if above.name != row.leaf and row.leaf in self.domain_of:
            self.reader.fault(
                (*steps, "scale_up"),
                f"{_quoted(scale_up.name)} hangs below the leaf {_quoted(above.name)}, not {_quoted(row.leaf)}",
            )

    def _teams(self) -> None:
        places = {row.name: index for index, row in self.parts.teams.items()}
        arrows: dict[int, list[int]] = {}
        for index, row in self.parts.teams.items():
            for field in ("quota", "borrow_limit", "lend_limit", "member_limit", "used"):
                for kind in getattr(row, field):
                    self._known(kind, self.types, "accelerator type", "teams", index, field, kind)
            if row.parent is not None and self._known(
                row.parent, self.teams, "team", "teams", index, "parent"
            ):
                arrows[index] = [places[row.parent]] if row.parent in places else []
        self._no_cycle(arrows, lambda index: ("teams", index, "parent"))

    def _datasets(self) -> None:
        for index, row in self.parts.datasets.items():
            named: list[tuple[str, str, str | int]] = [
                *((name, "at", place) for place, name in enumerate(row.at)),
                *((name, "arriving", name) for name in row.arriving),
            ]
            for name, field, where in named:
                steps = ("datasets", index, field, where)
                if not self._known(name, self.domains, "domain", *steps):
                    continue
                domain = self.domain_of.get(name)
                if domain is not None and domain.kind != "storage":
                    self.reader.fault(steps, f"{_quoted(name)} is a {domain.kind}, not a storage")
                elif field == "arriving" and name in row.at:
                    self.reader.fault(steps, "has a copy already")

    def _reservations(self) -> None:
        for index, row in self.parts.reservations.items():
            steps = ("reservations", index)
            for place, name in enumerate(row.nodes or ()):
                self._known(name, self.nodes, "node", *steps, "nodes", place)
            if row.accelerator is not None:
                self._known(row.accelerator, self.types, "accelerator type", *steps, "accelerator")
            if self.has_teams:
                for place, name in enumerate(row.teams):
                    self._known(name, self.teams, "team", *steps, "teams", place)

    def _jobs(self) -> None:
        parents = {row.parent for row in self.parts.teams.values()}
        places = {row.name: index for index, row in self.parts.jobs.items()}
        arrows: dict[int, list[int]] = {}
        for index, row in self.parts.jobs.items():
            steps = ("jobs", index)
            self._job_team(row, parents, steps)
            self._job_types(row, steps)
            for place, name in enumerate(row.datasets):
                self._known(name, self.datasets, "dataset", *steps, "datasets", place)
            if row.reservation is not None:
                self._known(row.reservation, self.reservations, "reservation", *steps, "reservation")
            known = [
                name
                for place, name in enumerate(row.after)
                if self._known(name, self.jobs, "job", *steps, "after", place)
            ]
            arrows[index] = [places[name] for name in known if name in places]
        self._no_cycle(arrows, lambda index: ("jobs", index, "after"))
        self._running()

    def _running(self) -> None:
        """Jobs that run when the scenario begins lie on nodes they accept, and no device is held twice."""
        runs = {index: row for index, row in self.parts.jobs.items() if row.running is not None}
        if not runs:
            return
        node_of = {name: row for row in self.parts.nodes.values() for name in row.names()}
        held: dict[tuple[str, int], int] = defaultdict(int)
        for index, row in runs.items():
            kinds = set()
            for place, placed in enumerate(row.running.placement if row.running is not None else ()):
                steps = ("jobs", index, "running", "placement", place)
                node = node_of.get(placed.node)
                if node is None:
                    self._known(placed.node, self.nodes, "node", *steps, "node")
                    continue
                asks = next(
                    (group for group in row.groups or () if group.name == placed.group), row.all_groups[0]
                )
                if (
                    asks.whole_devices or asks.share_steps
                ):  # what holds no devices may lie on nodes of any type
                    kinds.add(node.accelerator)
                if asks.accelerators is not None and node.accelerator not in asks.accelerators:
                    self.reader.fault(
                        (*steps, "node"), f"has {_quoted(node.accelerator)}, which the job does not accept"
                    )
                elif len(kinds) > 1:
                    self.reader.fault(
                        (*steps, "node"), "is of another accelerator type than the job's other nodes"
                    )
                for device in placed.devices:
                    held[placed.node, device] += placed.share_steps
                    if device >= node.devices:
                        self.reader.fault(
                            (*steps, "devices"), f"there is no device {device} on {_quoted(placed.node)}"
                        )
                    elif held[placed.node, device] > SHARE_STEPS:
                        self.reader.fault(
                            (*steps, "devices"), f"device {device} of {_quoted(placed.node)} is held twice"
                        )

    def _job_team(self, row: ScenarioJob, parents: set[str | None], steps: tuple[str | int, ...]) -> None:
        if not self.has_teams:
            return
        if row.team is None:
            self.reader.fault((*steps, "team"), "is required: the scenario has teams")
        elif self._known(row.team, self.teams, "team", *steps, "team") and row.team in parents:
            self.reader.fault(
                (*steps, "team"), f"{_quoted(row.team)} has teams below it; a job names a leaf of the tree"
            )

    def _job_types(self, row: ScenarioJob, steps: tuple[str | int, ...]) -> None:
        asks: list[tuple[tuple[str | int, ...], list[str]]] = [(steps, row.accelerators or [])]
        for place, group in enumerate(row.groups or ()):
            asks.append(((*steps, "groups", place), group.accelerators or []))
        for where, names in asks:
            for place, name in enumerate(names):
                self._known(name, self.types, "accelerator type", *where, "accelerators", place)

    def _events(self) -> None:
        written = self.parts.data.get("events", [])
        announced = {
            row["name"]
            for row in (written if isinstance(written, list) else ())
            if isinstance(row, dict)
            and row.get("type") == "demand_response"
            and isinstance(row.get("name"), str)
        }
        for index, event in self.parts.events.items():
            steps = ("events", index)
            match event:
                case NodeEvent():
                    self._known(event.node, self.nodes, "node", *steps, "node")
                case Cancel():
                    self._known(event.job, self.jobs, "job", *steps, "job")
                case SetQuota():
                    self._known(event.team, self.teams, "team", *steps, "team")
                    for kind in event.quota:
                        self._known(kind, self.types, "accelerator type", *steps, "quota", kind)
                case SetPowerLimit():
                    self._known(event.domain, self.domains, "domain", *steps, "domain")
                case DemandResponse():
                    self._known(event.domain, self.domains, "domain", *steps, "domain")
                case CancelDemandResponse():
                    self._known(event.name, announced, "demand_response event", *steps, "name")

    def _no_cycle(
        self, arrows: Mapping[int, list[int]], steps_of: Callable[[int], tuple[str | int, ...]]
    ) -> None:
        """Report each row that lies on a cycle of references."""
        for index in _on_cycles(arrows):
            self.reader.fault(steps_of(index), "leads back to itself")


def _quoted(name: str) -> str:
    return json.dumps(name[:120], ensure_ascii=not name.isprintable())


def _may_hang(kind: str, parent: str) -> bool:
    for tree in (NETWORK_TREE, POWER_TREE):
        if kind in tree:
            return parent in tree and tree.index(parent) < tree.index(kind)
    return kind == parent == "storage"


def _on_cycles(arrows: Mapping[int, list[int]]) -> list[int]:
    """Rows from which the arrows lead back to themselves (strongly connected components, Tarjan, no recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[int] = []
    for root in arrows:
        if root in order:
            continue
        walk: list[tuple[int, Iterator[int]]] = [(root, iter(arrows.get(root, ())))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while walk:
            here, targets = walk[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    walk.append((target, iter(arrows.get(target, ()))))
                    break
                if target in on_stack:
                    low[here] = min(low[here], order[target])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[here])
                if low[here] == order[here]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == here:
                            break
                    if len(component) > 1 or here in arrows.get(here, ()):
                        found.extend(component)
    return sorted(found)

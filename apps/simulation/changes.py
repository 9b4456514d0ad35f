"""What is changed in a what-if: a rack more, a hall less, another limit, another quota, more jobs, another policy.

A change is an object with a `type`; several are a list, carried out in order. Times (`t`, `until`) are seconds from the
beginning of the scenario, durations are seconds, power is watts. Every change is said in words of the scenario, so
that what it leads to is checked like a file that a person wrote; a fault names the change and not the row it made.

- `add_nodes`: `nodes` and `domains`, as in a scenario's facility; `t`: not usable before
- `add_rack`: `name`, `like` (a power domain whose nodes and limit are copied), `count` (default 1), `t`
- `lose`, `drain`: `domain` (of any tree) or `nodes`, `t`, `until` (back again; default: never)
- `power_limit`: `domain`, `power_limit_w` (or null: none), `t`, `until` (as before again; default: never)
- `quota`: `team`, `quota` by type (types that are not named stay), `t`
- `add_jobs`: `jobs`, as in a scenario; `count` (default 1) of each
- `policy`: `policy`, as in a scenario (words that are not named stay)
- `events`: `events`, as in a scenario
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from apps.jobs.spec import Count, Misfit, Name, ScenarioJob, SecondsOrZero, Strict, faults_of, path_of
from apps.scheduling.live_scenario import ITSELF
from apps.simulation.scenario import (
    EVENT_ROWS,
    DomainRow,
    Fault,
    NodeRow,
    PolicyRow,
    Quota,
    ScenarioError,
    WattsOrZero,
    node_names,
)

Row = dict[str, Any]
_PLACES: Final = ("power", "leaf", "scale_up", "cooling", "storage")


class _Change(Strict):
    t: SecondsOrZero = 0.0


class _Span(_Change):
    until: SecondsOrZero | None = None

    @model_validator(mode="after")
    def _ends_later(self) -> Self:
        if self.until is not None and self.until <= self.t:
            raise Misfit("must be after t", "until", code="out_of_range")
        return self


class AddNodes(_Change):
    type: Literal["add_nodes"]
    nodes: Annotated[list[NodeRow], Field(min_length=1)]
    domains: list[DomainRow] = Field(default_factory=list)


class AddRack(_Change):
    type: Literal["add_rack"]
    name: Name
    like: Name
    count: Annotated[Count, Field(le=1000)] = 1


class Lose(_Span):
    type: Literal["lose", "drain"]
    domain: Name | None = None
    nodes: Annotated[list[Name], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.domain is None) == (self.nodes is None):
            raise Misfit("takes exactly one of domain and nodes")
        return self


class SetLimit(_Span):
    type: Literal["power_limit"]
    domain: Name
    power_limit_w: WattsOrZero | None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"power_limit_w"})


class ChangeQuota(_Change):
    type: Literal["quota"]
    team: Name
    quota: Quota


class AddJobs(Strict):
    type: Literal["add_jobs"]
    jobs: Annotated[list[ScenarioJob], Field(min_length=1)]
    count: Annotated[Count, Field(le=100_000)] = 1


class ChangePolicy(Strict):
    type: Literal["policy"]
    policy: PolicyRow


class AddEvents(Strict):
    type: Literal["events"]
    events: Annotated[list[dict[str, Any]], Field(min_length=1)]


Change = AddNodes | AddRack | Lose | SetLimit | ChangeQuota | AddJobs | ChangePolicy | AddEvents
_MODELS: Final[Mapping[str, type[Change]]] = {
    "add_nodes": AddNodes,
    "add_rack": AddRack,
    "lose": Lose,
    "drain": Lose,
    "power_limit": SetLimit,
    "quota": ChangeQuota,
    "add_jobs": AddJobs,
    "policy": ChangePolicy,
    "events": AddEvents,
}


def read_changes(values: Sequence[Any]) -> list[Change]:
    """Changes as written; raises ScenarioError with every fault, each below `changes[i]`."""
    read: list[Change] = []
    faults: list[Fault] = []
    for index, value in enumerate(values):
        steps = ("changes", index)
        kind = value.get("type") if isinstance(value, Mapping) else None
        model = _MODELS.get(kind) if isinstance(kind, str) else None
        if model is None:
            what = (
                f"must be one of {', '.join(_MODELS)}" if isinstance(value, Mapping) else "must be an object"
            )
            path = path_of((*steps, "type")) if isinstance(value, Mapping) else path_of(steps)
            faults.append(Fault(path, "is required" if isinstance(value, Mapping) and kind is None else what))
            continue
        try:
            read.append(model.model_validate(value))
        except ValidationError as error:
            faults += [Fault(fault["path"], fault["message"]) for fault in faults_of(error, prefix=steps)]
            continue
        if isinstance(read[-1], AddEvents):
            faults += _faults_of_events(read[-1].events, steps)
    if faults:
        raise ScenarioError(faults)
    return read


def _faults_of_events(events: Sequence[Row], steps: tuple[str | int, ...]) -> list[Fault]:
    faults = []
    for place, event in enumerate(events):
        at = (*steps, "events", place)
        model = EVENT_ROWS.get(event["type"]) if isinstance(event.get("type"), str) else None
        if model is None:
            faults.append(Fault(path_of((*at, "type")), f"must be one of {', '.join(EVENT_ROWS)}"))
            continue
        try:
            model.model_validate(event)
        except ValidationError as error:
            faults += [Fault(fault["path"], fault["message"]) for fault in faults_of(error, prefix=at)]
    return faults


class Changed:
    """A scenario with changes, as plain values, that remembers which change made which row."""

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self.scenario: Row = deepcopy(dict(scenario))
        self.added_jobs: list[str] = []
        self._made_by: dict[str, str] = {}  # path of a row -> path in the changes
        self._at = ""
        self._faults: list[Fault] = []

    def carry_out(self, changes: Iterable[Change]) -> None:
        """Raises ScenarioError with what the changes name and the scenario lacks."""
        for index, change in enumerate(changes):
            self._at = f"changes[{index}]"
            match change:
                case AddNodes():
                    self._add_nodes(change)
                case AddRack():
                    self._add_rack(change)
                case Lose():
                    self._lose(change)
                case SetLimit():
                    self._set_limit(change)
                case ChangeQuota():
                    self._change_quota(change)
                case AddJobs():
                    self._add_jobs(change)
                case ChangePolicy():
                    self.scenario["policy"] = {**self.scenario.get("policy", {}), **_given(change.policy)}
                case AddEvents():
                    for place, event in enumerate(change.events):
                        self._event(event, f"events[{place}]")
        if self._faults:
            raise ScenarioError(self._faults)

    def blame(self, error: ScenarioError) -> ScenarioError:
        """The faults of the changed scenario, where a change made the row by the change's own path."""
        return ScenarioError([Fault(self._place_in_changes(f.path), f.message) for f in error.faults])

    def _place_in_changes(self, path: str) -> str:
        row = path
        while row:
            if row in self._made_by:
                return self._made_by[row] + path[len(row) :]
            row = row[: max(row.rfind("."), row.rfind("["), 0)]
        return path

    # The facility

    def _list(self, *keys: str) -> list[Row]:
        owner = self.scenario
        for key in keys[:-1]:
            owner = owner.setdefault(key, {})
        found: list[Row] = owner.setdefault(keys[-1], [])
        return found

    def _append(self, row: Row, source: str, *keys: str) -> None:
        rows = self._list(*keys)
        self._made_by[f"{'.'.join(keys)}[{len(rows)}]"] = f"{self._at}.{source}" if source else self._at
        rows.append(row)

    def _event(self, event: Row, source: str = "") -> None:
        self._append(event, source, "events")

    def _domain(self, name: str, field: str) -> Row | None:
        for row in self._list("facility", "domains"):
            if row["name"] == name:
                return row
        self._faults.append(Fault(f"{self._at}.{field}", f"no domain is named {name!r}"))
        return None

    def _add_nodes(self, change: AddNodes) -> None:
        for place, domain in enumerate(change.domains):
            self._append(_given(domain), f"domains[{place}]", "facility", "domains")
        for place, node in enumerate(change.nodes):
            self._append(_given(node), f"nodes[{place}]", "facility", "nodes")
            self._not_before(change.t, node.names())

    def _not_before(self, t: float, names: Iterable[str]) -> None:
        if t:
            for name in names:
                self._event({"t": 0, "type": "node_drain", "node": name})
                self._event({"t": t, "type": "node_recover", "node": name})

    def _add_rack(self, change: AddRack) -> None:
        like = self._domain(change.like, "like")
        if like is None:
            return
        nodes = [row for row in self._list("facility", "nodes") if row.get("power") == change.like]
        if not nodes:
            what = f"no node hangs on {change.like!r} itself"
            self._faults.append(Fault(f"{self._at}.like", what))
            return
        for number in range(1, change.count + 1):
            rack = change.name if change.count == 1 else f"{change.name}-{number}"
            self._append({**like, "name": rack}, "name", "facility", "domains")
            place = 0
            for row in nodes:
                for _ in range(row.get("count", 1)):
                    place += 1
                    copy = {key: value for key, value in row.items() if key != "count"}
                    copy |= {"name": f"{rack}-n{place:02d}", "power": rack}
                    # A scale-up domain is a machine's own: a copied node gets none but itself.
                    copy.pop("scale_up", None)
                    if "scale_up" in row and "leaf" not in row:
                        copy |= self._leaf_above(row["scale_up"])
                    self._append(copy, "name", "facility", "nodes")
                    self._not_before(change.t, [copy["name"]])

    def _leaf_above(self, scale_up: str) -> Row:
        kinds = {row["name"]: row["kind"] for row in self._list("facility", "domains")}
        parent = next(
            (row.get("parent") for row in self._list("facility", "domains") if row["name"] == scale_up), None
        )
        return {"leaf": parent} if parent is not None and kinds.get(parent) == "leaf" else {}

    def _names_below(self, domain: str) -> list[str]:
        """Nodes that hang anywhere below a domain, in whatever tree."""
        below = {domain}
        rows = self._list("facility", "domains")
        n_before = 0
        while len(below) != n_before:
            n_before = len(below)
            below |= {row["name"] for row in rows if row.get("parent") in below}
        return [
            name
            for row in self._list("facility", "nodes")
            if any(row.get(place) in below for place in _PLACES)
            for name in node_names(row["name"], row.get("count"))
        ]

    def _lose(self, change: Lose) -> None:
        if change.nodes is not None:
            known = {
                name
                for row in self._list("facility", "nodes")
                for name in node_names(row["name"], row.get("count"))
            }
            names = change.nodes
            for place, name in enumerate(names):
                if name not in known:
                    what = f"no node is named {name!r}"
                    self._faults.append(Fault(f"{self._at}.nodes[{place}]", what))
        else:
            assert change.domain is not None
            if self._domain(change.domain, "domain") is None:
                return
            names = self._names_below(change.domain)
        for name in names:
            what = "node_fail" if change.type == "lose" else "node_drain"
            self._event({"t": change.t, "type": what, "node": name})
            if change.until is not None:
                self._event({"t": change.until, "type": "node_recover", "node": name})

    def _set_limit(self, change: SetLimit) -> None:
        domain = self._domain(change.domain, "domain")
        if domain is None:
            return
        event: Row = {"type": "set_power_limit", "domain": change.domain}
        self._event({**event, "t": change.t, "power_limit_w": change.power_limit_w})
        if change.until is not None:
            before = self._limit_at(domain, change.until)
            self._event({**event, "t": change.until, "power_limit_w": before})

    def _limit_at(self, domain: Row, t: float) -> float | None:
        """What the limit would be then without this change."""
        steps = [
            event
            for event in self._list("events")[:-1]
            if event["type"] == "set_power_limit" and event["domain"] == domain["name"] and event["t"] <= t
        ]
        limit: float | None = domain.get("power_limit_w")
        for event in sorted(steps, key=lambda event: event["t"]):
            limit = event["power_limit_w"]
        return limit

    # Teams, jobs

    def _change_quota(self, change: ChangeQuota) -> None:
        rows = {row["name"]: row for row in self._list("teams")}
        # A team that has sub-teams and jobs of its own keeps what it owns itself in a leaf.
        name = change.team + ITSELF if change.team + ITSELF in rows else change.team
        if name not in rows:
            self._faults.append(Fault(f"{self._at}.team", f"no team is named {change.team!r}"))
            return
        quota = {**self._quota_at(rows[name], change.t), **change.quota}
        self._event({"t": change.t, "type": "set_quota", "team": name, "quota": quota})

    def _quota_at(self, team: Row, t: float) -> Row:
        quota: Row = team.get("quota", {})
        for event in sorted(self._list("events"), key=lambda event: event.get("t", 0)):
            if event.get("type") == "set_quota" and event["team"] == team["name"] and event["t"] <= t:
                quota = event["quota"]
        return quota

    def _add_jobs(self, change: AddJobs) -> None:
        for place, job in enumerate(change.jobs):
            row = _given(job)
            if "team" in row and any(team["name"] == row["team"] + ITSELF for team in self._list("teams")):
                row["team"] += ITSELF
            for number in range(1, change.count + 1):
                name = job.name if change.count == 1 else f"{job.name[:110]}-{number}"
                self.added_jobs.append(name)
                self._append({**row, "name": name}, f"jobs[{place}]", "jobs")


def _given(row: Strict) -> Row:
    """What was written of a row, and nothing else."""
    return row.model_dump(mode="json", exclude_unset=True)

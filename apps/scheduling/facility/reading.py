"""Facility files: the facility as built in YAML, or its nodes as a table of CSV.

Pure. A file says what is there; what becomes of it is for `changing`. Whatever is wrong is told with its line.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import Field, ValidationError

from apps.core.strict import Number, Strict, Watts, WattsOrZero, faults_of
from apps.inventory.as_built import AcceleratorTypeIn, ClusterIn, DomainIn, NodeIn
from apps.jobs.imports.facts import Unreadable
from apps.jobs.imports.manifests import documents

MAX_TEXT: Final = 2_000_000  # characters
MAX_YAML_NODES: Final = 120_000
MAX_NODES: Final = 20_000  # of the facility
MAX_FAULTS: Final = 200


class FacilityDomain(DomainIn):
    """A domain with the watts it may draw; what is not said of these stays."""

    rated_w: Watts | None = None
    hard_limit_w: WattsOrZero | None = None
    limit_w: WattsOrZero | None = None
    overhead_fixed_w: WattsOrZero | None = None
    overhead_k: Annotated[Number, Field(gt=0, le=100)] | None = None


LIMITS: Final = ("rated_w", "hard_limit_w", "limit_w", "overhead_fixed_w", "overhead_k")
T = TypeVar("T", bound=Strict)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong: the line (None: nowhere in particular), the field, and why."""

    line: int | None
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One thing that the file describes, and where."""

    value: T
    line: int

    @property
    def given(self) -> dict[str, Any]:
        """What was said of it, in the order of the fields, without its name."""
        said = self.value.model_fields_set - {"name"}
        return {name: getattr(self.value, name) for name in type(self.value).model_fields if name in said}


@dataclass
class FacilityFile:
    """What a file says is there, in its order, and what is wrong with it."""

    format: str
    types: list[Entry[AcceleratorTypeIn]] = field(default_factory=list)
    clusters: list[Entry[ClusterIn]] = field(default_factory=list)
    domains: list[Entry[FacilityDomain]] = field(default_factory=list)
    nodes: list[Entry[NodeIn]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def read(text: str) -> FacilityFile:
    """What a text means: YAML if its first line has a colon and no comma before it, else CSV.

    Raises:
        Unreadable: if there is nothing in it that could be told piece by piece.
    """
    if len(text) > MAX_TEXT:
        raise Unreadable(f"has more than {MAX_TEXT} characters", code="too_long")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "---"))), "")
    if not first:
        raise Unreadable("is empty")
    is_table = "," in first.partition(":")[0] and not first.startswith(("{", "["))
    found = _of_csv(text) if is_table else _of_yaml(text)
    _require_names_once(found)
    found.faults.sort(key=lambda one: one.line or 0)
    del found.faults[MAX_FAULTS:]
    return found


# YAML --------------------------------------------------------------------------------------------------------------

_PARTS: Final[Mapping[str, type[Strict]]] = {
    "accelerator_types": AcceleratorTypeIn,
    "clusters": ClusterIn,
    "domains": FacilityDomain,
    "nodes": NodeIn,
}


def _of_yaml(text: str) -> FacilityFile:
    found = FacilityFile("yaml")
    parts: dict[str, list[Entry[Any]]] = {
        "accelerator_types": found.types,
        "clusters": found.clusters,
        "domains": found.domains,
        "nodes": found.nodes,
    }
    for document in documents(text, longest=MAX_TEXT, most_nodes=MAX_YAML_NODES):
        if not isinstance(document.value, dict):
            raise Unreadable(f"must have the parts {', '.join(_PARTS)}", line=document.line)
        for part, rows in document.value.items():
            if part not in _PARTS:
                fault = Fault(
                    document.lines.get(str(part)), str(part)[:80], f"is none of {', '.join(_PARTS)}"
                )
                found.faults.append(fault)
            elif not isinstance(rows, list):
                found.faults.append(Fault(document.lines.get(part), part, "must be a list"))
            else:
                for index, row in enumerate(rows):
                    path = f"{part}[{index}]"
                    _take(found, parts[part], _PARTS[part], row, path, document.lines)
    return found


def _take(
    found: FacilityFile,
    into: list[Entry[Any]],
    model: type[Strict],
    row: Any,
    path: str,
    lines: Mapping[str, int],
) -> None:
    line = lines.get(path, 1)
    try:
        for one in _unfolded(row) if model is NodeIn else [row]:
            into.append(Entry(model.model_validate(one), line))
            if model is NodeIn and len(into) > MAX_NODES:
                raise Unreadable(f"holds more than {MAX_NODES} nodes", line=line, code="too_long")
    except ValidationError as error:
        for fault in faults_of(error):
            below = f"{path}.{fault['path']}" if fault["path"] else path
            found.faults.append(Fault(_line_of(below, lines, line), below, fault["message"]))


def _line_of(path: str, lines: Mapping[str, int], otherwise: int) -> int:
    while path:
        if path in lines:
            return lines[path]
        path = re.sub(r"(\.[^.\[]*|\[\d+\])$", "", path) if re.search(r"[.\[]", path) else ""
    return otherwise


_RANGES: Final = re.compile(r"([^\[\]]*)\[(\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)\]([^\[\]]*)")


def _unfolded(row: Any) -> Iterator[Any]:
    """A node for each name that `n[01-16]` stands for; numbers keep their leading zeros."""
    name = row.get("name") if isinstance(row, dict) else None
    match = _RANGES.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        yield row
        return
    before, ranges, after = match.groups()
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        for number in range(int(first), min(int(last or first), int(first) + MAX_NODES) + 1):
            yield {**row, "name": f"{before}{number:0{len(first)}d}{after}"}


# CSV ---------------------------------------------------------------------------------------------------------------

# From the widest to the lowest; a node hangs in the lowest of each tree that its row names.
_TREES: Final = {"power": ("facility", "hall", "row", "rack"), "leaf": ("spine", "leaf")}
_SINGLE: Final = ("scale_up", "cooling", "storage")
_OF_NODE: Final = {
    "name": str,
    "cluster": str,
    "accelerator_type": str,
    "n_devices": int,
    "cpus": float,
    "memory_gib": float,
    "idle_w": float,
    "speed": float,
}
_OF_TYPE: Final = {"tdp_w": "tdp_w", "device_idle_w": "idle_w", "device_memory_gib": "memory_gib"}
COLUMNS: Final = (
    *_OF_NODE,
    *(kind for kinds in _TREES.values() for kind in kinds),
    *_SINGLE,
    "backend",
    *_OF_TYPE,
)
NEEDED: Final = ("name", "cluster", "accelerator_type", "n_devices")


def _of_csv(text: str) -> FacilityFile:
    found = FacilityFile("csv")
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        head = next(row for row in rows if any(cell.strip() for cell in row))
        columns = [cell.strip() for cell in head]
        line = rows.line_num
        for column in columns:
            if column not in COLUMNS:
                found.faults.append(
                    Fault(line, column[:80], f"is no column that is known: {', '.join(COLUMNS)}")
                )
            elif columns.count(column) > 1:
                found.faults.append(Fault(line, column, "is there twice"))
        found.faults += [
            Fault(line, column, "is missing from the first line")
            for column in NEEDED
            if column not in columns
        ]
        if found.faults:
            return found
        made = _Made(found)
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(columns):
                fault = Fault(rows.line_num, "", f"has {len(row)} cells, not {len(columns)}")
                found.faults.append(fault)
                continue
            cells = {
                name: cell.strip() for name, cell in zip(columns, row, strict=True) if cell.strip() != ""
            }
            made.take(cells, rows.line_num)
            if len(found.nodes) > MAX_NODES:
                raise Unreadable(f"holds more than {MAX_NODES} nodes", line=rows.line_num, code="too_long")
    except csv.Error as error:
        raise Unreadable(f"is no CSV: {error}", line=rows.line_num) from None
    return found


class _Made:
    """What rows of nodes imply beside the nodes: domains, clusters and types, each once."""

    def __init__(self, found: FacilityFile) -> None:
        self._found = found
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}

    def take(self, cells: dict[str, str], line: int) -> None:
        node: dict[str, Any] = {}
        for name, kind in _OF_NODE.items():
            if name in cells:
                node[name] = self._number(cells[name], kind, name, line)
        for into, kinds in _TREES.items():
            parent: str | None = None
            for kind_of in kinds:
                if kind_of in cells:
                    self._imply("domain", {"name": cells[kind_of], "kind": kind_of}, {"parent": parent}, line)
                    parent = node[into] = cells[kind_of]
        for kind_of in _SINGLE:
            if kind_of in cells:
                self._imply("domain", {"name": cells[kind_of], "kind": kind_of}, {}, line)
                node[kind_of] = cells[kind_of]
        if "backend" in cells and "cluster" in cells:
            self._imply("cluster", {"name": cells["cluster"], "backend": cells["backend"]}, {}, line)
        if "tdp_w" in cells and "accelerator_type" in cells:
            facts = {
                field: self._number(cells[column], float, column, line)
                for column, field in _OF_TYPE.items()
                if column in cells
            }
            self._imply("type", {"name": cells["accelerator_type"], **facts}, {}, line)
        if None not in node.values():  # what is no number was told already
            for one in _unfolded(node):
                self._add(self._found.nodes, NodeIn, one, line)

    def _number(self, text: str, kind: type, column: str, line: int) -> Any:
        if kind is str:
            return text
        try:
            return kind(text)
        except ValueError:
            said = "must be a whole number" if kind is int else "must be a number"
            self._found.faults.append(Fault(line, column, said))
            return None

    def _imply(self, sort: str, facts: dict[str, Any], above: Mapping[str, Any], line: int) -> None:
        facts = {name: value for name, value in {**facts, **above}.items() if value is not None}
        key = (sort, facts["name"])
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = facts
            model, into = self._models()[sort]
            self._add(into, model, facts, line)
            return
        for name in sorted(facts.keys() | known.keys()):
            if facts.get(name) != known.get(name):
                said = f"is another {name} of {facts['name']} than further up: {known.get(name, 'none')}"
                self._found.faults.append(Fault(line, facts["kind"] if sort == "domain" else name, said))

    def _models(self) -> dict[str, tuple[type[Strict], list[Any]]]:
        found = self._found
        return {
            "domain": (FacilityDomain, found.domains),
            "cluster": (ClusterIn, found.clusters),
            "type": (AcceleratorTypeIn, found.types),
        }

    def _add(self, into: list[Any], model: type[Strict], facts: Mapping[str, Any], line: int) -> None:
        try:
            into.append(Entry(model.model_validate(facts), line))
        except ValidationError as error:
            self._found.faults += [
                Fault(line, self._column(model, fault["path"], facts), fault["message"])
                for fault in faults_of(error)
            ]

    def _column(self, model: type[Strict], path: str, facts: Mapping[str, Any]) -> str:
        """The column that a field came from."""
        if model is AcceleratorTypeIn:
            back = {field: column for column, field in _OF_TYPE.items()}
            return back.get(path, "accelerator_type")
        if model is ClusterIn:
            return "cluster" if path == "name" else path
        return str(facts["kind"]) if model is FacilityDomain else path


def _require_names_once(found: FacilityFile) -> None:
    sorts: Iterable[list[Any]] = (found.types, found.clusters, found.domains, found.nodes)
    for entries in sorts:
        lines: dict[str, int] = {}
        for entry in entries:
            name = entry.value.name
            if name in lines:
                said = f"is there twice: {name} stands in line {lines[name]} too"
                found.faults.append(Fault(entry.line, "name", said))
            lines.setdefault(name, entry.line)

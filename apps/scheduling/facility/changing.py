"""What a facility file would change, who runs work there, and the change itself: all of it, or none.

What a file does not say of a thing stays as it is. Things that it does not name stay too, unless it is said to be the
whole facility: then nodes that never ran anything are removed, the others are drained and kept in the books, and
domains are removed that nothing hangs in. Types and clusters are never removed.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction

from apps.core.errors import DomainError, InvalidInput
from apps.events.services import record
from apps.inventory import rebuilding
from apps.inventory import services as inventory
from apps.inventory.models import TREES, AcceleratorType, Cluster, Domain, DomainKind, Health, Node
from apps.jobs.imports.facts import Unreadable
from apps.jobs.models import Job, Placement
from apps.power import services as power
from apps.power.models import PowerLimit
from apps.reservations.models import Reservation
from apps.scheduling.facility.reading import LIMITS, Entry, FacilityFile, Fault, read
from apps.teams import policies
from apps.teams.models import User

_LOCK: Final = 0x5359_4641_4349_4C00  # one change of the facility at a time
_REFERENCES: Final = ("scale_up", "leaf", "power", "cooling", "storage")
ADD, CHANGE, REMOVE, DRAIN, KEEP = "add", "change", "remove", "drain", "keep"
TYPE, CLUSTER, DOMAIN, NODE = "accelerator type", "cluster", "domain", "node"
SORTS: Final = (TYPE, CLUSTER, DOMAIN, NODE)


class FacilityChanged(DomainError):
    """What was checked would not come out the same any more."""

    code = "outdated"


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one thing.

    Attributes:
        action: `add`, `change`, `remove`, `drain`; or `keep` for what would be removed if `why` did not hold.
        before: Fields as they are, those alone that change; things by name, watts in W, memory in GiB.
        after: The same fields as they would be.
        node_ids: Of the nodes that it touches.
    """

    action: str
    sort: str
    name: str
    line: int | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    node_ids: frozenset[int] = frozenset()


@dataclass
class Checked:
    """What a file means here: nothing was changed.

    Attributes:
        digest: Of all changes; who applies says it, and gets what was seen or nothing.
        jobs: Those that run on nodes which it touches, by id.
    """

    format: str = ""
    changes: list[Change] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    job_ids_by_node: dict[int, list[int]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        told = [
            [one.action, one.sort, one.name, dict(one.before), dict(one.after)]
            for one in self.changes
            if one.action != KEEP
        ]
        text = json.dumps(told, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def n_changes(self) -> int:
        return sum(one.action != KEEP for one in self.changes)

    @property
    def may_be_applied(self) -> bool:
        return not self.faults and self.n_changes > 0

    def counts(self) -> dict[str, dict[str, int]]:
        """How many of each sort are added, changed and so on."""
        found: dict[str, dict[str, int]] = {sort: defaultdict(int) for sort in SORTS}
        for one in self.changes:
            found[one.sort][one.action] += 1
        return {sort: dict(counts) for sort, counts in found.items() if counts}

    def jobs_of(self, change: Change) -> list[int]:
        """Ids of the jobs that run on what it touches."""
        return sorted({job for node in change.node_ids for job in self.job_ids_by_node.get(node, ())})


def check(*, text: str, is_whole: bool, actor: User, at: datetime) -> Checked:
    """What a file would change, for operators. Nothing is changed: it is tried, and undone.

    Args:
        is_whole: What the file does not name is to go.

    Raises:
        InvalidInput: at `text`: it cannot be read at all.
    """
    policies.require_may_operate(actor)
    file, there = _file(text), _There()
    checked = _compared(file, there, is_whole)
    if not checked.faults:
        with transaction.atomic():
            checked.faults += _carried_out(checked.changes, file, actor=None, at=at, reason="")
            transaction.set_rollback(True)
    return checked


@transaction.atomic
def apply(*, text: str, is_whole: bool, digest: str, actor: User, at: datetime, reason: str = "") -> Checked:
    """Change the facility as a file says, for administrators; what was checked, or nothing.

    Raises:
        FacilityChanged: it would not change the same any more; it has to be checked anew.
        InvalidInput: the file has faults.
    """
    policies.require_admin(actor)
    file = _file(text)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    checked = _compared(file, _There(), is_whole)
    if not checked.faults and checked.digest != digest:
        raise FacilityChanged(
            "The facility was changed meanwhile, or the file: check it again. Nothing was changed."
        )
    if not checked.faults:
        checked.faults += _carried_out(checked.changes, file, actor=actor, at=at, reason=reason)
    if checked.faults:
        raise InvalidInput(
            [
                {"path": one.path, "code": "invalid", "message": f"line {one.line}: {one.message}"}
                for one in checked.faults
            ]
        )
    if checked.n_changes:
        record(
            "facility.imported",
            subject_kind="facility",
            subject_name="facility",
            actor=actor,
            at=at,
            is_audit=True,
            reason=reason,
            after=checked.counts(),
        )
    return checked


def _file(text: str) -> FacilityFile:
    try:
        return read(text)
    except Unreadable as error:
        where = f"line {error.line}: " if error.line else ""
        raise InvalidInput.of("text", f"{where}{error}", error.code) from None


class _There:
    """The facility as it is, read once: five queries however large it is."""

    def __init__(self) -> None:
        self.types = {row.name: row for row in AcceleratorType.objects.all()}
        self.clusters = {row.name: row for row in Cluster.objects.all()}
        self.domains = {row.name: row for row in Domain.objects.all()}
        self.limits = {row.domain_id: row for row in PowerLimit.objects.all()}
        self.nodes = {row.name: row for row in Node.objects.all()}
        self.domain_names = {row.pk: row.name for row in self.domains.values()}
        self.type_names = {row.pk: row.name for row in self.types.values()}
        self.cluster_names = {row.pk: row.name for row in self.clusters.values()}
        self._below: dict[str, set[int]] = defaultdict(set)
        parent_of = {row.pk: row.parent_id for row in self.domains.values()}
        for node in self.nodes.values():
            for tree in _REFERENCES:
                above = getattr(node, f"{tree}_id")
                while above is not None:
                    self._below[self.domain_names[above]].add(node.pk)
                    above = parent_of[above]

    def nodes_in(self, domain: str) -> frozenset[int]:
        """Ids of the nodes in a domain, at any depth."""
        return frozenset(self._below.get(domain, ()))

    def told(self, node: Node, name: str) -> Any:
        """A field of a node as a file would say it."""
        if name == "cluster":
            return self.cluster_names[node.cluster_id]
        if name == "accelerator_type":
            return self.type_names[node.accelerator_type_id]
        if name in _REFERENCES:
            return self.domain_names.get(getattr(node, f"{name}_id"))
        return getattr(node, name)


def _compared(file: FacilityFile, there: _There, is_whole: bool) -> Checked:
    checked = Checked(format=file.format, faults=list(file.faults))
    compare = _Compare(file, there, checked)
    compare.types()
    compare.clusters()
    compare.domains()
    compare.nodes()
    if is_whole and not checked.faults:
        compare.missing()
    touched = {node for one in checked.changes for node in one.node_ids}
    running = Placement.objects.filter(node_id__in=touched, allocation__ended_at=None)
    by_node: dict[int, list[int]] = defaultdict(list)
    for node, job in running.values_list("node_id", "allocation__job_id").distinct():
        by_node[node].append(job)
    checked.job_ids_by_node = dict(by_node)
    ids = {job for jobs in by_node.values() for job in jobs}
    checked.jobs = list(Job.objects.filter(pk__in=ids).select_related("team").order_by("pk"))
    return checked


class _Compare:
    """The file beside what is there, sort by sort."""

    def __init__(self, file: FacilityFile, there: _There, checked: Checked) -> None:
        self._file, self._there, self._checked = file, there, checked
        self._kinds = {name: row.kind for name, row in there.domains.items()}
        self._kinds |= {entry.value.name: entry.value.kind for entry in file.domains}

    def _fault(self, entry: Entry[Any], path: str, message: str) -> None:
        self._checked.faults.append(Fault(entry.line, path, f"{message} (of {entry.value.name})"))

    def _add(self, sort: str, entry: Entry[Any], after: Mapping[str, Any]) -> None:
        self._checked.changes.append(Change(ADD, sort, entry.value.name, entry.line, {}, dict(after)))

    def _change(
        self,
        sort: str,
        entry: Entry[Any],
        before: Mapping[str, Any],
        node_ids: Iterable[int],
    ) -> None:
        given = entry.given
        differs = {name: value for name, value in given.items() if name in before and value != before[name]}
        if differs:
            as_is = {name: before[name] for name in differs}
            self._checked.changes.append(
                Change(CHANGE, sort, entry.value.name, entry.line, as_is, differs, "", frozenset(node_ids))
            )

    def types(self) -> None:
        for entry in self._file.types:
            row = self._there.types.get(entry.value.name)
            if row is None:
                self._add(TYPE, entry, entry.given)
                continue
            before = {name: getattr(row, name) for name in rebuilding.TYPE_FIELDS}
            ids = (one.pk for one in self._there.nodes.values() if one.accelerator_type_id == row.pk)
            self._change(TYPE, entry, before, ids)

    def clusters(self) -> None:
        for entry in self._file.clusters:
            row = self._there.clusters.get(entry.value.name)
            if row is None:
                self._add(CLUSTER, entry, {"backend": entry.value.backend})
            elif row.backend != entry.value.backend:
                self._fault(entry, "backend", f"cannot change: it is {row.backend}; make another cluster")
            elif "config" in entry.value.model_fields_set and entry.value.config != row.config:
                # What it says may open a backend: it is not shown, and told apart by its digest.
                said = {"config": "as stored"}, {"config": f"changed ({_digest_of(entry.value.config)})"}
                self._checked.changes.append(Change(CHANGE, CLUSTER, row.name, entry.line, *said))

    def domains(self) -> None:
        for entry in self._file.domains:
            value, row = entry.value, self._there.domains.get(entry.value.name)
            if value.parent is not None and value.parent not in self._kinds:
                self._fault(entry, "parent", f"names nothing that is here: {value.parent}")
                continue
            if row is None:
                self._add(DOMAIN, entry, entry.given)
                continue
            if row.kind != value.kind:
                self._fault(entry, "kind", f"cannot change: it is a {row.kind}")
                continue
            limit = self._there.limits.get(row.pk) or PowerLimit(domain=row)
            before = {name: getattr(limit, name) for name in LIMITS}
            before["parent"] = self._there.domain_names.get(row.parent_id or 0)
            self._change(DOMAIN, entry, before, self._there.nodes_in(row.name))

    def nodes(self) -> None:
        types = self._there.types.keys() | {entry.value.name for entry in self._file.types}
        clusters = self._there.clusters.keys() | {entry.value.name for entry in self._file.clusters}
        for entry in self._file.nodes:
            value, is_right = entry.value, True
            for path, names in (("cluster", clusters), ("accelerator_type", types)):
                if getattr(value, path) not in names:
                    self._fault(entry, path, f"names nothing that is here: {getattr(value, path)}")
                    is_right = False
            for path in _REFERENCES:
                name = getattr(value, path)
                if name is None:
                    continue
                kinds = inventory.KINDS_OF_FIELD[path]
                if name not in self._kinds:
                    self._fault(entry, path, f"names nothing that is here: {name}")
                    is_right = False
                elif self._kinds[name] not in kinds:
                    said = f"must be a {' or '.join(kinds)}; {name} is a {self._kinds[name]}"
                    self._fault(entry, path, said)
                    is_right = False
            if not is_right:
                continue
            row = self._there.nodes.get(value.name)
            if row is None:
                self._add(NODE, entry, entry.given)
                continue
            before = {name: self._there.told(row, name) for name in rebuilding.NODE_FIELDS}
            self._change(NODE, entry, before, [row.pk])

    def missing(self) -> None:
        """What is there and the file does not name."""
        named = {entry.value.name for entry in self._file.nodes}
        gone = [row for name, row in self._there.nodes.items() if name not in named]
        ids = [row.pk for row in gone]
        has_run = set(Placement.objects.filter(node_id__in=ids).values_list("node_id", flat=True))
        reserved = Reservation.nodes.through.objects.filter(node_id__in=ids)
        is_reserved = set(reserved.values_list("node_id", flat=True))
        removed: set[int] = set()
        for row in gone:
            touched = frozenset([row.pk])
            if row.pk not in has_run and row.pk not in is_reserved:
                removed.add(row.pk)
                self._checked.changes.append(Change(REMOVE, NODE, row.name, node_ids=touched))
            elif row.drain_asked_at is None:
                why = "it has run work" if row.pk in has_run else "a reservation names it"
                self._checked.changes.append(
                    Change(
                        DRAIN,
                        NODE,
                        row.name,
                        before={"health": row.health},
                        after={"health": Health.DRAINED},
                        why=f"{why}, so it stays in the books and takes no more",
                        node_ids=touched,
                    )
                )
        self._missing_domains(removed)

    def _missing_domains(self, removed: set[int]) -> None:
        there, named = self._there, {entry.value.name for entry in self._file.domains}
        moved = {  # nodes and domains that hang elsewhere afterwards
            (one.sort, one.name): one.after for one in self._checked.changes if one.action == CHANGE
        }
        holds: dict[str, str] = {}  # by domain, something that hangs in it
        for entry in self._file.nodes:
            for path in _REFERENCES:
                if name := getattr(entry.value, path):
                    holds.setdefault(name, entry.value.name)
        for row in there.nodes.values():
            if row.pk not in removed:
                for path in _REFERENCES:
                    name = there.told(row, path)
                    if name and path not in moved.get((NODE, row.name), {}):
                        holds.setdefault(name, row.name)
        for told in self._file.domains:
            if told.value.parent:
                holds.setdefault(told.value.parent, told.value.name)
        for name in named:
            known = there.domains.get(name)
            if known is not None and known.parent_id and "parent" not in moved.get((DOMAIN, name), {}):
                holds.setdefault(there.domain_names[known.parent_id], name)
        spoken_of = _spoken_of([row.pk for row in there.domains.values()])
        # The lowest first: what stays keeps what is above it.
        for domain in sorted(there.domains.values(), key=lambda one: -_depth(one, there)):
            if domain.name in named:
                continue
            why = f"{holds[domain.name]} is in it" if domain.name in holds else spoken_of.get(domain.pk, "")
            if why and domain.parent_id:
                holds.setdefault(there.domain_names[domain.parent_id], domain.name)
            self._checked.changes.append(
                Change(KEEP if why else REMOVE, DOMAIN, domain.name, before={"kind": domain.kind}, why=why)
            )


def _depth(row: Domain, there: _There) -> int:
    depth, above = 0, row.parent_id
    while above is not None:
        depth, above = depth + 1, there.domains[there.domain_names[above]].parent_id
    return depth


def _spoken_of(ids: Sequence[int]) -> dict[int, str]:
    """Domains that something outside the trees speaks of, and what: those cannot be removed."""
    found: dict[int, str] = {}
    for relation in Domain._meta.related_objects:
        # What goes with a domain goes: its limit, readings, alarms. What protects it keeps it.
        if relation.related_model in (Node, Domain) or relation.on_delete.__name__ != "PROTECT":  # type: ignore[union-attr]
            continue
        column = relation.field.attname
        named = relation.related_model._default_manager.filter(**{f"{column}__in": ids})
        words = f"{relation.related_model._meta.verbose_name_plural} speak of it"
        found |= dict.fromkeys(named.values_list(column, flat=True), words)
    return found


# The change itself --------------------------------------------------------------------------------------------------


def _carried_out(
    changes: Sequence[Change], file: FacilityFile, *, actor: User | None, at: datetime, reason: str
) -> list[Fault]:
    """Do it, in the caller's transaction; what was refused, after which that transaction is to be undone."""
    work = _Work(file, actor, at, reason)
    try:
        with transaction.atomic():
            for one in _in_order(changes):
                work.now = one
                work.do(one)
            work.add_nodes([one for one in changes if (one.action, one.sort) == (ADD, NODE)])
            for one in changes:
                if (one.action, one.sort) == (CHANGE, NODE):
                    work.now = one
                    work.change_node(one)
            work.now = None
            work.remove(changes)
    except DomainError as refusal:
        line = work.now.line if work.now is not None else None
        name = f" (of {work.now.name})" if work.now is not None else ""
        errors = refusal.errors or [{"path": "", "message": refusal.message}]
        return [Fault(line, error["path"], f"{error['message']}{name}") for error in errors]
    return []


def _in_order(changes: Sequence[Change]) -> list[Change]:
    """Types, clusters and domains to be added or changed: what is named before what names it."""
    wanted = [one for one in changes if one.sort != NODE and one.action in (ADD, CHANGE)]
    kinds = [kind for tree in TREES.values() for kind in tree]
    added = [one for one in wanted if one.sort == DOMAIN and one.action == ADD]
    added.sort(key=lambda one: kinds.index(one.after["kind"]))
    rest = [one for one in wanted if one.sort == DOMAIN and one.action == CHANGE]
    return [*(one for one in wanted if one.sort != DOMAIN), *added, *rest]


class _Work:
    """Does changes one by one; `now` is the one under way."""

    def __init__(self, file: FacilityFile, actor: User | None, at: datetime, reason: str) -> None:
        self._who: dict[str, Any] = {"actor": actor, "at": at}
        self._why: dict[str, Any] = {**self._who, "reason": reason}
        self._nodes = {entry.value.name: entry.value for entry in file.nodes}
        self._configs = {entry.value.name: entry.value.config for entry in file.clusters}
        self._found: dict[type, dict[str, Any]] = {}
        self.now: Change | None = None

    def _row(self, model: type[AcceleratorType] | type[Cluster] | type[Domain], name: str | None) -> Any:
        if name is None:
            return None
        if model not in self._found:
            self._found[model] = {row.name: row for row in model._default_manager.all()}
        return self._found[model][name]

    def do(self, one: Change) -> None:
        self._found.clear()
        match one.sort, one.action:
            case "accelerator type", "add":
                inventory.create_accelerator_type(name=one.name, **one.after, **self._who)
            case "accelerator type", "change":
                rebuilding.change_accelerator_type(name=one.name, changes=one.after, **self._why)
            case "cluster", "add":
                config = self._configs[one.name]
                inventory.create_cluster(
                    name=one.name, backend=one.after["backend"], config=config, **self._who
                )
            case "cluster", "change":
                rebuilding.change_cluster(name=one.name, config=self._configs[one.name], **self._why)
            case "domain", _:
                self._domain(one)

    def _domain(self, one: Change) -> None:
        parent = one.after.get("parent")
        above = None if parent is None else Domain.objects.get(name=parent)
        if one.action == ADD:
            row = inventory.create_domain(name=one.name, kind=one.after["kind"], parent=above, **self._who)
        else:
            row = Domain.objects.get(name=one.name)
            if above is not None:
                rebuilding.move_domain(name=one.name, parent=above, **self._why)
        limits = {name: one.after[name] for name in LIMITS if name in one.after}
        if limits:
            power.set_limit(domain_id=row.pk, changes=limits, **self._why)

    def add_nodes(self, added: Sequence[Change]) -> None:
        by_cluster: dict[str, list[inventory.NodeFacts]] = defaultdict(list)
        self._found.clear()
        for one in added:
            facts = {name: value for name, value in one.after.items() if name != "cluster"}
            by_cluster[one.after["cluster"]].append(
                inventory.NodeFacts(name=one.name, **self._referred(facts))
            )
        for name, rows in by_cluster.items():
            inventory.create_nodes(cluster=self._row(Cluster, name), rows=rows, **self._who)

    def change_node(self, one: Change) -> None:
        rebuilding.change_node(name=one.name, changes=self._referred(one.after), **self._why)

    def _referred(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """With rows in place of names."""
        found = dict(facts)
        for name in found:
            if name == "cluster":
                found[name] = self._row(Cluster, found[name])
            elif name == "accelerator_type":
                found[name] = self._row(AcceleratorType, found[name])
            elif name in _REFERENCES:
                found[name] = self._row(Domain, found[name])
        return found

    def remove(self, changes: Sequence[Change]) -> None:
        names = [one.name for one in changes if (one.action, one.sort) == (REMOVE, NODE)]
        if names:
            rebuilding.remove_nodes(names=names, **self._why)
        for one in changes:
            if one.action == DRAIN:
                (node_id,) = one.node_ids
                why = self._why["reason"] or "not in the facility file any more"
                inventory.drain_node(node_id=node_id, reason=why, **self._who)
        for one in changes:
            if (one.action, one.sort) == (REMOVE, DOMAIN):
                self.now = one
                rebuilding.remove_domain(name=one.name, **self._why)


def _digest_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


# The way back -------------------------------------------------------------------------------------------------------


def written() -> str:
    """The facility as it is, as a file that changes nothing. Without what opens clusters, and without people."""
    there = _There()
    parts: dict[str, list[dict[str, Any]]] = {
        "accelerator_types": [
            {"name": row.name, **{name: getattr(row, name) for name in rebuilding.TYPE_FIELDS}}
            for row in there.types.values()
        ],
        "clusters": [{"name": row.name, "backend": str(row.backend)} for row in there.clusters.values()],
        "domains": [_domain_as_written(row, there) for row in sorted(there.domains.values(), key=_by_kind)],
        "nodes": [
            _told({"name": row.name, **{name: there.told(row, name) for name in rebuilding.NODE_FIELDS}})
            for row in there.nodes.values()
        ],
    }
    lines: list[str] = []
    for part, rows in parts.items():
        if rows:
            lines += [f"{part}:", *(f"- {json.dumps(row, ensure_ascii=False)}" for row in rows)]
    return "\n".join(lines) + "\n"


def _domain_as_written(row: Domain, there: _There) -> dict[str, Any]:
    limit = there.limits.get(row.pk)
    usual = PowerLimit()
    watts = {} if limit is None else {name: getattr(limit, name) for name in LIMITS}
    watts = {name: value for name, value in watts.items() if value != getattr(usual, name)}
    parent = there.domain_names.get(row.parent_id or 0)
    return _told({"name": row.name, "kind": str(row.kind), "parent": parent, **watts})


def _by_kind(row: Domain) -> tuple[int, str]:
    return [kind for tree in TREES.values() for kind in tree].index(DomainKind(row.kind)), row.name


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}

"""The order of everything in a scenario, by content alone: never by name or row.

A scenario is a graph: rows are vertices, references are edges, and what a row says (its name aside) is its colour.
Two files that say the same in other names and another order of rows are isomorphic graphs, so a canonical labelling
of the graph gives both the same order up to the renaming. It is found in three steps:

1. Twins (rows of one colour with the same references, to which nothing refers) become one vertex with a number: the
   thousand nodes of a row with `count`, or a thousand equal jobs. Among twins the order of rows decides; they are
   interchangeable.
2. Colours are refined by the colours around them until nothing splits any more. That settles nearly every file.
3. What is still equal is told apart by BLISS (igraph's canonical permutation), which finds the same labelling for
   isomorphic graphs.

Source of step 3: Junttila and Kaski, "Engineering an efficient canonical labeling tool for large and sparse graphs".
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import igraph

from apps.jobs.spec import Asks, ScenarioJob
from apps.simulation.scenario import (
    Cancel,
    CancelDemandResponse,
    DemandResponse,
    EventRow,
    NodeEvent,
    NodeRow,
    Scenario,
    SetPowerLimit,
    SetQuota,
)

Colour = tuple[Hashable, ...]


@dataclass(frozen=True)
class CanonicalOrder:
    """Positions of rows, best first: `order.types[0]` is the row of the type that comes first."""

    types: tuple[int, ...]
    domains: tuple[int, ...]
    nodes: tuple[tuple[int, int], ...]  # (row, number within the row from 0)
    teams: tuple[int, ...]
    labels: tuple[str, ...]  # team labels of a scenario without teams
    users: tuple[str, ...]
    reservations: tuple[int, ...]
    datasets: tuple[int, ...]
    jobs: tuple[int, ...]
    events: tuple[int, ...]


class _Graph:
    """Vertices with colours and undirected edges; `ref` vertices say what an edge between equals means."""

    def __init__(self) -> None:
        self.colours: list[Colour] = []
        self.around: list[list[int]] = []

    def vertex(self, *colour: Hashable) -> int:
        self.colours.append(colour)
        self.around.append([])
        return len(self.colours) - 1

    def edge(self, one: int, other: int) -> None:
        self.around[one].append(other)
        self.around[other].append(one)

    def edge_by(self, one: int, other: int, *colour: Hashable) -> None:
        """An edge that bears a colour of its own, by a vertex in its middle."""
        middle = self.vertex("edge", *colour)
        self.edge(one, middle)
        self.edge(middle, other)


class _Builder:
    """Draws the graph of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.graph = _Graph()
        self.type_of: dict[str, int] = {}
        self.domain_of: dict[str, int] = {}
        self.node_of: dict[str, int] = {}  # named nodes alone: those to which something refers
        self.team_of: dict[str, int] = {}
        self.user_of: dict[str, int] = {}
        self.dataset_of: dict[str, int] = {}
        self.reservation_of: dict[str, int] = {}
        self.job_of: dict[str, int] = {}
        self.members: dict[int, list[Any]] = {}  # vertex -> rows it stands for, in row order
        self.node_vertices: dict[int, list[tuple[int, int]]] = {}
        self.job_vertices: dict[int, list[int]] = {}
        self.event_vertices: list[int] = []

    def build(self) -> None:
        s, g = self.scenario, self.graph
        for row in s.types:
            self.type_of[row.name] = g.vertex("type", *_content(row, "name"))
        self._domains()
        self._teams()
        for dataset in s.datasets:
            at = self.dataset_of[dataset.name] = g.vertex(
                "dataset", *_content(dataset, "name", "at", "arriving")
            )
            for name in dataset.at:
                g.edge(at, self.domain_of[name])
            for name, in_s in dataset.arriving.items():
                g.edge_by(at, self.domain_of[name], "arriving", _plain(in_s))
        self._nodes()
        self._reservations()
        self._jobs()
        for event in s.events:
            self.event_vertices.append(self._event(event))

    def _domains(self) -> None:
        rows = self.scenario.domains
        depth = _depths({row.name: [row.parent] if row.parent else [] for row in rows})
        for row in rows:
            # The depth in the colour gives each edge between domains its direction.
            colour = _content(row, "name", "parent")
            self.domain_of[row.name] = self.graph.vertex("domain", depth[row.name], *colour)
        for row in rows:
            if row.parent is not None:
                self.graph.edge(self.domain_of[row.name], self.domain_of[row.parent])

    def _teams(self) -> None:
        s, g = self.scenario, self.graph
        depth = _depths({row.name: [row.parent] if row.parent else [] for row in s.teams})
        for row in s.teams:
            limits = () if row.member_jobs is None else (row.member_jobs,)
            self.team_of[row.name] = g.vertex("team", depth[row.name], row.weight, *limits)
        for row in s.teams:
            at = self.team_of[row.name]
            if row.parent is not None:
                g.edge(at, self.team_of[row.parent])
            for kind in sorted({*row.quota, *row.borrow_limit, *row.lend_limit, *row.used}):
                maps = (row.quota, row.borrow_limit, row.lend_limit, row.used)
                numbers = [numbers.get(kind) for numbers in maps]
                g.edge_by(at, self.type_of[kind], "quota", *map(_plain, numbers))
            for kind, number in sorted(row.member_limit.items()):
                g.edge_by(at, self.type_of[kind], "member_limit", number)
        if not s.teams:
            labels = {job.team for job in s.jobs} | {name for row in s.reservations for name in row.teams}
            for label in sorted(label for label in labels if label is not None):
                self.team_of[label] = g.vertex("label")
        for user in sorted({job.user for job in s.jobs if job.user is not None}):
            self.user_of[user] = g.vertex("user")

    def _nodes(self) -> None:
        s = self.scenario
        named = {event.node for event in s.events if isinstance(event, NodeEvent)}
        named.update(name for row in s.reservations for name in row.nodes or ())
        named.update(p.node for job in s.jobs if job.running is not None for p in job.running.placement)
        twins: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for index, row in enumerate(s.nodes):
            key = self._node_colour(row)
            for number, name in enumerate(row.names()):
                if name in named:
                    vertex = self._node_vertex(row, 1)
                    self.node_of[name] = vertex
                    self.node_vertices[vertex] = [(index, number)]
                else:
                    twins[key].append((index, number))
        for same in twins.values():
            self.node_vertices[self._node_vertex(s.nodes[same[0][0]], len(same))] = same

    def _node_colour(self, row: NodeRow) -> Colour:
        refs = (row.accelerator, row.leaf, row.scale_up, row.power, row.cooling, row.storage)
        return (*_node_content(row), *refs)

    def _node_vertex(self, row: NodeRow, n_twins: int) -> int:
        at = self.graph.vertex("node", *_node_content(row), n_twins)
        self.graph.edge(at, self.type_of[row.accelerator])
        for name in (row.leaf, row.scale_up, row.power, row.cooling, row.storage):
            if name is not None:
                self.graph.edge(at, self.domain_of[name])
        return at

    def _reservations(self) -> None:
        for row in self.scenario.reservations:
            content = _content(row, "name", "nodes", "accelerator", "teams")
            at = self.reservation_of[row.name] = self.graph.vertex("reservation", *content)
            for name in row.nodes or ():
                self.graph.edge(at, self.node_of[name])
            for name in row.teams:
                self.graph.edge(at, self.team_of[name])
            if row.accelerator is not None:
                self.graph.edge(at, self.type_of[row.accelerator])

    def _jobs(self) -> None:
        s = self.scenario
        named = {event.job for event in s.events if isinstance(event, Cancel)}
        named.update(name for job in s.jobs for name in job.after)
        depth = _depths({job.name: list(job.after) for job in s.jobs})
        twins: dict[Hashable, list[int]] = defaultdict(list)
        for index, job in enumerate(s.jobs):
            if job.name in named or job.after or job.running is not None:
                vertex = self._job_vertex(job, depth[job.name], 1)
                self.job_of[job.name] = vertex
                self.job_vertices[vertex] = [index]
            else:
                twins[self._job_key(job)].append(index)
        for same in twins.values():
            self.job_vertices[self._job_vertex(s.jobs[same[0]], 0, len(same))] = same
        for job in s.jobs:
            for name in job.after:
                self.graph.edge(self.job_of[job.name], self.job_of[name])

    def _job_key(self, job: ScenarioJob) -> Colour:
        refs: list[Hashable] = [job.team, job.user, job.reservation, *sorted(job.datasets)]
        for asks in job.all_groups:
            refs.append(tuple(asks.accelerators or ()))
        return (*_job_content(job), *refs)

    def _job_vertex(self, job: ScenarioJob, depth: int, n_twins: int) -> int:
        g = self.graph
        at = g.vertex("job", *_job_content(job), depth, n_twins)
        if job.team is not None:
            g.edge(at, self.team_of[job.team])
        if job.user is not None:
            g.edge(at, self.user_of[job.user])
        if job.reservation is not None:
            g.edge(at, self.reservation_of[job.reservation])
        for name in job.datasets:
            g.edge(at, self.dataset_of[name])
        for group, asks in enumerate(job.all_groups):
            for place, name in enumerate(asks.accelerators or ()):
                g.edge_by(at, self.type_of[name], "accepts", group, place)
        if job.running is not None:
            groups = {group.name: index for index, group in enumerate(job.groups or ())}
            for placed in job.running.placement:
                what = (groups.get(placed.group or "", 0), placed.replicas, placed.share_steps)
                g.edge_by(at, self.node_of[placed.node], "runs on", *what, tuple(sorted(placed.devices)))
        return at

    def _event(self, event: EventRow) -> int:
        g = self.graph
        at = g.vertex("event", *_content(event, "name", "node", "job", "team", "quota", "domain"))
        match event:
            case NodeEvent():
                g.edge(at, self.node_of[event.node])
            case Cancel():
                g.edge(at, self.job_of[event.job])
            case SetQuota():
                g.edge(at, self.team_of[event.team])
                for kind, number in sorted(event.quota.items()):
                    g.edge_by(at, self.type_of[kind], "quota", number)
            case SetPowerLimit() | DemandResponse():
                g.edge(at, self.domain_of[event.domain])
            case CancelDemandResponse():
                pass
        return at


# ------------------------------------------------------------------------------------------------------
# Content of rows: what they say, names and references aside


def _plain(value: Any) -> Hashable:
    """A value in a form whose text is the same for equal values and sorts numbers as numbers."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return tuple((key, _plain(item)) for key, item in sorted(value.items()))
    return tuple(_plain(item) for item in value)


def _content(row: Any, *leave_out: str) -> Colour:
    return tuple((key, _plain(getattr(row, key))) for key in type(row).model_fields if key not in leave_out)


_NODE_FIELDS: Final = ("devices", "cpus", "memory_gib", "idle_w", "off_w", "off_s", "boot_s", "speed")


def _node_content(row: NodeRow) -> Colour:
    return tuple(_plain(getattr(row, key)) for key in _NODE_FIELDS)


_JOB_REFERENCES: Final = (
    "name",
    "team",
    "user",
    "reservation",
    "datasets",
    "after",
    "accelerators",
    "groups",
    "running",
)


def _job_content(job: ScenarioJob) -> Colour:
    content: list[Hashable] = []
    for key in type(job).model_fields:
        if key not in _JOB_REFERENCES:
            value = getattr(job, key)
            content.append((key, _plain(value.model_dump() if hasattr(value, "model_dump") else value)))
    if job.running is not None:
        content.append(("running", _plain(job.running.since)))
    groups = job.groups
    if groups is not None:
        content.append(tuple(_plain(_dumped(group)) for group in groups))
    return tuple(content)


def _dumped(group: Asks) -> dict[str, Any]:
    return group.model_dump(exclude={"name", "accelerators", "command"})


def _depths(parents: Mapping[str, list[str]]) -> dict[str, int]:
    """Length of the longest way up from each name; the references have no cycle."""
    depth: dict[str, int] = {}
    for root in parents:
        stack = [root]
        while stack:
            name = stack[-1]
            if name in depth:
                stack.pop()
                continue
            above = [parent for parent in parents[name] if parent not in depth]
            if above:
                stack.extend(above)
            else:
                depth[name] = max((depth[parent] + 1 for parent in parents[name]), default=0)
                stack.pop()
    return depth


# ------------------------------------------------------------------------------------------------------
# Labelling


def _ranked(keys: list[Hashable]) -> list[int]:
    """Keys as numbers that respect an order of their text, so that equal files get equal numbers."""
    number = {key: place for place, key in enumerate(sorted(set(keys), key=repr))}
    return [number[key] for key in keys]


def _refined(colours: list[int], around: list[list[int]]) -> list[int]:
    """Split colours by the colours around them until nothing splits (one-dimensional Weisfeiler-Leman)."""
    n_colours = len(set(colours))
    while n_colours < len(colours):
        keys = [
            (colour, tuple(sorted([colours[n] for n in near])))
            for colour, near in zip(colours, around, strict=True)
        ]
        number = {key: place for place, key in enumerate(sorted(set(keys)))}
        colours = [number[key] for key in keys]
        if len(number) == n_colours:
            break
        n_colours = len(number)
    return colours


def _labels(graph: _Graph) -> list[int]:
    """A place for each vertex, the same for isomorphic graphs."""
    colours = _refined(_ranked(list(graph.colours)), graph.around)
    if len(set(colours)) == len(colours):
        return colours
    edges = [(one, other) for one, near in enumerate(graph.around) for other in near if one < other]
    drawn = igraph.Graph(n=len(colours), edges=edges)
    places: list[int] = drawn.canonical_permutation(sh="fl", color=colours)
    # Refined colour first: it is what the content says; BLISS only tells equals apart.
    order = sorted(range(len(colours)), key=lambda v: (colours[v], places[v]))
    labels = [0] * len(colours)
    for label, v in enumerate(order):
        labels[v] = label
    return labels


def _by_label(vertices: Iterable[int], labels: list[int]) -> list[int]:
    return sorted(vertices, key=lambda v: labels[v])


def canonical_order(scenario: Scenario) -> CanonicalOrder:
    """Put everything in a scenario in an order that depends on content alone."""
    builder = _Builder(scenario)
    builder.build()
    labels = _labels(builder.graph)

    def rows(names: Iterable[str], vertex_of: Mapping[str, int]) -> tuple[int, ...]:
        vertices = [vertex_of[name] for name in names]
        return tuple(sorted(range(len(vertices)), key=lambda row: labels[vertices[row]]))

    teams = builder.team_of
    return CanonicalOrder(
        types=rows((row.name for row in scenario.types), builder.type_of),
        domains=rows((row.name for row in scenario.domains), builder.domain_of),
        nodes=tuple(
            node
            for vertex in _by_label(builder.node_vertices, labels)
            for node in builder.node_vertices[vertex]
        ),
        teams=rows((row.name for row in scenario.teams), teams),
        labels=() if scenario.teams else tuple(sorted(teams, key=lambda name: labels[teams[name]])),
        users=tuple(sorted(builder.user_of, key=lambda name: labels[builder.user_of[name]])),
        reservations=rows((row.name for row in scenario.reservations), builder.reservation_of),
        datasets=rows((row.name for row in scenario.datasets), builder.dataset_of),
        jobs=_job_order(scenario, builder, labels),
        events=tuple(
            sorted(range(len(scenario.events)), key=lambda row: labels[builder.event_vertices[row]])
        ),
    )


def _job_order(scenario: Scenario, builder: _Builder, labels: list[int]) -> tuple[int, ...]:
    """Jobs by what people would call first, then by label."""
    label_of = {row: labels[vertex] for vertex, same in builder.job_vertices.items() for row in same}

    def key(row: int) -> tuple[float, ...]:
        job = scenario.jobs[row]
        deadline = float("inf") if job.deadline is None else job.deadline
        return (
            -job.priority,
            job.submit - job.age,
            deadline,
            -job.n_devices,
            -job.runtime,
            label_of[row],
            row,
        )

    return tuple(sorted(range(len(scenario.jobs)), key=key))

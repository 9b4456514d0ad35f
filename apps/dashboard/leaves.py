"""The map of nodes by spine group and leaf, as shapes that a template can draw."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Final

from django.urls import reverse

from apps.inventory.models import Health
from apps.inventory.selectors import MapNode

_WORDS: Final = {
    "this": "of this job",
    "out": "out of service",
    "busy": "in use",
    "part": "partly in use",
    "free": "free",
}


@dataclass(frozen=True)
class Cell:
    """One node of the map, and how it is drawn."""

    url: str
    look: str
    title: str


@dataclass(frozen=True)
class Leaf:
    name: str
    cells: tuple[Cell, ...]
    n_devices: int = 0
    claimed: Decimal = Decimal(0)

    def n_of(self, look: str) -> int:
        """How many nodes are drawn so."""
        return sum(cell.look == look for cell in self.cells)

    @property
    def n_out(self) -> int:
        return self.n_of("out")

    @property
    def summary(self) -> str:
        """How many nodes of each look, for who does not see the colours."""
        counts = Counter(cell.look for cell in self.cells)
        return ", ".join(f"{n} {_WORDS[look]}" for look, n in sorted(counts.items()))


@dataclass(frozen=True)
class Spine:
    name: str
    kinds: str
    leaves: tuple[Leaf, ...]
    url: str = ""  # of its own page


def spines_of(
    nodes: Iterable[MapNode],
    chosen: Collection[str] = (),
    *,
    page: str = "spine",
    nameless: str = "No spine group",
) -> tuple[Spine, ...]:
    """Group nodes, which come in order of spine, leaf and name.

    Args:
        chosen: Names of the nodes that the map is about: those of one job.
        page: What shows one group for itself; empty: nothing does.
        nameless: What nodes are in that hang in no group.
    """
    found = []
    for spine, of_spine in groupby(nodes, key=lambda node: node.spine):
        inside = list(of_spine)
        leaves = tuple(
            _leaf(leaf, list(of_leaf), chosen)
            for leaf, of_leaf in groupby(inside, key=lambda node: node.leaf)
        )
        kinds = ", ".join(sorted({node.accelerator_type for node in inside}))
        url = reverse(f"dashboard:{page}", args=[spine]) if spine and page else ""
        found.append(Spine(spine or nameless, kinds, leaves, url))
    return tuple(found)


def _leaf(name: str, nodes: list[MapNode], chosen: Collection[str]) -> Leaf:
    claimed = sum((node.claimed for node in nodes), Decimal(0))
    return Leaf(name, _cells(nodes, chosen), sum(node.n_devices for node in nodes), claimed)


def _cells(nodes: list[MapNode], chosen: Collection[str]) -> tuple[Cell, ...]:
    looks = [(node, *_look(node, chosen)) for node in nodes]
    return tuple(
        Cell(reverse("dashboard:node", args=[node.name]), look, f"{node.name}: {words}")
        for node, look, words in looks
    )


def _look(node: MapNode, chosen: Collection[str]) -> tuple[str, str]:
    if node.name in chosen:
        return "this", "this job"
    if node.health in (Health.FAILED, Health.DRAINED, Health.DRAINING):
        return "out", "out of service"
    if node.claimed >= node.n_devices:
        return "busy", "in use"
    if node.claimed > 0:
        return "part", f"{node.claimed.normalize():f} of {node.n_devices} in use"
    return "free", "free"

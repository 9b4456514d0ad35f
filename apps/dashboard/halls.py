"""The halls, drawn by rack: how much power or work there is where."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from django.urls import reverse

from apps.dashboard.templatetags import formats
from apps.inventory.models import DomainKind
from apps.inventory.selectors import DomainUse
from apps.scheduling.power_board import Branch, PowerTree

MEASURES: Final[Mapping[str, str]] = {"kw": "kW", "busy": "Busy"}
_MOST_CELLS: Final = 1000
_STEPS: Final = 7  # of the colour scale
_TIGHT: Final = 0.95
# The finest level that is drawn comes first; one too fine for a picture gives way to the next.
_LEVELS: Final = (DomainKind.RACK, DomainKind.ROW, DomainKind.HALL, DomainKind.FACILITY)


@dataclass(frozen=True)
class Place:
    """One rack, or one row where there are more racks than a picture holds."""

    look: str
    title: str
    url: str
    is_tight: bool


@dataclass(frozen=True)
class Line:
    name: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Hall:
    name: str
    load_w: float
    limit_w: float | None
    busy_share: float | None
    lines: tuple[Line, ...]

    @property
    def url(self) -> str:
        """Of its own page, node by node."""
        return reverse("dashboard:hall", args=[self.name])


@dataclass(frozen=True)
class HallMap:
    """What is drawn.

    Attributes:
        level: What one square is: rack, row.
        most: The amount of the darkest colour: watts, or 1 for shares.
    """

    halls: tuple[Hall, ...]
    level: str
    n_places: int
    measure: str
    most: float


@dataclass
class _Sum:
    n_nodes: int = 0
    n_out: int = 0
    n_devices: int = 0
    claimed: float = 0.0

    def add(self, more: "DomainUse | _Sum") -> None:
        self.n_nodes += more.n_nodes
        self.n_out += more.n_out
        self.n_devices += more.n_devices
        self.claimed += more.claimed

    @property
    def busy_share(self) -> float | None:
        return self.claimed / self.n_devices if self.n_devices else None


def map_of(tree: PowerTree, uses: Iterable[DomainUse], measure: str) -> HallMap | None:
    """The map of all halls; None where no domain of the power tree holds nodes.

    Args:
        measure: One of MEASURES: watts drawn, or the share of the devices that are held.
    """
    branches = {branch.position: branch for branch in tree.branches}
    sums = {position: _Sum() for position in branches}
    by_id = {branch.row.id: branch.position for branch in tree.branches}
    for use in uses:
        if use.domain_id in by_id:
            sums[by_id[use.domain_id]].add(use)
    # A domain stands before those below it, so that from the back every sum is whole when it is passed up.
    for branch in reversed(tree.branches):
        if branch.parent in sums:
            sums[branch.parent].add(sums[branch.position])
    level = _level_of(branches, sums)
    if level is None:
        return None
    shown = [b for b in tree.branches if b.row.kind == level and sums[b.position].n_nodes]
    most = (
        max((branch.limit_w or branch.shown_w for branch in shown), default=0.0) if measure == "kw" else 1.0
    )
    lines: dict[int, dict[int, list[Place]]] = {}
    for branch in shown:
        hall = _above(branch, branches, DomainKind.HALL)
        line = branches.get(branch.parent, branch)
        if line.position == hall.position:
            line = hall
        place = _place(branch, sums[branch.position], measure, most)
        lines.setdefault(hall.position, {}).setdefault(line.position, []).append(place)
    halls = tuple(
        Hall(
            branches[hall].row.name,
            branches[hall].shown_w,
            branches[hall].limit_w,
            sums[hall].busy_share,
            tuple(Line(branches[line].row.name, tuple(places)) for line, places in of_hall.items()),
        )
        for hall, of_hall in lines.items()
    )
    return HallMap(halls, str(DomainKind(level).label).lower(), len(shown), measure, most)


def _level_of(branches: Mapping[int, Branch], sums: Mapping[int, _Sum]) -> str | None:
    for kind in _LEVELS:
        n_places = sum(1 for at, branch in branches.items() if branch.row.kind == kind and sums[at].n_nodes)
        if 0 < n_places <= _MOST_CELLS:
            return kind
    return None


def _above(branch: Branch, branches: Mapping[int, Branch], kind: str) -> Branch:
    """The domain of this kind that it hangs in; the highest where there is none."""
    at = branch
    while at.row.kind != kind and at.parent in branches:
        at = branches[at.parent]
    return at


def _place(branch: Branch, uses: _Sum, measure: str, most: float) -> Place:
    share = uses.busy_share
    amount = branch.shown_w / most if measure == "kw" and most > 0 else share or 0.0
    step = min(_STEPS - 1, max(0, int(amount * _STEPS)))
    is_out = uses.n_nodes == uses.n_out
    look = "out" if is_out else f"h{step}"
    words = [branch.row.name, formats.power(branch.shown_w)]
    if share is not None:
        words.append(f"{formats.share(share)} busy")
    if uses.n_out:
        words.append(f"{formats.count(uses.n_out)} of {formats.count(uses.n_nodes)} nodes out of service")
    is_tight = branch.share is not None and branch.share >= _TIGHT
    if is_tight:
        words.append("at 95 % of its limit or more")
    url = f"{reverse('dashboard:nodes')}?{urlencode({'domain': branch.row.name})}"
    return Place(look, " · ".join(words), url, is_tight and not is_out)

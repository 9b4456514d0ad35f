"""A synthetic facility: network, power, cooling and storage trees, limits at every level, quotas in a tree of teams."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from apps.inventory import services as inventory
from apps.inventory.models import AcceleratorType, Backend, Domain, DomainKind
from apps.inventory.services import NodeFacts
from apps.power.models import PowerLimit
from apps.reservations import services as reservations
from apps.scheduling.models import PolicySetting
from apps.teams import services as teams
from apps.teams.models import FacilityRole, MemberRole, Team, User
from apps.teams.services import QuotaChange, QuotaEntry

CLUSTER: Final = "hall"
SUBMITTER: Final = "bench"
LOOKER: Final = "looker"
N_DEVICES: Final = 8
N_PER_LEAF, N_PER_RACK, RACKS_PER_ROW, ROWS_PER_HALL = 16, 4, 12, 8
LEAF_TEAMS: Final = tuple(f"team-{division}{place}" for division in "abcd" for place in range(1, 5))
# Of what all below would draw at their peak: the limits of the wider domains bind before the last device is taken.
_LIMIT_SHARE: Final = {
    DomainKind.RACK: 1.0, DomainKind.ROW: 0.98, DomainKind.HALL: 0.97, DomainKind.FACILITY: 0.96,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    memory_gib: float
    tdp_w: float
    idle_w: float
    speed: float
    host_w: float

    @property
    def node_peak_w(self) -> float:
        return self.host_w + N_DEVICES * self.tdp_w


TYPES: Final = (
    Type("H200", 141.0, 700.0, 75.0, 1.4, 2000.0),
    Type("H100", 80.0, 700.0, 70.0, 1.0, 2000.0),
    Type("A100", 80.0, 400.0, 50.0, 0.5, 1200.0),
)


def build(n_nodes: int, at: datetime, *, is_bounded: bool = True) -> None:
    """Everything but the work.

    Args:
        is_bounded: With power limits, borrow limits and reservations; False: only the devices themselves are scarce.
    """
    _build_people(at)
    kinds = _build_nodes(n_nodes, at, is_bounded=is_bounded)
    _entitle(n_nodes, kinds, at, is_bounded=is_bounded)
    if is_bounded:
        _reserve(n_nodes, at)
    PolicySetting.objects.create(values={})


def _build_people(at: datetime) -> None:
    site = teams.create_team(name="site", actor=None, at=at)
    submitter = teams.create_user(username=SUBMITTER, password=None, actor=None, at=at)
    role = FacilityRole.ADMIN
    teams.create_user(username=LOOKER, password=None, facility_role=role, actor=None, at=at)
    for division in "abcd":
        above = teams.create_team(name=f"division-{division}", parent=site, actor=None, at=at)
        for place in range(1, 5):
            team = teams.create_team(name=f"team-{division}{place}", parent=above, actor=None, at=at)
            teams.set_member(team_id=team.pk, user=submitter, role=MemberRole.MEMBER, actor=None, at=at)


def submitter() -> User:
    return User.objects.get(username=SUBMITTER)


def looker() -> User:
    """Somebody who sees everything."""
    return User.objects.get(username=LOOKER)


def type_of(node: int, n_nodes: int) -> int:
    """Which of TYPES a node has: one a spine group."""
    return node // N_PER_LEAF // _leaves_per_spine(n_nodes) % len(TYPES)


def _leaves_per_spine(n_nodes: int) -> int:
    return max(1, min(8, n_nodes // N_PER_LEAF // 4))


def _build_nodes(n_nodes: int, at: datetime, *, is_bounded: bool) -> list[AcceleratorType]:
    kinds = [
        inventory.create_accelerator_type(
            name=t.name,
            memory_gib=t.memory_gib,
            tdp_w=t.tdp_w,
            idle_w=t.idle_w,
            speed=t.speed,
            actor=None,
            at=at,
        )
        for t in TYPES
    ]
    cluster = inventory.create_cluster(name=CLUSTER, backend=Backend.SIMULATED, actor=None, at=at)
    trees = _Trees(n_nodes)
    inventory.create_nodes(cluster=cluster, rows=list(trees.nodes(kinds)), actor=None, at=at)
    if is_bounded:
        trees.limit()
    return kinds


class _Trees:
    """The domains, made level by level."""

    def __init__(self, n_nodes: int) -> None:
        self.n_nodes = n_nodes
        n_leaves, n_racks = -(-n_nodes // N_PER_LEAF), -(-n_nodes // N_PER_RACK)
        n_rows = -(-n_racks // RACKS_PER_ROW)
        per_spine = _leaves_per_spine(n_nodes)
        self.spines = self._level("spine", DomainKind.SPINE, -(-n_leaves // per_spine))
        self.leaves = self._level("leaf", DomainKind.LEAF, n_leaves, self.spines, per_spine)
        self.site = self._level("site", DomainKind.FACILITY, 1)
        self.halls = self._level("hall", DomainKind.HALL, -(-n_rows // ROWS_PER_HALL), self.site, 10**9)
        self.rows = self._level("row", DomainKind.ROW, n_rows, self.halls, ROWS_PER_HALL)
        self.racks = self._level("rack", DomainKind.RACK, n_racks, self.rows, RACKS_PER_ROW)
        self.loops = self._level("loop", DomainKind.COOLING, n_rows)
        self.stores = self._level("store", DomainKind.STORAGE, 2)

    @staticmethod
    def _level(word: str, kind: str, n: int, above: Sequence[Domain] = (), n_below: int = 1) -> list[Domain]:
        return Domain.objects.bulk_create(
            [
                Domain(name=f"{word}-{i + 1:04d}", kind=kind, parent=above[i // n_below] if above else None)
                for i in range(n)
            ]
        )

    def nodes(self, kinds: Sequence[AcceleratorType]) -> Iterator[NodeFacts]:
        for i in range(self.n_nodes):
            leaf, rack = i // N_PER_LEAF, i // N_PER_RACK
            which = type_of(i, self.n_nodes)
            yield NodeFacts(
                name=f"n{i + 1:05d}",
                accelerator_type=kinds[which],
                n_devices=N_DEVICES,
                cpus=128.0,
                memory_gib=2048.0,
                leaf=self.leaves[leaf],
                power=self.racks[rack],
                cooling=self.loops[rack // RACKS_PER_ROW],
                storage=self.stores[leaf % 2],
                idle_w=TYPES[which].host_w,
            )

    def limit(self) -> None:
        """Limits at every level of the power tree."""
        peak_w = {
            domain.pk: 0.0 for level in (self.site, self.halls, self.rows, self.racks) for domain in level
        }
        for i in range(self.n_nodes):
            domain: Domain | None = self.racks[i // N_PER_RACK]
            while domain is not None:
                peak_w[domain.pk] += TYPES[type_of(i, self.n_nodes)].node_peak_w
                domain = domain.parent
        limits = []
        for domain in (*self.site, *self.halls, *self.rows, *self.racks):
            limit_w = round(peak_w[domain.pk] * _LIMIT_SHARE[DomainKind(domain.kind)], 0)
            if domain.kind == DomainKind.FACILITY:
                limit = PowerLimit(
                    domain=domain,
                    limit_w=100_000.0 + 1.1 * limit_w,
                    overhead_fixed_w=100_000.0,
                    overhead_k=1.1,
                )
            else:
                limit = PowerLimit(domain=domain, limit_w=limit_w)
            limits.append(limit)
        PowerLimit.objects.bulk_create(limits)


def _entitle(n_nodes: int, kinds: Sequence[AcceleratorType], at: datetime, *, is_bounded: bool) -> None:
    owned = [0] * len(kinds)
    for i in range(n_nodes):
        owned[type_of(i, n_nodes)] += N_DEVICES
    changes = []
    for team in Team.objects.order_by("id"):
        part = 16 if team.name in LEAF_TEAMS else 4 if team.parent_id is not None else 1
        entries = [
            QuotaEntry(
                kind.name, n // part, borrow_limit=n // 4 if is_bounded and team.name in LEAF_TEAMS else None
            )
            for kind, n in zip(kinds, owned, strict=True)
        ]
        changes.append(QuotaChange(team.pk, tuple(entries), team.version))
    teams.set_quotas(changes=changes, actor=None, at=at)


def _reserve(n_nodes: int, at: datetime) -> None:
    """Maintenance of a leaf in two days, and devices for a team on the day after."""
    day = (at + timedelta(days=2)).replace(hour=6, minute=0, second=0, microsecond=0)
    nodes = tuple(f"n{i + 1:05d}" for i in range(min(N_PER_LEAF, n_nodes)))
    maintenance = reservations.Draft(
        name="leaf switch", starts_at=day, ends_at=day + timedelta(hours=3), nodes=nodes
    )
    release = reservations.Draft(
        name="release",
        starts_at=day + timedelta(days=1),
        ends_at=day + timedelta(days=2),
        accelerator_type=TYPES[0].name,
        n_devices=64,
        within=DomainKind.SPINE,
        teams=(LEAF_TEAMS[0],),
    )
    for draft in (maintenance, release):
        reservations.create_reservation(draft=draft, actor=None, at=at)

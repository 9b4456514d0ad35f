"""What is known about the facility as built and the health of its nodes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import connection
from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from apps.core.errors import NotFound
from apps.inventory.models import (
    POWER_KINDS,
    AcceleratorType,
    Cluster,
    Device,
    Domain,
    Health,
    HealthReport,
    Node,
    NodeFailure,
    PaceReading,
)

Viewer: TypeAlias = AbstractBaseUser | AnonymousUser  # teams and inventory do not know each other


@dataclass(frozen=True, slots=True)
class Site:
    """The facility as a whole, for the head of every page."""

    name: str
    n_halls: int
    is_simulated: bool  # some of it
    is_all_simulated: bool


def site() -> Site:
    """The facility's name is that of its power tree's root."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT name FROM inventory_domain WHERE kind = 'facility' ORDER BY id LIMIT 1),"
            " (SELECT count(*) FROM inventory_domain WHERE kind = 'hall'),"
            " coalesce(bool_or(backend = 'simulated'), false), coalesce(bool_and(backend = 'simulated'), false)"
            " FROM inventory_cluster WHERE is_enabled"
        )
        row = cursor.fetchone()
    assert row is not None
    name, n_halls, is_simulated, is_all_simulated = row
    return Site(name or "Facility", n_halls, is_simulated, is_all_simulated)


def known_kinds(names: Collection[str]) -> frozenset[str]:
    """Those of the names that accelerator types have."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM inventory_acceleratortype WHERE name = ANY(%s)", [list(names)])
        return frozenset(name for (name,) in cursor.fetchall())


def nodes_visible_to(viewer: Viewer) -> QuerySet[Node]:
    """Everyone signed in sees the whole facility."""
    return Node.objects.all() if viewer.is_authenticated else Node.objects.none()


@dataclass(frozen=True, slots=True)
class NodeFilters:
    """What a list of nodes is narrowed down to."""

    health: str = ""
    accelerator_type: str = ""
    cluster: str = ""
    domain: str = ""  # a leaf, spine, rack, row or hall
    name_prefix: str = ""


def node_rows(viewer: Viewer, filters: NodeFilters = NodeFilters()) -> QuerySet[Node]:
    """Nodes for a list, with type, cluster and domains at hand and `claimed`, the devices held on each."""
    claimed = (
        Device.objects.filter(node=OuterRef("pk"))
        .order_by()
        .values("node")
        .annotate(total=Sum("claimed_share"))
        .values("total")
    )
    rows = (
        nodes_visible_to(viewer)
        .select_related("accelerator_type", "cluster", "leaf__parent", "power", "cooling")
        .annotate(claimed=Coalesce(Subquery(claimed), Decimal(0)))
    )
    if filters.health:
        rows = rows.filter(health=filters.health)
    if filters.accelerator_type:
        rows = rows.filter(accelerator_type__name=filters.accelerator_type)
    if filters.cluster:
        rows = rows.filter(cluster__name=filters.cluster)
    if filters.name_prefix:
        rows = rows.filter(name__startswith=filters.name_prefix)
    if filters.domain:
        rows = rows.filter(_within(filters.domain))
    return rows


def node_details(viewer: Viewer, filters: NodeFilters = NodeFilters()) -> QuerySet[Node]:
    """Nodes with the lowest domain of every tree at hand, and `claimed`."""
    return node_rows(viewer, filters).select_related(
        "accelerator_type", "cluster", "scale_up", "leaf", "power", "cooling", "storage"
    )


def _within(domain: str) -> Q:
    """Nodes whose own domain or one of the three above it has this name: no tree is deeper."""
    condition = Q(scale_up__name=domain) | Q(storage__name=domain)
    for tree in ("leaf", "power", "cooling"):
        for above in range(4):
            condition |= Q(**{f"{tree}__{'parent__' * above}name": domain})
    return condition


@dataclass(frozen=True, slots=True)
class HealthCount:
    health: str
    n_nodes: int
    n_devices: int


def count_by_health() -> tuple[HealthCount, ...]:
    """Nodes and devices in each state of health; states without nodes are left out."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT health, count(*), coalesce(sum(n_devices), 0) FROM inventory_node"
            " GROUP BY health ORDER BY health"
        )
        return tuple(HealthCount(*row) for row in cursor.fetchall())


@dataclass(frozen=True, slots=True)
class DomainUse:
    """The nodes that hang in one power domain itself, and what they hold."""

    domain_id: int
    n_nodes: int
    n_out: int  # of these, out of service
    n_devices: int
    claimed: float


def use_by_power_domain() -> tuple[DomainUse, ...]:
    """Of every power domain that nodes hang in; one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node.power_id, count(*), count(*) FILTER (WHERE node.health = ANY(%s)),"
            " coalesce(sum(node.n_devices), 0), coalesce(sum(held.claimed), 0)::float8 FROM inventory_node node"
            " LEFT JOIN (SELECT node_id, sum(claimed_share) AS claimed FROM inventory_device"
            "  WHERE claimed_share > 0 GROUP BY node_id) held ON held.node_id = node.id"
            " WHERE node.power_id IS NOT NULL GROUP BY node.power_id ORDER BY node.power_id",
            [[Health.FAILED, Health.DRAINED, Health.DRAINING]],
        )
        return tuple(DomainUse(*row) for row in cursor.fetchall())


@dataclass(frozen=True, slots=True)
class MapNode:
    """One node of a map of leaves."""

    id: int
    name: str
    spine: str
    leaf: str
    health: str
    n_devices: int
    claimed: Decimal
    accelerator_type: str


def floor_map(viewer: Viewer, domain: Domain, *, most: int) -> tuple[MapNode, ...] | None:
    """The nodes in a domain, or None when there are more than `most`.

    Of the power tree by row and rack, else by spine and leaf: `leaf` is what a node hangs in, `spine` what is above.
    """
    tree = "power" if domain.kind in POWER_KINDS else "leaf"
    nodes = node_rows(viewer, NodeFilters(domain=domain.name)).filter(**{f"{tree}__isnull": False})
    return _map_nodes(nodes, tree, most)


def _map_nodes(nodes: QuerySet[Node], tree: str, most: int) -> tuple[MapNode, ...] | None:
    above = (f"{tree}__parent__name", f"{tree}__name", "name")
    fields = ("id", "name", *above[:2], "health", "n_devices", "claimed", "accelerator_type__name")
    rows = list(nodes.order_by(*above).values_list(*fields)[: most + 1])
    if len(rows) > most:
        return None
    return tuple(MapNode(id, name, spine or "", *rest) for id, name, spine, *rest in rows)


def domain_named(name: str, kinds: Collection[str]) -> Domain:
    """The domain of a name, with the one above at hand; raises NotFound for one of another kind."""
    rows = Domain.objects.select_related("parent").filter(kind__in=kinds)
    found = None if "\x00" in name else rows.filter(name=name).first()
    if found is None:
        raise NotFound("There is no such part of the facility.")
    return found


def leaf_map(viewer: Viewer, *, most: int, around: Iterable[str] | None = None) -> tuple[MapNode, ...] | None:
    """The nodes by spine and leaf, or None when there are more than `most`: then a coarser picture is due.

    Args:
        around: Names of nodes; only their spine groups are drawn.
    """
    nodes = node_rows(viewer).filter(leaf__isnull=False)
    if around is not None:
        nodes = nodes.filter(
            leaf__parent__in=Domain.objects.filter(children__leaf_nodes__name__in=list(around))
        )
    return _map_nodes(nodes, "leaf", most)


def accelerator_type_names() -> list[str]:
    return list(AcceleratorType.objects.order_by("name").values_list("name", flat=True))


def accelerator_type_ids() -> dict[str, int]:
    return dict(AcceleratorType.objects.values_list("name", "id"))


def kinds_of_nodes() -> tuple[dict[int, str], dict[int, int], dict[int, int]]:
    """Names of the accelerator types by id; and by id of every node its type and its number of devices."""
    names = dict(AcceleratorType.objects.values_list("id", "name"))
    types, sizes = {}, {}
    for node, kind, n_devices in Node.objects.values_list("id", "accelerator_type_id", "n_devices"):
        types[node], sizes[node] = kind, n_devices
    return names, types, sizes


def cluster_rows() -> QuerySet[Cluster]:
    """All clusters with the number of their nodes."""
    return Cluster.objects.order_by("name")


def nodes_out_of_service(viewer: Viewer) -> QuerySet[Node]:
    """Nodes that take no work, the longest away first."""
    return (
        node_rows(viewer)
        .exclude(health=Health.HEALTHY)
        .order_by(F("health_since_at").asc(nulls_first=True), "id")
    )


LAST_SEEN = 20  # rows of each sort that a node's page shows


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one node, the newest first: for operators and auditors."""

    reports: tuple[HealthReport, ...]
    failures: tuple[NodeFailure, ...]
    paces: tuple[PaceReading, ...]


def seen_of(node: Node) -> Seen:
    """The last reports of its health, attempts that failed on it, and how it kept pace."""
    return Seen(
        tuple(HealthReport.objects.filter(node=node).order_by("-at", "-id")[:LAST_SEEN]),
        tuple(NodeFailure.objects.filter(node=node).order_by("-at", "-id")[:LAST_SEEN]),
        tuple(PaceReading.objects.filter(node=node).order_by("-at", "-id")[:LAST_SEEN]),
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """How much of each sort there is."""

    types: int
    clusters: int
    domains: int
    nodes: int
    devices: int


def n_of_each() -> Numbers:
    """How large the facility is; one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM inventory_acceleratortype), (SELECT count(*) FROM inventory_cluster),"
            " (SELECT count(*) FROM inventory_domain), count(*), coalesce(sum(n_devices), 0) FROM inventory_node"
        )
        row = cursor.fetchone()
    assert row is not None
    return Numbers(*row)


@dataclass(frozen=True, slots=True)
class TypeCount:
    name: str
    n_devices: int


def devices_by_type() -> tuple[TypeCount, ...]:
    """How many devices of each accelerator type are built; types without nodes are left out."""
    counted = AcceleratorType.objects.annotate(n=Sum("nodes__n_devices")).filter(n__gt=0)
    return tuple(TypeCount(name, n) for name, n in counted.order_by("name").values_list("name", "n"))

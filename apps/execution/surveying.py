"""Clusters with a life of their own: what they have, what is drained or lost there, and what others do there.

Both sides may drain a node: an operator here, and whoever looks after the cluster there. Each sees the other's, and
takes back its own alone. May run twice, late, or after a crash: everything follows from rows and what is seen.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Exists, OuterRef

from apps.core import clock
from apps.core.errors import DomainError
from apps.execution import probing
from apps.execution.backends.base import Backend, Survey, SurveyedNode, Surveying
from apps.inventory import outside
from apps.inventory import services as inventory
from apps.inventory.models import (
    AcceleratorType,
    Cluster,
    Domain,
    DomainKind,
    Health,
    HealthBy,
    Node,
    OutsideUse,
)
from apps.jobs import services as jobs
from apps.jobs.models import Desired, DeviceClaim, Observed

SURVEY_EVERY_S: Final = 2.0
DRAINED_THERE: Final = "Drained in its cluster:"  # how the reason of such a drain begins here
# A run that has not begun so long after its launch, where somebody else holds its devices, will not begin soon.
BEGINS_WITHIN: Final = timedelta(seconds=2)
_log = logging.getLogger(__name__)
_surveyed_s: dict[int, float] = {}


def survey_cluster(cluster: Cluster, backend: Backend, *, at: datetime) -> None:
    """Look at a cluster, unless that was done a moment ago; bring the facility in line. Raises OutsideError."""
    if not isinstance(backend, Surveying):
        return
    now_s = clock.monotonic_s()
    if now_s - _surveyed_s.get(cluster.pk, -SURVEY_EVERY_S) < SURVEY_EVERY_S:
        return
    take_survey(cluster, backend, backend.survey(at=at), at=at)
    _surveyed_s[cluster.pk] = now_s


def take_survey(cluster: Cluster, backend: Surveying, survey: Survey, *, at: datetime) -> None:
    """Bring the facility in line with what a cluster was seen to be."""
    version = survey.version[:120]
    Cluster.objects.filter(pk=cluster.pk).exclude(engine_version=version).update(engine_version=version)
    nodes = {node.name: node for node in Node.objects.filter(cluster=cluster).order_by("pk")}
    uses = [
        outside.Use(
            node_id=nodes[one.node].pk,
            key=one.key,
            device_indices=tuple(index for index in one.device_indices if index < nodes[one.node].n_devices),
            label=one.label,
            are_exact=one.are_exact,
            since_at=one.since_at,
            until_at=one.until_at,
        )
        for one in survey.foreign
        if one.node in nodes
    ]
    outside.take_uses(cluster_id=cluster.pk, uses=[use for use in uses if use.device_indices], at=at)
    give_way(cluster, at=at)
    seen = {one.name: one for one in survey.nodes}
    for node in nodes.values():
        if node.name in seen:
            _settle_drain(backend, node, seen[node.name], at)
    _settle_losses(cluster, nodes, seen, at)


def give_way(cluster: Cluster, *, at: datetime) -> list[int]:
    """Have runs that cannot begin where somebody else holds their devices go elsewhere; return their allocations."""
    if not OutsideUse.objects.filter(node__cluster=cluster).exists():
        return []
    taken = OutsideUse.objects.filter(
        node=OuterRef("device__node"), device_indices__contains=[OuterRef("device__index")]
    )
    blocked = list(
        DeviceClaim.objects.filter(
            placement__allocation__cluster=cluster,
            placement__allocation__ended_at=None,
            placement__allocation__desired_state=Desired.RUN,
            placement__allocation__observed_state__in=(Observed.PENDING, Observed.STARTING),
            placement__allocation__bound_at__lt=at - BEGINS_WITHIN,
        )
        .filter(Exists(taken))
        .values_list("placement__allocation", flat=True)
        .distinct()
        .order_by("placement__allocation")
    )
    for allocation_id in blocked:
        jobs.request_displaced_stop(allocation_id=allocation_id, at=at)
    return blocked


def _settle_drain(backend: Surveying, node: Node, seen: SurveyedNode, at: datetime) -> None:
    is_drained_there = seen.is_drained and not seen.is_ours
    came_from_there = node.health_reason.startswith(DRAINED_THERE)
    try:
        if is_drained_there and node.drain_asked_at is None:
            reason = f"{DRAINED_THERE} {seen.reason}".strip()
            inventory.drain_node(node_id=node.pk, actor=None, at=at, reason=reason)
        elif node.drain_asked_at is not None and came_from_there and not is_drained_there:
            if not seen.is_drained:
                inventory.resume_node(
                    node_id=node.pk, actor=None, at=at, reason="It takes work again in its cluster."
                )
        elif node.drain_asked_at is not None and not seen.is_drained and not seen.is_down:
            backend.drain(node.name, node.health_reason)
        elif node.drain_asked_at is None and seen.is_drained and seen.is_ours:
            backend.resume(node.name)
    except DomainError:
        _log.exception("The drain of %s could not be settled", node.name)


def _settle_losses(
    cluster: Cluster, nodes: Mapping[str, Node], seen: Mapping[str, SurveyedNode], at: datetime
) -> None:
    """Have nodes looked at whose cluster says otherwise than we think: at once, not at the next round of probes."""

    def is_otherwise(node: Node) -> bool:
        is_down = node.name in seen and seen[node.name].is_down
        is_thought_down = node.health == Health.FAILED and node.health_by == HealthBy.REPORTS
        return is_down != is_thought_down and (is_down is False or node.health != Health.FAILED)

    if any(is_otherwise(node) for node in nodes.values()):
        probing.probe_cluster(cluster=cluster, at=at)


# The facility ------------------------------------------------------------------------------------------------------


# What is known of accelerators by the names that clusters give them: GiB and watts of TDP, by the makers' data sheets.
KNOWN: Final[Mapping[str, tuple[float, float]]] = {
    "v100": (32, 300), "a100": (80, 400), "a30": (24, 165), "a40": (48, 300), "l4": (24, 72), "l40s": (48, 350),
    "h100": (80, 700), "h100-sxm": (80, 700), "h200": (141, 700),
    "b200": (180, 1000), "t4": (16, 70), "mi250x": (128, 560), "mi300x": (192, 750),
}  # fmt: skip
_UNKNOWN: Final = (16.0, 300.0)


def take_facility(
    cluster: Cluster,
    survey: Survey,
    *,
    at: datetime,
    accelerator: str = "",
    known_as: Mapping[str, str] | None = None,
) -> list[str]:
    """Take the nodes of a cluster into the facility, those that are not in it yet; return what was passed over.

    Args:
        accelerator: Type of devices that the cluster has no one word for.
        known_as: Names of accelerator types by the cluster's own words for them.
    """
    notes = []
    have = set(Node.objects.values_list("name", flat=True))
    mine = set(Node.objects.filter(cluster=cluster).values_list("name", flat=True))
    rows = []
    domains = _Domains(cluster, at)
    for one in survey.nodes:
        if one.name in mine:
            continue
        if one.name in have:
            notes.append(f"{one.name}: another cluster has a node of this name.")
        elif not one.n_devices:
            notes.append(f"{one.name}: it has no accelerators.")
        else:
            word = one.accelerator or accelerator or "gpu"
            rows.append(
                inventory.NodeFacts(
                    name=one.name,
                    accelerator_type=_type_of((known_as or {}).get(word, word), at),
                    n_devices=one.n_devices,
                    cpus=one.cpus,
                    memory_gib=one.memory_gib,
                    leaf=domains.leaf(one.leaf, one.spine),
                )
            )
    if rows:
        inventory.create_nodes(cluster=cluster, rows=rows, actor=None, at=at)
    return notes


def _type_of(name: str, at: datetime) -> AcceleratorType:
    found = AcceleratorType.objects.filter(name__iexact=name).first()
    if found is not None:
        return found
    memory_gib, tdp_w = KNOWN.get(name.lower(), _UNKNOWN)
    return inventory.create_accelerator_type(name=name, tdp_w=tdp_w, memory_gib=memory_gib, actor=None, at=at)


class _Domains:
    """Leaves and spines of a cluster's own network, made as they are met."""

    def __init__(self, cluster: Cluster, at: datetime) -> None:
        self._cluster, self._at = cluster, at

    def leaf(self, leaf: str, spine: str) -> Domain | None:
        if not leaf:
            return None
        above = self._get(spine, DomainKind.SPINE, None) if spine else None
        return self._get(leaf, DomainKind.LEAF, above)

    def _get(self, name: str, kind: DomainKind, parent: Domain | None) -> Domain:
        # Switches of two clusters may be called the same.
        full = f"{self._cluster.name}/{name}"[:120]
        found = Domain.objects.filter(name=full).first()
        return found or inventory.create_domain(name=full, kind=kind, parent=parent, actor=None, at=self._at)

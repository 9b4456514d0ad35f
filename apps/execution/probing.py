"""Look at the nodes of every cluster, and report what is found as any other source of reports would."""

import logging
from datetime import datetime
from typing import Final

from apps.core.errors import OutsideError
from apps.core.locks import session_lock
from apps.execution.backends.base import NodeReport, ProbedNode, Probing
from apps.execution.backends.choice import backend_of
from apps.inventory import health, reports
from apps.inventory.models import Cluster, Node

_LOCK_CLASS: Final = 0x9106  # first half of the advisory lock's key; the second is the cluster's id
_log = logging.getLogger(__name__)


def probe_all(*, at: datetime) -> None:
    """Probe every cluster that is on. Trouble with one does not keep the others waiting."""
    for cluster in Cluster.objects.filter(is_enabled=True).order_by("id"):
        try:
            probe_cluster(cluster=cluster, at=at)
        except OutsideError as error:
            # Losing contact is no finding; the loop that runs jobs notes it.
            _log.info("Cluster %s could not be probed: %s", cluster.name, error.message)
        except Exception:
            _log.exception("Cluster %s could not be probed", cluster.name)


def probe_cluster(*, cluster: Cluster, at: datetime) -> list[int]:
    """Probe one cluster, unless somebody is at it; return the nodes (ids) whose health changed.

    Raises OutsideError if the cluster does not answer.
    """
    backend = backend_of(cluster)
    if not isinstance(backend, Probing):
        return []
    with session_lock(_LOCK_CLASS, cluster.pk) as is_ours:
        if not is_ours:
            return []
        nodes = list(Node.objects.filter(cluster=cluster).select_related("accelerator_type").order_by("id"))
        found = backend.probe([_asked(node) for node in nodes], at=at)
        ids = {node.name: node.pk for node in nodes}
        told = [_report(one, ids[one.node], at) for one in found if one.node in ids]
        return reports.take_reports(reports=told, source=reports.PROBE, actor=None, at=at)


def _asked(node: Node) -> ProbedNode:
    # What has no memory of its own is a slot of the machine, not a device in it.
    return ProbedNode(
        name=node.name, n_devices=node.n_devices, has_accelerators=node.accelerator_type.memory_gib > 0
    )


def _report(found: NodeReport, node_id: int, at: datetime) -> reports.Report:
    checks = tuple(
        reports.Check(name=one.name[:60], ok=one.ok, value=one.value, message=one.message[:300])
        for one in found.checks[: health.MOST_CHECKS]
    )
    return reports.Report(node_id=node_id, at=at, status=found.status, checks=checks)

"""What pages show of clusters: how many nodes and runs, and what others do there."""

from dataclasses import dataclass

from django.db.models import Count, F, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from apps.core.errors import NotFound
from apps.inventory.models import Cluster, Health, OutsideUse
from apps.jobs.models import Allocation


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster and what is in it."""

    cluster: Cluster
    n_nodes: int
    n_devices: int
    n_away: int  # nodes that take no new work
    n_runs: int
    n_foreign: int  # pieces of work there that are not ours


def _rows() -> "QuerySet[Cluster]":
    runs = Allocation.objects.filter(cluster=OuterRef("pk"), ended_at=None).order_by().values("cluster")
    foreign = OutsideUse.objects.filter(node__cluster=OuterRef("pk")).order_by().values("node__cluster")
    return Cluster.objects.annotate(
        n_nodes=Count("nodes", distinct=True),
        n_away=Count("nodes", distinct=True, filter=~Q(nodes__health__in=[Health.HEALTHY, Health.SUSPECT])),
        n_runs=Coalesce(Subquery(runs.annotate(n=Count("pk")).values("n"), output_field=IntegerField()), 0),
        n_foreign=Coalesce(
            Subquery(
                foreign.annotate(n=Count("key", distinct=True)).values("n"), output_field=IntegerField()
            ),
            0,
        ),
        n_devices=Coalesce(
            Subquery(
                Cluster.objects.filter(pk=OuterRef("pk")).annotate(n=Count("nodes__devices")).values("n"),
                output_field=IntegerField(),
            ),
            0,
        ),
    ).order_by("name")


def _row(cluster: Cluster) -> ClusterRow:
    names = ("n_nodes", "n_devices", "n_away", "n_runs", "n_foreign")
    return ClusterRow(cluster, *(getattr(cluster, name) for name in names))


def cluster_rows() -> list[ClusterRow]:
    """Every cluster, by name. One query."""
    return [_row(cluster) for cluster in _rows()]


def cluster_named(cluster_id: int) -> ClusterRow:
    """One of them; raises NotFound."""
    found = _rows().filter(pk=cluster_id).first() if cluster_id < 2**63 else None
    if found is None:
        raise NotFound("There is no such cluster.")
    return _row(found)


def foreign_work(cluster: Cluster, *, most: int) -> list[OutsideUse]:
    """What others run there, the longest first, with its node."""
    rows = OutsideUse.objects.filter(node__cluster=cluster).select_related("node")
    return list(rows.order_by(F("since_at").asc(nulls_last=True), "key", "node__name")[:most])

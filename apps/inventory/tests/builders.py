"""A small facility that names only what matters."""

from typing import Any

from apps.inventory import services
from apps.inventory.models import Cluster, Domain, Node
from apps.inventory.services import NodeFacts
from apps.teams.tests.builders import NOON, kind


def domain(name: str, of_kind: str, parent: Domain | None = None) -> Domain:
    return services.create_domain(name=name, kind=of_kind, parent=parent, actor=None, at=NOON)


def cluster(name: str = "hall") -> Cluster:
    found = Cluster.objects.filter(name=name).first()
    return found or services.create_cluster(name=name, backend="simulated", actor=None, at=NOON)


def node(name: str = "n1", n_devices: int = 8, of: str = "H100", **more: Any) -> Node:
    facts = NodeFacts(name=name, accelerator_type=kind(of), n_devices=n_devices, **more)
    return services.create_node(cluster=cluster(), facts=facts, actor=None, at=NOON)

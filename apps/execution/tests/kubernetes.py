"""A cluster of ours in front of a Kubernetes: the double, or a real one that KUBECONFIG names."""

from typing import Any

from apps.execution.kubernetes_models import KubernetesConnection, seal_token
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster


def connected(url: str, *, name: str = "kubernetes", **more: Any) -> Cluster:
    """A cluster that is connected to this Kubernetes."""
    cluster = Cluster.objects.create(name=name, backend=Kind.KUBERNETES)
    KubernetesConnection.objects.create(
        cluster=cluster,
        **{
            "api_url": url,
            "sealed_token": seal_token("of-no-worth"),
            "namespace": "default",
            "image": "busybox",
            **more,
        },
    )
    return cluster

"""A cluster of ours in front of a real Slurm."""

import base64
from typing import Any

from apps.execution.slurm_models import SlurmConnection, seal
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster
from scripts.slurm_cluster import SlurmCluster


def connected(slurm: SlurmCluster, *, name: str = "slurm", **more: Any) -> Cluster:
    """A cluster that is connected to this Slurm."""
    cluster = Cluster.objects.create(name=name, backend=Kind.SLURM)
    SlurmConnection.objects.create(
        cluster=cluster,
        **{
            "rest_url": slurm.rest_url,
            "user_name": "root",
            "sealed_secret": seal(base64.b64encode(slurm.jwt_key).decode()),
            "shared_dir": str(slurm.shared),
            "slurm_conf": str(slurm.conf),
            **more,
        },
    )
    return cluster

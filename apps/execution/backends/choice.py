"""Which backend stands behind a cluster: the one place that knows all of them."""

import base64
import binascii
from pathlib import Path

from django.conf import settings
from django.db import connection

from apps.core.errors import OutsideError
from apps.core.sealing import Unreadable
from apps.execution.backends.base import Backend
from apps.execution.backends.kubernetes.backend import KubernetesBackend
from apps.execution.backends.kubernetes.backend import Place as KubernetesPlace
from apps.execution.backends.kubernetes.wire import Address as KubernetesAddress
from apps.execution.backends.local import DEFAULT_LOG_LIMIT_BYTES, LocalBackend
from apps.execution.backends.simulated import SimulatedBackend
from apps.execution.backends.slurm.backend import Place, SlurmBackend
from apps.execution.backends.slurm.wire import Address
from apps.execution.kubernetes_models import KubernetesConnection
from apps.execution.slurm_models import SlurmConnection, SlurmCredential
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster


def backend_of(cluster: Cluster) -> Backend:
    """The backend of a cluster. Raises OutsideError for a kind that cannot be used yet."""
    match cluster.backend:
        case Kind.LOCAL:
            return local_backend_of(cluster)
        case Kind.SIMULATED:
            return SimulatedBackend(cluster.pk)
        case Kind.SLURM:
            return SlurmBackend(slurm_place_of(cluster))
        case Kind.KUBERNETES:
            return KubernetesBackend(kubernetes_place_of(cluster), is_watching=True)
        case _:
            raise OutsideError(f"Clusters of kind {cluster.backend} are not supported yet.", permanent=True)


def local_backend_of(cluster: Cluster) -> LocalBackend:
    """This machine. `config` may name another `spool` folder, and `log_limit_bytes` a stream."""
    named = cluster.config.get("spool")
    spool = Path(named) if isinstance(named, str) and named.startswith("/") else _spool() / str(cluster.pk)
    limit = cluster.config.get("log_limit_bytes")
    return LocalBackend(
        spool,
        log_limit_bytes=limit if isinstance(limit, int) and limit > 0 else DEFAULT_LOG_LIMIT_BYTES,
    )


def slurm_place_of(cluster: Cluster) -> Place:
    """How a Slurm is reached. Raises OutsideError where nobody said, or the credential cannot be opened."""
    found = SlurmConnection.objects.filter(cluster=cluster).first()
    if found is None:
        raise OutsideError(f"Nobody said how the Slurm of {cluster.name} is reached.", permanent=True)
    return Place(
        cluster_id=cluster.pk,
        address=slurm_address_of(found),
        shared_dir=Path(found.shared_dir),
        mark=found.mark,
        partition=found.partition,
    )


def kubernetes_place_of(cluster: Cluster) -> KubernetesPlace:
    """How a Kubernetes is reached. Raises OutsideError where nobody said, or the token cannot be opened."""
    found = KubernetesConnection.objects.filter(cluster=cluster).first()
    if found is None:
        raise OutsideError(f"Nobody said how the Kubernetes of {cluster.name} is reached.", permanent=True)
    try:
        token = found.token
    except Unreadable:
        raise OutsideError("The token of this Kubernetes cannot be opened: enter it again.") from None
    return KubernetesPlace(
        cluster_id=cluster.pk,
        address=KubernetesAddress(
            api_url=found.api_url, token=token, namespace=found.namespace, ca_pem=found.ca_pem
        ),
        mark=found.mark,
        image=found.image,
        resource=found.resource,
        labels=found.labels,
    )


def slurm_address_of(found: SlurmConnection) -> Address:
    """The address with its credential; raises OutsideError where that cannot be opened."""
    try:
        secret = found.secret
        is_key = found.credential == SlurmCredential.KEY
        key = base64.b64decode(secret, validate=True) if is_key else None
    except (Unreadable, binascii.Error):
        raise OutsideError("The credential of this Slurm cannot be opened: enter it again.") from None
    return Address(
        rest_url=found.rest_url,
        user_name=found.user_name,
        key=key,
        token="" if is_key else secret,
        slurm_conf=found.slurm_conf,
    )


def _spool() -> Path:
    """The folder for this database alone: another one counts its allocations from 1 as well."""
    root = Path(getattr(settings, "SWITCHYARD_SPOOL", settings.VAR_DIR / "spool"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT system_identifier FROM pg_control_system()), oid FROM pg_database"
            " WHERE datname = current_database()"
        )
        server, database = cursor.fetchone()
    return root / f"{server}-{database}"

"""Which backend stands behind a cluster: the one place that knows all of them."""

from pathlib import Path

from django.conf import settings
from django.db import connection

from apps.core.errors import OutsideError
from apps.execution.backends.base import Backend
from apps.execution.backends.local import DEFAULT_LOG_LIMIT_BYTES, LocalBackend
from apps.execution.backends.simulated import SimulatedBackend
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster


def backend_of(cluster: Cluster) -> Backend:
    """The backend of a cluster. Raises OutsideError for a kind that cannot be used yet."""
    match cluster.backend:
        case Kind.LOCAL:
            return local_backend_of(cluster)
        case Kind.SIMULATED:
            return SimulatedBackend(cluster.pk)
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

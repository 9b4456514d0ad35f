"""Health, for probes and for Prometheus; open to all, so it says nothing about anybody's work."""

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from apps.core import metrics as core_metrics
from apps.core import presence

_migrated = False


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Everything works: the database answers and is migrated, and each loop is there."""
    missing = _what_is_missing()
    if missing:
        return JsonResponse({"status": "not ready", "missing": missing}, status=503)
    return JsonResponse({"status": "ready"})


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Counts and gauges, in Prometheus' text format."""
    try:
        text = generate_latest(core_metrics.registry)
    except DatabaseError:
        return HttpResponse("the database does not answer\n", status=503, content_type="text/plain")
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _what_is_missing() -> list[str]:
    try:
        if not _is_migrated():
            return ["migrations"]
        return sorted(set(settings.SWITCHYARD_READY_ROLES) - presence.present_roles())
    except DatabaseError:
        return ["database"]


def _is_migrated() -> bool:
    # Once it is, it stays so for this process: its code does not change.
    global _migrated
    if not _migrated:
        executor = MigrationExecutor(connection)
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return _migrated

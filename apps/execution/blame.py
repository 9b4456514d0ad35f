"""Which ends speak against the nodes they happened on, and against which of these."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from apps.execution.backends.base import EndReason, Seen
from apps.execution.reconcile import ReportEnded
from apps.inventory import health
from apps.inventory.failures import Failure, failed_nodes, note_failure
from apps.inventory.models import FailureKind
from apps.jobs.models import Allocation, Placement


def kind_of(action: ReportEnded, run: Seen | None, ran_s: float | None) -> FailureKind | None:
    """What sort of failure of its nodes an end may be; None if it is none.

    Args:
        run: What the backend saw; None: nothing is known of it but the report.
        ran_s: How long it ran; None: it never did.
    """
    if run is None:
        return None
    match action.outcome, run.reason:
        case "start_failed", EndReason.START_FAILED:
            return FailureKind.START_FAILED
        # One that was stopped before it began was given up or taken back, and its cluster is to blame, not a node.
        case "node_lost", EndReason.LOST:
            return FailureKind.NODE_LOST
        case "node_lost", EndReason.NEVER_STARTED if ran_s is not None:
            return FailureKind.NODE_LOST  # it ran, and its cluster has lost all trace of it
        case "failed", EndReason.EXITED if ran_s is not None and ran_s < health.EARLY_END_S:
            return FailureKind.EARLY_END
    return None


COUNTED: Final = ("start_failed", "node_lost", "failed")  # other ends are nobody's fault


def count_against_nodes(action: ReportEnded, run: Seen | None, at: datetime) -> None:
    """Count an end that was just told to the ledger against the nodes whose fault it may be."""
    if action.outcome not in COUNTED:
        return
    facts = (
        Allocation.objects.filter(pk=action.allocation_id, ended_at__isnull=False)
        .values_list("job_id", "job__array_id", "job__user_id", "observed_started_at", "ended_at")
        .first()
    )
    if facts is None:
        return
    job_id, array_id, user_id, started_at, ended_at = facts
    assert ended_at is not None
    ran_s = None if started_at is None else (ended_at - started_at).total_seconds()
    node_ids = _nodes_of(action.allocation_id)
    down = failed_nodes(node_ids) if action.outcome == "node_lost" else frozenset()
    kind = FailureKind.NODE_LOST if down else kind_of(action, run, ran_s)
    if kind is None:
        return
    # What the backend names is better than what we guess.
    named = _named(action.allocation_id, run.nodes_at_fault) if run is not None else frozenset()
    certain = named or down
    note_failure(
        failure=Failure(
            allocation_id=action.allocation_id,
            job_id=job_id,
            origin=origin_of(kind, job_id, array_id, user_id),
            kind=kind,
            at=ended_at,
            node_ids=certain or node_ids,
            is_certain=bool(certain),
        ),
        at=at,
    )


def count_refusal(allocation: Allocation, at: datetime) -> None:
    """Count a launch that was refused again and again until it was given up."""
    job = allocation.job
    note_failure(
        failure=Failure(
            allocation_id=allocation.pk,
            job_id=job.pk,
            origin=origin_of(FailureKind.START_FAILED, job.pk, job.array_id, job.user_id),
            kind=FailureKind.START_FAILED,
            at=at,
            node_ids=_nodes_of(allocation.pk),
        ),
        at=at,
    )


def origin_of(kind: FailureKind, job_id: int, array_id: int | None, user_id: int) -> str:
    """What is to blame if it is not a node.

    A command that fails soon is most often a mistake of whoever submitted it, and most often not made once.
    """
    if kind == FailureKind.EARLY_END:
        return f"user:{user_id}"
    return f"job:{job_id}" if array_id is None else f"array:{array_id}"


def _nodes_of(allocation_id: int) -> frozenset[int]:
    return frozenset(Placement.objects.filter(allocation=allocation_id).values_list("node_id", flat=True))


def _named(allocation_id: int, names: Sequence[str]) -> frozenset[int]:
    """Nodes of the allocation by these names: a backend blames no others."""
    if not names:
        return frozenset()
    rows = Placement.objects.filter(allocation=allocation_id, node__name__in=names)
    return frozenset(rows.values_list("node_id", flat=True))

"""Carries power caps to the agents that keep them, and tells the ledger what they answer.

A loop of its own, on the queue of power control: nothing that waits for launches may keep a cap waiting. May run
twice, late, or after a crash: orders carry the fence of who asked, and an agent holds what it has until its lease ends.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db.models import prefetch_related_objects

from apps.core.errors import OutsideError
from apps.core.locks import session_lock
from apps.execution.backends.base import Backend, CapOrder, Capping, CapState
from apps.execution.backends.choice import backend_of
from apps.execution.services import pace_of
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster
from apps.jobs import services as jobs
from apps.jobs.models import PowerCap

HEARD_EVERY: Final = timedelta(seconds=10)  # an answer that says nothing new is noted so often
_CAPS_LOCK: Final = 0x5EEF
_log = logging.getLogger(__name__)


def carry_out_caps(*, at: datetime) -> int:
    """Send what is asked and not set yet, on every cluster; return how many orders went out."""
    rows = list(
        PowerCap.objects.filter(allocation__ended_at=None)
        .select_related("allocation__job")
        .order_by("allocation_id")
    )
    n_sent = 0
    by_cluster: dict[int, list[PowerCap]] = {}
    for row in rows:
        by_cluster.setdefault(row.allocation.cluster_id, []).append(row)
    kinds = (Kind.LOCAL, Kind.SIMULATED, Kind.SLURM, Kind.KUBERNETES)
    for cluster in Cluster.objects.filter(pk__in=by_cluster, backend__in=kinds).order_by("pk"):
        with session_lock(_CAPS_LOCK, cluster.pk) as is_ours:
            if not is_ours:
                continue
            try:
                n_sent += _carry_out(backend_of(cluster), by_cluster[cluster.pk], at)
            except OutsideError as error:
                # The caps stay where they are; the ledger counts what was heard last.
                _log.warning("Cluster %s: %s", cluster.name, error.message)
            except Exception:
                _log.exception("The caps of cluster %s could not be looked after", cluster.name)
    return n_sent


def _carry_out(backend: Backend, rows: Sequence[PowerCap], at: datetime) -> int:
    if not isinstance(backend, Capping):
        return 0
    seen = {state.allocation_id: state for state in backend.list_caps(at=at)}
    news = [row for row in rows if _is_news(row, seen.get(row.allocation_id), at)]
    # Most caps are as they are asked to be: only of the others it matters what their jobs run on.
    prefetch_related_objects(news, "allocation__placements__node__accelerator_type")
    orders = [order_of(row) for row in news]
    if orders:
        backend.set_caps(orders, at=at)
        seen = {state.allocation_id: state for state in backend.list_caps(at=at)}
    told = [
        jobs.CapSeen(
            allocation_id=state.allocation_id,
            share=state.share,
            fence=state.fence,
            lease_until_at=state.lease_until_at,
            is_recorded=state.is_recorded,
            message=state.message,
        )
        for row in rows
        if (state := seen.get(row.allocation_id)) is not None and _says_something(row, state, at)
    ]
    if told:
        jobs.report_caps(seen=told, at=at)
    return len(orders)


def _is_news(row: PowerCap, state: CapState | None, at: datetime) -> bool:
    if row.lease_until_at is not None and row.lease_until_at <= at:
        return False  # the agent has gone back by itself, and an order that is over changes nothing
    if state is None:
        return True
    return (
        abs(state.share - row.desired_share) > 1e-9
        or state.fence < row.fence
        or state.lease_until_at != row.lease_until_at
    )


def _says_something(row: PowerCap, state: CapState, at: datetime) -> bool:
    is_same = (
        row.observed_share is not None
        and abs(row.observed_share - state.share) <= 1e-9
        and row.observed_fence == state.fence
        and row.observed_lease_until_at == state.lease_until_at
        and row.is_recorded == state.is_recorded
        and row.message == state.message[:500]
    )
    return not is_same or row.observed_at is None or at - row.observed_at >= HEARD_EVERY


def order_of(row: PowerCap) -> CapOrder:
    """The order that carries out a cap."""
    return CapOrder(
        allocation_id=row.allocation_id,
        share=row.desired_share,
        fence=row.fence,
        lease_until_at=row.lease_until_at,
        back_share=row.back_share,
        pace=pace_of(row.allocation, row.desired_share),
        back_pace=pace_of(row.allocation, row.back_share),
    )

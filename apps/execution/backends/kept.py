"""What backends do alike whose clusters forget: each keeps a row for every run, until it is forgotten and pruned."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Generic, TypeVar

from django.db import connection, transaction
from django.db.models import Max

from apps.execution.backends.base import CapOrder, CapState, EndReason, StopOrder
from apps.execution.kubernetes_models import KubernetesRun
from apps.execution.slurm_models import SlurmRun

Row = TypeVar("Row", SlurmRun, KubernetesRun)


class KeptRuns(Generic[Row]):
    """The rows of one cluster."""

    _runs: type[Row]
    _lock_class: ClassVar[int]  # first half of an advisory key; the second is the cluster's id
    _cluster_id: int

    def forget(self, allocation_ids: Sequence[int]) -> None:
        self._runs.objects.filter(
            cluster=self._cluster_id, allocation_id__in=allocation_ids, ended_at__isnull=False
        ).update(is_forgotten=True)

    # Caps

    @transaction.atomic
    def set_caps(self, orders: Sequence[CapOrder], *, at: datetime) -> None:
        """Only written down: what a run draws does not change."""
        self._lock()
        rows = self._rows([order.allocation_id for order in orders])
        for order in orders:
            row = rows.get(order.allocation_id)
            if row is None or row.ended_at is not None or order.fence < row.cap_fence:
                continue
            row.cap_share, row.cap_fence = order.share, order.fence
            row.cap_until_at, row.cap_back_share = order.lease_until_at, order.back_share
            row.save(update_fields=["cap_share", "cap_fence", "cap_until_at", "cap_back_share"])

    def list_caps(self, *, at: datetime) -> list[CapState]:
        rows = self._runs.objects.filter(cluster=self._cluster_id, ended_at=None).exclude(cap_share=None)
        found = []
        for row in rows.order_by("allocation_id"):
            is_over = row.cap_until_at is not None and row.cap_until_at <= at
            found.append(
                CapState(
                    allocation_id=row.allocation_id,
                    share=row.cap_back_share if is_over else float(row.cap_share or 1.0),
                    fence=row.cap_fence,
                    lease_until_at=row.cap_until_at,
                    is_recorded=True,
                    message="Nothing sets caps on the devices of this cluster.",
                )
            )
        return found

    # Within

    def _mark(self, stop: StopOrder, at: datetime) -> None:
        """Leave the mark of a stop that came before the launch."""
        self._runs.objects.create(
            cluster_id=self._cluster_id,
            allocation_id=stop.allocation_id,
            job_id=stop.job_id,
            fence=stop.fence,
            claimed_at=at,
            ended_at=at,
            reason=EndReason.NEVER_STARTED,
        )

    @staticmethod
    def _ask(row: Row, grace_s: float, at: datetime, *, is_overtime: bool = False) -> None:
        """Write down that it is to end, and when by force. The earliest force counts."""
        force_at = at + timedelta(seconds=grace_s)
        if row.stop_asked_at is None:
            row.stop_asked_at, row.force_at, row.is_overtime = at, force_at, is_overtime
        elif row.force_at is None or force_at < row.force_at:
            row.force_at = force_at
        else:
            return
        row.save(update_fields=["stop_asked_at", "force_at", "is_overtime"])

    @staticmethod
    def _is_overdue(row: Row, at: datetime) -> bool:
        if row.stop_asked_at is not None or row.started_at is None or row.time_limit_s is None:
            return False
        return row.started_at + timedelta(seconds=row.time_limit_s) <= at

    def _rows(self, allocation_ids: Collection[int]) -> dict[int, Row]:
        rows = self._runs.objects.filter(cluster=self._cluster_id, allocation_id__in=allocation_ids)
        return {row.allocation_id: row for row in rows}

    def _newest_fences(self, job_ids: Collection[int]) -> dict[int, int]:
        rows = self._runs.objects.filter(cluster=self._cluster_id, job_id__in=job_ids)
        return dict(rows.values_list("job_id").annotate(Max("fence")))

    def _lock(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [self._lock_class, self._cluster_id])

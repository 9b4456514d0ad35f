"""Plays moves in real time: nothing is carried, and how far one is follows from one row and the clock.

For the stores of simulated halls. It arrives when it was expected to, and says that it is simulated.
"""

from datetime import datetime

from apps.staging.models import SimulatedMove
from apps.staging.movers.base import MoveOrder, MoveState, Progress


class SimulatedMover:
    """The contract, kept by rows of `SimulatedMove`."""

    is_simulated = True

    def handle_of(self, key: str) -> str:
        return key

    def start(self, order: MoveOrder, *, at: datetime) -> str:
        SimulatedMove.objects.get_or_create(
            key=order.key,
            defaults={
                "begun_at": order.begins_at,
                "arrives_at": max(order.begins_at, order.arrives_at),
                "n_bytes": order.n_bytes,
            },
        )
        return order.key

    def poll(self, handle: str, *, at: datetime) -> Progress:
        row = SimulatedMove.objects.filter(key=handle).first()
        if row is None:
            return Progress(state=MoveState.UNKNOWN)
        if row.cancelled_at is not None:
            return Progress(state=MoveState.CANCELLED)
        duration_s = (row.arrives_at - row.begun_at).total_seconds()
        done = min((at - row.begun_at).total_seconds() / duration_s, 1.0) if duration_s > 0 else 1.0
        return Progress(
            state=MoveState.DONE if at >= row.arrives_at else MoveState.RUNNING,
            bytes_done=int(row.n_bytes * max(done, 0.0)),
            bytes_total=row.n_bytes,
            bytes_per_s=row.n_bytes / duration_s if duration_s > 0 else None,
        )

    def cancel(self, handle: str, *, at: datetime) -> None:
        row, _ = SimulatedMove.objects.get_or_create(
            key=handle, defaults={"begun_at": at, "arrives_at": at, "n_bytes": 0, "cancelled_at": at}
        )
        if row.cancelled_at is None and at < row.arrives_at:
            row.cancelled_at = at
            row.save(update_fields=["cancelled_at"])

    def prune(self, *, before: datetime) -> int:
        """Forget moves that were over before this time; return how many."""
        return SimulatedMove.objects.filter(arrives_at__lt=before).delete()[0]

"""Plays jobs in real time: nothing runs, and what is seen follows from one row a run and the clock.

A simulated replica does as it is told: it stops when asked to, at once or when its last checkpoint is written, and
never fails. Under a power cap it does less; it goes back by itself when the lease of the cap is over.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.db.models import Max

from apps.core import clock
from apps.core.errors import OutsideError
from apps.execution.backends.base import (
    CapOrder,
    CapState,
    EndReason,
    LogChunk,
    NodeCheck,
    NodeReport,
    Order,
    ProbedNode,
    RunState,
    Seen,
    StaleFence,
    StopOrder,
    Stream,
)
from apps.execution.models import SimulatedRun
from apps.execution.orders import LONGEST_S
from apps.inventory.models import Cluster

# First half of the advisory lock's key; the second is the cluster's id.
_LOCK_CLASS = 0x51AD


class _Facts(NamedTuple):
    """What of a run decides how it looks."""

    allocation_id: int
    job_id: int
    fence: int
    launched_at: datetime | None
    play_s: float
    time_limit_s: float | None
    stop_at: datetime | None
    save_s: float
    done_s: float
    pace: float
    paced_at: datetime | None
    cap_until_at: datetime | None
    back_pace: float


class SimulatedBackend:
    """The contract, kept by rows of `SimulatedRun`."""

    def __init__(self, cluster_id: int) -> None:
        self._cluster_id = cluster_id

    @transaction.atomic
    def launch(self, orders: Sequence[Order], *, at: datetime) -> dict[int, OutsideError]:
        self._lock()
        known = set(self._rows([order.allocation_id for order in orders]))
        newest = dict(
            SimulatedRun.objects.filter(
                cluster=self._cluster_id, job_id__in=[order.job_id for order in orders]
            )
            .values_list("job_id")
            .annotate(Max("fence"))
        )
        refused: dict[int, OutsideError] = {}
        fresh = []
        for order in orders:
            if order.allocation_id in known:
                continue
            if order.fence <= newest.get(order.job_id, 0):
                refused[order.allocation_id] = StaleFence(
                    job_id=order.job_id, fence=order.fence, newest=newest[order.job_id]
                )
                continue
            newest[order.job_id] = order.fence
            fresh.append(
                SimulatedRun(
                    cluster_id=self._cluster_id,
                    allocation_id=order.allocation_id,
                    job_id=order.job_id,
                    fence=order.fence,
                    n_replicas=len(order.replicas),
                    launched_at=at,
                    play_s=order.play_s,
                    time_limit_s=order.time_limit_s,
                    save_s=order.save_s,
                    **_capped(order, at),
                )
            )
        SimulatedRun.objects.bulk_create(fresh)
        return refused

    @transaction.atomic
    def stop(self, stops: Sequence[StopOrder], *, at: datetime) -> None:
        self._lock()
        rows = self._rows([stop.allocation_id for stop in stops])
        for stop in stops:
            row = rows.get(stop.allocation_id)
            if row is None:
                SimulatedRun.objects.create(
                    cluster_id=self._cluster_id,
                    allocation_id=stop.allocation_id,
                    job_id=stop.job_id,
                    fence=stop.fence,
                    stop_at=at,
                )
            elif row.fence == stop.fence:
                _ask(row, stop, at)

    @transaction.atomic
    def set_limits(self, limits: Mapping[int, float | None], *, at: datetime) -> None:
        self._lock()
        for row in self._rows(list(limits)).values():
            if _look(row, at).state != RunState.ENDED:
                row.time_limit_s = limits[row.allocation_id]
                row.save(update_fields=["time_limit_s"])

    @transaction.atomic
    def set_caps(self, orders: Sequence[CapOrder], *, at: datetime) -> None:
        self._lock()
        rows = self._rows([order.allocation_id for order in orders])
        for order in orders:
            row = rows.get(order.allocation_id)
            if row is None or order.fence < row.cap_fence or _look(row, at).state == RunState.ENDED:
                continue
            row.done_s, row.paced_at = _done_s(row, at), at
            row.cap_share, row.cap_fence, row.pace = order.share, order.fence, order.pace
            row.cap_until_at = order.lease_until_at
            row.cap_back_share, row.back_pace = order.back_share, order.back_pace
            row.save()

    def list_caps(self, *, at: datetime) -> list[CapState]:
        rows = SimulatedRun.objects.filter(cluster=self._cluster_id, is_forgotten=False).exclude(
            cap_share=None
        )
        found = []
        for row in rows.order_by("allocation_id"):
            if _look(row, at).state == RunState.ENDED:
                continue
            is_over = row.cap_until_at is not None and row.cap_until_at <= at
            found.append(
                CapState(
                    allocation_id=row.allocation_id,
                    share=row.cap_back_share if is_over else float(row.cap_share or 1.0),
                    fence=row.cap_fence,
                    lease_until_at=row.cap_until_at,
                )
            )
        return found

    def list_seen(self, *, at: datetime) -> list[Seen]:
        rows = SimulatedRun.objects.filter(cluster=self._cluster_id, is_forgotten=False)
        # Plain tuples: a hall plays thousands of runs, and this is asked every second.
        facts = rows.order_by("allocation_id").values_list(*_Facts._fields)
        return [_look(_Facts._make(row), at) for row in facts]

    def forget(self, allocation_ids: Sequence[int]) -> None:
        at = clock.now()
        ended = [
            row.pk for row in self._rows(allocation_ids).values() if _look(row, at).state == RunState.ENDED
        ]
        SimulatedRun.objects.filter(pk__in=ended).update(is_forgotten=True)

    def read_log(self, allocation_id: int, *, rank: int, stream: Stream, offset: int, limit: int) -> LogChunk:
        row = self._rows([allocation_id]).get(allocation_id)
        if row is None:
            return LogChunk("", 0, is_complete=False)
        seen = _look(row, clock.now())
        text = _log(row, seen) if stream == "stdout" and 0 <= rank < row.n_replicas else ""
        start = min(max(offset, 0), len(text))  # ASCII: bytes are characters
        end = min(start + max(limit, 1), len(text))
        return LogChunk(text[start:end], end, is_complete=seen.state == RunState.ENDED and end == len(text))

    def probe(self, nodes: Sequence[ProbedNode], *, at: datetime) -> list[NodeReport]:
        """All is well, but for what the cluster's configuration plays: `{"faults": {node: {check: message}}}`."""
        config = Cluster.objects.values_list("config", flat=True).filter(pk=self._cluster_id).first() or {}
        faults = config.get("faults")
        played = faults if isinstance(faults, dict) else {}
        return [NodeReport(node=node.name, checks=_played(played.get(node.name))) for node in nodes]

    def _rows(self, allocation_ids: Sequence[int]) -> dict[int, SimulatedRun]:
        rows = SimulatedRun.objects.filter(cluster=self._cluster_id, allocation_id__in=allocation_ids)
        return {row.allocation_id: row for row in rows}

    def _lock(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK_CLASS, self._cluster_id])


def _played(faults: object) -> tuple[NodeCheck, ...]:
    if not isinstance(faults, dict):
        return (NodeCheck("simulated", ok=True),)
    return tuple(NodeCheck(str(name), ok=False, message=str(said)) for name, said in sorted(faults.items()))


def _capped(order: Order, at: datetime) -> dict[str, Any]:
    """What is kept of a run that starts under a cap: nobody but who controls power takes that off again."""
    if order.cap_share >= 1.0:
        return {}
    paces = {"pace": order.pace, "back_pace": order.pace, "paced_at": at}
    return {"cap_share": order.cap_share, "cap_back_share": order.cap_share, **paces}


def _ask(row: SimulatedRun, stop: StopOrder, at: datetime) -> None:
    """Note when it will have left: after its checkpoint, or at once where the grace is too short for one."""
    leaves_at = at + timedelta(seconds=row.save_s if row.save_s <= stop.grace_s else 0.0)
    if row.stop_at is None or leaves_at < row.stop_at:
        row.stop_at = leaves_at
        row.save(update_fields=["stop_at"])


def _done_s(row: SimulatedRun | _Facts, at: datetime) -> float:
    """Seconds of its play that are done: at its pace, and at that from before once the lease of a cap is over."""
    if row.launched_at is None:
        return 0.0
    since_at = row.paced_at or row.launched_at
    until_at = at if row.cap_until_at is None else min(at, max(row.cap_until_at, since_at))
    paced_s = max(0.0, (until_at - since_at).total_seconds())
    after_s = max(0.0, (at - max(until_at, since_at)).total_seconds())
    return row.done_s + row.pace * paced_s + row.back_pace * after_s


def _plays_until(row: SimulatedRun | _Facts) -> datetime:
    """When all of its play is done."""
    assert row.launched_at is not None
    since_at, left_s = row.paced_at or row.launched_at, max(0.0, row.play_s - row.done_s)
    if row.cap_until_at is not None:
        capped_s = max(0.0, (row.cap_until_at - since_at).total_seconds())
        if left_s > row.pace * capped_s:
            rest_s = (left_s - row.pace * capped_s) / row.back_pace
            return since_at + timedelta(seconds=min(capped_s + rest_s, LONGEST_S))
    return since_at + timedelta(seconds=min(left_s / row.pace, LONGEST_S))


def _look(row: SimulatedRun | _Facts, at: datetime) -> Seen:
    """What a run looks like at a time."""
    ends: list[tuple[datetime, int, EndReason, int]] = []
    if row.launched_at is None:
        assert row.stop_at is not None
        ended_at, reason, exit_code = row.stop_at, EndReason.NEVER_STARTED, None
        return _seen(row, RunState.ENDED, ended_at=ended_at, reason=reason, exit_code=exit_code)
    # Of two ends at one time the kinder counts.
    ends.append((_plays_until(row), 0, EndReason.EXITED, 0))
    if row.stop_at is not None:
        ends.append((max(row.stop_at, row.launched_at), 1, EndReason.STOPPED, 143))
    if row.time_limit_s is not None:
        ends.append((row.launched_at + timedelta(seconds=row.time_limit_s), 2, EndReason.TIME_LIMIT, 143))
    ended_at, _, reason, exit_code = min(ends)
    if ended_at > at:
        return _seen(row, RunState.RUNNING)
    return _seen(row, RunState.ENDED, ended_at=ended_at, reason=reason, exit_code=exit_code)


def _seen(
    row: SimulatedRun | _Facts,
    state: RunState,
    *,
    ended_at: datetime | None = None,
    reason: EndReason | None = None,
    exit_code: int | None = None,
) -> Seen:
    return Seen(
        allocation_id=row.allocation_id,
        job_id=row.job_id,
        fence=row.fence,
        state=state,
        started_at=row.launched_at,
        ended_at=ended_at,
        time_limit_s=row.time_limit_s,
        exit_code=exit_code,
        reason=reason,
    )


def _log(row: SimulatedRun, seen: Seen) -> str:
    """Text that only ever grows, so that offsets stay true."""
    if row.launched_at is None:
        return ""
    text = (
        "This job is played by a simulated cluster: no command runs, and there is no other output.\n"
        f"{row.launched_at:%Y-%m-%d %H:%M:%SZ} started; it will run for {row.play_s:.0f} s unless it is stopped.\n"
    )
    if seen.ended_at is not None:
        text += f"{seen.ended_at:%Y-%m-%d %H:%M:%SZ} ended: {seen.reason}.\n"
    return text

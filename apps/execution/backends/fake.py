"""A backend without an outside world: tests and other rooms move its runs by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

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


class FakeBackend:
    """Runs are rows in memory; a launched run starts at once, and ends when it is told to.

    `is_away` plays a lost contact, `is_deaf` runs that do not listen to a stop, `launches` counts what
    really began.
    """

    def __init__(self) -> None:
        self.runs: dict[int, Seen] = {}
        self.forgotten: set[int] = set()
        self.fences: dict[int, int] = {}
        self.launches: list[int] = []
        self.logs: dict[tuple[int, int, Stream], str] = {}
        self.caps: dict[int, CapOrder] = {}
        self.is_away = False
        self.is_deaf = False
        self.refusing: OutsideError | None = None
        self.faults: dict[str, tuple[NodeCheck, ...]] = {}
        self.unseen: set[str] = set()  # nodes that a probe does not reach

    def launch(self, orders: Sequence[Order], *, at: datetime) -> dict[int, OutsideError]:
        self._require_contact()
        refused: dict[int, OutsideError] = {}
        for order in orders:
            if order.allocation_id in self.runs:
                continue
            newest = self.fences.get(order.job_id, 0)
            if order.fence <= newest:
                refused[order.allocation_id] = StaleFence(
                    job_id=order.job_id, fence=order.fence, newest=newest
                )
            elif self.refusing is not None:
                refused[order.allocation_id] = self.refusing
            else:
                self.fences[order.job_id] = order.fence
                self.launches.append(order.allocation_id)
                self.runs[order.allocation_id] = Seen(
                    allocation_id=order.allocation_id,
                    job_id=order.job_id,
                    fence=order.fence,
                    state=RunState.RUNNING,
                    started_at=at,
                    time_limit_s=order.time_limit_s,
                )
        return refused

    def stop(self, stops: Sequence[StopOrder], *, at: datetime) -> None:
        self._require_contact()
        for stop in stops:
            run = self.runs.get(stop.allocation_id)
            if run is None:
                self.fences[stop.job_id] = max(stop.fence, self.fences.get(stop.job_id, 0))
                self.runs[stop.allocation_id] = Seen(
                    allocation_id=stop.allocation_id,
                    job_id=stop.job_id,
                    fence=stop.fence,
                    state=RunState.ENDED,
                    reason=EndReason.NEVER_STARTED,
                    ended_at=at,
                )
            elif run.fence == stop.fence and run.state != RunState.ENDED and not self.is_deaf:
                self.end(stop.allocation_id, at=at, reason=EndReason.STOPPED, exit_code=143)

    def set_limits(self, limits: Mapping[int, float | None], *, at: datetime) -> None:
        self._require_contact()
        for allocation_id, limit_s in limits.items():
            run = self.runs.get(allocation_id)
            if run is not None and run.state != RunState.ENDED:
                self.runs[allocation_id] = replace(run, time_limit_s=limit_s)

    def set_caps(self, orders: Sequence[CapOrder], *, at: datetime) -> None:
        self._require_contact()
        for order in orders:
            run, known = self.runs.get(order.allocation_id), self.caps.get(order.allocation_id)
            if (
                run is None
                or run.state == RunState.ENDED
                or (known is not None and order.fence < known.fence)
            ):
                continue
            self.caps[order.allocation_id] = order

    def list_caps(self, *, at: datetime) -> list[CapState]:
        self._require_contact()
        return [
            CapState(
                allocation_id=order.allocation_id,
                share=order.back_share if _is_over(order, at) else order.share,
                fence=order.fence,
                lease_until_at=order.lease_until_at,
            )
            for order in self.caps.values()
            if self.runs[order.allocation_id].state != RunState.ENDED
        ]

    def list_seen(self, *, at: datetime) -> list[Seen]:
        self._require_contact()
        return [
            run for allocation_id, run in sorted(self.runs.items()) if allocation_id not in self.forgotten
        ]

    def forget(self, allocation_ids: Sequence[int]) -> None:
        self._require_contact()
        ended = {id_ for id_ in allocation_ids if id_ in self.runs and self.runs[id_].state == RunState.ENDED}
        self.forgotten |= ended

    def read_log(self, allocation_id: int, *, rank: int, stream: Stream, offset: int, limit: int) -> LogChunk:
        self._require_contact()
        text = self.logs.get((allocation_id, rank, stream), "").encode()
        offset = min(offset, len(text))
        data = text[offset : offset + limit]
        run = self.runs.get(allocation_id)
        is_over = run is not None and run.state == RunState.ENDED
        end = offset + len(data)
        return LogChunk(data.decode(errors="replace"), end, is_complete=is_over and end >= len(text))

    def probe(self, nodes: Sequence[ProbedNode], *, at: datetime) -> list[NodeReport]:
        self._require_contact()
        answering = NodeCheck("answering", ok=True)
        return [
            NodeReport(node=node.name, checks=(answering, *self.faults.get(node.name, ())))
            for node in nodes
            if node.name not in self.unseen
        ]

    # What a test does to it

    def end(
        self,
        allocation_id: int,
        *,
        at: datetime,
        exit_code: int | None = 0,
        reason: EndReason = EndReason.EXITED,
        message: str = "",
        nodes_at_fault: tuple[str, ...] = (),
    ) -> None:
        """Let a run end."""
        self.runs[allocation_id] = replace(
            self.runs[allocation_id],
            state=RunState.ENDED,
            ended_at=at,
            exit_code=exit_code,
            reason=reason,
            message=message,
            nodes_at_fault=nodes_at_fault,
        )

    def lose(self, allocation_id: int) -> None:
        """Lose all memory of a run but its fence."""
        del self.runs[allocation_id]

    def _require_contact(self) -> None:
        if self.is_away:
            raise OutsideError("The cluster does not answer.")


def _is_over(order: CapOrder, at: datetime) -> bool:
    return order.lease_until_at is not None and order.lease_until_at <= at

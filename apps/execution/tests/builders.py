"""Orders, runs and waits for tests: each names only what matters to it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from apps.execution.backends.base import Backend, Order, Replica, RunState, Seen, StopOrder

PATIENCE_S = 30.0
T = TypeVar("T")


def now() -> datetime:
    return datetime.now(UTC)


def order(
    *command: str, allocation_id: int = 1, job_id: int = 1, fence: int = 1, n_replicas: int = 1, **rest: Any
) -> Order:
    """An order for replicas that all run one command; without a command, the order's script."""
    replicas = tuple(
        Replica(rank=rank, node="here", device_indices=(rank,), command=command or None)
        for rank in range(n_replicas)
    )
    return Order(allocation_id=allocation_id, job_id=job_id, fence=fence, replicas=replicas, **rest)


def shell(text: str, **rest: Any) -> Order:
    return order("/bin/sh", "-c", text, **rest)


def stop(*, allocation_id: int = 1, job_id: int = 1, fence: int = 1, grace_s: float = 10.0) -> StopOrder:
    return StopOrder(allocation_id=allocation_id, job_id=job_id, fence=fence, grace_s=grace_s)


def look(backend: Backend, allocation_id: int = 1) -> Seen | None:
    return next((run for run in backend.list_seen(at=now()) if run.allocation_id == allocation_id), None)


def wait_until(ask: Callable[[], T]) -> T:
    """Ask until the answer is a true one; give up long after a healthy machine would have said yes."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return answer


def wait_for(backend: Backend, state: RunState, allocation_id: int = 1) -> Seen:
    def ask() -> Seen | None:
        found = look(backend, allocation_id)
        return found if found is not None and found.state == state else None

    found = wait_until(ask)
    assert found is not None
    return found


def output(backend: Backend, allocation_id: int = 1, *, rank: int = 0, stream: Any = "stdout") -> str:
    return backend.read_log(allocation_id, rank=rank, stream=stream, offset=0, limit=1_000_000).text

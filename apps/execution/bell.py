"""Hears runs on this machine begin and end, so that nobody waits for the next beat to learn of it.

Shepherds cannot reach the database, on purpose: they ring a FIFO in their spool. A ring that nobody hears costs the
time until the next beat, nothing else.
"""

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from django.db import connection

from apps.core import clock
from apps.execution.backends.choice import local_backend_of
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster

QUEUE = "execution"
LOOK_FOR_CLUSTERS_EVERY_S = 30.0
PAUSE_S = 0.1  # many runs may begin at once
_log = logging.getLogger(__name__)


class BellListener(threading.Thread):
    """Calls `on_ring` when a bell rings, and not more often than every PAUSE_S."""

    def __init__(self, find_bells: Callable[[], Sequence[Path]], on_ring: Callable[[], None]) -> None:
        super().__init__(name="execution-bell", daemon=True)
        self._find_bells = find_bells
        self._on_ring = on_ring

    def run(self) -> None:
        while True:
            try:
                self.listen(LOOK_FOR_CLUSTERS_EVERY_S)
            except Exception:
                _log.warning("The bells cannot be heard just now", exc_info=True)
                clock.sleep(LOOK_FOR_CLUSTERS_EVERY_S)

    def listen(self, duration_s: float) -> None:
        """Listen to the bells there are now, for so long."""
        until_s = clock.monotonic_s() + duration_s
        with contextlib.ExitStack() as handles:
            poll = select.poll()
            for path in self._find_bells():
                # Also as a writer: a FIFO whose last writer has gone would report that without end.
                handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
                handles.callback(os.close, handle)
                poll.register(handle, select.POLLIN)
            while (left_s := until_s - clock.monotonic_s()) > 0:
                rung = poll.poll(1000 * left_s)
                if not rung:
                    return
                for handle, _ in rung:
                    with contextlib.suppress(BlockingIOError):
                        os.read(handle, 65536)
                self._on_ring()
                clock.sleep(PAUSE_S)


def bells() -> list[Path]:
    """The bells of all clusters on this machine."""
    try:
        return [local_backend_of(cluster).bell() for cluster in Cluster.objects.filter(backend=Kind.LOCAL)]
    finally:
        connection.close()  # the thread asks rarely


def listen_in_worker(sender: Any, **_: Any) -> None:
    """When a worker of the execution queue is ready: reconcile on every ring."""
    app: Celery = sender.app
    if QUEUE in app.amqp.queues.consume_from:
        BellListener(bells, lambda: _reconcile(app)).start()


def _reconcile(app: Celery) -> None:
    app.send_task("execution.reconcile", expires=LOOK_FOR_CLUSTERS_EVERY_S)

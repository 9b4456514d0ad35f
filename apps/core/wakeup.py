"""Events wake loops: a worker listens to the database and asks itself for the tasks that an event calls for.

Waking is a courtesy. A wake-up that is lost costs time until the next beat, nothing else.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from celery import Celery, bootsteps
from celery.worker.consumer import Consumer

from apps.core import clock
from apps.core.presence import Presence

CHANNEL = "switchyard"
DEBOUNCE_S = 0.2
_IDLE_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wake:
    """An event whose kind begins with `prefix` calls for `task`."""

    prefix: str
    task: str


class Debounce:
    """Sends each task at once, and then at most once per DEBOUNCE_S however many events call for it.

    The last call is never dropped: it is sent when the pause is over.
    """

    def __init__(
        self,
        wakes: Iterable[Wake],
        send: Callable[[str], None],
        now_s: Callable[[], float] = clock.monotonic_s,
    ) -> None:
        self._wakes = tuple(wakes)
        self._send = send
        self._now_s = now_s
        self._sent_s: dict[str, float] = {}
        self._wanted: set[str] = set()

    def hear(self, payloads: list[str]) -> float:
        """Take note of event kinds (an empty one stands for anything); answer when to be called again."""
        for kind in payloads:
            self._wanted |= {wake.task for wake in self._wakes if not kind or kind.startswith(wake.prefix)}
        now_s = self._now_s()
        due_s = {task: self._sent_s.get(task, float("-inf")) + DEBOUNCE_S for task in self._wanted}
        for task in sorted(task for task, at_s in due_s.items() if at_s <= now_s):
            self._wanted.discard(task)
            self._sent_s[task] = now_s
            self._send(task)
        waits_s = [at_s - now_s for at_s in due_s.values() if at_s > now_s]
        return min(waits_s, default=_IDLE_S)


class WakeupStep(bootsteps.StartStopStep):
    """Part of a Celery worker: be present under its queues' names, and wake the tasks of those queues."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Consumer, **options: Any) -> None:
        super().__init__(parent, **options)
        self._presence: Presence | None = None

    def start(self, parent: Consumer) -> None:
        app: Celery = parent.app
        queues = set(app.amqp.queues.consume_from)
        wakes: tuple[Wake, ...] = app.conf.get("switchyard_wakes", ())
        mine = [wake for wake in wakes if _queue_of(app, wake.task) in queues]
        debounce = Debounce(mine, send=lambda task: _send(app, task))
        self._presence = Presence(queues, channel=CHANNEL, on_heard=debounce.hear)
        self._presence.start()

    def stop(self, parent: Consumer) -> None:
        if self._presence is not None:
            self._presence.stop()
            self._presence = None

    terminate = stop


def _queue_of(app: Celery, task: str) -> str:
    return str(app.amqp.router.route({}, task)["queue"].name)


def _send(app: Celery, task: str) -> None:
    try:
        app.send_task(task, expires=_IDLE_S * 10)
    except Exception:
        # The broker is away. The listener must outlive that; the beat is the safety net.
        _log.warning("%s could not be sent", task, exc_info=True)

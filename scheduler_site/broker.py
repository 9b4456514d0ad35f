"""The embedded broker: kombu's filesystem transport, made safe for several processes that may be killed.

Kombu writes a message in place, so that a reader can meet it half written and fall over it. Here a message appears
by rename, whole, and a reader takes it by rename, once.
"""

import os
import uuid
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

SCHEME = "switchyard-files"


class Channel(filesystem.Channel):
    """A folder of messages: `<milliseconds>_<uuid>.<queue>.msg`."""

    def _put(self, queue: str, payload: dict[str, Any], **kwargs: Any) -> None:  # type: ignore[override]  # as its parent
        folder = Path(self.data_folder_out)
        name = f"{round(monotonic() * 1000)}_{uuid.uuid4()}"
        hidden = folder / f"{name}.writing"
        try:
            hidden.write_text(dumps(payload))
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)  # swept away under us: losing the broker loses nothing
            hidden.write_text(dumps(payload))
        hidden.rename(folder / f"{name}.{queue}.msg")

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        folder = Path(self.data_folder_in)
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            raise Empty from None
        for name in sorted(name for name in names if name.endswith(f".{queue}.msg")):
            mine = folder / f"{name}.{os.getpid()}.reading"
            try:
                (folder / name).rename(mine)
            except FileNotFoundError:
                continue  # another worker was first
            text = mine.read_text()
            mine.unlink()
            message: dict[str, Any] = loads(text)
            return message
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Keep no table of bindings: Celery reaches a queue by its name, through the default exchange."""

    def _size(self, queue: str) -> int:
        try:
            return sum(name.endswith(f".{queue}.msg") for name in os.listdir(self.data_folder_in))
        except FileNotFoundError:
            return 0

    def _purge(self, queue: str) -> int:
        n_purged = 0
        while True:
            try:
                self._get(queue)
            except Empty:
                return n_purged
            n_purged += 1


class Transport(filesystem.Transport):
    Channel = Channel


def register() -> None:
    """Make `switchyard-files://` known to kombu."""
    TRANSPORT_ALIASES[SCHEME] = "scheduler_site.broker:Transport"

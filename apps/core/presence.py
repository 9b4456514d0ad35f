"""Which loops are alive, told by the database itself: each holds a connection that carries its role's name.

A process that is gone has no connection, so nothing has to be written, timed out or cleaned up.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connection, connections

PREFIX = "switchyard:"
_log = logging.getLogger(__name__)
_LONGEST_WAIT_S = 5.0


def present_roles() -> set[str]:
    """Roles that hold a connection to this database now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            [f"{PREFIX}%"],
        )
        return {name.removeprefix(PREFIX) for (name,) in cursor.fetchall()}


class Presence(threading.Thread):
    """Holds one connection named after a role, for as long as the process lives, and listens on it.

    Args:
        role: planning, execution, power, beat, ...
        channel: PostgreSQL channel to listen on; empty: only be there.
        on_heard: Called with the payloads that came, now and then with none.
    """

    def __init__(
        self,
        role: str,
        *,
        channel: str = "",
        on_heard: Callable[[list[str]], None] | None = None,
        tick_s: float = 1.0,
    ) -> None:
        super().__init__(name=f"presence-{role}", daemon=True)
        self._role = role
        self._channel = channel
        self._on_heard = on_heard
        self._tick_s = tick_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        wait_s = 0.1
        while not self._stopping.is_set():
            try:
                with psycopg.connect(**_parameters(), application_name=PREFIX + self._role, autocommit=True) as held:
                    wait_s = 0.1
                    self._listen(held)
            except psycopg.Error as error:
                _log.warning("%s: the database is away (%s); trying again.", self._role, str(error).strip().split("\n")[0])
                self._stopping.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _listen(self, held: "psycopg.Connection[Any]") -> None:
        if self._channel:
            held.execute(f'LISTEN "{self._channel}"')
            # What was said while nobody listened is not said again: look once.
            self._hear([""])
        while not self._stopping.is_set():
            self._hear([notice.payload for notice in held.notifies(timeout=self._tick_s, stop_after=1)])
            if held.closed:
                raise psycopg.OperationalError("connection closed")

    def _hear(self, payloads: list[str]) -> None:
        if self._on_heard is not None:
            self._on_heard(payloads)


def _parameters() -> dict[str, Any]:
    """Django's own connection parameters, for a connection outside Django."""
    parameters: dict[str, Any] = connections["default"].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "application_name"):
        parameters.pop(name, None)
    return parameters

"""Which loops are alive, told by the database itself: each holds a connection that carries its role's name.

A process that is gone has no connection, so nothing has to be written, timed out or cleaned up.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from django.db import connection, connections

PREFIX = "switchyard:"
_log = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_TICK_S = 1.0


def present_roles() -> set[str]:
    """Roles that hold a connection to this database now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            [f"{PREFIX}%"],
        )
        return {role for (name,) in cursor.fetchall() for role in name.removeprefix(PREFIX).split(",")}


class Presence(threading.Thread):
    """Holds one connection named after roles, for as long as the process lives, and listens on it.

    Args:
        roles: planning, execution, power, beat, ...
        channel: PostgreSQL channel to listen on; empty: only be there.
        on_heard: Given the payloads that came, if any, it answers after how many seconds it wants to be called again.
    """

    def __init__(
        self,
        roles: Iterable[str],
        *,
        channel: str = "",
        on_heard: Callable[[list[str]], float] = lambda payloads: _TICK_S,
    ) -> None:
        self._name = PREFIX + ",".join(sorted(roles))
        super().__init__(name=self._name, daemon=True)
        self._channel = channel
        self._on_heard = on_heard
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._stopping.is_set():
            try:
                with psycopg.connect(**_parameters(), application_name=self._name, autocommit=True) as held:
                    wait_s = _FIRST_WAIT_S
                    self._listen(held)
            except psycopg.Error as error:
                _log.warning("%s: the database is away: %s", self._name, str(error).strip().split("\n")[0])
                self._stopping.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _listen(self, held: "psycopg.Connection[Any]") -> None:
        if self._channel:
            held.execute(f'LISTEN "{self._channel}"')
        # What was said while nobody listened is not said again: an empty payload stands for anything.
        wait_s = self._on_heard([""])
        while not self._stopping.is_set():
            heard = held.notifies(timeout=min(wait_s, _TICK_S), stop_after=1)
            wait_s = self._on_heard([notice.payload for notice in heard])


def _parameters() -> dict[str, Any]:
    """Django's own connection parameters, for a connection outside Django."""
    parameters: dict[str, Any] = connections["default"].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "application_name"):
        parameters.pop(name, None)
    return parameters

"""One at a time in the whole site, by locks of PostgreSQL that belong to a session.

They go when the connection goes, however the worker ends: whoever is killed lets go of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connection


@contextmanager
def session_lock(*key: int, wait_s: float = 0.0) -> Iterator[bool]:
    """True for one holder at a time; for everybody else False, at once or after so long.

    Args:
        key: One 64-bit number, or two of 32 bits: what is done, and to what.
        wait_s: How long to wait for it; outside of transactions.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_lock({_marks(key)})", key)
        (is_ours,) = cursor.fetchone() or (False,)
    if not is_ours and wait_s > 0:
        is_ours = _waited_for(key, wait_s)
    try:
        yield bool(is_ours)
    finally:
        if is_ours:
            release(*key)


def _waited_for(key: tuple[int, ...], wait_s: float) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{round(1000 * wait_s)}ms"])
        try:
            cursor.execute(f"SELECT pg_advisory_lock({_marks(key)})", key)
        except OperationalError:  # it took too long
            return False
        finally:
            cursor.execute("SELECT set_config('lock_timeout', '0', false)")
    return True


def release(*key: int) -> None:
    """Let go of a session's lock. A connection that broke has given it back; one in a failed transaction cannot."""
    if connection.connection is None or connection.connection.closed or connection.needs_rollback:
        return
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_advisory_unlock({_marks(key)})", key)


def _marks(key: tuple[int, ...]) -> str:
    return ", ".join(["%s"] * len(key))

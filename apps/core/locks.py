"""One at a time in the whole site, by locks of PostgreSQL that belong to a session.

They go when the connection goes, however the worker ends: whoever is killed lets go of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def session_lock(*key: int) -> Iterator[bool]:
    """True for one holder at a time; for everybody else False, at once.

    Args:
        key: One 64-bit number, or two of 32 bits: what is done, and to what.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_lock({_marks(key)})", key)
        (is_ours,) = cursor.fetchone() or (False,)
    try:
        yield bool(is_ours)
    finally:
        if is_ours:
            release(*key)


def release(*key: int) -> None:
    """Let go of a session's lock. A connection that broke has given it back; one in a failed transaction cannot."""
    if connection.connection is None or connection.connection.closed or connection.needs_rollback:
        return
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_advisory_unlock({_marks(key)})", key)


def _marks(key: tuple[int, ...]) -> str:
    return ", ".join(["%s"] * len(key))

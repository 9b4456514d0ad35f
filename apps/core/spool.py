"""Folders on this machine that several processes of the site share."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from apps.core.errors import OutsideError


@contextmanager
def file_lock(path: Path, lay_out: Callable[[], object], *, called: str) -> Iterator[None]:
    """Wait for a file's lock and hold it.

    Args:
        lay_out: Makes the folders that the file lies in.
        called: What cannot be used when that fails, for the error.
    """
    try:
        lay_out()
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise OutsideError(f"{called} cannot be used: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def is_locked(path: Path) -> bool:
    """Whether somebody holds a file's lock; not, where there is no such file."""
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)

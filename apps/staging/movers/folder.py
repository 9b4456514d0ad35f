"""The folder of one move: the only memory of the process that carries it.

Each file has one writer, and is replaced in one step:
    order.json   the mover, before the folder has its name and before each start: what to carry where
    cancel       the mover: end it
    status.json  the carrier: its state, how far it is, why it failed
    child.json   the carrier: the program it has running
    lock         held by the carrier as long as it lives; the kernel lets go when it dies, however it dies
    uploads/     the carrier: uploads of objects in parts, so that they are gone on with
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, data: dict[str, Any], *, is_durable: bool = False) -> None:
    """Replace a file in one step: a reader meets the old text or the new one."""
    hidden = path.with_name(f"{path.name}.{os.getpid()}.new")
    with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(data, file)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    hidden.rename(path)
    if is_durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make names in a folder survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_whole(path: Path) -> dict[str, Any] | None:
    """The file's content; None where there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def take_lock(path: Path) -> int | None:
    """Hold a lock until the process ends; None when somebody else holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it is gone or only waits to be buried.

    A process is known by its number and this, since numbers are used again.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])

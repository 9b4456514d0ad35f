"""Data to carry, and ways to see what became of it."""

import os
import random
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from apps.core.spool import is_locked
from apps.staging.movers.base import GIB, MoveOrder, Mover, MoveState, Place, Progress

MIB = 2**20
PATIENCE_S = 90.0

Content = Mapping[str, bytes]


def content(*sizes: int) -> dict[str, bytes]:
    """Files of these sizes, in folders, one name as people write them."""
    names = ["big.bin", "in/side.bin", "in/deep er/é.txt", "empty"]
    return {
        name: random.Random(name).randbytes(size)
        for name, size in zip(names, (*sizes, 10, 0)[:4], strict=False)
    }


def lay(folder: Path, files: Content) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def put(client: Any, prefix: str, files: Content) -> None:
    for name, data in files.items():
        client.put_object(Bucket="sets", Key=f"{prefix}/{name}" if name else prefix, Body=data)


def get(client: Any, prefix: str) -> dict[str, bytes]:
    rows = client.list_objects_v2(Bucket="sets", Prefix=f"{prefix}/").get("Contents", ())
    return {
        row["Key"].removeprefix(f"{prefix}/"): client.get_object(Bucket="sets", Key=row["Key"])["Body"].read()
        for row in rows
    }


def now() -> datetime:
    return datetime.now(UTC)


def order(source: Place, target: Place, **more: Any) -> MoveOrder:
    at = now()
    facts = {"key": uuid.uuid4().hex, "n_bytes": GIB, "begins_at": at, "arrives_at": at + timedelta(hours=1)}
    return MoveOrder(source=source, target=target, **{**facts, **more})


def wait_until(holds: Callable[[], Any], what: str = "it") -> Any:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := holds():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about")


def wait_for(mover: Mover, handle: str, *states: MoveState) -> Progress:
    def seen() -> Progress | None:
        nonlocal last
        last = mover.poll(handle, at=now())
        return last if last.state in states else None

    last: Progress | None = None
    try:
        found: Progress = wait_until(seen, f"{states}")
    except AssertionError as error:
        raise AssertionError(f"{error}; last seen: {last}") from None
    return found


def carriers(key: str) -> list[psutil.Process]:
    """The processes that carry a move."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(word.endswith("movers.carrier") for word in words) and words[-1].endswith(f"/{key}"):
            found.append(process)
    return found


def kill(key: str) -> None:
    """SIGKILL for whatever carries it."""
    (carrier,) = carriers(key)
    lock = Path(carrier.cmdline()[-1]) / "lock"
    os.kill(carrier.pid, 9)
    wait_until(lambda: not is_locked(lock), "the end of the carrier")

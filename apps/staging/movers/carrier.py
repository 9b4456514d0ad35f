"""Carries one move from start to end, whatever happens to the rest.

Run as `python -m apps.staging.movers.carrier FOLDER`. It leaves its starter at once, so that neither Ctrl-C nor a kill
of the worker reaches it. It knows its folder (folder.py) and nothing of the site: no Django, no database.

Killed at any point, it leaves a state of "running" and a lock that nobody holds. The next one goes on from what lies in
the target store.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from apps.core import clock
from apps.staging.movers.base import MoveError, MoveState, scrubbed
from apps.staging.movers.folder import read_whole, start_of, take_lock, write_whole

LOOK_EVERY_S: Final = 0.5
RATE_OVER_S: Final = 30.0
_WORKS: Final = {"rsync": "apps.staging.movers.rsync", "s3": "apps.staging.movers.s3"}


class Cancelled(Exception):
    """It is to end."""


class Work(Protocol):
    """One way to carry. Made once a run: `Work(task)`."""

    def run(self) -> None:
        """Carry it all over. Raises MoveError; Cancelled once the task is."""

    def clean(self) -> None:
        """Take away what lies half-done in the target."""

    def interrupt(self) -> None:
        """Make `run` end soon; called from another thread."""


class Task:
    """What a work is given: the order, its folder, and a meter for what it has done."""

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self.folder, self.order = folder, order
        self.options: dict[str, Any] = order.get("options", {})
        self.cancelled = threading.Event()
        self.aborted = threading.Event()  # one part failed: the others need not go on
        self.bytes_done = 0
        self.bytes_total: int | None = None
        self._lock = threading.Lock()
        self._n_moved, self._began_s = 0, clock.monotonic_s()
        self._points: deque[tuple[float, int]] = deque([(self._began_s, 0)])

    def found(self, *, bytes_total: int, bytes_there: int) -> None:
        """So much is to be there in the end, and so much is there already."""
        with self._lock:
            self.bytes_total, self.bytes_done = bytes_total, bytes_there

    def moved(self, n_bytes: int, *, was_there: bool = False) -> None:
        """So much more is there. Slows down to the rate that is allowed, and ends what was cancelled."""
        with self._lock:
            self.bytes_done += n_bytes
            self._n_moved += 0 if was_there else n_bytes
            n_moved = self._n_moved
        if most := self.order.get("most_bytes_per_s"):
            early_s = n_moved / most - (clock.monotonic_s() - self._began_s)
            if early_s > 0:
                self.cancelled.wait(early_s)
        self.check()

    def reached(self, bytes_done: int) -> None:
        """So much is there by now."""
        with self._lock:
            self._n_moved += max(bytes_done - self.bytes_done, 0)
            self.bytes_done = bytes_done

    def check(self) -> None:
        if self.cancelled.is_set() or self.aborted.is_set():
            raise Cancelled

    def rate(self) -> float | None:
        """Bytes per second over the last half minute; None until it can be told."""
        now_s = clock.monotonic_s()
        with self._lock:
            self._points.append((now_s, self._n_moved))
        while len(self._points) > 2 and self._points[1][0] < now_s - RATE_OVER_S:
            self._points.popleft()
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= LOOK_EVERY_S else None

    def note(self, state: MoveState, **more: Any) -> None:
        """Write down how it stands."""
        with self._lock:
            done, total = self.bytes_done, self.bytes_total
        content = {
            "state": state,
            "bytes_done": done if total is None else min(done, total),
            "bytes_total": total,
        }
        write_whole(self.folder / "status.json", {**content, **more}, is_durable=state != MoveState.RUNNING)


class _Watch(threading.Thread):
    """Writes down how far it is, and looks whether it is to end."""

    def __init__(self, task: Task, work: Work) -> None:
        super().__init__(name="watch", daemon=True)
        self._task, self._work, self._over = task, work, threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            if not self._task.cancelled.is_set() and (self._task.folder / "cancel").exists():
                self._task.cancelled.set()
            if self._task.cancelled.is_set():
                self._work.interrupt()
            with contextlib.suppress(OSError):  # no room to say it: the move itself may have some
                self._task.note(MoveState.RUNNING, bytes_per_s=self._task.rate())

    def stop(self) -> None:
        self._over.set()
        self.join()


def carry(folder: Path) -> None:
    """Carry the move of a folder to some end, and write that down."""
    order = read_whole(folder / "order.json")
    assert order is not None, folder
    end_former_child(folder)
    task = Task(folder, order)
    work: Work = importlib.import_module(_WORKS[order["kind"]]).make(task)
    signal.signal(signal.SIGTERM, lambda *_: _leave(work))
    watch = _Watch(task, work)
    watch.start()
    try:
        state, more = _ended(task, work)
    finally:
        watch.stop()
    task.note(state, **more)


def _ended(task: Task, work: Work) -> tuple[MoveState, dict[str, Any]]:
    try:
        if (task.folder / "cancel").exists():
            raise Cancelled
        work.run()
    except Cancelled:
        with contextlib.suppress(MoveError):  # the store is away: what lies there is found by its name
            work.clean()
        return MoveState.CANCELLED, {}
    except MoveError as error:
        return MoveState.FAILED, {"error": scrubbed(error.message), "is_permanent": error.permanent}
    except Exception as error:
        if task.cancelled.is_set():
            return MoveState.CANCELLED, {}
        return MoveState.FAILED, {
            "error": scrubbed(f"{type(error).__name__}: {error}"),
            "is_permanent": False,
        }
    return MoveState.DONE, {}


def end_former_child(folder: Path) -> None:
    """End the program that a killed carrier left running, so that two never write to one place."""
    child = read_whole(folder / "child.json") or {}
    while child and child["start"] is not None and start_of(child["pid"]) == child["start"]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child["pid"], signal.SIGKILL)
        clock.sleep(0.02)


def _leave(work: Work) -> NoReturn:
    work.interrupt()
    os._exit(1)  # "running", and nobody there: it is gone on with


def _takes(lock: Path) -> bool:
    for _ in range(20):
        if take_lock(lock) is not None:
            return True
        clock.sleep(0.02)  # perhaps somebody only looks whether it is held, which takes it for a moment
    return False


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    os.umask(0o022)
    if not _takes(folder / "lock"):
        return
    # Said before the starter goes on, so that it never sees the end of an earlier try.
    former = read_whole(folder / "status.json") or {}
    kept = {name: former.get(name) for name in ("bytes_done", "bytes_total") if former.get(name) is not None}
    write_whole(folder / "status.json", {"state": MoveState.RUNNING, **kept})
    if os.fork():
        os._exit(0)
    carry(folder)


if __name__ == "__main__":
    main(sys.argv[1:])

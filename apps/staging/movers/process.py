"""Moves by processes of their own on this machine: Linux only.

This module makes folders, starts carriers and reads what they wrote; it keeps nothing in memory, so any worker can go
on from where another one was killed.

    spool/id             names this spool in handles: another machine's worker then knows that a move is not its own
    spool/lock           held while carriers are started, so that nobody takes one that just comes up for a dead one
    spool/moves/<key>/   see folder.py
"""

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from apps.core import clock
from apps.core.errors import OutsideError
from apps.core.spool import file_lock, is_locked
from apps.staging.movers import carrier
from apps.staging.movers.base import MoveOrder, MoveState, Progress
from apps.staging.movers.folder import read_whole, sync_folder, write_whole

Kind = Literal["rsync", "s3"]
START_PATIENCE_S: Final = 20.0
_LEAVING_S: Final = 0.02
# Of the service's own environment a carrier sees these and nothing else: no key of the site, no database's address.
PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSH_AUTH_SOCK", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
_HOME: Final = Path(__file__).resolve().parents[3]
_ENDS: Final = (MoveState.DONE, MoveState.CANCELLED)


class ProcessMover:
    """The contract, kept by a carrier a move.

    Args:
        spool: Folder of this machine's moves.
        kind: How its carriers work.
        options: For the carriers: `rsh` (the program that reaches other machines, with its options), `part_bytes` (of
            objects that are sent in parts).
    """

    is_simulated = False

    def __init__(self, spool: Path, kind: Kind, **options: Any) -> None:
        self._spool, self._moves, self._kind, self._options = spool, spool / "moves", kind, options

    def handle_of(self, key: str) -> str:
        return f"{self._id()}/{key}"

    def start(self, order: MoveOrder, *, at: datetime) -> str:
        with self._locked():
            folder = self._moves / order.key
            if not folder.exists():
                self._make(folder, order)
            elif not self._may_begin_again(folder):
                return self.handle_of(order.key)
            else:
                write_whole(folder / "order.json", self._content(order), is_durable=True)
            self._wake_carrier(folder)
            return self.handle_of(order.key)

    def poll(self, handle: str, *, at: datetime) -> Progress:
        folder = self._folder_of(handle)
        is_carried = is_locked(
            folder / "lock"
        )  # looked at first: what ended in between is not taken for lost
        status = read_whole(folder / "status.json")
        if status is None:
            return Progress(state=MoveState.UNKNOWN)
        state = MoveState(status["state"])
        if state == MoveState.RUNNING and not is_carried:
            state = MoveState.LOST
        return Progress(
            state=state,
            bytes_done=status.get("bytes_done", 0),
            bytes_total=status.get("bytes_total"),
            bytes_per_s=status.get("bytes_per_s"),
            error=status.get("error", ""),
            is_permanent=status.get("is_permanent", False),
        )

    def cancel(self, handle: str, *, at: datetime) -> None:
        with self._locked():
            folder = self._folder_of(handle)
            if not folder.exists():
                folder.mkdir(mode=0o700)
                (folder / "cancel").touch(mode=0o600)
                write_whole(folder / "status.json", {"state": MoveState.CANCELLED}, is_durable=True)
                return
            if self._state(folder) in _ENDS:
                return
            (folder / "cancel").touch(mode=0o600)
            if not self._is_carried(folder):
                self._wake_carrier(folder)  # to tidy up

    def prune(self, *, before: datetime) -> int:
        """Forget moves that ended before this time; return how many."""
        with self._locked():
            old = [
                folder
                for folder in self._moves.iterdir()
                if not is_locked(folder / "lock") and _changed_s(folder) < before.timestamp()
            ]
            for folder in (*old, *self._spool.glob("new-*")):  # the latter: starts that were killed half-way
                shutil.rmtree(folder, ignore_errors=True)
        return len(old)

    # Folders

    def _make(self, folder: Path, order: MoveOrder) -> None:
        hidden = self._spool / f"new-{folder.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(mode=0o700)
        write_whole(hidden / "order.json", self._content(order), is_durable=True)
        hidden.rename(folder)
        sync_folder(self._moves)

    def _content(self, order: MoveOrder) -> dict[str, Any]:
        return {
            "kind": self._kind,
            "key": order.key,
            "source": asdict(order.source),
            "target": asdict(order.target),
            "most_bytes_per_s": order.most_bytes_per_s,
            "options": self._options,
        }

    def _is_carried(self, folder: Path) -> bool:
        """Does somebody carry it? One that has noted its end is only just leaving: that is waited for."""
        for _ in range(int(START_PATIENCE_S / _LEAVING_S)):
            if not is_locked(folder / "lock"):
                return False
            if self._state(folder) != MoveState.FAILED:
                return True
            clock.sleep(_LEAVING_S)
        return True

    def _may_begin_again(self, folder: Path) -> bool:
        is_over = self._state(folder) in _ENDS or (folder / "cancel").exists()
        return not is_over and not self._is_carried(folder)

    @staticmethod
    def _state(folder: Path) -> MoveState:
        return MoveState((read_whole(folder / "status.json") or {}).get("state", MoveState.UNKNOWN))

    def _folder_of(self, handle: str) -> Path:
        spool_id, _, key = handle.partition("/")
        if spool_id != self._id():
            raise OutsideError("The move is carried by another machine.")
        assert key.isalnum(), key  # it becomes part of a path
        return self._moves / key

    def _id(self) -> str:
        path = self._spool / "id"
        if not path.exists():
            self._lay_out()
            fresh = self._spool / f"id.{os.getpid()}"
            fresh.write_text(uuid.uuid4().hex)
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(fresh, path)
            fresh.unlink()
        return path.read_text()

    def _lay_out(self) -> None:
        self._moves.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _locked(self) -> AbstractContextManager[None]:
        return file_lock(self._spool / "lock", self._lay_out, called="The spool of moves")

    def _wake_carrier(self, folder: Path) -> None:
        """Start a carrier; come back when it holds its lock. One that finds the lock held ends at once."""
        log = os.open(folder / "carrier.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            subprocess.run(
                [sys.executable, "-m", carrier.__name__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_passed_on(),
                cwd=_HOME,
                start_new_session=True,
                check=True,
                timeout=START_PATIENCE_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise OutsideError(f"The process that would carry it did not start: {error}.") from error
        finally:
            os.close(log)


def _changed_s(folder: Path) -> float:
    return max(
        (path.stat().st_mtime for path in (folder / "status.json", folder) if path.exists()), default=0.0
    )


def _passed_on() -> dict[str, str]:
    # Where profiles and their keys are kept is told by the environment, as the object stores' own tools have it.
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name.startswith(("LC_", "AWS_"))
    }

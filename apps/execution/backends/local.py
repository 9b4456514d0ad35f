"""Runs jobs on this machine, as processes of the service's own user. Linux only.

Each run has a folder under the spool and a shepherd that watches over it (`apps/execution/shepherd.py`).
This module makes folders, starts shepherds and reads what they wrote; it keeps nothing in memory, so any
worker can go on from where another one was killed.

    spool/lock                  held while runs are claimed, so that claims and looks come one after the other
    spool/bell                  a FIFO that shepherds ring when something began or ended
    spool/fences/<job>          highest fence known of a job
    spool/runs/<allocation>/    runs the ledger has not been told the end of
    spool/ended/<allocation>/   the others, kept for their logs
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from apps.core.errors import OutsideError
from apps.core.spool import file_lock, is_locked
from apps.execution import nvml, shepherd
from apps.execution.backends import local_probe
from apps.execution.backends.base import (
    CapOrder,
    CapState,
    EndReason,
    LogChunk,
    NodeReport,
    Order,
    ProbedNode,
    Replica,
    RunState,
    Seen,
    StaleFence,
    StopOrder,
    Stream,
)

# Of the service's own environment a job sees these and nothing else: no key, no address of a database, no
# token.
PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "CUDA_HOME",
)  # fmt: skip
DEFAULT_LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
START_PATIENCE_S: Final = 10.0
MOST_TROUBLE_BYTES: Final = 1024 * 1024  # a shepherd that fails over and over must not fill the disk with why
_log = logging.getLogger(__name__)


class LocalBackend:
    """The contract, kept on this machine.

    Args:
        spool: Folder of this cluster's runs; no other ledger may use it, since numbers would be met twice.
        log_limit_bytes: Most that is kept of each output stream of each replica.
    """

    def __init__(self, spool: Path, *, log_limit_bytes: int = DEFAULT_LOG_LIMIT_BYTES) -> None:
        self._spool = spool
        self._log_limit_bytes = log_limit_bytes
        self._runs, self._ended, self._fences = spool / "runs", spool / "ended", spool / "fences"

    # The contract

    def launch(self, orders: Sequence[Order], *, at: datetime) -> dict[int, OutsideError]:
        refused: dict[int, OutsideError] = {}
        with self._locked():
            for order in orders:
                try:
                    if self._claim(order):
                        self._wake_shepherd(self._runs / str(order.allocation_id))
                except OutsideError as error:
                    refused[order.allocation_id] = error
                except OSError as error:
                    refused[order.allocation_id] = OutsideError(f"The spool refuses: {error.strerror}.")
        return refused

    def stop(self, stops: Sequence[StopOrder], *, at: datetime) -> None:
        with self._locked():
            for stop in stops:
                self._stop(stop, at)

    def set_limits(self, limits: Mapping[int, float | None], *, at: datetime) -> None:
        with self._locked():
            for allocation_id, limit_s in limits.items():
                folder = self._runs / str(allocation_id)
                if folder.exists():
                    shepherd.write_whole(f"{folder}/limit.json", {"time_limit_s": limit_s})
                    shepherd.ring(f"{folder}/bell")

    def set_caps(self, orders: Sequence[CapOrder], *, at: datetime) -> None:
        with self._locked():
            for order in orders:
                folder = self._runs / str(order.allocation_id)
                known = shepherd.read_whole(f"{folder}/cap.json") or {}
                if not folder.exists() or order.fence < known.get("fence", 0):
                    continue
                until_at = order.lease_until_at
                content = {
                    "share": order.share,
                    "fence": order.fence,
                    "lease_until": None if until_at is None else until_at.timestamp(),
                    "back_share": order.back_share,
                }
                if content != known:
                    shepherd.write_whole(f"{folder}/cap.json", content)
                    has_ended = (shepherd.read_whole(f"{folder}/status.json") or {}).get("state") == "ended"
                    if not shepherd.ring(f"{folder}/bell") and not has_ended:
                        self._revive(folder)

    def list_caps(self, *, at: datetime) -> list[CapState]:
        found = []
        with self._locked():
            for folder in sorted(self._runs.iterdir(), key=lambda folder: folder.name):
                held = shepherd.read_whole(f"{folder}/cap.held")
                status = shepherd.read_whole(f"{folder}/status.json") or {}
                if held is None or not folder.name.isdigit() or status.get("state") == "ended":
                    continue
                found.append(
                    CapState(
                        allocation_id=int(folder.name),
                        share=held["share"],
                        fence=held["fence"],
                        lease_until_at=instant(held["lease_until"]),
                        is_recorded=held["is_recorded"],
                        message=held["message"],
                    )
                )
        return found

    def list_seen(self, *, at: datetime) -> list[Seen]:
        with self._locked():
            folders = sorted(self._runs.iterdir(), key=lambda folder: folder.name)
            return [seen for folder in folders if (seen := self._look(folder, at)) is not None]

    def forget(self, allocation_ids: Sequence[int]) -> None:
        with self._locked():
            for allocation_id in allocation_ids:
                folder = self._runs / str(allocation_id)
                if (shepherd.read_whole(f"{folder}/status.json") or {}).get("state") == "ended":
                    folder.rename(self._ended / folder.name)

    def read_log(self, allocation_id: int, *, rank: int, stream: Stream, offset: int, limit: int) -> LogChunk:
        folder = self._folder_of(allocation_id)
        if folder is None:
            return LogChunk("", 0, is_complete=False)
        # Looked at before the stream is read: what was written in between is not missed.
        is_over = (shepherd.read_whole(f"{folder}/status.json") or {}).get("state") == "ended"
        try:
            with (folder / f"{stream}.{int(rank)}").open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(max(offset, 0), size))
                data = file.read(max(limit, 4))
                next_offset = file.tell()
        except FileNotFoundError:
            return LogChunk("", 0, is_complete=is_over)
        is_at_end = next_offset >= size
        cut = 0 if is_over and is_at_end else n_bytes_of_a_cut_character(data)
        if cut:
            data, next_offset = data[:-cut], next_offset - cut
        return LogChunk(data.decode(errors="replace"), next_offset, is_complete=is_over and is_at_end)

    def probe(self, nodes: Sequence[ProbedNode], *, at: datetime) -> list[NodeReport]:
        """All its nodes are this machine."""
        if not nodes:
            return []
        with self._locked():
            pass  # the spool is there, and can be used
        of_machine = local_probe.machine_checks(self._spool)
        gpus = local_probe.gpus()
        return [
            NodeReport(node=node.name, checks=(*of_machine, *local_probe.gpu_checks(node, gpus)))
            for node in nodes
        ]

    # Housekeeping

    def bell(self) -> Path:
        """The FIFO that is rung when something began or ended."""
        self._lay_out()
        return self._spool / "bell"

    def prune(self, *, before: datetime) -> int:
        """Delete the logs, and the memory, of runs that were forgotten before this time; return how many."""
        with self._locked():
            old = [path for path in self._ended.iterdir() if path.stat().st_mtime < before.timestamp()]
            for folder in (*old, *self._spool.glob("new-*")):  # the latter: claims that were killed half-way
                shutil.rmtree(folder, ignore_errors=True)
            jobs_left = {
                str(self._job_of(folder)) for folder in (*self._runs.iterdir(), *self._ended.iterdir())
            }
            for fence in self._fences.iterdir():
                if fence.name not in jobs_left and fence.stat().st_mtime < before.timestamp():
                    fence.unlink()
        return len(old)

    # Claims

    def _claim(self, order: Order) -> bool:
        """Note the launch under its number; whether a shepherd has to be woken for it.

        The folder gets its name last, whole and on the disk, so that a claim always has its order with it.
        """
        if (self._ended / str(order.allocation_id)).exists():
            return False
        if (self._runs / str(order.allocation_id)).exists():
            return shepherd.read_whole(f"{self._runs / str(order.allocation_id)}/status.json") is None
        newest, holder = self._newest_fence(order.job_id)
        if order.fence < newest or (order.fence == newest and holder != order.allocation_id):
            raise StaleFence(job_id=order.job_id, fence=order.fence, newest=newest)
        with self._new_run(order.allocation_id, order.job_id, order.fence) as folder:
            self._fill(folder, order)
        return True

    @contextlib.contextmanager
    def _new_run(self, allocation_id: int, job_id: int, fence: int) -> Iterator[Path]:
        hidden = self._spool / f"new-{allocation_id}"
        shutil.rmtree(hidden, ignore_errors=True)  # of a claim that was killed half-way
        hidden.mkdir(mode=0o700)
        yield hidden
        shepherd.sync_folder(str(hidden))
        # The fence first: a claim that is killed right here is made again, by the same allocation alone.
        shepherd.write_whole(f"{self._fences}/{job_id}", {"fence": fence, "allocation_id": allocation_id})
        hidden.rename(self._runs / str(allocation_id))
        shepherd.sync_folder(str(self._runs))

    def _newest_fence(self, job_id: int) -> tuple[int, int | None]:
        """The highest fence known of a job, and the allocation it belongs to."""
        known = shepherd.read_whole(f"{self._fences}/{job_id}") or {}
        return known.get("fence", 0), known.get("allocation_id")

    def _fill(self, folder: Path, order: Order) -> None:
        final = self._runs / str(order.allocation_id)
        cookie = f"{self._spool}/{order.allocation_id}"
        if order.workdir is None:
            (folder / "work").mkdir(mode=0o700)
        script: list[str] | None = None
        if order.script is not None:
            (folder / "script").touch(mode=0o700)
            (folder / "script").write_text(order.script)
            script = [*interpreter_of(order.script), str(final / "script")]
        content = {
            "allocation_id": order.allocation_id,
            "job_id": order.job_id,
            "fence": order.fence,
            "cookie": cookie,
            "bell": str(self._spool / "bell"),
            "workdir": order.workdir or str(final / "work"),
            "time_limit_s": order.time_limit_s,
            "grace_s": order.grace_s,
            "log_limit_bytes": self._log_limit_bytes,
            "devices": sorted({index for replica in order.replicas for index in replica.device_indices}),
            "env": {**_passed_on(), **order.env, shepherd.COOKIE: cookie},
            "replicas": [
                {
                    "rank": replica.rank,
                    "command": list(replica.command) if replica.command is not None else script,
                    "env": env_of(order, replica),
                }
                for replica in order.replicas
            ],
        }
        shepherd.write_whole(f"{folder}/order.json", content, is_durable=True)
        if script is None and any(replica.command is None for replica in order.replicas):
            _write_end(folder, EndReason.BAD_COMMAND, "There is neither a command nor a script to run.")

    # Stops

    def _stop(self, stop: StopOrder, at: datetime) -> None:
        name = str(stop.allocation_id)
        folder = self._runs / name
        if (self._ended / name).exists():
            return
        if not folder.exists():
            if stop.fence <= self._newest_fence(stop.job_id)[0]:
                # A later attempt is known, or this one was pruned: a launch of it would be refused anyway.
                # The mark is made nevertheless, without touching the fence, because the ledger waits to see
                # it.
                (self._spool / f"new-{name}").mkdir(mode=0o700, exist_ok=True)
                self._mark(self._spool / f"new-{name}", stop, at)
                (self._spool / f"new-{name}").rename(folder)
                return
            with self._new_run(stop.allocation_id, stop.job_id, stop.fence) as fresh:
                self._mark(fresh, stop, at)
            return
        if (shepherd.read_whole(f"{folder}/order.json") or {}).get("fence", stop.fence) != stop.fence:
            return
        earlier = shepherd.read_whole(f"{folder}/stop.json")
        if earlier is None or stop.grace_s < earlier["grace_s"]:
            shepherd.write_whole(f"{folder}/stop.json", {"grace_s": stop.grace_s})
        if not shepherd.ring(f"{folder}/bell"):
            self._revive(folder)

    def _mark(self, folder: Path, stop: StopOrder, at: datetime) -> None:
        content = {"allocation_id": stop.allocation_id, "job_id": stop.job_id, "fence": stop.fence}
        shepherd.write_whole(f"{folder}/order.json", content)
        _write_end(folder, EndReason.NEVER_STARTED, "", ended_at=at.timestamp())

    # Looks

    def _look(self, folder: Path, at: datetime) -> Seen | None:
        status = shepherd.read_whole(f"{folder}/status.json")
        if status is not None and status["state"] != "ended" and not is_locked(folder / "lock"):
            self._revive(folder)
            status = shepherd.read_whole(f"{folder}/status.json") or status
        order = shepherd.read_whole(f"{folder}/order.json")
        if order is None or not folder.name.isdigit():
            return None  # nothing of ours: a claim always has its order with it
        state = RunState(status["state"]) if status is not None else RunState.CLAIMED
        status = status or {}
        limit = shepherd.read_whole(f"{folder}/limit.json") or order
        return Seen(
            allocation_id=int(folder.name),
            job_id=order["job_id"],
            fence=order["fence"],
            state=state,
            started_at=instant(status.get("started_at")),
            ended_at=instant(status.get("ended_at")),
            time_limit_s=limit.get("time_limit_s"),
            exit_code=status.get("exit_code"),
            reason=EndReason(status["reason"]) if state == RunState.ENDED else None,
            message=status.get("message", ""),
        )

    def _folder_of(self, allocation_id: int) -> Path | None:
        # Twice over, since it may move from one to the other between two looks.
        for parent in (self._runs, self._ended, self._runs):
            folder = parent / str(int(allocation_id))
            if folder.exists():
                return folder
        return None

    @staticmethod
    def _job_of(folder: Path) -> int | None:
        return (shepherd.read_whole(f"{folder}/order.json") or {}).get("job_id")

    # The spool

    def _locked(self) -> AbstractContextManager[None]:
        return file_lock(self._spool / "lock", self._lay_out, called=f"The spool {self._spool}")

    def _lay_out(self) -> None:
        for folder in (self._spool, self._runs, self._ended, self._fences):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._spool / "bell", 0o600)

    def _revive(self, folder: Path) -> None:
        """Give a run its shepherd back. If that fails, the next look tries again; other runs are not kept waiting."""
        try:
            self._wake_shepherd(folder)
        except OutsideError as error:
            _log.warning("Run %s: %s", folder.name, error.message)

    def _wake_shepherd(self, folder: Path) -> None:
        """Start a shepherd for a run that has none; one that has ends the new one at once.

        Comes back when the shepherd holds its lock. Claims and looks happen under the spool's lock, so
        nobody takes a shepherd that is just coming up for a dead one.
        """
        log = shepherd.open_private(f"{folder}/shepherd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if os.fstat(log).st_size > MOST_TROUBLE_BYTES:
            os.ftruncate(log, 0)
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", shepherd.__file__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_passed_on() | _driver(),
                cwd="/",
                start_new_session=True,
                check=True,
                timeout=START_PATIENCE_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise OutsideError(f"The run's shepherd did not start: {error}.") from error
        finally:
            os.close(log)


def _write_end(folder: Path, reason: EndReason, message: str, *, ended_at: float | None = None) -> None:
    status = {"state": "ended", "reason": reason, "exit_code": None, "message": message, "ended_at": ended_at}
    shepherd.write_whole(f"{folder}/status.json", status, is_durable=True)


def _passed_on() -> dict[str, str]:
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    kept.update({name: value for name, value in os.environ.items() if name.startswith("LC_")})
    return kept


def _driver() -> dict[str, str]:
    """Which driver the shepherd sets caps with; no concern of the job's."""
    named = os.environ.get(nvml.NAMED_BY)
    return {nvml.NAMED_BY: named} if named else {}


def env_of(order: Order, replica: Replica) -> Mapping[str, str]:
    """What tells a replica who it is; it stands above whatever the job itself set."""
    indices = ",".join(str(index) for index in replica.device_indices)
    nodes = list(dict.fromkeys(other.node for other in order.replicas))
    return {
        "CUDA_VISIBLE_DEVICES": indices,
        "SWITCHYARD_DEVICE_INDICES": indices,
        "SWITCHYARD_JOB_ID": str(order.job_id),
        "SWITCHYARD_ALLOCATION_ID": str(order.allocation_id),
        "SWITCHYARD_ATTEMPT": str(order.fence),
        "SWITCHYARD_RANK": str(replica.rank),
        "SWITCHYARD_N_REPLICAS": str(len(order.replicas)),
        "SWITCHYARD_GROUP": replica.group,
        "SWITCHYARD_NODE": replica.node,
        "SWITCHYARD_NODES": ",".join(nodes),
    }


def interpreter_of(script: str) -> list[str]:
    """The command in a script's first line, as the kernel reads it: a program and at most one argument.

    Started by its interpreter, a script also runs from a disk that is mounted without `exec`.
    """
    line = script.split("\n", 1)[0].removeprefix("#!").strip()
    return line.split(None, 1) or ["/bin/sh"]


def instant(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None


def n_bytes_of_a_cut_character(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character that the rest of is missing."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue  # the middle of a character: look further back
        length = (
            1
            if byte < 0x80
            else 2
            if byte >> 5 == 0b110
            else 3
            if byte >> 4 == 0b1110
            else 4
            if byte >> 3 == 0b11110
            else 1
        )
        return back if length > back else 0
    return 0

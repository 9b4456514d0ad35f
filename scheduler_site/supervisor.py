"""Keeps a handful of programs running: starts them, starts them again when they die, stops them in order.

Each program leads a process group of its own, so that Ctrl-C in the terminal reaches the supervisor alone, and so that
what a dead program leaves behind can be ended with it. Jobs of a local cluster lead sessions of their own: they are
never in these groups, and live on.

What runs is written to a file with the instant each process began (a number alone may be somebody else's by now), so
that the next supervisor finds what an earlier one, killed, has left.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from apps.core import clock

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_LONGEST_WAIT_KILLED_S = 1.0  # somebody's kill says nothing about the next try
_STEADY_S = 30.0  # having run that long, a program is forgiven its past
_LARGEST_LOG = 50 * 1024 * 1024
_BIRTH_TOLERANCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """One thing to keep running."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    identity: Mapping[str, Any] = field(default_factory=dict)
    before_start: Callable[[], None] = lambda: None


class Keeper:
    """A program, the process it is now, and when it may be started again."""

    def __init__(self, program: Program, log_dir: Path, say: Callable[[str], None]) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log_dir / f"{program.name}.log"
        self._say = say
        self._started_s = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._not_before_s = 0.0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.program.before_start()
        _shorten(self._log)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.program.command,
                env={**os.environ, **self.program.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self.program.identity,
            )
        self._started_s = clock.monotonic_s()

    def tend(self) -> bool:
        """Notice a death; start again when it is time. Answers whether anything changed."""
        if self.is_running:
            _shorten(self._log)
            return False
        now_s = clock.monotonic_s()
        if self.process is not None:
            if now_s - self._started_s > _STEADY_S:
                self._wait_s = _FIRST_WAIT_S
            self._say(
                f"{self.program.name} {_how_it_ended(self.process)}; starting it again in {self._wait_s:g} s"
            )
            failed_by_itself = self.process.returncode > 0
            if failed_by_itself:
                self._say_last_lines()
            end_group(self.process.pid, self.process.pid, 0.0)
            self.process = None
            self._not_before_s = now_s + self._wait_s
            self._wait_s = min(
                2 * self._wait_s, _LONGEST_WAIT_S if failed_by_itself else _LONGEST_WAIT_KILLED_S
            )
            return True
        if now_s < self._not_before_s:
            return False
        self.start()
        return True

    def ask_to_stop(self) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(self.program.stop_signal)

    def see_stopped(self, within_s: float) -> None:
        """Wait for the end that was asked for; then insist. Leaves nothing of the group behind."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        if self.is_running:
            self._say(f"{self.program.name} does not stop; killing it")
            self.process.kill()
            self.process.wait()
        end_group(self.process.pid, self.process.pid, 0.0)
        self.process = None

    def _say_last_lines(self) -> None:
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 4096))
            for line in log.read().decode(errors="replace").splitlines()[-4:]:
                self._say(f"  {line}")


class Register:
    """The file that tells the next supervisor what this one has started."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, keepers: Iterable[Keeper]) -> None:
        rows = []
        for keeper in keepers:
            if keeper.process is None:
                continue
            with suppress(psutil.NoSuchProcess):
                born_at_s = psutil.Process(keeper.process.pid).create_time()
                rows.append({"name": keeper.program.name, "pid": keeper.process.pid, "born_at_s": born_at_s})
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(rows))
        fresh.rename(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def end_leftovers(self, stop_signals: Mapping[str, signal.Signals], say: Callable[[str], None]) -> None:
        """End what an earlier supervisor started and could not stop; nothing else."""
        try:
            rows = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return
        for row in reversed(rows):
            name, pid, born_at_s = row["name"], int(row["pid"]), float(row["born_at_s"])
            if end_group(pid, pid, born_at_s, first=stop_signals.get(name, signal.SIGTERM)):
                say(f"stopped {name} (process {pid}), left over from an earlier run")
        self.clear()


def end_group(
    pid: int,
    group: int,
    born_at_s: float,
    *,
    first: signal.Signals = signal.SIGKILL,
    timeout_s: float = 10.0,
) -> bool:
    """End a process and the rest of its group, if they are those we know: none of them older than `born_at_s`.

    Answers whether there was anything to end.
    """
    members = _members(pid, group, born_at_s)
    for member in members:
        with suppress(psutil.NoSuchProcess):
            member.send_signal(first)
    _, alive = psutil.wait_procs(members, timeout=timeout_s)
    for member in alive:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(alive, timeout=timeout_s)
    return bool(members)


def _members(pid: int, group: int, born_at_s: float) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) != group or process.status() == psutil.STATUS_ZOMBIE:
                continue
            age_s = process.create_time() - born_at_s
            # The leader must be the very process; those it started came after it.
            if (
                abs(age_s) <= _BIRTH_TOLERANCE_S
                if process.pid == pid and born_at_s
                else age_s >= -_BIRTH_TOLERANCE_S
            ):
                found.append(process)
    leader_is_another = born_at_s and psutil.pid_exists(pid) and all(process.pid != pid for process in found)
    return [] if leader_is_another and not _is_zombie(pid) else found


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _how_it_ended(process: "subprocess.Popen[bytes]") -> str:
    code = process.returncode
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _shorten(log: Path) -> None:
    """Keep one older part of a log that has grown too long. Writers append, so the file can be cut under them."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > _LARGEST_LOG:
            log.with_suffix(".log.1").write_bytes(log.read_bytes())
            os.truncate(log, 0)

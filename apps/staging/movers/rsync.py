"""Carries folders and files between this machine and others, by rsync (and ssh).

What arrives lies in a hidden folder beside the target until it is whole, and is then renamed: nobody meets half a copy.
Going on after a kill compares what lies there with the source and sends the rest.

Other machines need rsync and GNU coreutils, and let this user in by a key, without a password asked.
"""

import os
import re
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from apps.staging.movers.base import MoveError
from apps.staging.movers.carrier import Task
from apps.staging.movers.folder import start_of, write_whole
from apps.staging.movers.places import HIDDEN, Location, located, parse

DEFAULT_RSH: Final = (
    "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    " -o ControlPath=none"
)
SILENCE_S: Final = 120  # rsync gives up when nothing moved for so long
_COMMAND_S: Final = 120.0
# Owners are not kept (that takes root), nor what would give a program another user's rights.
_COPY: Final = ("-rltp", "-s", "--chmod=ug-s", "--safe-links", "--no-h", f"--timeout={SILENCE_S}")
_TOTAL: Final = re.compile(r"Total file size: ([\d,]+) bytes")
_TO_SEND: Final = re.compile(r"Total transferred file size: ([\d,]+) bytes")
_PROGRESS: Final = re.compile(r"\s*([\d,]+)\s+\d+%\s")
_CHANGE: Final = re.compile(r"[<>ch][fdLDS][^ ]{9} |\*deleting ")  # not those of rights and times alone
_LEFT_OUT: Final = ("ignoring unsafe symlink", "skipping non-regular file")
_HOPELESS: Final = (1, 2, 4)  # wrong usage, another protocol, something it cannot do


class Host:
    """A machine, and commands on it."""

    def __init__(self, name: str, rsh: str) -> None:
        self._name, self._rsh = name, rsh

    def run(self, *words: str, is_asked: bool = False) -> str:
        """What a command prints. Asked: the exit code 1 is an answer (no text), not trouble."""
        command = list(words) if not self._name else [*shlex.split(self._rsh), self._name, shlex.join(words)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=_COMMAND_S, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            raise MoveError(f"The program {command[0]} is not installed here.", permanent=True) from None
        except subprocess.TimeoutExpired:
            raise MoveError(f"{self._name or 'This machine'} did not answer in {_COMMAND_S:.0f} s.") from None
        if done.returncode and not (is_asked and done.returncode == 1):
            raise MoveError(f"{words[0]} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done.stdout if not done.returncode else ""

    def holds(self, test: str, path: str) -> bool:
        # By its output: `test` of a shell that cannot be reached must not be taken for a no.
        return self.run("sh", "-c", f'test {test} "$1" && echo yes || echo no', "sh", path).strip() == "yes"

    def real(self, path: str) -> PurePosixPath:
        return PurePosixPath(self.run("realpath", "-m", "--", path).removesuffix("\n"))

    def free_bytes(self, path: str) -> int:
        return int(self.run("df", "-B1", "--output=avail", "--", path).split()[-1])

    def held_bytes(self, path: str) -> int:
        return int(self.run("du", "-s", "-B1", "--apparent-size", "--", path).split()[0])

    def as_rsync(self, path: str) -> str:
        return f"{self._name}:{path}" if self._name else path


class Rsync:
    """One move by rsync."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rsh: str = task.options.get("rsh") or DEFAULT_RSH
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        order = self._task.order
        source, target = located(order["source"]), located(order["target"])
        if source.scheme == target.scheme == "ssh":
            raise MoveError(
                "rsync cannot copy between two other machines; one of them must be this one.", permanent=True
            )
        source_host, target_host = Host(_host(source), self._rsh), Host(_host(target), self._rsh)
        origin = self._origin(source_host, source)
        parent = self._parent(target_host, target)
        final = parent / PurePosixPath(target.path).name
        from_here, to_there = source_host.as_rsync(str(origin)), target_host.as_rsync
        if target_host.holds("-e", str(final)) or target_host.holds("-L", str(final)):
            self._require_same(source_host, target_host, str(origin), final)
            target_host.run("rm", "-rf", "--", str(self._hidden(parent)))
            return
        hidden = self._hidden(parent)
        is_begun = target_host.holds("-d", str(hidden))
        target_host.run("mkdir", "-p", "--", str(hidden))
        total, to_send = self._measure(from_here, to_there(f"{hidden}/"))
        self._task.found(bytes_total=total, bytes_there=total - to_send)
        self._require_room(target_host, hidden, total)
        # A whole file is quicker to send than to compare; what was begun is worth comparing.
        how = ("--inplace", "--partial", "--delete", "--no-whole-file" if is_begun else "--whole-file")
        self._send([*how, *self._limit(), from_here, to_there(f"{hidden}/")], already=total - to_send)
        landed = hidden / origin.name
        target_host.run("sync", "-f", "--", str(landed))
        self._task.check()
        target_host.run("mv", "-nT", "--", str(landed), str(final))
        if target_host.holds("-e", str(landed)):
            raise MoveError(f"Something else appeared at {final}.", permanent=True)
        target_host.run("rm", "-rf", "--", str(hidden))
        self._task.reached(total)

    def clean(self) -> None:
        target = located(self._task.order["target"])
        host = Host(_host(target), self._rsh)
        parent = self._parent(host, target, makes=False)
        host.run("rm", "-rf", "--", str(self._hidden(parent)))

    def interrupt(self) -> None:
        with self._lock:
            if self._child is not None and self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGTERM)

    # Places

    def _origin(self, host: Host, place: Location) -> PurePosixPath:
        base = _base(host, self._task.order["source"])
        origin = host.real(place.path)
        _require_below(origin, base)
        if not host.holds("-e", str(origin)):
            raise MoveError(f"There is nothing at {place.path}.", permanent=True)
        return origin

    def _parent(self, host: Host, place: Location, *, makes: bool = True) -> PurePosixPath:
        base = _base(host, self._task.order["target"])
        parent = host.real(str(PurePosixPath(place.path).parent))
        _require_below(parent, base)
        if makes:
            host.run("mkdir", "-p", "--", str(parent))
        return parent

    def _hidden(self, parent: PurePosixPath) -> PurePosixPath:
        return parent / f"{HIDDEN}{self._task.order['key']}"

    def _require_room(self, host: Host, hidden: PurePosixPath, total: int) -> None:
        need, free = total - host.held_bytes(str(hidden)), host.free_bytes(str(hidden))
        if need > free:
            raise MoveError(
                f"There is no room: {need / 2**30:.2f} GiB are to come, and {free / 2**30:.2f} GiB are free."
            )

    def _require_same(self, source_host: Host, target_host: Host, origin: str, final: PurePosixPath) -> None:
        """What is there already counts as arrived when it is the same; it is never written over."""
        is_link = target_host.holds("-L", str(final))
        slash = "/" if source_host.holds("-d", origin) else ""
        is_folder = target_host.holds("-d", str(final))
        if is_link or is_folder != bool(slash):
            raise MoveError(f"There is something else at {final} already.", permanent=True)
        compare = ["-n", "-i", "-O", "--delete", "--info=stats2"]
        paths = [source_host.as_rsync(origin + slash), target_host.as_rsync(f"{final}{slash}")]
        total, changes = 0, 0
        for line in self._lines([*compare, *paths]):
            if found := _TOTAL.match(line):
                total = _number(found)
            changes += _CHANGE.match(line) is not None
        if changes:
            raise MoveError(f"There is something else at {final} already.", permanent=True)
        self._task.found(bytes_total=total, bytes_there=total)

    # rsync

    def _measure(self, source: str, target: str) -> tuple[int, int]:
        """Bytes in all, and bytes that are not there yet. Refuses what rsync would leave out."""
        total = to_send = 0
        left_out = ""
        for line in self._lines(["-n", "--info=stats2,name1,nonreg1", source, target]):
            if line.startswith(_LEFT_OUT):
                left_out = left_out or line.strip()
            elif found := _TOTAL.match(line):
                total = _number(found)
            elif found := _TO_SEND.match(line):
                to_send = _number(found)
        if left_out:
            raise MoveError(f"It cannot be copied whole: {left_out}.", permanent=True)
        return total, to_send

    def _send(self, arguments: Sequence[str], *, already: int) -> None:
        for line in self._lines(["--info=progress2", "--outbuf=L", *arguments]):
            if found := _PROGRESS.match(line):
                self._task.reached(already + _number(found))

    def _limit(self) -> list[str]:
        most = self._task.order.get("most_bytes_per_s")
        return [f"--bwlimit={max(int(most / 1024), 1)}"] if most else []

    def _lines(self, arguments: Sequence[str]) -> Any:
        """Run rsync, and give its lines as they come."""
        self._task.check()
        command = ["rsync", *_COPY, "-e", self._rsh, *arguments[:-2], "--", *arguments[-2:]]
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                errors="replace", start_new_session=True, env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except FileNotFoundError:
            raise MoveError("The program rsync is not installed here.", permanent=True) from None
        with self._lock:
            self._child = child
        write_whole(self._task.folder / "child.json", {"pid": child.pid, "start": start_of(child.pid)})
        said: deque[str] = deque(maxlen=4)
        assert child.stdout is not None and child.stderr is not None  # noqa: PT018  (both, for the type checker)
        reader = threading.Thread(target=said.extend, args=(child.stderr,), daemon=True)
        reader.start()
        try:
            yield from child.stdout
        finally:
            child.stdout.close()
            code = child.wait()
            reader.join(5)
        self._task.check()
        if code:
            raise MoveError(
                " ".join(said).strip() or f"rsync ended with code {code}.", permanent=code in _HOPELESS
            )


def make(task: Task) -> Rsync:
    """The work on a task."""
    return Rsync(task)


def _host(place: Location) -> str:
    return place.host if place.scheme == "ssh" else ""


def _base(host: Host, place: dict[str, Any]) -> PurePosixPath:
    path = parse(place["base_uri"]).path
    if not host.holds("-d", path):
        # Not made: a disk that is not mounted must not have its place filled.
        raise MoveError(f"The store's folder {place['base_uri']} is not there.")
    return host.real(path)


def _require_below(path: PurePosixPath, base: PurePosixPath) -> None:
    if not path.is_relative_to(base):
        raise MoveError(f"{path} lies outside the store: a link leads out of it.", permanent=True)


def _number(found: re.Match[str]) -> int:
    return int(found[1].replace(",", ""))

"""Watches over one allocation's processes on this machine, from start to end, whatever happens to the rest.

Run as `python -I -S shepherd.py FOLDER` by the local backend; needs nothing but the standard library and
Linux. It leaves its starter at once, so that neither Ctrl-C nor a kill of the worker reaches it.

The processes: a shepherd; under it one keeper a replica; under each keeper the replica's command in a
session of its own. The keeper is the command's parent: it alone learns the exit code, and it copies the
output into files that cannot grow without bound. The shepherd decides: time limit, stop, all or none.

The folder is the only memory. Each file has one writer:
    order.json      the backend, before the folder has its name: what to run
    stop.json       the backend: when to end it by force
    limit.json      the backend: the time limit, when it has changed
    cap.json        the backend: the power cap on its devices, how long it holds, and what it goes back to
    cap.held        the shepherd: the cap that is set
    status.json     the shepherd: starting, running or ended, its keepers, and how it ended
    up.<rank>       the keeper: the command's process, written before the command may begin
    exit.<rank>     the keeper: exit code and time
    stdout.<rank>, stderr.<rank>
    lock            held by the shepherd as long as it lives; the kernel lets go when it dies, however it dies
    bell            a FIFO: a byte in it makes the shepherd look again

Any of these processes may be killed between any two steps:
- shepherd killed: the backend finds the lock free and starts another one, which goes on from the folder. A
  keeper without `up` waits for a word that never comes, and ends without having run anything, so a new
  start is safe. A keeper with `up` is watched as before.
- keeper killed: its exit code is lost with it; what it ran is killed, and the run is reported as lost.
- machine restarted: the boot id in status.json is another one; the run is reported as lost.
A process is known by its number and its start time, since numbers are used again.
"""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

TRY_CAP_AGAIN_S = 10.0
TAIL_BYTES = 256 * 1024  # of output beyond the limit, this much of the end is kept
LEFTOVERS_S = (
    0.5  # what still runs when the command has ended (a `tee` of its output, say) may finish that long
)
KILL_EVERY_S = 0.05
LOOK_EVERY_S = 1.0
COOKIE = "SWITCHYARD_RUN"
_STUBBORN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
_OUTSIDE_ERRNOS = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.EMFILE,
    errno.ENFILE,
    errno.EIO,
    errno.EDQUOT,
)


def _now_s() -> float:
    return time.time()  # noqa: TID251  (this file runs without the rest of the product, its clock included)


# Files ------------------------------------------------------------------------------------------------------


def write_whole(path: str, data: dict[str, Any], *, is_durable: bool = False) -> None:
    """Replace a file in one step: a reader meets the old text or the new one."""
    hidden = f"{path}.{os.getpid()}.new"
    with open(hidden, "w", opener=open_private) as file:
        json.dump(data, file)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    os.rename(hidden, path)
    if is_durable:
        sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make names in a folder survive a loss of power."""
    folder = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_whole(path: str) -> dict[str, Any] | None:
    """The file's content; None where there is none, or none that can be read."""
    try:
        with open(path) as file:
            data = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def ring(path: str) -> bool:
    """Put a byte in a FIFO if somebody listens there."""
    try:
        bell = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(bell, b"!")
    except BlockingIOError:
        pass  # full: it rings already
    except OSError:
        return False
    finally:
        os.close(bell)
    return True


# Processes --------------------------------------------------------------------------------------------------


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it is gone or only waits to be buried."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, start: int | None) -> bool:
    return start is not None and start_of(pid) == start


def bearers(cookie: str) -> list[int]:
    """Living processes that carry this run's cookie in their environment, wherever they went."""
    wanted = f"{COOKIE}={cookie}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and start_of(int(name)) is not None:
                    found.append(int(name))
        except OSError:
            continue  # gone meanwhile, or not ours to look at
    return found


def _become_reaper() -> None:
    # Without it a daemon that the job leaves behind would be handed to init, out of the keeper's sight.
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _children_of(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


# The keeper -------------------------------------------------------------------------------------------------


class Capture:
    """One output stream of the command, copied into a file of bounded size.

    The beginning is written as it comes. Beyond the limit only the last part is remembered, and written at
    the end after a line that says how much is missing.
    """

    def __init__(self, source: int, path: str, limit: int) -> None:
        self.source, self._room = source, max(0, limit - TAIL_BYTES)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._tail, self._n_dropped = bytearray(), 0
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Copy what is there; False when nothing can come any more."""
        for _ in range(64):
            try:
                data = os.read(self.source, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        head, rest = data[: self._room], data[self._room :]
        if head:
            self._write(head)
            self._room -= len(head)
        if rest:
            self._tail += rest
            excess = len(self._tail) - TAIL_BYTES
            if excess > 0:
                del self._tail[:excess]
                self._n_dropped += excess

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError:  # no space left: the job goes on, its output does not
                self._n_dropped += len(view)
                self._room = 0
                return

    def close(self) -> None:
        if self._n_dropped:
            self._write(f"\n[switchyard: {self._n_dropped} bytes are not kept here]\n".encode())
        self._write(bytes(self._tail))
        os.close(self._file)
        os.close(self.source)


def keep(folder: str, order: dict[str, Any], replica: dict[str, Any], go: int, umask: int) -> NoReturn:
    """Run one replica's command and write down how it ends. Never returns."""
    rank = replica["rank"]
    os.setsid()
    if not os.read(go, 1):
        os._exit(0)  # the shepherd died before it gave the word: nothing has run
    os.close(go)
    _become_reaper()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    word_read, word_write = os.pipe()  # to the command: begin
    back_read, back_write = (
        os.pipe()
    )  # from the command: in a session of its own; then why it could not begin
    try:
        pid = os.fork()
    except OSError as error:
        _note_exit(folder, rank, {"error": f"cannot start a process: {error.strerror}", "is_outside": True})
    if pid == 0:
        for unused in (word_write, back_read):
            os.close(unused)
        _become(folder, order, replica, (out_write, err_write, word_read, back_write), umask)
    for unused in (out_write, err_write, word_read, back_write):
        os.close(unused)
    os.read(back_read, 1)
    up = {"pid": pid, "start": start_of(pid), "is_up": False, "at": None}
    write_whole(f"{folder}/up.{rank}", up)
    with contextlib.suppress(BrokenPipeError):
        os.write(word_write, b"!")
    os.close(word_write)
    error_text = b"".join(iter(lambda: os.read(back_read, 4096), b""))
    os.close(back_read)
    if not error_text:
        write_whole(f"{folder}/up.{rank}", {**up, "is_up": True, "at": _now_s()})
        ring(f"{folder}/bell")
    captures = [
        Capture(out_read, f"{folder}/stdout.{rank}", order["log_limit_bytes"]),
        Capture(err_read, f"{folder}/stderr.{rank}", order["log_limit_bytes"]),
    ]
    status = _copy_until_exit(pid, captures, wake_read)
    ended_at = _now_s()
    _kill_leftovers(pid, captures)
    for capture in captures:
        capture.close()
    if error_text:
        _note_exit(folder, rank, {**json.loads(error_text), "at": ended_at})
    code = os.waitstatus_to_exitcode(status)
    _note_exit(
        folder,
        rank,
        {"code": code if code >= 0 else 128 - code, "signal": -code if code < 0 else None, "at": ended_at},
    )


def _become(
    folder: str, order: dict[str, Any], replica: dict[str, Any], ends: tuple[int, ...], umask: int
) -> NoReturn:
    """In the forked child: turn into the command, or say why not."""
    out_write, err_write, word_read, back_write = ends
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_STUBBORN, signal.SIGCHLD, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.write(back_write, b"!")
        if not os.read(word_read, 1):
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out_write, 1), (err_write, 2)):
            os.dup2(source, target)
        os.umask(umask)
        workdir = order["workdir"]
        try:
            os.chdir(workdir)
        except OSError as error:
            _refuse(back_write, f"working folder {workdir}: {error.strerror}", error, code=126)
        command = replica["command"]
        try:
            env = {**order["env"], **replica["env"]}
            os.execvpe(command[0], command, env)  # noqa: S606  (no shell: on purpose)
        except FileNotFoundError as error:
            _refuse(back_write, f"command not found: {command[0]}", error, code=127)
        except OSError as error:
            _refuse(back_write, f"cannot run {command[0]}: {error.strerror}", error, code=126)
    except BaseException as error:
        _refuse(back_write, f"cannot start: {error}", error, code=126)


def _refuse(back: int, message: str, error: BaseException, *, code: int) -> NoReturn:
    is_outside = isinstance(error, OSError) and error.errno in _OUTSIDE_ERRNOS
    # Less than PIPE_BUF, so that one write takes it whole.
    os.write(
        back, json.dumps({"error": message[:500], "code": code, "is_outside": is_outside}).encode()[:4096]
    )
    os._exit(code)


def _copy_until_exit(pid: int, captures: list[Capture], wake: int) -> int:
    open_ones = {capture.source: capture for capture in captures}
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    for source in open_ones:
        poll.register(source, select.POLLIN)
    while True:
        for ready, _ in poll.poll(1000 * LOOK_EVERY_S):
            if ready == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif not open_ones[ready].pump():
                poll.unregister(ready)
        for child, status in _reaped():
            if child == pid:
                return status


def _reaped() -> Iterator[tuple[int, int]]:
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        yield child, status


def _kill_leftovers(group: int, captures: list[Capture]) -> None:
    """End what the command left behind, and take the last of the output."""
    kill_at = _now_s() + LEFTOVERS_S
    while _has_children():
        for capture in captures:
            capture.pump()
        if _now_s() >= kill_at:
            _signal_group(group, signal.SIGKILL)
            for child in _children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    for capture in captures:
        capture.pump()


def _has_children() -> bool:
    """Whether anything the command began still lives: as the reaper, the keeper is its parent by now."""
    for _ in _reaped():
        pass
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _note_exit(folder: str, rank: int, data: dict[str, Any]) -> NoReturn:
    write_whole(f"{folder}/exit.{rank}", {"at": _now_s(), **data}, is_durable=True)
    ring(f"{folder}/bell")
    os._exit(0)


# The shepherd -----------------------------------------------------------------------------------------------


class Shepherd:
    """Starts an allocation's replicas together, or finds them again, and ends them together."""

    def __init__(self, folder: str, lock: int) -> None:
        self._folder, self._lock = folder, lock
        self._umask = os.umask(0o077)
        self._order: dict[str, Any] = read_whole(f"{folder}/order.json") or {}
        self._status: dict[str, Any] = read_whole(f"{folder}/status.json") or {}
        self._exits: dict[int, dict[str, Any]] = {}
        self._lost: set[int] = set()
        self._cause = self._status.get("cause", "")
        self._signalled_at: float | None = self._status.get("signalled_at")
        self._kill_at: float | None = None
        self._cap: dict[str, Any] = read_whole(f"{folder}/cap.held") or {}
        self._try_cap_at = 0.0
        self._asked: set[int] = set()  # ranks this shepherd has signalled: one before may have died first
        with contextlib.suppress(FileExistsError):
            os.mkfifo(f"{folder}/bell", 0o600)
        self._bell = os.open(
            f"{folder}/bell", os.O_RDWR | os.O_NONBLOCK
        )  # also a writer, so that it never hangs up

    def run(self) -> None:
        if self._status.get("state") == "ended":
            return
        if not self._order:
            self._end("start_failed", message="The order could not be read.")
        elif self._status.get("boot_id", boot_id()) != boot_id():
            self._end("lost", message="The machine was restarted.")
        elif "keepers" not in self._status and self._has_traces():
            self._sweep([replica["rank"] for replica in self._order["replicas"]])
            self._end("lost", message="What was known of its processes is lost.")
        elif self._has_begun() or self._start():
            self._watch()

    # Beginning

    def _has_begun(self) -> bool:
        """Whether any command of an earlier shepherd was let go.

        Waits for its keepers to be in one state or the other.
        """
        keepers = self._status.get("keepers", [])
        while any(
            is_alive(keeper["pid"], keeper["start"]) and not self._up(keeper["rank"]) for keeper in keepers
        ):
            time.sleep(0.005)
        return any(self._up(keeper["rank"]) is not None for keeper in keepers)

    def _has_traces(self) -> bool:
        """Whether a command was let go that the status knows nothing of: a file may be lost with the power."""
        return any(
            os.path.exists(f"{self._folder}/up.{replica['rank']}") for replica in self._order["replicas"]
        )

    def _up(self, rank: int) -> dict[str, Any] | None:
        return read_whole(f"{self._folder}/up.{rank}")

    def _start(self) -> bool:
        """Let all replicas go, each under its keeper; False when it was over before it began."""
        if os.path.exists(f"{self._folder}/stop.json"):
            self._end("never_started")
            return False
        self._save(state="starting", boot_id=boot_id(), began_at=_now_s())
        go_read, go_write = os.pipe()
        keepers = []
        try:
            for replica in self._order["replicas"]:
                pid = os.fork()
                if pid == 0:
                    # Its copy of the lock goes first: a keeper must not look like a living shepherd.
                    for unused in (self._lock, go_write, self._bell):
                        os.close(unused)
                    try:
                        keep(self._folder, self._order, replica, go_read, self._umask)
                    finally:
                        os._exit(70)
                keepers.append({"rank": replica["rank"], "pid": pid, "start": start_of(pid)})
        except OSError as error:
            os.close(go_write)  # those that exist end without having run
            self._end("start_failed", message=f"Cannot start a process: {error.strerror}.")
            return False
        os.close(go_read)
        self._save(keepers=keepers)
        os.write(go_write, b"!" * len(keepers))
        os.close(go_write)
        return True

    # Watching

    def _watch(self) -> None:
        keepers = {keeper["rank"]: keeper for keeper in self._status["keepers"]}
        handles: dict[int, int] = {}  # by rank; of those that are gone already there is none
        with contextlib.ExitStack() as open_handles:
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            for keeper in keepers.values():
                with contextlib.suppress(OSError, AttributeError):
                    handle = os.pidfd_open(keeper["pid"])
                    open_handles.callback(os.close, handle)
                    poll.register(handle, select.POLLIN)
                    handles[keeper["rank"]] = handle
            while True:
                for rank in self._collect(keepers):
                    if rank in handles:
                        poll.unregister(handles[rank])
                if len(self._exits) + len(self._lost) == len(keepers):
                    break
                self._note_running(keepers)
                self._decide()
                self._act(keepers)
                self._hold_cap()
                for ready, _ in poll.poll(1000 * self._wait_s()):
                    if ready == self._bell:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._bell, 4096)
        self._note_running(keepers)
        self._finish(keepers)

    def _collect(self, keepers: dict[int, dict[str, Any]]) -> list[int]:
        """Notice replicas that have ended since the last look."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        ended = []
        for rank, keeper in keepers.items():
            if rank in self._exits or rank in self._lost:
                continue
            is_kept = is_alive(keeper["pid"], keeper["start"])
            # Read after the look at the keeper: it may have written its last word just before it went.
            found = read_whole(f"{self._folder}/exit.{rank}")
            if found is not None:
                self._exits[rank] = found
            elif not is_kept:
                self._lost.add(rank)
            else:
                continue
            ended.append(rank)
        return ended

    def _note_running(self, keepers: dict[int, dict[str, Any]]) -> None:
        if "started_at" in self._status:
            return
        ups = [self._up(rank) for rank in keepers]
        if all(up is not None and up["is_up"] for up in ups):
            self._save(state="running", started_at=max(up["at"] for up in ups if up is not None))

    def _decide(self) -> None:
        """Find out whether it is to end, and when by force."""
        now = _now_s()
        stop = read_whole(f"{self._folder}/stop.json")
        if stop is not None:
            self._cause = self._cause or "stopped"
            # The grace begins when the signal is sent, also when nobody was there to send it for a while.
            self._kill_at = min(self._kill_at or float("inf"), (self._signalled_at or now) + stop["grace_s"])
        limit_s = self._limit_s()
        if not self._cause and limit_s is not None and now >= self._began_at() + limit_s:
            self._cause = "time_limit"
        if not self._cause and (self._lost or any(self._is_bad(found) for found in self._exits.values())):
            self._cause = "together"
        if self._cause and self._kill_at is None:
            self._kill_at = (self._signalled_at or now) + self._order["grace_s"]

    def _began_at(self) -> float:
        return float(self._status.get("started_at") or self._status["began_at"])

    def _limit_s(self) -> float | None:
        limit_s = (read_whole(f"{self._folder}/limit.json") or self._order)["time_limit_s"]
        return None if limit_s is None else float(limit_s)

    @staticmethod
    def _is_bad(found: dict[str, Any]) -> bool:
        return "error" in found or found["code"] != 0

    def _act(self, keepers: dict[int, dict[str, Any]]) -> None:
        if not self._cause:
            return
        left = [rank for rank in keepers if rank not in self._exits and rank not in self._lost]
        if self._signalled_at is None:
            self._signalled_at = _now_s()
            self._save(cause=self._cause, signalled_at=self._signalled_at)
        # A replica that is just coming up is asked as soon as there is somebody to ask.
        self._asked |= self._signal([rank for rank in left if rank not in self._asked], signal.SIGTERM)
        if self._kill_at is not None and _now_s() >= self._kill_at:
            self._signal(left, signal.SIGKILL)
            for pid in bearers(self._order["cookie"]):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _signal(self, ranks: list[int], number: int) -> set[int]:
        """Signal the groups of these replicas; return which of them there were."""
        reached = set()
        for rank in ranks:
            up = self._up(rank)
            if up is not None and is_alive(up["pid"], up["start"]):
                _signal_group(up["pid"], number)
                reached.add(rank)
        return reached

    def _wait_s(self) -> float:
        now = _now_s()
        if self._kill_at is not None:
            left_s = self._kill_at - now
            return KILL_EVERY_S if left_s <= 0 else float(min(left_s, LOOK_EVERY_S))
        if "started_at" not in self._status:
            return KILL_EVERY_S
        limit_s = self._limit_s()
        if limit_s is not None:
            return min(max(self._began_at() + limit_s - now, 0.0), LOOK_EVERY_S)
        return LOOK_EVERY_S

    # Power

    def _hold_cap(self) -> None:
        """Set the cap that was ordered last; when its lease is over, go back: nobody else may be left to do it."""
        order = read_whole(f"{self._folder}/cap.json")
        if order is None or order["fence"] < self._cap.get("fence", 0) or _now_s() < self._try_cap_at:
            return
        until = order["lease_until"]
        share = order["back_share"] if until is not None and _now_s() >= until else order["share"]
        told = {"fence": order["fence"], "lease_until": until}
        if self._cap.get("wanted") == share and not self._cap.get("message"):
            if {name: self._cap[name] for name in told} != told:
                self._note_cap(**told)
            return
        self._try_cap_at = _now_s() + TRY_CAP_AGAIN_S
        nvml = _nvml()
        if nvml is None or not self._order.get("devices"):
            self._note_cap(share=share, wanted=share, is_recorded=True, message="", **told)
        else:
            try:
                if "before_mw" not in self._cap:
                    # Written down before anything is set: whoever goes on from here gives back that, and no more.
                    self._cap["before_mw"] = nvml.limits_mw(self._order["devices"])
                    self._note_cap(share=1.0, wanted=None, is_recorded=False, message="", **told)
                held = nvml.hold(self._order["devices"], share, self._cap["before_mw"])
            except (OSError, nvml.NvmlError) as error:
                held = self._cap.get("share", 1.0)
                self._note_cap(share=held, wanted=share, is_recorded=False, message=str(error)[:300], **told)
                return
            # The driver counts in milliwatts: a share that it rounds is still the one that was asked for.
            held = share if abs(held - share) < 0.005 else held
            self._note_cap(share=held, wanted=share, is_recorded=False, message="", **told)
        self._try_cap_at = 0.0

    def _give_back_devices(self) -> None:
        """Whoever gets the devices next gets them as they were."""
        if "before_mw" in self._cap:
            nvml = _nvml()
            if nvml is not None:
                with contextlib.suppress(OSError, nvml.NvmlError):
                    nvml.hold(self._order["devices"], 1.0, self._cap["before_mw"])

    def _note_cap(self, **changes: Any) -> None:
        self._cap.update(changes)
        write_whole(f"{self._folder}/cap.held", self._cap)
        if self._order.get("bell"):
            ring(self._order["bell"])

    # Ending

    def _finish(self, keepers: dict[int, dict[str, Any]]) -> None:
        self._sweep(list(keepers))
        reason, code, message = self._verdict()
        self._end(reason, code=code, message=message)

    def _sweep(self, ranks: list[int]) -> None:
        """Leave nothing of it: its devices may be given to somebody else after this."""
        self._signal(ranks, signal.SIGKILL)
        while left := bearers(self._order["cookie"]):
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(KILL_EVERY_S)

    def _verdict(self) -> tuple[str, int | None, str]:
        by_time = sorted(self._exits.items(), key=lambda item: (item[1]["at"], item[0]))
        is_gang = len(self._order["replicas"]) > 1
        for rank, found in by_time:
            if "error" in found:
                where = f"replica {rank}: " if is_gang else ""
                return (
                    "start_failed" if found.get("is_outside") else "bad_command",
                    found.get("code"),
                    where + found["error"],
                )
        if self._cause in ("stopped", "time_limit"):
            # What had failed by itself before the signal went out was not stopped.
            for rank, found in by_time:
                if found["code"] != 0 and found["at"] < (self._signalled_at or 0.0):
                    return "exited", found["code"], self._told(rank, found, is_gang)
            code = next((found["code"] for _, found in by_time if found["code"] != 0), 0 if by_time else None)
            said = "Ran into its time limit." if self._cause == "time_limit" else ""
            return self._cause, code, said
        if self._lost:
            ranks = ", ".join(str(rank) for rank in sorted(self._lost))
            return "lost", None, f"The processes of replica {ranks} vanished without an exit code."
        for rank, found in by_time:
            if found["code"] != 0:
                return "exited", found["code"], self._told(rank, found, is_gang)
        return "exited", 0, ""

    @staticmethod
    def _told(rank: int, found: dict[str, Any], is_gang: bool) -> str:
        who = f"Replica {rank}" if is_gang else "The command"
        if found["signal"]:
            with contextlib.suppress(ValueError):
                return f"{who} was ended by {signal.Signals(found['signal']).name}."
            return f"{who} was ended by signal {found['signal']}."
        return f"{who} ended with exit code {found['code']}."

    def _end(self, reason: str, *, code: int | None = None, message: str = "") -> None:
        self._give_back_devices()
        ended_at = max((found["at"] for found in self._exits.values()), default=_now_s())
        self._save(
            state="ended", reason=reason, exit_code=code, message=message, ended_at=ended_at, is_durable=True
        )

    def _save(self, *, is_durable: bool = False, **changes: Any) -> None:
        self._status.update(changes)
        write_whole(f"{self._folder}/status.json", self._status, is_durable=is_durable)
        if "state" in changes and self._order.get("bell"):
            ring(self._order["bell"])


def _nvml() -> Any:
    """The module beside this file; None where this machine has no such devices."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml.py")
    with contextlib.suppress(OSError):
        spec = importlib.util.spec_from_file_location("switchyard_nvml", path)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module if module.is_there() else None
    return None


def main(folder: str) -> int:
    lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another one watches
    if os.fork():
        os._exit(0)  # the starter waits for no longer than this; the lock stays with the child
    for number in _STUBBORN:
        signal.signal(number, signal.SIG_IGN)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # for whoever looks into it; what counts is the lock
    Shepherd(folder, lock).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

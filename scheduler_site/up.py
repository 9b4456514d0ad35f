"""`make up`: everything the site needs, in the foreground, until Ctrl-C.

Starts the embedded PostgreSQL (unless DATABASE_URL names another), brings the database up to date, starts what the
Procfile lists, waits until /readyz says yes, and prints where to go. What dies is started again.
"""

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import IO

import psutil
from honcho.environ import parse_procfile

from apps.core import clock, embedded_postgres
from scheduler_site.supervisor import Keeper, Program, Register, end_group

BASE_DIR = Path(__file__).resolve().parent.parent
_POLL_S = 0.1
_READY_TIMEOUT_S = 300.0
_DATABASE = "postgres"


class CannotStart(Exception):
    """Said to the person at the terminal; nothing was started."""


class _Asked(Exception):
    """Somebody asked us to stop."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make up", description="Run the whole site in the foreground.")
    parser.add_argument("--port", type=int, default=8000)
    port: int = parser.parse_args().port
    if not 1 <= port <= 65535:
        parser.error("PORT must be from 1 to 65535.")
    try:
        return Site(port).run()
    except (CannotStart, embedded_postgres.PostgresFailed) as error:
        print(f"make up: {error}", file=sys.stderr)
        return 1


class Site:
    """The programs of this folder, kept running."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._var = Path(os.environ.get("SWITCHYARD_VAR", BASE_DIR / "var")).resolve()
        self._has_own_database = not os.environ.get("DATABASE_URL")
        self._register = Register(self._var / "up.json")
        self._log_dir = self._var / "log"
        self._keepers: list[Keeper] = []
        self._n_asked = 0
        # Started by make, we end with make: it cannot pass on every signal that ends it.
        self._parent = os.getppid() if os.environ.get("MAKELEVEL") else None

    def run(self) -> int:
        began_s = clock.monotonic_s()
        self._var.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log_dir.mkdir(exist_ok=True)
        lock = self._take_lock()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._register.end_leftovers({_DATABASE: signal.SIGINT}, self._say)
            self._require_free_port()
            self._sweep_broker()
            if self._has_own_database:
                self._start_database()
            self._prepare()
            self._start_services()
            self._wait_until_ready()
            self._greet(clock.monotonic_s() - began_s)
            while True:
                self._tend()
        except _Asked:
            pass
        finally:
            self._stop_all()
            lock.close()
        self._say("stopped; what was running as a job runs on")
        return 0

    # --- Before ---------------------------------------------------------------------------------------------------

    def _take_lock(self) -> IO[str]:
        """Held until we are gone, however we go."""
        lock = (self._var / "up.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            said = lock.read().strip() or "another process"
            raise CannotStart(
                f"the site of this folder is running already ({said}). Stop that one first."
            ) from None
        os.set_inheritable(lock.fileno(), False)
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, http://127.0.0.1:{self._port}")
        lock.flush()
        return lock

    def _require_free_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._port))
            except OSError as error:
                raise CannotStart(
                    f"port {self._port} cannot be used ({error.strerror}). "
                    f"Choose another: make up PORT={self._port + 1}"
                ) from None

    def _sweep_broker(self) -> None:
        """Old messages ask for what the beat will ask for anyway."""
        shutil.rmtree(self._var / "broker", ignore_errors=True)
        (self._var / "broker").mkdir(parents=True)

    # --- Start ----------------------------------------------------------------------------------------------------

    def _start_database(self) -> None:
        data_dir = self._var / "postgres"
        embedded_postgres.prepare(data_dir)
        program = Program(
            name=_DATABASE,
            command=embedded_postgres.command(data_dir),
            stop_signal=signal.SIGINT,  # fast: open transactions are rolled back
            stop_timeout_s=30.0,
            identity=embedded_postgres.identity(),
            before_start=lambda: _clear_stale_lock(data_dir),
        )
        keeper = self._keep(program)
        embedded_postgres.wait_until_ready(data_dir, is_alive=lambda: self._watch() or keeper.is_running)
        embedded_postgres.create_database(data_dir)

    def _prepare(self) -> None:
        """Migrations, static files, the demo on first use; in a process of its own that Ctrl-C can end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler_site.prepare"], cwd=BASE_DIR, start_new_session=True
        )
        try:
            while process.poll() is None:
                self._tend()
        except BaseException:
            end_group(process.pid, process.pid, 0.0, first=signal.SIGTERM)
            raise
        if process.returncode:
            raise CannotStart("the database could not be brought up to date; the reason is above.")

    def _start_services(self) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        env = {
            "PORT": str(self._port),
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
            "SWITCHYARD_VAR": str(self._var),
        }
        for name, line in parse_procfile((BASE_DIR / "Procfile").read_text()).processes.items():
            # The shell puts in the variables and then becomes the program: its number is the program's.
            self._keep(
                Program(
                    name=name, command=["/bin/sh", "-c", f"exec {line}"], env=env, identity={"cwd": BASE_DIR}
                )
            )

    def _keep(self, program: Program) -> Keeper:
        keeper = Keeper(program, self._log_dir, self._say)
        keeper.start()
        self._keepers.append(keeper)
        self._register.write(self._keepers)
        return keeper

    def _wait_until_ready(self) -> None:
        until_s = clock.monotonic_s() + _READY_TIMEOUT_S
        while (missing := _missing(self._port)) is not None:
            if clock.monotonic_s() > until_s:
                raise CannotStart(
                    f"still not ready after {_READY_TIMEOUT_S:.0f} s ({missing}); see {self._log_dir}."
                )
            self._tend()

    def _greet(self, took_s: float) -> None:
        print(f"\nSwitchyard is ready after {took_s:.0f} s:  http://127.0.0.1:{self._port}\n")
        accounts_file = self._var / "demo-accounts.json"
        with contextlib.suppress(OSError, ValueError):
            accounts = json.loads(accounts_file.read_text())
            rows: list[tuple[str, ...]] = [("account", "password", "role", "team")]
            rows += [
                tuple(str(row.get(key) or "-") for key in ("username", "password", "role", "team"))
                for row in accounts
            ]
            widths = [max(len(row[column]) for row in rows) for column in range(4)]
            for row in rows:
                print(
                    "  "
                    + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                )
            print(f"\nTheir API tokens are in {_short(accounts_file)}.")
        print(
            f"Logs are in {_short(self._log_dir)}. Ctrl-C stops everything and loses nothing.\n", flush=True
        )

    # --- Meanwhile ------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        self._watch()
        changed = [keeper for keeper in self._keepers if keeper.tend()]
        if changed:
            self._register.write(self._keepers)
        clock.sleep(_POLL_S)

    def _watch(self) -> bool:
        """Raise when it is time to go."""
        if self._n_asked or (self._parent is not None and os.getppid() != self._parent):
            raise _Asked
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._n_asked += 1

    # --- After ----------------------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Those who ask for work first, the database last. A second Ctrl-C makes the waits short."""
        if not self._keepers:
            return
        self._say("stopping")
        database = [keeper for keeper in self._keepers if keeper.program.name == _DATABASE]
        services = [keeper for keeper in reversed(self._keepers) if keeper.program.name != _DATABASE]
        for keepers in (services, database):
            for keeper in keepers:
                keeper.ask_to_stop()
            for keeper in keepers:
                until_s = clock.monotonic_s() + keeper.program.stop_timeout_s
                while keeper.is_running and clock.monotonic_s() < until_s and self._n_asked < 2:
                    clock.sleep(_POLL_S)
                keeper.see_stopped(within_s=2.0)
        self._register.clear()

    def _say(self, text: str) -> None:
        print(f"[up] {text}", flush=True)


def _missing(port: int) -> str | None:
    """What /readyz still lacks; None when it lacks nothing."""
    web = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        web.request("GET", "/readyz", headers={"Host": _host()})
        answer = web.getresponse()
        body = answer.read().decode(errors="replace")
        return None if answer.status == 200 else f"{answer.status} {body[:200]}"
    except OSError as error:
        return str(error)
    except http.client.HTTPException as error:
        return repr(error)
    finally:
        web.close()


def _host() -> str:
    """A host name that the site answers to."""
    names = [name.strip() for name in os.environ.get("ALLOWED_HOSTS", "").split(",") if name.strip()]
    first = names[0] if names else "127.0.0.1"
    return "127.0.0.1" if first == "*" else first.lstrip(".")


def _clear_stale_lock(data_dir: Path) -> None:
    """Remove postmaster.pid when no server is behind it: after a kill, its number may be another process's by now.

    A server that is still there (its supervisor was killed before it could write down what it started) is ended.
    """
    try:
        pid = int((data_dir / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return
    try:
        process = psutil.Process(pid)
        is_ours = str(data_dir) in process.cmdline() and "postgres" in process.name()
    except psutil.NoSuchProcess:
        is_ours = False
    if is_ours:
        end_group(pid, pid, process.create_time(), first=signal.SIGINT)
    (data_dir / "postmaster.pid").unlink(missing_ok=True)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())

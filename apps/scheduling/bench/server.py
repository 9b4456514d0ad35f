"""A PostgreSQL that is thrown away, with a fresh database for each scene.

It keeps what it is told as safely as the embedded server of a site does: the figures are those of a site.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import psycopg
from django.core.management import call_command
from django.db import connection, connections

from apps.core import embedded_postgres

_TEMPLATE: Final = embedded_postgres.DATABASE


class BenchFailed(Exception):
    """A scene could not be built."""


class Server:
    """Hands out databases; the connection of this process moves to the newest."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.folder = folder
        self.pid = pid  # of the process above all its others
        self._data = folder / "pg"
        self._n_scenes = 0

    def fresh_database(self) -> str:
        """An empty database with all tables; its URL."""
        connections.close_all()
        self._n_scenes += 1
        name = f"bench_{self._n_scenes}"
        admin = embedded_postgres.url(self._data, "postgres")
        with psycopg.connect(admin, autocommit=True) as session:
            session.execute(f'CREATE DATABASE "{name}" TEMPLATE "{_TEMPLATE}" STRATEGY file_copy')
        self._use(name)
        return embedded_postgres.url(self._data, name)

    def _use(self, name: str) -> None:
        connections["default"].settings_dict.update(
            NAME=name,
            USER="postgres",
            PASSWORD="",
            HOST=str(embedded_postgres.socket_dir(self._data)),
            PORT="",
        )

    def prepare(self) -> None:
        """Make the tables once; every scene starts from a copy."""
        self._use(_TEMPLATE)
        call_command("migrate", verbosity=0, interactive=False)
        connections.close_all()


@contextmanager
def throw_away_server() -> Iterator[Server]:
    """A server in a temporary folder; both are gone at the end, also after an interruption."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-bench-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        process = embedded_postgres.start_throw_away(folder / "pg", options=("-cmax_wal_size=2GB",))
        server = Server(folder, process.pid)
        server.prepare()
        yield server
    finally:
        connections.close_all()
        if process is not None:
            embedded_postgres.stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def in_a_process_of_its_own(build: Any, *arguments: Any) -> None:
    """Run `build(*arguments)` in a child, so that what it needs of memory is not counted as the planner's."""
    connections.close_all()
    child = get_context("fork").Process(target=_run, args=(build, arguments))
    child.start()
    try:
        child.join()
    except BaseException:
        child.terminate()
        child.join()
        raise
    if child.exitcode:
        raise BenchFailed(f"the scene could not be built (exit {child.exitcode}); see above")


def _run(build: Any, arguments: tuple[Any, ...]) -> None:
    build(*arguments)
    settle()
    connections.close_all()


def settle() -> None:
    """Let the database know how full its tables are, as it would after a while."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")

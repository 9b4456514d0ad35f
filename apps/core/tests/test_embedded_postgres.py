"""The embedded server's folder."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from apps.core import embedded_postgres


@pytest.fixture
def folder():
    # pytest's own folders are closed to the account the server runs as under root.
    path = Path(tempfile.mkdtemp(prefix="switchyard-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_folder_left_half_made_is_made_anew_and_a_made_one_is_kept(folder):
    data = folder / "pg"
    data.mkdir()
    (data / "PG_VERSION").touch()
    (folder / "pg.initialising").touch()

    embedded_postgres.prepare(data)
    made = (data / "PG_VERSION").stat()
    embedded_postgres.prepare(data)

    assert made.st_size > 0
    assert (data / "PG_VERSION").stat().st_mtime_ns == made.st_mtime_ns
    assert not (folder / "pg.initialising").exists()


def test_a_server_in_a_deep_folder_is_reached_by_a_short_socket(folder):
    data = folder / ("deep" * 20) / ("deeper" * 10) / "pg"
    server = embedded_postgres.start_throw_away(data)
    try:
        with psycopg.connect(embedded_postgres.url(data)) as connection:
            assert connection.execute("SELECT current_database()").fetchone() == ("switchyard",)
        assert embedded_postgres.socket_dir(data) != data
        assert embedded_postgres.socket_dir(data).stat().st_mode & 0o077 == 0
    finally:
        embedded_postgres.stop(server)
        shutil.rmtree(embedded_postgres.socket_dir(data), ignore_errors=True)


def test_nobody_else_may_enter_where_the_server_listens(folder):
    embedded_postgres.prepare(folder / "pg")

    assert (folder / "pg").stat().st_mode & 0o077 == 0
    assert os.stat(folder / "pg").st_uid != 0


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="only root makes an account for the server"
)
def test_processes_that_start_at_once_agree_on_the_servers_account():
    name = f"switchyard-t{os.getpid()}"
    code = (
        "from apps.core import embedded_postgres as e\n"
        f"e._ACCOUNT = {name!r}\n"
        "print(e._account().pw_name, e._account().pw_uid)"
    )
    try:
        started = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            for _ in range(6)
        ]
        answers = {process.communicate()[0].strip() for process in started}
        assert answers == {f"{name} {pwd.getpwnam(name).pw_uid}"}
    finally:
        subprocess.run(["userdel", name], capture_output=True)

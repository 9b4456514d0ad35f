"""What `make up` says when it cannot start."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

BASE_DIR = Path(__file__).resolve().parent.parent


def up(var, port, **env):
    return subprocess.run(
        [sys.executable, "-m", "scheduler_site.up", "--port", str(port)],
        cwd=BASE_DIR,
        env={**os.environ, "SWITCHYARD_VAR": str(var), **env},
        capture_output=True,
        text=True,
    )


def test_a_port_in_use_is_told_and_nothing_is_started(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = up(tmp_path, port)

    assert ran.returncode == 1
    assert f"port {port} cannot be used" in ran.stderr
    assert f"PORT={port + 1}" in ran.stderr
    assert not (tmp_path / "postgres").exists()


def test_a_folder_whose_site_runs_is_not_started_twice(tmp_path):
    with (tmp_path / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 17, http://127.0.0.1:8000")
        lock.flush()
        ran = up(tmp_path, 8000)

    assert ran.returncode == 1
    assert "running already (process 17, http://127.0.0.1:8000)" in ran.stderr


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_that_is_none_is_refused(tmp_path, port):
    assert up(tmp_path, port).returncode == 2

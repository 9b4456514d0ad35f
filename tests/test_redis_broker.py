"""CELERY_BROKER_URL may name Redis: the same worker, another broker."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from celery import Celery
from django.db import connection

from apps.core.presence import present_roles

BASE_DIR = Path(__file__).resolve().parent.parent


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.1)


@pytest.fixture
def redis_url(requires_program, tmp_path):
    program = requires_program("redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [program, "--port", str(port), "--save", ""], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


@pytest.mark.django_db(transaction=True)
def test_a_worker_takes_its_tasks_from_redis(redis_url, tmp_path):
    at = connection.settings_dict
    where = urlencode({"host": at["HOST"], "port": at["PORT"] or 5432})
    database = f"postgresql://{quote(at['USER'])}:{quote(at['PASSWORD'])}@/{at['NAME']}?{where}"
    env = {**os.environ, "CELERY_BROKER_URL": redis_url, "SWITCHYARD_VAR": str(tmp_path / "var")}
    env |= {"DATABASE_URL": database, "DJANGO_SETTINGS_MODULE": "scheduler_site.settings"}
    asking = Celery(broker=redis_url)
    with asking.connection_for_write() as broker:
        wait_for(lambda: _answers(broker))
    asking.send_task("inventory.settle_draining", queue="rollups")
    line = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "scheduler_site",
        "worker",
        "-Q",
        "rollups",
        "--pool",
        "solo",
    ]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen([*line, "-l", "INFO"], cwd=BASE_DIR, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: "settle_draining" in _said(tmp_path) and "succeeded" in _said(tmp_path))
        assert "rollups" in present_roles()
    finally:
        worker.terminate()
        worker.wait()


def _said(folder):
    return (folder / "worker.log").read_text()


def _answers(broker):
    try:
        broker.ensure_connection(max_retries=1)
    except OSError:
        return False
    return True

"""Runs ring when they begin and when they end, and somebody hears it."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from apps.execution import bell, shepherd
from apps.execution.backends.base import RunState
from apps.execution.backends.local import LocalBackend
from apps.execution.tests.builders import now, shell, wait_for, wait_until
from apps.inventory.models import Backend as Kind
from apps.jobs.tests.builders import fleet

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the local backend needs Linux")


def test_a_ring_is_heard(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bell")
    heard = threading.Event()
    listener = bell.BellListener(lambda: [tmp_path / "bell"], heard.set)
    thread = threading.Thread(target=listener.listen, args=(60.0,), daemon=True)
    thread.start()

    wait_until(lambda: shepherd.ring(str(tmp_path / "bell")))

    assert heard.wait(30)


def test_nobody_is_called_when_no_bell_rings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bell")
    heard: list[None] = []

    bell.BellListener(lambda: [tmp_path / "bell"], lambda: heard.append(None)).listen(0.05)

    assert heard == []


def test_a_ring_that_nobody_can_hear_does_no_harm(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bell")

    assert not shepherd.ring(str(tmp_path / "bell"))
    assert not shepherd.ring(str(tmp_path / "no-such-bell"))


def test_a_run_rings_when_it_ends(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "spool")
    ear = os.open(backend.bell(), os.O_RDWR | os.O_NONBLOCK)
    backend.launch([shell("sleep 0.2")], at=now())
    wait_for(backend, RunState.RUNNING)
    assert wait_until(lambda: _heard(ear))

    wait_for(backend, RunState.ENDED)

    assert wait_until(lambda: _heard(ear))
    os.close(ear)


def _heard(ear: int) -> bytes:
    try:
        return os.read(ear, 100)
    except BlockingIOError:
        return b""


@pytest.mark.django_db
def test_every_cluster_on_this_machine_has_a_bell(settings: Any, tmp_path: Path) -> None:
    settings.SWITCHYARD_SPOOL = tmp_path
    here, _ = fleet(1, 1), fleet(1, 1, backend=Kind.SIMULATED)

    assert [path.parent.name for path in bell.bells()] == [str(here.cluster.pk)]


@pytest.mark.parametrize(("queues", "n_listeners"), [(["execution", "rollups"], 1), (["planning"], 0)])
def test_only_workers_of_the_execution_queue_listen(
    queues: list[str], n_listeners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bell.BellListener] = []
    monkeypatch.setattr(bell.BellListener, "start", lambda self: started.append(self))
    app = Celery("test", broker="memory://")
    app.conf.task_queues = [Queue(name) for name in queues]

    bell.listen_in_worker(SimpleNamespace(app=app))

    assert len(started) == n_listeners

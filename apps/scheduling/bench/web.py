"""The cases that ask the web server: submission by REST, and pages."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from django.conf import settings
from django.test import Client, override_settings

from apps.core import clock
from apps.jobs import intake
from apps.jobs.models import Job
from apps.scheduling.bench import hall, work
from apps.scheduling.bench.planning import Bench, Size, build_queue, steady
from apps.scheduling.models import Pass
from apps.teams import services as teams

_N_CLIENTS: Final = 8
_N_BULK_CLIENTS: Final = 3
_SINGLE_S: Final = 5.0
_N_BULKS: Final = 15
_BULK: Final = 1000
_LOOKS: Final = 5
_LONGEST_START_S: Final = 60.0


def submit(bench: Bench, size: Size, at: datetime) -> str:
    """Jobs by REST, one by one and a thousand at a time, at two web workers as the Procfile starts them."""
    url = bench.build(size, build_queue, at)
    _, secret = teams.create_token(user=hall.submitter(), name="bench", at=at)
    with _web_server(bench, url) as port:
        numbers = count(size.queue)
        bodies = [json.dumps(_body(work.request_of(next(numbers)))).encode() for _ in range(200)]
        # A connection stays with one worker: with many, each worker is warm before the watch runs.
        _post_all(port, secret, "/api/v1/jobs", bodies, 2 * _N_CLIENTS)
        n_done, seconds, waits_s = _post_for(port, secret, bodies)
        bench.add("submit", size, "POST /jobs", n_done / seconds, "jobs/s", at_least=200.0)
        bench.add("submit", size, "POST /jobs, median wait", 1000 * median(waits_s), "ms")
        bulks = [
            json.dumps({"jobs": [_body(work.request_of(next(numbers))) for _ in range(_BULK)]}).encode()
            for _ in range(_N_BULKS)
        ]
        _post_all(port, secret, "/api/v1/jobs/bulk", bulks[:2], 2)
        before, began_s = Job.objects.count(), clock.monotonic_s()
        _post_all(port, secret, "/api/v1/jobs/bulk", bulks, _N_BULK_CLIENTS)
        seconds = clock.monotonic_s() - began_s
        n_done = Job.objects.count() - before
        bench.add("submit", size, "POST /jobs/bulk", n_done / seconds, "jobs/s", at_least=5000.0)
    return url


def _body(request: Any) -> dict[str, Any]:
    return intake.public_spec(request)


def _post_for(port: int, secret: str, bodies: list[bytes]) -> tuple[int, float, list[float]]:
    """Post one by one from several clients for a while: how many, in how long, and what each waited."""
    began_s = clock.monotonic_s()

    def client(which: int) -> list[float]:
        waits_s, turn = [], which
        with _connected(port) as server:
            while clock.monotonic_s() - began_s < _SINGLE_S:
                sent_s = clock.monotonic_s()
                _post(server, secret, "/api/v1/jobs", bodies[turn % len(bodies)])
                waits_s.append(clock.monotonic_s() - sent_s)
                turn += _N_CLIENTS
        return waits_s

    with ThreadPoolExecutor(_N_CLIENTS) as pool:
        waits_s = [wait for waits in pool.map(client, range(_N_CLIENTS)) for wait in waits]
    return len(waits_s), clock.monotonic_s() - began_s, waits_s


def _post_all(port: int, secret: str, path: str, bodies: list[bytes], n_clients: int) -> None:
    def client(which: int) -> None:
        with _connected(port) as server:
            for body in bodies[which::n_clients]:
                _post(server, secret, path, body)

    with ThreadPoolExecutor(n_clients) as pool:
        list(pool.map(client, range(n_clients)))


@contextmanager
def _connected(port: int) -> Iterator[HTTPConnection]:
    server = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        yield server
    finally:
        server.close()


def _post(server: HTTPConnection, secret: str, path: str, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    server.request("POST", path, body, headers)
    answer = server.getresponse()
    said = answer.read()
    if answer.status != 201:
        raise RuntimeError(f"{path} answered {answer.status}: {said[:300]!r}")


@contextmanager
def _web_server(bench: Bench, url: str) -> Iterator[int]:
    """Two web workers over this database, as the Procfile starts them; the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    var = bench.server.folder / "var"
    environment = {**os.environ, "DATABASE_URL": url, "SWITCHYARD_VAR": str(var), "LOG_LEVEL": "ERROR"}
    log = (bench.server.folder / "web.log").open("ab")
    command = [
        sys.executable, "-m", "gunicorn", "scheduler_site.wsgi", "--bind", f"127.0.0.1:{port}", "--workers", "2",
        "--threads", "8", "--timeout", "60", "--worker-tmp-dir", "/tmp", "--log-level", "warning",  # noqa: S108
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env=environment, cwd=str(settings.BASE_DIR), start_new_session=True
    )
    log.close()
    try:
        _wait_until_ready(port, process, bench.server.folder / "web.log")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = clock.monotonic_s() + _LONGEST_START_S
    while True:
        try:
            with _connected(port) as server:
                server.request("GET", "/healthz")
                if server.getresponse().status == 200:
                    return
        except (OSError, HTTPException):
            pass
        if process.poll() is not None or clock.monotonic_s() > until_s:
            raise RuntimeError(f"the web server did not start: {log.read_text()[-2000:]}")
        clock.sleep(0.1)


def pages(bench: Bench, size: Size, at: datetime) -> str:
    """Pages over a full hall and a long queue, as somebody who sees everything."""
    url = steady(bench, size, at)
    # Static files are named as in development: whether they were collected is no question of speed.
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": _PLAIN_STATIC_FILES}}
    with override_settings(STORAGES=storages):
        client = Client(SERVER_NAME="127.0.0.1")
        client.force_login(hall.looker())
        for name, path in _paths():
            _look(bench, size, name, partial(client.get, path))
    return url


_PLAIN_STATIC_FILES: Final = "django.contrib.staticfiles.storage.StaticFilesStorage"


def _paths() -> list[tuple[str, str]]:
    waiting = Job.objects.filter(state="queued").order_by("-id").values_list("id", flat=True)[0]
    running = Job.objects.filter(state="running").order_by("-id").values_list("id", flat=True)[0]
    last = Pass.objects.order_by("-id").values_list("id", flat=True)[0]
    team = hall.LEAF_TEAMS[0]
    return [
        ("overview", "/"),
        ("overview, figures", "/parts/figures/"),
        ("overview, teams", "/parts/teams/"),
        ("queue", "/queue/"),
        ("queue, rows", "/queue/parts/rows/"),
        ("queue of a team", f"/queue/?team={team}"),
        ("job that waits", f"/jobs/{waiting}/"),
        ("job that runs", f"/jobs/{running}/"),
        ("nodes", "/nodes/"),
        ("node", "/nodes/n00001/"),
        ("quotas", "/quotas/"),
        ("reservations", "/reservations/"),
        ("passes", "/passes/"),
        ("pass", f"/passes/{last}/"),
        ("audit", "/audit/"),
        ("API, jobs", "/api/v1/jobs?limit=100"),
        ("API, jobs that wait", "/api/v1/jobs?state=queued&limit=100"),
        ("API, nodes", "/api/v1/nodes?limit=100"),
    ]


def _look(bench: Bench, size: Size, name: str, get: Callable[[], Any]) -> None:
    times_s = []
    for _ in range(_LOOKS):
        began_s = clock.monotonic_s()
        answer = get()
        times_s.append(clock.monotonic_s() - began_s)
        if answer.status_code != 200:
            raise RuntimeError(f"{name} answered {answer.status_code}")
    bench.add("pages", size, name, 1000 * median(times_s), "ms", at_most=300.0)

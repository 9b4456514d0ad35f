"""The cases that ask the web server: submission by REST, and pages."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from apps.scheduling import line
from apps.scheduling.bench import hall, load, work
from apps.scheduling.bench.planning import Bench, Size, build_queue, steady
from apps.scheduling.models import Pass
from apps.teams import services as teams

_N_CLIENTS: Final = 16
_N_BULK_CLIENTS: Final = 4
_N_SINGLES: Final = 1500
_N_BULKS: Final = 20
_BULK: Final = 1000
_LOOKS: Final = 5
_LONGEST_START_S: Final = 60.0


def submit(bench: Bench, size: Size, at: datetime) -> str:
    """Jobs by REST, one by one and a thousand at a time, at two web workers as the Procfile starts them."""
    url = bench.build(size, build_queue, at)
    _, secret = teams.create_token(user=hall.submitter(), name="bench", at=at)
    numbers = count(size.queue)
    singles = [_body(_fields(next(numbers))) for _ in range(_N_SINGLES)]
    bulks = [_body({"jobs": [_fields(next(numbers)) for _ in range(_BULK)]}) for _ in range(_N_BULKS)]
    with _web_server(bench, url) as (port, web_pid):
        for path, bodies, n_clients, n_each, wanted in (
            ("/api/v1/jobs", singles, _N_CLIENTS, 1, 200.0),
            ("/api/v1/jobs/bulk", bulks, _N_BULK_CLIENTS, _BULK, 5000.0),
        ):
            # A connection stays with one worker: with many, each worker is warm before the watch runs.
            load.post_all(port, secret, path, bodies[: len(bodies) // 5], n_clients=2 * _N_CLIENTS)
            with load.watched(web_pid, bench.server.pid) as spent:
                told = load.post_all(port, secret, path, bodies, n_clients=n_clients)
            _tell(bench, size, path.removeprefix("/api/v1"), n_each, told, spent, wanted)
    return url


def _tell(
    bench: Bench, size: Size, path: str, n_each: int, told: load.Told, spent: load.Spent, wanted: float
) -> None:
    name, n_jobs = f"POST {path}", told.n_answers * n_each
    bench.add("submit", size, name, n_jobs / told.wall_s, "jobs/s", at_least=wanted)
    bench.add("submit", size, f"{name}, median wait", 1000 * told.median_wait_s, "ms")
    bench.add("submit", size, f"{name}, a CPU second of servers", n_jobs / spent.total_s, "jobs")
    for who, cpu_s in (
        ("web", spent.web_s),
        ("database", spent.database_s),
        ("who asks", told.generator_cpu_s),
    ):
        bench.add("submit", size, f"{name}, CPU of {who}", 1e6 * cpu_s / n_jobs, "us a job")


def _fields(number: int) -> dict[str, Any]:
    return intake.public_spec(work.request_of(number))


def _body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


@contextmanager
def _connected(port: int) -> Iterator[HTTPConnection]:
    server = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def _web_server(bench: Bench, url: str) -> Iterator[tuple[int, int]]:
    """Two web workers over this database, as the Procfile starts them; the port and the process."""
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
        yield port, process.pid
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
        _look(bench, size, "queue after a pass", partial(_look_anew, client, "/queue/"))
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


def _look_anew(client: Client, path: str) -> Any:
    line.forget()
    return client.get(path)


def _look(bench: Bench, size: Size, name: str, get: Callable[[], Any]) -> None:
    times_s = []
    for _ in range(_LOOKS):
        began_s = clock.monotonic_s()
        answer = get()
        times_s.append(clock.monotonic_s() - began_s)
        if answer.status_code != 200:
            raise RuntimeError(f"{name} answered {answer.status_code}")
    bench.add("pages", size, name, 1000 * median(times_s), "ms", at_most=300.0)

"""Everything is killed, over and over, while work is being planned and launched; afterwards everything adds up.

The whole site runs under its supervisor, as `make up` runs it, in a folder of its own. What is killed: each loop, the
web server and the database, at random instants, and once the supervisor itself.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from apps.core import embedded_postgres

BASE_DIR = Path(__file__).resolve().parent.parent
N_JOBS = 300
N_DEVICES = 16
N_KILLS = 30
VICTIMS = ("planning", "execution", "beat", "web", "postgres", "power", "watchdog")
PATIENCE_S = 600

# One machine with some devices, one team without a quota, one member with a token.
FACILITY = f"""
from apps.core import clock
from apps.inventory import services as inventory
from apps.teams import services as teams
from apps.teams.models import MemberRole, Membership
at = clock.now()
kind = inventory.create_accelerator_type(name="slot", tdp_w=10.0, actor=None, at=at)
cluster = inventory.create_cluster(name="here", backend="local", actor=None, at=at)
facts = inventory.NodeFacts(name="node-1", accelerator_type=kind, n_devices={N_DEVICES}, cpus=1000.0, memory_gib=1000.0)
inventory.create_node(cluster=cluster, facts=facts, actor=None, at=at)
team = teams.create_team(name="survivors", actor=None, at=at)
user = teams.create_user(username="ada", password=None, actor=None, at=at)
Membership.objects.create(team=team, user=user, role=MemberRole.MEMBER)
token, secret = teams.create_token(user=user, name="test", scopes=["read", "write"], expires_at=None, at=at)
print("SECRET", secret)
"""


class Site:
    """The site under its supervisor, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.var = folder / "var"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        hidden = ("DATABASE_URL", "CELERY_BROKER_URL", "ALLOWED_HOSTS", "DJANGO_SETTINGS_MODULE", "MAKELEVEL")
        self.env = {name: value for name, value in os.environ.items() if name not in hidden}
        self.env |= {"SWITCHYARD_VAR": str(self.var), "SWITCHYARD_DEMO": "0"}
        self.up: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "up.log").open("ab")
        self.up = subprocess.Popen(
            [sys.executable, "-m", "scheduler_site.up", "--port", str(self.port)],
            cwd=BASE_DIR,
            env=self.env,
            stdout=log,
            stderr=log,
        )
        wait_for(self.is_ready, "the site to be ready")

    def stop(self) -> int:
        self.up.send_signal(signal.SIGINT)
        return self.up.wait(120)

    def is_ready(self) -> bool:
        assert self.up.poll() is None, (self.folder / "up.log").read_text()
        try:
            return self.ask("GET", "/readyz")["status"] == "ready"
        except OSError:
            return False

    def ask(self, method: str, path: str, body: object = None, secret: str = "") -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {secret}"} if secret else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise
            raise AssertionError(f"{error.code}: {error.read().decode()}") from None

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=BASE_DIR,
            env=self.env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self, name: str) -> None:
        """SIGKILL to the program's leader, if it runs just now."""
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pids = {row["name"]: row["pid"] for row in json.loads((self.var / "up.json").read_text())}
            if name in pids:
                os.kill(pids[name], signal.SIGKILL)

    def rows(self, sql: str) -> list[tuple]:
        """What the database says, asked again while it is away."""
        found: list[list[tuple]] = []

        def ask() -> bool:
            with (
                suppress(psycopg.Error),
                psycopg.connect(embedded_postgres.url(self.var / "postgres")) as connection,
            ):
                found.append(connection.execute(sql).fetchall())
            return bool(found)

        wait_for(ask, "the database")
        return found[0]


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < until, f"waited too long for {what}"
        time.sleep(0.1)
    return value


@pytest.fixture
def site():
    # pytest's own folders are closed to the account the database runs as under root.
    folder = Path(tempfile.mkdtemp(prefix="switchyard-test-"))
    found = Site(folder)
    yield found
    if found.up is not None and found.up.poll() is None:
        found.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_killed_over_and_over_no_job_is_lost_or_run_twice(site):
    chance = random.Random(2)
    ran = site.folder / "ran"
    began_s = time.monotonic()
    site.start()
    boot_s = time.monotonic() - began_s
    secret = site.manage("shell", "-c", FACILITY).split("SECRET ")[1].strip()
    submitted = site.ask(
        "POST", "/api/v1/jobs/bulk", {"jobs": [a_job(i, ran) for i in range(N_JOBS)]}, secret
    )
    ids = {job["id"] for job in submitted["items"]}
    assert len(ids) == N_JOBS

    for n_kills in range(N_KILLS):
        # A kill is to meet work under way, not one more start: on a slow machine a start takes long.
        time.sleep(min(chance.uniform(0.05, 0.4) * boot_s, 5.0))
        for name in chance.sample(VICTIMS, chance.choice((1, 1, 1, 2, 3))):
            site.kill(name)
        if n_kills == N_KILLS // 2:
            site.up.kill()
            site.up.wait()
            site.start()
        if not open_jobs(site):
            break
    assert n_kills > 5, "the work was over before much was killed"
    wait_for(lambda: not open_jobs(site), "all jobs to end")

    states = Counter(state for (state,) in site.rows("SELECT state FROM jobs_job"))
    assert states == {"succeeded": N_JOBS}
    assert Counter(int(line) for line in ran.read_text().split()) == Counter(ids), (
        "some job ran twice, or never"
    )
    assert site.rows("SELECT id FROM inventory_device WHERE claimed_share <> 0") == []
    assert site.rows("SELECT id FROM jobs_allocation WHERE ended_at IS NULL") == []
    assert site.rows("SELECT id FROM jobs_deviceclaim WHERE released_at IS NULL") == []
    assert site.rows(OVERLAPS) == []
    site.manage("check_ledger")
    assert site.stop() == 0
    assert left_behind(site) == []


def a_job(i: int, ran: Path) -> dict:
    # A line this short is appended whole, whoever else is writing.
    command = ["sh", "-c", f"echo $SWITCHYARD_JOB_ID >> {ran}; sleep 0.{i % 10}"]
    return {"name": f"short-{i}", "team": "survivors", "devices": 1, "time_limit": 300, "command": command}


def open_jobs(site: Site) -> int:
    return site.rows("SELECT count(*) FROM jobs_job WHERE ended_at IS NULL")[0][0]


# Two claims on one device whose times overlap.
OVERLAPS = """
WITH held AS (
  SELECT claim.id, device_id, tstzrange(bound_at, released_at) AS during
  FROM jobs_deviceclaim claim
  JOIN jobs_placement placement ON placement.id = placement_id
  JOIN jobs_allocation allocation ON allocation.id = allocation_id)
SELECT a.device_id, a.id, b.id
FROM held a JOIN held b ON a.device_id = b.device_id AND a.id < b.id AND a.during && b.during
"""


def left_behind(site: Site) -> list[str]:
    """Processes that still belong to this site's folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SWITCHYARD_VAR") == str(site.var) or str(site.var) in process.cmdline():
                found.append(" ".join(process.cmdline()))
    return found

"""Power control, the beat and the watchdog are killed in turn during a demand-response event.

Whoever controls power may be gone: caps stay on the nodes, nobody draws more, and no job is ended. The site runs under
its supervisor, a hall of it is simulated, and what is in force is looked at all the time, also while nobody is there.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.test_survival import BASE_DIR, Site, wait_for

FULL_W = 76e3  # ten nodes at work
TARGET_W = 58e3
N_LOOKS = 20  # with everybody there again
VICTIMS = ("power", "beat", "watchdog")

# Nodes of 8 devices: 7.6 kW at work, 2.8 kW at rest. Ten of them, as many as the jobs want.
FACILITY = """
from apps.core import clock
from apps.inventory import services as inventory
from apps.power import services as power
from apps.teams import services as teams
from apps.teams.models import MemberRole, Membership
at = clock.now()
curve = [[3 / 7, 0.50], [4 / 7, 0.70], [5 / 7, 0.84], [6 / 7, 0.93], [1.0, 1.0]]
kind = inventory.create_accelerator_type(
    name="H100", tdp_w=700.0, idle_w=100.0, power_curve=curve, cap_step_w=100.0, actor=None, at=at)
hall = inventory.create_domain(name="hall", kind="hall", actor=None, at=at)
power.set_limit(domain_id=hall.pk, changes={"hard_limit_w": 80e3}, actor=None, at=at)
cluster = inventory.create_cluster(name="there", backend="simulated", actor=None, at=at)
for i in range(10):
    facts = inventory.NodeFacts(
        name=f"n{i}", accelerator_type=kind, n_devices=8, cpus=100.0, memory_gib=100.0, power=hall, idle_w=2000.0)
    inventory.create_node(cluster=cluster, facts=facts, actor=None, at=at)
team = teams.create_team(name="survivors", actor=None, at=at)
user = teams.create_user(username="ada", password=None, facility_role="operator", actor=None, at=at)
Membership.objects.create(team=team, user=user, role=MemberRole.MEMBER)
token, secret = teams.create_token(user=user, name="test", scopes=["read", "write"], expires_at=None, at=at)
print("SECRET", secret)
"""

# A look, of one instant, for each line that comes in. Of a cap: what the ledger counts with, what was heard, and what
# the agent holds.
LOOK = """
import json, sys
from django.db import connection, transaction
from django.db.models import Count
from apps.core import clock
from apps.events.models import Event
from apps.execution.backends.simulated import SimulatedBackend
from apps.inventory.models import Cluster, Domain
from apps.jobs.models import Allocation, Job
from apps.power.models import CurtailmentAction
from apps.scheduling.response.site import read_site
hall, backend = Domain.objects.get().pk, SimulatedBackend(Cluster.objects.get().pk)
@transaction.atomic
def look():
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    at = clock.now()
    held = {state.allocation_id: state.share for state in backend.list_caps(at=at)}
    running = Allocation.objects.filter(ended_at=None).values_list(
        "pk", "desired_power_cap_share", "power_cap__observed_share")
    said = Event.objects.filter(kind__regex=r"^(allocation|job|curtailment)\\.")
    return {
        "load_w": read_site(at).modelled_w()[hall],
        "shares": {pk: [counted, heard, held.get(pk)] for pk, counted, heard in running},
        "jobs": dict(Job.objects.values_list("name", "state")),
        "actions": {f"{pk} {lever}": state for pk, lever, state in
            CurtailmentAction.objects.values_list("pk", "lever", "state")},
        "events": dict(said.order_by().values_list("kind").annotate(Count("pk"))),
    }
for _ in sys.stdin:
    print(json.dumps(look()), flush=True)
"""

# What a controller of before does that does not know it is none any more: it takes the caps off.
OLDER = """
from apps.core import clock
from apps.execution.backends.base import CapOrder
from apps.execution.backends.simulated import SimulatedBackend
from apps.jobs import services as jobs
from apps.jobs.models import PowerCap
at, older = clock.now(), FENCE
for cap in PowerCap.objects.select_related("allocation").filter(allocation__ended_at=None):
    asks = [jobs.CapAsk(allocation_id=cap.pk, share=1.0, back_share=1.0, lease_until_at=None, reason="")]
    print("ASKED", jobs.ask_caps(asks=asks, fence=older, at=at))
    order = CapOrder(allocation_id=cap.pk, share=1.0, fence=older, lease_until_at=None, back_share=1.0)
    SimulatedBackend(cap.allocation.cluster_id).set_caps([order], at=at)
"""


@pytest.fixture
def site() -> Iterator[Site]:
    # pytest's own folders are closed to the account the database runs as under root.
    folder = Path(tempfile.mkdtemp(prefix="switchyard-test-"))
    found = Site(folder)
    yield found
    if found.up is not None and found.up.poll() is None:
        found.stop()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def looking(site: Site) -> Iterator[Callable[[], dict]]:
    """Gives a look at what is in force, by a process of its own that stays."""
    with (site.folder / "look.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "shell", "-c", LOOK],
            cwd=BASE_DIR,
            env=site.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def look() -> dict:
        process.stdin.write("look\n")
        process.stdin.flush()
        line = "begin"
        while line and not line.startswith("{"):
            line = process.stdout.readline()
        assert line, (site.folder / "look.log").read_text()
        return json.loads(line)

    try:
        yield look
    finally:
        process.stdin.close()
        process.wait()


@contextmanager
def second_controller(site: Site) -> Iterator[None]:
    """Another worker of power control beside the one of the supervisor."""
    lines = (BASE_DIR / "Procfile").read_text().splitlines()
    (line,) = [line.removeprefix("power:") for line in lines if line.startswith("power:")]
    command = [word.replace("power@", "second@") for word in shlex.split(line)]
    with (site.folder / "second.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command[1:]], cwd=BASE_DIR, env=site.env, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def submit(site: Site, secret: str) -> None:
    jobs = [
        {"name": "C", "flexibility": 2, "replicas": 4},
        {"name": "D", "flexibility": 3, "replicas": 4},
        {
            "name": "E",
            "flexibility": 4,
            "replicas": 2,
            "checkpoint": {"interval": 1800.0, "cost": 2.0},
        },
    ]
    rest = {"team": "survivors", "devices": 8, "power_w": 700.0, "runtime": 1e6, "command": ["train"]}
    site.ask("POST", "/api/v1/jobs/bulk", {"jobs": [job | rest for job in jobs]}, secret)


def commit_event(site: Site, secret: str) -> str:
    """An event that begins now and lasts longer than anybody waits; its address."""
    now = datetime.now(UTC)
    told = {
        "domain": "hall",
        "target_kind": "limit_to",
        "value": TARGET_W,
        "start_at": now.isoformat(),
        "end_at": (now + timedelta(hours=3)).isoformat(),
        "recovery_s": 0,  # the load before the notice was that of an empty hall
    }
    event = site.ask("POST", "/api/v1/demand-response/events", told, secret)
    path = f"/api/v1/demand-response/events/{event['id']}"
    plan = site.ask("POST", f"{path}/preview", {}, secret)
    assert plan["shortfall_w"] == 0
    assert sorted(action["lever"] for action in plan["actions"]) == ["cap", "pause"], json.dumps(plan)
    site.ask("POST", f"{path}/commit", {"inputs_hash": plan["inputs_hash"]}, secret)
    return path


def controller(site: Site) -> tuple[str, int, datetime]:
    """Who controls power, with which fence, and when it was last heard of."""
    return site.rows("SELECT holder, fence, heartbeat_at FROM power_powercontroller")[0]


def heard_fence(site: Site) -> int:
    """The oldest fence under which a cap is held."""
    return site.rows("SELECT min(observed_fence) FROM jobs_powercap WHERE observed_share < 1")[0][0]


def pid_of(site: Site, name: str) -> int:
    return next((r["pid"] for r in json.loads((site.var / "up.json").read_text()) if r["name"] == name), 0)


def is_present(site: Site, role: str) -> bool:
    named = f"SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'switchyard:%{role}%'"
    return bool(site.rows(named))


def test_whoever_of_power_control_dies_during_an_event_nobody_draws_more_and_no_job_is_ended(site):
    site.start()
    secret = site.manage("shell", "-c", FACILITY).split("SECRET ")[1].strip()
    submit(site, secret)
    with looking(site) as look:
        wait_for(lambda: set(look()["jobs"].values()) == {"running"}, "the jobs to run")
        full = look()
        assert full["load_w"] == pytest.approx(FULL_W)
        event = commit_event(site, secret)
        before = wait_for(lambda: in_force(look()), "caps and pauses to be in force")
        assert before["load_w"] <= TARGET_W, before
        assert sorted(name.split()[1] for name in before["actions"]) == ["cap", "pause"]
        assert before["jobs"] == {"C": "running", "D": "running", "E": "paused"}

        def holds(condition: Callable[[], bool], what: str) -> None:
            """Nothing of what is in force changes, however long it takes."""

            def look_and_ask() -> bool:
                assert look() == before, what
                return condition()

            wait_for(look_and_ask, what)

        def is_heard_again() -> Callable[[], bool]:
            last_at = controller(site)[2]
            return lambda: controller(site)[2] > last_at

        for name in VICTIMS:
            fence, pid = controller(site)[1], pid_of(site, name)
            os.kill(pid, signal.SIGKILL)
            holds(lambda pid=pid, name=name: pid_of(site, name) not in (0, pid), f"a new {name}")
            holds(lambda name=name: is_present(site, name), f"{name} to be there again")
            for _ in range(2):
                holds(is_heard_again(), f"power control to be heard of after {name} was killed")
            if name == "power":
                holds(lambda fence=fence: controller(site)[1] > fence, "power control to take a new fence")
                fence = controller(site)[1]
                holds(lambda fence=fence: heard_fence(site) == fence, "agents to hear of the new one")
            for _ in range(N_LOOKS):
                holds(lambda: True, f"what is in force after {name} was killed")

        fence = controller(site)[1]
        with second_controller(site):
            # They take turns, and each turn is a new fence.
            holds(lambda: controller(site)[1] >= fence + 2, "two controllers at once to be heard")
            holds(lambda: heard_fence(site) > fence, "agents to hear of a newer one")
            assert "ASKED ()" in site.manage("shell", "-c", OLDER.replace("FENCE", str(fence)))
            for _ in range(2):
                holds(is_heard_again(), "power control to be heard of with two at once")
        holds(is_heard_again(), "one controller to go on")

        site.ask("POST", f"{event}/cancel", {}, secret)
        after = wait_for(lambda: given_back(look()), "the load to come back")
    assert after["load_w"] == pytest.approx(FULL_W)
    assert set(before["shares"]) < set(after["shares"])  # who ran on under a cap is the same attempt
    assert after["events"]["allocation.cap_raised"] == 1
    assert after["events"]["job.resumed"] == 1
    wait_for(
        lambda: site.ask("GET", event, secret=secret)["phase"] == "cancelled", "the event to count as over"
    )
    site.manage("check_ledger")
    assert site.stop() == 0


def in_force(seen: dict) -> dict | None:
    """A look at which all that was committed is in force."""
    return seen if seen["actions"] and set(seen["actions"].values()) == {"verified"} else None


def given_back(seen: dict) -> dict | None:
    """A look at which nothing is held down any more."""
    is_over = set(seen["actions"].values()) == {"reverted"} and set(seen["jobs"].values()) == {"running"}
    is_full = all(share in (1.0, None) for shares in seen["shares"].values() for share in shares)
    return seen if is_over and is_full else None

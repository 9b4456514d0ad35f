"""A job that really runs finds its way back: it posts its progress with what it was given."""

import sys
from pathlib import Path

import pytest

from apps.core import clock
from apps.execution import services
from apps.execution.tests.builders import now, wait_until
from apps.inventory.models import Backend as Kind
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, AllocationToken, Job, Progress
from apps.jobs.tests.builders import allocate, fleet, job, person, team

POST = """
import json, os, urllib.request
body = {"step": 7, "step_times_s": {os.environ["SWITCHYARD_RANK"]: 0.25}, "fraction_done": 0.5,
        "attempt": int(os.environ["SWITCHYARD_ATTEMPT"])}
address = "%s/jobs/%s/progress" % (os.environ["SWITCHYARD_API_URL"], os.environ["SWITCHYARD_JOB_ID"])
headers = {"Authorization": "Bearer " + os.environ["SWITCHYARD_TOKEN"], "Content-Type": "application/json"}
asked = urllib.request.Request(address, json.dumps(body).encode(), headers)
print(urllib.request.urlopen(asked, timeout=20).status)
"""


@pytest.mark.django_db(transaction=True)
def test_a_local_job_posts_its_progress(live_server, settings, tmp_path: Path) -> None:
    settings.SWITCHYARD_URL = live_server.url
    here, ours = fleet(1, 1), team()
    here.cluster.config = {"spool": str(tmp_path / "spool")}
    here.cluster.save()
    of = job(ours, person(ours), command=[sys.executable, "-c", POST], at=clock.now())
    allocation = allocate(of, here, at=clock.now())

    def has_ended() -> bool:
        services.reconcile_cluster(cluster_id=here.cluster.pk, at=now())
        return Job.objects.get().state in (State.SUCCEEDED, State.FAILED)

    wait_until(has_ended)

    assert Job.objects.get().state == State.SUCCEEDED
    row = Progress.objects.get()
    assert (row.allocation_id, row.step, row.fraction_done, row.lasts_s) == (allocation.pk, 7, 0.5, [0.25])


@pytest.mark.django_db
def test_what_is_played_needs_no_token() -> None:
    here, ours = fleet(1, 1, backend=Kind.SIMULATED), team()
    allocate(job(ours, person(ours), at=clock.now()), here, at=clock.now())
    services.reconcile_cluster(cluster_id=here.cluster.pk, at=now())

    assert not AllocationToken.objects.exists()


@pytest.mark.django_db
def test_what_a_job_sets_itself_stands_above_its_token() -> None:
    here, ours = fleet(1, 1), team()
    allocation = allocate(job(ours, person(ours), env={"SWITCHYARD_TOKEN": "mine"}), here)
    made = services.order_of(Allocation.objects.get(pk=allocation.pk), is_played=False, token="given")

    assert made.env["SWITCHYARD_TOKEN"] == "mine"
    assert made.env["SWITCHYARD_API_URL"].endswith("/api/v1")

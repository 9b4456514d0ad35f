"""The planner by REST, as a client sees it."""

from datetime import timedelta
from typing import Any

import pytest

from apps.core import clock
from apps.jobs.models import Job
from apps.jobs.tests.builders import fleet, grant, job, person, start, team
from apps.scheduling import losses, services, snapshot
from apps.scheduling.api import bodies
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db
URL = "/api/v1"


def plan_once() -> Any:
    # Inside the test's own transaction its events always look new; one pass is enough.
    return services._one_pass(clock.now())


def test_a_preview_says_whether_when_and_where_and_writes_nothing():
    here, ours = fleet(1, 2), team()
    me = person(ours)
    asked = {"name": "train", "team": ours.name, "command": ["true"], "time_limit": 60}
    free = client(me).post(f"{URL}/jobs/preview", asked).data
    assert (free["would_start"], free["placement"][0]["node"]) == (True, here.nodes[0].name)

    start(job(ours, me, time_limit=600.0, at=clock.now()), here, grant(here.nodes[0], (0, 1)), at=clock.now())
    full = client(me).post(f"{URL}/jobs/preview", asked).data
    assert bodies.PreviewOut.model_validate(full)
    assert (full["would_start"], full["reason"]["code"]) == (False, "resources")
    assert Job.objects.count() == 1


def test_a_preview_for_another_team_is_refused_as_a_submission_is():
    fleet()
    asked = {"name": "train", "team": team().name}
    answer = client(person(team())).post(f"{URL}/jobs/preview", asked)
    assert (answer.status_code, answer.data["errors"][0]["path"]) == (400, "team")


def test_a_preview_of_what_never_fits_gives_the_proof():
    fleet(1, 2), (ours := team())
    asked = {"name": "train", "team": ours.name, "replicas": 3}
    assert client(person(ours)).post(f"{URL}/jobs/preview", asked).status_code == 422


def test_the_reasons_of_a_waiting_job_come_with_its_forecasts():
    here, ours = fleet(1, 1), team()
    me = person(ours)
    start(job(ours, me, time_limit=600.0, at=clock.now()), here, at=clock.now())
    waiting = job(ours, me, time_limit=60.0, at=clock.now())
    plan_once()
    answer = client(person()).get(f"{URL}/jobs/{waiting.pk}/reasons").data

    assert bodies.ReasonsOut.model_validate(answer)
    assert (answer["reason"]["code"], answer["rank"], len(answer["forecasts"])) == ("resources", 1, 1)
    listed = client(person()).get(f"{URL}/jobs", {"reason": "resources"}).data["items"]
    assert [(item["id"], item["reason"]["code"]) for item in listed] == [(waiting.pk, "resources")]


def test_passes_are_listed_and_shown():
    fleet(), (ours := team())
    job(ours, person(ours), at=clock.now())
    done = plan_once()
    me = client(person())

    assert [row["id"] for row in me.get(f"{URL}/passes").data["items"]] == [done.pk]
    assert me.get(f"{URL}/passes", {"refused": "true"}).data["items"] == []
    assert me.get(f"{URL}/passes/{done.pk}").data["n_started"] == 1
    assert me.get(f"{URL}/passes/{done.pk + 1}").status_code == 404


def test_utilization_says_what_is_held_now_and_what_was():
    here, ours = fleet(1, 4), team()
    start(job(ours, person(ours), at=clock.now()), here, at=clock.now())
    services.roll_up(at=clock.now() - timedelta(minutes=2))
    answer = client(person()).get(f"{URL}/utilization").data

    assert bodies.UtilizationOut.model_validate(answer)
    (now,) = answer["now"]
    assert (now["capacity"], now["claimed"], now["free"], now["utilization"]) == (4, 1.0, 3.0, 0.25)
    assert [sample["claimed"] for sample in answer["items"]] == [1.0]


@pytest.mark.parametrize(
    "query", ["since=yesterday", "since=2026-01-01T00:00:00", "since=2020-01-01T00:00:00Z", "x=1"]
)
def test_a_span_that_is_not_understood_is_refused(query):
    assert client(person()).get(f"{URL}/utilization?{query}").status_code == 400


def test_losses_sum_to_the_capacity_by_type_and_by_team():
    here, ours, theirs = fleet(1, 4), team(), team()
    at = clock.now() - timedelta(hours=1)
    start(job(ours, person(ours), devices=3, at=at), here, grant(here.nodes[0], (0, 1, 2)), at=at)
    for seconds in (0, 60):
        losses.count(snapshot.take_snapshot(at), (), (), at=at + timedelta(seconds=seconds))

    told = bodies.LedgerOut.model_validate(client(person()).get(f"{URL}/losses").data)
    assert told.total is not None
    assert told.total.capacity_device_s == sum(told.total.device_s.values()) == 240.0
    assert told.total.device_s == {"productive": 180.0, "no_demand": 60.0}
    mine = client(person()).get(f"{URL}/losses?team={ours.name}").data["total"]
    assert (mine["capacity_device_s"], mine["device_s"]) == (180.0, {"productive": 180.0})
    assert client(person()).get(f"{URL}/losses?team={theirs.name}").data == {"total": None, "items": []}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("team=nobody", "team"),
        ("team=%00", "team"),
        ("accelerator_type=X9", "accelerator_type"),
        ("since=yesterday", "since"),
        ("since=2026-01-01T00:00:00Z&until=2025-01-01T00:00:00Z", "since"),
        ("size=3", "size"),
    ],
)
def test_what_losses_cannot_be_asked_for_is_said(query, field):
    answer = client(person()).get(f"{URL}/losses?{query}")

    assert answer.status_code == 400
    assert field in str(answer.data)

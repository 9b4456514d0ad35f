"""Advice on defragmentation by REST: what it answers, to whom, and how it refuses."""

from datetime import timedelta

import pytest
from rest_framework.test import APIClient

from apps.core import clock
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.tests.builders import fleet, grant, job, person, start, team
from apps.scheduling.api import bodies
from apps.teams.models import FacilityRole, MemberRole
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db
URL = "/api/v1/defragmentation"


@pytest.fixture
def jobs_of() -> dict:
    """Half of each of two nodes is in use; a job waits for a whole one."""
    here, ours = fleet(2, 4), team()
    me = person(ours)
    made = {"ours": ours, "me": me, "here": here}
    for node, ran in ((0, 500), (1, 100)):
        since = clock.now() - timedelta(seconds=ran)
        one = job(
            ours, me, devices=2, time_limit=7200.0, at=since, checkpoint={"interval": 3600.0, "cost": 5.0}
        )
        start(one, here, grant(here.nodes[node], (0, 1)), at=since)
        made[f"half{node}"] = one
    made["waits"] = job(ours, me, devices=4, time_limit=600.0, at=clock.now())
    return made


def operator() -> APIClient:
    return client(person(facility_role=FacilityRole.OPERATOR))


def test_proposals_come_with_places_costs_and_gains(jobs_of):
    answer = operator().get(URL)

    assert (answer.status_code, answer.data["next"]) == (200, None)
    (item,) = answer.data["items"]
    assert bodies.ProposalOut.model_validate(item)
    (move,) = item["moves"]
    assert (item["job"]["id"], move["job"]["id"]) == (jobs_of["waits"].pk, jobs_of["half1"].pk)
    names = [node.name for node in jobs_of["here"].nodes]
    assert ([s["node"] for s in move["before"]], [s["node"] for s in move["after"]]) == (
        [names[1]],
        [names[0]],
    )
    assert move["cost_device_s"] == item["cost_device_s"] == pytest.approx(2 * (5 + move["lost_s"]))
    assert item["gain_device_s"] > item["cost_device_s"]
    assert item["expected_start"] < item["expected_start_otherwise"]


def test_a_proposal_is_applied_once_however_often_it_is_asked(jobs_of):
    us = operator()
    fingerprint = us.get(URL).data["items"][0]["fingerprint"]
    first = us.post(f"{URL}/apply", {"fingerprint": fingerprint})
    again = us.post(f"{URL}/apply", {"fingerprint": fingerprint})

    assert (first.status_code, again.status_code) == (202, 202)
    assert bodies.AppliedOut.model_validate(first.data)
    assert again.data == first.data
    assert [move["job_id"] for move in first.data["moves"]] == [jobs_of["half1"].pk]
    told = client(jobs_of["me"]).get(f"/api/v1/jobs/{jobs_of['half1'].pk}").data
    assert (told["state"], told["moves"], told["preemptions"]) == (State.PREEMPTING, 0, 0)
    assert us.get(URL).data["items"] == []


def test_what_no_longer_holds_is_a_conflict(jobs_of):
    us = operator()
    fingerprint = us.get(URL).data["items"][0]["fingerprint"]
    Job.objects.filter(pk=jobs_of["waits"].pk).update(is_held=True)
    answer = us.post(f"{URL}/apply", {"fingerprint": fingerprint})

    assert (answer.status_code, answer.data["code"]) == (409, "outdated")
    assert Job.objects.get(pk=jobs_of["half1"].pk).state == State.RUNNING


@pytest.mark.parametrize(
    ("body", "path"),
    [({}, "fingerprint"), ({"fingerprint": 7}, "fingerprint"), ({"fingerprint": ""}, "fingerprint"),
     ({"fingerprint": "a\x00"}, "fingerprint"), ({"fingerprint": "1-a", "force": True}, "force")],
)  # fmt: skip
def test_a_body_that_makes_no_sense_names_its_field(jobs_of, body, path):
    answer = operator().post(f"{URL}/apply", body, format="json")

    assert (answer.status_code, answer.data["errors"][0]["path"]) == (400, path)


def test_a_parameter_that_is_not_known_is_refused(jobs_of):
    assert operator().get(f"{URL}?x=1").status_code == 400


@pytest.mark.parametrize(
    ("role", "may_look", "may_move"),
    [(FacilityRole.NONE, 403, 403), (FacilityRole.AUDITOR, 200, 403), (FacilityRole.OPERATOR, 200, 202),
     (FacilityRole.ADMIN, 200, 202)],
)  # fmt: skip
def test_who_may_look_and_who_may_move(jobs_of, role, may_look, may_move):
    fingerprint = operator().get(URL).data["items"][0]["fingerprint"]
    us = client(person(facility_role=role))

    assert us.get(URL).status_code == may_look
    assert us.post(f"{URL}/apply", {"fingerprint": fingerprint}).status_code == may_move
    is_moved = Job.objects.get(pk=jobs_of["half1"].pk).state == State.PREEMPTING
    assert is_moved == (may_move == 202)


def test_leads_and_owners_do_not_move_jobs_and_nobody_does_unasked(jobs_of):
    for user in (jobs_of["me"], person(jobs_of["ours"], role=MemberRole.LEAD)):
        assert client(user).get(URL).status_code == 403
    assert APIClient().get(URL).status_code == 401
    assert APIClient().post(f"{URL}/apply", {"fingerprint": "1-a"}).status_code == 401

"""Logs by REST: for the team, while the job runs and after."""

import pytest
from rest_framework.test import APIClient

from apps.execution import selectors
from apps.execution.backends.base import LogChunk
from apps.jobs.models import Job
from apps.jobs.tests.builders import fleet, job, person, start, team
from apps.teams.models import FacilityRole, User

pytestmark = pytest.mark.django_db


def ask(user: User, of: Job, **query: str | int):
    client = APIClient()
    client.force_authenticate(user)
    return client.get(f"/api/v1/jobs/{of.pk}/logs", query)


@pytest.fixture
def _says_hello(monkeypatch):
    def read_log(**asked):
        return LogChunk(f"{asked['stream']} {asked['rank']} from {asked['offset']}", 9, True)

    monkeypatch.setattr(selectors, "read_log", read_log)


@pytest.mark.usefixtures("_says_hello")
def test_the_team_reads_what_its_job_printed():
    here, ours = fleet(), team()
    me = person(ours)
    start(made := job(ours, me), here)
    answer = ask(me, made, stream="stderr", rank=2, offset=7)

    assert (answer.data["text"], answer.data["next_offset"], answer.data["is_complete"]) == (
        "stderr 2 from 7",
        9,
        True,
    )


def test_a_job_that_has_not_started_has_printed_nothing_yet():
    fleet(), (ours := team())
    me = person(ours)
    answer = ask(me, job(ours, me)).data
    assert (answer["text"], answer["is_complete"]) == ("", False)


@pytest.mark.usefixtures("_says_hello")
@pytest.mark.parametrize(
    ("role", "status"),
    [
        (FacilityRole.NONE, 404),
        (FacilityRole.POWER_ADMIN, 404),
        (FacilityRole.OPERATOR, 403),
        (FacilityRole.AUDITOR, 403),
        (FacilityRole.ADMIN, 200),
    ],
)
def test_logs_are_for_the_team_and_administrators(role, status):
    here, ours = fleet(), team()
    start(made := job(ours, person(ours)), here)
    assert ask(person(facility_role=role), made).status_code == status


@pytest.mark.parametrize(
    "query", [{"stream": "stdin"}, {"rank": -1}, {"limit": 0}, {"offset": "x"}, {"attempt": 2}]
)
def test_a_query_that_is_not_understood_is_refused(query):
    here, ours = fleet(), team()
    me = person(ours)
    start(made := job(ours, me), here)
    assert ask(me, made, **query).status_code == 400

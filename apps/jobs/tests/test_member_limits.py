"""How many jobs one member may have waiting: what is over it is refused, whole, and never slips in side by side."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.jobs import services
from apps.jobs.errors import Refused
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.tests.builders import NOON, allocate, fleet, job, person, request, team
from apps.jobs.tests.test_concurrency import at_once
from apps.teams.models import MemberLimit
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db


def at_most(of, most, user=None):
    MemberLimit.objects.create(team=of, user=user, what="waiting_jobs", most=most)


@pytest.fixture
def ours():
    fleet()
    return team("vision")


@pytest.mark.parametrize("submit", [services.submit_jobs, services.submit_bulk])
def test_jobs_over_the_limit_are_refused_all_with_the_numbers_at_the_first_of_them(ours, submit):
    at_most(ours, 3)
    me = person(ours)
    job(ours, me)
    submit(requests=[request(ours)], actor=me, at=NOON)
    with pytest.raises(Refused) as caught:
        submit(requests=[request(ours)] * 2, actor=me, at=NOON, path="jobs")

    assert (caught.value.code, caught.value.http_status) == ("too_many_waiting", 409)
    assert caught.value.errors == (
        {
            "path": "jobs[1].team",
            "code": "too_many_waiting",
            "message": "you have 2 jobs of vision waiting and submit 2; one member may have 3 waiting at once",
        },
    )
    assert Job.objects.count() == 2
    submit(requests=[request(ours)], actor=me, at=NOON)


def test_jobs_of_an_array_are_counted_one_by_one(ours):
    at_most(ours, 3)
    me = person(ours)
    with pytest.raises(Refused, match="submit 4"):
        job(ours, me, array={"size": 4})
    job(ours, me, array={"size": 3})


def test_what_runs_and_what_others_have_waiting_is_not_counted(ours):
    at_most(ours, 1)
    me, other = person(ours), person(ours)
    allocate(job(ours, me), here := fleet(1, 1))
    job(ours, other)
    job(ours, me)

    assert Job.objects.filter(user=me, state=State.QUEUED).count() == 1
    assert here.claimed() == 1


def test_another_team_has_limits_of_its_own(ours):
    at_most(ours, 1)
    me = person(ours, theirs := team("speech"))
    services.submit_jobs(requests=[request(theirs)] * 3 + [request(ours)], actor=me, at=NOON)
    with pytest.raises(Refused) as caught:
        services.submit_jobs(requests=[request(theirs), request(ours)], actor=me, at=NOON, path="jobs")
    assert [error["path"] for error in caught.value.errors] == ["jobs[1].team"]


def test_what_is_said_of_a_person_stands_in_place_of_what_is_said_of_all(ours):
    at_most(ours, 1)
    ann, bob = person(ours), person(ours)
    at_most(ours, 2, ann)
    at_most(ours, None, bob)
    services.submit_jobs(requests=[request(ours)] * 50, actor=bob, at=NOON)
    with pytest.raises(Refused, match="you may have 2 waiting at once"):
        services.submit_jobs(requests=[request(ours)] * 3, actor=ann, at=NOON)


def test_the_same_key_again_is_answered_though_the_limit_is_reached(ours):
    at_most(ours, 1)
    me = person(ours)
    first = services.submit_job(request=request(ours), actor=me, at=NOON, idempotency_key="k")

    assert services.submit_job(request=request(ours), actor=me, at=NOON, idempotency_key="k") == first


def test_by_rest_it_is_a_409_that_names_the_limit(ours):
    at_most(ours, 1)
    me = client(person(ours))
    body = {"name": "train", "team": ours.name, "command": ["true"]}
    assert me.post("/api/v1/jobs", body).status_code == 201
    for url, sent, path in (
        ("/api/v1/jobs", body, "team"),
        ("/api/v1/jobs/bulk", {"jobs": [body]}, "jobs[0].team"),
    ):
        answer = me.post(url, sent)
        assert (answer.status_code, answer.json()["code"]) == (409, "too_many_waiting")
        assert [(fault["path"], fault["code"]) for fault in answer.json()["errors"]] == [
            (path, "too_many_waiting")
        ]


def test_however_many_are_submitted_a_limit_costs_two_queries(ours):
    me = person(ours)

    def n_queries(n_jobs):
        with CaptureQueriesContext(connection) as asked:
            services.submit_bulk(requests=[request(ours)] * n_jobs, actor=me, at=NOON)
        return len(asked)

    n_queries(3)
    without = n_queries(3), n_queries(200)
    at_most(ours, 1000)
    assert (n_queries(3), n_queries(200)) == (without[0] + 2, without[1] + 2)  # a lock, a count


@pytest.mark.django_db(transaction=True)
def test_of_many_submissions_at_once_as_many_come_in_as_may(ours):
    at_most(ours, 10)
    me = person(ours)
    outcomes = at_once(
        *(lambda: services.submit_bulk(requests=[request(ours)] * 3, actor=me, at=NOON) for _ in range(6))
    )

    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 3
    assert Job.objects.filter(state=State.QUEUED).count() == 9

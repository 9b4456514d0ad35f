"""Progress by REST: from within a job, and by its team."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.core import clock
from apps.jobs import tokens
from apps.jobs.api import bodies
from apps.jobs.models import Allocation, AllocationToken, Progress
from apps.jobs.steps import LEAST_STEPS
from apps.jobs.tests.builders import allocate, end, fleet, grant, job, person, start, team
from apps.teams.models import FacilityRole

pytestmark = pytest.mark.django_db


def url(of: Allocation, what: str = "progress") -> str:
    return f"/api/v1/jobs/{of.job_id}/{what}"


def as_job(of: Allocation) -> APIClient:
    secret = tokens.issue(allocations=[of], at=clock.now())[of.pk]
    return APIClient(headers={"Authorization": f"Bearer {secret}"})


def as_person(user: Any) -> APIClient:
    made = APIClient()
    made.force_authenticate(user)
    return made


@pytest.fixture
def ours():
    return team()


@pytest.fixture
def me(ours):
    return person(ours)


@pytest.fixture
def running(ours, me) -> Allocation:
    """Four ranks on four nodes, since now."""
    here = fleet(4, 1)
    grants = [grant(node, n_replicas=1, first_rank=rank) for rank, node in enumerate(here.nodes)]
    return start(job(ours, me, replicas=4, at=clock.now()), here, *grants, at=clock.now())


def test_a_job_posts_with_its_own_token(running):
    now = clock.now().isoformat()
    body = {"step": 3, "step_times_s": {"0": 0.5, "3": 1}, "fraction_done": 0.25, "checkpoint_at": now}
    answer = as_job(running).post(url(running), body)

    assert answer.status_code == 200, answer.content
    assert bodies.ProgressOut.model_validate(answer.data)
    assert (answer.data["step"], answer.data["fraction_done"], answer.data["n_ranks_told"]) == (3, 0.25, 2)
    assert Progress.objects.get().counts == [1, 0, 0, 1]


def test_step_times_may_be_a_list_by_rank(running):
    assert as_job(running).post(url(running), {"step": 1, "step_times_s": [1, 2, 3, 4]}).status_code == 200
    assert Progress.objects.get().lasts_s == [1, 2, 3, 4]


def test_members_of_the_team_may_post_too(running, me):
    assert as_person(me).post(url(running), {"fraction_done": 0.5}).status_code == 200


def test_a_jobs_token_opens_nothing_else(running, ours, me):
    other = start(job(ours, me), fleet(1))
    asker = as_job(running)

    assert asker.post(url(other), {"step": 1}).status_code == 404
    assert asker.post(url(running, "stop"), {}).status_code == 403
    for address in (url(running), url(running, "logs"), "/api/v1/jobs", "/api/v1/me", "/api/v1/tokens"):
        assert asker.get(address).status_code == 403
    assert asker.post("/api/v1/tokens", {"name": "more"}).status_code == 403
    assert not Progress.objects.exists()


def test_a_jobs_token_ends_with_its_attempt(running):
    asker = as_job(running)
    assert asker.post(url(running), {"step": 1}).status_code == 200
    end(running, "succeeded", at=clock.now())

    assert asker.post(url(running), {"step": 2}).json()["code"] == "bad_token"


def test_a_jobs_token_ends_with_the_person_it_stands_for(running, me):
    asker = as_job(running)
    me.is_active = False
    me.save()

    assert asker.post(url(running), {"step": 1}).status_code == 401


def test_an_order_that_is_made_again_has_the_same_token_and_each_attempt_its_own(running, ours, me):
    first, again = (tokens.issue(allocations=[running], at=clock.now()) for _ in range(2))
    other = allocate(job(ours, me), fleet(1))

    assert first == again
    assert tokens.issue(allocations=[other], at=clock.now())[other.pk] not in first.values()
    assert first[running.pk] not in str(list(AllocationToken.objects.values()))


def test_tokens_of_attempts_that_are_over_are_deleted(running):
    as_job(running)
    at = clock.now()
    end(running, "succeeded", at=at)
    assert tokens.prune(at=at) == 0
    assert tokens.prune(at=at + tokens._DELETED_AFTER + tokens._DELETED_AFTER) == 1


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, ""),
        ({"attempt": 1}, ""),
        ({"step_times_s": {"0": 1}}, "step"),
        ({"step": True}, "step"),
        ({"step": -1}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": 10**16}, "step"),
        ({"step": 1, "step_times_s": 3}, "step_times_s"),
        ({"step": 1, "step_times_s": {}}, "step_times_s"),
        ({"step": 1, "step_times_s": []}, "step_times_s"),
        ({"step": 1, "step_times_s": {"0": True}}, "step_times_s.0"),
        ({"step": 1, "step_times_s": {"0": 0}}, "step_times_s.0"),
        ({"step": 1, "step_times_s": {"0": -1}}, "step_times_s.0"),
        ({"step": 1, "step_times_s": {"0": 1e7}}, "step_times_s.0"),
        ({"step": 1, "step_times_s": {"0": "1"}}, "step_times_s.0"),
        ({"step": 1, "step_times_s": {"0": None}}, "step_times_s.0"),
        ({"step": 1, "step_times_s": {"00": 1}}, "step_times_s.00"),
        ({"step": 1, "step_times_s": {"-1": 1}}, "step_times_s.-1"),
        ({"step": 1, "step_times_s": {"x": 1}}, "step_times_s.x"),
        ({"step": 1, "step_times_s": {"4": 1}}, "step_times_s.4"),
        ({"step": 1, "step_times_s": [1, False]}, "step_times_s[1]"),
        ({"step": 1, "step_times_s": [1, 1, 1, 1, 1]}, "step_times_s[4]"),
        ({"fraction_done": 1.01}, "fraction_done"),
        ({"fraction_done": True}, "fraction_done"),
        ({"checkpoint_at": 5}, "checkpoint_at"),
        ({"checkpoint_at": "2100-01-01T00:00:00Z"}, "checkpoint_at"),
        ({"step": 1, "attempt": 0}, "attempt"),
        ({"step": 1, "stepp": 1}, "stepp"),
    ],
)
def test_a_post_that_makes_no_sense_is_refused_at_its_field(running, body, path):
    answer = as_job(running).post(url(running), body)

    assert answer.status_code == 400, answer.content
    assert [error["path"] for error in answer.json()["errors"]] == [path]
    assert not Progress.objects.exists()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused_by_its_path(running, number):
    text = f'{{"step": 1, "step_times_s": {{"2": {number}}}}}'
    answer = as_job(running).post(url(running), text, content_type="application/json")

    assert answer.status_code == 400
    assert [error["path"] for error in answer.json()["errors"]] == ["step_times_s.2"]


def test_there_are_only_so_many_posts_a_minute(running, settings):
    settings.SWITCHYARD_PROGRESS_PER_MINUTE = 3
    asker = as_job(running)
    answers = [asker.post(url(running), {"step": step}) for step in range(5)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert Progress.objects.get().n_posts == 3


def test_strangers_find_no_progress_and_onlookers_post_none(running, me):
    stranger = as_person(person(team()))
    auditor = as_person(person(facility_role=FacilityRole.AUDITOR))
    as_person(me).post(url(running), {"step": 7})

    assert stranger.get(url(running)).status_code == 404
    assert stranger.post(url(running), {"step": 1}).status_code == 404
    assert auditor.get(url(running)).data["step"] == 7
    assert auditor.post(url(running), {"step": 8}).status_code == 403


def test_a_job_that_never_ran_has_no_progress(ours, me):
    fleet()
    waiting = job(ours, me)
    address = f"/api/v1/jobs/{waiting.pk}/progress"

    assert as_person(me).get(address).status_code == 404
    assert as_person(me).post(address, {"step": 1}).json()["code"] == "wrong_state"


def test_a_word_of_an_earlier_attempt_is_refused(running, me):
    answer = as_person(me).post(url(running), {"step": 1, "attempt": 2})

    assert (answer.status_code, answer.json()["code"]) == (409, "stale")


def test_the_placement_names_who_sets_the_pace_to_those_whose_business_it_is(running, me):
    asker = as_job(running)
    for step in range(LEAST_STEPS):
        asker.post(url(running), {"step": step, "step_times_s": [1, 1, 1.5, 1]})
    found = as_person(me).get(url(running, "placement")).data

    assert bodies.PlacementOut.model_validate(found)
    assert found["slowest"]["rank"] == 2
    assert found["slowest"]["node"] == found["allocation"]["placement"][2]["node"]
    assert found["slowest"]["slower_by"] == pytest.approx(0.5)
    assert as_person(person(team())).get(url(running, "placement")).data["slowest"] is None

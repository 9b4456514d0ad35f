"""Jobs by REST, as a client sees them."""

import json
from typing import Any

import pytest

from apps.core import clock
from apps.jobs import services
from apps.jobs.api import bodies
from apps.jobs.models import Job
from apps.jobs.tests.builders import allocate, end, fleet, job, later, person, start, team
from apps.teams.models import FacilityRole, IdempotentAnswer, MemberRole, Team
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db
URL = "/api/v1/jobs"


def body(of: Team, **fields: Any) -> dict[str, Any]:
    return {"name": "train", "team": of.name, "command": ["true"], **fields}


def test_a_submitted_job_is_answered_with_its_address_and_everything_it_asked():
    fleet()
    ours = team()
    answer = client(person(ours)).post(URL, body(ours, devices=2, time_limit=60, env={"A": "b"}))

    assert answer.status_code == 201
    assert answer.headers["Location"].endswith(f"{URL}/{answer.data['id']}")
    assert bodies.JobDetailOut.model_validate(answer.data)
    assert (answer.data["state"], answer.data["devices"], answer.data["command"]) == ("queued", 2, ["true"])


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": {"min": 3, "max": 2}}, "replicas.max"),
        ({"devices": True}, "devices"),
        ({"devices": 1.5}, "devices"),
        ({"name": "a\x00b"}, "name"),
        ({"nmae": "x"}, "nmae"),
        ({"time_limit": -1}, "time_limit"),
        ({"time_limit": None}, "time_limit"),
        ({"accelerators": ["H1000"]}, "accelerators[0]"),
        ({"team": "nobody"}, "team"),
        ({"priority": 10**30}, "priority"),
    ],
)
def test_a_bad_field_is_refused_with_its_path_and_nothing_is_stored(fields, path):
    fleet()
    ours = team()
    me = client(person(ours))
    one = me.post(URL, body(ours, **fields))
    many = me.post(f"{URL}/bulk", {"jobs": [body(ours), body(ours, **fields)]})

    assert (one.status_code, many.status_code) == (400, 400)
    assert [error["path"] for error in one.data["errors"]] == [path]
    assert [error["path"] for error in many.data["errors"]] == [f"jobs[1].{path}"]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "text", ['{"name": NaN}', '{"name": "a", "name": "b"}', '{"name": "a"} x', "[]", "{", ""]
)
def test_a_body_that_is_no_json_object_is_refused(text):
    assert client(person()).post(URL, text, content_type="application/json").status_code == 400


def test_a_thousand_jobs_go_in_at_once_and_one_more_does_not():
    fleet()
    ours = team()
    me = client(person(ours))
    assert len(me.post(f"{URL}/bulk", {"jobs": [body(ours)] * 1000}).data["items"]) == 1000

    assert me.post(f"{URL}/bulk", {"jobs": [body(ours)] * 1001}).status_code == 400
    assert Job.objects.count() == 1000


def test_what_can_never_fit_is_refused_with_the_proof():
    fleet(2, 8, kind="H200")
    ours = team()
    answer = client(person(ours)).post(URL, body(ours, replicas=3, devices=8, accelerators=["H200"]))

    assert (answer.status_code, answer.data["code"]) == (422, "infeasible")
    assert answer.data["errors"][0]["message"] == "asks 24 H200, the facility has 16"


def test_the_same_key_gets_the_same_answer_and_another_body_is_refused():
    fleet()
    ours = team()
    me = client(person(ours))
    first, again = (me.post(URL, body(ours), headers={"Idempotency-Key": "k"}) for _ in "ab")
    other = me.post(URL, body(ours, priority=1), headers={"Idempotency-Key": "k"})

    assert first.data["id"] == again.data["id"]
    assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422)
    assert Job.objects.count() == 1


def test_a_list_shows_each_job_once_though_jobs_come_meanwhile():
    fleet()
    ours = team()
    me = person(ours)
    made = [job(ours, me, at=later(n // 2)).pk for n in range(7)]
    seen, cursor = [], ""
    while True:
        answer = (
            client(me)
            .get(URL, {"limit": 2, "order": "newest", **({"cursor": cursor} if cursor else {})})
            .data
        )
        seen += [item["id"] for item in answer["items"]]
        job(ours, me, at=later(-1))
        if (cursor := answer["next"]) is None:
            break

    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "queued"}, {"waiting", "held"}),
        ({"state": "starting,running"}, {"runs"}),
        ({"state": "succeeded"}, set()),
        ({"name_prefix": "wait"}, {"waiting"}),
        ({"name_prefix": "%"}, set()),
        ({"reason": "held"}, {"held"}),
        ({"user": "nobody"}, set()),
        ({"array": "77"}, set()),
    ],
)
def test_a_list_is_narrowed_down(query, found):
    here, ours = fleet(), team()
    me = person(ours)
    job(ours, me, name="waiting")
    job(ours, me, name="held", held=True)
    start(job(ours, me, name="runs"), here)

    answer = client(me).get(URL, {**query, "team": ours.name})
    assert {item["name"] for item in answer.data["items"]} == found


def test_jobs_of_a_cluster_are_those_that_run_there_or_may_only_run_there():
    here, there, ours = fleet(), fleet(), team()
    me = person(ours)
    start(job(ours, me, name="runs"), here)
    job(ours, me, name="bound", cluster=here.cluster.name)
    job(ours, me, name="other", cluster=there.cluster.name)

    answer = client(me).get(URL, {"cluster": here.cluster.name})
    assert {item["name"] for item in answer.data["items"]} == {"runs", "bound"}


@pytest.mark.parametrize(
    "query", ["stat=queued", "state=waiting", "reason=mood", "order=size", "cursor=x", "limit=0"]
)
def test_a_query_that_is_not_understood_is_refused(query):
    assert client(person()).get(f"{URL}?{query}").status_code == 400


def test_a_stranger_sees_the_job_without_its_private_part():
    fleet()
    ours = team()
    made = job(ours, person(ours), command=["secret"], env={"KEY": "secret"}, workdir="/secret")
    answer = client(person(team())).get(f"{URL}/{made.pk}")

    assert answer.status_code == 200
    assert "secret" not in json.dumps(answer.data, default=str)


@pytest.mark.parametrize("path", ["events", "stop", "hold", "release"])
def test_for_a_stranger_the_business_of_a_job_is_not_there(path):
    fleet()
    ours = team()
    made = job(ours, person(ours))
    them = client(person(team()))
    url = f"{URL}/{made.pk}/{path}"

    assert (them.get(url) if path == "events" else them.post(url)).status_code == 404
    assert them.patch(f"{URL}/{made.pk}", {"priority": 1}).status_code == 404


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        (FacilityRole.OPERATOR, {"HF_TOKEN": "hidden"}),
        (FacilityRole.AUDITOR, {"HF_TOKEN": "hidden"}),
        (FacilityRole.ADMIN, {"HF_TOKEN": "hf_secret"}),
        (FacilityRole.NONE, None),
    ],
)
def test_values_of_the_environment_are_for_the_team_and_administrators(role, shown):
    fleet()
    ours = team()
    made = job(ours, person(ours), env={"HF_TOKEN": "hf_secret"})
    other = client(person(facility_role=role))
    answers = [other.get(f"{URL}/{made.pk}")]
    if role == FacilityRole.OPERATOR:
        answers += [other.post(f"{URL}/{made.pk}/hold"), other.post(f"{URL}/{made.pk}/release")]

    assert [answer.data["env"] for answer in answers] == [shown] * len(answers)
    assert answers[0].data["command"] == (None if shown is None else ["true"])
    assert client(made.user).get(f"{URL}/{made.pk}").data["env"] == {"HF_TOKEN": "hf_secret"}


def test_an_auditor_sees_but_does_not_act():
    fleet()
    ours = team()
    made = job(ours, person(ours))
    auditor = client(person(facility_role=FacilityRole.AUDITOR))

    assert auditor.get(f"{URL}/{made.pk}").data["command"] == ["true"]
    assert auditor.get(f"{URL}/{made.pk}/events").status_code == 200
    assert auditor.post(f"{URL}/{made.pk}/stop").status_code == 403


def test_a_lead_above_sees_and_acts():
    fleet()
    above = team()
    made = job(ours := team(parent=above), person(ours))
    lead = client(person(above, role=MemberRole.LEAD))

    assert lead.get(f"{URL}/{made.pk}").data["is_private_shown"]
    assert lead.post(f"{URL}/{made.pk}/stop", {"reason": "enough"}).data["state"] == "cancelled"


def test_hold_and_release_by_rest():
    fleet()
    ours = team()
    me = client(person(ours))
    made = me.post(URL, body(ours)).data["id"]

    held = me.post(f"{URL}/{made}/hold", {"reason": "wait for data"})
    assert (held.data["held"], held.data["held_reason"], held.data["reason"]["code"]) == (
        True,
        "wait for data",
        "held",
    )
    assert me.post(f"{URL}/{made}/release").data["held"] is False
    assert [event["kind"] for event in me.get(f"{URL}/{made}/events").data["items"]] == [
        "job.released", "job.held", "job.submitted",
    ]  # fmt: skip


def test_a_patch_changes_what_it_names():
    fleet()
    ours = team()
    me = client(person(ours))
    made = me.post(URL, body(ours)).data["id"]
    changed = me.patch(f"{URL}/{made}", {"time_limit": 90, "replicas": 2})

    assert (changed.status_code, changed.data["time_limit"], changed.data["replicas"]) == (200, 90, 2)
    assert me.patch(f"{URL}/{made}", {}).status_code == 400
    assert me.patch(f"{URL}/{made}", {"name": "x"}).status_code == 400


def test_a_job_that_ended_is_not_changed():
    fleet()
    ours = team()
    me = person(ours)
    made = job(ours, me)
    services.stop_job(job_id=made.pk, actor=me, at=later(1))
    answer = client(me).patch(f"{URL}/{made.pk}", {"priority": 1})

    assert (answer.status_code, answer.data["code"]) == (409, "wrong_state")


def test_the_placement_names_nodes_devices_and_ranks():
    here, ours = fleet(), team()
    me = person(ours)
    made = job(ours, me)
    assert client(me).get(f"{URL}/{made.pk}/placement").data["allocation"] is None

    start(made, here)
    answer = client(me).get(f"{URL}/{made.pk}/placement").data
    assert bodies.PlacementOut.model_validate(answer)
    (share,) = answer["allocation"]["placement"]
    assert (share["node"], share["devices"], share["share"]) == (here.nodes[0].name, [0], 1.0)
    assert len(client(me).get(f"{URL}/{made.pk}/attempts").data["items"]) == 1


@pytest.mark.parametrize("job_id", [0, 999_999, 2**63, 10**40])
def test_a_job_that_is_not_there_is_not_there(job_id):
    assert client(person()).get(f"{URL}/{job_id}").status_code == 404


def test_a_list_costs_the_same_number_of_queries_however_long(django_assert_num_queries):
    fleet()
    ours = team()
    me = person(ours)
    services.submit_jobs(requests=[_request(ours)] * 50, actor=me, at=clock.now())
    with django_assert_num_queries(3):  # whose teams, the jobs, and by what they are in order
        assert len(client(me).get(URL).data["items"]) == 50


def _request(of: Team):
    from apps.jobs.tests.builders import request

    return request(of)


def test_a_sub_team_has_no_higher_priority_than_the_team_above_it():
    fleet()
    low = team(parent=team(priority_ceiling=10), priority_ceiling=1000)
    me = client(person(low))

    assert me.post(URL, body(low, priority=11)).data["code"] == "over_ceiling"
    assert me.post(URL, body(low, priority=10)).status_code == 201


def test_free_text_is_for_those_who_see_the_private_part():
    here, ours = fleet(), team()
    mine = person(ours)
    made = job(ours, mine)
    end(allocate(made, here), "failed", at=later(5), exit_code=127, message="command not found: /secret/run")
    told = [f"{URL}/{made.pk}", f"{URL}/{made.pk}/attempts", f"{URL}/{made.pk}/placement", URL]

    stranger = person(team())
    assert [one for one in told if "secret" in client(stranger).get(one).content.decode()] == []
    assert [one for one in told if "secret" not in client(mine).get(one).content.decode()] == []
    assert client(stranger).get(URL).data["items"][0]["end_code"] == "exit_code"


def test_why_a_job_was_held_and_stopped_is_for_its_team():
    here, ours = fleet(), team()
    mine, stranger = person(ours), client(person(team()))
    held, stopped = job(ours, mine), job(ours, mine)
    start(stopped, here)
    services.hold_job(job_id=held.pk, actor=mine, at=later(1), reason="secret")
    services.stop_job(job_id=stopped.pk, actor=mine, at=later(1), reason="secret")

    assert stranger.get(f"{URL}/{held.pk}").data["held_reason"] == ""
    assert stranger.get(f"{URL}/{stopped.pk}").data["stop_reason"] == ""
    assert client(mine).get(f"{URL}/{held.pk}").data["held_reason"] == "secret"
    assert client(mine).get(f"{URL}/{stopped.pk}").data["stop_reason"] == "secret"


def test_a_body_that_is_too_large_is_a_problem_that_names_the_limit(settings):
    settings.SWITCHYARD_LONGEST_BODY = 1000
    ours = team()
    answer = client(person(ours)).post(URL, body(ours, script="#!/bin/sh\n" + "x" * 2000))

    assert (answer.status_code, answer.headers["Content-Type"]) == (413, "application/problem+json")
    assert (answer.data["code"], answer.data["facts"]) == ("too_large", {"limit_bytes": 1000})
    assert Job.objects.count() == 0


def test_an_answer_is_made_anew_for_who_asks_again_and_no_secret_is_kept():
    fleet()
    ours = team()
    mine = person(ours)
    asked = body(ours, env={"TOKEN": "hunter2"}, workdir="/secret")
    first, second = (client(mine).post(URL, asked, headers={"Idempotency-Key": "k"}) for _ in "ab")
    assert (second.data["id"], second.data["env"]) == (first.data["id"], {"TOKEN": "hunter2"})
    assert (second.status_code, second.headers["Location"]) == (201, first.headers["Location"])
    assert IdempotentAnswer.objects.get().body == {"id": first.data["id"]}

    mine.memberships.all().delete()
    third = client(mine).post(URL, asked, headers={"Idempotency-Key": "k"})
    assert (third.data["id"], third.data["env"], third.data["workdir"]) == (first.data["id"], None, None)
    assert Job.objects.count() == 1


def test_what_was_done_to_a_job_is_not_told_again_to_who_left_its_team():
    fleet()
    ours = team()
    mine = person(ours)
    made, key = job(ours, mine), {"Idempotency-Key": "k"}
    first, second = (client(mine).post(f"{URL}/{made.pk}/hold", {"reason": "x"}, headers=key) for _ in "ab")
    assert (first.data["held_reason"], second.data["held_reason"]) == ("x", "x")
    assert IdempotentAnswer.objects.get().body == {"id": made.pk}

    mine.memberships.all().delete()
    assert client(mine).post(f"{URL}/{made.pk}/hold", {"reason": "x"}, headers=key).status_code == 404

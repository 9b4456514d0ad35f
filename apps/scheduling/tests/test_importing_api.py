"""Batch scripts and manifests by REST: shown, refused with the line, submitted all or none."""

import pytest

from apps.jobs.models import Job
from apps.jobs.tests.builders import fleet, person, team
from apps.teams.tests.builders import client

pytestmark = pytest.mark.django_db

SCRIPT = "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gpus=2\n#SBATCH --time=10\npython train.py\n"


@pytest.fixture
def ours():
    kind = fleet(2, 4, kind="H100").kind
    return team("vision", quota={kind: 8})


def test_a_script_is_shown_with_its_preview_and_not_submitted(ours):
    answer = client(person(ours)).post("/api/v1/jobs/import", {"text": SCRIPT})

    assert answer.status_code == 200, answer.content
    said = answer.json()
    assert said["format"] == "sbatch"
    (job,) = said["jobs"]
    assert job == {
        "name": "train", "team": "vision", "time_limit": 600, "replicas": 1, "devices": 2, "script": SCRIPT,
    }  # fmt: skip
    assert said["previews"][0]["would_start"] is True
    assert said["can_submit"] is True
    assert said["submitted"] is None
    assert not Job.objects.exists()


def test_options_of_the_command_line_and_defaults_have_their_place(ours):
    body = {
        "text": SCRIPT,
        "options": ["--time=5", "-G", "4"],
        "defaults": {"time_limit": 60, "priority": 0, "env": {"A": "1"}},
        "preview": False,
    }
    said = client(person(ours)).post("/api/v1/jobs/import", body).json()

    assert said["previews"] == []
    assert said["jobs"][0]["time_limit"] == 300
    assert said["jobs"][0]["devices"] == 4
    assert said["jobs"][0]["env"] == {"A": "1"}


def test_what_is_submitted_is_the_job_that_was_shown_and_once_for_a_key(ours):
    me = client(person(ours))
    shown = me.post("/api/v1/jobs/import", {"text": SCRIPT}).json()
    first = me.post("/api/v1/jobs/import", {"text": SCRIPT, "submit": True}, headers={"Idempotency-Key": "k"})
    again = me.post("/api/v1/jobs/import", {"text": SCRIPT, "submit": True}, headers={"Idempotency-Key": "k"})

    assert first.status_code == again.status_code == 201
    job = Job.objects.get()
    assert first.json()["submitted"] == again.json()["submitted"] == [job.pk]
    assert first.json()["jobs"] == shown["jobs"]
    assert job.private["script"] == SCRIPT
    assert job.time_limit_s == 600


def test_an_array_answers_all_its_jobs(ours):
    text = SCRIPT.replace("--time=10", "--array=1-5%2")
    said = client(person(ours)).post("/api/v1/jobs/import", {"text": text, "submit": True}).json()

    assert said["submitted"] == list(Job.objects.order_by("pk").values_list("pk", flat=True))
    assert len(said["submitted"]) == 5


def test_what_is_refused_is_named_by_its_line_and_nothing_is_submitted(ours):
    text = SCRIPT.replace("--time=10", "--nodelist=n1")
    me = client(person(ours))
    shown = me.post("/api/v1/jobs/import", {"text": text}).json()
    answer = me.post("/api/v1/jobs/import", {"text": text, "submit": True})

    assert shown["can_submit"] is False
    assert [(error["path"], error["line"]) for error in shown["errors"]] == [("line 4", 4)]
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["path"] == "line 4"
    assert not Job.objects.exists()


def test_of_several_manifests_all_or_none_are_submitted(ours):
    pod = "kind: Pod\nmetadata: {{name: {}}}\nspec: {{containers: [{{name: c, command: [x]{}}}]}}\n"
    good, bad = pod.format("good", ""), pod.format("bad", ", envFrom: [{secretRef: {name: s}}]")
    me = client(person(ours))

    assert me.post("/api/v1/jobs/import", {"text": f"{good}---\n{bad}", "submit": True}).status_code == 400
    assert not Job.objects.exists()
    second = good.replace("good", "better")
    said = me.post("/api/v1/jobs/import", {"text": f"{good}---\n{second}", "submit": True}).json()
    assert len(said["submitted"]) == Job.objects.count() == 2


def test_what_the_facility_could_never_hold_is_an_error_of_its_field(ours):
    text = SCRIPT.replace("--gpus=2", "--gpus=64")
    said = client(person(ours)).post("/api/v1/jobs/import", {"text": text}).json()

    assert said["can_submit"] is False
    assert said["errors"][0]["path"].startswith("jobs[0].")


def test_a_field_out_of_bounds_is_named_with_its_line(ours):
    text = SCRIPT.replace("--job-name=train", f"--job-name={'x' * 200}")
    said = client(person(ours)).post("/api/v1/jobs/import", {"text": text}).json()

    assert [(error["path"], error["code"], error["line"]) for error in said["errors"]] == [
        ("jobs[0].name", "too_long", 2)
    ]


def test_a_team_that_is_not_ones_own_is_not_submitted_for(ours):
    team("speech")
    me = client(person(ours))
    body = {"text": SCRIPT, "team": "speech"}

    assert me.post("/api/v1/jobs/import", {**body, "submit": True}).status_code in (400, 403)
    assert me.post("/api/v1/jobs/import", body).json()["can_submit"] is False
    account = me.post("/api/v1/jobs/import", {"text": SCRIPT.replace("--time=10", "--account=speech")}).json()
    assert account["jobs"][0]["team"] == "vision"
    assert "--account" in [note["option"] for note in account["notes"] if note["severity"] == "ignored"]


def test_who_is_in_no_team_sees_the_job_and_that_it_needs_one(ours):
    said = client(person()).post("/api/v1/jobs/import", {"text": SCRIPT}).json()

    assert [(error["path"], error["code"]) for error in said["errors"]] == [("jobs[0].team", "missing")]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "text"),
        ({"text": "echo hello"}, "text"),
        ({"text": "kind: [", "format": "kubernetes"}, "text"),
        ({"text": SCRIPT, "format": "pbs"}, "format"),
        ({"text": "kind: Pod", "options": ["-N2"]}, "options"),
        ({"text": SCRIPT, "defaults": {"devices": 3}}, "defaults.devices"),
        ({"text": SCRIPT, "submit": 1}, "submit"),
    ],
)
def test_a_body_at_fault_is_refused_by_its_field(ours, body, path):
    answer = client(person(ours)).post("/api/v1/jobs/import", body)

    assert answer.status_code == 400
    assert [error["path"] for error in answer.json()["errors"]] == [path]


def test_the_number_of_statements_does_not_grow_with_the_jobs(ours, django_assert_max_num_queries):
    pod = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, command: [x]}]}\n"
    me = client(person(ours))

    with django_assert_max_num_queries(15):
        me.post("/api/v1/jobs/import", {"text": "---\n".join([pod] * 60), "preview": False})

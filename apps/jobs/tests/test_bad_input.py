"""Each field of a job, by REST, with everything that might be sent in its place: stored as it is meant, or refused."""

import json

import pytest
from rest_framework.test import APIClient

from apps.jobs.models import Job
from apps.jobs.spec import Group, JobRequest
from apps.jobs.tests.builders import fleet, person, team

pytestmark = pytest.mark.django_db

# JSON as text: some of these are no JSON at all, which is the point.
VALUES = [
    "null", "true", "false", "NaN", "Infinity", "-Infinity", "-1", "0", "-0.0", "0.5", "1.5", "1e308", "1e400", "4.0",
    "1" * 30, "9" * 5000, "1e-400", '""', '" "', '"x\\u0000y"', '"\\ud800"', '"\\u202e"', '"\\u200b"', '"\\n"', '"1"',
    '"' + "x" * 200_000 + '"', "[]", "[[]]", "{}", "[null]", "[1, 1]", '["x", "x"]', '{"min": 2, "max": 1}',
    '{"min": "1", "max": 2}', '{"required": "leaf", "preferred": "leaf"}', '{"required": "rack"}', '{"over": "leaf"}',
    '{"interval": 0}', '{"interval": 1, "cost": -1}', '{"": ""}', '{"A=B": "x"}', '{"A": 1}', '{"size": 0}',
    '{"size": 1e9}', '"2026-02-30T00:00:00Z"', '"2026-01-01"', '"2026-01-01T00:00:00"',
    '[{"name": "a"}, {"name": "a"}]',
    '[{"name": "a", "replicas": 0}]', "[" * 5000,
]  # fmt: skip
FIELDS = sorted(JobRequest.model_fields)
GROUP_FIELDS = sorted(Group.model_fields)


def fit(answer, field: str, value: str, n_before: int) -> None:
    said = f"{field}: {value[:60]} -> {answer.status_code} {answer.content[:300]!r}"
    assert answer.status_code in (201, 400, 403, 422), said
    if answer.status_code == 201:
        return
    assert answer["Content-Type"].startswith("application/problem+json"), said
    assert Job.objects.count() == n_before, said
    document = json.loads(answer.content)
    if document["code"] not in ("bad_json", "parse_error"):
        assert document["errors"], said
        assert any(error["path"].startswith(field) for error in document["errors"]), said


@pytest.mark.parametrize("field", FIELDS)
def test_whatever_is_sent_for_a_field_is_stored_or_refused_by_its_path(field):
    fleet()
    ours = team()
    me = APIClient()
    me.force_authenticate(person(ours))
    for value in VALUES:
        fields = {"name": '"train"', "team": json.dumps(ours.name), field: value}
        body = "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"
        n_before = Job.objects.count()
        fit(me.post("/api/v1/jobs", body, content_type="application/json"), field, value, n_before)


@pytest.mark.parametrize("field", GROUP_FIELDS)
def test_whatever_is_sent_for_a_field_of_a_group_is_stored_or_refused_by_its_path(field):
    fleet()
    ours = team()
    me = APIClient()
    me.force_authenticate(person(ours))
    for value in VALUES:
        group = {"name": '"g"', field: value}
        text = "{" + ", ".join(f'"{name}": {word}' for name, word in group.items()) + "}"
        body = f'{{"name": "train", "team": {json.dumps(ours.name)}, "groups": [{text}]}}'
        n_before = Job.objects.count()
        answer = me.post("/api/v1/jobs", body, content_type="application/json")
        fit(answer, "groups", value, n_before)


@pytest.mark.parametrize("missing", ["name", "team"])
def test_what_is_missing_is_named(missing):
    ours = team()
    me = APIClient()
    me.force_authenticate(person(ours))
    fields = {"name": "train", "team": ours.name}
    del fields[missing]
    answer = me.post("/api/v1/jobs", fields)

    assert answer.status_code == 400
    assert [(error["path"], error["code"]) for error in answer.data["errors"]] == [(missing, "missing")]

"""Health reports by REST."""

import pytest
from rest_framework.test import APIClient

from apps.core import clock
from apps.inventory.models import HealthReport, Node
from apps.inventory.tests.builders import node
from apps.teams import services as teams
from apps.teams.models import IdempotentAnswer
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/nodes/n1/health"
BAD = {
    "status": "degraded",
    "source": "agent",
    "checks": [{"name": "fabric", "ok": False, "value": 3, "message": "3 links are down"}],
}


def paths(response):
    assert response.status_code == 400, response.content
    return [fault["path"] for fault in response.json()["errors"]]


def bearer(user, *scopes):
    _, secret = teams.create_token(user=user, name="agent", scopes=scopes, at=clock.now())
    return APIClient(headers={"Authorization": f"Bearer {secret}"})


def test_a_report_is_judged_and_shown_to_operators_alone():
    node()
    found = client(person("olga", "operator")).post(URL, BAD).json()

    assert (found["health"], found["health_by"]) == ("suspect", "reports")
    assert found["health_reason"] == "agent: fabric, status:degraded"
    assert found["seen"]["reports"][0]["checks"] == [
        {"name": "fabric", "ok": False, "value": 3.0, "message": "3 links are down"}
    ]
    shown = {
        role: client(person(f"p-{role}", role)).get("/api/v1/nodes/n1").json() for role in ("", "auditor")
    }
    assert shown[""]["seen"] is None
    assert len(shown["auditor"]["seen"]["reports"]) == 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"status": "well"}, "status"),
        ({"status": None}, "status"),
        ({"source": ""}, "source"),
        ({"source": "x" * 61}, "source"),
        ({"health": "healthy"}, "status"),
        ({"reason": "because"}, "reason"),
        ({"cooldown_s": 3}, "cooldown_s"),
        ({"at": "2026-01-01T00:00:00"}, "at"),
        ({"at": 5}, "at"),
        ({"at": "2100-01-01T00:00:00Z"}, "at"),
        ({"checks": [{"name": "a"}]}, "checks[0].ok"),
        ({"checks": [{"name": "a", "ok": 1}]}, "checks[0].ok"),
        ({"checks": [{"name": "a\x00", "ok": True}]}, "checks[0].name"),
        ({"checks": [{"name": "a", "ok": True, "value": True}]}, "checks[0].value"),
        ({"checks": [{"name": "a", "ok": True, "value": 1e300}]}, "checks[0].value"),
        ({"checks": [{"name": "a", "ok": True, "value": "3"}]}, "checks[0].value"),
        ({"checks": [{"name": "a", "ok": True, "unit": "C"}]}, "checks[0].unit"),
        ({"checks": [{"name": "a", "ok": True}] * 65}, "checks"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_at_its_field(change, path):
    node()

    assert paths(client(person("olga", "operator")).post(URL, BAD | change)) == [path]
    assert not HealthReport.objects.exists()


@pytest.mark.parametrize("gone", ["status", "source"])
def test_a_report_says_who_and_what(gone):
    node()
    body = {key: value for key, value in BAD.items() if key != gone}

    assert paths(client(person("olga", "operator")).post(URL, body)) == [gone]


def test_a_number_that_is_none_is_refused_by_its_path():
    node()
    text = '{"status": "ok", "source": "a", "checks": [{"name": "t", "ok": true, "value": NaN}]}'
    answer = client(person("olga", "operator")).post(URL, text, content_type="application/json")

    assert answer.status_code == 400
    assert "value" in answer.content.decode()


def test_a_token_for_agents_reports_and_does_nothing_else():
    node()
    agent = bearer(person("olga", "operator"), "health")

    assert agent.post(URL, BAD).status_code == 200
    assert agent.post(URL, {"health": "healthy"}).status_code == 403
    for address in ("/api/v1/nodes", "/api/v1/me"):
        assert agent.get(address).status_code == 403
    for address, body in (("nodes/n1/resume", {}), ("nodes/n1/drain", {}), ("tokens", {"name": "more"})):
        assert agent.post(f"/api/v1/{address}", body).status_code == 403
    assert Node.objects.get().health == "suspect"


def test_a_token_that_may_only_read_does_not_report():
    node()

    assert bearer(person("olga", "operator"), "read").post(URL, BAD).status_code == 403


def test_only_operators_get_a_token_for_agents():
    made = client(person("max")).post("/api/v1/tokens", {"name": "agent", "scopes": ["health"]})

    assert paths(made) == ["scopes"]
    operator = client(person("olga", "operator"))
    assert operator.post("/api/v1/tokens", {"name": "agent", "scopes": ["health"]}).status_code == 201


def test_the_report_of_somebody_who_is_no_operator_any_more_is_refused():
    node()
    olga = person("olga", "operator")
    agent = bearer(olga, "health")
    olga.facility_role = ""
    olga.save()

    assert agent.post(URL, BAD).status_code == 403


def test_one_key_reports_once_and_keeps_nothing_of_what_was_seen():
    node()
    operator = client(person("olga", "operator"))
    first, second = (operator.post(URL, BAD, headers={"Idempotency-Key": "k"}) for _ in range(2))

    assert first.json() == second.json()
    assert HealthReport.objects.get().n_reports == 1
    assert IdempotentAnswer.objects.get().body == {"name": "n1"}


def test_the_number_of_queries_of_a_node_does_not_grow(django_assert_num_queries):
    node()
    operator = client(person("olga", "operator"))
    for number in range(5):
        operator.post(URL, BAD | {"source": f"agent-{number}"})
    with django_assert_num_queries(5):
        assert operator.get("/api/v1/nodes/n1").status_code == 200

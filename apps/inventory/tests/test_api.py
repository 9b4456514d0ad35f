"""The facility by REST."""

import pytest

from apps.events.models import Event
from apps.inventory.models import Node
from apps.inventory.tests.builders import cluster, domain, node
from apps.teams.models import IdempotentAnswer
from apps.teams.tests.builders import client, kind, person

pytestmark = pytest.mark.django_db
API = "/api/v1"


def names(response):
    assert response.status_code == 200, response.content
    return [one["name"] for one in response.json()["items"]]


def paths(response):
    assert response.status_code == 400, response.content
    return [fault["path"] for fault in response.json()["errors"]]


@pytest.fixture
def hall():
    """Two leaves below a spine, a rack below a hall, three nodes."""
    spine, top = domain("spine", "spine"), domain("hall-1", "hall")
    leaves = [domain(f"leaf-{n}", "leaf", spine) for n in (1, 2)]
    rack = domain("rack-1", "rack", top)
    node("n1", leaf=leaves[0], power=rack)
    node("n2", leaf=leaves[1])
    node("m1", of="A100")


def test_nodes_say_where_they_hang(hall):
    found = client(person("max")).get(f"{API}/nodes/n1").json()

    assert (found["leaf"], found["power"], found["cooling"]) == ("leaf-1", "rack-1", None)
    assert found["devices"][7] == {"index": 7, "claimed_share": 0.0}
    assert found["is_simulated"] is True


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", ["m1", "n1", "n2"]),
        ("domain=spine", ["n1", "n2"]),
        ("domain=hall-1", ["n1"]),
        ("domain=leaf-2", ["n2"]),
        ("accelerator_type=A100", ["m1"]),
        ("name_prefix=n", ["n1", "n2"]),
        ("name_prefix=%25", []),
        ("health=failed", []),
        ("cluster=hall", ["m1", "n1", "n2"]),
        ("cluster=nowhere", []),
    ],
)
def test_nodes_are_narrowed_down(hall, query, wanted):
    assert names(client(person("max")).get(f"{API}/nodes?{query}")) == wanted


@pytest.mark.parametrize(
    "query", ["helth=failed", "health=well", "limit=0", "limit=1001", "limit=x", "cursor=x", "domain=%00"]
)
def test_a_question_that_makes_no_sense_is_refused(query):
    parameter = query.partition("=")[0]
    assert paths(client(person("max")).get(f"{API}/nodes?{query}")) == [parameter]


def test_an_operator_drains_and_resumes_a_node(hall):
    operator = client(person("olga", "operator"))
    drained = operator.post(f"{API}/nodes/n1/drain", {"reason": "fan"}).json()
    resumed = operator.post(f"{API}/nodes/n1/resume").json()

    assert (drained["health"], drained["health_reason"], drained["is_drain_asked"]) == (
        "drained",
        "fan",
        True,
    )
    assert (resumed["health"], resumed["is_drain_asked"]) == ("healthy", False)
    assert Event.objects.get(kind="node.drain_requested").source == "127.0.0.1"


def test_health_is_reported_with_a_cool_down(hall):
    operator = client(person("olga", "operator"))
    operator.post(f"{API}/nodes/n1/health", {"health": "failed", "reason": "xid 79"})
    found = operator.post(f"{API}/nodes/n1/health", {"health": "healthy", "cooldown_s": 600}).json()

    assert found["health"] == "healthy"
    assert found["cooldown_until_at"] is not None


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "health"),
        ({"health": "drained"}, "health"),
        ({"health": "failed", "cooldown_s": -1}, "cooldown_s"),
        ({"health": "failed", "cooldown_s": "1"}, "cooldown_s"),
        ({"health": "failed", "cooldown_s": 1e300}, "cooldown_s"),
        ({"health": "failed", "reason": "x" * 501}, "reason"),
        ({"health": "failed", "reason": "\x00"}, "reason"),
        ({"health": "failed", "why": "x"}, "why"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_at_its_field(hall, body, path):
    assert paths(client(person("olga", "operator")).post(f"{API}/nodes/n1/health", body)) == [path]


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
@pytest.mark.parametrize("act", ["drain", "resume", "health"])
def test_who_may_see_a_node_may_not_touch_it(hall, role, act):
    asker = client(person("max", role))

    assert asker.post(f"{API}/nodes/n1/{act}", {"health": "failed"}).status_code == 403
    assert asker.post(f"{API}/nodes/nx/{act}", {}).status_code == 404
    assert Node.objects.get(name="n1").health == "healthy"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("accelerator-types", {"name": "B200", "tdp_w": 1000}),
        ("domains", {"name": "leaf-9", "kind": "leaf", "parent": "spine"}),
        ("clusters", {"name": "real", "backend": "local"}),
        (
            "nodes",
            {"name": "n9", "cluster": "hall", "accelerator_type": "H100", "n_devices": 8, "leaf": "leaf-1"},
        ),
    ],
)
def test_administrators_build_and_nobody_else_does(hall, path, body):
    for role in ("", "operator", "power_admin", "auditor"):
        assert client(person(f"p-{role}", role)).post(f"{API}/{path}", body).status_code == 403
    admin = client(person("ada", "admin"))
    made = admin.post(f"{API}/{path}", body)
    assert made.status_code == 201, made.content
    assert admin.get(f"{API}/{path}/{body['name']}").json() == made.json()
    assert admin.post(f"{API}/{path}", body).json()["code"] == "name_taken"


@pytest.mark.parametrize(
    ("path", "body", "faulty"),
    [
        ("accelerator-types", {"name": "B200"}, "tdp_w"),
        ("accelerator-types", {"name": "B200", "tdp_w": 0}, "tdp_w"),
        ("accelerator-types", {"name": "B200", "tdp_w": 10, "idle_w": 11}, "idle_w"),
        (
            "accelerator-types",
            {"name": "B200", "tdp_w": 10, "power_curve": [[0.5, 0.7], [0.4, 1]]},
            "power_curve[1]",
        ),
        ("accelerator-types", {"name": "B200", "tdp_w": 10, "power_curve": [[0.5]]}, "power_curve[0]"),
        ("domains", {"name": "x", "kind": "pod"}, "kind"),
        ("domains", {"name": "x", "kind": "leaf", "parent": "hall-1"}, "parent"),
        ("domains", {"name": "x", "kind": "leaf", "parent": "nowhere"}, "parent"),
        ("clusters", {"name": "x", "backend": "lsf"}, "backend"),
        ("nodes", {"name": "x", "cluster": "no", "accelerator_type": "H100", "n_devices": 1}, "cluster"),
        ("nodes", {"name": "x", "cluster": "hall", "accelerator_type": "H100", "n_devices": 0}, "n_devices"),
        (
            "nodes",
            {"name": "x", "cluster": "hall", "accelerator_type": "H100", "n_devices": 1, "leaf": "rack-1"},
            "leaf",
        ),
    ],
)
def test_what_can_not_be_built_is_refused_at_its_field(hall, path, body, faulty):
    assert paths(client(person("ada", "admin")).post(f"{API}/{path}", body)) == [faulty]


def test_what_opens_a_cluster_is_for_administrators():
    made = cluster()
    made.config = {"kubeconfig": "secret"}
    made.save()

    assert client(person("olga", "operator")).get(f"{API}/clusters/hall").json()["config"] is None
    assert client(person("ada", "admin")).get(f"{API}/clusters/hall").json()["config"] == {
        "kubeconfig": "secret"
    }


@pytest.mark.parametrize("path", ["nodes", "domains", "clusters", "accelerator-types", "nodes/n1"])
def test_nobody_gets_in_without_signing_in(path):
    assert client().get(f"{API}/{path}").status_code == 401


@pytest.mark.parametrize(
    ("path", "n_queries"),
    [("nodes", 1), ("domains", 1), ("clusters", 1), ("accelerator-types", 1), ("nodes/n1", 2)],
)
def test_the_number_of_queries_does_not_grow(hall, path, n_queries, django_assert_num_queries):
    asker = client(person("max"))
    for index in range(5):
        node(f"more-{index}")
        kind(f"K{index}")
    with django_assert_num_queries(n_queries):
        assert asker.get(f"{API}/{path}").status_code == 200


def test_how_a_cluster_is_opened_is_not_kept_with_the_answer():
    root = person("root", "admin")
    body = {"name": "c", "backend": "simulated", "config": {"token": "hunter2"}}
    answers = [client(root).post(f"{API}/clusters", body, headers={"Idempotency-Key": "k"}) for _ in "ab"]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert IdempotentAnswer.objects.get().body == {"name": "c"}

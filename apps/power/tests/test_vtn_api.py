"""Connections to VTNs by REST: who may, what is refused, and that a secret never comes out."""

import json
from datetime import timedelta

import pytest

from apps.core import clock
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power.openadr.tests.vtn import CLIENT_ID, SECRET, FakeVtn
from apps.power.openadr_models import VtnConnection, VtnEvent
from apps.power.tests.builders import draw, programme
from apps.power.vtn import poll
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/openadr"


@pytest.fixture
def vtn():
    with FakeVtn("3.1.0") as made:
        made.programs = [{"id": "p1", "programName": "Limits"}]
        yield made


@pytest.fixture
def hall():
    made = domain("hall", "hall")
    domain("row", "row", parent=made)
    domain("elsewhere", "hall")
    programme("limits", target_kind="limit_to", min_duration_s=900)
    programme("sheds")
    draw(made, 900e3, clock.now())
    return made


@pytest.fixture
def petra(hall):
    return client(person("petra", "power_admin"))


def body(vtn, **changes):
    return {
        "name": "utility",
        "base_url": vtn.url,
        "client_id": CLIENT_ID,
        "client_secret": SECRET,
        "ven_name": "site",
        "domain": "hall",
        "programmes": [{"external_id": "p1", "programme": "limits"}],
        **changes,
    }


def made_by(asker, vtn, **changes):
    answer = asker.post(f"{URL}/connections", body(vtn, **changes))
    assert answer.status_code == 201, answer.content
    return answer.json()


def without_secret(made, **changes):
    read_only = {"ven_id", "polled_at", "listed_at", "silent_since_at", "last_error", "n_failures"}
    kept = {k: v for k, v in made.items() if k not in read_only | {"n_in_trouble", "notes"}}
    return {**kept, **changes}


def listed(vtn, value, name="e1"):
    at = clock.now()
    vtn.events = [
        {
            "id": name,
            "programID": "p1",
            "createdDateTime": (at - timedelta(hours=1)).isoformat(),
            "modificationDateTime": at.isoformat(),
            "intervalPeriod": {"start": (at + timedelta(hours=1)).isoformat(), "duration": "PT1H"},
            "intervals": [{"id": 0, "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [value]}]}],
        }
    ]


def test_what_is_written_down_is_read_back_without_its_secret(petra, vtn):
    resources = [{"name": "r1", "domain": "row"}]
    made = made_by(petra, vtn, resources=resources, poll_s=30)

    found = petra.get(f"{URL}/connections/utility").json()
    assert found == made
    assert (found["resources"], found["poll_s"], found["is_enabled"]) == (resources, 30, False)
    assert petra.get(f"{URL}/connections").json()["items"] == [made]


def test_the_secret_comes_out_nowhere(petra, vtn):
    made_by(petra, vtn, is_enabled=True)
    poll.poll_due(at=clock.now())
    petra.put(f"{URL}/connections/utility", without_secret(petra.get(f"{URL}/connections/utility").json()))
    answers = [
        petra.get(f"{URL}/connections"),
        petra.get(f"{URL}/connections/utility"),
        petra.post(f"{URL}/try", body(vtn)),
        petra.post(f"{URL}/try", body(vtn, domain="nowhere")),
        petra.post(f"{URL}/connections", body(vtn)),
        petra.post(f"{URL}/connections", body(vtn, client_secret=[SECRET])),
        client(person("adam", "admin")).get("/api/v1/events?limit=200"),
    ]

    for answer in answers:
        assert SECRET not in answer.content.decode()
    assert SECRET not in json.dumps(list(Event.objects.values("before", "after", "data")))
    assert SECRET not in json.dumps(list(VtnConnection.objects.values()), default=str)


@pytest.mark.parametrize(
    ("role", "sees", "acts"),
    [
        ("", 403, 403),
        ("auditor", 200, 403),
        ("operator", 200, 403),
        ("power_admin", 200, 200),
        ("admin", 200, 200),
    ],
)
def test_who_may_see_and_who_may_change(vtn, hall, role, sees, acts):
    made = made_by(client(person("first", "admin")), vtn)
    asker = client(person("max", role))
    one = f"{URL}/connections/utility"

    assert asker.get(f"{URL}/connections").status_code == sees
    assert asker.get(one).status_code == sees
    assert asker.get(f"{one}/events").status_code == sees
    assert asker.post(f"{URL}/try", body(vtn)).status_code == acts
    assert asker.patch(one, {"is_enabled": True}).status_code == acts
    changed = without_secret(made, version=made["version"] + (acts == 200))
    assert asker.put(one, changed).status_code == acts
    assert asker.delete(one).status_code == (204 if acts == 200 else 403)


def test_a_change_is_told_with_both_sides_and_raises_the_version(petra, vtn):
    made = made_by(petra, vtn)
    changed = petra.put(f"{URL}/connections/utility", without_secret(made, poll_s=120, reason="calmer"))
    assert (changed.status_code, changed.json()["version"]) == (200, 2)
    again = petra.put(f"{URL}/connections/utility", without_secret(made, poll_s=90))

    assert (again.status_code, again.json()["code"]) == (409, "version_conflict")
    noted = Event.objects.get(kind="openadr.connection_changed")
    assert (noted.before["poll_s"], noted.after["poll_s"], noted.reason) == (60, 120, "calmer")
    assert noted.is_audit
    assert noted.is_private


def test_a_stored_secret_goes_to_no_other_address(petra, vtn):
    made = made_by(petra, vtn)
    with FakeVtn("3.1.0") as thief:
        for changes in ({"base_url": thief.url}, {"token_url": f"{thief.url}/auth/token"}):
            answers = (
                petra.put(f"{URL}/connections/utility", without_secret(made, **changes)),
                petra.post(
                    f"{URL}/try",
                    {
                        k: v
                        for k, v in body(vtn, **changes, connection="utility").items()
                        if k != "client_secret"
                    },
                ),
            )
            for answer in answers:
                assert [one["path"] for one in answer.json()["errors"]] == ["client_secret"]
        assert thief.asked == []


def test_trying_tells_what_the_server_shows_and_saves_nothing(petra, vtn):
    listed(vtn, 500)
    answer = petra.post(f"{URL}/try", body(vtn))
    assert answer.json() == {
        "is_good": True,
        "error": None,
        "programmes": [{"external_id": "p1", "name": "Limits"}],
        "n_events": 1,
    }
    assert not VtnConnection.objects.exists()
    assert {method for method, path, _ in vtn.asked if not path.startswith("/auth")} == {"GET"}

    wrong = petra.post(f"{URL}/try", body(vtn, client_secret="guess")).json()
    assert (wrong["is_good"], wrong["programmes"]) == (False, [])
    assert "token" in wrong["error"]


def test_trying_uses_the_stored_secret_where_none_is_sent(petra, vtn):
    made_by(petra, vtn)
    sent = {k: v for k, v in body(vtn).items() if k != "client_secret"}
    assert petra.post(f"{URL}/try", {**sent, "connection": "utility"}).json()["is_good"]
    assert petra.post(f"{URL}/try", sent).json()["errors"][0]["path"] == "client_secret"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"base_url": "http://vtn.example"}, "base_url"),
        ({"base_url": "https://user:word@vtn.example"}, "base_url"),
        ({"token_url": "ftp://vtn.example"}, "token_url"),
        ({"domain": "nowhere"}, "domain"),
        ({"poll_s": 9}, "poll_s"),
        ({"poll_s": 600}, "silent_after_s"),
        ({"protocol": "2.0b"}, "protocol"),
        ({"client_secret": ""}, "client_secret"),
        ({"programmes": [{"external_id": "p1", "programme": "none"}]}, "programmes[0].programme"),
        ({"programmes": [{"external_id": "p/1", "programme": "limits"}]}, "programmes[0].external_id"),
        ({"programmes": [{"external_id": "p1", "programme": "limits"}] * 2}, "programmes[1].external_id"),
        (
            {"programmes": [{"external_id": "p1", "programme": "sheds", "has_fallback": True}]},
            "programmes[0].has_fallback",
        ),
        ({"resources": [{"name": "r", "domain": "elsewhere"}]}, "resources[0].domain"),
        (
            {"resources": [{"name": "r", "domain": "hall"}, {"name": "s", "domain": "row"}]},
            "resources[1].domain",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(petra, vtn, changes, path):
    answer = petra.post(f"{URL}/connections", body(vtn, **changes))
    assert answer.status_code == 400, answer.content
    assert [one["path"] for one in answer.json()["errors"]] == [path]


def test_names_are_taken_once(petra, vtn):
    made_by(petra, vtn)
    assert petra.post(f"{URL}/connections", body(vtn)).json()["code"] == "name_taken"


def test_a_connection_goes_only_when_nothing_of_it_is_open(petra, vtn):
    made_by(petra, vtn, is_enabled=True)
    listed(vtn, 500)
    poll.poll_due(at=clock.now())
    one = f"{URL}/connections/utility"
    found = petra.get(f"{one}/events").json()["items"][0]
    assert (found["external_id"], found["trouble"], len(found["events"])) == ("e1", None, 1)
    refused = petra.delete(one)
    assert (refused.status_code, refused.json()["code"]) == (409, "connection_in_use")

    operator = client(person("olga", "operator"))
    event_id = found["events"][0]
    assert operator.post(f"/api/v1/demand-response/events/{event_id}/cancel", {}).status_code == 200
    assert petra.delete(one).status_code == 204
    assert not VtnEvent.objects.exists()
    assert operator.get(f"/api/v1/demand-response/events/{event_id}").status_code == 200
    assert Event.objects.get(kind="openadr.connection_deleted").before["name"] == "utility"


def test_only_operators_say_that_an_event_is_meant(petra, vtn, monkeypatch):
    monkeypatch.setattr("apps.power.response_services.idle_floor_w", lambda domain: 58.8e3)
    made_by(petra, vtn, is_enabled=True)
    listed(vtn, 0.5)
    poll.poll_due(at=clock.now())
    door = f"{URL}/connections/utility/events/e1/accept"
    assert petra.get(f"{URL}/connections/utility").json()["n_in_trouble"] == 1
    assert petra.post(door, {}).status_code == 403
    operator = client(person("olga", "operator"))
    assert operator.post(f"{URL}/connections/utility/events/e9/accept", {}).status_code == 404
    assert operator.post(door, {"reason": "They phoned."}).status_code == 200
    poll.poll_due(at=clock.now())

    (found,) = operator.get(f"{URL}/connections/utility/events").json()["items"]
    assert (found["trouble"], len(found["events"])) == (None, 1)
    noted = Event.objects.get(kind="openadr.event_accepted")
    assert (noted.actor_name, noted.reason) == ("olga", "They phoned.")
    assert operator.post(door, {}).status_code == 409

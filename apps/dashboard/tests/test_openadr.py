"""The pages of OpenADR servers: who sees and changes what, and that a secret is never on one."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection as database
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dashboard.tests.facility import signed_in
from apps.inventory.tests.builders import domain
from apps.power.models import DemandResponseEvent
from apps.power.openadr.tests.vtn import CLIENT_ID, SECRET, FakeVtn
from apps.power.openadr_models import VtnConnection
from apps.power.tests.builders import draw, programme
from apps.power.vtn import poll
from apps.teams.tests.builders import person

pytestmark = pytest.mark.django_db
URL = "/power/openadr/"


@pytest.fixture
def vtn():
    with FakeVtn("3.1.0") as made:
        made.programs = [{"id": "p1", "programName": "Limits <b>"}]
        yield made


@pytest.fixture
def hall():
    made = domain("hall", "hall")
    domain("row", "row", parent=made)
    programme("limits", target_kind="limit_to", min_duration_s=900)
    draw(made, 900e3, clock.now())
    return made


@pytest.fixture
def petra(hall):
    return signed_in(person("petra", "power_admin"))


def form(vtn: FakeVtn, **changes: str) -> dict[str, str]:
    said = {
        "name": "utility",
        "base_url": vtn.url,
        "protocol": "3.1.0",
        "client_id": CLIENT_ID,
        "client_secret": SECRET,
        "ven_name": "site",
        "domain": "hall",
        "poll_s": "60",
        "silent_after_s": "300",
        "is_enabled": "on",
        "resources": "r = 1 = row\n\n",
        "programme-0-external_id": "p1",
        "programme-0-programme": "limits",
        "programme-0-default_units": "KW",
        "programme-0-has_fallback": "on",
        "programme-1-external_id": "",
        "programme-1-programme": "limits",
        "act": "save",
        **changes,
    }
    return {name: value for name, value in said.items() if value is not None}


def listed(vtn: FakeVtn, *values: float) -> None:
    at = clock.now()
    vtn.events = [
        {
            "id": f"e{n}",
            "programID": "p1",
            "eventName": f"Event {n} <i>",
            "modificationDateTime": at.isoformat(),
            "intervalPeriod": {"start": (at + timedelta(hours=1 + n)).isoformat(), "duration": "PT1H"},
            "intervals": [{"id": 0, "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [value]}]}],
        }
        for n, value in enumerate(values)
    ]


def text(answer: Any) -> str:
    return answer.content.decode()


def test_a_connection_is_made_by_form_and_never_shows_its_secret(petra, vtn):
    answer = petra.post(f"{URL}new/", form(vtn))
    assert (answer.status_code, answer["Location"]) == (302, URL)
    made = VtnConnection.objects.get()
    assert [(one.name, one.domain.name) for one in made.resources.all()] == [("r = 1", "row")]
    assert [(one.external_id, one.has_fallback) for one in made.programmes.all()] == [("p1", True)]

    pages = (petra.get(URL), petra.get(f"{URL}{made.pk}/"), petra.post(f"{URL}new/", form(vtn, poll_s="x")))
    assert [one.status_code for one in pages] == [200, 200, 400]
    for one in pages:
        assert SECRET not in text(one)
        assert made.sealed_secret not in text(one)


def test_the_same_form_saved_again_changes_nothing(petra, vtn):
    petra.post(f"{URL}new/", form(vtn))
    made = VtnConnection.objects.get()
    assert petra.post(f"{URL}{made.pk}/", form(vtn, version="1", client_secret="")).status_code == 302
    made.refresh_from_db()
    assert made.version == 1
    assert (
        petra.post(f"{URL}{made.pk}/", form(vtn, version="1", poll_s="120", client_secret="")).status_code
        == 302
    )
    stale = petra.post(f"{URL}{made.pk}/", form(vtn, version="1", poll_s="90", client_secret=""))
    assert (stale.status_code, "changed meanwhile" in text(stale)) == (409, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_url": "http://vtn.example"}, "must be https"),
        ({"client_secret": ""}, "is required"),
        ({"poll_s": "1"}, "must be at least 10"),
        ({"poll_s": "soon"}, "must be a whole number"),
        ({"resources": "row"}, "Line 1"),
        ({"programme-0-external_id": "p/1"}, "external id"),
        ({"programme-0-programme": "gone"}, "programme names nothing"),
        ({"name": "a/b"}, "slash"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_what_was_typed_stays(petra, vtn, changes, said):
    answer = petra.post(f"{URL}new/", form(vtn, **changes))
    assert answer.status_code == 400
    assert said in text(answer)
    assert "r = 1 = row" in text(answer) or "resources" in changes
    assert not VtnConnection.objects.exists()


def test_a_test_says_what_the_server_shows_and_saves_nothing(petra, vtn):
    listed(vtn, 500.0)
    whole = petra.post(f"{URL}new/", form(vtn, act="try"))
    part = petra.post(f"{URL}new/", form(vtn, act="try"), headers={"HX-Request": "true"})
    for answer in (whole, part):
        assert "1 event, 1 programme" in text(answer)
        assert "Limits &lt;b&gt;" in text(answer)
        assert SECRET not in text(answer)
    assert "<form" not in text(part)
    assert not VtnConnection.objects.exists()

    wrong = petra.post(f"{URL}new/", form(vtn, act="try", client_secret="guess"))
    assert "No token was granted" in text(wrong)
    assert "guess" not in text(wrong)


def test_the_page_says_how_each_does_and_what_became_of_events(petra, vtn, monkeypatch):
    monkeypatch.setattr("apps.power.response_services.idle_floor_w", lambda domain: 58.8e3)
    petra.post(f"{URL}new/", form(vtn))
    assert "Not asked yet" in text(petra.get(URL))
    listed(vtn, 500.0, 0.5)
    poll.poll_due(at=clock.now())
    seen = text(petra.get(URL))
    assert "Listening" in seen
    assert "at most 500" in seen
    assert "Event 0 &lt;i&gt;" in seen
    assert "Needs a person" in seen
    assert "It is meant" not in seen  # power administrators do not operate
    assert "It is meant" in text(signed_in(person("olga", "operator")).get(URL))

    vtn.misbehave["/events"] = lambda handler: handler.problem(500, "Down <b>")
    poll.poll_due(at=clock.now() + timedelta(minutes=10))
    seen = text(petra.get(URL))
    assert "Silent" in seen
    assert "Down &lt;b&gt;" in seen


def test_an_operator_says_that_an_event_is_meant(petra, vtn, monkeypatch):
    monkeypatch.setattr("apps.power.response_services.idle_floor_w", lambda domain: 58.8e3)
    petra.post(f"{URL}new/", form(vtn))
    listed(vtn, 0.5)
    poll.poll_due(at=clock.now())
    door = f"{URL}{VtnConnection.objects.get().pk}/accept/"
    assert petra.post(door, {"external_id": "e0"}).status_code == 403
    assert signed_in(person("olga", "operator")).post(door, {"external_id": "e0"}).status_code == 302
    poll.poll_due(at=clock.now())
    assert DemandResponseEvent.objects.get().value == 500.0


def test_a_connection_is_switched_off_and_on_and_forgotten(petra, vtn):
    petra.post(f"{URL}new/", form(vtn))
    made = VtnConnection.objects.get()
    for word, wanted in (("", False), ("on", True)):
        petra.post(f"{URL}{made.pk}/switch/", {"is_enabled": word})
        made.refresh_from_db()
        assert made.is_enabled is wanted
    listed(vtn, 500.0)
    poll.poll_due(at=clock.now())
    assert "1 events that it announced are open" in text(petra.post(f"{URL}{made.pk}/delete/", follow=True))
    DemandResponseEvent.objects.update(cancelled_at=clock.now(), outcome="cancelled")
    petra.post(f"{URL}{made.pk}/delete/")
    assert not VtnConnection.objects.exists()


@pytest.mark.parametrize(
    ("role", "sees", "edits"),
    [
        ("", 403, 403),
        ("auditor", 200, 403),
        ("operator", 200, 403),
        ("power_admin", 200, 200),
        ("admin", 200, 200),
    ],
)
def test_who_may_see_and_who_may_change(petra, vtn, role, sees, edits):
    petra.post(f"{URL}new/", form(vtn))
    made, asker = VtnConnection.objects.get(), signed_in(person("max", role))
    assert asker.get(URL).status_code == sees
    assert asker.get(f"{URL}new/").status_code == edits
    assert asker.get(f"{URL}{made.pk}/").status_code == edits
    assert asker.post(f"{URL}new/", form(vtn, act="try")).status_code == edits
    acted = 302 if edits == 200 else 403
    assert asker.post(f"{URL}{made.pk}/switch/", {"is_enabled": ""}).status_code == acted
    assert asker.post(f"{URL}{made.pk}/delete/").status_code == acted


def test_nobody_gets_there_without_signing_in_and_what_is_not_there_is_not_there(petra):
    assert Client().get(URL).status_code == 302
    for path in (f"{URL}999/", f"{URL}{10**30}/"):
        assert petra.get(path).status_code == 404
    assert petra.post(f"{URL}999/switch/").status_code == 404


def test_connections_and_events_do_not_cost_queries(petra, vtn):
    petra.post(f"{URL}new/", form(vtn))
    listed(vtn, 500.0)
    poll.poll_due(at=clock.now())
    petra.get(URL)
    with CaptureQueriesContext(database) as few:
        petra.get(URL)
    petra.post(f"{URL}new/", form(vtn, name="other", resources=""))
    listed(vtn, *(500.0 + n for n in range(8)))
    poll.poll_due(at=clock.now() + timedelta(minutes=2))
    with CaptureQueriesContext(database) as many:
        petra.get(URL)

    assert DemandResponseEvent.objects.count() == 16
    assert len(many) == len(few)
    assert len(few) <= 20

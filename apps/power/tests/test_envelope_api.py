"""Ratings and envelopes by REST."""

import pytest

from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power.models import EnvelopeStep
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/power/domains/hall-1"
WEEKLY = {"days": ["Mon", "Tue"], "from_time": "13:00", "until_time": "19:00", "limit_w": 9e4}
DATED = {"start_at": "2026-12-24T12:00:00Z", "end_at": "2026-12-26T12:00:00Z", "limit_w": 5e4}


@pytest.fixture
def admin():
    domain("hall-1", "hall")
    return client(person("pia", "power_admin"))


def put(admin, *steps, version=1, **more):
    return admin.put(f"{URL}/envelope", {"version": version, "steps": list(steps), **more})


def test_an_envelope_is_set_and_read_back_by_everybody(admin):
    answer = put(admin, WEEKLY, DATED, time_zone="Europe/Berlin", reason="grid")
    assert answer.status_code == 200, answer.content
    found = client(person("max")).get(f"{URL}/envelope").json()

    assert found == answer.json()
    assert (found["time_zone"], found["version"]) == ("Europe/Berlin", 1)
    weekly, dated = found["steps"]
    assert {key: value for key, value in weekly.items() if value is not None} == WEEKLY
    assert (dated["days"], dated["limit_w"], dated["start_at"]) == (None, 5e4, "2026-12-24T12:00:00Z")
    assert Event.objects.get(kind="power.envelope_changed").reason == "grid"
    assert put(admin, version=1).json()["steps"] == []
    assert not EnvelopeStep.objects.exists()


def test_who_saved_meanwhile_is_told(admin):
    put(admin, WEEKLY)
    put(admin, DATED)
    answer = put(admin, version=1)
    assert (answer.status_code, answer.json()["code"]) == (409, "version_conflict")


def test_operators_and_viewers_see_it_and_set_nothing(admin):
    for who in (person("ola", "operator"), person("vera")):
        assert client(who).get(f"{URL}/envelope").status_code == 200
        assert put(client(who), WEEKLY).status_code == 403
    assert not EnvelopeStep.objects.exists()


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ({"limit_w": 1.0}, "steps[0].start_at"),
        ({"limit_w": 1.0, "start_at": DATED["start_at"]}, "steps[0].end_at"),
        ({**WEEKLY, "start_at": DATED["start_at"]}, "steps[0].start_at"),
        ({**WEEKLY, "days": []}, "steps[0].days"),
        ({**WEEKLY, "days": ["Monday"]}, "steps[0].days[0]"),
        ({**WEEKLY, "from_time": "25:00"}, "steps[0].from_time"),
        ({**WEEKLY, "from_time": "24:00"}, "steps[0].from_time"),
        ({**WEEKLY, "until_time": "13:00"}, "steps[0].until_time"),
        ({**WEEKLY, "limit_w": -1}, "steps[0].limit_w"),
        ({**WEEKLY, "limit_w": "9"}, "steps[0].limit_w"),
        ({**DATED, "end_at": DATED["start_at"]}, "steps[0].end_at"),
        ({**DATED, "until": "19:00"}, "steps[0].until"),
    ],
)
def test_a_step_that_means_nothing_is_refused_at_its_field(admin, step, path):
    answer = put(admin, step)
    assert answer.status_code == 400, answer.content
    assert path in [fault["path"] for fault in answer.json()["errors"]]
    assert not EnvelopeStep.objects.exists()


def test_an_unknown_time_zone_is_refused(admin):
    for zone in ("Mars/Base", "Europe", "../etc"):
        answer = put(admin, WEEKLY, time_zone=zone)
        assert [fault["path"] for fault in answer.json()["errors"]] == ["time_zone"]


def test_a_domain_says_its_rating_and_what_binds_it(admin):
    answer = admin.patch(
        URL, {"version": 1, "rated_w": 2e5, "derate": 0.8, "reserve_w": 1e4, "hard_limit_w": 1.8e5}
    )
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert found["effective_limit_w"] == 1.5e5
    assert found["bound_by"] == {"by": "rating", "limit_w": 1.5e5, "event_id": None}
    assert found["oversubscription"] is None
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    put(admin, {"days": days, "limit_w": 9e4})
    found = admin.get(URL).json()
    assert (found["effective_limit_w"], found["bound_by"]["by"]) == (9e4, "envelope")
    taken = admin.patch(URL, {"version": found["version"], "derate": None})
    assert taken.status_code == 400


def test_the_reserve_stays_within_the_rating(admin):
    answer = admin.patch(URL, {"version": 1, "rated_w": 1e5, "derate": 0.8, "reserve_w": 9e4})
    assert answer.status_code == 400
    assert [fault["path"] for fault in answer.json()["errors"]] == ["rated_w"]

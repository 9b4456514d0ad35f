"""Limits and readings by REST."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power.models import PowerLimit, PowerReading
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/power"


def paths(response):
    assert response.status_code == 400, response.content
    return [fault["path"] for fault in response.json()["errors"]]


def reading(minutes_ago=1.0, **more):
    at = clock.now() - timedelta(minutes=minutes_ago)
    return {"domain": "hall-1", "at": at.isoformat(), "draw_w": 5e5, **more}


@pytest.fixture
def admin():
    domain("rack-1", "rack", domain("hall-1", "hall"))
    domain("leaf-1", "leaf")
    return client(person("pia", "power_admin"))


def test_a_limit_is_set_and_read_back(admin):
    answer = admin.patch(
        f"{URL}/domains/hall-1", {"version": 1, "limit_w": 8e5, "hard_limit_w": 1e6, "reason": "heat"}
    )
    assert answer.status_code == 200, answer.content
    found = client(person("max")).get(f"{URL}/domains/hall-1").json()

    assert found == answer.json()
    assert (found["limit_w"], found["effective_limit_w"]) == (8e5, 8e5)
    assert Event.objects.get(kind="power.limit_changed").reason == "heat"


def test_null_takes_a_limit_away(admin):
    admin.patch(f"{URL}/domains/hall-1", {"version": 1, "limit_w": 8e5, "hard_limit_w": 1e6})
    found = admin.patch(f"{URL}/domains/hall-1", {"version": 1, "limit_w": None}).json()

    assert (found["limit_w"], found["effective_limit_w"]) == (None, 1e6)


def test_who_saved_meanwhile_is_shown_with_both_sides(admin):
    for watts in (8e5, 7e5):
        admin.patch(f"{URL}/domains/hall-1", {"version": 1, "limit_w": watts})
    answer = admin.patch(f"{URL}/domains/hall-1", {"version": 1, "limit_w": 6e5})

    assert (answer.status_code, answer.json()["code"]) == (409, "version_conflict")
    assert answer.json()["facts"]["stored"]["limit_w"] == 7e5


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"limit_w": 1}, "version"),
        ({"version": 1, "limit_w": -1}, "limit_w"),
        ({"version": 1, "limit_w": "1"}, "limit_w"),
        ({"version": 1, "limit_w": True}, "limit_w"),
        ({"version": 1, "limit_w": 1e300}, "limit_w"),
        ({"version": 1, "limit_w": 2, "hard_limit_w": 1}, "limit_w"),
        ({"version": 1, "ramp_up_w_per_s": 0}, "ramp_up_w_per_s"),
        ({"version": 1, "overhead_k": 1.2}, "overhead_k"),
        ({"version": 1, "overhead_k": None}, "overhead_k"),
        ({"version": 1, "watts": 1}, "watts"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_at_its_field(admin, body, path):
    assert paths(admin.patch(f"{URL}/domains/hall-1", body)) == [path]
    assert not PowerLimit.objects.exists()


@pytest.mark.parametrize("role", ["", "operator", "auditor"])
def test_only_power_administrators_change_anything(admin, role):
    asker = client(person("max", role))

    assert asker.patch(f"{URL}/domains/hall-1", {"version": 1, "limit_w": 1}).status_code == 403
    assert asker.post(f"{URL}/readings", {"readings": [reading()]}).status_code == 403
    assert asker.patch(f"{URL}/domains/leaf-1", {"version": 1}).status_code == 404


def test_readings_come_in_bulk_and_are_read_back(admin):
    sent = {"readings": [reading(n) for n in range(1, 6)]}
    assert admin.post(f"{URL}/readings", sent).json() == {"n_new": 5}
    assert admin.post(f"{URL}/readings", sent).json() == {"n_new": 0}
    first = admin.get(f"{URL}/readings", {"domain": "hall-1", "limit": 3}).json()
    rest = admin.get(f"{URL}/readings", {"domain": "hall-1", "limit": 3, "cursor": first["next"]}).json()

    assert len(first["items"] + rest["items"]) == 5
    assert admin.get(f"{URL}/domains/hall-1").json()["latest"]["source"] == "metered"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "readings"),
        ({"readings": []}, "readings"),
        ({"readings": [{}] * 10_001}, "readings"),
        ({"readings": [{"domain": "x", "at": "2026-01-01T00:00:00Z", "draw_w": -1}]}, "readings[0].draw_w"),
        ({"readings": [{"domain": "x", "at": 1, "draw_w": 1}]}, "readings[0].at"),
        ({"readings": [{"domain": "hall-1", "at": "1999-01-01T00:00:00Z", "draw_w": 1}]}, "readings[0].at"),
        ({"readings": [reading()], "source": "modelled"}, "source"),
        ({"readings": [reading(domain="hall-9")]}, "readings[0].domain"),
        ({"readings": [reading(quality="fine")]}, "readings[0].quality"),
        ({"readings": [reading(domain="leaf-1")]}, "readings[0].domain"),
        ({"readings": [reading(minutes_ago=-10)]}, "readings[0].at"),
        ({"readings": [reading(minutes_ago=31 * 1440)]}, "readings[0].at"),
        ({"readings": [reading(), reading(at="2026-01-01T00:00:00")]}, "readings[1].at"),
        ({"readings": [reading(draw_w=True)]}, "readings[0].draw_w"),
        ({"readings": [reading(draw_w="5")]}, "readings[0].draw_w"),
        ({"readings": [reading(draw_w=None)]}, "readings[0].draw_w"),
        ({"readings": [reading(draw_w=1e300)]}, "readings[0].draw_w"),
        ({"readings": [reading()], "source": ""}, "source"),
        ({"readings": [reading()], "source": "x" * 41}, "source"),
    ],
)
def test_readings_that_make_no_sense_are_refused_at_their_field(admin, body, path):
    assert paths(admin.post(f"{URL}/readings", body)) == [path]
    assert not PowerReading.objects.exists()


@pytest.mark.parametrize("watts", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_a_number_that_is_none_is_refused_before_anything_is_stored(admin, watts):
    body = f'{{"readings": [{{"domain": "hall-1", "at": "{reading()["at"]}", "draw_w": {watts}}}]}}'
    answer = admin.generic("POST", f"{URL}/readings", body, content_type="application/json")

    assert answer.status_code == 400
    assert not PowerReading.objects.exists()


def test_two_values_for_one_instant_are_refused_and_the_same_twice_is_once(admin):
    first = reading()
    answer = admin.post(f"{URL}/readings", {"readings": [first, {**first, "draw_w": 1.0}]})
    assert paths(answer) == ["readings[1].at"]
    assert not PowerReading.objects.exists()

    assert admin.post(f"{URL}/readings", {"readings": [first, first]}).json() == {"n_new": 1}
    # What is there stays: the log of a meter is not rewritten.
    assert admin.post(f"{URL}/readings", {"readings": [{**first, "draw_w": 1.0}]}).json() == {"n_new": 0}
    assert PowerReading.objects.get().draw_w == 5e5


def test_ten_thousand_readings_are_one_call_of_few_queries(admin, django_assert_max_num_queries):
    at = clock.now() - timedelta(days=1)
    sent = [
        {
            "domain": f"{'hall' if n % 2 else 'rack'}-1",
            "at": (at + timedelta(seconds=n)).isoformat(),
            "draw_w": n,
        }
        for n in range(10_000)
    ]
    with django_assert_max_num_queries(6):
        assert admin.post(f"{URL}/readings", {"readings": sent}).json() == {"n_new": 10_000}

    assert PowerReading.objects.count() == 10_000


def test_how_old_a_reading_may_be_is_set_with_the_limits(admin):
    found = admin.patch(f"{URL}/domains/hall-1", {"version": 1, "max_age_s": 60}).json()

    assert found["max_age_s"] == 60
    for wrong in (0, -1, 86_401, True, None):
        assert paths(admin.patch(f"{URL}/domains/hall-1", {"version": 2, "max_age_s": wrong})) == [
            "max_age_s"
        ]


@pytest.mark.parametrize("query", ["", "domain=hall-1&from=x", "domain=hall-1&at=1"])
def test_a_question_that_makes_no_sense_is_refused(admin, query):
    assert admin.get(f"{URL}/readings?{query}").status_code == 400


def test_nobody_gets_in_without_signing_in():
    for path in ("domains", "domains/hall-1", "readings?domain=hall-1"):
        assert client().get(f"{URL}/{path}").status_code == 401


def test_the_number_of_queries_does_not_grow(admin, django_assert_num_queries):
    for index in range(5):
        domain(f"hall-2{index}", "hall")
        admin.patch(f"{URL}/domains/hall-2{index}", {"version": 1, "limit_w": 1e6})
    admin.post(f"{URL}/readings", {"readings": [reading()]})
    with django_assert_num_queries(6):
        assert len(admin.get(f"{URL}/domains").json()["items"]) == 7
    with django_assert_num_queries(2):
        admin.get(f"{URL}/readings?domain=hall-1")

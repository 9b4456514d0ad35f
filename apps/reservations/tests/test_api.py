"""Reservations by REST."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.inventory.tests.builders import node
from apps.reservations.models import Reservation
from apps.teams.tests.builders import client, person, team

pytestmark = pytest.mark.django_db
URL = "/api/v1/reservations"


def hours(n: float) -> str:
    return (clock.now() + timedelta(hours=n)).isoformat(timespec="seconds")


def body(name="friday", starts=1.0, lasts=2.0, **more):
    return {
        "name": name,
        "starts_at": hours(starts),
        "ends_at": hours(starts + lasts),
        "nodes": ["n1"],
        **more,
    }


def names(response):
    assert response.status_code == 200, response.content
    return [one["name"] for one in response.json()["items"]]


def paths(response):
    assert response.status_code == 400, response.content
    return [fault["path"] for fault in response.json()["errors"]]


@pytest.fixture
def operator():
    node("n1")
    return client(person("olga", "operator"))


def test_what_is_reserved_is_seen_by_everybody(operator):
    team("vision")
    made = operator.post(
        URL, body(teams=["vision"], rrule="FREQ=WEEKLY", time_zone="Europe/Zurich", reason="demo")
    )
    assert made.status_code == 201, made.content
    found = client(person("max")).get(f"{URL}/friday").json()

    assert found == made.json()
    assert (found["created_by"], found["teams"], found["is_maintenance"]) == ("olga", ["vision"], False)
    assert len(found["windows"]) == 20


def test_a_conflict_is_a_409_that_says_with_what(operator):
    operator.post(URL, body())
    answer = operator.post(URL, body("other"))

    assert (answer.status_code, answer.json()["code"]) == (409, "reservation_conflict")
    assert answer.json()["facts"]["conflicts"][0]["reservation"] == "friday"


def test_anybody_may_check_and_nothing_is_written(operator):
    operator.post(URL, body())
    answer = client(person("max")).post(f"{URL}/check", body("other")).json()

    assert (answer["is_possible"], answer["n_windows"]) == (False, 1)
    assert answer["conflicts"][0]["message"].startswith("n1 belongs to friday")
    assert Reservation.objects.count() == 1


def test_cancelling_leaves_it_among_the_cancelled(operator):
    operator.post(URL, body())
    assert operator.delete(f"{URL}/friday").status_code == 204
    assert operator.delete(f"{URL}/friday").status_code == 204

    assert names(operator.get(URL)) == []
    assert names(operator.get(f"{URL}?cancelled=true")) == ["friday"]


def test_cancelling_may_say_why(operator):
    operator.post(URL, body())
    answer = operator.post(f"{URL}/friday/cancel", {"reason": "the chiller holds"}).json()

    assert answer["cancelled_at"] is not None
    assert answer["windows"] == []


def test_reservations_are_listed_by_the_span_they_touch(operator):
    operator.post(URL, body("soon"))
    operator.post(URL, body("late", starts=100))

    assert names(operator.get(URL)) == ["soon", "late"]
    assert names(operator.get(URL, {"to": hours(50)})) == ["soon"]
    assert names(operator.get(URL, {"from": hours(50)})) == ["late"]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"starts_at": "2026-03-01T08:00:00"}, "starts_at"),
        ({"starts_at": 5}, "starts_at"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at"),
        ({"nodes": ["n1", "n1"]}, "nodes[1]"),
        ({"nodes": ["nx"]}, "nodes[0]"),
        ({"nodes": "n1"}, "nodes"),
        ({"n_devices": 0}, "n_devices"),
        ({"n_devices": True}, "n_devices"),
        ({"within": "pod"}, "within"),
        ({"time_zone": "Nowhere/City"}, "time_zone"),
        ({"time_zone": "x" * 65}, "time_zone"),
        ({"rrule": "FREQ=SECONDLY"}, "rrule"),
        ({"rrule": "FREQ=DAILY;" * 100}, "rrule"),
        ({"is_flexible": 1}, "is_flexible"),
        ({"name": "a/b"}, "name"),
        ({"teams": ["nobody"]}, "teams[0]"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_reservation_that_makes_no_sense_is_refused_at_its_field(operator, more, path):
    assert paths(operator.post(URL, {**body(), **more})) == [path]
    assert paths(operator.post(f"{URL}/check", {**body(), **more})) == [path]


@pytest.mark.parametrize(
    "query", ["from=x", "to=2020-01-01T00:00:00Z", "cancelled=maybe", "team=vision", "cursor=e30"]
)
def test_a_question_that_makes_no_sense_is_refused(operator, query):
    assert paths(operator.get(f"{URL}?{query}")) == [query.partition("=")[0]]


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_who_may_see_it_may_not_promise_or_cancel(operator, role):
    operator.post(URL, body())
    asker = client(person("max", role))

    assert asker.post(URL, body("other")).status_code == 403
    assert asker.delete(f"{URL}/friday").status_code == 403
    assert asker.post(f"{URL}/friday/cancel").status_code == 403
    assert asker.delete(f"{URL}/nothing").status_code == 404


def test_nobody_gets_in_without_signing_in():
    for path in ("", "/friday"):
        assert client().get(URL + path).status_code == 401
    assert client().post(f"{URL}/check", {}).status_code == 401


def test_the_number_of_queries_does_not_grow(operator, django_assert_num_queries):
    for index in range(4):
        operator.post(URL, body(f"r{index}", starts=1 + 3 * index))
    with django_assert_num_queries(3):
        assert len(names(operator.get(URL))) == 4

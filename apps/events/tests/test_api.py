"""The log by REST: who sees what of it."""

import pytest

from apps.core import clock
from apps.events.models import Event
from apps.events.services import record
from apps.teams.tests.builders import client, person, team

committed = pytest.mark.django_db(transaction=True)
URL = "/api/v1/events"


def log(kind="a.done", **more):
    record(kind, subject_kind="a", at=clock.now(), **more)


def kinds(asker, query="", only=("a.", "b.")):
    items = asker.get(f"{URL}?{query}").json()["items"]
    return [one["kind"] for one in items if one["kind"].startswith(only)]


@committed
def test_a_follower_goes_on_from_the_cursor():
    max_ = client(person("max"))
    end = max_.get(f"{URL}?after=latest").json()
    assert end["items"] == []
    for n in range(3):
        log(f"a.{n}")
    first = max_.get(f"{URL}?after={end['cursor']}&limit=2").json()
    rest = max_.get(f"{URL}?after={first['next']}&limit=2").json()

    assert [one["kind"] for one in first["items"] + rest["items"]] == ["a.0", "a.1", "a.2"]
    assert rest["next"] is None
    assert max_.get(f"{URL}?after={rest['cursor']}").json()["items"] == []


@committed
@pytest.mark.parametrize(
    ("role", "seen"),
    [
        ("", ["a.ours", "a.all"]),
        ("power_admin", ["a.ours", "a.all"]),
        ("operator", ["a.ours", "a.theirs", "a.all"]),
        ("auditor", ["a.ours", "a.theirs", "a.all", "a.private"]),
        ("admin", ["a.ours", "a.theirs", "a.all", "a.private"]),
    ],
)
def test_each_role_sees_what_is_its_business(role, seen):
    ours, theirs = team("ours"), team("theirs")
    asker = client(person("max", role, member_of=ours))
    log("a.ours", team_id=ours.pk)
    log("a.theirs", team_id=theirs.pk)
    log("a.all")
    log("a.private", is_private=True)

    assert kinds(asker) == seen


@committed
def test_addresses_are_for_those_who_audit():
    log(source="10.0.0.7")
    sources = [
        client(person(name, role)).get(f"{URL}?kind=a.*").json()["items"][0]["source"]
        for name, role in (("max", ""), ("olga", "operator"), ("aud", "auditor"))
    ]
    assert sources == [None, None, "10.0.0.7"]


@committed
def test_events_are_narrowed_down():
    asker = client(person("max"))
    log("a.one", subject_id=1)
    log("a.two", subject_id=2, is_audit=True)
    log("b.one", subject_id=1)

    assert kinds(asker, "kind=a.*") == ["a.one", "a.two"]
    assert kinds(asker, "kind=b.one") == ["b.one"]
    assert kinds(asker, "subject_kind=a&subject_id=1") == ["a.one", "b.one"]
    assert kinds(asker, "audit=true", only=("a.two", "a.one")) == ["a.two"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "after=x",
        "after=1",
        "subject_id=x",
        "subject_id=99999999999999999999",
        "audit=1",
        "kind=%00",
        "since=1",
    ],
)
def test_a_question_that_makes_no_sense_is_refused(query):
    answer = client(person("max")).get(f"{URL}?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, query.partition("=")[0])


@pytest.mark.django_db
def test_nobody_reads_along_without_signing_in():
    assert client().get(URL).status_code == 401


@committed
def test_the_number_of_queries_does_not_grow(django_assert_num_queries):
    asker = client(person("max"))
    for n in range(5):
        log(f"a.{n}")
    with django_assert_num_queries(3):  # teams, the horizon, events
        assert len(kinds(asker)) == 5
    assert Event.objects.count() > 5

"""Demand response by REST."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.events.models import Event
from apps.inventory.tests.builders import domain, node
from apps.power import plan_services
from apps.power.models import DemandResponseEvent, Programme
from apps.power.plan_services import PlanDraft
from apps.power.tests.builders import HASH, RULES, action, draw, programme
from apps.teams.models import User
from apps.teams.tests.builders import client, kind, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/demand-response"


def minutes(n: float) -> str:
    return (clock.now() + timedelta(minutes=n)).isoformat(timespec="seconds")


def body(**more):
    said = {"domain": "hall", "target_kind": "shed_by", "value": 18e3}
    return {**said, "start_at": minutes(15), "end_at": minutes(195), **more}


def paths(response):
    assert response.status_code == 400, response.content
    return [fault["path"] for fault in response.json()["errors"]]


def announced(asker, **more):
    answer = asker.post(f"{URL}/events", body(**more))
    assert answer.status_code == 201, answer.content
    return answer.json()


def preview(event_id, **more):
    at = clock.now()
    ramp = action(issue_at=at + timedelta(minutes=1), effective_by_at=at + timedelta(minutes=15))
    said = {"actions": [ramp], "predicted_shed_w": 19e3, "details": {"method": "exact"}}
    return plan_services.save_preview(
        event_id=event_id, draft=PlanDraft(**{**said, **more}), inputs_hash=HASH, actor=None, at=at
    )


@pytest.fixture
def hall():
    made = domain("hall", "hall")
    draw(made, 132.4e3, clock.now())
    return made


@pytest.fixture
def operator(hall):
    return client(person("olga", "operator"))


@pytest.fixture
def viewer(hall):
    return client(person("max"))


def test_what_is_announced_is_seen_by_everybody(operator, viewer):
    made = announced(operator, reason="heat wave")
    found = viewer.get(f"{URL}/events/{made['id']}").json()

    assert found == made
    assert (found["phase"], found["created_by"], found["outcome"]) == ("notified", "olga", None)
    assert found["reference_w"] == pytest.approx(132.4e3)
    assert found["it_limit_w"] == pytest.approx(114.4e3)
    assert Event.objects.get(kind="demand_response.announced").reason == "heat wave"


def test_events_are_listed_the_latest_first_by_domain_programme_and_time(operator):
    programme()
    first = announced(operator, programme="summer")["id"]
    second = announced(operator, start_at=minutes(600), end_at=minutes(700))["id"]

    def ids(**query):
        return [one["id"] for one in operator.get(f"{URL}/events", query).json()["items"]]

    assert ids() == [second, first]
    assert ids(programme="summer") == [first]
    assert ids(domain="nowhere") == []
    assert ids(to=minutes(300)) == [first]
    assert ids(**{"from": minutes(300)}) == [second]
    page = operator.get(f"{URL}/events", {"limit": 1}).json()
    rest = operator.get(f"{URL}/events", {"limit": 1, "cursor": page["next"]}).json()
    assert [one["id"] for one in page["items"] + rest["items"]] == [second, first]


def test_an_event_is_cancelled_and_says_why(operator):
    made = announced(operator)
    answer = operator.post(f"{URL}/events/{made['id']}/cancel", {"version": 1, "reason": "it rains"}).json()

    assert (answer["phase"], answer["outcome"], answer["version"]) == ("cancelled", "cancelled", 2)
    assert Event.objects.get(kind="demand_response.cancelled").reason == "it rains"


def test_opting_out_is_settled_as_such(operator):
    made = announced(operator)
    answer = operator.post(f"{URL}/events/{made['id']}/opt-out").json()

    assert (answer["phase"], answer["outcome"]) == ("cancelled", "opted_out")


def test_refusals_have_codes_of_their_own(operator, hall):
    made = announced(operator, is_emergency=True)
    address = f"{URL}/events/{made['id']}"
    kind(idle_w=700.0)
    node("n1", 100, power=hall)

    def code(answer):
        return answer.status_code, answer.json()["code"]

    assert code(operator.post(f"{address}/opt-out")) == (409, "emergency_binds")
    assert code(operator.post(f"{address}/cancel", {"version": 5})) == (409, "version_conflict")
    below = body(value=100e3)
    assert code(operator.post(f"{URL}/events", below)) == (409, "target_below_floor")
    assert operator.post(f"{URL}/events", {**below, "is_below_floor_confirmed": True}).status_code == 201
    domain("empty", "hall")
    assert code(operator.post(f"{URL}/events", body(domain="empty"))) == (409, "no_reference")


def test_the_same_key_announces_once(operator):
    said, key = body(), {"HTTP_IDEMPOTENCY_KEY": "k1"}
    first = operator.post(f"{URL}/events", said, **key)
    again = operator.post(f"{URL}/events", said, **key)

    assert (first.status_code, again.json()) == (201, first.json())
    assert DemandResponseEvent.objects.count() == 1


def test_plans_are_shown_with_what_to_type_and_how_far_they_have_come(operator, viewer):
    made = announced(operator)
    address = f"{URL}/events/{made['id']}/plans"
    preview(made["id"], tier_breaches=[1])
    (plan,) = viewer.get(address).json()["items"]
    assert (plan["state"], plan["confirmation"], plan["tier_breaches"]) == ("previewed", "hall", [1])
    assert (plan["actions"][0]["state"], plan["details"]) == (None, {"method": "exact"})
    plan_services.commit_plan(
        event_id=made["id"],
        inputs_hash=HASH,
        actor=User.objects.get(username="olga"),
        at=clock.now(),
        confirmation="hall",
    )
    (plan,) = viewer.get(address).json()["items"]

    assert (plan["state"], plan["committed_by"], plan["confirmation"]) == ("committed", "olga", None)
    assert (plan["actions"][0]["state"], plan["actions"][0]["after"]) == ("requested", {"cap_w": 400})


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"domain": "nowhere"}, "domain"),
        ({"target_kind": "watts"}, "target_kind"),
        ({"value": -1}, "value"),
        ({"value": "18"}, "value"),
        ({"value": 0}, "value"),
        ({"start_at": "2026-03-01T08:00:00"}, "start_at"),
        ({"end_at": "2020-01-01T00:00:00Z"}, "end_at"),
        ({"source": "openadr"}, "source"),
        ({"priority": 1.5}, "priority"),
        ({"rebound_limit_share": 0}, "rebound_limit_share"),
        ({"tolerance": 1}, "tolerance"),
        ({"is_test": 1}, "is_test"),
        ({"programme": None}, "programme"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused_at_its_field(operator, more, path):
    assert paths(operator.post(f"{URL}/events", body(**more))) == [path]
    assert not DemandResponseEvent.objects.exists()


@pytest.mark.parametrize("query", ["from=x", "phase=active", "cursor=e30", "limit=0"])
def test_a_question_that_makes_no_sense_is_refused(operator, query):
    assert paths(operator.get(f"{URL}/events?{query}")) == [query.partition("=")[0]]


@pytest.mark.parametrize("role", ["", "auditor", "power_admin"])
def test_who_may_see_an_event_may_not_act_on_it(operator, role):
    made = announced(operator)
    asker = client(person("maria", role))

    assert asker.post(f"{URL}/events", body()).status_code == 403
    for act in ("cancel", "opt-out"):
        assert asker.post(f"{URL}/events/{made['id']}/{act}").status_code == 403
        assert asker.post(f"{URL}/events/{made['id'] + 1}/{act}").status_code == 404
    assert asker.get(f"{URL}/events/{10**30}").status_code == 404


# Programmes.


def test_a_programme_is_written_down_read_and_replaced(viewer):
    admin = client(person("pia", "power_admin"))
    said = {"name": "summer", **RULES, "price_per_kwh": "0.40", "penalty_per_kwh": "2"}
    made = admin.post(f"{URL}/programmes", said)
    assert made.status_code == 201, made.content
    assert viewer.get(f"{URL}/programmes/summer").json() == made.json()
    assert (made.json()["price_per_kwh"], made.json()["penalty_per_kwh"]) == ("0.4", "2")
    changed = admin.put(f"{URL}/programmes/summer", {**said, "version": 1, "interval_s": 300}).json()

    assert (changed["interval_s"], changed["version"]) == (300, 2)
    stale = admin.put(f"{URL}/programmes/summer", {**said, "version": 1})
    assert (stale.status_code, stale.json()["code"]) == (409, "version_conflict")
    assert admin.post(f"{URL}/programmes", said).json()["code"] == "name_taken"
    assert [one["name"] for one in viewer.get(f"{URL}/programmes").json()["items"]] == ["summer"]


def test_an_emergency_policy_waits_for_a_second_person(hall):
    said = {"name": "summer", **RULES, "emergency_policy": "caps_and_stops"}
    made = client(person("pia", "power_admin")).post(f"{URL}/programmes", said).json()
    assert (made["emergency_policy"], made["asked_emergency_policy"]) == ("none", "caps_and_stops")
    paul = client(person("paul", "power_admin"))
    changed = paul.put(f"{URL}/programmes/summer", {**said, "version": 1}).json()

    assert (changed["emergency_policy"], changed["emergency_policy_by"]) == ("caps_and_stops", "paul")


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"price_per_kwh": 0.4}, "price_per_kwh"),
        ({"price_per_kwh": "-1"}, "price_per_kwh"),
        ({"price_per_kwh": "NaN"}, "price_per_kwh"),
        ({"interval_s": 0}, "interval_s"),
        ({"ramp_s": 1.5}, "ramp_s"),
        ({"ramp_s": 10_000}, "ramp_s"),
        ({"max_duration_s": 1}, "max_duration_s"),
        ({"time_zone": "Nowhere/City"}, "time_zone"),
        ({"emergency_policy": "all"}, "emergency_policy"),
        ({"name": "a/b"}, "name"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_programme_that_makes_no_sense_is_refused_at_its_field(more, path):
    admin = client(person("pia", "power_admin"))

    assert paths(admin.post(f"{URL}/programmes", {"name": "summer", **RULES, **more})) == [path]
    assert not Programme.objects.exists()


@pytest.mark.parametrize("role", ["", "operator", "auditor"])
def test_only_power_administrators_write_programmes(role):
    programme()
    asker = client(person("max", role))

    assert asker.post(f"{URL}/programmes", {"name": "x", **RULES}).status_code == 403
    assert asker.put(f"{URL}/programmes/summer", {"name": "x", **RULES, "version": 1}).status_code == 403
    assert asker.put(f"{URL}/programmes/nothing", {}).status_code == 404


def test_nobody_gets_in_without_signing_in():
    for path in ("events", "events/1", "events/1/plans", "programmes", "programmes/x"):
        assert client().get(f"{URL}/{path}").status_code == 401


def test_the_number_of_queries_does_not_grow(operator, django_assert_num_queries):
    for _ in range(3):
        announced(operator)
    programme()
    event_id = DemandResponseEvent.objects.first().pk
    for _ in range(3):
        preview(event_id)
    with django_assert_num_queries(2):
        assert len(operator.get(f"{URL}/events").json()["items"]) == 3
    with django_assert_num_queries(3):
        assert len(operator.get(f"{URL}/events/{event_id}/plans").json()["items"]) == 3
    with django_assert_num_queries(1):
        operator.get(f"{URL}/programmes")

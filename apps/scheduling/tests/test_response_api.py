"""Dry runs, commits, overrides and the switch of power control by REST."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.events.models import Event
from apps.power.models import CurtailmentPlan, DemandResponseEvent, PowerReading
from apps.scheduling.tests.response_hall import D, E, Hall, hall
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/api/v1"


@pytest.fixture
def scene() -> Hall:
    made = hall()
    for minute in range(1, 15):
        PowerReading.objects.create(
            domain=made.domain,
            at=clock.now() - timedelta(minutes=minute),
            draw_w=132.4e3,
            source="modelled",
        )
    return made


def event(**more):
    begin = clock.now() + timedelta(minutes=15)
    said = {"domain": "hall", "target_kind": "shed_by", "value": 18e3, "start_at": begin.isoformat()}
    return {**said, "end_at": (begin + timedelta(hours=3)).isoformat(), **more}


def paths(answer):
    assert answer.status_code == 400, answer.content
    return [fault["path"] for fault in answer.json()["errors"]]


def test_a_dry_run_changes_nothing_and_its_commit_does_what_was_shown(scene):
    asker = client(scene.operator)
    asked = {"event": event(), "wish": {"levers": ["cap", "pause"]}}
    shown = asker.post(f"{URL}/demand-response/preview", asked)
    assert shown.status_code == 200, shown.content
    found = shown.json()
    assert (found["predicted_shed_w"], found["shortfall_w"]) == (pytest.approx(19.2e3), 0)
    assert {row["name"] for row in found["details"]["jobs"]} == {D, E}
    assert not DemandResponseEvent.objects.exists()
    assert not CurtailmentPlan.objects.exists()

    committed = asker.post(
        f"{URL}/demand-response/commit", {**asked, "seen": found["seen"], "reason": "heat"}
    )
    assert committed.status_code == 201, committed.content
    assert committed.json()["state"] == "committed"
    assert [a["job_id"] for a in committed.json()["actions"]] == [a["job_id"] for a in found["actions"]]
    assert Event.objects.get(kind="curtailment.committed").actor_id == scene.operator.pk


def test_what_was_shown_to_somebody_else_or_for_something_else_is_not_committed(scene):
    asker = client(scene.operator)
    asked = {"event": event()}
    seen = asker.post(f"{URL}/demand-response/preview", asked).json()["seen"]
    url = f"{URL}/demand-response/commit"

    other = client(person("olga", "operator"))
    assert other.post(url, {**asked, "seen": seen}).json()["code"] == "plan_stale"
    changed = {"event": {**asked["event"], "value": 30e3}}
    assert asker.post(url, {**changed, "seen": seen}).json()["code"] == "plan_stale"
    assert asker.post(url, {**asked, "seen": "made-up"}).json()["code"] == "plan_stale"
    assert not DemandResponseEvent.objects.exists()  # nothing of it is left half done


def test_an_infeasible_target_says_what_can_be_had_and_what_would_give_more(scene):
    found = client(scene.operator).post(f"{URL}/demand-response/preview", {"event": event(value=40e3)}).json()

    assert found["shortfall_w"] == pytest.approx(8e3)
    told = found["details"]
    assert told["achievable_w"] == pytest.approx(32e3)
    assert told["binding"] == ["hall", "tier 0", "tier 1", "tier 2", "tier 3"]
    assert [one["name"] for one in told["relaxations"]] == ["C", "B"]
    more = {"event": event(value=40e3), "wish": {"allowed_jobs": [told["relaxations"][0]["job_id"]]}}
    wider = client(scene.operator).post(f"{URL}/demand-response/preview", more).json()
    assert wider["shortfall_w"] == pytest.approx(1.6e3)
    assert wider["tier_breaches"] == more["wish"]["allowed_jobs"]
    refused = client(scene.operator).post(f"{URL}/demand-response/commit", {**more, "seen": wider["seen"]})
    assert refused.json()["code"] == "confirmation_needed"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"event": {**event(), "value": -1}}, "event.value"),
        ({"event": {**event(), "value": True}}, "event.value"),
        ({"event": {**event(), "domain": "nowhere"}}, "domain"),
        ({"event": event(), "wish": {"levers": []}}, "wish.levers"),
        ({"event": event(), "wish": {"levers": ["hope"]}}, "wish.levers[0]"),
        ({"event": event(), "wish": {"exempt_jobs": ["x"]}}, "wish.exempt_jobs[0]"),
        ({"event": event(), "more": 1}, "more"),
    ],
)
def test_bad_input_names_the_field(scene, body, path):
    assert paths(client(scene.operator).post(f"{URL}/demand-response/preview", body)) == [path]


def test_who_only_looks_may_not(scene):
    viewer = client(person("vic"))
    for address in ("demand-response/preview", "demand-response/commit", "power/control/stop"):
        assert viewer.post(f"{URL}/{address}", {}).status_code == 403
    made = {"kind": "hold", "job_id": 1, "reason": "x", "expires_at": event()["end_at"]}
    assert viewer.post(f"{URL}/power/overrides", made).status_code == 403
    assert viewer.get(f"{URL}/power/control").status_code == 200


def test_an_override_is_made_listed_and_taken_back(scene):
    asker = client(scene.operator)
    said = {
        "kind": "exempt",
        "job_id": scene.jobs[E],
        "reason": "a deadline",
        "expires_at": event()["end_at"],
    }
    made = asker.post(f"{URL}/power/overrides", said)
    assert made.status_code == 201, made.content
    assert made.json()["is_active"]
    assert paths(asker.post(f"{URL}/power/overrides", {**said, "domain": "hall"})) == ["job_id"]
    assert paths(asker.post(f"{URL}/power/overrides", {**said, "expires_at": "2020-01-01T00:00:00Z"})) == [
        "expires_at"
    ]
    ended = asker.post(f"{URL}/power/overrides/{made.json()['id']}/end", {"reason": "done"})
    assert ended.json()["ended_by"] == scene.operator.username
    assert [row["is_active"] for row in asker.get(f"{URL}/power/overrides").json()["items"]] == [False]


def test_the_switch_says_who_and_why(scene):
    asker = client(scene.operator)
    assert paths(asker.post(f"{URL}/power/control/stop", {"reason": " "})) == ["reason"]
    stopped = asker.post(f"{URL}/power/control/stop", {"reason": "a strange reading"}).json()
    assert (stopped["stopped_by"], stopped["stop_reason"]) == (scene.operator.username, "a strange reading")
    assert asker.post(f"{URL}/power/control/start", {"reason": "mended"}).json()["stopped_at"] is None
    assert Event.objects.filter(kind__startswith="power.automation").count() == 2

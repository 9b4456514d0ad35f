"""Curtailment by pages: a wish, a preview that changes nothing, a commit, an event that can be called off."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dashboard.tests.curtailed import SECRET, add_work
from apps.dashboard.tests.facility import Facility, signed_in
from apps.events.models import Event
from apps.inventory.models import Domain
from apps.jobs.models import Allocation, Job
from apps.power.models import CurtailmentPlan, DemandResponseEvent, PlanState, PowerController, PowerReading
from apps.power.response_services import EventDraft, announce_event
from apps.power.tests.builders import programme

PREVIEW = "/power/curtail/parts/preview/"
WISH: dict[str, Any] = {
    "domain": "Hall A",
    "kind": "shed_by",
    "value": "4",
    "minutes": "60",
    "levers": ["cap", "pause"],
    "reason": "the grid asks",
}


@pytest.fixture
def work(facility: Facility) -> dict[str, Job]:
    return add_work(facility, at=clock.now())


def hidden(text: str) -> dict[str, str]:
    """What the preview would send along."""
    return dict(re.findall(r'<input type="hidden" name="(token|shown_\w+)" value="([^"]*)"', text))


def commit(client: Client, **more: Any) -> Any:
    """Look, and then commit what was seen."""
    wish = {**WISH, **more}
    seen = hidden(client.post(PREVIEW, wish).content.decode())
    return client.post("/power/curtail/", {**wish, **seen, "action": "commit"})


def committed(client: Client, **more: Any) -> DemandResponseEvent:
    answer = commit(client, **more)
    assert answer.status_code == 302, re.sub(r"<[^>]+>|\s+", " ", answer.content.decode())
    return DemandResponseEvent.objects.get(pk=int(answer.url.strip("/").split("/")[-1]))


def announced(facility: Facility, **more: Any) -> DemandResponseEvent:
    at = clock.now()
    draft = EventDraft(
        domain="Hall A",
        target_kind="shed_by",
        value=4000.0,
        start_at=at + timedelta(minutes=30),
        end_at=at + timedelta(minutes=90),
        **more,
    )
    return announce_event(draft=draft, actor=facility.operator, at=at)


def test_a_preview_says_what_would_be_done_and_writes_nothing(
    facility: Facility, work: dict[str, Job]
) -> None:
    n_told = Event.objects.count()
    text = signed_in(facility.operator).post(PREVIEW, WISH).content.decode()

    assert "the least possible loss" in text
    assert "100\xa0% of 4.0\xa0kW" in text
    assert "simulated" in text
    assert "Commit · starts now" in text
    assert not DemandResponseEvent.objects.exists()
    assert not CurtailmentPlan.objects.exists()
    assert Event.objects.count() == n_told


def test_what_is_seen_is_committed_and_stands_in_the_audit_trail(
    facility: Facility, work: dict[str, Job]
) -> None:
    client = signed_in(facility.operator)
    event = committed(client)
    plan = event.plans.get()

    assert (plan.state, plan.committed_by) == (PlanState.COMMITTED, facility.operator)
    client.post("/power/automation/", {"to": "stop", "reason": "let me look", "back": "/power/events/1/"})
    assert PowerController.objects.get().stopped_by == facility.operator
    client.post("/power/automation/", {"to": "start", "reason": "looked"})
    assert PowerController.objects.get().stopped_at is None
    client.post(f"/power/events/{event.pk}/cancel/", {"reason": "called off"})
    event.refresh_from_db()
    assert event.cancelled_at is not None
    acts = Event.objects.filter(is_audit=True, actor_id=facility.operator.pk).order_by("id")
    told = [(one.kind, one.reason) for one in acts if one.kind.partition(".")[0] in _POWER]
    assert told == [
        ("demand_response.announced", "the grid asks"),
        ("curtailment.previewed", ""),
        ("curtailment.committed", "the grid asks"),
        ("power.automation_stopped", "let me look"),
        ("power.automation_started", "looked"),
        ("demand_response.cancelled", "called off"),
    ]
    trail = client.get(f"/audit/?of=demand_response&id={event.pk}").content.decode()
    assert "curtailment.committed" in trail
    assert "power.automation_stopped" not in trail


_POWER = ("demand_response", "curtailment", "power")


def test_a_second_click_finds_the_event_of_the_first(facility: Facility, work: dict[str, Job]) -> None:
    client = signed_in(facility.operator)
    seen = hidden(client.post(PREVIEW, WISH).content.decode())
    answers = [client.post("/power/curtail/", {**WISH, **seen, "action": "commit"}) for _ in range(2)]

    assert [one.status_code for one in answers] == [302, 302]
    assert answers[0].url == answers[1].url
    assert DemandResponseEvent.objects.count() == CurtailmentPlan.objects.count() == 1


def test_a_form_that_was_changed_after_its_preview_is_shown_anew(
    facility: Facility, work: dict[str, Job]
) -> None:
    client = signed_in(facility.operator)
    seen = hidden(client.post(PREVIEW, WISH).content.decode())
    for change in ({"value": "6"}, {"minutes": "90"}, {"levers": ["pause"]}, {"domain": "A1-01"}):
        answer = client.post("/power/curtail/", {**WISH, **change, **seen, "action": "commit"})
        assert answer.status_code in (400, 409), change
    answer = client.post("/power/curtail/", {**WISH, "value": "6", **seen, "action": "commit"})

    text = answer.content.decode()
    assert "Nothing was committed." in text
    assert hidden(text)["token"] != seen["token"]
    assert not DemandResponseEvent.objects.exists()


def test_a_preview_expires(facility: Facility, work: dict[str, Job], monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(facility.operator)
    seen = hidden(client.post(PREVIEW, WISH).content.decode())
    at = clock.now() + timedelta(minutes=6)
    monkeypatch.setattr(clock, "now", lambda: at)
    answer = client.post("/power/curtail/", {**WISH, **seen, "action": "commit"})

    assert answer.status_code in (400, 409)
    assert not DemandResponseEvent.objects.exists()


def test_nobody_commits_without_a_reason(facility: Facility, work: dict[str, Job]) -> None:
    answer = commit(signed_in(facility.operator), reason=" ")

    assert answer.status_code == 400
    assert "goes to the audit trail" in answer.context["form"].errors["reason"][0]
    assert not DemandResponseEvent.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("value", "much", "must be a number"),
        ("value", "-3", "must be a number"),
        ("value", "30", "with all work paused"),
        ("minutes", "0", "more than 0"),
        ("minutes", "", "is missing"),
        ("start", "yesterday", "must be a date"),
        ("start", "2020-01-01T00:00", "in the past"),
        ("until", "2020-01-01T00:00", "start_at"),
        ("domain", "Nowhere", "names nothing"),
        ("domain", "L01", "power domains"),
        ("levers", [], "at least one"),
        ("exempt_jobs", "train-moe", "ids of jobs"),
    ],
)
def test_a_fault_is_said_beside_its_field(
    facility: Facility, work: dict[str, Job], field: str, value: Any, said: str
) -> None:
    client = signed_in(facility.operator)
    page = client.post("/power/curtail/", {**WISH, field: value, "action": "preview"})
    part = client.post(PREVIEW, {**WISH, field: value})

    assert page.status_code == 400
    assert part.status_code == 200  # a part with another status is not put in place
    for answer in (page, part):
        assert any(said in one for one in answer.context["form"].errors[field]), answer.context["form"].errors
        assert re.search(rf'id="error-{field}"[^>]*>.*?{re.escape(said)}', answer.content.decode(), re.S)


def test_without_readings_a_reduction_counts_from_nothing_and_a_limit_is_asked_for(
    facility: Facility, work: dict[str, Job]
) -> None:
    PowerReading.objects.all().delete()
    page = signed_in(facility.operator).post(PREVIEW, WISH)

    assert "Ask for a limit instead." in page.context["form"].errors["kind"][0]
    text = signed_in(facility.operator).post(PREVIEW, {**WISH, "kind": "limit_to", "value": "30"}).content
    assert "No meter of Hall A is heard of" in text.decode()


def test_what_cannot_be_met_comes_first_with_what_could_be_allowed(
    facility: Facility, work: dict[str, Job]
) -> None:
    client, wish = signed_in(facility.operator), {**WISH, "value": "16"}
    text = client.post(PREVIEW, wish).content.decode()
    assert text.index("The target cannot be met") < text.index("Expected")
    assert "Commit best effort" in text
    assert "has not saved for" in text  # sweep-unsaved ran for 25 minutes
    vlm = work["train-vlm"].pk
    assert f'name="allow" value="{vlm}"' in text

    allowed = {**wish, "allow": [str(vlm)]}
    text = client.post(PREVIEW, allowed).content.decode()
    assert "Beyond its tier" in text
    refused = commit(client, value="16", allow=[str(vlm)])
    assert refused.status_code == 409
    assert "Type Hall A to confirm." in refused.content.decode()
    assert not DemandResponseEvent.objects.exists()
    event = committed(client, value="16", allow=[str(vlm)], confirmation="Hall A")
    assert event.plans.get().n_breaches == 1


def test_a_job_that_is_unticked_is_left_alone(facility: Facility, work: dict[str, Job]) -> None:
    client, saved, unsaved = signed_in(facility.operator), work["sweep-saved"].pk, work["sweep-unsaved"].pk
    told = {**WISH, "listed": [str(saved), str(unsaved)], "keep": [str(saved)]}
    shown = client.post(PREVIEW, told).context["shown"]
    assert unsaved not in {row.facts["job_id"] for row in shown.rows}
    assert [job.pk for job in shown.exempt] == [unsaved]
    exempt = client.post(PREVIEW, {**WISH, "exempt_teams": ["Speech"]}).context["shown"]

    assert exempt.n_jobs == 0
    assert exempt.is_short
    event = committed(client, listed=[str(unsaved)], keep=[])
    assert unsaved not in {one.job_id for plan in event.plans.all() for one in plan.actions.all()}


def test_a_test_touches_nobody_and_is_on_no_ribbon(facility: Facility, work: dict[str, Job]) -> None:
    client = signed_in(facility.operator)
    event = committed(client, is_test="on")

    assert event.is_test
    assert "Open event" not in client.get("/").content.decode()


def test_an_announced_event_is_planned_and_opted_out_of(facility: Facility, work: dict[str, Job]) -> None:
    programme("summer", max_duration_s=7200)
    client, event = signed_in(facility.operator), announced(facility, programme="summer")
    url = f"/power/events/{event.pk}/plan/"
    assert "Nobody has committed a plan" in client.get(f"/power/events/{event.pk}/").content.decode()
    page = client.get(url).content.decode()
    told = {"levers": ["cap", "pause"], "reason": "the programme asks", **hidden(page)}
    other = client.post(url, {**told, "levers": ["pause"], "action": "commit"})
    assert (other.status_code, event.plans.filter(state=PlanState.COMMITTED).count()) == (409, 0)
    told |= hidden(client.post(f"{url}parts/preview/", told).content.decode())
    answers = [client.post(url, {**told, "action": "commit"}) for _ in range(2)]

    assert [one.status_code for one in answers] == [302, 302]
    assert event.plans.get(state=PlanState.COMMITTED).committed_by == facility.operator
    assert client.post(f"/power/events/{event.pk}/opt-out/", {"reason": "a launch"}).status_code == 302
    event.refresh_from_db()
    assert event.opted_out_at is not None


@pytest.mark.parametrize("who", ["viewer", "member", "lead", "auditor"])
def test_who_does_not_operate_reads_the_event_and_changes_nothing(
    facility: Facility, work: dict[str, Job], who: str
) -> None:
    event = committed(signed_in(facility.operator))
    client, base = signed_in(getattr(facility, who)), f"/power/events/{event.pk}"
    page = client.get(f"{base}/")
    text = page.content.decode()

    assert page.status_code == 200
    assert client.get(f"{base}/parts/body/").status_code == 200
    assert client.get(f"{base}/charts/load.json").status_code == 200
    main = text[text.index("<main") : text.index("</main>")]
    assert "<form" not in main
    assert "<button" not in main
    refused = [
        client.get("/power/curtail/"),
        client.post("/power/curtail/", {**WISH, "action": "commit"}),
        client.post(PREVIEW, WISH),
        client.get(f"{base}/plan/"),
        client.post(f"{base}/plan/", {"action": "commit"}),
        client.post(f"{base}/plan/parts/preview/"),
        client.post(f"{base}/cancel/", {"reason": "x"}),
        client.post(f"{base}/opt-out/", {"reason": "x"}),
        client.post("/power/automation/", {"to": "stop", "reason": "x"}),
    ]
    assert {one.status_code for one in refused} == {403}
    event.refresh_from_db()
    assert event.cancelled_at is None
    assert not PowerController.objects.filter(stopped_at__isnull=False).exists()


def test_no_act_works_without_the_token_of_its_form(facility: Facility, work: dict[str, Job]) -> None:
    event = committed(signed_in(facility.operator))
    client = signed_in(facility.operator, enforce_csrf_checks=True)
    acts = ["/power/curtail/", PREVIEW, "/power/automation/", f"/power/events/{event.pk}/cancel/"]

    assert {client.post(url, {**WISH, "action": "commit"}).status_code for url in acts} == {403}


def test_no_page_of_it_shows_what_a_job_runs(facility: Facility, work: dict[str, Job]) -> None:
    operator = signed_in(facility.operator)
    texts = [operator.post(PREVIEW, WISH).content.decode()]
    event = committed(operator)
    texts += [
        signed_in(facility.viewer).get(f"/power/events/{event.pk}/").content.decode(),
    ]

    assert all("sweep-saved" in text for text in texts)
    assert all(SECRET not in text for text in texts)


def test_everybody_sees_the_ribbon_and_an_owner_why_a_job_is_slow(
    facility: Facility, work: dict[str, Job]
) -> None:
    event = committed(signed_in(facility.operator))
    action = event.plans.get().actions.first()
    action.state = "verified"
    action.save(update_fields=["state"])
    Allocation.objects.filter(job_id=action.job_id).update(desired_power_cap_share=action.after["share"])
    client = signed_in(facility.stranger)

    assert "Grid event active" in client.get("/queue/").content.decode()
    assert f"grid event {event.pk}" in client.get(f"/jobs/{action.job_id}/").content.decode()
    assert 'id="grid-hold"' not in client.get(f"/jobs/{work['serve-chat'].pk}/").content.decode()


def test_pages_ask_the_database_no_more_for_more_jobs(facility: Facility, work: dict[str, Job]) -> None:
    client, asked = signed_in(facility.operator), {}
    for name, kw in (("few", "1"), ("many", "12")):
        with CaptureQueriesContext(connection) as queries:
            client.post(PREVIEW, {**WISH, "value": kw})
        asked[name] = len(queries)
    event = committed(client)
    for name, send in {
        "form": lambda: client.get("/power/curtail/"),
        "event": lambda: client.get(f"/power/events/{event.pk}/"),
        "body": lambda: client.get(f"/power/events/{event.pk}/parts/body/"),
        "ribbon": lambda: client.get("/power/parts/ribbon/"),
    }.items():
        with CaptureQueriesContext(connection) as queries:
            assert send().status_code == 200
        asked[name] = len(queries)

    assert asked["form"] <= 14
    assert asked["event"] <= 18
    assert asked["body"] <= 14
    assert asked["ribbon"] <= 4
    assert asked["many"] == asked["few"]


def test_a_domain_is_chosen_by_its_address(facility: Facility, work: dict[str, Job]) -> None:
    client, hall = signed_in(facility.operator), Domain.objects.get(name="Hall A")

    assert client.get(f"/power/curtail/?domain={hall.pk}").context["v"]["domain"] == "Hall A"
    for odd in ("x", "0", "9" * 30):
        assert client.get(f"/power/curtail/?domain={odd}").context["v"]["domain"] == "Northgate"


def test_an_event_that_is_not_there_is_not_found(facility: Facility) -> None:
    client = signed_in(facility.operator)
    paths = ["/power/events/999/", f"/power/events/{10**30}/", "/power/events/999/plan/"]

    assert {client.get(path).status_code for path in paths} == {404}
    assert client.post("/power/events/999/cancel/").status_code == 404

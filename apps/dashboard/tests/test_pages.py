"""Pages answer with what they promise, and only to whom it is promised."""

import csv
import io
import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from django.conf import settings
from django.core import signing
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from plotly.offline import get_plotlyjs_version

from apps.core import clock
from apps.dashboard import words
from apps.dashboard.templatetags import formats
from apps.dashboard.templatetags.ui import SPRITE
from apps.dashboard.tests.facility import UNKIND, Facility, request, signed_in
from apps.dashboard.views.jobs import _way_salt
from apps.inventory import services as inventory
from apps.inventory.models import AcceleratorType, Device, Domain
from apps.jobs import services as jobs
from apps.jobs.models import Allocation, DeviceClaim, Job
from apps.power.models import NodeReading
from apps.reservations import services as reservations
from apps.scheduling import board, losses, policy_setting
from apps.scheduling import selectors as scheduling
from apps.scheduling.idle import BUCKETS
from apps.scheduling.snapshot import take_snapshot
from apps.teams import loans
from apps.teams import services as teams
from apps.teams.models import Quota, Token
from apps.teams.selectors import limits_of
from apps.teams.services import MemberLimitEntry

TEMPLATES = Path(settings.BASE_DIR) / "templates"
STATIC = Path(settings.BASE_DIR) / "static"
SECRETS = ("--secret-flag", "hunter2")


def addresses(facility: Facility) -> dict[str, str]:
    """Every page and part that is read, by name."""
    job, team = [facility.running.pk], [facility.vision.name]
    bare = [
        *("overview", "figures", "attention", "teams", "pulse", "chart-power", "chart-use", "hours", "halls"),
        *("utilization", "idle-jobs", "chart-hours"),
        *(
            "queue",
            "queue-head",
            "queue-rows",
            "submit",
            "import",
            "nodes",
            "node-map",
            "node-list",
            "reservations",
            "slots",
        ),
        *("quotas", "passes", "passes-list", "policy", "audit", "me", "search", "welcome"),
        *("power", "power-figures", "power-tree", "power-events-part", "chart-load"),
    ]
    found = {name: reverse(f"dashboard:{name}") for name in bare}
    for name in ("job", "job-spec", "job-attempts", "job-events", "job-head", "job-actions", "job-body"):
        found[name] = reverse(f"dashboard:{name}", args=job)
    found["team-quota"] = reverse("dashboard:team-quota", args=team)
    found["node"] = reverse("dashboard:node", args=[facility.nodes[0].name])
    found["node-part"] = reverse("dashboard:node-part", args=[facility.nodes[0].name])
    for name in ("hall", "hall-part"):
        found[name] = reverse(f"dashboard:{name}", args=["Hall A"])
    for name in ("spine", "spine-part"):
        found[name] = reverse(f"dashboard:{name}", args=["SG-1"])
    found["pass"] = reverse("dashboard:pass", args=[facility.last_pass.pk])
    for tab in ("queued", "running", "paused", "held", "finished"):
        found[f"queue {tab}"] = f"{found['queue']}?state={tab}"
    return found


PARTS = {
    *("figures", "attention", "teams", "pulse", "queue-head", "queue-rows", "node-map", "node-list"),
    *("passes-list", "job-head", "job-actions", "job-body", "node-part", "hours", "halls", "idle-jobs"),
    *("power-figures", "power-tree", "power-events-part", "hall-part", "spine-part"),
}


@pytest.mark.parametrize("who", ["admin", "operator", "auditor", "lead", "member", "stranger", "viewer"])
def test_every_page_opens_for_everybody_signed_in(facility: Facility, who: str) -> None:
    client = signed_in(getattr(facility, who))

    answers = {name: client.get(url).status_code for name, url in addresses(facility).items()}

    assert {name: status for name, status in answers.items() if status != 200} == {}


def test_who_is_not_signed_in_is_sent_to_the_sign_in_page(facility: Facility) -> None:
    answers = {name: Client().get(url) for name, url in addresses(facility).items()}

    assert {name for name, answer in answers.items() if answer.status_code != 302} == set()
    assert all(answer.url.startswith("/accounts/login/") for answer in answers.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("who", ["stranger", "viewer", "auditor", "operator"])
def test_no_page_shows_what_another_team_keeps_to_itself(facility: Facility, who: str) -> None:
    client, job = signed_in(getattr(facility, who)), [facility.running.pk]
    pages = ["job", "job-spec", "job-events", "job-body", "job-attempts", "job-logs", "job-log"]

    for name in pages[:5]:
        text = client.get(reverse(f"dashboard:{name}", args=job)).content.decode()
        if who in ("stranger", "viewer"):
            assert not any(secret in text for secret in SECRETS), name
    statuses = {client.get(reverse(f"dashboard:{name}", args=job)).status_code for name in pages[5:]}
    assert statuses == {404 if who in ("stranger", "viewer") else 403}


@pytest.mark.parametrize(
    ("who", "sees"),
    [("operator", False), ("auditor", False), ("admin", True), ("member", True), ("lead", True)],
)
def test_the_values_of_an_environment_are_hidden_from_who_only_looks_after_it(
    facility: Facility, who: str, sees: bool
) -> None:
    client, job = signed_in(getattr(facility, who)), facility.finished.pk
    pages = [client.get(f"/jobs/{job}/{tab}") for tab in ("", "spec/", "events/", "attempts/")]
    text = "".join(page.content.decode() for page in [*pages, client.get(f"/jobs/new/?like={job}")])

    assert "SECRET_TOKEN" in text
    assert SECRETS[0] in text
    assert ("hunter2" in text) == sees
    assert ("Submit again" in text) == (who in ("member", "lead"))


def test_the_team_sees_its_own_command(facility: Facility) -> None:
    page = signed_in(facility.member).get(reverse("dashboard:job-spec", args=[facility.running.pk]))

    assert SECRETS[0] in page.content.decode()


def test_a_stranger_cannot_fill_the_form_with_a_secret_command(facility: Facility) -> None:
    page = signed_in(facility.stranger).get(f"/jobs/new/?like={facility.running.pk}")

    assert not any(secret in page.content.decode() for secret in SECRETS)


@pytest.mark.parametrize("action", ["stop", "hold", "release", "change"])
@pytest.mark.parametrize(("who", "wanted"), [("stranger", 404), ("viewer", 404), ("auditor", 403)])
def test_a_job_is_not_changed_by_who_may_not(facility: Facility, action: str, who: str, wanted: int) -> None:
    answer = signed_in(getattr(facility, who)).post(
        reverse(f"dashboard:job-{action}", args=[facility.waiting.pk])
    )

    assert answer.status_code == wanted
    assert Job.objects.get(pk=facility.waiting.pk).desired_stop_at is None


def test_no_action_works_without_the_token_of_its_form(facility: Facility) -> None:
    client = signed_in(facility.admin, enforce_csrf_checks=True)

    answer = client.post(reverse("dashboard:job-stop", args=[facility.waiting.pk]))

    assert answer.status_code == 403


def test_an_unknown_job_node_team_and_pass_are_not_there(facility: Facility) -> None:
    client = signed_in(facility.admin)
    paths = ("/jobs/999999/", f"/jobs/{10**30}/", "/nodes/nowhere/", "/quotas/nobody/", "/passes/0/")

    assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 404)


def test_an_unkind_name_is_shown_as_text_everywhere(facility: Facility) -> None:
    client = signed_in(facility.stranger)
    paths = ("/queue/", f"/jobs/{facility.unkind.pk}/", "/audit/", "/search/?q=%3Cimg", "/me/")
    pages = {path: client.get(path).content.decode() for path in paths}

    assert all("<img src=x" not in text for text in pages.values())
    assert all("&lt;img src=x" in text for text in pages.values())
    assert UNKIND in json.dumps(list(Job.objects.values_list("name", flat=True)), ensure_ascii=False).replace(
        '\\"', '"'
    )


# Numbers ---------------------------------------------------------------------------------------------------------


def test_waiting_by_reason_adds_up_to_the_queue(facility: Facility) -> None:
    context = signed_in(facility.viewer).get("/queue/").context

    assert sum(n for _, n, _ in context["tiles"]) == context["waiting"].n_jobs == 2
    assert sum(devices for _, _, devices in context["tiles"]) == context["waiting"].devices


def test_devices_by_what_they_do_add_up_to_all(facility: Facility) -> None:
    use = signed_in(facility.viewer).get("/").context["use"]

    assert use.held + use.out + use.free == use.n_all == 66


def test_a_job_says_when_it_will_probably_end_and_by_what(facility: Facility) -> None:
    page = signed_in(facility.viewer).get(f"/jobs/{facility.running.pk}/").content.decode()
    told = page[page.index('id="expected-end"') :][:800]

    assert "by own history: the last jobs of its owner ran" in told
    assert "at the latest" in told


def test_the_scheduler_page_says_how_far_forecasts_are_off(facility: Facility) -> None:
    page = signed_in(facility.viewer).get("/passes/").content.decode()
    card = page[page.index('id="forecasts"') :][:1200]

    assert "2 jobs that waited and started" in card
    assert "8\xa0min 30\xa0s" in card  # the median of 2 minutes too early and 15 too late is 8.5
    assert "later than told" in card


def test_the_nodes_page_says_what_is_free_and_of_no_use_now_and_by_hour(facility: Facility) -> None:
    page = signed_in(facility.viewer).get("/nodes/").content.decode()
    card = page[page.index('id="fragmentation"') : page.index('aria-label="All nodes"')]
    first, second = (
        card[card.index('id="free-1"') : card.index('id="free-2"')],
        card[card.index('id="free-2"') :],
    )

    assert "25.0\xa0%" in first
    assert "(10.5)" in first
    assert "100\xa0%" in first
    assert second.count("nobody asks") >= 2
    assert "20.0\xa0%" in card[card.index("By hour") :]


def test_a_tile_leads_to_as_many_jobs_as_it_says(facility: Facility) -> None:
    client = signed_in(facility.viewer)
    tiles = client.get("/queue/").context["tiles"]

    for tile, n_jobs, _ in tiles:
        assert len(client.get(f"/queue/?reason={tile.key}").context["rows"]) == n_jobs


def test_the_queue_is_read_page_by_page_without_a_gap(facility: Facility) -> None:
    at = clock.now()
    requests = [request(f"sweep-{n}", "Speech", devices=1) for n in range(120)]
    jobs.submit_jobs(requests=requests, actor=facility.stranger, at=at)
    client, seen, path = signed_in(facility.viewer), [], "/queue/"
    for _ in range(4):
        context = client.get(path).context
        seen += [row.job.pk for row in context["rows"]]
        if not context["found"].next_key:
            break
        path = f"/queue/?after={context['found'].next_key}"

    assert len(seen) == len(set(seen)) == 122


@pytest.mark.parametrize(
    "query", ["after=nonsense", "state=nonsense", "size=7", "priority=NaN", "q=%00", "after="]
)
def test_a_filter_that_makes_no_sense_is_answered_without_a_fault(facility: Facility, query: str) -> None:
    client = signed_in(facility.viewer)

    assert client.get(f"/queue/?{query}").status_code == 200
    assert client.get(f"/nodes/?{query}").status_code == 200


def test_the_file_of_the_queue_cannot_run_as_a_formula(facility: Facility) -> None:
    jobs.submit_job(request=request("=1+1", "Speech"), actor=facility.stranger, at=clock.now())
    answer = signed_in(facility.viewer).get("/queue/?format=csv")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]

    assert "'=1+1" in text
    assert text.startswith("id,name,team")


# Live parts ------------------------------------------------------------------------------------------------------


def test_a_part_that_did_not_change_is_not_drawn_again(facility: Facility) -> None:
    client = signed_in(facility.viewer)
    first = client.get("/queue/parts/rows/")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        second = client.get("/queue/parts/rows/", headers={"If-None-Match": first["ETag"]})

    assert second.status_code == 304
    assert len(queries) <= 5
    assert "no-cache" in first["Cache-Control"]
    assert "Cookie" in first["Vary"]


def test_a_part_is_drawn_again_after_something_happened(facility: Facility) -> None:
    client = signed_in(facility.viewer)
    first = client.get("/queue/parts/rows/")
    jobs.submit_job(request=request("one-more", "Speech"), actor=facility.stranger, at=clock.now())

    again = client.get("/queue/parts/rows/", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 200


def test_two_people_never_share_an_answer(facility: Facility) -> None:
    path = f"/jobs/{facility.running.pk}/parts/body/"

    assert signed_in(facility.member).get(path)["ETag"] != signed_in(facility.stranger).get(path)["ETag"]


def test_no_page_asks_the_database_more_than_it_may(facility: Facility) -> None:
    client = signed_in(facility.admin)
    over = {}
    for name, url in addresses(facility).items():
        client.get(url)  # what a process keeps of the line it has read once
        with CaptureQueriesContext(connection) as queries:
            client.get(url)
        # Who is looking (the session and the person) is asked for beside these, and on pages the grid event on top.
        allowed = 2 + (8 if name in PARTS else 1 + 12)
        if len(queries) > allowed:
            over[name] = len(queries)

    assert over == {}


def test_rows_do_not_cost_queries(facility: Facility) -> None:
    client = signed_in(facility.viewer)
    client.get("/queue/")
    with CaptureQueriesContext(connection) as few:
        client.get("/queue/")
    requests = [request(f"sweep-{n}", "Speech", devices=1) for n in range(40)]
    jobs.submit_jobs(requests=requests, actor=facility.stranger, at=clock.now())
    with CaptureQueriesContext(connection) as many:
        client.get("/queue/")

    assert len(many) == len(few)


def test_a_waiting_job_says_who_goes_first(facility: Facility) -> None:
    client = signed_in(facility.stranger)
    sentence = "Behind 1 job: 1 of higher priority."

    assert sentence in client.get("/queue/").content.decode()
    assert sentence in client.get(f"/jobs/{facility.unkind.pk}/").content.decode()
    assert (
        "No job that competes with it goes first."
        in client.get(f"/jobs/{facility.waiting.pk}/").content.decode()
    )
    for job in (facility.held, facility.running, facility.finished):
        assert 'id="ahead"' not in client.get(f"/jobs/{job.pk}/").content.decode()


# Charts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power", "use", "hours"])
@pytest.mark.parametrize("period", ["6h", "24h", "7d", "nonsense"])
def test_every_chart_is_one_that_plotly_knows(facility: Facility, name: str, period: str) -> None:
    figure = signed_in(facility.viewer).get(f"{reverse(f'dashboard:chart-{name}')}?p={period}").json()
    text = re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(figure))

    go.Figure(**json.loads(text))
    assert "<" not in text


def test_the_browser_draws_with_the_version_that_tests_check_with() -> None:
    assert (STATIC / "vendor" / f"plotly.js-cartesian-{get_plotlyjs_version()}").is_dir()


def test_every_icon_that_a_page_shows_is_in_the_sprite() -> None:
    sprite = (STATIC / SPRITE).read_text(encoding="utf-8")
    known = set(re.findall(r'<symbol id="([\w-]+)"', sprite))
    used = {
        name
        for path in TEMPLATES.rglob("*.html")
        for name in re.findall(r'{% icon "([\w-]+)"', path.read_text(encoding="utf-8"))
    }

    assert used - known == set()


def test_no_template_has_inline_script_style_or_handler() -> None:
    for path in TEMPLATES.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\sstyle=|<style|\son\w+=|hx-on|<script(?![^>]*\bsrc=)", text), path


# Changes ---------------------------------------------------------------------------------------------------------


def test_a_lead_cannot_give_more_than_the_team_owns(facility: Facility) -> None:
    team = facility.pretraining
    form = {"kind": "H100", f"entitlement-{team.pk}": "1000", f"version-{team.pk}": team.version + 1}
    answer = signed_in(facility.lead).post("/quotas/Vision/", form)

    assert answer.status_code in (400, 409)
    assert Quota.objects.get(team=team).entitlement == 24


def test_an_old_form_is_refused_with_both_values(facility: Facility) -> None:
    team = facility.pretraining
    form = {"kind": "H100", f"entitlement-{team.pk}": "20", f"version-{team.pk}": "1"}
    answer = signed_in(facility.lead).post("/quotas/Vision/", form)

    assert answer.status_code == 409
    assert "Somebody else saved meanwhile" in answer.content.decode()


@pytest.mark.parametrize("text", ["-1", "1.5", "NaN", "", "9999999", "8 devices", "\u0663"])
def test_a_quota_that_is_no_count_is_an_error_at_its_field(facility: Facility, text: str) -> None:
    team = facility.pretraining
    form = {"kind": "H100", f"entitlement-{team.pk}": text, f"version-{team.pk}": "2"}
    answer = signed_in(facility.lead).post("/quotas/Vision/", form)

    assert answer.status_code == 400
    assert f"error-entitlement-{team.pk}" in answer.content.decode()


@pytest.mark.parametrize("who", ["member", "viewer", "operator", "auditor"])
def test_a_quota_is_not_changed_by_who_does_not_lead(facility: Facility, who: str) -> None:
    team = facility.pretraining
    form = {"kind": "H100", f"entitlement-{team.pk}": "1", f"version-{team.pk}": "2"}

    assert signed_in(getattr(facility, who)).post("/quotas/Vision/", form).status_code == 403


@pytest.mark.parametrize("who", ["member", "lead", "viewer", "auditor"])
def test_nodes_and_reservations_are_for_operators_to_change(facility: Facility, who: str) -> None:
    client = signed_in(getattr(facility, who))

    assert client.post(f"/nodes/{facility.nodes[0].name}/", {"action": "drain"}).status_code == 403
    assert client.get("/reservations/new/").status_code == 403


def test_an_operator_reserves_and_cancels(facility: Facility) -> None:
    client = signed_in(facility.operator)
    form = {
        "name": "RSV-9",
        "starts_at": "2099-01-01T08:00",
        "ends_at": "2099-01-02T08:00",
        "accelerator_type": "H100",
        "n_devices": "8",
        "teams": ["Speech"],
    }
    made = client.post("/reservations/new/", form)
    page = client.get(made["Location"])
    cancelled = client.post(f"{made['Location']}cancel/", {"reason": "not needed"}, follow=True)

    assert "RSV-9" in page.content.decode()
    assert "Cancelled" in cancelled.content.decode()


def test_the_same_form_sent_twice_makes_one_job(facility: Facility) -> None:
    client = signed_in(facility.member)
    form = {"name": "twice", "team": "pretraining", "command": "true", "key": "k1", "action": "submit"}
    first, second = client.post("/jobs/new/", form), client.post("/jobs/new/", form)

    assert first["Location"] == second["Location"]
    assert Job.objects.filter(name="twice").count() == 1


def test_json_is_submitted_as_it_is(facility: Facility) -> None:
    spec = {
        "name": "by-json",
        "team": "pretraining",
        "replicas": 2,
        "devices": 1,
        "script": "#!/bin/sh\ntrue\n",
    }
    signed_in(facility.member).post("/jobs/new/", {"json": json.dumps(spec), "action": "submit"})

    assert Job.objects.get(name="by-json").n_devices == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"name": NaN}', "must be a finite number"),
        ("[]", "must be one job"),
        ('{"name": "x", "name": "y"}', "twice"),
        ('{"name": "x", "team": "pretraining", "replicas": true}', "replicas"),
        ('{"name": "x", "team": "pretraining", "colour": 1}', "colour"),
        ("{", "can not be read"),
    ],
)
def test_json_that_makes_no_sense_is_told_what_is_wrong(facility: Facility, text: str, named: str) -> None:
    answer = signed_in(facility.member).post("/jobs/new/", {"json": text, "action": "submit"})

    assert answer.status_code == 400
    assert named in answer.content.decode()


def test_the_form_can_be_filled_from_json(facility: Facility) -> None:
    spec = {
        "name": "n",
        "team": "pretraining",
        "time_limit": 5400,
        "command": ["a b", "c"],
        "accelerators": ["H100"],
    }
    answer = signed_in(facility.member).post("/jobs/new/", {"json": json.dumps(spec), "action": "fill"})

    assert answer.context["v"]["time_limit_h"] == "1.5"
    assert answer.context["v"]["command"] == "'a b' c"
    assert 'value="H100" checked' in answer.content.decode()


def test_a_token_is_revoked_by_its_owner_alone(facility: Facility) -> None:
    signed_in(facility.member).post("/me/tokens/", {"name": "laptop", "scope": "read", "days": "30"})
    token = Token.objects.get(user=facility.member)

    assert signed_in(facility.stranger).post(f"/me/tokens/{token.pk}/revoke/").status_code == 404
    assert signed_in(facility.member).post(f"/me/tokens/{token.pk}/revoke/").status_code == 302
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_the_style_guide_is_for_staff(facility: Facility) -> None:
    assert signed_in(facility.viewer).get("/styleguide/").status_code == 404
    assert signed_in(facility.admin).get("/styleguide/").status_code == 200


def test_a_very_long_queue_is_counted_by_the_pass_and_not_by_the_page(facility: Facility) -> None:
    facility.last_pass.n_queued = 30_000
    facility.last_pass.summary = {
        "waiting": {"power": {"jobs": 29_990, "devices": 60_000.5}, "held": {"jobs": 10, "devices": 10}}
    }
    facility.last_pass.save()
    page = signed_in(facility.viewer).get("/queue/")

    assert page.context["waiting"].n_jobs == sum(n for _, n, _ in page.context["tiles"]) == 29_990
    assert signed_in(facility.viewer).get("/").context["waiting"].n_jobs == 29_990


def test_the_same_form_sent_twice_makes_one_job_and_an_edited_one_another(facility: Facility) -> None:
    client = signed_in(facility.member)
    form = {"action": "submit", "key": "k1", "team": "pretraining", "command": "true", "name": "one"}
    first = [client.post("/jobs/new/", form | {"replicas": "1", "devices": "1"}) for _ in range(2)]
    other = client.post("/jobs/new/", form | {"replicas": "1", "devices": "1", "name": "two"})

    assert {answer.status_code for answer in (*first, other)} == {302}
    assert first[0].headers["Location"] == first[1].headers["Location"] != other.headers["Location"]
    assert Job.objects.filter(name__in=("one", "two"), user=facility.member).count() == 2


@pytest.mark.parametrize(("who", "sees"), [("viewer", False), ("auditor", True), ("operator", True)])
def test_free_text_about_a_job_is_for_its_team(facility: Facility, who: str, sees: bool) -> None:
    text = "command not found: /secret/run"
    Job.objects.filter(pk=facility.failed.pk).update(end_message=text)
    Job.objects.filter(pk=facility.held.pk).update(held_reason=text)
    Job.objects.filter(pk=facility.running.pk).update(stop_reason=text, desired_stop_at=clock.now())
    Job.objects.filter(pk=facility.waiting.pk).update(retry_at=clock.now(), n_start_failures=1)
    Allocation.objects.filter(job__in=[facility.failed, facility.running]).update(observed_message=text)
    client, shown = signed_in(getattr(facility, who)), {}
    for job in (facility.failed, facility.held, facility.running, facility.waiting):
        for name in ("job", "job-body", "job-head", "job-attempts"):
            shown[f"{name} {job.name}"] = client.get(reverse(f"dashboard:{name}", args=[job.pk]))
    for tab in ("queued", "running", "held", "finished"):
        shown[tab] = client.get(f"/queue/?state={tab}")
        shown[f"{tab} csv"] = client.get(f"/queue/?state={tab}&format=csv")
    for node in facility.nodes:
        shown[node.name] = client.get(reverse("dashboard:node", args=[node.name]))
    shown["search"] = client.get(f"/search/?q={facility.failed.name}")

    found = {name for name, answer in shown.items() if b"/secret/" in answer.getvalue()}
    if sees:
        assert {"finished", "held", f"job {facility.failed.name}", f"job {facility.running.name}"} <= found
    else:
        assert found == set()


def test_json_that_is_nested_too_deep_is_a_fault_of_the_form(facility: Facility) -> None:
    answer = signed_in(facility.member).post("/jobs/new/", {"json": "[" * 50_000})

    assert answer.status_code == 400


def member_form(facility: Facility, **cells: str) -> dict[str, str]:
    facility.pretraining.refresh_from_db()
    return {"part": "members", "kind": "H100", "version": str(facility.pretraining.version), **cells}


def test_a_lead_says_how_much_one_member_may_have_and_other_types_stay_as_they_are(
    facility: Facility,
) -> None:
    team, max_ = facility.pretraining, facility.member
    other = MemberLimitEntry("devices", 3, None, "cpu-slot")
    team.refresh_from_db()
    teams.set_member_limits(team=team, entries=[other], actor=None, at=clock.now(), version=team.version)
    form = member_form(
        facility,
        **{"devices-all": "8", "waiting_jobs-all": "no limit", f"devices-{max_.pk}": "No limit"},
        **{f"running_jobs-{max_.pk}": "2"},
    )
    answer = signed_in(facility.lead).post("/quotas/pretraining/", form)

    assert answer.status_code == 302
    assert {teams.entry_of(limit) for limit in limits_of(team)} == {
        other,
        MemberLimitEntry("devices", 8, None, "H100"),
        MemberLimitEntry("devices", None, "max", "H100"),
        MemberLimitEntry("running_jobs", 2, "max"),
    }
    page = signed_in(facility.viewer).get("/quotas/pretraining/?kind=H100").content.decode()
    assert "every member, H100 at most no limit → 8" in page
    assert "max, H100 at most as every member → no limit" in page
    assert "quota-input" not in page


@pytest.mark.parametrize("text", ["-1", "1.5", "NaN", "9999999", "8 devices", "\u0663", "none"])
def test_a_limit_of_members_that_is_no_count_is_an_error_at_its_field(facility: Facility, text: str) -> None:
    name = f"devices-{facility.member.pk}"
    form = member_form(facility, **{name: text, "running_jobs-all": "4"})
    answer = signed_in(facility.lead).post("/quotas/pretraining/", form)

    assert answer.status_code == 400
    assert f"error-{name}" in answer.content.decode()
    assert not limits_of(facility.pretraining)


def test_an_old_form_of_members_is_refused_with_both_values(facility: Facility) -> None:
    form = member_form(facility, **{"running_jobs-all": "4"}) | {"version": "1"}
    answer = signed_in(facility.lead).post("/quotas/pretraining/", form)

    assert answer.status_code == 409
    assert "Somebody else saved meanwhile" in answer.content.decode()


@pytest.mark.parametrize("who", ["member", "viewer", "operator", "auditor"])
def test_limits_of_members_are_not_changed_by_who_does_not_lead(facility: Facility, who: str) -> None:
    form = member_form(facility, **{"running_jobs-all": "4"})

    assert signed_in(getattr(facility, who)).post("/quotas/pretraining/", form).status_code == 403


def test_members_are_shown_with_what_they_have_of_what_they_may(facility: Facility) -> None:
    team = facility.pretraining
    team.refresh_from_db()
    teams.set_member_limits(
        team=team,
        entries=[MemberLimitEntry("running_jobs", 7), MemberLimitEntry("waiting_jobs", 41)],
        actor=None,
        at=clock.now(),
        version=team.version,
    )
    use = next(use for use in board.use_by_member(team) if use.user == facility.member)
    page = re.sub(
        r"<[^>]+>|\s+", " ", signed_in(facility.member).get("/quotas/pretraining/").content.decode()
    )
    said = re.sub(r"\s+", " ", page)

    assert min(use.n_running, use.n_waiting, use.devices["H100"]) > 0
    assert f"{use.n_running} of 7" in said
    assert f"{use.n_waiting} of 41" in said


def test_a_team_with_sub_teams_has_no_members_with_jobs_of_its_own(facility: Facility) -> None:
    lead = signed_in(facility.lead)
    assert "What one member may have" not in lead.get("/quotas/Vision/").content.decode()
    assert lead.post("/quotas/Vision/", member_form(facility)).status_code == 404


def test_however_many_members_a_team_has_its_page_asks_as_often(facility: Facility) -> None:
    viewer = signed_in(facility.viewer)
    with CaptureQueriesContext(connection) as before:
        viewer.get("/quotas/pretraining/")
    for number in range(12):
        one = teams.create_user(username=f"m{number}", password=None, actor=None, at=clock.now())
        teams.set_member(team_id=facility.pretraining.pk, user=one, role="member", actor=None, at=clock.now())
    with CaptureQueriesContext(connection) as after:
        viewer.get("/quotas/pretraining/")

    assert len(after) == len(before)


# The policy --------------------------------------------------------------------------------------------------------


def _form(**changes: str) -> dict[str, str]:
    stored = policy_setting.in_force()
    values = {
        name: value for name, value in stored.values.items() if value is not None and value is not False
    }
    return {"version": str(stored.version), **{name: str(value) for name, value in values.items()}, **changes}


def test_an_administrator_sets_the_policy_on_its_page(facility: Facility) -> None:
    client = signed_in(facility.admin)
    filled = client.get("/policy/?from=turnaround").content.decode()
    assert 'name="starving_by_width" type="text" value="0.8"' in filled

    form = _form(order="shortest", starving_s="43200", starving_by_width="0.5", reason="short jobs first")
    assert client.post("/policy/", form).status_code == 302
    values = policy_setting.in_force().values
    assert (values["order"], values["starving_s"], values["starving_by_width"]) == ("shortest", 43200.0, 0.5)
    page = client.get("/policy/").content.decode()
    assert "short jobs first" in page
    assert "Passed for at most, s 86400 → 43200" in page
    assert values["preemption"] is True


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("starving_s", "-1", "must be at least 0"),
        ("starving_s", "a day", "must be a number"),
        ("starving_by_width", "2", "must be at most 1"),
        ("starving_by_width", "nan", "must be a finite number"),
        ("backfill_depth", "1.5", "must be a whole number"),
        ("shield_s", "", "must not be empty"),
    ],
)
def test_a_field_of_the_policy_that_is_not_right_says_so(
    facility: Facility, field: str, typed: str, said: str
) -> None:
    answer = signed_in(facility.admin).post("/policy/", _form(**{field: typed}))

    assert answer.status_code == 400
    assert f'id="error-{field}"' in answer.content.decode()
    assert said in answer.content.decode()
    assert policy_setting.in_force().version == 1


def test_a_policy_that_somebody_else_set_meanwhile_is_not_overwritten(facility: Facility) -> None:
    client, form = signed_in(facility.admin), _form(backfill_depth="3")
    client.post("/policy/", _form(backfill_depth="7"))

    answer = client.post("/policy/", form)
    assert answer.status_code == 409
    assert 'name="backfill_depth" type="text" value="7"' in answer.content.decode()


@pytest.mark.parametrize("who", ["operator", "auditor", "lead", "member", "viewer"])
def test_only_an_administrator_sets_the_policy(facility: Facility, who: str) -> None:
    client = signed_in(getattr(facility, who))

    assert "Administrators set it" in client.get("/policy/").content.decode()
    assert client.post("/policy/", _form(backfill_depth="1")).status_code == 403
    assert policy_setting.in_force().name == "default"


# Where the hours went --------------------------------------------------------------------------------------------


def test_every_bucket_of_the_ledger_is_in_one_group_and_has_a_word() -> None:
    grouped = [bucket for group in words.LOSS_GROUPS for bucket in group.buckets]

    assert sorted(grouped) == sorted(BUCKETS)
    assert set(words.BUCKETS) == set(BUCKETS)


def _counted(facility: Facility) -> datetime:
    """A quarter of an hour and more of what the facility does, counted up to now."""
    until = clock.now()
    for at in (until - timedelta(minutes=40), until - timedelta(minutes=5)):
        with transaction.atomic():
            losses.count(take_snapshot(at), (), (), at=at)
    return until


def test_groups_sum_to_the_capacity_and_the_file_to_the_page(facility: Facility) -> None:
    _counted(facility)
    answer = signed_in(facility.viewer).get("/utilization/")
    groups, whole = answer.context["groups"], answer.context["whole"]

    assert whole.capacity_device_s == 35 * 60 * Device.objects.count()
    assert sum(row.device_s for row in groups) == pytest.approx(whole.capacity_device_s)
    assert sum(row.share for row in groups) == pytest.approx(1)
    assert all(
        sum(bucket.device_s for bucket in row.buckets) == pytest.approx(row.device_s) for row in groups
    )
    text = signed_in(facility.viewer).get("/utilization/?format=csv").content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sum(float(row["capacity_device_s"]) for row in rows) == pytest.approx(whole.capacity_device_s)
    assert sum(float(row[one]) for row in rows for one in BUCKETS) == pytest.approx(whole.capacity_device_s)
    figure = answer.context["hours_figure"]["figure"]["data"]
    assert all(trace["stackgroup"] == "hours" for trace in figure)
    overview = signed_in(facility.viewer).get("/")
    assert overview.context["capacity_device_s"] == whole.capacity_device_s


def test_what_a_team_held_is_shown_of_it_alone(facility: Facility) -> None:
    _counted(facility)
    client = signed_in(facility.viewer)
    page = client.get("/utilization/", {"team": facility.running.team.name})
    held = next(
        row
        for row in client.get("/utilization/").context["team_rows"]
        if row.name == facility.running.team.name
    )

    assert page.context["whole"].capacity_device_s == pytest.approx(held.held_s)
    assert [row.name for row in page.context["team_rows"]] == [facility.running.team.name]
    assert client.get("/utilization/", {"team": "no such team"}).status_code == 404


@pytest.mark.parametrize("query", ["p=1y", "month=2026-13", "month=1999-01", "kind=%00"])
def test_a_period_that_makes_no_sense_shows_no_hours(facility: Facility, query: str) -> None:
    _counted(facility)
    answer = signed_in(facility.viewer).get(f"/utilization/?{query}")

    assert answer.status_code == 200
    assert answer.context["form"].errors
    assert "groups" not in answer.context


def test_who_lets_devices_lie_is_named_and_the_teams_sum_to_the_figure(facility: Facility) -> None:
    at = clock.now()
    claims = DeviceClaim.objects.filter(
        released_at=None, share=1, placement__allocation__job=facility.running
    ).select_related("device")
    Allocation.objects.filter(job=facility.running).update(observed_started_at=at - timedelta(hours=2))
    for claim in claims:
        NodeReading.objects.create(
            node_id=claim.device.node_id,
            index=claim.device.index,
            at=at,
            draw_w=90,
            source="dcgm",
            quiet_since_at=at - timedelta(hours=1),
        )
    answer = signed_in(facility.operator).get("/utilization/")
    if "idle" not in answer.context:
        _counted(facility)
        answer = signed_in(facility.operator).get("/utilization/")

    assert [(row.name, row.n_idle) for row in answer.context["idle"]] == [
        (facility.running.name, len(claims))
    ]
    assert sum(n for _, n, _ in answer.context["idle_teams"]) == answer.context["n_idle"] == len(claims)


def test_the_map_of_the_halls_shows_every_rack_once(facility: Facility) -> None:
    found = signed_in(facility.viewer).get("/parts/halls/").context["hall_map"]

    n_places = Domain.objects.filter(power_nodes__isnull=False).distinct().count()
    assert found is not None
    assert sum(len(line.places) for hall in found.halls for line in hall.lines) == found.n_places == n_places


# What would start a job sooner ------------------------------------------------------------------------------------


def test_a_way_is_shown_applied_once_and_void_when_the_job_changed(facility: Facility) -> None:
    made = jobs.submit_job(
        request=request("wide", facility.running.team.name, replicas=6, devices=1),
        actor=facility.member,
        at=clock.now(),
    )
    job_id = made.pk
    client = signed_in(facility.member)
    page = f"/jobs/{job_id}/what-if/"
    answer = client.get(page)
    assert answer.status_code == 200
    assert "What would start it sooner" in answer.content.decode()
    part = client.get(page, headers={"HX-Request": "true"})
    assert "<html" not in part.content.decode()
    for who in (facility.stranger, facility.viewer):
        assert signed_in(who).get(page).status_code in (403, 404)
        assert signed_in(who).post(f"{page}apply/", {"way": "x"}).status_code in (403, 404)
    forged = client.post(f"{page}apply/", {"way": "x"}, follow=True)
    assert [message.level_tag for message in forged.context["messages"]] == ["error"]
    token = signing.dumps({"replicas": 3, "flexibility": 4}, salt=_way_salt(Job.objects.get(pk=job_id)))
    assert client.post(f"{page}apply/", {"way": token}).status_code == 302
    changed = Job.objects.get(pk=job_id)
    assert (changed.spec["replicas"], changed.spec["flexibility"]) == (3, 4)
    again = client.post(f"{page}apply/", {"way": token}, follow=True)  # it was worked out for another request
    assert [message.level_tag for message in again.context["messages"]] == ["success", "error"]


# Reservations ------------------------------------------------------------------------------------------------------


def test_a_slot_is_found_and_its_form_is_filled(facility: Facility) -> None:
    kind = facility.nodes[0].accelerator_type.name
    client = signed_in(facility.operator)
    answer = client.get("/reservations/slots/", {"accelerator_type": kind, "n_devices": "8", "hours": "2"})
    assert answer.status_code == 200
    offers = answer.context["found"].offers
    assert len(offers) == 3
    link = re.search(r'href="(/reservations/new/\?[^"]+)"', answer.content.decode())
    assert link is not None
    form = client.get(link[1].replace("&amp;", "&")).content.decode()
    assert 'name="n_devices" type="text" value="8"' in form
    assert "is-invalid" not in form
    assert 'class="error"' not in form
    viewer = signed_in(facility.viewer).get(
        "/reservations/slots/", {"accelerator_type": kind, "n_devices": "8", "hours": "2"}
    )
    assert "Reserve this" not in viewer.content.decode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_devices": "-1"},
        {"hours": "nan"},
        {"accelerator_type": "no"},
        {"latest": "2020-01-01T00:00"},
        {"earliest": "9999-12-31T20:00"},
    ],
)
def test_a_slot_that_makes_no_sense_is_answered_beside_the_form(
    facility: Facility, wrong: dict[str, str]
) -> None:
    said = {
        "accelerator_type": facility.nodes[0].accelerator_type.name,
        "n_devices": "8",
        "hours": "2",
        **wrong,
    }
    answer = signed_in(facility.viewer).get("/reservations/slots/", said)
    assert answer.status_code == 400
    assert "found" not in answer.context


def test_the_chart_of_promises_is_one_that_plotly_knows_and_holds_no_markup(facility: Facility) -> None:
    figure = signed_in(facility.viewer).get("/reservations/").context["gantt"]
    text = re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(figure))
    go.Figure(**json.loads(text))
    assert "<" not in text
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert sum(len(trace["y"]) for trace in bars) > 0


def test_a_reservation_of_a_type_without_nodes_has_its_lane(facility: Facility) -> None:
    inventory.create_accelerator_type(name="B200", tdp_w=1000, actor=None, at=clock.now())
    draft = reservations.Draft(
        name="RSV-B200",
        starts_at=clock.now() + timedelta(hours=1),
        ends_at=clock.now() + timedelta(hours=9),
        nodes=("l01-n01",),
        reason="new devices",
    )
    made = reservations.create_reservation(draft=draft, actor=None, at=clock.now())
    made.nodes.clear()
    type(made).objects.filter(pk=made.pk).update(
        accelerator_type=AcceleratorType.objects.get(name="B200"), n_devices=8
    )

    page = signed_in(facility.viewer).get("/reservations/")

    assert page.status_code == 200
    assert "RSV-B200" in page.content.decode()


def test_the_chart_of_hours_reads_its_own_period_alone(
    facility: Facility, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[datetime, datetime]] = []
    real = scheduling.losses

    def watched(**wanted: Any) -> Any:
        asked.append((wanted["since"], wanted["until"]))
        return real(**wanted)

    monkeypatch.setattr(scheduling, "losses", watched)
    client = signed_in(facility.viewer)
    chart = client.get("/utilization/charts/hours.json?p=30d").json()
    client.get("/utilization/?p=30d")

    lengths = [until - since for since, until in asked]
    assert lengths[0] < timedelta(days=31) < timedelta(days=59) < lengths[1]
    assert chart["layout"]["xaxis"]["range"]


def test_a_recall_by_who_leads_both_sides_keeps_the_notice_and_says_so(facility: Facility) -> None:
    at = clock.now()
    loan = loans.propose_loan(
        lender=facility.speech,
        borrower=facility.vision,
        accelerator_type="H100",
        n_devices=2,
        start_at=at,
        end_at=at + timedelta(days=3),
        notice_s=7200.0,
        actor=facility.admin,
        at=at,
    )
    client = signed_in(facility.admin)
    path, team = f"/quotas/loans/{loan.pk}/", {"team": facility.speech.name, "wish": "end"}

    page = client.post(path, team, follow=True)
    loan.refresh_from_db()

    assert f"once the notice of {formats.duration(7200.0)} is over" in page.content.decode()
    assert timedelta(hours=1, minutes=59) < loan.end_at - clock.now() <= timedelta(hours=2)
    client.post(path, {**team, "team": facility.vision.name})
    loan.refresh_from_db()
    assert loan.end_at <= clock.now()


@pytest.mark.parametrize(
    ("sort", "name", "lines"), [("halls", "Hall A", ["A1-01"]), ("spines", "SG-1", ["L01", "L02"])]
)
def test_a_hall_and_a_spine_group_are_shown_node_by_node(
    facility: Facility, sort: str, name: str, lines: list[str]
) -> None:
    page = signed_in(facility.viewer).get(f"/nodes/{sort}/{name}/")

    assert [leaf.name for _, leaf in page.context["leaves"]] == lines
    facts = {key: page.context[key] for key in ("n_nodes", "n_devices", "n_out")}
    assert facts == {"n_nodes": 8, "n_devices": 64, "n_out": 1}
    assert (
        page.context["claimed"]
        == Device.objects.filter(node__name__startswith="l0", claimed_share__gt=0).count()
    )
    assert f'href="/nodes/{facility.nodes[7].name}/"' in page.content.decode()


@pytest.mark.parametrize("path", ["halls/SG-1", "spines/Hall%20A", "halls/nowhere", "halls/a%00b"])
def test_what_is_no_hall_or_spine_group_has_no_page(facility: Facility, path: str) -> None:
    assert signed_in(facility.viewer).get(f"/nodes/{path}/").status_code == 404


def test_maps_lead_to_the_pages_of_their_halls_and_groups(facility: Facility) -> None:
    client = signed_in(facility.viewer)

    assert 'href="/nodes/halls/Hall%20A/"' in client.get("/parts/halls/").content.decode()
    assert 'href="/nodes/spines/SG-1/"' in client.get("/nodes/").content.decode()

"""Pages of events that are over, of programmes, and the audit trail of one event."""

import csv
import hashlib
import json
from datetime import timedelta

import plotly.graph_objects
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dashboard.audit_file import BEGIN
from apps.dashboard.tests.facility import Facility, signed_in
from apps.dashboard.tests.power_scene import PowerScene, build_power_scene
from apps.power.models import DemandResponseEvent, Programme, SettlementReport
from apps.teams import services as teams
from apps.teams.models import FacilityRole

EVENTS, PROGRAMMES = "/power/events/", "/power/programmes/"


@pytest.fixture
def scene(facility: Facility) -> PowerScene:
    return build_power_scene(facility, at=clock.now())


def text_of(answer) -> str:
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()


def report_path(event: DemandResponseEvent) -> str:
    return f"{EVENTS}{event.pk}/report/"


def test_the_history_equals_the_lists_behind_its_numbers(facility, scene):
    viewer = signed_in(facility.viewer)
    whole = viewer.get(EVENTS).context
    assert whole["sums"]["n"] == 3
    assert sum(tile.n for tile in whole["tiles"]) == 3
    for tile in whole["tiles"]:
        behind = viewer.get(EVENTS, {"outcome": tile.key}).context
        assert len(behind["found"].rows) == behind["sums"]["n"] == tile.n
    latest = SettlementReport.objects.get(event=scene.settled, number=2)
    drill = SettlementReport.objects.get(event=scene.drill)
    assert whole["sums"]["net"] == latest.net + drill.net
    assert whole["sums"]["credited_wh"] == latest.credited_wh + drill.credited_wh


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ({"kind": "drill"}, {"drill"}),
        ({"kind": "event"}, {"settled", "unsettled"}),
        ({"domain": "Hall A", "programme": "Summer peak"}, {"settled", "drill", "unsettled"}),
        ({"domain": "Northgate"}, set()),
        ({"outcome": "open"}, {"unsettled"}),
        ({"outcome": "partial"}, {"settled"}),
    ],
)
def test_filters_narrow_the_history(facility, scene, question, wanted):
    rows = signed_in(facility.viewer).get(EVENTS, question).context["found"].rows

    assert {one.pk for one in rows} == {getattr(scene, name).pk for name in wanted}


def test_the_history_of_a_time(facility, scene):
    day = timedelta(days=1)
    viewer, start_at = signed_in(facility.viewer), scene.drill.start_at
    since = viewer.get(EVENTS, {"begin": start_at.date().isoformat()}).context["found"].rows
    until = viewer.get(EVENTS, {"end": (start_at - 2 * day).date().isoformat()}).context["found"].rows

    assert scene.drill.pk in {one.pk for one in since}
    assert [one.pk for one in until] == [scene.unsettled.pk]
    wrong = viewer.get(EVENTS, {"begin": "soon"})
    assert wrong.status_code == 400
    assert b"Enter a valid date" in wrong.content


def test_the_report_tells_all_of_it(facility, scene):
    report = SettlementReport.objects.get(event=scene.settled, number=2)
    page = text_of(signed_in(facility.viewer).get(report_path(scene.settled)))

    for said in (
        "Summer peak",
        "Hall A",
        "olga",
        "ab" * 32,
        report.digest,
        facility.running.name,
        "Partly met",
    ):
        assert said in page
    assert f"{report.net:.2f}".replace("-", "\u2212") in page
    assert page.count("estimated</span>") == 1
    assert "3 of 12" not in page  # eight of twelve are kept but for the one that is not proved
    assert "7 of 12 intervals kept" in page
    context = signed_in(facility.viewer).get(report_path(scene.settled)).context
    figure = json.loads(json.dumps(context["figure"]).replace("var(--sy-", "#").replace(")", ""))
    for trace in figure["data"]:
        trace["line"]["color"] = "red"
    for shape in figure["layout"]["shapes"]:
        shape["fillcolor"] = "red"
    plotly.graph_objects.Figure(figure)
    assert len(context["figure"]["layout"]["shapes"]) == 1


def test_an_older_version_is_still_there_and_says_so(facility, scene):
    viewer = signed_in(facility.viewer)
    old = text_of(viewer.get(report_path(scene.settled) + "?version=1"))

    assert "This is version 1" in old
    assert viewer.get(report_path(scene.settled) + "?version=9").status_code == 404
    assert viewer.get(f"{EVENTS}{10**20}/report/").status_code == 404


def test_the_file_has_the_numbers_of_the_page(facility, scene):
    report = SettlementReport.objects.get(event=scene.settled, number=2)
    answer = signed_in(facility.viewer).get(report_path(scene.settled) + "?format=csv")
    fields = dict(row for row in csv.reader(answer.content.decode().splitlines()) if len(row) == 2)

    assert fields["net"] == str(report.net)
    assert fields["credited_wh"] == str(report.credited_wh)


def test_a_drill_is_told_as_one(facility, scene):
    page = text_of(signed_in(facility.viewer).get(report_path(scene.drill)))

    assert "drill</span>" in page
    assert "0.00 USD" in page
    assert SettlementReport.objects.get(event=scene.drill).lost_device_h == 0  # nothing was done to its job


def test_only_operators_settle_by_the_page(facility, scene):
    path = f"{EVENTS}{scene.unsettled.pk}/settle/"
    for who in (facility.viewer, facility.member, facility.auditor):
        assert "Settle now" not in text_of(signed_in(who).get(report_path(scene.unsettled)))
        assert signed_in(who).post(path).status_code == 403
    assert not SettlementReport.objects.filter(event=scene.unsettled).exists()

    operator = signed_in(facility.operator)
    assert "Settle now" in text_of(operator.get(report_path(scene.unsettled)))
    page = operator.post(path, {"reason": "no meter that day"}, follow=True)
    assert "is settled" in text_of(page)
    assert SettlementReport.objects.get(event=scene.unsettled).outcome == "missed"


def form_of(client: Client, path: str, **changes: str) -> dict[str, str]:
    """The form as it stands, sent back with changes."""
    form = client.get(path).context["form"]
    said = {name: form[name].value() for name in form.fields}
    this = client.get(path).context["this"]
    said |= {"version": this.version if this else ""}
    return {
        name: str(value) for name, value in said.items() if value is not False and value not in (None, "")
    } | changes


def test_who_may_not_edit_a_programme_sees_it_and_no_form(facility, scene):
    path = f"{PROGRAMMES}{scene.programme.pk}/"
    for who in (facility.viewer, facility.operator, facility.auditor):
        client = signed_in(who)
        assert "Write a programme" not in text_of(client.get(PROGRAMMES))
        assert '<form method="post" data-guard' not in text_of(client.get(path))
        assert client.post(path, {"name": "mine"}).status_code == 403
        assert client.get(f"{PROGRAMMES}new/").status_code == 403
    assert Programme.objects.get().name == "Summer peak"


def test_a_power_admin_changes_a_programme(facility, scene):
    path, admin = f"{PROGRAMMES}{scene.programme.pk}/", signed_in(facility.admin)
    saved = admin.post(path, form_of(admin, path, price_per_kwh="0.55", reason="new contract"), follow=True)

    assert "Summer peak is saved" in text_of(saved)
    row = Programme.objects.get()
    assert (str(row.price_per_kwh), row.version) == ("0.550000", 2)
    assert "price_per_kwh" in text_of(admin.get(path))
    # What was announced and settled before stays as it was.
    assert SettlementReport.objects.filter(document__terms__price_per_kwh="0.550000").count() == 0


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_saved(facility, scene):
    path, admin = f"{PROGRAMMES}{scene.programme.pk}/", signed_in(facility.admin)
    for name, value in (
        ("ramp_s", "9000"),
        ("time_zone", "Mars"),
        ("tolerance", "2"),
        ("price_per_kwh", "-1"),
    ):
        answer = admin.post(path, form_of(admin, path, **{name: value}))
        assert answer.status_code in (400, 409)
        assert f'id="error-{name}"' in answer.content.decode(), name
    assert Programme.objects.get().version == 1


def test_two_people_who_save_at_once_are_told(facility, scene):
    path, admin = f"{PROGRAMMES}{scene.programme.pk}/", signed_in(facility.admin)
    late = form_of(admin, path, price_per_kwh="0.60")
    admin.post(path, form_of(admin, path, price_per_kwh="0.55"))
    answer = admin.post(path, late)

    assert answer.status_code == 409
    assert "what is stored now" in answer.content.decode()
    assert str(Programme.objects.get().price_per_kwh) == "0.550000"


def test_an_emergency_policy_needs_a_second_person(facility, scene):
    path = f"{PROGRAMMES}{scene.programme.pk}/"
    first = signed_in(facility.admin)
    other = teams.create_user(
        username="pat", password=None, actor=None, at=clock.now(), facility_role=FacilityRole.POWER_ADMIN
    )
    # The scene's first administrator asked for caps already; that waits.
    asked = text_of(first.get(path))
    assert "waits for a second person" in asked
    assert "somebody else has to approve" in asked
    first.post(path, form_of(first, path, emergency_policy="caps"))
    assert Programme.objects.get().emergency_policy == "none"

    second = signed_in(other)
    assert "Choose the same below to approve it" in text_of(second.get(path))
    second.post(path, form_of(second, path, emergency_policy="caps"))
    row = Programme.objects.get()
    assert (row.emergency_policy, row.emergency_policy_by) == ("caps", other)
    assert "approved by pat" in text_of(first.get(path))


def test_a_new_programme(facility, scene):
    admin = signed_in(facility.admin)
    new = form_of(admin, f"{PROGRAMMES}new/")
    numbers = {"notice_s": "600", "ramp_s": "600", "min_duration_s": "900", "max_duration_s": "7200"}
    new |= {"name": "Winter", "target_kind": "limit_to", "baseline_method": "10_of_10", "interval_s": "900"}
    admin.post(f"{PROGRAMMES}new/", new | numbers)

    assert Programme.objects.get(name="Winter").target_kind == "limit_to"
    taken = admin.post(f"{PROGRAMMES}new/", new | numbers)
    assert (taken.status_code, b"is taken" in taken.content) == (409, True)


def test_the_audit_trail_of_one_event(facility, scene):
    auditor = signed_in(facility.auditor)
    question = {"of": "demand_response", "id": scene.settled.pk}
    rows = auditor.get("/audit/", question).context["found"].rows
    kinds = [row.kind for row in reversed(rows)]

    assert kinds == [
        "demand_response.announced",
        "curtailment.previewed",
        "curtailment.committed",
        "demand_response.settled",
        "demand_response.settled",
    ]
    assert auditor.get("/audit/", {"of": "demand_response", "id": "x"}).context["found"].rows == []

    lines = _file(auditor, question | {"format": "jsonl"}).splitlines()
    chain = BEGIN
    for line, kind in zip(lines, kinds, strict=True):
        told = json.loads(line)
        said = told.pop("chain")
        chain = hashlib.sha256(
            (chain + json.dumps(told, ensure_ascii=False, sort_keys=True)).encode()
        ).hexdigest()
        assert (said, told["kind"]) == (chain, kind)
    table = list(csv.DictReader(_file(auditor, question | {"format": "csv"}).splitlines()))
    assert [row["kind"] for row in table] == kinds


def test_the_file_of_the_trail_has_what_its_reader_may_see(facility, scene):
    theirs = _file(signed_in(facility.stranger), {"format": "jsonl"})
    everything = _file(signed_in(facility.auditor), {"format": "jsonl"})

    assert "hunter2" not in theirs
    assert len(theirs.splitlines()) < len(everything.splitlines())


def _file(client: Client, question) -> str:
    answer = client.get("/audit/", question)
    assert answer.status_code == 200
    return b"".join(answer.streaming_content).decode()


@pytest.mark.parametrize("path", [EVENTS, "report", PROGRAMMES, "programme"])
def test_pages_read_little(facility, scene, path):
    paths = {"report": report_path(scene.settled), "programme": f"{PROGRAMMES}{scene.programme.pk}/"}
    viewer = signed_in(facility.viewer)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        answer = viewer.get(paths.get(path, path))

    assert len(captured) <= 16  # session and person, the frame, and its own
    assert len(answer.content) < 60_000

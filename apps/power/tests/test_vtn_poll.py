"""Listening to a VTN over HTTP: what its events become here, and what holds when it is silent, wrong or cut off."""

import logging
from datetime import timedelta

import pytest
from django.db import connections

from apps.core.errors import DomainError
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power import response_services
from apps.power.models import DemandResponseEvent, PowerLimit, PowerReading
from apps.power.openadr.tests.builders import (
    NOW,
    asking,
    event,
    interval,
    iso,
    payload,
)
from apps.power.openadr.tests.vtn import CLIENT_ID, SECRET, FakeVtn
from apps.power.openadr_models import VtnConnection, VtnEvent, VtnReport
from apps.power.tests.builders import draw, programme
from apps.power.vtn import poll, services
from apps.power.vtn.services import ConnectionDraft, ProgrammeMap, ResourceDraft
from apps.teams.tests.builders import person

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["3.0.1", "3.1.0"])
def vtn(request):
    with FakeVtn(request.param) as made:
        made.programs = [{"id": "p1", "programName": "Limits"}]
        yield made


@pytest.fixture
def hall():
    made = domain("hall", "hall")
    draw(made, 900e3, NOW)
    return made


@pytest.fixture
def limits(hall):
    return programme("limits", target_kind="limit_to", min_duration_s=900, max_duration_s=86_400)


def draft(vtn, **changes):
    usual = {
        "name": "utility",
        "base_url": vtn.url,
        "protocol": vtn.version,
        "client_id": CLIENT_ID,
        "client_secret": SECRET,
        "ven_name": "site",
        "domain": "hall",
        "is_enabled": True,
        "programmes": (ProgrammeMap(external_id="p1", programme="limits"),),
    }
    return ConnectionDraft(**{**usual, **changes})


def connect(vtn, **changes):
    return services.create_connection(draft=draft(vtn, **changes), actor=None, at=NOW - timedelta(minutes=10))


@pytest.fixture
def connection(vtn, limits):
    return connect(vtn)


def listen(connection, minutes=0.0):
    poll.poll(connection.pk, at=NOW + timedelta(minutes=minutes))
    connection.refresh_from_db()


def ours():
    return list(DemandResponseEvent.objects.order_by("start_at", "pk"))


def logged(kind):
    return Event.objects.filter(kind=kind).count()


def newer(raw, minute, **changes):
    return {**raw, "modificationDateTime": f"2026-07-01T11:{minute:02}:00.000Z", **changes}


def test_a_new_event_is_announced_in_watts_under_our_programme(vtn, connection):
    vtn.events = [event()]
    listen(connection)

    (made,) = ours()
    assert (made.source, made.target_kind, made.value) == ("openadr", "limit_to", 500e3)
    assert (made.start_at, made.end_at) == (NOW + timedelta(hours=1), NOW + timedelta(hours=2))
    assert (made.programme.name, made.domain.name, made.priority) == ("limits", "hall", 1)
    assert (made.notified_at, made.reference_w) == (NOW, pytest.approx(900e3))
    assert connection.listed_at == NOW
    assert connection.last_error == ""


def test_the_same_listing_again_changes_nothing(vtn, connection):
    vtn.events = [event()]
    for minute in range(4):
        listen(connection, minute)

    (made,) = ours()
    assert (made.version, logged("demand_response.announced"), logged("demand_response.revised")) == (1, 1, 0)


def test_a_newer_version_changes_the_event_in_place(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    vtn.events = [newer(event(), 5, intervals=[interval(payload("IMPORT_CAPACITY_LIMIT", 450))])]
    listen(connection, 5)

    (made,) = ours()
    assert (made.value, made.version, made.external_version) == (450e3, 2, 2)
    assert made.notified_at == NOW


def test_an_event_that_is_moved_is_moved(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    vtn.events = [newer(event(), 5, intervalPeriod={"start": "2026-07-01T18:00:00Z", "duration": "PT2H"})]
    listen(connection, 5)

    (made,) = ours()
    assert (made.start_at, made.end_at) == (NOW + timedelta(hours=6), NOW + timedelta(hours=8))
    assert made.cancelled_at is None


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_an_event_that_is_taken_back_is_cancelled_once(vtn, connection, how):
    vtn.events = [event()]
    listen(connection)
    vtn.events = [] if how == "deleted" else [newer(event(), 5, intervalPeriod={"start": "", "duration": ""})]
    for minute in (5, 6, 7):
        listen(connection, minute)

    (made,) = ours()
    assert (made.outcome, made.cancelled_at) == ("cancelled", NOW + timedelta(minutes=5))
    assert logged("demand_response.cancelled") == 1


def test_an_event_that_comes_back_is_another_one(vtn, connection):
    for minute, events in enumerate([[event()], [], [newer(event(), 30)], [newer(event(), 30)]]):
        vtn.events = events
        listen(connection, minute)

    first, second = ours()
    assert (first.outcome, second.outcome) == ("cancelled", "")
    assert (second.start_at, second.value) == (first.start_at, first.value)


def test_stretches_of_one_event_are_events_of_their_own_and_equal_ones_are_one(vtn, connection):
    values = (500, 500, 400, 300)
    vtn.events = [
        event(
            intervalPeriod={"start": "2026-07-01T13:00:00Z", "duration": "PT30M"},
            intervals=[
                interval(payload("IMPORT_CAPACITY_LIMIT", value), interval_id=at)
                for at, value in enumerate(values)
            ],
        )
    ]
    listen(connection)
    listen(connection, 1)

    assert [(one.value, one.end_at - one.start_at) for one in ours()] == [
        (500e3, timedelta(hours=1)),
        (400e3, timedelta(minutes=30)),
        (300e3, timedelta(minutes=30)),
    ]


def test_what_holds_until_further_notice_is_told_piece_by_piece(vtn, connection):
    vtn.events = [event(intervalPeriod={"start": "2026-07-01T13:00:00Z", "duration": "P9999Y"})]
    listen(connection)
    first, second = ours()
    listen(connection, 30 * 60)  # a day and six hours later
    third = ours()[2]

    assert first.end_at == second.start_at
    assert second.end_at == third.start_at
    assert {first.version, second.version} == {1}
    vtn.events = []
    listen(connection, 31 * 60)
    assert [one.outcome for one in ours()] == ["", "cancelled", "cancelled"]


def test_an_event_under_way_binds_from_when_it_is_heard(vtn, connection):
    vtn.events = [event(intervalPeriod={"start": "2026-07-01T11:00:00Z", "duration": "PT3H"})]
    listen(connection)
    listen(connection, 1)

    (made,) = ours()
    assert (made.start_at, made.end_at, made.version) == (NOW, NOW + timedelta(hours=2), 1)


def test_an_event_that_is_cut_short_ends(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    vtn.events = [newer(event(), 50, intervalPeriod={"start": "2026-07-01T13:00:00Z", "duration": "PT10M"})]
    listen(connection, 75)

    (made,) = ours()
    assert made.cancelled_at == NOW + timedelta(minutes=75)


# Silence and trouble.


def refuse(handler):
    return handler.say(503, {"title": "Down"})


def test_an_outage_cancels_nothing_and_what_is_known_begins(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    vtn.misbehave["/events"] = refuse
    for minute in (5, 30, 75):
        listen(connection, minute)

    (made,) = ours()
    assert (made.cancelled_at, made.version) == (None, 1)
    assert made.start_at < NOW + timedelta(minutes=75) < made.end_at
    assert (connection.n_failures, connection.listed_at) == (3, NOW)
    assert "503" in connection.last_error
    assert connection.silent_since_at == NOW
    assert logged("openadr.vtn_silent") == 1
    vtn.misbehave.clear()
    listen(connection, 76)
    assert (connection.n_failures, connection.last_error, connection.silent_since_at) == (0, "", None)
    assert logged("openadr.vtn_heard_again") == 1


def test_asking_again_waits_longer_after_each_failure(vtn, connection):
    vtn.misbehave["/programs"] = refuse
    pauses = []
    for _ in range(5):
        listen(connection)
        pauses.append((connection.next_poll_at - NOW).total_seconds())

    assert pauses == [60, 120, 240, 300, 300]
    assert poll.poll_due(at=NOW + timedelta(seconds=200)) == 0
    assert poll.poll_due(at=NOW + timedelta(seconds=300)) == 1


def test_from_a_page_that_is_missing_nothing_is_concluded(vtn, connection):
    vtn.events = [event(f"e{n}", intervalPeriod=hourly(n)) for n in range(4)]
    vtn.page = 2
    listen(connection)
    vtn.misbehave["/events"] = lambda handler: "skip=1" in handler.path and refuse(handler)
    vtn.events = vtn.events[:2]
    listen(connection, 1)

    assert [one.outcome for one in ours()] == [""] * 4
    assert connection.listed_at == NOW


def hourly(n):
    return {"start": iso(NOW + timedelta(hours=n + 1)), "duration": "PT1H"}


def test_silence_falls_back_to_the_subscribed_capacity_until_it_is_over(vtn, limits):
    made = connect(vtn, programmes=(ProgrammeMap(external_id="p1", programme="limits", has_fallback=True),))
    vtn.events = [
        event(),
        asking("IMPORT_CAPACITY_SUBSCRIPTION", 700, name="sub", units="KW",
               intervalPeriod={"start": "2026-07-01T11:00:00Z", "duration": "PT4H"}),
    ]  # fmt: skip
    listen(made)
    vtn.misbehave["/events"] = refuse
    listen(made, 90)  # e1 holds until 14:00
    assert len(ours()) == 1
    listen(made, 125)
    listen(made, 130)

    _, fallback = ours()
    assert (fallback.value, fallback.start_at) == (700e3, NOW + timedelta(minutes=125))
    vtn.misbehave.clear()
    listen(made, 140)
    fallback.refresh_from_db()
    assert fallback.cancelled_at == NOW + timedelta(minutes=140)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (asking("IMPORT_CAPACITY_LIMIT", 500_000, units="MW"), "is more than"),
        (event(intervalPeriod={"start": "2026-06-29T13:00:00Z", "duration": "P4D"}), "in the past"),
        (event(modificationDateTime="2026-07-01T13:00:00Z"), "future"),
        (asking("IMPORT_CAPACITY_LIMIT", "much", units="KW"), "must be a number"),
        (event(intervalPeriod={"start": "2026-07-01T13:00:00Z", "duration": "P3D"}), "as limits has it"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_written_down_once(vtn, connection, raw, said):
    vtn.events = [raw]
    for minute in range(3):
        listen(connection, minute)

    row = connection.vtn_events.get()
    assert ours() == []
    assert row.trouble == "refused"
    assert said in row.trouble_text
    assert logged("openadr.event_refused") == 1
    assert connection.listed_at == NOW + timedelta(minutes=2)


def test_an_absurd_limit_is_told_by_the_limit_of_the_site(vtn, hall, limits):
    PowerLimit.objects.create(domain=hall, hard_limit_w=1e6)
    made = connect(vtn)
    vtn.events = [asking("IMPORT_CAPACITY_LIMIT", 500_000, units="KW")]
    listen(made)

    assert ours() == []
    assert "is more than" in made.vtn_events.get().trouble_text


def test_a_bad_version_leaves_the_one_before_in_force(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    vtn.events = [newer(event(), 5, intervals=[interval(payload("IMPORT_CAPACITY_LIMIT", -3))])]
    listen(connection, 5)
    listen(connection, 6)

    (made,) = ours()
    assert (made.value, made.outcome, made.version) == (500e3, "", 1)
    assert logged("openadr.event_refused") == 1


def test_a_replayed_version_is_refused(vtn, connection):
    old = event()
    vtn.events = [newer(event(), 30, intervals=[interval(payload("IMPORT_CAPACITY_LIMIT", 400))])]
    listen(connection)
    vtn.events = [old]
    listen(connection, 1)
    vtn.events = []
    listen(connection, 2)
    vtn.events = [old]
    listen(connection, 3)

    (made,) = ours()
    assert (made.value, made.outcome) == (400e3, "cancelled")
    assert "older than the version" in connection.vtn_events.get().trouble_text


def test_a_target_below_the_floor_waits_for_a_person(vtn, connection, monkeypatch):
    monkeypatch.setattr(response_services, "idle_floor_w", lambda domain: 58.8e3)
    vtn.events = [asking("IMPORT_CAPACITY_LIMIT", 0.5, units="KW")]
    for minute in range(3):
        listen(connection, minute)
    row = connection.vtn_events.get()
    assert ours() == []
    assert row.trouble == "needs_person"
    assert logged("openadr.event_needs_person") == 1

    services.accept_event(
        connection_id=connection.pk,
        external_id="e1",
        actor=person("olga", "operator"),
        at=NOW + timedelta(minutes=3),
    )
    assert poll.poll_due(at=NOW + timedelta(minutes=3)) == 1
    (made,) = ours()
    row.refresh_from_db()
    assert (made.value, row.trouble) == (500.0, "")

    vtn.events = [newer(asking("IMPORT_CAPACITY_LIMIT", 0.4, units="KW"), 30)]
    listen(connection, 5)
    row.refresh_from_db()
    made.refresh_from_db()
    assert (row.trouble, made.value) == ("needs_person", 500.0)  # what was accepted was the version before


def test_an_emergency_without_a_target_calls_for_a_person(vtn, connection):
    vtn.events = [asking("ALERT_GRID_EMERGENCY", "Now")]
    listen(connection)

    assert ours() == []
    assert "emergency" in connection.vtn_events.get().trouble_text.lower()
    with pytest.raises(DomainError, match="cannot be accepted"):
        services.accept_event(
            connection_id=connection.pk, external_id="e1", actor=person("olga", "operator"), at=NOW
        )


def test_who_opted_out_stays_out_whatever_the_vtn_changes(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    response_services.opt_out(event_id=ours()[0].pk, actor=None, at=NOW + timedelta(minutes=1))
    vtn.events = [newer(event(), 5, intervals=[interval(payload("IMPORT_CAPACITY_LIMIT", 450))])]
    listen(connection, 5)
    vtn.events = []
    listen(connection, 6)

    (made,) = ours()
    assert (made.outcome, made.value) == ("opted_out", 500e3)


def test_events_of_others_and_of_unknown_programmes_are_none_of_ours(vtn, connection):
    elsewhere = event("e2", targets=[{"type": "VEN_NAME", "values": ["somebody"]}])
    vtn.events = [event("e3", programID="p9"), elsewhere]
    listen(connection)

    assert ours() == []


def test_an_event_for_a_resource_is_for_its_domain(vtn, hall, limits):
    row = domain("row-1", "row", parent=hall)
    domain("row-2", "row", parent=hall)
    made = connect(
        vtn,
        resources=(ResourceDraft(name="r1", domain="row-1"), ResourceDraft(name="r2", domain="row-2")),
    )
    names = ["r1"] if vtn.is_3_1 else [{"type": "RESOURCE_NAME", "values": ["r1"]}]
    both = ["r1", "r2"] if vtn.is_3_1 else [{"type": "RESOURCE_NAME", "values": ["r1", "r2"]}]
    vtn.events = [event(targets=names), event("e2", targets=both)]
    listen(made)

    assert [one.domain for one in ours()] == [row]
    assert "several resources" in made.vtn_events.get(external_id="e2").trouble_text


def test_an_emergency_with_a_target_is_one(vtn, connection, limits):
    vtn.events = [
        event(
            intervals=[
                interval(payload("IMPORT_CAPACITY_LIMIT", 400), payload("ALERT_GRID_EMERGENCY", "Now"))
            ]
        )
    ]
    listen(connection)

    (made,) = ours()
    assert (made.is_emergency, made.value) == (True, 400e3)


def remap(connection, vtn, **changes):
    services.update_connection(
        connection_id=connection.pk,
        draft=draft(vtn, client_secret=None, **changes),
        version=connection.version,
        actor=None,
        at=NOW,
    )
    connection.refresh_from_db()


def test_another_programme_or_domain_makes_another_event_and_takes_the_first_back(vtn, connection, hall):
    vtn.events = [event()]
    listen(connection)
    programme("other", target_kind="limit_to", min_duration_s=900)
    domain("row", "row", parent=hall)
    remap(connection, vtn, programmes=(ProgrammeMap(external_id="p1", programme="other"),))
    listen(connection, 1)
    remap(connection, vtn, domain="row", programmes=(ProgrammeMap(external_id="p1", programme="other"),))
    listen(connection, 2)

    found = DemandResponseEvent.objects.order_by("pk")
    assert [(one.programme.name, one.domain.name, one.outcome) for one in found] == [
        ("limits", "hall", "cancelled"),
        ("other", "hall", "cancelled"),
        ("other", "row", ""),
    ]


def test_of_what_is_not_asked_for_any_more_nothing_is_concluded(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    remap(connection, vtn, programmes=())
    listen(connection, 1)
    remap(connection, vtn)
    listen(connection, 2)

    assert [(one.outcome, one.version) for one in ours()] == [("", 1)]


def test_a_server_that_is_busy_says_when_to_come_back(vtn, connection):
    vtn.misbehave["/programs"] = lambda handler: handler.say(429, {}, headers={"Retry-After": "600"})
    listen(connection)
    assert connection.next_poll_at == NOW + timedelta(seconds=600)


# Kills, races, order.


@pytest.mark.parametrize("after", ["the copy", "the event"])
def test_a_kill_between_two_steps_leaves_nothing_half_and_doubles_nothing(
    vtn, connection, monkeypatch, after
):
    vtn.events = [event(), event("e2", intervalPeriod=hourly(3))]
    place = (response_services, "announce_event") if after == "the copy" else (poll._Run, "_note_told")
    whole = getattr(*place)

    def killed(*args, **kwargs):
        if after == "the event":
            whole(*args, **kwargs)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(*place, killed)
        with pytest.raises(SystemExit):
            listen(connection)
    connection.refresh_from_db()
    assert ours() == []
    assert not VtnEvent.objects.exists()
    assert connection.listed_at is None

    listen(connection, 1)
    listen(connection, 2)
    assert [one.external_id.split(".")[1] for one in ours()] == ["e1", "e2"]
    assert logged("demand_response.announced") == 2


def test_a_kill_before_the_end_lets_the_next_poll_do_the_rest(vtn, connection, monkeypatch):
    vtn.events = [event()]
    with monkeypatch.context() as patched:
        patched.setattr(poll._Run, "_heard", lambda *args: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            listen(connection)
    listen(connection, 1)

    assert [one.version for one in ours()] == [1]


@pytest.mark.parametrize("meanwhile", [{"version": 9}, {"fence": 99}, {"is_enabled": False}])
def test_what_a_poll_found_is_void_once_the_connection_changed_or_another_poll_began(
    vtn, connection, monkeypatch, meanwhile
):
    vtn.events = [event()]
    whole = poll._listed

    def listed(*args):
        VtnConnection.objects.filter(pk=connection.pk).update(**meanwhile)
        return whole(*args)

    monkeypatch.setattr(poll, "_listed", listed)
    with pytest.raises(poll.Superseded):
        listen(connection)
    assert ours() == []


def test_what_is_switched_off_is_not_asked_and_its_events_stay(vtn, connection):
    vtn.events = [event()]
    listen(connection)
    services.set_enabled(connection_id=connection.pk, is_enabled=False, actor=None, at=NOW)
    n_asked = len(vtn.asked)

    assert poll.poll_due(at=NOW + timedelta(hours=1)) == 0
    assert len(vtn.asked) == n_asked
    assert [one.outcome for one in ours()] == [""]


def test_a_flood_of_events_stops_at_a_bound(vtn, connection, monkeypatch):
    monkeypatch.setattr(poll, "MOST_TOLD", 3)
    vtn.events = [event(f"e{n}", intervalPeriod=hourly(n)) for n in range(5)]
    listen(connection)
    assert len(ours()) == 3
    assert connection.vtn_events.filter(trouble="needs_person").count() == 2
    listen(connection, 61)
    assert len(ours()) == 5


# What we tell the VTN.


def test_we_register_once_with_our_resources(vtn, hall, limits):
    made = connect(vtn, resources=(ResourceDraft(name="r1", domain="hall"),))
    listen(made)
    listen(made, 1)

    assert [one["venName"] for one in vtn.vens] == ["site"]
    assert [one["resourceName"] for one in vtn.resources] == ["r1"]
    assert made.ven_id == vtn.vens[0]["id"]
    assert vtn.n_asked("POST", "/vens") == 1


def reporting(*payload_types):
    return event(
        intervalPeriod={"start": "2026-07-01T13:00:00Z", "duration": "PT15M"},
        intervals=[interval(payload("IMPORT_CAPACITY_LIMIT", 500), interval_id=n) for n in range(4)],
        reportDescriptors=[
            {"payloadType": one, "startInterval": 0, "numIntervals": 1, "frequency": 1, "repeat": -1}
            for one in payload_types
        ],
    )


def sent(vtn):
    return {one["reportName"]: one["resources"][0]["intervals"][0]["payloads"] for one in vtn.reports}


def test_reports_are_sent_as_their_intervals_end(vtn, connection, hall):
    vtn.events = [reporting("DEMAND", "BASELINE", "OPERATING_STATE", "LOAD_SHED_DELTA_AVAILABLE")]
    listen(connection)
    assert vtn.reports == []
    begin = NOW + timedelta(hours=1)
    for minute, watts in enumerate((480e3, 490e3, 500e3)):
        PowerReading.objects.create(
            domain=hall, at=begin + timedelta(minutes=minute), draw_w=watts, source="metered"
        )
    listen(connection, 75)
    listen(connection, 76)

    assert sent(vtn) == {
        "e1.0.0": [
            {"type": "DEMAND", "values": [490.0]},
            {"type": "DATA_QUALITY", "values": ["OK"]},
        ],
        "e1.1.0": [
            {"type": "BASELINE", "values": [900.0]},
            {"type": "DATA_QUALITY", "values": ["ESTIMATED"]},
        ],
        "e1.2.0": [
            {"type": "OPERATING_STATE", "values": ["NORMAL"]},
            {"type": "DATA_QUALITY", "values": ["OK"]},
        ],
        "e1.3.0": [{"type": "DATA_QUALITY", "values": ["MISSING"]}],
    }
    listen(connection, 90)
    assert "e1.0.1" in sent(vtn)
    assert sent(vtn)["e1.0.1"] == [{"type": "DATA_QUALITY", "values": ["MISSING"]}]


def test_a_report_that_fails_is_tried_again_and_one_that_is_refused_is_not(vtn, connection):
    vtn.events = [reporting("OPERATING_STATE")]
    vtn.misbehave["/reports"] = refuse
    listen(connection, 75)
    row = VtnReport.objects.get()
    assert (row.sequence, row.n_failures) == (-1, 1)
    vtn.misbehave.clear()
    listen(connection, 76)
    row.refresh_from_db()
    assert (row.sequence, row.n_failures, len(vtn.reports)) == (0, 0, 1)

    vtn.misbehave["/reports"] = lambda handler: handler.problem(403, "Not you")
    listen(connection, 90)
    row.refresh_from_db()
    assert row.sequence == 1
    assert "Not you" in row.last_error


def test_who_opted_out_says_so(vtn, connection):
    vtn.events = [reporting("OPERATING_STATE")]
    listen(connection)
    response_services.opt_out(event_id=ours()[0].pk, actor=None, at=NOW + timedelta(minutes=1))
    listen(connection, 75)
    assert sent(vtn)["e1.0.0"][0]["values"] == ["RUNNING_OPTED_OUT"]


# Secrets.


def test_the_secret_is_in_no_row_log_or_event(vtn, connection, caplog):
    caplog.set_level(logging.DEBUG)
    vtn.misbehave["/auth/token"] = lambda handler: handler.problem(401, f"{SECRET} is wrong")
    listen(connection)

    row = VtnConnection.objects.filter(pk=connection.pk).values().get()
    assert "No token was granted" in row["last_error"]
    assert SECRET not in repr(row)
    assert SECRET not in repr(list(Event.objects.values()))
    assert SECRET not in caplog.text
    assert SECRET not in repr(draft(vtn))


def test_a_secret_that_no_key_of_the_site_opens_is_said_and_nothing_is_asked(vtn, connection, settings):
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    listen(connection)
    assert "enter it again" in connection.last_error
    assert vtn.asked == []

    settings.SECRET_KEY_FALLBACKS = [before]
    listen(connection, 1)
    assert (connection.last_error, connection.listed_at) == ("", NOW + timedelta(minutes=1))


@pytest.mark.django_db(transaction=True)
def test_a_second_worker_goes_home(vtn):
    draw(domain("hall", "hall"), 900e3, NOW)
    programme("limits", target_kind="limit_to", min_duration_s=900)
    connect(vtn)
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [poll._LOCK])
        assert poll.poll_due(at=NOW) == 0
    finally:
        other.close()
    assert vtn.asked == []

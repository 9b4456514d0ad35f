"""The watchdog: what it finds wrong, that it says so once, and that it goes on whatever happens to it."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from apps.core.presence import present_roles
from apps.events.models import Event
from apps.inventory.tests.builders import domain, node
from apps.power import watchdog
from apps.power.budget import EVERY_DAY, Step
from apps.power.models import AlarmKind, PowerAlarm, PowerController, PowerLimit, PowerReading
from apps.power.services import set_envelope
from apps.power.tests.builders import NOTICE, announce, clock, commit, draw, preview
from apps.power.watchdog import Watchdog
from apps.teams.tests.builders import NOON, client, person

pytestmark = pytest.mark.django_db(transaction=True)
BASE_DIR = Path(__file__).resolve().parents[3]


def after(at, seconds):
    return at + timedelta(seconds=seconds)


def open_alarms():
    return [
        (row.kind, row.domain and row.domain.name)
        for row in PowerAlarm.objects.filter(cleared_at=None).order_by("id")
    ]


def heard(at):
    PowerController.objects.update_or_create(pk=1, defaults={"heartbeat_at": at})


def metered(where, draw_w, at, quality="ok"):
    PowerReading.objects.create(domain=where, at=at, draw_w=draw_w, source="metered", quality=quality)


@pytest.fixture
def hall():
    return domain("hall", "hall")


@pytest.fixture
def event(hall):
    draw(hall, 132.4e3)
    found = announce()
    preview(found)
    commit(found, person("olga", "operator"))
    return found


def test_a_silent_controller_is_told_of_within_a_minute_and_once(event):
    dog = Watchdog()
    heard(clock(15, 30))
    looks = [dog.look(after(clock(15, 30), 5 * i)) for i in range(13)]

    first = next(
        i for i, found in enumerate(looks) if any(one.kind == "controller_silent" for one in found.raised)
    )
    assert 20 < 5 * first <= 60
    assert [one.kind for found in looks for one in found.raised if one.kind == "controller_silent"] == [
        AlarmKind.CONTROLLER_SILENT
    ]
    told = Event.objects.get(kind="power.alarm_raised", data__alarm="controller_silent")
    assert told.is_audit
    assert "not heard of since 15:30:00" in told.reason


def test_an_alarm_closes_when_all_was_right_for_a_while(event):
    dog = Watchdog()
    heard(clock(15, 30))
    dog.look(clock(15, 31))
    assert (AlarmKind.CONTROLLER_SILENT, None) in open_alarms()
    for seconds in range(0, 20, 5):
        heard(after(clock(15, 50), seconds))
        found = dog.look(after(clock(15, 50), seconds))
    assert (AlarmKind.CONTROLLER_SILENT, None) in found.cleared
    assert (AlarmKind.CONTROLLER_SILENT, None) not in open_alarms()
    assert (
        Event.objects.filter(
            kind="power.alarm_cleared", data__alarm="controller_silent", is_audit=True
        ).count()
        == 1
    )


def test_what_comes_and_goes_is_one_alarm(event):
    dog = Watchdog()
    for i in range(8):
        at = after(clock(15), 10 * i)
        heard(at if i % 2 else at - timedelta(seconds=30))
        dog.look(at)
    assert PowerAlarm.objects.filter(kind=AlarmKind.CONTROLLER_SILENT).count() == 1


def test_nobody_waits_for_a_controller_that_has_nothing_to_do(hall):
    heard(NOON)
    assert Watchdog().look(clock(15)).findings == []


def test_a_controller_that_was_never_there_is_missed_too(event):
    found = Watchdog().look(clock(14, 30))
    assert [one.kind for one in found.findings if one.kind == "controller_silent"]


def test_an_emergency_that_nobody_has_answered_counts(hall):
    draw(hall, 132.4e3)
    announce(is_emergency=True, target_kind="limit_to", value=90e3)
    heard(NOTICE)
    assert "controller_silent" in {one.kind for one in Watchdog().look(clock(14, 1)).findings}


def test_limits_are_watched_at_every_level_by_meter_or_by_what_runs():
    site = domain("site", "facility")
    hall = domain("hall", "hall", site)
    rack = domain("rack", "rack", hall)
    node("n", power=rack, idle_w=2000.0)
    PowerLimit.objects.create(domain=site, hard_limit_w=1e4, overhead_fixed_w=1e3, overhead_k=1.5)
    PowerLimit.objects.create(domain=hall, hard_limit_w=9e3, limit_w=5e3)
    PowerLimit.objects.create(domain=rack, hard_limit_w=1.5e3)
    metered(site, 1.1e4, NOON)  # at the meter: (11 - 1) / 1.5 kW of IT load, of 6 that are allowed
    metered(hall, 5.5e3, NOON)

    told = {one.domain: one.message for one in watchdog.over_limits(after(NOON, 60))}

    assert set(told) == {"site", "hall", "rack"}
    assert "6.7 kW of IT load by its meter; its hard limit is 6.0 kW" in told["site"]
    assert "its operating limit is 5.0 kW" in told["hall"]
    assert "by what runs" in told["rack"]


def test_an_event_binds_while_it_binds_and_by_what_was_read_since_it_began(event, hall):
    metered(hall, 132e3, clock(13, 59))
    assert watchdog.over_limits(after(clock(14), -1)) == []
    assert watchdog.over_limits(clock(14)) == []  # read before: nothing runs here, and that is what counts
    metered(hall, 120e3, clock(14, 1))
    (found,) = watchdog.over_limits(clock(14, 2))
    assert f"the target of event {event.pk} is 114.4 kW" in found.message
    metered(hall, 114.45e3, clock(14, 3))
    assert watchdog.over_limits(clock(14, 3)) == []
    metered(hall, 120e3, clock(16, 59))
    assert watchdog.over_limits(clock(17)) == []


@pytest.mark.parametrize(
    "step",
    [
        Step(100e3, EVERY_DAY, 15 * 60, 18 * 60),
        Step(100e3, EVERY_DAY, 15 * 60, 6 * 60),
        Step(100e3, start_at=clock(15), end_at=clock(18)),
    ],
    ids=["weekly", "over midnight", "dated"],
)
def test_a_step_that_falls_is_judged_by_what_was_read_since_it_began(hall, step):
    # Until then 120 kW were allowed.
    steps = (Step(125e3, EVERY_DAY, 0, 24 * 60), step)
    set_envelope(domain_id=hall.pk, steps=steps, time_zone="UTC", actor=None, at=NOON, reason="grid")
    metered(hall, 120e3, clock(14, 58))
    assert watchdog.over_limits(clock(14, 59)) == []
    assert watchdog.over_limits(clock(15)) == []  # nothing runs here
    assert watchdog.over_limits(clock(15, 2)) == []
    metered(hall, 120e3, clock(15, 2))
    (found,) = watchdog.over_limits(clock(15, 3))
    assert "its envelope is 100.0 kW" in found.message


def test_a_step_over_midnight_began_the_day_before_by_the_clock_of_its_place(hall):
    # 22:00 to 06:00 in New York, in winter: 03:00 to 11:00 UTC.
    begins = NOON.replace(hour=3)
    night = Step(100e3, EVERY_DAY, 22 * 60, 6 * 60)
    set_envelope(
        domain_id=hall.pk, steps=(night,), time_zone="America/New_York", actor=None, at=begins, reason="grid"
    )
    metered(hall, 120e3, after(begins, -60))
    assert watchdog.over_limits(after(begins, 60)) == []
    metered(hall, 120e3, after(begins, 2 * 3600))  # 00:00 there
    assert len(watchdog.over_limits(after(begins, 2 * 3600 + 60))) == 1


def test_a_meter_is_missed_after_a_while_and_one_that_never_was_is_not(hall):
    domain("other", "hall")
    PowerReading.objects.create(domain=hall, at=NOON, draw_w=1.0, source="modelled")
    assert watchdog.stale_readings(clock(15)) == []
    metered(hall, 1e3, clock(15))
    metered(hall, 1e3, clock(15, 5), quality="missing")
    assert watchdog.stale_readings(clock(15, 5)) == []
    (found,) = watchdog.stale_readings(clock(15, 6))
    assert (found.domain, "nothing usable since" in found.message) == ("hall", True)
    assert watchdog.stale_readings(clock(15, 6) + timedelta(days=8)) == []


def test_a_check_that_fails_is_told_and_keeps_what_it_found_before_open(event, hall, monkeypatch):
    dog = Watchdog(calm_for=timedelta(0))
    metered(hall, 120e3, clock(14, 1))
    heard(clock(14, 2))
    dog.look(clock(14, 2))
    assert open_alarms() == [(AlarmKind.OVER_LIMIT, "hall")]

    def broken(at):
        raise ZeroDivisionError("no")

    monkeypatch.setitem(watchdog.CHECKS, AlarmKind.OVER_LIMIT, broken)
    heard(clock(14, 3))
    dog.look(clock(14, 3))
    assert open_alarms() == [(AlarmKind.OVER_LIMIT, "hall"), (AlarmKind.WATCHDOG_BLIND, None)]
    monkeypatch.undo()
    metered(hall, 110e3, clock(14, 4))
    heard(clock(14, 4))
    dog.look(clock(14, 4))
    assert open_alarms() == []


def test_a_statement_that_fails_in_the_database_is_a_failed_check(event, monkeypatch):
    def broken(at):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    monkeypatch.setitem(watchdog.CHECKS, AlarmKind.OVER_LIMIT, broken)
    heard(clock(14, 3))
    assert {one.kind for one in Watchdog().look(clock(14, 3)).findings} >= {AlarmKind.WATCHDOG_BLIND}


def test_two_watchdogs_raise_one_alarm(event):
    for dog in (Watchdog(), Watchdog()):
        dog.look(clock(15))
    assert PowerAlarm.objects.filter(kind=AlarmKind.CONTROLLER_SILENT).count() == 1
    assert Event.objects.filter(kind="power.alarm_raised", data__alarm="controller_silent").count() == 1


def test_it_survives_the_database_going_away(event):
    dog = Watchdog(calm_for=timedelta(0))
    heard(clock(14))
    assert dog.look(clock(14)) is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    other = connection.copy("other")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    other.close()
    assert dog.look(clock(14)) is None
    heard(clock(14, 1))
    found = dog.look(clock(14, 1))
    told = [one.message for one in found.raised if one.kind == AlarmKind.WATCHDOG_BLIND]
    assert "the database did not answer since 14:00:00" in told[0]
    dog.look(clock(14, 1))
    assert (AlarmKind.WATCHDOG_BLIND, None) not in open_alarms()


def test_alarms_are_read_by_everybody_the_open_ones_first(event):
    dog = Watchdog(calm_for=timedelta(0))
    metered(event.domain, 120e3, clock(14, 1))
    dog.look(clock(14, 2))
    metered(event.domain, 110e3, clock(14, 2))
    dog.look(clock(14, 2))
    asker = client(person("max"))
    rows = asker.get("/api/v1/power/alarms").json()["items"]
    assert [(row["kind"], row["domain"], row["cleared_at"] is None) for row in rows] == [
        ("controller_silent", None, True),
        ("over_limit", "hall", False),
    ]
    first = asker.get("/api/v1/power/alarms?limit=1").json()
    second = asker.get(f"/api/v1/power/alarms?limit=1&cursor={first['next']}").json()
    assert [row["kind"] for row in first["items"] + second["items"]] == ["controller_silent", "over_limit"]
    assert [row["kind"] for row in asker.get("/api/v1/power/alarms?open=false").json()["items"]] == [
        "over_limit"
    ]
    assert asker.get("/api/v1/power/alarms?open=maybe").json()["errors"][0]["path"] == "open"


def test_a_cursor_that_was_made_up_is_refused(event):
    Watchdog().look(clock(15))
    order = ["is_over", "-raised_at", "-id"]
    made_up = base64.urlsafe_b64encode(json.dumps([order, ["x", clock(15).isoformat(), 1]]).encode()).decode()
    answer = client(person("max")).get("/api/v1/power/alarms", {"cursor": made_up.rstrip("=")})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "cursor")


def test_one_look_by_hand(event, capsys):
    with pytest.raises(SystemExit) as gone:
        call_command("watchdog", "--once")
    assert gone.value.code in (None, 0, 1)


def test_the_process_stops_cleanly_and_is_seen_while_it_runs(transactional_db):
    described = connection.settings_dict
    url = f"postgresql://{described['USER']}@/{described['NAME']}?host={described['HOST']}&port={described['PORT']}"
    env = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "scheduler_site.settings"}
    process = subprocess.Popen(
        [sys.executable, "manage.py", "watchdog"], cwd=BASE_DIR, env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        until = time.monotonic() + 60
        while "watchdog" not in present_roles() and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (0, False), said

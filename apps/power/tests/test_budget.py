"""A domain's budget: which limit binds at which hour, and what an envelope refuses."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden, InvalidInput, VersionConflict
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power import plan_services, selectors, services
from apps.power.budget import DAYS, EVERY_DAY, Budget, By, Step, days_of, mask_of
from apps.power.budget_selectors import bindings, coming_steps, envelope_limits_w, oversubscription
from apps.power.models import EnvelopeStep, PowerHold, PowerLimit
from apps.power.tests.builders import HASH, announce, clock, draw, preview
from apps.teams.tests.builders import NOON, person

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
WORKDAYS = mask_of(DAYS[:5])


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """Of the week that begins on Monday, 2 March 2026."""
    return MONDAY + timedelta(days=day, hours=hour, minutes=minute)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        ({"rated_w": 200e3, "derate": 0.8}, (160e3, By.RATING)),
        ({"rated_w": 200e3, "derate": 0.8, "hard_limit_w": 150e3}, (150e3, By.HARD)),
        ({"rated_w": 200e3, "derate": 0.8, "reserve_w": 15e3}, (145e3, By.RATING)),
        ({"hard_limit_w": 150e3, "reserve_w": 5e3, "limit_w": 148e3}, (145e3, By.HARD)),
        ({"hard_limit_w": 150e3, "reserve_w": 5e3, "limit_w": 140e3}, (140e3, By.OPERATING)),
    ],
)
def test_the_least_of_what_is_set_binds(said, expected):
    found = Budget(**said).at(MONDAY)
    assert (None if found is None else (found.limit_w, found.by)) == expected


def test_a_weekly_step_holds_on_its_days_and_hours_alone():
    budget = Budget(limit_w=150e3, steps=(Step(100e3, WORKDAYS, 13 * 60, 19 * 60),))
    told = [
        budget.at(when).limit_w for when in (at(0, 12, 59), at(0, 13), at(0, 18, 59), at(0, 19), at(5, 14))
    ]
    assert told == [150e3, 100e3, 100e3, 150e3, 150e3]
    assert budget.at(at(0, 13)).by is By.ENVELOPE


def test_a_step_may_last_over_midnight():
    budget = Budget(steps=(Step(100e3, mask_of(["Fri"]), 22 * 60, 6 * 60),))
    assert [budget.envelope_w(when) for when in (at(4, 23), at(5, 5), at(5, 6), at(3, 23))] == [
        100e3,
        100e3,
        None,
        None,
    ]


def test_of_several_steps_the_lowest_holds_and_a_higher_one_than_the_limit_says_nothing():
    steps = (Step(100e3, EVERY_DAY), Step(80e3, EVERY_DAY, 12 * 60, 13 * 60), Step(1e9, EVERY_DAY))
    budget = Budget(limit_w=90e3, steps=steps)
    assert [budget.at(at(0, hour)).limit_w for hour in (11, 12)] == [90e3, 80e3]


def test_hours_are_those_of_the_local_clock_also_when_it_is_turned():
    # 29 March 2026: in Berlin 02:00 becomes 03:00, and 14:00 there is 12:00 UTC instead of 13:00.
    zone = ZoneInfo("Europe/Berlin")
    step = Step(100e3, EVERY_DAY, 14 * 60, 15 * 60)
    begin = datetime(2026, 3, 28, tzinfo=UTC)
    starts = [
        start.hour for start, _ in step.windows(zone, begin, begin + timedelta(days=2)) if start >= begin
    ]
    assert starts == [13, 12]
    night = Step(100e3, EVERY_DAY, 0, 24 * 60)
    hours = [
        (end - start).total_seconds() / 3600
        for start, end in night.windows(zone, begin, begin + timedelta(days=2))
    ]
    assert 23.0 in hours


def test_the_changes_of_a_week_are_known():
    budget = Budget(steps=(Step(100e3, WORKDAYS, 13 * 60, 19 * 60),))
    marks = budget.changes_at(MONDAY, MONDAY + timedelta(days=7))
    assert marks == [at(day, hour) for day in range(5) for hour in (13, 19)]


def test_a_mask_of_days_reads_back():
    assert days_of(mask_of(["Sun", "Mon"])) == ("Mon", "Sun")


@pytest.fixture
def hall(db):
    return domain("h1", "hall")


def envelope(of, *steps, actor=None, version=None, time_zone="UTC", reason=""):
    return services.set_envelope(
        domain_id=of.pk,
        steps=steps,
        time_zone=time_zone,
        actor=actor,
        at=NOON,
        version=version,
        reason=reason,
    )


def test_setting_an_envelope_is_audited_and_saving_it_again_says_nothing(hall):
    step = Step(100e3, WORKDAYS, 13 * 60, 19 * 60)
    envelope(hall, step, actor=person("pia", "power_admin"), reason="grid")
    told = Event.objects.get(kind="power.envelope_changed")
    assert (told.actor_name, told.reason, told.is_audit) == ("pia", "grid", True)
    assert told.before == {"time_zone": "UTC", "steps": []}
    days = ["Mon", "Tue", "Wed", "Thu", "Fri"]
    row = {"days": days, "from_time": "13:00", "until_time": "19:00", "limit_w": 100e3}
    assert told.after == {"time_zone": "UTC", "steps": [row]}
    assert envelope(hall, step).version == PowerLimit.objects.get().version
    assert Event.objects.filter(kind="power.envelope_changed").count() == 1


def test_who_saved_meanwhile_is_told(hall):
    envelope(hall, Step(1e5, EVERY_DAY), version=1)
    made = envelope(hall, version=1)
    with pytest.raises(VersionConflict):
        envelope(hall, Step(9e4, EVERY_DAY), version=made.version - 1)


def test_an_operator_and_a_viewer_set_no_envelope(hall):
    for who in (person("ola", "operator"), person("vera")):
        with pytest.raises(Forbidden):
            envelope(hall, Step(1e5, EVERY_DAY), actor=who)


@pytest.mark.parametrize(
    ("step", "zone", "path"),
    [
        (Step(1e5), "UTC", "steps[0].days"),
        (Step(1e5, EVERY_DAY, 60, 60), "UTC", "steps[0].until_time"),
        (Step(1e5, start_at=NOON, end_at=NOON), "UTC", "steps[0].end_at"),
        (Step(1e5, EVERY_DAY), "Mars/Base", "time_zone"),
        (Step(1e5, EVERY_DAY), "Europe", "time_zone"),
    ],
)
def test_a_step_that_means_nothing_is_refused(hall, step, zone, path):
    with pytest.raises(InvalidInput) as caught:
        envelope(hall, step, time_zone=zone)
    assert [fault["path"] for fault in caught.value.errors] == [path]
    assert not EnvelopeStep.objects.exists()


@pytest.mark.parametrize(
    "row",
    [
        {"limit_w": -1.0, "weekdays": 1},
        {"limit_w": 1.0, "weekdays": 0},
        {"limit_w": 1.0, "weekdays": 128},
        {"limit_w": 1.0, "weekdays": 1, "start_at": NOON, "end_at": clock(15)},
        {"limit_w": 1.0, "start_at": clock(15), "end_at": NOON},
        {"limit_w": 1.0, "weekdays": 1, "from_minute": 60, "until_minute": 60},
        {"limit_w": 1.0, "weekdays": 1, "until_minute": 1441},
    ],
)
def test_the_database_keeps_no_step_that_is_none(hall, row):
    limit = PowerLimit.objects.create(domain=hall)
    with pytest.raises(IntegrityError), transaction.atomic():
        EnvelopeStep.objects.create(limit=limit, **row)


@pytest.mark.parametrize(
    "row",
    [{"rated_w": 0.0}, {"derate": 1.1}, {"derate": 0.0}, {"reserve_w": -1.0}, {"hard_limit_w": 1e3, "reserve_w": 2e3},
     {"rated_w": 1e3, "derate": 0.8, "reserve_w": 900.0}],
)  # fmt: skip
def test_the_database_keeps_no_rating_that_is_none(hall, row):
    with pytest.raises(IntegrityError), transaction.atomic():
        PowerLimit.objects.create(domain=hall, **row)


def test_a_reserve_beyond_the_limit_is_refused_at_its_field(hall):
    services.set_limit(domain_id=hall.pk, changes={"rated_w": 1e3, "derate": 0.8}, actor=None, at=NOON)
    with pytest.raises(InvalidInput, match="reserve_w: must not be over what rated_w leaves"):
        services.set_limit(domain_id=hall.pk, changes={"reserve_w": 900.0}, actor=None, at=NOON)


def test_the_column_that_plain_sql_reads_says_what_the_budget_says(hall):
    row = PowerLimit.objects.create(
        domain=hall, rated_w=200e3, derate=0.8, hard_limit_w=170e3, reserve_w=12e3
    )
    row.refresh_from_db()
    assert row.steady_w == selectors.steady_limit_w(row) == 148e3
    assert PowerLimit.objects.create(domain=domain("h2", "hall")).steady_w is None


def told(of, when):
    of = selectors.power_domains().get(pk=of.pk)
    found = bindings([of], when).get(of.pk)
    return None if found is None else (found.limit_w, str(found.by), found.until_at)


def test_why_a_limit_holds_names_envelope_event_and_hold(hall):
    services.set_limit(domain_id=hall.pk, changes={"hard_limit_w": 150e3}, actor=None, at=NOON)
    envelope(hall, Step(120e3, EVERY_DAY, 13 * 60, 19 * 60))
    assert told(hall, NOON) == (150e3, "hard_limit", None)
    assert told(hall, clock(13)) == (120e3, "envelope", clock(19))
    draw(hall, 132.4e3)
    event = announce(domain="h1", actor=None)
    preview(event)
    assert told(hall, clock(14)) == (120e3, "envelope", clock(19))  # nobody has committed to it
    plan_services.commit_plan(
        event_id=event.pk, inputs_hash=HASH, actor=person("ola", "operator"), at=clock(13, 46)
    )
    assert told(hall, clock(14)) == (pytest.approx(114.4e3), "event", clock(17))
    PowerHold.objects.create(domain=hall, since_at=clock(14), why="dark")
    assert told(hall, clock(14)) == (0.0, "hold", None)


def test_envelopes_of_a_facility_are_at_its_meter(db):
    site = domain("s1", "facility")
    services.set_limit(
        domain_id=site.pk, changes={"overhead_fixed_w": 100e3, "overhead_k": 1.15}, actor=None, at=NOON
    )
    envelope(site, Step(1250e3, EVERY_DAY))
    assert envelope_limits_w(NOON) == {site.pk: pytest.approx(1e6)}


def test_coming_steps_and_oversubscription_are_told(hall):
    services.set_limit(domain_id=hall.pk, changes={"limit_w": 100e3}, actor=None, at=NOON)
    for i in range(3):
        rack = domain(f"r{i}", "rack", hall)
        services.set_limit(domain_id=rack.pk, changes={"limit_w": 50e3}, actor=None, at=NOON)
    envelope(hall, Step(60e3, EVERY_DAY, 13 * 60, 19 * 60))
    row = selectors.limits().get(domain=hall)
    steps = coming_steps(row, NOON, until=NOON + timedelta(hours=12))
    assert [(one.at, one.limit_w) for one in steps] == [(clock(13), 60e3), (clock(19), 100e3)]
    of = selectors.power_domains().get(pk=hall.pk)
    assert oversubscription([of], NOON) == {hall.pk: pytest.approx(1.5)}
    assert oversubscription([of], clock(14)) == {hall.pk: pytest.approx(2.5)}

"""What an event of a VTN comes to mean, and what is refused of it."""

import json
import math
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.power.openadr.mapping import read_events, units_of_programs
from apps.power.openadr.signals import Rules, TargetKind, concerns
from apps.power.openadr.tests.builders import (
    NOW,
    UTMOST,
    asking,
    event,
    fault,
    hours,
    interval,
    iso,
    payload,
    read,
    signal,
)
from apps.power.openadr.times import read_duration, read_start, write_duration

LIMIT, SHED, LEVEL = TargetKind.LIMIT_TO, TargetKind.SHED_BY, TargetKind.LEVEL
VALUE = "events[0].intervals[0].payloads[0].values[0]"


@pytest.mark.parametrize(
    ("payload_type", "value", "units", "kind", "meant"),
    [
        ("IMPORT_CAPACITY_LIMIT", 500, "KW", LIMIT, 500_000.0),
        ("IMPORT_CAPACITY_LIMIT", 500.5, "W", LIMIT, 500.5),
        ("IMPORT_CAPACITY_LIMIT", 1.5, "MW", LIMIT, 1_500_000.0),
        ("IMPORT_CAPACITY_LIMIT", 2, "kW", LIMIT, 2000.0),
        ("IMPORT_CAPACITY_LIMIT", 0, None, LIMIT, 0.0),
        ("DISPATCH_SETPOINT", 20, None, LIMIT, 20_000.0),
        ("DISPATCH_SETPOINT_RELATIVE", 18, "KW", SHED, 18_000.0),
        ("SIMPLE", 2, None, LEVEL, 2.0),
        ("SIMPLE", 3.0, None, LEVEL, 3.0),
        ("CONTROL_LEVEL_OFFSET", 1, None, LEVEL, 1.0),
    ],
)
def test_a_payload_becomes_a_target(payload_type, value, units, kind, meant):
    read_one = signal(asking(payload_type, value, units=units))

    assert (read_one.target_kind, read_one.value) == (kind, meant)


def test_a_signal_says_when_and_for_whom_it_is():
    read_one = signal(
        event(
            intervalPeriod={
                "start": "2026-07-01T15:00:00+02:00",
                "duration": "PT1H30M",
                "randomizeStart": "-PT5M",
            }
        )
    )

    assert read_one.start == datetime(2026, 7, 1, 13, 0, tzinfo=UTC)
    assert read_one.duration_s == 5400
    assert read_one.randomize_s == 300
    assert (read_one.external_id, read_one.program_id, read_one.priority) == ("e1", "p1", 1)
    assert read_one.modified_at == datetime(2026, 7, 1, 11, 0, tzinfo=UTC)


def test_a_level_sheds_the_share_of_the_programmes_table():
    rules = {"p1": Rules(level_shares=(0.0, 0.2, 0.3))}

    assert signal(asking("SIMPLE", 2)).intervals[0].shed_share == 0.25
    assert signal(asking("SIMPLE", 2), rules=rules).intervals[0].shed_share == 0.3
    assert fault(asking("SIMPLE", 3), rules=rules)[0] == VALUE


def test_the_sign_of_a_relative_setpoint_is_the_programmes():
    rules = {"p1": Rules(relative_sign=-1)}

    assert signal(asking("DISPATCH_SETPOINT_RELATIVE", -18), rules=rules).value == 18_000
    assert fault(asking("DISPATCH_SETPOINT_RELATIVE", 18), rules=rules)[0] == VALUE
    assert fault(asking("DISPATCH_SETPOINT_RELATIVE", -18))[1] == "must not be negative"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -1,
        True,
        False,
        "500",
        None,
        [500],
        {"x": 1, "y": 2},
        1e300,
        10**400,
        1_000_001,
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "payload_type", ["IMPORT_CAPACITY_LIMIT", "DISPATCH_SETPOINT", "IMPORT_CAPACITY_SUBSCRIPTION"]
)
def test_what_is_no_power_is_refused_by_its_path(payload_type, value):
    assert fault(asking(payload_type, value, units="MW"))[0] == VALUE


@pytest.mark.parametrize("value", [-1, 4, 1.5, True, "2", math.nan], ids=repr)
@pytest.mark.parametrize("payload_type", ["SIMPLE", "CONTROL_LEVEL_OFFSET"])
def test_what_is_no_level_is_refused(payload_type, value):
    assert fault(asking(payload_type, value))[0] == VALUE


@pytest.mark.parametrize("values", [[], [1, 2]], ids=str)
def test_a_target_is_one_number(values):
    assert fault(asking("IMPORT_CAPACITY_LIMIT", *values))[0] == VALUE.removesuffix("[0]")


def test_units_come_from_event_then_programme_then_rules():
    units = units_of_programs(
        [{"id": "p1", "payloadDescriptors": [{"payloadType": "DISPATCH_SETPOINT", "units": "MW"}]}, 7]
    )

    assert signal(asking("DISPATCH_SETPOINT", 1, units="W"), units=units).value == 1
    assert signal(asking("DISPATCH_SETPOINT", 1), units=units).value == 1_000_000
    assert signal(asking("DISPATCH_SETPOINT", 1)).value == 1000
    assert "no units" in fault(asking("DISPATCH_SETPOINT", 1), rules={"p1": Rules(default_units="")})[1]
    assert fault(asking("DISPATCH_SETPOINT", 1, units="KWH"))[1] == "are KWH, not W, KW or MW"


def test_alerts_are_told_from_targets():
    emergency = signal(asking("ALERT_GRID_EMERGENCY", "Grid\x07 fails"))
    flex = signal(asking("ALERT_FLEX_ALERT", "Please save"))

    assert (emergency.is_emergency, emergency.target_kind, emergency.advisory) == (True, None, "Grid  fails")
    assert (flex.is_emergency, flex.target_kind, flex.advisory) == (False, None, "Please save")


def test_an_emergency_may_set_a_limit_too():
    both = interval(payload("ALERT_GRID_EMERGENCY", 7), payload("IMPORT_CAPACITY_LIMIT", 90))

    read_one = signal(event(intervals=[both]))

    assert (read_one.is_emergency, read_one.value) == (True, 90_000)


def test_of_two_limits_in_one_interval_the_stricter_counts():
    both = interval(payload("DISPATCH_SETPOINT", 80), payload("IMPORT_CAPACITY_LIMIT", 90))

    assert signal(event(intervals=[both])).value == 80_000


def test_two_kinds_of_target_are_refused():
    both = interval(payload("SIMPLE", 1), payload("IMPORT_CAPACITY_LIMIT", 90))

    assert fault(event(intervals=[both]))[0] == "events[0].intervals[0].payloads[1].type"


def test_prices_are_put_aside_and_packed_ones_share_the_interval():
    described = [{"payloadType": "PRICE", "units": "KWH", "currency": "USD"}]
    three = interval(payload("PRICE", 0.17, -0.03, 0.11), payload("GHG", 400))

    read_one = signal(event(payloadDescriptors=described, intervals=[three]))

    assert read_one.target_kind is None
    prices = [quote for quote in read_one.quotes if quote.payload_type == "PRICE"]
    assert [quote.value for quote in prices] == [0.17, -0.03, 0.11]
    assert [(quote.end - quote.start).total_seconds() for quote in prices] == [1200] * 3
    assert (prices[0].units, prices[0].currency) == ("KWH", "USD")
    assert fault(asking("PRICE", "0.17"))[0] == VALUE


def test_a_subscription_is_no_target():
    read_one = signal(asking("IMPORT_CAPACITY_SUBSCRIPTION", 800, units="KW"))

    assert (read_one.target_kind, read_one.intervals[0].subscription_w) == (None, 800_000)


def test_unknown_payloads_and_fields_are_passed_over():
    read_one = signal({**asking("CHARGE_STATE_SETPOINT", 0.5), "x-private": {"a": 1}})

    assert (read_one.target_kind, read_one.ignored) == (None, ("CHARGE_STATE_SETPOINT",))


# When.


@pytest.mark.parametrize(
    "text",
    ["0001-01-01", "0001-01-01T00:00:00", "0001-01-01T00:00:00Z", "0000-00-00", "0000-00-00T00:00:00Z"],
)
def test_the_beginning_of_time_means_now(text):
    read_one = signal(event(intervalPeriod={"start": text, "duration": "P9999Y"}))

    assert (read_one.starts_now, read_one.start, read_one.end) == (True, NOW, None)


def test_what_starts_now_starts_once():
    raw = event(intervalPeriod={"start": "0001-01-01", "duration": "PT1H"})
    first = signal(raw)

    later = signal(raw, now=NOW + hours(0.5), known={"e1": first})

    assert (later.start, later.end) == (NOW, NOW + hours(1))


def test_intervals_follow_one_another_and_may_say_their_own_time():
    raw = event(
        intervals=[
            interval(payload("IMPORT_CAPACITY_LIMIT", 500), interval_id=7),
            interval(payload("IMPORT_CAPACITY_LIMIT", 300), interval_id=8, duration="PT2H"),
            interval(payload("IMPORT_CAPACITY_LIMIT", 400), interval_id=9, start="2026-07-01T18:00:00Z"),
        ]
    )

    read_one = signal(raw)

    got = [(each.interval_id, each.start.hour, each.end.hour, each.value) for each in read_one.intervals]
    assert got == [(7, 13, 14, 500_000), (8, 14, 16, 300_000), (9, 18, 19, 400_000)]
    assert (read_one.value, read_one.end.hour) == (300_000, 19)
    assert read_one.interval_at(NOW + hours(5)) is None


@pytest.mark.parametrize(
    ("whole", "ends_after_h", "n"),
    [("PT90M", 1.5, 2), ("PT5H", 5, 5), ("P9999Y", None, 168)],
)
def test_the_events_own_duration_cuts_or_repeats_its_intervals(whole, ends_after_h, n):
    two = [
        interval(payload("IMPORT_CAPACITY_LIMIT", watts), interval_id=i) for i, watts in enumerate((500, 300))
    ]

    read_one = signal(event(duration=whole, intervals=two))

    start = NOW + hours(1)
    assert read_one.end == (None if ends_after_h is None else start + hours(ends_after_h))
    assert len(read_one.intervals) == n
    assert read_one.interval_at(start + hours(1.2)).value == 300_000


def test_repeating_intervals_are_laid_out_around_now():
    two = [
        interval(payload("IMPORT_CAPACITY_LIMIT", watts), interval_id=i) for i, watts in enumerate((500, 300))
    ]
    raw = event(duration="P9999Y", intervals=two)
    known = {"e1": signal(raw)}

    later = signal(raw, now=NOW + hours(24 * 40), known=known)

    assert later.start == NOW + hours(1)
    assert later.n_before > 900
    assert later.interval_at(NOW + hours(24 * 40 + 0.5)).value == 300_000


@pytest.mark.parametrize(
    ("period", "path"),
    [
        ({"start": "2026-07-01T13:00:00Z"}, "intervalPeriod.duration"),
        ({"duration": "PT1H"}, "intervalPeriod.start"),
        ({"start": "2026-07-01T13:00:00", "duration": "PT1H"}, "intervalPeriod.start"),
        ({"start": "2026-02-30T13:00:00Z", "duration": "PT1H"}, "intervalPeriod.start"),
        ({"start": "tomorrow", "duration": "PT1H"}, "intervalPeriod.start"),
        ({"start": 1782910800, "duration": "PT1H"}, "intervalPeriod.start"),
        ({"start": "2026-07-01T13:00:00Z", "duration": "1h"}, "intervalPeriod.duration"),
        ({"start": "2026-07-01T13:00:00Z", "duration": "-PT1H"}, "intervalPeriod.duration"),
        ({"start": "2026-07-01T13:00:00Z", "duration": "P"}, "intervalPeriod.duration"),
        (
            {"start": "2026-07-01T13:00:00Z", "duration": "PT1H", "randomizeStart": "P2D"},
            "intervalPeriod.randomizeStart",
        ),
    ],
)
def test_a_time_that_is_none_is_refused_by_its_path(period, path):
    assert fault(event(intervalPeriod=period))[0] == f"events[0].{path}"


@pytest.mark.parametrize(
    "changes",
    [
        {"intervalPeriod": {"start": "0001-01-01", "duration": "PT0S"}},
        {"intervalPeriod": {"start": "2026-07-01T13:00:00Z", "duration": "PT0S"}},
        {"intervalPeriod": {"start": "2026-07-01T13:00:00Z", "duration": None}},
        {"intervalPeriod": {"start": None, "duration": "PT1H"}},
        {"intervalPeriod": {"start": "", "duration": ""}},
        {"intervalPeriod": None},
        {"duration": "PT0S"},
    ],
)
def test_an_emptied_time_asks_for_nothing_and_is_told(changes):
    reading = read(event(**changes))

    assert reading.refused == ()
    assert reading.signals[0].is_void
    assert reading.notices[0].path == "events[0].intervalPeriod"


@pytest.mark.parametrize(
    ("text", "seconds", "months"),
    [
        ("PT1H", 3600, 0),
        ("P1DT2H3M4.5S", 93784.5, 0),
        ("P2W", 1_209_600, 0),
        ("P1M", 0, 1),
        ("P1Y2M", 0, 14),
        ("PT0S", 0, 0),
    ],
)
def test_durations_are_read_as_iso_8601(text, seconds, months):
    assert (read_duration(text).seconds, read_duration(text).months) == (seconds, months)


def test_a_month_follows_the_calendar_and_9999_years_never_end():
    start = datetime(2027, 1, 31, tzinfo=UTC)

    assert read_duration("P1M").after(start) == datetime(2027, 2, 28, tzinfo=UTC)
    assert read_duration("P9999Y").after(start) is None
    assert read_duration("PT99999999999S").after(start) is None


@given(st.timedeltas(min_value=hours(0), max_value=hours(1e6)))
def test_a_duration_written_is_read_again(length):
    assert read_duration(write_duration(length)).seconds == pytest.approx(length.total_seconds(), abs=0.001)


@given(st.text(max_size=40) | st.from_regex(r"-?P[0-9YMDTHS.]{1,12}", fullmatch=True))
def test_no_text_does_worse_than_a_value_error(text):
    for read_it in (read_duration, read_start):
        with suppress(ValueError):
            read_it(text)


# What is not believed.


def test_an_older_version_than_the_known_one_is_refused():
    known = {"e1": signal(event(modificationDateTime="2026-07-01T11:30:00Z"))}

    assert fault(event(), known=known)[0] == "events[0].modificationDateTime"


def test_an_older_version_than_one_of_a_cancelled_event_is_refused():
    assert "older" in fault(event(), versions={"e1": NOW})[1]


def test_a_version_from_the_future_is_refused():
    assert fault(event(modificationDateTime=iso(NOW + hours(1))))[1] == "lies in the future"


def test_an_event_without_any_date_is_refused():
    path, _ = fault(event(modificationDateTime=UTMOST, createdDateTime=UTMOST))

    assert path == "events[0].modificationDateTime"


def test_an_unknown_event_that_began_long_ago_is_refused():
    period = {"start": iso(NOW - hours(25)), "duration": "P9999Y"}

    assert fault(event(intervalPeriod=period))[0] == "events[0].intervalPeriod.start"


def test_a_known_event_may_have_begun_long_ago():
    raw = event(intervalPeriod={"start": iso(NOW - hours(25)), "duration": "P9999Y"})
    known = {"e1": signal(raw, now=NOW - hours(0.5), rules={"p1": Rules(max_backdate_s=1e6)})}

    assert signal(raw, known=known).end is None


def test_events_that_are_over_are_no_claim():
    period = {"start": iso(NOW - hours(1000)), "duration": "PT1H"}

    assert signal(event(intervalPeriod=period)).is_over(NOW)


def test_a_subscription_may_have_begun_long_ago():
    period = {"start": iso(NOW - hours(1000)), "duration": "P9999Y"}

    assert signal(asking("IMPORT_CAPACITY_SUBSCRIPTION", 800, intervalPeriod=period)).end is None


def test_a_target_beyond_the_bounds_needs_a_person():
    rules = {"p1": Rules(floor_w=60_000, largest_shed_w=50_000)}

    assert signal(asking("IMPORT_CAPACITY_LIMIT", 59), rules=rules).needs_person
    assert not signal(asking("IMPORT_CAPACITY_LIMIT", 60), rules=rules).needs_person
    assert signal(asking("DISPATCH_SETPOINT_RELATIVE", 51), rules=rules).needs_person


def test_drills_are_marked_by_programme_or_by_name():
    assert signal(event(), rules={"p1": Rules(is_test=True)}).is_test
    assert signal(event(eventName="TEST of June"), rules={"p1": Rules(test_marker="TEST")}).is_test
    assert not signal(event(eventName="TEST of June")).is_test


# Many events.

BAD = [
    None,
    7,
    "event",
    [],
    {},
    {"id": "../../x", "programID": "p1", "intervals": []},
    event("bad1", programID=7),
    event("bad2", priority=True),
    event("bad3", priority=-1),
    event("bad4", intervals="none"),
    event("bad5", intervals=[{"id": "0", "payloads": []}]),
    event("bad6", intervals=[{"id": 0, "payloads": [{"type": "SIMPLE"}]}]),
    event("bad7", targets=[{"type": "GROUP"}]),
    event("bad8", intervals=[interval(payload("SIMPLE", 1))] * 3001),
    event("bad9", modificationDateTime=5),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:20])
def test_a_bad_event_hides_no_other(bad):
    reading = read(event("e1"), bad, event("e2"))

    assert [each.external_id for each in reading.signals] == ["e1", "e2"]
    assert all(each.path.startswith("events[1]") and each.message for each in reading.refused)
    assert reading.refused


def test_a_nameless_event_is_known_to_be_one():
    assert read({}).has_nameless
    assert read(event("bad", priority=True)).refused_ids == {"bad"}
    assert not read(event("bad", priority=True)).has_nameless


def test_an_event_that_is_listed_twice_is_refused():
    reading = read(event("e1"), event("e1", priority=0))

    assert (reading.signals, reading.refused_ids) == ((), {"e1"})


def test_an_event_of_another_programme_is_refused():
    assert fault(event(), program_ids=["p2"])[0] == "events[0].programID"


def test_a_faulty_report_request_keeps_no_limit_from_being_seen():
    reading = read(event(reportDescriptors=[{"payloadType": "DEMAND"}, {"payloadType": 7}]))

    assert reading.signals[0].value == 500_000
    assert len(reading.signals[0].reports) == 1
    assert reading.notices[0].path == "events[0].reportDescriptors[1].payloadType"


@pytest.mark.parametrize(
    ("targets", "is_ours"),
    [
        (None, True),
        ([], True),
        ([{"type": "VEN_NAME", "values": ["hall"]}], True),
        ([{"type": "VEN_NAME", "values": ["other"]}], False),
        ([{"type": "VEN_NAME", "values": ["other"]}, {"type": "RESOURCE_NAME", "values": ["row-1"]}], True),
        ([{"type": "SERVICE_AREA", "values": ["north"]}], True),
        (["some-group"], True),
    ],
)
def test_targets_say_who_is_meant(targets, is_ours):
    assert concerns(signal(event(targets=targets)), ven_name="hall", resource_names=["row-1"]) is is_ours


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(event())), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(event())), _JSON, max_size=4))
def test_whatever_an_event_holds_it_is_read_or_refused(changes):
    reading = read_events([{**event(), **changes}, event("good")], now=NOW)

    assert "good" in {each.external_id for each in reading.signals} | reading.refused_ids
    assert len(reading.signals) + len({each.path.split("]")[0] for each in reading.refused}) >= 2
    json.dumps([each.message for each in reading.refused])

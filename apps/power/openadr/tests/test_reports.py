"""Which reports are due, what they say, and that a VTN takes them."""

import pytest

from apps.power.openadr.client import Settings, Ven
from apps.power.openadr.reports import (
    OperatingState,
    Quality,
    Sample,
    build_report,
    can_report,
    due_reports,
    operating_state,
)
from apps.power.openadr.tests.builders import NOW, event, hours, interval, payload, signal
from apps.power.openadr.tests.vtn import CLIENT_ID, SECRET, FakeVtn
from apps.power.openadr.wire import Version

START = NOW + hours(1)


def six(**descriptor):
    """Six hours from 13:00, with ids from 10, and one report asked for."""
    intervals = [interval(payload("SIMPLE", 1), interval_id=10 + i) for i in range(6)]
    return signal(event(intervals=intervals, reportDescriptors=[{"payloadType": "DEMAND", **descriptor}]))


def due_at(asked, after_h, sent=-1, **more):
    found = due_reports([asked], now=START + hours(after_h), sent={("e1", 0): sent}, **more)
    return [(due.sequence, [window.interval_id - 10 for window in due.windows]) for due in found]


@pytest.mark.parametrize(
    ("descriptor", "after_h", "wanted"),
    [
        pytest.param({}, 5.9, [], id="all: not before the end"),
        pytest.param({}, 6, [(0, [0, 1, 2, 3, 4, 5])], id="all: at the end"),
        pytest.param({"historical": False}, 0, [(0, [0, 1, 2, 3, 4, 5])], id="forecast of all at the start"),
        pytest.param({"historical": False}, -0.1, [], id="forecast: not before the start"),
        pytest.param({"startInterval": 5}, 6, [(0, [5])], id="from one on"),
        pytest.param({"startInterval": 1, "numIntervals": 3}, 4, [(0, [1, 2, 3])], id="a subset"),
        pytest.param({"startInterval": 1, "numIntervals": 3}, 3.9, [], id="a subset: not before its end"),
        pytest.param({"numIntervals": 2}, 6, [(0, [4, 5])], id="the last two"),
    ],
)
def test_a_report_is_due_as_its_descriptor_says(descriptor, after_h, wanted):
    assert due_at(six(**descriptor), after_h) == wanted


def test_periodic_reports_follow_one_another():
    asked = six(startInterval=1, numIntervals=2, frequency=2, repeat=3)

    assert due_at(asked, 1.9) == []
    assert due_at(asked, 2) == [(0, [0, 1])]
    assert due_at(asked, 2, sent=0) == []
    assert due_at(asked, 4, sent=0) == [(1, [2, 3])]
    assert due_at(asked, 6, sent=1) == [(2, [4, 5])]
    assert due_at(asked, 60, sent=2) == []


def test_of_missed_reports_only_the_latest_is_sent():
    assert due_at(six(startInterval=1, numIntervals=2, frequency=2, repeat=3), 6) == [(2, [4, 5])]


def test_rolling_forecasts_look_ahead():
    asked = six(startInterval=0, numIntervals=3, frequency=1, repeat=3, historical=False)

    assert due_at(asked, 0) == [(0, [0, 1, 2])]
    assert due_at(asked, 1.5, sent=0) == [(1, [1, 2, 3])]
    assert due_at(asked, 5, sent=1) == [(2, [2, 3, 4])]


def test_an_event_for_reports_alone_implies_its_intervals():
    shed = {
        "payloadType": "LOAD_SHED_DELTA_AVAILABLE",
        "startInterval": 0,
        "numIntervals": 48,
        "historical": False,
    }
    asked = signal(event(intervals=None, reportDescriptors=[{**shed, "frequency": 1, "repeat": -1}]))

    (due,) = due_reports([asked], now=START + hours(100.5), sent={})

    assert (due.sequence, len(due.windows)) == (100, 48)
    assert due.windows[0].start == START + hours(100)


def test_a_limit_without_an_end_is_reported_by_quarter_hours():
    endless = {"start": "2026-07-01T13:00:00Z", "duration": "P9999Y"}
    asked = signal(event(intervalPeriod=endless, reportDescriptors=[{"payloadType": "DEMAND", "repeat": -1}]))

    (due,) = due_reports([asked], now=START + hours(1), sent={})

    assert (due.sequence, due.windows[0].start, due.windows[0].end) == (
        3,
        START + hours(0.75),
        START + hours(1),
    )


def test_repeating_intervals_are_reported_on_round_after_round():
    two = [interval(payload("SIMPLE", 1), interval_id=10 + i) for i in range(2)]
    asked = [{"payloadType": "DEMAND", "numIntervals": 2, "repeat": -1}]
    raw = event(duration="P9999Y", intervals=two, reportDescriptors=asked)
    at = START + hours(400.5)

    later = signal(raw, now=at, known={"e1": signal(raw)})
    (due,) = due_reports([later], now=at, sent={})

    assert due.sequence == 199
    assert (due.windows[0].start, due.windows[-1].end) == (START + hours(398), START + hours(400))


def test_a_report_at_our_own_time_is_due_with_the_news():
    asked = six(frequency=0, repeat=-1)

    assert due_at(asked, 1) != []
    assert due_at(asked, 1, sent=0) == []
    assert due_at(asked, 1, sent=0, changed={"e1"})[0][0] == 1


def test_what_we_cannot_report_is_never_due():
    asked = six(payloadType="STORAGE_CHARGE_LEVEL")

    assert not can_report(asked.reports[0])
    assert due_at(asked, 6) == []


def built(samples, version=Version.V3_1_0, **descriptor):
    (due,) = due_reports([six(numIntervals=1, **descriptor)], now=START + hours(6), sent={})
    return build_report(due, samples, version=version, client_name="hall")


def payloads(report, resource=0):
    return [
        (each["type"], each["values"]) for each in report["resources"][resource]["intervals"][0]["payloads"]
    ]


def test_a_report_says_watts_in_units_and_how_good_they_are():
    report = built({"row-1": [Sample(123_456.0, Quality.ESTIMATED)]})

    assert payloads(report) == [("DEMAND", [123.456]), ("DATA_QUALITY", ["ESTIMATED"])]
    assert report["payloadDescriptors"][0]["units"] == "KW"
    assert report["resources"][0]["intervals"][0]["intervalPeriod"] == {
        "start": "2026-07-01T18:00:00.000Z",
        "duration": "PT3600S",
    }


@pytest.mark.parametrize(
    ("units", "value", "said"), [("MW", 0.123456, "MW"), ("W", 123_456.0, "W"), ("KWH", 123.456, "KW")]
)
def test_power_is_sent_in_the_units_asked_for_if_they_are_of_power(units, value, said):
    report = built({"row-1": [Sample(123_456.0)]}, units=units)

    assert payloads(report)[0] == ("DEMAND", [value])
    assert report["payloadDescriptors"][0]["units"] == said


@pytest.mark.parametrize(
    ("value", "quality", "said"),
    [
        (None, Quality.OK, "MISSING"),
        (None, Quality.BAD, "BAD"),
        (float("nan"), Quality.OK, "BAD"),
        (True, Quality.OK, "BAD"),
    ],
)
def test_what_is_not_known_is_not_made_up(value, quality, said):
    assert payloads(built({"row-1": [Sample(value, quality)]})) == [("DATA_QUALITY", [said])]


def test_a_sum_adds_up_and_is_as_good_as_its_worst_part():
    good = built({"a": [Sample(1000.0)], "b": [Sample(2000.0, Quality.ESTIMATED)]}, aggregate=True)
    gap = built({"a": [Sample(1000.0)], "b": [Sample(None, Quality.MISSING)]}, aggregate=True)

    assert good["resources"][0]["resourceName"] == "AGGREGATED_REPORT"
    assert payloads(good) == [("DEMAND", [3.0]), ("DATA_QUALITY", ["ESTIMATED"])]
    assert payloads(gap) == [("DATA_QUALITY", ["MISSING"])]


def test_a_state_is_a_word():
    report = built({"a": [Sample(OperatingState.RUNNING_CURTAILED)]}, payloadType="OPERATING_STATE")

    assert payloads(report)[0] == ("OPERATING_STATE", ["RUNNING_CURTAILED"])
    assert "units" not in report["payloadDescriptors"][0]


@pytest.mark.parametrize(
    ("faulty", "opted_out", "curtailed", "state"),
    [
        (False, False, False, "NORMAL"),
        (False, False, True, "RUNNING_CURTAILED"),
        (False, True, True, "RUNNING_OPTED_OUT"),
        (True, True, True, "ERROR"),
    ],
)
def test_the_state_to_report(faulty, opted_out, curtailed, state):
    assert operating_state(is_faulty=faulty, is_opted_out=opted_out, is_curtailed=curtailed) == state


def test_samples_must_fit_the_windows():
    with pytest.raises(ValueError, match="0 samples for 1 windows"):
        built({"row-1": []})


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize(
    "payload_type", ["DEMAND", "BASELINE", "LOAD_SHED_DELTA_AVAILABLE", "OPERATING_STATE"]
)
def test_a_vtn_takes_the_report(version, payload_type):
    value = OperatingState.NORMAL if payload_type == "OPERATING_STATE" else 1000.0
    report = built({"row-1": [Sample(value)]}, version, payloadType=payload_type)

    with FakeVtn(version) as vtn:
        settings = Settings(
            vtn_url=vtn.url, client_id=CLIENT_ID, client_secret=SECRET, ven_name="hall", version=version
        )
        with Ven(settings) as ven:
            assert ven.send_report(report) == ven.send_report(report) == vtn.reports[0]["id"]

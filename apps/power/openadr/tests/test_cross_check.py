"""Our messages read by somebody else's library, and theirs by ours: openadr3, which knows version 3.1.0."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openadr3.entities import models as theirs

from apps.power.openadr.reports import OperatingState, Quality, Sample, build_report, due_reports
from apps.power.openadr.tests.builders import NOW, event, hours, interval, iso, payload, signal
from apps.power.openadr.wire import Version


@given(
    values=st.lists(st.integers(1, 900), min_size=1, max_size=6),
    minutes=st.integers(1, 600),
    start_in=st.integers(1, 5000),
)
def test_both_see_the_same_watts_at_the_same_times(values, minutes, start_in):
    raw = event(
        intervalPeriod={"start": iso(NOW + timedelta(minutes=start_in)), "duration": f"PT{minutes}M"},
        intervals=[
            interval(payload("IMPORT_CAPACITY_LIMIT", value), interval_id=at)
            for at, value in enumerate(values)
        ],
    )
    read = theirs.Event.from_raw(raw)
    ours = signal(raw)

    assert [
        (one.interval_period.period[0], one.interval_period.period[1], float(one.payloads[0].values[0]) * 1e3)
        for one in read.resolved_intervals()
    ] == [(one.start, one.end, one.value) for one in ours.intervals]
    assert (read.id, read.program_id, read.priority) == (ours.external_id, ours.program_id, ours.priority)
    assert read.modified == ours.modified_at


@pytest.mark.parametrize(
    ("payload_type", "sample", "said"),
    [
        ("DEMAND", Sample(480e3), [("DEMAND", [480.0]), ("DATA_QUALITY", ["OK"])]),
        (
            "BASELINE",
            Sample(900e3, Quality.ESTIMATED),
            [("BASELINE", [900.0]), ("DATA_QUALITY", ["ESTIMATED"])],
        ),
        ("LOAD_SHED_DELTA_AVAILABLE", Sample(None), [("DATA_QUALITY", ["MISSING"])]),
        (
            "OPERATING_STATE",
            Sample(OperatingState.RUNNING_CURTAILED),
            [("OPERATING_STATE", ["RUNNING_CURTAILED"]), ("DATA_QUALITY", ["OK"])],
        ),
    ],
)
def test_they_read_our_reports_as_we_mean_them(payload_type, sample, said):
    asking = signal(event(reportDescriptors=[{"payloadType": payload_type}]))
    (due,) = due_reports([asking], now=NOW + hours(2), sent={})
    body = build_report(due, {"r1": [sample]}, version=Version.V3_1_0, client_name="site")
    read = theirs.Report.from_raw(body)

    assert (read.event_id, read.client_name, read.report_name) == ("e1", "site", "e1.0.0")
    (resource,) = read.resources
    (told,) = resource.intervals
    assert resource.resource_name == "r1"
    assert told.interval_period.period == (NOW + hours(1), NOW + hours(2))
    assert [
        (one.type, [str(v) if isinstance(v, str) else float(v) for v in one.values]) for one in told.payloads
    ] == said

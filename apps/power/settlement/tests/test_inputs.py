"""What is no number, no instant or no sense is refused by the name of its field."""

from datetime import UTC, datetime
from decimal import Decimal
from math import inf, nan

import pytest

from apps.core.errors import InvalidInput
from apps.power.settlement.baseline import Calendar, adjusted, meter_before, ten_of_ten
from apps.power.settlement.facts import Reading, Readings, Terms, Window
from apps.power.settlement.report import Touched
from apps.power.settlement.tests.hall import at, call, meter, usual

NO_NUMBERS = [nan, inf, -inf, -1, True, "1", None, Decimal("NaN"), Decimal("sNaN"), Decimal("1e999999"), 1j]
TAKERS = {
    "readings[0].mean_w": lambda bad: meter(Reading(at(14), bad)),
    "readings[0].start": lambda bad: meter(Reading(bad, 1)),
    "max_age_s": lambda bad: Readings([], max_age_s=bad),
    "value_w": lambda bad: call(value_w=bad),
    "version": lambda bad: call(version=bad),
    "priority": lambda bad: call(priority=bad),
    "price_per_kwh": lambda bad: Terms(price_per_kwh=bad),
    "penalty_per_kwh": lambda bad: Terms(price_per_kwh=1, penalty_per_kwh=bad),
    "tolerance_share": lambda bad: Terms(price_per_kwh=1, tolerance_share=bad),
    "interval_s": lambda bad: Terms(price_per_kwh=1, interval_s=bad),
    "min_ok_share": lambda bad: Calendar(min_ok_share=bad),
    "lookback_days": lambda bad: Calendar(lookback_days=bad),
    "window.start": lambda bad: Window.of(bad, at(14)),
    "window.end": lambda bad: Window.of(at(14), bad),
    "window_s": lambda bad: meter_before(meter(), (), notified_at=at(14), window_s=bad),
    "notified_at": lambda bad: meter_before(meter(), (), notified_at=bad),
    "lost_device_s": lambda bad: Touched(1, "train", "cap", bad),
}


def fault(make) -> str:
    with pytest.raises(InvalidInput) as refused:
        make()
    return refused.value.errors[0]["path"]


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("path", TAKERS)
def test_what_is_no_number_is_refused_by_name(path, bad):
    assert fault(lambda: TAKERS[path](bad)) == path


@pytest.mark.parametrize("bad", [nan, True, 1.01, -0.1], ids=repr)
def test_a_cap_is_a_share(bad):
    event, readings = call(), meter(*usual())
    found = ten_of_ten(readings, event.windows(3600), Calendar())
    window = Window.of(at(10), at(12))

    assert (
        fault(lambda: adjusted(found, readings, window=window, notified_at=at(13), cap_share=bad))
        == "cap_share"
    )


def test_a_time_without_a_zone_is_no_instant():
    naive = datetime(2026, 7, 16, 14)  # noqa: DTZ001  # the point of it

    assert fault(lambda: meter(Reading(naive, 1))) == "readings[0].start"
    assert fault(lambda: call(start_at=naive)) == "start_at"


def test_seconds_and_datetimes_mean_the_same_instant():
    told = datetime(2026, 7, 16, 14, tzinfo=UTC)

    assert Window.of(told, at(15)) == Window.of(told.timestamp(), int(at(15).timestamp()))


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("notified_at", {"notified_at": at(14.5)}),
        ("end_at", {"end_at": at(14)}),
        ("cancelled_at", {"cancelled_at": at(13)}),
        ("version", {"version": 1.5}),
        ("start_at", {"start_at": 14}),
    ],
)
def test_an_event_that_makes_no_sense_is_refused(path, changes):
    assert fault(lambda: call(**changes)) == path


def test_two_readings_of_one_instant_are_refused():
    assert fault(lambda: meter(Reading(at(14), 1), Reading(at(14), 2))) == "readings"


def test_a_reading_needs_a_value_where_it_is_trusted():
    assert fault(lambda: meter(Reading(at(14), None))) == "readings[0].mean_w"
    meter(Reading(at(14), None, "missing"))


def test_a_quality_must_be_known():
    assert fault(lambda: meter(Reading(at(14), 1, "good"))) == "readings[0].quality"


def test_more_intervals_than_anybody_reads_are_refused():
    event = call(end_at=at(24 * 30))

    assert fault(lambda: event.windows(1)) == "interval_s"

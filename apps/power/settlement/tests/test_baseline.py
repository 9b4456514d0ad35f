"""What would have been drawn: which days count, which do not, and how the day itself is taken into account."""

from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from apps.core.errors import InvalidInput
from apps.power.settlement.baseline import (
    Calendar,
    NoBaseline,
    Skip,
    adjusted,
    high_three_of_five,
    meter_before,
    ten_of_ten,
    three_plus_two,
)
from apps.power.settlement.facts import Reading, Window
from apps.power.settlement.tests.hall import (
    DAY,
    at,
    call,
    event_day,
    hours,
    meter,
    p12,
    usual,
    working_days_before,
)

WINDOWS = call().windows(3600)


def day(days_before):
    return (DAY - timedelta(days=days_before)).date()


def kw(baseline):
    return [watts / 1000 for watts in baseline.baseline_w]


def test_p12_ten_days_make_132_and_the_day_itself_140_and_a_quarter():
    _, baseline, _ = p12()

    assert [watts / 1000 for watts in baseline.raw_w] == [Decimal("132.0")] * 3
    assert baseline.adjustment.ratio == baseline.adjustment.applied == Decimal("1.0625")
    assert kw(baseline) == [Decimal("140.25")] * 3
    assert baseline.n_days == 10
    assert not baseline.is_short_of_days


def test_p12_a_ratio_of_1_30_is_clipped_to_1_20():
    _, baseline, _ = p12(window_kw=128 * 1.3)

    assert baseline.adjustment.ratio == Decimal("1.30")
    assert baseline.adjustment.applied == Decimal("1.20")
    assert baseline.adjustment.is_clipped
    assert kw(baseline) == [Decimal("158.4")] * 3


def test_the_cap_is_a_matter_of_agreement():
    event, _, readings = p12(window_kw=64)
    found = ten_of_ten(readings, WINDOWS, Calendar())

    by_a_tenth = adjusted(
        found,
        readings,
        window=Window.of(at(10), at(12)),
        notified_at=event.notified_at,
        cap_share=Decimal("0.1"),
    )

    assert by_a_tenth.adjustment.ratio == Decimal("0.5")
    assert kw(by_a_tenth) == [Decimal("118.8")] * 3


def test_weekends_and_days_of_events_do_not_stand_for_a_working_day():
    called = day(1)
    readings = meter(*usual((999, 100, 100)), *hours((14, 17), kw=500, days_before=4))

    baseline = ten_of_ten(readings, WINDOWS, Calendar(event_days={called}))

    assert kw(baseline) == [100] * 3
    assert dict(baseline.skipped)[called] is Skip.EVENT
    assert dict(baseline.skipped)[day(4)] is Skip.UNLIKE
    assert baseline.days == (day(2), day(3))
    assert baseline.is_short_of_days


def test_a_holiday_is_like_a_weekend():
    event = call(
        start_at=at(14, days_before=4), end_at=at(15, days_before=4), notified_at=at(13, days_before=4)
    )
    readings = meter(*hours((14, 15), kw=60, days_before=5), *hours((14, 15), kw=130, days_before=6))

    baseline = ten_of_ten(readings, event.windows(3600), Calendar(holidays={day(5)}))

    assert baseline.days == (day(5),)


@pytest.mark.parametrize("quality", ["estimated", "missing", "bad"])
def test_a_day_with_too_little_good_data_is_passed_over(quality):
    spoilt = [
        one._replace(quality=quality) if one.start == at(15, days_before=1) else one
        for one in usual((999, 100))
    ]

    baseline = ten_of_ten(meter(*spoilt), WINDOWS, Calendar())

    assert baseline.days == (day(2),)
    assert baseline.skipped[0] == (day(1), Skip.TOO_LITTLE_DATA)


def test_a_few_minutes_without_data_do_not_cost_a_day():
    minutes = [Reading(at(14 + n / 60, days_before=1), 100_000) for n in range(180) if n % 60 not in (7, 8)]

    baseline = ten_of_ten(meter(*minutes, max_age_s=60), WINDOWS, Calendar())

    assert baseline.days == (day(1),)
    assert kw(baseline) == [100] * 3


def test_without_one_day_there_is_no_baseline():
    with pytest.raises(NoBaseline) as refused:
        ten_of_ten(meter(*event_day()), WINDOWS, Calendar())

    assert refused.value.code == "no_baseline"
    assert refused.value.facts == {"of": "days"}


def test_a_day_further_back_than_allowed_is_not_looked_at():
    readings = meter(*hours((14, 17), kw=100, days_before=14))

    with pytest.raises(NoBaseline):
        ten_of_ten(readings, WINDOWS, Calendar(lookback_days=13))


def test_the_same_time_of_day_is_the_local_one_when_the_clocks_change():
    # In Berlin 14:00 is 12:00 UTC in summer and 13:00 UTC in winter; the clocks went back on Sunday, 25 October 2026.
    monday = DAY.replace(month=10, day=26, hour=13)
    event = call(start_at=monday, end_at=monday + timedelta(hours=1), notified_at=monday)
    friday = Reading(monday - timedelta(days=3, hours=1), 77_000)

    baseline = ten_of_ten(meter(friday), event.windows(3600), Calendar(zone=ZoneInfo("Europe/Berlin")))

    assert kw(baseline) == [77]


def test_high_three_of_five_takes_those_that_drew_most():
    baseline = high_three_of_five(meter(*usual((130, 140, 120, 150, 110, 900))), WINDOWS, Calendar())

    assert kw(baseline) == [140] * 3
    assert baseline.days == tuple(
        day(days) for days in working_days_before(4) if days != working_days_before(3)[2]
    )
    assert [why for _, why in baseline.skipped].count(Skip.LOWER) == 2


def test_three_plus_two_leaves_out_the_hours_next_to_the_event():
    readings = meter(*hours((10, 13), kw=130), *hours((13, 18), kw=1), *hours((18, 20), kw=140))

    baseline = three_plus_two(readings, WINDOWS, notified_at=at(13.75))

    assert kw(baseline) == [134] * 3


def test_three_plus_two_does_not_look_past_the_notice():
    early = hours((8, 11), kw=100)
    after_the_notice = hours((11, 14), kw=900)

    baseline = three_plus_two(
        meter(*early, *after_the_notice, *hours((18, 20), kw=100)), WINDOWS, notified_at=at(11)
    )

    assert kw(baseline) == [100] * 3


def test_meter_before_is_the_quarter_of_an_hour_before_the_notice():
    quarters = [Reading(at(13 + n / 4), 100_000 + n * 1000) for n in range(4)]

    baseline = meter_before(meter(*quarters, max_age_s=900), WINDOWS, notified_at=at(13.75))

    assert kw(baseline) == [102] * 3


def test_meter_before_needs_good_readings():
    readings = meter(Reading(at(13.5), 100_000, "estimated"))

    with pytest.raises(NoBaseline, match="0% of the time"):
        meter_before(readings, WINDOWS, notified_at=at(13.75))


def test_the_adjustment_window_must_not_reach_past_the_notice():
    readings = meter(*usual(), *event_day())
    found = ten_of_ten(readings, WINDOWS, Calendar())

    with pytest.raises(InvalidInput) as refused:
        adjusted(found, readings, window=Window.of(at(10), at(12)), notified_at=at(11.99))

    assert refused.value.errors[0]["path"] == "adjustment.window"


def test_what_is_of_the_day_of_the_event_is_not_adjusted_by_it():
    readings = meter(*event_day(), *hours((13, 14), kw=130))
    found = meter_before(readings, WINDOWS, notified_at=at(13.75))

    with pytest.raises(InvalidInput, match="cannot be adjusted"):
        adjusted(found, readings, window=Window.of(at(10), at(12)), notified_at=at(13.75))


def test_days_without_load_in_the_window_cannot_be_compared():
    readings = meter(*usual(window_kw=0), *event_day())
    found = ten_of_ten(readings, WINDOWS, Calendar())

    with pytest.raises(NoBaseline):
        adjusted(found, readings, window=Window.of(at(10), at(12)), notified_at=at(13.75))

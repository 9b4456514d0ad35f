"""What an event is worth, on the scenario's numbers and at the edges."""

from dataclasses import replace
from decimal import Decimal

import pytest

from apps.core.errors import InvalidInput
from apps.power.settlement.facts import Quality, Reading, TargetKind, Window
from apps.power.settlement.settle import Outcome, settle
from apps.power.settlement.tests.hall import TERMS, at, call, event_day, flat, meter, p12


def kw(values):
    return [value if value is None else value / 1000 for value in values]


def test_p12_to_the_cent():
    event, baseline, readings = p12()

    done = settle(event, TERMS, baseline, readings)

    assert kw(one.delivered_w for one in done.intervals) == [
        Decimal("22.25"),
        Decimal("19.25"),
        Decimal("14.25"),
    ]
    assert [one.is_compliant for one in done.intervals] == [True, True, False]
    assert round(done.performance, 3) == Decimal("0.931")
    assert done.delivered_wh == Decimal("55750")
    assert done.credited_wh == Decimal("50250")
    assert done.payment == Decimal("20.10")
    assert done.shortfall_wh == Decimal("3750")
    assert done.penalty == Decimal("7.50")
    assert done.net == Decimal("12.60")
    assert done.outcome is Outcome.PARTIAL


@pytest.mark.parametrize(
    ("metered_kw", "outcome"),
    [((118, 119, 120), Outcome.MET), ((118, 119, 139), Outcome.PARTIAL), ((141, 139, 200), Outcome.MISSED)],
)
def test_the_outcome_follows_the_intervals(metered_kw, outcome):
    event = call()

    assert settle(event, TERMS, flat(event), meter(*event_day(metered_kw))).outcome is outcome


def test_exactly_the_target_less_the_tolerance_is_enough():
    event = call()
    just, too_much = Decimal("123.15"), Decimal("123.150001")

    done = settle(event, TERMS, flat(event), meter(*event_day((just, just, too_much))))

    assert [one.is_compliant for one in done.intervals] == [True, True, False]
    # What is missing within the tolerance costs no penalty, but earns nothing either.
    assert done.intervals[0].shortfall_wh == 0
    assert done.intervals[0].credited_wh == 17_100


def test_more_than_the_target_is_not_paid_and_more_load_takes_nothing_from_other_hours():
    event = call()

    done = settle(event, TERMS, flat(event), meter(*event_day((40, 150, 150))))

    assert done.delivered_wh == Decimal("80750")
    assert done.credited_wh == 18_000
    assert done.shortfall_wh == 36_000


@pytest.mark.parametrize("quality", [Quality.ESTIMATED, Quality.MISSING, Quality.BAD])
def test_an_interval_without_good_readings_is_listed_and_earns_nothing(quality):
    event = call()
    first, second, third = event_day((118, 118, 118))[:3]

    done = settle(event, TERMS, flat(event), meter(first, second._replace(quality=quality), third))

    listed = done.intervals[1]
    assert listed.quality is quality
    assert not listed.is_compliant
    assert listed.credited_wh == listed.performance == 0
    assert (listed.metered_w is None) == (quality is not Quality.ESTIMATED)
    assert done.credited_wh == 36_000
    assert done.unproven_wh == done.shortfall_wh == 18_000
    assert done.outcome is Outcome.PARTIAL


def test_what_is_not_proved_may_go_without_a_penalty_by_agreement():
    event = call()
    lenient = replace(TERMS, is_unproven_short=False)

    done = settle(event, lenient, flat(event), meter(*event_day((118, 118))))

    assert done.intervals[2].quality is Quality.MISSING
    assert done.penalty == 0
    assert done.credited_wh == 36_000


def test_one_bad_minute_spoils_its_interval_alone():
    event = call(end_at=at(15))
    minutes = [Reading(at(14 + n / 60), 118_000, "bad" if n == 20 else "ok") for n in range(60)]
    quarters = replace(TERMS, interval_s=900)

    done = settle(event, quarters, flat(event, interval_s=900), meter(*minutes, max_age_s=60))

    assert [one.quality for one in done.intervals] == ["ok", "bad", "ok", "ok"]
    assert done.credited_wh == 13_500


def test_p04_cancelled_midway_is_settled_to_the_cancellation():
    event = call(cancelled_at=at(15.5))

    done = settle(event, TERMS, flat(event), meter(*event_day((118, 118, 118))))

    assert [one.window.length_us // 10**6 for one in done.intervals] == [3600, 1800]
    assert done.credited_wh == 27_000
    assert done.outcome is Outcome.MET


def test_p04_cancelled_before_it_began_there_is_nothing_to_settle():
    event = call(cancelled_at=at(13.8))

    done = settle(event, TERMS, flat(event), meter())

    assert done.outcome is Outcome.CANCELLED
    assert done.intervals == ()
    assert done.performance is None
    assert done.net == 0


def test_a_short_last_interval_weighs_by_its_length():
    event = call(cancelled_at=at(15.25))

    done = settle(event, TERMS, flat(event), meter(*event_day((118, 140.25))))

    assert done.performance == Decimal("0.8")


def test_a_limit_asks_for_what_lies_above_it():
    event = call(target_kind=TargetKind.LIMIT_TO, value_w=122_250)

    done = settle(event, TERMS, flat(event), meter(*event_day()))

    assert kw(one.target_w for one in done.intervals) == [18, 18, 18]
    assert done.net == Decimal("12.60")


def test_a_limit_above_the_baseline_is_kept_while_the_meter_stays_below_it():
    event = call(target_kind=TargetKind.LIMIT_TO, value_w=150_000)

    done = settle(event, TERMS, flat(event), meter(*event_day((145, 150, 151))))

    assert [one.is_compliant for one in done.intervals] == [True, True, False]
    assert done.target_wh == done.credited_wh == 0
    assert done.shortfall_wh == 1_000


def second(**changes):
    """Limit to 108.4 kW from 15:30 to 16:30, before all others."""
    return call(
        event_id="grid-9",
        **{
            "priority": 0,
            "notified_at": at(15),
            "start_at": at(15.5),
            "end_at": at(16.5),
            "target_kind": TargetKind.LIMIT_TO,
            "value_w": 108_400,
            **changes,
        },
    )


def test_p03_energy_of_an_overlap_is_paid_once_to_the_event_with_precedence():
    first, other = call(), second()
    readings = meter(*event_day((106.8, 106.8, 106.8)))

    lower = settle(first, TERMS, flat(first, "132.4"), readings, others=[other])
    upper = settle(other, TERMS, flat(other, "132.4"), readings, others=[first])

    assert [one.overlaps for one in lower.intervals] == [(), ("grid-9",), ("grid-9",)]
    assert lower.overlaps[0].window == Window.of(at(15.5), at(16.5))
    assert lower.credited_wh == 36_000  # 18 kW of two hours; the third belongs to the other
    assert upper.credited_wh == 24_000
    assert lower.outcome is upper.outcome is Outcome.MET


def test_two_programmes_may_agree_to_pay_an_overlap_twice():
    event = call()
    both = replace(TERMS, pays_overlap_once=False)

    done = settle(event, both, flat(event), meter(*event_day((118, 118, 118))), others=[second()])

    assert done.credited_wh == 54_000
    assert done.overlaps


def test_two_others_at_one_time_take_it_once():
    event = call()
    third = call(event_id="grid-10", priority=0, notified_at=at(15), start_at=at(15.75))
    others = [second(), third]

    done = settle(event, TERMS, flat(event), meter(*event_day((118, 118, 118))), others=others)

    assert done.credited_wh == 27_000


def test_of_equal_priorities_the_stricter_target_goes_first():
    mild, strict = call(), call(event_id="heat-8", value_w=20_000)
    readings = meter(*event_day((118, 118, 118)))

    assert settle(mild, TERMS, flat(mild), readings, others=[strict]).credited_wh == 0
    assert settle(strict, TERMS, flat(strict), readings, others=[mild]).credited_wh == 60_000


def test_cents_are_rounded_once_and_half_to_even():
    event = call(end_at=at(15), value_w=1_000)
    readings = meter(*event_day((118,)))

    def pay(price):
        return settle(event, replace(TERMS, price_per_kwh=price), flat(event), readings).payment

    assert pay(Decimal("0.125")) == Decimal("0.12")
    assert pay(Decimal("0.135")) == Decimal("0.14")
    assert str(pay(1)) == "1.00"


def test_a_baseline_of_other_intervals_is_refused():
    event = call()

    with pytest.raises(InvalidInput) as refused:
        settle(event, TERMS, flat(event, interval_s=900), meter(*event_day()))

    assert refused.value.errors[0]["path"] == "baseline"


def test_a_baseline_adjusted_after_the_notice_is_refused():
    _, baseline, readings = p12()

    with pytest.raises(InvalidInput) as refused:
        settle(call(notified_at=at(11)), TERMS, baseline, readings)

    assert refused.value.errors[0]["path"] == "adjustment.window"

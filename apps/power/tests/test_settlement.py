"""Settling events: what is credited, what it costs, and what stays as it was."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power import plan_services, response_services, settlement_services
from apps.power.errors import EventNotOver
from apps.power.models import DemandResponseEvent, PowerReading, SettlementReport
from apps.power.settlement.baseline import NoBaseline
from apps.power.tests.builders import NOTICE, announce, clock, commit, preview, programme
from apps.teams.tests.builders import NOON, person

pytestmark = pytest.mark.django_db
USUAL_KW = (
    130,
    132,
    131,
    133,
    134,
    132,
    130,
    133,
    132,
    133,
)  # P12: the last ten working days, 132.0 on average
LATER = NOON + timedelta(days=1)
HOUR = timedelta(hours=1)


def meter(hall, begin_at, until_at, kw, *, step=timedelta(minutes=15), **more):
    """What an interval meter said: a mean for each quarter of an hour."""
    at, rows = begin_at, []
    while at < until_at:
        rows.append(PowerReading(domain=hall, at=at, draw_w=kw * 1000, **{"source": "metered", **more}))
        at += step
    PowerReading.objects.bulk_create(rows)


def working_days_back(n):
    return [back for back in range(1, 3 * n) if (NOON - timedelta(days=back)).weekday() < 5][:n]


def usual_days(hall, *, window_kw=128):
    """Ten working days: their load from 14 to 17 o'clock, and before that."""
    for back, kw in zip(working_days_back(10), USUAL_KW, strict=True):
        day = timedelta(days=back)
        meter(hall, clock(14) - day, clock(17) - day, kw)
        meter(hall, clock(10) - day, clock(13) - day, window_kw)


def event_day(hall, *, window_kw=136, kw=(118, 121, 126)):
    meter(hall, clock(10), clock(13), window_kw)
    meter(hall, clock(13), clock(14), window_kw)
    for hour, load in enumerate(kw):
        meter(hall, clock(14 + hour), clock(15 + hour), load)


@pytest.fixture
def hall():
    return domain("hall", "hall")


def p12(hall, **more):
    """The event of the scenario: 18 kW for three hours, settled by the hour."""
    rules = {"interval_s": 3600, "price_per_kwh": Decimal("0.40"), "penalty_per_kwh": Decimal("2.00"), **more}
    programme(**rules)
    usual_days(hall)
    event_day(hall)
    return announce(programme="summer", is_below_floor_confirmed=True)


def settled(event, at=LATER, actor=None, **more):
    return settlement_services.settle_event(event_id=event.pk, actor=actor, at=at, **more)


def figures(report):
    names = ("credited_wh", "payment", "penalty", "net")
    return [str(getattr(report, name).normalize()) for name in names]


def test_p12_comes_to_the_numbers_of_the_scenario(hall):
    event = p12(hall)
    report = settled(event)
    told = report.document

    assert told["baseline"]["raw_w"] == ["132000.000000"] * 3
    assert told["baseline"]["adjustment"]["ratio"] == "1.062500"
    assert [row["baseline_w"] for row in told["intervals"]] == ["140250.000000"] * 3
    assert [row["metered_w"] for row in told["intervals"]] == [
        "118000.000000",
        "121000.000000",
        "126000.000000",
    ]
    assert [row["delivered_w"] for row in told["intervals"]] == [
        "22250.000000",
        "19250.000000",
        "14250.000000",
    ]
    assert [row["is_compliant"] for row in told["intervals"]] == [True, True, False]
    assert report.performance.quantize(Decimal("0.001")) == Decimal("0.931")
    assert (report.delivered_wh, report.credited_wh) == (Decimal(55750), Decimal(50250))
    assert (report.payment, report.penalty, report.net) == (
        Decimal("20.10"),
        Decimal("7.50"),
        Decimal("12.60"),
    )
    event.refresh_from_db()
    assert (report.outcome, event.outcome) == ("partial", "partial")


def test_a_ratio_above_the_cap_is_clipped(hall):
    programme(interval_s=3600)
    usual_days(hall, window_kw=100)
    event_day(hall, window_kw=130)
    told = settled(announce(programme="summer", is_below_floor_confirmed=True)).document

    made = told["baseline"]["adjustment"]
    assert (made["ratio"], made["applied"], made["is_clipped"]) == ("1.300000", "1.200000", True)
    assert told["intervals"][0]["baseline_w"] == "158400.000000"

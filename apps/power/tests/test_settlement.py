"""Settling events: what is credited, what it costs, and what stays as it was."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core.errors import Forbidden
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.jobs.tests import builders as work
from apps.power import plan_services, response_services, settlement_services
from apps.power.errors import EventNotOver
from apps.power.models import DemandResponseEvent, PowerReading, SettlementReport
from apps.power.settlement.baseline import NoBaseline
from apps.power.tests.builders import NOTICE, announce, clock, commit, preview, programme
from apps.power.tests.builders import action as act
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


@pytest.fixture
def facility_jobs():
    """Two jobs of eight devices each that run, on devices whose throughput under a cap is known."""
    fleet = work.fleet(n_nodes=2, n_devices=8)
    fleet.kind.power_curve = [[3 / 7, 0.5], [4 / 7, 0.7], [1, 1]]
    fleet.kind.save()
    team = work.team(quota={fleet.kind: 16})
    owner = work.person(team)
    jobs = []
    for node, name in zip(fleet.nodes, ("train", "batch"), strict=True):
        made = work.job(team, owner, name=name, devices=8, accelerators=[fleet.kind.name])
        work.start(made, fleet, work.grant(node, range(8)))
        jobs.append(made)
    return jobs


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
    return [format(getattr(report, name).normalize(), "f") for name in names]


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


def test_p03_two_reports_each_against_its_own_target(hall):
    """P01 from 14 to 17 asks for 18 kW; from 15:30 to 16:30 a second one, which goes first, leaves 108.4 kW."""
    programme(price_per_kwh=Decimal("0.40"))
    programme("capacity", target_kind="limit_to", price_per_kwh=Decimal("0.60"))
    usual_days(hall)
    meter(hall, clock(10), clock(14), 128)  # as ever: no adjustment
    meter(hall, clock(14), clock(15, 30), 113.2)
    meter(hall, clock(15, 30), clock(16, 30), 106.8)
    meter(hall, clock(16, 30), clock(17), 113.2)
    first = announce(programme="summer", is_below_floor_confirmed=True)
    second = announce(
        programme="capacity",
        target_kind="limit_to",
        value=108.4e3,
        priority=0,
        at=clock(15),
        start_at=clock(15, 30),
        end_at=clock(16, 30),
        is_below_floor_confirmed=True,
    )

    own, other = settled(first), settled(second)

    assert (own.outcome, other.outcome) == ("met", "met")
    # 18 kW for three hours were asked and shed; the hour of the other one is paid there.
    assert (own.target_wh, own.credited_wh, own.payment) == (54_000, 36_000, Decimal("14.40"))
    flagged = [row["start_at"][11:16] for row in own.document["intervals"] if row["overlaps"]]
    assert flagged == ["15:30", "15:45", "16:00", "16:15"]
    assert own.document["overlaps"] == [
        {
            "event_id": str(second.pk),
            "start_at": clock(15, 30).isoformat(),
            "end_at": clock(16, 30).isoformat(),
            "has_precedence": True,
        }
    ]
    # Against the baseline of 132 kW the limit asks for 23.6; the other event's day is no part of any baseline.
    assert (other.target_wh, other.credited_wh, other.payment) == (23_600, 23_600, Decimal("14.16"))
    assert all(row["overlaps"] == [str(first.pk)] for row in other.document["intervals"])


def test_the_hours_of_another_event_adjust_no_baseline(hall):
    """A window in which another event held the load down would make the baseline too low."""
    programme(interval_s=3600)
    usual_days(hall)
    for back in working_days_back(10):
        meter(hall, clock(7) - timedelta(days=back), clock(10) - timedelta(days=back), 128)
    meter(hall, clock(6), clock(10), 128)
    meter(hall, clock(10), clock(14), 64)  # half, for somebody else
    meter(hall, clock(14), clock(17), 110)
    announce(
        at=clock(10), notified_at=clock(10), ramp_start_at=clock(10), start_at=clock(10, 15), end_at=clock(12)
    )
    event = announce(programme="summer", is_below_floor_confirmed=True)

    made = settled(event).document["baseline"]["adjustment"]
    assert made["end_at"] == clock(10).isoformat()
    assert (made["ratio"], made["metered_w"]) == ("1.000000", "128000.000000")


def test_what_is_not_proved_earns_nothing(hall):
    event = p12(hall)
    PowerReading.objects.filter(at__range=(clock(14, 30), clock(14, 59))).delete()
    PowerReading.objects.filter(at=clock(15, 15)).update(quality="estimated")
    report = settled(event)
    rows = report.document["intervals"]

    assert [row["quality"] for row in rows] == ["missing", "estimated", "ok"]
    assert [row["is_compliant"] for row in rows] == [False, False, False]
    assert [row["credited_wh"] for row in rows[:2]] == ["0.000000", "0.000000"]
    assert report.outcome == "missed"
    # What was asked of the two hours counts as missing, beside what the third did not reach.
    assert report.shortfall_wh == 18_000 + 18_000 + 3_750


def test_where_no_meter_speaks_the_model_is_an_estimate(hall):
    event = p12(hall)
    PowerReading.objects.filter(at__gte=clock(14), at__lt=clock(15)).update(
        source="modelled", quality="estimated"
    )
    meter(hall, clock(15, 5), clock(16, 5), 50, source="modelled", quality="estimated")
    report = settled(event)
    rows = report.document["intervals"]

    assert [row["quality"] for row in rows] == ["estimated", "ok", "ok"]
    assert rows[0]["metered_w"] == "119125.000000"  # 136 of the meter stood for 3 min 45 s
    assert rows[1]["metered_w"] == "121000.000000"  # beside a meter the model says nothing
    assert report.document["readings"]["n_modelled"] > 0
    assert any("modelled" in note for note in report.document["notes"])


def test_late_readings_make_a_second_version_and_the_first_stays(hall):
    p12(hall)
    late = list(PowerReading.objects.filter(at__gte=clock(16), at__lt=clock(17)))
    PowerReading.objects.filter(pk__in=[one.pk for one in late]).delete()
    settlement_services.settle_due(at=clock(17, 16))
    first = SettlementReport.objects.get()
    assert first.document["intervals"][2]["quality"] == "missing"

    PowerReading.objects.bulk_create(late)
    settlement_services.settle_due(at=clock(17, 30))
    assert SettlementReport.objects.count() == 1  # they may still be coming
    settlement_services.settle_due(at=clock(18, 20))

    versions = SettlementReport.objects.order_by("number")
    assert [one.number for one in versions] == [1, 2]
    assert versions[0].document == first.document
    assert figures(versions[1]) == ["50250", "20.1", "7.5", "12.6"]
    logged = Event.objects.filter(kind="demand_response.settled").order_by("id")
    assert [one.after["number"] for one in logged] == [1, 2]
    assert logged[1].before["net"] == str(first.net)


def test_twice_is_once(hall):
    event = p12(hall)
    for hour in (18, 19, 20):
        settlement_services.settle_due(at=clock(hour))
    again = settled(event, actor=person("olga", "operator"))

    assert again == SettlementReport.objects.get()
    assert Event.objects.filter(kind="demand_response.settled").count() == 1


def test_what_is_settled_already_costs_no_query_each(hall):
    def queries_of_a_look():
        settlement_services.settle_due(at=clock(18))
        with CaptureQueriesContext(connection) as seen:
            settlement_services.settle_due(at=clock(18, 10))
        return len(seen)

    p12(hall)
    of_one = queries_of_a_look()
    for _ in range(3):
        announce(value=1e3)
    assert queries_of_a_look() == of_one
    assert SettlementReport.objects.count() == 4


def test_a_version_is_never_changed(hall):
    report = settled(p12(hall))
    for change in (lambda: SettlementReport.objects.update(net=1, payment=1, penalty=0), report.delete):
        with pytest.raises(IntegrityError, match="stays as it is"), transaction.atomic():
            change()
    with pytest.raises(IntegrityError, match="settlement_net"), transaction.atomic():
        SettlementReport.objects.create(
            **{
                field.name: getattr(report, field.name)
                for field in SettlementReport._meta.fields
                if field.name not in ("id", "number", "net")
            },
            number=2,
            net=Decimal("99"),
        )


def test_nothing_is_settled_before_it_is_over(hall):
    event = p12(hall)
    with pytest.raises(EventNotOver):
        settled(event, at=clock(16, 59))
    settlement_services.settle_due(at=clock(17, 5))  # the last readings are on their way

    assert not SettlementReport.objects.exists()
    assert settled(event, at=clock(17)).number == 1


@pytest.mark.parametrize("role", ["", "auditor"])
def test_only_operators_settle(hall, role):
    event = p12(hall)
    with pytest.raises(Forbidden):
        settled(event, actor=person("vic", role))


def test_a_cancelled_event_is_settled_for_what_it_bound(hall):
    event = p12(hall)
    response_services.cancel_event(event_id=event.pk, actor=None, at=clock(15))
    report = settled(event)

    assert len(report.document["intervals"]) == 1
    assert (report.outcome, report.document["outcome"]) == ("cancelled", "met")
    assert report.payment == Decimal("7.20")


def test_what_was_called_off_before_its_start_comes_to_nothing(hall):
    event = p12(hall)
    response_services.opt_out(event_id=event.pk, actor=None, at=NOTICE + timedelta(minutes=5))
    report = settled(event)

    assert report.document["intervals"] == []
    assert (report.outcome, report.net, report.performance) == ("opted_out", 0, None)
    event.refresh_from_db()
    assert event.outcome == "opted_out"


def test_a_drill_is_measured_and_costs_nothing(hall):
    event = p12(hall)
    DemandResponseEvent.objects.filter(pk=event.pk).update(is_test=True)
    report = settled(event)

    assert (report.outcome, report.credited_wh, report.payment, report.penalty) == ("partial", 50_250, 0, 0)
    assert report.document["is_test"] is True
    assert any("drill" in note for note in report.document["notes"])


def test_without_a_baseline_nothing_is_settled_and_others_are(hall):
    programme(interval_s=3600)
    draw_before(hall)
    meter(hall, clock(14), clock(17), 110)
    first = announce(programme="summer", is_below_floor_confirmed=True)
    second = announce(value=1e3)  # by the load before its notice
    with pytest.raises(NoBaseline):
        settled(first)
    settlement_services.settle_due(at=clock(18))

    assert [one.event_id for one in SettlementReport.objects.all()] == [second.pk]


def draw_before(hall):
    meter(hall, NOTICE - timedelta(minutes=15), clock(14), 132, step=timedelta(minutes=1))


def test_3_plus_2_waits_for_the_hours_after(hall):
    programme(baseline_method="3_plus_2", interval_s=3600)
    meter(hall, clock(9), clock(14), 130)
    meter(hall, clock(14), clock(17), 110)
    meter(hall, clock(17), clock(20), 140)
    event = announce(programme="summer", is_below_floor_confirmed=True)
    settlement_services.settle_due(at=clock(18))
    assert not SettlementReport.objects.exists()
    settlement_services.settle_due(at=clock(20, 20))

    report = SettlementReport.objects.get(event=event)
    assert report.document["intervals"][0]["baseline_w"] == "134000.000000"  # (3 x 130 + 2 x 140) / 5


def test_a_level_counts_from_the_reference(hall):
    programme(baseline_method="meter_before", target_kind="level", interval_s=3600)
    draw_before(hall)
    meter(hall, clock(14), clock(17), 118, step=timedelta(minutes=1))
    event = announce(programme="summer", target_kind="level", value=1, is_below_floor_confirmed=True)

    report = settled(event)
    assert report.document["intervals"][0]["target_w"] == "13200.000000"
    assert report.outcome == "met"


# What else falls due ------------------------------------------------------------------------------------------------


def test_the_reference_is_frozen_at_the_notice(hall):
    meter(hall, clock(13), clock(14), 132, step=timedelta(minutes=1))
    event = announce(at=clock(12, 30), notified_at=NOTICE, value=1e3)
    settlement_services.settle_due(at=clock(13, 44))
    assert DemandResponseEvent.objects.get(pk=event.pk).reference_w is None
    settlement_services.settle_due(at=clock(13, 46))

    assert DemandResponseEvent.objects.get(pk=event.pk).reference_w == pytest.approx(132e3)


def test_a_release_is_noted_once_all_is_reverted_and_the_load_is_back(hall):
    draw_before(hall)
    event = announce(value=1e3)
    preview(event)
    plan = commit(event, person("olga", "operator"))
    for action in plan.actions.all():
        report_state(action, "verified", clock(14))
    meter(
        hall, clock(16, 55), clock(17, 6), 150, step=timedelta(minutes=1)
    )  # too much: 105 % of 132 are allowed
    for action in plan.actions.all():
        report_state(action, "reverted", clock(17, 1))
    settlement_services.settle_due(at=clock(17, 5))
    assert DemandResponseEvent.objects.get(pk=event.pk).released_at is None
    meter(hall, clock(17, 6), clock(17, 11), 120, step=timedelta(minutes=1))
    settlement_services.settle_due(at=clock(17, 10))

    assert DemandResponseEvent.objects.get(pk=event.pk).released_at == clock(17, 10)


def report_state(action, state, at):
    plan_services.record_action_state(idempotency_key=action.idempotency_key, state=state, fence=1, at=at)


# What it cost -------------------------------------------------------------------------------------------------------


def test_lost_device_hours_are_counted_from_what_was_done(hall, facility_jobs):
    """Eight devices at 400 of 700 W keep 0.70 of their throughput; eight more are paused."""
    draw_before(hall)
    event = announce(value=1e3)
    capped, paused = facility_jobs
    acts = [
        act(capped.pk, lever="cap", before={"cap_w": 700}, after={"cap_w": 400}),
        act(paused.pk, lever="pause", before={}, after={}, tier=4),
    ]
    preview(event, actions=acts, lost_device_s=99.0)
    olga = person("olga", "operator")
    plan = commit(event, olga)
    for action in plan.actions.all():
        report_state(action, "acked", clock(14))
        report_state(action, "verified", clock(14, 1))
        report_state(action, "reverted", clock(16))
    report = settled(event)

    lost = {job["id"]: job["lost_device_h"] for job in report.document["jobs"]}
    assert lost == {capped.pk: "4.800000", paused.pk: "16.000000"}  # 8 x 0.30 x 2 h; 8 x 2 h
    assert (report.lost_device_h, report.lost_source, report.n_jobs) == (Decimal("20.8"), "actions", 2)
    assert [job["name"] for job in report.document["jobs"]] == [capped.name, paused.name]
    assert (report.document["committed_by"], report.document["plan_hash"]) == ("olga", plan.inputs_hash)


def test_what_was_never_carried_out_is_told_as_the_plan_predicted(hall, facility_jobs):
    draw_before(hall)
    event = announce(value=1e3)
    preview(event, actions=[act(facility_jobs[0].pk)], lost_device_s=7200.0)
    commit(event, person("olga", "operator"))
    report = settled(event)

    assert (report.lost_device_h, report.lost_source) == (2, "plan")
    assert report.document["jobs"][0]["lost_device_h"] is None
    assert any("predicted" in note for note in report.document["notes"])


def test_what_a_policy_committed_names_its_approver(hall):
    programme(emergency_policy="caps", baseline_method="meter_before")
    draw_before(hall)
    event = announce(programme="summer", value=1e3, is_emergency=True, is_below_floor_confirmed=True)
    preview(event, actions=[act()])
    commit(event, None)

    assert settled(event).document["committed_by"] == "policy emergency of summer, version 1"

"""Demand-response events that are over, as they would have come about: settled, a drill, and one nobody settled."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from apps.dashboard.tests.facility import Facility
from apps.inventory.models import Domain
from apps.power import plan_services, programme_services, response_services, settlement_services
from apps.power.models import DemandResponseEvent, PowerReading, Programme
from apps.power.plan_services import ActionDraft, PlanDraft
from apps.power.programme_services import ProgrammeDraft
from apps.power.response_services import EventDraft

HOUR = timedelta(hours=1)


@dataclass
class PowerScene:
    """Handles to what was made."""

    programme: Programme
    settled: DemandResponseEvent  # partial; two versions
    drill: DemandResponseEvent
    unsettled: DemandResponseEvent


def build_power_scene(facility: Facility, *, at: datetime) -> PowerScene:
    hall = Domain.objects.get(name="Hall A")
    programme = programme_services.create_programme(
        draft=ProgrammeDraft(
            name="Summer peak",
            notice_s=900,
            ramp_s=900,
            min_duration_s=3600,
            max_duration_s=4 * 3600,
            target_kind="shed_by",
            baseline_method="meter_before",
            interval_s=900,
            price_per_kwh=Decimal("0.40"),
            penalty_per_kwh=Decimal("2.00"),
            emergency_policy="caps",
        ),
        actor=facility.admin,
        at=at - timedelta(days=9),
    )
    start_at = (at - timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    settled = _event(facility, hall, start_at, drawn_kw=(60, 62, 72))
    PowerReading.objects.filter(domain=hall, at=start_at + timedelta(minutes=20)).update(quality="estimated")
    settlement_services.settle_event(event_id=settled.pk, actor=None, at=start_at + 4 * HOUR)
    late_at = start_at + timedelta(minutes=20, seconds=30)
    PowerReading.objects.create(domain=hall, at=late_at, draw_w=61e3, source="metered")
    settlement_services.settle_event(
        event_id=settled.pk, actor=facility.operator, at=start_at + 5 * HOUR, reason="late readings"
    )
    drill = _event(facility, hall, start_at + 24 * HOUR, drawn_kw=(60, 60, 60), is_test=True)
    settlement_services.settle_event(event_id=drill.pk, actor=None, at=start_at + 28 * HOUR)
    unsettled = _event(facility, hall, start_at - 24 * HOUR, drawn_kw=())
    return PowerScene(programme, settled, drill, unsettled)


def _event(
    facility: Facility,
    hall: Domain,
    start_at: datetime,
    *,
    drawn_kw: tuple[float, ...],
    is_test: bool = False,
) -> DemandResponseEvent:
    """It asks for 18 kW of 80, for three hours; the running job is capped for it."""
    told_at = start_at - timedelta(minutes=15)
    minutes = [(told_at - timedelta(minutes=15), 30, 80.0)]
    minutes += [(start_at + hour * HOUR, 60, kw) for hour, kw in enumerate(drawn_kw)]
    PowerReading.objects.bulk_create(
        [
            PowerReading(
                domain=hall, at=begin_at + timedelta(minutes=minute), draw_w=kw * 1000, source="metered"
            )
            for begin_at, n, kw in minutes
            for minute in range(n)
        ]
    )
    event = response_services.announce_event(
        draft=EventDraft(
            domain=hall.name,
            programme="Summer peak",
            target_kind="shed_by",
            value=18e3,
            start_at=start_at,
            end_at=start_at + 3 * HOUR,
            is_test=is_test,
        ),
        actor=facility.operator,
        at=told_at,
        is_below_floor_confirmed=True,
    )
    action = ActionDraft(
        job_id=facility.running.pk,
        tier=3,
        lever="cap",
        before={"cap_w": 700},
        after={"cap_w": 400},
        expected_w=18e3,
        issue_at=told_at,
        effective_by_at=start_at,
    )
    plan_services.save_preview(
        event_id=event.pk,
        draft=PlanDraft(actions=[action], predicted_shed_w=18e3, lost_device_s=4000.0),
        inputs_hash="ab" * 32,
        actor=facility.operator,
        at=told_at,
    )
    plan = plan_services.commit_plan(
        event_id=event.pk, inputs_hash="ab" * 32, actor=facility.operator, at=told_at
    )
    if not is_test:
        for made in plan.actions.all():
            for state, when in (("verified", start_at), ("reverted", start_at + 3 * HOUR)):
                plan_services.record_action_state(
                    idempotency_key=made.idempotency_key, state=state, fence=1, at=when
                )
    return event

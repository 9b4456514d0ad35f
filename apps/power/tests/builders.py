"""A hall that somebody asks to draw less, naming only what matters."""

from datetime import datetime, timedelta
from typing import Any

from apps.inventory.models import Domain
from apps.power import plan_services, programme_services, response_services
from apps.power.models import DemandResponseEvent, PowerReading, Programme
from apps.power.plan_services import ActionDraft, PlanDraft
from apps.power.programme_services import ProgrammeDraft
from apps.power.response_services import EventDraft
from apps.teams.models import User
from apps.teams.tests.builders import NOON

NOTICE = NOON + timedelta(hours=1, minutes=45)  # 13:45, as in the scenes of the design
HASH = "a" * 64
RULES: dict[str, Any] = {
    "notice_s": 900,
    "ramp_s": 900,
    "min_duration_s": 3600,
    "max_duration_s": 4 * 3600,
    "target_kind": "shed_by",
    "baseline_method": "10_of_10",
    "interval_s": 900,
}


def clock(hour: int, minute: int = 0) -> datetime:
    return NOON.replace(hour=hour, minute=minute)


def draw(domain: Domain, draw_w: float, at: datetime = NOTICE, **more: Any) -> None:
    """What the meter said in each of the 15 minutes before."""
    for minute in range(1, 16):
        PowerReading.objects.create(
            domain=domain,
            at=at - timedelta(minutes=minute),
            draw_w=draw_w,
            **{"source": "metered", **more},
        )


def programme(name: str = "summer", *, actor: User | None = None, **more: Any) -> Programme:
    return programme_services.create_programme(
        draft=ProgrammeDraft(name=name, **{**RULES, **more}), actor=actor, at=NOON
    )


def event_draft(domain: str = "hall", **more: Any) -> EventDraft:
    """18 kW less from 14:00 to 17:00."""
    said = {"target_kind": "shed_by", "value": 18e3, "start_at": clock(14), "end_at": clock(17)}
    return EventDraft(domain=domain, **{**said, **more})


def announce(
    *,
    at: datetime = NOTICE,
    actor: User | None = None,
    floor_w: float | None = None,
    is_below_floor_confirmed: bool = False,
    **more: Any,
) -> DemandResponseEvent:
    return response_services.announce_event(
        draft=event_draft(**more),
        actor=actor,
        at=at,
        floor_w=floor_w,
        is_below_floor_confirmed=is_below_floor_confirmed,
    )


def action(job_id: int = 1, **more: Any) -> ActionDraft:
    said = {
        "tier": 3,
        "lever": "cap",
        "before": {"cap_w": 700},
        "after": {"cap_w": 400},
        "expected_w": 9600.0,
        "issue_at": NOTICE,
        "effective_by_at": clock(14),
    }
    return ActionDraft(job_id=job_id, **{**said, **more})


def preview(event: DemandResponseEvent, *, at: datetime = NOTICE, inputs_hash: str = HASH, **more: Any):
    said = {"actions": [action(1), action(2, tier=4, lever="pause")], "predicted_shed_w": 19.2e3}
    return plan_services.save_preview(
        event_id=event.pk,
        draft=PlanDraft(**{**said, **more}),
        inputs_hash=inputs_hash,
        actor=None,
        at=at,
    )


def commit(event: DemandResponseEvent, actor: User | None, *, at: datetime = NOTICE, **more: Any):
    return plan_services.commit_plan(event_id=event.pk, actor=actor, at=at, **{"inputs_hash": HASH, **more})

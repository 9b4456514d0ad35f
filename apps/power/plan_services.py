"""Plans of curtailment: kept when previewed, in force once somebody commits them, carried out by actions.

An actor of None is the site itself. What it may commit alone is what a programme allows in advance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Max

from apps.core.errors import InvalidInput, NotFound
from apps.events.services import EventRow, record, record_many
from apps.power.curtailment.facts import FIRM, INTERRUPTIBLE, Lever
from apps.power.errors import ConfirmationNeeded, EventClosed, NotPreauthorised, PlanStale
from apps.power.models import (
    ActionState,
    CurtailmentAction,
    CurtailmentPlan,
    DemandResponseEvent,
    EmergencyPolicy,
    EventSource,
    PlanState,
)
from apps.power.response import Load
from apps.power.response_selectors import locked_event, phase_of_event
from apps.teams import policies
from apps.teams.models import User

ENVELOPE: Final = "envelope:"  # what events of envelopes are called begins so
# What a running service can do to a job; a simulation knows more.
CARRIED_OUT: Final = frozenset({Lever.CAP.value, Lever.SHRINK.value, Lever.PAUSE.value, Lever.STOP.value})
EXPIRES_AFTER: Final = timedelta(minutes=5)
MOVED_SHARE: Final = 0.02  # a domain that draws so much more or less is not the one that was previewed

_FOLLOWS: Final[Mapping[str, frozenset[str]]] = {
    ActionState.REQUESTED: frozenset(
        {ActionState.ACKED, ActionState.VERIFIED, ActionState.FAILED, ActionState.REVERTED}
    ),
    ActionState.ACKED: frozenset({ActionState.VERIFIED, ActionState.FAILED, ActionState.REVERTED}),
    ActionState.VERIFIED: frozenset({ActionState.FAILED, ActionState.REVERTED}),
    ActionState.FAILED: frozenset({ActionState.REVERTED}),
    ActionState.REVERTED: frozenset(),
}
# Who holds a newer fence may try again what failed.
_TRIED_AGAIN: Final = frozenset({ActionState.REQUESTED, ActionState.ACKED, ActionState.VERIFIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDraft:
    """One thing to do to one job.

    Attributes:
        tier: Of the job, 0 (firm) to 4 (interruptible).
        before: What the job has, and gets back; after: what it gets. As JSON, in the words of the lever.
        expected_w: How much less it then draws, in watts of IT load.
    """

    job_id: int
    tier: int
    lever: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    expected_w: float
    issue_at: datetime
    effective_by_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft:
    """A plan as it was decided.

    Attributes:
        tier_breaches: Ids of jobs that would lose more than their tier allows.
        draw_w: Of the domain, on its own side of the meter, when it was decided; None: not known.
        details: Whatever else a page shows of it, as JSON.
    """

    actions: Sequence[ActionDraft]
    predicted_shed_w: float
    shortfall_w: float = 0.0
    lost_device_s: float = 0.0
    bound_device_s: float = 0.0
    tier_breaches: Sequence[int] = ()
    draw_w: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@transaction.atomic
def save_preview(
    *, event_id: int, draft: PlanDraft, inputs_hash: str, actor: User | None, at: datetime
) -> CurtailmentPlan:
    """Keep a plan as the newest preview of its event, in place of earlier ones. Nothing is done to any job.

    Args:
        inputs_hash: SHA-256, hex, of all it was decided from: targets, jobs, and what may be done with each.

    Raises:
        EventClosed: the event is over or was given up.
        InvalidInput: an action before the ramp, or one that takes effect before it is issued.
    """
    if actor is not None:
        policies.require_may_operate(actor)
    event = locked_event(event_id)
    _require_open(event, at)
    _require_sense(draft, event)
    event.plans.filter(state__in=[PlanState.DRAFT, PlanState.PREVIEWED]).update(state=PlanState.SUPERSEDED)
    last = event.plans.aggregate(last=Max("number"))["last"] or 0
    plan = CurtailmentPlan.objects.create(
        event=event,
        number=last + 1,
        event_version=event.version,
        state=PlanState.PREVIEWED,
        inputs_hash=inputs_hash,
        plan=_plan_json(draft),
        predicted_shed_w=draft.predicted_shed_w,
        shortfall_w=draft.shortfall_w,
        lost_device_s=draft.lost_device_s,
        bound_device_s=draft.bound_device_s,
        draw_w=draft.draw_w,
        n_breaches=len(draft.tier_breaches),
        created_by=actor,
        previewed_at=at,
        expires_at=at + EXPIRES_AFTER,
    )
    _record("curtailment.previewed", plan, event, actor=actor, at=at)
    return plan


@transaction.atomic
def commit_plan(
    *,
    event_id: int,
    inputs_hash: str,
    actor: User | None,
    at: datetime,
    inputs_hash_now: str | None = None,
    draw_now_w: float | None = None,
    confirmation: str = "",
    reason: str = "",
) -> CurtailmentPlan:
    """Put the previewed plan of an event in force, in place of the one before. Twice changes nothing more.

    A plan that sheds more than its programme lets one person decide is only approved by the first: its state
    is still `previewed`, and somebody else has to commit it before it expires.

    Args:
        inputs_hash: Of the preview that was seen.
        inputs_hash_now: The same of the facts as they are now; None: whoever calls has compared them.
        draw_now_w: What the domain draws now; over 2 % off the preview's is another situation.
        confirmation: confirmation_of() the plan, where some jobs would lose more than they allow.

    Raises:
        PlanStale: expired, another plan was previewed meanwhile, or what it was decided from has moved.
        ConfirmationNeeded: nobody typed it.
        NotPreauthorised: without an actor, and no policy covers it.
    """
    if actor is not None:
        policies.require_may_operate(actor)
    event = locked_event(event_id)
    if event.plans.filter(state=PlanState.COMMITTED, inputs_hash=inputs_hash).exists():
        return event.plans.get(state=PlanState.COMMITTED)
    _require_open(event, at)
    plan = _fresh_preview(event, inputs_hash, at)
    _require_unmoved(plan, inputs_hash_now, draw_now_w)
    by_policy = _policy_for(event, plan)
    if actor is None:
        if not by_policy:
            raise NotPreauthorised("No programme allows this in advance.")
    elif by_policy != "emergency":
        if plan.n_breaches and confirmation != confirmation_of(event):
            raise ConfirmationNeeded(n_breaches=plan.n_breaches, expected=confirmation_of(event))
        if _needs_second(event, plan) and plan.approved_by_id in (None, actor.pk):
            return _approve(plan, event, actor=actor, at=at, reason=reason)
    event.plans.filter(state=PlanState.COMMITTED).update(state=PlanState.SUPERSEDED)
    if actor is not None and plan.approved_by_id == actor.pk:
        # Two people are not needed any more: the programme, or the act of an emergency, says so now.
        plan.approved_at, plan.approved_by = None, None
    plan.state, plan.committed_at, plan.committed_by = PlanState.COMMITTED, at, actor
    plan.save(update_fields=["state", "committed_at", "committed_by", "approved_at", "approved_by"])
    _make_actions(plan, at)
    _record(
        "curtailment.committed",
        plan,
        event,
        actor=actor,
        at=at,
        reason=reason,
        policy=_policy_facts(event, by_policy) if by_policy else None,
    )
    return plan


def confirmation_of(event: DemandResponseEvent) -> str:
    """What a person types to commit a plan that breaches what jobs allow: the domain it is about."""
    return event.domain.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReport:
    """How far one action has come.

    Attributes:
        lease_until_at: Renewed by every report of the current holder that names one.
    """

    idempotency_key: str
    state: str
    lease_until_at: datetime | None = None
    note: str = ""


def record_action_state(*, fence: int, at: datetime, **report: Any) -> CurtailmentAction:
    """One of record_action_states(); raises NotFound."""
    rows = record_action_states(reports=[ActionReport(**report)], fence=fence, at=at)
    if not rows:
        raise NotFound("There is no such action.")
    return rows[0]


@transaction.atomic
def record_action_states(
    *, reports: Sequence[ActionReport], fence: int, at: datetime
) -> list[CurtailmentAction]:
    """Note how far actions have come. Twice, late or from somebody with an older fence, it changes nothing.

    Args:
        fence: Number of whoever reports; the highest one seen counts.

    Returns:
        The actions as they are now.
    """
    told = {report.idempotency_key: report for report in reports}
    rows = list(
        CurtailmentAction.objects.select_for_update(no_key=True, of=("self",))
        .select_related("plan__event__domain")
        .defer("plan__plan")
        .filter(idempotency_key__in=told)
        .order_by("pk")
    )
    changed, logged = [], []
    for row in rows:
        report, before = told[row.idempotency_key], row.state
        if fence < row.fence:
            continue
        is_retry = row.state == ActionState.FAILED and fence > row.fence and report.state in _TRIED_AGAIN
        is_next = report.state in _FOLLOWS[row.state] or is_retry
        row.fence = fence
        if report.lease_until_at is not None and (is_next or report.state == row.state):
            row.lease_until_at = report.lease_until_at
        if is_next:
            row.state, row.state_since_at, row.note = report.state, at, report.note[:500]
            logged.append(_moved(row, str(before), at))
        changed.append(row)
    fields = ["fence", "lease_until_at", "state", "state_since_at", "note"]
    CurtailmentAction.objects.bulk_update(changed, fields, batch_size=1000)
    record_many(logged)
    return rows


def _moved(row: CurtailmentAction, was: str, at: datetime) -> EventRow:
    event = row.plan.event
    return EventRow(
        kind=f"curtailment.action_{row.state}",
        subject_kind="demand_response",
        subject_id=event.pk,
        subject_name=event.domain.name,
        at=at,
        data={
            "plan": row.plan.number,
            "inputs_hash": row.plan.inputs_hash,
            "job_id": row.job_id,
            "lever": row.lever,
            "was": was,
            "note": row.note,
        },
    )


def _require_open(event: DemandResponseEvent, at: datetime) -> None:
    if event.cancelled_at is not None or event.opted_out_at is not None or at >= event.end_at:
        raise EventClosed(event_id=event.pk, phase=phase_of_event(event, load=Load(), at=at))


def _require_sense(draft: PlanDraft, event: DemandResponseEvent) -> None:
    faults = []
    for index, action in enumerate(draft.actions):
        assert action.lever in CARRIED_OUT, action.lever
        # An event that is cancelled before its ramp has nothing to undo: so nothing is done before.
        if action.issue_at < event.ramp_start_at:
            faults.append((index, "issue_at", "must not lie before the ramp"))
        if action.effective_by_at < action.issue_at:
            faults.append((index, "effective_by_at", "must not lie before issue_at"))
    if faults:
        raise InvalidInput(
            [
                {"path": f"actions[{index}].{name}", "code": "out_of_range", "message": message}
                for index, name, message in faults[:100]
            ]
        )


def _fresh_preview(event: DemandResponseEvent, inputs_hash: str, at: datetime) -> CurtailmentPlan:
    plan = event.plans.filter(state=PlanState.PREVIEWED).order_by("-number").first()
    if plan is None:
        raise PlanStale("No preview of this event is left.")
    assert plan.expires_at is not None, "a preview expires"
    if plan.inputs_hash != inputs_hash:
        raise PlanStale("Another plan was previewed meanwhile.", inputs_hash=plan.inputs_hash)
    if at >= plan.expires_at:
        raise PlanStale("The preview has expired.", expired_at=plan.expires_at.isoformat())
    if plan.event_version != event.version:
        raise PlanStale("The event was changed meanwhile.")
    return plan


def _require_unmoved(plan: CurtailmentPlan, inputs_hash_now: str | None, draw_now_w: float | None) -> None:
    if inputs_hash_now is not None and inputs_hash_now != plan.inputs_hash:
        raise PlanStale("What it was decided from has changed.", inputs_hash=inputs_hash_now)
    if draw_now_w is None or plan.draw_w is None:
        return
    if abs(draw_now_w - plan.draw_w) > MOVED_SHARE * plan.draw_w:
        raise PlanStale("The load has moved by over 2 %.", previewed_w=plan.draw_w, draw_w=draw_now_w)


def _needs_second(event: DemandResponseEvent, plan: CurtailmentPlan) -> bool:
    above_w = None if event.programme is None else event.programme.two_person_above_w
    return above_w is not None and plan.predicted_shed_w > above_w


def _policy_for(event: DemandResponseEvent, plan: CurtailmentPlan) -> str:
    """What allows this plan in advance: "emergency", "auto_commit", "envelope" or "follow_up"; empty: nothing does.

    Whoever set an envelope set it for what runs as well: a plan for one of its steps that breaches no job follows.
    Whoever committed to a target committed to keeping it: a later plan for the same event that breaches no job but
    those that were confirmed follows from that.
    """
    programme = event.programme
    earlier = event.plans.filter(state=PlanState.COMMITTED).first()
    is_follow_up = (
        earlier is not None
        and earlier.event_version == event.version
        and set(plan.plan["tier_breaches"]) <= set(earlier.plan["tier_breaches"])
    )
    if (
        event.source == EventSource.SCHEDULE
        and event.external_id.startswith(ENVELOPE)
        and not plan.n_breaches
    ):
        return "envelope"
    if programme is None:
        return "follow_up" if is_follow_up else ""
    may_stop = programme.emergency_policy == EmergencyPolicy.CAPS_AND_STOPS
    if (
        event.is_emergency
        and programme.emergency_policy != EmergencyPolicy.NONE
        and all(_is_emergency_act(action, may_stop) for action in plan.plan["actions"])
    ):
        return "emergency"
    if programme.is_auto_commit and not plan.n_breaches and not _needs_second(event, plan):
        return "auto_commit"
    return "follow_up" if is_follow_up else ""


def _is_emergency_act(action: Mapping[str, Any], may_stop: bool) -> bool:
    """Caps for all but firm jobs; what stops a job, for interruptible ones alone."""
    if action["lever"] == Lever.CAP:
        return bool(action["tier"] != FIRM)
    return bool(may_stop and action["tier"] == INTERRUPTIBLE)


def _policy_facts(event: DemandResponseEvent, by_policy: str) -> dict[str, Any]:
    programme = event.programme
    if programme is None:
        return {"name": by_policy}
    approver = programme.emergency_policy_by
    return {
        "name": by_policy,
        "programme": programme.name,
        "programme_version": programme.version,
        "emergency_policy": programme.emergency_policy,
        "approved_by": None if approver is None else approver.get_username(),
    }


def _approve(
    plan: CurtailmentPlan, event: DemandResponseEvent, *, actor: User, at: datetime, reason: str
) -> CurtailmentPlan:
    """Note the first of two people; the same one again changes nothing."""
    if plan.approved_by_id is None:
        plan.approved_at, plan.approved_by = at, actor
        plan.save(update_fields=["approved_at", "approved_by"])
        _record("curtailment.approved", plan, event, actor=actor, at=at, reason=reason)
    return plan


def _plan_json(draft: PlanDraft) -> dict[str, Any]:
    return {
        **draft.details,
        "tier_breaches": list(draft.tier_breaches),
        "actions": [
            {
                "job_id": action.job_id,
                "tier": action.tier,
                "lever": str(action.lever),
                "before": dict(action.before),
                "after": dict(action.after),
                "expected_w": action.expected_w,
                "issue_at": action.issue_at.isoformat(),
                "effective_by_at": action.effective_by_at.isoformat(),
            }
            for action in draft.actions
        ],
    }


def _make_actions(plan: CurtailmentPlan, at: datetime) -> None:
    CurtailmentAction.objects.bulk_create(
        [
            CurtailmentAction(
                plan=plan,
                job_id=one["job_id"],
                lever=one["lever"],
                before=one["before"],
                after=one["after"],
                expected_w=one["expected_w"],
                issue_at=datetime.fromisoformat(one["issue_at"]),
                effective_by_at=datetime.fromisoformat(one["effective_by_at"]),
                state_since_at=at,
                idempotency_key=f"event {plan.event_id} plan {plan.number} action {index}",
            )
            for index, one in enumerate(plan.plan["actions"])
        ]
    )


def _record(
    kind: str,
    plan: CurtailmentPlan,
    event: DemandResponseEvent,
    *,
    actor: User | None,
    at: datetime,
    reason: str = "",
    is_audit: bool = True,
    **data: Any,
) -> None:
    record(
        kind,
        subject_kind="demand_response",
        subject_id=event.pk,
        subject_name=event.domain.name,
        actor=actor,
        at=at,
        is_audit=is_audit,
        reason=reason,
        data={
            "plan": plan.number,
            "inputs_hash": plan.inputs_hash,
            "predicted_shed_w": plan.predicted_shed_w,
            "n_breaches": plan.n_breaches,
            **data,
        },
    )

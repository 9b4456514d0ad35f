"""Previews and commits plans for demand-response events. What is committed is carried out by `control`."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.core import signing
from django.db import transaction

from apps.core.errors import InvalidInput, NotFound
from apps.events.services import record
from apps.jobs.curtailed import facts_of_jobs
from apps.power import override_services, plan_services, response_services
from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import HARD
from apps.power.errors import NoReference, NotPreauthorised, PlanStale
from apps.power.models import (
    ActionState,
    CurtailmentAction,
    CurtailmentPlan,
    DemandResponseEvent,
    EmergencyPolicy,
    OverrideKind,
    PlanState,
    PowerController,
)
from apps.power.plan_services import ActionDraft, PlanDraft
from apps.power.response_selectors import events, meter_of
from apps.power.response_services import EventDraft
from apps.power.settlement_selectors import committed_plans, cost_of
from apps.scheduling.response.deciding import Decided, Held, Wish, decide, domain_w, gone_w, hash_of
from apps.scheduling.response.limits import LOOKED_BACK, binds_until
from apps.scheduling.response.site import Site, read_site
from apps.teams import policies
from apps.teams.models import User

_DONE: Final = (ActionState.REVERTED,)
_SALT: Final = "curtailment preview"
_COSTS_MORE_SHARE: Final = 0.05  # so much more may be lost than was shown before it has to be shown again


def preview(*, event_id: int, wish: Wish, actor: User | None, at: datetime) -> CurtailmentPlan:
    """Work out the best plan as things stand, and keep it as the event's newest preview. Nothing is done to any job.

    Raises:
        NotFound, EventClosed
        NoReference: what the target counts from is not known yet.
    """
    if actor is not None:
        policies.require_may_operate(actor)
    event = open_event(event_id, at)
    decided = decided_for(event, read_site(at), wish=wish, at=at)
    return plan_services.save_preview(
        event_id=event_id, draft=decided.draft, inputs_hash=decided.inputs_hash, actor=actor, at=at
    )


def commit(
    *,
    event_id: int,
    inputs_hash: str,
    actor: User | None,
    at: datetime,
    confirmation: str = "",
    reason: str = "",
) -> CurtailmentPlan:
    """Put the preview that was seen in force, if what it touches is still as it was.

    Raises:
        as plan_services.commit_plan().
    """
    event = events().filter(pk=event_id).first()
    if event is None:
        raise NotFound("There is no such event.")
    plan = event.plans.filter(inputs_hash=inputs_hash, state=PlanState.PREVIEWED).first()
    site = read_site(at)
    hash_now = None if plan is None else _hash_now(plan, site)
    domain = site.domains[event.domain_id]
    draw_now_w: float | None = domain.meter.fixed_w + domain.meter.k * domain_w(site, event.domain_id)
    if plan is not None and event.plans.filter(state=PlanState.COMMITTED).exists():
        draw_now_w = plan.draw_w  # a plan is at work: its load moves because of it
    return plan_services.commit_plan(
        event_id=event_id,
        inputs_hash=inputs_hash,
        inputs_hash_now=hash_now,
        draw_now_w=draw_now_w,
        actor=actor,
        at=at,
        confirmation=confirmation,
        reason=reason,
    )


def is_preview_for(inputs_hash: str, *, event_id: int, wish: Wish) -> bool:
    """Whether a plan of this hash was worked out for this very wish; of no plan at all nothing is said."""
    plan = CurtailmentPlan.objects.filter(event_id=event_id, inputs_hash=inputs_hash).first()
    return plan is None or _wish_of(plan) == wish


@dataclass(frozen=True, slots=True)
class DryRun:
    """A plan for an event that nobody has announced yet; nothing of it is in any table.

    Attributes:
        seen: Stands for what was shown; commit_draft() takes it back.
    """

    event: DemandResponseEvent
    draft: PlanDraft
    seen: str
    at: datetime

    @property
    def expires_at(self) -> datetime:
        return self.at + plan_services.EXPIRES_AFTER


def preview_draft(
    *,
    draft: EventDraft,
    wish: Wish,
    actor: User,
    at: datetime,
    is_below_floor_confirmed: bool = False,
) -> DryRun:
    """What would be done for an event if it were announced and committed now. Nothing is written.

    Raises:
        as response_services.announce_event(); NoReference.
    """
    policies.require_may_operate(actor)
    event = response_services.drafted_event(
        draft=draft, actor=actor, at=at, is_below_floor_confirmed=is_below_floor_confirmed
    )
    decided = decided_for(event, read_site(at), wish=wish, at=at)
    told = {"asked": hash_of(event, wish), "by": actor.pk, **_gist(decided)}
    return DryRun(event, decided.draft, signing.dumps([at.isoformat(), told], salt=_SALT), at)


@transaction.atomic
def commit_draft(
    *,
    draft: EventDraft,
    wish: Wish,
    seen: str,
    actor: User,
    at: datetime,
    is_below_floor_confirmed: bool = False,
    confirmation: str = "",
    reason: str = "",
) -> CurtailmentPlan:
    """Announce an event and commit its plan, if that is the one that was seen. All of it, or nothing.

    Args:
        seen: Of the dry run that was looked at.

    Raises:
        PlanStale: that was too long ago, somebody else's, or would look different now.
        and as announce_event() and commit_plan().
    """
    policies.require_may_operate(actor)
    shown_at, told = _opened(seen)
    if told.get("by") != actor.pk:
        raise PlanStale("Nothing was previewed.")
    if at >= shown_at + plan_services.EXPIRES_AFTER:
        raise PlanStale(
            "The preview has expired.", expired_at=(shown_at + plan_services.EXPIRES_AFTER).isoformat()
        )
    event = response_services.announce_event(
        draft=draft, actor=actor, at=at, is_below_floor_confirmed=is_below_floor_confirmed
    )
    event = events().get(pk=event.pk)
    decided = decided_for(event, read_site(at), wish=wish, at=at)
    plan_services.save_preview(
        event_id=event.pk, draft=decided.draft, inputs_hash=decided.inputs_hash, actor=actor, at=at
    )
    if hash_of(event, wish) != told["asked"]:
        raise PlanStale("Something else was asked for.")
    _require_alike(_gist(decided), told)
    return plan_services.commit_plan(
        event_id=event.pk,
        inputs_hash=decided.inputs_hash,
        actor=actor,
        at=at,
        confirmation=confirmation,
        reason=reason,
    )


def _gist(decided: Decided) -> dict[str, Any]:
    """What of a plan must not get worse between the look at it and its commit."""
    draft = decided.draft
    return {
        "draw_w": draft.draw_w or 0.0,
        "shed_w": draft.predicted_shed_w,
        "lost_s": draft.lost_device_s,
        "n_paused": draft.details["n_paused"],
        "breaches": list(draft.tier_breaches),
    }


def _require_alike(now: dict[str, Any], told: dict[str, Any]) -> None:
    """In a busy facility jobs come and go between a look and a click: so much does not make it another plan."""
    most_w = plan_services.MOVED_SHARE * told["draw_w"]
    if abs(now["draw_w"] - told["draw_w"]) > most_w:
        raise PlanStale("The load has moved by over 2 %.", draw_w=now["draw_w"])
    is_alike = (
        abs(now["shed_w"] - told["shed_w"]) <= most_w
        and now["lost_s"] <= told["lost_s"] * (1 + _COSTS_MORE_SHARE) + 1.0
        and now["n_paused"] <= told["n_paused"] + max(1, _COSTS_MORE_SHARE * told["n_paused"])
        and set(now["breaches"]) <= set(told["breaches"])
    )
    if not is_alike:
        raise PlanStale("What would be done has changed.")


def _hash_now(plan: CurtailmentPlan, site: Site) -> str:
    """The hash of a preview, while so few of its jobs are over that it still is what it was."""
    drafts = [one for one in _drafts(plan) if one.expected_w]
    kept = [
        one for one in drafts if one.lever == Lever.CAP or one.issue_at >= (plan.previewed_at or one.issue_at)
    ]
    is_moved = gone_w(kept, site) > plan_services.MOVED_SHARE * max(plan.draw_w or 0.0, 1.0)
    return "" if is_moved else plan.inputs_hash


def _opened(seen: str) -> tuple[datetime, dict[str, Any]]:
    try:
        shown_at, told = signing.loads(seen, salt=_SALT)
        return datetime.fromisoformat(shown_at), told
    except (signing.BadSignature, ValueError, TypeError):
        raise PlanStale("Nothing was previewed.") from None


def respond(*, event_id: int, at: datetime) -> CurtailmentPlan | None:
    """Commit without a person what a programme allows in advance; None where a person has to.

    Called again it changes nothing: an event that has a committed plan is left to `control`, and one that cannot be
    committed unseen is left to people until it is revised.
    """
    event = open_event(event_id, at)
    programme = event.programme
    if programme is None or event.plans.filter(state=PlanState.COMMITTED).exists():
        return None
    if event.plans.filter(event_version=event.version, created_by=None).exists():
        return None  # it was looked at once, and left to a person: asking again would only be in that person's way
    is_ordered = event.is_emergency and programme.emergency_policy != EmergencyPolicy.NONE
    if not is_ordered and not programme.is_auto_commit:
        return None
    levers = {Lever.CAP.value, Lever.SHRINK.value, Lever.PAUSE.value}
    if is_ordered:
        may_stop = programme.emergency_policy == EmergencyPolicy.CAPS_AND_STOPS
        levers = {Lever.CAP.value, Lever.PAUSE.value, Lever.STOP.value} if may_stop else {Lever.CAP.value}
    plan = preview(event_id=event_id, wish=Wish(levers=frozenset(levers)), actor=None, at=at)
    if plan.shortfall_w > 0 and not is_ordered:
        return None  # what cannot be met is a person's to decide
    try:
        return commit(event_id=event_id, inputs_hash=plan.inputs_hash, actor=None, at=at)
    except NotPreauthorised:
        return None


def follow_up(event: DemandResponseEvent, site: Site, *, at: datetime) -> CurtailmentPlan | None:
    """Add to a committed plan what its target still lacks, within what was committed to; None: there is no more."""
    plan = event.plans.filter(state=PlanState.COMMITTED).first()
    if plan is None:
        return None
    decided = decided_for(event, site, wish=_wish_of(plan), at=at, at_least_mine=True)
    if decided.draft.predicted_shed_w <= _open_shed_w(event) + 1.0:
        return None
    with transaction.atomic():
        made = plan_services.save_preview(
            event_id=event.pk, draft=decided.draft, inputs_hash=decided.inputs_hash, actor=None, at=at
        )
        try:
            return plan_services.commit_plan(
                event_id=event.pk, inputs_hash=made.inputs_hash, actor=None, at=at
            )
        except NotPreauthorised:
            return None


def _open_shed_w(event: DemandResponseEvent) -> float:
    """Watts, on the event's side of the meter, that its committed plan's actions were to bring."""
    rows = CurtailmentAction.objects.filter(plan__event=event, plan__state=PlanState.COMMITTED)
    lasting = [row for row in rows.exclude(state__in=_DONE) if not row.after.get("is_bridge")]
    return meter_of(event.domain).k * sum(row.expected_w for row in lasting)


def decided_for(
    event: DemandResponseEvent, site: Site, *, wish: Wish, at: datetime, at_least_mine: bool = False
) -> Decided:
    """The best plan for an event, with what is in force for all events taken into account."""
    decided = decide(
        site,
        event,
        at=at,
        wish=wish,
        held=held_for(event, site, keeps_mine=at_least_mine),
        at_least_mine=at_least_mine,
    )
    if decided is None:
        raise NoReference(domain=event.domain.name)
    return decided


def open_event(event_id: int, at: datetime) -> DemandResponseEvent:
    """An event of events() with its reference frozen where its notice has come. Raises NotFound."""
    response_services.freeze_reference(event_id=event_id, at=at)
    return events().get(pk=event_id)


def held_for(event: DemandResponseEvent, site: Site, *, keeps_mine: bool = False) -> Held:
    """What is in force or asked for, seen from one event.

    Args:
        keeps_mine: A new plan takes over what the one before asks, and adds to it.
    """
    share_of: dict[int, float] = defaultdict(lambda: 1.0)
    mine: dict[int, float] = defaultdict(lambda: 1.0)
    own: list[CurtailmentAction] = []
    for row in open_actions():
        allocation_id = row.before.get("allocation_id", 0)
        is_mine = row.plan.event_id == event.pk
        if is_mine:
            own.append(row)
        if row.lever == Lever.CAP and row.state != ActionState.FAILED and not row.after.get("is_bridge"):
            held = mine if is_mine else share_of
            held[allocation_id] = min(held[allocation_id], row.after["share"])
    said = overridden(site, site.at)
    found = Held(
        share_of=dict(share_of),
        mine=dict(mine),
        deaf=frozenset(r.before.get("allocation_id", 0) for r in own if r.state == ActionState.FAILED),
        left_alone=said[OverrideKind.EXEMPT] | said[OverrideKind.RELEASE],
        kept=said[OverrideKind.HOLD],
        unseen=frozenset(job.allocation_id for job in site.jobs if job.job_id in site.unseen),
        pausing=frozenset(job.allocation_id for job in site.jobs if job.is_pausing)
        & frozenset(row.before.get("allocation_id", 0) for row in own if row.lever in HARD),
        shrinking=_shrinking(own, site),
        spent_s=spent_by_job(event, at=site.at),
        rolling_s=float(settings.SWITCHYARD_QOS_WINDOW_S),
    )
    return replace(found, carried=_carried(own, found, site, keeps_mine=keeps_mine))


def _shrinking(own: Sequence[CurtailmentAction], site: Site) -> dict[int, float]:
    """By allocation that is on its way to another size for an event, the share of it that is left."""
    leaving = {job.allocation_id for job in site.jobs if job.is_leaving}
    return {
        row.before["allocation_id"]: row.after["n_replicas"] / row.before["n_replicas"]
        for row in own
        if row.lever == Lever.SHRINK and row.before.get("allocation_id") in leaving
    }


def spent_by_job(event: DemandResponseEvent, *, at: datetime) -> dict[int, float]:
    """Seconds of work that jobs lost to events, by what their actions did: to this one while it bound, or to all within
    the rolling window. What a job lost before an event binds is none of its tolerance, which is a share of that time.
    """
    window_s = settings.SWITCHYARD_QOS_WINDOW_S
    rows = events().filter(plans__committed_at__isnull=False, is_test=False).distinct()
    if window_s:  # caps outlast an event until the load has come back
        rows = rows.filter(end_at__gt=at - timedelta(seconds=window_s) - LOOKED_BACK)
    else:
        rows = rows.filter(pk=event.pk)
    spent: dict[int, float] = defaultdict(float)
    for row in rows:
        begin_at = at - timedelta(seconds=window_s) if window_s else row.start_at
        end_at = at if window_s else binds_until(row)
        cost = cost_of(row, committed_plans(row), at=at, within=(begin_at, end_at))
        facts = facts_of_jobs([job.job_id for job in cost.jobs])
        for job in cost.jobs:
            if job.job_id in facts and facts[job.job_id].n_devices:
                spent[job.job_id] += float(job.lost_device_s) / facts[job.job_id].n_devices
    return dict(spent)


def _carried(
    own: Sequence[CurtailmentAction], held: Held, site: Site, *, keeps_mine: bool
) -> tuple[ActionDraft, ...]:
    """What an event's committed plan does that a new one takes over as it is."""
    there = {job.allocation_id for job in site.jobs}
    drafts = []
    for row in own:
        allocation_id = row.before.get("allocation_id", 0)
        if row.plan.state != PlanState.COMMITTED or row.after.get("is_bridge"):
            continue
        is_going = allocation_id in held.pausing or allocation_id in held.shrinking
        is_paused = row.lever != Lever.CAP and (allocation_id not in there or is_going)
        is_asked = keeps_mine or allocation_id in held.as_they_are
        is_kept = row.lever == Lever.CAP and allocation_id in there and is_asked
        if is_paused or is_kept:
            # What nobody has confirmed brings nothing that can be counted on.
            expected_w = 0.0 if row.state == ActionState.FAILED else row.expected_w
            drafts.append(replace(_draft(row), expected_w=expected_w))
    return tuple(drafts)


def overridden(site: Site, at: datetime) -> dict[str, frozenset[int]]:
    """By kind of override, the allocations that operators have said something of."""
    found: dict[str, set[int]] = {kind: set() for kind in OverrideKind.values}
    for row in override_services.active_overrides(at):
        for job in site.jobs:
            if job.job_id == row.job_id or (
                row.domain_id is not None and row.domain_id in site.domains_of(job)
            ):
                found[row.kind].add(job.allocation_id)
    return {kind: frozenset(ids) for kind, ids in found.items()}


def open_actions() -> list[CurtailmentAction]:
    """Everything that some plan does and that was not given back yet, of events that act on jobs."""
    rows = list(
        CurtailmentAction.objects.exclude(state__in=_DONE)
        .filter(plan__committed_at__isnull=False, plan__event__is_test=False)
        .order_by("id")
    )
    # Thousands of actions share a plan or two, and a plan is long.
    plans = (
        CurtailmentPlan.objects.select_related("event").defer("plan").in_bulk({row.plan_id for row in rows})
    )
    for row in rows:
        row.plan = plans[row.plan_id]
    return rows


def _draft(row: CurtailmentAction) -> ActionDraft:
    return ActionDraft(
        job_id=row.job_id,
        tier=row.before.get("tier", 4),
        lever=row.lever,
        before=row.before,
        after=row.after,
        expected_w=row.expected_w,
        issue_at=row.issue_at,
        effective_by_at=row.effective_by_at,
    )


def _drafts(plan: CurtailmentPlan) -> list[ActionDraft]:
    return [
        ActionDraft(
            job_id=one["job_id"],
            tier=one["tier"],
            lever=one["lever"],
            before=one["before"],
            after=one["after"],
            expected_w=one["expected_w"],
            issue_at=datetime.fromisoformat(one["issue_at"]),
            effective_by_at=datetime.fromisoformat(one["effective_by_at"]),
        )
        for one in plan.plan["actions"]
    ]


def _wish_of(plan: CurtailmentPlan) -> Wish:
    return Wish.of_json(plan.plan.get("wish", {}))


# The switch ----------------------------------------------------------------------------------------------------


@transaction.atomic
def stop_automation(*, actor: User, reason: str, at: datetime) -> PowerController:
    """Have power control keep everything as it is until somebody starts it again. Twice changes nothing."""
    return _switch(actor, reason, at, is_stopped=True)


@transaction.atomic
def start_automation(*, actor: User, reason: str, at: datetime) -> PowerController:
    """Let power control act again."""
    return _switch(actor, reason, at, is_stopped=False)


def _switch(actor: User, reason: str, at: datetime, *, is_stopped: bool) -> PowerController:
    policies.require_may_operate(actor)
    if not reason.strip():
        raise InvalidInput.of("reason", "must not be empty: it goes to the audit trail", "required")
    PowerController.objects.get_or_create(pk=1)
    row = PowerController.objects.select_for_update().get(pk=1)
    if (row.stopped_at is not None) == is_stopped:
        return row
    row.stopped_at, row.stopped_by = (at, actor) if is_stopped else (None, None)
    row.stop_reason = reason[:500] if is_stopped else ""
    row.save(update_fields=["stopped_at", "stopped_by", "stop_reason"])
    record(
        "power.automation_stopped" if is_stopped else "power.automation_started",
        subject_kind="power_controller",
        subject_id=1,
        subject_name="power control",
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
    )
    return row

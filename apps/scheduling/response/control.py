"""Power control: carries out what was committed, and gives back what is over.

One holder at a time, by a lock of the database that goes with its connection; each new holder takes a higher fence,
and agents and reports of an older one are ignored. Everything follows from rows: run twice, late or after a crash it
asks for what is asked for already. It sheds before it releases, and a cap that nobody has acknowledged counts as not
set, so what depends on it waits.
"""

import logging
import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Final

from django.db import connection, transaction

from apps.core.errors import DomainError
from apps.core.locks import session_lock
from apps.events.services import record
from apps.jobs import services as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Job, PowerCap
from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import HARD
from apps.power.models import (
    MODELLED,
    ActionState,
    CurtailmentAction,
    DemandResponseEvent,
    OverrideKind,
    PlanState,
    PowerController,
    PowerHold,
)
from apps.power.plan_services import ActionReport, record_action_states
from apps.power.response import Load, limit_it_w
from apps.power.response_selectors import events, loads_of, response_of, unanswered
from apps.power.response_services import settle_release
from apps.power.services import record_modelled
from apps.power.telemetry.facts import How, Quality
from apps.scheduling.apply import shrink_job
from apps.scheduling.response import services
from apps.scheduling.response.deciding import base_share_of, domain_w
from apps.scheduling.response.envelopes import keep_envelopes
from apps.scheduling.response.limits import (
    MINUTE_S,
    binds_until,
    in_force,
    ramp_step_w,
    ramps_until,
    rise_limits_w,
)
from apps.scheduling.response.site import RunningJob, Site, is_metered, read_site

CONTROL_LOCK: Final = 0x504F_5745_5243  # "POWERC"
LEASE: Final = timedelta(minutes=60)  # after the end: so long a cap stays when nobody is heard of any more
STAGGER_S: Final = 60  # leases end spread over so long: with nobody there, not all draw more at one instant
PATIENCE: Final = timedelta(
    seconds=60
)  # after it was due an action that nobody has confirmed counts as failed
FOLLOWS_AFTER: Final = timedelta(seconds=30)
SETTLED_AFTER: Final = timedelta(seconds=15)
# Where no meter is read the model is all there is to see of an event, and once a minute is too seldom for that.
_NOTED_EVERY: Final = timedelta(seconds=15)
_OVER_SHARE: Final = 1e-3  # of the target: so little over it is no reason for another plan
_CLOSE: Final = 1e-9
_OPEN: Final = (ActionState.REQUESTED, ActionState.ACKED, ActionState.VERIFIED, ActionState.FAILED)
_log = logging.getLogger(__name__)


@dataclass
class Look:
    """What one look did, for logs and tests."""

    is_ours: bool = True
    n_asked: int = 0
    n_paused: int = 0
    n_shrunk: int = 0
    n_raised: int = 0
    n_resumed: int = 0
    n_followed: int = 0
    moved: dict[int, str] = field(default_factory=dict)  # state by action


def holder() -> str:
    """This process, by a name that no other one has at the same time."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}"


def look(*, at: datetime, who: str | None = None) -> Look:
    """Do what is due. Whoever finds another one at it goes home."""
    with session_lock(CONTROL_LOCK) as is_ours:
        if not is_ours:
            return Look(is_ours=False)
        fence, is_stopped = _take_fence(who or holder(), at)
        try:
            done = _look(fence, at, is_stopped=is_stopped)
        except Exception as error:
            PowerController.objects.filter(pk=1).update(last_error=f"{type(error).__name__}: {error}"[:500])
            raise
        PowerController.objects.filter(pk=1, fence=fence).update(heartbeat_at=at, last_error="")
        return done


@transaction.atomic
def _take_fence(who: str, at: datetime) -> tuple[int, bool]:
    PowerController.objects.get_or_create(pk=1)
    row = PowerController.objects.select_for_update().get(pk=1)
    if row.holder != who:
        row.holder, row.fence, row.since_at = who, row.fence + 1, at
        row.save(update_fields=["holder", "fence", "since_at"])
        record(
            "power.controller_changed",
            subject_kind="power_controller",
            subject_id=1,
            subject_name=who,
            at=at,
            data={"fence": row.fence},
        )
    return row.fence, row.stopped_at is not None


def _look(fence: int, at: datetime, *, is_stopped: bool) -> Look:
    done = Look()
    if not is_stopped:
        keep_envelopes(at)
        _respond(at)
    actions = services.open_actions()
    live = in_force(at)
    site = read_site(at) if is_metered(at) or PowerHold.objects.exists() else None
    if site is not None:
        _hold(site, at)
    held = PowerCap.objects.filter(allocation__ended_at=None, desired_share__lt=1.0)
    if not actions and not live and not held.exists():
        _settle_tests(fence, at)
        return done
    control = _Control(fence, at, actions, live, done, site or read_site(at))
    control.note_what_became()
    if not is_stopped:
        control.lower()
        control.pause()
        control.shrink()
        control.follow_up()
        control.note_release()
        control.give_back()
    control.note_what_became()
    control.close()
    control.note_draws()
    _settle_tests(fence, at)
    return done


@transaction.atomic
def _hold(site: Site, at: datetime) -> None:
    """Keep in which domains nothing may start, because too little is known of what they draw."""
    there = {hold.domain_id: hold for hold in PowerHold.objects.select_related("domain")}
    for domain_id, why in site.held.items():
        if domain_id not in there:
            PowerHold.objects.get_or_create(domain_id=domain_id, defaults={"since_at": at, "why": why})
            _tell_hold("power.limit_held", domain_id, site.domains[domain_id].name, at, why)
    for domain_id, hold in there.items():
        if domain_id not in site.held:
            name = hold.domain.name
            hold.delete()
            _tell_hold("power.limit_freed", domain_id, name, at, "Its meters are heard of again.")


def _tell_hold(kind: str, domain_id: int, name: str, at: datetime, reason: str) -> None:
    record(kind, subject_kind="domain", subject_id=domain_id, subject_name=name, at=at, reason=reason)


def _respond(at: datetime) -> None:
    """Commit for those whose programmes allow it in advance."""
    rows = unanswered().filter(notified_at__lte=at, end_at__gt=at, cancelled_at=None, opted_out_at=None)
    for event in rows.exclude(programme=None):
        try:
            services.respond(event_id=event.pk, at=at)
        except DomainError as error:
            _log.warning("Event %s: %s", event.pk, error.message)
        except Exception:
            # What cannot be decided for one event keeps no cap of another from being looked after.
            _log.exception("Event %s could not be answered", event.pk)


class _Control:
    """One look at everything that is in force."""

    def __init__(
        self,
        fence: int,
        at: datetime,
        actions: Sequence[CurtailmentAction],
        live: Sequence[DemandResponseEvent],
        done: Look,
        site: Site,
    ) -> None:
        self.fence, self.at, self.done = fence, at, done
        self.actions, self.live = list(actions), {event.pk: event for event in live}
        self._forget()
        self._see(site)

    def _forget(self) -> None:
        """What follows from the actions is worked out anew."""
        self._replaced_plans: frozenset[int] | None = None
        self._bridged: dict[int, bool] = {}

    def read(self) -> None:
        """See anew what runs."""
        self._see(read_site(self.at))

    def _see(self, site: Site) -> None:
        self.site = site
        self.job_of: Mapping[int, RunningJob] = {job.allocation_id: job for job in self.site.jobs}
        said = services.overridden(self.site, self.at)
        self.kept, self.released = said[OverrideKind.HOLD], said[OverrideKind.RELEASE]

    # What became of it

    def note_what_became(self) -> None:
        """Find out how far each action has come, from what agents and the ledger say."""
        asked = Job.objects.filter(pk__in=[a.job_id for a in self.actions if a.lever != Lever.CAP])
        state_of = dict(asked.values_list("pk", "state"))
        moves = [(action, *self._state_of(action, state_of)) for action in self.actions]
        self._move([move for move in moves if move[1] != move[0].state])
        self.actions = [action for action in self.actions if action.state != ActionState.REVERTED]
        self._forget()

    def _state_of(self, action: CurtailmentAction, state_of: Mapping[int, str]) -> tuple[str, str]:
        """How far it has come, and why; `state_of` is by job of those that more is asked of than a cap."""
        allocation_id = action.before.get("allocation_id", 0)
        job = self.job_of.get(allocation_id)
        is_asked = action.issue_at <= self.at
        if action.lever == Lever.SHRINK:
            return self._size_of(action, job, state_of.get(action.job_id, ""))
        if action.lever != Lever.CAP:
            if job is None:
                if state_of.get(action.job_id) == State.PAUSED:
                    return ActionState.VERIFIED, ""
                return ActionState.REVERTED, "The job is over, or went back into line."
            if job.is_pausing:
                return self._unless_late(action, ActionState.ACKED)
            if job.is_leaving:
                return self._unless_late(action, action.state)
            return self._unless_late(action, action.state) if is_asked else (action.state, "")
        if job is None:
            return ActionState.REVERTED, "The job no longer holds its devices."
        cap = job.cap
        wanted = self._share_of(action)
        if cap is None or not is_asked or cap.desired_share > wanted + _CLOSE:
            return self._unless_late(action, action.state) if is_asked else (action.state, "")
        if cap.observed_share is not None and cap.observed_share <= wanted + _CLOSE:
            return ActionState.VERIFIED, "Only written down: no device takes it." if cap.is_recorded else ""
        if action.state == ActionState.VERIFIED:
            return ActionState.FAILED, cap.message or "The cap is not in force any more."
        heard = cap.observed_at is not None and cap.observed_at >= cap.desired_at
        return self._unless_late(action, ActionState.ACKED if heard else action.state, cap.message)

    def _size_of(self, action: CurtailmentAction, before: RunningJob | None, state: str) -> tuple[str, str]:
        """How far a job has come that is to go on smaller: `before` is the attempt that is to make place."""
        if before is not None:
            if before.is_leaving:
                return self._unless_late(action, ActionState.ACKED)
            is_asked = action.issue_at <= self.at
            return self._unless_late(action, action.state) if is_asked else (action.state, "")
        now = next((job for job in self.site.jobs if job.job_id == action.job_id), None)
        if now is not None:
            if now.n_replicas <= action.after["n_replicas"]:
                return ActionState.VERIFIED, ""
            return ActionState.REVERTED, "It goes on with more replicas."
        if state == State.QUEUED:  # it waits for its place: so long it draws nothing at all
            return ActionState.VERIFIED, ""
        return ActionState.REVERTED, "The job is over, or was asked to pause."

    def _unless_late(self, action: CurtailmentAction, state: str, note: str = "") -> tuple[str, str]:
        is_settled = state in (ActionState.FAILED, ActionState.VERIFIED)
        if is_settled or self.at <= action.effective_by_at + PATIENCE:
            return state, note
        return ActionState.FAILED, note or "Nobody has confirmed it in time."

    def _move(self, moves: Sequence[tuple[CurtailmentAction, str, str]]) -> None:
        """Note how far these actions have come, and why."""
        if not moves:
            return
        reports = [
            ActionReport(
                idempotency_key=action.idempotency_key,
                state=state,
                lease_until_at=self._lease_of(action) if action.lever == Lever.CAP else None,
                note=note,
            )
            for action, state, note in moves
        ]
        rows = record_action_states(reports=reports, fence=self.fence, at=self.at)
        state_of = {row.pk: row.state for row in rows}
        for action, state, _ in moves:
            action.state = state_of.get(action.pk, action.state)
            if action.state == state:
                self.done.moved[action.pk] = state
        self._forget()

    def _lease_of(self, action: CurtailmentAction) -> datetime:
        spread = action.before.get("allocation_id", 0) % STAGGER_S
        ends_at: datetime = action.plan.event.end_at
        return ends_at + LEASE + timedelta(seconds=spread)

    # Shedding

    def _is_over(self, action: CurtailmentAction) -> bool:
        """Whether its event does not ask for it any more."""
        return self.at >= binds_until(action.plan.event)

    def _share_of(self, action: CurtailmentAction) -> float:
        """The cap that an action asks for now: a bridge asks for less once what it stands in for is in force."""
        share: float = action.after.get("share", 1.0)
        if action.after.get("is_bridge") and self._is_bridged(action):
            return float(action.after.get("then_share", 1.0))
        return share

    def _is_bridged(self, bridge: CurtailmentAction) -> bool:
        known = self._bridged.get(bridge.plan_id)
        if known is None:
            slow = [a for a in self.actions if a.plan_id == bridge.plan_id and a.lever != Lever.CAP]
            known = all(a.state in (ActionState.VERIFIED, ActionState.REVERTED) for a in slow)
            self._bridged[bridge.plan_id] = known
        return known

    def _asked(self) -> dict[int, float]:
        """By allocation, the lowest cap that any event asks for now."""
        asked: dict[int, float] = defaultdict(lambda: 1.0)
        replaced = self._replaced()
        for action in self.actions:
            if action.lever != Lever.CAP or action.issue_at > self.at or self._is_over(action):
                continue
            if action.plan_id in replaced:
                continue
            key = action.before.get("allocation_id", 0)
            if key in self.released:
                continue
            asked[key] = min(asked[key], self._share_of(action))
        return asked

    def _replaced(self) -> frozenset[int]:
        """Superseded plans whose successor is wholly in force: until then they hold."""
        if self._replaced_plans is None:
            self._replaced_plans = self._find_replaced()
        return self._replaced_plans

    def _find_replaced(self) -> frozenset[int]:
        standing: dict[int, bool] = {}
        for action in self.actions:
            if action.plan.state == PlanState.COMMITTED:
                done = action.state == ActionState.VERIFIED
                event_id = action.plan.event_id
                standing[event_id] = standing.get(event_id, True) and done
        return frozenset(
            action.plan_id
            for action in self.actions
            if action.plan.state == PlanState.SUPERSEDED and standing.get(action.plan.event_id, True)
        )

    def lower(self) -> None:
        """Ask for every cap that is due and lower than what is asked for already, or whose lease is another now."""
        of: dict[int, list[CurtailmentAction]] = defaultdict(list)
        for action in self.actions:
            of[action.before.get("allocation_id", 0)].append(action)
        asks = []
        for allocation_id, share in sorted(self._asked().items()):
            job = self.job_of.get(allocation_id)
            if job is None or (job.is_leaving and not job.is_pausing) or allocation_id in self.kept:
                continue
            base = base_share_of(job)
            now = base if job.cap is None else job.cap.desired_share
            lease = max(self._lease_of(action) for action in of[allocation_id])
            # A new holder says again what holds, so that nobody with an older fence is heard any more; and of an event
            # that was revised a cap must not end before it.
            is_old = job.cap is not None and (job.cap.fence < self.fence or job.cap.lease_until_at != lease)
            if share >= now - _CLOSE and not (is_old and share < base):
                continue
            asks.append(
                jobs.CapAsk(
                    allocation_id=allocation_id,
                    share=min(share, now),
                    back_share=base,
                    lease_until_at=lease,
                    reason=_why(of[allocation_id]),
                )
            )
        if asks:
            self.done.n_asked += len(jobs.ask_caps(asks=asks, fence=self.fence, at=self.at))

    def pause(self) -> None:
        """Ask those to leave whose pause is due."""
        asks = [
            jobs.PauseAsk(
                job_id=action.job_id,
                allocation_id=action.before.get("allocation_id", 0),
                is_hard=action.lever == Lever.STOP,
                reason=_why([action]),
            )
            for action in self.actions
            if action.lever in HARD and self._is_due(action)
        ]
        if asks:
            self.done.n_paused += len(jobs.pause_jobs(asks=asks, at=self.at))

    def shrink(self) -> None:
        """Have those go on with fewer replicas whose time it is."""
        for action in self.actions:
            if action.lever == Lever.SHRINK and self._is_due(action):
                self.done.n_shrunk += shrink_job(
                    job_id=action.job_id,
                    allocation_id=action.before.get("allocation_id", 0),
                    kept_on=dict(action.after["kept_on"]),
                    reason=_why([action]),
                    at=self.at,
                )

    def _is_due(self, action: CurtailmentAction) -> bool:
        """Whether what takes more than a cap is to be asked for now."""
        return (
            action.state == ActionState.REQUESTED
            and action.issue_at <= self.at
            and not self._is_over(action)
            and action.before.get("allocation_id", 0) not in self.kept | self.released
        )

    def follow_up(self) -> None:
        """Where a target is not met by what was committed, add to it: jobs end, start, and draw what they like."""
        for event in self.live.values():
            if self.at >= binds_until(event) or self.at < event.ramp_start_at:
                continue
            plan = event.plans.filter(state=PlanState.COMMITTED).first()
            if plan is None or plan.committed_at is None or self.at < plan.committed_at + FOLLOWS_AFTER:
                continue
            try:
                if self._lacks(event) and services.follow_up(event, self.site, at=self.at) is not None:
                    self.done.n_followed += 1
            except DomainError as error:
                _log.warning("Event %s: %s", event.pk, error.message)
            except Exception:
                _log.exception("The plan of event %s could not be added to", event.pk)
        if self.done.n_followed:
            self.actions = services.open_actions()
            self._forget()

    def _lacks(self, event: DemandResponseEvent) -> bool:
        """Whether the domain will draw more than the target once all that is under way is in force."""
        shed_w: dict[int, float] = defaultdict(float)  # of several actions on one job the one that sheds most
        for action in self.actions:
            job = self.job_of.get(action.before.get("allocation_id", 0))
            if job is None or action.state == ActionState.FAILED or self._is_over(action):
                continue
            n = self.site.devices_under(job, event.domain_id)
            then_w = job.kind.idle_w if action.lever in HARD else job.device_w(self._share_of(action))
            if action.lever == Lever.SHRINK:
                left = action.after["n_replicas"] / action.before["n_replicas"]
                then_w = job.kind.idle_w + (job.device_w() - job.kind.idle_w) * left
            shed_w[job.allocation_id] = max(shed_w[job.allocation_id], (job.device_w() - then_w) * n)
        target_w = limit_it_w(response_of(event), self.site.domains[event.domain_id].meter)
        if target_w is None:
            return False
        return self._drawn_w(event) - sum(shed_w.values()) > target_w * (1 + _OVER_SHARE) + 1.0

    def _drawn_w(self, event: DemandResponseEvent) -> float:
        """By its meter, if that has said something since the last thing was done; by the model otherwise.

        While the meter is silent the worst that is known counts.
        """
        bound = self.site.bounds.get(event.domain_id)
        if bound is not None and bound.quality is not Quality.OK and bound.how is not How.RESERVED:
            return domain_w(self.site, event.domain_id)
        reading = self.site.readings.get(event.domain_id)
        last_at = max((a.state_since_at for a in self.actions), default=None)
        if reading is not None and (last_at is None or reading.at >= last_at + SETTLED_AFTER):
            return domain_w(self.site, event.domain_id)
        return self.site.drawn_w.get(event.domain_id, 0.0)

    # Giving back

    def note_release(self) -> None:
        """Keep what an event's domain may come back to: what it drew at the release, and with each full minute what it
        draws then and a step of its ramp. A minute that nobody looked at allows no more than one step."""
        for event in self.live.values():
            if self.at < binds_until(event):
                continue
            before_at, ramped_at, step_w = event.ramped_at, self.at, ramp_step_w(event)
            allowed_w = self.site.drawn_w.get(event.domain_id, 0.0)
            if before_at is not None:
                n_minutes = (self.at - before_at) // timedelta(seconds=MINUTE_S)
                if step_w is None or n_minutes < 1:
                    continue
                ramped_at = before_at + n_minutes * timedelta(seconds=MINUTE_S)
                allowed_w += step_w
            DemandResponseEvent.objects.filter(pk=event.pk, ramped_at=before_at).update(
                ramped_at=ramped_at, ramped_w=allowed_w
            )
            event.ramped_at, event.ramped_w = ramped_at, allowed_w

    def give_back(self) -> None:
        """Raise caps, and then put paused jobs back into line, as far as every limit above them allows."""
        if not self._held_down() and not self._paused_for_nothing():
            return
        with transaction.atomic():
            # A plan that is being committed starts work on the same headroom: one after the other.
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE power_powerlimit IN ROW EXCLUSIVE MODE")
            self.read()
            self._raise()
            self._resume()

    def _held_down(self) -> list[tuple[RunningJob, float]]:
        """Jobs held lower than anybody asks for, and what they may have: the firmest first, then who lost most."""
        asked = self._asked()
        held = []
        for job in self.site.jobs:
            if job.cap is None or job.is_leaving or job.allocation_id in self.kept:
                continue
            # Who started under a cap gets full power as well, when there is some.
            goal = asked.get(job.allocation_id, 1.0)
            if job.cap.desired_share < goal - _CLOSE:
                held.append((job, goal))
        held.sort(key=lambda one: (one[0].tier, -one[0].lost_s, one[0].submitted_at, one[0].job_id))
        return held

    def _raise(self) -> None:
        headroom, asks = _Headroom(self.site, self.at), []
        shut: set[int] = set()  # domains in which somebody waits for more: nobody overtakes there
        for job, goal in self._held_down():
            assert job.cap is not None
            above = self.site.domains_of(job)
            if above & shut:
                continue
            now = job.cap.desired_share
            steps = [goal, *(cap for cap in job.kind.curve.caps() if now + _CLOSE < cap < goal - _CLOSE)]
            best = next((share for share in steps if headroom.bears(job, share)), None)
            if best is None:
                shut |= above & headroom.limited
                continue
            headroom.take(job, best)
            asks.append(
                jobs.CapAsk(
                    allocation_id=job.allocation_id,
                    share=best,
                    back_share=base_share_of(job),
                    lease_until_at=job.cap.lease_until_at,
                    reason="The event is over.",
                )
            )
        if asks:
            self.done.n_raised += len(jobs.ask_caps(asks=asks, fence=self.fence, at=self.at))

    def _paused_for_nothing(self) -> list[CurtailmentAction]:
        """Pauses that no event asks for any more; one that was not asked for yet is dropped."""
        kept = {
            a.job_id
            for a in self.actions
            if a.lever != Lever.CAP and not self._is_over(a) and a.plan_id not in self._replaced()
        }
        return [
            a
            for a in self.actions
            if a.lever != Lever.CAP
            and a.job_id not in kept
            and (self._is_over(a) or a.plan_id in self._replaced())
        ]

    def _resume(self) -> None:
        unneeded = self._paused_for_nothing()
        # What became of the job counts, not how the action was judged: one that was late is paused all the same.
        paused = set(
            Job.objects.filter(pk__in=[a.job_id for a in unneeded], state=State.PAUSED).values_list(
                "pk", flat=True
            )
        )
        dropped = []
        for action in unneeded:
            job = self.job_of.get(action.before.get("allocation_id", 0))
            if action.job_id not in paused and (job is None or not job.is_pausing):
                note = "It was not done before the event was over."
                if action.lever == Lever.SHRINK and action.state == ActionState.VERIFIED:
                    note = "It may grow again."
                dropped.append((action, str(ActionState.REVERTED), note))
        self._move(dropped)
        if self._held_down():
            return  # caps first
        resumed = []
        for action in unneeded:
            # It goes back into line where it stood; the planner starts it under every limit that holds by then.
            if action.job_id not in paused:
                continue
            if jobs.resume_job(job_id=action.job_id, at=self.at, reason="The event is over."):
                self.done.n_resumed += 1
            resumed.append((action, str(ActionState.REVERTED), ""))
        self._move(resumed)

    def note_draws(self) -> None:
        """Keep what domains of events draw by the model, for who looks at them."""
        told = {}
        for domain_id in {event.domain_id for event in self.live.values()}:
            last = self.site.readings.get(domain_id)
            if last is None or (last.source == MODELLED and self.at - last.at >= _NOTED_EVERY):
                meter = self.site.domains[domain_id].meter
                told[domain_id] = meter.fixed_w + meter.k * self.site.drawn_w.get(domain_id, 0.0)
        if told:
            record_modelled(draws_w=told, at=self.at)

    def close(self) -> None:
        """Note which caps are given back, and which events are over."""
        if (
            self.done.n_asked
            or self.done.n_paused
            or self.done.n_shrunk
            or self.done.n_raised
            or self.done.n_resumed
        ):
            self.read()
        replaced = self._replaced()
        asked = self._asked()
        given_back = []
        for action in self.actions:
            if action.lever != Lever.CAP or action.state == ActionState.REVERTED:
                continue
            is_bridged = bool(action.after.get("is_bridge")) and self._share_of(action) >= 1.0
            if not (self._is_over(action) or action.plan_id in replaced or is_bridged):
                continue
            job = self.job_of.get(action.before.get("allocation_id", 0))
            goal = 1.0 if job is None else min(asked.get(job.allocation_id, 1.0), base_share_of(job))
            if job is None or job.cap is None or job.cap.desired_share >= goal - _CLOSE:
                given_back.append((action, str(ActionState.REVERTED), ""))
        self._move(given_back)
        rows = [event for event in events().filter(pk__in=self.live) if event.released_at is None]
        loads = loads_of(rows, at=self.at)
        late = _still_away([event for event in rows if self.at < ramps_until(event)])
        for event in rows:
            if self.at < binds_until(event) or event.pk in late:
                continue
            meter = self.site.domains[event.domain_id].meter
            draw_w = meter.fixed_w + meter.k * domain_w(self.site, event.domain_id)
            load = Load(draw_w=draw_w, allowed_w=loads[event.pk].allowed_w)
            settle_release(event_id=event.pk, load=load, at=self.at)


def _still_away(events: Sequence[DemandResponseEvent]) -> set[int]:
    """Events of whose paused jobs some wait in line since, or run with less power than they had."""
    resumed = CurtailmentAction.objects.filter(
        plan__event__in=[event.pk for event in events], state=ActionState.REVERTED
    ).exclude(lever=Lever.CAP.value)
    jobs_of: dict[int, set[int]] = defaultdict(set)
    for event_id, job_id in resumed.values_list("plan__event_id", "job_id"):
        jobs_of[job_id].add(event_id)
    waiting = Job.objects.filter(pk__in=jobs_of, state__in=[State.QUEUED, State.STARTING])
    capped = Job.objects.filter(
        pk__in=jobs_of, allocations__ended_at=None, allocations__desired_power_cap_share__lt=1.0
    )
    return {event for job_id in (waiting | capped).values_list("pk", flat=True) for event in jobs_of[job_id]}


class _Headroom:
    """What every domain may still be given: under its own limit by peaks, under those of events by draws."""

    def __init__(self, site: Site, at: datetime) -> None:
        self._site = site
        self._drawn, self._peaks = dict(site.drawn_w), site.modelled_w(is_peak=True)
        self._limits = rise_limits_w(at)  # as of now: who asks for less may just have been committed
        self.limited = {d for d in site.domains if d in self._limits or site.domains[d].limit_w < inf}

    def bears(self, job: RunningJob, share: float) -> bool:
        """Whether a job may have this share."""
        for domain_id in self._site.domains_of(job):
            n = self._site.devices_under(job, domain_id)
            more_w = (job.device_w(share) - job.device_w()) * n
            peak_w = (job.device_w(share, is_peak=True) - job.device_w(is_peak=True)) * n
            if self._drawn[domain_id] + more_w > _slack(self._limits.get(domain_id, inf)):
                return False
            if self._peaks[domain_id] + peak_w > _slack(self._site.domains[domain_id].limit_w):
                return False
        return True

    def take(self, job: RunningJob, share: float) -> None:
        """Count it."""
        for domain_id in self._site.domains_of(job):
            n = self._site.devices_under(job, domain_id)
            self._drawn[domain_id] += (job.device_w(share) - job.device_w()) * n
            self._peaks[domain_id] += (job.device_w(share, is_peak=True) - job.device_w(is_peak=True)) * n


def _slack(limit_w: float) -> float:
    return limit_w if limit_w == inf else limit_w + 1e-6 * max(1.0, limit_w)


def _settle_tests(fence: int, at: datetime) -> None:
    """A test event does everything but act: what is due counts as done, what is over as given back."""
    rows = CurtailmentAction.objects.filter(
        plan__event__is_test=True, plan__committed_at__isnull=False, issue_at__lte=at, state__in=_OPEN
    ).select_related("plan__event__domain__power_limit")
    reports = []
    for action in rows:
        is_over = at >= binds_until(action.plan.event) or action.plan.state == PlanState.SUPERSEDED
        state = ActionState.REVERTED if is_over else ActionState.VERIFIED
        if action.state != state:
            note = "A test: nothing was done to the job."
            reports.append(ActionReport(idempotency_key=action.idempotency_key, state=state, note=note))
    if reports:
        record_action_states(reports=reports, fence=fence, at=at)


def _why(actions: Sequence[CurtailmentAction]) -> str:
    events = ", ".join(str(event_id) for event_id in sorted({a.plan.event_id for a in actions}))
    return f"Demand-response event {events}."

"""From a site and an event to a plan: who is slowed, who is paused, when, and what that leaves missing. No writes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from json import dumps
from math import inf
from typing import Any, Final

from apps.jobs.services import SAVING_MARGIN_S
from apps.power.curtailment.facts import (
    FIRM,
    INTERRUPTIBLE,
    WEIGHT,
    Candidate,
    Lever,
    Limit,
    Load,
    Option,
    Problem,
    Smaller,
)
from apps.power.curtailment.options import MICRO, candidate_of, left_to_bear
from apps.power.curtailment.schedule import HARD, Schedule, Step, schedule
from apps.power.models import DemandResponseEvent
from apps.power.plan_services import CARRIED_OUT, EXPIRES_AFTER, ActionDraft, PlanDraft
from apps.power.response import limit_it_w
from apps.power.response_selectors import response_of
from apps.power.telemetry.draws import Source
from apps.scheduling.response.site import RunningJob, Site

MARGIN_S: Final = 15.0  # a command waits for the next look of whoever controls, and for its answer
ASSUMED_SHARE: Final = (
    0.5  # of what a job would shed by its type alone, where nothing was declared or measured
)
MOST_LISTED: Final = 500
_CURVE_POINTS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an operator wants of a plan beside its target.

    Attributes:
        levers: That may be used, of CARRIED_OUT.
        exempt_jobs, exempt_teams: Never touched.
        allowed_jobs: May lose more than their tier allows, by an operator's word.
    """

    levers: frozenset[str] = CARRIED_OUT
    exempt_jobs: frozenset[int] = frozenset()
    exempt_teams: frozenset[str] = frozenset()
    allowed_jobs: frozenset[int] = frozenset()

    def as_json(self) -> dict[str, Any]:
        return {
            "levers": sorted(self.levers),
            "exempt_jobs": sorted(self.exempt_jobs),
            "exempt_teams": sorted(self.exempt_teams),
            "allowed_jobs": sorted(self.allowed_jobs),
        }

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Wish":
        return cls(
            levers=frozenset(told.get("levers", CARRIED_OUT)),
            exempt_jobs=frozenset(told.get("exempt_jobs", ())),
            exempt_teams=frozenset(told.get("exempt_teams", ())),
            allowed_jobs=frozenset(told.get("allowed_jobs", ())),
        )


@dataclass(frozen=True, slots=True)
class Held:
    """What is in force, or asked for, on behalf of events.

    Attributes:
        share_of: By allocation, the lowest cap that other events ask for.
        mine: By allocation, the cap that this event's own plan asks for.
        carried: Actions of this event's own plan that stay as they are: jobs that are paused, and those of which
            nothing new is asked.
        deaf: Allocations that this event's plan asked something of, and that did not do it.
        left_alone: Allocations that operators keep out of every plan.
        kept: Allocations that operators keep as they are.
        unseen: Allocations of which nothing is heard.
        pausing: Allocations that write their last checkpoint for this event, and draw no more soon.
        shrinking: Allocations that write one to go on smaller, and the share of them that is left.
        spent_s: By job, seconds of work that events took so far, in the span over which a tier's loss is an average.
        rolling_s: That span where it rolls along; 0: it is this event alone.
    """

    share_of: Mapping[int, float] = field(default_factory=dict)
    mine: Mapping[int, float] = field(default_factory=dict)
    carried: Sequence[ActionDraft] = ()
    deaf: frozenset[int] = frozenset()
    left_alone: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    unseen: frozenset[int] = frozenset()
    pausing: frozenset[int] = frozenset()
    shrinking: Mapping[int, float] = field(default_factory=dict)
    spent_s: Mapping[int, float] = field(default_factory=dict)
    rolling_s: float = 0.0

    def bears(self, job: RunningJob, event: DemandResponseEvent, at: datetime) -> float:
        """The largest average loss, as a share, that a job still bears over the rest of an event."""
        left_s = (event.end_at - max(at, event.start_at)).total_seconds()
        span_s = self.rolling_s or (event.end_at - event.start_at).total_seconds()
        spent_s = self.spent_s.get(job.job_id, 0.0)
        return left_to_bear(
            job.tier, span_s=span_s, spent_s=spent_s, window_s=left_s, is_rolling=bool(self.rolling_s)
        )

    @property
    def as_they_are(self) -> frozenset[int]:
        """Allocations that draw what they draw, whatever a plan would ask of them."""
        return self.deaf | self.kept | self.unseen

    @property
    def untouched(self) -> frozenset[int]:
        """Allocations of which nothing new is asked."""
        return self.as_they_are | self.left_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A plan, and the hash of what was asked for and of what it does."""

    draft: PlanDraft
    inputs_hash: str


def decide(
    site: Site,
    event: DemandResponseEvent,
    *,
    at: datetime,
    wish: Wish = Wish(),
    held: Held = Held(),
    at_least_mine: bool = False,
) -> Decided | None:
    """The best plan for an event as things stand; None while what it counts from is not known.

    Args:
        held: What other events do already stays done; what this one does may be chosen anew.
        at_least_mine: What this event's plan does stays done as well: more is added to it.
    """
    domain = site.domains[event.domain_id]
    target_w = limit_it_w(response_of(event), domain.meter)
    if target_w is None:
        return None
    window_s = max(1.0, _window_s(event, at))
    base_w = domain_w(site, domain.id)
    jobs: list[RunningJob] = []
    candidates: list[Candidate] = []
    for job in site.jobs:
        n = site.devices_under(job, domain.id)
        if not n:
            continue
        base_share = min(base_share_of(job), held.share_of.get(job.allocation_id, 1.0))
        if job.allocation_id in held.as_they_are:
            base_share = job.share
        elif at_least_mine:
            # What it was asked stays asked, and is taken over as it is: what is chosen comes on top.
            base_share = min(base_share, held.mine.get(job.allocation_id, 1.0))
        is_going = job.allocation_id in held.pausing
        then_w = job.kind.idle_w if is_going else job.device_w(base_share)
        then_w = job.kind.idle_w + (then_w - job.kind.idle_w) * held.shrinking.get(job.allocation_id, 1.0)
        base_w += (then_w - job.device_w()) * n
        bears = held.bears(job, event, at)
        candidates.append(_candidate(site, job, event, n, base_share, window_s, wish, held, bears))
        jobs.append(job)
    need_uw = round((base_w - target_w) * MICRO)
    problem = Problem(tuple(candidates), (Limit(domain.id, need_uw, event.priority),))
    decided = schedule(
        problem,
        start_s=(event.start_at - at).total_seconds(),
        earliest_s=(event.ramp_start_at - at).total_seconds(),
        margin_s=MARGIN_S,
        is_emergency=event.is_emergency,
    )
    draft = _draft(site, event, wish, held, decided, jobs, at, base_w=base_w, target_w=target_w)
    return Decided(draft=draft, inputs_hash=hash_of(event, wish, draft.actions))


def _window_s(event: DemandResponseEvent, at: datetime) -> float:
    """How long a plan made now costs something.

    Of an event that has just begun all of it counts, as long as a preview is good: between jobs that are equally
    good a window that shrinks by the second would choose others with each look, and no preview could be committed.
    """
    begins_at = event.start_at if at < event.start_at + EXPIRES_AFTER else at
    return max(0.0, (event.end_at - begins_at).total_seconds())


def domain_w(site: Site, domain_id: int) -> float:
    """What a domain draws now: by its meter, or by the model where nothing is heard of one."""
    metered_w = site.metered_w(domain_id)
    return site.drawn_w.get(domain_id, 0.0) if metered_w is None else metered_w


def base_share_of(job: RunningJob) -> float:
    """The cap that a job has whatever events ask for: what its agent goes back to."""
    return job.share if job.cap is None else job.cap.back_share


def hash_of(event: DemandResponseEvent, wish: Wish, actions: Sequence[ActionDraft] = ()) -> str:
    """Of what was asked for, and of what is done for it: SHA-256, hex."""
    done = [[action.job_id, str(action.lever), dict(action.before), dict(action.after)] for action in actions]
    target = [event.domain_id, event.target_kind, event.value, event.is_emergency, event.is_test]
    times = [event.start_at.isoformat(), event.end_at.isoformat()]
    return sha256(dumps([target, times, wish.as_json(), done], sort_keys=True).encode()).hexdigest()


def gone_w(actions: Sequence[ActionDraft], site: Site) -> float:
    """Watts of IT load that actions were to bring whose jobs are over, or are other attempts, by now."""
    there = {job.allocation_id for job in site.jobs if not job.is_leaving or job.is_pausing}
    return sum(action.expected_w for action in actions if action.before.get("allocation_id", 0) not in there)


def _candidate(
    site: Site,
    job: RunningJob,
    event: DemandResponseEvent,
    n: float,
    base_share: float,
    window_s: float,
    wish: Wish,
    held: Held,
    bears: float,
) -> Candidate:
    alone = Candidate(job.allocation_id, job.tier, job.n_devices, (Option(Lever.NONE),))
    is_exempt = job.job_id in wish.exempt_jobs or job.team in wish.exempt_teams
    if is_exempt or job.is_leaving or job.tier == FIRM or job.allocation_id in held.untouched:
        return alone
    load = Load(
        job.allocation_id,
        job.tier,
        job.n_devices,
        {0: n},
        job.device_w(base_share),
        job.kind.curve,
        checkpoint_s=job.checkpoint_s,
        at_risk_s=job.at_risk_s,
        restart_s=job.restart_s,
        smaller=_smaller(site, job, event.domain_id) if job.can_shrink else (),
        bears=bears,
    )
    may_more = event.is_emergency or (job.job_id in wish.allowed_jobs and job.tier != INTERRUPTIBLE)
    options = candidate_of(
        load,
        window_s,
        is_emergency=may_more,
        may_use=lambda option: option.lever.value in wish.levers and _is_open(job, option),
    ).options
    if job.draw_source == Source.TDP_DERIVED and site.metered_w(event.domain_id) is not None:
        # Nobody knows what it draws, and a meter will tell: half of what the type could shed is counted on.
        options = tuple(_discounted(option) for option in options)
    return Candidate(job.allocation_id, job.tier, job.n_devices, options or alone.options)


def _discounted(option: Option) -> Option:
    return replace(
        option, shed_uw=tuple((limit, int(watts * ASSUMED_SHARE)) for limit, watts in option.shed_uw)
    )


def _is_open(job: RunningJob, option: Option) -> bool:
    if option.lever is Lever.CAP:
        return job.can_cap and job.is_whole
    if option.lever is Lever.SHRINK:
        return job.is_running and job.share >= 1.0  # held down in one way at a time
    return job.is_running


def _smaller(site: Site, job: RunningJob, domain_id: int) -> tuple[Smaller, ...]:
    """The sizes at which a job can go on, the largest first; those outside the domain stay rather."""
    inside = _nodes_inside(site, job, domain_id)
    n_before = sum(n for node, n in job.replicas_on.items() if node in inside)
    each = job.n_devices / job.n_replicas
    found = []
    for n in range(job.n_replicas - 1, job.least_replicas - 1, -1):
        n_then = sum(n for node, n in job.kept_on(n, inside).items() if node in inside)
        found.append(
            Smaller(
                n,
                job.rate_at(n),
                {0: (n_before - n_then) * each},
                stall_s=job.checkpoint_s + job.restart_s,
                takes_s=job.checkpoint_s + SAVING_MARGIN_S,
            )
        )
    return tuple(found)


def _nodes_inside(site: Site, job: RunningJob, domain_id: int) -> frozenset[int]:
    return frozenset(node for node in job.replicas_on if domain_id in site.chain.get(node, ()))


# The plan as it is kept ------------------------------------------------------------------------------------------


def _draft(
    site: Site,
    event: DemandResponseEvent,
    wish: Wish,
    held: Held,
    decided: Schedule,
    jobs: Sequence[RunningJob],
    at: datetime,
    *,
    base_w: float,
    target_w: float,
) -> PlanDraft:
    domain = site.domains[event.domain_id]
    k = domain.meter.k
    by_id = {job.allocation_id: job for job in jobs}
    kept_w = sum(action.expected_w for action in held.carried)
    kept_caps = [action.expected_w for action in held.carried if action.lever == Lever.CAP]
    kept_small = [action.expected_w for action in held.carried if action.lever == Lever.SHRINK]
    lasting = decided.lasting.chosen(decided.problem)
    lost_s = sum(option.lost_ms for option in lasting.values()) / 1000
    shed_w = sum(option.total_uw for option in lasting.values()) / MICRO
    short_w = decided.lasting.short_uw[0] / MICRO
    breaches = sorted(
        {
            by_id[allocation_id].job_id
            for allocation_id, option in lasting.items()
            if _breaks(by_id[allocation_id], option, held.bears(by_id[allocation_id], event, at))
        }
    )
    actions = [
        *held.carried,
        *(_action(step, by_id[step.job_id], site, event, held, at) for step in decided.steps),
    ]
    achievable_w = base_w - decided.lasting.achievable_uw[0] / MICRO
    rows = _rows(decided, by_id, event, held, at)
    rows.sort(key=lambda row: (-row["lost_device_s"], row["job_id"]))
    details = {
        "wish": wish.as_json(),
        "domain": domain.name,
        "at": at.isoformat(),
        "is_metered": site.metered_w(domain.id) is not None,
        "base_w": round(base_w, 3),
        "target_w": round(target_w, 3),
        "load_w": round(base_w - shed_w, 3),
        "asked_w": round(max(0.0, base_w + kept_w - target_w), 3),
        "shed_w": round(shed_w + kept_w, 3),
        "short_w": round(short_w, 3),
        "achievable_w": round(base_w + kept_w - achievable_w, 3),
        "k": k,
        "fixed_w": domain.meter.fixed_w,
        "method": decided.lasting.method,
        "gap": round(decided.lasting.gap, 6),
        "n_capped": sum(option.lever is Lever.CAP for option in lasting.values()) + len(kept_caps),
        "n_paused": sum(option.lever in HARD for option in lasting.values())
        + (len(held.carried) - len(kept_caps) - len(kept_small)),
        "n_shrunk": sum(option.lever is Lever.SHRINK for option in lasting.values()) + len(kept_small),
        "capped_w": round(_shed_by(lasting, (Lever.CAP,)) + sum(kept_caps), 3),
        "paused_w": round(_shed_by(lasting, HARD) + kept_w - sum(kept_caps) - sum(kept_small), 3),
        "shrunk_w": round(_shed_by(lasting, (Lever.SHRINK,)) + sum(kept_small), 3),
        "deferred_device_s": round(_deferred_s(decided, by_id, event, at), 3),
        "is_bridged": decided.at_start is not decided.lasting,
        "binding": _binding(domain.name, jobs, short_w),
        "relaxations": _relaxations(site, event, jobs, lasting, wish) if short_w > 1e-6 else [],
        "jobs": rows[:MOST_LISTED],
        "n_jobs": len(rows),
        "curve": _curve(decided.steps, event, at, base_w=base_w),
    }
    return PlanDraft(
        actions=actions,
        predicted_shed_w=round((shed_w + kept_w) * k, 3),
        shortfall_w=round(short_w * k, 3),
        lost_device_s=lost_s,
        # The bound is on what is lost by weight; so far off it may be, without weights as well.
        bound_device_s=lost_s * (1.0 - min(1.0, max(0.0, decided.lasting.gap))),
        tier_breaches=breaches,
        draw_w=round(domain.meter.fixed_w + k * domain_w(site, domain.id), 3),
        details=details,
    )


def _action(
    step: Step, job: RunningJob, site: Site, event: DemandResponseEvent, held: Held, at: datetime
) -> ActionDraft:
    base = min(base_share_of(job), held.share_of.get(job.allocation_id, 1.0))
    before: dict[str, Any] = {"allocation_id": job.allocation_id, "share": round(base, 9)}
    after: dict[str, Any]
    if step.option.lever is Lever.CAP:
        after = {"share": round(step.option.cap, 9)}
        if step.is_bridge:
            after |= {"is_bridge": True}
            if step.then.lever is Lever.CAP:
                after["then_share"] = round(step.then.cap, 9)
    elif step.option.lever is Lever.SHRINK:
        before["n_replicas"] = job.n_replicas
        kept = job.kept_on(step.option.n_replicas, _nodes_inside(site, job, event.domain_id))
        after = {"n_replicas": step.option.n_replicas, "kept_on": sorted(map(list, kept.items()))}
    else:
        after = {"state": "paused"}
    return ActionDraft(
        job_id=job.job_id,
        tier=job.tier,
        lever=step.option.lever.value,
        before=before,
        after=after,
        expected_w=step.option.total_uw / MICRO,
        issue_at=at + timedelta(seconds=step.issue_s),
        effective_by_at=at + timedelta(seconds=step.effective_s),
    )


def _rows(
    decided: Schedule, by_id: Mapping[int, RunningJob], event: DemandResponseEvent, held: Held, at: datetime
) -> list[dict[str, Any]]:
    """Every touched job once, with what is done to it in the end; who only stands in for others says so."""
    rows = []
    lasting = decided.lasting.chosen(decided.problem)
    for step in decided.steps:
        stays = lasting.get(step.job_id)
        if step.is_bridge and stays is not None:
            if stays.lever in HARD:
                continue  # it has a step of its own
            step = replace(step, option=stays, is_bridge=False)
        rows.append(_row(step, by_id[step.job_id], event, held, at))
    return rows


def _row(step: Step, job: RunningJob, event: DemandResponseEvent, held: Held, at: datetime) -> dict[str, Any]:
    """One touched job, for people."""
    option = step.option
    window_s = _window_s(event, at)
    moves_s = window_s * (1.0 - _rate(job, option)) + (
        job.restart_s if option.lever is not Lever.CAP else 0.0
    )
    return {
        "job_id": job.job_id,
        "name": job.name,
        "team": job.team,
        "tier": job.tier,
        "n_devices": round(job.n_devices, 6),
        "kind": job.kind.name,
        "lever": option.lever.value,
        "share": round(option.cap, 6) if option.lever is Lever.CAP else None,
        "n_replicas": option.n_replicas if option.lever is Lever.SHRINK else None,
        "cap_w": round(option.cap * job.kind.tdp_w, 1) if option.lever is Lever.CAP else None,
        "shed_w": round(option.total_uw / MICRO, 3),
        "lost_device_s": round(option.lost_ms / 1000, 3),
        "finish_moves_s": round(moves_s, 1),
        "unsaved_s": None
        if job.checkpoint_s != inf or option.lever is Lever.CAP
        else round(job.at_risk_s, 1),
        "issue_at": (at + timedelta(seconds=step.issue_s)).isoformat(),
        "is_breach": _breaks(job, option, held.bears(job, event, at)),
        "spent_s": round(held.spent_s.get(job.job_id, 0.0), 1),
        "is_bridge": step.is_bridge,
        "is_assumed": job.draw_source == Source.TDP_DERIVED,
    }


def _breaks(job: RunningJob, option: Option, bears: float) -> bool:
    """Whether a job would lose more than its tier allows, and more than is left of that."""
    if option.lever in HARD:
        return job.tier != INTERRUPTIBLE
    return 1.0 - _rate(job, option) > bears + 1e-9


def _rate(job: RunningJob, option: Option) -> float:
    """Share of its throughput that is left."""
    match option.lever:
        case Lever.NONE:
            return 1.0
        case Lever.CAP:
            return job.kind.curve.rate(option.cap, job.draw_w)
        case Lever.SHRINK:
            return job.rate_at(option.n_replicas)
        case _:
            return 0.0


def _shed_by(lasting: Mapping[int, Option], levers: Iterable[Lever]) -> float:
    return sum(option.total_uw for option in lasting.values() if option.lever in levers) / MICRO


def _deferred_s(
    decided: Schedule, by_id: Mapping[int, RunningJob], event: DemandResponseEvent, at: datetime
) -> float:
    """Device-seconds of work that come later, without what is lost for good."""
    window_s = _window_s(event, at)
    total = 0.0
    for allocation_id, option in decided.lasting.chosen(decided.problem).items():
        job = by_id[allocation_id]
        total += job.n_devices * window_s * (1.0 - _rate(job, option))
    return total


def _binding(domain: str, jobs: Sequence[RunningJob], short_w: float) -> list[str]:
    if short_w <= 1e-6:
        return []
    tiers = sorted({job.tier for job in jobs if job.tier != INTERRUPTIBLE and not job.is_leaving})
    return [domain, *(f"tier {tier}" for tier in tiers)]


def _relaxations(
    site: Site,
    event: DemandResponseEvent,
    jobs: Sequence[RunningJob],
    lasting: Mapping[int, Option],
    wish: Wish,
) -> list[dict[str, Any]]:
    """What an operator could allow beside it, the cheapest watt first, with the watts of IT load that it gives."""
    found = []
    for job in jobs:
        if job.tier in (FIRM, INTERRUPTIBLE) or job.job_id in wish.allowed_jobs or job.is_leaving:
            continue
        if (
            job.job_id in wish.exempt_jobs
            or job.team in wish.exempt_teams
            or not (job.can_cap and job.is_whole)
        ):
            continue
        n = site.devices_under(job, event.domain_id)
        curve, chosen = job.kind.curve, lasting.get(job.allocation_id)
        now_w = job.device_w(chosen.cap if chosen is not None and chosen.lever is Lever.CAP else None)
        lower = [cap for cap in curve.caps() if cap * curve.tdp_w < now_w - 1e-6]
        if not lower or (chosen is not None and chosen.lever not in (Lever.NONE, Lever.CAP)):
            continue
        cap = lower[0]  # the next step: what more it gives is asked again
        gain_w = (now_w - cap * curve.tdp_w) * n
        lost = 1.0 - curve.rate(cap, job.draw_w)
        found.append(
            {
                "job_id": job.job_id,
                "name": job.name,
                "tier": job.tier,
                "cap_w": round(cap * curve.tdp_w, 1),
                "gain_w": round(gain_w, 3),
                "cost_per_w": WEIGHT[job.tier] * lost * n / gain_w,
            }
        )
    found.sort(key=lambda one: (one["cost_per_w"], one["job_id"]))
    return found[:50]


def _curve(
    steps: Sequence[Step], event: DemandResponseEvent, at: datetime, *, base_w: float
) -> list[list[Any]]:
    """[instant, watts of IT load with the plan] from now until a while after the end."""
    changes: dict[float, float] = {}
    slow_s = max((step.effective_s for step in steps if not step.is_bridge), default=0.0)
    for step in steps:
        shed_w = step.option.total_uw / MICRO
        changes[step.effective_s] = changes.get(step.effective_s, 0.0) - shed_w
        if step.is_bridge:
            back_w = shed_w - step.then.total_uw / MICRO
            changes[slow_s] = changes.get(slow_s, 0.0) + back_w
    points: list[list[Any]] = [[at.isoformat(), round(base_w, 1)]]
    load_w = base_w
    for second in sorted(changes):
        when = at + timedelta(seconds=second)
        points.append([when.isoformat(), round(load_w, 1)])
        load_w += changes[second]
        points.append([when.isoformat(), round(load_w, 1)])
    if len(points) > _CURVE_POINTS:
        stride = -(-len(points) // _CURVE_POINTS)
        points = [*points[:-1:stride], points[-1]]
    points.append([event.end_at.isoformat(), round(load_w, 1)])
    return points

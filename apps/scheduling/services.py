"""Runs passes, one at a time in the whole house, and answers what a pass would do with a job."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final

import numpy as np
from django.db import transaction

from apps.core import clock
from apps.core.locks import session_lock
from apps.events.services import record
from apps.inventory.models import Domain
from apps.jobs import policies
from apps.jobs.errors import Fault, Refused
from apps.jobs.spec import JobRequest
from apps.power.models import PowerReading
from apps.scheduling import admission, apply, dump_store, line, losses, selectors
from apps.scheduling.engine import checker, draw, planner
from apps.scheduling.engine.facts import NONE, Gang, Plan, Start, Wait
from apps.scheduling.engine.fragmentation import fragmentation_of, mix_of
from apps.scheduling.engine.fragments import Present
from apps.scheduling.engine.frame import frame_of
from apps.scheduling.engine.planner import without_collection
from apps.scheduling.models import FacilityChange, Forecast, ForecastOutcome, Pass, UtilizationSample
from apps.scheduling.snapshot import PREVIEW_ID, Taken, instant, take_snapshot
from apps.teams import loans
from apps.teams.models import Team, User

# Any number would do, as long as nobody else uses it.
PASS_LOCK: Final = 0x5357_4954_4348  # "SWITCH"
_MOST_ROUNDS: Final = 20
# Somebody may change rows without logging it; nothing waits longer than this for a second look.
_LOOK_AGAIN: Final = timedelta(minutes=5)
_TRY_AGAIN: Final = timedelta(seconds=1)
_AFTER_REFUSAL: Final = timedelta(seconds=60)
_MOST_FAULTS: Final = 100
_KEPT_PASSES: Final = 100_000
_KEPT_FORECASTS: Final = timedelta(days=90)
_KEPT_FACILITY_CHANGES: Final = timedelta(hours=1)
_log = logging.getLogger(__name__)


def run_pass(*, at: datetime) -> Pass | None:
    """Plan and commit until nothing new is to be seen; None if there was nothing to do, or another is at it.

    Whoever finds the lock taken may leave: the holder looks for news once more after it has let go, so news that
    came while it held the lock is never left lying.
    """
    began_s = clock.monotonic_s()
    now, last = at, None
    for _ in range(_MOST_ROUNDS):
        with session_lock(PASS_LOCK) as is_ours:
            if not is_ours or not _is_due(now):
                return last
            with without_collection():
                last = _one_pass(now)
        now = at + timedelta(seconds=clock.monotonic_s() - began_s)
    return last


def _is_due(at: datetime) -> bool:
    last = selectors.last_pass()
    if last is None or last.next_boundary_at is None or at >= last.next_boundary_at:
        return True
    return selectors.has_unseen_events(last.summary.get("seen", "1:1:"), last.cursor_transaction_id)


class _Stopwatch:
    """Milliseconds by phase."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last_s = clock.monotonic_s()

    def lap(self, phase: str) -> None:
        now_s = clock.monotonic_s()
        self.ms[phase] = round(1000 * (now_s - self._last_s), 3)
        self._last_s = now_s


def _one_pass(at: datetime) -> Pass:
    """One pass, whatever the last one saw. The caller holds the lock."""
    this = Pass.objects.create(started_at=at)
    watch = _Stopwatch()
    taken = take_snapshot(at)
    watch.lap("load")
    plan, left = planner.plan_and_left(taken.snapshot, taken.policy)
    watch.lap("plan")
    faults = checker.check(taken.snapshot, plan, taken.policy)
    watch.lap("check")
    this.cursor_transaction_id = taken.seen_below
    this.n_queued = len(taken.snapshot.queue) + len(taken.left_out)
    this.n_waiting = len(plan.waits) + len(taken.left_out)
    this.summary = {"seen": taken.seen, **_summary(taken, plan)}
    if faults:
        return _refuse(this, taken, plan, faults, watch, at)
    applied = apply.apply_plan(taken, plan, pass_id=this.pk, at=at)
    watch.lap("commit")
    stale = {job_id for job_id, _ in applied.stale}
    with transaction.atomic():
        waits = (*plan.waits, *taken.left_out)
        line.note_basis(taken, pass_id=this.pk)
        losses.count(taken, waits, [start for start in plan.starts if start.job_id not in stale], at=at)
    this.fragmentation = _fragmentation(taken, left)
    watch.lap("losses")
    this.n_started, this.n_dropped = applied.n_started, len(applied.stale)
    this.summary["dropped"] = [{"job_id": job_id, "why": why} for job_id, why in applied.stale[:_MOST_FAULTS]]
    boundary = _next_boundary(taken, plan, at)
    if applied.stale or applied.reasons_left:
        boundary = min(boundary, at + _TRY_AGAIN)
    _finish(this, watch, boundary, at)
    dump_store.keep(this, taken, plan, at=at)
    if applied.n_started or applied.stale:
        record(
            "pass.finished",
            subject_kind="pass",
            subject_id=this.pk,
            at=at,
            data={"n_started": this.n_started, "n_waiting": this.n_waiting, "n_dropped": this.n_dropped},
        )
    return this


def _refuse(
    this: Pass, taken: Taken, plan: Plan, faults: Sequence[Any], watch: _Stopwatch, at: datetime
) -> Pass:
    """Keep a plan that breaks a rule, for people to look at; nothing of it is written."""
    _log.error("Pass %s is refused: %s", this.pk, faults[0])
    this.is_refused = True
    this.faults = [
        {"rule": fault.rule, "job_id": fault.job_id, "message": fault.message}
        for fault in faults[:_MOST_FAULTS]
    ]
    this.summary["starts"] = [
        {"job_id": start.job_id, "placement": apply.placement_as_json(taken.snapshot.facility, start.placing)}
        for start in plan.starts[:_MOST_FAULTS]
    ]
    with transaction.atomic():
        _finish(this, watch, at + _AFTER_REFUSAL, at)
        dump_store.keep(this, taken, plan, faults, at=at)
        record(
            "pass.refused", subject_kind="pass", subject_id=this.pk, at=at, data={"faults": this.faults[:10]}
        )
    return this


def _finish(this: Pass, watch: _Stopwatch, boundary: datetime, at: datetime) -> None:
    this.phase_ms = watch.ms
    this.next_boundary_at = boundary
    this.finished_at = at + timedelta(milliseconds=sum(watch.ms.values()))
    this.save()


def _next_boundary(taken: Taken, plan: Plan, at: datetime) -> datetime:
    """The next instant at which a plan may come out differently although nothing happens."""
    snapshot = taken.snapshot
    marks = [plan.next_boundary_s, *taken.cooldown_s, *taken.given_up.values()]
    if taken.next_limit_at is not None:
        marks.append(taken.next_limit_at.timestamp())
    if (loan_at := loans.next_change_at(at)) is not None:
        marks.append(loan_at.timestamp())
    for gang in snapshot.queue:
        marks.append(gang.not_before_s)
        marks.append(gang.retry_s)
    for booking in snapshot.bookings:
        marks += [booking.start_s, booking.end_s]
    if snapshot.queue:
        marks += [running.ends_s for running in snapshot.running]
    ahead = min((mark for mark in marks if mark > snapshot.now_s), default=inf)
    soonest = instant(ahead)
    latest = at + _LOOK_AGAIN
    return latest if soonest is None else min(soonest, latest)


def _summary(taken: Taken, plan: Plan) -> dict[str, Any]:
    """Waiting jobs and devices by reason."""
    by_code: dict[str, list[float]] = {}
    for wait in (*plan.waits, *taken.left_out):
        gang = taken.gangs.get(wait.job_id)
        counts = by_code.setdefault(wait.code, [0, 0.0])
        counts[0] += 1
        counts[1] += _devices_of(gang) if gang is not None else 0.0
    return {
        "waiting": {code: {"jobs": n, "devices": round(devices, 6)} for code, (n, devices) in by_code.items()}
    }


def _fragmentation(taken: Taken, left: Present) -> list[list[Any]]:
    """As `Pass.fragmentation`; typical is what waits, runs, and ran within a day."""
    snapshot = taken.snapshot
    mix = mix_of([*snapshot.queue, *(running.gang for running in snapshot.running)], taken.ended)
    found = fragmentation_of(frame_of(snapshot.facility), snapshot.is_usable, left, mix)
    return [
        [
            snapshot.facility.kinds[one.kind].name,
            *(_rounded(n) for n in (one.free, one.of_replicas, one.of_gangs)),
        ]
        for one in found
    ]


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _devices_of(gang: Gang) -> float:
    return sum(ask.n_replicas * (ask.devices + ask.share_steps / 1e6) for ask in gang.shape.asks)


# Preview -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of a job if it were submitted now."""

    would_start: bool
    expected_start_at: datetime | None
    placement: list[dict[str, Any]]
    cluster: str
    is_simulated: bool
    reason: Mapping[str, Any] | None = None
    why: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    displaces: tuple[int, ...] = ()  # jobs that would give way to it, or start now without it and not with it


def preview(*, request: JobRequest, actor: User, at: datetime) -> Preview:
    """Run a pass in the mind, with this job in the queue; nothing is written."""
    team = Team.objects.filter(name=request.team).first()
    if team is None or not policies.may_submit_to(actor, team):
        raise Refused([Fault("team", "unknown_team", "is not a team you may submit to")])
    admission.require_possible([request])
    taken = take_snapshot(at, candidates=[request], candidates_of=actor.pk)
    plan = planner.plan(taken.snapshot, taken.policy)
    facility = taken.snapshot.facility
    start = next((start for start in plan.starts if start.job_id == PREVIEW_ID), None)
    reserve = next((reserve for reserve in plan.reserves if reserve.job_id == PREVIEW_ID), None)
    wait = next((wait for wait in apply.ranked(plan.waits) if wait.job_id == PREVIEW_ID), None)
    placing = start.placing if start is not None else reserve.placing if reserve is not None else ()
    node = placing[0].node if placing else NONE
    cluster_id = int(facility.cluster[node]) if node != NONE else 0
    expected_s = _expected_s(taken, start, reserve.start_s if reserve is not None else None, wait)
    return Preview(
        would_start=start is not None,
        expected_start_at=None if expected_s is None else instant(expected_s),
        placement=apply.placement_as_json(facility, placing),
        cluster=taken.cluster_name.get(cluster_id, ""),
        is_simulated=taken.is_simulated.get(cluster_id, False),
        reason=None if wait is None else reason_as_json(wait),
        why=dict(start.why) if start is not None else {},
        rank=wait.rank if wait is not None else None,
        displaces=_displaced(taken, plan) if start is not None else (),
    )


def _expected_s(
    taken: Taken, start: Start | None, promised_s: float | None, wait: Wait | None
) -> float | None:
    if start is not None:
        return taken.snapshot.now_s
    return promised_s if promised_s is not None else wait.expected_start_s if wait is not None else None


def _displaced(taken: Taken, plan: Plan) -> tuple[int, ...]:
    others = tuple(gang for gang in taken.snapshot.queue if gang.id > PREVIEW_ID)
    without = planner.plan(replace(taken.snapshot, queue=others), replace(taken.policy, explain=False))
    with_it = {start.job_id for start in plan.starts}
    evicted = tuple(evict.job_id for evict in plan.evictions if evict.for_job_id == PREVIEW_ID)
    return evicted + tuple(start.job_id for start in without.starts if start.job_id not in with_it)


def reason_as_json(wait: Wait) -> dict[str, Any]:
    return {
        "code": wait.code,
        "sentence": wait.sentence,
        "blocked_by": list(wait.blocked_by),
        "facts": apply.plain(wait.facts),
    }


# Samples -----------------------------------------------------------------------------------------------------------


def roll_up(*, at: datetime) -> None:
    """Keep one sample a minute of what devices do and of what the domains are modelled to draw. Twice is once."""
    # By itself: within a transaction a picture is that transaction's, and nothing of it can be remembered.
    taken = take_snapshot(at)
    _keep_samples(taken, at)


@transaction.atomic
def _keep_samples(taken: Taken, at: datetime) -> None:
    _forget_old(at)
    minute = at.replace(second=0, microsecond=0)
    UtilizationSample.objects.bulk_create(_samples(taken, minute), ignore_conflicts=True)
    facility = taken.snapshot.facility
    if not facility.n_nodes:
        return
    drawn_w = draw.domain_draw_w(facility, taken.snapshot.running, taken.snapshot.is_failed)
    in_power_trees = _in_trees(taken)
    known = set(Domain.objects.values_list("id", flat=True))
    PowerReading.objects.bulk_create(
        [
            PowerReading(
                domain_id=domain.id,
                at=minute,
                # Limits of a facility are at the meter, and so are its readings.
                draw_w=max(0.0, domain.overhead_fixed_w + domain.overhead_k * float(watts)),
                source="modelled",
            )
            for position, (domain, watts) in enumerate(zip(facility.domains, drawn_w, strict=True))
            if domain.id in known and in_power_trees[position]
        ],
        ignore_conflicts=True,
    )


def _forget_old(at: datetime) -> None:
    """Drop what nobody looks back to: all but the last passes, and old forecasts. Refused passes stay."""
    newest = Pass.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    Pass.objects.filter(pk__lt=newest - _KEPT_PASSES, is_refused=False).delete()
    if at.minute == 0:  # reads them all
        Forecast.objects.filter(made_at__lt=at - _KEPT_FORECASTS).delete()
        ForecastOutcome.objects.filter(started_at__lt=at - _KEPT_FORECASTS).delete()
    last = FacilityChange.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    # The last one stays: whoever remembers the facility of an empty table would take the next for the same.
    FacilityChange.objects.filter(pk__lt=last, at__lt=at - _KEPT_FACILITY_CHANGES).delete()


def _in_trees(taken: Taken) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """(n_domains,) domains that power flows through or that have a limit."""
    kinds = {"rack", "row", "hall", "facility", "cooling"}
    return np.array(
        [d.kind in kinds or d.limit_w != inf for d in taken.snapshot.facility.domains], dtype=np.bool_
    )


def _samples(taken: Taken, at: datetime) -> list[UtilizationSample]:
    facility = taken.snapshot.facility
    waiting = _waiting_by_kind(taken)
    left = {one.name: one for one in selectors.fragmentation_now()}
    samples = []
    for use in selectors.use_now():
        kind = next(k for k, kind in enumerate(facility.kinds) if kind.name == use.name)
        n_jobs, devices = waiting.get((kind, use.is_simulated), (0, 0.0))
        samples.append(
            UtilizationSample(
                at=at,
                accelerator_type_id=facility.kinds[kind].id,
                is_simulated=use.is_simulated,
                n_capacity=use.n_capacity,
                n_unhealthy=use.n_unhealthy,
                claimed=use.claimed,
                n_waiting_jobs=n_jobs,
                waiting_devices=devices,
                left_free=left[use.name].free if use.name in left else None,
                of_no_use=left[use.name].of_no_use if use.name in left else None,
                of_no_use_to_gangs=left[use.name].of_no_use_to_gangs if use.name in left else None,
            )
        )
    return samples


def _waiting_by_kind(taken: Taken) -> dict[tuple[int, bool], tuple[int, float]]:
    """Waiting jobs and devices, each under the type it would like best, there where that type is found."""
    facility = taken.snapshot.facility
    simulated = {
        kind: taken.is_simulated.get(cluster, False)
        for kind, cluster in zip(facility.kind.tolist(), facility.cluster.tolist(), strict=True)
    }
    found: dict[tuple[int, bool], tuple[int, float]] = {}
    for gang in taken.snapshot.queue:
        kinds = gang.shape.asks[0].kinds
        if not kinds:
            continue
        is_simulated = taken.is_simulated.get(gang.shape.cluster, simulated.get(kinds[0], False))
        n_jobs, devices = found.get((kinds[0], is_simulated), (0, 0.0))
        found[kinds[0], is_simulated] = (n_jobs + 1, devices + _devices_of(gang))
    return found

"""Advice on defragmentation: which running jobs could move so that a waiting job starts; and doing so, on a word.

A proposal is made from a picture of the present, and known by a fingerprint of what it would do. Whoever says yes to it
says so to that fingerprint: the advice is worked out again while no pass runs, and what no longer comes out is refused.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from json import dumps
from math import inf
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from apps.core.errors import DomainError
from apps.core.locks import session_lock
from apps.events.services import record
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.selectors import last_checkpoint_at
from apps.scheduling import apply, policies
from apps.scheduling.engine import defragment
from apps.scheduling.engine.facts import Placing, Snapshot
from apps.scheduling.models import Defragmentation
from apps.scheduling.services import PASS_LOCK
from apps.scheduling.snapshot import Taken, instant, take_snapshot
from apps.teams.models import User

_PATIENCE_S: Final = 10.0  # of one who waits for the pass under way


class Outdated(DomainError):
    """What was proposed no longer holds."""

    code = "outdated"


class Busy(DomainError):
    """A pass is under way and takes its time."""

    code = "busy"
    http_status = 503


@dataclass(frozen=True, slots=True)
class Leaver:
    """A running job as it would move."""

    job: Job
    allocation_id: int
    move: defragment.Move
    before: list[dict[str, Any]]  # placements as people read them
    after: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Advice:
    """Moves that let a waiting job start, with names."""

    fingerprint: str
    job: Job
    proposal: defragment.Proposal
    placement: list[dict[str, Any]]
    leavers: tuple[Leaver, ...]
    starts_at: datetime | None
    otherwise_at: datetime | None  # None: nobody can tell

    @property
    def gain_device_s(self) -> float | None:
        """Device-seconds that are won; None if nobody can tell when the job would start otherwise."""
        gain = self.proposal.gain_device_s
        return None if gain == inf else gain


def proposals(*, viewer: User, at: datetime) -> list[Advice]:
    """What could be moved now, in the order of the queue of those that would start; for operators and auditors."""
    policies.require_may_see_advice(viewer)
    return _advice(take_snapshot(at))


def carried_out() -> QuerySet[Defragmentation]:
    """Moves that were asked for, the latest first."""
    return Defragmentation.objects.select_related("job", "job__team", "actor").order_by("-at", "-id")


def carry_out(*, fingerprint: str, actor: User, at: datetime) -> Defragmentation:
    """Ask the jobs of a proposal to move, and keep the places for all of them. Twice is once.

    Raises Forbidden; Outdated if the proposal no longer holds; Busy.
    """
    policies.require_may_move(actor)
    done = carried_out().filter(fingerprint=fingerprint).first()
    if done is not None:
        return done
    # While this is held no pass looks at the present or changes it; a pass that came meanwhile is woken by the events.
    with session_lock(PASS_LOCK, wait_s=_PATIENCE_S) as is_ours:
        if not is_ours:
            raise Busy("The planner is at work. Try again in a moment.")
        done = carried_out().filter(fingerprint=fingerprint).first()
        if done is not None:
            return done
        taken = take_snapshot(at)
        for one in _advice(taken, only=_job_of(fingerprint)):
            if one.fingerprint == fingerprint:
                return _carry_out(taken, one, actor, at)
    raise Outdated("This proposal no longer holds: what runs or waits has changed. Nothing was moved.")


@transaction.atomic
def _carry_out(taken: Taken, one: Advice, actor: User, at: datetime) -> Defragmentation:
    proposal = one.proposal
    # Jobs are locked in order of ids, as everybody does.
    ids = sorted([one.job.pk, *(leaver.job.pk for leaver in one.leavers)])
    locked = Job.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk")
    waiting = {job.pk: job for job in locked}.get(one.job.pk)
    if waiting is None or not _is_waiting(waiting) or not _still_run(one):
        raise Outdated("What runs or waits has changed meanwhile. Nothing was moved.")
    reason = f"Moved so that job {waiting.pk} ({waiting.name}) can start."
    why_not = apply.move(taken, proposal, actor=actor, reason=reason, at=at)
    if why_not:
        raise Outdated(f"This proposal no longer holds: {why_not}. Nothing was moved.")
    moves = [
        {
            "job_id": leaver.job.pk,
            "allocation_id": leaver.allocation_id,
            "devices": leaver.move.devices,
            "cost_device_s": round(leaver.move.cost_device_s, 3),
        }
        for leaver in one.leavers
    ]
    done = Defragmentation.objects.create(
        fingerprint=one.fingerprint,
        job=waiting,
        at=at,
        actor=actor,
        cost_device_s=proposal.cost_device_s,
        gain_device_s=one.gain_device_s,
        moves=moves,
    )
    record(
        "defragmentation.carried_out",
        subject_kind="job",
        subject_id=waiting.pk,
        subject_name=waiting.name,
        team_id=waiting.team_id,
        at=at,
        actor=actor,
        is_audit=True,
        reason=f"{len(moves)} running job{'s' if len(moves) > 1 else ''} moved so that it can start.",
        data={
            "fingerprint": one.fingerprint,
            "cost_device_s": round(proposal.cost_device_s, 3),
            "gain_device_s": None if one.gain_device_s is None else round(one.gain_device_s, 3),
            "moves": [{**row, "to": leaver.after} for row, leaver in zip(moves, one.leavers, strict=True)],
            "placement": one.placement,
        },
    )
    return done


def _is_waiting(job: Job) -> bool:
    return job.state == State.QUEUED and not job.is_held and job.desired_stop_at is None


def _still_run(one: Advice) -> bool:
    """Whether the very attempts that were looked at still run, and nobody asked their jobs to stop."""
    wanted = {leaver.allocation_id for leaver in one.leavers}
    still = Allocation.objects.filter(pk__in=wanted, ended_at=None, job__desired_stop_at=None)
    return set(still.values_list("pk", flat=True)) == wanted


def _advice(taken: Taken, only: Collection[int] | None = None) -> list[Advice]:
    attempts = dict(Allocation.objects.filter(ended_at=None).values_list("job_id", "pk"))
    proposals = defragment.propose(_with_checkpoints(taken, attempts), taken.policy, only)
    ids = {p.job_id for p in proposals} | {move.job_id for p in proposals for move in p.moves}
    known = Job.objects.select_related("team", "user").defer("private").in_bulk(ids)
    found = []
    for proposal in proposals:
        # Somebody may have ended between the picture and now: then there is nothing to propose.
        if all(job_id in known for job_id in (proposal.job_id, *(m.job_id for m in proposal.moves))) and all(
            move.job_id in attempts for move in proposal.moves
        ):
            found.append(_named(taken, proposal, known, attempts))
    return found


def _with_checkpoints(taken: Taken, attempts: Mapping[int, int]) -> Snapshot:
    """The picture, with what running jobs told of their last checkpoints."""
    written = last_checkpoint_at(attempts.values())
    if not written:
        return taken.snapshot
    now_s = taken.snapshot.now_s
    running = tuple(
        replace(one, at_risk_s=max(0.0, now_s - written[attempt].timestamp()))
        if (attempt := attempts.get(one.gang.id)) in written
        else one
        for one in taken.snapshot.running
    )
    return replace(taken.snapshot, running=running)


def _named(
    taken: Taken, proposal: defragment.Proposal, known: Mapping[int, Job], attempts: Mapping[int, int]
) -> Advice:
    facility = taken.snapshot.facility
    leavers = tuple(
        Leaver(
            job=known[move.job_id],
            allocation_id=attempts[move.job_id],
            move=move,
            before=apply.placement_as_json(facility, move.before),
            after=apply.placement_as_json(facility, move.after),
        )
        for move in proposal.moves
    )
    return Advice(
        fingerprint=_fingerprint(taken, proposal, attempts),
        job=known[proposal.job_id],
        proposal=proposal,
        placement=apply.placement_as_json(facility, proposal.placing),
        leavers=leavers,
        starts_at=instant(proposal.starts_s),
        otherwise_at=instant(proposal.otherwise_s),
    )


def _fingerprint(taken: Taken, proposal: defragment.Proposal, attempts: Mapping[int, int]) -> str:
    """What it would do, and to which attempts. What it costs is not in it: that grows from second to second."""
    node_id = taken.snapshot.facility.node_id

    def shares(placing: Placing) -> list[list[Any]]:
        return [[s.group, int(node_id[s.node]), s.n_replicas, *s.devices, s.share_steps] for s in placing]

    whole = [
        shares(proposal.placing),
        [[move.job_id, attempts[move.job_id], shares(move.after)] for move in proposal.moves],
    ]
    return f"{proposal.job_id}-{sha256(dumps(whole).encode()).hexdigest()[:24]}"


def _job_of(fingerprint: str) -> frozenset[int]:
    number, _, _ = fingerprint.partition("-")
    is_id = number.isascii() and number.isdigit() and len(number) < 19
    return frozenset([int(number)] if is_id else [])

"""The only hands that write the ledger: jobs, allocations, placements and claims on devices.

Locks are always taken in one order, so that no two callers wait for each other: jobs by id, then allocations,
then devices by id. Everything may be called twice; the second time changes nothing.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import ForeignKey, Max
from django.utils.module_loading import import_string

from apps.events.services import EventRow, record_many
from apps.inventory.models import Cluster, Health
from apps.inventory.selectors import known_kinds
from apps.jobs import intake, policies, rows, selectors
from apps.jobs.errors import Fault, NoSuchJob, NotNow, Refused, Stale
from apps.jobs.lifecycle import ENDED, HOLDING, State, Trigger, follow
from apps.jobs.models import (
    Allocation,
    Dependency,
    Desired,
    Job,
    JobArray,
    Observed,
    Placement,
    StopCause,
)
from apps.jobs.spec import JobRequest, ReplicaRange
from apps.reservations.models import Reservation
from apps.staging.models import Dataset
from apps.teams.models import User
from apps.teams.policies import Standing, standings_of

MAX_JOBS_AT_ONCE: Final = 10_000
MAX_START_FAILURES: Final = 5
MAX_NODE_LOSSES: Final = 10
BACKOFF_S: Final = 10.0
MAX_BACKOFF_S: Final = 600.0

Outcome = Literal[
    "succeeded", "failed", "cancelled", "timed_out", "vacated", "start_failed", "node_lost", "data_late"
]


@dataclass(frozen=True, slots=True)
class Grant:
    """What an allocation gets on one node for one replica group."""

    node_id: int
    group_index: int
    n_replicas: int
    first_rank: int
    device_shares: tuple[tuple[int, Decimal], ...]  # (device index, share of it)
    cpus: float = 0.0
    memory_gib: float = 0.0
    peak_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A start the scheduler decided on."""

    job_id: int
    cluster_id: int
    placements: tuple[Grant, ...]
    why: Mapping[str, Any] = field(default_factory=dict)
    power_cap_share: float = 1.0
    data_due_at: datetime | None = None  # its devices wait for its data until then


@dataclass(frozen=True, slots=True)
class Bound:
    """An allocation that was just made."""

    id: int
    job_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of a batch of decisions."""

    allocations: tuple[Bound, ...]
    stale: tuple[tuple[int, str], ...]  # (job id, what was no longer so)


# Submission ------------------------------------------------------------------------------------------------------


def submit_job(*, request: JobRequest, actor: User, at: datetime, idempotency_key: str | None = None) -> Job:
    """Put one job in the queue; of an array the first is returned."""
    return submit_jobs(requests=[request], actor=actor, at=at, idempotency_key=idempotency_key)[0]


@transaction.atomic
def submit_jobs(
    *,
    requests: Sequence[JobRequest],
    actor: User,
    at: datetime,
    idempotency_key: str | None = None,
    path: str = "",
) -> list[Job]:
    """Put jobs in the queue, all or none; arrays unfold.

    Args:
        path: Where the requests stood in what the user sent (`jobs`), for the paths of faults: `jobs[3].team`.

    Raises:
        Refused: with every fault found, if any request names what is not there or is not this person's to ask.
        Infeasible: if the empty facility could not hold one of them.
    """
    keys = _keys(requests, actor, idempotency_key)
    if known := _submitted_before(keys):
        return known
    drafts = _Drafts(requests, actor, at, path)
    jobs = [
        Job(**draft.row, array_id=draft.array_id, array_index=draft.array_index, idempotency_key=key)
        for draft, key in zip(drafts, keys, strict=True)
    ]
    rows.insert(jobs)
    if drafts.follow_up([job.pk for job in jobs]):
        fresh = Job.objects.in_bulk([job.pk for job in jobs])
        jobs = [fresh[job.pk] for job in jobs]
    return jobs


@dataclass(frozen=True, slots=True)
class Receipt:
    """A job that was just submitted."""

    id: int
    name: str
    team: str
    state: str
    array_index: int | None


@transaction.atomic
def submit_bulk(
    *, requests: Sequence[JobRequest], actor: User, at: datetime, path: str = ""
) -> list[Receipt]:
    """As `submit_jobs`, for thousands: without an object for each row, which costs more than the row."""
    drafts = _Drafts(requests, actor, at, path)
    columns: dict[str, list[Any]] = {
        "array_id": [draft.array_id for draft in drafts],
        "array_index": [draft.array_index for draft in drafts],
    }
    for name in drafts.names_of_columns():
        values = [draft.row[name] for draft in drafts]
        if isinstance(Job._meta.get_field(name), ForeignKey):
            columns[f"{name}_id"] = [None if value is None else value.pk for value in values]
        else:
            columns[name] = values
    ids = rows.insert_columns(Job, len(drafts), columns, {})
    states: Mapping[int, str] = {}
    if drafts.follow_up(ids):
        states = dict(Job.objects.filter(pk__in=ids).values_list("pk", "state"))
    return [
        Receipt(
            job_id,
            draft.row["name"],
            draft.row["team"].name,
            states.get(job_id, State.QUEUED.value),
            draft.array_index,
        )
        for job_id, draft in zip(ids, drafts, strict=True)
    ]


def _keys(requests: Sequence[JobRequest], actor: User, idempotency_key: str | None) -> list[str | None]:
    n_jobs = sum(request.array.size if request.array else 1 for request in requests)
    if idempotency_key is None:
        return [None] * n_jobs
    return [f"{actor.pk}:{idempotency_key}"[:200] + f"#{number}" for number in range(n_jobs)]


class _Draft(NamedTuple):
    """A job that is about to be written."""

    row: dict[str, Any]
    array_id: int | None
    array_index: int | None
    after: Sequence[int]


class _Drafts:
    """The jobs that requests make: looked over, and with their arrays, but not written yet."""

    def __init__(self, requests: Sequence[JobRequest], actor: User, at: datetime, path: str) -> None:
        self._actor, self._at, self._drafts = actor, at, list[_Draft]()
        if not requests:
            return
        try:
            self._names, shapes = _require_sound(requests, actor, at)
        except Refused as refused:
            raise refused.under(path) from None
        for request, shape in zip(requests, shapes, strict=True):
            row = self._names.row(request, shape, actor, at)
            if request.array is None:
                self._drafts.append(_Draft(row, None, None, request.after))
                continue
            array = JobArray.objects.create(size=request.array.size, max_running=request.array.max_running)
            self._drafts += [
                _Draft(row, array.pk, index, request.after) for index in range(request.array.size)
            ]

    def __len__(self) -> int:
        return len(self._drafts)

    def __iter__(self) -> Iterator[_Draft]:
        return iter(self._drafts)

    def names_of_columns(self) -> Iterable[str]:
        return self._drafts[0].row if self._drafts else ()

    def follow_up(self, ids: Sequence[int]) -> bool:
        """Write what goes with the jobs; True if some of them could never start and were cancelled."""
        if not ids:
            return False
        rows.insert(
            [
                Dependency(job_id=job_id, after_id=after)
                for job_id, draft in zip(ids, self, strict=True)
                for after in draft.after
            ]
        )
        record_many(
            [
                EventRow(
                    kind="job.submitted",
                    subject_kind="job",
                    subject_id=job_id,
                    subject_name=draft.row["name"],
                    team_id=draft.row["team"].pk,
                    at=self._at,
                    actor=self._actor,
                    is_audit=True,
                )
                for job_id, draft in zip(ids, self, strict=True)
            ]
        )
        ended = [job for job in self._names.jobs.values() if job.state in ENDED]
        lost = [job for job in ended if job.state != State.SUCCEEDED]
        if lost:
            _cancel_never_satisfied(lost, at=self._at)
        return bool(lost)


def _submitted_before(keys: Sequence[str | None]) -> list[Job]:
    """The jobs of an earlier submission with these keys. Of two that come at once, the later waits here."""
    if not keys or keys[0] is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"submit:{keys[0]}"])
    return list(Job.objects.filter(idempotency_key__in=keys).order_by("id"))


def _require_sound(requests: Sequence[JobRequest], actor: User, at: datetime) -> tuple["_Names", list[str]]:
    """What they name, and the shape of each."""
    names = _Names(requests, actor)
    faults = [
        fault for index, request in enumerate(requests) for fault in names.faults(index, request, actor, at)
    ]
    n_jobs = 0
    for index, request in enumerate(requests):
        n_jobs += request.array.size if request.array else 1
        if n_jobs > MAX_JOBS_AT_ONCE:
            message = f"makes more than {MAX_JOBS_AT_ONCE} jobs at once"
            faults.append(Fault("array.size", "too_many", message, index))
            break
    if faults:
        raise Refused(faults)
    shapes = [intake.shape_of(request) for request in requests]
    _require_possible(requests, shapes)
    return names, shapes


class _Names:
    """Everything a batch of requests names, read once."""

    def __init__(self, requests: Sequence[JobRequest], actor: User) -> None:
        self.teams = standings_of(actor, {request.team for request in requests})
        clusters = {request.cluster for request in requests if request.cluster is not None}
        self.clusters = {c.name: c for c in Cluster.objects.filter(name__in=clusters)} if clusters else {}
        kinds = {
            kind for request in requests for group in request.all_groups for kind in group.accelerators or ()
        }
        self.kinds = known_kinds(kinds) if kinds else frozenset()
        datasets = {name for request in requests for name in request.datasets}
        self.datasets = frozenset(
            Dataset.objects.filter(name__in=datasets).values_list("name", flat=True) if datasets else ()
        )
        bookings = {request.reservation for request in requests if request.reservation is not None}
        self.bookings = (
            {
                booking.name: booking
                for booking in Reservation.objects.filter(
                    name__in=bookings, cancelled_at=None
                ).prefetch_related("teams")
            }
            if bookings
            else {}
        )
        after = {job_id for request in requests for job_id in request.after}
        self.jobs = Job.objects.only("id", "team_id", "state").in_bulk(after) if after else {}

    def faults(self, index: int, request: JobRequest, actor: User, at: datetime) -> Iterable[Fault]:
        standing = self.teams.get(request.team)
        if standing is None or not policies.may_submit(standing):
            # One answer for both: whether the team exists is not told.
            yield Fault("team", "unknown_team", "is not a team you may submit to", index)
            return
        team = standing.team
        if standing.is_inner:
            yield Fault("team", "not_a_leaf", f"{team.name} has teams below it; name one of those", index)
        if over := policies.over_ceiling(actor, team, request.priority, standing.ceiling):
            yield Fault("priority", "over_ceiling", over.message, index)
        if request.user is not None and request.user != actor.get_username():
            yield Fault("user", "not_you", "must be absent or your own name", index)
        if request.cluster is not None and request.cluster not in self.clusters:
            yield Fault("cluster", "unknown_cluster", f"there is no cluster {request.cluster!r}", index)
        for number, group in enumerate(request.all_groups):
            prefix = "" if request.groups is None else f"groups[{number}]."
            for position, kind in enumerate(group.accelerators or ()):
                if kind not in self.kinds:
                    path = f"{prefix}accelerators[{position}]"
                    yield Fault(path, "unknown_accelerator", f"there is no accelerator type {kind!r}", index)
        for position, name in enumerate(request.datasets):
            if name not in self.datasets:
                yield Fault(
                    f"datasets[{position}]", "unknown_dataset", f"there is no dataset {name!r}", index
                )
        for position, job_id in enumerate(request.after):
            after = self.jobs.get(job_id)
            if after is None or after.team_id != team.pk:
                yield Fault(f"after[{position}]", "unknown_job", f"{team.name} has no job {job_id}", index)
            elif job_id in request.after[:position]:
                yield Fault(f"after[{position}]", "invalid", f"job {job_id} is already named", index)
        if request.reservation is not None:
            yield from self._reservation_faults(index, request, standing, at)
        if request.not_before and request.deadline and request.deadline <= request.not_before:
            yield Fault("deadline", "invalid", "must be after not_before", index)

    def _reservation_faults(
        self, index: int, request: JobRequest, standing: Standing, at: datetime
    ) -> Iterable[Fault]:
        booking = self.bookings.get(request.reservation or "")
        if booking is None:
            message = f"there is no reservation {request.reservation!r}"
            yield Fault("reservation", "unknown_reservation", message, index)
        elif standing.line.isdisjoint(other.pk for other in booking.teams.all()):
            # What is promised to a team is promised to those below it.
            yield Fault("reservation", "not_yours", f"is not for {standing.team.name}", index)
        elif not booking.rrule and booking.ends_at <= at:
            yield Fault("reservation", "over", "is over", index)

    def row(self, request: JobRequest, shape: str, actor: User, at: datetime) -> dict[str, Any]:
        spec = intake.public_spec(request)
        return {
            "team": self.teams[request.team].team,
            "user": actor,
            "name": request.name,
            "spec": spec,
            "private": intake.private_part(request),
            "shape": shape,
            "n_devices": intake.n_devices_of(request),
            "priority": request.priority,
            "cluster": self.clusters[request.cluster] if request.cluster is not None else None,
            "submitted_at": at,
            "not_before_at": request.not_before,
            "deadline_at": request.deadline,
            "time_limit_s": request.time_limit,
            "runtime_s": request.runtime,
            "is_held": request.held,
            "held_by": actor if request.held else None,
            "state": State.QUEUED,
            "state_at": at,
            "queued_at": at,
        }


def _require_possible(requests: Sequence[JobRequest], shapes: Sequence[str]) -> None:
    proof = getattr(settings, "SWITCHYARD_ADMISSION", None)
    if proof:
        import_string(proof)(requests, shapes)


# What people ask -------------------------------------------------------------------------------------------------


@transaction.atomic
def stop_job(*, job_id: int, actor: User, at: datetime, reason: str = "") -> Job:
    """Ask a job to end. One that waits is cancelled at once; asking twice changes nothing the second time."""
    job = _locked(job_id)
    policies.require_may_change(actor, job)
    if job.state in ENDED or job.desired_stop_at is not None:
        return job
    job.desired_stop_at, job.stop_reason = at, reason[:500]
    if State(job.state) in HOLDING:
        allocation = Allocation.objects.select_for_update(no_key=True).get(job=job, ended_at=None)
        _ask_to_stop(allocation, StopCause.USER, at)
        _save(job, "desired_stop_at", "stop_reason")
        record_many(
            [
                _event("job.stop_requested", job, at=at, actor=actor, is_audit=True, reason=reason),
                _allocation_event("allocation.stop_requested", allocation, job, at=at, actor=actor),
            ]
        )
        return job
    _end(
        job, Trigger.CANCELLED, at=at, code="stopped", message=reason or f"Stopped by {actor.get_username()}."
    )
    record_many([_event("job.cancelled", job, at=at, actor=actor, is_audit=True, reason=reason)])
    _cancel_never_satisfied([job], at=at)
    return job


@transaction.atomic
def hold_job(*, job_id: int, actor: User, at: datetime, reason: str = "") -> Job:
    """Keep a job that waits from starting until it is released."""
    job = _locked(job_id)
    policies.require_may_change(actor, job)
    if job.is_held:
        return job
    if job.state != State.QUEUED:
        raise NotNow("Only a job that waits can be held.", job_id=job.pk, state=job.state)
    job.is_held, job.held_by, job.held_reason = True, actor, reason[:500]
    _save(job, "is_held", "held_by", "held_reason")
    record_many([_event("job.held", job, at=at, actor=actor, is_audit=True, reason=reason)])
    return job


@transaction.atomic
def release_job(*, job_id: int, actor: User, at: datetime) -> Job:
    """Let a held job go on waiting for its turn."""
    job = _locked(job_id)
    policies.require_may_release(actor, job)
    if not job.is_held:
        return job
    if job.state != State.QUEUED:
        raise NotNow("Only a job that waits can be released.", job_id=job.pk, state=job.state)
    job.is_held, job.held_by, job.held_reason = False, None, ""
    _save(job, "is_held", "held_by", "held_reason")
    record_many([_event("job.released", job, at=at, actor=actor, is_audit=True)])
    return job


@transaction.atomic
def update_job(
    *,
    job_id: int,
    actor: User,
    at: datetime,
    priority: int | None = None,
    time_limit_s: float | None = None,
    replicas: int | ReplicaRange | None = None,
) -> Job:
    """Change what may still be changed: the priority, the limit, and while it waits the size of a flat job."""
    job = _locked(job_id)
    policies.require_may_change(actor, job)
    if job.state in ENDED:
        raise NotNow("The job has ended.", job_id=job.pk, state=job.state)
    before, after = _Change(), _Change()
    if priority is not None and priority != job.priority:
        policies.require_within_ceiling(actor, job.team, priority)
        before["priority"], after["priority"] = job.priority, priority
        job.priority = job.spec["priority"] = priority
    if time_limit_s is not None and time_limit_s != job.time_limit_s:
        is_longer = job.time_limit_s is not None and time_limit_s > job.time_limit_s
        if is_longer and job.state != State.QUEUED:
            policies.require_may_extend(actor, job)
        before["time_limit"], after["time_limit"] = job.time_limit_s, time_limit_s
        job.time_limit_s = job.spec["time_limit"] = time_limit_s
    if replicas is not None:
        _resize(job, replicas, before, after)
    if not after:
        return job
    _save(job, "priority", "time_limit_s", "spec", "shape", "n_devices")
    record_many(
        [
            _event(
                "job.updated", job, at=at, actor=actor, is_audit=True, before=dict(before), after=dict(after)
            )
        ]
    )
    return job


class _Change(dict[str, Any]):
    pass


def _resize(job: Job, replicas: int | ReplicaRange, before: _Change, after: _Change) -> None:
    old = job.spec.get("replicas", 1)
    new = replicas if isinstance(replicas, int) else replicas.model_dump(mode="json", exclude_unset=True)
    if new == old:
        return
    if job.state != State.QUEUED:
        raise NotNow("Only a job that waits can be given another size.", job_id=job.pk, state=job.state)
    if "groups" in job.spec:
        raise Refused([Fault("replicas", "invalid", "groups already say how many replicas there are")])
    before["replicas"], after["replicas"] = old, new
    job.spec["replicas"] = new
    request = intake.request_of(job.spec)
    _require_possible([request], [intake.shape_of(request)])
    job.n_devices = intake.n_devices_of(request)
    job.shape = intake.shape_of(
        request, is_runnable=bool(job.private.keys() & {"command", "script", "group_commands"})
    )


# What the scheduler asks -----------------------------------------------------------------------------------------


def allocate(
    *,
    job_id: int,
    cluster_id: int,
    placements: Sequence[Grant],
    pass_id: int | None,
    at: datetime,
    why: Mapping[str, Any] | None = None,
    power_cap_share: float = 1.0,
) -> Allocation:
    """Give a waiting job its devices. Raises Stale, and writes nothing, if it or they are no longer to be had."""
    decision = Decision(job_id, cluster_id, tuple(placements), why or {}, power_cap_share)
    outcomes = allocate_many(decisions=[decision], pass_id=pass_id, at=at)
    if outcomes.stale:
        raise Stale(outcomes.stale[0][1], job_id=job_id)
    return Allocation.objects.get(pk=outcomes.allocations[0].id)


class _Waiting(NamedTuple):
    """What decides whether a job may start, as it stands under the lock."""

    id: int
    team_id: int
    name: str
    state: str
    desired_stop_at: datetime | None
    is_held: bool
    not_before_at: datetime | None
    retry_at: datetime | None
    array_id: int | None
    grace_s: float


def _locked_waiting(job_ids: Collection[int]) -> dict[int, _Waiting]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, team_id, name, state, desired_stop_at, is_held, not_before_at, retry_at, array_id,"
            " coalesce((spec->>'grace_s')::float8, 10.0) FROM jobs_job WHERE id = ANY(%s)"
            " ORDER BY id FOR NO KEY UPDATE",
            [sorted(job_ids)],
        )
        return {row[0]: _Waiting(*row) for row in cursor.fetchall()}


@transaction.atomic
def allocate_many(*, decisions: Sequence[Decision], pass_id: int | None, at: datetime) -> Outcomes:
    """Give many waiting jobs their devices in one transaction.

    Each decision is checked again under the locks, in the order given; what has gone stale is dropped whole, and
    the rest is written.
    """
    jobs = _locked_waiting({decision.job_id for decision in decisions})
    ledger = _Claims(decisions, at)
    waits_for = _unfinished_dependencies(jobs)
    fences = dict(
        Allocation.objects.filter(job__in=jobs).values_list("job").annotate(last=Max("fence")).order_by()
    )
    array_room = _array_room(jobs.values())
    stale: list[tuple[int, str]] = []
    taken: list[tuple[Decision, _Waiting, int]] = []
    for decision in decisions:
        job = jobs.get(decision.job_id)
        why_not = _not_startable(job, at) or ledger.why_not(decision)
        if not why_not and decision.job_id in waits_for:
            why_not = f"waits for job {waits_for[decision.job_id]}"
        if not why_not and job is not None and job.array_id in array_room and array_room[job.array_id] <= 0:
            why_not = "its array runs as many as it may"
        if why_not or job is None:
            stale.append((decision.job_id, why_not or "is gone"))
            continue
        ledger.take(decision)
        if job.array_id in array_room:
            array_room[job.array_id] -= 1
        # A second decision for the same job is stale from here on.
        jobs[job.id] = job._replace(state=follow(State(job.state), Trigger.ALLOCATE))
        taken.append((decision, job, fences.get(job.id, 0) + 1))
    bound = _write_allocations(taken, ledger, pass_id, at) if taken else ()
    return Outcomes(bound, tuple(stale))


def _not_startable(job: _Waiting | None, at: datetime) -> str:
    if job is None:
        return "is gone"
    if job.state != State.QUEUED:
        return f"is {job.state}"
    if job.desired_stop_at is not None:
        return "was asked to stop"
    if job.is_held:
        return "is held"
    if job.not_before_at is not None and job.not_before_at > at:
        return "may not start yet"
    if job.retry_at is not None and job.retry_at > at:
        return "is not to be tried again yet"
    return ""


def _unfinished_dependencies(jobs: Collection[int]) -> dict[int, int]:
    return dict(
        Dependency.objects.filter(job__in=jobs)
        .exclude(after__state=State.SUCCEEDED)
        .values_list("job_id", "after_id")
    )


def _array_room(jobs: Iterable[_Waiting]) -> dict[int | None, int]:
    """How many more jobs of each limited array may run; the arrays are locked, so that none is counted twice."""
    ids = {job.array_id for job in jobs if job.array_id is not None}
    if not ids:
        return {}
    room: dict[int | None, int] = {
        array_id: most or 0
        for array_id, most in JobArray.objects.filter(pk__in=ids)
        .exclude(max_running=None)
        .order_by("id")
        .select_for_update(no_key=True)
        .values_list("id", "max_running")
    }
    for array_id in Job.objects.filter(array__in=room, state__in=HOLDING).values_list("array_id", flat=True):
        room[array_id] -= 1
    return room


class _Claims:
    """The devices and nodes that a batch of decisions wants, the devices locked in id order."""

    def __init__(self, decisions: Sequence[Decision], at: datetime) -> None:
        wanted = sorted(
            {
                (grant.node_id, index)
                for decision in decisions
                for grant in decision.placements
                for index, _ in grant.device_shares
            }
        )
        self.device_id: dict[tuple[int, int], int] = {}
        self.claimed: dict[int, Decimal] = {}
        self.changed: set[int] = set()
        if wanted:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT device.id, device.node_id, device.index, device.claimed_share FROM inventory_device device"
                    " JOIN unnest(string_to_array(%s, ',')::bigint[], string_to_array(%s, ',')::int[])"
                    " AS wanted(node_id, index)"
                    " ON device.node_id = wanted.node_id AND device.index = wanted.index"
                    " ORDER BY device.id FOR NO KEY UPDATE OF device",
                    [",".join(str(part) for part in column) for column in zip(*wanted, strict=True)],
                )
                for device_id, node_id, index, share in cursor.fetchall():
                    self.device_id[node_id, index] = device_id
                    self.claimed[device_id] = share
        node_ids = {grant.node_id for decision in decisions for grant in decision.placements}
        self.nodes = _locked_nodes(node_ids, at)
        limited = [
            node_id
            for node_id, (*_, cpus, memory_gib) in self.nodes.items()
            if cpus is not None or memory_gib is not None
        ]
        self.used = _node_use(limited)

    def why_not(self, decision: Decision) -> str:
        if not decision.placements:
            return "was given no node"
        sums: dict[int, Decimal] = defaultdict(Decimal)
        asked: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for grant in decision.placements:
            node = self.nodes.get(grant.node_id)
            if node is None or node[0] != decision.cluster_id:
                return f"node {grant.node_id} is not in its cluster"
            if node[1] != Health.HEALTHY:
                return f"{node[2]} is {node[1]}"
            if not node[3]:
                return "its cluster is switched off"
            asked[grant.node_id][0] += grant.cpus
            asked[grant.node_id][1] += grant.memory_gib
            for index, share in grant.device_shares:
                device_id = self.device_id.get((grant.node_id, index))
                if device_id is None:
                    return f"{node[2]} has no device {index}"
                sums[device_id] += share
        for device_id, share in sums.items():
            if not 0 < share <= 1 - self.claimed[device_id]:
                return f"device {device_id} is taken"
        for node_id, (cpus, memory_gib) in asked.items():
            _, _, name, _, most_cpus, most_gib = self.nodes[node_id]
            used_cpus, used_gib = self.used.get(node_id, (0.0, 0.0))
            # A hair of slack: sums of floats depend on their order.
            if most_cpus is not None and cpus and used_cpus + cpus > most_cpus * (1 + 1e-9):
                return f"{name} has no cpus left"
            if most_gib is not None and memory_gib and used_gib + memory_gib > most_gib * (1 + 1e-9):
                return f"{name} has no memory left"
        return ""

    def take(self, decision: Decision) -> None:
        for grant in decision.placements:
            cpus, memory_gib = self.used.get(grant.node_id, (0.0, 0.0))
            self.used[grant.node_id] = (cpus + grant.cpus, memory_gib + grant.memory_gib)
            for index, share in grant.device_shares:
                device_id = self.device_id[grant.node_id, index]
                self.claimed[device_id] += share
                self.changed.add(device_id)


def _locked_nodes(node_ids: Collection[int], at: datetime) -> dict[int, tuple[Any, ...]]:
    """Cluster, health, name, whether the cluster is on, cpus, GiB. Who drains a node waits until we are done."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node.id, node.cluster_id, CASE WHEN node.health = %s AND node.cooldown_until_at > %s"
            " THEN 'cooling down' ELSE node.health END, node.name, cluster.is_enabled, node.cpus, node.memory_gib"
            " FROM inventory_node node JOIN inventory_cluster cluster ON cluster.id = node.cluster_id"
            " WHERE node.id = ANY(%s) ORDER BY node.id FOR NO KEY UPDATE OF node",
            [Health.HEALTHY, at, list(node_ids)],
        )
        return {row[0]: row[1:] for row in cursor.fetchall()}


def _node_use(node_ids: Sequence[int]) -> dict[int, tuple[float, float]]:
    """cpus and GiB that open allocations hold on these nodes."""
    if not node_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT placement.node_id, sum(placement.cpus), sum(placement.memory_gib) FROM jobs_placement placement"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " WHERE placement.node_id = ANY(%s) AND allocation.ended_at IS NULL GROUP BY placement.node_id",
            [list(node_ids)],
        )
        return {node_id: (cpus, memory_gib) for node_id, cpus, memory_gib in cursor.fetchall()}


def _write_allocations(
    taken: Sequence[tuple[Decision, _Waiting, int]], ledger: _Claims, pass_id: int | None, at: datetime
) -> tuple[Bound, ...]:
    ids = rows.insert_columns(
        Allocation,
        len(taken),
        {
            "job_id": [job.id for _, job, _ in taken],
            "cluster_id": [decision.cluster_id for decision, _, _ in taken],
            "fence": [fence for _, _, fence in taken],
            "why": [decision.why for decision, _, _ in taken],
            "desired_power_cap_share": [decision.power_cap_share for decision, _, _ in taken],
            "grace_s": [job.grace_s for _, job, _ in taken],
            "data_due_at": [decision.data_due_at for decision, _, _ in taken],
        },
        {"pass_id": pass_id, "bound_at": at},
    )
    grants = [
        (allocation_id, grant)
        for allocation_id, (decision, _, _) in zip(ids, taken, strict=True)
        for grant in decision.placements
    ]
    placement_ids = rows.insert_columns(
        Placement,
        len(grants),
        {
            "allocation_id": [allocation_id for allocation_id, _ in grants],
            **{
                name: [getattr(grant, name) for _, grant in grants]
                for name in (
                    "node_id", "group_index", "n_replicas", "first_rank", "cpus", "memory_gib", "peak_w",
                )
            },
        },
        {},
    )  # fmt: skip
    claim_of: list[int] = []
    claim_on: list[int] = []
    claim_share: list[Decimal] = []
    for placement_id, (_, grant) in zip(placement_ids, grants, strict=True):
        for index, share in grant.device_shares:
            claim_of.append(placement_id)
            claim_on.append(ledger.device_id[grant.node_id, index])
            claim_share.append(share)
    with connection.cursor() as cursor:
        if claim_of:
            names = ("placement_id", "device_id", "share")
            rows.copy_in(cursor, "jobs_deviceclaim", names, (claim_of, claim_on, claim_share))
        changed = sorted(ledger.changed)
        # As one text: the driver goes over each element of an array.
        cursor.execute(
            "UPDATE inventory_device device SET claimed_share = new.share FROM unnest("
            " string_to_array(%s, ',')::bigint[], string_to_array(%s, ',')::numeric[]) AS new(id, share)"
            " WHERE device.id = new.id",
            [",".join(map(str, changed)), ",".join(str(ledger.claimed[device_id]) for device_id in changed)],
        )
        cursor.execute(
            "UPDATE jobs_job SET state = %s, state_at = %s, version = version + 1, retry_at = NULL WHERE id = ANY(%s)",
            [State.STARTING, at, [job.id for _, job, _ in taken]],
        )
    record_many(
        [
            EventRow(
                kind="allocation.bound",
                subject_kind="allocation",
                subject_id=allocation_id,
                subject_name=job.name,
                team_id=job.team_id,
                at=at,
                data={"job_id": job.id, "cluster_id": decision.cluster_id},
            )
            for allocation_id, (decision, job, _) in zip(ids, taken, strict=True)
        ]
    )
    return tuple(
        Bound(allocation_id, job.id, fence) for allocation_id, (_, job, fence) in zip(ids, taken, strict=True)
    )


@transaction.atomic
def cancel_unsatisfiable(*, job_id: int, at: datetime) -> Job:
    """End a waiting job whose dependency can no longer succeed, and those that wait for it."""
    job = _locked(job_id)
    if job.state != State.QUEUED:
        return job
    failed = (
        Job.objects.filter(dependants__job=job, state__in=ENDED - {State.SUCCEEDED}).order_by("id").first()
    )
    if failed is not None:
        _cancel_never_satisfied([failed], at=at)
        job.refresh_from_db()
    return job


def _cancel_never_satisfied(ended: Sequence[Job], *, at: datetime) -> None:
    """Cancel everything that waits, near or far, for jobs that ended without success.

    A job has a higher id than what it waits for, so going through them by id takes the locks in order.
    """
    frontier = {job.pk: job.state for job in ended if job.state != State.SUCCEEDED}
    heap: list[tuple[int, int]] = []

    def push(after_id: int) -> None:
        for job_id in Dependency.objects.filter(after=after_id, job__state=State.QUEUED).values_list(
            "job_id", flat=True
        ):
            heapq.heappush(heap, (job_id, after_id))

    for after_id in frontier:
        push(after_id)
    events: list[EventRow] = []
    while heap:
        job_id, after_id = heapq.heappop(heap)
        job = _locked(job_id)
        if job.state != State.QUEUED:
            continue
        message = f"It was to run after job {after_id}, which {_SAID[State(frontier[after_id])]}."
        _end(job, Trigger.CANCELLED, at=at, code="dependency_never_satisfied", message=message)
        events.append(_event("job.cancelled", job, at=at, reason=message))
        frontier[job_id] = job.state
        push(job_id)
    if events:
        record_many(events)


_SAID: Final = {State.FAILED: "failed", State.CANCELLED: "was cancelled", State.TIMED_OUT: "timed out"}


# What execution reports ------------------------------------------------------------------------------------------


@transaction.atomic
def allocation_started(*, allocation_id: int, fence: int, at: datetime) -> Job:
    """Note that an attempt runs. Raises Stale if the fence is not this allocation's."""
    job, allocation = _locked_allocation(allocation_id, fence)
    if allocation.ended_at is not None or allocation.observed_state == Observed.RUNNING:
        return job
    allocation.observed_state, allocation.observed_at = Observed.RUNNING, at
    allocation.observed_started_at = allocation.observed_started_at or at
    allocation.save(update_fields=["observed_state", "observed_at", "observed_started_at"])
    if job.state == State.STARTING:
        job.state, job.state_at = follow(State(job.state), Trigger.STARTED), at
    job.started_at = at
    job.first_started_at = job.first_started_at or at
    _save(job, "state", "state_at", "started_at", "first_started_at")
    record_many([_event("job.started", job, at=at, data={"allocation_id": allocation.pk})])
    return job


@transaction.atomic
def data_arrived(*, allocation_id: int, at: datetime) -> Allocation:
    """Note that all data an attempt waited for is there. Twice changes nothing."""
    job, allocation = _locked_allocation(allocation_id, None)
    is_waiting = allocation.data_due_at is not None and allocation.observed_data_at is None
    if not is_waiting or allocation.ended_at is not None:
        return allocation
    allocation.observed_data_at = allocation.observed_at = max(at, allocation.bound_at)
    allocation.save(update_fields=["observed_data_at", "observed_at"])
    record_many([_allocation_event("allocation.data_arrived", allocation, job, at=at)])
    return allocation


@transaction.atomic
def allocation_ended(
    *,
    allocation_id: int,
    fence: int,
    at: datetime,
    outcome: Outcome,
    exit_code: int | None = None,
    message: str = "",
) -> Job:
    """Close an attempt: the job moves on by the table, and its claims go in the same transaction.

    Raises Stale if the fence is not this allocation's. The second report of one end changes nothing.
    """
    job, allocation = _locked_allocation(allocation_id, fence)
    if allocation.ended_at is not None:
        return job
    ran_s = 0.0
    if allocation.observed_started_at is not None:
        ran_s = max(0.0, (at - allocation.observed_started_at).total_seconds())
    job.ran_s += ran_s
    job.exit_code = exit_code
    allocation.ended_at = allocation.observed_at = at
    allocation.observed_state = Observed.LOST if outcome == "node_lost" else Observed.ENDED
    allocation.observed_exit_code = exit_code
    allocation.observed_message = _line(message)
    kind = _move_on(job, allocation, outcome, ran_s=ran_s, at=at, message=message)
    if job.state in ENDED:
        # Before the devices: jobs are locked first.
        _cancel_never_satisfied([job], at=at)
    allocation.save(
        update_fields=["ended_at", "observed_at", "observed_state", "observed_exit_code", "observed_message"]
    )
    _release_claims(allocation, at)
    record_many(
        [
            _allocation_event("allocation.ended", allocation, job, at=at, data={"outcome": outcome}),
            _event(
                kind,
                job,
                at=at,
                reason=message,
                data={"allocation_id": allocation.pk, "exit_code": exit_code},
            ),
        ]
    )
    return job


def _move_on(
    job: Job, allocation: Allocation, outcome: Outcome, *, ran_s: float, at: datetime, message: str
) -> str:
    """Move the job by what became of its attempt; return the kind of event that tells it."""
    is_stopping = job.desired_stop_at is not None
    is_spent = job.time_limit_s is not None and job.ran_s >= job.time_limit_s
    if outcome in _FINAL:
        trigger, code = _FINAL[outcome], _code_of(job, allocation, outcome)
        _end(job, trigger, at=at, code=code, message=message or job.stop_reason)
        return f"job.{job.state}"
    if is_stopping:
        _end(job, Trigger.CANCELLED, at=at, code="stopped", message=job.stop_reason or message)
        return "job.cancelled"
    if is_spent:
        _end(job, Trigger.TIMED_OUT, at=at, code="time_limit", message=message)
        return "job.timed_out"
    if outcome == "data_late" and job.state == State.STARTING:
        # Nobody's failure: the planner knows by now when the data will be there.
        _requeue(job, [Trigger.START_FAILED], at=at, retry_s=0.0)
        return "job.data_late"
    if outcome == "start_failed":
        job.n_start_failures += 1
        if job.n_start_failures >= MAX_START_FAILURES or job.state != State.STARTING:
            _end(job, Trigger.FAILED, at=at, code="start_failed", message=message)
            return "job.failed"
        _requeue(job, [Trigger.START_FAILED], at=at, retry_s=_backoff_s(job.n_start_failures))
        return "job.start_failed"
    job.lost_s += _lost_s(job.spec.get("checkpoint"), ran_s, _since_checkpoint_s(allocation, at))
    if outcome == "node_lost":
        job.n_node_losses += 1
        if job.n_node_losses >= MAX_NODE_LOSSES:
            _end(job, Trigger.FAILED, at=at, code="node_lost", message=message)
            return "job.failed"
        # The first loss is bad luck; from the second on the job may be the cause.
        retry_s = _backoff_s(job.n_node_losses - 1) if job.n_node_losses > 1 else 0.0
        _requeue(job, [Trigger.LOSE_NODE, Trigger.REQUEUE], at=at, retry_s=retry_s)
        return "job.node_lost"
    if job.state == State.PAUSING:
        job.state, job.state_at = follow(State(job.state), Trigger.PAUSED), at
        _save(job, *_ATTEMPT_FIELDS)
        return "job.paused"
    if job.state in (State.STARTING, State.RUNNING):
        # It left unasked by the table: what told it to go was lost. The same road, one step longer.
        job.state = follow(State(job.state), Trigger.PREEMPT)
    job.n_preemptions += 1
    _requeue(job, [Trigger.VACATED], at=at, retry_s=0.0)
    return "job.preempted"


_FINAL: Final = {
    "succeeded": Trigger.SUCCEEDED,
    "failed": Trigger.FAILED,
    "cancelled": Trigger.CANCELLED,
    "timed_out": Trigger.TIMED_OUT,
}
_ATTEMPT_FIELDS: Final = (
    "state", "state_at", "queued_at", "retry_at", "ended_at", "exit_code", "end_code", "end_message",
    "ran_s", "lost_s", "n_preemptions", "n_start_failures", "n_node_losses",
)  # fmt: skip


def _code_of(job: Job, allocation: Allocation, outcome: Outcome) -> str:
    if outcome == "cancelled":
        return "stopped" if job.desired_stop_at is not None else "cancelled"
    if outcome == "timed_out":
        return "time_limit"
    if outcome == "failed":
        return "exit_code" if job.exit_code else "failed"
    return ""


def _requeue(job: Job, triggers: Sequence[Trigger], *, at: datetime, retry_s: float) -> None:
    for trigger in triggers:
        job.state = follow(State(job.state), trigger)
    job.state_at = job.queued_at = at
    job.retry_at = at + timedelta(seconds=retry_s) if retry_s else None
    _save(job, *_ATTEMPT_FIELDS)


def _backoff_s(n_failures: int) -> float:
    return min(BACKOFF_S * 2.0 ** (n_failures - 1), MAX_BACKOFF_S)


def _lost_s(
    checkpoint: Mapping[str, float] | None, ran_s: float, since_checkpoint_s: float | None = None
) -> float:
    """Running time since the last checkpoint: as the attempt said, or else as it was declared; all where none is."""
    if since_checkpoint_s is not None:
        return min(since_checkpoint_s, ran_s)
    if not checkpoint:
        return ran_s
    period_s = checkpoint["interval"] + checkpoint.get("cost", 0.0)
    return ran_s % period_s


def _since_checkpoint_s(allocation: Allocation, at: datetime) -> float | None:
    written_at = selectors.last_checkpoint_at([allocation.pk]).get(allocation.pk)
    return None if written_at is None else max(0.0, (at - written_at).total_seconds())


class Eviction(NamedTuple):
    """A running job is to give way to a waiting one."""

    job_id: int
    for_job_id: int
    rule: str  # "priority" or "reclaim"
    lost_device_s: float


@transaction.atomic
def preempt_many(*, evictions: Sequence[Eviction], pass_id: int | None, at: datetime) -> str:
    """Ask running jobs to give way, all of them or none: signal, time to write a checkpoint, kill.

    Returns:
        Why not, if one of them is not there to give way any more; empty when all were asked. Asking twice is once.
    """
    wanted = {eviction.job_id: eviction for eviction in evictions}
    jobs = list(Job.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk"))
    allocations = {
        allocation.job_id: allocation
        for allocation in Allocation.objects.select_for_update(no_key=True)
        .filter(job_id__in=wanted, ended_at=None)
        .order_by("pk")
    }
    asked = []
    for job in jobs:
        allocation = allocations.get(job.pk)
        if allocation is None or job.state not in (State.STARTING, State.RUNNING, State.PREEMPTING):
            return f"job {job.pk} no longer runs"
        if allocation.desired_state == Desired.STOP:
            if allocation.stop_cause != StopCause.PREEMPTION:
                return f"job {job.pk} ends already"
            continue
        if job.spec.get("preemptible") is False:
            return f"job {job.pk} is not to be pre-empted"
        asked.append((job, allocation))
    if len(jobs) < len(wanted):
        return "a job is gone"
    events = []
    for job, allocation in asked:
        eviction = wanted[job.pk]
        job.state, job.state_at = follow(State(job.state), Trigger.PREEMPT), at
        _save(job, "state", "state_at")
        _ask_to_stop(allocation, StopCause.PREEMPTION, at)
        data = {
            "for_job_id": eviction.for_job_id,
            "rule": eviction.rule,
            "lost_device_s": round(eviction.lost_device_s, 3),
            "pass_id": pass_id,
        }
        events.append(_event("job.preempting", job, at=at, data=data))
        events.append(
            _allocation_event(
                "allocation.stop_requested", allocation, job, at=at, data={"cause": "preemption", **data}
            )
        )
    record_many(events)
    return ""


@transaction.atomic
def request_time_limit_stop(*, allocation_id: int, at: datetime) -> Allocation:
    """Ask an attempt to end because its job has used up its running time."""
    return _request_stop(allocation_id, StopCause.TIME_LIMIT, at)


@transaction.atomic
def request_data_late_stop(*, allocation_id: int, at: datetime) -> Allocation:
    """Have an attempt give its devices back because its data did not come in time; its job goes back to the queue."""
    return _request_stop(allocation_id, StopCause.DATA_LATE, at)


def _request_stop(allocation_id: int, cause: StopCause, at: datetime) -> Allocation:
    job, allocation = _locked_allocation(allocation_id, None)
    if allocation.ended_at is not None or allocation.desired_state == Desired.STOP:
        return allocation
    _ask_to_stop(allocation, cause, at)
    data = {"cause": cause.value}
    record_many([_allocation_event("allocation.stop_requested", allocation, job, at=at, data=data)])
    return allocation


def _ask_to_stop(allocation: Allocation, cause: StopCause, at: datetime) -> None:
    """Ask an attempt to end; whoever asks again gives no more time than the first did."""
    allocation.desired_state, allocation.stop_cause = Desired.STOP, cause
    allocation.stop_at = allocation.stop_at or at
    allocation.save(update_fields=["desired_state", "stop_cause", "stop_at"])


# The common part -------------------------------------------------------------------------------------------------


def _locked(job_id: int) -> Job:
    try:
        return (
            Job.objects.select_for_update(of=("self",), no_key=True)
            .select_related("team", "held_by", "user")
            .get(pk=job_id)
        )
    except Job.DoesNotExist:
        raise NoSuchJob(job_id=job_id) from None


def _locked_allocation(allocation_id: int, fence: int | None) -> tuple[Job, Allocation]:
    job_id = Allocation.objects.filter(pk=allocation_id).values_list("job_id", flat=True).first()
    if job_id is None:
        raise Stale("There is no such allocation.", job_id=0)
    # Without the people around it and what it runs: execution reports thousands of these.
    job = Job.objects.select_for_update(no_key=True).defer("private").get(pk=job_id)
    allocation = Allocation.objects.select_for_update(no_key=True).get(pk=allocation_id)
    if fence is not None and allocation.fence != fence:
        raise Stale(f"The allocation's fence is {allocation.fence}, not {fence}.", job_id=job_id)
    return job, allocation


def _save(job: Job, *fields: str) -> None:
    job.version += 1
    job.save(update_fields=[*fields, "version"])


def _end(job: Job, trigger: Trigger, *, at: datetime, code: str, message: str) -> None:
    job.state = follow(State(job.state), trigger)
    job.state_at = job.ended_at = at
    job.end_code, job.end_message = code, _line(message)
    job.retry_at = None
    _save(job, *_ATTEMPT_FIELDS, "desired_stop_at", "stop_reason")


def _line(text: str) -> str:
    return text.replace("\x00", "")[:1000]


def _release_claims(allocation: Allocation, at: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT claim.id, device.id, claim.share, device.claimed_share FROM jobs_deviceclaim claim"
            " JOIN jobs_placement placement ON placement.id = claim.placement_id"
            " JOIN inventory_device device ON device.id = claim.device_id"
            " WHERE placement.allocation_id = %s AND claim.released_at IS NULL"
            " ORDER BY device.id FOR NO KEY UPDATE OF device",
            [allocation.pk],
        )
        claims = cursor.fetchall()
        if not claims:
            return
        left: dict[int, Decimal] = {}
        for _, device_id, share, claimed in claims:
            left[device_id] = left.get(device_id, claimed) - share
        cursor.execute(
            "UPDATE jobs_deviceclaim SET released_at = %s WHERE id = ANY(%s)",
            [at, [row[0] for row in claims]],
        )
        cursor.execute(
            "UPDATE inventory_device device SET claimed_share = new.share"
            " FROM unnest(%s::bigint[], %s::numeric[]) AS new(id, share) WHERE device.id = new.id",
            [list(left), list(left.values())],
        )


def _event(kind: str, job: Job, **more: Any) -> EventRow:
    return EventRow(
        kind=kind, subject_kind="job", subject_id=job.pk, subject_name=job.name, team_id=job.team_id, **more
    )


def _allocation_event(
    kind: str, allocation: Allocation, job: Job, *, data: Mapping[str, Any] | None = None, **more: Any
) -> EventRow:
    return EventRow(
        kind=kind,
        subject_kind="allocation",
        subject_id=allocation.pk,
        subject_name=job.name,
        team_id=job.team_id,
        data={"job_id": job.pk, "cluster_id": allocation.cluster_id, **(data or {})},
        **more,
    )

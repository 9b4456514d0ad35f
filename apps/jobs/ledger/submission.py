"""Jobs on their way into the queue: one or thousands, looked over first, all or none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connection, transaction
from django.db.models import ForeignKey

from apps.events.services import EventRow, record_many
from apps.jobs import intake, rows
from apps.jobs.errors import Fault, Refused
from apps.jobs.ledger.dependencies import cancel_never_satisfied
from apps.jobs.ledger.requests import Names, require_possible
from apps.jobs.lifecycle import ENDED, State
from apps.jobs.models import (
    Dependency,
    Job,
    JobArray,
)
from apps.jobs.spec import JobRequest
from apps.teams.models import User
from apps.teams.selectors import most_waiting

MAX_JOBS_AT_ONCE: Final = 10_000


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
            cancel_never_satisfied(lost, at=self._at)
        return bool(lost)


def _submitted_before(keys: Sequence[str | None]) -> list[Job]:
    """The jobs of an earlier submission with these keys. Of two that come at once, the later waits here."""
    if not keys or keys[0] is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"submit:{keys[0]}"])
    return list(Job.objects.filter(idempotency_key__in=keys).order_by("id"))


def _require_sound(requests: Sequence[JobRequest], actor: User, at: datetime) -> tuple[Names, list[str]]:
    """What they name, and the shape of each."""
    names = Names(requests, actor)
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
    require_possible(requests, shapes)
    _require_few_waiting(names, requests, actor)
    return names, shapes


def _require_few_waiting(names: Names, requests: Sequence[JobRequest], actor: User) -> None:
    """Refuse jobs with which this person would have more waiting than one member of the team may.

    Two submissions of one person to such a team are counted one after the other; others wait for nobody.
    """
    team_of = {standing.team.pk: standing.team for standing in names.teams.values()}
    faults: list[Fault] = []
    for team_id, (most, is_named) in sorted(most_waiting(actor, team_of).items()):
        with connection.cursor() as cursor:
            lock = f"waiting:{team_id}:{actor.pk}"
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
        team = team_of[team_id]
        waiting = Job.objects.filter(team=team, user=actor, state=State.QUEUED).count()
        total, first = waiting, None
        for index, request in enumerate(requests):
            if request.team == team.name:
                total += request.array.size if request.array else 1
                if total > most and first is None:
                    first = index
        if first is not None:
            whose = "you" if is_named else "one member"
            message = (
                f"you have {waiting} jobs of {team.name} waiting and submit {total - waiting}; "
                f"{whose} may have {most} waiting at once"
            )
            faults.append(Fault("team", "too_many_waiting", message, first))
    if faults:
        raise Refused(faults)

"""Who goes before a waiting job, in the order of the last pass: read as columns, so that a long queue costs little.

What a pass knew that the ledger does not keep (the policy, the teams' fair shares) it leaves behind as a LineBasis.
Everything else is read from the rows of the jobs, once a pass and process.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from threading import Lock
from typing import Any, Final

import numpy as np
from django.db import connection
from django.db.models import Q

from apps.core import clock
from apps.jobs import intake, past_runs
from apps.jobs.lifecycle import HOLDING, State
from apps.jobs.models import Job
from apps.reservations.selectors import windows
from apps.scheduling import admission
from apps.scheduling.engine.facts import NONE, BoolArray, FloatArray, IntArray
from apps.scheduling.engine.order import (
    Ahead,
    Line,
    ahead_of,
    capacity_of,
    overdue_after_s,
    team_places,
    width_of,
)
from apps.scheduling.engine.placement import kinds_of
from apps.scheduling.engine.predict import left_of_many
from apps.scheduling.models import LineBasis
from apps.scheduling.snapshot import HORIZON, Names, Taken, seconds

# Of a queue longer than this, reading may take no more than this share of a process's time.
_SHORT: Final = 5_000
_SHARE_OF_TIME: Final = 0.05
_MOST_SHAPES: Final = 50_000

# What PostgreSQL sends of a row: how many fields, and before each how many bytes it has.
_FIELDS: Final = (
    ("id", "job.id", ">i8"),
    ("priority", "job.priority::bigint", ">i8"),
    ("team", "job.team_id", ">i8"),
    ("shape", "hashtextextended(job.shape, 0)", ">i8"),
    ("owner", "hashtextextended(concat_ws('/', job.user_id, job.team_id, job.name), 0)", ">i8"),
    ("done_s", "greatest(job.ran_s - job.lost_s, 0)", ">f8"),
    ("submitted_s", "extract(epoch FROM job.submitted_at)::float8", ">f8"),
    ("deadline_s", "coalesce(extract(epoch FROM job.deadline_at)::float8, 'infinity')", ">f8"),
    (
        "left_s",
        "CASE WHEN job.time_limit_s IS NOT NULL THEN greatest(job.time_limit_s - job.ran_s, 1)"
        " WHEN job.runtime_s IS NOT NULL THEN greatest(job.runtime_s - job.worked_s, 1)"
        " ELSE 'infinity' END",
        ">f8",
    ),
)
_ROW: Final = np.dtype(
    [("n", ">i2")] + [pair for name, _, kind in _FIELDS for pair in ((f"{name}_bytes", ">i4"), (name, kind))]
)
_HEAD_BYTES: Final = 19
_TAIL_BYTES: Final = 2
# As explain.own_reason: who is not ready stands in nobody's way.
_READY: Final = (
    "job.state = '{queued}' AND NOT job.is_held"
    " AND (job.not_before_at IS NULL OR job.not_before_at <= to_timestamp({at_s}))"
    " AND (job.retry_at IS NULL OR job.retry_at <= to_timestamp({at_s}))"
    " AND NOT EXISTS (SELECT 1 FROM jobs_dependency dependency JOIN jobs_job after ON after.id = dependency.after_id"
    "  WHERE dependency.job_id = job.id AND after.state <> '{succeeded}')"
    " AND (job.array_id IS NULL OR job.array_id NOT IN (SELECT arr.id FROM jobs_jobarray arr"
    "  JOIN jobs_job other ON other.array_id = arr.id WHERE other.state IN ({holding})"
    "  GROUP BY arr.id HAVING count(*) >= arr.max_running))"
)


def ahead_of_jobs(job_ids: Collection[int]) -> dict[int, Ahead]:
    """Who goes before each of these jobs, by its id; none of those that do not wait, are not ready, or came since."""
    basis = LineBasis.objects.first() if job_ids else None
    return {} if basis is None else ahead_of(_line(basis), job_ids)


def note_basis(taken: Taken, *, pass_id: int) -> None:
    """Keep by what this pass put the queue in order."""
    policy = taken.policy
    places = team_places(taken.snapshot)
    LineBasis.objects.bulk_create(
        [
            LineBasis(
                id=1,
                pass_id=pass_id,
                at=taken.at,
                order=policy.order,
                ageing_s=policy.ageing_s if 0 < policy.ageing_s < inf else None,
                starving_s=policy.starving_s if 0 <= policy.starving_s < inf else None,
                starving_by_width=policy.starving_by_width,
                team_places={
                    str(team_id): place for team_id, place in zip(taken.team_id, places, strict=True)
                },
            )
        ],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=[
            "pass_id",
            "at",
            "order",
            "ageing_s",
            "starving_s",
            "starving_by_width",
            "team_places",
        ],
    )


# What a process remembers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What jobs of one shape want."""

    kinds: frozenset[int]  # empty: no devices at all
    cluster: int  # NONE: any
    reservation: str | None
    width: float  # as order.width_of


@dataclass(frozen=True, eq=False)
class _Kept:
    key: tuple[object, ...]
    line: Line
    read_s: float  # what it cost
    at_s: float


class _Memory:
    def __init__(self) -> None:
        self.lock = Lock()
        self.forget()

    def forget(self) -> None:
        self.kept: _Kept | None = None
        self.names: Names | None = None  # what `shapes` was said of
        self.shapes: dict[int, _Wanted] = {}  # by hash of the shape


_memory = _Memory()


def forget() -> None:
    """Read everything anew next time."""
    with _memory.lock:
        _memory.forget()


def _line(basis: LineBasis) -> Line:
    key = (connection.settings_dict["NAME"], basis.pass_id, basis.at)
    with _memory.lock:
        kept, now_s = _memory.kept, clock.monotonic_s()
        if kept is not None and kept.key[0] == key[0]:
            is_long = len(kept.line.id) > _SHORT
            if kept.key == key or (is_long and now_s - kept.at_s < kept.read_s / _SHARE_OF_TIME):
                return kept.line
        line = _read(basis)
        done_s = clock.monotonic_s()
        _memory.kept = _Kept(key, line, done_s - now_s, done_s)
        return line


# Reading -------------------------------------------------------------------------------------------------------------


def _read(basis: LineBasis) -> Line:
    rows = _rows(seconds(basis.at))
    shapes, first, of_row = np.unique(rows["shape"], return_index=True, return_inverse=True)
    wanted = _wanted(dict(zip(shapes.tolist(), rows["id"][first].tolist(), strict=True)))
    of_shape = [wanted.get(shape) for shape in shapes.tolist()]
    group_of, rivals = _groups(of_shape, basis.at)
    group = group_of[of_row]
    width = np.array([0.0 if one is None else one.width for one in of_shape])[of_row]
    places = {int(team_id): place for team_id, place in basis.team_places.items()}
    teams, of_team = np.unique(rows["team"], return_inverse=True)
    share = np.array([places.get(team, NONE) for team in teams.tolist()], dtype=np.int64)[of_team]
    # A team or a shape of which the pass knew nothing: its jobs are looked at by the next one.
    stands = (group != NONE) & (share != NONE)
    return _as_ordered(basis, rows[stands], share[stands], width[stands], group[stands], rivals)


def _rows(at_s: float) -> "np.ndarray[Any, Any]":
    """One row a job that waits and could start."""
    ready = _READY.format(
        queued=State.QUEUED.value,
        succeeded=State.SUCCEEDED.value,
        at_s=repr(float(at_s)),
        holding=", ".join(f"'{state.value}'" for state in sorted(HOLDING)),
    )
    columns = ", ".join(expression for _, expression, _ in _FIELDS)
    query = f"COPY (SELECT {columns} FROM jobs_job job WHERE {ready}) TO STDOUT (FORMAT binary)"  # noqa: S608
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        told = b"".join(copy)
    n = (len(told) - _HEAD_BYTES - _TAIL_BYTES) // _ROW.itemsize
    rows = np.frombuffer(told, dtype=_ROW, count=n, offset=_HEAD_BYTES)
    # No field may be empty, or the rows are not all as long.
    assert len(told) == _HEAD_BYTES + n * _ROW.itemsize + _TAIL_BYTES
    assert (rows["n"] == len(_FIELDS)).all()
    return rows


def _wanted(examples: Mapping[int, int]) -> Mapping[int, _Wanted]:
    """What jobs of each shape want, by the shape's hash; of those not known yet, from one job that has it."""
    names = admission.names()
    if _memory.names is not names or len(_memory.shapes) > _MOST_SHAPES:
        _memory.names, _memory.shapes = names, {}
    missing = {job_id: shape for shape, job_id in examples.items() if shape not in _memory.shapes}
    if missing:
        capacity = capacity_of(admission.facility())
        rows = Job.objects.filter(pk__in=missing).annotate(
            is_runnable=Q(private__has_any_keys=["command", "script", "group_commands"])
        )
        for job_id, spec, cluster_id, is_runnable in rows.values_list(
            "id", "spec", "cluster_id", "is_runnable"
        ):
            request = intake.request_of(spec)
            shape = names.shape_of(request, is_runnable=is_runnable, cluster_id=cluster_id)
            kinds = frozenset(kinds_of(shape) or ())
            width = width_of(shape, capacity)
            _memory.shapes[missing[job_id]] = _Wanted(kinds, shape.cluster, request.reservation, width)
    return _memory.shapes


def _groups(wanted: list[_Wanted | None], at: datetime) -> tuple[IntArray, dict[int, list[int]]]:
    """The group of each shape (NONE: its jobs are not ready), and which groups compete with which."""
    names_one = any(one is not None and one.reservation for one in wanted)
    is_open = _open_reservations(at) if names_one else set()
    group_at: dict[tuple[frozenset[int], int], int] = {}
    groups = np.full(len(wanted), NONE, dtype=np.int64)
    for place, one in enumerate(wanted):
        if one is None or (one.reservation is not None and one.reservation not in is_open):
            continue
        groups[place] = group_at.setdefault((one.kinds, one.cluster), len(group_at))
    rivals = {
        group: [
            other
            for (other_kinds, other_cluster), other in group_at.items()
            if (kinds & other_kinds or not (kinds or other_kinds))
            and (NONE in (cluster, other_cluster) or cluster == other_cluster)
        ]
        for (kinds, cluster), group in group_at.items()
    }
    return groups, rivals


def _open_reservations(at: datetime) -> set[str]:
    return {one.name for one in windows(at, at + HORIZON) if one.starts_at <= at < one.ends_at}


def _predicted_s(rows: "np.ndarray[Any, Any]") -> FloatArray:
    """Seconds that each job will run by the last ones of its owner, (n,); inf where nothing is known."""
    _, first, of_row = np.unique(rows["owner"], return_index=True, return_inverse=True)
    examples: list[int] = rows["id"][first].tolist()
    took = past_runs.of_jobs(examples)
    best_s = [took[job_id].best_s if job_id in took else None for job_id in examples]
    took_s = np.array([inf if one is None else one for one in best_s], dtype=np.float64)[of_row]
    return left_of_many(took_s, rows["done_s"].astype(np.float64))


def _as_ordered(
    basis: LineBasis,
    rows: "np.ndarray[Any, Any]",
    share: IntArray,
    width: FloatArray,
    group: IntArray,
    rivals: Mapping[int, Collection[int]],
) -> Line:
    """The columns by which order.order_queue tells these jobs apart; those its policy does not look at are 0."""
    n = len(rows)
    id_, priority = rows["id"].astype(np.int64), rows["priority"].astype(np.int64)
    submitted_s: FloatArray = rows["submitted_s"].astype(np.float64)
    is_overdue: BoolArray = np.zeros(n, dtype=bool)
    expected_s: FloatArray = np.zeros(n)
    waited_s = seconds(basis.at) - submitted_s
    if basis.order == "submit":
        priority, share = np.zeros_like(priority), np.zeros_like(share)
    elif basis.ageing_s is not None:
        priority = priority + np.floor(np.maximum(0.0, waited_s) / basis.ageing_s).astype(np.int64)
    if basis.order == "shortest":
        if basis.starving_s is not None:
            is_overdue = waited_s >= overdue_after_s(basis.starving_s, basis.starving_by_width, width)
        expected_s = np.where(is_overdue, 0.0, np.minimum(rows["left_s"], _predicted_s(rows)))
    return Line(
        id=id_,
        priority=priority,
        is_overdue=is_overdue,
        share=share,
        expected_s=expected_s,
        submitted_s=submitted_s,
        deadline_s=rows["deadline_s"].astype(np.float64),
        group=group,
        rivals=rivals,
    )

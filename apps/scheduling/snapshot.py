"""Reads everything a pass looks at, as of one instant, into plain values for the engine.

One repeatable-read transaction and some twenty queries, without model objects. A process remembers the last picture
it took, and with it PostgreSQL's own snapshot: which transactions the picture contains. The next picture is the last
one and the rows written by transactions that it does not contain: jobs say which transaction changed them last
(`Job.transaction_id`, by a trigger, whoever writes); of nodes and open allocations PostgreSQL itself knows (`xmin`).
Nothing depends on messages, and another process remembers for itself. In doubt (another server, a restart, an emptied
table, somebody's open transaction, a number of rows that does not add up, an error half way) all is read anew.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from math import inf, log
from sys import intern
from threading import RLock
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from django.db import connection, transaction

from apps.core.columns import as_object
from apps.inventory.models import Health
from apps.jobs import intake
from apps.jobs.lifecycle import ENDED, HOLDING, State
from apps.jobs.models import Desired
from apps.jobs.past_runs import COUNTED, Owner
from apps.jobs.spec import SHARE_STEPS, Asks, JobRequest
from apps.power.curtailment.facts import Curve
from apps.reservations.selectors import windows
from apps.scheduling.engine import planner
from apps.scheduling.engine.draw import domain_draw_w
from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    Booking,
    CapChange,
    Dataset,
    Domain,
    Facility,
    FloatArray,
    Gang,
    IntArray,
    Kind,
    LimitChange,
    Member,
    Placing,
    Policy,
    Reserve,
    Running,
    Saving,
    Shape,
    Share,
    Snapshot,
    Spread,
    Team,
    Wait,
)
from apps.scheduling.engine.sizes import relative_rate, sizes_of
from apps.scheduling.histories import Histories
from apps.scheduling.measured_power import Peaks, with_measured
from apps.scheduling.response.ahead import Ahead, first_change_at, look_ahead
from apps.scheduling.response.limits import next_change_at, start_limits_w
from apps.scheduling.selectors import current_policy
from apps.staging.selectors import DatasetRow, staging_picture
from apps.teams.models import LimitedUse

HORIZON: Final = timedelta(days=60)  # reservations further ahead do not matter yet
_OPEN: Final = [State.QUEUED.value, *sorted(state.value for state in HOLDING)]
_MANY: Final = 2000
_MOST_ONES: Final = 20_000  # values of which one object is kept for all that say the same
_AT_ONCE: Final = 2000  # rows that are held at a time, of tables that grow with the queue
_MOST_ENDED: Final = 5000
_ENDED_EVERY_S: Final = 60.0
PREVIEW_ID: Final = 0  # id of a gang that is not in the ledger
OUTSIDE_ID: Final = -(2**40)  # from here down: work outside the ledger
_NOBODYS_PRIORITY: Final = 2**31 - 1

Row = tuple[Any, ...]
_Plain = TypeVar("_Plain")


@dataclass(frozen=True, eq=False)
class Taken:
    """A snapshot, and what is needed to bring the plan's positions and seconds back to rows and instants."""

    snapshot: Snapshot
    policy: Policy
    at: datetime
    seen: str  # PostgreSQL's own snapshot: which transactions this picture contains
    seen_below: int  # every transaction below this one is contained
    team_id: tuple[int, ...]
    is_simulated: Mapping[int, bool]  # by id of the cluster
    cluster_name: Mapping[int, str]
    cooldown_s: tuple[float, ...]  # when nodes that failed may be used again
    rule_versions: tuple[Row, ...]  # versions of limits and quotas, compared again at commit
    never_satisfied: tuple[int, ...]  # waiting jobs whose dependency can no longer succeed
    left_out: tuple[Wait, ...]  # waiting jobs that no plan can start, because their reservation is over
    use_since: datetime | None  # stored use is as of then
    gangs: Mapping[int, Gang]  # of the queue, by job id
    given_up: Mapping[
        tuple[int, int], float
    ]  # (data set, storage domain) not sent before then, for it failed lately
    out_of_reach: Mapping[int, tuple[str, ...]]  # data sets that waiting jobs name, and are placed without
    ended: tuple[tuple[Shape, int], ...]  # shapes of the jobs that ended lately, and how many did
    next_limit_at: datetime | None = None  # when power events leave a domain more or less than now


def seconds(at: datetime) -> float:
    """An instant on the engine's axis."""
    return at.timestamp()


def instant(at_s: float) -> datetime | None:
    """An instant of the engine's axis; None where there is none, or none that a calendar knows."""
    if not -1e11 < at_s < 1e11:
        return None
    return datetime.fromtimestamp(at_s, UTC)


def take_snapshot(at: datetime, *, candidates: Sequence[JobRequest] = (), candidates_of: int = NONE) -> Taken:
    """Read one consistent picture.

    Args:
        candidates: Jobs that are not in the ledger but are to be looked at as if they had just been submitted.
        candidates_of: Id of the person who would submit them.
    """
    # Inside somebody's transaction the picture is that transaction's; its isolation can no longer be chosen.
    is_nested = connection.in_atomic_block
    with _memory.lock, transaction.atomic(), connection.cursor() as cursor:
        if not is_nested:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            return _Reader(cursor, _memory, at).read(candidates, candidates_of, may_trust=not is_nested)
        except BaseException:
            # Half a picture is remembered: the next one starts from nothing.
            _memory.forget()
            raise


def read_facility(at: datetime) -> tuple[Facility, tuple[Team, ...], "Names"]:
    """The facility and the teams alone, for proofs about the empty facility."""
    # Not what the pictures remember: this may run inside a transaction that is rolled back.
    with _proofs.lock, transaction.atomic(), connection.cursor() as cursor:
        reader = _Reader(cursor, _proofs, at)
        reader.read_facility()
        reader.read_teams()
        return reader.facility, tuple(reader.teams), reader.names()


@dataclass(frozen=True, eq=False)
class Names:
    """Where what a request names stands in the engine's tuples."""

    kind_at: Mapping[str, int]
    kinds: tuple[Kind, ...]
    team_at: Mapping[str, int]
    cluster_id: Mapping[str, int]
    real_kinds: frozenset[int]  # kinds that real clusters have
    simulated_kinds: frozenset[int]
    real_clusters: tuple[int, ...]
    simulated_clusters: tuple[int, ...]
    booking_at: Mapping[str, int]

    def shape_of(self, request: JobRequest, *, is_runnable: bool, cluster_id: int | None = None) -> Shape:
        """The engine's shape of a request."""
        if cluster_id is None and request.cluster is not None:
            cluster_id = self.cluster_id.get(request.cluster, NONE)
        only: frozenset[int] | None = None
        if cluster_id is None:
            cluster_id, only = self._where_it_can_run(request, is_runnable)
        reservation = NONE if request.reservation is None else self.booking_at.get(request.reservation, NONE)
        asks = tuple(self._ask(group, only) for group in request.all_groups)
        return Shape(asks, cluster=cluster_id, reservation=reservation)

    def _where_it_can_run(self, request: JobRequest, is_runnable: bool) -> tuple[int, frozenset[int] | None]:
        """The only kinds, and the only cluster where kinds do not tell: real clusters run commands, others play.

        Where no cluster of the fitting sort has what the job accepts, any cluster may take it.
        """
        kinds, clusters, others = (
            (self.real_kinds, self.real_clusters, self.simulated_kinds)
            if is_runnable
            else (self.simulated_kinds, self.simulated_clusters, self.real_kinds)
        )
        if not clusters or any(not set(self._accepted(group)) & kinds for group in request.all_groups):
            return NONE, None
        is_told_by_kind = not any(set(self._accepted(group)) & kinds & others for group in request.all_groups)
        return (clusters[0] if len(clusters) == 1 and not is_told_by_kind else NONE), kinds

    def _accepted(self, group: Asks) -> tuple[int, ...]:
        if group.accelerators is not None:
            kinds = [self.kind_at[name] for name in group.accelerators if name in self.kind_at]
        else:
            kinds = sorted(range(len(self.kinds)), key=lambda k: (-self.kinds[k].speed, k))
        least_gib = group.min_memory_gib
        return tuple(k for k in kinds if least_gib is None or self.kinds[k].memory_gib >= least_gib)

    def _ask(self, group: Asks, only: frozenset[int] | None) -> Ask:
        kinds = self._accepted(group)
        if only is not None:
            kinds = tuple(k for k in kinds if k in only)
        peak_w = group.peak_w if group.peak_w is not None else group.power_w
        return Ask(
            n_replicas=group.preferred_replicas,
            devices=group.whole_devices,
            share_steps=group.share_steps,
            cpus=group.cpus,
            memory_gib=group.memory_gib,
            kinds=kinds,
            any_kind=group.accelerators is None,
            required=group.topology.required if group.topology else None,
            preferred=group.topology.preferred if group.topology else None,
            peak_w=peak_w,
            power_w=group.power_w,
            n_min=group.min_replicas if group.is_elastic else None,
            n_max=group.max_replicas if group.is_elastic else None,
            spread=None
            if group.spread is None
            else Spread(group.spread.over, group.spread.max_skew, group.spread.max_per_domain),
            max_wait_s=group.topology.max_wait or 0.0 if group.topology else 0.0,
        )

    def gang_of(
        self, request: JobRequest, *, at_s: float, job_id: int = PREVIEW_ID, sequence: int = 2**62
    ) -> Gang:
        """A gang as if the request had been submitted now."""
        limit_s = request.time_limit if request.time_limit is not None else inf
        return Gang(
            id=job_id,
            name=request.name,
            shape=self.shape_of(request, is_runnable=intake.has_something_to_run(request)),
            team=self.team_at.get(request.team, NONE),
            priority=request.priority,
            submitted_s=at_s,
            sequence=sequence,
            limit_s=limit_s,
            work_s=request.runtime if request.runtime is not None and limit_s == inf else inf,
            not_before_s=seconds(request.not_before) if request.not_before else -inf,
            deadline_s=seconds(request.deadline) if request.deadline else inf,
            is_held=request.held,
            preemptible=request.preemptible,
            tier=request.flexibility,
        )


class _Kept(NamedTuple):
    """A job as it was read."""

    version: int
    transaction_id: int  # that changed it last
    gang: Gang
    shape_key: str
    reservation: str | None  # that it names; positions of bookings move with the windows


@dataclass(frozen=True, slots=True)
class _Held:
    """An open allocation as it was read."""

    id: int
    bound_s: float
    grace_s: float
    running: Running
    devices: tuple[tuple[int, float], ...]  # what it holds: (kind, devices)


@dataclass(frozen=True, eq=False)
class _Columns:
    """What the open allocations hold, as columns; `owner` is a position in the first three."""

    running: tuple[Running, ...]
    ends_s: FloatArray
    bound_s: FloatArray
    owner: IntArray
    team: IntArray
    kind: IntArray
    devices: FloatArray


class _Memory:
    """What a process remembers between snapshots. Positions are good for one set of kinds, nodes and teams."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.forget()

    def forget(self) -> None:
        """Everything."""
        self.facility_rows: tuple[list[Row], list[Row], list[Row]] | None = None
        self.facility: Facility | None = None
        self.capped: tuple[list[Row], tuple[Sequence[Row], Sequence[Row]], list[Row]] | None = None
        self.bounded: tuple[tuple[tuple[int, float], ...], Facility, Facility] | None = None
        self.node_at: dict[int, int] = {}
        self.node_positions: list[Row] = []
        self.node_states: list[tuple[str, float | None]] = []
        self.clear(())

    def clear(self, positions: tuple[Any, ...]) -> None:
        """All that was said in positions."""
        self.positions = positions
        self.shapes: dict[str, Shape] = {}  # by key; filled by `keep_shape`
        self._alike: dict[Shape, Shape] = {}
        self._ones: dict[Any, Any] = {}
        # The rows of which transactions all that follows is made of; None: of nobody knows which.
        self.seen: str | None = None
        self.seen_below = 0
        self.server: tuple[Any, ...] = ()
        self.jobs: dict[int, _Kept] = {}  # that wait or hold something
        self.dependent: frozenset[int] = frozenset()  # waiting jobs that wait for others
        self.booked: set[int] = set()  # jobs that name a reservation
        # These two are never changed but replaced: who was given the last picture keeps it as it is.
        self.queue: Mapping[int, Gang] = {}  # those that wait, by id, ascending
        self.held: Mapping[int, _Held] = {}  # open allocations by job id, ascending
        self.columns: _Columns | None = None  # of `held`
        self.histories = Histories()
        self.peaks = Peaks()
        self.ended: list[Row] = []  # key of the shape, and how many jobs of it have ended lately
        self.ended_s = inf  # as of then
        self.data_names: dict[str, tuple[str, ...]] = {}  # by key of the shape; of those that name data sets
        self.forget_data((), None)

    def keep_shape(self, key: str, shape: Shape) -> None:
        """Keep a shape. Keys tell more apart than the engine does, as images: shapes that are equal are one object."""
        self.shapes[key] = self._alike.setdefault(shape, shape)

    def one(self, value: _Plain) -> _Plain:
        """The one object that stands for this value; numbers and tuples of them, and what is frozen."""
        if len(self._ones) > _MOST_ONES:
            self._ones.clear()
        found: _Plain = self._ones.setdefault(value, value)
        return found

    def forget_data(self, key: tuple[Any, ...], facility: Facility | None) -> None:
        """All that was said of data: positions are good for one list of data sets and what can be brought where."""
        self.data_key, self.data_facility = key, facility
        self.data_of: dict[str, tuple[int, ...]] = {}  # positions by key of the shape
        self.stands: dict[tuple[Shape, frozenset[int]], bool] = {}


_memory = _Memory()
_proofs = _Memory()


def forget() -> None:
    """Remember nothing: another database is behind the connection now."""
    for memory in (_memory, _proofs):
        with memory.lock:
            memory.forget()


def what_is_left(
    limit_s: float | None, runtime_s: float | None, ran_s: float, lost_s: float, worked_s: float
) -> tuple[float, float, float]:
    """Seconds that a job may still run, that it would by its declared run time, and that earlier attempts have done.

    Args:
        runtime_s: Counts where there is no limit.
        ran_s: All attempts together.
        lost_s: Of these, thrown away.
        worked_s: Of the declared run time, what they did and kept.
    """
    done_s = max(ran_s - lost_s, 0.0)
    left_s = inf if limit_s is None else max(limit_s - ran_s, 1.0)
    work_s = max(runtime_s - worked_s, 1.0) if limit_s is None and runtime_s is not None else inf
    return left_s, work_s, done_s


def _saving_of(checkpoint: Any) -> Saving | None:
    if not checkpoint:
        return None
    # Nothing here changes the size of an attempt: a job that does not ask for it is restarted as well.
    return Saving(
        checkpoint["interval"], checkpoint.get("cost", 0.0), checkpoint.get("restart", 0.0), on_resize=True
    )


_GANG_COLUMNS: Final = """
    job.id, job.version, job.transaction_id, job.state, job.name, job.shape, job.team_id, job.user_id, job.priority,
    extract(epoch FROM job.submitted_at)::float8, job.time_limit_s, job.runtime_s, job.ran_s, job.lost_s,
    extract(epoch FROM job.not_before_at)::float8, extract(epoch FROM job.retry_at)::float8,
    extract(epoch FROM job.deadline_at)::float8, job.is_held, job.array_id, arr.max_running,
    job.spec->>'reservation', job.spec->>'preemptible' IS DISTINCT FROM 'false', job.spec->'checkpoint',
    job.spec->'scaling', job.n_preemptions + job.n_moves, job.spec->>'flexibility',
    job.worked_s
"""
_GANG_TABLES: Final = "jobs_job job LEFT JOIN jobs_jobarray arr ON arr.id = job.array_id"
_ALLOCATION_COLUMNS: Final = """
    id, job_id, extract(epoch FROM bound_at)::float8, extract(epoch FROM observed_started_at)::float8,
    desired_state, desired_power_cap_share, grace_s, extract(epoch FROM data_due_at)::float8,
    extract(epoch FROM stop_at)::float8
"""
_NODE_COLUMNS: Final = """
    id, name, accelerator_type_id, n_devices, cpus, memory_gib, scale_up_id, leaf_id, power_id, cooling_id, storage_id,
    idle_w, speed * measured_speed, cluster_id, health, extract(epoch FROM cooldown_until_at)::float8
"""
_N_STATIC: Final = 14  # so many of them are the node as built
# Whether the transaction that wrote a row version is that one or a later one, or so old that nobody can tell.
_WRITTEN_SINCE: Final = "(xmin::text::bigint - %s + 4294967296) %% 4294967296 < 2147483648"


class _Reader:
    """Reads one picture, within the transaction of its cursor."""

    def __init__(self, cursor: Any, memory: _Memory, at: datetime) -> None:
        self.cursor, self.memory, self.at, self.at_s = cursor, memory, at, seconds(at)
        self.policy = Policy()
        self.bookings: tuple[Booking, ...] = ()
        self._booking_at: dict[str, int] = {}
        self.datasets: tuple[Dataset, ...] = ()
        self.staging_gib_per_s = 1.0
        self.given_up: dict[tuple[int, int], float] = {}
        self._dataset_at: dict[str, int] = {}
        self.ahead = Ahead()
        self.has_loans = True
        self._places: frozenset[int] = frozenset()  # storage domains with nodes
        self._reach: tuple[frozenset[int], ...] = ()  # of each data set: those where it is, or could come to

    def rows(self, query: str, *parameters: Any) -> list[Row]:
        self.cursor.execute(query, parameters)
        found: list[Row] = self.cursor.fetchall()
        return found

    def read(self, candidates: Sequence[JobRequest], candidates_of: int = NONE, *, may_trust: bool) -> Taken:
        """Read it.

        Args:
            may_trust: Whether what is remembered may be built on, and this picture be remembered: False inside a
                transaction of the caller's, whose rows may yet be rolled back.
        """
        # What few facilities have is only read where there is any.
        ((seen, seen_below, self.has_loans, has_outside, *server),) = self.rows(
            "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,"
            " EXISTS (SELECT 1 FROM teams_quotaloan WHERE state = 'agreed'),"
            " EXISTS (SELECT 1 FROM inventory_outsideuse),"
            # A restart may have lost what was just committed, and an emptied table gets a new file.
            " current_database(), pg_postmaster_start_time(), pg_relation_filenode('jobs_job'),"
            " pg_relation_filenode('jobs_allocation')"
        )
        memory = self.memory
        if not may_trust or memory.server != tuple(server) or seen_below < memory.seen_below:
            memory.seen = None
        self.policy = current_policy()
        self.read_facility()
        self._bound_by_events()
        self.read_teams()
        self.read_bookings()
        self.read_data()
        changed = None if memory.seen is None else self._read_changed_jobs()
        changed = self._read_peaks(changed)
        self._read_jobs(changed)
        self._read_allocations(changed)
        waiting, never_satisfied, left_out = self.read_queue(changed)
        running = self.running()
        if has_outside:
            running = (*running, *self.read_outside())
        use_since = self.read_use()
        memory.seen = seen if may_trust else None
        memory.seen_below, memory.server = seen_below, tuple(server)
        gangs = memory.queue
        looked_at = self._candidates(candidates, candidates_of)
        self._note_ends(changed)
        snapshot = Snapshot(
            now_s=self.at_s,
            facility=self.facility,
            is_usable=self.is_usable,
            is_failed=self.is_failed,
            running=running,
            queue=(*self._with_resumed(waiting), *looked_at),
            teams=tuple(self.teams),
            members=self.read_members(looked_at),
            bookings=self.bookings,
            quota_is_checked=bool(self.teams),
            earmarks=self.read_earmarks(),
            datasets=self.datasets,
            staging_gib_per_s=self.staging_gib_per_s,
            history_s=memory.histories.told(),
            limit_changes=self._limit_changes(running),
            cap_changes=self._cap_changes(),
        )
        return Taken(
            snapshot=snapshot,
            policy=self.policy,
            at=self.at,
            seen=seen,
            seen_below=seen_below,
            team_id=tuple(team.id for team in self.teams),
            is_simulated={row[0]: row[2] == "simulated" for row in self.clusters},
            cluster_name={row[0]: row[1] for row in self.clusters},
            cooldown_s=tuple(self.cooldown_s),
            rule_versions=rule_versions(self.cursor),
            never_satisfied=never_satisfied,
            left_out=left_out,
            use_since=use_since,
            gangs=gangs,
            given_up=self.given_up,
            out_of_reach=self._out_of_reach(),
            ended=self._ended(),
            next_limit_at=self.next_limit_at,
        )

    def _candidates(self, candidates: Sequence[JobRequest], user_id: int) -> list[Gang]:
        if not candidates:
            return []
        names = self.names()
        gangs = []
        for number, request in enumerate(candidates):
            gang = names.gang_of(request, at_s=self.at_s)
            datasets = self._within_reach(request.datasets, gang.shape)
            history = NONE
            if gang.team != NONE:
                owner = Owner(user_id, self.teams[gang.team].id, gang.name)
                history = self.memory.histories.position(owner)
            measured = self.memory.peaks.of(PREVIEW_ID, user_id, gang.name)
            if measured:
                asks = with_measured(gang.shape.asks, measured, self.facility.kinds)
                gang = replace(gang, shape=replace(gang.shape, asks=asks))
            gangs.append(
                replace(
                    gang,
                    id=PREVIEW_ID - number,
                    user=user_id,
                    sequence=2**62 + number,
                    datasets=datasets,
                    history=history,
                )
            )
        return gangs

    def _ended(self) -> tuple[tuple[Shape, int], ...]:
        """What ran within a day and has ended, the last few thousand; as it was when last asked, a minute ago."""
        memory = self.memory
        if not 0 <= self.at_s - memory.ended_s < _ENDED_EVERY_S:
            memory.ended, memory.ended_s = self._read_ended(), self.at_s
        return tuple((memory.shapes[key], n) for key, n in memory.ended)

    def _read_ended(self) -> list[Row]:
        rows = self.rows(
            "SELECT job.shape, count(*), max(job.id) FROM"
            " (SELECT job_id FROM jobs_allocation WHERE ended_at > %s AND ended_at <= %s"
            "  ORDER BY ended_at DESC LIMIT %s) ended"
            " JOIN jobs_job job ON job.id = ended.job_id GROUP BY job.shape ORDER BY job.shape",
            self.at - timedelta(days=1),
            self.at,
            _MOST_ENDED,
        )
        self._read_shapes({key: job_id for key, _, job_id in rows if key not in self.memory.shapes})
        return [(key, n) for key, n, _ in rows]

    def _note_ends(self, changed: list[Row] | None) -> None:
        """Have the run times of those looked up whose jobs have ended."""
        if changed is None:
            self.memory.histories.note_all()
            return
        for row in changed:
            if row[3] in COUNTED:
                self.memory.histories.note_end(Owner(row[7], row[6], row[4]))

    # The facility

    def read_facility(self) -> None:
        types = self.rows(
            "SELECT id, name, memory_gib, tdp_w, idle_w, speed, power_curve::text, cap_step_w"
            " FROM inventory_acceleratortype ORDER BY id"
        )
        domains = self.rows(
            "SELECT domain.id, domain.name, domain.kind, domain.parent_id, power.steady_w,"
            " coalesce(power.overhead_fixed_w, 0), coalesce(power.overhead_k, 1) FROM inventory_domain domain"
            " LEFT JOIN power_powerlimit power ON power.domain_id = domain.id ORDER BY domain.id"
        )
        self.clusters = self.rows("SELECT id, name, backend, is_enabled FROM inventory_cluster ORDER BY id")
        nodes = self._read_nodes()
        memory = self.memory
        kinds = self._with_caps(types, nodes)
        # Rows that are equal give the same Facility object: what the engine derived from it stays good.
        if memory.facility is None or memory.facility_rows != (kinds, domains, nodes):
            memory.facility = _facility(kinds, domains, nodes)
            memory.facility_rows = (kinds, domains, nodes)
            memory.node_positions = [(row[0], row[2], row[13]) for row in nodes]
        self.facility, self.node_at = memory.facility, memory.node_at
        enabled = [row[0] for row in self.clusters if row[3]]
        states = memory.node_states
        is_healthy, self.is_failed = (
            np.fromiter((health == wanted for health, _ in states), dtype=np.bool_, count=len(states))
            for wanted in (Health.HEALTHY.value, Health.FAILED.value)
        )
        self.is_usable = is_healthy & np.isin(self.facility.cluster, enabled)
        cooling = {node: until for node, (_, until) in enumerate(states) if until is not None}
        self.cooldown_s = [until for until in cooling.values() if until > self.at_s]
        for node, until in cooling.items():
            if until > self.at_s:
                self.is_usable[node] = False
        self._positions: tuple[Any, ...] = (kinds, self.clusters, memory.node_positions)

    def _with_caps(self, types: Sequence[Row], nodes: list[Row]) -> list[Row]:
        """Rows of accelerator types with the caps under which a job may start on them.

        None where some of its nodes are no simulated ones: a cap that may only be written down must not be counted on.
        """
        memory = self.memory
        key = (types, self.clusters)
        if memory.capped is None or memory.capped[0] is not nodes or memory.capped[1] != key:
            real = {row[0] for row in self.clusters if row[2] != "simulated"}
            firm = {row[2] for row in nodes if row[13] in real}
            rows = [
                (*row[:6], () if row[0] in firm else _caps(as_object(row[6]), row[3], row[7]))
                for row in types
            ]
            memory.capped = (nodes, key, rows)
        return memory.capped[2]

    def _bound_by_events(self) -> None:
        """Let domains draw no more than envelopes and demand-response events leave them now."""
        told = start_limits_w(self.at)
        self.ahead = look_ahead(self.at)
        marks = (next_change_at(self.at), first_change_at(self.ahead))
        self.next_limit_at = min((mark for mark in marks if mark is not None), default=None)
        if not told:
            return
        memory, domains = self.memory, self.facility.domains
        key = tuple(sorted(told.items()))
        # Rows and limits that are equal give the same Facility object, as above.
        if memory.bounded is None or memory.bounded[:2] != (key, self.facility):
            bounded = tuple(
                domain
                if domain.id not in told
                else replace(
                    domain,
                    limit_w=min(
                        domain.limit_w, domain.overhead_fixed_w + domain.overhead_k * told[domain.id]
                    ),
                )
                for domain in domains
            )
            memory.bounded = (key, self.facility, replace(self.facility, domains=bounded))
        self.facility = memory.bounded[2]

    def _limit_changes(self, running: Sequence[Running]) -> tuple[LimitChange, ...]:
        """Limits that are known to change, as the engine counts: by peaks.

        A target is of what is drawn, and work draws less than its peak: what it is below that is not wanted twice.
        """
        changes = self.ahead.limits
        if not changes:
            return ()
        built, domain_at = (
            self.memory.facility,
            {domain.id: i for i, domain in enumerate(self.facility.domains)},
        )
        assert built is not None
        slack_w: FloatArray | None = None
        if any(change.is_target for change in changes):
            peak_w, draw_w = (
                domain_draw_w(self.facility, running, self.is_failed, peak=is_peak)
                for is_peak in (True, False)
            )
            slack_w = np.maximum(peak_w - draw_w, 0.0)
        found = []
        for change in changes:
            position = domain_at[change.domain_id]
            domain = built.domains[position]
            it_w = change.limit_w
            if change.is_target and slack_w is not None:
                it_w += float(slack_w[position])
            limit_w = min(domain.limit_w, domain.overhead_fixed_w + domain.overhead_k * it_w)
            gives_way = change.is_envelope and limit_w < domain.limit_w
            found.append(LimitChange(seconds(change.at), position, limit_w, gives_way))
        return tuple(found)

    def _cap_changes(self) -> tuple[CapChange, ...]:
        """What running work is known to be capped to, or to get back."""
        job_of = {one.id: job_id for job_id, one in self.memory.held.items()} if self.ahead.caps else {}
        return tuple(
            CapChange(seconds(cap.at), job_of[cap.allocation_id], cap.share)
            for cap in self.ahead.caps
            if cap.allocation_id in job_of
        )

    def _with_resumed(self, waiting: Collection[Gang]) -> tuple[Gang, ...]:
        """The queue, in which those whom an event had paused go first."""
        resumed = self.ahead.resumed
        if not resumed:
            return tuple(waiting)
        return tuple(replace(gang, goes_first=True) if gang.id in resumed else gang for gang in waiting)

    def _read_nodes(self) -> list[Row]:
        """Every node as built; of those that nobody wrote since, what is remembered."""
        memory = self.memory
        if memory.seen is not None and memory.facility_rows is not None:
            nodes = memory.facility_rows[2]
            changed = self.rows(
                f"SELECT {_NODE_COLUMNS} FROM inventory_node WHERE {_WRITTEN_SINCE}",  # noqa: S608
                memory.seen_below % 2**32,
            )
            ((n_nodes,),) = self.rows("SELECT count(*) FROM inventory_node")
            known = memory.node_at
            if n_nodes == len(nodes) and all(
                row[0] in known and nodes[known[row[0]]] == row[:_N_STATIC] for row in changed
            ):
                for row in changed:
                    memory.node_states[known[row[0]]] = row[_N_STATIC], row[_N_STATIC + 1]
                return nodes
        rows = self.rows(f"SELECT {_NODE_COLUMNS} FROM inventory_node ORDER BY id")  # noqa: S608
        memory.node_at = {row[0]: position for position, row in enumerate(rows)}
        memory.node_states = [(row[_N_STATIC], row[_N_STATIC + 1]) for row in rows]
        return [row[:_N_STATIC] for row in rows]

    def read_teams(self) -> None:
        rows = self.rows("SELECT id, name, parent_id, weight FROM teams_team ORDER BY id")
        self.team_at = {row[0]: position for position, row in enumerate(rows)}
        kind_at = {kind.id: position for position, kind in enumerate(self.facility.kinds)}
        owned: dict[int, tuple[dict[int, int], ...]] = defaultdict(lambda: ({}, {}, {}))
        for team_id, kind_id, *amounts in self.rows(
            "SELECT team_id, accelerator_type_id, entitlement, borrow_limit, lend_limit FROM teams_quota ORDER BY id"
        ):
            for of_kind, amount in zip(owned[team_id], amounts, strict=True):
                if amount is not None:
                    of_kind[kind_at[kind_id]] = amount
        # What a team owns it divides among its sub-teams; the engine adds up a team and those below it, so of the
        # team itself it is told what was kept back.
        given: dict[tuple[int, int], int] = defaultdict(int)
        for team_id, _, parent_id, _ in rows:
            if parent_id is not None:
                for kind, amount in owned[team_id][0].items():
                    given[parent_id, kind] += amount
        for (team_id, kind), amount in given.items():
            if kind in owned[team_id][0]:
                owned[team_id][0][kind] = max(0, owned[team_id][0][kind] - amount)
        if self.has_loans:
            self._move_lent(owned, kind_at)
        self.teams = [
            Team(
                id=team_id,
                name=name,
                parent=NONE if parent_id is None else self.team_at[parent_id],
                weight=weight,
                entitlement=owned[team_id][0],
                borrow_limit=owned[team_id][1],
                lend_limit=owned[team_id][2],
            )
            for team_id, name, parent_id, weight in rows
        ]
        positions = (*self._positions, [row[0] for row in rows])
        memory = self.memory
        if positions != memory.positions or memory.histories.has_many_strangers(len(memory.jobs)):
            memory.clear(positions)

    def _move_lent(self, owned: dict[int, tuple[dict[int, int], ...]], kind_at: Mapping[int, int]) -> None:
        """What loans in force move from one team to another; never more than the lender has for itself now."""
        for lender, borrower, type_id, n_devices in self.rows(
            "SELECT lender_id, borrower_id, accelerator_type_id, n_devices FROM teams_quotaloan"
            " WHERE state = 'agreed' AND start_at <= %s AND end_at > %s ORDER BY id",
            self.at,
            self.at,
        ):
            kind = kind_at[type_id]
            moved = min(n_devices, owned[lender][0].get(kind, 0))
            if moved:
                owned[lender][0][kind] -= moved
                owned[borrower][0][kind] = owned[borrower][0].get(kind, 0) + moved

    def read_members(self, looked_at: Sequence[Gang]) -> tuple[Member, ...]:
        """Everyone whose running jobs are limited, of those who have jobs in the picture; by team and person."""
        rows = self.rows(
            "SELECT team_id, user_id, accelerator_type_id, most FROM teams_memberlimit WHERE what = ANY(%s)",
            [LimitedUse.DEVICES.value, LimitedUse.RUNNING_JOBS.value],
        )
        if not rows:
            return ()
        kind_at = {kind.id: position for position, kind in enumerate(self.facility.kinds)}
        # By team and person (None: every other member) the most of each kind, and of jobs (None).
        said: dict[tuple[int, int | None], dict[int | None, int | None]] = defaultdict(dict)
        for team_id, user_id, type_id, most in rows:
            said[self.team_at[team_id], user_id][None if type_id is None else kind_at[type_id]] = most
        teams = {team for team, _ in said}
        running = (one.running.gang for one in self.memory.held.values())
        gangs = chain(self.memory.queue.values(), running, looked_at)
        pairs = sorted({(gang.team, gang.user) for gang in gangs if gang.team in teams})
        names: dict[int, str] = dict(
            self.rows("SELECT id, username FROM teams_user WHERE id = ANY(%s)", [user for _, user in pairs])
        )
        members = []
        for team, user in pairs:
            own = said.get((team, user), {})
            limits = {**said.get((team, None), {}), **own}
            devices = {kind: most for kind, most in limits.items() if kind is not None and most is not None}
            if devices or limits.get(None) is not None:
                members.append(
                    Member(team, user, names.get(user, ""), devices, limits.get(None), is_named=bool(own))
                )
        return tuple(members)

    def read_bookings(self) -> None:
        kind_at = {kind.id: position for position, kind in enumerate(self.facility.kinds)}
        found = []
        for window in windows(self.at, self.at + HORIZON):
            found.append(
                Booking(
                    id=window.reservation_id,
                    name=window.name,
                    start_s=seconds(window.starts_at),
                    end_s=seconds(window.ends_at),
                    nodes=tuple(
                        sorted(self.node_at[node] for node in window.node_ids if node in self.node_at)
                    ),
                    kind=NONE if window.accelerator_type_id is None else kind_at[window.accelerator_type_id],
                    n_devices=window.n_devices or 0,
                    within=window.within or None,
                    teams=frozenset(self.team_at[team] for team in window.team_ids),
                    is_flexible=window.is_flexible,
                )
            )
        self.bookings = tuple(sorted(found, key=lambda booking: (booking.start_s, booking.id)))
        self._booking_at = {}
        for position, booking in enumerate(self.bookings):
            # Of a reservation that repeats, the window that is open or comes first.
            self._booking_at.setdefault(booking.name, position)

    # Data

    def read_data(self) -> None:
        """The data sets, where they lie, and from when on they could be where they are not."""
        picture = staging_picture(self.at)
        facility = self.facility
        if picture.datasets:
            domain_at = {domain.id: position for position, domain in enumerate(facility.domains)}
            self._places = frozenset(np.unique(facility.storage).tolist()) - {NONE}
            ways = _Ways(picture.roads.rate_gib_per_s, {facility.domains[p].id: p for p in self._places})
            self._dataset_at = {row.name: position for position, row in enumerate(picture.datasets)}
            self.datasets = tuple(
                self._dataset(position, row, domain_at, ways.rates(row.at))
                for position, row in enumerate(picture.datasets)
            )
            # The engine knows one rate: with the slowest way nothing is promised before it can be there.
            self.staging_gib_per_s = ways.slowest()
            self._reach = tuple(
                frozenset(place for place in self._places if one.arrives_s.get(place) != inf)
                for one in self.datasets
            )
        self._bind_data((tuple(self._dataset_at), self._reach))

    def _dataset(
        self, position: int, row: DatasetRow, domain_at: Mapping[int, int], rates: Mapping[int, float | None]
    ) -> Dataset:
        """A data set as the engine knows it; where nothing can bring it, it arrives at no time."""
        at = frozenset(domain_at[domain_id] for domain_id in row.at if domain_id in domain_at)
        arrives_s: dict[int, float] = {}
        for place, rate in rates.items():
            domain_id = self.facility.domains[place].id
            if place in at:
                continue
            if domain_id in row.arrives_at:
                expected_s = seconds(row.arrives_at[domain_id])
                # Of one that should have been there, nothing better is known than that it takes as long again.
                arrives_s[place] = max(expected_s, self.at_s + max(1.0, self.at_s - expected_s))
            elif rate is None:
                arrives_s[place] = inf
            elif domain_id in row.rests_until_at:
                until_s = seconds(row.rests_until_at[domain_id])
                self.given_up[position, place] = until_s
                arrives_s[place] = max(until_s, self.at_s) + row.size_gib / rate
        return Dataset(row.id, row.name, row.size_gib, at, arrives_s)

    def _bind_data(self, key: tuple[Any, ...]) -> None:
        """Bring the positions of data sets in what is remembered up to date, where they or their reach changed."""
        memory = self.memory
        if memory.data_key == key and memory.data_facility is self.facility:
            return
        memory.forget_data(key, self.facility)
        if not memory.data_names:
            return
        queue: dict[int, Gang] = {}
        held: dict[int, _Held] = {}
        for job_id, kept in memory.jobs.items():
            datasets = self._data_of(kept.shape_key)
            if kept.gang.datasets == datasets:
                continue
            memory.jobs[job_id] = kept._replace(gang=replace(kept.gang, datasets=datasets))
            if job_id in memory.queue:
                queue[job_id] = replace(memory.queue[job_id], datasets=datasets)
            if job_id in memory.held:
                one = memory.held[job_id]
                gang = replace(one.running.gang, datasets=datasets)
                held[job_id] = replace(one, running=replace(one.running, gang=gang))
        if queue:
            memory.queue = {**memory.queue, **queue}
        if held:
            memory.held, memory.columns = {**memory.held, **held}, None

    def _data_of(self, shape_key: str) -> tuple[int, ...]:
        """Positions of the data sets that jobs of a shape are placed by."""
        memory = self.memory
        names = memory.data_names.get(shape_key)
        if names is None:
            return ()
        if shape_key not in memory.data_of:
            memory.data_of[shape_key] = self._within_reach(names, memory.shapes[shape_key])
        return memory.data_of[shape_key]

    def _within_reach(self, names: Collection[str], shape: Shape) -> tuple[int, ...]:
        """Positions of these data sets; none where no road brings them to nodes that could hold the job.

        It would wait for ever: what nobody can bring it, the job has from elsewhere or does without.
        """
        positions = tuple(sorted({self._dataset_at[name] for name in names if name in self._dataset_at}))
        if not positions:
            return ()
        reach = frozenset.intersection(*(self._reach[position] for position in positions))
        return positions if reach == self._places or self._could_stand(shape, reach) else ()

    def _could_stand(self, shape: Shape, reach: frozenset[int]) -> bool:
        """Whether the nodes at these storage domains, and those without storage, could hold it if nothing ran there."""
        shape = replace(shape, reservation=NONE)
        known = self.memory.stands.get((shape, reach))
        if known is None:
            near = np.isin(self.facility.storage, [NONE, *reach])
            alone = Snapshot(
                now_s=0.0,
                facility=self.facility,
                is_usable=near,
                is_failed=np.zeros(len(near), dtype=np.bool_),
                queue=(Gang(id=1, name="", shape=shape),),
                quota_is_checked=False,
            )
            known = bool(planner.plan(alone, Policy(backfill_depth=0, explain=False)).starts)
            self.memory.stands[shape, reach] = known
        return known

    def _out_of_reach(self) -> dict[int, tuple[str, ...]]:
        memory = self.memory
        without = {
            key: names
            for key, positions in memory.data_of.items()
            if not positions and (names := tuple(n for n in memory.data_names[key] if n in self._dataset_at))
        }
        if not without:
            return {}
        return {
            job_id: without[key]
            for job_id in memory.queue
            if (key := memory.jobs[job_id].shape_key) in without
        }

    def _is_near(self, gang: Gang, placing: Placing) -> bool:
        """Whether its data is there, or comes soon enough for its devices to wait for it."""
        latest_s = self.at_s + self.policy.staging_hold_s
        places = {int(self.facility.storage[share.node]) for share in placing} - {NONE}
        return all(
            place in one.at
            or one.arrives_s.get(place, self.at_s + one.size_gib / self.staging_gib_per_s) <= latest_s
            for one in (self.datasets[position] for position in gang.datasets)
            for place in places
        )

    def names(self) -> Names:
        kind, cluster = self.facility.kind.tolist(), self.facility.cluster.tolist()
        simulated = {row[0] for row in self.clusters if row[2] == "simulated"}
        pairs = set(zip(kind, cluster, strict=True))
        used = {cluster_id for _, cluster_id in pairs}
        return Names(
            kind_at={k.name: position for position, k in enumerate(self.facility.kinds)},
            kinds=self.facility.kinds,
            team_at={team.name: position for position, team in enumerate(self.teams)},
            cluster_id={row[1]: row[0] for row in self.clusters},
            real_kinds=frozenset(k for k, cluster_id in pairs if cluster_id not in simulated),
            simulated_kinds=frozenset(k for k, cluster_id in pairs if cluster_id in simulated),
            real_clusters=tuple(sorted(used - simulated)),
            simulated_clusters=tuple(sorted(used & simulated)),
            booking_at=self._booking_at,
        )

    # Jobs

    def _read_changed_jobs(self) -> list[Row]:
        """Jobs in any state that were written by transactions which the remembered picture does not contain."""
        return self.rows(
            f"SELECT {_GANG_COLUMNS} FROM {_GANG_TABLES}"  # noqa: S608 (words of our own)
            " WHERE job.transaction_id >= %s"
            " AND NOT pg_visible_in_snapshot(job.transaction_id::text::xid8, %s::pg_snapshot) ORDER BY job.id",
            self.memory.seen_below,
            self.memory.seen,
        )

    def _read_jobs(self, changed: list[Row] | None) -> None:
        """Bring the remembered jobs up to date: those that wait, and those that hold something."""
        memory = self.memory
        if changed is None:
            self._read_all_jobs()
        elif changed:
            queue = dict(memory.queue)
            last = next(reversed(queue), 0)
            self._remember(changed)
            for row in changed:
                job_id, state = row[0], row[3]
                if state == State.QUEUED:
                    queue[job_id] = memory.jobs[job_id].gang
                    continue
                queue.pop(job_id, None)
                if state not in HOLDING:
                    del memory.jobs[job_id]
                    memory.booked.discard(job_id)
            # Only who comes back to the queue is out of order.
            came_back = any(
                row[3] == State.QUEUED and row[0] <= last and row[0] not in memory.queue for row in changed
            )
            memory.queue = dict(sorted(queue.items())) if came_back else queue

    def _read_all_jobs(self) -> None:
        memory, known = self.memory, self.memory.jobs
        stamps = self.rows(
            "SELECT id, version, transaction_id, state FROM jobs_job WHERE state = ANY(%s) ORDER BY id",
            _OPEN,
        )
        memory.jobs, memory.booked, memory.dependent = {}, set(), frozenset()
        missing = []
        for job_id, version, transaction_id, _ in stamps:
            kept = known.get(job_id)
            if kept is None or (kept.version, kept.transaction_id) != (version, transaction_id):
                missing.append(job_id)
                continue
            memory.jobs[job_id] = kept
            if kept.reservation is not None:
                memory.booked.add(job_id)
        self._read_missing(missing)
        memory.queue = {row[0]: memory.jobs[row[0]].gang for row in stamps if row[3] == State.QUEUED}

    def _read_missing(self, job_ids: list[int]) -> None:
        if not job_ids:
            return
        query = f"SELECT {_GANG_COLUMNS} FROM {_GANG_TABLES}"  # noqa: S608 (words of our own)
        if len(job_ids) < _MANY:
            self._remember(self.rows(f"{query} WHERE job.id = ANY(%s)", job_ids))
            return
        # Nothing of all this is garbage; looking for some among a hundred thousand new objects costs half of the time.
        with planner.without_collection(), connection.chunked_cursor() as cursor:
            wanted = set(job_ids)
            # Some at a time: all rows at once, as the driver and then as Python has them, are more than what is kept.
            cursor.execute(f"{query} WHERE job.state = ANY(%s)", [_OPEN])
            while rows := cursor.fetchmany(_AT_ONCE):
                self._remember([row for row in rows if row[0] in wanted])

    def _remember(self, rows: list[Row]) -> None:
        self._read_shapes({row[5]: row[0] for row in rows if row[5] not in self.memory.shapes})
        for row in rows:
            job_id, kept = row[0], self._kept(row)
            self.memory.jobs[job_id] = kept
            if kept.reservation is None:
                self.memory.booked.discard(job_id)
            else:
                self.memory.booked.add(job_id)

    def _kept(self, row: Row) -> _Kept:
        """The one place where a row of `_GANG_COLUMNS` becomes a Gang."""
        (job_id, version, transaction_id, _, name, shape_key, team_id, user_id, priority, submitted_s, limit_s,
         runtime_s, ran_s, lost_s, not_before_s, retry_s, deadline_s, is_held, array_id, array_max, reservation,
         preemptible, checkpoint, scaling, n_evictions, tier, worked_s) = row  # fmt: skip
        left_s, work_s, done_s = what_is_left(limit_s, runtime_s, ran_s, lost_s, worked_s)
        # Of a hundred thousand jobs thousands say the same: what is equal is one object.
        shape_key = intern(self._measured_shape(shape_key, job_id, user_id, name))
        one = self.memory.one
        gang = Gang(
            id=job_id,
            name=name,
            shape=self.memory.shapes[shape_key],
            team=self.team_at[team_id],
            user=user_id,
            priority=priority,
            submitted_s=one(submitted_s),
            sequence=job_id,
            limit_s=one(left_s),
            work_s=one(work_s),
            history=self.memory.histories.position(Owner(user_id, team_id, name)),
            done_s=one(done_s),
            not_before_s=-inf if not_before_s is None else not_before_s,
            retry_s=-inf if retry_s is None else retry_s,
            deadline_s=inf if deadline_s is None else deadline_s,
            is_held=is_held,
            preemptible=preemptible,
            array=NONE if array_id is None else array_id,
            array_max=array_max or 0,
            saving=one(_saving_of(as_object(checkpoint))),
            n_evictions=n_evictions,
            datasets=self._data_of(shape_key),
            scaling=one(tuple((int(n), float(rate)) for n, rate in as_object(scaling) or ())),
            tier=int(tier or 0),
        )
        return _Kept(version, transaction_id, gang, shape_key, reservation)

    def _read_shapes(self, examples: Mapping[str, int]) -> None:
        """Build the shapes that are not known yet, each from one job that has it."""
        if not examples:
            return
        names = self.names()
        for shape_key, spec, cluster_id, is_runnable in self.rows(
            "SELECT shape, spec, cluster_id, private ?| array['command', 'script', 'group_commands']"
            " FROM jobs_job WHERE id = ANY(%s)",
            list(examples.values()),
        ):
            request = intake.request_of(as_object(spec))
            shape = names.shape_of(request, is_runnable=is_runnable, cluster_id=cluster_id)
            self.memory.keep_shape(shape_key, replace(shape, reservation=NONE))
            if request.datasets:
                self.memory.data_names[shape_key] = tuple(request.datasets)

    def _read_peaks(self, changed: list[Row] | None) -> list[Row] | None:
        """Bring what was measured up to date; jobs of which something else is known now count as changed."""
        memory = self.memory
        jobs, classes = memory.peaks.read(self.cursor, self.at, anew=changed is None)
        if not jobs and not classes:
            return changed
        touched = [
            job_id
            for job_id, kept in memory.jobs.items()
            if job_id in jobs or (kept.gang.user, kept.gang.name) in classes
        ]
        if changed is None:
            # All are read anew but those whose rows are the same as before.
            for job_id in touched:
                del memory.jobs[job_id]
            return None
        known = {row[0] for row in changed}
        more = [job_id for job_id in touched if job_id not in known]
        if not more:
            return changed
        query = f"SELECT {_GANG_COLUMNS} FROM {_GANG_TABLES} WHERE job.id = ANY(%s)"  # noqa: S608 (our own words)
        return sorted([*changed, *self.rows(query, more)], key=lambda row: row[0])

    def _measured_shape(self, shape_key: str, job_id: int, user_id: int, name: str) -> str:
        """The key of the shape with what was measured; jobs of which the same was measured share one object."""
        memory = self.memory
        measured = memory.peaks.of(job_id, user_id, name)
        if not measured:
            return shape_key
        shape = memory.shapes[shape_key]
        asks = with_measured(shape.asks, measured, self.facility.kinds)
        if asks == shape.asks:
            return shape_key
        key = f"{shape_key}~{','.join(f'{ask.power_w}/{ask.peak_w}' for ask in asks)}"
        if key not in memory.shapes:
            memory.keep_shape(key, replace(shape, asks=asks))
            if shape_key in memory.data_names:
                memory.data_names[key] = memory.data_names[shape_key]
        return key

    def _shape_in(self, shape_key: str, booking: int) -> Shape:
        """The shape bound to this window; one object a window, so that failures are remembered."""
        key = f"{shape_key}@{booking}"
        if key not in self.memory.shapes:
            self.memory.keep_shape(key, replace(self.memory.shapes[shape_key], reservation=booking))
        return self.memory.shapes[key]

    def _shape_of(self, kept: _Kept) -> Shape:
        """The shape bound to the window that the job names: positions of windows move with time."""
        if kept.reservation is None:
            return kept.gang.shape
        return self._shape_in(kept.shape_key, self._booking_at.get(kept.reservation, NONE))

    def read_queue(
        self, changed: list[Row] | None
    ) -> tuple[Collection[Gang], tuple[int, ...], tuple[Wait, ...]]:
        """The waiting gangs by id, jobs that wait in vain, and those that no plan can start."""
        memory = self.memory
        waits, never = self._read_dependencies(changed)
        new: dict[int, Gang] = {}
        for job_id in memory.booked | memory.dependent | waits.keys():
            gang = memory.queue.get(job_id)
            if gang is None:
                continue
            kept, names = memory.jobs[job_id], tuple(waits.get(job_id, ()))
            shape = self._shape_of(kept)
            if gang.shape is not shape or gang.waits_for != names:
                new[job_id] = replace(kept.gang, shape=shape, waits_for=names)
        if new:
            memory.queue = {**memory.queue, **new}
        memory.dependent = frozenset(waits)
        over = {
            job_id: memory.jobs[job_id].reservation
            for job_id in sorted(memory.booked)
            if job_id in memory.queue and memory.queue[job_id].shape.reservation == NONE
        }
        if not over:
            return memory.queue.values(), never, ()
        left_out = tuple(
            Wait(
                job_id,
                "reservation",
                f"Its reservation {name} has no window in the next {HORIZON.days} days.",
                ("reservation",),
            )
            for job_id, name in over.items()
        )
        return [gang for job_id, gang in memory.queue.items() if job_id not in over], never, left_out

    def _read_dependencies(self, changed: list[Row] | None) -> tuple[dict[int, list[str]], tuple[int, ...]]:
        """By waiting job the names of what it waits for, and the jobs that wait in vain."""
        query = (
            "SELECT job.id, after.name, after.state FROM jobs_job job"
            " JOIN jobs_dependency dependency ON dependency.job_id = job.id"
            " JOIN jobs_job after ON after.id = dependency.after_id"
            " WHERE job.state = %s AND after.state <> %s"
        )
        order = " ORDER BY job.id, after.id"
        if changed is None:
            rows = self.rows(query + order, State.QUEUED, State.SUCCEEDED)
        else:
            # What has succeeded stays so: only who waits still, or is new in the queue, can be waiting.
            ids = self.memory.dependent | {row[0] for row in changed if row[3] == State.QUEUED}
            rows = (
                self.rows(f"{query} AND job.id = ANY(%s){order}", State.QUEUED, State.SUCCEEDED, list(ids))
                if ids
                else []
            )
        waits: dict[int, list[str]] = defaultdict(list)
        never: set[int] = set()
        for job_id, name, state in rows:
            waits[job_id].append(name)
            if state in ENDED:
                never.add(job_id)
        return waits, tuple(sorted(never))

    # What runs

    def _read_allocations(self, changed: list[Row] | None) -> None:
        """Bring the open allocations up to date. Whoever changes what one holds writes its row too."""
        memory = self.memory
        held: dict[int, _Held] | None = None
        if changed is not None:
            job_ids = [row[0] for row in changed]
            rows = self.rows(
                f"SELECT {_ALLOCATION_COLUMNS} FROM jobs_allocation"  # noqa: S608 (words of our own)
                f" WHERE ended_at IS NULL AND (job_id = ANY(%s) OR {_WRITTEN_SINCE})",
                job_ids,
                memory.seen_below % 2**32,
            )
            still = {row[1] for row in rows}
            gone = {job_id for job_id in job_ids if job_id in memory.held and job_id not in still}
            ((n_open,),) = self.rows("SELECT count(*) FROM jobs_allocation WHERE ended_at IS NULL")
            if n_open == len(memory.held.keys() - gone | still):
                if not rows and not gone:
                    self._bind_held()
                    return
                held = {job_id: one for job_id, one in memory.held.items() if job_id not in gone}
        if held is None:
            rows = self.rows(
                f"SELECT {_ALLOCATION_COLUMNS} FROM jobs_allocation WHERE ended_at IS NULL"  # noqa: S608
            )
            held = {}
        self._read_missing([row[1] for row in rows if row[1] not in memory.jobs])
        placings = self._read_placings({row[0]: memory.jobs[row[1]].gang for row in rows})
        for row in rows:
            held[row[1]] = self._held(row, memory.jobs[row[1]], placings[row[0]])
        memory.held, memory.columns = dict(sorted(held.items(), key=lambda item: item[1].id)), None
        self._bind_held()

    def _held(self, row: Row, kept: _Kept, placing: Placing) -> _Held:
        """The one place where a row of `_ALLOCATION_COLUMNS` becomes a Running."""
        allocation_id, _, bound_s, started_s, desired, cap, grace_s, data_due_s, stop_s = row
        gang = kept.gang
        since_s = bound_s if started_s is None else started_s
        # One that waits for its data begins when that has come, at the latest.
        begins_s = data_due_s if started_s is None and data_due_s is not None else since_s
        ends_s = begins_s + gang.limit_s
        if gang.limit_s == inf:
            rate = relative_rate(gang, sizes_of(gang, placing)) if gang.is_elastic else 1.0
            ends_s = begins_s + gang.work_s / max(rate, 1e-6)
        is_leaving = desired == Desired.STOP
        if is_leaving and stop_s is not None:
            # It does not hold its devices to its limit any more: after the grace it is killed.
            ends_s = min(ends_s, stop_s + grace_s)
        devices: dict[int, float] = defaultdict(float)
        for share in placing:
            if share.devices:
                steps = len(share.devices) * share.share_steps
                devices[int(self.facility.kind[share.node])] += steps / SHARE_STEPS
        return _Held(
            id=allocation_id,
            bound_s=bound_s,
            grace_s=grace_s,
            running=Running(
                gang=gang,
                placing=placing,
                started_s=since_s,
                ends_s=ends_s,
                cap=cap,
                is_leaving=is_leaving,
            ),
            devices=tuple(devices.items()),
        )

    def _bind_held(self) -> None:
        """Bind what runs in a reservation to its window."""
        memory = self.memory
        new: dict[int, _Held] = {}
        for job_id in memory.booked:
            held = memory.held.get(job_id)
            if held is None:
                continue
            shape, running = self._shape_of(memory.jobs[job_id]), held.running
            if running.gang.shape is not shape:
                gang = replace(running.gang, shape=shape)
                new[job_id] = replace(held, running=replace(running, gang=gang))
        if new:
            memory.held, memory.columns = {**memory.held, **new}, None

    def columns(self) -> _Columns:
        if self.memory.columns is None:
            held = list(self.memory.held.values())
            parts = [
                (owner, one.running.gang.team, kind, devices)
                for owner, one in enumerate(held)
                for kind, devices in one.devices
            ]
            owner, team, kind, devices = zip(*parts, strict=True) if parts else ((), (), (), ())
            self.memory.columns = _Columns(
                running=tuple(one.running for one in held),
                ends_s=np.array([one.running.ends_s for one in held], dtype=np.float64),
                bound_s=np.array([one.bound_s for one in held], dtype=np.float64),
                owner=np.array(owner, dtype=np.int64),
                team=np.array(team, dtype=np.int64),
                kind=np.array(kind, dtype=np.int64),
                devices=np.array(devices, dtype=np.float64),
            )
        return self.memory.columns

    def running(self) -> tuple[Running, ...]:
        """What holds devices, by allocation."""
        columns = self.columns()
        late = np.flatnonzero(columns.ends_s <= self.at_s).tolist()
        if not late:
            return columns.running
        found, held = list(columns.running), list(self.memory.held.values())
        for position in late:
            # One that is over its time still holds its devices: count on them after the grace.
            ends_s = self.at_s + max(held[position].grace_s, 1.0)
            found[position] = replace(found[position], ends_s=ends_s)
        return tuple(found)

    def read_outside(self) -> Iterator[Running]:
        """Devices that somebody outside the ledger holds, as runs that nobody may move.

        Not those that the ledger has given to somebody as well: they are free for nobody anyway.
        """
        taken: set[tuple[int, int]] = set()
        for use_id, label, node_id, since_s, until_s, indices in self.rows(
            "SELECT use.id, use.label, use.node_id, extract(epoch FROM use.since_at)::float8,"
            " extract(epoch FROM use.until_at)::float8, array_agg(device.index ORDER BY device.index)"
            " FROM inventory_outsideuse use JOIN inventory_device device"
            " ON device.node_id = use.node_id AND device.index = ANY(use.device_indices)"
            " WHERE device.claimed_share = 0 GROUP BY use.id ORDER BY use.id"
        ):
            node = self.node_at.get(node_id)
            devices = tuple(index for index in indices if (node_id, index) not in taken)
            if node is None or not devices:
                continue
            taken.update((node_id, index) for index in devices)
            kind = int(self.facility.kind[node])
            shape = self.memory.shapes.setdefault(
                f"outside {kind} {len(devices)}", Shape((Ask(devices=len(devices), kinds=(kind,)),))
            )
            gang = Gang(
                id=OUTSIDE_ID - use_id, name=label, shape=shape, priority=_NOBODYS_PRIORITY, preemptible=False
            )
            ends_s = inf if until_s is None else max(until_s, self.at_s + 1.0)
            yield Running(gang, (Share(0, node, 1, devices),), started_s=since_s, ends_s=ends_s)

    def _read_placings(self, gang_of: Mapping[int, Gang]) -> dict[int, Placing]:
        shares: dict[int, list[Share]] = {allocation_id: [] for allocation_id in gang_of}
        for allocation_id, group, node_id, n_replicas, steps, devices in self.rows(
            "SELECT placement.allocation_id, placement.group_index, placement.node_id, placement.n_replicas,"
            " (claim.share * %s)::bigint, array_agg(device.index ORDER BY device.index)"
            " FROM jobs_placement placement LEFT JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id"
            " LEFT JOIN inventory_device device ON device.id = claim.device_id"
            " WHERE placement.allocation_id = ANY(%s) GROUP BY placement.id, claim.share"
            " ORDER BY placement.allocation_id, placement.group_index, placement.first_rank, placement.node_id",
            SHARE_STEPS,
            list(gang_of),
        ):
            node = self.node_at[node_id]
            asks = gang_of[allocation_id].shape.asks
            each = asks[group].share_steps if group < len(asks) else 0
            if steps is None:
                shares[allocation_id].append(Share(group, node, n_replicas, ()))
            elif each:
                shares[allocation_id] += [
                    Share(group, node, max(1, round(steps / each)), (device,), steps) for device in devices
                ]
            else:
                shares[allocation_id].append(Share(group, node, n_replicas, tuple(devices), steps))
        return {allocation_id: tuple(found) for allocation_id, found in shares.items()}

    def read_earmarks(self) -> tuple[Reserve, ...]:
        """Places that others give up for jobs which still wait, and those to which jobs move that still leave."""
        earmarks = []
        for job_id, shares in self.rows(
            "SELECT earmark.job_id, earmark.shares FROM scheduling_earmark earmark"
            " JOIN jobs_job job ON job.id = earmark.job_id"
            " WHERE job.state = ANY(%s) AND earmark.expires_at > %s ORDER BY earmark.made_at, earmark.job_id",
            list(KEEPS_ITS_EARMARK),
            self.at,
        ):
            placing = tuple(
                Share(group, self.node_at[node_id], n, tuple(devices), steps)
                for group, node_id, n, devices, steps in as_object(shares)
                if node_id in self.node_at
            )
            gang = self.memory.queue.get(job_id)
            if not placing or not self._still_suits(job_id, placing):
                continue
            # Freed devices do not wait for data that is not coming.
            if gang is None or self._is_near(gang, placing):
                earmarks.append(Reserve(job_id, self.at_s, placing))
        return tuple(earmarks)

    def _still_suits(self, job_id: int, placing: Placing) -> bool:
        """Whether a job could still go on in a place as it was kept: what it asks for may have been changed since,
        and nodes of the place may be gone."""
        kept = self.memory.jobs.get(job_id)
        if kept is None:
            return False
        asks = kept.gang.shape.asks
        if any(share.group >= len(asks) for share in placing):
            return False
        pairs = zip(sizes_of(kept.gang, placing), asks, strict=True)
        if not all(ask.least <= n <= ask.most for n, ask in pairs):
            return False
        kind = self.facility.kind
        return all(not share.devices or int(kind[share.node]) in asks[share.group].kinds for share in placing)

    # Use

    def read_use(self) -> datetime | None:
        """Decayed use of each team up to now: what is stored, and what was held since."""
        kind_at = {kind.id: position for position, kind in enumerate(self.facility.kinds)}
        half_life_s = self.policy.half_life_s
        stored = self.rows(
            "SELECT team_id, accelerator_type_id, decayed_device_s, extract(epoch FROM as_of_at)::float8"
            " FROM scheduling_teamuse"
        )
        since_s = max((row[3] for row in stored), default=None)
        use: dict[tuple[int, int], float] = defaultdict(float)
        for team_id, kind_id, device_s, as_of_s in stored:
            age_s = max(self.at_s - as_of_s, 0.0)
            use[self.team_at[team_id], kind_at[kind_id]] += device_s * 0.5 ** (age_s / half_life_s)
        self._add_use(use, since_s)
        for team_id, kind_id, devices, bound_s, ended_s in self.rows(
            "SELECT job.team_id, node.accelerator_type_id, sum(claim.share)::float8,"
            " extract(epoch FROM allocation.bound_at)::float8, extract(epoch FROM allocation.ended_at)::float8"
            " FROM jobs_allocation allocation JOIN jobs_job job ON job.id = allocation.job_id"
            " JOIN jobs_placement placement ON placement.allocation_id = allocation.id"
            " JOIN inventory_node node ON node.id = placement.node_id"
            " JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id"
            " WHERE allocation.ended_at > to_timestamp(%s)"
            " GROUP BY allocation.id, job.team_id, node.accelerator_type_id",
            since_s if since_s is not None else 0.0,
        ):
            key = self.team_at[team_id], kind_at[kind_id]
            use[key] += devices * _decayed_s(bound_s, ended_s, since_s, self.at_s, half_life_s)
        by_team: dict[int, dict[int, float]] = defaultdict(dict)
        for (team, kind), device_s in use.items():
            by_team[team][kind] = device_s
        self.teams = [
            replace(team, decayed_use_s=by_team[position]) if position in by_team else team
            for position, team in enumerate(self.teams)
        ]
        return instant(since_s) if since_s is not None else None

    def _add_use(self, use: dict[tuple[int, int], float], since_s: float | None) -> None:
        """Add what the open allocations held until now."""
        columns, n_kinds = self.columns(), len(self.facility.kinds)
        start_s = columns.bound_s if since_s is None else np.maximum(columns.bound_s, since_s)
        age_s = np.maximum(self.at_s - start_s, 0.0)
        rate = log(2) / self.policy.half_life_s
        held_s = -np.expm1(-rate * age_s) / rate  # as `_decayed_s`, up to now
        slots = columns.team * n_kinds + columns.kind
        size = len(self.teams) * n_kinds
        sums = np.bincount(slots, weights=held_s[columns.owner] * columns.devices, minlength=size)
        for slot in np.unique(slots).tolist():
            use[slot // n_kinds, slot % n_kinds] += float(sums[slot])


class _Ways:
    """How fast data sets could come to each place that has nodes; those that lie alike fare alike."""

    def __init__(
        self, rate_gib_per_s: Callable[[Collection[int], int], float | None], place_of: Mapping[int, int]
    ) -> None:
        self._rate, self._place_of = rate_gib_per_s, place_of
        self._known: dict[frozenset[int], dict[int, float | None]] = {}

    def rates(self, at: frozenset[int]) -> Mapping[int, float | None]:
        """GiB per second by place; None where there is no way."""
        if at not in self._known:
            self._known[at] = {place: self._rate(at, domain) for domain, place in self._place_of.items()}
        return self._known[at]

    def slowest(self) -> float:
        """The lowest of all rates asked for."""
        rates = [rate for found in self._known.values() for rate in found.values() if rate is not None]
        return min(rates, default=1.0)


def _decayed_s(
    from_s: float, until_s: float, since_s: float | None, now_s: float, half_life_s: float
) -> float:
    """Seconds from the later of `from_s` and `since_s` to `until_s`, each weighed by its age now.

    Source: the integral of 2^(-(now - t) / half-life) over that span.
    """
    start_s = from_s if since_s is None else max(from_s, since_s)
    until_s = min(until_s, now_s)
    if until_s <= start_s:
        return 0.0
    rate: float = log(2) / half_life_s
    recent, old = 0.5 ** ((now_s - until_s) / half_life_s), 0.5 ** ((now_s - start_s) / half_life_s)
    held_s: float = (recent - old) / rate
    return held_s


KEEPS_ITS_EARMARK: Final = (State.QUEUED.value, State.PREEMPTING.value)
_RULE_TABLES: Final = ("power_powerlimit", "teams_team", "scheduling_policysetting")


def rule_versions(cursor: Any, *, lock: bool = False) -> tuple[Row, ...]:
    """Digests of the versions of everything that sets limits: a plan is only as good as these.

    With `lock` none changes until the transaction ends. The tables are locked, not their rows: there are thousands,
    and who changes one waits but a moment.
    """
    if lock:
        cursor.execute(f"LOCK TABLE {', '.join(_RULE_TABLES)} IN SHARE MODE")
    cursor.execute(
        " UNION ALL ".join(
            f"SELECT '{table}', md5(string_agg(id || ':' || version, ',' ORDER BY id)) FROM {table}"  # noqa: S608
            for table in _RULE_TABLES
        )
    )
    return tuple(cursor.fetchall())


_N_CAPS: Final = 5  # under which a job may start, from full power down to the lowest


def _caps(curve: Sequence[Sequence[float]], tdp_w: float, step_w: float) -> tuple[tuple[float, float], ...]:
    """(cap as a share of TDP, throughput), the highest first."""
    of = Curve.coarse(curve, tdp_w=tdp_w, idle_w=0.0, step_w=step_w, settle_s=0.0, n_steps=_N_CAPS)
    return tuple((cap, of.rate(cap, tdp_w)) for cap in of.caps())


def _facility(kinds: Sequence[Row], domains: Sequence[Row], nodes: Sequence[Row]) -> Facility:
    kind_at = {row[0]: position for position, row in enumerate(kinds)}
    domain_at = {row[0]: position for position, row in enumerate(domains)}

    def integers(column: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.fromiter((row[column] for row in nodes), dtype=np.int64, count=len(nodes))

    def floats(column: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
        return np.fromiter(
            (inf if row[column] is None else row[column] for row in nodes), dtype=np.float64, count=len(nodes)
        )

    def positions(column: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        found = (NONE if row[column] is None else domain_at[row[column]] for row in nodes)
        return np.fromiter(found, dtype=np.int64, count=len(nodes))

    return Facility(
        kinds=tuple(Kind(*row) for row in kinds),
        domains=tuple(
            Domain(
                id=domain_id,
                name=name,
                kind=kind,
                parent=NONE if parent_id is None else domain_at[parent_id],
                limit_w=inf if limit_w is None else limit_w,
                overhead_fixed_w=fixed_w if kind == "facility" else 0.0,
                overhead_k=k if kind == "facility" else 1.0,
            )
            for domain_id, name, kind, parent_id, limit_w, fixed_w, k in domains
        ),
        node_id=integers(0),
        node_name=tuple(row[1] for row in nodes),
        kind=np.fromiter((kind_at[row[2]] for row in nodes), dtype=np.int64, count=len(nodes)),
        n_devices=integers(3),
        cpus=floats(4),
        memory_gib=floats(5),
        scale_up=positions(6),
        leaf=positions(7),
        power=positions(8),
        cooling=positions(9),
        storage=positions(10),
        idle_w=floats(11),
        speed=floats(12),
        cluster=integers(13),
    )

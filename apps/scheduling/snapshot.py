"""Reads everything a pass looks at, as of one instant, into plain values for the engine.

One repeatable-read transaction and a dozen queries, without model objects. What cannot have changed is not read
again: a process remembers the facility, each job by its version, and each allocation's placing.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf, log
from threading import RLock
from typing import Any, Final

import numpy as np
from django.db import connection, transaction

from apps.inventory.models import Health
from apps.jobs import intake
from apps.jobs.lifecycle import ENDED, State
from apps.jobs.models import Desired
from apps.jobs.spec import SHARE_STEPS, Asks, JobRequest
from apps.reservations.selectors import windows
from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    Booking,
    Domain,
    Facility,
    Gang,
    Kind,
    Placing,
    Policy,
    Running,
    Shape,
    Share,
    Snapshot,
    Team,
    Wait,
)
from apps.scheduling.selectors import current_policy

HORIZON: Final = timedelta(days=60)  # reservations further ahead do not matter yet
PREVIEW_ID: Final = 0  # id of a gang that is not in the ledger

Row = tuple[Any, ...]


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
    placing_of: Mapping[int, Placing]  # of open allocations, by job id


def seconds(at: datetime) -> float:
    """An instant on the engine's axis."""
    return at.timestamp()


def instant(at_s: float) -> datetime | None:
    """An instant of the engine's axis; None where there is none, or none that a calendar knows."""
    if not -1e11 < at_s < 1e11:
        return None
    return datetime.fromtimestamp(at_s, UTC)


def take_snapshot(at: datetime, *, candidates: Sequence[JobRequest] = ()) -> Taken:
    """Read one consistent picture.

    Args:
        candidates: Jobs that are not in the ledger but are to be looked at as if they had just been submitted.
    """
    # Inside somebody's transaction the picture is that transaction's; its isolation can no longer be chosen.
    is_nested = connection.in_atomic_block
    with _memory.lock, transaction.atomic(), connection.cursor() as cursor:
        if not is_nested:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _Reader(cursor, _memory, at).read(candidates)


def read_facility(at: datetime) -> tuple[Facility, tuple[Team, ...], "Names"]:
    """The facility and the teams alone, for proofs about the empty facility."""
    with _memory.lock, transaction.atomic(), connection.cursor() as cursor:
        reader = _Reader(cursor, _memory, at)
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
            required=group.topology.required if group.topology else None,
            preferred=group.topology.preferred if group.topology else None,
            peak_w=peak_w,
            power_w=group.power_w,
            n_min=group.min_replicas if group.is_elastic else None,
            n_max=group.max_replicas if group.is_elastic else None,
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
        )


class _Memory:
    """What a process remembers between snapshots. Positions are good for one set of kinds, nodes and teams."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.facility_rows: tuple[Any, ...] | None = None
        self.facility: Facility | None = None
        self.clear(())

    def clear(self, positions: tuple[Any, ...]) -> None:
        self.positions = positions
        self.shapes: dict[str, Shape] = {}
        self.gangs: dict[int, tuple[int, Gang]] = {}
        self.placings: dict[int, Placing] = {}


_memory = _Memory()


def forget() -> None:
    """Remember nothing: another database is behind the connection now."""
    with _memory.lock:
        _memory.facility_rows = _memory.facility = None
        _memory.clear(())


_GANG_COLUMNS: Final = """
    job.id, job.version, job.name, job.shape, job.team_id, job.user_id, job.priority,
    extract(epoch FROM job.submitted_at)::float8, job.time_limit_s, job.runtime_s, job.ran_s, job.lost_s,
    extract(epoch FROM job.not_before_at)::float8, extract(epoch FROM job.retry_at)::float8,
    extract(epoch FROM job.deadline_at)::float8, job.is_held, job.array_id, arr.max_running,
    job.spec->>'reservation', job.spec->>'preemptible' IS DISTINCT FROM 'false'
"""


class _Reader:
    """Reads one picture, within the transaction of its cursor."""

    def __init__(self, cursor: Any, memory: _Memory, at: datetime) -> None:
        self.cursor, self.memory, self.at, self.at_s = cursor, memory, at, seconds(at)
        self.policy = Policy()
        self.bookings: tuple[Booking, ...] = ()
        self._over: dict[int, str] = {}  # by job, the reservation it names and that has no window any more

    def rows(self, query: str, *parameters: Any) -> list[Row]:
        self.cursor.execute(query, parameters)
        found: list[Row] = self.cursor.fetchall()
        return found

    def read(self, candidates: Sequence[JobRequest]) -> Taken:
        ((seen, seen_below),) = self.rows(
            "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        )
        self.policy = current_policy()
        self.read_facility()
        self.read_teams()
        self.read_bookings()
        running, placing_of = self.read_running()
        waiting, never_satisfied, left_out = self.read_queue()
        use_since = self.read_use(running)
        names = self.names()
        preview = [
            replace(names.gang_of(request, at_s=self.at_s), id=PREVIEW_ID - number, sequence=2**62 + number)
            for number, request in enumerate(candidates)
        ]
        snapshot = Snapshot(
            now_s=self.at_s,
            facility=self.facility,
            is_usable=self.is_usable,
            is_failed=self.is_failed,
            running=tuple(running),
            queue=(*waiting, *preview),
            teams=tuple(self.teams),
            bookings=self.bookings,
            quota_is_checked=bool(self.teams),
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
            gangs={gang.id: gang for gang in waiting},
            placing_of=placing_of,
        )

    # The facility

    def read_facility(self) -> None:
        kinds = self.rows(
            "SELECT id, name, memory_gib, tdp_w, idle_w, speed FROM inventory_acceleratortype ORDER BY id"
        )
        domains = self.rows(
            "SELECT domain.id, domain.name, domain.kind, domain.parent_id, least(power.limit_w, power.hard_limit_w),"
            " coalesce(power.overhead_fixed_w, 0), coalesce(power.overhead_k, 1) FROM inventory_domain domain"
            " LEFT JOIN power_powerlimit power ON power.domain_id = domain.id ORDER BY domain.id"
        )
        self.clusters = self.rows("SELECT id, name, backend, is_enabled FROM inventory_cluster ORDER BY id")
        nodes = self.rows(
            "SELECT id, name, accelerator_type_id, n_devices, cpus, memory_gib, scale_up_id, leaf_id, power_id,"
            " cooling_id, storage_id, idle_w, speed, cluster_id FROM inventory_node ORDER BY id"
        )
        states = self.rows(
            "SELECT health, extract(epoch FROM cooldown_until_at)::float8 FROM inventory_node ORDER BY id"
        )
        # Rows that are equal give the same Facility object: what the engine derived from it stays good.
        if self.memory.facility is None or self.memory.facility_rows != (kinds, domains, nodes):
            self.memory.facility = _facility(kinds, domains, nodes)
            self.memory.facility_rows = (kinds, domains, nodes)
        self.facility = self.memory.facility
        self.node_at = {row[0]: position for position, row in enumerate(nodes)}
        enabled = {row[0] for row in self.clusters if row[3]}
        self.is_usable = np.fromiter(
            (
                health == Health.HEALTHY and (until is None or until <= self.at_s) and node[13] in enabled
                for node, (health, until) in zip(nodes, states, strict=True)
            ),
            dtype=np.bool_,
            count=len(nodes),
        )
        self.is_failed = np.fromiter(
            (health == Health.FAILED for health, _ in states), dtype=np.bool_, count=len(nodes)
        )
        self.cooldown_s = [until for _, until in states if until is not None and until > self.at_s]
        self._positions: tuple[Any, ...] = (
            kinds,
            self.clusters,
            [(row[0], row[2], row[13]) for row in nodes],
        )

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
        if positions != self.memory.positions:
            self.memory.clear(positions)

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

    def names(self) -> Names:
        kind, cluster = self.facility.kind.tolist(), self.facility.cluster.tolist()
        simulated = {row[0] for row in self.clusters if row[2] == "simulated"}
        booking_at: dict[str, int] = {}
        for position, booking in enumerate(self.bookings):
            # Of a reservation that repeats, the window that is open or comes first.
            booking_at.setdefault(booking.name, position)
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
            booking_at=booking_at,
        )

    # Jobs

    def gangs_of(self, versions: Iterable[tuple[int, int]]) -> dict[int, Gang]:
        """The gangs of these jobs; what is remembered in this version is not read again."""
        known = self.memory.gangs
        found: dict[int, Gang] = {}
        missing: list[int] = []
        for job_id, version in versions:
            kept = known.get(job_id)
            if kept is not None and kept[0] == version:
                found[job_id] = kept[1]
            else:
                missing.append(job_id)
        if missing:
            found.update(self._read_gangs(missing))
        return found

    def _read_gangs(self, job_ids: list[int]) -> dict[int, Gang]:
        rows = self.rows(
            f"SELECT {_GANG_COLUMNS}"  # noqa: S608 (columns of our own)
            " FROM jobs_job job LEFT JOIN jobs_jobarray arr ON arr.id = job.array_id"
            " WHERE job.id = ANY(%s)",
            job_ids,
        )
        self._read_shapes({row[3]: row[0] for row in rows if row[3] not in self.memory.shapes})
        booking_at = {
            booking.name: position for position, booking in reversed(list(enumerate(self.bookings)))
        }
        found = {}
        for row in rows:
            gang = self._gang(row, booking_at)
            found[gang.id] = gang
            if row[18] is None:
                # Positions of bookings move with the windows: a job that names one is read anew each time.
                self.memory.gangs[gang.id] = (row[1], gang)
        return found

    def _gang(self, row: Row, booking_at: Mapping[str, int]) -> Gang:
        (job_id, _, name, shape_key, team_id, user_id, priority, submitted_s, limit_s, runtime_s, ran_s, lost_s,
         not_before_s, retry_s, deadline_s, is_held, array_id, array_max, reservation, preemptible) = row  # fmt: skip
        shape = self.memory.shapes[shape_key]
        if reservation is not None:
            shape = self._shape_in(shape_key, booking_at.get(reservation, NONE))
            if reservation not in booking_at:
                self._over[job_id] = reservation
        left_s = inf if limit_s is None else max(limit_s - ran_s, 1.0)
        work_s = inf
        if limit_s is None and runtime_s is not None:
            work_s = max(runtime_s - max(ran_s - lost_s, 0.0), 1.0)
        return Gang(
            id=job_id,
            name=name,
            shape=shape,
            team=self.team_at[team_id],
            user=user_id,
            priority=priority,
            submitted_s=submitted_s,
            sequence=job_id,
            limit_s=left_s,
            work_s=work_s,
            not_before_s=-inf if not_before_s is None else not_before_s,
            retry_s=-inf if retry_s is None else retry_s,
            deadline_s=inf if deadline_s is None else deadline_s,
            is_held=is_held,
            preemptible=preemptible,
            array=NONE if array_id is None else array_id,
            array_max=array_max or 0,
        )

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
            request = intake.request_of(_as_object(spec))
            shape = names.shape_of(request, is_runnable=is_runnable, cluster_id=cluster_id)
            self.memory.shapes[shape_key] = replace(shape, reservation=NONE)

    def _shape_in(self, shape_key: str, booking: int) -> Shape:
        """The shape bound to this window; one object a window, so that failures are remembered."""
        key = f"{shape_key}@{booking}"
        shape = self.memory.shapes.get(key)
        if shape is None:
            shape = self.memory.shapes[key] = replace(self.memory.shapes[shape_key], reservation=booking)
        return shape

    def read_queue(self) -> tuple[list[Gang], tuple[int, ...], tuple[Wait, ...]]:
        versions = self.rows("SELECT id, version FROM jobs_job WHERE state = %s ORDER BY id", State.QUEUED)
        gangs = self.gangs_of(versions)
        self._forget_others(gangs)
        waits: dict[int, list[str]] = defaultdict(list)
        never: set[int] = set()
        for job_id, name, state in self.rows(
            "SELECT job.id, after.name, after.state FROM jobs_job job"
            " JOIN jobs_dependency dependency ON dependency.job_id = job.id"
            " JOIN jobs_job after ON after.id = dependency.after_id"
            " WHERE job.state = %s AND after.state <> %s ORDER BY job.id, after.id",
            State.QUEUED,
            State.SUCCEEDED,
        ):
            waits[job_id].append(name)
            if state in ENDED:
                never.add(job_id)
        waiting = [gangs[job_id] for job_id, _ in versions]
        if waits:
            waiting = [
                replace(gang, waits_for=tuple(waits[gang.id])) if gang.id in waits else gang
                for gang in waiting
            ]
        left_out = tuple(
            Wait(
                gang.id,
                "reservation",
                f"Its reservation {self._over[gang.id]} has no window in the next {HORIZON.days} days.",
                ("reservation",),
            )
            for gang in waiting
            if gang.id in self._over
        )
        if left_out:
            waiting = [gang for gang in waiting if gang.id not in self._over]
        return waiting, tuple(sorted(never)), left_out

    def _forget_others(self, queued: Mapping[int, Gang]) -> None:
        # Ended jobs would pile up for as long as the process lives.
        if len(self.memory.gangs) > 2 * (len(queued) + len(self._running_jobs)) + 1000:
            alive = queued.keys() | self._running_jobs
            self.memory.gangs = {
                job_id: kept for job_id, kept in self.memory.gangs.items() if job_id in alive
            }

    def read_running(self) -> tuple[list[Running], dict[int, Placing]]:
        rows = self.rows(
            "SELECT allocation.id, allocation.job_id, job.version, extract(epoch FROM allocation.bound_at)::float8,"
            " extract(epoch FROM allocation.observed_started_at)::float8, allocation.desired_state,"
            " allocation.desired_power_cap_share, allocation.grace_s"
            " FROM jobs_allocation allocation JOIN jobs_job job ON job.id = allocation.job_id"
            " WHERE allocation.ended_at IS NULL ORDER BY allocation.id"
        )
        self._running_jobs = {row[1] for row in rows}
        gangs = self.gangs_of((row[1], row[2]) for row in rows)
        known = self.memory.placings
        placings = {row[0]: known[row[0]] for row in rows if row[0] in known}
        missing = {row[0]: gangs[row[1]] for row in rows if row[0] not in placings}
        if missing:
            placings.update(self._read_placings(missing))
        self.memory.placings = placings
        running = []
        for allocation_id, job_id, _, bound_s, started_s, desired, cap, grace_s in rows:
            gang = gangs[job_id]
            since_s = bound_s if started_s is None else started_s
            ends_s = since_s + (gang.limit_s if gang.limit_s != inf else gang.work_s)
            running.append(
                Running(
                    gang=gang,
                    placing=placings[allocation_id],
                    started_s=since_s,
                    # One that is over its time still holds its devices: count on them after the grace.
                    ends_s=ends_s if ends_s > self.at_s else self.at_s + max(grace_s, 1.0),
                    cap=cap,
                    is_leaving=desired == Desired.STOP,
                )
            )
        self._bound = [(row[0], row[1], row[3]) for row in rows]
        return running, {row[1]: placings[row[0]] for row in rows}

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

    # Use

    def read_use(self, running: Sequence[Running]) -> datetime | None:
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
        for item, (_, _, bound_s) in zip(running, self._bound, strict=True):
            self._add_use(use, item.gang.team, item.placing, item.gang.shape, bound_s, self.at_s, since_s)
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

    def _add_use(
        self,
        use: dict[tuple[int, int], float],
        team: int,
        placing: Placing,
        shape: Shape,
        bound_s: float,
        until_s: float,
        since_s: float | None,
    ) -> None:
        held_s = _decayed_s(bound_s, until_s, since_s, self.at_s, self.policy.half_life_s)
        for share in placing:
            if share.devices:
                kind = int(self.facility.kind[share.node])
                use[team, kind] += held_s * len(share.devices) * share.share_steps / SHARE_STEPS


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


_RULE_VERSIONS: Final = (
    "SELECT 'limit', id, version FROM power_powerlimit ORDER BY id",
    "SELECT 'team', id, version FROM teams_team ORDER BY id",
    "SELECT 'policy', id, version FROM scheduling_policysetting ORDER BY id",
)


def rule_versions(cursor: Any, *, lock: bool = False) -> tuple[Row, ...]:
    """Versions of everything that sets limits: a plan is only as good as these. With `lock` none changes meanwhile."""
    found: list[Row] = []
    for query in _RULE_VERSIONS:
        cursor.execute(f"{query} FOR SHARE" if lock else query)
        found += cursor.fetchall()
    return tuple(found)


def _as_object(value: Any) -> Mapping[str, Any]:
    # Django loads JSON columns itself and has the driver hand them over as text.
    loaded: Mapping[str, Any] = json.loads(value) if isinstance(value, str | bytes) else value
    return loaded


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

"""The present as a scenario: what stands, runs and waits now, as plain values that a scenario file could hold.

Built on the planner's own snapshot, so that a simulation begins from what the next pass would see. Second 0 is now.
How long a job will run nobody knows; in this order it is taken from what the job declares, from what its owner's last
jobs took, from its limit. What cannot be said in a scenario is left out or rounded, and named in `Assumptions`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from math import inf, isfinite
from typing import Any, Final

from django.db import connection, transaction

from apps.core.errors import InvalidInput
from apps.inventory.models import Health
from apps.jobs.lifecycle import State
from apps.jobs.models import Dependency, Job
from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import NONE, Facility, Gang, Policy, Running, Share
from apps.scheduling.engine.predict import predicted_s
from apps.scheduling.engine.sizes import Sizes, may_resize, relative_rate, sizes_of
from apps.scheduling.snapshot import OUTSIDE_ID, Taken, take_snapshot

UNKNOWN_S: Final = 3600.0  # a job of which nothing at all is known
ITSELF: Final = " (itself)"  # of a team with sub-teams, the leaf that has its own jobs
_LEAST_S: Final = 1.0  # a job that runs has at least so much ahead
_LONGEST_S: Final = 1e9

Row = dict[str, Any]

# What a scenario says of a job in the very words of its request.
_SAME_WORDS: Final = ("flexibility", "checkpoint", "scaling")
_SAME_WORDS_OF_GROUPS: Final = (
    "replicas",
    "devices",
    "cpus",
    "memory_gib",
    "topology",
    "spread",
    "power_w",
    "peak_w",
)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """Which job of the ledger a job of the scenario is."""

    id: int
    name: str
    team: str
    is_running: bool
    waited_s: float  # since its submission, up to now
    run_time_from: str  # declared, history, limit, unknown


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job that the scenario lacks."""

    id: int
    name: str
    why: str


@dataclass(frozen=True)
class Assumptions:
    """What the scenario takes for granted."""

    run_times: Mapping[str, int] = field(default_factory=dict)  # jobs by where their run time is from
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()  # what a scenario cannot say


@dataclass(frozen=True)
class LiveScenario:
    """The present as a scenario."""

    at: datetime
    scenario: Row
    jobs: Mapping[str, LiveJob]  # by name in the scenario
    assumptions: Assumptions


def live_scenario(at: datetime, *, clusters: Collection[str] = ()) -> LiveScenario:
    """The present as a scenario.

    Args:
        clusters: Only the nodes and jobs of these; none: all. Raises InvalidInput for one that is not there.
    """
    is_nested = connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if not is_nested:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        taken = take_snapshot(at)
        known = {name: id for id, name in taken.cluster_name.items()}
        for name in clusters:
            if name not in known:
                raise InvalidInput.of("clusters", f"no cluster is named {name!r}", "unknown_cluster")
        only = frozenset(known[name] for name in clusters) or frozenset(taken.cluster_name)
        return _Teller(taken, _Records(cursor, taken), only).tell()


# What the snapshot does not say ------------------------------------------------------------------------------------


class _Records:
    """Rows that the planner does not look at."""

    def __init__(self, cursor: Any, taken: Taken) -> None:
        snapshot = taken.snapshot
        gangs = [*snapshot.queue, *(run.gang for run in snapshot.running)]
        self.types = self._types(cursor)
        cursor.execute(
            "SELECT domain_id, ramp_up_w_per_s FROM power_powerlimit WHERE ramp_up_w_per_s IS NOT NULL"
        )
        self.ramp_w_per_s: dict[int, float] = dict(cursor.fetchall())
        cursor.execute(
            "SELECT id, extract(epoch FROM cooldown_until_at)::float8 FROM inventory_node"
            " WHERE health = %s AND cooldown_until_at > %s",
            [Health.HEALTHY, taken.at],
        )
        self.cools_until_s: dict[int, float] = dict(cursor.fetchall())
        columns = ("id", "spec", "runtime_s", "ran_s", "worked_s", "user_id", "array__max_running")
        self.jobs: dict[int, Row] = {
            row["id"]: row
            for ids in _batched([gang.id for gang in gangs])
            for row in Job.objects.filter(pk__in=ids).values(*columns)
        }
        self.after: dict[int, list[int]] = defaultdict(list)
        unmet = Dependency.objects.filter(job__state=State.QUEUED).exclude(after__state=State.SUCCEEDED)
        for job_id, after_id in unmet.order_by("id").values_list("job_id", "after_id"):
            self.after[job_id].append(after_id)

    @staticmethod
    def _types(cursor: Any) -> dict[int, Row]:
        cursor.execute(
            "SELECT id, power_curve::text, cap_step_w, cap_settle_s FROM inventory_acceleratortype"
        )
        return {row[0]: {"curve": row[1], "cap_step_w": row[2], "cap_settle_s": row[3]} for row in cursor}


def _batched(ids: Sequence[int], size: int = 10_000) -> Iterator[Sequence[int]]:
    for first in range(0, len(ids), size):
        yield ids[first : first + size]


# Telling -----------------------------------------------------------------------------------------------------------


class _Teller:
    """Says a snapshot in the words of a scenario."""

    def __init__(self, taken: Taken, records: _Records, clusters: frozenset[int]) -> None:
        self.taken, self.records, self.clusters = taken, records, clusters
        self.snapshot = taken.snapshot
        self.facility: Facility = self.snapshot.facility
        self.now_s = self.snapshot.now_s
        self.notes: list[str] = []
        self.left_out: list[LeftOut] = []
        self.jobs: dict[str, LiveJob] = {}
        in_cluster = [int(cluster) in clusters for cluster in self.facility.cluster.tolist()]
        self.is_in = [
            there and n_devices > 0
            for there, n_devices in zip(in_cluster, self.facility.n_devices.tolist(), strict=True)
        ]
        self.kinds_in = {
            int(kind) for kind, there in zip(self.facility.kind.tolist(), self.is_in, strict=True) if there
        }

    def tell(self) -> LiveScenario:
        run_times: Counter[str] = Counter()
        self.reservations = self._reservations()
        rows, events = self._job_rows(run_times)
        scenario = {
            "facility": self._facility(),
            "teams": self._teams(),
            "datasets": self._datasets(),
            "reservations": list(self.reservations.values()),
            "jobs": rows,
            "events": [*self._node_events(), *self._limit_events(), *events],
            "policy": self._policy(),
        }
        self._note_what_is_rounded()
        assumptions = Assumptions(dict(sorted(run_times.items())), tuple(self.left_out), tuple(self.notes))
        return LiveScenario(self.taken.at, scenario, self.jobs, assumptions)

    # The facility

    def _facility(self) -> Row:
        f = self.facility
        sites = {(d.overhead_fixed_w, d.overhead_k) for d in f.domains if d.kind == "facility"}
        if len(sites) > 1:
            self.notes.append("Sites with overheads of their own: that of the first is taken for all.")
        fixed_w, k = next(
            ((d.overhead_fixed_w, d.overhead_k) for d in f.domains if d.kind == "facility"), (0.0, 1.0)
        )
        if k < 1:
            self.notes.append("An overhead below 1 x IT load is taken as 1.")
        return {
            "accelerator_types": [self._type(position) for position in range(len(f.kinds))],
            "domains": [self._domain(position) for position in range(len(f.domains))],
            "nodes": [self._node(position) for position, there in enumerate(self.is_in) if there],
            "overhead_fixed_w": fixed_w,
            "overhead_k": max(k, 1.0),
            "staging_gib_per_s": self.snapshot.staging_gib_per_s,
        }

    def _type(self, position: int) -> Row:
        kind = self.facility.kinds[position]
        record = self.records.types.get(kind.id, {})
        row = {
            "name": kind.name,
            "memory_gib": kind.memory_gib,
            "tdp_w": kind.tdp_w,
            "idle_w": kind.idle_w,
            "speed": kind.speed,
        }
        row |= {key: record[key] for key in ("cap_step_w", "cap_settle_s") if key in record}
        curve = _curve(record.get("curve"))
        return row | ({"power_curve": curve} if curve else {})

    def _domain(self, position: int) -> Row:
        domain = self.facility.domains[position]
        row: Row = {"name": domain.name, "kind": domain.kind}
        if domain.parent != NONE and domain.kind != "cooling":
            row["parent"] = self.facility.domains[domain.parent].name
        if domain.limit_w != inf:
            row["power_limit_w"] = domain.limit_w
        if domain.id in self.records.ramp_w_per_s:
            row["ramp_up_w_per_s"] = self.records.ramp_w_per_s[domain.id]
        return row

    def _node(self, position: int) -> Row:
        f = self.facility
        row: Row = {
            "name": f.node_name[position],
            "accelerator": f.kinds[int(f.kind[position])].name,
            "devices": int(f.n_devices[position]),
            "idle_w": float(f.idle_w[position]),
            "speed": float(f.speed[position]),
        }
        for name in ("cpus", "memory_gib"):
            amount = float(getattr(f, name)[position])
            if amount != inf:
                row[name] = amount
        for name in ("leaf", "scale_up", "power", "cooling", "storage"):
            domain = int(getattr(f, name)[position])
            if domain != NONE:
                row[name] = f.domains[domain].name
        return row

    def _node_events(self) -> list[Row]:
        """Nodes that take no work: failed ones are down, all others do what runs on them to its end."""
        events = []
        for position, there in enumerate(self.is_in):
            if not there or self.snapshot.is_usable[position]:
                continue
            what = "node_fail" if self.snapshot.is_failed[position] else "node_drain"
            node = self.facility.node_name[position]
            events.append({"t": 0, "type": what, "node": node})
            until_s = self.records.cools_until_s.get(int(self.facility.node_id[position]))
            if until_s is not None:
                events.append({"t": until_s - self.now_s, "type": "node_recover", "node": node})
        return events

    def _limit_events(self) -> list[Row]:
        return [
            {
                "t": max(0.0, change.at_s - self.now_s),
                "type": "set_power_limit",
                "domain": self.facility.domains[change.domain].name,
                "power_limit_w": None if change.limit_w == inf else change.limit_w,
            }
            for change in self.snapshot.limit_changes
        ]

    def _datasets(self) -> list[Row]:
        """Where they lie and to where they are on their way; also to where they are sent again later."""
        domains = self.facility.domains
        rows = []
        for dataset in self.snapshot.datasets:
            row: Row = {
                "name": dataset.name,
                "size_gib": dataset.size_gib,
                "at": [domains[place].name for place in sorted(dataset.at)],
            }
            arriving = {
                domains[place].name: max(0.0, arrives_s - self.now_s)
                for place, arrives_s in sorted(dataset.arrives_s.items())
                if arrives_s != inf
            }
            rows.append(row | ({"arriving": arriving} if arriving else {}))
        return rows

    # Teams, reservations, policy

    @cached_property
    def parents_with_jobs(self) -> frozenset[int]:
        """Teams with sub-teams that have jobs of their own."""
        parents = {team.parent for team in self.snapshot.teams} - {NONE}
        gangs = [*self.snapshot.queue, *(run.gang for run in self.snapshot.running)]
        return frozenset(parents & {gang.team for gang in gangs})

    def _teams(self) -> list[Row]:
        """The tree; of a team with sub-teams, jobs of its own and what it kept back go to a leaf below it."""
        names = [kind.name for kind in self.facility.kinds]
        split = self.parents_with_jobs
        rows = []
        for position, team in enumerate(self.snapshot.teams):
            row: Row = {"name": team.name, "weight": team.weight}
            if team.parent != NONE:
                row["parent"] = self.snapshot.teams[team.parent].name
            own: Row = {
                "quota": {names[kind]: amount for kind, amount in team.entitlement.items()},
                "used": {names[kind]: use for kind, use in team.decayed_use_s.items() if use > 0},
            }
            bounds = {
                "borrow_limit": {names[kind]: amount for kind, amount in team.borrow_limit.items()},
                "lend_limit": {names[kind]: amount for kind, amount in team.lend_limit.items()},
            }
            if position in split:
                rows += [row | bounds, {"name": self._leaf_name(position), "parent": team.name} | own]
            else:
                rows.append(row | own | bounds)
        return rows

    def _leaf_name(self, position: int) -> str:
        name = self.snapshot.teams[position].name
        if position not in self.parents_with_jobs:
            return name
        return name[: 120 - len(ITSELF)] + ITSELF

    def _reservations(self) -> dict[int, Row]:
        """By the position of their booking."""
        rows = {}
        for position, booking in enumerate(self.snapshot.bookings):
            nodes = [self.facility.node_name[node] for node in booking.nodes if self.is_in[node]]
            row: Row = {
                "name": self._booking_name(position),
                "start": max(0.0, booking.start_s - self.now_s),
                "end": booking.end_s - self.now_s,
                "teams": [self.snapshot.teams[team].name for team in sorted(booking.teams)],
                "flexible": booking.is_flexible,
            }
            if booking.kind != NONE:
                row |= {
                    "accelerator": self.facility.kinds[booking.kind].name,
                    "devices": booking.n_devices,
                    **({"within": booking.within} if booking.within else {}),
                }
            elif nodes:
                row["nodes"] = nodes
            else:
                continue
            if row["end"] > row["start"]:
                rows[position] = row
        return rows

    def _booking_name(self, position: int) -> str:
        """Windows of one reservation are told apart by their number."""
        name = self.snapshot.bookings[position].name
        earlier = sum(booking.name == name for booking in self.snapshot.bookings[:position])
        return f"{name[:110]} ({earlier + 1})" if earlier else name

    def _policy(self) -> Row:
        policy, row = self.taken.policy, {}
        row["backfill_depth"] = "all" if policy.backfill_depth is None else policy.backfill_depth
        row["order"] = policy.order
        waiting = ("starving_s", "starving_by_width") if policy.order == "shortest" else ()
        for name in ("preemption", "packing", "shield_s", "resize_dwell_s", "staging_hold_s", *waiting):
            value = getattr(policy, name)
            if isinstance(value, bool) or isfinite(value):
                row[name] = value
        usual = Policy()
        told = {*row, "explain", "resizes_by_restart"}  # that is said job by job
        other = [
            item.name
            for item in fields(Policy)
            if item.name not in told and getattr(policy, item.name) != getattr(usual, item.name)
        ]
        if other:
            self.notes.append(f"Of the policy a scenario cannot say: {', '.join(other)}.")
        return row

    # Jobs

    def _job_rows(self, run_times: "Counter[str]") -> tuple[list[Row], list[Row]]:
        rows, events = [], []
        self.name_of: dict[int, str] = {}
        queue = self._those_that_count()
        for gang in (*(run.gang for run in self.snapshot.running), *queue):
            self.name_of[gang.id] = f"{gang.name[:100]} #{gang.id}"
        for run in self.snapshot.running:
            if run.gang.id <= OUTSIDE_ID:
                self.left_out.append(LeftOut(run.gang.id, run.gang.name, "it is no job of ours"))
                continue
            if not all(self.is_in[share.node] for share in run.placing):
                self.left_out.append(LeftOut(run.gang.id, run.gang.name, "it runs on other nodes"))
                continue
            row, source = self._running(run)
            rows.append(row)
            run_times[source] += 1
            if run.is_leaving:
                leaves_s = max(_LEAST_S, run.ends_s - self.now_s)  # the rest of its grace
                events.append({"t": leaves_s, "type": "cancel", "job": row["name"]})
        for gang in queue:
            row, source = self._waiting(gang)
            rows.append(row)
            run_times[source] += 1
        return rows, events

    def _those_that_count(self) -> list[Gang]:
        """Waiting jobs that could ever start here; of the others it is said why not."""
        out: dict[int, str] = {}
        for job_id in self.taken.never_satisfied:
            out[job_id] = "a job it waits for did not end well"
        for gang in self.snapshot.queue:
            if gang.id in out:
                continue
            if gang.is_held:
                out[gang.id] = "it is held"
            elif gang.shape.cluster not in (NONE, *self.clusters):
                out[gang.id] = "it is for another cluster"
            elif gang.shape.reservation not in (NONE, *self.reservations):
                out[gang.id] = "its reservation is of other nodes"
            elif any(not self.kinds_in.intersection(ask.kinds) for ask in gang.shape.asks):
                out[gang.id] = "no node here has an accelerator type that it accepts"
        held = {run.gang.id for run in self.snapshot.running}
        in_queue = {gang.id for gang in self.snapshot.queue}
        is_growing = True
        while is_growing:
            is_growing = False
            for job_id, before in self.records.after.items():
                lacks = [b for b in before if b in out or (b not in held and b not in in_queue)]
                if job_id in in_queue and job_id not in out and lacks:
                    out[job_id] = f"it waits for job {lacks[0]}, which is left out"
                    is_growing = True
        names = {gang.id: gang.name for gang in self.snapshot.queue}
        self.left_out += [
            LeftOut(job_id, names[job_id], why) for job_id, why in sorted(out.items()) if job_id in names
        ]
        for wait in self.taken.left_out:
            lacking = self.taken.gangs.get(wait.job_id)
            self.left_out.append(
                LeftOut(wait.job_id, lacking.name if lacking else "", "its reservation is over")
            )
        return [gang for gang in self.snapshot.queue if gang.id not in out]

    def _running(self, run: Running) -> tuple[Row, str]:
        since_s = max(0.0, self.now_s - run.started_s)
        sizes = sizes_of(run.gang, run.placing)
        rate = relative_rate(run.gang, sizes)
        keeps = self._keeps_its_size(run.gang)
        # One that keeps its size is told as if that were the one that it prefers.
        pace = self._pace(run) * (1.0 if keeps else rate)
        runtime_s, source = self._run_time(run.gang, max(pace, 1e-6), since_s, rate if keeps else 1.0)
        row = self._row(run.gang, sizes if keeps else None) | {
            "runtime": runtime_s,
            "running": {
                "since": since_s,
                "placement": [self._placed(run.gang, share) for share in run.placing],
            },
        }
        if run.gang.limit_s != inf:
            # One that is over its limit still holds its devices, as long as the planner counts on.
            lasts_s = run.ends_s - run.started_s
            if run.is_leaving:  # that ends it by an event of its own
                lasts_s = max(run.gang.limit_s, lasts_s + _LEAST_S)
            row["time_limit"] = max(lasts_s, since_s + _LEAST_S)
        self._note_job(row["name"], run.gang, source, is_running=True)
        return row, source

    def _waiting(self, gang: Gang) -> tuple[Row, str]:
        kinds = self.facility.kinds
        accepted = [kind for kind in gang.shape.asks[0].kinds if kind in self.kinds_in]
        holds = any(ask.devices or ask.share_steps for ask in gang.shape.asks)
        # By the clock a job was seen to run so long, or may: how much work that is depends on the type it gets.
        pace = min((kinds[kind].speed for kind in accepted), default=1.0) if holds else 1.0
        runtime_s, source = self._run_time(gang, pace, None)
        row = self._row(gang) | {"runtime": runtime_s}
        if gang.limit_s != inf:
            row["time_limit"] = max(gang.limit_s, _LEAST_S)
        not_before_s = max(gang.not_before_s, gang.retry_s) - self.now_s
        if not_before_s > 0:
            row["not_before"] = not_before_s
        after = [self.name_of[b] for b in self.records.after.get(gang.id, ()) if b in self.name_of]
        if after:
            row["after"] = after
        self._note_job(row["name"], gang, source, is_running=False)
        return row, source

    def _note_job(self, name: str, gang: Gang, source: str, *, is_running: bool) -> None:
        team = self.snapshot.teams[gang.team].name if gang.team != NONE else ""
        waited_s = max(0.0, self.now_s - gang.submitted_s)
        self.jobs[name] = LiveJob(gang.id, gang.name, team, is_running, waited_s, source)

    def _keeps_its_size(self, gang: Gang) -> bool:
        """Whether an elastic job is not given another size once it runs."""
        return gang.is_elastic and not may_resize(gang, self.taken.policy)

    def _row(self, gang: Gang, sizes: Sizes | None = None) -> Row:
        """What a scenario says of a job, its run time and its whereabouts aside.

        Args:
            sizes: Of its groups, if these are all that it may have.
        """
        spec = self.records.jobs[gang.id]["spec"]
        row: Row = {
            "name": self.name_of[gang.id],
            "user": f"user {gang.user}",
            "priority": gang.priority,
            "preemptible": gang.preemptible,
            "age": max(0.0, self.now_s - gang.submitted_s),
        }
        if gang.team != NONE:
            row["team"] = self._leaf_name(gang.team)
        if gang.shape.reservation in self.reservations:
            row["reservation"] = self._booking_name(gang.shape.reservation)
        if gang.deadline_s != inf:
            row["deadline"] = max(0.0, gang.deadline_s - self.now_s)
        row |= {key: spec[key] for key in _SAME_WORDS if key in spec}
        if sizes is not None:
            row.pop("scaling", None)
        elif gang.is_elastic and row.get("checkpoint") and self.taken.policy.resizes_by_restart:
            row["checkpoint"] = row["checkpoint"] | {"on_resize": True}
        if gang.datasets:
            row["datasets"] = [self.snapshot.datasets[position].name for position in gang.datasets]
        groups = spec.get("groups")
        if groups is None:
            return row | self._asks(gang, 0, spec, sizes)
        row["groups"] = [
            {"name": group["name"]} | self._asks(gang, index, group, sizes)
            for index, group in enumerate(groups)
        ]
        return row

    def _asks(self, gang: Gang, index: int, words: Mapping[str, Any], sizes: Sizes | None) -> Row:
        ask = gang.shape.asks[index]
        kinds = [self.facility.kinds[kind].name for kind in ask.kinds]
        same = {key: words[key] for key in _SAME_WORDS_OF_GROUPS if key in words}
        if sizes is not None:
            same["replicas"] = sizes[index]
        elif ask.least != ask.most and self._keeps_its_size(gang):
            # It starts at its preferred size at most, and does not grow afterwards.
            same["replicas"] = {"min": ask.least, "max": ask.n_replicas}
        return same | ({"accelerators": kinds} if kinds else {})

    def _placed(self, gang: Gang, share: Share) -> Row:
        groups = self.records.jobs[gang.id]["spec"].get("groups")
        row: Row = {
            "node": self.facility.node_name[share.node],
            "replicas": share.n_replicas,
            "devices": list(share.devices),
            "share": share.share_steps / SHARE_STEPS,
        }
        return row | ({"group": groups[share.group]["name"]} if groups is not None else {})

    # Run times

    def _pace(self, run: Running) -> float:
        """Work it would do in a second of running at its preferred size, as a scenario counts it."""
        f = self.facility
        speeds = [
            float(f.speed[share.node]) * (f.kinds[int(f.kind[share.node])].speed if share.devices else 1.0)
            for share in run.placing
        ]
        return min(speeds, default=1.0)

    def _run_time(
        self, gang: Gang, pace: float, since_s: float | None, rate: float = 1.0
    ) -> tuple[float, str]:
        """Work of this attempt in seconds at full pace, and where that is from.

        Args:
            pace: At which it runs, or at the least will.
            since_s: How long it runs already; None: it waits.
            rate: Of the size that is full pace here, over that of the preferred size, for which run times are declared.
        """
        record = self.records.jobs[gang.id]
        done_s = 0.0 if since_s is None else since_s
        least_s = (done_s + _LEAST_S) * pace
        # A job that has done part of it in an earlier attempt begins with its restart.
        restart_s = (record["spec"].get("checkpoint") or {}).get("restart", 0.0) if record["ran_s"] else 0.0
        if record["runtime_s"] is not None:
            left_s = max(record["runtime_s"] - record["worked_s"], _LEAST_S) / rate + restart_s * pace
            return _bounded(max(left_s, least_s)), "declared"
        predicted = predicted_s(gang, self.snapshot.history_s)
        if predicted != inf:
            took_s, source = min(predicted, gang.limit_s), "history"
        elif gang.limit_s != inf:
            took_s, source = gang.limit_s, "limit"
        else:
            took_s, source = UNKNOWN_S, "unknown"
        if took_s <= done_s:
            # It outran what was expected of it: as long again as it ran, if its limit lets it.
            took_s = min(gang.limit_s, 2 * done_s)
        work_s = _worked_s(took_s, record["spec"].get("checkpoint")) * pace
        return _bounded(max(work_s, least_s)), source

    def _note_what_is_rounded(self) -> None:
        """Say of what the scenario has no word for."""
        if any(inf in dataset.arrives_s.values() for dataset in self.snapshot.datasets):
            self.notes.append("Data sets come to every store, also to those to which nothing carries them.")
        if any(row["array__max_running"] for row in self.records.jobs.values()):
            self.notes.append("How many jobs of an array may run at once is not counted.")
        if any(self._keeps_its_size(gang) for gang in self.snapshot.queue):
            self.notes.append(
                "Elastic jobs that wait and are not resized once they run, since they write no checkpoint or may not be"
                " pre-empted, may grow up to their preferred size here."
            )
        if self.snapshot.members:
            self.notes.append("How much one member of a team may hold at once is not counted.")
        pairs = {
            (int(kind), int(cluster))
            for kind, cluster, there in zip(
                self.facility.kind.tolist(), self.facility.cluster.tolist(), self.is_in, strict=True
            )
            if there
        }
        shared = [kind for kind, n in Counter(kind for kind, _ in pairs).items() if n > 1]
        if shared:
            names = ", ".join(self.facility.kinds[kind].name for kind in shared)
            self.notes.append(f"Several clusters have {names}; a job may come to lie on any of them.")


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1e-3), _LONGEST_S)


def _worked_s(took_s: float, checkpoint: Mapping[str, Any] | None) -> float:
    """Of so much running time, what was left for work beside checkpoints."""
    if not checkpoint or not checkpoint.get("cost"):
        return took_s
    interval_s: float = checkpoint["interval"]
    n_periods, rest_s = divmod(took_s, interval_s + checkpoint["cost"])
    worked_s: float = n_periods * interval_s + min(rest_s, interval_s)
    return max(worked_s, _LEAST_S)


def _curve(text: str | None) -> list[list[float]]:
    points: list[list[float]] = json.loads(text) if text else []
    return points

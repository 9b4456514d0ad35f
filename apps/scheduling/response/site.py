"""What runs and what it draws, as power control sees it: read whole, in a few queries, from the ledger itself.

Draws are modelled from what runs; a meter that is heard of counts before the model. Everything is watts of IT load
unless it says meter.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Final

from django.db import connection

from apps.inventory.models import AcceleratorType, Domain, DomainKind
from apps.inventory.models import Backend as ClusterKind
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Desired, PowerCap, StopCause
from apps.power.curtailment.facts import Curve
from apps.power.models import PowerLimit, PowerReading
from apps.power.response import Meter
from apps.power.selectors import it_limit_w, latest_readings
from apps.power.telemetry.facts import Bound, How, Quality
from apps.scheduling.measured_power import Peaks
from apps.scheduling.power_board import power_tree

MEASURED, DECLARED, TDP_DERIVED = "measured", "declared", "tdp_derived"
CAPPABLE: Final = frozenset({ClusterKind.LOCAL.value, ClusterKind.SIMULATED.value})
# Caps that are looked at, from full power down to the lowest: fewer where there are many jobs to choose from, since
# what one of them is off by matters the less.
_MOST_STEPS, _LEAST_STEPS, _STEPS_IN_ALL = 20, 5, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An accelerator type."""

    id: int
    name: str
    tdp_w: float
    idle_w: float
    curve: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds devices; watts are those of one device, without a cap.

    Attributes:
        share: The cap that it counts with, as a share of TDP.
        is_whole: It shares no device: a cap on what it has touches nobody else.
        devices_on: By node id, how many devices (fractions counted as such).
        at_risk_s: Running time that would be lost if it were stopped now without saving.
    """

    allocation_id: int
    job_id: int
    name: str
    team_id: int
    team: str
    tier: int
    kind: Kind
    cluster_id: int
    draw_w: float
    peak_w: float
    draw_source: str
    share: float
    is_whole: bool
    can_cap: bool
    is_leaving: bool
    is_pausing: bool
    is_running: bool
    devices_on: Mapping[int, float]
    checkpoint_s: float = inf
    restart_s: float = 0.0
    at_risk_s: float = 0.0
    lost_s: float = 0.0
    submitted_at: datetime | None = None
    cap: PowerCap | None = None

    @property
    def n_devices(self) -> float:
        return sum(self.devices_on.values())

    def device_w(self, share: float | None = None, *, is_peak: bool = False) -> float:
        """What one of its devices draws under a cap; None: under the one that it has."""
        natural_w = self.peak_w if is_peak else self.draw_w
        return min(natural_w, (self.share if share is None else share) * self.kind.tdp_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDomain:
    """A domain that power or heat flows through."""

    id: int
    name: str
    kind: str
    parent_id: int | None
    meter: Meter
    limit_w: float  # of IT load, the tighter of the two; inf: none
    ramp_up_w_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Everything that power control decides from."""

    at: datetime
    domains: Mapping[int, PowerDomain]
    chain: Mapping[int, tuple[int, ...]]  # by node: the domains above it
    jobs: Sequence[RunningJob]
    rest_w: Mapping[int, float]  # by domain: nodes as if nothing ran on them
    readings: Mapping[int, PowerReading] = field(default_factory=dict)
    bounds: Mapping[int, Bound] = field(default_factory=dict)  # by domain, where meters are expected
    unseen: frozenset[int] = frozenset()  # jobs of which nothing is heard where a meter is silent
    held: Mapping[int, str] = field(default_factory=dict)  # domains in which nothing may start, and why

    def devices_under(self, job: RunningJob, domain_id: int) -> float:
        """How many devices of a job lie under a domain."""
        return sum(n for node, n in job.devices_on.items() if domain_id in self.chain.get(node, ()))

    def domains_of(self, job: RunningJob) -> set[int]:
        """Every domain that some of its devices lie under."""
        return {domain for node in job.devices_on for domain in self.chain.get(node, ())}

    def modelled_w(self, *, is_peak: bool = False) -> dict[int, float]:
        """By domain, what it draws by the model; with `is_peak` what it may come to draw."""
        drawn = dict(self.rest_w)
        for job in self.jobs:
            above_w = max(0.0, job.device_w(is_peak=is_peak) - job.kind.idle_w)
            for node, n in job.devices_on.items():
                for domain in self.chain.get(node, ()):
                    drawn[domain] = drawn.get(domain, 0.0) + above_w * n
        return drawn

    def metered_w(self, domain_id: int) -> float | None:
        """What it draws at the most by its meter, or by what is known while that is silent; None: it has no meter."""
        bound = self.bounds.get(domain_id)
        return None if bound is None or bound.how is How.RESERVED else bound.load_w


def read_site(at: datetime) -> Site:
    """Read it, as of now, in one statement's picture each: a decision is checked again where it is carried out."""
    domains = _domains()
    n_running = Allocation.objects.filter(ended_at=None).count()
    n_steps = min(_MOST_STEPS, max(_LEAST_STEPS, _STEPS_IN_ALL // max(1, n_running)))
    kinds = {row.pk: _kind(row, n_steps) for row in AcceleratorType.objects.all()}
    chain, rest = _nodes(domains, kinds)
    tree = power_tree(at)
    seen = {branch.row.id: branch for branch in tree.branches if branch.bound.n_meters}
    return Site(
        at=at,
        domains=domains,
        chain=chain,
        jobs=_jobs(kinds, at),
        rest_w=rest,
        readings=latest_readings(sorted(domains)),
        bounds={domain_id: branch.bound for domain_id, branch in seen.items()},
        unseen=tree.picture.unseen_jobs,
        held={
            domain_id: _why_held(branch.bound) for domain_id, branch in seen.items() if _is_dark(branch.bound)
        },
    )


def _is_dark(bound: Bound) -> bool:
    """Whether too little is known of what a domain draws; that it draws too much is for others to mend."""
    return bound.is_held and (bound.quality is not Quality.OK or bound.n_silent > 0)


def _why_held(bound: Bound) -> str:
    if bound.how is How.SIBLINGS:
        return "Its meter is silent; what it draws is told from those beside it."
    if bound.how is How.CAPS:
        return "Its meter is silent; what it draws is told from the caps in force."
    if bound.how is How.UNCAPPED:
        return "Its meter is silent, and nothing says that caps hold."
    return f"{bound.n_silent} of {bound.n_meters} meters in it are silent."


def _domains() -> dict[int, PowerDomain]:
    limits = {row.domain_id: row for row in PowerLimit.objects.select_related("domain")}
    found = {}
    kinds = (DomainKind.FACILITY, DomainKind.HALL, DomainKind.ROW, DomainKind.RACK, DomainKind.COOLING)
    for row in Domain.objects.filter(kind__in=kinds).order_by("pk"):
        limit = limits.get(row.pk)
        is_metered = limit is not None and row.kind == DomainKind.FACILITY
        watts = None if limit is None else it_limit_w(limit)
        found[row.pk] = PowerDomain(
            id=row.pk,
            name=row.name,
            kind=row.kind,
            parent_id=row.parent_id,
            meter=Meter(limit.overhead_fixed_w, limit.overhead_k) if limit and is_metered else Meter(),
            limit_w=inf if watts is None else watts,
            ramp_up_w_per_s=None if limit is None else limit.ramp_up_w_per_s,
        )
    return found


def _kind(row: AcceleratorType, n_steps: int) -> Kind:
    points = tuple((float(cap), float(rate)) for cap, rate in row.power_curve) or ((1.0, 1.0),)
    lowest_w = points[0][0] * row.tdp_w
    # Fine steps of many devices are of no use to a decision: so many between full power and the lowest cap are enough.
    coarse_w = max(row.cap_step_w, (row.tdp_w - lowest_w) / n_steps)
    step_w = -(-coarse_w // row.cap_step_w) * row.cap_step_w
    curve = Curve(tdp_w=row.tdp_w, idle_w=row.idle_w, points=points, step_w=step_w, settle_s=row.cap_settle_s)
    return Kind(id=row.pk, name=row.name, tdp_w=row.tdp_w, idle_w=row.idle_w, curve=curve)


def _nodes(
    domains: Mapping[int, PowerDomain], kinds: Mapping[int, Kind]
) -> tuple[dict[int, tuple[int, ...]], dict[int, float]]:
    above: dict[int | None, tuple[int, ...]] = {None: ()}

    def line(domain_id: int | None) -> tuple[int, ...]:
        if domain_id not in above:
            known = domains.get(domain_id or 0)
            above[domain_id] = () if known is None else (known.id, *line(known.parent_id))
        return above[domain_id]

    chain: dict[int, tuple[int, ...]] = {}
    rest: dict[int, float] = defaultdict(float)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, accelerator_type_id, n_devices, idle_w, power_id, cooling_id, health FROM inventory_node"
        )
        for node_id, kind_id, n_devices, idle_w, power_id, cooling_id, health in cursor.fetchall():
            chain[node_id] = (*line(power_id), *line(cooling_id))
            if health != "failed":
                for domain in chain[node_id]:
                    rest[domain] += idle_w + n_devices * kinds[kind_id].idle_w
    return chain, dict(rest)


_JOBS: Final = """
SELECT allocation.id, job.id, job.name, job.team_id, team.name, job.spec->'flexibility', job.spec->'checkpoint',
    job.spec->'groups', job.spec->'power_w', job.spec->'peak_w', job.lost_s, job.submitted_at, job.state,
    allocation.desired_power_cap_share, allocation.desired_state, allocation.stop_cause,
    allocation.observed_started_at, cluster.id, cluster.backend, progress.checkpoint_at,
    placement.node_id, placement.group_index, node.accelerator_type_id, sum(claim.share)::float8,
    bool_and(claim.share = 1), job.user_id
FROM jobs_allocation allocation
JOIN jobs_job job ON job.id = allocation.job_id
JOIN teams_team team ON team.id = job.team_id
JOIN inventory_cluster cluster ON cluster.id = allocation.cluster_id
JOIN jobs_placement placement ON placement.allocation_id = allocation.id
JOIN inventory_node node ON node.id = placement.node_id
JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id
LEFT JOIN jobs_progress progress ON progress.allocation_id = allocation.id
WHERE allocation.ended_at IS NULL
GROUP BY allocation.id, job.id, team.name, cluster.id, progress.checkpoint_at, placement.id, node.accelerator_type_id
ORDER BY allocation.id, placement.id
"""


def _jobs(kinds: Mapping[int, Kind], at: datetime) -> list[RunningJob]:
    caps = {row.allocation_id: row for row in PowerCap.objects.filter(allocation__ended_at=None)}
    peaks = Peaks()
    with connection.cursor() as cursor:
        cursor.execute(_JOBS)
        rows = cursor.fetchall()
        peaks.read(cursor, at, anew=True)
    by_allocation: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        by_allocation[row[0]].append(row)
    return [
        _job(parts, kinds, caps.get(allocation_id), peaks, at)
        for allocation_id, parts in by_allocation.items()
    ]


def _job(
    parts: Sequence[Sequence[Any]],
    kinds: Mapping[int, Kind],
    cap: PowerCap | None,
    peaks: Peaks,
    at: datetime,
) -> RunningJob:
    (
        allocation_id, job_id, name, team_id, team, tier, checkpoint, groups, power_w, peak_w, lost_s, submitted_at,
        state, share, desired, stop_cause, started_at, cluster_id, backend, checkpoint_at,
        *_,
    ) = parts[0]  # fmt: skip
    kind = kinds[parts[0][22]]
    tier, checkpoint, groups = _plain(tier) or 0, _plain(checkpoint), _plain(groups)
    on: dict[int, float] = defaultdict(float)
    drawn = peaked = n_all = 0.0
    is_declared = True
    for part in parts:
        node_id, group, n = part[20], part[21], part[23]
        told = (
            groups[group]
            if groups and group < len(groups)
            else {"power_w": _plain(power_w), "peak_w": _plain(peak_w)}
        )
        each_w, most_w = told.get("power_w"), told.get("peak_w")
        is_declared = is_declared and each_w is not None
        on[node_id] += n
        natural_w = kind.tdp_w if each_w is None else min(float(each_w), kind.tdp_w)
        drawn += n * natural_w
        peaked += n * (natural_w if most_w is None else min(float(most_w), kind.tdp_w))
        n_all += n
    draw_w, peak_each_w, source = drawn / n_all, peaked / n_all, DECLARED if is_declared else TDP_DERIVED
    measured = peaks.of(job_id, parts[0][25], name).get(kind.id)
    # Of a job with several sorts of replicas nobody knows whose draw was seen.
    if measured is not None and not (groups and len(groups) > 1):
        draw_w, peak_each_w, source = min(measured[0], kind.tdp_w), min(measured[1], kind.tdp_w), MEASURED
    return RunningJob(
        allocation_id=allocation_id,
        job_id=job_id,
        name=name,
        team_id=team_id,
        team=team,
        tier=int(tier),
        kind=kind,
        cluster_id=cluster_id,
        draw_w=draw_w,
        peak_w=peak_each_w,
        draw_source=source,
        share=share,
        is_whole=all(part[24] for part in parts),
        can_cap=backend in CAPPABLE,
        is_leaving=desired == Desired.STOP,
        is_pausing=stop_cause == StopCause.PAUSE,
        is_running=state == State.RUNNING,
        devices_on=dict(on),
        checkpoint_s=inf if not checkpoint else float(checkpoint.get("cost", 0.0)),
        restart_s=0.0 if not checkpoint else float(checkpoint.get("restart", 0.0)),
        at_risk_s=_at_risk_s(checkpoint, started_at, checkpoint_at, at),
        lost_s=lost_s,
        submitted_at=submitted_at,
        cap=cap,
    )


def _at_risk_s(
    checkpoint: Mapping[str, Any] | None, started_at: datetime | None, saved_at: datetime | None, at: datetime
) -> float:
    """Running time since the last checkpoint: as it said itself, or as it was declared."""
    if started_at is None:
        return 0.0
    if saved_at is not None:
        return max(0.0, (at - saved_at).total_seconds())
    ran_s = max(0.0, (at - started_at).total_seconds())
    if not checkpoint:
        return ran_s
    return ran_s % (float(checkpoint["interval"]) + float(checkpoint.get("cost", 0.0)))


def _plain(value: Any) -> Any:
    # Django loads JSON columns itself and has the driver hand them over as text.
    return json.loads(value) if isinstance(value, str | bytes) else value

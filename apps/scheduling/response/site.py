"""What runs and what it draws, as power control sees it: read whole, in a few queries, from the ledger itself.

Draws are modelled from what runs; a meter that is heard of counts before the model. Everything is watts of IT load
unless it says meter.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from math import inf
from typing import Any, Final

from django.db import connection

from apps.core.columns import as_object
from apps.inventory.models import AcceleratorType, Domain, DomainKind
from apps.inventory.models import Backend as ClusterKind
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Desired, PowerCap, StopCause
from apps.jobs.selectors import unsaved_s
from apps.power.curtailment.facts import Curve
from apps.power.models import MODELLED, PowerLimit, PowerReading
from apps.power.readings import EXPECTED_FOR
from apps.power.response import Meter
from apps.power.selectors import it_limit_w, latest_readings
from apps.power.telemetry.draws import JobPower, Source, over_types, power_of
from apps.power.telemetry.facts import Bound, How, Quality
from apps.scheduling.engine.sizes import rate_at
from apps.scheduling.measured_power import Peaks
from apps.scheduling.power_board import power_tree

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
        replicas_on: By node id, how many replicas.
        least_replicas: With which it can go on, after a checkpoint and a restart; 0: it keeps its size.
        scaling: (replicas, throughput), rising; empty: in proportion.
    """

    allocation_id: int
    job_id: int
    name: str
    team: str
    tier: int
    kind: Kind
    draw_w: float
    peak_w: float
    draw_source: Source
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
    replicas_on: Mapping[int, int] = field(default_factory=dict)
    least_replicas: int = 0
    scaling: tuple[tuple[int, float], ...] = ()

    @property
    def n_replicas(self) -> int:
        return sum(self.replicas_on.values())

    @property
    def can_shrink(self) -> bool:
        """Whether it can go on with fewer replicas: what it holds is whole, and it may be restarted."""
        return 0 < self.least_replicas < self.n_replicas and self.is_whole

    def rate_at(self, n_replicas: int) -> float:
        """Share of its present throughput that so many replicas bring."""
        if not self.scaling:
            return n_replicas / self.n_replicas
        return rate_at(self.scaling, n_replicas) / rate_at(self.scaling, self.n_replicas)

    def kept_on(self, n_replicas: int, inside: Collection[int]) -> dict[int, int]:
        """By node, which replicas stay when so many are left: those outside a domain first, of equals the first.

        Args:
            inside: Ids of the nodes in the domain.
        """
        kept: dict[int, int] = {}
        for node, n in sorted(self.replicas_on.items(), key=lambda one: (one[0] in inside, one[0])):
            if n_here := min(n, n_replicas - sum(kept.values())):
                kept[node] = n_here
        return kept

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


@dataclass(frozen=True, kw_only=True)
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

    @cached_property
    def drawn_w(self) -> Mapping[int, float]:
        """By domain, what it draws by the model."""
        return self.modelled_w()

    def modelled_w(self, *, is_peak: bool = False) -> dict[int, float]:
        """By domain, what it draws by the model; with `is_peak` what it may come to draw. Worked out anew."""
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
    domains = _domains(at)
    n_running = Allocation.objects.filter(ended_at=None).count()
    n_steps = min(_MOST_STEPS, max(_LEAST_STEPS, _STEPS_IN_ALL // max(1, n_running)))
    kinds = {row.pk: _kind(row, n_steps) for row in AcceleratorType.objects.all()}
    chain, rest = _nodes(domains, kinds)
    # A big tree is not walked where no meter ever speaks.
    tree = power_tree(at) if is_metered(at) else None
    seen = {} if tree is None else {one.row.id: one for one in tree.branches if one.bound.n_meters}
    return Site(
        at=at,
        domains=domains,
        chain=chain,
        jobs=_jobs(kinds, at),
        rest_w=rest,
        readings=latest_readings(sorted(domains)),
        bounds={domain_id: branch.bound for domain_id, branch in seen.items()},
        unseen=frozenset() if tree is None else tree.picture.unseen_jobs,
        held={
            domain_id: _why_held(branch.bound) for domain_id, branch in seen.items() if _is_dark(branch.bound)
        },
    )


def is_metered(at: datetime) -> bool:
    """Whether any meter is expected to speak."""
    return PowerReading.objects.exclude(source=MODELLED).filter(at__gte=at - EXPECTED_FOR).exists()


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


def _domains(at: datetime) -> dict[int, PowerDomain]:
    rows = PowerLimit.objects.select_related("domain").prefetch_related("envelope")
    limits = {row.domain_id: row for row in rows}
    found = {}
    kinds = (DomainKind.FACILITY, DomainKind.HALL, DomainKind.ROW, DomainKind.RACK, DomainKind.COOLING)
    for row in Domain.objects.filter(kind__in=kinds).order_by("pk"):
        limit = limits.get(row.pk)
        is_metered = limit is not None and row.kind == DomainKind.FACILITY
        watts = None if limit is None else it_limit_w(limit, at)
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
    curve = Curve.coarse(
        row.power_curve,
        tdp_w=row.tdp_w,
        idle_w=row.idle_w,
        step_w=row.cap_step_w,
        settle_s=row.cap_settle_s,
        n_steps=n_steps,
    )
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
SELECT allocation.id, job.id, job.name, team.name, job.spec->'flexibility', job.spec->'checkpoint',
    job.spec->'groups', job.spec->'power_w', job.spec->'peak_w', job.lost_s, job.submitted_at, job.state,
    allocation.desired_power_cap_share, allocation.desired_state, allocation.stop_cause,
    allocation.observed_started_at, cluster.backend, progress.checkpoint_at, job.user_id,
    job.spec->'replicas', job.spec->'preemptible', job.spec->'scaling',
    placement.node_id, placement.group_index, node.accelerator_type_id, sum(claim.share)::float8,
    bool_and(claim.share = 1), placement.n_replicas
FROM jobs_allocation allocation
JOIN jobs_job job ON job.id = allocation.job_id
JOIN teams_team team ON team.id = job.team_id
JOIN inventory_cluster cluster ON cluster.id = allocation.cluster_id
JOIN jobs_placement placement ON placement.allocation_id = allocation.id
JOIN inventory_node node ON node.id = placement.node_id
JOIN jobs_deviceclaim claim ON claim.placement_id = placement.id
LEFT JOIN jobs_progress progress ON progress.allocation_id = allocation.id
WHERE allocation.ended_at IS NULL
GROUP BY allocation.id, job.id, team.name, cluster.backend, progress.checkpoint_at, placement.id,
    node.accelerator_type_id
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
        allocation_id, job_id, name, team, tier, checkpoint, groups, power_w, peak_w, lost_s, submitted_at,
        state, share, desired, stop_cause, started_at, backend, checkpoint_at, user_id,
        replicas, preemptible, scaling, *_,
    ) = parts[0]  # fmt: skip
    kind = kinds[parts[0][24]]
    checkpoint, groups = as_object(checkpoint), as_object(groups)
    ran_s = 0.0 if started_at is None else max(0.0, (at - started_at).total_seconds())
    saved_s = None if checkpoint_at is None else max(0.0, (at - checkpoint_at).total_seconds())
    alone = {"power_w": as_object(power_w), "peak_w": as_object(peak_w)}
    # Of a job with several sorts of replicas nobody knows whose draw was seen.
    measured = None if groups and len(groups) > 1 else peaks.of(job_id, user_id, name).get(kind.id)
    on: dict[int, float] = defaultdict(float)
    replicas_on: dict[int, int] = defaultdict(int)
    sizes = as_object(replicas)
    is_elastic = isinstance(sizes, dict) and not groups and bool(checkpoint)
    powers: list[tuple[float, JobPower]] = []
    is_all_whole = True
    for part in parts:
        node_id, group, _, n, is_whole, n_replicas = part[22:]
        is_all_whole = is_all_whole and is_whole
        told = groups[group] if groups and group < len(groups) else alone
        on[node_id] += n
        replicas_on[node_id] += n_replicas
        powers.append(
            (
                n,
                power_of(
                    measured=measured,
                    power_w=told.get("power_w"),
                    peak_w=told.get("peak_w"),
                    tdp_w=kind.tdp_w,
                ),
            )
        )
    n_all = sum(n for n, _ in powers)
    return RunningJob(
        allocation_id=allocation_id,
        job_id=job_id,
        name=name,
        team=team,
        tier=int(as_object(tier) or 0),
        kind=kind,
        draw_w=sum(n * one.mean_w for n, one in powers) / n_all,
        peak_w=sum(n * one.peak_w for n, one in powers) / n_all,
        draw_source=over_types([one for _, one in powers]).source,
        share=share,
        is_whole=is_all_whole,
        can_cap=backend in CAPPABLE,
        is_leaving=desired == Desired.STOP,
        is_pausing=stop_cause == StopCause.PAUSE,
        is_running=state == State.RUNNING,
        devices_on=dict(on),
        checkpoint_s=inf if not checkpoint else float(checkpoint.get("cost", 0.0)),
        restart_s=0.0 if not checkpoint else float(checkpoint.get("restart", 0.0)),
        at_risk_s=0.0 if started_at is None else unsaved_s(checkpoint, ran_s, saved_s),
        lost_s=lost_s,
        submitted_at=submitted_at,
        cap=cap,
        replicas_on=dict(replicas_on),
        least_replicas=int(sizes["min"]) if is_elastic and as_object(preemptible) is not False else 0,
        scaling=tuple((int(n), float(rate)) for n, rate in as_object(scaling) or ()),
    )

"""A scenario in the engine's terms: positions in canonical order, arrays over nodes, a gang for each job."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Final

import numpy as np

from apps.jobs.spec import Asks, ScenarioJob
from apps.power.curtailment.facts import Curve
from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    Booking,
    Dataset,
    Domain,
    Facility,
    Gang,
    Kind,
    Member,
    Placing,
    Policy,
    Shape,
    Share,
    Spread,
    Team,
)
from apps.scheduling.engine.facts import Saving as GangSaving
from apps.scheduling.engine.sizes import rate_at
from apps.simulation.canonical import CanonicalOrder, canonical_order
from apps.simulation.replay.heap import exact
from apps.simulation.replay.progress import Saving, declared_work_s
from apps.simulation.scenario import EventRow, NodeRow, Scenario, TeamRow

ZERO: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a job runs when the scenario begins, and for how long it has by then."""

    placing: Placing
    kind: int
    since: Fraction


@dataclass(frozen=True)
class SimJob:
    """A job as the simulator sees it: what the engine is told, and what only the simulator knows."""

    index: int  # its place in canonical order; the engine's id and sequence
    name: str
    row: ScenarioJob
    gang: Gang  # as submitted
    submit: Fraction
    not_before: Fraction | None
    deadline: Fraction | None
    runtime: Fraction
    limit: Fraction | None
    saving: Saving | None
    after: tuple[int, ...]
    paces: tuple[Fraction, ...]  # at which it may come to run
    device_steps: int  # millionths of devices it holds at its preferred size
    begun: Begun | None = None


@dataclass(frozen=True)
class World:
    """Everything about a scenario that does not change while it runs."""

    scenario: Scenario
    facility: Facility  # as built
    node_at: Mapping[str, int]
    domain_at: Mapping[str, int]
    team_at: Mapping[str, int]
    job_at: Mapping[str, int]
    kind_at: Mapping[str, int]
    teams: tuple[Team, ...]
    members: tuple[Member, ...]
    bookings: tuple[Booking, ...]
    datasets: tuple[Dataset, ...]  # as they lie at the start
    jobs: tuple[SimJob, ...]
    events: tuple[EventRow, ...]  # in canonical order
    policy: Policy
    has_teams: bool
    curves: tuple[Curve, ...]  # by kind
    node_rows: tuple[NodeRow, ...]  # by position of the node


def build_world(scenario: Scenario) -> World:
    """Put a scenario into the engine's terms."""
    order = canonical_order(scenario)
    kinds = tuple(scenario.types[row] for row in order.types)
    kind_at = {kind.name: position for position, kind in enumerate(kinds)}
    domain_at = {scenario.domains[row].name: position for position, row in enumerate(order.domains)}
    facility = _facility(scenario, order, kind_at, domain_at)
    node_at = {name: position for position, name in enumerate(facility.node_name)}
    team_rows = [scenario.teams[row] for row in order.teams]
    if scenario.teams:
        team_at = {row.name: position for position, row in enumerate(team_rows)}
    else:
        # Without teams a team is a label; it matters only where a reservation is kept for it.
        labels = order.labels if any(row.teams for row in scenario.reservations) else ()
        team_at = {label: position for position, label in enumerate(labels)}
    bookings, booking_at = _bookings(scenario, order, node_at, kind_at, team_at)
    datasets, dataset_at = _datasets(scenario, order, domain_at)
    jobs = _jobs(scenario, order, kind_at, team_at, booking_at, dataset_at, facility, node_at)
    return World(
        scenario=scenario,
        facility=facility,
        node_at=node_at,
        domain_at=domain_at,
        team_at=team_at,
        job_at={job.name: job.index for job in jobs},
        kind_at=kind_at,
        teams=_teams(team_rows, team_at, kind_at),
        members=_members(scenario, team_rows, team_at, order.users, kind_at),
        bookings=bookings,
        datasets=datasets,
        jobs=jobs,
        events=tuple(scenario.events[row] for row in order.events),
        policy=policy_of(scenario),
        has_teams=bool(scenario.teams),
        curves=curves_of(scenario, order),
        node_rows=tuple(scenario.nodes[row] for row, _ in order.nodes),
    )


def policy_of(scenario: Scenario) -> Policy:
    """The engine's policy as the scenario asks for it."""
    row = scenario.policy
    return Policy(
        backfill_depth=None if row.backfill_depth == "all" else row.backfill_depth,
        order=row.order,
        starving_s=row.starving_s,
        starving_by_width=row.starving_by_width,
        preemption=row.preemption,
        packing=row.packing,
        shield_s=row.shield_s,
        keeps_promises=row.backfill_depth == "all",
        most_evictions=None,
        resize_dwell_s=row.resize_dwell_s,
        staging_hold_s=row.staging_hold_s,
    )


def _facility(
    scenario: Scenario, order: CanonicalOrder, kind_at: Mapping[str, int], domain_at: Mapping[str, int]
) -> Facility:
    numbers = scenario.numbers
    domains = []
    for position, index in enumerate(order.domains):
        row = scenario.domains[index]
        is_metered = row.kind == "facility"
        domains.append(
            Domain(
                id=position,
                name=row.name,
                kind=row.kind,
                parent=NONE if row.parent is None else domain_at[row.parent],
                limit_w=inf if row.power_limit_w is None else row.power_limit_w,
                overhead_fixed_w=numbers.overhead_fixed_w if is_metered else 0.0,
                overhead_k=numbers.overhead_k if is_metered else 1.0,
            )
        )
    rows = [scenario.nodes[row] for row, _ in order.nodes]
    parent_leaf = {
        row.name: row.parent
        for row in scenario.domains
        if row.kind == "scale_up" and row.parent is not None and domains[domain_at[row.parent]].kind == "leaf"
    }

    def leaf_of(row: NodeRow) -> str | None:
        return row.leaf if row.leaf is not None or row.scale_up is None else parent_leaf.get(row.scale_up)

    def places(names: list[str | None]) -> np.ndarray:
        return np.array([NONE if name is None else domain_at[name] for name in names], dtype=np.int64)

    def floats(values: list[float | None]) -> np.ndarray:
        return np.array([inf if value is None else value for value in values], dtype=np.float64)

    types = [scenario.types[row] for row in order.types]
    names_of: dict[int, list[str]] = {}
    return Facility(
        kinds=tuple(
            Kind(
                position,
                kind.name,
                kind.memory_gib,
                kind.tdp_w,
                kind.rest_w,
                kind.speed,
                caps_of_curve(curve),
            )
            for position, (kind, curve) in enumerate(zip(types, curves_of(scenario, order), strict=True))
        ),
        domains=tuple(domains),
        node_id=np.arange(len(rows), dtype=np.int64),
        node_name=tuple(
            names_of.setdefault(row, list(scenario.nodes[row].names()))[number] for row, number in order.nodes
        ),
        kind=np.array([kind_at[row.accelerator] for row in rows], dtype=np.int64),
        n_devices=np.array([row.devices for row in rows], dtype=np.int64),
        cpus=floats([row.cpus for row in rows]),
        memory_gib=floats([row.memory_gib for row in rows]),
        scale_up=places([row.scale_up for row in rows]),
        leaf=places([leaf_of(row) for row in rows]),
        power=places([row.power for row in rows]),
        cooling=places([row.cooling for row in rows]),
        storage=places([row.storage for row in rows]),
        idle_w=floats([row.idle_w for row in rows]),
        speed=floats([row.speed for row in rows]),
        cluster=np.zeros(len(rows), dtype=np.int64),
    )


def curves_of(scenario: Scenario, order: CanonicalOrder) -> tuple[Curve, ...]:
    """Throughput by power cap of each accelerator type, in the engine's order."""
    return tuple(
        Curve(
            tdp_w=kind.tdp_w,
            idle_w=kind.rest_w,
            points=tuple((cap, rate) for cap, rate in kind.power_curve),
            step_w=kind.tdp_w / 100 if kind.cap_step_w is None else kind.cap_step_w,
            settle_s=kind.cap_settle_s,
        )
        for kind in (scenario.types[row] for row in order.types)
    )


def caps_of_curve(curve: Curve) -> tuple[tuple[float, float], ...]:
    """Every cap that devices can be set to with what it leaves of the throughput, the highest first."""
    return tuple((cap, curve.rate(cap, curve.tdp_w)) for cap in curve.caps())


def _by_kind(quota: Mapping[str, int], kind_at: Mapping[str, int]) -> dict[int, int]:
    return dict(sorted((kind_at[name], number) for name, number in quota.items()))


def entitlement_of(quota: Mapping[str, int], kind_at: Mapping[str, int]) -> dict[int, int]:
    """A quota map by position of kind."""
    return _by_kind(quota, kind_at)


def _teams(rows: list[TeamRow], team_at: Mapping[str, int], kind_at: Mapping[str, int]) -> tuple[Team, ...]:
    if not rows:
        return tuple(Team(position, label) for label, position in team_at.items())
    return tuple(
        Team(
            id=position,
            name=row.name,
            parent=NONE if row.parent is None else team_at[row.parent],
            weight=row.weight,
            entitlement=_by_kind(row.quota, kind_at),
            borrow_limit=_by_kind(row.borrow_limit, kind_at),
            lend_limit=_by_kind(row.lend_limit, kind_at),
            decayed_use_s={kind_at[name]: device_s for name, device_s in sorted(row.used.items())},
        )
        for position, row in enumerate(rows)
    )


def _members(
    scenario: Scenario,
    rows: list[TeamRow],
    team_at: Mapping[str, int],
    users: tuple[str, ...],
    kind_at: Mapping[str, int],
) -> tuple[Member, ...]:
    """Users of teams that limit what one may hold; jobs without a user are nobody's."""
    user_at = {name: position for position, name in enumerate(users)}
    limited = {row.name: row for row in rows if row.member_limit or row.member_jobs is not None}
    pairs = {
        (team_at[job.team], user_at[job.user], job.team, job.user)
        for job in scenario.jobs
        if job.user is not None and job.team in limited
    }
    return tuple(
        Member(team, user, name, _by_kind(limited[of].member_limit, kind_at), limited[of].member_jobs)
        for team, user, of, name in sorted(pairs)
    )


def _bookings(
    scenario: Scenario,
    order: CanonicalOrder,
    node_at: Mapping[str, int],
    kind_at: Mapping[str, int],
    team_at: Mapping[str, int],
) -> tuple[tuple[Booking, ...], dict[str, int]]:
    bookings = []
    for position, index in enumerate(order.reservations):
        row = scenario.reservations[index]
        bookings.append(
            Booking(
                id=position,
                name=row.name,
                start_s=row.start,
                end_s=row.end,
                nodes=tuple(sorted(node_at[name] for name in row.nodes or ())),
                kind=NONE if row.accelerator is None else kind_at[row.accelerator],
                n_devices=row.devices or 0,
                within=row.within,
                teams=frozenset(team_at[name] for name in row.teams),
                is_flexible=row.flexible,
            )
        )
    return tuple(bookings), {booking.name: booking.id for booking in bookings}


def _jobs(
    scenario: Scenario,
    order: CanonicalOrder,
    kind_at: Mapping[str, int],
    team_at: Mapping[str, int],
    booking_at: Mapping[str, int],
    dataset_at: Mapping[str, int],
    facility: Facility,
    node_at: Mapping[str, int],
) -> tuple[SimJob, ...]:
    position_of = {scenario.jobs[row].name: position for position, row in enumerate(order.jobs)}
    user_at = {name: position for position, name in enumerate(order.users)}
    memory = {kind_at[kind.name]: kind.memory_gib for kind in scenario.types}
    # Of types nobody prefers, the faster first, then the smaller, so that large memory stays free.
    speed = {kind_at[kind.name]: kind.speed for kind in scenario.types}
    anything = sorted(memory, key=lambda kind: (-speed[kind], memory[kind], kind))
    shapes: dict[tuple[object, ...], Shape] = {}
    paces_of = _Paces(facility)
    ask_of = _AskMaker(kind_at, memory, anything)
    jobs = []
    for position, index in enumerate(order.jobs):
        row = scenario.jobs[index]
        asks = tuple(ask_of(group) for group in row.all_groups)
        booking = NONE if row.reservation is None else booking_at[row.reservation]
        shape = shapes.setdefault((asks, booking), Shape(asks, reservation=booking))
        saving = _saving(row)
        runtime = exact(row.runtime)
        gang = Gang(
            id=position,
            name=row.name,
            shape=shape,
            team=NONE if row.team is None else team_at.get(row.team, NONE),
            user=NONE if row.user is None else user_at[row.user],
            priority=row.priority,
            submitted_s=row.submit - row.age,
            sequence=position,
            limit_s=inf if row.time_limit is None else row.time_limit,
            not_before_s=-inf if row.not_before is None else row.not_before,
            deadline_s=inf if row.deadline is None else row.deadline,
            waits_for=tuple(row.after),
            preemptible=row.preemptible,
            saving=_gang_saving(row),
            datasets=tuple(sorted({dataset_at[name] for name in row.datasets})),
            scaling=tuple((int(n), rate) for n, rate in row.scaling or ()),
            tier=row.flexibility,
        )
        job_paces = paces_of(asks[0].kinds, row.n_devices > 0)
        if saving is not None and row.time_limit is None:
            job_paces = tuple(sorted({pace * rate for pace in job_paces for rate in _rates(gang)}))
        work_s = declared_work_s(runtime, restart_s=ZERO, saving=saving, paces=job_paces)
        if row.time_limit is None:
            gang = replace(gang, work_s=float(work_s))
        jobs.append(
            SimJob(
                index=position,
                name=row.name,
                row=row,
                gang=gang,
                submit=exact(row.submit),
                not_before=None if row.not_before is None else exact(row.not_before),
                deadline=None if row.deadline is None else exact(row.deadline),
                runtime=runtime,
                limit=None if row.time_limit is None else exact(row.time_limit),
                saving=saving,
                after=tuple(position_of[name] for name in row.after),
                paces=job_paces,
                device_steps=sum(
                    group.preferred_replicas * (group.whole_devices * 1_000_000 + group.share_steps)
                    for group in row.all_groups
                ),
                begun=_begun(row, facility, node_at),
            )
        )
    return tuple(jobs)


def _begun(row: ScenarioJob, facility: Facility, node_at: Mapping[str, int]) -> Begun | None:
    if row.running is None:
        return None
    group_at = {group.name: index for index, group in enumerate(row.groups or ())}
    placing = tuple(
        Share(
            group=group_at.get(placed.group or "", 0),
            node=node_at[placed.node],
            n_replicas=placed.replicas,
            devices=tuple(sorted(placed.devices)),
            share_steps=placed.share_steps,
        )
        for placed in row.running.placement
    )
    kinds = [int(facility.kind[share.node]) for share in placing if share.devices]
    return Begun(placing, kinds[0] if kinds else NONE, exact(row.running.since))


class _Paces:
    """At which paces a job may come to run, by the types it accepts."""

    def __init__(self, facility: Facility) -> None:
        self._speeds = sorted(set(zip(facility.kind.tolist(), facility.speed.tolist(), strict=True)))
        self._kinds = facility.kinds
        self._known: dict[tuple[tuple[int, ...], bool], tuple[Fraction, ...]] = {}

    def __call__(self, kinds: tuple[int, ...], holds_devices: bool) -> tuple[Fraction, ...]:
        key = (kinds, holds_devices)
        if key not in self._known:
            paces = sorted(
                {
                    exact(speed) * (exact(self._kinds[kind].speed) if holds_devices else 1)
                    for kind, speed in self._speeds
                    if kind in kinds or not kinds
                }
            )
            self._known[key] = tuple(paces)
        return self._known[key]


def _rates(gang: Gang) -> set[Fraction]:
    """Throughput at every size that an elastic gang may have, relative to the preferred one."""
    elastic = [ask for ask in gang.shape.asks if ask.least != ask.most]
    if not elastic:
        return {Fraction(1)}
    if gang.scaling:
        sizes = range(min(ask.least for ask in elastic), max(ask.most for ask in elastic) + 1)
        return {exact(rate_at(gang.scaling, n)) for n in sizes}
    return {Fraction(n, ask.n_replicas) for ask in elastic for n in range(ask.least, ask.most + 1)}


def _gang_saving(row: ScenarioJob) -> GangSaving | None:
    saving = row.checkpoint
    return (
        None if saving is None else GangSaving(saving.interval, saving.cost, saving.restart, saving.on_resize)
    )


def _datasets(
    scenario: Scenario, order: CanonicalOrder, domain_at: Mapping[str, int]
) -> tuple[tuple[Dataset, ...], dict[str, int]]:
    rows = [scenario.datasets[row] for row in order.datasets]
    datasets = tuple(
        Dataset(
            position,
            row.name,
            row.size_gib,
            frozenset(domain_at[name] for name in row.at),
            {domain_at[name]: in_s for name, in_s in row.arriving.items()},
        )
        for position, row in enumerate(rows)
    )
    return datasets, {dataset.name: dataset.id for dataset in datasets}


def _saving(row: ScenarioJob) -> Saving | None:
    if row.checkpoint is None:
        return None
    saving = row.checkpoint
    return Saving(exact(saving.interval), exact(saving.cost), exact(saving.restart), saving.on_resize)


def _spread(asks: Asks) -> Spread | None:
    spread = asks.spread
    return None if spread is None else Spread(spread.over, spread.max_skew, spread.max_per_domain)


class _AskMaker:
    """Turns what a job row asks per replica into the engine's ask."""

    def __init__(self, kind_at: Mapping[str, int], memory: Mapping[int, float], anything: list[int]) -> None:
        self.kind_at, self.memory, self.anything = kind_at, memory, anything

    def __call__(self, asks: Asks) -> Ask:
        accepted = self.anything
        if asks.accelerators is not None:
            accepted = [self.kind_at[name] for name in asks.accelerators]
        enough = 0.0 if asks.min_memory_gib is None else asks.min_memory_gib
        topology = asks.topology
        return Ask(
            n_replicas=asks.preferred_replicas,
            devices=asks.whole_devices,
            share_steps=asks.share_steps,
            cpus=asks.cpus,
            memory_gib=asks.memory_gib,
            kinds=tuple(kind for kind in accepted if self.memory[kind] >= enough),
            any_kind=asks.accelerators is None,
            required=None if topology is None else topology.required,
            preferred=None if topology is None else topology.preferred,
            peak_w=asks.peak_w if asks.peak_w is not None else asks.power_w,
            power_w=asks.power_w,
            n_min=asks.min_replicas if asks.is_elastic else None,
            n_max=asks.max_replicas if asks.is_elastic else None,
            spread=_spread(asks),
            max_wait_s=0.0 if topology is None or topology.max_wait is None else topology.max_wait,
        )


def power_children(facility: Facility) -> dict[int, tuple[int, ...]]:
    """For each domain, itself and all domains above it."""
    chains: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for position in range(len(facility.domains)):
        chain, at = [], position
        while at != NONE:
            chain.append(at)
            at = facility.domains[at].parent
        chains[position] = tuple(chain)
    return chains

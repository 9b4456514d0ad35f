"""The power tree as it stands: loads with their bounds, what is estimated against what is measured, what comes.

Everyone signed in may see it. Loads are IT load in watts, unless a name says meter.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from math import inf
from typing import Any, Final

from django.db import connection

from apps.jobs.lifecycle import State
from apps.power import readings
from apps.power.budget_selectors import envelope_limits_w
from apps.power.readings import DomainRow, LastWords, Word
from apps.power.telemetry.bounds import bound_loads, held_paths
from apps.power.telemetry.facts import NONE, Bound, Domain, Node, Part, Picture, Quality, Reading

_STEP_S: Final = 600  # of the forecast


@dataclass(frozen=True)
class Branch:
    """One domain of the tree.

    Attributes:
        limit_w: The tightest that is in force for it alone; None: no limit.
        event_limit_w: What events leave it; None: they leave it alone.
        envelope_w: What its envelope leaves it at this hour; None: nothing is said.
        held_by: Its own name or that of the domain above that nothing may start under; empty: none.
        n_below: Domains below it, all levels.
    """

    row: DomainRow
    position: int
    parent: int
    depth: int
    limit_w: float | None
    event_limit_w: float | None
    envelope_w: float | None
    bound: Bound
    words: LastWords
    is_held: bool
    n_below: int
    age_s: float | None  # of its meter's last word

    @property
    def load_w(self) -> float:
        return self.bound.load_w

    @property
    def shown_w(self) -> float:
        """What it draws, as far as it is known: where no meter is expected, what the model says of it."""
        is_modelled = self.bound.how == "reserved" and self.estimated_w is not None
        return self.estimated_w if is_modelled and self.estimated_w is not None else self.load_w

    @property
    def reserved_w(self) -> float:
        """What its jobs may draw at their peaks, with everything else at rest."""
        return self.bound.expected_w

    @property
    def share(self) -> float | None:
        """Of its limit."""
        return self.shown_w / self.limit_w if self.limit_w else None

    @property
    def headroom_w(self) -> float | None:
        """Left under its limit by the bound, which is never below the true load."""
        return None if self.limit_w is None else self.limit_w - max(self.load_w, self.shown_w)

    @property
    def estimated_w(self) -> float | None:
        """What the model says that it draws."""
        word = self.words.modelled
        return None if word is None else self.row.meter.it_w(word.draw_w)

    @property
    def measured_w(self) -> float | None:
        """What its meter says, if that may be relied on."""
        word = self.words.metered
        is_good = self.bound.how == "meter" and word is not None
        return self.row.meter.it_w(word.draw_w) if is_good and word is not None else None

    @property
    def meter_w(self) -> float:
        """The load at its meter, cooling and losses included."""
        return self.row.meter.fixed_w + self.row.meter.k * self.shown_w

    @property
    def off_by(self) -> float | None:
        """By what share of the measured load the estimate is too high; below 0: too low."""
        if self.measured_w is None or self.estimated_w is None or self.measured_w <= 0:
            return None
        return self.estimated_w / self.measured_w - 1


@dataclass(frozen=True)
class PowerTree:
    """All domains that power flows through, each after the one above it; siblings by name."""

    branches: tuple[Branch, ...]
    picture: Picture
    at: datetime
    meters: tuple[Any, ...] = field(default=())

    @cached_property
    def by_id(self) -> Mapping[int, Branch]:
        return {branch.row.id: branch for branch in self.branches}

    @cached_property
    def _index(self) -> Mapping[int, int]:
        """Where each domain stands in the tree, by its position."""
        return {branch.position: index for index, branch in enumerate(self.branches)}

    @cached_property
    def tops(self) -> tuple[Branch, ...]:
        return tuple(branch for branch in self.branches if branch.parent == NONE)

    def below(self, branch: Branch) -> tuple[Branch, ...]:
        """All domains below, each after the one above it."""
        first = self._index[branch.position] + 1
        return self.branches[first : first + branch.n_below]

    @property
    def shown_w(self) -> float:
        return sum(top.shown_w for top in self.tops)

    @property
    def meter_w(self) -> float:
        return sum(top.meter_w for top in self.tops)

    @property
    def limit_w(self) -> float | None:
        """What all of it may draw: each top's limit, or that of the domains below where each of them has one."""
        found = [self._limit_of(top) for top in self.tops]
        known = [limit_w for limit_w in found if limit_w is not None]
        return sum(known) if known and len(known) == len(found) else None

    def _limit_of(self, top: Branch) -> float | None:
        below = [one.limit_w for one in self.branches if one.parent == top.position]
        known = [limit_w for limit_w in below if limit_w is not None]
        limits = [] if top.limit_w is None else [top.limit_w]
        if known and len(known) == len(below):
            limits.append(sum(known))
        return min(limits, default=None)

    @property
    def quality(self) -> Quality:
        """The worst of the tops'."""
        order = list(Quality)
        return max((top.bound.quality for top in self.tops), key=order.index, default=Quality.MISSING)

    @property
    def off_by(self) -> float | None:
        """By what share the estimate is above what is measured, over the highest domains that have both."""
        counted: set[int] = set()
        measured_w = estimated_w = 0.0
        for one in self.branches:
            if one.parent in counted:
                counted.add(one.position)
            elif one.measured_w is not None and one.estimated_w is not None:
                counted.add(one.position)
                measured_w += one.measured_w
                estimated_w += one.estimated_w
        return estimated_w / measured_w - 1 if measured_w > 0 else None

    @property
    def n_meters(self) -> int:
        return sum(top.bound.n_meters for top in self.tops)

    @property
    def n_silent(self) -> int:
        return sum(top.bound.n_silent for top in self.tops)

    @property
    def newest_at(self) -> datetime | None:
        """When any meter last spoke."""
        spoken = [one.words.metered.at for one in self.branches if one.words.metered is not None]
        return max(spoken, default=None)


def power_tree(at: datetime, *, event_limits_w: Mapping[int, float] | None = None) -> PowerTree:
    """The tree with its loads; four queries, one more where there are envelopes, and where meters are silent.

    Args:
        event_limits_w: By domain id, the IT load that events leave it now.
    """
    rows = readings.domain_rows()
    words = readings.last_words([row.id for row in rows], at=at)
    sources = readings.meters()
    max_age_s = {source.name: source.max_age_s for source in sources}
    position = {row.id: index for index, row in enumerate(rows)}
    event_w = event_limits_w or {}
    envelope_w = envelope_limits_w(at) if any(row.has_envelope for row in rows) else {}
    limits = [_tightest(row.it_limit_w, event_w.get(row.id), envelope_w.get(row.id)) for row in rows]
    domains = [
        Domain(
            name=row.name,
            parent=NONE if row.parent_id is None else position[row.parent_id],
            limit_w=inf if limit_w is None else limit_w,
            reading=_reading(words[row.id].metered, row, max_age_s, at),
            meter=row.meter,
        )
        for row, limit_w in zip(rows, limits, strict=True)
    ]
    picture = bound_loads(domains, _nodes(domains, rows, position, at))
    held = held_paths(domains, picture)
    children: dict[int, list[int]] = defaultdict(list)
    for index, domain in enumerate(domains):
        children[domain.parent].append(index)
    n_below = _n_below(children, len(rows))
    branches: list[Branch] = []
    todo = [(index, 0) for index in reversed(children[NONE])]
    while todo:
        index, depth = todo.pop()
        row = rows[index]
        metered = words[row.id].metered
        branches.append(
            Branch(
                row=row,
                position=index,
                parent=domains[index].parent,
                depth=depth,
                limit_w=limits[index],
                event_limit_w=event_w.get(row.id),
                envelope_w=envelope_w.get(row.id),
                bound=picture.bounds[index],
                words=words[row.id],
                is_held=held[index],
                n_below=n_below[index],
                age_s=None if metered is None else (at - metered.at).total_seconds(),
            )
        )
        todo += [(child, depth + 1) for child in reversed(children[index])]
    return PowerTree(tuple(branches), picture, at, tuple(sources))


def _tightest(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _reading(
    word: Word | None, row: DomainRow, max_age_s: Mapping[str, float], at: datetime
) -> Reading | None:
    if word is None:
        return None
    age_s = (at - word.at).total_seconds()
    return Reading(word.draw_w, age_s, max_age_s.get(word.source, row.max_age_s), word.quality, word.source)


def _n_below(children: Mapping[int, Sequence[int]], n: int) -> list[int]:
    found = [0] * n
    order = list(children.get(NONE, ()))
    for index in order:
        order += children.get(index, ())
    for index in reversed(order):
        found[index] = sum(1 + found[child] for child in children.get(index, ()))
    return found


# What hangs below -------------------------------------------------------------------------------------------------


# What was reserved, less what a cap keeps from being drawn; one that is only written down keeps nothing from it.
_AT_REST: Final = """
SELECT node.power_id, sum(node.idle_w + node.n_devices * kind.idle_w), coalesce(sum(held.peak_w), 0)
FROM inventory_node node
JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
LEFT JOIN (
    SELECT placement.node_id, sum(CASE
        WHEN allocation.desired_power_cap_share = 1 OR coalesce(cap.is_recorded, false) THEN placement.peak_w
        ELSE least(placement.peak_w, greatest(0, allocation.desired_power_cap_share * kind.tdp_w - kind.idle_w) * (
            SELECT coalesce(sum(claim.share), 0)::float8 FROM jobs_deviceclaim claim
            WHERE claim.placement_id = placement.id AND claim.released_at IS NULL)) END) AS peak_w
    FROM jobs_placement placement
    JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id AND allocation.ended_at IS NULL
    JOIN inventory_node of ON of.id = placement.node_id
    JOIN inventory_acceleratortype kind ON kind.id = of.accelerator_type_id
    LEFT JOIN jobs_powercap cap ON cap.allocation_id = allocation.id
    GROUP BY placement.node_id
) held ON held.node_id = node.id
WHERE node.power_id IS NOT NULL GROUP BY node.power_id
"""
# Caps are those that whoever sets them said are in force, and when that was last heard; one that is only written down
# is none.
_PARTS: Final = """
SELECT node.power_id, allocation.job_id, sum(placement.peak_w), sum(claimed.share), sum(claimed.most_w),
    min(kind.idle_w), max(cap.observed_share) * max(kind.tdp_w),
    max(extract(epoch FROM %(at)s - cap.observed_at)::float8)
FROM jobs_placement placement
JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id AND allocation.ended_at IS NULL
JOIN inventory_node node ON node.id = placement.node_id
JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(claim.share), 0)::float8 AS share,
        coalesce(sum(claim.share), 0)::float8 * (kind.tdp_w - kind.idle_w) AS most_w
    FROM jobs_deviceclaim claim WHERE claim.placement_id = placement.id AND claim.released_at IS NULL
) claimed
LEFT JOIN jobs_powercap cap ON cap.allocation_id = allocation.id AND NOT cap.is_recorded
    AND cap.observed_share IS NOT NULL
WHERE node.power_id = ANY(%(domains)s) GROUP BY node.power_id, allocation.job_id
"""


def _nodes(
    domains: Sequence[Domain], rows: Sequence[DomainRow], position: Mapping[int, int], at: datetime
) -> list[Node]:
    """What hangs directly below each domain, jobs one by one only where a meter is silent."""
    with connection.cursor() as cursor:
        cursor.execute(_AT_REST)
        at_rest = [row for row in cursor.fetchall() if row[0] in position]
    parts: dict[int, list[Part]] = defaultdict(list)
    silent = {
        d for d, domain in enumerate(domains) if domain.reading is not None and not domain.reading.is_good
    }
    dark = [rows[d].id for d in range(len(domains)) if silent and _lowest_meter(domains, d) in silent]
    if dark:
        for domain_id, part in _parts(dark, at):
            parts[domain_id].append(part)
    found = []
    for domain_id, rest_w, peak_w in at_rest:
        lumped = (Part(0, peak_w, peak_w),) if domain_id not in parts else tuple(parts[domain_id])
        found.append(Node(position[domain_id], rest_w, lumped))
    return found


def _lowest_meter(domains: Sequence[Domain], d: int) -> int:
    """Position of the lowest domain at or above that has a meter; NONE: there is none."""
    while d != NONE and domains[d].reading is None:
        d = domains[d].parent
    return d


def _parts(domain_ids: Sequence[int], at: datetime) -> list[tuple[int, Part]]:
    with connection.cursor() as cursor:
        cursor.execute(_PARTS, {"domains": list(domain_ids), "at": at})
        rows = cursor.fetchall()
    found = []
    for domain_id, job_id, peak_w, share, most_w, idle_w, cap_w, age_s in rows:
        capped_w = None if cap_w is None else max(0.0, cap_w - idle_w) * share
        found.append((domain_id, Part(job_id, peak_w, most_w, capped_w, inf if age_s is None else age_s)))
    return found


# What comes ---------------------------------------------------------------------------------------------------------


_COMING: Final = """
WITH usual AS (SELECT avg(tdp_w) AS tdp_w, avg(idle_w) AS idle_w FROM inventory_acceleratortype),
ending AS (
    SELECT greatest(coalesce(allocation.observed_started_at, allocation.bound_at) + make_interval(
        secs => least(coalesce(job.time_limit_s, job.runtime_s), 1e9) - job.ran_s), %(at)s) AS at,
        (SELECT sum(peak_w) FROM jobs_placement placement WHERE placement.allocation_id = allocation.id) AS peak_w
    FROM jobs_allocation allocation JOIN jobs_job job ON job.id = allocation.job_id
    WHERE allocation.ended_at IS NULL
),
starting AS (
    SELECT reason.expected_start_at AS at, least(coalesce(job.time_limit_s, job.runtime_s), 1e9) - job.ran_s AS runs_s,
        job.n_devices::float8 * greatest(0, least(
            coalesce((job.spec->>'peak_w')::float8, (job.spec->>'power_w')::float8, kind.tdp_w, usual.tdp_w),
            coalesce(kind.tdp_w, usual.tdp_w)) - coalesce(kind.idle_w, usual.idle_w)) AS peak_w
    FROM scheduling_reason reason JOIN jobs_job job ON job.id = reason.job_id CROSS JOIN usual
    LEFT JOIN inventory_acceleratortype kind ON kind.name = job.spec->'accelerators'->>0
    WHERE job.state = %(queued)s AND NOT job.is_held
        AND reason.expected_start_at >= %(at)s AND reason.expected_start_at < %(until)s
)
SELECT 'end', date_bin(make_interval(secs => %(step)s), at, 'epoch'::timestamptz), NULL::timestamptz,
    sum(peak_w), count(*)
FROM ending WHERE at < %(until)s GROUP BY 2
UNION ALL
SELECT 'start', date_bin(make_interval(secs => %(step)s), at, 'epoch'::timestamptz),
    date_bin(make_interval(secs => %(step)s), at + make_interval(secs => runs_s), 'epoch'::timestamptz),
    sum(peak_w), count(*)
FROM starting GROUP BY 2, 3
"""


@dataclass(frozen=True, slots=True)
class Coming:
    """The load of the next hours as it follows from what runs and what is planned.

    Attributes:
        points: Instants and watts of IT load, from now on.
    """

    points: tuple[tuple[datetime, float], ...]
    n_starts: int
    n_ends: int

    @property
    def highest(self) -> tuple[datetime, float] | None:
        return max(self.points, key=lambda point: point[1], default=None)


def coming(tree: PowerTree, *, until: datetime) -> Coming:
    """What the facility will draw: running jobs end by their limits, waiting ones start when they are expected to.

    What runs is counted with what it draws now beside what was reserved for it; what starts, with its peak. Jobs
    without a limit or a declared run time run on. One query.
    """
    at = tree.at
    with connection.cursor() as cursor:
        cursor.execute(
            _COMING, {"at": at, "until": until, "step": float(_STEP_S), "queued": State.QUEUED.value}
        )
        rows = cursor.fetchall()
    # What runs draws now what it draws, whatever was reserved for it.
    reserved_w = sum(top.bound.expected_w for top in tree.tops)
    ratio = min(1.0, tree.shown_w / reserved_w) if reserved_w > 0 else 1.0
    change_w: dict[datetime, float] = defaultdict(float)
    for sort, step, end, peak_w, _ in rows:
        change_w[max(step, at)] += -ratio * (peak_w or 0.0) if sort == "end" else peak_w
        if sort == "start" and end is not None and end < until:
            change_w[max(end, step, at)] -= peak_w
    load_w, points = tree.shown_w, [(at, tree.shown_w)]
    for step in sorted(change_w):
        load_w = max(0.0, load_w + change_w[step])
        points.append((step, load_w))
    points.append((until, load_w))
    n_starts, n_ends = (sum(row[4] for row in rows if row[0] == sort) for sort in ("start", "end"))
    return Coming(tuple(points), n_starts, n_ends)


# Jobs ---------------------------------------------------------------------------------------------------------------


_JOBS: Final = """
SELECT job.id, job.name, team.name, kind.name, job.n_devices::float8, model.mean_w, model.peak_w, model.n_looks,
    (job.spec->>'power_w')::float8, coalesce((job.spec->>'peak_w')::float8, (job.spec->>'power_w')::float8), kind.tdp_w
FROM power_jobpowermodel model
JOIN jobs_job job ON job.id = model.job_id AND job.state = 'running'
JOIN teams_team team ON team.id = job.team_id
JOIN inventory_acceleratortype kind ON kind.id = model.accelerator_type_id
WHERE model.updated_at > %s AND model.peak_w IS NOT NULL
ORDER BY abs(model.peak_w - least(coalesce((job.spec->>'peak_w')::float8, (job.spec->>'power_w')::float8, kind.tdp_w),
    kind.tdp_w)) * job.n_devices DESC, job.id LIMIT %s
"""
_LATELY: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A running job whose devices are read: what one of them draws, and what was thought without readings."""

    job_id: int
    name: str
    team: str
    accelerator_type: str
    n_devices: float
    mean_w: float
    peak_w: float
    n_looks: int
    declared_mean_w: float | None
    declared_peak_w: float | None
    tdp_w: float

    @property
    def else_w(self) -> float:
        """The peak that would be reserved for one device had nothing been measured."""
        return self.tdp_w if self.declared_peak_w is None else min(self.declared_peak_w, self.tdp_w)

    @property
    def else_source(self) -> str:
        return "by its type" if self.declared_peak_w is None else "declared"

    @property
    def differs_w(self) -> float:
        """By how much less is reserved for all its devices because they were measured; below 0: more."""
        return (self.else_w - self.peak_w) * self.n_devices


def measured_jobs(at: datetime, *, most: int = 15) -> list[MeasuredJob]:
    """Running jobs that are measured, those first for which that changes most. Everyone signed in may see them."""
    with connection.cursor() as cursor:
        cursor.execute(_JOBS, [at - _LATELY, most])
        return [MeasuredJob(*row) for row in cursor.fetchall()]

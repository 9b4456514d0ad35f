"""What people ask who look for lost hours: who used them, how long work waited, and what would fit now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from django.db import connection
from django.db.models import Sum

from apps.inventory.models import Health
from apps.jobs.lifecycle import State
from apps.jobs.spec import SHARE_STEPS
from apps.power.models import NodeReading
from apps.scheduling.models import LossPart
from apps.teams.models import Team

IDLE_AFTER: Final = timedelta(minutes=10)
# Jobs by how many devices they ask for: the most of each class.
SIZES: Final[tuple[int, ...]] = (1, 8, 64, 512)
# Waits by how long they were, in seconds: the end of each class.
WAITS_S: Final[tuple[float, ...]] = (60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0)


@dataclass(frozen=True, slots=True)
class TeamHours:
    """What one team's jobs held, in device-seconds by bucket."""

    team_id: int
    name: str
    device_s: Mapping[str, float]

    @property
    def held_s(self) -> float:
        return sum(self.device_s.values())

    @property
    def productive_share(self) -> float | None:
        return self.device_s.get("productive", 0.0) / self.held_s if self.held_s else None


def hours_by_team(*, since: datetime, until: datetime, type_name: str | None = None) -> list[TeamHours]:
    """The ledger's quarters that begin in [since, until) by who held the devices, who held most first."""
    parts = LossPart.objects.filter(span__from_at__gte=since, span__from_at__lt=until, team__isnull=False)
    if type_name is not None:
        parts = parts.filter(span__accelerator_type__name=type_name)
    held: dict[tuple[int, str], dict[str, float]] = {}
    for team_id, name, bucket, amount in parts.values_list("team_id", "team__name", "bucket").annotate(
        Sum("amount")
    ):
        held.setdefault((team_id, name), {})[bucket] = float(Fraction(int(amount), SHARE_STEPS * 1000))
    rows = [TeamHours(team_id, name, device_s) for (team_id, name), device_s in held.items()]
    return sorted(rows, key=lambda row: (-row.held_s, row.name))


@dataclass(frozen=True, slots=True)
class UseStep:
    """Devices of one type in use, as the mean of the samples of one step."""

    from_at: datetime
    type_name: str
    is_simulated: bool
    claimed: float
    n_capacity: float


def use_by_step(*, since: datetime, until: datetime, step: timedelta) -> list[UseStep]:
    """Use over time, the oldest step first; steps without a sample are left out."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT date_bin(make_interval(secs => %s), sample.at, %s), kind.name, sample.is_simulated,"
            " avg(sample.claimed)::float8, avg(sample.n_capacity)::float8 FROM scheduling_utilizationsample sample"
            " JOIN inventory_acceleratortype kind ON kind.id = sample.accelerator_type_id"
            " WHERE sample.at >= %s AND sample.at < %s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            [step.total_seconds(), since, since, until],
        )
        return [UseStep(*row) for row in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class Waited:
    """How long jobs waited that started for the first time, those of one team or of all."""

    team: str  # empty: of all
    n_jobs: int
    median_s: float
    p95_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of jobs that started for the first time in a period.

    Attributes:
        by_size: (len(SIZES) + 1, len(WAITS_S) + 1) jobs by class of size, then by class of wait.
    """

    whole: Waited | None
    teams: tuple[Waited, ...]
    by_size: tuple[tuple[int, ...], ...]


_WAITS: Final = """
WITH started AS (
    SELECT team.name AS team, width_bucket(job.n_devices, %(sizes)s::numeric[]) AS size, greatest(0, extract(
        epoch FROM job.first_started_at - greatest(job.submitted_at, job.not_before_at)))::float8 AS wait_s
    FROM jobs_job job JOIN teams_team team ON team.id = job.team_id
    WHERE job.first_started_at >= %(since)s AND job.first_started_at < %(until)s
        AND (%(team)s::bigint IS NULL OR job.team_id = %(team)s)
        AND (%(kind)s::text IS NULL OR EXISTS (
            SELECT 1 FROM jobs_allocation allocation
            JOIN jobs_placement placement ON placement.allocation_id = allocation.id
            JOIN inventory_node node ON node.id = placement.node_id
            JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id
            WHERE allocation.job_id = job.id AND kind.name = %(kind)s))
), binned AS (SELECT *, width_bucket(wait_s, %(waits)s::float8[]) AS wait FROM started)
SELECT team, size, wait, count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_s),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY wait_s), max(wait_s)
FROM binned GROUP BY GROUPING SETS ((), (team), (size, wait)) HAVING count(*) > 0
ORDER BY team NULLS FIRST, size NULLS FIRST, wait
"""


def waits(
    *, since: datetime, until: datetime, type_name: str | None = None, team: Team | None = None
) -> Waits:
    """Of jobs whose first start fell into [since, until); who waits still is not in it. One query.

    Args:
        type_name: Of jobs that ever got devices of this type.
        team: Of its jobs alone.
    """
    asked = {
        "since": since,
        "until": until,
        "kind": type_name,
        "team": None if team is None else team.pk,
        # A class ends with its limit: what counts as above begins a millionth of a device later.
        "sizes": [most + 1 / SHARE_STEPS for most in SIZES],
        "waits": list(WAITS_S),
    }
    whole, teams = None, []
    by_size = [[0] * (len(WAITS_S) + 1) for _ in range(len(SIZES) + 1)]
    with connection.cursor() as cursor:
        cursor.execute(_WAITS, asked)
        for name, size, wait, n_jobs, *figures in cursor.fetchall():
            if name is not None:
                teams.append(Waited(name, n_jobs, *figures))
            elif size is None:
                whole = Waited("", n_jobs, *figures)
            else:
                by_size[size][wait] = n_jobs
    return Waits(whole, tuple(teams), tuple(tuple(row) for row in by_size))


@dataclass(frozen=True, slots=True)
class LargestFit:
    """Whole free nodes of one accelerator type: how many of them hang together at most."""

    type_name: str
    n_nodes: int
    n_devices: int
    n_devices_in_leaf: int
    leaf: str
    n_devices_in_spine: int
    spine: str


def largest_fits(at: datetime) -> tuple[LargestFit, ...]:
    """By type, what gang of whole nodes would fit now in one leaf, in one spine group, and anywhere.

    Counts nodes that take work and hold nothing; what is reserved for somebody is among them.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT kind.name, coalesce(spine.name, ''), coalesce(leaf.name, ''), count(*), sum(node.n_devices)"
            " FROM inventory_node node JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id"
            " JOIN inventory_cluster cluster ON cluster.id = node.cluster_id"
            " LEFT JOIN inventory_domain leaf ON leaf.id = node.leaf_id"
            " LEFT JOIN inventory_domain spine ON spine.id = leaf.parent_id"
            " WHERE cluster.is_enabled AND node.n_devices > 0 AND node.health = %s AND node.drain_asked_at IS NULL"
            " AND (node.cooldown_until_at IS NULL OR node.cooldown_until_at <= %s)"
            " AND NOT EXISTS (SELECT 1 FROM inventory_device device"
            "  WHERE device.node_id = node.id AND device.claimed_share > 0)"
            " AND NOT EXISTS (SELECT 1 FROM inventory_outsideuse use WHERE use.node_id = node.id)"
            " GROUP BY kind.name, spine.name, leaf.name ORDER BY 1, 2, 3",
            [Health.HEALTHY, at],
        )
        rows = cursor.fetchall()
    found = []
    for name in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == name]
        leaf = max((row for row in mine if row[2]), key=lambda row: row[4], default=None)
        spines: dict[str, int] = {}
        for _, spine, _, _, n_devices in mine:
            if spine:
                spines[spine] = spines.get(spine, 0) + n_devices
        spine = max(spines, key=lambda one: spines[one], default="")
        found.append(
            LargestFit(
                name,
                sum(row[3] for row in mine),
                sum(row[4] for row in mine),
                leaf[4] if leaf else 0,
                leaf[2] if leaf else "",
                spines.get(spine, 0),
                spine,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class HeldIdle:
    """A running job some of whose devices do nothing, as their own meters say.

    Attributes:
        n_idle: Devices that have drawn next to nothing above rest for `IDLE_AFTER`.
        n_read: Of its whole devices, those that a meter reads.
        idle_since_at: Since when the one of them that worked last does nothing.
        idle_device_s: Device-seconds lost so.
    """

    job_id: int
    name: str
    team: str
    user: str
    n_idle: int
    n_read: int
    idle_since_at: datetime
    idle_device_s: float


def held_idle(at: datetime, *, team: Team | None = None, most: int = 100) -> list[HeldIdle]:
    """Jobs that hold devices and let them lie, who loses most first. Shared devices are not judged."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH held AS (SELECT allocation.job_id, greatest(min(reading.quiet_since_at),"
            "   max(allocation.observed_started_at)) AS quiet_at,"
            "  bool_and(reading.quiet_since_at IS NOT NULL) AS is_quiet"
            "  FROM jobs_deviceclaim claim"
            "  JOIN inventory_device device ON device.id = claim.device_id"
            "  JOIN jobs_placement placement ON placement.id = claim.placement_id"
            "  JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            "  JOIN jobs_job job ON job.id = allocation.job_id"
            "  JOIN power_nodereading reading ON reading.node_id = device.node_id AND reading.index = device.index"
            "  WHERE claim.released_at IS NULL AND claim.share = 1 AND allocation.ended_at IS NULL"
            "   AND allocation.observed_started_at IS NOT NULL AND job.state = %(running)s"
            "   AND reading.at > %(fresh)s AND (%(team)s::bigint IS NULL OR job.team_id = %(team)s)"
            "  GROUP BY allocation.job_id, device.id)"
            " SELECT job_id, job.name, team.name, person.username,"
            "  count(*) FILTER (WHERE is_quiet AND quiet_at <= %(before)s), count(*),"
            "  max(quiet_at) FILTER (WHERE is_quiet AND quiet_at <= %(before)s),"
            "  sum(extract(epoch FROM %(at)s - quiet_at)::float8) FILTER (WHERE is_quiet AND quiet_at <= %(before)s)"
            " FROM held JOIN jobs_job job ON job.id = held.job_id JOIN teams_team team ON team.id = job.team_id"
            " JOIN teams_user person ON person.id = job.user_id GROUP BY job_id, job.name, team.name, person.username"
            " HAVING count(*) FILTER (WHERE is_quiet AND quiet_at <= %(before)s) > 0 ORDER BY 8 DESC, 1 LIMIT %(most)s",
            {
                "at": at,
                "before": at - IDLE_AFTER,
                "fresh": at - IDLE_AFTER,
                "running": State.RUNNING,
                "team": None if team is None else team.pk,
                "most": most,
            },
        )
        return [HeldIdle(*row) for row in cursor.fetchall()]


def n_devices_read(at: datetime) -> int:
    """Devices whose own meter spoke lately; without any nobody can be found idle."""
    return NodeReading.objects.filter(index__isnull=False, at__gt=at - IDLE_AFTER).count()

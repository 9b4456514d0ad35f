"""What the passes decided, and why the rest waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

from django.db import connection
from django.db.models import Avg, QuerySet
from django.db.models.functions import TruncHour

from apps.inventory.selectors import HealthCount
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import Policy
from apps.scheduling.idle import SPAN, in_floats
from apps.scheduling.models import Pass, PolicySetting, Reason, UtilizationSample
from apps.teams.models import Team

# What changes nothing that a plan rests on; everything else wakes the planner.
_IRRELEVANT: Final = (
    "allocation.bound",
    "allocation.cap_asked",
    "allocation.data_arrived",
    "allocation.started",
    "allocation.stop_requested",
    "forecast.%",
    "job.started",
    "pass.%",
    "power.reading%",
    "session.%",
    "token.%",
    "user.%",
)
_RULES: Final = (
    "allocation.cap_raised",
    "curtailment.committed",
    "demand_response.%",
    "maintenance.%",
    "policy.%",
    "power.limit%",
    "quota.%",
    "reservation.%",
)


# What the running service has otherwise than the engine: a job gets another size by a checkpoint and a restart.
USUAL: Final[Mapping[str, Any]] = {"resizes_by_restart": True, "shield_s": 60.0}


def current_policy() -> Policy:
    """The policy in force."""
    return policy_of(PolicySetting.objects.values_list("values", flat=True).first() or {})


def policy_of(values: Mapping[str, Any]) -> Policy:
    """A stored policy; what it does not say is as by default, and words it does not know are ignored."""
    known = {field.name for field in fields(Policy)}
    return Policy(**{**USUAL, **{name: value for name, value in values.items() if name in known}})


def last_pass() -> Pass | None:
    """The last pass that came to its end."""
    return Pass.objects.filter(finished_at__isnull=False).order_by("-id").first()


def reason_of(job: Job) -> Reason | None:
    """Why a job waits, as of the last pass; None for one that does not wait or was not looked at yet."""
    if job.state != State.QUEUED:
        return None
    return Reason.objects.filter(job=job).first()


def has_unseen_events(seen: str, seen_below: int) -> bool:
    """Whether something a plan rests on was logged that the picture `seen` does not contain."""
    return _has_unseen(seen, seen_below, "NOT kind LIKE ANY(%s)", _IRRELEVANT)


def has_unseen_rules(seen: str, seen_below: int) -> bool:
    """Whether a rule changed since that picture was taken."""
    return _has_unseen(seen, seen_below, "kind LIKE ANY(%s)", _RULES)


def _has_unseen(seen: str, seen_below: int, condition: str, kinds: tuple[str, ...]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint < %s OR EXISTS ("  # noqa: S608 (our own words)
            " SELECT 1 FROM events_event WHERE transaction_id >= %s"
            f" AND NOT pg_visible_in_snapshot(transaction_id::text::xid8, %s::pg_snapshot) AND {condition})",
            # A database restored elsewhere counts its transactions anew: then nothing is known to be seen.
            [seen_below, seen_below, seen, list(kinds)],
        )
        (found,) = cursor.fetchone() or (False,)
    return bool(found)


def passes() -> QuerySet[Pass]:
    """Passes that came to their end."""
    return Pass.objects.filter(finished_at__isnull=False)


@dataclass(frozen=True, slots=True)
class TypeUse:
    """Devices of one accelerator type now."""

    name: str
    is_simulated: bool
    n_capacity: int
    n_unhealthy: int  # not usable and not held
    claimed: float

    @property
    def free(self) -> float:
        return max(self.n_capacity - self.n_unhealthy - self.claimed, 0.0)

    @property
    def utilization(self) -> float:
        return self.claimed / self.n_capacity if self.n_capacity else 0.0


@dataclass(frozen=True, slots=True)
class UseNow:
    """What there is now: devices by type, and nodes by health; one query for both."""

    by_type: tuple[TypeUse, ...]
    by_health: Mapping[str, HealthCount]


def use_and_health() -> UseNow:
    """Devices by type, real and simulated apart; nodes and devices by state of health."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT kind.name, cluster.backend = 'simulated', node.health, count(*), coalesce(sum(node.n_devices), 0),"
            " coalesce(sum(held.n_devices), 0), coalesce(sum(held.n_free), 0), coalesce(sum(held.claimed), 0)::float8"
            " FROM inventory_node node JOIN inventory_acceleratortype kind ON kind.id = node.accelerator_type_id"
            " JOIN inventory_cluster cluster ON cluster.id = node.cluster_id"
            " LEFT JOIN (SELECT node_id, count(*) AS n_devices, count(*) FILTER (WHERE claimed_share = 0) AS n_free,"
            "  sum(claimed_share) AS claimed FROM inventory_device GROUP BY node_id) held ON held.node_id = node.id"
            " GROUP BY 1, 2, 3 ORDER BY 2, 1, 3"
        )
        rows = cursor.fetchall()
    types: dict[tuple[str, bool], list[float]] = {}
    health: dict[str, tuple[int, int]] = {}
    for name, is_simulated, state, n_nodes, n_declared, n_devices, n_free, claimed in rows:
        nodes_before, devices_before = health.get(state, (0, 0))
        health[state] = nodes_before + n_nodes, devices_before + n_declared
        if n_devices:
            sums = types.setdefault((name, is_simulated), [0, 0, 0.0])
            sums[0] += n_devices
            sums[1] += 0 if state == "healthy" else n_free
            sums[2] += claimed
    return UseNow(
        tuple(TypeUse(*key, int(sums[0]), int(sums[1]), sums[2]) for key, sums in types.items()),
        {state: HealthCount(state, *counts) for state, counts in sorted(health.items())},
    )


def use_now() -> tuple[TypeUse, ...]:
    """Devices by type, real and simulated apart."""
    return use_and_health().by_type


@dataclass(frozen=True, slots=True)
class TypeFree:
    """What is free of one accelerator type, in devices of the nodes that take work, and what of it is of no use."""

    name: str
    free: float
    of_no_use: float | None  # to a typical replica, as expected; None: nobody asks for the type
    of_no_use_to_gangs: (
        float | None
    )  # outside every domain that holds a typical gang; None: no gang asks for it

    @property
    def share(self) -> float | None:
        """Of what is free, of no use to a typical replica."""
        return None if self.of_no_use is None or not self.free else self.of_no_use / self.free

    @property
    def gang_share(self) -> float | None:
        """Of what is free, of no use to a typical gang."""
        return (
            None if self.of_no_use_to_gangs is None or not self.free else self.of_no_use_to_gangs / self.free
        )


def fragmentation_of(this: Pass) -> tuple[TypeFree, ...]:
    """What that pass left free, by type."""
    return tuple(TypeFree(*row) for row in this.fragmentation)


def fragmentation_now() -> tuple[TypeFree, ...]:
    """What the last pass that was carried out left free, by type."""
    last = Pass.objects.filter(finished_at__isnull=False, is_refused=False).order_by("-id").first()
    return () if last is None else fragmentation_of(last)


def fragmentation_by_hour(*, since: datetime, until: datetime) -> Mapping[datetime, tuple[TypeFree, ...]]:
    """The mean of each hour by type, the newest hour first."""
    found: dict[datetime, list[TypeFree]] = {}
    hours = (
        UtilizationSample.objects.filter(at__gte=since, at__lt=until, left_free__isnull=False)
        .annotate(hour=TruncHour("at", tzinfo=UTC))
        .values_list("hour", "accelerator_type__name")
        .annotate(Avg("left_free"), Avg("of_no_use"), Avg("of_no_use_to_gangs"))
        .order_by("-hour", "accelerator_type__name")
    )
    for hour, name, *means in hours:
        found.setdefault(hour, []).append(TypeFree(name, *means))
    return {hour: tuple(rows) for hour, rows in found.items()}


def samples(*, since: datetime, until: datetime) -> QuerySet[UtilizationSample]:
    """Utilization over time, the oldest first."""
    return (
        UtilizationSample.objects.filter(at__gte=since, at__lt=until)
        .select_related("accelerator_type")
        .order_by("at", "accelerator_type__name", "is_simulated")
    )


def longest_span() -> timedelta:
    """The longest span of samples that is shown at once."""
    return timedelta(days=31)


@dataclass(frozen=True, slots=True)
class ForecastErrors:
    """By how much jobs that started lately did so at another time than they were first told."""

    n_jobs: int
    median_s: float  # without regard to whether earlier or later
    p90_s: float
    bias_s: float  # the mean; positive: they started later
    mean_wait_s: float  # from the first word to the start

    @property
    def early_s(self) -> float:
        """The bias as so much earlier."""
        return -self.bias_s


_MOST_OUTCOMES: Final = 10_000


def forecast_errors(at: datetime, *, within: timedelta = timedelta(days=1)) -> ForecastErrors | None:
    """Of those that waited and started within that time, the last 10,000 at most; None if there are none."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY abs(off_s)),"
            " percentile_cont(0.9) WITHIN GROUP (ORDER BY abs(off_s)), avg(off_s), avg(wait_s) FROM"
            " (SELECT extract(epoch FROM started_at - foretold_start_at)::float8 AS off_s,"
            "  extract(epoch FROM started_at - foretold_at)::float8 AS wait_s FROM scheduling_forecastoutcome"
            "  WHERE started_at > %s AND started_at <= %s ORDER BY started_at DESC LIMIT %s) lately",
            [at - within, at, _MOST_OUTCOMES],
        )
        n_jobs, *figures = cursor.fetchone() or (0,)
        return ForecastErrors(n_jobs, *figures) if n_jobs else None


@dataclass(frozen=True, slots=True)
class Losses:
    """What became of some capacity, in device-seconds that sum to it exactly."""

    from_at: datetime
    until: datetime
    capacity_device_s: float
    device_s: Mapping[str, float]  # by bucket
    guessed_s: float  # of that time while no pass looked


# The ledger by steps; what a step guessed is that of its quarters, however many types and teams each of them has.
_LOSSES: Final = """
WITH spans AS (
    SELECT span.id, span.from_at, span.guessed_ms, date_bin(make_interval(secs => %(step_s)s), span.from_at, %(since)s)
        AS step_at, kind.name AS type_name
    FROM scheduling_lossspan span JOIN inventory_acceleratortype kind ON kind.id = span.accelerator_type_id
    WHERE span.from_at >= %(since)s AND span.from_at < %(until)s
), guessed AS (
    SELECT step_at, sum(guessed_ms)::bigint AS guessed_ms
    FROM (SELECT step_at, from_at, max(guessed_ms) AS guessed_ms FROM spans GROUP BY step_at, from_at) quarters
    GROUP BY step_at
)
SELECT spans.step_at, part.bucket, sum(part.amount), min(guessed.guessed_ms)
FROM spans JOIN scheduling_losspart part ON part.span_id = spans.id JOIN guessed ON guessed.step_at = spans.step_at
WHERE (%(type)s::text IS NULL OR spans.type_name = %(type)s) AND (%(team)s::bigint IS NULL OR part.team_id = %(team)s)
GROUP BY spans.step_at, part.bucket ORDER BY spans.step_at, part.bucket
"""


def losses(
    *,
    since: datetime,
    until: datetime,
    type_name: str | None = None,
    team: Team | None = None,
    step: timedelta = SPAN,
) -> list[Losses]:
    """The ledger's quarters of an hour that begin in [since, until), oldest first; one query.

    Args:
        team: What its jobs held alone; the capacity is what they held.
        step: So long is each row, counted from `since`; whole quarters of an hour.
    """
    asked: dict[str, Any] = {
        "since": since,
        "until": until,
        "step_s": step.total_seconds(),
        "type": type_name,
        "team": None if team is None else team.pk,
    }
    amounts: dict[datetime, dict[str, Fraction]] = {}
    guessed_ms: dict[datetime, int] = {}
    with connection.cursor() as cursor:
        cursor.execute(_LOSSES, asked)
        for from_at, bucket, amount, guessed in cursor.fetchall():
            amounts.setdefault(from_at, {})[bucket] = Fraction(int(amount), SHARE_STEPS * 1000)
            guessed_ms[from_at] = guessed
    return [
        Losses(
            from_at,
            from_at + step,
            float(sum(totals.values())),
            in_floats(totals, sum(totals.values(), Fraction(0))),
            guessed_ms[from_at] / 1000,
        )
        for from_at, totals in amounts.items()
    ]


def summed(rows: Sequence[Losses]) -> Losses | None:
    """Spans that follow one another, as one; None of none."""
    if not rows:
        return None
    totals: dict[str, Fraction] = {}
    for row in rows:
        for bucket, amount in row.device_s.items():
            totals[bucket] = totals.get(bucket, Fraction(0)) + Fraction(amount)
    capacity = sum(totals.values(), Fraction(0))
    return Losses(
        rows[0].from_at,
        rows[-1].until,
        float(capacity),
        in_floats(totals, capacity),
        sum(row.guessed_s for row in rows),
    )

"""What the planner decided lately, what waits for what, and how full the facility is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import connection
from django.db.models import Count, QuerySet, Sum

from apps.jobs import selectors as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.scheduling.models import Forecast, Pass, Reason, UtilizationSample
from apps.teams.models import User


def latest_pass() -> Pass | None:
    return Pass.objects.order_by("-id").first()


def passes() -> QuerySet[Pass]:
    """All passes, the newest first."""
    return Pass.objects.order_by("-id")


def n_waiting(viewer: User) -> int:
    """Jobs that wait and are not held."""
    return jobs.jobs_visible_to(viewer).filter(state=State.QUEUED, is_held=False).count()


def reason_of(job: Job) -> Reason | None:
    """Why it waits, as of the last pass that looked at it."""
    return Reason.objects.filter(job=job).first()


def forecasts_of(job: Job) -> QuerySet[Forecast]:
    return Forecast.objects.filter(job=job).order_by("-made_at")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The whole queue in figures."""

    n_jobs: int
    devices: Decimal
    oldest_at: datetime | None
    median_wait_s: float | None


def waiting(viewer: User, at: datetime) -> Waiting:
    """How much waits, and for how long; held jobs are not counted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(sum(n_devices), 0), min(queued_at),"
            " percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM %s - queued_at))"
            " FROM jobs_job WHERE state = 'queued' AND NOT is_held",
            [at],
        )
        n_jobs, devices, oldest_at, median_s = cursor.fetchone()
    return Waiting(n_jobs, devices, oldest_at, median_s)


def reserved_power_w() -> float:
    """IT watts reserved now: hosts at rest, devices at rest, and what runs at its peak; failed nodes at rest."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT coalesce(sum(node.idle_w + node.n_devices * type.idle_w), 0)"
            " FROM inventory_node node"
            " JOIN inventory_acceleratortype type ON type.id = node.accelerator_type_id)"
            " + (SELECT coalesce(sum(placement.peak_w), 0) FROM jobs_placement placement"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " WHERE allocation.ended_at IS NULL)"
        )
        return float(cursor.fetchone()[0])


def utilization_since(since: datetime) -> QuerySet[UtilizationSample]:
    """Samples by type from then on, the oldest first."""
    return (
        UtilizationSample.objects.filter(at__gte=since)
        .select_related("accelerator_type")
        .order_by("at", "id")
    )


@dataclass(frozen=True, slots=True)
class TeamLoad:
    """What one team holds and waits for, over all types."""

    team_id: int
    held: Decimal
    waiting: Decimal
    n_running: int
    n_waiting: int


def load_by_team() -> dict[int, TeamLoad]:
    """Devices held and waited for by each team that has any, from the jobs themselves."""
    loads = (
        Job.objects.filter(
            state__in=(State.QUEUED, State.STARTING, State.RUNNING, State.PAUSING, State.PREEMPTING)
        )
        .order_by()
        .values_list("team_id", "state")
        .annotate(n_jobs=Count("id"), devices=Sum("n_devices"))
    )
    found: dict[int, list[Decimal]] = {}
    for team_id, state, n_jobs, devices in loads:
        row = found.setdefault(team_id, [Decimal(0), Decimal(0), Decimal(0), Decimal(0)])
        is_waiting = state == State.QUEUED
        row[1 if is_waiting else 0] += devices or 0
        row[3 if is_waiting else 2] += n_jobs
    return {
        team_id: TeamLoad(team_id, held, waiting, int(n_running), int(n_queued))
        for team_id, (held, waiting, n_running, n_queued) in found.items()
    }


@dataclass(frozen=True, slots=True)
class Held:
    """Devices of one type that one team holds now."""

    team_id: int
    accelerator_type_id: int
    devices: Decimal


def held_by_team_and_type(team_ids: Sequence[int] | None = None) -> tuple[Held, ...]:
    """From the open claims, so that it is what is held and not what was asked."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job.team_id, node.accelerator_type_id, sum(claim.share) FROM jobs_deviceclaim claim"
            " JOIN jobs_placement placement ON placement.id = claim.placement_id"
            " JOIN jobs_allocation allocation ON allocation.id = placement.allocation_id"
            " JOIN jobs_job job ON job.id = allocation.job_id"
            " JOIN inventory_node node ON node.id = placement.node_id"
            " WHERE claim.released_at IS NULL AND (%s::bigint[] IS NULL OR job.team_id = ANY(%s::bigint[]))"
            " GROUP BY job.team_id, node.accelerator_type_id",
            [team_ids and list(team_ids), team_ids and list(team_ids)],
        )
        return tuple(Held(*row) for row in cursor.fetchall())

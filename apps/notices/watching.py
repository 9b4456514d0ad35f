"""What no single event of the log tells: a start that is expected at another time, a promise that cannot be kept."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction
from django.db.models import Count

from apps.inventory.models import Device, Health, Node
from apps.jobs.models import Job
from apps.notices import curtailments
from apps.notices.collecting import people_of
from apps.notices.kinds import Kind
from apps.notices.models import Collector, Notice
from apps.notices.words import listed, moment
from apps.notices.writing import Draft, write
from apps.reservations import selectors as reservations
from apps.reservations.models import Reservation

MOVED: Final = timedelta(hours=1)
_AHEAD: Final = timedelta(hours=24)
_MOST_MOVED: Final = 5000  # a look
_USABLE: Final = (Health.HEALTHY, Health.SUSPECT)


@transaction.atomic
def watch(*, at: datetime) -> list[Notice]:
    """Compare what people were told with what is so now; safe to run at any time."""
    if not Collector.objects.select_for_update(skip_locked=True).filter(pk=1).exists():
        return []  # somebody else looks; or nobody has begun to read the log
    return write([*_moved(at), *_at_risk(at), *curtailments.begun(at=at)], at=at)


# A start that nobody was told of before is taken as told: the job's page shows it.
_FORETOLD: Final = """
WITH due AS (
    SELECT reason.job_id, reason.expected_start_at, told.expected_start_at AS told_at
    FROM scheduling_reason reason
    JOIN jobs_job job ON job.id = reason.job_id AND job.state = 'queued'
    LEFT JOIN notices_toldstart told ON told.job_id = reason.job_id
    WHERE reason.expected_start_at IS NOT NULL
        AND (told.job_id IS NULL OR abs(extract(epoch FROM reason.expected_start_at - told.expected_start_at)) > %s)
    ORDER BY reason.job_id LIMIT %s
), written AS (
    INSERT INTO notices_toldstart (job_id, expected_start_at) SELECT job_id, expected_start_at FROM due
    ON CONFLICT (job_id) DO UPDATE SET expected_start_at = excluded.expected_start_at
)
SELECT job_id, expected_start_at, told_at FROM due WHERE told_at IS NOT NULL
"""


def _moved(at: datetime) -> Iterable[Draft]:
    with connection.cursor() as cursor:
        cursor.execute(_FORETOLD, [MOVED.total_seconds(), _MOST_MOVED])
        rows = {job_id: (now_at, told_at) for job_id, now_at, told_at in cursor.fetchall()}
    by_owner: dict[int, list[Job]] = defaultdict(list)
    for job in Job.objects.filter(pk__in=rows).defer("private", "spec").order_by("id"):
        by_owner[job.user_id].append(job)
    for user_id, jobs in sorted(by_owner.items()):
        told = []
        for job in jobs:
            now_at, told_at = rows[job.pk]
            how = "later" if now_at > told_at else "sooner"
            told.append(
                f"{job.name} (job {job.pk}) {how}, at about {moment(now_at)} instead of {moment(told_at)}"
            )
        first = jobs[0]
        now_at, told_at = rows[first.pk]
        is_one = len(jobs) == 1
        yield Draft(
            user_id=user_id,
            kind=Kind.FORECAST_MOVED,
            key=f"moved {at.isoformat()}",
            title=(
                f"{first.name} is expected {'later' if now_at > told_at else 'sooner'}: at about {moment(now_at)}"
                if is_one
                else f"{len(jobs)} of your jobs are expected at another time"
            ),
            body=f"Expected now: {listed(told, most=5)}. The page of a job says what it waits for.",
            path=f"/jobs/{first.pk}/" if is_one else "/queue/?mine=1",
            at=at,
            job_id=first.pk if is_one else None,
        )


def _at_risk(at: datetime) -> Iterable[Draft]:
    """Reservations that begin within a day, or are in use, and for which there are not enough good nodes."""
    booked = [one for one in reservations.windows(at, at + _AHEAD) if one.team_ids]
    if not booked:
        return
    node_ids = set().union(*(one.node_ids for one in booked))
    bad = Node.objects.filter(pk__in=node_ids).exclude(health__in=[one.value for one in _USABLE])
    bad_names = dict(bad.values_list("pk", "name"))
    type_ids = {one.accelerator_type_id for one in booked} - {None}
    usable = Device.objects.filter(
        node__health__in=[one.value for one in _USABLE], node__accelerator_type_id__in=type_ids
    )
    counted = usable.order_by().values_list("node__accelerator_type_id").annotate(n=Count("id"))
    good: dict[int | None, int] = defaultdict(int, dict(counted))
    rows = {row.pk: row for row in Reservation.objects.filter(pk__in={one.reservation_id for one in booked})}
    for one in booked:
        names = sorted(bad_names[pk] for pk in one.node_ids if pk in bad_names)
        is_short = one.accelerator_type_id is not None and good[one.accelerator_type_id] < (
            one.n_devices or 0
        )
        if not names and not is_short:
            continue
        why = (
            f"Out of service: {listed(names)}."
            if names
            else f"It needs {one.n_devices} devices; {good[one.accelerator_type_id]} are in service."
        )
        for user_id in sorted(people_of(rows[one.reservation_id])):
            yield Draft(
                user_id=user_id,
                kind=Kind.RESERVATION_AT_RISK,
                # Once a window: what changes of it is on its page.
                key=f"at risk {one.reservation_id} {one.starts_at.isoformat()}",
                title=f"Reservation {one.name} is at risk",
                body=f"{why} It {'began' if one.starts_at <= at else 'begins'} {moment(one.starts_at)}.",
                path=f"/reservations/{one.reservation_id}/",
                at=at,
            )

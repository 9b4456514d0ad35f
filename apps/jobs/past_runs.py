"""How long the last jobs of an owner ran: by that the run time of the next one is predicted.

An owner is a name that somebody gives their jobs in a team, and also that person as a whole. Counted are jobs that ran
and came to an end of their own, well or not, with the running time that was not thrown away by losses; one that
somebody stopped says nothing of how long it would have run. Two partial indexes hold just these: however many jobs
have ended, an owner costs a look at one place.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from apps.jobs.lifecycle import State
from apps.jobs.models import Job

# As the indexes `job_runs_by_name` and `job_runs_by_user` say it; only then are they used.
COUNTED: Final = (State.FAILED, State.SUCCEEDED, State.TIMED_OUT)
_LAST: Final = (
    "SELECT greatest(done.ran_s - done.lost_s, 1) AS took_s FROM jobs_job done"  # noqa: S608 (our own words)
    f" WHERE done.state IN ({', '.join(repr(state.value) for state in COUNTED)}) AND done.ran_s > 0"
    " AND done.user_id = {owner}.user_id{more} ORDER BY done.ended_at DESC, done.id DESC LIMIT 2"
)
_OF_NAME: Final = " AND done.team_id = {owner}.team_id AND done.name = {owner}.name"
_MEAN: Final = "SELECT avg(last.took_s) FROM ({last}) last"
_AT_ONCE: Final = 20_000


class Owner(NamedTuple):
    """Who says how long their jobs run."""

    user_id: int
    team_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds that the last jobs of somebody ran, the mean of two; None where there were none."""

    own_s: float | None  # those of the same name
    user_s: float | None  # any of theirs

    @property
    def best_s(self) -> float | None:
        """What says most of a job of that name."""
        return self.user_s if self.own_s is None else self.own_s


def _last(owner: str, *, of_name: bool) -> str:
    return _LAST.format(owner=owner, more=_OF_NAME.format(owner=owner) if of_name else "")


def of_owners(owners: Sequence[Owner]) -> Mapping[int, float]:
    """What the last jobs of these names took, by position; left out are those of which there were none."""
    found: dict[int, float] = {}
    with connection.cursor() as cursor:
        for first in range(0, len(owners), _AT_ONCE):
            some = owners[first : first + _AT_ONCE]
            cursor.execute(
                "SELECT asked.n, avg(last.took_s) FROM"  # noqa: S608 (our own words)
                " unnest(%s::bigint[], %s::bigint[], %s::text[]) WITH ORDINALITY asked(user_id, team_id, name, n)"
                f" CROSS JOIN LATERAL ({_last('asked', of_name=True)}) last GROUP BY asked.n",
                [list(column) for column in zip(*some, strict=True)],
            )
            found.update((first + n - 1, took_s) for n, took_s in cursor.fetchall())
    return found


def of_users(user_ids: Collection[int]) -> Mapping[int, float]:
    """What the last jobs of these people took, by id; left out are those who had none."""
    if not user_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT asked.user_id, avg(last.took_s)"  # noqa: S608 (our own words)
            " FROM unnest(%s::bigint[]) asked(user_id)"
            f" CROSS JOIN LATERAL ({_last('asked', of_name=False)}) last GROUP BY asked.user_id",
            [list(user_ids)],
        )
        return dict(cursor.fetchall())


def with_took(rows: QuerySet[Job]) -> QuerySet[Job]:
    """These jobs, each with what is known for it: for `took_by`, without another query."""
    return rows.annotate(
        own_took_s=RawSQL(_MEAN.format(last=_last("jobs_job", of_name=True)), ()),  # noqa: S611 (our own words)
        user_took_s=RawSQL(_MEAN.format(last=_last("jobs_job", of_name=False)), ()),  # noqa: S611
    )


def took_by(job: Job) -> Took:
    """What is known for this job."""
    if not hasattr(job, "own_took_s"):
        return of_jobs([job.pk]).get(job.pk, Took(None, None))
    own_s, user_s = job.own_took_s, getattr(job, "user_took_s", None)
    return Took(own_s, user_s)


def of_jobs(job_ids: Collection[int]) -> Mapping[int, Took]:
    """What is known for each of these jobs, by id."""
    if not job_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT asked.id,"  # noqa: S608 (our own words)
            f" ({_MEAN.format(last=_last('asked', of_name=True))}),"
            f" ({_MEAN.format(last=_last('asked', of_name=False))})"
            " FROM jobs_job asked WHERE asked.id = ANY(%s)",
            [list(job_ids)],
        )
        return {job_id: Took(own_s, user_s) for job_id, own_s, user_s in cursor.fetchall()}

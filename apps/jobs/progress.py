"""What attempts say of themselves: steps, how long they take by rank, how much is done, when a checkpoint was written.

Kept added up, one row an attempt. A post may come twice or late: step times of a step that was taken are dropped, and
neither the step nor the last checkpoint ever goes back.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import transaction

from apps.core.errors import InvalidInput
from apps.inventory import pace
from apps.jobs import steps
from apps.jobs.errors import NoSuchJob, NotNow, Stale
from apps.jobs.models import Allocation, Job, Placement, Progress
from apps.jobs.steps import Judgement, Ranks

JUDGED_EVERY: Final = timedelta(seconds=30)
KEPT_FOR: Final = timedelta(days=30)  # after the attempt's end
_CLOCKS_DIFFER: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One post of an attempt.

    Args:
        step_times_s: By rank, what its last step took: the rank's own work, without waiting for the others.
        checkpoint_at: It has just written a checkpoint.
        attempt: Which attempt says so (`SWITCHYARD_ATTEMPT`), so that a late word of an earlier one is told apart.
    """

    step: int | None = None
    step_times_s: Mapping[int, float] = field(default_factory=dict)
    fraction_done: float | None = None
    checkpoint_at: datetime | None = None
    attempt: int | None = None


@transaction.atomic
def note_progress(*, job_id: int, post: Post, at: datetime, is_listed: bool = False) -> Progress:
    """Take note of what the open attempt of a job says. Who may say it is for the caller to ask.

    Args:
        is_listed: Step times were given as a list in rank order: so are the paths of faults.

    Raises:
        NotNow: if the job has no open attempt.
        Stale: if another attempt said so.
        InvalidInput: for ranks that the attempt has not, or a time that cannot be.
    """
    allocation = _open_attempt(job_id, post.attempt)
    members = members_of(allocation)
    checkpoint_at = _believable(post.checkpoint_at, allocation, at)
    _require_ranks(post, len(members), is_listed=is_listed)
    row, _ = Progress.objects.select_for_update(no_key=True).get_or_create(
        allocation=allocation, defaults={"first_at": at, "at": at}
    )
    row.allocation = allocation  # at hand already: who answers with the row need not ask for it
    row.n_posts += 1
    row.at = max(row.at, at)
    if checkpoint_at is not None:
        row.checkpoint_at = max(checkpoint_at, row.checkpoint_at or checkpoint_at)
    is_news = post.step is None or row.step is None or post.step >= row.step
    if post.fraction_done is not None and is_news:
        row.fraction_done = post.fraction_done
    if post.step is not None:
        row.step = max(post.step, row.step or 0)
        has_new_times = _add(row, post, post.step, len(members))
        if has_new_times and (row.judged_at is None or at - row.judged_at >= JUDGED_EVERY):
            _judge(row, allocation, members, at)
    row.save()
    return row


def _open_attempt(job_id: int, attempt: int | None) -> Allocation:
    allocation = Allocation.objects.filter(job=job_id, ended_at=None).first()
    if allocation is None:
        state = Job.objects.filter(pk=job_id).values_list("state", flat=True).first()
        if state is None:
            raise NoSuchJob(job_id=job_id)
        raise NotNow("Only a job that runs makes progress.", job_id=job_id, state=state)
    if attempt is not None and attempt != allocation.fence:
        raise Stale(f"Attempt {allocation.fence} runs, not attempt {attempt}.", job_id=job_id)
    return allocation


def _believable(checkpoint_at: datetime | None, allocation: Allocation, at: datetime) -> datetime | None:
    """When the checkpoint was written, by our clock."""
    if checkpoint_at is None:
        return None
    if checkpoint_at > at + _CLOCKS_DIFFER:
        raise InvalidInput.of("checkpoint_at", "must not lie in the future", "out_of_range")
    if checkpoint_at < allocation.bound_at - _CLOCKS_DIFFER:
        raise InvalidInput.of("checkpoint_at", "must not lie before this attempt began", "out_of_range")
    return min(checkpoint_at, at).astimezone(UTC)


def _require_ranks(post: Post, n_ranks: int, *, is_listed: bool) -> None:
    faults = [
        {
            "path": f"step_times_s[{rank}]" if is_listed else f"step_times_s.{rank}",
            "code": "out_of_range",
            "message": f"is no rank of this attempt, which has {n_ranks} from 0 on",
        }
        for rank in sorted(post.step_times_s)
        if not 0 <= rank < n_ranks
    ]
    if faults:
        raise InvalidInput(faults[:100])


def _add(row: Progress, post: Post, step: int, n_ranks: int) -> bool:
    ranks = ranks_of(row)
    ranks.grow(n_ranks)
    taken = [ranks.add(rank, step, time_s) for rank, time_s in post.step_times_s.items()]
    return any(taken)


def ranks_of(row: Progress) -> Ranks:
    """The step times of an attempt; what is added there is added to the row."""
    return Ranks(row.last_steps, row.counts, row.means_s, row.ewmas_s, row.lasts_s)


# Who keeps the others waiting ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of an attempt: where it runs, and whom it is to be compared with."""

    node_id: int
    node: str
    group_index: int


def members_of(allocation: Allocation) -> list[Member]:
    """The members of an attempt by rank, numbered as they are when it is launched."""
    placements = Placement.objects.filter(allocation=allocation).order_by(
        "group_index", "first_rank", "node__name"
    )
    return [
        Member(node_id, node, group_index)
        for node_id, node, group_index, n_replicas in placements.values_list(
            "node_id", "node__name", "group_index", "n_replicas"
        )
        for _ in range(n_replicas)
    ]


def judgements(row: Progress, members: Sequence[Member]) -> list[Judgement]:
    """How each rank of which enough is known does in its group."""
    groups: dict[int, list[int]] = defaultdict(list)
    for rank, member in enumerate(members):
        groups[member.group_index].append(rank)
    ranks = ranks_of(row)
    return [one for group in groups.values() for one in steps.judge(ranks, group)]


def _judge(row: Progress, allocation: Allocation, members: Sequence[Member], at: datetime) -> None:
    """Tell the facility how its nodes do: a node is as slow as its slowest rank, since that sets the pace."""
    found = judgements(row, members)
    if not found:
        return
    row.judged_at = at
    by_node: dict[int, list[Judgement]] = defaultdict(list)
    for one in found:
        by_node[members[one.rank].node_id].append(one)
    paces = {
        node_id: pace.Pace(min(one.relative_speed for one in of), any(one.is_slow for one in of))
        for node_id, of in by_node.items()
    }
    pace.note_paces(allocation_id=allocation.pk, job_id=allocation.job_id, paces=paces, at=at)


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that is furthest behind the others of its group."""

    rank: int
    node: str
    step_s: float
    median_s: float
    slower_by: float
    is_straggling: bool


def slowest(row: Progress, allocation: Allocation) -> Slowest | None:
    """Who keeps the others waiting most, if enough is known of them."""
    members = members_of(allocation)
    found = judgements(row, members)
    if not found:
        return None
    worst = max(found, key=lambda one: (one.slower_by, -one.rank))
    return Slowest(
        worst.rank, members[worst.rank].node, worst.step_s, worst.median_s, worst.slower_by, worst.is_slow
    )


def prune(*, at: datetime) -> int:
    """Forget the progress of attempts that ended long ago."""
    n_deleted, _ = Progress.objects.filter(allocation__ended_at__lt=at - KEPT_FOR).delete()
    return n_deleted

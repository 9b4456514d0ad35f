"""What attempts say of themselves, on a real PostgreSQL."""

import threading
from datetime import datetime
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import InvalidInput
from apps.events.models import Event
from apps.inventory.models import Node, PaceReading
from apps.jobs import progress, selectors
from apps.jobs.errors import NotNow, Stale
from apps.jobs.models import Allocation, Job, Observed, Progress
from apps.jobs.progress import Post
from apps.jobs.steps import LEAST_STEPS
from apps.jobs.tests.builders import NOON, Fleet, allocate, end, fleet, grant, job, later, person, start, team

pytestmark = pytest.mark.django_db


@pytest.fixture
def here() -> Fleet:
    return fleet(4, 2)


def gang(here: Fleet, *, at: datetime = NOON, **fields: Any) -> Allocation:
    """Eight ranks, two on each of four nodes."""
    ours = team()
    of = job(ours, person(ours), replicas=8, at=at, **fields)
    grants = [
        grant(node, (0, 1), n_replicas=2, first_rank=2 * number) for number, node in enumerate(here.nodes)
    ]
    return start(of, here, *grants, at=at)


def post(of: Allocation, at_s: float, **fields: Any) -> Progress:
    return progress.note_progress(job_id=of.job_id, post=Post(**fields), at=later(at_s))


def steps(
    of: Allocation, *, slow: int | None, by: float = 1.4, begin_s: float = 0, n_steps: int = LEAST_STEPS
) -> None:
    """Steps of a second each, in which one rank may be slow."""
    for step in range(n_steps):
        times = {rank: by if rank == slow else 1.0 for rank in range(8)}
        number = int(begin_s) + step
        post(of, number, step=number, step_times_s=times)


def test_what_is_posted_is_kept_added_up(here):
    allocation = gang(here)
    post(allocation, 1, step=1, step_times_s={0: 1.0, 3: 2.0}, fraction_done=0.1)
    post(allocation, 2, step=2, step_times_s={0: 3.0})
    row = Progress.objects.get()

    assert (row.step, row.fraction_done, row.n_posts, row.first_at, row.at) == (2, 0.1, 2, later(1), later(2))
    assert row.counts == [2, 0, 0, 1, 0, 0, 0, 0]
    assert row.means_s[0] == 2.0


def test_a_post_that_comes_twice_or_late_changes_nothing(here):
    allocation = gang(here)
    for step, fraction in ((5, 0.5), (5, 0.5), (4, 0.4)):
        post(allocation, 9, step=step, step_times_s={0: 1.0}, fraction_done=fraction)
    row = Progress.objects.get()

    assert (row.step, row.fraction_done, row.counts[0]) == (5, 0.5, 1)


def test_a_last_checkpoint_never_goes_back_and_is_there_for_the_planner(here):
    allocation, other = gang(here), 12345
    assert selectors.last_checkpoint_at([allocation.pk]) == {}
    for at_s in (100, 50):
        post(allocation, 200, checkpoint_at=later(at_s))

    assert selectors.last_checkpoint_at([allocation.pk, other]) == {allocation.pk: later(100)}


@pytest.mark.parametrize("at_s", [-61, 300])
def test_a_checkpoint_of_another_time_is_refused(here, at_s):
    with pytest.raises(InvalidInput) as refused:
        post(gang(here), 200, checkpoint_at=later(at_s))
    assert refused.value.errors[0]["path"] == "checkpoint_at"


def test_a_clock_that_is_a_little_ahead_writes_no_checkpoint_in_the_future(here):
    assert post(gang(here), 200, checkpoint_at=later(230)).checkpoint_at == later(200)


def test_a_rank_that_is_not_there_is_refused_and_nothing_is_kept(here):
    allocation = gang(here)
    with pytest.raises(InvalidInput) as refused:
        post(allocation, 1, step=1, step_times_s={0: 1.0, 8: 1.0, 99: 1.0})

    assert [error["path"] for error in refused.value.errors] == ["step_times_s.8", "step_times_s.99"]
    assert not Progress.objects.exists()


def test_only_the_open_attempt_makes_progress(here):
    allocation = gang(here)
    with pytest.raises(Stale):
        post(allocation, 1, step=1, attempt=2)
    end(allocation, "succeeded", at=later(5))
    with pytest.raises(NotNow):
        post(allocation, 6, step=1)


def test_what_a_written_checkpoint_saved_is_not_lost(here):
    allocation = gang(here, checkpoint={"interval": 1000.0})
    post(allocation, 100, checkpoint_at=later(90))
    end(allocation, "node_lost", at=later(130))

    assert Job.objects.get().lost_s == 40


def test_without_a_word_what_was_declared_counts(here):
    allocation = gang(here, checkpoint={"interval": 100.0})
    end(allocation, "node_lost", at=later(130))

    assert Job.objects.get().lost_s == 30


# Stragglers


def speeds(here: Fleet) -> list[float]:
    return [Node.objects.get(pk=node.pk).measured_speed for node in here.nodes]


def test_a_slow_rank_is_named_with_its_node(here):
    allocation = gang(here)
    steps(allocation, slow=5)
    found = progress.slowest(Progress.objects.get(), allocation)

    assert (found.rank, found.node, found.is_straggling) == (5, here.nodes[2].name, True)
    assert found.slower_by == pytest.approx(0.4)


def test_slow_in_two_jobs_makes_a_node_a_straggler_and_says_so(here):
    for number in range(2):
        allocation = gang(here, at=later(100 * number))
        steps(allocation, slow=5, begin_s=100 * number)
        assert speeds(here)[2] == (1.0 if number == 0 else pytest.approx(1 / 1.4, abs=0.01))
        end(allocation, "succeeded", at=later(100 * number + 50))

    assert [speed for index, speed in enumerate(speeds(here)) if index != 2] == [1.0] * 3
    assert Event.objects.get(kind="node.straggling").subject_name == here.nodes[2].name


def test_slow_in_one_job_for_long_makes_a_node_a_straggler(here):
    allocation = gang(here)
    steps(allocation, slow=5)
    assert speeds(here)[2] == 1.0
    post(allocation, 1900, step=5000, step_times_s={rank: 1.4 if rank == 5 else 1.0 for rank in range(8)})

    assert speeds(here)[2] < 0.8


def test_a_job_that_keeps_pace_gives_a_node_its_speed_back(here):
    Node.objects.filter(pk=here.nodes[2].pk).update(measured_speed=0.7, measured_at=NOON)
    allocation = gang(here, at=later(700))
    steps(allocation, slow=None, begin_s=700)

    assert speeds(here)[2] == 0.85


def test_groups_are_not_held_together(here):
    ours = team()
    groups = [{"name": "trainer", "replicas": 3}, {"name": "server", "replicas": 3}]
    of = job(ours, person(ours), groups=groups)
    grants = [
        grant(here.nodes[rank % 3], (rank // 3,), group_index=rank // 3, n_replicas=1, first_rank=rank)
        for rank in range(6)
    ]
    allocation = start(of, here, *grants)
    for step in range(LEAST_STEPS):
        post(allocation, step, step=step, step_times_s={rank: 1.0 + 4 * (rank // 3) for rank in range(6)})

    assert not PaceReading.objects.exists()
    assert progress.slowest(Progress.objects.get(), allocation).slower_by == pytest.approx(0)


def test_nodes_are_judged_only_now_and_then(here):
    allocation = gang(here)
    steps(allocation, slow=5, n_steps=LEAST_STEPS + 5)

    assert Progress.objects.get().judged_at == later(LEAST_STEPS - 1)
    assert PaceReading.objects.get().at == later(LEAST_STEPS - 1)


@pytest.mark.django_db(transaction=True)
def test_posts_at_once_are_all_counted(here):
    allocation = gang(here)

    def post_as(rank: int) -> None:
        try:
            for step in range(5):
                post(allocation, step, step=step, step_times_s={rank: 1.0})
        finally:
            connection.close()

    threads = [threading.Thread(target=post_as, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    row = Progress.objects.get()
    assert row.counts == [5, 5, 5, 5, 0, 0, 0, 0]
    assert row.n_posts == 20


def test_progress_of_long_ago_is_forgotten(here):
    allocation = gang(here)
    post(allocation, 1, step=1)
    end(allocation, "succeeded", at=later(5))
    progress.prune(at=later(6))
    assert Progress.objects.exists()
    progress.prune(at=later(6) + progress.KEPT_FOR)

    assert not Progress.objects.exists()


def test_posting_leaves_the_job_as_it_is(here):
    allocation = gang(here)
    version = Job.objects.get().version
    post(allocation, 1, step=1, fraction_done=0.5)

    assert Job.objects.get().version == version  # or else each post had the planner read it anew


def test_an_allocation_that_has_not_been_seen_to_run_may_post(here):
    ours = team()
    allocation = allocate(job(ours, person(ours)), here)
    assert post(allocation, 1, step=1).step == 1
    assert Allocation.objects.get().observed_state != Observed.RUNNING

"""Who lets devices lie, how long work waited, what fits: what the Utilization page is made of."""

from datetime import datetime, timedelta

import pytest
from django.db import transaction

from apps.inventory.models import Node
from apps.inventory.tests.builders import domain
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import NOON, Fleet, fleet, grant, job, later, person, start, team
from apps.power.models import NodeReading
from apps.scheduling import losses, selectors, snapshot
from apps.scheduling import utilization as use
from apps.scheduling.idle import SPAN
from apps.scheduling.models import UtilizationSample

pytestmark = pytest.mark.django_db


def count_at(*instants: datetime) -> None:
    for at in instants:
        with transaction.atomic():
            losses.count(snapshot.take_snapshot(at), (), (), at=at)


# The ledger in steps --------------------------------------------------------------------------------------------


def test_longer_steps_hold_the_same_hours_and_the_same_guesses():
    fleet(2, 4)
    count_at(NOON, later(3 * 3600))
    quarters = selectors.losses(since=NOON, until=later(86_400))
    hours = selectors.losses(since=NOON, until=later(86_400), step=timedelta(hours=1))

    assert [row.from_at for row in hours] == [NOON + timedelta(hours=n) for n in range(3)]
    assert [row.capacity_device_s for row in hours] == [8 * 3600.0] * 3
    assert [row.guessed_s for row in hours] == [3600.0] * 3
    whole, same = selectors.summed(quarters), selectors.summed(hours)
    assert whole is not None
    assert same is not None
    assert (whole.device_s, whole.guessed_s) == (same.device_s, same.guessed_s)


def test_hours_by_team_are_what_the_ledger_says_of_each():
    here, ours, theirs = fleet(2, 4), team("ours"), team("theirs")
    for of, node, devices in ((ours, 0, 4), (theirs, 1, 1)):
        made = job(of, person(of), devices=devices, time_limit=86_400.0)
        start(made, here, grant(here.nodes[node], tuple(range(devices))))
    count_at(NOON, later(600), later(1200))
    rows = use.hours_by_team(since=NOON, until=later(86_400))

    assert [row.name for row in rows] == ["ours", "theirs"]
    for of, row in ((ours, rows[0]), (theirs, rows[1])):
        told = selectors.summed(selectors.losses(since=NOON, until=later(86_400), team=of))
        assert told is not None
        assert row.held_s == pytest.approx(told.capacity_device_s)
    assert use.hours_by_team(since=NOON, until=later(86_400), type_name="no such type") == []


# Waits ----------------------------------------------------------------------------------------------------------


def waited(of, me, *, devices: float, seconds: float, not_before_s: float = 0.0) -> Job:
    made = job(of, me, at=NOON, devices=devices, time_limit=600.0)
    Job.objects.filter(pk=made.pk).update(
        first_started_at=later(seconds), not_before_at=later(not_before_s) if not_before_s else None
    )
    return made


def test_waits_are_told_by_size_by_length_and_by_team():
    fleet(4, 8)
    ours, theirs = team("ours"), team("theirs")
    mine, yours = person(ours), person(theirs)
    waited(ours, mine, devices=1, seconds=59)
    waited(ours, mine, devices=0.5, seconds=60)
    waited(ours, mine, devices=8, seconds=4000)
    waited(theirs, yours, devices=2, seconds=100, not_before_s=90)
    waited(theirs, yours, devices=1, seconds=90_000)
    found = use.waits(since=NOON, until=later(80_000))  # the last one began later

    assert found.whole is not None
    assert (found.whole.n_jobs, found.whole.longest_s) == (4, 4000.0)
    assert [(row.team, row.n_jobs, row.median_s) for row in found.teams] == [
        ("ours", 3, 60.0),
        ("theirs", 1, 10.0),
    ]
    assert found.by_size[0] == (1, 1, 0, 0, 0, 0, 0, 0)
    assert found.by_size[1] == (1, 0, 0, 0, 1, 0, 0, 0)
    assert sum(map(sum, found.by_size)) == found.whole.n_jobs
    assert use.waits(since=later(100_000), until=later(200_000)).whole is None


def test_waits_of_a_type_are_those_of_jobs_that_got_it():
    here, ours = fleet(1, 4), team()
    made = waited(ours, person(ours), devices=1, seconds=30)
    waited(ours, person(ours), devices=1, seconds=40)
    start(made, here, grant(here.nodes[0], (0,)))

    found = use.waits(since=NOON, until=later(100), type_name=here.kind.name)
    assert found.whole is not None
    assert found.whole.n_jobs == 1
    assert use.waits(since=NOON, until=later(100), type_name="other").whole is None


# What fits ------------------------------------------------------------------------------------------------------


def test_the_largest_fit_counts_whole_free_nodes_that_hang_together():
    here = fleet(6, 4)
    spine = domain("s1", "spine")
    leaves = [domain("l1", "leaf", spine), domain("l2", "leaf", spine)]
    for n, node in enumerate(here.nodes[:5]):
        Node.objects.filter(pk=node.pk).update(leaf=leaves[n // 3])
    ours = team()
    start(job(ours, person(ours), devices=1, time_limit=600.0), here, grant(here.nodes[0], (3,)))
    Node.objects.filter(pk=here.nodes[1].pk).update(health="failed")
    Node.objects.filter(pk=here.nodes[2].pk).update(cooldown_until_at=later(60))

    (found,) = use.largest_fits(NOON)
    assert (found.n_devices_in_leaf, found.leaf) == (8, "l2")
    assert (found.n_devices_in_spine, found.n_devices, found.n_nodes) == (8, 12, 3)
    (then,) = use.largest_fits(later(60))
    assert (then.n_devices_in_leaf, then.n_devices_in_spine, then.n_devices) == (8, 12, 16)


# Held idle ------------------------------------------------------------------------------------------------------


def read(here: Fleet, node: int, quiet_s: dict[int, float | None], *, at_s: float) -> None:
    """What device meters said last: quiet since so many seconds after noon (None: at work)."""
    for index, since_s in quiet_s.items():
        NodeReading.objects.create(
            node=here.nodes[node],
            index=index,
            at=later(at_s),
            draw_w=100.0,
            source="dcgm",
            quiet_since_at=None if since_s is None else later(since_s),
        )


def test_devices_that_are_held_and_do_nothing_are_found_with_their_hours():
    here, ours = fleet(2, 4), team()
    me = person(ours)
    idle, busy = (job(ours, me, devices=4, time_limit=86_400.0, name=name) for name in ("idle", "busy"))
    start(idle, here, grant(here.nodes[0], (0, 1, 2, 3)))
    start(busy, here, grant(here.nodes[1], (0, 1, 2, 3)))
    started_s = (Allocation.objects.get(job=idle).observed_started_at - NOON).total_seconds()  # type: ignore[operator]
    # Of the first, one device works, one became quiet a moment ago, one was quiet before the job even began.
    read(here, 0, {0: None, 1: 1950.0, 2: 1000.0, 3: -5000.0}, at_s=2000)
    read(here, 1, {0: None, 1: None, 2: None, 3: None}, at_s=2000)

    (found,) = use.held_idle(later(2000))
    assert (found.name, found.n_idle, found.n_read) == ("idle", 2, 4)
    assert found.idle_since_at == later(1000)
    assert found.idle_device_s == pytest.approx(1000 + 2000 - started_s)
    assert use.held_idle(later(2000), team=team("others")) == []
    assert use.n_devices_read(later(2000)) == 8
    # Nobody is called idle by what was said long ago.
    assert use.held_idle(later(2000) + use.IDLE_AFTER) == []


def test_use_is_the_mean_of_each_step():
    here = fleet(1, 8)
    for seconds, claimed in ((0, 2.0), (300, 4.0), (900, 8.0)):
        UtilizationSample.objects.create(
            at=later(seconds),
            accelerator_type=here.kind,
            is_simulated=True,
            n_capacity=8,
            n_unhealthy=0,
            claimed=claimed,
        )
    rows = use.use_by_step(since=NOON, until=later(3600), step=SPAN)
    assert [(row.from_at, row.claimed, row.n_capacity) for row in rows] == [
        (NOON, 3.0, 8.0),
        (later(900), 8.0, 8.0),
    ]

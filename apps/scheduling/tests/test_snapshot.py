"""What is read: what a process remembers between pictures never shows in them."""

from datetime import timedelta
from math import inf

import pytest

from apps.inventory import outside
from apps.inventory.models import Backend, Cluster, Domain, Health
from apps.jobs import services as jobs
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, start, team
from apps.power.models import PowerLimit
from apps.reservations.models import Reservation
from apps.scheduling import snapshot
from apps.scheduling.engine.facts import Snapshot
from apps.staging import services as staging
from apps.staging.models import Copy, Dataset, Store
from apps.teams.models import Quota

pytestmark = pytest.mark.django_db


def take(seconds: float = 0) -> Snapshot:
    """The picture with what is remembered, which must be the one that is read afresh."""
    remembered = snapshot.take_snapshot(later(seconds)).snapshot
    snapshot.forget()
    fresh = snapshot.take_snapshot(later(seconds)).snapshot
    for name in ("now_s", "running", "queue", "teams", "bookings", "datasets", "staging_gib_per_s"):
        assert getattr(remembered, name) == getattr(fresh, name), name
    assert remembered.facility.domains == fresh.facility.domains
    assert remembered.facility.kinds == fresh.facility.kinds
    assert (remembered.is_usable == fresh.is_usable).all()
    return remembered


def booking(name: str, here, *teams, starts: float, ends: float, **fields) -> Reservation:
    made = Reservation.objects.create(
        name=name, starts_at=later(starts), ends_at=later(ends), created_at=NOON, **fields
    )
    made.nodes.set([here.nodes[0]])
    made.teams.set(teams)
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda w: jobs.update_job(job_id=w.waiting.pk, actor=w.me, at=NOON, priority=9, time_limit_s=5.0),
        lambda w: jobs.update_job(job_id=w.waiting.pk, actor=w.me, at=NOON, replicas=3),
        lambda w: jobs.hold_job(job_id=w.waiting.pk, actor=w.me, at=NOON),
        lambda w: jobs.stop_job(job_id=w.waiting.pk, actor=w.me, at=NOON),
        lambda w: jobs.stop_job(job_id=w.running.pk, actor=w.me, at=NOON),
        lambda w: jobs.update_job(job_id=w.running.pk, actor=w.me, at=NOON, time_limit_s=30.0),
        lambda w: end(w.allocation, "node_lost", at=later(5)),
        lambda w: end(w.allocation, "succeeded", at=later(5)),
        lambda w: fleet(),
        lambda w: team(),
        lambda w: Quota.objects.create(team=w.ours, accelerator_type=w.here.kind, entitlement=3),
        lambda w: booking("friday", w.here, w.ours, starts=60, ends=120),
        lambda w: (
            w.here.nodes[1].__class__.objects.filter(pk=w.here.nodes[1].pk).update(health=Health.FAILED)
        ),
        lambda w: Cluster.objects.filter(pk=w.here.cluster.pk).update(is_enabled=False),
        lambda w: PowerLimit.objects.create(
            domain=Domain.objects.create(name="hall", kind="hall"), limit_w=5.0
        ),
        lambda w: w.here.kind.__class__.objects.filter(pk=w.here.kind.pk).update(tdp_w=900),
        lambda w: fleet(backend=Backend.SIMULATED, kind=w.here.kind.name),
        # A data set that comes before the others; one that moves, goes, is wanted; a road that opens or shuts.
        lambda w: Dataset.objects.filter(name="first").delete(),
        lambda w: Dataset.objects.filter(name="second").delete(),
        lambda w: w.lay("third", w.near),
        lambda w: Copy.objects.filter(dataset__name="second").update(domain=w.near),
        lambda w: Copy.objects.all().delete(),
        lambda w: staging.request_stage(
            dataset_id=Dataset.objects.get(name="second").pk, to_domain_id=w.near.pk, for_job_id=None, at=NOON
        ),
        lambda w: Store.objects.all().delete(),
        lambda w: Store.objects.update(rate_gib_per_s=0.25),
        lambda w: w.here.nodes[1].__class__.objects.filter(pk=w.here.nodes[1].pk).update(storage=w.near),
        lambda w: job(w.ours, w.me, datasets=["second", "first"]),
    ],
)
def test_a_change_is_seen_by_who_remembers_what_was_before(change):
    class World:
        here, ours = fleet(2, 4), team()
        me = person(ours)
        running = job(ours, me, devices=2, time_limit=600.0)
        allocation = start(running, here, grant(here.nodes[0], (0, 1)))
        waiting = job(ours, me, devices=0.5, replicas=2)
        near, far = (Domain.objects.create(name=name, kind="storage") for name in ("near", "far"))
        for node, place in zip(here.nodes, (near, far), strict=True):
            node.__class__.objects.filter(pk=node.pk).update(storage=place)
            Store.objects.create(domain=place, base_uri=f"/data/{place}", rate_gib_per_s=2.0)

        @staticmethod
        def lay(name, place):
            Copy.objects.create(dataset=Dataset.objects.create(name=name, size_gib=4.0), domain=place)

        lay("first", near)
        lay("second", far)
        job(ours, me, datasets=["second"])
        start(job(ours, me, datasets=["first", "second"]), here, grant(here.nodes[1]))

    take()
    change(World)
    take(10)
    take(70)


def test_a_running_job_ends_when_its_limit_ends_and_never_in_the_past():
    here, ours = fleet(), team()
    start(job(ours, person(ours), time_limit=60.0), here)

    assert take(10).running[0].ends_s == later(60).timestamp()
    assert take(99).running[0].ends_s == later(99 + 10).timestamp()


def test_a_limit_counts_what_ran_before():
    here, ours = fleet(), team()
    made = end(start(job(ours, person(ours), time_limit=60.0), here), "node_lost", at=later(20))

    assert take(30).queue[0].limit_s == 40.0
    start(made, here, at=later(100))
    assert take(110).running[0].ends_s == later(140).timestamp()


def test_without_a_limit_the_declared_run_time_counts():
    here, ours = fleet(), team()
    start(job(ours, person(ours), runtime=60.0), here)
    job(ours, person(ours))
    seen = take(10)

    assert seen.running[0].ends_s == later(60).timestamp()
    assert (seen.queue[0].limit_s, seen.queue[0].work_s) == (inf, inf)


def test_the_lower_of_two_limits_counts():
    hall = Domain.objects.create(name="hall", kind="hall")
    PowerLimit.objects.create(domain=hall, hard_limit_w=900.0, limit_w=500.0)
    fleet(power=hall)
    assert take().facility.domains[0].limit_w == 500.0


def test_windows_that_repeat_are_unfolded_for_two_months():
    here = fleet()
    booking("nightly", here, starts=0, ends=3600, rrule="FREQ=WEEKLY")
    starts = [one.start_s for one in take(7200).bookings]

    assert starts == [(NOON + timedelta(weeks=week)).timestamp() for week in range(1, 9)]


def test_a_job_names_the_window_that_comes_next():
    here, ours = fleet(), team()
    booking("nightly", here, ours, starts=0, ends=3600, rrule="FREQ=WEEKLY")
    job(ours, person(ours), reservation="nightly")
    seen = take(7200)

    assert seen.bookings[seen.queue[0].shape.reservation].start_s == (NOON + timedelta(weeks=1)).timestamp()


def test_a_job_whose_reservation_is_over_is_left_out_with_a_reason():
    here, ours = fleet(), team()
    booking("friday", here, ours, starts=0, ends=3600)
    made = job(ours, person(ours), reservation="friday")
    taken = snapshot.take_snapshot(later(7200))

    assert taken.snapshot.queue == ()
    assert [(wait.job_id, wait.code) for wait in taken.left_out] == [(made.pk, "reservation")]


def test_accepted_types_are_those_with_enough_memory_in_the_order_asked():
    big, small = fleet(kind="big"), fleet(kind="small")
    small.kind.memory_gib = 40
    small.kind.save()
    ours = team()
    job(ours, person(ours), accelerators=["small", "big"])
    job(ours, person(ours), min_memory_gib=60.0)
    seen = take()
    names = [[seen.facility.kinds[k].name for k in gang.shape.asks[0].kinds] for gang in seen.queue]

    assert names == [["small", "big"], ["big"]]
    assert big.kind.name == "big"


def test_jobs_of_one_shape_share_it():
    fleet()
    ours = team()
    me = person(ours)
    for seconds in (60.0, 90.0):
        job(ours, me, time_limit=seconds)
    first, second = snapshot.take_snapshot(NOON).snapshot.queue
    assert first.shape is second.shape
    assert snapshot.take_snapshot(NOON).snapshot.queue[0] is first


def test_jobs_of_several_teams_share_a_shape():
    fleet()
    for ours in (team(), team()):
        job(ours, person(ours))
    first, second = snapshot.take_snapshot(NOON).snapshot.queue
    assert first.team != second.team
    assert first.shape is second.shape


def test_a_data_set_is_where_it_lies_and_comes_elsewhere_by_the_slowest_way_there_is():
    near, far, away = (Domain.objects.create(name=name, kind="storage") for name in ("near", "far", "away"))
    here = fleet(3)
    for node, place in zip(here.nodes, (near, far, away), strict=True):
        node.__class__.objects.filter(pk=node.pk).update(storage=place)
    Store.objects.create(domain=near, base_uri="/data/near", rate_gib_per_s=4.0)
    Store.objects.create(domain=far, base_uri="/data/far", rate_gib_per_s=2.0)
    made = Dataset.objects.create(name="corpus", size_gib=8.0)
    Copy.objects.create(dataset=made, domain=far)
    seen = take()
    position = {domain.name: place for place, domain in enumerate(seen.facility.domains)}

    (found,) = seen.datasets
    assert (found.id, found.at, seen.staging_gib_per_s) == (made.pk, {position["far"]}, 2.0)
    # To where nothing stands it comes at no time; to the near store it is not on its way.
    assert found.arrives_s == {position["away"]: inf}


def outside_use(here, node: int, *indices: int, until: float | None = None) -> None:
    use = outside.Use(
        node_id=here.nodes[node].pk,
        key="17",
        device_indices=indices,
        since_at=NOON,
        until_at=None if until is None else later(until),
    )
    outside.take_uses(cluster_id=here.cluster.pk, uses=[use], at=NOON)


def test_devices_that_somebody_else_holds_are_held_until_the_end_of_that_work():
    here, ours = fleet(2, 4), team()
    job(ours, person(ours), devices=4)
    take()
    outside_use(here, 0, 1, 3, until=60)

    (held,) = take(1).running

    assert [(share.node, share.devices) for share in held.placing] == [(0, (1, 3))]
    assert held.ends_s == snapshot.seconds(later(60))
    assert not held.gang.preemptible


def test_what_the_ledger_has_given_away_too_is_not_held_twice():
    here, ours = fleet(1, 4), team()
    start(job(ours, person(ours)), here, grant(here.nodes[0], (1,)))
    outside_use(here, 0, 1, 3)

    devices = [share.devices for running in take().running for share in running.placing]

    assert sorted(devices) == [(1,), (3,)]

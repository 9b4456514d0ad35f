"""Whoever remembers the last picture and reads what changed sees what one sees who reads everything."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event as Signal

import pytest
from django.db import connection, transaction

from apps.inventory.models import Cluster, Health, Node
from apps.jobs import services as jobs
from apps.jobs.errors import NotNow, Stale
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, request, start, team
from apps.reservations.models import Reservation
from apps.scheduling import snapshot
from apps.scheduling.engine.predict import predicted_s
from apps.scheduling.snapshot import Taken
from apps.teams.models import Quota

pytestmark = pytest.mark.django_db(transaction=True)

_COMPARED = ("now_s", "running", "queue", "teams", "bookings", "quota_is_checked")


class Rememberer:
    """A process of its own, as far as memory goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._memory, self._patch = snapshot._Memory(), monkeypatch

    def take(self, seconds: float) -> Taken:
        self._patch.setattr(snapshot, "_memory", self._memory)
        return snapshot.take_snapshot(later(seconds))


def predicted(taken: Taken) -> list[float]:
    """Positions of histories are each memory's own; what is read there is not."""
    gangs = [*taken.snapshot.queue, *(one.gang for one in taken.snapshot.running)]
    return [predicted_s(gang, taken.snapshot.history_s) for gang in gangs]


def same(ours: Taken, fresh: Taken) -> None:
    for name in _COMPARED:
        assert getattr(ours.snapshot, name) == getattr(fresh.snapshot, name), name
    for name in ("never_satisfied", "left_out", "gangs", "cooldown_s", "rule_versions"):
        assert getattr(ours, name) == getattr(fresh, name), name
    assert list(ours.gangs) == list(fresh.gangs)
    assert predicted(ours) == predicted(fresh)
    assert ours.snapshot.facility.domains == fresh.snapshot.facility.domains
    assert ours.snapshot.facility.kinds == fresh.snapshot.facility.kinds
    assert ours.snapshot.facility.node_name == fresh.snapshot.facility.node_name
    assert (ours.snapshot.facility.cluster == fresh.snapshot.facility.cluster).all()
    assert (ours.snapshot.is_usable == fresh.snapshot.is_usable).all()
    assert (ours.snapshot.is_failed == fresh.snapshot.is_failed).all()


class World:
    """Things happen to it, one at a time, whatever comes to mind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.here, self.there = fleet(3, 4), fleet(2, 4)
        self.ours, self.theirs = team(), team()
        self.me, self.you = (person(self.ours, self.theirs) for _ in range(2))
        self.seconds = 0.0
        self.booking = Reservation.objects.create(
            name="nightly", starts_at=NOON, ends_at=later(300), rrule="FREQ=DAILY;COUNT=2", created_at=NOON
        )
        self.booking.teams.set([self.ours])
        self.booking.nodes.set([self.here.nodes[0]])

    @property
    def at(self):
        return later(self.seconds)

    def step(self) -> None:
        self.seconds += self.chance.choice((0.0, 1.0, 20.0, 200.0))
        # What the ledger refuses is no change; it must not be seen either.
        with_luck = self.chance.choice(
            [
                self.submit, self.submit, self.submit, self.submit, self.allocate, self.allocate, self.allocate,
                self.report, self.report, self.stop, self.hold, self.release, self.update, self.quietly, self.node,
                self.quota, self.cluster, self.roll_back, self.build, self.time_limit,
            ]
        )  # fmt: skip
        with suppress(NotNow, Stale):
            with_luck()

    def some(self, **state) -> Job | None:
        found = list(Job.objects.filter(**state).order_by("id"))
        return self.chance.choice(found) if found else None

    def submit(self) -> None:
        after = self.some(team=self.ours)
        more = self.chance.choice(
            [
                {}, {"held": True}, {"devices": 0.5}, {"replicas": 2, "devices": 2}, {"reservation": "nightly"},
                {"array": {"size": 3, "max_running": 1}}, {"after": [after.pk] if after else []},
                {"groups": [{"name": "head", "devices": 0}, {"name": "work", "replicas": 2}]},
                {"not_before": later(self.seconds + 50)}, {"runtime": 60.0},
            ]
        )  # fmt: skip
        if more.get("reservation") and self.seconds >= 86_400:
            return
        names = {"name": self.chance.choice(("train", "tune", "serve"))}
        limit = {"time_limit": self.chance.choice((30.0, 600.0))}
        job(self.ours, self.chance.choice((self.me, self.you)), at=self.at, **{**names, **limit, **more})

    def allocate(self) -> None:
        waiting = self.some(state=State.QUEUED)
        if waiting is None:
            return
        node = self.chance.choice(self.here.nodes)
        start(waiting, self.here, grant(node, (self.chance.randrange(4),)), at=self.at)

    def report(self) -> None:
        rows = list(Allocation.objects.filter(ended_at=None).order_by("id"))
        if rows:
            outcome = self.chance.choice(("succeeded", "failed", "vacated", "start_failed", "node_lost"))
            end(self.chance.choice(rows), outcome, at=self.at)

    def stop(self) -> None:
        if found := self.some():
            jobs.stop_job(job_id=found.pk, actor=self.me, at=self.at)

    def hold(self) -> None:
        if found := self.some(state=State.QUEUED):
            jobs.hold_job(job_id=found.pk, actor=self.me, at=self.at)

    def release(self) -> None:
        if found := self.some(is_held=True):
            jobs.release_job(job_id=found.pk, actor=self.me, at=self.at)

    def update(self) -> None:
        if found := self.some(state__in=[State.QUEUED, State.RUNNING]):
            limit = {"time_limit_s": self.chance.choice((10.0, 20.0))}
            priority = {"priority": self.chance.randrange(9)}
            jobs.update_job(
                job_id=found.pk, actor=self.me, at=self.at, **self.chance.choice((limit, priority))
            )

    def time_limit(self) -> None:
        found = Allocation.objects.filter(ended_at=None).order_by("id").first()
        if found is not None:
            jobs.request_time_limit_stop(allocation_id=found.pk, at=self.at)

    def quietly(self) -> None:
        """By hand, without a version or an event."""
        if found := self.some(state__in=[State.QUEUED, State.RUNNING]):
            Job.objects.filter(pk=found.pk).update(priority=self.chance.randrange(100))
        Allocation.objects.filter(ended_at=None).update(desired_power_cap_share=self.chance.choice((0.5, 1)))

    def node(self) -> None:
        node = self.chance.choice((*self.here.nodes, *self.there.nodes))
        until = self.chance.choice((None, later(self.seconds + 100)))
        health = self.chance.choice(list(Health))
        change = self.chance.choice(({"health": health, "cooldown_until_at": until}, {"speed": 0.5}))
        Node.objects.filter(pk=node.pk).update(**change)

    def quota(self) -> None:
        Quota.objects.update_or_create(
            team=self.theirs,
            accelerator_type=self.here.kind,
            defaults={"entitlement": self.chance.randrange(9)},
        )

    def cluster(self) -> None:
        Cluster.objects.filter(pk=self.there.cluster.pk).update(is_enabled=self.chance.random() < 0.5)

    def build(self) -> None:
        if self.chance.random() < 0.3:
            self.chance.choice((fleet, team))()

    def roll_back(self) -> None:
        """What never happened, although its transaction looked at itself."""
        with transaction.atomic():
            self.submit()
            self.update()
            if self.chance.random() < 0.5:
                snapshot.take_snapshot(self.at)
            transaction.set_rollback(True)


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_built_on_the_last_is_the_one_read_afresh(seed, monkeypatch):
    world = World(seed)
    often, seldom = Rememberer(monkeypatch), Rememberer(monkeypatch)
    for turn in range(60):
        world.step()
        fresh = Rememberer(monkeypatch).take(world.seconds)
        same(often.take(world.seconds), fresh)
        if turn % 7 == 0:
            same(seldom.take(world.seconds), fresh)


@contextmanager
def slowly(act: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """`act` in a transaction of its own that has not committed yet; call what is given to have it commit."""
    is_done, may_commit = Signal(), Signal()

    def run() -> None:
        with transaction.atomic():
            act()
            is_done.set()
            may_commit.wait(20)
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        assert is_done.wait(20)

        def commit() -> None:
            may_commit.set()
            running.result(20)

        try:
            yield commit
        finally:
            may_commit.set()


def test_a_transaction_that_commits_late_is_seen_then(monkeypatch):
    here, ours = fleet(), team()
    me = person(ours)
    first, second = job(ours, me), job(ours, me)
    ours_ = Rememberer(monkeypatch)
    ours_.take(0)

    def change() -> None:
        jobs.update_job(job_id=first.pk, actor=me, at=NOON, priority=7)
        start(second, here)
        job(ours, me)
        Node.objects.filter(pk=here.nodes[1].pk).update(health=Health.FAILED)

    with slowly(change) as commit:
        for seconds in (1, 2, 3):
            # Others come and go meanwhile, with higher numbers than the one that is late.
            job(ours, me)
            same(ours_.take(seconds), Rememberer(monkeypatch).take(seconds))
        commit()
    seen = ours_.take(4)

    same(seen, Rememberer(monkeypatch).take(4))
    assert seen.gangs[first.pk].priority == 7
    assert [running.gang.id for running in seen.snapshot.running] == [second.pk]
    assert seen.snapshot.is_failed.sum() == 1


def test_who_was_given_a_picture_keeps_it(monkeypatch):
    fleet(), (ours := team())
    me = person(ours)
    first = job(ours, me)
    remembers = Rememberer(monkeypatch)
    before = remembers.take(0)
    jobs.stop_job(job_id=first.pk, actor=me, at=NOON)
    job(ours, me)
    remembers.take(1)

    assert list(before.gangs) == [gang.id for gang in before.snapshot.queue] == [first.pk]


def test_an_error_half_way_is_not_remembered(monkeypatch):
    fleet(), (ours := team())
    me = person(ours)
    job(ours, me)
    remembers = Rememberer(monkeypatch)
    remembers.take(0)
    job(ours, me)
    with monkeypatch.context() as broken:
        broken.setattr(snapshot._Reader, "read_use", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            remembers.take(1)

    same(remembers.take(2), Rememberer(monkeypatch).take(2))
    assert len(remembers.take(3).gangs) == 2


def test_an_emptied_table_is_noticed(monkeypatch):
    fleet(), (ours := team())
    job(ours, person(ours))
    remembers = Rememberer(monkeypatch)
    remembers.take(0)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_job CASCADE")

    assert remembers.take(1).snapshot.queue == ()


def test_a_picture_in_which_nothing_moved_is_made_of_the_same_objects(monkeypatch):
    here, ours = fleet(), team()
    me = person(ours)
    start(job(ours, me, time_limit=600.0), here)
    job(ours, me)
    remembers = Rememberer(monkeypatch)
    first, second = remembers.take(0), remembers.take(5)

    assert second.gangs is first.gangs
    assert second.snapshot.running is first.snapshot.running
    assert second.snapshot.facility is first.snapshot.facility


def test_the_queue_is_read_without_reading_what_waits_unchanged(monkeypatch, django_assert_max_num_queries):
    fleet(), (ours := team())
    me = person(ours)
    jobs.submit_jobs(requests=[request(ours) for _ in range(300)], actor=me, at=NOON)
    remembers = Rememberer(monkeypatch)
    remembers.take(0)
    job(ours, me)
    n_rows: list[int] = []
    real = snapshot._Reader.rows

    def counted(self, query, *parameters):
        found = real(self, query, *parameters)
        n_rows.append(len(found))
        return found

    monkeypatch.setattr(snapshot._Reader, "rows", counted)
    with django_assert_max_num_queries(30):
        assert len(remembers.take(1).gangs) == 301
    assert sum(n_rows) < 30

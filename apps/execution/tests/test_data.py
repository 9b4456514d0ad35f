"""Devices that wait for data: not longer than they may, not without need, and nobody's failure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from apps.events.models import Event
from apps.execution import services
from apps.execution.backends.fake import FakeBackend
from apps.inventory.models import Domain
from apps.jobs import selectors
from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, StopCause
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import NOON, Fleet, fleet, grant, job, later, person, team
from apps.staging.models import Copy, Dataset

pytestmark = pytest.mark.django_db


@dataclass
class Scene:
    """A node beside a store that lacks a data set, and a backend that does as it is told."""

    fleet: Fleet
    near: Domain
    dataset: Dataset
    backend: FakeBackend
    submit: Callable[..., Job]

    def reconcile(self, at_s: float) -> None:
        services.reconcile_cluster(cluster_id=self.fleet.cluster.pk, at=later(at_s))

    def bound(self, *, due_s: float | None = 60.0) -> Allocation:
        made = self.submit(datasets=["corpus"])
        decision = ledger.Decision(
            job_id=made.pk,
            cluster_id=self.fleet.cluster.pk,
            placements=(grant(self.fleet.nodes[0]),),
            data_due_at=None if due_s is None else later(due_s),
        )
        (bound,) = ledger.allocate_many(decisions=[decision], pass_id=None, at=NOON).allocations
        return Allocation.objects.get(pk=bound.id)

    def arrive(self) -> None:
        Copy.objects.create(dataset=self.dataset, domain=self.near)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    backend = FakeBackend()
    monkeypatch.setattr(services, "backend_of", lambda cluster: backend)
    near = Domain.objects.create(name="near", kind="storage")
    dataset = Dataset.objects.create(name="corpus", size_gib=10.0)
    ours = team()
    me = person(ours)
    return Scene(fleet(1, 4, storage=near), near, dataset, backend, lambda **more: job(ours, me, **more))


def test_a_job_is_launched_when_its_data_is_there_and_not_before(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile(1)
    scene.reconcile(20)
    assert scene.backend.launches == []
    assert selectors.staging_s(Allocation.objects.get(), later(20)) == 20.0

    scene.arrive()
    scene.reconcile(30)
    scene.reconcile(31)

    allocation.refresh_from_db()
    assert scene.backend.launches == [allocation.pk]
    assert (allocation.observed_data_at, allocation.observed_started_at) == (later(30), later(30))
    assert selectors.staging_s(allocation, later(500)) == 30.0
    assert Event.objects.filter(kind="allocation.data_arrived").count() == 1


def test_what_is_not_said_to_wait_does_not(scene: Scene) -> None:
    allocation = scene.bound(due_s=None)
    scene.reconcile(1)

    assert scene.backend.launches == [allocation.pk]
    assert selectors.staging_s(Allocation.objects.get(), later(9)) == 0.0


def test_devices_that_waited_long_enough_are_given_back_and_nobody_is_to_blame(scene: Scene) -> None:
    allocation = scene.bound()
    for at_s in (59, 60, 61, 62):
        scene.reconcile(at_s)

    allocation.refresh_from_db()
    waiting = Job.objects.get()
    assert scene.backend.launches == []
    assert (allocation.stop_cause, allocation.ended_at is not None) == (StopCause.DATA_LATE, True)
    assert (waiting.state, waiting.retry_at) == (State.QUEUED, None)
    assert (waiting.n_start_failures, waiting.n_preemptions, waiting.ran_s) == (0, 0, 0.0)
    assert (scene.fleet.claimed(), ledger_faults()) == (0, [])
    assert Event.objects.filter(kind="job.data_late").count() == 1


def test_data_that_comes_with_the_last_second_is_in_time(scene: Scene) -> None:
    scene.bound()
    scene.arrive()
    scene.reconcile(60)

    assert Job.objects.get().state == State.RUNNING


def test_a_job_that_is_stopped_while_it_waits_for_data_never_begins(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile(1)
    ledger.stop_job(job_id=allocation.job_id, actor=Job.objects.get().user, at=later(2))
    scene.arrive()
    scene.reconcile(3)
    scene.reconcile(4)

    assert scene.backend.launches == []
    assert Job.objects.get().state == State.CANCELLED


@pytest.mark.parametrize(
    "change",
    [lambda s: s.dataset.delete(), lambda s: type(s.fleet.nodes[0]).objects.update(storage=None)],
    ids=["deleted", "reads every copy"],
)
def test_nobody_waits_for_what_cannot_come_or_need_not(scene: Scene, change: Callable[[Scene], Any]) -> None:
    scene.bound()
    change(scene)
    scene.reconcile(1)

    assert Job.objects.get().state == State.RUNNING

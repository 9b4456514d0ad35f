"""The ledger and a cluster brought together on a real PostgreSQL."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import InvalidInput, OutsideError
from apps.events.models import Event
from apps.execution import selectors, services
from apps.execution.backends.base import EndReason, RunState
from apps.execution.backends.fake import FakeBackend
from apps.execution.tests.builders import now, wait_until
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster, Health, Node
from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Desired, Job, StopCause
from apps.jobs.tests.builders import NOON, Fleet, allocate, fleet, grant, job, later, person, team

pytestmark = pytest.mark.django_db


@dataclass
class Scene:
    """One cluster whose backend is the fake one, and a person who submits to it."""

    fleet: Fleet
    backend: FakeBackend
    submit: Callable[..., Job]

    def reconcile(self, at_s: float = 0.0) -> None:
        services.reconcile_cluster(cluster_id=self.fleet.cluster.pk, at=later(at_s))

    def bound(self, **fields: Any) -> Allocation:
        return allocate(self.submit(**fields), self.fleet)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    backend = FakeBackend()
    monkeypatch.setattr(services, "backend_of", lambda cluster: backend)
    ours = team()
    me = person(ours)
    return Scene(fleet(2, 4), backend, lambda **fields: job(ours, me, **fields))


def state(allocation: Allocation) -> str:
    return Job.objects.get(pk=allocation.job_id).state


def claimed(scene: Scene) -> Decimal:
    return scene.fleet.claimed()


def test_a_bound_allocation_is_launched_and_runs_after_one_call(scene: Scene) -> None:
    allocation = scene.bound()

    scene.reconcile(5)

    assert scene.backend.launches == [allocation.pk]
    assert state(allocation) == State.RUNNING
    assert Job.objects.get(pk=allocation.job_id).started_at == later(5)


def test_reconciling_again_does_nothing(scene: Scene) -> None:
    scene.bound()
    scene.reconcile()
    n_events = Event.objects.count()

    scene.reconcile()

    assert len(scene.backend.launches) == 1
    assert Event.objects.count() == n_events


def test_an_end_moves_the_job_and_frees_its_devices(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile()
    scene.backend.end(allocation.pk, at=later(30), exit_code=7, message="The command ended with exit code 7.")

    scene.reconcile(31)

    ended = Job.objects.get(pk=allocation.job_id)
    assert (ended.state, ended.exit_code, ended.ended_at) == (State.FAILED, 7, later(30))
    assert ended.end_message == "The command ended with exit code 7."
    assert claimed(scene) == 0
    assert scene.backend.forgotten == {allocation.pk}


def test_a_report_that_was_lost_is_made_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    allocation = scene.bound()
    scene.reconcile()
    scene.backend.end(allocation.pk, at=later(30))
    with monkeypatch.context() as broken:
        broken.setattr(ledger, "allocation_ended", _raise)
        with pytest.raises(ConnectionError):
            scene.reconcile(31)
    assert scene.backend.forgotten == set()

    scene.reconcile(32)

    assert state(allocation) == State.SUCCEEDED
    assert scene.backend.forgotten == {allocation.pk}


def _raise(**_: Any) -> None:
    raise ConnectionError


def test_a_stop_by_a_person_ends_as_cancelled(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile()
    ledger.stop_job(job_id=allocation.job_id, actor=allocation.job.user, at=later(5))

    scene.reconcile(5)
    scene.reconcile(6)

    assert state(allocation) == State.CANCELLED
    assert claimed(scene) == 0


def test_a_job_that_is_stopped_before_its_launch_never_runs(scene: Scene) -> None:
    allocation = scene.bound()
    ledger.stop_job(job_id=allocation.job_id, actor=allocation.job.user, at=later(5))

    scene.reconcile(5)

    assert scene.backend.launches == []
    assert state(allocation) == State.CANCELLED


def test_lost_contact_says_nothing_of_the_jobs(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile()
    scene.backend.is_away = True

    scene.reconcile(10)
    scene.reconcile(20)

    assert state(allocation) == State.RUNNING
    assert Cluster.objects.get().last_error == "The cluster does not answer."
    assert Event.objects.filter(kind="cluster.contact_lost").count() == 1

    scene.backend.is_away = False
    scene.reconcile(30)
    assert Cluster.objects.get().last_error == ""
    assert Event.objects.filter(kind="cluster.contact_regained").count() == 1


def test_a_run_that_vanished_is_a_lost_node_and_queues_again(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile()
    scene.backend.lose(allocation.pk)

    scene.reconcile(10)

    again = Job.objects.get(pk=allocation.job_id)
    assert (again.state, again.n_node_losses) == (State.QUEUED, 1)
    assert claimed(scene) == 0
    assert scene.backend.launches == [allocation.pk]


def test_work_on_a_node_that_failed_is_ended_and_queues_again(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile()
    Node.objects.filter(pk=scene.fleet.nodes[0].pk).update(health=Health.FAILED)

    scene.reconcile(10)
    scene.reconcile(11)

    assert state(allocation) == State.QUEUED
    assert scene.backend.runs[allocation.pk].reason == EndReason.STOPPED


def test_the_old_attempt_is_gone_before_the_new_one_begins(scene: Scene) -> None:
    first = scene.bound()
    scene.reconcile()
    scene.backend.is_deaf = True
    # The ledger gave it up while the cluster was away: now it is back, and still runs it.
    ledger.allocation_ended(allocation_id=first.pk, fence=first.fence, at=later(5), outcome="node_lost")
    second = allocate(Job.objects.get(pk=first.job_id), scene.fleet, at=later(6))

    scene.reconcile(7)
    assert scene.backend.launches == [first.pk]

    scene.backend.is_deaf = False
    scene.reconcile(8)
    scene.reconcile(9)
    assert scene.backend.launches == [first.pk, second.pk]
    assert second.fence > first.fence


def test_a_launch_that_keeps_being_refused_is_given_up_as_a_failed_start(scene: Scene) -> None:
    allocation = scene.bound()
    scene.backend.refusing = OutsideError("The disk is full.")

    scene.reconcile(1)
    assert state(allocation) == State.STARTING
    scene.reconcile(61)

    again = Job.objects.get(pk=allocation.job_id)
    assert (again.state, again.n_start_failures) == (State.QUEUED, 1)
    assert again.retry_at is not None
    assert Event.objects.filter(kind="job.start_failed", reason="The disk is full.").exists()


def test_one_allocation_that_makes_no_order_does_not_keep_others_waiting(scene: Scene) -> None:
    broken, good = scene.bound(), allocate(scene.submit(), scene.fleet, grant(scene.fleet.nodes[1]))
    broken.placements.all().update(group_index=9)

    scene.reconcile()

    assert scene.backend.launches == [good.pk]
    assert state(broken) == State.QUEUED


def test_what_overruns_its_limit_is_asked_to_stop(scene: Scene) -> None:
    allocation = scene.bound(time_limit=60.0)
    scene.reconcile()

    scene.reconcile(64)
    assert state(allocation) == State.RUNNING
    scene.reconcile(70)
    scene.reconcile(71)

    assert state(allocation) == State.TIMED_OUT


def test_a_changed_limit_reaches_the_run(scene: Scene) -> None:
    allocation = scene.bound(time_limit=60.0)
    scene.reconcile()
    ledger.update_job(job_id=allocation.job_id, actor=allocation.job.user, at=later(1), time_limit_s=50.0)

    scene.reconcile(2)

    assert scene.backend.runs[allocation.pk].time_limit_s == 50.0


def test_a_preempted_run_queues_again(scene: Scene) -> None:
    allocation = scene.bound()
    scene.reconcile()
    Allocation.objects.filter(pk=allocation.pk).update(
        desired_state=Desired.STOP, stop_cause=StopCause.PREEMPTION
    )

    scene.reconcile(5)
    scene.reconcile(6)

    assert state(allocation) == State.QUEUED


def test_an_order_tells_the_job_what_it_needs_to_know(scene: Scene) -> None:
    one = scene.submit(
        command=["train", "--fast"], env={"A": "b"}, workdir="/data", replicas=2, devices=2, time_limit=90.0
    )
    allocation = allocate(one, scene.fleet, grant(scene.fleet.nodes[0], (0, 1, 2, 3), n_replicas=2))

    order = services.order_of(Allocation.objects.get(pk=allocation.pk), is_played=False)

    assert [replica.device_indices for replica in order.replicas] == [(0, 1), (2, 3)]
    assert order.replicas[0].command == ("train", "--fast")
    assert (order.workdir, order.time_limit_s, order.env["A"]) == ("/data", 90.0, "b")
    assert order.env["SWITCHYARD_JOB_NAME"] == "train"


def test_of_one_cluster_one_worker_takes_care_and_one_more_waits() -> None:
    cluster_id = 4711
    with services._alone(cluster_id) as first:
        answers: list[bool] = []

        def waiter() -> None:
            with services._alone(cluster_id) as is_ours:
                answers.append(is_ours)
            connection.close()

        waiting = threading.Thread(target=waiter)
        waiting.start()
        wait_until(lambda: _n_waiting(cluster_id) == 1)
        third = threading.Thread(target=waiter)
        third.start()
        third.join(10)
        assert answers == [False]
    waiting.join(10)

    assert first
    assert answers == [False, True]


def _n_waiting(cluster_id: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted",
            [cluster_id],
        )
        return int(cursor.fetchone()[0])


# With the real backends ------------------------------------------------------------------------------------------


def test_a_simulated_cluster_plays_a_job_to_its_end() -> None:
    hall, ours = fleet(backend=Kind.SIMULATED), team()
    allocation = allocate(job(ours, person(ours), runtime=100.0), hall)

    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=NOON)
    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=later(99))
    assert state(allocation) == State.RUNNING
    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=later(105))

    played = Job.objects.get(pk=allocation.job_id)
    assert (played.state, played.ended_at) == (State.SUCCEEDED, later(100))
    assert hall.claimed() == 0


def test_a_stop_of_a_simulated_job_is_seen_in_the_same_call() -> None:
    hall, ours = fleet(backend=Kind.SIMULATED), team()
    one = job(ours, person(ours), runtime=100.0)
    allocation = allocate(one, hall)
    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=NOON)
    ledger.stop_job(job_id=one.pk, actor=one.user, at=later(10))

    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=later(10))

    assert state(allocation) == State.CANCELLED


@pytest.fixture
def spool(settings: Any, tmp_path: Path) -> Iterator[Path]:
    if not sys.platform.startswith("linux"):
        pytest.skip("the local backend needs Linux")
    settings.SWITCHYARD_SPOOL = tmp_path / "spool"
    yield tmp_path / "spool"
    for cluster in Cluster.objects.filter(backend=Kind.LOCAL):
        backend = services.local_backend_of(cluster)
        for run in backend.list_seen(at=now()):
            if run.state != RunState.ENDED:
                order = services.StopOrder(
                    allocation_id=run.allocation_id, job_id=run.job_id, fence=run.fence, grace_s=0
                )
                backend.stop([order], at=now())


def test_a_real_command_runs_and_its_log_is_read(spool: Path) -> None:
    here, ours = fleet(1, 2), team()
    allocation = allocate(
        job(ours, person(ours), command=["sh", "-c", "echo $SWITCHYARD_TEAM; exit 3"]), here, at=now()
    )

    def has_ended() -> bool:
        services.reconcile_cluster(cluster_id=here.cluster.pk, at=now())
        return state(allocation) == State.FAILED

    wait_until(has_ended)

    ended = Job.objects.get(pk=allocation.job_id)
    assert (ended.exit_code, ended.end_message) == (3, "The command ended with exit code 3.")
    chunk = selectors.read_log(allocation=allocation, rank=0, stream="stdout", offset=0, limit=100)
    assert (chunk.text, chunk.is_complete) == (f"{ours.name}\n", True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("stream", "../order.json"), ("rank", -1), ("offset", -1), ("limit", 0), ("offset", 2**70)],
)
def test_a_log_is_not_read_with_an_odd_argument(field: str, value: Any) -> None:
    here, ours = fleet(1, 2), team()
    allocation = allocate(job(ours, person(ours)), here)
    asked = {"rank": 0, "stream": "stdout", "offset": 0, "limit": 10, field: value}

    with pytest.raises(InvalidInput, match=field):
        selectors.read_log(allocation=allocation, **asked)


def test_old_logs_are_deleted(spool: Path) -> None:
    hall, ours = fleet(backend=Kind.SIMULATED), team()
    allocate(job(ours, person(ours), runtime=1.0), hall)
    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=NOON)
    services.reconcile_cluster(cluster_id=hall.cluster.pk, at=later(5))

    assert services.prune_logs(at=later(10)) == 0
    assert services.prune_logs(at=NOON + services.LOGS_KEPT + timedelta(days=1)) == 1

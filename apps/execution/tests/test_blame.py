"""Ends that are counted against nodes, from a backend's report to the facility."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import OperationalError

from apps.core.errors import OutsideError
from apps.execution import services
from apps.execution.backends.base import EndReason
from apps.execution.backends.fake import FakeBackend
from apps.inventory import failures, health
from apps.inventory import services as inventory
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster, Node, NodeFailure
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import Fleet, allocate, fleet, grant, job, later, person, team

pytestmark = pytest.mark.django_db


@dataclass
class Scene:
    fleet: Fleet
    backend: FakeBackend
    submit: Callable[..., Job]

    def reconcile(self, at_s: float) -> None:
        services.reconcile_cluster(cluster_id=self.fleet.cluster.pk, at=later(at_s))

    def run(self, at_s: float, *nodes: int, **fields: Any) -> Allocation:
        """A job that runs on these nodes."""
        of = self.submit(**fields)
        grants = [
            grant(self.fleet.nodes[number], n_replicas=1, first_rank=rank)
            for rank, number in enumerate(nodes)
        ]
        allocation = allocate(of, self.fleet, *grants, at=later(at_s))
        self.reconcile(at_s)
        return allocation

    def ends(self, allocation: Allocation, at_s: float, reason: EndReason, **more: Any) -> None:
        self.backend.end(allocation.pk, at=later(at_s), reason=reason, **{"exit_code": None, **more})
        self.reconcile(at_s)

    def health(self, number: int) -> str:
        return Node.objects.get(pk=self.fleet.nodes[number].pk).health


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    backend = FakeBackend()
    monkeypatch.setattr(services, "backend_of", lambda cluster: backend)
    ours = team()
    me = person(ours)
    return Scene(fleet(3, 4), backend, lambda **fields: job(ours, fields.pop("by", me), **fields))


def kinds() -> list[tuple[str, float]]:
    return list(NodeFailure.objects.order_by("id").values_list("kind", "blame"))


@pytest.mark.parametrize(
    ("reason", "exit_code", "kind"),
    [
        (EndReason.LOST, None, "node_lost"),
        (EndReason.EXITED, 1, "early_end"),
        (EndReason.EXITED, 137, "early_end"),
        (EndReason.EXITED, 0, None),
        (EndReason.BAD_COMMAND, 127, None),  # the job is to blame
        (EndReason.TIME_LIMIT, 143, None),
        (EndReason.STOPPED, 143, None),  # somebody else told it to go
    ],
)
def test_which_ends_count_against_a_node(scene, reason, exit_code, kind):
    allocation = scene.run(0, 0)
    scene.ends(allocation, 5, reason, exit_code=exit_code)

    assert [found for found, _ in kinds()] == ([kind] if kind else [])


def test_a_failure_after_a_good_while_is_the_jobs_own(scene):
    allocation = scene.run(0, 0)
    scene.ends(allocation, health.EARLY_END_S, EndReason.EXITED, exit_code=1)

    assert kinds() == []


def test_a_start_that_the_backend_could_not_make_counts(scene):
    allocation = allocate(scene.submit(), scene.fleet)
    scene.reconcile(0)
    scene.backend.runs[allocation.pk] = scene.backend.runs[allocation.pk].__class__(
        allocation_id=allocation.pk, job_id=allocation.job_id, fence=1, state="claimed"
    )
    scene.ends(allocation, 1, EndReason.START_FAILED)

    assert kinds() == [("start_failed", 1.0)]


def test_an_end_that_is_told_twice_counts_once(scene):
    allocation = scene.run(0, 0)
    scene.ends(allocation, 5, EndReason.LOST)
    scene.backend.forgotten.clear()
    scene.reconcile(6)
    scene.reconcile(7)

    assert len(kinds()) == 1


def test_an_end_is_known_and_counted_or_neither(scene, monkeypatch):
    allocation = scene.run(0, 0)
    with monkeypatch.context() as broken:
        broken.setattr("apps.execution.blame.note_failure", _raising(OperationalError))
        with pytest.raises(OperationalError):
            scene.ends(allocation, 5, EndReason.LOST)
    assert Allocation.objects.get().ended_at is None
    scene.reconcile(6)

    assert Allocation.objects.get().ended_at is not None
    assert len(kinds()) == 1


def _raising(error: type[Exception]) -> Callable[..., None]:
    def fail(**_: Any) -> None:
        raise error

    return fail


def test_a_mistake_in_counting_does_not_keep_the_ledger_from_ends(scene, monkeypatch):
    allocation = scene.run(0, 0)
    monkeypatch.setattr("apps.execution.blame.note_failure", _raising(RuntimeError))
    scene.ends(allocation, 5, EndReason.LOST)

    assert Allocation.objects.get().ended_at is not None


def test_a_node_that_loses_its_jobs_again_and_again_gets_no_more(scene):
    for start_s in (0, 60, 120):
        allocation = scene.run(start_s, 0)
        scene.ends(allocation, start_s + 30, EndReason.LOST)

    assert [scene.health(number) for number in range(3)] == ["suspect", "healthy", "healthy"]
    inventory.settle_health(at=later(150 + health.FIRST_COOLDOWN.total_seconds()))
    assert scene.health(0) == "healthy"


def test_a_broken_command_that_many_are_made_of_takes_no_node_away(scene):
    for number in range(12):
        allocation = scene.run(60 * number, number % 2)
        scene.ends(allocation, 60 * number + 5, EndReason.EXITED, exit_code=1)

    assert {scene.health(number) for number in range(3)} == {"healthy"}
    assert {blame for _, blame in kinds()} == {0.0}


def test_a_job_lost_here_and_there_is_its_own_fault(scene):
    of = scene.submit()
    for number in range(3):
        allocation = allocate(of, scene.fleet, grant(scene.fleet.nodes[number]), at=later(1000 * number))
        scene.reconcile(1000 * number)
        scene.ends(allocation, 1000 * number + 100, EndReason.LOST)

    assert kinds() == [("node_lost", 0.0)] * 3


def test_a_gangs_loss_is_blamed_on_the_node_that_is_down(scene):
    scene.run(0, 0, 1, 2, replicas=3)
    down = scene.fleet.nodes[1]
    inventory.report_health(node_id=down.pk, health="failed", reason="", actor=None, at=later(5))
    scene.reconcile(6)
    scene.reconcile(7)

    assert list(NodeFailure.objects.values_list("node_id", "kind", "blame", "is_certain")) == [
        (down.pk, "node_lost", 1.0, True)
    ]


def test_a_gangs_loss_is_blamed_on_the_node_that_the_backend_names(scene):
    allocation = scene.run(0, 0, 1, replicas=2)
    names = (scene.fleet.nodes[1].name, "somewhere-else")
    scene.ends(allocation, 300, EndReason.LOST, nodes_at_fault=names)

    assert NodeFailure.objects.get().node_id == scene.fleet.nodes[1].pk


def test_a_machine_that_refuses_until_it_is_given_up_counts(scene):
    allocate(scene.submit(), scene.fleet, at=later(0))
    scene.backend.refusing = OutsideError("The spool refuses: No space left on device.")
    for at_s in (0, 30, 61, 62, 63):
        scene.reconcile(at_s)

    assert kinds() == [("start_failed", 1.0)]


def test_a_cluster_that_refuses_is_no_nodes_fault(scene):
    Cluster.objects.update(backend=Kind.SLURM)
    allocate(scene.submit(), scene.fleet, at=later(0))
    scene.backend.refusing = OutsideError("The controller is busy.")
    for at_s in (0, 30, 61, 62, 63):
        scene.reconcile(at_s)

    assert Allocation.objects.get().ended_at is not None
    assert kinds() == []


def test_what_never_can_start_is_no_nodes_fault(scene):
    allocate(scene.submit(), scene.fleet, at=later(0))
    scene.backend.refusing = OutsideError("There is no such partition.", permanent=True)
    for at_s in (0, 1, 2):
        scene.reconcile(at_s)

    assert kinds() == []


def test_people_who_fail_early_count_once_each(scene):
    for number in range(3):
        ours = team()
        allocation = allocate(job(ours, person(ours)), scene.fleet, at=later(60 * number))
        scene.reconcile(60 * number)
        scene.ends(allocation, 60 * number + 3, EndReason.EXITED, exit_code=139)

    assert scene.health(0) == "suspect"


def test_tasks_of_an_array_are_one_origin():
    kind = failures.FailureKind.NODE_LOST
    from apps.execution.blame import origin_of

    assert origin_of(kind, 1, 9, 5) == origin_of(kind, 2, 9, 5) == "array:9"
    assert origin_of(kind, 1, None, 5) == "job:1"
    assert origin_of(failures.FailureKind.EARLY_END, 1, 9, 5) == "user:5"

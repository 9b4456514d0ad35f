"""The live planner knows where data lies, sends it ahead, and never stands still for it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apps.execution import services as execution
from apps.execution.backends.fake import FakeBackend
from apps.inventory.models import Domain, Node
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import NOON, Fleet, allocate, end, fleet, grant, job, later, person, start, team
from apps.scheduling import services, snapshot
from apps.scheduling.models import Earmark, Pass, Reason
from apps.staging import loop
from apps.staging import services as staging
from apps.staging.models import Copy, Dataset, Store, Transfer
from apps.staging.movers.base import GIB
from apps.staging.tests.builders import content, lay, read, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Scene:
    """A node of four devices at each of two stores; the data lies in the far one, and fills a second a GiB."""

    fleet: Fleet
    near: Domain
    far: Domain
    root: Path
    submit: Callable[..., Job]

    @property
    def near_node(self) -> Node:
        return self.fleet.nodes[0]

    @property
    def far_node(self) -> Node:
        return self.fleet.nodes[1]

    def fill_far(self, time_limit_s: float = 3600.0) -> Allocation:
        made = self.submit(devices=4, time_limit=time_limit_s, preemptible=False)
        return start(made, self.fleet, grant(self.far_node, range(4)))

    def run(self, at_s: float = 0.0) -> Pass | None:
        done = services.run_pass(at=later(at_s))
        assert done is None or not done.is_refused, done.faults
        return done


def data(name: str = "corpus", size_gib: float = 10.0, at: tuple[str, ...] = ("far",)) -> Dataset:
    return staging.create_dataset(name=name, size_gib=size_gib, at_domains=at, actor=None, at=NOON)


def place_of(of: Job) -> set[str]:
    return set(Node.objects.filter(placements__allocation__job=of).values_list("name", flat=True))


@pytest.fixture
def scene(settings: Any, tmp_path: Path) -> Scene:
    settings.SWITCHYARD_STORE_ROOTS = [str(tmp_path)]
    settings.VAR_DIR = tmp_path / "var"
    near, far = (Domain.objects.create(name=name, kind="storage") for name in ("near", "far"))
    here = fleet(2, 4)
    for node, place in zip(here.nodes, (near, far), strict=True):
        Node.objects.filter(pk=node.pk).update(storage=place)
        folder = tmp_path / place.name
        folder.mkdir()
        staging.create_store(domain=place.name, base_uri=str(folder), rate_gib_per_s=1.0, actor=None, at=NOON)
    ours = team()
    me = person(ours)
    return Scene(here, near, far, tmp_path, lambda **fields: job(ours, me, **fields))


def test_a_job_goes_where_its_data_lies(scene: Scene) -> None:
    data()
    made = scene.submit(datasets=["corpus"])
    scene.run()

    assert place_of(made) == {scene.far_node.name}
    assert Allocation.objects.get().data_due_at is None
    assert not Transfer.objects.exists()


def test_where_its_data_is_busy_a_copy_is_sent_and_devices_wait_for_it(scene: Scene) -> None:
    data(size_gib=10.0)
    scene.fill_far()
    made = scene.submit(datasets=["corpus"], devices=1)
    scene.run()

    transfer = Transfer.objects.get()
    assert (transfer.to_domain, transfer.for_job_id) == (scene.near, made.pk)
    assert transfer.expected_end_at == later(10)
    assert place_of(made) == {scene.near_node.name}
    assert Allocation.objects.get(job=made).data_due_at == later(60)


def test_what_takes_longer_is_sent_ahead_while_the_job_waits_and_asked_for_once(scene: Scene) -> None:
    data(size_gib=600.0)
    scene.fill_far()
    made = scene.submit(datasets=["corpus"])
    scene.run()
    scene.run(5)
    services.run_pass(at=later(400))

    transfer = Transfer.objects.get()
    assert (transfer.to_domain, transfer.expected_end_at) == (scene.near, later(600))
    reason = Reason.objects.get(job=made)
    assert (reason.code, reason.expected_start_at) == ("staging", later(600))

    staging.end_transfer(transfer_id=transfer.pk, at=later(590))
    scene.run(590)
    assert place_of(made) == {scene.near_node.name}
    assert Allocation.objects.get(job=made).data_due_at is None


def test_a_job_starts_while_its_data_arrives_within_the_time_that_devices_may_wait(scene: Scene) -> None:
    data(size_gib=600.0)
    scene.fill_far()
    made = scene.submit(datasets=["corpus"])
    scene.run()
    scene.submit(not_before=later(545))  # something that makes a pass due
    scene.run(545)

    assert Allocation.objects.get(job=made).data_due_at == later(605)
    assert Transfer.objects.count() == 1


def test_a_store_that_is_full_is_a_reason_to_wait_and_no_trouble_for_others(scene: Scene) -> None:
    data(size_gib=600.0)
    scene.fill_far(time_limit_s=36_000.0)
    made = scene.submit(datasets=["corpus"])
    scene.run()
    staging.end_transfer(transfer_id=Transfer.objects.get().pk, at=later(20), error="No space left on device")
    other = scene.submit()
    done = scene.run(30)

    assert done is not None
    assert place_of(other) == {scene.near_node.name}
    reason = Reason.objects.get(job=made)
    assert reason.code == "staging"
    assert "corpus could not be brought to near; that is tried again later." in reason.sentence
    assert "space" not in reason.sentence  # what programs say may name folders of the site
    assert reason.facts["given_up"] == [{"dataset": "corpus", "to": "near", "tried_again_in_s": 3590}]
    assert Transfer.objects.count() == 1

    scene.run(3621)
    assert Transfer.objects.filter(ended_at=None).count() == 1


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: Copy.objects.all().delete(),
        lambda s: (Node.objects.update(storage=s.near), Store.objects.all().delete()),
    ],
    ids=["no copy anywhere", "no road to any node"],
)
def test_data_that_nobody_can_bring_anywhere_is_no_wall(
    scene: Scene, break_it: Callable[[Scene], Any]
) -> None:
    data()
    break_it(scene)
    made = scene.submit(datasets=["corpus"])
    scene.run()

    allocation = Allocation.objects.get(job=made)
    assert (allocation.why["without_data"], allocation.data_due_at) == (["corpus"], None)


def test_a_gang_that_is_too_big_for_the_nodes_near_its_data_goes_without(scene: Scene) -> None:
    data()
    Store.objects.all().delete()
    small, big = scene.submit(datasets=["corpus"]), scene.submit(datasets=["corpus"], replicas=7)
    scene.run()

    assert place_of(small) == {scene.far_node.name}
    assert place_of(big) == {scene.near_node.name, scene.far_node.name}


def test_a_start_whose_data_set_is_gone_is_dropped_and_planned_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_data = data()
    scene.fill_far()
    made = scene.submit(datasets=["corpus"])
    real = services.checker.check

    def forget(*arguments: Any) -> Any:
        if Dataset.objects.filter(pk=made_data.pk).exists():
            staging.delete_dataset(dataset_id=made_data.pk, actor=None, at=NOON)
        return real(*arguments)

    monkeypatch.setattr(services.checker, "check", forget)
    scene.run()

    first = Pass.objects.order_by("id").first()
    assert first is not None
    assert first.summary["dropped"] == [{"job_id": made.pk, "why": "There is no such data set."}]
    assert place_of(made) == {scene.near_node.name}
    assert ledger_faults() == []


def test_freed_devices_do_not_wait_for_data_that_is_not_coming(scene: Scene) -> None:
    made = data(size_gib=600.0, at=("far", "near"))
    scene.fill_far()
    victim = start(scene.submit(devices=4), scene.fleet, grant(scene.near_node, range(4)))
    urgent = scene.submit(devices=4, priority=5, datasets=["corpus"])
    scene.run(120)
    assert Earmark.objects.get().job_id == urgent.pk

    staging.set_copies(dataset_id=made.pk, at_domains=["far"], actor=None, at=later(121))
    end(victim, "vacated", at=later(122))
    scene.run(122)
    assert Job.objects.get(pk=urgent.pk).state == State.QUEUED
    assert Transfer.objects.get().for_job_id == urgent.pk
    assert place_of(victim.job) == {scene.near_node.name}


def test_an_overdue_transfer_is_not_taken_for_arrived(scene: Scene) -> None:
    data(size_gib=600.0)
    scene.fill_far(time_limit_s=36_000.0)
    made = scene.submit(datasets=["corpus"])
    scene.run()
    services.run_pass(at=later(900))
    taken = snapshot.take_snapshot(later(900)).snapshot

    assert set(taken.datasets[0].arrives_s.values()) == {later(1200).timestamp()}
    assert Job.objects.get(pk=made.pk).state == State.QUEUED


def test_a_held_job_is_expected_to_end_after_its_data_came(scene: Scene) -> None:
    data()
    scene.fill_far()
    made = scene.submit(datasets=["corpus"], time_limit=100.0)
    scene.run()
    running = {one.gang.id: one for one in snapshot.take_snapshot(later(1)).snapshot.running}

    assert running[made.pk].ends_s == later(160).timestamp()


def test_real_files_come_before_the_job_begins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # From the request to the launch, with real copying and a backend that notes what was there when it was asked.
    files = content(3000)
    lay(scene.root / "far" / "corpus", files)
    data(size_gib=sum(map(len, files.values())) / GIB)
    allocate(scene.submit(devices=4), scene.fleet, grant(scene.far_node, range(4)))
    made = scene.submit(datasets=["corpus"])
    backend = FakeBackend()
    monkeypatch.setattr(execution, "backend_of", lambda cluster: backend)
    scene.run()
    execution.reconcile_cluster(cluster_id=scene.fleet.cluster.pk, at=later(1))
    held = Allocation.objects.get(job=made)
    assert held.pk not in backend.launches

    def has_come() -> bool:
        loop.move_all(at=later(2))
        return Copy.objects.filter(domain=scene.near).exists()

    wait_until(has_come, "the copy")
    execution.reconcile_cluster(cluster_id=scene.fleet.cluster.pk, at=later(3))

    assert held.pk in backend.launches
    assert read(scene.root / "near" / "corpus") == files
    assert Job.objects.get(pk=made.pk).state == State.RUNNING


def test_a_job_whose_data_was_late_goes_back_and_starts_when_it_is_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    data(size_gib=10.0)
    scene.fill_far()
    made = scene.submit(datasets=["corpus"])
    backend = FakeBackend()
    monkeypatch.setattr(execution, "backend_of", lambda cluster: backend)
    scene.run()
    for at_s in (61, 62, 63):
        execution.reconcile_cluster(cluster_id=scene.fleet.cluster.pk, at=later(at_s))
    assert Job.objects.get(pk=made.pk).state == State.QUEUED

    staging.end_transfer(transfer_id=Transfer.objects.get().pk, at=later(90))
    scene.run(91)
    assert Allocation.objects.filter(job=made, ended_at=None, data_due_at=None).exists()
    assert Transfer.objects.count() == 1

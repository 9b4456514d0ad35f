"""The planner, the ledger and a real Slurm together."""

import base64
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from apps.core.errors import InvalidInput, OutsideError
from apps.execution import connections, surveying
from apps.execution import services as execution
from apps.execution.backends.base import EndReason, Order, Replica, RunState
from apps.execution.backends.choice import backend_of
from apps.execution.backends.slurm import wire as wires
from apps.execution.backends.slurm.backend import SlurmBackend
from apps.execution.models import SlurmConnection, SlurmRun
from apps.execution.tests.builders import look, now, order, output, shell, stop, wait_for, wait_until
from apps.execution.tests.slurm import connected
from apps.inventory import services as inventory
from apps.inventory.models import Cluster, Health, Node, OutsideUse
from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, DeviceClaim, Job, Placement
from apps.jobs.selectors import ledger_faults
from apps.jobs.spec import JobRequest
from apps.jobs.tests.builders import person, team
from apps.scheduling import services as scheduling
from apps.scheduling.models import PolicySetting
from scripts.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.django_db(transaction=True)
AWAY_S = float(os.environ.get("SWITCHYARD_AWAY_S", "2"))  # how long a controller that was killed is away


@dataclass
class Hall:
    """A real Slurm that is planned for, and a person who submits to it."""

    slurm: SlurmCluster
    cluster: Cluster
    backend: SlurmBackend
    submit: Callable[..., Job]

    def tick(self) -> None:
        """What the loops of the site do all the time."""
        scheduling.run_pass(at=now())
        execution.reconcile_cluster(cluster_id=self.cluster.pk, at=now())

    def until(self, of: Job, *states: State) -> Job:
        def there() -> Job | None:
            self.tick()
            found = Job.objects.get(pk=of.pk)
            return found if found.state in states else None

        try:
            found = wait_until(there)
        except AssertionError as error:
            raise AssertionError(self.told()) from error
        assert found is not None
        return found

    def told(self) -> str:
        """What everybody knows, for whoever has to find out why a test waited in vain."""
        rows = [
            *Job.objects.values_list("id", "state", "end_message", "reason__sentence"),
            *SlurmRun.objects.values(),
        ]
        in_slurm = self.slurm.run("squeue", "-t", "all") + self.slurm.run("sinfo", "-N", "-o", "%N %T %E")
        return "\n".join([*map(str, rows), *map(str, Allocation.objects.values()), in_slurm])

    def tick_until(self, ask: Callable[[], Any]) -> None:
        def there() -> bool:
            self.tick()
            return bool(ask())

        wait_until(there)

    def log(self, of: Job, rank: int = 0) -> str:
        attempt = Allocation.objects.filter(job=of).latest("fence")
        return output(self.backend, attempt.pk, rank=rank)

    def states_in_slurm(self) -> list[str]:
        return self.slurm.run("squeue", "-h", "-o", "%T").split()


@pytest.fixture
def hall(slurm: SlurmCluster, no_memory: None) -> Iterator[Hall]:
    cluster = connected(slurm)
    backend = backend_of(cluster)
    assert isinstance(backend, SlurmBackend)
    assert surveying.take_facility(cluster, backend.survey(at=now()), at=now(), accelerator="H100") == []
    ours = team()
    me = person(ours)

    def submit(script: str, **fields: Any) -> Job:
        given = {"name": "train", "team": ours.name, "cluster": cluster.name, "time_limit": 600.0}
        request = JobRequest.model_validate({**given, "script": script, **fields})
        return ledger.submit_job(request=request, actor=me, at=now())

    yield Hall(slurm, cluster, backend, submit)
    assert ledger_faults() == []


def test_nodes_are_taken_in_with_their_devices_and_their_switches(hall: Hall) -> None:
    node = Node.objects.get(name="n1")

    assert (node.n_devices, node.cpus, node.memory_gib) == (8, 64, 500)
    assert (node.accelerator_type.name, node.accelerator_type.tdp_w) == ("H100", 700)
    assert (node.leaf.name, node.leaf.parent.name) == ("slurm/leaf1", "slurm/spine")
    assert Node.objects.get(name="n7").leaf.name == "slurm/leaf2"


def test_a_gang_runs_on_the_very_nodes_of_its_placement(hall: Hall) -> None:
    script = "#!/bin/bash\necho nodes $SLURM_JOB_NODELIST on $SLURMD_NODENAME with $CUDA_VISIBLE_DEVICES\n"
    made = hall.submit(script, replicas=4, devices=8)

    hall.until(made, State.SUCCEEDED)

    placed = list(Placement.objects.filter(allocation__job=made).order_by("first_rank"))
    assert len(placed) == 4
    for rank, placement in enumerate(placed):
        words = hall.log(made, rank).split()
        assert sorted(wires.node_names(words[1])) == sorted(one.node.name for one in placed)
        assert (words[3], words[5]) == (placement.node.name, "0,1,2,3,4,5,6,7")


def test_each_replica_sees_the_devices_that_it_was_given_also_where_nodes_differ(hall: Hall) -> None:
    Node.objects.exclude(name__in=["n1", "n2"]).update(health=Health.FAILED, health_by="person")
    first = hall.submit("#!/bin/sh\nsleep 600\n", devices=3)
    hall.until(first, State.RUNNING)
    gang = hall.submit('#!/bin/sh\necho "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"\n', replicas=13, devices=1)

    hall.until(gang, State.SUCCEEDED)

    claimed = DeviceClaim.objects.filter(placement__allocation__job=gang)
    granted = sorted(
        f"{node} {index}" for node, index in claimed.values_list("placement__node__name", "device__index")
    )
    assert sorted(hall.log(gang, rank).strip() for rank in range(13)) == granted
    assert len(SlurmRun.objects.get(job_id=gang.pk).slurm_ids) == 2


def test_a_gang_fails_as_the_first_of_its_replicas_did(hall: Hall) -> None:
    script = "#!/bin/bash\n[ $SWITCHYARD_RANK = 1 ] && sleep 1 && exit 3\necho to-stderr >&2\nsleep 600\n"
    made = hall.submit(script, replicas=3, devices=8)

    found = hall.until(made, State.FAILED)

    assert found.exit_code == 3
    attempt = Allocation.objects.get(job=made)
    assert output(hall.backend, attempt.pk, rank=2, stream="stderr") == "to-stderr\n"


def test_a_job_of_somebody_else_is_planned_around(hall: Hall) -> None:
    hall.slurm.run("sbatch", "-w", "n1", "--gres=gpu:5", "-t", "30", "--wrap", "sleep 600")
    hall.tick_until(lambda: OutsideUse.objects.exists())
    assert OutsideUse.objects.get().device_indices == [0, 1, 2, 3, 4]
    made = [hall.submit("#!/bin/sh\nsleep 600\n", devices=8, name=f"job-{i}") for i in range(8)]

    hall.tick_until(lambda: Job.objects.filter(state=State.RUNNING).count() == 7)

    waiting = Job.objects.get(pk__in=[one.pk for one in made], state=State.QUEUED)
    assert not Placement.objects.filter(node__name="n1").exists()
    hall.slurm.run("scancel", "--name=wrap")
    hall.until(waiting, State.RUNNING)
    assert Placement.objects.get(allocation__job=waiting).node.name == "n1"


def test_a_device_that_somebody_else_takes_first_is_given_up_and_the_job_goes_elsewhere(hall: Hall) -> None:
    made = hall.submit("#!/bin/sh\necho here\nsleep 600\n", devices=8)
    scheduling.run_pass(at=now())
    first = Placement.objects.get(allocation__job=made).node
    # Between the decision and its carrying out somebody gives the node to Slurm directly.
    hall.slurm.run("sbatch", "-w", first.name, "--gres=gpu:1", "-t", "30", "--wrap", "sleep 600")
    wait_until(lambda: "RUNNING" in hall.states_in_slurm())

    hall.until(made, State.RUNNING)

    attempts = Allocation.objects.filter(job=made).order_by("fence")
    assert [one.fence for one in attempts] == [1, 2]
    assert Placement.objects.get(allocation=attempts[1]).node != first
    assert Job.objects.get(pk=made.pk).n_start_failures == 0
    assert hall.states_in_slurm() == ["RUNNING", "RUNNING"]


def test_drains_are_seen_on_both_sides_and_taken_back_by_whoever_asked(hall: Hall) -> None:
    def in_slurm(node: str) -> str:
        return hall.slurm.run("sinfo", "-h", "-N", "-n", node, "-o", "%T").strip()

    hall.slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=fan")
    inventory.drain_node(node_id=Node.objects.get(name="n3").pk, actor=None, at=now(), reason="cables")
    hall.tick_until(
        lambda: Node.objects.get(name="n2").health == Health.DRAINED and in_slurm("n3") == "drained"
    )
    assert "fan" in Node.objects.get(name="n2").health_reason

    hall.slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    inventory.resume_node(node_id=Node.objects.get(name="n3").pk, actor=None, at=now())
    hall.tick_until(lambda: Node.objects.get(name="n2").health == Health.HEALTHY and in_slurm("n3") == "idle")


def test_a_preempted_script_writes_its_checkpoint_and_goes_on_from_it(hall: Hall) -> None:
    PolicySetting.objects.create(values={"shield_s": 0.0})
    script = (
        "#!/bin/bash\n"
        "at=$(cat $SWITCHYARD_RUN/../at 2>/dev/null || echo 0)\necho begins at $at\n"
        "trap 'echo 42 > $SWITCHYARD_RUN/../at; echo saved; exit 0' TERM\n"
        "[ $at = 42 ] && exit 0\nwhile :; do sleep 0.1; done\n"
    )
    low = hall.submit(script, replicas=8, devices=8, checkpoint={"interval": 60.0, "cost": 1.0})
    hall.until(low, State.RUNNING)
    wait_until(lambda: "begins at 0" in hall.log(low))
    high = hall.submit("#!/bin/sh\nsleep 1\n", devices=8, priority=9)

    hall.until(high, State.SUCCEEDED)
    hall.until(low, State.SUCCEEDED)

    attempts = list(Allocation.objects.filter(job=low).order_by("fence"))
    assert [one.fence for one in attempts] == [1, 2]
    assert "saved" in output(hall.backend, attempts[0].pk)
    assert output(hall.backend, attempts[1].pk) == "begins at 42\n"
    assert Job.objects.get(pk=low.pk).n_preemptions == 1


def test_a_gang_that_loses_a_node_begins_again_elsewhere_once(hall: Hall) -> None:
    made = hall.submit("#!/bin/sh\necho runs\nsleep 600\n", replicas=4, devices=8)
    hall.until(made, State.RUNNING)
    first = Allocation.objects.get(job=made)
    lost = Placement.objects.filter(allocation=first).latest("first_rank").node
    hall.slurm.kill_node(lost.name)
    hall.slurm.run("scontrol", "update", f"NodeName={lost.name}", "State=DOWN", "Reason=power")

    hall.tick_until(lambda: Allocation.objects.filter(job=made, fence=2, ended_at=None).exists())
    hall.until(made, State.RUNNING)

    second = Allocation.objects.get(job=made, fence=2)
    assert lost.pk not in Placement.objects.filter(allocation=second).values_list("node", flat=True)
    assert Job.objects.get(pk=made.pk).n_node_losses == 1
    hall.tick_until(lambda: Node.objects.get(pk=lost.pk).health == Health.FAILED)
    assert hall.states_in_slurm().count("RUNNING") == 1


def test_a_controller_that_is_away_changes_nothing(hall: Hall) -> None:
    made = hall.submit("#!/bin/sh\nwhile ! [ -e $SWITCHYARD_RUN/end ]; do sleep 0.1; done\n", devices=1)
    hall.until(made, State.RUNNING)
    attempt = Allocation.objects.get(job=made)
    # What a controller that is killed had not written down is lost; it writes when something has changed.
    began_s = now().timestamp()
    slurm_id = SlurmRun.objects.get(allocation_id=attempt.pk).slurm_ids[0]
    hall.slurm.run("scontrol", "update", f"JobId={slurm_id}", "AdminComment=seen")
    wait_until(lambda: (hall.slurm.folder / "state" / "job_state").stat().st_mtime > began_s)
    hall.slurm.kill_controller()
    waiting = hall.submit("#!/bin/sh\ntrue\n", devices=1)

    since = time.monotonic()
    hall.tick()
    while time.monotonic() < since + AWAY_S:
        hall.tick()
    with pytest.raises(OutsideError):
        hall.backend.list_seen(at=now())
    assert Job.objects.get(pk=made.pk).state == State.RUNNING
    assert Cluster.objects.get(pk=hall.cluster.pk).last_error
    # It ends while nobody can tell.
    (hall.slurm.shared / SlurmConnection.objects.get().mark / str(attempt.pk) / "end").touch()

    hall.slurm.start_controller()
    hall.until(made, State.SUCCEEDED)
    hall.until(waiting, State.SUCCEEDED)

    assert Allocation.objects.count() == 2
    assert Cluster.objects.get(pk=hall.cluster.pk).last_error == ""


def test_a_controller_that_forgets_what_it_began_begins_nothing_twice(hall: Hall) -> None:
    # It is killed before it wrote down that the job began, and begins it again when it comes back. What it knew before
    # that it has on the disk.
    hall.slurm.restart_controller()
    made = hall.submit(
        "#!/bin/sh\necho $SWITCHYARD_ATTEMPT >> $SWITCHYARD_RUN/../begun\nsleep 2\n", devices=1
    )
    hall.until(made, State.RUNNING)
    hall.slurm.kill_controller()
    hall.slurm.start_controller()

    hall.until(made, State.SUCCEEDED)

    mark = SlurmConnection.objects.get().mark
    begun = (hall.slurm.shared / mark / "begun").read_text().split()
    assert len(begun) == len(set(begun))


def draft(slurm: SlurmCluster, **more: Any) -> connections.SlurmDraft:
    given = {
        "rest_url": slurm.rest_url,
        "user_name": "root",
        "secret": base64.b64encode(slurm.jwt_key).decode(),
        "shared_dir": str(slurm.shared),
        "slurm_conf": str(slurm.conf),
    }
    return connections.SlurmDraft(**{**given, **more})


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"rest_url": "http://127.0.0.1:9"}, OutsideError),
        ({"secret": base64.b64encode(b"w" * 32).decode()}, OutsideError),
        ({"secret": "not base64"}, InvalidInput),
        ({"partition": "nowhere"}, InvalidInput),
        ({"shared_dir": "/proc"}, InvalidInput),
    ],
)
def test_nothing_is_saved_of_a_connection_that_does_not_work(
    slurm: SlurmCluster, wrong: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        connections.connect_slurm(name="theirs", draft=draft(slurm, **wrong), actor=None, at=now())

    assert not Cluster.objects.exists()


def test_a_connection_that_works_is_saved_with_its_nodes_and_can_be_changed(slurm: SlurmCluster) -> None:
    done = connections.connect_slurm(name="theirs", draft=draft(slurm), actor=None, at=now())
    mark = SlurmConnection.objects.get().mark

    assert (done.n_nodes, done.notes) == (8, ())
    assert done.version.startswith("22.05")
    again = connections.change_slurm(
        cluster=done.cluster, draft=draft(slurm, partition="main"), actor=None, at=now()
    )
    assert again.n_nodes == 0
    assert (SlurmConnection.objects.get().mark, SlurmConnection.objects.get().partition) == (mark, "main")


# The backend alone ------------------------------------------------------------------------------------------------


@pytest.fixture
def backend(slurm: SlurmCluster) -> SlurmBackend:
    found = backend_of(connected(slurm))
    assert isinstance(found, SlurmBackend)
    return found


def forget_answers(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Have the answers to so many submissions get lost on the way; what was submitted is told."""
    submitted: list[int] = []
    really = wires.Wire.submit

    def submit(self: wires.Wire, body: Any) -> list[int]:
        ids = really(self, body)
        submitted.extend(ids)
        if len(submitted) <= times:
            raise wires.NoAnswer("the line was cut")
        return ids

    monkeypatch.setattr(wires.Wire, "submit", submit)
    return submitted


def test_a_launch_whose_answer_was_lost_is_found_again_and_runs_once(
    backend: SlurmBackend, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = forget_answers(monkeypatch, 1)
    with pytest.raises(OutsideError):
        backend.launch([shell("sleep 600")], at=now())
    assert look(backend).state == RunState.CLAIMED

    assert backend.launch([shell("sleep 600")], at=now()) == {}
    wait_for(backend, RunState.RUNNING)

    assert len(submitted) == 1
    assert slurm.run("squeue", "-h", "-o", "%A").split() == [str(submitted[0])]


def test_what_was_stopped_before_its_answer_came_never_runs(
    backend: SlurmBackend, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_answers(monkeypatch, 1)
    with pytest.raises(OutsideError):
        backend.launch([shell("sleep 600")], at=now())

    backend.stop([stop()], at=now())

    assert look(backend).reason == EndReason.NEVER_STARTED
    wait_until(lambda: look(backend) and not slurm.run("squeue", "-h"))
    backend.launch([shell("sleep 600")], at=now())
    assert slurm.run("squeue", "-h") == ""


def test_whoever_wrote_down_the_number_and_died_has_it_let_go_by_the_next_look(
    backend: SlurmBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: SlurmBackend, wire: Any, ids: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlurmBackend, "_let_go", die)
        with pytest.raises(KeyboardInterrupt):
            backend.launch([shell("sleep 600")], at=now())

    wait_for(backend, RunState.RUNNING)


def test_a_number_that_slurm_gave_to_another_job_since_is_not_ours(
    backend: SlurmBackend, slurm: SlurmCluster
) -> None:
    backend.launch([shell("sleep 600")], at=now())
    wait_for(backend, RunState.RUNNING)
    (mine,) = SlurmRun.objects.get().slurm_ids
    slurm.run("scontrol", "update", f"JobId={mine}", "JobName=somebody-elses")

    assert wait_for(backend, RunState.ENDED).reason == EndReason.LOST
    backend.stop([stop(grace_s=0)], at=now())
    assert slurm.run("squeue", "-h", "-o", "%T").split() == ["RUNNING"]


def test_rows_that_are_lost_are_made_again_from_what_runs(backend: SlurmBackend) -> None:
    backend.launch([shell("sleep 600", allocation_id=7, job_id=5, fence=3)], at=now())
    wait_for(backend, RunState.RUNNING, 7)
    SlurmRun.objects.all().delete()

    found = wait_for(backend, RunState.RUNNING, 7)

    assert (found.job_id, found.fence) == (5, 3)


def test_a_run_that_will_not_listen_is_cancelled_after_its_grace(backend: SlurmBackend) -> None:
    backend.launch([shell("trap : TERM; echo deaf; while :; do sleep 0.1; done")], at=now())
    wait_until(lambda: output(backend) == "deaf\n")
    assert look(backend).state == RunState.RUNNING
    backend.stop([stop(grace_s=1)], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert found.reason == EndReason.STOPPED
    assert found.exit_code > 128


def test_a_time_limit_is_kept_to_the_second_although_slurm_counts_minutes(backend: SlurmBackend) -> None:
    backend.launch([shell("sleep 600", time_limit_s=2.0)], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert found.reason == EndReason.TIME_LIMIT
    assert (found.ended_at - found.started_at).total_seconds() < 60


def test_what_ended_by_itself_before_the_signal_has_ended_by_itself(backend: SlurmBackend) -> None:
    backend.launch([shell("exit 4")], at=now())
    wait_for(backend, RunState.RUNNING)
    wait_until(
        lambda: SlurmRun.objects.get().ended_at or backend.list_seen(at=now())[0].state == RunState.ENDED
    )
    backend.stop([stop()], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert (found.reason, found.exit_code) == (EndReason.EXITED, 4)


def test_a_job_that_no_node_can_hold_is_refused_for_good(backend: SlurmBackend) -> None:
    nowhere = Order(
        allocation_id=1,
        job_id=1,
        fence=1,
        replicas=(Replica(rank=0, node="gone", device_indices=(0,), command=("true",)),),
    )

    assert backend.launch([nowhere], at=now())[1].permanent


def test_a_script_of_its_own_starts_steps_on_the_devices_of_its_job(backend: SlurmBackend) -> None:
    script = "#!/bin/bash\n[ $SWITCHYARD_RANK = 0 ] && srun -n 1 echo a step of its own\ntrue\n"
    backend.launch([order(script=script)], at=now())

    wait_for(backend, RunState.ENDED)

    assert "a step of its own" in output(backend)


def test_the_log_of_a_run_is_no_way_to_other_files(backend: SlurmBackend, slurm: SlurmCluster) -> None:
    backend.launch(
        [shell('rm "$SWITCHYARD_RUN/stdout.0"; ln -s /etc/passwd "$SWITCHYARD_RUN/stdout.0"')], at=now()
    )
    wait_for(backend, RunState.ENDED)

    with pytest.raises(OutsideError):
        output(backend)


def test_the_credential_is_kept_sealed(slurm: SlurmCluster) -> None:
    connected(slurm)
    stored = SlurmConnection.objects.get()

    assert base64.b64encode(slurm.jwt_key).decode() not in stored.sealed_secret
    assert base64.b64decode(stored.secret) == slurm.jwt_key


def test_a_wrong_key_is_no_finding_about_what_runs(slurm: SlurmCluster) -> None:
    from apps.execution.slurm_models import seal

    backend = backend_of(
        connected(slurm, sealed_secret=seal("d3JvbmcgYW5kIHdyb25nIGFuZCB3cm9uZyBhbmQgd3Jvbmc="))
    )

    with pytest.raises(OutsideError):
        backend.launch([shell("true")], at=now())
    with pytest.raises(OutsideError):
        backend.list_seen(at=now())

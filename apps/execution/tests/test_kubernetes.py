"""The planner, the ledger and a Kubernetes together. The double plays it; see `kubernetes_double.py` for what it is."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.core.errors import OutsideError
from apps.execution import services as execution
from apps.execution import surveying
from apps.execution.backends.base import EndReason, RunState
from apps.execution.backends.choice import backend_of, kubernetes_place_of
from apps.execution.backends.kubernetes import watching
from apps.execution.backends.kubernetes.backend import KubernetesBackend
from apps.execution.backends.kubernetes.wire import Wire
from apps.execution.models import KubernetesConnection, KubernetesRun
from apps.execution.tests.builders import look, now, output, shell, stop, wait_for, wait_until
from apps.execution.tests.kubernetes import connected
from apps.execution.tests.kubernetes_double import OUT_OF_SERVICE, Double
from apps.inventory import services as inventory
from apps.inventory.models import Cluster, Health, Node, OutsideUse
from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, Placement
from apps.jobs.selectors import ledger_faults
from apps.jobs.spec import JobRequest
from apps.jobs.tests.builders import person, team
from apps.scheduling import services as scheduling

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Hall:
    """A Kubernetes that is planned for, and a person who submits to it."""

    double: Double
    cluster: Cluster
    backend: KubernetesBackend
    submit: Callable[..., Job]

    def tick(self) -> None:
        """What the loops of the site do all the time."""
        scheduling.run_pass(at=now())
        execution.reconcile_cluster(cluster_id=self.cluster.pk, at=now())

    def tick_until(self, ask: Callable[[], Any]) -> None:
        def there() -> bool:
            self.tick()
            return bool(ask())

        try:
            wait_until(there)
        except AssertionError as error:
            raise AssertionError(self.told()) from error

    def until(self, of: Job, *states: State) -> Job:
        self.tick_until(lambda: Job.objects.get(pk=of.pk).state in states)
        return Job.objects.get(pk=of.pk)

    def told(self) -> str:
        """What everybody knows, for whoever has to find out why a test waited in vain."""
        rows = [
            *Job.objects.values_list("id", "state", "end_message", "reason__sentence"),
            *KubernetesRun.objects.values(),
            *Allocation.objects.values(),
            *((pod["metadata"], pod["status"]) for pod in self.double._all("pods")),
        ]
        return "\n".join(map(str, rows))

    def log(self, of: Job, rank: int = 0) -> str:
        return output(self.backend, Allocation.objects.filter(job=of).latest("fence").pk, rank=rank)

    def nodes_of(self, of: Job) -> list[str]:
        placed = Placement.objects.filter(allocation__job=of).order_by("allocation__fence", "first_rank")
        return [one.node.name for one in placed]

    def pods(self) -> list[dict[str, Any]]:
        with self.double.lock:
            return self.double._all("pods")

    def stranger(self, node: str, gpus: int) -> None:
        """Somebody else's pod takes devices of a node."""
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["sleep", "600"],
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }
        spec = {"nodeName": node, "containers": [container]}
        self.double.create("pods", "others", {"metadata": {"name": f"on-{node}"}, "spec": spec})


@pytest.fixture
def hall(kubernetes: Double, no_memory: None) -> Iterator[Hall]:
    surveying._surveyed_s.clear()
    cluster = connected(kubernetes.url)
    backend = backend_of(cluster)
    assert isinstance(backend, KubernetesBackend)
    assert surveying.take_facility(cluster, backend.survey(at=now()), at=now(), accelerator="H100") == []
    ours = team()
    me = person(ours)

    def submit(script: str, **fields: Any) -> Job:
        given = {"name": "train", "team": ours.name, "cluster": cluster.name, "time_limit": 600.0}
        request = JobRequest.model_validate({**given, "script": script, **fields})
        return ledger.submit_job(request=request, actor=me, at=now())

    yield Hall(kubernetes, cluster, backend, submit)
    assert ledger_faults() == []


def test_a_gang_runs_on_the_very_nodes_of_its_placement(hall: Hall) -> None:
    script = "#!/bin/sh\necho $SWITCHYARD_RANK on $SWITCHYARD_NODE for $SWITCHYARD_N_REPLICAS\n"
    made = hall.submit(script, replicas=4, devices=8)

    hall.until(made, State.SUCCEEDED)

    nodes = hall.nodes_of(made)
    assert len(set(nodes)) == 4
    assert [hall.log(made, rank).split() for rank in range(4)] == [
        [str(rank), "on", nodes[rank], "for", "4"] for rank in range(4)
    ]
    hall.tick_until(lambda: not hall.pods() and not hall.double._all("jobs"))


def test_the_exit_code_of_the_rank_that_failed_is_told(hall: Hall) -> None:
    script = '#!/bin/sh\n[ "$SWITCHYARD_RANK" = 1 ] && exit 7\nsleep 600\n'
    made = hall.submit(script, replicas=2, devices=1)

    # It is tried again after that: what counts is the first attempt.
    ended = KubernetesRun.objects.filter(job_id=made.pk, fence=1, ended_at__isnull=False)
    hall.tick_until(ended.exists)
    run = ended.get()
    assert (run.reason, run.exit_code) == (EndReason.EXITED, 7)


def test_no_rank_runs_before_all_are_there(hall: Hall) -> None:
    hall.backend.launch([shell("sleep 600", n_replicas=2)], at=now())

    assert [job["spec"]["suspend"] for job in hall.double._all("jobs")] == [True]
    hall.backend.list_seen(at=now())
    wait_until(lambda: len(hall.pods()) == 2)
    assert all(pod["spec"]["schedulingGates"] for pod in hall.pods())
    wait_for(hall.backend, RunState.RUNNING)
    assert {pod["spec"]["nodeName"] for pod in hall.pods()} == {"here"}


def test_a_launch_whose_answer_got_lost_is_taken_up_again(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(self: Wire, body: Any) -> None:
        whole(self, body)
        raise ConnectionError("killed")

    whole = Wire.create_job
    monkeypatch.setattr(Wire, "create_job", create)
    with pytest.raises(ConnectionError):
        hall.backend.launch([shell("sleep 600")], at=now())
    monkeypatch.undo()

    hall.backend.launch([shell("sleep 600")], at=now())

    wait_for(hall.backend, RunState.RUNNING)
    assert len(hall.double._all("jobs")) == len(hall.pods()) == 1


def test_what_runs_is_found_again_when_the_rows_are_lost(hall: Hall) -> None:
    hall.backend.launch([shell("sleep 600", fence=3)], at=now())
    wait_for(hall.backend, RunState.RUNNING)
    KubernetesRun.objects.all().delete()

    found = look(hall.backend)

    assert found is not None
    assert (found.job_id, found.fence, found.state) == (1, 3, RunState.RUNNING)


def test_a_process_that_does_not_leave_is_ended_by_force(hall: Hall) -> None:
    hall.backend.launch([shell('trap "" TERM; while :; do sleep 0.1; done', grace_s=60)], at=now())
    wait_for(hall.backend, RunState.RUNNING)

    hall.backend.stop([stop(grace_s=1)], at=now())

    found = wait_for(hall.backend, RunState.ENDED)
    assert (found.reason, found.exit_code) == (EndReason.STOPPED, 137)


def test_a_run_ends_when_its_time_is_up(hall: Hall) -> None:
    hall.backend.launch([shell("sleep 600", time_limit_s=1.0, grace_s=5)], at=now())

    found = wait_for(hall.backend, RunState.ENDED)

    assert (found.reason, found.exit_code) == (EndReason.TIME_LIMIT, 143)


def test_what_was_written_can_be_read_while_it_runs_and_after_its_pod_went(hall: Hall) -> None:
    hall.backend.launch([shell("echo begun; sleep 600")], at=now())
    wait_for(hall.backend, RunState.RUNNING)
    wait_until(lambda: output(hall.backend) == "begun\n")

    hall.backend.stop([stop(grace_s=0)], at=now())
    wait_for(hall.backend, RunState.ENDED)
    wait_until(lambda: hall.backend.list_seen(at=now()) and not hall.pods())

    assert output(hall.backend) == "begun\n"


def test_an_evicted_rank_ends_its_gang_as_lost_and_it_begins_again(hall: Hall) -> None:
    made = hall.submit("#!/bin/sh\nsleep 600\n", replicas=2, devices=8)
    hall.until(made, State.RUNNING)

    hall.double.evict("default", hall.pods()[0]["metadata"]["name"])

    hall.tick_until(lambda: Allocation.objects.filter(job=made, ended_at=None, fence=2).exists())
    assert KubernetesRun.objects.get(job_id=made.pk, fence=1).reason == EndReason.LOST
    hall.until(made, State.RUNNING)


def test_a_rank_that_somebody_deleted_is_no_success_and_no_failure_of_its_job(hall: Hall) -> None:
    script = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
    hall.backend.launch([shell(script)], at=now())
    wait_for(hall.backend, RunState.RUNNING)

    hall.double.delete("pods", "default", hall.pods()[0]["metadata"]["name"], {})

    assert wait_for(hall.backend, RunState.ENDED).reason == EndReason.LOST


def test_a_rank_on_a_node_that_answers_nobody_is_not_over(hall: Hall) -> None:
    hall.backend.launch([shell("sleep 600")], at=now())
    wait_for(hall.backend, RunState.RUNNING)
    hall.double.lose_node("here")
    hall.backend.stop([stop(grace_s=0)], at=now())

    # Long enough for its grace and any look that would take it for ended.
    until = time.monotonic() + 3
    while time.monotonic() < until:
        found = look(hall.backend)
        assert found is not None
        assert found.state == RunState.RUNNING

    taint = {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    hall.double.change("nodes", "", "here", {"spec": {"taints": [taint]}}, is_json_patch=False)
    wait_for(hall.backend, RunState.ENDED)


def test_pods_of_others_count_as_outside_use_and_are_planned_around(hall: Hall) -> None:
    for node in ("here", "n1", "n2"):
        hall.stranger(node, 8)
    hall.stranger("n3", 4)
    hall.tick_until(lambda: OutsideUse.objects.count() == 4)

    made = hall.submit("#!/bin/sh\nsleep 1\n", devices=4)
    hall.until(made, State.SUCCEEDED)

    assert hall.nodes_of(made) == ["n3"]


def test_a_pod_that_takes_a_planned_device_sends_the_job_elsewhere(hall: Hall) -> None:
    made = hall.submit("#!/bin/sh\nsleep 600\n", devices=8)
    scheduling.run_pass(at=now())
    (planned,) = hall.nodes_of(made)
    hall.stranger(planned, 3)
    wait_until(lambda: hall.double.free_gpus(planned) == 5)
    began = time.monotonic()

    hall.tick_until(lambda: OutsideUse.objects.filter(node__name=planned).exists())
    noticed_s = time.monotonic() - began
    hall.until(made, State.RUNNING)

    assert hall.nodes_of(made)[-1] != planned
    assert [pod["spec"]["nodeName"] for pod in hall.pods() if pod["metadata"]["namespace"] == "default"] == [
        hall.nodes_of(made)[-1]
    ]
    print(f"noticed after {noticed_s:.2f} s, running elsewhere after {time.monotonic() - began:.2f} s")


def test_a_cordon_there_drains_here_and_is_never_lifted_by_us(hall: Hall) -> None:
    spec = {"spec": {"unschedulable": True}}
    hall.double.change("nodes", "", "n1", spec, is_json_patch=False)
    hall.tick_until(lambda: Node.objects.get(name="n1").drain_asked_at is not None)

    hall.backend.resume("n1")

    assert hall.double.get("nodes", "", "n1")["spec"]["unschedulable"] is True
    hall.double.change("nodes", "", "n1", {"spec": {"unschedulable": None}}, is_json_patch=False)
    hall.tick_until(lambda: Node.objects.get(name="n1").drain_asked_at is None)


def test_a_cordon_of_somebody_else_in_the_same_moment_is_not_taken_for_ours(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patch(self: Wire, node: Any, body: Any) -> bool:
        theirs = {"spec": {"unschedulable": True}}
        hall.double.change("nodes", "", "n1", theirs, is_json_patch=False)
        return whole(self, node, body)

    whole = Wire.patch_node
    monkeypatch.setattr(Wire, "patch_node", patch)
    hall.backend.drain("n1", "fans")
    monkeypatch.undo()
    hall.backend.resume("n1")

    assert hall.double.get("nodes", "", "n1")["spec"]["unschedulable"] is True


def test_a_drain_here_cordons_there_and_is_taken_back(hall: Hall) -> None:
    node = Node.objects.get(name="n1")
    inventory.drain_node(node_id=node.pk, actor=None, at=now(), reason="fans")
    hall.tick_until(lambda: hall.double.get("nodes", "", "n1")["spec"].get("unschedulable"))

    inventory.resume_node(node_id=node.pk, actor=None, at=now(), reason="mended")
    hall.tick_until(lambda: not hall.double.get("nodes", "", "n1")["spec"].get("unschedulable"))


def test_a_node_that_the_cluster_does_not_hear_has_failed(hall: Hall) -> None:
    hall.double.lose_node("n2")

    hall.tick_until(lambda: Node.objects.get(name="n2").health == Health.FAILED)


def test_connecting_takes_in_nodes_by_their_labels_and_seals_the_token(
    kubernetes: Double, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"nvidia.com/gpu.product": "H200", "site/rack": "r1", "topology.kubernetes.io/zone": "hall-a"}
    kubernetes.add_node("n9", gpus=4, labels=labels)
    token = tmp_path / "token"
    token.write_text("a-secret\n")
    given = ["--url", kubernetes.url, "--token-file", str(token), "--image", "busybox"]

    call_command(
        "kubernetes", "connect", "east", *given, "--label", "leaf=site/rack", "--accelerator", "H100"
    )

    found = KubernetesConnection.objects.get(cluster__name="east")
    assert found.token == "a-secret"
    assert "a-secret" not in found.sealed_token
    node = Node.objects.get(name="n9")
    assert (node.n_devices, node.accelerator_type.name, node.memory_gib) == (4, "H200", 512)
    assert (node.leaf.name, node.leaf.parent.name) == ("east/r1", "east/hall-a")
    assert Node.objects.get(name="here").accelerator_type.name == "H100"
    kubernetes.add_node("n10")
    call_command("kubernetes", "sync", "east", "--accelerator", "H100")
    assert "1 nodes taken in" in capsys.readouterr().out
    call_command("kubernetes", "change", "east", *given, "--namespace", "jobs")
    found.refresh_from_db()
    assert found.namespace == "jobs"


def test_what_does_not_answer_is_not_connected(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret")

    with pytest.raises(CommandError, match="does not answer"):
        call_command(
            "kubernetes", "connect", "east", "--url", "http://127.0.0.1:9", "--token-file", str(token),
            "--image", "busybox",
        )  # fmt: skip

    assert not Cluster.objects.filter(name="east").exists()


def test_a_long_list_is_read_by_pages_and_anew_when_it_was_compacted_meanwhile(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.execution.backends.kubernetes.wire.PAGE", 3)
    unwatched = KubernetesBackend(kubernetes_place_of(hall.cluster))
    names = {node.name for node in unwatched.survey(at=now()).nodes}
    assert names == {"here", "n1", "n2", "n3"}
    pages = Wire._read

    def compacted(self: Wire, call: Any, *args: Any, **more: Any) -> Any:
        found = pages(self, call, *args, **more)
        if compactions and found.get("metadata", {}).get("continue"):
            hall.double.add_node(compactions.pop())
            hall.double.compact()
        return found

    compactions = ["n4"]
    monkeypatch.setattr(Wire, "_read", compacted)

    assert {node.name for node in unwatched.survey(at=now()).nodes} == names | {"n4"}
    assert not compactions


def test_the_rights_of_the_manifest_are_enough(hall: Hall) -> None:
    asked = hall.double.requests
    asked.clear()
    hall.backend.launch([shell("echo begun; sleep 600", time_limit_s=500.0)], at=now())
    wait_for(hall.backend, RunState.RUNNING)
    hall.backend.set_limits({1: 400.0}, at=now())
    hall.backend.stop([stop(grace_s=1)], at=now())
    wait_for(hall.backend, RunState.ENDED)
    hall.backend.drain("n1", "fans")
    hall.backend.resume("n1")
    hall.backend.survey(at=now())

    granted = set()
    for one in yaml.safe_load_all((settings.BASE_DIR / "deploy" / "kubernetes-rights.yaml").read_text()):
        for rule in one.get("rules", []):
            granted |= {
                (one["kind"], resource, verb) for resource in rule["resources"] for verb in rule["verbs"]
            }
    assert {right for request in asked if (right := right_of(*request)) is not None} <= granted


def right_of(method: str, path: str) -> tuple[str, str, str] | None:
    """The kind of role, resource and verb that a request needs."""
    if path.startswith("/version"):
        return None  # open to all who are known
    parts = path.split("/v1/")[1].split("/")
    kind = "ClusterRole"
    if parts[0] == "namespaces":
        kind, parts = "Role", parts[2:]
    resource = f"{parts[0]}/{parts[2]}" if len(parts) > 2 else parts[0]
    if method == "GET":
        return kind, resource, "get" if len(parts) > 1 else "list"
    return kind, resource, {"POST": "create", "PATCH": "patch", "DELETE": "delete", "WATCH": "watch"}[method]


# Watches


def lists_of(hall: Hall) -> list[str]:
    """What was listed since this was last asked, but for the question whether anybody is there."""
    asked = [path.rsplit("/", 1)[1] for verb, path in hall.double.requests if verb == "GET"]
    hall.double.requests.clear()
    return [kind for kind in asked if kind in ("pods", "nodes")]


def look_on(hall: Hall) -> set[str]:
    """One look of each kind, as the loops do; the nodes there are."""
    hall.backend.list_seen(at=now())
    return {node.name for node in hall.backend.survey(at=now()).nodes}


def is_settled(hall: Hall) -> bool:
    look_on(hall)
    lists_of(hall)
    look_on(hall)
    return not lists_of(hall)


def test_what_only_runs_is_not_listed_again_and_what_becomes_of_it_is_seen_all_the_same(hall: Hall) -> None:
    hall.backend.launch([shell("sleep 600", n_replicas=2)], at=now())
    wait_for(hall.backend, RunState.RUNNING)
    wait_until(lambda: is_settled(hall))

    for _ in range(20):
        look_on(hall)

    assert lists_of(hall) == []
    hall.stranger("n3", 2)
    hall.double.evict("default", hall.pods()[0]["metadata"]["name"])
    assert wait_for(hall.backend, RunState.ENDED).reason == EndReason.LOST
    held = {(use.node, len(use.device_indices)) for use in hall.backend.survey(at=now()).foreign}
    assert held == {("n3", 2)}
    wait_until(lambda: not look_on(hall) or not hall.double._all("jobs"))
    assert not hall.pods()[1:]


def test_a_watch_that_is_too_old_is_followed_by_one_list(hall: Hall) -> None:
    wait_until(lambda: is_settled(hall))
    with hall.double.lock:
        hall.double.add_node("n4")
        hall.double.compact()

    wait_until(lambda: "n4" in look_on(hall))

    assert sorted(lists_of(hall)) == ["nodes", "pods", "pods"]
    hall.double.add_node("n5")
    wait_until(lambda: "n5" in look_on(hall))
    assert lists_of(hall) == []


def test_what_happened_while_the_watches_were_cut_is_seen(hall: Hall) -> None:
    hall.backend.launch([shell("sleep 600")], at=now())
    wait_for(hall.backend, RunState.RUNNING)
    wait_until(lambda: is_settled(hall))
    with hall.double.lock:
        hall.double.cut()
        hall.double.delete("nodes", "", "n2", {})
        hall.double.delete("jobs", "default", hall.double._all("jobs")[0]["metadata"]["name"],
                           {"propagationPolicy": "Background"})  # fmt: skip

    wait_until(lambda: "n2" not in look_on(hall))
    assert wait_for(hall.backend, RunState.ENDED).reason == EndReason.LOST


def test_watches_that_fall_silent_are_given_up(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.5)
    watching.forget()
    hall.backend = backend_of(hall.cluster)
    look_on(hall)
    hall.double.is_mute = True

    hall.double.add_node("n4")

    wait_until(lambda: "n4" in look_on(hall))


def test_without_the_right_to_watch_all_is_listed(hall: Hall) -> None:
    hall.double.refused.add("WATCH")
    watching.forget()
    hall.backend = backend_of(hall.cluster)

    made = hall.submit("#!/bin/sh\ntrue\n", replicas=2, devices=8)

    hall.until(made, State.SUCCEEDED)


def test_nothing_is_concluded_from_watches_that_are_behind(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    hall.backend.launch([shell("sleep 600")], at=now())
    wait_for(hall.backend, RunState.RUNNING)

    with monkeypatch.context() as patch:
        patch.setattr(watching.Stream, "read", lambda self, wire: {})
        for _ in range(3):
            assert look(hall.backend).state == RunState.RUNNING
    assert len(hall.pods()) == len(hall.double._all("jobs")) == 1


def test_a_cluster_that_does_not_answer_any_more_is_told_at_once(hall: Hall) -> None:
    wait_until(lambda: is_settled(hall))
    hall.double.is_mute = True
    hall.double.refused.add("GET")

    with pytest.raises(OutsideError, match="refuses"):
        hall.backend.list_seen(at=now())


def test_watches_that_nobody_reads_end(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STREAM_S", 1)
    monkeypatch.setattr(watching, "UNREAD_S", 0.5)
    watching.forget()
    hall.backend = backend_of(hall.cluster)
    others = set(threading.enumerate())
    look_on(hall)
    ours = set(threading.enumerate()) - others
    assert len(ours) >= 4

    wait_until(lambda: not any(thread.is_alive() for thread in ours))

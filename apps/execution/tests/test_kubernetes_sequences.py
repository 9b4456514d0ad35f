"""What a real Kubernetes was seen to do, step by step; asked of the double, or of a real one that KUBECONFIG names."""

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes import client, config

from apps.execution.tests.builders import wait_until
from apps.execution.tests.kubernetes_double import Double

WORKER = 'trap "exit 143" TERM; i=0; while [ $i -lt 6000 ]; do sleep 0.1; i=$((i+1)); done'
TRACKING = "batch.kubernetes.io/job-tracking"


@dataclass
class Watched:
    """A namespace of a cluster, and all that was seen of it since `begin`."""

    api: client.ApiClient
    namespace: str
    is_real: bool
    events: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core, self.batch = client.CoreV1Api(self.api), client.BatchV1Api(self.api)

    def begin(self, job: str) -> None:
        for kind, ask in (
            ("pod", self.core.list_namespaced_pod),
            ("job", self.batch.list_namespaced_job),
        ):
            selector = f"batch.kubernetes.io/job-name={job}" if kind == "pod" else None
            found = json.loads(ask(self.namespace, label_selector=selector, _preload_content=False).data)
            answer = ask(
                self.namespace,
                label_selector=selector,
                watch=True,
                resource_version=found["metadata"]["resourceVersion"],
                timeout_seconds=60,
                _preload_content=False,
            )
            threading.Thread(target=self._follow, args=(kind, answer), daemon=True).start()

    def _follow(self, kind: str, answer: Any) -> None:
        rest = b""
        try:
            for piece in answer.stream(65536):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    version = int(event["object"]["metadata"]["resourceVersion"])
                    self.events.append((version, kind, event["type"], event["object"]))
        except Exception:  # the cluster was taken down
            return

    def steps(self) -> list[str]:
        """What was seen, in the order of versions: each as the words of what is new in it."""
        seen: dict[str, dict[str, Any]] = {}
        found = []
        for _, kind, what, one in sorted(self.events, key=lambda event: event[0]):
            key = one["metadata"]["uid"]
            words = told(kind, what, one)
            news = [word for word, value in words.items() if seen.get(key, {}).get(word) != value]
            who = (
                one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] if kind == "pod" else ""
            )
            found += [f"{kind}{who} {word}={words[word]}" for word in news if words[word] is not None]
            seen[key] = words
        return found

    def job(self, name: str, *, n: int, command: str = WORKER, **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "completionMode": "Indexed",
                "completions": n,
                "parallelism": n,
                "backoffLimit": 0,
                "podReplacementPolicy": "Failed",
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 5,
                        "containers": [
                            {
                                "name": "main",
                                "image": os.environ.get("TEST_KUBERNETES_IMAGE", "busybox"),
                                "command": ["/bin/sh", "-c", command],
                            }
                        ],
                    }
                },
                **spec,
            },
        }

    def create(self, **given: Any) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.begin(name)
        self.batch.create_namespaced_job(self.namespace, self.job(name, **given))
        return name

    def pods(self, job: str) -> list[dict[str, Any]]:
        answer = self.core.list_namespaced_pod(
            self.namespace, label_selector=f"batch.kubernetes.io/job-name={job}", _preload_content=False
        )
        return json.loads(answer.data)["items"]

    def until_running(self, job: str, n: int) -> list[dict[str, Any]]:
        wait_until(lambda: [p["status"]["phase"] for p in self.pods(job)] == ["Running"] * n)
        return self.pods(job)

    def until(self, step: str, after: str = "") -> None:
        def is_there() -> bool:
            steps = self.steps()
            begin = steps.index(after) if after in steps else 0 if not after else len(steps)
            return step in steps[begin:]

        try:
            wait_until(is_there)
        except AssertionError:
            raise AssertionError(self.steps()) from None

    def in_order(self, *steps: str) -> None:
        """These steps were seen, in this order; others may stand between."""
        found = self.steps()
        at = 0
        for step in steps:
            assert step in found[at:], f"{step} is missing after {found[:at]} in {found[at:]}"
            at = found.index(step, at) + 1


def told(kind: str, what: str, one: dict[str, Any]) -> dict[str, Any]:
    status, meta = one.get("status", {}), one["metadata"]
    true = [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]
    if kind == "pod":
        ended = [
            c["state"]["terminated"]["exitCode"]
            for c in status.get("containerStatuses", [])
            if "terminated" in c.get("state", {})
        ]
        return {
            "deleted": True if what == "DELETED" else None,
            "disrupted": "DisruptionTarget" in true or None,
            "leaving": "deletionTimestamp" in meta or None,
            "tracked": TRACKING in (meta.get("finalizers") or []),
            "phase": status.get("phase"),
            "exit": ended[0] if ended else None,
        }
    return {
        "deleted": True if what == "DELETED" else None,
        "leaving": "deletionTimestamp" in meta or None,
        "suspend": one["spec"].get("suspend", False),
        "suspended": "Suspended" in true or None,
        "active": status.get("active", 0),
        "terminating": status.get("terminating", 0),
        "failed": status.get("failed", 0),
        "failing": "FailureTarget" in true or None,
        "over": "Failed" in true or None,
    }


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Watched]:
    if os.environ.get("KUBECONFIG"):
        api = config.new_client_from_config()
        name = f"switchyard-{uuid.uuid4().hex[:8]}"
        core = client.CoreV1Api(api)
        core.create_namespace({"metadata": {"name": name}})
        yield Watched(api, name, is_real=True)
        core.delete_namespace(name)
        return
    double = request.getfixturevalue("double")
    yield Watched(client.ApiClient(client.Configuration(host=double.url)), "default", is_real=False)


@pytest.fixture
def double() -> Iterator[Double]:
    made = Double().up()
    for node in ("n1", "n2", "n3", "n4"):
        made.add_node(node)
    try:
        yield made
    finally:
        made.down()


def suspend(cluster: Watched, name: str, value: bool = True) -> None:
    cluster.batch.patch_namespaced_job(name, cluster.namespace, {"spec": {"suspend": value}})


def test_an_evicted_rank_is_not_counted_and_comes_again(cluster: Watched) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    name = cluster.create(n=2, podFailurePolicy={"rules": [rule]})
    first = cluster.until_running(name, 2)[0]["metadata"]["name"]

    cluster.core.create_namespaced_pod_eviction(
        first, cluster.namespace, {"metadata": {"name": first}}, _preload_content=False
    )

    cluster.until("pod0 deleted=True")
    wait_until(lambda: len([p for p in cluster.pods(name) if p["status"]["phase"] == "Running"]) == 2)
    cluster.until("job active=2", after="job terminating=1")
    cluster.in_order(
        "pod0 disrupted=True",
        "pod0 leaving=True",
        "job active=1",
        "job terminating=1",
        "pod0 phase=Failed",
        "pod0 exit=143",
        "pod0 tracked=True",
        "pod0 deleted=True",
        "job active=2",
    )
    assert not any(step.startswith("job failed=") and step != "job failed=0" for step in cluster.steps())


def test_a_suspended_job_lets_go_of_all_its_pods_and_counts_nothing(cluster: Watched) -> None:
    name = cluster.create(n=2)
    cluster.until_running(name, 2)
    cluster.until("job active=2")

    suspend(cluster, name)

    cluster.until("job terminating=0", after="job terminating=2")
    for rank in (0, 1):
        cluster.in_order(
            "job suspend=True",
            f"pod{rank} tracked=False",
            f"pod{rank} leaving=True",
            "job suspended=True",
            f"pod{rank} exit=143",
            f"pod{rank} deleted=True",
            "job terminating=0",
        )
    cluster.in_order("job active=2", "job active=0", "job terminating=2")
    assert not any(step.startswith("job failed=") and step != "job failed=0" for step in cluster.steps())


def test_a_job_that_shrinks_gives_up_its_highest_ranks(cluster: Watched) -> None:
    name = cluster.create(n=4)
    cluster.until_running(name, 4)
    cluster.until("job active=4")

    size = {"spec": {"completions": 2, "parallelism": 2}}
    cluster.batch.patch_namespaced_job(name, cluster.namespace, size)

    cluster.until("job terminating=0", after="job terminating=2")
    for rank in (2, 3):
        cluster.in_order(
            f"pod{rank} tracked=False",
            f"pod{rank} leaving=True",
            "job active=2",
            "job terminating=2",
            f"pod{rank} exit=143",
            f"pod{rank} deleted=True",
            "job terminating=0",
        )
    assert sorted(p["status"]["phase"] for p in cluster.pods(name)) == ["Running", "Running"]
    assert not {"pod0 leaving=True", "pod1 leaving=True"} & set(cluster.steps())


def test_a_deadline_fails_a_job_when_all_its_pods_are_gone(cluster: Watched) -> None:
    name = cluster.create(n=2, activeDeadlineSeconds=2)

    cluster.until("job over=True")
    for rank in (0, 1):
        cluster.in_order(
            f"pod{rank} leaving=True",
            "job failing=True",
            f"pod{rank} tracked=False",
            "job failed=2",
            f"pod{rank} exit=143",
            f"pod{rank} deleted=True",
            "job terminating=0",
            "job over=True",
        )
    found = json.loads(
        cluster.batch.read_namespaced_job(name, cluster.namespace, _preload_content=False).data
    )
    reasons = {c["type"]: c["reason"] for c in found["status"]["conditions"]}
    assert reasons["Failed"] == "DeadlineExceeded"


def test_a_job_that_is_deleted_from_the_foreground_goes_last(cluster: Watched) -> None:
    name = cluster.create(n=2)
    cluster.until_running(name, 2)

    cluster.batch.delete_namespaced_job(
        name, cluster.namespace, propagation_policy="Foreground", _preload_content=False
    )

    cluster.until("job deleted=True")
    for rank in (0, 1):
        cluster.in_order(
            "job leaving=True",
            f"pod{rank} tracked=False",
            f"pod{rank} leaving=True",
            f"pod{rank} exit=143",
            f"pod{rank} deleted=True",
            "job deleted=True",
        )


def refusal(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(client.ApiException) as caught:
        call()
    return caught.value.status, json.loads(caught.value.body)["reason"]


def test_a_job_of_a_name_that_is_there_is_refused(cluster: Watched) -> None:
    name = cluster.create(n=1, suspend=True)

    again = cluster.job(name, n=1, suspend=True)
    assert refusal(lambda: cluster.batch.create_namespaced_job(cluster.namespace, again)) == (
        409,
        "AlreadyExists",
    )


def test_completions_change_only_together_with_parallelism(cluster: Watched) -> None:
    name = cluster.create(n=2, suspend=True)

    grown = {"spec": {"completions": 3}}
    assert refusal(lambda: cluster.batch.patch_namespaced_job(name, cluster.namespace, grown))[0] == 422


def test_a_pod_that_is_aimed_cannot_be_aimed_again(cluster: Watched) -> None:
    job = cluster.job("t-aim", n=1)
    pod = {"metadata": {"name": "t-aim"}, "spec": {**job["spec"]["template"]["spec"]}}
    pod["spec"] |= {"schedulingGates": [{"name": "example.com/gate"}], "nodeSelector": {"a": "b"}}
    cluster.core.create_namespaced_pod(cluster.namespace, pod)

    def patch(steps: list[dict[str, Any]]) -> None:
        cluster.core.patch_namespaced_pod("t-aim", cluster.namespace, steps, _preload_content=True)

    change = [{"op": "replace", "path": "/spec/nodeSelector/a", "value": "c"}]
    assert refusal(lambda: patch(change))[0] == 422
    more_gates = [{"name": "example.com/gate"}, {"name": "example.com/other"}]
    assert (
        refusal(lambda: patch([{"op": "replace", "path": "/spec/schedulingGates", "value": more_gates}]))[0]
        == 422
    )
    binding = {"metadata": {"name": "t-aim"}, "target": {"kind": "Node", "name": "n1"}}
    assert refusal(
        lambda: cluster.core.create_namespaced_pod_binding(
            "t-aim", cluster.namespace, binding, _preload_content=True
        )
    ) == (409, "Conflict")
    cluster.core.delete_namespaced_pod("t-aim", cluster.namespace)
    assert "t-aim" not in [
        one.metadata.name for one in cluster.core.list_namespaced_pod(cluster.namespace).items
    ]


def lines_of(cluster: Watched, **how: Any) -> list[dict[str, Any]]:
    answer = cluster.core.list_namespaced_pod(
        cluster.namespace, watch=True, timeout_seconds=2, _preload_content=False, **how
    )
    return [json.loads(line) for line in answer.data.splitlines()]


def test_a_quiet_watch_ends_with_a_bookmark(cluster: Watched) -> None:
    found = cluster.core.list_namespaced_pod(cluster.namespace)

    *_, last = lines_of(cluster, resource_version=found.metadata.resource_version, allow_watch_bookmarks=True)

    assert last["type"] == "BOOKMARK"
    assert int(last["object"]["metadata"]["resourceVersion"]) >= int(found.metadata.resource_version)


def test_a_watch_from_a_version_that_was_compacted_is_told_so(double: Double) -> None:
    watched = Watched(client.ApiClient(client.Configuration(host=double.url)), "default", is_real=False)
    before = watched.core.list_node().metadata.resource_version
    double.add_node("n9")
    double.compact()

    (line,) = lines_of(watched, resource_version=before)

    assert (line["type"], line["object"]["code"], line["object"]["reason"]) == ("ERROR", 410, "Expired")

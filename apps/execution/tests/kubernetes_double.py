"""A small Kubernetes for the tests: an API server over real HTTP, with what stands behind it.

It keeps objects with uids and one count of versions, lists and watches by selectors (bookmarks, 410 after a
compaction), refuses what the real one was seen to refuse, and plays the Job controller, the scheduler and a kubelet
that runs each pod's command as a process of this machine. It is held against recorded sequences of a real cluster
(`test_kubernetes_sequences.py`), which tell what it can be trusted with. It knows nothing of images, device plugins
and networks, and has no rights: every caller may do all.
"""

import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

GPU = "nvidia.com/gpu"
TRACKING = "batch.kubernetes.io/job-tracking"
FOREGROUND = "foregroundDeletion"
INDEX = "batch.kubernetes.io/job-completion-index"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
KINDS = {"pods": ("v1", "Pod"), "nodes": ("v1", "Node"), "jobs": ("batch/v1", "Job")}
TICK_S = 0.02


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


def stamp(ahead_s: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Double:
    """One cluster. `up()` serves it at `url`; `down()` ends its processes."""

    def __init__(self, *, backoff_s: float = 0.6, bookmark_s: float = 1.0) -> None:
        self.backoff_s, self.bookmark_s = backoff_s, bookmark_s
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.log: list[tuple[int, str, str, dict[str, Any], dict[str, Any] | None]] = []
        self.version = 1
        self.floor = 0  # versions below are compacted
        self.dead: set[str] = set()  # nodes whose kubelet answers nobody
        self.requests: list[tuple[str, str]] = []  # verb and path; WATCH is a verb of its own
        self.refused: set[str] = set()  # verbs that nobody may
        self.is_mute = False  # watches say nothing, and do not end
        self._n_cuts = 0
        self.pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}  # what is left of lists, by their tokens
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[str, float] = {}
        self._retry_at: dict[tuple[str, int], float] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="switchyard-k8s-")
        self._is_over = threading.Event()

    # Life

    def up(self) -> "Double":
        double = self

        class Handler(_Handler):
            pass

        Handler.double = double
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def down(self) -> None:
        self._is_over.set()
        with self.lock:
            self.news.notify_all()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(5)
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
            process.wait()
        self._folder.cleanup()

    def add_node(self, name: str, *, gpus: int = 8, labels: dict[str, str] | None = None) -> None:
        size = {GPU: str(gpus), "cpu": "64", "memory": "524288Mi"}
        self.create(
            "nodes",
            "",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
                "spec": {},
                "status": {
                    "capacity": size,
                    "allocatable": dict(size),
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                },
            },
        )

    def compact(self) -> None:
        """Forget all old versions: watches from them are too old now."""
        with self.lock:
            self.floor = self.version
            self.log.clear()

    def cut(self) -> None:
        """Break the connections of all watches."""
        with self.lock:
            self._n_cuts += 1
            self.news.notify_all()

    def lose_node(self, name: str) -> None:
        """Its heartbeats stop; what it runs goes on, and nobody hears of it."""
        with self.lock:
            self.dead.add(name)
            node = self.objects["nodes", "", name]
            node = copy.deepcopy(node)
            node["status"]["conditions"] = [
                {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
            ]
            node["spec"].setdefault("taints", []).append(
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
            )
            self._save("nodes", node)
            for pod in self._all("pods"):
                if pod["spec"].get("nodeName") == name and not _is_over(pod):
                    self._delete_pod(pod, None)

    # The store

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [one for (of, _, _), one in list(self.objects.items()) if of == kind]

    def _key(self, kind: str, one: dict[str, Any]) -> tuple[str, str, str]:
        return kind, one["metadata"].get("namespace", ""), one["metadata"]["name"]

    def _note(self, kind: str, what: str, one: dict[str, Any], before: dict[str, Any] | None) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, what, kind, copy.deepcopy(one), before))
        self.news.notify_all()

    def _save(self, kind: str, one: dict[str, Any]) -> dict[str, Any]:
        """Keep a changed object; what is marked for deletion and has no finalizer left is gone."""
        key = self._key(kind, one)
        before = self.objects.get(key)
        if before is not None and _same(before, one):
            return before
        meta = one["metadata"]
        is_gone = meta.get("deletionTimestamp") and not meta.get("finalizers")
        if is_gone and (kind != "pods" or meta.get("deletionGracePeriodSeconds") == 0):
            if before is not None and not _same_but_end(before, one):
                self._note(kind, "MODIFIED", one, before)
            self.objects.pop(key, None)
            self._note(kind, "DELETED", copy.deepcopy(one), before)
            return one
        self._note(kind, "ADDED" if before is None else "MODIFIED", one, before)
        self.objects[key] = copy.deepcopy(one)
        return one

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        with self.lock:
            found = self.objects.get((kind, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{kind} "{name}" not found')
            return copy.deepcopy(found)

    def create(self, kind: str, namespace: str, one: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            one = copy.deepcopy(one)
            one["apiVersion"], one["kind"] = KINDS[kind]
            meta = one.setdefault("metadata", {})
            if "name" not in meta:
                meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
            if namespace:
                meta["namespace"] = namespace
            if self._key(kind, one) in self.objects:
                raise Refused(409, "AlreadyExists", f'{kind} "{meta["name"]}" already exists')
            meta["uid"], meta["creationTimestamp"] = str(uuid.uuid4()), stamp()
            one.setdefault("spec", {})
            one.setdefault("status", {})
            if kind == "jobs":
                _check_job(one)
                _default_job(one)
            if kind == "pods":
                _check_pod(one)
                one["status"] = {"phase": "Pending"}
                if one["spec"].get("schedulingGates"):
                    _set_condition(one, "PodScheduled", "False", "SchedulingGated")
                one["spec"].setdefault("terminationGracePeriodSeconds", 30)
            return copy.deepcopy(self._save(kind, one))

    def change(
        self, kind: str, namespace: str, name: str, body: Any, *, is_json_patch: bool, part: str = ""
    ) -> dict[str, Any]:
        with self.lock:
            before = self.get(kind, namespace, name)
            after = _json_patched(before, body) if is_json_patch else _merged(before, body)
            asked = after["metadata"].get("resourceVersion")
            if asked != before["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified")
            if part == "status":
                after = {**before, "status": after.get("status", {})}
            elif kind != "nodes":
                after["status"] = before["status"]
            if kind == "jobs":
                _check_job_change(before, after)
            if kind == "pods":
                _check_pod_change(before, after)
            return copy.deepcopy(self._save(kind, after))

    def delete(self, kind: str, namespace: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            one = self.get(kind, namespace, name)
            wanted = (options.get("preconditions") or {}).get("uid")
            if wanted is not None and wanted != one["metadata"]["uid"]:
                raise Refused(409, "Conflict", "the UID in the precondition does not match")
            if kind == "pods":
                return self._delete_pod(one, options.get("gracePeriodSeconds"))
            meta = one["metadata"]
            policy = options.get("propagationPolicy") or "Orphan"
            if kind == "jobs" and policy == "Foreground":
                if not meta.get("deletionTimestamp"):
                    meta["deletionTimestamp"] = stamp()
                    meta["finalizers"] = [*meta.get("finalizers", []), FOREGROUND]
                    self._save(kind, one)
                return one
            meta.setdefault("deletionTimestamp", stamp())
            meta["finalizers"] = []
            self._save(kind, one)
            if kind == "jobs":
                for pod in self._pods_of(one):
                    _drop_finalizer(pod, TRACKING)
                    self._save("pods", pod)
                    if policy == "Background":
                        self._delete_pod(pod, None)
            return one

    def _delete_pod(self, pod: dict[str, Any], grace_s: int | None) -> dict[str, Any]:
        pod = copy.deepcopy(pod)
        meta = pod["metadata"]
        own = pod["spec"].get("terminationGracePeriodSeconds", 30)
        wanted = own if grace_s is None else int(grace_s)
        if not pod["spec"].get("nodeName") or _is_over(pod):
            wanted = 0
        if meta.get("deletionTimestamp") and meta["deletionGracePeriodSeconds"] <= wanted:
            return pod
        meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = stamp(wanted), wanted
        if meta["uid"] in self._kill_at:
            self._kill_at[meta["uid"]] = min(self._kill_at[meta["uid"]], time.monotonic() + wanted)
        self._save("pods", pod)
        return pod

    def bind(self, namespace: str, name: str, node: str) -> None:
        with self.lock:
            pod = self.get("pods", namespace, name)
            if pod["spec"].get("schedulingGates"):
                raise Refused(409, "Conflict", "pod has non-empty .spec.schedulingGates")
            if pod["spec"].get("nodeName"):
                raise Refused(409, "Conflict", "pod is already assigned to node")
            self._bind(pod, node)

    def _bind(self, pod: dict[str, Any], node: str) -> None:
        pod["spec"]["nodeName"] = node
        _set_condition(pod, "PodScheduled", "True", "")
        self._save("pods", pod)

    def evict(self, namespace: str, name: str) -> None:
        with self.lock:
            pod = self.get("pods", namespace, name)
            _set_condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI")
            pod = copy.deepcopy(self._save("pods", pod))
            self._delete_pod(pod, None)

    def path_of_log(self, uid: str) -> Path:
        return Path(self._folder.name) / uid

    # What stands behind it

    def _run(self) -> None:
        while not self._is_over.wait(TICK_S):
            with self.lock:
                self._cordons()
                for job in self._all("jobs"):
                    self._control(copy.deepcopy(job))
                self._schedule()
                self._kubelet()

    def _cordons(self) -> None:
        for node in self._all("nodes"):
            node = copy.deepcopy(node)
            taints = [one for one in node["spec"].get("taints", []) if one["key"] != UNSCHEDULABLE]
            if node["spec"].get("unschedulable"):
                taints.append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
            if taints != node["spec"].get("taints", []):
                node["spec"]["taints"] = taints
                self._save("nodes", node)
            if any(one["key"] == OUT_OF_SERVICE for one in taints):
                for pod in self._all("pods"):
                    meta = pod["metadata"]
                    if pod["spec"].get("nodeName") == node["metadata"]["name"] and meta.get(
                        "deletionTimestamp"
                    ):
                        self._finish(copy.deepcopy(pod), "Failed", None)

    def _schedule(self) -> None:
        for pod in self._all("pods"):
            spec = pod["spec"]
            if spec.get("nodeName") or spec.get("schedulingGates") or _is_over(pod):
                continue
            if pod["metadata"].get("deletionTimestamp"):
                continue
            why = {}
            for node in self._all("nodes"):
                reason = self._refusal(pod, node)
                if not reason:
                    self._bind(copy.deepcopy(pod), node["metadata"]["name"])
                    break
                why[reason] = why.get(reason, 0) + 1
            else:
                said = ", ".join(f"{n} {reason}" for reason, n in sorted(why.items()))
                pod = copy.deepcopy(pod)
                _set_condition(pod, "PodScheduled", "False", "Unschedulable", said)
                self._save("pods", pod)

    def _refusal(self, pod: dict[str, Any], node: dict[str, Any]) -> str:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        for named in _aimed_at(pod):
            if name not in named:
                return "node(s) didn't match Pod's node affinity/selector"
        if node["spec"].get("unschedulable"):
            return "node(s) were unschedulable"
        if name in self.dead:
            return "node(s) had untolerated taint(s)"
        if _gpus(pod) > self.free_gpus(name):
            return f"Insufficient {GPU}"
        return ""

    def free_gpus(self, node: str) -> int:
        size = int(self.objects["nodes", "", node]["status"]["allocatable"].get(GPU, 0))
        held = (
            _gpus(pod)
            for pod in self._all("pods")
            if pod["spec"].get("nodeName") == node and not _is_over(pod)
        )
        return size - sum(held)

    def _kubelet(self) -> None:
        for pod in self._all("pods"):
            node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
            if not node or node in self.dead or ("nodes", "", node) not in self.objects:
                continue
            if _is_over(pod):
                if pod["metadata"].get("deletionTimestamp"):
                    self._finish(copy.deepcopy(pod), pod["status"]["phase"], None)
                continue
            process = self._processes.get(uid)
            is_leaving = pod["metadata"].get("deletionTimestamp")
            pod = copy.deepcopy(pod)
            if process is None and is_leaving:
                self._finish(pod, "Failed", None)
            elif process is None:
                self._begin(pod, node)
            elif (code := process.poll()) is not None:
                status = 128 - code if code < 0 else code
                self._finish(pod, "Succeeded" if status == 0 else "Failed", status)
            elif is_leaving and uid not in self._kill_at:
                self._kill_at[uid] = time.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
                process.terminate()
            elif is_leaving and time.monotonic() >= self._kill_at[uid]:
                _signal(process, signal.SIGKILL)

    def _begin(self, pod: dict[str, Any], node: str) -> None:
        if self.free_gpus(node) < 0:
            pod["status"].update(phase="Failed", reason=f"OutOf{GPU}", message="Node has no room for it.")
            self._save("pods", pod)
            return
        container = pod["spec"]["containers"][0]
        env = {"PATH": os.environ["PATH"]}
        for one in container.get("env", []):
            source = (one.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath", "")
            env[one["name"]] = node if source == "spec.nodeName" else one.get("value", "")
        if INDEX in pod["metadata"].get("labels", {}):
            env["JOB_COMPLETION_INDEX"] = pod["metadata"]["labels"][INDEX]
        with self.path_of_log(pod["metadata"]["uid"]).open("wb") as out:
            self._processes[pod["metadata"]["uid"]] = subprocess.Popen(
                [*container.get("command", []), *container.get("args", [])],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pod["status"].update(
            phase="Running",
            startTime=stamp(),
            containerStatuses=[
                {"name": container["name"], "state": {"running": {"startedAt": stamp()}}, "ready": True}
            ],
        )
        self._save("pods", pod)

    def _finish(self, pod: dict[str, Any], phase: str, code: int | None) -> None:
        if pod["status"]["phase"] != phase or code is not None:
            pod["status"]["phase"] = phase
            if code is not None:
                name = pod["spec"]["containers"][0]["name"]
                began = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
                ended = {"exitCode": code, "startedAt": began, "finishedAt": stamp()}
                pod["status"]["containerStatuses"] = [{"name": name, "state": {"terminated": ended}}]
            pod = copy.deepcopy(self._save("pods", pod))
        if pod["metadata"].get("deletionTimestamp") and pod["metadata"]["deletionGracePeriodSeconds"] != 0:
            pod["metadata"]["deletionGracePeriodSeconds"] = 0
            self._save("pods", pod)

    # The Job controller

    def _pods_of(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        uid = job["metadata"]["uid"]
        found = [
            copy.deepcopy(pod)
            for pod in self._all("pods")
            if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences", []))
        ]
        return sorted(found, key=_index)

    def _control(self, job: dict[str, Any]) -> None:
        spec, status = job["spec"], job["status"]
        pods = self._pods_of(job)
        if job["metadata"].get("deletionTimestamp"):
            for pod in pods:
                self._let_go(pod)
            if not any(not _is_over(pod) for pod in self._pods_of(job)) and not self._pods_of(job):
                _drop_finalizer(job, FOREGROUND)
                self._save("jobs", job)
            return
        if spec.get("managedBy"):
            return
        if _has_condition(job, "Complete") or _has_condition(job, "Failed"):
            return
        if _has_condition(job, "FailureTarget"):
            n_tracked = len([pod for pod in pods if _is_tracked(pod)])
            for pod in pods:
                _drop_finalizer(pod, TRACKING)
                self._save("pods", pod)
            self._count(job, failed=status.get("failed", 0) + n_tracked)
            if not any(not _is_over(pod) for pod in self._pods_of(job)):
                failing = next(one for one in status["conditions"] if one["type"] == "FailureTarget")
                self._count(job)
                _set_condition(job, "Failed", "True", failing["reason"], failing.get("message", ""))
                self._save("jobs", job)
            return
        if spec.get("suspend"):
            for pod in pods:
                if not pod["metadata"].get("deletionTimestamp") and not _is_over(pod):
                    self._let_go(pod)
            _set_condition(job, "Suspended", "True", "JobSuspended")
            status.pop("startTime", None)
            self._count(job)
            return
        if _has_condition(job, "Suspended"):
            _set_condition(job, "Suspended", "False", "JobResumed")
        if "startTime" not in status:
            status["startTime"] = stamp()
            job["metadata"].setdefault("annotations", {})["double/started"] = str(time.monotonic())
        limit_s = spec.get("activeDeadlineSeconds")
        began = float(job["metadata"]["annotations"]["double/started"])
        if limit_s is not None and time.monotonic() - began >= limit_s:
            for pod in pods:
                if not _is_over(pod):
                    self._delete_pod(pod, None)
            _set_condition(job, "FailureTarget", "True", "DeadlineExceeded")
            self._save("jobs", job)
            return
        self._run_job(job, pods)

    def _run_job(self, job: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        spec, status = job["spec"], job["status"]
        done = set(_indexes(status.get("completedIndexes", "")))
        for pod in pods:
            index = _index(pod)
            if not _is_over(pod):
                if index >= spec["completions"] and not pod["metadata"].get("deletionTimestamp"):
                    self._let_go(pod)
                continue
            if not _is_tracked(pod):
                continue
            if pod["status"]["phase"] == "Succeeded":
                done.add(index)
            elif self._is_ignored(job, pod):
                self._retry_at.setdefault((pod["metadata"]["uid"], index), time.monotonic() + self.backoff_s)
                continue  # it stays tracked until another one is there
            else:
                status["failed"] = status.get("failed", 0) + 1
                self._retry_at[pod["metadata"]["uid"], index] = time.monotonic() + self.backoff_s
            _drop_finalizer(pod, TRACKING)
            self._save("pods", pod)
        if done:
            status["completedIndexes"] = ",".join(map(str, sorted(done)))
            status["succeeded"] = len(done)
        if status.get("failed", 0) > spec["backoffLimit"]:
            for pod in self._pods_of(job):
                if not _is_over(pod):
                    self._delete_pod(pod, None)
            _set_condition(job, "FailureTarget", "True", "BackoffLimitExceeded")
            self._save("jobs", job)
            return
        if done >= set(range(spec["completions"])):
            _set_condition(job, "SuccessCriteriaMet", "True", "CompletionsReached")
            self._save("jobs", job)
            if not any(not _is_over(pod) for pod in self._pods_of(job)):
                _set_condition(job, "Complete", "True", "CompletionsReached")
                status["completionTime"] = stamp()
            self._count(job)
            return
        wanted = [index for index in range(spec["completions"]) if index not in done]
        wanted = wanted[: spec["parallelism"]]
        for index in wanted:
            mine = [pod for pod in self._pods_of(job) if _index(pod) == index]
            if any(not _is_over(pod) for pod in mine):
                continue  # by podReplacementPolicy Failed one that is leaving is waited for
            due = max((self._retry_at.get((p["metadata"]["uid"], index), 0.0) for p in mine), default=0.0)
            if time.monotonic() >= due:
                self._make_pod(job, index)
                for pod in mine:
                    _drop_finalizer(pod, TRACKING)
                    self._save("pods", pod)
        self._count(job)

    def _count(self, job: dict[str, Any], *, failed: int | None = None) -> None:
        pods, status = self._pods_of(job), job["status"]
        live = [pod for pod in pods if not _is_over(pod)]
        active = len([pod for pod in live if not pod["metadata"].get("deletionTimestamp")])
        status.pop("active", None)
        if active:
            status["active"] = active
        status["terminating"] = len(live) - active
        if failed:
            status["failed"] = failed
        self._save("jobs", job)

    def _is_ignored(self, job: dict[str, Any], pod: dict[str, Any]) -> bool:
        rules = job["spec"].get("podFailurePolicy", {}).get("rules", [])
        return _has_condition(pod, "DisruptionTarget") and any(
            rule["action"] == "Ignore" and rule.get("onPodConditions") for rule in rules
        )

    def _let_go(self, pod: dict[str, Any]) -> None:
        _drop_finalizer(pod, TRACKING)
        pod = copy.deepcopy(self._save("pods", pod))
        self._delete_pod(pod, None)

    def _make_pod(self, job: dict[str, Any], index: int) -> None:
        template, meta = copy.deepcopy(job["spec"]["template"]), job["metadata"]
        made = template.get("metadata", {})
        labels = {
            "batch.kubernetes.io/job-name": meta["name"],
            "job-name": meta["name"],
            "batch.kubernetes.io/controller-uid": meta["uid"],
            INDEX: str(index),
        }
        self.create(
            "pods",
            meta["namespace"],
            {
                "metadata": {
                    "generateName": f"{meta['name']}-{index}-",
                    "labels": {**made.get("labels", {}), **labels},
                    "annotations": {**made.get("annotations", {}), INDEX: str(index)},
                    "finalizers": [TRACKING, *made.get("finalizers", [])],
                    "ownerReferences": [
                        {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
                    ],
                },
                "spec": template["spec"],
            },
        )


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _bare(one) == _bare(other)


def _same_but_end(one: dict[str, Any], other: dict[str, Any]) -> bool:
    left, right = _bare(one), _bare(other)
    for meta in (left["metadata"], right["metadata"]):
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers"):
            meta.pop(key, None)
    return left == right


def _bare(one: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in one["metadata"].items() if key != "resourceVersion"}
    return {**one, "metadata": meta}


def _is_over(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _is_tracked(pod: dict[str, Any]) -> bool:
    return TRACKING in pod["metadata"].get("finalizers", [])


def _drop_finalizer(one: dict[str, Any], name: str) -> None:
    kept = [other for other in one["metadata"].get("finalizers", []) if other != name]
    one["metadata"]["finalizers"] = kept


def _index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"].get(INDEX, 0))


def _indexes(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def _has_condition(one: dict[str, Any], kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in one["status"].get("conditions", []))


def _set_condition(one: dict[str, Any], kind: str, value: str, reason: str, message: str = "") -> None:
    made = {"type": kind, "status": value, "reason": reason, **({"message": message} if message else {})}
    others = [c for c in one["status"].get("conditions", []) if c["type"] != kind]
    one["status"]["conditions"] = [*others, made]


def _gpus(pod: dict[str, Any]) -> int:
    limits = [one.get("resources", {}).get("limits", {}) for one in pod["spec"].get("containers", [])]
    return sum(int(one.get(GPU, 0)) for one in limits)


def _aimed_at(pod: dict[str, Any]) -> list[list[str]]:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return [
        field["values"]
        for term in terms
        for field in term.get("matchFields", [])
        if field["key"] == "metadata.name"
    ]


# What the API refuses


def _invalid(message: str) -> Refused:
    return Refused(422, "Invalid", message)


def _check_resources(spec: dict[str, Any]) -> None:
    for one in spec.get("containers", []):
        given = one.get("resources", {})
        asked, limit = given.get("requests", {}).get(GPU), given.get("limits", {}).get(GPU)
        if asked is not None and str(asked) != str(limit):
            raise _invalid("must be equal to nvidia.com/gpu limit")
        if limit is not None and not str(limit).isdigit():
            raise _invalid("must be an integer")


def _check_pod(pod: dict[str, Any]) -> None:
    if pod["spec"].get("nodeName") and pod["spec"].get("schedulingGates"):
        raise _invalid("nodeName cannot be set until all schedulingGates have been cleared")
    _check_resources(pod["spec"])


def _check_pod_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = before["spec"], after["spec"]
    was = [one["name"] for one in old.get("schedulingGates") or []]
    if any(one["name"] not in was for one in new.get("schedulingGates") or []):
        raise _invalid("only deletion is allowed of schedulingGates")
    if old.get("nodeName") != new.get("nodeName") or old.get("containers") != new.get("containers"):
        raise _invalid("pod updates may not change fields other than these")
    moved = old.get("affinity") != new.get("affinity") or old.get("nodeSelector") != new.get("nodeSelector")
    if moved and (not was or old.get("affinity")):
        raise _invalid("only additions are allowed")
    selector = new.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in (old.get("nodeSelector") or {}).items()):
        raise _invalid("only additions are allowed")


def _check_job(job: dict[str, Any]) -> None:
    highest = f"{job['metadata']['name']}-{job['spec'].get('completions', 1) - 1}"
    if len(highest) > 63:
        raise _invalid(
            "will not able to create pod with invalid DNS label: must be no more than 63 characters"
        )
    _check_resources(job["spec"]["template"]["spec"])


def _default_job(job: dict[str, Any]) -> None:
    spec = job["spec"]
    spec.setdefault("completions", 1)
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)


def _check_job_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = before["spec"], after["spec"]
    if old["completions"] != new["completions"] and new["completions"] != new["parallelism"]:
        raise _invalid("spec.completions: can only be modified in tandem with spec.parallelism")
    if old["template"] != new["template"] and not old.get("suspend"):
        raise _invalid("spec.template: field is immutable")


def _merged(before: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """A merge patch; conditions merge by their type, as they do strategically."""
    made = copy.deepcopy(before)
    for key, value in body.items():
        if value is None:
            made.pop(key, None)
        elif key == "conditions":
            kinds = {one["type"] for one in value}
            made[key] = [one for one in made.get(key, []) if one["type"] not in kinds] + value
        elif isinstance(value, dict):
            made[key] = _merged(made.get(key) or {}, value)
        else:
            made[key] = value
    return made


def _json_patched(before: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    made = copy.deepcopy(before)
    for step in steps:
        *path, last = (one.replace("~1", "/").replace("~0", "~") for one in step["path"].split("/")[1:])
        at: Any = made
        for one in path:
            at = at[int(one)] if isinstance(at, list) else at.get(one)
            if at is None:
                raise _invalid(f"the path {step['path']} does not exist")
        if step["op"] == "test":
            if at.get(last) != step["value"]:
                raise _invalid(f"testing value {step['path']} failed")
        elif step["op"] == "remove":
            if last not in at:
                raise _invalid(f"unable to remove nonexistent key: {last}")
            del at[last]
        else:
            at[last] = step["value"]
    return made


# Selectors


def _matches(one: dict[str, Any], labels: str, fields: str) -> bool:
    have = one["metadata"].get("labels", {})
    for term in re.split(r",(?![^(]*\))", labels):
        term = term.strip()
        if not term:
            continue
        if (found := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term)) is not None:
            is_in = have.get(found[1]) in [value.strip() for value in found[3].split(",")]
            fits = is_in == (found[2] == "in")
        elif "!=" in term:
            key, value = term.split("!=")
            fits = have.get(key) != value
        elif "=" in term:
            key, value = re.split("==?", term)
            fits = have.get(key) == value
        else:
            fits = (term[1:] not in have) if term.startswith("!") else term in have
        if not fits:
            return False
    for term in filter(None, fields.split(",")):
        key, is_not, value = re.fullmatch(r"([^=!]+)(!?)==?(.*)", term).groups()
        at: Any = one
        for part in key.split("."):
            at = at.get(part, "") if isinstance(at, dict) else ""
        if (at == value) == bool(is_not):
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: Double
    _PATH = re.compile(
        r"/(?:api|apis/batch)/v1(?:/namespaces/([^/]+))?/(pods|nodes|jobs)(?:/([^/]+))?(?:/(\w+))?$"
    )

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self, code: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if length else {}
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        is_watch = self.command == "GET" and asked.get("watch") in ("true", "True", "1")
        verb = "WATCH" if is_watch else self.command
        self.double.requests.append((verb, url.path))
        try:
            if verb in self.double.refused:
                raise Refused(403, "Forbidden", f"cannot {verb.lower()} resource at {url.path}")
            if url.path.startswith("/version"):
                self._answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2-double"})
                return
            found = self._PATH.match(url.path)
            if found is None:
                raise Refused(404, "NotFound", f"the server could not find {url.path}")
            self._serve(found[1] or "", found[2], found[3] or "", found[4] or "", asked, body)
        except Refused as no:
            self._answer(
                no.code,
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "code": no.code,
                    "reason": no.reason,
                    "message": no.message,
                },
            )

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle  # noqa: N815  # as http.server wants them

    def _serve(self, ns: str, kind: str, name: str, part: str, asked: dict[str, str], body: Any) -> None:
        double = self.double
        done = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        match self.command, part:
            case "GET", "log":
                self._log(double.get(kind, ns, name), asked)
            case "GET", _ if name:
                self._answer(200, double.get(kind, ns, name))
            case "GET", _ if asked.get("watch") in ("true", "True", "1"):
                self._watch(ns, kind, asked)
            case "GET", _:
                self._answer(200, self._list(ns, kind, asked))
            case "POST", "binding":
                double.bind(ns, name, body["target"]["name"])
                self._answer(201, done)
            case "POST", "eviction":
                double.evict(ns, name)
                self._answer(201, done)
            case "POST", _:
                self._answer(201, double.create(kind, ns, body))
            case "PATCH", _:
                is_json = self.headers["Content-Type"].startswith("application/json-patch")
                self._answer(200, double.change(kind, ns, name, body, is_json_patch=is_json, part=part))
            case "PUT", _:
                self._answer(200, double.change(kind, ns, name, body, is_json_patch=False, part=part))
            case "DELETE", _ if name:
                given = {key: value for key, value in asked.items() if key.endswith(("Seconds", "Policy"))}
                self._answer(200, double.delete(kind, ns, name, {**given, **body}))
            case _:
                raise Refused(405, "MethodNotAllowed", "not here")

    def _log(self, pod: dict[str, Any], asked: dict[str, str]) -> None:
        path = self.double.path_of_log(pod["metadata"]["uid"])
        if not path.exists():
            raise Refused(400, "BadRequest", "container is waiting to start")
        data = path.read_bytes()
        self._answer(200, data[: int(asked.get("limitBytes", len(data)))])

    def _list(self, ns: str, kind: str, asked: dict[str, str]) -> dict[str, Any]:
        labels, fields = asked.get("labelSelector", ""), asked.get("fieldSelector", "")
        double = self.double
        with double.lock:
            if "continue" in asked:
                at, found = double.pages.pop(asked["continue"], (-1, []))
                if at < double.floor:
                    raise Refused(410, "Expired", "The provided continue parameter is too old")
            else:
                at = double.version
                found = [
                    copy.deepcopy(one)
                    for one in double._all(kind)
                    if (not ns or one["metadata"]["namespace"] == ns) and _matches(one, labels, fields)
                ]
                found.sort(key=lambda one: one["metadata"]["name"])
            meta = {"resourceVersion": str(at)}
            limit = int(asked.get("limit", 0)) or len(found)
            if found[limit:]:
                meta["continue"] = uuid.uuid4().hex
                double.pages[meta["continue"]] = (at, found[limit:])
            version, word = KINDS[kind]
            return {"kind": f"{word}List", "apiVersion": version, "metadata": meta, "items": found[:limit]}

    def _watch(self, ns: str, kind: str, asked: dict[str, str]) -> None:
        double = self.double
        labels, fields = asked.get("labelSelector", ""), asked.get("fieldSelector", "")
        until = time.monotonic() + float(asked.get("timeoutSeconds", 1800))
        mark = time.monotonic() + double.bookmark_s
        has_marks = asked.get("allowWatchBookmarks") in ("true", "True", "1")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        at = int(asked.get("resourceVersion") or double.version)
        n_cuts = double._n_cuts

        def fits(one: dict[str, Any] | None) -> bool:
            return (
                one is not None
                and (not ns or one["metadata"]["namespace"] == ns)
                and _matches(one, labels, fields)
            )

        try:
            while True:
                events = []
                with double.lock:
                    if double._n_cuts != n_cuts:
                        raise ConnectionResetError
                    if double.is_mute and not double._is_over.is_set():
                        double.news.wait(0.05)
                        continue
                    if at < double.floor:
                        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                        self._line({"type": "ERROR", "object": gone})
                        break
                    for version, what, of, one, before in double.log[_after(double.log, at) :]:
                        at = version
                        if of != kind:
                            continue
                        if what == "MODIFIED" and fits(one) != fits(before):
                            what = "ADDED" if fits(one) else "DELETED"
                            events.append({"type": what, "object": one})
                        elif fits(one):
                            events.append({"type": what, "object": one})
                    if not events:
                        double.news.wait(0.05)
                for event in events:
                    self._line(event)
                is_end = time.monotonic() >= until or double._is_over.is_set()
                if has_marks and (is_end or time.monotonic() >= mark) and not events:
                    mark = time.monotonic() + double.bookmark_s
                    meta = {"resourceVersion": str(at)}
                    self._line({"type": "BOOKMARK", "object": {"kind": KINDS[kind][1], "metadata": meta}})
                if is_end:
                    break
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _line(self, event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _after(log: list[Any], version: int) -> int:
    """Where in the log the first entry above this version stands."""
    low, high = 0, len(log)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if log[middle][0] <= version else (low, middle)
    return low

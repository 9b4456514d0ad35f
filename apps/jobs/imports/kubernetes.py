"""Manifests of Kubernetes, and the jobs they mean here.

Pure. Every field is either taken, or named in a note: what is left over when a manifest has been read is found by
looking, not by a list of what may be there. Which kinds are read stands in `_KINDS`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from apps.core.strict import path_of
from apps.jobs.imports import manifests
from apps.jobs.imports.facts import (
    MAX_JOBS,
    MAX_NOTES,
    Imported,
    Note,
    Severity,
    Site,
    Unreadable,
    listed,
    matching_types,
    plain,
)

_DEVICES: Final = {
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
}
_PRODUCT_LABELS: Final = {
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "amd.com/gpu.product-name",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "accelerator",
    "gpu-type",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "cloud.google.com/gke-tpu-accelerator",
}
_HARMLESS_LABELS: Final = {
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "nvidia.com/gpu.present",
    "nvidia.com/gpu",
}
_KUEUE: Final = "kueue.x-k8s.io/"

_SITE_OWN: Final = "The planner decides this by the site's own rules"
_CLUSTER_OWN: Final = "It belongs to the cluster that runs the pods, not to the job"
_RETRIES: Final = "Only failed starts and lost nodes are tried again; a job that fails has failed"
_KEPT: Final = "Ended jobs are kept by the site's own rules"

# Fields that do not change what runs, or that have no counterpart: name -> why.
_WHY: Final = {
    "backoffLimit": _RETRIES,
    "backoffLimitPerIndex": _RETRIES,
    "maxFailedIndexes": _RETRIES,
    "podFailurePolicy": _RETRIES,
    "maxRetry": _RETRIES,
    "failurePolicy": _RETRIES,
    "restartPolicy": _RETRIES,
    "policies": _RETRIES,
    "maxRestarts": _RETRIES,
    "successPolicy": "A gang ends when its replicas have ended",
    "ttlSecondsAfterFinished": _KEPT,
    "cleanPodPolicy": _KEPT,
    "shutdownAfterJobFinishes": _KEPT,
    "schedulerName": _SITE_OWN,
    "priorityClassName": "Set `priority` instead; it goes up to the team's ceiling",
    "priorityClass": "Set `priority` instead; it goes up to the team's ceiling",
    "tolerations": "Which nodes take work is known from their health and reservations",
    "labels": "Labels are not kept",
    "annotations": "Annotations are not kept",
    "namespace": "It is the name of no team that you submit for",
    "imagePullPolicy": _CLUSTER_OWN,
    "imagePullSecrets": _CLUSTER_OWN,
    "serviceAccountName": _CLUSTER_OWN,
    "serviceAccount": _CLUSTER_OWN,
    "automountServiceAccountToken": _CLUSTER_OWN,
    "securityContext": _CLUSTER_OWN,
    "runtimeClassName": _CLUSTER_OWN,
    "dnsPolicy": _CLUSTER_OWN,
    "dnsConfig": _CLUSTER_OWN,
    "hostNetwork": _CLUSTER_OWN,
    "hostIPC": _CLUSTER_OWN,
    "hostPID": _CLUSTER_OWN,
    "enableServiceLinks": _CLUSTER_OWN,
    "subdomain": _CLUSTER_OWN,
    "hostname": _CLUSTER_OWN,
    "ports": "No address is given out; replicas find each other by SWITCHYARD_NODES",
    "network": "No address is given out; replicas find each other by SWITCHYARD_NODES",
    "plugins": "Volcano's plugins are not run; replicas find each other by SWITCHYARD_NODES and SWITCHYARD_RANK",
    "livenessProbe": "A job is not probed",
    "readinessProbe": "A job is not probed",
    "startupProbe": "A job is not probed",
    "lifecycle": "No hook is run; the job gets SIGTERM, and has `grace_s` seconds",
    "volumes": "Nothing is mounted: what the job reads has to lie on the nodes, or be one of its `datasets`",
    "volumeMounts": "Nothing is mounted: what the job reads has to lie on the nodes, or be one of its `datasets`",
    "volumeClaimTemplates": "Nothing is mounted",
    "terminationMessagePath": _CLUSTER_OWN,
    "terminationMessagePolicy": _CLUSTER_OWN,
    "stdin": "A job has no terminal",
    "tty": "A job has no terminal",
    "selector": _CLUSTER_OWN,
    "manualSelector": _CLUSTER_OWN,
    "podReplacementPolicy": _CLUSTER_OWN,
    "managedBy": _CLUSTER_OWN,
    "rayVersion": "The image brings it",
    "startupPolicy": "All groups start together",
    "nprocPerNode": "The command says it; nothing is set for it",
    "slotsPerWorker": "The command says it; nothing is set for it",
    "numProcPerNode": "The command says it; nothing is set for it",
    "runLauncherAsWorker": _CLUSTER_OWN,
    "submissionMode": "The entry point is run by the head itself",
    "rayStartParams": "Taken over as far as the notes say",
    "headService": _CLUSTER_OWN,
    "serviceType": _CLUSTER_OWN,
    "autoscalerOptions": "The planner decides on the size",
    "coordinator": _CLUSTER_OWN,
    "clusterSelector": "A cluster of Ray is started for the job",
    "preemptionPolicy": _SITE_OWN,
    "rdzvBackend": "The command says it; nothing is set for it",
    "sshAuthMountPath": _CLUSTER_OWN,
    "mpiImplementation": _CLUSTER_OWN,
}

# Fields without which it would be another job: name -> why.
_REFUSED: Final = {
    "initContainers": "Nothing is run before the job's own command; do it there",
    "nodeName": "The planner chooses the nodes",
    "envFrom": "Values that lie in the cluster are not read; write them in `env`",
    "initializer": "Nothing is run before the job's own command; name `datasets`, or do it there",
    "podTemplateOverrides": "Templates that lie in the cluster are not read",
    "dependsOn": "All groups of a job start together",
    "resourceClaims": "Claims of dynamic allocation are not read; ask for devices as a resource",
    "priority": "Set `priority` of the job here",
    "submitterPodTemplate": "The entry point is run by the head itself",
    "runtimeEnvYAML": "Put what it installs into the image, and its variables into `env`",
    "schedule": "Jobs are not repeated by the calendar",
    "queueName": "",
}

_NOT_RUN: Final = {
    "CronJob": "Jobs are not repeated by the calendar; import its job template",
    "Deployment": "It never ends, so it is no job",
    "StatefulSet": "It never ends, so it is no job",
    "DaemonSet": "It never ends, so it is no job",
    "ReplicaSet": "It never ends, so it is no job",
    "InferenceService": "It never ends, so it is no job",
    "RayService": "It never ends, so it is no job",
    "RayCluster": "It never ends, so it is no job; import a RayJob",
    "Notebook": "It never ends, so it is no job",
    "Workflow": "Steps are jobs of their own here, tied by `after`",
    "SparkApplication": "Drivers that make their own pods are not run",
}


def looks_like(text: str) -> bool:
    return re.search(r"(?m)^\s*[\"']?(apiVersion|kind)[\"']?\s*:", text) is not None


def read(text: str, site: Site, *, team: str = "") -> Imported:
    """The jobs that manifests mean.

    Args:
        team: Whose jobs they are; else the queue or the namespace, if it is the name of a team.

    Raises:
        Unreadable: if it is not YAML within bounds, or no document of it is a manifest.
    """
    found = Imported("kubernetes")
    for document in manifests.documents(text.removeprefix("\ufeff")):
        for value, before in _unlisted(document.value):
            if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
                raise Unreadable(
                    "is no manifest: it must be an object with apiVersion and kind", line=document.line
                )
            _Reader(site, team, document, found, before).read(value)
            if len(found.jobs) > MAX_JOBS:
                raise Unreadable(f"means more than {MAX_JOBS} jobs", code="too_long")
    del found.notes[MAX_NOTES:]
    return found


def _unlisted(value: Any) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, one in enumerate(value["items"]):
            yield one, ("items", index)
    else:
        yield value, ()


class _No(ValueError):
    """This cannot be meant here; the text says why."""


@dataclass
class _View:
    """An object of the manifest, which remembers what was taken from it."""

    reader: "_Reader"
    value: Mapping[Any, Any]
    steps: tuple[str | int, ...]
    taken: set[Any] = field(default_factory=set)

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """What stands there, if it is of that kind; else a note, and None."""
        self.taken.add(key)
        found = self.value.get(key)
        if found is None:
            return None
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            wanted = {
                dict: "an object",
                list: "a list",
                str: "text",
                int: "a whole number",
                bool: "true or false",
            }
            said = wanted.get(kind, "a number or text") if isinstance(kind, type) else "a number or text"
            self.reader.note("refused", (*self.steps, key), f"must be {said}")
            return None
        return found

    def view(self, key: str) -> "_View":
        return _View(self.reader, self.get(key, dict) or {}, (*self.steps, key))

    def views(self, key: str) -> "list[_View]":
        found = []
        for index, one in enumerate(self.get(key, list) or ()):
            if isinstance(one, dict):
                found.append(_View(self.reader, one, (*self.steps, key, index)))
            else:
                self.reader.note("refused", (*self.steps, key, index), "must be an object")
        return found

    def count(self, key: str, default: int, *, least: int = 0) -> int:
        found = self.get(key, int)
        if found is None:
            return default
        if not least <= found <= 1_000_000:
            self.reader.note("refused", (*self.steps, key), f"must be {least} to 1000000")
            return default
        return int(found)

    def finish(self, *silent: str) -> None:
        """Name all that was not taken."""
        for key in self.value:
            if key in self.taken or key in silent or self.value[key] in (None, {}, []):
                continue
            name = str(key)
            steps = (*self.steps, name)
            if name in _REFUSED:
                self.reader.note("refused", steps, "cannot be meant here", _REFUSED[name])
            else:
                self.reader.note("ignored", steps, "is ignored", _WHY.get(name, "It is not understood"))


@dataclass
class _Pod:
    """What one pod of a group is: needs, command, and what all groups of a job must share."""

    needs: dict[str, Any] = field(default_factory=dict)
    command: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    image: str = ""
    workdir: str = ""
    grace_s: int | None = None
    topology: dict[str, Any] | None = None


@dataclass
class _Part:
    """One group in the making."""

    name: str
    replicas: int | dict[str, int]
    pod: _Pod
    steps: tuple[str | int, ...]


@dataclass
class _Reader:
    site: Site
    team: str
    document: manifests.Document
    found: Imported
    before: tuple[str | int, ...]
    kind: str = ""
    name: str = ""
    job: dict[str, Any] = field(default_factory=dict)

    def note(
        self, severity: Severity, steps: Sequence[str | int], what: str, why: str = "", field: str = ""
    ) -> None:
        steps = tuple(steps)
        option = path_of(steps)
        line, above = None, (*self.before, *steps)
        while line is None and above:
            line, above = self.document.lines.get(path_of(above)), above[:-1]
        self.found.notes.append(
            Note(
                severity,
                f"{self.kind}/{self.name}: {option}" if option else f"{self.kind}/{self.name}",
                _last_of(steps) or self.kind,
                what,
                why,
                line or self.document.line,
                field,
                len(self.found.jobs),
            )
        )

    def took(self, steps: Sequence[str | int], what: str, field: str = "", why: str = "") -> None:
        self.note("understood", steps, what, why, field)

    def read(self, value: dict[str, Any]) -> None:
        top = _View(self, value, ())
        self.kind = str(value["kind"])[:60]
        top.taken |= {"kind", "apiVersion", "status"}
        meta = top.view("metadata")
        name = meta.get("name", str) or (meta.get("generateName", str) or "").rstrip("-")
        self.name = name[:120]
        api = str(value.get("apiVersion", ""))
        reader = _KINDS.get(self.kind)
        if self.kind == "Job" and "volcano" in api:
            reader = _volcano_job
        if reader is None:
            if self.kind in _NOT_RUN:
                self.note("refused", (), "cannot be meant here", _NOT_RUN[self.kind])
            else:
                why = (
                    "It is no job; what it sets up is not known here"
                    if value.get("spec") or value.get("data")
                    else "It is no job"
                )
                self.note("ignored", (), "is ignored", why)
            return
        self.job = {"name": self.name or self.kind.lower()}
        if self.team:
            self.job["team"] = self.team
        if not self.name:
            self.note("ignored", ("metadata",), f"has no name; {self.job['name']} is taken")
        queue_says_held = self._meta(meta)
        reader(self, top.view("spec"), queue_says_held)
        top.finish()
        self.found.jobs.append(self.job)

    # What all kinds share -----------------------------------------------------------------------------------------

    def _meta(self, meta: _View) -> bool:
        """Names, queues and annotations of the whole; whether a queue holds it until its turn."""
        is_queued = False
        for group in ("labels", "annotations"):
            words = meta.view(group)
            for key in list(words.value):
                steps = ("metadata", group, str(key))
                words.taken.add(key)
                value = str(words.value[key])
                if key in (f"{_KUEUE}queue-name", "scheduling.volcano.sh/queue-name"):
                    is_queued = True
                    self.queue(steps, value)
                elif str(key).startswith((_KUEUE, "scheduling.volcano.sh/")):
                    self.scheduling_word(steps, str(key), value, self.job)
                elif (
                    not str(key).startswith(("app.kubernetes.io/", "kubectl.kubernetes.io/")) and key != "app"
                ):
                    self.note("ignored", steps, "is ignored", _WHY[group])
        if namespace := meta.get("namespace", str):
            self.queue(("metadata", "namespace"), namespace)
        meta.finish(
            "creationTimestamp",
            "uid",
            "resourceVersion",
            "generation",
            "managedFields",
            "ownerReferences",
            "finalizers",
        )
        return is_queued

    def queue(self, steps: Sequence[str | int], name: str) -> None:
        """A queue or a namespace, which may be a team's name."""
        if self.team:
            self.note("ignored", steps, "is ignored", f"The team was given: {self.team}")
        elif name in self.site.teams:
            self.job.setdefault("team", name)
            self.took(steps, f"team {name}", "team")
        else:
            why = f"{name[:60]} is no team that you submit for; those are {listed(self.site.teams)}"
            self.note("ignored", steps, "is ignored", why)

    def scheduling_word(self, steps: Sequence[str | int], key: str, value: str, into: dict[str, Any]) -> None:
        """A label or annotation of Kueue or Volcano."""
        word = key.split("/", 1)[1]
        if word in ("podset-required-topology", "podset-preferred-topology"):
            rule = "required" if "required" in word else "preferred"
            kind = _domain_of(value)
            if kind is None:
                why = f"{value[:60]} is no level known here; it must name a block, rack, leaf, spine or NVLink domain"
                self.note("refused" if rule == "required" else "ignored", steps, "cannot be meant here", why)
            else:
                into["topology"] = {rule: kind}
                self.took(steps, f"topology {rule}: {kind}", "topology")
        elif word == "priority-class":
            self.note("ignored", steps, "is ignored", _WHY["priorityClass"])
        elif word == "podset-unconstrained-topology":
            self.took(steps, "anywhere", "topology")
        elif word == "max-exec-time-seconds" and value.isascii() and value.isdigit():
            self.limit(steps, int(value))
        elif word in ("job-min-parallelism",):
            self.note(
                "ignored",
                steps,
                "is ignored",
                "A gang starts whole; an elastic one says `replicas` with min and max",
            )
        else:
            self.note("ignored", steps, "is ignored", "It is not understood")

    def limit(self, steps: Sequence[str | int], seconds: int) -> None:
        if seconds <= 0:
            self.note("refused", steps, "must be more than 0")
            return
        self.job["time_limit"] = seconds
        self.took(steps, f"time limit {seconds} s", "time_limit")

    def deadline(self, view: _View) -> None:
        seconds = view.get("activeDeadlineSeconds", int)
        if seconds is not None:
            self.limit((*view.steps, "activeDeadlineSeconds"), seconds)

    def suspend(self, view: _View, is_queued: bool) -> None:
        if not view.get("suspend", bool):
            return
        if is_queued:
            self.took(
                (*view.steps, "suspend"),
                "waits for its turn",
                "",
                "A queue would release it; here the planner does",
            )
        else:
            self.job["held"] = True
            self.took((*view.steps, "suspend"), "held until it is released", "held")

    # Pods ---------------------------------------------------------------------------------------------------------

    def template(self, view: _View) -> _Pod:
        """A pod template: metadata and spec."""
        template = view.view("template")
        pod = _Pod()
        meta = template.view("metadata")
        for group in ("labels", "annotations"):
            words = meta.view(group)
            for key in words.value:
                if str(key).startswith((_KUEUE, "scheduling.volcano.sh/")):
                    self.scheduling_word((*words.steps, str(key)), str(key), str(words.value[key]), pod.needs)
                elif key == "sidecar.istio.io/inject" or group == "labels":
                    continue  # how pods find each other: nothing is lost here
                else:
                    self.note("ignored", (*words.steps, str(key)), "is ignored", _WHY[group])
        meta.finish("name", "creationTimestamp")
        self.pod(template.view("spec"), pod)
        template.finish()
        return pod

    def pod(self, spec: _View, pod: _Pod, *, command_wanted: bool = True) -> _Pod:
        containers = spec.views("containers")
        if not containers:
            self.note("refused", (*spec.steps, "containers"), "must name a container")
        else:
            self.container(containers[0], pod, command_wanted=command_wanted)
        for other in containers[1:]:
            why = "A replica is one command; what runs beside it has to be started by it"
            self.note(
                "refused", other.steps, f"{str(other.value.get('name', ''))[:60]} cannot be meant here", why
            )
        self.selector(spec, pod)
        self.affinity(spec, pod)
        for spread in spec.views("topologySpreadConstraints"):
            severity: Severity = (
                "ignored" if spread.value.get("whenUnsatisfiable") == "ScheduleAnyway" else "refused"
            )
            self.note(severity, spread.steps, "is not taken over", "To keep replicas apart say `spread`")
        grace_s = spec.get("terminationGracePeriodSeconds", int)
        if grace_s is not None:
            pod.grace_s = min(max(grace_s, 0), 3600)
            self.took((*spec.steps, "terminationGracePeriodSeconds"), f"{pod.grace_s} s of grace", "grace_s")
        for volume in spec.views("volumes"):
            if "emptyDir" not in volume.value:
                kind = listed(str(key) for key in volume.value if key != "name")
                self.note("ignored", volume.steps, f"{kind} is not mounted", _WHY["volumes"])
        if "activeDeadlineSeconds" in spec.value:
            self.deadline(spec)
        spec.finish()
        return pod

    def container(self, view: _View, pod: _Pod, *, command_wanted: bool = True) -> None:
        pod.image = view.get("image", str) or ""
        pod.workdir = view.get("workingDir", str) or ""
        if pod.image:
            self.took(
                (*view.steps, "image"), f"image {pod.image[:80]}", "image", "Where it runs by Kubernetes"
            )
        self.environment(view, pod)
        command = self.words(view, "command")
        args = self.words(view, "args")
        if command:
            pod.command = [self.expanded(view, word, pod) for word in [*command, *args]]
            self.took((*view.steps, "command"), "the command", "command")
        elif command_wanted:
            why = "What an image starts by itself is not known here; write the command out"
            self.note("refused", (*view.steps, "command"), "is not given", why)
        self.resources(view.view("resources"), pod)
        view.taken.add("name")
        for mount in view.views("volumeMounts"):
            path = str(mount.value.get("mountPath", ""))
            if path not in ("/dev/shm", "/tmp"):  # noqa: S108  (names in a manifest)
                self.note("ignored", mount.steps, f"{path[:80]} is not mounted", _WHY["volumeMounts"])
        view.finish()

    def words(self, view: _View, key: str) -> list[str]:
        found = view.get(key, list) or []
        if not all(isinstance(word, str | int | float) and not isinstance(word, bool) for word in found):
            self.note("refused", (*view.steps, key), "must be a list of texts")
            return []
        if any(not isinstance(word, str) for word in found):
            self.note("refused", (*view.steps, key), "holds a number; put it in quotation marks")
        return [str(word) for word in found]

    def expanded(self, view: _View, word: str, pod: _Pod) -> str:
        """$(NAME) in a command as the kubelet fills it in, where the value stands in the manifest."""

        def value(match: re.Match[str]) -> str:
            name = match[2]
            if match[1]:
                return match[0][1:]
            if name in pod.env:
                return pod.env[name]
            if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                why = "Its value is not in the manifest, so it stays as it stands"
                self.note("ignored", (*view.steps, "command"), f"{match[0]} is not filled in", why)
            return match[0]

        return re.sub(r"(\$)?\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value, word)

    def environment(self, view: _View, pod: _Pod) -> None:
        for entry in view.views("env"):
            name = entry.get("name", str) or ""
            value = entry.value.get("value")
            source = entry.value.get("valueFrom")
            if isinstance(value, str) or (value is None and source is None):
                pod.env[name] = self.expanded(view, value or "", pod)
            elif source is None:
                self.note(
                    "refused", entry.steps, f"{name[:60]}: the value must be text; put it in quotation marks"
                )
            elif isinstance(source, dict) and ("fieldRef" in source or "resourceFieldRef" in source):
                why = "Facts of a pod are not filled in; see SWITCHYARD_NODE, SWITCHYARD_RANK and SWITCHYARD_JOB_ID"
                self.note("ignored", entry.steps, f"{name[:60]} is not set", why)
            else:
                why = "Values that lie in the cluster are not read; write it in `env`, which only your team sees"
                self.note("refused", entry.steps, f"{name[:60]} has no value", why)
        if pod.env:
            self.took((*view.steps, "env"), f"environment {listed(pod.env)}", "env")

    def resources(self, view: _View, pod: _Pod) -> None:
        limits, requests = view.view("limits"), view.view("requests")
        names = list(dict.fromkeys([*requests.value, *limits.value]))
        for name in names:
            source = requests if name in requests.value else limits
            steps = (*source.steps, str(name))
            amount = _quantity(source.value[name])
            if amount is None or not 0 <= amount < 1e18:
                self.note("refused", steps, f"{str(source.value[name])[:30]!r} is no amount")
            elif name == "cpu":
                pod.needs["cpus"] = plain(round(amount, 3))
                self.took(steps, f"{pod.needs['cpus']:g} cpus per replica", "cpus")
            elif name == "memory":
                pod.needs["memory_gib"] = plain(round(amount / 1024**3, 6))
                self.took(steps, f"{pod.needs['memory_gib']:g} GiB per replica", "memory_gib")
            elif name in _DEVICES:
                if "devices" in pod.needs and amount:
                    self.note(
                        "refused", steps, "is a second kind of device", "One job never mixes device types"
                    )
                    continue
                pod.needs["devices"] = plain(amount)
                why = "The maker is not kept; to have only some types, name them in `accelerators`"
                self.took(steps, f"{amount:g} devices per replica", "devices", why)
            elif "mig-" in str(name) or "gpu.shared" in str(name):
                why = "Slices are not named; ask for a fraction in `devices`"
                self.note("refused", steps, "cannot be meant here", why)
            else:
                self.note("ignored", steps, "is ignored", "Only devices, cpus and memory are planned")
        view.finish("claims")
        if view.value.get("claims"):
            self.note("refused", (*view.steps, "claims"), "cannot be meant here", _REFUSED["resourceClaims"])

    def types(self, steps: Sequence[str | int], names: Sequence[str], pod: _Pod) -> None:
        found = list(
            dict.fromkeys(one for name in names for one in matching_types(name, self.site.accelerators))
        )
        if not found:
            why = f"No accelerator type here is called so; there are {listed(self.site.accelerators)}"
            self.note("refused", steps, f"{listed(names)[:80]} cannot be meant", why)
            return
        before = pod.needs.get("accelerators")
        pod.needs["accelerators"] = [name for name in found if before is None or name in before] or found
        self.took(steps, f"device type {listed(pod.needs['accelerators'])}", "accelerators")

    def selector(self, spec: _View, pod: _Pod) -> None:
        words = spec.view("nodeSelector")
        for key, value in words.value.items():
            self.label((*words.steps, str(key)), str(key), [str(value)], pod)

    def label(self, steps: Sequence[str | int], key: str, values: Sequence[str], pod: _Pod) -> None:
        """A label that a node must have."""
        if key in _PRODUCT_LABELS:
            self.types(steps, values, pod)
        elif (
            key == "nvidia.com/gpu.memory"
            and len(values) == 1
            and values[0].isascii()
            and values[0].isdigit()
        ):
            pod.needs["min_memory_gib"] = plain(float(int(values[0]) // 1024))
            self.took(steps, f"devices of {pod.needs['min_memory_gib']:g} GiB", "min_memory_gib")
        elif key in _HARMLESS_LABELS:
            self.note(
                "ignored",
                steps,
                "is ignored",
                "It is so on every node, or follows from the devices asked for",
            )
        else:
            self.note("refused", steps, "cannot be meant here", "Labels of nodes are not kept")

    def affinity(self, spec: _View, pod: _Pod) -> None:
        affinity = spec.view("affinity")
        for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
            rules = affinity.view(kind)
            rules.taken.add("preferredDuringSchedulingIgnoredDuringExecution")
            if rules.value.get("preferredDuringSchedulingIgnoredDuringExecution"):
                steps = (*rules.steps, "preferredDuringSchedulingIgnoredDuringExecution")
                self.note("ignored", steps, "is ignored", "It is a wish; what a job must have is taken over")
            required = "requiredDuringSchedulingIgnoredDuringExecution"
            if kind != "nodeAffinity":
                if rules.get(required, list):
                    why = "To have replicas close together say `topology`, to keep them apart `spread`"
                    self.note("refused", (*rules.steps, required), "cannot be meant here", why)
                continue
            terms = rules.view(required).views("nodeSelectorTerms")
            if len(terms) > 1:
                self.note(
                    "refused", terms[1].steps, "cannot be meant here", "One of several terms cannot be chosen"
                )
                continue
            for term in terms:
                for one in term.views("matchExpressions"):
                    values = (
                        [str(value) for value in one.value.get("values") or ()]
                        if isinstance(one.value.get("values"), list)
                        else []
                    )
                    if one.value.get("operator") == "In" and values:
                        self.label(one.steps, str(one.value.get("key")), values, pod)
                    elif (
                        one.value.get("operator") == "Exists"
                        and str(one.value.get("key")) in _HARMLESS_LABELS
                    ):
                        self.note("ignored", one.steps, "is ignored", "It follows from the devices asked for")
                    else:
                        self.note(
                            "refused", one.steps, "cannot be meant here", "Labels of nodes are not kept"
                        )
                term.finish()
        affinity.finish()

    # Groups -------------------------------------------------------------------------------------------------------

    def settle(self, parts: Sequence[_Part]) -> None:
        """Make the job of its groups: one flat where they are all alike."""
        if not parts:
            return
        env: dict[str, str] = {}
        for part in parts:
            for name, value in part.pod.env.items():
                if env.setdefault(name, value) != value:
                    why = "All groups of a job share one environment; set it in the command"
                    self.note("refused", part.steps, f"{name[:60]} differs from group to group", why)
        if env:
            self.job["env"] = env
        for name, word in (("image", "image"), ("workdir", "working folder")):
            values = list(dict.fromkeys(getattr(part.pod, name) for part in parts if getattr(part.pod, name)))
            if len(values) > 1:
                self.note(
                    "refused", parts[-1].steps, f"the {word} differs from group to group", "A job has one"
                )
            if values:
                self.job[name] = values[0]
        graces = [part.pod.grace_s for part in parts if part.pod.grace_s is not None]
        if graces:
            self.job["grace_s"] = max(graces)
        topology = self.job.pop("topology", None)
        for part in parts:
            part.pod.needs.setdefault("devices", 0)
            if topology:
                part.pod.needs.setdefault("topology", topology)
        first = parts[0]
        is_alike = all(
            part.pod.needs == first.pod.needs
            and part.pod.command == first.pod.command
            and isinstance(part.replicas, int)
            for part in parts
        )
        if len(parts) == 1 or is_alike:
            n = sum(part.replicas for part in parts if isinstance(part.replicas, int))
            self.job["replicas"] = first.replicas if len(parts) == 1 else n
            self.job.update(first.pod.needs)
            if first.pod.command is not None:
                self.job["command"] = first.pod.command
            if len(parts) > 1:
                said = listed(part.name for part in parts)
                self.took(
                    first.steps, f"{n} replicas", "replicas", f"{said} are alike, so they are one group"
                )
            return
        groups = []
        for part in parts:
            group = {"name": part.name, "replicas": part.replicas, **part.pod.needs}
            if part.pod.command is not None:
                group["command"] = part.pod.command
            groups.append(group)
        self.job["groups"] = groups
        self.took(
            first.steps,
            f"{len(groups)} groups: {listed(part.name for part in parts)}",
            "groups",
            "They start together",
        )

    def peers(self, steps: Sequence[str | int], names: str) -> None:
        why = f"The operator sets {names}; here there are SWITCHYARD_NODES, SWITCHYARD_RANK and SWITCHYARD_N_REPLICAS"
        self.note("ignored", steps, "how replicas find each other is not set up", why)


# Kinds -----------------------------------------------------------------------------------------------------------


def _job_size(reader: _Reader, spec: _View) -> tuple[int, dict[str, int] | None]:
    """Replicas of a batch/v1 Job, or one and an array."""
    parallelism = spec.count("parallelism", 1)
    completions = spec.count("completions", parallelism, least=1)
    mode = spec.get("completionMode", str)
    steps = (*spec.steps, "completions" if "completions" in spec.value else "parallelism")
    if parallelism == 0:
        reader.job["held"] = True
        reader.took((*spec.steps, "parallelism"), "held until it is released", "held")
        parallelism = 1
    if completions > parallelism:
        if mode != "Indexed" and completions > 1:
            why = "Each of the array's jobs runs once, and has its SWITCHYARD_ARRAY_INDEX from 0"
        else:
            why = "Told apart by SWITCHYARD_ARRAY_INDEX"
        reader.took(steps, f"{completions} jobs, at most {parallelism} at once", "array", why)
        return 1, {"size": completions, "max_running": parallelism}
    if "parallelism" in spec.value or "completions" in spec.value:
        n = min(parallelism, completions)
        why = (
            "They start together, or not at all; SWITCHYARD_RANK stands for JOB_COMPLETION_INDEX"
            if n > 1
            else ""
        )
        reader.took(steps, f"{n} replica{'s' * (n != 1)}", "replicas", why)
    return min(parallelism, completions), None


def _batch_job(reader: _Reader, spec: _View, is_queued: bool) -> None:
    reader.deadline(spec)
    reader.suspend(spec, is_queued)
    replicas, array = _job_size(reader, spec)
    if array is not None:
        reader.job["array"] = array
    pod = reader.template(spec)
    if spec.value.get("completionMode") == "Indexed":
        _set_index(reader, spec, pod, "SWITCHYARD_ARRAY_INDEX" if array is not None else "SWITCHYARD_RANK")
    spec.finish()
    reader.settle([_Part("main", replicas, pod, ("spec", "template"))])


def _set_index(reader: _Reader, spec: _View, pod: _Pod, source: str) -> None:
    """Give an indexed job the variable by which its pods are told apart."""
    steps, command = (*spec.steps, "completionMode"), pod.command or []
    if (
        len(command) > 2
        and re.fullmatch(r"(/\S*/)?(ba|da)?sh", command[0])
        and re.fullmatch(r"-\w*c", command[1])
    ):
        said = f'export JOB_COMPLETION_INDEX="${{JOB_COMPLETION_INDEX:-${source}}}"; {command[2]}'
        pod.command = [*command[:2], said, *command[3:]]
        reader.took(
            steps, "JOB_COMPLETION_INDEX is set", "command", f"From {source}, at the head of the command"
        )
    else:
        reader.note("ignored", steps, "JOB_COMPLETION_INDEX is not set", f"{source} says it")


def _plain_pod(reader: _Reader, spec: _View, is_queued: bool) -> None:
    pod = reader.pod(spec, _Pod())
    reader.settle([_Part("main", 1, pod, ("spec",))])


def _job_set(reader: _Reader, spec: _View, is_queued: bool) -> None:
    reader.suspend(spec, is_queued)
    parts: list[_Part] = []
    for one in spec.views("replicatedJobs"):
        name = one.get("name", str) or f"group-{len(parts)}"
        n = one.count("replicas", 1, least=1)
        template = one.view("template")
        meta = template.view("metadata")
        inner = template.view("spec")
        reader.deadline(inner)
        size, array = _job_size(reader, inner)
        if array is not None:
            why = "Groups start together, so all completions must run at once"
            reader.note("refused", (*inner.steps, "completions"), "cannot be meant here", why)
        pod = reader.template(inner)
        for key, value in meta.view("annotations").value.items():
            if str(key).startswith(_KUEUE):
                reader.scheduling_word(
                    (*meta.steps, "annotations", str(key)), str(key), str(value), pod.needs
                )
            elif str(key).startswith("alpha.jobset.sigs.k8s.io/exclusive-topology"):
                kind = _domain_of(str(value))
                steps = (*meta.steps, "annotations", str(key))
                if kind is None or n > 1:
                    why = (
                        "A domain is not kept for one job alone"
                        if kind
                        else f"{str(value)[:60]} is no level known here"
                    )
                    reader.note("refused", steps, "cannot be meant here", why)
                else:
                    pod.needs["topology"] = {"required": kind}
                    reader.took(
                        steps, f"topology required: {kind}", "topology", "It is not kept for this job alone"
                    )
        inner.finish()
        one.finish()
        parts.append(_Part(name, n * size, pod, one.steps))
        if n > 1:
            reader.took((*one.steps, "replicas"), f"{n * size} replicas", "replicas")
    if not parts:
        reader.note("refused", ("spec", "replicatedJobs"), "must name a job")
    if len(parts) > 1:
        reader.peers(("spec",), "host names of pods")
    spec.finish()
    reader.settle(parts)


_REPLICA_SPECS: Final = (
    "pytorchReplicaSpecs", "tfReplicaSpecs", "mpiReplicaSpecs", "xgbReplicaSpecs", "paddleReplicaSpecs",
    "jaxReplicaSpecs",
)  # fmt: skip
_FIRST: Final = ("Chief", "Master", "Launcher", "PS", "Worker", "Evaluator")


def _training_job(reader: _Reader, spec: _View, is_queued: bool) -> None:
    """The training operator's first kinds: PyTorchJob, TFJob, MPIJob and the like."""
    policy = spec.view("runPolicy")
    reader.deadline(policy)
    reader.suspend(policy, is_queued)
    scheduling = policy.view("schedulingPolicy")
    if queue := scheduling.get("queue", str):
        reader.queue((*scheduling.steps, "queue"), queue)
    least = scheduling.get("minAvailable", int)
    policy.taken.add("schedulingPolicy")
    elastic = spec.view("elasticPolicy")
    parts: list[_Part] = []
    for key in _REPLICA_SPECS:
        if key not in spec.value:
            continue
        roles = spec.view(key)
        order = sorted(
            roles.value, key=lambda role: (_FIRST.index(role) if role in _FIRST else 99, str(role))
        )
        for role in order:
            one = roles.view(str(role))
            n = one.count("replicas", 1)
            pod = reader.template(one)
            one.finish()
            replicas: int | dict[str, int] = n
            if role == "Worker" and elastic.value:
                low, high = elastic.count("minReplicas", n, least=1), elastic.count("maxReplicas", n, least=1)
                replicas = {"min": low, "max": max(high, low), "preferred": min(max(n, low), max(high, low))}
                reader.took(elastic.steps, f"{low} to {high} replicas", "replicas")
            if n:
                parts.append(_Part(str(role).lower(), replicas, pod, (*roles.steps, str(role))))
    n_all = sum(part.replicas for part in parts if isinstance(part.replicas, int))
    if least is not None and least != n_all:
        why = "A gang starts whole; an elastic one says `replicas` with min and max"
        reader.note("ignored", (*scheduling.steps, "minAvailable"), "is ignored", why)
    scheduling.finish()
    policy.finish()
    if elastic.value:
        elastic.finish("minReplicas", "maxReplicas")
    if not parts:
        reader.note("refused", ("spec",), "names no replicas")
    if n_all > 1 or any(not isinstance(part.replicas, int) for part in parts):
        reader.peers(("spec",), "MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, or the like")
    spec.finish()
    reader.settle(parts)


def _train_job(reader: _Reader, spec: _View, is_queued: bool) -> None:
    reader.suspend(spec, is_queued)
    runtime = spec.view("runtimeRef")
    if runtime.value:
        why = "Templates that lie in the cluster are not read; only what stands in the manifest counts"
        reader.note(
            "ignored", ("spec", "runtimeRef"), f"{str(runtime.value.get('name', ''))[:60]} is not read", why
        )
    trainer = spec.view("trainer")
    n = trainer.count("numNodes", 1, least=1)
    if "numNodes" in trainer.value:
        reader.took((*trainer.steps, "numNodes"), f"{n} replica{'s' * (n != 1)}", "replicas")
    resources = trainer.view("resourcesPerNode")
    pod = _Pod()
    # A trainer says of itself what elsewhere a container does.
    reader.container(trainer, pod)
    reader.resources(resources, pod)
    labels = spec.view("labels")
    for key, value in labels.value.items():
        if key == f"{_KUEUE}queue-name":
            reader.queue(("spec", "labels", str(key)), str(value))
    spec.finish("managedBy")
    if n > 1:
        reader.peers(("spec", "trainer"), "MASTER_ADDR and the variables of torchrun")
    reader.settle([_Part("trainer", n, pod, trainer.steps)])


def _ray_job(reader: _Reader, spec: _View, is_queued: bool) -> None:
    reader.suspend(spec, is_queued)
    reader.deadline(spec)
    entry = spec.get("entrypoint", str) or ""
    cluster = spec.view("rayClusterSpec")
    if not cluster.value:
        why = "A cluster of Ray is started for the job, so the manifest must describe it"
        reader.note("refused", ("spec", "rayClusterSpec"), "is not given", why)
    if not entry:
        reader.note("refused", ("spec", "entrypoint"), "is not given")
    is_scaled = bool(cluster.get("enableInTreeAutoscaling", bool))
    head = cluster.view("headGroupSpec")
    head_pod = _template_of_ray(reader, head)
    head_pod.command = ["sh", "-c", f"ray start --head --port=6379 && {entry}\ncode=$?; ray stop; exit $code"]
    reader.took(("spec", "entrypoint"), "the command of the head, once Ray runs", "groups[0].command")
    parts = [_Part("head", 1, head_pod, head.steps)]
    for one in cluster.views("workerGroupSpecs"):
        name = one.get("groupName", str) or f"workers-{len(parts)}"
        n = one.count("replicas", 1)
        low, high = one.count("minReplicas", n), one.count("maxReplicas", n)
        pod = _template_of_ray(reader, one)
        pod.command = ["sh", "-c", 'ray start --address="${SWITCHYARD_NODES%%,*}:6379" --block; exit 0']
        replicas: int | dict[str, int] = n
        if is_scaled and low < high:
            low = max(low, 1)
            replicas = {"min": low, "max": high, "preferred": min(max(n, low), high)}
            reader.took((*one.steps, "replicas"), f"{low} to {high} replicas", "replicas")
        elif n:
            reader.took((*one.steps, "replicas"), f"{n} replica{'s' * (n != 1)}", "replicas")
        one.finish("minReplicas", "maxReplicas")
        if n or is_scaled:
            parts.append(_Part(name, replicas, pod, one.steps))
    head.finish()
    cluster.finish()
    spec.finish()
    if len(parts) > 1:
        why = "KubeRay starts Ray in each pod; here each group starts it itself, and workers join the first node"
        reader.note("understood", cluster.steps, "Ray is started by the groups' commands", why, "groups")
    reader.settle(parts)


def _volcano_job(reader: _Reader, spec: _View, is_queued: bool) -> None:
    if queue := spec.get("queue", str):
        reader.queue(("spec", "queue"), queue)
    parts: list[_Part] = []
    for one in spec.views("tasks"):
        name = one.get("name", str) or f"task-{len(parts)}"
        n = one.count("replicas", 1)
        one.get("minAvailable", int)
        pod = reader.template(one)
        one.finish("minAvailable")
        if n:
            reader.took((*one.steps, "replicas"), f"{n} replica{'s' * (n != 1)}", "replicas")
            parts.append(_Part(name, n, pod, one.steps))
    if not parts:
        reader.note("refused", ("spec", "tasks"), "must name a task")
    n_all = sum(part.replicas for part in parts if isinstance(part.replicas, int))
    least = spec.get("minAvailable", int)
    if least is not None and least < n_all and len(parts) == 1 and least > 0:
        parts[0].replicas = {"min": least, "max": n_all}
        reader.took(
            ("spec", "minAvailable"),
            f"{least} to {n_all} replicas",
            "replicas",
            "An elastic job grows and shrinks",
        )
    elif least is not None and 0 < least < n_all:
        why = "Which of several groups may be smaller is not said; all start together"
        reader.note("ignored", ("spec", "minAvailable"), "is ignored", why)
    elif least is not None:
        reader.took(("spec", "minAvailable"), "all start together, or none", "replicas")
    topology = spec.view("networkTopology")
    if topology.value:
        tier = topology.count("highestTierAllowed", 1, least=1)
        rule = "preferred" if topology.get("mode", str) == "soft" else "required"
        kind = {1: "leaf", 2: "spine"}.get(tier)
        if kind:
            reader.job["topology"] = {rule: kind}
            why = "Tier 1 is taken for a leaf, tier 2 for a spine group"
            reader.took(topology.steps, f"topology {rule}: {kind}", "topology", why)
        else:
            reader.took(topology.steps, "anywhere", "topology", "A tier above 2 is the whole network")
        topology.finish()
    if n_all > 1:
        reader.peers(("spec",), "host names and files by its plugins")
    spec.finish("plugins")
    reader.settle(parts)


def _template_of_ray(reader: _Reader, group: _View) -> _Pod:
    """A pod of Ray, whose command is Ray's own."""
    template = group.view("template")
    pod = reader.pod(template.view("spec"), _Pod(), command_wanted=False)
    template.taken.add("metadata")
    params = group.view("rayStartParams")
    for key in params.value:
        if key not in ("dashboard-host", "num-gpus", "num-cpus", "block", "port"):
            reader.note(
                "ignored", (*params.steps, str(key)), "is ignored", "Ray is started with its defaults"
            )
    return pod


_KINDS: Final[dict[str, Callable[[_Reader, _View, bool], None]]] = {
    "Job": _batch_job,
    "Pod": _plain_pod,
    "JobSet": _job_set,
    "PyTorchJob": _training_job,
    "TFJob": _training_job,
    "MPIJob": _training_job,
    "XGBoostJob": _training_job,
    "PaddleJob": _training_job,
    "JAXJob": _training_job,
    "TrainJob": _train_job,
    "RayJob": _ray_job,
    "VolcanoJob": _volcano_job,
}


# Words and numbers -----------------------------------------------------------------------------------------------


def _last_of(steps: Sequence[str | int]) -> str:
    """The last field of a path, with its place in a list: `volumes[0]`."""
    n = next((n for n in range(1, len(steps) + 1) if isinstance(steps[-n], str)), 0)
    return path_of(steps[-n:]) if n else ""


def _domain_of(level: str) -> str | None:
    """The kind of domain that a topology level's label stands for, by the words in it."""
    words = set(re.findall(r"[a-z0-9]+", level.lower().split("/", 1)[-1]))
    if (
        words & {"nvlink", "nvl", "clique", "nvl72", "superchip", "scaleup", "subblock"}
        or {"scale", "up"} <= words
    ):
        return "scale_up"
    if words & {"rack", "leaf", "tor", "switch", "subblock", "sub"}:
        return "leaf"
    if words & {"block", "spine", "superpod", "pod", "datacenter", "fabric", "cluster"}:
        return "spine"
    return None


_SUFFIXES: Final = {
    "": 1.0,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 1024.0,
    "Mi": 1024.0**2,
    "Gi": 1024.0**3,
    "Ti": 1024.0**4,
    "Pi": 1024.0**5,
    "Ei": 1024.0**6,
}


def _quantity(value: Any) -> float | None:
    """An amount as Kubernetes writes it: 2, 0.5, 500m, 64Gi, 1e3."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = re.fullmatch(
        r"\+?(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE]([+-]?\d{1,2})|([a-zA-Z]{0,2}))", str(value), re.ASCII
    )
    if match is None or (match[3] or "") not in _SUFFIXES:
        return None
    return float(match[1]) * 10.0 ** int(match[2] or 0) * _SUFFIXES[match[3] or ""]

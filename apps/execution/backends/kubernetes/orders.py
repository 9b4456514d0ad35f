"""From an order to an Indexed Job, and back from what the cluster has. Pure.

One allocation is one Job: created suspended, its ranks gated. A rank is aimed at its node by one patch that also takes
its gate away. The labels of a Job say whose it is, an annotation where its ranks belong.
"""

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from apps.core.errors import OutsideError
from apps.execution.backends.base import Order, Replica
from apps.execution.backends.local import env_of, interpreter_of

DOMAIN: Final = "switchyard.example"
MARK, ALLOCATION, JOB, FENCE = (f"{DOMAIN}/{word}" for word in ("site", "allocation", "job", "attempt"))
PLACEMENT: Final = f"{DOMAIN}/placement"
GATE: Final = f"{DOMAIN}/placed"
# Keeps a pod that is over in sight until its end and its log were read.
KEPT: Final = f"{DOMAIN}/read"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
# The cluster's own limit is for when nobody of us is there: ours is kept to the second by the backend.
_SPARE_S: Final = 120
# A process without a handler ignores SIGTERM when it is the first of its container: this one hands it on, and
# keeps what the shell says of that out of the log.
_MINDER: Final = """
"$@" & child=$!
exec >/dev/null 2>&1
trap 'kill -TERM $child 2>/dev/null' TERM
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
exit $code
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank belongs."""

    node: str
    devices: tuple[int, ...]


def name_of(mark: str, allocation_id: int, fence: int) -> str:
    return f"sy-{mark}-{allocation_id}-{fence}"


def job_body(order: Order, *, mark: str, image: str, resource: str) -> dict[str, Any]:
    """The Job, suspended and gated. Raises OutsideError for what one Job cannot be."""
    sizes = {(len(one.device_indices), one.cpus, one.memory_gib) for one in order.replicas}
    if len(sizes) > 1:
        raise OutsideError("Replicas of different sizes are not supported on Kubernetes.", permanent=True)
    n_devices, cpus, memory_gib = sizes.pop()
    limits: dict[str, str] = {resource: str(n_devices)} if n_devices and resource else {}
    asked = dict(limits)
    if cpus:
        asked["cpu"] = f"{math.floor(cpus * 1000)}m"
    if memory_gib:
        asked["memory"] = f"{math.floor(memory_gib * 1024)}Mi"
    labels = {
        MARK: mark,
        ALLOCATION: str(order.allocation_id),
        JOB: str(order.job_id),
        FENCE: str(order.fence),
    }
    placed = [[one.node, list(one.device_indices)] for one in sorted(order.replicas, key=_rank)]
    notes = {PLACEMENT: json.dumps(placed)}
    container = {
        "name": "main",
        "image": image,
        "command": ["/bin/sh", "-c", script_of(order)],
        "env": _env(order),
        "resources": {"limits": limits, "requests": asked},
    }
    if order.workdir:
        container["workingDir"] = order.workdir
    soon = [
        {"key": f"node.kubernetes.io/{word}", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": 30}
        for word in ("not-ready", "unreachable")
    ]  # fmt: skip
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": len(order.replicas),
        "parallelism": len(order.replicas),
        "backoffLimit": 0,
        "suspend": True,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
            ]
        },
        "template": {
            "metadata": {"labels": labels, "annotations": notes, "finalizers": [KEPT]},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": max(1, math.ceil(order.grace_s)),
                "automountServiceAccountToken": False,
                "schedulingGates": [{"name": GATE}],
                "tolerations": soon,
                "containers": [container],
            },
        },
    }
    limit_s = deadline_s(order.time_limit_s, order.grace_s)
    if limit_s is not None:
        spec["activeDeadlineSeconds"] = limit_s
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name_of(mark, order.allocation_id, order.fence),
            "labels": labels,
            "annotations": notes,
        },
        "spec": spec,
    }


def deadline_s(limit_s: float | None, grace_s: float) -> int | None:
    return None if limit_s is None else math.ceil(limit_s + grace_s) + _SPARE_S


def aim(node: str) -> list[dict[str, Any]]:
    """The patch that sends a gated rank to its node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return [
        {"op": "add", "path": "/spec/affinity", "value": affinity},
        {"op": "replace", "path": "/spec/schedulingGates", "value": []},
    ]


def script_of(order: Order) -> str:
    """What each container runs: it finds out which rank it is, and hands signals on."""
    lines = ["export SWITCHYARD_RANK=$JOB_COMPLETION_INDEX"]
    if order.script is not None:
        # As an argument and not a file of ours: nothing is shared between the site and the nodes.
        lines += ["script=$(mktemp)", f"printf %s {shlex.quote(order.script)} > $script"]
    sorts: dict[tuple[tuple[str, ...], str, tuple[int, ...]], list[int]] = defaultdict(list)
    for one in order.replicas:
        sorts[_words(order, one), one.group, one.device_indices].append(one.rank)
    lines.append('case "$JOB_COMPLETION_INDEX" in')
    for (words, group, devices), ranks in sorts.items():
        indices = ",".join(str(index) for index in devices)
        lines += [
            f"{'|'.join(map(str, ranks))})",
            f"export SWITCHYARD_GROUP={shlex.quote(group)} SWITCHYARD_DEVICE_INDICES={indices}",
            f"set -- {shlex.join(words)}" + ("" if _has_command(order, ranks[0]) else ' "$script"'),
            ";;",
        ]
    return "\n".join([*lines, "esac", _MINDER])


def _words(order: Order, one: Replica) -> tuple[str, ...]:
    if one.command is not None:
        return one.command
    if order.script is None:
        raise OutsideError("There is neither a command nor a script to run.", permanent=True)
    return tuple(interpreter_of(order.script))


def _has_command(order: Order, rank: int) -> bool:
    return next(one for one in order.replicas if one.rank == rank).command is not None


def _env(order: Order) -> list[dict[str, Any]]:
    # Which devices a container sees is the device plugin's to say, and so is what differs by rank left out.
    by_rank = {
        "CUDA_VISIBLE_DEVICES", "SWITCHYARD_DEVICE_INDICES", "SWITCHYARD_RANK", "SWITCHYARD_GROUP",
        "SWITCHYARD_NODE",
    }  # fmt: skip
    known = {**order.env, **env_of(order, order.replicas[0])}
    plain = [{"name": key, "value": value} for key, value in known.items() if key not in by_rank]
    node = {"name": "SWITCHYARD_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [*plain, node]


def _rank(one: Replica) -> int:
    return one.rank


# Back from what the cluster has ------------------------------------------------------------------------------------


def whose(item: Mapping[str, Any]) -> tuple[int, int, int]:
    """Allocation, job and attempt of a Job or a pod of ours."""
    labels = item["metadata"]["labels"]
    return int(labels[ALLOCATION]), int(labels[JOB]), int(labels[FENCE])


def placement_of(job: Mapping[str, Any]) -> list[Place]:
    """By rank."""
    listed = json.loads(job["metadata"]["annotations"][PLACEMENT])
    return [Place(node, tuple(devices)) for node, devices in listed]


def rank_of(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def is_gated(pod: Mapping[str, Any]) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def is_leaving(item: Mapping[str, Any]) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def asked_to_leave_at(pod: Mapping[str, Any]) -> datetime:
    """When its deletion was asked for: Kubernetes writes down when its grace is over."""
    meta = pod["metadata"]
    grace = timedelta(seconds=int(meta.get("deletionGracePeriodSeconds") or 0))
    return datetime.fromisoformat(meta["deletionTimestamp"]) - grace


def is_over(pod: Mapping[str, Any]) -> bool:
    """It holds nothing any more: it has ended, or was taken back before it had a node."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return True
    return is_leaving(pod) and not pod["spec"].get("nodeName")


def has_condition(item: Mapping[str, Any], *kinds: str) -> bool:
    found = item.get("status", {}).get("conditions") or []
    return any(one["type"] in kinds and one["status"] == "True" for one in found)


def exit_code_of(pod: Mapping[str, Any]) -> int | None:
    """None: nothing of it ran, or nobody knows."""
    for one in pod["status"].get("containerStatuses") or []:
        ended = one.get("state", {}).get("terminated")
        if ended is not None:
            return int(ended["exitCode"])
    return None


def started_at(pod: Mapping[str, Any]) -> datetime | None:
    for one in pod["status"].get("containerStatuses") or []:
        state = one.get("state", {})
        said = (state.get("running") or state.get("terminated") or {}).get("startedAt")
        if said:
            return datetime.fromisoformat(said)
    return None


def gpus_of(pod: Mapping[str, Any], resource: str) -> int:
    """How many devices it holds. Containers that only begin it hold theirs one after another, unless they stay."""
    stay = most = 0
    for one in pod["spec"].get("initContainers") or []:
        n_held = _limit_of(one, resource)
        if one.get("restartPolicy") == "Always":
            stay += n_held
        else:
            most = max(most, stay + n_held)
    return max(most, stay + sum(_limit_of(one, resource) for one in pod["spec"].get("containers") or []))


def _limit_of(container: Mapping[str, Any], resource: str) -> int:
    return int((container.get("resources", {}).get("limits") or {}).get(resource, 0))


def label_of(node: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The first of these labels that a node has."""
    labels = node["metadata"].get("labels") or {}
    return next((labels[key] for key in keys if labels.get(key)), "")


def gib_of(quantity: str) -> float:
    """Memory as Kubernetes writes it."""
    for suffix, factor in (
        ("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12),
    ):  # fmt: skip
        if quantity.endswith(suffix):
            return float(quantity.removesuffix(suffix)) * factor / 2**30
    return float(quantity) / 2**30


def cpus_of(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)

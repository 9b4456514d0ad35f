"""From an order to what Slurm is given: the body of a submission, and the two scripts that carry it out. Pure.

One allocation is one job of Slurm, pinned to its nodes. Where nodes give different devices or different numbers of
replicas it is a heterogeneous job, with a component for each sort of node. Its batch script starts one step with a
process for each replica; which replica a process is follows from its node and its number there.
"""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.execution.backends.base import Order, Replica
from apps.execution.backends.local import env_of, interpreter_of
from apps.execution.backends.slurm.wire import Gpus

PREFIX: Final = "sy"
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
# How the batch script ends when it starts nothing.
BEGAN_BEFORE: Final = 86
NO_FOLDER: Final = 87
NO_STEP: Final = "no-step"  # written down beside the exit code where no replica began
# Slurm looks at limits twice a minute and counts in minutes; ours are kept by the backend, to the second.
_SPARE_MINUTES: Final = 2


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What of a node matters to a submission."""

    gpus: Gpus
    cpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Name:
    """What a job is called in Slurm; it tells whose it is even when every other record is lost."""

    mark: str
    allocation_id: int
    job_id: int
    fence: int

    def __str__(self) -> str:
        return f"{PREFIX}-{self.mark}-{self.allocation_id}-{self.job_id}-{self.fence}"


def name_of(text: str, mark: str) -> Name | None:
    """The name read back; None: it is no job of ours."""
    found = re.fullmatch(rf"{PREFIX}-{re.escape(mark)}-(\d+)-(\d+)-(\d+)", text)
    return None if found is None else Name(mark, int(found[1]), int(found[2]), int(found[3]))


@dataclass(frozen=True, slots=True)
class _Part:
    """Nodes of one sort: the same devices, so many replicas each."""

    nodes: tuple[str, ...]
    devices: tuple[int, ...]
    n_replicas: int
    cpus: int  # each replica's
    memory_mib: int  # each node's; 0: whatever Slurm gives


def body_of(
    order: Order, name: Name, rooms: Mapping[str, NodeRoom], *, folder: str, partition: str
) -> dict[str, Any]:
    """The submission, held: it runs only when it is let go by its number.

    Args:
        rooms: By node.
        folder: Of the run; seen by every node.
    """
    parts = _parts(order, rooms)
    jobs = [
        _job(order, name, part, rooms[part.nodes[0]].gpus, folder=folder, partition=partition)
        for part in parts
    ]
    script = batch_script(parts, folder)
    if len(jobs) == 1:
        return {"script": script, "job": jobs[0]}
    return {"script": script, "jobs": jobs}


def _parts(order: Order, rooms: Mapping[str, NodeRoom]) -> list[_Part]:
    of_node = by_node(order)
    sorts: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for node, replicas in of_node.items():
        devices = tuple(sorted({index for one in replicas for index in one.device_indices}))
        room = rooms[node]
        share = len(devices) / len(room.gpus.types) if room.gpus.types else 1.0
        cpus = sum(one.cpus for one in replicas) or room.cpus * share
        memory_mib = sum(one.memory_gib for one in replicas) * 1024 or room.memory_mib * share
        each = max(1, math.floor(cpus / len(replicas) + 1e-9))
        sorts[devices, len(replicas), each, math.floor(memory_mib), room.gpus].append(node)
    return [
        _Part(tuple(nodes), devices, n_replicas, cpus, memory_mib)
        for (devices, n_replicas, cpus, memory_mib, _), nodes in sorts.items()
    ]


def by_node(order: Order) -> dict[str, list[Replica]]:
    """Replicas by node, nodes in the order of their first rank."""
    found: dict[str, list[Replica]] = defaultdict(list)
    for replica in order.replicas:
        found[replica.node].append(replica)
    return found


def _job(order: Order, name: Name, part: _Part, gpus: Gpus, *, folder: str, partition: str) -> dict[str, Any]:
    job: dict[str, Any] = {
        "name": str(name),
        "comment": f"Switchyard job {order.job_id}, attempt {order.fence}",
        "hold": True,
        "no_requeue": True,  # whoever decides where it goes next is not Slurm
        "nodelist": ",".join(part.nodes),
        "nodes": len(part.nodes),
        "tasks": len(part.nodes) * part.n_replicas,
        "tasks_per_node": part.n_replicas,
        "cpus_per_task": part.cpus,
        "current_working_directory": order.workdir or f"{folder}/work",
        "standard_output": f"{folder}/slurm.out",
        "standard_error": f"{folder}/slurm.out",
        "open_mode": "append",
        "environment": {"PATH": PATH, **order.env},
    }
    if partition:
        job["partition"] = partition
    if part.memory_mib:
        job["memory_per_node"] = part.memory_mib
    if asked := gpus.ask(part.devices):
        job["gres"] = asked
    if order.time_limit_s is not None:
        job["time_limit"] = minutes(order.time_limit_s, order.grace_s)
    return job


def minutes(time_limit_s: float, grace_s: float) -> int:
    """Slurm's own limit, which only counts where nobody keeps ours."""
    return math.ceil((time_limit_s + grace_s) / 60) + _SPARE_MINUTES


def batch_script(parts: Sequence[_Part], folder: str) -> str:
    """Runs on the first node: starts the replicas, and ends as the first of them ended that failed."""
    asks = [
        " ".join(
            [
                *([f"--het-group={number}"] if len(parts) > 1 else []),
                f"--nodes={len(part.nodes)}",
                f"--ntasks={len(part.nodes) * part.n_replicas}",
                f"--ntasks-per-node={part.n_replicas}",
                f"--cpus-per-task={part.cpus}",
                "--cpu-bind=none",
                '/bin/bash "$run/replica"',
            ]
        )
        for number, part in enumerate(parts)
    ]
    return f"""#!/bin/bash
# Written by Switchyard.
run={shlex.quote(folder)}
export SWITCHYARD_RUN="$run"
if ! [ -d "$run" ]; then
    echo "This node does not see the folder $run." >&2
    exit {NO_FOLDER}
fi
# A Slurm that was killed may begin a job again that it began just before: then this is not the first time.
if ! mkdir "$run/began" 2>/dev/null; then
    if read -r code _ 2>/dev/null <"$run/end"; then exit "$code"; fi
    exit {BEGAN_BEFORE}
fi
# --overlap: what a script starts by srun itself finds its devices free.
srun --kill-on-bad-exit=1 --overlap {" : ".join(asks)}
code=$?
if read -r rank said 2>/dev/null <"$run/first_failed"; then
    echo "Replica $rank ended with exit code $said." >&2
    code=$said
fi
# A step that Slurm did not start is Slurm's failure, not the job's: each replica begins with a file of its own.
begun=begun
if [ "$code" -ne 0 ] && ! [ -e "$run/first_failed" ] && ! compgen -G "$run/stdout.*" >/dev/null; then
    begun={NO_STEP}
fi
echo "$code $(date +%s) $begun" >"$run/end.new" && mv "$run/end.new" "$run/end"
exit "$code"
"""


def replica_script(order: Order, folder: str) -> str:
    """Runs once for each replica: finds out which it is, and becomes its command."""
    cases = []
    for node, replicas in by_node(order).items():
        devices = sorted({index for one in replicas for index in one.device_indices})
        for number, replica in enumerate(replicas):
            words = (
                [*interpreter_of(order.script or ""), f"{folder}/script"]
                if replica.command is None
                else list(replica.command)
            )
            # What Slurm shows is in the order of the devices, under whatever numbers the node has for them.
            seats = " ".join(str(devices.index(index)) for index in replica.device_indices)
            env = {
                key: value for key, value in env_of(order, replica).items() if key != "CUDA_VISIBLE_DEVICES"
            }
            exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in sorted(env.items()))
            cases.append(
                f"{shlex.quote(f'{node}/{number}')})\n"
                f"    rank={replica.rank} seats=({seats})\n"
                f"    export {exports}\n"
                f"    set -- {shlex.join(words)} ;;"
            )
    listed = "\n".join(cases)
    return f"""#!/bin/bash
# Written by Switchyard.
run={shlex.quote(folder)}
case "${{SLURMD_NODENAME:-}}/${{SLURM_LOCALID:-}}" in
{listed}
*)
    echo "No replica belongs at ${{SLURMD_NODENAME:-}}/${{SLURM_LOCALID:-}}." >&2
    exit 70 ;;
esac
if [ -n "${{HOME:-}}" ]; then :; else HOME=$(getent passwd "$(id -u)" | cut -d: -f6); export HOME; fi
IFS=, read -r -a given <<<"${{CUDA_VISIBLE_DEVICES:-}}"
mine=()
for seat in "${{seats[@]}}"; do
    [ -z "${{given[$seat]:-}}" ] || mine+=("${{given[$seat]}}")
done
CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${{mine[*]}}")
export CUDA_VISIBLE_DEVICES
exec >"$run/stdout.$rank" 2>"$run/stderr.$rank" </dev/null
# The signal that asks it to end reaches every process of the step; this one only waits for the command.
trap : TERM INT USR1 USR2
( trap - TERM INT USR1 USR2; exec "$@" ) &
command=$!
while :; do
    wait "$command"
    code=$?
    kill -0 "$command" 2>/dev/null || break
done
if [ "$code" -ne 0 ]; then
    ( set -C; echo "$rank $code" >"$run/first_failed" ) 2>/dev/null
fi
exit "$code"
"""

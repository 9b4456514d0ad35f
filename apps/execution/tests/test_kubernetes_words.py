"""From an order to a Job, and back from what Kubernetes writes."""

import subprocess
from typing import Any

import pytest

from apps.core.errors import OutsideError
from apps.execution.backends.base import Order, Replica
from apps.execution.backends.kubernetes import orders


def order_of(*replicas: Replica, script: str | None = None) -> Order:
    return Order(allocation_id=7, job_id=3, fence=2, replicas=replicas, script=script)


def run(order: Order, rank: int) -> str:
    env = {"JOB_COMPLETION_INDEX": str(rank), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        ["/bin/sh", "-c", orders.script_of(order)], env=env, capture_output=True, text=True, check=True
    ).stdout


def test_each_rank_runs_its_own_command_with_its_words_whole() -> None:
    order = order_of(
        Replica(rank=0, node="a", command=("printf", "[%s]", "it's", "$HOME; two  words")),
        Replica(rank=1, node="b", group="eval", command=("/bin/sh", "-c", 'echo "$SWITCHYARD_GROUP"')),
    )

    assert run(order, 0) == "[it's][$HOME; two  words]"
    assert run(order, 1) == "eval\n"


def test_a_script_arrives_as_it_was_written() -> None:
    script = "#!/bin/sh\ncat <<'END'\nquotes ' \" and \\n $x\nEND\necho $SWITCHYARD_RANK\n"

    assert run(order_of(Replica(rank=0, node="a"), script=script), 0) == "quotes ' \" and \\n $x\n0\n"


def test_a_job_is_born_suspended_and_gated_and_says_whose_it_is() -> None:
    order = order_of(
        Replica(rank=1, node="b", device_indices=(2, 3), command=("true",)),
        Replica(rank=0, node="a", device_indices=(0, 1), command=("true",)),
    )

    job = orders.job_body(order, mark="abcdef01", image="busybox", resource="nvidia.com/gpu")

    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["suspend"], pod["schedulingGates"]) == (True, [{"name": orders.GATE}])
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert orders.whose(job) == (7, 3, 2)
    assert orders.placement_of(job) == [orders.Place("a", (0, 1)), orders.Place("b", (2, 3))]


def test_replicas_of_different_sizes_are_refused_for_good() -> None:
    order = order_of(
        Replica(rank=0, node="a", device_indices=(0,), command=("true",)),
        Replica(rank=1, node="b", device_indices=(0, 1), command=("true",)),
    )

    with pytest.raises(OutsideError) as caught:
        orders.job_body(order, mark="abcdef01", image="busybox", resource="nvidia.com/gpu")

    assert caught.value.permanent


@pytest.mark.parametrize(
    ("said", "gib"), [("512Gi", 512), ("1048576Ki", 1), ("1073741824", 1), ("2Ti", 2048), ("1000M", 0.931)]
)
def test_memory_is_read_in_every_unit(said: str, gib: float) -> None:
    assert orders.gib_of(said) == pytest.approx(gib, rel=1e-3)


def test_a_share_of_a_core_is_read() -> None:
    assert (orders.cpus_of("64"), orders.cpus_of("1500m")) == (64, 1.5)


def test_containers_that_only_begin_a_pod_hold_their_devices_one_after_another() -> None:
    def one(n_gpus: int, **more: str) -> dict[str, Any]:
        return {"resources": {"limits": {"nvidia.com/gpu": str(n_gpus)}}, **more}

    def held(containers: list[Any], begins: list[Any]) -> int:
        pod = {"spec": {"containers": containers, "initContainers": begins}}
        return orders.gpus_of(pod, "nvidia.com/gpu")

    assert held([one(2), one(1)], []) == 3
    assert held([one(2)], [one(4), one(1)]) == 4
    assert held([one(2)], [one(1, restartPolicy="Always"), one(1)]) == 3
    assert held([{"resources": {}}], [{}]) == 0

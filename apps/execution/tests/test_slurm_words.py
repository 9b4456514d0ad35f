"""What Slurm writes, and what is written for it: no Slurm is needed."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.core.errors import OutsideError
from apps.execution.backends.base import EndReason, Order, Replica
from apps.execution.backends.slurm import orders, states
from apps.execution.backends.slurm.orders import Name, NodeRoom, body_of, name_of
from apps.execution.backends.slurm.states import Record, Told, end_of
from apps.execution.backends.slurm.wire import Address, SlurmError, Wire, gpu_indices, gpus_of, node_names

QUIET = Told(has_begun=True, is_signalled=False, is_cancelled=False, is_overtime=False)
EXACT = ",".join(f"gpu:g{index}:1" for index in range(4))


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],m2", ["n1", "n2", "n3", "n7", "m2"]),
        ("r1n[08-11]", ["r1n08", "r1n09", "r1n10", "r1n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu-a[01,03]-x", ["gpu-a01-x", "gpu-a03-x"]),
        ("", []),
    ],
)
def test_node_lists_are_written_out(written: str, names: list[str]) -> None:
    assert node_names(written) == names


def test_gpus_of_a_type_each_can_be_asked_for_one_by_one() -> None:
    assert gpus_of(EXACT).ask([3, 1]) == "gpu:g1:1,gpu:g3:1"
    assert gpus_of("gpu:h100:8(S:0-1),fs:1").ask([3, 1]) == "gpu:h100:2"
    assert gpus_of("gpu:8").ask([0]) == "gpu:1"
    assert gpus_of("gpu:a100:2,gpu:t4:2").ask([0, 2]) == "gpu:2"
    assert gpus_of("").types == ()


def test_held_gpus_are_read_from_every_way_that_slurm_writes_them() -> None:
    eight = gpus_of("gpu:h100:8")
    assert gpu_indices("gpu:h100:3(IDX:0-1,5)", eight) == [0, 1, 5]
    assert gpu_indices("gpu:g3:1(IDX:3),gpu:g0:1(IDX:0)", gpus_of(EXACT)) == [0, 3]
    assert gpu_indices("gpu:h100:0(IDX:N/A)", eight) == []


def test_a_name_is_read_back_and_a_strangers_is_not() -> None:
    name = Name("a1b2c3d4", 12, 3, 2)

    assert name_of(str(name), "a1b2c3d4") == name
    assert name_of(str(name), "ffffffff") is None
    assert name_of("sy-a1b2c3d4-12-3-2-extra", "a1b2c3d4") is None


def replica(rank: int, node: str, *devices: int, **more: Any) -> Replica:
    return Replica(rank=rank, node=node, device_indices=devices, command=("true",), **more)


def body(*replicas: Replica, **more: Any) -> dict[str, Any]:
    order = Order(allocation_id=1, job_id=1, fence=1, replicas=replicas, **more)
    room = NodeRoom(gpus_of(EXACT), 64, 400_000)
    rooms = {one.node: room for one in replicas}
    return body_of(order, Name("a1b2c3d4", 1, 1, 1), rooms, folder="/shared/1", partition="")


def test_a_gang_with_the_same_devices_on_each_node_is_one_plain_job_held_and_pinned() -> None:
    job = body(replica(0, "n1", 0, 1), replica(1, "n2", 0, 1), time_limit_s=90.0)["job"]

    assert (job["hold"], job["no_requeue"]) == (True, True)
    assert (job["nodelist"], job["nodes"], job["tasks"]) == ("n1,n2", 2, 2)
    assert job["gres"] == "gpu:g0:1,gpu:g1:1"
    assert job["time_limit"] >= 2


def test_who_says_nothing_of_cores_gets_the_share_of_the_node_that_its_devices_are() -> None:
    silent = body(replica(0, "n1", 0))["job"]
    asking = body(replica(0, "n1", 0, cpus=4.0, memory_gib=10.0))["job"]

    assert (silent["cpus_per_task"], silent["memory_per_node"]) == (16, 100_000)
    assert (asking["cpus_per_task"], asking["memory_per_node"]) == (4, 10 * 1024)


def test_nodes_that_give_different_devices_are_components_of_one_job() -> None:
    made = body(replica(0, "n1", 0), replica(1, "n2", 2), replica(2, "n3", 2))

    assert [(one["nodelist"], one["gres"]) for one in made["jobs"]] == [
        ("n1", "gpu:g0:1"),
        ("n2,n3", "gpu:g2:1"),
    ]
    assert "--het-group=1 --nodes=2" in made["script"]


def job(state: str, **more: Any) -> dict[str, Any]:
    return {"job_state": state, "start_time": 100, "end_time": 200, "nodes": "n1", "exit_code": 0, **more}


@pytest.mark.parametrize(
    ("details", "told", "reason", "code"),
    [
        ([job("COMPLETED")], QUIET, EndReason.EXITED, 0),
        ([job("FAILED", exit_code=3 << 8)], QUIET, EndReason.EXITED, 3),
        ([job("FAILED", exit_code=9)], QUIET, EndReason.EXITED, 137),
        ([job("NODE_FAIL")], QUIET, EndReason.LOST, None),
        ([job("TIMEOUT")], QUIET, EndReason.TIME_LIMIT, 143),
        ([job("CANCELLED")], QUIET, EndReason.EXITED, 143),
        ([job("COMPLETED")], Told(True, True, False, False), EndReason.STOPPED, 0),
        ([job("FAILED", exit_code=143 << 8)], Told(True, True, False, True), EndReason.TIME_LIMIT, 143),
        ([job("CANCELLED", nodes="")], Told(False, False, True, False), EndReason.NEVER_STARTED, None),
        ([job("FAILED", exit_code=orders.BEGAN_BEFORE << 8)], QUIET, EndReason.LOST, None),
        ([job("CANCELLED"), job("NODE_FAIL")], QUIET, EndReason.LOST, None),
        ([], QUIET, EndReason.LOST, None),
        ([], Told(False, False, False, False), EndReason.START_FAILED, None),
    ],
)
def test_ends_are_told_apart(
    details: list[dict[str, Any]], told: Told, reason: EndReason, code: int | None
) -> None:
    end = end_of(details, told)

    assert (end.reason, end.exit_code) == (reason, code)


def test_the_word_of_the_script_counts_where_slurm_has_none_or_a_wrong_one() -> None:
    record = Record(0, datetime(2026, 1, 1, tzinfo=UTC))

    for details in ([], [job("CANCELLED", nodes="")]):
        end = end_of(details, QUIET, record)
        assert (end.reason, end.exit_code) == (EndReason.EXITED, 0)
    assert end_of([job("NODE_FAIL")], QUIET, record).reason == EndReason.LOST
    assert states.is_live("COMPLETING")


@pytest.mark.parametrize(
    ("details", "told", "reason"),
    [
        ([job("FAILED", exit_code=1 << 8)], QUIET, EndReason.LOST),
        ([job("FAILED", exit_code=1 << 8)], Told(False, False, False, False), EndReason.START_FAILED),
        ([job("CANCELLED")], Told(False, False, False, False), EndReason.START_FAILED),
        ([], QUIET, EndReason.LOST),
        ([], Told(False, False, False, False), EndReason.START_FAILED),
        ([job("FAILED", exit_code=143 << 8)], Told(True, True, False, False), EndReason.STOPPED),
        ([], Told(True, True, False, False), EndReason.STOPPED),
    ],
)
def test_a_job_none_of_whose_replicas_began_has_not_failed(
    details: list[dict[str, Any]], told: Told, reason: EndReason
) -> None:
    record = Record(1, datetime(2026, 1, 1, tzinfo=UTC), has_begun=False)

    assert end_of(details, told, record).reason == reason


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ({}, 1, "1 no-step"),
        ({}, 0, "0 begun"),
        ({"stdout.0": ""}, 1, "1 begun"),
        ({"stdout.0": "", "first_failed": "0 5"}, 1, "5 begun"),
    ],
)
def test_the_script_tells_a_step_that_did_not_begin_from_a_replica_that_failed(
    tmp_path: Path, files: dict[str, str], code: int, said: str
) -> None:
    made = body(replica(0, "n1", 0))
    folder, programs = tmp_path / "run", tmp_path / "bin"
    for place in (folder, programs):
        place.mkdir()
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    (programs / "srun").write_text(f"#!/bin/bash\nexit {code}\n")
    (programs / "srun").chmod(0o755)
    script = made["script"].replace("/shared/1", str(folder))

    subprocess.run(["/bin/bash", "-c", script], env={"PATH": f"{programs}:{os.environ['PATH']}"}, check=False)

    written = (folder / "end").read_text().split()
    assert f"{written[0]} {written[2]}" == said


def wire(answer: Any, status: int = 200) -> Wire:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, json=answer))
    address = Address(rest_url="http://slurm", user_name="me", key=b"k" * 32)
    return Wire(address, transport=transport)


def test_a_refusal_is_told_from_no_answer_and_the_hopeless_from_what_may_be_tried_again() -> None:
    def refused(**error: Any) -> OutsideError:
        with pytest.raises(OutsideError) as caught:
            wire({"errors": [error]}, 500).submit({"job": {}})
        return caught.value

    hopeless = refused(error_code=2014, error="Requested node configuration is not available")
    busy = refused(error_number=2103, error="DB index is being set")
    away = refused(errno=5005, error="Zero Bytes were transmitted or received")

    assert isinstance(hopeless, SlurmError)
    assert hopeless.permanent
    assert isinstance(busy, SlurmError)
    assert not busy.permanent
    assert not isinstance(away, SlurmError)


def test_a_job_that_is_taken_and_held_is_no_refusal() -> None:
    answer = {"job_id": 7, "errors": [{"error_number": 2042, "error": "Job is in held state"}]}

    assert wire(answer, 500).submit({"job": {}}) == [7]
    assert wire(answer, 500).submit({"jobs": [{}, {}]}) == [7, 8]


def test_a_job_that_slurm_does_not_know_is_none_and_no_error() -> None:
    assert wire({"errors": [{"error_code": 2017, "error": "Invalid job id"}]}, 500).job(3) is None

"""What every backend promises, asked of each of them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.execution.backends.base import (
    Backend,
    EndReason,
    Order,
    ProbedNode,
    Probing,
    RunState,
    StaleFence,
)
from apps.execution.backends.choice import backend_of
from apps.execution.backends.fake import FakeBackend
from apps.execution.backends.kubernetes.backend import KubernetesBackend
from apps.execution.backends.local import LocalBackend
from apps.execution.backends.simulated import SimulatedBackend
from apps.execution.tests.builders import look, now, shell, stop, wait_for
from apps.execution.tests.kubernetes import connected as behind_kubernetes
from apps.execution.tests.slurm import connected
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster


@pytest.fixture(
    params=[
        "fake",
        "local",
        pytest.param("simulated", marks=pytest.mark.django_db),
        pytest.param("slurm", marks=pytest.mark.django_db),
        pytest.param("kubernetes", marks=pytest.mark.django_db),
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    if request.param == "fake":
        yield FakeBackend()
    elif request.param == "local":
        if not sys.platform.startswith("linux"):
            pytest.skip("the local backend needs Linux")
        local = LocalBackend(tmp_path / "spool")
        yield local
        for run in local.list_seen(at=now()):
            local.stop(
                [stop(allocation_id=run.allocation_id, job_id=run.job_id, fence=run.fence, grace_s=0)],
                at=now(),
            )
            wait_for(local, RunState.ENDED, run.allocation_id)
    elif request.param == "slurm":
        yield backend_of(connected(request.getfixturevalue("slurm"), name="behind Slurm"))
    elif request.param == "kubernetes":
        yield backend_of(behind_kubernetes(request.getfixturevalue("kubernetes").url))
    else:
        cluster = Cluster.objects.create(name="hall", backend=Kind.SIMULATED)
        yield SimulatedBackend(cluster.pk)


def endless(**more: Any) -> Order:
    return shell("sleep 600", play_s=600.0, **more)


def test_a_launched_run_is_seen_running(backend: Backend) -> None:
    assert backend.launch([endless()], at=now()) == {}

    found = wait_for(backend, RunState.RUNNING)

    assert (found.job_id, found.fence, found.exit_code, found.reason) == (1, 1, None, None)
    assert found.started_at is not None


def test_a_second_launch_of_one_allocation_does_nothing(backend: Backend) -> None:
    backend.launch([endless()], at=now())
    before = wait_for(backend, RunState.RUNNING)

    assert backend.launch([endless()], at=now()) == {}

    assert backend.list_seen(at=now()) == [before]


def test_a_launch_after_the_end_does_nothing(backend: Backend) -> None:
    backend.launch([endless()], at=now())
    backend.stop([stop(grace_s=0)], at=now())
    wait_for(backend, RunState.ENDED)
    backend.forget([1])

    assert backend.launch([endless()], at=now()) == {}

    assert backend.list_seen(at=now()) == []


def test_an_older_fence_is_refused(backend: Backend) -> None:
    backend.launch([endless(allocation_id=2, fence=2)], at=now())

    refused = backend.launch(
        [endless(allocation_id=1, fence=1), endless(allocation_id=3, job_id=3)], at=now()
    )

    assert {id_: type(error) for id_, error in refused.items()} == {1: StaleFence}
    assert refused[1].permanent
    assert look(backend, 1) is None
    assert look(backend, 3) is not None


def test_an_older_fence_is_refused_when_the_newer_is_long_forgotten(backend: Backend) -> None:
    backend.stop([stop(allocation_id=2, fence=2)], at=now())
    backend.forget([2])

    assert list(backend.launch([endless(allocation_id=1, fence=1)], at=now())) == [1]


def test_a_stopped_run_ends_as_stopped(backend: Backend) -> None:
    backend.launch([endless()], at=now())
    wait_for(backend, RunState.RUNNING)

    for _ in range(2):
        backend.stop([stop(grace_s=5)], at=now())

    found = wait_for(backend, RunState.ENDED)
    assert (found.reason, found.exit_code) == (EndReason.STOPPED, 143)
    assert found.ended_at is not None


def test_a_stop_with_another_fence_is_ignored(backend: Backend) -> None:
    backend.launch([endless(fence=2)], at=now())
    wait_for(backend, RunState.RUNNING)

    backend.stop([stop(fence=1, grace_s=0)], at=now())

    found = look(backend)
    assert found is not None
    assert found.state == RunState.RUNNING


def test_what_is_stopped_before_its_launch_never_runs(backend: Backend) -> None:
    backend.stop([stop()], at=now())
    backend.launch([endless()], at=now())

    found = look(backend)

    assert found is not None
    assert (found.state, found.reason, found.started_at) == (RunState.ENDED, EndReason.NEVER_STARTED, None)


def test_a_stop_of_an_overtaken_attempt_leaves_its_mark_too(backend: Backend) -> None:
    backend.launch([endless(allocation_id=2, fence=2)], at=now())

    backend.stop([stop(allocation_id=1, fence=1)], at=now())

    found = look(backend, 1)
    assert found is not None
    assert found.reason == EndReason.NEVER_STARTED


def test_an_end_is_told_until_it_is_forgotten(backend: Backend) -> None:
    backend.stop([stop()], at=now())
    assert [run.allocation_id for run in backend.list_seen(at=now())] == [1]

    for _ in range(2):
        backend.forget([1, 99])

    assert backend.list_seen(at=now()) == []


def test_what_still_runs_is_not_forgotten(backend: Backend) -> None:
    backend.launch([endless()], at=now())

    backend.forget([1])

    assert look(backend) is not None


def test_a_time_limit_is_seen_as_it_is_in_force(backend: Backend) -> None:
    backend.launch([shell("sleep 600", play_s=600.0, time_limit_s=500.0)], at=now())
    first = look(backend)
    backend.set_limits({1: 400.5, 99: 1.0}, at=now())

    second = look(backend)

    assert first is not None
    assert second is not None
    assert (first.time_limit_s, second.time_limit_s) == (500.0, 400.5)


def test_reading_behind_the_end_of_a_log_tells_where_that_is(backend: Backend) -> None:
    backend.launch([shell("echo hello", play_s=1.0)], at=now())
    wait_for(
        backend, RunState.ENDED if isinstance(backend, LocalBackend | KubernetesBackend) else RunState.RUNNING
    )

    whole = backend.read_log(1, rank=0, stream="stdout", offset=0, limit=10_000)
    behind = backend.read_log(1, rank=0, stream="stdout", offset=2**40, limit=4)

    assert (behind.text, behind.next_offset) == ("", whole.next_offset)
    assert whole.next_offset == len(whole.text.encode())


def test_there_is_no_log_of_what_was_never_launched(backend: Backend) -> None:
    assert backend.read_log(7, rank=0, stream="stdout", offset=0, limit=100).text == ""


def test_a_probe_tells_of_the_nodes_it_was_asked_about_and_of_no_others(backend: Backend) -> None:
    assert isinstance(backend, Probing)
    asked = [ProbedNode(name=name, n_devices=2, has_accelerators=False) for name in ("a", "b")]

    found = backend.probe(asked, at=now())

    assert sorted(one.node for one in found) == ["a", "b"]
    assert all(one.checks for one in found)
    assert backend.probe([], at=now()) == []


def test_a_probe_changes_nothing(backend: Backend) -> None:
    assert isinstance(backend, Probing)
    backend.launch([endless()], at=now())
    before = wait_for(backend, RunState.RUNNING)

    backend.probe([ProbedNode(name="here", n_devices=1, has_accelerators=False)], at=now())

    assert backend.list_seen(at=now()) == [before]

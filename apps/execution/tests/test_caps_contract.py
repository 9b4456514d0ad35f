"""What every backend promises about power caps, asked of each of them; and what the local one does to devices."""

import os
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.clock import now
from apps.execution.backends import simulated
from apps.execution.backends.base import Backend, CapOrder, Capping, CapState, RunState
from apps.execution.backends.local import LocalBackend
from apps.execution.models import SimulatedRun
from apps.execution.tests.builders import look, stop, wait_for, wait_until
from apps.execution.tests.test_contract import backend, endless
from apps.teams.tests.builders import NOON

__all__ = ["backend"]  # a fixture
LIBRARY = Path(__file__).with_name("fake_nvml.c")


def ask(backend: Backend, share: float, fence: int = 1, allocation_id: int = 1, **more: Any) -> None:
    assert isinstance(backend, Capping)
    order = CapOrder(allocation_id=allocation_id, share=share, fence=fence, pace=share, **more)
    backend.set_caps([order], at=now())


def cap(backend: Backend) -> CapState | None:
    assert isinstance(backend, Capping)
    return next((one for one in backend.list_caps(at=now()) if one.allocation_id == 1), None)


def wait_for_cap(backend: Backend, share: float) -> CapState:
    def there() -> CapState | None:
        found = cap(backend)
        return found if found is not None and abs(found.share - share) < 1e-9 else None

    found = wait_until(there)
    assert found is not None
    return found


@pytest.fixture
def running(backend: Backend) -> Backend:
    backend.launch([endless()], at=now())
    wait_for(backend, RunState.RUNNING)
    return backend


def test_a_cap_is_set_and_raised(running: Backend) -> None:
    assert cap(running) is None
    ask(running, 0.5)
    assert wait_for_cap(running, 0.5).fence == 1
    ask(running, 0.8)
    wait_for_cap(running, 0.8)


def test_who_comes_with_an_older_fence_is_not_heard(running: Backend) -> None:
    ask(running, 0.5, fence=3)
    wait_for_cap(running, 0.5)
    ask(running, 1.0, fence=2)
    ask(running, 0.6, fence=4)
    assert wait_for_cap(running, 0.6).fence == 4


def test_when_the_lease_is_over_it_goes_back_by_itself_and_no_further(running: Backend) -> None:
    until = now() + timedelta(seconds=2)
    ask(running, 0.5, lease_until_at=until, back_share=0.9)
    seen = set()

    def is_back() -> bool:
        found = cap(running)
        seen.update({found.share} if found else ())
        return found is not None and found.share == 0.9

    wait_until(is_back)
    assert now() >= until
    assert seen <= {0.5, 0.9}


def test_a_run_that_is_not_there_takes_no_cap(backend: Backend) -> None:
    ask(backend, 0.5)
    assert cap(backend) is None
    backend.launch([endless()], at=now())
    wait_for(backend, RunState.RUNNING)
    assert cap(backend) is None


def test_a_cap_ends_with_its_run(running: Backend) -> None:
    ask(running, 0.5)
    wait_for_cap(running, 0.5)
    running.stop([stop(grace_s=0)], at=now())
    wait_for(running, RunState.ENDED)
    assert cap(running) is None
    ask(running, 0.4)
    assert cap(running) is None


# A simulated run --------------------------------------------------------------------------------------------------

PACES = st.floats(0.05, 1.0)


@given(st.floats(1.0, 1e5), PACES, PACES, st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_played_run_ends_when_all_of_its_play_is_done(
    play_s: float, pace: float, back_pace: float, done_s: float, paced_s: float, lease_s: float
) -> None:
    begin = NOON
    run = SimulatedRun(
        launched_at=begin,
        play_s=play_s,
        done_s=min(done_s, play_s),
        pace=pace,
        back_pace=back_pace,
        paced_at=begin + timedelta(seconds=paced_s),
        cap_until_at=begin + timedelta(seconds=lease_s),
    )
    ends_at = simulated._plays_until(run)
    assert simulated._done_s(run, ends_at) == pytest.approx(play_s, abs=1e-3)
    later = ends_at + timedelta(seconds=1)
    assert simulated._done_s(run, later) >= simulated._done_s(run, ends_at)


# Devices of this machine ------------------------------------------------------------------------------------------


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires_program: Callable[..., str]) -> Path:
    """A folder with a file a device: its limit in milliwatts."""
    compiler = requires_program("cc", "gcc")
    folder = tmp_path / "devices"
    folder.mkdir()
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f'-DFOLDER="{folder}"', "-o", str(library), str(LIBRARY)], check=True
    )
    monkeypatch.setenv("SWITCHYARD_NVML", str(library))
    return folder


@pytest.mark.parametrize("backend", ["local"], indirect=True)
class TestDevices:
    def test_they_are_limited_and_get_back_what_they_had(self, devices: Path, backend: Backend) -> None:
        (devices / "0").write_text("630000")  # somebody has set it before: 0.9
        backend.launch([endless()], at=now())
        wait_for(backend, RunState.RUNNING)
        ask(backend, 0.5)
        found = wait_for_cap(backend, 0.5)
        assert (found.is_recorded, found.message, (devices / "0").read_text()) == (False, "", "350000")
        ask(backend, 1.0)
        wait_for_cap(backend, 0.9)  # never above what was before
        ask(backend, 0.5)
        wait_for_cap(backend, 0.5)
        backend.stop([stop(grace_s=0)], at=now())
        wait_for(backend, RunState.ENDED)
        assert (devices / "0").read_text() == "630000"
        assert not (devices / "1").exists()  # of somebody else

    def test_a_refusal_is_told_with_what_is_in_force(self, devices: Path, backend: Backend) -> None:
        (devices / "refuses").touch()
        backend.launch([endless()], at=now())
        wait_for(backend, RunState.RUNNING)
        ask(backend, 0.5)
        found = wait_until(lambda: one if (one := cap(backend)) is not None and one.message else None)
        assert found is not None
        assert (found.share, found.message, found.is_recorded) == (1.0, "Insufficient Permissions", False)

    def test_who_is_revived_goes_on_with_the_cap_in_force(self, devices: Path, backend: Backend) -> None:
        assert isinstance(backend, LocalBackend)
        backend.launch([endless()], at=now())
        wait_for(backend, RunState.RUNNING)
        ask(backend, 0.5)
        wait_for_cap(backend, 0.5)
        folder = backend._runs / "1"
        first = int((folder / "lock").read_text())
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: look(backend) and int((folder / "lock").read_text() or 0) not in (0, first))
        assert (devices / "0").read_text() == "350000"
        ask(backend, 0.6)
        wait_for_cap(backend, 0.6)
        backend.stop([stop(grace_s=0)], at=now())
        wait_for(backend, RunState.ENDED)
        assert (devices / "0").read_text() == "700000"

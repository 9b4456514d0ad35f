"""Programs are kept running, and what is left over is found again."""

import os
import signal
import sys
import time

import psutil
import pytest

from scheduler_site import supervisor
from scheduler_site.supervisor import Keeper, Program, Register, end_group

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
# A child in the same group, and one that leads a session of its own as a job does.
HAS_CHILDREN = [
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "subprocess.Popen(['sleep', '600'])\n"
    "job = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print(job.pid, flush=True)\n"
    "time.sleep(600)",
]


def wait_for(condition):
    until = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)
    return value


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 0.05)
    kept, said = [], []

    def make(command, name="sleeper"):
        keeper = Keeper(Program(name=name, command=command, stop_timeout_s=5), tmp_path, said.append)
        keeper.start()
        kept.append(keeper)
        return keeper

    make.said = said
    yield make
    for keeper in kept:
        keeper.ask_to_stop()
        keeper.see_stopped(within_s=5)


def test_a_killed_program_is_started_again(keep):
    keeper = keep(SLEEPS)
    first = keeper.process.pid
    os.kill(first, signal.SIGKILL)

    wait_for(lambda: keeper.tend() and keeper.is_running)

    assert keeper.process.pid != first
    assert "SIGKILL" in keep.said[0]


def test_a_program_that_fails_at_once_is_tried_ever_more_slowly(keep):
    keeper = keep([sys.executable, "-c", "import sys; sys.exit('no such thing')"])
    wait_for(lambda: keeper.tend() or len([line for line in keep.said if "exit code 1" in line]) >= 3)

    assert any("no such thing" in line for line in keep.said)
    waits = [line.rsplit(" ", 2)[1] for line in keep.said if "again in" in line]
    assert waits == sorted(waits, key=float)
    assert len(set(waits)) == len(waits)


def test_the_children_of_a_dead_program_go_and_its_jobs_stay(keep, tmp_path):
    keeper = keep(HAS_CHILDREN)
    job = int(wait_for(lambda: (tmp_path / "sleeper.log").read_text().strip()))
    children = [child for child in psutil.Process(keeper.process.pid).children() if child.pid != job]
    os.kill(keeper.process.pid, signal.SIGKILL)

    wait_for(lambda: keeper.tend() and keeper.is_running)
    try:
        assert [child for child in children if child.is_running() and child.status() != "zombie"] == []
        assert psutil.Process(job).status() == "sleeping"
    finally:
        os.kill(job, signal.SIGKILL)


def test_what_an_earlier_supervisor_left_is_ended(keep, tmp_path):
    keeper = keep(SLEEPS)
    Register(tmp_path / "up.json").write([keeper])
    said = []

    Register(tmp_path / "up.json").end_leftovers({}, said.append)

    assert "left over" in said[0]
    assert not keeper.is_running


def test_a_number_that_is_another_process_by_now_is_let_be(keep):
    keeper = keep(SLEEPS)
    born_at_s = psutil.Process(keeper.process.pid).create_time()

    assert not end_group(keeper.process.pid, keeper.process.pid, born_at_s - 100)
    assert not end_group(keeper.process.pid, keeper.process.pid, born_at_s + 100)
    assert keeper.is_running


def test_a_torn_register_is_no_reason_not_to_start(tmp_path):
    (tmp_path / "up.json").write_text('[{"name": "we')

    Register(tmp_path / "up.json").end_leftovers({}, print)

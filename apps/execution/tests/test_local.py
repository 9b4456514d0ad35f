"""The local backend with real processes, and with every one of them killed in turn."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from apps.execution import shepherd
from apps.execution.backends.base import EndReason, Order, RunState
from apps.execution.backends.local import LocalBackend
from apps.execution.tests.builders import look, now, order, output, shell, stop, wait_for, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the local backend needs Linux")


@pytest.fixture
def spool(tmp_path: Path) -> Any:
    yield tmp_path / "spool"
    # Whatever a test left running carries the spool's name.
    for pid in _bearers_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def backend(spool: Path) -> LocalBackend:
    return LocalBackend(spool)


def _bearers_of(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (
                str(folder).encode() in (process / "environ").read_bytes()
                or str(folder).encode() in (process / "cmdline").read_bytes()
            ):
                found.append(int(process.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid() and shepherd.start_of(pid) is not None]


def _shepherds(spool: Path, allocation_id: int = 1) -> list[int]:
    lock = spool / "runs" / str(allocation_id) / "lock"
    if not lock.exists() or not lock.read_text().strip():
        return []
    pid = int(lock.read_text())
    return [pid] if pid in _bearers_of(spool) else []


def _status(spool: Path, allocation_id: int = 1) -> dict[str, Any]:
    return shepherd.read_whole(f"{spool}/runs/{allocation_id}/status.json") or {}


def _kill_shepherd(spool: Path) -> None:
    (pid,) = _shepherds(spool)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _shepherds(spool))


def test_a_command_runs_and_its_output_and_exit_code_are_kept(backend: LocalBackend) -> None:
    backend.launch([shell("echo out; echo err >&2; exit 3")], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert (found.reason, found.exit_code) == (EndReason.EXITED, 3)
    assert output(backend) == "out\n"
    assert output(backend, stream="stderr") == "err\n"
    assert found.started_at is not None
    assert found.ended_at is not None
    assert found.started_at <= found.ended_at


def test_output_can_be_read_while_the_job_runs(backend: LocalBackend) -> None:
    backend.launch([shell("echo early; sleep 60")], at=now())

    wait_until(lambda: output(backend) == "early\n")

    found = wait_for(backend, RunState.RUNNING)
    assert found.exit_code is None
    assert not backend.read_log(1, rank=0, stream="stdout", offset=6, limit=100).is_complete


def test_a_script_is_run_by_the_interpreter_it_names(backend: LocalBackend) -> None:
    script = f"#!{sys.executable} -I\nimport sys\nprint(sys.flags.isolated, len(sys.argv))\n"
    backend.launch([order(script=script)], at=now())

    assert wait_for(backend, RunState.ENDED).exit_code == 0
    assert output(backend) == "1 1\n"


def test_a_job_is_told_who_it_is(backend: LocalBackend) -> None:
    backend.launch([shell("echo $CUDA_VISIBLE_DEVICES $SWITCHYARD_JOB_ID $SWITCHYARD_RANK/$SWITCHYARD_N_REPLICAS",
                          job_id=7, n_replicas=2)], at=now())  # fmt: skip

    wait_for(backend, RunState.ENDED)

    assert output(backend, rank=0) == "0 7 0/2\n"
    assert output(backend, rank=1) == "1 7 1/2\n"


def test_nothing_of_the_service_reaches_the_job(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "SECRET_KEY",
        "DATABASE_URL",
        "CELERY_BROKER_URL",
        "DJANGO_SETTINGS_MODULE",
        "PYTHONPATH",
        "API_TOKEN",
    ):
        monkeypatch.setenv(name, "of-the-service")
    backend.launch(
        [shell("env; tr '\\0' '\\n' < /proc/$PPID/environ; ls -l /proc/self/fd", env={"MINE": "yes"})],
        at=now(),
    )

    wait_for(backend, RunState.ENDED)

    assert "MINE=yes" in output(backend)
    assert "of-the-service" not in output(backend)
    # Standard streams, and the folder that `ls` itself has open: no file of the service's.
    assert {line.split()[8] for line in output(backend).splitlines() if " -> " in line} == {
        "0",
        "1",
        "2",
        "3",
    }


def test_what_the_job_sets_does_not_hide_who_it_is(backend: LocalBackend) -> None:
    backend.launch([shell("echo $SWITCHYARD_JOB_ID", job_id=7, env={"SWITCHYARD_JOB_ID": "8"})], at=now())

    wait_for(backend, RunState.ENDED)

    assert output(backend) == "7\n"


def test_files_are_for_the_service_alone(backend: LocalBackend, spool: Path) -> None:
    backend.launch([order(script="#!/bin/sh\necho secret\n", env={"TOKEN": "secret"})], at=now())
    wait_for(backend, RunState.ENDED)

    open_to_others = [p for p in [spool, *spool.rglob("*")] if stat.S_IMODE(p.stat().st_mode) & 0o077]

    assert open_to_others == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (order("no-such-command"), "command not found: no-such-command"),
        (order("/etc/passwd"), "cannot run /etc/passwd: Permission denied"),
        (
            order("true", workdir="/no/such/folder"),
            "working folder /no/such/folder: No such file or directory",
        ),
        (order(script="#!/no/such/shell\n"), "command not found: /no/such/shell"),
        (order(), "There is neither a command nor a script to run."),
        (order("true", env={"BIG": "x" * 3_000_000}), "cannot run true: Argument list too long"),
    ],
    ids=[
        "no command",
        "not a program",
        "no folder",
        "no interpreter",
        "nothing to run",
        "too much environment",
    ],
)
def test_a_job_that_cannot_be_started_says_why(backend: LocalBackend, asked: Any, said: str) -> None:
    backend.launch([asked], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert (found.reason, found.message, found.started_at) == (EndReason.BAD_COMMAND, said, None)


def test_a_stop_is_polite_first(backend: LocalBackend) -> None:
    backend.launch(
        [shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")], at=now()
    )
    wait_until(lambda: output(backend) == "ready\n")

    backend.stop([stop(grace_s=60)], at=now())

    found = wait_for(backend, RunState.ENDED)
    assert (found.reason, found.exit_code) == (EndReason.STOPPED, 0)
    assert output(backend) == "ready\nbye\n"


def test_a_stop_right_after_the_launch_does_not_wait_for_the_grace_to_pass(backend: LocalBackend) -> None:
    for number in range(1, 6):
        backend.launch([shell("sleep 600", allocation_id=number, job_id=number)], at=now())
        backend.stop([stop(allocation_id=number, job_id=number, grace_s=3600)], at=now())

    found = [wait_for(backend, RunState.ENDED, number) for number in range(1, 6)]

    assert {run.reason for run in found} <= {EndReason.STOPPED, EndReason.NEVER_STARTED}


def test_a_stop_that_is_not_heeded_ends_by_force(backend: LocalBackend) -> None:
    backend.launch([shell("trap '' TERM; echo ready; while :; do sleep 0.05; done")], at=now())
    wait_until(lambda: output(backend) == "ready\n")

    backend.stop([stop(grace_s=60)], at=now())
    backend.stop([stop(grace_s=0.1)], at=now())  # the earlier force counts

    found = wait_for(backend, RunState.ENDED)
    assert (found.reason, found.exit_code) == (EndReason.STOPPED, 137)


GRANDCHILDREN = """
import os, sys, time, signal
def hide(setsid, clean):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if setsid: os.setsid()
        if os.fork(): os._exit(0)
        if clean: os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
        time.sleep(600)
for setsid in (False, True):
    for clean in (False, True):
        hide(setsid, clean)
print("ready", flush=True)
"""


def test_a_stop_reaches_grandchildren_that_hide(backend: LocalBackend, spool: Path) -> None:
    # In the group and out of it, with the run's environment and without: all orphans.
    backend.launch([order(sys.executable, "-c", GRANDCHILDREN + "time.sleep(600)")], at=now())
    wait_until(lambda: output(backend) == "ready\n")
    keeper = _status(spool)["keepers"][0]["pid"]
    wait_until(lambda: len(shepherd._children_of(keeper)) == 5)
    family = shepherd._children_of(keeper)

    backend.stop([stop(grace_s=0.2)], at=now())

    wait_for(backend, RunState.ENDED)
    assert [pid for pid in family if shepherd.start_of(pid) is not None] == []


def test_what_a_job_leaves_behind_does_not_outlive_it(backend: LocalBackend, spool: Path) -> None:
    backend.launch([order(sys.executable, "-c", GRANDCHILDREN)], at=now())

    assert wait_for(backend, RunState.ENDED).exit_code == 0
    wait_until(lambda: not _bearers_of(spool))


def test_a_run_ends_at_its_time_limit_with_no_worker_about(backend: LocalBackend, spool: Path) -> None:
    backend.launch([shell("sleep 600", time_limit_s=0.3)], at=now())

    wait_until(lambda: _status(spool).get("state") == "ended")  # nobody asks the backend meanwhile

    found = look(backend)
    assert found is not None
    assert (found.reason, found.exit_code) == (EndReason.TIME_LIMIT, 143)


def test_a_time_limit_can_be_lengthened_while_the_job_runs(backend: LocalBackend) -> None:
    backend.launch([shell("sleep 0.6", time_limit_s=0.3)], at=now())
    backend.set_limits({1: 500.0}, at=now())

    assert wait_for(backend, RunState.ENDED).reason == EndReason.EXITED


def test_one_replica_that_fails_ends_the_others(backend: LocalBackend) -> None:
    backend.launch([shell("[ $SWITCHYARD_RANK = 1 ] && exit 9; sleep 600", n_replicas=3)], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert (found.reason, found.exit_code) == (EndReason.EXITED, 9)
    assert found.message == "Replica 1 ended with exit code 9."


def test_a_command_that_dies_of_a_signal_says_which(backend: LocalBackend) -> None:
    backend.launch([shell("kill -SEGV $$")], at=now())

    found = wait_for(backend, RunState.ENDED)

    assert (found.exit_code, found.message) == (139, "The command was ended by SIGSEGV.")


def test_output_beyond_the_limit_keeps_its_beginning_and_its_end(spool: Path) -> None:
    backend = LocalBackend(spool, log_limit_bytes=shepherd.TAIL_BYTES + 1000)
    backend.launch([shell("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")], at=now())

    wait_for(backend, RunState.ENDED)

    text = output(backend)
    assert text.startswith("first\n")
    assert text.endswith("x\nlast\n")
    assert "bytes are not kept here]" in text
    assert len(text) < shepherd.TAIL_BYTES + 1200


def test_a_log_is_read_piece_by_piece_without_cutting_a_character(backend: LocalBackend) -> None:
    backend.launch([shell("printf 'äöü€😀%.0s' 1 2 3 4 5; printf '\\377'")], at=now())
    wait_for(backend, RunState.ENDED)

    text, offset, is_complete = "", 0, False
    while not is_complete:
        chunk = backend.read_log(1, rank=0, stream="stdout", offset=offset, limit=5)
        text, offset, is_complete = text + chunk.text, chunk.next_offset, chunk.is_complete

    assert text == "äöü€😀" * 5 + "\ufffd"


def test_a_log_can_be_read_after_the_run_is_forgotten(backend: LocalBackend) -> None:
    backend.launch([shell("echo kept")], at=now())
    wait_for(backend, RunState.ENDED)

    backend.forget([1])

    assert look(backend) is None
    assert output(backend) == "kept\n"


# Kills -----------------------------------------------------------------------------------------------------------


def test_a_job_outlives_the_kill_of_its_shepherd_and_is_found_again(
    backend: LocalBackend, spool: Path
) -> None:
    backend.launch([shell("echo began; sleep 0.5; echo went on; exit 4")], at=now())
    wait_until(lambda: output(backend) == "began\n")

    _kill_shepherd(spool)

    found = wait_for(backend, RunState.ENDED)
    assert (found.reason, found.exit_code) == (EndReason.EXITED, 4)
    assert output(backend) == "began\nwent on\n"


def test_a_job_that_ended_while_its_shepherd_was_dead_keeps_its_exit_code(
    backend: LocalBackend, spool: Path
) -> None:
    backend.launch([shell("read x < fifo; exit 5", workdir=str(_with_fifo(spool.parent)))], at=now())
    wait_for(backend, RunState.RUNNING)
    _kill_shepherd(spool)

    (spool.parent / "fifo").write_text("go\n")
    wait_until(lambda: (spool / "runs/1/exit.0").exists())

    assert wait_for(backend, RunState.ENDED).exit_code == 5


def _with_fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder


def test_a_stop_reaches_a_job_whose_shepherd_was_killed(backend: LocalBackend, spool: Path) -> None:
    backend.launch([shell("sleep 600")], at=now())
    wait_for(backend, RunState.RUNNING)
    _kill_shepherd(spool)

    backend.stop([stop()], at=now())

    assert wait_for(backend, RunState.ENDED).reason == EndReason.STOPPED


def test_a_job_whose_keeper_was_killed_is_ended_and_reported_as_lost(
    backend: LocalBackend, spool: Path
) -> None:
    backend.launch([shell("sleep 600 & sleep 600")], at=now())
    wait_for(backend, RunState.RUNNING)

    os.kill(_status(spool)["keepers"][0]["pid"], signal.SIGKILL)

    assert wait_for(backend, RunState.ENDED).reason == EndReason.LOST
    wait_until(lambda: not _bearers_of(spool))


def test_a_job_with_shepherd_and_keeper_killed_is_ended_and_reported_as_lost(
    backend: LocalBackend, spool: Path
) -> None:
    backend.launch([shell("sleep 600")], at=now())
    wait_for(backend, RunState.RUNNING)
    keeper = _status(spool)["keepers"][0]["pid"]

    _kill_shepherd(spool)
    os.kill(keeper, signal.SIGKILL)

    assert wait_for(backend, RunState.ENDED).reason == EndReason.LOST
    wait_until(lambda: not _bearers_of(spool))


def test_a_restart_of_the_machine_ends_what_ran(backend: LocalBackend, spool: Path) -> None:
    backend.launch([shell("sleep 600")], at=now())
    wait_for(backend, RunState.RUNNING)
    keeper = _status(spool)["keepers"][0]["pid"]
    _kill_shepherd(spool)
    os.kill(keeper, signal.SIGKILL)
    status = _status(spool)
    shepherd.write_whole(f"{spool}/runs/1/status.json", {**status, "boot_id": "another"})

    found = wait_for(backend, RunState.ENDED)

    assert (found.reason, found.message) == (EndReason.LOST, "The machine was restarted.")


def test_a_run_whose_status_was_lost_is_not_run_again(backend: LocalBackend, spool: Path) -> None:
    backend.launch([shell("echo ran; sleep 600")], at=now())
    wait_until(lambda: output(backend) == "ran\n")
    _kill_shepherd(spool)
    (spool / "runs/1/status.json").write_text("")

    backend.launch([shell("echo ran; sleep 600")], at=now())

    assert wait_for(backend, RunState.ENDED).reason == EndReason.LOST
    assert output(backend) == "ran\n"
    wait_until(lambda: not _bearers_of(spool))


def test_a_process_that_got_the_number_of_a_keeper_is_not_taken_for_it(
    backend: LocalBackend, spool: Path
) -> None:
    backend.launch([shell("sleep 600")], at=now())
    wait_for(backend, RunState.RUNNING)
    keeper = _status(spool)["keepers"][0]
    _kill_shepherd(spool)
    os.kill(keeper["pid"], signal.SIGKILL)
    status = {
        **_status(spool),
        "keepers": [{**keeper, "pid": os.getpid()}],
    }  # alive, but began at another time
    shepherd.write_whole(f"{spool}/runs/1/status.json", status)

    assert wait_for(backend, RunState.ENDED).reason == EndReason.LOST


def test_a_claim_whose_worker_was_killed_starts_once_when_it_is_launched_again(
    backend: LocalBackend, spool: Path
) -> None:
    with backend._locked():
        assert backend._claim(shell("echo once"))
    claimed = look(backend)
    assert claimed is not None
    assert claimed.state == RunState.CLAIMED

    for _ in range(3):
        backend.launch([shell("echo once")], at=now())

    wait_for(backend, RunState.ENDED)
    assert output(backend) == "once\n"


def test_a_claim_that_is_stopped_before_it_starts_never_starts(backend: LocalBackend) -> None:
    with backend._locked():
        backend._claim(shell("echo ran"))

    backend.stop([stop()], at=now())

    assert wait_for(backend, RunState.ENDED).reason == EndReason.NEVER_STARTED
    assert output(backend) == ""


LAUNCHER = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    from pathlib import Path
    from apps.execution.backends.local import LocalBackend
    from apps.execution.tests.builders import now, shell
    backend = LocalBackend(Path(sys.argv[1]))
    threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    number = int(sys.argv[3])
    text = f"echo $SWITCHYARD_ALLOCATION_ID >> {sys.argv[1]}/../ran"
    backend.launch([shell(text, allocation_id=number, job_id=number)], at=now())
    """
)


def test_however_a_worker_is_killed_while_it_launches_the_job_runs_exactly_once(
    backend: LocalBackend, spool: Path
) -> None:
    # The kill comes a little later each time, so that it falls between every two steps of a launch.
    n_tries = 16
    for number in range(1, n_tries + 1):
        subprocess.run(
            [sys.executable, "-c", LAUNCHER, str(spool), str(0.004 * number), str(number)],
            cwd=Path(__file__).parents[3],
            check=False,
        )
    text = "echo $SWITCHYARD_ALLOCATION_ID >> {spool}/../ran"
    for number in range(1, n_tries + 1):
        again = shell(text.format(spool=spool), allocation_id=number, job_id=number)
        assert backend.launch([again], at=now()) == {}
    for number in range(1, n_tries + 1):
        assert wait_for(backend, RunState.ENDED, number).exit_code == 0

    ran = sorted(int(line) for line in (spool.parent / "ran").read_text().split())
    assert ran == list(range(1, n_tries + 1))


def test_however_a_shepherd_is_killed_while_it_starts_the_job_does_not_run_twice(
    backend: LocalBackend, spool: Path
) -> None:
    for number in range(1, 13):
        text = f"echo {number} >> {spool}/../ran"
        with backend._locked():
            backend._claim(shell(text, allocation_id=number, job_id=number))
        folder = spool / "runs" / str(number)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", shepherd.__file__, str(folder)], start_new_session=True
        )
        process.wait()
        time.sleep(0.002 * number)
        for pid in _shepherds(spool, number):
            os.kill(pid, signal.SIGKILL)
        # Again and again, as reconcile does: at first the dying shepherd may still hold its lock.
        wait_until(lambda: _is_under_way(backend, shell(text, allocation_id=number, job_id=number)))  # noqa: B023
    found = {number: wait_for(backend, RunState.ENDED, number) for number in range(1, 13)}

    ran = [int(line) for line in (spool.parent / "ran").read_text().split()]
    assert len(ran) == len(set(ran))
    # Whoever did not run says so: it was lost in the moment before, and the ledger tries it again.
    assert {number for number, run in found.items() if run.reason == EndReason.EXITED} == set(ran)


def _is_under_way(backend: LocalBackend, asked: Order) -> bool:
    backend.launch([asked], at=now())
    found = look(backend, asked.allocation_id)
    return found is not None and found.state != RunState.CLAIMED


def test_runs_of_another_worker_are_seen_and_stopped(spool: Path) -> None:
    LocalBackend(spool).launch([shell("sleep 600")], at=now())

    other = LocalBackend(spool)
    wait_for(other, RunState.RUNNING)
    other.stop([stop()], at=now())

    assert wait_for(other, RunState.ENDED).reason == EndReason.STOPPED


def test_logs_and_fences_of_long_ago_are_deleted(backend: LocalBackend, spool: Path) -> None:
    backend.launch([shell("echo old")], at=now())
    wait_for(backend, RunState.ENDED)
    backend.forget([1])
    for path in (spool / "ended" / "1", spool / "fences" / "1"):
        os.utime(path, (0, 0))

    assert backend.prune(before=now()) == 1
    assert not list(spool.glob("ended/*")) + list(spool.glob("fences/*"))


def test_a_spool_that_is_gone_is_laid_out_anew(backend: LocalBackend, spool: Path) -> None:
    backend.list_seen(at=now())
    shutil.rmtree(spool)

    assert backend.list_seen(at=now()) == []

"""The `switchyard` command as a process of its own, against the live site."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from apps.core import clock
from apps.execution import selectors as execution
from apps.execution.backends.base import LogChunk
from apps.jobs import services
from apps.jobs.models import Job
from apps.jobs.tests.builders import end, fleet, grant, job, person, start, team
from apps.teams.services import create_token

ROOT = Path(__file__).parent.parent
SCRIPT = "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gpus=2\n#SBATCH --mail-type=END\n./train\n"

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Shell:
    """A person's terminal."""

    env: dict[str, str]
    folder: Path

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "switchyard", *words],
            env=self.env | env,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words, **env)
        out, err = process.communicate(stdin)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def hall():
    return fleet(2, 4, kind="H100")


@pytest.fixture
def ours(hall):
    return team("vision", quota={hall.kind: 8})


@pytest.fixture
def me(ours):
    return person(ours)


@pytest.fixture
def switchyard(live_server, me, tmp_path) -> Shell:
    _, secret = create_token(user=me, name="terminal", at=clock.now())
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "client"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SWITCHYARD_URL": live_server.url,
        "SWITCHYARD_TOKEN": secret,
    }
    return Shell(env, tmp_path)


def test_a_script_is_submitted_and_what_was_ignored_is_said(switchyard, tmp_path):
    (tmp_path / "train.sh").write_text(SCRIPT)
    done = switchyard("submit", "-N", "1", "--time=5", "train.sh")

    made = Job.objects.get()
    assert (done.returncode, done.stdout) == (0, f"Submitted job {made.pk}\n"), done.stderr
    assert "ignored: line 4: --mail-type" in done.stderr
    assert (made.name, made.time_limit_s, made.private["script"]) == ("train", 300, SCRIPT)


def test_a_dry_run_shows_the_job_and_submits_nothing(switchyard):
    done = switchyard("submit", "--dry-run", "-", stdin=SCRIPT)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["devices"] == 2
    assert "It would start now" in done.stderr
    assert not Job.objects.exists()


def test_json_and_manifests_are_submitted_too(switchyard, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"name": "a", "devices": 1, "command": ["x"]}))
    manifest = "kind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: c, command: [x]}]}\n"
    (tmp_path / "pod.yaml").write_text(manifest)

    assert switchyard("submit", "--team", "vision", "job.json").returncode == 0
    assert switchyard("submit", "pod.yaml").returncode == 0
    done = switchyard("submit", "--wrap", "echo hello", "--gpus=1", "-J", "c", "--json")
    assert json.loads(done.stdout)["jobs"][0]["script"] == "#!/bin/sh\necho hello\n"
    assert sorted(Job.objects.values_list("name", flat=True)) == ["a", "b", "c"]


def test_what_is_refused_is_said_with_its_line(switchyard):
    done = switchyard("submit", stdin=SCRIPT.replace("--mail-type=END", "--nodelist=n1"))

    assert done.returncode == 65
    assert "line 4: --nodelist" in done.stderr
    assert not Job.objects.exists()
    assert (
        json.loads(switchyard("submit", "--json", stdin="#!/bin/sh\n#SBATCH --x\n").stderr)["code"]
        == "invalid"
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["submit", "missing.sh"], 2),
        (["submit", "a", "b"], 2),
        (["queue", "--limit", "0"], 2),
        (["why", "x"], 2),
        (["why", "999999"], 65),
        (["wait", "999999"], 65),
        (["cancel", "999999"], 65),
        ([], 2),
    ],
)
def test_each_kind_of_trouble_has_its_exit_code(switchyard, words, code):
    done = switchyard(*words)

    assert done.returncode == code, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_site_that_is_not_there_and_a_token_that_is_not_valid(switchyard):
    assert switchyard("queue", SWITCHYARD_URL="http://127.0.0.1:9").returncode == 69
    assert switchyard("queue", SWITCHYARD_TOKEN="wrong").returncode == 77
    assert switchyard("queue", SWITCHYARD_TOKEN="").returncode == 77
    assert switchyard("queue", SWITCHYARD_URL="ftp://x").returncode == 2


def test_the_queue_is_a_table_of_what_waits_and_runs(switchyard, hall, ours, me):
    waiting = job(ours, me, name="waiting", at=clock.now())
    running = job(ours, me, name="running", at=clock.now())
    start(running, hall, grant(hall.nodes[0]), at=clock.now())
    other = job(ours, person(ours), name="other", at=clock.now())
    services.stop_job(job_id=job(ours, me, name="gone").pk, actor=me, at=clock.now())

    lines = switchyard("queue").stdout.splitlines()
    assert lines[0].split()[:5] == ["JOBID", "NAME", "TEAM", "USER", "ST"]
    assert [line.split()[:2] for line in lines[1:]] == [
        [str(other.pk), "other"],
        [str(running.pk), "running"],
        [str(waiting.pk), "waiting"],
    ]
    assert {line.split()[1]: line.split()[4] for line in lines[1:]}["running"] == "R"
    mine = json.loads(switchyard("queue", "--me", "--state", "PD,running", "--json").stdout)
    assert [one["name"] for one in mine] == ["running", "waiting"]
    assert len(json.loads(switchyard("queue", "--state", "all", "--json").stdout)) == 4


def test_why_says_that_no_pass_has_looked_yet(switchyard, ours, me):
    waiting = job(ours, me, at=clock.now())

    assert "no pass" in switchyard("why", str(waiting.pk)).stdout
    assert json.loads(switchyard("why", "--json", str(waiting.pk)).stdout)["job_id"] == waiting.pk


def test_cancel_goes_on_after_one_that_is_not_there(switchyard, ours, me):
    waiting = job(ours, me, at=clock.now())
    done = switchyard("cancel", "999999", str(waiting.pk), "--reason", "done with it")

    waiting.refresh_from_db()
    assert (done.returncode, waiting.state) == (65, "cancelled")
    assert f"Job {waiting.pk} is cancelled" in done.stdout


@pytest.mark.parametrize(
    ("outcome", "exit_code", "said"),
    [
        ("succeeded", 0, 0),
        ("failed", 7, 7),
        ("failed", None, 1),
        ("failed", -9, 137),
        ("timed_out", None, 124),
    ],
)
def test_wait_ends_with_the_exit_code_of_the_job(switchyard, hall, ours, me, outcome, exit_code, said):
    one = job(ours, me, at=clock.now())
    allocation = start(one, hall, grant(hall.nodes[0]), at=clock.now())
    waiting = switchyard.start("wait", str(one.pk))
    time.sleep(1)
    assert waiting.poll() is None
    end(allocation, outcome, at=clock.now(), exit_code=exit_code)

    _, err = waiting.communicate()
    assert waiting.returncode == said, err
    assert f"Job {one.pk} {outcome}" in err


def test_wait_gives_up_when_told_to(switchyard, ours, me):
    one = job(ours, me, at=clock.now())

    assert switchyard("wait", "--timeout", "0.2", str(one.pk)).returncode == 75


def test_ctrl_c_ends_cleanly_and_leaves_the_job(switchyard, ours, me):
    one = job(ours, me, at=clock.now())
    waiting = switchyard.start("wait", str(one.pk))
    time.sleep(2)
    waiting.send_signal(signal.SIGINT)

    _, err = waiting.communicate()
    assert waiting.returncode == 130
    assert "Traceback" not in err
    one.refresh_from_db()
    assert one.state == "queued"


def test_logs_follow_until_the_job_has_ended(switchyard, hall, ours, me, monkeypatch):
    one = job(ours, me, at=clock.now())
    allocation = start(one, hall, grant(hall.nodes[0]), at=clock.now())
    text, is_over = ["first line\n"], []

    def read_log(*, offset: int, rank: int, **_more: object) -> LogChunk:
        written = f"rank {rank}\n" + "".join(text)
        return LogChunk(written[offset:], len(written), bool(is_over))

    monkeypatch.setattr(execution, "read_log", read_log)
    assert switchyard("logs", str(one.pk), "--rank", "3").stdout == "rank 3\nfirst line\n"

    following = switchyard.start("logs", str(one.pk), "-f")
    assert following.stdout.readline() == "rank 0\n"
    text.append("second line\n")
    end(allocation, "succeeded", at=clock.now(), exit_code=0)
    is_over.append(True)
    out, err = following.stdout.read(), following.stderr.read()
    assert (following.wait(), out) == (0, "first line\nsecond line\n"), err


def test_login_keeps_the_token_for_this_user_alone(switchyard, live_server, tmp_path):
    secret = switchyard.env.pop("SWITCHYARD_TOKEN")
    del switchyard.env["SWITCHYARD_URL"]
    wrong = switchyard("login", "--url", live_server.url, "--token-stdin", stdin="wrong\n")
    assert wrong.returncode == 77
    assert not (tmp_path / "config").exists()

    done = switchyard("login", "--url", live_server.url, "--token-stdin", stdin=f"{secret}\n")
    kept = tmp_path / "config" / "switchyard" / "config.json"
    assert done.returncode == 0, done.stderr
    assert kept.stat().st_mode & 0o777 == 0o600
    assert secret not in done.stdout + done.stderr
    assert switchyard("queue").returncode == 0
    # The kept token is for that site: another address does not get it.
    assert switchyard("queue", SWITCHYARD_URL="http://127.0.0.1:9").returncode == 77
    kept.chmod(0o644)
    assert "chmod 600" in switchyard("queue").stderr


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str | None]]]:
    """A site that points to itself under another name, and writes down which tokens it was sent."""
    seen: list[str | None] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/stolen")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


def test_a_redirect_does_not_carry_the_token_away(switchyard, elsewhere):
    url, seen = elsewhere
    done = switchyard("queue", SWITCHYARD_URL=url)

    assert len(seen) == 1
    assert done.returncode == 69
    assert "points elsewhere" in done.stderr

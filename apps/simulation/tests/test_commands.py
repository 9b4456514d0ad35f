"""The commands as an operator calls them: no database, exit statuses, files."""

import gzip
import json

import pytest
from django.core.management import CommandError, call_command

from apps.simulation.replay import openb, swf
from apps.simulation.tests.scenes import scene_of


@pytest.fixture
def scenario_file(tmp_path):
    def write(content):
        path = tmp_path / "scenario.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_scenario_gives_events_and_a_summary(scenario_file, tmp_path):
    events, summary = tmp_path / "e.jsonl", tmp_path / "s.json"

    call_command("simulate", scenario_file(scene_of({})), events=events, summary=summary)

    assert [json.loads(line)["event"] for line in events.read_text().splitlines()] == [
        "submit",
        "start",
        "finish",
    ]
    assert set(json.loads(summary.read_text())) == {"jobs", "metrics", "losses", "engine"}


def test_a_bad_scenario_exits_with_2_and_a_line_per_fault(scenario_file, capsys):
    with pytest.raises(SystemExit) as left:
        call_command("simulate", scenario_file(scene_of({"runtime": -1}, {"replicas": 4.0})))

    assert left.value.code == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "jobs[0].runtime",
        "jobs[1].replicas",
    ]


def test_a_file_that_is_not_there_exits_with_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        call_command("simulate", tmp_path / "nothing.json")

    assert left.value.code == 2


LOG = """; MaxProcs: 4
1 0 -1 10 3 -1 -1 3 20 -1 1 1 1 1 1 1 -1 -1
2 1 -1 10 4 -1 -1 4 10 -1 1 1 1 1 1 1 -1 -1
3 2 -1 5 1 -1 -1 1 6 -1 1 1 1 1 1 1 -1 -1
4 3 -1 50 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1
"""


def test_a_log_is_replayed_and_its_starts_are_written(tmp_path):
    log, starts, summary = tmp_path / "log.swf.gz", tmp_path / "starts.csv", tmp_path / "s.json"
    log.write_bytes(gzip.compress(LOG.encode()))

    call_command(
        "replay", "swf", str(log), "--policy", "easy", "--starts", str(starts), "--summary", str(summary)
    )

    # 2 is promised 20 by 1's limit; 3 ends before that, 4 does not. 1 ends at 10, and 2 with it begins.
    assert starts.read_text() == "job_id,start_s\n1,0\n2,10\n3,2\n4,20\n"
    told = json.loads(summary.read_text())
    assert (told["mean_wait"], told["makespan"]) == (6.5, 70)


def test_an_interrupted_replay_tells_what_was_done(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log.swf"
    log.write_text(LOG)
    run = swf.Replay.run

    def interrupted(replay):
        for n, ended in enumerate(run(replay)):
            if n == 4:
                raise KeyboardInterrupt
            yield ended

    monkeypatch.setattr(swf.Replay, "run", interrupted)
    call_command("replay", "swf", str(log), "--policy", "strict")

    assert "Interrupted" in capsys.readouterr().out


def test_a_log_that_is_none_is_told_with_its_line(tmp_path):
    log = tmp_path / "log.swf"
    log.write_text("; MaxProcs: 4\n1 2 3\n")

    with pytest.raises(CommandError, match="line 2: has 3 of 18 columns"):
        call_command("replay", "swf", str(log))


def test_rows_that_no_machine_could_run_are_dropped():
    rows = [
        "1 0 -1 10 3 -1 -1 9 20",
        "2 0 -1 0 1 -1 -1 1 20",
        "3 0 -1 9 1 -1 -1 1 -1",
        "4 0 -1 9 2 -1 -1 -1 5",
    ]
    log = swf.read_log(["; MaxProcs: 4", *(f"{row} -1 1 1 1 1 1 1 -1 -1" for row in rows)])

    assert [(job.job_id, job.n_procs, job.run_s) for job in log.jobs] == [(4, 2, 5)]
    assert log.n_dropped == 3


NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,16384,2,T4\nn1,8000,16384,2,P100\nn2,8000,16384,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "a,1000,1024,1,500,\nb,1000,1024,2,1000,T4|P100\nc,1000,1024,0,0,\nd,1000,1024,1,1000,V100\n"
)


def test_pods_are_replayed_by_the_protocol(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    summary = tmp_path / "s.json"

    call_command(
        "replay",
        "openb",
        str(tmp_path / "nodes.csv"),
        str(tmp_path / "pods.csv"),
        "--seeds",
        "3",
        "--summary",
        str(summary),
    )

    told = json.loads(summary.read_text())
    assert len(told["seeds"]) == 3
    assert 0 < told["alloc_pct_at_100_mean"] <= 100 or told["alloc_pct_at_100_mean"] is None


def test_a_pod_goes_only_to_models_it_accepts_and_shares_what_is_shared():
    packer = openb.EnginePacker(openb.read_nodes(NODES.splitlines()))
    half = openb.Pod(1, 1, 1, 500, ())

    first, second = packer.place(half), packer.place(half)
    assert first is not None
    assert second is not None
    assert (first[0].node, first[0].devices) == (second[0].node, second[0].devices)
    assert packer.place(openb.Pod(1, 1, 1, 1000, ("V100",))) is None


def test_a_workload_asks_for_just_under_the_load():
    import random

    pods = openb.read_pods(PODS.splitlines())
    arrivals = openb.workload(pods, 40, random.Random(1))

    asked = sum(pod.request_milli for pod in arrivals)
    assert 1.3 * 40_000 - 2_000 < asked <= 1.3 * 40_000


ROWS = ["1 0 -1 50 4", "2 1 -1 100 4", "3 2 -1 5 4"]  # job, submit, wait, run, processors


@pytest.fixture
def small_log(tmp_path):
    path = tmp_path / "log.swf"
    # The limit is the run time, so that of 2 and 3, which wait for 1, the second is the shorter.
    rows = [f"{row} -1 -1 4 {row.split()[3]} -1 1 {row.split()[0]} 1 1 1 1 -1 -1" for row in ROWS]
    path.write_text("\n".join(["; MaxProcs: 4", *rows]) + "\n")
    return path


def replayed(log, tmp_path, *options):
    summary = tmp_path / "s.json"
    call_command("replay", "swf", str(log), *options, "--summary", str(summary), verbosity=0)
    return json.loads(summary.read_text())


def test_a_replay_is_compared_with_another_job_by_job(small_log, tmp_path):
    starts = str(tmp_path / "easy.csv")
    replayed(small_log, tmp_path, "--policy", "easy", "--starts", starts)

    same = replayed(small_log, tmp_path, "--policy", "easy", "--against", starts)
    assert (same["jobs_in_both"], same["starts_that_differ"], same["longest_extra_wait"]) == (3, 0, 0)
    other = replayed(small_log, tmp_path, "--policy", "shortest", "--against", starts)
    # 3 starts at 50 in place of 150, and 2 at 55 in place of 50.
    assert (other["starts_that_differ"], other["jobs_that_waited_longer"]) == (2, 1)
    assert (other["longest_extra_wait"], other["mean_extra_wait"]) == (5, pytest.approx(-95 / 3))


def test_the_time_after_which_nobody_is_passed_can_be_tried(small_log, tmp_path):
    starts = str(tmp_path / "easy.csv")
    replayed(small_log, tmp_path, "--policy", "easy", "--starts", starts)

    for options in (("--starving-s", "10"), ("--starving-s", "100", "--starving-by-width", "0.9")):
        told = replayed(small_log, tmp_path, "--policy", "shortest", "--against", starts, *options)
        assert told["starts_that_differ"] == 0
        assert told["starving_s"] == float(options[1])
    with pytest.raises(CommandError, match="shortest first"):
        replayed(small_log, tmp_path, "--policy", "easy", "--starving-s", "10")


def test_a_comparison_with_what_has_no_such_column_is_refused(small_log, tmp_path):
    starts = str(tmp_path / "easy.csv")
    replayed(small_log, tmp_path, "--policy", "easy", "--starts", starts)

    with pytest.raises(CommandError, match="start_fcfs"):
        replayed(small_log, tmp_path, "--against", starts, "--against-column", "start_fcfs")


def test_a_kept_promise_that_falls_due_as_others_end_early_is_kept(tmp_path):
    # 1 ends at its limit, when 4 was promised its two processors; 2 ends early at the same time. 3 asks for all four.
    rows = ["1 0 -1 10 2 10", "2 0 -1 10 2 100", "3 1 -1 50 4 50", "4 2 -1 50 2 50"]
    cells = [row.split() for row in rows]
    log = swf.read_log(
        ["; MaxProcs: 4", *(f"{' '.join(c[:5])} -1 -1 {c[4]} {c[5]} -1 1 1 1 1 1 1 -1 -1" for c in cells)]
    )
    replay = swf.Replay(log, 4, swf.POLICIES["conservative"])
    for _ in replay.run():
        pass

    assert dict(swf.start_rows(replay)) == {1: 0, 2: 0, 3: 60, 4: 10}

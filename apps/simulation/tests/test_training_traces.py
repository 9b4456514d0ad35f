"""Deep-learning traces: what is read from them, the scenarios they become, and slices of the real ones."""

import csv
import gzip
import json
from functools import cache
from math import inf
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from apps.simulation.replay import gavel, goodput, gpu_tables, philly, pollux, shockwave, sia, training

TRACES = Path(settings.SWITCHYARD_TRACES)
needs_traces = pytest.mark.skipif(
    not (TRACES / "dl-pollux-osdi21").exists(),
    reason=f"the shared traces are not at {TRACES} (SWITCHYARD_TRACES names another place)",
)


def opened(*names):
    return gzip.open(TRACES.joinpath(*names), "rt")


def told_by(tmp_path, *words):
    summary = tmp_path / "summary.json"
    call_command("replay", *words, "--summary", str(summary), verbosity=0)
    return json.loads(summary.read_text())


def run_of(*jobs, n_gpus=1):
    cluster = training.Cluster((training.NodeKind("node", 1, n_gpus),), speed={"GPU": 1.0})
    return training.Run("run", cluster, jobs)


def played(run, policy="default"):
    player = training.Player(run, policy)
    player.play()
    return player


# -- measures -----------------------------------------------------------------------------------------------------


def test_measures_of_two_jobs_on_one_gpu():
    run = run_of(training.TrainingJob("a", 0, 1, 100), training.TrainingJob("b", 50, 1, 10))
    told = training.measures(played(run), static_contention=False)

    assert (told["jobs"], told["mean_jct"], told["makespan"], told["utilization"]) == (2, 80, 110, 1)
    assert told["mean_bounded_slowdown"] == (1 + 6) / 2
    # b was in the system for 60 s, 50 of them beside a; a for 100, 50 of them beside b.
    assert told["worst_finish_time_fairness"] == pytest.approx(6 / ((50 * 2 + 10) / 60))


def test_static_contention_counts_the_jobs_of_the_whole_trace():
    run = run_of(training.TrainingJob("a", 0, 1, 100), training.TrainingJob("b", 50, 1, 10))
    told = training.measures(played(run), static_contention=True)

    assert told["worst_finish_time_fairness"] == 6 / 2


def test_the_shortest_may_go_first():
    jobs = [training.TrainingJob(name, at, 1, s) for name, at, s in [("a", 0, 10), ("b", 1, 50), ("c", 2, 5)]]

    ends = {one.job.name: one.end_s for one in training.ended_of(played(run_of(*jobs), "shortest"))}
    assert ends == {"a": 10, "c": 15, "b": 65}
    ends = {one.job.name: one.end_s for one in training.ended_of(played(run_of(*jobs), "strict"))}
    assert ends == {"a": 10, "b": 60, "c": 65}


def test_a_run_that_was_interrupted_before_anything_ended_has_no_means():
    player = training.Player(run_of(training.TrainingJob("a", 0, 1, 100)), "default")

    assert training.measures(player, static_contention=False) == {"jobs": 0, "gpus": 1, "passes": 0}


def test_runs_together_add_up_what_is_counted_and_keep_the_worst():
    parts = [
        {"jobs": 1, "gpus": 4, "mean_jct": 10.0, "worst_finish_time_fairness": 2.0},
        {"jobs": 3, "gpus": 4, "mean_jct": 30.0, "worst_finish_time_fairness": 1.0},
    ]

    assert training.together(parts) == {
        "jobs": 4,
        "gpus": 4,
        "mean_jct": 20.0,
        "worst_finish_time_fairness": 2.0,
    }


def test_the_first_jobs_begin_at_zero():
    jobs = [training.TrainingJob(str(at), at, 1, 10) for at in (30, 10, 20)]

    assert [(job.name, job.submit_s) for job in training.first(jobs, 2)] == [("10", 0), ("20", 10)]


# -- rows and tables ----------------------------------------------------------------------------------------------


def test_philly_on_its_published_cluster():
    cluster = philly.cluster_of(2490)

    assert [(kind.n_nodes, kind.n_gpus) for kind in cluster.nodes] == [(231, 8), (321, 2)]
    assert all(0 <= philly.cluster_of(n).n_gpus - n < 2 for n in range(1, 300))


def test_a_philly_row_that_is_wrong_is_told_with_its_line():
    header = "timestamp,duration,num_gpus,gpu_time,cluster\n"
    good = "2017-10-09 07:01:55,66.0,1,66.0,a\n"
    for bad in ("yesterday,1,1,1,a", "2017-10-09 07:01:55,0,1,0,a", "2017-10-09 07:01:55,nan,1,0,a"):
        with pytest.raises(training.BadTrace, match="line 3"):
            philly.read_jobs((header + good + bad).splitlines())


def test_a_throughput_that_was_not_measured_is_that_of_the_next_smaller_number_of_gpus():
    table = gpu_tables.Throughputs(
        {"v100": {"('LM', 1)": {"null": 2.0}, "('LM', 8)": {"null": 9.0}}, "k80": {"('LM', 2)": {"null": 0}}}
    )

    assert [table.rate("v100", "LM", n) for n in (1, 7, 8, 64)] == [2.0, 2.0, 9.0, 9.0]
    assert table.rate("k80", "LM", 2) is None


def gavel_line(kind, n_steps, n_gpus, vc="vc"):
    return f"{vc}\t{kind}\tcommand\t-n\t1\t{n_steps}\t0\t{n_gpus}\n"


def test_a_gavel_job_takes_the_types_it_runs_on_and_its_time_on_the_first():
    table = json.dumps(
        {
            "v100": {"('A', 1)": {"null": 4}, "('B', 1)": {"null": 1}},
            "p100": {"('A', 1)": {"null": 2}, "('B', 1)": {"null": 2}},
            "k80": {"('A', 1)": {"null": 1}, "('B', 1)": {"null": 0}},
        }
    )
    lines = [gavel_line("A", 400, 1), gavel_line("B", 50, 1)]
    replay = gavel.replay_of(lines, table, n_gpus=(8, 8, 8), vc=None, limit=None)
    a, b = replay.runs[0].jobs

    assert (a.alone_s, a.accelerators) == (100, ("v100", "p100", "k80"))
    assert (b.alone_s, b.accelerators) == (50, ("p100", "v100"))
    # Half as fast for one and twice for the other: as fast in the mean.
    assert replay.runs[0].cluster.speed == {"v100": 1.0, "p100": 1.0, "k80": 0.25}


def test_a_row_of_another_form_is_told_with_its_line():
    with pytest.raises(training.BadTrace, match="line 2: has 3 columns"):
        gpu_tables.read_rows([gavel_line("A", 1, 1), "a\tb\tc\n"])


def shockwave_row(mode, n_steps, kind="LM (batch size 20)", n_gpus=1):
    return gpu_tables.Row(kind, n_steps, n_gpus, 0.0, None, mode, 1.0)


def test_batch_sizes_change_as_published():
    def sizes(mode, n, model="LM", batch=20):
        row = shockwave_row(mode, 1)
        return [shockwave.batch_in(row, model, batch, epoch, n) for epoch in range(n)]

    assert sizes("static", 50) == [20] * 50
    assert sizes("gns", 50) == [20] * 11 + [40] * 30 + [80] * 9
    assert sizes("accordion", 20) == [20] * 10 + [80] * 10
    assert sizes("accordion", 100) == [20] * 31 + [80] * 69  # the first 30 % stay small
    assert sizes("accordion", 50, "Transformer", 16) == [16] * 50


def test_a_job_that_grows_its_batch_is_done_sooner_where_that_is_faster():
    table = gpu_tables.Throughputs(
        {"v100": {f"('LM (batch size {size})', 1)": {"null": 10.0} for size in (20, 40, 80)}}
    )
    per_epoch = 59_675 / 20 / 10
    steps = 50 * 2984

    assert shockwave.adaptive_s(shockwave_row("static", steps), table) == pytest.approx(50 * per_epoch)
    assert shockwave.adaptive_s(shockwave_row("gns", steps), table) == pytest.approx(
        (11 + 30 / 2 + 9 / 4) * per_epoch
    )
    with pytest.raises(training.BadTrace, match="no schedule"):
        shockwave.adaptive_s(shockwave_row("gns", steps, "GPT (batch size 1)"), table)


# -- goodput ------------------------------------------------------------------------------------------------------


VALIDATION = """application,batch_size,progress,iteration,metric,grad_sqr,grad_var
m,10,100,100,0,1,3
m,10,200,200,0,1,9
m,40,100,60,0,1,3
m,40,200,110,0,1,9
"""
PLACEMENTS = """application,placement,local_bsz,step_time,sync_time
m,1,5,1,0
m,1,20,4,0
m,2,5,1.5,0.5
m,2,20,4.5,0.5
m,22,5,2,1
m,22,10,3,1
"""
SCALABILITY = "application,num_nodes,num_replicas,local_bsz,step_time,sync_time\nm,3,6,5,9,8\nm,3,5,5,1,0\n"


def model(most_local=None):
    steps = goodput.read_steps(PLACEMENTS.splitlines(), SCALABILITY.splitlines())
    return goodput.Application(
        goodput.read_trainings(VALIDATION.splitlines())["m"], steps["m", ""], 2, most_local
    )


def test_devices_are_packed_on_as_few_nodes_as_they_fit():
    assert [goodput.packed(n, 4) for n in (1, 4, 6, 16, 17)] == [
        (1,),
        (4,),
        (2, 4),
        (4, 4, 4, 4),
        (1, 4, 4, 4, 4),
    ]


def test_a_step_of_the_smallest_batch_is_one_step_of_progress():
    training_ = model().training

    assert training_.gain(10).tolist() == [1, 1]
    # (var + sqr) / (var x M0/M + sqr), by hand; between measured sizes the noise is taken in proportion.
    assert training_.gain(40).tolist() == pytest.approx([4 / 1.75, 10 / 3.25])
    assert training_.gain(20).tolist() == pytest.approx([4 / 2.5, 10 / 5.5])


def test_the_time_alone_is_progress_over_gain_times_the_step():
    application = model()

    # Two devices, 10 each: step 1.5 + (10 - 5) x 0.2 = 2.5 s.
    assert application.time_s(2, 20) == pytest.approx(2.5 * (100 / (4 / 2.5) + 100 / (10 / 5.5)))
    # What does not fit one device is done in parts, of which only the last exchanges gradients.
    assert model(most_local=5).time_s(2, 20) == pytest.approx(
        (1.5 + 1.0) * (100 / (4 / 2.5) + 100 / (10 / 5.5))
    )
    assert application.time_s(1, 4) is None  # smaller than was measured
    assert application.time_s(5, 40) is None  # no such placement


def test_the_best_batch_size_is_never_slower_than_a_fixed_one():
    application = model()

    for n in application.sizes(4):
        fixed = [application.time_s(n, batch) or inf for batch in range(10, 41)]
        assert application.best_s(n) <= min(fixed) + 1e-9


def test_a_table_of_rates_never_falls_and_ends_at_the_fastest():
    elastic = model().elastic(2, 6)

    assert dict(elastic.scaling)[2] == 1
    rates = [rate for _, rate in elastic.scaling]
    assert rates == sorted(rates)
    assert (elastic.least, elastic.most) == (1, 4)  # six devices are slower than four


def test_a_table_of_rates_ends_where_a_device_works_too_slowly():
    application = model()
    efficiency = {n: application.reach_s(1) / application.reach_s(n) / n for n in (1, 2, 4)}
    between = (efficiency[2] + efficiency[4]) / 2

    assert efficiency[1] > efficiency[2] > efficiency[4]
    assert application.elastic(1, 6, between).most == 2
    assert application.elastic(4, 6, between).most == 4  # never below what is preferred


# -- the real traces ----------------------------------------------------------------------------------------------


@cache
def real_applications():
    folder = "dl-pollux-osdi21"
    with (
        opened(folder, pollux.VALIDATION) as validation,
        opened(folder, pollux.PLACEMENTS) as placements,
        opened(folder, pollux.SCALABILITY) as scalability,
    ):
        return pollux.applications(validation, placements, scalability)


@needs_traces
def test_no_published_rigid_job_was_done_sooner_than_the_profiles_allow():
    with opened("dl-pollux-osdi21", pollux.file_of("0.5")) as lines:
        workloads = pollux.read_requests(lines)
    with opened("dl-pollux-osdi21", "reference-jct-per-job.csv.gz") as lines:
        published = {
            (row["workload"], row["job"]): float(row["jct_s"])
            for row in csv.DictReader(lines)
            if (row["policy"], row["load"]) == ("tiresias", "0.5")
        }
    ratios = [
        published[request.workload, request.name]
        / pollux.job_of(request, real_applications(), None, most=64).alone_s
        for requests in workloads.values()
        for request in requests
    ]

    # The emptiest node first spreads some jobs of eight GPUs in ways that were measured faster than packed ones.
    assert min(ratios) > 0.8
    assert sum(ratio < 0.999 for ratio in ratios) <= 0.03 * len(ratios)
    # Many ran alone and at once: then the two agree, up to the round of 60 s in which the job had to wait.
    assert sum(ratio < 1.1 for ratio in ratios) >= 0.3 * len(ratios)


@needs_traces
def test_the_published_cluster_was_as_busy_as_the_adaptive_durations_say():
    with opened("dl-shockwave-nsdi23", shockwave.THROUGHPUTS) as table:
        throughputs = gpu_tables.Throughputs.read(table.read())
    path = next((TRACES / "dl-shockwave-nsdi23").glob("120_*.trace.gz"))
    with gzip.open(path, "rt") as lines:
        rows = gpu_tables.read_rows(lines)
    gpu_s = sum(shockwave.adaptive_s(row, throughputs) * row.n_gpus for row in rows)
    with (TRACES / "dl-shockwave-nsdi23" / shockwave.REFERENCE).open() as lines:
        published = next(
            row
            for row in shockwave.read_reference(lines)
            if (row["setting"], row["policy"]) == ("simulation", "shockwave")
        )

    assert gpu_s == pytest.approx(published["utilization"] * published["makespan_s"] * 32, rel=0.01)


@needs_traces
@pytest.mark.parametrize("trace", ["philly", "pollux", "sia", "gavel", "shockwave"])
def test_a_slice_of_a_real_trace_is_played_and_its_scenario_gives_the_same_starts(trace, tmp_path):
    scenario, starts, again = (tmp_path / name for name in ("scenario.json", "starts.csv", "again.json"))
    one = ["--workload", "1"] if trace in ("pollux", "sia") else []
    told = told_by(
        tmp_path, trace, *one, "--limit", "40", "--scenario", str(scenario), "--starts", str(starts)
    )
    call_command("simulate", str(scenario), summary=again, verbosity=0)
    simulated = json.loads(again.read_text())["jobs"]

    assert (told["trace"], told["jobs"], told["is_whole"]) == (trace, 40, True)
    assert told["reference"] is None  # a slice has none
    assert told["protocol"]
    with starts.open() as lines:
        rows = list(csv.DictReader(lines))
    assert {row["job"]: float(row["start_s"]) for row in rows} == {
        name: job["start"] for name, job in simulated.items()
    }
    assert told["mean_jct"] == pytest.approx(
        sum(job["end"] - job["submit"] for job in simulated.values()) / 40
    )


@needs_traces
def test_the_whole_trace_of_shockwave_stands_beside_its_reference(tmp_path):
    told = told_by(tmp_path, "shockwave", "--policy", "shortest")

    assert (told["jobs"], told["gpus"]) == (120, 32)
    with (TRACES / "dl-shockwave-nsdi23" / shockwave.REFERENCE).open() as lines:
        assert len(told["reference"]) == sum(1 for _ in csv.DictReader(lines))
    best = min(row["avg_jct_s"] for row in told["reference"])
    assert told["mean_jct"] < best
    assert told["worst_finish_time_fairness"] < 1


@needs_traces
def test_a_workload_of_pollux_stands_beside_its_own_reference(tmp_path):
    told = told_by(tmp_path, "pollux", "--load", "0.5", "--workload", "5")

    assert (told["jobs"], told["gpus"]) == (80, 64)
    assert set(told["reference"]) == {"pollux", "optimus", "tiresias"}
    assert set(told["reference"]["pollux"]) == {"workload-5", "mean-of-8", "p99"}


@needs_traces
def test_several_workloads_are_no_one_scenario(tmp_path):
    with pytest.raises(CommandError, match="--workload"):
        call_command("replay", "pollux", "--scenario", str(tmp_path / "out.json"))


@needs_traces
def test_elastic_jobs_say_how_they_scale_where_a_scenario_can_say_it():
    with opened("dl-pollux-osdi21", pollux.file_of("1.0")) as lines:
        requests = pollux.chosen(pollux.read_requests(lines), 1)
    replay = pollux.replay_of(requests, real_applications(), load="1.0", sizing=training.Sizing(), limit=20)
    rows = training.scenario_of(replay.runs[0])["jobs"]

    for row, job in zip(rows, replay.runs[0].jobs, strict=True):
        assert row["replicas"]["min"] == 1
        assert row["replicas"]["min"] <= row["replicas"]["preferred"] <= row["replicas"]["max"] <= 64
        assert "scaling" in row
        assert dict(job.elastic.scaling)[job.n_gpus] == 1


@needs_traces
def test_sia_gives_no_job_more_than_the_smallest_type_has():
    with (
        opened("dl-pollux-osdi21", pollux.VALIDATION) as validation,
        opened("dl-sia-sosp23", sia.PLACEMENTS) as placements,
        opened("dl-sia-sosp23", sia.SCALABILITY) as scalability,
    ):
        applications = sia.applications(validation, placements, scalability)
    with opened("dl-sia-sosp23", sia.file_of("saturn")) as lines:
        requests = pollux.chosen(pollux.read_requests(lines), 2)
    replay = sia.replay_of(requests, applications, workloads="saturn", limit=None)
    speed = replay.runs[0].cluster.speed

    assert max(job.n_gpus for job in replay.runs[0].jobs) <= 16
    assert 1 == speed["aws"] < speed["rtx"] < speed["dgx-ext"]


def test_a_trace_that_is_not_there_is_told(tmp_path):
    for trace in ("philly", "pollux", "sia", "gavel", "shockwave"):
        with pytest.raises(CommandError, match=r"cannot be read|there is no trace"):
            call_command("replay", trace, str(tmp_path))


@needs_traces
def test_an_interrupted_replay_of_a_trace_tells_what_was_done(tmp_path, monkeypatch, capsys):
    play = training.Player.play

    def interrupted(player):
        play(player)
        raise KeyboardInterrupt

    monkeypatch.setattr(training.Player, "play", interrupted)
    told = told_by(tmp_path, "pollux", "--load", "0.5", "--limit", "5")

    assert (told["is_whole"], told["jobs"]) == (False, 5)  # the first of eight workloads
    assert "Interrupted" in capsys.readouterr().out


@needs_traces
def test_jobs_that_may_change_their_size_are_done_sooner_than_rigid_ones(tmp_path):
    one = ["pollux", "--load", "1.0", "--workload", "4"]
    rigid = told_by(tmp_path, *one)
    elastic = told_by(tmp_path, *one, "--elastic", "--preferred", "2", "--efficiency", "0.5")

    assert (rigid["jobs"], elastic["jobs"]) == (160, 160)
    assert rigid["resizes"] == 0 < elastic["resizes"]
    assert elastic["mean_jct_resize_cost_added"] < rigid["mean_jct"]
    assert elastic["makespan"] < rigid["makespan"]


@needs_traces
def test_how_jobs_change_their_size_is_said_of_elastic_jobs_alone():
    with pytest.raises(CommandError, match="--elastic"):
        call_command("replay", "pollux", "--preferred", "2")


def test_the_published_p99_is_the_mean_over_workloads():
    rows = ["policy,load,workload,job,jct_s"]
    rows += [f"pollux,1.0,w{which},j{i},{i * which}" for which in (1, 2) for i in range(1, 101)]
    rows += ["pollux,2.0,w1,j1,9000", "pollux,1.0,w3,j1,9000", "other,1.0,w1,j1,5"]
    reference = {"pollux": {"w1": 1.0}}
    pollux.add_reference_p99(reference, rows, "1.0", ["w1", "w2"])

    assert reference == {"pollux": {"w1": 1.0, "p99": (99 + 198) / 2}}

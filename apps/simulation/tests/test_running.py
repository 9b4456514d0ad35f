"""Jobs that run when a scenario begins hold what they hold, and go on from where they are."""

import json

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from apps.simulation import report
from apps.simulation.scenario import ScenarioError, read_scenario
from apps.simulation.tests.scenes import TYPES, renamed, run_scene, scene_of, scenes, shuffled


def on(*devices, node="n0", since=0, **more):
    return {"since": since, "placement": [{"node": node, "replicas": 1, "devices": list(devices), **more}]}


def told(scene):
    return report.summary(run_scene(scene))


def faults_of(scene):
    with pytest.raises(ScenarioError) as refused:
        read_scenario(json.dumps(scene).encode())
    return [str(fault) for fault in refused.value.faults]


def test_what_runs_keeps_its_devices_until_its_work_is_done():
    scene = scene_of(
        {"devices": 8, "runtime": 100, "running": on(*range(8), since=70)}, {"devices": 8, "runtime": 5}
    )
    jobs = told(scene)["jobs"]

    assert [jobs[name]["end"] for name in ("j0", "j1")] == [30, 35]
    assert (jobs["j0"]["start"], jobs["j0"]["wait"], jobs["j0"]["run"]) == (0, 0, 100)


def test_its_place_is_where_it_is():
    lines = run_scene(scene_of({"devices": 2, "running": on(3, 5, node="n1")}, nodes=2)).lines
    (start,) = [line for line in lines if line["event"] == "start"]
    assert start["placement"] == [{"node": "n1", "replicas": 1, "devices": [3, 5], "share": 1}]


def test_its_limit_counts_from_its_start():
    scene = scene_of({"runtime": 100, "time_limit": 50, "running": on(0, since=20)})
    job = told(scene)["jobs"]["j0"]
    assert (job["state"], job["end"], job["run"]) == ("timed_out", 30, 50)


def test_device_time_before_the_beginning_counts_nowhere():
    scene = scene_of({"devices": 8, "runtime": 100, "running": on(*range(8), since=60)})
    summary = told(scene)
    assert summary["losses"]["productive"] == sum(summary["losses"].values()) == 8 * 40
    assert summary["metrics"]["utilization"] == 1.0


def test_a_faster_type_does_more_in_the_time_it_ran():
    facility = {"accelerator_types": [TYPES[1]], "nodes": [{"name": "n0", "accelerator": "B", "devices": 8}]}
    scene = scene_of({"runtime": 100, "running": on(0, since=30)}, facility=facility)
    assert told(scene)["jobs"]["j0"]["end"] == 20  # 60 of 100 are done, 40 are left at speed 2


FAIL = [{"t": 10, "type": "node_fail", "node": "n0"}, {"t": 10, "type": "node_recover", "node": "n0"}]


def test_without_checkpoints_all_it_ran_is_lost_with_its_node():
    scene = scene_of({"runtime": 100, "running": on(0, since=50)}, events=FAIL)
    summary = told(scene)
    assert (summary["jobs"]["j0"]["lost_s"], summary["jobs"]["j0"]["end"]) == (60, 110)
    assert summary["losses"]["rework"] == 10  # what was done before the beginning is in no bucket


def test_what_it_saved_before_the_beginning_is_kept():
    saving = {"interval": 20, "cost": 1, "restart": 3}
    scene = scene_of({"runtime": 100, "checkpoint": saving, "running": on(0, since=50)}, events=FAIL)
    job = told(scene)["jobs"]["j0"]
    # Two checkpoints by 42, none by 60: 18 lost; 60 of work are left, with a restart and two checkpoints.
    assert (job["lost_s"], job["end"]) == (18, 10 + 3 + 60 + 2)


def test_the_phase_of_its_checkpoints_goes_on():
    saving = {"interval": 20, "cost": 1}
    whole = told(scene_of({"runtime": 100, "checkpoint": saving}))["jobs"]["j0"]["end"]
    for since in (1, 20, 20.5, 21, 33, 84):
        scene = scene_of({"runtime": 100, "checkpoint": saving, "running": on(0, since=since)})
        assert told(scene)["jobs"]["j0"]["end"] == whole - since


def test_a_job_that_runs_has_its_data():
    facility = {
        "domains": [{"name": "s", "kind": "storage"}],
        "nodes": [{"name": "n0", "accelerator": "A", "devices": 8, "storage": "s"}],
    }
    job = {"runtime": 100, "datasets": ["d"], "running": on(0, since=70)}
    scene = scene_of(job, facility=facility, datasets=[{"name": "d", "size_gib": 50}])
    assert told(scene)["jobs"]["j0"]["end"] == 30


def test_an_elastic_job_goes_on_at_its_present_size():
    placement = [{"node": "n0", "replicas": 2, "devices": [0, 1]}]
    job = {
        "replicas": {"min": 2, "max": 4},
        "runtime": 100,
        "running": {"since": 100, "placement": placement},
    }
    scene = scene_of(job, devices=2)
    assert told(scene)["jobs"]["j0"]["end"] == 100  # at half the pace half of it is left


def test_an_older_job_goes_first_and_its_wait_counts_from_the_beginning():
    scene = scene_of(
        {"devices": 8, "runtime": 20}, {"devices": 8, "runtime": 10, "age": 5}, policy={"backfill_depth": 0}
    )
    jobs = told(scene)["jobs"]
    assert [(jobs[name]["start"], jobs[name]["wait"]) for name in ("j1", "j0")] == [(0, 0), (10, 10)]


def test_what_a_team_used_before_puts_it_behind():
    teams = [{"name": "a", "used": {"A": 1000}}, {"name": "b"}]
    scene = scene_of({"team": "a", "devices": 8, "age": 9}, {"team": "b", "devices": 8}, teams=teams)
    jobs = told(scene)["jobs"]
    assert [jobs[name]["start"] for name in ("j1", "j0")] == [0, 10]


def test_a_fraction_and_groups_are_put_where_they_are():
    scene = scene_of(
        {"devices": 0.25, "replicas": 2, "running": on(1, replicas=2, share=0.5)},
        {
            "groups": [{"name": "head", "devices": 0}, {"name": "work", "replicas": 2, "devices": 2}],
            "running": {
                "placement": [
                    {"node": "n0", "replicas": 1, "group": "head"},
                    {"node": "n0", "replicas": 2, "group": "work", "devices": [2, 3, 4, 5]},
                ]
            },
        },
    )
    starts = [line for line in run_scene(scene).lines if line["event"] == "start"]
    placements = {line["job"]: line["placement"] for line in starts}
    assert placements["j0"] == [{"node": "n0", "replicas": 2, "devices": [1], "share": 0.5}]
    assert [(p["group"], p["devices"]) for p in placements["j1"]] == [("head", []), ("work", [2, 3, 4, 5])]


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        ({"running": on(0, node="x")}, 'jobs[0].running.placement[0].node: no node is named "x"'),
        ({"running": on(8)}, 'jobs[0].running.placement[0].devices: there is no device 8 on "n0"'),
        ({"running": on(0, 1)}, "jobs[0].running.placement[0].devices: must be 1 devices"),
        ({"devices": 2, "running": on(0, 0)}, "jobs[0].running.placement[0].devices: must be 2 devices"),
        ({"running": on(0, share=0.5)}, "jobs[0].running.placement[0].share: must be 1"),
        ({"running": on(0, group="g")}, "jobs[0].running.placement[0].group: is for jobs of several groups"),
        ({"replicas": 2, "running": on(0)}, "jobs[0].running.placement: must hold 2 replicas, not 1"),
        (
            {"replicas": {"min": 2, "max": 4}, "running": on(0)},
            "jobs[0].running.placement: must hold 2 to 4 replicas, not 1",
        ),
        ({"time_limit": 5, "running": on(0, since=5)}, "jobs[0].running.since: must be below time_limit"),
        (
            {"submit": 1, "running": on(0)},
            "jobs[0].running: must not stand beside submit: the job runs when the scenario begins",
        ),
        ({"submit": 1, "age": 2}, "jobs[0].age: goes with submit 0 alone"),
        ({"running": {"since": 3}}, "jobs[0].running.placement: is required"),
        (
            {"accelerators": ["B"], "running": on(0)},
            'jobs[0].running.placement[0].node: has "A", which the job does not accept',
        ),
    ],
)  # fmt: skip
def test_what_cannot_run_there_is_refused_with_its_path(job, fault):
    facility = {"accelerator_types": TYPES}
    assert faults_of(scene_of(job, facility=facility)) == [fault]


def test_a_device_is_not_held_twice():
    scene = scene_of({"running": on(0)}, {"running": on(0)}, {"devices": 0.5, "running": on(1, share=0.5)},
                     {"devices": 0.75, "running": on(1, share=0.75)})  # fmt: skip
    assert faults_of(scene) == [
        'jobs[1].running.placement[0].devices: device 0 of "n0" is held twice',
        'jobs[3].running.placement[0].devices: device 1 of "n0" is held twice',
    ]


# Any scene, cut in two


def cut_at(scene, t):
    """What runs of a scene at `t`, said as jobs that run at the beginning of another."""
    outcome = run_scene({**scene, "until": t})
    rows = {row["name"]: row for row in scene["jobs"]}
    jobs = []
    for life in outcome.lives:
        if life.state == "running":
            row = {key: value for key, value in rows[life.job.name].items() if key not in ELSEWHERE}
            (start,) = [
                line for line in outcome.lines if (line["event"], line["job"]) == ("start", row["name"])
            ]
            running = {"since": t - start["t"], "placement": start["placement"]}
            jobs.append({**row, "age": t, "running": running})
    return jobs


ELSEWHERE = ("submit", "after", "not_before", "reservation")


def at_rest(scene):
    """The scene with nothing in it that cuts a job, bounds the time, or lets an end hang on other jobs."""
    kept = {key: value for key, value in scene.items() if key not in ("events", "until")}
    jobs = [
        {key: value for key, value in job.items() if key not in ("datasets", "scaling")}
        for job in scene["jobs"]
    ]
    for job in jobs:
        if isinstance(job["replicas"], dict):
            job["replicas"] = job["replicas"]["min"]
    return {**kept, "jobs": jobs, "policy": {**scene["policy"], "preemption": False}}


@given(scenes(max_jobs=6), st.sampled_from([1, 7, 12.5, 25]))
@settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_what_runs_in_any_scene_ends_when_it_would_have_ended(scene, t):
    # Without cuts only where a job runs and since when decides when it ends.
    scene = at_rest(scene)
    running = cut_at(scene, t)
    whole, rest = told(scene)["jobs"], told({**scene, "jobs": running, "reservations": []})["jobs"]

    assert rest.keys() == {row["name"] for row in running}
    for name, job in rest.items():
        assert job["end"] == pytest.approx(whole[name]["end"] - t, abs=1e-9), name
        assert job["state"] == whole[name]["state"]


@given(scenes(max_jobs=6), st.sampled_from([1, 12.5]), st.integers(0, 5))
@settings(max_examples=30, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_names_and_order_decide_nothing_about_what_runs(scene, t, seed):
    scene = at_rest(scene)
    again = [
        {**{key: value for key, value in row.items() if key not in ELSEWHERE}, "name": f"again-{row['name']}"}
        for row in scene["jobs"]
    ]
    mixed = {**scene, "jobs": [*cut_at(scene, t), *again]}
    other, _ = renamed(shuffled(mixed, seed), seed)

    # Rows that differ in nothing but their names may change places; the ends are the same all the same.
    mine, theirs = ([job["end"] for job in told(one)["jobs"].values()] for one in (mixed, other))
    assert sorted(map(str, theirs)) == sorted(map(str, mine))

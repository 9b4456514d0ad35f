"""The contract of scenario files, one story each."""

from fractions import Fraction

import pytest

from apps.scheduling.engine.facts import Fault
from apps.simulation import report
from apps.simulation.loop import BrokenPlan
from apps.simulation.tests.scenes import run_scene, scene_of


def told(outcome, *events):
    """(t, event, job) of the lines of these kinds."""
    return [(line["t"], line["event"], line["job"]) for line in outcome.lines if line["event"] in events]


def starts(outcome):
    return {line["job"]: line["t"] for line in outcome.lines if line["event"] == "start"}


def job(outcome, name="j0"):
    return report.summary(outcome)["jobs"][name]


# -- time and pace


def test_what_is_released_at_an_instant_is_free_for_what_starts_at_it():
    outcome = run_scene(
        scene_of({"devices": 8, "runtime": 0.1}, {"devices": 8, "runtime": 0.2}, {"devices": 8})
    )

    assert starts(outcome) == {"j1": 0, "j0": 0.2, "j2": 0.3} or starts(outcome) == {
        "j2": 0,
        "j1": 10,
        "j0": 10.2,
    }
    at = [(line["t"], line["event"]) for line in outcome.lines if line["event"] in ("start", "finish")]
    assert at == sorted(at, key=lambda one: (one[0], one[1] != "finish"))


def test_tenths_add_up_without_drift():
    # 0.1 + 0.2 is 0.3, so the node is free at the very instant at which the third job comes.
    chain = scene_of(
        {"devices": 8, "runtime": 0.1},
        {"devices": 8, "runtime": 0.2, "submit": 0.1},
        {"devices": 8, "runtime": 1, "submit": 0.3},
    )

    assert starts(run_scene(chain)) == {"j0": 0, "j1": 0.1, "j2": 0.3}


def test_the_slowest_node_and_the_type_set_the_pace():
    nodes = [
        {"name": "fast", "accelerator": "B", "devices": 8},
        {"name": "slow", "accelerator": "B", "devices": 8, "speed": 0.25},
    ]
    types = [{"name": "B", "tdp_w": 700, "speed": 2}]
    scene = scene_of({"devices": 8, "replicas": 2}, facility={"nodes": nodes, "accelerator_types": types})

    assert job(run_scene(scene))["end"] == 20  # 10 s at 2 x 0.25


def test_a_job_over_its_limit_is_timed_out():
    outcome = run_scene(scene_of({"runtime": 100, "time_limit": 30}))

    assert told(outcome, "timeout", "finish") == [(30, "timeout", "j0")]
    assert job(outcome)["state"] == "timed_out"


def test_a_job_that_needs_exactly_its_limit_finishes():
    assert job(run_scene(scene_of({"runtime": 30, "time_limit": 30})))["state"] == "succeeded"


def test_checkpoints_take_time_and_none_is_written_at_the_end():
    outcome = run_scene(scene_of({"runtime": 100, "checkpoint": {"interval": 50, "cost": 5, "restart": 7}}))

    assert job(outcome)["run"] == 105


# -- waiting


def test_not_before_holds_a_job_and_does_not_count_as_waiting():
    outcome = run_scene(scene_of({"not_before": 40}))

    assert job(outcome)["start"] == 40
    assert job(outcome)["wait"] == 0


def test_a_dependent_starts_when_the_last_of_its_dependencies_has_finished():
    outcome = run_scene(scene_of({"runtime": 5}, {"runtime": 20}, {"after": ["j0", "j1"]}))

    assert job(outcome, "j2")["start"] == 20
    assert job(outcome, "j2")["wait"] == 0


def test_a_dependency_that_fails_cancels_the_whole_chain_behind_it():
    outcome = run_scene(
        scene_of(
            {"runtime": 50, "time_limit": 10},
            {"after": ["j0"]},
            {"after": ["j1"]},
            {"after": ["j2"], "submit": 20},
        )
    )

    assert told(outcome, "cancel") == [(10, "cancel", "j1"), (10, "cancel", "j2"), (20, "cancel", "j3")]
    assert job(outcome, "j2")["code"] == "dependency_never_satisfied"


def test_a_chain_of_a_thousand_dependents_is_cancelled_without_ado():
    chain = [{"runtime": 50, "time_limit": 10}] + [{"after": [f"j{i}"]} for i in range(1_500)]

    assert len(told(run_scene(scene_of(*chain)), "cancel")) == 1_500


def test_what_the_empty_facility_cannot_hold_is_rejected_with_the_numbers():
    outcome = run_scene(scene_of({"replicas": 3, "devices": 8}, {"after": ["j0"]}, nodes=2))

    assert told(outcome, "reject") == [(0, "reject", "j0")]
    assert job(outcome)["state"] == "rejected"
    assert "24" in job(outcome)["reason"]
    assert job(outcome, "j1")["state"] == "cancelled"


def test_a_lowered_limit_makes_a_job_wait_and_not_impossible():
    facility = {
        "domains": [{"name": "hall", "kind": "hall", "power_limit_w": 10_000}],
        "nodes": [{"name": "n", "accelerator": "A", "devices": 8, "power": "hall"}],
    }
    limits = [
        {"t": 0, "type": "set_power_limit", "domain": "hall", "power_limit_w": 1_000},
        {"t": 50, "type": "set_power_limit", "domain": "hall", "power_limit_w": 4_000},
    ]
    outcome = run_scene(scene_of({"devices": 8, "submit": 1}, facility=facility, events=limits))

    assert starts(outcome) == {"j0": 50}


def test_a_limit_below_the_present_draw_starts_nothing_until_the_draw_fits():
    facility = {
        "domains": [{"name": "hall", "kind": "hall"}],
        "nodes": [{"name": "n", "accelerator": "A", "devices": 8, "power": "hall"}],
    }
    lower = [{"t": 5, "type": "set_power_limit", "domain": "hall", "power_limit_w": 1_500}]
    # 4 running devices draw 4 x 400 + 4 x 40 W = 1,760 W; with one of them 680 W.
    outcome = run_scene(
        scene_of({"devices": 4, "runtime": 20}, {"devices": 1, "submit": 10}, facility=facility, events=lower)
    )

    assert starts(outcome) == {"j0": 0, "j1": 20}


def test_a_job_over_its_quota_waits_and_is_not_rejected():
    outcome = run_scene(scene_of({"devices": 8, "team": "t"}, teams=[{"name": "t", "quota": {"A": 4}}]))

    assert job(outcome)["state"] == "queued"
    assert job(outcome)["code"] == "quota"


def test_a_quota_that_is_raised_lets_the_job_go():
    raised = [{"t": 30, "type": "set_quota", "team": "t", "quota": {"A": 8}}]
    outcome = run_scene(
        scene_of({"devices": 8, "team": "t"}, teams=[{"name": "t", "quota": {"A": 4}}], events=raised)
    )

    assert starts(outcome) == {"j0": 30}


def test_the_team_that_used_less_goes_first():
    teams = [{"name": "a", "quota": {"A": 8}}, {"name": "b", "quota": {"A": 8}}]
    outcome = run_scene(
        scene_of(
            {"devices": 8, "team": "a", "runtime": 100},
            {"devices": 8, "team": "a", "submit": 1},
            {"devices": 8, "team": "b", "submit": 2},
            teams=teams,
        )
    )

    assert starts(outcome) == {"j0": 0, "j2": 100, "j1": 110}


# -- what happens to nodes


def fail(t, back=None, node="n0"):
    events = [{"t": t, "type": "node_fail", "node": node}]
    return events + ([{"t": back, "type": "node_recover", "node": node}] if back is not None else [])


def test_a_job_that_loses_a_node_leaves_whole_and_goes_on_from_its_checkpoint():
    saving = {"interval": 20, "cost": 2, "restart": 3}
    outcome = run_scene(scene_of({"runtime": 100, "checkpoint": saving}, events=fail(50, back=60)))

    lost = next(line for line in outcome.lines if line["event"] == "node_lost")
    assert (lost["t"], lost["node"], lost["lost_s"]) == (50, "n0", 6)  # checkpoints were done at 22 and 44
    # 60 s of work are left: restart 3, work 60, two checkpoints of 2.
    assert job(outcome)["end"] == 60 + 3 + 60 + 4
    assert job(outcome)["preemptions"] == 0


def test_without_checkpoints_a_job_starts_over_and_its_limit_goes_on_counting():
    outcome = run_scene(scene_of({"runtime": 50, "time_limit": 70}, events=fail(30, back=40)))

    assert told(outcome, "timeout") == [(80, "timeout", "j0")]
    assert job(outcome)["run"] == 70
    assert job(outcome)["lost_s"] == 30


def test_a_node_that_failed_cools_down_and_its_jobs_back_off():
    scene = scene_of(
        {"runtime": 50}, events=fail(10, back=20), policy={"cooldown_s": 15, "retry_backoff_s": 40}
    )

    assert [line["t"] for line in run_scene(scene).lines if line["event"] == "start"] == [0, 50]
    scene["policy"]["retry_backoff_s"] = 0
    assert [line["t"] for line in run_scene(scene).lines if line["event"] == "start"] == [0, 35]


def test_a_drained_node_lets_its_work_end_and_takes_no_more():
    drain = [{"t": 5, "type": "node_drain", "node": "n0"}, {"t": 70, "type": "node_recover", "node": "n0"}]
    outcome = run_scene(scene_of({"runtime": 30}, {"runtime": 5, "submit": 6}, events=drain))

    assert job(outcome)["end"] == 30
    assert job(outcome, "j1")["start"] == 70


def test_a_cancelled_job_frees_its_devices_at_once():
    stop = [{"t": 12, "type": "cancel", "job": "j0"}]
    outcome = run_scene(scene_of({"devices": 8, "runtime": 100}, {"devices": 8, "submit": 1}, events=stop))

    assert told(outcome, "cancel", "start")[-2:] == [(12, "cancel", "j0"), (12, "start", "j1")]
    assert job(outcome)["state"] == "cancelled"


def test_cancelling_twice_or_too_late_changes_nothing():
    stops = [{"t": t, "type": "cancel", "job": "j0"} for t in (3, 5, 500)]

    assert told(run_scene(scene_of({}, events=stops)), "cancel") == [(3, "cancel", "j0")]


# -- planning


def test_a_promised_start_is_told_once_and_kept():
    outcome = run_scene(
        scene_of(
            {"devices": 6, "runtime": 40, "time_limit": 40},
            {"devices": 8, "submit": 1, "time_limit": 20},
            {"devices": 2, "submit": 2, "runtime": 30, "time_limit": 30},
            {"devices": 2, "submit": 3, "runtime": 60, "time_limit": 60},
        )
    )

    promised = [line for line in outcome.lines if line["event"] == "reserve" and line["job"] == "j1"]
    assert [line["expected_start"] for line in promised] == [40]
    assert starts(outcome) == {"j0": 0, "j2": 2, "j1": 40, "j3": 50}


def test_strict_order_lets_nobody_pass():
    outcome = run_scene(
        scene_of(
            {"devices": 6, "runtime": 40},
            {"devices": 8, "submit": 1},
            {"devices": 1, "submit": 2},
            policy={"backfill_depth": 0},
        )
    )

    assert starts(outcome) == {"j0": 0, "j1": 40, "j2": 50}


def test_with_an_interval_passes_come_at_its_multiples():
    outcome = run_scene(scene_of({"submit": 3}, {"submit": 20}, policy={"pass_interval": 10}))

    assert starts(outcome) == {"j0": 10, "j1": 20}


def test_a_reservation_keeps_strangers_out_and_lets_its_team_in():
    booking = {"name": "r", "start": 20, "end": 60, "nodes": ["n0"], "teams": ["x"]}
    outcome = run_scene(
        scene_of(
            {"devices": 8, "team": "y", "runtime": 30, "time_limit": 30},
            {"devices": 8, "team": "x", "runtime": 30, "time_limit": 30, "submit": 25, "reservation": "r"},
            reservations=[booking],
        )
    )

    assert starts(outcome) == {"j1": 25, "j0": 60}


def test_a_plan_that_breaks_a_rule_stops_the_simulation_loudly():
    with pytest.raises(BrokenPlan, match="device"):
        run_scene(scene_of({}), check=lambda *_: (Fault("device", 0, "is taken twice"),))


# -- the end, and the report


def test_until_stops_the_world_and_what_ends_then_still_ends():
    outcome = run_scene(scene_of({"runtime": 30}, {"runtime": 31}, {"submit": 30}, until=30))

    assert job(outcome)["state"] == "succeeded"
    assert job(outcome, "j1")["state"] == "running"
    assert job(outcome, "j2")["state"] == "queued"
    assert outcome.horizon == 30


def test_an_empty_scenario_ends_at_once():
    assert report.summary(run_scene({}))["jobs"] == {}


def test_fractions_share_a_device_and_say_what_they_hold_of_it():
    outcome = run_scene(scene_of({"devices": 0.25, "replicas": 6}, devices=2))

    placement = outcome.lines[-2]["placement"]
    assert placement == [
        {"node": "n0", "replicas": 4, "devices": [0], "share": 1},
        {"node": "n0", "replicas": 2, "devices": [1], "share": 0.5},
    ]


def test_a_job_without_devices_has_an_entry_with_none():
    outcome = run_scene(scene_of({"devices": 0}))

    assert outcome.lines[1]["placement"] == [{"node": "n0", "replicas": 1, "devices": [], "share": 1}]


def test_power_is_metered_by_domain_and_peaks_are_kept():
    facility = {
        "domains": [{"name": "site", "kind": "facility"}, {"name": "rack", "kind": "rack", "parent": "site"}],
        "nodes": [{"name": "n", "accelerator": "A", "devices": 2, "power": "rack", "idle_w": 100}],
        "overhead_fixed_w": 50,
        "overhead_k": 1.5,
    }
    outcome = run_scene(
        scene_of({"devices": 1, "power_w": 300, "runtime": 3600}, facility=facility, until=7200)
    )

    metrics = report.summary(outcome)["metrics"]
    # At work 100 + 300 + 40 W, at rest 100 + 40 + 40 W; the site's meter reads 50 + 1.5 x as much.
    assert metrics["peak_power_w"] == {"rack": 440, "site": 50 + 1.5 * 440}
    assert metrics["energy_wh"] == {"rack": 620, "site": 100 + 1.5 * 620}


def test_metrics_count_what_finished_or_timed_out():
    outcome = run_scene(
        scene_of(
            {"devices": 8, "runtime": 20},
            {"devices": 8, "runtime": 5, "submit": 1},
            {"devices": 8, "runtime": 100, "submit": 2},
            events=[{"t": 25, "type": "cancel", "job": "j2"}],
        )
    )

    metrics = report.summary(outcome)["metrics"]
    assert metrics["mean_wait"] == 9.5
    assert metrics["p95_wait"] == 19
    assert metrics["mean_bounded_slowdown"] == (1 + 24 / 10) / 2
    assert metrics["makespan"] == 25
    assert metrics["utilization"] == 1


def test_losses_tell_a_hole_from_a_plan_from_no_demand():
    # Two nodes with 4 free devices each: a gang of 6 on one node is wanted, and there are 8 devices in all.
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 10},
            {"devices": 6, "runtime": 10},
            {"devices": 6, "runtime": 10, "submit": 1},
            nodes=2,
            policy={"packing": True},
        )
    )

    losses = report.summary(outcome)["losses"]
    assert sum(losses.values()) == 16 * float(outcome.horizon)
    assert losses["productive"] == 160
    assert losses["fragmentation"] + losses["held"] > 0


def test_lost_work_is_rework_and_dead_nodes_are_failed():
    outcome = run_scene(scene_of({"devices": 8, "runtime": 50}, events=fail(30, back=40)))

    losses = report.summary(outcome)["losses"]
    assert (losses["rework"], losses["failed"], losses["productive"]) == (240, 80, 400)
    assert report.summary(outcome)["metrics"]["lost_device_hours"] == 240 / 3600


def test_a_missed_deadline_is_told_and_stops_nothing():
    outcome = run_scene(scene_of({"runtime": 30, "deadline": 20}, {"runtime": 30, "deadline": 30}))

    assert job(outcome)["deadline_missed"] is True
    assert job(outcome, "j1")["deadline_missed"] is False
    assert job(outcome)["state"] == "succeeded"


def test_exact_thirds_end_at_one_instant():
    # Nodes of speed 0.3: 10 s of work take 33.33.. s; three in a row end exactly at 100.
    nodes = [{"name": "n", "accelerator": "A", "devices": 8, "speed": 0.3}]
    outcome = run_scene(scene_of(*[{"devices": 8}] * 3, facility={"nodes": nodes}))

    assert outcome.horizon == Fraction(100)

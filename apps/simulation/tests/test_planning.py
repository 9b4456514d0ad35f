"""Pre-emption, elastic jobs, spreading and staging, in scenarios small enough to be worked out on paper."""

import json
from collections import Counter
from pathlib import Path

import pytest

from apps.simulation import report
from apps.simulation.tests.scenes import run_scene, scene_of


def told(outcome, event):
    return [line for line in outcome.lines if line["event"] == event]


def job(outcome, name):
    return report.summary(outcome)["jobs"][name]


def size_of(line):
    return sum(entry["replicas"] for entry in line["placement"])


SAVED = {"interval": 100, "cost": 0, "restart": 0}


# -- who gives way ----------------------------------------------------------------------------------------------------


def test_the_job_that_loses_least_work_gives_way():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 1000},
            {"devices": 4, "runtime": 1000, "checkpoint": SAVED},
            {"devices": 4, "runtime": 10, "submit": 450, "priority": 1},
        )
    )

    assert [(line["job"], line["for"], line["lost_s"]) for line in told(outcome, "preempt")] == [
        ("j1", {"job": "j2"}, 50)
    ]
    assert job(outcome, "j1")["end"] == 1060  # 50 lost, 10 waited
    assert job(outcome, "j1")["preemptions"] == 1


def test_no_more_jobs_give_way_than_must():
    small = [{"devices": 1, "runtime": 1000, "submit": t} for t in range(4)]
    outcome = run_scene(
        scene_of(
            *small,
            {"devices": 4, "runtime": 1000},
            {"devices": 5, "runtime": 10, "submit": 50, "priority": 1},
        )
    )

    # The large one alone frees four; one of the small ones, the youngest, makes it five.
    assert sorted(line["job"] for line in told(outcome, "preempt")) == ["j3", "j4"]


def test_of_equal_losses_the_lower_priority_goes_first():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 100, "priority": 1},
            {"devices": 4, "runtime": 100, "priority": 0},
            {"devices": 4, "runtime": 10, "submit": 20, "priority": 2},
        )
    )

    assert [line["job"] for line in told(outcome, "preempt")] == ["j1"]


def test_nobody_gives_way_for_a_job_that_would_still_wait():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 100, "preemptible": False},
            {"devices": 4, "runtime": 100},
            {"devices": 8, "runtime": 10, "submit": 20, "priority": 2},
        )
    )

    assert not told(outcome, "preempt")
    assert job(outcome, "j2")["start"] == 100


def test_an_idle_place_is_taken_before_anybody_is_asked():
    outcome = run_scene(
        scene_of(
            {"devices": 8, "runtime": 100},
            {"devices": 8, "runtime": 10, "submit": 20, "priority": 2},
            nodes=2,
        )
    )

    assert not told(outcome, "preempt")


def test_a_young_job_is_shielded():
    jobs = {"devices": 8, "runtime": 100}, {"devices": 8, "runtime": 10, "submit": 20, "priority": 2}

    shielded = run_scene(scene_of(*jobs, policy={"shield_s": 21}))
    asked = run_scene(scene_of(*jobs, policy={"shield_s": 20}))

    assert [line["t"] for line in told(shielded, "preempt")] == [21]
    assert [line["t"] for line in told(asked, "preempt")] == [20]


def test_a_gang_leaves_whole_and_counts_once():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "replicas": 4, "runtime": 100},
            {"devices": 4, "runtime": 10, "submit": 20, "priority": 2},
            nodes=2,
        )
    )

    assert report.summary(outcome)["metrics"]["preemptions"] == 1
    assert report.summary(outcome)["metrics"]["lost_device_hours"] == pytest.approx(16 * 20 / 3600)


TEAMS = [
    {"name": "all"},
    {"name": "a", "parent": "all", "quota": {"A": 4}},
    {"name": "b", "parent": "all", "quota": {"A": 4}},
]


def test_a_team_calls_in_what_it_lent_and_no_more():
    outcome = run_scene(
        scene_of(
            *[{"devices": 2, "runtime": 1000, "team": "a", "submit": t, "priority": 5} for t in range(4)],
            {"devices": 4, "runtime": 10, "team": "b", "submit": 100},
            {"devices": 2, "runtime": 10, "team": "b", "submit": 101},
            teams=TEAMS,
        )
    )

    # The two that borrow. The third job of b would have to borrow, too, and evicts nobody; when it need not any more,
    # it calls in what was lent in the same moment.
    assert sorted(line["job"] for line in told(outcome, "preempt") if line["t"] == 100) == ["j2", "j3"]
    assert [(line["t"], line["lost_s"]) for line in told(outcome, "preempt") if line["t"] > 100] == [(110, 0)]
    assert job(outcome, "j4")["start"] == 100
    assert job(outcome, "j5")["start"] == 110


def test_a_reclaim_takes_no_team_below_its_own():
    outcome = run_scene(
        scene_of(
            {"devices": 6, "runtime": 1000, "team": "a"},
            {"devices": 4, "runtime": 10, "team": "b", "submit": 100},
            teams=TEAMS,
        )
    )

    assert not told(outcome, "preempt")
    assert job(outcome, "j1")["start"] == 1000


def test_who_must_borrow_takes_nothing_from_a_team_within_its_own():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 1000, "team": "a"},
            {"devices": 4, "runtime": 1000, "team": "b"},
            {"devices": 2, "runtime": 10, "team": "b", "submit": 100, "priority": 9},
            teams=TEAMS,
        )
    )

    assert [line["job"] for line in told(outcome, "preempt")] == ["j1"]  # of its own team


# -- elastic jobs -----------------------------------------------------------------------------------------------------


def test_an_elastic_job_starts_as_large_as_it_can_and_grows_after_a_while():
    outcome = run_scene(
        scene_of(
            {"devices": 6, "runtime": 50},
            {"devices": 1, "replicas": {"min": 1, "max": 8}, "runtime": 100, "submit": 1},
            policy={"resize_dwell_s": 80},
        )
    )

    (start,) = [line for line in told(outcome, "start") if line["job"] == "j1"]
    (resize,) = told(outcome, "resize")
    assert (start["t"], size_of(start)) == (1, 2)
    assert (resize["t"], size_of(resize)) == (81, 8)
    # 80 s at a quarter of the pace, the other 80 s of work at full pace.
    assert job(outcome, "j1")["end"] == 161


def test_an_elastic_job_shrinks_before_anybody_leaves():
    outcome = run_scene(
        scene_of(
            {"devices": 1, "replicas": {"min": 2, "max": 4}, "runtime": 100},
            {"devices": 4, "runtime": 100},
            {"devices": 2, "runtime": 10, "submit": 20, "priority": 1},
            policy={"resize_dwell_s": 1000},
        )
    )

    assert not told(outcome, "preempt")
    (resize,) = told(outcome, "resize")
    assert (resize["t"], resize["job"], size_of(resize)) == (20, "j0", 2)
    assert job(outcome, "j0")["end"] == 180
    assert job(outcome, "j0")["lost_s"] == 0


def test_what_is_beyond_the_preferred_size_makes_room_for_equals():
    outcome = run_scene(
        scene_of(
            {"devices": 1, "replicas": {"min": 1, "max": 8, "preferred": 4}, "runtime": 1000},
            {"devices": 4, "runtime": 10, "submit": 50},
            policy={"resize_dwell_s": 10},
        )
    )

    assert [size_of(line) for line in told(outcome, "resize")][:2] == [8, 4]
    assert job(outcome, "j1")["start"] == 50


def test_declared_scaling_says_how_fast_a_size_is():
    scaling = [[1, 0.5], [2, 0.8], [4, 1]]
    outcome = run_scene(
        scene_of(
            {"devices": 6, "runtime": 1000},
            {"devices": 1, "replicas": {"min": 1, "max": 4}, "runtime": 80, "scaling": scaling},
        )
    )

    assert job(outcome, "j1")["end"] == 100


def test_a_resize_in_the_middle_of_a_checkpoint_loses_nothing():
    outcome = run_scene(
        scene_of(
            {
                "devices": 1,
                "replicas": {"min": 2, "max": 4},
                "runtime": 100,
                "checkpoint": {"interval": 18, "cost": 4, "restart": 0},
            },
            {"devices": 4, "runtime": 100},
            {"devices": 2, "runtime": 1000, "submit": 20, "priority": 1},
        )
    )
    # 18 of work, a checkpoint from 18 to 22, then 82 of work at half the pace: 164 s, with 9 checkpoints in between.
    assert job(outcome, "j0")["end"] == 22 + 164 + 9 * 4


def test_what_was_saved_before_a_resize_is_safe_from_what_comes_after():
    outcome = run_scene(
        scene_of(
            {
                "devices": 1,
                "replicas": {"min": 4, "max": 8},
                "runtime": 100,
                "checkpoint": {"interval": 20, "cost": 0},
            },
            {"devices": 4, "runtime": 50, "submit": 45, "priority": 1},
            {"devices": 8, "runtime": 5, "submit": 50, "priority": 2},
        )
    )
    # 40 saved at full size; the 5 after that and 2.5 at half size are lost, 7.5 s of running in all.
    assert job(outcome, "j0")["lost_s"] == 10
    assert job(outcome, "j0")["end"] == 55 + 2 * 60  # what is left, at half size
    assert report.summary(outcome)["losses"]["rework"] == 8 * 5 + 4 * 5 + 4 * 5  # j1 lost its five, too


# Four seconds to write a checkpoint, six to restart; no other checkpoint comes in the way.
BY_RESTART = {"interval": 1000, "cost": 4, "restart": 6, "on_resize": True}


def test_a_resize_by_checkpoint_and_restart_takes_just_these():
    outcome = run_scene(
        scene_of(
            {"devices": 1, "replicas": {"min": 2, "max": 4}, "runtime": 100, "checkpoint": BY_RESTART},
            {"devices": 4, "runtime": 100},
            {"devices": 2, "runtime": 1000, "submit": 20, "priority": 1},
        )
    )
    # 20 of work, the change of size, 80 of work at half the pace. At 100 there is room again: to grow would save 45 of
    # 90 seconds and take ten, but the dwell time of five minutes keeps it from that.
    assert [(line["t"], line["job"], size_of(line)) for line in told(outcome, "resize")] == [(20, "j0", 2)]
    losses = report.summary(outcome)["losses"]
    assert job(outcome, "j0")["end"] == 20 + 10 + 2 * 80
    assert (losses["starting"], losses["checkpoint"], losses["rework"]) == (2 * 6, 2 * 4, 0)
    assert job(outcome, "j0")["lost_s"] == 0


@pytest.mark.parametrize(
    ("cost", "restart", "end"),
    [(4, 6, 81 + 10 + 80), (100, 100, 81 + 200 + 80), (119, 120, 81 + 239 + 80), (120, 120, 401)],
)
def test_a_job_grows_only_if_it_saves_more_time_than_that_takes(cost, restart, end):
    saving = {"interval": 5000, "cost": cost, "restart": restart, "on_resize": True}
    outcome = run_scene(
        scene_of(
            {"devices": 6, "runtime": 50},
            {
                "devices": 1,
                "replicas": {"min": 1, "max": 8},
                "runtime": 100,
                "submit": 1,
                "checkpoint": saving,
            },
            policy={"resize_dwell_s": 80},
        )
    )
    # After 80 s at a quarter of the pace 320 s are left, or 80 s at full pace.
    assert job(outcome, "j1")["end"] == end


@pytest.mark.parametrize(("cut_at", "lost"), [(25, 25), (30, 0), (36, 6)])
def test_until_a_resize_is_over_what_it_saves_is_not_safe(cut_at, lost):
    outcome = run_scene(
        scene_of(
            {"devices": 1, "replicas": {"min": 2, "max": 4}, "runtime": 100, "checkpoint": BY_RESTART},
            {"devices": 4, "runtime": 1000, "priority": 5},
            {"devices": 2, "runtime": 1000, "submit": 20, "priority": 1},
            {"devices": 2, "runtime": 10, "submit": cut_at, "priority": 2, "name": "late"},
            policy={"resize_dwell_s": 1000},
        )
    )
    (line,) = [line for line in told(outcome, "preempt") if line["job"] == "j0"]
    assert (line["t"], line["lost_s"]) == (cut_at, lost)


def test_who_changes_size_at_no_cost_makes_room_before_who_has_to_restart():
    outcome = run_scene(
        scene_of(
            {"devices": 1, "replicas": {"min": 2, "max": 4}, "runtime": 1000, "checkpoint": BY_RESTART},
            {"devices": 1, "replicas": {"min": 2, "max": 4}, "runtime": 1000},
            {"devices": 2, "runtime": 10, "submit": 20, "priority": 1},
            policy={"resize_dwell_s": 5000},
        )
    )
    assert [line["job"] for line in told(outcome, "resize")] == ["j1"]


# -- spreading --------------------------------------------------------------------------------------------------------

RACKS = {
    "domains": [{"name": f"rack{i}", "kind": "rack"} for i in range(3)],
    "nodes": [
        {"name": f"n{i}", "accelerator": "A", "devices": 4, "power": f"rack{i // 2}"} for i in range(6)
    ],
}


def racks_of(line):
    return Counter(
        int(entry["node"][1:]) // 2 for entry in line["placement"] for _ in range(entry["replicas"])
    )


def test_no_domain_holds_more_replicas_than_allowed():
    spread = {"over": "rack", "max_per_domain": 2}
    outcome = run_scene(
        scene_of({"replicas": 5, "spread": spread}, {"replicas": 7, "spread": spread}, facility=RACKS)
    )

    assert max(racks_of(told(outcome, "start")[0]).values()) == 2
    assert job(outcome, "j1")["state"] == "rejected"
    assert job(outcome, "j1")["code"] == "spread"


def test_replicas_are_spread_evenly_within_the_skew():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "replicas": 2, "runtime": 100, "topology": {"required": "scale_up"}},
            {"replicas": 7, "spread": {"over": "rack", "max_skew": 1}},
            facility={**RACKS, "nodes": [{**node, "devices": 8} for node in RACKS["nodes"]]},
        )
    )

    assert sorted(racks_of(told(outcome, "start")[1]).values()) == [2, 2, 3]


def test_a_skew_that_a_full_rack_forbids_waits_and_says_so():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "replicas": 2, "runtime": 50},
            {"devices": 1, "replicas": 6, "submit": 5, "spread": {"over": "rack", "max_skew": 1}},
            facility=RACKS,
            until=20,
        )
    )

    assert job(outcome, "j1")["code"] == "spread"


# -- data -------------------------------------------------------------------------------------------------------------

STORES = {
    "domains": [{"name": f"s{i}", "kind": "storage"} for i in range(2)],
    "nodes": [{"name": f"n{i}", "accelerator": "A", "devices": 4, "storage": f"s{i}"} for i in range(2)],
    "staging_gib_per_s": 2,
}
DATA = [{"name": "d", "size_gib": 400, "at": ["s0"]}]


def test_a_job_goes_where_its_data_lies():
    outcome = run_scene(scene_of({"devices": 4, "datasets": ["d"]}, facility=STORES, datasets=DATA))

    assert told(outcome, "start")[0]["placement"][0]["node"] == "n0"
    assert not told(outcome, "stage")


def test_data_is_sent_ahead_and_devices_do_not_wait_for_it():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 1000, "datasets": ["d"]},
            {"devices": 4, "runtime": 10, "datasets": ["d"], "submit": 5},
            {"devices": 4, "runtime": 150, "time_limit": 150, "submit": 6},
            facility=STORES,
            datasets=DATA,
        )
    )

    assert [(line["t"], line["to"], line["until"]) for line in told(outcome, "stage")] == [(5, "s1", 205)]
    assert job(outcome, "j2")["start"] == 6  # it is over before the data is there
    assert job(outcome, "j1")["start"] == 156  # less than the 60 s that devices may wait
    assert job(outcome, "j1")["end"] == 215
    assert (
        report.summary(outcome)["losses"]["staging"] == 4 * (205 - 156) + 4
    )  # and one second before j2 came


def test_a_short_wait_for_data_holds_the_devices():
    outcome = run_scene(
        scene_of(
            {"devices": 4, "runtime": 1000, "datasets": ["d"]},
            {"devices": 4, "runtime": 10, "time_limit": 12, "datasets": ["d"], "submit": 5},
            facility=STORES,
            datasets=[{"name": "d", "size_gib": 100, "at": ["s0"]}],
        )
    )

    assert (job(outcome, "j1")["start"], job(outcome, "j1")["end"]) == (5, 65)
    assert report.summary(outcome)["losses"]["staging"] == 4 * 50


# -- a better place ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_wait", "start"), [(0, 0), (30, 30), (300, 50)])
def test_a_job_waits_for_a_better_place_as_long_as_it_said(max_wait, start):
    facility = {
        "domains": [{"name": f"leaf{i}", "kind": "leaf"} for i in range(2)],
        "nodes": [
            {"name": f"n{i}", "accelerator": "A", "devices": 4, "leaf": f"leaf{i // 2}"} for i in range(4)
        ],
    }
    half = {"devices": 4, "runtime": 50}
    outcome = run_scene(
        scene_of(
            *[{**half, "spread": {"over": "leaf", "max_per_domain": 1}, "replicas": 2}],
            {
                "devices": 4,
                "replicas": 2,
                "topology": {"preferred": "leaf", "max_wait": max_wait},
            },
            facility=facility,
        )
    )

    assert job(outcome, "j1")["start"] == start


def test_the_example_in_the_manual_is_what_it_says():
    text = (Path(__file__).parents[3] / "docs" / "scenario.md").read_text()
    scene = json.loads(text.split("```json")[1].split("```")[0])
    outcome = run_scene(scene)

    assert job(outcome, "train")["start"] == 500  # when its data is there
    assert job(outcome, "urgent")["wait"] == 0  # on what the other gives up
    assert [size_of(line) for line in told(outcome, "resize")] == [16, 8, 16]


def test_a_promise_behind_an_elastic_job_counts_on_its_declared_scaling():
    outcome = run_scene(
        scene_of(
            {"devices": 8, "runtime": 10, "time_limit": 10},
            {
                "devices": 1,
                "replicas": {"min": 6, "max": 8},
                "runtime": 12,
                "scaling": [[6, 1.5], [8, 2]],
                "submit": 1,
            },
            {"devices": 8, "runtime": 10, "time_limit": 10, "submit": 2},
            policy={"resize_dwell_s": 1000},
        )
    )

    first = {line["job"]: line["expected_start"] for line in reversed(told(outcome, "reserve"))}
    assert first == {"j1": 10, "j2": 18}  # at six replicas it needs 8 s
    assert job(outcome, "j2")["start"] == 16  # it got all eight


@pytest.mark.parametrize("pass_interval", [0, 4])
def test_a_promise_that_falls_due_is_kept_though_slower_nodes_would_take_longer(pass_interval):
    facility = {
        "domains": [{"name": "leaf", "kind": "leaf"}],
        "nodes": [
            {"name": "fast", "accelerator": "A", "devices": 8, "leaf": "leaf"},
            {"name": "slow", "accelerator": "A", "devices": 8, "speed": 0.5},
        ],
    }
    inside = {"devices": 1, "replicas": 6, "runtime": 5, "topology": {"required": "leaf"}}
    outcome = run_scene(
        scene_of(
            *[{**inside, "submit": t} for t in (0, 1, 2, 3)],
            facility=facility,
            policy={"backfill_depth": "all", "pass_interval": pass_interval},
        )
    )

    starts = [job(outcome, f"j{i}")["start"] for i in range(4)]
    assert starts == ([0, 8, 16, 24] if pass_interval else [0, 5, 10, 15])


# -- the shortest first -----------------------------------------------------------------------------------------------

SHORTEST = {"order": "shortest", "backfill_depth": 1}


def order_of_starts(*jobs, **policy):
    outcome = run_scene(scene_of(*jobs, policy={**SHORTEST, **policy}))
    return [line["job"] for line in told(outcome, "start")]


def test_the_shorter_declared_limit_goes_first_while_nothing_is_known_of_a_user():
    busy = {"devices": 8, "runtime": 50}
    long, short = (
        {"devices": 8, "runtime": 10, "time_limit": limit, "submit": at, "user": "ada"}
        for limit, at in ((900, 1), (60, 2))
    )

    assert order_of_starts(busy, long, short) == ["j0", "j2", "j1"]
    assert order_of_starts(busy, long, short, order="priority") == ["j0", "j1", "j2"]


def test_what_a_user_ran_last_counts_for_more_than_what_they_declare():
    # Twice ada's jobs ended after 5 s of the 900 s that they declare; ben's run as long as he says.
    ran = {"devices": 8, "runtime": 5, "time_limit": 900, "user": "ada"}
    busy = {"devices": 8, "runtime": 100, "submit": 5}
    ben = {"devices": 8, "runtime": 60, "time_limit": 60, "user": "ben", "submit": 20}
    ada = {**ran, "submit": 30}

    assert order_of_starts(ran, ran, busy, ben, ada)[-2:] == ["j4", "j3"]


def test_who_has_waited_starving_s_is_passed_by_nobody_and_the_wide_sooner():
    busy = {"devices": 8, "runtime": 100}
    long = {"devices": 8, "runtime": 10, "time_limit": 900, "submit": 0}
    short = {"devices": 8, "runtime": 10, "time_limit": 60, "submit": 50}

    assert order_of_starts(busy, long, short, starving_s=101) == ["j0", "j2", "j1"]
    assert order_of_starts(busy, long, short, starving_s=100) == ["j0", "j1", "j2"]
    assert order_of_starts(busy, long, short, starving_s=450, starving_by_width=0.8) == ["j0", "j1", "j2"]

"""The schedule hangs on what a scenario says, not on its names or the order of its rows."""

import json
from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.simulation import report
from apps.simulation.canonical import canonical_order
from apps.simulation.scenario import read_scenario
from apps.simulation.tests.scenes import renamed, run_scene, scene_of, scenes, shuffled

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def history(scene: dict[str, Any]) -> list[tuple[object, ...]]:
    """What happened, names left out: rows that differ in nothing but their name may change places."""
    lines = run_scene(scene).lines
    place: dict[str, int] = defaultdict(lambda: len(place))
    told = []
    for line in lines:
        placed = [
            (entry["replicas"], tuple(entry["devices"]), entry["share"], place[entry["node"]])
            for entry in line.get("placement", ())
        ]
        if line["event"] == "stage":
            told.append((line["t"], "stage", place[line["dataset"]], place[line["to"]], line["until"]))
            continue
        told.append((line["t"], line["event"], place[line["job"]], tuple(placed), line.get("lost_s")))
    return told


@SLOW
@given(scenes(), st.integers(0, 9))
def test_shuffled_rows_give_the_same_schedule(scene, seed):
    assert history(shuffled(scene, seed)) == history(scene)


@SLOW
@given(scenes(), st.integers(0, 9))
def test_other_names_give_the_same_schedule(scene, seed):
    other, _ = renamed(scene, seed)

    assert history(other) == history(scene)


@SLOW
@given(scenes(max_jobs=6))
def test_the_same_file_gives_the_same_bytes(scene):
    one, other = run_scene(scene), run_scene(scene)

    assert report.events_text(one) == report.events_text(other)
    assert report.summary_text(one) == report.summary_text(other)


def test_a_scene_without_equal_rows_keeps_its_placement_under_every_shuffle():
    scene = scene_of({"replicas": 2}, {"runtime": 20}, {"runtime": 30, "devices": 4}, nodes=1)
    scene["facility"]["nodes"] = [
        {"name": f"n{i}", "accelerator": "A", "devices": 4, "idle_w": i} for i in range(3)
    ]
    wanted = run_scene(scene).lines

    assert all(run_scene(shuffled(scene, seed)).lines == wanted for seed in range(10))


def test_rows_with_a_count_and_single_rows_are_the_same_thing():
    counted = scene_of({"devices": 8, "replicas": 3})
    counted["facility"]["nodes"] = [{"name": "n", "count": 4, "accelerator": "A", "devices": 8}]
    single = scene_of({"devices": 8, "replicas": 3}, nodes=4)

    assert history(counted) == history(single)


def test_symmetric_racks_are_ordered_alike_whatever_their_names():
    # Four racks with two nodes each: no colour tells them apart, only the labelling of the whole graph does.
    racks = [{"name": f"r{i}", "kind": "rack", "parent": "h"} for i in range(4)]
    nodes = [
        {"name": f"n{i}", "accelerator": "A", "devices": 8, "power": f"r{i // 2}", "leaf": f"l{i % 4}"}
        for i in range(8)
    ]
    leaves = [{"name": f"l{i}", "kind": "leaf"} for i in range(4)]
    scene = scene_of({"replicas": 4, "devices": 8, "topology": {"preferred": "leaf"}}, {"devices": 8})
    scene["facility"].update(domains=[{"name": "h", "kind": "hall"}, *racks, *leaves], nodes=nodes)

    assert all(history(renamed(shuffled(scene, seed), seed)[0]) == history(scene) for seed in range(8))


def test_the_order_of_two_equal_jobs_is_the_order_of_their_rows():
    scenario = read_scenario(json.dumps(scene_of({}, {}, {"runtime": 20})).encode())

    assert canonical_order(scenario).jobs == (2, 0, 1)

"""What a what-if may change, and what it says of a change that cannot be."""

import pytest

from apps.simulation.changes import Changed, read_changes
from apps.simulation.scenario import ScenarioError, check_scenario
from apps.simulation.tests.scenes import TYPES

SCENE = {
    "facility": {
        "accelerator_types": TYPES,
        "domains": [
            {"name": "hall", "kind": "hall", "power_limit_w": 9000},
            {"name": "r1", "kind": "rack", "parent": "hall", "power_limit_w": 4000},
            {"name": "r2", "kind": "rack", "parent": "hall"},
            {"name": "leaf", "kind": "leaf"},
            {"name": "box", "kind": "scale_up", "parent": "leaf"},
        ],
        "nodes": [
            {"name": "a", "accelerator": "A", "devices": 4, "power": "r1", "leaf": "leaf"},
            {"name": "b", "count": 2, "accelerator": "B", "devices": 8, "power": "r1", "scale_up": "box"},
            {"name": "c", "accelerator": "A", "devices": 4, "power": "r2"},
        ],
    },
    "teams": [
        {"name": "top"},
        {"name": "ours", "parent": "top", "quota": {"A": 4, "B": 8}},
        {"name": "theirs", "parent": "top", "quota": {"A": 2}},
    ],
    "jobs": [{"name": "j", "team": "ours", "runtime": 10}],
}


def change(*changes):
    """The scene with these changes; what comes out is a scenario without fault."""
    changed = Changed(SCENE)
    changed.carry_out(read_changes(changes))
    check_scenario(changed.scenario)
    return changed.scenario


def faults(*changes):
    changed = Changed(SCENE)
    try:
        changed.carry_out(read_changes(changes))
    except ScenarioError as error:
        return [str(fault) for fault in error.faults]
    with pytest.raises(ScenarioError) as refused:
        check_scenario(changed.scenario)
    return [str(fault) for fault in changed.blame(refused.value).faults]


def test_the_scenario_it_begins_with_stays_as_it_is():
    before = repr(SCENE)
    change({"type": "lose", "domain": "hall"}, {"type": "policy", "policy": {"shield_s": 5}})
    assert repr(SCENE) == before


def test_a_rack_is_copied_with_its_limit_and_its_nodes():
    facility = change({"type": "add_rack", "name": "new", "like": "r1"})["facility"]
    assert facility["domains"][-1] == {
        "name": "new",
        "kind": "rack",
        "parent": "hall",
        "power_limit_w": 4000,
    }
    new = [row for row in facility["nodes"] if row["power"] == "new"]
    assert [(row["name"], row["accelerator"], row["leaf"]) for row in new] == [
        ("new-n01", "A", "leaf"),
        ("new-n02", "B", "leaf"),
        ("new-n03", "B", "leaf"),
    ]
    assert "scale_up" not in new[1]


def test_several_racks_come_at_their_time():
    scene = change({"type": "add_rack", "name": "new", "like": "r2", "count": 2, "t": 60})
    assert [row["name"] for row in scene["facility"]["nodes"][-2:]] == ["new-1-n01", "new-2-n01"]
    assert scene["events"][:2] == [
        {"t": 0, "type": "node_drain", "node": "new-1-n01"},
        {"t": 60, "type": "node_recover", "node": "new-1-n01"},
    ]


def test_nodes_are_added_as_they_are_written():
    node = {"name": "d", "count": 2, "accelerator": "A", "devices": 2, "power": "r3"}
    rack = {"name": "r3", "kind": "rack", "parent": "hall"}
    scene = change({"type": "add_nodes", "nodes": [node], "domains": [rack], "t": 5})
    assert scene["facility"]["nodes"][-1] == node
    assert {event["node"] for event in scene["events"]} == {"d-0001", "d-0002"}


@pytest.mark.parametrize(
    ("domain", "names"),
    [
        ("hall", ["a", "b-0001", "b-0002", "c"]),
        ("r2", ["c"]),
        ("leaf", ["a", "b-0001", "b-0002"]),
        ("box", ["b-0001", "b-0002"]),
    ],
)
def test_what_hangs_below_a_domain_of_any_tree_is_lost_with_it(domain, names):
    events = change({"type": "lose", "domain": domain, "t": 7})["events"]
    assert events == [{"t": 7, "type": "node_fail", "node": name} for name in names]


def test_nodes_are_drained_and_come_back():
    events = change({"type": "drain", "nodes": ["a"], "t": 7, "until": 9})["events"]
    assert events == [
        {"t": 7, "type": "node_drain", "node": "a"},
        {"t": 9, "type": "node_recover", "node": "a"},
    ]


def test_power_is_cut_and_given_back_as_it_was():
    events = change(
        {"type": "power_limit", "domain": "hall", "power_limit_w": 5000, "t": 10},
        {"type": "power_limit", "domain": "hall", "power_limit_w": 1000, "t": 20, "until": 30},
        {"type": "power_limit", "domain": "r2", "power_limit_w": 500, "until": 5},
        {"type": "power_limit", "domain": "r1", "power_limit_w": None},
    )["events"]
    assert [(e["domain"], e["t"], e["power_limit_w"]) for e in events] == [
        ("hall", 10, 5000),
        ("hall", 20, 1000),
        ("hall", 30, 5000),
        ("r2", 0, 500),
        ("r2", 5, None),
        ("r1", 0, None),
    ]


def test_types_that_are_not_named_keep_their_quota():
    events = change(
        {"type": "quota", "team": "ours", "quota": {"A": 0}, "t": 3},
        {"type": "quota", "team": "ours", "quota": {"B": 1}, "t": 5},
    )["events"]
    assert [event["quota"] for event in events] == [{"A": 0, "B": 8}, {"A": 0, "B": 1}]


def test_jobs_are_added_as_often_as_asked():
    scene = change({"type": "add_jobs", "jobs": [{"name": "n", "team": "ours", "runtime": 5}], "count": 2})
    assert [row["name"] for row in scene["jobs"]] == ["j", "n-1", "n-2"]


def test_of_the_policy_only_what_is_named_changes():
    scene = change(
        {"type": "policy", "policy": {"shield_s": 5}}, {"type": "policy", "policy": {"packing": False}}
    )
    assert scene["policy"] == {"shield_s": 5, "packing": False}


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        ("no object", "changes[0]: must be an object"),
        ({}, "changes[0].type: is required"),
        ({"type": "add_rack", "name": "x", "like": "r9"}, "changes[0].like: no domain is named 'r9'"),
        (
            {"type": "add_rack", "name": "x", "like": "hall"},
            "changes[0].like: no node hangs on 'hall' itself",
        ),
        ({"type": "add_rack", "name": "r2", "like": "r1"}, 'changes[0].name.name: "r2" is used twice'),
        ({"type": "lose"}, "changes[0]: takes exactly one of domain and nodes"),
        ({"type": "lose", "domain": "x"}, "changes[0].domain: no domain is named 'x'"),
        ({"type": "drain", "nodes": ["a", "x"]}, "changes[0].nodes[1]: no node is named 'x'"),
        ({"type": "lose", "domain": "hall", "t": 5, "until": 5}, "changes[0].until: must be after t"),
        ({"type": "power_limit", "domain": "hall"}, "changes[0].power_limit_w: is required"),
        (
            {"type": "power_limit", "domain": "x", "power_limit_w": 1},
            "changes[0].domain: no domain is named 'x'",
        ),
        ({"type": "quota", "team": "x", "quota": {}}, "changes[0].team: no team is named 'x'"),
        (
            {"type": "quota", "team": "ours", "quota": {"Z": 1}},
            'changes[0].quota.Z: no accelerator type is named "Z"',
        ),
        (
            {"type": "add_jobs", "jobs": [{"name": "n", "runtime": 1, "team": "x"}]},
            'changes[0].jobs[0].team: no team is named "x"',
        ),
        ({"type": "add_jobs", "jobs": [{"name": "n"}]}, "changes[0].jobs[0].runtime: is required"),
        ({"type": "policy", "policy": {"colour": 1}}, "changes[0].policy.colour: is not a known field"),
        (
            {"type": "events", "events": [{"t": 1, "type": "node_fail", "node": "x"}]},
            'changes[0].events[0].node: no node is named "x"',
        ),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_its_path(made, fault):
    assert faults(made) == [fault]


@pytest.mark.parametrize("made", [{"type": "x"}, {"type": 3}, {"type": "events", "events": [{"type": "x"}]}])
def test_a_change_of_no_known_type_is_told_which_there_are(made):
    (fault,) = faults(made)
    assert "must be one of" in fault

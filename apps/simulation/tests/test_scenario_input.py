"""A scenario file that is wrong is refused, and every fault names its place."""

import json

import pytest

from apps.simulation.scenario import ScenarioError, read_scenario
from apps.simulation.tests.scenes import scene_of


def faults(raw) -> list[str]:
    raw = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    with pytest.raises(ScenarioError) as refused:
        read_scenario(raw)
    return [str(fault) for fault in refused.value.faults]


def paths(raw) -> list[str]:
    return [fault.partition(":")[0] for fault in faults(raw)]


JOB_FAULTS = {
    "unknown": ({"colour": "red"}, "jobs[0].colour"),
    "text for a number": ({"runtime": "10"}, "jobs[0].runtime"),
    "true for a number": ({"runtime": True}, "jobs[0].runtime"),
    "true for a count": ({"replicas": True}, "jobs[0].replicas"),
    "a float for a count": ({"replicas": 4.0}, "jobs[0].replicas"),
    "null": ({"deadline": None}, "jobs[0].deadline"),
    "zero runtime": ({"runtime": 0}, "jobs[0].runtime"),
    "negative": ({"submit": -1}, "jobs[0].submit"),
    "zero replicas": ({"replicas": 0}, "jobs[0].replicas"),
    "huge": ({"runtime": 1e300}, "jobs[0].runtime"),
    "a number beyond floats": ({"runtime": 10**400}, "jobs[0].runtime"),
    "half a device over one": ({"devices": 1.5}, "jobs[0].devices"),
    "min over max": ({"replicas": {"min": 3, "max": 2}}, "jobs[0].replicas"),
    "flexibility": ({"flexibility": 5}, "jobs[0].flexibility"),
    "a list for a name": ({"team": ["a"]}, "jobs[0].team"),
    "odd unicode": ({"user": "a\u202eb"}, "jobs[0].user"),
    "half a surrogate": ({"user": "\ud800"}, "jobs[0].user"),
    "over-long": ({"user": "u" * 10_000}, "jobs[0].user"),
    "empty": ({"name": ""}, "jobs[0].name"),
    "interval": ({"checkpoint": {"interval": 0}}, "jobs[0].checkpoint.interval"),
    "topology": ({"topology": {"required": "rack"}}, "jobs[0].topology.required"),
    "unknown type": ({"accelerators": ["Z"]}, "jobs[0].accelerators[0]"),
    "unknown dependency": ({"after": ["nobody"]}, "jobs[0].after[0]"),
    "unknown reservation": ({"reservation": "r"}, "jobs[0].reservation"),
    "unknown dataset": ({"datasets": ["d"]}, "jobs[0].datasets[0]"),
    "itself": ({"after": ["j0"]}, "jobs[0].after"),
}


@pytest.mark.parametrize(("job", "path"), JOB_FAULTS.values(), ids=JOB_FAULTS)
def test_a_fault_of_a_job_names_its_path(job, path):
    found = paths(scene_of(job))

    assert len(found) == 1
    assert found[0].startswith(path)


REQUIRED = {
    "job name": ({"jobs": [{"runtime": 1}]}, "jobs[0].name"),
    "job runtime": ({"jobs": [{"name": "j"}]}, "jobs[0].runtime"),
    "tdp": ({"facility": {"accelerator_types": [{"name": "A"}]}}, "facility.accelerator_types[0].tdp_w"),
    "kind": ({"facility": {"domains": [{"name": "d"}]}}, "facility.domains[0].kind"),
    "size": ({"datasets": [{"name": "d"}]}, "datasets[0].size_gib"),
    "end": ({"reservations": [{"name": "r", "start": 1}]}, "reservations[0].end"),
    "t": ({"events": [{"type": "cancel", "job": "j"}]}, "events[0].t"),
    "type": ({"events": [{"t": 1}]}, "events[0].type"),
}


@pytest.mark.parametrize(("scene", "path"), REQUIRED.values(), ids=REQUIRED)
def test_what_is_required_is_asked_for(scene, path):
    assert path in paths(scene)


FACILITY_FAULTS = {
    "leaf that is a rack": (
        {"domains": [{"name": "r", "kind": "rack"}], "nodes": [{"leaf": "r"}]},
        "facility.nodes[0].leaf",
    ),
    "power that is a leaf": (
        {"domains": [{"name": "l", "kind": "leaf"}], "nodes": [{"power": "l"}]},
        "facility.nodes[0].power",
    ),
    "unknown type": ({"nodes": [{"accelerator": "Z"}]}, "facility.nodes[0].accelerator"),
    "name used twice": ({"nodes": [{}, {}]}, "facility.nodes[1].name"),
    "name used twice after counting": (
        {"nodes": [{"name": "n", "count": 2}, {"name": "n-0002"}]},
        "facility.nodes[1].name",
    ),
    "no devices": ({"nodes": [{"devices": 0}]}, "facility.nodes[0].devices"),
    "falling curve": (
        {"accelerator_types": [{"name": "A", "tdp_w": 1, "power_curve": [[0.5, 0.9], [0.7, 0.8], [1, 1]]}]},
        "facility.accelerator_types[0].power_curve",
    ),
    "curve that ends early": (
        {"accelerator_types": [{"name": "A", "tdp_w": 1, "power_curve": [[0.5, 0.9]]}]},
        "facility.accelerator_types[0].power_curve",
    ),
    "cycle": (
        {
            "domains": [
                {"name": "a", "kind": "hall", "parent": "b"},
                {"name": "b", "kind": "hall", "parent": "a"},
            ]
        },
        "facility.domains[0].parent",
    ),
    "upside down": (
        {"domains": [{"name": "a", "kind": "rack"}, {"name": "b", "kind": "hall", "parent": "a"}]},
        "facility.domains[1].parent",
    ),
    "negative overhead": ({"overhead_fixed_w": -1}, "facility.overhead_fixed_w"),
    "unknown field": ({"colour": 1}, "facility.colour"),
}


@pytest.mark.parametrize(("facility", "path"), FACILITY_FAULTS.values(), ids=FACILITY_FAULTS)
def test_a_fault_of_the_facility_names_its_path(facility, path):
    plain = {"name": "n", "accelerator": "A", "devices": 1}
    whole = {"accelerator_types": [{"name": "A", "tdp_w": 1}], **facility}
    whole["nodes"] = [{**plain, **node} for node in facility.get("nodes", ())]

    assert path in paths({"facility": whole})


OTHER_FAULTS = {
    "arrives nowhere": (
        {"datasets": [{"name": "d", "size_gib": 1, "arriving": {"s": 1}}]},
        "datasets[0].arriving.s",
    ),
    "empty window": (
        {"reservations": [{"name": "r", "start": 5, "end": 5, "nodes": ["n0"]}]},
        "reservations[0]",
    ),
    "nothing reserved": ({"reservations": [{"name": "r", "start": 1, "end": 5}]}, "reservations[0]"),
    "team cycle": (
        {"teams": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]},
        "teams[0].parent",
    ),
    "quota of an unknown type": ({"teams": [{"name": "a", "quota": {"Z": 1}}]}, "teams[0].quota.Z"),
    "job without team": ({"teams": [{"name": "a"}]}, "jobs[0].team"),
    "event on an unknown node": ({"events": [{"t": 1, "type": "node_fail", "node": "x"}]}, "events[0].node"),
    "event of an unknown type": ({"events": [{"t": 1, "type": "explode"}]}, "events[0].type"),
    "depth": ({"policy": {"backfill_depth": "some"}}, "policy.backfill_depth"),
    "negative until": ({"until": -1}, "until"),
    "two targets": (
        {
            "facility": {"domains": [{"name": "f", "kind": "facility"}]},
            "events": [
                {"t": 5, "type": "demand_response", "name": "d", "domain": "f", "start": 5, "duration": 1}
            ],
        },
        "events[0]",
    ),
}


@pytest.mark.parametrize(("more", "path"), OTHER_FAULTS.values(), ids=OTHER_FAULTS)
def test_a_fault_elsewhere_names_its_path(more, path):
    assert path in paths(scene_of({}, **more))


UNREADABLE = {
    "nothing": b"",
    "junk behind": b"{} x",
    "not an object": b"[]",
    "not text": b"\xff",
    "nested without end": b"[" * 100_000,
    "a number without end": b'{"until": ' + b"1" * 5_000 + b"}",
}


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_not_json_is_one_fault(raw):
    assert len(faults(raw)) == 1


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_no_numbers_are_refused(word):
    raw = b'{"jobs": [{"name": "a", "runtime": %s}]}' % word.encode()

    assert paths(raw) == ["jobs[0].runtime"]


def test_a_key_given_twice_is_refused():
    assert faults(b'{"jobs": [{"name": "a", "runtime": 1, "runtime": 2}]}') == [
        "jobs[0].runtime: is given twice"
    ]


def test_all_faults_are_told_at_once():
    scene = scene_of({"runtime": -1}, {"colour": 1}, {"after": ["x"]}, policy={"order": "age"}, until="soon")

    assert sorted(paths(scene)) == [
        "jobs[0].runtime",
        "jobs[1].colour",
        "jobs[2].after[0]",
        "policy.order",
        "until",
    ]


def test_a_cycle_of_dependencies_names_each_job_on_it():
    scene = scene_of({"after": ["j1"]}, {"after": ["j2"]}, {"after": ["j0"]}, {"after": ["j0"]})

    assert paths(scene) == ["jobs[0].after", "jobs[1].after", "jobs[2].after"]


def test_parent_and_limit_alone_may_be_null():
    scene = scene_of(
        facility={"domains": [{"name": "f", "kind": "facility", "parent": None, "power_limit_w": None}]}
    )
    scene["events"] = [{"t": 1, "type": "set_power_limit", "domain": "f", "power_limit_w": None}]

    assert read_scenario(json.dumps(scene).encode()).domains[0].power_limit_w is None

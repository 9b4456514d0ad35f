"""Every field of a job against every kind of bad value; the fields come from the models, so none is forgotten."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from apps.core.api.parsing import BadJSON, loads_strict
from apps.jobs import spec
from apps.jobs.spec import (
    Array,
    Checkpoint,
    Group,
    JobRequest,
    ReplicaRange,
    ScenarioJob,
    Spread,
    Topology,
    faults_of,
    shape_key,
)

Fault = dict[str, str]

# The least that each model takes, and a right value of each field: a new field fails here until it is given one.
LEAST: dict[type[BaseModel], dict[str, Any]] = {
    JobRequest: {"name": "train", "team": "vision"},
    ScenarioJob: {"name": "train", "runtime": 60},
    Group: {"name": "workers"},
    ReplicaRange: {"min": 1, "max": 8},
    Topology: {"required": "leaf"},
    Spread: {"over": "rack", "max_skew": 1},
    Checkpoint: {"interval": 600},
    Array: {"size": 4},
}
RIGHT: dict[str, Any] = {
    "replicas": {"min": 1, "max": 4, "preferred": 2},
    "devices": 8,
    "cpus": 4.5,
    "memory_gib": 64,
    "accelerators": ["H100", "A100"],
    "min_memory_gib": 40,
    "topology": {"required": "leaf"},
    "spread": {"over": "rack", "max_per_domain": 2},
    "power_w": 500,
    "peak_w": 700,
    "name": "train",
    "team": "vision",
    "user": "ada",
    "priority": -3,
    "preemptible": False,
    "runtime": 3600,
    "time_limit": 7200,
    "checkpoint": {"interval": 600, "cost": 20, "restart": 60},
    "flexibility": 2,
    "datasets": ["imagenet"],
    "reservation": "friday",
    "submit": 0,
    "command": ["python", "train.py"],
    "script": "#!/bin/sh\ntrue",
    "env": {"SEED": "1"},
    "workdir": "/tmp",
    "image": "registry/trainer:1",
    "cluster": "local",
    "held": True,
    "array": {"size": 3, "max_running": 1},
    "grace_s": 0,
    "min": 1,
    "max": 8,
    "preferred": 4,
    "required": "leaf",
    "over": "rack",
    "max_skew": 1,
    "max_per_domain": 1,
    "interval": 600,
    "cost": 0,
    "restart": 0,
    "on_resize": True,
    "size": 4,
    "max_running": 2,
    "max_wait": 60,
    "scaling": [[1, 0.5], [4, 1.5]],
    "age": 60,
    "running": {"since": 5, "placement": [{"node": "n0", "replicas": 1, "devices": [0]}]},
}
RIGHT_OF: dict[tuple[type[BaseModel], str], Any] = {
    (JobRequest, "groups"): [{"name": "ps"}],
    (ScenarioJob, "groups"): [{"name": "ps"}],
    (JobRequest, "after"): [17],
    (ScenarioJob, "after"): ["prepare"],
    (JobRequest, "not_before"): "2026-03-01T08:00:00Z",
    (ScenarioJob, "not_before"): 60,
    (JobRequest, "deadline"): "2026-03-01T09:00:00+01:00",
    (ScenarioJob, "deadline"): 60,
    (Topology, "preferred"): "spine",
}
# A field that may not stand beside what is in LEAST.
ALONE = {
    (Topology, "preferred"): {"required"},
    (Topology, "max_wait"): {"required"},
    (Spread, "max_per_domain"): {"max_skew"},
}

# A field that goes only with another.
BESIDE: dict[tuple[type[BaseModel], str], dict[str, Any]] = {(Topology, "max_wait"): {"preferred": "leaf"}}

CONTROL = "a\x07b"
NAIVE = datetime(2026, 3, 1, tzinfo=UTC).replace(tzinfo=None)
ODD_TEXT = (
    CONTROL,
    "a\x00b",
    "\ud800",
    "a\u202eb",
    "\ufeffa",
    "a\u200bb",
    "a\u2028b",
    "a\u00a0b",
    " a",
    "a ",
    "\n",
)
WRONG: dict[str, tuple[Any, ...]] = {
    "true": (True,),
    "text": ("8", "x"),
    "whole": (10**30, 10**400, -(10**30)),
    "not a number": (float("nan"), float("inf"), float("-inf")),
    "fraction": (4.0, 1.5, 1e300),
    "negative": (-1, -0.5),
    "zero": (0,),
    "null": (None,),
    "list": ([], [[]], [None], [True], [1.5]),
    "object": ({}, {"x": 1}),
    "long": ("x" * 2_000_000, ["x"] * 1001, {f"K{n}": "" for n in range(1001)}),
    "odd": (*ODD_TEXT, ["\ud800"], {"\ud800": "a"}, {"": "a"}, {"A=B": "a"}),
}
TAKES: dict[str, tuple[Any, ...]] = {
    # What is among the bad values, and yet right for this field.
    "replicas": (),
    "devices": (0, 4.0),
    "cpus": (0, 4.0, 1.5),
    "memory_gib": (0, 4.0, 1.5),
    "min_memory_gib": (0, 4.0, 1.5),
    "power_w": (4.0, 1.5),
    "peak_w": (4.0, 1.5),
    "priority": (-1, 0),
    "preemptible": (True,),
    "held": (True,),
    "on_resize": (True,),
    "runtime": (4.0, 1.5),
    "time_limit": (4.0, 1.5),
    "flexibility": (0,),
    "datasets": ([],),
    "after": ([],),
    "submit": (0, 4.0, 1.5),
    "grace_s": (0, 4.0, 1.5),
    "interval": (4.0, 1.5),
    "cost": (0, 4.0, 1.5),
    "restart": (0, 4.0, 1.5),
    "max_wait": (0, 4.0, 1.5),
    "age": (0, 4.0, 1.5),
    "env": ({},),
    "name": ("8", "x"),
    "team": ("8", "x"),
    "user": ("8", "x"),
    "reservation": ("8", "x"),
    "cluster": ("8", "x"),
    # Paths and images are not shown as names are: only what cannot be stored is refused.
    "workdir": ("8", "x", *(text for text in ODD_TEXT if text not in ("a\x00b", "\ud800"))),
    "image": ("8", "x", *(text for text in ODD_TEXT if text not in ("a\x00b", "\ud800"))),
}
TAKES_OF: dict[tuple[type[BaseModel], str], tuple[Any, ...]] = {
    (ScenarioJob, "not_before"): (0, 4.0, 1.5),
    (ScenarioJob, "deadline"): (0, 4.0, 1.5),
}
MODELS = tuple(LEAST)


def right(model: type[BaseModel], field: str) -> Any:
    return RIGHT_OF[model, field] if (model, field) in RIGHT_OF else RIGHT[field]


def body(model: type[BaseModel], **fields: Any) -> dict[str, Any]:
    left = {name: value for field in fields for name, value in LEAST[model].items()}
    for field in fields:
        for name in ALONE.get((model, field), ()):
            left.pop(name, None)
        left.update(BESIDE.get((model, field), {}))
    return {**left, **fields}


def faults(model: type[BaseModel], raw: dict[str, Any]) -> list[Fault]:
    try:
        model.model_validate(raw)
    except ValidationError as error:
        return faults_of(error)
    return []


def is_taken(model: type[BaseModel], field: str, value: Any) -> bool:
    takes = TAKES_OF.get((model, field), TAKES.get(field, ()))
    return any(type(one) is type(value) and one == value for one in takes)


def bad_values(model: type[BaseModel], field: str) -> list[Any]:
    return [value for values in WRONG.values() for value in values if not is_taken(model, field, value)]


EVERY_FIELD = [
    pytest.param(model, field, id=f"{model.__name__}.{field}")
    for model in MODELS
    for field in model.model_fields
]


@pytest.mark.parametrize("model", MODELS)
def test_every_field_takes_a_right_value(model):
    for field in model.model_fields:
        assert faults(model, body(model, **{field: right(model, field)})) == []


@pytest.mark.parametrize(("model", "field"), EVERY_FIELD)
def test_every_bad_value_is_refused_at_its_field(model, field):
    for value in bad_values(model, field):
        found = faults(model, body(model, **{field: value}))
        assert found, repr(value)[:100]
        for fault in found:
            assert fault["path"] == field or fault["path"].startswith((f"{field}.", f"{field}["))
            assert fault["message"][0].islower()
        # What is said of hostile input can itself be sent, and is no longer than people read.
        assert len(json.dumps(found, ensure_ascii=False).encode()) < 50_000


@pytest.mark.parametrize("model", MODELS)
def test_a_required_field_that_is_missing_is_named(model):
    for field, info in model.model_fields.items():
        if info.is_required():
            raw = {name: value for name, value in LEAST[model].items() if name != field}
            assert {"path": field, "code": "missing", "message": "is required"} in faults(model, raw)


@pytest.mark.parametrize("model", MODELS)
def test_a_field_nobody_knows_is_refused(model):
    assert [fault["code"] for fault in faults(model, {**LEAST[model], "replcas": 1})] == ["unknown_field"]


@pytest.mark.parametrize(
    ("raw", "path", "code"),
    [
        pytest.param({"replicas": True}, "replicas", "wrong_type", id="a truth is no count"),
        pytest.param({"replicas": 4.0}, "replicas", "wrong_type", id="4.0 is no count"),
        pytest.param({"replicas": {"min": 8, "max": 4}}, "replicas.max", "out_of_range", id="max under min"),
        pytest.param(
            {"replicas": {"min": 2, "max": 4, "preferred": 8}},
            "replicas.preferred",
            "out_of_range",
            id="preferred over max",
        ),
        pytest.param({"replicas": {"min": 2}}, "replicas.max", "missing", id="no max"),
        pytest.param({"devices": 1.5}, "devices", "invalid", id="one and a half device"),
        pytest.param({"devices": 1e-9}, "devices", "invalid", id="less of a device than can be kept"),
        pytest.param(
            {"devices": 0.9999999}, "devices", "invalid", id="so much of a device that it is all of it"
        ),
        pytest.param({"power_w": 700, "peak_w": 500}, "peak_w", "out_of_range", id="a peak under the draw"),
        pytest.param({"topology": {}}, "topology", "invalid", id="a topology of nothing"),
        pytest.param(
            {"topology": {"required": "rack"}}, "topology.required", "not_a_choice", id="a rack is no network"
        ),
        pytest.param({"spread": {"over": "leaf"}}, "spread", "invalid", id="a spread without a bound"),
        pytest.param({"datasets": ["a", "a"]}, "datasets[1]", "invalid", id="a data set twice"),
        pytest.param(
            {"command": ["x"], "script": "#!/bin/sh"}, "script", "invalid", id="a command and a script"
        ),
        pytest.param({"script": "echo"}, "script", "invalid", id="a script without shebang"),
        pytest.param({"env": {"A=B": "1"}}, "env.A=B", "invalid", id="a variable with an equals sign"),
        pytest.param({"env": {"A": 1}}, "env.A", "wrong_type", id="a variable that is a number"),
        pytest.param({"not_before": 1_700_000_000}, "not_before", "wrong_type", id="a time as a number"),
        pytest.param(
            {"not_before": "2026-03-01T08:00:00"}, "not_before", "invalid", id="a time without zone"
        ),
        pytest.param({"not_before": "2026-02-30T08:00:00Z"}, "not_before", "invalid", id="a day that is not"),
        pytest.param(
            {"deadline": "9999-12-31T23:59:59-23:59"}, "deadline", "out_of_range", id="a far future"
        ),
        pytest.param(
            {"deadline": NAIVE},
            "deadline",
            "invalid",
            id="a naive datetime",
        ),
        pytest.param(
            {"groups": [{"name": "a"}], "devices": 1}, "groups", "invalid", id="groups beside a flat field"
        ),
        pytest.param(
            {"groups": [{"name": "a"}, {"name": "a"}]}, "groups[1].name", "invalid", id="two groups of a name"
        ),
        pytest.param(
            {"groups": [{"name": "a", "replicas": {"min": 0, "max": 1}}]},
            "groups[0].replicas.min",
            "out_of_range",
            id="deep",
        ),
        pytest.param({"array": {"size": 10_001}}, "array.size", "out_of_range", id="too large an array"),
    ],
)
def test_fields_that_do_not_go_together_are_told_at_the_one_to_change(raw, path, code):
    found = faults(JobRequest, {**LEAST[JobRequest], **raw})

    assert [(fault["path"], fault["code"]) for fault in found] == [(path, code)]


def test_a_prefix_says_which_of_many_jobs():
    with pytest.raises(ValidationError) as caught:
        JobRequest.model_validate({"name": "a", "team": "b", "replicas": 0})

    assert faults_of(caught.value, prefix=["jobs", 3])[0]["path"] == "jobs[3].replicas"


def test_a_million_unknown_fields_are_not_all_told():
    assert len(faults(JobRequest, {f"x{n}": 1 for n in range(10_000)})) == 100


def test_a_time_from_python_is_taken_as_it_is():
    at = datetime(2026, 3, 1, tzinfo=UTC)
    assert JobRequest(name="a", team="b", not_before=at).not_before == at


def test_joiners_stay_in_names():
    name = "\U0001f468\u200d\U0001f52c"  # a scientist: a man, a joiner and a microscope
    assert JobRequest(name=name, team="b").name == name


@pytest.mark.parametrize(
    "text",
    [
        '{"name": NaN}',
        '{"name": Infinity}',
        '{"name": 1e999}',
        '{"a": 1, "a": 2}',
        '{"a": 1} x',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": ' + "9" * 100_000 + "}",
        "",
        '{"a": "\x07"}',
    ],
    ids=lambda text: text[:12],
)
def test_json_that_two_readers_would_read_differently_is_refused(text):
    with pytest.raises(BadJSON):
        loads_strict(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(JobRequest.model_fields)) | st.text(), JSON, max_size=6))
def test_whatever_comes_is_taken_or_refused_with_a_path(raw):
    for fault in faults(JobRequest, {**LEAST[JobRequest], **raw}):
        assert fault["message"]
        json.dumps(fault, ensure_ascii=False).encode()


COUNTS = st.integers(1, 64)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "replicas": COUNTS | st.builds(lambda n, m: {"min": min(n, m), "max": max(n, m)}, COUNTS, COUNTS),
            "devices": st.integers(0, 16) | st.integers(1, 999_999).map(lambda n: n / 1_000_000),
            "topology": st.sampled_from([{"required": "leaf"}, {"preferred": "spine"}]),
            "datasets": st.lists(st.sampled_from("abc"), unique=True),
            "not_before": st.sampled_from(["2026-03-01T08:00:00Z", "2026-03-01T08:00:00.5+02:00"]),
        },
    )
)
def test_what_was_taken_reads_back_the_same(fields):
    request = JobRequest.model_validate({**LEAST[JobRequest], **fields})
    again = JobRequest.model_validate(json.loads(request.model_dump_json(exclude_none=True)))

    assert again.model_dump() == request.model_dump()
    assert shape_key(again) == shape_key(request)


SHAPES = (
    {"replicas": 2},
    {"replicas": {"min": 1, "max": 2}},
    {"devices": 2},
    {"devices": 0.5},
    {"cpus": 2},
    {"memory_gib": 2},
    {"accelerators": ["H100"]},
    {"accelerators": ["A100", "H100"]},
    {"accelerators": ["H100", "A100"]},
    {"min_memory_gib": 2},
    {"topology": {"required": "leaf"}},
    {"topology": {"preferred": "leaf"}},
    {"spread": {"over": "rack", "max_skew": 1}},
    {"spread": {"over": "rack", "max_per_domain": 1}},
    {"power_w": 500},
    {"peak_w": 500},
    {"reservation": "friday"},
    {"cluster": "local"},
    {"datasets": ["a"]},
    {"team": "speech"},
    {"groups": [{"name": "a"}, {"name": "b"}]},
)


def test_whatever_decides_where_a_job_fits_makes_another_shape():
    made = [shape_key(JobRequest.model_validate({**LEAST[JobRequest], **shape})) for shape in ({}, *SHAPES)]

    assert len(set(made)) == len(made)
    assert set(spec.Asks.model_fields) <= {field for shape in SHAPES for field in shape}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "a"}, {"name": "b"}),
        ({"replicas": 2}, {"replicas": {"min": 2, "max": 2}}),
        ({"devices": 1}, {}),
        ({"datasets": ["a", "b"]}, {"datasets": ["b", "a"]}),
        ({"priority": 5, "command": ["x"], "env": {"A": "b"}, "time_limit": 60}, {}),
    ],
)
def test_what_decides_nothing_leaves_the_shape(one, other):
    keys = {shape_key(JobRequest.model_validate({**LEAST[JobRequest], **raw})) for raw in (one, other)}

    assert len(keys) == 1

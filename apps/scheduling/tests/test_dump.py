"""A pass goes to a file and comes back, and the planner decides the same on it."""

import json
from dataclasses import dataclass, fields, replace
from math import inf
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.scheduling import dump
from apps.scheduling.dump import BadDump, Dump
from apps.scheduling.engine import facts, planner
from apps.scheduling.engine.facts import (
    NONE,
    Dataset,
    Gang,
    LimitChange,
    Member,
    Policy,
    Reserve,
    Saving,
    Share,
    Snapshot,
    Spread,
    Stage,
    Wait,
)
from apps.scheduling.engine.tests.scenes import facility, gang, holds, scenes, snapshot

PLAIN = Policy()


def dump_of(scene: Snapshot, policy: Policy = PLAIN) -> Dump:
    return Dump(scene, policy, planner.plan(scene, policy), {"pass_id": 7})


def there_and_back(one: Dump) -> Dump:
    return dump.from_bytes(dump.to_bytes(one))


def changed(one: Dump, change) -> bytes:
    data = json.loads(json.dumps(dump.to_json(one)))
    change(data)
    return json.dumps(data).encode()


SMALL = snapshot(facility(), gang(1, 2, 4), gang(2), running=(holds(gang(3), (0, (0,))),))


@given(scenes(), st.sampled_from([0, 1, 64, None]))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_scene_comes_back_and_gives_the_same_plan(scene, depth):
    one = dump_of(scene, Policy(backfill_depth=depth))
    back = there_and_back(one)

    assert dump.to_json(back) == dump.to_json(one)
    again = planner.plan(back.snapshot, back.policy)
    assert again == one.plan
    assert dump.differences(back, again) == []


def test_every_sort_of_field_comes_back_as_it_was():
    own = gang(
        5,
        saving=Saving(60.0, 1.0, 5.0),
        datasets=(0,),
        scaling=((1, 1.0), (2, 1.9)),
        waits_for=("other",),
        deadline_s=1e-300,
    )
    scene = replace(
        SMALL,
        queue=(*SMALL.queue, own),
        promises=(Reserve(1, 0.1 + 0.2, (Share(0, 1, 2, (0, 1)),)),),
        datasets=(Dataset(9, "words", 1.5, frozenset({3, 1}), MappingProxyType({4: inf})),),
        limit_changes=(LimitChange(5.0, 1, inf),),
        teams=(facts.Team(1, "vision", entitlement={0: 32}),),
        members=(Member(0, 3, "ann", {0: 8}, None, is_named=True),),
    )
    plan = planner.plan(scene, Policy())
    plan = replace(
        plan,
        stages=(Stage(0, 1, 2.0, 5),),
        waits=(
            Wait(
                5,
                "power",
                "words",
                facts={
                    "list": [1, None, True],
                    "tuple": (1.5, -inf),
                    "numpy": np.float64(2.5),
                    "map": {3: {"a": "inf"}},
                    "set": frozenset({2, 1}),
                    "array": np.array([1.0, inf]),
                    "spread": Spread("leaf", 1),
                },
            ),
        ),
    )
    back = there_and_back(Dump(scene, Policy(shield_s=inf), plan, {"none": None}))

    assert back.snapshot.queue == scene.queue
    assert back.snapshot.datasets == scene.datasets
    assert back.snapshot.members == scene.members
    assert (back.snapshot.promises, back.snapshot.limit_changes) == (scene.promises, scene.limit_changes)
    assert back.policy == Policy(shield_s=inf)
    assert back.plan.stages == plan.stages
    told = dict(back.plan.waits[0].facts)
    assert told.pop("array").tolist() == [1.0, inf]
    assert told == {key: value for key, value in plan.waits[0].facts.items() if key != "array"}
    assert type(told["tuple"]) is tuple


def test_arrays_keep_their_type_and_what_is_not_finite():
    scene = replace(SMALL, facility=facility(cpus=inf, speeds=[0.1, 1.0, 1e-17, 3.0]))
    back = there_and_back(dump_of(scene)).snapshot

    for field in fields(facts.Facility):
        was, now = getattr(scene.facility, field.name), getattr(back.facility, field.name)
        if isinstance(was, np.ndarray):
            assert (now.dtype, now.tolist()) == (was.dtype, was.tolist()), field.name
    assert back.is_usable.dtype == np.bool_


def test_one_shape_stays_one_object_and_two_stay_two():
    shape, twin = gang(1).shape, gang(1).shape
    scene = snapshot(facility(), *(replace(gang(i), shape=s) for i, s in enumerate((shape, shape, twin), 1)))
    first, second, third = (g.shape for g in there_and_back(dump_of(scene)).snapshot.queue)

    assert first is second
    assert third == first
    assert third is not first


def test_a_field_that_was_added_later_gets_its_default():
    def forget_preemptible(data):
        at = data["classes"]["Gang"].index("preemptible")
        del data["classes"]["Gang"][at]
        for item in (*data["snapshot"][data["classes"]["Snapshot"].index("queue")],):
            del item[at]
        running = data["snapshot"][data["classes"]["Snapshot"].index("running")]
        for item in running:
            del item[data["classes"]["Running"].index("gang")][at]

    back = dump.from_bytes(changed(dump_of(SMALL), forget_preemptible))
    assert all(g.preemptible for g in back.snapshot.queue)


def test_a_class_that_was_added_later_need_not_be_known_to_the_file():
    def forget_datasets(data):
        at = data["classes"]["Snapshot"].index("datasets")
        del data["classes"]["Snapshot"][at], data["snapshot"][at], data["classes"]["Dataset"]

    assert dump.from_bytes(changed(dump_of(SMALL), forget_datasets)).snapshot.datasets == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["classes"]["Gang"].append("colour"), "classes.Gang: 'colour' is not known"),
        (lambda d: d["classes"].update(Moon=["phase"]), "classes.Moon: is not known"),
        (lambda d: d["classes"]["Gang"].remove("shape"), "classes.Gang: 'shape' is missing"),
        (lambda d: d["classes"]["Gang"].append("id"), "classes.Gang: names a field twice"),
        (lambda d: d.update(version=2), "version: is 2"),
        (lambda d: d.update(format="other"), "is no dump"),
        (lambda d: d.update(extra=1), "extra: is not known"),
        (lambda d: d.pop("plan"), "plan: is missing"),
        (lambda d: d["snapshot"].pop(), "snapshot: must have"),
        (lambda d: d["snapshot"].__setitem__(0, "soon"), "Snapshot.now_s: must be of type float"),
        (lambda d: d["snapshot"].__setitem__(0, True), "Snapshot.now_s: must be of type float"),
        (lambda d: d["shared"]["Shape"].clear(), "there is no Shape 0"),
        (lambda d: d["snapshot"][2].update(dtype="float64"), "must be an array of bool"),
        (lambda d: d["snapshot"][2]["values"].pop(), "is no array"),
    ],
)
def test_a_dump_that_says_something_else_is_refused_with_its_place(change, said):
    with pytest.raises(BadDump) as refused:
        dump.from_bytes(changed(dump_of(SMALL), change))
    assert said in str(refused.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\x1f\x8bnothing", dump.to_bytes(dump_of(SMALL))[:-9]])
def test_what_is_no_dump_at_all_is_refused(raw):
    with pytest.raises(BadDump):
        dump.from_bytes(raw)


def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(dump, "MOST_BYTES", 1000)
    with pytest.raises(BadDump, match="more than 1000 bytes"):
        dump.from_bytes(dump.to_bytes(dump_of(SMALL)))


def test_a_field_of_a_sort_nobody_thought_of_is_told_at_once(monkeypatch):
    @dataclass(frozen=True)
    class Odd:
        what: complex = 1j

    with pytest.raises(TypeError, match="complex"):
        dump._Writer().coder(Odd)


def test_a_plan_that_differs_is_told_apart():
    one = dump_of(SMALL)
    later = replace(one.plan, starts=one.plan.starts[1:], next_boundary_s=3.0)
    told = dump.differences(one, later)

    assert told[0].startswith("starts: were 2, are 1")
    assert told[-1] == "next_boundary_s: was inf, is 3.0"


def test_a_dump_without_names_has_no_name_of_a_job_and_gives_the_same_plan():
    full = snapshot(
        facility(leaves=[[0, 0]], devices=2),
        replace(gang(1, 2, 2, limit_s=50.0), name="secret-a"),
        replace(gang(2, 2, 2), name="secret-b", waits_for=("secret-a",)),
        replace(gang(4, 1, 2), name="secret-d"),
        running=(holds(replace(gang(3, 1, 2), name="secret-c"), (0, (0, 1))),),
    )
    one = Dump(
        full, Policy(), planner.plan(full, Policy()), {"faults": [{"rule": "gang", "message": "secret-b"}]}
    )
    assert "secret-a" in json.dumps(dump.to_json(one))
    back = there_and_back(dump.anonymous(one))

    assert "secret" not in json.dumps(dump.to_json(back))
    assert dump.differences(back, planner.plan(back.snapshot, back.policy)) == []
    assert [w.code for w in back.plan.waits] == [w.code for w in one.plan.waits]


def test_without_names_members_are_limited_as_before():
    team = facts.Team(1, "vision", entitlement={0: 32})
    own = gang(1, 1, 8, team=0, user=3)
    one = dump_of(
        replace(SMALL, queue=(own,), running=(), teams=(team,), members=(Member(0, 3, "secret", {0: 4}),))
    )
    back = there_and_back(dump.anonymous(one))

    assert "secret" not in json.dumps(dump.to_json(back))
    assert planner.plan(back.snapshot, back.policy).waits[0].code == one.plan.waits[0].code == "member_limit"


def test_the_rows_of_a_class_are_all_its_fields():
    columns = dump.to_json(dump_of(SMALL))["classes"]
    assert columns["Gang"] == [field.name for field in fields(Gang)]
    assert NONE == -1  # positions that are none are written as they are

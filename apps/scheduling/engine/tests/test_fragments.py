"""Single replicas go where they leave the least that nobody can use."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.scheduling.engine.facts import Ask, Gang, Kind, Policy, Shape
from apps.scheduling.engine.fragments import Fragments, demand_of
from apps.scheduling.engine.frame import frame_of
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot
from apps.scheduling.engine.units import FULL, micro_of

HALF = FULL // 2


def held(id: int, **asks: object) -> Gang:
    """A job that says what is typical, and does not start."""
    return replace(gang(id, **asks), is_held=True)  # type: ignore[arg-type]


def placed(scene: object, job_id: int) -> tuple[int, tuple[int, ...]]:
    decided = plan(scene, Policy())  # type: ignore[arg-type]
    (share,) = next(start.placing for start in decided.starts if start.job_id == job_id)
    return share.node, share.devices


def test_a_small_job_takes_devices_that_have_no_cpus_left_for_typical_jobs() -> None:
    running = (
        holds(gang(8, 1, 2, cpus=2.0), (0, (0, 1))),
        holds(gang(9, 1, 2, cpus=15.0), (1, (0, 1))),
    )
    typical = [held(i, replicas=1, devices=0, share_steps=HALF, cpus=4.0) for i in range(20, 40)]
    scene = snapshot(
        facility(leaves=[[0, 0]], devices=4, cpus=16.0), gang(1, 1, 1, cpus=1.0), *typical, running=running
    )

    assert placed(scene, 1) == (1, (2,))


def test_a_share_goes_where_what_is_left_is_still_of_use() -> None:
    # Typical jobs ask three fifths. The emptier device still holds one afterwards, the fuller would not.
    fifth = FULL // 5
    running = (
        holds(gang(8, 1, 0, share_steps=fifth), (0, (0,))),
        holds(gang(9, 1, 0, share_steps=2 * fifth), (0, (1,))),
    )
    running = tuple(
        replace(r, placing=tuple(replace(s, share_steps=r.gang.shape.asks[0].share_steps) for s in r.placing))
        for r in running
    )
    typical = [held(i, replicas=1, devices=0, share_steps=3 * fifth) for i in range(20, 40)]
    scene = snapshot(
        facility(leaves=[[0]], devices=2), gang(1, 1, 0, share_steps=fifth), *typical, running=running
    )

    assert placed(scene, 1) == (0, (0,))


def test_who_names_no_type_leaves_the_wanted_one_alone_and_who_ranks_them_gets_the_first() -> None:
    kinds = (Kind(1, "A"), Kind(2, "B"))
    where = facility(leaves=[[0, 0]], devices=4, kinds=kinds, node_kinds=[0, 1])
    typical = [held(i, replicas=1, devices=0, share_steps=HALF, kinds=(0,)) for i in range(20, 40)]
    anyone = Gang(1, "any", Shape((Ask(kinds=(0, 1), any_kind=True),)), sequence=1, limit_s=10.0)
    choosy = Gang(1, "choosy", Shape((Ask(kinds=(0, 1)),)), sequence=1, limit_s=10.0)

    assert placed(snapshot(where, anyone, *typical), 1) == (1, (0,))
    assert placed(snapshot(where, choosy, *typical), 1) == (0, (0,))


asks = st.builds(
    lambda whole, share, cpus: Ask(devices=whole, share_steps=0 if whole else share, cpus=cpus, kinds=(0,)),
    st.integers(0, 2),
    st.sampled_from([FULL // 4, HALF, 3 * FULL // 4]),
    st.sampled_from([0.0, 1.0, 3.0]),
)
nodes = st.tuples(
    st.lists(st.sampled_from([0, FULL // 4, HALF, FULL]), min_size=2, max_size=2), st.integers(0, 8)
)


@settings(deadline=None)
@given(
    st.lists(asks, min_size=1, max_size=5),
    st.lists(st.lists(nodes, min_size=3, max_size=3), min_size=1, max_size=4),
)
def test_what_is_remembered_is_what_would_be_worked_out_anew(
    asked: list[Ask], states: list[list[tuple[list[int], int]]]
) -> None:
    frame = frame_of(facility(leaves=[[0, 0, 0]], devices=2, cpus=8.0))
    demand = demand_of((Gang(i, "", Shape((ask,))) for i, ask in enumerate(asked)), 1)
    remembering = Fragments(frame, demand)
    for state in states:
        dev = np.array([steps for free, _ in state for steps in free], dtype=np.int64)
        cpu = np.array([micro_of(float(cpus)) for _, cpus in state], dtype=np.int64)
        for ask in asked:
            fresh = Fragments(frame, demand)
            able = np.ones(3, dtype=bool)
            one, other = (f.scores(ask, able, dev, cpu, frame.mem) for f in (remembering, fresh))
            assert one.score.tolist() == other.score.tolist()
            assert one.device.tolist() == other.device.tolist()
            assert remembering.total(dev, cpu, frame.mem) == fresh.total(dev, cpu, frame.mem)

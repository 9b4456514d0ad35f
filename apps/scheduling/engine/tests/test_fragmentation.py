"""How much of what is free the typical job could not use."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.engine.facts import Facility, Gang, Kind, Policy, Running, Snapshot
from apps.scheduling.engine.fragmentation import Fragmentation, fragmentation_of, mix_of
from apps.scheduling.engine.frame import frame_of
from apps.scheduling.engine.planner import plan, plan_and_left
from apps.scheduling.engine.tests.scenes import facility, gang, holds, scenes, snapshot
from apps.scheduling.engine.tests.test_invariants import SCENES
from apps.scheduling.engine.units import FULL


def measured(
    of: Facility, asks: list[tuple[Gang, int]], *running: Running, usable: list[bool] | None = None
) -> list[Fragmentation]:
    scene = snapshot(of, running=running)
    _, left = plan_and_left(scene, Policy())
    is_usable = np.ones(of.n_nodes, dtype=bool) if usable is None else np.array(usable)
    return list(fragmentation_of(frame_of(of), is_usable, left, [(one.shape, n) for one, n in asks]))


def held(n: int, node: int, id: int = 9) -> Running:
    """So many devices of a node are held."""
    return holds(gang(id, 1, n), (node, tuple(range(n))))


def test_what_a_replica_does_not_fit_on_counts_by_how_often_it_is_asked_for() -> None:
    # Two nodes of 8: two devices are left on one, eight on the other.
    of = facility(leaves=[[0, 0]])
    asks = [(gang(1, 1, 4), 3), (gang(2, 1, 1), 1)]

    (told,) = measured(of, asks, held(6, 0))
    assert (told.kind, told.free) == (0, 10.0)
    assert told.of_replicas == pytest.approx(0.75 * 2)
    assert told.of_gangs is None


def test_a_device_that_is_too_full_for_a_share_counts_though_its_node_holds_one() -> None:
    of = facility(leaves=[[0]], devices=2)
    fifth = FULL // 5
    used = holds(gang(9, 1, 0, share_steps=4 * fifth), (0, (0,)))
    used = replace(used, placing=(replace(used.placing[0], share_steps=4 * fifth),))

    (told,) = measured(of, [(gang(1, 1, 0, share_steps=FULL // 2), 1)], used)
    assert told.free == pytest.approx(1.2)
    assert told.of_replicas == pytest.approx(0.2)


def test_cpus_that_are_gone_make_devices_useless() -> None:
    of = facility(leaves=[[0, 0]], cpus=16.0)
    greedy = holds(gang(9, 1, 1, cpus=14.0), (0, (0,)))

    (told,) = measured(of, [(gang(1, 1, 1, cpus=4.0), 1), (gang(2, 2, 1, cpus=4.0), 1)], greedy)
    assert told.of_replicas == 7.0
    assert told.of_gangs == 7.0  # two fit on one node, and there are not two places on the first


def test_gangs_are_looked_at_in_the_narrowest_domain_that_could_hold_them() -> None:
    # Two leaves of two nodes of 8. One leaf has both its nodes half full, the other one full and one free.
    of = facility(leaves=[[0, 0], [1, 1]])
    running = held(4, 0, 7), held(4, 1, 8), held(8, 2, 9)

    def lost(*asks: tuple[Gang, int]) -> float | None:
        (told,) = measured(of, list(asks), *running)
        assert told.free == 16.0
        return told.of_gangs

    assert lost((gang(1, 2, 4), 1)) == 8.0  # at home on one node: only the fourth holds it
    assert lost((gang(1, 2, 8), 1)) == 16.0  # at home in a leaf: none has two whole nodes
    assert lost((gang(1, 4, 4), 1)) == 16.0  # a leaf could hold four halves; each has but two
    assert lost((gang(1, 3, 8), 1)) == 16.0  # at home in the spine
    assert lost((gang(1, 2, 4), 3), (gang(2, 2, 8), 1)) == (3 * 8 + 16) / 4
    assert lost((gang(1, 2, 4, preferred="leaf"), 1)) == 0.0
    assert lost((gang(1, 5, 8), 1)) is None  # nothing here could ever hold it


def test_a_type_is_judged_by_those_who_accept_it_and_by_nodes_that_take_work() -> None:
    kinds = Kind(1, "H100", 80.0, 700.0, 100.0), Kind(2, "A100", 40.0, 400.0, 50.0)
    of = facility(leaves=[[0, 0], [1, 1]], kinds=kinds, node_kinds=[0, 0, 1, 1])
    asks = [(gang(1, 1, 8, kinds=(0,)), 5), (gang(2, 1, 1, kinds=(0, 1)), 5)]

    first, second = measured(of, asks, held(2, 0), usable=[True, False, True, False])
    assert (first.free, first.of_replicas) == (6.0, 3.0)
    assert (second.free, second.of_replicas) == (8.0, 0.0)
    (only,) = measured(of, asks[:1], usable=[False, False, True, True])
    assert only == Fragmentation(1, 16.0, None, None)


def test_very_many_gangs_are_judged_by_some_of_them() -> None:
    one, other = gang(1, 1, 1), gang(2, 2, 8)
    mix = mix_of([one, one, other, one] * 10_000, [(other.shape, 7)])

    (_, n_ones), *others = sorted(((shape.asks[0].devices, n) for shape, n in mix), key=lambda row: row)
    assert n_ones == pytest.approx(30_000, rel=0.01)
    assert [n for _, n in others] == [7, 40_000 - n_ones]
    assert mix_of([one, other, one]) == [(one.shape, 2), (other.shape, 1)]


@SCENES
@given(scenes(), st.booleans())
def test_a_share_of_what_is_free_and_nothing_is_decided_by_it(scene: Snapshot, explain: bool) -> None:
    policy = Policy(explain=explain)
    decided, left = plan_and_left(scene, policy)
    frame = frame_of(scene.facility)
    mix = mix_of([*scene.queue, *(run.gang for run in scene.running)])

    assert decided == plan(scene, policy)
    for one in fragmentation_of(frame, scene.is_usable, left, mix):
        for lost in (one.of_replicas, one.of_gangs):
            assert lost is None or 0.0 <= lost <= one.free + 1e-9

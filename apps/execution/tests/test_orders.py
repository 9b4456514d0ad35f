"""From grants to processes, and from a declared run time to a played one."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.execution.orders import (
    GroupFacts,
    PlacementFacts,
    PlayFacts,
    device_indices,
    play_s,
    replicas_of,
    throughput_at,
)


def shares(*pairs: tuple[int, str]) -> dict[int, Decimal]:
    return {index: Decimal(share) for index, share in pairs}


def test_ranks_count_through_the_groups_in_order() -> None:
    groups = [GroupFacts(name="head", devices=0, command=("head",)), GroupFacts(name="worker", devices=2)]
    placements = [
        PlacementFacts(
            node="b", group_index=1, n_replicas=1, first_rank=2, device_shares=shares((0, "1"), (1, "1"))
        ),
        PlacementFacts(
            node="a", group_index=1, n_replicas=1, first_rank=1, device_shares=shares((4, "1"), (5, "1"))
        ),
        PlacementFacts(node="a", group_index=0, n_replicas=1, device_shares={}),
    ]

    replicas = replicas_of(groups, placements)

    assert [(r.rank, r.node, r.group, r.device_indices) for r in replicas] == [
        (0, "a", "head", ()),
        (1, "a", "worker", (4, 5)),
        (2, "b", "worker", (0, 1)),
    ]
    assert [r.command for r in replicas] == [("head",), None, None]


@given(each=st.integers(1, 8), n_replicas=st.integers(1, 8), data=st.data())
def test_whole_devices_are_dealt_out_once_each(each: int, n_replicas: int, data: Any) -> None:
    n_devices = each * n_replicas
    indices = data.draw(st.lists(st.integers(0, 100), min_size=n_devices, max_size=n_devices, unique=True))

    dealt = device_indices(each, n_replicas, {index: Decimal(1) for index in indices})

    assert sorted(index for own in dealt for index in own) == sorted(indices)
    assert {len(own) for own in dealt} == {each}


def test_fractions_sit_on_the_devices_that_were_granted() -> None:
    dealt = device_indices(0.25, 5, shares((2, "0.75"), (6, "0.5")))

    assert dealt == [(2,), (2,), (2,), (6,), (6,)]


@pytest.mark.parametrize(
    ("facts", "took_s"),
    [
        (PlayFacts(runtime_s=100), 100),
        (PlayFacts(runtime_s=None), 60),
        (PlayFacts(runtime_s=100, speed=0.5), 200),
        (PlayFacts(runtime_s=100, rate=0.5), 200),
        (PlayFacts(runtime_s=100, kept_s=60, restart_s=5), 45),
        (PlayFacts(runtime_s=100, kept_s=200), 1),
        (PlayFacts(runtime_s=100, checkpoint_interval_s=25, checkpoint_cost_s=2), 106),
        (PlayFacts(runtime_s=1e10), 1e9),
    ],
)
def test_how_long_an_attempt_is_played(facts: PlayFacts, took_s: float) -> None:
    assert play_s(facts) == pytest.approx(took_s)


def test_a_cap_above_the_draw_costs_nothing() -> None:
    curve = [(0.5, 0.6), (1.0, 1.0)]

    assert throughput_at(curve, 0.5, 0.5) == 1.0
    assert throughput_at(curve, 0.5, 1.0) == pytest.approx(0.6)
    assert throughput_at([], 0.5, 1.0) == 1.0

"""Limits in two trees over the same nodes: what fits is found, whatever order a filling would take."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.scheduling.engine.facts import Domain, Facility, Policy
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, snapshot


def crossed(racks_w: list[float], loops_w: list[float], nodes: list[tuple[int, int]]) -> Facility:
    """One device of 700 W a node; node i hangs in rack nodes[i][0] and in cooling loop nodes[i][1]."""
    base = facility(leaves=[[0] * len(nodes)], devices=1)
    racks = [Domain(50 + i, f"rack{i}", "rack", -1, w) for i, w in enumerate(racks_w)]
    loops = [Domain(80 + i, f"loop{i}", "cooling", -1, w) for i, w in enumerate(loops_w)]
    first = len(base.domains)
    return replace(
        base,
        domains=(*base.domains, *racks, *loops),
        power=np.array([first + r for r, _ in nodes]),
        cooling=np.array([first + len(racks) + c for _, c in nodes]),
    )


def test_a_pair_that_only_the_right_choice_fits_is_placed() -> None:
    # Each rack and each loop carries one busy device beside what rests. Node 0 first would leave node 3 alone allowed;
    # with a third node in between the greedy choice is (0, then none of 1 and 2).
    nodes = [(0, 0), (0, 1), (1, 0)]
    where = crossed([800.0, 700.0], [800.0, 700.0], nodes)

    decided = plan(snapshot(where, gang(1, 2, 1)), Policy())

    assert {s.node for s in decided.starts[0].placing} == {1, 2}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([100.0, 700.0, 800.0, 1400.0, 2100.0]), min_size=2, max_size=2),
    st.lists(st.sampled_from([100.0, 700.0, 800.0, 1400.0, 2100.0]), min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_a_gang_starts_exactly_when_some_choice_of_nodes_fits(
    racks: list[float], loops: list[float], nodes: list[tuple[int, int]], n: int
) -> None:
    def allowed(chosen: int) -> bool:
        for tree, limits in ((0, racks), (1, loops)):
            for domain, limit in enumerate(limits):
                members = [i for i, at in enumerate(nodes) if at[tree] == domain]
                draw = sum(700.0 if chosen >> i & 1 else 100.0 for i in members)
                if any(chosen >> i & 1 for i in members) and draw > limit:
                    return False
        return True

    possible = any(allowed(chosen) for chosen in range(1 << len(nodes)) if chosen.bit_count() == n)

    assert bool(plan(snapshot(crossed(racks, loops, nodes), gang(1, n, 1)), Policy()).starts) == possible

"""Starts under a power cap: the acceptance scenarios of racks and of jobs that come during an event."""

from dataclasses import replace

import pytest

from apps.scheduling.engine.checker import check
from apps.scheduling.engine.facts import Kind, Plan, Policy, Snapshot
from apps.scheduling.engine.feasibility import prove_impossible
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot

# TDP 700 W, idle 100 W; hosts at rest draw 2,000 W.
CAPS = ((600 / 700, 0.93), (500 / 700, 0.84), (400 / 700, 0.70), (300 / 700, 0.50))
KINDS = (Kind(1, "H", 80.0, 700.0, 100.0, 1.0, CAPS),)


def hall(leaves: list[list[int]], **limits_w: float):
    where = facility(leaves=leaves, kinds=KINDS, limits_w=limits_w)
    return replace(where, idle_w=where.idle_w + 2000.0)


def decide(scene: Snapshot) -> Plan:
    decided = plan(scene, Policy())
    assert check(scene, decided, Policy()) == ()
    return decided


def caps_w(decided: Plan) -> list[int]:
    return [round(start.cap * 700) for start in decided.starts]


def test_full_speed_in_two_racks_goes_before_a_cap_in_one():
    busy = tuple(holds(gang(90 + i, 1, 8), (3 + i, tuple(range(8))), ends_s=500.0) for i in range(3))
    where = hall([[0, 0, 0], [1, 1, 1, 1]], rack0=20_000.0, rack1=32_000.0)

    decided = decide(snapshot(where, gang(1, 3, 8, tier=2), running=busy))

    assert caps_w(decided) == [700]
    assert sorted(share.node for share in decided.starts[0].placing)[2] == 6


@pytest.mark.parametrize(("tier", "expected"), [(2, [500]), (1, []), (3, [500]), (0, [])])
def test_the_smallest_cap_that_fits_and_that_the_tier_bears(tier, expected):
    where = hall([[0, 0, 0]], rack0=20_000.0)
    job = gang(1, 3, 8, tier=tier)

    assert (prove_impossible(where, (), job) is None) == bool(expected)
    assert caps_w(decide(snapshot(where, job))) == expected


def test_a_lock_step_job_is_admitted_by_its_coincident_peak():
    where = hall([[0] * 5], rack0=32_000.0)
    assert caps_w(decide(snapshot(where, gang(1, 5, 8, tier=2)))) == [500]


@pytest.mark.parametrize(
    ("headroom_kw", "tier", "expected"), [(1.2, 3, []), (2.0, 3, [300]), (2.0, 2, []), (4.8, 0, [700])]
)
def test_a_job_that_comes_while_there_is_little_headroom(headroom_kw, tier, expected):
    where = hall([[0]], rack0=2_800.0 + headroom_kw * 1000)

    assert caps_w(decide(snapshot(where, gang(1, 1, 8, tier=tier)))) == expected


def test_a_job_that_runs_under_a_cap_leaves_the_rest_to_others():
    where = hall([[0, 0]], rack0=2 * 2_800.0 + 1_600.0 + 4_800.0)
    capped = replace(holds(gang(9, 1, 8, tier=3), (0, tuple(range(8))), ends_s=500.0), cap=300 / 700)

    assert caps_w(decide(snapshot(where, gang(1, 1, 8), running=(capped,)))) == [700]

"""The checker alone catches a plan that was broken on purpose, in each of the ways the invariants name."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from apps.scheduling.engine.checker import check
from apps.scheduling.engine.facts import Booking, Kind, Plan, Policy, Reserve, Share, Snapshot, Start, Team
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot

POLICY = Policy()
WHOLE_NODE = tuple(range(8))


def start(job_id: int, *shares: Share, end_s: float = 100.0) -> Start:
    return Start(job_id, shares, 0, end_s)


def rules(scene: Snapshot, *starts: Start, reserves: tuple[Reserve, ...] = ()) -> set[str]:
    return {fault.rule for fault in check(scene, Plan(starts, (), reserves), POLICY)}


def test_a_sound_plan_passes() -> None:
    scene = snapshot(facility(), gang(1, 2, 4))

    assert rules(scene, start(1, Share(0, 0, 2, WHOLE_NODE))) == set()


@pytest.mark.parametrize(
    ("share", "broken"),
    [
        pytest.param(Share(0, 0, 1, (0, 1, 2, 3)), "gang", id="half a gang"),
        pytest.param(Share(0, 0, 2, (0, 1, 2, 3)), "gang", id="too few devices for its replicas"),
        pytest.param(Share(0, 0, 2, (0, 0, 1, 2, 3, 4, 5, 6)), "device", id="a device named twice"),
        pytest.param(Share(0, 0, 2, (1, 2, 3, 4, 5, 6, 7, 8)), "device", id="a device that does not exist"),
        pytest.param(Share(0, 99, 2, WHOLE_NODE), "gang", id="a node that does not exist"),
    ],
)
def test_a_gang_that_is_not_whole_is_caught(share: Share, broken: str) -> None:
    assert broken in rules(snapshot(facility(), gang(1, 2, 4)), start(1, share))


def test_a_device_that_has_an_owner_is_caught() -> None:
    scene = snapshot(facility(), gang(2, 1, 1), running=(holds(gang(1, 1, 1), (0, (0,))),))

    assert rules(scene, start(2, Share(0, 0, 1, (0,)))) == {"device"}


def test_fractions_over_one_device_are_caught() -> None:
    half = {"share_steps": 600_000}
    scene = snapshot(facility(), gang(1, 1, 0, **half), gang(2, 1, 0, **half))

    assert "device" in rules(scene, *(start(i, Share(0, 0, 1, (0,), 600_000)) for i in (1, 2)))


def test_a_start_of_what_runs_or_of_nothing_is_caught() -> None:
    scene = snapshot(facility(), gang(1))

    assert "gang" in rules(scene, start(1, Share(0, 0, 1, (0,))), start(1, Share(0, 1, 1, (0,))))
    assert "gang" in rules(scene, start(7, Share(0, 0, 1, (0,))))


def test_cpus_that_are_not_there_are_caught() -> None:
    scene = snapshot(facility(cpus=4.0), gang(1, 2, 1, cpus=3.0))

    assert rules(scene, start(1, Share(0, 0, 2, (0, 1)))) == {"resources"}


def test_a_node_out_of_service_is_caught() -> None:
    scene = snapshot(facility(), gang(1), is_usable=np.array([False, True, True, True]))

    assert rules(scene, start(1, Share(0, 0, 1, (0,)))) == {"node"}


def test_a_type_it_does_not_accept_and_a_mix_of_types_are_caught() -> None:
    kinds = (Kind(1, "A"), Kind(2, "B"))
    scene = snapshot(facility(kinds=kinds, node_kinds=[0, 1, 0, 1]), gang(1, 1), gang(2, 2, kinds=(0, 1)))

    assert "kind" in rules(scene, start(1, Share(0, 1, 1, (0,))))
    assert "kind" in rules(scene, start(2, Share(0, 0, 1, (1,)), Share(0, 1, 1, (1,))))


def test_a_gang_in_two_clusters_is_caught() -> None:
    scene = snapshot(replace(facility(), cluster=np.array([1, 2, 2, 2])), gang(1, 2, 8))

    assert rules(scene, start(1, Share(0, 0, 1, WHOLE_NODE), Share(0, 1, 1, WHOLE_NODE))) == {"node"}


def test_replicas_in_two_leaves_are_caught_where_one_is_required() -> None:
    scene = snapshot(facility(), gang(1, 2, 8, required="leaf"))

    assert rules(scene, start(1, Share(0, 1, 1, WHOLE_NODE), Share(0, 2, 1, WHOLE_NODE))) == {"topology"}


@pytest.mark.parametrize("limited", ["rack0", "hall"])
def test_a_domain_over_its_limit_is_caught_at_every_level(limited: str) -> None:
    # A rack of two nodes rests at 1,600 W, the hall at 3,200 W; eight busy devices add 4,800 W.
    scene = snapshot(facility(limits_w={limited: 6_000.0}), gang(1, 1, 8))
    one, two = start(1, Share(0, 0, 1, WHOLE_NODE)), start(2, Share(0, 1, 1, WHOLE_NODE))

    scene = replace(scene, queue=(*scene.queue, gang(2, 1, 8)))
    assert rules(scene, one, two) == {"power"}


def test_use_over_quota_and_over_the_borrow_limit_is_caught() -> None:
    teams = (Team(1, "root"), Team(2, "a", 0, 1.0, {0: 2}, {0: 1}), Team(3, "b", 0, 1.0, {0: 8}))
    within, over = gang(1, 3, 1, team=1), gang(2, 4, 1, team=1)
    scene = snapshot(facility(), within, over, teams=teams)

    assert rules(scene, start(1, Share(0, 0, 3, (0, 1, 2)))) == set()
    assert rules(scene, start(2, Share(0, 0, 4, (0, 1, 2, 3)))) == {"quota"}


def test_a_team_without_a_parent_that_would_borrow_is_caught() -> None:
    teams = (Team(1, "a", -1, 1.0, {0: 2}), Team(2, "b", -1, 1.0, {0: 8}))
    scene = snapshot(facility(), gang(1, 3, 1, team=0), teams=teams)

    assert rules(scene, start(1, Share(0, 0, 3, (0, 1, 2)))) == {"quota"}


def test_held_waiting_and_early_jobs_are_caught() -> None:
    jobs = (gang(1, is_held=True), gang(2, waits_for=("x",)), gang(3, not_before_s=5.0))
    found = rules(snapshot(facility(), *jobs), *(start(j.id, Share(0, 0, 1, (j.id,))) for j in jobs))

    assert found == {"held", "dependency", "not_before"}


def test_a_stranger_on_booked_nodes_is_caught() -> None:
    booking = Booking(1, "maintenance", 50.0, 60.0, nodes=(0,))
    scene = snapshot(facility(), gang(1, limit_s=100.0), gang(2, limit_s=50.0), bookings=(booking,))

    assert rules(scene, start(1, Share(0, 0, 1, (0,)))) == {"reservation"}
    assert rules(scene, start(2, Share(0, 0, 1, (0,)), end_s=50.0)) == set()


def test_a_backfilled_job_that_moves_a_promise_is_caught() -> None:
    # Job 2 is promised node 0 when job 1 ends at 50; job 3 there until 100 would move it.
    running = (holds(gang(1, 1, 4), (0, (0, 1, 2, 3)), ends_s=50.0),)
    scene = snapshot(facility(), gang(2, 1, 8), gang(3, 1, 4), running=running)
    promise = Reserve(2, 50.0, (Share(0, 0, 1, ()),))

    assert rules(scene, start(3, Share(0, 0, 1, (4, 5, 6, 7))), reserves=(promise,)) == {"protection"}
    assert rules(scene, start(3, Share(0, 0, 1, (4, 5, 6, 7)), end_s=50.0), reserves=(promise,)) == set()
    assert rules(scene, start(3, Share(0, 1, 1, (4, 5, 6, 7)), end_s=inf), reserves=(promise,)) == set()

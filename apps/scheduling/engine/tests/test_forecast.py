"""When waiting jobs will probably start."""

from dataclasses import replace
from math import inf

import pytest

from apps.scheduling.engine.facts import Policy, Team
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot

EASY = Policy(backfill_depth=1, preemption=False)
ALL_EIGHT = (0, tuple(range(8)))


def expected(scene: object, policy: Policy = EASY) -> dict[int, float | None]:
    return {wait.job_id: wait.expected_start_s for wait in plan(scene, policy).waits}  # type: ignore[arg-type]


def test_jobs_behind_the_promised_one_are_foretold_one_behind_the_other() -> None:
    running = (holds(gang(9, 1, 8), ALL_EIGHT, ends_s=50.0),)
    scene = snapshot(
        facility(leaves=[[0]]), *(gang(i, 1, 8, limit_s=100.0) for i in (1, 2, 3)), running=running
    )

    assert expected(scene) == {1: 50.0, 2: 150.0, 3: 250.0}


def test_what_will_probably_be_shorter_than_its_limit_is_foretold_so() -> None:
    ends_early = replace(holds(gang(9, 1, 8, predicted_s=30.0), ALL_EIGHT, ends_s=90.0))
    jobs = [gang(1, 1, 8, predicted_s=20.0), gang(2, 1, 8)]

    # It began at -10: the promise rests on its limit, the forecast of the second on what is probable.
    assert expected(snapshot(facility(leaves=[[0]]), *jobs, running=(ends_early,))) == {1: 90.0, 2: 110.0}


def test_a_team_at_its_quota_waits_for_its_own() -> None:
    teams = (Team(1, "root"), Team(2, "a", 0, 1.0, {0: 8}, {0: 0}), Team(3, "b", 0, 1.0, {0: 8}))
    running = (holds(gang(9, 1, 8, team=1), ALL_EIGHT, ends_s=40.0),)
    jobs = [gang(1, 1, 8, team=1), gang(2, 1, 8, team=1)]

    scene = snapshot(facility(leaves=[[0, 0]]), *jobs, running=running, teams=teams)
    assert expected(scene) == {1: 40.0, 2: 140.0}


def test_nobody_foretells_what_is_held_or_will_never_fit() -> None:
    held, endless = replace(gang(1, 1, 8), is_held=True), gang(2, 1, 8)
    running = (holds(gang(9, 1, 8), ALL_EIGHT, ends_s=inf),)

    assert expected(snapshot(facility(leaves=[[0]]), held, endless, running=running)) == {1: None, 2: None}


def test_behind_a_long_queue_the_work_ahead_is_spread_over_the_devices() -> None:
    running = (holds(gang(9999, 1, 8), ALL_EIGHT, ends_s=50.0),)
    queue = [gang(i, 1, 8, limit_s=10.0) for i in range(1, 801)]

    told = expected(snapshot(facility(leaves=[[0]]), *queue, running=running))

    assert told[800] == pytest.approx(50.0 + 799 * 10.0)
    assert [told[i] for i in range(1, 801)] == sorted(told.values())  # type: ignore[type-var]

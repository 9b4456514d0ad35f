"""Expected run times, and the order they make."""

from dataclasses import replace
from math import inf

from apps.scheduling.engine.facts import Policy
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.predict import History, left_s, predicted_of_many, predicted_s
from apps.scheduling.engine.tests.scenes import facility, gang, holds, snapshot


def test_the_last_two_runs_of_an_owner_are_what_is_expected() -> None:
    history = History()
    for run_s in (1000.0, 10.0, 30.0):
        history.learn(7, run_s)

    assert history.predict_s(7, limit_s=500.0) == 20.0
    assert history.predict_s(7, limit_s=15.0) == 15.0
    assert history.predict_s(8, limit_s=500.0) == 500.0
    assert history.predict_s(8) == inf


def test_the_shortest_expected_goes_first_until_somebody_has_waited_too_long() -> None:
    long, short = (
        gang(1, 4, 8, limit_s=900.0, submitted_s=0.0),
        gang(2, 4, 8, limit_s=900.0, predicted_s=5.0, submitted_s=50.0),
    )
    policy = Policy(order="shortest", starving_s=100.0, backfill_depth=1)

    first = plan(snapshot(facility(), long, short, now_s=60.0), policy)
    later = plan(snapshot(facility(), long, short, now_s=100.0), policy)

    assert [s.job_id for s in first.starts] == [2]
    assert [s.job_id for s in later.starts] == [1]


def test_a_history_is_read_where_the_gang_points_and_less_what_was_done() -> None:
    alone = gang(1, predicted_s=7.0)
    gangs = [
        replace(gang(i), history=at, done_s=done_s)
        for i, at, done_s in ((2, 0, 0.0), (3, 0, 30.0), (4, 1, 9.0))
    ]
    history_s = (40.0, inf)

    told = [predicted_s(one, history_s) for one in (alone, *gangs)]
    assert told == [7.0, 40.0, 10.0, inf]
    assert predicted_of_many([alone, *gangs], history_s).tolist() == told
    assert predicted_of_many([alone], ()).tolist() == [7.0]
    assert (left_s(40.0, 40.0), left_s(40.0, 90.0), left_s(0.5, 0.6)) == (40.0, 90.0, 1.0)


def test_running_work_and_the_queue_are_foretold_by_the_history_of_their_owners() -> None:
    runs = holds(replace(gang(9, 1, 8), history=0), (0, tuple(range(8))), ends_s=90.0)  # since -10
    jobs = [replace(gang(1, 1, 8), history=1), replace(gang(2, 1, 8), history=1)]
    scene = snapshot(facility(leaves=[[0]]), *jobs, running=(runs,))
    waits = plan(replace(scene, history_s=(30.0, 20.0)), Policy(backfill_depth=1)).waits

    assert {wait.job_id: wait.expected_start_s for wait in waits} == {1: 90.0, 2: 20.0}

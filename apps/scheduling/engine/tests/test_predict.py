"""Expected run times, and the order they make."""

from math import inf

from apps.scheduling.engine.facts import Policy
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.predict import History
from apps.scheduling.engine.tests.scenes import facility, gang, snapshot


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

"""In which order the queue is looked at, and what is said of it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.engine.facts import Ask, Gang, Policy, Shape, Snapshot, Team
from apps.scheduling.engine.order import (
    Ahead,
    Line,
    ahead_of,
    capacity_of,
    order_queue,
    share_paths,
    steps_by_age,
)
from apps.scheduling.engine.tests.scenes import facility

HOUSE = facility()
SHAPE = Shape((Ask(kinds=(0,)),))


def ids(queue, *, now_s=0.0, teams=(), **policy):
    n = HOUSE.n_nodes
    snapshot = Snapshot(
        now_s, HOUSE, np.ones(n, dtype=bool), np.zeros(n, dtype=bool), queue=tuple(queue), teams=tuple(teams)
    )
    return [gang.id for gang in order_queue(snapshot, Policy(**policy))]


def gang(number, **more):
    return Gang(number, "", SHAPE, sequence=number, **more)


OLD, NEW = gang(1, submitted_s=0.0), gang(2, submitted_s=100.0, priority=2)


@pytest.mark.parametrize(
    ("now_s", "policy", "order"),
    [
        (1000.0, {}, [2, 1]),
        (99.0, {"ageing_s": 50.0}, [2, 1]),  # one step, against a priority of two
        (149.0, {"ageing_s": 50.0}, [1, 2]),  # two steps, against two: the earlier goes first
        (200.0, {"ageing_s": 100.0}, [2, 1]),
        (299.0, {"ageing_s": 300.0}, [2, 1]),
        (1000.0, {"ageing_s": 0.0}, [2, 1]),  # makes no sense: nobody ages
    ],
)
def test_ageing_is_off_unless_it_is_asked_for_and_moves_by_whole_steps(now_s, policy, order):
    assert ids([OLD, NEW], now_s=now_s, **policy) == order


def test_a_job_that_waited_long_enough_goes_before_one_of_higher_priority():
    young = replace(NEW, submitted_s=200.0)
    assert ids([OLD, young], now_s=201.0, ageing_s=67.0) == [1, 2]
    assert ids([OLD, young], now_s=133.0, ageing_s=67.0) == [2, 1]


def test_steps_by_age():
    assert [steps_by_age(waited_s, 60.0) for waited_s in (-5.0, 0.0, 59.9, 60.0, 600.0)] == [0, 0, 0, 1, 10]
    assert steps_by_age(1e9, inf) == 0


def wide(number, n_devices, **more):
    return Gang(number, "", Shape((Ask(n_replicas=n_devices, kinds=(0,)),)), sequence=number, **more)


@pytest.mark.parametrize(
    ("now_s", "by_width", "order"),
    [
        (29.0, 0.8, [2, 1]),  # the shorter goes first
        (30.0, 0.8, [1, 2]),  # all devices there are: a fifth of 150 s
        (149.0, 0.0, [2, 1]),  # width does not matter
        (150.0, 0.0, [1, 2]),
        (0.0, 1.0, [1, 2]),  # what asks for all is never passed
    ],
)
def test_the_wider_a_job_the_sooner_it_has_waited_too_long_to_be_passed(now_s, by_width, order):
    n_devices = int(capacity_of(HOUSE)[0])
    queue = [wide(1, n_devices, predicted_s=900.0), wide(2, 1, predicted_s=5.0)]

    assert ids(queue, now_s=now_s, order="shortest", starving_s=150.0, starving_by_width=by_width) == order


@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.integers(1, 16), st.floats(1.0, 1e6)), min_size=2, max_size=12
    ),
    st.floats(0.0, 200.0),
    st.floats(0.0, 1.0),
)
def test_nobody_stands_behind_a_job_that_came_later_by_more_than_the_longest_wait(rows, now_s, by_width):
    queue = [
        wide(number, n_devices, submitted_s=at_s, predicted_s=expected_s)
        for number, (at_s, n_devices, expected_s) in enumerate(rows, 1)
        if at_s <= now_s
    ]
    by_id = {one.id: one for one in queue}
    order = ids(queue, now_s=now_s, order="shortest", starving_s=30.0, starving_by_width=by_width)

    for place, number in enumerate(order):
        for other in order[:place]:
            assert by_id[other].submitted_s < by_id[number].submitted_s + 30.0


def line_of(queue, teams, now_s, ageing_s, kinds, *, is_shortest=False):
    paths = share_paths(teams, [8])
    places = {path: place for place, path in enumerate(sorted(set(paths)))}
    return Line(
        id=np.array([one.id for one in queue]),
        priority=np.array([one.priority + steps_by_age(now_s - one.submitted_s, ageing_s) for one in queue]),
        is_overdue=np.array([is_shortest and now_s - one.submitted_s >= 4.0 for one in queue]),
        share=np.array([places[paths[one.team]] for one in queue]),
        expected_s=np.array(
            [one.predicted_s if is_shortest and now_s - one.submitted_s < 4.0 else 0.0 for one in queue]
        ),
        submitted_s=np.array([one.submitted_s for one in queue]),
        deadline_s=np.array([one.deadline_s for one in queue]),
        group=np.array(kinds),
        rivals={0: {0, 2}, 1: {1, 2}, 2: {0, 1, 2}},  # two types, and who takes either
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 3),
            st.integers(0, 4),
            st.sampled_from([5.0, inf]),
            st.integers(0, 2),
            st.sampled_from([3.0, 7.0]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from([inf, 2.0]),
    st.sampled_from(["priority", "shortest"]),
)
def test_so_many_are_ahead_as_the_planner_looks_at_before(rows, use, ageing_s, by):
    queue = [
        gang(
            number,
            priority=priority,
            team=of,
            submitted_s=float(at),
            deadline_s=deadline,
            predicted_s=predicted_s,
        )
        for number, (priority, of, at, deadline, _, predicted_s) in enumerate(rows, 1)
    ]
    # A small tree: two teams of their own, two below the first.
    teams = [Team(i + 1, "", parent=0 if i > 1 else -1, decayed_use_s={0: float(use[i])}) for i in range(4)]
    kinds = [row[4] for row in rows]
    line = line_of(queue, teams, 6.0, ageing_s, kinds, is_shortest=by == "shortest")
    found = ahead_of(line, [one.id for one in queue])
    order = ids(queue, now_s=6.0, teams=teams, ageing_s=ageing_s, order=by, starving_s=4.0)
    kind_of = {one.id: kind for one, kind in zip(queue, kinds, strict=True)}
    compete = {(0, 0), (1, 1), (2, 2), (0, 2), (2, 0), (1, 2), (2, 1)}

    for place, number in enumerate(order):
        before = [other for other in order[:place] if (kind_of[number], kind_of[other]) in compete]
        assert found[number].n == len(before)


def test_each_that_is_ahead_counts_by_the_first_thing_that_tells_it_apart():
    teams = [Team(1, "", decayed_use_s={0: 50.0}), Team(2, "", decayed_use_s={0: 10.0})]
    queue = [
        gang(1, team=0, submitted_s=5.0),
        gang(2, team=0, submitted_s=1.0),
        gang(3, team=1, submitted_s=9.0),
        gang(4, team=0, submitted_s=9.0, priority=1),
        gang(5, team=1, submitted_s=9.0, priority=1),
        gang(6, team=0, submitted_s=6.0),
        gang(7, team=1, submitted_s=0.0, priority=3),
    ]
    line = line_of(queue, teams, 10.0, inf, [0, 0, 0, 0, 0, 0, 1])

    assert ahead_of(line, [1, 7, 99]) == {
        1: Ahead(of_higher_priority=2, below_share=1, earlier=1),
        7: Ahead(),
    }


def test_words():
    said = "Behind 4 jobs: 2 of higher priority, 1 of a team further below its share, 1 submitted earlier."
    assert Ahead(of_higher_priority=2, below_share=1, earlier=1).sentence == said
    said = "Behind 3 jobs: 1 that waited too long to be passed, 2 probably shorter."
    assert Ahead(overdue=1, shorter=2).sentence == said
    assert Ahead(earlier=1).sentence == "Behind 1 job: 1 submitted earlier."
    assert Ahead().sentence == "No job that competes with it goes first."

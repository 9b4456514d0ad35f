"""The exact answer with one limit, against enumeration, and on problems that are too large for that."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.power.curtailment.one_limit import cheapest

classes = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


def arrays(jobs):
    sheds = [np.array([0, *(shed for shed, _ in options)], dtype=np.int64) for options in jobs]
    costs = [np.array([0, *(cost for _, cost in options)], dtype=np.int64) for options in jobs]
    return sheds, costs


def rank(choices, sheds, costs):
    cost = sum(int(c[o]) for c, o in zip(costs, choices, strict=True))
    shed = sum(int(s[o]) for s, o in zip(sheds, choices, strict=True))
    return cost, sum(o > 0 for o in choices), shed


@settings(deadline=None, max_examples=300)
@given(classes, st.floats(0.01, 1))
def test_no_other_choice_is_better_by_any_rule(jobs, share):
    sheds, costs = arrays(jobs)
    most = sum(int(s.max()) for s in sheds)
    need = max(1, round(share * most))
    if most < need:
        return

    found = cheapest(sheds, costs, need)

    every = product(*(range(len(s)) for s in sheds))
    enough = [some for some in every if rank(some, sheds, costs)[2] >= need]
    assert found is not None
    assert found.bound == rank(found.choices, sheds, costs)[0]
    assert rank(found.choices, sheds, costs) == min(rank(some, sheds, costs) for some in enough)


@pytest.mark.parametrize("n_jobs", [50, 200])
def test_of_many_jobs_the_choice_sheds_enough_and_no_job_can_be_put_back(n_jobs):
    chance = Random(n_jobs)
    jobs = [
        [
            (w, round(w * chance.uniform(1, 9)) + 1)
            for w in sorted(chance.randrange(1, 10**12) for _ in "12345")
        ]
        for _ in range(n_jobs)
    ]
    sheds, costs = arrays(jobs)
    need = sum(int(s.max()) for s in sheds) // 4

    found = cheapest(sheds, costs, need, close=0.001)

    assert found is not None
    cost, _, shed = rank(found.choices, sheds, costs)
    assert shed >= need
    assert found.bound <= cost <= found.bound * 1.001001
    for job, option in enumerate(found.choices):
        for other in range(len(sheds[job])):
            if shed - int(sheds[job][option]) + int(sheds[job][other]) >= need:
                assert costs[job][other] >= costs[job][option]
    # What costs nothing is taken before anything that does.
    assert cheapest([*sheds, np.array([0, need])], [*costs, np.array([0, 0])], need).choices[-1] == 1
    assert cost > 0


def test_numbers_that_could_not_be_added_up_are_left_to_others():
    huge = np.array([0, 2**61], dtype=np.int64)

    assert cheapest([np.array([0, 5])] * 4, [huge] * 4, 10) is None

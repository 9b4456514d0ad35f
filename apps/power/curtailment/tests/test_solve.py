"""The curtailment decision on the hall of the acceptance scenarios, and against enumeration on random ones."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.power.curtailment.facts import Candidate, Curtailment, Lever, Limit, Option, Problem
from apps.power.curtailment.solve import greedy, solve
from apps.power.curtailment.tests.hall import CURVE, A, B, C, D, E, hall, load, problem


def told(decided: Curtailment, of: Problem) -> dict[int, float | Lever]:
    """By job: the cap in watts, or the lever."""
    return {
        job: round(option.cap * 700) if option.lever is Lever.CAP else option.lever
        for job, option in decided.chosen(of).items()
    }


def shed_kw(decided: Curtailment, of: Problem) -> float:
    return sum(option.total_uw for option in decided.chosen(of).values()) / 1e9


def loss(decided: Curtailment, of: Problem, window_s: float = 10_800.0) -> float:
    """Weighted device equivalents."""
    return decided.cost_ms / 1000 / window_s


def test_p01_the_batch_job_pauses_and_one_training_is_capped():
    asked = problem(hall(), 18.0)

    decided = solve(asked)

    assert told(decided, asked) == {E: Lever.PAUSE, D: 400}
    assert shed_kw(decided, asked) == pytest.approx(19.2)
    assert loss(decided, asked) == pytest.approx(17.6)
    assert decided.method == "exact"
    assert decided.gap == 0.0


def test_p01_without_credit_for_cooling_a_third_job_helps():
    asked = problem(hall(), 20.7)

    decided = solve(asked)

    assert told(decided, asked) == {E: Lever.PAUSE, D: 400, C: 600}
    assert shed_kw(decided, asked) == pytest.approx(22.4)


def test_p02_what_is_not_done_in_time_is_no_choice():
    asked = problem(hall(), 18.0, within_s=120.0)

    decided = solve(asked)

    assert told(decided, asked) == {E: 300, D: 400, C: 600}
    assert loss(decided, asked) == pytest.approx(18.08)


def test_p03_the_stricter_of_two_events_binds():
    asked = problem(hall(), 24.0)

    decided = solve(asked)

    assert told(decided, asked) == {E: Lever.PAUSE, D: 400, C: 500}
    assert shed_kw(decided, asked) == pytest.approx(25.6)


def test_p05_what_cannot_be_reached_is_said_and_the_most_is_offered():
    asked = problem(hall(), 40.0)

    decided = solve(asked)

    assert not decided.is_feasible
    assert decided.short_uw == (8_000_000_000,)
    assert decided.achievable_uw == (32_000_000_000,)
    assert told(decided, asked) == {E: Lever.PAUSE, D: 300, C: 500, B: 600}


def test_p05_a_cap_above_what_is_drawn_sheds_nothing():
    loads = hall()
    loads[A] = load(A, 2, 4, draw_w=300.0)
    assert {option.lever for option in problem(loads, 40.0).candidates[A].options} == {Lever.NONE}


@pytest.mark.parametrize(("may_stop", "weighted"), [(True, 94.4), (False, 114.4)])
def test_p10_an_emergency_goes_to_the_lowest_caps_and_stops_what_may_be_stopped(may_stop, weighted):
    window_s = 7200.0
    loads = hall(at_risk_s=0.0)
    if not may_stop:
        loads[E] = load(E, 3, 2, checkpoint_s=300.0)
    asked = problem(loads, 42.4, window_s=window_s, within_s=60.0, is_emergency=True)

    decided = solve(asked)

    if may_stop:
        assert told(decided, asked) == {B: 400, C: 300, D: 300, E: Lever.STOP}
        assert shed_kw(decided, asked) == pytest.approx(44.8)
        assert loss(decided, asked, window_s) == pytest.approx(weighted)
    else:
        assert told(decided, asked) == {B: 300, C: 300, D: 300, E: 400}
        assert shed_kw(decided, asked) == pytest.approx(43.2)


def test_lost_work_counts_where_a_job_is_stopped():
    (stopped,) = [
        option
        for option in problem([load(E, 4, 2, at_risk_s=1200.0)], 9.6, window_s=7200.0, is_emergency=True)
        .candidates[0]
        .options
        if option.lever is Lever.STOP
    ]
    assert stopped.lost_ms == 16 * (7200 + 1200) * 1000
    assert stopped.cost_ms == stopped.lost_ms // 2


def test_of_two_jobs_alike_the_later_is_touched():
    asked = problem([load(1, 3, 1), load(2, 3, 1)], 0.8)
    assert list(told(solve(asked), asked)) == [2]


def test_caps_end_where_the_devices_end():
    assert [round(cap * 700) for cap in CURVE.caps()] == [600, 500, 400, 300]
    assert CURVE.rate(450 / 700, 700.0) == pytest.approx(0.77)
    assert CURVE.rate(300 / 700, 250.0) == 1.0


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n_limits = draw(st.integers(1, 3))
    candidates = []
    for job in range(draw(st.integers(1, 6))):
        under = draw(st.lists(st.integers(0, n_limits - 1), min_size=1, max_size=n_limits, unique=True))
        options = [Option(Lever.NONE)]
        shed = cost = 0
        for _ in range(draw(st.integers(0, 3))):
            shed += draw(st.integers(1, 5_000)) * 1_000_000  # whole watts
            cost += draw(st.integers(0, 1000))
            options.append(
                Option(Lever.CAP, 0.5, shed_uw=tuple((limit, shed) for limit in sorted(under)), cost_ms=cost)
            )
        candidates.append(Candidate(job, draw(st.integers(1, 4)), 8.0, tuple(options)))
    limits = tuple(Limit(i, draw(st.integers(0, 20_000)) * 1_000_000) for i in range(n_limits))
    return Problem(tuple(candidates), limits)


def by_enumeration(asked: Problem) -> tuple[int, int, int]:
    """(missing in all, cost, jobs touched) of the best plan."""
    most = [
        sum(max(dict(o.shed_uw).get(i, 0) for o in c.options) for c in asked.candidates)
        for i in range(len(asked.limits))
    ]
    found = []
    for choice in product(*(range(len(c.options)) for c in asked.candidates)):
        picked = [c.options[o] for c, o in zip(asked.candidates, choice, strict=True)]
        missing = sum(
            max(0, min(limit.need_uw, most[i]) - sum(dict(o.shed_uw).get(i, 0) for o in picked))
            for i, limit in enumerate(asked.limits)
        )
        found.append((missing, sum(o.cost_ms for o in picked), sum(1 for o in choice if o)))
    return min(found)


@settings(deadline=None, max_examples=150)
@given(problems())
def test_the_exact_answer_is_the_best_there_is(asked: Problem):
    decided = solve(asked)

    missing, cost, n_touched = by_enumeration(asked)
    assert (
        sum(decided.short_uw)
        == sum(
            max(0, limit.need_uw - most)
            for limit, most in zip(asked.limits, decided.achievable_uw, strict=True)
        )
        + missing
    )
    assert (missing, decided.cost_ms) == (0, cost)
    assert sum(1 for choice in decided.choices if choice) == n_touched


@settings(deadline=None, max_examples=150)
@given(problems())
def test_the_quick_answers_miss_nothing_that_can_be_had(asked: Problem):
    best = solve(asked)
    for decided in (solve(asked, exact_up_to=0), greedy(asked)):
        assert decided.short_uw == best.short_uw
        assert decided.cost_ms >= best.cost_ms
    assert solve(asked, exact_up_to=0).bound_ms <= best.cost_ms + 1

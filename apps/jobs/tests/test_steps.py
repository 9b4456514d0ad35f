"""Step times by rank: added up, and held together."""

import random

import pytest

from apps.jobs.steps import LEAST_STEPS, Ranks, judge


def ranks(n_ranks: int = 0) -> Ranks:
    made = Ranks([], [], [], [], [])
    made.grow(n_ranks)
    return made


def gang(*times_s: float, n_steps: int = LEAST_STEPS, noise: float = 0.0) -> Ranks:
    """Ranks whose steps take about so long."""
    made, dice = ranks(len(times_s)), random.Random(7)
    for step in range(n_steps):
        for rank, time_s in enumerate(times_s):
            made.add(rank, step, time_s * (1 + dice.uniform(-noise, noise)))
    return made


def slow(of: Ranks, group: range | None = None) -> list[int]:
    return [one.rank for one in judge(of, group or range(len(of.counts))) if one.is_slow]


def test_times_are_added_up():
    made = ranks(1)
    for step, time_s in enumerate((1.0, 2.0, 6.0)):
        assert made.add(0, step, time_s)

    assert (made.counts, made.means_s, made.lasts_s) == ([3], [3.0], [6.0])


def test_a_step_that_was_taken_is_not_taken_again():
    made = ranks(1)
    assert made.add(0, 5, 1.0)
    assert not made.add(0, 5, 9.0)
    assert not made.add(0, 4, 9.0)

    assert made.means_s == [1.0]


def test_the_moving_average_follows_what_changed():
    made = gang(1.0, n_steps=50)
    for step in range(50, 100):
        made.add(0, step, 2.0)

    assert made.means_s[0] == pytest.approx(1.5)
    assert made.ewmas_s[0] == pytest.approx(2.0, rel=0.01)


def test_a_slow_first_step_is_soon_forgotten():
    made = ranks(1)
    made.add(0, 0, 100.0)
    for step in range(1, 60):
        made.add(0, step, 1.0)

    assert made.ewmas_s[0] < 1.15


def test_growing_keeps_what_was_there_and_never_shrinks():
    made = gang(1.0, 2.0)
    made.grow(4)
    made.grow(1)

    assert made.counts == [LEAST_STEPS, LEAST_STEPS, 0, 0]


@pytest.mark.parametrize(
    ("times_s", "found"),
    [
        ([1, 1, 1, 1.2], [3]),
        ([1, 1, 1, 1.14], []),  # within 15 %
        ([1, 1, 1, 0.5], []),  # quick is not slow
        ([1, 1.5], []),  # of two nobody can tell
        ([1, 1, 1.5], [2]),
        ([1, 1, 1.5, 1.5], []),  # nor of halves
        ([1, 1, 1, 1.5, 9], [3, 4]),  # one that is worse hides no other
        ([1.0, 1.2, 1.4, 1.6, 1.8, 2.0], []),  # a wide spread is no straggler
    ],
)
def test_who_is_slow(times_s, found):
    assert slow(gang(*times_s)) == found


def test_noise_is_no_straggler():
    assert slow(gang(*[1.0] * 64, noise=0.1)) == []
    assert slow(gang(*[1.0] * 63, 1.4, noise=0.1)) == [63]


def test_too_few_steps_are_no_evidence():
    assert slow(gang(1, 1, 1, 3, n_steps=LEAST_STEPS - 1)) == []


def test_groups_are_held_together_by_themselves():
    made = gang(1, 1, 1, 1, 5, 5, 5)

    assert slow(made, range(4)) == []
    assert slow(made, range(4, 7)) == []


def test_how_much_slower_is_told():
    worst = next(one for one in judge(gang(1, 1, 1, 1.25), range(4)) if one.is_slow)

    assert worst.slower_by == pytest.approx(0.25)
    assert worst.relative_speed == pytest.approx(0.8)

"""The arithmetic of an attempt against a walk through its phases."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from apps.simulation.replay.heap import Agenda, exact, plain
from apps.simulation.replay.progress import Attempt, Saving, declared_work_s

halves = st.integers(1, 40).map(lambda n: Fraction(n, 2))
paces = st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 10)])


@st.composite
def attempts(draw):
    saving = None
    if draw(st.booleans()):
        saving = Saving(
            draw(halves), draw(st.sampled_from([Fraction(0), Fraction(1), Fraction(5, 2)])), Fraction(0)
        )
    return Attempt(draw(halves), draw(paces), draw(st.sampled_from([Fraction(0), Fraction(3)])), saving)


def phases(attempt):
    """(what, seconds) from the start to the end of the work."""
    if attempt.restart_s:
        yield "starting", attempt.restart_s
    left_s = attempt.work_s / attempt.pace
    while attempt.saving is not None and left_s > attempt.saving.interval_s:
        yield "work", attempt.saving.interval_s
        yield "checkpoint", attempt.saving.cost_s
        left_s -= attempt.saving.interval_s
    yield "work", left_s


def walked(attempt, elapsed_s):
    """(seconds by phase, seconds since the last checkpoint, work saved) after so much running time."""
    spent = {"starting": Fraction(0), "work": Fraction(0), "checkpoint": Fraction(0)}
    since, saved, worked = Fraction(0), Fraction(0), Fraction(0)
    for what, length_s in phases(attempt):
        step = min(length_s, elapsed_s)
        spent[what] += step
        since += step
        elapsed_s -= step
        worked += step if what == "work" else 0
        if step < length_s:
            break
        if what == "checkpoint":
            since, saved = Fraction(0), worked
    return spent, since, saved * attempt.pace


@given(attempts())
def test_an_attempt_lasts_as_long_as_its_phases(attempt):
    assert attempt.length_s == sum(length_s for _, length_s in phases(attempt))


@given(attempts(), st.fractions(0, 1))
def test_a_cut_loses_what_came_after_the_last_checkpoint(attempt, share):
    elapsed_s = attempt.length_s * share
    if share == 1:
        return  # it has ended, and is not cut
    _, since, saved_s = walked(attempt, elapsed_s)

    assert attempt.lost_s(elapsed_s) == since
    assert attempt.saved_work_s(elapsed_s) == saved_s


@given(attempts(), st.lists(st.tuples(st.fractions(0, 1), paces), max_size=4), st.fractions(0, 1))
def test_a_resize_by_restart_takes_both_each_time_and_keeps_all_work_once_it_is_over(attempt, turns, share):
    saving = Saving(Fraction(5), Fraction(2), Fraction(3), on_resize=True)
    attempt, left_s, unsaved_s = replace(attempt, saving=saving), attempt.work_s, Fraction(0)
    head_s = attempt.restart_s
    for part, pace in turns:
        elapsed_s = attempt.length_s * part
        left_s -= attempt.split(elapsed_s, is_lost=False).work_s * attempt.pace
        unsaved_s = attempt.lost_s(elapsed_s)
        attempt, head_s = attempt.resized(elapsed_s, pace), Fraction(5)

        assert attempt.length_s == head_s + Attempt(left_s, pace, Fraction(0), saving).length_s
        assert attempt.lost_s(Fraction(0)) == unsaved_s
        assert attempt.lost_s(head_s / 2) == unsaved_s + head_s / 2
        assert attempt.lost_s(head_s) == 0
    elapsed_s = attempt.length_s * share
    for is_lost in (False, True):
        assert attempt.split(elapsed_s, is_lost=is_lost).total_s == elapsed_s


@given(attempts(), st.fractions(0, 1), st.booleans())
def test_the_split_of_running_time_is_whole(attempt, share, is_lost):
    elapsed_s = attempt.length_s * share
    split = attempt.split(elapsed_s, is_lost=is_lost)
    parts = (split.work_s, split.starting_s, split.checkpoint_s, split.rework_s)

    assert sum(parts) == elapsed_s
    assert min(parts) >= 0
    if not is_lost:
        spent, _, _ = walked(attempt, elapsed_s)
        assert (split.work_s, split.starting_s, split.checkpoint_s) == tuple(
            spent[what] for what in ("work", "starting", "checkpoint")
        )


@given(attempts(), st.lists(paces, min_size=1, max_size=3), st.sampled_from([1, 40]))
def test_what_a_planner_is_told_is_never_too_short(attempt, several, times):
    told_s = declared_work_s(
        attempt.work_s, restart_s=attempt.restart_s, saving=attempt.saving, paces=several * times
    )

    for pace in several:
        assert told_s / pace >= Attempt(attempt.work_s, pace, attempt.restart_s, attempt.saving).length_s


def test_numbers_are_what_they_were_written_as():
    assert exact(0.1) + exact(0.2) == exact(0.3)
    assert plain(Fraction(4, 2)) == 2
    assert plain(Fraction(1, 2)) == 0.5


def test_things_of_one_instant_come_together_in_order_of_rank():
    agenda: Agenda[str] = Agenda()
    agenda.put(Fraction(1), (2,), "start")
    agenda.put(Fraction(1), (0,), "end")
    agenda.put(Fraction(1) + Fraction(1, 10**17), (0,), "end a hair later")
    agenda.put(Fraction(3), (0,), "later")

    assert agenda.take_instant() == ["end", "end a hair later", "start"]
    assert agenda.take_instant() == ["later"]

"""Measured speeds of nodes, on a real PostgreSQL."""

from datetime import datetime, timedelta

import pytest

from apps.events.models import Event
from apps.inventory import health, pace, services
from apps.inventory.models import Node, PaceReading
from apps.inventory.pace import Pace
from apps.inventory.tests.builders import node
from apps.teams.tests.builders import NOON

pytestmark = pytest.mark.django_db


def after(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def note(of: Node, minutes: float, speed: float, job: int = 1) -> list[Node]:
    paces = {of.pk: Pace(speed, is_slow=speed < 0.87)}
    return pace.note_paces(allocation_id=job, job_id=job, paces=paces, at=after(minutes))


def speed(of: Node) -> float:
    of.refresh_from_db()
    return of.measured_speed


def test_slow_in_one_job_is_no_straggler_yet():
    made = node()
    for minutes in (0, 5, 29):
        note(made, minutes, 0.7)

    assert speed(made) == 1.0


def test_slow_in_two_jobs_is_a_straggler():
    made = node()
    note(made, 0, 0.7, job=1)
    note(made, 5, 0.8, job=2)

    assert speed(made) == 0.75
    assert made.speed == 1.0
    event = Event.objects.get(kind="node.straggling")
    assert (event.is_audit, event.data["job_ids"], event.before["measured_speed"]) == (True, [1, 2], 1.0)


def test_slow_in_one_job_for_long_is_a_straggler():
    made = node()
    note(made, 0, 0.7)
    note(made, 30, 0.7)

    assert speed(made) == 0.7


def test_a_node_that_kept_pace_in_between_was_not_slow_for_long():
    made = node()
    note(made, 0, 0.7)
    note(made, 15, 1.0)
    note(made, 31, 0.7)

    assert speed(made) == 1.0


def test_another_job_of_long_ago_is_no_evidence():
    made = node()
    note(made, 0, 0.7, job=1)
    note(made, 25 * 60, 0.7, job=2)

    assert speed(made) == 1.0


def test_small_changes_are_not_written():
    made = node()
    note(made, 0, 0.7, job=1)
    note(made, 1, 0.7, job=2)
    note(made, 2, 0.71, job=2)
    note(made, 3, 0.5, job=2)

    assert speed(made) == 0.6
    assert Event.objects.filter(kind="node.straggling").count() == 2


def test_a_node_that_keeps_pace_comes_back_step_by_step():
    made = node()
    note(made, 0, 0.6, job=1)
    note(made, 1, 0.6, job=2)
    seen = []
    for minutes in (5, 12, 13, 25, 40, 55, 70, 85):
        note(made, minutes, 1.0, job=3)
        seen.append(speed(made))

    assert seen == [0.6, 0.8, 0.8, 0.9, 0.95, 1.0, 1.0, 1.0]
    assert Event.objects.filter(kind="node.pace_regained").count() == 1
    # The slate is clean: one slow job is not enough again.
    note(made, 90, 0.6, job=4)
    assert speed(made) == 1.0


def test_it_does_not_come_back_while_another_job_finds_it_slow():
    made = node()
    note(made, 0, 0.6, job=1)
    note(made, 1, 0.6, job=2)
    note(made, 14, 0.6, job=2)
    note(made, 15, 1.0, job=3)

    assert speed(made) == 0.6


def test_what_nobody_confirms_fades():
    made = node()
    note(made, 0, 0.6, job=1)
    note(made, 1, 0.6, job=2)
    services.settle_health(at=after(23 * 60))
    assert speed(made) == 0.6
    services.settle_health(at=after(24 * 60 + 2))
    assert speed(made) == 0.8
    services.settle_health(at=after(24 * 60 + 2))

    assert speed(made) == 0.8


def test_resuming_takes_a_node_at_its_declared_speed_again():
    made = node()
    note(made, 0, 0.6, job=1)
    note(made, 1, 0.6, job=2)
    services.resume_node(node_id=made.pk, actor=None, at=after(2))
    note(made, 3, 0.6, job=2)

    assert speed(made) == 1.0


def test_no_estimate_is_absurd():
    made = node()
    note(made, 0, 1e-9, job=1)
    note(made, 1, 0.0, job=2)

    assert speed(made) == health.SLOWEST


def test_of_a_node_that_always_kept_pace_nothing_is_kept():
    note(node(), 0, 1.0)

    assert not PaceReading.objects.exists()

"""Every beat and every wake-up names a task that is there, in a queue that a worker of the Procfile takes from."""

from pathlib import Path

import pytest

from apps.core.wakeup import _queue_of
from scheduler_site.celery import WAKES, app

TASKS = sorted({entry["task"] for entry in app.conf.beat_schedule.values()} | {wake.task for wake in WAKES})
PROCFILE = Path(__file__).resolve().parents[2] / "Procfile"


@pytest.mark.parametrize("task", TASKS)
def test_what_is_asked_for_exists(task):
    app.loader.import_default_modules()

    assert task in app.tasks


@pytest.mark.parametrize("task", TASKS)
def test_some_worker_takes_it(task):
    taken = {
        queue
        for line in PROCFILE.read_text().splitlines()
        if " -Q " in line
        for queue in line.split(" -Q ")[1].split()[0].split(",")
    }

    assert _queue_of(app, task) in taken


def test_planning_and_power_have_workers_of_their_own():
    lines = PROCFILE.read_text()

    assert " -Q planning " in lines
    assert " -Q power " in lines


def test_meters_are_read_by_the_power_loop_and_what_they_say_is_learned_elsewhere():
    assert _queue_of(app, "power.read_meters") == "power"
    assert _queue_of(app, "scheduling.learn_power") == "rollups"

"""When levers are used: the hall of the scenes, in the first second of an event."""

from dataclasses import replace

from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import schedule
from apps.power.curtailment.tests.hall import D, E, hall, problem


def test_a_pause_that_is_quicker_than_any_cap_is_not_forgotten_beside_one():
    *others, batch = hall()
    asked = problem([*others, replace(batch, checkpoint_s=2.0)], 18.0)

    decided = schedule(asked, start_s=0.0, margin_s=15.0)

    lasting = decided.lasting.chosen(asked)
    assert {job_id: option.lever for job_id, option in lasting.items()} == {D: Lever.CAP, E: Lever.PAUSE}
    assert {step.job_id: step.option for step in decided.steps if not step.is_bridge} == lasting

"""What is free while a scenario is played, and of what use it is."""

from fractions import Fraction

import numpy as np
import pytest

from apps.scheduling.engine.facts import Share
from apps.scheduling.engine.tests.scenes import facility, gang
from apps.simulation import free, report
from apps.simulation.tests.test_planning import run_scene, scene_of


def fragmentation(outcome):
    return report.summary(outcome)["metrics"]["fragmentation"]


def test_means_are_over_time_from_the_beginning_to_the_end():
    # One node of 8: six devices are held for 50 s, and the second job, which asks four, waits for them.
    outcome = run_scene(scene_of({"devices": 6, "runtime": 50}, {"devices": 4, "runtime": 50, "submit": 10}))
    (told,) = fragmentation(outcome).values()

    # 0 to 50: two are free, of no use to either. 50 to 100: four, of no use to the first.
    assert told["free"] == pytest.approx((50 * 2 + 50 * 4) / 100)
    assert told["of_no_use"] == pytest.approx((50 * 2 + 50 * 4 / 2) / 100)
    assert told["of_no_use_to_gangs"] is None


def test_a_node_that_is_out_has_nothing_free():
    scene = scene_of({"devices": 8, "runtime": 10, "submit": 90})
    node = scene["facility"]["nodes"][0]["name"]
    scene["events"] = [
        {"t": 20, "type": "node_drain", "node": node},
        {"t": 60, "type": "node_recover", "node": node},
    ]
    outcome = run_scene(scene)
    (told,) = fragmentation(outcome).values()

    assert told["free"] == pytest.approx(8 * (20 + 30) / 100)
    assert told["of_no_use"] == 0.0


def test_in_a_long_simulation_it_looks_now_and_then_and_comes_to_about_the_same(monkeypatch):
    def told(most):
        monkeypatch.setattr(free, "_MOST", most)
        of = facility(leaves=[[0]])
        meter = free.FreeMeter(of, [gang(1, 1, 4)])
        one, placing = gang(1, 1, 6), (Share(0, 0, 1, tuple(range(6))),)
        for i in range(2000):
            if i % 3:
                meter.hold(one, placing, -1 if i % 3 == 2 else 1)
            meter.look(Fraction(i), np.array([True]))
        return meter._n_looks, meter.report(Fraction(2000))["H100"]

    (n_all, exactly), (n_some, about) = told(10**6), told(20)
    assert n_some < 200 < n_all
    assert about["free"] == pytest.approx(exactly["free"], rel=0.2)

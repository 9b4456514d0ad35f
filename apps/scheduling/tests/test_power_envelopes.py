"""Envelopes by the hour in the running service: what would run into a lower step waits, what runs is slowed in time.

The hall of the design notes on power, section 4: 132.4 kW drawn, 150 kW at the most, three nodes free.
"""

import pytest

from apps.events.models import Event
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.tests.builders import job
from apps.power.budget import EVERY_DAY, Step
from apps.power.models import CurtailmentPlan, DemandResponseEvent, PlanState
from apps.power.services import set_envelope
from apps.power.tests.builders import draw
from apps.power.watchdog import Watchdog
from apps.scheduling.models import Pass, Reason
from apps.scheduling.snapshot import seconds, take_snapshot
from apps.scheduling.tests.response_hall import A, B, C, D, E, announce, clock, hall

pytestmark = pytest.mark.django_db(transaction=True)


def envelope(scene, *steps, at=None):
    set_envelope(
        domain_id=scene.domain.pk, steps=steps, time_zone="UTC", actor=None, at=at or clock(12), reason="grid"
    )


def afternoon(limit_w, begin=15, end=18):
    return Step(limit_w, EVERY_DAY, begin * 60, end * 60)


def submit(scene, name, *, at, limit_s, tier=0, n_nodes=1):
    """So many nodes, for so long at the most."""
    of = Job.objects.select_related("team", "user").get(pk=scene.jobs[A])
    asked = {"replicas": n_nodes, "devices": 8, "power_w": 700.0, "time_limit": limit_s, "flexibility": tier}
    scene.jobs[name] = job(of.team, of.user, at=at, name=name, **asked).pk


def test_a_job_that_would_run_into_a_lower_step_waits_for_the_hour_at_which_it_rises():
    scene = hall()
    envelope(scene, afternoon(134e3))
    submit(scene, "long", at=clock(14), limit_s=3601.0, n_nodes=3)
    scene.at(clock(14), plan=True)

    assert scene.state("long") == State.QUEUED
    told = Reason.objects.get(job_id=scene.jobs["long"])
    assert (told.code, told.expected_start_at) == ("power", clock(18))
    assert told.sentence.startswith(
        "The limit of hall falls to 134.0 kW in 1 h, which leaves 11.2 kW; it needs 14.4 kW"
    )
    assert told.facts["rises_s"] == seconds(clock(18))
    scene.at(clock(15, 30), plan=True)
    assert Reason.objects.get(job_id=scene.jobs["long"]).sentence.startswith(
        "hall has 1.6 kW left; it needs 14.4 kW."
    )
    scene.at(clock(18), plan=True)
    assert scene.state("long") == State.RUNNING
    assert not Pass.objects.filter(is_refused=True).exists()


def test_what_is_over_by_then_starts():
    scene = hall()
    envelope(scene, afternoon(134e3))
    submit(scene, "short", at=clock(14), limit_s=3600.0, n_nodes=3)
    scene.at(clock(14), plan=True)
    assert scene.state("short") == State.RUNNING


def test_whose_tier_bears_it_starts_under_a_cap_that_fits_through_the_step():
    scene = hall()
    envelope(scene, afternoon(125e3))
    submit(scene, "X", at=clock(14), limit_s=7200.0, tier=3)
    scene.at(clock(14), plan=True)
    assert (scene.state("X"), scene.share("X")) == (State.RUNNING, 300.0)


def test_the_pass_is_run_again_when_a_step_ends_though_nothing_happens():
    scene = hall()
    envelope(scene, afternoon(134e3))
    submit(scene, "long", at=clock(14), limit_s=9 * 3600.0)
    scene.at(clock(17, 59), plan=True)
    assert Pass.objects.latest("pk").next_boundary_at <= clock(18)


def test_what_runs_is_slowed_before_a_step_falls_and_gets_its_power_back_after_it():
    scene = hall()
    envelope(scene, afternoon(114.4e3))
    scene.through(clock(14, 44), clock(14, 54), every_s=60.0)
    scene.through(clock(14, 54), clock(15), every_s=15.0)
    seen = scene.through(clock(15), clock(17, 59), every_s=600.0, plan=True)

    assert max(seen.values()) <= 114.4e3
    assert (scene.state(E), scene.share(D)) == (State.PAUSED, 400.0)
    event = DemandResponseEvent.objects.get()
    assert (event.source, event.start_at, event.end_at) == ("schedule", clock(15), clock(18))
    audit = Event.objects.get(kind="curtailment.committed")
    assert audit.data["policy"]["name"] == "envelope"
    scene.through(clock(18), clock(18, 2), every_s=20.0, plan=True)
    assert (scene.state(E), scene.share(D)) == (State.RUNNING, 700.0)
    assert scene.draw_w(clock(18, 2)) == pytest.approx(132.4e3)


def test_an_envelope_that_is_kept_anyway_asks_nobody():
    scene = hall()
    envelope(scene, afternoon(133e3))
    scene.through(clock(14, 44), clock(15, 1), every_s=30.0)
    assert not DemandResponseEvent.objects.exists()


def test_an_envelope_that_is_changed_gives_back_what_it_had_asked():
    scene = hall()
    envelope(scene, afternoon(114.4e3))
    scene.through(clock(14, 50), clock(15), every_s=30.0)
    assert scene.share(D) == 400.0
    envelope(scene, at=clock(15, 1))
    scene.through(clock(15, 1), clock(15, 3), every_s=20.0, plan=True)
    assert (scene.state(E), scene.share(D)) == (State.RUNNING, 700.0)
    assert DemandResponseEvent.objects.get().outcome == "cancelled"


def test_the_watchdog_knows_of_the_step_that_holds():
    scene = hall()
    envelope(scene, Step(120e3, 1 << clock(15).weekday(), 15 * 60, 3 * 60))  # over midnight
    dog = Watchdog()
    for at, is_over in ((clock(14, 59), False), (clock(15), True), (clock(23, 59), True)):
        told = [one.message for one in dog.look(at).raised if "envelope" in one.message]
        assert bool(told) == (is_over and at == clock(15))


def test_what_a_committed_event_will_do_is_known_before_it_binds():
    scene = hall()
    draw(scene.domain, 132.4e3, at=clock(12), source="modelled")
    event = announce(at=clock(12), actor=scene.operator, notified_at=clock(12))
    scene.commit(event, scene.preview(event, at=clock(12)), at=clock(12))
    snapshot = take_snapshot(clock(12, 5)).snapshot

    limits = [(change.at_s, change.limit_w) for change in snapshot.limit_changes]
    assert limits[0] == (seconds(clock(14)), pytest.approx(114.4e3))
    caps = {(c.at_s, c.job_id): c.cap for c in snapshot.cap_changes}
    assert caps[seconds(clock(14)), scene.jobs[D]] == pytest.approx(400 / 700)
    assert caps[seconds(clock(14)), scene.jobs[E]] == 0.0
    assert caps[seconds(clock(17)), scene.jobs[D]] == caps[seconds(clock(17)), scene.jobs[E]] == 1.0
    # 1.2 kW are left while it binds: nothing for a node, until 17:00; what is over by 14:00 starts.
    submit(scene, "long", at=clock(12, 5), limit_s=2 * 3600.0)
    submit(scene, "short", at=clock(12, 5), limit_s=3600.0)
    scene.at(clock(12, 6), plan=True)
    assert (scene.state("long"), scene.state("short")) == (State.QUEUED, State.RUNNING)
    told = Reason.objects.get(job_id=scene.jobs["long"])
    assert told.expected_start_at == clock(17)
    assert "falls to 114.4 kW" in told.sentence
    assert not Pass.objects.filter(is_refused=True).exists()
    assert CurtailmentPlan.objects.filter(state=PlanState.COMMITTED).count() == 1
    assert [scene.share(name) for name in (B, C)] == [700.0, 700.0]

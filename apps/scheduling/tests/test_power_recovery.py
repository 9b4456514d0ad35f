"""The load comes back after an event, in the running service: by the ramp, under the rebound limit, in order.

Scenes and numbers: design notes on power, section 4.
"""

from datetime import timedelta

import pytest

from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import job, person, team
from apps.power import settlement_services
from apps.power.models import ActionState, CurtailmentAction, Outcome, SettlementReport
from apps.power.response import Phase
from apps.power.response_selectors import event_by_id, loads_of, phase_of_event
from apps.power.response_services import cancel_event
from apps.scheduling.models import Pass, Reason
from apps.scheduling.response.ahead import look_ahead
from apps.scheduling.tests.response_hall import B, C, D, E, announce, clock, hall

pytestmark = pytest.mark.django_db(transaction=True)
RAMP = 3200 / 60  # W/s: a step of one job a minute


def in_p01(**more):
    """P01 at 14:00: E paused, D at 400 W, 113.2 kW."""
    scene = hall(ramp_w_per_s=RAMP, **more)
    event = announce(actor=scene.operator, recovery_s=3600)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    assert scene.draw_w(clock(14)) == pytest.approx(113.2e3)
    return scene, event


def phase(event, at):
    event = event_by_id(event.pk)
    return phase_of_event(event, load=loads_of([event], at=at)[event.pk], at=at)


def by_minute(seen, hour, minutes):
    return [round(seen[clock(hour, minute)] / 1e3, 1) for minute in minutes]


def test_p04_cancelled_midway_it_comes_back_by_the_ramp_tier_3_before_tier_4():
    scene, event = in_p01()
    scene.at(clock(15))
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(15), reason="called off")
    assert phase(event, clock(15)) is Phase.RECOVERING

    seen = scene.through(clock(15), clock(15, 3) + timedelta(seconds=40), every_s=20.0, plan=True)
    assert (scene.share(D), scene.state(E)) == (700.0, State.QUEUED)
    held_w = {}
    for minute in range(4, 9):
        last = clock(15, minute) + timedelta(seconds=40)
        seen |= scene.through(clock(15, minute), last, every_s=20.0, plan=True)
        held_w[minute] = scene.share(E)

    drawn = [113.2, 116.4, 119.6, 122.8, 126.0, 129.2, 132.4, 132.4, 132.4]
    assert by_minute(seen, 15, range(9)) == drawn
    assert held_w == {4: 300.0, 5: 500.0, 6: 700.0, 7: 700.0, 8: 700.0}
    for at, draw_w in seen.items():
        minute = int((at - clock(15)).total_seconds() // 60)
        assert draw_w <= 113.2e3 + 3200 * minute + 1
    assert phase(event, clock(15, 8)) is Phase.CANCELLED
    event.refresh_from_db()
    assert event.outcome == Outcome.CANCELLED
    assert clock(15, 6) <= event.released_at <= clock(15, 7)
    assert not Pass.objects.filter(is_refused=True).exists()


def test_p04_it_is_settled_for_the_time_it_bound():
    scene, event = in_p01()
    scene.through(clock(14), clock(15), every_s=300.0)
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(15), reason="called off")
    scene.through(clock(15), clock(15, 8), every_s=20.0, plan=True)

    settlement_services.settle_event(event_id=event.pk, actor=scene.operator, at=clock(15, 30))

    document = SettlementReport.objects.get(event=event).document
    ends = [row["end_at"] for row in document["intervals"]]
    assert max(ends) == clock(15).isoformat()
    assert min(row["start_at"] for row in document["intervals"]) == clock(14).isoformat()


def test_p04_cancelled_before_it_binds_a_running_checkpoint_ends_and_the_job_goes_on():
    scene = hall(ramp_w_per_s=RAMP)
    event = announce(actor=scene.operator, recovery_s=3600)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(13, 57), every_s=15.0)
    assert scene.state(E) == State.PAUSING
    attempt = Allocation.objects.get(job_id=scene.jobs[E], ended_at=None).pk
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(13, 57), reason="called off")

    seen = scene.through(clock(13, 57), clock(14, 10), every_s=15.0, plan=True)

    assert scene.state(E) == State.RUNNING
    assert scene.share(D) == scene.share(E) == 700.0
    assert scene.draw_w(clock(14, 10)) == pytest.approx(132.4e3)
    rises = [later - seen[at] for at, later in zip(seen, list(seen.values())[1:], strict=False)]
    assert max(rises) <= 3200 + 1
    event.refresh_from_db()
    assert event.outcome == Outcome.CANCELLED
    assert not CurtailmentAction.objects.exclude(state=ActionState.REVERTED).exists()
    assert attempt


def test_only_who_was_really_paused_goes_first_and_until_it_has_started_again():
    scene, event = in_p01()
    assert look_ahead(clock(14)).resumed == frozenset()
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(14, 1), reason="called off")
    assert look_ahead(clock(14, 1)).resumed == {scene.jobs[E]}
    scene.through(clock(14, 1), clock(14, 8), every_s=20.0, plan=True)
    assert scene.state(E) == State.RUNNING
    assert look_ahead(clock(14, 8)).resumed == frozenset()


def test_a_pause_that_was_planned_and_never_carried_out_lets_nobody_go_first():
    scene = hall(ramp_w_per_s=RAMP)
    event = announce(actor=scene.operator, recovery_s=3600)
    scene.commit(event, scene.preview(event))
    scene.at(clock(13, 54))
    attempt = Allocation.objects.get(job_id=scene.jobs[E], ended_at=None)
    # Before its pause is asked for it loses its node, and waits in line like everybody else.
    ledger.allocation_ended(
        allocation_id=attempt.pk, fence=attempt.fence, at=clock(13, 54), outcome="node_lost"
    )
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(14, 1), reason="called off")

    assert CurtailmentAction.objects.filter(job_id=scene.jobs[E], lever="pause").exists()
    assert scene.state(E) == State.QUEUED
    assert look_ahead(clock(14, 1)).resumed == frozenset()


def three_deferred(scene):
    for i in (1, 2, 3):
        scene.submit(f"X{i}", tier=2, at=clock(14, i))


def test_p08_deferred_jobs_come_after_those_who_were_slowed_and_under_the_rebound_limit():
    scene, _ = in_p01()
    three_deferred(scene)
    scene.at(clock(14, 5), plan=True)
    assert [scene.state(f"X{i}") for i in (1, 2, 3)] == [State.QUEUED] * 3

    seen = scene.through(clock(16, 59), clock(17, 12), every_s=20.0, plan=True)
    assert by_minute(seen, 17, range(10)) == [
        113.2,
        116.4,
        119.6,
        122.8,
        126.0,
        129.2,
        132.4,
        135.6,
        137.2,
        137.2,
    ]
    assert (scene.state("X1"), scene.share("X1")) == (State.RUNNING, 700.0)
    assert [scene.state(f"X{i}") for i in (2, 3)] == [State.QUEUED] * 2  # 139.02 kW until 18:00
    told = Reason.objects.get(job_id=scene.jobs["X2"])
    assert told.code == "power"
    assert "1.8 kW left" in told.sentence

    seen = scene.through(clock(17, 58), clock(18, 6), every_s=20.0, plan=True)
    assert by_minute(seen, 17, (58, 59)) == [137.2, 137.2]
    assert by_minute(seen, 18, range(7)) == [140.4, 142.0, 145.2, 146.8, 146.8, 146.8, 146.8]
    assert [scene.share(f"X{i}") for i in (1, 2, 3)] == [700.0] * 3
    assert not Pass.objects.filter(is_refused=True).exists()


def test_p08_without_a_ramp_the_rebound_limit_alone_holds_them_back():
    scene = hall()
    event = announce(actor=scene.operator, recovery_s=3600)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    three_deferred(scene)
    seen = scene.through(clock(17), clock(17, 5), every_s=20.0, plan=True)
    assert max(seen.values()) == pytest.approx(137.2e3)
    assert max(scene.through(clock(17, 57), clock(17, 59), every_s=30.0, plan=True).values()) <= 139.02e3
    scene.through(clock(18), clock(18, 1), every_s=20.0, plan=True)
    assert scene.draw_w(clock(18, 1)) == pytest.approx(146.8e3)


def test_p08_without_a_rebound_rule_all_come_back_at_once_up_to_the_hard_limit():
    scene = hall()
    event = announce(actor=scene.operator, recovery_s=0)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    three_deferred(scene)
    scene.through(clock(17), clock(17, 1), every_s=20.0, plan=True)
    assert scene.draw_w(clock(17, 1)) == pytest.approx(146.8e3)


def test_small_new_jobs_do_not_start_before_a_paused_larger_one_is_back():
    scene, _ = in_p01()
    # Of a team that has used nothing yet: by their share they would go first.
    others = team("others")
    small = [
        job(others, person(others), at=clock(14, 1), name=f"S{i}", replicas=1, devices=1, power_w=700.0,
            runtime=1e6, flexibility=0)
        for i in range(8)
    ]  # fmt: skip
    ids = [one.pk for one in small]
    scene.at(clock(14, 5), plan=True)
    n_before = Allocation.objects.filter(job__in=ids).count()
    assert n_before == 2  # in the 1.2 kW that the event leaves
    order = []
    for second in range(0, 10 * 60, 20):
        scene.at(clock(17) + timedelta(seconds=second), plan=True)
        n_started = Job.objects.filter(pk__in=ids).exclude(state=State.QUEUED).count() - n_before
        order.append((scene.state(E) == State.RUNNING and scene.share(E) == 700.0, n_started))

    assert any(is_back and n for is_back, n in order)
    assert not any(n and not is_back for is_back, n in order)
    assert [scene.share(name) for name in (B, C, D, E)] == [700.0] * 4
    assert not Pass.objects.filter(is_refused=True).exists()

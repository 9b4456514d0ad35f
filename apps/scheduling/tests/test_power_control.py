"""An event from its notice to the end, in the running service: what was committed is done, and given back.

Scenes and numbers: design notes on power, section 4.
"""

from datetime import timedelta

import pytest

from apps.jobs.lifecycle import State
from apps.power.models import ActionState, CurtailmentAction, DemandResponseEvent, PowerHold, PowerReading
from apps.power.override_services import add_override
from apps.power.response_services import cancel_event
from apps.power.settlement_selectors import committed_plans, cost_of
from apps.power.tests.builders import draw
from apps.scheduling.models import Pass, Reason
from apps.scheduling.response import control
from apps.scheduling.response import services as response
from apps.scheduling.response.site import read_site
from apps.scheduling.tests.response_hall import NOTICE, A, B, C, D, E, announce, clock, hall

pytestmark = pytest.mark.django_db(transaction=True)


def states(event):
    rows = CurtailmentAction.objects.filter(plan__event=event)
    return {(row.job_id, row.lever): row.state for row in rows}


def test_p01_a_job_is_paused_and_one_is_slowed_in_time():
    scene = hall()
    event = announce(actor=scene.operator)
    plan = scene.preview(event)
    assert (plan.predicted_shed_w, plan.shortfall_w) == (pytest.approx(19.2e3), 0)
    assert {row["name"]: row["cap_w"] for row in plan.plan["jobs"]} == {E: None, D: 400.0}

    scene.commit(event, plan)
    scene.through(NOTICE, clock(13, 54), every_s=60.0)
    assert (scene.state(E), scene.share(D)) == (State.RUNNING, 700.0)  # nobody is held down before
    scene.through(clock(13, 54), clock(13, 59) + timedelta(seconds=45), every_s=15.0)
    seen = scene.through(clock(14), clock(14, 10), every_s=30.0)

    assert max(seen.values()) <= 114.4e3
    assert scene.draw_w(clock(14, 10)) == pytest.approx(113.2e3)
    assert (scene.state(E), scene.share(D)) == (State.PAUSED, 400.0)
    assert [scene.share(name) for name in (A, B, C)] == [700.0, 700.0, 700.0]
    assert set(states(event).values()) == {ActionState.VERIFIED}


def test_p01_what_was_taken_comes_back_by_the_ramp():
    scene = hall(ramp_w_per_s=3200 / 60)
    event = announce(actor=scene.operator, recovery_s=3600)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    scene.at(clock(15))
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(15), reason="called off")

    seen = scene.through(clock(15), clock(15, 12), every_s=20.0, plan=True)

    at_minute = [round(seen[clock(15, minute)] / 1e3, 1) for minute in range(4)]
    assert at_minute == [113.2, 116.4, 119.6, 122.8]  # D first: tier 3 before 4
    drawn = [seen[clock(15, minute)] for minute in range(13)]
    allowed = [113.2e3 + 3200 * minute for minute in range(13)]
    assert all(draw <= most + 1 for draw, most in zip(drawn, allowed, strict=True))
    assert scene.share(D) == 700.0
    assert scene.state(E) == State.RUNNING
    assert set(states(event).values()) == {ActionState.REVERTED}
    event.refresh_from_db()
    assert event.released_at is not None
    assert not Pass.objects.filter(is_refused=True).exists()


def test_p02_others_stand_in_for_a_checkpoint_that_comes_too_late():
    scene = hall(checkpoint_s=1200.0)
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    scene.through(NOTICE, clock(13, 59) + timedelta(seconds=45), every_s=15.0)
    seen = scene.through(clock(14), clock(14, 12), every_s=10.0)

    assert max(seen.values()) <= 114.4e3
    assert seen[clock(14, 1)] == pytest.approx(113.2e3)
    assert (scene.state(E), scene.share(D), scene.share(C)) == (State.PAUSED, 400.0, 700.0)
    assert scene.draw_w(clock(14, 12)) == pytest.approx(113.2e3)


def test_p03_of_two_events_the_stricter_binds_and_the_first_one_stays_in_force():
    scene = hall()
    first = announce(actor=scene.operator)
    scene.commit(first, scene.preview(first))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    scene.at(clock(15))
    second = announce(
        at=clock(15),
        actor=scene.operator,
        priority=0,
        target_kind="limit_to",
        value=108.4e3,
        start_at=clock(15, 30),
        end_at=clock(16, 30),
        recovery_s=0,
    )
    plan = scene.preview(second, at=clock(15))
    assert {row["name"]: row["cap_w"] for row in plan.plan["jobs"]} == {C: 500.0}
    scene.commit(second, plan, at=clock(15))
    scene.through(clock(15, 29), clock(15, 30), every_s=15.0)
    seen = scene.through(clock(15, 30), clock(16, 29), every_s=60.0)
    assert max(seen.values()) <= 108.4e3
    assert scene.draw_w(clock(16)) == pytest.approx(106.8e3)

    seen = scene.through(clock(16, 30), clock(16, 59), every_s=60.0)
    assert max(seen.values()) <= 114.4e3
    assert (scene.state(E), scene.share(D), scene.share(C)) == (State.PAUSED, 400.0, 700.0)


def test_a_test_event_touches_nobody():
    scene = hall()
    event = announce(actor=scene.operator, is_test=True)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14, 5), every_s=30.0)
    assert (scene.state(E), scene.share(D)) == (State.RUNNING, 700.0)
    assert set(states(event).values()) == {ActionState.VERIFIED}
    scene.at(clock(17))
    assert set(states(event).values()) == {ActionState.REVERTED}
    assert DemandResponseEvent.objects.get().is_test


def test_what_an_operator_says_of_a_job_stands_above_the_plan():
    scene = hall()
    add_override(
        kind="exempt",
        job_id=scene.jobs[E],
        domain=None,
        reason="a customer waits for it",
        expires_at=clock(18),
        actor=scene.operator,
        at=NOTICE,
    )
    event = announce(actor=scene.operator)
    plan = scene.preview(event)
    assert plan.plan["achievable_w"] == pytest.approx(22.4e3)  # B, C and D alone
    assert {row["name"] for row in plan.plan["jobs"]} == {C, D}
    scene.commit(event, plan)
    scene.through(clock(13, 59), clock(14), every_s=15.0)
    assert (scene.share(C), scene.share(D), scene.state(E)) == (500.0, 300.0, State.RUNNING)

    held = {"job_id": scene.jobs[C], "domain": None, "reason": "look", "actor": scene.operator}
    add_override(kind="hold", expires_at=clock(18), at=clock(16), **held)
    add_override(kind="release", expires_at=clock(16, 5), at=clock(16), **{**held, "job_id": scene.jobs[D]})
    scene.at(clock(16, 1))
    # Limits stand above it: only what the event leaves is given back.
    assert scene.share(D) == 300.0
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(16, 2))
    scene.at(clock(16, 3))
    assert (scene.share(C), scene.share(D)) == (500.0, 700.0)
    scene.at(clock(18, 1))
    assert scene.share(C) == 700.0


def test_p07b_a_job_starts_under_a_cap_that_its_tier_bears_and_gets_full_power_later():
    scene = hall()
    asked = {"actor": scene.operator, "external_id": "grid-7", "recovery_s": 0}
    event = announce(**asked)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    announce(at=clock(14), **asked, external_version=1, value=17.2e3)  # of 115.2 kW 2.0 are left
    scene.submit("X3", tier=3, at=clock(14, 1))
    scene.submit("X2", tier=2, at=clock(14, 1))
    drawn_w = scene.at(clock(14, 2), plan=True)
    scene.at(clock(14, 3), plan=True)

    assert (scene.state("X3"), scene.share("X3")) == (State.RUNNING, 300.0)
    assert scene.state("X2") == State.QUEUED  # 500 W at the least: 3.2 kW
    assert drawn_w <= 115.2e3
    assert not Pass.objects.filter(is_refused=True).exists()
    scene.at(clock(17, 0), plan=True)
    scene.at(clock(17, 1), plan=True)
    assert (scene.share("X3"), scene.share(D)) == (700.0, 700.0)


def test_p07a_what_does_not_fit_under_an_event_waits_and_says_why():
    scene = hall()
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    scene.submit("X", tier=3, at=clock(14, 1))
    scene.at(clock(14, 2), plan=True)

    assert scene.state("X") == State.QUEUED
    told = Reason.objects.get(job_id=scene.jobs["X"])
    assert told.code == "power"
    assert "hall has 1.2 kW left; it needs at least 1.6 kW" in told.sentence


def dark_hall():
    """P01 at 15:00, every rack with a meter of its own."""
    scene = hall(has_racks=True)
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    scene.meter(clock(15))
    scene.at(clock(15))
    return scene, event


def test_p09a_a_silent_rack_is_told_from_its_siblings_and_nothing_starts_there():
    scene, event = dark_hall()
    for minute in range(1, 11):
        scene.meter(clock(15, minute), silent="D")
    plans = event.plans.count()
    scene.submit("X", tier=0, at=clock(15, 10))
    scene.at(clock(15, 10), plan=True)

    site = read_site(clock(15, 10))
    rack = next(domain for domain in site.domains.values() if domain.name == "rack D")
    assert site.metered_w(rack.id) == pytest.approx(20.8e3)
    assert {hold.domain.name for hold in PowerHold.objects.all()} == {"rack D"}
    assert event.plans.count() == plans  # nothing is done to anybody
    assert (scene.share(C), scene.share(D)) == (700.0, 400.0)
    scene.meter(clock(15, 11))
    scene.at(clock(15, 11))
    assert not PowerHold.objects.exists()


def test_p09b_with_the_hall_silent_too_the_caps_that_are_answered_for_bound_it():
    scene, event = dark_hall()
    for minute in range(1, 11):
        scene.meter(clock(15, minute), silent="DH")
        scene.at(clock(15, minute))

    site = read_site(clock(15, 10))
    assert site.metered_w(scene.domain.pk) == pytest.approx(113.2e3)
    assert event.plans.filter(state="committed").get().number == 1
    assert scene.domain.name in {hold.domain.name for hold in PowerHold.objects.select_related("domain")}


def test_p09c_what_nobody_answers_for_counts_as_uncapped_and_others_make_up_for_it():
    scene, event = dark_hall()
    for minute in range(1, 11):
        scene.meter(clock(15, minute), silent="DH")
        control.look(at=clock(15, minute), who="one")  # and no agent is heard of
    assert read_site(clock(15, 10)).metered_w(scene.domain.pk) == pytest.approx(122.8e3)
    again = event.plans.filter(state="committed").get()
    assert again.number > 1
    assert {row["name"]: row["cap_w"] for row in again.plan["jobs"]} == {C: 500.0, B: 600.0}

    scene.at(clock(15, 11))
    assert (scene.share(B), scene.share(C), scene.share(D)) == (600.0, 500.0, 400.0)
    assert scene.state(E) == State.PAUSED
    scene.submit("X", tier=0, at=clock(15, 11))
    scene.at(clock(15, 11) + timedelta(seconds=30), plan=True)
    assert scene.state("X") == State.QUEUED


def test_what_a_target_still_lacks_is_added_and_nothing_is_given_back_for_it():
    scene, event = dark_hall()
    reading = PowerReading.objects.filter(domain=scene.domain).latest("at").draw_w
    for second in range(60, 150, 15):
        at = clock(15) + timedelta(seconds=second)
        scene.meter(at, silent="H")
        # Something draws 5 kW more than the model knows of.
        drawn = scene.draw_w(at) + 5e3
        PowerReading.objects.create(domain=scene.domain, at=at, draw_w=drawn, source="metered")
        scene.at(at)
        assert (scene.share(D), scene.state(E)) == (400.0, State.PAUSED)

    assert reading == pytest.approx(113.2e3)
    assert scene.share(C) == 500.0  # 3.8 kW are missing
    assert scene.draw_w(clock(15, 3)) + 5e3 <= 114.4e3
    plan = event.plans.get(state="committed")
    done = {(row.job_id, row.lever): row.state for row in plan.actions.all()}
    assert done == {
        (scene.jobs[C], "cap"): ActionState.VERIFIED,
        (scene.jobs[D], "cap"): ActionState.VERIFIED,
        (scene.jobs[E], "pause"): ActionState.VERIFIED,
    }


def test_what_an_event_took_is_gone_for_the_next_one_where_a_ledger_is_kept(settings):
    settings.SWITCHYARD_QOS_WINDOW_S = 8 * 3600  # a quarter of which is what a job of tier 2 bears
    scene = hall()
    first = announce(domain=scene.domain, value=40e3)
    plan = scene.preview(first)
    # The ledger lets one event take more than each event by itself would: C goes down to 300 W.
    assert plan.plan["tier_breaches"] == []
    assert {row["name"]: row["cap_w"] for row in plan.plan["jobs"]}[C] == 300
    scene.commit(first, plan)
    scene.through(clock(13, 44), clock(14, 2), every_s=30)
    assert scene.share(C) == 300
    scene.through(clock(16, 59), clock(17, 2), every_s=30)

    draw(scene.domain, 132.4e3, at=clock(18), source="modelled")
    second = announce(
        at=clock(18),
        domain=scene.domain,
        value=40e3,
        notified_at=clock(18),
        start_at=clock(18, 15),
        end_at=clock(21, 15),
    )
    again = scene.preview(second, at=clock(18))

    spent = response.spent_by_job(second, at=clock(18))
    assert spent[scene.jobs[C]] == pytest.approx(0.5 * 3 * 3600, rel=0.02)
    # 2 h in 8 are borne, 1.5 h are gone: for three hours that is a sixth, which 500 W (0.84) is just within.
    row = {row["name"]: row for row in again.plan["jobs"]}[C]
    assert row["cap_w"] == 500
    assert row["spent_s"] == pytest.approx(5400, rel=0.02)
    assert again.plan["tier_breaches"] == []


def test_what_a_job_lost_before_an_event_binds_is_none_of_its_tolerance():
    scene = hall()
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    # D was slowed to 0.7 and E paused some time before 14:00, to be down in time.
    cost = cost_of(event, committed_plans(event), at=clock(14))
    assert all(job.lost_device_s > 0 for job in cost.jobs)

    assert set(response.spent_by_job(event, at=clock(14)).values()) == {0.0}
    spent = response.spent_by_job(event, at=clock(15))
    assert spent == pytest.approx({scene.jobs[D]: 0.3 * 3600, scene.jobs[E]: 3600})


def test_a_rolling_ledger_counts_no_more_of_an_event_than_lies_in_the_window(settings):
    settings.SWITCHYARD_QOS_WINDOW_S = 3600
    scene = hall()
    event = announce(actor=scene.operator)
    plan = scene.preview(event)
    scene.commit(event, plan)
    scene.through(clock(13, 54), clock(14), every_s=15.0)

    lost = {None: 1.0, 300.0: 0.5, 400.0: 0.3, 500.0: 0.16, 600.0: 0.07}  # by cap in watts; None: paused
    rows = plan.plan["jobs"]
    assert len(rows) > 1
    spent = response.spent_by_job(event, at=clock(16))
    assert spent == pytest.approx({scene.jobs[row["name"]]: lost[row["cap_w"]] * 3600 for row in rows})

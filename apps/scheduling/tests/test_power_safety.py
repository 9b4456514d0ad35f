"""What power control does in an emergency, when it dies, when there are two of it, and when jobs do as they please.

Scenes and numbers: design notes on power, section 4.
"""

from datetime import timedelta

import pytest

from apps.events.models import Event
from apps.execution import services as execution
from apps.execution.backends.base import CapOrder
from apps.execution.backends.simulated import SimulatedBackend
from apps.execution.models import SimulatedRun
from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, PowerCap
from apps.jobs.tests.builders import job, person, team
from apps.power import programme_services
from apps.power.errors import TargetBelowFloor
from apps.power.models import (
    ActionState,
    AlarmKind,
    CurtailmentAction,
    PlanState,
    PowerAlarm,
    PowerController,
)
from apps.power.programme_services import ProgrammeDraft
from apps.power.response_services import cancel_event
from apps.power.tests.builders import RULES, programme
from apps.power.watchdog import Watchdog
from apps.scheduling.models import Pass, Reason
from apps.scheduling.response import control
from apps.scheduling.response import services as response
from apps.scheduling.tests.response_hall import A, B, C, D, E, announce, clock, hall
from apps.teams.models import User
from apps.teams.tests.builders import NOON

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)
TARGET_W = 114.4e3


def emergency(scene, policy):
    asked = {"notice_s": 0, "ramp_s": 0, "target_kind": "limit_to", "emergency_policy": policy}
    admins = [person(facility_role="power_admin") for _ in range(2)]
    made = programme("grid", actor=admins[0], **asked)
    if made.emergency_policy != policy:
        programme_services.update_programme(
            programme_id=made.pk,
            draft=ProgrammeDraft(name="grid", **{**RULES, **asked}),
            version=made.version,
            actor=admins[1],
            at=NOON,
        )
    return announce(
        at=clock(14),
        actor=scene.operator,
        programme="grid",
        source="emergency",
        target_kind="limit_to",
        value=90e3,
        start_at=clock(14) + 60 * SECOND,
        end_at=clock(16),
    )


def in_p01(**more):
    """P01 at 14:00: E paused, D at 400 W, 113.2 kW."""
    scene = hall(**more)
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    assert scene.draw_w(clock(14)) == pytest.approx(113.2e3)
    return scene, event


def caps_of(scene):
    return dict(SimulatedRun.objects.exclude(cap_share=None).values_list("allocation_id", "cap_share"))


def changes():
    kinds = ("allocation.cap", "job.pausing", "job.resumed", "allocation.stop_requested", "allocation.bound")
    return sum(Event.objects.filter(kind__startswith=kind).count() for kind in kinds)


@pytest.mark.parametrize(
    ("policy", "load_w", "e_state"),
    [("caps_and_stops", 87.6e3, State.PAUSED), ("caps", 89.2e3, State.RUNNING)],
)
def test_p10_an_emergency_waits_for_nobody(policy, load_w, e_state):
    scene = hall()
    event = emergency(scene, policy)

    control.look(at=clock(14) + 5 * SECOND, who="one")  # one look: every command is out

    actions = CurtailmentAction.objects.filter(plan__event=event)
    assert actions.count() == 4, [
        {
            k: v
            for k, v in p.plan.items()
            if k
            in (
                "asked_w",
                "shed_w",
                "short_w",
                "achievable_w",
                "base_w",
                "target_w",
                "wish",
                "method",
                "n_capped",
            )
        }
        for p in event.plans.all()
    ]
    assert {row.allocation.job_id for row in PowerCap.objects.select_related("allocation")} | set(
        Job.objects.filter(state=State.PAUSING).values_list("pk", flat=True)
    ) == {scene.jobs[name] for name in (B, C, D, E)}
    scene.through(clock(14) + 5 * SECOND, clock(14) + 30 * SECOND)
    assert {row.state for row in actions.all()} == {ActionState.VERIFIED}
    assert scene.draw_w(clock(14) + 30 * SECOND) == pytest.approx(load_w)
    assert (scene.share(A), scene.state(E)) == (700.0, e_state)  # the firm tier is never touched
    committed = Event.objects.get(kind="curtailment.committed")
    assert committed.is_audit
    assert committed.actor_id is None
    assert committed.data["policy"]["name"] == "emergency"
    assert committed.data["n_breaches"] >= 1
    plan = event.plans.get(state=PlanState.COMMITTED)
    assert set(plan.plan["tier_breaches"]) >= {scene.jobs[B], scene.jobs[C]}
    assert scene.jobs[A] not in plan.plan["tier_breaches"]


def test_p05_what_cannot_be_had_is_said_before_anything_is_done():
    scene = hall()
    event = announce(actor=scene.operator, value=40e3)
    plan = scene.preview(event)

    assert plan.plan["achievable_w"] == pytest.approx(32e3)
    assert plan.shortfall_w == pytest.approx(8e3)
    assert "hall" in plan.plan["binding"]
    assert plan.plan["relaxations"]
    assert not PowerCap.objects.exists()
    scene.commit(event, plan)  # best effort
    scene.through(clock(13, 54), clock(14, 1), every_s=15.0)
    assert scene.draw_w(clock(14, 1)) == pytest.approx(100.4e3)
    with pytest.raises(TargetBelowFloor):
        announce(
            actor=scene.operator, target_kind="limit_to", value=40e3, start_at=clock(18), end_at=clock(19)
        )


def test_p07_a_new_job_waits_while_an_event_leaves_too_little():
    scene, _ = in_p01()
    mine = team("late")
    made = job(mine, person(mine), name="X", replicas=1, devices=8, power_w=700.0, runtime=600.0)
    scene.at(clock(14, 5), plan=True)

    made.refresh_from_db()
    assert made.state == State.QUEUED
    text = str(list(Reason.objects.filter(job_id=made.pk).values()))
    assert "power" in text
    assert "hall" in text
    assert scene.draw_w(clock(14, 5)) <= TARGET_W
    assert not Pass.objects.filter(is_refused=True).exists()


def test_p11_while_nobody_controls_everything_stays_as_it_is():
    scene, event = in_p01()
    scene.at(clock(15, 30))
    before, n_before = caps_of(scene), changes()
    fence = PowerController.objects.get().fence

    dog, raised_at = Watchdog(), None
    for minute in range(20):
        for seconds in range(0, 60, 5):
            at = clock(15, 30 + minute) + seconds * SECOND
            found = dog.look(at)
            if raised_at is None and any(one.kind == AlarmKind.CONTROLLER_SILENT for one in found.raised):
                raised_at = at
        assert scene.draw_w(at) <= TARGET_W
    assert raised_at <= clock(15, 31)
    assert caps_of(scene) == before

    for i in range(12):
        at = clock(15, 50) + 5 * i * SECOND
        scene.at(at, who="after the crash", plan=True)
        dog.look(at)
        assert scene.draw_w(at) <= TARGET_W
    assert PowerController.objects.get().fence > fence
    assert caps_of(scene) == before
    assert changes() == n_before  # nothing was asked, paused or started again
    assert (scene.state(E), scene.share(D)) == (State.PAUSED, 400.0)
    assert {row.state for row in CurtailmentAction.objects.filter(plan__event=event)} == {
        ActionState.VERIFIED
    }
    assert not PowerAlarm.objects.filter(kind=AlarmKind.CONTROLLER_SILENT, cleared_at=None).exists()
    scene.through(clock(17), clock(17, 1), plan=True)
    assert scene.share(D) == 700.0


def test_p11_if_nobody_comes_back_caps_hold_for_the_lease_and_go_back_one_after_the_other():
    scene = hall()
    event = announce(actor=scene.operator, value=25e3)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    backend = SimulatedBackend(scene.cluster.pk)
    held = {state.allocation_id: state.share for state in backend.list_caps(at=clock(14, 1))}
    assert len(held) > 1
    back = dict(PowerCap.objects.values_list("allocation_id", "back_share"))

    assert {s.allocation_id: s.share for s in backend.list_caps(at=clock(18) - SECOND)} == held
    n_back = set()
    for seconds in range(control.STAGGER_S + 1):
        now = {s.allocation_id: s.share for s in backend.list_caps(at=clock(18) + seconds * SECOND)}
        assert all(share in (held[one], back[one]) for one, share in now.items())
        n_back.add(sum(share != held[one] for one, share in now.items()))
    assert n_back >= {1, len(held)}  # not all at one instant, and all in the end
    execution.reconcile_all(at=clock(18, 2))
    assert scene.state(E) == State.PAUSED


def test_the_older_of_two_controllers_is_not_heard():
    scene, _ = in_p01()
    cap = PowerCap.objects.get(allocation__job_id=scene.jobs[D])
    scene.at(clock(14, 1), who="two")
    newer = PowerController.objects.get().fence
    assert newer > cap.fence
    allocation_id = Allocation.objects.get(job_id=scene.jobs[C], ended_at=None).pk

    # At the ledger: of a job that the newer one has not touched as well.
    for late in (cap.allocation_id, allocation_id):
        ask = ledger.CapAsk(allocation_id=late, share=0.9)
        assert ledger.ask_caps(asks=[ask], fence=cap.fence, at=clock(14, 2)) == ()
    # At the agent.
    before = caps_of(scene)
    late = CapOrder(allocation_id=cap.allocation_id, share=1.0, fence=cap.fence, pace=1.0)
    SimulatedBackend(scene.cluster.pk).set_caps([late], at=clock(14, 2))
    assert caps_of(scene) == before
    assert scene.draw_w(clock(14, 2)) == pytest.approx(113.2e3)


def test_a_cap_lasts_as_long_as_an_event_that_was_made_longer():
    scene = hall()
    event = announce(actor=scene.operator, external_id="x", external_version=1)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    announce(at=clock(15), actor=scene.operator, external_id="x", external_version=2, end_at=clock(20))
    scene.at(clock(15, 1))

    for cap in PowerCap.objects.all():
        assert cap.lease_until_at >= clock(20) + control.LEASE
    run = SimulatedRun.objects.exclude(cap_share=None).get()
    assert run.cap_until_at >= clock(20) + control.LEASE
    seen = scene.through(clock(18), clock(19, 59), every_s=600.0)
    assert max(seen.values()) <= TARGET_W


def test_a_pause_that_came_too_late_is_given_back_too():
    scene = hall()
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    scene.through(clock(13, 54), clock(13, 58), every_s=15.0)
    assert scene.state(E) == State.PAUSING
    # Its checkpoint takes much longer than it said.
    SimulatedRun.objects.filter(job_id=scene.jobs[E]).update(stop_at=clock(14, 20))
    scene.through(clock(14), clock(14, 5), every_s=30.0)
    row = CurtailmentAction.objects.filter(job_id=scene.jobs[E]).first()
    assert row.state == ActionState.FAILED
    scene.through(clock(14, 20), clock(14, 22), every_s=30.0)
    assert scene.state(E) == State.PAUSED
    scene.through(clock(17), clock(17, 10), every_s=30.0, plan=True)
    assert scene.state(E) == State.RUNNING
    assert not CurtailmentAction.objects.exclude(state=ActionState.REVERTED).exists()


def test_who_cancels_a_paused_job_leaves_nothing_behind():
    scene, _ = in_p01()
    owner = User.objects.get(pk=Job.objects.get(pk=scene.jobs[E]).user_id)
    ledger.stop_job(job_id=scene.jobs[E], actor=owner, at=clock(15), reason="enough")
    scene.at(clock(15, 1))
    assert scene.state(E) == State.CANCELLED
    assert scene.draw_w(clock(15, 1)) <= TARGET_W
    scene.through(clock(17), clock(17, 5), every_s=30.0, plan=True)
    assert scene.state(E) == State.CANCELLED
    assert not CurtailmentAction.objects.exclude(state=ActionState.REVERTED).exists()


def test_what_cannot_be_decided_keeps_no_cap_from_being_set(monkeypatch):
    scene = hall()
    event = announce(actor=scene.operator)
    scene.commit(event, scene.preview(event))
    programme("broken", is_auto_commit=True)
    announce(actor=scene.operator, programme="broken", start_at=clock(14, 30), end_at=clock(16))

    def fails(**_):
        raise ZeroDivisionError("a solver that fails")

    monkeypatch.setattr(response, "respond", fails)
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    assert scene.draw_w(clock(14)) == pytest.approx(113.2e3)


def test_an_event_left_to_a_person_is_looked_at_once():
    scene = hall()
    programme("short", is_auto_commit=True)
    event = announce(actor=scene.operator, programme="short", value=7e4)
    scene.through(clock(13, 50), clock(13, 51), every_s=15.0)
    unseen = event.plans.filter(created_by=None)
    assert [plan.shortfall_w > 0 for plan in unseen] == [True]
    plan = scene.preview(event, at=clock(13, 51))
    scene.at(clock(13, 52))
    assert unseen.count() == 1
    plan.refresh_from_db()
    assert plan.state == PlanState.PREVIEWED  # what the operator looks at is not superseded meanwhile


def test_no_plan_is_refused_while_caps_are_raised():
    scene, event = in_p01(ramp_w_per_s=3200 / 60)
    mine = team("late")
    for i in range(3):
        job(
            mine, person(mine), name=f"X{i}", replicas=1, devices=8, power_w=700.0, runtime=1e5, flexibility=2
        )
    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(15), reason="called off")
    scene.through(clock(15), clock(15, 15), every_s=10.0, plan=True)
    assert not Pass.objects.filter(is_refused=True).exists()
    assert scene.share(D) == 700.0
    assert scene.draw_w(clock(15, 15)) <= 150e3

"""An elastic job gives replicas up for an event: it saves, goes on smaller, and grows when that is over."""

from datetime import timedelta

import pytest

from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, DeviceClaim, Job
from apps.jobs.tests.builders import grant, job
from apps.power.curtailment.facts import Lever
from apps.power.models import ActionState, CurtailmentAction, PowerReading
from apps.power.response_services import cancel_event
from apps.scheduling.models import Pass
from apps.scheduling.tests.response_hall import LONG, NOTICE, A, announce, clock, hall
from apps.teams.tests.builders import NOON

pytestmark = pytest.mark.django_db(transaction=True)

F = "F"


def scene_with_an_elastic_job(*, tier=3, **fields):
    from apps.execution import services as execution
    from apps.jobs import services as ledger

    scene = hall()
    of = Job.objects.select_related("team", "user").get(pk=scene.jobs[A])
    given = {
        "replicas": {"min": 1, "preferred": 3, "max": 3},
        "checkpoint": {"interval": 600, "cost": 60, "restart": 30},
        **fields,
    }
    given = {name: value for name, value in given.items() if value is not None}
    made = job(of.team, of.user, name=F, devices=8, flexibility=tier, power_w=700.0, runtime=LONG, **given)
    grants = [grant(scene.nodes[18 + i], tuple(range(8)), first_rank=i, peak_w=8 * 600.0) for i in range(3)]
    ledger.allocate(job_id=made.pk, cluster_id=scene.cluster.pk, placements=grants, pass_id=None, at=NOON)
    execution.reconcile_all(at=NOON)
    scene.jobs[F] = made.pk
    PowerReading.objects.update(draw_w=146.8e3)  # what it is counted from
    return scene


def n_devices(scene):
    claims = DeviceClaim.objects.filter(placement__allocation__job=scene.jobs[F], released_at=None)
    return claims.count()


def limit_to(scene, watts):
    return announce(actor=scene.operator, target_kind="limit_to", value=watts)


def test_a_job_goes_on_with_fewer_replicas_and_grows_again():
    scene = scene_with_an_elastic_job()
    assert scene.draw_w(NOTICE) == pytest.approx(146.8e3)
    event = limit_to(scene, 142.1e3)
    plan = scene.preview(event, levers=frozenset({Lever.SHRINK.value}))
    assert [(row["name"], row["lever"], row["n_replicas"]) for row in plan.plan["jobs"]] == [(F, "shrink", 2)]
    assert (plan.shortfall_w, plan.predicted_shed_w) == (0.0, pytest.approx(4.8e3))
    assert (plan.plan["n_shrunk"], plan.plan["n_paused"], plan.plan["n_capped"]) == (1, 0, 0)

    scene.commit(event, plan)
    scene.through(NOTICE, clock(13, 58), every_s=60.0, plan=True)
    assert n_devices(scene) == 24  # nobody is held down before
    scene.through(clock(13, 58), clock(13, 59) + timedelta(seconds=50), every_s=10.0, plan=True)
    seen = scene.through(clock(14), clock(14, 30), every_s=60.0, plan=True)
    assert max(seen.values()) <= 142.1e3
    assert (scene.state(F), n_devices(scene)) == (State.RUNNING, 16)
    (action,) = CurtailmentAction.objects.filter(plan__event=event)
    assert (action.lever, action.state) == (Lever.SHRINK, ActionState.VERIFIED)
    again = Job.objects.get(pk=scene.jobs[F])
    assert (again.n_resizes, again.n_preemptions) == (1, 0)

    cancel_event(event_id=event.pk, actor=scene.operator, at=clock(15), reason="called off")
    scene.through(clock(15), clock(15, 10), every_s=20.0, plan=True)
    action.refresh_from_db()
    assert (action.state, action.note) == (ActionState.REVERTED, "It may grow again.")
    assert n_devices(scene) == 24
    event.refresh_from_db()
    assert event.released_at is not None
    assert not Pass.objects.filter(is_refused=True).exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"tier": 1},  # it bears no change of size
        {"checkpoint": None},
        {"preemptible": False},
        {"replicas": 3},
    ],
)
def test_who_cannot_go_on_smaller_is_left_alone(fields):
    scene = scene_with_an_elastic_job(**fields)
    plan = scene.preview(limit_to(scene, 142.1e3), levers=frozenset({Lever.SHRINK.value}))
    assert plan.plan["jobs"] == []
    assert plan.shortfall_w > 0


def test_asking_twice_or_for_an_attempt_that_is_over_changes_nothing():
    scene = scene_with_an_elastic_job()
    event = limit_to(scene, 142.1e3)
    scene.commit(event, scene.preview(event, levers=frozenset({Lever.SHRINK.value})))
    scene.through(clock(13, 58), clock(14, 2), every_s=10.0, plan=True)
    n = Allocation.objects.filter(job=scene.jobs[F]).count()
    for second in range(5):
        scene.at(clock(14, 3) + timedelta(seconds=second), who=f"another {second}", plan=True)
    assert Allocation.objects.filter(job=scene.jobs[F]).count() == n == 2

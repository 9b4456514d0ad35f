"""What jobs were seen to draw is learned from their own devices, once, and counts for the planner."""

from datetime import timedelta
from typing import Any

import pytest

from apps.inventory.tests.builders import domain
from apps.jobs.models import Allocation
from apps.jobs.tests.builders import NOON, Fleet, end, fleet, grant, job, later, person, request, start, team
from apps.power.models import (
    CurtailmentAction,
    CurtailmentPlan,
    DemandResponseEvent,
    JobPowerModel,
    NodeReading,
)
from apps.power.telemetry.draws import LEAST_LOOKS
from apps.scheduling import measured_power, snapshot
from apps.scheduling.engine.facts import Ask, Kind, Snapshot
from apps.scheduling.measured_power import learn, with_measured
from apps.scheduling.tests.test_snapshot import take

pytestmark = pytest.mark.django_db


def read(here: Fleet, draws_w: dict[int | None, float], seconds: float, *, node: int = 0) -> None:
    """What meters say at one moment, by device (None: the whole node)."""
    for index, draw_w in draws_w.items():
        NodeReading.objects.update_or_create(
            node=here.nodes[node],
            index=index,
            source="dcgm",
            defaults={"at": later(seconds), "draw_w": draw_w, "is_learned": False},
        )


def watch(
    here: Fleet, draws_w: dict[int | None, float], *, looks: int = LEAST_LOOKS, since: float = 30
) -> None:
    for look in range(looks):
        seconds = since + 30 * look
        read(here, draws_w, seconds)
        learn(at=later(seconds + 1))


def model(**which: Any) -> JobPowerModel:
    return JobPowerModel.objects.get(**which)


def world(**fields: Any):
    here, ours = fleet(2, 4), team()
    me = person(ours)
    running = job(ours, me, devices=2, time_limit=86_400.0, **fields)
    allocation = start(running, here, grant(here.nodes[0], (0, 1)))
    return here, ours, me, running, allocation


def test_a_job_and_its_class_learn_from_the_devices_it_holds():
    here, _, me, running, _ = world()
    watch(here, {0: 312.0, 1: 405.0, 2: 699.0})
    own, of_class = model(job_id=running.pk), model(job_id=None)

    # The third device is nobody's. Median and 99th percentile are the upper edges of bins of 10 W.
    assert (own.mean_w, own.peak_w, own.n_samples, own.n_looks) == (320.0, 410.0, 120, 60)
    assert (of_class.user_id, of_class.name, of_class.accelerator_type_id) == (me.pk, "train", here.kind.pk)
    assert (of_class.mean_w, of_class.peak_w) == (320.0, 410.0)


def test_too_few_moments_measure_nothing():
    here, _, _, running, _ = world()
    watch(here, {0: 312.0, 1: 405.0}, looks=LEAST_LOOKS - 1)

    assert (model(job_id=running.pk).mean_w, model(job_id=running.pk).peak_w) == (None, None)


def test_a_reading_counts_once():
    here, _, _, running, _ = world()
    read(here, {0: 300.0, 1: 300.0}, 30)
    assert [learn(at=later(31)), learn(at=later(32))] == [2, 0]

    assert model(job_id=running.pk).n_samples == 2


@pytest.mark.parametrize(
    "why", ["before", "old", "capped", "capped by a plan", "shared", "not running", "ended"]
)
def test_what_says_nothing_of_the_job_is_not_learned(why: str):
    here, ours, me, running, allocation = world()
    at = 30.0
    if why == "before":
        at = -30.0
    elif why == "capped":
        Allocation.objects.filter(pk=allocation.pk).update(desired_power_cap_share=0.5)
    elif why == "capped by a plan":
        _cap(running.pk)
    elif why == "not running":
        Allocation.objects.filter(pk=allocation.pk).update(observed_started_at=None)
    elif why == "ended":
        end(allocation, "succeeded", at=later(20))
    elif why == "shared":
        shared = job(ours, me, devices=0.5, name="shared")
        start(shared, here, grant(here.nodes[1], (0,), share="0.5"))
        read(here, {0: 500.0}, at, node=1)
    if why != "shared":
        read(here, {0: 300.0, 1: 300.0}, at)
    learn(at=later(at + (3600 if why == "old" else 1)))

    assert not JobPowerModel.objects.exists()


def _cap(job_id: int) -> None:
    event = DemandResponseEvent.objects.create(
        domain=domain("h", "hall"),
        source="operator",
        target_kind="shed_by",
        value=1.0,
        notified_at=NOON,
        ramp_start_at=NOON,
        start_at=NOON,
        end_at=later(3600),
        created_at=NOON,
    )
    plan = CurtailmentPlan.objects.create(
        event=event,
        number=1,
        event_version=1,
        inputs_hash="a" * 64,
        plan={},
        predicted_shed_w=0,
    )
    CurtailmentAction.objects.create(
        plan=plan,
        job_id=job_id,
        lever="cap",
        before={"cap_w": 700},
        after={"cap_w": 400},
        expected_w=0,
        issue_at=NOON,
        effective_by_at=NOON,
        state="acked",
        state_since_at=NOON,
        idempotency_key="k",
    )


def test_a_node_alone_counts_where_one_job_has_it_whole():
    here, ours = fleet(2, 4, idle_w=800.0), team()
    whole = job(ours, person(ours), devices=4)
    start(whole, here, grant(here.nodes[0], (0, 1, 2, 3)))
    part = job(ours, person(ours), devices=3)
    start(part, here, grant(here.nodes[1], (0, 1, 2)))
    read(here, {None: 3_200.0}, 30)
    read(here, {None: 3_200.0}, 30, node=1)
    learn(at=later(31))

    # (3,200 - 800) W over four devices; of the other node nobody knows what the fourth device draws.
    assert model(job_id=whole.pk).counts == {"60": 1}
    assert not JobPowerModel.objects.filter(job_id=part.pk).exists()


def test_models_of_jobs_long_gone_are_forgotten_and_classes_stay():
    here, _, _, running, _ = world()
    watch(here, {0: 312.0, 1: 405.0}, looks=1)
    learn(at=NOON + timedelta(days=31))

    assert not JobPowerModel.objects.filter(job_id=running.pk).exists()
    assert JobPowerModel.objects.filter(job_id=None).exists()


# For the planner ----------------------------------------------------------------------------------------------------


def peaks(seen: Snapshot) -> dict[int, tuple[float | None, float | None]]:
    gangs = [*seen.queue, *(one.gang for one in seen.running)]
    return {gang.id: (gang.shape.asks[0].power_w, gang.shape.asks[0].peak_w) for gang in gangs}


def test_the_planner_counts_with_what_was_measured_and_sees_it_when_it_is_known():
    here, ours, me, running, _ = world()
    again = job(ours, me, devices=1)
    other = job(ours, me, devices=1, name="another", power_w=500.0)
    before = peaks(take(10))
    assert before == {running.pk: (None, None), again.pk: (None, None), other.pk: (500.0, 500.0)}

    watch(here, {0: 312.0, 1: 405.0})
    # Remembered and fresh are the same picture; what runs and what waits of the class has it, others do not.
    assert peaks(take(3000)) == {
        running.pk: (320.0, 410.0),
        again.pk: (320.0, 410.0),
        other.pk: (500.0, 500.0),
    }

    watch(here, {0: 650.0, 1: 650.0}, looks=LEAST_LOOKS, since=3030)
    assert peaks(take(6000))[again.pk][1] == 650.0


def test_a_declared_peak_below_what_was_measured_is_not_believed():
    here, _, _, running, _ = world(peak_w=200.0)
    watch(here, {0: 650.0, 1: 650.0})

    assert peaks(take(3000))[running.pk][1] == 650.0


def test_a_job_that_has_not_shown_its_peak_is_held_to_its_class():
    here, ours, me, _, allocation = world()
    watch(here, {0: 650.0, 1: 650.0})
    end(allocation, "succeeded", at=later(3000))
    second = job(ours, me, devices=2)
    start(second, here, grant(here.nodes[0], (0, 1)), at=later(3010))
    watch(here, {0: 150.0, 1: 150.0}, since=3030)

    assert model(job_id=second.pk).peak_w == 150.0
    assert peaks(take(6000))[second.pk][1] == 650.0


def test_jobs_of_which_the_same_was_measured_share_a_shape_and_a_preview_has_it_too():
    here, ours, me, _, _ = world()
    watch(here, {0: 312.0, 1: 405.0})
    for _ in range(2):
        job(ours, me, devices=1)
    taken = snapshot.take_snapshot(
        later(3000), candidates=[request(ours, devices=1)], candidates_of=me.pk
    ).snapshot
    first, second, preview = taken.queue

    assert first.shape is second.shape
    assert preview.shape.asks[0].peak_w == 410.0


def test_on_a_type_where_nothing_was_measured_the_declared_counts_and_the_highest_is_reserved():
    kinds = (Kind(7, "a", tdp_w=700.0), Kind(8, "b", tdp_w=400.0))
    both = Ask(n_replicas=1, devices=1, kinds=(0, 1))

    def told(ask: Ask, measured: dict[int, tuple[float, float]]) -> tuple[float | None, float | None]:
        (found,) = with_measured((ask,), measured, kinds)
        return found.power_w, found.peak_w

    assert told(both, {}) == (None, None)
    assert told(both, {7: (300.0, 350.0)}) == (400.0, 400.0)  # of b nothing is known but its TDP
    assert told(both, {7: (300.0, 350.0), 8: (100.0, 120.0)}) == (300.0, 350.0)
    declared = Ask(n_replicas=1, devices=1, kinds=(0, 1), power_w=200.0, peak_w=250.0)
    assert told(declared, {7: (300.0, 350.0)}) == (300.0, 350.0)
    assert told(declared, {9: (300.0, 350.0)}) == (200.0, 250.0)


def test_of_several_sorts_of_replicas_nobody_knows_whose_draw_was_seen():
    asks = (Ask(n_replicas=1, devices=1, kinds=(0,)), Ask(n_replicas=1, devices=2, kinds=(0,)))

    assert with_measured(asks, {7: (300.0, 350.0)}, (Kind(7, "a", tdp_w=700.0),)) == asks


def test_learning_asks_no_more_queries_for_more_jobs(django_assert_num_queries):
    here, ours = fleet(8, 4), team()
    for node in range(8):
        made = job(ours, person(ours), devices=4, name=f"job-{node}")
        start(made, here, grant(here.nodes[node], (0, 1, 2, 3)))
        read(here, dict.fromkeys(range(4), 300.0), 30, node=node)
    # Lock, savepoint, samples, what is forgotten (twice), models of jobs and of classes, those that are new.
    with django_assert_num_queries(10):
        measured_power.learn(at=later(31))

    assert JobPowerModel.objects.count() == 16

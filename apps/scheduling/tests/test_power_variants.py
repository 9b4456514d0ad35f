"""Variants of the acceptance scenes that the running service is held to, with the numbers of the design notes on power.

Section 4: P01 at the meter, P05 in full, P06.
"""

import pytest

from apps.execution import services as execution
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.inventory.tests.builders import domain, node
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, Placement, PowerCap
from apps.jobs.tests.builders import job, person, team
from apps.power.models import PowerLimit
from apps.scheduling import services as scheduling
from apps.scheduling.models import Pass, Reason
from apps.scheduling.tests.response_hall import CURVE, LONG, A, B, C, D, E, announce, clock, hall
from apps.teams.tests.builders import NOON

pytestmark = pytest.mark.django_db(transaction=True)


def test_p01_at_a_meter_with_overhead_20_7_kw_are_the_same_plan():
    scene = hall(meter_k=1.15)
    event = announce(actor=scene.operator, value=20.7e3)
    plan = scene.preview(event)
    assert {row["name"]: row["cap_w"] for row in plan.plan["jobs"]} == {E: None, D: 400.0}
    assert plan.plan["asked_w"] == pytest.approx(18e3)
    assert plan.predicted_shed_w == pytest.approx(19.2e3 * 1.15)
    scene.commit(event, plan)
    scene.through(clock(13, 54), clock(14), every_s=15.0)
    assert scene.draw_w(clock(14)) == pytest.approx(113.2e3)


def test_p05_says_what_would_help_with_its_watts_and_relaxes_nothing_by_itself():
    scene = hall()
    plan = scene.preview(announce(actor=scene.operator, value=40e3))
    assert (plan.plan["achievable_w"], plan.shortfall_w) == (pytest.approx(32e3), pytest.approx(8e3))
    assert plan.plan["load_w"] == pytest.approx(100.4e3)
    told = {row["name"]: (row["cap_w"], row["gain_w"]) for row in plan.plan["relaxations"]}
    assert told[C] == (400.0, pytest.approx(3.2e3))
    assert told[B] == (500.0, pytest.approx(3.2e3))
    assert A not in told  # firm: nobody may relax it
    assert not PowerCap.objects.exists()


def test_p05_a_job_that_draws_300_w_gives_nothing_for_a_cap_of_500():
    scene = hall()
    # Decode, measured at 300 W a device: tier 2 now, so that its caps are looked at.
    row = Job.objects.get(pk=scene.jobs[A])
    row.spec["flexibility"] = 2
    row.save(update_fields=["spec"])
    plan = scene.preview(announce(actor=scene.operator, value=40e3))
    assert plan.plan["achievable_w"] == pytest.approx(32e3)
    assert A not in {one["name"] for one in plan.plan["jobs"]}


def racks(*, hall_w: float, of: dict[str, tuple[float, int]]):
    """Racks with a limit and so many nodes each, and their leaf; nobody runs there yet."""
    inventory.create_accelerator_type(
        name="H100", actor=None, at=NOON, tdp_w=700.0, idle_w=100.0, power_curve=CURVE, cap_step_w=100.0
    )
    top = domain("H", "hall")
    PowerLimit.objects.create(domain=top, hard_limit_w=hall_w)
    for name, (limit_w, n) in of.items():
        rack, leaf = domain(name, "rack", top), domain(f"leaf {name}", "leaf")
        PowerLimit.objects.create(domain=rack, hard_limit_w=limit_w)
        for i in range(n):
            node(f"{name}-{i}", power=rack, leaf=leaf, idle_w=2000.0)
    ours = team()
    return ours, person(ours)


def submit(ours, me, *, name="X", at=NOON, **asked):
    said = {"devices": 8, "power_w": 700.0, "runtime": LONG, **asked}
    return job(ours, me, at=at, name=name, **said)


def plan_at(at):
    scheduling.run_pass(at=at)
    execution.reconcile_all(at=at)
    assert not Pass.objects.filter(is_refused=True).exists()


def where(of: Job) -> list[str]:
    ids = Placement.objects.filter(allocation__job=of, allocation__ended_at=None).values_list(
        "node_id", flat=True
    )
    return sorted(Node.objects.filter(pk__in=ids).values_list("name", flat=True))


def share_w(of: Job) -> float:
    return round(700 * Allocation.objects.get(job=of, ended_at=None).desired_power_cap_share, 1)


def nested():
    """R1 20.0 kW with three nodes free; R2 32.0 kW with three busy and one free; 17.6 kW left in the hall."""
    # At rest seven nodes draw 19.6 kW, three busy ones 14.4 kW more: 34.0 kW.
    ours, me = racks(hall_w=34.0e3 + 17.6e3, of={"R1": (20e3, 3), "R2": (32e3, 4)})
    for i in range(3):
        submit(ours, me, name=f"busy{i}", replicas=1)
        Node.objects.filter(name__startswith="R1").update(health="draining")
        plan_at(clock(12, 1 + i))
    Node.objects.filter(name__startswith="R1").update(health="healthy")
    assert Job.objects.filter(state=State.RUNNING).count() == 3
    return ours, me


def test_p06a_two_nodes_lie_in_one_rack_and_the_third_in_the_other():
    ours, me = nested()
    made = submit(ours, me, replicas=3, at=clock(12, 10))
    plan_at(clock(12, 10))
    names = where(made)
    assert [name[:2] for name in names] == ["R1", "R1", "R2"]
    assert share_w(made) == 700.0


@pytest.mark.parametrize(("tier", "expected_w"), [(2, 500.0), (1, None)])
def test_p06a_within_one_rack_all_three_run_at_500_w_or_wait_for_the_rack(tier, expected_w):
    ours, me = nested()
    asked = {"replicas": 3, "topology": {"required": "leaf"}, "flexibility": tier}
    made = submit(ours, me, at=clock(12, 10), **asked)
    plan_at(clock(12, 10))
    made.refresh_from_db()
    if expected_w is not None:
        assert {name[:2] for name in where(made)} == {"R1"}
        assert share_w(made) == expected_w
        return
    assert made.state == State.QUEUED
    told = Reason.objects.get(job=made)
    assert told.code == "topology"  # in two racks it would start


def test_p06b_a_lock_step_job_is_admitted_by_its_coincident_peak():
    ours, me = racks(hall_w=150e3, of={"R": (32e3, 5)})
    # Mean 500 W a device, peak 700: by its mean 30.0 kW would fit.
    made = submit(ours, me, replicas=5, power_w=500.0, peak_w=700.0, flexibility=2)
    plan_at(clock(12, 1))
    assert share_w(made) == 500.0

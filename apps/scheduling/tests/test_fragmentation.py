"""What each pass leaves free, and how much of it is of no use: kept, and told."""

from datetime import UTC, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from apps.core import clock
from apps.inventory.models import Health, Node
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, start, team
from apps.scheduling import selectors, services, snapshot
from apps.scheduling.models import Pass, UtilizationSample
from apps.scheduling.selectors import TypeFree
from apps.scheduling.tests.test_api import client

pytestmark = pytest.mark.django_db


def scene():
    """Two nodes of 4 with one device held on each; waiting are two jobs of a whole node and a gang of two."""
    here, ours = fleet(2, 4, kind="H100"), team()
    me = person(ours)
    for node in here.nodes:
        start(job(ours, me, devices=1, time_limit=600.0), here, grant(node))
    for _ in range(2):
        job(ours, me, devices=4, time_limit=60.0)
    job(ours, me, devices=3, replicas=2, time_limit=6000.0, held=True)
    return here, ours, me


def test_a_pass_keeps_what_it_left_free_after_its_starts():
    _, ours, me = scene()
    job(ours, me, devices=1, time_limit=30.0)
    services._one_pass(later(1))

    (told,) = selectors.fragmentation_now()
    assert (told.name, told.free) == ("H100", 5.0)  # the last one has started
    # Replicas: 3 of one device, 2 of four, 2 of three. One node has three left, the other two.
    assert told.of_no_use == pytest.approx((2 * 5 + 2 * 2) / 7, abs=1e-3)
    assert told.of_no_use_to_gangs == 5.0
    assert told.share == pytest.approx(told.of_no_use / 5)


def test_what_ran_within_a_day_says_what_is_typical():
    here, ours = fleet(1, 4, kind="H100"), team()
    me = person(ours)
    end(start(job(ours, me, devices=4), here, grant(here.nodes[0], (0, 1, 2, 3))), "succeeded", at=later(10))
    start(job(ours, me, devices=1, time_limit=1e6), here, at=later(20))
    services._one_pass(later(30))
    assert selectors.fragmentation_now() == (TypeFree("H100", 3.0, 1.5, None),)

    snapshot.forget()
    services._one_pass(later(90_000))
    assert selectors.fragmentation_now() == (TypeFree("H100", 3.0, 0.0, None),)


def test_nodes_that_take_no_work_have_nothing_free_and_a_type_nobody_asks_for_is_not_judged():
    here = fleet(2, 4, kind="H100")
    fleet(1, 8, kind="A100")
    Node.objects.filter(pk=here.nodes[0].pk).update(health=Health.DRAINED)
    services._one_pass(NOON)

    assert set(selectors.fragmentation_now()) == {
        TypeFree("H100", 4.0, None, None),
        TypeFree("A100", 8.0, None, None),
    }


def test_it_is_kept_by_the_minute_told_by_rest_and_to_prometheus():
    _, _, me = scene()
    at = clock.now()
    services._one_pass(at)
    services.roll_up(at=at)
    asks = client(me)
    (told,) = asks.get("/api/v1/utilization", {"accelerator_type": "H100"}).data["fragmentation"]
    last = Pass.objects.latest("pk")

    assert told == {"accelerator_type": "H100", "free": 6.0, "of_no_use": 2.0, "of_no_use_to_gangs": 0.0}
    assert asks.get("/api/v1/utilization", {"accelerator_type": "X"}).data["fragmentation"] == []
    assert asks.get(f"/api/v1/passes/{last.pk}").data["fragmentation"] == [told]
    (sample,) = UtilizationSample.objects.all()
    assert (sample.left_free, sample.of_no_use, sample.of_no_use_to_gangs) == (6.0, 2.0, 0.0)
    families = {f.name: f for f in text_string_to_metric_families(asks.get("/metrics").content.decode())}
    assert families["switchyard_devices_free"].samples[0].value == 6.0
    assert {
        (one.labels["accelerator_type"], one.labels["to"]): one.value
        for one in families["switchyard_devices_free_of_no_use"].samples
    } == {("H100", "replica"): 2.0, ("H100", "gang"): 0.0}


def test_the_history_is_the_mean_of_each_hour():
    here = fleet(1, 4, kind="H100")
    for minutes, free, of_no_use in ((0, 4.0, 2.0), (59, 2.0, 1.0), (60, 8.0, None)):
        UtilizationSample.objects.create(
            at=NOON + timedelta(minutes=minutes), accelerator_type=here.kind, n_capacity=4, n_unhealthy=0, claimed=0,
            left_free=free, of_no_use=of_no_use,
        )  # fmt: skip

    told = selectors.fragmentation_by_hour(since=NOON, until=later(7200))
    assert list(told.items()) == [
        (later(3600).astimezone(UTC), (TypeFree("H100", 8.0, None, None),)),
        (NOON, (TypeFree("H100", 3.0, 1.5, None),)),
    ]

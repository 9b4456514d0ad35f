"""The facility as built, and the health of its nodes."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden, InvalidInput, NameTaken
from apps.events.models import Event
from apps.inventory import services
from apps.inventory.models import AcceleratorType, Device, Domain, Health, Node
from apps.inventory.services import NodeFacts
from apps.inventory.tests.builders import cluster, domain, node
from apps.teams.tests.builders import LATER, NOON, kind, person

pytestmark = pytest.mark.django_db


def claim(of: Node, share: str = "1") -> None:
    # Only in part a claim: nothing stands behind it, so it must be gone again before the transaction ends.
    Device.objects.filter(node=of, index=0).update(claimed_share=share)


def health(of: Node) -> str:
    of.refresh_from_db()
    return of.health


def drain(of: Node, **more):
    return services.drain_node(node_id=of.pk, at=NOON, **{"actor": None, **more})


def report(of: Node, word: str, **more):
    more = {"reason": "", "actor": None, "at": NOON, **more}
    return services.report_health(node_id=of.pk, health=word, **more)


# As built


def test_a_node_comes_with_its_devices():
    assert list(node(n_devices=4).devices.values_list("index", flat=True)) == [0, 1, 2, 3]


def test_no_domain_is_above_itself():
    hall = domain("h", "hall")
    rack = domain("r", "rack", hall)
    with pytest.raises(IntegrityError, match="above itself"), transaction.atomic():
        Domain.objects.filter(pk=hall.pk).update(parent=rack)


@pytest.mark.parametrize(
    ("of_kind", "above"),
    [("leaf", "rack"), ("hall", "rack"), ("rack", "rack"), ("cooling", "hall"), ("leaf", "storage")],
)
def test_a_domain_hangs_below_a_wider_kind_of_its_own_tree(of_kind, above):
    with pytest.raises(InvalidInput, match="parent"):
        domain("low", of_kind, domain("high", above))


def test_levels_of_a_tree_may_be_left_out():
    assert domain("r", "rack", domain("f", "facility")).parent_id is not None


@pytest.mark.parametrize("field", ["leaf", "scale_up", "power", "cooling", "storage"])
def test_a_leaf_that_is_a_rack_is_refused(field):
    wrong = domain("x", "rack" if field != "power" else "leaf")
    with pytest.raises(InvalidInput) as caught:
        node(**{field: wrong})
    assert caught.value.errors[0]["path"] == field


@pytest.mark.parametrize(
    "curve",
    [
        [],
        [[0.5, 0.6]],
        [[0.5, 0.9], [0.8, 0.7], [1.0, 1.0]],
        [[1.0, 1.0], [1.0, 1.0]],
        [[0.5, 1.2], [1.0, 1.0]],
    ],
)
def test_a_curve_that_falls_or_does_not_end_at_full_is_refused(curve):
    with pytest.raises(InvalidInput, match="power_curve"):
        kind(power_curve=curve)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_the_database_refuses_what_is_no_power(number):
    made = kind()
    with pytest.raises(IntegrityError), transaction.atomic():
        AcceleratorType.objects.filter(pk=made.pk).update(tdp_w=number)


def test_names_of_nodes_are_taken_once():
    node("n1")
    with pytest.raises(NameTaken, match="n1"):
        node("n1")
    facts = NodeFacts(name="n2", accelerator_type=kind(), n_devices=1)
    with pytest.raises(NameTaken, match="n2"):
        services.create_nodes(cluster=cluster(), rows=[facts, facts], actor=None, at=NOON)
    assert Node.objects.count() == 1


@pytest.mark.parametrize("role", ["", "operator", "power_admin", "auditor"])
def test_only_administrators_build(role):
    with pytest.raises(Forbidden):
        services.create_domain(name="h", kind="hall", actor=person("max", role), at=NOON)


# Drains


def test_a_node_without_work_is_drained_at_once():
    made = node()
    drain(made, reason="fan")

    assert (health(made), made.health_reason) == (Health.DRAINED, "fan")


def test_a_node_with_work_is_drained_when_the_work_has_ended():
    made = node()
    claim(made)
    drain(made)
    assert services.settle_draining(at=LATER) == []
    assert health(made) == Health.DRAINING
    claim(made, "0")
    services.settle_draining(at=LATER)

    assert health(made) == Health.DRAINED
    assert made.health_since_at == LATER


def test_draining_twice_says_so_once():
    made = node()
    drain(made)
    drain(made)

    assert Event.objects.filter(kind="node.drain_requested").count() == 1


def test_a_drain_outlives_a_failure():
    made = node()
    drain(made)
    report(made, "failed")
    assert health(made) == Health.FAILED
    report(made, "healthy")

    assert health(made) == Health.DRAINED


def test_a_monitor_does_not_lift_a_drain():
    made = node()
    drain(made)
    report(made, "healthy")

    assert health(made) == Health.DRAINED


def test_a_drain_of_a_failed_node_holds_when_it_is_mended():
    made = node()
    report(made, "failed")
    drain(made)
    assert health(made) == Health.FAILED
    report(made, "healthy")

    assert health(made) == Health.DRAINED


def test_resuming_gives_work_again():
    made = node()
    drain(made)
    services.resume_node(node_id=made.pk, actor=None, at=LATER)
    report(made, "healthy")

    assert health(made) == Health.HEALTHY


def test_a_node_that_failed_cools_down():
    made = node()
    report(made, "failed")
    report(made, "healthy", cooldown_s=600)
    made.refresh_from_db()

    assert made.cooldown_until_at == NOON + timedelta(minutes=10)
    services.resume_node(node_id=made.pk, actor=None, at=NOON)
    made.refresh_from_db()
    assert made.cooldown_until_at is None


def test_the_same_report_again_says_nothing():
    made = node()
    report(made, "suspect", reason="ecc")
    n_events = Event.objects.count()
    report(made, "suspect", reason="ecc")

    assert Event.objects.count() == n_events


@pytest.mark.parametrize("word", ["draining", "drained", "", "well"])
def test_a_monitor_reports_only_what_it_can_see(word):
    with pytest.raises(InvalidInput):
        report(node(), word)


def test_the_audit_has_who_before_after_and_why():
    made = node()
    drain(made, actor=person("olga", "operator"), reason="fan")
    event = Event.objects.get(kind="node.drain_requested")

    assert (event.actor_name, event.reason, event.is_audit) == ("olga", "fan", True)
    assert (event.before["health"], event.after["health"]) == ("healthy", "drained")


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_only_operators_touch_nodes(role):
    made, max_ = node(), person("max", role)
    for act in (drain, lambda of, actor: report(of, "failed", actor=actor)):
        with pytest.raises(Forbidden):
            act(made, actor=max_)

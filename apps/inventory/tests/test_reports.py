"""Reports of probes and agents, on a real PostgreSQL."""

from datetime import timedelta

import pytest

from apps.core.errors import Forbidden, InvalidInput
from apps.events.models import Event
from apps.inventory import health, reports, services
from apps.inventory.models import Health, HealthReport, Node
from apps.inventory.reports import Check, Report
from apps.inventory.tests.builders import node
from apps.teams.tests.builders import NOON, person

pytestmark = pytest.mark.django_db


def after(minutes: float):
    return NOON + timedelta(minutes=minutes)


def report(
    of: Node, minutes: float, *failing: str, status: str = "ok", source: str = "agent", actor=None
) -> Node:
    checks = (Check("fan", True, 0.5), *(Check(name, False, 1.0, "bad") for name in failing))
    made = Report(node_id=of.pk, at=after(minutes), status=status, checks=checks)
    return reports.take_report(report=made, source=source, actor=actor, at=after(minutes))


def state(of: Node) -> tuple[str, str]:
    of.refresh_from_db()
    return of.health, of.health_by


def test_a_good_report_changes_nothing_but_is_kept():
    made = node()
    n_events = Event.objects.count()
    report(made, 0)

    assert state(made) == ("healthy", "")
    assert HealthReport.objects.get().checks == [{"name": "fan", "ok": True, "value": 0.5, "message": ""}]
    assert Event.objects.count() == n_events


def test_a_failing_check_makes_a_node_suspect_or_failed_and_says_why():
    made = node()
    report(made, 0, "fabric")
    assert state(made) == ("suspect", "reports")
    report(made, 1, "xid_79")

    assert state(made) == ("failed", "reports")
    assert made.health_reason == "agent: xid_79"
    event = Event.objects.filter(kind="node.health_changed").latest("id")
    assert (event.before["health"], event.after["health"], event.is_audit) == ("suspect", "failed", True)


def test_the_same_said_again_takes_no_new_row():
    made = node()
    for minute in range(10):
        report(made, minute)
    row = HealthReport.objects.get()

    assert (row.n_reports, row.first_at, row.at) == (10, after(0), after(9))


def test_a_report_that_comes_twice_or_late_counts_once():
    made = node()
    for minute in (5, 5, 3, 5):
        report(made, minute, "temperature")

    assert HealthReport.objects.get().n_reports == 1
    assert state(made) == ("healthy", "")


def test_a_node_comes_back_after_good_reports_and_a_cool_down():
    made = node()
    report(made, 0, "xid_79")
    for minute in (1, 2, 3, 4):
        report(made, minute)
    assert state(made)[0] == "failed"
    report(made, 5)
    assert state(made) == ("suspect", "reports")
    assert made.cooldown_until_at == after(5) + health.FIRST_COOLDOWN
    report(made, 6)
    assert made.cooldown_until_at == after(5) + health.FIRST_COOLDOWN
    services.settle_health(at=after(9))
    assert state(made)[0] == "suspect"
    services.settle_health(at=after(10))

    assert state(made) == ("healthy", "")
    assert made.cooldown_until_at is None
    assert Event.objects.filter(kind="node.cooled_down").count() == 1


def test_a_relapse_while_it_cools_down_begins_anew_and_doubles():
    made = node()
    report(made, 0, "fabric")
    for minute in (1, 2, 3):
        report(made, minute)
    report(made, 4, "fabric")
    assert state(made) == ("suspect", "reports")
    assert made.cooldown_until_at is None
    services.settle_health(at=after(60))
    assert state(made)[0] == "suspect"
    for minute in (61, 62, 63):
        report(made, minute)
    made.refresh_from_db()

    assert made.cooldown_until_at == after(63) + 2 * health.FIRST_COOLDOWN


def test_one_source_does_not_take_back_what_another_said():
    made = node()
    report(made, 0, "fabric", source="agent")
    for minute in range(1, 9):
        report(made, minute, source="other")

    assert state(made) == ("suspect", "reports")
    assert made.cooldown_until_at is None


def test_what_a_person_said_is_not_taken_back_by_reports():
    made = node()
    services.report_health(node_id=made.pk, health="failed", reason="smoke", actor=None, at=after(0))
    for minute in range(1, 9):
        report(made, minute)

    assert state(made) == ("failed", "person")
    assert made.health_reason == "smoke"


def test_resuming_forgives_what_was_reported_until_then():
    made = node()
    for minute in range(3):
        report(made, minute, "temperature")
    services.resume_node(node_id=made.pk, actor=None, at=after(2.5))
    report(made, 3, "temperature")
    report(made, 4, "temperature")
    assert state(made) == ("healthy", "")
    report(made, 5, "temperature")

    assert state(made) == ("suspect", "reports")


def test_a_drained_node_stays_drained_unless_it_fails():
    made = node()
    services.drain_node(node_id=made.pk, actor=None, at=after(0))
    report(made, 1, "fabric")
    assert state(made)[0] == "drained"
    report(made, 2, "xid_79")
    assert state(made)[0] == "failed"
    for minute in range(3, 9):
        report(made, minute)

    assert state(made)[0] == "drained"


def test_many_nodes_are_reported_at_once():
    made = [node(f"n{n}") for n in range(5)]
    some = [
        Report(node_id=one.pk, at=after(0), checks=(Check("fabric", number != 3),))
        for number, one in enumerate(made)
    ]

    assert reports.take_reports(reports=some, source="probe", actor=None, at=after(0)) == [made[3].pk]
    assert reports.take_reports(reports=some, source="probe", actor=None, at=after(0)) == []
    assert Node.objects.filter(health=Health.SUSPECT).count() == 1


def test_a_report_of_a_node_that_is_gone_is_dropped():
    gone = Report(node_id=999, at=after(0), status="failed")

    assert reports.take_reports(reports=[gone], source="probe", actor=None, at=after(0)) == []


def test_only_so_many_reports_are_kept_of_a_node_and_none_for_ever():
    made, other = node(), node("n2")
    report(other, 0)
    for minute in range(health.REPORTS_KEPT + 10):
        report(made, minute, f"check-{minute % 2}")

    assert HealthReport.objects.filter(node=made).count() == health.REPORTS_KEPT
    assert HealthReport.objects.filter(node=made).earliest("at").at == after(10)
    assert HealthReport.objects.filter(node=other).count() == 1
    services.prune(at=after(60) + health.REPORTS_KEPT_FOR)
    assert not HealthReport.objects.exists()


def test_a_report_out_of_the_future_is_refused():
    made = node()
    ahead = Report(node_id=made.pk, at=after(5))
    with pytest.raises(InvalidInput):
        reports.take_report(report=ahead, source="agent", actor=None, at=after(0))


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_only_operators_report(role):
    with pytest.raises(Forbidden):
        report(node(), 0, actor=person("max", role))


def test_a_node_that_a_person_says_is_well_again_cools_down_all_the_same():
    made = node()
    services.report_health(node_id=made.pk, health="failed", reason="", actor=None, at=after(0))
    services.report_health(node_id=made.pk, health="healthy", reason="", actor=None, at=after(1))
    made.refresh_from_db()

    assert made.cooldown_until_at == after(1) + health.FIRST_COOLDOWN

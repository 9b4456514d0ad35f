"""What is remembered of the facility at submission is the facility as it is, whoever changed it."""

import pytest

from apps.inventory.models import AcceleratorType, Cluster, Domain, Node
from apps.jobs.errors import Infeasible
from apps.jobs.tests.builders import NOON, fleet, later, request, team
from apps.power.models import PowerLimit
from apps.scheduling import admission, services
from apps.scheduling.models import FacilityChange

pytestmark = pytest.mark.django_db


@pytest.fixture
def fits():
    """Whether a job of so many whole devices could start in the empty facility."""
    of = team()

    def ask(n_devices: int) -> bool:
        try:
            admission.require_possible([request(of, devices=float(n_devices), peak_w=500.0)])
        except Infeasible:
            return False
        return True

    return ask


def test_a_node_that_was_enlarged_is_known_at_the_next_submission(fits):
    fleet(n_nodes=1, n_devices=4)
    assert not fits(5)

    Node.objects.update(n_devices=5)

    assert fits(5)


def test_a_limit_that_was_lowered_is_known_at_the_next_submission(fits):
    hall = Domain.objects.create(name="hall", kind="hall")
    limit = PowerLimit.objects.create(domain=hall, limit_w=1000.0)
    fleet(n_nodes=1, power=hall)
    assert fits(1)

    PowerLimit.objects.filter(pk=limit.pk).update(limit_w=100.0)

    assert not fits(1)


def test_a_team_that_was_just_made_may_ask(fits):
    fleet(n_nodes=1)
    assert fits(1)

    admission.require_possible([request(team(), devices=1.0)])


def test_what_reports_write_all_day_long_is_no_change_of_the_facility():
    here = fleet(n_nodes=1)
    before = FacilityChange.objects.count()

    Node.objects.filter(pk=here.nodes[0].pk).update(health="failed")
    Cluster.objects.update(last_contact_at=NOON)

    assert FacilityChange.objects.count() == before


def test_old_changes_are_forgotten_but_for_the_last():
    fleet(n_nodes=1)
    AcceleratorType.objects.update(speed=2.0)
    FacilityChange.objects.update(at=NOON)
    last = FacilityChange.objects.order_by("-pk")[0].pk

    services._forget_old(later(7200))

    assert [change.pk for change in FacilityChange.objects.all()] == [last]

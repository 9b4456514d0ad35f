"""Data sets, their copies, and transfers."""

from datetime import timedelta

import pytest

from apps.core.errors import Forbidden, InvalidInput, NameTaken
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.staging import services
from apps.staging.models import Copy
from apps.teams.tests.builders import LATER, NOON, person

pytestmark = pytest.mark.django_db


@pytest.fixture
def stores():
    return [domain(name, "storage") for name in ("s1", "s2")]


def name_it(name="imagenet", at=(), **more):
    more = {"actor": None, "at": NOON, **more}
    return services.create_dataset(name=name, size_gib=150.0, at_domains=at, **more)


def where(dataset):
    return sorted(Copy.objects.filter(dataset=dataset).values_list("domain__name", flat=True))


def test_copies_lie_where_they_are_said_to(stores):
    made = name_it(at=["s1"])
    services.set_copies(dataset_id=made.pk, at_domains=["s2"], actor=None, at=NOON)

    assert where(made) == ["s2"]


def test_a_copy_lies_in_storage_only(stores):
    domain("leaf", "leaf")
    with pytest.raises(InvalidInput) as caught:
        name_it(at=["s1", "leaf", "nowhere"])
    assert [fault["path"] for fault in caught.value.errors] == ["at[1]", "at[2]"]


def test_names_are_taken_once():
    name_it()
    with pytest.raises(NameTaken):
        name_it()


def test_a_transfer_that_arrives_is_a_copy(stores):
    made = name_it()
    asked = {"dataset_id": made.pk, "to_domain_id": stores[0].pk, "expected_end_at": LATER, "at": NOON}
    transfer = services.start_transfer(**asked)
    assert services.start_transfer(**asked) == transfer
    services.end_transfer(transfer_id=transfer.pk, at=LATER)
    services.end_transfer(transfer_id=transfer.pk, at=LATER + timedelta(hours=1))

    assert where(made) == ["s1"]
    assert Event.objects.filter(kind="dataset.transfer_ended").count() == 1


def test_a_transfer_that_failed_is_none(stores):
    made = name_it()
    transfer = services.start_transfer(
        dataset_id=made.pk, to_domain_id=stores[0].pk, expected_end_at=LATER, at=NOON
    )
    services.end_transfer(transfer_id=transfer.pk, at=LATER, error="disk full")

    assert where(made) == []


def test_what_is_on_its_way_is_not_forgotten(stores):
    made = name_it()
    services.start_transfer(dataset_id=made.pk, to_domain_id=stores[0].pk, expected_end_at=LATER, at=NOON)
    with pytest.raises(services.DatasetInUse):
        services.delete_dataset(dataset_id=made.pk, actor=None, at=NOON)


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_only_operators_name_data_sets(role):
    with pytest.raises(Forbidden):
        name_it(actor=person("max", role))

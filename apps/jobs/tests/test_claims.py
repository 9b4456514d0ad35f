"""The database holds that a device says what its open claims add up to."""

from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from apps.inventory.models import Device
from apps.inventory.tests.builders import node
from apps.jobs.models import Allocation, DeviceClaim, Job, Placement
from apps.teams.tests.builders import LATER, NOON, person, team

pytestmark = pytest.mark.django_db


@pytest.fixture
def placement():
    made, vision = node(), team("vision")
    job = Job.objects.create(
        team=vision,
        user=person("max"),
        name="train",
        spec={},
        shape="x",
        n_devices=1,
        submitted_at=NOON,
        state_at=NOON,
        queued_at=NOON,
    )
    allocation = Allocation.objects.create(job=job, cluster=made.cluster, fence=1)
    return Placement.objects.create(allocation=allocation, node=made, n_replicas=1)


def settle():
    """What the end of the transaction would find."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


def commit(act):
    """Do it in a part of its own, and see what its end would find."""
    with transaction.atomic():
        act()
        settle()


def claim(placement, index=0, share="1"):
    return DeviceClaim.objects.create(
        placement=placement, device=device(placement, index), share=Decimal(share)
    )


def device(placement, index=0):
    return Device.objects.get(node=placement.node, index=index)


def say(placement, share, index=0):
    Device.objects.filter(pk=device(placement, index).pk).update(claimed_share=Decimal(share))


def test_claim_and_device_may_be_written_in_either_order(placement):
    claim(placement, 0, "0.25")
    say(placement, "0.25", 0)
    say(placement, "1", 1)
    claim(placement, 1, "1")
    settle()


def test_a_claim_without_its_device_is_refused(placement):
    with pytest.raises(IntegrityError, match="add up"):
        commit(lambda: claim(placement))


def test_a_device_without_its_claim_is_refused(placement):
    with pytest.raises(IntegrityError, match="add up"):
        commit(lambda: say(placement, "0.5"))


def test_a_release_without_its_device_is_refused(placement):
    claim(placement)
    say(placement, "1")
    settle()
    with pytest.raises(IntegrityError, match="add up"):
        commit(lambda: DeviceClaim.objects.update(released_at=LATER))


def test_a_claim_taken_away_without_its_device_is_refused(placement):
    claim(placement)
    say(placement, "1")
    settle()
    with pytest.raises(IntegrityError, match="add up"):
        commit(DeviceClaim.objects.all().delete)


def test_what_was_undone_is_not_held_against_the_rest(placement):
    with transaction.atomic():
        claim(placement, 0)
        transaction.set_rollback(True)
    claim(placement, 1)
    say(placement, "1", 1)
    settle()


def test_what_came_before_an_undone_part_is_still_looked_at(placement):
    def claim_twice_and_undo_one():
        claim(placement, 0)
        with transaction.atomic():
            claim(placement, 1)
            transaction.set_rollback(True)

    with pytest.raises(IntegrityError, match="add up"):
        commit(claim_twice_and_undo_one)


def test_no_device_has_two_whole_owners(placement):
    claim(placement)
    other = Placement.objects.create(
        allocation=placement.allocation, node=placement.node, n_replicas=1, group_index=1
    )
    with pytest.raises(IntegrityError, match="one_whole_owner"), transaction.atomic():
        claim(other)
    DeviceClaim.objects.all().delete()


def test_a_device_is_not_claimed_more_than_whole(placement):
    with pytest.raises(IntegrityError, match="within_0_and_1"), transaction.atomic():
        say(placement, "1.000001")

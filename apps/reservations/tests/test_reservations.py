"""Promising capacity once."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.errors import Forbidden, InvalidInput, NameTaken
from apps.events.models import Event
from apps.inventory.tests.builders import domain, node
from apps.reservations import selectors, services
from apps.reservations.errors import ReservationConflict
from apps.reservations.models import Reservation
from apps.reservations.services import Draft
from apps.teams.tests.builders import NOON, kind, person, team

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def draft(name="r", starts=1, lasts=2, **more):
    """Hours from noon on Monday 2 March 2026."""
    starts_at = NOON + starts * HOUR
    return Draft(name=name, starts_at=starts_at, ends_at=starts_at + lasts * HOUR, **more)


def reserve(*args, **more):
    return services.create_reservation(draft=draft(*args, **more), actor=None, at=NOON)


def conflicts(*args, **more):
    check = services.check_reservation(draft=draft(*args, **more), at=NOON)
    return [conflict.message for conflict in check.conflicts]


def fault_paths(**more):
    with pytest.raises(InvalidInput) as caught:
        services.check_reservation(draft=draft(**more), at=NOON)
    return [fault["path"] for fault in caught.value.errors]


def test_named_nodes_belong_to_one_at_a_time():
    node("n1")
    reserve("first", nodes=("n1",))
    with pytest.raises(ReservationConflict, match="n1 belongs to first from 2026-03-02 14:00") as caught:
        reserve("second", starts=2, nodes=("n1",))
    assert caught.value.facts["conflicts"][0]["reservation"] == "first"


def test_one_may_start_as_the_other_ends():
    node("n1")
    reserve("first", nodes=("n1",))
    reserve("second", starts=3, nodes=("n1",))
    reserve("third", starts=0, lasts=1, nodes=("n1",))


def test_a_cancelled_reservation_stands_in_nobodys_way():
    node("n1")
    first = reserve("first", nodes=("n1",))
    services.cancel_reservation(reservation_id=first.pk, actor=None, at=NOON)
    services.cancel_reservation(reservation_id=first.pk, actor=None, at=NOON + HOUR)
    reserve("second", nodes=("n1",))

    first.refresh_from_db()
    assert first.cancelled_at == NOON
    assert selectors.windows_between(first, NOON, NOON + 9 * HOUR) == []
    assert [booked.name for booked in selectors.windows(NOON, NOON + 9 * HOUR)] == ["second"]


def test_recurrences_stand_in_each_others_way_far_ahead():
    node("n1")
    reserve("weekly", nodes=("n1",), rrule="FREQ=WEEKLY")
    assert conflicts("once", starts=24 * 7 * 20, nodes=("n1",)) != []
    assert conflicts("tuesdays", starts=24, nodes=("n1",), rrule="FREQ=WEEKLY") == []


def test_an_amount_finds_room_beside_other_amounts_and_named_nodes():
    node("n1", 8)
    node("n2", 8)
    reserve("named", nodes=("n1",))
    reserve("amount", accelerator_type="H100", n_devices=5)

    assert conflicts(accelerator_type="H100", n_devices=3) == []
    assert conflicts(accelerator_type="H100", n_devices=4) == [
        "asks 4 devices where 3 are not promised yet at 2026-03-02 13:00 UTC"
    ]


def test_naming_nodes_may_not_take_what_an_amount_needs():
    node("n1", 8)
    node("n2", 8)
    reserve("amount", accelerator_type="H100", n_devices=9)

    assert conflicts(nodes=("n1",)) == ["leaves 8 of 9 devices that were promised at 2026-03-02 13:00 UTC"]


def test_what_begins_within_the_window_counts():
    node("n1", 8)
    reserve("late", starts=2, accelerator_type="H100", n_devices=8)

    assert conflicts(starts=1, lasts=1, accelerator_type="H100", n_devices=8) == []
    assert conflicts(starts=1, lasts=2, accelerator_type="H100", n_devices=8) != []


def test_an_amount_within_a_domain_lies_in_one():
    leaves = [domain(name, "leaf") for name in ("l1", "l2")]
    for index, leaf in enumerate((leaves[0], leaves[0], leaves[1])):
        node(f"n{index}", 8, leaf=leaf)
    reserve("named", nodes=("n0",))

    assert conflicts(accelerator_type="H100", n_devices=16) == []
    assert conflicts(accelerator_type="H100", n_devices=16, within="leaf") != []
    assert conflicts(accelerator_type="H100", n_devices=8, within="leaf") == []


def test_more_than_there_is_is_refused_with_the_numbers():
    node("n1", 8)
    node("n2", 8)
    with pytest.raises(InvalidInput, match="asks 24 H100, the facility has 16"):
        services.check_reservation(draft=draft(accelerator_type="H100", n_devices=24), at=NOON)


@pytest.mark.parametrize(
    ("more", "paths"),
    [
        ({}, ["nodes"]),
        ({"nodes": ("n1", "nx")}, ["nodes[1]"]),
        ({"nodes": ("n1",), "teams": ("nobody",)}, ["teams[0]"]),
        ({"nodes": ("n1",), "accelerator_type": "H100", "n_devices": 1}, ["accelerator_type"]),
        ({"accelerator_type": "H100"}, ["n_devices"]),
        ({"accelerator_type": "X", "n_devices": 1}, ["accelerator_type"]),
        ({"nodes": ("n1",), "within": "leaf"}, ["within"]),
        ({"nodes": ("n1",), "lasts": 0}, ["ends_at"]),
        ({"nodes": ("n1",), "lasts": -1}, ["ends_at"]),
        ({"nodes": ("n1",), "lasts": 24 * 4000}, ["ends_at"]),
        ({"nodes": ("n1",), "starts": -5}, ["ends_at"]),
        ({"nodes": ("n1",), "time_zone": "Nowhere"}, ["time_zone"]),
        ({"nodes": ("n1",), "rrule": "FREQ=HOURLY"}, ["rrule"]),
    ],
)
def test_a_draft_that_makes_no_sense_is_refused_at_its_field(more, paths):
    node("n1")
    assert fault_paths(**more) == paths


def test_what_began_may_still_be_reserved_until_it_ends():
    node("n1")
    assert reserve(starts=-1, nodes=("n1",)).pk


def test_a_check_writes_nothing():
    node("n1")
    n_events = Event.objects.count()
    services.check_reservation(draft=draft(nodes=("n1",)), at=NOON)

    assert (Reservation.objects.count(), Event.objects.count()) == (0, n_events)


def test_names_are_taken_once():
    node("n1")
    reserve("a", nodes=("n1",))
    with pytest.raises(NameTaken):
        reserve("a", starts=9, nodes=("n1",))


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_only_operators_promise(role):
    node("n1")
    with pytest.raises(Forbidden):
        services.create_reservation(draft=draft(nodes=("n1",)), actor=person("max", role), at=NOON)


@pytest.mark.parametrize("zone", ["Nowhere/City", "LUNCH-3", "", "EST5EDT"])
def test_the_database_refuses_what_is_no_zone(zone):
    node("n1")
    made = reserve(nodes=("n1",))
    with pytest.raises(IntegrityError, match="not the name of a time zone"), transaction.atomic():
        Reservation.objects.filter(pk=made.pk).update(time_zone=zone)


def test_windows_say_for_whom_and_what():
    node("n1")
    vision = team("vision")
    made = reserve("v", nodes=("n1",), teams=("vision",), rrule="FREQ=DAILY", is_flexible=False)
    found = selectors.windows(NOON, NOON + 48 * HOUR)

    assert [booked.starts_at for booked in found] == [NOON + HOUR, NOON + 25 * HOUR]
    assert (found[0].reservation_id, found[0].team_ids, found[0].is_flexible) == (made.pk, {vision.pk}, False)
    assert found[0].node_ids == {made.nodes.get().pk}


def test_the_number_of_queries_does_not_grow_with_reservations(django_assert_num_queries):
    kind()
    for index in range(4):
        node(f"n{index}")
        reserve(f"r{index}", nodes=(f"n{index}",), rrule="FREQ=DAILY")
    with django_assert_num_queries(3):
        selectors.windows(NOON, NOON + 48 * HOUR)


@pytest.mark.django_db(transaction=True)
def test_of_two_promises_at_once_one_is_refused():
    node("n1")
    gate, refused = threading.Barrier(2), []

    def promise(name):
        gate.wait(10)
        try:
            reserve(name, nodes=("n1",))
        except ReservationConflict:
            refused.append(name)
        connection.close()

    threads = [threading.Thread(target=promise, args=[name]) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 1
    assert Reservation.objects.count() == 1

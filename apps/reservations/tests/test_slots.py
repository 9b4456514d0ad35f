"""The slot finder: what it offers can be reserved, and nothing earlier could."""

from datetime import timedelta
from typing import Any

import pytest

from apps.core.errors import InvalidInput
from apps.inventory.models import Node
from apps.inventory.tests.builders import domain
from apps.jobs.tests.builders import NOON, fleet, grant, job, later, person, start, team
from apps.reservations import services
from apps.reservations.services import Draft
from apps.reservations.slots import Ask, find_slots
from apps.scheduling import slots

pytestmark = pytest.mark.django_db
HOUR = 3600


def ask(here, n_devices: int, *, hours: float = 2, until_h: float = 48, **more: Any) -> Ask:
    said = {
        "earliest_at": NOON,
        "latest_end_at": later(until_h * HOUR),
        "lasts": timedelta(hours=hours),
        **more,
    }
    return Ask(here.kind.name, n_devices, **said)


def book(here, name: str, start_h: float, end_h: float, n_devices: int) -> None:
    draft = Draft(
        name=name,
        starts_at=later(start_h * HOUR),
        ends_at=later(end_h * HOUR),
        accelerator_type=here.kind.name,
        n_devices=n_devices,
        teams=(team(name).name,),
    )
    services.create_reservation(draft=draft, actor=None, at=NOON)


def starts_h(found) -> list[float]:
    return [(window.starts_at - NOON) / timedelta(hours=1) for window in found.windows]


def test_the_earliest_windows_that_fit_are_offered_and_can_be_had():
    here = fleet(4, 8)
    book(here, "morning", 1, 6, 24)
    book(here, "night", 8, 12, 32)
    found = find_slots(ask(here, 16), at=NOON)

    # Until 1 o'clock there is no room for two hours; from 6 to 8 there is; then from 12 on.
    assert starts_h(found)[:2] == [6, 12]
    assert found.blocked_by == ("morning",)
    for number, window in enumerate(found.windows):
        draft = Draft(
            name=f"mine {number}",
            starts_at=window.starts_at,
            ends_at=window.ends_at,
            accelerator_type=here.kind.name,
            n_devices=16,
            teams=(),
        )
        assert services.check_reservation(draft=draft, at=NOON).is_possible
    assert starts_h(find_slots(ask(here, 8, hours=5), at=NOON))[0] == 0  # eight of the first are left


def test_what_could_never_be_is_told_with_what_could():
    here = fleet(4, 8)
    spine = domain("s", "spine")
    leaves = [domain(f"l{n}", "leaf", spine) for n in range(2)]
    for n, node in enumerate(here.nodes):
        Node.objects.filter(pk=node.pk).update(leaf=leaves[n % 2])
    found = find_slots(ask(here, 17, within="leaf"), at=NOON)
    assert (found.windows, found.most) == ((), 16)
    assert find_slots(ask(here, 16, within="leaf"), at=NOON).windows


def test_a_full_time_names_who_is_in_the_way():
    here = fleet(1, 8)
    book(here, "all of it", 0.5, 50, 8)
    found = find_slots(ask(here, 1), at=NOON)
    assert (found.windows, found.blocked_by) == ((), ("all of it",))


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("accelerator_type", {"accelerator_type": "none"}),
        ("n_devices", {"n_devices": 0}),
        ("lasts", {"lasts": timedelta(0)}),
        ("latest_end_at", {"latest_end_at": NOON}),
        ("latest_end_at", {"latest_end_at": later(100 * 24 * HOUR)}),
    ],
)
def test_what_makes_no_sense_names_its_field(field: str, more: dict[str, Any]):
    here = fleet(1, 8)
    said = {
        "accelerator_type": here.kind.name,
        "n_devices": 1,
        "lasts": timedelta(hours=1),
        "earliest_at": NOON,
        "latest_end_at": later(HOUR * 10),
        **more,
    }
    with pytest.raises(InvalidInput) as refusal:
        find_slots(Ask(**said), at=NOON)
    assert field in str(refusal.value.errors)


def test_an_offer_tells_who_may_have_to_leave_for_it():
    here = fleet(2, 8)
    ours = team("ours")
    for node, limit_s in ((0, 1.5 * HOUR), (1, 90 * HOUR)):
        running = job(ours, person(ours), devices=8, time_limit=limit_s)
        start(running, here, grant(here.nodes[node], tuple(range(8))))
    found = slots.offers(ask(here, 8, earliest_at=later(HOUR)), at=later(1))
    first, second = found.offers[:2]

    assert (first.n_free, first.n_running_into) == (0, 2)
    assert (second.n_free, second.n_running_into) == (8, 0)  # the first job's limit is over by then
    assert first.peak_w == 8 * 700

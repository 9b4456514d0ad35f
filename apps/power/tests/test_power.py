"""Limits and readings."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden, InvalidInput, VersionConflict
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power import selectors, services
from apps.power.models import PowerLimit, PowerReading
from apps.power.services import Reading
from apps.teams.tests.builders import NOON, person

pytestmark = pytest.mark.django_db


@pytest.fixture
def hall():
    return domain("h1", "hall")


def limit(of, actor=None, version=None, reason="", **changes):
    return services.set_limit(
        domain_id=of.pk, changes=changes, actor=actor, at=NOON, version=version, reason=reason
    )


def read(*readings, **more):
    return services.record_readings(readings=readings, at=NOON, **{"actor": None, **more})


def test_what_is_not_said_stays(hall):
    limit(hall, hard_limit_w=1e6, limit_w=8e5)
    limit(hall, limit_w=7e5)

    assert services.facts_of(PowerLimit.objects.get())["hard_limit_w"] == 1e6


def test_a_change_is_logged_with_both_sides_and_why(hall):
    limit(hall, limit_w=8e5)
    limit(hall, actor=person("pia", "power_admin"), reason="heat", limit_w=7e5)
    event = Event.objects.filter(kind="power.limit_changed").latest("id")

    assert (event.before["limit_w"], event.after["limit_w"]) == (8e5, 7e5)
    assert (event.actor_name, event.reason, event.is_audit) == ("pia", "heat", True)


def test_the_same_limit_again_says_nothing(hall):
    limit(hall, limit_w=8e5)
    n_events = Event.objects.count()

    assert limit(hall, limit_w=8e5).version == 1
    assert Event.objects.count() == n_events


def test_the_operating_limit_stays_within_the_hard_limit(hall):
    limit(hall, hard_limit_w=1e6, limit_w=8e5)
    with pytest.raises(InvalidInput, match="limit_w: must not be over"):
        limit(hall, limit_w=1.1e6)
    with pytest.raises(InvalidInput, match="hard_limit_w: must not be under"):
        limit(hall, hard_limit_w=7e5)


def test_who_saved_meanwhile_is_shown_with_both_sides(hall):
    limit(hall, version=1, limit_w=8e5)
    limit(hall, version=1, limit_w=7e5)
    with pytest.raises(VersionConflict) as caught:
        limit(hall, version=1, limit_w=6e5)

    assert caught.value.facts["yours"]["limit_w"] == 6e5
    assert caught.value.facts["stored"]["limit_w"] == 7e5


def test_a_leaf_has_no_limit():
    with pytest.raises(InvalidInput, match="domain"):
        limit(domain("l1", "leaf"), limit_w=1.0)


def test_overhead_is_the_facilitys(hall):
    with pytest.raises(InvalidInput, match="overhead_k"):
        limit(hall, overhead_k=1.2)
    limit(domain("f", "facility"), overhead_k=1.2, overhead_fixed_w=1e5)


def test_a_limit_at_the_meter_is_told_as_it_load():
    # 100 kW fixed and 1.15 for each watt of IT: a meter of 1,250 kW feeds 1,000 kW.
    made = limit(domain("f", "facility"), limit_w=1.25e6, overhead_k=1.15, overhead_fixed_w=1e5)

    assert selectors.it_limit_w(made, NOON) == pytest.approx(1e6)


@pytest.mark.parametrize("role", ["", "operator", "auditor"])
def test_only_power_administrators_set_limits(hall, role):
    with pytest.raises(Forbidden):
        limit(hall, actor=person("max", role), limit_w=1.0)


@pytest.mark.parametrize("watts", [float("nan"), float("inf"), -1.0])
def test_the_database_refuses_what_is_no_power(hall, watts):
    with pytest.raises(IntegrityError), transaction.atomic():
        PowerLimit.objects.create(domain=hall, limit_w=watts)
    with pytest.raises(IntegrityError), transaction.atomic():
        PowerReading.objects.create(domain=hall, at=NOON, draw_w=watts)


def test_a_reading_that_is_known_stays(hall):
    assert read(Reading("h1", NOON, 5e5), Reading("h1", NOON - timedelta(minutes=1), 4e5)) == 2
    assert read(Reading("h1", NOON, 9e5)) == 0

    assert selectors.latest_readings([hall.pk])[hall.pk].draw_w == 5e5


def test_readings_are_taken_all_or_none(hall):
    with pytest.raises(InvalidInput) as caught:
        read(
            Reading("h1", NOON, 1.0), Reading("h2", NOON, 1.0), Reading("h1", NOON + timedelta(hours=1), 1.0)
        )

    assert [fault["path"] for fault in caught.value.errors] == ["readings[1].domain", "readings[2].at"]
    assert not PowerReading.objects.exists()


def test_what_the_model_says_is_no_metered_reading(hall):
    services.record_modelled(draws_w={hall.pk: -3.0}, at=NOON)
    reading = PowerReading.objects.get()

    assert (reading.draw_w, reading.source, reading.quality) == (0.0, "modelled", "estimated")


def test_while_a_meter_speaks_the_model_says_nothing_beside_it(hall, django_assert_num_queries):
    silent, modelled = domain("h2", "hall"), domain("h3", "hall")
    for of, source, draw_w, minutes in (
        (hall, "pdu", 5.0, 3),
        (hall, "modelled", 6.0, 0),
        (silent, "pdu", 5.0, 7),
        (silent, "modelled", 6.0, 0),
        (modelled, "modelled", 6.0, 0),
    ):
        PowerReading.objects.create(
            domain=of, source=source, draw_w=draw_w, at=NOON - timedelta(minutes=minutes)
        )
    with django_assert_num_queries(1):
        found = selectors.latest_readings([hall.pk, silent.pk, modelled.pk])

    assert {key: row.source for key, row in found.items()} == {
        hall.pk: "pdu",
        silent.pk: "modelled",
        modelled.pk: "modelled",
    }
    assert selectors.it_draw(PowerReading.objects.filter(domain=hall).order_by("at"), NOON).draw_w == 5.0

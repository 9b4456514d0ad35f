"""Announcing events and giving them up."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.errors import Forbidden, InvalidInput, NameTaken, VersionConflict
from apps.events.models import Event
from apps.inventory.tests.builders import domain, node
from apps.power import programme_services, response_selectors, response_services, services
from apps.power.errors import (
    EventClosed,
    NoReference,
    NotToBeOptedOut,
    TargetBelowFloor,
    TooManyEvents,
    VersionReplayed,
)
from apps.power.models import DemandResponseEvent, PlanState, Programme
from apps.power.programme_services import ProgrammeDraft
from apps.power.response import Load, Phase
from apps.power.tests.builders import (
    NOTICE,
    RULES,
    announce,
    clock,
    commit,
    draw,
    preview,
    programme,
)
from apps.teams.tests.builders import NOON, kind, person

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def hall():
    made = domain("hall", "hall")
    draw(made, 132.4e3)
    return made


@pytest.fixture
def operator():
    return person("olga", "operator")


def phase(event, at, load=None):
    found = response_selectors.events().get(pk=event.pk)
    return response_selectors.phase_of_event(found, load=load or Load(), at=at)


def limit_w(hall, *at):
    return response_selectors.event_limits_w(clock(*at)).get(hall.pk)


def refused(**more):
    with pytest.raises(InvalidInput) as caught:
        announce(**more)
    return [fault["path"] for fault in caught.value.errors]


def test_the_reference_is_the_mean_before_the_notice(hall):
    draw(hall, 1e6, NOTICE + timedelta(minutes=16))
    event = announce()

    assert (event.reference_w, event.reference_quality) == (pytest.approx(132.4e3), "ok")
    assert (event.notified_at, event.ramp_start_at) == (NOTICE, NOTICE)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(5e4, {"source": "modelled", "quality": "estimated"})], (5e4, "estimated")),
        ([(5e4, {"source": "modelled", "quality": "estimated"}), (9e4, {})], (9e4, "ok")),
        ([(9e4, {}), (1.0, {"source": "second", "quality": "bad"})], (9e4, "estimated")),
        ([(1.0, {"quality": "bad"})], None),
        ([], None),
    ],
)
def test_a_meter_counts_before_the_model_and_what_is_bad_not_at_all(readings, expected):
    made = domain("hall", "hall")
    for draw_w, more in readings:
        draw(made, draw_w, **more)
    found = response_selectors.reference_before(made, NOTICE)

    assert (found and (found.draw_w, found.quality)) == expected


def test_nothing_to_count_from_is_refused_but_a_limit_needs_nothing():
    domain("hall", "hall")
    with pytest.raises(NoReference):
        announce()
    assert announce(target_kind="limit_to", value=1e5).reference_w is None


def test_the_reference_of_a_notice_to_come_is_frozen_then(hall):
    event = announce(at=NOON, notified_at=NOTICE)
    assert event.reference_w is None
    assert response_services.freeze_reference(event_id=event.pk, at=NOON).reference_w is None
    frozen = response_services.freeze_reference(event_id=event.pk, at=NOTICE + timedelta(minutes=2))

    assert frozen.reference_w == pytest.approx(132.4e3)
    draw(hall, 9e5, NOTICE, source="late")
    assert (
        response_services.freeze_reference(event_id=event.pk, at=clock(14)).reference_w == frozen.reference_w
    )


def test_two_events_leave_the_smaller_of_both_and_never_the_sum(hall):
    # 18 kW off from 14:00 to 17:00; at 15:00 somebody limits it to 108.4 kW from 15:30 to 16:30.
    announce()
    draw(hall, 113.2e3, clock(15))
    announce(
        at=clock(15),
        target_kind="limit_to",
        value=108.4e3,
        priority=0,
        start_at=clock(15, 30),
        end_at=clock(16, 30),
    )

    assert limit_w(hall, 13, 59) is None
    assert limit_w(hall, 15, 29) == pytest.approx(114.4e3)
    assert limit_w(hall, 15, 30) == pytest.approx(108.4e3)
    assert limit_w(hall, 16, 30) == pytest.approx(114.4e3)
    assert limit_w(hall, 17) == pytest.approx(1.05 * 132.4e3)
    assert limit_w(hall, 18) is None


def test_a_facility_is_asked_at_its_meter():
    site = domain("site", "facility")
    services.set_limit(
        domain_id=site.pk, changes={"overhead_fixed_w": 1e5, "overhead_k": 1.15}, actor=None, at=NOON
    )
    draw(site, 1.25e6)
    announce(domain="site", value=115e3)

    assert limit_w(site, 14) == pytest.approx(900e3)


def test_a_target_below_what_the_hall_draws_at_rest_needs_a_person_who_means_it(hall):
    # 21 nodes at rest draw 58.8 kW: 2 kW of host and 8 devices at 100 W each.
    kind(idle_w=100.0)
    rack = domain("rack", "rack", hall)
    for index in range(21):
        node(f"n{index}", idle_w=2000.0, power=rack)
    assert response_selectors.idle_floor_w(hall) == pytest.approx(58.8e3)
    with pytest.raises(TargetBelowFloor) as caught:
        announce(value=75e3)

    assert caught.value.facts == {"limit_w": pytest.approx(57.4e3), "floor_w": pytest.approx(58.8e3)}
    assert announce(value=75e3, is_below_floor_confirmed=True).value == 75e3
    announce(value=75e3, floor_w=50e3)


@pytest.mark.parametrize(
    ("more", "paths"),
    [
        ({"domain": "nowhere"}, ["domain"]),
        ({"domain": "leaf"}, ["domain"]),
        ({"programme": "nobody's"}, ["programme"]),
        ({"end_at": clock(14)}, ["end_at"]),
        ({"end_at": clock(14) + 40 * DAY}, ["end_at"]),
        ({"start_at": clock(13)}, ["start_at"]),
        ({"start_at": clock(14) + 500 * DAY, "end_at": clock(15) + 500 * DAY}, ["start_at"]),
        ({"notified_at": clock(14, 30)}, ["notified_at", "ramp_start_at"]),
        ({"notified_at": clock(13)}, ["notified_at"]),
        ({"ramp_start_at": clock(14, 1)}, ["ramp_start_at"]),
        ({"value": 0.0}, ["value"]),
        ({"target_kind": "level", "value": 1.5}, ["value"]),
        ({"recovery_s": 10**7}, ["recovery_s"]),
    ],
)
def test_an_event_that_makes_no_sense_is_refused_at_its_field(hall, more, paths):
    domain("leaf", "leaf")
    assert refused(**more) == paths
    assert not DemandResponseEvent.objects.exists()


def test_the_rules_of_the_programme_hold_but_not_in_an_emergency(hall):
    programme(ramp_s=300)
    assert refused(programme="summer", end_at=clock(14, 30)) == ["end_at"]
    assert refused(programme="summer", target_kind="limit_to", value=1e5) == ["target_kind"]
    announce(programme="summer", end_at=clock(14, 30), is_emergency=True)

    assert announce(programme="summer").ramp_start_at == clock(13, 55)


@pytest.mark.parametrize(("field", "later"), [("max_events_per_day", 0), ("max_events_per_season", 40)])
def test_a_programme_has_so_many_events_and_no_more(hall, field, later):
    programme(**{field: 1})
    first = announce(programme="summer")
    when = {"start_at": clock(18) + later * DAY, "end_at": clock(20) + later * DAY}
    when["notified_at"] = when["start_at"]
    with pytest.raises(TooManyEvents):
        announce(programme="summer", **when)
    announce(programme="summer", is_test=True, **when)
    response_services.cancel_event(event_id=first.pk, actor=None, at=NOTICE)

    announce(programme="summer", **when)


def test_days_are_those_of_the_programme(hall):
    # 14:00 and 23:30 UTC are two days in Tokyo.
    programme(max_events_per_day=1, time_zone="Asia/Tokyo")
    announce(programme="summer")
    late = clock(23, 30)
    announce(programme="summer", notified_at=late, start_at=late, end_at=late + timedelta(hours=1))


def test_the_same_external_version_again_changes_nothing(hall):
    said = {"source": "openadr", "external_id": "ev-1", "external_version": 3}
    first = announce(**said)
    n_logged = Event.objects.count()

    assert announce(**said, value=1e3) == first
    assert (first.value, Event.objects.count()) == (18e3, n_logged)
    with pytest.raises(VersionReplayed):
        announce(**{**said, "external_version": 2})


def test_a_later_version_changes_the_event_in_place_and_what_was_previewed_is_gone(hall):
    first = announce(source="openadr", external_id="ev-1")
    plan = preview(first)
    draw(hall, 1e5, clock(14))
    changed = announce(
        at=clock(14), source="openadr", external_id="ev-1", external_version=1, value=2e4, end_at=clock(16)
    )
    plan.refresh_from_db()

    assert (changed.pk, changed.value, changed.version) == (first.pk, 2e4, 2)
    assert (changed.reference_w, changed.notified_at) == (first.reference_w, NOTICE)
    assert plan.state == PlanState.SUPERSEDED
    assert Event.objects.get(kind="demand_response.revised").before["value"] == 18e3


def test_a_ramp_that_has_begun_is_not_put_off_by_a_later_version(hall, operator):
    event = announce(source="openadr", external_id="ev-1")
    preview(event)
    commit(event, operator)
    said = {"source": "openadr", "external_id": "ev-1", "external_version": 1, "start_at": clock(15)}
    changed = announce(at=clock(13, 50), ramp_start_at=clock(14, 45), **said)
    response_services.cancel_event(event_id=event.pk, actor=operator, at=clock(13, 55))

    assert changed.ramp_start_at == NOTICE
    assert phase(event, clock(13, 55)) is Phase.RECOVERING


def test_a_later_version_that_counts_from_the_load_gets_its_reference(hall):
    said = {"source": "openadr", "external_id": "ev-1"}
    draw(domain("dark", "hall"), 9e4, NOTICE + timedelta(minutes=20))
    assert announce(domain="dark", target_kind="limit_to", value=8e4, **said).reference_w is None
    with pytest.raises(NoReference):
        announce(domain="dark", external_version=1, at=clock(14, 5), **said)
    announced_later = {**said, "external_id": "ev-2", "notified_at": clock(14, 5), "start_at": clock(15)}
    announce(domain="dark", **announced_later)
    changed = announce(domain="dark", external_version=1, at=clock(14, 6), **announced_later)

    assert changed.reference_w == pytest.approx(9e4)


def test_cancelled_before_the_ramp_there_is_nothing_to_undo(hall, operator):
    event = announce(ramp_start_at=clock(13, 55))
    preview(event, actions=[])
    commit(event, operator)
    cancelled = response_services.cancel_event(
        event_id=event.pk, actor=operator, at=clock(13, 50), reason="storm over"
    )

    assert (cancelled.outcome, cancelled.version) == ("cancelled", 2)
    assert phase(event, clock(13, 50)) is Phase.CANCELLED
    assert Event.objects.get(kind="demand_response.cancelled").reason == "storm over"


def test_cancelled_midway_it_recovers_until_it_is_released(hall, operator):
    event = announce()
    preview(event)
    plan = commit(event, operator)
    response_services.cancel_event(event_id=event.pk, actor=operator, at=clock(15))
    assert phase(event, clock(15)) is Phase.RECOVERING
    calm = Load(draw_w=1e5, allowed_w=1e5)
    assert response_services.settle_release(event_id=event.pk, load=calm, at=clock(15, 5)).released_at is None
    plan.actions.update(state="reverted")
    busy = Load(draw_w=2e5, allowed_w=1e5)
    assert response_services.settle_release(event_id=event.pk, load=busy, at=clock(15, 5)).released_at is None
    done = response_services.settle_release(event_id=event.pk, load=calm, at=clock(15, 6))

    assert done.released_at == clock(15, 6)
    assert phase(event, clock(16), busy) is Phase.CANCELLED


def test_cancelling_twice_changes_nothing_the_second_time(hall):
    event = announce()
    first = response_services.cancel_event(event_id=event.pk, actor=None, at=NOTICE)
    again = response_services.cancel_event(event_id=event.pk, actor=None, at=clock(14))

    assert (again.cancelled_at, again.version) == (first.cancelled_at, first.version)


def test_what_is_over_or_given_up_cannot_be_given_up(hall):
    event = announce()
    with pytest.raises(EventClosed, match="completed"):
        response_services.cancel_event(event_id=event.pk, actor=None, at=clock(17))
    response_services.opt_out(event_id=event.pk, actor=None, at=clock(14))
    with pytest.raises(EventClosed, match="cancelled"):
        response_services.cancel_event(event_id=event.pk, actor=None, at=clock(15))


def test_nobody_opts_out_of_an_emergency(hall):
    event = announce(is_emergency=True, source="emergency")
    with pytest.raises(NotToBeOptedOut):
        response_services.opt_out(event_id=event.pk, actor=None, at=NOTICE)


def test_without_an_external_id_each_is_an_event_of_its_own(hall):
    assert announce() != announce()


def test_what_comes_as_an_emergency_is_one(hall):
    assert announce(source="emergency").is_emergency


def test_who_changed_it_meanwhile_is_told(hall, operator):
    event = announce()
    with pytest.raises(VersionConflict):
        response_services.cancel_event(event_id=event.pk, actor=operator, at=NOTICE, version=7)


@pytest.mark.parametrize("role", ["", "auditor", "power_admin"])
def test_only_operators_announce_and_give_up(hall, role):
    event, asker = announce(), person("max", role)
    with pytest.raises(Forbidden):
        announce(actor=asker)
    for act in (response_services.cancel_event, response_services.opt_out):
        with pytest.raises(Forbidden):
            act(event_id=event.pk, actor=asker, at=NOTICE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": float("nan")},
        {"value": -1.0},
        {"target_kind": "level", "value": 4.0},
        {"target_kind": "watts"},
        {"source": "fax"},
        {"outcome": "fine"},
        {"outcome": "cancelled"},
        {"cancelled_at": NOTICE},
        {"cancelled_at": NOTICE, "opted_out_at": NOTICE, "outcome": "cancelled"},
        {"end_at": clock(14)},
        {"ramp_start_at": clock(14, 1)},
        {"notified_at": clock(13, 50)},
        {"priority": 1001},
        {"tolerance": 1.0},
        {"rebound_limit_share": 0.0},
        {"reference_w": float("inf")},
        {"recovery_s": 10**6},
    ],
)
def test_the_database_refuses_an_event_that_cannot_be(hall, wrong):
    event = announce()
    with pytest.raises(IntegrityError), transaction.atomic():
        DemandResponseEvent.objects.filter(pk=event.pk).update(**wrong)


def test_the_database_keeps_one_event_an_external_id(hall):
    event = announce(external_id="ev-1")
    event.pk = None
    with pytest.raises(IntegrityError, match="one_dr_event"), transaction.atomic():
        event.save(force_insert=True)


@pytest.mark.django_db(transaction=True)
def test_of_two_that_say_the_same_at_once_one_announces():
    draw(domain("hall", "hall"), 132.4e3)
    found, start = [], threading.Barrier(2)

    def tell():
        start.wait()
        try:
            found.append(announce(source="openadr", external_id="ev-1").pk)
        finally:
            connection.close()

    threads = [threading.Thread(target=tell) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [DemandResponseEvent.objects.get().pk] * 2


# Programmes.


def change(row, actor=None, version=1, **more):
    return programme_services.update_programme(
        programme_id=row.pk,
        draft=ProgrammeDraft(**{"name": row.name, **RULES, **more}),
        version=version,
        actor=actor,
        at=NOON,
    )


def test_an_emergency_policy_needs_two_people_and_none_to_take_it_away():
    pia, paul = person("pia", "power_admin"), person("paul", "power_admin")
    row = programme(actor=pia, emergency_policy="caps")
    assert (row.emergency_policy, row.asked_emergency_policy) == ("none", "caps")
    row = change(row, pia, emergency_policy="caps")
    assert (row.emergency_policy, row.version) == ("none", 1)
    row = change(row, paul, emergency_policy="caps")
    assert (row.emergency_policy, row.emergency_policy_by, row.asked_emergency_policy) == ("caps", paul, "")

    assert change(row, pia, version=2).emergency_policy == "none"


def test_a_programme_saved_meanwhile_is_not_overwritten():
    row = programme()
    change(row, interval_s=300)
    with pytest.raises(VersionConflict) as caught:
        change(row, interval_s=600)

    assert caught.value.facts["stored"]["interval_s"] == 300
    assert change(row, version=2, interval_s=300).version == 2


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"max_duration_s": 60}, "max_duration_s"),
        ({"ramp_s": 1000}, "ramp_s"),
        ({"time_zone": "x"}, "time_zone"),
    ],
)
def test_a_programme_that_contradicts_itself_is_refused(more, path):
    with pytest.raises(InvalidInput, match=path):
        programme(**more)


def test_programmes_are_the_power_administrators_and_have_a_name_each():
    with pytest.raises(Forbidden):
        programme(actor=person("olga", "operator"))
    programme()
    with pytest.raises(NameTaken):
        programme()


@pytest.mark.parametrize(
    "wrong",
    [
        {"tolerance": 1.0},
        {"interval_s": 0},
        {"min_duration_s": 10**6},
        {"price_per_kwh": -1},
        {"penalty_per_kwh": -1},
        {"max_events_per_day": 0},
        {"two_person_above_w": float("nan")},
        {"target_kind": "x"},
        {"baseline_method": "x"},
        {"emergency_policy": "x"},
        {"asked_emergency_policy": "x"},
    ],
)
def test_the_database_refuses_a_programme_that_cannot_be(wrong):
    row = programme()
    with pytest.raises(IntegrityError), transaction.atomic():
        Programme.objects.filter(pk=row.pk).update(**wrong)

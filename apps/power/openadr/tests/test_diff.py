"""What a listing changes, and what holds while the VTN is silent."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.power.openadr.diff import compare, prevailing, standing
from apps.power.openadr.signals import TargetKind
from apps.power.openadr.tests.builders import NOW, asking, event, hours, interval, iso, payload, read, signal

VOID = {"start": "0001-01-01", "duration": "PT0S"}


def known_of(*events, **more):
    return {each.external_id: each for each in read(*events, **more).signals}


def ids(signals):
    return [each.external_id for each in signals]


def test_events_are_new_changed_or_as_they_were():
    known = known_of(event("same"), event("other"))
    later = event("other", modificationDateTime="2026-07-01T11:30:00Z", priority=0)

    changes = compare(known, read(event("same"), later, event("fresh"), known=known))

    assert ids(changes.new) == ["fresh"]
    assert [(before.priority, after.priority) for before, after in changes.changed] == [(1, 0)]
    assert ids(changes.unchanged) == ["same"]
    assert set(changes.known()) == {"same", "other", "fresh"}


def test_a_change_that_the_vtn_did_not_date_is_one():
    known = known_of(event("e1"))

    assert len(compare(known, read(event("e1", priority=0), known=known)).changed) == 1


def test_an_event_that_is_absent_was_cancelled():
    changes = compare(known_of(event("e1")), read())

    assert ids(changes.cancelled) == ["e1"]
    assert changes.known() == {}


def test_an_event_whose_time_was_emptied_was_cancelled():
    known = known_of(event("e1"))

    changes = compare(
        known, read(event("e1", intervalPeriod=VOID, modificationDateTime="2026-07-01T11:30:00Z"))
    )

    assert ids(changes.cancelled) == ["e1"]
    assert changes.known() == {}


def test_an_event_that_is_over_and_gone_was_not_cancelled():
    assert ids(compare(known_of(event("e1")), read(now=NOW + hours(3))).finished) == ["e1"]


def test_absence_from_a_listing_of_other_programmes_proves_nothing():
    changes = compare(known_of(event("e1")), read(program_ids=["p2"]))

    assert (ids(changes.kept), changes.cancelled) == (["e1"], ())


def test_a_refused_version_keeps_what_was_known():
    known = known_of(event("e1"))

    changes = compare(known, read(event("e1", priority=True), known=known))

    assert (ids(changes.kept), changes.cancelled) == (["e1"], ())
    assert changes.known() == known


def test_a_replayed_version_keeps_what_was_known():
    known = known_of(event("e1", modificationDateTime="2026-07-01T11:30:00Z", priority=0))

    changes = compare(known, read(event("e1"), known=known))

    assert ids(changes.kept) == ["e1"]


def test_beside_an_event_without_a_name_absence_proves_nothing():
    assert ids(compare(known_of(event("e1")), read({"programID": "p1"})).kept) == ["e1"]


def test_old_and_emptied_events_are_passed_over_unless_reports_are_due():
    old = {"start": iso(NOW - hours(3)), "duration": "PT1H"}
    reports = [{"payloadType": "DEMAND"}]

    changes = compare(
        {},
        read(
            event("old", intervalPeriod=old),
            event("void", intervalPeriod=VOID, reportDescriptors=reports),
            event("reported", intervalPeriod=old, reportDescriptors=reports),
        ),
    )

    assert ids(changes.passed_over) == ["old", "void"]
    assert ids(changes.new) == ["reported"]


_names = st.sampled_from("abcdef")
_made = st.builds(
    lambda name, version, watts, program, form: event(
        name,
        programID=program,
        modificationDateTime=f"2026-07-01T11:{version:02}:00Z",
        intervals=[interval(payload("IMPORT_CAPACITY_LIMIT", watts))],
        **({} if form else {"intervalPeriod": VOID}),
    ),
    _names,
    st.integers(0, 3),
    st.sampled_from([100, 200, -1]),
    st.sampled_from(["p1", "p2"]),
    st.booleans(),
)
_listings = st.lists(_made, max_size=6, unique_by=lambda raw: raw["id"])


@given(_listings, _listings, st.sampled_from([(), ("p1",)]))
def test_every_event_has_exactly_one_place(before, after, program_ids):
    known = compare({}, read(*before)).known()
    reading = read(*after, known=known, program_ids=program_ids)

    changes = compare(known, reading)

    of_known = [*(was.external_id for was, _ in changes.changed)]
    of_known += ids([*changes.cancelled, *changes.unchanged, *changes.finished, *changes.kept])
    assert sorted(of_known) == sorted(known)
    of_listed = [
        *(now.external_id for _, now in changes.changed),
        *ids(changes.new),
        *ids(changes.passed_over),
    ]
    of_listed += [
        name for name in ids([*changes.cancelled, *changes.unchanged]) if name in ids(reading.signals)
    ]
    assert sorted(of_listed) == sorted(ids(reading.signals))
    assert all(each.external_id not in reading.refused_ids for each in changes.cancelled)
    absent = [each for each in changes.cancelled if each.external_id not in ids(reading.signals)]
    assert all(not program_ids or each.program_id in program_ids for each in absent)


@given(_listings, _listings)
def test_the_same_listing_again_changes_nothing(before, after):
    known = compare({}, read(*before)).known()
    once = compare(known, read(*after, known=known)).known()

    again = compare(once, read(*after, known=once))

    assert (again.new, again.changed, again.cancelled) == ((), (), ())
    assert again.known() == once


# What counts.


def test_the_lower_number_wins_though_it_is_laxer():
    lax = signal(event("a", priority=0))
    strict = signal(asking("IMPORT_CAPACITY_LIMIT", 100, name="b", priority=1))

    assert ids(each for each, _ in prevailing([strict, lax], NOW + hours(1.5))) == ["a"]


@pytest.mark.parametrize("priority", [0, None])
@pytest.mark.parametrize(
    ("kind", "mild", "strict"),
    [("IMPORT_CAPACITY_LIMIT", 9, 8), ("DISPATCH_SETPOINT_RELATIVE", 8, 9), ("SIMPLE", 1, 2)],
)
def test_of_equals_the_stricter_wins(priority, kind, mild, strict):
    signals = [signal(asking(kind, value, name=f"e{value}", priority=priority)) for value in (mild, strict)]

    assert ids(each for each, _ in prevailing(signals, NOW + hours(1))) == [f"e{strict}"]


def test_programmes_and_kinds_and_drills_do_not_displace_one_another():
    signals = [
        signal(event("limit")),
        signal(event("elsewhere", programID="p2", priority=5)),
        signal(asking("SIMPLE", 1, name="level", priority=7)),
        replace(signal(event("drill", priority=0)), is_test=True),
    ]

    assert sorted(ids(each for each, _ in prevailing(signals, NOW + hours(1)))) == [
        "drill",
        "elsewhere",
        "level",
        "limit",
    ]


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, None]), st.integers(1, 5)), min_size=1, max_size=6),
    st.randoms(),
)
def test_what_counts_does_not_depend_on_the_order(asked, chance):
    signals = [
        signal(asking("IMPORT_CAPACITY_LIMIT", kw, name=f"e{i}", priority=p))
        for i, (p, kw) in enumerate(asked)
    ]
    shuffled = list(signals)
    chance.shuffle(shuffled)

    ((best, held),) = prevailing(shuffled, NOW + hours(1))

    rank = min(each.rank for each in signals)
    assert best.rank == rank
    assert held.value == min(each.value for each in signals if each.rank == rank)


# Silence.

SUBSCRIBED = asking(
    "IMPORT_CAPACITY_SUBSCRIPTION", 800, name="sub", intervalPeriod={"start": iso(NOW), "duration": "P9999Y"}
)


def held(*events, after_h, silent=True, **more):
    at = NOW + hours(after_h)
    return standing([signal(each) for each in events], listed_at=NOW if silent else at, now=at, **more)


def test_limits_go_on_in_silence_and_begin_in_it():
    assert held(event(), after_h=0.9).limit_w is None
    assert held(event(), after_h=1.5).limit_w == 500_000
    assert held(event(), after_h=1.5).is_silent


def test_a_limit_without_an_end_holds_until_the_vtn_is_heard_again():
    endless = event(intervalPeriod={"start": iso(NOW), "duration": "P9999Y"})

    assert held(endless, after_h=24 * 30).limit_w == 500_000


def test_when_limits_have_run_out_in_silence_the_subscription_is_the_limit():
    silent, heard = held(event(), SUBSCRIBED, after_h=3), held(event(), SUBSCRIBED, after_h=3, silent=False)

    assert (silent.limit_w, silent.is_fallback) == (800_000, True)
    assert (heard.limit_w, heard.is_fallback) == (None, False)
    assert held(event(), SUBSCRIBED, after_h=1.5).limit_w == 500_000


def test_a_subscription_that_ran_out_in_silence_still_counts():
    ended = {**SUBSCRIBED, "intervalPeriod": {"start": iso(NOW), "duration": "PT1H"}}

    assert held(ended, after_h=3).limit_w == 800_000
    assert held(after_h=3).limit_w is None


def test_silence_begins_after_its_time():
    assert not held(after_h=0.05, silent_after_s=300).is_silent
    assert held(after_h=0.1, silent_after_s=300).is_silent
    assert standing([], listed_at=None, now=NOW).is_silent


def test_a_drill_limits_nothing():
    drill = replace(signal(event()), is_test=True)

    assert standing([drill], listed_at=NOW, now=NOW + hours(1)).limit_w is None
    assert drill.target_kind is TargetKind.LIMIT_TO


def test_an_emergency_stands_while_it_lasts():
    alert = asking("ALERT_GRID_EMERGENCY", "Help")

    assert held(alert, after_h=1.5).is_emergency
    assert not held(alert, after_h=2.5).is_emergency

"""Windows that repeat: on the calendar of a zone, as instants."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.reservations.recurrence import BadRule, Window, check_rule, windows, zone_named

ZURICH = zone_named("Europe/Zurich")


def at(text: str) -> datetime:
    """An instant; without zone in the text, of the wall in Zurich."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=ZURICH)).astimezone(UTC)


def found(start: str, end: str, rule: str, begin: str, stop: str, zone=ZURICH) -> list[Window]:
    first = Window(at(start), at(end))
    return list(windows(first, rule=rule, zone=zone, begin_at=at(begin), end_at=at(stop)))


def on_the_wall(of: list[Window]) -> list[str]:
    return [f"{w.starts_at.astimezone(ZURICH):%m-%d %H:%M}/{w.ends_at.astimezone(ZURICH):%H:%M}" for w in of]


def test_a_nightly_window_keeps_to_the_wall_when_the_clocks_change():
    # In the night to 29 March 2026 the clocks skip from 02:00 to 03:00.
    nights = found(
        "2026-03-27T22:00", "2026-03-28T06:00", "FREQ=DAILY", "2026-03-27T12:00", "2026-03-30T12:00"
    )

    assert on_the_wall(nights) == ["03-27 22:00/06:00", "03-28 22:00/06:00", "03-29 22:00/06:00"]
    assert [w.ends_at - w.starts_at for w in nights] == [timedelta(hours=h) for h in (8, 7, 8)]


def test_the_hour_that_comes_twice_makes_a_longer_night():
    nights = found(
        "2026-10-24T22:00", "2026-10-25T06:00", "FREQ=DAILY;COUNT=1", "2026-10-24T12:00", "2026-10-26T12:00"
    )

    assert nights[0].ends_at - nights[0].starts_at == timedelta(hours=9)


def test_a_time_that_the_clocks_skip_comes_after_they_have():
    mornings = found(
        "2026-03-28T02:15", "2026-03-28T02:45", "FREQ=DAILY", "2026-03-28T00:00", "2026-03-30T00:00"
    )

    assert on_the_wall(mornings) == ["03-28 02:15/02:45", "03-29 03:15/03:45"]


def test_a_window_that_the_clocks_swallow_lasts_as_long_as_ever():
    mornings = found(
        "2026-03-28T02:30", "2026-03-28T03:00", "FREQ=DAILY", "2026-03-29T00:00", "2026-03-30T00:00"
    )

    assert [w.ends_at - w.starts_at for w in mornings] == [timedelta(minutes=30)]


def test_windows_are_half_open():
    first = "2026-03-02T08:00", "2026-03-02T10:00"
    assert found(*first, "", "2026-03-02T10:00", "2026-03-02T12:00") == []
    assert found(*first, "", "2026-03-02T06:00", "2026-03-02T08:00") == []
    assert len(found(*first, "", "2026-03-02T09:59", "2026-03-02T12:00")) == 1


def test_a_window_that_began_before_is_one_that_touches():
    assert (
        len(
            found(
                "2026-03-02T08:00", "2026-03-04T10:00", "FREQ=WEEKLY", "2026-03-10T00:00", "2026-03-10T01:00"
            )
        )
        == 1
    )


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ("FREQ=WEEKLY;BYDAY=MO,FR", ["02", "06", "09", "13", "16", "20", "23", "27", "30"]),
        ("FREQ=WEEKLY;INTERVAL=2", ["02", "16", "30"]),
        ("FREQ=MONTHLY;BYDAY=2TU", ["10"]),
        ("FREQ=MONTHLY;BYDAY=-1FR", ["27"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ["31"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", ["31"]),
        ("FREQ=DAILY;COUNT=3", ["02", "03", "04"]),
        ("FREQ=DAILY;UNTIL=20260304", ["02", "03", "04"]),
        ("FREQ=DAILY;UNTIL=20260304T070000Z", ["02", "03", "04"]),
        ("FREQ=DAILY;UNTIL=20260304T065959Z", ["02", "03"]),
        ("RRULE:FREQ=YEARLY;BYMONTH=3;BYMONTHDAY=14", ["14"]),
    ],
)
def test_rules_are_read_as_the_standard_says(rule, days):
    march = found("2026-03-02T08:00", "2026-03-02T10:00", rule, "2026-03-01T00:00", "2026-04-01T00:00")

    assert [f"{w.starts_at:%d}" for w in march] == days


@pytest.mark.parametrize(
    "rule",
    [
        "X",
        "FREQ",
        "FREQ=",
        "FREQ=HOURLY",
        "FREQ=SECONDLY",
        "BYDAY=MO",
        "FREQ=DAILY;FREQ=DAILY",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;INTERVAL=99999999999999999999",
        "FREQ=DAILY;COUNT=-1",
        "FREQ=DAILY;COUNT=3;UNTIL=20260304",
        "FREQ=DAILY;UNTIL=20261399",
        "FREQ=DAILY;UNTIL=never",
        "FREQ=WEEKLY;BYDAY=XX",
        "FREQ=WEEKLY;BYDAY=2MO",
        "FREQ=MONTHLY;BYDAY=9MO",
        "FREQ=MONTHLY;BYMONTHDAY=32",
        "FREQ=MONTHLY;BYMONTHDAY=0",
        "FREQ=MONTHLY;BYMONTHDAY=1;BYDAY=1MO",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=YEARLY;BYEASTER=1",
        "FREQ=DAILY;BYHOUR=1",
        "FREQ=DAILY\nRDATE:20260304",
        "FREQ=DAILY;BYMONTHDAY=\u0661",
        "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=9",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
        "FREQ=MONTHLY;INTERVAL=12;BYMONTH=2",
    ],
)
def test_a_rule_that_is_none_or_that_asks_for_endless_work_is_refused(rule):
    with pytest.raises(BadRule):
        check_rule(Window(at("2026-03-02T08:00"), at("2026-03-02T10:00")), rule=rule, zone=ZURICH)


@pytest.mark.parametrize(
    "rule", ["FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29", "FREQ=DAILY;UNTIL=20260301"]
)
def test_a_rule_that_never_comes_true_is_refused(rule):
    with pytest.raises(BadRule, match="come true"):
        check_rule(Window(at("2026-03-02T08:00"), at("2026-03-02T10:00")), rule=rule, zone=ZURICH)


def test_windows_that_run_into_each_other_are_refused():
    with pytest.raises(BadRule, match="end before"):
        check_rule(Window(at("2026-03-02T08:00"), at("2026-03-03T08:01")), rule="FREQ=DAILY", zone=ZURICH)


def test_a_window_may_end_as_the_next_one_starts():
    check_rule(
        Window(at("2026-03-02T08:00"), at("2026-03-03T08:00")), rule="FREQ=DAILY", zone=zone_named("UTC")
    )


@pytest.mark.parametrize(
    "name", ["", "Nowhere/City", "../etc/passwd", "/etc/localtime", "LUNCH-3", "UTC\n", "\u00dcTC", "a" * 300]
)
def test_what_is_no_zone_is_refused(name):
    with pytest.raises(BadRule):
        zone_named(name)


INSTANTS = st.integers(0, 2 * 365 * 24 * 60).map(lambda n: at("2025-01-01T00:00Z") + timedelta(minutes=n))
ZONES = st.sampled_from(["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
RULES = st.sampled_from(
    ["", "FREQ=DAILY", "FREQ=WEEKLY;BYDAY=SA,SU", "FREQ=MONTHLY;BYDAY=-1SU", "FREQ=DAILY;COUNT=5"]
)


@given(INSTANTS, st.integers(1, 23 * 60), RULES, ZONES, INSTANTS, st.integers(1, 60))
def test_every_window_touches_the_span_comes_in_order_and_has_a_length(
    first, minutes, rule, zone, begin, days
):
    end = begin + timedelta(days=days)
    made = list(
        windows(
            Window(first, first + timedelta(minutes=minutes)),
            rule=rule,
            zone=zone_named(zone),
            begin_at=begin,
            end_at=end,
        )
    )

    assert all(w.starts_at < w.ends_at and w.starts_at < end and begin < w.ends_at for w in made)
    assert made == sorted(made)


@given(INSTANTS, st.integers(1, 600), RULES, ZONES, INSTANTS, st.integers(1, 20), st.integers(1, 20))
def test_two_spans_side_by_side_hold_what_one_over_both_does(first, minutes, rule, zone, begin, days, more):
    window = Window(first, first + timedelta(minutes=minutes))
    middle, end = begin + timedelta(days=days), begin + timedelta(days=days + more)

    def inside(begin_at, end_at):
        return set(windows(window, rule=rule, zone=zone_named(zone), begin_at=begin_at, end_at=end_at))

    assert inside(begin, middle) | inside(middle, end) == inside(begin, end)

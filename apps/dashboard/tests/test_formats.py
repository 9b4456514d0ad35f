"""Numbers, units and times are written as the pages promise."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from apps.dashboard.templatetags import formats

NOW = datetime(2026, 11, 17, 14, 38, 5, tzinfo=UTC)


def plain(text: str) -> str:
    return text.replace(formats.GROUP, " ").replace(formats.SPACE, " ")


@pytest.mark.parametrize(
    ("filter_name", "value", "wanted"),
    [
        ("count", 3072, "3 072"),
        ("count", 12, "12"),
        ("count", None, "–"),
        ("devices", Decimal("512.000000"), "512"),
        ("devices", Decimal("0.250000"), "0.25"),
        ("devices", 1.5, "1.5"),
        ("devices", 3072, "3 072"),
        ("device_hours", 58_210 * 3600, "58 210"),
        ("device_hours", 418_000 * 3600, "418 k"),
        ("device_hours", 1_230_000 * 3600, "1.23 M"),
        ("device_hours", 5400, "1.5"),
        ("device_hours", 0, "0"),
        ("power", 361_000, "361 kW"),
        ("power", 2_700_000, "2.70 MW"),
        ("power", 9_400, "9.4 kW"),
        ("power", 999_600, "1.00 MW"),
        ("power", 45, "45 W"),
        ("power", 0, "0.0 kW"),
        ("power", None, "–"),
        ("watts", 612.4, "612 W"),
        ("watts", 1_200, "1 200 W"),
        ("watts", None, "–"),
        ("energy", 12_400_000, "12.4 MWh"),
        ("energy", 840_000, "840.0 kWh"),
        ("share", 0.841, "84.1 %"),
        ("share", 1.06, "106 %"),
        ("share", 0.9996, "100 %"),
        ("share", 0, "0.0 %"),
        ("change", -0.006, "−0.6"),
        ("change", 0.018, "+1.8"),
        ("change", 0, "0.0"),
        ("memory", 512, "512 GiB"),
        ("memory", 20480, "20.0 TiB"),
        ("temperature", 27.44, "27.4 °C"),
        ("milliseconds", 38, "38 ms"),
        ("milliseconds", 1234, "1.2 s"),
        ("duration", 18 * 60, "18 min"),
        ("duration", 2 * 3600 + 51 * 60, "2 h 51 min"),
        ("duration", 29 * 3600, "1 d 5 h"),
        ("duration", 86_400, "1 d"),
        ("duration", 86_400 + 59, "1 d"),
        ("duration", 200, "3 min 20 s"),
        ("duration", 1219, "20 min"),
        ("duration", 0.4, "0 s"),
        ("duration", timedelta(seconds=38), "38 s"),
        ("duration", -90, "−1 min 30 s"),
        ("duration", None, "–"),
    ],
)
def test_a_value_is_written_as_the_table_says(filter_name: str, value: object, wanted: str) -> None:
    assert plain(getattr(formats, filter_name)(value)) == wanted


def test_the_unit_never_parts_from_its_number() -> None:
    assert " " not in formats.power(361_000) + formats.share(0.5) + formats.count(1_000_000)


def test_the_figure_and_its_unit_make_up_the_whole() -> None:
    whole = formats.power_number(2_700_000) + formats.SPACE + formats.power_unit(2_700_000)

    assert whole == formats.power(2_700_000)


@given(st.one_of(st.none(), st.booleans(), st.text(), st.just(float("nan")), st.just(float("inf"))))
def test_what_is_no_number_is_shown_as_unknown(value: object) -> None:
    written = {
        getattr(formats, name)(value) for name in ("count", "power", "energy", "share", "device_hours")
    }

    assert written == {formats.UNKNOWN}


@given(st.floats(min_value=0, max_value=1e12, allow_nan=False))
def test_a_duration_names_two_units_at_most(value_s: float) -> None:
    assert len(formats.duration(value_s).split(" ")) <= 2


@pytest.mark.parametrize(
    ("then", "wanted"),
    [
        (datetime(2026, 11, 17, 13, 50, tzinfo=UTC), "13:50"),
        (datetime(2026, 11, 16, 7, 8, tzinfo=UTC), "Mon 16 Nov 07:08"),
        (datetime(2025, 1, 2, 3, 4, tzinfo=UTC), "Thu 2 Jan 2025 03:04"),
        (None, "–"),
    ],
)
def test_a_time_shows_its_day_only_when_it_is_not_today(then: datetime | None, wanted: str) -> None:
    assert formats.moment_text(then, now=NOW) == wanted


def test_times_are_those_of_the_site() -> None:
    with timezone.override("Europe/Berlin"):
        assert formats.moment_text(datetime(2026, 11, 17, 23, 30, tzinfo=UTC), now=NOW) == "Wed 18 Nov 00:30"


def test_an_expected_start_without_forecast_is_said_to_have_none() -> None:
    assert formats.start_guess(None) == "no forecast yet"


@pytest.mark.parametrize(
    ("watts", "wanted"),
    [(140_250, "140.25"), (Decimal(-3750), "\u22123.75"), (0, "0"), (1.8e6, "1\u202f800")],
)
def test_watts_in_a_table_are_whole_kilowatts_with_what_is_left(watts: float, wanted: str) -> None:
    assert formats.kilo(watts) == wanted


def test_money_has_cents() -> None:
    shown = [formats.money(value) for value in (Decimal("20.1"), Decimal("-1234.5"), None)]

    assert shown == ["20.10", "\u22121\u202f234.50", "–"]

"""Windows that repeat: told on the calendar of a named zone, compared as instants.

A nightly window from 22:00 to 06:00 ends at 06:00 by the clock on the wall, also in the night in which the clocks
change; it is then an hour shorter or longer. A time that the clocks skip comes when they have skipped it; of a time
that comes twice, the first is meant. Pure: no Django.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dateutil.rrule import rrule, rrulestr

MAX_WINDOWS: Final = 10_000
_FREQUENCIES: Final = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_DAY: Final = re.compile(r"([+-]?[1-5])?(MO|TU|WE|TH|FR|SA|SU)")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_UNTIL: Final = re.compile(r"(\d{8})(T(\d{6})(Z)?)?")
# The longest month of each, so that 30 February is seen to be never.
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class BadRule(ValueError):
    """The rule or the zone is not one that windows can be computed from; says why."""


class Window(NamedTuple):
    """Half-open: [starts_at, ends_at)."""

    starts_at: datetime
    ends_at: datetime

    def overlaps(self, other: "Window") -> bool:
        return self.starts_at < other.ends_at and other.starts_at < self.ends_at


def zone_named(name: str) -> ZoneInfo:
    """The zone of this name, such as Europe/Zurich; raises BadRule."""
    if not _ZONE.fullmatch(name) or re.match(r"[A-Za-z]+[+-]?[0-9]", name):
        raise BadRule("must be the name of a time zone, such as UTC or Europe/Zurich")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRule("must be the name of a time zone, such as UTC or Europe/Zurich") from None


def windows(
    first: Window, *, rule: str, zone: ZoneInfo, begin_at: datetime, end_at: datetime
) -> Iterator[Window]:
    """Windows that touch [begin_at, end_at), earliest first; `first` is where the rule counts from.

    With an empty rule there is the first alone. `first` need not obey the rule; then it is not one of the windows.
    """
    if not rule:
        if first.starts_at < end_at and begin_at < first.ends_at:
            yield first
        return
    wall_start = first.starts_at.astimezone(zone).replace(tzinfo=None, fold=0)
    wall_end = first.ends_at.astimezone(zone).replace(tzinfo=None, fold=0)
    lasts = first.ends_at - first.starts_at
    wall_lasts = max(wall_end - wall_start, timedelta(0))
    for at in _starts(rule, wall_start, zone):
        starts_at = _instant(at, zone)
        # The wall's clock and the sun's never differ by more than a day: past this, all that follow are later too.
        if starts_at - timedelta(days=1) >= end_at:
            return
        ends_at = _instant(at + wall_lasts, zone)
        if ends_at <= starts_at:  # the clocks skipped all of it, or it began in the hour that comes twice
            ends_at = starts_at + lasts
        if starts_at < end_at and begin_at < ends_at:
            yield Window(starts_at, ends_at)


def check_rule(first: Window, *, rule: str, zone: ZoneInfo) -> None:
    """Refuse a rule that cannot be read, never comes true, or makes windows that run into each other."""
    if not rule:
        return
    soon = first.starts_at + timedelta(days=366 * 9)
    last: Window | None = None
    found = windows(first, rule=rule, zone=zone, begin_at=first.starts_at, end_at=soon)
    for _, window in zip(range(400), found, strict=False):
        if last is not None and window.starts_at < last.ends_at:
            raise BadRule("must leave each window to end before the next one starts")
        last = window
    if last is None:
        raise BadRule("must come true at least once in nine years")


def _instant(wall: datetime, zone: ZoneInfo) -> datetime:
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def _starts(rule: str, wall_start: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    parsed = rrulestr(_as_local(rule, zone), dtstart=wall_start)
    assert isinstance(parsed, rrule)
    for n_seen, at in enumerate(parsed):
        if n_seen >= MAX_WINDOWS or at.year > 2299:
            return
        yield at


def _as_local(rule: str, zone: ZoneInfo) -> str:
    """The rule with UNTIL on the calendar of the zone; raises BadRule for what is not understood here.

    What is let through comes true again and again, so that looking for the next time always ends soon.
    """
    parts = _parts(rule)
    frequency = parts.get("FREQ")
    if frequency not in _FREQUENCIES:
        raise BadRule(f"must have FREQ with one of {', '.join(_FREQUENCIES)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise BadRule("must not have both COUNT and UNTIL")
    for name in ("INTERVAL", "COUNT"):
        if name in parts:
            _number(parts, name, 1, 1000)
    has_nth_day = _check_days(parts)
    month_days = _numbers(parts, "BYMONTHDAY", 31, is_signed=True)
    months = _numbers(parts, "BYMONTH", 12, is_signed=False)
    if (
        month_days
        and months
        and not any(abs(day) <= _LONGEST[month - 1] for day in month_days for month in months)
    ):
        raise BadRule("must name a day that one of its months has")
    if has_nth_day and (frequency in ("DAILY", "WEEKLY") or month_days):
        raise BadRule(
            "must not number weekdays (as 2MO does) with FREQ=DAILY or WEEKLY, or beside BYMONTHDAY"
        )
    # With steps of 7 days, or of 12 months, these could come true never; the other frequency says the same.
    if frequency == "DAILY" and "BYDAY" in parts and parts.get("INTERVAL", "1") != "1":
        raise BadRule("must not have BYDAY and INTERVAL with FREQ=DAILY; FREQ=WEEKLY has both")
    if frequency == "MONTHLY" and "BYMONTH" in parts and parts.get("INTERVAL", "1") != "1":
        raise BadRule("must not have BYMONTH and INTERVAL with FREQ=MONTHLY; FREQ=YEARLY has both")
    if "BYSETPOS" in parts:
        _numbers(parts, "BYSETPOS", 4, is_signed=True)
        if frequency != "MONTHLY" or "BYDAY" not in parts or has_nth_day or month_days:
            raise BadRule("must have BYSETPOS only with FREQ=MONTHLY and a BYDAY without numbers")
    if "UNTIL" in parts:
        parts["UNTIL"] = _until(parts["UNTIL"], zone)
    return ";".join(f"{name}={value}" for name, value in parts.items())


_NAMES: Final = frozenset(
    {"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "BYMONTHDAY", "BYMONTH", "BYSETPOS", "WKST"}
)


def _parts(rule: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in rule.removeprefix("RRULE:").upper().split(";"):
        name, separator, value = part.partition("=")
        if not separator or not value or not value.isascii():
            raise BadRule("must be parts such as FREQ=WEEKLY;BYDAY=MO, parted by semicolons")
        if name not in _NAMES:
            raise BadRule(f"must consist of {', '.join(sorted(_NAMES))}; {name[:20]!r} is not one of these")
        if name in parts:
            raise BadRule(f"must not have {name} twice")
        parts[name] = value
    if "WKST" in parts and not re.fullmatch("MO|TU|WE|TH|FR|SA|SU", parts["WKST"]):
        raise BadRule("must have WKST with a weekday, such as MO")
    return parts


def _check_days(parts: dict[str, str]) -> bool:
    """Whether a weekday is numbered."""
    days = [_DAY.fullmatch(day) for day in parts["BYDAY"].split(",")] if "BYDAY" in parts else []
    if not all(days):
        raise BadRule("must have BYDAY with weekdays, such as MO,TU or 2MO or -1FR")
    return any(day is not None and day[1] for day in days)


def _number(parts: dict[str, str], name: str, least: int, most: int) -> int:
    text = parts[name]
    if not (text.isdigit() and len(text) <= 6 and least <= int(text) <= most):
        raise BadRule(f"must have {name} with a whole number from {least} to {most}")
    return int(text)


def _numbers(parts: dict[str, str], name: str, most: int, *, is_signed: bool) -> list[int]:
    found = []
    for text in parts[name].split(",") if name in parts else ():
        digits = text.lstrip("+-") if is_signed and text[:1] in ("+", "-") else text
        if not (digits.isdigit() and len(digits) <= 2 and 1 <= int(digits) <= most):
            raise BadRule(f"must have {name} with whole numbers from 1 to {most}")
        found.append(int(text))
    return found


def _until(text: str, zone: ZoneInfo) -> str:
    match = _UNTIL.fullmatch(text)
    if match is None:
        raise BadRule("must have UNTIL with a date or a time, such as 20261231 or 20261231T235959Z")
    try:
        if match[2] is None:
            # A date means that day as a whole, by the zone's calendar.
            date.fromisoformat(f"{text[:4]}-{text[4:6]}-{text[6:]}")
            return f"{text}T235959"
        at = datetime.strptime(f"{match[1]}{match[3]}", "%Y%m%d%H%M%S")  # noqa: DTZ007 (the zone follows)
        if match[4]:
            at = at.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise BadRule("must have UNTIL with a date that exists") from None
    return at.strftime("%Y%m%dT%H%M%S")

"""Where a reservation would fit: the earliest windows in which nothing that is promised stands in the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from apps.core.errors import InvalidInput
from apps.inventory.models import AcceleratorType
from apps.reservations import selectors
from apps.reservations.conflicts import Facility, Wanted, conflicts
from apps.reservations.recurrence import Window
from apps.reservations.selectors import Booked

LONGEST: Final = timedelta(days=92)  # from the earliest start to the latest end that is looked at
_STEP: Final = timedelta(minutes=15)
_APART: Final = timedelta(hours=1)  # offers that begin closer together are one
_MOST_TRIED: Final = 400
_EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody looks for: so many devices of a type, within one domain of a kind, for so long."""

    accelerator_type: str
    n_devices: int
    lasts: timedelta
    earliest_at: datetime
    latest_end_at: datetime
    within: str = ""


@dataclass(frozen=True, slots=True)
class Slots:
    """Windows that fit, the earliest first.

    Attributes:
        most: Devices that could be had at all, in one such domain; fewer than were asked: there is no slot.
        blocked_by: Names of reservations that stand in the way of the earliest start.
    """

    windows: tuple[Window, ...]
    most: int
    blocked_by: tuple[str, ...]


def find_slots(ask: Ask, *, at: datetime, n: int = 3) -> Slots:
    """The first n windows, an hour apart at least; starts are at full quarters of an hour.

    Raises:
        InvalidInput: naming the field.
    """
    kind = AcceleratorType.objects.filter(name=ask.accelerator_type).first()
    begin_at = _quarter_from(max(ask.earliest_at, at))
    if kind is None:
        raise InvalidInput.of("accelerator_type", "is not an accelerator type here", "unknown")
    if isinstance(ask.n_devices, bool) or ask.n_devices < 1:
        raise InvalidInput.of("n_devices", "must be at least 1", "out_of_range")
    if ask.lasts <= timedelta(0) or ask.lasts > LONGEST:
        raise InvalidInput.of("lasts", f"must be above 0, and at most {LONGEST.days} days", "out_of_range")
    if begin_at + ask.lasts > ask.latest_end_at:
        raise InvalidInput.of("latest_end_at", "leaves no room for that long", "out_of_range")
    if ask.latest_end_at - begin_at > LONGEST:
        raise InvalidInput.of("latest_end_at", f"must be within {LONGEST.days} days", "out_of_range")
    facility = Facility()
    most = facility.capacity(kind.pk, within=ask.within)
    if ask.n_devices > most:
        return Slots((), most, ())
    booked = selectors.windows(begin_at, ask.latest_end_at)

    def in_the_way(start_at: datetime) -> list[str]:
        wanted = Wanted(
            [Window(start_at, start_at + ask.lasts)], frozenset(), kind, ask.n_devices, ask.within
        )
        there = [one for one in booked if one.starts_at < start_at + ask.lasts and one.ends_at > start_at]
        found = conflicts(wanted, there, facility)
        return [one.reservation for one in found] if found else []

    first = in_the_way(begin_at)
    found: list[Window] = []
    for start_at in _starts(begin_at, ask, booked):
        if found and start_at < found[-1].starts_at + _APART:
            continue
        if not in_the_way(start_at):
            found.append(Window(start_at, start_at + ask.lasts))
            if len(found) == n:
                break
    names = {name for name in first if name}
    if first and not names:  # no single one is to blame: all that are there then are
        names = {
            one.name for one in booked if one.starts_at < begin_at + ask.lasts and one.ends_at > begin_at
        }
    return Slots(tuple(found), most, tuple(sorted(names)))


def _starts(begin_at: datetime, ask: Ask, booked: Sequence[Booked]) -> Iterator[datetime]:
    """Instants worth trying: room comes when something ends; between those, evenly."""
    last_at = ask.latest_end_at - ask.lasts
    marks = {_quarter_from(one.ends_at) for one in booked}
    step = max(_APART, (last_at - begin_at) / 24)
    at = begin_at
    while at <= last_at:
        marks.add(_quarter_from(at))
        at += step
    tried = sorted(mark for mark in marks | {begin_at} if begin_at <= mark <= last_at)
    yield from tried[:_MOST_TRIED]


def _quarter_from(at: datetime) -> datetime:
    return at + (_EPOCH - at) % _STEP

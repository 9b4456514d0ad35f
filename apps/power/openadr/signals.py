"""What a VTN asks, in our own words and units: watts, seconds, aware times in UTC. Pure values."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class TargetKind(StrEnum):
    """What the number of a signal means."""

    SHED_BY = "shed_by"  # watts below the reference
    LIMIT_TO = "limit_to"  # watts at the meter, or of the targeted resource
    LEVEL = "level"  # a row of the programme's table


@dataclass(frozen=True, slots=True)
class Rules:
    """How one programme's events are to be read, where the protocol leaves it open.

    Attributes:
        relative_sign: DISPATCH_SETPOINT_RELATIVE of +1: a positive value is a reduction; of -1: a negative one is.
        level_shares: By level, the share of the reference to shed.
        default_units: Of power without a payload descriptor: W, KW or MW. Empty: such events are refused.
        largest_w: More than this is no power but a slip, and refused.
        floor_w: A limit below this needs a person (a typing error must not blacken the hall).
        largest_shed_w: A shed above this needs a person.
        is_test: Every event of the programme is a drill.
        test_marker: An event whose name holds this is a drill; the protocol itself has no such flag.
        max_backdate_s: An event that is not known yet may have begun so long ago.
        horizon_s: Repeating intervals are laid out so far ahead.
    """

    relative_sign: int = 1
    level_shares: tuple[float, ...] = (0.0, 0.10, 0.25, 0.40)
    default_units: str = "KW"
    largest_w: float = 1e9
    floor_w: float = 0.0
    largest_shed_w: float = math.inf
    is_test: bool = False
    test_marker: str = ""
    max_backdate_s: float = 86_400.0
    horizon_s: float = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of a signal, and what is asked in it.

    Attributes:
        interval_id: The VTN's own number, by which reports refer to it.
        end: None: until further notice.
        value: Watts, or a level, by the signal's kind. None: nothing is asked.
        shed_share: Of a level: the share of the reference to shed.
        subscription_w: The import capacity subscribed to.
        advisory: What an alert says to people.
    """

    interval_id: int
    start: datetime
    end: datetime | None
    value: float | None = None
    shed_share: float | None = None
    subscription_w: float | None = None
    is_emergency: bool = False
    advisory: str = ""

    def holds_at(self, at: datetime) -> bool:
        return self.start <= at and (self.end is None or at < self.end)


@dataclass(frozen=True, slots=True)
class Quote:
    """A price, or grams of greenhouse gas per kWh, for a stretch of time. Nothing is decided from it yet."""

    payload_type: str
    start: datetime
    end: datetime | None
    value: float
    units: str
    currency: str


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A report that the VTN asks for, as its reportDescriptor has it (-1 and 0 as defined there)."""

    payload_type: str
    units: str = ""
    reading_type: str = ""
    is_aggregate: bool = False
    start_interval: int = -1
    n_intervals: int = -1
    is_historical: bool = True
    frequency: int = -1
    repeat: int = 1
    is_open: bool = False  # the VEN chooses the intervals


@dataclass(frozen=True, slots=True)
class Signal:
    """One event of a VTN, in our units.

    Attributes:
        modified_at: Its version: when the VTN last wrote it.
        priority: 0 is the highest. None: below every number.
        targets: (type, value) as in 3.0.1; in 3.1.0 the type is empty.
        start: Of the first interval. What starts "now" starts when it was first read.
        end: None: until further notice, or it never began.
        period_s: The event's own interval length, from which intervals it does not spell out follow.
        randomize_s: The start may be moved so far either way.
        value: The strictest of all intervals.
        n_before: So many intervals of a repeating event are past, and left out in front.
        needs_person: Its value is beyond what a programme may ask unseen.
        is_void: Its time was emptied, which is one of the two ways to cancel an event.
        ignored: Payload types that mean nothing here.
        fingerprint: Of the event as it came; tells a change that the VTN did not date.
    """

    external_id: str
    modified_at: datetime
    program_id: str
    name: str
    priority: int | None
    targets: tuple[tuple[str, str], ...]
    start: datetime
    end: datetime | None
    starts_now: bool
    period_s: float | None
    randomize_s: float
    target_kind: TargetKind | None
    value: float | None
    intervals: tuple[Interval, ...]
    n_before: int
    is_emergency: bool
    advisory: str
    needs_person: bool
    is_test: bool
    is_void: bool
    quotes: tuple[Quote, ...]
    reports: tuple[ReportRequest, ...]
    ignored: tuple[str, ...]
    fingerprint: str

    @property
    def duration_s(self) -> float | None:
        """None: until further notice."""
        return None if self.end is None else (self.end - self.start).total_seconds()

    @property
    def rank(self) -> tuple[bool, int]:
        """Sorts the one that wins first."""
        return (self.priority is None, self.priority or 0)

    def is_over(self, at: datetime) -> bool:
        return self.is_void or (self.end is not None and self.end <= at)

    def interval_at(self, at: datetime) -> Interval | None:
        """The stretch in force; where stretches overlap, the strictest."""
        holding = [each for each in self.intervals if each.holds_at(at)]
        sign = 1 if self.target_kind is TargetKind.LIMIT_TO else -1
        asking = [each for each in holding if each.value is not None]
        return (
            min(asking, key=lambda each: sign * (each.value or 0.0)) if asking else next(iter(holding), None)
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an event, at which JSON path of the listing. External id: as far as it could be read."""

    external_id: str
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A complete listing, read.

    Attributes:
        program_ids: The programmes listed. Empty: all there are.
        refused: What keeps an event from being taken. An older version of it, if known, goes on.
        notices: What was passed over in events that were taken.
        refused_ids: Events that are listed, but were not taken.
        has_nameless: Some event could not even be told apart, so absence proves nothing this time.
    """

    at: datetime
    program_ids: frozenset[str]
    signals: tuple[Signal, ...]
    refused: tuple[Fault, ...] = ()
    notices: tuple[Fault, ...] = ()
    refused_ids: frozenset[str] = frozenset()
    has_nameless: bool = False


@dataclass(frozen=True, slots=True)
class Units:
    """What the numbers of one payload type are."""

    units: str = ""
    currency: str = ""


def concerns(
    signal: Signal, *, ven_name: str, resource_names: Iterable[str] = (), groups: Iterable[str] = ()
) -> bool:
    """Whether a signal is meant for us. A 3.0.1 VTN may list events of others; without targets all are meant.

    Of targets with a type the names must match; a 3.1.0 VTN shows a VEN nothing but its own.
    """
    ours = {"VEN_NAME": {ven_name}, "RESOURCE_NAME": set(resource_names), "GROUP": set(groups)}
    typed = [(kind.upper(), value) for kind, value in signal.targets if kind.upper() in ours]
    return not typed or any(value in ours[kind] for kind, value in typed)

"""The reports a VTN asks for: which are due, and what they say. Pure.

Where the specification's schema and its User Guide (7.5) read differently, this is how we read them. The k-th
historical report is made at the end of interval startInterval + k x frequency, and covers the numIntervals that end
with it; where there are not so many before it, startInterval is the first of those covered. A forecast is made at the
start of that interval and covers those that follow. Of reports that were missed only the latest is sent.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from apps.power.openadr.signals import ReportRequest, Signal
from apps.power.openadr.times import write_duration, write_instant
from apps.power.openadr.wire import Version

OPEN_PERIOD_S: Final = 900.0  # of intervals that the VEN chooses: a quarter hour, as meters have it
AGGREGATED: Final = "AGGREGATED_REPORT"
_MAX_WINDOWS: Final = 3000
_W_PER: Final = {"W": 1.0, "KW": 1e3, "MW": 1e6}


class ReportType(StrEnum):
    """What we can report: watts, but for the state."""

    DEMAND = "DEMAND"
    BASELINE = "BASELINE"
    LOAD_SHED_DELTA_AVAILABLE = "LOAD_SHED_DELTA_AVAILABLE"  # a forecast of what can be shed
    OPERATING_STATE = "OPERATING_STATE"


class Quality(StrEnum):
    """From the best to the worst."""

    OK = "OK"
    ESTIMATED = "ESTIMATED"
    MISSING = "MISSING"
    BAD = "BAD"


class OperatingState(StrEnum):
    """Of those the specification lists, the ones that a computing hall is in."""

    NORMAL = "NORMAL"
    RUNNING_CURTAILED = "RUNNING_CURTAILED"
    RUNNING_OPTED_OUT = "RUNNING_OPTED_OUT"
    ERROR = "ERROR"


_READING: Final = {
    ReportType.DEMAND: "MEAN",
    ReportType.BASELINE: "ESTIMATED",
    ReportType.LOAD_SHED_DELTA_AVAILABLE: "FORECAST",
    ReportType.OPERATING_STATE: "DIRECT_READ",
}
_WORST_FIRST: Final = tuple(reversed(Quality))
_STATE_WORST_FIRST: Final = (
    OperatingState.ERROR,
    OperatingState.RUNNING_OPTED_OUT,
    OperatingState.RUNNING_CURTAILED,
    OperatingState.NORMAL,
)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time that a report says something about. End None: until further notice."""

    interval_id: int
    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Due:
    """A report that should be sent now.

    Attributes:
        position: Of the request among the event's.
        sequence: 0 for its first report. Remember the last one sent.
    """

    signal: Signal
    position: int
    request: ReportRequest
    sequence: int
    due_at: datetime
    windows: tuple[Window, ...]

    @property
    def type(self) -> ReportType:
        return ReportType(self.request.payload_type)

    @property
    def name(self) -> str:
        """The same for the same report, so that sending it twice makes one."""
        return f"{self.signal.external_id[:80]}.{self.position}.{self.sequence}"


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of one window: watts, or a state. None: nothing."""

    value: float | OperatingState | None
    quality: Quality = Quality.OK


def operating_state(*, is_faulty: bool, is_opted_out: bool, is_curtailed: bool) -> OperatingState:
    """The state to report; a fault hides all else, and who opted out is not curtailed for this event."""
    if is_faulty:
        return OperatingState.ERROR
    if is_opted_out:
        return OperatingState.RUNNING_OPTED_OUT
    return OperatingState.RUNNING_CURTAILED if is_curtailed else OperatingState.NORMAL


def can_report(request: ReportRequest) -> bool:
    """Whether it is of a type that we send. Of its units power is sent as W, KW or MW, and says so."""
    return request.payload_type in tuple(ReportType)


def due_reports(
    signals: Iterable[Signal],
    *,
    now: datetime,
    sent: Mapping[tuple[str, int], int],
    changed: Collection[str] = (),
) -> tuple[Due, ...]:
    """The reports that are due, at most one for each request.

    Args:
        sent: By external id and position of the request, the sequence of the last report sent.
        changed: External ids of which there is news; requests of frequency 0 leave the time to us, and this is it.
    """
    found: list[Due] = []
    for signal in signals:
        for position, request in enumerate(signal.reports):
            if not can_report(request):
                continue
            last = sent.get((signal.external_id, position), -1)
            due = (
                _ad_hoc(signal, position, request, last, now, is_news=signal.external_id in changed)
                if request.frequency == 0
                else _scheduled(signal, position, request, now)
            )
            if due is not None and due.sequence > last:
                found.append(due)
    return tuple(found)


def _ad_hoc(
    signal: Signal, position: int, request: ReportRequest, last: int, now: datetime, *, is_news: bool
) -> Due | None:
    is_spent = 0 <= request.repeat <= last + 1
    if (not is_news and last >= 0) or is_spent or signal.start > now:
        return None
    period = timedelta(seconds=OPEN_PERIOD_S)
    window = Window(0, now - period, now) if request.is_historical else Window(0, now, now + period)
    return Due(signal, position, request, last + 1, now, (window,))


def _scheduled(signal: Signal, position: int, request: ReportRequest, now: datetime) -> Due | None:
    grid = _Grid.of(signal, request)
    n, start = grid.n, request.start_interval
    count = request.n_intervals
    if request.is_historical:
        if count < 0:
            first_covered = max(0, start)
            count = max(1, n - first_covered) if n is not None else 1
            at = first_covered + count - 1
        elif start < 0:
            at = n - 1 if n is not None else count - 1
        else:
            at = start if start - count + 1 >= 0 else start + count - 1
        n_reached = grid.n_ended(now)
    else:
        at = max(0, start)
        if count < 0:
            count = max(1, n - at) if n is not None else 1
        n_reached = grid.n_begun(now)
    count = max(1, count)
    every = request.frequency if request.frequency > 0 else count
    if n is not None:
        at = min(at, n - 1)
    if n_reached - 1 < at:
        return None
    sequence = (n_reached - 1 - at) // every
    if request.repeat >= 0:
        sequence = min(sequence, request.repeat - 1)
    if sequence < 0:
        return None
    reached = at + sequence * every
    covered = (
        range(reached - count + 1, reached + 1) if request.is_historical else range(reached, reached + count)
    )
    windows = tuple(
        window
        for index in covered[:_MAX_WINDOWS]
        if index >= 0 and (window := grid.window(index)) is not None
    )
    if not windows:
        return None
    due_at = windows[-1].end if request.is_historical else windows[0].start
    return Due(signal, position, request, sequence, due_at or now, windows)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The intervals a report refers to: those of the event, or evenly spaced ones.

    Attributes:
        n: How many there are. None: no end is in sight.
        n_before: The positions of `listed` begin here.
        period_s: Of evenly spaced ones.
    """

    start: datetime
    n: int | None
    listed: tuple[Window, ...] = ()
    n_before: int = 0
    period_s: float = OPEN_PERIOD_S

    @classmethod
    def of(cls, signal: Signal, request: ReportRequest) -> "_Grid":
        is_endless = len(signal.intervals) == 1 and signal.intervals[0].end is None
        # Of an interval without an end no report would ever be due.
        is_even = request.is_open or not signal.intervals or (is_endless and request.is_historical)
        if is_even:
            period_s = signal.period_s if not request.is_open and not signal.intervals else None
            period_s = period_s or OPEN_PERIOD_S
            length_s = signal.duration_s
            n = None if length_s is None else max(1, math.ceil(length_s / period_s))
            return cls(signal.start, n, period_s=period_s)
        listed = tuple(Window(each.interval_id, each.start, each.end) for each in signal.intervals)
        ends = [each.end for each in listed if each.end is not None]
        is_whole = signal.end is None or (bool(ends) and max(ends) >= signal.end)
        is_repeating = signal.end is None and len(ends) == len(listed)
        n = signal.n_before + len(listed) if is_whole and not is_repeating else None
        return cls(signal.start, n, listed=listed, n_before=signal.n_before)

    def n_ended(self, at: datetime) -> int:
        if not self.listed:
            return self._bounded(math.floor((at - self.start).total_seconds() / self.period_s))
        return self.n_before + sum(1 for each in self.listed if each.end is not None and each.end <= at)

    def n_begun(self, at: datetime) -> int:
        if not self.listed:
            return self._bounded(math.floor((at - self.start).total_seconds() / self.period_s) + 1)
        return self.n_before + sum(1 for each in self.listed if each.start <= at)

    def window(self, index: int) -> Window | None:
        """None: there is none, or it is too long past to be laid out."""
        if self.n is not None and index >= self.n:
            return None
        if not self.listed:
            period = timedelta(seconds=self.period_s)
            return Window(index, self.start + index * period, self.start + (index + 1) * period)
        at = index - self.n_before
        return self.listed[at] if 0 <= at < len(self.listed) else None

    def _bounded(self, count: int) -> int:
        return max(0, count if self.n is None else min(count, self.n))


def build_report(
    due: Due, samples: Mapping[str, Sequence[Sample]], *, version: Version, client_name: str
) -> dict[str, Any]:
    """The body of a report.

    Args:
        samples: By resource, one for each window.

    Raises:
        ValueError: a resource has more or fewer samples than there are windows.
    """
    for resource, known in samples.items():
        if len(known) != len(due.windows):
            raise ValueError(f"{resource} has {len(known)} samples for {len(due.windows)} windows")
    units = _units(due.request)
    if due.request.is_aggregate:
        columns = zip(*samples.values(), strict=True)
        samples = {AGGREGATED: tuple(_summed(due.type, column) for column in columns)} if samples else {}
    described = {
        "objectType": "REPORT_PAYLOAD_DESCRIPTOR",
        "payloadType": due.type.value,
        "readingType": due.request.reading_type or _READING[due.type],
    }
    if units:
        described["units"] = units
    report: dict[str, Any] = {
        "eventID": due.signal.external_id,
        "clientName": client_name,
        "reportName": due.name,
        "payloadDescriptors": [described],
        "resources": [
            {
                "resourceName": resource,
                "intervalPeriod": _period(due.windows[0]),
                "intervals": [
                    {
                        "id": window.interval_id,
                        "intervalPeriod": _period(window),
                        "payloads": _payloads(due.type, sample, units),
                    }
                    for window, sample in zip(due.windows, known, strict=True)
                ],
            }
            for resource, known in samples.items()
        ],
    }
    # 3.1.0 took it out; its servers may refuse a field that they do not know.
    return {"programID": due.signal.program_id, **report} if version is Version.V3_0_1 else report


def _units(request: ReportRequest) -> str:
    if request.payload_type == ReportType.OPERATING_STATE:
        return ""
    asked = request.units.upper()
    return asked if asked in _W_PER else "KW"


def _period(window: Window) -> dict[str, str]:
    length = "P9999Y" if window.end is None else write_duration(window.end - window.start)
    return {"start": write_instant(window.start), "duration": length}


def _payloads(kind: ReportType, sample: Sample, units: str) -> list[dict[str, Any]]:
    """The value, if there is one that can be told, and always its quality."""
    value, quality = sample.value, sample.quality
    if value is None:
        quality = quality if quality is Quality.BAD else Quality.MISSING
    elif not _fits(kind, value):
        value, quality = None, Quality.BAD
    payloads: list[dict[str, Any]] = []
    if isinstance(value, OperatingState):
        payloads.append({"type": kind.value, "values": [value.value]})
    elif value is not None:
        payloads.append({"type": kind.value, "values": [round(value / _W_PER[units], 6)]})
    return [*payloads, {"type": "DATA_QUALITY", "values": [quality.value]}]


def _fits(kind: ReportType, value: float | OperatingState) -> bool:
    if kind is ReportType.OPERATING_STATE:
        return isinstance(value, OperatingState)
    return not isinstance(value, str | bool) and math.isfinite(value)


def _summed(kind: ReportType, column: Sequence[Sample]) -> Sample:
    """All resources as one: watts add up, of states the worst counts; a sum with a gap is no sum."""
    quality = next(each for each in _WORST_FIRST if any(sample.quality is each for sample in column))
    values = [sample.value for sample in column]
    if any(value is None for value in values):
        return Sample(None, quality)
    if kind is ReportType.OPERATING_STATE:
        return Sample(next((state for state in _STATE_WORST_FIRST if state in values), None), quality)
    return Sample(
        math.fsum(value for value in values if not isinstance(value, OperatingState | None)), quality
    )

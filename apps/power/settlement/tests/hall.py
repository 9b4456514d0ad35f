"""The hall of the acceptance scenarios: an event of three hours on a Thursday, and ten working days before it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from apps.power.settlement.baseline import Baseline, Calendar, Method, adjusted, ten_of_ten
from apps.power.settlement.facts import Event, Reading, Readings, TargetKind, Terms, Window

DAY = datetime(2026, 7, 16, tzinfo=UTC)  # a Thursday
USUAL_KW = (130, 132, 131, 133, 134, 132, 130, 133, 132, 133)
METERED_KW = (118, 121, 126)
TERMS = Terms(price_per_kwh=Decimal("0.40"), penalty_per_kwh=Decimal("2.00"))


def at(hour: float, *, days_before: int = 0) -> datetime:
    return DAY - timedelta(days=days_before) + timedelta(hours=hour)


def hours(
    *from_to: tuple[float, float], kw: float, days_before: int = 0, quality: str = "ok"
) -> list[Reading]:
    """A reading for every hour of these spans."""
    return [
        Reading(at(start + hour, days_before=days_before), kw * 1000, quality)
        for start, end in from_to
        for hour in range(round(end - start))
    ]


def working_days_before(n: int) -> list[int]:
    """How far back each of the last n working days lies."""
    back = [days for days in range(1, 3 * n) if (DAY - timedelta(days=days)).weekday() < 5]
    return back[:n]


def usual(loads_kw: Sequence[float] = USUAL_KW, window_kw: float = 128) -> list[Reading]:
    """Working days before the event: their load while it would have run, and from 10 to 12."""
    readings = []
    for days, kw in zip(working_days_before(len(loads_kw)), loads_kw, strict=True):
        readings += hours((14, 17), kw=kw, days_before=days) + hours((10, 12), kw=window_kw, days_before=days)
    return readings


def event_day(metered_kw: Iterable[float] = METERED_KW, window_kw: float = 136) -> list[Reading]:
    metered = [Reading(at(14 + hour), kw * 1000) for hour, kw in enumerate(metered_kw)]
    return metered + hours((10, 12), kw=window_kw)


def meter(*readings: Reading, **changes: Any) -> Readings:
    return Readings(readings, **{"max_age_s": 3600, **changes})


def call(**changes: Any) -> Event:
    """Shed 18 kW from 14 to 17 hours, noticed at 13:45."""
    told: dict[str, Any] = {
        "event_id": "heat-7",
        "version": 1,
        "priority": 1,
        "notified_at": at(13.75),
        "start_at": at(14),
        "end_at": at(17),
        "target_kind": TargetKind.SHED_BY,
        "value_w": 18_000,
    }
    return Event(**(told | changes))


def flat(event: Event, kw: str = "140.25", interval_s: int = 3600) -> Baseline:
    """The same baseline for every interval."""
    windows = event.windows(interval_s)
    watts = (Decimal(kw) * 1000,) * len(windows)
    return Baseline(Method.TEN_OF_TEN, windows, watts, watts, n_wanted=10)


def p12(window_kw: float = 136, **changes: Any) -> tuple[Event, Baseline, Readings]:
    """The event of the scenario with its baseline, adjusted from 10 to 12 hours."""
    event = call(**changes)
    readings = meter(*usual(), *event_day(window_kw=window_kw))
    found = ten_of_ten(readings, event.windows(3600), Calendar())
    window = Window.of(at(10), at(12))
    return event, adjusted(found, readings, window=window, notified_at=event.notified_at), readings

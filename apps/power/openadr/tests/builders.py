"""Events as a VTN writes them, of which a test names only what matters."""

from datetime import UTC, datetime, timedelta
from typing import Any

from apps.power.openadr.mapping import read_events
from apps.power.openadr.signals import Reading, Signal

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
UTMOST = object()


def iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def event(name: str = "e1", **changes: Any) -> dict[str, Any]:
    """A limit of 500 kW from 13:00 to 14:00; a change of UTMOST leaves the field out."""
    made = {
        "id": name,
        "createdDateTime": "2026-07-01T10:00:00Z",
        "modificationDateTime": "2026-07-01T11:00:00.000Z",
        "objectType": "EVENT",
        "programID": "p1",
        "eventName": "shed",
        "priority": 1,
        "intervalPeriod": {"start": "2026-07-01T13:00:00Z", "duration": "PT1H", "randomizeStart": "PT0S"},
        "payloadDescriptors": [{"payloadType": "IMPORT_CAPACITY_LIMIT", "units": "KW"}],
        "intervals": [interval(payload("IMPORT_CAPACITY_LIMIT", 500))],
        **changes,
    }
    return {key: value for key, value in made.items() if value is not UTMOST}


def asking(
    payload_type: str, *values: Any, name: str = "e1", units: str | None = None, **changes: Any
) -> dict[str, Any]:
    described = {"payloadType": payload_type, **({"units": units} if units else {})}
    return event(
        name, payloadDescriptors=[described], intervals=[interval(payload(payload_type, *values))], **changes
    )


def interval(*payloads: dict[str, Any], interval_id: int = 0, **period: str) -> dict[str, Any]:
    made: dict[str, Any] = {"id": interval_id, "payloads": list(payloads)}
    return {**made, "intervalPeriod": period} if period else made


def payload(payload_type: str, *values: Any) -> dict[str, Any]:
    return {"type": payload_type, "values": list(values)}


def read(*events: object, now: datetime = NOW, **more: Any) -> Reading:
    return read_events(events, now=now, **more)


def signal(raw: object, now: datetime = NOW, **more: Any) -> Signal:
    reading = read_events([raw], now=now, **more)
    assert reading.refused == ()
    return reading.signals[0]


def fault(raw: object, now: datetime = NOW, **more: Any) -> tuple[str, str]:
    reading = read_events([raw], now=now, **more)
    assert reading.signals == ()
    return reading.refused[0].path, reading.refused[0].message


def hours(count: float) -> timedelta:
    return timedelta(hours=count)

"""The only reader of the time. Everything else is given the time, so that it can be given another."""

import time
from datetime import UTC, datetime


def now() -> datetime:
    """The present instant, aware, in UTC."""
    return datetime.now(UTC)


def monotonic_s() -> float:
    """Seconds on a clock that never goes back: for measuring how long something took."""
    return time.monotonic()


def sleep(duration_s: float) -> None:
    """Wait. Only loops that wait for the outside world have a use for it."""
    time.sleep(duration_s)

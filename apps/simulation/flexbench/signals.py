"""What the grid may ask: eight kinds of signals, as events of a scenario."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

Scene = dict[str, Any]
NOTICE_S: Final = 2000.0  # the load is measured for 900 s before any notice


def _ask(n: int, *, t: float, start: float, duration: float, reduce_w: float, **more: Any) -> Scene:
    return {
        "type": "demand_response",
        "t": t,
        "name": f"event-{n:03d}",
        "domain": "hall",
        "start": start,
        "duration": duration,
        "reduce_w": round(reduce_w, 1),
        **more,
    }


def _quarter(chance: Random, load_w: float) -> list[Scene]:
    return [_ask(0, t=NOTICE_S, start=NOTICE_S + 900, duration=10_800, reduce_w=0.25 * load_w)]


def _steps(chance: Random, load_w: float) -> list[Scene]:
    """Three steps that rise, each for an hour; the reference of a later one is what the earlier left."""
    at, told, before = NOTICE_S, [], 0.0
    for n, share in enumerate((0.06, 0.19, 0.31)):
        told.append(_ask(n, t=at, start=at + 600, duration=3600, reduce_w=share * load_w))
        at, before = at + 600 + 3600 + 8000, share
    del before
    return told


def _thirty_seconds(chance: Random, load_w: float) -> list[Scene]:
    return [_ask(0, t=NOTICE_S, start=NOTICE_S + 30, duration=1800, reduce_w=0.30 * load_w)]


def _ten_hours(chance: Random, load_w: float) -> list[Scene]:
    return [_ask(0, t=NOTICE_S, start=NOTICE_S + 1800, duration=36_000, reduce_w=0.15 * load_w)]


def _targets(n: int, span_s: float) -> Callable[[Random, float], list[Scene]]:
    def signal(chance: Random, load_w: float) -> list[Scene]:
        """Random targets without notice, one after the other."""
        each = span_s / n
        told = []
        for i in range(n):
            at = NOTICE_S + i * each + round(chance.uniform(0, 0.2 * each))
            duration = 60 * round(chance.uniform(0.2, 0.5) * each / 60)
            told.append(
                _ask(i, t=at, start=at, duration=duration, reduce_w=chance.uniform(0.02, 0.3) * load_w)
            )
        return told

    return signal


def _zero_notice(chance: Random, load_w: float) -> list[Scene]:
    return [
        _ask(0, t=NOTICE_S, start=NOTICE_S, duration=1800, reduce_w=0.60 * load_w, emergency=True, priority=0)
    ]


def _overlaps(chance: Random, load_w: float) -> list[Scene]:
    """Events that overlap, some of which are called off midway."""
    told = []
    for n in range(4):
        at = NOTICE_S + n * 1500 + round(chance.uniform(0, 600))
        told.append(
            _ask(
                n,
                t=at,
                start=at + chance.choice((0, 300, 900)),
                duration=60 * round(chance.uniform(20, 80)),
                reduce_w=chance.uniform(0.05, 0.2) * load_w,
                priority=n % 2,
            )
        )
        if chance.random() < 0.4:
            told.append(
                {
                    "type": "cancel_demand_response",
                    "t": at + round(chance.uniform(100, 3000)),
                    "name": f"event-{n:03d}",
                }
            )
    return sorted(told, key=lambda event: event["t"])


SIGNALS: Final[dict[str, Callable[[Random, float], list[Scene]]]] = {
    "25 % for 3 h": _quarter,
    "steps of 6, 19 and 31 %": _steps,
    "30 % in 30 s": _thirty_seconds,
    "15 % for 10 h": _ten_hours,
    "random targets": _targets(200, 5 * 86_400),
    "60 % at no notice": _zero_notice,
    "overlaps and cancellations": _overlaps,
}
QUICK_SIGNALS: Final = {**SIGNALS, "random targets": _targets(10, 21_600)}

"""What teams used, with old use fading: what fair share is measured by."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from apps.jobs.spec import SHARE_STEPS


@dataclass(slots=True)
class _Use:
    value_s: float = 0.0  # device-seconds, faded to `at_s`
    at_s: float = 0.0
    rate: int = 0  # millionths of devices held since


class DecayedUse:
    """Device-seconds by team and kind; half of what lies one half-life back counts."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._use: dict[int, dict[int, _Use]] = {}

    def begin(self, team: int, kind: int, device_s: float) -> None:
        """What a team used before time 0, faded to then."""
        self._use.setdefault(team, {})[kind] = _Use(value_s=device_s)

    def change(self, team: int, kind: int, steps: int, now_s: float) -> None:
        """A team holds so many millionths of devices more (or less) from now on."""
        use = self._use.setdefault(team, {}).setdefault(kind, _Use(at_s=now_s))
        use.value_s, use.at_s = self._faded(use, now_s), now_s
        use.rate += steps

    def of(self, team: int, now_s: float) -> Mapping[int, float]:
        """Faded use by kind up to now."""
        return {kind: self._faded(use, now_s) for kind, use in sorted(self._use.get(team, {}).items())}

    def _faded(self, use: _Use, now_s: float) -> float:
        fade: float = 0.5 ** ((now_s - use.at_s) / self._half_life_s)
        return use.value_s * fade + use.rate / SHARE_STEPS * self._half_life_s / log(2) * (1 - fade)

"""What is free while a scenario is played, and how much of it the typical job of the scenario could not use."""

from fractions import Fraction
from typing import Any, Final

from apps.scheduling.engine.facts import BoolArray, Facility, Gang, Placing
from apps.scheduling.engine.fragmentation import Typical, mix_of
from apps.scheduling.engine.frame import frame_of
from apps.scheduling.engine.units import FULL, micro_of

_MOST: Final = 500  # looks before they become rarer; each costs about as much as a small pass


class FreeMeter:
    """Means over time by accelerator type. In a long simulation it looks now and then: every so often, twice as
    seldom after every five hundred looks, and what it saw stands until it looks again."""

    def __init__(self, facility: Facility, gangs: list[Gang]) -> None:
        self.frame = frame_of(facility)
        self.present = self._all_free()
        self.typical = Typical(mix_of(gangs), len(self.frame.kinds))
        self._sums: dict[
            int, list[float | None]
        ] = {}  # by type: free, of no use, to gangs; devices times seconds
        self._seen: dict[int, tuple[float | None, ...]] = {}
        self._since = Fraction(0)
        self._next_look, self._every, self._n_looks = Fraction(0), Fraction(0), 0
        self._is_changed = True

    def _all_free(self) -> Any:
        frame = self.frame
        dev = frame.n_devices.repeat(frame.n_devices) * 0 + FULL
        return dev, frame.cpu.copy(), frame.mem.copy()

    def hold(self, gang: Gang, placing: Placing, sign: int) -> None:
        """A job takes (1) or gives back (-1) a placing."""
        dev, cpu, mem = self.present
        for share in placing:
            ask = gang.shape.asks[share.group]
            first = int(self.frame.offset[share.node])
            for device in share.devices:
                dev[first + device] -= sign * share.share_steps
            cpu[share.node] -= sign * micro_of(ask.cpus) * share.n_replicas
            mem[share.node] -= sign * micro_of(ask.memory_gib) * share.n_replicas
        self.note_change()

    def note_change(self) -> None:
        """Something else is so of the nodes."""
        self._is_changed = True

    def look(self, now: Fraction, is_usable: BoolArray) -> None:
        """Everything that happens at this instant has happened."""
        if not self._is_changed or now < self._next_look:
            return
        self.until(now)
        found = self.typical.fragmentation(self.frame, is_usable, self.present)
        self._seen = {one.kind: (one.free, one.of_replicas, one.of_gangs) for one in found}
        self._is_changed = False
        self._n_looks += 1
        if self._n_looks % _MOST == 0:
            self._every = max(2 * self._every, now / _MOST)
        self._next_look = now + self._every

    def until(self, now: Fraction) -> None:
        """Count what was seen up to now."""
        span_s = float(now - self._since)
        self._since = now
        for kind, amounts in self._seen.items():
            sums = self._sums.setdefault(kind, [None] * len(amounts))
            for i, amount in enumerate(amounts):
                if amount is not None:
                    sums[i] = (sums[i] or 0.0) + amount * span_s

    def report(self, horizon: Fraction) -> dict[str, dict[str, float | None]]:
        """Devices by type, the mean from 0 to the end; null where nobody asks."""
        self.until(max(horizon, self._since))
        if not horizon:
            return {}
        return {
            self.frame.kinds[kind].name: {
                name: None if total is None else total / float(horizon)
                for name, total in zip(("free", "of_no_use", "of_no_use_to_gangs"), sums, strict=True)
            }
            for kind, sums in sorted(self._sums.items())
        }

"""What the facility draws in a simulation: by domain, exactly, as it changes."""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Final

from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import NONE, Facility, Placing
from apps.simulation.replay.heap import exact
from apps.simulation.world import SimJob, power_children

MICRO: Final = 10**6
# Draws are whole numbers of this part of a watt: microwatts, times the steps in which devices are shared.
UNIT_W: Final = MICRO * SHARE_STEPS


def _units(watts: float) -> int:
    return round(exact(watts) * MICRO) * SHARE_STEPS


class PowerMeter:
    """Draw of every power and cooling domain, its peak and its energy.

    Args:
        true_draw: How many times as much a job draws as was said of it, by name; None: what was said.
    """

    def __init__(self, facility: Facility, true_draw: Callable[[str], float] | None = None) -> None:
        self.facility = facility
        self._true_draw = true_draw
        n = len(facility.domains)
        self.draw = [0] * n  # IT load
        self.peak = [0] * n
        self._energy = [Fraction(0)] * n  # unit seconds
        self._since = [Fraction(0)] * n
        self._changed: set[int] = set(range(n))
        above = power_children(facility)
        self._chain: list[tuple[int, ...]] = []
        lasts: dict[tuple[int, int], tuple[int, ...]] = {}
        for power, cooling in zip(facility.power.tolist(), facility.cooling.tolist(), strict=True):
            chain = lasts.get((power, cooling))
            if chain is None:
                chain = (above[power] if power != NONE else ()) + (above[cooling] if cooling != NONE else ())
                lasts[power, cooling] = chain
            self._chain.append(chain)
        self._rest = [_units(kind.idle_w) for kind in facility.kinds]
        self._tdp = [kind.tdp_w for kind in facility.kinds]
        self._kind = facility.kind.tolist()
        self._base = [
            _units(idle_w) + devices * self._rest[kind]
            for idle_w, devices, kind in zip(
                facility.idle_w.tolist(), facility.n_devices.tolist(), self._kind, strict=True
            )
        ]
        self._add(((node, units) for node, units in enumerate(self._base)), Fraction(0))

    def _add(self, changes: Iterable[tuple[int, int]], now: Fraction) -> None:
        by_domain: dict[int, int] = {}
        for node, units in changes:
            for domain in self._chain[node]:
                by_domain[domain] = by_domain.get(domain, 0) + units
        for domain, units in by_domain.items():
            self._settle(domain, now)
            self.draw[domain] += units
            self._changed.add(domain)

    def _settle(self, domain: int, now: Fraction) -> None:
        if now != self._since[domain]:
            self._energy[domain] += self.draw[domain] * (now - self._since[domain])
            self._since[domain] = now

    def instant_over(self) -> None:
        """What the domains draw now they will draw for some time: let it count as a peak."""
        for domain in self._changed:
            self.peak[domain] = max(self.peak[domain], self.draw[domain])
        self._changed.clear()

    def node_down(self, node: int, now: Fraction) -> None:
        """A failed node draws nothing."""
        self._add([(node, -self._base[node])], now)

    def node_up(self, node: int, now: Fraction) -> None:
        self._add([(node, self._base[node])], now)

    def switched(self, node: int, off_w: float, now: Fraction, *, is_on: bool) -> None:
        """A node at rest is switched off, and draws no more than that; or on again."""
        gone = self._base[node] - _units(off_w)
        self._add([(node, gone if is_on else -gone)], now)

    def job(self, job: SimJob, placing: Placing, now: Fraction, sign: int, cap: float = 1.0) -> None:
        """Add a job's draw beyond rest under a cap (sign 1) or take it away (-1); a cap of 0 is a pause."""
        if not cap:
            return
        asks = job.gang.shape.asks
        factor = 1.0 if self._true_draw is None else self._true_draw(job.name)
        changes: list[tuple[int, int]] = []
        for share in placing:
            kind = self._kind[share.node]
            tdp_w = self._tdp[kind]
            power_w = asks[share.group].power_w
            load = _units(min(cap * tdp_w, tdp_w if power_w is None else power_w * factor))
            extra = (load - self._rest[kind]) * share.share_steps // SHARE_STEPS
            changes.append((share.node, sign * extra * len(share.devices)))
        self._add(changes, now)

    def energy(self, domain: int, now: Fraction) -> Fraction:
        """IT energy of a domain so far, in watt-seconds."""
        self._settle(domain, now)
        return self._energy[domain] / UNIT_W

    def draw_w(self, domain: int) -> float:
        """What a domain draws now as IT load."""
        return self.draw[domain] / UNIT_W

    def report(self, now: Fraction) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Peak in W and energy in Wh by domain; a facility's at its meter."""
        peak_w, energy_wh = {}, {}
        for position, domain in enumerate(self.facility.domains):
            if domain.kind in ("scale_up", "leaf", "spine", "storage"):
                continue
            self._settle(position, now)
            fixed, k = exact(domain.overhead_fixed_w), exact(domain.overhead_k)
            peak_w[domain.name] = float(fixed + k * self.peak[position] / UNIT_W)
            energy_wh[domain.name] = float((fixed * now + k * self._energy[position] / UNIT_W) / 3600)
        return peak_w, energy_wh

"""Nodes at rest that are switched off while a power event binds, and on again after it."""

from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING

from apps.power.curtailment.facts import Candidate, Idle
from apps.power.curtailment.options import idle_candidate
from apps.simulation.replay.heap import exact

if TYPE_CHECKING:
    from apps.simulation.response import Response


class IdleNodes:
    """Which nodes are off, on their way there, or booting. None is where the policy does not allow it."""

    def __init__(self, response: "Response") -> None:
        self._of = response
        self._sim = response.sim
        self.is_allowed: bool = response.sim.policy_row.idle_power_off
        self.off: set[int] = set()
        self._going: dict[int, tuple[Fraction, str]] = {}  # when it will be off, and for which event
        self._booting: dict[int, Fraction] = {}

    def candidates(self, domains: list[int], at: Fraction) -> tuple[list[Candidate], dict[int, float]]:
        """Nodes that could be switched off; and by domain the watts that those on their way will have shed by then."""
        if not self.is_allowed:
            return [], {}
        some, coming = [], dict.fromkeys(domains, 0.0)
        for node, row in enumerate(self._sim.world.node_rows):
            under = tuple(i for i, domain in enumerate(domains) if domain in self._of.chain(node))
            if not under:
                continue
            if node in self._going:
                if self._going[node][0] <= at:
                    for i in under:
                        coming[domains[i]] += self.rest_w(node)
            elif self._is_idle(node):
                idle = Idle(node, row.devices, under, self.rest_w(node), takes_s=row.off_s, boot_s=row.boot_s)
                some.append(idle_candidate(idle))
        return some, coming

    def _is_idle(self, node: int) -> bool:
        sim = self._sim
        return not (sim.on_node[node] or sim.is_off[node] or sim.is_failed[node])

    def rest_w(self, node: int) -> float:
        """What a node draws at rest beyond what it draws when off."""
        facility = self._sim.facility
        kind = facility.kinds[int(facility.kind[node])]
        rest = float(facility.idle_w[node]) + int(facility.n_devices[node]) * kind.idle_w
        return max(0.0, rest - self._sim.world.node_rows[node].off_w)

    def under_w(self, domain: int, *, is_going_too: bool = False) -> float:
        """What nodes that are off do not draw in a domain, though a planner counts them as if they were on.

        Args:
            is_going_too: Also those that are on their way there: nothing starts on them any more.
        """
        some = self.off | self._going.keys() if is_going_too else self.off
        return sum(self.rest_w(node) for node in sorted(some) if domain in self._of.chain(node))

    def switch_off(self, node: int, due: Fraction, event: str) -> None:
        """From now on nobody starts on it."""
        if node not in self._going and not self._sim.is_off[node]:
            self._going[node] = (due, event)
            self._sim.is_off[node] = True
            self._of.wake(due)

    def bring_into_force(self, now: Fraction) -> None:
        """What is due: nodes that are off now, and nodes that have booted."""
        for node in sorted(n for n, (due, _) in self._going.items() if due <= now):
            if self._sim.engine.loses_command():
                settle = self._of.soon(now)
                self._going[node] = (settle, self._going[node][1])
                continue
            _, event = self._going.pop(node)
            self.off.add(node)
            self._sim.switch(node, is_on=False, **{"for": {"event": event}})
        for node in sorted(n for n, due in self._booting.items() if due <= now):
            del self._booting[node]
            self._sim.is_off[node] = False
            self._sim.is_changed = True

    def give_up(self, event: str) -> None:
        """What was not done yet for an event is not done any more."""
        for node in [n for n, (_, name) in self._going.items() if name == event]:
            del self._going[node]
            self._sim.is_off[node] = False

    def switch_on(self, now: Fraction) -> None:
        """As many as the limits bear; each takes work once it has booted."""
        for node in sorted(self.off):
            if self.fits(node):
                self.off.discard(node)
                self._sim.switch(node, is_on=True)
                ready = now + exact(self._sim.world.node_rows[node].boot_s)
                self._booting[node] = ready
                self._of.wake(ready)
                if ready <= now:
                    self.bring_into_force(now)

    def fits(self, node: int) -> bool:
        """Whether a node may be switched on, under every limit and every allowance above it."""
        rise = self.rest_w(node)
        limits = self._of.bounds_w()
        return all(
            self._of.reserved_w(domain) + rise <= limits[domain] * (1 + 1e-9) + 1e-6
            for domain in self._of.chain(node)
            if limits.get(domain, inf) < inf
        )

    def lose(self, node: int) -> None:
        """A node fails: what fails draws nothing, and when it is mended it is on."""
        if node in self.off:
            self.off.discard(node)
            self._sim.switch(node, is_on=True)
        self._going.pop(node, None)
        self._booting.pop(node, None)
        self._sim.is_off[node] = False

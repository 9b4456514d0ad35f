"""What sums alone say of the present: how much power the limits leave to a kind of node, and its emptiest node.

A look at a few numbers shows for most jobs that wait that they have no place now, before any node is looked at.
"""

from typing import Any

import numpy as np

from apps.scheduling.engine.facts import Shape
from apps.scheduling.engine.frame import Frame
from apps.scheduling.engine.kernels import most_under_limits
from apps.scheduling.engine.placement import holds_devices
from apps.scheduling.engine.state import State
from apps.scheduling.engine.units import BIG


class Needs:
    """What shapes need, kept by identity: whoever asks keeps the shapes."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._known: dict[tuple[int, int], tuple[int, int, int]] = {}

    def of(self, shape: Shape, kind: int) -> tuple[int, int, int]:
        """Microwatts of the whole gang on this kind; of its hungriest replica; whole devices of its largest one."""
        key = (id(shape), kind)
        known = self._known.get(key)
        if known is None:
            known = (0, 0, 0)
            if holds_devices(shape):
                each = [self._frame.draw(a.devices, a.share_steps, kind, a.peak_w) for a in shape.asks]
                together = sum(uw * ask.n_replicas for uw, ask in zip(each, shape.asks, strict=True))
                known = together, max(each), max(ask.devices for ask in shape.asks)
            self._known[key] = known
        return known


class Sums:
    """Of one state, by kind of node. The state must not change while its sums are asked for."""

    def __init__(self, frame: Frame, state: State) -> None:
        self._frame, self._state = frame, state
        self._power: dict[int, tuple[int, int]] = {}
        self._largest: dict[int, int] = {}

    def lacks_power(self, needs: tuple[int, int, int], kind: int) -> bool:
        """Whether the limits leave too little for the gang, or on every node too little for one of its replicas."""
        together, each, _ = needs
        if not together:
            return False
        known = self._power.get(kind)
        if known is None:
            known = self._power[kind] = self._power_left(kind)
        return together > known[0] or each > known[1]

    def lacks_devices(self, needs: tuple[int, int, int], kind: int) -> bool:
        """Whether no node has as many whole devices free as one replica takes."""
        if not needs[2]:
            return False
        known = self._largest.get(kind)
        if known is None:
            whole = self._state.whole[self._frame.nodes_of[kind]]
            known = self._largest[kind] = int(whole.max(initial=0))
        return needs[2] > known

    def _power_left(self, kind: int) -> tuple[int, int]:
        """Microwatts at the most that all nodes of a kind may draw more, and that one of them may."""
        frame, head = self._frame, self._state.head
        nodes = frame.nodes_of[kind]
        if not frame.has_limits or not len(nodes):
            return BIG, BIG
        on_node = np.zeros(frame.n_nodes, dtype=np.int64)
        on_node[nodes] = np.maximum(head[frame.paths[nodes]].min(axis=1), 0)
        most = int(head[frame.above_all[kind]].min(initial=BIG))
        if frame.n_limit_trees == 1:
            flow: Any = most_under_limits  # replicas of one microwatt: exact under one tree
            most = min(most, int(flow(nodes, on_node, head, frame.paths, 1, BIG)))
        return most, int(on_node.max())

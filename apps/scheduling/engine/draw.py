"""What the facility is modelled to draw, from what runs where."""

from collections.abc import Iterable

import numpy as np

from apps.scheduling.engine.facts import NONE, BoolArray, Facility, FloatArray, Running


def node_draw_w(
    facility: Facility, running: Iterable[Running], is_failed: BoolArray, *, peak: bool = False
) -> FloatArray:
    """(n,) watts of each node: host at rest, idle devices, and what its jobs draw (at their peak, if asked).

    A failed node draws nothing; reserved peaks (`peak=True`) keep its idle draw, as it may come back any moment.
    """
    idle = np.array([kind.idle_w for kind in facility.kinds] or [0.0])
    draw: FloatArray = facility.idle_w + facility.n_devices * idle[facility.kind]
    for job in running:
        for share in job.placing:
            ask = job.gang.shape.asks[share.group]
            held = ask.devices or ask.share_steps / 1e6
            if not held:
                continue
            kind = facility.kinds[int(facility.kind[share.node])]
            asked = (ask.peak_w if ask.peak_w is not None else ask.power_w) if peak else ask.power_w
            watts = min(kind.tdp_w if asked is None else asked, job.cap * kind.tdp_w)
            above = watts - kind.idle_w
            draw[share.node] += (max(0.0, above) if peak else above) * held * share.n_replicas
    return draw if peak else np.where(is_failed, 0.0, draw)


def domain_draw_w(
    facility: Facility, running: Iterable[Running], is_failed: BoolArray, *, peak: bool = False
) -> FloatArray:
    """(d,) watts of IT load under each domain."""
    node_w = node_draw_w(facility, running, is_failed, peak=peak)
    draw = np.zeros(len(facility.domains))
    for lowest in facility.lowest:
        inside = lowest != NONE
        if inside.any():
            np.add.at(draw, lowest[inside], node_w[inside])
    for d in sorted(range(len(draw)), key=lambda d: -_depth(facility, d)):
        parent = facility.domains[d].parent
        if parent != NONE:
            draw[parent] += draw[d]
    return draw


def _depth(facility: Facility, domain: int) -> int:
    depth = 0
    while facility.domains[domain].parent != NONE:
        domain, depth = facility.domains[domain].parent, depth + 1
    return depth

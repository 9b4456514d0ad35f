"""From what the ledger granted to an order that a backend can carry out. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, pairwise
from typing import Final

from apps.execution.backends.base import Replica

UNDECLARED_S: Final = 60.0  # a simulated cluster plays this long what says nothing of its run time
SLOWEST: Final = 1e-3  # pace of what hardly moves; none stands still for good
LONGEST_S: Final = 1e9  # three decades: an end that a calendar can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One replica group of the job's specification."""

    name: str = ""
    devices: float = 1.0  # each replica's
    command: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFacts:
    """What one node gives to one group."""

    node: str
    group_index: int = 0
    n_replicas: int
    first_rank: int = 0
    device_shares: Mapping[int, Decimal]
    cpus: float = 0.0  # all its replicas together; 0: they did not say
    memory_gib: float = 0.0


def replicas_of(groups: Sequence[GroupFacts], placements: Sequence[PlacementFacts]) -> tuple[Replica, ...]:
    """One replica a process, numbered through the groups in order, each with its own devices."""
    replicas: list[Replica] = []
    for placement in sorted(placements, key=lambda p: (p.group_index, p.first_rank, p.node)):
        group = groups[placement.group_index]
        for indices in device_indices(group.devices, placement.n_replicas, placement.device_shares):
            replicas.append(
                Replica(
                    rank=len(replicas),
                    node=placement.node,
                    group=group.name,
                    device_indices=indices,
                    command=group.command,
                    cpus=placement.cpus / placement.n_replicas,
                    memory_gib=placement.memory_gib / placement.n_replicas,
                )
            )
    return tuple(replicas)


def device_indices(devices: float, n_replicas: int, shares: Mapping[int, Decimal]) -> list[tuple[int, ...]]:
    """Deal a placement's devices to its replicas: whole ones in runs of neighbours, fractions one device each."""
    ordered = sorted(shares)
    if not ordered:
        return [()] * n_replicas
    if devices >= 1:
        indices = iter(ordered)
        each = len(ordered) // n_replicas
        return [tuple(islice(indices, each)) for _ in range(n_replicas)]
    seats = [index for index in ordered for _ in range(max(1, round(float(shares[index]) / devices)))]
    return [(seats[min(i, len(seats) - 1)],) for i in range(n_replicas)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayFacts:
    """What decides how long a simulated cluster plays an attempt."""

    runtime_s: float | None  # declared, at preferred size, full power and speed 1
    kept_s: float = 0.0  # of it, done by earlier attempts and not lost
    rate: float = 1.0  # throughput of its size, relative to the preferred one
    speed: float = 1.0  # of the slowest member
    checkpoint_interval_s: float | None = None
    checkpoint_cost_s: float = 0.0
    restart_s: float = 0.0  # spent at the start of every attempt but the first


def play_s(facts: PlayFacts) -> float:
    """Seconds an attempt runs at full power until its work is done. A gang is as fast as its slowest member."""
    runtime_s = UNDECLARED_S if facts.runtime_s is None else facts.runtime_s
    left_s = max(runtime_s - facts.kept_s, 1.0)
    pace = facts.speed * facts.rate
    took_s = left_s / max(pace, 1e-6)
    if facts.checkpoint_interval_s:
        # None is written at the very end.
        n_checkpoints = max(0, math.ceil(took_s / facts.checkpoint_interval_s) - 1)
        took_s += n_checkpoints * facts.checkpoint_cost_s
    return min(took_s + facts.restart_s, LONGEST_S)


def pace_at(members: Sequence[tuple[Sequence[tuple[float, float]], float]], share: float) -> float:
    """Share of its full speed that a gang keeps under a cap; as a gang waits for its slowest member.

    Args:
        members: Curve and draw without a cap of each, as throughput_at() takes them.
    """
    rates = [throughput_at(curve, share, draw_share) for curve, draw_share in members]
    return max(min(rates, default=1.0), SLOWEST)


def throughput_at(curve: Sequence[tuple[float, float]], cap_share: float, draw_share: float) -> float:
    """Share of its full speed that a job keeps under a cap.

    Args:
        curve: (cap as a share of TDP, share of throughput), from the lowest cap up to 1; empty: caps cost nothing.
        cap_share: The cap in force, as a share of TDP.
        draw_share: What the job would draw without a cap, as a share of TDP. A cap at or above it costs nothing.
    """
    if cap_share >= draw_share or not curve:
        return 1.0
    return _along(curve, cap_share) / max(_along(curve, min(draw_share, 1.0)), 1e-6)


def _along(curve: Sequence[tuple[float, float]], at: float) -> float:
    if at <= curve[0][0]:
        return curve[0][1]
    for (x0, y0), (x1, y1) in pairwise(curve):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return curve[-1][1]

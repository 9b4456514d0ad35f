"""Elastic gangs at one of their sizes: a shape with other numbers of replicas, and how fast it then gets on."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from apps.scheduling.engine.facts import Ask, Gang, Placing, Policy, Running, Shape, Share

Sizes = tuple[int, ...]  # replicas of each group


def preferred_sizes(gang: Gang) -> Sizes:
    """Replicas of each group at which it is to run."""
    return tuple(ask.n_replicas for ask in gang.shape.asks)


def least_sizes(gang: Gang) -> Sizes:
    """Replicas of each group below which it does not run."""
    return tuple(ask.least for ask in gang.shape.asks)


def sizes_of(gang: Gang, placing: Placing) -> Sizes:
    """Replicas of each group in a placing."""
    counts = [0] * len(gang.shape.asks)
    for share in placing:
        counts[share.group] += share.n_replicas
    return tuple(counts)


def relative_rate(gang: Gang, sizes: Sequence[int]) -> float:
    """Throughput at these sizes, relative to the preferred ones: the group that is shortest sets the pace.

    In proportion to the replicas, or along the points that the job declares (straight between them; beyond the last
    one more replicas bring nothing).
    """
    if not gang.is_elastic:
        return 1.0
    elastic = [
        (n, ask.n_replicas) for n, ask in zip(sizes, gang.shape.asks, strict=True) if ask.least != ask.most
    ]
    if gang.scaling:
        return rate_at(gang.scaling, min(n for n, _ in elastic))
    return min(n / preferred for n, preferred in elastic)


def may_resize(gang: Gang, policy: Policy) -> bool:
    """Whether a job may be given another size while it runs."""
    if not policy.resizing or not gang.is_elastic:
        return False
    return not policy.resizes_by_restart or (gang.preemptible and gang.saving is not None)


def resize_s(gang: Gang) -> float:
    """Seconds without work that a change of size takes."""
    saving = gang.saving
    return saving.cost_s + saving.restart_s if saving is not None and saving.on_resize else 0.0


def end_after(running: Running, placing: Placing, now_s: float) -> float:
    """When a running job that goes on with this placing is expected to end: its limit stays, its work takes longer."""
    gang = running.gang
    if gang.limit_s != inf or running.ends_s == inf:
        return running.ends_s
    ratio = _time_ratio(running, placing)
    end_s = now_s + max(0.0, running.ends_s - now_s) * ratio + resize_s(gang)
    if gang.saving is not None and gang.saving.on_resize:
        # Checkpoints are counted anew from here: there may be one more than in proportion.
        end_s += max(1.0, ratio) * gang.saving.cost_s
    return end_s


def gains_time(running: Running, placing: Placing, now_s: float, probable_end_s: float) -> bool:
    """Whether it would be ready earlier with this placing, what the change takes included.

    Args:
        probable_end_s: When it will probably end as it is; its limit, where nothing better is known.
    """
    saved_share = 1.0 - _time_ratio(running, placing)
    if saved_share <= 0:
        return False
    left_s = max(0.0, min(running.ends_s, probable_end_s) - now_s)
    return left_s * saved_share > resize_s(running.gang)


def _time_ratio(running: Running, placing: Placing) -> float:
    """How long its work takes with this placing, over how long it takes now."""
    gang = running.gang
    return relative_rate(gang, sizes_of(gang, running.placing)) / relative_rate(gang, sizes_of(gang, placing))


def rate_at(points: Sequence[tuple[int, float]], n: int) -> float:
    """Declared throughput at n replicas, from (replicas, throughput) in rising order."""
    first_n, first_rate = points[0]
    if n <= first_n:
        return first_rate * n / first_n
    for (low_n, low), (high_n, high) in pairwise(points):
        if n <= high_n:
            return low + (high - low) * (n - low_n) / (high_n - low_n)
    return points[-1][1]


def one_by_one(share: Share, devices: int) -> list[Share]:
    """The replicas of a share, each on its own; the last devices first."""
    n = share.n_replicas
    if not share.devices:
        return [Share(share.group, share.node, 1, (), share.share_steps)] * n
    if devices:
        return [
            Share(
                share.group, share.node, 1, share.devices[i * devices : (i + 1) * devices], share.share_steps
            )
            for i in range(n - 1, -1, -1)
        ]
    return [Share(share.group, share.node, 1, share.devices, share.share_steps // n)] * n


def without(running: Running, replicas: Sequence[Share]) -> Placing:
    """A placing without some of its replicas."""
    kept = []
    for share in running.placing:
        gone = [
            r
            for r in replicas
            if r.group == share.group
            and r.node == share.node
            and (not r.devices or set(r.devices) <= set(share.devices))
        ]
        if not gone:
            kept.append(share)
            continue
        left = share.n_replicas - len(gone)
        if left <= 0:
            continue
        if share.devices and gone[0].share_steps == share.share_steps:
            lost = {d for r in gone for d in r.devices}
            devices = tuple(d for d in share.devices if d not in lost)
            kept.append(Share(share.group, share.node, left, devices, share.share_steps))
        else:
            steps = share.share_steps * left // share.n_replicas if share.devices else share.share_steps
            kept.append(Share(share.group, share.node, left, share.devices, steps))
    return tuple(kept)


class Sizer:
    """Gangs of other sizes; each shape and size is built once, since failures are remembered by identity."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, Sizes], Shape] = {}
        self._kept: list[Shape] = []  # what is known by its identity must not go away

    def at(self, gang: Gang, sizes: Sizes) -> Gang:
        """The gang as if these were its preferred sizes, and fixed; fewer replicas take longer for its work."""
        shape = gang.shape
        if not gang.is_elastic and sizes == preferred_sizes(gang):
            return gang
        key = (id(shape), sizes)
        if key not in self._shapes:
            asks = tuple(
                replace(ask, n_replicas=n, n_min=None, n_max=None)
                for ask, n in zip(shape.asks, sizes, strict=True)
            )
            self._shapes[key] = replace(shape, asks=asks)
            self._kept.append(shape)
        rate = relative_rate(gang, sizes)
        return replace(gang, shape=self._shapes[key], work_s=gang.work_s / rate if rate else gang.work_s)

    def alone(self, ask: Ask, n: int) -> Ask:
        """One group's ask at a fixed number of replicas."""
        return replace(ask, n_replicas=n, n_min=None, n_max=None)

    def with_shape(self, gang: Gang, shape: Shape) -> Gang:
        """The gang with another shape, which stays known as long as the pass."""
        self._kept.append(shape)
        return replace(gang, shape=shape)

    def insisting(self, gang: Gang) -> Gang:
        """The gang as if the domain that it prefers were required, where it is willing to wait for that."""
        key = (id(gang.shape), ())
        if key not in self._shapes:
            asks = tuple(
                replace(ask, required=ask.preferred, preferred=None)
                if ask.preferred and ask.max_wait_s
                else ask
                for ask in gang.shape.asks
            )
            self._shapes[key] = replace(gang.shape, asks=asks)
            self._kept.append(gang.shape)
        return replace(gang, shape=self._shapes[key])

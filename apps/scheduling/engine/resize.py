"""Sizes of running elastic jobs: into what is left over when all that waits was looked at, and within new bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from apps.scheduling.engine.facts import BoolArray, IntArray, Placing, Resize, Running, Shape, Share
from apps.scheduling.engine.forecast import probable_end_s
from apps.scheduling.engine.frame import LEVELS
from apps.scheduling.engine.placement import Found
from apps.scheduling.engine.sizes import (
    end_after,
    gains_time,
    may_resize,
    one_by_one,
    relative_rate,
    sizes_of,
    without,
)

if TYPE_CHECKING:
    from apps.scheduling.engine.planner import Pass

BACK_WITHIN_S: Final = 60.0  # between leaving at one size and starting at another


def grow(walk: Pass) -> None:
    """Give running elastic jobs more replicas, up to their most: those furthest below their preferred size first.

    Every rule holds at every instant until the job ends, promises to waiting jobs among them. A job that got its size
    less than the dwell time ago keeps it; so does one for which the change takes longer than it saves. A job whose
    bounds were changed meanwhile comes back into them as soon as there is room.
    """
    candidates: list[tuple[tuple[object, ...], Running]] = []
    capped = {change.job_id for change in walk.snapshot.cap_changes}
    for running in walk.snapshot.running:
        gang = running.gang
        if (
            not may_resize(gang, walk.policy)
            or running.cap < 1.0
            or running.is_leaving
            or gang.id in walk.gone
        ):
            continue
        if gang.id in capped:
            continue  # what it would draw under a cap to come, with more replicas, is for that plan to say
        sizes = sizes_of(gang, running.placing)
        pairs = list(zip(sizes, gang.shape.asks, strict=True))
        if any(n > ask.most for n, ask in pairs):
            _shrink_to_most(walk, running)
            continue
        if all(n >= ask.most for n, ask in pairs):
            continue
        is_too_small = any(n < ask.least for n, ask in pairs)
        ready_s = max(running.sized_s, running.started_s) + walk.policy.resize_dwell_s
        if ready_s > walk.now_s and not is_too_small:
            walk.boundary_s = min(walk.boundary_s, ready_s)
            continue
        candidates.append(
            (
                (
                    not is_too_small,
                    -gang.priority,
                    relative_rate(gang, sizes),
                    gang.submitted_s,
                    gang.sequence,
                ),
                running,
            )
        )
    for _, running in sorted(candidates, key=lambda c: c[0]):
        _grow_one(walk, running)


def _grow_one(walk: Pass, running: Running) -> None:
    gang, placing = running.gang, running.placing
    for g, ask in enumerate(gang.shape.asks):
        n = sum(share.n_replicas for share in placing if share.group == g)
        if n < ask.most:
            more = _more(walk, running, placing, g, ask.most - n, ask.least - n)
            if more is not None:
                placing = _merged(placing, more, g, bool(ask.share_steps))
    if placing == running.placing:
        return
    sizes = zip(sizes_of(gang, running.placing), sizes_of(gang, placing), gang.shape.asks, strict=True)
    wanted = [(before < ask.least, after >= ask.least) for before, after, ask in sizes]
    if not all(is_enough for _, is_enough in wanted):
        return
    ends_s = probable_end_s(running, walk.now_s, walk.snapshot.history_s)
    is_due = any(was_too_small for was_too_small, _ in wanted)
    if not is_due and not gains_time(running, placing, walk.now_s, ends_s):
        return  # more replicas would bring nothing, or less than the change takes
    if not _comes_back(walk, running, placing):
        return
    _carry_out(walk, running, placing)


def _comes_back(walk: Pass, running: Running, placing: Placing) -> bool:
    """Whether a job that leaves for another size could start again there, a little later than it left.

    Its limit counts running time alone, so that it ends later by the time between: what begins just when it was to
    end, such as a maintenance, would keep it from starting at all.
    """
    if not walk.policy.resizes_by_restart or running.ends_s == inf:
        return True
    gang, held = running.gang, walk.calendar.held[running.gang.id]
    within = np.zeros(walk.frame.n_nodes, dtype=bool)
    within[[share.node for share in placing]] = True
    sized = walk.sizer.at(gang, sizes_of(gang, placing))
    kind = int(walk.frame.kind[placing[0].node])
    lasts_s = max(running.ends_s - walk.now_s, 1.0) + BACK_WITHIN_S
    walk.calendar.lift([held])
    try:
        found = walk.fit(sized, kind, walk.calendar.now, lasts_s, named=True, within=within)
    finally:
        walk.calendar.lift([held], 1)
    return found is not None


def _shrink_to_most(walk: Pass, running: Running) -> None:
    """Take away what is above the most that a job may have by now: where it has fewest, or too many in one domain."""
    gang, placing = running.gang, running.placing
    for g, ask in enumerate(gang.shape.asks):
        while (n := sizes_of(gang, placing)[g]) > ask.most:
            there = [share for share in placing if share.group == g]
            in_domain: Counter[int] = Counter()
            if ask.spread is not None:
                for share in there:
                    in_domain[_domain_of(walk, ask.spread.over, share)] += share.n_replicas
            where = [in_domain[_domain_of(walk, ask.spread.over, s)] if ask.spread else 0 for s in there]
            _, share = min(
                zip(where, there, strict=True), key=lambda one: (-one[0], one[1].n_replicas, -one[1].node)
            )
            n_gone = 1 if ask.spread is not None else min(n - ask.most, share.n_replicas)
            gone = one_by_one(share, ask.devices)[:n_gone]
            placing = without(replace(running, placing=placing), gone)
    _carry_out(walk, running, placing)


def _domain_of(walk: Pass, level: str, share: Share) -> int:
    return int(walk.frame.level[level][share.node])


def _carry_out(walk: Pass, running: Running, placing: Placing) -> None:
    gang = running.gang
    end_s = end_after(running, placing, walk.now_s)
    walk.calendar.hold_instead(gang, placing, end_s)
    walk.resizes.append(Resize(gang.id, placing, None, end_s))
    walk.gone.add(gang.id)
    walk.send(gang, {share.node for share in placing})


def _more(walk: Pass, running: Running, placing: Placing, g: int, room: int, missing: int) -> Found | None:
    """The largest number of further replicas of a group that has a place, near those that run; all that are missing."""
    gang = running.gang
    nodes = np.array(sorted({share.node for share in placing}), dtype=np.int64)
    mine = [share.node for share in placing if share.group == g] or nodes.tolist()
    kind = int(walk.frame.kind[mine[0]])
    ask = gang.shape.asks[g]
    already = walk.replicas(placing, g)
    duration_s = inf if running.ends_s == inf else max(running.ends_s, walk.now_s + 1.0) - walk.now_s
    cluster = int(walk.frame.cluster[mine[0]])
    same_cluster = walk.frame.cluster == cluster
    for within in _nearest_first(walk, nodes, ask.required):
        low, high, best = max(0, missing - 1), room, None
        while low < high:
            middle = (low + high + 1) // 2
            one = Shape(
                (walk.sizer.alone(ask, middle),),
                cluster=gang.shape.cluster,
                reservation=gang.shape.reservation,
            )
            found = walk.fit(
                walk.sizer.with_shape(gang, one),
                kind,
                walk.calendar.now,
                duration_s,
                named=True,
                within=within & same_cluster,
                already=already,
            )
            if found is None:
                high = middle - 1
            else:
                low, best = middle, found
        if best is not None:
            return best
    return None


def _nearest_first(walk: Pass, nodes: IntArray, required: str | None) -> list[BoolArray]:
    """Nodes in the narrowest domain that holds all of the job, then in the next wider; as far as it may go."""
    masks: list[BoolArray] = []
    for level in LEVELS:
        ids = walk.frame.level[level]
        mine = np.unique(ids[nodes])
        if len(mine) == 1:
            masks.append(ids == mine[0])
        if required == level:
            return masks[-1:] if len(mine) == 1 else []
    return [*masks, np.ones(walk.frame.n_nodes, dtype=bool)]


def _merged(placing: Placing, more: Found, g: int, is_fraction: bool) -> Placing:
    """A placing with further replicas of group g; whole devices of one node make one share."""
    extra = [Share(g, s.node, s.n_replicas, s.devices, s.share_steps) for s in more.placing]
    grouped: dict[tuple[int, int], list[Share]] = defaultdict(list)
    for share in (*placing, *extra):
        grouped[share.group, share.node].append(share)
    merged: list[Share] = []
    for (group, node), shares in grouped.items():
        if is_fraction:
            others: dict[tuple[int, int, tuple[int, ...]], Share] = {}
            for s in shares:
                key = (group, node, s.devices)
                before = others.get(key)
                others[key] = (
                    s
                    if before is None
                    else Share(
                        group,
                        node,
                        before.n_replicas + s.n_replicas,
                        s.devices,
                        before.share_steps + s.share_steps,
                    )
                )
            merged.extend(others.values())
            continue
        devices = tuple(sorted(d for s in shares for d in s.devices))
        merged.append(Share(group, node, sum(s.n_replicas for s in shares), devices, shares[0].share_steps))
    return tuple(sorted(merged, key=lambda s: (s.group, s.node, s.devices)))

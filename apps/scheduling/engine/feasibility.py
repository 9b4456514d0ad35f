"""Could the empty facility hold a job at all? Said at submission, with the proof."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from apps.scheduling.engine.caps import caps_of, under_cap
from apps.scheduling.engine.explain import _devices, _watts, spread_words
from apps.scheduling.engine.facts import NONE, Facility, Gang, Impossible, Policy, Snapshot, Team
from apps.scheduling.engine.placement import total_steps
from apps.scheduling.engine.planner import Pass
from apps.scheduling.engine.rules import ALL
from apps.scheduling.engine.units import FULL


def prove_impossible(facility: Facility, teams: Sequence[Team], gang: Gang) -> Impossible | None:
    """Why even the empty, healthy facility cannot hold this job; None if it can.

    Quota is no reason: what only a quota forbids waits, since quotas change.
    """
    del teams
    n = facility.n_nodes
    alone = replace(gang, team=NONE, datasets=(), shape=replace(gang.shape, reservation=NONE))
    snapshot = Snapshot(
        0.0, facility, np.ones(n, dtype=bool), np.zeros(n, dtype=bool), quota_is_checked=False
    )
    walk = Pass(snapshot, Policy(explain=False))
    alone = walk.least(alone)

    def fits(**left_out: bool) -> bool:
        rules = replace(ALL, **left_out)
        return any(
            walk.fit(alone, kind, walk.calendar.now, inf, rules=rules, named=False) is not None
            for kind in walk.kinds(alone.shape)
        )

    if n and fits():
        return None
    for kind in walk.kinds(alone.shape) if n else ():
        if steps := caps_of(alone, walk.frame.kinds[kind]):
            capped = under_cap(alone, walk.frame.kinds[kind], steps[-1][0])
            if walk.fit(walk.least(capped), kind, walk.calendar.now, inf, named=False) is not None:
                return None
    return _proof(
        walk,
        alone,
        power=n > 0 and fits(power=False),
        topology=n > 0 and fits(topology=False),
        spread=n > 0 and fits(spread=False),
    )


def _proof(walk: Pass, gang: Gang, *, power: bool, topology: bool, spread: bool) -> Impossible:
    frame, kinds = walk.frame, walk.kinds(gang.shape)
    ask = max(gang.shape.asks, key=lambda a: (a.devices, a.share_steps, a.n_replicas))
    mask = np.zeros(frame.n_nodes, dtype=bool)
    for kind in kinds:
        mask |= frame.kind_mask[kind]
    mask &= walk.may_use(gang)
    capacity = int(frame.n_devices[mask].sum())
    need = total_steps(gang.shape)
    names = (
        " or ".join(frame.kinds[k].name for k in kinds[:3])
        if len(kinds) < len(frame.kinds) or len(kinds) == 1
        else "devices"
    )
    where = "the facility" if gang.shape.cluster == NONE else "its cluster"
    facts: dict[str, Any] = {"asked": _devices(need), "capacity": capacity, "accelerator": names}
    if not kinds:
        # Which of both shut the last type out cannot be told here; the caller knows what was asked for.
        facts["field"] = "accelerators"
        return Impossible("resources", "no accelerator type here has what it asks for", facts)
    facts["field"] = "devices" if ask.n_replicas == 1 else "replicas"
    if need > capacity * FULL:
        return Impossible("resources", f"asks {_devices(need)} {names}, {where} has {capacity}", facts)
    most = int(frame.n_devices[mask].max(initial=0))
    if ask.devices > most:
        facts["field"] = "devices"
        return Impossible(
            "resources", f"asks {ask.devices} {names} on one node, the largest node has {most}", facts
        )
    if power:
        facts["field"] = "replicas" if ask.peak_w is None else "peak_w"
        need_w = frame.draw(ask.devices, ask.share_steps, kinds[0], ask.peak_w) * ask.n_replicas / 1e6
        return Impossible(
            "power",
            f"needs {_watts(need_w)} above idle, more than the power limits above its nodes ever leave",
            facts,
        )
    if topology:
        facts["field"] = "topology"
        level = next(a.required for a in gang.shape.asks if a.required is not None) or ""
        room = np.where(mask & frame.has_level[level], frame.n_devices // max(ask.devices, 1), 0)
        best = int(np.bincount(frame.level[level], weights=room).max(initial=0))
        word = level.replace("_", "-")
        return Impossible(
            "topology",
            f"asks {ask.n_replicas} replicas within one {word}, the largest {word} holds {best}",
            facts,
        )
    if spread:
        facts["field"] = "spread"
        rule = next(a.spread for a in gang.shape.asks if a.spread is not None)
        ids = frame.domain_ids(rule.over)
        n_domains = len(np.unique(ids[mask & (ids != NONE)]))
        facts |= {"over": rule.over, "domains": n_domains}
        return Impossible(
            "spread",
            f"asks {ask.n_replicas} replicas with {spread_words(rule)}; {n_domains} such domains could hold one",
            facts,
        )
    cpus = float(np.where(np.isinf(walk.frame.cpu), inf, walk.frame.cpu)[mask].max(initial=0)) / 1e6
    most_cpus = max(gang.shape.asks, key=lambda a: a.cpus)
    most_memory = max(gang.shape.asks, key=lambda a: a.memory_gib)
    if most_cpus.cpus > cpus:
        facts = {"field": "cpus", "asked": most_cpus.cpus, "capacity": cpus}
        return Impossible(
            "resources", f"asks {most_cpus.cpus:g} cpus on one node, the largest node has {cpus:g}", facts
        )
    memory = float(walk.frame.mem[mask].max(initial=0)) / 1e6
    if most_memory.memory_gib > memory:
        facts = {"field": "memory_gib", "asked": most_memory.memory_gib, "capacity": memory}
        return Impossible(
            "resources",
            f"asks {most_memory.memory_gib:g} GiB on one node, the largest node has {memory:g}",
            facts,
        )
    return Impossible(
        "resources",
        f"asks {ask.n_replicas} replicas that the empty nodes of {where} cannot hold together",
        facts,
    )

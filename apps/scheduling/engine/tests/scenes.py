"""Small random scenes and builders for engine tests."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st

from apps.scheduling.engine.facts import (
    NONE,
    Ask,
    Booking,
    CapChange,
    Domain,
    Facility,
    Gang,
    Kind,
    LimitChange,
    Member,
    Running,
    Saving,
    Shape,
    Share,
    Snapshot,
    Team,
)


def _ints(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


def facility(
    *,
    leaves: list[list[int]] | None = None,
    devices: int = 8,
    kinds: tuple[Kind, ...] = (Kind(1, "H100", 80.0, 700.0, 100.0),),
    node_kinds: list[int] | None = None,
    cpus: float = inf,
    limits_w: dict[str, float] | None = None,
    speeds: list[float] | None = None,
) -> Facility:
    """A spine with leaves; `leaves[i]` lists the rack of each node of leaf i. Racks hang in one hall."""
    leaves = leaves or [[0, 0], [1, 1]]
    n_racks = max(r for leaf in leaves for r in leaf) + 1
    limits = limits_w or {}
    domains = [Domain(1, "spine", "spine"), Domain(2, "hall", "hall", NONE, limits.get("hall", inf))]
    domains += [Domain(10 + i, f"leaf{i}", "leaf", 0) for i in range(len(leaves))]
    domains += [Domain(100 + r, f"rack{r}", "rack", 1, limits.get(f"rack{r}", inf)) for r in range(n_racks)]
    leaf_of = [2 + i for i, leaf in enumerate(leaves) for _ in leaf]
    rack_of = [2 + len(leaves) + r for leaf in leaves for r in leaf]
    n = len(leaf_of)
    return Facility(
        kinds,
        tuple(domains),
        _ints(list(range(1, n + 1))),
        tuple(f"n{i}" for i in range(n)),
        _ints(node_kinds or [0] * n),
        _ints([devices] * n),
        np.full(n, cpus),
        np.full(n, inf),
        _ints([NONE] * n),
        _ints(leaf_of),
        _ints(rack_of),
        _ints([NONE] * n),
        _ints([NONE] * n),
        np.zeros(n),
        np.array(speeds or [1.0] * n),
        _ints([0] * n),
    )


def gang(id: int = 1, replicas: int = 1, devices: int = 1, *, limit_s: float = 100.0, **more: Any) -> Gang:
    """A job; fields of Ask and of Gang are told apart by name."""
    ask_fields = ("share_steps", "cpus", "memory_gib", "required", "preferred", "peak_w", "kinds")
    ask = {key: more.pop(key) for key in ask_fields if key in more}
    ask.setdefault("kinds", (0,))
    shape_fields = {key: more.pop(key) for key in ("cluster", "reservation") if key in more}
    shape = Shape((Ask(n_replicas=replicas, devices=devices, **ask),), **shape_fields)
    return Gang(id, f"job{id}", shape, sequence=id, limit_s=limit_s, **more)


def snapshot(where: Facility, *queue: Gang, running: tuple[Running, ...] = (), **more: Any) -> Snapshot:
    n = where.n_nodes
    more.setdefault("is_usable", np.ones(n, dtype=bool))
    more.setdefault("is_failed", np.zeros(n, dtype=bool))
    more.setdefault("now_s", 0.0)
    return Snapshot(facility=where, queue=queue, running=running, **more)


def holds(job: Gang, *shares: tuple[int, tuple[int, ...]], ends_s: float = 50.0) -> Running:
    """A running job of one group that holds these devices of these nodes."""
    ask = job.shape.asks[0]
    per = max(ask.devices, 1)
    return Running(
        job, tuple(Share(0, node, len(devices) // per, devices) for node, devices in shares), -10.0, ends_s
    )


@st.composite
def scenes(draw: st.DrawFn, *, with_running: bool = True) -> Snapshot:
    """Facilities of up to 8 nodes with limits, two kinds, teams, bookings, fractions, gangs, ill nodes."""
    n_leaves = draw(st.integers(1, 3))
    leaves = [draw(st.lists(st.integers(0, 2), min_size=1, max_size=3)) for _ in range(n_leaves)]
    n = sum(len(leaf) for leaf in leaves)
    devices = draw(st.sampled_from([1, 2, 4]))
    kinds = (
        Kind(1, "A", 40.0, 400.0, 40.0, 1.0, draw(st.sampled_from([(), ((0.75, 0.9), (0.5, 0.63))]))),
        Kind(2, "B", 80.0, 700.0, 70.0, draw(st.sampled_from([1.0, 2.0]))),
    )
    limits = draw(
        st.dictionaries(
            st.sampled_from(["hall", "rack0", "rack1"]), st.sampled_from([1000.0, 2500.0, 6000.0]), max_size=2
        )
    )
    where = facility(
        leaves=leaves,
        devices=devices,
        kinds=kinds,
        node_kinds=draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)),
        cpus=draw(st.sampled_from([inf, 4.0, 8.0])),
        limits_w=limits,
        speeds=draw(st.lists(st.sampled_from([1.0, 1.0, 0.5]), min_size=n, max_size=n)),
    )
    teams = draw(st.sampled_from([(), _TEAMS, _DEEP]))
    members = draw(_members(len(teams)))
    bookings = draw(st.lists(_booking(n, len(teams)), max_size=2))
    queue = [draw(_gang(i, len(teams), len(bookings))) for i in range(1, draw(st.integers(1, 10)) + 1)]
    usable = np.array(draw(st.lists(st.sampled_from([True, True, True, False]), min_size=n, max_size=n)))
    scene = snapshot(
        where,
        *queue,
        is_usable=usable,
        is_failed=~usable,
        teams=teams,
        members=members,
        bookings=tuple(bookings),
        quota_is_checked=bool(teams),
        limit_changes=tuple(draw(st.lists(_limit_change(where), max_size=3))),
    )
    if not with_running:
        return scene
    return _after_a_pass(draw, scene)


def _after_a_pass(draw: st.DrawFn, scene: Snapshot) -> Snapshot:
    """What the planner itself started becomes what runs; later work comes on top."""
    from apps.scheduling.engine.facts import Policy
    from apps.scheduling.engine.planner import plan

    first = plan(scene, Policy(explain=False))
    gangs = {g.id: g for g in scene.queue}
    now_s = draw(st.sampled_from([0.0, 5.0, 30.0]))
    running = tuple(
        Running(gangs[s.job_id], s.placing, 0.0, s.expected_end_s, s.cap)
        for s in first.starts
        if s.expected_end_s > now_s
    )
    started = {s.job_id for s in first.starts}
    rest = [g for g in scene.queue if g.id not in started]
    n_new = draw(st.integers(0, 6))
    rest += [draw(_gang(100 + i, len(scene.teams), len(scene.bookings))) for i in range(n_new)]
    changes: list[CapChange] = []
    for one in running[: draw(st.integers(0, 2))]:
        changes.append(CapChange(draw(st.sampled_from([8.0, 40.0])), one.gang.id, draw(_CAPS)))
        if draw(st.booleans()):
            changes.append(CapChange(90.0, one.gang.id, draw(_CAPS)))
    held_down = {change.job_id for change in changes} if draw(st.booleans()) else set()
    running = tuple(replace(one, cap=0.5) if one.gang.id in held_down else one for one in running)
    limits = tuple(change for change in scene.limit_changes if change.at_s > now_s)
    return replace(
        scene,
        now_s=now_s,
        running=running,
        queue=tuple(rest),
        limit_changes=limits,
        cap_changes=tuple(change for change in changes if change.at_s > now_s),
    )


@st.composite
def elastic_scenes(draw: st.DrawFn) -> Snapshot:
    """Scenes in which jobs of several priorities may have another size than they ask for, or have."""
    scene = draw(scenes())

    def changed(job: Gang) -> Gang:
        job = replace(job, priority=draw(st.sampled_from([0, 0, 3, 5])))
        ask = job.shape.asks[0]
        if draw(st.booleans()):
            return job
        least, most = draw(st.integers(1, ask.n_replicas)), ask.n_replicas + draw(st.integers(0, 3))
        preferred = draw(st.integers(least, most))
        return replace(
            job, shape=replace(job.shape, asks=(replace(ask, n_replicas=preferred, n_min=least, n_max=most),))
        )

    queue = tuple(replace(changed(job), work_s=draw(_WORK_S)) for job in scene.queue)
    running = tuple(
        replace(one, gang=replace(changed(one.gang), work_s=draw(_WORK_S))) for one in scene.running
    )
    scene = replace(scene, queue=queue, running=running)
    if draw(st.booleans()):
        # Most of what runs is to be slowed, or to come back, and some of it is preempted by what waits.
        turns = [
            CapChange(at_s, one.gang.id, draw(_CAPS))
            for one in running
            for at_s in draw(st.sampled_from([(), (8.0,), (40.0,), (40.0, 90.0)]))
        ]
        scene = replace(
            scene,
            cap_changes=tuple(turn for turn in turns if turn.at_s > scene.now_s),
            queue=tuple(replace(job, priority=job.priority + draw(st.sampled_from([0, 4]))) for job in queue),
            limit_changes=(*scene.limit_changes, *draw(st.lists(_limit_change(scene.facility), max_size=2))),
        )
    if draw(st.integers(0, 2)) == 0:
        lowered = draw(st.sampled_from([500.0, 1000.0, 2500.0]))
        domains = tuple(
            replace(domain, limit_w=min(domain.limit_w, lowered)) if domain.kind == "hall" else domain
            for domain in scene.facility.domains
        )
        scene = replace(scene, facility=replace(scene.facility, domains=domains))
    return scene


_WORK_S = st.sampled_from([inf, inf, 20.0, 90.0])
_CAPS = st.sampled_from([0.0, 0.5, 0.75, 1.0])


@st.composite
def _limit_change(draw: st.DrawFn, where: Facility) -> LimitChange:
    """Of any domain through which power flows, whether or not it has a limit now."""
    domains = [i for i, domain in enumerate(where.domains) if domain.kind in ("hall", "rack")]
    at_s, limit_w = draw(st.sampled_from([3.0, 8.0, 40.0, 100.0])), draw(st.sampled_from(_LATER_W))
    return LimitChange(at_s, draw(st.sampled_from(domains)), limit_w, draw(st.booleans()))


_LATER_W = [500.0, 1000.0, 2500.0, 6000.0, inf]


_TEAMS = (
    Team(1, "root"),
    Team(2, "a", 0, 1.0, {0: 4, 1: 2}, {0: 2}, {}),
    Team(3, "b", 0, 2.0, {0: 2, 1: 4}, {}, {1: 1}, {0: 50.0}),
)
_DEEP = (
    Team(1, "root", NONE, 1.0, {0: 2}),
    Team(2, "left", 0, 1.0, {0: 2}, {0: 1}, {0: 1}),
    Team(3, "a", 1, 1.0, {0: 2}),
    Team(4, "b", 0, 1.0, {0: 1}, {}, {0: 0}, {0: 20.0}),
)


@st.composite
def _members(draw: st.DrawFn, n_teams: int) -> tuple[Member, ...]:
    """Limits of some members; user 3 is nobody's."""
    if not n_teams:
        return ()
    pairs = draw(st.lists(st.tuples(st.integers(1, n_teams - 1), st.integers(1, 3)), max_size=4, unique=True))
    return tuple(
        Member(
            team,
            user,
            f"user{user}",
            draw(st.dictionaries(st.integers(0, 1), st.integers(0, 6), max_size=2)),
            draw(st.sampled_from([None, None, 0, 1, 2])),
            draw(st.booleans()),
        )
        for team, user in pairs
    )


@st.composite
def _booking(draw: st.DrawFn, n_nodes: int, n_teams: int) -> Booking:
    start_s = draw(st.sampled_from([-5.0, 10.0, 60.0]))
    end_s = start_s + draw(st.sampled_from([20.0, 100.0]))
    teams = frozenset(draw(st.lists(st.integers(1, n_teams - 1), max_size=1))) if n_teams else frozenset()
    flexible = draw(st.booleans())
    if draw(st.booleans()):
        nodes = tuple(draw(st.lists(st.integers(0, n_nodes - 1), min_size=1, max_size=2, unique=True)))
        return Booking(1, "booking", start_s, end_s, nodes, teams=teams, is_flexible=flexible)
    amount = draw(st.integers(1, 4))
    within = draw(st.sampled_from([None, "leaf"]))
    return Booking(1, "booking", start_s, end_s, (), draw(st.integers(0, 1)), amount, within, teams, flexible)


@st.composite
def _gang(draw: st.DrawFn, id: int, n_teams: int, n_bookings: int) -> Gang:
    fraction = draw(st.sampled_from([0, 0, 0, 250_000, 333_333, 500_000]))
    return gang(
        id,
        draw(st.integers(1, 4)),
        0 if fraction else draw(st.sampled_from([0, 1, 1, 2, 4])),
        share_steps=fraction,
        limit_s=draw(st.sampled_from([5.0, 10.0, 50.0, 200.0, inf])),
        cpus=draw(st.sampled_from([0.0, 0.0, 1.0, 3.0])),
        kinds=draw(st.sampled_from([(0,), (1,), (0, 1), (1, 0)])),
        required=draw(st.sampled_from([None, None, "leaf", "scale_up"])),
        peak_w=draw(st.sampled_from([None, 300.0])),
        team=draw(st.integers(1, n_teams - 1)) if n_teams else NONE,
        user=draw(st.integers(1, 2)),
        priority=draw(st.sampled_from([0, 0, 5])),
        submitted_s=draw(st.sampled_from([-3.0, -2.0, -1.0])),
        is_held=draw(st.sampled_from([False] * 9 + [True])),
        tier=draw(st.sampled_from([0, 0, 0, 2, 4])),
        saving=draw(st.sampled_from([None, Saving(10.0, 1.0)])),
        reservation=draw(st.sampled_from([NONE] * 6 + list(range(n_bookings)))),
    )

"""Advice to move running jobs so that a waiting gang starts."""

from dataclasses import replace
from itertools import combinations, product
from math import inf
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from apps.scheduling.engine.checker import check
from apps.scheduling.engine.defragment import Proposal, propose
from apps.scheduling.engine.facts import (
    Plan,
    Policy,
    Reserve,
    Running,
    Saving,
    Snapshot,
    Spread,
    Start,
    Team,
)
from apps.scheduling.engine.planner import plan
from apps.scheduling.engine.tests.scenes import facility, gang, holds, scenes, snapshot
from apps.scheduling.engine.tests.test_invariants import SCENES

SAVING = Saving(interval_s=600.0, cost_s=5.0, restart_s=15.0)
POLICY = Policy()


def runs(
    id: int, *shares: tuple[int, tuple[int, ...]], devices: int = 1, ran_s: float = 100.0, **more: Any
) -> Running:
    """A job that keeps checkpoints, has run so long at 0, and runs on for two hours."""
    ends_s = more.pop("ends_s", 7200.0)
    more.setdefault("saving", SAVING)
    more.setdefault("limit_s", ends_s + ran_s)
    replicas = sum(len(held) for _, held in shares) // devices
    running = holds(gang(id, replicas, devices, **more), *shares, ends_s=ends_s)
    return replace(running, started_s=-ran_s)


def whole_node(**more: Any) -> Any:
    """It asks for all eight devices of a node, for an hour."""
    return gang(1, devices=8, limit_s=3600.0, **more)


def halves(**more: Any) -> Snapshot:
    """Two nodes of eight, half of each held; a job that waits for a whole one."""
    return snapshot(
        facility(leaves=[[0, 0]]),
        whole_node(),
        running=(runs(11, (0, (0, 1, 2, 3)), devices=4), runs(12, (1, (0, 1, 2, 3)), devices=4, ran_s=40.0)),
        **more,
    )


def test_the_job_that_loses_least_moves_to_the_other_half() -> None:
    (proposal,) = propose(halves(), POLICY)

    (move,) = proposal.moves
    assert (proposal.job_id, move.job_id) == (1, 12)
    assert [(s.node, s.devices) for s in proposal.placing] == [(1, (0, 1, 2, 3, 4, 5, 6, 7))]
    assert [(s.node, s.devices) for s in move.after] == [(0, (4, 5, 6, 7))]
    assert (move.checkpoint_s, move.restart_s, move.lost_s) == (5.0, 15.0, 40.0)
    assert proposal.cost_device_s == 4 * (5 + 15 + 40)
    # It would start when the first of the two ends; it starts when the checkpoint is written.
    assert (proposal.otherwise_s, proposal.starts_s) == (7200.0, 5.0)
    assert proposal.gain_device_s == 8 * (7200 - 5)


def test_what_a_job_told_of_its_last_checkpoint_counts_before_what_it_declared() -> None:
    scene = halves()
    told = (replace(scene.running[0], at_risk_s=3.0), scene.running[1])

    (proposal,) = propose(replace(scene, running=told), POLICY)

    assert [(move.job_id, move.lost_s) for move in proposal.moves] == [(11, 3.0)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"saving": None}, id="it keeps no checkpoints"),
        pytest.param({"preemptible": False}, id="it is not to be disturbed"),
        pytest.param({"priority": 1}, id="its priority is higher"),
        pytest.param({"n_evictions": 5}, id="it was disturbed often enough"),
    ],
)
def test_who_is_protected_does_not_move(change: dict[str, Any]) -> None:
    scene = halves()
    running = tuple(replace(r, gang=replace(r.gang, **change)) for r in scene.running)

    assert propose(replace(scene, running=running), POLICY) == ()


def test_a_young_job_does_not_move() -> None:
    assert [m.job_id for p in propose(halves(), Policy(shield_s=60.0)) for m in p.moves] == [11]
    assert propose(halves(), Policy(shield_s=200.0)) == ()


def test_a_job_that_leaves_already_does_not_move() -> None:
    scene = halves()
    leaving = tuple(replace(r, is_leaving=True) for r in scene.running)

    assert propose(replace(scene, running=leaving), POLICY) == ()


def test_nothing_moves_where_waiting_costs_less() -> None:
    # The node is free in 10 s: 5 s earlier, on 8 devices, is less than a move costs.
    soon = tuple(replace(r, ends_s=10.0) for r in halves().running)

    assert propose(replace(halves(), running=soon), POLICY) == ()


def test_too_few_free_devices_are_no_matter_of_shape() -> None:
    third = runs(13, (0, (4,)))

    assert propose(replace(halves(), running=(*halves().running, third)), POLICY) == ()


def test_a_quota_that_does_not_allow_it_is_not_helped_by_moving() -> None:
    scene = halves(teams=(Team(1, "root"), Team(2, "a", 0, 1.0, {0: 15})), quota_is_checked=True)
    scene = replace(
        scene,
        queue=tuple(replace(g, team=1) for g in scene.queue),
        running=tuple(replace(r, gang=replace(r.gang, team=1)) for r in scene.running),
    )
    assert propose(scene, POLICY) == ()

    roomy = (scene.teams[0], replace(scene.teams[1], entitlement={0: 16}))
    assert len(propose(replace(scene, teams=roomy), POLICY)) == 1


def test_where_nobody_can_tell_when_it_would_start_every_price_is_worth_it() -> None:
    endless = tuple(replace(r, ends_s=inf, gang=replace(r.gang, limit_s=inf)) for r in halves().running)

    (proposal,) = propose(replace(halves(), running=endless), POLICY)

    assert proposal.gain_device_s == inf


def two_leaves(*queue: Any, where: Any = None, **more: Any) -> Snapshot:
    """Two leaves of two nodes; one node of each is held by a job."""
    where = where or facility(leaves=[[0, 0], [1, 1]])
    held = tuple(range(8))
    return snapshot(
        where,
        *queue,
        running=(runs(11, (0, held), devices=8), runs(12, (2, held), devices=8, ran_s=40.0)),
        **more,
    )


def test_a_leaf_is_made_free_for_a_gang_that_must_lie_in_one() -> None:
    (proposal,) = propose(two_leaves(gang(1, 2, 8, limit_s=3600.0, required="leaf")), POLICY)

    assert {share.node for share in proposal.placing} == {2, 3}
    assert [(m.job_id, [s.node for s in m.after]) for m in proposal.moves] == [(12, [1])]


@pytest.mark.parametrize(("busy_nodes", "leavers"), [(1, []), (2, [12])])
def test_one_that_moves_keeps_within_the_watts_of_where_it_goes(busy_nodes: int, leavers: list[int]) -> None:
    limit_w = 16 * 100.0 + busy_nodes * 8 * 600.0
    where = facility(leaves=[[0, 0], [1, 1]], limits_w={"rack0": limit_w})
    scene = two_leaves(gang(1, 2, 8, limit_s=3600.0, required="leaf"), where=where)

    assert [move.job_id for proposal in propose(scene, POLICY) for move in proposal.moves] == leavers


def test_one_that_moves_keeps_to_healthy_nodes_of_its_cluster() -> None:
    scene = two_leaves(gang(1, 2, 8, limit_s=3600.0, required="leaf"))
    usable = scene.is_usable.copy()
    usable[1] = False
    assert propose(replace(scene, is_usable=usable, is_failed=~usable), POLICY) == ()

    elsewhere = scene.facility.cluster.copy()
    elsewhere[1] = 7
    assert propose(replace(scene, facility=replace(scene.facility, cluster=elsewhere)), POLICY) == ()


def test_a_wish_that_has_come_true_is_not_given_up() -> None:
    # Job 11 lies in one leaf, as it prefers; elsewhere its halves would lie in two.
    where = facility(leaves=[[0, 0, 0], [1], [2]])
    held = tuple(range(8))
    for preferred, moves in ((None, 1), ("leaf", 0)):
        job = runs(11, (0, held), (1, held), devices=8, preferred=preferred)
        scene = snapshot(where, gang(1, 3, 8, limit_s=3600.0, required="leaf"), running=(job,))

        assert len(propose(scene, POLICY)) == moves


@pytest.mark.parametrize(("spread", "moves"), [(None, 1), (Spread("leaf", max_per_domain=1), 0)])
def test_replicas_that_must_lie_apart_still_do(spread: Spread | None, moves: int) -> None:
    # Job 11 has a replica in either leaf. Free are half of node 0, which is asked for whole, and halves of nodes 1, 2.
    where, low, high = facility(leaves=[[0, 0, 0], [1]]), (0, 1, 2, 3), (4, 5, 6, 7)
    apart = runs(11, (0, low), (3, low), devices=4)
    ask = replace(apart.gang.shape.asks[0], spread=spread)
    apart = replace(apart, gang=replace(apart.gang, shape=replace(apart.gang.shape, asks=(ask,))))
    stay = tuple(
        runs(12 + i, (node, held), devices=4, saving=None)
        for i, (node, held) in enumerate(((1, low), (2, low), (3, high)))
    )
    scene = snapshot(where, whole_node(), running=(apart, *stay))

    assert len(propose(scene, POLICY)) == moves


def test_what_is_kept_for_somebody_is_not_touched() -> None:
    # The free half of node 0 is kept for job 2, which waits for job 13 to leave node 2; half of node 1 is left.
    scene = halves()
    where = facility(leaves=[[0, 0, 0]])
    job = gang(2, 2, 4, limit_s=3600.0)
    leaving = replace(runs(13, (2, tuple(range(8))), devices=8), is_leaving=True)
    place = tuple(
        replace(scene.running[0].placing[0], node=node, devices=devices)
        for node, devices in ((0, (4, 5, 6, 7)), (2, (0, 1, 2, 3)))
    )
    both = replace(scene, facility=where, queue=(*scene.queue, job), running=(*scene.running, leaving))
    both = replace(both, is_usable=snapshot(where).is_usable, is_failed=~snapshot(where).is_usable)
    kept = replace(both, earmarks=(Reserve(2, 0.0, place),))

    assert len(propose(replace(kept, earmarks=(), queue=scene.queue), POLICY)) == 1
    assert propose(kept, POLICY) == ()


def test_the_place_to_which_a_job_moves_is_kept_while_it_still_leaves() -> None:
    # Job 12 leaves node 1 for the free half of node 0, within a quota that both of its places would not fit.
    scene = halves(teams=(Team(1, "root"), Team(2, "a", 0, 1.0, {0: 12})), quota_is_checked=True)
    stays, moves = (replace(r, gang=replace(r.gang, team=1)) for r in scene.running)
    new_place = tuple(replace(share, node=0, devices=(4, 5, 6, 7)) for share in moves.placing)
    small = gang(2, devices=4, limit_s=3600.0, team=1)
    here = replace(scene, queue=(small,), running=(stays, replace(moves, is_leaving=True)))
    kept = replace(here, earmarks=(Reserve(12, 0.0, new_place),))
    taken = {True: (0, (4, 5, 6, 7)), False: (1, (4, 5, 6, 7))}

    for now, is_free in ((here, True), (kept, False)):
        (start,) = plan(now, POLICY).starts
        assert check(now, plan(now, POLICY), POLICY) == ()
        assert (start.placing[0].node, start.placing[0].devices) == taken[is_free]
    # Once it has left it starts there.
    left = replace(kept, queue=(small, moves.gang), running=(stays,))
    starts = {start.job_id: start.placing for start in plan(left, POLICY).starts}
    assert starts[12] == new_place


def test_the_jobs_of_one_node_may_go_to_several_places() -> None:
    where = facility(leaves=[[0, 0, 0]])
    small = (runs(11, (0, (0, 1)), devices=2), runs(12, (0, (2, 3, 4)), devices=3))
    stays = (
        runs(13, (1, tuple(range(5))), devices=5, saving=None),
        runs(14, (2, tuple(range(6))), devices=6, saving=None),
    )
    scene = snapshot(where, whole_node(), running=(*small, *stays))

    (proposal,) = propose(scene, POLICY)

    assert [(m.job_id, [s.node for s in m.after]) for m in proposal.moves] == [(11, [2]), (12, [1])]


def test_of_equal_jobs_that_wait_only_the_first_is_advised_and_another_can_be_asked_for() -> None:
    scene = halves()
    first = scene.queue[0]
    second = replace(first, id=2, name="second", sequence=2)  # of the same shape
    both = replace(scene, queue=(first, second))

    assert [p.job_id for p in propose(both, POLICY)] == [1]
    assert [p.job_id for p in propose(both, POLICY, only={2})] == [2]


# -- any scene ---------------------------------------------------------------------------------------------------------


def faults_when_carried_out(scene: Snapshot, policy: Policy, proposal: Proposal) -> Any:
    """What the checker finds once the leavers are back in the queue and all of them start where it was proposed."""
    before = plan(scene, policy)
    moves = {move.job_id: move for move in proposal.moves}
    gangs = {g.id: g for g in scene.queue}
    leavers = []
    starts = list(before.starts)
    for r in scene.running:
        if r.gang.id in moves:
            left = (
                replace(r.gang, limit_s=max(r.ends_s - scene.now_s, 1.0)) if r.gang.limit_s != inf else r.gang
            )
            leavers.append(left)
            ends_s = inf if left.limit_s == inf else scene.now_s + left.limit_s
            after = moves[left.id].after
            starts.append(Start(left.id, after, int(scene.facility.kind[after[0].node]), ends_s))
    ends_s = scene.now_s + gangs[proposal.job_id].limit_s
    starts.append(Start(proposal.job_id, proposal.placing, proposal.kind, ends_s))
    stays = tuple(r for r in scene.running if r.gang.id not in moves)
    then = replace(scene, running=stays, queue=(*scene.queue, *leavers))
    reserves = tuple(r for r in before.reserves if r.job_id != proposal.job_id)
    decided = Plan(tuple(starts), (), reserves, before.evictions, before.resizes)
    return check(then, decided, policy)


@st.composite
def broken(draw: st.DrawFn) -> Snapshot:
    """A facility in pieces, with every rule that could forbid a move, and others that wait."""
    n, size = draw(st.integers(2, 6)), 4
    racks = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    cut = draw(st.integers(1, n))
    kinds = st.sampled_from([0.0, 0.0, 1.0, 2.0])
    priorities, teams = st.sampled_from([0, 0, 0, 5]), st.sampled_from([1, 2])
    # A device draws 600 W above its rest.
    watts = st.sampled_from([6_000.0, 9_000.0, 12_000.0])
    limits_w = draw(st.dictionaries(st.sampled_from(["hall", "rack0", "rack1"]), watts, max_size=1))
    where = facility(
        leaves=[leaf for leaf in (racks[:cut], racks[cut:]) if leaf],
        devices=size,
        cpus=draw(st.sampled_from([inf, 12.0])),
        limits_w=limits_w,
    )
    running, free = _broken(draw, n, size, cpus=kinds, priority=priorities, team=teams)
    wanted = _too_large(draw, free, size, cpus=draw(kinds), priority=draw(priorities), team=draw(teams))
    if draw(st.booleans()) and len(running) > 1:
        # Two that are as large become replicas of one.
        pairs = [
            (a, b)
            for a, b in combinations(running, 2)
            if a.gang.shape.asks[0].devices == b.gang.shape.asks[0].devices
        ]
        if pairs:
            one, other = draw(st.sampled_from(pairs))
            ask = replace(
                one.gang.shape.asks[0], n_replicas=2, required=draw(st.sampled_from([None, "leaf"]))
            )
            is_in_one = where.leaf[one.placing[0].node] == where.leaf[other.placing[0].node]
            ask = ask if is_in_one else replace(ask, required=None, spread=Spread("leaf", max_per_domain=1))
            both = replace(one.gang, shape=replace(one.gang.shape, asks=(ask,)))
            running = [r for r in running if r is not one and r is not other]
            running.append(replace(one, gang=both, placing=(*one.placing, *other.placing)))
    others = [
        gang(
            2 + i,
            draw(st.integers(1, n)),
            draw(st.integers(1, size)),
            limit_s=draw(st.sampled_from([50.0, 9000.0])),
            team=1,
        )
        for i in range(draw(st.integers(0, 2)))
    ]
    quota = draw(st.sampled_from([size * n, size * n - 2]))
    team = Team(1, "root"), Team(2, "a", 0, 1.0, {0: quota}), Team(3, "b", 0, 1.0, {0: size})
    # The others came first, and are promised what they cannot have yet.
    return snapshot(where, wanted, *others, running=tuple(running), teams=team, quota_is_checked=True)


@SCENES
@given(broken(), st.sampled_from([0, 1, 64, None]))
def test_a_proposal_that_is_carried_out_gives_a_legal_plan(scene: Snapshot, depth: int | None) -> None:
    policy = Policy(backfill_depth=depth, preemption=False)

    for proposal in propose(scene, policy):
        assert faults_when_carried_out(scene, policy, proposal) == ()
        assert proposal.gain_device_s > proposal.cost_device_s
        assert proposal.moves


@SCENES
@given(scenes())
def test_any_scene_is_looked_at_and_whatever_is_proposed_is_legal(scene: Snapshot) -> None:
    running = tuple(replace(r, gang=replace(r.gang, saving=Saving(30.0, 0.5, 1.0))) for r in scene.running)
    scene = replace(scene, running=running)

    for proposal in propose(scene, POLICY):
        assert faults_when_carried_out(scene, POLICY, proposal) == ()


# -- against every other set of moves ----------------------------------------------------------------------------------

SIZE = 4  # devices of a node


@st.composite
def pieces(draw: st.DrawFn) -> Snapshot:
    """Up to four nodes of four devices in two leaves, jobs of one node each, and a gang that is too large for any."""
    n = draw(st.integers(2, 4))
    leaves = draw(st.sampled_from([[[0] * n], [[0] * (n - 1), [1]]]))
    running, free = _broken(draw, n, SIZE)
    wanted = _too_large(draw, free, SIZE)
    return snapshot(facility(leaves=leaves, devices=SIZE), wanted, running=tuple(running))


def _broken(draw: st.DrawFn, n: int, size: int, **more: Any) -> tuple[list[Running], list[int]]:
    """Jobs on n nodes, some of which keep checkpoints; and how many devices of each node are free."""
    running, free = [], []
    for node in range(n):
        first = 0
        for devices in draw(st.sampled_from([(1,), (2,), (3,), (1, 1), (2, 1), (1, 1, 1), ()])):
            saving = draw(st.sampled_from([SAVING] * 5 + [None]))
            ran_s = draw(st.integers(0, 5)) * 10.0
            held = tuple(range(first, first + devices))
            extra = {name: draw(what) for name, what in more.items()}
            job = runs(10 + len(running), (node, held), devices=devices, ran_s=ran_s, saving=saving, **extra)
            running.append(replace(job, ends_s=10_000.0))
            first += devices
        free.append(size - first)
    return running, free


def _too_large(draw: st.DrawFn, free: list[int], size: int, **more: Any) -> Any:
    """A gang that asks for no more than is free in all, and for more than is free on one node."""
    replicas = draw(st.sampled_from([1, 1, 1, 2]))
    most = min(size, sum(free) // replicas)
    assume(max(free) < most or replicas > 1)
    devices = draw(st.integers(min(max(free) + 1, most) if replicas == 1 else 1, most))
    required = draw(st.sampled_from([None, "leaf"]))
    return gang(1, replicas, devices, limit_s=3600.0, required=required, **more)


def cheapest_by_trying_all(scene: Snapshot) -> float:
    """The price of the cheapest set for which places exist, by counting devices alone; inf: there is none."""
    wanted = scene.queue[0].shape.asks[0]
    n = scene.facility.n_nodes
    leaf = scene.facility.leaf.tolist()
    free = [SIZE] * n
    for r in scene.running:
        free[r.placing[0].node] -= len(r.placing[0].devices)

    def price(r: Running) -> float:
        return len(r.placing[0].devices) * (5.0 + 15.0 - r.started_s)

    able = [r for r in scene.running if r.gang.saving is not None]
    sets = [some for size in range(1, len(able) + 1) for some in combinations(able, size)]
    best = inf
    for leavers in sets:
        cost = sum(map(price, leavers))
        if cost >= best:
            continue
        freed = [0] * n
        for r in leavers:
            freed[r.placing[0].node] += len(r.placing[0].devices)
        for nodes in product(range(n), repeat=wanted.n_replicas):
            if wanted.required and len({leaf[node] for node in nodes}) > 1:
                continue
            asked = [wanted.devices * nodes.count(node) for node in range(n)]
            if any(asked[i] > free[i] + freed[i] for i in range(n)):
                continue
            # What is freed is taken first: nobody else may have it.
            left = [free[i] - max(0, asked[i] - freed[i]) for i in range(n)]
            if fits(left, [len(r.placing[0].devices) for r in leavers]):
                best = cost
                break
    return best


def fits(left: list[int], sizes: list[int]) -> bool:
    if not sizes:
        return True
    return any(
        left[i] >= sizes[0] and fits([*left[:i], left[i] - sizes[0], *left[i + 1 :]], sizes[1:])
        for i in range(len(left))
    )


@SCENES
@given(pieces())
def test_no_other_set_of_moves_costs_less(scene: Snapshot) -> None:
    decided = plan(scene, POLICY)
    assume(not decided.starts)
    otherwise_s = decided.waits[0].expected_start_s
    ask = scene.queue[0].shape.asks[0]
    free = scene.facility.n_nodes * SIZE - sum(len(r.placing[0].devices) for r in scene.running)
    gain = ask.devices * ask.n_replicas * (inf if otherwise_s is None else otherwise_s - 5.0)
    proposals = propose(scene, POLICY)

    cost = cheapest_by_trying_all(scene)
    if free < ask.devices * ask.n_replicas or cost >= gain:
        assert proposals == ()
    else:
        assert [p.cost_device_s for p in proposals] == [pytest.approx(cost)]
        assert faults_when_carried_out(scene, POLICY, proposals[0]) == ()


@SCENES
@given(pieces(), st.randoms())
def test_the_order_of_rows_and_the_names_change_no_proposal(scene: Snapshot, random: Any) -> None:
    running = [replace(r, gang=replace(r.gang, name=f"x{hash(r.gang.name) % 97}")) for r in scene.running]
    random.shuffle(running)

    assert propose(replace(scene, running=tuple(running)), POLICY) == propose(scene, POLICY)

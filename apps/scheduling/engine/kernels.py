"""The hot loops, compiled. Plain functions over arrays: what they mean is said where they are called from.

Compiled once and kept on disk beside this file, so only the first run on a machine waits for the compiler.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numpy as np
from numba import njit

from apps.scheduling.engine.facts import BoolArray, FloatArray, IntArray
from apps.scheduling.engine.units import FULL

P = ParamSpec("P")
R = TypeVar("R")


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    return cast("Callable[P, R]", njit(cache=True, nogil=True)(function))


@_compile
def charge_quota(use: IntArray, team: int, kind: int, steps: int, parents: IntArray, kept: IntArray) -> None:
    """Add to the use (t, k) of a team; what exceeds the part it keeps for itself is used in its parent."""
    while team >= 0 and steps != 0:
        before = max(0, use[team, kind] - kept[team, kind])
        use[team, kind] += steps
        steps = max(0, use[team, kind] - kept[team, kind]) - before
        team = parents[team]


@_compile
def charge_state(
    whole: IntArray,
    dev: IntArray,
    cpu: IntArray,
    mem: IntArray,
    head: IntArray,
    nodes: IntArray,
    unnamed: IntArray,
    cpus: IntArray,
    mems: IntArray,
    draw: IntArray,
    devices: IntArray,
    taken: IntArray,
    node_of_device: IntArray,
    paths: IntArray,
    use: IntArray,
    team: int,
    quota_kinds: IntArray,
    quota_steps: IntArray,
    parents: IntArray,
    kept: IntArray,
    sign: int,
) -> None:
    """Take (sign 1) or give back (sign -1) one placing."""
    if team >= 0 and len(parents) > 0:
        for q in range(len(quota_kinds)):
            charge_quota(use, team, quota_kinds[q], sign * quota_steps[q], parents, kept)
    for i in range(len(devices)):
        device = devices[i]
        before = dev[device]
        after = before - sign * taken[i]
        dev[device] = after
        if before == FULL and after != FULL:
            whole[node_of_device[device]] -= 1
        elif after == FULL and before != FULL:
            whole[node_of_device[device]] += 1
    last = len(head) - 1
    for i in range(len(nodes)):
        node = nodes[i]
        whole[node] -= sign * unnamed[i]
        cpu[node] -= sign * cpus[i]
        mem[node] -= sign * mems[i]
        watts = sign * draw[i]
        if watts != 0:
            for column in range(paths.shape[1]):
                domain = paths[node, column]
                if domain != last:
                    head[domain] -= watts


@_compile
def charge_rows(
    order: IntArray,
    which: IntArray,
    low: IntArray,
    high: IntArray,
    sign: int,
    block: tuple[IntArray, ...],
    rows: tuple[IntArray, ...],
    uses: IntArray,
    node_of_device: IntArray,
    paths: IntArray,
    parents: IntArray,
    kept: IntArray,
) -> None:
    """Take (sign 1) or give back (sign -1) the charges which[x], each in the states order[low[x]:high[x]].

    Args:
        block: As for `advance`.
        rows: (whole, dev, cpu, mem, head) by row; `uses` likewise.
    """
    (
        first_share, nodes, unnamed, cpus, mems, draw, first_device, devices, taken, teams, first_quota, quota_kinds,
        quota_steps,
    ) = block  # fmt: skip
    whole, dev, cpu, mem, head = rows
    last = head.shape[1] - 1
    for x in range(len(which)):
        c = which[x]
        for place in range(low[x], high[x]):
            row = order[place]
            if teams[c] >= 0 and len(parents) > 0:
                for q in range(first_quota[c], first_quota[c + 1]):
                    charge_quota(uses[row], teams[c], quota_kinds[q], sign * quota_steps[q], parents, kept)
            for i in range(first_device[c], first_device[c + 1]):
                device = devices[i]
                before = dev[row, device]
                after = before - sign * taken[i]
                dev[row, device] = after
                if before == FULL and after != FULL:
                    whole[row, node_of_device[device]] -= 1
                elif after == FULL and before != FULL:
                    whole[row, node_of_device[device]] += 1
            for i in range(first_share[c], first_share[c + 1]):
                node = nodes[i]
                whole[row, node] -= sign * unnamed[i]
                cpu[row, node] -= sign * cpus[i]
                mem[row, node] -= sign * mems[i]
                watts = sign * draw[i]
                if watts != 0:
                    for column in range(paths.shape[1]):
                        domain = paths[node, column]
                        if domain != last:
                            head[row, domain] -= watts


@_compile
def whole_room(
    may_use: BoolArray,
    nodes: IntArray,
    whole: IntArray,
    cpu: IntArray,
    mem: IntArray,
    head: IntArray,
    paths: IntArray,
    devices: int,
    cpu_each: int,
    mem_each: int,
    draw: int,
    most: int,
) -> tuple[IntArray, int]:
    """(n,) replicas of whole devices each node takes, its own limits above it included; and their sum."""
    room = np.zeros(len(whole), dtype=np.int64)
    total = 0
    for node in nodes:
        if not may_use[node] or whole[node] < devices:
            continue
        r = min(most, whole[node] // devices)
        if cpu_each > 0:
            r = min(r, cpu[node] // cpu_each)
        if mem_each > 0:
            r = min(r, mem[node] // mem_each)
        if draw > 0 and r > 0:
            for column in range(paths.shape[1]):
                r = min(r, head[paths[node, column]] // draw)
        if r > 0:
            room[node] = r
            total += r
    return room, total


@_compile
def fraction_room(
    may_use: BoolArray,
    nodes: IntArray,
    shared: IntArray,
    offset: IntArray,
    whole: IntArray,
    cpu: IntArray,
    mem: IntArray,
    head: IntArray,
    paths: IntArray,
    steps: int,
    cpu_each: int,
    mem_each: int,
    draw: int,
    most: int,
) -> tuple[IntArray, int]:
    """(n,) fractional replicas each node takes; `shared` is what is free of devices that are shared already."""
    room = np.zeros(len(whole), dtype=np.int64)
    total = 0
    each = FULL // steps
    for node in nodes:
        if not may_use[node]:
            continue
        r = most
        if cpu_each > 0:
            r = min(r, cpu[node] // cpu_each)
        if mem_each > 0:
            r = min(r, mem[node] // mem_each)
        if draw > 0 and r > 0:
            for column in range(paths.shape[1]):
                r = min(r, head[paths[node, column]] // draw)
        if r <= 0:
            continue
        fits = max(0, whole[node]) * each
        device, end = offset[node], offset[node + 1]
        while fits < r and device < end:
            if shared[device] < FULL:
                fits += shared[device] // steps
            device += 1
        r = min(r, fits)
        if r > 0:
            room[node] = r
            total += r
    return room, total


@_compile
def keep_emptied(
    shared: IntArray, dev: IntArray, whole: IntArray, least: IntArray, offset: IntArray, nodes: IntArray
) -> None:
    """Take from `shared` the devices that are empty in a later state whose node (one of these) has promised them.

    Of the whole devices a node has left then, `least` may be taken fresh; what is left beside those may stay shared.
    """
    for x in range(len(nodes)):
        node = nodes[x]
        n_emptied = 0
        for device in range(offset[node], offset[node + 1]):
            if shared[device] > 0 and dev[device] == FULL:
                n_emptied += 1
        n_kept = n_emptied + max(0, least[node]) - max(0, whole[node])
        for device in range(offset[node + 1] - 1, offset[node] - 1, -1):
            if n_kept > 0 and shared[device] > 0 and dev[device] == FULL:
                shared[device] = 0
                n_kept -= 1


@_compile
def shareable(
    dev: IntArray,
    least: IntArray,
    offset: IntArray,
    order: IntArray,
    rows_dev: IntArray,
    rows_whole: IntArray,
) -> IntArray:
    """(d,) what of each shared device may be shared on through a window; see `keep_emptied`.

    Args:
        dev: (d,) the least free millionths of each device in the window.
        least: (n,) the least whole devices of each node.
        order: Rows of the later states.
    """
    shared = np.zeros(len(dev), dtype=np.int64)
    node = np.zeros(1, dtype=np.int64)
    for place in range(len(offset) - 1):
        is_shared = False
        for device in range(offset[place], offset[place + 1]):
            if 0 < dev[device] < FULL:
                shared[device] = dev[device]
                is_shared = True
        if is_shared:
            node[0] = place
            for i in range(len(order)):
                keep_emptied(shared, rows_dev[order[i]], rows_whole[order[i]], least, offset, node)
    return shared


@_compile
def most_under_limits(
    nodes: IntArray, room: IntArray, head: IntArray, paths: IntArray, draw: int, n: int
) -> int:
    """How many replicas all limits together let these nodes take, up to n.

    Exact under one tree of limits, where every filling that cannot go on is as large as any other; under several trees
    it may tell too few.
    """
    left = head.copy()
    last = len(head) - 1
    done = 0
    for node in nodes:
        r = min(room[node], n - done)
        if r <= 0:
            continue
        for column in range(paths.shape[1]):
            r = min(r, left[paths[node, column]] // draw)
        if r > 0:
            for column in range(paths.shape[1]):
                domain = paths[node, column]
                if domain != last:
                    left[domain] -= r * draw
            done += r
            if done >= n:
                break
    return done


@_compile
def one_domain_holds(
    nodes: IntArray,
    room: IntArray,
    head: IntArray,
    paths: IntArray,
    draw: int,
    n: int,
    ids: IntArray,
    n_domains: int,
) -> bool:
    """Whether the nodes of some one domain take n replicas under one tree of limits; see `most_under_limits`.

    Args:
        ids: (n,) domain of each node.
        draw: 0: no limit is looked at.
    """
    sums = np.zeros(n_domains, dtype=np.int64)
    for node in nodes:
        sums[ids[node]] += room[node]
    for domain in range(n_domains):
        if sums[domain] < n:
            continue
        if draw == 0:
            return True
        inside = nodes[ids[nodes] == domain]
        if most_under_limits(inside, room, head, paths, draw, n) >= n:
            return True
    return False


@_compile
def best_single(
    nodes: IntArray,
    room: IntArray,
    spare: IntArray,
    n: int,
    leaf: IntArray,
    spine: IntArray,
    n_leaves: int,
    n_spines: int,
) -> int:
    """The one of these nodes that takes all n and is left with the least, as its leaf and spine are; -1: none."""
    any_fits = False
    for node in nodes:
        if room[node] >= n:
            any_fits = True
            break
    if not any_fits:
        return -1
    in_leaf = np.zeros(n_leaves, dtype=np.int64)
    in_spine = np.zeros(n_spines, dtype=np.int64)
    for node in nodes:
        if room[node] > 0:
            in_leaf[leaf[node]] += spare[node]
            in_spine[spine[node]] += spare[node]
    best = -1
    for node in nodes:
        if room[node] < n:
            continue
        if best < 0:
            best = node
            continue
        if spare[node] != spare[best]:
            if spare[node] < spare[best]:
                best = node
        elif in_leaf[leaf[node]] != in_leaf[leaf[best]]:
            if in_leaf[leaf[node]] < in_leaf[leaf[best]]:
                best = node
        elif in_spine[spine[node]] < in_spine[spine[best]]:
            best = node
    return best


@_compile
def domain_sums(ids: IntArray, n_domains: int, room: IntArray, spare: IntArray) -> tuple[IntArray, IntArray]:
    """Per domain: replicas it takes, and what best fit compares."""
    sums = np.zeros(n_domains, dtype=np.int64)
    free = np.zeros(n_domains, dtype=np.int64)
    for node in range(len(room)):
        if room[node] > 0:
            sums[ids[node]] += room[node]
            free[ids[node]] += spare[node]
    return sums, free


@_compile
def _expected_fragment(
    kind: int,
    free: IntArray,
    n: int,
    cpu: int,
    mem: int,
    d_devices: IntArray,
    d_need: IntArray,
    d_cpu: IntArray,
    d_mem: IntArray,
    d_accepts: BoolArray,
    d_weight: IntArray,
) -> int:
    """Millionths of free devices of one node that are of no use, summed over typical asks by weight."""
    total = 0
    n_whole = 0
    largest = 0
    for i in range(n):
        total += free[i]
        if free[i] == FULL:
            n_whole += 1
        largest = max(largest, free[i])
    if total == 0:
        return 0
    fragment = 0
    for m in range(len(d_weight)):
        need = d_need[m]
        if (
            not d_accepts[m, kind]
            or d_cpu[m] > cpu
            or d_mem[m] > mem
            or need > largest
            or d_devices[m] > n_whole
        ):
            fragment += d_weight[m] * total
            continue
        too_small = 0
        for i in range(n):
            if free[i] < need:
                too_small += free[i]
        fragment += d_weight[m] * too_small
    return fragment


@_compile
def look_again(
    nodes: IntArray,
    offset: IntArray,
    dev: IntArray,
    cpu: IntArray,
    mem: IntArray,
    seen_dev: IntArray,
    seen_cpu: IntArray,
    seen_mem: IntArray,
    version: IntArray,
    latest: int,
) -> IntArray:
    """Which of these nodes are not what they were when seen; they are seen now, and their version is the latest."""
    changed = np.empty(len(nodes), dtype=np.int64)
    n_changed = 0
    for x in range(len(nodes)):
        node = nodes[x]
        is_same = cpu[node] == seen_cpu[node] and mem[node] == seen_mem[node]
        for device in range(offset[node], offset[node + 1]):
            if dev[device] != seen_dev[device]:
                is_same = False
                seen_dev[device] = dev[device]
        if is_same:
            continue
        seen_cpu[node], seen_mem[node] = cpu[node], mem[node]
        version[node] = latest
        changed[n_changed] = node
        n_changed += 1
    return changed[:n_changed]


@_compile
def fragmentation(
    nodes: IntArray,
    kind: IntArray,
    offset: IntArray,
    dev: IntArray,
    cpu: IntArray,
    mem: IntArray,
    d_devices: IntArray,
    d_need: IntArray,
    d_cpu: IntArray,
    d_mem: IntArray,
    d_accepts: BoolArray,
    d_weight: IntArray,
    before: IntArray,
) -> None:
    """Write the expected fragmentation of some nodes into `before`."""
    for x in range(len(nodes)):
        node = nodes[x]
        free = dev[offset[node] : offset[node + 1]]
        before[node] = _expected_fragment(
            kind[node],
            free,
            len(free),
            cpu[node],
            mem[node],
            d_devices,
            d_need,
            d_cpu,
            d_mem,
            d_accepts,
            d_weight,
        )


@_compile
def fragmentation_after(
    nodes: IntArray,
    kind: IntArray,
    offset: IntArray,
    dev: IntArray,
    cpu: IntArray,
    mem: IntArray,
    d_devices: IntArray,
    d_need: IntArray,
    d_cpu: IntArray,
    d_mem: IntArray,
    d_accepts: BoolArray,
    d_weight: IntArray,
    before: IntArray,
    devices: int,
    steps: int,
    cpu_each: int,
    mem_each: int,
    pull_steps: int,
    pull_cpu: int,
    most_devices: int,
    most_cpu: int,
    weights: int,
    score: IntArray,
    device: IntArray,
) -> None:
    """Score some nodes for one replica: what it adds to the expected fragmentation, and how much it leaves free.

    Of a node's devices a share takes the one with the least score; nodes that do not hold it are not to be asked.
    """
    for x in range(len(nodes)):
        node = nodes[x]
        first, end = offset[node], offset[node + 1]
        n = end - first
        if x > 0:
            # Nodes in a row are often alike.
            like = nodes[x - 1]
            start = offset[like]
            is_alike = (
                kind[like] == kind[node]
                and cpu[like] == cpu[node]
                and mem[like] == mem[node]
                and offset[like + 1] - start == n
            )
            for i in range(n):
                if not is_alike:
                    break
                is_alike = dev[start + i] == dev[first + i]
            if is_alike:
                score[node], device[node] = score[like], device[like]
                continue
        free = dev[first:end].copy()
        cpu_left = cpu[node] - cpu_each
        mem_left = mem[node] - mem_each
        best = 2**62
        best_device = -1
        if steps > 0:
            for i in range(n):
                if free[i] < steps:
                    continue
                is_new = True
                for j in range(i):
                    if free[j] == free[i]:
                        is_new = False
                        break
                if not is_new:
                    continue
                free[i] -= steps
                here = _expected_fragment(
                    kind[node],
                    free,
                    n,
                    cpu_left,
                    mem_left,
                    d_devices,
                    d_need,
                    d_cpu,
                    d_mem,
                    d_accepts,
                    d_weight,
                )
                free[i] += steps
                # Of two devices that are as good the fuller one, else the earlier.
                if here < best or (here == best and free[i] < free[best_device]):
                    best, best_device = here, i
        else:
            wanted = devices
            for i in range(n):
                if wanted > 0 and free[i] == FULL:
                    free[i] = 0
                    wanted -= 1
            best = _expected_fragment(
                kind[node], free, n, cpu_left, mem_left, d_devices, d_need, d_cpu, d_mem, d_accepts, d_weight
            )
        device[node] = best_device
        left = 0
        for i in range(n):
            left += free[i]
        if steps > 0:
            left -= steps
        pull = left // most_devices
        if cpu_left < most_cpu:
            pull += pull_cpu * (cpu_left * 1000 // most_cpu) * (FULL // 1000)
        else:
            pull += pull_cpu * FULL
        score[node] = best - before[node] + weights * (pull * (pull_steps // 1000) // (FULL // 1000))


@_compile
def advance(
    i: int,
    times: FloatArray,
    signs: IntArray,
    which: IntArray,
    first_share: IntArray,
    nodes: IntArray,
    unnamed: IntArray,
    cpus: IntArray,
    mems: IntArray,
    draw: IntArray,
    first_device: IntArray,
    devices: IntArray,
    taken: IntArray,
    teams: IntArray,
    first_quota: IntArray,
    quota_kinds: IntArray,
    quota_steps: IntArray,
    whole: IntArray,
    dev: IntArray,
    cpu: IntArray,
    mem: IntArray,
    head: IntArray,
    use: IntArray,
    node_of_device: IntArray,
    paths: IntArray,
    parents: IntArray,
    kept: IntArray,
    useful: BoolArray,
    need: int,
    until_s: float,
    free: int,
) -> tuple[int, int]:
    """Apply coming changes from position i on until, at the end of some instant, `need` whole devices are free on
    useful nodes, or the next change lies after until_s. Return the next position and the free devices then.

    `times`, `signs`, `which` are in order of time; `which` names the charge, whose shares lie at
    first_share[c]:first_share[c + 1], its devices and its quota likewise.
    """
    last = len(head) - 1
    while i < len(times) and times[i] <= until_s:
        at_s = times[i]
        while i < len(times) and times[i] == at_s:
            sign, c = signs[i], which[i]
            for d in range(first_device[c], first_device[c + 1]):
                device = devices[d]
                before = dev[device]
                after = before - sign * taken[d]
                dev[device] = after
                node = node_of_device[device]
                if before == FULL and after != FULL:
                    whole[node] -= 1
                    if useful[node]:
                        free -= 1
                elif after == FULL and before != FULL:
                    whole[node] += 1
                    if useful[node]:
                        free += 1
            for s in range(first_share[c], first_share[c + 1]):
                node = nodes[s]
                if unnamed[s] != 0:
                    whole[node] -= sign * unnamed[s]
                    if useful[node]:
                        free -= sign * unnamed[s]
                cpu[node] -= sign * cpus[s]
                mem[node] -= sign * mems[s]
                watts = sign * draw[s]
                if watts != 0:
                    for column in range(paths.shape[1]):
                        domain = paths[node, column]
                        if domain != last:
                            head[domain] -= watts
            if teams[c] >= 0 and len(parents) > 0:
                for q in range(first_quota[c], first_quota[c + 1]):
                    charge_quota(use, teams[c], quota_kinds[q], sign * quota_steps[q], parents, kept)
            i += 1
        if free >= need:
            break
    return i, free


@_compile
def refresh_prefix(order: IntArray, first: int, n: int, rows: IntArray, least: IntArray) -> None:
    """least[i] = the elementwise least of rows[order[0..i]], for i from `first` to n - 1."""
    for i in range(first, n):
        row = rows[order[i]]
        if i == 0:
            least[0, :] = row
        else:
            for x in range(rows.shape[1]):
                before = least[i - 1, x]
                least[i, x] = row[x] if row[x] < before else before


@_compile
def _refresh_column(order: IntArray, n: int, rows: IntArray, least: IntArray, x: int) -> None:
    lowest = rows[order[0], x]
    least[0, x] = lowest
    for i in range(1, n):
        here = rows[order[i], x]
        if here < lowest:
            lowest = here
        least[i, x] = lowest


@_compile
def refresh_prefix_at(
    order: IntArray,
    n: int,
    rows: tuple[IntArray, IntArray, IntArray, IntArray],
    least: tuple[IntArray, IntArray, IntArray, IntArray],
    nodes: IntArray,
    paths: IntArray,
) -> None:
    """The same for (whole, cpu, mem, head), at some nodes and under the limits above them only."""
    for node in nodes:
        for x in range(3):
            _refresh_column(order, n, rows[x], least[x], node)
        for domain in paths[node]:
            _refresh_column(order, n, rows[3], least[3], domain)


@_compile
def least_of(first: IntArray, rows: IntArray, order: IntArray) -> IntArray:
    """The elementwise least of one array and some rows."""
    least = first.copy()
    for i in range(len(order)):
        row = rows[order[i]]
        for x in range(len(least)):
            if row[x] < least[x]:
                least[x] = row[x]
    return least


@_compile
def lower_at(least: IntArray, rows: IntArray, order: IntArray, columns: IntArray) -> None:
    """Lower some columns of `least` to the least of some rows."""
    for x in columns:
        for i in order:
            if rows[i, x] < least[x]:
                least[x] = rows[i, x]


@_compile
def quota_available(
    use: IntArray, team: int, kind: int, parent: IntArray, subtree: IntArray, kept: IntArray, borrow: IntArray
) -> int:
    """Millionths of a device a team may still take, by what (t, k) is in use."""
    # From the root down: what the parent has left bounds what this team gets from it.
    depth = 0
    at = team
    while parent[at] >= 0:
        at = parent[at]
        depth += 1
    left = subtree[at, kind] - use[at, kind]
    for level in range(depth - 1, -1, -1):
        at = team
        for _ in range(level):
            at = parent[at]
        used, own = use[at, kind], kept[at, kind]
        most = subtree[at, kind] - own - max(0, used - own) + borrow[at, kind]
        left = max(0, own - used) + max(0, min(most, left))
    return int(left)


@_compile
def quota_left(
    order: IntArray,
    n: int,
    uses: IntArray,
    team: int,
    kind: int,
    parent: IntArray,
    subtree: IntArray,
    kept: IntArray,
    borrow: IntArray,
) -> int:
    """The least that is available at any of the first n instants."""
    least = quota_available(uses[order[0]], team, kind, parent, subtree, kept, borrow)
    for i in range(1, n):
        here = quota_available(uses[order[i]], team, kind, parent, subtree, kept, borrow)
        if here < least:
            least = here
    return int(least)


@_compile
def give_back(
    places: IntArray,
    bounds: IntArray,
    held: tuple[IntArray, IntArray, IntArray, IntArray, IntArray],
    paths: IntArray,
    n_devices: IntArray,
    left: tuple[IntArray, IntArray, IntArray, IntArray],
) -> None:
    """Add what some victims hold to what is left, in place; no node has more than all its devices.

    Args:
        places: (v,) positions of the victims; the i-th holds the shares bounds[i]..bounds[i + 1] - 1.
        held: (s,) nodes, and what is held there: whole, cpu, mem and draw, as in a charge.
        left: (n,) whole, cpu and mem, (l + 1,) head, as in a state.
    """
    nodes, wholes, cpus, mems, draws = held
    whole, cpu, mem, head = left
    last = len(head) - 1
    for place in places:
        for s in range(bounds[place], bounds[place + 1]):
            node = nodes[s]
            whole[node] = min(whole[node] + wholes[s], n_devices[node])
            cpu[node] += cpus[s]
            mem[node] += mems[s]
            if draws[s] > 0:
                for column in range(paths.shape[1]):
                    limit = paths[node, column]
                    if limit != last:
                        head[limit] += draws[s]


@_compile
def may_take(
    priority: IntArray,
    team: IntArray,
    steps: IntArray,
    is_surplus: BoolArray,
    use: IntArray,
    asks: int,
    asks_priority: int,
    asks_steps: int,
    kind: int,
    apart: IntArray,
    parents: IntArray,
    kept: IntArray,
    subtree: IntArray,
    greedily: bool,
) -> IntArray:
    """Which of some victims the rules of quota let a team take together: all, or as many as can be had one by one.

    Args:
        priority, team, steps, is_surplus: (v,) of the victims; steps of the kind that is asked for.
        asks, asks_priority, asks_steps: The team that asks, at which priority, and for how much.
        apart: (t, depth) each team and those above it that are not above the one that asks, padded with -1.
    """
    n_victims, n_teams = len(team), len(parents)
    taken = np.zeros(n_victims, dtype=np.int64)
    n_taken = 0
    column = subtree[:, kind].copy().reshape((n_teams, 1))
    own = kept[:, kind].copy().reshape((n_teams, 1))
    after = use[:, kind].copy().reshape((n_teams, 1))
    largest = np.zeros(n_teams, dtype=np.int64)
    rounds = n_victims if greedily else 1
    for turn in range(rounds):
        first = turn if greedily else 0
        end = turn + 1 if greedily else n_victims
        before, largest_before = after.copy(), largest.copy()
        for v in range(first, end):
            taken[n_taken] = v
            n_taken += 1
            if team[v] >= 0 and steps[v] > 0:
                charge_quota(after, team[v], 0, -steps[v], parents, own)
                largest[team[v]] = max(largest[team[v]], steps[v])
        must_borrow = after[asks, 0] + asks_steps > column[asks, 0]
        is_allowed = True
        for i in range(n_taken):
            v = taken[i]
            of = team[v]
            if is_surplus[v] and priority[v] <= asks_priority:
                continue
            if priority[v] < asks_priority:
                if must_borrow and of != asks and of >= 0 and after[of, 0] + largest[of] <= column[of, 0]:
                    is_allowed = False
                    break
                continue
            if must_borrow or of < 0 or apart[of, 0] < 0:
                is_allowed = False
                break
            for level in apart[of]:
                if level >= 0 and after[level, 0] < column[level, 0]:
                    is_allowed = False
                    break
            if not is_allowed:
                break
        if not is_allowed:
            n_taken -= end - first
            after, largest = before, largest_before
    return taken[:n_taken]


@_compile
def seek(
    i: int,
    m: int,
    timeline: tuple[FloatArray, IntArray, IntArray],
    block: tuple[IntArray, ...],
    marks: FloatArray,
    deadline_s: float,
    state: tuple[IntArray, ...],
    frame: tuple[IntArray, ...],
    tree: tuple[IntArray, ...],
    pinch_times: FloatArray,
    pool: tuple[IntArray, ...],
    uses: IntArray,
    may_use: BoolArray,
    level: IntArray,
    n_level: int,
    ask: tuple[int, ...],
    quota: tuple[int, int, int],
    duration_s: float,
    is_one_tree: bool,
    steps_of_limits: tuple[FloatArray, IntArray, IntArray, IntArray],
) -> tuple[int, int, float]:
    """Move a state on to the next instant (a change, or a mark) at which a gang of one group might fit through its
    whole window, bookings aside. Return the next positions in the timeline and in the marks, and the instant; infinity
    when there is none before the deadline.

    Args:
        state: (whole, dev, cpu, mem, head, use), changed in place.
        frame: (node_of_device, paths, the nodes of the kind, offset).
        tree: (parents, subtree, kept, borrow).
        pool: (order, whole, cpu, mem, head): order[0] is now, the others are the pinches.
        level: (n,) domain of each node of the kind it requires; n_level 0: none is required.
        ask: (whole devices, fraction, cpu, memory, draw, replicas), millionths.
        quota: (team, kind, millionths); team -1: not limited.
        steps_of_limits: (times, limits, microwatts) by which limits change, in order of time; and in an array of one
            how many of them the state has seen, changed in place. Their times are marks.
    """
    times, signs, which = timeline
    step_times, step_limits, step_uw, n_stepped = steps_of_limits
    whole, dev, cpu, mem, head, use = state
    node_of_device, paths, nodes, offset = frame
    parents, subtree, kept, borrow = tree
    order, rows_whole, rows_cpu, rows_mem, rows_head = pool
    devices, steps, cpu_each, mem_each, draw, n = ask
    team, quota_kind, quota_steps = quota
    low_whole, low_cpu, low_mem, low_head = whole, cpu, mem, head
    while True:
        next_s = np.inf
        if i < len(times):
            next_s = times[i]
        if m < len(marks) and marks[m] < next_s:
            next_s = marks[m]
        if next_s >= deadline_s or next_s == np.inf:
            return i, m, np.inf
        while m < len(marks) and marks[m] <= next_s:
            m += 1
        if i < len(times) and times[i] == next_s:
            i, _ = advance(
                i, times, signs, which, block[0], block[1], block[2], block[3], block[4], block[5], block[6], block[7],
                block[8], block[9], block[10], block[11], block[12], whole, dev, cpu, mem, head, use, node_of_device,
                paths, parents, kept, may_use, -(2**62), next_s, 0,
            )  # fmt: skip
        while n_stepped[0] < len(step_times) and step_times[n_stepped[0]] <= next_s:
            head[step_limits[n_stepped[0]]] += step_uw[n_stepped[0]]
            n_stepped[0] += 1
        if team >= 0 and quota_available(use, team, quota_kind, parents, subtree, kept, borrow) < quota_steps:
            continue
        for part in range(2):
            if part == 1:
                # It fits now; the same again for the least through the window.
                first = np.searchsorted(pinch_times, next_s, side="right")
                last = np.searchsorted(pinch_times, next_s + duration_s, side="left")
                if last <= first:
                    return i, m, next_s
                window = order[first + 1 : last + 1]
                if (
                    team >= 0
                    and quota_left(
                        window, len(window), uses, team, quota_kind, parents, subtree, kept, borrow
                    )
                    < quota_steps
                ):
                    break
                low_whole = least_of(whole, rows_whole, window)
                low_cpu = least_of(cpu, rows_cpu, window)
                low_mem = least_of(mem, rows_mem, window)
                low_head = least_of(head, rows_head, window)
            else:
                low_whole, low_cpu, low_mem, low_head = whole, cpu, mem, head
            if devices > 0:
                room, total = whole_room(
                    may_use,
                    nodes,
                    low_whole,
                    low_cpu,
                    low_mem,
                    low_head,
                    paths,
                    devices,
                    cpu_each,
                    mem_each,
                    draw,
                    n,
                )
            else:
                room, total = fraction_room(
                    may_use, nodes, dev, offset, low_whole, low_cpu, low_mem, low_head, paths, steps, cpu_each,
                    mem_each, draw, n,
                )  # fmt: skip
            if total < n:
                break
            if n_level > 0:
                sums, _ = domain_sums(level, n_level, room, room)
                if sums.max() < n:
                    break
            if draw > 0 and is_one_tree and most_under_limits(nodes, room, low_head, paths, draw, n) < n:
                break
            if part == 1:
                return i, m, next_s


@_compile
def earliest_gap(
    times: FloatArray, free: IntArray, n: int, from_s: float, lasts_s: float, steps: int
) -> float:
    """The first instant from from_s on from which `steps` are free for lasts_s; free[i] holds from times[i] on."""
    i = max(0, int(np.searchsorted(times[:n], from_s, side="right")) - 1)
    start_s = max(from_s, times[i])
    while i < n:
        if free[i] < steps:
            i += 1
            if i < n:
                start_s = times[i]
            continue
        j = i
        end_s = start_s + lasts_s
        is_free = True
        while j + 1 < n and times[j + 1] < end_s:
            j += 1
            if free[j] < steps:
                is_free = False
                break
        if is_free:
            return float(start_s)
        i = j
    return np.inf


@_compile
def take_gap(times: FloatArray, free: IntArray, n: int, start_s: float, end_s: float, steps: int) -> int:
    """Take `steps` from start_s to end_s; the arrays have room for two instants more. How many there are then."""
    for at_s in (start_s, end_s):
        if at_s == np.inf:
            continue
        i = int(np.searchsorted(times[:n], at_s, side="left"))
        if i < n and times[i] == at_s:
            continue
        for x in range(n, i, -1):
            times[x] = times[x - 1]
            free[x] = free[x - 1]
        times[i] = at_s
        free[i] = free[i - 1] if i > 0 else free[0]
        n += 1
    for i in range(n):
        if times[i] >= end_s:
            break
        if times[i] >= start_s:
            free[i] -= steps
    return n


@_compile
def spread_work(
    ahead: FloatArray, capacity: FloatArray, shapes: IntArray, of: IntArray, lasts_s: FloatArray
) -> FloatArray:
    """(j,) seconds after which each of some jobs, in their order, finds the work ahead of it done; -1: never.

    Args:
        ahead: (k,) device-seconds of each type that stand ahead, millionths; capacity: (k,) millionths.
        shapes: (s, 1 + k) what a job holds, millionths, then the types that could hold it, padded with -1.
        of, lasts_s: (j,) the shape of each, and how long it runs.
    """
    waits_s = np.full(len(of), -1.0)
    left = ahead.copy()
    for j in range(len(of)):
        row = shapes[of[j]]
        best = -1
        for kind in row[1:]:
            if kind >= 0 and (best < 0 or left[kind] / capacity[kind] < left[best] / capacity[best]):
                best = kind
        if best >= 0:
            waits_s[j] = left[best] / capacity[best]
            left[best] += row[0] * lasts_s[j]
    return waits_s

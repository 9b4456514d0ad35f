"""The exact answer where two trees limit the same nodes (power feeds and cooling): a largest flow.

Under one tree of limits a filling that cannot go on is as large as any other. Under two, the choice of nodes matters:
replicas are units of flow from the roots of one tree down to a node and up the other tree again. All replicas draw the
same, so a limit is a whole number of them. Only the fallback: filling by taste is tried first and nearly always does.
"""

import itertools
from collections import defaultdict, deque

from apps.scheduling.engine.facts import NONE, IntArray
from apps.scheduling.engine.frame import Frame, tree_of

_Vertex = tuple[str, int]
_SOURCE, _SINK = ("source", 0), ("sink", 0)


def spread_under_limits(
    frame: Frame, nodes: IntArray, room: IntArray, draws: IntArray, head: IntArray, n: int
) -> dict[int, int] | None:
    """Replicas by node, n in all, within every node's room and every domain's headroom; None if there is no such way.

    Exact for limits in one or two trees; with a third tree it answers None rather than break that one's limits.
    """
    by_node = {node: _chains(frame, node) for node in nodes.tolist()}
    trees = sorted({tree for chains in by_node.values() for tree in chains})
    if len(trees) > 2:
        return None
    first, second = trees[0], trees[-1]
    draw = int(max(draws[nodes].max(initial=0), 1))
    capacity: dict[_Vertex, dict[_Vertex, int]] = defaultdict(lambda: defaultdict(int))

    def limit(position: int) -> int:
        return max(0, int(head[position]) // draw)

    def chain(path: list[int], side: str) -> list[_Vertex]:
        # From the lowest domain up; each is an edge of its own so that everything below it shares its limit.
        vertices: list[_Vertex] = []
        for position in path:
            vertices += [(f"{side} below", position), (f"{side} above", position)]
        return vertices

    for node, chains in by_node.items():
        here_in, here_out = ("in", node), ("out", node)
        capacity[here_in][here_out] = int(room[node])
        down = [here_in, *chain(chains.get(first, []), "first"), _SOURCE]
        up = [here_out, *(chain(chains.get(second, []), "second") if second != first else []), _SINK]
        for low, high in itertools.pairwise(down):
            crosses = low[0] == "first below"
            capacity[high][low] = limit(low[1]) if crosses else n
        for low, high in itertools.pairwise(up):
            capacity[low][high] = limit(low[1]) if low[0] == "second below" else n
    flow = _augment(capacity, n)
    if flow < n:
        return None
    taken = {node: capacity["out", node]["in", node] for node in by_node}
    return {node: k for node, k in taken.items() if k}


def _chains(frame: Frame, node: int) -> dict[str, list[int]]:
    """Limited positions above a node, lowest first, by tree."""
    chains: dict[str, list[int]] = defaultdict(list)
    for position in frame.paths[node].tolist():
        if position < len(frame.limited):
            at = int(frame.limited[position])
            while frame.domains[at].parent != NONE:
                at = frame.domains[at].parent
            chains[tree_of(frame.domains[at].kind)].append(position)
    return chains


def _augment(capacity: dict[_Vertex, dict[_Vertex, int]], wanted: int) -> int:
    """Push up to `wanted` units along shortest paths (Edmonds and Karp 1972)."""
    total = 0
    while total < wanted:
        came: dict[_Vertex, _Vertex] = {_SOURCE: _SOURCE}
        waiting = deque([_SOURCE])
        while waiting and _SINK not in came:
            at = waiting.popleft()
            for after, left in list(capacity[at].items()):
                if left > 0 and after not in came:
                    came[after] = at
                    waiting.append(after)
        if _SINK not in came:
            break
        path = [_SINK]
        while path[-1] != _SOURCE:
            path.append(came[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        push = min(wanted - total, *(capacity[a][b] for a, b in steps))
        for a, b in steps:
            capacity[a][b] -= push
            capacity[b][a] += push
        total += push
    return total

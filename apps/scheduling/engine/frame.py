"""What can be said of a facility once and for all: which nodes lie under which domain, and whose limits they meet."""

from functools import cached_property
from math import inf
from weakref import WeakKeyDictionary

import numpy as np

from apps.scheduling.engine.facts import NONE, BoolArray, Facility, IntArray
from apps.scheduling.engine.units import BIG, micro

LEVELS = ("scale_up", "leaf", "spine")  # from narrow to wide

_MOST_DRAWS = 256  # kinds of ask whose draw on each node is kept at hand

_TREE_OF = {
    "spine": "network",
    "leaf": "network",
    "scale_up": "network",
    "cooling": "cooling",
    "storage": "storage",
}


def tree_of(kind: str) -> str:
    """The tree in which domains of this kind hang."""
    return _TREE_OF.get(kind, "power")


_FRAMES: WeakKeyDictionary[Facility, dict[frozenset[int], "Frame"]] = WeakKeyDictionary()
_NONE: frozenset[int] = frozenset()
_MOST_W = 1e12  # a limit beyond that is none


def frame_of(facility: Facility, later: frozenset[int] = _NONE) -> "Frame":
    """The frame of this facility; made once per Facility object.

    Args:
        later: Positions of domains that have a limit later on, whether or not they have one now.
    """
    later = frozenset(d for d in later if facility.domains[d].limit_w == inf)
    frames = _FRAMES.setdefault(facility, {})
    if later not in frames:
        if len(frames) > 1:  # what comes is another each hour; the facility as it is now stays
            for key in [key for key in frames if key]:
                del frames[key]
        frames[later] = Frame(facility, later)
    return frames[later]


class Frame:
    """Derived arrays of a Facility. n: nodes, l: domains with a limit."""

    def __init__(self, facility: Facility, later: frozenset[int] = _NONE) -> None:
        # No reference back to the facility: the frame must not keep its own key alive.
        self.kinds, self.domains = facility.kinds, facility.domains
        self._limited_later = later
        self.node_name = facility.node_name
        self.n_nodes = facility.n_nodes
        self.kind: IntArray = facility.kind
        self.n_devices: IntArray = facility.n_devices
        self.cluster: IntArray = facility.cluster
        self.clusters: list[int] = sorted(set(facility.cluster.tolist()))
        self.speed = facility.speed
        self._draws: dict[tuple[int, int, float | None], IntArray] = {}
        self.idle_w = facility.idle_w
        self.offset: IntArray = np.concatenate([[0], np.cumsum(facility.n_devices)]).astype(np.int64)
        self.cpu: IntArray = micro(facility.cpus)
        self.mem: IntArray = micro(facility.memory_gib)
        self.node_of_device: IntArray = np.repeat(np.arange(self.n_nodes), facility.n_devices)
        self._ancestor: dict[str, IntArray] = {}
        self._lowest = facility.lowest
        self.level: dict[str, IntArray] = {}  # dense ids; a node without such a domain is one of its own
        self.n_level: dict[str, int] = {}
        self.has_level: dict[str, BoolArray] = {}
        for name in LEVELS:
            domain = self.ancestor(name)
            self.has_level[name] = (
                (domain != NONE) if name != "scale_up" else np.ones(self.n_nodes, dtype=bool)
            )
            own = np.where(domain != NONE, domain, len(self.domains) + np.arange(self.n_nodes))
            _, dense = np.unique(own, return_inverse=True)
            self.level[name] = dense.astype(np.int64)
            self.n_level[name] = int(dense.max(initial=-1)) + 1
        self.nodes: IntArray = np.arange(self.n_nodes)
        self.nodes_of: list[IntArray] = [
            np.flatnonzero(facility.kind == k) for k in range(len(facility.kinds))
        ]
        self.kind_mask = [facility.kind == k for k in range(len(facility.kinds))]
        self._build_limits()

    def domain_ids(self, domain_kind: str) -> IntArray:
        """(n,) the domain of this kind over which replicas on each node are counted; NONE: it lies in none.

        A node outside every scale-up domain is one of its own.
        """
        domain = self.ancestor(domain_kind)
        if domain_kind != "scale_up":
            return domain
        return np.where(domain != NONE, domain, len(self.domains) + np.arange(self.n_nodes))

    def ancestor(self, domain_kind: str) -> IntArray:
        """(n,) position of the domain of this kind above each node, NONE where there is none."""
        if domain_kind not in self._ancestor:
            above = np.full(len(self.domains) + 1, NONE, dtype=np.int64)
            for d in range(len(self.domains)):
                at = d
                while at != NONE and self.domains[at].kind != domain_kind:
                    at = self.domains[at].parent
                above[d] = at
            found = np.full(self.n_nodes, NONE, dtype=np.int64)
            for lowest in self._lowest:
                found = np.where(
                    found == NONE, above[lowest], found
                )  # above[-1] is NONE: a node outside that tree
            self._ancestor[domain_kind] = found
        return self._ancestor[domain_kind]

    def _build_limits(self) -> None:
        paths: list[list[int]] = [[] for _ in range(self.n_nodes)]
        limited: dict[int, int] = {}
        roots: dict[int, int] = {}
        memo: dict[int, tuple[int, ...]] = {}

        def path(domain: int) -> tuple[int, ...]:
            if domain not in memo:
                above, at = [], domain
                while at != NONE:
                    if self.domains[at].limit_w != inf or at in self._limited_later:
                        above.append(limited.setdefault(at, len(limited)))
                    top, at = at, self.domains[at].parent
                for position in above:
                    roots[position] = top
                memo[domain] = tuple(above)
            return memo[domain]

        for lowest in self._lowest:
            for n, domain in enumerate(lowest.tolist()):
                if domain != NONE:
                    for position in path(domain):
                        if position not in paths[n]:
                            paths[n].append(position)
        self.limited: IntArray = np.array(list(limited), dtype=np.int64)
        n_limited = len(limited)
        width = max((len(p) for p in paths), default=0)
        self.paths: IntArray = np.full((self.n_nodes, width), n_limited, dtype=np.int64)
        for n, p in enumerate(paths):
            self.paths[n, : len(p)] = p
        self.n_under: IntArray = np.bincount(
            self.paths.ravel(), minlength=n_limited + 1
        )  # nodes under each limit
        # The load of a node at rest counts everywhere, also when it has failed: it may come back at any moment.
        rest_w = self.idle_w + self.n_devices * np.array([k.idle_w for k in self.kinds] or [0.0])[self.kind]
        self.rest = micro(rest_w)
        headroom = np.full(n_limited + 1, BIG, dtype=np.int64)
        if n_limited:
            headroom[:n_limited] = [self.limit_uw(d, self.domains[d].limit_w) for d in self.limited.tolist()]
            for column in range(width):
                np.subtract.at(headroom, self.paths[:, column], self.rest)
            headroom[n_limited] = BIG
        self.headroom: IntArray = headroom
        # Two halls that share no site are one forest: no node hangs under both.
        self.n_limit_trees = len({tree_of(self.domains[top].kind) for top in roots.values()})

    def limit_uw(self, domain: int, limit_w: float) -> int:
        """A limit of a domain, as `Domain.limit_w`, in microwatts of IT load."""
        of = self.domains[domain]
        it_w = (limit_w - of.overhead_fixed_w) / of.overhead_k
        return int(micro(min(max(it_w, -_MOST_W), _MOST_W)))

    @cached_property
    def has_limits(self) -> bool:
        return len(self.limited) > 0

    @cached_property
    def above_all(self) -> list[IntArray]:
        """By kind: the limited domains under which all its nodes lie."""
        found = []
        for nodes in self.nodes_of:
            n_under = np.bincount(self.paths[nodes].ravel(), minlength=len(self.limited) + 1)[:-1]
            found.append(np.flatnonzero(n_under == len(nodes)))
        return found

    @cached_property
    def speeds(self) -> tuple[tuple[float, ...], ...]:
        """Distinct node speeds of each kind, fastest first."""
        return tuple(tuple(sorted(set(self.speed[mask].tolist()), reverse=True)) for mask in self.kind_mask)

    def draws(self, devices: int, share_steps: int, peak_w: float | None) -> IntArray:
        """(n,) microwatts one replica adds on each node."""
        key = (devices, share_steps, peak_w)
        known = self._draws.get(key)
        if known is None:
            if len(self._draws) >= _MOST_DRAWS:
                self._draws.clear()
            by_kind = [0] * max(1, len(self.kinds))
            if devices or share_steps:
                by_kind = [self.draw(devices, share_steps, k, peak_w) for k in range(len(self.kinds))] or [0]
            known = self._draws[key] = np.array(by_kind, dtype=np.int64)[self.kind]
            known.flags.writeable = False
        return known

    def draw(self, devices: int, share_steps: int, kind: int, peak_w: float | None) -> int:
        """Microwatts one replica adds above idle at its peak, which is never above TDP and counts from idle up."""
        of = self.kinds[kind]
        peak = of.tdp_w if peak_w is None else min(peak_w, of.tdp_w)
        return round(max(0.0, peak - of.idle_w) * 1e6 * (devices if devices else share_steps / 1e6))

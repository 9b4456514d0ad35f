"""Bounds the load of every domain when some meters are silent.

A tree of intervals: what is metered is known; what is not lies between nothing and what its nodes can draw. One walk
up adds children, one walk down takes the siblings off a parent that is known. Stale or missing counts as the worst.
"""

from collections.abc import Sequence
from typing import Final

from apps.power.telemetry.facts import (
    DISAGREES_FROM,
    MOST_MISSING,
    NONE,
    Bound,
    Domain,
    How,
    Node,
    Picture,
    Quality,
)

ACK_MAX_AGE_S: Final = 120.0
_RANK: Final = {how: rank for rank, how in enumerate(How)}
_QUALITY: Final = {
    How.METER: Quality.OK,
    How.BELOW: Quality.OK,
    How.SIBLINGS: Quality.ESTIMATED,
    How.RESERVED: Quality.ESTIMATED,
    How.CAPS: Quality.ESTIMATED,
    How.UNCAPPED: Quality.MISSING,
}


def bound_loads(
    domains: Sequence[Domain], nodes: Sequence[Node], *, ack_max_age_s: float = ACK_MAX_AGE_S
) -> Picture:
    """What every domain draws at the most.

    A domain that no meter is expected of is bounded by what was admitted there. Where the lowest meter above a
    node is silent, the node is taken for the worst: its acknowledged caps, or none.

    Args:
        domains: In any order; the tree may have several tops, and no cycle.
        nodes: What hangs directly below each domain.
    """
    walk = _Walk(domains, ack_max_age_s)
    walk.add_nodes(nodes)
    walk.up()
    walk.down()
    return Picture(tuple(walk.bound(d) for d in range(len(domains))), frozenset(walk.unseen))


class _Walk:
    """The two walks, with what they leave at each domain."""

    def __init__(self, domains: Sequence[Domain], ack_max_age_s: float) -> None:
        n = len(domains)
        self.domains, self.ack_max_age_s = domains, ack_max_age_s
        self.children: list[list[int]] = [[] for _ in range(n)]
        for d, domain in enumerate(domains):
            if domain.parent != NONE:
                self.children[domain.parent].append(d)
        self.order = self._from_the_top()
        self.metered = [_metered_w(domain) for domain in domains]
        self.is_blind = self._blindness()
        # Of the nodes that hang directly below.
        self.direct_w, self.expected_w = [0.0] * n, [0.0] * n
        self.direct_how: list[How | None] = [None] * n
        self.unseen: set[int] = set()
        self.load_w, self.least_w, self.disagree_w = [0.0] * n, [0.0] * n, [0.0] * n
        self.n_meters, self.n_silent = [0] * n, [0] * n
        self.how: list[How] = [How.BELOW] * n

    def _from_the_top(self) -> list[int]:
        order = [d for d, domain in enumerate(self.domains) if domain.parent == NONE]
        for d in order:
            order += self.children[d]
        assert len(order) == len(self.domains), "a domain lies above itself"
        return order

    def _blindness(self) -> list[bool]:
        """Whether the lowest meter at or above each domain is silent."""
        blind = [False] * len(self.domains)
        for d in self.order:
            domain = self.domains[d]
            if domain.reading is not None:
                blind[d] = self.metered[d] is None
            elif domain.parent != NONE:
                blind[d] = blind[domain.parent]
        return blind

    def add_nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            d, is_blind = node.domain, self.is_blind[node.domain]
            how = How.RESERVED
            load_w = expected_w = node.rest_w
            if is_blind:
                how = How.CAPS
                for part in node.parts:
                    load_w += part.worst_w(self.ack_max_age_s)
                    self.unseen.add(part.job_id)
                    if part.most_w > 0 and not part.is_capped(self.ack_max_age_s):
                        how = How.UNCAPPED
            else:
                # Nothing draws more than its devices can, or are held to, whatever was reserved for it.
                load_w += sum(min(part.peak_w, part.worst_w(self.ack_max_age_s)) for part in node.parts)
            expected_w += sum(part.peak_w if part.mean_w is None else part.mean_w for part in node.parts)
            self.direct_w[d] += load_w
            self.expected_w[d] += expected_w
            self.direct_how[d] = _worse(self.direct_how[d], how)

    def up(self) -> None:
        """From the leaves: what is below, added up, where no meter says it."""
        for d in reversed(self.order):
            below = self.children[d]
            self.expected_w[d] += sum(self.expected_w[c] for c in below)
            own = self.domains[d].reading is not None
            self.n_meters[d] = own + sum(self.n_meters[c] for c in below)
            self.n_silent[d] = (own and self.metered[d] is None) + sum(self.n_silent[c] for c in below)
            least_w = sum(self.least_w[c] for c in below)
            metered_w = self.metered[d]
            if metered_w is not None:
                if least_w > metered_w * (1 + DISAGREES_FROM):
                    self.disagree_w[d] = least_w - metered_w
                # Of two meters that do not agree the higher one counts.
                self.load_w[d] = self.least_w[d] = max(metered_w, least_w)
                self.how[d] = How.METER
                continue
            self.load_w[d] = self.direct_w[d] + sum(self.load_w[c] for c in below)
            self.least_w[d] = least_w
            how = self.direct_how[d]
            for c in below:
                how = _worse(how, How.BELOW if self.how[c] is How.METER else self.how[c])
            self.how[d] = How.RESERVED if how is None else how

    def down(self) -> None:
        """From the top: a parent that is known, less what its other children draw at the least."""
        for d in self.order:
            parent = self.domains[d].parent
            if parent == NONE or self.how[d] in (How.METER, How.BELOW):
                continue
            # Only what was measured tells anything here; a sum of guesses above would say itself again.
            if self.how[parent] not in (How.METER, How.SIBLINGS) or self.disagree_w[parent] > 0:
                continue
            rest_w = self.load_w[parent] - sum(self.least_w[c] for c in self.children[parent] if c != d)
            if rest_w <= self.load_w[d] + 1e-9 * max(1.0, self.load_w[parent]):
                self.load_w[d] = max(rest_w, self.least_w[d])
                self.how[d] = How.SIBLINGS

    def bound(self, d: int) -> Bound:
        domain, how = self.domains[d], self.how[d]
        quality = _QUALITY[how]
        n_meters, n_silent = self.n_meters[d], self.n_silent[d]
        # One meter is either there or not: the share says something of several alone.
        is_mostly_dark = n_meters > 1 and n_silent > MOST_MISSING * n_meters
        is_unknown = domain.reading is not None and quality is not Quality.OK
        load_w = self.load_w[d]
        # A microwatt more is what sums of floats leave behind.
        over_w = load_w - domain.limit_w if load_w > domain.limit_w + 1e-6 else 0.0
        return Bound(
            load_w=load_w,
            least_w=self.least_w[d],
            expected_w=self.expected_w[d],
            quality=quality,
            how=how,
            n_meters=n_meters,
            n_silent=n_silent,
            disagree_w=self.disagree_w[d],
            over_w=over_w,
            is_held=is_unknown or is_mostly_dark or over_w > 0,
            is_alarm=is_mostly_dark or over_w > 0 or self.disagree_w[d] > 0 or how is How.UNCAPPED,
        )


def _metered_w(domain: Domain) -> float | None:
    """IT load by the domain's own meter; None: it says nothing that can be relied on."""
    if domain.reading is None or not domain.reading.is_good:
        return None
    return domain.meter.it_w(domain.reading.draw_w)


def _worse(one: How | None, other: How) -> How:
    return other if one is None or _RANK[other] > _RANK[one] else one


def held_paths(domains: Sequence[Domain], picture: Picture) -> tuple[bool, ...]:
    """By domain, whether nothing may start on its nodes: it is held itself, or one above it is."""
    held: list[bool] = []
    for d in range(len(domains)):
        at = d
        while at != NONE and not picture.bounds[at].is_held:
            at = domains[at].parent
        held.append(at != NONE)
    return tuple(held)

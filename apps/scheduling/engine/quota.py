"""Who may use how many devices: entitlement, borrowing and lending in the tree of teams.

A subtree owns what its members own together. What a team does not keep for itself (its lend limit says how much it
gives away) is stored in its parent, where its siblings borrow it; a borrow limit bounds what a team takes from there.
A team without a parent borrows from nobody.
"""

from collections.abc import Sequence

import numpy as np

from apps.scheduling.engine.facts import NONE, BoolArray, IntArray, Team
from apps.scheduling.engine.kernels import quota_available
from apps.scheduling.engine.units import BIG, FULL


class QuotaTree:
    """The teams' rights as arrays (t teams, k kinds), in millionths of a device."""

    def __init__(self, teams: Sequence[Team], n_kinds: int) -> None:
        t = len(teams)
        self.teams = tuple(teams)
        self.n_kinds = n_kinds
        self.parent = [team.parent for team in teams]
        self.parents: IntArray = np.array(self.parent, dtype=np.int64)
        self.limited: BoolArray = np.zeros(n_kinds, dtype=bool)
        own = np.zeros((t, n_kinds), dtype=np.int64)
        self.borrow: IntArray = np.full((t, n_kinds), BIG, dtype=np.int64)
        self.lend: IntArray = np.full((t, n_kinds), BIG, dtype=np.int64)
        for i, team in enumerate(teams):
            for k, devices in team.entitlement.items():
                own[i, k] = devices * FULL
                self.limited[k] = True
            for k, devices in team.borrow_limit.items():
                self.borrow[i, k] = devices * FULL
            for k, devices in team.lend_limit.items():
                self.lend[i, k] = devices * FULL
        self.own = own
        depth = [self._depth(i) for i in range(t)]
        self.upward = sorted(range(t), key=lambda i: -depth[i])  # children before parents
        self.subtree: IntArray = own.copy()
        self.kept: IntArray = np.zeros_like(own)  # what siblings never get
        for i in self.upward:
            if self.parent[i] != NONE:
                self.kept[i] = np.maximum(0, self.subtree[i] - self.lend[i])
                self.subtree[self.parent[i]] += self.subtree[i] - self.kept[i]

    def _depth(self, i: int) -> int:
        depth = 0
        while self.parent[i] != NONE:
            i, depth = self.parent[i], depth + 1
        return depth

    def path(self, team: int) -> list[int]:
        """The team and all above it, from the leaf up."""
        above = []
        while team != NONE:
            above.append(team)
            team = self.parent[team]
        return above

    def available(self, use: IntArray, team: int, kind: int) -> int:
        """Millionths of a device the team may still take of this kind; BIG where nobody limits it."""
        if team == NONE or not self.limited[kind]:
            return BIG
        return int(quota_available(use, team, kind, self.parents, self.subtree, self.kept, self.borrow))

    def borrows(self, use: IntArray, team: int, kind: int, extra: int = 0) -> bool:
        """Whether the team uses (or with `extra` would use) more than its subtree owns."""
        return (
            team != NONE
            and bool(self.limited[kind])
            and int(use[team, kind]) + extra > int(self.subtree[team, kind])
        )

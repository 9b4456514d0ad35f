"""Who may use how many devices: entitlement, borrowing and lending in the tree of teams.

A subtree owns what its members own together. What a team does not keep for itself (its lend limit says how much it
gives away) is stored in its parent, where its siblings borrow it; a borrow limit bounds what a team takes from there.
A team without a parent borrows from nobody.

A member whose jobs are limited is a leaf below its team that owns nothing and borrows up to its limits; its running
jobs are counted in a column of their own, as if they were devices that nobody else limits. So whatever keeps quotas at
every instant, of now and of what is promised, keeps these limits too.
"""

from collections.abc import Sequence

import numpy as np

from apps.scheduling.engine.facts import NONE, BoolArray, Gang, IntArray, Member, Team
from apps.scheduling.engine.kernels import quota_available
from apps.scheduling.engine.units import BIG, FULL


class QuotaTree:
    """The rights of teams, and behind them of limited members, as arrays (t accounts, k columns), in millionths.

    A column is a kind of device; where members are limited, the last one (`jobs`) counts running jobs.

    Attributes:
        limited: (k,) kinds of which teams own something: quota holds for these.
        counted: (k,) those, and what some member is limited in.
    """

    def __init__(self, teams: Sequence[Team], n_kinds: int, members: Sequence[Member] = ()) -> None:
        t = len(teams) + len(members)
        assert all(0 <= member.team < len(teams) for member in members)
        self.teams, self.members = tuple(teams), tuple(members)
        self._account = {(member.team, member.user): len(teams) + i for i, member in enumerate(self.members)}
        self.jobs = n_kinds
        n_columns = n_kinds + bool(members)
        self.parent = [*(team.parent for team in teams), *(member.team for member in members)]
        self.parents: IntArray = np.array(self.parent, dtype=np.int64)
        self.limited: BoolArray = np.zeros(n_columns, dtype=bool)
        own = np.zeros((t, n_columns), dtype=np.int64)
        self.borrow: IntArray = np.full((t, n_columns), BIG, dtype=np.int64)
        self.lend: IntArray = np.full((t, n_columns), BIG, dtype=np.int64)
        for i, team in enumerate(teams):
            for k, devices in team.entitlement.items():
                own[i, k] = devices * FULL
                self.limited[k] = True
            for k, devices in team.borrow_limit.items():
                self.borrow[i, k] = devices * FULL
            for k, devices in team.lend_limit.items():
                self.lend[i, k] = devices * FULL
        self.counted: BoolArray = self.limited.copy()
        for i, member in enumerate(self.members, len(teams)):
            for k, devices in member.devices.items():
                self.borrow[i, k] = devices * FULL
                self.counted[k] = True
            if member.running_jobs is not None:
                self.borrow[i, self.jobs] = member.running_jobs * FULL
                self.counted[self.jobs] = True
        unowned = np.flatnonzero(self.counted & ~self.limited)
        if len(unowned):
            # Here members alone are limited: whoever stands at the top has plenty, and nothing holds in between.
            own[np.ix_(np.flatnonzero(self.parents == NONE), unowned)] = BIG
            self.borrow[: len(teams), unowned] = BIG
            self.lend[: len(teams), unowned] = BIG
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

    def account(self, gang: Gang) -> int:
        """Where what the gang takes is counted first: at its member if that one is limited, else at its team."""
        if not self._account:
            return gang.team
        return self._account.get((gang.team, gang.user), gang.team)

    def member_of(self, account: int) -> Member | None:
        """The limited member whose account this is; None: it is a team's."""
        return self.members[account - len(self.teams)] if account >= len(self.teams) else None

    def limits_jobs(self, account: int) -> bool:
        """Whether running jobs are counted and limited there."""
        return account >= len(self.teams) and int(self.borrow[account, self.jobs]) < BIG

    def path(self, team: int) -> list[int]:
        """The team and all above it, from the leaf up."""
        above = []
        while team != NONE:
            above.append(team)
            team = self.parent[team]
        return above

    def available(self, use: IntArray, team: int, kind: int) -> int:
        """Millionths of a device the account may still take of this kind; BIG where nobody limits it."""
        if team == NONE or not self.counted[kind]:
            return BIG
        return int(quota_available(use, team, kind, self.parents, self.subtree, self.kept, self.borrow))

    def borrows(self, use: IntArray, team: int, kind: int, extra: int = 0) -> bool:
        """Whether the team uses (or with `extra` would use) more than its subtree owns."""
        return (
            team != NONE
            and bool(self.limited[kind])
            and int(use[team, kind]) + extra > int(self.subtree[team, kind])
        )

"""The run times by which the jobs of a picture are predicted, remembered from one picture to the next.

Each owner (`jobs.past_runs`) has a position, to which its jobs point. When a job ends, what moves is one number, not
the thousands of jobs that wait. Asked of the database are owners that are new, and those whose jobs have just ended.
"""

from array import array
from collections.abc import Collection
from math import inf
from typing import Final

import numpy as np

from apps.jobs import past_runs
from apps.jobs.past_runs import Owner

_NOBODY_S: Final = float("nan")  # nothing is known
_MOST: Final = 50_000  # owners that are kept even if few of them have a job left


class Histories:
    """What is remembered of owners. Positions never change."""

    def __init__(self) -> None:
        self._at: dict[Owner, int] = {}
        self._owners: list[Owner] = []
        self._own_s = array("d")
        self._user_at: dict[int, int] = {}
        self._of_user = array("q")  # by owner, the position of its person
        self._user_s = array("d")
        self._asked: set[int] = set()  # owners to be looked up
        self._asked_users: set[int] = set()
        self._told: tuple[float, ...] = ()

    def position(self, owner: Owner) -> int:
        """Where this owner stands."""
        known = self._at.get(owner)
        if known is not None:
            return known
        position = self._at[owner] = len(self._owners)
        self._owners.append(owner)
        self._own_s.append(_NOBODY_S)
        user = self._user_at.get(owner.user_id)
        if user is None:
            user = self._user_at[owner.user_id] = len(self._user_s)
            self._user_s.append(_NOBODY_S)
            self._asked_users.add(owner.user_id)
        self._of_user.append(user)
        self._asked.add(position)
        return position

    def note_end(self, owner: Owner) -> None:
        """A job of this owner has ended."""
        if owner.user_id in self._user_at:
            self._asked_users.add(owner.user_id)
        if owner in self._at:
            self._asked.add(self._at[owner])

    def note_all(self) -> None:
        """Nobody knows what has ended."""
        self._asked.update(range(len(self._owners)))
        self._asked_users.update(self._user_at)

    def has_many_strangers(self, n_jobs: int) -> bool:
        """Whether most owners have no job any more: then it is cheaper to begin anew."""
        return len(self._owners) > max(_MOST, 4 * n_jobs)

    def told(self) -> tuple[float, ...]:
        """Seconds that jobs of each owner take, by position: those of its name, else of its person; inf: unknown."""
        if not self._asked and not self._asked_users:
            return self._told
        self._look_up(sorted(self._asked), self._asked_users)
        own_s, user_s = np.array(self._own_s), np.array(self._user_s)
        took_s = np.where(np.isnan(own_s), user_s[np.array(self._of_user)], own_s)
        took_s[np.isnan(took_s)] = inf
        self._told = tuple(took_s.tolist())
        self._asked, self._asked_users = set(), set()
        return self._told

    def _look_up(self, positions: list[int], user_ids: Collection[int]) -> None:
        found = past_runs.of_owners([self._owners[position] for position in positions])
        for number, position in enumerate(positions):
            self._own_s[position] = found.get(number, _NOBODY_S)
        of_user = past_runs.of_users(user_ids)
        for user_id in user_ids:
            self._user_s[self._user_at[user_id]] = of_user.get(user_id, _NOBODY_S)

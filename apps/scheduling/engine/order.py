"""In which order the queue is looked at, and the words that explain it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, inf
from typing import TypeVar

import numpy as np

from apps.scheduling.engine.facts import (
    NONE,
    BoolArray,
    Facility,
    FloatArray,
    Gang,
    IntArray,
    Policy,
    Shape,
    Snapshot,
    Team,
)
from apps.scheduling.engine.placement import kinds_of, total_steps
from apps.scheduling.engine.predict import predicted_s
from apps.scheduling.engine.units import FULL

OrderKey = tuple[object, ...]
WidthT = TypeVar("WidthT", float, FloatArray)


def fair_shares(teams: Sequence[Team], capacity: Sequence[int]) -> list[float]:
    """Each team's decayed use against its weight: the largest over kinds of use by its subtree over capacity.

    Args:
        teams: The tree; `decayed_use_s` of a team is its own jobs' use.
        capacity: Devices of each kind.

    Returns:
        Device-seconds per device of capacity and unit of weight, (t,). Lower goes first.

    Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011, with decayed use in place of current holdings.
    """
    use: list[dict[int, float]] = [dict(team.decayed_use_s) for team in teams]
    for i in sorted(range(len(teams)), key=lambda i: -_depth(teams, i)):
        parent = teams[i].parent
        if parent != NONE:
            for kind, seconds in use[i].items():
                use[parent][kind] = use[parent].get(kind, 0.0) + seconds
    return [
        # Rounded: what differs by less than a millionth of a second a device is equal.
        round(
            max((s / max(capacity[k], 1) for k, s in sorted(use[i].items())), default=0.0) / teams[i].weight,
            6,
        )
        for i in range(len(teams))
    ]


def _depth(teams: Sequence[Team], i: int) -> int:
    depth = 0
    while teams[i].parent != NONE:
        i, depth = teams[i].parent, depth + 1
    return depth


def share_paths(teams: Sequence[Team], capacity: Sequence[int]) -> list[tuple[float, ...]]:
    """Each team's fair share below those of the teams above it, (t,): compared from the top of the tree down."""
    shares = fair_shares(teams, capacity)
    paths: list[tuple[float, ...]] = []
    for i in range(len(teams)):
        path, at = [], i
        while at != NONE:
            path.append(shares[at])
            at = teams[at].parent
        paths.append(tuple(reversed(path)))
    return paths


def capacity_of(facility: Facility) -> list[int]:
    """Devices of each kind, as built."""
    n_devices = np.bincount(facility.kind, weights=facility.n_devices, minlength=len(facility.kinds))
    return [round(n) for n in n_devices.tolist()]


def team_places(snapshot: Snapshot) -> list[int]:
    """Each team's place among all by fair share, (t,): lower goes first, and equal shares have equal places."""
    paths = share_paths(snapshot.teams, capacity_of(snapshot.facility))
    place = {path: number for number, path in enumerate(sorted(set(paths)))}
    return [place[path] for path in paths]


def steps_by_age(waited_s: float, ageing_s: float) -> int:
    """Steps of priority that a job has gained by waiting; none where `ageing_s` is inf or makes no sense."""
    return floor(max(0.0, waited_s) / ageing_s) if 0 < ageing_s < inf else 0


def width_of(shape: Shape, capacity: Sequence[int]) -> float:
    """What a job asks for of the devices of that type, of those it accepts, of which there are most; 0 to 1.

    Args:
        capacity: Devices of each kind, as built.
    """
    most = max((capacity[kind] for kind in kinds_of(shape) or ()), default=0)
    return min(1.0, total_steps(shape) / (most * FULL)) if most else 0.0


def overdue_after_s(starving_s: float, by_width: float, width: WidthT) -> WidthT:
    """How long a job of this width waits, with the shortest first, until it goes before all who did not wait so long.

    What is wide fits nowhere between others: it starts only when it is first and the machine is emptied for it. So
    the wider a job, the sooner it is first.
    """
    return starving_s * (1.0 - by_width * width)


def order_queue(snapshot: Snapshot, policy: Policy) -> list[Gang]:
    """The queue, first come first: priority, fair share, submit time, deadline, then what was logged first.

    Before all of them goes who was paused for an event: it stood on devices, and the others only wait for some.
    With ageing the priority counts with what a job has gained by waiting; who may evict whom it does not change.
    """
    if policy.order == "submit":
        return sorted(
            snapshot.queue, key=lambda g: (not g.goes_first, g.submitted_s, g.deadline_s, g.sequence)
        )
    capacity = capacity_of(snapshot.facility)
    paths = share_paths(snapshot.teams, capacity)
    now_s, ageing_s = snapshot.now_s, policy.ageing_s
    ages = 0 < ageing_s < inf
    overdue_after: dict[int, float] = {}  # by shape, s

    def waits_at_most_s(gang: Gang) -> float:
        if not policy.starving_by_width:
            return policy.starving_s
        known_s = overdue_after.get(id(gang.shape))
        if known_s is None:
            width = width_of(gang.shape, capacity)
            known_s = overdue_after_s(policy.starving_s, policy.starving_by_width, width)
            overdue_after[id(gang.shape)] = known_s
        return known_s

    def key(gang: Gang) -> OrderKey:
        share = paths[gang.team] if gang.team != NONE and paths else ()
        last = (gang.submitted_s, gang.deadline_s, gang.sequence)
        priority = gang.priority + (steps_by_age(now_s - gang.submitted_s, ageing_s) if ages else 0)
        if policy.order != "shortest":
            return (not gang.goes_first, -priority, share, *last)
        # Whoever has waited too long is served in order of submission, so that nobody is passed for ever.
        starves = now_s - gang.submitted_s >= waits_at_most_s(gang)
        predicted = predicted_s(gang, snapshot.history_s)
        expected_s = 0.0 if starves else min(predicted, gang.limit_s, gang.work_s)
        return (not gang.goes_first, -priority, not starves, share, expected_s, *last)

    return sorted(snapshot.queue, key=key)


# Who stands before whom ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Line:
    """The jobs that wait and could start, as columns in any order. What the policy's order leaves out is 0."""

    id: IntArray  # (q,) unique; of jobs that tie in all else the lower goes first
    priority: IntArray  # (q,) with what was gained by waiting
    is_overdue: BoolArray  # (q,) with the shortest first: has waited so long that it goes before who has not
    share: IntArray  # (q,) the place of its team's fair share among all: lower is further below its share
    expected_s: FloatArray  # (q,) with the shortest first: how long it will probably run; 0 for those overdue
    submitted_s: FloatArray  # (q,)
    deadline_s: FloatArray  # (q,) inf: none
    group: IntArray  # (q,) of jobs that accept the same accelerator types
    rivals: Mapping[
        int, Collection[int]
    ]  # by group: those with which it has a type in common, itself among them

    @cached_property
    def in_order(self) -> IntArray:
        """Positions in the columns, (q,): who goes first comes first."""
        return np.lexsort(
            (
                self.id,
                self.deadline_s,
                self.submitted_s,
                self.expected_s,
                self.share,
                ~self.is_overdue,
                -self.priority,
            )
        )

    @cached_property
    def blocks(self) -> tuple[IntArray, ...]:
        """For each place in the order, (q,), where those begin that are equal to it in priority; also in being overdue;
        also in share; also in expected run time."""
        at = np.arange(len(self.id))
        is_new = np.zeros(len(at), dtype=bool)
        found = []
        for column in (self.priority, self.is_overdue, self.share, self.expected_s):
            values = column[self.in_order]
            is_new[1:] |= values[1:] != values[:-1]
            found.append(np.maximum.accumulate(np.where(is_new, at, 0)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Jobs that want the same accelerator types and go before a job, by the first thing that tells them apart."""

    of_higher_priority: int = 0
    overdue: int = 0  # where the shortest goes first: has waited too long to be passed
    below_share: int = 0  # of a team that is further below its fair share
    shorter: int = 0  # where the shortest goes first
    earlier: int = 0  # submitted earlier

    @property
    def n(self) -> int:
        return self.of_higher_priority + self.overdue + self.below_share + self.shorter + self.earlier

    @property
    def sentence(self) -> str:
        """As people read it, without a name."""
        if not self.n:
            return "No job that competes with it goes first."
        parts = (
            (self.of_higher_priority, "of higher priority"),
            (self.overdue, "that waited too long to be passed"),
            (self.below_share, "of a team further below its share"),
            (self.shorter, "probably shorter"),
            (self.earlier, "submitted earlier"),
        )
        said = ", ".join(f"{count} {what}" for count, what in parts if count)
        return f"Behind {self.n} {'job' if self.n == 1 else 'jobs'}: {said}."


def ahead_of(line: Line, ids: Collection[int]) -> dict[int, Ahead]:
    """Who goes before each of these jobs, by its id; a job that is not in the line has no answer.

    The line is put in order once; after that it takes a few looks at one column for each group of jobs asked for.
    """
    order = line.in_order
    places = np.flatnonzero(np.isin(line.id[order], list(ids)))
    n_before: dict[int, IntArray] = {}  # by group, (q + 1,): competing jobs before each place
    found: dict[int, Ahead] = {}
    for place in places.tolist():
        position = order[place]
        group = int(line.group[position])
        if group not in n_before:
            competes = np.isin(line.group[order], list(line.rivals[group]))
            n_before[group] = np.concatenate(([0], np.cumsum(competes)))
        counts = n_before[group][[0, *(starts[place] for starts in line.blocks), place]]
        found[int(line.id[position])] = Ahead(*np.diff(counts).tolist())
    return found

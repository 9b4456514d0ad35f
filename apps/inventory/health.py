"""The rules by which nodes are judged, and every number in them. No clock, no database: what is known is passed in.

Three things speak against a node: what probes and agents report of it, attempts that went wrong on it, and how slow it
is beside others. What is decided of it and for how long stands here alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from statistics import median
from typing import Final

from apps.inventory.models import FailureKind, Health

# Reports ------------------------------------------------------------------------------------------------------------

STATUSES: Final = ("ok", "degraded", "failed")
GOOD_REPORTS: Final = 3  # in a row, from each source that had something against the node
MOST_CHECKS: Final = 64
REPORTS_KEPT: Final = 50  # rows a node; the same said again takes no new one
REPORTS_KEPT_FOR: Final = timedelta(days=30)
FROM_THE_FUTURE: Final = timedelta(seconds=60)  # clocks may differ by so much


@dataclass(frozen=True, slots=True)
class Rule:
    """What a failing check of this name comes to.

    `failed` takes what runs there away; `suspect` lets it end and gives the node no more.
    """

    check: str  # a name, or a pattern with *
    verdict: str
    n_bad: int = 1  # reports in a row before it counts
    n_good: int = GOOD_REPORTS  # reports in a row without it before the node may come back


# The first that fits counts. `status:...` is what a source concludes whatever its checks say.
RULES: Final = (
    Rule("status:failed", Health.FAILED),
    Rule("status:degraded", Health.SUSPECT),
    # The device is off the bus: what runs there hangs, and mostly the whole machine does.
    Rule("xid_79", Health.FAILED, n_good=5),
    # What used that device is dead already; work on the others may end in peace.
    Rule("ecc_uncorrected*", Health.SUSPECT, n_good=5),
    Rule("device_missing*", Health.SUSPECT, n_bad=2, n_good=5),
    Rule("xid*", Health.SUSPECT, n_good=5),
    Rule("driver*", Health.SUSPECT, n_bad=2),
    # What runs may end well, but new work would start badly.
    Rule("disk_space*", Health.SUSPECT, n_bad=2),
    Rule("temperature*", Health.SUSPECT, n_bad=3),
    Rule("memory*", Health.SUSPECT, n_bad=3),
    Rule("load*", Health.SUSPECT, n_bad=10),  # jobs make load; only what never ends is a sign of trouble
    Rule("*", Health.SUSPECT),
)

_SEVERITY: Final = {Health.HEALTHY: 0, Health.SUSPECT: 1, Health.FAILED: 2}


def worst(verdicts: Iterable[str]) -> str:
    return max((Health(one) for one in verdicts), key=_SEVERITY.__getitem__, default=Health.HEALTHY)


def is_worse(one: str, other: str) -> bool:
    return _SEVERITY[Health(one)] > _SEVERITY[Health(other)]


def rule_of(check: str) -> Rule:
    return next(rule for rule in RULES if fnmatchcase(check, rule.check))


def objections(status: str, failing: Collection[str]) -> tuple[str, ...]:
    """Everything that a report has against its node, by the names that rules know."""
    own = () if status == "ok" else (f"status:{status}",)
    return tuple(sorted({*own, *failing}))


def verdict_of(objected: Collection[str]) -> str:
    """What a report comes to if it is believed at once."""
    return worst(rule_of(name).verdict for name in objected)


@dataclass(frozen=True, slots=True)
class Said:
    """Reports of one source that say the same, one after the other."""

    objected: tuple[str, ...]
    n_reports: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one source says of a node, all in all."""

    verdict: str
    names: tuple[str, ...]  # what counts against it
    is_content: bool  # nothing is open: what it ever objected to has been well for long enough


def opinion_of(said: Sequence[Said]) -> Opinion:
    """Judge one source by its reports, the newest first."""
    if not said:
        return Opinion(Health.HEALTHY, (), is_content=True)
    counting = tuple(name for name in said[0].objected if _n_in_a_row(name, said) >= rule_of(name).n_bad)
    if counting:
        return Opinion(verdict_of(counting), counting, is_content=False)
    return Opinion(Health.HEALTHY, (), is_content=_is_forgiven(said))


def _n_in_a_row(name: str, said: Iterable[Said]) -> int:
    """In how many of the newest reports it is."""
    n_reports = 0
    for one in said:
        if name not in one.objected:
            break
        n_reports += one.n_reports
    return n_reports


def _n_without(name: str, said: Iterable[Said]) -> int:
    """In how many of the newest reports it is not."""
    n_reports = 0
    for one in said:
        if name in one.objected:
            break
        n_reports += one.n_reports
    return n_reports


def _is_forgiven(said: Sequence[Said]) -> bool:
    """Each objection that ever counted has been absent for as many reports as its rule asks."""
    names = {name for one in said for name in one.objected}
    return all(
        _n_without(name, said) >= rule_of(name).n_good
        or all(_n_in_a_row(name, said[index:]) < rule_of(name).n_bad for index in range(len(said)))
        for name in names
    )


# Failures -----------------------------------------------------------------------------------------------------------

EARLY_END_S: Final = 60.0  # an attempt that fails sooner may have met a bad node
FAILURES_COUNTED_FOR: Final = timedelta(hours=1)
QUARANTINE_AFTER: Final = 3.0  # failures within that time
QUARANTINE_AFTER_ON_PROBATION: Final = 2.0  # when it was quarantined lately
SHORT_COOLDOWN: Final = timedelta(seconds=30)  # after any failure that may be the node's: no instant reuse
FIRST_COOLDOWN: Final = timedelta(minutes=5)
LONGEST_COOLDOWN: Final = timedelta(hours=6)
FORGIVEN_AFTER: Final = timedelta(hours=24)  # without another quarantine
MOST_QUARANTINES: Final = 1000
ONE_INCIDENT: Final = timedelta(seconds=20)  # what fails together on a node failed once
FAILURES_KEPT_FOR: Final = timedelta(days=30)
MOST_ATTEMPTS: Final = 10  # newest of one origin that are looked at, to find out whose fault they are
MOST_SUSPECTS: Final = 64  # a gang of more nodes says nothing about any of them
REST_FROM_BLAME: Final = 0.5  # a node that has less of the blame for a failure goes on at once


def cooldown(n_quarantines: int) -> timedelta:
    """How long a node rests: twice as long each time, up to a maximum."""
    doublings = min(max(n_quarantines, 1) - 1, 30)
    return min(FIRST_COOLDOWN * (1 << doublings), LONGEST_COOLDOWN)


def suspects(attempts: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Nodes that took part in every one of these failed attempts. None: it is not the nodes.

    A job that fails here and then there has brought its trouble along.

    Args:
        attempts: Nodes by allocation, all of one origin.
    """
    sets = iter(attempts.values())
    common = next(sets, frozenset())
    for nodes in sets:
        common &= nodes
    return common


@dataclass(frozen=True, slots=True)
class Blamed:
    """A failure, as it counts against one node."""

    at: datetime
    origin: str
    kind: str
    blame: float


def score(failures: Iterable[Blamed]) -> float:
    """How many failures speak against a node.

    What fails together counts once. Early ends are weak evidence, since most are mistakes in what was submitted:
    those of one origin count once at most, so that nobody can take a node from everybody else.
    """
    total = 0.0
    early: dict[str, float] = {}
    begun_at: datetime | None = None
    worth = 0.0
    for one in sorted(failures, key=lambda one: one.at):
        if one.kind == FailureKind.EARLY_END:
            early[one.origin] = max(early.get(one.origin, 0.0), one.blame)
        elif begun_at is not None and one.at - begun_at < ONE_INCIDENT:
            worth = max(worth, one.blame)
        else:
            total += worth
            begun_at, worth = one.at, one.blame
    return total + worth + sum(early.values())


# Pace ---------------------------------------------------------------------------------------------------------------

SLOW_JOBS: Final = 2  # different jobs in which a node is slow
PACES_COUNTED_FOR: Final = timedelta(hours=24)
SLOW_FOR_LONG: Final = timedelta(minutes=30)  # or in one, for so long
SLOWEST: Final = 0.1  # no estimate is lower: what is slower than that is broken
LEAST_CHANGE: Final = 0.03  # smaller changes are noise, and each makes the planner read the facility anew
RECOVERY_EVERY: Final = timedelta(minutes=10)  # of keeping pace: half of what is missing comes back
AT_PAR: Final = 0.97
PACES_KEPT_FOR: Final = timedelta(days=30)


def estimate(relative_speeds: Sequence[float]) -> float:
    """A node's speed as a share of what it was declared, from what several jobs saw (the median)."""
    return round(min(max(median(relative_speeds), SLOWEST), 1.0), 2)


def recovered(measured_speed: float) -> float:
    """A step on the way back to 1."""
    better = round((1.0 + measured_speed) / 2, 3)
    return 1.0 if better >= AT_PAR else better

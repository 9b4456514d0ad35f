"""What a bound on the load is made from, and what comes out: plain values in watts of IT load and seconds.

Positions point into the tuple of domains. A reading of a facility is at its meter; its domain says how IT load
follows from it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from typing import Final

from apps.power.response import Meter

NONE: Final = -1
MOST_MISSING: Final = 0.2  # of the meters of a domain; with more of them silent nobody knows what it draws
DISAGREES_FROM: Final = 0.02  # by so much meters below may add up to more than the one above


class Quality(StrEnum):
    """How far the load of a domain is known, from the best to the worst."""

    OK = "ok"
    ESTIMATED = "estimated"
    MISSING = "missing"


class How(StrEnum):
    """By what a bound is told, from the best to the worst."""

    METER = "meter"
    BELOW = "below"  # the meters of the domains below, added up
    SIBLINGS = "siblings"  # the meter above, less the ones beside it
    RESERVED = "reserved"  # no meter is expected here: what was admitted, at its peak
    CAPS = "caps"  # the meter is silent; nodes have acknowledged their caps
    UNCAPPED = "uncapped"  # the meter is silent, and nothing says that a cap holds


@dataclass(frozen=True, slots=True)
class Reading:
    """The last word of a domain's meter, on that meter's own side.

    Attributes:
        age_s: Negative: its clock is ahead of ours, which is no better than behind.
        max_age_s: Older than that it says nothing.
        quality: ok, estimated, missing or bad, in the meter's own words.
    """

    draw_w: float
    age_s: float
    max_age_s: float
    quality: str = "ok"
    source: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it may be taken for what the domain draws now."""
        return (
            self.quality == "ok"
            and isfinite(self.draw_w)
            and self.draw_w >= 0
            and abs(self.age_s) <= self.max_age_s
        )


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain of the power tree.

    Attributes:
        parent: Position; NONE at the top.
        limit_w: What it may draw now, of IT load; inf: no limit.
        reading: None: no meter has spoken of it for so long that none is expected.
        meter: How IT load follows from the reading.
    """

    name: str
    parent: int = NONE
    limit_w: float = inf
    reading: Reading | None = None
    meter: Meter = field(default_factory=Meter)


@dataclass(frozen=True, slots=True)
class Part:
    """What one job adds to a node that is at rest, in watts above its devices' idle draw.

    Attributes:
        peak_w: What was reserved for it.
        most_w: What its devices can draw at the most, with no cap.
        capped_w: What they can draw under the cap that was last acknowledged; None: there is none.
        ack_age_s: Of that acknowledgement.
    """

    job_id: int
    peak_w: float
    most_w: float
    capped_w: float | None = None
    ack_age_s: float = inf
    mean_w: float | None = None  # what it is expected to draw; None: its peak

    def is_capped(self, ack_max_age_s: float) -> bool:
        """Whether the cap may be counted on."""
        return self.capped_w is not None and abs(self.ack_age_s) <= ack_max_age_s

    def worst_w(self, ack_max_age_s: float) -> float:
        """What it draws at the worst when nobody can see it."""
        if self.capped_w is not None and self.is_capped(ack_max_age_s):
            return min(self.capped_w, self.most_w)
        return self.most_w


@dataclass(frozen=True, slots=True)
class Node:
    """A node, or several of one domain taken together: at rest with all devices idle, and what jobs add."""

    domain: int
    rest_w: float
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """What one domain draws at the most, and how far that is known.

    Attributes:
        load_w: Never below the true load while the readings that are ok are true.
        least_w: Never above it.
        expected_w: What the model says of its jobs at their mean, with no regard to any meter.
        n_meters: Meters expected at it and below it.
        n_silent: Of these, those whose last word is too old or no good.
        disagree_w: By how much the meters below add up to more than its own says.
        over_w: What must go from jobs that can be seen, so that even the bound is within the limit.
        is_held: Nothing may start under it.
        is_alarm: Somebody has to look.
    """

    load_w: float
    least_w: float
    expected_w: float
    quality: Quality
    how: How
    n_meters: int = 0
    n_silent: int = 0
    disagree_w: float = 0.0
    over_w: float = 0.0
    is_held: bool = False
    is_alarm: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """The bounds of all domains, by position, and which jobs are out of sight."""

    bounds: tuple[Bound, ...]
    unseen_jobs: frozenset[int]

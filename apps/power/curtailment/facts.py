"""What a curtailment is decided from, and what is decided: plain values, whole microwatts and device-milliseconds.

Draws and sheds are IT load. A limit is a power domain whose draw must come down; positions point into the tuples
of one Problem. Names serve sentences alone; of two jobs that are equally good the later one is touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf
from typing import Final

# Largest average loss of throughput over one event, by tier, and what a lost device-second counts.
ALLOWED_LOSS: Final = (0.0, 0.10, 0.25, 0.50, 1.0)
WEIGHT: Final = (8.0, 4.0, 2.0, 1.0, 0.5)
FIRM, INTERRUPTIBLE = 0, 4


class Lever(StrEnum):
    """How a job, or a node at rest, comes to draw less, from the lightest to the heaviest."""

    NONE = "none"
    POWER_OFF = "power_off"  # of a node on which nothing runs
    CAP = "cap"
    SHRINK = "shrink"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that may be done with one job."""

    lever: Lever
    cap: float = 1.0  # share of TDP on every device of the job
    n_replicas: int = 0  # what is left of a job that shrinks
    shed_uw: tuple[tuple[int, int], ...] = ()  # (limit, microwatts), limits in order, each once
    cost_ms: int = 0  # weighted device-milliseconds
    lost_ms: int = 0  # the same without weights
    takes_s: float = 0.0  # from the command until the draw is down

    @property
    def total_uw(self) -> int:
        """A measure of how much is shed; where limits lie inside one another a watt counts in each."""
        return sum(watts for _, watts in self.shed_uw)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running job and what may be done with it; the first option is to leave it alone."""

    job_id: int
    tier: int
    n_devices: float
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """A domain that must come down by so much."""

    domain: int
    need_uw: int
    priority: int = 1  # of the event that asks, 0 first; -1: a limit that nothing may pass


@dataclass(frozen=True, slots=True)
class Problem:
    candidates: tuple[Candidate, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Curtailment:
    """One option for each candidate.

    Attributes:
        choices: By candidate, the position of its option.
        short_uw: By limit, what is missing.
        achievable_uw: By limit, the most that all options together can shed there.
        cost_ms: Weighted device-milliseconds lost.
        bound_ms: No plan with as little missing costs less.
        method: "exact", "relaxed" or "greedy".
    """

    choices: tuple[int, ...]
    short_uw: tuple[int, ...]
    achievable_uw: tuple[int, ...]
    cost_ms: int
    bound_ms: float
    method: str

    @property
    def is_feasible(self) -> bool:
        return not any(self.short_uw)

    @property
    def gap(self) -> float:
        """How far above the bound the cost may be, as a share of the cost; 0: proved the least."""
        return 0.0 if self.cost_ms <= self.bound_ms else 1.0 - self.bound_ms / self.cost_ms

    def chosen(self, problem: Problem) -> Mapping[int, Option]:
        """By job, what is done with it; those left alone are not in it."""
        return {
            candidate.job_id: candidate.options[choice]
            for candidate, choice in zip(problem.candidates, self.choices, strict=True)
            if choice
        }


@dataclass(frozen=True, slots=True)
class Curve:
    """Throughput by cap of one accelerator type.

    Attributes:
        points: (cap as a share of TDP, share of throughput), from the lowest allowed cap to (1, 1).
    """

    tdp_w: float
    idle_w: float
    points: tuple[tuple[float, float], ...]
    step_w: float
    settle_s: float

    @classmethod
    def coarse(
        cls,
        points: Sequence[Sequence[float]],
        *,
        tdp_w: float,
        idle_w: float,
        step_w: float,
        settle_s: float,
        n_steps: int,
    ) -> "Curve":
        """With about so many caps from full power down to the lowest, each a whole number of the device's own steps.

        Fine steps of many devices are of no use to a decision. Without points no cap slows anything: there is none.
        """
        known = tuple((float(cap), float(rate)) for cap, rate in points) or ((1.0, 1.0),)
        coarse_w = max(step_w, (1.0 - known[0][0]) * tdp_w / n_steps)
        return cls(
            tdp_w=tdp_w,
            idle_w=idle_w,
            points=known,
            step_w=-(-coarse_w // step_w) * step_w,
            settle_s=settle_s,
        )

    def rate(self, cap: float, draw_w: float) -> float:
        """Share of throughput under a cap; a cap at or above what the device draws anyway slows nothing."""
        if cap * self.tdp_w >= draw_w - 1e-9:
            return 1.0
        points = self.points
        if cap <= points[0][0]:
            return points[0][1]
        for (low, slow), (high, fast) in pairwise(points):
            if cap <= high:
                return slow + (fast - slow) * (cap - low) / (high - low)
        return 1.0

    def caps(self) -> tuple[float, ...]:
        """Every cap below full power that a device can be set to, the highest first."""
        lowest_w = self.points[0][0] * self.tdp_w
        found: list[float] = []
        n = 1
        while (watts := self.tdp_w - n * self.step_w) >= lowest_w - 1e-6:
            found.append(max(watts / self.tdp_w, self.points[0][0]))
            n += 1
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Smaller:
    """A size below its present one at which an elastic job can go on.

    Attributes:
        n_replicas: What is left.
        rate: Share of its present throughput that is left.
        gone_under: By limit, how many of its devices are given up there.
        stall_s: Time without work that the change takes.
        takes_s: From the command until the devices are at rest.
    """

    n_replicas: int
    rate: float
    gone_under: Mapping[int, float]
    stall_s: float = 0.0
    takes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Idle:
    """A node on which nothing runs, and which may be switched off.

    Attributes:
        node: Its position or id; an option for it has the job id that idle_id() gives.
        under: The limits that it lies under.
        shed_w: What it draws at rest, less what it draws when off.
        takes_s: From the command until it is off.
        boot_s: From the command until it takes work again.
    """

    node: int
    n_devices: float
    under: tuple[int, ...]
    shed_w: float
    takes_s: float = 0.0
    boot_s: float = 0.0


def idle_id(node: int) -> int:
    """What stands for a node where jobs have their ids; job ids are not negative."""
    return -1 - node


@dataclass(frozen=True, slots=True)
class Load:
    """A running job as the decision sees it.

    Attributes:
        devices_under: By limit, how many devices of the job (fractions counted as such) lie under it.
        draw_w: What one device draws now, without a cap.
        checkpoint_s: How long a checkpoint takes to write; inf: it writes none.
        at_risk_s: Work, in seconds, that is lost if it is cut without one.
        restart_s: What the next start spends.
        smaller: Sizes at which it could go on, the largest first.
        bears: Largest average loss over the window that it still bears, as a share; None: what its tier does.
    """

    job_id: int
    tier: int
    n_devices: float
    devices_under: Mapping[int, float]
    draw_w: float
    curve: Curve
    checkpoint_s: float = inf
    at_risk_s: float = 0.0
    restart_s: float = 0.0
    smaller: tuple[Smaller, ...] = ()
    bears: float | None = None

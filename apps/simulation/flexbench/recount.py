"""What a run drew and delivered, counted again from its lines alone: the product's own figures are not believed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

Scene = dict[str, Any]
ALLOWED_LOSS = (0.0, 0.10, 0.25, 0.50, 1.0)
_DONE = ("finish", "timeout", "fail", "cancel", "preempt", "node_lost")


@dataclass
class Run:
    """A job as the lines tell of it."""

    tier: int
    power_w: float
    placement: Sequence[Mapping[str, Any]] = ()
    cap: float = 1.0  # 0: paused
    whole: float = 0.0  # devices at its own size

    @property
    def n_devices(self) -> float:
        return float(sum(len(share["devices"]) * share["share"] for share in self.placement))


@dataclass
class Count:
    """Figures of one run.

    Attributes:
        over_w: The most by which any limit was passed, at any level and instant; below 0: never.
        delivered_w: By event, the mean of each full minute.
        loss: By event and job, the average loss of throughput in it.
        steps_w: (time, hall draw) whenever it changed.
    """

    over_w: float = -inf
    delivered_w: dict[str, list[float]] = field(default_factory=dict)
    loss: dict[str, dict[str, float]] = field(default_factory=dict)
    steps_w: list[tuple[float, float]] = field(default_factory=list)
    reference_w: dict[str, float] = field(default_factory=dict)
    windows: dict[str, tuple[float, float]] = field(default_factory=dict)
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)


def rate(curve: Sequence[Sequence[float]], cap: float, power_w: float, tdp_w: float) -> float:
    """Throughput under a cap."""
    if not cap:
        return 0.0
    if cap * tdp_w >= power_w - 1e-9:
        return 1.0
    below = [point for point in curve if point[0] <= cap]
    above = [point for point in curve if point[0] >= cap]
    if not below:
        return float(curve[0][1])
    (low, slow), (high, fast) = below[-1], above[0]
    return float(slow if high == low else slow + (fast - slow) * (cap - low) / (high - low))


class _Hall:
    """What everything draws at one instant."""

    def __init__(self, scene: Scene) -> None:
        facility = scene["facility"]
        self.kinds = {row["name"]: row for row in facility["accelerator_types"]}
        self.kind_of: dict[str, Scene] = {}  # by node
        parents = {row["name"]: row.get("parent") for row in facility["domains"]}
        self.limits = {
            row["name"]: row["power_limit_w"]
            for row in facility["domains"]
            if row.get("power_limit_w") is not None
        }
        self.above: dict[str, list[str]] = {}
        self.draw: dict[str, float] = defaultdict(float)
        for row in facility["nodes"]:
            chain, at = [], row["power"]
            while at is not None:
                chain.append(at)
                at = parents[at]
            kind = self.kinds[row["accelerator"]]
            for n in range(1, row["count"] + 1):
                self.kind_of[f"{row['name']}-{n:04d}"] = kind
                self.above[f"{row['name']}-{n:04d}"] = chain
                for domain in chain:
                    self.draw[domain] += row.get("idle_w", 0.0) + row["devices"] * kind["idle_w"]

    def add(self, run: Run, sign: int) -> None:
        if not run.cap:
            return
        for share in run.placement:
            kind = self.kind_of[share["node"]]
            each = min(run.power_w, run.cap * kind["tdp_w"]) - kind["idle_w"]
            watts = sign * each * len(share["devices"]) * share["share"]
            for domain in self.above[share["node"]]:
                self.draw[domain] += watts

    def over_w(self) -> float:
        return max((self.draw[name] - limit_w for name, limit_w in self.limits.items()), default=-inf)


def recount(scene: Scene, lines: Iterable[Mapping[str, Any]], curve: Sequence[Sequence[float]]) -> Count:
    """Go over the lines of a run once."""
    hall = _Hall(scene)
    runs = {row["name"]: Run(row.get("flexibility", 0), row.get("power_w", inf)) for row in scene["jobs"]}
    asked = {row["name"]: row for row in scene["events"] if row["type"] == "demand_response"}
    count = Count()
    active: dict[str, tuple[float, float]] = {}  # since when, and energy in the present minute
    work: dict[str, dict[str, list[float]]] = {name: {} for name in asked}
    at = 0.0
    history: list[tuple[float, float]] = []

    def pass_time(until: float) -> None:
        nonlocal at
        if until <= at:
            return
        count.over_w = max(count.over_w, hall.over_w())
        now_w = hall.draw["hall"]
        history.append((at, now_w))
        if not count.steps_w or count.steps_w[-1][1] != now_w:
            count.steps_w.append((at, now_w))
        for name in active:
            since, energy = active[name]
            now = at
            while now < until:
                minute_ends = since + 60.0
                step = min(until, minute_ends) - now
                energy += now_w * step
                now += step
                if now >= minute_ends:
                    count.delivered_w[name].append(count.reference_w[name] - energy / 60.0)
                    since, energy = minute_ends, 0.0
            active[name] = (since, energy)
            for job, run in runs.items():
                if run.placement:
                    done = work[name].setdefault(job, [0.0, 0.0])
                    kind = hall.kind_of[run.placement[0]["node"]]
                    points = kind.get("power_curve", curve)
                    # Work goes by the devices: the mixes declare no other pace for fewer of them.
                    pace = rate(points, run.cap, min(run.power_w, kind["tdp_w"]), kind["tdp_w"])
                    done[0] += (until - at) * pace * run.n_devices / run.whole
                    done[1] += until - at
        at = until

    def mean_before(until: float) -> float:
        since = max(0.0, until - 900.0)
        ends = [*(t for t, _ in history[1:]), until]
        energy = sum(
            watts * max(0.0, min(end, until) - max(t, since))
            for (t, watts), end in zip(history, ends, strict=True)
        )
        return energy / (until - since) if until > since else hall.draw["hall"]

    for line in lines:
        pass_time(float(line["t"]))
        name = line.get("job", "")
        match line["event"]:
            case "start" | "resume" | "resize":
                run = runs[name]
                hall.add(run, -1)
                run.placement, run.cap = line["placement"], line["power_cap"]
                run.whole = max(run.whole, run.n_devices)
                hall.add(run, 1)
            case "cap" | "pause":
                run = runs[name]
                hall.add(run, -1)
                run.cap = line.get("power_cap", 0.0)
                hall.add(run, 1)
            case "dr":
                event = line["name"]
                if line["state"] == "notified":
                    count.reference_w[event] = mean_before(at)
                    count.delivered_w[event] = []
                elif line["state"] == "active":
                    active[event] = (at, 0.0)
                    count.windows[event] = (at, inf)
                elif line["state"] in ("recovering", "cancelled", "completed") and event in active:
                    del active[event]
                    count.windows[event] = (count.windows[event][0], at)
                    count.ends[event] = (at, hall.draw["hall"])
            case other if other in _DONE and runs[name].placement:
                run = runs[name]
                hall.add(run, -1)
                run.placement, run.cap = (), 1.0
    pass_time(max(at, float(scene.get("until", at))))
    for name, jobs in work.items():
        count.loss[name] = {job: 1.0 - done / there for job, (done, there) in jobs.items() if there}
    return count

"""Mixes, signals and faults played in virtual time, and figures with their limits."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random
from statistics import mean, stdev
from typing import Any, Final

from apps.core import clock
from apps.power.curtailment.facts import Curve, Limit, Load, Problem
from apps.power.curtailment.options import candidate_of
from apps.power.curtailment.solve import solve
from apps.simulation.flexbench.emerald import ASKED, Replayed
from apps.simulation.flexbench.mixes import IDLE_W, MIXES, TDP_W, hall, n_replicas
from apps.simulation.flexbench.recount import ALLOWED_LOSS, Count, recount
from apps.simulation.flexbench.rivals import WAYS
from apps.simulation.flexbench.signals import QUICK_SIGNALS, SIGNALS, Scene
from apps.simulation.loop import Engine, simulate
from apps.simulation.report import summary
from apps.simulation.scenario import A100_TRAINING, read_scenario
from apps.simulation.world import build_world

TOLERANCE: Final = (
    0.05  # of the target: so much may be missing in a minute in which models are found to be off
)
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "1 % of commands lost": {"lost": 0.01},
    "5 % of commands lost": {"lost": 0.05},
    "checkpoints twice as late": {"factor": 2},
    "controller dead for 10 min": {"dead": (1 / 3, 600.0)},
    "controller dead over the end": {"dead": (0.95, None)},
    "1 % of readings lost": {"unread": 0.01},
    "5 % of readings lost": {"unread": 0.05},
    "20 % of readings lost": {"unread": 0.20},
    "models off by 10 %": {"off": 0.10, "tolerance": TOLERANCE},
    "models off by 10 %, 20 % of readings lost": {"off": 0.10, "unread": 0.20, "tolerance": TOLERANCE},
}
DEAD_AFTER_S: Final = 600.0
TIMED: Final = 3
NORMAL_95: Final = 1.96
RAMP_MINUTES: Final = 15.0  # in which the whole load may come back
SETTLED_W: Final = 1.0
SLOWEST_MINUTES: Final = 6  # a checkpoint of 300 s, and the caps that follow it


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and what it must not pass."""

    name: str
    value: float
    limit: float | None = None
    is_at_least: bool = False
    spread: float | None = None  # half of the 95 % interval of a mean

    @property
    def ok(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.is_at_least else self.value <= self.limit


@dataclass
class Tally:
    """What was seen over all runs of one way to answer."""

    over_w: float = -inf
    intervals: int = 0
    compliant: int = 0
    over_shed: list[float] = field(default_factory=list)
    n_broken: int = 0
    ramp_over_w: float = 0.0
    rebound: float = 0.0
    in_30_s: list[float] = field(default_factory=list)
    achievable_off: float = 0.0
    loss: list[float] = field(default_factory=list)
    n_runs: int = 0
    rise_w: float = 0.0  # of the load while the controller was dead

    def add(self, other: "Tally") -> None:
        """Take in what was seen elsewhere."""
        for name in ("over_w", "ramp_over_w", "rebound", "achievable_off", "rise_w"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in ("intervals", "compliant", "n_broken", "n_runs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("over_shed", "in_30_s", "loss"):
            getattr(self, name).extend(getattr(other, name))


def scenes(n_devices: int, n_seeds: int, *, is_quick: bool) -> Iterator[tuple[str, str, int, Scene, float]]:
    """(mix, signal, seed, scenario, load before) of every run."""
    signals = QUICK_SIGNALS if is_quick else SIGNALS
    for mix in MIXES:
        for seed in range(n_seeds):
            base = hall(mix, n_devices, seed)
            load_w = _load_w(base)
            for signal, make in signals.items():
                events = make(Random(f"{mix}-{signal}-{seed}"), load_w)  # noqa: S311 - a draw of test data
                scene = {**base, "events": events, "until": _ends_s(events)}
                scene["facility"] = {
                    **base["facility"],
                    "domains": [dict(d) for d in base["facility"]["domains"]],
                }
                scene["facility"]["domains"][0]["ramp_up_w_per_s"] = round(load_w / RAMP_MINUTES / 60.0, 3)
                yield mix, signal, seed, scene, load_w


def _load_w(scene: Scene) -> float:
    devices = sum(row["count"] * row["devices"] for row in scene["facility"]["nodes"])
    hosts = sum(row["count"] * row["idle_w"] for row in scene["facility"]["nodes"])
    running = [(n_replicas(job) * job["devices"], job) for job in scene["jobs"] if not job.get("submit")]
    busy = sum(n for n, _ in running)
    drawn = sum(n * job["power_w"] for n, job in running)
    return float(hosts + drawn + (devices - busy) * IDLE_W)


def _ends_s(events: list[Scene]) -> float:
    return float(max(event["start"] + event["duration"] for event in events if "start" in event) + 5400.0)


def play(scene: Scene, way: str, fault: dict[str, Any], seed: int) -> tuple[Count, dict[str, Any], list[Any]]:
    """One run, counted again by its lines and by what jobs draw in truth."""
    chance = Random(f"{way}-{seed}")  # noqa: S311 - a draw of test data
    lost, unread, off = (fault.get(name, 0.0) for name in ("lost", "unread", "off"))
    truth = {
        job["name"]: Random(f"draw-{seed}-{job['name']}").uniform(1 - off, 1 + off)  # noqa: S311
        for job in scene["jobs"]
    }
    engine = Engine(
        candidate=WAYS[way].candidate,
        curtail=WAYS[way].curtail,
        takes_turns=WAYS[way].takes_turns,
        loses_command=(lambda: chance.random() < lost) if lost else (lambda: False),
        loses_reading=(lambda: chance.random() < unread) if unread else (lambda: False),
        checkpoint_factor=fault.get("factor", 1),
        true_draw=truth.__getitem__ if off else None,
        dead=dead_windows(scene, fault),
    )
    outcome = simulate(build_world(read_scenario(json.dumps(scene).encode())), engine)
    told = scene
    if off:
        rows = [{**job, "power_w": min(TDP_W, job["power_w"] * truth[job["name"]])} for job in scene["jobs"]]
        told = {**scene, "jobs": rows}
    return recount(told, outcome.lines, A100_TRAINING), summary(outcome), outcome.lines


def dead_windows(scene: Scene, fault: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """When the controller is dead: from a share of the first event on, for so long or until after its end."""
    if "dead" not in fault:
        return ()
    share, length_s = fault["dead"]
    first = next(event for event in scene["events"] if "start" in event)
    since_s = first["start"] + round(first["duration"] * share)
    ends_s = first["start"] + first["duration"] + DEAD_AFTER_S if length_s is None else since_s + length_s
    return ((since_s, ends_s),)


def tally(
    into: Tally,
    scene: Scene,
    signal: str,
    played: tuple[Count, dict[str, Any], list[Any]],
    load_w: float,
    fault: dict[str, Any] | None = None,
) -> None:
    """Add one run to what was seen."""
    fault = fault or {}
    count, _, lines = played
    into.n_runs += 1
    into.over_w = max(into.over_w, count.over_w)
    asked = {event["name"]: event for event in scene["events"] if event["type"] == "demand_response"}
    tiers = {job["name"]: job.get("flexibility", 0) for job in scene["jobs"]}
    notices = {x["name"]: x for x in lines if x["event"] == "dr" and x["state"] == "notified"}
    actives = {x["name"]: x for x in lines if x["event"] == "dr" and x["state"] == "active"}
    for name, event in asked.items():
        delivered = count.delivered_w.get(name, [])
        told = actives.get(name) or notices.get(name)
        if not delivered or told is None:
            continue
        reference_w = count.reference_w[name]
        target = min(event["reduce_w"], told["achievable_w"])
        is_feasible = told["shortfall_w"] <= SETTLED_W
        target *= 1.0 - fault.get("tolerance", 0.0)
        delivered = delivered[: int(event["duration"] // 60)]  # a dead controller may end it later
        # With too little notice for any device to settle, the first minute is the ramp.
        lead = 1 if event["start"] - event["t"] < 10 else 0
        counted = delivered[lead:]
        if is_feasible and notices[name]["achievable_at_start_w"] < event["reduce_w"] - SETTLED_W:
            # What is missing at first comes with the slow levers, as was said at notice.
            counted = delivered[SLOWEST_MINUTES:]
        alone = not _overlaps(event, asked.values())
        cancelled = any(x["type"] == "cancel_demand_response" and x["name"] == name for x in scene["events"])
        if is_feasible:
            into.intervals += len(counted)
            into.compliant += sum(watts >= target - SETTLED_W for watts in counted)
            if alone and counted:
                into.over_shed.append(max(0.0, mean(counted) - event["reduce_w"]) / reference_w)
        elif counted and alone and not cancelled:
            best = max(counted)
            into.achievable_off = max(into.achievable_off, abs(best - told["achievable_w"]) / reference_w)
        in_time = notices[name]["achievable_at_start_w"] >= event["reduce_w"] - SETTLED_W
        if signal == "30 % in 30 s" and is_feasible and in_time:
            ends_s = event["start"]  # half a minute after notice
            load = next((w for t, w in reversed(count.steps_w) if t <= ends_s), load_w)
            into.in_30_s.append(float(reference_w - load >= target - SETTLED_W))
        if not event.get("emergency"):
            into.n_broken += sum(
                loss > ALLOWED_LOSS[tiers[job]] + 1e-6 for job, loss in count.loss.get(name, {}).items()
            )
        losses = count.loss.get(name, {})
        into.loss.append(mean(losses.values()) if losses else 0.0)
    for since_s, until_s in dead_windows(scene, fault):
        within = [w for t, w in count.steps_w if since_s < t < until_s]
        before_w = next((w for t, w in reversed(count.steps_w) if t <= since_s), load_w)
        into.rise_w = max([into.rise_w, *(w - before_w for w in within)])
    ramp = scene["facility"]["domains"][0]["ramp_up_w_per_s"]
    for _, (end, _) in count.ends.items():
        after = [(t, w) for t, w in count.steps_w if end <= t <= end + 3600]
        into.rebound = max([into.rebound, *(w / load_w for _, w in after)])
        for i, (t, w) in enumerate(after):
            for later, watts in after[i + 1 :]:
                into.ramp_over_w = max(into.ramp_over_w, watts - w - ramp * (later - t + 60.0))


def _overlaps(event: Scene, others: Any) -> bool:
    end = event["start"] + event["duration"]
    return any(
        other is not event
        and other["start"] < end + 3600
        and event["start"] < other["start"] + other["duration"] + 3600
        for other in others
    )


def large_problem(n_jobs: int, n_racks: int, seed: int) -> Problem:
    """Jobs of 1 to 8 nodes over racks of which every third binds, and a hall that asks for 15 %."""
    chance = Random(seed)  # noqa: S311 - a draw of test data
    curve = Curve(TDP_W, IDLE_W, tuple((a, b) for a, b in A100_TRAINING), 35.0, 10.0)
    total = [0.0] * (n_racks + 1)
    candidates = []
    for job in range(n_jobs):
        nodes = chance.randint(1, 8)
        under = {0: 8.0 * nodes}
        for _ in range(nodes):
            rack = 1 + chance.randrange(n_racks)
            under[rack] = under.get(rack, 0.0) + 8.0
        draw_w = chance.uniform(400, TDP_W)
        load = Load(
            job,
            chance.randint(0, 4),
            8.0 * nodes,
            under,
            draw_w,
            curve,
            chance.choice((60.0, 300.0, inf)),
            900.0,
        )
        for rack, n in under.items():
            total[rack] += n * draw_w
        candidates.append(candidate_of(load, 10_800.0))
    limits = [Limit(0, round(total[0] * 0.15e6))]
    limits += [
        Limit(rack, round(total[rack] * 0.12e6) if rack % 3 == 0 else 0, -1) for rack in range(1, n_racks + 1)
    ]
    return Problem(tuple(candidates), tuple(limits))


def optimiser_figures(*, is_quick: bool) -> Iterator[Figure]:
    """How far the plans are from the best there could be, and how long they take."""
    gaps = []
    for n_jobs in (20, 60) if is_quick else (20, 60, 120, 200):
        decided = solve(large_problem(n_jobs, max(4, n_jobs // 6), n_jobs))
        gaps.append(decided.gap)
    yield Figure("lost work above the proven bound, up to 200 jobs", max(gaps), 0.02)
    problem = large_problem(2000, 300, 1)
    took_s = []
    for _ in range(TIMED):  # the quickest: what else the machine does meanwhile is no part of it
        began_s = clock.monotonic_s()
        solve(problem)
        took_s.append(clock.monotonic_s() - began_s)
    yield Figure("seconds to plan 2,000 jobs over 300 racks", min(took_s), 1.0)


def half_width(values: list[float]) -> float | None:
    """Half of the 95 % interval of a mean, by the normal distribution; None: of fewer than two values."""
    return NORMAL_95 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def figures(way: str, fault: str, seen: Tally) -> Iterator[Figure]:
    """What was seen, with the limits that hold for the product's own way."""
    is_ours = way == "switchyard"
    where = f"{way}, faults: {fault}: "

    def limit(value: float) -> float | None:
        return value if is_ours else None

    yield Figure(where + "watts over any limit, at most", max(0.0, seen.over_w), limit(1e-3))
    share = seen.compliant / seen.intervals if seen.intervals else 1.0
    yield Figure(
        where + "share of feasible intervals kept", share, limit(1.0 if fault == "none" else 0.99), True
    )
    yield Figure(
        where + "mean over-shed, share of the reference",
        mean(seen.over_shed or [0.0]),
        limit(0.02),
        spread=half_width(seen.over_shed),
    )
    yield Figure(where + "tiers broken", float(seen.n_broken), limit(0.0) if fault == "none" else None)
    yield Figure(
        where + "mean loss of throughput in events", mean(seen.loss or [0.0]), spread=half_width(seen.loss)
    )
    if "dead" in FAULTS[fault]:
        yield Figure(where + "watts the load rose meanwhile, at most", seen.rise_w, limit(1e-3))
    if fault == "none":
        yield Figure(where + "watts above the ramp of recovery, at most", seen.ramp_over_w, limit(1e-3))
        yield Figure(where + "load after an event, share of before, at most", seen.rebound, limit(1.05))
        yield Figure(
            where + "30 % reached within the first minute", mean(seen.in_30_s or [1.0]), limit(1.0), True
        )
        yield Figure(where + "achievable told wrong by, at most", seen.achievable_off, limit(0.01))


def demonstration_figures(seen: Replayed) -> Iterator[Figure]:
    """The published demonstration under the same request."""
    where = "published demonstration: "
    yield Figure(where + "weighted performance from the ramp on", seen.with_ramp, 0.90, True)
    yield Figure(where + "weighted performance in the event alone", seen.performance)
    yield Figure(where + "the same, of the best there can be", seen.performance / seen.best, 0.99, True)
    yield Figure(where + "least cut of a minute, share of before", seen.least_cut, ASKED, True)
    yield Figure(where + "over-shed, share of before", seen.over_shed, 0.02)
    yield Figure(where + "watts above the ramp of release", seen.ramp_over_w, 1e-3)
    yield Figure(where + "load afterwards, share of before", seen.peak, 1.05)
    yield Figure(where + "tiers broken", float(seen.n_broken), 0.0)
    yield Figure(where + "RMSE against the measured trace, same actions", seen.rmse, 0.05)

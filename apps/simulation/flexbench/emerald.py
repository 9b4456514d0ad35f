"""The published field demonstration of a cluster that answers the grid, played again: six jobs on 256 GPUs.

Power is that of the GPUs alone, as in the published data. A cap is told by the draw that was measured under it, so
that a curve by caps is one by draws. `performance` of the publication is a mean over each job's whole time; in the
event it was lower.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, sqrt
from pathlib import Path
from statistics import mean
from typing import Any, Final

from scipy.optimize import linprog

from apps.power.curtailment.facts import INTERRUPTIBLE, Candidate, Curtailment, Load, Problem
from apps.power.curtailment.options import candidate_of
from apps.power.curtailment.solve import solve
from apps.simulation.flexbench.recount import ALLOWED_LOSS, Count, recount
from apps.simulation.loop import Engine, simulate
from apps.simulation.scenario import A100_TRAINING, read_scenario
from apps.simulation.world import build_world

Scene = dict[str, Any]
FOLDER: Final = "emerald-2025-power"
TDP_W: Final = 400.0
DEVICES: Final = 8  # of a node
# The six jobs: workload of the cap sweep, GPUs, the largest loss it bears as a tier, beginning of its published name.
JOBS: Final = (
    ("ft_llama_8b_p3", 32, 2, "ft_llama_8b_p3"),
    ("infer_llama_8b_32g", 32, 3, "infer_llama_8b_32g"),
    ("infer_llama_8b_48g", 48, 1, "infer_llama_8b_48g-hgfu2h87"),
    ("infer_llama_8b_48g", 48, 2, "infer_llama_8b_48g-xhganfr6"),
    ("pt_mpt_13b_sm", 48, 3, "pt_mpt_13b_sm"),
    ("pt_mpt_7b_fast", 48, 3, "pt_mpt_7b_fast"),
)
MINUTE_S: Final = 60.0
MOVES_AT, RELEASED_AT = (
    90,
    293,
)  # minutes of the published trace in which the load first falls, and first rises
RAMP_S: Final = 900.0
ASKED: Final = 0.25
CUT_S: Final = 10_800.0


@dataclass(frozen=True, slots=True)
class Published:
    """What the demonstration left behind.

    Attributes:
        load_w: By minute.
        sweep: By workload: (W a GPU, share of throughput), rising.
        performance: By job, mean over its whole time.
    """

    load_w: tuple[float, ...]
    sweep: dict[str, tuple[tuple[float, float], ...]]
    performance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How the same request was answered, and how near the simulator comes to what was measured.

    Attributes:
        performance: Mean over the event, weighted by GPUs.
        with_ramp: The same from the beginning of the ramp on. The wanted 0.90 is told of that span: the bound of 0.905
            and the 0.900 of one uniform cap that stand beside it come out of the sweep over these 195 minutes, and not
            over the 180 in which the target binds.
        best: No plan by caps does better, within the tiers and by the published sweep.
        over_shed: Mean cut beyond what was asked, as a share of the load before.
        least_cut: Of all minutes of the event, as a share of the load before.
        ramp_over_w: The most by which the load rose faster than the ramp allows.
        peak: Highest load afterwards, as a share of the load before.
        rmse: Of the simulator against the measured trace under the same actions, as a share of its mean.
        n_broken: Jobs that lost more than their tier bears.
    """

    performance: float
    with_ramp: float
    best: float
    over_shed: float
    least_cut: float
    ramp_over_w: float
    peak: float
    rmse: float
    n_broken: int


def read(folder: Path) -> Published:
    """The published files."""
    with (folder / "SRP_total_power.csv").open() as file:
        load_w = tuple(float(row["total"]) for row in csv.DictReader(file))
    sweep: dict[str, list[tuple[float, float]]] = {}
    with (folder / "dvfs_sweep.csv").open() as file:
        for row in csv.DictReader(file):
            point = float(row["power per GPU"]), float(row["normalized throughput"])
            sweep.setdefault(row["Workload"], []).append(point)
    with (folder / "SRP_exp_performance.csv").open() as file:
        by_name = {row["Model"].strip(): row["Performance"] for row in csv.DictReader(file)}
    performance = tuple(
        float(next(value for model, value in by_name.items() if model.startswith(name))) for *_, name in JOBS
    )
    return Published(load_w, {name: tuple(sorted(points)) for name, points in sweep.items()}, performance)


def scene(published: Published, *, reduce_share: float, until_s: float) -> Scene:
    """The cluster with its six jobs and the request.

    What each job draws is scaled so that together they draw what was measured in the 15 minutes before.
    """
    before_w, scale = _before(published)
    kinds, nodes, jobs = [], [], []
    for at, (work, n, tier, _) in enumerate(JOBS):
        points = published.sweep[work]
        curve = [[round(watts * scale / TDP_W, 6), round(rate, 6)] for watts, rate in points]
        kinds.append(
            {
                "name": f"gpu-{at}",
                "memory_gib": 80,
                "tdp_w": TDP_W,
                "idle_w": 50,
                "cap_step_w": 1,
                "cap_settle_s": 10,
                "power_curve": [*curve, [1, 1]],
            }
        )
        nodes.append(
            {
                "name": f"node-{at}",
                "count": n // DEVICES,
                "accelerator": f"gpu-{at}",
                "devices": DEVICES,
                "power": "hall",
            }
        )
        jobs.append(
            {
                "name": f"{at}-{work}",
                "replicas": n // DEVICES,
                "devices": DEVICES,
                "accelerators": [f"gpu-{at}"],
                "flexibility": tier,
                "power_w": round(points[-1][0] * scale, 3),
                "runtime": 1_000_000,
            }
        )
    start_s = MOVES_AT * MINUTE_S + RAMP_S
    asked: Scene = {
        "type": "demand_response",
        "t": MOVES_AT * MINUTE_S,
        "name": "event",
        "domain": "hall",
        "start": start_s,
        "duration": CUT_S,
        "reduce_w": round(reduce_share * before_w, 1),
    }
    hall = {
        "name": "hall",
        "kind": "hall",
        "power_limit_w": 256 * TDP_W,
        "ramp_up_w_per_s": round(before_w / RAMP_S, 3),
    }
    return {
        "facility": {"accelerator_types": kinds, "domains": [hall], "nodes": nodes},
        "jobs": jobs,
        "events": [asked],
        "until": until_s,
    }


def _before(published: Published) -> tuple[float, float]:
    """Load in the 15 minutes before, in W, and as a multiple of what the cap sweep makes of the six jobs."""
    before_w = mean(published.load_w[MOVES_AT - 15 : MOVES_AT])
    return before_w, before_w / sum(n * published.sweep[work][-1][0] for work, n, _, _ in JOBS)


def replay(published: Published) -> Replayed:
    """Answer the request, and beside it do what was done then."""
    until_s = len(published.load_w) * MINUTE_S
    asked = scene(published, reduce_share=ASKED, until_s=until_s)
    reach = best(published)
    count = _play(asked, Engine(candidate=_even))
    before_w = count.reference_w["event"]
    cuts = [watts / before_w for watts in count.delivered_w["event"]]
    losses = count.loss["event"]
    weights = {job["name"]: job["replicas"] * DEVICES for job in asked["jobs"]}
    tiers = {job["name"]: job["flexibility"] for job in asked["jobs"]}
    end_s, _ = count.ends["event"]
    after = [(t, watts) for t, watts in count.steps_w if t >= end_s]
    ramp = asked["facility"]["domains"][0]["ramp_up_w_per_s"]
    rises = [
        later_w - watts - ramp * (later - t + MINUTE_S)
        for i, (t, watts) in enumerate(after)
        for later, later_w in after[i + 1 :]
    ]
    performance = sum(n * (1.0 - losses[name]) for name, n in weights.items()) / sum(weights.values())
    return Replayed(
        performance=performance,
        with_ramp=with_ramp(performance),
        best=reach,
        over_shed=mean(cuts) - ASKED,
        least_cut=min(cuts),
        ramp_over_w=max([0.0, *rises]),
        peak=max(watts for _, watts in after) / before_w,
        rmse=_rmse(published, until_s),
        n_broken=sum(loss > ALLOWED_LOSS[tiers[name]] + 1e-6 for name, loss in losses.items()),
    )


def with_ramp(performance: float) -> float:
    """A mean over the event as one over ramp and event: caps come into force when the ramp is over."""
    return 1.0 - (1.0 - performance) * CUT_S / (RAMP_S + CUT_S)


def _play(told: Scene, engine: Engine) -> Count:
    outcome = simulate(build_world(read_scenario(json.dumps(told).encode())), engine)
    return recount(told, outcome.lines, A100_TRAINING)


def _rmse(published: Published, until_s: float) -> float:
    """The simulator against the measured load where it does with each job what was done with it then."""
    n_minutes = len(published.load_w)
    share = (RELEASED_AT - MOVES_AT) / n_minutes  # of each job's time that lay in the event
    caps = []
    for (work, *_), performance in zip(JOBS, published.performance, strict=True):
        rate = max(0.0, 1.0 - (1.0 - performance) / share)
        caps.append(_draw_at(published.sweep[work], rate) * _before(published)[1] / TDP_W)
    told = scene(published, reduce_share=ASKED, until_s=until_s)
    (event,) = told["events"]
    event |= {"start": event["t"] + MINUTE_S, "duration": (RELEASED_AT - MOVES_AT - 1) * MINUTE_S}
    world = build_world(read_scenario(json.dumps(told).encode()))
    cap_of = {job.index: caps[int(job.name[0])] for job in world.jobs}

    def as_then(problem: Problem) -> Curtailment:
        choices = []
        for candidate in problem.candidates:
            offs = [abs(option.cap - cap_of[candidate.job_id]) for option in candidate.options]
            choices.append(offs.index(min(offs)))
        return replace(solve(Problem((), problem.limits)), choices=tuple(choices))

    count = _play(told, Engine(candidate=_any_cap, curtail=as_then))
    simulated = list(_by_minute(count.steps_w, n_minutes))
    squares = [(a - b) ** 2 for a, b in zip(simulated, published.load_w, strict=True)]
    return sqrt(mean(squares)) / mean(published.load_w)


def _even(load: Load, window_s: float, within_s: float = inf, *, is_emergency: bool = False) -> Candidate:
    """All levers within the tier; a lost device-second counts the same in every tier, as in the publication."""
    return candidate_of(load, window_s, within_s, is_emergency=is_emergency, weights=(1.0,) * 5)


def _any_cap(load: Load, window_s: float, within_s: float = inf, **_: Any) -> Candidate:
    told = candidate_of(replace(load, tier=INTERRUPTIBLE, bears=None), window_s, within_s)
    caps = tuple(option for option in told.options if option.cap < 1.0 or option.lever.value == "none")
    return replace(told, tier=load.tier, options=caps)


def _draw_at(points: tuple[tuple[float, float], ...], rate: float) -> float:
    if rate <= points[0][1]:
        return points[0][0]
    for (low_w, slow), (high_w, fast) in pairwise(points):
        if rate <= fast:
            return low_w + (high_w - low_w) * (rate - slow) / (fast - slow)
    return points[-1][0]


def best(published: Published) -> float:
    """The highest performance there can be at exactly what was asked: any mix of measured points, within the tiers."""
    columns = [
        (at, n, watts, rate)
        for at, (work, n, _, _) in enumerate(JOBS)
        for watts, rate in published.sweep[work]
    ]
    draws = [n * watts for _, n, watts, _ in columns]
    full_w = sum(n * published.sweep[work][-1][0] for work, n, _, _ in JOBS)
    of = [[float(job == at) for job, *_ in columns] for at in range(len(JOBS))]
    rates = [[-rate * one for (*_, rate), one in zip(columns, row, strict=True)] for row in of]
    floors = [ALLOWED_LOSS[tier] - 1.0 for _, _, tier, _ in JOBS]
    found = linprog(
        [-n * rate for _, n, _, rate in columns],
        A_ub=[draws, *rates],
        b_ub=[(1 - ASKED) * full_w, *floors],
        A_eq=of,
        b_eq=[1.0] * len(JOBS),
    )
    return float(-found.fun) / sum(n for _, n, _, _ in JOBS)


def _by_minute(steps_w: list[tuple[float, float]], n_minutes: int) -> Iterator[float]:
    """Mean load of each minute."""
    ends = [*(t for t, _ in steps_w[1:]), n_minutes * MINUTE_S]
    for minute in range(n_minutes):
        low, high = minute * MINUTE_S, (minute + 1) * MINUTE_S
        energy = sum(
            watts * max(0.0, min(end, high) - max(t, low))
            for (t, watts), end in zip(steps_w, ends, strict=True)
        )
        yield energy / MINUTE_S

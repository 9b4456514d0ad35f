"""Halls full of work to try power events on: four mixes, drawn from a seed, as scenario files would hold them."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

Scene = dict[str, Any]

TDP_W, IDLE_W, HOST_W = 700.0, 70.0, 800.0
NODES_IN_A_RACK: Final = 4
LONG_S: Final = 10_000_000.0


def _job(chance: Random, n: int, nodes: int, tier: int, *, draw: float = 1.0, peak: float = 1.0) -> Scene:
    told: Scene = {
        "name": f"job-{n:04d}",
        "replicas": nodes,
        "devices": 8,
        "flexibility": tier,
        "power_w": round(draw * TDP_W, 1),
        "runtime": LONG_S,
    }
    if peak > 1.0:
        told["peak_w"] = round(min(TDP_W, peak * draw * TDP_W), 1)
    if tier == 4 or chance.random() < 0.5:
        told["checkpoint"] = {"interval": 1800, "cost": chance.choice((30, 60, 120, 300)), "restart": 60}
    return told


def _training(chance: Random) -> tuple[int, float]:
    """70 % training, 20 % fine-tuning, 10 % inference."""
    kind = chance.random()
    if kind < 0.7:
        return chance.choice((2, 3, 3, 4)), chance.uniform(0.94, 0.97)
    if kind < 0.9:
        return chance.choice((1, 2)), 0.86
    return chance.choice((0, 1)), chance.uniform(0.3, 0.45)


def _decode(chance: Random) -> tuple[int, float]:
    """60 % serving that draws 20 to 43 % of TDP, so that no cap binds there."""
    if chance.random() < 0.6:
        return chance.choice((0, 1)), chance.uniform(0.20, 0.43)
    return chance.choice((2, 3, 4)), chance.uniform(0.92, 0.97)


def _interruptible(chance: Random) -> tuple[int, float]:
    """A fifth of tier 4; a queue stands behind."""
    return (4, 0.95) if chance.random() < 0.2 else (chance.choice((1, 2, 3)), chance.uniform(0.86, 0.97))


def _lock_step(chance: Random) -> tuple[int, float]:
    """Synchronous training whose peaks are 1.3 times the mean, on racks that just hold them."""
    return chance.choice((1, 2, 3)), chance.uniform(0.6, 0.75)


MIXES: Final[dict[str, Callable[[Random], tuple[int, float]]]] = {
    "training": _training,
    "decode": _decode,
    "queue": _interruptible,
    "lock-step": _lock_step,
}


ELASTIC: Final = frozenset({"training", "queue"})  # mixes in which some jobs can go on with fewer replicas


def _elastic(job: Scene) -> Scene:
    """Every fourth job, by chance, of those that bear it can go on with half of its replicas."""
    n = job["replicas"]
    if n < 2 or job["flexibility"] < 2 or Random(f"{job['name']}-{n}-{job['power_w']}").random() >= 0.25:  # noqa: S311
        return job
    return {**job, "replicas": {"min": (n + 1) // 2, "max": n}}


def n_replicas(job: Scene) -> int:
    """Of a job at its own size."""
    of: int | dict[str, int] = job["replicas"]
    return of if isinstance(of, int) else of["max"]


def hall(mix: str, n_devices: int, seed: int) -> Scene:
    """A facility of nodes of 8 devices in racks of four, full of jobs of a mix.

    Args:
        mix: One of MIXES.
        n_devices: A multiple of 32.
        seed: What jobs there are, and how much they draw.
    """
    chance = Random(f"{mix}-{n_devices}-{seed}")  # noqa: S311 - a draw of test data
    n_nodes = n_devices // 8
    n_racks = n_nodes // NODES_IN_A_RACK
    full_w = NODES_IN_A_RACK * (HOST_W + 8 * TDP_W)
    tight = 0.95 if mix == "lock-step" else 1.0
    domains = [{"name": "hall", "kind": "hall", "power_limit_w": round(n_racks * full_w, 1)}]
    domains += [
        {"name": f"rack-{r:04d}", "kind": "rack", "parent": "hall", "power_limit_w": round(tight * full_w, 1)}
        for r in range(n_racks)
    ]
    nodes = [
        {
            "name": f"node-{r:04d}",
            "count": NODES_IN_A_RACK,
            "accelerator": "accelerator",
            "devices": 8,
            "power": f"rack-{r:04d}",
            "idle_w": HOST_W,
        }
        for r in range(n_racks)
    ]
    jobs: list[Scene] = []
    left = n_nodes
    while left:
        size = min(left, chance.choice((1, 1, 2, 2, 4, 8)))
        tier, draw = MIXES[mix](chance)
        job = _job(chance, len(jobs), size, tier, draw=draw, peak=1.3 if mix == "lock-step" else 1.0)
        jobs.append(_elastic(job) if mix in ELASTIC else job)
        left -= size
    if mix == "queue":
        for _ in range(max(4, n_nodes // 8)):
            waiting = _job(chance, len(jobs), chance.choice((1, 2)), chance.choice((1, 2, 3)), draw=0.95)
            jobs.append({**waiting, "submit": 60, "priority": -1})
    return {
        "facility": {
            "accelerator_types": [
                {
                    "name": "accelerator",
                    "memory_gib": 80,
                    "tdp_w": TDP_W,
                    "idle_w": IDLE_W,
                    "cap_step_w": 35,
                    "cap_settle_s": 10,
                }
            ],
            "domains": domains,
            "nodes": nodes,
        },
        "jobs": jobs,
        "events": [],
        "policy": {"backfill_depth": 1},
    }

"""The hall of the acceptance scenarios: 17 nodes of 8 devices and a few idle ones, all figures by hand."""

from dataclasses import replace
from typing import Final

from apps.power.curtailment.facts import Curve, Limit, Load, Problem
from apps.power.curtailment.options import candidate_of

MICRO: Final = 10**6
CURVE: Final = Curve(
    tdp_w=700.0,
    idle_w=100.0,
    points=((300 / 700, 0.50), (400 / 700, 0.70), (500 / 700, 0.84), (600 / 700, 0.93), (1.0, 1.0)),
    step_w=100.0,
    settle_s=10.0,
)
A, B, C, D, E = range(5)
THREE_HOURS_S: Final = 10_800.0


def load(job_id: int, tier: int, n_nodes: int, **more: object) -> Load:
    n = 8.0 * n_nodes
    return replace(Load(job_id, tier, n, {0: n}, 700.0, CURVE), **more)


def hall(**of_e: object) -> list[Load]:
    """Decode, three trainings and a batch job that writes a checkpoint in 300 s; 132.4 kW with three idle nodes."""
    return [
        load(A, 0, 4, draw_w=300.0),
        load(B, 1, 4),
        load(C, 2, 4),
        load(D, 3, 4),
        load(E, 4, 2, checkpoint_s=300.0, **of_e),
    ]


def problem(
    loads: list[Load],
    need_kw: float,
    *,
    window_s: float = THREE_HOURS_S,
    within_s: float = float("inf"),
    **more: bool,
) -> Problem:
    candidates = tuple(candidate_of(load, window_s, within_s, **more) for load in loads)
    return Problem(candidates, (Limit(0, round(need_kw * 1e9)),))

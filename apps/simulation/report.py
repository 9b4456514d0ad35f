"""What a simulation says when it is over: its events, its summary, and a few lines for a person."""

import json
from fractions import Fraction
from statistics import median
from typing import Any, Final

from apps.jobs.spec import SHARE_STEPS
from apps.simulation.loop import Life, Outcome
from apps.simulation.replay.heap import plain
from apps.simulation.replay.metrics import Served, bounded_slowdown, element_at, mean

P95: Final = Fraction(95, 100)
_WAITS: Final = ("queued", "rejected", "cancelled")


def events_text(outcome: Outcome) -> str:
    """One JSON object a line, in time order."""
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in outcome.lines)


def summary_text(outcome: Outcome) -> str:
    """The summary as a file."""
    return json.dumps(summary(outcome), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def summary(outcome: Outcome) -> dict[str, Any]:
    """Jobs, metrics, losses and what the engine took."""
    by_name = {life.job.name: life for life in outcome.lives}
    rows = outcome.world.scenario.jobs
    return {
        "jobs": {row.name: _job(by_name[row.name]) for row in rows},
        "metrics": _metrics(outcome),
        "losses": outcome.ledger.report(outcome.horizon),
        "engine": _engine(outcome),
    }


def _job(life: Life) -> dict[str, Any]:
    wait = _wait(life)
    told: dict[str, Any] = {
        "state": "queued" if life.state == "pending" else life.state,
        "submit": plain(life.job.submit),
        "start": None if life.first_start is None else plain(life.first_start),
        "end": None if life.end is None else plain(life.end),
        "wait": None if wait is None else plain(wait),
        "run": plain(life.ran_s),
        "preemptions": life.n_preemptions,
        "lost_s": plain(life.lost_s),
    }
    if life.state in _WAITS and life.code is not None:
        told["code"], told["reason"] = life.code, life.reason
    if life.job.deadline is not None:
        told["deadline"] = plain(life.job.deadline)
        told["deadline_missed"] = life.state != "succeeded" or (life.end or Fraction(0)) > life.job.deadline
    return told


def _wait(life: Life) -> Fraction | None:
    """First start minus the later of submission, `not_before` and the end of the last dependency."""
    if life.first_start is None:
        return None
    since = [life.job.submit]
    if life.job.not_before is not None:
        since.append(life.job.not_before)
    if life.eligible is not None:
        since.append(life.eligible)
    return life.first_start - max(since)


def _metrics(outcome: Outcome) -> dict[str, Any]:
    ended = [life for life in outcome.lives if life.state in ("succeeded", "timed_out")]
    waits = [wait for life in ended if (wait := _wait(life)) is not None]
    slowdowns = [
        bounded_slowdown(Served(wait, life.ran_s)) for life in ended if (wait := _wait(life)) is not None
    ]
    last_end = max((life.end for life in ended if life.end is not None), default=None)
    first_submit = min((life.job.submit for life in ended), default=Fraction(0))
    lost = sum((life.lost_step_s for life in outcome.lives), Fraction(0))
    peak_w, energy_wh = outcome.meter.report(outcome.horizon)
    return {
        "utilization": 0.0 if last_end is None else _utilization(outcome, last_end),
        "makespan": None if last_end is None else plain(last_end - first_submit),
        "mean_wait": mean(waits),
        "p95_wait": element_at(waits, P95),
        "mean_bounded_slowdown": mean(slowdowns),
        "preemptions": sum(life.n_preemptions for life in outcome.lives),
        "lost_device_hours": float(lost / SHARE_STEPS / 3600),
        "peak_power_w": peak_w,
        "energy_wh": energy_wh,
        "dr": outcome.dr,
        "fragmentation": outcome.free.report(outcome.horizon),
    }


def _utilization(outcome: Outcome, last_end: Fraction) -> float:
    """Device-seconds held over device-seconds of capacity, from 0 to the last end."""
    capacity = outcome.ledger.n_steps * last_end
    if not capacity:
        return 0.0
    held = Fraction(0)
    for life in outcome.lives:
        for since, until, steps in life.held:
            end = outcome.horizon if until is None else until
            held += max(Fraction(0), min(end, last_end) - since) * steps
    return float(held / capacity)


def _engine(outcome: Outcome) -> dict[str, Any]:
    seconds = outcome.plan_seconds
    return {
        "passes": len(seconds),
        "plan_seconds": {"median": median(seconds) if seconds else 0.0, "maximum": max(seconds, default=0.0)},
    }


def for_people(outcome: Outcome) -> str:
    """A few lines on how it went."""
    states: dict[str, int] = {}
    for life in outcome.lives:
        states[life.state] = states.get(life.state, 0) + 1
    metrics = _metrics(outcome)
    losses = outcome.ledger.report(outcome.horizon)
    capacity = sum(losses.values())
    lines = [
        f"{len(outcome.lives)} jobs: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())),
        f"{plain(outcome.horizon)} s simulated in {len(outcome.plan_seconds)} passes",
        f"utilization {100 * metrics['utilization']:.1f} %",
    ]
    if metrics["mean_wait"] is not None:
        lines.append(
            f"mean wait {metrics['mean_wait']:.1f} s, 95 % under {metrics['p95_wait']:.1f} s, "
            f"mean bounded slowdown {metrics['mean_bounded_slowdown']:.2f}"
        )
    if capacity:
        told = sorted(((amount, bucket) for bucket, amount in losses.items() if amount), reverse=True)
        lines.append("device time: " + ", ".join(f"{b} {100 * a / capacity:.1f} %" for a, b in told))
    return "\n".join(lines)

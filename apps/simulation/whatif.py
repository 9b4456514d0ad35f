"""What if: a scenario as it is and as it would be with changes, both to their ends, side by side.

`what_if` begins from the present; `compare` from any scenario. Both only read. The one thing they share with a page or
a command is `on_progress`, which may raise to stop them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from apps.core import clock
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Plan, Policy, Snapshot
from apps.scheduling.live_scenario import Assumptions, LiveJob, live_scenario
from apps.simulation import report
from apps.simulation.changes import Changed, read_changes
from apps.simulation.loop import Engine, Outcome, simulate
from apps.simulation.replay.metrics import element_at, mean
from apps.simulation.scenario import Scenario, ScenarioError, check_scenario
from apps.simulation.world import build_world

BASE, WHAT_IF = "base", "what_if"
# Run times are guessed to minutes at best; a pass at every change would cost much and say no more.
PASS_INTERVAL_S: Final = 60.0

Progress = Callable[[str, int, int], object]  # which run, jobs that came to an end, jobs in all
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One simulation, ready to be compared."""

    summary: Row  # as `simulate --summary` writes it
    outcome: Outcome


@dataclass(frozen=True)
class JobPair:
    """What becomes of one job in both runs; None where a run lacks it. Times are seconds from the beginning."""

    name: str  # in the scenario
    live: LiveJob | None
    base: Row | None
    what_if: Row | None

    def later_s(self, field_: str) -> float | None:
        """By how much later it starts or ends in the what-if; None where it does not in one of them."""
        one, other = (None if row is None else row[field_] for row in (self.base, self.what_if))
        return None if one is None or other is None else float(other - one)


@dataclass(frozen=True)
class Comparison:
    """Both runs, and what a person asks of them."""

    at: datetime | None  # second 0, where it is the present
    assumptions: Assumptions
    changes: tuple[Any, ...]
    base: Run
    what_if: Run | None  # None: nothing is changed
    jobs: tuple[JobPair, ...]  # those that wait at the beginning or come later
    live: Mapping[str, LiveJob] = field(default_factory=dict)

    def as_json(self) -> Row:
        """Everything, as plain values."""
        base, other = figures(self, BASE), figures(self, WHAT_IF) if self.what_if is not None else None
        return {
            "at": None if self.at is None else self.at.isoformat(),
            "changes": list(self.changes),
            "assumptions": {
                "run_times": dict(self.assumptions.run_times),
                "left_out": [
                    {"id": job.id, "name": job.name, "why": job.why} for job in self.assumptions.left_out
                ],
                "notes": list(self.assumptions.notes),
            },
            BASE: base,
            WHAT_IF: other,
            "difference": None if other is None else difference(base, other),
            "jobs": [_pair_as_json(pair) for pair in self.jobs],
        }


def what_if(
    *,
    at: datetime,
    changes: Sequence[Any] = (),
    until: float | None = None,
    clusters: Collection[str] = (),
    pass_interval_s: float = PASS_INTERVAL_S,
    on_progress: Progress | None = None,
) -> Comparison:
    """The present as it goes on, and as it would with changes.

    Args:
        at: Now.
        changes: Objects as in simulation.changes; none: the present alone is played.
        until: Seconds after which both runs stop; None: when nothing is left to happen.
        clusters: Only these; none: all.
        pass_interval_s: Seconds from pass to pass; 0: a pass at every change.
        on_progress: Called often; what it raises stops the run.

    Raises:
        ScenarioError: A change says what cannot be; its faults are below `changes[i]`.
        InvalidInput: There is no such cluster.
    """
    read_changes(changes)  # before anything is read that takes its time
    live = live_scenario(at, clusters=clusters)
    return compare(
        paced(live.scenario, pass_interval_s),
        changes,
        until=until,
        on_progress=on_progress,
        at=at,
        live=live.jobs,
        assumptions=live.assumptions,
    )


def paced(scenario: Mapping[str, Any], pass_interval_s: float) -> Row:
    """The scenario with so many seconds from pass to pass."""
    return {**scenario, "policy": {**scenario.get("policy", {}), "pass_interval": pass_interval_s}}


def compare(
    scenario: Mapping[str, Any],
    changes: Sequence[Any] = (),
    *,
    until: float | None = None,
    on_progress: Progress | None = None,
    at: datetime | None = None,
    live: Mapping[str, LiveJob] | None = None,
    assumptions: Assumptions | None = None,
) -> Comparison:
    """A scenario as it is, and with changes; as `what_if`."""
    live = live or {}
    bounded = dict(scenario) if until is None else {**scenario, "until": until}
    asked = read_changes(changes)
    base_scenario = _checked(bounded)
    other_scenario, added_jobs = None, list[str]()
    if asked:
        changed = Changed(bounded)
        changed.carry_out(asked)
        added_jobs = changed.added_jobs
        try:
            other_scenario = _checked(changed.scenario)
        except ScenarioError as error:
            raise changed.blame(error) from None
    base = _run(base_scenario, BASE, on_progress)
    other = None if other_scenario is None else _run(other_scenario, WHAT_IF, on_progress)
    names = [row.name for row in base_scenario.jobs if row.running is None] + added_jobs
    pairs = [
        JobPair(
            name,
            live.get(name),
            base.summary["jobs"].get(name),
            None if other is None else other.summary["jobs"].get(name),
        )
        for name in dict.fromkeys(names)
    ]
    return Comparison(at, assumptions or Assumptions(), tuple(changes), base, other, tuple(pairs), live)


def _checked(scenario: Mapping[str, Any]) -> Scenario:
    return check_scenario(scenario)


def _run(scenario: Scenario, which: str, on_progress: Progress | None) -> Run:
    n_jobs, n_ended = len(scenario.jobs), 0

    def tell() -> None:
        if on_progress is not None:
            on_progress(which, n_ended, n_jobs)

    def one_more() -> None:
        nonlocal n_ended
        n_ended += 1
        tell()

    def plan(snapshot: Snapshot, policy: Policy) -> Plan:
        tell()  # between passes too: a person who waits may stop it
        return planner.plan(snapshot, policy)

    tell()
    outcome = simulate(build_world(scenario), Engine(plan=plan, stopwatch=clock.monotonic_s, on_end=one_more))
    return Run(report.summary(outcome), outcome)


# Figures -----------------------------------------------------------------------------------------------------------


def figures(comparison: Comparison, which: str) -> Row:
    """What one run comes to. Waits are of the jobs that wait at the beginning or come later, from then on."""
    run = comparison.base if which == BASE else comparison.what_if
    assert run is not None
    rows = [
        row for pair in comparison.jobs if (row := pair.base if which == BASE else pair.what_if) is not None
    ]
    waits = [row["wait"] for row in rows if row["wait"] is not None]
    metrics, losses = run.summary["metrics"], run.summary["losses"]
    capacity_s = sum(losses.values())
    states: dict[str, int] = {}
    for row in run.summary["jobs"].values():
        states[row["state"]] = states.get(row["state"], 0) + 1
    return {
        "horizon_s": float(run.outcome.horizon),
        "jobs": dict(sorted(states.items())),
        "waiting_jobs": len(rows),
        "waiting_jobs_started": len(waits),
        "mean_wait_s": mean(waits),
        "p95_wait_s": element_at(waits, report.P95),
        "makespan_s": metrics["makespan"],
        "utilization": metrics["utilization"],
        "preemptions": metrics["preemptions"],
        "lost_device_hours": metrics["lost_device_hours"],
        "losses_device_hours": {bucket: seconds / 3600 for bucket, seconds in losses.items()},
        "losses_share": {
            bucket: seconds / capacity_s if capacity_s else 0.0 for bucket, seconds in losses.items()
        },
        "peak_power_w": dict(metrics["peak_power_w"]),
        "energy_wh": dict(metrics["energy_wh"]),
        "passes": run.summary["engine"]["passes"],
    }


def difference(base: Any, other: Any) -> Any:
    """What is more (or less) in the other, number by number; None where one of them has none."""
    if isinstance(base, Mapping) or isinstance(other, Mapping):
        base, other = base or {}, other or {}
        return {key: difference(base.get(key), other.get(key)) for key in {**base, **other}}
    if base is None or other is None:
        return None
    return other - base


def _pair_as_json(pair: JobPair) -> Row:
    live = pair.live
    row: Row = {"job": pair.name}
    if live is not None:
        row |= {
            "id": live.id,
            "name": live.name,
            "team": live.team,
            "waited_s": live.waited_s,
            "run_time_from": live.run_time_from,
        }
    return row | {
        BASE: pair.base,
        WHAT_IF: pair.what_if,
        "start_later_s": pair.later_s("start"),
        "end_later_s": pair.later_s("end"),
    }

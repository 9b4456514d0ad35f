"""What a right scenario may ask for that this version does not do yet. Refused by name, never ignored."""

from collections.abc import Iterator

from apps.jobs.spec import Asks, ScenarioJob
from apps.simulation.scenario import CancelDemandResponse, DemandResponse, Scenario


def unsupported_in(scenario: Scenario) -> tuple[str, ...]:
    """Names of what the scenario asks for and does not get, each once, in a fixed order."""
    return tuple(dict.fromkeys(sorted(_wants(scenario))))


def _wants(scenario: Scenario) -> Iterator[str]:
    for event in scenario.events:
        if isinstance(event, DemandResponse | CancelDemandResponse):
            yield event.type
    if scenario.policy.displacement:
        yield "displacement"
    if scenario.policy.idle_power_off:
        yield "idle_power_off"
    # By default pre-emption is on, and a scenario that says nothing about it runs without; one that asks is told.
    if "preemption" in scenario.policy.model_fields_set and scenario.policy.preemption:
        yield "preemption"
    unstaged = _unstaged(scenario)
    for job in scenario.jobs:
        yield from _job_wants(job)
        if unstaged.intersection(job.datasets):
            yield "datasets"


def _job_wants(job: ScenarioJob) -> Iterator[str]:
    asks: Asks
    for asks in job.all_groups:
        if asks.is_elastic:
            yield "elastic replicas"
        if asks.spread is not None:
            yield "spread"


def _unstaged(scenario: Scenario) -> frozenset[str]:
    """Datasets that would have to travel before some node can read them."""
    needed = {node.storage for node in scenario.nodes if node.storage is not None}
    return frozenset(row.name for row in scenario.datasets if not row.at or needed - set(row.at))

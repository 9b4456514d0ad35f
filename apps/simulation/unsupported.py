"""What a right scenario may ask for that this version does not do yet. Refused by name, never ignored."""

from collections.abc import Iterator

from apps.simulation.scenario import CancelDemandResponse, DemandResponse, Scenario


def unsupported_in(scenario: Scenario) -> tuple[str, ...]:
    """Names of what the scenario asks for and does not get, each once, in a fixed order."""
    return tuple(dict.fromkeys(sorted(_wants(scenario))))


def _wants(scenario: Scenario) -> Iterator[str]:
    for event in scenario.events:
        if isinstance(event, DemandResponse | CancelDemandResponse):
            yield event.type

"""What a right scenario may ask for that this version does not do yet. Refused by name, never ignored."""

from collections.abc import Iterator, Sequence

from apps.simulation.scenario import Scenario


class NotSupported(Exception):
    """A right scenario asks for what is not there yet; carries the names."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"not supported yet: {', '.join(names)}")
        self.names = tuple(names)


def require_supported(scenario: Scenario) -> None:
    """Raise NotSupported, with the names, for a scenario that asks for what is not there yet."""
    if names := unsupported_in(scenario):
        raise NotSupported(names)


def unsupported_in(scenario: Scenario) -> tuple[str, ...]:
    """Names of what the scenario asks for and does not get, each once, in a fixed order."""
    return tuple(dict.fromkeys(sorted(_wants(scenario))))


def _wants(scenario: Scenario) -> Iterator[str]:
    return
    yield

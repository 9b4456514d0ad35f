"""The rules a placement obeys, as switches: an explanation leaves one out and looks what happens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules hold; explanations leave one out at a time."""

    quota: bool = True
    member_limit: bool = True
    topology: bool = True
    spread: bool = True
    power: bool = True
    reservation: bool = True
    staging: bool = True
    priority: bool = True
    unhealthy: bool = True
    resources: bool = True


ALL = Rules()

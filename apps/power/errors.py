"""What demand response refuses."""

from datetime import datetime
from typing import Any

from apps.core.errors import DomainError


class TargetBelowFloor(DomainError):
    """Less than the domain draws with everything at rest: a slip of the keyboard, or meant by a person."""

    code = "target_below_floor"

    def __init__(self, *, limit_w: float, floor_w: float) -> None:
        super().__init__(
            f"The target leaves {limit_w:.0f} W of IT load;"
            f" with all work paused the domain draws {floor_w:.0f} W.",
            limit_w=limit_w,
            floor_w=floor_w,
        )


class NoReference(DomainError):
    """A target that counts from the load before the notice needs readings of it."""

    code = "no_reference"

    def __init__(self, *, domain: str) -> None:
        super().__init__(
            f"{domain} has no usable reading in the 15 minutes before the notice to count from.",
            domain=domain,
        )


class TooManyEvents(DomainError):
    """The programme allows so many and no more."""

    code = "too_many_events"

    def __init__(self, *, programme: str, allowed: int, span: str) -> None:
        super().__init__(
            f"{programme} allows {allowed} events a {span}.", programme=programme, allowed=allowed, span=span
        )


class VersionReplayed(DomainError):
    """The source said something newer before."""

    code = "external_version_replayed"

    def __init__(self, *, external_id: str, known: int, told: int) -> None:
        super().__init__(
            f"{external_id} is known at version {known}; version {told} is older.",
            external_id=external_id,
            known=known,
            told=told,
        )


class EventClosed(DomainError):
    """The event is over, or was given up: nothing about it can be changed any more."""

    code = "event_closed"

    def __init__(self, *, event_id: int, phase: str) -> None:
        super().__init__(f"Event {event_id} is {phase}.", event_id=event_id, phase=phase)


class NotToBeOptedOut(DomainError):
    """An emergency is an order, no offer."""

    code = "emergency_binds"

    def __init__(self, *, event_id: int) -> None:
        super().__init__(
            f"Event {event_id} is an emergency: nobody opts out of it. It can be cancelled.",
            event_id=event_id,
        )


class PlanStale(DomainError):
    """What was previewed is no longer what would be done; preview again."""

    code = "plan_stale"

    def __init__(self, why: str, **facts: Any) -> None:
        super().__init__(f"{why} Preview it again.", **facts)


class ConfirmationNeeded(DomainError):
    """Some jobs would lose more than they allow: somebody has to type that they mean it."""

    code = "confirmation_needed"

    def __init__(self, *, n_breaches: int, expected: str) -> None:
        super().__init__(
            f"{n_breaches} jobs would lose more than they allow. Type {expected!r} to confirm.",
            n_breaches=n_breaches,
            expected=expected,
        )
        self.errors = ({"path": "confirmation", "code": self.code, "message": f"must be {expected!r}"},)


class NotPreauthorised(DomainError):
    """Nothing is committed without a person but what a programme allows in advance."""

    code = "not_preauthorised"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why} A person has to commit this plan.")


class EventNotOver(DomainError):
    """Nothing can be settled before it is over."""

    code = "event_not_over"
    http_status = 409

    def __init__(self, *, event_id: int, over_at: datetime) -> None:
        super().__init__(
            f"Event {event_id} can be settled from {over_at.isoformat()} on.",
            event_id=event_id,
            over_at=over_at.isoformat(),
        )

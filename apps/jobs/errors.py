"""What the ledger refuses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from apps.core.errors import DomainError, Forbidden, NotFound


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with one of the requests; `path` is as a user would write it inside that request."""

    path: str
    code: str
    message: str
    index: int = 0


class Refused(DomainError):
    """Requests that name what is not there, or ask for what this person may not have; nothing was stored."""

    code = "invalid"
    http_status = 400

    def __init__(self, faults: Sequence[Fault], **facts: Any) -> None:
        super().__init__(faults[0].message, **facts)
        self.faults = tuple(faults)
        if all(fault.code == "over_ceiling" for fault in faults):
            self.code, self.http_status = "over_ceiling", 403
        if all(fault.code == "too_many_waiting" for fault in faults):
            # Nothing is wrong with the request: later, when fewer wait, it will do.
            self.code, self.http_status = "too_many_waiting", 409
        self.under("")

    def under(self, path: str) -> Self:
        """Say where the requests stood in what the user sent: `jobs[3].team` where `path` is `jobs`."""
        self.errors = tuple(
            {
                "path": f"{path}[{fault.index}].{fault.path}" if path else fault.path,
                "code": fault.code,
                "message": fault.message,
            }
            for fault in self.faults
        )
        self.message = "; ".join(f"{error['path']}: {error['message']}" for error in self.errors[:5])
        return self


class Infeasible(Refused):
    """Proof that even the empty facility cannot hold a job."""

    code = "infeasible"
    http_status = 422


class NotYours(Forbidden):
    def __init__(self, *, job_id: int) -> None:
        super().__init__("This job is not yours to do this to.", job_id=job_id)


class OverCeiling(Forbidden):
    code = "over_ceiling"

    def __init__(self, *, team: str, asked: int, ceiling: int) -> None:
        super().__init__(
            f"a job of {team} has a priority of {ceiling} at most, not {asked}",
            team=team,
            asked=asked,
            ceiling=ceiling,
        )


class NoSuchJob(NotFound):
    def __init__(self, *, job_id: int) -> None:
        super().__init__("There is no such job.", job_id=job_id)


class NotNow(DomainError):
    """The job is in a state in which this cannot be done."""

    code = "wrong_state"

    def __init__(self, message: str, *, job_id: int, state: str) -> None:
        super().__init__(message, job_id=job_id, state=str(state))


class Stale(DomainError):
    """What a decision counted on is no longer so; nothing was written."""

    code = "stale"

    def __init__(self, why: str, *, job_id: int) -> None:
        super().__init__(why, job_id=job_id)

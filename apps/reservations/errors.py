"""What reservations refuse."""

from collections.abc import Sequence
from typing import Any

from apps.core.errors import DomainError


class ReservationConflict(DomainError):
    """Something else is promised there and then; the facts say what."""

    code = "reservation_conflict"

    def __init__(self, conflicts: Sequence[dict[str, Any]]) -> None:
        said = conflicts[0]["message"]
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        super().__init__(f"{said}{more}", conflicts=list(conflicts))

"""What goes in and comes out: reservations."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import AddressName, Count, Instant, Name, Names, Reason, Strict, Text
from apps.reservations.models import Reservation
from apps.reservations.recurrence import Window
from apps.reservations.services import Check, Draft

Kind = Literal["spine", "leaf", "scale_up", "facility", "hall", "row", "rack", "cooling", "storage"]


class ReservationIn(Strict):
    """Either `nodes`, or `n_devices` of `accelerator_type`. Without `teams` it is for nobody: maintenance.

    With `rrule` (RFC 5545, such as FREQ=WEEKLY;BYDAY=TU) the window repeats on the calendar of `time_zone`.
    """

    name: AddressName
    starts_at: Instant
    ends_at: Instant
    time_zone: Annotated[Name, Field(max_length=64)] = "UTC"
    rrule: Annotated[Text, Field(max_length=500)] = ""
    nodes: Names = Field(default_factory=list)
    accelerator_type: Name | None = None
    n_devices: Count | None = None
    within: Kind | None = None
    teams: Names = Field(default_factory=list)
    is_flexible: bool = True
    reason: Reason = ""

    def draft(self) -> Draft:
        return Draft(
            name=self.name,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            time_zone=self.time_zone,
            rrule=self.rrule,
            nodes=tuple(self.nodes),
            accelerator_type=self.accelerator_type,
            n_devices=self.n_devices,
            within=self.within or "",
            teams=tuple(self.teams),
            is_flexible=self.is_flexible,
            reason=self.reason,
        )


class CancelIn(Strict):
    reason: Reason = ""


class WindowOut(Out):
    """Half-open: [starts_at, ends_at)."""

    starts_at: datetime
    ends_at: datetime


class ReservationOut(Out):
    """`windows` are the next ones, or those in the span that was asked for."""

    name: str
    starts_at: datetime
    ends_at: datetime
    time_zone: str
    rrule: str
    nodes: list[str]
    accelerator_type: str | None
    n_devices: int | None
    within: str | None
    teams: list[str]
    is_maintenance: bool
    is_flexible: bool
    reason: str
    created_by: str | None
    created_at: datetime
    cancelled_at: datetime | None
    windows: list[WindowOut]

    @classmethod
    def of(cls, row: Reservation, windows: Iterable[Window]) -> "ReservationOut":
        teams = sorted(team.name for team in row.teams.all())
        return cls(
            name=row.name,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            time_zone=row.time_zone,
            rrule=row.rrule,
            nodes=sorted(node.name for node in row.nodes.all()),
            accelerator_type=None if row.accelerator_type is None else row.accelerator_type.name,
            n_devices=row.n_devices,
            within=row.within or None,
            teams=teams,
            is_maintenance=not teams,
            is_flexible=row.is_flexible,
            reason=row.reason,
            created_by=None if row.created_by is None else row.created_by.get_username(),
            created_at=row.created_at,
            cancelled_at=row.cancelled_at,
            windows=[WindowOut(starts_at=one.starts_at, ends_at=one.ends_at) for one in windows],
        )


class ConflictOut(Out):
    starts_at: datetime
    ends_at: datetime
    reservation: str | None
    message: str


class CheckOut(Out):
    is_possible: bool
    n_windows: int
    windows: list[WindowOut]
    conflicts: list[ConflictOut]

    @classmethod
    def of(cls, check: Check, *, most: int) -> "CheckOut":
        return cls(
            is_possible=check.is_possible,
            n_windows=len(check.windows),
            windows=[WindowOut(starts_at=one.starts_at, ends_at=one.ends_at) for one in check.windows[:most]],
            conflicts=[
                ConflictOut(
                    starts_at=one.starts_at,
                    ends_at=one.ends_at,
                    reservation=one.reservation or None,
                    message=one.message,
                )
                for one in check.conflicts
            ],
        )

"""What goes in and comes out: limits and readings."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import Instant, Name, Number, Reason, Strict, Version, Watts, WattsOrZero
from apps.inventory.models import Domain
from apps.power.models import LONGEST_AGE_S, PowerLimit, PowerReading
from apps.power.selectors import it_limit_w, tightest_w
from apps.power.services import Reading


class LimitPatch(Strict):
    """Fields that are absent stay as they are; a limit of null is no limit. Of the facility: watts at the meter."""

    version: Version
    hard_limit_w: WattsOrZero | None = None
    limit_w: WattsOrZero | None = None
    ramp_up_w_per_s: Watts | None = None
    overhead_fixed_w: WattsOrZero | None = None
    overhead_k: Annotated[Number, Field(gt=0, le=100)] | None = None
    max_age_s: Annotated[Number, Field(gt=0, le=LONGEST_AGE_S)] | None = None
    reason: Reason = ""

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"hard_limit_w", "limit_w", "ramp_up_w_per_s"})

    def changes(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in self.model_fields_set - {"version", "reason"}}


class ReadingIn(Strict):
    domain: Name
    at: Instant
    draw_w: WattsOrZero
    quality: Literal["ok", "estimated", "missing", "bad"] = "ok"


class ReadingsIn(Strict):
    readings: Annotated[list[ReadingIn], Field(min_length=1, max_length=10_000)]
    source: Annotated[Name, Field(max_length=40)] = "metered"

    def rows(self) -> list[Reading]:
        return [Reading(one.domain, one.at, one.draw_w, one.quality) for one in self.readings]


class ReadingsTakenOut(Out):
    """Of those sent, how many were not known yet."""

    n_new: int


class ReadingOut(Out):
    at: datetime
    draw_w: float
    quality: str
    source: str

    @classmethod
    def of(cls, row: PowerReading) -> "ReadingOut":
        return cls(at=row.at, draw_w=row.draw_w, quality=row.quality, source=row.source)


class PowerDomainOut(Out):
    """`effective_limit_w` is the tighter of the two limits, `it_limit_w` the same as IT load."""

    name: str
    kind: str
    parent: str | None
    hard_limit_w: float | None
    limit_w: float | None
    effective_limit_w: float | None
    it_limit_w: float | None
    ramp_up_w_per_s: float | None
    overhead_fixed_w: float
    overhead_k: float
    max_age_s: float
    version: int
    latest: ReadingOut | None

    @classmethod
    def of(cls, domain: Domain, reading: PowerReading | None) -> "PowerDomainOut":
        limit: PowerLimit = getattr(domain, "power_limit", None) or PowerLimit(domain=domain)
        return cls(
            name=domain.name,
            kind=domain.kind,
            parent=None if domain.parent is None else domain.parent.name,
            hard_limit_w=limit.hard_limit_w,
            limit_w=limit.limit_w,
            effective_limit_w=tightest_w(limit),
            it_limit_w=it_limit_w(limit),
            ramp_up_w_per_s=limit.ramp_up_w_per_s,
            overhead_fixed_w=limit.overhead_fixed_w,
            overhead_k=limit.overhead_k,
            max_age_s=limit.max_age_s,
            version=limit.version,
            latest=None if reading is None else ReadingOut.of(reading),
        )

"""What goes in and comes out: limits and readings."""

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from apps.core.api.body import Out
from apps.core.strict import (
    AddressName,
    Instant,
    Misfit,
    Name,
    Number,
    Reason,
    Strict,
    Text,
    Version,
    Watts,
    WattsOrZero,
)
from apps.inventory.models import Domain
from apps.power.budget import Step, mask_of, minute_of
from apps.power.budget_selectors import DomainBinding
from apps.power.meter_services import MeterDraft
from apps.power.models import LONGEST_AGE_S, MeterSource, PowerAlarm, PowerLimit, PowerReading
from apps.power.selectors import it_w_of
from apps.power.services import MOST_STEPS, Reading

DayWord = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
BeginTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
ClockTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$")]
AlarmWord = Literal["controller_silent", "over_limit", "stale_readings", "watchdog_blind"]


class LimitPatch(Strict):
    """Fields that are absent stay as they are; a limit of null is no limit. Of the facility: watts at the meter."""

    version: Version
    rated_w: Watts | None = None
    derate: Annotated[Number, Field(gt=0, le=1)] | None = None
    reserve_w: WattsOrZero | None = None
    hard_limit_w: WattsOrZero | None = None
    limit_w: WattsOrZero | None = None
    ramp_up_w_per_s: Watts | None = None
    overhead_fixed_w: WattsOrZero | None = None
    overhead_k: Annotated[Number, Field(gt=0, le=100)] | None = None
    max_age_s: Annotated[Number, Field(gt=0, le=LONGEST_AGE_S)] | None = None
    reason: Reason = ""

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"rated_w", "hard_limit_w", "limit_w", "ramp_up_w_per_s"})

    def changes(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in self.model_fields_set - {"version", "reason"}}


class StepIn(Strict):
    """Either weekly (`days`, and `from_time` and `until_time` as HH:MM of the local clock, also over midnight), or
    between two instants (`start_at`, `end_at`)."""

    days: Annotated[list[DayWord], Field(min_length=1, max_length=7)] | None = None
    from_time: BeginTime = "00:00"
    until_time: ClockTime = "24:00"
    start_at: Instant | None = None
    end_at: Instant | None = None
    limit_w: WattsOrZero

    @model_validator(mode="after")
    def _has_one_form(self) -> "StepIn":
        has_dates = self.model_fields_set & {"start_at", "end_at"}
        if self.days is not None and has_dates:
            raise Misfit("must not be given beside days", sorted(has_dates)[0])
        if self.days is None:
            for field in ("start_at", "end_at"):
                if field not in has_dates:
                    raise Misfit("is required where no days are named", field, code="missing")
        return self

    def step(self) -> Step:
        if self.days is None:
            return Step(self.limit_w, start_at=self.start_at, end_at=self.end_at)
        return Step(self.limit_w, mask_of(self.days), minute_of(self.from_time), minute_of(self.until_time))


class EnvelopeIn(Strict):
    """All steps of a domain's envelope; an empty list is no envelope. Where several hold at once the lowest does."""

    version: Version
    time_zone: Annotated[Name, Field(max_length=64)] = "UTC"
    steps: Annotated[list[StepIn], Field(max_length=MOST_STEPS)]
    reason: Reason = ""


class StepOut(Out):
    """Weekly, or between two instants; what belongs to the other form is null."""

    days: list[str] | None = None
    from_time: str | None = None
    until_time: str | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    limit_w: float


class EnvelopeOut(Out):
    """`version` is that of the domain's limit."""

    time_zone: str
    steps: list[StepOut]
    version: int


class BindingOut(Out):
    """Which of what is set holds now: `rating` (with the derating factor) and `hard_limit` less the reserve,
    `operating_limit`, `envelope`, the target of an `event`, or `hold`: too little is known of what it draws."""

    by: str
    limit_w: float
    event_id: int | None = None


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


Label = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=100)]
Address = Annotated[Text, Field(min_length=8, max_length=500)]
Promql = Annotated[Text, Field(min_length=1, max_length=2000)]
NamesHere = Annotated[dict[Annotated[Text, Field(max_length=200)], Name], Field(max_length=20_000)]
Scale = Annotated[Number, Field(gt=0, le=1e9)]
EveryS = Annotated[int, Field(ge=5, le=LONGEST_AGE_S)]
MaxAgeS = Annotated[Number, Field(gt=0, le=LONGEST_AGE_S)]


class Labels(Strict):
    """Labels of a series that say what it is of: a power domain; or a node, and perhaps a device of it."""

    domain: Label | None = None
    node: Label | None = None
    device: Label | None = None

    def fields(self) -> dict[str, str]:
        return {f"{name}_label": getattr(self, name) or "" for name in ("domain", "node", "device")}


class MeterIn(Strict):
    """`names` says which name here a value of the label stands for; `scale` how many watts a unit of the value is."""

    name: Annotated[AddressName, Field(max_length=40)]
    kind: Literal["prometheus"] = "prometheus"
    url: Address
    query: Promql
    labels: Labels
    names: NamesHere = Field(default_factory=dict)
    scale: Scale = 1.0
    every_s: EveryS = 30
    max_age_s: MaxAgeS = 120.0
    is_enabled: bool = True
    reason: Reason = ""

    def draft(self) -> MeterDraft:
        said: dict[str, Any] = self.model_dump(exclude={"kind", "labels", "reason"})
        return MeterDraft(**(said | self.labels.fields()))


class MeterPatch(Strict):
    """Fields that are absent stay as they are."""

    version: Version
    url: Address | None = None
    query: Promql | None = None
    labels: Labels | None = None
    names: NamesHere | None = None
    scale: Scale | None = None
    every_s: EveryS | None = None
    max_age_s: MaxAgeS | None = None
    is_enabled: bool | None = None
    reason: Reason = ""

    def changes(self) -> dict[str, Any]:
        found = {
            name: getattr(self, name) for name in self.model_fields_set - {"version", "reason", "labels"}
        }
        return found | (self.labels.fields() if self.labels is not None else {})


class LabelsOut(Out):
    domain: str | None
    node: str | None
    device: str | None


class MeterOut(Out):
    """`n_taken` and `n_left` are the series of the last good answer that were taken, and that were not."""

    name: str
    kind: str
    url: str
    query: str
    labels: LabelsOut
    names: dict[str, str]
    scale: float
    every_s: int
    max_age_s: float
    is_enabled: bool
    last_tried_at: datetime | None
    last_ok_at: datetime | None
    last_error: str
    n_taken: int
    n_left: int
    version: int

    @classmethod
    def of(cls, row: MeterSource) -> "MeterOut":
        labels = LabelsOut(
            domain=row.domain_label or None, node=row.node_label or None, device=row.device_label or None
        )
        same = {name: getattr(row, name) for name in cls.model_fields if name != "labels"}
        return cls(labels=labels, **same)


class PowerDomainOut(Out):
    """`effective_limit_w` is what holds now, events and the envelope too, and `bound_by` what says so; `it_limit_w` is
    the same as IT load. `oversubscription` is the sum of the limits just below by its own; null where one has none."""

    name: str
    kind: str
    parent: str | None
    rated_w: float | None
    derate: float
    reserve_w: float
    hard_limit_w: float | None
    limit_w: float | None
    effective_limit_w: float | None
    it_limit_w: float | None
    bound_by: BindingOut | None
    oversubscription: float | None
    ramp_up_w_per_s: float | None
    overhead_fixed_w: float
    overhead_k: float
    max_age_s: float
    version: int
    latest: ReadingOut | None

    @classmethod
    def of(
        cls,
        domain: Domain,
        reading: PowerReading | None,
        binding: DomainBinding | None,
        oversubscription: float | None,
    ) -> "PowerDomainOut":
        limit: PowerLimit = getattr(domain, "power_limit", None) or PowerLimit(domain=domain)
        return cls(
            name=domain.name,
            kind=domain.kind,
            parent=None if domain.parent is None else domain.parent.name,
            rated_w=limit.rated_w,
            derate=limit.derate,
            reserve_w=limit.reserve_w,
            hard_limit_w=limit.hard_limit_w,
            limit_w=limit.limit_w,
            effective_limit_w=None if binding is None else binding.limit_w,
            it_limit_w=None if binding is None else it_w_of(limit, binding.limit_w),
            bound_by=None
            if binding is None
            else BindingOut(by=binding.by, limit_w=binding.limit_w, event_id=binding.event_id),
            oversubscription=oversubscription,
            ramp_up_w_per_s=limit.ramp_up_w_per_s,
            overhead_fixed_w=limit.overhead_fixed_w,
            overhead_k=limit.overhead_k,
            max_age_s=limit.max_age_s,
            version=limit.version,
            latest=None if reading is None else ReadingOut.of(reading),
        )


class AlarmOut(Out):
    """`cleared_at` is null as long as it is open; `domain` is null where it is about the whole site."""

    id: int
    kind: AlarmWord
    domain: str | None
    raised_at: datetime
    cleared_at: datetime | None
    message: str

    @classmethod
    def of(cls, row: PowerAlarm) -> "AlarmOut":
        return cls(
            id=row.pk,
            kind=cast(AlarmWord, row.kind),
            domain=None if row.domain is None else row.domain.name,
            raised_at=row.raised_at,
            cleared_at=row.cleared_at,
            message=row.message,
        )

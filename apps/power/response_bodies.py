"""What goes in and comes out: programmes, demand-response events, their plans. Money is text, no float."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from apps.core.api.body import Out
from apps.core.strict import (
    AddressName,
    Count,
    Instant,
    Name,
    Number,
    Reason,
    Strict,
    Text,
    Version,
    WattsOrZero,
)
from apps.power.models import (
    LONGEST_RECOVERY_S,
    CurtailmentAction,
    CurtailmentPlan,
    DemandResponseEvent,
    PlanState,
    Programme,
    SettlementReport,
)
from apps.power.plan_services import confirmation_of
from apps.power.programme_services import ProgrammeDraft
from apps.power.response import Load, limit_it_w
from apps.power.response_selectors import meter_of, phase_of_event, response_of
from apps.power.response_services import EventDraft

TargetWord = Literal["shed_by", "limit_to", "level"]
BaselineWord = Literal["meter_before", "10_of_10", "3_plus_2"]
EmergencyWord = Literal["none", "caps", "caps_and_stops"]
PhaseWord = Literal["scheduled", "notified", "ramping", "active", "recovering", "completed", "cancelled"]
WholeSeconds = Annotated[int, Field(ge=1, le=366 * 86_400)]
WholeSecondsOrZero = Annotated[int, Field(ge=0, le=366 * 86_400)]
Tolerance = Annotated[Number, Field(ge=0, lt=1)]


def _amount(text: str) -> str:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII):
        raise ValueError("must be an amount as text, such as 0.40, with at most six digits on either side")
    return text


Money = Annotated[Text, AfterValidator(_amount), Field(description="As text: `0.40`.")]


class ProgrammeIn(Strict):
    """`emergency_policy` is in force once a second power administrator has asked for the same."""

    name: AddressName
    notice_s: WholeSecondsOrZero
    ramp_s: WholeSecondsOrZero
    min_duration_s: WholeSeconds
    max_duration_s: WholeSeconds
    target_kind: TargetWord
    baseline_method: BaselineWord
    interval_s: WholeSeconds
    time_zone: Annotated[Name, Field(max_length=64)] = "UTC"
    tolerance: Tolerance = 0.05
    price_per_kwh: Money = "0"
    penalty_per_kwh: Money = "0"
    max_events_per_day: Count | None = None
    max_events_per_season: Count | None = None
    is_auto_commit: bool = False
    two_person_above_w: WattsOrZero | None = None
    emergency_policy: EmergencyWord = "none"
    reason: Reason = ""

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"max_events_per_day", "max_events_per_season", "two_person_above_w"})

    def draft(self) -> ProgrammeDraft:
        said = self.model_dump(exclude={"reason", "version"})
        for name in ("price_per_kwh", "penalty_per_kwh"):
            said[name] = Decimal(said[name])
        return ProgrammeDraft(**said)


class ProgrammePut(ProgrammeIn):
    """The programme from now on, all of it, based on the version that was read."""

    version: Version


class ProgrammeOut(Out):
    """`asked_emergency_policy` waits for a second person; null: none does."""

    name: str
    notice_s: int
    ramp_s: int
    min_duration_s: int
    max_duration_s: int
    target_kind: TargetWord
    baseline_method: BaselineWord
    interval_s: int
    time_zone: str
    tolerance: float
    price_per_kwh: str
    penalty_per_kwh: str
    max_events_per_day: int | None
    max_events_per_season: int | None
    is_auto_commit: bool
    two_person_above_w: float | None
    emergency_policy: EmergencyWord
    emergency_policy_by: str | None
    asked_emergency_policy: EmergencyWord | None
    asked_emergency_policy_by: str | None
    version: int

    @classmethod
    def of(cls, row: Programme) -> "ProgrammeOut":
        by, asked_by = row.emergency_policy_by, row.asked_emergency_policy_by
        return cls.model_validate(
            {
                **{name: getattr(row, name) for name in _AS_THEY_ARE},
                "price_per_kwh": _money(row.price_per_kwh),
                "penalty_per_kwh": _money(row.penalty_per_kwh),
                "emergency_policy_by": None if by is None else by.get_username(),
                "asked_emergency_policy": row.asked_emergency_policy or None,
                "asked_emergency_policy_by": None if asked_by is None else asked_by.get_username(),
            }
        )


_AS_THEY_ARE = tuple(
    name
    for name in ProgrammeOut.model_fields
    if not name.startswith("asked_") and not name.endswith(("_per_kwh", "_by"))
)


def _money(amount: Decimal) -> str:
    return format(Decimal(amount).normalize(), "f")


class EventIn(Strict):
    """`value` is watts (at the meter for a facility, of IT load below it), or a level from 0 to 3.

    What is absent follows from the programme, or from the other times.
    """

    domain: Name
    target_kind: TargetWord
    value: WattsOrZero
    start_at: Instant
    end_at: Instant
    programme: Name | None = None
    source: Literal["operator", "schedule", "emergency"] = "operator"
    external_id: Annotated[Text, Field(max_length=200)] = ""
    external_version: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    priority: Annotated[int, Field(ge=0, le=1000)] = 1
    notified_at: Instant | None = None
    ramp_start_at: Instant | None = None
    recovery_s: Annotated[int, Field(ge=0, le=LONGEST_RECOVERY_S)] = 3600
    rebound_limit_share: Annotated[Number, Field(gt=0, le=10)] = 1.05
    tolerance: Tolerance | None = None
    is_test: bool = False
    is_emergency: bool = False
    is_below_floor_confirmed: bool = Field(
        False, description="The target is meant though it lies under what the domain draws at rest."
    )
    reason: Reason = ""

    def draft(self) -> EventDraft:
        return EventDraft(**self.model_dump(exclude={"is_below_floor_confirmed"}))


class GiveUpIn(Strict):
    """`version` is of the event as it was read; absent: whatever it is."""

    version: Version | None = None
    reason: Reason = ""


class EventOut(Out):
    """`it_limit_w` is the IT load that the target leaves; null while there is no reference to count from."""

    id: int
    domain: str
    programme: str | None
    source: str
    external_id: str | None
    external_version: int
    priority: int
    target_kind: TargetWord
    value: float
    notified_at: datetime
    ramp_start_at: datetime
    start_at: datetime
    end_at: datetime
    recovery_s: int
    rebound_limit_share: float
    tolerance: float
    is_test: bool
    is_emergency: bool
    reference_w: float | None
    reference_quality: str
    it_limit_w: float | None
    phase: PhaseWord
    has_committed_plan: bool
    outcome: str | None
    cancelled_at: datetime | None
    opted_out_at: datetime | None
    released_at: datetime | None
    reason: str
    created_by: str | None
    created_at: datetime
    version: int

    @classmethod
    def of(cls, event: DemandResponseEvent, *, load: Load, at: datetime) -> "EventOut":
        by, facts = event.created_by, vars(event)
        return cls.model_validate(
            {
                **{name: facts[name] for name in cls.model_fields if name in facts},
                "domain": event.domain.name,
                "programme": None if event.programme is None else event.programme.name,
                "external_id": event.external_id or None,
                "it_limit_w": limit_it_w(response_of(event), meter_of(event.domain)),
                "phase": phase_of_event(event, load=load, at=at).value,
                "outcome": event.outcome or None,
                "created_by": None if by is None else by.get_username(),
            }
        )


class ActionOut(Out):
    """`state` is null in a plan that was never in force."""

    job_id: int
    lever: str
    before: dict[str, Any]
    after: dict[str, Any]
    expected_w: float
    issue_at: datetime
    effective_by_at: datetime
    state: str | None
    state_since_at: datetime | None
    lease_until_at: datetime | None
    note: str

    @classmethod
    def of(cls, row: CurtailmentAction) -> "ActionOut":
        facts = vars(row)
        return cls.model_validate({name: facts[name] for name in cls.model_fields})

    @classmethod
    def planned(cls, facts: dict[str, Any]) -> "ActionOut":
        known = {name: facts[name] for name in cls.model_fields if name in facts}
        return cls.model_validate(
            {"state": None, "state_since_at": None, "lease_until_at": None, "note": "", **known}
        )


class PlanOut(Out):
    """`confirmation` is what to type where `tier_breaches` is not empty; null: nothing."""

    number: int
    state: str
    event_version: int
    inputs_hash: str
    predicted_shed_w: float
    shortfall_w: float
    lost_device_s: float
    bound_device_s: float
    tier_breaches: list[int]
    confirmation: str | None
    actions: list[ActionOut]
    details: dict[str, Any]
    created_by: str | None
    previewed_at: datetime | None
    expires_at: datetime | None
    approved_at: datetime | None
    approved_by: str | None
    committed_at: datetime | None
    committed_by: str | None

    @classmethod
    def of(cls, row: CurtailmentPlan, event: DemandResponseEvent) -> "PlanOut":
        facts, kept = vars(row), dict(row.plan)
        breaches, planned = kept.pop("tier_breaches", []), kept.pop("actions", [])
        people = {
            name: None if (who := getattr(row, name)) is None else who.get_username()
            for name in ("created_by", "approved_by", "committed_by")
        }
        carried_out = [ActionOut.of(action) for action in row.actions.all()]
        return cls.model_validate(
            {
                **{name: facts[name] for name in cls.model_fields if name in facts},
                **people,
                "tier_breaches": breaches,
                "confirmation": confirmation_of(event)
                if breaches and row.state == PlanState.PREVIEWED
                else None,
                "actions": carried_out or [ActionOut.planned(one) for one in planned],
                "details": kept,
            }
        )


class SettleIn(Strict):
    """Why it is settled now."""

    reason: Reason = ""


class SettlementOut(Out):
    """One version of a settlement. Energies (Wh) and money are text, so that no reader turns a cent into a fraction.

    `versions` are all there are, the latest first; `document` is all that was counted, as `docs/power.md` tells.
    """

    event: int
    version: int
    versions: list[int]
    settled_at: datetime
    settled_by: str | None
    outcome: str
    performance: str | None
    target_wh: str
    delivered_wh: str
    credited_wh: str
    shortfall_wh: str
    payment: str
    penalty: str
    net: str
    currency: str
    lost_device_h: str
    lost_source: Literal["actions", "plan", "none"]
    digest: str
    document: dict[str, Any]

    @classmethod
    def of(cls, row: SettlementReport, versions: list[int]) -> "SettlementOut":
        facts = vars(row)
        said = {
            name: str(facts[name]) if isinstance(facts[name], Decimal) else facts[name]
            for name in cls.model_fields
            if name in facts
        }
        by = row.settled_by
        return cls.model_validate(
            {
                **said,
                "event": row.event_id,
                "version": row.number,
                "versions": versions,
                "settled_by": None if by is None else by.get_username(),
            }
        )

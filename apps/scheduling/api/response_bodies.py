"""What goes in and comes out of dry runs, commits and the switch of power control."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import Name, Reason, Strict, Text
from apps.power.models import PowerController
from apps.power.response_bodies import ActionOut, EventIn
from apps.scheduling.response.deciding import Wish
from apps.scheduling.response.services import DryRun

_MOST: int = 1000
JobIds = Annotated[list[Annotated[int, Field(ge=1, lt=2**63)]], Field(max_length=_MOST)]
TeamNames = Annotated[list[Name], Field(max_length=_MOST)]
Hash = Annotated[Text, Field(pattern=r"^[0-9a-f]{64}$")]


class WishIn(Strict):
    """`exempt_jobs` and `exempt_teams` are never touched; `allowed_jobs` may lose more than their tier allows."""

    levers: Annotated[list[Literal["cap", "shrink", "pause", "stop"]], Field(min_length=1, max_length=4)] = [
        "cap",
        "shrink",
        "pause",
        "stop",
    ]
    exempt_jobs: JobIds = []
    exempt_teams: TeamNames = []
    allowed_jobs: JobIds = []

    def of(self) -> Wish:
        return Wish(
            levers=frozenset(self.levers),
            exempt_jobs=frozenset(self.exempt_jobs),
            exempt_teams=frozenset(self.exempt_teams),
            allowed_jobs=frozenset(self.allowed_jobs),
        )


class DryRunIn(Strict):
    event: EventIn
    wish: WishIn = WishIn()


class DraftCommitIn(DryRunIn):
    """`seen` is of the dry run."""

    seen: Annotated[Text, Field(max_length=2000)]
    confirmation: Annotated[Text, Field(max_length=200)] = ""
    reason: Reason = ""


class CommitIn(Strict):
    """`inputs_hash` is of the preview that was seen."""

    inputs_hash: Hash
    confirmation: Annotated[Text, Field(max_length=200)] = ""
    reason: Reason = ""


class ReasonIn(Strict):
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


class DryRunOut(Out):
    """As a plan, but of an event that is not there yet."""

    seen: str
    expires_at: datetime
    reference_w: float | None
    reference_quality: str
    predicted_shed_w: float
    shortfall_w: float
    lost_device_s: float
    bound_device_s: float
    tier_breaches: list[int]
    actions: list[ActionOut]
    details: dict[str, Any]

    @classmethod
    def of(cls, found: DryRun) -> "DryRunOut":
        draft = found.draft
        return cls.model_validate(
            {
                "seen": found.seen,
                "expires_at": found.expires_at,
                "reference_w": found.event.reference_w,
                "reference_quality": found.event.reference_quality,
                "predicted_shed_w": draft.predicted_shed_w,
                "shortfall_w": draft.shortfall_w,
                "lost_device_s": draft.lost_device_s,
                "bound_device_s": draft.bound_device_s,
                "tier_breaches": list(draft.tier_breaches),
                "actions": [
                    ActionOut.planned(
                        {
                            "job_id": one.job_id,
                            "lever": one.lever,
                            "before": dict(one.before),
                            "after": dict(one.after),
                            "expected_w": one.expected_w,
                            "issue_at": one.issue_at,
                            "effective_by_at": one.effective_by_at,
                        }
                    )
                    for one in draft.actions
                ],
                "details": dict(draft.details),
            }
        )


class ControllerOut(Out):
    """`fence` grows with every new holder; `stopped_at` null: it acts."""

    holder: str
    fence: int
    since_at: datetime | None
    heartbeat_at: datetime | None
    last_error: str
    stopped_at: datetime | None
    stopped_by: str | None
    stop_reason: str

    @classmethod
    def of(cls, row: PowerController) -> "ControllerOut":
        facts, by = vars(row), row.stopped_by
        known = {name: facts[name] for name in cls.model_fields if name in facts}
        return cls.model_validate({**known, "stopped_by": None if by is None else by.get_username()})

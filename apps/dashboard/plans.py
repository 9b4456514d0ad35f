"""A plan of curtailment as pages show it: figures, a chart, the jobs it touches and what to mind about each.

What is kept of a plan is IT load; what is shown is on the domain's own side of the meter, so that figures and rows
add up with the target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from apps.dashboard import charts, words
from apps.dashboard.templatetags import formats
from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import HARD
from apps.power.models import CurtailmentPlan, DemandResponseEvent
from apps.power.plan_services import EXPIRES_AFTER, confirmation_of
from apps.scheduling.response.selectors import Means, means_of, names_of
from apps.scheduling.response.services import DryRun

_FEW_ROWS: Final = 8
_ROWS_A_PAGE: Final = 50
_LONG_UNSAVED_S: Final = 600
_MOST_WARNED: Final = 5


@dataclass(frozen=True)
class Row:
    """One job that the plan touches."""

    facts: Mapping[str, Any]
    means: Means | None
    k: float

    @property
    def is_pause(self) -> bool:
        return self.facts["lever"] in HARD

    @property
    def is_shrink(self) -> bool:
        return bool(self.facts["lever"] == Lever.SHRINK.value)

    @property
    def what(self) -> str:
        """What is done to it, in words."""
        if self.facts["lever"] == Lever.STOP.value:
            return "stopped at once"
        if self.is_pause:
            return "pause without a save" if self.facts["unsaved_s"] is not None else "save, then pause"
        if self.is_shrink:
            return words.on_fewer(self.facts["n_replicas"])
        share = formats.share(self.facts["share"])
        return f"cap {share}, {formats.count(self.facts['cap_w'])}{formats.SPACE}W a device"

    @property
    def shed_w(self) -> float:
        return float(self.facts["shed_w"]) * self.k

    @property
    def is_unsaved(self) -> bool:
        unsaved_s = self.facts["unsaved_s"]
        return unsaved_s is not None and unsaved_s >= _LONG_UNSAVED_S

    @property
    def lost_work_s(self) -> float:
        """Device-seconds that a pause without a save throws away."""
        return float(self.facts["unsaved_s"] or 0.0) * float(self.facts["n_devices"])


@dataclass(frozen=True)
class Relaxation:
    """What could be allowed beside the plan."""

    facts: Mapping[str, Any]
    gain_w: float
    is_allowed: bool = False


@dataclass
class Shown:
    """One plan, previewed or committed.

    Attributes:
        token: Stands for what is shown: `seen` of a dry run, the hash of a preview of an announced event.
        is_new: The event is not announced yet.
        page: Which page of the jobs it touches, from 1 on; 0: the first few.
    """

    event: DemandResponseEvent
    details: Mapping[str, Any]
    predicted_shed_w: float
    shortfall_w: float
    lost_device_s: float
    breaches: Sequence[int]
    at: datetime
    expires_at: datetime
    token: str
    is_new: bool
    actions: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    page: int = 0

    @classmethod
    def of_dry_run(cls, run: DryRun, *, page: int = 0) -> "Shown":
        draft = run.draft
        return cls(
            event=run.event,
            details=draft.details,
            predicted_shed_w=draft.predicted_shed_w,
            shortfall_w=draft.shortfall_w,
            lost_device_s=draft.lost_device_s,
            breaches=draft.tier_breaches,
            at=run.at,
            expires_at=run.expires_at,
            token=run.seen,
            is_new=True,
            actions=[{"issue_at": one.issue_at.isoformat()} for one in draft.actions],
            page=page,
        )

    @classmethod
    def of_plan(cls, plan: CurtailmentPlan, event: DemandResponseEvent, *, page: int = 0) -> "Shown":
        at = plan.previewed_at or event.created_at
        return cls(
            event=event,
            details=plan.plan,
            predicted_shed_w=plan.predicted_shed_w,
            shortfall_w=plan.shortfall_w,
            lost_device_s=plan.lost_device_s,
            breaches=plan.plan["tier_breaches"],
            at=at,
            expires_at=plan.expires_at or at + EXPIRES_AFTER,
            token=plan.inputs_hash,
            is_new=False,
            actions=plan.plan["actions"],
            page=page,
        )

    # Figures

    @property
    def k(self) -> float:
        return float(self.details["k"])

    def _own_w(self, it_w: float) -> float:
        return float(self.details["fixed_w"]) + self.k * it_w

    @property
    def asked_w(self) -> float:
        return float(self.details["asked_w"]) * self.k

    @property
    def achievable_w(self) -> float:
        return float(self.details["achievable_w"]) * self.k

    @property
    def base_w(self) -> float:
        return self._own_w(float(self.details["base_w"]))

    @property
    def limit_w(self) -> float:
        return self._own_w(float(self.details["target_w"]))

    @property
    def share(self) -> float | None:
        return self.predicted_shed_w / self.asked_w if self.asked_w > 0 else None

    @property
    def capped_w(self) -> float:
        return float(self.details["capped_w"]) * self.k

    @property
    def n_shrunk(self) -> int:
        return int(self.details.get("n_shrunk", 0))  # plans of before had no such lever

    @property
    def shrunk_w(self) -> float:
        return float(self.details.get("shrunk_w", 0.0)) * self.k

    @property
    def paused_w(self) -> float:
        return float(self.details["paused_w"]) * self.k

    @property
    def deferred_device_s(self) -> float:
        return float(self.details["deferred_device_s"])

    @property
    def destroyed_device_s(self) -> float:
        """Work that is lost for good: done again, and time to begin again."""
        return max(0.0, self.lost_device_s - self.deferred_device_s)

    @property
    def is_short(self) -> bool:
        return self.shortfall_w > 1e-3

    @property
    def nearness(self) -> str:
        """How near it comes to the least possible loss."""
        if self.details["method"] == "greedy":
            return "how near the least possible loss is not known"
        gap = float(self.details["gap"])
        if gap < 5e-5:
            return "the least possible loss"
        return f"within {formats.share(gap)} of the least possible loss"

    @property
    def starts_at(self) -> datetime:
        """When the first thing is done."""
        times = [datetime.fromisoformat(one["issue_at"]) for one in self.actions]
        return max(self.at, min(times, default=self.event.start_at))

    @property
    def begins_now(self) -> bool:
        return self.starts_at <= self.at

    @property
    def binding(self) -> list[str]:
        """What stands in the way, in words: the domain, and the tiers that may lose no more."""
        said = []
        for word in self.details["binding"]:
            tier = word.removeprefix("tier ")
            if tier != word and tier.isdigit():
                said.append(f"{words.tier(int(tier))} jobs may lose no more")
            else:
                said.append(f"everything in {word} that may be touched is touched")
        return said

    @property
    def confirmation(self) -> str:
        """What has to be typed; empty: nothing."""
        return confirmation_of(self.event) if self.breaches else ""

    # Jobs

    @cached_property
    def listed(self) -> list[Row]:
        """The jobs it touches, the greatest harm first, as far as they are kept one by one."""
        told = self.details["jobs"]
        means = means_of([one["job_id"] for one in told])
        return [Row(one, means.get(one["job_id"]), self.k) for one in told]

    @property
    def n_pages(self) -> int:
        return max(1, -(-len(self.listed) // _ROWS_A_PAGE))

    @property
    def shown_page(self) -> int:
        """The page that is shown: of a plan that got shorter the last one it has."""
        return min(self.page, self.n_pages)

    @property
    def rows(self) -> list[Row]:
        if not self.page:
            return self.listed[:_FEW_ROWS]
        begin = (self.shown_page - 1) * _ROWS_A_PAGE
        return self.listed[begin : begin + _ROWS_A_PAGE]

    @property
    def first_row(self) -> int:
        """Place of the first row that is shown, from 1 on."""
        return (max(1, self.shown_page) - 1) * _ROWS_A_PAGE + 1

    @property
    def last_row(self) -> int:
        return self.first_row + len(self.rows) - 1

    @property
    def n_jobs(self) -> int:
        return int(self.details["n_jobs"])

    @property
    def n_not_listed(self) -> int:
        """Jobs that it touches as well, too many to be kept one by one."""
        return self.n_jobs - len(self.listed)

    @property
    def more_to_ask_w(self) -> float:
        """By how much more a target has to ask before it asks for anything: the load is below its limit already."""
        return self.limit_w - self.base_w

    @property
    def has_assumed(self) -> bool:
        return any(row.facts["is_assumed"] for row in self.listed)

    @property
    def has_recorded(self) -> bool:
        return any(
            row.means is not None and row.means.is_recorded and not (row.is_pause or row.is_shrink)
            for row in self.listed
        )

    @property
    def has_simulated(self) -> bool:
        return any(row.means is not None and row.means.is_simulated for row in self.listed)

    @property
    def unsaved(self) -> list[Row]:
        """Jobs that would be paused long after their last save."""
        return [row for row in self.listed if row.is_pause and row.is_unsaved][:_MOST_WARNED]

    @cached_property
    def relaxations(self) -> list[Relaxation]:
        return [Relaxation(one, float(one["gain_w"]) * self.k) for one in self.details["relaxations"]]

    @cached_property
    def named(self) -> Mapping[int, Any]:
        """Jobs that were set apart by hand, by id."""
        wish = self.details["wish"]
        return names_of([*wish["exempt_jobs"], *wish["allowed_jobs"]])

    @property
    def exempt(self) -> list[Any]:
        return [self.named[one] for one in self.details["wish"]["exempt_jobs"] if one in self.named]

    @property
    def allowed(self) -> list[Any]:
        return [self.named[one] for one in self.details["wish"]["allowed_jobs"] if one in self.named]

    # Chart C8

    @cached_property
    def curve(self) -> list[tuple[datetime, float]]:
        """Instants, and watts with the plan."""
        return [(datetime.fromisoformat(at), self._own_w(it_w)) for at, it_w in self.details["curve"]]

    @property
    def figure(self) -> charts.Figure:
        return charts.plan_chart(
            self.curve,
            base_w=self.base_w,
            limit_w=self.limit_w,
            start_at=max(self.event.start_at, self.at),
            end_at=self.event.end_at,
            now=self.at,
        )

    @property
    def sentence(self) -> str:
        low_w = min((watts for _, watts in self.curve), default=self.base_w)
        return (
            f"{formats.power(self.base_w)} without the plan, down to {formats.power(low_w)} with it;"
            f" limit {formats.power(self.limit_w)}"
        )

    @property
    def table(self) -> list[tuple[datetime, float, float, float | None]]:
        """The chart as rows: instant, without, with, limit."""
        begins_at, ends_at = max(self.event.start_at, self.at), self.event.end_at
        return [
            (at, self.base_w, watts, self.limit_w if begins_at <= at <= ends_at else None)
            for at, watts in self.curve
        ]

"""What pages ask about demand response beside the rows of events: which jobs it holds, and by what means."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, F, FloatField, OuterRef, Subquery, Value, When

from apps.inventory.models import Backend
from apps.jobs.models import Allocation, Job, PowerCap
from apps.power.curtailment.facts import Lever
from apps.power.curtailment.schedule import HARD
from apps.power.models import ActionState, CurtailmentAction, DemandResponseEvent, PlanState, PowerReading
from apps.power.response import Load, Meter, Phase, limit_it_w
from apps.power.response_selectors import events, meter_of, phase_of_event, rebound_limit_w, response_of
from apps.power.selectors import FRESH

_ANNOUNCED_AHEAD: Final = timedelta(hours=24)
_GIVEN_BACK: Final = Case(When(state=ActionState.REVERTED, then=Value(1)), default=Value(0))
_SETTLES_IN: Final = timedelta(minutes=1)
_SHOWN_AFTER: Final = timedelta(days=7)  # a recovery lasts that long at most


@dataclass(frozen=True, slots=True)
class Means:
    """How a cap on a job's devices would be, or is, set.

    Attributes:
        is_simulated: Its cluster is.
        is_recorded: No device takes a cap there: it is only written down, and the draw stays as it is.
    """

    is_simulated: bool
    is_recorded: bool


def means_of(job_ids: Collection[int]) -> Mapping[int, Means]:
    """By job that holds devices. Whether devices take a cap is told by the last cap of the cluster that was set."""
    open_now = Allocation.objects.filter(job_id__in=list(job_ids), ended_at=None)
    rows = list(open_now.values_list("job_id", "cluster_id", "cluster__backend"))
    heard = PowerCap.objects.filter(
        allocation__cluster_id__in={cluster_id for _, cluster_id, _ in rows}, observed_at__isnull=False
    )
    latest = heard.order_by("allocation__cluster_id", "-observed_at").distinct("allocation__cluster_id")
    recorded = dict(latest.values_list("allocation__cluster_id", "is_recorded"))
    return {
        job_id: Means(backend == Backend.SIMULATED, recorded.get(cluster_id, False))
        for job_id, cluster_id, backend in rows
    }


def actions_of(event: DemandResponseEvent, *, most: int) -> list[CurtailmentAction]:
    """What its plans do to jobs: what is still in force first, newest plans first."""
    return list(
        CurtailmentAction.objects.filter(plan__event=event, plan__committed_at__isnull=False)
        .select_related("plan")
        .order_by(_GIVEN_BACK, "-plan__number", "lever", "issue_at", "id")[:most]
    )


def action_counts(event: DemandResponseEvent) -> Mapping[tuple[str, str], int]:
    """By lever and state, how many actions its plans have."""
    found: dict[tuple[str, str], int] = {}
    rows = CurtailmentAction.objects.filter(plan__event=event, plan__committed_at__isnull=False)
    for key in rows.values_list("lever", "state"):
        found[key] = found.get(key, 0) + 1
    return found


def names_of(job_ids: Collection[int]) -> Mapping[int, Job]:
    """Jobs with their teams, by id."""
    return Job.objects.select_related("team").in_bulk(list(job_ids))


@dataclass(frozen=True, slots=True)
class Hold:
    """What an event does to one job now."""

    action: CurtailmentAction
    event: DemandResponseEvent

    @property
    def is_pause(self) -> bool:
        return self.action.lever in HARD

    @property
    def is_shrink(self) -> bool:
        return self.action.lever == Lever.SHRINK.value


def hold_on(job_id: int, at: datetime) -> Hold | None:
    """Which event slows or pauses a job now; None: none does."""
    row = (
        CurtailmentAction.objects.filter(job_id=job_id, plan__event__is_test=False, issue_at__lte=at)
        .filter(state__in=[ActionState.ACKED, ActionState.VERIFIED])
        .select_related("plan__event__domain")
        .order_by("-issue_at", "-id")
        .first()
    )
    return None if row is None else Hold(row, row.plan.event)


def coming_on(job_id: int, at: datetime) -> Hold | None:
    """What a committed plan will do to a job that nothing is done to yet; None: none does anything."""
    row = (
        CurtailmentAction.objects.filter(job_id=job_id, issue_at__gt=at, state=ActionState.REQUESTED)
        .filter(plan__state=PlanState.COMMITTED, plan__event__is_test=False)
        .filter(plan__event__cancelled_at=None, plan__event__opted_out_at=None, plan__event__end_at__gt=at)
        .select_related("plan__event__domain")
        .order_by("issue_at", "id")
        .first()
    )
    return None if row is None else Hold(row, row.plan.event)


# What an event asks for and gets, on the domain's own side of the meter ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """One event as it stands; watts on its domain's own side of the meter.

    Attributes:
        limit_w: What the domain may draw while it binds; None: it counts from a reference that is not known yet.
        draw_w: What it draws now; None: no reading is fresh.
        is_modelled: That is worked out from what runs, no meter said so.
    """

    event: DemandResponseEvent
    phase: Phase
    limit_w: float | None
    draw_w: float | None
    is_modelled: bool
    read_at: datetime | None = None

    @property
    def asked_w(self) -> float | None:
        """How much less than its reference is asked for; None: there is no reference."""
        reference_w = self.event.reference_w
        return None if reference_w is None or self.limit_w is None else max(0.0, reference_w - self.limit_w)

    @property
    def delivered_w(self) -> float | None:
        """How much less than its reference is drawn now."""
        reference_w = self.event.reference_w
        return None if reference_w is None or self.draw_w is None else max(0.0, reference_w - self.draw_w)

    @property
    def is_missed(self) -> bool:
        """It binds, and the domain draws more than it may, by more than the tolerance, as was read since it began."""
        if self.phase is not Phase.ACTIVE or self.limit_w is None or self.draw_w is None:
            return False
        if self.read_at is None or self.read_at < self.event.start_at + _SETTLES_IN:
            return False
        slack_w = self.event.tolerance * (self.asked_w or 0.0)
        return self.draw_w > self.limit_w + slack_w + 1.0


def standing_of(event: DemandResponseEvent, *, at: datetime) -> Standing:
    """Of one of events(); one query for its domain's last reading."""
    reading = PowerReading.objects.filter(domain_id=event.domain_id).order_by("-at").first()
    if reading is None:
        return _standing(event, None, None, "", at)
    return _standing(event, reading.draw_w, reading.at, reading.source, at)


def _standing(
    event: DemandResponseEvent,
    draw_w: float | None,
    read_at: datetime | None,
    source: str | None,
    at: datetime,
) -> Standing:
    if read_at is None or read_at < at - FRESH:
        draw_w = None
    meter = meter_of(event.domain)
    phase = phase_of_event(event, load=Load(draw_w=draw_w, allowed_w=rebound_limit_w(event, at)), at=at)
    return Standing(event, phase, limit_w_of(event, meter), draw_w, source == "modelled", read_at)


def limit_w_of(event: DemandResponseEvent, meter: Meter) -> float | None:
    """What an event leaves its domain, on the domain's own side of the meter."""
    it_w = limit_it_w(response_of(event), meter)
    return None if it_w is None else meter.fixed_w + meter.k * it_w


_RUNNING: Final = frozenset({Phase.NOTIFIED, Phase.RAMPING, Phase.ACTIVE, Phase.RECOVERING})
_FIRST: Final = (Phase.ACTIVE, Phase.RAMPING, Phase.RECOVERING, Phase.NOTIFIED)


def events_of_the_hour(at: datetime) -> list[Standing]:
    """Events that everybody should know of now: in force, announced for the next day, or being released.

    The one that matters most comes first; 20 at the most. One query.
    """
    latest = PowerReading.objects.filter(domain_id=OuterRef("domain_id")).order_by("-at")
    rows = (
        events()
        .filter(released_at=None, is_test=False, notified_at__lte=at, start_at__lt=at + _ANNOUNCED_AHEAD)
        .filter(end_at__gt=at - _SHOWN_AFTER)
        .annotate(
            read_w=Subquery(latest.values("draw_w")[:1], output_field=FloatField()),
            read_at=Subquery(latest.values("at")[:1]),
            read_source=Subquery(latest.values("source")[:1]),
        )
        .order_by(F("priority"), "start_at", "id")[:20]
    )
    found = []
    for event in rows:
        facts: Any = event  # annotated
        standing = _standing(event, facts.read_w, facts.read_at, facts.read_source, at)
        if standing.phase in _RUNNING:
            found.append(standing)
    return sorted(found, key=lambda one: _FIRST.index(one.phase))

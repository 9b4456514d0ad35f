"""What settlements are made from, read in one go: readings, other events, who did what; and those that were made."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from statistics import median
from typing import Any, Final

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.utils.module_loading import import_string

from apps.core.strict import MAX_W
from apps.events.selectors import events_of
from apps.power.models import (
    ActionState,
    CurtailmentPlan,
    DemandResponseEvent,
    LossSource,
    ReadingQuality,
    SettlementReport,
)
from apps.power.response_selectors import events, response_of
from apps.power.selectors import FRESH
from apps.power.settlement.facts import Reading, Readings
from apps.power.settlement.losses import Held, JobFacts, lost_device_s, merged
from apps.power.settlement.report import Touched

MODELLED: Final = "modelled"
_LONGEST_GAP: Final = timedelta(hours=1)  # of a meter that tells means; what is longer is an outage
_IN_FORCE: Final = (ActionState.ACKED, ActionState.VERIFIED)
_ACTION: Final = "curtailment.action_"


def settlements() -> QuerySet[SettlementReport]:
    """All versions, the latest first. Everybody signed in may see them, as they see events and programmes."""
    return SettlementReport.objects.select_related(
        "event__domain", "event__programme", "settled_by"
    ).order_by("-number")


def latest_settlement(event: DemandResponseEvent) -> SettlementReport | None:
    return settlements().filter(event=event).first()


def latest_settlements(event_ids: Sequence[int]) -> dict[int, SettlementReport]:
    """By event id, the latest version of those that have one, without its document; one query."""
    rows = SettlementReport.objects.filter(event__in=event_ids).order_by("event_id", "-number")
    return {row.event_id: row for row in rows.distinct("event_id").defer("document")}


def events_with_results() -> QuerySet[DemandResponseEvent]:
    """Events for the history, with the figures of their latest settlement at hand as `settled_<figure>`."""
    latest = SettlementReport.objects.filter(event=OuterRef("pk")).order_by("-number")
    figures = (
        "number",
        "credited_wh",
        "net",
        "penalty",
        "performance",
        "lost_device_h",
        "currency",
        "n_jobs",
    )
    return events().annotate(**{f"settled_{name}": Subquery(latest.values(name)[:1]) for name in figures})


def never_settled() -> QuerySet[DemandResponseEvent]:
    return events().filter(~Exists(SettlementReport.objects.filter(event=OuterRef("pk"))))


# Readings -----------------------------------------------------------------------------------------------------------

_WITHIN: Final = """
SELECT reading.at, reading.draw_w, reading.quality, reading.source
FROM unnest(%s::timestamptz[], %s::timestamptz[]) AS span(begin_at, end_at)
JOIN power_powerreading reading
    ON reading.domain_id = %s AND reading.at >= span.begin_at AND reading.at < span.end_at
ORDER BY reading.at, reading.source = 'modelled', reading.source
"""
_COUNT: Final = """
SELECT count(*)
FROM unnest(%s::timestamptz[], %s::timestamptz[]) AS span(begin_at, end_at)
JOIN power_powerreading reading
    ON reading.domain_id = %s AND reading.at >= span.begin_at AND reading.at < span.end_at
"""

Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Metered:
    """Readings of one domain, and what is to be told of them."""

    readings: Readings
    n_readings: int
    n_modelled: int  # of those, where no meter said anything
    max_age_s: float


def padded(spans: Sequence[Span]) -> list[Span]:
    """With the readings before that may still stand at its beginning."""
    return merged((begin_at - _LONGEST_GAP, end_at) for begin_at, end_at in spans)


def count_readings(domain_id: int, spans: Sequence[Span]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, [*_columns(spans), domain_id])
        return int(cursor.fetchone()[0])


def metered_within(domain_id: int, spans: Sequence[Span]) -> Metered:
    """What the meter of a domain said in these spans, which must not touch.

    What is modelled counts only where no meter says anything, and is an estimate. A reading stands until the next
    one: for five minutes, or a quarter longer than this meter's usual pause where that is longer, an hour at most.
    """
    with connection.cursor() as cursor:
        cursor.execute(_WITHIN, [*_columns(spans), domain_id])
        rows = cursor.fetchall()
    metered: dict[datetime, tuple[float, str]] = {}
    modelled: dict[datetime, tuple[float, str]] = {}
    for at, draw_w, quality, source in rows:
        (modelled if source == MODELLED else metered).setdefault(at, (draw_w, quality))
    max_age_s = _max_age_s(sorted(metered or modelled))
    used, starts = dict(metered), sorted(metered)
    for at, said in sorted(modelled.items()):
        index = bisect_right(starts, at)
        silent_at = starts[index - 1] + timedelta(seconds=max_age_s) if index else at
        if at >= silent_at:
            used[at] = said
        elif index == len(starts) or silent_at < starts[index]:
            used[silent_at] = said  # it takes over when the meter has been silent for too long
    return Metered(
        Readings((_reading(at, *said) for at, said in used.items()), max_age_s=max_age_s),
        len(rows),
        len(used) - len(metered),
        max_age_s,
    )


def _columns(spans: Sequence[Span]) -> list[list[datetime]]:
    return [[begin_at for begin_at, _ in spans], [end_at for _, end_at in spans]]


def _reading(at: datetime, draw_w: float, quality: str) -> Reading:
    if draw_w > MAX_W:
        return Reading(at, None, ReadingQuality.BAD)
    return Reading(at, draw_w, quality)


def _max_age_s(instants: Sequence[datetime]) -> float:
    gaps_s = [(after - before).total_seconds() for before, after in pairwise(instants)]
    longest_s, fresh_s = _LONGEST_GAP.total_seconds(), FRESH.total_seconds()
    usual_s = median([gap_s for gap_s in gaps_s if gap_s <= longest_s] or [fresh_s])
    return min(longest_s, max(fresh_s, usual_s * 1.25))


# Other events -------------------------------------------------------------------------------------------------------

_LINE: Final = """
WITH RECURSIVE above(id, parent_id) AS (
    SELECT id, parent_id FROM inventory_domain WHERE id = %s
    UNION
    SELECT domain.id, domain.parent_id FROM inventory_domain domain JOIN above ON domain.id = above.parent_id
), below(id) AS (
    SELECT %s::bigint
    UNION
    SELECT domain.id FROM inventory_domain domain JOIN below ON domain.parent_id = below.id
)
SELECT id FROM above UNION SELECT id FROM below
"""


def others_on_line(
    event: DemandResponseEvent, *, since: datetime, until: datetime
) -> list[DemandResponseEvent]:
    """Other events that moved the load of this event's domain: its own, and of those above and below it.

    Drills act on nothing, and what was given up before its ramp did not either: both are left out.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LINE, [event.domain_id, event.domain_id])
        line = [row[0] for row in cursor.fetchall()]
    rows = (
        events()
        .filter(domain_id__in=line, is_test=False, notified_at__lt=until, end_at__gt=since)
        .exclude(pk=event.pk)
        .order_by("start_at", "id")
    )
    return [one for one in rows if response_of(one).binds_until_at > one.ramp_start_at]


# What was done ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Which jobs an event curtailed, and what that cost."""

    jobs: tuple[Touched, ...]
    unknown: frozenset[int]  # ids of jobs of which it is not known what they lost
    source: LossSource
    lost_device_s: Decimal


def committed_plans(event: DemandResponseEvent) -> list[CurtailmentPlan]:
    """Those that were in force, in the order in which they came."""
    return list(
        event.plans.filter(committed_at__isnull=False)
        .select_related("committed_by", "approved_by")
        .prefetch_related("actions")
        .order_by("number")
    )


def policies_behind(event: DemandResponseEvent) -> dict[int, dict[str, Any]]:
    """By number of a plan that no person committed, the policy that did; as the log has it."""
    rows = events_of("demand_response", event.pk).filter(kind="curtailment.committed")
    return {row.data["plan"]: row.data["policy"] for row in rows if row.data.get("policy")}


def cost_of(
    event: DemandResponseEvent,
    plans: Sequence[CurtailmentPlan],
    *,
    at: datetime,
    within: tuple[datetime, datetime] | None = None,
) -> Cost:
    """Counted from what each action did, by the log; as the plan in force predicted, where that is not known.

    Args:
        within: What was lost before or after is left out of what each job lost; None: all counts.
    """
    actions = [(plan, action) for plan in plans for action in plan.actions.all()]
    if not actions:
        return Cost((), frozenset(), LossSource.NONE, Decimal(0))
    until_at = min(at, response_of(event).binds_until_at + timedelta(seconds=event.recovery_s))
    spans = _spans_in_force(event, until_at)
    facts = _facts_of_jobs(sorted({action.job_id for _, action in actions}))
    held: dict[int, list[Held]] = defaultdict(list)
    levers: dict[int, list[str]] = defaultdict(list)
    is_carried_out = False
    for plan, action in actions:
        if action.lever not in levers[action.job_id]:
            levers[action.job_id].append(action.lever)
        found = spans.get((plan.number, action.job_id, action.lever), [])
        if not found and action.state in _IN_FORCE:
            found = [(action.state_since_at, until_at)]
        is_carried_out = is_carried_out or bool(found)
        if within is not None:
            since_at, to_at = within
            found = [(max(begin, since_at), min(end, to_at)) for begin, end in found]
        held[action.job_id] += [Held(action.lever, action.before, action.after, *span) for span in found]
    jobs, unknown = [], set()
    for job_id, names in levers.items():
        job = facts.get(job_id)
        lost_s = None if job is None else lost_device_s(held[job_id], job)
        if lost_s is None:
            unknown.add(job_id)
        name = f"job {job_id}" if job is None else job.name
        jobs.append(Touched(job_id, name, ", ".join(names), lost_s or 0))
    if is_carried_out and not unknown:
        return Cost(tuple(jobs), frozenset(), LossSource.ACTIONS, _total(jobs))
    if not is_carried_out:
        unknown = set(levers)
        if event.is_test:
            return Cost(tuple(jobs), frozenset(unknown), LossSource.NONE, Decimal(0))
    predicted_s = Decimal(repr(plans[-1].lost_device_s))
    return Cost(tuple(jobs), frozenset(unknown), LossSource.PLAN, predicted_s)


def _total(jobs: Sequence[Touched]) -> Decimal:
    return sum((Decimal(job.lost_device_s) for job in jobs), Decimal(0))


def _spans_in_force(
    event: DemandResponseEvent, until_at: datetime
) -> dict[tuple[int, int, str], list[tuple[datetime, datetime]]]:
    """By plan number, job id and lever, when it was in force; what is in force still counts until `until_at`."""
    found: dict[tuple[int, int, str], list[tuple[datetime, datetime]]] = defaultdict(list)
    begun: dict[tuple[int, int, str], datetime] = {}
    rows = events_of("demand_response", event.pk).filter(kind__startswith=_ACTION).order_by("id")
    for kind, at, data in rows.values_list("kind", "at", "data"):
        key, state = (data["plan"], data["job_id"], data["lever"]), kind.removeprefix(_ACTION)
        if state in _IN_FORCE:
            begun.setdefault(key, at)
        elif key in begun:
            found[key].append((begun.pop(key), min(at, until_at)))
    for key, at in begun.items():
        found[key].append((at, until_at))
    return found


def _facts_of_jobs(job_ids: Sequence[int]) -> Mapping[int, JobFacts]:
    """Jobs are kept above: whoever knows them answers by name."""
    found: Mapping[int, JobFacts] = import_string(settings.SWITCHYARD_CURTAILED_JOBS)(job_ids)
    return found

"""Tells owners what a committed plan does to their jobs: what, when, how long, why, and what they can do."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from apps.events.models import Event
from apps.jobs.lifecycle import ENDED
from apps.jobs.models import Job
from apps.notices.kinds import Kind
from apps.notices.models import Notice
from apps.notices.words import listed, moment, span
from apps.notices.writing import Draft
from apps.power.curtailment.facts import Lever
from apps.power.models import CurtailmentAction, CurtailmentPlan, DemandResponseEvent, PlanState

_SOON: Final = timedelta(minutes=5)  # what begins so soon after a commit is told with it
_ADVICE: Final = (
    "What you can do: have it write a checkpoint before; ask an operator to leave it alone;"
    " or give it another flexibility, which counts for the next event."
)


@dataclass(frozen=True, slots=True)
class _Touched:
    job: Job
    action: CurtailmentAction

    @property
    def is_slowed(self) -> bool:
        return self.action.lever == Lever.CAP.value

    @property
    def is_shrunk(self) -> bool:
        return self.action.lever == Lever.SHRINK.value

    @property
    def words(self) -> str:
        name = self.job.name if self.job.array_index is None else f"{self.job.name} [{self.job.array_index}]"
        if self.is_slowed:
            return (
                f"{name} (job {self.job.pk}) to {100 * self.action.after['share']:.0f} % of its rated power"
            )
        if self.is_shrunk:
            n = self.action.after["n_replicas"]
            return f"{name} (job {self.job.pk}) to {n} {'replica' if n == 1 else 'replicas'}"
        return f"{name} (job {self.job.pk})"


def committed(events: Sequence[Event]) -> Iterable[Draft]:
    """At the commit of a plan; of one that adds to another, only what is new."""
    for event in events:
        plan = _plan(event.subject_id, event.data.get("plan"))
        if plan is not None:
            yield from _told(plan, _new_of(plan), key=f"curtailed {plan.event_id} {plan.number}", at=event.at)


def begun(*, at: datetime) -> list[Draft]:
    """For plans that were committed long before: again when they begin."""
    plans = CurtailmentPlan.objects.filter(
        state=PlanState.COMMITTED,
        event__is_test=False,
        event__cancelled_at=None,
        event__opted_out_at=None,
        event__released_at=None,
        event__end_at__gt=at,
        actions__issue_at__lte=at,
    ).select_related("event__domain")
    drafts: list[Draft] = []
    for plan in plans.distinct():
        if plan.committed_at is None:
            continue
        late = [one for one in _new_of(plan) if one.action.issue_at > plan.committed_at + _SOON]
        owners = {one.job.user_id for one in late if one.action.issue_at <= at}
        late = [one for one in late if one.job.user_id in owners]
        drafts += _told(plan, late, key=f"curtail began {plan.event_id} {plan.number}", at=at, is_begun=True)
    return drafts


def released(events: Sequence[Event]) -> Iterable[Draft]:
    """When it is over: whoever was told that it comes is told that it went."""
    return _over(events, "is over")


def given_up(events: Sequence[Event]) -> Iterable[Draft]:
    return _over(events, "was called off")


def _over(events: Sequence[Event], how: str) -> Iterable[Draft]:
    for event in events:
        people = Notice.objects.filter(event_id=event.subject_id, kind=Kind.JOB_CURTAILED)
        for user_id in sorted(set(people.values_list("user_id", flat=True))):
            yield Draft(
                user_id=user_id,
                kind=Kind.JOB_CURTAILED,
                key=f"curtail over {event.subject_id}",
                title=f"Grid event {event.subject_id} {how}: your jobs get their power back",
                body="What was slowed runs at full power again; what was paused is back in line where it stood.",
                path=f"/power/events/{event.subject_id}/",
                at=event.at,
                event_id=event.subject_id,
            )


def _plan(event_id: int | None, number: Any) -> CurtailmentPlan | None:
    plans = CurtailmentPlan.objects.filter(event_id=event_id, number=number, event__is_test=False)
    return plans.select_related("event__domain").first()


def _new_of(plan: CurtailmentPlan) -> list[_Touched]:
    """What a plan does to jobs that no plan of its event before did; caps that only bridge a wait do not count."""
    before = CurtailmentAction.objects.filter(
        plan__event_id=plan.event_id, plan__committed_at__isnull=False, plan__number__lt=plan.number
    )
    known = set(before.values_list("job_id", "lever"))
    actions: dict[int, CurtailmentAction] = {}
    for action in plan.actions.order_by("issue_at", "id"):
        if not action.after.get("is_bridge") and (action.job_id, action.lever) not in known:
            actions[action.job_id] = action
    jobs = Job.objects.filter(pk__in=actions).exclude(state__in=[state.value for state in ENDED])
    return [_Touched(job, actions[job.pk]) for job in jobs.defer("private", "spec").order_by("id")]


def _told(
    plan: CurtailmentPlan, touched: Sequence[_Touched], *, key: str, at: datetime, is_begun: bool = False
) -> Iterable[Draft]:
    by_owner: dict[int, list[_Touched]] = defaultdict(list)
    for one in touched:
        by_owner[one.job.user_id].append(one)
    for user_id, mine in sorted(by_owner.items()):
        yield Draft(
            user_id=user_id,
            kind=Kind.JOB_CURTAILED,
            key=key,
            title=_title(mine, is_begun=is_begun),
            body=_body(mine, plan.event, is_begun=is_begun),
            path=f"/jobs/{mine[0].job.pk}/" if len(mine) == 1 else f"/power/events/{plan.event_id}/",
            at=at,
            job_id=mine[0].job.pk if len(mine) == 1 else None,
            event_id=plan.event_id,
        )


def _title(mine: Sequence[_Touched], *, is_begun: bool) -> str:
    slowed = [one for one in mine if one.is_slowed]
    shrunk = [one for one in mine if one.is_shrunk]
    paused = [one for one in mine if not one.is_slowed and not one.is_shrunk]
    if len(mine) == 1:
        verb = "slowed" if slowed else "made smaller" if shrunk else "paused"
        return f"{mine[0].job.name} {'is' if is_begun else 'will be'} {verb} for a grid event"
    counts = ((len(slowed), "slowed"), (len(shrunk), "made smaller"), (len(paused), "paused"))
    told = [f"{n} {what}" if n else "" for n, what in counts]
    return (
        f"{len(mine)} of your jobs {'are' if is_begun else 'will be'} held down for a grid event: "
        + ", ".join(filter(None, told))
    )


def _body(mine: Sequence[_Touched], event: DemandResponseEvent, *, is_begun: bool) -> str:
    slowed = [one for one in mine if one.is_slowed]
    shrunk = [one for one in mine if one.is_shrunk]
    paused = [one for one in mine if not one.is_slowed and not one.is_shrunk]
    told = [f"Grid event {event.pk} of {event.domain.name}, {span(event.start_at, event.end_at)}."]
    if event.reason:
        told.append(f"Reason: {event.reason.rstrip('.')}.")
    for what, those in (
        ("Slowed", slowed),
        ("Saved, and made smaller", shrunk),
        ("Saved and paused", paused),
    ):
        if those:
            first_at = min(one.action.issue_at for one in those)
            told.append(f"{what} from {moment(first_at)}: {listed([one.words for one in those])}.")
    back = "Power comes back" if not paused else "Power comes back, and paused jobs go back into line,"
    told.append(f"{back} after {moment(event.end_at)}.")
    if not is_begun:
        told.append(_ADVICE)
    return "\n".join(told)

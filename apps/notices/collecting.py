"""Follows the log, and tells people what of it is theirs. May run twice, late, or after a kill: the place in the log
moves in the transaction that writes the notices.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from django.db import transaction

from apps.events import selectors as log
from apps.events.models import Event
from apps.jobs.models import Job
from apps.notices import curtailments
from apps.notices.kinds import Kind
from apps.notices.models import Channel, Collector, Preference
from apps.notices.words import moment, span
from apps.notices.writing import Draft, write
from apps.power.models import DemandResponseEvent
from apps.reservations.models import Reservation
from apps.teams.models import FacilityRole, MemberRole, Membership, Team, User

_BATCH: Final = 1000
_BATCHES: Final = 20  # a look; a log that grew while nobody looked is caught up with in several


def collect(*, at: datetime) -> int:
    """Read on in the log; how many people-and-things were told."""
    n_told = 0
    for _ in range(_BATCHES):
        n_told_now, is_at_end = _collect_batch(at)
        n_told += n_told_now
        if is_at_end:
            break
    return n_told


@transaction.atomic
def _collect_batch(at: datetime) -> tuple[int, bool]:
    # Nobody is told what happened before there was anybody to tell it.
    Collector.objects.get_or_create(pk=1, defaults={"cursor": log.latest_cursor()})
    place = Collector.objects.select_for_update(skip_locked=True).filter(pk=1).first()
    if place is None:
        return 0, True  # somebody else reads
    batch = log.follow(Event.objects.filter(kind__in=_READERS), place.cursor, limit=_BATCH)
    by_kind: dict[Reader, list[Event]] = defaultdict(list)
    for event in batch.events:
        by_kind[_READERS[event.kind]].append(event)
    drafts = [draft for reader, events in by_kind.items() for draft in reader(events)]
    told = write(drafts, at=at)
    place.cursor = batch.cursor
    place.save(update_fields=["cursor"])
    return len(told), len(batch.events) < _BATCH


Reader = Callable[[Sequence[Event]], Iterable[Draft]]


# Jobs ------------------------------------------------------------------------------------------------------------

_HAPPENED: Final = {
    "job.started": (Kind.JOB_STARTED, "has started", "have started"),
    "job.failed": (Kind.JOB_FAILED, "has failed", "have failed"),
    "job.timed_out": (Kind.JOB_FAILED, "ran out of time", "ran out of time"),
    "job.node_lost": (Kind.JOB_FAILED, "lost a node and is back in line", "lost a node and are back in line"),
    "job.preempted": (
        Kind.JOB_FAILED,
        "gave its devices to other work and is back in line",
        "gave their devices to other work and are back in line",
    ),
    "job.stop_requested": (Kind.JOB_FAILED, "is stopped", "are stopped"),
    "job.cancelled": (Kind.JOB_FAILED, "was cancelled", "were cancelled"),
}


def _jobs(events: Sequence[Event]) -> Iterable[Draft]:
    rows = Job.objects.filter(pk__in={event.subject_id for event in events}).select_related("array")
    jobs = {job.pk: job for job in rows.defer("private", "spec")}
    for event in events:
        job = jobs.get(event.subject_id or 0)
        if job is None or _is_own_doing(event, job):
            continue
        kind, of_one, of_many = _HAPPENED[event.kind]
        body = _why(event, job)
        group = f"array {job.array_id}" if job.array_id is not None else job.name
        yield Draft(
            user_id=job.user_id,
            kind=kind,
            key=f"{event.kind} {event.pk}",
            title=f"{_name(job)} {of_one}",
            title_of_many=f"{{n}} × {_braced(job.name)} {of_many}",
            body=body,
            path=f"/jobs/{job.pk}/",
            path_of_many=f"/queue/?mine=1&q={quote(job.name)}",
            alike=f"{event.kind} {job.team_id} {group}"[:200],
            at=event.at,
            job_id=job.pk,
        )


def _is_own_doing(event: Event, job: Job) -> bool:
    """People need not be told what they did; a job that is told to stop, and then ends, is told once."""
    if event.kind == "job.stop_requested":
        return event.actor_id in (None, job.user_id)
    if event.kind == "job.cancelled":
        # Without an actor it is the end of a stop that was asked for.
        return event.actor_id == job.user_id or (event.actor_id is None and job.desired_stop_at is not None)
    return False


def _name(job: Job) -> str:
    return job.name if job.array_index is None else f"{job.name} [{job.array_index}]"


def _braced(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")


def _why(event: Event, job: Job) -> str:
    told = [f"Job {job.pk}, {moment(event.at)}."]
    exit_code = (event.data or {}).get("exit_code")
    if event.kind in ("job.failed", "job.timed_out") and exit_code is not None:
        told.append(f"Exit code {exit_code}.")
    if event.actor_id is not None and event.reason:
        told.append(f"{event.actor_name} says: {event.reason}")
    return " ".join(told)[:2000]


# Teams -----------------------------------------------------------------------------------------------------------


def _quotas(events: Sequence[Event]) -> Iterable[Draft]:
    people: dict[int, set[int]] = defaultdict(set)
    leads: dict[int, set[int]] = defaultdict(set)
    for row in Membership.objects.filter(team_id__in={event.team_id for event in events}):
        people[row.team_id].add(row.user_id)
        if row.role == MemberRole.LEAD:
            leads[row.team_id].add(row.user_id)
    for event in events:
        team_id = event.team_id or 0
        is_limits = event.kind == "quota.member_limits_changed"
        what = "The limits of members of" if is_limits else "The quota of"
        for user_id in sorted((people if is_limits else leads)[team_id] - {event.actor_id}):
            title = f"{what} {event.subject_name} {'were' if is_limits else 'was'} changed"
            yield _of_quota(event, user_id, title, event.subject_name)


def _of_quota(event: Event, user_id: int, title: str, team: str, *, part: str = "", key: str = "") -> Draft:
    """One person told of what teams own; `team` and `part` say which page, and where on it."""
    return Draft(
        user_id=user_id,
        kind=Kind.TEAM_QUOTA,
        key=key or f"{event.kind} {event.pk}",
        title=title,
        body=f"By {event.actor_name or 'the site'}, {moment(event.at)}. {event.reason}".strip(),
        path=f"/quotas/{quote(team)}/{part}",
        at=event.at,
    )


def _loans(events: Sequence[Event]) -> Iterable[Draft]:
    """Each loan is logged once for either team: its leads are told there, but for who did it."""
    leads = _leads_of({event.subject_id or 0 for event in events})
    for event in events:
        told = event.after or {}
        size = f"{told.get('n_devices')} {told.get('accelerator_type')}"
        said = f"{told.get('lender')} lends {told.get('borrower')} {size}"
        for user_id in sorted(leads[event.subject_id or 0] - {event.actor_id}):
            key = f"{event.kind} {told.get('loan_id')} {event.at.isoformat()}"  # logged for either team
            title = f"{said}: {_LOANS[event.kind]}"
            yield _of_quota(event, user_id, title, event.subject_name, part="#loans", key=key)


def _requests(events: Sequence[Event]) -> Iterable[Draft]:
    """Who divides what is above is asked; who asked is answered."""
    above = dict(Team.objects.filter(pk__in={e.subject_id for e in events}).values_list("pk", "parent_id"))
    leads = _leads_of({parent for parent in above.values() if parent is not None})
    names = dict(Team.objects.filter(pk__in=set(above.values()) - {None}).values_list("pk", "name"))
    admins = set(
        User.objects.filter(facility_role=FacilityRole.ADMIN, is_active=True).values_list("pk", flat=True)
    )
    for event in events:
        parent_id, data = above.get(event.subject_id or 0), event.data
        size = f"{data.get('n_devices')} {data.get('accelerator_type')}"
        if event.kind == "quota.request_asked":
            people = admins if parent_id is None else leads[parent_id]
            title = f"{event.subject_name} asks for {size} more"
            page_of = names.get(parent_id or 0, event.subject_name)
        else:
            people = {data.get("asked_by")} - {None}
            title = f"{size} more for {event.subject_name}: {_REQUESTS[event.kind]}"
            page_of = event.subject_name
        for user_id in sorted(people - {event.actor_id}):
            yield _of_quota(event, user_id, title, page_of, part="#requests")


def _leads_of(team_ids: set[int]) -> dict[int, set[int]]:
    leads: dict[int, set[int]] = defaultdict(set)
    rows = Membership.objects.filter(team_id__in=team_ids, role=MemberRole.LEAD)
    for team_id, user_id in rows.values_list("team_id", "user_id"):
        leads[team_id].add(user_id)
    return leads


_LOANS: Final = {
    "quota.loan_proposed": "proposed",
    "quota.loan_agreed": "agreed",
    "quota.loan_declined": "declined",
    "quota.loan_withdrawn": "taken back",
    "quota.loan_recalled": "recalled",
    "quota.loan_given_back": "given back",
}
_REQUESTS: Final = {"quota.request_granted": "granted", "quota.request_refused": "refused"}


# Reservations ----------------------------------------------------------------------------------------------------


def _cancelled_reservations(events: Sequence[Event]) -> Iterable[Draft]:
    rows = Reservation.objects.filter(pk__in={event.subject_id for event in events}).prefetch_related("teams")
    known = {row.pk: row for row in rows}
    for event in events:
        row = known.get(event.subject_id or 0)
        if row is None:
            continue
        for user_id in sorted(people_of(row) - {event.actor_id}):
            yield Draft(
                user_id=user_id,
                kind=Kind.RESERVATION_AT_RISK,
                key=f"{event.kind} {event.pk}",
                title=f"Reservation {row.name} was cancelled",
                body=f"By {event.actor_name or 'the site'}, {moment(event.at)}. {event.reason}".strip(),
                path=f"/reservations/{row.pk}/",
                at=event.at,
            )


def people_of(reservation: Reservation) -> set[Any]:
    """Whoever made a reservation, and the leads of the teams that it is for."""
    leads = Membership.objects.filter(team__in=reservation.teams.all(), role=MemberRole.LEAD)
    made_by = {reservation.created_by_id} - {None}
    return made_by | set(leads.values_list("user_id", flat=True))


# Grid events -----------------------------------------------------------------------------------------------------


def _announced(events: Sequence[Event]) -> Iterable[Draft]:
    rows = DemandResponseEvent.objects.filter(pk__in={event.subject_id for event in events}, is_test=False)
    known = {row.pk: row for row in rows.select_related("domain")}
    people = _who_hears_of_events()
    for event in events:
        row = known.get(event.subject_id or 0)
        if row is None:
            continue
        is_new = event.kind == "demand_response.announced"
        for user_id in sorted(people - {event.actor_id}):
            yield Draft(
                user_id=user_id,
                kind=Kind.EVENT_ANNOUNCED,
                key=f"{event.kind} {event.pk}",
                title=f"Grid event {row.pk} was {'announced' if is_new else 'changed'}: {row.domain.name}",
                body=f"{span(row.start_at, row.end_at)}. {row.reason}".strip(),
                path=f"/power/events/{row.pk}/",
                at=event.at,
                event_id=row.pk,
            )


def _who_hears_of_events() -> set[int]:
    """Operators, power administrators and administrators, and whoever asked for it; the last step looks again."""
    kind = Kind.EVENT_ANNOUNCED.value
    roles = (FacilityRole.OPERATOR, FacilityRole.POWER_ADMIN, FacilityRole.ADMIN)
    found = set(User.objects.filter(facility_role__in=roles, is_active=True).values_list("pk", flat=True))
    found |= set(Preference.objects.filter(kinds__contains=[kind]).values_list("user_id", flat=True))
    return found | set(
        Channel.objects.filter(kinds__contains=[kind], is_on=True).values_list("user_id", flat=True)
    )


_READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(_HAPPENED, _jobs),
    "quota.changed": _quotas,
    "quota.member_limits_changed": _quotas,
    **dict.fromkeys(_LOANS, _loans),
    "quota.request_asked": _requests,
    **dict.fromkeys(_REQUESTS, _requests),
    "reservation.cancelled": _cancelled_reservations,
    "demand_response.announced": _announced,
    "demand_response.revised": _announced,
    "curtailment.committed": curtailments.committed,
    "demand_response.cancelled": curtailments.given_up,
    "demand_response.released": curtailments.released,
}

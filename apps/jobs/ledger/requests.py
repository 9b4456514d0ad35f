"""Requests looked over: is what they name there, is it theirs to ask for, could it run at all."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from apps.inventory.models import Cluster
from apps.inventory.selectors import known_kinds
from apps.jobs import intake, policies
from apps.jobs.errors import Fault
from apps.jobs.lifecycle import State
from apps.jobs.models import (
    Job,
)
from apps.jobs.spec import JobRequest
from apps.reservations.models import Reservation
from apps.staging.models import Dataset
from apps.teams.models import User
from apps.teams.policies import Standing, standings_of


class Names:
    """Everything a batch of requests names, read once."""

    def __init__(self, requests: Sequence[JobRequest], actor: User) -> None:
        self.teams = standings_of(actor, {request.team for request in requests})
        clusters = {request.cluster for request in requests if request.cluster is not None}
        self.clusters = {c.name: c for c in Cluster.objects.filter(name__in=clusters)} if clusters else {}
        kinds = {
            kind for request in requests for group in request.all_groups for kind in group.accelerators or ()
        }
        self.kinds = known_kinds(kinds) if kinds else frozenset()
        datasets = {name for request in requests for name in request.datasets}
        self.datasets = frozenset(
            Dataset.objects.filter(name__in=datasets).values_list("name", flat=True) if datasets else ()
        )
        bookings = {request.reservation for request in requests if request.reservation is not None}
        self.bookings = (
            {
                booking.name: booking
                for booking in Reservation.objects.filter(
                    name__in=bookings, cancelled_at=None
                ).prefetch_related("teams")
            }
            if bookings
            else {}
        )
        after = {job_id for request in requests for job_id in request.after}
        self.jobs = Job.objects.only("id", "team_id", "state").in_bulk(after) if after else {}

    def faults(self, index: int, request: JobRequest, actor: User, at: datetime) -> Iterable[Fault]:
        standing = self.teams.get(request.team)
        if standing is None or not policies.may_submit(standing):
            # One answer for both: whether the team exists is not told.
            yield Fault("team", "unknown_team", "is not a team you may submit to", index)
            return
        team = standing.team
        if standing.is_inner:
            yield Fault("team", "not_a_leaf", f"{team.name} has teams below it; name one of those", index)
        if over := policies.over_ceiling(actor, team, request.priority, standing.ceiling):
            yield Fault("priority", "over_ceiling", over.message, index)
        if request.user is not None and request.user != actor.get_username():
            yield Fault("user", "not_you", "must be absent or your own name", index)
        if request.cluster is not None and request.cluster not in self.clusters:
            yield Fault("cluster", "unknown_cluster", f"there is no cluster {request.cluster!r}", index)
        for number, group in enumerate(request.all_groups):
            prefix = "" if request.groups is None else f"groups[{number}]."
            for position, kind in enumerate(group.accelerators or ()):
                if kind not in self.kinds:
                    path = f"{prefix}accelerators[{position}]"
                    yield Fault(path, "unknown_accelerator", f"there is no accelerator type {kind!r}", index)
        for position, name in enumerate(request.datasets):
            if name not in self.datasets:
                yield Fault(
                    f"datasets[{position}]", "unknown_dataset", f"there is no dataset {name!r}", index
                )
        for position, job_id in enumerate(request.after):
            after = self.jobs.get(job_id)
            if after is None or after.team_id != team.pk:
                yield Fault(f"after[{position}]", "unknown_job", f"{team.name} has no job {job_id}", index)
            elif job_id in request.after[:position]:
                yield Fault(f"after[{position}]", "invalid", f"job {job_id} is already named", index)
        if request.reservation is not None:
            yield from self._reservation_faults(index, request, standing, at)
        if request.not_before and request.deadline and request.deadline <= request.not_before:
            yield Fault("deadline", "invalid", "must be after not_before", index)

    def _reservation_faults(
        self, index: int, request: JobRequest, standing: Standing, at: datetime
    ) -> Iterable[Fault]:
        booking = self.bookings.get(request.reservation or "")
        if booking is None:
            message = f"there is no reservation {request.reservation!r}"
            yield Fault("reservation", "unknown_reservation", message, index)
        elif standing.line.isdisjoint(other.pk for other in booking.teams.all()):
            # What is promised to a team is promised to those below it.
            yield Fault("reservation", "not_yours", f"is not for {standing.team.name}", index)
        elif not booking.rrule and booking.ends_at <= at:
            yield Fault("reservation", "over", "is over", index)

    def row(self, request: JobRequest, shape: str, actor: User, at: datetime) -> dict[str, Any]:
        spec = intake.public_spec(request)
        return {
            "team": self.teams[request.team].team,
            "user": actor,
            "name": request.name,
            "spec": spec,
            "private": intake.private_part(request),
            "shape": shape,
            "n_devices": intake.n_devices_of(request),
            "priority": request.priority,
            "cluster": self.clusters[request.cluster] if request.cluster is not None else None,
            "submitted_at": at,
            "not_before_at": request.not_before,
            "deadline_at": request.deadline,
            "time_limit_s": request.time_limit,
            "runtime_s": request.runtime,
            "is_held": request.held,
            "held_by": actor if request.held else None,
            "state": State.QUEUED,
            "state_at": at,
            "queued_at": at,
        }


def require_possible(requests: Sequence[JobRequest], shapes: Sequence[str]) -> None:
    proof = getattr(settings, "SWITCHYARD_ADMISSION", None)
    if proof:
        import_string(proof)(requests, shapes)

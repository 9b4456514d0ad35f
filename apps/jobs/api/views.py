"""Jobs by REST: submit, list, look at, change, stop, hold, release."""

from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import NoBody, page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import order_of, page, refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.events.models import Event
from apps.events.selectors import events_of
from apps.jobs import progress, selectors, services, tokens
from apps.jobs.api import bodies
from apps.jobs.errors import NoSuchJob
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, AllocationToken, Job, Progress
from apps.jobs.policies import require_may_change
from apps.jobs.spec import JobRequest
from apps.teams import throttles
from apps.teams.policies import person

_REASONS = (
    "held", "dependency", "not_before", "member_limit", "quota", "resources", "topology", "power", "reservation",
    "staging", "priority", "unhealthy",
)  # fmt: skip
_FILTERS = ("state", "team", "user", "name_prefix", "reason", "cluster", "array")
_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="For a day the same key acts once; asked again, it answers with the job as it is then.",
)


class JobsView(APIView):
    @extend_schema(
        summary="Jobs",
        parameters=[
            OpenApiParameter(
                "state", str, description=f"One or more of {', '.join(State)}, parted by commas."
            ),
            OpenApiParameter("team", str),
            OpenApiParameter("user", str),
            OpenApiParameter("name_prefix", str),
            OpenApiParameter("reason", str, enum=_REASONS, description="Of jobs that wait."),
            OpenApiParameter("cluster", str, description="Jobs that run there, or may run only there."),
            OpenApiParameter("array", int, description="Id of an array."),
            OpenApiParameter("order", str, enum=list(selectors.ORDERS), description="Default: newest."),
            OpenApiParameter("limit", int),
            OpenApiParameter("cursor", str),
        ],
        responses=page_schema(bodies.JobOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, *_FILTERS)
        order = order_of(request, dict(selectors.ORDERS), "newest")
        rows = selectors.queue_rows(person(request), _filters(request))
        at, is_seen = clock.now(), selectors.private_part_seen_by(person(request))

        def render_all(jobs: Sequence[Job]) -> list[dict[str, Any]]:
            ahead = selectors.ahead_of(jobs)
            return [
                bodies.job_out(job, at, shows_private=is_seen(job), ahead=bodies.ahead_out(ahead.get(job.pk)))
                for job in jobs
            ]

        return Response(page(rows, request, order=order, render_all=render_all))

    @extend_schema(
        summary="Submit a job",
        description="Of an array, the first of its jobs is answered.",
        parameters=[_KEY],
        request=JobRequest,
        responses={201: bodies.JobDetailOut},
    )
    def post(self, request: Request) -> Response:
        body = parse_body(request, JobRequest)

        def act() -> Response:
            job = services.submit_job(request=body, actor=person(request), at=clock.now())
            # A job that was just made waits for what it names, runs nowhere, and is its submitter's to see.
            is_new = job.state == State.QUEUED
            answer = _detail_of_new(job, body) if is_new else _detail(request, job)
            return Response(answer, status=201, headers={"Location": _address(request, job.pk)})

        def again(job_id: int) -> Response:
            answer = _detail(request, _visible(request, job_id))
            return Response(answer, headers={"Location": _address(request, job_id)})

        return answer_once(request, act, again=again)


class JobsBulkView(APIView):
    takes_bulk = True

    @extend_schema(
        summary="Submit up to 1,000 jobs, all or none",
        parameters=[_KEY],
        request=bodies.BulkIn,
        responses={201: bodies.BulkOut},
    )
    def post(self, request: Request) -> Response:
        body = parse_body(request, bodies.BulkIn)

        def act() -> Response:
            receipts = services.submit_bulk(
                requests=body.jobs, actor=person(request), at=clock.now(), path="jobs"
            )
            return Response({"items": [bodies.receipt_out(receipt) for receipt in receipts]}, status=201)

        return answer_once(request, act)


class JobView(APIView):
    @extend_schema(summary="One job", responses=bodies.JobDetailOut)
    def get(self, request: Request, job_id: int) -> Response:
        return Response(_detail(request, _visible(request, job_id)))

    @extend_schema(
        summary="Change the limit, the priority, or the size of a job that waits",
        request=bodies.JobPatchIn,
        responses=bodies.JobDetailOut,
    )
    def patch(self, request: Request, job_id: int) -> Response:
        _known(request, job_id)
        body = parse_body(request, bodies.JobPatchIn)
        job = services.update_job(
            job_id=job_id,
            actor=person(request),
            at=clock.now(),
            priority=body.priority,
            time_limit_s=body.time_limit,
            replicas=body.replicas,
            asks=body.asks,
        )
        return Response(_detail(request, job))


class JobStopView(APIView):
    @extend_schema(
        summary="Ask a job to end",
        description="One that waits is cancelled at once; one that runs is told to end and ends soon.",
        parameters=[_KEY],
        request=bodies.WhyIn,
        responses={202: bodies.JobDetailOut},
    )
    def post(self, request: Request, job_id: int) -> Response:
        _known(request, job_id)
        body = parse_body(request, bodies.WhyIn)

        def act() -> Response:
            job = services.stop_job(job_id=job_id, actor=person(request), at=clock.now(), reason=body.reason)
            return Response(_detail(request, job), status=202)

        return answer_once(request, act, again=_again(request))


class JobHoldView(APIView):
    @extend_schema(
        summary="Keep a job that waits from starting",
        parameters=[_KEY],
        request=bodies.WhyIn,
        responses=bodies.JobDetailOut,
    )
    def post(self, request: Request, job_id: int) -> Response:
        _known(request, job_id)
        body = parse_body(request, bodies.WhyIn)

        def act() -> Response:
            job = services.hold_job(job_id=job_id, actor=person(request), at=clock.now(), reason=body.reason)
            return Response(_detail(request, job))

        return answer_once(request, act, again=_again(request))


class JobReleaseView(APIView):
    @extend_schema(
        summary="Let a held job go on waiting for its turn",
        parameters=[_KEY],
        request=NoBody,
        responses=bodies.JobDetailOut,
    )
    def post(self, request: Request, job_id: int) -> Response:
        _known(request, job_id)
        parse_body(request, NoBody)

        def act() -> Response:
            job = services.release_job(job_id=job_id, actor=person(request), at=clock.now())
            return Response(_detail(request, job))

        return answer_once(request, act, again=_again(request))


class JobPlacementView(APIView):
    @extend_schema(
        summary="Where a job runs, or ran last",
        description="By node and group.",
        responses=bodies.PlacementOut,
    )
    def get(self, request: Request, job_id: int) -> Response:
        job = _visible(request, job_id)
        shows_private = selectors.may_see_private(person(request), job)
        last: Allocation | None = selectors.attempts(job).first()
        return Response(
            {
                "job_id": job.pk,
                "allocation": _allocation(job, last, shows_private=shows_private),
                "slowest": _slowest(last) if shows_private and last is not None else None,
            }
        )


class JobProgressView(APIView):
    token_scopes = ("write", tokens.PROGRESS)  # a job itself has no token that may do more

    @extend_schema(
        summary="How far the current or last attempt is, by its own word",
        description="For its team, operators, auditors and administrators.",
        responses=bodies.ProgressOut,
    )
    def get(self, request: Request, job_id: int) -> Response:
        allocation = selectors.attempts(_known(request, job_id)).first()
        if allocation is None:
            raise NotFound("It was not tried yet.", job_id=job_id)
        return Response(_progress(allocation, selectors.progress_of(allocation)))

    @extend_schema(
        summary="Post progress, from within a job",
        description=(
            "A job finds the address of the API in `SWITCHYARD_API_URL` and a token that is good for this alone in "
            "`SWITCHYARD_TOKEN`; members of its team may post too. Posts may come twice. There are only so many a "
            "minute: of a large gang, let one rank post for all."
        ),
        request=bodies.ProgressIn,
        responses=bodies.ProgressOut,
    )
    def post(self, request: Request, job_id: int) -> Response:
        _require_may_post(request, job_id)
        body = parse_body(request, bodies.ProgressIn)
        at = clock.now()
        most = settings.SWITCHYARD_PROGRESS_PER_MINUTE
        if wait_s := throttles.take("progress", job_id, most=most, per_s=60.0, at=at):
            raise Throttled(wait_s)
        post = progress.Post(
            step=body.step,
            step_times_s=body.by_rank(),
            fraction_done=body.fraction_done,
            checkpoint_at=body.checkpoint_at,
            attempt=body.attempt,
        )
        row = progress.note_progress(
            job_id=job_id, post=post, at=at, is_listed=isinstance(body.step_times_s, list)
        )
        return Response(_progress(row.allocation, row))


def _require_may_post(request: Request, job_id: int) -> None:
    """The attempt itself, by its token; or whoever may change the job."""
    if isinstance(request.auth, AllocationToken):
        if request.auth.allocation.job_id != job_id:
            raise NoSuchJob(job_id=job_id)
        return
    require_may_change(person(request), _known(request, job_id))


def _progress(allocation: Allocation, row: Progress | None) -> dict[str, Any]:
    found = None if row is None else progress.slowest(row, allocation)
    return bodies.progress_out(allocation, row, found)


def _slowest(last: Allocation) -> dict[str, Any] | None:
    row = selectors.progress_of(last)
    return None if row is None else bodies.slowest_out(progress.slowest(row, last))


class JobAttemptsView(APIView):
    @extend_schema(summary="All attempts to run a job, the newest first", responses=bodies.AttemptsOut)
    def get(self, request: Request, job_id: int) -> Response:
        job = _visible(request, job_id)
        attempts = list(selectors.attempts(job))
        shares = selectors.node_shares([one.pk for one in attempts], selectors.group_names(job))
        shows_private = selectors.may_see_private(person(request), job)
        items = [bodies.allocation_out(one, shares[one.pk], shows_private=shows_private) for one in attempts]
        return Response({"items": items})


class JobEventsView(APIView):
    @extend_schema(
        summary="What happened to a job, the newest first",
        description="For its team, operators, auditors and administrators.",
        parameters=[OpenApiParameter("limit", int), OpenApiParameter("cursor", str)],
        responses=page_schema(bodies.JobEventOut),
    )
    def get(self, request: Request, job_id: int) -> Response:
        refuse_unknown_parameters(request)
        job = _known(request, job_id)
        events = events_of("job", job.pk)
        return Response(page(events, request, order=["-id"], render=_event))


def _event(event: Event) -> dict[str, Any]:
    return bodies.event_out(event)


def _visible(request: Request, job_id: int) -> Job:
    """A job this person may see."""
    rows = selectors.jobs_visible_to(person(request)).select_related(
        "team", "user", "cluster", "reason", "array", "held_by"
    )
    job = rows.filter(pk=job_id).first()
    if job is None:
        raise NoSuchJob(job_id=job_id)
    return job


def _again(request: Request) -> Callable[[int], Response]:
    """The answer to what was done already."""
    return lambda job_id: Response(_detail(request, _known(request, job_id)))


def _address(request: Request, job_id: int) -> str:
    return str(reverse("job", args=[job_id], request=request))


def _known(request: Request, job_id: int) -> Job:
    """A job whose business this person may know; for others its actions and its history are not there."""
    job = _visible(request, job_id)
    if not selectors.may_see_private(person(request), job):
        raise NoSuchJob(job_id=job_id)
    return job


def _allocation(job: Job, last: Allocation | None, *, shows_private: bool) -> dict[str, Any] | None:
    if last is None:
        return None
    shares = selectors.node_shares([last.pk], selectors.group_names(job))
    return bodies.allocation_out(last, shares[last.pk], shows_private=shows_private)


def _detail(request: Request, job: Job) -> dict[str, Any]:
    shows_private = selectors.may_see_private(person(request), job)
    return bodies.job_detail_out(
        job,
        clock.now(),
        shows_private=shows_private,
        private=selectors.private_part_for(person(request), job),
        after=sorted(job.dependencies.values_list("after_id", flat=True)),
        allocation=_allocation(job, selectors.attempts(job).first(), shows_private=shows_private),
        ahead=bodies.ahead_out(selectors.ahead_of([job]).get(job.pk)),
    )


def _detail_of_new(job: Job, body: JobRequest) -> dict[str, Any]:
    after = sorted(body.after)
    return bodies.job_detail_out(
        job,
        clock.now(),
        shows_private=True,
        private=job.private,
        after=after,
        allocation=None,
        is_new=True,
    )


def _filters(request: Request) -> selectors.Filters:
    states = tuple(word for word in _word(request, "state").split(",") if word)
    for state in states:
        if state not in list(State):
            raise InvalidInput.of("state", f"must be one of {', '.join(State)}", "not_a_choice")
    reason = _word(request, "reason")
    if reason and reason not in _REASONS:
        raise InvalidInput.of("reason", f"must be one of {', '.join(_REASONS)}", "not_a_choice")
    array = _word(request, "array")
    if array and not (array.isascii() and array.isdigit() and len(array) < 19):
        raise InvalidInput.of("array", "must be the id of an array")
    return selectors.Filters(
        states=states,
        team=_word(request, "team"),
        user=_word(request, "user"),
        name_prefix=_word(request, "name_prefix"),
        reason=reason,
        cluster=_word(request, "cluster"),
        array_id=int(array) if array else None,
    )


def _word(request: Request, name: str) -> str:
    word = request.query_params.get(name, "")
    if len(word) > 200 or "\x00" in word:
        raise InvalidInput.of(name, "is not a name")
    return word

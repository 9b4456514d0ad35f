"""What jobs print, by REST."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core.api.body import Out
from apps.core.api.paging import refuse_unknown_parameters
from apps.core.errors import Forbidden, InvalidInput
from apps.execution import selectors
from apps.jobs import selectors as jobs
from apps.jobs.errors import NoSuchJob
from apps.jobs.models import Allocation, Job
from apps.teams.models import User
from apps.teams.policies import person

_MOST_BYTES = 1024 * 1024
_DEFAULT_BYTES = 64 * 1024


class LogOut(Out):
    """A piece of what one replica wrote; ask again from `next_offset` until `is_complete`."""

    job_id: int
    attempt: int | None
    rank: int
    stream: str
    offset: int
    text: str
    next_offset: int
    is_complete: bool


class JobLogsView(APIView):
    @extend_schema(
        summary="What a job printed, also while it runs",
        description="For its team and administrators.",
        parameters=[
            OpenApiParameter("stream", str, enum=["stdout", "stderr"], description="Default: stdout."),
            OpenApiParameter("rank", int, description="Which replica; default 0."),
            OpenApiParameter("offset", int, description="Bytes from the beginning; default 0."),
            OpenApiParameter("limit", int, description="Most bytes; default 65536, at most 1048576."),
            OpenApiParameter("attempt", int, description="Which attempt, from 1; default: the last."),
        ],
        responses=LogOut,
    )
    def get(self, request: Request, job_id: int) -> Response:
        refuse_unknown_parameters(request, "stream", "rank", "offset", "attempt")
        job = _readable(person(request), job_id)
        stream = request.query_params.get("stream", "stdout")
        rank = _number(request, "rank", 0, 0, 2**31 - 1)
        offset = _number(request, "offset", 0, 0, 2**62)
        limit = _number(request, "limit", _DEFAULT_BYTES, 1, _MOST_BYTES)
        if stream not in ("stdout", "stderr"):
            raise InvalidInput.of("stream", "must be stdout or stderr", "not_a_choice")
        allocation = _attempt(request, job)
        said = {"job_id": job.pk, "rank": rank, "stream": stream, "offset": offset}
        if allocation is None:
            # Nothing was started yet, so nothing was written.
            return Response({**said, "attempt": None, "text": "", "next_offset": 0, "is_complete": False})
        chunk = selectors.read_log(
            allocation=allocation, rank=rank, stream=stream, offset=offset, limit=limit
        )
        return Response(
            {
                **said,
                "attempt": allocation.fence,
                "text": chunk.text,
                "next_offset": chunk.next_offset,
                "is_complete": chunk.is_complete,
            }
        )


def _readable(viewer: User, job_id: int) -> Job:
    """A job whose logs this person may read; who may know of its business is told that logs are not for them."""
    job = jobs.jobs_visible_to(viewer).select_related("team").filter(pk=job_id).first()
    if job is None or not jobs.may_see_private(viewer, job):
        raise NoSuchJob(job_id=job_id)
    if not jobs.may_read_logs(viewer, job):
        raise Forbidden("Logs are for the job's team.", job_id=job_id)
    return job


def _attempt(request: Request, job: Job) -> Allocation | None:
    attempts = jobs.attempts(job)
    if "attempt" not in request.query_params:
        return attempts.first()
    found = attempts.filter(fence=_number(request, "attempt", 1, 1, 2**31 - 1)).first()
    if found is None:
        raise InvalidInput.of("attempt", "is not an attempt of this job", "unknown")
    return found


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise InvalidInput.of(name, f"must be a whole number from {least} to {most}", "out_of_range")
    return int(text)

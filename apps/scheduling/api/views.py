"""The planner by REST: previews, reasons, advice, passes, utilization."""

from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import Throttled
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.inventory.models import AcceleratorType
from apps.jobs import policies as job_policies
from apps.jobs.errors import NoSuchJob
from apps.jobs.selectors import jobs_visible_to
from apps.jobs.spec import JobRequest
from apps.scheduling import advice, dump_store, policy_setting, selectors, services, sooner
from apps.scheduling.api import bodies
from apps.scheduling.expected_end import expected_end
from apps.teams import throttles
from apps.teams.models import Team
from apps.teams.policies import person, require_admin
from apps.teams.selectors import teams_visible_to

_MOST_FORECASTS = 50


class JobPreviewView(APIView):
    @extend_schema(
        summary="Would this job start, when and where?",
        description="Runs the planner over the present queue with this job in it. Nothing is written.",
        request=JobRequest,
        responses=bodies.PreviewOut,
    )
    def post(self, request: Request) -> Response:
        body = parse_body(request, JobRequest)
        if wait_s := throttles.take_preview(person(request).pk, clock.now()):
            raise Throttled(wait_s)
        preview = services.preview(request=body, actor=person(request), at=clock.now())
        return Response(bodies.PreviewOut.of(preview).model_dump())


class PolicyView(APIView):
    @extend_schema(summary="By which policy the planner decides", responses=bodies.PolicyOut)
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        return Response(bodies.PolicyOut.of(policy_setting.in_force()).model_dump())

    @extend_schema(
        summary="Set the policy",
        description="Replaces the whole, from the next pass on: the policy of that `name`, but for the fields that "
        "are given. For administrators. 409 with both sides when somebody saved meanwhile.",
        request=bodies.PolicyIn,
        responses=bodies.PolicyOut,
    )
    def put(self, request: Request) -> Response:
        require_admin(person(request))
        body = parse_body(request, bodies.PolicyIn)
        policy = policy_setting.set_policy(
            values=body,
            name=body.name,
            actor=person(request),
            at=clock.now(),
            version=body.version,
            reason=body.reason,
        )
        return Response(bodies.PolicyOut.of(policy).model_dump())


class JobReasonsView(APIView):
    @extend_schema(
        summary="Why a job waits, and when it is expected to start and to end", responses=bodies.ReasonsOut
    )
    def get(self, request: Request, job_id: int) -> Response:
        job = jobs_visible_to(person(request)).filter(pk=job_id).first()
        if job is None:
            raise NoSuchJob(job_id=job_id)
        forecasts = list(job.forecasts.order_by("-made_at", "-id")[:_MOST_FORECASTS])
        reason = selectors.reason_of(job)
        end = expected_end(job, reason, clock.now())
        return Response(bodies.ReasonsOut.of(job.pk, job.state, reason, forecasts, end).model_dump())


class JobSoonerView(APIView):
    @extend_schema(
        summary="What would start a waiting job sooner",
        description="The plan is made again with one thing of the request changed at a time; nothing is changed. For "
        "the job's team and operators. `changes` are what `PATCH /jobs/{id}` takes.",
        responses=bodies.SoonerOut,
    )
    def get(self, request: Request, job_id: int) -> Response:
        job = jobs_visible_to(person(request)).select_related("team").filter(pk=job_id).first()
        if job is None:
            raise NoSuchJob(job_id=job_id)
        job_policies.require_may_change(person(request), job)
        if wait_s := throttles.take_preview(person(request).pk, clock.now()):
            raise Throttled(wait_s)
        return Response(bodies.SoonerOut.of(sooner.ways_of(job, at=clock.now())).model_dump())


class DefragmentationView(APIView):
    @extend_schema(
        summary="Running jobs that could move so that a waiting job starts",
        description="For each waiting job that as many devices are free for as it asks, but not together: the cheapest "
        "moves of running jobs with checkpoints to places that are free now, if more is won than they cost. In the "
        "order of the queue; each is judged by itself, and two may want the same place. Worked out anew each time. "
        "For operators and auditors.",
        responses=page_schema(bodies.ProposalOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        found = advice.proposals(viewer=person(request), at=clock.now())
        return Response({"items": [bodies.ProposalOut.of(one).model_dump() for one in found], "next": None})


class DefragmentationApplyView(APIView):
    @extend_schema(
        summary="Have the jobs of a proposal move",
        description="The leavers are asked to stop, with time to write a checkpoint, and go back to the queue with "
        "their place in line. Their new places, and the one they leave, are kept. 409 `outdated` if the proposal no "
        "longer holds; the same proposal twice is once. For operators.",
        request=bodies.ApplyIn,
        responses={202: bodies.AppliedOut},
    )
    def post(self, request: Request) -> Response:
        body = parse_body(request, bodies.ApplyIn)
        done = advice.carry_out(fingerprint=body.fingerprint, actor=person(request), at=clock.now())
        return Response(bodies.AppliedOut.of(done).model_dump(), status=202)


class PassesView(APIView):
    @extend_schema(
        summary="Runs of the planner, the newest first",
        parameters=[
            OpenApiParameter("refused", bool, description="`true`: only those the checker refused."),
            OpenApiParameter("started", bool, description="`true`: only those that started something."),
        ],
        responses=page_schema(bodies.PassOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "refused", "started")
        rows = selectors.passes()
        if _is_asked(request, "refused"):
            rows = rows.filter(is_refused=True)
        if _is_asked(request, "started"):
            rows = rows.filter(n_started__gt=0)
        return Response(
            page(rows, request, order=["-id"], render=lambda row: bodies.PassOut.of(row).model_dump())
        )


class PassView(APIView):
    @extend_schema(summary="One run of the planner", responses=bodies.PassDetailOut)
    def get(self, request: Request, pass_id: int) -> Response:
        row = selectors.passes().filter(pk=pass_id).first()
        if row is None:
            raise NotFound("There is no such pass.", pass_id=pass_id)
        return Response(bodies.PassDetailOut.of(row).model_dump())


class _GzipRenderer(BaseRenderer):
    """Lets a client that accepts nothing but the file have it; what goes wrong is told in JSON all the same."""

    media_type, format, charset, render_style = "application/gzip", "gz", None, "binary"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        return bytes(JSONRenderer().render(data))


class PassDumpView(APIView):
    renderer_classes = [JSONRenderer, _GzipRenderer]

    @extend_schema(
        summary="One run of the planner as a file",
        description="Everything the planner was told and what it decided, as compressed JSON, for "
        "`manage.py replay_pass`; without the names of jobs. For operators and auditors. Refused passes are kept, "
        "the last few; others if the site keeps them.",
        responses={(200, "application/gzip"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, pass_id: int) -> HttpResponse:
        return HttpResponse(
            dump_store.kept_for(person(request), pass_id),
            content_type="application/gzip",
            headers={"Content-Disposition": f'attachment; filename="pass-{pass_id}.json.gz"'},
        )


class UtilizationView(APIView):
    @extend_schema(
        summary="What the devices do now, and did",
        parameters=[
            OpenApiParameter("since", datetime, description="Default: 24 hours before `until`."),
            OpenApiParameter("until", datetime, description="Default: now."),
            OpenApiParameter("accelerator_type", str),
            OpenApiParameter("limit", int),
            OpenApiParameter("cursor", str),
        ],
        responses=bodies.UtilizationOut,
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "since", "until", "accelerator_type")
        until = _instant(request, "until") or clock.now()
        since = _instant(request, "since") or until - timedelta(hours=24)
        if not since < until <= since + selectors.longest_span():
            raise InvalidInput.of("since", "must be before until, by at most 31 days", "out_of_range")
        rows = selectors.samples(since=since, until=until)
        use = selectors.use_now()
        name = request.query_params.get("accelerator_type", "")
        if name and "\x00" not in name:
            rows = rows.filter(accelerator_type__name=name)
            use = tuple(one for one in use if one.name == name)
        listed = page(
            rows,
            request,
            order=["at", "id"],
            render=lambda row: bodies.SampleOut.of(row).model_dump(),
        )
        errors = selectors.forecast_errors(clock.now())
        told = {
            "now": [bodies.TypeUseOut.of(one).model_dump() for one in use],
            "fragmentation": [
                bodies.FragmentationOut.of(one).model_dump()
                for one in selectors.fragmentation_now()
                if not name or one.name == name
            ],
            "forecast_errors": None if errors is None else bodies.ForecastErrorsOut.of(errors).model_dump(),
        }
        return Response({**told, **listed})


class LossesView(APIView):
    @extend_schema(
        summary="What became of every device-second",
        description="Whole quarters of an hour. With a team: what its own jobs held.",
        parameters=[
            OpenApiParameter("since", datetime, description="Default: 24 hours before `until`."),
            OpenApiParameter("until", datetime, description="Default: now."),
            OpenApiParameter("accelerator_type", str),
            OpenApiParameter("team", str),
        ],
        responses=bodies.LedgerOut,
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "since", "until", "accelerator_type", "team")
        until = _instant(request, "until") or clock.now()
        since = _instant(request, "since") or until - timedelta(hours=24)
        if not since < until <= since + selectors.longest_span():
            raise InvalidInput.of("since", "must be before until, by at most 31 days", "out_of_range")
        rows = selectors.losses(since=since, until=until, type_name=_type_name(request), team=_team(request))
        total = selectors.summed(rows)
        told = bodies.LedgerOut(
            total=bodies.LossesOut.of(total) if total is not None else None,
            items=[bodies.LossesOut.of(row) for row in rows],
        )
        return Response(told.model_dump())


def _type_name(request: Request) -> str | None:
    name = request.query_params.get("accelerator_type")
    if name is not None and ("\x00" in name or not AcceleratorType.objects.filter(name=name).exists()):
        raise InvalidInput.of("accelerator_type", "there is no such accelerator type", "not_a_choice")
    return name


def _team(request: Request) -> Team | None:
    name = request.query_params.get("team")
    if name is None:
        return None
    team = None if "\x00" in name else teams_visible_to(person(request)).filter(name=name).first()
    if team is None:
        raise InvalidInput.of("team", "there is no such team, or it is not yours to see", "not_a_choice")
    return team


def _is_asked(request: Request, name: str) -> bool:
    word = request.query_params.get(name, "false")
    if word not in ("true", "false"):
        raise InvalidInput.of(name, "must be true or false", "not_a_choice")
    return word == "true"


def _instant(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not 1970 < at.year < 2300:
        raise InvalidInput.of(name, "must be a date and time with its zone, such as 2026-03-01T08:00:00Z")
    return at

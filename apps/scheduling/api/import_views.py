"""Batch scripts and manifests by REST."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import parse_body
from apps.core.api.idempotency import answer_once
from apps.scheduling import importing
from apps.scheduling.api.import_bodies import ImportIn, ImportOut, import_out
from apps.teams.policies import person


class JobImportView(APIView):
    takes_bulk = True  # a script of a million characters, each of which may be escaped

    @extend_schema(
        summary="The job that a batch script or a manifest means",
        description=(
            "Reads a script with #SBATCH lines, or manifests (Job, JobSet, PyTorchJob and its like, TrainJob, RayJob, "
            "Volcano's Job, Pod). Answers the jobs, what became of each option, and what the planner would do. "
            "Nothing is submitted unless `submit` is true; then all jobs or none, and 400 with each error "
            "if anything was refused."
        ),
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER)],
        request=ImportIn,
        responses={200: ImportOut, 201: ImportOut},
    )
    def post(self, request: Request) -> Response:
        body = parse_body(request, ImportIn)
        actor, at = person(request), clock.now()

        def act() -> Response:
            found = importing.read(
                text=body.text,
                actor=actor,
                at=at,
                format=body.format,
                team=body.team or "",
                options=body.options,
                defaults=body.defaults.model_dump(exclude_none=True),
            )
            if body.submit:
                submitted = importing.submit(found, actor=actor, at=at)
                return Response(import_out(found, submitted), status=201)
            if body.preview:
                importing.preview(found, actor=actor, at=at)
            return Response(import_out(found, None))

        return answer_once(request, act) if body.submit else act()

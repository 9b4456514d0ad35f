"""Facility files by REST: the facility as a file, what a file would change, and the change."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import refuse_unknown_parameters
from apps.scheduling.api import facility_bodies as bodies
from apps.scheduling.facility import changing
from apps.teams import policies
from apps.teams.policies import person


class FacilityView(APIView):
    @extend_schema(
        summary="The facility as built, as a file",
        description="For operators. It reads back without a change; what opens clusters is not in it.",
        responses={200: {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    )
    def get(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        refuse_unknown_parameters(request)
        return Response({"text": changing.written()})


class FacilityCheckView(APIView):
    takes_bulk = True  # two million characters, each of which may be escaped

    @extend_schema(
        summary="What a facility file would change",
        description="YAML, or nodes as CSV. Nothing is changed: it is tried and undone. For operators.",
        request=bodies.FacilityFileIn,
        responses=bodies.FacilityCheckedOut,
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.FacilityFileIn)
        checked = changing.check(
            text=body.text, is_whole=body.is_whole, actor=person(request), at=clock.now()
        )
        return Response(bodies.FacilityCheckedOut.of(checked).model_dump())


class FacilityApplyView(APIView):
    takes_bulk = True  # two million characters, each of which may be escaped

    @extend_schema(
        summary="Change the facility as a file says",
        description="All of it or nothing, and only what the check with that `digest` showed (409 `outdated`). "
        "For administrators.",
        request=bodies.FacilityApplyIn,
        responses=bodies.FacilityCheckedOut,
    )
    def post(self, request: Request) -> Response:
        policies.require_admin(person(request))
        body = parse_body(request, bodies.FacilityApplyIn)

        def act() -> Response:
            checked = changing.apply(
                **body.model_dump(exclude_unset=False), actor=person(request), at=clock.now()
            )
            return Response(bodies.FacilityCheckedOut.of(checked).model_dump())

        return answer_once(request, act)

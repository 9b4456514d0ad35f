"""Overrides by REST."""

from datetime import datetime
from typing import Annotated, Literal

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import Out, page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.strict import Instant, Name, Reason, Strict, Text
from apps.power import override_services
from apps.power.models import PowerOverride
from apps.teams import policies
from apps.teams.policies import person


class OverrideIn(Strict):
    """Either a job or a domain is named; a domain stands for every job that has a device in it."""

    kind: Literal["exempt", "hold", "release"]
    job_id: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    domain: Name | None = None
    reason: Annotated[Text, Field(min_length=1, max_length=500)]
    expires_at: Instant


class OverrideEndIn(Strict):
    reason: Reason = ""


class OverrideOut(Out):
    """`is_active`: it counts now."""

    id: int
    kind: str
    job_id: int | None
    domain: str | None
    reason: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    is_active: bool

    @classmethod
    def of(cls, row: PowerOverride, at: datetime) -> "OverrideOut":
        facts = vars(row)
        known = {name: facts[name] for name in cls.model_fields if name in facts}
        by = row.ended_by
        return cls.model_validate(
            {
                **known,
                "domain": None if row.domain is None else row.domain.name,
                "created_by": row.created_by.get_username(),
                "ended_by": None if by is None else by.get_username(),
                "is_active": row.ended_at is None and row.created_at <= at < row.expires_at,
            }
        )


class OverridesView(APIView):
    @extend_schema(summary="Overrides of power plans, the latest first", responses=page_schema(OverrideOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        at, rows = clock.now(), override_services.overrides()
        return Response(
            page(
                rows,
                request,
                order=["-created_at", "-id"],
                render=lambda row: OverrideOut.of(row, at).model_dump(),
            )
        )

    @extend_schema(
        summary="Leave a job or a domain alone, hold it, or release it",
        description="Operators. Above every plan, below every limit, until it expires.",
        request=OverrideIn,
        responses={201: OverrideOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, OverrideIn)

        def act() -> Response:
            at = clock.now()
            row = override_services.add_override(**body.model_dump(), actor=person(request), at=at)
            return Response(OverrideOut.of(row, at).model_dump(), status=201)

        return answer_once(request, act)


class OverrideEndView(APIView):
    @extend_schema(summary="Take an override back", request=OverrideEndIn, responses=OverrideOut)
    def post(self, request: Request, override_id: int) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, OverrideEndIn)

        def act() -> Response:
            at = clock.now()
            override_services.end_override(
                override_id=override_id, actor=person(request), at=at, reason=body.reason
            )
            row = override_services.overrides().get(pk=override_id)
            return Response(OverrideOut.of(row, at).model_dump())

        return answer_once(request, act)

"""Settlements by REST: what an event came to, as JSON or as a table."""

import json
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.power import response_bodies as bodies
from apps.power import settlement_selectors, settlement_services
from apps.power.models import SettlementReport
from apps.power.response_selectors import event_by_id
from apps.power.settlement.report import csv_of
from apps.teams import policies
from apps.teams.policies import person


class CsvRenderer(BaseRenderer):
    """For `Accept: text/csv`; what is refused is told as JSON all the same."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> str:
        return data if isinstance(data, str) else json.dumps(data, default=str)


class SettlementView(APIView):
    renderer_classes = (JSONRenderer, CsvRenderer)

    @extend_schema(
        summary="What an event came to",
        description="404 before it is settled. Late readings give another version; those before stay as they were.",
        parameters=[
            OpenApiParameter("version", int, description="Absent: the latest."),
            OpenApiParameter("as", str, enum=["json", "csv"], description="Or by `Accept: text/csv`."),
        ],
        responses={(200, "application/json"): bodies.SettlementOut, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request, event_id: int) -> Response | HttpResponse:
        refuse_unknown_parameters(request, "version", "as")
        wanted = request.query_params.get("as")
        if wanted not in (None, "json", "csv"):
            raise InvalidInput.of("as", "must be json or csv", "unknown")
        event_by_id(event_id)
        versions = list(settlement_selectors.settlements().filter(event_id=event_id))
        found = _version(versions, request.query_params.get("version"))
        if wanted == "csv" or (wanted is None and request.accepted_renderer.format == "csv"):
            answer = HttpResponse(csv_of(found.document), content_type="text/csv; charset=utf-8")
            name = f"event-{event_id}-settlement-{found.number}.csv"
            answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
            return answer
        numbers = [one.number for one in versions]
        return Response(bodies.SettlementOut.of(found, numbers).model_dump(), content_type="application/json")


class SettleView(APIView):
    @extend_schema(
        summary="Settle an event that is over",
        description="Operators. By itself it is settled a quarter of an hour after it is over and released, and again"
        " when readings come late. Where nothing has changed the latest version is answered. 409 `event_not_over`,"
        " `no_baseline` where too few good readings are there.",
        request=bodies.SettleIn,
        responses=bodies.SettlementOut,
    )
    def post(self, request: Request, event_id: int) -> Response:
        event_by_id(event_id)
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.SettleIn)

        def act() -> Response:
            made = settlement_services.settle_event(
                event_id=event_id, actor=person(request), at=clock.now(), reason=body.reason
            )
            rows = settlement_selectors.settlements().filter(event_id=event_id)
            return Response(bodies.SettlementOut.of(made, [one.number for one in rows]).model_dump())

        return answer_once(request, act)


def _version(versions: list[SettlementReport], text: str | None) -> SettlementReport:
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput.of("version", "must be a whole number", "wrong_type")
    found = next((one for one in versions if text is None or one.number == int(text)), None)
    if found is None:
        raise NotFound("This event is not settled." if text is None else f"There is no version {text}.")
    return found

"""Demand response by REST: programmes, events and the plans made for them."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import NotFound
from apps.power import programme_services, response_selectors, response_services
from apps.power import response_bodies as bodies
from apps.power.api.parameters import time_in
from apps.power.models import DemandResponseEvent, Programme
from apps.teams import policies
from apps.teams.policies import person


class EventsView(APIView):
    @extend_schema(
        summary="Demand-response events, the latest first",
        parameters=[
            OpenApiParameter("domain", str),
            OpenApiParameter("programme", str),
            OpenApiParameter("from", datetime, description="Events that end after it."),
            OpenApiParameter("to", datetime, description="Events that start before it."),
        ],
        responses=page_schema(bodies.EventOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "domain", "programme", "from", "to")
        rows = response_selectors.events()
        for name in ("domain", "programme"):
            if (word := request.query_params.get(name)) is not None:
                rows = rows.none() if "\x00" in word else rows.filter(**{f"{name}__name": word})
        if (begin_at := time_in(request, "from")) is not None:
            rows = rows.filter(end_at__gt=begin_at)
        if (end_at := time_in(request, "to")) is not None:
            rows = rows.filter(start_at__lt=end_at)
        return Response(page(rows, request, order=["-start_at", "-id"], render_all=_rendered))

    @extend_schema(
        summary="Announce an event",
        description="Operators. Nothing is done to any job before somebody commits a plan."
        " 409 `target_below_floor` where the target lies under what the domain draws at rest;"
        " `is_below_floor_confirmed` says it is meant. The same `external_version` of an `external_id` again"
        " changes nothing, a later one changes the event.",
        request=bodies.EventIn,
        responses={201: bodies.EventOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.EventIn)

        def act() -> Response:
            made = response_services.announce_event(
                draft=body.draft(),
                actor=person(request),
                at=clock.now(),
                is_below_floor_confirmed=body.is_below_floor_confirmed,
            )
            return Response(_rendered([response_selectors.event_by_id(made.pk)])[0], status=201)

        return answer_once(request, act)


class EventView(APIView):
    @extend_schema(summary="One event", responses=bodies.EventOut)
    def get(self, request: Request, event_id: int) -> Response:
        return Response(_rendered([response_selectors.event_by_id(event_id)])[0])


class EventCancelView(APIView):
    @extend_schema(
        summary="Cancel an event",
        description="Before its ramp nothing is to undo; later it is `recovering` until all is released.",
        request=bodies.GiveUpIn,
        responses=bodies.EventOut,
    )
    def post(self, request: Request, event_id: int) -> Response:
        return _give_up(request, event_id, response_services.cancel_event)


class EventOptOutView(APIView):
    @extend_schema(
        summary="Take no part in an event",
        description="409 `emergency_binds` for an emergency.",
        request=bodies.GiveUpIn,
        responses=bodies.EventOut,
    )
    def post(self, request: Request, event_id: int) -> Response:
        return _give_up(request, event_id, response_services.opt_out)


class EventPlansView(APIView):
    @extend_schema(summary="Plans of one event, the latest first", responses=page_schema(bodies.PlanOut))
    def get(self, request: Request, event_id: int) -> Response:
        refuse_unknown_parameters(request)
        event = response_selectors.event_by_id(event_id)
        rows = response_selectors.plans_of(event)
        return Response(
            page(
                rows,
                request,
                order=["-number"],
                render=lambda row: bodies.PlanOut.of(row, event).model_dump(),
            )
        )


class ProgrammesView(APIView):
    @extend_schema(summary="Demand-response programmes", responses=page_schema(bodies.ProgrammeOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        rows = response_selectors.programmes()
        return Response(
            page(rows, request, order=["name"], render=lambda row: bodies.ProgrammeOut.of(row).model_dump())
        )

    @extend_schema(
        summary="Write down a programme",
        description="Power administrators.",
        request=bodies.ProgrammeIn,
        responses={201: bodies.ProgrammeOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.ProgrammeIn)

        def act() -> Response:
            made = programme_services.create_programme(
                draft=body.draft(), actor=person(request), at=clock.now(), reason=body.reason
            )
            return Response(bodies.ProgrammeOut.of(made).model_dump(), status=201)

        return answer_once(request, act)


class ProgrammeView(APIView):
    @extend_schema(summary="One programme", responses=bodies.ProgrammeOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(bodies.ProgrammeOut.of(_programme(name)).model_dump())

    @extend_schema(
        summary="Replace a programme as a whole",
        description="Power administrators. Events keep what they took from it."
        " 409 with both sides when somebody saved meanwhile.",
        request=bodies.ProgrammePut,
        responses=bodies.ProgrammeOut,
    )
    def put(self, request: Request, name: str) -> Response:
        row = _programme(name)
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.ProgrammePut)
        changed = programme_services.update_programme(
            programme_id=row.pk,
            draft=body.draft(),
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(bodies.ProgrammeOut.of(changed).model_dump())


def _give_up(request: Request, event_id: int, service: Callable[..., DemandResponseEvent]) -> Response:
    response_selectors.event_by_id(event_id)
    policies.require_may_operate(person(request))
    body = parse_body(request, bodies.GiveUpIn)

    def act() -> Response:
        service(
            event_id=event_id,
            actor=person(request),
            at=clock.now(),
            version=body.version,
            reason=body.reason,
        )
        return Response(_rendered([response_selectors.event_by_id(event_id)])[0])

    return answer_once(request, act)


def _rendered(events: Sequence[DemandResponseEvent]) -> list[dict[str, Any]]:
    at = clock.now()
    loads = response_selectors.loads_of(events, at=at)
    return [bodies.EventOut.of(event, load=loads[event.pk], at=at).model_dump() for event in events]


def _programme(name: str) -> Programme:
    found = None if "\x00" in name else response_selectors.programmes().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no programme {name!r}.")
    return found

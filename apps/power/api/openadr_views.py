"""Connections to OpenADR servers by REST."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.power.api import openadr_bodies as bodies
from apps.power.openadr_models import VtnConnection
from apps.power.vtn import selectors, services
from apps.teams import policies
from apps.teams.policies import person


class ConnectionsView(APIView):
    @extend_schema(
        summary="Connections to OpenADR servers",
        description="Operators, power administrators and auditors. Secrets are never shown.",
        responses=page_schema(bodies.ConnectionOut),
    )
    def get(self, request: Request) -> Response:
        policies.require_may_see_vtns(person(request))
        refuse_unknown_parameters(request)
        return Response(
            page(selectors.connections(), request, order=["name"], render=lambda row: _out(row).model_dump())
        )

    @extend_schema(
        summary="Write down a connection",
        description="Power administrators. `POST /openadr/try` tries one before it is saved.",
        request=bodies.ConnectionIn,
        responses={201: bodies.ConnectionOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.ConnectionIn)
        # Its name makes a second one impossible; nothing is kept of a body that holds a secret.
        services.create_connection(
            draft=body.draft(), actor=person(request), at=clock.now(), reason=body.reason
        )
        return Response(_out(selectors.connection_named(body.name)).model_dump(), status=201)


class ConnectionView(APIView):
    @extend_schema(summary="One connection", responses=bodies.ConnectionOut)
    def get(self, request: Request, name: str) -> Response:
        policies.require_may_see_vtns(person(request))
        return Response(_out(selectors.connection_named(name)).model_dump())

    @extend_schema(
        summary="Replace a connection as a whole",
        description="Power administrators. Without `client_secret` the stored one stays, unless an address changes."
        " 409 with both sides when somebody saved meanwhile.",
        request=bodies.ConnectionPut,
        responses=bodies.ConnectionOut,
    )
    def put(self, request: Request, name: str) -> Response:
        policies.require_may_set_power(person(request))
        row = selectors.connection_named(name)
        body = parse_body(request, bodies.ConnectionPut)
        services.update_connection(
            connection_id=row.pk,
            draft=body.draft(),
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(_out(selectors.connection_named(body.name)).model_dump())

    @extend_schema(
        summary="Switch a connection on or off",
        description="Power administrators. What it announced stays until its end, or until somebody cancels it.",
        request=bodies.ConnectionPatch,
        responses=bodies.ConnectionOut,
    )
    def patch(self, request: Request, name: str) -> Response:
        policies.require_may_set_power(person(request))
        row = selectors.connection_named(name)
        body = parse_body(request, bodies.ConnectionPatch)
        services.set_enabled(
            connection_id=row.pk,
            is_enabled=body.is_enabled,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(_out(selectors.connection_named(name)).model_dump())

    @extend_schema(
        summary="Forget a connection",
        description="Power administrators. 409 `connection_in_use` while events that it announced are open.",
        responses={204: None},
    )
    def delete(self, request: Request, name: str) -> Response:
        policies.require_may_set_power(person(request))
        row = selectors.connection_named(name)
        services.delete_connection(connection_id=row.pk, actor=person(request), at=clock.now())
        return Response(status=204)


class ConnectionEventsView(APIView):
    @extend_schema(
        summary="Events of one server, as it listed them last",
        description="With what became of each here, and what is wrong with it.",
        responses=page_schema(bodies.VtnEventOut),
    )
    def get(self, request: Request, name: str) -> Response:
        policies.require_may_see_vtns(person(request))
        refuse_unknown_parameters(request)
        rows = selectors.vtn_events(selectors.connection_named(name))
        return Response(
            page(
                rows,
                request,
                order=["-first_listed_at", "-id"],
                render=lambda row: bodies.VtnEventOut.of(row).model_dump(),
            )
        )


class AcceptView(APIView):
    @extend_schema(
        summary="Say that an event is meant",
        description="Operators, of an event that `is_acceptable`; this version of it is then announced.",
        request=bodies.AcceptIn,
        responses=bodies.VtnEventOut,
    )
    def post(self, request: Request, name: str, external_id: str) -> Response:
        policies.require_may_operate(person(request))
        row = selectors.connection_named(name)
        body = parse_body(request, bodies.AcceptIn)
        taken = services.accept_event(
            connection_id=row.pk,
            external_id=external_id,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(bodies.VtnEventOut.of(taken).model_dump())


class TryView(APIView):
    @extend_schema(
        summary="Try a connection before it is saved",
        description="Power administrators. Asks the server for its programmes and events; changes nothing there or"
        " here. What goes wrong there is in the answer, not in its status.",
        request=bodies.ConnectionTryIn,
        responses=bodies.TriedOut,
    )
    def post(self, request: Request) -> Response:
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.ConnectionTryIn)
        stored = None if body.connection is None else selectors.connection_named(body.connection)
        tried = services.try_connection(
            draft=body.draft(), stored=stored, actor=person(request), at=clock.now()
        )
        return Response(bodies.TriedOut.of(tried).model_dump())


def _out(row: VtnConnection) -> bodies.ConnectionOut:
    return bodies.ConnectionOut.of(row)

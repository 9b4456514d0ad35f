"""Reservations by REST."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import TypeAdapter, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.core.strict import Instant
from apps.reservations import selectors, services
from apps.reservations.api import bodies
from apps.reservations.models import Reservation
from apps.teams import policies
from apps.teams.policies import person

_AHEAD = timedelta(days=366)
_MOST_WINDOWS = 20
_instant: TypeAdapter[datetime] = TypeAdapter(Instant)


class ReservationsView(APIView):
    @extend_schema(
        summary="Reservations",
        parameters=[
            OpenApiParameter(
                "from", datetime, description="Windows that touch the span; default: from now on."
            ),
            OpenApiParameter("to", datetime, description="Default: a year after `from`."),
            OpenApiParameter(
                "cancelled", bool, description="`true`: those that were cancelled; default `false`."
            ),
        ],
        responses=page_schema(bodies.ReservationOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "from", "to", "cancelled")
        begin_at, end_at = _span(request)
        word = request.query_params.get("cancelled", "false")
        if word not in ("true", "false"):
            raise InvalidInput.of("cancelled", "must be true or false", "wrong_type")
        rows = selectors.reservation_rows(person(request), ends_after=begin_at, starts_before=end_at)
        rows = rows.filter(cancelled_at__isnull=word == "false")
        return Response(page(rows, request, order=["starts_at", "id"], render=_rendered(begin_at, end_at)))

    @extend_schema(
        summary="Reserve capacity",
        description="409 `reservation_conflict` with what stands in the way when it is promised already.",
        request=bodies.ReservationIn,
        responses={201: bodies.ReservationOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        draft = parse_body(request, bodies.ReservationIn).draft()

        def act() -> Response:
            at = clock.now()
            made = services.create_reservation(draft=draft, actor=person(request), at=at)
            return Response(_rendered(at, at + _AHEAD)(made), status=201)

        return answer_once(request, act)


class ReservationCheckView(APIView):
    @extend_schema(
        summary="What would come of a reservation",
        description="Windows and conflicts for 400 days; nothing is written.",
        request=bodies.ReservationIn,
        responses=bodies.CheckOut,
    )
    def post(self, request: Request) -> Response:
        draft = parse_body(request, bodies.ReservationIn).draft()
        check = services.check_reservation(draft=draft, at=clock.now())
        return Response(bodies.CheckOut.of(check, most=_MOST_WINDOWS).model_dump())


class ReservationView(APIView):
    @extend_schema(summary="One reservation", responses=bodies.ReservationOut)
    def get(self, request: Request, name: str) -> Response:
        at = clock.now()
        return Response(_rendered(at, at + _AHEAD)(_reservation(request, name)))

    @extend_schema(summary="Cancel a reservation", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        row = _reservation(request, name)
        services.cancel_reservation(reservation_id=row.pk, actor=person(request), at=clock.now())
        return Response(status=204)


class ReservationCancelView(APIView):
    @extend_schema(
        summary="Cancel a reservation, saying why", request=bodies.CancelIn, responses=bodies.ReservationOut
    )
    def post(self, request: Request, name: str) -> Response:
        row = _reservation(request, name)
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.CancelIn)

        def act() -> Response:
            at = clock.now()
            services.cancel_reservation(
                reservation_id=row.pk, actor=person(request), at=at, reason=body.reason
            )
            return Response(_rendered(at, at + _AHEAD)(_reservation(request, name)))

        return answer_once(request, act)


def _rendered(begin_at: datetime, end_at: datetime) -> Callable[[Reservation], dict[str, Any]]:
    def render(row: Reservation) -> dict[str, Any]:
        windows = islice(selectors.windows_between(row, begin_at, end_at), _MOST_WINDOWS)
        return bodies.ReservationOut.of(row, windows).model_dump()

    return render


def _reservation(request: Request, name: str) -> Reservation:
    rows = selectors.reservations_visible_to(person(request)).select_related("accelerator_type", "created_by")
    row = None if "\x00" in name else rows.filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no reservation {name!r}.")
    return row


def _span(request: Request) -> tuple[datetime, datetime]:
    begin_at = _time(request, "from") or clock.now()
    end_at = _time(request, "to") or begin_at + _AHEAD
    if not begin_at < end_at <= begin_at + timedelta(days=3660):
        raise InvalidInput.of("to", "must lie after from, by ten years at most", "out_of_range")
    return begin_at, end_at


def _time(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return _instant.validate_python(text)
    except ValidationError:
        message = "must be a date and time with its zone, such as 2026-03-01T08:00:00Z"
        raise InvalidInput.of(name, message) from None

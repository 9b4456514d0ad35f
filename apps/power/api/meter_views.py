"""Sources of readings by REST: for those who look after the facility, since they hold addresses inside it."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import Forbidden, NotFound
from apps.power import meter_services
from apps.power.api import bodies
from apps.power.models import MeterSource
from apps.teams import policies
from apps.teams.policies import person


class MetersView(APIView):
    @extend_schema(
        summary="Sources that readings are fetched from",
        description="Operators, power administrators, auditors.",
        responses=page_schema(bodies.MeterOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        _require_may_see(request)
        rows = MeterSource.objects.all()
        return Response(
            page(rows, request, order=["name"], render=lambda row: bodies.MeterOut.of(row).model_dump())
        )

    @extend_schema(
        summary="Have readings fetched from a Prometheus",
        description="Power administrators. Every `every_s` the query is asked as an instant query; a series whose"
        " label names a power domain becomes a reading of it, one whose labels name a node or a device what that"
        " draws now. Two series of one domain or device are both left out: let the query add them up.",
        request=bodies.MeterIn,
        responses={201: bodies.MeterOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.MeterIn)

        def act() -> Response:
            made = meter_services.create_meter(
                draft=body.draft(), actor=person(request), at=clock.now(), reason=body.reason
            )
            return Response(bodies.MeterOut.of(made).model_dump(), status=201)

        return answer_once(request, act)


class MeterView(APIView):
    @extend_schema(summary="One source, and what became of its last try", responses=bodies.MeterOut)
    def get(self, request: Request, name: str) -> Response:
        _require_may_see(request)
        return Response(bodies.MeterOut.of(_meter(name)).model_dump())

    @extend_schema(
        summary="Change a source",
        description="Power administrators. 409 with both sides when somebody saved meanwhile.",
        request=bodies.MeterPatch,
        responses=bodies.MeterOut,
    )
    def patch(self, request: Request, name: str) -> Response:
        policies.require_may_set_power(person(request))
        row = _meter(name)
        body = parse_body(request, bodies.MeterPatch)
        changed = meter_services.update_meter(
            meter_id=row.pk,
            changes=body.changes(),
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(bodies.MeterOut.of(changed).model_dump())

    @extend_schema(summary="Fetch nothing from there any more", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        policies.require_may_set_power(person(request))
        meter_services.delete_meter(meter_id=_meter(name).pk, actor=person(request), at=clock.now())
        return Response(status=204)


def _require_may_see(request: Request) -> None:
    viewer = person(request)
    if not (policies.may_look_after(viewer) or policies.may_set_power(viewer)):
        raise Forbidden("Only operators, power administrators and auditors may see where readings come from.")


def _meter(name: str) -> MeterSource:
    found = None if "\x00" in name else MeterSource.objects.filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no meter {name!r}.")
    return found

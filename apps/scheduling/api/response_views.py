"""Demand response by REST as far as it needs to know what runs: dry runs, commits, and the switch of power control."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import refuse_unknown_parameters
from apps.power import response_selectors
from apps.power.models import PowerController
from apps.power.response_bodies import PlanOut
from apps.scheduling.api import response_bodies as bodies
from apps.scheduling.response import services
from apps.teams import policies
from apps.teams.policies import person


class DryRunView(APIView):
    @extend_schema(
        summary="What would be done for an event, were it announced and committed now?",
        description="Operators. Nothing is written. `seen` stands for what is shown: `POST"
        " /demand-response/commit` takes it back for 5 minutes. Infeasible targets are answered with the most"
        " that can be had, what binds, and what could be allowed beside it.",
        request=bodies.DryRunIn,
        responses=bodies.DryRunOut,
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.DryRunIn)
        found = services.preview_draft(
            draft=body.event.draft(),
            wish=body.wish.of(),
            actor=person(request),
            at=clock.now(),
            is_below_floor_confirmed=body.event.is_below_floor_confirmed,
        )
        return Response(bodies.DryRunOut.of(found).model_dump())


class DraftCommitView(APIView):
    @extend_schema(
        summary="Announce an event and commit its plan, as it was shown",
        description="Operators. All of it or nothing: 409 `plan_stale` where what would be done is not what was"
        " shown, 409 `confirmation_needed` where jobs would lose more than they allow.",
        request=bodies.DraftCommitIn,
        responses={201: PlanOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.DraftCommitIn)

        def act() -> Response:
            plan = services.commit_draft(
                draft=body.event.draft(),
                wish=body.wish.of(),
                seen=body.seen,
                actor=person(request),
                at=clock.now(),
                is_below_floor_confirmed=body.event.is_below_floor_confirmed,
                confirmation=body.confirmation,
                reason=body.reason,
            )
            return Response(_rendered(plan.event_id, plan.pk), status=201)

        return answer_once(request, act)


class EventPreviewView(APIView):
    @extend_schema(
        summary="Work out the best plan for an event",
        description="Operators. Kept as the event's newest preview, good for 5 minutes. Nothing is done to any job.",
        request=bodies.WishIn,
        responses={201: PlanOut},
    )
    def post(self, request: Request, event_id: int) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.WishIn)
        _require_event(event_id)

        def act() -> Response:
            plan = services.preview(event_id=event_id, wish=body.of(), actor=person(request), at=clock.now())
            return Response(_rendered(event_id, plan.pk), status=201)

        return answer_once(request, act)


class EventCommitView(APIView):
    @extend_schema(
        summary="Put a previewed plan in force",
        description="Operators. 409 `plan_stale` where it has expired or something it touches has moved; 409"
        " `confirmation_needed` where jobs would lose more than they allow. A plan that needs two people is only"
        " `previewed` after the first.",
        request=bodies.CommitIn,
        responses=PlanOut,
    )
    def post(self, request: Request, event_id: int) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.CommitIn)
        _require_event(event_id)

        def act() -> Response:
            plan = services.commit(
                event_id=event_id,
                inputs_hash=body.inputs_hash,
                actor=person(request),
                at=clock.now(),
                confirmation=body.confirmation,
                reason=body.reason,
            )
            return Response(_rendered(event_id, plan.pk))

        return answer_once(request, act)


class ControllerView(APIView):
    @extend_schema(summary="Who controls power, and whether it acts", responses=bodies.ControllerOut)
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        row = PowerController.objects.select_related("stopped_by").filter(pk=1).first()
        return Response(bodies.ControllerOut.of(row or PowerController()).model_dump())


class ControllerStopView(APIView):
    @extend_schema(
        summary="Stop automation: everything stays as it is",
        description="Operators. No cap is changed, nobody is paused or resumed until it is started again.",
        request=bodies.ReasonIn,
        responses=bodies.ControllerOut,
    )
    def post(self, request: Request) -> Response:
        return _switch(request, services.stop_automation)


class ControllerStartView(APIView):
    @extend_schema(summary="Start automation again", request=bodies.ReasonIn, responses=bodies.ControllerOut)
    def post(self, request: Request) -> Response:
        return _switch(request, services.start_automation)


def _switch(request: Request, service: Any) -> Response:
    policies.require_may_operate(person(request))
    body = parse_body(request, bodies.ReasonIn)

    def act() -> Response:
        row = service(actor=person(request), reason=body.reason, at=clock.now())
        return Response(bodies.ControllerOut.of(row).model_dump())

    return answer_once(request, act)


def _require_event(event_id: int) -> None:
    response_selectors.event_by_id(event_id)


def _rendered(event_id: int, plan_id: int) -> dict[str, Any]:
    event = response_selectors.event_by_id(event_id)
    plan = response_selectors.plans_of(event).get(pk=plan_id)
    return PlanOut.of(plan, event).model_dump()

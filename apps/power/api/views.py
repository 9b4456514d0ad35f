"""Limits and readings of power by REST."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.inventory.models import POWER_KINDS, Domain, DomainKind
from apps.power import selectors, services
from apps.power.api import bodies
from apps.power.api.parameters import time_in
from apps.power.budget_selectors import bindings, oversubscription
from apps.power.models import PowerLimit
from apps.teams import policies
from apps.teams.policies import person

_KINDS = (*POWER_KINDS, DomainKind.COOLING)


class PowerDomainsView(APIView):
    @extend_schema(
        summary="Power domains with their limits and what they draw",
        parameters=[OpenApiParameter("kind", str, enum=[str(kind) for kind in _KINDS])],
        responses=page_schema(bodies.PowerDomainOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "kind")
        domains = selectors.power_domains()
        if (kind := request.query_params.get("kind")) is not None:
            if kind not in _KINDS:
                raise InvalidInput.of("kind", f"must be one of {', '.join(_KINDS)}", "not_a_choice")
            domains = domains.filter(kind=kind)
        return Response(page(domains, request, order=["name"], render_all=_rendered))


class PowerDomainView(APIView):
    @extend_schema(summary="One power domain", responses=bodies.PowerDomainOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_rendered([_domain(name)])[0])

    @extend_schema(
        summary="Set what a domain may draw",
        description="In force at once. 409 with both sides when somebody saved meanwhile.",
        request=bodies.LimitPatch,
        responses=bodies.PowerDomainOut,
    )
    def patch(self, request: Request, name: str) -> Response:
        domain = _domain(name)
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.LimitPatch)
        services.set_limit(
            domain_id=domain.pk,
            changes=body.changes(),
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(_rendered([_domain(name)])[0])


class PowerEnvelopeView(APIView):
    @extend_schema(summary="What a domain may draw at which hours", responses=bodies.EnvelopeOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_envelope(_domain(name)))

    @extend_schema(
        summary="Say anew what a domain may draw at which hours",
        description="All of its steps; none at all is no envelope. 409 with both sides when somebody saved meanwhile.",
        request=bodies.EnvelopeIn,
        responses=bodies.EnvelopeOut,
    )
    def put(self, request: Request, name: str) -> Response:
        domain = _domain(name)
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.EnvelopeIn)
        services.set_envelope(
            domain_id=domain.pk,
            steps=[step.step() for step in body.steps],
            time_zone=body.time_zone,
            version=body.version,
            actor=person(request),
            at=clock.now(),
            reason=body.reason,
        )
        return Response(_envelope(_domain(name)))


def _envelope(domain: Domain) -> dict[str, Any]:
    limit: PowerLimit = getattr(domain, "power_limit", None) or PowerLimit(domain=domain)
    facts = services.envelope_facts(limit)
    return bodies.EnvelopeOut.model_validate({**facts, "version": limit.version}).model_dump()


class PowerAlarmsView(APIView):
    @extend_schema(
        summary="Alarms of the watchdog: open ones first, then the latest",
        parameters=[OpenApiParameter("open", str, enum=["true", "false"])],
        responses=page_schema(bodies.AlarmOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "open")
        rows = selectors.alarms()
        if (word := request.query_params.get("open")) is not None:
            if word not in ("true", "false"):
                raise InvalidInput.of("open", "must be true or false", "not_a_choice")
            rows = rows.filter(cleared_at__isnull=word == "true")
        order = ["is_over", "-raised_at", "-id"]
        return Response(
            page(rows, request, order=order, render=lambda row: bodies.AlarmOut.of(row).model_dump())
        )


class PowerReadingsView(APIView):
    @extend_schema(
        summary="What a domain was seen to draw",
        parameters=[
            OpenApiParameter("domain", str, required=True),
            OpenApiParameter("from", datetime, description="Default: a day before `to`."),
            OpenApiParameter("to", datetime, description="Default: now. Half-open."),
        ],
        responses=page_schema(bodies.ReadingOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "domain", "from", "to")
        name = request.query_params.get("domain")
        if name is None:
            raise InvalidInput.of("domain", "is required", "missing")
        end_at = time_in(request, "to") or clock.now()
        begin_at = time_in(request, "from") or end_at - timedelta(days=1)
        rows = selectors.readings_of(_domain(name), begin_at=begin_at, end_at=end_at)
        return Response(
            page(rows, request, order=["at", "id"], render=lambda row: bodies.ReadingOut.of(row).model_dump())
        )

    @extend_schema(
        summary="Send in readings",
        description="All or none; those known already stay. Power administrators, and meters that sign in as one.",
        request=bodies.ReadingsIn,
        responses={201: bodies.ReadingsTakenOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_set_power(person(request))
        body = parse_body(request, bodies.ReadingsIn)

        def act() -> Response:
            n_new = services.record_readings(
                readings=body.rows(), actor=person(request), at=clock.now(), source=body.source
            )
            return Response({"n_new": n_new}, status=201)

        return answer_once(request, act)


def _rendered(domains: Sequence[Domain]) -> list[dict[str, Any]]:
    now = clock.now()
    latest = selectors.latest_readings([domain.pk for domain in domains])
    bound, over = bindings(domains, now), oversubscription(domains, now)
    return [
        bodies.PowerDomainOut.of(
            domain, latest.get(domain.pk), bound.get(domain.pk), over.get(domain.pk)
        ).model_dump()
        for domain in domains
    ]


def _domain(name: str) -> Domain:
    found = None if "\x00" in name else selectors.power_domains().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no power domain {name!r}.")
    return found

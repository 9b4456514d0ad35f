"""The facility by REST: types, domains, clusters, nodes, and the nodes' health."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import BaseModel
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import Forbidden, InvalidInput, NotFound
from apps.inventory import as_built, reports, selectors, services
from apps.inventory.api import bodies
from apps.inventory.models import AcceleratorType, Cluster, Domain, DomainKind, Health, Node
from apps.teams import policies
from apps.teams.models import HEALTH
from apps.teams.policies import person


class AcceleratorTypesView(APIView):
    @extend_schema(summary="Accelerator types", responses=page_schema(bodies.AcceleratorTypeOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        types = AcceleratorType.objects.all()
        return Response(page(types, request, order=["name"], render=_rendered(bodies.AcceleratorTypeOut.of)))

    @extend_schema(request=as_built.AcceleratorTypeIn, responses={201: bodies.AcceleratorTypeOut})
    def post(self, request: Request) -> Response:
        policies.require_admin(person(request))
        body = parse_body(request, as_built.AcceleratorTypeIn)

        def act() -> Response:
            made = services.create_accelerator_type(
                **body.model_dump(), actor=person(request), at=clock.now()
            )
            return Response(bodies.AcceleratorTypeOut.of(made).model_dump(), status=201)

        return answer_once(request, act)


class AcceleratorTypeView(APIView):
    @extend_schema(summary="One accelerator type", responses=bodies.AcceleratorTypeOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(bodies.AcceleratorTypeOut.of(_named(AcceleratorType.objects, name)).model_dump())


class DomainsView(APIView):
    @extend_schema(
        summary="Domains of the network, power, cooling and storage trees",
        parameters=[
            OpenApiParameter("kind", str, enum=DomainKind.values),
            OpenApiParameter("parent", str, description="Only those right below it."),
        ],
        responses=page_schema(bodies.DomainOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "kind", "parent")
        domains = Domain.objects.select_related("parent")
        if kind := _choice(request, "kind", DomainKind.values):
            domains = domains.filter(kind=kind)
        if parent := _word(request, "parent"):
            domains = domains.filter(parent__name=parent)
        return Response(page(domains, request, order=["name"], render=_rendered(bodies.DomainOut.of)))

    @extend_schema(request=as_built.DomainIn, responses={201: bodies.DomainOut})
    def post(self, request: Request) -> Response:
        policies.require_admin(person(request))
        body = parse_body(request, as_built.DomainIn)
        parent = None if body.parent is None else _referred(Domain.objects, "parent", body.parent)

        def act() -> Response:
            made = services.create_domain(
                name=body.name, kind=body.kind, parent=parent, actor=person(request), at=clock.now()
            )
            return Response(bodies.DomainOut.of(made).model_dump(), status=201)

        return answer_once(request, act)


class DomainView(APIView):
    @extend_schema(summary="One domain", responses=bodies.DomainOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(
            bodies.DomainOut.of(_named(Domain.objects.select_related("parent"), name)).model_dump()
        )


class ClustersView(APIView):
    @extend_schema(summary="Clusters", responses=page_schema(bodies.ClusterOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        return Response(page(Cluster.objects.all(), request, order=["name"], render=_cluster_for(request)))

    @extend_schema(request=as_built.ClusterIn, responses={201: bodies.ClusterOut})
    def post(self, request: Request) -> Response:
        policies.require_admin(person(request))
        body = parse_body(request, as_built.ClusterIn)

        def act() -> Response:
            made = services.create_cluster(**body.model_dump(), actor=person(request), at=clock.now())
            return Response(_cluster_for(request)(made), status=201)

        def again(name: str) -> Response:
            return Response(_cluster_for(request)(_named(Cluster.objects, name)))

        return answer_once(request, act, again=again, ref="name")


class ClusterView(APIView):
    @extend_schema(summary="One cluster", responses=bodies.ClusterOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_cluster_for(request)(_named(Cluster.objects, name)))


class NodesView(APIView):
    @extend_schema(
        summary="Nodes",
        parameters=[
            OpenApiParameter("health", str, enum=Health.values),
            OpenApiParameter("accelerator_type", str),
            OpenApiParameter("cluster", str),
            OpenApiParameter("domain", str, description="Nodes below this domain, at any depth."),
            OpenApiParameter("name_prefix", str),
        ],
        responses=page_schema(bodies.NodeOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "health", "accelerator_type", "cluster", "domain", "name_prefix")
        filters = selectors.NodeFilters(
            health=_choice(request, "health", Health.values),
            accelerator_type=_word(request, "accelerator_type"),
            cluster=_word(request, "cluster"),
            domain=_word(request, "domain"),
            name_prefix=_word(request, "name_prefix"),
        )
        nodes = selectors.node_details(person(request), filters)
        return Response(page(nodes, request, order=["name"], render=_rendered(bodies.NodeOut.of)))

    @extend_schema(request=as_built.NodeIn, responses={201: bodies.NodeDetailOut})
    def post(self, request: Request) -> Response:
        policies.require_admin(person(request))
        body = parse_body(request, as_built.NodeIn)
        trees = {
            field: None if (name := getattr(body, field)) is None else _referred(Domain.objects, field, name)
            for field in ("scale_up", "leaf", "power", "cooling", "storage")
        }
        facts = services.NodeFacts(
            name=body.name,
            accelerator_type=_referred(AcceleratorType.objects, "accelerator_type", body.accelerator_type),
            n_devices=body.n_devices,
            cpus=body.cpus,
            memory_gib=body.memory_gib,
            idle_w=body.idle_w,
            speed=body.speed,
            **trees,
        )
        cluster = _referred(Cluster.objects, "cluster", body.cluster)

        def act() -> Response:
            made = services.create_node(cluster=cluster, facts=facts, actor=person(request), at=clock.now())
            return Response(_node_detail(request, made.name), status=201)

        return answer_once(request, act, again=_node_again(request), ref="name")


class NodeView(APIView):
    @extend_schema(summary="One node with its devices", responses=bodies.NodeDetailOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_node_detail(request, name))


class NodeDrainView(APIView):
    @extend_schema(
        summary="Drain a node",
        description="Its work may end; it gets no more. Draining twice changes nothing the second time.",
        request=bodies.WhyIn,
        responses=bodies.NodeDetailOut,
    )
    def post(self, request: Request, name: str) -> Response:
        node = _node(request, name)
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.WhyIn)

        def act() -> Response:
            services.drain_node(node_id=node.pk, actor=person(request), at=clock.now(), reason=body.reason)
            return Response(_node_detail(request, name))

        return answer_once(request, act, again=_node_again(request), ref="name")


class NodeResumeView(APIView):
    @extend_schema(
        summary="Give a node work again",
        description="After a drain, after a failure that was mended, or before its cool-down is over.",
        request=bodies.WhyIn,
        responses=bodies.NodeDetailOut,
    )
    def post(self, request: Request, name: str) -> Response:
        node = _node(request, name)
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.WhyIn)

        def act() -> Response:
            services.resume_node(node_id=node.pk, actor=person(request), at=clock.now(), reason=body.reason)
            return Response(_node_detail(request, name))

        return answer_once(request, act, again=_node_again(request), ref="name")


class NodeHealthView(APIView):
    token_scopes = ("write", HEALTH)  # an agent needs no token that may do more

    @extend_schema(
        summary="Report a node's health",
        description=(
            "`health` is a person's word: reports do not take it back. `status` with `source` and `checks` is the "
            "report of a probe or an agent, which the rules judge together with those before it: a failing check "
            "makes the node suspect or failed, good reports in a row bring it back after a cool-down. For agents "
            "there are tokens of the scope `health`. A node that an operator drains stays so when it is well again."
        ),
        request=bodies.HealthIn,
        responses=bodies.NodeDetailOut,
    )
    def post(self, request: Request, name: str) -> Response:
        node = _node(request, name)
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.HealthIn)
        if body.health is not None and not policies.may_write_by(request.auth):
            raise Forbidden("This token may report, but not decide.")

        def act() -> Response:
            at = clock.now()
            if body.health is not None:
                services.report_health(
                    node_id=node.pk,
                    health=body.health,
                    reason=body.reason,
                    cooldown_s=body.cooldown_s,
                    actor=person(request),
                    at=at,
                )
            else:
                _take_report(request, node, body, at)
            return Response(_node_detail(request, name))

        return answer_once(request, act, again=_node_again(request), ref="name")


def _take_report(request: Request, node: Node, body: bodies.HealthIn, at: datetime) -> None:
    assert body.status is not None
    assert body.source is not None
    report = reports.Report(
        node_id=node.pk,
        at=body.at or at,
        status=body.status,
        checks=tuple(
            reports.Check(name=one.name, ok=one.ok, value=one.value, message=one.message)
            for one in body.checks
        ),
    )
    reports.take_report(report=report, source=body.source, actor=person(request), at=at)


def _rendered(of: Callable[[Any], BaseModel]) -> Callable[[Any], dict[str, Any]]:
    return lambda row: of(row).model_dump()


def _cluster_for(request: Request) -> Callable[[Cluster], dict[str, Any]]:
    shows_config = policies.is_admin(person(request))
    return lambda row: bodies.ClusterOut.of(row, shows_config=shows_config).model_dump()


def _node_detail(request: Request, name: str) -> dict[str, Any]:
    node = _named(selectors.node_details(person(request)), name)
    sees_all = policies.may_look_after(person(request))
    seen = selectors.seen_of(node) if sees_all else None
    return bodies.NodeDetailOut.with_devices(node, list(node.devices.order_by("index")), seen).model_dump()


def _node_again(request: Request) -> Callable[[str], Response]:
    """The answer to what was done already: not kept, since what was seen of a node is not for everybody."""
    return lambda name: Response(_node_detail(request, name))


def _node(request: Request, name: str) -> Node:
    node: Node = _named(selectors.nodes_visible_to(person(request)), name)
    return node


def _named(rows: Any, name: str) -> Any:
    found = None if "\x00" in name else rows.filter(name=name).first()
    if found is None:
        raise NotFound(f"There is nothing named {name!r} here.")
    return found


def _referred(rows: Any, field: str, name: str) -> Any:
    """What a body names; a name that nothing bears is a fault of that field."""
    found = rows.filter(name=name).first()
    if found is None:
        raise InvalidInput.of(field, "names nothing that is here", "unknown")
    return found


def _word(request: Request, name: str) -> str:
    word = request.query_params.get(name, "")
    if len(word) > 120 or "\x00" in word:
        raise InvalidInput.of(name, "is not a name")
    return word


def _choice(request: Request, name: str, choices: list[str]) -> str:
    word = request.query_params.get(name, "")
    if word and word not in choices:
        raise InvalidInput.of(name, f"must be one of {', '.join(choices)}", "not_a_choice")
    return word

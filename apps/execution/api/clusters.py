"""How clusters are reached, by REST: tried, saved, looked at. Administrators; operators may have one looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Literal

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import Out, parse_body
from apps.core.errors import InvalidInput, NotFound
from apps.core.strict import Strict
from apps.execution import engines
from apps.execution.backends.base import Survey
from apps.execution.connections import Connected
from apps.inventory.models import Cluster
from apps.teams import policies
from apps.teams.policies import person

Values = Annotated[
    dict[str, str], Field(max_length=40, description="By name of the field; see the engine's page.")
]


class ConnectionIn(Strict):
    """Secrets may be left out where one is stored and what they open stays the same. They are never shown."""

    engine: Literal["slurm", "kubernetes"]
    values: Values


class ConnectionOut(Out):
    """How a cluster is reached; `values` without secrets."""

    cluster: str
    engine: str
    version: str
    last_contact_at: datetime | None
    last_error: str
    values: dict[str, str]


class TriedOut(Out):
    """What answered."""

    version: str
    n_nodes: int
    n_devices: int
    n_foreign: int = Field(description="Pieces of work there that are not ours.")


class ConnectedOut(Out):
    """What became of it; `notes` say what was passed over."""

    cluster: str
    version: str
    n_nodes_taken: int
    notes: list[str]


class ConnectionView(APIView):
    @extend_schema(summary="How a cluster is reached", responses=ConnectionOut)
    def get(self, request: Request, name: str) -> Response:
        policies.require_admin(person(request))
        cluster = _named(name)
        return Response(_out(cluster).model_dump())

    @extend_schema(
        summary="Connect a cluster, or reach it in another way",
        description="Nothing is saved unless it answers; a name that is new becomes a cluster.",
        request=ConnectionIn,
        responses={200: ConnectedOut, 201: ConnectedOut},
    )
    def put(self, request: Request, name: str) -> Response:
        actor = person(request)
        policies.require_admin(actor)
        body = parse_body(request, ConnectionIn)
        cluster = Cluster.objects.filter(name=name).first()
        if cluster is None:
            with _below("values"):
                done = engines.connect(name, body.engine, body.values, actor=actor, at=clock.now())
            return Response(_done(done).model_dump(), status=201)
        if cluster.backend != body.engine:
            raise NotFound(f"{name} is no cluster behind {body.engine}.")
        with _below("values"):
            done = engines.change(cluster, body.values, actor=actor, at=clock.now())
        return Response(_done(done).model_dump())


class ConnectionTestView(APIView):
    @extend_schema(summary="Try a connection, and change nothing", request=ConnectionIn, responses=TriedOut)
    def post(self, request: Request, name: str) -> Response:
        body = parse_body(request, ConnectionIn)
        cluster = Cluster.objects.filter(name=name, backend=body.engine).first()
        with _below("values"):
            survey = engines.try_connection(body.engine, body.values, cluster=cluster, actor=person(request))
        return Response(_tried(survey).model_dump())


class SyncView(APIView):
    @extend_schema(summary="Look at a cluster now", request=None, responses=ConnectedOut)
    def post(self, request: Request, name: str) -> Response:
        done = engines.sync(_named(name), actor=person(request), at=clock.now())
        return Response(_done(done).model_dump())


def _tried(survey: Survey) -> TriedOut:
    return TriedOut(
        version=survey.version,
        n_nodes=len(survey.nodes),
        n_devices=sum(node.n_devices for node in survey.nodes),
        n_foreign=len({use.key for use in survey.foreign}),
    )


@contextmanager
def _below(field: str) -> Iterator[None]:
    """Faults of what lies below a field of the body are told with its name."""
    try:
        yield
    except InvalidInput as refusal:
        own = {"name"}
        raise InvalidInput(
            [
                {**one, "path": one["path"] if one["path"] in own else f"{field}.{one['path']}"}
                for one in refusal.errors
            ]
        ) from None


def _named(name: str) -> Cluster:
    found = Cluster.objects.filter(name=name).first()
    if found is None:
        raise NotFound("There is no such cluster.")
    return found


def _out(cluster: Cluster) -> ConnectionOut:
    engine = engines.engine_of(cluster)
    return ConnectionOut(
        cluster=cluster.name,
        engine=engine.key,
        version=cluster.engine_version,
        last_contact_at=cluster.last_contact_at,
        last_error=cluster.last_error,
        values=dict(engine.told(cluster) or {}),
    )


def _done(done: Connected) -> ConnectedOut:
    return ConnectedOut(
        cluster=done.cluster.name, version=done.version, n_nodes_taken=done.n_nodes, notes=list(done.notes)
    )

"""Data sets by REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import Out, page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import NotFound
from apps.core.strict import AddressName, Gib, Names, Strict
from apps.staging import selectors, services
from apps.staging.models import Dataset
from apps.teams import policies
from apps.teams.policies import person


class DatasetIn(Strict):
    """`at` names the storage domains that hold a copy."""

    name: AddressName
    size_gib: Gib
    at: Names = Field(default_factory=list)


class DatasetPatch(Strict):
    at: Names


class DatasetOut(Out):
    name: str
    size_gib: float
    at: list[str]

    @classmethod
    def of(cls, row: Dataset) -> "DatasetOut":
        return cls(name=row.name, size_gib=row.size_gib, at=[copy.domain.name for copy in row.copies.all()])


class DatasetsView(APIView):
    @extend_schema(summary="Data sets", responses=page_schema(DatasetOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        rows = selectors.datasets_visible_to(person(request))
        return Response(page(rows, request, order=["name"], render=_rendered))

    @extend_schema(summary="Name a data set", request=DatasetIn, responses={201: DatasetOut})
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, DatasetIn)

        def act() -> Response:
            made = services.create_dataset(
                name=body.name,
                size_gib=body.size_gib,
                at_domains=body.at,
                actor=person(request),
                at=clock.now(),
            )
            return Response(_rendered(made), status=201)

        return answer_once(request, act)


class DatasetView(APIView):
    @extend_schema(summary="One data set", responses=DatasetOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_rendered(_dataset(request, name)))

    @extend_schema(summary="Say where the copies lie", request=DatasetPatch, responses=DatasetOut)
    def patch(self, request: Request, name: str) -> Response:
        row = _dataset(request, name)
        policies.require_may_operate(person(request))
        body = parse_body(request, DatasetPatch)
        services.set_copies(dataset_id=row.pk, at_domains=body.at, actor=person(request), at=clock.now())
        return Response(_rendered(_dataset(request, name)))

    @extend_schema(summary="Forget a data set", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        row = _dataset(request, name)
        services.delete_dataset(dataset_id=row.pk, actor=person(request), at=clock.now())
        return Response(status=204)


def _rendered(row: Dataset) -> dict[str, Any]:
    return DatasetOut.of(row).model_dump()


def _dataset(request: Request, name: str) -> Dataset:
    rows = selectors.datasets_visible_to(person(request))
    row = None if "\x00" in name else rows.filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no data set {name!r}.")
    return row

"""Data sets, stores and transfers by REST."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import NoBody, page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.errors import InvalidInput, NotFound
from apps.staging import selectors, services
from apps.staging.api import bodies
from apps.staging.models import Dataset, Store, Transfer
from apps.teams import policies
from apps.teams.policies import person


class DatasetsView(APIView):
    @extend_schema(summary="Data sets", responses=page_schema(bodies.DatasetOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        rows = selectors.datasets_visible_to(person(request))
        return Response(page(rows, request, order=["name"], render=_rendered))

    @extend_schema(summary="Name a data set", request=bodies.DatasetIn, responses={201: bodies.DatasetOut})
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.DatasetIn)

        def act() -> Response:
            made = services.create_dataset(
                name=body.name,
                size_gib=body.size_gib,
                at_domains=body.at,
                uris=body.uris,
                actor=person(request),
                at=clock.now(),
            )
            return Response(_rendered(_dataset(request, made.name)), status=201)

        return answer_once(request, act)


class DatasetView(APIView):
    @extend_schema(summary="One data set", responses=bodies.DatasetOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_rendered(_dataset(request, name)))

    @extend_schema(
        summary="Say where the copies lie", request=bodies.DatasetPatch, responses=bodies.DatasetOut
    )
    def patch(self, request: Request, name: str) -> Response:
        row = _dataset(request, name)
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.DatasetPatch)
        services.set_copies(
            dataset_id=row.pk, at_domains=body.at, uris=body.uris, actor=person(request), at=clock.now()
        )
        return Response(_rendered(_dataset(request, name)))

    @extend_schema(summary="Forget a data set", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        row = _dataset(request, name)
        services.delete_dataset(dataset_id=row.pk, actor=person(request), at=clock.now())
        return Response(status=204)


class StoresView(APIView):
    @extend_schema(summary="Stores behind storage domains", responses=page_schema(bodies.StoreOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        rows = selectors.stores_visible_to(person(request))
        return Response(page(rows, request, order=["id"], render=_store_for(request)))

    @extend_schema(
        summary="Say what stands behind a storage domain",
        description="400 `not_allowed` at `base_uri` when it lies outside what the site allows.",
        request=bodies.StoreIn,
        responses={201: bodies.StoreOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.StoreIn)

        def act() -> Response:
            made = services.create_store(
                domain=body.domain,
                base_uri=body.base_uri or "",
                profile=body.profile or "",
                rate_gib_per_s=body.rate_gib_per_s,
                most_gib_per_s=body.most_gib_per_s,
                is_simulated=body.is_simulated,
                actor=person(request),
                at=clock.now(),
            )
            return Response(_store_for(request)(made), status=201)

        def again(domain: str) -> Response:
            return Response(_store_for(request)(_store(request, domain)), status=201)

        return answer_once(request, act, again=again, ref="domain")


class StoreView(APIView):
    @extend_schema(summary="The store of a domain", responses=bodies.StoreOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(_store_for(request)(_store(request, name)))

    @extend_schema(summary="Change a store", request=bodies.StorePatch, responses=bodies.StoreOut)
    def patch(self, request: Request, name: str) -> Response:
        row = _store(request, name)
        policies.require_may_operate(person(request))
        changes = parse_body(request, bodies.StorePatch).changes()
        services.update_store(store_id=row.pk, changes=changes, actor=person(request), at=clock.now())
        return Response(_store_for(request)(_store(request, name)))

    @extend_schema(
        summary="Forget a store",
        description="What lies there is not touched. 409 `store_in_use` while something is on its way to it.",
        responses={204: None},
    )
    def delete(self, request: Request, name: str) -> Response:
        row = _store(request, name)
        services.delete_store(store_id=row.pk, actor=person(request), at=clock.now())
        return Response(status=204)


class TransfersView(APIView):
    @extend_schema(
        summary="Copies on their way, and those that were; the latest first",
        parameters=[
            OpenApiParameter(
                "open", bool, description="`true`: on their way; `false`: ended; default: both."
            ),
            OpenApiParameter("dataset", str, description="Of this data set alone."),
        ],
        responses=page_schema(bodies.TransferOut),
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "open", "dataset")
        rows = selectors.transfers_visible_to(person(request))
        if (word := request.query_params.get("open")) is not None:
            if word not in ("true", "false"):
                raise InvalidInput.of("open", "must be true or false", "wrong_type")
            rows = rows.filter(ended_at__isnull=word == "true")
        if (name := request.query_params.get("dataset")) is not None:
            rows = rows.none() if "\x00" in name else rows.filter(dataset__name=name)
        return Response(page(rows, request, order=["-id"], render=_transfer_for(request)))

    @extend_schema(
        summary="Bring a data set to a storage domain",
        description="The one under way, if there is one already. 409 `no_route` when nothing can carry it.",
        request=bodies.TransferIn,
        responses={201: bodies.TransferOut},
    )
    def post(self, request: Request) -> Response:
        policies.require_may_operate(person(request))
        body = parse_body(request, bodies.TransferIn)
        row = selectors.datasets_visible_to(person(request)).filter(name=body.dataset).first()
        if row is None:
            raise InvalidInput.of("dataset", f"there is no data set {body.dataset!r}", "unknown")

        def act() -> Response:
            made = services.stage_by_hand(
                dataset_id=row.pk, to_domain=body.to, actor=person(request), at=clock.now()
            )
            return again(made.pk)

        def again(transfer_id: int) -> Response:
            return Response(_transfer_for(request)(_transfer(request, transfer_id)), status=201)

        return answer_once(request, act, again=again)


class TransferView(APIView):
    @extend_schema(summary="One transfer", responses=bodies.TransferOut)
    def get(self, request: Request, transfer_id: int) -> Response:
        return Response(_transfer_for(request)(_transfer(request, transfer_id)))


class TransferCancelView(APIView):
    @extend_schema(
        summary="End a transfer, and take away what lies half-done",
        description="It is over when its state is `cancelled`; `arrived` if that was quicker.",
        request=NoBody,
        responses={202: bodies.TransferOut},
    )
    def post(self, request: Request, transfer_id: int) -> Response:
        row = _transfer(request, transfer_id)
        policies.require_may_operate(person(request))
        parse_body(request, NoBody)

        def act() -> Response:
            services.cancel_transfer(transfer_id=row.pk, actor=person(request), at=clock.now())
            return again(row.pk)

        def again(transfer_id: int) -> Response:
            return Response(_transfer_for(request)(_transfer(request, transfer_id)), status=202)

        return answer_once(request, act, again=again)


def _rendered(row: Dataset) -> dict[str, Any]:
    return bodies.DatasetOut.of(row).model_dump()


def _store_for(request: Request) -> Callable[[Store], dict[str, Any]]:
    shows = selectors.may_see_addresses(person(request))
    return lambda row: bodies.StoreOut.of(row, shows_address=shows).model_dump()


def _transfer_for(request: Request) -> Callable[[Transfer], dict[str, Any]]:
    shows = selectors.may_see_addresses(person(request))
    return lambda row: bodies.TransferOut.of(row, shows_address=shows).model_dump()


def _dataset(request: Request, name: str) -> Dataset:
    rows = selectors.datasets_visible_to(person(request))
    row = None if "\x00" in name else rows.filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no data set {name!r}.")
    return row


def _store(request: Request, name: str) -> Store:
    rows = selectors.stores_visible_to(person(request))
    row = None if "\x00" in name else rows.filter(domain__name=name).first()
    if row is None:
        raise NotFound(f"There is no store of {name!r}.")
    return row


def _transfer(request: Request, transfer_id: int) -> Transfer:
    # Numbers beyond what the database counts are nobody's.
    rows = selectors.transfers_visible_to(person(request))
    row = rows.filter(pk=transfer_id).first() if transfer_id < 2**63 else None
    if row is None:
        raise NotFound("There is no such transfer.")
    return row

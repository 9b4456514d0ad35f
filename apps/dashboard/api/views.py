"""Saved views of the queue by REST."""

from typing import Annotated

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import clock
from apps.core.api.body import Out, page_schema, parse_body
from apps.core.api.idempotency import answer_once
from apps.core.api.paging import page, refuse_unknown_parameters
from apps.core.strict import Name, Strict, Text
from apps.dashboard import saved_views
from apps.dashboard.models import LONGEST_QUERY, SavedView
from apps.dashboard.views.queue import checked_query
from apps.teams import selectors as teams
from apps.teams.policies import person


class SavedViewIn(Strict):
    name: Annotated[Name, Field(max_length=60)]
    query: Annotated[Text, Field(max_length=LONGEST_QUERY)] = Field(
        description="Filters as in the address of /queue/: `state=running&team=vision`."
    )
    team: Name | None = Field(None, description="Whose members see it too; one of yours.")


class SavedViewOut(Out):
    id: int
    name: str
    query: str
    owner: str
    team: str | None

    @classmethod
    def of(cls, row: SavedView) -> "SavedViewOut":
        team = None if row.team is None else row.team.name
        return cls(id=row.pk, name=row.name, query=row.query, owner=row.owner.get_username(), team=team)


class SavedViewsView(APIView):
    @extend_schema(summary="Views of the queue that you see", responses=page_schema(SavedViewOut))
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request)
        viewer = person(request)
        rows = saved_views.visible_to(viewer, viewer.team_ids())
        return Response(
            page(rows, request, order=["name", "id"], render=lambda row: SavedViewOut.of(row).model_dump())
        )

    @extend_schema(
        summary="Keep filters of the queue under a name",
        description="What you kept under that name before is replaced.",
        request=SavedViewIn,
        responses={201: SavedViewOut},
    )
    def post(self, request: Request) -> Response:
        body, actor = parse_body(request, SavedViewIn), person(request)
        query = checked_query(body.query)
        team = None if body.team is None else teams.team_named(body.team, viewer=actor)

        def act() -> Response:
            made = saved_views.save(name=body.name, query=query, team=team, actor=actor, at=clock.now())
            return Response(SavedViewOut.of(made).model_dump(), status=201)

        return answer_once(request, act)


class SavedViewView(APIView):
    @extend_schema(summary="Forget a view of yours", responses={204: None})
    def delete(self, request: Request, view_id: int) -> Response:
        saved_views.delete(view_id=view_id, actor=person(request), at=clock.now())
        return Response(status=204)

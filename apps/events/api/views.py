"""The log by REST: `GET /events?after=<cursor>`, asked again with the cursor it answered."""

from datetime import datetime
from typing import Any, cast

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core.api.body import Out
from apps.core.api.paging import limit_of, refuse_unknown_parameters
from apps.core.errors import InvalidInput
from apps.events import selectors
from apps.events.models import Event

_LONGEST_KIND = 60


class EventOut(Out):
    cursor: str
    at: datetime
    kind: str
    subject_kind: str
    subject_id: int | None
    subject_name: str
    actor: str | None
    is_audit: bool
    reason: str
    source: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    data: dict[str, Any]


class EventsOut(Out):
    """`next` is there while more can be read at once; `cursor` always says where to go on."""

    items: list[EventOut]
    next: str | None
    cursor: str


def event_out(event: Event, *, shows_source: bool) -> dict[str, Any]:
    """The event as its readers see it; addresses are for those who audit."""
    return EventOut(
        cursor=str(selectors.Cursor(event.transaction_id, event.pk)),
        at=event.at,
        kind=event.kind,
        subject_kind=event.subject_kind,
        subject_id=event.subject_id,
        subject_name=event.subject_name,
        actor=event.actor_name or None,
        is_audit=event.is_audit,
        reason=event.reason,
        source=event.source if shows_source else None,
        before=event.before,
        after=event.after,
        data=event.data,
    ).model_dump()


class EventsView(APIView):
    @extend_schema(
        summary="Follow what happens",
        parameters=[
            OpenApiParameter(
                "after", str, description="A cursor from before, or `latest`. Absent: from the first event."
            ),
            OpenApiParameter("limit", int, description="1 to 1000; default 100."),
            OpenApiParameter(
                "kind", str, description="Only this kind; `job.*` stands for all that begin so."
            ),
            OpenApiParameter("subject_kind", str),
            OpenApiParameter("subject_id", int),
            OpenApiParameter("audit", bool, description="`true`: only what people changed."),
        ],
        responses=EventsOut,
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_parameters(request, "after", "kind", "subject_kind", "subject_id", "audit")
        limit = limit_of(request)
        after = request.query_params.get("after", "")
        if after == "latest":
            after = selectors.latest_cursor()
        batch = selectors.follow(_filtered(request), after, limit=limit)
        shows_source = _viewer(request).sees_private_events()
        return Response(
            {
                "items": [event_out(event, shows_source=shows_source) for event in batch.events],
                "next": batch.cursor if len(batch.events) == limit else None,
                "cursor": batch.cursor,
            }
        )


def _filtered(request: Request) -> QuerySet[Event]:
    events = selectors.visible_to(_viewer(request))
    for name in ("kind", "subject_kind"):
        if (word := request.query_params.get(name)) is not None:
            if len(word) > _LONGEST_KIND or "\x00" in word:
                raise InvalidInput.of(name, "is not a kind")
            lookup = {f"{name}__startswith": word[:-1]} if word.endswith(".*") else {name: word}
            events = events.filter(**lookup)
    if (number := request.query_params.get("subject_id")) is not None:
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            raise InvalidInput.of("subject_id", "must be a whole number", "wrong_type")
        events = events.filter(subject_id=int(number))
    if (word := request.query_params.get("audit")) is not None:
        if word not in ("true", "false"):
            raise InvalidInput.of("audit", "must be true or false", "wrong_type")
        events = events.filter(is_audit=word == "true")
    return events


def _viewer(request: Request) -> selectors.Viewer:
    # People are modelled above this room; the doors let in nobody who is not one.
    return cast(selectors.Viewer, request.user)

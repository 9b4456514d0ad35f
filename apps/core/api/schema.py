"""What every endpoint has in common, told once to the schema: who may call, pages, keys, and problem documents."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel

from apps.core.api.body import Out
from apps.core.api.paging import DEFAULT_LIMIT, MOST
from apps.core.api.problems import MEDIA_TYPE


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "apps.core.api.authentication.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token from POST /api/v1/tokens."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "apps.core.api.authentication.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}


class FaultOut(Out):
    """A field at fault: its path as a user would write it, such as `jobs[3].replicas`."""

    path: str
    code: str
    message: str


class ProblemOut(BaseModel):
    """RFC 9457. `code` is stable; `facts` hold the numbers behind a refusal."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FaultOut]
    facts: dict[str, Any] = {}


_PAGE = [
    OpenApiParameter("limit", int, description=f"1 to {MOST}; default {DEFAULT_LIMIT}."),
    OpenApiParameter("cursor", str, description="`next` of the page before."),
]
_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="For a day the same key acts once, however often it is sent, and then answers with what it made.",
)


class Schema(AutoSchema):
    """An endpoint whose answer has `items` and `next` is a list, whatever class its view is of."""

    def get_operation_id(self) -> str:
        if self._is_page():
            return "_".join([*(word.replace("-", "_") for word in self._tokenize_path()), "list"])
        return str(super().get_operation_id())

    def get_override_parameters(self) -> list[Any]:
        parameters = list(super().get_override_parameters())
        if self._is_page():
            parameters += [
                one for one in _PAGE if not (one.name == "cursor" and self.path.endswith("/events"))
            ]
        if self.method == "POST":
            parameters.append(_KEY)
        return parameters

    def _is_page(self) -> bool:
        answer: Any = self.get_response_serializers()
        is_model = isinstance(answer, type) and issubclass(answer, BaseModel)
        return self.method == "GET" and is_model and {"items", "next"} <= set(answer.model_fields)

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies = dict(super()._get_response_bodies(direction))
        model: Any = ProblemOut  # an extension reads pydantic models where serializers are looked for
        reference = self.resolve_serializer(model, direction).ref
        bodies["default"] = {
            "description": "A problem: 400, 401, 403, 404, 409 or 422.",
            "content": {MEDIA_TYPE: {"schema": reference}},
        }
        return bodies

"""Bodies as strict models: parsed once, refused field by field, and told to the schema."""

from typing import TypeVar

import drf_spectacular.contrib.pydantic  # noqa: F401  (registers itself: the schema then knows pydantic models)
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from rest_framework.request import Request

from apps.core.errors import InvalidInput
from apps.core.strict import Strict, faults_of

S = TypeVar("S", bound=Strict)


class Out(BaseModel):
    """What an endpoint answers: the schema is made of it, so it cannot say one thing and send another."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoBody(Strict):
    """No field at all."""


def parse_body(request: Request, model: type[S]) -> S:
    """The body as `model`; raises InvalidInput with a path for every fault."""
    try:
        return model.model_validate(request.data or {})
    except ValidationError as error:
        raise InvalidInput(faults_of(error)) from None


def page_schema(item: type[BaseModel]) -> type[BaseModel]:
    """The schema of a list of `item`, as paging.page() answers it."""
    name = f"{item.__name__.removesuffix('Out')}Page"
    return create_model(name, __base__=Out, items=(list[item], ...), next=(str | None, ...))  # type: ignore[valid-type]

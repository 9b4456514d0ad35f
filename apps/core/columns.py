"""Objects of models out of hand-written SQL, for where the ORM's making of a query costs more than its answer."""

import json
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Model

M = TypeVar("M", bound=Model)


class Columns(Generic[M]):
    """All columns of a model, where `alias` stands for its table.

    Attributes:
        sql: What to select.
        n: How many values of a row that makes.
    """

    def __init__(self, model: type[M], alias: str) -> None:
        fields = model._meta.concrete_fields
        self.sql = ", ".join(f'{alias}."{field.column}"' for field in fields)
        self.n = len(fields)
        self._model = model
        self._names = [field.attname for field in fields]
        self._readers = [
            (position, reader)
            for position, field in enumerate(fields)
            if (reader := getattr(field, "from_db_value", None)) is not None
        ]

    def read(self, values: Sequence[Any]) -> M:
        """The object that these columns of a row are."""
        found = list(values)
        for position, reader in self._readers:
            found[position] = reader(found[position], None, connection)
        return self._model.from_db(connection.alias, self._names, found)


def as_object(value: Any) -> Any:
    """What a JSON column holds. Django loads those itself and has the driver hand them over as text."""
    return json.loads(value) if isinstance(value, str | bytes) else value

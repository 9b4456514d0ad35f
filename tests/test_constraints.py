"""What the models say the database refuses, the database has."""

import pytest
from django.apps import apps
from django.db import connection, models


@pytest.mark.django_db
def test_every_constraint_and_index_of_the_models_is_in_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname FROM pg_constraint UNION SELECT indexname FROM pg_indexes")
        there = {name for (name,) in cursor.fetchall()}
    wanted = {
        rule.name: model.__name__
        for model in apps.get_models()
        for rule in (*model._meta.constraints, *model._meta.indexes)
        if isinstance(rule, models.BaseConstraint | models.Index)
    }

    assert {name: of for name, of in wanted.items() if name not in there} == {}

"""Every address of the API, with everybody, and its schema."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from openapi_spec_validator import validate

from apps.teams.models import FacilityRole
from apps.teams.tests.builders import client, person

METHODS = ("get", "post", "put", "patch", "delete")
STAND_INS = {"<int:": "1", "<str:": "nobody"}
BODIES: tuple[Any, ...] = ({}, {"name": "x"}, {"name": None, "version": "1", "entries": [[]], "jobs": [{}]})


def _routes(patterns: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route, pattern.callback


def _address(route: str) -> str:
    steps = [
        next((value for start, value in STAND_INS.items() if step.startswith(start)), step)
        for step in route.split("/")
    ]
    return "/" + "/".join(steps)


ROUTES = [
    (_address(route), view.cls)
    for route, view in _routes(get_resolver().url_patterns)
    if route.startswith("api/v1/")
]
DOORS = [
    pytest.param(address, method, id=f"{method} {address}")
    for address, view in ROUTES
    for method in METHODS
    if hasattr(view, method)
]


def test_there_are_doors():
    assert len(DOORS) > 50


@pytest.mark.django_db
@pytest.mark.parametrize(("address", "method"), DOORS)
def test_nobody_gets_in_without_signing_in(address, method):
    answer = getattr(client(), method)(address)

    assert answer.status_code == 401
    assert answer.json()["code"] in ("not_authenticated", "bad_token")


@pytest.mark.django_db
@pytest.mark.parametrize("role", FacilityRole.values)
def test_whatever_anybody_sends_is_answered(role):
    asker = client(person("max", role))
    for address, view in ROUTES:
        for method in METHODS:
            for body in BODIES if hasattr(view, method) else ():
                answer = getattr(asker, method)(address, None if method == "get" else body)
                assert answer.status_code < 500, (method, address, body)
                if answer.status_code >= 400:
                    assert answer["content-type"] == "application/problem+json"
                    assert answer.json()["code"]


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["", FacilityRole.AUDITOR])
def test_who_may_only_look_changes_nothing(role):
    asker = client(person("max", role))
    for address, view in ROUTES:
        for method in ("post", "put", "patch", "delete"):
            if hasattr(view, method) and "/tokens" not in address:
                answer = getattr(asker, method)(address, {"name": "x"})
                assert answer.status_code in (400, 403, 404), (method, address)


def test_the_schema_is_valid_and_made_without_a_warning():
    GENERATOR_STATS.reset()
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]

    validate(schema)
    assert not GENERATOR_STATS


def test_the_schema_can_be_written_to_a_file(tmp_path):
    call_command("spectacular", file=str(tmp_path / "schema.yml"), validate=True)

    assert "/api/v1/jobs" in (tmp_path / "schema.yml").read_text()

"""Errors as problem documents."""

import pytest
from django.db import OperationalError
from django.http import Http404
from rest_framework import exceptions, serializers

from apps.core.api.problems import answer_for
from apps.core.errors import DomainError, Forbidden, InvalidInput, OutsideError


class QuotaExceeded(DomainError):
    code, http_status = "quota_exceeded", 409


def test_a_refusal_tells_its_code_and_its_facts():
    answer = answer_for(
        QuotaExceeded("ml asked for 8 devices; its quota leaves 2.", team="ml", asked=8, free=2)
    )

    assert answer.status_code == 409
    assert answer.content_type == "application/problem+json"
    assert answer.data["code"] == "quota_exceeded"
    assert answer.data["facts"] == {"team": "ml", "asked": 8, "free": 2}


def test_faults_of_nested_input_are_told_by_path():
    error = serializers.ValidationError(
        {"jobs": {3: {"replicas": ["must be positive"]}}, "non_field_errors": ["no"]}
    )

    paths = [fault["path"] for fault in answer_for(error).data["errors"]]

    assert paths == ["jobs[3].replicas", ""]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidInput.of("limit", "must be positive"), 400, "invalid"),
        (exceptions.ParseError("x", code="bad_json"), 400, "bad_json"),
        (exceptions.NotAuthenticated(), 401, "not_authenticated"),
        (Forbidden("x"), 403, "forbidden"),
        (Http404(), 404, "not_found"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (exceptions.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (OutsideError("slurmctld does not answer"), 502, "outside_failed"),
        (OperationalError("gone"), 503, "database_away"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_trouble_has_its_status_and_code(error, status, code):
    answer = answer_for(error)

    assert (answer.status_code, answer.data["status"], answer.data["code"]) == (status, status, code)


def test_what_nobody_foresaw_stays_loud():
    assert answer_for(ZeroDivisionError()) is None

"""Errors as RFC 9457 problem documents, with a stable `code` and the fields at fault."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from apps.core.errors import DomainError, OutsideError

MEDIA_TYPE = "application/problem+json"
_log = logging.getLogger(__name__)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    errors: Sequence[Mapping[str, str]] = (),
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document itself."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": [dict(error) for error in errors],
    }
    if facts:
        document["facts"] = dict(facts)
    return document


def answer_for(error: Exception, context: Mapping[str, Any] | None = None) -> Response | None:
    """DRF's exception handler: a problem document for what is foreseen, None (a loud 500) for what is not."""
    document = _document_for(error)
    if document is None:
        return None
    headers = {}
    if isinstance(error, exceptions.APIException):
        if auth_header := getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = auth_header
        if (wait_s := getattr(error, "wait", None)) is not None:
            headers["Retry-After"] = str(int(wait_s) + 1)
    if document["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "2"
    set_rollback()
    return Response(document, status=document["status"], headers=headers, content_type=MEDIA_TYPE)


def _document_for(error: Exception) -> dict[str, Any] | None:
    match error:
        case DomainError():
            return problem(
                error.http_status, error.code, error.message, errors=error.errors, facts=error.facts
            )
        case exceptions.ValidationError():
            faults = _faults(error.get_full_details(), ())
            said = "; ".join(
                f"{fault['path']}: {fault['message']}" if fault["path"] else fault["message"]
                for fault in faults
            )
            return problem(400, "invalid", said, errors=faults)
        case exceptions.APIException():
            return problem(error.status_code, _code_of(error), str(error.detail))
        case Http404():
            return problem(404, "not_found", "There is no such thing, or none that you may see.")
        case PermissionDenied():
            return problem(403, "forbidden", "You may not do this.")
        case RequestDataTooBig():
            return problem(413, "too_large", "The body is too large.")
        case OutsideError():
            return problem(502, "outside_failed", error.message)
        case OperationalError():
            _log.warning("The database did not answer: %s", error)
            return problem(503, "database_away", "The database does not answer just now; try again.")
        case _:
            return None


def _code_of(error: exceptions.APIException) -> str:
    code = error.get_codes()
    return code if isinstance(code, str) else str(error.default_code)


def _faults(details: Any, path: tuple[str | int, ...]) -> list[dict[str, str]]:
    """DRF's nested details, flat: a path as a user would write it, `jobs[3].replicas.min`."""
    if isinstance(details, dict) and set(details) == {"message", "code"}:
        return [{"path": _written(path), "code": str(details["code"]), "message": str(details["message"])}]
    found: list[dict[str, str]] = []
    if isinstance(details, dict):
        for name, inner in details.items():
            found += _faults(inner, path if name == "non_field_errors" else (*path, name))
    elif isinstance(details, list):
        is_messages = all(isinstance(item, dict) and set(item) == {"message", "code"} for item in details)
        for index, inner in enumerate(details):
            found += _faults(inner, path if is_messages else (*path, index))
    return found


def _written(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else str(step))
    return text


def _is_for_machines(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")


def page_or_problem_404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """No such address."""
    if _is_for_machines(request):
        document = problem(404, "not_found", "There is no such address.")
        return JsonResponse(document, status=404, content_type=MEDIA_TYPE)
    return defaults.page_not_found(request, exception)


def page_or_problem_500(request: HttpRequest) -> HttpResponse:
    """Our own fault; the log has the rest."""
    if _is_for_machines(request):
        document = problem(500, "internal", "Something went wrong here; it has been logged.")
        return JsonResponse(document, status=500, content_type=MEDIA_TYPE)
    return defaults.server_error(request)

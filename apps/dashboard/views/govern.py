"""Scheduler passes and the audit trail: what was decided, and who changed what."""

import json
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.core import clock
from apps.dashboard import audit_file, words
from apps.dashboard.paging import slice_of
from apps.dashboard.views.common import PAGE_SIZE, page, part, viewer_of
from apps.events import selectors as events
from apps.inventory import selectors as inventory
from apps.scheduling import selectors as scheduling

_LONGEST_SUMMARY: Final = 20_000
_PHASES: Final = ("load", "plan", "check", "commit")


@page
@require_GET
def passes(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/pages/passes.html", _passes(request))


@page
@require_GET
def passes_part(request: HttpRequest) -> HttpResponse:
    latest = scheduling.last_pass()
    version = (latest.pk if latest else None,)
    return part(request, "dashboard/parts/passes.html", version, lambda: _passes(request))


def _passes(request: HttpRequest) -> dict[str, Any]:
    found = slice_of(scheduling.passes(), order=("-id",), after=request.GET.get("after", ""), size=PAGE_SIZE)
    rows = [
        (one, [one.phase_ms.get(phase) for phase in _PHASES], _total_ms(one.phase_ms)) for one in found.rows
    ]
    return {
        "found": found,
        "rows": rows,
        "phases": _PHASES,
        "clusters": list(inventory.cluster_rows()),
        "forecasts": scheduling.forecast_errors(clock.now()),
        "now": clock.now(),
    }


def _total_ms(phase_ms: Any) -> float | None:
    if not isinstance(phase_ms, dict):
        return None
    return float(sum(ms for ms in phase_ms.values() if isinstance(ms, int | float)))


@page
@require_GET
def one_pass(request: HttpRequest, pass_id: int) -> HttpResponse:
    found = scheduling.passes().filter(pk=pass_id).first()
    if found is None:
        raise Http404("no such pass")
    counted = found.summary.get("waiting", {}) if isinstance(found.summary, dict) else {}
    context = {
        "this": found,
        "phases": list(found.phase_ms.items()) if isinstance(found.phase_ms, dict) else [],
        "total_ms": _total_ms(found.phase_ms),
        "by_reason": [(words.reason(code), code, one) for code, one in counted.items()],
        "summary_text": json.dumps(found.summary, indent=2, ensure_ascii=False)[:_LONGEST_SUMMARY],
    }
    return render(request, "dashboard/pages/pass.html", context)


@page
@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    rows = events.audit_visible_to(viewer)
    chosen = {
        name: request.GET.get(name, "").strip()[:150] for name in ("who", "kind", "subject", "of", "id")
    }
    if chosen["who"]:
        rows = rows.filter(actor_name=chosen["who"])
    if chosen["kind"]:
        rows = rows.filter(kind__startswith=chosen["kind"])
    if chosen["subject"]:
        rows = rows.filter(subject_name__startswith=chosen["subject"])
    if chosen["of"] or chosen["id"]:
        is_id = chosen["id"].isascii() and chosen["id"].isdigit() and len(chosen["id"]) < 19
        about = {"subject_kind": chosen["of"], "subject_id": int(chosen["id"]) if is_id else -1}
        rows = rows.filter(**about)
    shows_source = viewer.sees_private_events()
    if request.GET.get("format") in audit_file.FORMATS:
        return audit_file.answer(rows, request.GET["format"], shows_source=shows_source)
    found = slice_of(rows, order=("-id",), after=request.GET.get("after", ""), size=PAGE_SIZE)
    context = {"found": found, "chosen": chosen, "is_filtered": any(chosen.values()), "kinds": _KINDS}
    return render(request, "dashboard/pages/audit.html", context)


_KINDS: Final = (
    ("job.", "Jobs"),
    ("node.", "Nodes"),
    ("quota.", "Quotas"),
    ("team.", "Teams"),
    ("reservation.", "Reservations"),
    ("policy.", "Policy"),
    ("power.", "Power"),
    ("demand_response.", "Grid events"),
    ("curtailment.", "Curtailment plans"),
    ("programme.", "Programmes"),
    ("token.", "Tokens"),
    ("user.", "People"),
)

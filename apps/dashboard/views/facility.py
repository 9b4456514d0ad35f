"""The facility model: upload or paste a file, see what it means, then change the facility as it says."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from apps.core import clock
from apps.core.errors import DomainError, Forbidden
from apps.core.uploads import takes_small_files
from apps.dashboard.views.common import page, viewer_of
from apps.inventory import selectors as inventory
from apps.scheduling.facility import changing
from apps.scheduling.facility.changing import Change, Checked
from apps.scheduling.facility.reading import MAX_TEXT
from apps.teams import policies
from apps.teams.models import User

MOST_SHOWN: Final = 200  # changes; the counts tell of all
_MOST_JOBS: Final = 50
SAMPLES: Final = ("yaml", "csv")
_TONES: Final = {"add": "ok", "change": "info", "remove": "bad", "drain": "warn", "keep": "neutral"}
_DONE: Final = {"add": "added", "change": "changed", "remove": "removed", "drain": "drained", "keep": "kept"}


@dataclass
class Draft:
    """What the page shows: the text, what it means, and what keeps it from being applied."""

    text: str = ""
    is_whole: bool = False
    reason: str = ""
    checked: Checked | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[tuple[Change, str, list[str], list[int]]]:
        """Each change with its tone, what differs in words, and the jobs that run there."""
        if self.checked is None:
            return []
        gravest = sorted(self.checked.changes, key=lambda one: _ORDER.index(one.action))
        return [
            (one, _TONES[one.action], _differences(one), self.checked.jobs_of(one)[:_MOST_JOBS])
            for one in gravest[:MOST_SHOWN]
        ]

    @property
    def n_hidden(self) -> int:
        return max(0, len(self.checked.changes) - MOST_SHOWN) if self.checked else 0

    @property
    def counts(self) -> list[tuple[str, list[tuple[str, int]]]]:
        if self.checked is None:
            return []
        return [
            (sort, [(_DONE[action], counts[action]) for action in _ORDER if action in counts])
            for sort, counts in self.checked.counts().items()
        ]


_ORDER: Final = ("remove", "drain", "change", "keep", "add")


@takes_small_files
@page
def facility(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if not policies.may_operate(viewer):
        raise PermissionDenied("Only operators and administrators see the facility model.")
    if request.method in ("GET", "HEAD"):
        if request.GET.get("format") == "yaml":
            return _export()
        sample = request.GET.get("sample", "")
        return _show(request, viewer, Draft(text=sample_of(sample) if sample in SAMPLES else ""))
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    draft = Draft(
        text=request.POST.get("text", "").replace("\r\n", "\n")[: MAX_TEXT + 1],
        is_whole=bool(request.POST.get("is_whole")),
        reason=request.POST.get("reason", "").strip()[:500],
    )
    uploaded = request.FILES.get("file")
    if uploaded is not None and uploaded.size:
        try:
            draft.text = uploaded.read().decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError:
            draft.errors.append(f"{uploaded.name} is no text in UTF-8.")
            return _show(request, viewer, draft, status=400)
    return _take(request, viewer, draft)


def sample_of(form: str) -> str:
    """The sample file of a form: `yaml` or `csv`."""
    return files("apps.scheduling.facility").joinpath(f"sample.{form}").read_text()


def _export() -> HttpResponse:
    answer = HttpResponse(changing.written(), content_type="application/yaml; charset=utf-8")
    answer.headers["Content-Disposition"] = 'attachment; filename="facility.yaml"'
    return answer


def _take(request: HttpRequest, viewer: User, draft: Draft) -> HttpResponse:
    status = 200
    if request.POST.get("action") == "apply":
        try:
            changing.apply(
                text=draft.text,
                is_whole=draft.is_whole,
                digest=request.POST.get("digest", "")[:64],
                actor=viewer,
                at=clock.now(),
                reason=draft.reason,
            )
        except Forbidden:
            raise
        except DomainError as refusal:
            # What is wrong is told below by checking it anew; what became outdated is said here.
            status = refusal.http_status
            if not refusal.errors:
                draft.errors.append(refusal.message)
        else:
            messages.success(request, "The facility is as the file says.")
            onward = "welcome" if request.POST.get("next") == "welcome" else "facility"
            return HttpResponseRedirect(reverse(f"dashboard:{onward}"))
    try:
        draft.checked = changing.check(text=draft.text, is_whole=draft.is_whole, actor=viewer, at=clock.now())
    except DomainError as refusal:
        draft.errors += [f"The file {error['message']}." for error in refusal.errors]
        return _show(request, viewer, draft, status=refusal.http_status)
    return _show(request, viewer, draft, status=status if not draft.checked.faults else 400)


def _show(request: HttpRequest, viewer: User, draft: Draft, status: int = 200) -> HttpResponse:
    context = {
        "draft": draft,
        "may_apply": policies.is_admin(viewer),
        "samples": SAMPLES,
        "next": "welcome" if "welcome" in (request.POST.get("next"), request.GET.get("next")) else "",
        "jobs": draft.checked.jobs[:_MOST_JOBS] if draft.checked else [],
        "there": inventory.n_of_each(),
    }
    return render(request, "dashboard/pages/facility.html", context, status=status)


def _differences(change: Change) -> list[str]:
    if change.action == "change":
        return [
            f"{name} {_said(change.before.get(name))} → {_said(value)}"
            for name, value in change.after.items()
        ]
    if change.action == "add":
        return [f"{name} {_said(value)}" for name, value in change.after.items()]
    return []


def _said(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)

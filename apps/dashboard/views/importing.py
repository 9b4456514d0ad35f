"""Import: paste a batch script or manifests, see the job they mean and what was ignored, then submit it."""

import hashlib
import json
import shlex
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from apps.core import clock
from apps.core.errors import DomainError
from apps.dashboard.views.common import page, viewer_of
from apps.jobs.imports.facts import MAX_TEXT
from apps.jobs.spec import JobRequest
from apps.scheduling import importing
from apps.scheduling.services import Preview
from apps.teams import selectors as teams
from apps.teams.models import User

_MOST_SHOWN: Final = 20  # jobs; the notes tell of all
_ORDER: Final = ("refused", "ignored", "understood")


@dataclass
class Draft:
    """What the page shows: the text, the jobs it means, and what keeps it from being submitted."""

    text: str = ""
    team: str = ""
    options: str = ""
    found: importing.Reading | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def jobs(self) -> list[tuple[dict[str, Any], list[tuple[str, str]], str, Preview | None]]:
        """Each with its figures in words, as JSON, and its preview."""
        if self.found is None:
            return []
        previews = [*self.found.previews, *[None] * len(self.found.imported.jobs)]
        return [
            (job, _figures(job), json.dumps(job, indent=2, ensure_ascii=False), preview)
            for job, preview in zip(self.found.imported.jobs[:_MOST_SHOWN], previews, strict=False)
        ]

    @property
    def n_hidden(self) -> int:
        return max(0, len(self.found.imported.jobs) - _MOST_SHOWN) if self.found else 0

    @property
    def notes(self) -> list[Any]:
        """The gravest first, and in the order of the text."""
        if self.found is None:
            return []
        return sorted(
            self.found.imported.notes, key=lambda note: (_ORDER.index(note.severity), note.line or 0)
        )


@page
def import_jobs(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if request.method in ("GET", "HEAD"):
        return _show(request, viewer, Draft())
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    draft = Draft(
        # Browsers send line ends as CR LF; one character above the bound, so that the reader says it is too long.
        text=request.POST.get("text", "").replace("\r\n", "\n")[: MAX_TEXT + 1],
        team=request.POST.get("team", "")[:200],
        options=request.POST.get("options", "")[:10_000],
    )
    return _take(request, viewer, draft)


def _take(request: HttpRequest, viewer: User, draft: Draft) -> HttpResponse:
    at = clock.now()
    try:
        options = shlex.split(draft.options)
    except ValueError as error:
        draft.errors.append(f"The options cannot be read: {error}")
        return _show(request, viewer, draft, status=400)
    try:
        draft.found = importing.read(text=draft.text, actor=viewer, at=at, team=draft.team, options=options)
        if request.POST.get("action") == "submit":
            key = _key_of(request.POST.get("key", "")[:64], draft.found.requests)
            made = importing.submit(draft.found, actor=viewer, at=at, idempotency_key=key)
            if len(made) == 1:
                messages.success(request, f"Job {made[0].pk} was submitted.")
                return HttpResponseRedirect(reverse("dashboard:job", args=[made[0].pk]))
            messages.success(request, f"{len(made)} jobs were submitted, {made[0].pk} to {made[-1].pk}.")
            return HttpResponseRedirect(f"{reverse('dashboard:queue')}?mine=1")
        importing.preview(draft.found, actor=viewer, at=at)
        draft.errors += [_said(error) for error in draft.found.errors]
    except DomainError as refusal:
        draft.errors += [_said(error) for error in refusal.errors] or [refusal.message]
    return _show(request, viewer, draft, status=400 if draft.errors else 200)


def _said(error: Any) -> str:
    return f"{error['path']}: {error['message']}" if error["path"] else str(error["message"])


def _key_of(form_key: str, wanted: list[JobRequest]) -> str | None:
    """The second click of the same button finds the jobs of the first; another text makes others."""
    if not form_key:
        return None
    asked = json.dumps([one.model_dump(mode="json", exclude_unset=True) for one in wanted], sort_keys=True)
    digest = hashlib.blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{form_key}:{digest}"


def _show(request: HttpRequest, viewer: User, draft: Draft, status: int = 200) -> HttpResponse:
    context = {
        "draft": draft,
        "teams": teams.teams_to_submit_for(viewer),
        "key": request.POST.get("key") or uuid.uuid4().hex,
    }
    return render(request, "dashboard/pages/import.html", context, status=status)


def _figures(job: dict[str, Any]) -> list[tuple[str, str]]:
    """What the job asks for, as pairs of a word and a value; each group for itself where there are several."""
    figures = [("Team", str(job.get("team", "not said")))]
    if "groups" in job:
        figures += [(f"Group {group['name']}", _asks(group)) for group in job["groups"]]
    else:
        figures.append(("Asks for", _asks(job)))
    if limit_s := job.get("time_limit"):
        figures.append(("Time limit", f"{limit_s / 3600:.4g} h"))
    if array := job.get("array"):
        most = f", at most {array['max_running']} at once" if "max_running" in array else ""
        figures.append(("Array", f"{array['size']} jobs{most}"))
    for name, label in _WORDS:
        if name in job and job[name] not in ("", None):
            figures.append((label, _word(job[name])))
    if "script" in job:
        n_lines = job["script"].rstrip("\n").count("\n") + 1
        figures.append(("Runs", f"the script, {n_lines} lines"))
    elif "command" in job:
        figures.append(("Runs", shlex.join(job["command"])))
    return figures


_WORDS: Final = (
    ("after", "After jobs"),
    ("not_before", "Not before"),
    ("deadline", "Deadline"),
    ("cluster", "Cluster"),
    ("reservation", "Reservation"),
    ("priority", "Priority"),
    ("held", "Held"),
    ("preemptible", "Preemptible"),
    ("grace_s", "Grace, s"),
    ("workdir", "Working folder"),
    ("image", "Image"),
    ("env", "Environment"),
)


def _word(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case dict() | list():
            return ", ".join(str(one) for one in value)
        case _:
            return str(value)


def _asks(needs: dict[str, Any]) -> str:
    """One group's needs in a line: `4 × 8 devices (H100), 96 cpus, 512 GiB, one leaf preferred`."""
    replicas = needs.get("replicas", 1)
    if isinstance(replicas, dict):
        replicas = f"{replicas['min']} to {replicas['max']}"
    devices = needs.get("devices", 0)
    said = f"{replicas} × {devices:g} device{'s' * (devices != 1)}"
    if types := needs.get("accelerators"):
        said += f" ({' or '.join(types)})"
    if needs.get("cpus"):
        said += f", {needs['cpus']:g} cpus"
    if needs.get("memory_gib"):
        said += f", {needs['memory_gib']:g} GiB"
    for rule, kind in needs.get("topology", {}).items():
        if rule in ("required", "preferred"):
            said += f", one {kind.replace('_', '-')} domain {rule}"
    return said

"""Submit: a form for the job specification, or the specification itself as JSON; a preview, then the real thing."""

import hashlib
import json
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from pydantic import ValidationError

from apps.core import clock
from apps.core.api.parsing import BadJSON, loads_strict
from apps.core.errors import DomainError
from apps.dashboard.views.common import page, viewer_of
from apps.inventory import selectors as inventory
from apps.jobs import selectors as jobs
from apps.jobs import services
from apps.jobs.spec import JobRequest, faults_of
from apps.scheduling import services as scheduling
from apps.teams import selectors as teams
from apps.teams import throttles
from apps.teams.models import User

_LONGEST: Final = 2_000_000
_NUMBERS: Final = {
    "replicas": int,
    "devices": float,
    "cpus": float,
    "memory_gib": float,
    "min_memory_gib": float,
    "power_w": float,
    "priority": int,
    "flexibility": int,
}
_TEXTS: Final = ("name", "team", "workdir", "cluster", "reservation")
_FIELDS: Final = (
    *_TEXTS,
    *_NUMBERS,
    "accelerators",
    "topology_kind",
    "topology_rule",
    "time_limit_h",
    "runtime_h",
    "command",
    "script",
    "env",
    "after",
    "not_before",
    "checkpoint_min",
    "held",
    "not_preemptible",
)
# A fault is shown at the field of the form that stands for its path.
_FIELD_OF_PATH: Final = {
    "time_limit": "time_limit_h",
    "runtime": "runtime_h",
    "topology": "topology_kind",
    "preemptible": "not_preemptible",
    "checkpoint": "checkpoint_min",
}


@dataclass
class Draft:
    """What the page shows: what was typed, what is wrong with it, and what would become of it."""

    values: dict[str, str] = field(default_factory=dict)
    text: str = ""
    errors: dict[str, list[str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    request: JobRequest | None = None
    preview: scheduling.Preview | None = None

    def fault(self, path: str, message: str) -> None:
        head = path.split(".")[0].split("[")[0]
        name = _FIELD_OF_PATH.get(head, head)
        if name in _FIELDS:
            self.errors.setdefault(name, []).append(f"{path} {message}")
        else:
            self.others.append(f"{path} {message}" if path else message)

    @property
    def is_faulty(self) -> bool:
        return bool(self.errors or self.others)


@page
def submit(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if request.method == "POST":
        return _take(request, viewer)
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "POST"])
    return _show(request, viewer, Draft(values=_first_values(request, viewer)))


def _take(request: HttpRequest, viewer: User) -> HttpResponse:
    action = request.POST.get("action", "preview")
    draft = Draft(
        values={name: request.POST.get(name, "")[:_LONGEST] for name in _FIELDS},
        text=request.POST.get("json", "")[:_LONGEST],
    )
    draft.values["accelerators"] = "\n".join(request.POST.getlist("accelerators"))
    if draft.text.strip():
        wanted = _from_text(draft)
        if wanted is not None and action == "fill":
            draft.values, draft.text = _to_values(wanted, draft), ""
            return _show(request, viewer, draft)
    else:
        wanted = _from_values(draft)
    if wanted is not None and not draft.is_faulty:
        _check(draft, wanted)
    if draft.request is not None and action == "submit":
        answer = _submit(request, viewer, draft)
        if answer is not None:
            return answer
    elif draft.request is not None:
        _preview(viewer, draft)
    return _show(request, viewer, draft, status=400 if draft.is_faulty else 200)


def _check(draft: Draft, wanted: Mapping[str, Any]) -> None:
    try:
        draft.request = JobRequest.model_validate(wanted)
    except ValidationError as error:
        for fault in faults_of(error):
            draft.fault(fault["path"], fault["message"])


def _submit(request: HttpRequest, viewer: User, draft: Draft) -> HttpResponse | None:
    assert draft.request is not None
    key = _key_of(request.POST.get("key", "")[:64], draft.request)
    try:
        job = services.submit_job(request=draft.request, actor=viewer, at=clock.now(), idempotency_key=key)
    except DomainError as refusal:
        _refuse(draft, refusal)
        return None
    messages.success(request, f"Job {job.pk} was submitted.")
    return HttpResponseRedirect(reverse("dashboard:job", args=[job.pk]))


def _key_of(form_key: str, wanted: JobRequest) -> str | None:
    """The key was made with the form, and what is asked for is mixed in.

    A second click of the same button finds the first one's job; who goes back, edits and submits gets another job.
    """
    if not form_key:
        return None
    asked = json.dumps(wanted.model_dump(mode="json", exclude_unset=True), sort_keys=True)
    digest = hashlib.blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{form_key}:{digest}"


def _preview(viewer: User, draft: Draft) -> None:
    assert draft.request is not None
    if wait_s := throttles.take_preview(viewer.pk, clock.now()):
        draft.others.append(f"That were many previews; the next is made in {throttles.in_words(wait_s)}.")
        return
    try:
        draft.preview = scheduling.preview(request=draft.request, actor=viewer, at=clock.now())
    except DomainError as refusal:
        _refuse(draft, refusal)


def _refuse(draft: Draft, refusal: DomainError) -> None:
    for error in refusal.errors:
        draft.fault(error["path"], error["message"])
    if not refusal.errors:
        draft.others.append(refusal.message)


def _show(request: HttpRequest, viewer: User, draft: Draft, status: int = 200) -> HttpResponse:
    context = {
        "draft": draft,
        "v": draft.values,
        "chosen_accelerators": draft.values.get("accelerators", "").split("\n"),
        "teams": teams.teams_to_submit_for(viewer),
        "kinds": inventory.accelerator_type_names(),
        "clusters": list(inventory.cluster_rows()),
        "key": request.POST.get("key") or uuid.uuid4().hex,
        "spec": _as_json(draft.request) if draft.request else "",
        "displaced": _displaced(viewer, draft),
    }
    return render(request, "dashboard/pages/submit.html", context, status=status)


def _displaced(viewer: User, draft: Draft) -> list[Any]:
    ids = draft.preview.displaces[:10] if draft.preview else ()
    return list(jobs.jobs_visible_to(viewer).filter(pk__in=ids).select_related("team")) if ids else []


def _as_json(wanted: JobRequest) -> str:
    return json.dumps(wanted.model_dump(mode="json", exclude_unset=True), indent=2, ensure_ascii=False)


def _first_values(request: HttpRequest, viewer: User) -> dict[str, str]:
    """An empty form, or one filled with an ended job's request (`?like=<id>`), as far as the viewer may see it."""
    values = {
        "replicas": "1",
        "devices": "1",
        "priority": "0",
        "flexibility": "0",
        "topology_rule": "required",
    }
    like = request.GET.get("like", "")
    if like.isascii() and like.isdigit() and len(like) <= 18:
        job = jobs.jobs_visible_to(viewer).filter(pk=int(like)).select_related("team__parent").first()
        if job is not None:
            spec = job.spec | jobs.private_part_for(viewer, job)
            if not jobs.may_see_values(viewer, job):
                spec.pop("env", None)  # what stands for hidden values is not to be submitted as values
            return _to_values(spec, Draft())
    return values


# Between the form and the specification --------------------------------------------------------------------------


def _from_text(draft: Draft) -> dict[str, Any] | None:
    try:
        wanted = loads_strict(draft.text)
    except BadJSON as error:
        draft.others.append(f"The JSON can not be read: {error}")
        return None
    if not isinstance(wanted, dict):
        draft.others.append("The JSON must be one job: an object in braces.")
        return None
    return wanted


def _from_values(draft: Draft) -> dict[str, Any]:
    """The specification that the form describes; what can not be read is a fault of its field."""
    values = draft.values
    wanted: dict[str, Any] = {name: values[name].strip() for name in _TEXTS if values[name].strip()}
    for name, kind in _NUMBERS.items():
        if values[name].strip():
            _put_number(draft, wanted, name, name, kind)
    for name, path in (("time_limit_h", "time_limit"), ("runtime_h", "runtime")):
        if values[name].strip():
            _put_number(draft, wanted, name, path, float, 3600)
    if values["checkpoint_min"].strip():
        interval: dict[str, Any] = {}
        _put_number(draft, interval, "checkpoint_min", "interval", float, 60)
        wanted["checkpoint"] = interval
    if chosen := [kind for kind in values["accelerators"].split("\n") if kind]:
        wanted["accelerators"] = chosen
    if values["topology_kind"]:
        rule = "preferred" if values["topology_rule"] == "preferred" else "required"
        wanted["topology"] = {rule: values["topology_kind"]}
    if values["not_before"].strip():
        wanted["not_before"] = _site_time(values["not_before"].strip())
    if values["held"]:
        wanted["held"] = True
    if values["not_preemptible"]:
        wanted["preemptible"] = False
    _put_command(draft, wanted)
    _put_after(draft, wanted)
    return wanted


def _put_number(
    draft: Draft,
    wanted: dict[str, Any],
    name: str,
    path: str,
    kind: type[int] | type[float],
    scale: float = 1,
) -> None:
    text = draft.values[name].strip().replace("\u202f", "").replace("\u00a0", "")
    try:
        number = kind(text)
    except ValueError:
        draft.errors.setdefault(name, []).append(
            "must be a whole number" if kind is int else "must be a number"
        )
        return
    if kind is float:
        scaled = number * scale
        wanted[path] = int(scaled) if scaled == scaled // 1 and abs(scaled) < 1e15 else scaled
    else:
        wanted[path] = number


def _site_time(text: str) -> str:
    """A time typed without a zone is meant in the site's; anything unreadable is left for the check to name."""
    from django.utils import timezone
    from django.utils.dateparse import parse_datetime

    try:
        then = parse_datetime(text)
    except ValueError:
        return text
    if then is None:
        return text
    return (timezone.make_aware(then) if timezone.is_naive(then) else then).isoformat()


def _put_command(draft: Draft, wanted: dict[str, Any]) -> None:
    if draft.values["command"].strip():
        try:
            wanted["command"] = shlex.split(draft.values["command"])
        except ValueError as error:
            draft.errors.setdefault("command", []).append(f"can not be read: {error}")
    if draft.values["script"].strip():
        # Browsers send line ends as CR LF; a shebang line that ends so names no program.
        wanted["script"] = draft.values["script"].replace("\r\n", "\n")
    env = {}
    for line in draft.values["env"].replace("\r\n", "\n").split("\n"):
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        if not sign:
            draft.errors.setdefault("env", []).append(f"has a line without =: {line[:40]}")
            continue
        env[name.strip()] = value
    if env:
        wanted["env"] = env


def _put_after(draft: Draft, wanted: dict[str, Any]) -> None:
    words = draft.values["after"].replace(",", " ").split()
    if not words:
        return
    if all(word.isascii() and word.isdigit() and len(word) <= 18 for word in words):
        wanted["after"] = [int(word) for word in words]
    else:
        draft.errors.setdefault("after", []).append("must be ids of jobs, such as 48213")


def _to_values(wanted: Mapping[str, Any], draft: Draft) -> dict[str, str]:
    """Fill the form from a specification; what the form has no field for is named and left out."""
    values = dict.fromkeys(_FIELDS, "")
    for name, value in wanted.items():
        match name, value:
            case ("topology", {"required": kind}):
                values["topology_kind"], values["topology_rule"] = str(kind), "required"
            case ("topology", {"preferred": kind}):
                values["topology_kind"], values["topology_rule"] = str(kind), "preferred"
            case ("time_limit", int() | float()):
                values["time_limit_h"] = f"{value / 3600:.6g}"
            case ("runtime", int() | float()):
                values["runtime_h"] = f"{value / 3600:.6g}"
            case ("checkpoint", {"interval": int() | float() as interval}):
                values["checkpoint_min"] = f"{interval / 60:.6g}"
            case ("command", list()):
                values["command"] = shlex.join(str(word) for word in value)
            case ("env", dict()):
                values["env"] = "\n".join(f"{key}={inner}" for key, inner in value.items())
            case ("accelerators", list()):
                values["accelerators"] = "\n".join(str(kind) for kind in value)
            case ("after", list()):
                values["after"] = " ".join(str(one) for one in value)
            case ("held", bool()):
                values["held"] = "on" if value else ""
            case ("preemptible", bool()):
                values["not_preemptible"] = "" if value else "on"
            case (str(), str() | int() | float()) if name in _FIELDS and not isinstance(value, bool):
                values[name] = f"{value:.10g}" if isinstance(value, float) else str(value)
            case _:
                draft.others.append(f"{name}: the form has no field for this; submit the JSON itself.")
    return values

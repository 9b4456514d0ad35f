"""What people bring from other systems: read into jobs, checked, previewed, and submitted as any other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from django.utils import timezone
from pydantic import ValidationError

from apps.core.errors import DomainError, InvalidInput
from apps.inventory import selectors as inventory
from apps.jobs import services as jobs
from apps.jobs.imports import kubernetes, sbatch
from apps.jobs.imports.facts import Imported, Note, Site, Unreadable
from apps.jobs.models import Job
from apps.jobs.spec import JobRequest, faults_of
from apps.scheduling import services
from apps.teams import selectors as teams
from apps.teams import throttles
from apps.teams.models import User

Format = Literal["sbatch", "kubernetes"]
MAX_PREVIEWS: Final = 3  # of one text; each is a pass of the planner


@dataclass
class Reading:
    """A text as it was understood: the jobs, what became of each option, and what keeps it from being submitted.

    Attributes:
        requests: The same jobs, checked; empty if any of them is at fault.
        errors: Each as {path, code, message}, `line` too where it is at one.
        previews: Of the first jobs; None where there is none.
    """

    imported: Imported
    requests: list[JobRequest] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    previews: list[services.Preview | None] = field(default_factory=list)

    @property
    def may_be_submitted(self) -> bool:
        return bool(self.requests) and not self.errors

    def notes_of(self, severity: str) -> list[Note]:
        return [note for note in self.imported.notes if note.severity == severity]


def read(
    *,
    text: str,
    actor: User,
    at: datetime,
    format: Format | None = None,
    team: str = "",
    options: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Reading:
    """The jobs that a text means for this person. Nothing is written.

    Args:
        format: Detected where it is not said.
        team: Whose jobs they are; else what the text says, else the only team that the actor submits for.
        options: For a batch script, as on sbatch's command line; they win over the script's.
        defaults: Fields of jobs that count where the text says nothing.

    Raises:
        InvalidInput: at `text`, if it cannot be read at all.
    """
    mine = tuple(one.name for one in teams.teams_to_submit_for(actor))
    site = Site(
        now=at,
        zone=timezone.get_current_timezone(),
        accelerators=tuple(inventory.accelerator_type_names()),
        clusters=tuple(inventory.cluster_rows().values_list("name", flat=True)),
        teams=mine,
    )
    format = format or ("sbatch" if text.lstrip("\ufeff").startswith("#!") else "kubernetes")
    if options and format != "sbatch":
        raise InvalidInput.of("options", "goes with a batch script alone")
    try:
        if format == "sbatch":
            imported = sbatch.read(text, site, options=options, team=team)
        elif not kubernetes.looks_like(text):
            wanted = "is neither a batch script, which begins with #!, nor a manifest, which has apiVersion and kind"
            raise Unreadable(wanted, line=1)
        else:
            imported = kubernetes.read(text, site, team=team)
    except Unreadable as no:
        where = f" (line {no.line})" if no.line else ""
        raise InvalidInput.of("text", f"{no}{where}", no.code) from None
    found = Reading(imported)
    only_team = mine[0] if len(mine) == 1 else ""
    for index, job in enumerate(imported.jobs):
        for name, value in (defaults or {}).items():
            job.setdefault(name, value)
        if only_team:
            job.setdefault("team", only_team)
        _check(found, index, job)
    found.errors += [_error_of(note) for note in imported.notes if note.severity == "refused"]
    if not imported.jobs and not found.errors:
        found.errors.append({"path": "text", "code": "no_job", "message": "means no job"})
    if found.errors:
        found.requests = []
    return found


def _check(found: Reading, index: int, job: Mapping[str, Any]) -> None:
    try:
        found.requests.append(JobRequest.model_validate(job))
    except ValidationError as error:
        for fault in faults_of(error, prefix=("jobs", index)):
            name = fault["path"].split(".", 1)[-1]
            note = next(
                (n for n in found.imported.notes if n.field and n.field == name and n.job == index), None
            )
            found.errors.append({**fault, **({"line": note.line} if note and note.line else {})})


def _error_of(note: Note) -> dict[str, Any]:
    message = f"{note.option}: {note.what}. {note.why}".rstrip(". ")
    return {
        "path": note.where,
        "code": "refused",
        "message": message,
        **({"line": note.line} if note.line else {}),
    }


def preview(found: Reading, *, actor: User, at: datetime) -> None:
    """Ask the planner about the first jobs. What the site refuses of a job becomes an error of the reading."""
    for index, request in enumerate(found.requests):
        if index >= MAX_PREVIEWS or throttles.take_preview(actor.pk, at):
            found.previews.append(None)
            continue
        try:
            found.previews.append(services.preview(request=request, actor=actor, at=at))
        except DomainError as refusal:
            found.previews.append(None)
            faults = refusal.errors or [{"path": "", "code": refusal.code, "message": refusal.message}]
            found.errors += [
                {**fault, "path": f"jobs[{index}].{fault['path']}".rstrip(".")} for fault in faults
            ]


def submit(found: Reading, *, actor: User, at: datetime, idempotency_key: str | None = None) -> list[Job]:
    """Put the jobs in the queue, all or none.

    Raises:
        InvalidInput: if anything of the text could not be meant.
        DomainError: as `jobs.services.submit_jobs` does.
    """
    if not found.may_be_submitted:
        raise InvalidInput(found.errors)
    return jobs.submit_jobs(
        requests=found.requests, actor=actor, at=at, idempotency_key=idempotency_key, path="jobs"
    )

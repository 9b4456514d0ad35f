"""What comes in and out when a batch script or manifests are imported."""

from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import Name, Strict, Text
from apps.jobs.imports.facts import MAX_TEXT
from apps.jobs.models import Job
from apps.jobs.spec import MAX_PRIORITY, Env, Seconds
from apps.scheduling.api.bodies import PreviewOut
from apps.scheduling.importing import Format, Reading


class DefaultsIn(Strict):
    """Fields of jobs that count where the text says nothing."""

    name: Name | None = None
    cluster: Name | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    preemptible: bool | None = None
    time_limit: Seconds | None = None
    workdir: Annotated[Text, Field(min_length=1, max_length=4096)] | None = None
    reservation: Name | None = None
    env: Env | None = None


class ImportIn(Strict):
    text: Annotated[Text, Field(min_length=1, max_length=MAX_TEXT)] = Field(
        description="A batch script with #SBATCH lines, or manifests as YAML, several parted by ---."
    )
    format: Format | None = Field(None, description="Without it: told from the text.")
    team: Name | None = Field(
        None,
        description="Whose jobs. Without it: the account, queue or namespace, if that is a team of yours.",
    )
    options: Annotated[list[Annotated[Text, Field(max_length=10_000)]], Field(max_length=500)] = Field(
        default_factory=list, description="As on sbatch's command line; they win over the script's."
    )
    defaults: DefaultsIn = DefaultsIn()
    submit: bool = Field(False, description="Submit the jobs, all or none, if nothing was refused.")
    preview: bool = Field(True, description="Ask the planner what would become of the first jobs.")


class NoteOut(Out):
    """What became of one option."""

    severity: Literal["understood", "ignored", "refused"] = Field(
        description="refused: the job would not be the one that was meant, so that nothing may be submitted."
    )
    job: int = Field(description="Which of `jobs`, from 0.")
    where: str = Field(description="A line of a script, or a path in a manifest.")
    line: int | None
    option: str
    what: str
    why: str
    field: str | None = Field(description="Of the job, where it became one.")


class ImportErrorOut(Out):
    path: str
    code: str
    message: str
    line: int | None


class ImportOut(Out):
    """The jobs that a text means. Nothing is submitted unless `submitted` says so."""

    format: Format
    jobs: list[dict[str, Any]] = Field(description="As POST /jobs takes them.")
    notes: list[NoteOut]
    errors: list[ImportErrorOut] = Field(description="What keeps the jobs from being submitted.")
    previews: list[PreviewOut | None] = Field(
        description="One for each of the first jobs; null where none was made."
    )
    can_submit: bool
    submitted: list[int] | None = Field(description="Ids of the jobs, of an array all of them.")


def import_out(found: Reading, submitted: list[Job] | None) -> dict[str, Any]:
    out = ImportOut(
        format=found.imported.format,
        jobs=found.imported.jobs,
        notes=[
            NoteOut(
                severity=note.severity,
                job=note.job,
                where=note.where,
                line=note.line,
                option=note.option,
                what=note.what,
                why=note.why,
                field=note.field or None,
            )
            for note in found.imported.notes
        ],
        errors=[ImportErrorOut(**{"line": None, **error}) for error in found.errors],
        previews=[PreviewOut.of(one) if one is not None else None for one in found.previews],
        can_submit=found.may_be_submitted,
        submitted=None if submitted is None else [job.pk for job in submitted],
    )
    return out.model_dump()

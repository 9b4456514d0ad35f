"""What goes in and comes out of facility files."""

from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.api.body import Out
from apps.core.strict import Reason, Strict, Text
from apps.scheduling.facility.changing import Change, Checked
from apps.scheduling.facility.reading import MAX_TEXT

MOST_CHANGES = 1000


class FacilityFileIn(Strict):
    text: Annotated[Text, Field(min_length=1, max_length=MAX_TEXT)]
    is_whole: bool = Field(
        False, description="What the file does not name is removed, or drained if it has run work."
    )


class FacilityApplyIn(FacilityFileIn):
    digest: Annotated[Text, Field(max_length=64)] = Field(description="As the check answered it.")
    reason: Reason = ""


class FacilityFaultOut(Out):
    line: int | None
    path: str
    message: str


class FacilityChangeOut(Out):
    action: Literal["add", "change", "remove", "drain", "keep"]
    sort: Literal["accelerator type", "cluster", "domain", "node"]
    name: str
    line: int | None
    before: dict[str, Any]
    after: dict[str, Any]
    why: str
    job_ids: list[int] = Field(description="Of the jobs that run on what it touches.")

    @classmethod
    def of(cls, change: Change, checked: Checked) -> "FacilityChangeOut":
        return cls(
            action=change.action,
            sort=change.sort,
            name=change.name,
            line=change.line,
            before=dict(change.before),
            after=dict(change.after),
            why=change.why,
            job_ids=checked.jobs_of(change),
        )


class FacilityCheckedOut(Out):
    format: str
    digest: str = Field(description="Of all changes; POST /facility/apply takes it.")
    may_be_applied: bool
    counts: dict[str, dict[str, int]] = Field(description="By sort and action.")
    changes: list[FacilityChangeOut] = Field(description=f"The first {MOST_CHANGES}.")
    faults: list[FacilityFaultOut]
    job_ids: list[int] = Field(description="Of all jobs that run on what is touched.")

    @classmethod
    def of(cls, checked: Checked) -> "FacilityCheckedOut":
        return cls(
            format=checked.format,
            digest=checked.digest,
            may_be_applied=checked.may_be_applied,
            counts=checked.counts(),
            changes=[FacilityChangeOut.of(one, checked) for one in checked.changes[:MOST_CHANGES]],
            faults=[
                FacilityFaultOut(line=one.line, path=one.path, message=one.message) for one in checked.faults
            ],
            job_ids=[job.pk for job in checked.jobs],
        )

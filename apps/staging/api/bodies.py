"""What goes in and comes out: data sets, stores, transfers."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from apps.core.api.body import Out
from apps.core.strict import AddressName, Gib, Misfit, Name, Names, Number, Strict
from apps.staging.models import Dataset, Store, Transfer
from apps.staging.movers.places import LONGEST_URI, BadAddress, parse

Rate = Annotated[Number, Field(gt=0, le=1e6)]
Uri = Annotated[str, Field(min_length=1, max_length=LONGEST_URI)]
Profile = Annotated[str, Field(max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
State = Literal["waiting", "moving", "delayed", "cancelling", "arrived", "failed", "cancelled"]


class DatasetIn(Strict):
    """`at` names the storage domains that hold a copy; `uris` where in their stores, if not right below by the name."""

    name: AddressName
    size_gib: Gib
    at: Names = Field(default_factory=list)
    uris: dict[Name, Uri] = Field(default_factory=dict)


class DatasetPatch(Strict):
    """`at` names all domains that hold a copy. Without `uris`, where they lie stays as it was."""

    at: Names
    uris: dict[Name, Uri] | None = None


class UnderWayOut(Out):
    transfer: int
    to: str
    expected_end_at: datetime


class DatasetOut(Out):
    name: str
    size_gib: float
    at: list[str]
    under_way: list[UnderWayOut]

    @classmethod
    def of(cls, row: Dataset) -> "DatasetOut":
        under_way: list[Transfer] = row.under_way  # type: ignore[attr-defined]  # by the selector's prefetch
        return cls(
            name=row.name,
            size_gib=row.size_gib,
            at=[copy.domain.name for copy in row.copies.all()],
            under_way=[
                UnderWayOut(
                    transfer=transfer.pk, to=transfer.to_domain.name, expected_end_at=transfer.expected_end_at
                )
                for transfer in under_way
            ],
        )


def _require_address(uri: str | None) -> None:
    if uri is not None:
        try:
            parse(uri)
        except BadAddress as error:
            raise Misfit(str(error), "base_uri") from None


class StoreIn(Strict):
    """What stands behind a storage domain.

    `base_uri` is a folder (`/data`, `file:///data`), one of another machine by ssh (`host:/data`), or objects
    (`s3://bucket/prefix`). Keys are never part of it: `profile` names them, as the service's environment has them.
    """

    domain: Name
    base_uri: Uri | None = None
    profile: Profile | None = None
    rate_gib_per_s: Rate
    most_gib_per_s: Rate | None = None
    is_simulated: bool = False

    @model_validator(mode="after")
    def _is_somewhere(self) -> "StoreIn":
        _require_address(self.base_uri)
        return self


class StorePatch(Strict):
    """Any of these; `profile` and `most_gib_per_s` may be null: none."""

    base_uri: Uri | None = None
    profile: Profile | None = None
    rate_gib_per_s: Rate | None = None
    most_gib_per_s: Rate | None = None
    is_simulated: bool | None = None

    @classmethod
    def _nullable(cls) -> frozenset[str]:
        return frozenset({"profile", "most_gib_per_s", "base_uri"})

    @model_validator(mode="after")
    def _is_somewhere(self) -> "StorePatch":
        _require_address(self.base_uri)
        return self

    def changes(self) -> dict[str, object]:
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {
            name: "" if value is None and name in ("profile", "base_uri") else value
            for name, value in given.items()
        }


class StoreOut(Out):
    """`base_uri` and `profile` are for those who look after the building; null for others."""

    domain: str
    base_uri: str | None
    profile: str | None
    rate_gib_per_s: float
    most_gib_per_s: float | None
    is_simulated: bool

    @classmethod
    def of(cls, row: Store, *, shows_address: bool) -> "StoreOut":
        return cls(
            domain=row.domain.name,
            base_uri=(row.base_uri or None) if shows_address else None,
            profile=(row.profile or None) if shows_address else None,
            rate_gib_per_s=row.rate_gib_per_s,
            most_gib_per_s=row.most_gib_per_s,
            is_simulated=row.is_simulated,
        )


class TransferIn(Strict):
    """Bring a data set to a storage domain."""

    dataset: Name
    to: Name


class TransferOut(Out):
    """One copy on its way, or one that was. `error` says why it was given up, `last_error` why an attempt failed.

    What `is_simulated` is not carried: it arrives when its time has come.
    """

    id: int
    dataset: str
    to: str
    source: str | None = Field(description="The domain it is fetched from.")
    for_job: int | None
    state: State
    is_simulated: bool
    bytes_done: int
    bytes_total: int | None
    bytes_per_s: float | None
    attempts: int
    next_attempt_at: datetime | None
    started_at: datetime
    expected_end_at: datetime
    ended_at: datetime | None
    error: str
    last_error: str
    source_uri: str | None
    target_uri: str | None

    @classmethod
    def of(cls, row: Transfer, *, shows_address: bool) -> "TransferOut":
        def said(text: str) -> str:
            # What a program said may name folders of the site.
            return text if shows_address or not text else "It failed; whoever operates the site can see why."

        return cls(
            id=row.pk,
            dataset=row.dataset.name,
            to=row.to_domain.name,
            source=None if row.from_domain is None else row.from_domain.name,
            for_job=row.for_job_id,
            state=state_of(row),
            is_simulated=row.is_simulated,
            bytes_done=row.bytes_done,
            bytes_total=row.bytes_total,
            bytes_per_s=row.bytes_per_s,
            attempts=row.attempts,
            next_attempt_at=row.next_attempt_at,
            started_at=row.started_at,
            expected_end_at=row.expected_end_at,
            ended_at=row.ended_at,
            error=said(row.error),
            last_error=said(row.last_error),
            source_uri=(row.source_uri or None) if shows_address else None,
            target_uri=(row.target_uri or None) if shows_address else None,
        )


def state_of(row: Transfer) -> State:
    """How a transfer stands, in a word."""
    if row.ended_at is not None:
        if not row.error:
            return "arrived"
        return "failed" if row.cancel_asked_at is None else "cancelled"
    if row.cancel_asked_at is not None:
        return "cancelling"
    if not row.mover:
        return "waiting"
    return "moving" if row.next_attempt_at is None else "delayed"

"""What goes in and comes out: connections to OpenADR servers. A client secret goes in and never comes out."""

from datetime import datetime
from typing import Any, Literal

from apps.core.api.body import Out
from apps.core.strict import Name, Reason, Strict, Version
from apps.power.openadr_models import VtnConnection, VtnEvent
from apps.power.vtn.services import Tried
from apps.power.vtn.spec import ConnectionSpec, ProtocolWord, Secret, UnitsWord


class ConnectionTryIn(ConnectionSpec):
    """`connection`: whose stored secret is used where none is sent."""

    connection: Name | None = None


class ConnectionIn(ConnectionSpec):
    client_secret: Secret
    reason: Reason = ""


class ConnectionPut(ConnectionSpec):
    version: Version
    reason: Reason = ""


class ConnectionPatch(Strict):
    is_enabled: bool
    reason: Reason = ""


class AcceptIn(Strict):
    reason: Reason = ""


class ResourceOut(Out):
    name: str
    domain: str


class ProgrammeMapOut(Out):
    external_id: str
    programme: str
    default_units: UnitsWord
    is_shed_negative: bool
    is_test: bool
    test_marker: str
    has_fallback: bool


class ConnectionOut(Out):
    """`listed_at`: of the last complete listing. `silent_since_at`: it has not been heard for too long."""

    name: str
    base_url: str
    protocol: ProtocolWord
    token_url: str
    client_id: str
    scope: str
    ven_name: str
    ven_id: str | None
    domain: str
    poll_s: int
    silent_after_s: int
    is_enabled: bool
    resources: list[ResourceOut]
    programmes: list[ProgrammeMapOut]
    polled_at: datetime | None
    listed_at: datetime | None
    silent_since_at: datetime | None
    last_error: str | None
    n_failures: int
    n_in_trouble: int
    notes: list[str]
    version: int

    @classmethod
    def of(cls, row: VtnConnection) -> "ConnectionOut":
        facts: Any = row  # annotated
        return cls(
            name=row.name,
            base_url=row.base_url,
            protocol=row.protocol,
            token_url=row.token_url,
            client_id=row.client_id,
            scope=row.scope,
            ven_name=row.ven_name,
            ven_id=row.ven_id or None,
            domain=row.domain.name,
            poll_s=row.poll_s,
            silent_after_s=row.silent_after_s,
            is_enabled=row.is_enabled,
            resources=[ResourceOut(name=one.name, domain=one.domain.name) for one in row.resources.all()],
            programmes=[
                ProgrammeMapOut(
                    external_id=one.external_id,
                    programme=one.programme.name,
                    default_units=one.default_units,
                    is_shed_negative=one.is_shed_negative,
                    is_test=one.is_test,
                    test_marker=one.test_marker,
                    has_fallback=one.has_fallback,
                )
                for one in row.programmes.all()
            ],
            polled_at=row.polled_at,
            listed_at=row.listed_at,
            silent_since_at=row.silent_since_at,
            last_error=row.last_error or None,
            n_failures=row.n_failures,
            n_in_trouble=facts.n_in_trouble,
            notes=row.notes,
            version=row.version,
        )


class OfferedOut(Out):
    external_id: str
    name: str


class TriedOut(Out):
    """`programmes`: those that the server shows us; `n_events`: of those named in the body, else of all."""

    is_good: bool
    error: str | None
    programmes: list[OfferedOut]
    n_events: int

    @classmethod
    def of(cls, tried: Tried) -> "TriedOut":
        return cls(
            is_good=tried.is_good,
            error=tried.error or None,
            programmes=[OfferedOut(external_id=one, name=name) for one, name in tried.programmes],
            n_events=tried.n_events,
        )


class VtnEventOut(Out):
    """`trouble`: why it, or its newest version, is not acted on; `is_acceptable`: an operator may say that it is meant.
    `events`: ours that it became."""

    external_id: str
    programme: str
    name: str
    modified_at: datetime | None
    revision: int
    is_listed: bool
    trouble: Literal["refused", "needs_person"] | None
    trouble_text: str | None
    is_acceptable: bool
    events: list[int]

    @classmethod
    def of(cls, row: VtnEvent) -> "VtnEventOut":
        return cls(
            external_id=row.external_id,
            programme=row.programme_external_id,
            name=row.name,
            modified_at=row.modified_at,
            revision=row.revision,
            is_listed=row.gone_at is None,
            trouble=row.trouble or None,
            trouble_text=row.trouble_text or None,
            is_acceptable=row.is_acceptable,
            events=sorted(one.event_id for one in row.announcements.all()),
        )

"""Connections to VTNs: made, changed, tried and removed by power administrators. An actor of None is the site itself.

A client secret goes in and never comes out: not by REST, not on a page, not in the log. It is sent only to the address
it was entered for, so whoever changes the address enters it again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.errors import DomainError, InvalidInput, NameTaken, NotFound, VersionConflict
from apps.events.services import record
from apps.inventory.models import POWER_KINDS, Domain
from apps.power.models import Programme
from apps.power.openadr.client import Settings, Ven, VtnError
from apps.power.openadr.signals import TargetKind
from apps.power.openadr.wire import Version, told
from apps.power.openadr_models import (
    LEAST_POLL_S,
    LONGEST_POLL_S,
    MOST_SILENT_S,
    VtnConnection,
    VtnEvent,
    VtnProgramme,
    VtnResource,
)
from apps.power.vtn import secrets, selectors
from apps.teams import policies
from apps.teams.models import User

TEST_BUDGET_S: Final = 20.0  # a person waits for it
MOST_PARTS: Final = 100
_PLAIN: Final = (
    "name",
    "base_url",
    "token_url",
    "protocol",
    "client_id",
    "scope",
    "ven_name",
    "poll_s",
    "silent_after_s",
    "is_enabled",
)
_OPEN: Final = frozenset({"openadr.event_accepted"})
_SENT_TO: Final = ("base_url", "token_url")  # where the secret goes
# What the client calls it, where that is something else.
_FIELDS: Final = {"vtn_url": "base_url", "resource_names": "resources", "program_ids": "programmes"}


class ConnectionInUse(DomainError):
    """Events that it announced are still open: nobody would be left to hear that they were cancelled."""

    code = "connection_in_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDraft:
    name: str
    domain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgrammeMap:
    """A programme of the VTN by its id, and one of ours by its name."""

    external_id: str
    programme: str
    default_units: str = "KW"
    is_shed_negative: bool = False
    is_test: bool = False
    test_marker: str = ""
    has_fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDraft:
    """A connection as asked for, all of it.

    Attributes:
        client_secret: None: the one that is stored.
        domain: What it speaks for: where events apply that name no resource.
    """

    name: str
    base_url: str
    client_id: str
    ven_name: str
    domain: str
    client_secret: str | None = None
    token_url: str = ""
    protocol: str = Version.V3_1_0
    scope: str = ""
    poll_s: int = 60
    silent_after_s: int = 300
    is_enabled: bool = False
    resources: Sequence[ResourceDraft] = ()
    programmes: Sequence[ProgrammeMap] = ()

    def __repr__(self) -> str:
        return f"ConnectionDraft({self.name!r})"


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of trying a connection.

    Attributes:
        programmes: (id, name) of those that the VTN shows us.
        n_events: Events that it lists now, of the programmes in the draft, else of all.
    """

    is_good: bool
    error: str = ""
    programmes: tuple[tuple[str, str], ...] = ()
    n_events: int = 0


@dataclass(frozen=True, slots=True)
class _Resolved:
    """Rows for the names of a draft."""

    domain: Domain
    resources: tuple[tuple[str, Domain], ...]
    programmes: tuple[tuple[ProgrammeMap, Programme], ...]


@transaction.atomic
def create_connection(
    *, draft: ConnectionDraft, actor: User | None, at: datetime, reason: str = ""
) -> VtnConnection:
    """Write down a connection. It is polled from the next beat on, if it is enabled.

    Raises:
        NameTaken, InvalidInput
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    resolved = _resolved(draft, stored=None)
    if VtnConnection.objects.filter(name=draft.name).exists():
        raise NameTaken("connection", draft.name)
    made = VtnConnection(created_at=at)
    _take(made, draft, resolved)
    made.save()
    _take_parts(made, resolved)
    _record("openadr.connection_created", made, actor, at, reason=reason, after=facts_of(made))
    return made


@transaction.atomic
def update_connection(
    *,
    connection_id: int,
    draft: ConnectionDraft,
    version: int,
    actor: User | None,
    at: datetime,
    reason: str = "",
) -> VtnConnection:
    """Replace a connection as a whole. A poll under way is void; what was announced goes on.

    Raises:
        VersionConflict, NameTaken, InvalidInput, NotFound
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    row = _locked(connection_id)
    before = facts_of(row)
    if version != row.version:
        raise VersionConflict(
            f"Connection {row}", read=version, version=row.version, yours=_draft_facts(draft), stored=before
        )
    resolved = _resolved(draft, stored=row)
    if VtnConnection.objects.filter(name=draft.name).exclude(pk=row.pk).exists():
        raise NameTaken("connection", draft.name)
    _take(row, draft, resolved)
    _take_parts(row, resolved)
    after = facts_of(row)
    if after == before and draft.client_secret is None:
        return row
    _renew(row)
    data = {"is_secret_new": draft.client_secret is not None}
    _record(
        "openadr.connection_changed", row, actor, at, reason=reason, before=before, after=after, data=data
    )
    return row


@transaction.atomic
def set_enabled(
    *,
    connection_id: int,
    is_enabled: bool,
    actor: User | None,
    at: datetime,
    reason: str = "",
) -> VtnConnection:
    """Switch listening on or off. What was announced stays until its end, or until a person cancels it."""
    if actor is not None:
        policies.require_may_set_power(actor)
    row = _locked(connection_id)
    if row.is_enabled == is_enabled:
        return row
    before = facts_of(row)
    row.is_enabled = is_enabled
    _renew(row)
    _record("openadr.connection_changed", row, actor, at, reason=reason, before=before, after=facts_of(row))
    return row


@transaction.atomic
def delete_connection(*, connection_id: int, actor: User | None, at: datetime, reason: str = "") -> None:
    """Forget a connection, its secret and its copies of listings. Our own events stay.

    Raises:
        ConnectionInUse: events of it are open. Cancel them first, or wait for their end.
    """
    if actor is not None:
        policies.require_may_set_power(actor)
    row = _locked(connection_id)
    n_open = row.announcements.filter(
        withdrawn_at=None,
        event__end_at__gt=at,
        event__cancelled_at=None,
        event__opted_out_at=None,
    ).count()
    if n_open:
        raise ConnectionInUse(f"{n_open} events that it announced are open.", n_open=n_open)
    before = facts_of(row)
    _record("openadr.connection_deleted", row, actor, at, reason=reason, before=before)
    row.delete()


@transaction.atomic
def accept_event(
    *, connection_id: int, external_id: str, actor: User, at: datetime, reason: str = ""
) -> VtnEvent:
    """Say that what an event asks is meant, though it is beyond what is taken unseen; for this version alone.

    It is announced with the next poll, which is due at once.
    """
    policies.require_may_operate(actor)
    connection = _locked(connection_id)
    named = connection.vtn_events.none() if "\x00" in external_id else connection.vtn_events.all()
    row = named.filter(external_id=external_id).first()
    if row is None:
        raise NotFound(f"There is no event {external_id!r} of this connection.")
    if not row.is_acceptable:
        raise DomainError(
            f"{external_id} cannot be accepted: {row.trouble_text or 'nothing is wrong with it.'}"
        )
    row.accepted_fingerprint = row.trouble_fingerprint
    row.save(update_fields=["accepted_fingerprint"])
    VtnConnection.objects.filter(pk=connection.pk).update(next_poll_at=None)
    _record(
        "openadr.event_accepted",
        connection,
        actor,
        at,
        reason=reason,
        data={"event": external_id, "was": row.trouble_text},
    )
    return row


def try_connection(
    *, draft: ConnectionDraft, stored: VtnConnection | None, actor: User, at: datetime
) -> Tried:
    """Ask a VTN as this draft says, and change nothing, here or there. Not in a transaction: it may take a while.

    Args:
        stored: The connection whose secret it is, where the draft brings none.
    """
    policies.require_may_set_power(actor)
    _resolved(draft, stored=stored)
    try:
        secret = draft.client_secret or secrets.unseal(stored.sealed_secret if stored else "")
    except secrets.Unreadable:
        raise InvalidInput.of("client_secret", "must be entered again: it cannot be read any more") from None
    tried = _tried(_settings(draft, secret))
    record(
        "openadr.connection_tried",
        subject_kind="openadr_connection",
        subject_id=None if stored is None else stored.pk,
        subject_name=draft.name,
        actor=actor,
        at=at,
        is_audit=True,
        is_private=True,
        data={"base_url": draft.base_url, "is_good": tried.is_good, "error": tried.error},
    )
    return tried


def _tried(settings: Settings) -> Tried:
    try:
        with Ven(settings, budget_s=TEST_BUDGET_S) as ven:
            programs = ven.programs()
            events = ven.listing().events
    except VtnError as error:
        return Tried(False, error.message)
    found = tuple(
        (told(one["id"])[:128], told(str(one.get("programName") or ""))[:120])
        for one in programs
        if isinstance(one, dict) and isinstance(one.get("id"), str)
    )
    return Tried(True, programmes=found[:MOST_PARTS], n_events=len(events))


def facts_of(row: VtnConnection) -> dict[str, Any]:
    """What is kept of a connection, as the log has it: without its secret."""
    return {
        **{name: getattr(row, name) for name in _PLAIN},
        "domain": row.domain.name,
        "resources": [
            {"name": one.name, "domain": one.domain.name} for one in row.resources.select_related("domain")
        ],
        "programmes": [
            {
                "external_id": one.external_id,
                "programme": one.programme.name,
                **{name: getattr(one, name) for name in _MAPPED},
            }
            for one in row.programmes.select_related("programme")
        ],
    }


_MAPPED: Final = ("default_units", "is_shed_negative", "is_test", "test_marker", "has_fallback")


def _draft_facts(draft: ConnectionDraft) -> dict[str, Any]:
    return {name: value for name, value in asdict(draft).items() if name != "client_secret"}


def _locked(connection_id: int) -> VtnConnection:
    row = (
        VtnConnection.objects.select_for_update(no_key=True, of=("self",))
        .select_related("domain")
        .filter(pk=connection_id)
        .first()
    )
    if row is None:
        raise NotFound("There is no such connection.")
    return row


def _renew(row: VtnConnection) -> None:
    """Another version: polls under way are void, and the next one is due at once."""
    row.version += 1
    row.next_poll_at, row.n_failures, row.last_error = None, 0, ""
    row.save()


def _take(row: VtnConnection, draft: ConnectionDraft, resolved: _Resolved) -> None:
    for name in _PLAIN:
        setattr(row, name, getattr(draft, name))
    row.domain = resolved.domain
    if draft.client_secret is not None:
        row.sealed_secret = secrets.seal(draft.client_secret)


def _take_parts(row: VtnConnection, resolved: _Resolved) -> None:
    row.resources.all().delete()
    VtnResource.objects.bulk_create(
        VtnResource(connection=row, name=name, domain=domain) for name, domain in resolved.resources
    )
    row.programmes.all().delete()
    VtnProgramme.objects.bulk_create(
        VtnProgramme(
            connection=row,
            external_id=one.external_id,
            programme=programme,
            **{name: getattr(one, name) for name in _MAPPED},
        )
        for one, programme in resolved.programmes
    )


def _resolved(draft: ConnectionDraft, *, stored: VtnConnection | None) -> _Resolved:
    """Rows for a draft; raises InvalidInput with every fault found."""
    faults: list[dict[str, str]] = []

    def fault(path: str, message: str, code: str = "invalid") -> None:
        faults.append({"path": path, "code": code, "message": message})

    _check_secret(draft, stored, fault)
    _check_times(draft, fault)
    try:
        _settings(draft, draft.client_secret or "stored")
    except InvalidInput as error:
        for one in error.errors:
            fault(_FIELDS.get(one["path"], one["path"]), one["message"], one["code"])
    wanted = {draft.domain, *(one.domain for one in draft.resources)}
    domains = {one.name: one for one in Domain.objects.filter(name__in=wanted, kind__in=POWER_KINDS)}
    if draft.domain not in domains:
        fault("domain", "names no power domain that is here", "unknown")
    resources = _resources(draft, domains, fault)
    programmes = _programmes(draft, fault)
    if faults:
        raise InvalidInput(faults)
    return _Resolved(domains[draft.domain], resources, programmes)


def _check_secret(draft: ConnectionDraft, stored: VtnConnection | None, fault: Any) -> None:
    if draft.client_secret is not None:
        if not draft.client_secret:
            fault("client_secret", "must not be empty", "too_short")
    elif stored is None:
        fault("client_secret", "is required", "missing")
    elif any(getattr(draft, name) != getattr(stored, name) for name in _SENT_TO):
        # Or whoever may change an address could have the secret sent to a place of their own.
        fault("client_secret", "must be entered again where an address changes", "missing")


def _check_times(draft: ConnectionDraft, fault: Any) -> None:
    if not LEAST_POLL_S <= draft.poll_s <= LONGEST_POLL_S:
        fault("poll_s", f"must be {LEAST_POLL_S} to {LONGEST_POLL_S}", "out_of_range")
    elif not draft.poll_s <= draft.silent_after_s <= MOST_SILENT_S:
        fault("silent_after_s", f"must be at least poll_s and at most {MOST_SILENT_S}", "out_of_range")


def _resources(
    draft: ConnectionDraft, domains: dict[str, Domain], fault: Any
) -> tuple[tuple[str, Domain], ...]:
    found: list[tuple[str, Domain]] = []
    above = {one: _line_of(one) for one in domains.values()}
    for index, one in enumerate(draft.resources):
        domain = domains.get(one.domain)
        if any(one.name == name for name, _ in found):
            fault(f"resources[{index}].name", "is named twice", "duplicate")
        if domain is None:
            fault(f"resources[{index}].domain", "names no power domain that is here", "unknown")
            continue
        if draft.domain in domains and domains[draft.domain].pk not in above[domain]:
            fault(f"resources[{index}].domain", f"must be {draft.domain} or lie below it")
        elif any(domain.pk in above[other] or other.pk in above[domain] for _, other in found):
            # A sum over both would count it twice.
            fault(f"resources[{index}].domain", "must not lie in the domain of another resource")
        found.append((one.name, domain))
    return tuple(found)


def _line_of(domain: Domain) -> set[int]:
    """Ids of a domain and of all above it. Trees are shallow: a query a level."""
    line, parent_id = {domain.pk}, domain.parent_id
    while parent_id is not None:
        line.add(parent_id)
        parent_id = Domain.objects.values_list("parent_id", flat=True).get(pk=parent_id)
    return line


def _programmes(draft: ConnectionDraft, fault: Any) -> tuple[tuple[ProgrammeMap, Programme], ...]:
    rows = {
        one.name: one for one in Programme.objects.filter(name__in=[p.programme for p in draft.programmes])
    }
    found: list[tuple[ProgrammeMap, Programme]] = []
    for index, one in enumerate(draft.programmes):
        programme = rows.get(one.programme)
        if any(one.external_id == other.external_id for other, _ in found):
            fault(f"programmes[{index}].external_id", "is named twice", "duplicate")
        if one.default_units not in ("", "W", "KW", "MW"):
            fault(f"programmes[{index}].default_units", "must be W, KW, MW or empty", "not_a_choice")
        if programme is None:
            fault(f"programmes[{index}].programme", "names nothing that is here", "unknown")
            continue
        if one.has_fallback and programme.target_kind != TargetKind.LIMIT_TO:
            fault(
                f"programmes[{index}].has_fallback", f"needs a programme of limits, which {programme} is not"
            )
        found.append((one, programme))
    return tuple(found)


def _settings(draft: ConnectionDraft, secret: str) -> Settings:
    return Settings(
        vtn_url=draft.base_url,
        token_url=draft.token_url,
        client_id=draft.client_id,
        client_secret=secret,
        scope=draft.scope,
        ven_name=draft.ven_name,
        resource_names=tuple(one.name for one in draft.resources),
        program_ids=tuple(one.external_id for one in draft.programmes),
        version=Version(draft.protocol) if draft.protocol in tuple(Version) else draft.protocol,  # type: ignore[arg-type]
        timeout_s=selectors.TIMEOUT_S,
    )


def _record(kind: str, row: VtnConnection, actor: User | None, at: datetime, **more: Any) -> None:
    record(
        kind,
        subject_kind="openadr_connection",
        subject_id=row.pk,
        subject_name=row.name,
        actor=actor,
        at=at,
        is_audit=True,
        is_private=kind not in _OPEN,  # they hold addresses
        **more,
    )

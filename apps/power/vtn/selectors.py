"""Connections to VTNs as they are kept, and what a VEN must know to use one."""

from collections.abc import Sequence
from typing import Final

from django.db.models import Case, Count, Prefetch, Q, QuerySet, When
from pydantic import TypeAdapter, ValidationError

from apps.core.errors import NotFound
from apps.power import response_selectors
from apps.power.models import DemandResponseEvent
from apps.power.openadr.client import Settings
from apps.power.openadr.signals import Signal
from apps.power.openadr.wire import Version
from apps.power.openadr_models import Trouble, VtnConnection, VtnEvent, VtnProgramme
from apps.power.vtn import secrets

TIMEOUT_S: Final = 10.0  # of one request
_signal: Final = TypeAdapter(Signal)


def connections() -> QuerySet[VtnConnection]:
    """All connections with what belongs to them, and how many of their events are in trouble."""
    in_trouble = Q(vtn_events__gone_at=None) & ~Q(vtn_events__trouble=Trouble.NONE)
    return (
        VtnConnection.objects.select_related("domain")
        .prefetch_related(
            "resources__domain",
            Prefetch("programmes", VtnProgramme.objects.select_related("programme")),
        )
        .annotate(n_in_trouble=Count("vtn_events", filter=in_trouble))
    )


def connection_named(name: str) -> VtnConnection:
    found = None if "\x00" in name else connections().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no connection {name!r}.")
    return found


def vtn_events(connection: VtnConnection) -> QuerySet[VtnEvent]:
    """Events that it listed, any order, with what became of them here."""
    return connection.vtn_events.prefetch_related("announcements__event__domain")


def latest_events() -> QuerySet[VtnEvent]:
    """Events of all connections: first those in trouble, then those that are listed, the latest first."""
    is_troubled = Case(When(~Q(trouble=Trouble.NONE) & Q(gone_at=None), then=0), default=1)
    is_gone = Case(When(gone_at=None, then=0), default=1)
    return VtnEvent.objects.select_related("connection").order_by(
        is_troubled, is_gone, "-first_listed_at", "-pk"
    )


def announced_by(vtn_event_ids: Sequence[int]) -> QuerySet[DemandResponseEvent]:
    """Events of ours that these became, the earliest first."""
    return (
        response_selectors.events()
        .filter(vtn_announcement__vtn_event__in=vtn_event_ids)
        .select_related("vtn_announcement")
        .order_by("start_at", "pk")
    )


def settings_of(connection: VtnConnection) -> Settings:
    """What a VEN must know, the secret included: never show or log it.

    Raises:
        secrets.Unreadable: the site's key is another one now.
        InvalidInput: what was stored is not allowed any more.
    """
    return Settings(
        vtn_url=connection.base_url,
        token_url=connection.token_url,
        client_id=connection.client_id,
        client_secret=secrets.unseal(connection.sealed_secret),
        scope=connection.scope,
        ven_name=connection.ven_name,
        resource_names=tuple(one.name for one in connection.resources.all()),
        program_ids=tuple(one.external_id for one in connection.programmes.all()),
        version=Version(connection.protocol),
        timeout_s=TIMEOUT_S,
    )


def signal_of(row: VtnEvent) -> Signal | None:
    """The last good version of an event; None: there is none, or it was kept by another release."""
    try:
        return None if row.signal is None else _signal.validate_python(row.signal)
    except ValidationError:
        return None


def kept_form(signal: Signal) -> object:
    """A signal as JSON, exact to the microsecond and the last bit."""
    return _signal.dump_python(signal, mode="json")


def known_signals(rows: Sequence[VtnEvent]) -> dict[str, Signal]:
    """By external id, of what is listed."""
    found = ((row.external_id, signal_of(row)) for row in rows if row.gone_at is None)
    return {name: signal for name, signal in found if signal is not None}

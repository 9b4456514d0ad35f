"""What a VTN's event becomes here: announced, changed or withdrawn events of ours.

A signal may ask for several things one after the other; each stretch of equal demand is one event. A stretch is known
again by its time, so that a version that moves it a little changes the event in place. Everything can be repeated:
what is asked already is not asked again.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from apps.power.models import DemandResponseEvent, EventSource, Programme
from apps.power.openadr.signals import Signal, TargetKind
from apps.power.openadr_models import VtnAnnouncement, VtnConnection, VtnProgramme
from apps.power.response_services import EventDraft

HORIZON: Final = timedelta(days=31)  # what begins later is announced later
MOST_STRETCHES: Final = 100  # of one event, the next ones
_LONGEST_PIECE: Final = timedelta(days=7)
_LOWEST_PRIORITY: Final = 1000
DWELL: Final = timedelta(seconds=30)  # a VTN that wavers changes an event no more often


@dataclass(frozen=True, slots=True)
class Ask:
    """A stretch of time in which one thing is asked."""

    start: datetime
    end: datetime
    value: float
    is_emergency: bool


@dataclass(frozen=True, slots=True)
class Tell:
    """An event to announce, or to change where there is an announcement already."""

    draft: EventDraft
    asked: str
    known: VtnAnnouncement | None


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be done so that our events say what a signal asks."""

    tell: tuple[Tell, ...] = ()
    withdraw: tuple[VtnAnnouncement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tell or self.withdraw)


def asks_of(signal: Signal, programme: Programme, *, since: datetime, at: datetime) -> list[Ask]:
    """What a signal asks from now on, in stretches of equal demand, the next ones only.

    Args:
        since: When it was first heard of: what has no end is cut into pieces from there on.
    """
    if signal.is_void or signal.target_kind is None:
        return []
    merged: list[tuple[datetime, datetime | None, float, bool]] = []
    for interval in sorted(signal.intervals, key=lambda one: one.start):
        value = interval.value
        if value is None or (value <= 0 and signal.target_kind is not TargetKind.LIMIT_TO):
            continue
        last = merged[-1] if merged else None
        if last is not None and last[1:] == (interval.start, value, interval.is_emergency):
            merged[-1] = (last[0], interval.end, value, interval.is_emergency)
        else:
            merged.append((interval.start, interval.end, value, interval.is_emergency))
    asks: list[Ask] = []
    for start, end, value, is_emergency in merged:
        pieces = [(start, end)] if end is not None else _pieces(max(start, since), programme, at)
        asks += [Ask(begin, over, value, is_emergency) for begin, over in pieces]
    ahead = [ask for ask in asks if ask.end > at and ask.start < at + HORIZON]
    return ahead[:MOST_STRETCHES]


def _pieces(start: datetime, programme: Programme, at: datetime) -> list[tuple[datetime, datetime]]:
    """Of what holds until further notice, the piece that holds now and the one after it."""
    length = min(timedelta(seconds=programme.max_duration_s), _LONGEST_PIECE)
    n_past = max(0, (at - start) // length)
    return [(start + n * length, start + (n + 1) * length) for n in (n_past, n_past + 1)]


def steps_for(
    signal: Signal,
    *,
    rule: VtnProgramme,
    connection: VtnConnection,
    domain: str,
    known: Iterable[VtnAnnouncement],
    since: datetime,
    revision: int,
    at: datetime,
) -> Steps:
    """What to announce, change and withdraw.

    Args:
        known: Announcements of this event until now, with their events.
    """
    asks = asks_of(signal, rule.programme, since=since, at=at)
    open_ones = [one for one in known if one.withdrawn_at is None and one.event.end_at > at]
    # Another programme or domain by now is another event: one cannot be made the other.
    place = (rule.programme_id, domain)
    mine = [one for one in open_ones if (one.event.programme_id, one.event.domain.name) == place]
    pairs, left = _matched(asks, mine)
    left += [one for one in open_ones if one not in mine]
    told = []
    for ask, one in pairs:
        if one is not None and _is_given_up(one.event):
            continue  # a person said no, and that stands
        draft = _draft(ask, signal, rule=rule, domain=domain, known=one, at=at)
        asked = digest_of(draft)
        if one is None or (one.asked != asked and one.told_at <= at - DWELL):
            told.append(Tell(replace(draft, external_version=revision), asked, one))
    withdrawn = [one for one in left if not _is_given_up(one.event)]
    return Steps(tuple(told), tuple(withdrawn))


def _matched(
    asks: Sequence[Ask], known: Sequence[VtnAnnouncement]
) -> tuple[list[tuple[Ask, VtnAnnouncement | None]], list[VtnAnnouncement]]:
    """Each ask with the announcement it goes on from: by common time, else in order; and those without an ask."""
    left = sorted(known, key=lambda one: (one.event.start_at, one.pk))
    found: dict[int, VtnAnnouncement] = {}
    for rule in (_overlap, _fits):
        for index, ask in enumerate(asks):
            if index not in found and (one := next((k for k in left if rule(ask, k.event)), None)):
                found[index] = one
                left.remove(one)
    return [(ask, found.get(index)) for index, ask in enumerate(asks)], left


def _overlap(ask: Ask, event: DemandResponseEvent) -> bool:
    return _fits(ask, event) and ask.start < event.end_at and event.start_at < ask.end


def _fits(ask: Ask, event: DemandResponseEvent) -> bool:
    # Who opted out of an offer has not opted out of an order.
    return not (_is_given_up(event) and ask.is_emergency and not event.is_emergency)


def _is_given_up(event: DemandResponseEvent) -> bool:
    return event.cancelled_at is not None or event.opted_out_at is not None


def _draft(
    ask: Ask,
    signal: Signal,
    *,
    rule: VtnProgramme,
    domain: str,
    known: VtnAnnouncement | None,
    at: datetime,
) -> EventDraft:
    """The event as we announce it. It binds from when it was heard at the earliest."""
    start = max(ask.start, at if known is None else known.heard_at)
    if known is not None and known.event.start_at <= at and start <= at:
        start = known.event.start_at  # what has begun has begun
    assert signal.target_kind is not None, "a stretch asks for something"
    priority = _LOWEST_PRIORITY if signal.priority is None else min(signal.priority, _LOWEST_PRIORITY)
    return EventDraft(
        domain=domain,
        programme=rule.programme.name,
        source=EventSource.OPENADR,
        target_kind=str(signal.target_kind),
        value=ask.value,
        start_at=start,
        end_at=ask.end,
        priority=priority,
        is_test=signal.is_test or rule.is_test,
        is_emergency=ask.is_emergency,
        reason=(signal.name or signal.advisory)[:500],
    )


def digest_of(draft: EventDraft) -> str:
    """The same for the same demand, whatever its version."""
    facts: dict[str, Any] = {**asdict(draft), "external_id": "", "external_version": 0}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def domain_for(signal: Signal, connection: VtnConnection) -> str | None:
    """The domain that an event is meant for; None: several at once, and the protocol does not say which share each."""
    resources = {one.name: one.domain.name for one in connection.resources.all()}
    meant = {value for kind, value in signal.targets if kind.upper() in ("", "RESOURCE_NAME")}
    named = {resources[name] for name in meant if name in resources}
    if not named:
        return connection.domain.name
    return next(iter(named)) if len(named) == 1 else None


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

"""Listen to VTNs: list, compare, take in. May run twice, late, or after a crash.

A complete listing is compared with the copy of the last one. What follows for one event is one transaction: its copy,
our events and the log change together, so a run that is killed leaves nothing half told, and the next one does the
rest. Nothing is concluded from a listing that failed: what is known goes on to hold.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from apps.core.errors import DomainError, InvalidInput
from apps.core.locks import session_lock
from apps.events.services import record
from apps.power import response_services
from apps.power.errors import EventClosed, NoReference, TargetBelowFloor
from apps.power.models import DemandResponseEvent, EventSource
from apps.power.openadr.client import Settings, Ven, VtnBusy, VtnError
from apps.power.openadr.diff import Changes, compare, standing
from apps.power.openadr.mapping import read_events, units_of_programs
from apps.power.openadr.signals import Reading, Rules, Signal, TargetKind, concerns
from apps.power.openadr.wire import told
from apps.power.openadr_models import Trouble, VtnAnnouncement, VtnConnection, VtnEvent, VtnProgramme
from apps.power.response_services import EventDraft
from apps.power.selectors import steady_limit_w
from apps.power.vtn import intake, outbox, secrets, selectors
from apps.power.vtn.intake import Steps, Tell

BUDGET_S: Final = 45.0  # of all questions to one VTN in one poll: others wait for their turn
LONGEST_PAUSE: Final = timedelta(minutes=5)
MOST_TOLD: Final = 200  # events of one VTN in an hour; more is no signal but a fault
MOST_AUDITED: Final = 20  # troubles of one poll that are written down one by one
KEPT_FOR: Final = timedelta(days=90)  # of what is gone: an older version of it is a replay
_ABSURD: Final = 100.0  # times the limit of the site: a slip of the keyboard
_LARGEST_W: Final = 1e9
_SLACK: Final = timedelta(seconds=1)  # beats are not exact
_LOCK: Final = 0x0ADC
_log = logging.getLogger(__name__)


class Superseded(Exception):
    """The connection was changed, switched off or polled by somebody else meanwhile: what was found is void."""


def poll_due(*, at: datetime) -> int:
    """Poll every connection whose time has come; how many. Trouble with one does not keep the others waiting."""
    with session_lock(_LOCK) as is_ours:
        if not is_ours:
            return 0
        due = [one.pk for one in VtnConnection.objects.filter(is_enabled=True) if _is_due(one, at)]
        for connection_id in due:
            try:
                poll(connection_id, at=at)
            except Superseded:
                _log.info("Connection %s was changed while it was polled", connection_id)
            except Exception:
                _log.exception("Connection %s could not be polled", connection_id)
                _note_crash(connection_id, at)
        return len(due)


def _is_due(connection: VtnConnection, at: datetime) -> bool:
    return connection.next_poll_at is None or connection.next_poll_at <= at + _SLACK


def poll(connection_id: int, *, at: datetime) -> None:
    """One poll of one connection."""
    run = _Run.begin(connection_id, at)
    try:
        settings = selectors.settings_of(run.connection)
    except secrets.Unreadable:
        run.failed("The client secret cannot be read with the keys of this site: enter it again.")
        return
    except InvalidInput as fault:
        run.failed(str(fault))
        return
    with Ven(settings, budget_s=BUDGET_S) as ven:
        try:
            programs, events = ven.programs(), _listed(ven, settings)
        except VtnError as error:
            wait_s = error.retry_after_s if isinstance(error, VtnBusy) else None
            run.failed(error.message, wait_s=wait_s)
            return
        changed = run.listed(programs, events)
        outbox.send(ven, run.connection, rows=run.rows, changed=changed, at=at)


def _listed(ven: Ven, settings: Settings) -> Sequence[object]:
    """Every event of the programmes that mean something here; without any, none is asked for."""
    return ven.listing().events if settings.program_ids else ()


@dataclass(frozen=True, slots=True, order=True)
class _Snag:
    """Why an event, or its newest version, is not acted on. Kind empty: it is.

    Attributes:
        is_acceptable: A person may say that it is meant, and then it is.
    """

    kind: str = Trouble.NONE
    text: str = ""
    is_acceptable: bool = False


_NO_SNAG: Final = _Snag()


@dataclass
class _Run:
    """One poll, with what was known when it began."""

    connection: VtnConnection
    rows: dict[str, VtnEvent]
    announcements: dict[int, list[VtnAnnouncement]]  # those that are open, by event; 0: fallbacks
    at: datetime
    n_audited: int = 0
    n_told: int = 0

    @classmethod
    def begin(cls, connection_id: int, at: datetime) -> "_Run":
        with transaction.atomic():
            row = VtnConnection.objects.select_for_update(no_key=True).filter(pk=connection_id).first()
            if row is None or not row.is_enabled:
                raise Superseded
            row.fence += 1
            row.polled_at = at
            # Should this run be killed, the next one comes in its usual time.
            row.next_poll_at = at + timedelta(seconds=row.poll_s)
            row.save(update_fields=["fence", "polled_at", "next_poll_at"])
        connection = selectors.connections().get(pk=connection_id)
        rows = {row.external_id: row for row in connection.vtn_events.all()}
        announcements: dict[int, list[VtnAnnouncement]] = defaultdict(list)
        told_before = connection.announcements.select_related("event__domain")
        for one in told_before.filter(withdrawn_at=None, event__end_at__gt=at):
            announcements[one.vtn_event_id or 0].append(one)
        n_told = connection.announcements.filter(heard_at__gt=at - timedelta(hours=1)).count()
        return cls(connection, rows, announcements, at, n_told=n_told)

    # A listing that came ------------------------------------------------------------------------------------------

    def listed(self, programs: Sequence[object], events: Sequence[object]) -> set[str]:
        """Take in a complete listing; the ids of events of which there is news."""
        known = selectors.known_signals(tuple(self.rows.values()))
        mapped = {one.external_id: one for one in self.connection.programmes.all()}
        reading = read_events(
            events,
            now=self.at,
            program_ids=mapped,
            rules=self._rules(mapped.values()),
            units=units_of_programs(programs),
            known=known,
            versions={
                name: row.modified_at for name, row in self.rows.items() if row.modified_at is not None
            },
        )
        reading = self._ours(reading)
        # Without a programme nothing was asked for, and nothing can be missing.
        changes = compare(known, reading) if mapped else Changes(kept=tuple(known.values()))
        versions = {signal.external_id: signal.modified_at for signal in reading.signals}
        news = (*changes.new, *(after for _, after in changes.changed))
        for signal in (*news, *changes.unchanged):
            self._take(signal, known.get(signal.external_id))
        for signal in changes.kept:
            self._go_on(signal)
        for signal in changes.cancelled:
            self._leave(signal, versions.get(signal.external_id), "The VTN took the event back.")
        for signal in changes.finished:
            self._leave(signal, None, "")
        self._note_refused(reading)
        self._withdraw_fallback()
        self._heard(programs, reading, changes)
        return {signal.external_id for signal in news}

    def _rules(self, mapped: Iterable[VtnProgramme]) -> dict[str, Rules]:
        limit = getattr(self.connection.domain, "power_limit", None)
        limit_w = None if limit is None else steady_limit_w(limit)
        return {
            one.external_id: Rules(
                relative_sign=-1 if one.is_shed_negative else 1,
                default_units=one.default_units,
                largest_w=_LARGEST_W if not limit_w else min(_LARGEST_W, _ABSURD * limit_w),
                is_test=one.is_test,
                test_marker=one.test_marker,
            )
            for one in mapped
        }

    def _ours(self, reading: Reading) -> Reading:
        """Without what is meant for others: to us it is not there."""
        names = [one.name for one in self.connection.resources.all()]
        mine = tuple(
            signal
            for signal in reading.signals
            if concerns(signal, ven_name=self.connection.ven_name, resource_names=names)
        )
        return replace(reading, signals=mine)

    def _take(self, signal: Signal, before: Signal | None) -> None:
        """Bring our events in line with one signal, and its copy with it, in one transaction."""
        row = self.rows.get(signal.external_id)
        is_new_version = (
            row is None
            or row.gone_at is not None
            or before is None
            or before.fingerprint != signal.fingerprint
        )
        with transaction.atomic():
            if is_new_version:
                self._hold()
                row = self._keep(row, signal)
            assert row is not None, "what is not new is kept"
            trouble = self._reconcile(row, signal, is_held=is_new_version)
            self._note_trouble(row, signal.fingerprint, trouble)
        self.rows[signal.external_id] = row

    def _go_on(self, signal: Signal) -> None:
        """Of what nothing good was heard this time: it goes on, and so does what is wrong with it."""
        row = self.rows[signal.external_id]
        with transaction.atomic():
            self._reconcile(row, signal, is_held=False)

    def _keep(self, row: VtnEvent | None, signal: Signal) -> VtnEvent:
        row = row or VtnEvent(
            connection=self.connection, external_id=signal.external_id, first_listed_at=self.at
        )
        row.programme_external_id, row.name = signal.program_id, signal.name[:500]
        row.modified_at = max(row.modified_at or signal.modified_at, signal.modified_at)
        row.signal, row.gone_at = selectors.kept_form(signal), None
        row.revision += 1
        row.save()
        return row

    def _reconcile(self, row: VtnEvent, signal: Signal, *, is_held: bool) -> _Snag:
        """Announce, change and withdraw what this signal makes necessary; the trouble there is with it."""
        rule = next(
            (one for one in self.connection.programmes.all() if one.external_id == signal.program_id), None
        )
        if rule is None:
            return _NO_SNAG  # what is in force for it goes on
        domain = intake.domain_for(signal, self.connection)
        if domain is None:
            return _Snag(
                Trouble.NEEDS_PERSON,
                "It is meant for several resources at once, and does not say which share each.",
            )
        if signal.needs_person and row.accepted_fingerprint != signal.fingerprint:
            said = "What it asks is beyond what the programme may ask."
            return _Snag(Trouble.NEEDS_PERSON, said, is_acceptable=True)
        if signal.is_emergency and signal.target_kind is None:
            said = f"An emergency without a target. {signal.advisory}".strip()
            return _Snag(Trouble.NEEDS_PERSON, said)
        steps = intake.steps_for(
            signal,
            rule=rule,
            connection=self.connection,
            domain=domain,
            known=self.announcements[row.pk],
            since=row.first_listed_at,
            revision=row.revision,
            at=self.at,
        )
        if not steps:
            # What could not be told before would be among the steps.
            return _NO_SNAG
        if not is_held:
            self._hold()
        return self._carry_out(row, signal, steps)

    def _carry_out(self, row: VtnEvent, signal: Signal, steps: Steps) -> _Snag:
        trouble = _NO_SNAG
        for tell in steps.tell:
            trouble = max(trouble, self._tell(row, signal, tell))
        for one in steps.withdraw:
            self._withdraw(one, "The VTN asks for it no more.")
        return trouble

    def _tell(self, row: VtnEvent, signal: Signal, tell: Tell) -> _Snag:
        """Announce one stretch, or change it; a refusal leaves what is in force as it is."""
        if tell.known is None and self.n_told >= MOST_TOLD:
            said = f"The VTN asked for more than {MOST_TOLD} events in an hour."
            return _Snag(Trouble.NEEDS_PERSON, said)
        key = tell.known.key if tell.known else _key(self.connection, row)
        is_accepted = row.accepted_fingerprint == signal.fingerprint
        try:
            with transaction.atomic():
                event = response_services.announce_event(
                    draft=replace(tell.draft, external_id=key),
                    actor=None,
                    at=self.at,
                    is_below_floor_confirmed=is_accepted,
                )
        except EventClosed:
            return _NO_SNAG  # a person was quicker
        except (TargetBelowFloor, NoReference) as refusal:
            is_bound = isinstance(refusal, TargetBelowFloor)
            return _Snag(Trouble.NEEDS_PERSON, refusal.message, is_acceptable=is_bound)
        except DomainError as refusal:
            return _Snag(Trouble.REFUSED, refusal.message)
        self._note_told(row, tell, key, event)
        return _NO_SNAG

    def _note_told(self, row: VtnEvent | None, tell: Tell, key: str, event: DemandResponseEvent) -> None:
        one = tell.known
        if one is None:
            one = VtnAnnouncement(
                connection=self.connection, vtn_event=row, key=key, event=event, heard_at=self.at
            )
            self.announcements[row.pk if row else 0].append(one)
            self.n_told += 1
        one.event, one.asked, one.told_at = event, tell.asked, self.at
        one.save()

    def _withdraw(self, one: VtnAnnouncement, reason: str) -> None:
        try:
            with transaction.atomic():
                one.event = response_services.cancel_event(
                    event_id=one.event_id, actor=None, at=self.at, reason=reason
                )
        except EventClosed:
            pass  # it is over, or a person gave it up before
        one.withdrawn_at = self.at
        one.save(update_fields=["withdrawn_at"])

    def _leave(self, signal: Signal, seen_at: datetime | None, reason: str) -> None:
        """An event that is listed no more, or asks for nothing any more."""
        row = self.rows[signal.external_id]
        with transaction.atomic():
            self._hold()
            for one in self.announcements[row.pk]:
                if reason and one.withdrawn_at is None and one.event.end_at > self.at:
                    self._withdraw(one, reason)
            row.gone_at = self.at
            row.modified_at = max(filter(None, (row.modified_at, seen_at)))
            row.trouble, row.trouble_text, row.is_acceptable = Trouble.NONE, "", False
            row.save()

    # Trouble --------------------------------------------------------------------------------------------------------

    def _note_refused(self, reading: Reading) -> None:
        """Events that were not taken. An older version of them, if there is one, goes on."""
        said: dict[str, str] = {}
        for fault in reading.refused:
            if fault.external_id:
                # Its place in the listing changes with the events before it.
                place = fault.path.partition(".")[2]
                said.setdefault(fault.external_id, f"{place} {fault.message}".strip())
        for name, text in said.items():
            with transaction.atomic():
                self._hold()
                row = self.rows.get(name)
                if row is None:
                    row = VtnEvent.objects.create(
                        connection=self.connection, external_id=name, first_listed_at=self.at
                    )
                    self.rows[name] = row
                self._note_trouble(row, intake.text_digest(text), _Snag(Trouble.REFUSED, text))
        listed = {signal.external_id for signal in reading.signals} | said.keys()
        never = [row.pk for name, row in self.rows.items() if row.signal is None and name not in listed]
        if never:
            VtnEvent.objects.filter(pk__in=never).delete()

    def _note_trouble(self, row: VtnEvent, fingerprint: str, snag: _Snag) -> None:
        """Write trouble down; in the log once for each version of the event."""
        kind, text = snag.kind, told(snag.text)[:500]
        is_news = bool(kind) and (row.trouble, row.trouble_fingerprint) != (kind, fingerprint)
        if (row.trouble, row.trouble_text) == (kind, text) and not is_news:
            return
        row.trouble, row.trouble_text, row.is_acceptable = kind, text, snag.is_acceptable
        row.trouble_fingerprint = fingerprint if kind else ""
        row.save(update_fields=["trouble", "trouble_text", "is_acceptable", "trouble_fingerprint"])
        if is_news and self.n_audited < MOST_AUDITED:
            self.n_audited += 1
            self._record(
                "openadr.event_refused" if kind == Trouble.REFUSED else "openadr.event_needs_person",
                reason=text,
                event=row.external_id,
                has_older_version=row.signal is not None,
            )

    # The connection -------------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Lock the connection; raises Superseded where this run is no longer the one that counts."""
        row = VtnConnection.objects.select_for_update(no_key=True).filter(pk=self.connection.pk).first()
        ours = self.connection
        if row is None or not row.is_enabled or (row.fence, row.version) != (ours.fence, ours.version):
            raise Superseded

    @transaction.atomic
    def _heard(self, programs: Sequence[object], reading: Reading, changes: Changes) -> None:
        """The last step of a good poll: only now is the listing the last good one."""
        self._hold()
        connection = self.connection
        was_silent_since = connection.silent_since_at
        connection.listed_at, connection.silent_since_at = self.at, None
        connection.last_error, connection.n_failures = "", 0
        connection.notes = _notes(programs, reading, connection)
        connection.save(update_fields=["listed_at", "silent_since_at", "last_error", "n_failures", "notes"])
        connection.vtn_events.filter(gone_at__lt=self.at - KEPT_FOR).delete()
        if was_silent_since is not None:
            self._record("openadr.vtn_heard_again", silent_since=was_silent_since.isoformat())
        if changes.new or changes.changed or changes.cancelled:
            _log.info(
                "%s: %d new, %d changed, %d cancelled",
                connection,
                len(changes.new),
                len(changes.changed),
                len(changes.cancelled),
            )

    def failed(self, message: str, *, wait_s: float | None = None) -> None:
        """No complete listing: what is known goes on to hold, and what was to begin meanwhile begins."""
        connection = self.connection
        with transaction.atomic():
            self._hold()
            connection.last_error, connection.n_failures = told(message)[:500], connection.n_failures + 1
            pause = timedelta(seconds=connection.poll_s) * 2 ** min(connection.n_failures - 1, 10)
            pause = max(min(pause, LONGEST_PAUSE), timedelta(seconds=connection.poll_s))
            connection.next_poll_at = self.at + max(pause, timedelta(seconds=wait_s or 0))
            since = connection.listed_at or connection.created_at
            is_silent = self.at - since > timedelta(seconds=connection.silent_after_s)
            is_news = is_silent and connection.silent_since_at is None
            if is_news:
                connection.silent_since_at = since
            connection.save(update_fields=["last_error", "n_failures", "next_poll_at", "silent_since_at"])
            if is_news:
                self._record("openadr.vtn_silent", reason=connection.last_error, since=since.isoformat())
        known = selectors.known_signals(tuple(self.rows.values()))
        for signal in known.values():
            self._go_on(signal)
        if connection.silent_since_at is not None:
            self._fall_back(tuple(known.values()))

    # The fallback ---------------------------------------------------------------------------------------------------

    def _fall_back(self, signals: Sequence[Signal]) -> None:
        """While the VTN is silent and no limit is left, the subscribed import capacity is the limit."""
        for rule in self.connection.programmes.all():
            if not rule.has_fallback:
                continue
            mine = [signal for signal in signals if signal.program_id == rule.external_id]
            now = standing(
                mine,
                listed_at=self.connection.listed_at,
                now=self.at,
                silent_after_s=self.connection.silent_after_s,
            )
            holds = any(
                one.withdrawn_at is None
                and one.event.programme_id == rule.programme_id
                and one.event.end_at > self.at
                for one in self.announcements[0]
            )
            if now.is_fallback and now.limit_w is not None and not holds:
                self._tell_fallback(rule, now.limit_w)

    def _tell_fallback(self, rule: VtnProgramme, limit_w: float) -> None:
        lasts_s = min(rule.programme.max_duration_s, 86_400)
        draft = EventDraft(
            domain=self.connection.domain.name,
            programme=rule.programme.name,
            source=EventSource.OPENADR,
            target_kind=str(TargetKind.LIMIT_TO),
            value=limit_w,
            start_at=self.at,
            end_at=self.at + timedelta(seconds=max(lasts_s, rule.programme.min_duration_s)),
            is_test=rule.is_test,
            external_version=1,
            reason="The VTN is silent: the subscribed import capacity is the limit.",
        )
        key = _key(self.connection, None)
        with transaction.atomic():
            self._hold()
            try:
                with transaction.atomic():
                    event = response_services.announce_event(
                        draft=replace(draft, external_id=key), actor=None, at=self.at
                    )
            except DomainError as refusal:
                _log.warning("%s: the fallback limit was refused: %s", self.connection, refusal.message)
                return
            self._note_told(None, Tell(draft, intake.digest_of(draft), None), key, event)

    def _withdraw_fallback(self) -> None:
        open_ones = [
            one for one in self.announcements[0] if one.withdrawn_at is None and one.event.end_at > self.at
        ]
        if open_ones:
            with transaction.atomic():
                self._hold()
                for one in open_ones:
                    self._withdraw(one, "The VTN is heard again.")

    def _record(self, kind: str, *, reason: str = "", **data: Any) -> None:
        record(
            kind,
            subject_kind="openadr_connection",
            subject_id=self.connection.pk,
            subject_name=self.connection.name,
            at=self.at,
            is_audit=True,
            reason=reason,
            data=data,
        )


def _key(connection: VtnConnection, row: VtnEvent | None) -> str:
    """External id of the next event of ours: no other of this VTN had it or will have it."""
    n_before = connection.announcements.filter(vtn_event=row).count()
    what = "fallback" if row is None else f"{row.external_id}.{row.pk}"
    return f"vtn{connection.pk}.{what}.{n_before}"


def _notes(programs: Sequence[object], reading: Reading, connection: VtnConnection) -> list[str]:
    """What a person should know of a listing that was good as a whole."""
    mapped = {one.external_id for one in connection.programmes.all()}
    offered: Collection[str] = {
        str(one["id"]) for one in programs if isinstance(one, dict) and isinstance(one.get("id"), str)
    }
    notes = [f"The VTN does not show the programme {name}." for name in sorted(mapped - set(offered))]
    notes += [f"{fault.path} {fault.message}" for fault in reading.refused if not fault.external_id]
    notes += [f"{fault.external_id}: {fault.path} {fault.message}" for fault in reading.notices]
    return [told(note)[:300] for note in notes[:20]]


@transaction.atomic
def _note_crash(connection_id: int, at: datetime) -> None:
    row = VtnConnection.objects.select_for_update(no_key=True).filter(pk=connection_id).first()
    if row is not None:
        row.last_error = "The poll failed here; the log of the service says why."
        row.n_failures += 1
        row.save(update_fields=["last_error", "n_failures"])

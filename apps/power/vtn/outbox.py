"""What we tell a VTN: who we are, and the reports that its events ask for.

Trouble here never keeps an event from being heard: it is noted, and tried again later.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from apps.inventory.models import Domain
from apps.power.models import (
    ActionState,
    CurtailmentAction,
    DemandResponseEvent,
    PlanState,
    PowerReading,
    ReadingQuality,
)
from apps.power.openadr.client import Ven, VtnError, VtnRefused
from apps.power.openadr.reports import (
    Due,
    OperatingState,
    Quality,
    ReportType,
    Sample,
    Window,
    build_report,
    due_reports,
    operating_state,
)
from apps.power.openadr.wire import Version
from apps.power.openadr_models import VtnConnection, VtnEvent, VtnReport
from apps.power.response import Phase
from apps.power.response_selectors import events, loads_of, phase_of_event
from apps.power.vtn import selectors

MOST_REPORTS: Final = 50  # of one poll; the rest comes with the next
MOST_FAILURES: Final = 6
_PAUSE: Final = timedelta(seconds=30)
_LATE: Final = timedelta(days=1)  # how long after its end an event is reported on
_CURTAILED: Final = frozenset({Phase.RAMPING, Phase.ACTIVE, Phase.RECOVERING})
_log = logging.getLogger(__name__)


def send(
    ven: Ven,
    connection: VtnConnection,
    *,
    rows: Mapping[str, VtnEvent],
    changed: Collection[str],
    at: datetime,
) -> None:
    """Register where we have not, and send what is due."""
    try:
        _register(ven, connection)
    except VtnError as error:
        _note(connection, f"We could not register: {error.message}")
    signals = [
        signal
        for row in rows.values()
        if row.gone_at is None and (signal := selectors.signal_of(row)) is not None
        if signal.reports and (signal.end is None or signal.end > at - _LATE)
    ]
    if not signals:
        return
    kept = {
        (one.vtn_event.external_id, one.position): one
        for one in VtnReport.objects.filter(vtn_event__connection=connection).select_related("vtn_event")
    }
    sent = {place: one.sequence for place, one in kept.items()}
    due = due_reports(signals, now=at, sent=sent, changed=changed)
    for one in due[:MOST_REPORTS]:
        place = (one.signal.external_id, one.position)
        row = kept.get(place) or VtnReport(
            vtn_event=rows[one.signal.external_id], position=one.position, payload_type=one.type.value
        )
        if row.next_try_at is None or row.next_try_at <= at:
            _send_one(ven, connection, one, row, at)


def _register(ven: Ven, connection: VtnConnection) -> None:
    if connection.registered_version == connection.version:
        return
    made = ven.register()
    connection.ven_id, connection.registered_version = made.ven_id, connection.version
    VtnConnection.objects.filter(pk=connection.pk, version=connection.version).update(
        ven_id=made.ven_id, registered_version=connection.version
    )


def _note(connection: VtnConnection, text: str) -> None:
    notes = [*connection.notes, text[:300]]
    VtnConnection.objects.filter(pk=connection.pk, version=connection.version).update(notes=notes)


def _send_one(ven: Ven, connection: VtnConnection, due: Due, row: VtnReport, at: datetime) -> None:
    """Send one report. One that the VTN does not want, or that failed often, is passed over."""
    samples = samples_for(due, connection, row.vtn_event, at)
    body = build_report(due, samples, version=Version(connection.protocol), client_name=connection.ven_name)
    try:
        ven.send_report(body)
    except VtnError as error:
        row.n_failures += 1
        row.last_error = error.message[:500]
        row.next_try_at = at + _PAUSE * 2 ** min(row.n_failures - 1, 6)
        if isinstance(error, VtnRefused) or row.n_failures >= MOST_FAILURES:
            row.sequence, row.n_failures, row.next_try_at = due.sequence, 0, None
        _log.info("%s: the report %s failed: %s", connection, due.name, row.last_error)
    else:
        row.sequence, row.sent_at, row.last_error = due.sequence, at, ""
        row.n_failures, row.next_try_at = 0, None
    row.save()


def samples_for(
    due: Due, connection: VtnConnection, row: VtnEvent, at: datetime
) -> dict[str, Sequence[Sample]]:
    """What we know of each window, by resource; without resources, of the whole by the VEN's name."""
    domains = {one.name: one.domain for one in connection.resources.all()}
    domains = domains or {connection.ven_name: connection.domain}
    ours = list(events().filter(vtn_announcement__vtn_event=row))
    match due.type:
        case ReportType.DEMAND:
            return {
                name: [_drawn(domain, one, at) for one in due.windows] for name, domain in domains.items()
            }
        case ReportType.BASELINE:
            known = [_baseline(ours, one) for one in due.windows]
        case ReportType.LOAD_SHED_DELTA_AVAILABLE:
            known = [_available(ours)] * len(due.windows)
        case ReportType.OPERATING_STATE:
            state = Sample(_state(ours, at))
            return {name: [state] * len(due.windows) for name in domains}
    # Of an event's own domain only: for others nothing of the kind is known.
    meant = {event.domain_id for event in ours} or {connection.domain_id}
    nothing = [Sample(None)] * len(due.windows)
    return {name: known if domain.pk in meant else nothing for name, domain in domains.items()}


def _drawn(domain: Domain, window: Window, at: datetime) -> Sample:
    """The mean of the readings in a window: what meters said, else what was estimated."""
    end = min(window.end or at, at)
    rows = list(PowerReading.objects.filter(domain=domain, at__gte=window.start, at__lt=end))
    metered = [row for row in rows if row.source != "modelled"] or rows
    good = [row for row in metered if row.quality in (ReadingQuality.OK, ReadingQuality.ESTIMATED)]
    if not good:
        is_bad = any(row.quality == ReadingQuality.BAD for row in metered)
        return Sample(None, Quality.BAD if is_bad else Quality.MISSING)
    is_whole = len(good) == len(metered) and all(
        row.quality == ReadingQuality.OK and row.source != "modelled" for row in good
    )
    mean_w = sum(row.draw_w for row in good) / len(good)
    return Sample(mean_w, Quality.OK if is_whole else Quality.ESTIMATED)


def _baseline(ours: Sequence[DemandResponseEvent], window: Window) -> Sample:
    """What would be drawn: the mean before the notice, frozen then. Settlement may use another method."""
    for event in ours:
        is_in = window.start < event.end_at and (window.end is None or event.start_at < window.end)
        if is_in and event.reference_w is not None:
            return Sample(event.reference_w, Quality.ESTIMATED)
    return Sample(None)


def _available(ours: Sequence[DemandResponseEvent]) -> Sample:
    """How much we could shed, by the newest plan that was made for it."""
    for event in ours:
        plan = event.plans.exclude(state=PlanState.SUPERSEDED).order_by("-number").first()
        if plan is not None:
            achievable = plan.plan.get("achievable_w")
            is_number = isinstance(achievable, int | float) and not isinstance(achievable, bool)
            return Sample(float(achievable) if is_number else plan.predicted_shed_w, Quality.ESTIMATED)
    return Sample(None)


def _state(ours: Sequence[DemandResponseEvent], at: datetime) -> OperatingState:
    loads = loads_of(ours, at=at)
    is_curtailed = any(phase_of_event(one, load=loads[one.pk], at=at) in _CURTAILED for one in ours)
    is_faulty = CurtailmentAction.objects.filter(
        plan__event__in=[one.pk for one in ours], plan__state=PlanState.COMMITTED, state=ActionState.FAILED
    ).exists()
    return operating_state(
        is_faulty=is_faulty,
        is_opted_out=any(one.opted_out_at is not None and one.end_at > at for one in ours),
        is_curtailed=is_curtailed,
    )

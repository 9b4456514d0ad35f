"""Bring to where it is wanted whatever is noted as on its way: begin, look, try again, end.

Everything here may run twice, late, or after a crash. What a mover is doing is asked of the mover each time; moves are
idempotent by key, and each step is written down before the mover is told.

A transfer's row says how it stands:
    mover ""                 noted, not begun
    next_attempt_at None     a mover has it
    next_attempt_at          it failed, and is tried again then
    ended_at                 it arrived, or was given up (`error`)
"""

import logging
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from apps.core.errors import OutsideError
from apps.core.locks import session_lock
from apps.events.services import record
from apps.staging import services
from apps.staging.models import Copy, Store, Transfer
from apps.staging.movers import choice
from apps.staging.movers.base import GIB, MoveOrder, MoveState, Place, Progress, scrubbed
from apps.staging.routes import DEFAULT_RATE_GIB_PER_S, NoRoute, Route, duration, route_to

MOST_ATTEMPTS: Final = 6
FIRST_PAUSE: Final = timedelta(seconds=15)
LONGEST_PAUSE: Final = timedelta(minutes=10)
# A move that its machine has told nothing of for so long is begun again by whoever can.
AWAY_AFTER: Final = timedelta(minutes=10)
KEPT_FOR: Final = timedelta(days=7)
_LOCK: Final = 0x57A6E
_log = logging.getLogger(__name__)


def move_all(*, at: datetime) -> None:
    """Look after every open transfer. Trouble with one does not keep the others waiting."""
    with session_lock(_LOCK) as is_ours:
        if not is_ours:
            return
        open_ones = Transfer.objects.filter(ended_at=None).order_by("id")
        free = settings.SWITCHYARD_TRANSFERS_AT_ONCE - sum(
            1 for transfer in open_ones if _is_carried(transfer) and not transfer.is_simulated
        )
        for transfer_id in [transfer.pk for transfer in open_ones]:
            try:
                free -= _advance(transfer_id, at=at, free=free)
            except Exception:
                _log.exception("Transfer %s could not be looked after", transfer_id)


def prune(*, at: datetime) -> int:
    """Forget what movers kept of moves that ended long ago."""
    return sum(mover.prune(before=at - KEPT_FOR) for mover in choice.prunable())


def _advance(transfer_id: int, *, at: datetime, free: int) -> int:
    """One step of one transfer; how many more moves it made begin."""
    transfer = Transfer.objects.select_related("dataset", "to_domain").get(pk=transfer_id)
    if transfer.ended_at is not None:
        return 0
    if transfer.cancel_asked_at is not None:
        _cancel(transfer, at)
        return 0
    if _is_carried(transfer):
        _look(transfer, at)
        return 0
    if transfer.next_attempt_at is not None and transfer.next_attempt_at > at:
        return 0
    return _begin(transfer, at, free)


def _is_carried(transfer: Transfer) -> bool:
    return bool(transfer.mover) and transfer.next_attempt_at is None


# Beginning ----------------------------------------------------------------------------------------------------------


def _begin(transfer: Transfer, at: datetime, free: int) -> int:
    if Copy.objects.filter(dataset=transfer.dataset, domain=transfer.to_domain).exists():
        services.end_transfer(transfer_id=transfer.pk, at=at)  # somebody else brought it
        return 0
    try:
        route = route_to(transfer.dataset, transfer.to_domain)
    except NoRoute as error:
        _give_up(transfer, error.message, at)
        return 0
    if not route.is_simulated and free <= 0:
        _expect(transfer, at + _left(transfer, route.rate_gib_per_s), at)
        return 0
    _leave_other_place(transfer, route, at)
    if not _note_attempt(transfer, route, at):
        return 0
    _start(transfer, at)
    return 0 if route.is_simulated else 1


def _leave_other_place(transfer: Transfer, route: Route, at: datetime) -> None:
    """A store that moved between two attempts: what lies half-done in the old place is taken away."""
    if not transfer.mover or (transfer.mover, transfer.target_uri) == (route.mover, route.target_uri):
        return
    _tidy(transfer, at)
    transfer.key = Transfer._meta.get_field("key").get_default()
    transfer.bytes_done, transfer.bytes_total = 0, None


@transaction.atomic
def _note_attempt(transfer: Transfer, route: Route, at: datetime) -> bool:
    """Write down who will carry it, before they are told; whether it may begin."""
    is_wanted = (
        Transfer.objects.select_for_update(no_key=True)
        .filter(pk=transfer.pk, ended_at=None, cancel_asked_at=None, attempts=transfer.attempts)
        .exists()
    )
    if not is_wanted:
        return False
    transfer.mover, transfer.is_simulated = route.mover, route.is_simulated
    transfer.from_domain_id = route.from_domain_id
    transfer.source_uri, transfer.target_uri = route.source_uri, route.target_uri
    transfer.handle = choice.mover_named(route.mover).handle_of(transfer.key)
    transfer.attempts += 1
    transfer.next_attempt_at, transfer.seen_at, transfer.bytes_per_s = None, at, None
    if not route.is_simulated or transfer.attempts > 1:
        transfer.expected_end_at = max(at, transfer.started_at, at + _left(transfer, route.rate_gib_per_s))
    transfer.save()
    return True


def _start(transfer: Transfer, at: datetime) -> None:
    try:
        choice.mover_named(transfer.mover).start(_order(transfer), at=at)
    except OutsideError as error:
        _failed(transfer, error.message, at, is_permanent=error.permanent)


def _order(transfer: Transfer) -> MoveOrder:
    """By the facts of the stores as they are now."""
    stores = {
        store.domain_id: store
        for store in Store.objects.filter(domain_id__in=[transfer.from_domain_id, transfer.to_domain_id])
    }
    most = [store.most_gib_per_s * GIB for store in stores.values() if store.most_gib_per_s is not None]
    return MoveOrder(
        key=transfer.key,
        source=_place(transfer.source_uri, stores.get(transfer.from_domain_id or 0), transfer),
        target=_place(transfer.target_uri, stores.get(transfer.to_domain_id), transfer),
        n_bytes=int(transfer.dataset.size_gib * GIB),
        begins_at=transfer.seen_at or transfer.started_at,
        arrives_at=transfer.expected_end_at,
        most_bytes_per_s=min(most, default=None),
    )


def _place(uri: str, store: Store | None, transfer: Transfer) -> Place:
    if transfer.is_simulated:
        return Place(uri="", base_uri="")
    if store is None:
        raise OutsideError("One of its stores is no longer named.", permanent=False)
    return Place(uri=uri, base_uri=store.base_uri, profile=store.profile)


# Looking ------------------------------------------------------------------------------------------------------------


def _look(transfer: Transfer, at: datetime) -> None:
    progress = _poll(transfer, at)
    if progress is None:
        return
    match progress.state:
        case MoveState.UNKNOWN:  # killed between the note and the start
            _start(transfer, at)
        case MoveState.RUNNING:
            _note_progress(transfer, progress, at)
        case MoveState.DONE:
            services.end_transfer(transfer_id=transfer.pk, at=at, n_bytes=progress.bytes_total)
        case MoveState.CANCELLED:
            services.end_transfer(
                transfer_id=transfer.pk, at=at, error=transfer.last_error or "It was cancelled."
            )
        case MoveState.LOST:
            _note_progress(transfer, progress, at)
            _failed(transfer, "What carried it was killed.", at)
        case MoveState.FAILED:
            _note_progress(transfer, progress, at)
            _failed(transfer, progress.error, at, is_permanent=progress.is_permanent)


def _poll(transfer: Transfer, at: datetime) -> Progress | None:
    """What its mover says; None when it cannot be asked, which says nothing until it has lasted."""
    try:
        return choice.mover_named(transfer.mover).poll(transfer.handle, at=at)
    except OutsideError as error:
        if at - (transfer.seen_at or transfer.started_at) > AWAY_AFTER:
            _failed(transfer, error.message, at)
        else:
            _log.info("Transfer %s: %s", transfer.pk, error.message)
        return None


def _note_progress(transfer: Transfer, progress: Progress, at: datetime) -> None:
    is_counted = progress.bytes_total is not None and progress.bytes_total != transfer.bytes_total
    transfer.bytes_total = progress.bytes_total if progress.bytes_total is not None else transfer.bytes_total
    done = progress.bytes_done
    transfer.bytes_done = done if transfer.bytes_total is None else min(done, transfer.bytes_total)
    transfer.bytes_per_s, transfer.seen_at = progress.bytes_per_s, at
    _save(transfer, "bytes_done", "bytes_total", "bytes_per_s", "seen_at")
    if transfer.is_simulated or progress.state != MoveState.RUNNING:
        return
    if is_counted and transfer.bytes_total is not None:
        services.correct_size(dataset_id=transfer.dataset_id, n_bytes=transfer.bytes_total, at=at)
        transfer.dataset.refresh_from_db()
    if progress.bytes_per_s:
        _expect(transfer, at + _left(transfer, progress.bytes_per_s / GIB), at)
    elif transfer.expected_end_at < at:
        _expect(transfer, at + _left(transfer, DEFAULT_RATE_GIB_PER_S), at)


def _left(transfer: Transfer, rate_gib_per_s: float) -> timedelta:
    total = transfer.bytes_total
    n_bytes = total if total is not None else transfer.dataset.size_gib * GIB
    return duration(n_bytes - transfer.bytes_done, rate_gib_per_s)


def _expect(transfer: Transfer, expected_at: datetime, at: datetime) -> None:
    """Correct when it is expected. Small changes are noise: each one told would wake the planner."""
    before = transfer.expected_end_at
    noise = max(timedelta(seconds=15), abs(expected_at - at) * 0.1)
    if abs(expected_at - before) <= noise:
        return
    transfer.expected_end_at = max(expected_at, transfer.started_at)
    with transaction.atomic():
        if _save(transfer, "expected_end_at"):
            _record(transfer, "dataset.transfer_rescheduled", at, before_at=before.isoformat())


# Failing and ending -------------------------------------------------------------------------------------------------


def _failed(transfer: Transfer, message: str, at: datetime, *, is_permanent: bool = False) -> None:
    """Try again later, longer each time; after some attempts, or when there is no hope, give it up."""
    message = scrubbed(message) or "It failed without saying why."
    if is_permanent or transfer.attempts >= MOST_ATTEMPTS:
        _give_up(transfer, message, at)
        return
    pause = min(FIRST_PAUSE * 2 ** (transfer.attempts - 1), LONGEST_PAUSE)
    transfer.last_error, transfer.next_attempt_at = message, at + pause
    transfer.bytes_per_s = None
    transfer.expected_end_at = max(
        transfer.expected_end_at, at + pause + _left(transfer, DEFAULT_RATE_GIB_PER_S)
    )
    with transaction.atomic():
        if _save(transfer, "last_error", "next_attempt_at", "bytes_per_s", "expected_end_at"):
            _record(
                transfer,
                "dataset.transfer_delayed",
                at,
                error=message,
                next_attempt_at=transfer.next_attempt_at.isoformat(),
            )


def _give_up(transfer: Transfer, message: str, at: datetime) -> None:
    transfer.last_error = message
    _save(transfer, "last_error")
    # Tidied up first: a kill in between is then seen as cancelled, and ends with this error.
    _tidy(transfer, at)
    services.end_transfer(transfer_id=transfer.pk, at=at, error=message)


def _tidy(transfer: Transfer, at: datetime) -> None:
    if not transfer.handle:
        return
    try:
        choice.mover_named(transfer.mover).cancel(transfer.handle, at=at)
    except OutsideError as error:
        _log.warning("Transfer %s: what lies half-done stays: %s", transfer.pk, error.message)


def _cancel(transfer: Transfer, at: datetime) -> None:
    message = f"It was cancelled by {transfer.cancel_asked_by or 'the site'}."
    if not transfer.mover:
        services.end_transfer(transfer_id=transfer.pk, at=at, error=message)
        return
    mover = choice.mover_named(transfer.mover)
    try:
        mover.cancel(transfer.handle, at=at)
        state = mover.poll(transfer.handle, at=at)
    except OutsideError as error:
        assert transfer.cancel_asked_at is not None
        if at - transfer.cancel_asked_at > AWAY_AFTER:
            services.end_transfer(transfer_id=transfer.pk, at=at, error=f"{message} {error.message}")
        return
    if state.state == MoveState.DONE:
        services.end_transfer(transfer_id=transfer.pk, at=at, n_bytes=state.bytes_total)
    elif state.state == MoveState.CANCELLED:
        services.end_transfer(transfer_id=transfer.pk, at=at, error=message)


def _save(transfer: Transfer, *fields: str) -> bool:
    """Write these, unless it has ended meanwhile; whether it was written."""
    values: dict[str, Any] = {name: getattr(transfer, name) for name in fields}
    return bool(Transfer.objects.filter(pk=transfer.pk, ended_at=None).update(**values))


def _record(transfer: Transfer, kind: str, at: datetime, **data: Any) -> None:
    record(
        kind,
        subject_kind="dataset",
        subject_id=transfer.dataset_id,
        subject_name=transfer.dataset.name,
        at=at,
        data={
            "transfer_id": transfer.pk,
            "to_domain_id": transfer.to_domain_id,
            "for_job_id": transfer.for_job_id,
            "attempts": transfer.attempts,
            "expected_end_at": transfer.expected_end_at.isoformat(),
            **data,
        },
    )

"""The losses ledger: what became of every device-second of capacity.

After each pass it is known what every device does until something changes; the next count adds that, up to the
present, to the quarter of an hour it fell in. So the parts of a span sum to its capacity by construction, and a
trigger holds them to it. A count that comes twice adds nothing, one that was killed has added nothing; while nobody
looked the last known state is taken to have lasted, and the span says for how long.

Running time that turns out to be lost is moved from `productive` to `rework`, back from the end of its attempt.
Amounts are millionths of devices times milliseconds.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from django.db import connection
from django.db.models import Q

from apps.jobs.models import Allocation, Observed
from apps.jobs.spec import SHARE_STEPS
from apps.scheduling.engine.facts import NONE, Placing, Start, Wait
from apps.scheduling.idle import SPAN, Want, claim
from apps.scheduling.models import CountedLoss, LossClock, LossPart
from apps.scheduling.snapshot import Taken

_LOOKED: Final = timedelta(minutes=6)  # passes come more often than that; what is longer was guessed
_LATE: Final = timedelta(minutes=15)  # an attempt's end may be committed so much later than it says
_MS: Final = timedelta(milliseconds=1)
_MOST_WANTS: Final = 10_000  # waiting jobs that are asked what they keep idle

Rate = tuple[int, int | None, str, int]  # accelerator type, team, bucket, millionths of devices


def count(taken: Taken, waits: Iterable[Wait], starts: Sequence[Start], *, at: datetime) -> None:
    """Count up to now by what was known, and say what devices do from now on. Call it in a transaction.

    Args:
        starts: What this pass started, beside what ran when the picture was taken.
    """
    rates = _rates(taken, waits, starts)
    clock = LossClock.objects.select_for_update().filter(pk=1).first()
    if clock is None:
        LossClock.objects.bulk_create([LossClock(pk=1, counted_to=at, rates=rates)], ignore_conflicts=True)
        return
    if at < clock.counted_to:
        return  # a later picture has been counted already
    _add(clock.rates, clock.counted_to, at)
    _move_lost_work(at)
    clock.counted_to, clock.rates = at, rates
    clock.save(update_fields=["counted_to", "rates"])


# What devices do ----------------------------------------------------------------------------------------------------


def _rates(taken: Taken, waits: Iterable[Wait], starts: Sequence[Start]) -> list[Rate]:
    """What every device of the facility does now; sums to the capacity of each type."""
    snapshot, facility = taken.snapshot, taken.snapshot.facility
    n_kinds, n_teams = len(facility.kinds), len(snapshot.teams)
    held_on = np.zeros(facility.n_nodes, dtype=np.int64)
    not_yet = {
        job_id: "staging" if due_at is not None and data_at is None else "starting"
        for job_id, due_at, data_at in Allocation.objects.filter(ended_at=None)
        .filter(Q(observed_state=Observed.PENDING) | Q(observed_state=Observed.STARTING))
        .values_list("job_id", "data_due_at", "observed_data_at")
    }
    held: dict[tuple[int, int | None, str], int] = {}

    def hold(job_id: int, team: int, placing: Placing, bucket: str) -> None:
        team_id = snapshot.teams[team].id if 0 <= team < n_teams else None
        for share in placing:
            steps = share.share_steps * len(share.devices)
            if steps:
                held_on[share.node] += steps
                key = (int(facility.kind[share.node]), team_id, not_yet.get(job_id, bucket))
                held[key] = held.get(key, 0) + steps

    for running in snapshot.running:
        hold(running.gang.id, running.gang.team, running.placing, "productive")
    for start in starts:
        hold(start.job_id, taken.gangs[start.job_id].team, start.placing, "starting")
    idle = np.maximum(0, facility.n_devices * SHARE_STEPS - held_on)
    rates: list[Rate] = [
        (facility.kinds[kind].id, team_id, bucket, steps) for (kind, team_id, bucket), steps in held.items()
    ]
    free = [0] * n_kinds
    closed = _closed(taken)
    is_drained = ~snapshot.is_usable & ~snapshot.is_failed
    for kind in range(n_kinds):
        of_kind = facility.kind == kind
        failed = int(idle[of_kind & snapshot.is_failed].sum())
        drained = int(idle[of_kind & is_drained].sum())
        usable = of_kind & snapshot.is_usable
        reserved = int(idle[usable & closed].sum())
        free[kind] = int(idle[usable & ~closed].sum())
        unused = min(free[kind], _unused_amount(taken, kind))
        free[kind] -= unused
        for bucket, steps in (("failed", failed), ("drained", drained), ("reserved", reserved + unused)):
            if steps:
                rates.append((facility.kinds[kind].id, None, bucket, steps))
    rates.extend(_claimed(taken, waits, {start.job_id for start in starts}, free))
    return rates


def _closed(taken: Taken) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """(n,) nodes that an open reservation names."""
    snapshot = taken.snapshot
    closed = np.zeros(snapshot.facility.n_nodes, dtype=np.bool_)
    for booking in snapshot.bookings:
        if booking.nodes and booking.start_s <= snapshot.now_s < booking.end_s:
            closed[list(booking.nodes)] = True
    return closed


def _unused_amount(taken: Taken, kind: int) -> int:
    """Millionths of devices that open reservations of an amount keep for jobs that are not there."""
    snapshot = taken.snapshot
    unused = 0
    for position, booking in enumerate(snapshot.bookings):
        if booking.nodes or booking.kind != kind or not booking.start_s <= snapshot.now_s < booking.end_s:
            continue
        used = sum(
            share.share_steps * len(share.devices)
            for running in snapshot.running
            if running.gang.shape.reservation == position
            for share in running.placing
        )
        unused += max(0, booking.n_devices * SHARE_STEPS - used)
    return unused


def _claimed(taken: Taken, waits: Iterable[Wait], begun: set[int], free: list[int]) -> Iterator[Rate]:
    """What the queue keeps idle, and what nobody wants."""
    kinds = taken.snapshot.facility.kinds
    claims: dict[tuple[int, str], int] = {}
    for kind, bucket, steps in claim(free, _wants(taken, waits, begun) if sum(free) else ()):
        claims[kind, bucket] = claims.get((kind, bucket), 0) + steps
    for kind, left in enumerate(free):
        if left:
            claims[kind, "no_demand"] = left
    for (kind, bucket), steps in claims.items():
        yield kinds[kind].id, None, bucket, steps


def _wants(taken: Taken, waits: Iterable[Wait], begun: set[int]) -> list[Want]:
    wants = []
    for wait in waits:
        gang = taken.gangs.get(wait.job_id)
        if gang is None or wait.job_id in begun:
            continue
        asks = gang.shape.asks
        steps = sum((ask.devices * SHARE_STEPS or ask.share_steps) * ask.n_replicas for ask in asks)
        named = gang.shape.reservation != NONE
        wants.append(Want(wait.code, steps, asks[0].kinds, names_reservation=named))
        if len(wants) == _MOST_WANTS:
            break
    return wants


# Counting -----------------------------------------------------------------------------------------------------------


def _add(rates: Sequence[Sequence[Any]], from_at: datetime, to_at: datetime) -> None:
    """Add what devices did through [from_at, to_at) to the spans it fell in."""
    is_guessed = to_at - from_at > _LOOKED
    for span_at, ms in _spans(from_at, to_at):
        capacity: dict[int, int] = {}
        for type_id, _, _, steps in rates:
            capacity[type_id] = capacity.get(type_id, 0) + steps * ms
        with connection.cursor() as cursor:
            span_ids = {}
            for type_id, amount in sorted(capacity.items()):
                cursor.execute(
                    "INSERT INTO scheduling_lossspan AS span (from_at, accelerator_type_id, capacity, guessed_ms)"
                    " VALUES (%s, %s, %s, %s) ON CONFLICT (from_at, accelerator_type_id) DO UPDATE"
                    " SET capacity = span.capacity + excluded.capacity,"
                    " guessed_ms = span.guessed_ms + excluded.guessed_ms RETURNING id",
                    [span_at, type_id, amount, ms if is_guessed else 0],
                )
                (span_ids[type_id],) = cursor.fetchone() or (0,)
            _add_parts(
                cursor,
                [
                    (span_ids[type_id], team_id, bucket, steps * ms)
                    for type_id, team_id, bucket, steps in rates
                ],
            )


def _spans(from_at: datetime, to_at: datetime) -> Iterator[tuple[datetime, int]]:
    """The spans that [from_at, to_at) touches, and the milliseconds of each; what is no whole millisecond adds up."""
    began = datetime(1970, 1, 1, tzinfo=UTC)
    at = from_at
    while at < to_at:
        span_at = began + (at - began) // SPAN * SPAN
        until = min(to_at, span_at + SPAN)
        ms = (until - began) // _MS - (at - began) // _MS
        if ms:
            yield span_at, ms
        at = until


def _add_parts(cursor: Any, parts: Sequence[tuple[int, int | None, str, int]]) -> None:
    cursor.executemany(
        "INSERT INTO scheduling_losspart AS part (span_id, team_id, bucket, amount) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (span_id, team_id, bucket) DO UPDATE SET amount = part.amount + excluded.amount",
        parts,
    )


# Work that was lost -------------------------------------------------------------------------------------------------


def _move_lost_work(at: datetime) -> None:
    """Call rework what attempts did that ended without having saved it; each attempt once."""
    ended = list(
        Allocation.objects.filter(
            ended_at__gte=at - _LATE - SPAN, ended_at__lte=at, lost_s__gt=0, counted_loss=None
        ).select_related("job")
    )
    if not ended:
        return
    CountedLoss.objects.bulk_create([CountedLoss(allocation=one) for one in ended], ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT placement.allocation_id, node.accelerator_type_id, sum(claim.share * 1000000)::bigint"
            " FROM jobs_deviceclaim claim JOIN jobs_placement placement ON placement.id = claim.placement_id"
            " JOIN inventory_node node ON node.id = placement.node_id"
            " WHERE placement.allocation_id = ANY(%s) GROUP BY 1, 2 ORDER BY 1, 2",
            [[one.pk for one in ended]],
        )
        steps_of: dict[int, list[tuple[int, int]]] = {}
        for allocation_id, type_id, steps in cursor.fetchall():
            steps_of.setdefault(allocation_id, []).append((type_id, steps))
    for one in ended:
        for type_id, steps in steps_of.get(one.pk, ()):
            _move(one, type_id, int(steps * round(one.lost_s * 1000)))


def _move(attempt: Allocation, type_id: int, amount: int) -> None:
    """Back from its end to its beginning, no more than was counted as productive there."""
    began_at = attempt.observed_started_at or attempt.bound_at
    parts = (
        LossPart.objects.select_for_update()
        .filter(
            span__accelerator_type_id=type_id,
            span__from_at__gt=began_at - SPAN,
            span__from_at__lte=attempt.ended_at,
            team_id=attempt.job.team_id,
            bucket="productive",
        )
        .order_by("-span__from_at")
    )
    for part in parts:
        moved = min(amount, int(part.amount))
        if moved:
            part.amount -= moved
            part.save(update_fields=["amount"])
            with connection.cursor() as cursor:
                _add_parts(cursor, [(part.span_id, part.team_id, "rework", moved)])
        amount -= moved
        if not amount:
            return

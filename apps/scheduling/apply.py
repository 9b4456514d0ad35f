"""Writes a plan: starts through the ledger's own services, and what the pass learned about those that wait."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from heapq import nsmallest
from itertools import islice
from json import dumps
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from django.db import connection, transaction

from apps.core.errors import DomainError
from apps.jobs import services as jobs
from apps.jobs.models import Allocation, Desired, Job, Placement
from apps.jobs.spec import SHARE_STEPS
from apps.scheduling import selectors
from apps.scheduling.engine.defragment import Proposal
from apps.scheduling.engine.facts import (
    NONE,
    Evict,
    Facility,
    Gang,
    Placing,
    Plan,
    Reserve,
    Resize,
    Start,
    Wait,
)
from apps.scheduling.engine.sizes import resize_s
from apps.scheduling.models import Earmark, Forecast, Reason, TeamUse
from apps.scheduling.snapshot import KEEPS_ITS_EARMARK, Taken, instant, rule_versions
from apps.staging import services as staging
from apps.staging.selectors import places_of_copies
from apps.teams.models import User

STARTS_AT_ONCE: Final = 500  # a transaction
REASONS_AT_ONCE: Final = 20_000  # a pass; the rest is written by the passes after it
_RENEWED_PER_S: Final = 2000.0
EARMARKED_FOR: Final = timedelta(hours=2)  # longer than any time to write a checkpoint
USE_EVERY: Final = timedelta(seconds=60)
# Places behind this one move with every start; telling each step to the database would cost more than planning.
_NEAR: Final = 200
_STALE_REASON_S: Final = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan."""

    n_started: int
    stale: tuple[tuple[int, str], ...]  # (job id, what was no longer so)
    n_cancelled: int
    reasons_left: int  # jobs whose true reason is still to be written


def apply_plan(taken: Taken, plan: Plan, *, pass_id: int, at: datetime) -> Applied:
    """Write what the plan decided; each decision is checked again under locks, and dropped if it has gone stale."""
    for job_id in taken.never_satisfied:
        jobs.cancel_unsatisfiable(job_id=job_id, at=at)
    n_started = 0
    stale: list[tuple[int, str]] = []
    makes_room: dict[int, list[Evict]] = {}
    for evict in plan.evictions:
        makes_room.setdefault(evict.for_job_id, []).append(evict)
    shrinks: dict[int, list[Resize]] = {}
    for resize in plan.resizes:
        if resize.for_job_id is not None:
            shrinks.setdefault(resize.for_job_id, []).append(resize)
    at_once = []
    for start in plan.starts:
        if start.job_id in makes_room or start.job_id in shrinks:
            leave, shrink = makes_room.get(start.job_id, ()), shrinks.get(start.job_id, ())
            why_not = _earmark(taken, start, leave, shrink, pass_id=pass_id, at=at)
            if why_not:
                stale.append((start.job_id, why_not))
        else:
            at_once.append(start)
    for starts in _batched(at_once, STARTS_AT_ONCE):
        outcomes = _start(taken, starts, pass_id=pass_id, at=at)
        n_started += len(outcomes.allocations)
        stale += outcomes.stale
    for resize in plan.resizes:
        if resize.for_job_id is None and (why_not := _grow(taken, resize, pass_id=pass_id, at=at)):
            stale.append((resize.job_id, why_not))
    if taken.snapshot.earmarks:
        Earmark.objects.exclude(job__state__in=KEEPS_ITS_EARMARK, expires_at__gt=at).delete()
    cancelled = set(taken.never_satisfied)
    _send_ahead(taken, plan, at=at)
    waits = _in_order([wait for wait in plan.waits if wait.job_id not in cancelled], taken.left_out)
    waits = _told_of_data(taken, waits)
    # Who waits until others have left is not in the plan's waits, and waits all the same.
    reasons_left = _reasons.write(
        waits, pass_id=pass_id, at=at, still_wait=makes_room.keys() | shrinks.keys()
    )
    _write_forecasts(taken, plan.reserves, at=at)
    _write_use(taken, at=at)
    return Applied(n_started, tuple(stale), len(taken.never_satisfied), reasons_left)


_CHANGED: Final = "a limit has changed"


def _rules_have_changed(taken: Taken) -> bool:
    """Whether a limit changed since the picture was taken. From here to the commit nobody changes one."""
    with connection.cursor() as cursor:
        is_current = rule_versions(cursor, lock=True) == taken.rule_versions
    return not is_current or selectors.has_unseen_rules(taken.seen, taken.seen_below)


@transaction.atomic
def _start(taken: Taken, starts: Sequence[Start], *, pass_id: int, at: datetime) -> jobs.Outcomes:
    if _rules_have_changed(taken):
        return jobs.Outcomes((), tuple((start.job_id, _CHANGED) for start in starts))
    late = _send_for(taken, starts, at=at)
    decisions = [decision_of(taken, start) for start in starts if start.job_id not in late]
    outcomes = jobs.allocate_many(decisions=decisions, pass_id=pass_id, at=at)
    return replace(outcomes, stale=(*outcomes.stale, *late.items())) if late else outcomes


@transaction.atomic
def _earmark(
    taken: Taken,
    start: Start,
    evictions: Sequence[Evict],
    shrinks: Sequence[Resize],
    *,
    pass_id: int,
    at: datetime,
) -> str:
    """Ask the victims to leave, and keep their place for the job; it starts there when all of them are gone.

    Those that only shrink keep what is left to them, and go on there.
    """
    if _rules_have_changed(taken):
        return _CHANGED
    late = _send_for(taken, [start], at=at)
    if late:
        return late[start.job_id]
    asked = [jobs.Eviction(e.job_id, e.for_job_id, e.rule, e.lost_device_s) for e in evictions]
    smaller = [_resized(taken, resize) for resize in shrinks]
    why_not = jobs.preempt_many(evictions=asked, resizes=smaller, pass_id=pass_id, at=at)
    if why_not:
        return why_not
    _keep_place(taken, start.job_id, start.placing, at=at)
    for resize in shrinks:
        _keep_place(taken, resize.job_id, resize.placing, at=at)
    return ""


@transaction.atomic
def _grow(taken: Taken, resize: Resize, *, pass_id: int, at: datetime) -> str:
    """Have a job write a checkpoint, and keep the larger place for it, where it goes on."""
    if _rules_have_changed(taken):
        return _CHANGED
    why_not = jobs.resize_many(resizes=[_resized(taken, resize)], pass_id=pass_id, at=at)
    if not why_not:
        _keep_place(taken, resize.job_id, resize.placing, at=at)
    return why_not


@transaction.atomic
def shrink_job(
    *, job_id: int, allocation_id: int, kept_on: Mapping[int, int], reason: str, at: datetime
) -> bool:
    """Have a running job write a checkpoint, and go on with a part of its replicas, where these are now.

    Args:
        allocation_id: The attempt that is meant; a later one is left alone.
        kept_on: By node id, how many stay; the first of them there. None of them shares a device.

    Returns:
        Whether it was asked.
    """
    # Under the job's lock it stays the same attempt.
    Job.objects.select_for_update(no_key=True).filter(pk=job_id).values_list("pk").first()
    placements = Placement.objects.filter(allocation=allocation_id, allocation__ended_at=None, group_index=0)
    shares = []
    for placement in placements.prefetch_related("claims__device").order_by("node_id"):
        n_kept = kept_on.get(placement.node_id, 0)
        devices = sorted(claim.device.index for claim in placement.claims.all())
        if n_kept:
            kept = devices[: len(devices) * n_kept // placement.n_replicas]
            shares.append([0, placement.node_id, n_kept, kept, SHARE_STEPS])
    is_open = Allocation.objects.filter(pk=allocation_id, job=job_id, desired_state=Desired.RUN).exists()
    if not shares or not is_open:
        return False
    asked = jobs.Eviction(job_id, job_id, "shrink", 0.0)
    if jobs.resize_many(resizes=[asked], at=at, reason=reason):
        return False
    _keep_shares(job_id, shares, at=at)
    return True


def _resized(taken: Taken, resize: Resize) -> jobs.Eviction:
    """What a change of size costs, in the words of the ledger."""
    (running,) = (one for one in taken.snapshot.running if one.gang.id == resize.job_id)
    devices = sum(len(share.devices) * share.share_steps for share in running.placing) / SHARE_STEPS
    if resize.for_job_id is None:
        return jobs.Eviction(resize.job_id, resize.job_id, "grow", devices * resize_s(running.gang))
    return jobs.Eviction(resize.job_id, resize.for_job_id, "shrink", devices * resize_s(running.gang))


@transaction.atomic
def move(taken: Taken, proposal: Proposal, *, actor: User, reason: str, at: datetime) -> str:
    """Ask the leavers of a proposal to stop, and keep their new places for them, and theirs for the job that waits.

    Returns:
        Why not, if it is no longer so; then nothing was written.
    """
    if _rules_have_changed(taken):
        return _CHANGED
    asked = [
        jobs.Eviction(one.job_id, proposal.job_id, "move", one.devices * one.lost_s) for one in proposal.moves
    ]
    why_not = jobs.move_many(evictions=asked, actor=actor, reason=reason, at=at)
    if why_not:
        return why_not
    _keep_place(taken, proposal.job_id, proposal.placing, at=at)
    for one in proposal.moves:
        _keep_place(taken, one.job_id, one.after, at=at)
    return ""


def _keep_place(taken: Taken, job_id: int, placing: Placing, *, at: datetime) -> None:
    """Keep a place for a job: it starts there as soon as all of it is free."""
    node_id = taken.snapshot.facility.node_id
    shares = [
        [share.group, int(node_id[share.node]), share.n_replicas, list(share.devices), share.share_steps]
        for share in placing
    ]
    _keep_shares(job_id, shares, at=at)


def _keep_shares(job_id: int, shares: list[list[Any]], *, at: datetime) -> None:
    """The same; a share is [group, node id, replicas, indices of devices, millionths of each]."""
    Earmark.objects.update_or_create(
        job_id=job_id, defaults={"made_at": at, "expires_at": at + EARMARKED_FOR, "shares": shares}
    )


def ranked(waits: Sequence[Wait], left_out: Sequence[Wait] = ()) -> list[Wait]:
    """Places among those that still wait: what the plan starts is in nobody's way any more."""
    in_order = _in_order(waits, left_out)
    return [wait if wait.rank == rank else replace(wait, rank=rank) for rank, wait in enumerate(in_order, 1)]


def _in_order(waits: Sequence[Wait], left_out: Sequence[Wait]) -> list[Wait]:
    return [*sorted(waits, key=attrgetter("rank")), *left_out]


def decision_of(taken: Taken, start: Start) -> jobs.Decision:
    """A start in the words of the ledger."""
    facility, gang = taken.snapshot.facility, taken.gangs[start.job_id]
    grants = grants_of(facility, gang, start.placing)
    why = dict(start.why)
    if start.job_id in taken.out_of_reach:
        why["without_data"] = list(taken.out_of_reach[start.job_id])
    waits_for_data = bool(_data_to_come(taken, start))
    return jobs.Decision(
        job_id=start.job_id,
        cluster_id=int(facility.cluster[start.placing[0].node]) if start.placing else 0,
        placements=grants,
        why=why,
        power_cap_share=start.cap,
        data_due_at=taken.at + timedelta(seconds=taken.policy.staging_hold_s) if waits_for_data else None,
    )


def grants_of(facility: Facility, gang: Gang, placing: Placing) -> tuple[jobs.Grant, ...]:
    """A placing as grants: one a node and group, ranks counted through the groups in order."""
    merged: dict[tuple[int, int], tuple[int, list[tuple[int, Decimal]]]] = {}
    for share in placing:
        n_replicas, devices = merged.get((share.group, share.node), (0, []))
        devices += [(device, Decimal(share.share_steps) / SHARE_STEPS) for device in share.devices]
        merged[share.group, share.node] = (n_replicas + share.n_replicas, devices)
    grants, rank = [], 0
    for (group, node), (n_replicas, devices) in sorted(merged.items(), key=lambda item: item[0][0]):
        ask, kind = gang.shape.asks[group], facility.kinds[int(facility.kind[node])]
        peak_w = kind.tdp_w if ask.peak_w is None else min(ask.peak_w, kind.tdp_w)
        held = float(sum(share for _, share in devices))
        grants.append(
            jobs.Grant(
                node_id=int(facility.node_id[node]),
                group_index=group,
                n_replicas=n_replicas,
                first_rank=rank,
                device_shares=tuple(sorted(devices)),
                cpus=ask.cpus * n_replicas,
                memory_gib=ask.memory_gib * n_replicas,
                peak_w=max(0.0, peak_w - kind.idle_w) * held,
            )
        )
        rank += n_replicas
    return tuple(grants)


def placement_as_json(facility: Facility, placing: Placing) -> list[dict[str, Any]]:
    """A placing as people read it."""
    return [
        {
            "node": facility.node_name[share.node],
            "group": share.group,
            "replicas": share.n_replicas,
            "devices": list(share.devices),
            "share": share.share_steps / SHARE_STEPS if share.devices else 0,
        }
        for share in placing
    ]


T = TypeVar("T")


def _batched(items: Sequence[T], n: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, n)):
        yield some


# Data --------------------------------------------------------------------------------------------------------------


def _data_to_come(taken: Taken, start: Start) -> list[tuple[int, int]]:
    """(data set, storage domain) of what a job needs where it starts and finds no copy of."""
    datasets = taken.gangs[start.job_id].datasets
    if not datasets:
        return []
    storage = taken.snapshot.facility.storage
    places = sorted({int(storage[share.node]) for share in start.placing} - {NONE})
    return [
        (one, place) for one in datasets for place in places if place not in taken.snapshot.datasets[one].at
    ]


def _send_for(taken: Taken, starts: Sequence[Start], *, at: datetime) -> dict[int, str]:
    """Have sent what jobs need where they start, in the transaction in which they start: once, and surely.

    Returns:
        By job whose data cannot be sent there after all, why not.
    """
    needed: dict[tuple[int, int], list[int]] = {}
    for start in starts:
        for pair in _data_to_come(taken, start):
            needed.setdefault(pair, []).append(start.job_id)
    late: dict[int, str] = {}
    # In order of ids, as everybody who locks several data sets.
    for pair in sorted(needed):
        why_not = _send(taken, *pair, for_job_id=needed[pair][0], at=at)
        if why_not:
            late |= dict.fromkeys(needed[pair], why_not)
    return late


def _send_ahead(taken: Taken, plan: Plan, *, at: datetime) -> None:
    """Have sent what promised jobs will need. What cannot be sent keeps nobody: the next pass knows why."""
    for stage in plan.stages:
        if stage.for_job_id in taken.gangs:
            _send(taken, stage.dataset, stage.to_domain, for_job_id=stage.for_job_id, at=at)


def _send(taken: Taken, dataset: int, place: int, *, for_job_id: int, at: datetime) -> str:
    """Have a data set sent, unless it is there or on its way; why that cannot be, or nothing."""
    one, domain = taken.snapshot.datasets[dataset], taken.snapshot.facility.domains[place]
    try:
        sent = staging.request_stage(dataset_id=one.id, to_domain_id=domain.id, for_job_id=for_job_id, at=at)
    except DomainError as error:
        _log.info("%s is not sent to %s: %s", one.name, domain.name, error.message)
        return error.message
    if sent is not None or domain.id in places_of_copies([one.name]).get(one.name, ()):
        return ""
    return f"{one.name} could not be brought to {domain.name} lately"


def _told_of_data(taken: Taken, waits: Sequence[Wait]) -> list[Wait]:
    """The waits; who waits for data is told where it could not be brought lately."""
    if not taken.given_up:
        return list(waits)
    return [_told(taken, wait) if wait.code == "staging" else wait for wait in waits]


def _told(taken: Taken, wait: Wait) -> Wait:
    gang = taken.gangs.get(wait.job_id)
    datasets: Collection[int] = gang.datasets if gang is not None else ()
    failed = [pair for pair in sorted(taken.given_up) if pair[0] in datasets]
    if not failed:
        return wait
    snapshot = taken.snapshot
    facts = [
        {
            "dataset": snapshot.datasets[one].name,
            "to": snapshot.facility.domains[place].name,
            "tried_again_in_s": round(taken.given_up[one, place] - snapshot.now_s),
        }
        for one, place in failed
    ]
    words = f" {facts[0]['dataset']} could not be brought to {facts[0]['to']}; that is tried again later."
    return replace(wait, sentence=wait.sentence + words, facts={**wait.facts, "given_up": facts})


# Reasons -----------------------------------------------------------------------------------------------------------


class _Written(NamedTuple):
    """A reason as it stands in the database."""

    code: str
    sentence: str
    rank: int
    expected_s: float
    written_s: float


class _Reasons:
    """What the database says about waiting jobs, remembered, so that only what changed is written."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.pass_id, self.last_s = 0, -inf
        self.known: dict[int, _Written] = {}

    def write(
        self, waits: Sequence[Wait], *, pass_id: int, at: datetime, still_wait: Collection[int] = ()
    ) -> int:
        """Write what changed, the head of the queue first; return how many jobs have no true reason yet.

        Args:
            waits: In the order of the queue: places are counted here.
            still_wait: Jobs of which there is nothing new to say.
        """
        at_s = at.timestamp()
        if not self.pass_id or self.pass_id != _pass_before(pass_id):
            self._read()
        new, old = self._changed(waits, at_s)
        now = new[:REASONS_AT_ONCE]
        # What has only grown old is renewed bit by bit: the oldest first, about as much each second.
        room = int(min(max(at_s - self.last_s, 1.0) * _RENEWED_PER_S, REASONS_AT_ONCE)) - len(now)
        if room > 0:
            now += nsmallest(room, old, key=lambda item: self.known[item[1].job_id].written_s)
        gone = list(self.known.keys() - {wait.job_id for wait in waits} - set(still_wait))
        with transaction.atomic():
            for some in _batched(now, 5000):
                _upsert(some, pass_id, at)
            if gone:
                _note_outcomes(gone)
                Reason.objects.filter(job_id__in=gone).delete()
        for rank, wait in now:
            self.known[wait.job_id] = _Written(wait.code, wait.sentence, rank, _expected(wait), at_s)
        for job_id in gone:
            del self.known[job_id]
        self.pass_id, self.last_s = pass_id, at_s
        return max(0, len(new) - REASONS_AT_ONCE)

    def _read(self) -> None:
        self.known = {
            job_id: _Written(code, sentence, rank, expected.timestamp() if expected else inf, at.timestamp())
            for job_id, code, sentence, rank, expected, at in Reason.objects.values_list(
                "job_id", "code", "sentence", "rank", "expected_start_at", "at"
            )
        }

    def _changed(
        self, waits: Sequence[Wait], at_s: float
    ) -> tuple[list[tuple[int, Wait]], list[tuple[int, Wait]]]:
        """Those to be told now, with their places, and those about which something else is out of date."""
        new: list[tuple[int, Wait]] = []
        old: list[tuple[int, Wait]] = []
        known, aged_s = self.known, at_s - _STALE_REASON_S
        for rank, wait in enumerate(waits, 1):
            kept = known.get(wait.job_id)
            if kept is None or kept.code != wait.code:
                new.append((rank, wait))
            elif (rank <= _NEAR or kept.written_s <= aged_s) and (
                kept.rank != rank or kept.sentence != wait.sentence or kept.expected_s != _expected(wait)
            ):
                (new if rank <= _NEAR else old).append((rank, wait))
        return new, old


def _upsert(waits: Sequence[tuple[int, Wait]], pass_id: int, at: datetime) -> None:
    # Thousands wait for the same: what is said of them goes over, and is read there, once.
    texts: dict[int, str] = {}  # by object of facts
    said: dict[tuple[str, str, tuple[str, ...], str], int] = {}
    which = []
    for _, wait in waits:
        facts = texts.get(id(wait.facts))
        if facts is None:
            facts = texts[id(wait.facts)] = dumps(plain(wait.facts))
        which.append(said.setdefault((wait.code, wait.sentence, wait.blocked_by, facts), len(said)))
    rows = [
        {"n": n, "code": code, "sentence": sentence, "binding": binding, "facts": facts}
        for (code, sentence, binding, facts), n in said.items()
    ]
    columns: tuple[Iterable[object], ...] = (
        (wait.job_id for _, wait in waits),
        which,
        (rank for rank, _ in waits),
        (_iso(instant(s)) or "" if (s := wait.expected_start_s) is not None else "" for _, wait in waits),
    )
    with connection.cursor() as cursor:
        # Texts for all rows: the driver goes over each element of an array. A job may be gone from the ledger's
        # queue by now, but never from the ledger.
        cursor.execute(
            "INSERT INTO scheduling_reason"  # noqa: S608 (our own words)
            " (job_id, pass_id, at, code, sentence, binding, facts, rank, expected_start_at,"
            " foretold_at, foretold_start_at)"
            " SELECT job_id, %s, %s, code, left(sentence, 1000), binding, facts::jsonb, rank, expected,"
            " CASE WHEN expected IS NOT NULL THEN %s::timestamptz END, expected"
            " FROM (SELECT job_id, n, rank, nullif(expected, '')::timestamptz AS expected"
            " FROM unnest(string_to_array(%s, ',')::bigint[], string_to_array(%s, ',')::int[],"
            " string_to_array(%s, ',')::int[], string_to_array(%s, ',')) AS told(job_id, n, rank, expected)) new"
            " JOIN json_to_recordset(%s::json) AS said(n int, code text, sentence text, binding jsonb, facts text)"
            " USING (n)"
            " ON CONFLICT (job_id) DO UPDATE SET pass_id = excluded.pass_id, at = excluded.at,"
            " code = excluded.code, sentence = excluded.sentence, binding = excluded.binding,"
            " facts = excluded.facts, rank = excluded.rank, expected_start_at = excluded.expected_start_at,"
            f" {_first_word('foretold_at')}, {_first_word('foretold_start_at')}",
            [pass_id, at, at, *(",".join(map(str, column)) for column in columns), dumps(rows)],
        )


def _first_word(column: str) -> str:
    """The first word counts; of one of whom nobody could tell meanwhile, as one that was held, the first after that."""
    kept = f"coalesce(scheduling_reason.{column}, excluded.{column})"
    return f"{column} = CASE WHEN excluded.expected_start_at IS NOT NULL THEN {kept} END"


def _note_outcomes(job_ids: Sequence[int]) -> None:
    """Keep when those of these that have started did so, beside what they were told first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduling_forecastoutcome (job_id, foretold_at, foretold_start_at, started_at)"
            " SELECT reason.job_id, reason.foretold_at, reason.foretold_start_at, attempt.bound_at"
            " FROM scheduling_reason reason CROSS JOIN LATERAL"
            " (SELECT bound_at FROM jobs_allocation WHERE job_id = reason.job_id AND bound_at >= reason.foretold_at"
            "  ORDER BY fence LIMIT 1) attempt WHERE reason.job_id = ANY(%s)",
            [list(job_ids)],
        )


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


_reasons = _Reasons()


def forget() -> None:
    """Remember nothing: another database is behind the connection now."""
    _reasons.forget()
    _promised.clear()


def _pass_before(pass_id: int) -> int:
    """The last pass that came to its end before this one: if it was ours, what we remember is what is stored."""
    return selectors.passes().filter(pk__lt=pass_id).order_by("-pk").values_list("pk", flat=True).first() or 0


def _expected(wait: Wait) -> float:
    return inf if wait.expected_start_s is None else wait.expected_start_s


_PLAIN: Final = frozenset({str, int, bool, type(None)})


def plain(value: Any) -> Any:
    """Facts as JSON knows them: numbers that are none become absent, numpy's become Python's."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not -inf < value < inf:
        return None
    return value


# Forecasts and use ---------------------------------------------------------------------------------------------------

_promised: dict[int, float] = {}  # job id: the start it was last promised


def _write_forecasts(taken: Taken, reserves: Sequence[Reserve], *, at: datetime) -> None:
    """Keep what was promised, whenever it moved by more than a minute or a twentieth of the wait."""
    facility = taken.snapshot.facility
    rows = []
    for reserve in reserves:
        starts_at = instant(reserve.start_s)
        ahead_s = reserve.start_s - taken.snapshot.now_s
        before_s = _promised.get(reserve.job_id, inf)
        if starts_at is None or starts_at < at or abs(before_s - reserve.start_s) <= max(60.0, ahead_s / 20):
            continue
        _promised[reserve.job_id] = reserve.start_s
        placement = placement_as_json(facility, reserve.placing)
        rows.append(
            Forecast(job_id=reserve.job_id, made_at=at, expected_start_at=starts_at, placement=placement)
        )
    for job_id in _promised.keys() - {reserve.job_id for reserve in reserves}:
        del _promised[job_id]
    Forecast.objects.bulk_create(rows)


def _write_use(taken: Taken, *, at: datetime) -> None:
    """Keep the decayed use as of now, so that the next picture counts from here."""
    if taken.use_since is not None and at - taken.use_since < USE_EVERY:
        return
    facility = taken.snapshot.facility
    rows = [
        TeamUse(
            team_id=team.id,
            accelerator_type_id=facility.kinds[kind].id,
            decayed_device_s=max(device_s, 0.0),
            as_of_at=taken.at,
        )
        for team in taken.snapshot.teams
        for kind, device_s in team.decayed_use_s.items()
    ]
    TeamUse.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["team", "accelerator_type"],
        update_fields=["decayed_device_s", "as_of_at"],
    )

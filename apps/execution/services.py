"""Make what runs become what the ledger wants, and tell the ledger what became of it.

Everything here may run twice, late, or after a crash. A lock per cluster keeps workers from doing the same work side
by side; nothing depends on it, since launches carry fences and reports change nothing the second time.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from apps.core.errors import DomainError, OutsideError
from apps.core.locks import release
from apps.events.services import record
from apps.execution import blame, surveying
from apps.execution.backends.base import Backend, Order, Seen, StopOrder
from apps.execution.backends.choice import backend_of, local_backend_of
from apps.execution.models import SimulatedRun
from apps.execution.orders import (
    GroupFacts,
    PlacementFacts,
    PlayFacts,
    pace_at,
    play_s,
    replicas_of,
)
from apps.execution.reconcile import (
    Action,
    Cause,
    Forget,
    Launch,
    ReportEnded,
    ReportStarted,
    SetLimit,
    Stop,
    Wanted,
    reconcile,
)
from apps.inventory import services as inventory
from apps.inventory.models import Backend as Kind
from apps.inventory.models import Cluster, Health
from apps.jobs import services as jobs
from apps.jobs import tokens
from apps.jobs.models import Allocation, Desired, DeviceClaim, Observed, Placement
from apps.jobs.selectors import relative_rate
from apps.staging.selectors import places_of_copies

# A launch that a backend keeps refusing is given up after this long, and counts as a failure to start.
LAUNCH_PATIENCE: Final = timedelta(seconds=60)
# Backends end what has run out of time themselves; this long after that the ledger asks for it in so many words.
OVERTIME: Final = timedelta(seconds=5)
CONTACT_NOTED_EVERY: Final = timedelta(seconds=30)
LOGS_KEPT: Final = timedelta(days=30)
_ORDERS_AT_ONCE: Final = 200
_MOST_ROUNDS: Final = 3
_WAITING, _WORKING = 0x5EED, 0x5EEE  # first halves of advisory keys; the second is the cluster's id
_log = logging.getLogger(__name__)


def reconcile_all(*, at: datetime) -> None:
    """Reconcile every cluster. Trouble with one does not keep the others waiting."""
    # This machine first: it is quick, and somebody may be waiting for it at a screen. Clusters that lie elsewhere have
    # turns of their own.
    clusters = Cluster.objects.filter(backend__in=(Kind.LOCAL, Kind.SIMULATED)).order_by("backend", "id")
    for cluster_id in clusters.values_list("id", flat=True):
        try:
            reconcile_cluster(cluster_id=cluster_id, at=at)
        except Exception:
            _log.exception("Cluster %s could not be reconciled", cluster_id)


def clusters_elsewhere() -> list[int]:
    """Ids of clusters that are asked over a network, and may keep whoever asks waiting."""
    kinds = (Kind.SLURM, Kind.KUBERNETES)
    return list(Cluster.objects.filter(backend__in=kinds).order_by("id").values_list("id", flat=True))


def reconcile_cluster(*, cluster_id: int, at: datetime) -> None:
    """Carry out what the ledger wants of one cluster, and report what is seen there."""
    with _alone(cluster_id) as is_ours:
        if not is_ours:
            return
        cluster = Cluster.objects.get(pk=cluster_id)
        try:
            backend = backend_of(cluster)
            _reconcile(cluster, backend, at)
            surveying.survey_cluster(cluster, backend, at=at)
        except OutsideError as error:
            # Nothing is known of what runs there, so nothing is concluded.
            _note_lost_contact(cluster, error, at)
        else:
            _note_contact(cluster, at)


def _reconcile(cluster: Cluster, backend: Backend, at: datetime) -> None:
    # Starts and ends are often there to be seen as soon as they are asked for; a second look spares a wait.
    for _ in range(_MOST_ROUNDS):
        wanted = _wanted(cluster, at)
        seen = backend.list_seen(at=at)
        actions = reconcile(wanted.values(), seen)
        if not _carry_out(cluster, backend, wanted, actions, seen, at):
            break


def _carry_out(
    cluster: Cluster,
    backend: Backend,
    wanted: Mapping[int, Wanted],
    actions: Sequence[Action],
    seen: Sequence[Seen],
    at: datetime,
) -> bool:
    """Do it; return whether there may be something new to see."""
    _report(actions, {run.allocation_id: run for run in seen}, at)
    closed = _closed(actions)
    backend.forget(closed)
    if closed:
        _settle_nodes(closed, at)
    states = {run.allocation_id: run.state for run in seen}
    stops = _stops_to_send(cluster, wanted, actions)
    backend.stop(stops, at=at)
    limits = {action.allocation_id: action.time_limit_s for action in actions if isinstance(action, SetLimit)}
    if limits:
        backend.set_limits(limits, at=at)
    launches = [action.allocation_id for action in actions if isinstance(action, Launch)]
    has_launched = _launch(cluster, backend, launches, at)
    # A stop of what was already told to stop shows nothing new; one that leaves a mark does.
    return (
        has_launched or any(stop.allocation_id not in states for stop in stops) or _is_prompt(cluster, stops)
    )


def _is_prompt(cluster: Cluster, stops: Sequence[StopOrder]) -> bool:
    return bool(stops) and cluster.is_simulated


# Reading the ledger ----------------------------------------------------------------------------------------------


def _wanted(cluster: Cluster, at: datetime) -> dict[int, Wanted]:
    """Open allocations of a cluster, as `reconcile` wants to know them."""
    on_failed_node = Placement.objects.filter(allocation=OuterRef("pk"), node__health=Health.FAILED)
    rows = (
        Allocation.objects.filter(cluster=cluster, ended_at=None)
        .annotate(
            has_failed_node=Exists(on_failed_node),
            limit_s=F("job__time_limit_s"),
            spent_s=F("job__ran_s"),
        )
        .values_list(
            "id", "job_id", "fence", "desired_state", "stop_cause", "grace_s", "observed_state",
            "has_failed_node", "limit_s", "spent_s", "observed_started_at",
        )
    )  # fmt: skip
    wanted = {}
    for (
        id_,
        job_id,
        fence,
        desired,
        cause,
        grace_s,
        observed,
        has_failed_node,
        limit_s,
        spent_s,
        started,
    ) in rows:
        time_limit_s = None if limit_s is None else max(limit_s - spent_s, 1.0)
        wanted[id_] = Wanted(
            allocation_id=id_,
            job_id=job_id,
            fence=fence,
            stop_cause=_cause(desired, cause, has_failed_node),
            # What is on a node that failed gets no time to say good-bye.
            grace_s=0.0 if has_failed_node else grace_s,
            time_limit_s=time_limit_s,
            is_known_running=observed == Observed.RUNNING,
        )
        if desired == Desired.RUN and _is_overdue(started, time_limit_s, at):
            jobs.request_time_limit_stop(allocation_id=id_, at=at)
            wanted[id_] = replace(wanted[id_], stop_cause=Cause.TIME_LIMIT)
    return wanted


def _is_overdue(started_at: datetime | None, time_limit_s: float | None, at: datetime) -> bool:
    if started_at is None or time_limit_s is None:
        return False
    return (at - started_at - OVERTIME).total_seconds() > time_limit_s


def _cause(desired: str, cause: str, has_failed_node: bool) -> Cause:
    if desired == Desired.STOP:
        return Cause(cause) or Cause.USER
    return Cause.NODE_LOST if has_failed_node else Cause.NONE


# Reporting -------------------------------------------------------------------------------------------------------


def _report(actions: Sequence[Action], runs: Mapping[int, Seen], at: datetime) -> None:
    for action in actions:
        if not isinstance(action, ReportStarted | ReportEnded):
            continue
        try:
            _report_one(action, runs.get(action.allocation_id), at)
        except DomainError:
            # One report the ledger does not take must not keep the others from it.
            _log.exception("The ledger refused %s", action)


@transaction.atomic
def _report_one(action: ReportStarted | ReportEnded, run: Seen | None, at: datetime) -> None:
    if isinstance(action, ReportStarted):
        jobs.allocation_started(
            allocation_id=action.allocation_id, fence=action.fence, at=action.started_at or at
        )
        return
    message = action.message
    if not message and action.outcome == "start_failed":
        message = _said_before(action.allocation_id)
    jobs.allocation_ended(
        allocation_id=action.allocation_id,
        fence=action.fence,
        at=action.ended_at or at,
        outcome=action.outcome,
        exit_code=action.exit_code,
        message=message,
    )
    if action.outcome in blame.COUNTED:
        _count(action, run, at)


def _count(action: ReportEnded, run: Seen | None, at: datetime) -> None:
    """Count an end against its nodes, in the transaction in which the ledger learns of it: once, and surely.

    A database that fails undoes both, to be done again. Any other trouble is a mistake of ours, which must not keep
    the ledger from learning of ends.
    """
    try:
        with transaction.atomic():
            blame.count_against_nodes(action, run, at)
    except DatabaseError:
        raise
    except Exception:
        _log.exception("It could not be told whose fault %s is", action)


def _said_before(allocation_id: int) -> str:
    said = Allocation.objects.filter(pk=allocation_id).values_list("observed_message", flat=True).first()
    return said or ""


def _closed(actions: Sequence[Action]) -> list[int]:
    """Of the runs that are over, those whose end the ledger knows: it holds no open allocation of that number."""
    over = [action.allocation_id for action in actions if isinstance(action, Forget)]
    if not over:
        return []
    still_open = set(Allocation.objects.filter(pk__in=over, ended_at=None).values_list("id", flat=True))
    return [allocation_id for allocation_id in over if allocation_id not in still_open]


def _settle_nodes(allocation_ids: Sequence[int], at: datetime) -> None:
    node_ids = list(
        Placement.objects.filter(allocation__in=allocation_ids, node__health=Health.DRAINING)
        .values_list("node_id", flat=True)
        .distinct()
    )
    if node_ids:
        inventory.settle_draining(at=at, node_ids=node_ids)


# Stopping and launching ------------------------------------------------------------------------------------------


def _stops_to_send(
    cluster: Cluster, wanted: Mapping[int, Wanted], actions: Sequence[Action]
) -> list[StopOrder]:
    stops = [action for action in actions if isinstance(action, Stop)]
    strangers = [stop.allocation_id for stop in stops if stop.allocation_id not in wanted]
    # What the ledger opened since it was read is no stranger.
    known = (
        set(Allocation.objects.filter(pk__in=strangers, ended_at=None).values_list("id", flat=True))
        if strangers
        else set()
    )
    return [
        StopOrder(
            allocation_id=stop.allocation_id, job_id=stop.job_id, fence=stop.fence, grace_s=stop.grace_s
        )
        for stop in stops
        if stop.allocation_id not in known
    ]


def _launch(cluster: Cluster, backend: Backend, allocation_ids: Sequence[int], at: datetime) -> bool:
    has_launched = False
    for first in range(0, len(allocation_ids), _ORDERS_AT_ONCE):
        # Read again, so that what was stopped meanwhile does not start.
        rows = _with_data(_to_launch(allocation_ids[first : first + _ORDERS_AT_ONCE]), at)
        orders, refused = _orders(cluster, rows, at)
        refused |= backend.launch(orders, at=at)
        for row in rows:
            if row.pk in refused:
                _note_refusal(backend, row, refused[row.pk], at)
        has_launched |= bool(rows)
    return has_launched


def _to_launch(allocation_ids: Sequence[int]) -> QuerySet[Allocation]:
    return (
        Allocation.objects.filter(pk__in=allocation_ids, ended_at=None, desired_state=Desired.RUN)
        .exclude(job__desired_stop_at__isnull=False)
        .select_related("job", "job__team", "job__user", "cluster")
        .prefetch_related("placements__node__accelerator_type", "placements__claims__device")
        .order_by("id")
    )


def _with_data(rows: QuerySet[Allocation], at: datetime) -> list[Allocation]:
    """Those whose data is there; devices that have waited for it long enough are given back."""
    found = list(rows)
    held = [row for row in found if row.data_due_at is not None and row.observed_data_at is None]
    if not held:
        return found
    copies = places_of_copies({name for row in held for name in row.job.spec.get("datasets", ())})
    waiting = set()
    for row in held:
        assert row.data_due_at is not None
        if _has_data(row, copies):
            jobs.data_arrived(allocation_id=row.pk, at=at)
            continue
        waiting.add(row.pk)
        if at >= row.data_due_at:
            # Whoever stops it now leaves the mark by which it is known never to have begun.
            jobs.request_data_late_stop(allocation_id=row.pk, at=at)
    return [row for row in found if row.pk not in waiting]


def _has_data(allocation: Allocation, copies: Mapping[str, frozenset[int]]) -> bool:
    """Whether each of its nodes has a copy of all that the job reads. A node without storage reads every copy."""
    places = {placement.node.storage_id for placement in allocation.placements.all()} - {None}
    # A data set that was deleted meanwhile is waited for by nobody.
    return all(places <= copies[name] for name in allocation.job.spec.get("datasets", ()) if name in copies)


def _orders(
    cluster: Cluster, rows: Sequence[Allocation], at: datetime
) -> tuple[list[Order], dict[int, OutsideError]]:
    orders, refused = [], {}
    secrets = {} if cluster.is_simulated else tokens.issue(allocations=rows, at=at)
    for row in rows:
        try:
            orders.append(order_of(row, is_played=cluster.is_simulated, token=secrets.get(row.pk)))
        except Exception as error:
            # A row that makes no order must not keep the others from starting; it is given up as a failed start.
            _log.exception("No order can be made of allocation %s", row.pk)
            refused[row.pk] = OutsideError(f"No order can be made of it: {error}", permanent=True)
    return orders, refused


def _note_refusal(backend: Backend, allocation: Allocation, error: OutsideError, at: datetime) -> None:
    """Remember why it did not start; when there is no hope, mark it, so that it ends and is tried again."""
    Allocation.objects.filter(pk=allocation.pk).update(observed_message=error.message[:1000])
    if error.permanent or at - (allocation.observed_data_at or allocation.bound_at) > LAUNCH_PATIENCE:
        stop = StopOrder(
            allocation_id=allocation.pk, job_id=allocation.job_id, fence=allocation.fence, grace_s=0.0
        )
        backend.stop([stop], at=at)
        if not error.permanent and allocation.cluster.backend == Kind.LOCAL:
            # Of other clusters it is the cluster that refuses, and no node of it.
            blame.count_refusal(allocation, at)


# Orders ----------------------------------------------------------------------------------------------------------


def order_of(allocation: Allocation, *, is_played: bool, token: str | None = None) -> Order:
    """The order that carries out an allocation.

    Args:
        token: What the job may post its progress with.
    """
    job, private = allocation.job, allocation.job.private
    groups = _groups(job.spec, private)
    placements = list(allocation.placements.all())
    if not placements:
        raise ValueError("it was granted no node")
    return Order(
        allocation_id=allocation.pk,
        job_id=job.pk,
        fence=allocation.fence,
        replicas=replicas_of(groups, [_placement_facts(placement) for placement in placements]),
        script=private.get("script"),
        # What a job sets itself stands above the token: it may bring one of its own that may do more.
        env={**_about(allocation), **_way_back(token), **private.get("env", {})},
        workdir=private.get("workdir"),
        time_limit_s=None if job.time_limit_s is None else max(job.time_limit_s - job.ran_s, 1.0),
        grace_s=allocation.grace_s,
        play_s=play_s(_play_facts(allocation, placements)) if is_played else 0.0,
        cap_share=allocation.desired_power_cap_share,
        pace=pace_of(allocation, allocation.desired_power_cap_share) if is_played else 1.0,
        save_s=float((job.spec.get("checkpoint") or {}).get("cost", 0.0)) if is_played else 0.0,
    )


def _groups(spec: Mapping[str, Any], private: Mapping[str, Any]) -> list[GroupFacts]:
    command = private.get("command")
    commands = private.get("group_commands", {})
    if "groups" not in spec:
        return [GroupFacts(devices=spec.get("devices", 1), command=_words(command))]
    return [
        GroupFacts(
            name=group["name"],
            devices=group.get("devices", 1),
            command=_words(commands.get(group["name"], command)),
        )
        for group in spec["groups"]
    ]


def _words(command: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if command is None else tuple(command)


def _placement_facts(placement: Placement) -> PlacementFacts:
    claims: list[DeviceClaim] = list(placement.claims.all())
    return PlacementFacts(
        node=placement.node.name,
        group_index=placement.group_index,
        n_replicas=placement.n_replicas,
        first_rank=placement.first_rank,
        device_shares={claim.device.index: claim.share for claim in claims},
        cpus=placement.cpus,
        memory_gib=placement.memory_gib,
    )


def _about(allocation: Allocation) -> dict[str, str]:
    job = allocation.job
    about = {"SWITCHYARD_JOB_NAME": job.name, "SWITCHYARD_TEAM": job.team.name}
    if job.array_index is not None:
        about["SWITCHYARD_ARRAY_INDEX"] = str(job.array_index)
    return about


def _way_back(token: str | None) -> dict[str, str]:
    """Where, and with what, a job posts its progress."""
    if token is None:
        return {}
    return {"SWITCHYARD_API_URL": f"{settings.SWITCHYARD_URL}/api/v1", "SWITCHYARD_TOKEN": token}


def _play_facts(allocation: Allocation, placements: Sequence[Placement]) -> PlayFacts:
    job, spec = allocation.job, allocation.job.spec
    checkpoint = spec.get("checkpoint") or {}
    nodes = [placement.node for placement in placements]
    sizes: dict[int, int] = defaultdict(int)
    for placement in placements:
        sizes[placement.group_index] += placement.n_replicas
    return PlayFacts(
        runtime_s=job.runtime_s,
        kept_s=job.worked_s,
        rate=relative_rate(spec, sizes),
        speed=min((node.speed * node.accelerator_type.speed for node in nodes), default=1.0),
        checkpoint_interval_s=checkpoint.get("interval"),
        checkpoint_cost_s=checkpoint.get("cost", 0.0),
        restart_s=checkpoint.get("restart", 0.0) if allocation.fence > 1 else 0.0,
    )


def pace_of(allocation: Allocation, share: float) -> float:
    """Share of its full speed that an attempt keeps under a cap: that of its slowest member."""
    power_w = allocation.job.spec.get("power_w")
    kinds = [placement.node.accelerator_type for placement in allocation.placements.all()]
    return pace_at(
        [([(x, y) for x, y in kind.power_curve], (power_w or kind.tdp_w) / kind.tdp_w) for kind in kinds],
        share,
    )


# Contact ---------------------------------------------------------------------------------------------------------


def _note_contact(cluster: Cluster, at: datetime) -> None:
    was_away = bool(cluster.last_error)
    is_fresh = cluster.last_contact_at is not None and at - cluster.last_contact_at < CONTACT_NOTED_EVERY
    if is_fresh and not was_away:
        return
    Cluster.objects.filter(pk=cluster.pk).update(last_contact_at=at, last_error="")
    if was_away:
        record(
            "cluster.contact_regained",
            subject_kind="cluster",
            subject_id=cluster.pk,
            subject_name=cluster.name,
            at=at,
        )


def _note_lost_contact(cluster: Cluster, error: OutsideError, at: datetime) -> None:
    _log.warning("Cluster %s: %s", cluster.name, error.message)
    if cluster.last_error == error.message:
        return
    Cluster.objects.filter(pk=cluster.pk).update(last_error=error.message)
    if not cluster.last_error:
        record(
            "cluster.contact_lost",
            subject_kind="cluster",
            subject_id=cluster.pk,
            subject_name=cluster.name,
            at=at,
            reason=error.message,
        )


# Alone -----------------------------------------------------------------------------------------------------------


@contextmanager
def _alone(cluster_id: int) -> Iterator[bool]:
    """One worker a cluster; one more waits for its turn, since something may have happened; a third goes home.

    The locks belong to the session: they go when the connection goes, however the worker ends.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_WAITING, cluster_id])
        if not cursor.fetchone()[0]:
            yield False
            return
        try:
            cursor.execute("SELECT pg_advisory_lock(%s, %s)", [_WORKING, cluster_id])
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_WAITING, cluster_id])
    try:
        yield True
    finally:
        release(_WORKING, cluster_id)


def prune_logs(*, at: datetime) -> int:
    """Delete the logs of runs that ended long ago; return of how many."""
    before = at - LOGS_KEPT
    played, _ = SimulatedRun.objects.filter(is_forgotten=True, launched_at__lt=before).delete()
    clusters = Cluster.objects.filter(backend=Kind.LOCAL).order_by("id")
    return played + sum(local_backend_of(cluster).prune(before=before) for cluster in clusters)

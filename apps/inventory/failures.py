"""Attempts that went wrong on nodes: whose fault they are, and nodes that are put into quarantine for them.

One failure tells little: the job may be to blame, or any node of its gang. So each is kept with an origin (a job, or
whoever submitted it), and the nodes that took part in all failures of one origin share the blame; an origin that
fails here and then there keeps it to itself.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection, transaction

from apps.inventory import health, nodes
from apps.inventory.models import FailureKind, Health, HealthBy, Node, NodeFailure

_LOCK_CLASS: Final = 0xFA11  # first half of the advisory lock's key; the second is a digest of the origin
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that went wrong, and the nodes that may be why.

    Args:
        origin: What would be to blame if it is not a node: `job:7`, `array:3`, `user:5`.
        is_certain: The backend names these nodes, or they are down: whatever else the job does, it is theirs.
    """

    allocation_id: int
    job_id: int
    origin: str
    kind: str
    at: datetime
    node_ids: frozenset[int]
    is_certain: bool = False


@transaction.atomic
def note_failure(*, failure: Failure, at: datetime) -> list[Node]:
    """Count a failure against the nodes whose it may be. Noting one attempt twice changes nothing the second time.

    Returns:
        The nodes whose health or cool-down changed.
    """
    if not failure.node_ids or (len(failure.node_ids) > health.MOST_SUSPECTS and not failure.is_certain):
        return []  # a failure of so many nodes tells nothing about any of them
    _lock_origin(failure.origin)
    if NodeFailure.objects.filter(allocation_id=failure.allocation_id, node__in=failure.node_ids).exists():
        return []
    share = 1.0 / len(failure.node_ids)
    fresh = [
        NodeFailure(
            node_id=node_id,
            allocation_id=failure.allocation_id,
            job_id=failure.job_id,
            origin=failure.origin,
            kind=failure.kind,
            at=failure.at,
            blame=share,
            is_certain=failure.is_certain,
        )
        for node_id in sorted(failure.node_ids)
    ]
    known = _of_origin(failure, at)
    # Nodes before their failures: whoever judges a node holds its lock.
    locked = nodes.locked_many({row.node_id for row in (*known, *fresh)})
    NodeFailure.objects.bulk_create([row for row in fresh if row.node_id in locked])
    _share_blame([*known, *fresh])
    NodeFailure.objects.bulk_update([row for row in (*known, *fresh) if row.pk], ["blame"], batch_size=500)
    return _judge(locked, failure, at)


def _lock_origin(origin: str) -> None:
    """Two failures of one origin are noted one after the other, so that each sees the other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK_CLASS, origin])


def _of_origin(failure: Failure, at: datetime) -> list[NodeFailure]:
    """What the same origin brought about lately, whole attempts only."""
    rows = NodeFailure.objects.filter(
        origin=failure.origin, at__gt=at - health.FAILURES_COUNTED_FOR, is_certain=False
    )
    attempts = rows.order_by("-allocation_id").values_list("allocation_id", flat=True).distinct()
    return list(rows.filter(allocation_id__in=list(attempts[: health.MOST_ATTEMPTS])))


def _share_blame(rows: Sequence[NodeFailure]) -> None:
    """Who took part in all failures of the origin shares the blame; the others have none."""
    attempts: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if not row.is_certain:
            attempts[row.allocation_id].add(row.node_id)
    suspects = health.suspects({id_: frozenset(of) for id_, of in attempts.items()})
    for row in rows:
        if row.is_certain:
            row.blame = 1.0
        else:
            row.blame = 1.0 / len(suspects) if row.node_id in suspects else 0.0


# Judging ------------------------------------------------------------------------------------------------------------


def _judge(locked: Mapping[int, Node], failure: Failure, at: datetime) -> list[Node]:
    against = _against(locked.values(), at)
    return [node for node in locked.values() if _judge_one(node, against[node.pk], failure, at)]


def _judge_one(node: Node, rows: Sequence[NodeFailure], failure: Failure, at: datetime) -> bool:
    score = health.score(
        health.Blamed(at=row.at, origin=row.origin, kind=row.kind, blame=row.blame) for row in rows
    )
    is_enough = score >= _limit(node, at) - 1e-9
    if not is_enough and node.health_by == HealthBy.FAILURES:
        return _acquit(node, failure, at)
    blame = max((row.blame for row in rows if row.allocation_id == failure.allocation_id), default=0.0)
    if not blame:
        return False
    if is_enough and _quarantine(node, rows, at):
        return True
    return _rest(node, failure, rows, at) if blame >= health.REST_FROM_BLAME else False


def _against(of: Iterable[Node], at: datetime) -> dict[int, list[NodeFailure]]:
    """What counts against each of these nodes, the newest first."""
    by_node: dict[int, list[NodeFailure]] = {node.pk: [] for node in of}
    since = {node.pk: _counted_from(node, at) for node in of}
    if not since:
        return by_node
    rows = NodeFailure.objects.filter(node__in=by_node, blame__gt=0, at__gt=min(since.values()))
    for row in rows.order_by("-at", "-id"):
        if row.at > since[row.node_id]:
            by_node[row.node_id].append(row)
    return by_node


def _counted_from(node: Node, at: datetime) -> datetime:
    # What it was put away for does not grow stale while it is away: only other findings acquit it.
    end = at
    if node.health_by == HealthBy.FAILURES and node.quarantined_at is not None:
        end = min(at, node.quarantined_at)
    since = end - health.FAILURES_COUNTED_FOR
    return since if node.judged_from_at is None else max(since, node.judged_from_at)


def _limit(node: Node, at: datetime) -> float:
    if node.health_by == HealthBy.FAILURES:
        # What took it away is measured by what it was then.
        is_on_probation = node.n_quarantines > 1
    else:
        is_on_probation = (
            node.n_quarantines > 0
            and node.quarantined_at is not None
            and at - node.quarantined_at <= health.FORGIVEN_AFTER
        )
    return health.QUARANTINE_AFTER_ON_PROBATION if is_on_probation else health.QUARANTINE_AFTER


def _quarantine(node: Node, rows: Sequence[NodeFailure], at: datetime) -> bool:
    reason = f"{_told(rows)}."
    if node.health == Health.SUSPECT and node.health_by == HealthBy.FAILURES:
        # What was still running there fails as well: the rest begins anew, but it is the same quarantine.
        until = at + health.cooldown(node.n_quarantines)
        if node.cooldown_until_at is not None and until <= node.cooldown_until_at:
            return False
        before = nodes.facts_of(node)
        node.cooldown_until_at = until
        nodes.set_health(node, Health.SUSPECT, reason, at, by=HealthBy.FAILURES)
        nodes.save_and_record(
            "node.quarantined", node, before, actor=None, at=at, reason=reason, is_audit=True
        )
        return True
    if node.health != Health.HEALTHY:
        return False  # it gets no work anyway, and comes back by other rules
    before = nodes.facts_of(node)
    node.cooldown_until_at = at + nodes.begin_quarantine(node, at)
    nodes.set_health(node, Health.SUSPECT, reason, at, by=HealthBy.FAILURES)
    nodes.save_and_record(
        "node.quarantined",
        node,
        before,
        actor=None,
        at=at,
        reason=reason,
        is_audit=True,
        data={"n_quarantines": node.n_quarantines, "job_ids": sorted({row.job_id for row in rows})},
    )
    return True


def _acquit(node: Node, failure: Failure, at: datetime) -> bool:
    """What it was put away for has turned out to be a job's own fault."""
    before = nodes.facts_of(node)
    reason = f"What failed here fails on other nodes too (job {failure.job_id}): it is not this node."
    node.n_quarantines = max(node.n_quarantines - 1, 0)
    if node.n_quarantines == 0:
        node.quarantined_at = None
    node.cooldown_until_at = None
    nodes.set_health(node, Health.HEALTHY, "", at)
    nodes.save_and_record("node.cooled_down", node, before, actor=None, at=at, reason=reason, is_audit=True)
    return True


def _rest(node: Node, failure: Failure, rows: Sequence[NodeFailure], at: datetime) -> bool:
    """No instant reuse: what failed to start here, or was lost, is not tried here again at once."""
    if failure.kind == FailureKind.EARLY_END or node.health != Health.HEALTHY:
        return False
    until = at + health.SHORT_COOLDOWN
    if node.cooldown_until_at is not None and node.cooldown_until_at >= until:
        return False
    before = nodes.facts_of(node)
    node.cooldown_until_at = until
    nodes.save_and_record(
        "node.failure_noted",
        node,
        before,
        actor=None,
        at=at,
        reason=f"{_told(rows[:1])}; it rests a moment.",
        data={"job_id": failure.job_id, "allocation_id": failure.allocation_id, "kind": failure.kind},
    )
    return True


def _told(rows: Sequence[NodeFailure]) -> str:
    """Which failures, for people: numbers and kinds only, since what a job says is its team's."""
    said = ", ".join(f"job {row.job_id} {_WORDS[FailureKind(row.kind)]}" for row in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"{len(rows)} {'failure' if len(rows) == 1 else 'failures'}: {said}{more}"


_WORDS: Final = {
    FailureKind.START_FAILED: "did not start",
    FailureKind.EARLY_END: "failed soon after its start",
    FailureKind.NODE_LOST: "was lost",
}


def failed_nodes(node_ids: Collection[int]) -> frozenset[int]:
    """Those of these nodes that are down."""
    found = Node.objects.filter(pk__in=node_ids, health=Health.FAILED)
    return frozenset(found.values_list("pk", flat=True))

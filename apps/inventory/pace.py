"""How fast nodes are beside others, as jobs see it: a measured speed that placement can count on.

A node that is slow in several jobs, or in one for long, is a straggler: a gang that has it is as slow as it is. Its
speed is estimated from what the jobs saw, and comes back to 1 step by step while it keeps pace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from apps.inventory import health, nodes
from apps.inventory.models import Node, PaceReading


@dataclass(frozen=True, slots=True)
class Pace:
    """How one node does in one job.

    Args:
        relative_speed: Median step time of its group by the node's own, in (0, 1].
    """

    relative_speed: float
    is_slow: bool


@transaction.atomic
def note_paces(*, allocation_id: int, job_id: int, paces: Mapping[int, Pace], at: datetime) -> list[Node]:
    """Take note of how the nodes (by id) of one allocation do; return those whose measured speed changed."""
    slow = {id_ for id_, pace in paces.items() if pace.is_slow}
    was_slow = PaceReading.objects.filter(node=OuterRef("pk"), allocation_id=allocation_id)
    concerned = Node.objects.filter(pk__in=paces).filter(
        Q(pk__in=slow) | Q(measured_speed__lt=1) | Exists(was_slow)
    )
    # Most nodes keep pace and always did: they are not locked.
    locked = nodes.locked_many(list(concerned.values_list("pk", flat=True)))
    if not locked:
        return []
    _keep(locked, allocation_id, job_id, paces, at)
    rows = _evidence(locked, at)
    return [node for node in locked.values() if _judge(node, paces[node.pk], rows[node.pk], at)]


def _keep(
    locked: Mapping[int, Node], allocation_id: int, job_id: int, paces: Mapping[int, Pace], at: datetime
) -> None:
    known = {
        row.node_id: row for row in PaceReading.objects.filter(node__in=locked, allocation_id=allocation_id)
    }
    for node_id in locked:
        pace, row = paces[node_id], known.get(node_id)
        if row is None:
            if not pace.is_slow:
                continue
            row = PaceReading(node_id=node_id, allocation_id=allocation_id, job_id=job_id)
        elif row.at >= at:
            continue
        row.relative_speed, row.at = _bounded(pace.relative_speed), at
        row.slow_since_at = (row.slow_since_at or at) if pace.is_slow else None
        row.save()


def _bounded(relative_speed: float) -> float:
    return min(max(relative_speed, 1e-6), 1.0)


def _judge(node: Node, pace: Pace, rows: Sequence[PaceReading], at: datetime) -> bool:
    if not pace.is_slow:
        is_fresh = any(at - row.at < health.RECOVERY_EVERY for row in rows)
        return not is_fresh and _recover(node, at)
    if not _is_straggler(rows, at):
        return False
    speed = health.estimate([row.relative_speed for row in rows])
    if abs(speed - node.measured_speed) < health.LEAST_CHANGE:
        return False
    reason = f"Its steps take {1 / speed:.2f} times as long as its neighbours' in {_jobs(rows)}."
    data = {"measured_speed": speed, "job_ids": sorted({row.job_id for row in rows})}
    _set_speed(node, speed, "node.straggling", reason, at, data)
    return True


def _evidence(locked: Mapping[int, Node], at: datetime) -> dict[int, list[PaceReading]]:
    """By node, what counts against it, the latest first."""
    found: dict[int, list[PaceReading]] = {node_id: [] for node_id in locked}
    rows = PaceReading.objects.filter(
        node__in=locked, slow_since_at__isnull=False, at__gt=at - health.PACES_COUNTED_FOR
    )
    for row in rows.order_by("-at", "-id"):
        since = locked[row.node_id].judged_from_at
        if since is None or row.at > since:
            found[row.node_id].append(row)
    return found


def _is_straggler(rows: Sequence[PaceReading], at: datetime) -> bool:
    if len({row.job_id for row in rows}) >= health.SLOW_JOBS:
        return True
    return any(
        row.slow_since_at is not None and row.at - row.slow_since_at >= health.SLOW_FOR_LONG for row in rows
    )


def _jobs(rows: Sequence[PaceReading]) -> str:
    ids = sorted({row.job_id for row in rows})
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(str(id_) for id_ in ids[:5])}"


def _recover(node: Node, at: datetime) -> bool:
    """Give back half of what it is short of, if the last step was long enough ago."""
    if node.measured_speed >= 1 or (
        node.measured_at is not None and at - node.measured_at < health.RECOVERY_EVERY
    ):
        return False
    speed = health.recovered(node.measured_speed)
    if speed < 1:
        _set_speed(node, speed, "node.pace_improved", "It keeps pace.", at, {"measured_speed": speed})
        return True
    # It begins with a clean sheet: what it was then is no evidence against what it is now.
    PaceReading.objects.filter(node=node).update(slow_since_at=None)
    _set_speed(node, 1.0, "node.pace_regained", "It keeps pace.", at, {"measured_speed": 1.0})
    return True


def _set_speed(
    node: Node, speed: float, kind: str, reason: str, at: datetime, data: Mapping[str, Any]
) -> None:
    before = nodes.facts_of(node)
    node.measured_speed, node.measured_at = speed, at
    nodes.save_and_record(kind, node, before, actor=None, at=at, reason=reason, is_audit=True, data=data)


@transaction.atomic
def forget_paces(*, at: datetime) -> list[Node]:
    """Nodes of which nothing slow was heard for long come back step by step. Called by the beat."""
    before = at - health.PACES_COUNTED_FOR
    heard = PaceReading.objects.filter(node=OuterRef("pk"), slow_since_at__isnull=False, at__gt=before)
    quiet = Node.objects.filter(measured_speed__lt=1, measured_at__lte=before).exclude(Exists(heard))
    locked = nodes.locked_many(list(quiet.values_list("pk", flat=True)))
    return [
        node
        for node in locked.values()
        if node.measured_at is not None and node.measured_at <= before and _recover(node, at)
    ]

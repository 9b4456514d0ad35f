"""What every service that changes a node's health is made of: the lock, the change, and its event."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from apps.core.errors import NotFound
from apps.events.services import record
from apps.inventory import health
from apps.inventory.models import Device, Health, HealthBy, Node
from apps.teams.models import User

LONGEST_REASON: Final = 500
_FIELDS: Final = (
    "health", "health_reason", "health_since_at", "health_by", "cooldown_until_at", "drain_asked_at",
    "judged_from_at", "n_quarantines", "quarantined_at", "measured_speed", "measured_at",
)  # fmt: skip


def locked(node_id: int) -> Node:
    """One node, for whoever is about to change it."""
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id).first()
    if node is None:
        raise NotFound("There is no such node.")
    return node


def locked_many(node_ids: Collection[int]) -> dict[int, Node]:
    """Nodes by id, locked in id order as everywhere, so that no two callers wait for each other."""
    if not node_ids:
        return {}
    rows = Node.objects.select_for_update(no_key=True).filter(pk__in=node_ids).order_by("pk")
    return {node.pk: node for node in rows}


def is_claimed(node: Node) -> bool:
    return Device.objects.filter(node=node, claimed_share__gt=0).exists()


def set_health(node: Node, to: str, reason: str, at: datetime, *, by: str = HealthBy.NONE) -> None:
    """Change the row in memory; save() keeps it."""
    if node.health != to:
        node.health, node.health_since_at = to, at
    # What a monitor says may be a page long; the log keeps all of it.
    node.health_reason, node.health_by = reason[:LONGEST_REASON], by


def when_asked_empty(node: Node) -> str:
    """The health of a node that is well and that an operator wants empty."""
    return Health.DRAINING if is_claimed(node) else Health.DRAINED


def begin_quarantine(node: Node, at: datetime) -> timedelta:
    """Count a quarantine; return how long the node cools down, twice as long as the last time if that was lately."""
    if node.quarantined_at is None or at - node.quarantined_at > health.FORGIVEN_AFTER:
        node.n_quarantines = 0
    node.n_quarantines = min(node.n_quarantines + 1, health.MOST_QUARANTINES)
    node.quarantined_at = at
    return health.cooldown(node.n_quarantines)


def facts_of(node: Node) -> dict[str, Any]:
    """What the log shows before and after."""
    return {
        "health": str(node.health),
        "reason": node.health_reason,
        "is_drain_asked": node.drain_asked_at is not None,
        "cooldown_until_at": None if node.cooldown_until_at is None else node.cooldown_until_at.isoformat(),
        "measured_speed": node.measured_speed,
    }


def save(node: Node) -> None:
    node.save(update_fields=list(_FIELDS))


def save_and_record(
    kind: str,
    node: Node,
    before: Mapping[str, Any],
    *,
    actor: User | None,
    at: datetime,
    reason: str = "",
    is_audit: bool | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Keep a changed node, with its event.

    Args:
        is_audit: By default what a person did. What the rules decide without one is audited too where it takes a
            node from people, or gives it back.
    """
    save(node)
    record(
        kind,
        subject_kind="node",
        subject_id=node.pk,
        subject_name=node.name,
        actor=actor,
        at=at,
        is_audit=actor is not None if is_audit is None else is_audit,
        reason=reason,
        before=before,
        after=facts_of(node),
        data={"cluster_id": node.cluster_id, **(data or {})},
    )

"""Work that the ledger does not know, on nodes that it plans for: what it holds, and that it is told to the planner."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.events.services import record
from apps.inventory.models import Device, Node, OutsideUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Devices of one node that somebody else holds; without `are_exact` only their number is known."""

    node_id: int
    key: str
    device_indices: tuple[int, ...]
    label: str = ""
    are_exact: bool = True
    since_at: datetime | None = None
    until_at: datetime | None = None


def take_uses(*, cluster_id: int, uses: Sequence[Use], at: datetime) -> bool:
    """Bring what is known of one cluster in line with what was seen there; return whether anything changed.

    The same seen again changes nothing, and costs one query.
    """
    known = {
        (row.node_id, row.key): row
        for row in OutsideUse.objects.filter(node__cluster=cluster_id).order_by("id")
    }
    seen = {(use.node_id, use.key): use for use in uses}
    gone = [row for key, row in known.items() if key not in seen]
    news = [use for key, use in seen.items() if key not in known or _differs(known[key], use)]
    if not gone and not news:
        return False
    _write(gone, news, known, at)
    return True


def _differs(row: OutsideUse, use: Use) -> bool:
    if row.until_at != use.until_at:
        return True
    if use.are_exact:
        return row.device_indices != sorted(use.device_indices)
    return len(row.device_indices) != len(use.device_indices)


@transaction.atomic
def _write(
    gone: Sequence[OutsideUse],
    news: Sequence[Use],
    known: Mapping[tuple[int, str], OutsideUse],
    at: datetime,
) -> None:
    OutsideUse.objects.filter(pk__in=[row.pk for row in gone]).delete()
    for use in news:
        indices = sorted(use.device_indices if use.are_exact else _some(use))
        OutsideUse.objects.update_or_create(
            node_id=use.node_id,
            key=use.key,
            defaults={
                "label": use.label[:200],
                "device_indices": indices,
                "since_at": use.since_at or at,
                "until_at": use.until_at,
            },
        )
    touched: dict[int, list[str]] = defaultdict(list)
    for row in gone:
        touched[row.node_id].append(f"{row.label or row.key} is gone")
    for use in news:
        if (use.node_id, use.key) not in known:
            touched[use.node_id].append(f"{use.label or use.key} holds {len(use.device_indices)} devices")
    for node in Node.objects.filter(pk__in=touched).order_by("pk"):
        record(
            "node.outside_use_changed",
            subject_kind="node",
            subject_id=node.pk,
            subject_name=node.name,
            at=at,
            reason="; ".join(touched[node.pk])[:500],
            data={"cluster_id": node.cluster_id},
        )


def _some(use: Use) -> list[int]:
    """Which devices stand for a number of them: free ones, from the end."""
    free = list(
        Device.objects.filter(node=use.node_id, claimed_share=0)
        .order_by("-index")
        .values_list("index", flat=True)
    )
    others: set[int] = set()
    for indices in (
        OutsideUse.objects.filter(node=use.node_id)
        .exclude(key=use.key)
        .values_list("device_indices", flat=True)
    ):
        others.update(indices)
    ranked = [index for index in free if index not in others]
    ranked += [index for index in use.device_indices if index not in ranked]
    return ranked[: len(use.device_indices)]


def held_outside(node_ids: Collection[int]) -> set[tuple[int, int]]:
    """(node id, device index) of all that somebody else holds on these nodes."""
    rows = OutsideUse.objects.filter(node__in=node_ids).values_list("node_id", "device_indices")
    return {(node_id, index) for node_id, indices in rows for index in indices}

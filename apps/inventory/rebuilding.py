"""Changing what is built already, and taking away what never did anything. An actor of None is the site itself.

What has run work stays in the books: such a node is not removed but drained.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from apps.core.errors import InvalidInput, NotFound
from apps.events.services import EventRow, record, record_many
from apps.inventory import services
from apps.inventory.models import AcceleratorType, Cluster, Device, Domain, Node
from apps.teams import policies
from apps.teams.models import User

TYPE_FIELDS: Final = (
    "tdp_w",
    "memory_gib",
    "idle_w",
    "speed",
    "power_curve",
    "cap_step_w",
    "cap_settle_s",
)
NODE_FIELDS: Final = (
    *("cluster", "accelerator_type", "n_devices", "cpus", "memory_gib"),
    *("scale_up", "leaf", "power", "cooling", "storage", "idle_w", "speed"),
)
# What cannot become another while work runs on it: the work was started as what it was.
_FIXED_WHILE_BUSY: Final = ("cluster", "accelerator_type")


@transaction.atomic
def change_accelerator_type(
    *, name: str, changes: Mapping[str, Any], actor: User | None, at: datetime, reason: str = ""
) -> AcceleratorType:
    """Change a type of device: any of TYPE_FIELDS; those absent stay.

    Raises:
        InvalidInput: a curve that does not rise, or a device that draws more at rest than at most.
    """
    _require_admin(actor)
    row = AcceleratorType.objects.select_for_update(no_key=True).filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no accelerator type named {name!r}.")
    before = {field: getattr(row, field) for field in changes}
    for field, value in changes.items():
        assert field in TYPE_FIELDS, field
        setattr(row, field, value)
    if "power_curve" in changes:
        services.require_curve(row.power_curve)
    if row.idle_w > row.tdp_w:
        field = "idle_w" if "idle_w" in changes else "tdp_w"
        said = "must not be over tdp_w" if field == "idle_w" else "must not be under idle_w"
        raise InvalidInput.of(field, said, "out_of_range")
    row.save()
    _record("accelerator_type.changed", "accelerator_type", row, actor, at, reason, before, dict(changes))
    return row


@transaction.atomic
def change_cluster(
    *, name: str, config: Mapping[str, Any], actor: User | None, at: datetime, reason: str = ""
) -> Cluster:
    """Change how a cluster is reached. The log says that it changed, not what it is: it may open a backend."""
    _require_admin(actor)
    row = Cluster.objects.select_for_update(no_key=True).filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no cluster named {name!r}.")
    row.config = dict(config)
    row.save(update_fields=["config"])
    _record("cluster.changed", "cluster", row, actor, at, reason, None, {"config": "changed"})
    return row


@transaction.atomic
def move_domain(*, name: str, parent: Domain, actor: User | None, at: datetime, reason: str = "") -> Domain:
    """Hang a domain, with all that is below it, below another one of a wider kind of its tree."""
    _require_admin(actor)
    row = Domain.objects.select_for_update(no_key=True, of=("self",)).filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no domain named {name!r}.")
    services.require_below(row.kind, parent)
    before = {"parent": None if row.parent is None else row.parent.name}
    row.parent = parent
    row.save(update_fields=["parent"])
    _record("domain.changed", "domain", row, actor, at, reason, before, {"parent": parent.name})
    return row


@transaction.atomic
def change_node(
    *, name: str, changes: Mapping[str, Any], actor: User | None, at: datetime, reason: str = ""
) -> Node:
    """Change a node as built: any of NODE_FIELDS, things by the rows themselves; those absent stay.

    Raises:
        InvalidInput: a domain of a wrong kind; another type or cluster, or fewer devices, while work runs there; or
            devices fewer than those that ever ran work, which stay in the books.
    """
    _require_admin(actor)
    row = Node.objects.select_for_update(no_key=True).filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no node named {name!r}.")
    before = _said({field: getattr(row, field) for field in changes})
    # Whoever starts work here locks its devices: what is looked at below holds until the end.
    claimed = list(
        Device.objects.select_for_update(no_key=True).filter(node=row, claimed_share__gt=0).order_by("pk")
    )
    for field, value in changes.items():
        assert field in NODE_FIELDS, field
        if claimed and field in _FIXED_WHILE_BUSY:
            raise InvalidInput.of(field, f"cannot change while work runs on {name}; drain it first", "in_use")
        setattr(row, field, value)
    facts = {field: getattr(row, field) for field in NODE_FIELDS if field != "cluster"}
    services.require_hangs_right(services.NodeFacts(name=row.name, **facts))
    if "n_devices" in changes:
        _resize(row, claimed)
    row.save(update_fields=list(changes))
    _record("node.changed", "node", row, actor, at, reason, before, _said(changes))
    return row


def _resize(row: Node, claimed: Sequence[Device]) -> None:
    over = [device.index for device in claimed if device.index >= row.n_devices]
    if over:
        raise InvalidInput.of(
            "n_devices", f"leaves out device {over[0]} of {row.name}, which runs work", "in_use"
        )
    try:
        with transaction.atomic():
            Device.objects.filter(node=row, index__gte=row.n_devices).delete()
    except (ProtectedError, IntegrityError):
        said = f"leaves out devices of {row.name} that have run work and stay in the books"
        raise InvalidInput.of("n_devices", said, "in_use") from None
    there = set(Device.objects.filter(node=row).values_list("index", flat=True))
    missing = [index for index in range(row.n_devices) if index not in there]
    Device.objects.bulk_create([Device(node=row, index=index) for index in missing])


@transaction.atomic
def remove_nodes(*, names: Sequence[str], actor: User | None, at: datetime, reason: str = "") -> None:
    """Take away nodes that never ran anything, with their devices.

    Raises:
        InvalidInput: at `name`: one that has run work, and stays in the books.
    """
    _require_admin(actor)
    rows = list(Node.objects.select_for_update().filter(name__in=names).order_by("pk"))
    events = [
        EventRow(
            kind="node.removed",
            subject_kind="node",
            subject_id=row.pk,
            subject_name=row.name,
            actor=actor,
            at=at,
            is_audit=True,
            reason=reason,
            before={"cluster_id": row.cluster_id, "n_devices": row.n_devices},
        )
        for row in rows
    ]
    try:
        with transaction.atomic():
            Node.objects.filter(pk__in=[row.pk for row in rows]).delete()
    except (ProtectedError, IntegrityError):
        raise InvalidInput.of("name", "has run work and stays in the books; drain it", "in_use") from None
    record_many(events)


@transaction.atomic
def remove_domain(*, name: str, actor: User | None, at: datetime, reason: str = "") -> None:
    """Take away a domain that nothing hangs in, with its limit and its readings.

    Raises:
        InvalidInput: at `name`: something is in it, or speaks of it.
    """
    _require_admin(actor)
    row = Domain.objects.select_for_update().filter(name=name).first()
    if row is None:
        return
    gone = row.pk
    try:
        with transaction.atomic():
            row.delete()
    except (ProtectedError, IntegrityError):
        said = f"cannot be removed: something hangs in {name}, or speaks of it"
        raise InvalidInput.of("name", said, "in_use") from None
    row.pk = gone
    _record("domain.removed", "domain", row, actor, at, reason, {"kind": row.kind}, None)


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As the log shows it: things by their names."""
    return {
        field: getattr(value, "name", value) if value is not None else None for field, value in facts.items()
    }


def _record(
    kind: str,
    subject_kind: str,
    row: Any,
    actor: User | None,
    at: datetime,
    reason: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    record(
        kind,
        subject_kind=subject_kind,
        subject_id=row.pk,
        subject_name=row.name,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        before=before,
        after=after,
    )


def _require_admin(actor: User | None) -> None:
    if actor is not None:
        policies.require_admin(actor)

"""Changing the facility as built, and the health of its nodes. An actor of None is the site itself, or a monitor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from apps.core.errors import InvalidInput, NameTaken
from apps.events.services import EventRow, record, record_many
from apps.inventory import health as rules
from apps.inventory import nodes, pace, reports
from apps.inventory.errors import NodeUnfit
from apps.inventory.models import (
    TREES,
    AcceleratorType,
    Backend,
    Cluster,
    Device,
    Domain,
    Health,
    HealthBy,
    Node,
)
from apps.teams import policies
from apps.teams.models import User

# The shape measured on A100 in training: [cap as a share of TDP, share of throughput].
ASSUMED_POWER_CURVE: Final = ([0.5, 0.63], [0.6, 0.75], [0.7, 0.83], [0.8, 0.89], [0.9, 0.94], [1.0, 1.0])
ASSUMED_IDLE_SHARE: Final = 0.1
ASSUMED_CAP_STEP_SHARE: Final = 0.01

# The facility as built ---------------------------------------------------------------------------------------------


@transaction.atomic
def create_accelerator_type(
    *,
    name: str,
    tdp_w: float,
    actor: User | None,
    at: datetime,
    memory_gib: float = 0.0,
    idle_w: float | None = None,
    speed: float = 1.0,
    power_curve: Sequence[Sequence[float]] | None = None,
    cap_step_w: float | None = None,
    cap_settle_s: float = 10.0,
) -> AcceleratorType:
    """A type of device. What is not said is assumed: idle at a tenth of TDP, the A100's curve, steps of a hundredth.

    Raises:
        InvalidInput: for a curve that does not rise, or does not end at full power and full throughput.
    """
    _require_admin(actor)
    curve = [list(point) for point in (ASSUMED_POWER_CURVE if power_curve is None else power_curve)]
    require_curve(curve)
    if idle_w is not None and idle_w > tdp_w:
        raise InvalidInput.of("idle_w", "must not be over tdp_w", "out_of_range")
    try:
        with transaction.atomic():
            made = AcceleratorType.objects.create(
                name=name,
                memory_gib=memory_gib,
                tdp_w=tdp_w,
                idle_w=ASSUMED_IDLE_SHARE * tdp_w if idle_w is None else idle_w,
                speed=speed,
                power_curve=curve,
                cap_step_w=ASSUMED_CAP_STEP_SHARE * tdp_w if cap_step_w is None else cap_step_w,
                cap_settle_s=cap_settle_s,
            )
    except IntegrityError:
        raise NameTaken("accelerator type", name) from None
    after = {"tdp_w": tdp_w, "memory_gib": memory_gib, "idle_w": made.idle_w, "speed": speed}
    _record("accelerator_type.created", "accelerator_type", made, actor=actor, at=at, after=after)
    return made


def require_curve(curve: Sequence[Sequence[float]]) -> None:
    """Refuse a curve that does not rise, or does not end at full power and full throughput."""
    last_cap = last_pace = 0.0
    for index, point in enumerate(curve):
        cap, pace = point
        if not (last_cap < cap <= 1 and last_pace <= pace <= 1 and pace > 0):
            message = "must rise from the point before it, up to 1 and 1"
            raise InvalidInput.of(f"power_curve[{index}]", message, "out_of_range")
        last_cap, last_pace = cap, pace
    if (last_cap, last_pace) != (1.0, 1.0):
        raise InvalidInput.of("power_curve", "must end at full power and full throughput, [1, 1]")


@transaction.atomic
def create_domain(
    *, name: str, kind: str, actor: User | None, at: datetime, parent: Domain | None = None
) -> Domain:
    """A subtree of the network, power, cooling or storage tree, below one of a wider kind of the same tree."""
    _require_admin(actor)
    if parent is not None:
        require_below(kind, parent)
    try:
        with transaction.atomic():
            made = Domain.objects.create(name=name, kind=kind, parent=parent)
    except IntegrityError:
        raise NameTaken("domain", name) from None
    after = {"kind": kind, "parent": None if parent is None else parent.name}
    _record("domain.created", "domain", made, actor=actor, at=at, after=after)
    return made


def require_below(kind: str, parent: Domain) -> None:
    """Refuse a parent of another tree, or of a kind that is not wider."""
    for kinds in TREES.values():
        if kind in kinds and parent.kind in kinds and kinds.index(parent.kind) < kinds.index(kind):
            return
    raise InvalidInput.of(
        "parent", f"must be of a wider kind of the same tree; {parent.name} is a {parent.kind}"
    )


@transaction.atomic
def create_cluster(
    *,
    name: str,
    backend: str,
    actor: User | None,
    at: datetime,
    config: Mapping[str, Any] | None = None,
) -> Cluster:
    """A set of nodes behind one backend."""
    _require_admin(actor)
    if backend not in Backend.values:
        raise InvalidInput.of("backend", f"must be one of {', '.join(Backend.values)}", "not_a_choice")
    try:
        with transaction.atomic():
            made = Cluster.objects.create(name=name, backend=backend, config=dict(config or {}))
    except IntegrityError:
        raise NameTaken("cluster", name) from None
    # Not the configuration: it may hold what opens a backend.
    _record("cluster.created", "cluster", made, actor=actor, at=at, after={"backend": backend})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node as built: its devices, and the lowest domain of each tree it hangs in."""

    name: str
    accelerator_type: AcceleratorType
    n_devices: int
    cpus: float | None = None
    memory_gib: float | None = None
    scale_up: Domain | None = None
    leaf: Domain | None = None
    power: Domain | None = None
    cooling: Domain | None = None
    storage: Domain | None = None
    idle_w: float = 0.0
    speed: float = 1.0


KINDS_OF_FIELD: Final = {
    "scale_up": ("scale_up",),
    "leaf": ("leaf", "spine"),
    "power": ("rack", "row", "hall", "facility"),
    "cooling": ("cooling",),
    "storage": ("storage",),
}


def create_node(*, cluster: Cluster, facts: NodeFacts, actor: User | None, at: datetime) -> Node:
    """A node with its devices."""
    return create_nodes(cluster=cluster, rows=[facts], actor=actor, at=at)[0]


@transaction.atomic
def create_nodes(
    *, cluster: Cluster, rows: Sequence[NodeFacts], actor: User | None, at: datetime
) -> list[Node]:
    """Nodes with their devices, all or none; thousands at a time."""
    _require_admin(actor)
    for facts in rows:
        require_hangs_right(facts)
    try:
        with transaction.atomic():
            nodes = Node.objects.bulk_create([_node(cluster, facts, at) for facts in rows], batch_size=2000)
    except IntegrityError:
        names = [facts.name for facts in rows]
        taken = Node.objects.filter(name__in=names).order_by("name").first()
        twice = next((name for name in names if names.count(name) > 1), "") if taken is None else ""
        raise NameTaken("node", twice if taken is None else taken.name) from None
    Device.objects.bulk_create(
        [Device(node=node, index=index) for node in nodes for index in range(node.n_devices)], batch_size=5000
    )
    record_many(
        [
            EventRow(
                kind="node.created",
                subject_kind="node",
                subject_id=node.pk,
                subject_name=node.name,
                actor=actor,
                at=at,
                is_audit=True,
                after={
                    "cluster": cluster.name,
                    "accelerator_type": node.accelerator_type.name,
                    "n_devices": node.n_devices,
                },
            )
            for node in nodes
        ]
    )
    return nodes


def require_hangs_right(facts: NodeFacts) -> None:
    """Refuse a domain of a kind that nodes do not hang in by that field."""
    for field, kinds in KINDS_OF_FIELD.items():
        domain: Domain | None = getattr(facts, field)
        if domain is not None and domain.kind not in kinds:
            message = f"must be a {' or '.join(kinds)}; {domain.name} is a {domain.kind}"
            raise InvalidInput.of(field, message, "not_a_choice")


def _node(cluster: Cluster, facts: NodeFacts, at: datetime) -> Node:
    return Node(
        cluster=cluster,
        name=facts.name,
        accelerator_type=facts.accelerator_type,
        n_devices=facts.n_devices,
        cpus=facts.cpus,
        memory_gib=facts.memory_gib,
        scale_up=facts.scale_up,
        leaf=facts.leaf,
        power=facts.power,
        cooling=facts.cooling,
        storage=facts.storage,
        idle_w=facts.idle_w,
        speed=facts.speed,
        health_since_at=at,
    )


# Health ------------------------------------------------------------------------------------------------------------

REPORTED: Final = (Health.HEALTHY, Health.SUSPECT, Health.FAILED)


@transaction.atomic
def drain_node(*, node_id: int, actor: User | None, at: datetime, reason: str = "") -> Node:
    """Let a node's work end and give it no more. Draining twice changes nothing the second time."""
    _require_may_operate(actor)
    node = nodes.locked(node_id)
    if node.drain_asked_at is not None:
        return node
    before = nodes.facts_of(node)
    node.drain_asked_at = at
    if node.health != Health.FAILED:
        nodes.set_health(node, nodes.when_asked_empty(node), reason, at)
    nodes.save_and_record("node.drain_requested", node, before, actor=actor, at=at, reason=reason)
    return node


@transaction.atomic
def resume_node(*, node_id: int, actor: User | None, at: datetime, reason: str = "") -> Node:
    """Give a node work again: after a drain, after a failure that was mended, or before its cool-down is over.

    What was reported of it and failed on it until now is forgiven, and how slow it was.
    """
    _require_may_operate(actor)
    node = nodes.locked(node_id)
    before = nodes.facts_of(node)
    node.drain_asked_at = None
    node.cooldown_until_at = None
    node.measured_speed = 1.0
    if node.health != Health.HEALTHY:
        nodes.set_health(node, Health.HEALTHY, reason, at)
    if nodes.facts_of(node) == before:
        return node
    node.judged_from_at = at
    nodes.save_and_record("node.resumed", node, before, actor=actor, at=at, reason=reason)
    return node


@transaction.atomic
def report_health(
    *,
    node_id: int,
    health: str,
    reason: str,
    actor: User | None,
    at: datetime,
    cooldown_s: float | None = None,
) -> Node:
    """Write down what an operator says of a node: healthy, suspect or failed. Only a person takes that back.

    A node that an operator drains stays drained when it is well again. One that failed takes work again
    `cooldown_s` after it came back; not said: as long as the rules have it cool down. The same word twice changes
    nothing the second time. What probes and agents see goes to `reports.take_report`.
    """
    _require_may_operate(actor)
    if health not in REPORTED:
        raise InvalidInput.of("health", f"must be one of {', '.join(REPORTED)}", "not_a_choice")
    node = nodes.locked(node_id)
    before = nodes.facts_of(node)
    wanted: str = health
    if node.drain_asked_at is not None and health != Health.FAILED:
        wanted = nodes.when_asked_empty(node)
    if node.health == Health.FAILED and health != Health.FAILED:
        rest = rules.cooldown(node.n_quarantines) if cooldown_s is None else timedelta(seconds=cooldown_s)
        node.cooldown_until_at = at + rest if rest else None
    if node.health != wanted:
        if health == Health.FAILED:
            nodes.begin_quarantine(node, at)
        by = HealthBy.PERSON if wanted in (Health.SUSPECT, Health.FAILED) else HealthBy.NONE
        if wanted == Health.HEALTHY:
            node.judged_from_at = at
        nodes.set_health(node, wanted, reason, at, by=by)
    elif reason:
        node.health_reason = reason[: nodes.LONGEST_REASON]
    if node.health in (Health.SUSPECT, Health.FAILED):
        node.health_by = HealthBy.PERSON
    if nodes.facts_of(node) == before:
        nodes.save(node)
        return node
    nodes.save_and_record("node.health_changed", node, before, actor=actor, at=at, reason=reason)
    return node


@transaction.atomic
def settle_draining(*, at: datetime, node_ids: Sequence[int] | None = None) -> list[Node]:
    """Nodes whose last work has ended are drained. Called when work ends, and by the slow beat."""
    draining: QuerySet[Node] = Node.objects.filter(health=Health.DRAINING)
    if node_ids is not None:
        draining = draining.filter(pk__in=node_ids)
    empty = list(
        draining.exclude(devices__claimed_share__gt=0)
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    )
    for node in empty:
        before = nodes.facts_of(node)
        nodes.set_health(node, Health.DRAINED, node.health_reason, at)
        nodes.save_and_record("node.drained", node, before, actor=None, at=at)
    return empty


def settle_health(*, at: datetime) -> None:
    """What time alone changes: nodes that have cooled down, and measured speeds that nobody confirms. By the beat."""
    reports.end_cooldowns(at=at)
    pace.forget_paces(at=at)


def prune(*, at: datetime) -> int:
    """Forget what was seen of nodes long ago; return how many rows."""
    return reports.prune(at=at)


def require_fit(node: Node) -> None:
    """Refuse to hand out a node that takes no work."""
    if node.health not in (Health.HEALTHY, Health.SUSPECT):
        raise NodeUnfit(f"{node.name} is {node.health}.", node=node.name, health=node.health)


def _record(
    kind: str, subject_kind: str, made: Any, *, actor: User | None, at: datetime, after: Mapping[str, Any]
) -> None:
    record(
        kind,
        subject_kind=subject_kind,
        subject_id=made.pk,
        subject_name=made.name,
        actor=actor,
        at=at,
        is_audit=True,
        after=after,
    )


def _require_admin(actor: User | None) -> None:
    if actor is not None:
        policies.require_admin(actor)


def _require_may_operate(actor: User | None) -> None:
    if actor is not None:
        policies.require_may_operate(actor)

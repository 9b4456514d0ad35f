"""Promising capacity, and taking a promise back. An actor of None is the site itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, connection, transaction

from apps.core.errors import InvalidInput, NameTaken, NotFound
from apps.events.services import record
from apps.inventory.models import AcceleratorType, DomainKind, Node
from apps.reservations import recurrence, selectors
from apps.reservations.conflicts import Conflict, Facility, Wanted, conflicts
from apps.reservations.errors import ReservationConflict
from apps.reservations.models import Reservation
from apps.reservations.recurrence import BadRule, Window
from apps.teams import policies
from apps.teams.models import Team, User

HORIZON: Final = timedelta(days=400)  # so far ahead promises are held against each other
LONGEST: Final = timedelta(days=3660)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A reservation as asked for, by names: either `nodes`, or `n_devices` of an accelerator type."""

    name: str
    starts_at: datetime
    ends_at: datetime
    time_zone: str = "UTC"
    rrule: str = ""
    nodes: tuple[str, ...] = ()
    accelerator_type: str | None = None
    n_devices: int | None = None
    within: str = ""
    teams: tuple[str, ...] = ()  # none: maintenance, for nobody
    is_flexible: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What would come of a draft; nothing is written."""

    windows: tuple[Window, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def is_possible(self) -> bool:
        return not self.conflicts


@dataclass(frozen=True, slots=True)
class _Resolved:
    nodes: tuple[Node, ...]
    accelerator_type: AcceleratorType | None
    teams: tuple[Team, ...]


def check_reservation(*, draft: Draft, at: datetime) -> Check:
    """The windows a draft would have from `at` on, and what stands in their way.

    Raises:
        InvalidInput: for a draft that makes no sense, whatever else is promised.
    """
    return _check(draft, _resolved(draft, at), at)


@transaction.atomic
def create_reservation(*, draft: Draft, actor: User | None, at: datetime) -> Reservation:
    """Promise capacity; refused when it is promised already (ReservationConflict)."""
    if actor is not None:
        policies.require_may_operate(actor)
    resolved = _resolved(draft, at)
    with connection.cursor() as cursor:
        # One after the other: of two at once, each would be possible alone.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('reservations'))")
    result = _check(draft, resolved, at)
    if result.conflicts:
        raise ReservationConflict([_conflict_facts(one) for one in result.conflicts])
    try:
        with transaction.atomic():
            made = Reservation.objects.create(
                name=draft.name,
                starts_at=draft.starts_at,
                ends_at=draft.ends_at,
                time_zone=draft.time_zone,
                rrule=draft.rrule,
                accelerator_type=resolved.accelerator_type,
                n_devices=draft.n_devices,
                within=draft.within,
                is_flexible=draft.is_flexible,
                reason=draft.reason,
                created_by=actor,
                created_at=at,
            )
    except IntegrityError as error:
        if "zone_is_known" in str(error):
            raise InvalidInput.of("time_zone", "is not known to the database") from None
        raise NameTaken("reservation", draft.name) from None
    made.nodes.set(resolved.nodes)
    made.teams.set(resolved.teams)
    _record("reservation.created", made, actor=actor, at=at, reason=draft.reason, after=_draft_facts(draft))
    return made


@transaction.atomic
def cancel_reservation(
    *, reservation_id: int, actor: User | None, at: datetime, reason: str = ""
) -> Reservation:
    """Take a promise back, all windows of it. Cancelling twice changes nothing the second time."""
    if actor is not None:
        policies.require_may_operate(actor)
    row = Reservation.objects.select_for_update(no_key=True).filter(pk=reservation_id).first()
    if row is None:
        raise NotFound("There is no such reservation.")
    if row.cancelled_at is None:
        row.cancelled_at = at
        row.save(update_fields=["cancelled_at"])
        _record("reservation.cancelled", row, actor=actor, at=at, reason=reason)
    return row


def _resolved(draft: Draft, at: datetime) -> _Resolved:
    """Rows for the names of a draft; raises InvalidInput with every fault found."""
    faults: list[dict[str, str]] = []

    def fault(path: str, message: str, code: str = "invalid") -> None:
        faults.append({"path": path, "code": code, "message": message})

    _check_times(draft, at, fault)
    known_nodes = {node.name: node for node in Node.objects.filter(name__in=draft.nodes)}
    known_teams = {team.name: team for team in Team.objects.filter(name__in=draft.teams)}
    for field, names, known in (("nodes", draft.nodes, known_nodes), ("teams", draft.teams, known_teams)):
        for index, name in enumerate(names):
            if name not in known:
                fault(f"{field}[{index}]", "names nothing that is here", "unknown")
    kind = None
    if draft.accelerator_type is not None:
        kind = AcceleratorType.objects.filter(name=draft.accelerator_type).first()
        if kind is None:
            fault("accelerator_type", "is not an accelerator type here", "unknown")
        if draft.n_devices is None:
            fault("n_devices", "is required beside accelerator_type", "missing")
    if draft.nodes and draft.accelerator_type is not None:
        fault("accelerator_type", "must not stand beside nodes: it is either named nodes or an amount")
    if not draft.nodes and draft.accelerator_type is None:
        fault("nodes", "is required, or accelerator_type with n_devices", "missing")
    if draft.n_devices is not None and draft.accelerator_type is None:
        fault("n_devices", "goes with accelerator_type")
    if draft.within and (draft.accelerator_type is None or draft.within not in DomainKind.values):
        fault("within", "must be a kind of domain, and goes with accelerator_type")
    if faults:
        raise InvalidInput(faults)
    return _Resolved(
        tuple(known_nodes[name] for name in draft.nodes),
        kind,
        tuple(known_teams[name] for name in draft.teams),
    )


def _check_times(draft: Draft, at: datetime, fault: Any) -> None:
    if draft.ends_at <= draft.starts_at:
        fault("ends_at", "must lie after starts_at", "out_of_range")
        return
    if draft.ends_at - draft.starts_at > LONGEST:
        fault("ends_at", f"must lie at most {LONGEST.days} days after starts_at", "out_of_range")
        return
    if not draft.rrule and draft.ends_at <= at:
        fault("ends_at", "must lie in the future", "out_of_range")
    try:
        zone = recurrence.zone_named(draft.time_zone)
    except BadRule as error:
        fault("time_zone", str(error))
        return
    try:
        recurrence.check_rule(Window(draft.starts_at, draft.ends_at), rule=draft.rrule, zone=zone)
    except BadRule as error:
        fault("rrule", str(error))


def _check(draft: Draft, resolved: _Resolved, at: datetime) -> Check:
    begin_at, end_at = at, max(at, draft.starts_at) + HORIZON
    windows = tuple(
        recurrence.windows(
            Window(draft.starts_at, draft.ends_at),
            rule=draft.rrule,
            zone=recurrence.zone_named(draft.time_zone),
            begin_at=begin_at,
            end_at=end_at,
        )
    )
    wanted = Wanted(
        windows=windows,
        node_ids=frozenset(node.pk for node in resolved.nodes),
        accelerator_type=resolved.accelerator_type,
        n_devices=draft.n_devices or 0,
        within=draft.within,
    )
    facility = Facility()
    kind = resolved.accelerator_type
    if kind is not None:
        most = facility.capacity(kind.pk, within=draft.within)
        if wanted.n_devices > most:
            where = f"no {draft.within} has more than" if draft.within else "the facility has"
            message = f"asks {wanted.n_devices} {kind.name}, {where} {most}"
            raise InvalidInput.of("n_devices", message, "out_of_range")
    booked = selectors.windows(begin_at, end_at) if windows else []
    return Check(windows, tuple(conflicts(wanted, booked, facility)))


def _conflict_facts(one: Conflict) -> dict[str, Any]:
    return {
        "reservation": one.reservation or None,
        "starts_at": one.starts_at.isoformat(),
        "ends_at": one.ends_at.isoformat(),
        "message": one.message,
    }


def _draft_facts(draft: Draft) -> dict[str, Any]:
    facts = asdict(draft)
    return facts | {
        "starts_at": draft.starts_at.isoformat(),
        "ends_at": draft.ends_at.isoformat(),
        "nodes": list(draft.nodes),
        "teams": list(draft.teams),
    }


def _record(
    kind: str,
    row: Reservation,
    *,
    actor: User | None,
    at: datetime,
    reason: str = "",
    after: Mapping[str, Any] | None = None,
) -> None:
    record(
        kind,
        subject_kind="reservation",
        subject_id=row.pk,
        subject_name=row.name,
        actor=actor,
        at=at,
        is_audit=True,
        reason=reason,
        after=after,
    )

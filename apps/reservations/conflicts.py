"""Whether what a new reservation promises is still there to be promised."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.inventory.models import AcceleratorType, Domain, Node
from apps.reservations.recurrence import Window
from apps.reservations.selectors import Booked

MAX_CONFLICTS = 50


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be promised in each of its windows."""

    windows: Sequence[Window]
    node_ids: frozenset[int]
    accelerator_type: AcceleratorType | None
    n_devices: int
    within: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why one window cannot be had."""

    starts_at: datetime
    ends_at: datetime
    reservation: str  # empty: no single one is to blame
    message: str


class Facility:
    """Devices by node, type and domain, as far as bookings ask for them. Two queries."""

    def __init__(self) -> None:
        self.name: dict[int, str] = {}
        self.type_of: dict[int, int] = {}
        self.n_devices: dict[int, int] = {}
        self._lowest: dict[int, tuple[int | None, ...]] = {}
        rows = Node.objects.values_list(
            "pk",
            "name",
            "accelerator_type_id",
            "n_devices",
            "scale_up_id",
            "leaf_id",
            "power_id",
            "cooling_id",
            "storage_id",
        )
        for pk, name, type_id, n_devices, *lowest in rows:
            self.name[pk], self.type_of[pk], self.n_devices[pk] = name, type_id, n_devices
            self._lowest[pk] = tuple(lowest)
        self._domains = {
            pk: (kind, parent) for pk, kind, parent in Domain.objects.values_list("pk", "kind", "parent_id")
        }

    def capacity(self, type_id: int, *, without: frozenset[int] = frozenset(), within: str = "") -> int:
        """Devices of a type on nodes other than these: all of them, or those of the largest domain of a kind."""
        by_domain: dict[int | None, int] = defaultdict(int)
        for node, node_type in self.type_of.items():
            if node_type == type_id and node not in without:
                domain = self._domain(node, within) if within else 0
                if domain is not None:
                    by_domain[domain] += self.n_devices[node]
        return max(by_domain.values(), default=0)

    def _domain(self, node: int, kind: str) -> int | None:
        for lowest in self._lowest[node]:
            at = lowest
            while at is not None:
                own_kind, parent = self._domains[at]
                if own_kind == kind:
                    return at
                at = parent
        return None


def conflicts(wanted: Wanted, booked: Sequence[Booked], facility: Facility) -> list[Conflict]:
    """What stands in the way, the earliest first; at most MAX_CONFLICTS.

    Named nodes belong to one reservation at a time. Amounts of a type have to find room, together, on the nodes of
    that type that nobody named.
    """
    found: list[Conflict] = []
    to_come = deque(sorted(booked, key=lambda one: one.starts_at))
    beside: list[Booked] = []
    for (
        window
    ) in wanted.windows:  # in order of time: what has ended before one of them is never looked at again
        while to_come and to_come[0].starts_at < window.ends_at:
            beside.append(to_come.popleft())
        beside = [one for one in beside if one.ends_at > window.starts_at]
        found += _shared_nodes(wanted, window, beside, facility)
        found += _amounts(wanted, window, beside, facility)
        if len(found) >= MAX_CONFLICTS:
            break
    return found[:MAX_CONFLICTS]


def _shared_nodes(
    wanted: Wanted, window: Window, beside: Sequence[Booked], facility: Facility
) -> list[Conflict]:
    found = []
    for one in beside:
        if shared := wanted.node_ids & one.node_ids:
            names = sorted(facility.name[node] for node in shared)
            said = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            starts_at, ends_at = max(window.starts_at, one.starts_at), min(window.ends_at, one.ends_at)
            span = f"from {_said(starts_at)} to {_said(ends_at)}"
            message = f"{said} belong{'s' if len(names) == 1 else ''} to {one.name} {span}"
            found.append(Conflict(starts_at, ends_at, one.name, message))
    return found


def _amounts(wanted: Wanted, window: Window, beside: Sequence[Booked], facility: Facility) -> list[Conflict]:
    """At each instant at which something begins, count what the types touched have left."""
    types = {facility.type_of[node] for node in wanted.node_ids}
    if wanted.accelerator_type is not None:
        types.add(wanted.accelerator_type.pk)
    instants = sorted(
        {window.starts_at, *(one.starts_at for one in beside if one.starts_at > window.starts_at)}
    )
    for at in instants:
        there = [one for one in beside if one.starts_at <= at < one.ends_at]
        named = wanted.node_ids.union(*(one.node_ids for one in there))
        for type_id in sorted(types):
            amounts = [one for one in there if one.accelerator_type_id == type_id]
            is_asked = wanted.accelerator_type is not None and wanted.accelerator_type.pk == type_id
            asked = wanted.n_devices if is_asked else 0
            promised = sum(one.n_devices or 0 for one in amounts)
            if asked + promised == 0:
                continue
            left = facility.capacity(type_id, without=named) - promised
            is_in_one = not (is_asked and wanted.within) or (
                facility.capacity(type_id, without=named, within=wanted.within) >= asked
            )
            if asked <= left and is_in_one:
                continue
            ends_at = min([window.ends_at, *(one.ends_at for one in there)])
            if asked and not is_in_one:
                message = f"no {wanted.within} has {asked} such devices that nobody else was promised at {_said(at)}"
            elif asked:
                message = f"asks {asked} devices where {max(left, 0)} are not promised yet at {_said(at)}"
            else:
                message = f"leaves {left + promised} of {promised} devices that were promised at {_said(at)}"
            to_blame = amounts[0].name if len(amounts) == 1 else ""
            return [Conflict(at, ends_at, to_blame, message)]
    return []


def _said(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")

"""Slots for a reservation with what each costs others: who would still run then, and what is free of it."""

from dataclasses import dataclass
from datetime import datetime
from math import inf

from apps.jobs.spec import SHARE_STEPS
from apps.reservations.recurrence import Window
from apps.reservations.slots import Ask, Slots, find_slots
from apps.scheduling.snapshot import OUTSIDE_ID, Taken, take_snapshot


@dataclass(frozen=True, slots=True)
class Offer:
    """One window.

    Attributes:
        n_free: Devices of the type that nobody holds at its begin, as far as limits of running jobs tell.
        n_running_into: Jobs whose limit, or lack of one, lets them run into it on devices that it would need.
        peak_w: What the devices may draw together.
    """

    window: Window
    n_free: float
    n_running_into: int
    peak_w: float


@dataclass(frozen=True, slots=True)
class Offers:
    found: Slots
    offers: tuple[Offer, ...]


def offers(ask: Ask, *, at: datetime) -> Offers:
    """The first three slots; see `find_slots` for what is refused."""
    found = find_slots(ask, at=at)
    if not found.windows:
        return Offers(found, ())
    taken = take_snapshot(at)
    return Offers(found, tuple(_offer(taken, ask, window) for window in found.windows))


def _offer(taken: Taken, ask: Ask, window: Window) -> Offer:
    snapshot = taken.snapshot
    facility = snapshot.facility
    kind = next((at for at, one in enumerate(facility.kinds) if one.name == ask.accelerator_type), -1)
    begin_s = window.starts_at.timestamp()
    usable = float(facility.n_devices[(facility.kind == kind) & snapshot.is_usable].sum())
    held, into = 0.0, 0
    for running in snapshot.running:
        steps = sum(
            share.share_steps * len(share.devices)
            for share in running.placing
            if facility.kind[share.node] == kind and snapshot.is_usable[share.node]
        )
        # What others run there ends when their own program says so; nobody here may move it.
        is_outside = running.gang.id <= OUTSIDE_ID
        ends_s = running.ends_s if is_outside or running.gang.limit_s < inf else inf
        if steps and ends_s > begin_s:
            held += steps / SHARE_STEPS
            into += 0 if is_outside else 1
    n_free = usable - held
    tdp_w = facility.kinds[kind].tdp_w if kind >= 0 else 0.0
    return Offer(window, n_free, into if n_free < ask.n_devices else 0, ask.n_devices * tdp_w)

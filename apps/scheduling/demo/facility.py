"""The demo facility: this machine, whose jobs really run, and a hall that is simulated."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import psutil

from apps.inventory import services as inventory
from apps.inventory.models import AcceleratorType, Backend, Cluster, Domain, DomainKind
from apps.inventory.services import NodeFacts
from apps.power import services as power
from apps.reservations import services as reservations
from apps.staging import services as staging

HALL_CLUSTER: Final = "demo-hall"
LOCAL_CLUSTER: Final = "local"
N_LEAVES, N_PER_LEAF, N_PER_RACK, N_DEVICES = 24, 16, 4, 8
_LEAVES_PER_SPINE, _RACKS_PER_ROW = 8, 12


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    memory_gib: float
    tdp_w: float
    idle_w: float
    speed: float
    host_w: float


# One type a spine group. Watts are the makers' limits; idle draws and relative speeds are round figures for a demo.
TYPES: Final = (
    _Type("H200", 141.0, 700.0, 75.0, 1.4, 2000.0),
    _Type("H100", 80.0, 700.0, 70.0, 1.0, 2000.0),
    _Type("A100", 80.0, 400.0, 50.0, 0.5, 1200.0),
)


def build(at: datetime) -> None:
    """Everything but people: types, domains, clusters, nodes, limits, a data set, a maintenance window."""
    _build_local(at)
    _build_hall(at)


def _build_local(at: datetime) -> None:
    n_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if n_gpus:
        kind = inventory.create_accelerator_type(
            name="Local GPU", tdp_w=300.0, memory_gib=16.0, actor=None, at=at
        )
    else:
        kind = inventory.create_accelerator_type(name="CPU slot", tdp_w=15.0, idle_w=2.0, actor=None, at=at)
    cluster = inventory.create_cluster(name=LOCAL_CLUSTER, backend=Backend.LOCAL, actor=None, at=at)
    slots = n_gpus or max(2, os.cpu_count() or 2)
    name = socket.gethostname().split(".")[0][:60] or "this-machine"
    cpus, memory_gib = os.cpu_count() or 1, psutil.virtual_memory().total / 2**30
    node = NodeFacts(
        name=name, accelerator_type=kind, n_devices=slots, cpus=float(cpus), memory_gib=round(memory_gib, 1)
    )
    inventory.create_nodes(cluster=cluster, rows=[node], actor=None, at=at)


def _build_hall(at: datetime) -> None:
    def domain(name: str, kind: str, parent: Domain | None = None) -> Domain:
        return inventory.create_domain(name=name, kind=kind, parent=parent, actor=None, at=at)

    kinds = [
        inventory.create_accelerator_type(
            name=t.name,
            memory_gib=t.memory_gib,
            tdp_w=t.tdp_w,
            idle_w=t.idle_w,
            speed=t.speed,
            actor=None,
            at=at,
        )
        for t in TYPES
    ]
    cluster = inventory.create_cluster(
        name=HALL_CLUSTER, backend=Backend.SIMULATED, config={"demo": True}, actor=None, at=at
    )
    site = domain("Site", DomainKind.FACILITY)
    halls = [domain(f"Hall {letter}", DomainKind.HALL, site) for letter in "AB"]
    stores = [domain(f"store-{letter.lower()}", DomainKind.STORAGE) for letter in "AB"]
    spines = [domain(f"spine-{i + 1}", DomainKind.SPINE) for i in range(len(TYPES))]
    leaves = [
        domain(f"l{i + 1:02d}", DomainKind.LEAF, spines[i // _LEAVES_PER_SPINE]) for i in range(N_LEAVES)
    ]
    n_racks = N_LEAVES * N_PER_LEAF // N_PER_RACK
    rows: list[Domain] = []
    racks: list[Domain] = []
    loops: list[Domain] = []
    for i in range(n_racks):
        row = i // _RACKS_PER_ROW
        if row == len(rows):
            hall = row // (n_racks // _RACKS_PER_ROW // 2)
            letter, place = "AB"[hall], row % (n_racks // _RACKS_PER_ROW // 2) + 1
            rows.append(domain(f"Row {letter}{place}", DomainKind.ROW, halls[hall]))
            loops.append(domain(f"loop-{letter}{place}", DomainKind.COOLING))
        racks.append(domain(f"{rows[row].name[4:]}-{i % _RACKS_PER_ROW + 1:02d}", DomainKind.RACK, rows[row]))
    inventory.create_nodes(
        cluster=cluster, rows=list(_nodes(kinds, leaves, racks, loops, stores)), actor=None, at=at
    )
    _limit(site, halls, rows, racks, at)
    _extras(cluster, kinds, at)


def _nodes(
    kinds: list[AcceleratorType],
    leaves: list[Domain],
    racks: list[Domain],
    loops: list[Domain],
    stores: list[Domain],
) -> Iterator[NodeFacts]:
    for i in range(N_LEAVES * N_PER_LEAF):
        leaf, rack = i // N_PER_LEAF, i // N_PER_RACK
        which = leaf // _LEAVES_PER_SPINE
        row = rack // _RACKS_PER_ROW
        yield NodeFacts(
            name=f"l{leaf + 1:02d}-n{i % N_PER_LEAF + 1:02d}",
            accelerator_type=kinds[which],
            n_devices=N_DEVICES,
            cpus=128.0,
            memory_gib=2048.0,
            leaf=leaves[leaf],
            power=racks[rack],
            cooling=loops[row],
            storage=stores[row * 2 // len(loops)],
            idle_w=TYPES[which].host_w,
        )


def _limit(site: Domain, halls: list[Domain], rows: list[Domain], racks: list[Domain], at: datetime) -> None:
    def limit(domain: Domain, limit_w: float, **more: float) -> None:
        hard = {"hard_limit_w": limit_w * 1.05, "limit_w": limit_w, **more}
        power.set_limit(domain_id=domain.pk, changes=hard, actor=None, at=at, reason="as built")

    limit(site, 2_900_000.0, overhead_fixed_w=110_000.0, overhead_k=1.12)
    for hall, limit_w in zip(halls, (1_420_000.0, 1_080_000.0), strict=True):
        limit(hall, limit_w)
    for row in rows:
        limit(row, 360_000.0)
    for rack in racks:
        limit(rack, 31_000.0)


def _extras(cluster: Cluster, kinds: list[AcceleratorType], at: datetime) -> None:
    staging.create_dataset(
        name="web-text-2026", size_gib=42_000.0, at_domains=["store-a", "store-b"], actor=None, at=at
    )
    staging.create_dataset(name="street-scenes", size_gib=8_600.0, at_domains=["store-b"], actor=None, at=at)
    day = (at + timedelta(days=2)).replace(hour=6, minute=0, second=0, microsecond=0)
    draft = reservations.Draft(
        name="Switch firmware, leaf l07",
        starts_at=day,
        ends_at=day + timedelta(hours=3),
        nodes=tuple(f"l07-n{n + 1:02d}" for n in range(N_PER_LEAF)),
        reason="firmware update of the leaf switch",
    )
    reservations.create_reservation(draft=draft, actor=None, at=at)
    draft = reservations.Draft(
        name="Vision: release training",
        starts_at=day + timedelta(days=1),
        ends_at=day + timedelta(days=2),
        accelerator_type="H100",
        n_devices=64,
        within=DomainKind.SPINE,
        teams=("vision",),
        reason="the release of the month",
    )
    reservations.create_reservation(draft=draft, actor=None, at=at)

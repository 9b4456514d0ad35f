"""The small facility with work that can be slowed and paused, and readings to count from."""

from datetime import datetime, timedelta
from typing import Any

from apps.dashboard.tests.facility import Facility, request
from apps.execution import caps
from apps.execution import services as execution
from apps.inventory.models import AcceleratorType, Domain
from apps.jobs import services as jobs
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import grant
from apps.power.models import PowerReading
from apps.scheduling.response import control

CURVE = [[3 / 7, 0.50], [4 / 7, 0.70], [5 / 7, 0.84], [6 / 7, 0.93], [1.0, 1.0]]
SECRET = "--curtailed-secret"


def add_work(facility: Facility, *, at: datetime) -> dict[str, Job]:
    """Jobs of all kinds on simulated nodes: firm, two that may be capped, one that saves, and one that never does."""
    AcceleratorType.objects.filter(name="H100").update(power_curve=CURVE, cap_step_w=100.0, idle_w=100.0)
    wants: dict[str, dict[str, Any]] = {
        "serve-chat": {"flexibility": 0, "power_w": 500.0},
        "train-vlm": {"flexibility": 2, "power_w": 700.0},
        "train-moe": {"flexibility": 3},
        "sweep-saved": {"flexibility": 4, "power_w": 700.0, "checkpoint": {"interval": 600.0, "cost": 0.0}},
        "sweep-unsaved": {"flexibility": 4, "power_w": 700.0},
    }
    made = {}
    for place, (name, more) in enumerate(wants.items()):
        node = facility.nodes[2 + place]
        job = jobs.submit_job(
            request=request(
                name, "Speech", devices=8, accelerators=["H100"], runtime=1e6, command=["run", SECRET], **more
            ),
            actor=facility.stranger,
            at=at - timedelta(minutes=25),
        )
        grants = [grant(node, tuple(range(8)), peak_w=8 * 700.0)]
        jobs.allocate(
            job_id=job.pk,
            cluster_id=node.cluster_id,
            placements=grants,
            pass_id=None,
            at=at - timedelta(minutes=24),
        )
        made[name] = job
    for minute in (23, 22):
        execution.reconcile_all(at=at - timedelta(minutes=minute))
    read(at)
    return made


def read(at: datetime, draw_w: float = 33_000.0) -> None:
    """What the meter of the hall says of the last twenty minutes."""
    hall = Domain.objects.get(name="Hall A")
    for minute in range(20):
        PowerReading.objects.create(
            domain=hall, at=at - timedelta(minutes=minute, seconds=5), draw_w=draw_w, source="metered"
        )


def work_through(*, at: datetime) -> None:
    """What the workers do between two looks."""
    execution.reconcile_all(at=at)
    control.look(at=at, who="one")
    caps.carry_out_caps(at=at)
    execution.reconcile_all(at=at)
    control.look(at=at, who="one")


def share_of(job: Job) -> float | None:
    """The cap in force; None: it holds no devices."""
    open_now = Allocation.objects.filter(job_id=job.pk, ended_at=None)
    return open_now.values_list("desired_power_cap_share", flat=True).first()

"""The hall of the design notes on power, section 4, as rows of a real database, and a clock that is moved by hand."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from apps.execution import caps
from apps.execution import services as execution
from apps.inventory import services as inventory
from apps.inventory.models import Cluster, Domain
from apps.inventory.tests.builders import domain, node
from apps.jobs import services as ledger
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import grant, job, person, team
from apps.power.models import DemandResponseEvent, PowerLimit, PowerReading
from apps.power.tests.builders import NOTICE, announce, clock, draw
from apps.scheduling import services as scheduling
from apps.scheduling.response import control
from apps.scheduling.response import services as response
from apps.scheduling.response.deciding import Wish
from apps.scheduling.response.site import read_site
from apps.teams.models import User
from apps.teams.tests.builders import NOON

CURVE = [[3 / 7, 0.50], [4 / 7, 0.70], [5 / 7, 0.84], [6 / 7, 0.93], [1.0, 1.0]]
LONG = 1e6
A, B, C, D, E = "A", "B", "C", "D", "E"


@dataclass
class Hall:
    domain: Domain
    cluster: Cluster
    operator: User
    jobs: dict[str, int] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    worst_w: float = 0.0

    def at(self, at: datetime, *, who: str = "one", plan: bool = False) -> float:
        """Let every loop have its turn at an instant; return what the hall then draws, in watts."""
        execution.reconcile_all(at=at)
        control.look(at=at, who=who)
        caps.carry_out_caps(at=at)
        control.look(at=at, who=who)
        if plan:
            scheduling.run_pass(at=at)
            execution.reconcile_all(at=at)
        return self.draw_w(at)

    def through(
        self, begin: datetime, end: datetime, *, every_s: float = 5.0, plan: bool = False
    ) -> dict[datetime, float]:
        """The same again and again; what is drawn at each of these instants."""
        seen = {}
        at = begin
        while at <= end:
            seen[at] = self.at(at, plan=plan)
            at += timedelta(seconds=every_s)
        return seen

    def draw_w(self, at: datetime) -> float:
        return read_site(at).modelled_w()[self.domain.pk]

    def meter(self, at: datetime, *, silent: str = "") -> None:
        """Every meter says what is drawn, but for those of these racks; `H` is the hall."""
        drawn = read_site(at).modelled_w()
        for row in Domain.objects.filter(kind__in=["hall", "rack"]):
            if row.name[-1] not in silent and not (row == self.domain and "H" in silent):
                PowerReading.objects.create(domain=row, at=at, draw_w=drawn[row.pk], source="metered")

    def share(self, name: str) -> float | None:
        """The cap in force, in watts a device; None: it holds no devices."""
        allocation = Allocation.objects.filter(job_id=self.jobs[name], ended_at=None).first()
        return None if allocation is None else round(700 * allocation.desired_power_cap_share, 3)

    def state(self, name: str) -> str:
        return Job.objects.get(pk=self.jobs[name]).state

    def submit(self, name: str, *, tier: int, at: datetime, n_nodes: int = 1) -> None:
        """A training that wants whole nodes."""
        of = Job.objects.select_related("team", "user").get(pk=self.jobs[A])
        more = {"power_w": 700.0, "runtime": LONG, "flexibility": tier}
        made = job(of.team, of.user, at=at, name=name, replicas=n_nodes, devices=8, **more)
        self.jobs[name] = made.pk

    def preview(self, event: DemandResponseEvent, *, at: datetime = NOTICE, **wish: Any):
        return response.preview(event_id=event.pk, wish=Wish(**wish), actor=self.operator, at=at)

    def commit(self, event: DemandResponseEvent, plan: Any, *, at: datetime = NOTICE, **more: Any):
        return response.commit(
            event_id=event.pk, inputs_hash=plan.inputs_hash, actor=self.operator, at=at, **more
        )


def hall(
    *,
    has_racks: bool = False,
    checkpoint_s: float = 300.0,
    ramp_w_per_s: float | None = None,
    meter_k: float = 1.0,
) -> Hall:
    """Five jobs on 18 nodes, three idle ones: 132.4 kW."""
    top = domain("hall", "hall" if meter_k == 1.0 else "facility")
    PowerLimit.objects.create(
        domain=top, hard_limit_w=150e3 * meter_k, ramp_up_w_per_s=ramp_w_per_s, overhead_k=meter_k
    )
    inventory.create_accelerator_type(
        name="H100", actor=None, at=NOON, tdp_w=700.0, idle_w=100.0, power_curve=CURVE, cap_step_w=100.0
    )
    of = "AAAABBBBCCCCDDDDEE---"
    racks = {name: domain(f"rack {name}", "rack", top) for name in set(of)} if has_racks else {}
    nodes = [node(f"n{i:02}", power=racks.get(of[i], top), idle_w=2000.0) for i in range(21)]
    found = Hall(top, Cluster.objects.get(), person(facility_role="operator"), nodes=nodes)
    ours = team()
    me = person(ours)
    first = 0
    for name, tier, n, more in (
        (A, 0, 4, {"power_w": 300.0}),
        (B, 1, 4, {"power_w": 700.0}),
        (C, 2, 4, {"power_w": 700.0}),
        (D, 3, 4, {"power_w": 700.0}),
        (E, 4, 2, {"power_w": 700.0, "checkpoint": {"interval": 1800.0, "cost": checkpoint_s}}),
    ):
        made = job(ours, me, name=name, replicas=n, devices=8, flexibility=tier, runtime=LONG, **more)
        grants = [
            grant(nodes[first + i], tuple(range(8)), first_rank=i, peak_w=8 * (more["power_w"] - 100.0))
            for i in range(n)
        ]
        ledger.allocate(job_id=made.pk, cluster_id=found.cluster.pk, placements=grants, pass_id=None, at=NOON)
        found.jobs[name] = made.pk
        first += n
    execution.reconcile_all(at=NOON)
    # A meter that has spoken once is missed when it falls silent: without racks there is none.
    draw(top, 132.4e3 * meter_k, source="metered" if has_racks else "modelled")
    return found


__all__ = ["NOTICE", "A", "B", "C", "D", "E", "Hall", "announce", "clock", "hall"]

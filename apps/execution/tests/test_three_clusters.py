"""This machine, a real Slurm and a Kubernetes (its double) under one plan, one quota and one limit of power."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apps.execution import services as execution
from apps.execution import surveying
from apps.execution.backends.choice import backend_of
from apps.execution.tests import kubernetes as kube
from apps.execution.tests import slurm as slurms
from apps.execution.tests.builders import now, output, wait_until
from apps.execution.tests.kubernetes_double import Double
from apps.inventory import services as inventory
from apps.inventory.models import Cluster, Device, Domain, Node
from apps.jobs import services as ledger
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, DeviceClaim, Job, Placement
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import fleet, person, request, team
from apps.power import services as power
from apps.scheduling import services as scheduling
from apps.teams.models import Quota
from apps.teams.services import QuotaEntry, set_quota
from scripts.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Site:
    """A node of 8 devices in each of three clusters, all under one hall."""

    local: Cluster
    slurm: Cluster
    kubernetes: Cluster

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        return self.local, self.slurm, self.kubernetes

    def tick(self) -> None:
        scheduling.run_pass(at=now())
        self.carry_out()

    def carry_out(self) -> None:
        for cluster in self.clusters:
            execution.reconcile_cluster(cluster_id=cluster.pk, at=now())

    def tick_until(self, *jobs: Job, state: State) -> None:
        def there() -> bool:
            self.tick()
            return set(
                Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)
            ) == {state}

        try:
            wait_until(there)
        except AssertionError as error:
            rows = [*Job.objects.values_list("id", "state", "end_message", "reason__sentence")]
            raise AssertionError("\n".join(map(str, [*rows, *Allocation.objects.values()]))) from error

    def clusters_of(self, *jobs: Job) -> list[int]:
        """Of each node that they were given."""
        found = Placement.objects.filter(allocation__job__in=jobs).order_by("allocation__job", "first_rank")
        return [placement.node.cluster_id for placement in found]


@contextmanager
def double_of(*names: str) -> Iterator[Double]:
    double = Double().up()
    try:
        for name in names:
            double.add_node(name)
        yield double
    finally:
        double.down()


@pytest.fixture
def site(slurm: SlurmCluster, no_memory: None) -> Iterator[Site]:
    surveying._surveyed_s.clear()
    with double_of("k1") as double:
        here = fleet(1, 8, kind="H100").cluster
        made = Site(here, slurms.connected(slurm), kube.connected(double.url))
        for cluster in (made.slurm, made.kubernetes):
            assert (
                surveying.take_facility(
                    cluster, backend_of(cluster).survey(at=now()), at=now(), accelerator="H100"
                )
                == []
            )
        for node in Node.objects.filter(cluster=made.slurm).exclude(name="n1"):
            inventory.drain_node(node_id=node.pk, actor=None, at=now())
        Node.objects.update(power=Domain.objects.create(name="hall", kind="hall"))
        yield made
    assert ledger_faults() == []


def entitle(of: Any, devices: int) -> None:
    of.refresh_from_db()
    kind = Quota.objects.get(team=of).accelerator_type
    set_quota(
        team=of,
        entries=[QuotaEntry(accelerator_type=kind.name, entitlement=devices)],
        version=of.version,
        actor=None,
        at=now(),
    )


def reason_of(job: Job) -> tuple[str, str]:
    found = Job.objects.select_related("reason").get(pk=job.pk).reason
    return found.code, found.sentence


def test_one_pass_one_quota_and_one_limit_hold_over_all_three(site: Site, tmp_path: Path) -> None:
    kind = Node.objects.get(name="n1").accelerator_type
    ours = team(quota={kind: 18})
    me = person(ours)
    hall = Domain.objects.get(name="hall")
    drawn_w = Device.objects.count() * kind.idle_w + 18 * (kind.tdp_w - kind.idle_w)
    words = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo from $SWITCHYARD_NODE"

    def submit(devices: int) -> Job:
        asked = request(ours, command=["/bin/sh", "-c", words], devices=devices, time_limit=600.0)
        return ledger.submit_job(request=asked, actor=me, at=now())

    large = [submit(6) for _ in range(3)]
    small = submit(2)
    scheduling.run_pass(at=now())

    # All in the one pass: on each cluster one, and the quota, counted over all of them, is used up.
    assert set(Job.objects.filter(pk__in=[job.pk for job in large]).values_list("state", flat=True)) == {
        State.STARTING
    }
    assert sorted(site.clusters_of(*large)) == sorted(cluster.pk for cluster in site.clusters)
    assert reason_of(small)[0] == "quota"
    site.tick_until(*large, state=State.RUNNING)

    entitle(ours, 24)
    power.set_limit(domain_id=hall.pk, changes={"limit_w": drawn_w + 1000}, actor=None, at=now())
    site.tick()
    code, sentence = reason_of(small)
    assert code == "power"
    assert sentence == "hall has 1.0 kW left; it needs 1.3 kW."

    power.set_limit(domain_id=hall.pk, changes={"limit_w": drawn_w + 1300}, actor=None, at=now())
    site.tick_until(small, state=State.RUNNING)
    (tmp_path / "go").touch()
    site.tick_until(*large, small, state=State.SUCCEEDED)

    for job in [*large, small]:
        attempt = Allocation.objects.get(job=job)
        place = Placement.objects.select_related("node__cluster").get(allocation=attempt)
        assert output(backend_of(place.node.cluster), attempt.pk) == f"from {place.node.name}\n"
    assert not DeviceClaim.objects.filter(placement__allocation__ended_at__isnull=True).exists()


def test_a_gang_lies_in_one_of_them(site: Site) -> None:
    ours = team()
    gang = ledger.submit_job(
        request=request(ours, replicas=2, devices=8, time_limit=600.0), actor=person(ours), at=now()
    )
    site.tick()
    assert Job.objects.get(pk=gang.pk).state == State.QUEUED
    assert reason_of(gang)[0] == "unhealthy"  # three nodes stand free, and no two in one cluster

    inventory.resume_node(node_id=Node.objects.get(name="n2").pk, actor=None, at=now())
    site.tick_until(gang, state=State.SUCCEEDED)

    assert site.clusters_of(gang) == [site.slurm.pk] * 2

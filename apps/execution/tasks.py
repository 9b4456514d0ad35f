from celery import shared_task
from celery.signals import worker_ready

from apps.core import clock
from apps.execution import bell, caps, probing, services


@shared_task(name="execution.reconcile", ignore_result=True)
def reconcile() -> None:
    for cluster_id in services.clusters_elsewhere():
        # Another of these that nobody took yet will do as well.
        reconcile_cluster.apply_async(args=[cluster_id], expires=2.0)
    services.reconcile_all(at=clock.now())


@shared_task(name="execution.reconcile_cluster", ignore_result=True)
def reconcile_cluster(cluster_id: int) -> None:
    services.reconcile_cluster(cluster_id=cluster_id, at=clock.now())


@shared_task(name="execution.prune_logs", ignore_result=True)
def prune_logs() -> None:
    services.prune_logs(at=clock.now())


@shared_task(name="execution.probe", ignore_result=True)
def probe() -> None:
    probing.probe_all(at=clock.now())


@shared_task(name="power.carry_out_caps", ignore_result=True)
def carry_out_caps() -> None:
    caps.carry_out_caps(at=clock.now())


worker_ready.connect(bell.listen_in_worker)

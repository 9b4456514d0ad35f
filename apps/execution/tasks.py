from celery import shared_task
from celery.signals import worker_ready

from apps.core import clock
from apps.execution import bell, caps, probing, services


@shared_task(name="execution.reconcile", ignore_result=True)
def reconcile() -> None:
    services.reconcile_all(at=clock.now())


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

from celery import shared_task

from apps.core import clock
from apps.teams import services


@shared_task(name="teams.prune", ignore_result=True)
def prune() -> None:
    services.prune(at=clock.now())

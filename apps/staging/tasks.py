from celery import shared_task

from apps.core import clock
from apps.staging import loop


@shared_task(name="staging.move", ignore_result=True)
def move() -> None:
    loop.move_all(at=clock.now())


@shared_task(name="staging.prune", ignore_result=True)
def prune() -> None:
    loop.prune(at=clock.now())

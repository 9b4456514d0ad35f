from celery import shared_task

from apps.core import clock
from apps.inventory import services


@shared_task(name="inventory.settle_draining", ignore_result=True)
def settle_draining() -> None:
    """The safety net: whoever ends the last work on a draining node settles it at once."""
    services.settle_draining(at=clock.now())


@shared_task(name="inventory.settle_health", ignore_result=True)
def settle_health() -> None:
    services.settle_health(at=clock.now())


@shared_task(name="inventory.prune", ignore_result=True)
def prune() -> None:
    services.prune(at=clock.now())

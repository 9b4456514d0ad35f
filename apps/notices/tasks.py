"""Doors for Celery; no logic."""

from celery import shared_task

from apps.core import clock
from apps.notices import collecting, sending, services, watching


@shared_task(name="notices.collect", ignore_result=True)
def collect() -> None:
    collecting.collect(at=clock.now())


@shared_task(name="notices.watch", ignore_result=True)
def watch() -> None:
    watching.watch(at=clock.now())


@shared_task(name="notices.send", ignore_result=True)
def send() -> None:
    sending.send_due(at=clock.now())


@shared_task(name="notices.prune", ignore_result=True)
def prune() -> None:
    services.prune(at=clock.now())

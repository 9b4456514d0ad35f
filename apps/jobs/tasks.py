from celery import shared_task

from apps.core import clock
from apps.jobs import progress, tokens


@shared_task(name="jobs.prune", ignore_result=True)
def prune() -> None:
    tokens.prune(at=clock.now())
    progress.prune(at=clock.now())

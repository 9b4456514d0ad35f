"""Doors for Celery; no logic."""

from celery import shared_task

from apps.core import clock
from apps.power import meter_services, settlement_services
from apps.power.vtn import poll

# Nothing in it takes so long; where workers can be stopped, one that hangs all the same is.
_LONGEST_S = 60


@shared_task(
    name="power.read_meters", ignore_result=True, soft_time_limit=_LONGEST_S, time_limit=_LONGEST_S + 10
)
def read_meters() -> None:
    meter_services.read_meters(at=clock.now())


@shared_task(name="power.poll_openadr", ignore_result=True)
def poll_openadr() -> None:
    """Ask the VTNs whose time has come."""
    poll.poll_due(at=clock.now())


@shared_task(name="power.settle_events", ignore_result=True)
def settle_events() -> None:
    settlement_services.settle_due(at=clock.now())

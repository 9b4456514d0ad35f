"""Doors for Celery; no logic."""

from celery import shared_task

from apps.core import clock
from apps.scheduling import measured_power, services
from apps.scheduling.demo import work
from apps.scheduling.response import control


@shared_task(name="scheduling.run_pass", ignore_result=True)
def run_pass() -> None:
    services.run_pass(at=clock.now())


@shared_task(name="scheduling.rollup", ignore_result=True)
def rollup() -> None:
    services.roll_up(at=clock.now())


@shared_task(name="scheduling.feed_demo", ignore_result=True)
def feed_demo() -> None:
    work.feed(clock.now())


@shared_task(name="power.control", ignore_result=True)
def power_control() -> None:
    control.look(at=clock.now())


@shared_task(name="scheduling.learn_power", ignore_result=True)
def learn_power() -> None:
    measured_power.learn(at=clock.now())

"""Celery: which queue each task goes to, what beats how often, and what wakes whom.

Every loop looks at rows as they are, so a task may run twice, late, or after a crash. Losing the broker loses nothing:
the beat asks again.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_init
from kombu.entity import Queue

from apps.core.presence import Presence
from apps.core.wakeup import Wake, WakeupStep
from scheduler_site import broker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
broker.register()

app = Celery("switchyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

PLANNING, EXECUTION, POWER, ROLLUPS = "planning", "execution", "power", "rollups"


def _beat(task: str, *, every_s: float) -> dict[str, Any]:
    # A beat that nobody took before the next one is of no use to anybody.
    return {"task": task, "schedule": every_s, "options": {"expires": every_s}}


# What may turn a wait into a start wakes the planner; what was decided wakes those who carry it out.
WAKES = (
    *(
        Wake(prefix, "scheduling.run_pass")
        for prefix in (
            "job.",
            "allocation.ended",
            "node.",
            "domain.",
            "cluster.",
            "accelerator_type.",
            "quota.",
            "team.",
            "reservation.",
            "power.",
            "demand_response.",
            "dataset.",
            "store.",
            "transfer.",
            "policy.",
        )
    ),
    # Not its own reports: a hall in which jobs end all the time would be looked at without a pause.
    *(
        Wake(prefix, "execution.reconcile")
        for prefix in ("allocation.bound", "allocation.stop_requested", "node.health_changed")
    ),
    # A plan that was committed, an event that was called off; and what its actions came to.
    *(
        Wake(prefix, "power.control")
        for prefix in (
            "allocation.cap_changed",
            "allocation.cap_in_force",
            "curtailment.committed",
            "demand_response.",
            "job.paused",
            "power.automation",
        )
    ),
    *(Wake(prefix, "power.carry_out_caps") for prefix in ("allocation.cap_asked", "allocation.cap_raised")),
    # Owners are told at once what is done to their jobs.
    Wake("curtailment.committed", "notices.collect"),
    # What was asked for; and an end, which leaves room for the next.
    *(
        Wake(prefix, "staging.move")
        for prefix in ("dataset.transfer_started", "dataset.transfer_cancel_asked", "dataset.transfer_ended")
    ),
)

app.conf.update(
    switchyard_wakes=WAKES,
    task_queues=[Queue(name, routing_key=name) for name in (PLANNING, EXECUTION, POWER, ROLLUPS)],
    task_default_queue=ROLLUPS,
    task_routes={
        "scheduling.rollup": {"queue": ROLLUPS},
        "scheduling.feed_demo": {"queue": ROLLUPS},
        "scheduling.learn_power": {"queue": ROLLUPS},
        "execution.prune_logs": {"queue": ROLLUPS},
        "power.settle_events": {
            "queue": ROLLUPS
        },  # nothing hangs on it: what acts on power is not kept waiting
        "scheduling.*": {"queue": PLANNING},
        "execution.*": {"queue": EXECUTION},
        "power.*": {"queue": POWER},
        "*": {"queue": ROLLUPS},
    },
    beat_schedule={
        "plan": _beat("scheduling.run_pass", every_s=1.0),  # goes home unless a time boundary was crossed
        "reconcile": _beat("execution.reconcile", every_s=1.0),
        "move data": _beat("staging.move", every_s=2.0),
        "control power": _beat("power.control", every_s=5.0),
        "carry out caps": _beat("power.carry_out_caps", every_s=5.0),
        "settle draining nodes": _beat("inventory.settle_draining", every_s=10.0),
        "end cool-downs": _beat("inventory.settle_health", every_s=10.0),
        "ask VTNs": _beat("power.poll_openadr", every_s=10.0),
        "probe nodes": _beat("execution.probe", every_s=60.0),
        "read meters": _beat("power.read_meters", every_s=5.0),
        "learn what jobs draw": _beat("scheduling.learn_power", every_s=15.0),
        "feed the demo": _beat("scheduling.feed_demo", every_s=30.0),
        "settle events": _beat("power.settle_events", every_s=60.0),
        "roll up": _beat("scheduling.rollup", every_s=60.0),
        "prune what was kept for a while": _beat("teams.prune", every_s=3600.0),
        "tell people": _beat("notices.collect", every_s=10.0),
        "compare what was told": _beat("notices.watch", every_s=60.0),
        "send notices": _beat("notices.send", every_s=10.0),
        "forget notices": _beat("notices.prune", every_s=3600.0),
        "forget moves that are over": _beat("staging.prune", every_s=3600.0),
        "forget what was seen of nodes": _beat("inventory.prune", every_s=3600.0),
        "forget what attempts said": _beat("jobs.prune", every_s=3600.0),
        "prune logs": _beat("execution.prune_logs", every_s=3600.0),
    },
    # Beats need no memory: what they start looks at the database. A file would only be there to be torn by a kill.
    beat_scheduler="celery.beat:Scheduler",
    beat_max_loop_interval=1.0,
    task_ignore_result=True,
    task_acks_late=False,
    task_serializer="json",
    accept_content=["json"],
    timezone="UTC",
    worker_prefetch_multiplier=1,
    # Nobody asks workers anything by broker; without it the embedded broker needs no fan-out.
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)

app.steps["consumer"].add(WakeupStep)


@beat_init.connect
def _beat_is_here(**_: Any) -> None:
    Presence(["beat"]).start()

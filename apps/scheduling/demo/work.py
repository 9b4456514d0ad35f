"""Keeps the simulated hall busy with work drawn from a real trace (README.md beside this file).

Sizes and run times are the trace's. Which team, which limit, which tier is made up, by the number of the job alone, so
the same number is always the same job: fed twice, it is submitted once.
"""

import csv
import random
from collections import defaultdict
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from apps.inventory.models import Cluster
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.services import submit_jobs
from apps.jobs.spec import JobRequest
from apps.scheduling.demo.facility import HALL_CLUSTER, N_DEVICES
from apps.scheduling.demo.people import LEAF_TEAMS, user_of_team

WAITING_AIM: Final = 40
_FIRST_DEVICES: Final = 3300  # the hall has 3,072: so much work fills it and leaves some waiting
_BATCH: Final = 200
_WORDS: Final = ("pretrain", "finetune", "ablation", "eval", "sweep", "distill", "embed", "render")


@cache
def _rows() -> tuple[tuple[float, int, int], ...]:
    text = files("apps.scheduling.demo").joinpath("philly_sample.csv").read_text()
    return tuple(
        (float(row["duration_s"]), int(row["n_devices"]), int(row["virtual_cluster"]))
        for row in csv.DictReader(text.splitlines())
    )


def request_of(number: int) -> JobRequest:
    """The number-th job of the demo."""
    rows = _rows()
    duration_s, n_devices, virtual_cluster = rows[number % len(rows)]
    chance = random.Random(number)  # noqa: S311 - makes up a demo, guards nothing
    team = LEAF_TEAMS[virtual_cluster % len(LEAF_TEAMS)]
    per_node = min(n_devices, N_DEVICES)
    replicas = max(1, -(-n_devices // N_DEVICES))
    runtime_s = max(120.0, duration_s)
    fields: dict[str, Any] = {
        "name": f"{chance.choice(_WORDS)}-{number}",
        "team": team,
        "cluster": HALL_CLUSTER,
        "replicas": replicas,
        "devices": 0.5 if n_devices == 1 and chance.random() < 0.15 else per_node,
        "cpus": 12.0 * per_node,
        "memory_gib": 160.0 * per_node,
        "accelerators": chance.choice((["H200", "H100"], ["H100", "A100"], ["A100"], ["H100"], ["H200"])),
        "priority": chance.choice((0, 0, 0, 0, 10, 20)),
        "runtime": runtime_s,
        "time_limit": float(round(runtime_s * chance.choice((1.2, 1.5, 2.0, 4.0)) / 60 + 1) * 60),
        "flexibility": chance.choice((0, 1, 1, 2, 2, 3, 4)),
        "checkpoint": {"interval": 1800.0, "cost": 20.0, "restart": 60.0},
    }
    if 2 <= replicas <= 16:
        fields["topology"] = {"required": "leaf"} if chance.random() < 0.5 else {"preferred": "leaf"}
    return JobRequest.model_validate(fields)


def fill(at: datetime) -> int:
    """The first work of a new demo: more than the hall holds; the number of jobs."""
    by_team: dict[str, list[JobRequest]] = defaultdict(list)
    number, devices = 0, 0.0
    while devices < _FIRST_DEVICES:
        request = request_of(number)
        by_team[request.team].append(request)
        devices += request.n_devices
        number += 1
    for team, requests in by_team.items():
        submit_jobs(requests=requests, actor=user_of_team(team), at=at, idempotency_key="demo-fill")
    return number


def feed(at: datetime) -> int:
    """Submit the next jobs of the trace as far as too few wait; the number of jobs."""
    hall = Cluster.objects.filter(name=HALL_CLUSTER, config__demo=True).first()
    if hall is None:
        return 0
    of_demo = Job.objects.filter(cluster=hall, idempotency_key__contains=":demo-")
    waiting = of_demo.filter(state=State.QUEUED).count()
    lacking = max(0, min(WAITING_AIM - waiting, _BATCH))
    first = of_demo.count()
    for number in range(first, first + lacking):
        request = request_of(number)
        actor = user_of_team(request.team)
        submit_jobs(requests=[request], actor=actor, at=at, idempotency_key=f"demo-{number}")
    return lacking

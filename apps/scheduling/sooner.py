"""What would start a waiting job sooner: the plan is made again with one thing of its request changed at a time.

Each way keeps the job's place in the line. Nothing is written; who owns the job may apply a way, which changes its
request as any other change does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Any, Final

from pydantic import ValidationError

from apps.core import clock
from apps.jobs import intake, past_runs
from apps.jobs.lifecycle import State
from apps.jobs.models import Job
from apps.jobs.spec import JobRequest
from apps.scheduling import admission
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Plan
from apps.scheduling.snapshot import Taken, instant, take_snapshot

_MOST_WAYS: Final = 8
_LEAST_GAIN_S: Final = 60.0
_LONGEST_S: Final = 8.0
_ROOM: Final = 1.25  # a limit that was cut leaves this much of what jobs like it took
_WIDER: Final = {"scale_up": "leaf", "leaf": "spine"}
_DOMAIN_WORDS: Final = {"scale_up": "scale-up domain", "leaf": "leaf", "spine": "spine group"}
_TIER_COSTS: Final = {
    2: "In a power event it may lose up to 25 % of its speed.",
    4: "In a power event it may be paused; what it did since its last save is lost.",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One change, and what it brings.

    Attributes:
        changes: As `PATCH /jobs/{id}` takes them.
        costs: What is given up, as a sentence.
        starts_at: When the job would probably start; None: nobody can tell.
        starts_now: It would be started by the next pass.
    """

    key: str
    title: str
    costs: str
    changes: Mapping[str, Any]
    starts_at: datetime | None = None
    starts_now: bool = False


@dataclass(frozen=True, slots=True)
class Sooner:
    """What was found for one job.

    Attributes:
        starts_at, starts_now: As it is, worked out from the same picture.
        ways: Those that start it sooner, the earliest first.
        n_tried: Ways that were looked at.
    """

    at: datetime
    starts_at: datetime | None
    starts_now: bool
    ways: tuple[Way, ...]
    n_tried: int


def ways_of(job: Job, *, at: datetime) -> Sooner:
    """Look for ways; empty for a job that does not wait for the planner."""
    if job.state != State.QUEUED or job.is_held:
        return Sooner(at, None, False, (), 0)
    request = intake.request_of(job.spec, job.private)
    tried: list[Way] = []
    requests: list[JobRequest] = []
    for way in _candidates(job, request):
        changed = _changed(job, way)
        if changed is not None and admission.is_possible(changed) and len(tried) < _MOST_WAYS:
            tried.append(way)
            requests.append(changed)
    taken = take_snapshot(at, candidates=requests, candidates_of=job.user_id)
    mine = taken.gangs.get(job.pk)
    if mine is None:
        return Sooner(at, None, False, (), 0)
    queue = tuple(gang for gang in taken.snapshot.queue if gang.id in taken.gangs)
    candidates = [gang for gang in taken.snapshot.queue if gang.id not in taken.gangs]
    base = planner.plan(replace(taken.snapshot, queue=queue), taken.policy)
    starts_now, starts_s = _start_in(base, job.pk, taken)
    if starts_now:
        return Sooner(at, at, True, (), len(tried))
    found = []
    begun_s, n_tried = clock.monotonic_s(), 0
    for way, candidate in zip(tried, candidates, strict=True):
        if clock.monotonic_s() - begun_s > _LONGEST_S:
            break  # somebody waits for the answer; what was not looked at is not counted
        n_tried += 1
        instead = replace(
            mine,
            shape=candidate.shape,
            limit_s=max(1.0, candidate.limit_s - job.ran_s),  # what earlier attempts ran counts
            tier=candidate.tier,
        )
        line = tuple(instead if gang.id == mine.id else gang for gang in queue)
        plan = planner.plan(replace(taken.snapshot, queue=line), taken.policy)
        now, when_s = _start_in(plan, job.pk, taken)
        if when_s is not None and (starts_s is None or when_s < starts_s - _LEAST_GAIN_S):
            found.append((when_s, replace(way, starts_at=instant(when_s), starts_now=now)))
    found.sort(key=lambda one: one[0])
    base_at = None if starts_s is None else instant(starts_s)
    return Sooner(at, base_at, False, tuple(way for _, way in found), n_tried)


def _start_in(plan: Plan, job_id: int, taken: Taken) -> tuple[bool, float | None]:
    """Whether this plan starts it, and when it would start by it in seconds."""
    if any(start.job_id == job_id for start in plan.starts):
        return True, taken.snapshot.now_s
    reserve = next((one for one in plan.reserves if one.job_id == job_id), None)
    if reserve is not None:
        return False, reserve.start_s
    wait = next((one for one in plan.waits if one.job_id == job_id), None)
    return False, None if wait is None else wait.expected_start_s


def _changed(job: Job, way: Way) -> JobRequest | None:
    """The request with the change; None where both make no request."""
    spec = {**job.spec, **way.changes}
    try:
        return intake.request_of(
            {key: value for key, value in spec.items() if value is not None}, job.private
        )
    except ValidationError:
        return None


# What may be tried --------------------------------------------------------------------------------------------------


def _candidates(job: Job, request: JobRequest) -> Iterator[Way]:
    """Ways that make sense for this request, those that cost least first."""
    yield from _shorter(job)
    if request.groups is None:
        yield from _elsewhere(request)
        yield from _wider(request)
        yield from _smaller(request)
    yield from _more_flexible(request)


def _shorter(job: Job) -> Iterator[Way]:
    took_s = past_runs.took_by(job).own_s
    if took_s is None:
        return
    limit_s = float(ceil(took_s * _ROOM / 60) * 60)
    if job.time_limit_s is None or limit_s < job.time_limit_s:
        yield Way(
            "shorter",
            "A shorter time limit",
            f"The last jobs of this name took {_minutes(took_s)}; one that runs longer than {_minutes(limit_s)} is"
            " stopped.",
            {"time_limit": limit_s},
        )


def _elsewhere(request: JobRequest) -> Iterator[Way]:
    if request.accelerators is None:
        return
    for name in sorted(kind.name for kind in admission.facility().kinds):
        if name not in request.accelerators:
            yield Way(
                f"type-{name}",
                f"{name} too",
                f"It may get {name} instead of {' or '.join(request.accelerators)}.",
                {"accelerators": [*request.accelerators, name]},
            )


def _wider(request: JobRequest) -> Iterator[Way]:
    if request.topology is None:
        return
    required, preferred = request.topology.required, request.topology.preferred
    if required is not None:
        word = _DOMAIN_WORDS[required]
        if required in _WIDER:
            wider = _WIDER[required]
            yield Way(
                "wider",
                f"Within one {_DOMAIN_WORDS[wider]}",
                f"Its replicas may lie in several {word}s: their traffic crosses more switches.",
                {"topology": {"required": wider}},
            )
        yield Way(
            "preferred",
            f"One {word} only if it fits",
            f"Where no {word} fits it starts spread wider, and may run slower.",
            {"topology": {"preferred": required}},
        )
    elif preferred is not None and request.topology.max_wait:
        yield Way(
            "no-wait",
            "Without waiting for a better place",
            f"It starts wherever it fits, and may lie in several {_DOMAIN_WORDS[preferred]}s.",
            {"topology": {"preferred": preferred}},
        )


def _smaller(request: JobRequest) -> Iterator[Way]:
    if isinstance(request.replicas, int):
        if request.replicas > 1:
            half = request.replicas // 2
            yield Way(
                "smaller",
                f"{half} replicas instead of {request.replicas}",
                "It has fewer devices, and takes longer.",
                {"replicas": half},
            )
        return
    least = request.replicas.min
    if least > 1:
        half = least // 2
        bounds = request.replicas.model_dump(mode="json", exclude_unset=True)
        yield Way(
            "smaller",
            f"From {half} replicas on instead of {least}",
            "It may begin with fewer devices, and grow when there are more.",
            {"replicas": {**bounds, "min": half}},
        )


def _more_flexible(request: JobRequest) -> Iterator[Way]:
    for tier, costs in _TIER_COSTS.items():
        if tier > request.flexibility:
            yield Way(f"tier-{tier}", _TIER_WORDS[tier], costs, {"flexibility": tier})


_TIER_WORDS: Final = {2: "Flexible by 25 % in power events", 4: "Interruptible in power events"}


def _minutes(seconds: float) -> str:
    minutes = ceil(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes // 60} h {minutes % 60} min"

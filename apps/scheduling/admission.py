"""Says at submission what can never be: a job that even the empty facility could not hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any, Final

from django.db import connection

from apps.core import clock
from apps.jobs import intake
from apps.jobs.errors import Fault, Infeasible
from apps.jobs.spec import JobRequest
from apps.scheduling.engine import feasibility
from apps.scheduling.engine.facts import Facility, Impossible, Team
from apps.scheduling.snapshot import Names, read_facility, seconds

_MOST_VERDICTS: Final = 50_000


@dataclass(eq=False)
class _Known:
    """The facility as last read, and what was proved about it."""

    facility: Facility
    teams: tuple[Team, ...]
    names: Names
    stamp: tuple[object, ...]
    verdicts: dict[str, Impossible | None]


_known: _Known | None = None
_lock = Lock()


def require_possible(requests: Sequence[JobRequest], shapes: Sequence[str] | None = None) -> None:
    """Let pass what the empty facility could hold.

    Args:
        shapes: Of the requests, where the caller has them at hand.

    Raises:
        Infeasible: with the proof for each request that it could not.
    """
    known = _facility(clock.now())
    faults: list[Fault] = []
    facts: dict[str, Any] = {}
    if shapes is None:
        shapes = [intake.shape_of(request) for request in requests]
    for index, (request, shape) in enumerate(zip(requests, shapes, strict=True)):
        impossible = _verdict(known, request, shape)
        if impossible is not None:
            facts = facts or dict(impossible.facts)
            faults.append(Fault(_field_of(request, impossible), impossible.code, impossible.sentence, index))
    if faults:
        raise Infeasible(faults, proof=facts)


def is_possible(request: JobRequest) -> bool:
    """Whether the empty facility could hold it."""
    return _verdict(_facility(clock.now()), request, intake.shape_of(request)) is None


def names() -> Names:
    """What the names in requests stand for in the facility as built; the same object for as long as it is so."""
    return _facility(clock.now()).names


def facility() -> Facility:
    """The facility as built, as it stands behind `names`."""
    return _facility(clock.now()).facility


def forget() -> None:
    """Read the facility again next time."""
    global _known
    with _lock:
        _known = None


def _facility(at: datetime) -> _Known:
    global _known
    # The stamp first, and without the lock: what changes meanwhile is read once more next time.
    known, stamp = _known, _stamp()
    if known is not None and known.stamp == stamp:
        return known
    with _lock:
        if _known is None or _known.stamp != stamp:
            facility, teams, names = read_facility(at)
            _known = _Known(facility, teams, names, stamp, {})
        return _known


def _stamp() -> tuple[object, ...]:
    """Which changes of the facility are seen from here: another whenever it was changed, by whomever."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_database(), count(*), min(id), max(id), sum(id) FROM scheduling_facilitychange"
        )
        return tuple(cursor.fetchone() or ())


def _verdict(known: _Known, request: JobRequest, key: str) -> Impossible | None:
    if key not in known.verdicts:
        if len(known.verdicts) >= _MOST_VERDICTS:
            known.verdicts.clear()
        gang = known.names.gang_of(request, at_s=seconds(clock.now()))
        known.verdicts[key] = feasibility.prove_impossible(known.facility, known.teams, gang)
    return known.verdicts[key]


def _field_of(request: JobRequest, impossible: Impossible) -> str:
    """The field that asks for too much, as a user would write it."""
    group = impossible.facts.get("group")
    prefix = f"groups[{group}]." if request.groups is not None and isinstance(group, int) else ""
    field = {"topology": "topology", "memory": "memory_gib", "cpus": "cpus", "accelerator": "accelerators"}
    return prefix + str(impossible.facts.get("field") or field.get(impossible.code) or "replicas")

"""The hall of P09: jobs A to E and three idle nodes, each on a rack with a meter; the event of P01 binds."""

from dataclasses import replace
from typing import Final

from apps.power.telemetry.facts import Domain, Node, Part, Reading

LIMIT_W: Final = 114_400.0
REST_W: Final = 2_000.0 + 8 * 100.0  # of a node: the host, and eight devices at 100 W
HALL: Final = 0
A, B, C, D, E, IDLE = range(1, 7)  # racks, and the jobs on them
# Nodes, watts of a device now, the cap on it (0: none). E is paused: its devices idle.
_JOBS: Final = {
    A: (4, 300.0, 0.0),
    B: (4, 700.0, 0.0),
    C: (4, 700.0, 0.0),
    D: (4, 400.0, 400.0),
    E: (2, 100.0, 0.0),
    IDLE: (3, 100.0, 0.0),
}


def draw_w(rack: int) -> float:
    n, device_w, _ = _JOBS[rack]
    return n * (2_000.0 + 8 * device_w)


TOTAL_W: Final = sum(draw_w(rack) for rack in _JOBS)


def reading(watts: float, age_s: float = 15.0, quality: str = "ok") -> Reading:
    return Reading(watts, age_s, 60.0, quality, "meter")


def domains(*silent: int, limit_w: float = LIMIT_W) -> tuple[Domain, ...]:
    """The hall and its racks; the meters of the silent ones spoke last ten minutes ago."""
    found = [Domain("H", limit_w=limit_w, reading=reading(TOTAL_W))]
    found += [Domain(f"R{rack}", HALL, reading=reading(draw_w(rack))) for rack in _JOBS]
    for d in silent:
        found[d] = replace(found[d], reading=reading(1.0, age_s=600.0))
    return tuple(found)


def nodes(*, ack_age_s: float = 10.0) -> tuple[Node, ...]:
    """One entry for each rack; caps were acknowledged so long ago."""
    found = []
    for rack, (n, device_w, cap_w) in _JOBS.items():
        parts = ()
        if device_w > 100.0:
            devices = 8 * n
            part = Part(
                job_id=rack,
                peak_w=devices * (device_w - 100.0),
                most_w=devices * 600.0,
                capped_w=devices * (cap_w - 100.0) if cap_w else None,
                ack_age_s=ack_age_s,
            )
            parts = (part,)
        found.append(Node(rack, n * REST_W, parts))
    return tuple(found)

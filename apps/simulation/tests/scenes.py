"""Random small scenarios for property tests, as dictionaries that a scenario file could hold.

`scenes()` is a hypothesis strategy. Everything in a scene is right by the contract; whether anything in it fits or
ends well is not said.
"""

import json
import random
from typing import Any

from hypothesis import strategies as st

from apps.simulation.loop import Engine, Outcome, simulate
from apps.simulation.scenario import read_scenario
from apps.simulation.world import build_world

Scene = dict[str, Any]

TYPES = [
    {"name": "A", "tdp_w": 400, "memory_gib": 40},
    {"name": "B", "tdp_w": 700, "memory_gib": 80, "speed": 2},
]


def run_scene(scene: Scene, **engine: Any) -> Outcome:
    """Read a scene as a file would be read, and simulate it."""
    return simulate(build_world(read_scenario(json.dumps(scene).encode())), Engine(**engine))


def scene_of(
    *jobs: Scene, nodes: int = 1, devices: int = 8, events: list[Scene] | None = None, **more: Any
) -> Scene:
    """A plain facility of equal nodes, and these jobs; a job needs no more than what matters to a test."""
    named = [{"name": f"j{i}", "runtime": 10, **job} for i, job in enumerate(jobs)]
    facility = {
        "accelerator_types": [TYPES[0]],
        "nodes": [{"name": f"n{i}", "accelerator": "A", "devices": devices} for i in range(nodes)],
    }
    facility.update(more.pop("facility", {}))
    return {"facility": facility, "jobs": named, "events": events or [], **more}


@st.composite
def facilities(draw: st.DrawFn) -> Scene:
    """Up to six nodes of two types under a network tree and a power tree with limits."""
    n_leaves = draw(st.integers(1, 2))
    n_racks = draw(st.integers(1, 2))
    domains: list[Scene] = [
        {"name": "site", "kind": "facility"},
        {"name": "hall", "kind": "hall", "parent": "site"},
        {"name": "spine", "kind": "spine"},
        {"name": "water", "kind": "cooling"},
        {"name": "store0", "kind": "storage"},
        {"name": "store1", "kind": "storage"},
    ]
    domains += [{"name": f"leaf{i}", "kind": "leaf", "parent": "spine"} for i in range(n_leaves)]
    racks = [{"name": f"rack{i}", "kind": "rack", "parent": "hall"} for i in range(n_racks)]
    domains += racks
    for row in (domains[0], domains[1], *racks):
        if draw(st.booleans()):
            row["power_limit_w"] = draw(st.sampled_from([2_000, 4_000, 6_500, 12_000]))
    nodes: list[Scene] = []
    for i in range(draw(st.integers(1, 4))):
        node: Scene = {
            "name": f"node{i}",
            "accelerator": draw(st.sampled_from(["A", "A", "B"])),
            "devices": draw(st.sampled_from([2, 4, 8])),
        }
        if draw(st.integers(0, 4)):
            node["leaf"] = f"leaf{draw(st.integers(0, n_leaves - 1))}"
        if draw(st.integers(0, 4)):
            node["power"] = f"rack{draw(st.integers(0, n_racks - 1))}"
        if draw(st.booleans()):
            node["cooling"] = "water"
        if draw(st.booleans()):
            node["storage"] = draw(st.sampled_from(["store0", "store1"]))
        if draw(st.integers(0, 3)) == 0:
            node["count"] = 2
        if draw(st.integers(0, 3)) == 0:
            node["speed"] = 0.5
        if draw(st.integers(0, 3)) == 0:
            node["cpus"], node["memory_gib"] = 16, 64
        if draw(st.booleans()):
            node["idle_w"] = 150
        nodes.append(node)
    return {
        "accelerator_types": [dict(row) for row in TYPES],
        "domains": domains,
        "nodes": nodes,
        "overhead_fixed_w": draw(st.sampled_from([0, 500])),
        "overhead_k": draw(st.sampled_from([1, 1.2])),
    }


@st.composite
def team_lists(draw: st.DrawFn) -> list[Scene]:
    """No teams, or a cohort of two or three and perhaps a team that stands alone."""
    if draw(st.booleans()):
        return []
    teams: list[Scene] = [{"name": "cohort"}]
    if draw(st.booleans()):
        teams[0]["quota"] = {"A": draw(st.integers(0, 4))}
    for i in range(draw(st.integers(2, 3))):
        team: Scene = {"name": f"team{i}", "parent": "cohort", "weight": draw(st.sampled_from([1, 2]))}
        team["quota"] = {"A": draw(st.integers(0, 8))}
        if draw(st.booleans()):
            team["borrow_limit"] = {"A": draw(st.integers(0, 6))}
        if draw(st.booleans()):
            team["lend_limit"] = {"A": draw(st.integers(0, 6))}
        if draw(st.integers(0, 2)) == 0:
            team["member_limit"] = {draw(st.sampled_from(["A", "B"])): draw(st.integers(0, 6))}
        if draw(st.integers(0, 3)) == 0:
            team["member_jobs"] = draw(st.integers(0, 3))
        teams.append(team)
    if draw(st.booleans()):
        teams.append({"name": "alone", "quota": {"A": 4, "B": 4}})
    return teams


@st.composite
def jobs_of(draw: st.DrawFn, index: int, leaves: list[str], n_reservations: int) -> Scene:
    """One job: a gang of whole devices, or of fractions, or of none."""
    job: Scene = {"name": f"job{index}", "runtime": draw(st.sampled_from([5, 10, 20, 45.5, 100]))}
    job["submit"] = draw(st.sampled_from([0, 0, 0, 5, 10, 17.5, 30]))
    job["devices"] = draw(st.sampled_from([1, 1, 2, 4, 0.25, 0.5, 0]))
    job["replicas"] = draw(st.sampled_from([1, 1, 2, 3, 6]))
    if draw(st.integers(0, 3)) == 0:
        least = draw(st.integers(1, 3))
        most = least + draw(st.integers(0, 4))
        job["replicas"] = {"min": least, "max": most}
        if draw(st.booleans()):
            job["replicas"]["preferred"] = draw(st.integers(least, most))
        if draw(st.integers(0, 3)) == 0:
            job["scaling"] = [[1, 0.5], [4, 1.5]]
    if draw(st.integers(0, 4)) == 0:
        rule = {draw(st.sampled_from(["max_skew", "max_per_domain"])): draw(st.integers(1, 2))}
        job["spread"] = {"over": draw(st.sampled_from(["scale_up", "leaf", "rack", "cooling"])), **rule}
    if draw(st.integers(0, 5)) == 0:
        job["preemptible"] = False
    if draw(st.integers(0, 4)) == 0:
        job["datasets"] = [draw(st.sampled_from(["small", "large"]))]
    if leaves:
        job["team"] = draw(st.sampled_from(leaves))
    if draw(st.booleans()):
        job["time_limit"] = draw(st.sampled_from([8, 30, 60, 200]))
    if draw(st.integers(0, 3)) == 0:
        job["priority"] = draw(st.integers(-1, 3))
    if draw(st.integers(0, 3)) == 0:
        job["accelerators"] = draw(st.sampled_from([["A"], ["B"], ["A", "B"], ["B", "A"]]))
    if draw(st.integers(0, 5)) == 0:
        job["min_memory_gib"] = 60
    if draw(st.integers(0, 3)) == 0:
        rule = draw(st.sampled_from(["required", "preferred"]))
        job["topology"] = {rule: draw(st.sampled_from(["scale_up", "leaf", "spine"]))}
        if rule == "preferred" and draw(st.integers(0, 3)) == 0:
            job["topology"]["max_wait"] = draw(st.sampled_from([5, 20]))
    if draw(st.integers(0, 3)) == 0:
        job["cpus"], job["memory_gib"] = draw(st.sampled_from([2, 8])), draw(st.sampled_from([1, 16]))
    if draw(st.integers(0, 3)) == 0:
        job["power_w"] = draw(st.sampled_from([100, 300]))
        if draw(st.booleans()):
            job["peak_w"] = 350
    if draw(st.integers(0, 2)) == 0:
        job["checkpoint"] = {
            "interval": draw(st.sampled_from([5, 7.5, 20])),
            "cost": draw(st.sampled_from([0, 1])),
            "restart": draw(st.sampled_from([0, 2])),
            "on_resize": draw(st.booleans()),
        }
    if index and draw(st.integers(0, 4)) == 0:
        job["after"] = [f"job{draw(st.integers(0, index - 1))}"]
    if draw(st.integers(0, 5)) == 0:
        job["not_before"] = draw(st.sampled_from([3, 12, 40]))
    if draw(st.integers(0, 5)) == 0:
        job["deadline"] = draw(st.sampled_from([20, 60]))
    if n_reservations and draw(st.integers(0, 4)) == 0:
        job["reservation"] = f"booking{draw(st.integers(0, n_reservations - 1))}"
    if draw(st.booleans()):
        job["user"] = draw(st.sampled_from(["ann", "bob"]))
    return job


@st.composite
def reservation_lists(draw: st.DrawFn, node_names: list[str], teams: list[str]) -> list[Scene]:
    """Up to two windows, by nodes or by amount, for some teams or for nobody."""
    rows: list[Scene] = []
    for i in range(draw(st.sampled_from([0, 0, 1, 2]))):
        start = draw(st.sampled_from([0, 15, 40]))
        row: Scene = {"name": f"booking{i}", "start": start, "end": start + draw(st.sampled_from([10, 50]))}
        if draw(st.booleans()):
            row["nodes"] = [draw(st.sampled_from(node_names))]
        else:
            row["accelerator"], row["devices"] = "A", draw(st.sampled_from([1, 2, 4]))
        if teams and draw(st.booleans()):
            row["teams"] = [draw(st.sampled_from(teams))]
        if draw(st.booleans()):
            row["flexible"] = False
        rows.append(row)
    return rows


@st.composite
def event_lists(draw: st.DrawFn, node_names: list[str], teams: list[str], n_jobs: int) -> list[Scene]:
    """Nodes fail, drain and come back, jobs are cancelled, limits and quotas change."""
    rows: list[Scene] = []
    for _ in range(draw(st.sampled_from([0, 1, 2, 4]))):
        t = draw(st.sampled_from([2, 10, 12.5, 30, 60]))
        kind = draw(st.sampled_from(["fail", "drain", "cancel", "quota", "limit"]))
        if kind in ("fail", "drain"):
            node = draw(st.sampled_from(node_names))
            rows.append({"t": t, "type": f"node_{kind}", "node": node})
            if draw(st.integers(0, 3)):
                rows.append({"t": t + draw(st.sampled_from([0, 20])), "type": "node_recover", "node": node})
        elif kind == "cancel":
            rows.append({"t": t, "type": "cancel", "job": f"job{draw(st.integers(0, n_jobs - 1))}"})
        elif kind == "quota" and teams:
            quota = {"A": draw(st.integers(0, 8))}
            rows.append({"t": t, "type": "set_quota", "team": draw(st.sampled_from(teams)), "quota": quota})
        elif kind == "limit":
            limit = draw(st.sampled_from([None, 1_000, 5_000, 20_000]))
            rows.append({"t": t, "type": "set_power_limit", "domain": "hall", "power_limit_w": limit})
    return rows


@st.composite
def scenes(draw: st.DrawFn, max_jobs: int = 10) -> Scene:
    """A whole scenario: facility, teams, reservations, jobs, events, policy."""
    facility = draw(facilities())
    teams = draw(team_lists())
    parents = {team.get("parent") for team in teams}
    leaves = [team["name"] for team in teams if team["name"] not in parents]
    names = [
        name
        for node in facility["nodes"]
        for name in (
            [f"{node['name']}-{i + 1:04d}" for i in range(node["count"])]
            if "count" in node
            else [node["name"]]
        )
    ]
    reservations = draw(reservation_lists(names, leaves))
    n_jobs = draw(st.integers(1, max_jobs))
    scene: Scene = {
        "facility": facility,
        "teams": teams,
        "reservations": reservations,
        "datasets": [
            {"name": "small", "size_gib": 4, "at": draw(st.sampled_from([[], ["store0"]]))},
            {
                "name": "large",
                "size_gib": 90,
                "at": draw(st.sampled_from([[], ["store1"]])),
                "arriving": draw(st.sampled_from([{}, {"store0": 25}])),
            },
        ],
        "jobs": [draw(jobs_of(i, leaves, len(reservations))) for i in range(n_jobs)],
        "events": draw(event_lists(names, leaves, n_jobs)),
        "policy": {"backfill_depth": draw(st.sampled_from([0, 1, 2, 64, "all"]))},
    }
    if draw(st.integers(0, 3)) == 0:
        scene["policy"]["order"] = "submit"
    if draw(st.integers(0, 3)) == 0:
        scene["policy"].update(cooldown_s=15, retry_backoff_s=7)
    if draw(st.integers(0, 2)) == 0:
        scene["policy"]["preemption"] = False
    if draw(st.integers(0, 3)) == 0:
        scene["policy"]["shield_s"] = 6
    if draw(st.booleans()):
        scene["policy"]["resize_dwell_s"] = draw(st.sampled_from([0, 4]))
    if draw(st.integers(0, 5)) == 0:
        scene["policy"]["pass_interval"] = 8
    if draw(st.integers(0, 5)) == 0:
        scene["until"] = draw(st.sampled_from([0, 15, 50]))
    return scene


@st.composite
def power_events(draw: st.DrawFn, domains: list[str]) -> list[Scene]:
    """Up to three asked reductions, which may overlap and be called off, and limits that move meanwhile."""
    rows: list[Scene] = []
    for i in range(draw(st.integers(1, 3))):
        t = draw(st.sampled_from([0, 2, 10, 12.5, 20]))
        start = t + draw(st.sampled_from([0, 5, 15, 30, 60]))
        row: Scene = {
            "t": t,
            "type": "demand_response",
            "name": f"event{i}",
            "domain": draw(st.sampled_from(domains)),
            "start": start,
            "duration": draw(st.sampled_from([5, 20, 60, 200])),
        }
        if draw(st.booleans()):
            row["reduce_w"] = draw(st.sampled_from([300, 1_000, 3_000]))
        else:
            row["target_w"] = draw(st.sampled_from([500, 1_000, 2_000, 4_000]))
        if draw(st.integers(0, 4)) == 0:
            row["emergency"] = True
        rows.append(row)
        if draw(st.integers(0, 2)) == 0:
            at = start + draw(st.sampled_from([-3, 0, 4, 30]))
            rows.append({"t": max(t, at), "type": "cancel_demand_response", "name": row["name"]})
        if draw(st.integers(0, 2)) == 0:
            limit = draw(st.sampled_from([None, 700, 1_500, 4_000, 20_000]))
            at = max(0, start + draw(st.sampled_from([-4, 0, 3, 15])))
            domain = draw(st.sampled_from(domains))
            rows.append({"t": at, "type": "set_power_limit", "domain": domain, "power_limit_w": limit})
    return rows


@st.composite
def power_scenes(draw: st.DrawFn, max_jobs: int = 8) -> Scene:
    """A scene with power events that are known ahead, and jobs that bear being slowed, paused or made smaller."""
    scene: Scene = draw(scenes(max_jobs))
    for job in scene["jobs"]:
        job["flexibility"] = draw(st.sampled_from([0, 0, 1, 2, 3, 4, 4]))
        if job["flexibility"] == 4 and draw(st.booleans()):
            job.setdefault(
                "checkpoint", {"interval": 20, "cost": draw(st.sampled_from([0, 1])), "restart": 1}
            )
        if draw(st.booleans()):
            job["runtime"] = draw(st.sampled_from([45.5, 100, 250]))
            job.pop("time_limit", None)
    domains = [
        row["name"] for row in scene["facility"]["domains"] if row["kind"] in ("facility", "hall", "rack")
    ]
    scene["events"] = [*scene["events"], *draw(power_events(domains))]
    if draw(st.booleans()):
        scene["policy"]["rebound_limit"] = 3
    if draw(st.integers(0, 3)) == 0:
        scene["policy"]["idle_power_off"] = True
    ramp = draw(st.sampled_from([None, None, 50]))
    if ramp is not None:
        draw(st.sampled_from([row for row in scene["facility"]["domains"] if row["name"] in domains]))[
            "ramp_up_w_per_s"
        ] = ramp
    return scene


# ------------------------------------------------------------------------------------------------------
# The same scene in other words

_LISTS = ("teams", "datasets", "reservations", "jobs", "events")


def shuffled(scene: Scene, seed: int) -> Scene:
    """The same scene with every list of rows in another order."""
    chance = random.Random(seed)
    mixed = {key: chance.sample(rows, len(rows)) if key in _LISTS else rows for key, rows in scene.items()}
    mixed["facility"] = {
        key: chance.sample(rows, len(rows)) if isinstance(rows, list) else rows
        for key, rows in scene["facility"].items()
    }
    return mixed


def renamed(scene: Scene, seed: int) -> tuple[Scene, dict[str, str]]:
    """The same scene in other names, and the old name of each new one."""
    chance = random.Random(seed)
    old_names = sorted(
        {row["name"] for key in _LISTS for row in scene.get(key, ()) if "name" in row}
        | {row["name"] for rows in scene["facility"].values() if isinstance(rows, list) for row in rows}
        | {job["user"] for job in scene["jobs"] if "user" in job}
    )
    numbers = chance.sample(range(1000), len(old_names))
    new_of = {old: f"x{number:03d}" for old, number in zip(old_names, numbers, strict=True)}
    counted = {row["name"] for row in scene["facility"]["nodes"] if "count" in row}

    def new(value: Any) -> Any:
        if isinstance(value, dict):
            return {new_of.get(key, key): item if key in _WORDS else new(item) for key, item in value.items()}
        if isinstance(value, list):
            return [new(item) for item in value]
        if isinstance(value, str):
            row, _, number = value.rpartition("-")
            return f"{new_of[row]}-{number}" if row in counted else new_of.get(value, value)
        return value

    back = {new: old for old, new in new_of.items()}
    for row in counted:
        back |= {f"{new_of[row]}-{i:04d}": f"{row}-{i:04d}" for i in range(1, 10)}
    return new(scene), back


_WORDS = frozenset({"kind", "type", "required", "preferred", "order", "backfill_depth", "within", "over"})

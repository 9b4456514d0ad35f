"""What must hold in every simulation, over random scenes."""

import os
from collections import defaultdict
from fractions import Fraction

from hypothesis import HealthCheck, given, settings

from apps.simulation import report
from apps.simulation.replay.heap import exact
from apps.simulation.tests.scenes import power_scenes, run_scene, scene_of, scenes

SLOW = settings(
    max_examples=int(os.environ.get("SWITCHYARD_SCENES", "80")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LEAVES = ("finish", "timeout", "cancel", "node_lost", "preempt")


def device_use(outcome):
    """Share of each device in use after each line, and who holds what."""
    held: dict[str, list[tuple[tuple[str, int], Fraction]]] = {}
    use: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for line in outcome.lines:
        job = line.get("job")
        if line["event"] in ("start", "resize"):
            assert (job in held) == (line["event"] == "resize")
            for device, share in held.pop(job, ()):
                use[device] -= share
            held[job] = [
                ((entry["node"], device), exact(entry["share"]))
                for entry in line["placement"]
                for device in entry["devices"]
            ]
            for device, share in held[job]:
                use[device] += share
        elif line["event"] in LEAVES:
            for device, share in held.pop(job, ()):
                use[device] -= share
        yield line, use, held


@SLOW
@given(scenes())
def test_no_device_has_more_than_one_whole_owner(scene):
    for _, use, _ in device_use(run_scene(scene)):
        assert all(0 <= share <= 1 for share in use.values())


@SLOW
@given(scenes())
def test_no_member_has_more_than_one_member_may_at_any_instant(scene):
    kinds = {node["name"]: node["accelerator"] for node in scene["facility"]["nodes"]}
    jobs = {job["name"]: job for job in scene["jobs"]}
    limits = {team["name"]: team for team in scene["teams"]}
    for _, _, held in device_use(run_scene(scene)):
        devices: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
        n_jobs: dict[tuple[str, str], int] = defaultdict(int)
        for name, shares in held.items():
            job = jobs[name]
            if "user" not in job or "team" not in job:
                continue
            n_jobs[job["team"], job["user"]] += 1
            for (node, _), share in shares:
                kind = kinds.get(node) or kinds[node.rpartition("-")[0]]
                devices[job["team"], job["user"], kind] += share
        for (team, _, kind), amount in devices.items():
            assert amount <= limits[team].get("member_limit", {}).get(kind, amount)
        for (team, _), n in n_jobs.items():
            assert n <= limits[team].get("member_jobs", n)


@SLOW
@given(scenes())
def test_a_gang_starts_whole(scene):
    replicas = {job["name"]: job.get("replicas", 1) for job in scene["jobs"]}
    for line in run_scene(scene).lines:
        if line["event"] in ("start", "resize"):
            placed = sum(entry["replicas"] for entry in line["placement"])
            asked = replicas[line["job"]]
            least, most = (asked, asked) if isinstance(asked, int) else (asked["min"], asked["max"])
            assert least <= placed <= most


@SLOW
@given(scenes())
def test_after_all_jobs_have_ended_nothing_is_held(scene):
    outcome = run_scene(scene)
    states = {life.job.name: life.state for life in outcome.lives}
    *_, held = list(device_use(outcome))[-1] if outcome.lines else ((), {}, {})

    assert {name for name, state in states.items() if state == "running"} == set(held)


@SLOW
@given(scenes())
def test_losses_sum_exactly_to_the_capacity(scene):
    outcome = run_scene(scene)
    losses = report.summary(outcome)["losses"]
    capacity = float(Fraction(outcome.ledger.n_steps, 1_000_000) * outcome.horizon)

    assert sum(losses.values()) == capacity
    assert sum(reversed(losses.values())) == capacity
    assert all(amount >= 0 for amount in losses.values())
    # Not only by rounding: what was counted is the capacity.
    assert abs(outcome.ledger.held_and_free - Fraction(capacity)) < Fraction(1, 10**6)


@SLOW
@given(scenes())
def test_time_never_goes_back_and_releases_come_before_starts(scene):
    last_t, has_started = -1, False
    for line in run_scene(scene).lines:
        assert line["t"] >= last_t
        has_started = has_started and line["t"] == last_t
        has_started |= line["event"] == "start"
        # What is over is over before anything starts; who gives way does so before the job it gives way to starts.
        assert not (has_started and line["event"] in ("finish", "timeout", "node_lost"))
        last_t = line["t"]


@SLOW
@given(scenes())
def test_no_domain_draws_more_than_a_limit_that_never_changed(scene):
    events = scene.pop("events")
    scene["events"] = [event for event in events if event["type"] != "set_power_limit"]
    peaks = report.summary(run_scene(scene))["metrics"]["peak_power_w"]
    idle = report.summary(run_scene({**scene, "jobs": [], "events": [], "until": 1}))["metrics"][
        "peak_power_w"
    ]
    for domain in scene["facility"]["domains"]:
        if "power_limit_w" in domain:
            # A limit under the idle draw cannot be kept; then nothing is started above it.
            allowed = max(domain["power_limit_w"], idle[domain["name"]])
            assert peaks[domain["name"]] <= allowed + 1e-6


@SLOW
@given(scenes())
def test_every_line_belongs_to_the_life_of_its_job(scene):
    state: dict[str, str] = defaultdict(lambda: "pending")
    follows = {
        "submit": {"pending"},
        "reject": {"queued"},
        "start": {"queued"},
        "reserve": {"queued"},
        "preempt": {"running"},
        "resize": {"running"},
        "finish": {"running"},
        "timeout": {"running"},
        "node_lost": {"running"},
        "cancel": {"pending", "queued", "running"},
    }
    becomes = {
        "submit": "queued",
        "start": "running",
        "node_lost": "queued",
        "preempt": "queued",
        "reserve": "queued",
        "resize": "running",
    }
    for line in run_scene(scene).lines:
        if line["event"] == "stage":
            continue
        assert state[line["job"]] in follows[line["event"]]
        state[line["job"]] = becomes.get(line["event"], "over")


@SLOW
@given(scenes())
def test_what_still_waits_says_why(scene):
    outcome = run_scene(scene)
    is_planned = "until" not in scene and not scene["policy"].get("pass_interval")
    for told in report.summary(outcome)["jobs"].values():
        if told["state"] == "queued" and is_planned:
            assert told["code"]
            assert told["reason"]


def test_a_promise_is_kept_though_jobs_behind_are_backfilled():
    jobs = [
        {"devices": d, "runtime": r, "time_limit": r + 5, "submit": s}
        for s, (d, r) in enumerate([(6, 40), (8, 20), (2, 30), (1, 90), (4, 10), (8, 15), (2, 35), (1, 5)])
    ]
    for depth in (1, 2, "all"):
        lines = run_scene(scene_of(*jobs, policy={"backfill_depth": depth})).lines
        first = {}
        for line in lines:
            if line["event"] == "reserve":
                first.setdefault(line["job"], line["expected_start"])
        begun = {line["job"]: line["t"] for line in lines if line["event"] == "start"}
        assert all(begun[name] <= promised for name, promised in first.items())


@SLOW
@given(scenes())
def test_under_easy_nothing_that_is_backfilled_moves_the_promised_start_later(scene):
    # Served by submit time alone, on equal nodes; nobody ahead of the head becomes ready later, or waits for a quota.
    scene["events"], scene["reservations"], scene["teams"] = [], [], []
    scene["policy"] = {"order": "submit", "backfill_depth": 1, "preemption": False}
    for node in scene["facility"]["nodes"]:
        node["accelerator"] = "A"
        node.pop("speed", None)
    for job in scene["jobs"]:
        for field in (
            "team", "after", "not_before", "reservation", "accelerators", "min_memory_gib", "deadline", "datasets",
            "topology",
        ):  # fmt: skip
            job.pop(field, None)
    promised: dict[str, float] = {}
    for line in run_scene(scene).lines:
        if line["event"] == "reserve":
            assert line["expected_start"] <= promised.setdefault(line["job"], line["expected_start"])
        elif line["event"] == "start":
            assert line["t"] <= promised.get(line["job"], line["t"])


@SLOW
@given(scenes(max_jobs=1))
def test_what_is_not_rejected_starts_at_once_in_the_empty_facility(scene):
    scene["events"], scene["reservations"], scene["teams"] = [], [], []
    scene["policy"].pop("pass_interval", None)
    scene.pop("until", None)
    for field in ("team", "reservation", "not_before", "datasets"):
        scene["jobs"][0].pop(field, None)
    told = report.summary(run_scene(scene))["jobs"]["job0"]

    assert told["state"] == "rejected" or told["start"] == scene["jobs"][0]["submit"]


@SLOW
@given(scenes())
def test_whoever_gives_way_may_be_asked_to_and_makes_room_for_a_job_that_starts(scene):
    jobs = {job["name"]: job for job in scene["jobs"]}
    lines = run_scene(scene).lines
    for line in lines:
        if line["event"] != "preempt":
            continue
        victim, by = jobs[line["job"]], jobs[line["for"]["job"]]
        assert scene["policy"].get("preemption", True)
        assert victim.get("preemptible", True)
        starts = [other["t"] for other in lines if other["event"] == "start" and other["job"] == by["name"]]
        assert line["t"] in starts
        if victim.get("priority", 0) >= by.get("priority", 0):
            assert scene["teams"]
            assert victim["team"] != by["team"]
            if scene["policy"]["backfill_depth"] != "all":
                continue
        began = max(
            other["t"]
            for other in lines
            if other["event"] == "start" and other["job"] == victim["name"] and other["t"] <= line["t"]
        )
        assert line["t"] - began >= scene["policy"].get("shield_s", 0)


@SLOW
@given(scenes())
def test_devices_wait_for_data_no_longer_than_they_may(scene):
    sizes = {row["name"]: row["size_gib"] for row in scene["datasets"]}
    outcome = run_scene(scene)
    stores = {node["name"]: node.get("storage") for node in scene["facility"]["nodes"]}
    copies = {(row["name"], at): 0 for row in scene["datasets"] for at in row["at"]}
    copies |= {
        (row["name"], at): arrives
        for row in scene["datasets"]
        for at, arrives in row.get("arriving", {}).items()
    }
    for line in outcome.lines:
        if line["event"] == "stage":
            assert line["until"] - line["t"] == sizes[line["dataset"]]
            assert (line["dataset"], line["to"]) not in copies
            copies[line["dataset"], line["to"]] = line["until"]
        elif line["event"] in ("start", "resize"):
            job = next(job for job in scene["jobs"] if job["name"] == line["job"])
            for name in job.get("datasets", ()):
                for entry in line["placement"]:
                    store = stores[entry["node"].rsplit("-0", 1)[0]]
                    assert store is None or copies[name, store] <= line["t"] + 60


@SLOW
@given(scenes())
def test_elastic_jobs_grow_only_after_they_have_kept_their_size_for_a_while(scene):
    dwell_s = scene["policy"].get("resize_dwell_s", 300)
    since: dict[str, tuple[float, int]] = {}
    for line in run_scene(scene).lines:
        if line["event"] in ("start", "resize"):
            size = sum(entry["replicas"] for entry in line["placement"])
            if line["event"] == "resize" and size > since[line["job"]][1]:
                assert line["t"] - since[line["job"]][0] >= dwell_s
            since[line["job"]] = (line["t"], size)


@SLOW
@given(scenes())
def test_evictions_come_to_rest(scene):
    # No job is put off its devices more often than others arrive, end or are put aside.
    outcome = run_scene(scene)
    assert sum(line["event"] == "preempt" for line in outcome.lines) <= len(scene["jobs"]) ** 2


@SLOW
@given(power_scenes())
def test_devices_hours_and_gangs_stay_right_through_power_events(scene):
    outcome = run_scene(scene)  # every plan was checked
    jobs = {job["name"]: job for job in scene["jobs"]}
    hold: set[str] = set()
    for line, use, held in device_use(outcome):
        hold = set(held)
        assert all(0 <= share <= 1 for share in use.values())
        if line["event"] in ("start", "resize"):
            asked = jobs[line["job"]].get("replicas", 1)
            least, most = (asked, asked) if isinstance(asked, int) else (asked["min"], asked["max"])
            assert least <= sum(entry["replicas"] for entry in line["placement"]) <= most
        assert line["event"] != "pause" or jobs[line["job"]]["flexibility"] == 4
    states = {life.job.name: life.state for life in outcome.lives}
    assert {name for name, state in states.items() if state in ("running", "paused")} == hold
    losses = report.summary(outcome)["losses"]
    assert sum(losses.values()) == float(Fraction(outcome.ledger.n_steps, 1_000_000) * outcome.horizon)
    assert all(amount >= 0 for amount in losses.values())


@SLOW
@given(power_scenes())
def test_no_limit_that_stays_is_passed_through_power_events(scene):
    scene["events"] = [event for event in scene["events"] if event["type"] != "set_power_limit"]
    peaks = report.summary(run_scene(scene))["metrics"]["peak_power_w"]
    at_rest = {**scene, "jobs": [], "events": [], "until": 1}
    idle = report.summary(run_scene(at_rest))["metrics"]["peak_power_w"]
    for domain in scene["facility"]["domains"]:
        if "power_limit_w" in domain:
            assert peaks[domain["name"]] <= max(domain["power_limit_w"], idle[domain["name"]]) + 1e-6


TREE = [
    {"name": "site", "kind": "facility"},
    {"name": "hall", "kind": "hall", "parent": "site"},
    {"name": "rack", "kind": "rack", "parent": "hall"},
]
RACK = {"domains": TREE, "nodes": [{"name": "n", "accelerator": "A", "devices": 8, "power": "rack"}]}


def asked(name: str, t: float, domain: str, start: float, duration: float, **target: float):
    return {
        "t": t, "type": "demand_response", "name": name, "domain": domain, "start": start, "duration": duration,
        **target,
    }  # fmt: skip


def test_a_promise_that_counted_on_the_end_of_an_event_is_not_kept_blindly_once_it_has_begun():
    """From then on nobody says when the limit will rise; the job starts when it has."""
    scene = scene_of(
        {"runtime": 250, "submit": 30},
        facility=RACK,
        events=[
            asked("first", 12.5, "site", 42.5, 200, reduce_w=300),
            asked("second", 20, "hall", 50, 5, target_w=500),
        ],
        policy={"backfill_depth": "all", "rebound_limit": 3},
    )
    lines = run_scene(scene).lines
    assert [line["expected_start"] for line in lines if line["event"] == "reserve"] == [242.5]
    assert [line["t"] for line in lines if line["event"] == "start"] == [242.5]


def test_a_promise_gives_way_to_an_event_that_takes_the_watts_it_counted_on():
    """It was for when the first is over; then the target binds."""
    scene = scene_of(
        {"runtime": 45.5, "replicas": 3},
        {"runtime": 45.5, "replicas": 6},
        facility=RACK,
        events=[asked("event", 10, "site", 40, 20, target_w=1_000)],
        policy={"backfill_depth": "all"},
    )
    lines = run_scene(scene).lines
    assert [line["expected_start"] for line in lines if line["event"] == "reserve"] == [45.5, 60]
    assert [line["t"] for line in lines if line["event"] == "start"] == [0, 60]


def test_a_job_may_grow_outside_a_hall_that_draws_more_than_its_new_limit():
    """The excess was there before; what the job has in the hall it has as before."""
    scene = {
        "facility": {
            "accelerator_types": [{"name": "A", "tdp_w": 400}],
            "domains": [
                {"name": "site", "kind": "facility"},
                {"name": "hall", "kind": "hall", "parent": "site", "power_limit_w": 2000},
                {"name": "rack", "kind": "rack", "parent": "hall"},
            ],
            "nodes": [
                {"name": "inside", "accelerator": "A", "devices": 2, "power": "rack"},
                {"name": "outside", "accelerator": "A", "devices": 2},
            ],
        },
        "reservations": [{"name": "r", "start": 0, "end": 10, "nodes": ["outside"]}],
        "jobs": [{"name": "j", "runtime": 60, "replicas": {"min": 1, "max": 4}, "power_w": 400}],
        "events": [{"t": 2, "type": "set_power_limit", "domain": "hall", "power_limit_w": 500}],
        "policy": {"resize_dwell_s": 0},
    }
    grown = [line["t"] for line in run_scene(scene).lines if line["event"] == "resize"]
    assert grown == [10]


def test_a_job_may_shrink_in_a_team_that_uses_more_than_its_new_quota():
    """Giving devices back breaks no quota, though what stays is still more than the team owns."""
    scene = scene_of(
        {"runtime": 60, "replicas": {"min": 2, "max": 8}, "devices": 1, "team": "x"},
        {"runtime": 10, "devices": 4, "team": "y", "priority": 9, "submit": 6},
        policy={"resize_dwell_s": 0, "shield_s": 0},
    )
    scene["teams"] = [{"name": "x", "quota": {"A": 8}}, {"name": "y", "quota": {"A": 8}}]
    scene["events"] = [{"t": 5, "type": "set_quota", "team": "x", "quota": {"A": 1}}]
    lines = run_scene(scene).lines
    assert [line["t"] for line in lines if line["event"] == "start"] == [0, 6]
    assert [line["t"] for line in lines if line["event"] == "resize"] == [6]

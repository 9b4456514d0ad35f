"""Power events in virtual time: the acceptance scenarios P01 to P10 of the hall with five jobs, by scenario file."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.simulation.report import summary
from apps.simulation.response import Response
from apps.simulation.tests.scenes import Scene, run_scene, scene_of

NOTICE, START, END = 900, 1800, 12_600
CAPS_W = {600: 600 / 700, 500: 500 / 700, 400: 400 / 700, 300: 300 / 700}


def job(name: str, tier: int, nodes: int, **more: Any) -> Scene:
    return {
        "name": name, "replicas": nodes, "devices": 8, "flexibility": tier, "runtime": 200_000, **more
    }  # fmt: skip


def hall(
    *events: Scene, jobs: tuple[Scene, ...] = (), n_idle: int = 3, until: float = 30_000, **more: Any
) -> Scene:
    """Decode, three trainings and a batch job on 18 nodes of 8 devices, and idle nodes: 132.4 kW in all."""
    checkpoint = more.pop("checkpoint", {"interval": 3600, "cost": 300, "restart": 0})
    domain = {"name": "H", "kind": "hall", "power_limit_w": 150_000, **more.pop("domain", {})}
    kind = {
        "name": "X",
        "tdp_w": 700,
        "idle_w": 100,
        "cap_step_w": 100,
        "power_curve": [[300 / 700, 0.5], [400 / 700, 0.7], [500 / 700, 0.84], [600 / 700, 0.93], [1, 1]],
    }
    return {
        "facility": {
            "accelerator_types": [kind],
            "domains": [domain],
            "nodes": [
                {
                    "name": "n",
                    "count": 18 + n_idle,
                    "accelerator": "X",
                    "devices": 8,
                    "power": "H",
                    "idle_w": 2000,
                }
            ],
            **more.pop("facility", {}),
        },
        "jobs": [
            job("A", 0, 4, power_w=300),
            job("B", 1, 4),
            job("C", 2, 4),
            job("D", 3, 4),
            job("E", 4, 2, checkpoint=checkpoint),
            *jobs,
        ],
        "events": list(events),
        "until": until,
        **more,
    }


def ask(name: str = "event", **more: Any) -> Scene:
    return {
        "type": "demand_response", "t": NOTICE, "name": name, "domain": "H", "start": START,
        "duration": END - START, **more,
    }  # fmt: skip


class Played:
    """A scenario that was played: what happened, in terms of the tests."""

    def __init__(self, scene: Scene) -> None:
        outcome = run_scene(scene)
        self.lines = outcome.lines
        self.summary = summary(outcome)

    def moves(self, after: float = 1) -> list[tuple[float, str, int | str]]:
        """(time, job, cap in watts; or pause) of all that was done with running jobs; and starts after the first."""
        told: list[tuple[float, str, int | str]] = []
        for line in self.lines:
            if line["t"] < after:
                continue
            if line["event"] == "pause":
                told.append((line["t"], line["job"], "pause"))
            elif line["event"] in ("cap", "resume", "start"):
                told.append((line["t"], line["job"], round(line["power_cap"] * 700)))
        return sorted(told, key=lambda move: (move[0], move[1]))

    def states(self, name: str = "event") -> list[tuple[float, str]]:
        return [(x["t"], x["state"]) for x in self.lines if x["event"] == "dr" and x["name"] == name]

    def said(self, state: str, name: str = "event") -> Scene:
        (line,) = [x for x in self.lines if x["event"] == "dr" and x["name"] == name and x["state"] == state]
        return line

    def power_w(self, state: str, name: str = "event") -> float:
        watts: float = self.said(state, name)["power_w"]
        return watts

    def dr(self, name: str = "event") -> Scene:
        told: Scene = self.summary["metrics"]["dr"][name]
        return told


P01 = [(START, "D", 400), (START, "E", "pause")]


def test_p01_mixed_tiers():
    played = Played(hall(ask(reduce_w=18_000)))

    assert played.moves() == [*P01, (END, "D", 700), (END, "E", 700)]
    assert played.power_w("notified") == 132_400
    assert played.power_w("active") == 113_200
    assert played.states() == [
        (NOTICE, "notified"),
        (START - 300, "ramping"),  # the checkpoint begins just in time
        (START, "active"),
        (END, "recovering"),
        (END, "completed"),
    ]
    assert played.dr()["compliant"]
    assert set(played.dr()["delivered_w"]) == {19_200.0}
    assert played.dr()["performance"] == pytest.approx({"0": 1.0, "1": 1.0, "2": 1.0, "3": 0.7, "4": 0.0})


def test_p01_at_the_meter_a_shed_is_converted_with_k():
    facility = {"overhead_fixed_w": 5000, "overhead_k": 1.15}
    scene = hall(ask(reduce_w=20_700), domain={"kind": "facility", "power_limit_w": 200_000})
    scene["facility"].update(facility)

    played = Played(scene)

    assert played.moves()[:2] == P01
    assert played.power_w("active") == pytest.approx(5000 + 1.15 * 113_200)


def test_p02_a_slow_checkpoint_is_bridged_and_the_target_is_kept_all_the_while():
    played = Played(hall(ask(reduce_w=18_000), checkpoint={"interval": 3600, "cost": 1200, "restart": 0}))

    assert played.moves()[:5] == [
        (START, "C", 600),
        (START, "D", 400),
        (START, "E", 300),
        (NOTICE + 1200, "C", 700),
        (NOTICE + 1200, "E", "pause"),
    ]
    order = [x["event"] for x in played.lines if x["t"] == NOTICE + 1200]
    assert order == ["pause", "cap"]  # shed first, release after
    assert min(played.dr()["delivered_w"]) >= 18_000


def test_p03_of_two_events_the_stricter_holds_and_afterwards_the_first_plan():
    second = ask("second", t=5400, start=7200, duration=3600, target_w=108_400, priority=0)
    del second["domain"]
    played = Played(hall(ask(reduce_w=18_000), {**second, "domain": "H"}))

    assert played.moves() == [*P01, (7200, "C", 500), (10_800, "C", 700), (END, "D", 700), (END, "E", 700)]
    assert played.power_w("active", "second") == 106_800
    assert played.power_w("completed", "second") == 113_200
    assert played.dr()["compliant"]
    assert played.dr("second")["compliant"]


RAMP = {"ramp_up_w_per_s": 3200 / 60}
BACK = [("D", 500), ("D", 600), ("D", 700), ("E", 300), ("E", 500), ("E", 700)]


def test_p04_cancelled_midway_the_load_comes_back_by_the_ramp_the_firmest_tier_first():
    played = Played(
        hall(
            ask(reduce_w=18_000), {"type": "cancel_demand_response", "t": 5400, "name": "event"}, domain=RAMP
        )
    )

    assert played.moves() == [*P01, *((5400 + 60 * n, *step) for n, step in enumerate(BACK, start=1))]
    assert played.states()[-2:] == [(5400, "recovering"), (5760, "cancelled")]
    assert played.power_w("cancelled") == 132_400
    assert len(played.dr()["delivered_w"]) == 60


def test_p04_cancelled_while_a_checkpoint_is_written_the_job_goes_on():
    cancel = {"type": "cancel_demand_response", "t": START - 240, "name": "event"}
    played = Played(hall(ask(reduce_w=18_000), cancel, domain=RAMP))

    assert played.moves() == []
    assert played.states()[-1] == (START - 240, "cancelled")


def test_p04_cancelled_before_anything_was_done_there_is_nothing_to_undo():
    played = Played(
        hall(ask(reduce_w=18_000), {"type": "cancel_demand_response", "t": 1000, "name": "event"})
    )

    assert played.moves() == []
    assert played.states() == [(NOTICE, "notified"), (1000, "cancelled")]


def test_p05_what_cannot_be_had_is_said_before_anything_is_done_with_what_would_help():
    played = Played(hall(ask(reduce_w=40_000)))

    said = played.said("notified")
    assert (said["achievable_w"], said["shortfall_w"]) == (32_000, 8_000)
    assert said["binding"] == ["H", "tier 0", "tier 1", "tier 2", "tier 3"]
    assert said["relaxations"][0] == {"action": "power off 3 idle nodes", "gain_w": 8400}
    assert {(x["action"], x["gain_w"]) for x in said["relaxations"][1:]} == {
        ("cap C at 400 W", 3200), ("pause D", 6400), ("cap B at 500 W", 3200)
    }  # fmt: skip
    assert played.power_w("active") == 100_400
    assert not played.dr()["compliant"]


def test_p07_a_job_that_does_not_fit_under_an_active_event_waits_and_says_why():
    played = Played(hall(ask(reduce_w=18_000), jobs=(job("X", 3, 1, submit=3600),), until=9000))

    told = played.summary["jobs"]["X"]
    assert (told["state"], told["code"]) == ("queued", "power")
    assert told["reason"] == (
        "H has 1.2 kW left; it needs at least 1.6 kW. Its limit rises to 139.0 kW in 1 h 1 min."
    )


LATE = 3600


@pytest.mark.parametrize("displacement", [False, True])
def test_p07c_with_displacement_a_lower_tier_draws_less_first_and_the_firmer_job_starts_then(displacement):
    waiting = job("X", 1, 1, submit=LATE, runtime=50_000)
    scene = hall(ask(reduce_w=18_000), jobs=(waiting,), policy={"displacement": displacement})
    played = Played(scene)

    moves = [move for move in played.moves(LATE) if move[0] < END]
    assert moves == ([(LATE + 10, "D", 300), (LATE + 10, "X", 600)] if displacement else [])
    assert played.dr()["compliant"]
    if displacement:
        d = next(x for x in played.lines if x["event"] == "cap" and x["t"] == LATE + 10)
        assert played.lines.index(d) < next(
            i for i, x in enumerate(played.lines) if x["event"] == "start" and x["job"] == "X"
        )
        assert played.said("recovering")["power_w"] == 114_000


def test_displacement_takes_nothing_from_a_firmer_or_an_equal_job_and_nothing_in_vain():
    # A tier 3 job may not displace D, which is of tier 3; E is paused already.
    equal = job("X", 3, 3, submit=LATE, runtime=50_000)
    plain = Played(hall(ask(reduce_w=18_000), jobs=(equal,)))
    allowed = Played(hall(ask(reduce_w=18_000), jobs=(equal,), policy={"displacement": True}))

    assert allowed.moves() == plain.moves()


def test_p08_after_the_event_the_load_stays_under_the_rebound_limit_and_rises_by_the_ramp():
    late = tuple(job(f"X{i}", 2, 1, submit=3600 + i, runtime=50_000) for i in (1, 2, 3))
    played = Played(hall(ask(reduce_w=18_000), jobs=late, domain=RAMP))

    assert played.moves()[2:] == [
        *((END + 60 * n, *step) for n, step in enumerate(BACK, start=1)),
        (END + 420, "X1", 500),
        (END + 480, "X1", 700),
        (END + 3600, "X2", 500),
        (END + 3660, "X2", 700),
        (END + 3720, "X3", 500),
        (END + 3780, "X3", 700),
    ]
    assert played.summary["metrics"]["peak_power_w"]["H"] == 146_800


def test_p10_an_emergency_without_notice_caps_to_the_lowest_and_stops_what_is_too_slow_to_pause():
    asked = ask(t=1800, start=1860, duration=7140, target_w=90_000, emergency=True)
    played = Played(hall(asked))

    assert played.moves()[:4] == [(1860, "B", 400), (1860, "C", 300), (1860, "D", 300), (1860, "E", "pause")]
    assert played.power_w("active") == 87_600
    assert played.dr()["compliant"]
    (stopped,) = [x for x in played.lines if x["event"] == "pause"]
    assert stopped["for"] == {"event": "event"}
    assert stopped["lost_s"] == 1860  # nothing was saved yet


# -- what holds for every event -------------------------------------------------------------------------------


@st.composite
def events(draw: st.DrawFn) -> list[Scene]:
    told = []
    for n in range(draw(st.integers(1, 3))):
        t = draw(st.integers(0, 8000))
        one = {
            "type": "demand_response",
            "t": t,
            "name": f"e{n}",
            "domain": "H",
            "start": t + draw(st.sampled_from([0, 5, 30, 400, 1500])),
            "duration": draw(st.sampled_from([60, 1000, 5000])),
            "priority": n,
            "emergency": draw(st.sampled_from([False, False, True])),
        }
        what = draw(st.sampled_from(["reduce_w", "target_w"]))
        one[what] = draw(st.integers(1, 60) if what == "reduce_w" else st.integers(60, 140)) * 1000
        told.append(one)
        if draw(st.booleans()):
            told.append(
                {"type": "cancel_demand_response", "t": t + draw(st.integers(0, 4000)), "name": f"e{n}"}
            )
    return sorted(told, key=lambda event: event["t"])


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(events(), st.sampled_from([{}, RAMP]), st.integers(0, 4), st.integers(0, 6000))
def test_limits_tiers_and_the_ledger_hold_whatever_is_asked(told, ramp, tier, submit):
    scene = hall(
        *told, jobs=(job("X", tier, 1, submit=submit, runtime=3000),), domain=ramp, until=40_000, n_idle=4
    )
    played = Played(scene)

    # Recounted from the lines alone.
    nodes = {"A": 4, "B": 4, "C": 4, "D": 4, "E": 2, "X": 1}
    natural = {"A": 300}
    each = dict.fromkeys(nodes, 100.0)
    tiers = {"A": 0, "B": 1, "C": 2, "D": 3, "E": 4, "X": tier}
    is_emergency = any(event.get("emergency") for event in told)
    draws: list[tuple[float, float]] = []
    for line in played.lines:
        name = line.get("job")
        if line["event"] in ("start", "cap", "resume"):
            each[name] = min(natural.get(name, 700), line["power_cap"] * 700)
            if not is_emergency and line["power_cap"] < 1:
                lowest = {0: 700, 1: 600, 2: 500, 3: 300, 4: 300}[tiers[name]]
                assert line["power_cap"] * 700 >= lowest - 1e-6
        elif line["event"] in ("pause", "finish", "timeout", "cancel"):
            assert line["event"] != "pause" or tiers[name] == 4
            each[name] = 100.0
        draws.append((line["t"], 22 * 2000 + 3 * 800 + sum(8 * n * each[job] for job, n in nodes.items())))
        if line["event"] == "dr":
            assert line["power_w"] == pytest.approx(draws[-1][1])
    settled = [watts for (t, watts), (later, _) in pairwise(draws) if later > t]
    assert max(settled) <= 150_000

    losses = played.summary["losses"]
    assert sum(losses.values()) == 22 * 8 * 40_000
    # In the end everything is as it was: all events are over, and nobody is held down.
    assert all(
        played.states(e["name"])[-1][1] in ("completed", "cancelled")
        for e in told
        if e["type"] == "demand_response"
    )
    assert {name: watts for name, watts in each.items() if name not in ("A", "X")} == dict.fromkeys(
        "BCDE", 700
    )


def test_from_the_notice_on_nothing_starts_that_would_still_run_when_the_target_binds_and_not_fit():
    rack = {"domains": [{"name": "hall", "kind": "hall"}]}
    nodes = [{"name": f"n{i}", "accelerator": "A", "devices": 8, "power": "hall"} for i in range(2)]
    # At rest 640 W; each job adds 2,880 W, and 4,000 W are asked for from 1,000 s to 3,000 s.
    asked = {"devices": 8, "submit": 200}
    scene = scene_of(
        {"name": "first", "devices": 8, "runtime": 5_000},
        {"name": "long", **asked, "runtime": 1_500},
        {"name": "short", **asked, "runtime": 500},
        events=[
            {"t": 100, "type": "demand_response", "name": "e", "domain": "hall", "target_w": 4_000,
             "start": 1_000, "duration": 2_000}
        ],
        facility={**rack, "nodes": nodes},
        policy={"rebound_limit": 3},
    )  # fmt: skip
    outcome = run_scene(scene)
    starts = {line["job"]: line["t"] for line in outcome.lines if line["event"] == "start"}
    promised = [line["expected_start"] for line in outcome.lines if line["event"] == "reserve"]
    assert (starts["short"], starts["long"]) == (200, 3_000)
    assert promised[0] == 3_000


def told_ahead(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> dict[float, tuple[list[Any], list[Any]]]:
    """By instant of a pass: (instant, watts) of limits to come, and (instant, job, watts) of caps."""
    told: dict[float, tuple[list[Any], list[Any]]] = {}
    plain = Response.ahead

    def ahead(self: Response) -> Any:
        limits, caps = plain(self)
        names = {life.gang.id: life.job.row.name for life in self.sim.lives}
        told[self.sim.agenda.now_s] = (
            [(c.at_s, round(c.limit_w)) for c in limits],
            [(c.at_s, names[c.job_id], round(c.cap * 700)) for c in caps],
        )
        return limits, caps

    monkeypatch.setattr(Response, "ahead", ahead)
    run_scene(scene)
    return told


WAITS = job("waits", 0, 3)  # 14.4 kW more than the five jobs draw


def test_what_is_told_to_come_ends_with_the_event_that_asks_for_it(monkeypatch):
    first = ask("first", reduce_w=18_000, duration=3600)  # until 5400
    second = ask("second", t=2000, reduce_w=10_000, start=9000, duration=3600)  # of what is drawn then
    told = told_ahead(monkeypatch, hall(first, second, jobs=({**WAITS, "submit": 3000},)))
    limits, _ = told[3000]
    assert limits[0] == (5400, round(1.05 * 132_400))  # the first is over, its rebound limit is left
    assert (limits[1][0], limits[1][1] < 132_400) == (9000, True)
    assert limits[-1] == (12_600 + 3600, 150_000)


def test_of_an_event_alone_its_end_is_known_too(monkeypatch):
    told = told_ahead(monkeypatch, hall(ask(reduce_w=18_000), jobs=({**WAITS, "submit": 3000},)))
    limits, caps = told[3000]
    assert limits == [(END, round(1.05 * 132_400)), (END + 3600, 150_000)]
    assert caps == [(END, "D", 700), (END, "E", 700)]


def test_caps_to_come_are_told_of_every_event(monkeypatch):
    # In the notice of both; the second asks for less.
    first = ask("first", reduce_w=18_000, start=3000, duration=3600)
    second = ask("second", reduce_w=9_000, start=9000, duration=3600)
    told = told_ahead(monkeypatch, hall(first, second, jobs=({**WAITS, "replicas": 9, "submit": 1000},)))
    _, caps = told[1000]
    assert [cap for cap in caps if cap[0] < 9000] == [
        (3000, "D", 400),
        (3000, "E", 0),
        (6600, "D", 700),
        (6600, "E", 700),
    ]
    assert {at for at, _, _ in caps} == {3000, 6600, 9000, 12_600}
    assert {name for at, name, _ in caps if at == 12_600} == {name for at, name, _ in caps if at == 9000}


def test_nodes_that_are_off_leave_their_rest_to_an_event_to_come(monkeypatch):
    scene = hall(
        ask("first", reduce_w=27_000, duration=3600),
        ask("second", t=2000, reduce_w=1000, start=5000, duration=3600),
        jobs=({**WAITS, "submit": 3000},),
        policy={"idle_power_off": True},
    )
    scene["facility"]["nodes"][0] |= {"off_s": 60, "boot_s": 60, "off_w": 0}
    told = told_ahead(monkeypatch, scene)
    lines = run_scene(scene).lines
    n_off = sum(line["event"] == "power_off" for line in lines)
    target_w = next(x["target_w"] for x in lines if x["event"] == "dr" and x["name"] == "second")
    assert n_off
    limits, _ = told[3000]
    # The first target is stricter until 5400; a planner counts nodes that are off as if they were at rest.
    assert (5400, round(target_w + n_off * 2800)) in limits

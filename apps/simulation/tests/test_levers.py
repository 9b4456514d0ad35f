"""The levers beside caps and whole pauses, by scenario: fewer replicas, pauses in turns, nodes off; the ledger."""

from itertools import pairwise
from typing import Any

import pytest

from apps.simulation.report import summary
from apps.simulation.tests.scenes import Scene, run_scene

NOTICE, START, DURATION = 900, 1800, 10_800
END = START + DURATION
TDP_W, IDLE_W, HOST_W = 700, 100, 2000


def hall(*jobs: Scene, events: list[Scene], n_nodes: int, until: float = 40_000, **more: Any) -> Scene:
    """Nodes of 8 devices, on which caps down to 500 W slow nothing that draws less."""
    kind = {
        "name": "X",
        "tdp_w": TDP_W,
        "idle_w": IDLE_W,
        "cap_step_w": 100,
        "power_curve": [[500 / 700, 0.8], [600 / 700, 0.92], [1, 1]],
    }
    node = {
        "name": "n",
        "count": n_nodes,
        "accelerator": "X",
        "devices": 8,
        "power": "H",
        "idle_w": HOST_W,
        **more.pop("node", {}),
    }
    domain = {"name": "H", "kind": "hall", "power_limit_w": 500_000, **more.pop("domain", {})}
    named = [{"devices": 8, "runtime": 1_000_000, **job} for job in jobs]
    facility = {"accelerator_types": [kind], "domains": [domain], "nodes": [node]}
    return {"facility": facility, "jobs": named, "events": events, "until": until, **more}


def ask(reduce_w: float, name: str = "event", **more: Any) -> Scene:
    return {
        "type": "demand_response", "t": NOTICE, "name": name, "domain": "H", "start": START,
        "duration": DURATION, "reduce_w": reduce_w, **more,
    }  # fmt: skip


class Played:
    """What was done, and what every job lost, counted again from the lines."""

    def __init__(self, scene: Scene) -> None:
        outcome = run_scene(scene)
        self.lines, self.summary = outcome.lines, summary(outcome)
        self._rows = {job["name"]: job for job in scene["jobs"]}
        self._n_nodes = scene["facility"]["nodes"][0]["count"]

    def of(self, *kinds: str, after: float = 1) -> list[Scene]:
        return [line for line in self.lines if line["event"] in kinds and line["t"] >= after]

    def said(self, state: str, name: str = "event") -> Scene:
        (line,) = [x for x in self.lines if x["event"] == "dr" and (x["name"], x["state"]) == (name, state)]
        return line

    def loads(self) -> list[tuple[float, float]]:
        """(time, draw of the hall) after every line, by placements, caps and nodes that are off alone."""
        held: dict[str, tuple[int, float]] = {}
        off: set[str] = set()
        told = []
        for line in self.lines:
            name = line.get("job")
            match line["event"]:
                case "start" | "resume" | "resize":
                    held[name] = (sum(len(s["devices"]) for s in line["placement"]), line["power_cap"])
                case "cap":
                    held[name] = (held[name][0], line["power_cap"])
                case "pause":
                    held[name] = (held[name][0], 0.0)
                case "finish" | "cancel":
                    held.pop(name, None)
                case "power_off":
                    off.add(line["node"])
                case "power_on":
                    off.discard(line["node"])
            rest_w = (self._n_nodes - len(off)) * (HOST_W + 8 * IDLE_W)
            told.append((line["t"], rest_w + sum(self._above_rest(job, *one) for job, one in held.items())))
        return told

    def _above_rest(self, job: str, n: int, cap: float) -> float:
        natural_w = self._rows[job].get("power_w", TDP_W)
        return n * (min(natural_w, cap * TDP_W) - IDLE_W) if cap else 0.0

    def most_w(self, since: float, until: float) -> float:
        loads = [*self.loads(), (float("inf"), 0.0)]
        return max(w for (t, w), (later, _) in pairwise(loads) if later > t and t < until and later > since)

    def paused_s(self, job: str, since: float = START, until: float = END) -> float:
        total, at = 0.0, None
        for line in self.lines:
            if line.get("job") != job:
                continue
            if line["event"] == "pause":
                at = line["t"]
            elif line["event"] == "resume" and at is not None:
                total += max(0.0, min(line["t"], until) - max(at, since))
                at = None
        return total + (max(0.0, until - max(at, since)) if at is not None else 0.0)


def elastic(name: str, tier: int, **more: Any) -> Scene:
    return {"name": name, "replicas": {"min": 2, "max": 8}, "flexibility": tier, "power_w": 400, **more}


def test_an_elastic_job_gives_up_as_few_replicas_as_will_do_and_gets_them_back():
    # No cap binds at 400 W; each node given up sheds 8 x 300 W.
    played = Played(hall(elastic("E", 3), events=[ask(5000)], n_nodes=8))

    shrunk, regrown = played.of("resize")
    assert (shrunk["t"], len(shrunk["placement"]), shrunk["for"]) == (START, 5, {"event": "event"})
    assert (regrown["t"], len(regrown["placement"])) == (END, 8)
    assert "for" not in regrown
    assert played.summary["metrics"]["dr"]["event"]["compliant"]
    assert played.summary["metrics"]["dr"]["event"]["performance"] == {"3": pytest.approx(5 / 8)}
    assert played.most_w(START, END) <= played.said("notified")["power_w"] - 5000


@pytest.mark.parametrize(("tier", "n_left"), [(0, 8), (1, 8), (2, 6), (3, 4)])
def test_nobody_shrinks_below_its_tier_nor_below_its_least(tier, n_left):
    played = Played(hall(elastic("E", tier), events=[ask(20_000)], n_nodes=8))

    said = played.said("notified")
    assert said["achievable_w"] == (8 - n_left) * 8 * 300
    sizes = [len(line["placement"]) for line in played.of("resize")]
    assert sizes == ([n_left, 8] if n_left < 8 else [])


def test_what_a_change_of_size_costs_counts_against_the_tier():
    # Four of eight for three hours is just half; a minute without work makes it more.
    stalls = {"checkpoint": {"interval": 3600, "cost": 30, "restart": 30, "on_resize": True}}
    played = Played(hall(elastic("E", 3, **stalls), events=[ask(20_000)], n_nodes=8))

    assert len(played.of("resize")[0]["placement"]) == 5


def test_devices_that_were_given_up_and_taken_since_do_not_come_back():
    waiting = {"name": "W", "replicas": 2, "submit": START + 600, "power_w": 110, "runtime": 30_000}
    played = Played(hall(elastic("E", 3), waiting, events=[ask(5000)], n_nodes=8, until=20_000))

    (start,) = played.of("start")
    assert (start["job"], start["t"]) == ("W", START + 600)
    assert played.most_w(START, END) <= played.said("notified")["power_w"] - 5000
    assert [len(line["placement"]) for line in played.of("resize")] == [5, 6]


def test_who_gave_up_devices_that_others_took_is_not_slowed_beyond_its_tier_either():
    # No cap slows E before it shrinks; then the second event asks for more than anybody has left to bear.
    waiting = {"name": "W", "replicas": 4, "submit": START + 600, "power_w": 110, "runtime": 90_000}
    job = elastic("E", 3, power_w=700)
    events = [ask(17_000), ask(22_000, "second", t=START + 1200, start=START + 1300, duration=6000)]
    shape = [[500 / 700, 0.4], [600 / 700, 0.45], [1, 1]]  # caps cost so much that it shrinks
    scene = hall(job, waiting, events=events, n_nodes=8)
    scene["facility"]["accelerator_types"][0]["power_curve"] = shape
    played = Played(scene)

    assert [line["job"] for line in played.of("start")] == ["W"]
    assert [len(line["placement"]) for line in played.of("resize", after=START) if line["t"] < END] == [4]
    assert played.of("cap") == []


def turning(n: int, **more: Any) -> list[Scene]:
    """Jobs that no cap holds down, and that bear to stand still for half of an event."""
    saving = {"interval": 1800, "cost": 60, "restart": 30}
    return [
        {"name": f"J{i}", "replicas": 1, "flexibility": 3, "power_w": 400, "checkpoint": saving, **more}
        for i in range(n)
    ]


@pytest.mark.parametrize("duration", [DURATION, 36_000])
def test_pauses_take_turns_where_nothing_else_is_enough(duration):
    # Two of six at a time: each stands still for a third of the event.
    event = ask(4800, duration=duration)
    played = Played(hall(*turning(6), events=[event], n_nodes=6, until=50_000))

    assert played.said("notified")["shortfall_w"] == 0
    assert played.summary["metrics"]["dr"]["event"]["compliant"]
    assert played.most_w(START, START + duration) <= played.said("notified")["power_w"] - 4800
    stood = [played.paused_s(f"J{i}", until=START + duration) for i in range(6)]
    assert max(stood) <= 0.5 * duration
    assert sum(s > 0 for s in stood) >= 4
    # Who goes on does so when others stand still in its place, and at the end everybody does.
    swaps = [x["t"] for x in played.of("resume") if x["t"] < START + duration]
    assert swaps
    assert set(swaps) <= {x["t"] for x in played.of("pause")}
    assert played.of("resume")[-1]["t"] == START + duration
    assert min(played.summary["metrics"]["dr"]["event"]["performance"].values()) >= 0.5


def test_turns_give_no_more_than_the_tiers_bear_and_that_is_said():
    # Three of six at a time would be half of the event, and the checkpoints beside it.
    played = Played(hall(*turning(6), events=[ask(9000)], n_nodes=6))

    said = played.said("notified")
    assert said["achievable_w"] == 4800
    assert said["shortfall_w"] == 4200
    assert min(played.summary["metrics"]["dr"]["event"]["delivered_w"]) == 4800
    assert max(played.paused_s(f"J{i}") for i in range(6)) <= 0.5 * DURATION


@pytest.mark.parametrize("what", [{"flexibility": 2}, {"checkpoint": None}, "one"])
def test_no_turns_without_a_tier_that_bears_them_a_checkpoint_and_somebody_to_take_turns_with(what):
    jobs = turning(1) if what == "one" else turning(6)
    for job in jobs:
        if what != "one":
            job.update(what)
            if not job["checkpoint"]:
                del job["checkpoint"]
    played = Played(hall(*jobs, events=[ask(2400)], n_nodes=len(jobs)))

    assert played.said("notified")["achievable_w"] == 0
    assert played.of("pause") == []


def test_who_has_no_turn_any_more_goes_on_even_where_the_target_is_out_of_reach():
    # A second event asks for so much, and for so short a time, that no turns can be made: nobody stands still for it.
    second = ask(9000, "second", t=START + 1500, start=START + 1500, duration=900)
    played = Played(hall(*turning(6), events=[ask(4800), second], n_nodes=6))

    since, until = START + 1500, START + 1500 + 900
    assert max(played.paused_s(f"J{i}", since, until) for i in range(6)) <= 0.5 * 900
    assert max(played.paused_s(f"J{i}") for i in range(6)) <= 0.5 * DURATION


def test_a_job_of_the_turns_that_ends_is_replaced_and_the_target_is_kept():
    jobs = turning(8)
    jobs[0]["runtime"] = START + 4000
    # The one that ends draws no more: the target is as far below the load as before.
    played = Played(hall(*jobs, events=[ask(4800)], n_nodes=8))

    assert played.most_w(START, END) <= played.said("notified")["power_w"] - 4800
    for i in range(1, 8):
        assert played.paused_s(f"J{i}") <= 0.5 * DURATION


def test_nodes_at_rest_are_switched_off_before_anybody_is_slowed_and_are_on_again_afterwards():
    training = {"name": "T", "replicas": 2, "flexibility": 3}
    scene = hall(training, events=[ask(5000)], n_nodes=5, policy={"idle_power_off": True})
    played = Played(scene)

    off, on = played.of("power_off"), played.of("power_on")
    assert [(x["t"], x["for"]) for x in off] == [(START, {"event": "event"})] * 2  # two of three are enough
    assert [x["t"] for x in on] == [END] * 2
    assert {x["node"] for x in off} == {x["node"] for x in on}
    assert played.of("cap") == []
    assert played.summary["metrics"]["dr"]["event"]["compliant"]
    assert played.said("active")["power_w"] == played.said("notified")["power_w"] - 2 * 2800
    assert played.most_w(START, END) == played.said("active")["power_w"]


def test_nodes_stay_on_where_the_policy_does_not_allow_it_and_that_is_what_could_be_allowed():
    played = Played(hall({"name": "T", "flexibility": 0}, events=[ask(5000)], n_nodes=3))

    assert played.of("power_off") == []
    assert played.said("notified")["achievable_w"] == 0
    assert played.said("notified")["relaxations"] == [{"action": "power off 2 idle nodes", "gain_w": 5600}]


def test_a_node_takes_work_again_when_it_has_booted_and_the_load_comes_back_by_the_ramp():
    late = {"name": "L", "replicas": 2, "submit": START + 600, "runtime": 3000, "power_w": 110}
    scene = hall(
        {"name": "T", "replicas": 2, "flexibility": 3},
        late,
        events=[ask(5400)],
        n_nodes=4,
        node={"boot_s": 240, "off_w": 100},
        domain={"ramp_up_w_per_s": 2700 / 60},
        policy={"idle_power_off": True},
    )
    played = Played(scene)

    on = [x["t"] for x in played.of("power_on")]
    assert on == [END + 60, END + 120]
    assert next(x["t"] for x in played.of("start") if x["job"] == "L") == END + 120 + 240


def test_a_rolling_ledger_lets_an_event_take_more_and_the_next_one_less():
    events = [
        ask(6 * 8 * 300, "first"),
        ask(6 * 8 * 300, "second", t=END + 2000, start=END + 4000),
    ]
    policy = {"qos_window_s": 28_800}
    job = elastic("E", 3)
    by_event = Played(hall(job, events=events, n_nodes=8))
    rolling = Played(hall(job, events=events, n_nodes=8, policy=policy))

    told = [
        [p.said("notified", name)["achievable_w"] / 2400 for name in ("first", "second")]
        for p in (by_event, rolling)
    ]
    # Each event by itself: four of eight. Half of eight hours is four: six of eight (its least size) cost 2.25 of them,
    # so the second event may cost 1.75 h: four of eight for three hours is 1.5 h.
    assert told == [[4, 4], [6, 4]]
    sizes = [len(x["placement"]) for x in rolling.of("resize")]
    assert sizes == [2, 8, 4, 8]

"""The benchmark of power events: its own counting, and that its limits hold over a small hall of every mix."""

import json
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command

from apps.power.curtailment.facts import Curve, Limit, Load, Problem
from apps.power.curtailment.options import candidate_of
from apps.simulation.flexbench import emerald
from apps.simulation.flexbench.mixes import MIXES
from apps.simulation.flexbench.recount import recount
from apps.simulation.flexbench.rivals import WAYS
from apps.simulation.flexbench.run import FAULTS, Tally, demonstration_figures, figures, play, scenes, tally
from apps.simulation.response import deeper

SMALL = 64


def small(mix: str, signal: str):
    return next(run for run in scenes(SMALL, 1, is_quick=True) if run[:2] == (mix, signal))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("signal", ["25 % for 3 h", "30 % in 30 s", "overlaps and cancellations"])
def test_every_limit_holds(mix, signal):
    _, _, seed, scene, load_w = small(mix, signal)
    seen = Tally()
    tally(seen, scene, signal, play(scene, "switchyard", {}, seed), load_w)

    assert [figure for figure in figures("switchyard", "none", seen) if not figure.ok] == []


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "none"])
def test_faults_cost_no_limit_and_no_tier(fault):
    _, _, seed, scene, load_w = small("training", "25 % for 3 h")
    seen = Tally()
    tally(seen, scene, "25 % for 3 h", play(scene, "switchyard", FAULTS[fault], seed), load_w, FAULTS[fault])

    assert [figure for figure in figures("switchyard", fault, seen) if not figure.ok] == []
    assert seen.n_broken == 0


def test_the_rivals_break_tiers_or_deliver_nothing():
    _, _, seed, scene, load_w = small("lock-step", "25 % for 3 h")
    seen = {way: Tally() for way in WAYS}
    for way, into in seen.items():
        tally(into, scene, "25 % for 3 h", play(scene, way, {}, seed), load_w)

    assert seen["none"].compliant == 0
    assert seen["one cap"].n_broken > 0
    assert seen["youngest"].n_broken > 0


def test_the_recount_is_made_from_the_lines_alone():
    scene = small("training", "25 % for 3 h")[3]
    name = scene["jobs"][0]["name"]
    share = {"node": "rack", "replicas": 1, "devices": list(range(8)), "share": 1}
    start = {
        "event": "start",
        "job": name,
        "power_cap": 1,
        "placement": [{**share, "node": "node-0000-0001"}],
    }
    scene["jobs"][0]["power_w"] = 700.0
    lines = [
        {"t": 0, **start},
        {"t": 900, "event": "dr", "name": "event-000", "state": "notified"},
        {"t": 900, "event": "dr", "name": "event-000", "state": "active"},
        {"t": 930, "event": "cap", "job": name, "power_cap": 0.5},
        {"t": 1020, "event": "dr", "name": "event-000", "state": "recovering"},
    ]

    count = recount(scene, lines, [[0.5, 0.6], [1, 1]])

    rest_w = SMALL * 70 + SMALL / 8 * 800
    assert count.reference_w["event-000"] == pytest.approx(rest_w + 8 * 630)
    assert count.delivered_w["event-000"] == pytest.approx([8 * 350 / 2, 8 * 350])
    assert count.loss["event-000"][name] == pytest.approx(0.4 * 90 / 120)


def test_the_command_refuses_sizes_that_make_no_racks(capsys):
    with pytest.raises(Exception, match="multiple of 32"):
        call_command("flexbench", devices=100)


def test_figures_are_written_as_a_list(tmp_path, monkeypatch):
    monkeypatch.setattr("apps.simulation.management.commands.flexbench.Command._measure", lambda *_, **__: [])
    call_command("flexbench", quick=True, summary=tmp_path / "out.json", verbosity=0)

    assert json.loads((tmp_path / "out.json").read_text()) == []


def test_the_published_demonstration_is_answered_as_well_as_can_be_and_the_simulator_comes_near_it():
    folder = Path(settings.SWITCHYARD_TRACES) / emerald.FOLDER
    if not folder.exists():
        pytest.skip(f"the published demonstration is not at {folder}")

    seen = emerald.replay(emerald.read(folder))

    assert [figure.name for figure in demonstration_figures(seen) if not figure.ok] == []
    # The bound that is told beside the wanted 0.90 is that of ramp and event; in the event alone no plan reaches it.
    assert round(emerald.with_ramp(seen.best), 3) == 0.905
    assert seen.best < 0.9


def test_deeper_counts_from_what_is_in_force_and_gives_nothing_back():
    curve = Curve(700.0, 70.0, ((0.5, 0.6), (1.0, 1.0)), 70.0, 10.0)
    load = Load(0, 3, 8.0, {0: 8.0}, 700.0, curve)
    candidate = candidate_of(load, 3600.0)
    held = next(i for i, option in enumerate(candidate.options) if option.cap == pytest.approx(0.8))

    problem, before = deeper(Problem((candidate,), (Limit(0, 2_000_000_000),)), [held])

    assert problem.limits[0].need_uw == 2_000_000_000 - 8 * 140_000_000
    assert [round(option.cap, 2) for option in problem.candidates[0].options] == [1.0, 0.7, 0.6, 0.5]
    assert [dict(option.shed_uw).get(0, 0) for option in problem.candidates[0].options] == [
        0, 560_000_000, 1_120_000_000, 1_680_000_000
    ]  # fmt: skip
    assert [round(option.cap, 2) for option in before[0]] == [0.8, 0.7, 0.6, 0.5]

"""The benchmark of power events: its own counting, and that its limits hold over a small hall of every mix."""

import json

import pytest
from django.core.management import call_command

from apps.simulation.flexbench.mixes import MIXES
from apps.simulation.flexbench.recount import recount
from apps.simulation.flexbench.rivals import WAYS
from apps.simulation.flexbench.run import FAULTS, Tally, figures, play, scenes, tally

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

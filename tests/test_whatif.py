"""The present and what would be, side by side, on a real database."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.events.models import Event
from apps.inventory.models import Domain
from apps.jobs.models import Job
from apps.jobs.spec import JobRequest
from apps.jobs.tests.builders import NOON, fleet, grant, later, person, start, team
from apps.power.models import PowerLimit
from apps.simulation import side_by_side
from apps.simulation.scenario import ScenarioError
from apps.simulation.tests.scenes import scene_of
from apps.simulation.whatif import BASE, WHAT_IF, compare, difference, figures
from apps.simulation.whatif import what_if as what_if_every

pytestmark = pytest.mark.usefixtures("no_memory")


def submit(of, who, name, at, **fields):
    from apps.jobs.services import submit_job

    request = JobRequest.model_validate({"name": name, "team": of.name, **fields})
    return submit_job(request=request, actor=who, at=at)


@pytest.fixture
def site(db):
    """Two racks of two nodes in a hall; one job runs on the first rack, three wait for whole nodes."""
    return build(NOON)


def build(at):
    hall = Domain.objects.create(name="hall", kind="hall")
    racks = [Domain.objects.create(name=f"rack{i}", kind="rack", parent=hall) for i in (1, 2)]
    PowerLimit.objects.create(domain=hall, limit_w=100_000)
    here = fleet(4, 4, backend="simulated", power=racks[0])
    for node in here.nodes[2:]:
        node.power = racks[1]
        node.save()
    ours = team("ours", quota={here.kind: 32})
    me = person(ours)
    long = submit(ours, me, "long", at, replicas=3, devices=4, runtime=1000.0, time_limit=2000.0)
    all_four = (0, 1, 2, 3)
    start(long, here, *(grant(here.nodes[i], all_four, first_rank=i) for i in range(3)), at=at)
    for number in range(3):
        submit(ours, me, f"wait{number}", at, devices=4, runtime=100.0, time_limit=200.0)
    return here


def what_if(**more):
    """With a pass at every change, so that times are whole."""
    return what_if_every(**{"pass_interval_s": 0, **more})


def starts(found, which):
    rows = ((pair.live.name if pair.live else pair.name, getattr(pair, which)) for pair in found.jobs)
    return {name: None if row is None else row["start"] for name, row in rows}


def test_without_a_change_the_present_goes_on(site):
    found = what_if(at=later(50))

    assert starts(found, BASE) == {"wait0": 0, "wait1": 100, "wait2": 200}
    assert found.what_if is None
    assert {pair.live.name: pair.base["end"] for pair in found.jobs}["wait2"] == 300
    told = figures(found, BASE)
    assert (told["mean_wait_s"], told["waiting_jobs_started"], told["horizon_s"]) == (100, 3, 950)


def test_a_rack_more_lets_them_start_at_once(site):
    found = what_if(at=later(50), changes=[{"type": "add_rack", "name": "new", "like": "rack1"}])

    assert starts(found, WHAT_IF) == {"wait0": 0, "wait1": 0, "wait2": 0}
    changed = found.as_json()["difference"]
    assert changed["mean_wait_s"] == -100
    assert changed["utilization"] < 0
    assert changed["peak_power_w"]["hall"] > 0
    assert [pair.later_s("start") for pair in found.jobs] == [0, -100, -200]


def test_a_rack_less_cuts_what_runs_on_it(site):
    found = what_if(at=later(50), changes=[{"type": "lose", "domain": "rack1", "t": 10, "until": 300}])

    lost = found.what_if.summary["jobs"]
    (long,) = [name for name, live in found.live.items() if live.is_running]
    assert lost[long]["lost_s"] == 60
    assert figures(found, WHAT_IF)["losses_device_hours"]["failed"] == pytest.approx(8 * 290 / 3600)
    assert figures(found, BASE)["losses_device_hours"]["failed"] == 0


def test_less_power_makes_them_wait(site):
    # Idle draw and the running job take all that is left.
    cut = {"type": "power_limit", "domain": "hall", "power_limit_w": 9_000, "t": 0, "until": 500}
    found = what_if(at=later(50), changes=[cut])
    assert starts(found, WHAT_IF)["wait0"] == 500


def test_less_quota_makes_them_wait(site):
    found = what_if(at=later(50), changes=[{"type": "quota", "team": "ours", "quota": {site.kind.name: 12}}])
    assert min(starts(found, WHAT_IF).values()) == 950  # until the long one has ended


def test_more_jobs_stand_beside_those_that_are_there(site):
    job = {"name": "more", "team": "ours", "devices": 4, "runtime": 10, "priority": 9}
    found = what_if(at=later(50), changes=[{"type": "add_jobs", "jobs": [job]}])

    assert starts(found, WHAT_IF) == {"wait0": 10, "wait1": 110, "wait2": 210, "more": 0}
    assert starts(found, BASE)["more"] is None
    assert found.as_json()["jobs"][-1]["base"] is None


def test_both_runs_stop_where_they_are_told(site):
    found = what_if(at=later(50), changes=[{"type": "drain", "domain": "hall"}], until=150)

    assert [run.outcome.horizon for run in (found.base, found.what_if)] == [150, 150]
    assert starts(found, BASE) == {"wait0": 0, "wait1": 100, "wait2": None}
    assert set(starts(found, WHAT_IF).values()) == {None}


def test_device_time_adds_up_in_both(site):
    found = what_if(at=later(50), changes=[{"type": "lose", "nodes": [site.nodes[3].name], "t": 5}])
    for which, run in ((BASE, found.base), (WHAT_IF, found.what_if)):
        hours = sum(figures(found, which)["losses_device_hours"].values())
        assert hours == pytest.approx(16 * float(run.outcome.horizon) / 3600)


def test_it_says_where_it_is_and_can_be_stopped(site):
    seen = []
    what_if(
        at=later(50),
        changes=[{"type": "drain", "domain": "rack2"}],
        on_progress=lambda *told: seen.append(told),
    )
    assert seen[0] == (BASE, 0, 4)
    assert (BASE, 4, 4) in seen
    assert seen[-1][0] == WHAT_IF

    def stop(which, n_ended, n_jobs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        what_if(at=later(50), on_progress=stop)


def test_the_planner_looks_as_often_as_is_asked(site):
    assert starts(what_if_every(at=later(50)), BASE) == {"wait0": 0, "wait1": 120, "wait2": 240}
    assert starts(what_if(at=later(50), pass_interval_s=150), BASE) == {
        "wait0": 0,
        "wait1": 150,
        "wait2": 300,
    }


def test_nothing_is_written(site):
    before = list(Job.objects.order_by("pk").values()), Event.objects.count()
    what_if(at=later(50), changes=[{"type": "lose", "domain": "hall"}])
    assert (list(Job.objects.order_by("pk").values()), Event.objects.count()) == before


def test_a_change_that_cannot_be_is_named(site):
    with pytest.raises(ScenarioError, match=r"changes\[1\].domain: no domain is named 'moon'"):
        what_if(at=NOON, changes=[{"type": "drain", "domain": "hall"}, {"type": "lose", "domain": "moon"}])
    with pytest.raises(InvalidInput, match="no cluster is named"):
        what_if(at=NOON, clusters=["moon"])


def test_the_figures_are_plain_values(site):
    found = what_if(at=later(50), changes=[{"type": "drain", "domain": "rack2"}])
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert set(told) == {"at", "changes", "assumptions", "base", "what_if", "difference", "jobs"}
    assert told["assumptions"]["run_times"] == {"declared": 4}
    assert {row["name"] for row in told["jobs"]} == {"wait0", "wait1", "wait2"}
    assert told["jobs"][0]["waited_s"] == 50


def test_a_file_can_be_compared_with_itself_changed():
    found = compare(
        scene_of({"devices": 8}, {"devices": 8}), [{"type": "policy", "policy": {"packing": False}}]
    )
    assert starts(found, BASE) == starts(found, WHAT_IF) == {"j0": 0, "j1": 10}


def test_differences_are_number_by_number():
    assert difference({"a": 1, "b": {"c": 2.5}}, {"a": 3, "b": {"d": 1}}) == {
        "a": 2,
        "b": {"c": None, "d": None},
    }
    assert difference(None, 3) is None


# As a command


def run(*words, **options):
    out = StringIO()
    call_command("simulate", *words, stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def here(db):
    return build(clock.now())


@pytest.fixture
def write(tmp_path):
    def file(name, content):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return file


def test_the_command_shows_the_present_and_the_change_side_by_side(here, write, tmp_path):
    change = write("c.json", {"type": "add_rack", "name": "new", "like": "rack1"})
    summary, events = tmp_path / "s.json", tmp_path / "e.jsonl"
    told = run(from_live=True, every=0.0, change=[change], side_by_side=True, summary=summary, events=events)

    assert "1 jobs run, 3 wait." in told
    assert "A pass at every change.\nRun times: 4 as declared." in told
    assert "mean wait" in told
    assert "peak of hall" in told
    (line,) = [line for line in told.splitlines() if line.startswith("wait2")]
    assert line.split()[2:6] == ["ours", "+0:03:20", "+0:00:00", "−0:03:20"]
    assert json.loads(summary.read_text())["difference"]["mean_wait_s"] == pytest.approx(-100)
    placed = [line for line in events.read_text().splitlines() if "new-n0" in line]
    assert placed


def test_the_command_keeps_the_present_as_a_file_that_gives_the_same(here, tmp_path):
    kept = tmp_path / "now.json"
    live, again = tmp_path / "live.json", tmp_path / "again.json"
    run(from_live=True, save_scenario=kept, summary=live)
    run(kept, summary=again)

    rows = {row["job"]: row["base"] for row in json.loads(live.read_text())["jobs"]}
    jobs = json.loads(again.read_text())["jobs"]
    assert rows
    assert all(jobs[name] == row for name, row in rows.items())


def test_changes_of_several_files_are_numbered_through(here, write, capsys):
    first = write("a.json", [{"type": "drain", "domain": "hall"}])
    second = write("b.json", {"type": "lose", "domain": "moon"})
    with pytest.raises(SystemExit) as left:
        run(from_live=True, change=[first, second])
    assert left.value.code == 2
    assert capsys.readouterr().err == "changes[1].domain: no domain is named 'moon'\n"


def test_a_file_takes_changes_too(write):
    scene = write("scene.json", scene_of({"devices": 8}, {"devices": 8}))
    change = write("c.json", {"type": "lose", "nodes": ["n0"], "t": 5, "until": 6})
    told = run(scene, change=[change], side_by_side=True)
    assert "what if" in told
    assert "j1" in told


def test_a_file_may_be_bounded(write, tmp_path):
    scene = write("scene.json", scene_of({"devices": 8}, {"devices": 8}))
    run(scene, until=12.0, summary=tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text())["base"]["horizon_s"] == 12


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("x.json",), {"from_live": True}),
        (("x.json",), {"cluster": ["a"]}),
        ((), {"from_live": True, "until": -1.0}),
        ((), {"from_live": True, "every": -1.0}),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, options):
    with pytest.raises(CommandError):
        run(*words, **options)


def test_a_change_file_that_cannot_be_read_exits_with_2(write, tmp_path, capsys):
    scene = write("scene.json", scene_of({}))
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    for path, said in ((bad, "is not JSON"), (tmp_path / "none.json", "cannot be read")):
        with pytest.raises(SystemExit) as left:
            run(scene, change=[path])
        assert left.value.code == 2
        assert said in capsys.readouterr().err


def test_an_interrupted_comparison_writes_nothing(here, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("apps.simulation.whatif.simulate", interrupt)
    with pytest.raises(CommandError) as left:
        run(from_live=True, summary=tmp_path / "s.json")
    assert left.value.returncode == 130
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01"), (90_061, "1d 1:01:01")]
)
def test_durations_are_read_as_a_clock(seconds, text):
    assert side_by_side.duration(seconds) == text

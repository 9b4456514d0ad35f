"""The present, said as a scenario, on a real database."""

import json
from datetime import timedelta

import pytest

from apps.core.errors import InvalidInput
from apps.inventory.models import Domain, Health
from apps.jobs import services as jobs
from apps.jobs.models import Job
from apps.jobs.spec import JobRequest
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, start, team
from apps.power.models import PowerLimit
from apps.reservations.models import Reservation
from apps.scheduling import services
from apps.scheduling.live_scenario import ITSELF, UNKNOWN_S, live_scenario
from apps.scheduling.models import PolicySetting
from apps.simulation import report
from apps.simulation.loop import simulate
from apps.simulation.scenario import read_scenario
from apps.simulation.world import build_world
from apps.staging.models import Copy, Dataset, Transfer

pytestmark = pytest.mark.django_db


def read(at=NOON, **more):
    """The present as a scenario that a file could hold: it passes every check of one."""
    found = live_scenario(at, **more)
    read_scenario(json.dumps(found.scenario, allow_nan=False).encode())
    return found


def played_job(of, actor, *, at=NOON, **fields):
    """One without a command."""
    request = JobRequest.model_validate({"name": "play", "team": of.name, **fields})
    return jobs.submit_job(request=request, actor=actor, at=at)


def row_of(found, made):
    return next(row for row in found.scenario["jobs"] if found.jobs[row["name"]].id == made.pk)


def played(found):
    world = build_world(read_scenario(json.dumps(found.scenario).encode()))
    ends = report.summary(simulate(world))["jobs"]
    return {found.jobs[name].id: told for name, told in ends.items()}


def test_the_facility_is_told_as_it_stands():
    hall = Domain.objects.create(name="hall", kind="hall")
    rack = Domain.objects.create(name="rack", kind="rack", parent=hall)
    leaf = Domain.objects.create(name="leaf", kind="leaf")
    PowerLimit.objects.create(domain=hall, limit_w=9_000, hard_limit_w=10_000, ramp_up_w_per_s=50)
    here = fleet(2, 4, power=rack, leaf=leaf, cpus=64, idle_w=200, speed=0.5)
    kind = here.kind
    kind.power_curve = [[0.5, 0.6], [1, 1]]
    kind.save()
    facility = read().scenario["facility"]

    (type_,) = facility["accelerator_types"]
    assert (type_["name"], type_["tdp_w"], type_["power_curve"]) == (kind.name, 700, [[0.5, 0.6], [1, 1]])
    domains = {row["name"]: row for row in facility["domains"]}
    assert domains["hall"] == {
        "name": "hall",
        "kind": "hall",
        "power_limit_w": 9_000,
        "ramp_up_w_per_s": 50,
    }
    assert domains["rack"]["parent"] == "hall"
    assert facility["nodes"][0] == {
        "name": here.nodes[0].name,
        "accelerator": kind.name,
        "devices": 4,
        "idle_w": 200,
        "speed": 0.5,
        "cpus": 64,
        "leaf": "leaf",
        "power": "rack",
    }


def test_nodes_that_take_no_work_are_down_or_drained_from_the_beginning():
    here = fleet(4)
    for node, health, minutes in zip(
        here.nodes,
        (Health.FAILED, Health.DRAINING, Health.SUSPECT, Health.HEALTHY),
        (0, 0, 0, 2),
        strict=True,
    ):
        node.health = health
        node.cooldown_until_at = NOON + timedelta(minutes=minutes) if minutes else None
        node.save()
    names = [node.name for node in here.nodes]

    assert read().scenario["events"] == [
        {"t": 0, "type": "node_fail", "node": names[0]},
        {"t": 0, "type": "node_drain", "node": names[1]},
        {"t": 0, "type": "node_drain", "node": names[2]},
        {"t": 0, "type": "node_drain", "node": names[3]},
        {"t": 120, "type": "node_recover", "node": names[3]},
    ]


def test_a_running_job_is_where_it_is_and_goes_on_to_its_limit():
    here, ours = fleet(2, 4), team()
    made = job(ours, person(ours), devices=2, time_limit=600.0)
    start(made, here, grant(here.nodes[1], (1, 3)), at=later(10))
    found = read(later(110))
    row = row_of(found, made)

    placed = {"node": here.nodes[1].name, "replicas": 1, "devices": [1, 3], "share": 1.0}
    assert row["running"] == {"since": 100, "placement": [placed]}
    assert (row["time_limit"], row["runtime"], row["age"]) == (600, 600, 110)
    assert played(found)[made.pk]["end"] == 500


def test_fractions_and_groups_are_where_they_are():
    here, ours = fleet(1, 4, cpus=8), team()
    me = person(ours)
    fraction = job(ours, me, devices=0.25)
    start(fraction, here, grant(here.nodes[0], (3,), share="0.25"))
    groups = [{"name": "head", "devices": 0, "cpus": 1}, {"name": "work", "replicas": 2, "devices": 1}]
    grouped = played_job(ours, me, groups=groups)
    start(
        grouped,
        here,
        grant(here.nodes[0], ()),
        grant(here.nodes[0], (0, 1), group_index=1, n_replicas=2, first_rank=1),
    )
    found = read(later(60))

    (placed,) = row_of(found, fraction)["running"]["placement"]
    assert (placed["devices"], placed["share"], placed["replicas"]) == ([3], 0.25, 1)
    head, work = row_of(found, grouped)["running"]["placement"]
    assert (head["group"], head["devices"], work["group"], work["devices"]) == ("head", [], "work", [0, 1])


def test_a_job_over_its_limit_ends_soon():
    here, ours = fleet(1, 4), team()
    made = job(ours, person(ours), time_limit=60.0)
    start(made, here)
    assert 0 < played(read(later(90)))[made.pk]["end"] <= 60


def test_a_job_that_was_asked_to_stop_leaves():
    here, ours = fleet(1, 4), team()
    me = person(ours)
    made = job(ours, me, time_limit=6000.0)
    start(made, here)
    jobs.stop_job(job_id=made.pk, actor=me, at=later(5))
    told = played(read(later(6)))[made.pk]
    assert (told["state"], told["end"]) == ("cancelled", 9.0)  # asked at 5, with a grace of 10 s


# Run times


def test_run_times_are_declared_or_by_history_or_by_limit_or_unknown():
    here, ours = fleet(1, 8), team()
    me, other = person(ours), person(ours)
    for seconds in (100, 300):
        end(start(job(ours, me), here), "succeeded", at=later(seconds))
    made = [
        job(ours, me, runtime=77.0, time_limit=900.0),
        job(ours, me, time_limit=900.0),
        job(ours, me, time_limit=150.0),
        job(ours, other, time_limit=900.0),
        job(ours, other),
    ]
    found = read(later(400))

    told = [
        (found.jobs[row_of(found, one)["name"]].run_time_from, row_of(found, one)["runtime"]) for one in made
    ]
    assert told == [
        ("declared", 77),
        ("history", 200),
        ("history", 150),
        ("limit", 900),
        ("unknown", UNKNOWN_S),
    ]
    assert found.assumptions.run_times == {"declared": 1, "history": 2, "limit": 1, "unknown": 1}


def test_a_job_that_outran_its_history_runs_as_long_again():
    here, ours = fleet(1, 8), team()
    me = person(ours)
    end(start(job(ours, me), here), "succeeded", at=later(100))
    made = job(ours, me)
    start(made, here, grant(here.nodes[0], (1,)), at=later(100))
    assert row_of(read(later(400)), made)["runtime"] == 600


def test_the_clock_is_turned_into_work_by_the_speed_of_what_it_runs_on():
    here, ours = fleet(1, 4, speed=0.5), team()
    made = job(ours, person(ours), time_limit=600.0)
    start(made, here)
    found = read(later(100))
    assert row_of(found, made)["runtime"] == 300
    assert played(found)[made.pk]["end"] == 500


def test_checkpoints_are_part_of_what_was_seen_to_run():
    here, ours = fleet(1, 4), team()
    made = job(ours, person(ours), time_limit=660.0, checkpoint={"interval": 100.0, "cost": 10.0})
    start(made, here)
    found = read(later(60))
    told = played(found)[made.pk]
    assert (told["state"], told["end"]) == ("succeeded", 590)  # six turns and five checkpoints, in time


def test_a_declared_run_time_counts_what_earlier_attempts_kept():
    here, ours = fleet(1, 4), team()
    saving = {"interval": 100.0, "cost": 0.0, "restart": 5.0}
    made = job(ours, person(ours), runtime=500.0, checkpoint=saving)
    end(start(made, here), "vacated", at=later(200))
    made.refresh_from_db()
    kept = made.ran_s - made.lost_s
    assert row_of(read(later(300)), made)["runtime"] == 500 - kept + 5


# Sizes

ELASTIC = {"min": 1, "preferred": 4, "max": 8}


def test_who_is_resized_by_a_restart_is_so_in_the_scenario():
    here, ours = fleet(1, 4), team()
    me = person(ours)
    saving = {"interval": 100.0, "cost": 5.0, "restart": 5.0}
    made = job(ours, me, replicas=ELASTIC, runtime=1000.0, checkpoint=saving, scaling=[[1, 0.4], [4, 1]])
    rigid = job(ours, me, devices=2, runtime=100.0, checkpoint=saving)
    start(made, here, grant(here.nodes[0], (0,)))
    found = read(later(0))
    row = row_of(found, made)
    assert (row["checkpoint"], row["replicas"]) == ({**saving, "on_resize": True}, ELASTIC)
    assert row_of(found, rigid)["checkpoint"] == saving
    assert "resizes_by_restart" not in " ".join(found.assumptions.notes)


@pytest.mark.parametrize("more", [{}, {"checkpoint": {"interval": 1e6}, "preemptible": False}])
def test_who_keeps_its_size_in_the_running_service_keeps_it_in_the_scenario(more):
    here, ours = fleet(2, 4), team()
    me = person(ours)
    of = {"replicas": ELASTIC, "scaling": [[1, 0.4], [4, 1]], **more}
    made = job(ours, me, runtime=1000.0, **of)
    waiting = job(ours, me, runtime=10.0, **of)
    start(made, here, grant(here.nodes[0], (0,)))
    found = read(later(0))
    row = row_of(found, made)
    assert row["replicas"] == 1
    assert "scaling" not in row
    assert row_of(found, waiting)["replicas"] == {"min": 1, "max": 4}
    assert played(found)[made.pk]["end"] == 2500  # one replica does 0.4 of what four do
    assert "may grow up to their preferred size" in " ".join(found.assumptions.notes)


def test_the_clock_is_turned_into_work_by_the_scaling_of_a_job():
    here, ours = fleet(1, 4), team()
    saving = {"interval": 1e6, "cost": 5.0, "restart": 5.0}
    made = job(
        ours,
        person(ours),
        replicas={"min": 1, "preferred": 4, "max": 4},
        time_limit=600.0,
        checkpoint=saving,
        scaling=[[1, 0.4], [4, 1]],
    )
    start(made, here, grant(here.nodes[0], (0,)))
    assert row_of(read(later(100)), made)["runtime"] == 240


# The queue


def test_the_queue_keeps_its_order_and_its_dependencies():
    fleet(1, 4), (ours := team())
    me = person(ours)
    first = job(ours, me, name="same", devices=4, time_limit=100.0, at=NOON)
    second = job(ours, me, name="same", devices=4, time_limit=50.0, at=later(1), priority=7)
    third = job(ours, me, devices=4, time_limit=10.0, after=[first.pk], at=later(2), not_before=later(40))
    found = read(later(10))

    assert (row_of(found, first)["age"], row_of(found, second)["priority"]) == (10, 7)
    assert row_of(found, third)["after"] == [row_of(found, first)["name"]]
    assert row_of(found, third)["not_before"] == 30
    ends = played(found)
    assert [ends[one.pk]["start"] for one in (second, first, third)] == [0, 50, 150]


def test_jobs_that_cannot_come_are_left_out_and_named():
    fleet(1, 4), (ours := team())
    me = person(ours)
    held = job(ours, me, held=True)
    waits = job(ours, me, after=[held.pk])
    again = job(ours, me, after=[waits.pk])
    comes = job(ours, me)
    found = read()

    assert [live.id for live in found.jobs.values()] == [comes.pk]
    why = {job.id: job.why for job in found.assumptions.left_out}
    assert why.keys() == {held.pk, waits.pk, again.pk}
    assert why[held.pk] == "it is held"
    assert f"job {held.pk}" in why[waits.pk]


def test_a_job_takes_only_what_the_planner_would_give_it():
    # Commands run on real clusters and all else is played: a scenario says so by types.
    real, played_ = fleet(1, 4), fleet(1, 4, backend="simulated")
    ours = team()
    me = person(ours)
    runs, plays = job(ours, me), played_job(ours, me)
    found = read()
    assert row_of(found, runs)["accelerators"] == [real.kind.name]
    assert row_of(found, plays)["accelerators"] == [played_.kind.name]


def test_one_cluster_alone_can_be_told():
    one, other = fleet(1, 4), fleet(2, 4)
    ours = team()
    me = person(ours)
    here = job(ours, me, cluster=one.cluster.name)
    there = job(ours, me, cluster=other.cluster.name)
    runs = job(ours, me, cluster=other.cluster.name)
    start(runs, other)
    found = read(clusters=[one.cluster.name])

    assert [row["name"] for row in found.scenario["facility"]["nodes"]] == [one.nodes[0].name]
    assert [live.id for live in found.jobs.values()] == [here.pk]
    assert {job.id: job.why for job in found.assumptions.left_out} == {
        there.pk: "it is for another cluster",
        runs.pk: "it runs on other nodes",
    }
    with pytest.raises(InvalidInput):
        read(clusters=["nowhere"])


def test_what_a_scenario_cannot_say_is_said():
    one = fleet(1, 4)
    fleet(1, 4, kind=one.kind.name)
    ours = team()
    job(ours, person(ours), array={"size": 2, "max_running": 1})
    PolicySetting.objects.create(values={"half_life_s": 60.0, "ageing_s": 60.0})
    notes = " ".join(read().assumptions.notes)
    assert "array" in notes
    assert one.kind.name in notes
    assert "half_life_s" in notes
    assert "ageing_s" in notes


def test_whether_the_shortest_goes_first_and_for_how_long_is_carried_over():
    fleet(1, 4)
    PolicySetting.objects.create(values={"order": "shortest", "starving_s": 3600.0, "starving_by_width": 0.5})
    found = read()

    policy = found.scenario["policy"]
    assert (policy["order"], policy["starving_s"], policy["starving_by_width"]) == ("shortest", 3600.0, 0.5)
    assert "order" not in " ".join(found.assumptions.notes)


# Teams, reservations, data, policy


def test_teams_own_and_have_used_what_the_planner_is_told():
    here = fleet(1, 8)
    above = team("above", quota={here.kind: 8})
    below = team("below", quota={here.kind: 5}, parent=above)
    start(job(below, person(below), devices=2), here, grant(here.nodes[0], (0, 1)))
    rows = {row["name"]: row for row in read(later(100)).scenario["teams"]}

    assert rows["above"]["quota"] == {here.kind.name: 3}  # what it kept back
    assert (rows["below"]["quota"], rows["below"]["parent"]) == ({here.kind.name: 5}, "above")
    assert rows["below"]["used"][here.kind.name] == pytest.approx(200, rel=0.01)


def test_a_team_with_sub_teams_has_its_own_jobs_in_a_leaf():
    here = fleet(1, 8)
    above = team("above", quota={here.kind: 8})
    made = job(above, person(above), devices=1)  # and it is divided later
    team("below", quota={here.kind: 5}, parent=above)
    found = read()
    rows = {row["name"]: row for row in found.scenario["teams"]}

    assert row_of(found, made)["team"] == "above" + ITSELF
    assert rows["above" + ITSELF]["parent"] == "above"
    assert rows["above" + ITSELF]["quota"] == {here.kind.name: 3}
    assert "quota" not in rows["above"]
    assert found.jobs[row_of(found, made)["name"]].team == "above"


def test_reservations_begin_where_they_stand_and_their_windows_are_told_apart():
    here, ours = fleet(2, 4), team()
    daily = Reservation.objects.create(
        name="daily", starts_at=later(-600), ends_at=later(600), rrule="FREQ=DAILY;COUNT=2", created_at=NOON
    )
    daily.nodes.set([here.nodes[0]])
    daily.teams.set([ours])
    made = job(ours, person(ours), reservation="daily", time_limit=60.0)
    found = read()

    assert [(row["name"], row["start"], row["end"]) for row in found.scenario["reservations"]] == [
        ("daily", 0, 600),
        ("daily (2)", 85_800, 87_000),
    ]
    assert row_of(found, made)["reservation"] == "daily"
    assert played(found)[made.pk]["start"] == 0


def test_data_sets_lie_where_they_lie():
    store = Domain.objects.create(name="store", kind="storage")
    fleet(1, 4, storage=store)
    ours = team()
    Copy.objects.create(dataset=Dataset.objects.create(name="words", size_gib=5), domain=store)
    Dataset.objects.create(name="nowhere", size_gib=1)
    made = job(ours, person(ours), datasets=["words"])
    found = read()
    assert found.scenario["datasets"] == [
        {"name": "words", "size_gib": 5, "at": ["store"]},
        {"name": "nowhere", "size_gib": 1, "at": []},
    ]
    assert row_of(found, made)["datasets"] == ["words"]


def test_what_is_on_its_way_arrives_in_the_scenario_too():
    near, far = (Domain.objects.create(name=name, kind="storage") for name in ("near", "far"))
    fleet(1, 4, storage=near)
    ours = team()
    words = Dataset.objects.create(name="words", size_gib=500)
    Copy.objects.create(dataset=words, domain=far)
    Transfer.objects.create(dataset=words, to_domain=near, started_at=later(-100), expected_end_at=later(400))
    made = job(ours, person(ours), datasets=["words"], runtime=10.0)
    found = read()

    assert found.scenario["datasets"] == [
        {"name": "words", "size_gib": 500, "at": ["far"], "arriving": {"near": 400}}
    ]
    assert 340 <= played(found)[made.pk]["start"] <= 400


def test_a_job_that_is_placed_without_its_data_is_so_in_the_scenario():
    fleet(1, 4, storage=Domain.objects.create(name="near", kind="storage"))
    ours = team()
    Dataset.objects.create(name="words", size_gib=500)
    made = job(ours, person(ours), datasets=["words"])
    found = read()

    assert "datasets" not in row_of(found, made)
    assert any("nothing carries" in note for note in found.assumptions.notes)


def test_the_policy_in_force_is_the_scenarios():
    PolicySetting.objects.create(values={"backfill_depth": None, "preemption": False, "shield_s": 30.0})
    policy = read().scenario["policy"]
    assert (policy["backfill_depth"], policy["preemption"], policy["shield_s"]) == ("all", False, 30)


def test_an_empty_site_is_an_empty_scenario():
    found = read()
    assert found.scenario["jobs"] == found.scenario["facility"]["nodes"] == []


def test_nothing_private_is_in_it():
    here, ours = fleet(1, 4), team()
    me = person(ours)
    private = {"command": ["x", "hunter2"], "env": {"TOKEN": "hunter3"}, "workdir": "/hunter4"}
    start(job(ours, me, **private), here)
    job(ours, me, **private)
    assert "hunter" not in json.dumps(read().scenario)


def test_it_goes_on_as_the_planner_itself_would():
    # What the next pass starts the simulation starts at once: by quota, priority and age. (Of equally good nodes it
    # may take another, so no job here can be in another's way.)
    here = fleet(4, 4, backend="simulated")
    ours, theirs = team("ours", quota={here.kind: 5}), team("theirs", quota={here.kind: 7})
    made = []
    for number in range(20):
        whose = (ours, theirs)[number % 2]
        limit = 100.0 + 10 * (number * 7 % 20)
        wants = {"time_limit": limit, "runtime": limit, "priority": number % 3}
        made.append(played_job(whose, person(whose), at=later(number), **wants))
    start(made[0], here, grant(here.nodes[2], (0,)), at=later(25))
    found = read(later(30))
    done = services._one_pass(later(30))

    started = {pk for pk, told in played(found).items() if told["start"] == 0} - {made[0].pk}
    now = set(Job.objects.filter(state="starting").values_list("pk", flat=True))
    assert done.n_started == len(now) == 11
    assert started == now

"""Who goes before a waiting job: read from the database, and the same as the order of the planner."""

from datetime import timedelta
from itertools import count

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.inventory.models import Backend
from apps.jobs import services as jobs
from apps.jobs.models import Job
from apps.jobs.tests.builders import NOON, fleet, job, later, person, start, team
from apps.scheduling import line, services
from apps.scheduling.engine.order import Ahead, order_queue
from apps.scheduling.engine.placement import kinds_of
from apps.scheduling.models import LineBasis, PolicySetting, TeamUse
from apps.scheduling.snapshot import take_snapshot
from apps.scheduling.tests.test_api import client

pytestmark = pytest.mark.django_db
URL = "/api/v1"

_passes = count(1)


def noted(at=NOON):
    """As after a pass that looked at this instant; what it looked at."""
    taken = take_snapshot(at)
    line.note_basis(taken, pass_id=next(_passes))
    return taken


ORDERS = st.sampled_from(
    [
        {},
        {"order": "submit"},
        {"ageing_s": 40.0},
        {"order": "shortest", "starving_s": 60.0, "ageing_s": 90.0},
        {"order": "shortest", "starving_s": 90.0, "starving_by_width": 0.8},
    ]
)
JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "team": st.integers(0, 3),
            "priority": st.integers(0, 2),
            "devices": st.sampled_from([1, 4]),
            "ago_s": st.sampled_from([0.0, 30.0, 50.0, 100.0]),
            "accepts": st.sampled_from([["A"], ["B"], ["A", "B"], None]),
            "time_limit": st.sampled_from([60.0, 120.0, None]),
            "deadline": st.sampled_from([None, NOON + timedelta(days=1)]),
            "cluster": st.sampled_from([None, None, "here", "there"]),
            "held": st.sampled_from([False, False, False, True]),
            "not_before": st.sampled_from([None, None, NOON - timedelta(hours=1), NOON + timedelta(hours=1)]),
            "waits": st.sampled_from([False, False, True]),
        }
    ),
    min_size=1,
    max_size=9,
)


@given(JOBS, st.lists(st.sampled_from([0.0, 50.0, 900.0]), min_size=4, max_size=4), ORDERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_those_ahead_are_those_that_the_planner_looks_at_before(rows, use, policy):
    with transaction.atomic():
        _walk_the_line(rows, use, policy)
        transaction.set_rollback(True)


def _walk_the_line(rows, use, policy):
    first, second = fleet(1, 4, kind="A"), fleet(1, 4, kind="B")
    for made, name in ((first, "here"), (second, "there")):
        made.cluster.name = name
        made.cluster.save()
    fleet(1, 4, kind="B")
    above = team()
    teams = [team(), team(), team(parent=above), team(parent=above)]
    for of, device_s in zip(teams, use, strict=True):
        TeamUse.objects.create(team=of, accelerator_type=first.kind, decayed_device_s=device_s, as_of_at=NOON)
    PolicySetting.objects.create(values=policy)
    me = person(*teams)
    others = [job(of, me, held=True) for of in teams]
    for row in rows:
        if row["cluster"] and row["accepts"] != (["A"] if row["cluster"] == "here" else ["B"]):
            row["cluster"] = None  # it would be refused: there is none of it
        fields = {"accelerators": row["accepts"], "priority": row["priority"], "held": row["held"]}
        fields |= {"devices": row["devices"]}
        fields |= {name: row[name] for name in ("time_limit", "deadline", "cluster", "not_before")}
        fields = {name: value for name, value in fields.items() if value is not None}
        after = [others[row["team"]].pk] if row["waits"] else []
        job(teams[row["team"]], me, at=NOON - timedelta(seconds=row["ago_s"]), after=after, **fields)

    taken = noted()
    order = [
        gang
        for gang in order_queue(taken.snapshot, taken.policy)
        if not gang.is_held and not gang.waits_for and gang.not_before_s <= taken.snapshot.now_s
    ]
    found = line.ahead_of_jobs(list(Job.objects.values_list("id", flat=True)))

    assert found.keys() == {gang.id for gang in order}
    for place, gang in enumerate(order):
        assert found[gang.id].n == sum(_compete(gang, other) for other in order[:place])


def _compete(one, other):
    shares_a_type = set(kinds_of(one.shape)) & set(kinds_of(other.shape))
    return bool(shares_a_type) and (
        -1 in (one.shape.cluster, other.shape.cluster) or one.shape.cluster == other.shape.cluster
    )


def test_what_goes_first_is_told_by_what_puts_it_first():
    here, (ours, theirs) = fleet(1, 4), (team(), team())
    TeamUse.objects.create(team=ours, accelerator_type=here.kind, decayed_device_s=500, as_of_at=NOON)
    me = person(ours, theirs)
    mine = job(ours, me, at=later(-5))
    job(ours, me, at=later(-9))
    job(theirs, me)
    job(theirs, me, priority=3)
    noted()

    (ahead,) = line.ahead_of_jobs([mine.pk]).values()
    assert ahead == Ahead(of_higher_priority=1, below_share=1, earlier=1)
    assert ahead.sentence == (
        "Behind 3 jobs: 1 of higher priority, 1 of a team further below its share, 1 submitted earlier."
    )


def test_a_job_of_a_full_array_and_one_whose_reservation_is_not_open_stand_in_nobodys_way():
    here, ours = fleet(1, 4, backend=Backend.LOCAL), team()
    me = person(ours)
    job(ours, me, at=later(-20), array={"size": 3, "max_running": 1})
    first = Job.objects.earliest("id")
    start(first, here, at=later(-10))
    last = job(ours, me)
    noted()

    assert line.ahead_of_jobs([last.pk]) == {last.pk: Ahead()}
    assert line.ahead_of_jobs([first.pk, first.pk + 1]) == {}


def test_without_a_pass_nothing_is_told():
    fleet(), (ours := team())
    assert line.ahead_of_jobs([job(ours, person(ours)).pk]) == {}


def test_it_is_read_once_a_pass():
    fleet(), (ours := team())
    me = person(ours)
    first = job(ours, me)
    noted()
    assert line.ahead_of_jobs([first.pk]) == {first.pk: Ahead()}
    second = job(ours, me, priority=1)
    with CaptureQueriesContext(connection) as asked:
        assert line.ahead_of_jobs([first.pk, second.pk]) == {first.pk: Ahead()}

    assert len(asked) == 1
    noted()
    assert line.ahead_of_jobs([first.pk]) == {first.pk: Ahead(of_higher_priority=1)}


def test_a_long_line_is_not_read_more_often_than_a_process_can_afford(monkeypatch):
    fleet(), (ours := team())
    me = person(ours)
    first = job(ours, me)
    monkeypatch.setattr(line, "_SHORT", 0)
    now_s = iter([0.0, 2.0, 41.0, 42.5, 42.6])  # two seconds of reading at first
    monkeypatch.setattr(line.clock, "monotonic_s", lambda: next(now_s))
    noted()
    assert line.ahead_of_jobs([first.pk]) == {first.pk: Ahead()}
    job(ours, me, priority=1)
    noted(later(1))
    assert line.ahead_of_jobs([first.pk]) == {first.pk: Ahead()}
    assert line.ahead_of_jobs([first.pk]) == {first.pk: Ahead(of_higher_priority=1)}


def test_a_pass_leaves_behind_by_what_it_put_the_queue_in_order():
    fleet(), (ours := team())
    PolicySetting.objects.create(values={"ageing_s": 3600.0})
    job(ours, person(ours))
    done = services.run_pass(at=NOON)

    assert done is not None
    basis = LineBasis.objects.get()
    assert (basis.pass_id, basis.at) == (done.pk, done.started_at)
    assert (basis.order, basis.ageing_s) == ("priority", 3600.0)
    assert basis.team_places == {str(ours.pk): 0}


def test_changes_between_passes_do_no_harm():
    fleet(), (ours := team())
    me = person(ours)
    made = [job(ours, me) for _ in range(3)]
    noted()
    jobs.stop_job(job_id=made[0].pk, actor=me, at=NOON)

    assert line.ahead_of_jobs([one.pk for one in made]) == {made[1].pk: Ahead(), made[2].pk: Ahead(earlier=1)}


# By REST -------------------------------------------------------------------------------------------------------------


def test_jobs_by_rest_say_who_goes_first_and_whoever_sees_the_job_may_know():
    fleet(), (ours := team())
    me = person(ours)
    first, second = job(ours, me, priority=2), job(ours, me)
    held = job(ours, me, held=True)
    noted()
    told = {
        "n": 1,
        "of_higher_priority": 1,
        "overdue": 0,
        "below_share": 0,
        "shorter": 0,
        "earlier": 0,
        "sentence": "Behind 1 job: 1 of higher priority.",
    }
    stranger = client(person())

    assert stranger.get(f"{URL}/jobs/{second.pk}").data["ahead"] == told
    assert stranger.get(f"{URL}/jobs/{held.pk}").data["ahead"] is None
    listed = {row["id"]: row["ahead"] for row in stranger.get(f"{URL}/jobs").data["items"]}
    assert listed[second.pk] == told
    assert (listed[first.pk]["n"], listed[held.pk]) == (0, None)


@pytest.mark.parametrize("path", ["jobs", "jobs/{}"])
def test_a_longer_queue_asks_the_database_no_more(path):
    fleet(), (ours := team())
    me = person(ours)
    first = job(ours, me)
    asking = client(me)
    counts = []
    for n in (1, 30):
        for number in range(n):
            job(ours, me, priority=number)
        noted()
        line.forget()
        with CaptureQueriesContext(connection) as asked:
            asking.get(f"{URL}/{path.format(first.pk)}?" + ("limit=50" if path == "jobs" else ""))
        counts.append(len(asked))

    assert counts[0] == counts[1]

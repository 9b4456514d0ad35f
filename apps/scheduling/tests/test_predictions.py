"""How long a job is expected to run, as the planner is told it: by what its owner's last jobs did."""

from dataclasses import replace
from math import inf

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.jobs import past_runs
from apps.jobs import services as jobs
from apps.jobs.models import Job
from apps.jobs.past_runs import Owner
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, request, start, team
from apps.scheduling import dump, selectors, snapshot
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Policy, Snapshot
from apps.scheduling.engine.predict import predicted_of_many, predicted_s
from apps.scheduling.expected_end import expected_end
from apps.scheduling.models import Reason
from apps.scheduling.tests.test_api import client

pytestmark = pytest.mark.django_db


class Scene:
    def __init__(self) -> None:
        self.here, self.ours, self.theirs = fleet(2, 4), team(), team()
        self.me = person(self.ours, self.theirs)
        self.seconds = 0.0

    def ran(self, name: str, run_s: float, outcome: jobs.Outcome = "succeeded", **more) -> Job:
        """A job of that name ran so long and came to its end."""
        of = more.pop("team", self.ours)
        made = job(of, more.pop("user", self.me), name=name, time_limit=1e6, **more)
        allocation = start(made, self.here, grant(self.here.nodes[1]), at=later(self.seconds))
        self.seconds += run_s
        return end(allocation, outcome, at=later(self.seconds))

    def waits(self, name: str, **more) -> Job:
        return job(more.pop("team", self.ours), more.pop("user", self.me), name=name, **more)

    def look(self) -> Snapshot:
        return snapshot.take_snapshot(later(self.seconds)).snapshot

    def expected(self) -> dict[str, float]:
        """By name of the waiting job; as one who remembers sees it, who must see what one sees who reads afresh."""
        remembered = self._expected()
        snapshot.forget()
        assert self._expected() == remembered
        return remembered

    def _expected(self) -> dict[str, float]:
        seen = self.look()
        gangs = list(seen.queue)
        one_by_one = [predicted_s(gang, seen.history_s) for gang in gangs]
        assert predicted_of_many(gangs, seen.history_s).tolist() == one_by_one
        return {gang.name: told_s for gang, told_s in zip(gangs, one_by_one, strict=True)}


def test_the_last_two_of_the_name_tell_else_the_last_two_of_the_person_else_nothing():
    it = Scene()
    stranger = person(it.ours)
    for name, more in (
        ("train", {}),
        ("other", {}),
        ("new", {"team": it.theirs}),
        ("mine", {"user": stranger}),
    ):
        it.waits(name, **more)
    assert it.expected() == {"train": inf, "other": inf, "new": inf, "mine": inf}

    it.ran("train", 1000.0)
    assert it.expected() == {"train": 1000.0, "other": 1000.0, "new": 1000.0, "mine": inf}
    it.ran("train", 200.0)
    it.ran("train", 100.0, "failed")
    it.ran("other", 50.0, "timed_out")
    assert it.expected() == {"train": 150.0, "other": 50.0, "new": 75.0, "mine": inf}


def test_a_name_in_another_team_is_another_name():
    it = Scene()
    it.ran("train", 1000.0)
    it.ran("train", 10.0, team=it.theirs)
    it.waits("train")

    assert it.expected() == {"train": 1000.0}


def test_what_somebody_stopped_and_what_never_ran_say_nothing():
    it = Scene()
    it.waits("next")
    it.ran("stopped", 500.0, "cancelled")
    jobs.stop_job(job_id=it.waits("never").pk, actor=it.me, at=NOON)

    assert it.expected() == {"next": inf}


def test_of_what_is_expected_is_left_what_earlier_attempts_did_not_do():
    it = Scene()
    it.ran("train", 1000.0)
    made = job(it.ours, it.me, name="train", checkpoint={"interval": 100.0})
    end(start(made, it.here, at=later(2000)), "node_lost", at=later(2350))
    it.seconds = 2400.0
    assert it.expected() == {"train": 700.0}  # 300 of 350 s were kept

    # One that outran what was expected of it goes on as long again.
    made = job(it.ours, it.me, name="long", checkpoint={"interval": 100.0})
    end(start(made, it.here, at=later(3000)), "node_lost", at=later(4200))
    it.seconds = 4300.0
    assert it.expected()["long"] == 1200.0


def test_who_runs_again_took_what_was_not_thrown_away():
    it = Scene()
    made = job(it.ours, it.me, name="train", checkpoint={"interval": 100.0})
    end(start(made, it.here, at=NOON), "node_lost", at=later(150))
    end(start(made, it.here, at=later(200)), "succeeded", at=later(500))
    it.waits("next")
    it.seconds = 600.0

    assert it.expected() == {"next": 400.0}  # 450 s, of which 50 were lost


def test_a_preview_is_predicted_as_the_job_would_be():
    it = Scene()
    it.ran("train", 300.0)
    asked = request(it.ours, name="train")
    seen = snapshot.take_snapshot(later(400), candidates=[asked], candidates_of=it.me.pk).snapshot

    assert [predicted_s(gang, seen.history_s) for gang in seen.queue] == [300.0]


def test_the_queue_goes_by_it_where_the_shortest_go_first_and_a_dump_plans_the_same():
    it = Scene()
    it.ran("long", 5000.0)
    it.ran("short", 20.0)
    for name in ("long", "short"):
        for _ in range(2):
            it.waits(name, replicas=2, devices=4, time_limit=9000.0)
    seen, policy = it.look(), Policy(order="shortest")
    plan = planner.plan(seen, policy)
    names = {gang.id: gang.name for gang in seen.queue}

    assert [names[start.job_id] for start in plan.starts] == ["short"]
    assert [names[wait.job_id] for wait in plan.waits] == ["short", "long", "long"]
    # The promise of the first rests on limits, the forecasts behind it on what is expected.
    expected_s = [wait.expected_start_s - seen.now_s for wait in plan.waits]
    assert expected_s[0] == 9000.0
    again = dump.from_bytes(dump.to_bytes(dump.Dump(seen, policy, plan, {})))
    assert dump.differences(again, planner.plan(again.snapshot, again.policy)) == []
    forgetful = replace(again.snapshot, history_s=(inf,) * len(seen.history_s))
    assert dump.differences(again, planner.plan(forgetful, again.policy)) != []


def test_many_owners_are_looked_up_at_once_and_not_again_before_something_ends():
    def cost(n: int) -> tuple[int, int, int]:
        it = Scene()
        snapshot.forget()
        it.ran("seen", 10.0)
        for number in range(n):
            it.waits(f"name-{number}")
        counts = []
        for happens in (lambda: None, lambda: None, lambda: it.ran("seen", 20.0)):
            happens()
            with CaptureQueriesContext(connection) as asked:
                it.look()
            counts.append(sum("unnest" in query["sql"] and "took_s" in query["sql"] for query in asked))
        return tuple(counts)

    assert cost(1) == cost(30)


def test_a_job_is_told_of_its_own_name_and_of_its_person():
    it = Scene()
    it.ran("train", 100.0)
    it.ran("other", 300.0)
    made, new = it.waits("train"), it.waits("new")
    told = past_runs.of_jobs([made.pk, new.pk])

    assert (told[made.pk].own_s, told[made.pk].user_s, told[made.pk].best_s) == (100.0, 200.0, 100.0)
    assert (told[new.pk].own_s, told[new.pk].best_s) == (None, 200.0)
    for each in (made, new):
        assert past_runs.took_by(past_runs.with_took(Job.objects.filter(pk=each.pk)).get()) == told[each.pk]
        assert past_runs.took_by(each) == told[each.pk]
    assert past_runs.of_owners([Owner(it.me.pk, it.ours.pk, "train"), Owner(0, 0, "")]) == {0: 100.0}


def expected(of: Job, at_s: float) -> tuple[float | None, str, float | None, bool] | None:
    of.refresh_from_db()
    reason = selectors.reason_of(of)
    told = expected_end(of, reason, later(at_s))
    if told is None:
        return None
    return told.at and (told.at - NOON).total_seconds(), told.source, told.took_s, told.of_name


def test_people_are_told_when_a_job_ends_and_by_what():
    it = Scene()
    declares = job(it.ours, it.me, name="new", time_limit=600.0)
    allocation = start(declares, it.here, at=NOON)
    assert expected(declares, 10) == (600.0, "declared_limit", None, False)
    it.ran("other", 100.0)
    assert expected(declares, 10) == (100.0, "own_history", 100.0, False)
    it.ran("new", 300.0)
    assert expected(declares, 10) == (300.0, "own_history", 300.0, True)
    # It runs longer than expected: as long again, and never beyond its limit.
    assert expected(declares, 310) == (600.0, "own_history", 300.0, True)
    end(allocation, "succeeded", at=later(400))
    assert expected(declares, 410) is None

    nobody = person(it.ours)
    assert expected(job(it.ours, nobody, name="free"), 0) is None
    played = job(it.ours, nobody, name="played", runtime=50.0)
    assert expected(played, 0) == (None, "declared_run_time", None, False)
    Reason.objects.create(
        job=played, pass_id=1, at=NOON, code="resources", sentence="", expected_start_at=later(70)
    )
    assert expected(played, 0) == (120.0, "declared_run_time", None, False)


def test_whoever_asks_by_rest_is_told_where_the_end_comes_from():
    it = Scene()
    it.ran("train", 100.0)
    made = it.waits("train", time_limit=900.0)
    answer = client(person()).get(f"/api/v1/jobs/{made.pk}/reasons").data

    assert answer["expected_end"] == {"at": None, "source": "own_history", "took_s": 100.0, "of_name": True}

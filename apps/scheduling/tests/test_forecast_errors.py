"""What jobs are first told of their start, held against when they start."""

from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from apps.core import clock
from apps.jobs import services as jobs
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import NOON, end, fleet, job, later, person, team
from apps.scheduling import selectors, services
from apps.scheduling.models import ForecastOutcome, Reason
from apps.scheduling.tests.test_api import client

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
pytestmark = pytest.mark.django_db


def plan_at(at_s: float) -> None:
    services._one_pass(later(at_s))


def begin(of: Job, at_s: float) -> Allocation:
    allocation = Allocation.objects.get(job=of, ended_at=None)
    jobs.allocation_started(allocation_id=allocation.pk, fence=allocation.fence, at=later(at_s))
    return allocation


def outcomes() -> list[tuple[int, float, float, float]]:
    return [
        (
            one.job_id,
            *((at - NOON).total_seconds() for at in (one.foretold_at, one.foretold_start_at, one.started_at)),
        )
        for one in ForecastOutcome.objects.order_by("started_at", "job_id")
    ]


def test_the_first_word_is_held_against_the_start_however_often_it_is_told_anew():
    fleet(1, 1)
    ours = team()
    me = person(ours)
    first, second = job(ours, me, time_limit=600.0), job(ours, me, time_limit=60.0)
    plan_at(0)
    allocation = begin(first, 0)
    jobs.update_job(job_id=first.pk, actor=person(facility_role="operator"), at=later(5), time_limit_s=900.0)
    plan_at(10)
    reason = Reason.objects.get(job=second)
    assert (reason.foretold_at, reason.foretold_start_at) == (NOON, later(600))
    assert reason.expected_start_at == later(900)
    assert outcomes() == []

    end(allocation, "succeeded", at=later(700))
    plan_at(700)
    assert outcomes() == [(second.pk, 0.0, 600.0, 700.0)]
    found = selectors.forecast_errors(later(800))
    assert found == selectors.ForecastErrors(1, 100.0, 100.0, 100.0, 700.0)
    assert selectors.forecast_errors(later(700 + 86_400)) is None


def test_who_starts_at_once_was_told_nothing_and_who_never_starts_has_no_outcome():
    here, ours = fleet(1, 1), team()
    me = person(ours)
    at_once = job(ours, me, time_limit=600.0)
    plan_at(0)
    given_up = job(ours, me, time_limit=60.0)
    plan_at(1)
    jobs.stop_job(job_id=given_up.pk, actor=me, at=later(2))
    end(begin(at_once, 2), "succeeded", at=later(3))
    plan_at(4)

    assert outcomes() == []
    assert Reason.objects.count() == 0
    assert here.claimed() == 0


def test_of_one_that_was_held_the_first_word_after_that_counts():
    fleet(1, 1)
    ours = team()
    me = person(ours)
    first = job(ours, me, time_limit=600.0)
    plan_at(0)
    allocation = begin(first, 0)
    waiting = job(ours, me, time_limit=60.0)
    plan_at(10)
    jobs.hold_job(job_id=waiting.pk, actor=me, at=later(20))
    plan_at(20)
    assert Reason.objects.get().foretold_at is None
    jobs.release_job(job_id=waiting.pk, actor=me, at=later(300))
    plan_at(300)
    end(allocation, "succeeded", at=later(400))
    plan_at(400)

    assert outcomes() == [(waiting.pk, 300.0, 600.0, 400.0)]


def test_who_waits_until_others_have_left_keeps_the_first_word():
    fleet(1, 1)
    ours = team()
    me = person(ours)
    low = job(ours, me, time_limit=600.0)
    plan_at(0)
    allocation = begin(low, 0)
    high = job(ours, me, time_limit=60.0)
    plan_at(10)
    Job.objects.filter(pk=high.pk).update(priority=9, version=99)
    plan_at(200)  # it makes the other leave
    allocation.refresh_from_db()
    assert allocation.desired_state == "stop"
    assert Reason.objects.get(job=high).foretold_at == later(10)
    plan_at(205)
    assert Reason.objects.get(job=high).foretold_at == later(10)
    end(allocation, "vacated", at=later(210))
    plan_at(210)

    assert outcomes() == [(high.pk, 10.0, 600.0, 210.0)]


def test_the_errors_are_told_by_rest_and_to_prometheus():
    fleet(), (ours := team())
    at = clock.now()
    me = person(ours)
    for off_s in (-30.0, 10.0, 200.0):
        made = job(ours, me)
        ForecastOutcome.objects.create(
            job=made,
            foretold_at=at - 5 * HOUR,
            foretold_start_at=at - HOUR,
            started_at=at - HOUR + off_s * SECOND,
        )
    told = client(me).get("/api/v1/utilization").data["forecast_errors"]
    assert told == {"jobs": 3, "median_s": 30.0, "p90_s": 166.0, "bias_s": 60.0, "mean_wait_s": 14460.0}

    text = client(me).get("/metrics").content.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["switchyard_forecast_checked_jobs"].samples[0].value == 3
    errors = families["switchyard_forecast_error_seconds"].samples
    assert {one.labels["statistic"]: one.value for one in errors} == {
        "median": 30.0,
        "p90": 166.0,
        "bias": 60.0,
    }

"""Pre-emption in the running service: victims are asked to leave, and their place is kept for whom they leave."""

import pytest

from apps.jobs import services as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, StopCause
from apps.jobs.tests.builders import NOON, end, fleet, job, later, person, request, team
from apps.scheduling import services
from apps.scheduling.models import Earmark, Pass

pytestmark = pytest.mark.django_db(transaction=True)


def running(ours, me, **fields):
    made = job(ours, me, **fields)
    services.run_pass(at=NOON)
    attempt = Allocation.objects.get(job=made, ended_at=None)
    jobs.allocation_started(allocation_id=attempt.pk, fence=attempt.fence, at=NOON)
    return made


def test_a_lower_priority_gives_way_and_nobody_else_takes_the_place():
    fleet(1, 4), (ours := team())
    me = person(ours)
    low = running(ours, me, devices=4, time_limit=6000.0)
    high = job(ours, me, devices=4, priority=5, time_limit=600.0, at=later(120))
    services.run_pass(at=later(120))

    victim = Allocation.objects.get(job=low)
    assert Job.objects.get(pk=low.pk).state == State.PREEMPTING
    assert (victim.desired_state, victim.stop_cause) == ("stop", StopCause.PREEMPTION)
    assert Job.objects.get(pk=high.pk).state == State.QUEUED
    assert Earmark.objects.get().job_id == high.pk
    # A small one would fit for a moment, but not before the place is free; and then it is the other's.
    small = job(ours, me, devices=1, time_limit=3000.0, at=later(121))
    services.run_pass(at=later(121))
    assert Job.objects.get(pk=small.pk).state == State.QUEUED

    end(victim, "vacated", at=later(125))
    services.run_pass(at=later(125))

    assert Job.objects.get(pk=high.pk).state == State.STARTING
    again = Job.objects.get(pk=low.pk)
    assert (again.state, again.n_preemptions) == (State.QUEUED, 1)
    assert not Pass.objects.filter(is_refused=True).exists()
    services.run_pass(at=later(126))
    assert not Earmark.objects.exists()


def test_a_pass_that_runs_twice_asks_nobody_twice():
    fleet(1, 4), (ours := team())
    me = person(ours)
    low = running(ours, me, devices=4, time_limit=6000.0)
    job(ours, me, devices=4, priority=5, time_limit=600.0, at=later(120))
    for second in (120, 121, 122):
        job(ours, me, devices=4, time_limit=600.0, at=later(second))
        services.run_pass(at=later(second))

    assert Allocation.objects.filter(job=low).count() == 1
    assert Earmark.objects.count() == 1
    assert not Pass.objects.filter(is_refused=True).exists()


def test_what_is_not_to_be_preempted_stays():
    fleet(1, 4), (ours := team())
    me = person(ours)
    low = running(ours, me, devices=4, time_limit=6000.0, preemptible=False)
    high = job(ours, me, devices=4, priority=5, time_limit=600.0, at=later(120))
    services.run_pass(at=later(120))

    assert Job.objects.get(pk=low.pk).state == State.RUNNING
    assert Job.objects.get(pk=high.pk).state == State.QUEUED
    assert not Earmark.objects.exists()


def test_an_earmark_goes_with_the_job_it_was_made_for():
    fleet(1, 4), (ours := team())
    me = person(ours)
    running(ours, me, devices=4, time_limit=6000.0)
    high = job(ours, me, devices=4, priority=5, time_limit=600.0, at=later(120))
    services.run_pass(at=later(120))
    Job.objects.filter(pk=high.pk).update(is_held=True)
    other = job(ours, me, devices=4, priority=1, time_limit=600.0, at=later(121))
    end(Allocation.objects.get(ended_at=None), "vacated", at=later(125))
    services.run_pass(at=later(125))

    assert Job.objects.get(pk=other.pk).state == State.STARTING


def test_a_preview_names_who_would_give_way():
    fleet(1, 4), (ours := team())
    me = person(ours)
    low = running(ours, me, devices=4, time_limit=6000.0)
    told = services.preview(
        request=request(ours, devices=4, priority=5, time_limit=600.0), actor=me, at=later(120)
    )

    assert (told.would_start, told.displaces) == (True, (low.pk,))
    assert Job.objects.get(pk=low.pk).state == State.RUNNING

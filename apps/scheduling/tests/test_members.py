"""Limits of members in whole passes on a real PostgreSQL."""

import pytest

from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.tests.builders import NOON, end, fleet, job, later, person, request, team
from apps.scheduling import services
from apps.scheduling.models import Reason
from apps.teams import services as teams
from apps.teams.models import MemberRole, Membership
from apps.teams.services import MemberLimitEntry

pytestmark = pytest.mark.django_db(transaction=True)


def limit(of, *entries, at=NOON):
    of.refresh_from_db()
    teams.set_member_limits(team=of, entries=entries, actor=None, at=at, version=of.version)


def running(user):
    return Job.objects.filter(user=user, state=State.STARTING).count()


def test_a_pass_starts_as_much_of_a_member_as_they_may_hold_and_says_so_of_the_rest():
    here, ours = fleet(1, 8, kind="H100"), team("vision")
    ann, bob = person(ours), person(ours)
    for _ in range(3):
        job(ours, ann, devices=2, time_limit=600.0)
    job(ours, bob, devices=2, time_limit=600.0)
    limit(ours, MemberLimitEntry("devices", 4, None, "H100"))
    services.run_pass(at=NOON)

    assert (running(ann), running(bob), here.claimed()) == (2, 1, 6)
    reason = Reason.objects.get()
    assert reason.code == "member_limit"
    assert reason.sentence == (
        f"{ann.username} runs 4 of the 4 H100 that one member of vision may hold; it asks 2."
    )
    assert reason.expected_start_at == later(600)


def test_a_limit_that_is_raised_lets_the_next_pass_start_more():
    fleet(1, 8, kind="H100"), (ours := team("vision"))
    ann = person(ours)
    for _ in range(4):
        job(ours, ann)
    limit(ours, MemberLimitEntry("running_jobs", 1))
    services.run_pass(at=NOON)
    assert running(ann) == 1
    limit(
        ours,
        MemberLimitEntry("running_jobs", 1),
        MemberLimitEntry("running_jobs", 3, ann.username),
        at=later(1),
    )
    services.run_pass(at=later(1))
    assert running(ann) == 3
    limit(ours, MemberLimitEntry("running_jobs", None, ann.username), at=later(2))
    services.run_pass(at=later(2))
    assert running(ann) == 4


def test_what_ends_makes_room_for_the_members_next():
    fleet(1, 8, kind="H100"), (ours := team("vision"))
    ann = person(ours)
    first, second = job(ours, ann), job(ours, ann)
    limit(ours, MemberLimitEntry("running_jobs", 1))
    services.run_pass(at=NOON)
    assert Reason.objects.get().job_id == second.pk
    end(Allocation.objects.get(job=first), "succeeded", at=later(60))
    services.run_pass(at=later(60))

    assert Allocation.objects.filter(job=second).exists()


def test_a_limit_that_changed_meanwhile_undoes_the_plan(monkeypatch):
    fleet(1, 8, kind="H100"), (ours := team("vision"))
    ann = person(ours)
    job(ours, ann)
    real, changes = services.checker.check, [MemberLimitEntry("running_jobs", 0)]

    def lower(*arguments):
        if changes:
            limit(ours, changes.pop())
        return real(*arguments)

    monkeypatch.setattr(services.checker, "check", lower)
    services.run_pass(at=NOON)
    assert not Allocation.objects.exists()
    services.run_pass(at=later(2))
    assert Reason.objects.get().code == "member_limit"


def test_a_preview_knows_the_limits_of_who_asks():
    fleet(1, 8, kind="H100"), (ours := team("vision"))
    ann, bob = person(ours), person(ours)
    limit(ours, MemberLimitEntry("devices", 0, ann.username, "H100"))

    assert services.preview(request=request(ours), actor=bob, at=NOON).would_start
    told = services.preview(request=request(ours), actor=ann, at=NOON)
    assert not told.would_start
    assert told.reason["sentence"] == (
        f"{ann.username} runs 0 of the 0 H100 that they may hold in vision; it asks 1."
    )


def test_jobs_of_somebody_who_left_count_for_them_still():
    fleet(1, 8, kind="H100"), (ours := team("vision"))
    ann = person(ours)
    job(ours, ann), job(ours, ann)
    limit(ours, MemberLimitEntry("running_jobs", 1))
    teams.remove_member(team_id=ours.pk, user=ann, actor=None, at=NOON)
    services.run_pass(at=NOON)

    assert running(ann) == 1
    assert not Membership.objects.filter(user=ann, role=MemberRole.MEMBER).exists()

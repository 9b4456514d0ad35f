"""The ledger on a real PostgreSQL: what people ask, what the scheduler grants, what execution reports."""

from datetime import timedelta
from decimal import Decimal

import pytest

from apps.events.models import Event
from apps.inventory.models import Health
from apps.jobs import services
from apps.jobs.errors import Infeasible, NotNow, NotYours, OverCeiling, Refused, Stale
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job
from apps.jobs.selectors import ledger_faults
from apps.jobs.tests.builders import (
    NOON,
    allocate,
    end,
    fleet,
    grant,
    job,
    later,
    person,
    request,
    start,
    team,
)  # fmt: skip
from apps.teams.models import FacilityRole, MemberRole

pytestmark = pytest.mark.django_db


# Submission


def test_a_submitted_job_waits_in_the_queue_and_is_logged():
    fleet()
    ours = team()
    made = job(ours, person(ours), name="resnet", priority=7, time_limit=60.0)

    made.refresh_from_db()
    assert (made.state, made.name, made.priority, made.time_limit_s) == (State.QUEUED, "resnet", 7, 60.0)
    assert Event.objects.get(kind="job.submitted").subject_id == made.pk


def test_the_private_part_is_not_in_the_public_one():
    fleet()
    ours = team()
    groups = [{"name": "head", "command": ["secret"]}, {"name": "workers", "replicas": 2, "devices": 0}]
    made = job(ours, person(ours), groups=groups, env={"TOKEN": "secret"}, command=["secret"])

    assert "secret" not in str(made.spec)
    assert made.private == {
        "command": ["secret"], "env": {"TOKEN": "secret"}, "group_commands": {"head": ["secret"]},
    }  # fmt: skip


def test_an_array_unfolds_into_jobs_told_apart_by_their_index():
    fleet()
    ours = team()
    made = services.submit_jobs(
        requests=[request(ours, array={"size": 3, "max_running": 2})], actor=person(ours), at=NOON
    )

    assert [one.array_index for one in made] == [0, 1, 2]
    assert {one.array.max_running for one in made} == {2}


@pytest.mark.parametrize(
    ("fields", "path", "code"),
    [
        ({"team": "nobody"}, "team", "unknown_team"),
        ({"accelerators": ["H1000"]}, "accelerators[0]", "unknown_accelerator"),
        (
            {"groups": [{"name": "a", "accelerators": ["H1000"]}]},
            "groups[0].accelerators[0]",
            "unknown_accelerator",
        ),
        ({"datasets": ["imagenet"]}, "datasets[0]", "unknown_dataset"),
        ({"reservation": "friday"}, "reservation", "unknown_reservation"),
        ({"cluster": "moon"}, "cluster", "unknown_cluster"),
        ({"after": [4711]}, "after[0]", "unknown_job"),
        ({"user": "somebody-else"}, "user", "not_you"),
        ({"array": {"size": 10_000}, "name": "x"}, "array.size", "too_many"),
    ],
)
def test_a_request_that_names_what_is_not_there_is_refused_with_its_path(fields, path, code):
    fleet()
    ours = team()
    good = request(ours, array={"size": 1})

    with pytest.raises(Refused) as refused:
        services.submit_jobs(
            requests=[good, request(ours, **fields)], actor=person(ours), at=NOON, path="jobs"
        )

    assert [(error["path"], error["code"]) for error in refused.value.errors] == [(f"jobs[1].{path}", code)]
    assert not Job.objects.exists()


def test_another_team_is_refused_in_the_same_words_as_one_that_does_not_exist():
    ours, theirs = team(), team()
    me = person(ours)
    said = []
    for name in (theirs.name, "nobody"):
        with pytest.raises(Refused) as refused:
            services.submit_job(request=request(ours, team=name), actor=me, at=NOON)
        said.append(refused.value.errors)

    assert said[0] == said[1]


def test_nobody_waits_for_a_job_of_another_team():
    fleet()
    ours, theirs = team(), team()
    foreign = job(theirs, person(theirs))

    with pytest.raises(Refused):
        job(ours, person(ours, theirs), after=[foreign.pk])


def test_a_member_cannot_go_over_the_teams_ceiling():
    fleet()
    ours = team(priority_ceiling=10)

    with pytest.raises(Refused) as refused:
        job(ours, person(ours), priority=11)
    assert refused.value.http_status == 403


def test_a_lead_of_the_parent_submits_below():
    fleet()
    above = team()
    assert job(team(parent=above), person(above, role=MemberRole.LEAD)).pk


def test_what_the_empty_facility_cannot_hold_is_refused_with_the_proof():
    made = fleet(2, 8, kind="H200")
    ours = team()

    with pytest.raises(Infeasible) as refused:
        job(ours, person(ours), replicas=3, devices=8, accelerators=[made.kind.name])
    assert refused.value.errors[0]["message"] == "asks 24 H200, the facility has 16"


def test_the_same_key_gives_the_same_jobs():
    fleet()
    ours = team()
    me = person(ours)
    first, second = (
        services.submit_jobs(requests=[request(ours)] * 2, actor=me, at=NOON, idempotency_key="k")
        for _ in "ab"
    )

    assert [one.pk for one in first] == [one.pk for one in second]
    assert Job.objects.count() == 2


def test_a_key_that_begins_like_another_is_another():
    fleet()
    ours = team()
    me = person(ours)
    first = services.submit_job(request=request(ours), actor=me, at=NOON, idempotency_key="k#0")
    second = services.submit_job(request=request(ours), actor=me, at=NOON, idempotency_key="k")

    assert first.pk != second.pk


# What people ask


def test_a_waiting_job_that_is_stopped_is_cancelled_at_once():
    fleet()
    ours = team()
    made = services.stop_job(
        job_id=job(ours, person(ours)).pk, actor=person(ours), at=later(5), reason="typo"
    )

    assert (made.state, made.ended_at, made.end_code, made.end_message) == (
        "cancelled",
        later(5),
        "stopped",
        "typo",
    )


def test_stopping_twice_changes_nothing_the_second_time():
    here, ours = fleet(), team()
    me = person(ours)
    allocation = start(job(ours, me), here)
    services.stop_job(job_id=allocation.job_id, actor=me, at=later(5))
    n_events = Event.objects.count()

    services.stop_job(job_id=allocation.job_id, actor=me, at=later(9))
    allocation.refresh_from_db()
    assert (allocation.desired_state, allocation.stop_at, Event.objects.count()) == (
        "stop",
        later(5),
        n_events,
    )


def test_a_stopped_job_is_cancelled_even_if_its_start_failed():
    here, ours = fleet(), team()
    me = person(ours)
    allocation = allocate(job(ours, me), here)
    services.stop_job(job_id=allocation.job_id, actor=me, at=later(5))

    assert end(allocation, "start_failed", at=later(6)).state == State.CANCELLED


@pytest.mark.parametrize("role", [FacilityRole.NONE, FacilityRole.AUDITOR, FacilityRole.POWER_ADMIN])
def test_strangers_and_auditors_stop_nothing(role):
    fleet()
    ours = team()
    made = job(ours, person(ours))

    with pytest.raises(NotYours):
        services.stop_job(job_id=made.pk, actor=person(facility_role=role), at=NOON)


def test_a_held_job_is_not_started():
    here, ours = fleet(), team()
    made = job(ours, person(ours))
    services.hold_job(job_id=made.pk, actor=person(ours), at=NOON)

    with pytest.raises(Stale, match="is held"):
        allocate(made, here)
    services.release_job(job_id=made.pk, actor=person(ours), at=NOON)
    assert allocate(made, here).pk


def test_a_hold_by_an_operator_is_not_lifted_by_the_team():
    fleet()
    ours = team()
    made = job(ours, person(ours))
    operator = person(facility_role=FacilityRole.OPERATOR)
    services.hold_job(job_id=made.pk, actor=operator, at=NOON)

    with pytest.raises(NotYours):
        services.release_job(job_id=made.pk, actor=person(ours), at=NOON)
    assert not services.release_job(job_id=made.pk, actor=operator, at=NOON).is_held


def test_a_running_job_cannot_be_held():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours)), here)
    with pytest.raises(NotNow):
        services.hold_job(job_id=allocation.job_id, actor=person(ours), at=NOON)


def test_a_change_keeps_what_was_before():
    fleet()
    ours = team()
    made = job(ours, person(ours), time_limit=60.0)
    services.update_job(job_id=made.pk, actor=person(ours), at=NOON, time_limit_s=90.0, priority=3)

    event = Event.objects.get(kind="job.updated")
    assert event.before == {"priority": 0, "time_limit": 60.0}
    assert event.after == {"priority": 3, "time_limit": 90.0}


def test_only_an_operator_makes_a_running_job_longer():
    here, ours = fleet(), team()
    me, operator = person(ours), person(facility_role=FacilityRole.OPERATOR)
    allocation = start(job(ours, me, time_limit=60.0), here)

    with pytest.raises(NotYours):
        services.update_job(job_id=allocation.job_id, actor=me, at=NOON, time_limit_s=90.0)
    assert services.update_job(job_id=allocation.job_id, actor=operator, at=NOON, time_limit_s=90.0)


def test_a_change_cannot_go_over_the_ceiling():
    fleet()
    ours = team(priority_ceiling=5)
    made = job(ours, person(ours))
    with pytest.raises(OverCeiling):
        services.update_job(job_id=made.pk, actor=person(ours), at=NOON, priority=6)


def test_another_size_is_another_shape():
    fleet()
    ours = team()
    made = job(ours, person(ours))
    changed = services.update_job(job_id=made.pk, actor=person(ours), at=NOON, replicas=4)

    assert changed.shape != made.shape
    assert changed.n_devices == 4


# What the scheduler asks


def test_an_allocation_moves_the_job_and_claims_its_devices():
    here, ours = fleet(), team()
    allocation = allocate(
        job(ours, person(ours)), here, grant(here.nodes[0], (0, 1)), grant(here.nodes[1], (2,))
    )

    assert Job.objects.get().state == State.STARTING
    assert (allocation.fence, here.claimed()) == (1, 3)
    assert Event.objects.filter(kind="allocation.bound", subject_id=allocation.pk).count() == 1


def test_a_device_is_not_given_away_twice():
    here, ours = fleet(), team()
    me = person(ours)
    allocate(job(ours, me), here)

    with pytest.raises(Stale, match="is taken"):
        allocate(job(ours, me), here)
    assert here.claimed() == 1


def test_fractions_share_a_device_up_to_one():
    here, ours = fleet(), team()
    me = person(ours)
    for _ in range(3):
        allocate(job(ours, me, devices=0.333333), here, grant(here.nodes[0], share="0.333333"))

    assert here.device(0, 0).claimed_share == Decimal("0.999999")
    with pytest.raises(Stale, match="is taken"):
        allocate(job(ours, me, devices=0.333333), here, grant(here.nodes[0], share="0.333333"))


def test_a_node_that_cools_down_takes_nothing_before_its_time():
    here, ours = fleet(), team()
    of = job(ours, person(ours))
    here.nodes[0].cooldown_until_at = later(30)
    here.nodes[0].save()

    with pytest.raises(Stale, match="cooling down"):
        allocate(of, here, at=later(29))
    assert allocate(of, here, at=later(30)).fence == 1


@pytest.mark.parametrize("health", [Health.FAILED, Health.DRAINING, Health.DRAINED, Health.SUSPECT])
def test_a_node_that_is_not_healthy_takes_nothing(health):
    here, ours = fleet(), team()
    made = job(ours, person(ours))
    here.nodes[0].health = health
    here.nodes[0].save()

    with pytest.raises(Stale, match=str(health)):
        allocate(made, here)


def test_cpus_and_memory_of_a_node_are_not_given_away_twice():
    here, ours = fleet(cpus=8, memory_gib=64), team()
    me = person(ours)
    allocate(job(ours, me), here, grant(here.nodes[0], (0,), cpus=6.0, memory_gib=32.0))

    with pytest.raises(Stale, match="cpus"):
        allocate(job(ours, me), here, grant(here.nodes[0], (1,), cpus=3.0))
    with pytest.raises(Stale, match="memory"):
        allocate(job(ours, me), here, grant(here.nodes[0], (1,), memory_gib=33.0))


def test_a_batch_writes_the_good_and_drops_the_stale():
    here, ours = fleet(), team()
    me = person(ours)
    made = [job(ours, me) for _ in range(3)]
    decisions = [
        services.Decision(one.pk, here.cluster.pk, (grant(here.nodes[0], (index,)),))
        for one, index in zip(made, (0, 0, 1), strict=True)
    ]
    outcomes = services.allocate_many(decisions=[*decisions, decisions[0]], pass_id=7, at=NOON)

    assert [allocation.job_id for allocation in outcomes.allocations] == [made[0].pk, made[2].pk]
    assert outcomes.stale == (
        (made[1].pk, f"device {here.device(0, 0).pk} is taken"),
        (made[0].pk, "is starting"),
    )
    assert ledger_faults() == []


def test_an_array_runs_no_more_at_once_than_it_allows():
    here, ours = fleet(), team()
    array = services.submit_jobs(
        requests=[request(ours, array={"size": 3, "max_running": 2})], actor=person(ours), at=NOON
    )
    decisions = [
        services.Decision(one.pk, here.cluster.pk, (grant(here.nodes[0], (index,)),))
        for index, one in enumerate(array)
    ]
    outcomes = services.allocate_many(decisions=decisions, pass_id=None, at=NOON)

    assert len(outcomes.allocations) == 2


def test_a_job_does_not_start_before_what_it_waits_for_has_succeeded():
    here, ours = fleet(), team()
    me = person(ours)
    first = job(ours, me)
    second = job(ours, me, after=[first.pk])

    with pytest.raises(Stale, match="waits for"):
        allocate(second, here)
    end(start(first, here), "succeeded", at=later(5))
    assert allocate(second, here).pk


# What execution reports


def test_a_job_that_succeeds_gives_everything_back():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours)), here, grant(here.nodes[0], (0, 1, 2, 3)))
    made = end(allocation, "succeeded", at=later(60), exit_code=0)

    assert (made.state, made.exit_code, made.ran_s, here.claimed()) == (State.SUCCEEDED, 0, 60.0, 0)
    assert ledger_faults() == []


def test_the_second_report_of_one_end_changes_nothing():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours)), here)
    end(allocation, "succeeded", at=later(60))
    n_events = Event.objects.count()

    assert end(allocation, "failed", at=later(90)).state == State.SUCCEEDED
    assert Event.objects.count() == n_events


def test_a_report_with_another_fence_is_stale():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours)), here)
    with pytest.raises(Stale):
        services.allocation_ended(allocation_id=allocation.pk, fence=9, at=NOON, outcome="failed")


def test_a_start_that_failed_is_tried_again_later_with_a_higher_fence():
    here, ours = fleet(), team()
    made = end(allocate(job(ours, person(ours)), here), "start_failed", at=later(1))
    assert (made.state, made.n_start_failures, made.retry_at) == (State.QUEUED, 1, later(11))

    with pytest.raises(Stale, match="not to be tried again yet"):
        allocate(made, here, at=later(10))
    assert allocate(made, here, at=later(11)).fence == 2


def test_a_job_that_never_starts_fails_in_the_end():
    here, ours = fleet(), team()
    made, at = job(ours, person(ours)), NOON
    for _ in range(services.MAX_START_FAILURES):
        made = end(allocate(made, here, at=at), "start_failed", at=at)
        at += timedelta(hours=1)

    assert (made.state, made.end_code) == (State.FAILED, "start_failed")
    assert here.claimed() == 0


def test_a_lost_node_puts_the_job_back_in_the_queue_and_counts_what_was_lost():
    here, ours = fleet(), team()
    checkpoint = {"interval": 90.0, "cost": 10.0}
    made = end(start(job(ours, person(ours), checkpoint=checkpoint), here), "node_lost", at=later(250))

    assert (made.state, made.n_node_losses, made.lost_s, made.ran_s) == (State.QUEUED, 1, 50.0, 250.0)
    assert here.claimed() == 0


def test_the_limit_counts_running_time_over_all_attempts():
    here, ours = fleet(), team()
    made = job(ours, person(ours), time_limit=100.0)
    made = end(start(made, here), "node_lost", at=later(60))
    made = end(start(made, here, at=later(1000)), "node_lost", at=later(1050))

    assert (made.state, made.end_code, made.ran_s) == (State.TIMED_OUT, "time_limit", 110.0)


def test_a_job_that_ends_by_itself_while_it_is_preempted_has_succeeded():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours)), here)
    Job.objects.update(state=State.PREEMPTING)

    assert end(allocation, "succeeded", at=later(5)).state == State.SUCCEEDED


def test_what_waits_for_a_failed_job_is_cancelled_however_far():
    here, ours = fleet(), team()
    me = person(ours)
    first = job(ours, me)
    second = job(ours, me, after=[first.pk])
    third = job(ours, me, after=[second.pk])
    other = job(ours, me)
    end(start(first, here), "failed", at=later(5), exit_code=3)

    assert dict(Job.objects.values_list("id", "end_code")) == {
        first.pk: "exit_code",
        second.pk: "dependency_never_satisfied",
        third.pk: "dependency_never_satisfied",
        other.pk: "",
    }


def test_a_job_that_is_to_follow_a_failed_one_is_cancelled_at_submission():
    here, ours = fleet(), team()
    me = person(ours)
    first = end(start(job(ours, me), here), "failed", at=later(5))

    assert job(ours, me, after=[first.pk]).end_code == "dependency_never_satisfied"


def test_a_time_limit_stop_is_asked_once():
    here, ours = fleet(), team()
    allocation = start(job(ours, person(ours), time_limit=10.0), here)
    for at in (later(10), later(11)):
        services.request_time_limit_stop(allocation_id=allocation.pk, at=at)

    allocation.refresh_from_db()
    assert (allocation.stop_cause, allocation.stop_at) == ("time_limit", later(10))
    assert end(allocation, "timed_out", at=later(12)).state == State.TIMED_OUT


def test_the_check_finds_a_claim_that_was_lost():
    here, ours = fleet(), team()
    start(job(ours, person(ours)), here)
    Allocation.objects.update(ended_at=later(5))

    faults = ledger_faults()
    assert any("without an open allocation" in fault for fault in faults)
    assert any("its allocation" in fault and "has ended" in fault for fault in faults)

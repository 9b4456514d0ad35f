"""Elastic jobs in the running service: another size by a checkpoint and a restart, in a place that is kept for them."""

from threading import Event, Thread, Timer

import pytest
from django.db import connection, transaction

from apps.dashboard.tests.facility import signed_in
from apps.inventory.models import Node
from apps.jobs import selectors
from apps.jobs import services as jobs
from apps.jobs.errors import NotNow
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Desired, DeviceClaim, Job, StopCause
from apps.jobs.spec import ReplicaRange
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, start, team
from apps.reservations.services import Draft, create_reservation
from apps.scheduling import apply, board, services
from apps.scheduling.apply import shrink_job
from apps.scheduling.engine.sizes import relative_rate
from apps.scheduling.models import Earmark, Pass
from apps.scheduling.snapshot import take_snapshot

pytestmark = pytest.mark.django_db(transaction=True)

SAVES = {"checkpoint": {"interval": 600, "cost": 5, "restart": 5}}


def running(ours, me, *, at=NOON, **fields):
    made = job(ours, me, at=at, **fields)
    services.run_pass(at=at)
    attempt = Allocation.objects.get(job=made, ended_at=None)
    jobs.allocation_started(allocation_id=attempt.pk, fence=attempt.fence, at=at)
    return made


def size_of(made):
    claims = DeviceClaim.objects.filter(placement__allocation__job=made, released_at=None)
    return claims.count()


def test_a_job_grows_into_what_nobody_waits_for_and_keeps_its_place_meanwhile():
    fleet(1, 4), (ours := team())
    me = person(ours)
    rigid = running(ours, me, devices=2, time_limit=200.0)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 2, "max": 4}, time_limit=9000.0, **SAVES
    )
    assert size_of(made) == 2
    end(Allocation.objects.get(job=rigid), "succeeded", at=later(200))
    services.run_pass(at=later(200))
    assert Job.objects.get(pk=made.pk).state == State.RUNNING  # its size is too young
    services.run_pass(at=later(400))

    attempt = Allocation.objects.get(job=made)
    assert Job.objects.get(pk=made.pk).state == State.PREEMPTING
    assert (attempt.desired_state, attempt.stop_cause, attempt.grace_s) == ("stop", StopCause.RESIZE, 15.0)
    # Nobody else takes what it grows into, while it writes its checkpoint.
    other = job(ours, me, devices=1, time_limit=3000.0, at=later(401))
    services.run_pass(at=later(401))
    assert Job.objects.get(pk=other.pk).state == State.QUEUED

    end(attempt, "vacated", at=later(406))
    services.run_pass(at=later(406))
    again = Job.objects.get(pk=made.pk)
    assert (again.state, again.n_resizes, again.n_preemptions, again.lost_s) == (State.STARTING, 1, 0, 0.0)
    assert size_of(made) == 4
    services.run_pass(at=later(407))
    assert not Earmark.objects.exists()
    assert not Pass.objects.filter(is_refused=True).exists()


def test_a_job_shrinks_for_another_instead_of_leaving():
    fleet(1, 4), (ours := team())
    me = person(ours)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 4, "max": 4}, time_limit=9000.0, **SAVES
    )
    assert size_of(made) == 4
    high = job(ours, me, devices=2, priority=5, time_limit=600.0, at=later(120))
    services.run_pass(at=later(120))
    services.run_pass(at=later(121))  # asks nobody twice
    attempt = Allocation.objects.get(job=made)
    assert attempt.stop_cause == StopCause.RESIZE
    assert {one.job_id for one in Earmark.objects.all()} == {made.pk, high.pk}

    end(attempt, "vacated", at=later(126))
    services.run_pass(at=later(126))
    assert [Job.objects.get(pk=one.pk).state for one in (made, high)] == [State.STARTING, State.STARTING]
    assert (size_of(made), size_of(high)) == (2, 2)
    assert Job.objects.get(pk=made.pk).n_preemptions == 0
    assert not Pass.objects.filter(is_refused=True).exists()


@pytest.mark.parametrize("fields", [{}, {**SAVES, "preemptible": False}])
def test_who_cannot_go_on_from_a_checkpoint_keeps_its_size(fields):
    fleet(1, 4), (ours := team())
    me = person(ours)
    rigid = running(ours, me, devices=2, time_limit=200.0)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 2, "max": 4}, time_limit=9000.0, **fields
    )
    end(Allocation.objects.get(job=rigid), "succeeded", at=later(200))
    services.run_pass(at=later(400))
    assert Job.objects.get(pk=made.pk).state == State.RUNNING
    assert not Earmark.objects.exists()


def test_where_the_larger_place_is_not_to_be_had_any_more_the_job_goes_on_at_a_size_that_fits():
    """Its quota was taken while it wrote its checkpoint; nobody leaves for whom it had to wait."""
    where = fleet(2, 4)
    ours = team(quota={where.kind: 4})
    me = person(ours)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 2, "max": 4}, time_limit=9000.0, **SAVES
    )
    services.run_pass(at=later(400))
    attempt = Allocation.objects.get(job=made)
    assert attempt.stop_cause == StopCause.RESIZE
    other = job(ours, me, devices=2, time_limit=3000.0, at=later(401))
    services.run_pass(at=later(401))
    assert Job.objects.get(pk=other.pk).state == State.STARTING
    end(attempt, "vacated", at=later(406))
    services.run_pass(at=later(406))
    assert Job.objects.get(pk=made.pk).state == State.STARTING
    assert size_of(made) == 2


def test_a_member_changes_the_bounds_of_a_job_that_runs_and_the_planner_follows():
    fleet(2, 4), (ours := team())
    me = person(ours)
    made = running(
        ours, me, devices=1, replicas={"min": 2, "preferred": 4, "max": 4}, time_limit=9000.0, **SAVES
    )
    bounds = ReplicaRange(min=1, preferred=2, max=2)
    jobs.update_job(job_id=made.pk, actor=me, at=later(30), replicas=bounds)
    services.run_pass(at=later(30))
    attempt = Allocation.objects.get(job=made)
    assert attempt.stop_cause == StopCause.RESIZE
    end(attempt, "vacated", at=later(36))
    services.run_pass(at=later(36))
    assert size_of(made) == 2

    attempt = Allocation.objects.get(job=made, ended_at=None)
    jobs.allocation_started(allocation_id=attempt.pk, fence=attempt.fence, at=later(37))
    bounds = ReplicaRange(min=6, preferred=6, max=8)
    jobs.update_job(job_id=made.pk, actor=me, at=later(40), replicas=bounds)
    services.run_pass(at=later(40))
    attempt.refresh_from_db()
    assert attempt.stop_cause == StopCause.RESIZE
    end(attempt, "vacated", at=later(46))
    services.run_pass(at=later(46))
    assert size_of(made) == 8
    assert Job.objects.get(pk=made.pk).n_resizes == 2
    assert not Pass.objects.filter(is_refused=True).exists()


@pytest.mark.parametrize(
    ("fields", "replicas"),
    [
        (SAVES, 3),  # no range
        (SAVES, {"min": 3, "preferred": 3, "max": 3}),
        ({}, {"min": 1, "preferred": 2, "max": 3}),  # it would lose all its work
        ({**SAVES, "preemptible": False}, {"min": 1, "preferred": 2, "max": 3}),
    ],
)
def test_a_size_that_nothing_could_bring_about_is_refused(fields, replicas):
    fleet(1, 4), (ours := team())
    me = person(ours)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 2, "max": 4}, time_limit=9000.0, **fields
    )
    asked = replicas if isinstance(replicas, int) else ReplicaRange(**replicas)
    with pytest.raises(NotNow):
        jobs.update_job(job_id=made.pk, actor=me, at=later(30), replicas=asked)
    assert Job.objects.get(pk=made.pk).version == made.version + 2


SLOW = {"interval": 600, "cost": 20, "restart": 20}
ELASTIC = {"min": 1, "preferred": 2, "max": 4}


def asked_to_grow(ours, me, **fields):
    """A job that holds two devices, and its attempt, which leaves for four."""
    made = running(ours, me, devices=1, replicas=ELASTIC, time_limit=9000.0, **SAVES, **fields)
    services.run_pass(at=later(400))
    attempt = Allocation.objects.get(job=made)
    assert attempt.stop_cause == StopCause.RESIZE
    return made, attempt


@pytest.mark.parametrize(
    ("bounds", "size"),
    [({"min": 1, "preferred": 2, "max": 2}, 2), ({"min": 6, "preferred": 6, "max": 8}, 6)],
)
def test_a_place_of_a_size_that_the_job_may_not_have_any_more_is_not_taken(bounds, size):
    """Its bounds were changed while it waited to go on; a plan for the old ones would be refused, for everybody."""
    fleet(2, 4), (ours := team())
    me = person(ours)
    made, attempt = asked_to_grow(ours, me)
    end(attempt, "vacated", at=later(406))
    jobs.update_job(job_id=made.pk, actor=me, at=later(407), replicas=ReplicaRange(**bounds))
    other = job(ours, me, devices=1, time_limit=60.0, at=later(407))
    services.run_pass(at=later(408))
    assert not Pass.objects.filter(is_refused=True).exists()
    assert (size_of(made), size_of(other)) == (size, 1)


def test_a_place_of_a_type_that_the_job_does_not_accept_any_more_is_not_taken():
    here, there = fleet(1, 4), fleet(1, 4)
    ours = team()
    me = person(ours)
    made, attempt = asked_to_grow(ours, me, accelerators=[here.kind.name, there.kind.name])
    end(attempt, "vacated", at=later(406))
    held = attempt.placements.get().node.accelerator_type
    wanted = there.kind if held == here.kind else here.kind
    jobs.update_job(job_id=made.pk, actor=me, at=later(407), asks={"accelerators": [wanted.name]})
    services.run_pass(at=later(408))
    assert not Pass.objects.filter(is_refused=True).exists()
    again = Allocation.objects.get(job=made, ended_at=None)
    assert {placement.node.accelerator_type for placement in again.placements.all()} == {wanted}


def test_a_pass_that_saw_a_job_before_it_was_made_smaller_does_not_make_it_larger(monkeypatch):
    """Power control and the planner ask for a size of the same attempt at once: the first word holds."""
    where, ours = fleet(1, 4), team()
    me = person(ours)
    made = running(ours, me, devices=1, replicas=ELASTIC, time_limit=9000.0, **SAVES)
    attempt, asked = Allocation.objects.get(job=made), []

    def after_power_control(taken, plan, **more):
        if plan.resizes:
            kept_on = {where.nodes[0].pk: 1}
            facts = {"job_id": made.pk, "allocation_id": attempt.pk, "reason": "An event.", "at": later(400)}
            asked.append(apply.shrink_job(kept_on=kept_on, **facts))
        return apply_plan(taken, plan, **more)

    apply_plan = apply.apply_plan
    monkeypatch.setattr(apply, "apply_plan", after_power_control)
    services.run_pass(at=later(400))
    assert asked == [True]
    ((_, _, n_replicas, _, _),) = Earmark.objects.get(job=made).shares
    assert n_replicas == 1


@pytest.mark.parametrize(("slack_s", "cause"), [(0, ""), (30, ""), (120, StopCause.RESIZE)])
def test_a_job_does_not_grow_where_it_could_not_start_again_before_a_maintenance(slack_s, cause):
    """Its limit ends just before: the moment between two sizes would put it off until the maintenance is over."""
    fleet(1, 4), (ours := team())
    window = Draft(
        name="works",
        starts_at=later(9000 + slack_s),
        ends_at=later(20_000),
        nodes=(Node.objects.get().name,),
    )
    create_reservation(draft=window, actor=None, at=NOON)
    made = running(ours, person(ours), devices=1, replicas=ELASTIC, time_limit=9000.0, **SAVES)
    services.run_pass(at=later(400))
    assert size_of(made) == 2
    assert Allocation.objects.get(job=made).stop_cause == cause


def test_a_start_that_fails_while_it_is_called_off_is_no_end_of_the_job():
    fleet(1, 4), (ours := team())
    made = job(ours, person(ours), devices=1, replicas=ELASTIC, time_limit=9000.0, **SAVES)
    services.run_pass(at=NOON)
    services.run_pass(at=later(400))  # it starts for long, and is to start larger
    attempt = Allocation.objects.get(job=made)
    assert attempt.stop_cause == StopCause.RESIZE
    again = end(attempt, "start_failed", at=later(401))
    assert (again.state, again.n_start_failures, again.n_resizes) == (State.QUEUED, 0, 1)


@pytest.mark.parametrize(("took_s", "cause"), [(440.0, ""), (1000.0, StopCause.RESIZE)])
def test_what_a_change_of_size_saves_is_judged_by_when_the_job_will_probably_end(took_s, cause):
    """By its limit 8,600 s are left; by its owner's last jobs 40 or 600. To grow takes 40 and halves them."""
    fleet(1, 4), (ours := team())
    me = person(ours)
    for number in range(2):
        before = running(ours, me, name="train", devices=1, at=later(-5000 + 2000 * number))
        end(Allocation.objects.get(job=before), "succeeded", at=later(-5000 + 2000 * number + took_s))
    made = running(ours, me, devices=1, replicas=ELASTIC, time_limit=9000.0, checkpoint=SLOW)
    services.run_pass(at=later(400))
    assert size_of(made) == 2
    assert Allocation.objects.get(job=made).stop_cause == cause


def test_work_that_was_done_at_another_size_counts_by_its_rate():
    """400 s on one of two replicas are 200 of the 1,000 s that the job takes at its preferred size."""
    fleet(1, 4, backend="simulated")
    ours = team()
    me = person(ours)
    rigid = running(ours, me, devices=3, time_limit=300.0)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 2, "max": 2}, runtime=1000.0, **SAVES
    )
    assert size_of(made) == 1
    end(Allocation.objects.get(job=rigid), "succeeded", at=later(300))
    services.run_pass(at=later(390))
    end(Allocation.objects.get(job=made), "vacated", at=later(400))
    again = Job.objects.get(pk=made.pk)
    assert (again.ran_s, again.lost_s, again.worked_s) == (400.0, 0.0, 200.0)
    services.run_pass(at=later(400))
    assert size_of(made) == 2
    (run,) = take_snapshot(later(400)).snapshot.running
    assert run.ends_s - later(400).timestamp() == 800


@pytest.mark.parametrize(("size", "rate"), [(1, 0.3), (2, 0.6), (3, 0.8), (4, 1.0), (8, 1.0)])
def test_the_ledger_and_the_planner_count_the_rate_of_a_size_alike(size, rate):
    fleet(1, 8), (ours := team())
    sizes = {"min": 1, "preferred": 4, "max": 8}
    made = job(ours, person(ours), replicas=sizes, scaling=[[2, 0.6], [4, 1]])
    (gang,) = take_snapshot(NOON).snapshot.queue
    assert selectors.relative_rate(made.spec, {0: size}) == relative_rate(gang, (size,)) == rate


def test_a_team_is_said_to_hold_what_its_elastic_jobs_hold():
    fleet(1, 4), (ours := team())
    me = person(ours)
    running(ours, me, devices=1, time_limit=9000.0)
    made = running(
        ours, me, devices=1, replicas={"min": 1, "preferred": 4, "max": 4}, time_limit=9000.0, **SAVES
    )
    assert size_of(made) == 3
    (load,) = board.load_by_team()
    assert (load.held, load.n_running) == (4, 2)
    page = signed_in(me).get(f"/jobs/{made.pk}/").content.decode()
    assert "<dt>Holds</dt><dd>3 devices" in page


def test_the_page_of_a_job_that_changes_its_size_does_not_say_that_another_job_takes_its_place():
    fleet(1, 4), (ours := team())
    me = person(ours)
    made, _ = asked_to_grow(ours, me)
    page = signed_in(me).get(f"/jobs/{made.pk}/").content.decode()
    assert "Changing its size" in page
    assert "to another job" not in page


def test_an_attempt_that_ends_just_now_is_not_mistaken_for_the_next():
    """The job is moved while it is to shrink: what would be kept for it is no longer where it runs."""
    where, ours = fleet(2, 4), team()
    made = job(ours, person(ours), devices=1, replicas={"min": 1, "preferred": 4, "max": 4}, **SAVES)
    every = (0, 1, 2, 3)
    first = start(made, where, grant(where.nodes[0], every, n_replicas=4))
    holds, goes_on = Event(), Event()

    def move_on():
        try:
            with transaction.atomic():
                end(first, "node_lost", at=later(60))
                start(made, where, grant(where.nodes[1], every, n_replicas=4), at=later(61))
                holds.set()
                goes_on.wait(10)
        finally:
            connection.close()

    other = Thread(target=move_on)
    other.start()
    assert holds.wait(10)
    Timer(0.5, goes_on.set).start()
    kept_on = {where.nodes[0].pk: 2}
    is_asked = shrink_job(job_id=made.pk, allocation_id=first.pk, kept_on=kept_on, reason="", at=later(62))
    other.join()
    assert not is_asked
    assert Allocation.objects.get(job=made, ended_at=None).desired_state == Desired.RUN
    assert not Earmark.objects.exists()

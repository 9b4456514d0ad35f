"""Advice on defragmentation in the running service: what is proposed, and what becomes of an operator's yes."""

import pytest

from apps.core.errors import Forbidden
from apps.events.models import Event
from apps.execution import reconcile
from apps.inventory import services as inventory
from apps.jobs import progress
from apps.jobs import services as jobs
from apps.jobs.lifecycle import State
from apps.jobs.models import Allocation, Job, StopCause
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, start, team
from apps.scheduling import advice, apply, services, snapshot
from apps.scheduling.models import Defragmentation, Earmark, Pass
from apps.teams.models import FacilityRole, MemberRole

pytestmark = pytest.mark.django_db(transaction=True)
CHECKPOINT = {"interval": 600.0, "cost": 5.0, "restart": 15.0}


class Scene:
    """Two nodes of four devices, half of each in use; a job that wants a whole node, for which two halves are free."""

    def __init__(self, **waiting) -> None:
        self.here, self.ours = fleet(2, 4), team()
        self.me, self.operator = person(self.ours), person(facility_role=FacilityRole.OPERATOR)
        self.low = self.runs(0, NOON)
        self.high = self.runs(1, later(30))
        self.waits = job(self.ours, self.me, devices=4, time_limit=3600.0, at=later(90), **waiting)
        services.run_pass(at=later(100))

    def runs(self, node, at) -> Job:
        made = job(self.ours, self.me, devices=2, time_limit=7200.0, checkpoint=CHECKPOINT, at=at)
        start(made, self.here, grant(self.here.nodes[node], (0, 1)), at=at)
        return made

    def proposals(self, *, at=100) -> list[advice.Advice]:
        return advice.proposals(viewer=self.operator, at=later(at))

    def carry_out(self, one: advice.Advice, *, at=101) -> Defragmentation:
        return advice.carry_out(fingerprint=one.fingerprint, actor=self.operator, at=later(at))


def state_of(of: Job) -> str:
    return Job.objects.get(pk=of.pk).state


def open_attempt(of: Job) -> Allocation:
    return Allocation.objects.get(job=of, ended_at=None)


def nodes_of(of: Job) -> list[int]:
    return list(open_attempt(of).placements.values_list("node_id", flat=True))


def test_a_proposal_names_who_moves_from_where_to_where_and_what_it_costs():
    scene = Scene()
    (one,) = scene.proposals()

    (leaver,) = one.leavers
    # Of the two it is the one that started later: it has done less since its last checkpoint.
    assert (one.job, leaver.job) == (scene.waits, scene.high)
    assert [share["node"] for share in one.placement] == [scene.here.nodes[1].name]
    assert [share["node"] for share in leaver.before] == [scene.here.nodes[1].name]
    assert [(s["node"], s["devices"]) for s in leaver.after] == [(scene.here.nodes[0].name, [2, 3])]
    assert one.proposal.cost_device_s == 2 * (5 + 15 + 70)
    # Otherwise it would start when the first of them ends, at the latest.
    assert (one.starts_at, one.otherwise_at) == (later(105), later(7200))
    assert one.gain_device_s == 4 * (7200 - 105)


def test_looking_changes_nothing():
    scene = Scene()
    before = Event.objects.count()
    assert [one.fingerprint for one in scene.proposals()] == [
        one.fingerprint for one in scene.proposals(at=130)
    ]
    assert (Event.objects.count(), Earmark.objects.count()) == (before, 0)


def test_what_a_job_told_of_its_last_checkpoint_counts():
    scene = Scene()
    progress.note_progress(
        job_id=scene.low.pk, post=progress.Post(step=1, checkpoint_at=later(98)), at=later(98)
    )
    (one,) = scene.proposals()
    assert ([m.job for m in one.leavers], one.leavers[0].move.lost_s) == ([scene.low], 2.0)


def test_a_yes_moves_the_job_and_starts_the_other_in_its_place():
    scene = Scene()
    (one,) = scene.proposals()
    done = scene.carry_out(one)

    leaving = open_attempt(scene.high)
    assert (state_of(scene.high), leaving.desired_state, leaving.stop_cause) == (
        State.PREEMPTING,
        "stop",
        StopCause.MOVE,
    )
    assert (done.job, done.actor) == (scene.waits, scene.operator)
    # While it leaves nobody takes its new place, nor the other's.
    small = job(scene.ours, scene.me, devices=2, time_limit=7200.0, priority=0, at=later(102))
    services.run_pass(at=later(102))
    assert [state_of(of) for of in (small, scene.waits)] == [State.QUEUED, State.QUEUED]
    services.run_pass(at=later(103))

    end(leaving, "vacated", at=later(110))
    services.run_pass(at=later(110))

    assert [state_of(of) for of in (scene.waits, scene.high, scene.low)] == [
        State.STARTING, State.STARTING, State.RUNNING,
    ]  # fmt: skip
    assert nodes_of(scene.waits) == [scene.here.nodes[1].pk]
    assert nodes_of(scene.high) == [scene.here.nodes[0].pk]
    assert not Pass.objects.filter(is_refused=True).exists()
    services.run_pass(at=later(111))
    assert not Earmark.objects.exists()


def test_who_moves_is_counted_as_moved_and_keeps_its_place_in_line():
    scene = Scene()
    scene.carry_out(scene.proposals()[0])
    end(open_attempt(scene.high), "vacated", at=later(110))

    moved = Job.objects.get(pk=scene.high.pk)
    assert (moved.n_moves, moved.n_preemptions, moved.submitted_at) == (1, 0, scene.high.submitted_at)
    assert Event.objects.filter(kind="job.moved", subject_id=moved.pk).count() == 1
    assert not Event.objects.filter(kind="job.preempted").exists()


def test_the_log_says_for_whom_and_on_whose_word():
    scene = Scene()
    scene.carry_out(scene.proposals()[0])

    told = Event.objects.get(kind="job.moving")
    assert (told.subject_id, told.actor_id) == (scene.high.pk, scene.operator.pk)
    assert told.reason == f"Moved so that job {scene.waits.pk} ({scene.waits.name}) can start."
    audit = Event.objects.get(kind="defragmentation.carried_out")
    assert (audit.is_audit, audit.actor_id, audit.subject_id) == (True, scene.operator.pk, scene.waits.pk)
    assert [move["job_id"] for move in audit.data["moves"]] == [scene.high.pk]


def test_yes_twice_is_once():
    scene = Scene()
    (one,) = scene.proposals()
    first = scene.carry_out(one)
    events = Event.objects.count()

    assert scene.carry_out(one, at=105) == first
    assert (Event.objects.count(), Defragmentation.objects.count()) == (events, 1)
    # Also long after, when the job that moved runs again.
    end(open_attempt(scene.high), "vacated", at=later(110))
    services.run_pass(at=later(110))
    assert scene.carry_out(one, at=120) == first
    assert state_of(scene.high) == State.STARTING


def changes():
    def stopped(scene):
        jobs.stop_job(job_id=scene.high.pk, actor=scene.me, at=later(100))

    def ended(scene):
        end(open_attempt(scene.high), "succeeded", at=later(100))

    def held(scene):
        jobs.hold_job(job_id=scene.waits.pk, actor=scene.me, at=later(100))

    def cancelled(scene):
        jobs.stop_job(job_id=scene.waits.pk, actor=scene.me, at=later(100))

    def taken(scene):
        other = job(scene.ours, scene.me, devices=1, time_limit=7200.0, at=later(100))
        start(other, scene.here, grant(scene.here.nodes[0], (2,)), at=later(100))

    def drained(scene):
        node = scene.here.nodes[0]
        inventory.drain_node(node_id=node.pk, actor=scene.operator, at=later(100), reason="fan")

    return [stopped, ended, held, cancelled, taken, drained]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_what_no_longer_holds_is_refused_and_moves_nobody(change):
    scene = Scene()
    (one,) = scene.proposals()
    change(scene)
    before = state_of(scene.high)

    with pytest.raises(advice.Outdated):
        scene.carry_out(one)
    assert state_of(scene.high) == before
    assert not Earmark.objects.exists()
    assert not Defragmentation.objects.exists()
    assert not Event.objects.filter(kind="job.moving").exists()


def test_a_change_between_looking_and_writing_undoes_all_of_it(monkeypatch):
    scene = Scene()
    (one,) = scene.proposals()
    real = apply.jobs.move_many

    def late(**given):
        real(**given)
        return "job 7 no longer runs"

    monkeypatch.setattr(apply.jobs, "move_many", late)
    with pytest.raises(advice.Outdated):
        scene.carry_out(one)
    assert state_of(scene.high) == State.RUNNING
    assert not Event.objects.filter(kind__in=["job.moving", "allocation.stop_requested"]).exists()


@pytest.mark.parametrize("fingerprint", ["", "0", "1-nothing", "x-1", "9" * 40, "²-1"])
def test_a_fingerprint_of_nothing_is_outdated(fingerprint):
    scene = Scene()
    with pytest.raises(advice.Outdated):
        advice.carry_out(fingerprint=fingerprint, actor=scene.operator, at=later(101))


def test_only_operators_have_jobs_move_and_auditors_may_look():
    scene = Scene()
    (one,) = scene.proposals()
    lead, auditor = person(scene.ours, role=MemberRole.LEAD), person(facility_role=FacilityRole.AUDITOR)
    for somebody in (scene.me, lead):
        with pytest.raises(Forbidden):
            advice.proposals(viewer=somebody, at=later(100))
    assert len(advice.proposals(viewer=auditor, at=later(100))) == 1
    for somebody in (scene.me, lead, auditor):
        with pytest.raises(Forbidden):
            advice.carry_out(fingerprint=one.fingerprint, actor=somebody, at=later(101))
    assert state_of(scene.high) == State.RUNNING


def test_a_job_that_has_just_started_is_left_alone():
    scene = Scene()
    # As of 80 s the cheaper one has run for 50, and the policy shields a job for its first minute.
    assert [m.job for one in scene.proposals(at=80) for m in one.leavers] == [scene.low]


def test_who_was_moved_so_often_is_not_moved_again():
    scene = Scene()
    Job.objects.update(n_moves=3, n_preemptions=2)
    snapshot.forget()
    assert scene.proposals() == []


def test_one_that_ends_by_itself_leaves_its_new_place_to_others():
    scene = Scene()
    scene.carry_out(scene.proposals()[0])
    end(open_attempt(scene.high), "succeeded", at=later(104))
    small = job(scene.ours, scene.me, devices=2, time_limit=7200.0, at=later(105))
    services.run_pass(at=later(105))

    assert [state_of(of) for of in (scene.waits, small)] == [State.STARTING, State.STARTING]
    assert not Pass.objects.filter(is_refused=True).exists()


def test_a_pass_under_way_is_waited_for():
    scene = Scene()
    (one,) = scene.proposals()
    # Held by another session, a pass would be: the answer is to try again, and nothing is written.
    from django.db import connections

    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [services.PASS_LOCK])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(advice, "_PATIENCE_S", 0.05)
            with pytest.raises(advice.Busy):
                scene.carry_out(one)
    finally:
        other.close()
    assert state_of(scene.high) == State.RUNNING
    assert scene.carry_out(one).job == scene.waits


def test_execution_takes_one_that_moved_for_one_that_goes_back_to_the_queue():
    assert {cause.value for cause in reconcile.Cause} == {cause.value for cause in StopCause}
    assert reconcile._BY_CAUSE[reconcile.Cause.MOVE] == "vacated"

"""From the log to what people are told: whose it is, once, counted up, nobody else's business."""

from datetime import timedelta

import pytest
from django.db import transaction

from apps.events.models import Event
from apps.events.services import record
from apps.inventory.models import Health
from apps.jobs import services as jobs
from apps.jobs.tests.builders import NOON, end, fleet, grant, job, later, person, start, team
from apps.notices import collecting, watching
from apps.notices.kinds import Kind
from apps.notices.models import Channel, Collector, Delivery, Notice, Preference
from apps.power import response_services
from apps.reservations.models import Reservation
from apps.scheduling.models import Reason
from apps.scheduling.tests.response_hall import NOTICE, A, Hall, announce, clock, hall
from apps.teams.models import MemberRole

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def begun() -> None:
    """From here on people are told things."""
    collecting.collect(at=NOON)


def told(kind: Kind | None = None) -> list[str]:
    rows = Notice.objects.order_by("id")
    return [row.title for row in (rows.filter(kind=kind) if kind else rows)]


def test_an_owner_is_told_of_a_start_and_a_failure_and_nobody_else_is():
    ours, hall_ = team(), fleet()
    me, _ = person(ours), person(ours)
    allocation = start(job(ours, me, name="train"), hall_)
    end(allocation, "failed", at=later(60), exit_code=3)
    collecting.collect(at=later(61))

    assert told() == ["train has started", "train has failed"]
    assert {row.user for row in Notice.objects.all()} == {me}
    assert "Exit code 3." in Notice.objects.get(kind=Kind.JOB_FAILED).body


def test_what_happened_before_anybody_was_there_to_tell_is_not_told():
    Collector.objects.all().delete()
    ours, hall_ = team(), fleet()
    start(job(ours, person(ours)), hall_)
    collecting.collect(at=later(1))

    assert told() == []


def test_the_log_is_read_once_however_often_somebody_looks():
    ours, hall_ = team(), fleet()
    start(job(ours, person(ours)), hall_)
    assert collecting.collect(at=later(1)) == 1
    assert collecting.collect(at=later(2)) == 0

    assert Notice.objects.get().n == 1


def test_whoever_is_killed_before_the_commit_has_read_nothing():
    ours, hall_ = team(), fleet()
    start(job(ours, person(ours)), hall_)

    class Killed(Exception):
        pass

    def killed() -> None:
        with transaction.atomic():
            collecting.collect(at=later(1))
            raise Killed

    with pytest.raises(Killed):
        killed()
    assert told() == []
    collecting.collect(at=later(2))
    assert told() == ["train has started"]


def test_many_alike_are_one_notice_and_one_delivery_each_until_it_is_read():
    ours, hall_ = team(), fleet(n_devices=4)
    me = person(ours)
    Channel.objects.create(user=me, way="email", kinds=[Kind.JOB_STARTED])
    for index in range(3):
        start(job(ours, me, name="sweep"), hall_, grant(hall_.nodes[0], (index,)))
    collecting.collect(at=later(1))

    assert told() == ["3 × sweep have started"]
    assert Notice.objects.get().n == 3
    assert Delivery.objects.count() == 1
    Notice.objects.update(read_at=later(2))
    start(job(ours, me, name="sweep"), hall_, grant(hall_.nodes[0], (3,)))
    collecting.collect(at=later(3))
    assert told() == ["3 × sweep have started", "sweep has started"]


def test_a_name_with_braces_is_a_name():
    ours, hall_ = team(), fleet()
    me = person(ours)
    for index in range(2):
        start(job(ours, me, name="{n.__class__} {0}"), hall_, grant(hall_.nodes[0], (index,)))
    collecting.collect(at=later(1))

    assert told() == ["2 × {n.__class__} {0} have started"]


def test_people_are_not_told_what_they_did_themselves():
    ours, _ = team(), fleet()
    me, operator = person(ours), person(facility_role="operator")
    mine, theirs = job(ours, me, name="mine"), job(ours, me, name="theirs")
    jobs.stop_job(job_id=mine.pk, actor=me, at=later(1))
    jobs.stop_job(job_id=theirs.pk, actor=operator, at=later(1), reason="it is broken")
    collecting.collect(at=later(2))

    assert told() == ["theirs was cancelled"]
    assert "it is broken" in Notice.objects.get().body


def test_who_is_not_there_any_more_is_told_nothing():
    ours, hall_ = team(), fleet()
    me = person(ours)
    start(job(ours, me), hall_)
    type(me).objects.filter(pk=me.pk).update(is_active=False)
    collecting.collect(at=later(1))

    assert told() == []


def test_what_somebody_wants_neither_to_see_nor_to_get_is_not_written():
    ours, hall_ = team(), fleet()
    me = person(ours)
    Preference.objects.create(user=me, kinds=[])
    start(job(ours, me), hall_)
    collecting.collect(at=later(1))

    assert told() == []


# Grid events -----------------------------------------------------------------------------------------------------


def quiet_hall() -> Hall:
    """Its jobs have started, and everybody knows."""
    scene = hall()
    collecting.collect(at=NOON)
    Notice.objects.all().delete()
    return scene


def test_owners_are_told_at_the_commit_and_at_the_end_what_when_why_and_what_they_can_do():
    scene = quiet_hall()
    event = announce(reason="the grid asks")
    plan = scene.preview(event)
    scene.commit(event, plan)
    collecting.collect(at=NOTICE)
    notice = Notice.objects.get(kind=Kind.JOB_CURTAILED)

    touched = {one["job_id"] for one in plan.plan["actions"]}
    assert notice.title.startswith(f"{len(touched)} of your jobs will be held down")
    for word in ("Mon 2 Mar 14:00–17:00 UTC", "the grid asks", "What you can do", "Slowed from"):
        assert word in notice.body
    assert f"(job {scene.jobs[A]})" not in notice.body  # it is firm
    response_services.cancel_event(event_id=event.pk, actor=scene.operator, at=clock(14, 30))
    collecting.collect(at=clock(14, 30))
    collecting.collect(at=clock(14, 31))
    assert (
        told(Kind.JOB_CURTAILED)[-1]
        == f"Grid event {event.pk} was called off: your jobs get their power back"
    )
    assert len(told(Kind.JOB_CURTAILED)) == 2


def test_a_plan_that_begins_later_is_told_again_when_it_begins_once():
    scene = quiet_hall()
    event = announce()
    scene.commit(event, scene.preview(event))
    collecting.collect(at=NOTICE)
    watching.watch(at=NOTICE + timedelta(minutes=1))
    assert not begun_told()
    for minute in (0, 1):
        watching.watch(at=clock(14, minute))

    late = event.plans.get(state="committed").actions.filter(issue_at__gt=NOTICE + timedelta(minutes=5))
    assert late.exists()
    assert len(begun_told()) == 1


def begun_told() -> list[str]:
    words = (" is slowed", " is paused", " are held down")
    return [title for title in told(Kind.JOB_CURTAILED) if any(word in title for word in words)]


def test_a_test_of_an_event_worries_nobody():
    scene = quiet_hall()
    event = announce(is_test=True, actor=scene.operator)
    scene.commit(event, scene.preview(event))
    collecting.collect(at=NOTICE)

    assert told() == []


def test_those_who_plan_are_told_of_an_event_and_others_only_if_they_ask():
    scene = quiet_hall()
    curious, power_admin = person(), person(facility_role="power_admin")
    Preference.objects.create(user=curious, kinds=[Kind.EVENT_ANNOUNCED])
    Preference.objects.create(user=power_admin, kinds=[Kind.EVENT_ANNOUNCED])
    announce()
    collecting.collect(at=NOTICE)

    rows = Notice.objects.filter(kind=Kind.EVENT_ANNOUNCED)
    assert {row.user for row in rows} == {scene.operator, curious, power_admin}


# Forecasts, quotas, reservations ---------------------------------------------------------------------------------


def foretell(of, expected_at) -> None:
    Reason.objects.update_or_create(
        job=of,
        defaults={
            "pass_id": 1,
            "at": NOON,
            "code": "priority",
            "sentence": "",
            "expected_start_at": expected_at,
        },
    )


def test_a_start_that_moves_by_more_than_an_hour_is_told_and_then_known():
    ours, _ = team(), fleet()
    me = person(ours)
    waiting = job(ours, me, name="late")
    foretell(waiting, later(3600))
    watching.watch(at=later(0))
    foretell(waiting, later(2 * 3600 - 1))
    watching.watch(at=later(60))
    assert told() == []
    foretell(waiting, later(2 * 3600 + 1))
    watching.watch(at=later(120))
    watching.watch(at=later(180))

    assert told() == ["late is expected later: at about Mon 2 Mar 14:00 UTC"]


def test_many_starts_that_move_at_once_are_one_notice():
    ours, _ = team(), fleet()
    me = person(ours)
    waiting = [job(ours, me, name=f"j{i}") for i in range(4)]
    for shift in (0, 7200):
        for one in waiting:
            foretell(one, later(7200 + shift))
        watching.watch(at=later(shift / 100))

    assert told() == ["4 of your jobs are expected at another time"]


def test_leads_hear_of_a_quota_and_members_of_their_limits_but_not_who_changed_it():
    ours = team("Vision")
    lead, member = person(ours, role=MemberRole.LEAD), person(ours)
    stranger_lead = person(team(), role=MemberRole.LEAD)
    for kind in ("quota.changed", "quota.member_limits_changed"):
        with transaction.atomic():
            record(
                kind, subject_kind="team", subject_id=ours.pk, subject_name=ours.name, team_id=ours.pk, at=NOON,
                actor=lead if kind == "quota.member_limits_changed" else None, is_audit=True,
            )  # fmt: skip
    collecting.collect(at=later(1))

    got = {(row.user, row.title) for row in Notice.objects.all()}
    assert got == {
        (lead, "The quota of Vision was changed"),
        (member, "The limits of members of Vision were changed"),
    }
    assert not Notice.objects.filter(user=stranger_lead).exists()


def test_a_reservation_whose_nodes_are_out_of_service_is_told_once_to_those_it_is_for():
    ours, hall_ = team(), fleet()
    lead, member = person(ours, role=MemberRole.LEAD), person(ours)
    operator = person(facility_role="operator")
    made = Reservation.objects.create(
        name="demo day",
        starts_at=later(3600),
        ends_at=later(7200),
        created_by=operator,
        created_at=NOON,
    )
    made.teams.add(ours)
    made.nodes.add(hall_.nodes[0])
    watching.watch(at=later(1))
    assert told() == []
    type(hall_.nodes[0]).objects.filter(pk=hall_.nodes[0].pk).update(health=Health.FAILED)
    for second in (2, 62):
        watching.watch(at=later(second))

    rows = Notice.objects.filter(kind=Kind.RESERVATION_AT_RISK)
    assert sorted(row.user.username for row in rows) == sorted([lead.username, operator.username])
    assert hall_.nodes[0].name in rows[0].body
    assert not rows.filter(user=member).exists()


def test_an_amount_that_is_not_in_service_is_at_risk():
    ours, hall_ = team(), fleet(n_nodes=1, n_devices=4)
    lead = person(ours, role=MemberRole.LEAD)
    made = Reservation.objects.create(
        name="big", starts_at=later(60), ends_at=later(7200), created_at=NOON,
        accelerator_type=hall_.kind, n_devices=5,
    )  # fmt: skip
    made.teams.add(ours)
    watching.watch(at=later(1))

    assert [row.user for row in Notice.objects.all()] == [lead]
    assert "5 devices; 4 are in service" in Notice.objects.get().body


def test_no_notice_names_another_team_or_what_a_job_runs():
    ours, theirs, hall_ = team("Ours"), team("Theirs-Secret-Project"), fleet(n_devices=4)
    me, stranger = person(ours), person(theirs)
    mine = start(job(ours, me, name="mine", command=["run", "--token=hidden"]), hall_)
    start(job(theirs, stranger, name="unheard-of"), hall_, grant(hall_.nodes[0], (1,)))
    end(mine, "vacated", at=later(5), message="preempted by unheard-of of Theirs-Secret-Project")
    collecting.collect(at=later(6))
    mine_told = " ".join(f"{row.title} {row.body} {row.path}" for row in Notice.objects.filter(user=me))

    assert "mine gave its devices to other work" in mine_told
    for word in ("Theirs-Secret-Project", "unheard-of", "hidden"):
        assert word not in mine_told
    assert Event.objects.filter(reason__contains="Theirs-Secret-Project").exists()

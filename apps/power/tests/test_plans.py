"""Plans: previewed, committed in two steps, carried out."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden, InvalidInput, NotFound
from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power import plan_services, response_selectors, response_services
from apps.power.errors import ConfirmationNeeded, EventClosed, NotPreauthorised, PlanStale
from apps.power.models import ActionState, CurtailmentAction, CurtailmentPlan, PlanState
from apps.power.response import Load, Phase
from apps.power.tests.builders import (
    HASH,
    NOTICE,
    action,
    announce,
    clock,
    commit,
    draw,
    preview,
    programme,
)
from apps.teams.tests.builders import person

pytestmark = pytest.mark.django_db
OTHER = "b" * 64
MINUTE = timedelta(minutes=1)


@pytest.fixture
def event():
    draw(domain("hall", "hall"), 132.4e3)
    return announce()


@pytest.fixture
def olga():
    return person("olga", "operator")


def under_a_programme(**more):
    """An event of a programme; what is said of the event goes there."""
    draw(domain("hall", "hall"), 132.4e3)
    said = {name: more.pop(name) for name in ("is_emergency",) if name in more}
    policy = more.pop("emergency_policy", "none")
    made = programme(**more)
    # Approved by the site itself.
    made.emergency_policy = policy
    made.save()
    return announce(programme="summer", **said)


def report(key, state, fence=1, at=NOTICE, **more):
    return plan_services.record_action_state(idempotency_key=key, state=state, fence=fence, at=at, **more)


def committed_action(event, actor):
    preview(event)
    return commit(event, actor).actions.get(job_id=1)


def test_a_preview_changes_nothing_and_the_latest_one_counts(event):
    first, second = preview(event), preview(event, inputs_hash=OTHER)
    first.refresh_from_db()

    assert (first.state, second.state, second.number) == (PlanState.SUPERSEDED, PlanState.PREVIEWED, 2)
    assert second.expires_at == NOTICE + 5 * MINUTE
    assert not CurtailmentAction.objects.exists()


def test_a_committed_plan_ramps_with_its_actions(event, olga):
    preview(event)
    plan = commit(event, olga, reason="as asked")
    found = response_selectors.events().get(pk=event.pk)
    logged = Event.objects.get(kind="curtailment.committed")

    assert [(one.job_id, one.lever, one.state) for one in plan.actions.all()] == [
        (1, "cap", "requested"),
        (2, "pause", "requested"),
    ]
    assert (plan.committed_by, plan.committed_at) == (olga, NOTICE)
    assert response_selectors.phase_of_event(found, load=Load(), at=NOTICE) is Phase.RAMPING
    assert (logged.actor_name, logged.reason, logged.data["inputs_hash"]) == ("olga", "as asked", HASH)


def test_committing_the_same_plan_again_changes_nothing(event, olga):
    preview(event)
    assert commit(event, olga) == commit(event, olga, at=clock(16))
    assert CurtailmentAction.objects.count() == 2


def test_a_new_plan_takes_the_place_of_the_one_before(event, olga):
    preview(event)
    first = commit(event, olga)
    preview(event, inputs_hash=OTHER)
    second = commit(event, olga, inputs_hash=OTHER)
    first.refresh_from_db()

    assert (first.state, second.state) == (PlanState.SUPERSEDED, PlanState.COMMITTED)
    assert set(CurtailmentAction.objects.values_list("idempotency_key", flat=True)) == {
        f"event {event.pk} plan {number} action {index}" for number in (1, 2) for index in (0, 1)
    }


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"at": NOTICE + 5 * MINUTE}, "expired"),
        ({"inputs_hash": OTHER}, "Another plan"),
        ({"inputs_hash_now": OTHER}, "has changed"),
        ({"draw_now_w": 136e3}, "moved by over 2 %"),
        ({"draw_now_w": 129e3}, "moved by over 2 %"),
    ],
)
def test_what_is_no_longer_what_was_seen_is_not_committed(event, olga, more, why):
    preview(event, draw_w=132.4e3)
    with pytest.raises(PlanStale, match=why):
        commit(event, olga, **more)
    commit(event, olga, inputs_hash_now=HASH, draw_now_w=134e3)


def test_an_event_that_changed_meanwhile_needs_another_preview(event, olga):
    preview(event)
    CurtailmentPlan.objects.update(event_version=2)
    with pytest.raises(PlanStale, match="event was changed"):
        commit(event, olga)
    CurtailmentPlan.objects.update(state=PlanState.SUPERSEDED)
    with pytest.raises(PlanStale, match="No preview"):
        commit(event, olga)


def test_a_breach_of_what_jobs_allow_has_to_be_typed(event, olga):
    preview(event, tier_breaches=[7])
    for typed in ("", "yes"):
        with pytest.raises(ConfirmationNeeded, match="'hall'"):
            commit(event, olga, confirmation=typed)

    assert commit(event, olga, confirmation="hall").n_breaches == 1


def test_above_the_threshold_two_people_commit(olga):
    event = under_a_programme(two_person_above_w=19e3)
    preview(event)
    for _ in range(2):
        assert commit(event, olga).state == PlanState.PREVIEWED
    plan = commit(event, person("otto", "operator"))

    assert (plan.state, plan.approved_by.username, plan.committed_by.username) == (
        "committed",
        "olga",
        "otto",
    )
    assert [one.actor_name for one in Event.objects.filter(kind="curtailment.approved")] == ["olga"]


def test_up_to_the_threshold_one_is_enough(olga):
    event = under_a_programme(two_person_above_w=19.2e3)
    preview(event)

    assert commit(event, olga).state == PlanState.COMMITTED


def test_without_a_person_nothing_is_committed_that_no_programme_allows(event):
    preview(event)
    with pytest.raises(NotPreauthorised):
        commit(event, None)


@pytest.mark.parametrize("plan", [{"tier_breaches": [1]}, {"predicted_shed_w": 3e4}])
def test_auto_commit_neither_breaches_nor_replaces_two_people(plan):
    event = under_a_programme(is_auto_commit=True, two_person_above_w=2e4)
    preview(event, **plan)
    with pytest.raises(NotPreauthorised):
        commit(event, None)
    preview(event)

    assert commit(event, None).committed_by is None
    assert Event.objects.get(kind="curtailment.committed").data["policy"]["name"] == "auto_commit"


@pytest.mark.parametrize(
    ("policy", "actions", "is_allowed"),
    [
        ("caps", [action(1)], True),
        ("caps", [action(1), action(2, tier=4, lever="stop")], False),
        ("caps_and_stops", [action(1), action(2, tier=4, lever="stop")], True),
        ("caps_and_stops", [action(1, lever="stop")], False),
        ("caps_and_stops", [action(1, tier=0)], False),
        ("none", [action(1)], False),
    ],
)
def test_an_emergency_is_committed_by_policy_as_far_as_that_goes(policy, actions, is_allowed):
    event = under_a_programme(emergency_policy=policy, is_emergency=True, two_person_above_w=1.0)
    preview(event, actions=actions, tier_breaches=[1])
    if not is_allowed:
        with pytest.raises(NotPreauthorised):
            commit(event, None)
        return
    assert commit(event, None).state == PlanState.COMMITTED
    assert Event.objects.get(kind="curtailment.committed").data["policy"]["emergency_policy"] == policy


def test_nothing_is_done_before_the_ramp(event):
    with pytest.raises(InvalidInput) as caught:
        preview(event, actions=[action(issue_at=NOTICE - MINUTE), action(effective_by_at=NOTICE - MINUTE)])

    assert [fault["path"] for fault in caught.value.errors] == [
        "actions[0].issue_at",
        "actions[1].effective_by_at",
    ]


def test_an_event_that_was_given_up_gets_no_plan(event, olga):
    preview(event)
    response_services.cancel_event(event_id=event.pk, actor=None, at=NOTICE)
    with pytest.raises(EventClosed):
        commit(event, olga)
    with pytest.raises(EventClosed):
        preview(event)


@pytest.mark.parametrize("role", ["", "auditor", "power_admin"])
def test_only_operators_commit(event, role):
    preview(event)
    with pytest.raises(Forbidden):
        commit(event, person("max", role))


def test_an_action_comes_to_its_end_once(event, olga):
    key = committed_action(event, olga).idempotency_key
    for state in ("acked", "acked", "verified", "acked", "reverted", "failed"):
        report(key, state)
    kinds = Event.objects.filter(kind__startswith="curtailment.action").order_by("id")

    assert [one.kind.rpartition("_")[2] for one in kinds] == ["acked", "verified", "reverted"]
    assert CurtailmentAction.objects.get(idempotency_key=key).state == ActionState.REVERTED


def test_who_has_an_older_fence_is_ignored(event, olga):
    key = committed_action(event, olga).idempotency_key
    report(key, "acked", fence=5, lease_until_at=clock(18))
    stale = report(key, "verified", fence=4, lease_until_at=clock(20))

    assert (stale.state, stale.fence, stale.lease_until_at) == ("acked", 5, clock(18))
    assert report(key, "acked", fence=6, lease_until_at=clock(19)).lease_until_at == clock(19)


def test_what_failed_is_tried_again_under_a_newer_fence_alone(event, olga):
    key = committed_action(event, olga).idempotency_key
    assert report(key, "failed", note="no answer").note == "no answer"
    assert report(key, "verified").state == "failed"
    assert report(key, "verified", fence=2).state == "verified"


def test_an_action_nobody_knows_is_said_so():
    with pytest.raises(NotFound):
        report("nothing", "acked")


# What the database itself holds.


@pytest.mark.parametrize(
    "change",
    [
        {"plan": {"actions": []}},
        {"predicted_shed_w": 1.0},
        {"inputs_hash": OTHER},
        {"committed_at": None, "state": "previewed"},
        {"state": "previewed"},
        {"number": 9},
    ],
)
def test_a_committed_plan_stays_as_it_is(event, olga, change):
    preview(event, actions=[])
    plan = commit(event, olga)
    with pytest.raises(IntegrityError, match="stays as it is"), transaction.atomic():
        CurtailmentPlan.objects.filter(pk=plan.pk).update(**change)
    with pytest.raises(IntegrityError, match="stays as it is"), transaction.atomic():
        CurtailmentPlan.objects.filter(pk=plan.pk).delete()


def test_a_superseded_plan_does_not_come_back(event, olga):
    preview(event)
    plan = commit(event, olga)
    CurtailmentPlan.objects.filter(pk=plan.pk).update(state=PlanState.SUPERSEDED)
    with pytest.raises(IntegrityError, match="stays as it is"), transaction.atomic():
        CurtailmentPlan.objects.filter(pk=plan.pk).update(state=PlanState.COMMITTED)


def test_an_event_has_one_committed_plan(event, olga):
    preview(event)
    plan = commit(event, olga)
    plan.pk, plan.number = None, 2
    with pytest.raises(IntegrityError, match="one_committed_plan_an_event"), transaction.atomic():
        plan.save(force_insert=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "x"},
        {"state": "committed"},
        {"state": "draft"},
        {"inputs_hash": "A" * 64},
        {"predicted_shed_w": float("nan")},
        {"shortfall_w": -1.0},
        {"lost_device_s": -1.0},
        {"bound_device_s": -1.0},
        {"draw_w": -1.0},
        {"number": 0},
        {"expires_at": NOTICE},
    ],
)
def test_the_database_refuses_a_plan_that_cannot_be(event, wrong):
    plan = preview(event)
    with pytest.raises(IntegrityError), transaction.atomic():
        CurtailmentPlan.objects.filter(pk=plan.pk).update(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "x"},
        {"lever": "x"},
        {"expected_w": -1.0},
        {"effective_by_at": clock(13)},
        {"idempotency_key": ""},
        {"fence": -1},
    ],
)
def test_the_database_refuses_an_action_that_cannot_be(event, olga, wrong):
    found = committed_action(event, olga)
    with pytest.raises(IntegrityError), transaction.atomic():
        CurtailmentAction.objects.filter(pk=found.pk).update(**wrong)


def test_an_idempotency_key_is_used_once(event, olga):
    found = committed_action(event, olga)
    found.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        found.save(force_insert=True)

"""The policy in force: who sets it, by what door, and that the planner goes by it."""

import pytest

from apps.core.errors import Forbidden, InvalidInput, VersionConflict
from apps.events.models import Event
from apps.jobs.tests.builders import NOON, fleet, job, later, person, team
from apps.scheduling import policy_setting, selectors, snapshot
from apps.scheduling.api import bodies
from apps.scheduling.engine import planner
from apps.scheduling.engine.facts import Policy
from apps.scheduling.engine.named import NAMED
from apps.scheduling.engine.order import order_queue
from apps.scheduling.models import PolicySetting
from apps.scheduling.policy_setting import PolicyValues, in_force, set_policy
from apps.scheduling.tests.test_api import client
from apps.teams.models import FacilityRole
from apps.teams.tests.builders import person as with_role

pytestmark = pytest.mark.django_db
URL = "/api/v1/policy"


@pytest.fixture
def admin():
    return with_role("root", FacilityRole.ADMIN)


def test_what_is_read_before_anything_was_set_is_what_the_planner_goes_by(admin):
    told = client(admin).get(URL).data

    assert bodies.PolicyOut.model_validate(told)
    assert (told["name"], told["version"], told["order"]) == ("default", 1, "priority")
    assert PolicyValues(**in_force().values).model_dump() == PolicyValues().model_dump()


@pytest.mark.parametrize("name", NAMED)
def test_a_named_policy_is_set_by_its_name_and_read_back_by_it(admin, name):
    told = client(admin).put(URL, {"version": 1, "name": name}).data

    assert told["name"] == name
    policy = selectors.current_policy()
    assert {field: getattr(policy, field) for field in NAMED[name]} == dict(NAMED[name])
    assert client(admin).get(URL).data == told


def test_the_longest_time_to_be_passed_is_a_field_of_its_own(admin):
    asked = {"version": 1, "name": "turnaround", "starving_s": 3600, "reason": "deadlines"}
    told = client(admin).put(URL, {**asked, "starving_s": 3600.0}).data

    assert (told["name"], told["version"], told["starving_s"]) == (None, 2, 3600.0)
    assert selectors.current_policy().starving_s == 3600.0
    assert selectors.current_policy().starving_by_width == NAMED["turnaround"]["starving_by_width"]
    event = Event.objects.get(kind="policy.changed")
    assert (event.actor_name, event.is_audit, event.reason) == ("root", True, "deadlines")
    assert (event.before["starving_s"], event.after["starving_s"]) == (86_400.0, 3600.0)


def test_the_next_pass_goes_by_it(admin):
    ours = team()
    fleet(1, 1)
    me = person(ours)
    long = job(ours, me, at=later(-100), devices=1, time_limit=900.0)
    short = job(ours, me, at=later(-50), devices=1, time_limit=60.0)
    set_policy(values=PolicyValues(starving_s=101.0), name="shortest", actor=admin, at=NOON, version=1)
    before = [gang.id for gang in _order()]
    set_policy(values=PolicyValues(starving_s=100.0), name="shortest", actor=admin, at=NOON, version=2)

    assert before == [short.pk, long.pk]
    assert [gang.id for gang in _order()] == [long.pk, short.pk]
    taken = snapshot.take_snapshot(NOON)
    assert [one.job_id for one in planner.plan(taken.snapshot, taken.policy).starts] == [long.pk]


def _order():
    taken = snapshot.take_snapshot(NOON)
    return order_queue(taken.snapshot, taken.policy)


@pytest.mark.parametrize(
    ("fields", "path", "code"),
    [
        ({"starving_s": -1.0}, "starving_s", "out_of_range"),
        ({"starving_by_width": 1.5}, "starving_by_width", "out_of_range"),
        ({"backfill_depth": "some"}, "backfill_depth", "wrong_type"),
        ({"backfill_depth": -1}, "backfill_depth", "out_of_range"),
        ({"backfill_depth": True}, "backfill_depth", "wrong_type"),
        ({"order": "random"}, "order", "not_a_choice"),
        ({"name": "best"}, "name", "not_a_choice"),
        ({"half_life_s": 0.0}, "half_life_s", "out_of_range"),
        ({"shield_s": None}, "shield_s", "null"),
        ({"resizing": True}, "resizing", "unknown_field"),
    ],
)
def test_what_is_no_policy_is_refused_by_its_field(admin, fields, path, code):
    answer = client(admin).put(URL, {"version": 1, **fields})

    assert (answer.status_code, answer.data["errors"][0]["path"]) == (400, path)
    assert answer.data["errors"][0]["code"] == code
    assert not PolicySetting.objects.exists()


@pytest.mark.parametrize("role", ["", FacilityRole.OPERATOR, FacilityRole.AUDITOR, FacilityRole.POWER_ADMIN])
def test_only_administrators_set_it_and_everybody_reads_it(role):
    asker = with_role("max", role)

    assert client(asker).get(URL).status_code == 200
    assert client(asker).put(URL, {"version": 1, "name": "strict"}).status_code == 403
    with pytest.raises(Forbidden):
        set_policy(values=PolicyValues(), name="strict", actor=asker, at=NOON, version=1)
    assert in_force().name == "default"


def test_who_read_an_older_version_is_told_both_sides(admin):
    set_policy(values=PolicyValues(), name="easy", actor=admin, at=NOON, version=1)
    with pytest.raises(VersionConflict) as refused:
        set_policy(values=PolicyValues(), name="strict", actor=admin, at=NOON, version=1)

    assert refused.value.facts["yours"] == {"backfill_depth": 0}
    assert refused.value.facts["stored"]["backfill_depth"] == 1
    assert in_force().name == "easy"


def test_a_change_to_what_it_is_already_leaves_no_trace(admin):
    told = set_policy(values=PolicyValues(backfill_depth=64), actor=admin, at=NOON, version=1)

    assert told.version == 1
    assert not Event.objects.filter(kind="policy.changed").exists()


def test_what_no_door_can_say_stays_and_an_unknown_name_is_refused(admin):
    PolicySetting.objects.create(values={"resize_dwell_s": 5.0, "ageing_s": 60.0})
    with pytest.raises(InvalidInput):
        set_policy(values=PolicyValues(), name="best", actor=admin, at=NOON, version=1)
    told = set_policy(
        values=PolicyValues(backfill_depth="all", ageing_s=None), actor=admin, at=NOON, version=1
    )

    policy = selectors.current_policy()
    assert (policy.resize_dwell_s, policy.backfill_depth, policy.ageing_s) == (5.0, None, Policy().ageing_s)
    assert (told.values["backfill_depth"], told.values["ageing_s"]) == ("all", None)


def test_every_field_of_the_door_is_one_of_the_engine():
    known = set(Policy.__dataclass_fields__)
    assert set(policy_setting.FIELDS) <= known
    assert all(set(changes) <= set(policy_setting.FIELDS) for changes in NAMED.values())

"""Drafts of curtailments: a person's own, bounded, in the audit trail, and nothing but kept."""

import pytest

from apps.core.errors import Forbidden, NotFound
from apps.events.models import Event
from apps.power.draft_services import MOST, TooManyDrafts, delete_draft, draft_of, drafts_of, save_draft
from apps.power.models import DemandResponseEvent
from apps.teams.models import User
from apps.teams.tests.builders import NOON, person

pytestmark = pytest.mark.django_db


def keep(actor: User, name: str = "40 kW", **more):
    return save_draft(actor=actor, name=name, fields={"value": "40", "reason": "later"}, at=NOON, **more)


def test_a_draft_is_its_persons_own_and_announces_nothing():
    olga, other = person("olga", "operator"), person("otto", "operator")
    kept = keep(olga)

    assert [one.name for one in drafts_of(olga)] == ["40 kW"]
    with pytest.raises(NotFound):
        draft_of(other, kept.number)
    assert not DemandResponseEvent.objects.exists()
    told = Event.objects.get(kind="curtailment.draft_saved")
    assert (told.is_audit, told.actor_name, told.reason) == (True, "olga", "later")


def test_saving_a_draft_again_replaces_it_and_a_number_is_not_used_for_another():
    olga = person("olga", "operator")
    first, second = keep(olga), keep(olga, "50 kW")
    assert keep(olga, "41 kW", number=first.number).number == first.number
    assert [one.name for one in drafts_of(olga)] == ["41 kW", "50 kW"]
    delete_draft(actor=olga, number=first.number, at=NOON)
    delete_draft(actor=olga, number=first.number, at=NOON)

    assert keep(olga, "gone", number=first.number).number != second.number
    assert Event.objects.filter(kind="curtailment.draft_deleted").count() == 1


def test_who_does_not_operate_keeps_none_and_nobody_keeps_any_number():
    with pytest.raises(Forbidden):
        keep(person("guest"))
    olga = person("olga", "operator")
    for _ in range(MOST):
        keep(olga)
    with pytest.raises(TooManyDrafts):
        keep(olga)

    assert len(drafts_of(olga)) == MOST


def test_other_preferences_stay():
    olga = person("olga", "operator")
    User.objects.filter(pk=olga.pk).update(preferences={"keys": "off"})
    keep(olga)
    olga.refresh_from_db()

    assert olga.preferences["keys"] == "off"

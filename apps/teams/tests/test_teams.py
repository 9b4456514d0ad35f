"""Teams, their trees, their people, and who may change them."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.errors import Forbidden, InvalidInput, NameTaken, NotFound, VersionConflict
from apps.events.models import Event
from apps.teams import policies, services
from apps.teams.errors import CeilingAboveParent, MoreThanOwned, NotYourTeam
from apps.teams.models import IdempotentAnswer, Membership, Quota, Team, Token
from apps.teams.selectors import owned_by
from apps.teams.services import QuotaChange, QuotaEntry
from apps.teams.tests.builders import LATER, NOON, kind, own, person, team

pytestmark = pytest.mark.django_db


def owned(of):
    return dict(Quota.objects.filter(team=of).values_list("accelerator_type__name", "entitlement"))


# The tree


def test_no_team_is_above_itself():
    top = team("a")
    low = team("c", team("b", top))
    with pytest.raises(InvalidInput, match="parent"):
        services.update_team(team_id=top.pk, changes={"parent": low}, version=1, actor=None, at=NOON)


def test_the_database_refuses_a_circle_too():
    top = team("a")
    low = team("b", top)
    with pytest.raises(IntegrityError), transaction.atomic():
        Team.objects.filter(pk=top.pk).update(parent=low)


@pytest.mark.django_db(transaction=True)
def test_two_moves_at_once_do_not_close_a_circle():
    one, other = team("a"), team("b")
    gate, refused = threading.Barrier(2), []

    def move(low, top):
        gate.wait(10)
        try:
            Team.objects.filter(pk=low.pk).update(parent=top)
        except IntegrityError:
            refused.append(low)
        connection.close()

    threads = [threading.Thread(target=move, args=pair) for pair in ((one, other), (other, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 1


def test_two_teams_of_a_name_are_refused():
    team("vision")
    with pytest.raises(NameTaken):
        team("vision")


def test_a_change_on_an_old_version_shows_both_sides():
    vision = team("vision")
    services.update_team(team_id=vision.pk, changes={"weight": 2.0}, version=1, actor=None, at=NOON)
    with pytest.raises(VersionConflict) as caught:
        services.update_team(team_id=vision.pk, changes={"weight": 3.0}, version=1, actor=None, at=NOON)

    assert caught.value.facts["yours"]["weight"] == 3.0
    assert caught.value.facts["stored"]["weight"] == 2.0
    assert caught.value.facts["version"] == 2


def test_a_lead_weighs_its_sub_teams_but_not_its_own_team():
    vision = team("vision")
    train = team("train", vision)
    lea = person("lea", leads=vision)
    services.update_team(team_id=train.pk, changes={"weight": 2.0}, version=1, actor=lea, at=NOON)
    with pytest.raises(Forbidden):
        services.update_team(team_id=vision.pk, changes={"weight": 2.0}, version=1, actor=lea, at=NOON)


def test_names_and_places_are_for_administrators():
    vision = team("vision")
    train = team("train", vision)
    with pytest.raises(Forbidden):
        services.update_team(
            team_id=train.pk, changes={"name": "x"}, version=1, actor=person("lea", leads=vision), at=NOON
        )


# Ceilings


def test_a_lead_gives_a_sub_team_no_higher_priority_than_the_team_has():
    top = team("a")
    lea = person("lea", leads=top)
    with pytest.raises(CeilingAboveParent):
        services.create_team(name="b", parent=top, priority_ceiling=101, actor=lea, at=NOON)
    low = services.create_team(name="b", parent=top, priority_ceiling=100, actor=lea, at=NOON)
    with pytest.raises(CeilingAboveParent):
        services.update_team(team_id=low.pk, changes={"priority_ceiling": 101}, version=1, actor=lea, at=NOON)

    root = person("root", "admin")
    assert services.update_team(
        team_id=low.pk, changes={"priority_ceiling": 101}, version=1, actor=root, at=NOON
    )


def test_a_lead_changes_the_weight_of_a_team_whose_ceiling_an_administrator_raised():
    top = team("a")
    low = services.create_team(name="b", parent=top, priority_ceiling=500, actor=None, at=NOON)
    lea = person("lea", leads=top)

    assert services.update_team(team_id=low.pk, changes={"weight": 2.0}, version=1, actor=lea, at=NOON)


def test_a_sub_team_begins_with_the_lower_of_the_usual_ceiling_and_its_parents():
    top = services.create_team(name="a", priority_ceiling=10, actor=None, at=NOON)

    assert services.create_team(name="b", parent=top, actor=None, at=NOON).priority_ceiling == 10
    assert team("c").priority_ceiling == 100


def test_the_lowest_ceiling_of_the_line_counts():
    top = services.create_team(name="a", priority_ceiling=10, actor=None, at=NOON)
    low = services.create_team(name="c", parent=team("b", top), priority_ceiling=500, actor=None, at=NOON)

    assert policies.ceiling_of(Team.objects.get(pk=low.pk)) == 10


# People


def test_a_lead_of_a_team_above_counts_as_lead():
    vision = team("vision")
    deep = team("deep", team("train", vision))
    lea, max_ = person("lea", leads=vision), person("max", member_of=vision)

    assert policies.is_lead(lea, deep)
    assert not policies.is_lead(max_, deep)
    assert policies.team_ids_of(lea) == set(Team.objects.values_list("pk", flat=True))
    assert policies.team_ids_of(max_) == {vision.pk}


def test_an_auditor_acts_for_no_team():
    vision = team("vision")
    aud = person("aud", "auditor", leads=vision)

    assert not policies.is_lead(aud, vision)
    assert not policies.is_member(aud, vision)
    assert policies.team_ids_of(aud) == frozenset()


def test_somebody_who_left_may_nothing():
    vision = team("vision")
    ada = person("ada", "admin", leads=vision)
    ada.is_active = False

    assert not policies.is_admin(ada)
    assert not policies.may_operate(ada)
    assert not policies.is_lead(ada, vision)


def test_a_lead_takes_people_in_and_out():
    vision = team("vision")
    lea, max_ = person("lea", leads=vision), person("max")
    services.set_member(team_id=vision.pk, user=max_, role="member", actor=lea, at=NOON)
    services.remove_member(team_id=vision.pk, user=max_, actor=lea, at=NOON)
    services.remove_member(team_id=vision.pk, user=max_, actor=lea, at=NOON)

    assert not Membership.objects.filter(user=max_).exists()
    said = Event.objects.filter(subject_name="vision", actor_name="lea").values_list("kind", flat=True)
    assert list(said) == ["team.member_set", "team.member_removed"]


def test_a_member_takes_nobody_in():
    vision = team("vision")
    with pytest.raises(Forbidden):
        services.set_member(
            team_id=vision.pk,
            user=person("sam"),
            role="lead",
            actor=person("max", member_of=vision),
            at=NOON,
        )


@pytest.mark.parametrize("role", ["", "operator", "power_admin", "auditor"])
def test_only_administrators_make_administrators(role):
    max_ = person("max", role)
    with pytest.raises(Forbidden):
        services.set_facility_role(user_id=max_.pk, facility_role="admin", actor=max_, at=NOON)


# Quotas


def test_a_quota_is_replaced_as_a_whole_and_both_sides_are_kept():
    vision = team("vision", H100=8)
    own(vision, A100=4)

    assert owned(vision) == {"A100": 4}
    event = Event.objects.filter(kind="quota.changed").latest("id")
    assert set(event.before) == {"H100"}
    assert event.after == {"A100": {"entitlement": 4, "borrow_limit": None, "lend_limit": None}}
    assert event.is_audit


def test_the_same_quota_again_changes_nothing():
    vision = team("vision", H100=8)
    before = vision.version, Event.objects.count()
    own(vision, H100=8)

    assert (vision.version, Event.objects.count()) == before


def test_sub_teams_are_not_entitled_to_more_than_is_owned():
    vision = team("vision", H100=10)
    team("train", vision, H100=6)
    with pytest.raises(MoreThanOwned, match="entitled to 11 H100; vision owns 10"):
        team("eval", vision, H100=5)


def test_a_team_keeps_what_it_gave_away():
    vision = team("vision", H100=10)
    team("train", vision, H100=6)
    with pytest.raises(MoreThanOwned):
        own(vision, H100=5)


def test_a_type_that_a_team_does_not_own_is_not_its_to_give():
    vision = team("vision", H100=10)
    with pytest.raises(MoreThanOwned):
        team("train", vision, A100=1)


def test_devices_move_between_sub_teams_in_one_save():
    vision = team("vision", H100=10)
    one, other = team("one", vision, H100=8), team("other", vision, H100=2)
    changes = [
        QuotaChange(one.pk, [QuotaEntry("H100", 2)], one.version),
        QuotaChange(other.pk, [QuotaEntry("H100", 8)], other.version),
    ]
    for order in (changes, list(reversed(changes))):
        with transaction.atomic():
            services.set_quotas(changes=order, actor=None, at=NOON)
            assert (owned(one), owned(other)) == ({"H100": 2}, {"H100": 8})
            transaction.set_rollback(True)


def test_a_lead_gives_to_its_sub_teams_what_it_owns():
    vision = team("vision", H100=10)
    train = team("train", vision)
    lea = person("lea", leads=vision)
    own(train, actor=lea, H100=10)

    assert owned(train) == {"H100": 10}


def test_a_lead_does_not_raise_its_own_entitlement():
    vision = team("vision", H100=10)
    with pytest.raises(NotYourTeam):
        own(vision, actor=person("lea", leads=vision), H100=11)


def test_a_lead_sets_how_far_its_team_borrows_and_lends():
    vision = team("vision", H100=10)
    entries = [QuotaEntry("H100", 10, borrow_limit=4, lend_limit=0)]
    services.set_quota(
        team=vision, entries=entries, actor=person("lea", leads=vision), at=NOON, version=vision.version
    )
    assert Quota.objects.get(team=vision).lend_limit == 0


@pytest.mark.parametrize("role", ["", "operator", "power_admin", "auditor"])
def test_strangers_set_no_quota(role):
    vision = team("vision", H100=10)
    with pytest.raises(Forbidden):
        own(vision, actor=person("sam", role, member_of=vision), H100=9)


def test_who_saved_meanwhile_is_shown_with_both_sides():
    vision = team("vision", H100=10)
    read = vision.version
    own(vision, H100=12)
    with pytest.raises(VersionConflict) as caught:
        own(vision, version=read, H100=14)

    assert caught.value.facts["yours"]["H100"]["entitlement"] == 14
    assert caught.value.facts["stored"]["H100"]["entitlement"] == 12


def test_every_unknown_type_is_named():
    with pytest.raises(InvalidInput) as caught:
        services.set_quota(
            team=team("vision"),
            entries=[QuotaEntry("X"), QuotaEntry(kind().name), QuotaEntry("Y")],
            actor=None,
            at=NOON,
            version=1,
        )
    assert [fault["path"] for fault in caught.value.errors] == [
        "entries[0].accelerator_type",
        "entries[2].accelerator_type",
    ]


@pytest.mark.django_db(transaction=True)
def test_two_leads_at_once_do_not_give_more_than_there_is():
    vision = team("vision", H100=10)
    subs = [team("one", vision), team("other", vision)]
    gate, refused = threading.Barrier(2), []

    def give(sub):
        gate.wait(10)
        try:
            services.set_quota(team=sub, entries=[QuotaEntry("H100", 6)], actor=None, at=NOON, version=1)
        except MoreThanOwned:
            refused.append(sub)
        connection.close()

    threads = [threading.Thread(target=give, args=[sub]) for sub in subs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 1


def test_what_is_kept_back_is_what_no_sub_team_has():
    vision = team("vision", H100=10)
    team("train", vision, H100=6)
    (entry,) = owned_by([vision])[vision.pk]

    assert (entry.given_to_sub_teams, entry.kept_back) == (6, 4)


# Tokens


def secret_of(user, **more):
    return services.create_token(user=user, name="ci", at=NOON, **more)


def test_a_token_signs_its_owner_in():
    max_ = person("max")
    token, secret = secret_of(max_)

    assert services.authenticate_token(secret, NOON) == (max_, token)
    assert not Token.objects.filter(digest__contains=secret[3:10]).exists()


@pytest.mark.parametrize("secret", ["", "sy_", "x" * 100, "\ud800", "sy_' OR 1=1"])
def test_what_nobody_was_given_signs_nobody_in(secret):
    assert services.authenticate_token(secret, NOON) is None


def test_a_token_ends_when_it_expires_when_it_is_revoked_and_when_its_owner_leaves():
    max_ = person("max")
    _, short = secret_of(max_, expires_at=LATER)
    token, revoked = secret_of(max_)
    _, good = secret_of(max_)
    services.revoke_token(token_id=token.pk, actor=max_, at=NOON)

    assert services.authenticate_token(short, LATER - timedelta(seconds=1)) is not None
    assert services.authenticate_token(short, LATER) is None
    assert services.authenticate_token(revoked, NOON) is None
    assert services.authenticate_token(good, NOON) is not None
    max_.is_active = False
    max_.save()
    assert services.authenticate_token(good, NOON) is None


def test_nobody_revokes_or_sees_anothers_token():
    token, _ = secret_of(person("max"))
    with pytest.raises(NotFound):
        services.revoke_token(token_id=token.pk, actor=person("sam"), at=NOON)
    services.revoke_token(token_id=token.pk, actor=person("ada", "admin"), at=NOON)
    token.refresh_from_db()
    assert token.revoked_at == NOON


def test_use_of_a_token_is_noted_once_a_minute(django_assert_num_queries):
    _, secret = secret_of(person("max"))
    services.authenticate_token(secret, NOON)
    with django_assert_num_queries(1):
        services.authenticate_token(secret, NOON + timedelta(seconds=59))
    with django_assert_num_queries(2):
        services.authenticate_token(secret, NOON + timedelta(seconds=60))


def test_the_log_tells_of_a_token_but_not_its_secret():
    _, secret = secret_of(person("max"))
    event = Event.objects.get(kind="token.created")

    assert event.is_private
    assert secret not in str(event.data)


# Upkeep


def test_answers_are_kept_for_a_day():
    max_ = person("max")
    for key, age in (("old", timedelta(hours=25)), ("new", timedelta(hours=23))):
        IdempotentAnswer.objects.create(user=max_, key=key, fingerprint="f", created_at=NOON - age)
    services.prune(at=NOON)

    assert [answer.key for answer in IdempotentAnswer.objects.all()] == ["new"]

"""How much one member of a team may have at once: who says so, and what is refused."""

import pytest
from django.db import IntegrityError, transaction

from apps.core.errors import Forbidden, InvalidInput, VersionConflict
from apps.events.models import Event
from apps.teams import selectors, services
from apps.teams.models import MemberLimit
from apps.teams.services import MemberLimitEntry
from apps.teams.tests.builders import NOON, client, kind, person, team

pytestmark = pytest.mark.django_db
URL = "/api/v1/teams/vision/member-limits"


@pytest.fixture
def vision():
    return team("vision", H100=10)


def of(what, most, member=None, accelerator_type=None):
    return MemberLimitEntry(what, most, member, accelerator_type)


def limit(made, *entries, actor=None, version=None, reason=""):
    made.refresh_from_db()
    at_version = made.version if version is None else version
    return services.set_member_limits(
        team=made, entries=entries, actor=actor, at=NOON, version=at_version, reason=reason
    )


def said(made):
    return [services.entry_of(row) for row in selectors.limits_of(made)]


def test_limits_are_replaced_as_a_whole_with_both_sides_in_the_audit(vision):
    person("ann", member_of=vision)
    lea = person("lea", leads=vision)
    read = limit(vision, of("devices", 8, None, "H100"), of("waiting_jobs", 100)).version
    limit(vision, of("devices", 4, None, "H100"), of("devices", None, "ann", "H100"), actor=lea, reason="Q3")

    assert said(vision) == [of("devices", 4, None, "H100"), of("devices", None, "ann", "H100")]
    event = Event.objects.filter(kind="quota.member_limits_changed").latest("id")
    assert event.before == {"every member": {"H100": 8, "waiting_jobs": 100}}
    assert event.after == {"every member": {"H100": 4}, "ann": {"H100": None}}
    assert (event.actor_name, event.subject_name, event.is_audit, event.reason) == (
        "lea",
        "vision",
        True,
        "Q3",
    )
    vision.refresh_from_db()
    assert vision.version == read + 1


def test_the_same_limits_again_change_nothing(vision):
    limit(vision, of("running_jobs", 3))
    before = Event.objects.count()
    made = limit(vision, of("running_jobs", 3))

    assert (made.version, Event.objects.count()) == (vision.version, before)


def test_only_leads_of_the_team_or_above_it_say_how_much(vision):
    train = team("train", vision)
    limit(train, of("running_jobs", 3), actor=person("above", leads=vision))
    limit(train, of("running_jobs", 4), actor=person("own", leads=train))
    limit(train, of("running_jobs", 5), actor=person("ada", "admin"))
    for stranger in (
        person("max", member_of=train),
        person("op", "operator"),
        person("aud", "auditor", leads=train),
    ):
        with pytest.raises(Forbidden):
            limit(train, of("running_jobs", 99), actor=stranger)

    assert said(train) == [of("running_jobs", 5)]


def test_two_leads_who_read_the_same_do_not_overwrite_each_other(vision):
    read = vision.version
    limit(vision, of("running_jobs", 3))
    with pytest.raises(VersionConflict) as caught:
        limit(vision, of("running_jobs", 4), version=read)

    assert caught.value.facts["stored"] == {"every member": {"running_jobs": 3}}
    assert caught.value.facts["yours"] == {"every member": {"running_jobs": 4}}


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (of("devices", 1), "accelerator_type"),
        (of("devices", 1, None, "B200"), "accelerator_type"),
        (of("running_jobs", 1, None, "H100"), "accelerator_type"),
        (of("running_jobs", None), "most"),
        (of("running_jobs", 1, "stranger"), "member"),
        (of("disk", 1), "what"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_at_its_field(vision, entry, field):
    person("stranger")
    with pytest.raises(InvalidInput) as caught:
        limit(vision, of("waiting_jobs", 1), entry)

    assert [fault["path"] for fault in caught.value.errors] == [f"entries[1].{field}"]
    assert not MemberLimit.objects.exists()


def test_nothing_is_said_twice(vision):
    with pytest.raises(InvalidInput) as caught:
        limit(vision, of("running_jobs", 1), of("running_jobs", 2))

    assert [fault["path"] for fault in caught.value.errors] == ["entries[1]"]


def test_a_team_whose_jobs_are_those_of_its_sub_teams_has_none_of_its_own(vision):
    limit(vision, of("running_jobs", 1))
    team("train", vision)
    with pytest.raises(InvalidInput, match="has sub-teams"):
        limit(vision, of("running_jobs", 2))

    limit(vision)
    assert said(vision) == []


def test_who_leaves_a_team_takes_their_own_limits_along(vision):
    ann = person("ann", member_of=vision)
    made = limit(vision, of("running_jobs", 1), of("running_jobs", 9, "ann"))
    services.remove_member(team_id=vision.pk, user=ann, actor=None, at=NOON)

    assert said(vision) == [of("running_jobs", 1)]
    event = Event.objects.get(kind="team.member_removed")
    assert event.before == {"role": "member", "limits": {"running_jobs": 9}}
    vision.refresh_from_db()
    assert vision.version == made.version + 1


def test_what_is_said_of_a_person_stands_for_them(vision):
    ann, bob, eve = (person(name, member_of=vision) for name in ("ann", "bob", "eve"))
    limit(vision, of("waiting_jobs", 5), of("waiting_jobs", 9, "ann"), of("waiting_jobs", None, "bob"))

    assert selectors.most_waiting(ann, [vision.pk]) == {vision.pk: (9, True)}
    assert selectors.most_waiting(bob, [vision.pk]) == {}
    assert selectors.most_waiting(eve, [vision.pk]) == {vision.pk: (5, False)}


@pytest.mark.parametrize(
    "row",
    [
        {"what": "devices", "most": 1},
        {"what": "running_jobs", "most": 1, "accelerator_type": "H100"},
        {"what": "running_jobs", "most": None},
        {"what": "running_jobs", "most": -1},
        {"what": "other", "most": 1},
    ],
)
def test_the_database_keeps_no_limit_that_means_nothing(vision, row):
    if "accelerator_type" in row:
        row = row | {"accelerator_type": kind(row["accelerator_type"])}
    with pytest.raises(IntegrityError), transaction.atomic():
        MemberLimit.objects.create(team=vision, **row)


def test_the_database_keeps_one_limit_a_member_and_use(vision):
    MemberLimit.objects.create(team=vision, what="running_jobs", most=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        MemberLimit.objects.create(team=vision, what="running_jobs", most=2)


# By REST


def test_limits_are_set_and_read(vision):
    person("ann", member_of=vision)
    entries = [
        {"what": "devices", "accelerator_type": "H100", "most": 8},
        {"what": "waiting_jobs", "most": None, "member": "ann"},
    ]
    answer = client(person("lea", leads=vision)).put(URL, {"version": vision.version, "entries": entries})

    assert answer.status_code == 200
    assert client(person("eve")).get(URL).json() == answer.json() == {
        "team": "vision",
        "version": vision.version + 1,
        "entries": [
            {"what": "devices", "accelerator_type": "H100", "member": None, "most": 8},
            {"what": "waiting_jobs", "accelerator_type": None, "member": "ann", "most": None},
        ],
    }  # fmt: skip


def test_a_member_reads_but_does_not_set(vision):
    max_ = client(person("max", member_of=vision))

    assert max_.get(URL).status_code == 200
    assert max_.put(URL, {"version": 1, "entries": []}).status_code == 403
    assert client().get(URL).status_code == 401


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"what": "running_jobs", "most": True}, "most"),
        ({"what": "running_jobs", "most": -1}, "most"),
        ({"what": "running_jobs", "most": 1.5}, "most"),
        ({"what": "running_jobs", "most": "4"}, "most"),
        ({"what": "running_jobs", "most": 10**30}, "most"),
        ({"what": "running_jobs"}, "most"),
        ({"what": "disk", "most": 1}, "what"),
        ({"what": "running_jobs", "most": 1, "member": "a\x00"}, "member"),
        ({"what": "running_jobs", "most": 1, "x": 1}, "x"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_at_its_field(vision, entry, path):
    answer = client(person("ada", "admin")).put(URL, {"version": vision.version, "entries": [entry]})

    assert answer.status_code == 400
    assert [fault["path"] for fault in answer.json()["errors"]] == [f"entries[0].{path}"]


def test_somebody_who_saved_meanwhile_is_a_409(vision):
    limit(vision, of("running_jobs", 1))
    answer = client(person("ada", "admin")).put(URL, {"version": 1, "entries": []})

    assert answer.status_code == 409
    assert answer.json()["errors"][0]["path"] == "version"

"""People, teams, quotas and tokens by REST."""

from datetime import timedelta

import pytest
from rest_framework.test import APIClient

from apps.core import clock
from apps.core.errors import Forbidden
from apps.teams import services
from apps.teams.models import Team, Token, User
from apps.teams.tests.builders import NOON, client, kind, own, person, team

pytestmark = pytest.mark.django_db
API = "/api/v1"


@pytest.fixture
def vision():
    return team("vision", H100=10)


def entry(name="H100", entitlement=10, **more):
    return {"accelerator_type": name, "entitlement": entitlement, **more}


def problem(response):
    assert response["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


def paths(response):
    assert response.status_code == 400, response.content
    return [fault["path"] for fault in response.json()["errors"]]


# Who I am


def test_me_says_what_i_may(vision):
    me = client(person("lea", "operator", leads=vision)).get(f"{API}/me").json()

    assert me["teams"] == [{"name": "vision", "role": "lead"}]
    assert (me["may_operate"], me["may_set_power"], me["is_admin"]) == (True, False, False)


# Tokens


def test_a_token_is_shown_once_and_opens_what_its_scopes_say():
    max_ = person("max")
    made = client(max_).post(f"{API}/tokens", {"name": "ci", "scopes": ["read"]}).json()
    reader = APIClient(headers={"Authorization": f"Bearer {made['secret']}"})

    assert reader.get(f"{API}/me").json()["username"] == "max"
    assert problem(reader.post(f"{API}/tokens", {"name": "more"})) == (403, "scope_missing")
    (listed,) = client(max_).get(f"{API}/tokens").json()["items"]
    assert "secret" not in listed
    assert made["secret"].startswith(listed["hint"])


def test_a_token_makes_none_that_outlives_it_or_may_do_more():
    max_, at = person("max"), clock.now()
    end = at + timedelta(hours=1)
    _, secret = services.create_token(user=max_, name="short", at=at, expires_at=end)
    short = APIClient(headers={"Authorization": f"Bearer {secret}"})

    assert short.post(f"{API}/tokens", {"name": "endless"}).status_code == 201
    assert Token.objects.get(name="endless").expires_at == end
    later = {"name": "later", "expires_at": (end + timedelta(seconds=1)).isoformat()}
    assert paths(short.post(f"{API}/tokens", later)) == ["expires_at"]
    sooner = {"name": "sooner", "expires_at": (end - timedelta(seconds=1)).isoformat()}
    assert short.post(f"{API}/tokens", sooner).status_code == 201
    assert client(max_).post(f"{API}/tokens", later).status_code == 201


def test_a_token_that_may_only_read_makes_no_tokens():
    max_ = person("max")
    reader, _ = services.create_token(user=max_, name="reader", scopes=["read"], at=NOON)
    with pytest.raises(Forbidden):
        services.create_token(user=max_, name="more", scopes=["read"], at=NOON, by=reader)


def test_a_revoked_token_opens_nothing():
    max_ = person("max")
    made = client(max_).post(f"{API}/tokens", {"name": "ci"}).json()
    assert client(max_).delete(f"{API}/tokens/{made['id']}").status_code == 204
    revoked = APIClient(headers={"Authorization": f"Bearer {made['secret']}"})

    assert problem(revoked.get(f"{API}/me")) == (401, "bad_token")
    assert client(max_).get(f"{API}/tokens").json()["items"] == []


def test_anothers_token_is_not_there():
    made = client(person("max")).post(f"{API}/tokens", {"name": "ci"}).json()
    sam = client(person("sam"))

    assert sam.get(f"{API}/tokens").json()["items"] == []
    assert problem(sam.delete(f"{API}/tokens/{made['id']}")) == (404, "not_found")
    assert problem(sam.delete(f"{API}/tokens/{2**70}")) == (404, "not_found")
    assert Token.objects.get().revoked_at is None


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "name"),
        ({"name": "ci", "scopes": ["admin"]}, "scopes[0]"),
        ({"name": "ci", "scopes": []}, "scopes"),
        ({"name": "ci", "scopes": ["write"]}, "scopes"),
        ({"name": "ci", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "ci", "expires_at": 5}, "expires_at"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused_at_its_field(body, path):
    assert paths(client(person("max")).post(f"{API}/tokens", body)) == [path]


# Teams


def test_teams_page_each_once(vision):
    for name in ("a", "b", "c"):
        team(name)
    asker, seen, cursor = client(person("max")), [], ""
    while cursor is not None:
        page = asker.get(f"{API}/teams", {"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [one["name"] for one in page["items"]]
        cursor = page["next"]

    assert seen == ["a", "b", "c", "vision"]


def test_sub_teams_are_found_by_their_parent(vision):
    team("train", vision)
    asker = client(person("max"))

    assert [one["name"] for one in asker.get(f"{API}/teams?parent=vision").json()["items"]] == ["train"]
    assert problem(asker.get(f"{API}/teams?parent=nobody")) == (404, "not_found")


def test_a_lead_makes_a_sub_team_and_nobody_else_does(vision):
    body = {"name": "train", "parent": "vision"}
    assert problem(client(person("max", member_of=vision)).post(f"{API}/teams", body)) == (403, "forbidden")
    assert problem(client(person("lea", leads=vision)).post(f"{API}/teams", {"name": "top"})) == (
        403,
        "forbidden",
    )
    assert client(person("lia", leads=vision)).post(f"{API}/teams", body).status_code == 201


@pytest.mark.parametrize("name", ["a/b", "..", "", " a", "a\x00", "x" * 121, 7, None, "\u202e"])
def test_a_name_that_could_not_be_an_address_is_refused(name):
    assert paths(client(person("ada", "admin")).post(f"{API}/teams", {"name": name})) == ["name"]


def test_a_team_is_changed_on_the_version_that_was_read(vision):
    admin = client(person("ada", "admin"))
    url = f"{API}/teams/vision"
    version = admin.get(url).json()["version"]
    assert admin.patch(url, {"version": version, "weight": 2.5}).json()["weight"] == 2.5
    late = admin.patch(url, {"version": version, "weight": 3.5})

    assert problem(late) == (409, "version_conflict")
    assert late.json()["facts"]["stored"]["weight"] == 2.5
    assert late.json()["facts"]["yours"]["weight"] == 3.5


def test_a_team_may_become_a_top_team_again(vision):
    train = team("train", vision)
    body = {"version": train.version, "parent": None}
    assert client(person("ada", "admin")).patch(f"{API}/teams/train", body).json()["parent"] is None


def test_a_team_with_sub_teams_stays(vision):
    team("train", vision)
    admin = client(person("ada", "admin"))

    assert problem(admin.delete(f"{API}/teams/vision")) == (409, "team_in_use")
    assert admin.delete(f"{API}/teams/train").status_code == 204


@pytest.mark.parametrize("name", ["nobody", "a%00b", "%F0%9F%92%A9", "%2e%2e"])
def test_a_team_that_is_not_there_is_a_404(name):
    assert client(person("max")).get(f"{API}/teams/{name}").status_code == 404


# Members


def test_a_lead_says_who_is_in_the_team(vision):
    lead = client(person("lea", leads=vision))
    person("max")
    assert lead.put(f"{API}/teams/vision/members/max", {"role": "member"}).json()["role"] == "member"
    listed = lead.get(f"{API}/teams/vision/members").json()["items"]
    assert [(one["username"], one["role"]) for one in listed] == [("lea", "lead"), ("max", "member")]
    assert lead.delete(f"{API}/teams/vision/members/max").status_code == 204


def test_a_stranger_can_not_try_out_names_of_people(vision):
    stranger = client(person("sam"))
    for name in ("sam", "nobody"):
        answer = stranger.put(f"{API}/teams/vision/members/{name}", {"role": "lead"})
        assert problem(answer) == (403, "forbidden")


# Quotas


def test_a_quota_is_read_with_what_was_kept_back(vision):
    team("train", vision, H100=6)
    quota = client(person("max")).get(f"{API}/teams/vision/quota").json()

    assert quota["entries"] == [
        {
            "accelerator_type": "H100",
            "entitlement": 10,
            "borrow_limit": None,
            "lend_limit": None,
            "given_to_sub_teams": 6,
            "kept_back": 4,
        }
    ]


def test_a_lead_sets_the_quota_of_a_sub_team(vision):
    team("train", vision)
    body = {"version": 1, "entries": [entry(entitlement=4, lend_limit=None, borrow_limit=0)], "reason": "Q2"}
    answer = client(person("lea", leads=vision)).put(f"{API}/teams/train/quota", body)

    assert (answer.status_code, answer.json()["version"]) == (200, 2)
    assert answer.json()["entries"][0]["borrow_limit"] == 0


def test_more_than_is_owned_is_a_409_with_the_numbers(vision):
    team("train", vision)
    body = {"version": 1, "entries": [entry(entitlement=11)]}
    answer = client(person("lea", leads=vision)).put(f"{API}/teams/train/quota", body)

    assert problem(answer) == (409, "more_than_owned")
    assert (answer.json()["facts"]["owned"], answer.json()["facts"]["given"]) == (10, 11)


@pytest.mark.parametrize(
    ("role", "status"), [("", 403), ("operator", 403), ("power_admin", 403), ("auditor", 403), ("admin", 200)]
)
def test_only_administrators_give_to_top_teams(vision, role, status):
    body = {"version": vision.version, "entries": [entry(entitlement=12)]}
    assert (
        client(person("max", role, leads=vision)).put(f"{API}/teams/vision/quota", body).status_code == status
    )


def test_two_leads_who_read_the_same_do_not_overwrite_each_other(vision):
    read = vision.version
    own(vision, H100=12)
    body = {"version": read, "entries": [entry(entitlement=14)]}
    answer = client(person("ada", "admin")).put(f"{API}/teams/vision/quota", body)

    assert problem(answer) == (409, "version_conflict")
    assert answer.json()["facts"]["stored"]["H100"]["entitlement"] == 12
    assert answer.json()["facts"]["yours"]["H100"]["entitlement"] == 14
    assert [(fault["path"], fault["code"]) for fault in answer.json()["errors"]] == [
        ("version", "version_conflict")
    ]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"entries": []}, "version"),
        ({"version": 1}, "entries"),
        ({"version": True, "entries": []}, "version"),
        ({"version": 2**40, "entries": []}, "version"),
        ({"version": 1, "entries": {}}, "entries"),
        ({"version": 1, "entries": [entry(entitlement=-1)]}, "entries[0].entitlement"),
        ({"version": 1, "entries": [entry(entitlement=4.0)]}, "entries[0].entitlement"),
        ({"version": 1, "entries": [entry(entitlement="4")]}, "entries[0].entitlement"),
        ({"version": 1, "entries": [entry(entitlement=10**30)]}, "entries[0].entitlement"),
        ({"version": 1, "entries": [entry(), entry()]}, "entries[1].accelerator_type"),
        ({"version": 1, "entries": [entry("B200")]}, "entries[0].accelerator_type"),
        ({"version": 1, "entries": [{**entry(), "x": 1}]}, "entries[0].x"),
        ({"version": 1, "entries": [], "why": ""}, "why"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused_at_its_field(vision, body, path):
    assert paths(client(person("ada", "admin")).put(f"{API}/teams/vision/quota", body)) == [path]


def test_a_body_that_is_not_json_is_refused(vision):
    admin = client(person("ada", "admin"))
    for text in ("[]", '{"a": 1, "a": 2}', "{", "[" * 10_000):
        answer = admin.put(f"{API}/teams/vision/quota", text, content_type="application/json")
        assert problem(answer) == (400, "bad_json")


# Doors and prices


@pytest.mark.parametrize(
    "path", ["me", "tokens", "teams", "teams/vision", "teams/vision/quota", "teams/vision/members"]
)
def test_nobody_gets_in_without_signing_in(path):
    assert client().get(f"{API}/{path}").status_code == 401


@pytest.mark.parametrize(
    ("path", "n_queries"),
    [("me", 1), ("tokens", 1), ("teams", 1), ("teams/vision/quota", 3), ("teams/vision/members", 2)],
)
def test_the_number_of_queries_does_not_grow(vision, path, n_queries, django_assert_num_queries):
    max_ = person("max", member_of=vision)
    asker = client(max_)
    for index in range(3):
        team(f"t{index}", vision, H100=1)
        person(f"p{index}", member_of=vision)
        asker.post(f"{API}/tokens", {"name": f"k{index}"})
        kind(f"K{index}")
    with django_assert_num_queries(n_queries):
        assert asker.get(f"{API}/{path}").status_code == 200


def test_the_same_key_makes_one_team():
    admin = client(person("ada", "admin"))
    answers = [
        admin.post(f"{API}/teams", {"name": "vision"}, headers={"Idempotency-Key": "k1"}) for _ in range(2)
    ]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert Team.objects.count() == 1


# People


def test_an_administrator_takes_people_in_and_shuts_them_out():
    admin = client(person("ada", "admin"))
    made = admin.post(
        f"{API}/users", {"username": "max", "full_name": "Max Muster", "password": "correct horse battery"}
    )
    assert made.status_code == 201, made.content
    token = services.create_token(user=User.objects.get(username="max"), name="ci", at=NOON)[1]
    max_ = APIClient(headers={"Authorization": f"Bearer {token}"})
    assert max_.get(f"{API}/me").json()["full_name"] == "Max Muster"
    admin.patch(f"{API}/users/max", {"is_active": False, "reason": "left"})

    assert max_.get(f"{API}/me").status_code == 401


def test_nobody_shuts_themselves_out():
    answer = client(person("ada", "admin")).patch(f"{API}/users/ada", {"is_active": False})
    assert paths(answer) == ["is_active"]


@pytest.mark.parametrize("role", ["", "operator", "power_admin"])
def test_people_are_listed_for_administrators_and_auditors_alone(role):
    assert client(person("max", role)).get(f"{API}/users").status_code == 403
    assert client(person("max2", role)).get(f"{API}/users/max").status_code == 403
    auditor = client(person("aud", "auditor"))
    assert auditor.get(f"{API}/users/max").json()["facility_role"] == role
    assert auditor.patch(f"{API}/users/max", {"facility_role": "admin"}).status_code == 403


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"username": "a b"}, "username"),
        ({"username": "x" * 121}, "username"),
        ({"username": "a\u200bb"}, "username"),
        ({"password": "password"}, "password"),
        ({"password": "max"}, "password"),
        ({"facility_role": "king"}, "facility_role"),
        ({"is_superuser": True}, "is_superuser"),
    ],
)
def test_a_person_that_makes_no_sense_is_refused_at_the_field(more, path):
    assert paths(client(person("ada", "admin")).post(f"{API}/users", {"username": "max", **more})) == [path]

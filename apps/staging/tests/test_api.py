"""Data sets by REST."""

import pytest

from apps.inventory.tests.builders import domain
from apps.staging.models import Transfer
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/datasets"
BODY = {"name": "imagenet", "size_gib": 150, "at": ["s1"]}


@pytest.fixture
def operator():
    for name in ("s1", "s2"):
        domain(name, "storage")
    return client(person("olga", "operator"))


def test_a_data_set_is_named_moved_and_forgotten(operator):
    assert operator.post(URL, BODY).json() == {
        "name": "imagenet",
        "size_gib": 150.0,
        "at": ["s1"],
        "under_way": [],
    }
    assert operator.patch(f"{URL}/imagenet", {"at": ["s1", "s2"]}).json()["at"] == ["s1", "s2"]
    assert client(person("max")).get(URL).json()["items"][0]["at"] == ["s1", "s2"]
    assert operator.delete(f"{URL}/imagenet").status_code == 204
    assert operator.get(f"{URL}/imagenet").status_code == 404


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"size_gib": -1}, "size_gib"),
        ({"at": ["s9"]}, "at[0]"),
        ({"at": ["s1", "s1"]}, "at[1]"),
        ({"x": 1}, "x"),
    ],
)
def test_a_data_set_that_makes_no_sense_is_refused_at_its_field(operator, more, path):
    answer = operator.post(URL, {**BODY, **more})
    assert (answer.status_code, [fault["path"] for fault in answer.json()["errors"]]) == (400, [path])


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_who_may_see_it_may_not_change_it(operator, role):
    operator.post(URL, BODY)
    asker = client(person("max", role))

    assert asker.get(f"{URL}/imagenet").status_code == 200
    assert asker.post(URL, {**BODY, "name": "x"}).status_code == 403
    assert asker.patch(f"{URL}/imagenet", {"at": []}).status_code == 403
    assert asker.delete(f"{URL}/imagenet").status_code == 403
    assert client().get(URL).status_code == 401


def test_the_number_of_queries_does_not_grow(operator, django_assert_num_queries):
    for index in range(4):
        operator.post(URL, {**BODY, "name": f"d{index}"})
    with django_assert_num_queries(3):
        assert len(operator.get(URL).json()["items"]) == 4


# Stores and transfers --------------------------------------------------------------------------------------------

STORES = "/api/v1/stores"
TRANSFERS = "/api/v1/transfers"


@pytest.fixture
def base(settings, tmp_path):
    settings.SWITCHYARD_STORE_ROOTS = [str(tmp_path), "s3://sets"]
    return str(tmp_path)


def test_a_store_is_named_changed_and_forgotten(operator, base):
    body = {"domain": "s1", "base_uri": base, "rate_gib_per_s": 2}
    made = operator.post(STORES, body)
    whole = body | {"rate_gib_per_s": 2.0, "profile": None, "most_gib_per_s": None, "is_simulated": False}
    assert (made.status_code, made.json()) == (201, whole)
    changes = {"base_uri": "s3://sets/a", "profile": "ours", "most_gib_per_s": 1.5}
    assert operator.patch(f"{STORES}/s1", changes).json() == whole | changes
    assert operator.patch(f"{STORES}/s1", {"most_gib_per_s": None}).json()["most_gib_per_s"] is None
    assert [row["domain"] for row in operator.get(STORES).json()["items"]] == ["s1"]
    assert operator.delete(f"{STORES}/s1").status_code == 204
    assert operator.get(f"{STORES}/s1").status_code == 404


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"domain": "s9"}, "domain"),
        ({"base_uri": "/etc"}, "base_uri"),
        ({"base_uri": "s3://key:secret@sets/a"}, "base_uri"),
        ({"base_uri": 5}, "base_uri"),
        ({"rate_gib_per_s": 0}, "rate_gib_per_s"),
        ({"most_gib_per_s": -1}, "most_gib_per_s"),
        ({"profile": "../x"}, "profile"),
        ({"secret_key": "x"}, "secret_key"),
        ({"is_simulated": True}, "base_uri"),
    ],
)
def test_a_store_that_makes_no_sense_is_refused_at_its_field(operator, base, more, path):
    answer = operator.post(STORES, {"domain": "s1", "base_uri": base, "rate_gib_per_s": 2, **more})
    assert (answer.status_code, [fault["path"] for fault in answer.json()["errors"]]) == (400, [path])


def test_a_second_store_of_a_domain_is_a_conflict(operator, base):
    body = {"domain": "s1", "base_uri": base, "rate_gib_per_s": 2}
    operator.post(STORES, body)
    answer = operator.post(STORES, body)
    assert (answer.status_code, answer.json()["code"]) == (409, "store_exists")


def test_a_store_is_somewhere_however_it_is_changed(operator, base):
    operator.post(STORES, {"domain": "s1", "base_uri": base, "rate_gib_per_s": 2})
    answer = operator.patch(f"{STORES}/s1", {"base_uri": None})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "base_uri")
    simulated = operator.patch(f"{STORES}/s1", {"base_uri": None, "is_simulated": True})
    assert simulated.json()["is_simulated"]


def brought(operator, base):
    for name in ("s1", "s2"):
        operator.post(STORES, {"domain": name, "base_uri": f"{base}/{name}", "rate_gib_per_s": 2})
    operator.post(URL, BODY)
    return operator.post(TRANSFERS, {"dataset": "imagenet", "to": "s2"}).json()


def test_a_person_brings_data_and_sees_how_it_fares(operator, base):
    made = brought(operator, base)
    assert (made["state"], made["to"], made["for_job"]) == ("waiting", "s2", None)
    again = operator.post(TRANSFERS, {"dataset": "imagenet", "to": "s2"})
    assert (again.status_code, again.json()["id"]) == (201, made["id"])
    under_way = operator.get(f"{URL}/imagenet").json()["under_way"]
    assert [(row["transfer"], row["to"]) for row in under_way] == [(made["id"], "s2")]
    assert [row["id"] for row in operator.get(f"{TRANSFERS}?open=true").json()["items"]] == [made["id"]]
    assert operator.get(f"{TRANSFERS}?dataset=other").json()["items"] == []
    assert operator.get(f"{TRANSFERS}?open=yes").status_code == 400


def test_a_transfer_is_cancelled(operator, base):
    made = brought(operator, base)
    answer = operator.post(f"{TRANSFERS}/{made['id']}/cancel", {})
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({"dataset": "imagenet", "to": "s9"}, 400, "to"),
        ({"dataset": "nothing", "to": "s2"}, 400, "dataset"),
        ({"dataset": "imagenet"}, 400, "to"),
        ({"dataset": "imagenet", "to": "s1"}, 409, "dataset_in_use"),
        ({"dataset": "imagenet", "to": "s2"}, 409, "no_route"),  # there is no store
    ],
)
def test_what_cannot_be_brought_is_refused(operator, body, status, where):
    operator.post(URL, BODY)
    answer = operator.post(TRANSFERS, body)
    said = answer.json()
    assert (answer.status_code, said["errors"][0]["path"] if status == 400 else said["code"]) == (
        status,
        where,
    )


def test_folders_and_what_programs_said_are_for_those_who_look_after_the_building(operator, base):
    made = brought(operator, base)
    Transfer.objects.update(
        mover="rsync", attempts=1, target_uri=f"{base}/s2/imagenet", last_error=f"{base} is full"
    )

    for role, sees in (("", False), ("power_admin", False), ("auditor", True), ("operator", True)):
        asker = client(person(f"p-{role}", role))
        for address in (f"{TRANSFERS}/{made['id']}", TRANSFERS, STORES, f"{STORES}/s1", f"{URL}/imagenet"):
            answer = asker.get(address)
            assert answer.status_code == 200
            assert sees or base not in answer.content.decode()
        assert (base in asker.get(TRANSFERS).content.decode()) == sees


@pytest.mark.parametrize("role", ["", "power_admin", "auditor"])
def test_who_may_see_stores_and_transfers_may_not_change_them(operator, base, role):
    made = brought(operator, base)
    asker = client(person("max", role))

    assert asker.post(STORES, {"domain": "s1", "rate_gib_per_s": 1}).status_code == 403
    assert asker.patch(f"{STORES}/s1", {"rate_gib_per_s": 1}).status_code == 403
    assert asker.delete(f"{STORES}/s1").status_code == 403
    assert asker.post(TRANSFERS, {"dataset": "imagenet", "to": "s2"}).status_code == 403
    assert asker.post(f"{TRANSFERS}/{made['id']}/cancel", {}).status_code == 403
    assert client().get(TRANSFERS).status_code == client().get(STORES).status_code == 401


def test_numbers_and_names_that_nothing_has_are_not_found(operator):
    for address in (f"{TRANSFERS}/1", f"{TRANSFERS}/{2**63}", f"{STORES}/s1", f"{STORES}/%00"):
        assert operator.get(address).status_code == 404


def test_lists_of_stores_and_transfers_ask_once(operator, base, django_assert_num_queries):
    brought(operator, base)
    for address in (STORES, TRANSFERS):
        with django_assert_num_queries(1):
            assert operator.get(address).json()["items"]

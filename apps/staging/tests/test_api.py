"""Data sets by REST."""

import pytest

from apps.inventory.tests.builders import domain
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

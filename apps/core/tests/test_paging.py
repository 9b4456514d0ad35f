"""Lists by keyset, over the one table that has no other meaning here: people."""

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from apps.core.api.paging import MOST, order_of, page, refuse_unknown_parameters
from apps.core.errors import InvalidInput

ORDER = ("-date_joined", "id")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def asks(**parameters):
    return Request(APIRequestFactory().get("/", parameters))


def people(n):
    users = [
        # Two share each instant, so that the second field of the order has something to say.
        get_user_model()(username=f"user-{i}", date_joined=EPOCH + timedelta(hours=i // 2))
        for i in range(n)
    ]
    return get_user_model().objects.bulk_create(users)


def walk(limit, meanwhile=lambda: None, order=ORDER):
    names, cursor = [], None
    while True:
        parameters = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        answer = page(
            get_user_model().objects.all(), asks(**parameters), order=order, render=lambda user: user.username
        )
        names += answer["items"]
        cursor = answer["next"]
        if cursor is None:
            return names
        meanwhile()


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
def test_pages_put_together_are_the_list(limit):
    people(7)
    wanted = [user.username for user in get_user_model().objects.order_by(*ORDER)]

    assert walk(limit) == wanted


def test_a_row_comes_once_while_others_come_and_go():
    people(9)
    n_new = iter(range(100))

    def meanwhile():
        get_user_model().objects.create(username=f"new-{next(n_new)}", date_joined=EPOCH + timedelta(days=9))
        get_user_model().objects.order_by(*ORDER).first().delete()

    names = walk(2, meanwhile)

    assert len(set(names)) == len(names)
    assert {f"user-{i}" for i in range(9)} <= set(names)


@pytest.mark.parametrize("text", ["0", "-1", "1001", "1e2", "2.0", "", " 5", "٣", "99999999999"])
def test_a_limit_outside_its_range_is_refused(text):
    with pytest.raises(InvalidInput, match="limit"):
        page(get_user_model().objects.all(), asks(limit=text), order=ORDER)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.text(max_size=40) | st.lists(st.none() | st.integers() | st.floats() | st.text(max_size=5), max_size=3)
)
def test_a_made_up_cursor_is_refused_or_harmless(made_up):
    if isinstance(made_up, list):
        made_up = base64.urlsafe_b64encode(json.dumps([list(ORDER), made_up]).encode()).decode()
    # Anything but a refusal, a database error above all, fails the test.
    with suppress(InvalidInput):
        page(get_user_model().objects.all(), asks(cursor=made_up), order=ORDER, render=str)


def test_a_cursor_of_another_order_is_refused():
    people(3)
    cursor = page(get_user_model().objects.all(), asks(limit=1), order=ORDER, render=str)["next"]

    with pytest.raises(InvalidInput, match="cursor"):
        page(get_user_model().objects.all(), asks(cursor=cursor), order=("username", "id"))


def test_a_misspelt_filter_is_refused():
    with pytest.raises(InvalidInput, match="sate"):
        refuse_unknown_parameters(asks(sate="queued", limit=MOST), "state")


def test_an_unknown_order_is_refused():
    with pytest.raises(InvalidInput, match="order"):
        order_of(asks(order="password"), {"newest": ORDER}, "newest")

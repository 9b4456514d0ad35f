"""The same key gets the same answer."""

import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory

from apps.core.api.idempotency import KeyReused, answer_once
from apps.core.errors import DomainError, InvalidInput

pytestmark = pytest.mark.django_db


@pytest.fixture
def user(db):
    return get_user_model().objects.create(username="ada")


def post(user, body, key="k1"):
    headers = {} if key is None else {"Idempotency-Key": key}
    request = Request(
        APIRequestFactory().post("/api/v1/x", body, format="json", headers=headers), parsers=[JSONParser()]
    )
    request.user = user
    return request


class Counted:
    """Answers with how often it was called."""

    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1
        return Response({"n": self.n}, status=201)


def test_the_second_request_gets_the_first_answer(user):
    act = Counted()
    answers = [answer_once(post(user, {"a": 1}), act) for _ in range(3)]

    assert [(answer.status_code, answer.data) for answer in answers] == [(201, {"n": 1})] * 3
    assert act.n == 1


def test_without_a_key_each_request_is_new(user):
    act = Counted()
    for _ in range(2):
        answer_once(post(user, {"a": 1}, key=None), act)

    assert act.n == 2


def test_a_key_used_for_another_body_is_refused(user):
    answer_once(post(user, {"a": 1}), Counted())

    with pytest.raises(KeyReused):
        answer_once(post(user, {"a": 2}), Counted())


def test_a_key_is_one_persons_own(user):
    other = get_user_model().objects.create(username="bob")
    act = Counted()
    answer_once(post(user, {"a": 1}), act)

    assert answer_once(post(other, {"a": 1}), act).data == {"n": 2}


def test_a_refusal_keeps_nothing_so_that_it_can_be_tried_again(user):
    def refuse():
        raise DomainError("not now")

    with pytest.raises(DomainError):
        answer_once(post(user, {"a": 1}), refuse)

    assert answer_once(post(user, {"a": 1}), Counted()).data == {"n": 1}


@pytest.mark.parametrize("key", ["", "x" * 256, "a\x7fb"])
def test_a_key_that_is_none_is_refused(user, key):
    with pytest.raises(InvalidInput):
        answer_once(post(user, {}, key=key), Counted())


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_acts(user):
    act, answers = Counted(), []

    def ask():
        answers.append(answer_once(post(user, {"a": 1}), act).data)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [{"n": 1}] * 8
    assert act.n == 1

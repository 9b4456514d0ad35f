"""How often somebody may try."""

from datetime import timedelta

import pytest
from django.test import Client
from rest_framework.test import APIClient

from apps.core.api import authentication
from apps.scheduling.api import views as scheduling_views
from apps.teams import services, throttles
from apps.teams.models import Tally, User
from apps.teams.tests.builders import NOON, client, person, team

pytestmark = pytest.mark.django_db
SIGN_IN = "/accounts/login/"
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def no_memory():
    authentication._waits_until.clear()
    yield
    authentication._waits_until.clear()


def tried(username="ada", address="203.0.113.5", device="", *, at=NOON):
    return throttles.SignIn(username=username, address=address, device=device).begin(at=at)


def sign_in(browser, username="ada", password="wrong", address="203.0.113.5"):
    return browser.post(SIGN_IN, {"username": username, "password": password}, REMOTE_ADDR=address)


# Signing in


def test_after_some_failures_each_wait_is_twice_the_one_before():
    at, waits = NOON, []
    for _ in range(8):
        wait_s = tried(at=at)
        waits.append(wait_s)
        at += timedelta(seconds=wait_s)
        if wait_s:
            assert tried(at=at) == 0.0

    assert waits == [0.0] * 5 + [5.0, 10.0, 20.0]


def test_a_wait_is_no_longer_than_the_longest_and_a_refused_attempt_does_not_lengthen_it():
    at = NOON
    waits = []
    for _ in range(30):
        waits.append(tried(at=at))
        at += timedelta(seconds=waits[-1])
    tried(at=at)

    assert max(waits) == 900
    assert tried(at=at) == tried(at=at) > 0


def test_failures_are_forgotten_after_an_hour():
    for _ in range(5):
        tried()

    assert tried() > 0
    assert tried(at=NOON + timedelta(hours=1, seconds=1)) == 0.0


def test_nobody_is_kept_out_for_more_than_a_minute_by_what_others_fail():
    for number in range(200):
        tried(f"user-{number}", at=NOON)
    for number in range(200):
        tried("ada", f"198.51.100.{number}", at=NOON)

    assert 0 < tried("bob", at=NOON) <= 60
    assert 0 < tried("ada", "192.0.2.1", at=NOON) <= 60


def test_a_browser_that_signed_in_before_gets_in_while_others_guess():
    device = throttles.SignIn(username="ada", address="203.0.113.5").device_of()
    for number in range(200):
        tried("ada", f"198.51.100.{number}")

    assert tried("ada") > 0
    assert tried("ada", device=device) == 0.0
    assert tried("bob", "198.51.100.1", device=device) == 0.0
    assert tried("ada", device=device[:-1] + "x") > 0


def test_one_network_of_ipv6_is_one_address():
    for number in range(5):
        tried("ada", f"2001:db8::{number + 1}")

    assert tried("ada", "2001:db8::ffff") > 0
    assert tried("ada", "2001:db8:0:1::1") == 0.0


def test_what_was_typed_as_a_name_is_not_kept():
    tried("my password")

    assert [row for row in Tally.objects.values() if "my password" in str(row)] == []


def test_the_page_says_how_long_to_wait_and_whether_the_account_exists_makes_no_difference():
    User.objects.create_user(username="ada", password=PASSWORD)
    answers = {
        name: [sign_in(Client(), name, address=f"203.0.113.{number}") for _ in range(7)]
        for number, name in enumerate(["ada", "nobody"])
    }

    statuses = {name: [answer.status_code for answer in found] for name, found in answers.items()}
    assert statuses["ada"] == statuses["nobody"] == [200] * 5 + [429] * 2
    assert b"Try again in 5 seconds." in answers["ada"][-1].content
    assert answers["ada"][-1].headers["Retry-After"] == "5"


def test_the_right_password_waits_too_and_then_begins_anew():
    User.objects.create_user(username="ada", password=PASSWORD)
    for _ in range(5):
        sign_in(Client())
    assert sign_in(Client(), password=PASSWORD).status_code == 429

    Tally.objects.update(last_at=NOON)
    browser = Client()
    assert sign_in(browser, password=PASSWORD).status_code == 302
    browser.post("/accounts/logout/")
    assert [sign_in(browser).status_code for _ in range(5)] == [200] * 5


# Wrong tokens


def test_many_wrong_tokens_from_an_address_are_told_to_wait_and_a_good_one_is_let_in(settings):
    settings.SWITCHYARD_WRONG_TOKENS_PER_MINUTE = 3
    _, secret = services.create_token(user=person("max"), name="ci", at=NOON)
    wrong = APIClient(headers={"Authorization": "Bearer sy_wrong"})
    good = APIClient(headers={"Authorization": f"Bearer {secret}"})

    answers = [wrong.get("/api/v1/me") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 2
    assert (answers[-1].data["code"], int(answers[-1].headers["Retry-After"]) > 0) == ("throttled", True)
    assert good.get("/api/v1/me").status_code == 200
    assert wrong.get("/api/v1/me", REMOTE_ADDR="198.51.100.1").status_code == 401


# Previews


def test_one_person_makes_so_many_previews_a_minute(settings, monkeypatch):
    settings.SWITCHYARD_PREVIEWS_PER_MINUTE = 2
    monkeypatch.setattr(scheduling_views.services, "preview", lambda **_: None)
    monkeypatch.setattr(
        scheduling_views.bodies.PreviewOut,
        "of",
        lambda _: scheduling_views.bodies.PreviewOut.model_construct(),
    )
    ours = team("ours")
    max_, sam = client(person("max", member_of=ours)), client(person("sam", member_of=ours))
    body = {"name": "x", "team": "ours", "command": ["true"]}
    answers = [max_.post("/api/v1/jobs/preview", body).status_code for _ in range(3)]

    assert answers == [200, 200, 429]
    assert sam.post("/api/v1/jobs/preview", body).status_code == 200


def test_a_window_begins_anew_after_its_time():
    def take(seconds):
        return throttles.take("x", 1, most=1, per_s=60.0, at=NOON + timedelta(seconds=seconds))

    assert (take(0), take(20), take(61), take(62)) == (0.0, 40.0, 0.0, 59.0)


def test_no_limit_is_no_limit():
    assert [throttles.take("x", 1, most=0, per_s=60.0, at=NOON) for _ in range(3)] == [0.0] * 3


def test_what_counts_no_more_is_deleted():
    tried(at=NOON)
    throttles.prune(at=NOON + timedelta(hours=2))
    assert Tally.objects.exists()
    throttles.prune(at=NOON + timedelta(days=2))
    assert not Tally.objects.exists()

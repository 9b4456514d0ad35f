"""The VEN against a VTN that speaks HTTP, both versions: what both promise, and what a bad one may do."""

import logging
import time

import pytest

from apps.core.errors import InvalidInput
from apps.power.openadr.client import (
    BadAnswer,
    ListingIncomplete,
    NotAuthorised,
    Settings,
    Ven,
    VtnBusy,
    VtnError,
    VtnRefused,
    VtnUnreachable,
)
from apps.power.openadr.tests.builders import event
from apps.power.openadr.tests.vtn import CLIENT_ID, SECRET, FakeVtn, trickle
from apps.power.openadr.wire import Version


@pytest.fixture(params=["3.0.1", "3.1.0"])
def vtn(request):
    with FakeVtn(request.param) as made:
        yield made


@pytest.fixture
def ven(vtn):
    with Ven(settings(vtn)) as made:
        yield made


def settings(vtn, **changes):
    usual = {
        "vtn_url": vtn.url,
        "client_id": CLIENT_ID,
        "client_secret": SECRET,
        "ven_name": "hall",
        "resource_names": ("row-1", "row-2"),
        "version": Version(vtn.version),
        "timeout_s": 5.0,
    }
    return Settings(**{**usual, **changes})


def report(vtn, name="r1"):
    body = {"eventID": "e1", "clientName": "hall", "reportName": name, "resources": []}
    return body if vtn.is_3_1 else {"programID": "p1", **body}


# What both versions promise.


def test_programmes_are_listed(vtn, ven):
    vtn.programs = [{"id": "p1", "programName": "Shed"}]

    assert ven.programs() == vtn.programs


@pytest.mark.parametrize("n", [0, 1, 49, 50, 51, 120])
@pytest.mark.parametrize("page", [50, 7])
def test_a_listing_is_whole_whatever_the_size_of_its_pages(vtn, ven, n, page):
    vtn.page = page
    vtn.events = [event(f"e{i}") for i in range(n)]

    assert ven.events() == vtn.events
    assert all(int(query["limit"]) <= 50 for _, path, query in vtn.asked if path == "/events")


def test_a_listing_has_the_programmes_asked_for(vtn):
    vtn.events = [event("e1"), event("e2", programID="p2"), event("e3", programID="p3")]
    with Ven(settings(vtn, program_ids=("p1", "p3"))) as ven:
        listing = ven.listing()

    assert [each["id"] for each in listing.events] == ["e1", "e3"]
    assert listing.program_ids == ("p1", "p3")


def test_active_is_asked_of_3_1_only(vtn, ven):
    ven.events("p1", active=True)

    _, _, query = next(asked for asked in vtn.asked if asked[1] == "/events")
    assert query.get("active") == ("true" if vtn.is_3_1 else None)


def test_registering_twice_makes_one(vtn, ven):
    first = ven.register()
    second = ven.register()

    assert first == second
    assert len(vtn.vens) == 1
    assert [each["resourceName"] for each in vtn.resources] == ["row-1", "row-2"]
    assert set(first.resource_ids) == {"row-1", "row-2"}


def test_a_ven_that_another_process_registers_meanwhile_is_found(vtn, ven):
    made = vtn.made("VEN", {"venName": "hall"})

    def come_between():
        if not vtn.vens:
            vtn.vens.append(made)

    vtn.after_page = come_between

    assert ven.register().ven_id == made["id"]


def test_a_report_is_sent_and_replaced(vtn, ven):
    first = ven.send_report(report(vtn))
    again = ven.send_report(report(vtn))
    by_id = ven.send_report(report(vtn, "r1"), first)

    assert first == again == by_id
    assert len(vtn.reports) == 1


def test_a_report_that_is_gone_is_sent_anew(vtn, ven):
    assert ven.send_report(report(vtn), "report-99") == vtn.reports[0]["id"]


# Tokens.


def test_one_token_serves_many_questions(vtn, ven):
    for _ in range(3):
        ven.programs()

    assert vtn.n_granted == 1


def test_a_token_that_ran_out_is_renewed_before_it_is_used(vtn, ven):
    vtn.token_lasts_s = 0
    ven.programs()
    ven.programs()

    assert vtn.n_granted >= 2


def test_a_token_that_is_revoked_is_renewed_once(vtn, ven):
    ven.programs()
    vtn.tokens.clear()

    assert ven.programs() == []
    assert vtn.n_granted == 2


def test_a_fresh_token_that_is_not_good_enough_is_an_error(vtn, ven):
    vtn.misbehave["/programs"] = lambda handler: handler.problem(401, "Token is not valid")

    with pytest.raises(NotAuthorised) as caught:
        ven.programs()

    assert (caught.value.title, caught.value.status, caught.value.permanent) == (
        "Token is not valid",
        401,
        True,
    )
    assert vtn.n_asked("GET", "/programs") == 2


def test_a_wrong_secret_is_refused_by_name(vtn):
    with Ven(settings(vtn, client_secret="wrong")) as ven, pytest.raises(NotAuthorised) as caught:
        ven.programs()

    assert caught.value.title == "invalid_client"


def test_the_place_of_tokens_may_be_set(vtn):
    with Ven(settings(vtn, token_url=f"{vtn.url}/auth/token")) as ven:
        ven.programs()

    assert vtn.n_asked("GET", "/auth/server") == 0


@pytest.mark.parametrize(
    "url", ["http://tokens.example/", "ftp://127.0.0.1/", "https://u:p@tokens.example/", 7]
)
def test_a_secret_goes_to_no_unsafe_place(url):
    with FakeVtn("3.1.0") as vtn, Ven(settings(vtn)) as ven:
        vtn.misbehave["/auth/server"] = lambda handler: handler.say(200, {"tokenURL": url})
        with pytest.raises(BadAnswer):
            ven.programs()


@pytest.mark.parametrize(
    "granted",
    [
        {},
        [],
        {"access_token": "", "token_type": "Bearer"},
        {"access_token": "a\r\nX: y", "token_type": "Bearer"},
        {"access_token": "t", "token_type": "mac"},
    ],
    ids=str,
)
def test_what_is_no_token_is_not_used(vtn, ven, granted):
    vtn.misbehave["/auth/token"] = lambda handler: handler.say(200, granted)

    with pytest.raises(BadAnswer):
        ven.programs()


def test_neither_secret_nor_token_is_told(vtn, ven, caplog):
    caplog.set_level(logging.DEBUG)
    ven.programs()
    vtn.misbehave["/programs"] = lambda handler: handler.problem(
        500, f"{SECRET} and {handler.headers['Authorization']}"
    )

    with pytest.raises(VtnBusy) as caught:
        ven.programs()

    told = " ".join([str(caught.value), caught.value.title, repr(ven), repr(settings(vtn)), caplog.text])
    assert SECRET not in told
    assert "token-1" not in told
    assert caught.value.__cause__ is None


# A bad VTN.


def test_a_problem_is_told_by_its_title(vtn, ven):
    vtn.misbehave["/events"] = lambda handler: handler.problem(400, "programID is unknown")

    with pytest.raises(VtnRefused, match="programID is unknown") as caught:
        ven.events("p9")

    assert caught.value.permanent


@pytest.mark.parametrize(
    ("status", "wait", "after_s"),
    [(500, None, None), (503, "30", 30.0), (429, "9999999", 3600.0), (502, "soon", None)],
)
def test_a_busy_vtn_may_be_asked_later(vtn, ven, status, wait, after_s):
    headers = {"Retry-After": wait} if wait else {}
    vtn.misbehave["/events"] = lambda handler: handler.say(status, b"<html>", headers=headers)

    with pytest.raises(VtnBusy) as caught:
        ven.events()

    assert (caught.value.permanent, caught.value.retry_after_s) == (False, after_s)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{",
        b'{"events": []}',
        b"7",
        b"\xff\xfe",
        b"[NaN]",
        b"[" * 200_000,
        b"[" + b"9" * 6000 + b"]",
    ],
    ids=lambda body: repr(body[:8]),
)
def test_a_garbled_answer_is_no_listing(vtn, ven, body):
    vtn.misbehave["/events"] = lambda handler: handler.say(200, body)

    with pytest.raises(BadAnswer):
        ven.events()


def test_an_answer_may_not_be_huge(vtn):
    vtn.misbehave["/events"] = lambda handler: handler.say(200, b" " * 300_000)

    with Ven(settings(vtn, max_bytes=100_000)) as ven, pytest.raises(BadAnswer, match="larger than 100000"):
        ven.events()


def test_an_answer_may_not_be_packed(vtn, ven):
    vtn.misbehave["/events"] = lambda handler: handler.say(200, b"...", headers={"Content-Encoding": "gzip"})

    with pytest.raises(BadAnswer, match="packed"):
        ven.events()


def test_a_silent_vtn_is_given_up(vtn):
    with Ven(settings(vtn, timeout_s=0.2)) as ven:
        ven.programs()
        vtn.misbehave["/events"] = lambda handler: time.sleep(0.6) or True
        with pytest.raises(VtnUnreachable):
            ven.events()


def test_a_trickling_vtn_is_given_up(vtn):
    with Ven(settings(vtn, timeout_s=0.3)) as ven:
        vtn.misbehave["/events"] = trickle
        began = time.monotonic()
        with pytest.raises(VtnUnreachable):
            ven.events()

    assert time.monotonic() - began < 2


def test_a_vtn_that_is_away_is_unreachable():
    with FakeVtn("3.0.1") as gone:
        known = settings(gone)
    with Ven(known) as ven, pytest.raises(VtnUnreachable) as caught:
        ven.programs()

    assert not caught.value.permanent


def test_a_redirect_is_not_followed(vtn, ven):
    elsewhere = {"Location": f"{vtn.url}/programs"}
    vtn.misbehave["/events"] = lambda handler: handler.say(307, b"", headers=elsewhere)

    with pytest.raises(BadAnswer, match="elsewhere"):
        ven.events()

    assert vtn.n_asked("GET", "/programs") == 0


def test_a_listing_that_moves_once_is_read_again(vtn, ven):
    vtn.events = [event(f"e{i}") for i in range(60)]

    def delete_the_first():
        if len(vtn.events) == 60:
            del vtn.events[0]

    vtn.after_page = delete_the_first

    assert [each["id"] for each in ven.events()] == [f"e{i}" for i in range(1, 60)]


def test_a_listing_that_always_moves_is_an_error(vtn, ven):
    vtn.events = [event(f"e{i}") for i in range(600)]
    vtn.after_page = lambda: vtn.events.pop(0)

    with pytest.raises(ListingIncomplete):
        ven.events()


def test_a_failure_on_a_later_page_is_no_shorter_listing(vtn, ven):
    vtn.events = [event(f"e{i}") for i in range(60)]
    vtn.misbehave["/events"] = lambda handler: "skip=0" not in handler.path and handler.problem(500, "Oops")

    with pytest.raises(VtnError):
        ven.events()


def test_a_listing_without_an_end_is_an_error(vtn, ven, monkeypatch):
    monkeypatch.setattr("apps.power.openadr.client.MAX_PAGES", 3)
    vtn.events = [event(f"e{i}") for i in range(200)]

    with pytest.raises(ListingIncomplete, match="more than 3 pages"):
        ven.events()


@pytest.mark.parametrize("name", ["../programs", "", None, 7, "a b"], ids=repr)
def test_an_id_that_would_change_a_path_is_not_used(vtn, ven, name):
    vtn.misbehave["/vens"] = lambda handler: handler.say(200, [{"id": name, "venName": "hall"}])

    with pytest.raises(BadAnswer):
        ven.register()


# Settings.


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"vtn_url": "http://vtn.example/3.1.0"}, "vtn_url"),
        ({"vtn_url": "vtn.example"}, "vtn_url"),
        ({"vtn_url": "https://user:word@vtn.example"}, "vtn_url"),
        ({"vtn_url": "https://vtn.example/?a=b"}, "vtn_url"),
        ({"vtn_url": "https://vtn.example:port"}, "vtn_url"),
        ({"token_url": "http://tokens.example"}, "token_url"),
        ({"client_id": ""}, "client_id"),
        ({"client_secret": ""}, "client_secret"),
        ({"ven_name": ""}, "ven_name"),
        ({"resource_names": ("x" * 129,)}, "resource_names"),
        ({"program_ids": ("a/b",)}, "program_ids"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"version": "2.0b"}, "version"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, path):
    usual = {
        "vtn_url": "https://vtn.example/3.1.0",
        "client_id": "c",
        "client_secret": "s",
        "ven_name": "hall",
    }

    with pytest.raises(InvalidInput) as caught:
        Settings(**{**usual, **changes})

    assert caught.value.errors[0]["path"] == path

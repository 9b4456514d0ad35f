"""Requests for more: who asks, who answers, and that a grant is a change of the quota like any other."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core.errors import InvalidInput
from apps.dashboard.tests.facility import signed_in
from apps.events.models import Event
from apps.inventory.models import AcceleratorType
from apps.notices.collecting import collect
from apps.notices.models import Notice
from apps.teams import loans, requests, services
from apps.teams.errors import MoreThanOwned, NotYourTeam, RequestIsAnswered
from apps.teams.models import MemberRole, Quota, QuotaRequest, RequestState
from apps.teams.tests.builders import NOON, person

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene():
    kind = AcceleratorType.objects.create(name="H100", memory_gib=80, tdp_w=700, idle_w=70)
    admin = person("ada", "admin")
    top = services.create_team(name="Vision", actor=admin, at=NOON)
    sub = services.create_team(name="pretraining", parent=top, actor=admin, at=NOON)
    leads = {}
    for name, team in (("vera", top), ("rosa", sub)):
        leads[name] = person(name)
        services.set_member(team_id=team.pk, user=leads[name], role=MemberRole.LEAD, actor=admin, at=NOON)
    for team, n in ((top, 16), (sub, 8)):
        team.refresh_from_db()
        services.set_quota(
            team=team,
            entries=[services.QuotaEntry("H100", n, 4, 2)],
            actor=admin,
            at=NOON,
            version=team.version,
        )
    return {"kind": kind, "admin": admin, "top": top, "sub": sub, **leads}


def ask(scene, n=4, *, by="rosa", team="sub", reason="release week"):
    return requests.ask_for_more(
        team=scene[team], accelerator_type="H100", n_devices=n, reason=reason, actor=scene[by], at=NOON
    )


def test_a_grant_raises_the_entitlement_and_leaves_the_rest_of_the_quota(scene):
    made = ask(scene)
    requests.answer_request(request_id=made.pk, grant=True, actor=scene["vera"], at=NOON)
    quota = Quota.objects.get(team=scene["sub"])
    assert (quota.entitlement, quota.borrow_limit, quota.lend_limit) == (12, 4, 2)
    assert QuotaRequest.objects.get().state == RequestState.GRANTED
    kinds = list(
        Event.objects.filter(kind__startswith="quota.").order_by("id").values_list("kind", flat=True)
    )
    assert kinds[-3:] == ["quota.request_asked", "quota.changed", "quota.request_granted"]
    with pytest.raises(RequestIsAnswered):
        requests.answer_request(request_id=made.pk, grant=True, actor=scene["vera"], at=NOON)
    assert Quota.objects.get(team=scene["sub"]).entitlement == 12


def test_more_than_there_is_cannot_be_granted_and_the_request_stays_open(scene):
    made = ask(scene, 9)
    with pytest.raises(MoreThanOwned), transaction.atomic():
        requests.answer_request(request_id=made.pk, grant=True, actor=scene["vera"], at=NOON)
    assert QuotaRequest.objects.get().state == RequestState.OPEN
    assert Quota.objects.get(team=scene["sub"]).entitlement == 8


def test_who_may_ask_and_answer(scene):
    stranger = person("sam")
    with pytest.raises(NotYourTeam):
        requests.ask_for_more(
            team=scene["sub"], accelerator_type="H100", n_devices=1, reason="x", actor=stranger, at=NOON
        )
    made = ask(scene)
    for who in (stranger, scene["rosa"]):
        with pytest.raises(NotYourTeam):
            requests.answer_request(request_id=made.pk, grant=True, actor=who, at=NOON)
    requests.answer_request(request_id=made.pk, grant=False, actor=scene["rosa"], at=NOON)
    assert QuotaRequest.objects.get().state == RequestState.WITHDRAWN
    of_top = ask(scene, 1, by="vera", team="top")
    with pytest.raises(NotYourTeam):
        requests.answer_request(request_id=of_top.pk, grant=True, actor=scene["vera"], at=NOON)
    requests.answer_request(
        request_id=of_top.pk, grant=False, actor=scene["admin"], at=NOON, answer="Not now."
    )
    assert QuotaRequest.objects.get(pk=of_top.pk).state == RequestState.REFUSED


@pytest.mark.parametrize(("n", "reason"), [(0, "x"), (-1, "x"), (True, "x"), (10**9, "x"), (1, "  ")])
def test_what_cannot_be_meant_is_refused(scene, n, reason):
    with pytest.raises(InvalidInput):
        ask(scene, n, reason=reason)
    assert not QuotaRequest.objects.exists()


def test_a_second_request_takes_the_place_of_the_first_and_the_database_keeps_one_open(scene):
    ask(scene, 4)
    second = ask(scene, 2)
    assert [one.pk for one in QuotaRequest.objects.filter(state=RequestState.OPEN)] == [second.pk]
    with pytest.raises(IntegrityError), transaction.atomic():
        QuotaRequest.objects.create(
            team=scene["sub"], accelerator_type=scene["kind"], n_devices=1, reason="x", asked_at=NOON
        )


@pytest.mark.django_db(transaction=True)
def test_those_who_decide_are_told_and_who_asked_is_answered(scene):
    collect(at=NOON)  # from here on
    made = ask(scene)
    collect(at=NOON)
    assert list(Notice.objects.values_list("user__username", "title")) == [
        ("vera", "pretraining asks for 4 H100 more")
    ]
    requests.answer_request(request_id=made.pk, grant=False, actor=scene["vera"], at=NOON, answer="In May.")
    collect(at=NOON)
    told = Notice.objects.filter(user=scene["rosa"]).values_list("title", "body")
    assert [(title, "In May." in body) for title, body in told] == [
        ("4 H100 more for pretraining: refused", True)
    ]


def test_by_page_and_by_rest(scene):
    rosa, vera = signed_in(scene["rosa"]), signed_in(scene["vera"])
    page = rosa.get("/quotas/pretraining/").content.decode()
    assert "Ask for more" in page
    rosa.post("/quotas/requests/new/pretraining/", {"kind": "H100", "n_devices": "3", "reason": "<b>now</b>"})
    made = QuotaRequest.objects.get()
    text = vera.get("/quotas/Vision/").content.decode()
    assert "&lt;b&gt;now&lt;/b&gt;" in text
    assert 'value="grant"' in text
    assert 'value="grant"' not in rosa.get("/quotas/pretraining/").content.decode()
    vera.post(f"/quotas/requests/{made.pk}/", {"wish": "grant", "team": "Vision"})
    assert Quota.objects.get(team=scene["sub"]).entitlement == 11

    url = "/api/v1/teams/pretraining/quota-requests"
    body = {"accelerator_type": "H100", "n_devices": 2, "reason": "more"}
    answer = rosa.post(url, body, content_type="application/json")
    assert answer.status_code == 201
    bad = rosa.post(url, {**body, "n_devices": True}, content_type="application/json")
    assert bad.json()["errors"][0]["path"] == "n_devices"
    told = vera.post(
        f"/api/v1/quota-requests/{answer.json()['id']}/answer",
        {"grant": True},
        content_type="application/json",
    )
    assert told.json()["state"] == "granted"
    assert [one["state"] for one in rosa.get(url).json()["items"]] == ["granted", "granted"]


def test_the_page_asks_no_more_for_more_requests_and_loans(scene):
    vera = signed_in(scene["vera"])

    def queries():
        with CaptureQueriesContext(connection) as caught:
            text = vera.get("/quotas/Vision/").content.decode()
        return len(caught), text.count('value="grant"')

    def asks(name):
        made = services.create_team(name=name, parent=scene["top"], actor=scene["admin"], at=NOON)
        requests.ask_for_more(
            team=made, accelerator_type="H100", n_devices=1, reason="more", actor=scene["admin"], at=NOON
        )
        other = services.create_team(name=f"{name}-other", actor=scene["admin"], at=NOON)
        loans.propose_loan(
            lender=scene["top"],
            borrower=other,
            accelerator_type="H100",
            n_devices=1,
            start_at=NOON,
            end_at=NOON + timedelta(days=300),
            actor=scene["vera"],
            at=NOON,
        )

    asks("first")
    queries()
    one, n_one = queries()
    for name in ("second", "third", "fourth"):
        asks(name)
    four, n_four = queries()
    assert (n_one, n_four) == (1, 4)
    assert four == one

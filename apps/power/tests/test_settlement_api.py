"""Settlements by REST."""

from datetime import timedelta

import pytest

from apps.core import clock
from apps.inventory.tests.builders import domain
from apps.power.models import DemandResponseEvent, PowerReading, SettlementReport
from apps.power.settlement_services import settle_event
from apps.teams.tests.builders import client, person

pytestmark = pytest.mark.django_db
URL = "/api/v1/demand-response/events"


@pytest.fixture
def event():
    """An hour ago it asked for 10 kW of 130, for an hour; 20 kW came."""
    hall, now = domain("=hall", "hall"), clock.now().replace(microsecond=0)
    start_at = now - timedelta(hours=2)
    for minute in range(-16, 61):
        at = start_at + timedelta(minutes=minute)
        PowerReading.objects.create(
            domain=hall, at=at, draw_w=130e3 if minute < 0 else 110e3, source="metered"
        )
    return DemandResponseEvent.objects.create(
        domain=hall,
        source="operator",
        target_kind="shed_by",
        value=10e3,
        notified_at=start_at,
        ramp_start_at=start_at,
        start_at=start_at,
        end_at=start_at + timedelta(hours=1),
        created_at=start_at,
    )


def test_an_operator_settles_and_everybody_sees_it(event):
    viewer, operator = client(person("vic")), client(person("olga", "operator"))
    assert viewer.get(f"{URL}/{event.pk}/settlement").status_code == 404
    assert viewer.post(f"{URL}/{event.pk}/settle").status_code == 403

    made = operator.post(f"{URL}/{event.pk}/settle", {"reason": "asked by phone"})
    assert made.status_code == 200, made.content
    again = operator.post(f"{URL}/{event.pk}/settle")
    told = viewer.get(f"{URL}/{event.pk}/settlement").json()

    assert made.json() == again.json() == told
    assert (told["outcome"], told["credited_wh"], told["version"], told["versions"]) == (
        "met",
        "10000.000000",
        1,
        [1],
    )
    assert told["settled_by"] == "olga"
    assert operator.get(f"{URL}/{event.pk}").json()["outcome"] == "met"


def test_each_version_can_be_read_and_none_that_is_not_there(event):
    settle_event(event_id=event.pk, actor=None, at=clock.now())
    PowerReading.objects.filter(draw_w=110e3).delete()
    settle_event(event_id=event.pk, actor=None, at=clock.now())
    asker = client(person("vic"))

    found = {n: asker.get(f"{URL}/{event.pk}/settlement?version={n}").json()["outcome"] for n in (1, 2)}
    assert found == {1: "met", 2: "missed"}
    assert asker.get(f"{URL}/{event.pk}/settlement").json()["version"] == 2
    assert asker.get(f"{URL}/{event.pk}/settlement?version=3").status_code == 404
    for question in ("version=x", "version=-1", "as=pdf", "versions=1"):
        assert asker.get(f"{URL}/{event.pk}/settlement?{question}").status_code == 400


def test_it_comes_as_a_table_that_no_spreadsheet_takes_for_a_formula(event):
    settle_event(event_id=event.pk, actor=None, at=clock.now())
    asker = client(person("vic"))
    by_name = asker.get(f"{URL}/{event.pk}/settlement?as=csv")
    by_header = asker.get(f"{URL}/{event.pk}/settlement", headers={"accept": "text/csv"})

    assert by_name.content == by_header.content
    assert by_name["content-type"] == "text/csv; charset=utf-8"
    lines = by_name.content.decode().splitlines()
    assert "credited_wh,10000.000000" in lines
    assert "domain,'=hall" in lines
    assert "intervals" in lines
    refused = asker.get(f"{URL}/{event.pk}/settlement?version=9", headers={"accept": "text/csv"})
    assert (refused.status_code, refused["content-type"]) == (404, "application/problem+json")


def test_what_is_not_over_is_refused(event):
    event.end_at = clock.now() + timedelta(hours=1)
    event.save()
    answer = client(person("olga", "operator")).post(f"{URL}/{event.pk}/settle")

    assert (answer.status_code, answer.json()["code"]) == (409, "event_not_over")
    assert not SettlementReport.objects.exists()

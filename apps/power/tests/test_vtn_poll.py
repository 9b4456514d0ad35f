"""Listening to a VTN over HTTP: what its events become here, and what holds when it is silent, wrong or cut off."""

import logging
from datetime import timedelta

import pytest

from apps.events.models import Event
from apps.inventory.tests.builders import domain
from apps.power import auto_response, response_services
from apps.power.models import DemandResponseEvent, PowerLimit, PowerReading
from apps.power.openadr.tests.builders import (
    NOW,
    asking,
    event,
    interval,
    iso,
    payload,
)
from apps.power.openadr.tests.vtn import CLIENT_ID, SECRET, FakeVtn
from apps.power.openadr_models import VtnConnection, VtnEvent, VtnReport
from apps.power.tests.builders import draw, programme
from apps.power.vtn import poll, services
from apps.power.vtn.services import ConnectionDraft, ProgrammeMap, ResourceDraft
from apps.teams.tests.builders import person

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["3.0.1", "3.1.0"])
def vtn(request):
    with FakeVtn(request.param) as made:
        made.programs = [{"id": "p1", "programName": "Limits"}]
        yield made


@pytest.fixture
def hall():
    made = domain("hall", "hall")
    draw(made, 900e3, NOW)
    return made


@pytest.fixture
def limits(hall):
    return programme("limits", target_kind="limit_to", min_duration_s=900, max_duration_s=86_400)


def draft(vtn, **changes):
    usual = {
        "name": "utility",
        "base_url": vtn.url,
        "protocol": vtn.version,
        "client_id": CLIENT_ID,
        "client_secret": SECRET,
        "ven_name": "site",
        "domain": "hall",
        "is_enabled": True,
        "programmes": (ProgrammeMap(external_id="p1", programme="limits"),),
    }
    return ConnectionDraft(**{**usual, **changes})


def connect(vtn, **changes):
    return services.create_connection(draft=draft(vtn, **changes), actor=None, at=NOW - timedelta(minutes=10))


@pytest.fixture
def connection(vtn, limits):
    return connect(vtn)


def listen(connection, minutes=0.0):
    poll.poll(connection.pk, at=NOW + timedelta(minutes=minutes))
    connection.refresh_from_db()


def ours():
    return list(DemandResponseEvent.objects.order_by("start_at", "pk"))


def logged(kind):
    return Event.objects.filter(kind=kind).count()


def newer(raw, minute, **changes):
    return {**raw, "modificationDateTime": f"2026-07-01T11:{minute:02}:00.000Z", **changes}


def test_a_new_event_is_announced_in_watts_under_our_programme(vtn, connection):
    vtn.events = [event()]
    listen(connection)

    (made,) = ours()
    assert (made.source, made.target_kind, made.value) == ("openadr", "limit_to", 500e3)
    assert (made.start_at, made.end_at) == (NOW + timedelta(hours=1), NOW + timedelta(hours=2))
    assert (made.programme.name, made.domain.name, made.priority) == ("limits", "hall", 1)
    assert (made.notified_at, made.reference_w) == (NOW, pytest.approx(900e3))
    assert connection.listed_at == NOW
    assert connection.last_error == ""


def test_the_same_listing_again_changes_nothing(vtn, connection):
    vtn.events = [event()]
    for minute in range(4):
        listen(connection, minute)

    (made,) = ours()
    assert (made.version, logged("demand_response.announced"), logged("demand_response.revised")) == (1, 1, 0)

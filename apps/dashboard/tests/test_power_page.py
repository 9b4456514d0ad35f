"""The page of power: what it says in each state, whom it shows what acts, and that its size costs no queries."""

import json
import re
from datetime import timedelta

import plotly.graph_objects as go
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dashboard.tests.facility import UNKIND, Facility, signed_in
from apps.inventory.models import Domain, Node
from apps.power.models import (
    DemandResponseEvent,
    JobPowerModel,
    MeterSource,
    PowerLimit,
    PowerReading,
)
from apps.teams.models import User


def say(domain: Domain, draw_w: float, *, age_s: float = 5.0, source: str = "pdu") -> None:
    PowerReading.objects.create(
        domain=domain, at=clock.now() - timedelta(seconds=age_s), draw_w=draw_w, source=source
    )


def announce(domain: Domain, *, hours: float, **more) -> DemandResponseEvent:
    at = clock.now()
    start_at = at + timedelta(hours=hours)
    return DemandResponseEvent.objects.create(
        **{
            "domain": domain,
            "source": "operator",
            "target_kind": "limit_to",
            "value": 50e3,
            "notified_at": at - timedelta(hours=9),
            "ramp_start_at": start_at,
            "start_at": start_at,
            "end_at": start_at + timedelta(hours=2),
            "created_at": at,
            **more,
        }
    )


def hall() -> Domain:
    return Domain.objects.get(name="Hall A")


def text_of(facility: Facility, path: str = "/power/", who: str = "viewer") -> str:
    answer = signed_in(getattr(facility, who)).get(path)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.django_db
def test_a_site_without_domains_is_told_what_to_make() -> None:
    page = signed_in(User.objects.create(username="max")).get("/power/").content.decode()

    assert "There is nothing to show yet" in page
    assert "POST /api/v1/domains" in page


def test_the_facility_of_the_menu_leads_to_it(facility: Facility) -> None:
    assert 'href="/power/"' in text_of(facility, "/")
    page = signed_in(facility.viewer).get("/power/").content.decode()
    assert re.search(r'href="/power/" aria-current="page"', page)


def test_a_load_is_shown_with_its_limit_and_by_what_it_is_known(facility: Facility) -> None:
    say(hall(), 45_600)
    page = text_of(facility)
    row = page[page.index(f'id="domain-{hall().pk}"') :].split("</tr>")[0]

    assert "46\xa0kW" in row
    assert "90\xa0kW" in row
    assert "50.7\xa0%" in row
    assert "Metered" in row
    assert 'aria-label="Hall A: 46\xa0kW, limit 90\xa0kW"' in row
    assert "no limit" in page[page.index("A1-01") :]


def test_a_silent_meter_is_marked_and_nothing_is_to_start(facility: Facility) -> None:
    say(hall(), 45_600, age_s=700)
    page = text_of(facility)
    row = page[page.index(f'id="domain-{hall().pk}"') :].split("</tr>")[0]

    assert "Missing" in row
    assert "Hold starts" in row
    assert "11\xa0min" in row
    assert "Hall A: the meter is silent" in page
    assert "Nothing is to start there." in page


def test_a_load_over_the_limit_is_said_in_words(facility: Facility) -> None:
    say(hall(), 95_000)
    page = text_of(facility)

    assert "Hall A may draw 95\xa0kW, over its limit" in page
    assert "5.0\xa0kW too much by what is known" in page


def test_events_lead_to_their_pages_and_those_that_are_over_are_gone(facility: Facility) -> None:
    coming = announce(hall(), hours=3)
    binding = announce(hall(), hours=-1, value=40e3)
    gone = announce(hall(), hours=-5)
    cancelled = announce(hall(), hours=4, cancelled_at=clock.now(), outcome="cancelled")
    page = text_of(facility)

    for event, is_there in ((coming, True), (binding, True), (gone, False), (cancelled, False)):
        assert (f'href="/power/events/{event.pk}/"' in page) == is_there
    assert "Hall A: at most 40\xa0kW" in page
    # What binds is the limit in force; what comes is not yet.
    assert "by an event" in page
    assert "Nobody asks for less" not in page


def test_who_operates_is_led_to_curtail_and_others_are_not(facility: Facility) -> None:
    link = f"/power/curtail/?domain={hall().pk}"

    assert link in text_of(facility, who="operator")
    assert link in text_of(facility, who="admin")
    for who in ("viewer", "member", "auditor"):
        assert "/power/curtail/" not in text_of(facility, who=who)


def test_a_domain_is_shown_with_what_is_above_and_below(facility: Facility) -> None:
    page = text_of(facility, f"/power/?domain={hall().pk}")

    assert "Power of Hall A" in page
    assert f"?domain={Domain.objects.get(name='Northgate').pk}" in page
    assert 'id="domain-' in page
    assert f'id="domain-{Domain.objects.get(name="Northgate").pk}"' not in page


@pytest.mark.parametrize("text", ["x", "-1", "0", "9" * 30, "\u0661", "1 or 1=1"])
def test_a_domain_that_is_none_is_not_there(facility: Facility, text: str) -> None:
    client = signed_in(facility.viewer)

    assert client.get("/power/", {"domain": text}).status_code == 404
    assert client.get("/power/parts/tree/", {"domain": text}).status_code == 404


def test_a_leaf_is_no_power_domain(facility: Facility) -> None:
    leaf = Domain.objects.get(name="L01")

    assert signed_in(facility.viewer).get(f"/power/?domain={leaf.pk}").status_code == 404


def test_an_unkind_name_is_shown_as_text(facility: Facility) -> None:
    Domain.objects.filter(pk=hall().pk).update(name=UNKIND)
    MeterSource.objects.create(
        name="<b>x", url="http://p", query="x", domain_label="d", last_error="<img src=x>"
    )
    say(Domain.objects.get(name=UNKIND), 45_600, age_s=700)
    page = text_of(facility)

    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert "&lt;b&gt;x" in page


def test_where_readings_come_from_is_told_without_addresses(facility: Facility) -> None:
    MeterSource.objects.create(
        name="pdu",
        url="http://secret.example",
        query="top_secret",
        domain_label="d",
        last_error="It is away.",
    )
    page = text_of(facility)

    assert "It is away." in page
    assert "secret" not in page[page.index("Where readings come from") :]


def test_jobs_are_told_estimated_against_measured(facility: Facility) -> None:
    JobPowerModel.objects.create(
        job_id=facility.running.pk,
        user=facility.member,
        name=facility.running.name,
        accelerator_type_id=facility.nodes[0].accelerator_type_id,
        mean_w=410,
        peak_w=520,
        n_looks=90,
        updated_at=clock.now(),
    )
    page = text_of(facility)
    card = page[page.index('id="measured-jobs"') :].split("</section>")[0]

    assert facility.running.name in card
    assert "520\xa0W" in card
    assert "by its type" in card


@pytest.mark.parametrize("period", ["6h", "24h", "7d", "nonsense"])
def test_the_chart_is_one_that_plotly_knows_and_has_its_numbers_as_a_table(
    facility: Facility, period: str
) -> None:
    say(hall(), 45_600)
    announce(hall(), hours=1)
    client = signed_in(facility.viewer)
    figure = client.get(f"/power/charts/load.json?p={period}").json()

    go.Figure(**json.loads(re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(figure))))
    assert [trace["name"] for trace in figure["data"]] == ["Hall A", "Expected", "Limit"]
    assert sum(shape["type"] == "rect" for shape in figure["layout"]["shapes"]) == 1
    page = client.get(f"/power/?p={period}").content.decode()
    assert "Show as table" in page
    assert "46\xa0kW" in page[page.index("Show as table") :]


def test_parts_that_did_not_change_are_not_drawn_again_and_new_readings_are(facility: Facility) -> None:
    client = signed_in(facility.viewer)
    for path in ("/power/parts/figures/", "/power/parts/tree/", "/power/charts/load.json"):
        first = client.get(path)
        assert client.get(path, headers={"If-None-Match": first["ETag"]}).status_code == 304
        say(hall(), 45_600, age_s=PowerReading.objects.count())
        assert client.get(path, headers={"If-None-Match": first["ETag"]}).status_code == 200


def test_ten_thousand_nodes_take_as_few_queries_and_a_page_of_the_same_size(facility: Facility) -> None:
    client = signed_in(facility.admin)
    say(hall(), 45_600)
    with CaptureQueriesContext(connection) as few:
        client.get("/power/")
    Domain.objects.bulk_create([Domain(name=f"row-{n:02d}", kind="row", parent=hall()) for n in range(40)])
    rows = list(Domain.objects.filter(kind="row").order_by("name"))
    Domain.objects.bulk_create(
        [Domain(name=f"rack-{n:04d}", kind="rack", parent=rows[n % 40]) for n in range(1_250)]
    )
    racks = list(Domain.objects.filter(name__startswith="rack-"))
    PowerLimit.objects.bulk_create(PowerLimit(domain=rack, limit_w=50_000) for rack in racks)
    at = clock.now() - timedelta(seconds=5)
    PowerReading.objects.bulk_create(
        PowerReading(domain=rack, at=at, draw_w=30 + n % 7, source="pdu") for n, rack in enumerate(racks)
    )
    like = facility.nodes[0]
    Node.objects.bulk_create(
        Node(
            cluster_id=like.cluster_id,
            name=f"more-{n}",
            accelerator_type_id=like.accelerator_type_id,
            n_devices=8,
            power=racks[n % len(racks)],
        )
        for n in range(10_000)
    )
    with CaptureQueriesContext(connection) as many:
        answer = client.get("/power/")
    page = answer.content.decode()

    assert len(many) == len(few) <= 15
    # The racks are a click away: there is room for the facility, the hall, its rows and the rack beside them.
    assert page.count('<tr id="domain-') == 43
    assert "32 below" in page or "31 below" in page
    assert len(answer.content) < 100_000
    row = client.get(f"/power/?domain={rows[0].pk}").content.decode()
    assert row.count('<tr id="domain-') == 33


def test_of_a_level_that_is_too_wide_the_tightest_are_shown(facility: Facility) -> None:
    Domain.objects.bulk_create([Domain(name=f"rack-{n:03d}", kind="rack", parent=hall()) for n in range(100)])
    racks = list(Domain.objects.filter(name__startswith="rack-").order_by("name"))
    PowerLimit.objects.bulk_create(PowerLimit(domain=rack, limit_w=1_000) for rack in racks)
    at = clock.now()
    PowerReading.objects.bulk_create(
        PowerReading(domain=rack, at=at, draw_w=n, source="pdu") for n, rack in enumerate(racks)
    )
    page = text_of(facility, f"/power/?domain={hall().pk}")

    assert "rack-099" in page
    assert "rack-001" not in page
    assert re.search(r"\d+ more domains", page)

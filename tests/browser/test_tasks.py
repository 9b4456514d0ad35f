"""What members, leads and operators come for, each from the first page on.

A facility of its own: what these flows find depends on which nodes are free.
"""

from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import expect

from apps.core import clock
from apps.jobs.models import Job
from apps.jobs.tests.builders import Fleet, grant, job, start
from apps.reservations.models import Reservation
from apps.scheduling import services as scheduling
from apps.teams.models import Quota, QuotaLoan
from tests.browser.conftest import PHONE, OpenWindow, Site
from tests.browser.test_pages import axe_findings


def test_a_member_finds_what_starts_a_job_sooner_applies_it_and_sees_it_begin(
    site: Site, open_window: OpenWindow
) -> None:
    job_id = site.facility.waiting.pk
    for number in (1, 6):  # in each leaf one node more is taken: three of its four are free at most
        node = site.facility.nodes[number]
        small = job(
            site.facility.speech, site.facility.stranger, devices=1, time_limit=9e4, preemptible=False
        )
        start(small, Fleet(node.cluster, node.accelerator_type, (node,)), grant(node, (0,)), at=clock.now())
    window = open_window(site.facility.member)
    window.open("/")
    page = window.page
    page.get_by_role("navigation").get_by_role("link", name="Queue").first.click()
    page.get_by_role("link", name="moe-8x22b-sft").click()
    expect(page.locator("main")).to_contain_text("Why it waits")
    page.get_by_role("link", name="Look for ways").click()
    way = page.locator("#way-wider")
    expect(way).to_contain_text("Within one spine group starts now")
    assert window.troubles_here() + axe_findings(window) == []
    way.get_by_role("button", name="Apply").click()
    page.get_by_role("button", name="Change the request").click()
    expect(page.locator(".toasts, [role=status]").first).to_be_attached()
    assert Job.objects.get(pk=job_id).spec["topology"] == {"required": "spine"}
    scheduling.run_pass(at=clock.now())
    page.reload()
    expect(page.locator("main")).to_contain_text("Where it runs")
    assert Job.objects.get(pk=job_id).state == "starting"


def test_a_lead_sees_who_is_affected_before_saving_and_lends_until_friday(
    site: Site, open_window: OpenWindow
) -> None:
    vision = site.facility.vision
    window = open_window(site.facility.lead)
    window.open("/quotas/")
    page = window.page
    page.get_by_role("link", name=vision.name).first.click()
    page.get_by_role("link", name="H100").first.click()
    first = page.locator("input[name^=entitlement]").first
    before = Quota.objects.filter(team__parent=vision, accelerator_type__name="H100").values_list(
        "entitlement", flat=True
    )
    was = list(before)
    first.fill("1")
    expect(page.locator("#effects")).to_contain_text("kept back")
    assert list(before) == was
    page.get_by_role("button", name="Discard").click()
    page.get_by_role("button", name="Lend or ask").click()
    friday = timezone.localtime(clock.now() + timedelta(days=3)).strftime("%Y-%m-%dT17:00")
    page.get_by_label("Team", exact=True).select_option("Speech")
    page.get_by_label("Devices", exact=True).fill("1")
    page.get_by_label("Until").fill(friday)
    page.get_by_role("button", name="Propose").click()
    expect(page.locator("#loans")).to_contain_text("to Speech")
    assert QuotaLoan.objects.get().lender == vision
    assert window.troubles_here() + axe_findings(window) == []


def test_an_operator_books_through_the_slot_finder_on_a_phone(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.operator, size=PHONE)
    window.open("/")
    page = window.page
    page.get_by_role("navigation", name="Quick navigation").get_by_role("link", name="Reserve").click()
    page.get_by_role("link", name="Find a slot").click()
    page.get_by_label("Devices").fill("16")
    page.get_by_label("Device type").select_option("H100")
    page.get_by_label("For how many hours").fill("4")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#offers section")).to_have_count(3)
    assert window.troubles_here() + axe_findings(window) == []
    page.get_by_role("link", name="Reserve this").first.click()
    page.get_by_label("Name", exact=True).fill("release week")
    page.get_by_label(vision_box := site.facility.vision.name, exact=True).check()
    page.get_by_role("button", name="Reserve", exact=True).click()
    expect(page.locator("main h1")).to_contain_text("release week")
    made = Reservation.objects.get(name="release week")
    assert (made.n_devices, made.ends_at - made.starts_at) == (16, timedelta(hours=4))
    assert [team.name for team in made.teams.all()] == [vision_box]

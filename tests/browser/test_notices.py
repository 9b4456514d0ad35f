"""What an owner is told when an operator commits a curtailment, and how they choose to be told, in a browser."""

import pytest
from playwright.sync_api import expect

from apps.core import clock
from apps.dashboard.tests.curtailed import add_work
from apps.jobs.models import Job
from apps.notices import collecting
from apps.notices.models import Channel, Notice
from tests.browser.conftest import DESKTOP, PHONE, OpenWindow, Site
from tests.browser.test_curtail import fill, look_at, quieten
from tests.browser.test_pages import axe_findings

SIZES = pytest.mark.parametrize(
    ("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop-light", "phone-dark"]
)


@pytest.fixture(scope="module")
def work(site: Site) -> dict[str, Job]:
    made = add_work(site.facility, at=clock.now())
    collecting.collect(at=clock.now())
    return made


@SIZES
def test_an_owner_learns_of_a_commit_by_the_bell_and_reads_why(
    site: Site, work: dict[str, Job], open_window: OpenWindow, size: dict[str, int], scheme: str
) -> None:
    quieten(site)
    collecting.collect(at=clock.now())
    Notice.objects.all().delete()
    operator = open_window(site.facility.operator)
    operator.open("/power/curtail/")
    fill(operator.page, "2", reason=f"the grid asks, {scheme}")
    expect(operator.page.locator("#preview")).to_contain_text("of 2.0 kW")
    operator.page.get_by_role("button", name="Commit · starts now").click()
    expect(operator.page.get_by_role("heading", name="Grid event")).to_be_visible()
    collecting.collect(at=clock.now())

    owner = open_window(site.facility.stranger, size=size, scheme=scheme)
    page, name = owner.page, f"{size['width']}-{scheme}"
    owner.open("/")
    page.get_by_role("link", name="Notices, 1 unread").click()
    expect(page.get_by_role("heading", name="Notices", exact=True)).to_be_visible()
    expect(page.locator("main")).to_contain_text(f"the grid asks, {scheme}")
    expect(page.locator("main")).to_contain_text("What you can do")
    assert owner.troubles_here() + axe_findings(owner) == []
    look_at(owner, f"{name}-notices")
    page.get_by_role("button", name="Mark all as read").click()
    expect(page.get_by_role("link", name="Notices", exact=True)).to_be_visible()
    page.goto(f"{site.url}/me/")
    expect(page.locator("#my-notices")).to_contain_text("for a grid event")
    assert owner.troubles_here() + axe_findings(owner) == []
    look_at(owner, f"{name}-me")

    operator.page.get_by_role("button", name="Cancel event").click()
    operator.page.get_by_role("button", name="Cancel the event").click()
    expect(operator.page.locator(".toast")).to_contain_text("cancelled")
    collecting.collect(at=clock.now())
    page.goto(f"{site.url}/me/notices/")
    expect(page.locator("main")).to_contain_text("was called off: your jobs get their power back")


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
@SIZES
def test_somebody_chooses_a_webhook(
    site: Site, open_window: OpenWindow, size: dict[str, int], scheme: str, script: bool
) -> None:
    Channel.objects.all().delete()
    window = open_window(site.facility.member, size=size, scheme=scheme, script=script)
    page = window.page
    window.open("/me/")
    page.get_by_role("link", name="How you are told").click()
    page.get_by_label("My job has started: by webhook").check()
    page.get_by_label("Address").fill("https://192.168.1.1/hook")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#webhook-error")).to_contain_text("leads to a private address")
    expect(page.get_by_label("My job has started: by webhook")).to_be_checked()
    window.troubles.clear()  # the browser tells of every answer that refuses
    page.get_by_label("Address").fill("https://hooks.example/services/secret")
    page.get_by_label("Messages come").select_option(label="at most every hour")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#webhook-hint")).to_contain_text("One at hooks.example is stored")
    assert "services/secret" not in page.content()
    expect(page.get_by_role("button", name="Send a test by webhook")).to_be_visible()
    if script:
        assert window.troubles_here() + axe_findings(window) == []
        look_at(window, f"{size['width']}-{scheme}-notice-settings")
    assert Channel.objects.get(user=site.facility.member).pace_s == 3600

"""An operator asks where the hours went; hours are counted from the first pass on, so none was before."""

from datetime import timedelta

from django.db import transaction
from playwright.sync_api import expect

from apps.core import clock
from apps.jobs.models import Allocation, DeviceClaim
from apps.power.models import NodeReading
from apps.scheduling import losses
from apps.scheduling.snapshot import take_snapshot
from tests.browser.conftest import OpenWindow, Site
from tests.browser.test_pages import axe_findings


def test_an_operator_finds_which_team_lets_devices_lie_and_where_hours_were_lost(
    site: Site, open_window: OpenWindow
) -> None:
    at = clock.now()
    for then in (at - timedelta(minutes=50), at - timedelta(minutes=1)):
        with transaction.atomic():
            losses.count(take_snapshot(then), (), (), at=then)
    Allocation.objects.filter(job=site.facility.running).update(observed_started_at=at - timedelta(hours=2))
    claims = DeviceClaim.objects.filter(released_at=None, placement__allocation__job=site.facility.running)
    for claim in claims.select_related("device"):
        NodeReading.objects.create(
            node_id=claim.device.node_id,
            index=claim.device.index,
            at=at,
            draw_w=80,
            source="dcgm",
            quiet_since_at=at - timedelta(hours=1),
        )
    window = open_window(site.facility.operator)
    window.open("/")
    page = window.page
    page.get_by_role("navigation").get_by_role("link", name="Utilization").first.click()
    idle = page.locator("#idle")
    expect(idle).to_contain_text(site.facility.running.name)
    expect(idle).to_contain_text("pretraining")
    expect(page.locator("table.hours")).to_contain_text("Out of service")
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    assert window.troubles_here() + axe_findings(window) == []
    page.get_by_role("link", name="repair list").click()
    expect(page.locator("main")).to_contain_text("l02-n04")

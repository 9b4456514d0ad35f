"""From an empty installation to a running job, in the three steps that the pages offer."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from playwright.sync_api import expect
from pytest_django import DjangoDbBlocker
from pytest_django.live_server_helper import LiveServer

from apps.core import clock
from apps.events.models import Event
from apps.execution import tasks as execution
from apps.inventory.models import Node
from apps.jobs.models import Job
from apps.scheduling import admission, apply, line, snapshot
from apps.scheduling import services as scheduling
from apps.teams import services as teams
from apps.teams.models import FacilityRole, Quota
from tests.browser.conftest import DESKTOP, PHONE, OpenWindow
from tests.browser.test_pages import axe_findings


@pytest.fixture
def site(database: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Any]:
    """A live site with one administrator and nothing else."""
    with django_db_blocker.unblock():
        for kept in (snapshot, apply, admission, line):  # what a process knows of tables that were emptied
            kept.forget()
        admin = teams.create_user(
            username="first", password=None, facility_role=FacilityRole.ADMIN, actor=None, at=clock.now()
        )
        server = LiveServer("127.0.0.1")
        try:
            yield SimpleNamespace(url=server.url, admin=admin)
        finally:
            server.stop()
            call_command("flush", verbosity=0, interactive=False)
            connections.close_all()


@pytest.mark.parametrize(
    ("size", "scheme", "script"),
    [(DESKTOP, "light", True), (PHONE, "dark", True), (DESKTOP, "light", False)],
    ids=["desktop", "phone-dark", "without-script"],
)
def test_three_steps_lead_from_nothing_to_a_running_job(
    site: Any, open_window: OpenWindow, size: dict[str, int], scheme: str, script: bool
) -> None:
    window = open_window(site.admin, size=size, scheme=scheme, script=script)
    page = window.page

    def troubles() -> list[str]:
        return window.troubles_here() + axe_findings(window) if script else []

    window.open("/")
    page.get_by_role("link", name="First steps").click()
    expect(page.locator("#step-2")).to_contain_text("first say what there is")
    assert troubles() == []

    page.get_by_role("button", name="Check the sample").click()
    expect(page.locator("main")).to_contain_text("It can be applied")
    assert not Node.objects.exists()
    assert troubles() == []
    page.get_by_role("button", name="Apply 26 changes").click()
    expect(page.locator("#step-1")).to_contain_text("16 nodes with 128 devices")

    page.get_by_label("Name of the team").fill("research")
    page.get_by_role("button", name="Create the team").click()
    expect(page.locator("#step-2")).to_contain_text("You may submit for research")
    assert Quota.objects.get(team__name="research").entitlement == 128
    assert troubles() == []

    page.get_by_role("button", name="Submit the sample job").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("first-job")
    scheduling.run_pass(at=clock.now())
    execution.reconcile()
    job = Job.objects.get()
    assert job.state in ("starting", "running")
    page.reload()
    expect(page.locator("main")).to_contain_text("Where it runs")
    window.open("/welcome/")
    expect(page.locator("main")).to_contain_text("All three steps are taken")
    assert troubles() == []
    assert Event.objects.filter(kind="facility.imported", actor_name="first").count() == 1

"""A curtailment in a real browser, from the first page to the cancel, as somebody who has never seen it would do it."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from apps.core import clock
from apps.dashboard import plans
from apps.dashboard.tests.curtailed import add_work, read, share_of, work_through
from apps.events.models import Event
from apps.jobs.models import Job
from apps.power.draft_services import delete_draft, drafts_of, save_draft
from apps.power.models import CurtailmentPlan, DemandResponseEvent, PowerReading
from apps.power.response_services import cancel_event
from apps.teams.models import User
from tests.browser.conftest import DESKTOP, PHONE, OpenWindow, Site, Window
from tests.browser.test_pages import axe_findings

SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


@pytest.fixture(scope="module")
def work(site: Site) -> dict[str, Job]:
    return add_work(site.facility, at=clock.now())


@pytest.fixture(autouse=True)
def quiet(site: Site, work: dict[str, Job]) -> None:
    quieten(site)


def quieten(site: Site) -> None:
    """No event of the test before is open any more, and the meter is back where it was."""
    at = clock.now()
    for event in DemandResponseEvent.objects.filter(cancelled_at=None):
        cancel_event(event_id=event.pk, actor=site.facility.operator, at=at)
    for _ in range(3):
        work_through(at=clock.now())
    DemandResponseEvent.objects.filter(released_at=None).update(released_at=clock.now())
    for draft in drafts_of(User.objects.get(pk=site.facility.operator.pk)):
        delete_draft(actor=site.facility.operator, number=draft.number, at=at)
    PowerReading.objects.filter(domain__name="Hall A").delete()
    read(clock.now())


def look_at(window: Window, name: str) -> None:
    """A picture for a person to look at, where a folder for them is named."""
    if folder := os.environ.get("SHOTS"):
        window.page.wait_for_timeout(400)
        window.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def to_the_dialog(page: Page, size: dict[str, int]) -> None:
    """By what can be seen alone."""
    if size == PHONE:
        page.get_by_role("navigation", name="Quick navigation").get_by_role("link", name="Power").click()
    else:
        page.get_by_role("navigation").get_by_role("link", name="Power & response").click()
    page.get_by_role("link", name="Plan curtailment").first.click()
    expect(page.get_by_role("dialog").get_by_role("heading", name="Plan curtailment")).to_be_visible()


def fill(page: Page, kw: str, *, reason: str = "the grid asks for it") -> None:
    page.get_by_role("combobox", name="Where").select_option("Hall A")
    page.get_by_label("kW", exact=True).fill(kw)
    page.get_by_role("textbox", name="Reason").fill(reason)


@SIZES
def test_an_operator_finds_previews_commits_and_cancels(
    site: Site, work: dict[str, Job], open_window: OpenWindow, size: dict[str, int]
) -> None:
    window = open_window(site.facility.operator, size=size)
    page, name = window.page, f"{size['width']}"
    window.open("/")
    to_the_dialog(page, size)
    look_at(window, f"{name}-empty")
    n_events, n_plans = DemandResponseEvent.objects.count(), CurtailmentPlan.objects.count()
    fill(page, "4")
    expect(page.locator("#preview")).to_contain_text("of 4.0 kW")
    expect(page.locator("#preview .plotly .main-svg").first).to_be_visible()
    assert (DemandResponseEvent.objects.count(), CurtailmentPlan.objects.count()) == (n_events, n_plans)
    assert window.troubles_here() + axe_findings(window) == []
    look_at(window, f"{name}-preview")

    page.get_by_role("button", name="Commit · starts now").click()
    expect(page.get_by_role("heading", name="Grid event")).to_be_visible()
    expect(page.locator("#event-phase")).to_contain_text("Active")
    work_through(at=clock.now())
    read(clock.now(), 29_000.0)
    page.reload()
    expect(page.locator("#event-acts")).to_contain_text("Verified")
    expect(page.locator("#ribbon")).to_contain_text("Grid event active")
    assert window.troubles_here() + axe_findings(window) == []
    look_at(window, f"{name}-active")
    slowed = [one for one in work.values() if (share_of(one) or 1.0) < 1.0]
    assert slowed
    page.goto(f"{site.url}/jobs/{slowed[0].pk}/")
    expect(page.locator("#grid-hold")).to_contain_text("grid event")
    page.get_by_role("link", name="Open event").click()

    page.get_by_role("button", name="Cancel event").click()
    page.locator("#cancel-reason").fill("called off")
    look_at(window, f"{name}-cancel")
    page.get_by_role("button", name="Cancel the event").click()
    expect(page.locator(".toast")).to_contain_text("cancelled")
    work_through(at=clock.now())
    assert {share_of(one) for one in work.values()} <= {1.0, None}
    page.get_by_role("link", name="audit trail of this event").click()
    for act in ("announced", "committed", "cancelled"):
        expect(page.locator("main")).to_contain_text(act)
    assert window.troubles_here() == []


@SIZES
def test_what_cannot_be_met_is_said_first_and_a_job_is_let_go(
    site: Site, work: dict[str, Job], open_window: OpenWindow, size: dict[str, int]
) -> None:
    window = open_window(site.facility.operator, size=size)
    page, name = window.page, f"{size['width']}"
    window.open("/power/curtail/")
    fill(page, "16")
    expect(page.locator("#infeasible")).to_contain_text("cannot be met")
    expect(page.get_by_role("button", name="Commit best effort")).to_be_visible()
    look_at(window, f"{name}-infeasible")
    row = page.locator(f"#touch-{work['sweep-unsaved'].pk}")
    expect(row).to_contain_text("pause without a save")
    row.get_by_role("checkbox").click()
    expect(page.locator("#left-alone")).to_contain_text("sweep-unsaved")
    expect(row).to_have_count(0)
    page.locator("#left-alone").get_by_role("checkbox").click()
    expect(row).to_have_count(1)
    page.locator("#relaxations").get_by_role("checkbox").first.click()
    expect(page.locator("#allowed")).to_be_visible()
    expect(page.locator("#commit-bar")).to_contain_text("Type Hall A to confirm")
    look_at(window, f"{name}-relaxed")
    assert window.troubles_here() + axe_findings(window) == []
    page.locator("#commit-bar button[value=commit]").click()
    expect(page.locator("#error-confirmation")).to_contain_text("Hall A")
    page.locator("#confirmation").fill("Hall A")
    page.locator("#commit-bar button[value=commit]").click()
    expect(page.get_by_role("heading", name="Grid event")).to_be_visible()


@SIZES
def test_the_dialog_opens_from_the_start_page_and_escape_puts_it_away(
    site: Site, work: dict[str, Job], open_window: OpenWindow, size: dict[str, int]
) -> None:
    window = open_window(site.facility.operator, size=size)
    page = window.page
    window.open("/")
    page.get_by_role("link", name="Plan curtailment").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("kW", exact=True)).to_be_focused()
    fill(page, "4")
    expect(dialog.locator("#preview")).to_contain_text("of 4.0 kW")
    assert window.troubles_here() + axe_findings(window) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("link", name="Plan curtailment")).to_be_focused()
    assert not DemandResponseEvent.objects.filter(cancelled_at=None, released_at=None).exists()


def test_a_preview_that_fails_says_so_and_nothing_can_be_committed(
    site: Site, open_window: OpenWindow
) -> None:
    window = open_window(site.facility.operator)
    page = window.page
    window.open("/power/curtail/")
    fill(page, "4")
    expect(page.locator("#preview")).to_contain_text("of 4.0 kW")
    page.route("**/parts/preview/", lambda route: route.abort())
    page.get_by_label("kW", exact=True).fill("5")
    expect(page.locator("#preview-failed")).to_be_visible()
    expect(page.locator("#commit-bar button[value=commit]")).to_be_disabled()
    page.unroute("**/parts/preview/")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#preview")).to_contain_text("of 5.0 kW")
    expect(page.locator("#preview-failed")).to_be_hidden()
    expect(page.locator("#commit-bar button[value=commit]")).to_be_enabled()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_all_jobs_that_are_touched_can_be_looked_through(
    site: Site, open_window: OpenWindow, script: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_FEW_ROWS", 1)
    monkeypatch.setattr(plans, "_ROWS_A_PAGE", 2)
    window = open_window(site.facility.operator, script=script)
    page = window.page
    window.open("/power/curtail/")
    fill(page, "12")
    if not script:
        page.get_by_role("button", name="Preview").click()
    rows = page.locator("#preview tbody tr[id^=touch]")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#touched-pages")).to_contain_text("1–2 of")
    first = [row.get_attribute("id") for row in rows.all()]
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#touched-pages")).to_contain_text("3–")
    assert not {row.get_attribute("id") for row in rows.all()} & set(first)
    page.get_by_role("button", name="Show fewer").click()
    expect(rows).to_have_count(1)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_a_draft_is_kept_taken_up_again_and_gone_once_it_is_committed(
    site: Site, open_window: OpenWindow, script: bool
) -> None:
    window = open_window(site.facility.operator, script=script)
    page = window.page
    n_events = DemandResponseEvent.objects.count()
    window.open("/power/curtail/")
    fill(page, "3", reason="for tomorrow")
    page.get_by_role("button", name="Save as draft").click()
    expect(page.locator(".toast")).to_contain_text("Nothing was announced")
    assert DemandResponseEvent.objects.count() == n_events
    window.open("/power/curtail/")
    page.locator("#drafts").get_by_role("link", name="3 kW, Hall A").click()
    page.wait_for_url("**/power/curtail/?draft=*")
    expect(page.get_by_label("kW", exact=True)).to_have_value("3")
    expect(page.get_by_role("textbox", name="Reason")).to_have_value("for tomorrow")
    expect(page.locator("#preview")).to_contain_text("of 3.0 kW")
    page.get_by_role("button", name="Commit · starts now").click()
    expect(page.get_by_role("heading", name="Grid event")).to_be_visible()
    window.open("/power/curtail/")
    expect(page.locator("#drafts")).to_have_count(0)


def test_a_draft_is_taken_up_within_the_dialog(site: Site, open_window: OpenWindow) -> None:
    save_draft(
        actor=site.facility.operator,
        name="3 kW, Hall A",
        fields={"value": "3", "domain": "Hall A", "kind": "shed_by", "minutes": "60"},
        at=clock.now(),
    )
    window = open_window(site.facility.operator)
    page = window.page
    window.open("/power/")
    page.get_by_role("link", name="Plan curtailment").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("link", name="3 kW, Hall A").click()
    expect(dialog.get_by_label("kW", exact=True)).to_have_value("3")
    expect(dialog.locator("#preview")).to_contain_text("of 3.0 kW")
    expect(page.locator("#preview")).to_have_count(1)
    assert window.troubles_here() + axe_findings(window) == []
    look_at(window, "1440-draft")


def test_a_fault_stands_beside_its_field_while_somebody_types(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.operator)
    window.open("/power/curtail/")
    window.page.get_by_label("kW", exact=True).fill("much")
    expect(window.page.locator("#error-value")).to_contain_text("must be a number")
    window.page.get_by_label("kW", exact=True).fill("3")
    expect(window.page.locator("#error-value")).to_be_hidden()
    window.page.get_by_label("For, minutes").fill("0")
    expect(window.page.locator("#error-minutes")).to_contain_text("more than 0")


def test_without_script_a_button_previews_and_a_button_commits(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.operator, script=False)
    page = window.page
    window.open("/power/curtail/")
    fill(page, "4")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("Expected")
    page.get_by_role("button", name="Commit · starts now").click()

    expect(page.get_by_role("heading", name="Grid event")).to_be_visible()


def test_two_clicks_make_one_event(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.operator)
    page = window.page
    window.open("/power/curtail/")
    fill(page, "4")
    expect(page.locator("#preview")).to_contain_text("of 4.0 kW")
    n_events = DemandResponseEvent.objects.count()
    page.get_by_role("button", name="Commit · starts now").dblclick()
    expect(page.get_by_role("heading", name="Grid event")).to_be_visible()

    assert DemandResponseEvent.objects.count() == n_events + 1


@SIZES
def test_a_viewer_sees_the_event_and_no_way_to_change_it(
    site: Site, open_window: OpenWindow, size: dict[str, int]
) -> None:
    operator = open_window(site.facility.operator)
    operator.open("/power/curtail/")
    fill(operator.page, "4")
    expect(operator.page.locator("#preview")).to_contain_text("of 4.0 kW")
    operator.page.get_by_role("button", name="Commit · starts now").click()
    expect(operator.page.get_by_role("heading", name="Grid event")).to_be_visible()
    event = DemandResponseEvent.objects.latest("id")

    window = open_window(site.facility.viewer, size=size, scheme="dark")
    window.open("/")
    window.page.get_by_role("link", name="Open event").click()
    expect(window.page.get_by_role("heading", name="Grid event")).to_be_visible()
    assert window.page.locator("main button, main form").count() == 0
    assert window.page.get_by_role("link", name="Plan", exact=True).count() == 0
    assert window.troubles_here() + axe_findings(window) == []
    look_at(window, f"{size['width']}-viewer-dark")
    answer = window.page.goto(f"{site.url}/power/curtail/")
    assert answer is not None
    assert answer.status == 403
    assert not Event.objects.filter(actor_id=site.facility.viewer.pk, subject_id=event.pk).exists()


@pytest.mark.parametrize(("size", "name"), [(DESKTOP, "1440"), (PHONE, "390")])
def test_the_dark_pages_have_no_barriers(
    site: Site, open_window: OpenWindow, size: dict[str, int], name: str
) -> None:
    window = open_window(site.facility.operator, size=size, scheme="dark")
    window.open("/power/curtail/")
    fill(window.page, "16")
    expect(window.page.locator("#infeasible")).to_contain_text("cannot be met")
    assert window.troubles_here() + axe_findings(window) == []
    look_at(window, f"{name}-infeasible-dark")

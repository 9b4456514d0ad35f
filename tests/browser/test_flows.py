"""What people come for, done in a real browser from sign-in to result."""

import os
from datetime import timedelta

from playwright.sync_api import expect

from apps.core import clock
from apps.dashboard.tests.facility import PASSWORD
from apps.inventory.models import Domain, Node
from apps.jobs.models import Job
from apps.jobs.tests.builders import fleet, grant, job, start
from apps.power.models import PowerReading
from apps.teams.models import MemberLimit, Quota
from tests.browser.conftest import DESKTOP, PHONE, OpenWindow, Site
from tests.browser.test_pages import axe_findings


def test_signing_in_leads_to_the_page_that_was_asked_for(site: Site, open_window: OpenWindow) -> None:
    window = open_window(None)
    window.open("/queue/?state=running")
    window.page.fill("#username", "max")
    window.page.fill("#password", PASSWORD)
    window.page.click("text=Sign in >> nth=-1")

    expect(window.page).to_have_url(f"{site.url}/queue/?state=running")
    expect(window.page.locator("main h1")).to_have_text("Queue")


def test_a_wrong_password_is_refused_without_a_hint(site: Site, open_window: OpenWindow) -> None:
    window = open_window(None)
    window.open("/accounts/login/")
    window.page.fill("#username", "max")
    window.page.fill("#password", "wrong")
    window.page.click(".button.primary")

    expect(window.page.locator("[role=alert]")).to_contain_text("do not belong together")


def test_a_member_previews_and_submits_a_job_by_form(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.member)
    window.open("/jobs/new/")
    page = window.page
    page.fill("#name", "from-the-form")
    page.fill("#command", "sh -c 'echo hello'")
    page.check("input[name=accelerators][value=H100]")
    page.fill("#time_limit_h", "0.5")
    page.click("button[value=preview]")
    expect(page.locator("main")).to_contain_text("It would")
    page.click("button[value=submit]")

    expect(page.locator("main h1")).to_contain_text("from-the-form")
    made = Job.objects.get(name="from-the-form")
    assert made.private["command"] == ["sh", "-c", "echo hello"]
    assert made.time_limit_s == 1800
    page.goto(f"{site.url}/queue/?q=from-the-form")
    expect(page.locator(f"#job-{made.pk}")).to_contain_text("pretraining")
    assert window.troubles_here() == []


def test_a_fault_is_shown_at_its_field_and_nothing_is_stored(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.member)
    window.open("/jobs/new/")
    window.page.fill("#name", "faulty")
    window.page.fill("#replicas", "-3")
    window.page.click("button[value=submit]")

    expect(window.page.locator("#error-replicas")).to_contain_text("replicas")
    assert not Job.objects.filter(name="faulty").exists()


def test_a_lead_gives_a_sub_team_more(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.lead)
    window.open("/quotas/Vision/?kind=H100")
    page, team = window.page, site.facility.pretraining
    field = page.locator(f"[name=entitlement-{team.pk}]")
    field.fill("28")
    expect(page.locator("[data-unsaved]")).to_have_text("1 unsaved change")
    page.fill("[name=reason]", "release week")
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.locator(".toast")).to_contain_text("saved")
    expect(page.locator(f"[name=entitlement-{team.pk}]")).to_have_value("28")
    assert Quota.objects.get(team=team, accelerator_type__name="H100").entitlement == 28
    assert window.troubles_here() == []


def test_a_member_sees_the_quota_and_no_field_to_change_it(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.member)
    window.open("/quotas/Vision/?kind=H100")

    expect(window.page.locator("main")).to_contain_text("pretraining")
    assert window.page.locator("main input[type=text], main .quota-input").count() == 0


def test_a_lead_says_how_much_one_member_may_have(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.lead)
    window.open(f"/quotas/{site.facility.pretraining.name}/?kind=H100")
    page, member = window.page, site.facility.member
    form = page.locator("#members")
    form.get_by_label("H100 at most, every member", exact=True).fill("16")
    form.get_by_label(f"Jobs waiting at most, {member.username}", exact=True).fill("no limit")
    expect(form.locator("[data-unsaved]")).to_have_text("2 unsaved changes")
    form.get_by_label("Reason").fill("fair for all")
    form.get_by_role("button", name="Save limits").click()

    expect(page.locator(".toast")).to_contain_text("limits of members were saved")
    expect(page.locator("[name=devices-all]")).to_have_value("16")
    expect(page.locator(f"[name=devices-{member.pk}]")).to_have_attribute("placeholder", "16")
    expect(page.locator("main")).to_contain_text("every member, H100 at most no limit → 16")
    assert set(MemberLimit.objects.values_list("what", "user__username", "most")) == {
        ("devices", None, 16),
        ("waiting_jobs", member.username, None),
    }
    assert window.troubles_here() == []
    if folder := os.environ.get("SHOTS"):
        for scheme, size in (("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)):
            look = open_window(site.facility.lead, size=size, scheme=scheme)
            look.open(f"/quotas/{site.facility.pretraining.name}/?kind=H100")
            look.page.screenshot(path=f"{folder}/{scheme}-{size['width']}.png", full_page=True)
            assert look.troubles_here() == []


def test_an_operator_drains_and_resumes_a_node_on_a_phone(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.operator, size=PHONE)
    page, name = window.page, site.facility.nodes[3].name
    window.open(f"/nodes/{name}/")
    page.click("text=Drain")
    page.fill("#drain-reason", "fan noise")
    page.click("text=Drain the node")
    expect(page.locator("#node")).to_contain_text("Drained")
    assert Node.objects.get(name=name).health == "drained"
    page.locator("button[popovertarget=dialog-resume]").first.click()
    page.click("text=Resume the node")

    expect(page.locator("#node")).to_contain_text("Healthy")
    assert Node.objects.get(name=name).health == "healthy"
    assert window.troubles_here() == []


def test_a_viewer_finds_no_way_to_drain(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.viewer)
    window.open(f"/nodes/{site.facility.nodes[3].name}/")

    expect(window.page.locator("main h1")).to_contain_text(site.facility.nodes[3].name)
    assert window.page.locator("main button, main form").count() == 0


def test_a_member_holds_a_job_and_the_page_shows_it(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.member)
    job = site.facility.waiting
    window.open(f"/jobs/{job.pk}/")
    window.page.click("text=Hold")
    window.page.fill("#hold-reason", "wrong data")
    window.page.click("text=Hold the job")

    expect(window.page.locator("#job-head")).to_contain_text("Held")
    expect(window.page.locator("#job-body")).to_contain_text("wrong data")
    window.page.click("text=Release")
    expect(window.page.locator("#job-head")).to_contain_text("Queued")


def test_a_state_that_changes_meanwhile_changes_the_open_page(site: Site, open_window: OpenWindow) -> None:
    from apps.core import clock
    from apps.jobs import services

    window = open_window(site.facility.stranger)
    job = site.facility.held
    window.open(f"/jobs/{job.pk}/")
    expect(window.page.locator("#job-actions")).to_contain_text("Release")
    services.release_job(job_id=job.pk, actor=site.facility.stranger, at=clock.now())
    window.page.evaluate("document.body.dispatchEvent(new CustomEvent('sy:tick5'))")

    expect(window.page.locator("#job-head")).to_contain_text("Queued")
    expect(window.page.locator("#job-actions")).to_contain_text("Hold")
    assert window.troubles_here() == []


def test_the_secret_of_a_token_is_shown_once(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.viewer)
    window.open("/me/")
    window.page.fill("#token-name", "laptop")
    window.page.click("text=Create a token")
    secret = window.page.locator("#secret").inner_text()
    window.open("/me/")

    assert secret.startswith("sy_")
    assert secret not in window.page.content()
    expect(window.page.locator("main")).to_contain_text("laptop")


def test_the_keyboard_goes_places(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.viewer)
    window.open("/")
    window.page.keyboard.press("/")
    expect(window.page.locator(".top .search input")).to_be_focused()
    window.page.keyboard.press("Tab")
    window.page.locator("main h1").click()
    window.page.keyboard.press("g")
    window.page.keyboard.press("q")

    expect(window.page).to_have_url(f"{site.url}/queue/")
    window.page.wait_for_load_state("load")  # a key that is pressed before the scripts are there goes nowhere
    window.page.keyboard.press("j")
    expect(window.page.locator("tr.is-current")).to_have_count(1)
    window.page.keyboard.press("?")
    expect(window.page.locator("#keys-help")).to_be_visible()


def test_the_menu_of_a_phone_opens_without_script(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.viewer, size=PHONE, script=False)
    window.open("/queue/")
    expect(window.page.locator("#menu")).to_be_hidden()
    window.page.click("text=More")

    expect(window.page.locator("#menu")).to_be_visible()
    window.page.click("#menu >> text=Audit trail")
    expect(window.page.locator("main h1")).to_have_text("Audit trail")


def test_an_operator_has_a_job_move_so_that_another_starts(site: Site, open_window: OpenWindow) -> None:
    at, f = clock.now(), site.facility
    here = fleet(2, 4, kind="M1")
    for node, ran_s in ((0, 900), (1, 300)):
        asked = {
            "devices": 2,
            "accelerators": ["M1"],
            "time_limit": 7200.0,
            "checkpoint": {"interval": 3600.0},
        }
        since = at - timedelta(seconds=ran_s)
        half = job(f.pretraining, f.member, name=f"half-{node}", at=since, **asked)
        start(half, here, grant(here.nodes[node], (0, 1)), at=since)
    whole = {"devices": 4, "accelerators": ["M1"], "time_limit": 600.0}
    waits = job(f.pretraining, f.member, name="wants-a-node", at=at, **whole)
    window = open_window(f.operator, size=PHONE)
    window.open("/nodes/")
    page = window.page
    page.get_by_role("link", name="Moves").click()
    expect(page.locator("main h1")).to_have_text("Moves")
    card = page.locator(f"section[aria-label='Job {waits.pk}']")
    expect(card).to_contain_text("half-1")
    assert window.troubles_here() + axe_findings(window) == []
    card.get_by_role("button", name="Move 1 job").click()
    page.get_by_role("button", name="Move", exact=True).click()

    expect(page.locator(".toast")).to_contain_text("asked to move")
    expect(page.locator("main")).to_contain_text("Moved before")
    assert Job.objects.get(name="half-1").state == "preempting"
    assert window.troubles_here() + axe_findings(window) == []


def test_the_tree_of_power_is_walked_by_keys_and_stays_alive(site: Site, open_window: OpenWindow) -> None:
    at = clock.now()
    hall = Domain.objects.get(name="Hall A")
    PowerReading.objects.create(domain=hall, at=at - timedelta(minutes=12), draw_w=45_600, source="pdu")
    for size in (DESKTOP, PHONE):
        window = open_window(site.facility.operator, size=size)
        window.open("/")
        window.page.keyboard.press("g")
        window.page.keyboard.press("p")
        window.page.wait_for_selector("h1:text-is('Power')")
        assert window.page.locator(f"#domain-{hall.pk}").get_by_text("Hold starts").count() == 1

        with window.page.expect_response(lambda answer: "/power/parts/tree/" in answer.url) as waited:
            window.page.evaluate("document.body.dispatchEvent(new CustomEvent('sy:tick15'))")
        assert waited.value.status in (200, 304)
        curtail = window.page.locator(f"#domain-{hall.pk} a.button")
        assert curtail.get_attribute("href") == f"/power/curtail/?domain={hall.pk}"

        window.page.keyboard.press("j")
        window.page.keyboard.press("j")
        window.page.keyboard.press("Enter")
        window.page.wait_for_selector("h1:text-is('Power of Hall A')")
        assert window.troubles_here() == []


def test_a_member_imports_a_script_on_a_phone_and_without_scripts_of_ours(
    site: Site, open_window: OpenWindow
) -> None:
    text = "#!/bin/bash\n#SBATCH --job-name=imported\n#SBATCH --gpus=1\n#SBATCH --mail-type=END\n"
    for size, script in ((DESKTOP, True), (PHONE, True), (PHONE, False)):
        window = open_window(site.facility.member, size=size, script=script)
        window.open("/jobs/new/")
        page = window.page
        page.set_default_timeout(60_000)  # a process's first preview loads the planner
        page.click("text=Import a script or manifests")
        page.fill("#text", f"{text}#SBATCH --nodelist=n1\n./train\n")
        page.click("button[value=show]")
        expect(page.locator("[role=alert]")).to_contain_text("line 5: --nodelist")
        expect(page.locator("button[value=submit]")).to_have_count(0)
        if script:
            assert [one for one in window.troubles_here() if "400 (Bad Request)" not in one] == []
            assert axe_findings(window) == []
        if folder := os.environ.get("SWITCHYARD_SHOTS"):
            page.screenshot(path=f"{folder}/import-{size['width']}-{script}.png", full_page=True)
        page.fill("#text", f"{text}./train\n")
        page.click("button[value=show]")
        expect(page.locator("main")).to_contain_text("No mail is sent")
        page.click("button[value=submit]")
        expect(page.locator("main h1")).to_contain_text("imported")
    assert Job.objects.filter(name="imported").count() == 3

"""What people come for, done in a real browser from sign-in to result."""

import os
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from playwright.sync_api import expect

from apps.core import clock
from apps.dashboard.tests.facility import PASSWORD
from apps.inventory.models import Domain, Node
from apps.jobs.models import Allocation, DeviceClaim, Job
from apps.jobs.tests.builders import Fleet, fleet, grant, job, start
from apps.power.models import NodeReading, PowerReading
from apps.reservations.models import Reservation
from apps.scheduling import losses
from apps.scheduling import services as scheduling
from apps.scheduling.snapshot import take_snapshot
from apps.teams.models import MemberLimit, Quota, QuotaLoan
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

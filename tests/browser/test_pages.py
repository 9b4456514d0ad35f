"""Every page in a real browser: wide and narrow, light and dark, with nothing refused and nothing overflowing."""

from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from tests.browser.conftest import DESKTOP, PHONE, OpenWindow, Site, Window

AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.1" / "axe.min.js"


def paths(site: Site) -> dict[str, str]:
    f = site.facility
    return {
        "overview": "/",
        "queue": "/queue/",
        "queue running": "/queue/?state=running",
        "queue held": "/queue/?state=held",
        "queue finished": "/queue/?state=finished",
        "queue filtered": "/queue/?reason=place&mine=1",
        "queue empty": "/queue/?q=nothing-like-it",
        "submit": "/jobs/new/",
        "import": "/jobs/import/",
        "job waiting": f"/jobs/{f.waiting.pk}/",
        "job running": f"/jobs/{f.running.pk}/",
        "job failed": f"/jobs/{f.failed.pk}/",
        "job unkind": f"/jobs/{f.unkind.pk}/",
        "job logs": f"/jobs/{f.running.pk}/logs/",
        "job spec": f"/jobs/{f.running.pk}/spec/",
        "job attempts": f"/jobs/{f.running.pk}/attempts/",
        "job events": f"/jobs/{f.running.pk}/events/",
        "nodes": "/nodes/",
        "node": f"/nodes/{f.nodes[0].name}/",
        "hall": "/nodes/halls/Hall A/",
        "spine": "/nodes/spines/SG-1/",
        "moves": "/moves/",
        "node failed": f"/nodes/{f.nodes[7].name}/",
        "clusters": "/settings/clusters/",
        "cluster": f"/settings/clusters/{f.nodes[0].cluster_id}/",
        "cluster new": "/settings/clusters/new/slurm/",
        "openadr": "/power/openadr/",
        "openadr new": "/power/openadr/new/",
        "reservations": "/reservations/",
        "reservation new": "/reservations/new/",
        "slots": f"/reservations/slots/?accelerator_type={f.nodes[0].accelerator_type.name}&n_devices=8&hours=2",
        "what if": f"/jobs/{f.waiting.pk}/what-if/",
        "utilization": "/utilization/",
        "utilization of a month": f"/utilization/?month={timezone.localtime():%Y-%m}",
        "utilization wrong": "/utilization/?p=never",
        "quotas": "/quotas/",
        "quota": f"/quotas/{f.vision.name}/",
        "members": f"/quotas/{f.pretraining.name}/",
        "power": "/power/",
        "passes": "/passes/",
        "pass": f"/passes/{f.last_pass.pk}/",
        "policy": "/policy/",
        "policy named": "/policy/?from=turnaround",
        "settings": "/settings/",
        "facility": "/settings/facility/",
        "facility sample": "/settings/facility/?sample=yaml",
        "people": "/settings/people/",
        "welcome": "/welcome/",
        "audit": "/audit/",
        "me": "/me/",
        "notices": "/me/notices/",
        "notice settings": "/me/notices/settings/",
        "search": "/search/?q=l0",
        "styleguide": "/styleguide/",
    }


def axe_findings(window: Window) -> list[str]:
    """What axe-core holds against the page as it stands."""
    window.page.evaluate(AXE.read_text(encoding="utf-8"))
    result: dict[str, Any] = window.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"axe: {one['id']} at {one['nodes'][0]['html'][:120]}" for one in result["violations"]]


@pytest.mark.parametrize(
    ("size", "scheme", "with_axe"),
    [(DESKTOP, "light", True), (DESKTOP, "dark", False), (PHONE, "light", False), (PHONE, "dark", True)],
    ids=["desktop-light", "desktop-dark", "phone-light", "phone-dark"],
)
def test_no_page_has_errors_refusals_barriers_or_sideways_scroll(
    site: Site, open_window: OpenWindow, size: dict[str, int], scheme: str, with_axe: bool
) -> None:
    window = open_window(site.facility.admin, size=size, scheme=scheme)
    troubles = {}
    for name, path in paths(site).items():
        window.open(path)
        found = window.troubles_here() + (axe_findings(window) if with_axe else [])
        if found:
            troubles[name] = found

    assert troubles == {}


def test_charts_are_drawn_and_hovered_without_a_refusal(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.viewer)
    window.open("/")
    window.page.wait_for_selector(".chart .plotly .main-svg")
    for chart in window.page.query_selector_all(".chart[data-figure]"):
        chart.scroll_into_view_if_needed()
        chart.hover()
    window.page.click("[data-theme-toggle]")
    window.page.wait_for_timeout(300)

    assert window.page.get_attribute("html", "data-theme") == "dark"
    assert window.troubles_here() == []


@pytest.mark.parametrize("path", ["/", "/queue/", "/nodes/", "/quotas/", "/power/", "/me/"])
def test_a_page_without_script_has_its_numbers(site: Site, open_window: OpenWindow, path: str) -> None:
    window = open_window(site.facility.member, script=False)
    window.open(path)

    assert window.page.locator("main h1").count() == 1
    assert window.page.locator("main .card").count() >= 1


def test_live_parts_are_asked_for_and_put_in_place(site: Site, open_window: OpenWindow) -> None:
    window = open_window(site.facility.viewer)
    window.open("/")
    with window.page.expect_response(lambda answer: "/parts/figures/" in answer.url) as waited:
        window.page.evaluate("document.body.dispatchEvent(new CustomEvent('sy:tick5'))")

    assert waited.value.status in (200, 304)
    assert window.page.locator("#figures .figure").count() == 4
    assert window.troubles_here() == []


# What a browser that knows no popovers makes of a page: it drops the attribute, and takes the rules written for it.
_WITHOUT_POPOVERS = """
() => {
  const inner = [];
  for (const sheet of document.styleSheets)
    for (const rule of sheet.cssRules)
      if (rule instanceof CSSSupportsRule && rule.conditionText.includes(":popover-open"))
        inner.push(...[...rule.cssRules].map((one) => one.cssText));
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(inner.join("\\n"));
  document.adoptedStyleSheets = [sheet];
  return inner.length;
}
"""


@pytest.mark.parametrize("which", ["node", "quota"])
def test_without_popovers_the_forms_of_a_page_stand_in_it(
    site: Site, open_window: OpenWindow, which: str
) -> None:
    window = open_window(site.facility.admin, size=PHONE)
    window.open(paths(site)[which])
    form = window.page.locator("dialog.sheet:not(#keys-help) form").first
    assert not form.is_visible()

    assert window.page.evaluate(_WITHOUT_POPOVERS) >= 2

    assert form.is_visible()
    assert form.locator("button").last.is_visible()
    assert window.page.locator(".main [popovertarget]:visible").count() == 0
    assert window.troubles_here() == []

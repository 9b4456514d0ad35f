"""Pages of events that are over and of programmes, in a real browser, and on paper."""

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from apps.core import clock
from apps.dashboard.tests.power_scene import PowerScene, build_power_scene
from tests.browser.conftest import DESKTOP, PHONE, OpenWindow, Site
from tests.browser.test_pages import axe_findings


@pytest.fixture(scope="module")
def scene(site: Site, django_db_blocker: DjangoDbBlocker) -> Iterator[PowerScene]:
    with django_db_blocker.unblock():
        yield build_power_scene(site.facility, at=clock.now())


def paths(scene: PowerScene) -> dict[str, str]:
    return {
        "history": "/power/events/",
        "drills": "/power/events/?kind=drill",
        "none": "/power/events/?outcome=missed",
        "report": f"/power/events/{scene.settled.pk}/report/",
        "older version": f"/power/events/{scene.settled.pk}/report/?version=1",
        "drill": f"/power/events/{scene.drill.pk}/report/",
        "not settled": f"/power/events/{scene.unsettled.pk}/report/",
        "programmes": "/power/programmes/",
        "programme": f"/power/programmes/{scene.programme.pk}/",
        "new programme": "/power/programmes/new/",
        "trail": f"/audit/?of=demand_response&id={scene.settled.pk}",
    }


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_errors_refusals_barriers_or_sideways_scroll(
    site: Site, scene: PowerScene, open_window: OpenWindow, size: dict[str, int], scheme: str
) -> None:
    window = open_window(site.facility.admin, size=size, scheme=scheme)
    troubles = {}
    for name, path in paths(scene).items():
        window.open(path)
        if found := window.troubles_here() + axe_findings(window):
            troubles[name] = found

    assert troubles == {}


def test_the_chart_of_a_report_is_drawn_and_hovered(
    site: Site, scene: PowerScene, open_window: OpenWindow
) -> None:
    window = open_window(site.facility.viewer)
    window.open(paths(scene)["report"])
    window.page.wait_for_selector(".chart .plotly .main-svg")
    window.page.hover(".chart[data-figure]")

    assert window.troubles_here() == []


def test_a_report_on_paper_is_dark_on_white_without_the_menu(
    site: Site, scene: PowerScene, open_window: OpenWindow
) -> None:
    window = open_window(site.facility.operator, scheme="dark")
    window.open(paths(scene)["report"])
    window.page.emulate_media(media="print")
    shown = window.page.evaluate(
        "[...document.querySelectorAll('.side, .top, form button')].filter(el => el.offsetParent).length"
    )
    colours = window.page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('h1')).color]"
    )

    assert shown == 0
    assert colours[0] == "rgb(255, 255, 255)"
    assert sum(int(part) for part in colours[1].strip("rgba()").split(",")[:3]) < 200
    assert len(window.page.pdf(format="A4")) > 10_000


def test_filters_and_the_report_work_without_script(
    site: Site, scene: PowerScene, open_window: OpenWindow
) -> None:
    window = open_window(site.facility.viewer, script=False)
    window.open("/power/events/")
    window.page.select_option("select[name=kind]", "drill")
    window.page.click("form.filters button")
    assert window.page.locator("main tbody tr").count() == 1
    window.page.click("main tbody a.name")

    assert "Settlement of event" in window.page.inner_text("h1")
    assert window.page.locator("main table").first.locator("tbody tr").count() == 13

"""A browser and a live site with the small facility of the page tests, each started once."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import Client
from django.test.utils import setup_databases, teardown_databases
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from pytest_django import DjangoDbBlocker
from pytest_django.live_server_helper import LiveServer

from apps.core import clock
from apps.dashboard.tests.facility import Facility, build_facility
from apps.teams.models import User

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}

# Told to every page before its own scripts: a refused style or script is written down, whoever refused it.
_WATCH = """
window.__refused = [];
addEventListener("securitypolicyviolation", (event) => window.__refused.push(
  event.violatedDirective + " " + event.blockedURI + " " + (event.sample || "")));
"""


@pytest.fixture(scope="session")
def browser(requires_program: Callable[..., str]) -> Iterator[Browser]:
    program = requires_program("chromium", "chromium-browser", "google-chrome")
    # Playwright's loop lives in this thread; the ORM is used between its calls, never inside one.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Site:
    """The live site, and what stands in its database."""

    url: str
    facility: Facility


@pytest.fixture(scope="session")
def database(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """pytest-django makes a database only for tests that use its own fixtures; these here do not."""
    described = connections["default"].settings_dict
    with django_db_blocker.unblock():
        made = []
        if described["NAME"] != described["TEST"]["NAME"]:
            made = setup_databases(verbosity=0, interactive=False, serialized_aliases=set())
        yield
        teardown_databases(made, verbosity=0)


@pytest.fixture(scope="module")
def site(database: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    with django_db_blocker.unblock():
        server = LiveServer("127.0.0.1")
        try:
            yield Site(server.url, build_facility(at=clock.now() - timedelta(minutes=30)))
        finally:
            server.stop()
            call_command("flush", verbosity=0, interactive=False)
            # While Playwright's loop runs, Django keeps another connection than before and after it.
            connections.close_all()


@dataclass
class Window:
    """A browser window of one person, which remembers everything that went wrong in it."""

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.url + path, wait_until="load")

    def troubles_here(self) -> list[str]:
        """What went wrong since the last look: errors, refusals, and a page wider than its window."""
        found, self.troubles[:] = list(self.troubles), []
        found += [f"refused: {text}" for text in self.page.evaluate("window.__refused.splice(0)")]
        wide, window = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        if wide > window:
            found.append(f"{wide} px wide in a window of {window}")
        return found


OpenWindow = Callable[..., Window]


@pytest.fixture
def open_window(browser: Browser, site: Site) -> Iterator[OpenWindow]:
    """Opens a window for a person (None: not signed in); all are closed after the test."""
    contexts: list[BrowserContext] = []

    def opened(
        person: User | None, *, size: dict[str, int] = DESKTOP, scheme: str = "light", script: bool = True
    ) -> Window:
        context = browser.new_context(
            viewport=size,  # type: ignore[arg-type]  # a plain dict is what Playwright wants
            color_scheme=scheme,  # type: ignore[arg-type]
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.set_default_timeout(10_000)
        if person is not None:
            client = Client()
            client.force_login(person)
            context.add_cookies(
                [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site.url}]
            )
        if script:
            context.add_init_script(_WATCH)
        page = context.new_page()
        window = Window(page, site.url)
        page.on("pageerror", lambda error: window.troubles.append(f"error: {error}"))
        page.on(
            "console",
            lambda message: (
                window.troubles.append(f"console: {message.text}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on(
            "response",
            lambda answer: (
                window.troubles.append(f"{answer.status} for {answer.url}") if answer.status >= 500 else None
            ),
        )
        return window

    yield opened
    for context in contexts:
        context.close()
    connections.close_all()

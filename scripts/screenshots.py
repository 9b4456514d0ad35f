"""Take the pictures of the README from a running demo: `make up` in one window, this in another.

    python scripts/screenshots.py [--url http://127.0.0.1:8000] [--var var] [--out docs/images]

Pages are opened in the system's Chromium at the width of a desk and of a phone, light and dark. With --all every
variant is kept, under a name that says which it is; else only the pictures that the README shows.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
# What the README shows: page, device and theme, and the name of its picture.
SHOWN = {
    ("overview", "desktop", "light"): "overview.png",
    ("queue", "desktop", "dark"): "queue.png",
    ("job", "desktop", "light"): "job.png",
    ("nodes", "desktop", "light"): "nodes.png",
    ("quota", "desktop", "light"): "quota.png",
    ("queue", "phone", "light"): "queue-phone.png",
    ("overview", "phone", "dark"): "overview-phone.png",
}


def first_link(page: Page, url: str, selector: str) -> str | None:
    """Address of the first link in a list; None when the list is empty."""
    page.goto(url)
    link = page.query_selector(selector)
    return link.get_attribute("href") if link else None


def addresses(page: Page, url: str) -> dict[str, str]:
    """Pages worth a picture, as far as the demo has something to show on them."""
    found = {
        "overview": "/",
        "queue": "/queue/",
        "running": "/queue/?state=running",
        "finished": "/queue/?state=finished",
        "job": first_link(page, f"{url}/queue/?state=running&mine=1", "td a.name")
        or first_link(page, f"{url}/queue/?state=running", "td a.name"),
        "job-waiting": first_link(page, f"{url}/queue/", "td a.name"),
        "nodes": "/nodes/",
        "node": first_link(page, f"{url}/nodes/", "td a.name"),
        "reservations": "/reservations/",
        "quotas": "/quotas/",
        "quota": first_link(page, f"{url}/quotas/", "tr:has(.badge) a.name"),
        "power": "/power/",
        "passes": "/passes/",
        "policy": "/policy/",
        "audit": "/audit/",
        "submit": "/jobs/new/",
        "me": "/me/",
    }
    return {name: path for name, path in found.items() if path}


def sign_in(page: Page, url: str, account: dict[str, str]) -> None:
    page.goto(f"{url}/accounts/login/")
    page.fill("#username", account["username"])
    page.fill("#password", account["password"])
    page.click(".button.primary")
    page.wait_for_selector("main h1")


def take(browser: Browser, url: str, account: dict[str, str], out: Path, *, every: bool) -> None:
    for device, size in (("desktop", DESKTOP), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page = context.new_page()
            sign_in(page, url, account)
            for name, path in addresses(page, url).items():
                shown = SHOWN.get((name, device, scheme))
                file = f"{name}-{device}-{scheme}.png" if every else shown
                if file is None:
                    continue
                page.goto(url + path)
                page.wait_for_timeout(1200)  # charts are drawn after the page
                page.screenshot(path=out / file)
                print(file)
            context.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--var", type=Path, default=Path("var"), help="folder of demo-accounts.json")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--as", dest="who", default="vera", help="account that looks")
    parser.add_argument("--all", action="store_true", help="keep every variant")
    chosen = parser.parse_args(arguments)
    accounts = json.loads((chosen.var / "demo-accounts.json").read_text(encoding="utf-8"))
    account = next(one for one in accounts if one["username"] == chosen.who)
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("needs the program chromium, which this machine lacks")
    chosen.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        take(browser, chosen.url, account, chosen.out, every=chosen.all)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Curtailment by pages: a wish, a preview that changes nothing, a commit, an event that can be called off."""

import re
from typing import Any

import pytest

from apps.core import clock
from apps.dashboard.tests.curtailed import add_work
from apps.dashboard.tests.facility import Facility
from apps.dashboard.tests.test_pages import signed_in
from apps.jobs.models import Job


@pytest.fixture
def work(facility: Facility) -> dict[str, Job]:
    return add_work(facility, at=clock.now())


WISH: dict[str, Any] = {
    "domain": "Hall A",
    "kind": "shed_by",
    "value": "4",
    "minutes": "60",
    "levers": ["cap", "pause"],
    "reason": "the grid asks",
}


def hidden(text: str) -> dict[str, str]:
    """What the preview would send along."""
    return dict(re.findall(r'<input type="hidden" name="(token|shown_\w+)" value="([^"]*)"', text))


def test_smoke(facility, work):
    client = signed_in(facility.operator)
    page = client.get("/power/curtail/")
    assert page.status_code == 200
    part = client.post("/power/curtail/parts/preview/", WISH)
    text = part.content.decode()
    done = client.post("/power/curtail/", {**WISH, "action": "commit", **hidden(text)})
    assert done.status_code == 302
    page = client.get(done.url)
    assert page.status_code == 200

"""Pages answer with what they promise, and only to whom it is promised."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from apps.dashboard.tests.facility import Facility
from apps.teams.models import User


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def addresses(facility: Facility) -> dict[str, str]:
    """Every page and part that is read, by name."""
    job, team = [facility.running.pk], [facility.vision.name]
    bare = (
        "overview figures attention teams pulse chart-power chart-use queue queue-head queue-rows submit nodes node-map"
        " node-list reservations quotas passes passes-list audit me search"
    )
    found = {name: reverse(f"dashboard:{name}") for name in bare.split()}
    for name in "job job-spec job-attempts job-events job-head job-actions job-body".split():
        found[name] = reverse(f"dashboard:{name}", args=job)
    found["team-quota"] = reverse("dashboard:team-quota", args=team)
    found["node"] = reverse("dashboard:node", args=[facility.nodes[0].name])
    found["node-part"] = reverse("dashboard:node-part", args=[facility.nodes[0].name])
    found["pass"] = reverse("dashboard:pass", args=[facility.last_pass.pk])
    found |= {
        f"queue {tab}": f"{found['queue']}?state={tab}" for tab in ("queued", "running", "paused", "held", "finished")
    }
    return found


@pytest.mark.parametrize("who", ["admin", "operator", "auditor", "lead", "member", "stranger", "viewer"])
def test_every_page_opens_for_everybody_signed_in(facility: Facility, who: str) -> None:
    client = signed_in(getattr(facility, who))

    answers = {name: client.get(url).status_code for name, url in addresses(facility).items()}

    assert {name: status for name, status in answers.items() if status != 200} == {}
